//! Every field that a request may have, once: what is read, what is refused and what the documentation says come from
//! here. Each dialect has its rows in a file of its own.

mod openai;
pub(super) mod values;

use super::errors::Problem;
use super::tools::{Held, Tools};
use crate::nearest::nearest;
use backplane_plugin_api::types::GenerateOptions;
use serde_json::{Map, Value};

/// Which request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Endpoint {
    /// `POST /v1/chat/completions`.
    Chat,
    /// `POST /v1/completions`.
    Completions,
}

/// What a request asks for, besides messages or prompt.
#[derive(Clone, Debug, Default)]
pub(super) struct Asked {
    pub(super) model: String,
    pub(super) generate: GenerateOptions,
    pub(super) template: Map<String, Value>,
    pub(super) tools: Tools,
    pub(super) stream: bool,
    /// Whether a stream ends with what it took.
    pub(super) usage: bool,
    /// Choices for each prompt.
    pub(super) choices: u32,
    /// Whether log probabilities were asked for, and of how many others.
    pub(super) logprobs: Option<u32>,
    wants_logprobs: bool,
    top_logprobs: Option<u32>,
}

impl Asked {
    /// Holds the reply to that, where it is anything.
    fn hold(&mut self, held: Option<Held>) {
        self.tools.held = held.or(self.tools.held.take());
    }
}

type Set = fn(&mut Asked, &Value) -> Result<(), String>;

/// What becomes of a field.
#[derive(Clone, Copy)]
enum Does {
    /// Honoured; the error says what was expected.
    Honoured(Set),
    /// Read by the endpoint itself.
    Content,
    /// Refused, unless it asks for nothing.
    Refused(fn(&Value) -> bool),
    /// Taken, and without effect on the reply.
    NoEffect,
}

/// One field.
struct Field {
    name: &'static str,
    on: &'static [Endpoint],
    does: Does,
    /// For people: what it does, or why it is refused.
    about: &'static str,
}

/// Every table.
const TABLES: &[&[Field]] = &[openai::FIELDS];

/// The fields of an endpoint.
fn fields(endpoint: Endpoint) -> impl Iterator<Item = &'static Field> {
    let all = TABLES.iter().copied().flatten();
    all.filter(move |field| field.on.contains(&endpoint))
}

/// Reads all fields but messages and prompt.
///
/// # Errors
/// A field is unknown, refused, or its value wrong: each by its name.
pub(super) fn read(endpoint: Endpoint, body: &Map<String, Value>) -> Result<Asked, Problem> {
    let mut asked = Asked {
        choices: 1,
        ..Asked::default()
    };
    if endpoint == Endpoint::Completions {
        asked.generate.max_tokens = Some(16);
        if body.get("max_tokens").is_some_and(|value| !value.is_null()) {
            asked.generate.max_tokens = None;
        }
    }
    let fields = || fields(endpoint);
    for (name, value) in body {
        let Some(field) = fields().find(|field| field.name == name) else {
            let near = nearest(name, fields().map(|field| field.name));
            let near = near.map_or(String::new(), |near| format!("; did you mean `{near}`?"));
            return Err(Problem::unsupported(name, format!("no such field{near}")));
        };
        // OpenAI's clients write null for what is not given.
        if value.is_null() {
            continue;
        }
        match field.does {
            Does::Honoured(set) => {
                set(&mut asked, value).map_err(|why| Problem::field(name, why))?;
            }
            Does::Refused(asks_nothing) if !asks_nothing(value) => {
                let message = format!("can't be honoured: {}", field.about);
                return Err(Problem::unsupported(name, message));
            }
            Does::Refused(_) | Does::NoEffect | Does::Content => {}
        }
    }
    if asked.model.is_empty() {
        return Err(Problem::field("model", "expected the name of a model"));
    }
    asked
        .tools
        .check()
        .map_err(|why| Problem::field("tool_choice", why))?;
    if endpoint == Endpoint::Chat {
        if asked.top_logprobs.is_some() && !asked.wants_logprobs {
            let why = "expected `logprobs` to be true with it";
            return Err(Problem::field("top_logprobs", why));
        }
        asked.logprobs = asked
            .wants_logprobs
            .then(|| asked.top_logprobs.unwrap_or_default());
    }
    asked.generate.logprobs = asked.logprobs;
    Ok(asked)
}

#[cfg(test)]
mod tests;
