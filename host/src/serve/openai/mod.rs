//! OpenAI's API.

pub(super) mod chat;
mod choices;
pub(super) mod completions;
pub(super) mod embeddings;
pub(super) mod logprobs;
pub(super) mod messages;
pub(super) mod models;
pub(super) mod responses;

use super::access::random_id;
use super::fields::Asked;
use crate::serve::generation::{Answer, Ended};
use backplane_plugin_api::types::Prompt;
use serde_json::{Value, json};
use std::time::{SystemTime, UNIX_EPOCH};

/// What every part of an answer says of it.
#[derive(Clone, Debug)]
struct Frame {
    id: String,
    created: u64,
    model: String,
    /// Whether a stream ends with what it took; each event before that then says that it does not yet.
    usage: bool,
}

impl Frame {
    fn new(prefix: &str, model: &str, asked: &Asked) -> Self {
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        Self {
            id: id(&format!("{prefix}-")),
            created: now.map_or(0, |now| now.as_secs()),
            model: model.to_owned(),
            usage: asked.stream && asked.usage,
        }
    }

    fn json(&self, object: &str, choices: Value) -> Value {
        let mut json = json!({
            "id": self.id,
            "object": object,
            "created": self.created,
            "model": self.model,
            "choices": choices,
        });
        if self.usage {
            json["usage"] = Value::Null;
        }
        json
    }
}

/// An id that nobody can guess.
pub(super) fn id(prefix: &str) -> String {
    format!("{prefix}{}", random_id())
}

/// A text, token ids, or an array of up to `most` of either; `special`: special tokens are read in texts.
fn prompts(value: &Value, most: usize, special: bool) -> Option<Vec<Prompt>> {
    match value {
        Value::Array(items) if items.iter().any(|item| item.is_string() || item.is_array()) => {
            if items.len() > most {
                return None;
            }
            items.iter().map(|item| prompt(item, special)).collect()
        }
        one => Some(vec![prompt(one, special)?]),
    }
}

fn prompt(value: &Value, special: bool) -> Option<Prompt> {
    match value {
        Value::String(text) => Some(Prompt::Text {
            text: text.clone(),
            special,
        }),
        ids => token_ids(ids)
            .filter(|ids| !ids.is_empty())
            .map(Prompt::Tokens),
    }
}

/// An array of token ids.
pub(super) fn token_ids(value: &Value) -> Option<Vec<u32>> {
    let id = |id: &Value| id.as_u64().and_then(|id| u32::try_from(id).ok());
    value.as_array()?.iter().map(id).collect()
}

/// How a reply ended, in OpenAI's words.
fn finish_reason(answer: &Answer) -> &'static str {
    match answer.ended() {
        Ended::Length => "length",
        Ended::ToolCalls => "tool_calls",
        Ended::Stop | Ended::StopString => "stop",
    }
}

/// What an answer took: a prompt counts once, however many choices it has.
#[derive(Clone, Debug, Default)]
struct Usage {
    prompt: u64,
    cached: u64,
    completion: u64,
    thought: u64,
}

impl Usage {
    /// Adds choice `index` of a request with `choices` for each prompt.
    fn add(&mut self, index: usize, choices: u32, answer: &Answer) {
        let completion = &answer.reply.completion;
        if index.is_multiple_of(choices as usize) {
            self.prompt += completion.prompt_tokens;
            self.cached += completion.cached_tokens;
        }
        self.completion += completion.completion_tokens;
        self.thought += answer.thought_tokens;
    }

    fn json(&self) -> Value {
        json!({
            "prompt_tokens": self.prompt,
            "completion_tokens": self.completion,
            "total_tokens": self.prompt + self.completion,
            "prompt_tokens_details": { "cached_tokens": self.cached },
            "completion_tokens_details": { "reasoning_tokens": self.thought },
        })
    }
}

/// What we say besides: who made the reply, how, and what the user should know of that.
pub(super) fn ours(answer: &Answer) -> Value {
    let completion = &answer.reply.completion;
    let notice = (!answer.notices.is_empty()).then(|| answer.notices.join("; "));
    json!({
        "backend": answer.reply.backend,
        "notice": notice,
        "seed": completion.seed,
        "finish_reason": completion.finish_reason,
        "stop_string": completion.stop_string,
        "timings": {
            "queue_s": completion.queue_s,
            "prefill_s": completion.prefill_s,
            "decode_s": completion.decode_s,
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prompts_of_every_kind() {
        let text = |text: &str| Prompt::Text {
            text: text.to_owned(),
            special: true,
        };
        for (value, expected) in [
            (json!("a"), vec![text("a")]),
            (json!(""), vec![text("")]),
            (json!(["a", "b"]), vec![text("a"), text("b")]),
            (json!([1, 2]), vec![Prompt::Tokens(vec![1, 2])]),
            (
                json!([[1], [2, 3]]),
                vec![Prompt::Tokens(vec![1]), Prompt::Tokens(vec![2, 3])],
            ),
        ] {
            assert_eq!(prompts(&value, 128, true).unwrap(), expected, "{value}");
        }
        for wrong in [
            json!(null),
            json!([]),
            json!({}),
            json!([-1]),
            json!([1.5]),
            json!([4_294_967_296_u64]),
            json!(["a", 1]),
            json!([[]]),
            json!(vec!["a"; 129]),
        ] {
            assert!(prompts(&wrong, 128, true).is_none(), "{wrong}");
        }
    }
}
