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
use super::queries::Queried;
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

/// Models of a page, unless told otherwise.
const PAGE: usize = 20;

/// A page of the models with these ids, served since so many seconds after 1970.
///
/// # Errors
/// There is none of the id where it is to begin or to end.
pub(super) fn models(ids: &[String], since: u64, queried: &Queried) -> Result<Value, Problem> {
    let at = |name: &str, id: &str| {
        let found = ids.iter().position(|known| known == id);
        found.ok_or_else(|| Problem::field(name, format!("no model with the id {id:?} is served")))
    };
    let limit = queried.limit.unwrap_or(PAGE);
    let (page, has_more) = match (&queried.after, &queried.before) {
        (_, Some(before)) => {
            let end = at("before_id", before)?;
            let start = end.saturating_sub(limit);
            (start..end, start > 0)
        }
        (after, None) => {
            let after = after.as_deref().map(|after| at("after_id", after));
            let start = after.transpose()?.map_or(0, |after| after + 1);
            let end = ids.len().min(start.saturating_add(limit));
            (start..end, end < ids.len())
        }
    };
    let page = &ids[page];
    let data: Vec<Value> = page.iter().map(|id| model(id, since)).collect();
    Ok(
        json!({ "first_id": page.first(), "last_id": page.last(), "has_more": has_more, "data": data }),
    )
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn models_come_by_pages() {
        let ids: Vec<String> = (0..25).map(|number| format!("m{number}")).collect();
        let page = |limit: Option<usize>, after: Option<&str>, before: Option<&str>| {
            let queried = Queried {
                limit,
                after: after.map(str::to_owned),
                before: before.map(str::to_owned),
            };
            models(&ids, 0, &queried).unwrap()
        };
        for (limit, after, before, first, last, count, more) in [
            (None, None, None, "m0", "m19", 20, true),
            (None, Some("m19"), None, "m20", "m24", 5, false),
            (Some(1000), None, None, "m0", "m24", 25, false),
            (Some(25), None, None, "m0", "m24", 25, false),
            (Some(1), Some("m3"), None, "m4", "m4", 1, true),
            (Some(2), None, Some("m3"), "m1", "m2", 2, true),
            (Some(9), None, Some("m3"), "m0", "m2", 3, false),
        ] {
            let page = page(limit, after, before);
            let ends = (&page["first_id"], &page["last_id"]);
            assert_eq!(ends, (&json!(first), &json!(last)), "{page}");
            assert_eq!(page["data"].as_array().unwrap().len(), count);
            assert_eq!(page["has_more"], more, "{limit:?} {after:?} {before:?}");
        }
        for (after, before) in [(Some("m24"), None), (None, Some("m0"))] {
            let expected =
                json!({ "first_id": null, "last_id": null, "has_more": false, "data": [] });
            assert_eq!(page(None, after, before), expected);
        }
        let nowhere = Queried {
            after: Some("m25".to_owned()),
            ..Queried::default()
        };
        let said = models(&ids, 0, &nowhere).unwrap_err().json()["error"]["message"].to_string();
        assert!(said.contains("`after_id`: no model with the id"), "{said}");
    }
}
