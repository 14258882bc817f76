//! What is wrong with a request or its answer, as the clients of each dialect expect it.

use super::fields::Names;
use crate::error::Error;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use backplane_plugin_api::types::ErrorCode;
use serde_json::{Value, json};

/// Whose clients a path is for: how its errors look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Dialect {
    OpenAi,
    Anthropic,
    Ollama,
}

impl Dialect {
    /// Its name in metrics and logs.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::OpenAi => "openai",
            Self::Anthropic => "anthropic",
            Self::Ollama => "ollama",
        }
    }
}

/// An error of one request. As a response it is in OpenAI's shape; the door gives it that of the path's dialect, and the
/// request's id.
#[derive(Clone, Debug)]
pub(super) struct Problem {
    status: StatusCode,
    /// OpenAI's `type`.
    kind: &'static str,
    message: String,
    /// The field at fault.
    param: Option<String>,
    /// OpenAI's `code`.
    code: Option<&'static str>,
    /// Seconds after which it may go better.
    retry_after: Option<u32>,
    /// Whose clients ask for a path that is not there.
    asked_by: Option<Dialect>,
}

const INVALID: &str = "invalid_request_error";
const SERVER: &str = "server_error";

impl Problem {
    fn new(status: StatusCode, kind: &'static str, message: impl Into<String>) -> Self {
        Self {
            status,
            kind,
            message: message.into(),
            param: None,
            code: None,
            retry_after: None,
            asked_by: None,
        }
    }

    /// The request is wrong as a whole.
    pub(super) fn invalid(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, INVALID, message)
    }

    /// A field of the request is wrong.
    pub(super) fn field(name: impl Into<String>, message: impl std::fmt::Display) -> Self {
        let name = name.into();
        Self {
            param: Some(name.clone()),
            ..Self::invalid(format!("`{name}`: {message}"))
        }
    }

    /// A field of the request that can't be honoured.
    pub(super) fn unsupported(name: impl Into<String>, message: impl std::fmt::Display) -> Self {
        Self {
            code: Some("unsupported_parameter"),
            ..Self::field(name, message)
        }
    }

    /// The request is larger than it may be.
    pub(super) fn too_large(limit: usize) -> Self {
        let message = format!("the request has more than the {limit} bytes that are taken");
        Self::new(StatusCode::PAYLOAD_TOO_LARGE, INVALID, message)
    }

    /// The request is packed in a way that is not unpacked.
    pub(super) fn packed(encoding: &str) -> Self {
        let message = format!("the request is packed as {encoding:?}: send it as it is");
        Self::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, INVALID, message)
    }

    /// The request did not come in time.
    pub(super) fn slow() -> Self {
        let message = "the request was not whole in time";
        Self::new(StatusCode::REQUEST_TIMEOUT, INVALID, message)
    }

    /// There is no such path.
    pub(super) fn no_path(path: &str) -> Self {
        let message = format!("there is no {path}");
        Self {
            asked_by: match path {
                _ if path.starts_with("/api/") => Some(Dialect::Ollama),
                _ if path.starts_with("/v1/messages/") => Some(Dialect::Anthropic),
                _ => None,
            },
            code: Some("unknown_url"),
            ..Self::new(StatusCode::NOT_FOUND, INVALID, message)
        }
    }

    /// The path takes another method.
    pub(super) fn wrong_method(method: &str, path: &str) -> Self {
        let message = format!("{path} takes no {method}");
        Self::new(StatusCode::METHOD_NOT_ALLOWED, INVALID, message)
    }

    /// There is no such model.
    pub(super) fn no_model(name: &str, action: &str) -> Self {
        let message = format!("no model named `{name}` is served ({action})");
        Self {
            param: Some("model".to_owned()),
            code: Some("model_not_found"),
            ..Self::new(StatusCode::NOT_FOUND, INVALID, message)
        }
    }

    /// Not now.
    pub(super) fn unavailable(message: impl Into<String>, retry_after: Option<u32>) -> Self {
        Self {
            retry_after,
            ..Self::new(StatusCode::SERVICE_UNAVAILABLE, SERVER, message)
        }
    }

    /// Too much at once.
    pub(super) fn busy(message: impl Into<String>) -> Self {
        Self {
            retry_after: Some(1),
            code: Some("rate_limit_exceeded"),
            ..Self::new(StatusCode::TOO_MANY_REQUESTS, "rate_limit_error", message)
        }
    }

    /// It took longer than it may.
    pub(super) fn timed_out(message: impl Into<String>) -> Self {
        Self::new(StatusCode::GATEWAY_TIMEOUT, SERVER, message)
    }

    /// The same, with another time after which to try again.
    pub(super) fn after(self, seconds: u32) -> Self {
        Self {
            retry_after: Some(seconds.max(1)),
            ..self
        }
    }

    /// Not for this caller.
    pub(super) fn forbidden(message: impl Into<String>) -> Self {
        Self::new(StatusCode::FORBIDDEN, "permission_error", message)
    }

    /// The caller has no key, or a wrong one.
    pub(super) fn no_key(message: impl Into<String>) -> Self {
        Self {
            code: Some("invalid_api_key"),
            ..Self::new(StatusCode::UNAUTHORIZED, INVALID, message)
        }
    }

    /// Something here went wrong.
    pub(super) fn internal(message: impl Into<String>) -> Self {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, SERVER, message)
    }

    /// An error of a backend, by the names that the request has for its fields; where the prompt does not fit, with the tokens that
    /// were asked for besides.
    pub(super) fn of(error: &Error, names: Option<&Names>, asked: Option<u32>) -> Self {
        let mut problem = match names {
            Some(names) => Self::from(&named(error, names)),
            None => Self::from(error),
        };
        let overflow = problem.code == Some("context_length_exceeded");
        if let Some(asked) = asked.filter(|_| overflow) {
            problem.message += &format!("; a reply of up to {asked} tokens was asked for");
        }
        problem
    }

    /// The prompt and the reply that was asked for, by `field`, are more than the context. Clients of Anthropic's API take the sizes
    /// from the line and ask for less.
    pub(super) fn beyond(field: &str, prompt: u64, asked: u64, context: u64) -> Self {
        let left = context.saturating_sub(prompt);
        Self {
            param: Some(field.to_owned()),
            code: Some("context_length_exceeded"),
            ..Self::invalid(format!(
                "input length and `{field}` exceed context limit: {prompt} + {asked} > {context}, \
                 decrease input length or `{field}` and try again (at most {left} tokens are left)"
            ))
        }
    }

    /// Whether it is the client's own doing: nothing here went wrong.
    pub(super) fn is_refusal(&self) -> bool {
        self.status.is_client_error()
    }

    /// Tells the operator of it; what is the client's own doing is in the access log alone, unless more is asked for.
    pub(super) fn log(&self, request: &str, model: &str, error: &Error) {
        match self.is_refusal() {
            true => tracing::debug!(request, "{model}: {error}"),
            false => tracing::warn!(request, "{model}: {error}"),
        }
    }

    /// As OpenAI writes it.
    pub(super) fn json(&self) -> Value {
        json!({ "error": {
            "message": self.message,
            "type": self.kind,
            "param": self.param,
            "code": self.code,
        }})
    }

    /// As clients of a dialect expect it, with the id of the request that failed.
    pub(super) fn shaped(&self, dialect: Dialect, request: &str) -> Value {
        match self.asked_by.unwrap_or(dialect) {
            Dialect::OpenAi => {
                let mut json = self.json();
                json["error"]["request_id"] = request.into();
                json
            }
            Dialect::Anthropic => {
                // By these words clients know to shorten the conversation.
                let long = match self.is_long_prompt() {
                    true => "prompt is too long: ",
                    false => "",
                };
                let message = format!("{long}{}", self.message);
                let mut error = json!({ "type": self.anthropic_kind(), "message": message });
                if self.param.as_deref() == Some("thread") {
                    // By this clients know to send the whole history instead.
                    let code = "thread_unsupported_request";
                    error["details"] = json!({ "error_code": code, "unsupported": ["thread"] });
                }
                json!({ "type": "error", "error": error, "request_id": request })
            }
            Dialect::Ollama => json!({ "error": self.message }),
        }
    }

    /// Whether the prompt does not fit, whatever the reply.
    fn is_long_prompt(&self) -> bool {
        let overflow = self.code == Some("context_length_exceeded");
        overflow && self.param.as_deref() != Some("max_tokens")
    }

    /// As the `error` of a response that has failed: its codes are others, and the request is told by the answer's head.
    pub(super) fn of_response(&self) -> Value {
        let code = match self.status {
            StatusCode::TOO_MANY_REQUESTS => "rate_limit_exceeded",
            status if status.is_client_error() => "invalid_prompt",
            _ => SERVER,
        };
        json!({ "code": code, "message": self.message })
    }

    /// Anthropic's `type`, which follows the status.
    pub(super) fn anthropic_kind(&self) -> &'static str {
        match self.status.as_u16() {
            401 => "authentication_error",
            403 => "permission_error",
            404 => "not_found_error",
            413 => "request_too_large",
            429 => "rate_limit_error",
            503 => "overloaded_error",
            400..500 => INVALID,
            _ => "api_error",
        }
    }
}

/// An engine's error, with the request's name of its field in place of the engine's.
fn named(error: &Error, names: &Names) -> Error {
    let Error::Backend { backend, error } = error else {
        return error.clone();
    };
    let mut error = error.clone();
    let theirs = std::mem::take(&mut error.field);
    if let Some(ours) = names.of(&theirs) {
        let quoted = (format!("`{theirs}`"), format!("`{ours}`"));
        for text in [&mut error.message, &mut error.action] {
            *text = text.replace(&quoted.0, &quoted.1);
        }
        if let Some(rest) = error.message.strip_prefix(&format!("{theirs}: ")) {
            error.message = format!("{ours}: {rest}");
        }
        error.field = ours.to_owned();
    }
    Error::Backend {
        backend: backend.clone(),
        error,
    }
}

impl From<&Error> for Problem {
    fn from(error: &Error) -> Self {
        let line = error.line();
        let Error::Backend { error: inner, .. } = error else {
            return match error {
                Error::NoBackend { .. }
                | Error::ModelNotFound { .. }
                | Error::ModelUnusable { .. } => Self::unavailable(line, None),
                _ => Self::internal(line),
            };
        };
        // What engines say of the command line, as requests have it.
        let line = match inner.code {
            ErrorCode::TemplateRefused | ErrorCode::Unsupported | ErrorCode::ModelUnusable => line
                .replace("`run --raw`", "POST /v1/completions")
                .replace("--raw", "POST /v1/completions"),
            _ => line,
        };
        let param = (!inner.field.is_empty()).then(|| inner.field.clone());
        let problem = match inner.code {
            ErrorCode::ContextOverflow => Self {
                code: Some("context_length_exceeded"),
                ..Self::invalid(line)
            },
            ErrorCode::UnsupportedField => Self {
                code: Some("unsupported_parameter"),
                ..Self::invalid(line)
            },
            ErrorCode::InvalidRequest | ErrorCode::Unsupported | ErrorCode::TemplateRefused => {
                Self::invalid(line)
            }
            ErrorCode::Busy => Self::busy(line),
            ErrorCode::OutOfMemory | ErrorCode::Closed => Self::unavailable(line, Some(1)),
            _ => Self::internal(line),
        };
        Self { param, ..problem }
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let mut response = super::http::json(self.status, &self.json());
        if let Some(seconds) = self.retry_after {
            let value = HeaderValue::from(seconds);
            response.headers_mut().insert(header::RETRY_AFTER, value);
        }
        response.extensions_mut().insert(self);
        response
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use backplane_plugin_api::types;

    #[test]
    fn every_dialect_has_its_shape() {
        let problem = Problem::field("stop", "why");
        let openai = problem.shaped(Dialect::OpenAi, "r1");
        assert_eq!(openai["error"]["param"], "stop");
        assert_eq!(openai["error"]["request_id"], "r1");
        let anthropic = problem.shaped(Dialect::Anthropic, "r1");
        assert_eq!(anthropic["error"]["type"], "invalid_request_error");
        assert_eq!(
            (&anthropic["type"], &anthropic["request_id"]),
            (&json!("error"), &json!("r1"))
        );
        let ollama = problem.shaped(Dialect::Ollama, "r1");
        assert_eq!(ollama, json!({ "error": "`stop`: why" }));
        for (problem, code) in [
            (problem, "invalid_prompt"),
            (Problem::busy("why"), "rate_limit_exceeded"),
            (Problem::internal("why"), "server_error"),
        ] {
            let error = problem.of_response();
            assert_eq!(error["code"], code, "{error}");
            assert!(error["message"].as_str().unwrap().ends_with("why"));
        }
        let nowhere = Problem::no_path("/api/pull").shaped(Dialect::OpenAi, "r1");
        assert_eq!(nowhere, json!({ "error": "there is no /api/pull" }));
        let nowhere = Problem::no_path("/v1/messages/batches").shaped(Dialect::OpenAi, "r1");
        assert_eq!(nowhere["type"], "error");
    }

    #[test]
    fn what_does_not_fit_is_told_in_words_that_clients_parse() {
        let said = |problem: &Problem, dialect| {
            let error = problem.shaped(dialect, "r1")["error"].take();
            error["message"].as_str().unwrap().to_owned()
        };
        let beyond = Problem::beyond("max_tokens", 100, 32_000, 4096);
        for dialect in [Dialect::OpenAi, Dialect::Anthropic] {
            let said = said(&beyond, dialect);
            let words = "input length and `max_tokens` exceed context limit: 100 + 32000 > 4096, \
                decrease input length or `max_tokens` and try again";
            assert!(said.starts_with(words), "{said}");
            assert!(said.contains("at most 3996 tokens are left"), "{said}");
        }
        let backend = "cpu".to_owned();
        let error = types::Error {
            field: "prompt".to_owned(),
            ..types::Error::new(ErrorCode::ContextOverflow, "why")
        };
        let long = Problem::from(&Error::Backend { backend, error });
        let theirs = said(&long, Dialect::Anthropic);
        assert!(
            theirs.starts_with("prompt is too long: cpu: why"),
            "{theirs}"
        );
        assert!(said(&long, Dialect::OpenAi).starts_with("cpu: why"));
    }

    #[test]
    fn what_is_said_of_the_command_line_is_said_of_requests() {
        for error in [
            types::Error::new(ErrorCode::TemplateRefused, "no"),
            types::Error::new(ErrorCode::Unsupported, "no template")
                .with_action("give it a raw prompt (--raw), or use a model made for chat"),
            types::Error::new(ErrorCode::Unsupported, "no template")
                .with_action("send a prompt without a template (`run --raw`)"),
            types::Error::new(ErrorCode::ModelUnusable, "m.gguf: broken template")
                .with_action("give it a raw prompt (--raw), or use another model"),
        ] {
            let backend = "cpu".to_owned();
            let problem = Problem::from(&Error::Backend { backend, error }).json();
            let message = problem["error"]["message"].as_str().unwrap();
            assert!(!message.contains("--raw"), "{message}");
            assert!(message.contains("POST /v1/completions"), "{message}");
        }
    }

    #[test]
    fn errors_of_backends_have_their_status() {
        for (code, status, word) in [
            (ErrorCode::ContextOverflow, 400, "context_length_exceeded"),
            (ErrorCode::UnsupportedField, 400, "unsupported_parameter"),
            (ErrorCode::TemplateRefused, 400, ""),
            (ErrorCode::Busy, 429, "rate_limit_exceeded"),
            (ErrorCode::Device, 500, ""),
            (ErrorCode::OutOfMemory, 503, ""),
        ] {
            let error = types::Error {
                field: "seed".to_owned(),
                ..types::Error::new(code, "why")
            };
            let problem = Problem::from(&Error::Backend {
                backend: "cpu".to_owned(),
                error,
            });
            assert_eq!(problem.status.as_u16(), status, "{code:?}");
            let json = problem.json();
            assert_eq!(json["error"]["param"], "seed");
            let found = json["error"]["code"].as_str().unwrap_or_default();
            assert_eq!(found, word, "{code:?}");
            let message = json["error"]["message"].as_str().unwrap();
            assert!(message.starts_with("cpu: why"), "{message}");
        }
    }
}
