//! What a model file is, as far as llama.cpp's server is concerned: GGUF, of any architecture.

use backplane_plugin_api::sdk::Result;
use backplane_plugin_api::types::{Error, ErrorCode, ModelInfo, TensorSummary};
use backplane_weights::{Metadata, Value, Weights};
use std::path::Path;

/// `None` for anything that neither is GGUF nor is named like it. Which architectures a build of the server knows, only it
/// can say: any is taken here.
///
/// # Errors
/// The file is GGUF and broken, or is named `.gguf` and is something else.
pub(crate) fn inspect(path: &Path) -> Result<Option<ModelInfo>> {
    let named = path
        .extension()
        .is_some_and(|extension| extension.eq_ignore_ascii_case("gguf"));
    if !named && !Weights::is_gguf(path) {
        return Ok(None);
    }
    let unusable =
        |error: backplane_weights::Error| Error::new(ErrorCode::ModelUnusable, error.to_string());
    match Weights::open(path) {
        Ok(weights) => {
            let mut info = from_metadata(path, weights.metadata());
            info.file_bytes = weights.file_bytes();
            info.tensors = weights
                .tensors()
                .map(|tensor| TensorSummary {
                    name: tensor.name.clone(),
                    storage: tensor.ty.to_string(),
                    shape: tensor.shape.iter().map(|&length| length as u64).collect(),
                    bytes: tensor.bytes as u64,
                })
                .collect();
            info.parameters = info
                .tensors
                .iter()
                .map(|tensor| tensor.shape.iter().product::<u64>())
                .sum();
            Ok(Some(info))
        }
        // Storage types that are not known here, the server may know.
        Err(backplane_weights::Error::UnsupportedType { .. }) => {
            let metadata = Metadata::open(path).map_err(unusable)?;
            let mut info = from_metadata(path, &metadata);
            info.file_bytes = std::fs::metadata(path).map_or(0, |file| file.len());
            Ok(Some(info))
        }
        Err(error) => Err(unusable(error)),
    }
}

/// Ids of control and unknown tokens, sorted: those that a text is written without. Empty where the file does not tell.
pub(crate) fn special_tokens(path: &Path) -> Vec<u32> {
    const SPECIAL: [i32; 2] = [2, 3];
    let metadata = Metadata::open(path).ok();
    let kinds = metadata.and_then(|metadata| {
        metadata
            .array("tokenizer.ggml.token_type")
            .ok()??
            .i32s()
            .ok()
    });
    let kinds = kinds.into_iter().flatten().zip(0u32..);
    kinds
        .filter(|(kind, _)| SPECIAL.contains(kind))
        .map(|(_, id)| id)
        .collect()
}

fn from_metadata(path: &Path, metadata: &Metadata) -> ModelInfo {
    let text = |key: &str| metadata.str(key).ok().flatten().map(str::to_owned);
    let architecture = text("general.architecture").unwrap_or_default();
    let number = |key: &str| {
        let key = format!("{architecture}.{key}");
        metadata.u64(&key).ok().flatten()
    };
    let file_name = || {
        let name = path.file_stem().unwrap_or(path.as_os_str());
        name.to_string_lossy().into_owned()
    };
    let detail = |name: &str, key: &str| Some((name.to_owned(), number(key)?.to_string()));
    ModelInfo {
        name: text("general.name")
            .filter(|name| !name.is_empty())
            .unwrap_or_else(file_name),
        path: path.to_owned(),
        format: "gguf".into(),
        quantization: String::new(),
        parameters: 0,
        file_bytes: 0,
        context_length: number("context_length").unwrap_or(0),
        loaded_context: 0,
        vocabulary: match metadata.get("tokenizer.ggml.tokens") {
            Some(Value::Array(tokens)) => tokens.len() as u64,
            _ => 0,
        },
        chat_template: text("tokenizer.chat_template"),
        unsupported: None,
        details: [
            detail("layers", "block_count"),
            detail("width", "embedding_length"),
            detail("heads", "attention.head_count"),
            detail("kv_heads", "attention.head_count_kv"),
            detail("experts", "expert_count"),
        ]
        .into_iter()
        .flatten()
        .collect(),
        metadata: metadata
            .keys()
            .filter_map(|key| Some((key.to_owned(), metadata.get(key)?.to_string())))
            .collect(),
        tensors: Vec::new(),
        warnings: Vec::new(),
        architecture,
    }
}
