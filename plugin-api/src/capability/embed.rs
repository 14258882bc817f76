use super::Progress;
use crate::sdk::Result;
use crate::types::Prompt;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Name of the capability [`Embed`].
pub const EMBED: &str = "embed/1";

/// Which hidden states make an embedding.
///
/// Since 1.1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Pooling {
    /// The mean over all positions.
    Mean,
    /// That of the last position.
    Last,
    /// That of the first position.
    Cls,
}

impl Pooling {
    /// Every pooling, with its word on command lines and in JSON.
    pub const ALL: &'static [(Pooling, &'static str)] = &[
        (Pooling::Mean, "mean"),
        (Pooling::Last, "last"),
        (Pooling::Cls, "cls"),
    ];
}

/// A request for embeddings.
///
/// Since 1.1.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct EmbedRequest {
    /// The inputs, each on its own.
    pub inputs: Vec<Prompt>,
    /// Which hidden states (after the last norm) count.
    pub pooling: Pooling,
    /// Whether to scale each embedding to Euclidean length 1. One of length 0 stays as it is.
    pub normalize: bool,
    /// Fields that this contract does not know; a backend refuses those it does not know by name.
    pub extra: BTreeMap<String, serde_json::Value>,
}

/// The embedding of one input.
///
/// Since 1.1.
#[derive(Clone, Debug, PartialEq)]
pub struct Embedding {
    /// `[width]`, the width being the same for every input of a model.
    pub values: Vec<f32>,
    /// Tokens of the input, with all that was added to it.
    pub prompt_tokens: u64,
}

/// Texts as vectors: the capability [`EMBED`] of a model.
///
/// Since 1.1; optional. Threads: calls may come from any thread, many at once, beside the model's own. Ownership: the request
/// and `progress` are lent for the call, the answer is the caller's. Lifetime: it may outlive the model's handle; once
/// the model is closed it errs with [`ErrorCode::Closed`](crate::types::ErrorCode::Closed). Cancellation: through
/// [`Progress`].
pub trait Embed: Send + Sync {
    /// One embedding for each input, in order, an error per input. An input of no tokens is an error of its own; no inputs
    /// are no embeddings. An input longer than the context is refused with both counts. Progress counts inputs.
    ///
    /// # Errors
    /// The request as a whole is refused, or was cancelled.
    fn embed(
        &self,
        request: &EmbedRequest,
        progress: &mut dyn Progress,
    ) -> Result<Vec<Result<Embedding>>>;
}
