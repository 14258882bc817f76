//! Paths in JSON: as text for people and scripts. What is not UTF-8 in a path is replaced, where `serde` would refuse it.

use serde::Serializer;
use std::path::{Path, PathBuf};

/// A path.
pub(crate) fn path<S: Serializer>(path: &Path, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(&path.display())
}

/// A path, or nothing.
pub(crate) fn option<S: Serializer>(
    path: &Option<PathBuf>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    match path {
        Some(path) => serializer.collect_str(&path.display()),
        None => serializer.serialize_none(),
    }
}

/// Several paths.
pub(crate) fn list<S: Serializer>(paths: &[PathBuf], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(paths.iter().map(|path| path.display().to_string()))
}
