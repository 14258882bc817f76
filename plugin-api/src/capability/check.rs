use super::Progress;
use crate::sdk::Result;
use serde::{Deserialize, Serialize};
use std::path::Path;

/// Name of the capability [`Check`].
pub const CHECK: &str = "check/1";

/// Something wrong with a model.
///
/// Since 1.1.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Finding {
    /// The tensor, by its name in the file; empty where no single one is at fault.
    pub tensor: String,
    /// One line: what was found.
    pub message: String,
}

/// Reads a model's weights and says what is wrong with them: the capability [`CHECK`] of a backend.
///
/// Since 1.1; optional. Threads: calls may come from any thread, many at once. Ownership: the path and `progress` are lent for
/// the call, the answer is the caller's. Lifetime: it may outlive the backend's handle. Cancellation: through
/// [`Progress`].
pub trait Check: Send + Sync {
    /// What is wrong, in the order of the file (numbers that are none, shapes that disagree …); empty where nothing is.
    /// Progress counts tensors.
    ///
    /// # Errors
    /// The file is not of this backend's formats, or too broken to be read; the call was cancelled.
    fn check(&self, path: &Path, progress: &mut dyn Progress) -> Result<Vec<Finding>>;
}
