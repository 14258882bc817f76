//! Keys of `config.json` that no family asked for: those that change nothing, those that would change the arithmetic, and
//! those that nobody knows.

use super::config::{Section, escaped, shown};
use crate::ModelError;
use serde_json::Value;

/// Keys that don't change what a forward pass gives.
const IDLE: &[&str] = &[
    "_attn_implementation",
    "_attn_implementation_autoset",
    "_name_or_path",
    "_sliding_window_pattern",
    "architectures",
    "attention_dropout",
    "attn_implementation",
    "aux_loss_alpha",
    "boi_token_index",
    "bos_token_id",
    "cache_implementation",
    "chunk_size_feed_forward",
    "dtype",
    "embd_pdrop",
    "eoi_token_index",
    "eos_token_id",
    "ep_size",
    "hidden_dropout",
    "id2label",
    "image_token_index",
    "initializer_range",
    "is_decoder",
    "is_llama_config",
    "label2id",
    "max_sequence_length",
    "mm_tokens_per_image",
    "model_type",
    "num_labels",
    "output_attentions",
    "output_hidden_states",
    "output_router_logits",
    "pad_token_id",
    "pretraining_tp",
    "problem_type",
    "resid_pdrop",
    "return_dict",
    "router_aux_loss_coef",
    "router_jitter_noise",
    "seq_aux",
    "tokenizer_class",
    "torch_dtype",
    "transformers.js_config",
    "transformers_version",
    "unk_token_id",
    "unsloth_fixed",
    "unsloth_version",
    "use_bfloat16",
    "use_cache",
];

/// Keys that change the arithmetic of some family; the value beside null, false, 0 and an empty list at which they don't.
const CHANGING: &[(&str, Option<f64>)] = &[
    ("add_cross_attention", None),
    ("alibi", None),
    ("attention_bias", None),
    ("attention_chunk_size", None),
    ("attention_multiplier", None),
    ("attn_logit_softcapping", None),
    ("attn_temperature_tuning", None),
    ("clip_qkv", None),
    ("compression_config", None),
    ("embedding_multiplier", Some(1.0)),
    ("embedding_scale", Some(1.0)),
    ("final_logit_softcapping", None),
    ("full_attn_mod", Some(1.0)),
    ("interpolate_factor", Some(1.0)),
    ("is_encoder_decoder", None),
    ("lm_head_bias", None),
    ("logit_scale", Some(1.0)),
    ("logits_scaling", Some(1.0)),
    ("mlp_bias", None),
    ("n_routed_experts", None),
    ("no_rope_layers", None),
    ("num_experts", None),
    ("num_local_experts", None),
    ("partial_rotary_factor", Some(1.0)),
    ("qk_layernorm", None),
    ("quantization", None),
    ("quantization_config", None),
    ("query_pre_attn_scalar", None),
    ("residual_multiplier", Some(1.0)),
    ("rope_interleaved", None),
    ("rotary_pct", Some(1.0)),
    ("scale_depth", None),
    ("scale_emb", Some(1.0)),
    ("sliding_window", None),
    ("use_alibi", None),
    ("use_bidirectional_attention", None),
    ("use_mrope", None),
    ("use_parallel_residual", None),
    ("use_qk_norm", None),
    ("use_sliding_window", None),
];

/// Refuses what would change the arithmetic and was not asked for; notes what nobody knows.
pub(super) fn check(
    section: &Section,
    model_type: &str,
    notes: &mut Vec<String>,
) -> Result<(), ModelError> {
    // By name: the order in which a map gives them depends on who else uses the JSON library.
    let mut unasked = section.unasked();
    unasked.sort_by_key(|(key, _)| *key);
    for (key, value) in unasked {
        if key == "auto_map" {
            notes.push("config.json: key auto_map: code beside the weights is never run".into());
        } else if let Some((_, neutral)) = CHANGING.iter().find(|(name, _)| *name == key) {
            let is_neutral = match value {
                Value::Bool(flag) => !flag,
                Value::Number(number) => {
                    let number = number.as_f64();
                    number == Some(0.0) || neutral.is_some() && number == *neutral
                }
                Value::Array(list) => list.is_empty(),
                _ => false,
            };
            if !is_neutral {
                return Err(refused(section, key, value, model_type));
            }
        } else if !IDLE.contains(&key) {
            let (key, value) = (escaped(key), shown(value));
            notes.push(format!(
                "config.json: key {key}: {value} is not known, and not heeded"
            ));
        }
    }
    Ok(())
}

fn refused(section: &Section, key: &str, value: &Value, model_type: &str) -> ModelError {
    let method = value.get("quant_method").and_then(Value::as_str);
    if let Some(method) = method.filter(|_| key == "quantization_config") {
        let found = format!("weights stored by {}", escaped(method));
        return section.differs(key, found, "no such key, and weights in F32, F16 or BF16");
    }
    let expected = format!("no such key: {model_type} is run without it");
    section.wrong(key, value, &expected)
}
