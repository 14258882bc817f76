//! `POST /v1/chat/completions`.

use super::{Frame, Usage, finish_reason, logprobs, messages, ours};
use crate::serve::errors::Problem;
use crate::serve::fields::{self, Endpoint};
use crate::serve::generation::{self, Answer, Job, Told};
use crate::serve::http::{self, Shared};
use crate::serve::models::find;
use crate::serve::sse::{self, Render};
use crate::serve::tools::{Call, Piece};
use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::response::Response;
use backplane_plugin_api::types::ChatRequest;
use serde_json::{Value, json};
use std::sync::Arc;

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
    let request = ChatRequest {
        messages,
        tools: None,
        template_options: asked.template,
        options: asked.generate,
    };
    let job = Job::Chat(request, Arc::new(asked.tools));
    let choices = asked.choices;
    let running = generation::start(&app, served, job.choices(choices), asked.stream)?;
    if asked.stream {
        let render = Stream {
            frame,
            choices,
            begun: vec![false; choices as usize],
            wants_logprobs: asked.logprobs.is_some(),
            usage: Usage::default(),
        };
        return sse::respond(running, render).await;
    }
    let answers = running.answers().await?;
    let wants_logprobs = asked.logprobs.is_some();
    Ok(http::json(
        StatusCode::OK,
        &whole(&frame, choices, &answers, wants_logprobs),
    ))
}

fn whole(frame: &Frame, choices: u32, answers: &[Answer], wants_logprobs: bool) -> Value {
    let mut usage = Usage::default();
    let each = answers.iter().enumerate().map(|(index, answer)| {
        usage.add(index, choices, answer);
        let logprobs =
            wants_logprobs.then(|| logprobs::chat(answer.reply.logprobs.iter().map(Vec::as_slice)));
        json!({
            "index": index,
            "message": message(answer),
            "logprobs": logprobs,
            "finish_reason": finish_reason(answer),
        })
    });
    let choices: Value = each.collect();
    let mut answer = frame.json("chat.completion", choices);
    answer["usage"] = usage.json();
    answer["backplane"] = answers.first().map_or(Value::Null, ours);
    answer
}

/// What is said. Content is null where tools are called and nothing is said besides.
fn message(answer: &Answer) -> Value {
    let mut message = json!({ "role": "assistant", "content": answer.text, "refusal": null });
    if !answer.calls.is_empty() {
        if answer.text.is_empty() {
            message["content"] = Value::Null;
        }
        message["tool_calls"] = answer.calls.iter().map(call).collect();
    }
    message
}

fn call(call: &Call) -> Value {
    let function = json!({ "name": call.name, "arguments": call.arguments });
    json!({ "id": call.id, "type": "function", "function": function })
}

struct Stream {
    frame: Frame,
    choices: u32,
    /// Which choices have said who speaks.
    begun: Vec<bool>,
    wants_logprobs: bool,
    usage: Usage,
}

impl Stream {
    fn chunk(&self, index: usize, delta: Value, logprobs: Value, reason: Option<&str>) -> Value {
        let choice = json!({
            "index": index,
            "delta": delta,
            "logprobs": logprobs,
            "finish_reason": reason,
        });
        self.frame.json("chat.completion.chunk", json!([choice]))
    }

    /// The event that says who speaks, once for each choice.
    fn begin(&mut self, index: usize) -> Option<Value> {
        let begun = self.begun.get_mut(index)?;
        if std::mem::replace(begun, true) {
            return None;
        }
        let delta = json!({ "role": "assistant", "content": "", "refusal": null });
        Some(self.chunk(index, delta, Value::Null, None))
    }
}

fn delta(piece: Piece) -> Value {
    match piece {
        Piece::Text(text) => json!({ "content": text }),
        Piece::Begun { number, id, name } => {
            let function = json!({ "name": name, "arguments": "" });
            let call =
                json!({ "index": number, "id": id, "type": "function", "function": function });
            json!({ "tool_calls": [call] })
        }
        Piece::Arguments { number, text } => {
            json!({ "tool_calls": [{ "index": number, "function": { "arguments": text } }] })
        }
    }
}

impl Render for Stream {
    fn take(&mut self, told: Told) -> Result<Vec<Value>, Problem> {
        match told {
            Told::Begun => Ok(Vec::new()),
            Told::Piece {
                index,
                piece,
                logprobs,
            } => {
                let mut events: Vec<Value> = self.begin(index).into_iter().collect();
                let logprobs = match self.wants_logprobs && !logprobs.is_empty() {
                    true => logprobs::chat([logprobs.as_slice()]),
                    false => Value::Null,
                };
                events.push(self.chunk(index, delta(piece), logprobs, None));
                Ok(events)
            }
            Told::Done { index, result } => {
                let answer = result?;
                self.usage.add(index, self.choices, &answer);
                let mut events: Vec<Value> = self.begin(index).into_iter().collect();
                let reason = finish_reason(&answer);
                let mut last = self.chunk(index, json!({}), Value::Null, Some(reason));
                last["backplane"] = ours(&answer);
                events.push(last);
                Ok(events)
            }
        }
    }

    fn end(&mut self) -> Vec<Value> {
        if !self.frame.usage {
            return Vec::new();
        }
        let mut last = self.frame.json("chat.completion.chunk", json!([]));
        last["usage"] = self.usage.json();
        vec![last]
    }
}
