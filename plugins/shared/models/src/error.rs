//! Why a model can't be lowered: one line each, with file, key or tensor, found and expected.

use backplane_program::ProgramError;
use std::path::{Path, PathBuf};

/// Why a model file can't become a program.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ModelError {
    /// The file or its metadata can't be read.
    #[error(transparent)]
    Weights(#[from] backplane_weights::Error),
    /// The architecture is not among those known.
    #[error("{}: key general.architecture: found {found:?}, expected one of {known}", path.display())]
    UnknownArchitecture {
        /// The file.
        path: PathBuf,
        /// The architecture it names.
        found: String,
        /// Those known, separated by commas.
        known: String,
    },
    /// A metadata value is out of range, contradicts another, or asks for what is not supported.
    #[error("{}: key {key}: found {found}, expected {expected}", path.display())]
    Key {
        /// The file.
        path: PathBuf,
        /// The metadata key.
        key: String,
        /// What it says.
        found: String,
        /// What was expected.
        expected: String,
    },
    /// A tensor or operation does not fit the architecture.
    #[error("{}: {cause}", path.display())]
    Program {
        /// The file.
        path: PathBuf,
        /// What does not fit (part of the message, therefore not a `source`).
        cause: ProgramError,
    },
    /// The configuration beside a directory's weights can't be read.
    #[error("{}: found {found}, expected {expected}", path.display())]
    Configuration {
        /// The file.
        path: PathBuf,
        /// What is there instead.
        found: String,
        /// What was expected.
        expected: String,
    },
    /// A tensor's numbers can't be used.
    #[error("{}: tensor {tensor}: found {found}, expected {expected}", path.display())]
    Tensor {
        /// The file.
        path: PathBuf,
        /// The tensor.
        tensor: String,
        /// What was found.
        found: String,
        /// What was expected.
        expected: String,
    },
    /// A model can't be written there.
    #[error("{}: found {found}, expected {expected}", path.display())]
    Destination {
        /// The destination.
        path: PathBuf,
        /// What is there.
        found: &'static str,
        /// What was expected.
        expected: &'static str,
    },
    /// The file has a tensor that the architecture has no place for.
    #[error("{}: tensor {tensor:?} has no place in architecture {architecture}", path.display())]
    UnusedTensor {
        /// The file.
        path: PathBuf,
        /// The tensor.
        tensor: String,
        /// The architecture.
        architecture: String,
    },
}

/// Most characters of a file's own text in a message.
const SHOWN: usize = 64;

impl ModelError {
    pub(crate) fn unknown_architecture(path: &Path, found: &str) -> Self {
        let mut known: Vec<_> = crate::ARCHITECTURES
            .iter()
            .map(|architecture| architecture.name)
            .collect();
        known.dedup();
        let found = found.chars().take(SHOWN).collect();
        Self::UnknownArchitecture {
            path: path.into(),
            found,
            known: known.join(", "),
        }
    }

    pub(crate) fn unused_tensor(path: &Path, tensor: &str, architecture: &str) -> Self {
        let tensor = tensor.chars().take(SHOWN).collect();
        Self::UnusedTensor {
            path: path.into(),
            tensor,
            architecture: architecture.into(),
        }
    }
}
