//! The server's own API: `/completion`, which gives token ids, and what stands around it.

use crate::http::{Client, HttpError};
use serde_json::{Map, Value, json};
use std::ops::ControlFlow;

/// What a `/completion` stream tells.
#[derive(Clone, Debug, PartialEq)]
pub enum Chunk {
    /// Prompt tokens read, and of how many.
    Progress {
        /// Read, those taken from the cache included.
        done: u64,
        /// Of.
        total: u64,
    },
    /// A token, with text that is now certain.
    Token {
        /// Its id; `None` where the server does not give it.
        token: Option<u32>,
        /// The text; may hold that of earlier tokens, whose chunks the server left out.
        text: String,
        /// Tokens until now, this one included. A gap to the chunk before counts tokens whose text was held back.
        count: u64,
        /// The chosen token's log probability, then the likeliest others: id, text, natural logarithm.
        logprobs: Vec<(u32, String, f32)>,
    },
    /// The end.
    End(End),
}

/// How a completion ended.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct End {
    /// Text that was held back.
    pub text: String,
    /// Tokens, an end token included.
    pub count: u64,
    /// Tokens of the prompt.
    pub prompt_tokens: u64,
    /// Of these, how many came from the cache.
    pub cached_tokens: u64,
    /// `eos`, `limit` or something newer.
    pub stop_type: String,
    /// Seconds reading the prompt.
    pub prefill_s: f64,
    /// Seconds generating.
    pub decode_s: f64,
}

type Stop<'a> = &'a dyn Fn() -> bool;

/// Runs a completion; `body` has the prompt and all settings. Chunks go to `on_chunk` until the end or `Break`.
///
/// # Errors
/// The connection failed, the server refused, or the stream ended without an end.
pub fn completion(
    client: &Client,
    mut body: Map<String, Value>,
    stop: Stop<'_>,
    on_chunk: &mut dyn FnMut(Chunk) -> ControlFlow<()>,
) -> Result<(), HttpError> {
    for (key, value) in [
        ("stream", true),
        ("return_tokens", true),
        ("return_progress", true),
    ] {
        body.insert(key.into(), value.into());
    }
    let mut ended = false;
    client.stream("/completion", &Value::Object(body), stop, &mut |value| {
        let chunk = chunk(&value);
        ended |= matches!(chunk, Chunk::End(_));
        let flow = on_chunk(chunk);
        ended |= flow.is_break();
        if ended { ControlFlow::Break(()) } else { flow }
    })?;
    if ended {
        Ok(())
    } else {
        Err(HttpError::Connection(
            "the stream ended before the answer did".into(),
        ))
    }
}

fn chunk(value: &Value) -> Chunk {
    let number = |value: &Value| value.as_u64().unwrap_or(0);
    let text = |key: &str| value[key].as_str().unwrap_or_default().to_owned();
    if let Some(progress) = value.get("prompt_progress") {
        return Chunk::Progress {
            done: number(&progress["processed"]),
            total: number(&progress["total"]),
        };
    }
    if value["stop"].as_bool() == Some(true) {
        let timings = &value["timings"];
        let seconds = |key: &str| timings[key].as_f64().unwrap_or(0.0).max(0.0) / 1000.0;
        return Chunk::End(End {
            text: text("content"),
            count: number(&value["tokens_predicted"]),
            prompt_tokens: number(&value["tokens_evaluated"]),
            cached_tokens: number(&timings["cache_n"]),
            stop_type: text("stop_type"),
            prefill_s: seconds("prompt_ms"),
            decode_s: seconds("predicted_ms"),
        });
    }
    Chunk::Token {
        token: value["tokens"].as_array().and_then(|ids| id(ids.last()?)),
        text: text("content"),
        count: number(&value["tokens_predicted"]),
        logprobs: logprobs(&value["completion_probabilities"][0]),
    }
}

fn id(value: &Value) -> Option<u32> {
    value.as_u64().and_then(|id| u32::try_from(id).ok())
}

/// The chosen token, then the others; empty where none were asked for.
fn logprobs(value: &Value) -> Vec<(u32, String, f32)> {
    let one = |value: &Value| {
        let text = value["token"].as_str().unwrap_or_default().to_owned();
        Some((id(&value["id"])?, text, value["logprob"].as_f64()? as f32))
    };
    let Some(chosen) = one(value) else {
        return vec![];
    };
    let others = value["top_logprobs"].as_array().into_iter().flatten();
    let others = others.filter_map(one).filter(|other| other.0 != chosen.0);
    std::iter::once(chosen.clone()).chain(others).collect()
}

/// Token ids of a text.
///
/// # Errors
/// The connection failed, the server refused, or the answer is no list of ids.
pub fn tokenize(
    client: &Client,
    text: &str,
    add_special: bool,
    parse_special: bool,
    stop: Stop<'_>,
) -> Result<Vec<u32>, HttpError> {
    let body =
        json!({ "content": text, "add_special": add_special, "parse_special": parse_special });
    let answer = client.post("/tokenize", &body, stop)?;
    answer["tokens"]
        .as_array()
        .and_then(|ids| ids.iter().map(id).collect())
        .ok_or_else(|| HttpError::Answer("/tokenize gave no list of ids".into()))
}

/// Text of token ids, special tokens written out. Parts of characters are replaced by U+FFFD.
///
/// # Errors
/// As [`tokenize`].
pub fn detokenize(client: &Client, tokens: &[u32], stop: Stop<'_>) -> Result<String, HttpError> {
    let answer = client.post("/detokenize", &json!({ "tokens": tokens }), stop)?;
    let text = answer["content"].as_str();
    text.map(str::to_owned)
        .ok_or_else(|| HttpError::Answer("/detokenize gave no text".into()))
}

/// A conversation as the model's template writes it.
///
/// # Errors
/// As [`tokenize`]; also where the template refuses the messages.
pub fn apply_template(client: &Client, body: &Value, stop: Stop<'_>) -> Result<String, HttpError> {
    let answer = client.post("/apply-template", body, stop)?;
    let text = answer["prompt"].as_str();
    text.map(str::to_owned)
        .ok_or_else(|| HttpError::Answer("/apply-template gave no prompt".into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_are_read() {
        let progress = json!({"content": "", "tokens": [0], "stop": false, "prompt_progress": {"total": 9, "processed": 4}});
        assert_eq!(chunk(&progress), Chunk::Progress { done: 4, total: 9 });
        let token = json!({"content": "ab", "tokens": [7], "stop": false, "tokens_predicted": 3, "completion_probabilities": [
            {"id": 7, "token": "ab", "logprob": -0.5, "top_logprobs": [
                {"id": 9, "token": "c", "logprob": -0.25}, {"id": 7, "token": "ab", "logprob": -0.5}]}]});
        let logprobs = vec![(7, "ab".to_owned(), -0.5), (9, "c".to_owned(), -0.25)];
        assert_eq!(
            chunk(&token),
            Chunk::Token {
                token: Some(7),
                text: "ab".into(),
                count: 3,
                logprobs
            }
        );
        let end = json!({"content": "x", "stop": true, "tokens_predicted": 4, "tokens_evaluated": 9, "stop_type": "limit",
            "timings": {"cache_n": 2, "prompt_ms": 500.0, "predicted_ms": 250.0}});
        let expected = End {
            text: "x".into(),
            count: 4,
            prompt_tokens: 9,
            cached_tokens: 2,
            stop_type: "limit".into(),
            prefill_s: 0.5,
            decode_s: 0.25,
        };
        assert_eq!(chunk(&end), Chunk::End(expected));
        // Anything else does not panic.
        for odd in [
            json!(null),
            json!([]),
            json!({"tokens": "x"}),
            json!({"tokens": [-1]}),
        ] {
            assert!(matches!(chunk(&odd), Chunk::Token { token: None, .. }));
        }
    }
}
