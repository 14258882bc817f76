//! Between the capabilities' plain data and [`abi::capabilities`](crate::abi::capabilities), both ways.

use super::{
    AttentionRequest, AttentionState, ConvertOptions, ConvertReport, EmbedRequest, Embedding,
    Finding, LayerAttention, PeaksReport, PeaksRequest, ScoreRequest,
};
use crate::abi::capabilities as data;
use crate::abi::codes;
use crate::convert::{map_from_text, map_text};
use crate::types::{Error, ErrorCode, Prompt};
use abi_stable::std_types::{RString, RVec};
use std::collections::BTreeMap;

type Result<T> = std::result::Result<T, Error>;

impl From<&EmbedRequest> for data::EmbedRequest {
    fn from(request: &EmbedRequest) -> Self {
        Self {
            inputs: request.inputs.iter().map(Into::into).collect(),
            pooling: request.pooling.into(),
            normalize: request.normalize,
            extra: map_text(&request.extra, request.extra.is_empty()),
        }
    }
}

impl TryFrom<&data::EmbedRequest> for EmbedRequest {
    type Error = Error;

    fn try_from(request: &data::EmbedRequest) -> Result<Self> {
        if !request.pooling.is_known() {
            return Err(Error {
                code: ErrorCode::UnsupportedField,
                message: format!(
                    "pooling {}, which contract {} does not know",
                    request.pooling.0,
                    crate::abi::CONTRACT_VERSION
                ),
                field: "pooling".into(),
                action: String::new(),
            });
        }
        Ok(Self {
            inputs: request
                .inputs
                .iter()
                .map(Prompt::try_from)
                .collect::<Result<_>>()?,
            pooling: request.pooling.into(),
            normalize: request.normalize,
            extra: map_from_text(&request.extra, "extra")?,
        })
    }
}

impl From<Embedding> for data::Embedding {
    fn from(embedding: Embedding) -> Self {
        Self {
            values: embedding.values.into(),
            prompt_tokens: embedding.prompt_tokens,
            more: RString::new(),
        }
    }
}

impl From<data::Embedding> for Embedding {
    fn from(embedding: data::Embedding) -> Self {
        Self {
            values: embedding.values.into(),
            prompt_tokens: embedding.prompt_tokens,
        }
    }
}

impl From<&ScoreRequest> for data::ScoreRequest {
    fn from(request: &ScoreRequest) -> Self {
        Self {
            tokens: request.tokens.as_slice().into(),
            first: request.first,
            extra: map_text(&request.extra, request.extra.is_empty()),
        }
    }
}

impl TryFrom<&data::ScoreRequest> for ScoreRequest {
    type Error = Error;

    fn try_from(request: &data::ScoreRequest) -> Result<Self> {
        Ok(Self {
            tokens: request.tokens.to_vec(),
            first: request.first,
            extra: map_from_text(&request.extra, "extra")?,
        })
    }
}

impl From<Vec<f32>> for data::Scores {
    fn from(logprobs: Vec<f32>) -> Self {
        Self {
            logprobs: logprobs.into(),
            more: RString::new(),
        }
    }
}

impl From<data::Scores> for Vec<f32> {
    fn from(scores: data::Scores) -> Self {
        scores.logprobs.into()
    }
}

impl From<&AttentionRequest> for data::AttentionRequest {
    fn from(request: &AttentionRequest) -> Self {
        Self {
            prompt: (&request.prompt).into(),
            layers: request
                .layers
                .as_ref()
                .map(|layers| RVec::from(layers.as_slice()))
                .into(),
            extra: map_text(&request.extra, request.extra.is_empty()),
        }
    }
}

impl TryFrom<&data::AttentionRequest> for AttentionRequest {
    type Error = Error;

    fn try_from(request: &data::AttentionRequest) -> Result<Self> {
        Ok(Self {
            prompt: (&request.prompt).try_into()?,
            layers: request
                .layers
                .as_ref()
                .into_option()
                .map(|layers| layers.to_vec()),
            extra: map_from_text(&request.extra, "extra")?,
        })
    }
}

impl From<LayerAttention> for data::LayerAttention {
    fn from(layer: LayerAttention) -> Self {
        Self {
            layer: layer.layer,
            heads: layer.heads,
            kv_heads: layer.kv_heads,
            head_dim: layer.head_dim,
            queries: layer.queries.into(),
            keys: layer.keys.into(),
            more: RString::new(),
        }
    }
}

impl From<data::LayerAttention> for LayerAttention {
    fn from(layer: data::LayerAttention) -> Self {
        Self {
            layer: layer.layer,
            heads: layer.heads,
            kv_heads: layer.kv_heads,
            head_dim: layer.head_dim,
            queries: layer.queries.into(),
            keys: layer.keys.into(),
        }
    }
}

impl From<AttentionState> for data::AttentionState {
    fn from(state: AttentionState) -> Self {
        Self {
            tokens: state.tokens.into(),
            layers: state.layers.into_iter().map(Into::into).collect(),
            more: RString::new(),
        }
    }
}

impl From<data::AttentionState> for AttentionState {
    fn from(state: data::AttentionState) -> Self {
        Self {
            tokens: state.tokens.into(),
            layers: state.layers.into_iter().map(Into::into).collect(),
        }
    }
}

impl From<&PeaksRequest> for data::PeaksRequest {
    fn from(request: &PeaksRequest) -> Self {
        Self {
            extra: map_text(&request.extra, request.extra.is_empty()),
        }
    }
}

impl TryFrom<&data::PeaksRequest> for PeaksRequest {
    type Error = Error;

    fn try_from(request: &data::PeaksRequest) -> Result<Self> {
        let extra = map_from_text(&request.extra, "extra")?;
        Ok(Self { extra })
    }
}

impl From<PeaksReport> for data::PeaksReport {
    fn from(report: PeaksReport) -> Self {
        Self {
            read_bytes_per_s: report.read_bytes_per_s,
            multiply_adds_per_s: report.multiply_adds_per_s,
            token_bytes: report.token_bytes,
            token_multiply_adds: report.token_multiply_adds,
            measured: report.measured.into(),
            more: RString::new(),
        }
    }
}

impl From<data::PeaksReport> for PeaksReport {
    fn from(report: data::PeaksReport) -> Self {
        Self {
            read_bytes_per_s: report.read_bytes_per_s,
            multiply_adds_per_s: report.multiply_adds_per_s,
            token_bytes: report.token_bytes,
            token_multiply_adds: report.token_multiply_adds,
            measured: report.measured.into(),
        }
    }
}

/// The options of a check; there are none yet, so that each is refused by name.
pub(super) fn check_options_in(options: &data::CheckOptions) -> Result<()> {
    let extra: BTreeMap<String, serde_json::Value> = map_from_text(&options.extra, "extra")?;
    match extra.into_keys().next() {
        Some(field) => Err(Error::unsupported_field(field, "the check")),
        None => Ok(()),
    }
}

impl From<Finding> for data::Finding {
    fn from(finding: Finding) -> Self {
        Self {
            tensor: finding.tensor.into(),
            message: finding.message.into(),
            more: RString::new(),
        }
    }
}

impl From<data::Finding> for Finding {
    fn from(finding: data::Finding) -> Self {
        Self {
            tensor: finding.tensor.into(),
            message: finding.message.into(),
        }
    }
}

impl From<&ConvertOptions> for data::ConvertOptions {
    fn from(options: &ConvertOptions) -> Self {
        Self {
            quantize: options
                .quantize
                .as_ref()
                .map(|name| RString::from(name.as_str()))
                .into(),
            extra: map_text(&options.extra, options.extra.is_empty()),
        }
    }
}

impl TryFrom<&data::ConvertOptions> for ConvertOptions {
    type Error = Error;

    fn try_from(options: &data::ConvertOptions) -> Result<Self> {
        Ok(Self {
            quantize: options.quantize.clone().into_option().map(Into::into),
            extra: map_from_text(&options.extra, "extra")?,
        })
    }
}

impl From<ConvertReport> for data::ConvertReport {
    fn from(report: ConvertReport) -> Self {
        Self {
            tensors: report.tensors,
            bytes: report.bytes,
            notes: report.notes.into_iter().map(RString::from).collect(),
            more: RString::new(),
        }
    }
}

impl From<data::ConvertReport> for ConvertReport {
    fn from(report: data::ConvertReport) -> Self {
        Self {
            tensors: report.tensors,
            bytes: report.bytes,
            notes: report.notes.into_iter().map(Into::into).collect(),
        }
    }
}

const _: () = assert!(size_of::<codes::Pooling>() == 4);
