//! What went wrong at an endpoint, in the contract's words.

use backplane_llama_server::Key;
use backplane_llama_server::http::HttpError;
use backplane_plugin_api::types::{Error, ErrorCode};
use std::fmt;

/// Which model, and where.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    /// As the caller named it.
    pub(crate) model: String,
    pub(crate) url: String,
    /// What the endpoint is given, and may repeat anywhere in what it answers.
    pub(crate) key: Option<Key>,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} at {}", self.model, self.url)
    }
}

impl Place {
    pub(crate) fn no_threads(&self, error: &std::io::Error) -> Error {
        Error::new(
            ErrorCode::Internal,
            format!("{self}: no thread for connections: {error}"),
        )
    }

    /// A text that has words of the endpoint, in one line and without the key.
    pub(crate) fn shown(&self, text: &str) -> String {
        let line = one_line(text);
        match &self.key {
            Some(key) => key.hidden_in(&line),
            None => line,
        }
    }

    /// A failed request, by what failed.
    pub(crate) fn error(&self, error: HttpError) -> Error {
        let mut error = self.told(error);
        error.message = self.shown(&error.message);
        error.action = self.shown(&error.action);
        error
    }

    fn told(&self, error: HttpError) -> Error {
        let told = |code, what: String| Error::new(code, format!("{self}: {what}"));
        let device = |what: String| told(ErrorCode::Device, what);
        match error {
            HttpError::Stopped => told(ErrorCode::Internal, "stopped before an answer".into()),
            HttpError::Connection(what) => device(format!("the connection failed: {what}"))
                .with_action("check that the endpoint runs, and the option `base_url` of `remote`"),
            error @ HttpError::Tls(_) => device(error.to_string()).with_action(
                "check the endpoint's certificate; the option `ca_file` of `remote` names more to trust",
            ),
            error @ HttpError::TimedOut(_) => device(error.to_string())
                .with_action("try again, or raise `timeout_s` of `remote` in the manifest"),
            error @ HttpError::Answer(_) => device(error.to_string())
                .with_action("check the option `base_url` of `remote`: it mostly ends in /v1"),
            HttpError::Refused {
                status,
                kind,
                retry_after,
                message,
            } => {
                let error = |code, what: &str| told(code, format!("{what} ({status}): {message}"));
                match status {
                    401 if self.key.is_some() => error(ErrorCode::Device, "the key is refused")
                        .with_action("check the key that `key_env` or `key_file` of `remote` names"),
                    401 => error(ErrorCode::Device, "a key is asked for")
                        .with_action("name one by `key_env` or `key_file` of `remote` in the manifest"),
                    403 => error(ErrorCode::Device, "access is refused")
                        .with_action("check what the key may do at the endpoint"),
                    404 => error(ErrorCode::ModelUnusable, "not found")
                        .with_action("check the model's name, and the option `base_url` of `remote`"),
                    408 | 504 => error(ErrorCode::Device, "the endpoint took too long")
                        .with_action("try again"),
                    429 | 503 => {
                        let what = match status {
                            429 => "too much was asked of the endpoint",
                            _ => "the endpoint is not ready",
                        };
                        error(ErrorCode::Busy, what).with_action(again(retry_after.as_deref()))
                    }
                    400..=499 if is_overflow(&kind, &message) => {
                        let mut error = error(ErrorCode::ContextOverflow, "too long");
                        error.field = "prompt".into();
                        error.with_action("shorten the prompt")
                    }
                    400..=499 => error(ErrorCode::InvalidRequest, "the request is refused"),
                    300..=399 => error(ErrorCode::Device, "no answer")
                        .with_action("give `base_url` of `remote` as the endpoint has it now"),
                    _ => error(ErrorCode::Device, "the endpoint failed"),
                }
            }
        }
    }
}

/// When to try again: the header has seconds, or a date.
fn again(after: Option<&str>) -> String {
    match after {
        Some(after) if after.parse::<u64>().is_ok() => format!("try again in {after} s"),
        Some(date) => format!("try again after {date}"),
        None => "try again later".into(),
    }
}

/// Endpoints say it by a name of the error, or only in words.
fn is_overflow(kind: &str, message: &str) -> bool {
    let words = message.to_ascii_lowercase();
    ["context_length_exceeded", "exceed_context_size_error"].contains(&kind)
        || ["maximum context length", "context size", "context window"]
            .iter()
            .any(|phrase| words.contains(phrase))
}

/// In one line: names come from the endpoint.
fn one_line(text: &str) -> String {
    let words = text.split(|c: char| c.is_whitespace() || c.is_control());
    let words = words.filter(|word| !word.is_empty());
    words.collect::<Vec<_>>().join(" ")
}
