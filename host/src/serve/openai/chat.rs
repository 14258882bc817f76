//! `POST /v1/chat/completions`.

use super::{Frame, Usage, finish_reason, logprobs, messages, ours};
use crate::registry::Reply;
use crate::serve::errors::Problem;
use crate::serve::fields::{self, Endpoint};
use crate::serve::generation::{self, Job, Told};
use crate::serve::http::{self, Shared};
use crate::serve::models::find;
use crate::serve::sse::{self, Render};
use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::response::Response;
use backplane_plugin_api::types::ChatRequest;
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
    let job = Job::Chat(ChatRequest {
        messages,
        tools: None,
        template_options: asked.template,
        options: asked.generate,
    });
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
    let replies = running.replies().await?;
    let wants_logprobs = asked.logprobs.is_some();
    Ok(http::json(
        StatusCode::OK,
        &whole(&frame, choices, &replies, wants_logprobs),
    ))
}

fn whole(frame: &Frame, choices: u32, replies: &[Reply], wants_logprobs: bool) -> Value {
    let mut usage = Usage::default();
    let each = replies.iter().enumerate().map(|(index, reply)| {
        usage.add(index, choices, reply);
        let logprobs =
            wants_logprobs.then(|| logprobs::chat(reply.logprobs.iter().map(Vec::as_slice)));
        json!({
            "index": index,
            "message": { "role": "assistant", "content": reply.text, "refusal": null },
            "logprobs": logprobs,
            "finish_reason": finish_reason(reply),
        })
    });
    let choices: Value = each.collect();
    let mut answer = frame.json("chat.completion", choices);
    answer["usage"] = usage.json();
    answer["backplane"] = replies.first().map_or(Value::Null, ours);
    answer
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

impl Render for Stream {
    fn take(&mut self, told: Told) -> Result<Vec<Value>, Problem> {
        match told {
            Told::Begun => Ok(Vec::new()),
            Told::Piece {
                index,
                text,
                logprobs,
            } => {
                let mut events: Vec<Value> = self.begin(index).into_iter().collect();
                let logprobs = match self.wants_logprobs && !logprobs.is_empty() {
                    true => logprobs::chat([logprobs.as_slice()]),
                    false => Value::Null,
                };
                events.push(self.chunk(index, json!({ "content": text }), logprobs, None));
                Ok(events)
            }
            Told::Done { index, result } => {
                let reply = result?;
                self.usage.add(index, self.choices, &reply);
                let mut events: Vec<Value> = self.begin(index).into_iter().collect();
                let reason = finish_reason(&reply);
                let mut last = self.chunk(index, json!({}), Value::Null, Some(reason));
                last["backplane"] = ours(&reply);
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
