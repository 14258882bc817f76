//! `POST /v1/chat/completions`.

use super::choices::{Choices, Kind};
use super::{Frame, logprobs, messages};
use crate::serve::errors::Problem;
use crate::serve::fields::{self, Endpoint};
use crate::serve::generation::{Answer, Job};
use crate::serve::http::{self, Shared};
use crate::serve::likely::Likely;
use crate::serve::models::find;
use crate::serve::reply;
use crate::serve::tools::{Call, Piece};
use axum::extract::{Request, State};
use axum::response::Response;
use serde_json::{Value, json};

/// Answers a chat.
pub(in crate::serve) async fn create(
    State(app): Shared,
    request: Request,
) -> Result<Response, Problem> {
    let body = http::read(&app, request).await?;
    let asked = fields::read(Endpoint::Chat, &body)?;
    let messages = messages::read(&body)?;
    let served = find(&app.models, &asked.model)?;
    let frame = Frame::new("chatcmpl", &served.id, &asked);
    let (choices, stream) = (asked.choices, asked.stream);
    let shape = Choices::new(Chat, frame, &asked, choices as usize);
    let jobs = Job::chat(asked, messages).choices(choices);
    reply::send(&app, &served, jobs, stream, shape).await
}

struct Chat;

impl Kind for Chat {
    const WHOLE: (&'static str, &'static str) = ("chat.completion", "message");
    const CHUNK: (&'static str, &'static str) = ("chat.completion.chunk", "delta");

    /// Content is null where tools are called and nothing is said besides.
    fn whole(&self, answer: &Answer) -> Value {
        let mut message = json!({ "role": "assistant", "content": answer.text, "refusal": null });
        if !answer.thought.is_empty() {
            message["reasoning_content"] = json!(answer.thought);
        }
        if !answer.calls.is_empty() {
            if answer.text.is_empty() {
                message["content"] = Value::Null;
            }
            message["tool_calls"] = answer.calls.iter().map(call).collect();
        }
        message
    }

    /// Who speaks.
    fn first(&self) -> Option<Value> {
        Some(json!({ "role": "assistant", "content": "", "refusal": null }))
    }

    fn piece(&self, piece: Piece) -> Option<Value> {
        Some(match piece {
            Piece::Text(text) => json!({ "content": text }),
            Piece::Thought(text) => json!({ "reasoning_content": text }),
            Piece::Begun { number, id, name } => {
                let function = json!({ "name": name, "arguments": "" });
                let call =
                    json!({ "index": number, "id": id, "type": "function", "function": function });
                json!({ "tool_calls": [call] })
            }
            Piece::Arguments { number, text } => {
                json!({ "tool_calls": [{ "index": number, "function": { "arguments": text } }] })
            }
        })
    }

    fn last(&self) -> Value {
        json!({})
    }

    fn logprobs(&mut self, _: usize, tokens: &[&[Likely]]) -> Value {
        logprobs::chat(tokens.iter().copied())
    }
}

fn call(call: &Call) -> Value {
    let function = json!({ "name": call.name, "arguments": call.arguments });
    json!({ "id": call.id, "type": "function", "function": function })
}
