//! `GET /v1/models`.

use crate::serve::errors::Problem;
use crate::serve::http::{self, App, Shared};
use crate::serve::models::{Served, find};
use crate::serve::operator::blocking;
use axum::extract::{Path, State};
use axum::http::StatusCode;
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
pub(in crate::serve) async fn list(State(app): Shared) -> Result<Response, Problem> {
    blocking(move || {
        let data = app.models.iter().map(|served| model(&app, &served));
        let answer = json!({ "object": "list", "data": data.collect::<Vec<_>>() });
        Ok(http::json(StatusCode::OK, &answer))
    })
    .await
}

/// One of them.
pub(in crate::serve) async fn show(
    State(app): Shared,
    Path(id): Path<String>,
) -> Result<Response, Problem> {
    blocking(move || {
        let served = find(&app.models, &id)?;
        Ok(http::json(StatusCode::OK, &model(&app, &served)))
    })
    .await
}
