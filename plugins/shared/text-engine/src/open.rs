//! Opening models: GGUF files, and directories as model hubs have them.

use crate::backend::{located, unusable};
use backplane_models::{ModelError, hub};
use backplane_plugin_api::types::Error;
use backplane_tokenizer::hub::{Files, metadata};
use backplane_tokenizer::{Error as TokenizerError, Tokenizer};
use backplane_weights::{Checkpoint, Error as WeightsError, Weights};
use std::io::{ErrorKind, Read};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::SystemTime;

/// Most bytes of a tokenizer's file; the largest of today have 40 million.
const MAX_FILE: u64 = 1 << 28;

/// What a path is, by names and first bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A GGUF file, or one named like it.
    Gguf,
    /// Safetensors: a directory, an index or a file.
    Hub,
}

impl Kind {
    /// `None` for anything that neither is a model here nor is named like one.
    pub(crate) fn of(path: &Path) -> Option<Self> {
        if has_extension(path, "gguf") && !path.is_dir() || Weights::is_gguf(path) {
            return Some(Self::Gguf);
        }
        // Of a directory whose files don't fit together the opening says why.
        let holds_some = || {
            let entries = std::fs::read_dir(path).into_iter().flatten().flatten();
            let mut entries = entries.map(|entry| entry.path());
            entries.any(|entry| has_extension(&entry, "safetensors"))
        };
        (hub::looks_like(path) || path.is_dir() && holds_some()).then_some(Self::Hub)
    }
}

fn has_extension(path: &Path, wanted: &str) -> bool {
    path.extension()
        .is_some_and(|extension| extension.eq_ignore_ascii_case(wanted))
}

/// An opened model. No tensor data is read.
#[derive(Clone, Debug)]
pub(crate) struct Opened {
    pub(crate) weights: Weights,
    /// Its tokenizer, or one line of why there is none.
    pub(crate) tokenizer: Result<Tokenizer, String>,
}

/// Why a model can't be opened; one line that names the file.
#[derive(Debug, thiserror::Error)]
pub(crate) enum OpenError {
    /// The file.
    #[error(transparent)]
    Weights(#[from] backplane_weights::Error),
    /// A directory's configuration, or what it says of the tensors.
    #[error(transparent)]
    Hub(#[from] ModelError),
    /// A file of the tokenizer can't be read.
    #[error("{message}")]
    File {
        /// One line that names it.
        message: String,
        /// What kind of failure of the operating system it was, if any.
        kind: Option<ErrorKind>,
    },
}

impl OpenError {
    /// Why the operating system refused a file, where it did.
    fn kind(&self) -> Option<ErrorKind> {
        match self {
            Self::Weights(WeightsError::Io { cause, .. })
            | Self::Hub(ModelError::Weights(WeightsError::Io { cause, .. })) => Some(cause.kind()),
            Self::File { kind, .. } => *kind,
            _ => None,
        }
    }
}

impl From<OpenError> for Error {
    fn from(error: OpenError) -> Self {
        match error.kind() {
            Some(ErrorKind::PermissionDenied) => {
                unusable(error).with_action("give yourself the right to read it")
            }
            _ => unusable(error),
        }
    }
}

/// Opens a model of any format known here, as everything above sees it: named tensors and metadata in GGUF's terms.
///
/// # Errors
/// It is none, or broken. A vocabulary that can't be used is no error yet.
pub(crate) fn open_model(path: &Path) -> Result<Opened, OpenError> {
    let (weights, wrong) = match Kind::of(path) {
        Some(Kind::Hub) => open_hub(path)?,
        // The error of anything else says what it is instead.
        _ => (Weights::open(path)?, None),
    };
    let tokenizer = match wrong {
        Some(wrong) => Err(wrong),
        None => Tokenizer::from_metadata(weights.metadata()).map_err(|error| error.to_string()),
    };
    let tokenizer = tokenizer
        .and_then(|tokenizer| fits(tokenizer, &weights))
        .map_err(|error| located(path, error));
    Ok(Opened { weights, tokenizer })
}

/// A vocabulary must not be longer than the embedding: its last tokens could not be run.
fn fits(tokenizer: Tokenizer, weights: &Weights) -> Result<Tokenizer, String> {
    let rows = weights.tensor("token_embd.weight").map(|it| it.rows());
    let tokens = tokenizer.vocab_size();
    match rows {
        Some(rows) if rows < tokens => Err(format!(
            "the vocabulary has {tokens} tokens, expected at most {rows}, the rows of token_embd.weight"
        )),
        _ => Ok(tokenizer),
    }
}

/// The model, and why its vocabulary can't be used.
fn open_hub(path: &Path) -> Result<(Weights, Option<String>), OpenError> {
    let checkpoint = Checkpoint::open(path)?;
    let directory = checkpoint.directory().to_owned();
    let keys = read_files(&directory, embedding_rows(&checkpoint))?;
    drop(checkpoint);
    let (keys, wrong) = match keys {
        Ok(keys) => (keys, None),
        Err(error) => (Vec::new(), Some(error.to_string())),
    };
    Ok((hub::open(path, keys)?, wrong))
}

/// Rows of the embedding, whatever comes before its name.
fn embedding_rows(checkpoint: &Checkpoint) -> Option<u64> {
    let mut tensors = checkpoint.tensors();
    let embedding = tensors.find(|tensor| tensor.name.ends_with("embed_tokens.weight"))?;
    embedding.shape.first().map(|&rows| rows as u64)
}

type Keys = Vec<(String, backplane_weights::writer::OwnedValue)>;

/// The vocabulary of a directory in GGUF's terms.
fn read_files(
    directory: &Path,
    vocabulary_rows: Option<u64>,
) -> Result<Result<Keys, TokenizerError>, OpenError> {
    let mut contents = Vec::new();
    for &name in Files::NAMES {
        let path = directory.join(name);
        let wrong = |what: &dyn std::fmt::Display, kind| OpenError::File {
            message: format!("{}: {what}", path.display()),
            kind,
        };
        let refused = |error: std::io::Error| wrong(&error, Some(error.kind()));
        match path.metadata() {
            Ok(found) if !found.is_file() => {
                return Err(wrong(&"found no file, expected one", None));
            }
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::NotFound => continue,
            Err(error) => return Err(refused(error)),
        }
        let mut content = Vec::new();
        std::fs::File::open(&path)
            .and_then(|file| file.take(MAX_FILE + 1).read_to_end(&mut content))
            .map_err(refused)?;
        if content.len() as u64 > MAX_FILE {
            let expected = format!("found more, expected at most {MAX_FILE} bytes");
            return Err(wrong(&expected, None));
        }
        contents.push((name, content));
    }
    let mut files = Files {
        vocabulary_rows,
        ..Files::default()
    };
    for (name, content) in &contents {
        files.set(name, content);
    }
    Ok(metadata(&files))
}

/// The model that was inspected last, kept for the load that mostly follows: building the tables of a vocabulary takes as
/// long as loading a small model.
#[derive(Debug, Default)]
pub(crate) struct Last(Mutex<Option<(Key, Opened)>>);

/// A path with its files as they were: name, size and time of the last change of each.
#[derive(Debug, PartialEq, Eq)]
struct Key(PathBuf, Vec<(PathBuf, u64, Option<SystemTime>)>);

impl Key {
    /// Of everything beside the model too: its tokenizer may lie there.
    fn of(path: &Path, opened: &Opened) -> Self {
        let mut files: Vec<PathBuf> = opened.weights.files().to_vec();
        if let Some(directory) = files.first().and_then(|file| file.parent()) {
            let beside = Files::NAMES.iter().map(|name| directory.join(name));
            files.extend(beside.collect::<Vec<_>>());
        }
        let state = |file: PathBuf| {
            let found = file.metadata().ok();
            let size = found.as_ref().map_or(0, std::fs::Metadata::len);
            (file, size, found.and_then(|found| found.modified().ok()))
        };
        Self(path.to_owned(), files.into_iter().map(state).collect())
    }
}

impl Last {
    pub(crate) fn keep(&self, path: &Path, opened: Opened) {
        let kept = (Key::of(path, &opened), opened);
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(kept);
    }

    /// Opens a model, or takes the one kept where it is the same, unchanged. Nothing is kept afterwards.
    ///
    /// # Errors
    /// As [`open_model`].
    pub(crate) fn take_or_open(&self, path: &Path) -> Result<Opened, OpenError> {
        let kept = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        match kept {
            Some((key, opened)) if key == Key::of(path, &opened) => Ok(opened),
            _ => open_model(path),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_may_not_be_read_is_not_to_be_got_again() {
        let cause = || std::io::Error::from(ErrorKind::PermissionDenied);
        let io = |cause| WeightsError::Io {
            path: "m.gguf".into(),
            cause,
        };
        for error in [
            OpenError::Weights(io(cause())),
            OpenError::Hub(ModelError::Weights(io(cause()))),
            OpenError::File {
                message: "tokenizer.json: no".into(),
                kind: Some(ErrorKind::PermissionDenied),
            },
        ] {
            let error = Error::from(error);
            assert!(error.action.contains("right to read"), "{error:?}");
        }
        let other = Error::from(OpenError::Weights(io(ErrorKind::UnexpectedEof.into())));
        assert_eq!(other.action, "");
    }
}
