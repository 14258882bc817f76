//! `GET /v1/models`.

use crate::serve::errors::Problem;
use crate::serve::http::{App, Shared, json as answer};
use crate::serve::models::{Served, find};
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::response::Response;
use serde_json::{Value, json};

fn model(app: &App, served: &Served) -> Value {
    let loaded = served.loaded();
    json!({
        "id": served.id,
        "object": "model",
        "created": app.started,
        "owned_by": loaded.map_or("backplane".to_owned(), |model| model.backend()),
    })
}

/// Every model that is served.
pub(in crate::serve) async fn list(State(app): Shared) -> Response {
    let data: Vec<Value> = app
        .models
        .iter()
        .map(|served| model(&app, served))
        .collect();
    answer(StatusCode::OK, &json!({ "object": "list", "data": data }))
}

/// One of them.
pub(in crate::serve) async fn show(
    State(app): Shared,
    Path(id): Path<String>,
) -> Result<Response, Problem> {
    let served = find(&app.models, &id)?;
    Ok(answer(StatusCode::OK, &model(&app, served)))
}
