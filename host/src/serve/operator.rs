//! What operators ask: is it alive, is it ready, which backends are there, and reload.

use super::errors::Problem;
use super::http::{self, App, Shared, json};
use super::models::{Stopped, find};
use super::{Notice, Tell};
use crate::error::{Error, Result, plain};
use crate::registry::{ModelOptions, Reloaded, Watch};
use axum::body::{Body, to_bytes};
use axum::extract::{Request, State};
use axum::http::{StatusCode, header};
use axum::response::Response;
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use std::time::Duration;

type Answer = std::result::Result<Response, Problem>;

/// That it runs.
pub(super) async fn alive() -> Response {
    json(StatusCode::OK, &json!({ "status": "ok" }))
}

/// Whether every model has answered, and if not, why.
pub(super) async fn ready(State(app): Shared) -> Response {
    let mut reasons: Vec<String> = {
        let named = app.models.names().at_start().into_iter();
        named
            .filter_map(|served| app.models.unready(&served))
            .collect()
    };
    if app.is_stopping() {
        reasons.push("the server is stopping".to_owned());
    }
    if reasons.is_empty() {
        json(StatusCode::OK, &json!({ "status": "ready" }))
    } else {
        let answer = json!({ "status": "not ready", "reasons": reasons });
        json(StatusCode::SERVICE_UNAVAILABLE, &answer)
    }
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

/// The host and port of `http://HOST:PORT`.
fn authority(url: &str) -> Option<&str> {
    let rest = url.strip_prefix("http://").unwrap_or(url);
    let rest = rest.strip_suffix('/').unwrap_or(rest);
    let (host, port) = rest.rsplit_once(':')?;
    let right = !host.is_empty() && !rest.contains('/') && port.parse::<u16>().is_ok();
    right.then_some(rest)
}

/// Asks a server to reload.
pub(super) fn ask_to_reload(url: &str) -> Result<Reloaded> {
    let Some(authority) = authority(url) else {
        let message = format!("{url:?} is no address of a server");
        return Err(Error::usage(message, "write it as http://127.0.0.1:8080"));
    };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    let runtime = runtime.map_err(|error| Error::usage(plain(&error), ""))?;
    let (status, answer) = runtime
        .block_on(post(authority, "/admin/reload"))
        .map_err(|why| {
            let action = "start one with `backplane serve`, or name it by --server";
            Error::usage(
                format!("no server answers at http://{authority}: {why}"),
                action,
            )
        })?;
    if status == StatusCode::OK {
        let reloaded = serde_json::from_value(answer);
        return reloaded.map_err(|error| {
            let message = format!("http://{authority} answers otherwise than expected: {error}");
            Error::usage(message, "use the version of `backplane` that runs there")
        });
    }
    let message = answer["error"]["message"]
        .as_str()
        .unwrap_or("it gives no reason");
    Err(Error::usage(
        format!(
            "http://{authority} refuses with {}: {message}",
            status.as_u16()
        ),
        "",
    ))
}

async fn post(authority: &str, path: &str) -> std::result::Result<(StatusCode, Value), String> {
    let stream = tokio::net::TcpStream::connect(authority).await;
    let stream = stream.map_err(|error| plain(&error))?;
    let failed = |error: hyper::Error| error.to_string();
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream))
        .await
        .map_err(failed)?;
    tokio::spawn(connection);
    let request = hyper::Request::post(path)
        .header(header::HOST, authority)
        .body(Body::empty())
        .map_err(|error| error.to_string())?;
    let response = sender.send_request(request).await.map_err(failed)?;
    let status = response.status();
    let bytes = to_bytes(Body::new(response.into_body()), 16 << 20).await;
    let bytes = bytes.map_err(|error| error.to_string())?;
    Ok((status, serde_json::from_slice(&bytes).unwrap_or_default()))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses() {
        for (url, expected) in [
            ("http://127.0.0.1:8080", Some("127.0.0.1:8080")),
            ("http://localhost:1/", Some("localhost:1")),
            ("[::1]:80", Some("[::1]:80")),
            ("http://127.0.0.1", None),
            ("https://127.0.0.1:8080", None),
            ("http://127.0.0.1:80800", None),
            ("http://127.0.0.1:80/v1", None),
            (":80", None),
            ("", None),
        ] {
            assert_eq!(authority(url), expected, "{url}");
        }
        assert!(ask_to_reload("nowhere").is_err_and(|error| error.exit_code() == 2));
    }
}
