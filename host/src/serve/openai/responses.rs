//! `POST /v1/responses`.

mod input;
mod stream;

use super::{id, ours};
use crate::serve::errors::Problem;
use crate::serve::fields::{self, Asked, Endpoint, choice_json};
use crate::serve::generation::{Answer, Ended, Job};
use crate::serve::http::{self, Shared};
use crate::serve::models::find;
use crate::serve::reply;
use axum::extract::{Request, State};
use axum::response::Response;
use serde_json::{Map, Value, json};
use std::time::{SystemTime, UNIX_EPOCH};
use stream::Events;

/// Makes a response.
pub(in crate::serve) async fn create(
    State(app): Shared,
    request: Request,
) -> Result<Response, Problem> {
    let body = http::read(&app, request).await?;
    let asked = fields::read(Endpoint::Responses, &body)?;
    let conversation = input::read(&body)?;
    let served = find(&app.models, &asked.model)?;
    let shape = Events::new(Frame::new(&served.id, &asked, &body));
    let stream = asked.stream;
    let jobs = vec![Job::chat(asked, conversation.into_messages())];
    reply::send(&app, &served, jobs, stream, shape).await
}

/// What a response says of itself, whatever becomes of it.
struct Frame {
    json: Value,
    /// Whether log probabilities are told.
    logprobs: bool,
}

impl Frame {
    fn new(model: &str, asked: &Asked, body: &Map<String, Value>) -> Self {
        let given = |name: &str| body.get(name).cloned().unwrap_or_default();
        let or = |name: &str, otherwise: Value| match given(name) {
            Value::Null => otherwise,
            given => given,
        };
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        let json = json!({
            "id": id("resp_"),
            "object": "response",
            "created_at": now.map_or(0, |now| now.as_secs()),
            "status": "in_progress",
            "background": false,
            "error": null,
            "incomplete_details": null,
            "instructions": given("instructions"),
            "max_output_tokens": asked.generate.max_tokens,
            "metadata": or("metadata", json!({})),
            "model": model,
            "output": [],
            "parallel_tool_calls": asked.tools.parallel,
            "previous_response_id": null,
            "reasoning": { "effort": null, "summary": null },
            "service_tier": "default",
            "store": false,
            "temperature": given("temperature"),
            "text": or("text", json!({ "format": { "type": "text" } })),
            "tool_choice": choice_json(&asked.tools.choice),
            "tools": or("tools", json!([])),
            "top_p": given("top_p"),
            "truncation": "disabled",
            "usage": null,
            "user": given("user"),
        });
        Self {
            json,
            logprobs: asked.logprobs.is_some(),
        }
    }

    /// As it began.
    fn begun(&self) -> Value {
        self.json.clone()
    }

    /// As it ended.
    fn ended(&self, output: Vec<Value>, answer: &Answer) -> Value {
        let mut json = self.json.clone();
        json["output"] = json!(output);
        json["status"] = json!(status(answer));
        if answer.ended() == Ended::Length {
            json["incomplete_details"] = json!({ "reason": "max_output_tokens" });
        }
        let completion = &answer.reply.completion;
        json["usage"] = json!({
            "input_tokens": completion.prompt_tokens,
            "input_tokens_details": { "cached_tokens": completion.cached_tokens, "cache_write_tokens": 0 },
            "output_tokens": completion.completion_tokens,
            "output_tokens_details": { "reasoning_tokens": answer.thought_tokens },
            "total_tokens": completion.prompt_tokens + completion.completion_tokens,
        });
        json["backplane"] = ours(answer);
        json
    }

    /// As it failed.
    fn failed(&self, problem: &Problem) -> Value {
        let mut json = self.json.clone();
        json["status"] = json!("failed");
        json["error"] = problem.of_response();
        json
    }
}

/// How a response ended, and with it what was said last.
fn status(answer: &Answer) -> &'static str {
    match answer.ended() {
        Ended::Length => "incomplete",
        Ended::Stop | Ended::StopString | Ended::ToolCalls => "completed",
    }
}
