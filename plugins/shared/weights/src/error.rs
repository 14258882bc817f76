//! The one error of this crate: a line that says where, what was found, and what was expected.

use std::path::PathBuf;

use crate::blocks::TensorType;

/// Why a model file can't be used. Each message is one line; text taken from the file is escaped and shortened in it.
#[derive(thiserror::Error, Debug)]
#[non_exhaustive]
pub enum Error {
    /// The operating system refused.
    #[error("{}: {cause}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What the operating system said (part of the message, therefore not a `source`).
        cause: std::io::Error,
    },
    /// Not a GGUF file at all.
    #[error("{}: expected a GGUF file, found {found}", path.display())]
    NotGguf {
        /// The file.
        path: PathBuf,
        /// What it is instead.
        found: String,
    },
    /// Neither a safetensors file, nor an index of such, nor a directory with either.
    #[error("{}: expected {expected}, found {found}", path.display())]
    NotSafetensors {
        /// The file or directory.
        path: PathBuf,
        /// What it is instead.
        found: String,
        /// What it should be.
        expected: &'static str,
    },
    /// A GGUF file of a version or byte order that is not read.
    #[error("{}: expected GGUF version 2 or 3 (little-endian), found {found}", path.display())]
    Version {
        /// The file.
        path: PathBuf,
        /// The version found, in words.
        found: String,
    },
    /// The bytes at an offset are not what the format puts there.
    #[error("{}: offset {offset}: {what}: found {found}, expected {expected}", path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
        /// Where in the file, in bytes from its start.
        offset: u64,
        /// The part of the format.
        what: String,
        /// What stands there.
        found: String,
        /// What should.
        expected: String,
    },
    /// A metadata key holds something else than it must.
    #[error("{}: key {key}: found {found}, expected {expected}", path.display())]
    Key {
        /// The file.
        path: PathBuf,
        /// The metadata key.
        key: String,
        /// Type and value found.
        found: String,
        /// What was expected.
        expected: String,
    },
    /// A metadata key that is needed isn't there.
    #[error("{}: key {key}: missing, expected {expected}", path.display())]
    MissingKey {
        /// The file.
        path: PathBuf,
        /// The metadata key.
        key: String,
        /// The type expected.
        expected: String,
    },
    /// A tensor's description is not usable.
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
    /// A tensor that is needed isn't there.
    #[error("{}: tensor {tensor}: missing", path.display())]
    MissingTensor {
        /// The file.
        path: PathBuf,
        /// The tensor.
        tensor: String,
    },
    /// A tensor is stored in a type that is not supported.
    #[error("{}: tensor {tensor}: type {found} is not supported, expected one of {}", path.display(), TensorType::list())]
    UnsupportedType {
        /// The file.
        path: PathBuf,
        /// The tensor.
        tensor: String,
        /// The type's name, or its number where the number is unknown.
        found: String,
    },
    /// The parts of a split model don't fit together.
    #[error("{}: found {found}, expected {expected}", path.display())]
    Shard {
        /// The part, or the file that should be one.
        path: PathBuf,
        /// What was found.
        found: String,
        /// What was expected.
        expected: String,
    },
    /// Something handed to the writer can't be written.
    #[error("cannot write {what}: found {found}, expected {expected}")]
    Unwritable {
        /// The key or tensor.
        what: String,
        /// What was handed in.
        found: String,
        /// What was expected.
        expected: String,
    },
    /// A storage type that can't be quantised to, or isn't one.
    #[error("type {found}: expected {expected}")]
    TypeName {
        /// The name asked for.
        found: String,
        /// What was expected.
        expected: String,
    },
    /// The caller ended the work.
    #[error("cancelled")]
    Cancelled,
}

/// The most characters of a file's own text that a message shows.
const SHOWN_CHARS: usize = 96;

/// Text from a file, made fit for a one-line message: escaped, and shortened with `…`.
pub(crate) fn shown(text: &str) -> String {
    let mut out = String::new();
    for c in text.chars().take(SHOWN_CHARS) {
        match c {
            '"' | '\'' => out.push(c),
            c => out.extend(c.escape_debug()),
        }
    }
    if text.chars().nth(SHOWN_CHARS).is_some() {
        out.push('…');
    }
    out
}

/// Bytes from a file as text for a message, whatever they are.
pub(crate) fn shown_bytes(bytes: &[u8]) -> String {
    let head = &bytes[..bytes.len().min(4 * SHOWN_CHARS)];
    shown(&String::from_utf8_lossy(head))
}
