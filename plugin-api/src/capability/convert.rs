use super::Progress;
use crate::sdk::Result;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::Path;

/// Name of the capability [`Convert`].
pub const CONVERT: &str = "convert/1";

/// How to convert.
///
/// Since 1.1.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ConvertOptions {
    /// Storage type for the matrices, such as `q8_0`; `None` keeps the types.
    pub quantize: Option<String>,
    /// Options of this backend alone, by name; an unknown name is refused.
    pub extra: BTreeMap<String, serde_json::Value>,
}

/// What was written.
///
/// Since 1.1.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConvertReport {
    /// Tensors written.
    pub tensors: u64,
    /// Bytes written.
    pub bytes: u64,
    /// Things a user should know, a line each, such as what kept its type.
    pub notes: Vec<String>,
}

/// Writes a model in the backend's file format: the capability [`CONVERT`] of a backend.
///
/// Since 1.1; optional. Threads: calls may come from any thread, many at once. Ownership: paths, options and `progress` are
/// lent for the call, the answer is the caller's. Lifetime: it may outlive the backend's handle. Cancellation: through
/// [`Progress`]; where the call errs or is cancelled, nothing is left at the destination that was not there before.
pub trait Convert: Send + Sync {
    /// Reads the model at `source` and writes it to the file `destination`, which must not be there yet. Progress counts
    /// tensors.
    ///
    /// # Errors
    /// The source can't be used; the destination is there, or can't be written; a type or an option is refused; the
    /// call was cancelled.
    fn convert(
        &self,
        source: &Path,
        destination: &Path,
        options: &ConvertOptions,
        progress: &mut dyn Progress,
    ) -> Result<ConvertReport>;
}
