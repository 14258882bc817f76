//! What Ollama's clients ask of models: `GET /api/tags`, `POST /api/show`, `GET /api/ps`, `GET /api/version`.

use super::time::timestamp;
use crate::serve::errors::Problem;
use crate::serve::fields::{self, Endpoint};
use crate::serve::http::{self, Shared};
use crate::serve::models::Served;
use crate::serve::operator::blocking;
use crate::serve::tools::thinks;
use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::response::Response;
use backplane_plugin_api::capability::EMBED;
use backplane_plugin_api::types::ModelInfo;
use serde_json::{Map, Value, json};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

/// The models that are served.
pub(in crate::serve) async fn tags(State(app): Shared) -> Result<Response, Problem> {
    blocking(move || {
        let one = |served: Arc<Served>| entry(&served, app.models.info(&served).as_ref());
        let models: Vec<Value> = app.models.iter().map(one).collect();
        Ok(http::json(StatusCode::OK, &json!({ "models": models })))
    })
    .await
}

/// Those of them that are loaded.
pub(in crate::serve) async fn running(State(app): Shared) -> Response {
    let models = app.models.iter().filter_map(|served| {
        let info = app.models.loaded(&served)?.info();
        let mut model = entry(&served, Some(&info));
        model["context_length"] = json!(info.loaded_context);
        let seen = app.models.seen(&served);
        model["size"] = json!(seen.size_bytes);
        // One that stays has no such time.
        let left = seen
            .expires_s
            .and_then(|left| Duration::try_from_secs_f64(left).ok());
        if let Some(expires) = left.and_then(|left| SystemTime::now().checked_add(left)) {
            model["expires_at"] = json!(timestamp(expires));
        }
        Some(model)
    });
    let models: Vec<Value> = models.collect();
    http::json(StatusCode::OK, &json!({ "models": models }))
}

/// Which version this is.
pub(in crate::serve) async fn version() -> Response {
    let answer = json!({ "version": env!("CARGO_PKG_VERSION") });
    http::json(StatusCode::OK, &answer)
}

/// What is known of one model.
pub(in crate::serve) async fn show(
    State(app): Shared,
    request: Request,
) -> Result<Response, Problem> {
    let body = http::read(&app, request).await?;
    let asked = fields::read(Endpoint::OllamaShow, &body)?;
    super::model(&app, &asked)?;
    blocking(move || {
        let served = super::model(&app, &asked)?;
        let info = app.models.info(&served);
        let info = info.ok_or_else(|| {
            let message = format!("no backend knows what {} is", served.id);
            Problem::unavailable(message, None)
        })?;
        let loaded = app.models.loaded(&served);
        let embeds = loaded.is_some_and(|model| model.text_model().capability(EMBED).is_some());
        Ok(http::json(StatusCode::OK, &shown(&served, &info, embeds)))
    })
    .await
}

fn shown(served: &Served, info: &ModelInfo, embeds: bool) -> Value {
    let mut known = Map::new();
    known.insert("general.architecture".into(), json!(info.architecture));
    known.insert("general.parameter_count".into(), json!(info.parameters));
    let context = format!("{}.context_length", info.architecture);
    known.insert(context, json!(info.context_length));
    for (name, text) in &info.metadata {
        // Lists are shortened for people, and told as they are shown.
        let value: Option<Value> = serde_json::from_str(text).ok();
        let value = value.filter(|value| !value.is_array() && !value.is_object());
        let value = value.unwrap_or_else(|| json!(text));
        known.entry(name.as_str()).or_insert(value);
    }
    let template = info.chat_template.as_deref().unwrap_or_default();
    let capabilities = [
        ("completion", true),
        ("tools", template.contains("tools")),
        ("thinking", thinks(template)),
        ("embedding", embeds),
    ];
    let capabilities: Vec<&str> = capabilities
        .into_iter()
        .filter_map(|(name, has)| has.then_some(name))
        .collect();
    json!({
        "modelfile": format!("FROM {}", served.id),
        "parameters": "",
        "template": template,
        "details": details(info),
        "model_info": known,
        "capabilities": capabilities,
        "modified_at": modified(info),
    })
}

fn entry(served: &Served, info: Option<&ModelInfo>) -> Value {
    let mut entry = json!({ "name": served.id, "model": served.id });
    if let Some(info) = info {
        entry["size"] = json!(info.file_bytes);
        entry["modified_at"] = modified(info);
        entry["details"] = details(info);
    }
    entry
}

fn details(info: &ModelInfo) -> Value {
    json!({
        "parent_model": "",
        "format": info.format,
        "family": info.architecture,
        "families": [info.architecture],
        "parameter_size": size(info.parameters),
        "quantization_level": info.quantization,
    })
}

/// When the file was written; null where there is none.
fn modified(info: &ModelInfo) -> Value {
    let time = std::fs::metadata(&info.path).and_then(|about| about.modified());
    time.map_or(Value::Null, |time| json!(timestamp(time)))
}

/// A number of weights for people.
fn size(parameters: u64) -> String {
    let count = parameters as f64;
    match parameters {
        1_000_000_000.. => format!("{:.1}B", count / 1e9),
        1_000_000.. => format!("{:.2}M", count / 1e6),
        _ => format!("{:.2}K", count / 1e3),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_for_people() {
        assert_eq!(size(134_515_008), "134.52M");
        assert_eq!(size(7_615_616_512), "7.6B");
        assert_eq!(size(600), "0.60K");
    }
}
