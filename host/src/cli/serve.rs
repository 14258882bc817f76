//! `serve`, and asking a server to reload.

use super::arguments::{AskedServer, Global, Ps, Reload, Serve, Stop};
use super::{output, registry, speaker, values};
use crate::error::{Error, Result};
use crate::serve::{Client, Notice, Resolved, ask_to_reload, serve as run};
use serde_json::{Value, json};
use std::process::ExitCode;
use std::sync::Arc;

pub(super) fn serve(global: &Global, verb: &Serve) -> Result<ExitCode> {
    let registry = registry(global)?;
    let manifest = registry.manifest();
    let resolved = Resolved::of(&manifest, registry.folders(), &verb.given.flags())?;
    for notice in &resolved.notices {
        output::notice(global, &output::visible(notice));
    }
    let quiet = global.quiet;
    let tell = move |notice: Notice| {
        if !quiet {
            output::error_line(&output::visible(&notice.to_string()));
        }
    };
    run(registry, resolved.options, Arc::new(tell))?;
    Ok(ExitCode::SUCCESS)
}

pub(super) fn reload(global: &Global, verb: &Reload) -> Result<ExitCode> {
    let server = server(global, &verb.asked)?;
    let reloaded = ask_to_reload(&server)?;
    if verb.json {
        output::json(&reloaded)?;
    } else {
        output::line(&output::visible(&reloaded.to_string()))?;
    }
    // The answer stands; a script learns from the code that something was refused.
    Ok(ExitCode::from(if reloaded.has_refused() { 5 } else { 0 }))
}

/// The server that is named, else the one of the settings.
fn server(global: &Global, asked: &AskedServer) -> Result<Client> {
    let mut trust = asked.trust.files();
    if let Some(url) = &asked.server {
        return speaker::server(url, &trust);
    }
    let registry = registry(global)?;
    let resolved = Resolved::of(&registry.manifest(), registry.folders(), &[])?;
    let url = resolved.url().ok_or_else(|| {
        let message = "by the settings the server takes any port that is free";
        Error::usage(message, "name the server by --server")
    })?;
    // Its own certificate is as good as an authority's.
    trust.authority = trust.authority.or(resolved.options.tls_certificate);
    speaker::server(&url, &trust)
}

pub(super) fn ps(global: &Global, verb: &Ps) -> Result<ExitCode> {
    let server = server(global, &verb.asked)?;
    let answer = server.get("/admin/ps")?;
    if verb.json {
        output::json(&answer)?;
        return Ok(ExitCode::SUCCESS);
    }
    let models = answer["models"].as_array().cloned().unwrap_or_default();
    if models.is_empty() {
        output::notice(global, &format!("{} has loaded no model", server.url()));
    } else {
        let header = [
            "name", "backend", "device", "size", "context", "state", "in use", "idle", "expires",
        ];
        let table = output::table(&header, models.iter().map(row).collect());
        output::line(&output::visible(&table))?;
    }
    for model in &models {
        let text = |name: &str| model[name].as_str().unwrap_or_default().to_owned();
        if !model["notice"].is_null() {
            let notice = format!("{}: {}", text("name"), text("notice"));
            output::notice(global, &output::visible(&notice));
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn row(model: &Value) -> Vec<String> {
    let text = |name: &str| model[name].as_str().unwrap_or("-").to_owned();
    let whole = |name: &str| model[name].as_u64();
    let bytes = |bytes| values::Bytes(bytes).to_string();
    let expires = match (model["expires_s"].as_f64(), model["in_use"].as_u64()) {
        (Some(seconds), _) => format!("in {}", time(seconds)),
        (None, Some(1..)) => "-".to_owned(),
        (None, _) if model["pinned"] == true => "never: pinned".to_owned(),
        (None, _) => "never".to_owned(),
    };
    vec![
        text("name"),
        text("backend"),
        text("device"),
        whole("size_bytes").map_or("-".to_owned(), bytes),
        whole("context").map_or("-".to_owned(), |tokens| tokens.to_string()),
        text("state"),
        whole("in_use").unwrap_or_default().to_string(),
        model["idle_s"].as_f64().map_or("-".to_owned(), time),
        expires,
    ]
}

/// Seconds for people.
fn time(seconds: f64) -> String {
    match seconds as u64 {
        seconds @ 0..60 => format!("{seconds} s"),
        seconds @ 60..3600 => format!("{} min {} s", seconds / 60, seconds % 60),
        seconds => format!("{} h {} min", seconds / 3600, seconds % 3600 / 60),
    }
}

pub(super) fn stop(global: &Global, verb: &Stop) -> Result<ExitCode> {
    let server = server(global, &verb.asked)?;
    let body = json!({ "model": verb.model });
    let answer = server.post("/admin/stop", Some(&body))?;
    if verb.json {
        output::json(&answer)?;
        return Ok(ExitCode::SUCCESS);
    }
    let model = answer["model"].as_str().unwrap_or(&verb.model);
    let said = match answer["state"].as_str() {
        Some("unloaded") => format!("{model} is unloaded"),
        Some("unloading") => format!(
            "{model} is unloaded when what uses it has ended (requests: {})",
            answer["in_use"]
        ),
        _ => format!("{model} was not loaded"),
    };
    output::line(&output::visible(&said))?;
    Ok(ExitCode::SUCCESS)
}
