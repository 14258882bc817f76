//! Where llama.cpp computes something else than this engine out of the same file, or doesn't load it.

use crate::ModelError;
use backplane_weights::Weights;

/// Keys of tokenizers that are no arithmetic.
const SILENT: &[&str] = &["backplane.tokenizer.source", "backplane.tokenizer.warnings"];

/// A line for each difference.
pub(super) fn of(weights: &Weights) -> Result<Vec<String>, ModelError> {
    let meta = weights.metadata();
    let architecture = meta.require_str("general.architecture")?;
    let key = |name: &str| format!("{architecture}.{name}");
    let has = |name: &str| meta.get(&key(name)).is_some();
    let window = || {
        Ok::<_, ModelError>(
            meta.u64(&key("attention.sliding_window"))?
                .filter(|it| *it > 0),
        )
    };
    let mut notes = Vec::new();
    match architecture {
        "llama" | "phi3" => {
            if let Some(window) = window()? {
                notes.push(format!(
                    "key {}: llama.cpp knows no window for this architecture: past {window} positions it computes something else",
                    key("attention.sliding_window")
                ));
            }
        }
        "gemma3" => {
            let unread = [
                ("attention.scale", "scales scores by the usual factor"),
                (
                    "attention.sliding_window_pattern",
                    "takes every sixth layer for one without a window",
                ),
                ("attn_logit_softcapping", "caps no scores"),
            ];
            for (name, does) in unread.iter().filter(|(name, _)| has(name)) {
                notes.push(format!(
                    "key {}: llama.cpp doesn't heed it and {does}",
                    key(name)
                ));
            }
        }
        "qwen2moe" | "qwen3moe" => {
            let usual = architecture == "qwen3moe";
            let found = meta.bool(&key("expert_weights_norm"))?;
            if let Some(found) = found.filter(|found| *found != usual) {
                notes.push(format!(
                    "key {}: llama.cpp takes it to be {usual} for this architecture, here it is {found}",
                    key("expert_weights_norm")
                ));
            }
        }
        _ => {}
    }
    // Tensors that its loader doesn't ask for, which it takes for a sign of a wrong file; and one that it wants.
    let mixture = ["qwen2moe", "qwen3moe"].contains(&architecture);
    let dense = weights.tensors().find(|info| {
        mixture && info.name.starts_with("blk.") && info.name.ends_with(".ffn_gate.weight")
    });
    if let Some(dense) = dense {
        notes.push(format!(
            "tensor {}: llama.cpp wants experts in every layer of this architecture and won't load the file",
            dense.name
        ));
    }
    if !["llama", "phi3"].contains(&architecture) && weights.tensor(crate::rope::FACTORS).is_some()
    {
        notes.push(format!(
            "tensor {}: llama.cpp has no place for it in this architecture and won't load the file",
            crate::rope::FACTORS
        ));
    }
    let tokens: Vec<&str> = meta
        .keys()
        .filter(|key| !SILENT.contains(key))
        .filter_map(|key| key.strip_prefix("backplane.tokenizer."))
        .collect();
    if !tokens.is_empty() {
        notes.push(format!(
            "the tokenizer has what GGUF has no keys for ({}): llama.cpp may read or write some texts in another way",
            tokens.join(", ")
        ));
    }
    Ok(notes)
}
