//! Every error of the host, each with its exit code and what to do next.

use crate::manifest::ManifestError;
use crate::selection::Trace;
use backplane_plugin_api::types::{self, ErrorCode};
use std::path::PathBuf;

/// Result of the host's calls.
pub type Result<T> = std::result::Result<T, Error>;

/// What went wrong, in one line, with what to do about it in [`Error::action`].
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The manifest can't be read or is wrong.
    #[error(transparent)]
    Manifest(#[from] ManifestError),
    /// The caller asked for something that can't be.
    #[error("{message}")]
    Usage {
        /// What was found and what was expected.
        message: String,
        /// What to do.
        action: String,
    },
    /// No plugin of that name.
    #[error("no backend is named `{name}`")]
    UnknownBackend {
        /// The name asked for.
        name: String,
        /// The nearest name, or those there are.
        action: String,
    },
    /// No backend was available, or the policy forbade going on to another.
    #[error("{message}")]
    NoBackend {
        /// Which, and why not.
        message: String,
        /// What to do.
        action: String,
        /// Every candidate with its verdict.
        trace: Box<Trace>,
    },
    /// There is no such model.
    #[error("{message}")]
    ModelNotFound {
        /// What was looked for, and where.
        message: String,
        /// The nearest name, or what to do.
        action: String,
    },
    /// The model is there, but no available backend can use it.
    #[error("{message}")]
    ModelUnusable {
        /// Why.
        message: String,
        /// What to do.
        action: String,
        /// Every candidate with its verdict; `None` where none was asked.
        trace: Option<Box<Trace>>,
    },
    /// A backend failed or refused the call.
    #[error("{backend}: {error}")]
    Backend {
        /// Which.
        backend: String,
        /// Its own error.
        error: types::Error,
    },
    /// A file could not be read or written.
    #[error("{}: {message}", path.display())]
    File {
        /// Which.
        path: PathBuf,
        /// Why.
        message: String,
    },
    /// Interrupted by the user.
    #[error("interrupted")]
    Interrupted,
}

/// What is said of every place that is full.
const NO_SPACE: &str = "no space left on device";

impl Error {
    /// A usage error with its next step.
    pub fn usage(message: impl Into<String>, action: impl Into<String>) -> Self {
        Self::Usage {
            message: message.into(),
            action: action.into(),
        }
    }

    /// A file that can't be read or written.
    pub fn file(path: impl Into<PathBuf>, error: &std::io::Error) -> Self {
        Self::File {
            path: path.into(),
            message: match error.kind() {
                std::io::ErrorKind::StorageFull => NO_SPACE.to_owned(),
                _ => plain(error),
            },
        }
    }

    /// What to do about it; empty where there is nothing to add.
    pub fn action(&self) -> &str {
        match self {
            Self::Manifest(error) => &error.action,
            Self::Usage { action, .. }
            | Self::UnknownBackend { action, .. }
            | Self::NoBackend { action, .. }
            | Self::ModelNotFound { action, .. }
            | Self::ModelUnusable { action, .. } => action,
            Self::Backend { error, .. } if !error.action.is_empty() => &error.action,
            Self::Backend { error, .. } => default_action(error.code),
            Self::File { message, .. } if message == NO_SPACE => {
                "free some space there, or write elsewhere"
            }
            Self::File { .. } => "check the path and its permissions",
            Self::Interrupted => "",
        }
    }

    /// The trace of the selection that failed, where there was one.
    pub fn trace(&self) -> Option<&Trace> {
        match self {
            Self::NoBackend { trace, .. } => Some(trace),
            Self::ModelUnusable { trace, .. } => trace.as_deref(),
            _ => None,
        }
    }

    /// 2 usage, 3 no backend available, 4 model unusable, 5 backend failed, 130 interrupted or cancelled.
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Manifest(_)
            | Self::Usage { .. }
            | Self::UnknownBackend { .. }
            | Self::File { .. } => 2,
            Self::NoBackend { .. } => 3,
            Self::ModelNotFound { .. } | Self::ModelUnusable { .. } => 4,
            Self::Backend { error, .. } => match error.code {
                ErrorCode::InvalidRequest
                | ErrorCode::UnsupportedField
                | ErrorCode::Unsupported
                | ErrorCode::ContextOverflow
                | ErrorCode::TemplateRefused => 2,
                ErrorCode::ModelUnusable => 4,
                ErrorCode::Cancelled => 130,
                _ => 5,
            },
            Self::Interrupted => 130,
        }
    }

    /// The line for people: the message, then the next step in parentheses.
    pub fn line(&self) -> String {
        let action = self.action();
        if action.is_empty() {
            self.to_string()
        } else {
            format!("{self} ({action})")
        }
    }
}

fn default_action(code: ErrorCode) -> &'static str {
    match code {
        ErrorCode::InvalidRequest | ErrorCode::UnsupportedField => "change the request",
        ErrorCode::ContextOverflow => "shorten the prompt, or load with a longer --context",
        ErrorCode::TemplateRefused => {
            "change the messages, or use --raw to go without the chat template"
        }
        ErrorCode::ModelUnusable => "get the file again, or choose another model",
        ErrorCode::OutOfMemory => "load with a smaller --context, or choose a smaller model",
        ErrorCode::Busy => "try again later",
        ErrorCode::Closed => "load the model again",
        ErrorCode::Cancelled => "",
        _ => "run `backplane plugins check`, and again with -vv for details",
    }
}

/// An operating system's error without its number.
pub(crate) fn plain(error: &std::io::Error) -> String {
    let text = error.to_string();
    match text.find(" (os error") {
        Some(end) => text[..end].to_lowercase(),
        None => text.to_lowercase(),
    }
}
