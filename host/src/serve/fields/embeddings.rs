//! Fields of `POST /v1/embeddings`.

use super::Does::{Content, Honoured, NoEffect};
use super::values::{boolean, choice, text, whole};
use super::{Endpoint, Field};
use backplane_plugin_api::Pooling;

const EMBEDDINGS: &[Endpoint] = &[Endpoint::Embeddings];

/// What embeddings are asked for.
#[derive(Clone, Debug)]
pub(in crate::serve) struct Embeddings {
    /// As base64 of little-endian numbers, instead of a list.
    pub(in crate::serve) base64: bool,
    /// How many numbers.
    pub(in crate::serve) dimensions: Option<u32>,
    pub(in crate::serve) pooling: Pooling,
    pub(in crate::serve) normalize: bool,
}

impl Default for Embeddings {
    fn default() -> Self {
        Self {
            base64: false,
            dimensions: None,
            pooling: Pooling::Mean,
            normalize: true,
        }
    }
}

#[rustfmt::skip]
pub(super) const FIELDS: &[Field] = &[
    Field { name: "model", on: EMBEDDINGS, does: Honoured(|it, v| text(v).map(|v| it.model = v)),
        about: "name of a model that is served, as `GET /v1/models` lists it; required" },
    Field { name: "input", on: EMBEDDINGS, does: Content,
        about: "a text, an array of token ids, or an array of up to 2048 of either; required" },
    Field { name: "encoding_format", on: EMBEDDINGS, does: Honoured(|it, v| choice(v, &["float", "base64"]).map(|v| it.embeddings.base64 = v == 1)),
        about: "`float` (the default), or `base64` of the little-endian 32-bit numbers" },
    Field { name: "dimensions", on: EMBEDDINGS, does: Honoured(|it, v| whole(v, 1, u32::MAX).map(|v| it.embeddings.dimensions = Some(v))),
        about: "only the width of the model's embeddings: none is cut, as few models are made for that" },
    Field { name: "pooling", on: EMBEDDINGS, does: Honoured(|it, v| {
        let words: Vec<&str> = Pooling::ALL.iter().map(|(_, word)| *word).collect();
        choice(v, &words).map(|v| it.embeddings.pooling = Pooling::ALL[v].0)
    }),
        about: "which hidden states count: `mean` (the default), `last` or `cls` (not OpenAI's)" },
    Field { name: "normalize", on: EMBEDDINGS, does: Honoured(|it, v| boolean(v).map(|v| it.embeddings.normalize = v)),
        about: "whether vectors have the length 1, which they have unless this is false (not OpenAI's)" },
    Field { name: "user", on: EMBEDDINGS, does: NoEffect, about: "names an end user to the provider" },
];
