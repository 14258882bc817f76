//! The API that OpenAI gave its name to, as far as text goes: `/completions`, `/chat/completions` and `/models`, below the
//! endpoint's base. llama.cpp's server and many others speak it.
//!
//! Invariant: what an endpoint leaves out stays unknown here; nothing is made up for it.

use crate::http::{Client, HttpError};
use serde_json::{Map, Value, json};
use std::ops::ControlFlow;

/// What a stream tells.
#[derive(Clone, Debug, PartialEq)]
pub enum Chunk {
    /// More of the answer.
    Text {
        /// Text of the answer; may be empty.
        text: String,
        /// Text of the reasoning before it, where the endpoint keeps that apart; may be empty.
        reasoning: String,
        /// The tokens that it is of, where they were asked for and are told.
        tokens: Vec<Token>,
    },
    /// The model wants a tool to be called, which is no text.
    ToolCall,
    /// Why the answer ended, in the endpoint's word.
    Finish(String),
    /// What it took.
    Usage(Usage),
}

/// A token, with its log probability.
#[derive(Clone, Debug, PartialEq)]
pub struct Token {
    /// Its id; `None` where the endpoint does not give it, as the original API does not.
    pub id: Option<u32>,
    /// Its text.
    pub text: String,
    /// Natural logarithm of its probability; `None` where the endpoint gives none.
    pub logprob: Option<f32>,
    /// The likeliest tokens in its place, likeliest first, itself among them where it is one.
    pub top: Vec<Token>,
}

/// Tokens of a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Of the prompt.
    pub prompt_tokens: u64,
    /// Of these, how many came from a cache.
    pub cached_tokens: u64,
    /// Generated. Whether an end token is counted, endpoints differ in.
    pub completion_tokens: u64,
}

/// A model that an endpoint lists.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    /// Its name in requests.
    pub id: String,
    /// Context in tokens, where it is told.
    pub context: Option<u64>,
    /// Longest context that it was made for, where it is told.
    pub trained_context: Option<u64>,
    /// Tokens of the vocabulary, where they are told.
    pub vocabulary: Option<u64>,
}

type Stop<'a> = &'a dyn Fn() -> bool;

/// Streams `/completions`; `body` has the prompt and all settings. Chunks go to `on_chunk` until the end or `Break`.
///
/// # Errors
/// The connection failed, the endpoint refused, or the stream ended without an end.
pub fn completions(
    client: &Client,
    body: Map<String, Value>,
    stop: Stop<'_>,
    on_chunk: &mut dyn FnMut(Chunk) -> ControlFlow<()>,
) -> Result<(), HttpError> {
    stream(client, "/completions", body, stop, on_chunk)
}

/// Streams `/chat/completions`; as [`completions`].
///
/// # Errors
/// As [`completions`].
pub fn chat_completions(
    client: &Client,
    body: Map<String, Value>,
    stop: Stop<'_>,
    on_chunk: &mut dyn FnMut(Chunk) -> ControlFlow<()>,
) -> Result<(), HttpError> {
    stream(client, "/chat/completions", body, stop, on_chunk)
}

fn stream(
    client: &Client,
    path: &str,
    mut body: Map<String, Value>,
    stop: Stop<'_>,
    on_chunk: &mut dyn FnMut(Chunk) -> ControlFlow<()>,
) -> Result<(), HttpError> {
    body.insert("stream".into(), true.into());
    let (mut finished, mut left) = (false, false);
    let done = client.stream(path, &Value::Object(body), stop, &mut |value| {
        for chunk in chunks(&value) {
            finished |= matches!(chunk, Chunk::Finish(_));
            if on_chunk(chunk).is_break() {
                left = true;
                return ControlFlow::Break(());
            }
        }
        ControlFlow::Continue(())
    })?;
    match finished || left || done {
        true => Ok(()),
        false => Err(HttpError::Connection(
            "the stream ended before the answer did".into(),
        )),
    }
}

/// One answer that is not streamed, of `/completions`: its chunks.
///
/// # Errors
/// As [`completions`].
pub fn completion(
    client: &Client,
    body: Map<String, Value>,
    stop: Stop<'_>,
) -> Result<Vec<Chunk>, HttpError> {
    let answer = client.post("/completions", &Value::Object(body), stop)?;
    Ok(chunks(&answer))
}

/// The models that the endpoint lists (`/models`).
///
/// # Errors
/// The connection failed, the endpoint refused (it may have no such list), or the answer is no list.
pub fn models(client: &Client, stop: Stop<'_>) -> Result<Vec<Listed>, HttpError> {
    let answer = client.get("/models", stop)?;
    let list = answer["data"]
        .as_array()
        .or_else(|| answer.as_array())
        .ok_or_else(|| HttpError::Answer("/models gave no list".into()))?;
    let one = |value: &Value| {
        let number = |value: &Value| value.as_u64().filter(|&number| number > 0);
        let meta = &value["meta"];
        Some(Listed {
            id: value["id"].as_str()?.to_owned(),
            context: number(&meta["n_ctx"])
                .or_else(|| number(&value["max_model_len"]))
                .or_else(|| number(&value["context_length"]))
                .or_else(|| number(&value["context_window"])),
            trained_context: number(&meta["n_ctx_train"]),
            vocabulary: number(&meta["n_vocab"]),
        })
    };
    Ok(list.iter().filter_map(one).collect())
}

/// What an event, or a whole answer, tells, in order.
fn chunks(value: &Value) -> Vec<Chunk> {
    let mut found = vec![];
    // One answer was asked for: of others, should any come, nothing is known.
    let choices = value["choices"].as_array().into_iter().flatten();
    let ours = |choice: &&Value| choice["index"].as_u64().unwrap_or(0) == 0;
    for choice in choices.filter(ours) {
        let message = match (&choice["delta"], &choice["message"]) {
            (Value::Null, message) => message,
            (delta, _) => delta,
        };
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let first = |keys: [&str; 2]| {
            let given = keys.map(|key| text(&message[key]));
            given.into_iter().find(|text| !text.is_empty())
        };
        let called = |key: &str| match &message[key] {
            Value::Array(calls) => !calls.is_empty(),
            other => other.is_object(),
        };
        if called("tool_calls") || called("function_call") {
            found.push(Chunk::ToolCall);
        }
        let plain = text(&choice["text"]);
        let chunk = Chunk::Text {
            // A refusal is what the model says instead.
            text: first(["content", "refusal"]).unwrap_or(plain),
            reasoning: first(["reasoning_content", "reasoning"]).unwrap_or_default(),
            tokens: tokens(&choice["logprobs"]),
        };
        let empty = matches!(&chunk, Chunk::Text { text, reasoning, tokens }
            if text.is_empty() && reasoning.is_empty() && tokens.is_empty());
        if !empty {
            found.push(chunk);
        }
        if let Some(reason) = choice["finish_reason"].as_str() {
            found.push(Chunk::Finish(reason.to_owned()));
        }
    }
    let usage = &value["usage"];
    if usage.is_object() {
        let number = |value: &Value| value.as_u64().unwrap_or(0);
        found.push(Chunk::Usage(Usage {
            prompt_tokens: number(&usage["prompt_tokens"]),
            cached_tokens: number(&usage["prompt_tokens_details"]["cached_tokens"]),
            completion_tokens: number(&usage["completion_tokens"]),
        }));
    }
    found
}

/// Both shapes: that of chats, which llama.cpp's server gives for texts too, and the older one of texts.
fn tokens(logprobs: &Value) -> Vec<Token> {
    let id = |value: &Value| value.as_u64().and_then(|id| u32::try_from(id).ok());
    let number = |value: &Value| value.as_f64().map(|number| number as f32);
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    if let Some(content) = logprobs["content"].as_array() {
        let one = |value: &Value, top: Vec<Token>| Token {
            id: id(&value["id"]),
            text: text(&value["token"]),
            logprob: number(&value["logprob"]),
            top,
        };
        let with_top = |value: &Value| {
            let top = value["top_logprobs"].as_array().into_iter().flatten();
            one(value, top.map(|other| one(other, vec![])).collect())
        };
        return content.iter().map(with_top).collect();
    }
    let Some(texts) = logprobs["tokens"].as_array() else {
        return vec![];
    };
    let named = |(text, value): (&String, &Value)| Token {
        id: None,
        text: text.clone(),
        logprob: number(value),
        top: vec![],
    };
    let at = |(index, value): (usize, &Value)| {
        let top = logprobs["top_logprobs"][index].as_object();
        let mut top: Vec<Token> = top.into_iter().flatten().map(named).collect();
        top.sort_by(|a, b| {
            let logprob = |token: &Token| token.logprob.unwrap_or(f32::NEG_INFINITY);
            logprob(b).total_cmp(&logprob(a))
        });
        Token {
            id: None,
            text: text(value),
            logprob: number(&logprobs["token_logprobs"][index]),
            top,
        }
    };
    texts.iter().enumerate().map(at).collect()
}

/// The setting by which a stream tells its usage at the end.
#[must_use]
pub fn with_usage() -> Value {
    json!({ "include_usage": true })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(text: &str) -> Chunk {
        Chunk::Text {
            text: text.into(),
            reasoning: String::new(),
            tokens: vec![],
        }
    }

    #[test]
    fn both_apis_are_read() {
        let finish = |word: &str| Chunk::Finish(word.into());
        let cases = [
            (
                json!({"choices": [{"text": "a", "index": 0, "logprobs": null, "finish_reason": null}]}),
                vec![text("a")],
            ),
            (
                json!({"choices": [{"text": "", "finish_reason": "length"}]}),
                vec![finish("length")],
            ),
            (
                json!({"choices": [{"delta": {"role": "assistant", "content": null}, "index": 0}]}),
                vec![],
            ),
            (
                json!({"choices": [{"delta": {"content": "b"}, "finish_reason": "stop"}]}),
                vec![text("b"), finish("stop")],
            ),
            (
                json!({"choices": [{"delta": {"refusal": "no"}}]}),
                vec![text("no")],
            ),
            (
                json!({"choices": [{"message": {"content": "whole"}}]}),
                vec![text("whole")],
            ),
            (
                json!({"choices": [{"index": 1, "delta": {"content": "another"}}]}),
                vec![],
            ),
            (
                json!({"choices": [{"delta": {"tool_calls": [{"id": "x"}]}}]}),
                vec![Chunk::ToolCall],
            ),
            (
                json!({"choices": [{"delta": {"content": "c", "tool_calls": []}}]}),
                vec![text("c")],
            ),
            (
                json!({"choices": [], "usage": {"prompt_tokens": 5, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 3}}}),
                vec![Chunk::Usage(Usage {
                    prompt_tokens: 5,
                    cached_tokens: 3,
                    completion_tokens: 2,
                })],
            ),
            (
                json!({"choices": [{"delta": {"reasoning_content": "hm", "content": ""}}]}),
                vec![Chunk::Text {
                    text: String::new(),
                    reasoning: "hm".into(),
                    tokens: vec![],
                }],
            ),
        ];
        for (event, expected) in cases {
            assert_eq!(chunks(&event), expected, "{event}");
        }
        for odd in [
            json!(null),
            json!([]),
            json!(7),
            json!({"choices": "x"}),
            json!({"choices": [null, 7, {"delta": 3, "text": []}]}),
            json!({"choices": [{"logprobs": {"content": 3}}], "usage": "many"}),
        ] {
            assert_eq!(chunks(&odd), [], "{odd}");
        }
    }

    #[test]
    fn tokens_are_told_in_two_ways() {
        let new = json!({"content": [{"id": 7, "token": "a", "logprob": -0.5, "top_logprobs": [
            {"id": 7, "token": "a", "logprob": -0.5}, {"token": "b", "logprob": -1.5}]}]});
        let token = |id, text: &str, logprob, top| Token {
            id,
            text: text.into(),
            logprob,
            top,
        };
        let (a, b) = (
            token(Some(7), "a", Some(-0.5), vec![]),
            token(None, "b", Some(-1.5), vec![]),
        );
        let both = vec![a.clone(), b.clone()];
        assert_eq!(tokens(&new), [Token { top: both, ..a }]);
        let old = json!({"tokens": ["a", "c"], "token_logprobs": [-0.5, null],
            "top_logprobs": [{"b": -1.5, "a": -0.5}, null]});
        let a = token(None, "a", Some(-0.5), vec![]);
        let top = vec![a.clone(), b];
        assert_eq!(
            tokens(&old),
            [Token { top, ..a }, token(None, "c", None, vec![])]
        );
        for odd in [json!(null), json!({"tokens": 3}), json!({"content": null})] {
            assert_eq!(tokens(&odd), []);
        }
    }
}
