use super::Progress;
use crate::sdk::Result;
use crate::types::Prompt;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Name of the capability [`Attention`].
pub const ATTENTION: &str = "attention/1";

/// A request for what attention works on.
///
/// Since 1.1.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct AttentionRequest {
    /// What the model is given.
    pub prompt: Prompt,
    /// Which layers, from 0; `None` is all. They come in the order of the model, each once.
    pub layers: Option<Vec<u32>>,
    /// Fields that this contract does not know; a backend refuses those it does not know by name.
    pub extra: BTreeMap<String, serde_json::Value>,
}

/// Queries and keys of a prompt.
///
/// Since 1.1.
#[derive(Clone, Debug, PartialEq)]
pub struct AttentionState {
    /// `[position]`: token ids of the prompt, with all that was added to it.
    pub tokens: Vec<u32>,
    /// One for each layer asked for, in the order of the model.
    pub layers: Vec<LayerAttention>,
}

/// Queries and keys of one layer, as attention multiplies them: after biases, norms and rotary embedding, before the
/// scale.
///
/// Since 1.1.
#[derive(Clone, Debug, PartialEq)]
pub struct LayerAttention {
    /// Which layer, from 0.
    pub layer: u32,
    /// Query heads.
    pub heads: u32,
    /// Key heads; each serves `heads / kv_heads` query heads in a row.
    pub kv_heads: u32,
    /// Numbers of a head at a position.
    pub head_dim: u32,
    /// `[head][position][head_dim]`.
    pub queries: Vec<f32>,
    /// `[kv_head][position][head_dim]`.
    pub keys: Vec<f32>,
}

/// What attention works on: the capability [`ATTENTION`] of a model.
///
/// Since 1.1; optional. Threads: calls may come from any thread, many at once, beside the model's own. Ownership: the request
/// and `progress` are lent for the call, the answer is the caller's. Lifetime: it may outlive the model's handle; once
/// the model is closed it errs with [`ErrorCode::Closed`](crate::types::ErrorCode::Closed). Cancellation: through
/// [`Progress`].
pub trait Attention: Send + Sync {
    /// Queries and keys of the prompt. Progress counts tokens read.
    ///
    /// # Errors
    /// A layer that the model lacks, or one without such attention, is named; the prompt has no tokens, or more than the
    /// context (both counts are told); the call was cancelled.
    fn inspect_attention(
        &self,
        request: &AttentionRequest,
        progress: &mut dyn Progress,
    ) -> Result<AttentionState>;
}
