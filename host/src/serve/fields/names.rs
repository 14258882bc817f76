//! What engines call the fields of a request, and what the request calls them: an error of an engine is told by the name that the
//! client knows.

use super::{Asked, Does, Endpoint, fields};
use crate::serve::tools::Held;
use serde_json::{Map, Value};

/// By an engine's name, what it may be in a request: the first that the request has, else the first that it might have. A name
/// that is not here is the same on both sides.
const MEANT: &[(&str, &[&str])] = &[
    ("prompt", &["messages", "input", "prompt", "content"]),
    ("messages", &["messages", "input", "prompt"]),
    (
        "max_tokens",
        &[
            "max_tokens",
            "max_completion_tokens",
            "max_output_tokens",
            "num_predict",
        ],
    ),
    ("stop", &["stop", "stop_sequences"]),
    ("stop_tokens", &["stop_token_ids"]),
    ("ignore_end", &["ignore_eos"]),
    ("logprobs", &["logprobs", "top_logprobs", "include"]),
    (
        "template_options",
        &[
            "chat_template_kwargs",
            "reasoning_effort",
            "reasoning",
            "thinking",
            "think",
        ],
    ),
];

/// The fields of a request, by which an engine's names are told from one another.
#[derive(Clone, Debug)]
pub(in crate::serve) struct Names {
    endpoint: Endpoint,
    given: Vec<&'static str>,
    /// What the engine knows as `grammar`.
    held: Option<&'static str>,
}

impl Names {
    pub(super) fn new(endpoint: Endpoint, body: &Map<String, Value>, asked: &Asked) -> Self {
        let known = all(endpoint).filter(|name| {
            let nested = body.get("options").and_then(|options| options.get(name));
            body.get(*name)
                .or(nested)
                .is_some_and(|value| !value.is_null())
        });
        let tools = asked.tools.any().then_some("tools");
        Self {
            endpoint,
            given: known.collect(),
            held: asked
                .tools
                .held
                .as_ref()
                .map(|Held { field, .. }| *field)
                .or(tools),
        }
    }

    /// The field that states how many tokens the reply may have, where these are to fit the context beside the prompt: what Ollama's
    /// clients state is a ceiling.
    pub(in crate::serve) fn stated(&self) -> Option<&'static str> {
        use Endpoint::{Chat, Completions, Messages, Responses};
        let states = [Chat, Completions, Messages, Responses].contains(&self.endpoint);
        let name = self.of("max_tokens").filter(|_| states)?;
        self.given.contains(&name).then_some(name)
    }

    /// The request's name of an engine's field; `None` where it has none.
    pub(in crate::serve) fn of(&self, engine: &str) -> Option<&'static str> {
        if engine == "grammar" {
            return self.held;
        }
        let meant = MEANT.iter().find(|(known, _)| *known == engine);
        let same = [engine];
        let meant = meant.map_or(&same[..], |(_, meant)| meant);
        let given = self.given.iter().copied();
        let of_those = |name: &&'static str| meant.iter().position(|meant| meant == name);
        let given = given.filter(|name| of_those(name).is_some());
        given.min_by_key(of_those).or_else(|| {
            let known = all(self.endpoint).filter(|name| of_those(name).is_some());
            known.min_by_key(of_those)
        })
    }
}

/// The names of all fields that an endpoint honours, those of nested options too.
fn all(endpoint: Endpoint) -> impl Iterator<Item = &'static str> {
    use Endpoint::{OllamaChat, OllamaEmbed, OllamaEmbeddings, OllamaGenerate, OllamaOptions};
    let nests = [OllamaChat, OllamaGenerate, OllamaEmbed, OllamaEmbeddings].contains(&endpoint);
    let nested = nests.then(|| fields(OllamaOptions)).into_iter().flatten();
    let honoured = fields(endpoint).chain(nested);
    let honoured = honoured.filter(|field| matches!(field.does, Does::Honoured(_) | Does::Content));
    honoured.map(|field| field.name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn every_dialect_has_its_own_names() {
        use Endpoint::{
            Chat, Completions, Embeddings, Messages, OllamaChat, OllamaEmbed, OllamaGenerate,
            Responses, Tokenize,
        };
        let schema = json!({ "type": "json_schema", "json_schema": { "schema": {} } });
        let tools = json!([{ "type": "function", "function": { "name": "f" } }]);
        for (endpoint, more, engine, expected) in [
            (Chat, json!({}), "prompt", Some("messages")),
            (Chat, json!({}), "messages", Some("messages")),
            (Chat, json!({}), "stop_tokens", Some("stop_token_ids")),
            (Chat, json!({}), "ignore_end", Some("ignore_eos")),
            (Chat, json!({}), "max_tokens", Some("max_tokens")),
            (
                Chat,
                json!({ "max_completion_tokens": 4 }),
                "max_tokens",
                Some("max_completion_tokens"),
            ),
            (
                Chat,
                json!({}),
                "template_options",
                Some("chat_template_kwargs"),
            ),
            (
                Chat,
                json!({ "reasoning_effort": "low" }),
                "template_options",
                Some("reasoning_effort"),
            ),
            (
                Chat,
                json!({ "response_format": schema }),
                "grammar",
                Some("response_format"),
            ),
            (Chat, json!({ "tools": tools }), "grammar", Some("tools")),
            (
                Chat,
                json!({ "grammar": { "regex": "a" } }),
                "grammar",
                Some("grammar"),
            ),
            (Chat, json!({}), "seed", Some("seed")),
            (Chat, json!({}), "device", None),
            (Completions, json!({}), "prompt", Some("prompt")),
            (Completions, json!({}), "template_options", None),
            (Embeddings, json!({}), "prompt", Some("input")),
            (Embeddings, json!({}), "pooling", Some("pooling")),
            (Responses, json!({}), "prompt", Some("input")),
            (
                Responses,
                json!({ "max_output_tokens": 4 }),
                "max_tokens",
                Some("max_output_tokens"),
            ),
            (
                Responses,
                json!({ "text": { "format": { "type": "json_object" } } }),
                "grammar",
                Some("text"),
            ),
            (Messages, json!({}), "stop", Some("stop_sequences")),
            (
                Messages,
                json!({ "thinking": { "type": "disabled" } }),
                "template_options",
                Some("thinking"),
            ),
            (
                OllamaChat,
                json!({ "format": "json" }),
                "grammar",
                Some("format"),
            ),
            (
                OllamaChat,
                json!({ "options": { "num_predict": 4 } }),
                "max_tokens",
                Some("num_predict"),
            ),
            (OllamaGenerate, json!({}), "messages", Some("prompt")),
            (OllamaEmbed, json!({}), "prompt", Some("input")),
            (
                Tokenize,
                json!({ "content": "x" }),
                "prompt",
                Some("content"),
            ),
        ] {
            let mut body = json!({ "model": "m" });
            for (name, value) in more.as_object().unwrap() {
                body[name] = value.clone();
            }
            let body = body.as_object().unwrap();
            let asked = super::super::read(endpoint, body).unwrap();
            let found = Names::new(endpoint, body, &asked).of(engine);
            assert_eq!(found, expected, "{endpoint:?} {more} {engine}");
        }
    }

    #[test]
    fn ollamas_clients_state_a_ceiling() {
        use Endpoint::{Chat, Completions, Messages, OllamaChat, Responses};
        for (endpoint, more, expected) in [
            (Chat, json!({}), None),
            (Chat, json!({ "max_tokens": 4 }), Some("max_tokens")),
            (
                Chat,
                json!({ "max_tokens": null, "max_completion_tokens": 4 }),
                Some("max_completion_tokens"),
            ),
            (Completions, json!({}), None),
            (Completions, json!({ "max_tokens": 4 }), Some("max_tokens")),
            (
                Responses,
                json!({ "max_output_tokens": 4 }),
                Some("max_output_tokens"),
            ),
            (Messages, json!({ "max_tokens": 4 }), Some("max_tokens")),
            (OllamaChat, json!({ "options": { "num_predict": 4 } }), None),
        ] {
            let mut body = json!({ "model": "m" });
            for (name, value) in more.as_object().unwrap() {
                body[name] = value.clone();
            }
            let body = body.as_object().unwrap();
            let asked = super::super::read(endpoint, body).unwrap();
            let found = Names::new(endpoint, body, &asked).stated();
            assert_eq!(found, expected, "{endpoint:?} {more}");
        }
    }
}
