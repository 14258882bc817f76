//! `GET /v1/models`, in OpenAI's shape, and for clients of Anthropic's in theirs.

use crate::serve::anthropic;
use crate::serve::errors::Problem;
use crate::serve::http::{self, App, Shared};
use crate::serve::models::{Served, find};
use crate::serve::operator::blocking;
use crate::serve::queries::Queried;
use axum::Extension;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::Response;
use serde_json::{Value, json};

fn model(app: &App, served: &Served) -> Value {
    let seen = app.models.seen(served);
    json!({
        "id": served.id,
        "object": "model",
        "created": app.started,
        "owned_by": seen.backend.as_deref().unwrap_or("backplane"),
        "backplane": seen,
    })
}

/// Every model that may be asked for.
pub(in crate::serve) async fn list(
    State(app): Shared,
    Extension(queried): Extension<Queried>,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    let theirs = anthropic::asks(&headers);
    anthropic::check_version(&headers)?;
    blocking(move || {
        if theirs {
            let ids: Vec<_> = app.models.iter().map(|one| one.id.clone()).collect();
            let page = anthropic::models(&ids, app.started, &queried)?;
            return Ok(http::json(StatusCode::OK, &page));
        }
        let data = app.models.iter().map(|served| model(&app, &served));
        let answer = json!({ "object": "list", "data": data.collect::<Vec<_>>() });
        Ok(http::json(StatusCode::OK, &answer))
    })
    .await
}

/// One of them.
pub(in crate::serve) async fn show(
    State(app): Shared,
    headers: HeaderMap,
    Path(id): Path<String>,
) -> Result<Response, Problem> {
    let theirs = anthropic::asks(&headers);
    anthropic::check_version(&headers)?;
    blocking(move || {
        let served = find(&app.models, &id)?;
        if theirs {
            let answer = anthropic::model(&served.id, app.started);
            return Ok(http::json(StatusCode::OK, &answer));
        }
        Ok(http::json(StatusCode::OK, &model(&app, &served)))
    })
    .await
}
