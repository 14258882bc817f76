//! Every field that a request may have, once: what is read, what is refused and what the documentation says come from
//! here. Each dialect has its rows in a file of its own.

mod anthropic;
mod embeddings;
mod items;
mod messages;
mod names;
mod ollama;
mod openai;
mod responses;
mod schemas;
mod tokens;
pub(super) mod values;

pub(super) use embeddings::Embeddings;
pub(super) use names::Names;
pub(super) use ollama::Ollama;
pub(super) use responses::choice_json;
pub(super) use schemas::body;
pub(super) use tokens::Tokens;

use super::access;
use super::errors::Problem;
use super::tools::{Held, Tools};
use crate::nearest::nearest;
use backplane_plugin_api::types::GenerateOptions;
use serde_json::{Map, Value};
use values::{Amiss, of_field};

/// Which request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Endpoint {
    /// `POST /v1/chat/completions`.
    Chat,
    /// One of its `messages`.
    ChatMessage,
    /// `POST /v1/completions`.
    Completions,
    /// `POST /v1/embeddings`.
    Embeddings,
    /// `POST /v1/responses`.
    Responses,
    /// One of the items of its `input`.
    ResponseItem,
    /// `POST /v1/messages`, Anthropic's.
    Messages,
    /// `POST /v1/messages/count_tokens`.
    CountTokens,
    /// `POST /api/chat`, Ollama's, as the next ones.
    OllamaChat,
    /// `POST /api/generate`.
    OllamaGenerate,
    /// `POST /api/embed`.
    OllamaEmbed,
    /// `POST /api/embeddings`.
    OllamaEmbeddings,
    /// `POST /api/show`.
    OllamaShow,
    /// What is in the `options` of these.
    OllamaOptions,
    /// `POST /tokenize`.
    Tokenize,
    /// `POST /detokenize`.
    Detokenize,
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
    pub(super) embeddings: Embeddings,
    pub(super) tokens: Tokens,
    pub(super) ollama: Ollama,
    wants_logprobs: bool,
    /// Whether two fields hold the reply.
    held_twice: bool,
    top_logprobs: Option<u32>,
}

impl Asked {
    /// A variable of the template, where the request gives it no other value by itself.
    fn set_template(&mut self, name: &str, value: Value) {
        self.template.entry(name).or_insert(value);
    }

    /// Holds the reply to that, where it is anything.
    fn hold(&mut self, held: Option<Held>) {
        self.held_twice |= held.is_some() && self.tools.held.is_some();
        self.tools.held = held.or(self.tools.held.take());
    }
}

type Set = fn(&mut Asked, &Value) -> Result<(), Amiss>;

/// What becomes of a field.
#[derive(Clone, Copy)]
enum Does {
    /// Honoured; the error says what was expected, and where.
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
const TABLES: &[&[Field]] = &[
    openai::FIELDS,
    messages::FIELDS,
    items::FIELDS,
    embeddings::FIELDS,
    responses::FIELDS,
    tokens::FIELDS,
    anthropic::FIELDS,
    ollama::FIELDS,
];

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
    use Endpoint::{Completions, Detokenize, OllamaChat, OllamaGenerate, Tokenize};
    let mut asked = Asked {
        choices: 1,
        // Ollama's stream unless told otherwise.
        stream: [OllamaChat, OllamaGenerate].contains(&endpoint),
        ..Asked::default()
    };
    if endpoint == Completions {
        asked.generate.max_tokens = Some(16);
        if body.get("max_tokens").is_some_and(|value| !value.is_null()) {
            asked.generate.max_tokens = None;
        }
    }
    for (name, value) in body {
        set(endpoint, name, value, &mut asked).map_err(|wrong| wrong.at(name))?;
    }
    if asked.model.is_empty() && ![Tokenize, Detokenize].contains(&endpoint) {
        return Err(Problem::field("model", "expected the name of a model"));
    }
    asked
        .tools
        .check()
        .map_err(|why| Wrong::Value(why).at("tool_choice"))?;
    if asked.held_twice {
        let why = "expected no `response_format` but `text` with it: a reply follows one of them";
        return Err(Problem::field("grammar", why));
    }
    let grammar = asked.tools.held.as_ref();
    if grammar.is_some_and(|held| held.field == "grammar") && asked.tools.must_call() {
        let why = "expected no `tool_choice` that asks for a call with it: calls follow their tools' schemas";
        return Err(Problem::field("grammar", why));
    }
    if asked.top_logprobs.is_some() && !asked.wants_logprobs {
        let why = "expected `logprobs` to be true with it";
        return Err(Problem::field("top_logprobs", why));
    }
    if asked.wants_logprobs {
        asked.logprobs = Some(asked.top_logprobs.unwrap_or_default());
    }
    asked.generate.logprobs = asked.logprobs;
    // An engine's error is to be told by the names of this request.
    if let Some(exchange) = access::current() {
        exchange.asks(Names::new(endpoint, body, &asked));
    }
    Ok(asked)
}

/// Why a field can't be.
enum Wrong {
    Value(Amiss),
    Unsupported(Amiss),
}

impl Wrong {
    /// The problem of a request that has the field there.
    fn at(self, place: &str) -> Problem {
        match self {
            Self::Value(Amiss { place: within, why }) => {
                Problem::field(format!("{place}{within}"), why)
            }
            Self::Unsupported(Amiss { place: within, why }) => {
                Problem::unsupported(format!("{place}{within}"), why)
            }
        }
    }
}

/// That an object inside of a request has no field but those of its table, and none that is refused.
///
/// # Errors
/// The first that is, by its place.
pub(super) fn check(
    endpoint: Endpoint,
    place: &str,
    object: &Map<String, Value>,
) -> Result<(), Problem> {
    for (name, value) in object {
        set(endpoint, name, value, &mut Asked::default())
            .map_err(|wrong| wrong.at(&format!("{place}.{name}")))?;
    }
    Ok(())
}

/// That a value is an object with these fields and no others.
///
/// # Errors
/// It is none, or the first other field by its place.
pub(super) fn only(value: &Value, place: &str, names: &[&str]) -> Result<(), Problem> {
    let object = value.as_object();
    let object =
        object.ok_or_else(|| Problem::field(place, values::expected("an object", value)))?;
    match object.keys().find(|name| !names.contains(&name.as_str())) {
        Some(other) => Err(Problem::unsupported(
            format!("{place}.{other}"),
            "no such field",
        )),
        None => Ok(()),
    }
}

/// Has one field do what it does.
fn set(endpoint: Endpoint, name: &str, value: &Value, asked: &mut Asked) -> Result<(), Wrong> {
    let fields = || fields(endpoint);
    let Some(field) = fields().find(|field| field.name == name) else {
        let near = nearest(name, fields().map(|field| field.name));
        let near = near.map_or(String::new(), |near| format!("; did you mean `{near}`?"));
        return Err(Wrong::Unsupported(format!("no such field{near}").into()));
    };
    // OpenAI's clients write null for what is not given.
    if value.is_null() {
        return Ok(());
    }
    match field.does {
        Does::Honoured(set) => set(asked, value).map_err(Wrong::Value),
        Does::Refused(asks_nothing) if !asks_nothing(value) => {
            let message = format!("can't be honoured: {}", field.about);
            Err(Wrong::Unsupported(message.into()))
        }
        Does::Refused(_) | Does::NoEffect | Does::Content => Ok(()),
    }
}

/// Reads the fields of an object in a field.
fn nested(endpoint: Endpoint, value: &Value, asked: &mut Asked) -> Result<(), Amiss> {
    let what = || values::expected("an object", value);
    for (name, value) in value.as_object().ok_or_else(what)? {
        set(endpoint, name, value, asked).map_err(|wrong| {
            let (Wrong::Value(why) | Wrong::Unsupported(why)) = wrong;
            of_field(name, why)
        })?;
    }
    Ok(())
}

#[cfg(test)]
mod tests;
