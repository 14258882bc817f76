//! Anthropic's API: `POST /v1/messages` and `POST /v1/messages/count_tokens`.

mod conversation;
mod stream;

use super::calls::{Stop, call};
use super::errors::Problem;
use super::fields::{self, Asked, Endpoint};
use super::generation::{Answer, Job};
use super::http::{self, App, Shared};
use super::models::find;
use super::ollama::timestamp;
use super::tools::Plan;
use super::{reply, tokens};
use crate::registry::Model;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::Response;
use backplane_plugin_api::types::{ChatRequest, FinishReason};
use serde_json::{Value, json};
use std::time::{Duration, SystemTime};
use stream::Message;

/// The header with the version of the API.
const VERSION: &str = "anthropic-version";
/// Those that are spoken: what is in both is the same in both.
const VERSIONS: [&str; 2] = ["2023-06-01", "2026-10-21"];

/// Answers with the next message.
pub(super) async fn create(State(app): Shared, request: Request) -> Result<Response, Problem> {
    let (asked, request) = read(&app, request, Endpoint::Messages).await?;
    if asked.generate.max_tokens.is_none() {
        let what = "expected the most tokens of the reply";
        return Err(Problem::field("max_tokens", what));
    }
    let served = find(&app.models, &asked.model)?;
    let shape = Message::new(&served.id);
    let stream = asked.stream;
    let jobs = vec![Job::chat(asked, request)];
    reply::send(&app, &served, jobs, stream, shape).await
}

/// Whether a request is one of Anthropic's clients, where its path does not tell.
pub(super) fn asks(headers: &HeaderMap) -> bool {
    headers.contains_key(VERSION)
}

/// A model, as it is served since so many seconds after 1970.
pub(super) fn model(id: &str, since: u64) -> Value {
    let since = SystemTime::UNIX_EPOCH + Duration::from_secs(since);
    json!({ "type": "model", "id": id, "display_name": id, "created_at": timestamp(since) })
}

/// All models: one page.
pub(super) fn models(all: Vec<(String, u64)>) -> Value {
    let all: Vec<Value> = all.iter().map(|(id, since)| model(id, *since)).collect();
    let id = |model: Option<&Value>| model.map(|model| model["id"].clone());
    json!({ "first_id": id(all.first()), "last_id": id(all.last()), "has_more": false, "data": all })
}

/// Counts the tokens that a conversation gives the model.
pub(super) async fn count_tokens(
    State(app): Shared,
    request: Request,
) -> Result<Response, Problem> {
    let (asked, messages) = read(&app, request, Endpoint::CountTokens).await?;
    let served = find(&app.models, &asked.model)?;
    let mut request = ChatRequest {
        messages,
        template_options: asked.template,
        ..ChatRequest::default()
    };
    let tools = asked.tools;
    let work = move |model: &Model, _: &Stop| {
        Ok(match Plan::new(model, &tools, &mut request) {
            Ok(_) => Ok(tokens::chat_tokens(model, &request)?.len()),
            Err(problem) => Err(problem),
        })
    };
    let count = call(&app, &served, work).await??;
    Ok(http::json(
        StatusCode::OK,
        &json!({ "input_tokens": count }),
    ))
}

async fn read(
    app: &App,
    request: Request,
    endpoint: Endpoint,
) -> Result<(Asked, Vec<backplane_plugin_api::types::ChatMessage>), Problem> {
    check_version(request.headers())?;
    let body = http::read(app, request).await?;
    let asked = fields::read(endpoint, &body)?;
    let conversation = conversation::read(&body)?;
    Ok((asked, conversation.into_messages()))
}

/// That the version asked for is spoken; none is as if it were.
pub(super) fn check_version(headers: &HeaderMap) -> Result<(), Problem> {
    match headers.get(VERSION) {
        Some(found) if !VERSIONS.iter().any(|known| found == known) => {
            let found = String::from_utf8_lossy(found.as_bytes()).into_owned();
            let message = format!("expected {}, found {found:?}", VERSIONS.join(" or "));
            Err(Problem::field(VERSION, message))
        }
        _ => Ok(()),
    }
}

/// How a reply ended, in Anthropic's words.
fn stop_reason(answer: &Answer) -> &'static str {
    use super::generation::Ended;
    match answer.ended() {
        Ended::Length => match answer.reply.completion.finish_reason {
            FinishReason::ContextFull => "model_context_window_exceeded",
            _ => "max_tokens",
        },
        Ended::ToolCalls => "tool_use",
        Ended::StopString => "stop_sequence",
        Ended::Stop => "end_turn",
    }
}

/// What it took. Tokens out of the cache are counted apart.
fn usage(answer: &Answer) -> Value {
    let completion = &answer.reply.completion;
    json!({
        "input_tokens": completion.prompt_tokens.saturating_sub(completion.cached_tokens),
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": completion.cached_tokens,
        "output_tokens": completion.completion_tokens,
    })
}
