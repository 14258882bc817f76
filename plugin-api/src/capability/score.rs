use super::Progress;
use crate::sdk::Result;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Name of the capability [`Score`].
pub const SCORE: &str = "score/1";

/// A request for the probabilities of tokens that are given.
///
/// Since 1.1.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ScoreRequest {
    /// Token ids, taken as they are: nothing is added.
    pub tokens: Vec<u32>,
    /// Index of the first token that is scored; 0 counts as 1, since nothing precedes the first token.
    pub first: u32,
    /// Fields that this contract does not know; a backend refuses those it does not know by name.
    pub extra: BTreeMap<String, serde_json::Value>,
}

impl ScoreRequest {
    /// How many tokens are scored: those from `first.max(1)` on.
    pub fn scored(&self) -> usize {
        let first = usize::try_from(self.first.max(1)).unwrap_or(usize::MAX);
        self.tokens.len().saturating_sub(first)
    }
}

/// How likely a model finds a text: the capability [`SCORE`] of a model.
///
/// Since 1.1; optional. Threads: calls may come from any thread, many at once, beside the model's own. Ownership: the request
/// and `progress` are lent for the call, the answer is the caller's. Lifetime: it may outlive the model's handle; once
/// the model is closed it errs with [`ErrorCode::Closed`](crate::types::ErrorCode::Closed). Cancellation: through
/// [`Progress`].
pub trait Score: Send + Sync {
    /// `[scored]`: for each `i` of `first.max(1)..tokens.len()`, in order, the natural logarithm of the probability of
    /// `tokens[i]` after `tokens[..i]`, over the whole vocabulary. Empty where there is none to score. Progress counts
    /// tokens read.
    ///
    /// # Errors
    /// An id is outside the vocabulary; the tokens are more than the context (both counts are told); the call was
    /// cancelled.
    fn score(&self, request: &ScoreRequest, progress: &mut dyn Progress) -> Result<Vec<f32>>;
}
