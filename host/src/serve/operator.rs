//! What operators ask: is it alive, is it ready, which backends are there, and reload.

use super::client::Client;
use super::errors::Problem;
use super::http::{self, App, Shared, json};
use super::models::{Stopped, find};
use super::{Notice, Tell};
use crate::error::{Error, Result};
use crate::registry::{ModelOptions, Reloaded, Watch};
use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::response::Response;
use serde_json::{Value, json};
use std::time::Duration;

type Answer = std::result::Result<Response, Problem>;

/// That it runs.
pub(super) async fn alive() -> Response {
    json(StatusCode::OK, &json!({ "status": "ok" }))
}

/// Whether every model that is loaded at the start has answered, or where there is none, one can be loaded; and if not, why.
pub(super) async fn ready(State(app): Shared) -> Answer {
    blocking(move || {
        let mut reasons = app.models.not_ready();
        if app.is_stopping() {
            reasons.push("the server is stopping".to_owned());
        }
        if reasons.is_empty() {
            return Ok(json(StatusCode::OK, &json!({ "status": "ready" })));
        }
        let answer = json!({ "status": "not ready", "reasons": reasons });
        Ok(json(StatusCode::SERVICE_UNAVAILABLE, &answer))
    })
    .await
}

/// Every plugin with its verdict, what the order would choose, and what runs each model and why.
pub(super) async fn backends(State(app): Shared) -> Answer {
    blocking(move || {
        let registry = &app.registry;
        let selection = registry.explain(None, &ModelOptions::default());
        let models = app.models.iter().filter_map(|served| {
            let model = app.models.loaded(&served)?;
            Some(json!({
                "id": served.id,
                "backend": model.backend(),
                "selection": model.trace(),
            }))
        });
        let answer = json!({
            "manifest": registry.manifest().source,
            "plugins": registry.all(),
            "selection": selection.map_err(|error| Problem::from(&error))?,
            "models": models.collect::<Vec<_>>(),
        });
        Ok(json(StatusCode::OK, &answer))
    })
    .await
}

/// What this machine could run models on, how much of its memory is taken, and who would use it.
pub(super) async fn devices(State(app): Shared) -> Answer {
    blocking(move || {
        let report = crate::devices::report(&app.registry);
        let answer = report.map_err(|error| Problem::from(&error))?;
        Ok(json(StatusCode::OK, &answer))
    })
    .await
}

/// Looks at manifest, modules, and files of keys and certificates again.
pub(super) async fn reload(State(app): Shared) -> Answer {
    blocking(move || {
        let reloaded = app
            .registry
            .reload()
            .map_err(|error| Problem::from(&error))?;
        app.reread().map_err(|error| Problem::from(&error))?;
        if !reloaded.changes.is_empty() {
            (app.tell)(Notice::Note(reloaded.to_string()));
        }
        let answer = serde_json::to_value(&reloaded);
        let answer = answer.map_err(|error| Problem::internal(error.to_string()))?;
        Ok(json(StatusCode::OK, &answer))
    })
    .await
}

/// The models that are loaded, with what they take and who uses them.
pub(super) async fn ps(State(app): Shared) -> Answer {
    blocking(move || {
        let all = app.models.iter().map(|served| app.models.seen(&served));
        let models: Vec<_> = all.filter(|seen| seen.state != "unloaded").collect();
        let taken: u64 = models.iter().map(|seen| seen.size_bytes).sum();
        let answer = json!({
            "models": models,
            "memory": { "used_bytes": taken, "limit_bytes": app.models.budget() },
            "replies": {
                "running": app.queue.most() as usize - app.queue.free(),
                "waiting": app.queue.waiting(),
                "limit": app.queue.most(),
            },
        });
        Ok(json(StatusCode::OK, &answer))
    })
    .await
}

/// Unloads a model.
pub(super) async fn stop(State(app): Shared, request: Request) -> Answer {
    let body = http::read(&app, request).await?;
    if let Some(other) = body.keys().find(|name| *name != "model") {
        return Err(Problem::unsupported(other, "no such field"));
    }
    let name = body.get("model").and_then(Value::as_str);
    let name = name.filter(|name| !name.is_empty());
    let name = name.ok_or_else(|| Problem::field("model", "expected the name of a model"))?;
    let served = find(&app.models, name)?;
    let (state, in_use) = match app.models.stop(&served).await {
        Stopped::Unloaded => ("unloaded", 0),
        Stopped::WasNot => ("not loaded", 0),
        Stopped::InUse(count) => ("unloading", count),
    };
    let answer = json!({ "model": served.id, "state": state, "in_use": in_use });
    Ok(json(StatusCode::OK, &answer))
}

/// Work that blocks, off the threads that serve.
pub(super) async fn blocking(work: impl FnOnce() -> Answer + Send + 'static) -> Answer {
    let done = tokio::task::spawn_blocking(work).await;
    done.unwrap_or_else(|error| Err(Problem::internal(format!("the answer failed: {error}"))))
}

/// Asks a server to reload.
pub(super) fn ask_to_reload(server: &Client) -> Result<Reloaded> {
    let answer = server.post("/admin/reload", None);
    // What keeps it from reloading is in its manifest or files, as it says: no engine has failed.
    let answer = answer.map_err(|error| match error {
        Error::Backend { error, .. } => Error::usage(error.message, ""),
        other => other,
    })?;
    serde_json::from_value(answer).map_err(|error| {
        let url = server.url();
        let message = format!("{url} answers otherwise than expected: {error}");
        Error::usage(message, "use the version of `backplane` that runs there")
    })
}

/// Looks for changes of manifest and modules until the server stops, and reloads.
pub(super) fn watch(app: &App, every: Duration, mut watch: Watch, tell: &Tell) {
    let mut seen = app.stamps();
    loop {
        std::thread::sleep(every);
        if app.is_stopping() {
            return;
        }
        let now = app.stamps();
        if std::mem::replace(&mut seen, now.clone()) != now
            && let Err(error) = app.reread()
        {
            let note = format!("keys and certificates stay as they were: {}", error.line());
            tell(Notice::Note(note));
        }
        if !watch.is_due() {
            continue;
        }
        let note = match app.registry.reload() {
            Ok(reloaded) if reloaded.changes.is_empty() => continue,
            Ok(reloaded) => reloaded.to_string(),
            Err(error) => format!("nothing is reloaded: {}", error.line()),
        };
        tell(Notice::Note(note));
    }
}
