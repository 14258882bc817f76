//! What a model file is, without reading tensor data.

use crate::backend::unusable;
use crate::open::{Kind, Last, OpenError, open_model};
use crate::vocabulary::Short;
use backplane_models::{ModelError, ModelSummary};
use backplane_plugin_api::sdk::Result;
use backplane_plugin_api::types::{ModelInfo, TensorSummary};
use backplane_program::RopeStyle;
use backplane_weights::{Checkpoint, Format, Metadata, Value, Weights};
use std::path::Path;

/// The format of what model hubs have.
const SAFETENSORS: &str = "safetensors";

/// `None` for anything that neither is a model of a format known here nor is named like one.
///
/// # Errors
/// It is broken, or is named like a model and is something else: the error says what.
pub(crate) fn inspect(path: &Path, last: &Last) -> Result<Option<ModelInfo>> {
    let Some(kind) = Kind::of(path) else {
        return Ok(None);
    };
    let opened = match open_model(path) {
        Ok(opened) => opened,
        // The metadata can still be told when a tensor's storage type is not known.
        Err(OpenError::Weights(error @ backplane_weights::Error::UnsupportedType { .. }))
            if kind == Kind::Gguf =>
        {
            let metadata = Metadata::open(path).map_err(unusable)?;
            let mut info = from_metadata(path, &metadata);
            info.file_bytes = std::fs::metadata(path).map_or(0, |file| file.len());
            info.unsupported = Some(error.to_string());
            return Ok(Some(info));
        }
        Err(OpenError::Hub(error)) => return unknown_family(path, &error).map(Some),
        Err(error) => return Err(error.into()),
    };
    let mut info = describe(&opened.weights)?;
    // A vocabulary that can't be used would only be found by loading: it is told here, since the choice of a backend rests
    // on it.
    if info.unsupported.is_none() {
        info.unsupported = opened.tokenizer.as_ref().err().cloned();
    }
    info.warnings
        .extend(Short::of(&opened).map(|it| it.to_string()));
    if info.unsupported.is_none() {
        last.keep(path, opened);
    }
    Ok(Some(info))
}

/// Describes a directory of a family that is not known by its tensors; any other error is one.
fn unknown_family(path: &Path, error: &ModelError) -> Result<ModelInfo> {
    let family = match error {
        ModelError::Key { key, found, .. } if key == "model_type" => found.trim_matches('"'),
        _ => return Err(unusable(error)),
    };
    let checkpoint = Checkpoint::open(path).map_err(unusable)?;
    let tensors: Vec<TensorSummary> = checkpoint
        .tensors()
        .map(|tensor| TensorSummary {
            name: tensor.name.to_owned(),
            storage: tensor.dtype.to_string(),
            shape: tensor.shape.iter().map(|&length| length as u64).collect(),
            bytes: tensor.data.len() as u64,
        })
        .collect();
    let parameters = |tensor: &TensorSummary| tensor.shape.iter().product::<u64>();
    Ok(ModelInfo {
        name: name_of(checkpoint.directory()),
        path: path.to_owned(),
        format: SAFETENSORS.into(),
        architecture: family.to_owned(),
        quantization: String::new(),
        parameters: tensors.iter().map(parameters).sum(),
        file_bytes: tensors.iter().map(|tensor| tensor.bytes).sum(),
        context_length: 0,
        loaded_context: 0,
        vocabulary: 0,
        chat_template: None,
        unsupported: Some(error.to_string()),
        details: Vec::new(),
        metadata: Vec::new(),
        tensors,
        warnings: Vec::new(),
    })
}

/// Describes an opened file; one that can't be run has [`ModelInfo::unsupported`] set.
///
/// # Errors
/// Its metadata are out of range or contradict themselves.
pub(crate) fn describe(weights: &Weights) -> Result<ModelInfo> {
    let mut info = from_metadata(weights.path(), weights.metadata());
    if weights.format() == Format::Safetensors {
        info.format = SAFETENSORS.into();
        // The version of the metadata's form in memory is nothing of the file's.
        info.details.clear();
        info.warnings.clear();
    }
    info.file_bytes = weights.file_bytes();
    info.warnings
        .extend(backplane_models::hub::notes(weights).map_err(unusable)?);
    info.parameters = weights
        .tensors()
        .map(|tensor| tensor.shape.iter().map(|&n| n as u64).product::<u64>())
        .sum();
    info.tensors = weights
        .tensors()
        .map(|tensor| TensorSummary {
            name: tensor.name.clone(),
            storage: tensor.ty.to_string(),
            shape: tensor.shape.iter().map(|&length| length as u64).collect(),
            bytes: tensor.bytes as u64,
        })
        .collect();
    match backplane_models::summarize(weights).and_then(|summary| {
        // Lowering finds what the summary does not look at: missing, misshapen and unknown tensors.
        let lowered = backplane_models::lower(weights);
        match lowered {
            Ok(program) => {
                let style = program.ropes.first().map(|rope| match rope.style {
                    RopeStyle::Interleaved => "neighbours",
                    RopeStyle::Halves => "halves",
                });
                let pairs = style.map(|style| ("rope_pairs".to_owned(), style.to_owned()));
                info.details.extend(pairs);
                Ok((summary, None))
            }
            Err(error @ ModelError::UnusedTensor { .. }) => Ok((summary, Some(error))),
            Err(error) => Err(error),
        }
    }) {
        Ok((summary, unsupported)) => {
            fill(&mut info, &summary);
            info.unsupported = unsupported.map(|error| error.to_string());
        }
        Err(error @ ModelError::UnknownArchitecture { .. }) => {
            info.unsupported = Some(error.to_string())
        }
        Err(error) => return Err(unusable(error)),
    }
    Ok(info)
}

fn fill(info: &mut ModelInfo, summary: &ModelSummary) {
    info.quantization.clone_from(&summary.quantization);
    info.context_length = summary.context_length as u64;
    info.vocabulary = summary.vocab as u64;
    let ModelSummary {
        layers,
        width,
        heads,
        kv_heads,
        head_dim,
        feed_forward,
        rope,
        norm,
        window,
        routing,
        ..
    } = summary;
    let facts: [(&str, String); 9] = [
        ("layers", layers.to_string()),
        ("width", width.to_string()),
        ("heads", heads.to_string()),
        ("kv_heads", kv_heads.to_string()),
        ("head_dim", head_dim.to_string()),
        ("feed_forward", feed_forward.to_string()),
        ("rope", rope.clone()),
        ("norm", norm.clone()),
        ("window", window.clone()),
    ];
    info.details.extend(
        facts
            .into_iter()
            .map(|(key, value)| (key.to_owned(), value)),
    );
    let routing = routing.clone().map(|routing| ("routing".into(), routing));
    info.details.extend(routing);
}

/// What the metadata alone tell, of any architecture. Keys of the wrong type count as missing here: they are refused
/// where they matter.
fn from_metadata(path: &Path, metadata: &Metadata) -> ModelInfo {
    let text = |key: &str| metadata.str(key).ok().flatten().map(str::to_owned);
    let architecture = text("general.architecture").unwrap_or_default();
    let number = |key: &str| metadata.u64(key).ok().flatten().unwrap_or(0);
    let mut warnings = Vec::new();
    if text("tokenizer.ggml.model").as_deref() == Some("gpt2")
        && metadata.get("tokenizer.ggml.pre").is_none()
    {
        warnings.push("tokenizer.ggml.pre is missing: the pre-tokenizer is guessed".to_owned());
    }
    ModelInfo {
        name: text("general.name")
            .filter(|name| !name.is_empty())
            .unwrap_or_else(|| name_of(path)),
        path: path.to_owned(),
        format: "gguf".into(),
        quantization: String::new(),
        parameters: 0,
        file_bytes: 0,
        context_length: number(&format!("{architecture}.context_length")),
        loaded_context: 0,
        vocabulary: match metadata.get("tokenizer.ggml.tokens") {
            Some(Value::Array(tokens)) => tokens.len() as u64,
            _ => 0,
        },
        chat_template: text("tokenizer.chat_template"),
        unsupported: None,
        details: vec![("gguf_version".into(), metadata.version().to_string())],
        metadata: metadata
            .keys()
            .filter_map(|key| Some((key.to_owned(), metadata.get(key)?.to_string())))
            .collect(),
        tensors: Vec::new(),
        warnings,
        architecture,
    }
}

fn name_of(path: &Path) -> String {
    path.file_stem().map_or_else(
        || path.display().to_string(),
        |name| name.to_string_lossy().into(),
    )
}
