//! OpenAI's API.

pub(super) mod chat;
pub(super) mod completions;
mod logprobs;
mod messages;
pub(super) mod models;

use super::fields::Asked;
use crate::serve::generation::{Answer, Ended};
use serde_json::{Value, json};
use std::hash::{BuildHasher, RandomState};
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
        // Random by the seeds of hash maps, which nobody can guess: ids tell nothing and don't repeat.
        let random = || RandomState::new().hash_one(0);
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        Self {
            id: format!("{prefix}-{:016x}{:016x}", random(), random()),
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
    }

    fn json(&self) -> Value {
        json!({
            "prompt_tokens": self.prompt,
            "completion_tokens": self.completion,
            "total_tokens": self.prompt + self.completion,
            "prompt_tokens_details": { "cached_tokens": self.cached },
        })
    }
}

/// What we say besides: who made the reply, how, and what the user should know of that.
fn ours(answer: &Answer) -> Value {
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
