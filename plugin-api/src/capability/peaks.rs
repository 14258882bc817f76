use super::Progress;
use crate::sdk::Result;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Name of the capability [`Peaks`].
pub const PEAKS: &str = "peaks/1";

/// How to measure.
///
/// Since 1.1.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PeaksRequest {
    /// Fields that this contract does not know; a backend refuses those it does not know by name.
    pub extra: BTreeMap<String, serde_json::Value>,
}

/// What the device reaches at most, just measured, beside what a token of the model asks of it.
///
/// Since 1.1.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PeaksReport {
    /// Bytes of memory read per second, of a buffer as large as the model's weights.
    pub read_bytes_per_s: u64,
    /// Multiply-adds of 8-bit whole numbers per second, out of registers.
    pub multiply_adds_per_s: u64,
    /// Bytes of weights that one step of one sequence reads.
    pub token_bytes: u64,
    /// Multiply-adds with weights that one token of a prompt takes, its logits not among them.
    pub token_multiply_adds: u64,
    /// One line for people: which instructions, how many threads, how large a buffer.
    pub measured: String,
}

/// Measures what the device that runs a model could do at most: the capability [`PEAKS`] of a model.
///
/// Since 1.1; optional. Threads: calls may come from any thread; two at once disturb each other's figures, and generations do
/// too. Ownership: the request and `progress` are lent for the call, the answer is the caller's. Lifetime: it may outlive
/// the model's handle. Cancellation: through [`Progress`].
pub trait Peaks: Send + Sync {
    /// Takes about a second. Progress counts passes.
    ///
    /// # Errors
    /// A field is refused, memory for the buffer is short, the device failed, the call was cancelled.
    fn measure_peaks(
        &self,
        request: &PeaksRequest,
        progress: &mut dyn Progress,
    ) -> Result<PeaksReport>;
}
