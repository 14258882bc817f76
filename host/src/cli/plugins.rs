//! `plugins`: what is there, what would be chosen, and whether it works.

#[cfg(unix)]
mod author;

use super::arguments::{Explain, Global, Plugins, PluginsVerb};
use super::{output, registry};
use crate::error::{Error, Result};
use crate::manifest::normal_name;
use crate::registry::{ModelOptions, Plugin, PluginKind, Registry};
use crate::selection::{Outcome, Trace};
use serde_json::json;
use std::process::ExitCode;

pub(super) fn plugins(global: &Global, verb: &Plugins) -> Result<ExitCode> {
    let registry = registry(global);
    match &verb.verb {
        None => {
            let registry = registry?;
            let plugins = listed(&registry);
            if verb.json {
                output::json(
                    &json!({ "manifest": registry.manifest().source, "plugins": plugins }),
                )?;
            } else {
                output::line(&table(&registry, output::answer_colour(global)))?;
            }
            Ok(ExitCode::SUCCESS)
        }
        Some(PluginsVerb::Explain(verb)) => explain(global, &registry?, verb),
        Some(PluginsVerb::Clear { name, json }) => clear(&registry?, name, *json),
        Some(PluginsVerb::Check { json }) => check(global, &registry?, *json),
        Some(PluginsVerb::Reload(verb)) => super::serve::reload(global, verb),
        // These look at files, and need no plugin of the manifest.
        #[cfg(unix)]
        Some(PluginsVerb::Author(verb)) => author::author(global, verb),
    }
}

/// What is installed, or named in the manifest. Names of the default order that are not installed belong to `explain`.
fn listed(registry: &Registry) -> Vec<Plugin> {
    let named = |plugin: &Plugin| registry.manifest().plugin(&plugin.name).is_some();
    registry
        .all()
        .into_iter()
        .filter(|plugin| plugin.kind != PluginKind::Missing || named(plugin))
        .collect()
}

fn kind(kind: PluginKind) -> &'static str {
    match kind {
        PluginKind::Module => "module",
        PluginKind::Embedded => "embedded",
        PluginKind::Missing => "missing",
    }
}

fn clear(registry: &Registry, name: &str, json: bool) -> Result<ExitCode> {
    let cleared = registry.clear_crashes(name)?;
    if json {
        output::json(&json!({ "plugin": normal_name(name), "cleared": cleared }))?;
        return Ok(ExitCode::SUCCESS);
    }
    let lines = cleared.iter().map(|record| {
        let crashes = match record.crashes.len() {
            1 => "1 crash".to_owned(),
            count => format!("{count} crashes"),
        };
        let last = record.crashes.last().map_or("", |last| last.how.as_str());
        let module = &record.subject.module;
        output::visible(&format!(
            "forgot {crashes} of {module}, the last: its process {last}"
        ))
    });
    let lines: Vec<String> = lines.collect();
    output::line(&if lines.is_empty() {
        format!("no crashes of `{}` are remembered", normal_name(name))
    } else {
        lines.join("\n")
    })?;
    Ok(ExitCode::SUCCESS)
}

/// Where a plugin runs, and whether anybody said so.
fn runs_in(plugin: &Plugin) -> String {
    match plugin.isolation {
        Some(isolation) if plugin.isolation_default => format!("{isolation} (default)"),
        Some(isolation) => isolation.to_string(),
        None => String::new(),
    }
}

/// The table of plugins, and below it the verdicts of those that can't be used.
pub(crate) fn table(registry: &Registry, colour: bool) -> String {
    let plugins = listed(registry);
    if plugins.is_empty() {
        let manifest = registry.manifest();
        let places: Vec<String> = manifest
            .directories
            .iter()
            .map(|folder| folder.display().to_string())
            .collect();
        return format!(
            "no plugins in {} (manifest: {})",
            places.join(", "),
            manifest.source
        );
    }
    let or_dash = |text: String| {
        if text.is_empty() {
            "-".to_owned()
        } else {
            text
        }
    };
    let rows = plugins.iter().map(|plugin| {
        let devices: Vec<&str> = plugin
            .devices
            .iter()
            .map(|device| device.name.as_str())
            .collect();
        let state = plugin.verdict.state;
        vec![
            plugin.name.clone(),
            or_dash(plugin.version.clone().unwrap_or_default()),
            kind(plugin.kind).to_owned(),
            output::styled(colour, output::verdict_style(state), &state.to_string()),
            or_dash(runs_in(plugin)),
            or_dash(output::visible(&devices.join(", "))),
            or_dash(
                plugin
                    .path
                    .as_ref()
                    .map(|path| path.display().to_string())
                    .unwrap_or_default(),
            ),
        ]
    });
    let mut text = output::table(
        &[
            "name", "version", "kind", "verdict", "runs in", "devices", "path",
        ],
        rows.collect(),
    );
    for plugin in plugins
        .iter()
        .filter(|plugin| !plugin.verdict.is_available())
    {
        text.push_str(&format!(
            "\n{}: {}",
            plugin.name,
            output::visible(&plugin.verdict.to_string())
        ));
    }
    for plugin in &plugins {
        if let Some(notice) = &plugin.notice {
            text.push_str(&format!("\n{}: {}", plugin.name, output::visible(notice)));
        }
    }
    text
}

fn explain(global: &Global, registry: &Registry, verb: &Explain) -> Result<ExitCode> {
    let options = ModelOptions {
        backend: verb.backend.clone(),
        ..ModelOptions::default()
    };
    let trace = registry.explain(verb.model.as_deref(), &options)?;
    if verb.json {
        let mut object = serde_json::to_value(&trace).unwrap_or_default();
        object["manifest"] = json!(registry.manifest().source);
        let isolation = |plugin: &Plugin| {
            let (isolation, default) = (plugin.isolation?, plugin.isolation_default);
            let object = json!({ "isolation": isolation, "default": default });
            Some((plugin.name.clone(), object))
        };
        let isolations = registry.all().iter().filter_map(isolation).collect();
        object["isolation"] = serde_json::Value::Object(isolations);
        output::json(&object)?;
    } else {
        output::line(&explained(registry, &trace, output::answer_colour(global)))?;
    }
    // The answer is the same; a script learns from the code whether a backend would run.
    Ok(ExitCode::from(if trace.chosen.is_some() { 0 } else { 3 }))
}

/// A trace for people.
fn explained(registry: &Registry, trace: &Trace, colour: bool) -> String {
    let manifest = registry.manifest();
    let folders: Vec<String> = manifest
        .directories
        .iter()
        .map(|folder| folder.display().to_string())
        .collect();
    let mut lines = vec![
        format!("manifest     {}", manifest.source),
        format!("directories  {}", folders.join(", ")),
        format!("order        {}", trace.order.join(", ")),
        format!("fallback     {}", trace.fallback),
    ];
    lines.extend(
        trace
            .pinned
            .as_ref()
            .map(|name| format!("pinned       {name}")),
    );
    lines.extend(
        trace
            .model
            .as_ref()
            .map(|path| format!("model        {}", path.display())),
    );
    lines.push(String::new());
    let all = registry.all();
    for candidate in &trace.candidates {
        let rank = candidate
            .rank
            .map_or("-".to_owned(), |rank| rank.to_string());
        let outcome = match candidate.outcome {
            Outcome::Chosen => output::styled(colour, "32", "chosen"),
            Outcome::Lost => "lost".to_owned(),
            Outcome::NotTried => output::styled(colour, "2", "not tried"),
        };
        lines.push(format!(
            "{rank:>2} {:<12} {outcome}: {}",
            candidate.name,
            output::visible(&candidate.reason)
        ));
        let plugins = all.iter();
        let isolation = plugins
            .filter(|plugin| plugin.path == candidate.path)
            .find(|plugin| plugin.name == candidate.name)
            .map(runs_in)
            .filter(|isolation| !isolation.is_empty());
        lines.extend(isolation.map(|isolation| format!("                runs in: {isolation}")));
        if candidate.verdict.is_available() || candidate.outcome == Outcome::NotTried {
            lines.push(format!(
                "                {}",
                output::visible(&candidate.verdict.to_string())
            ));
        }
    }
    lines.push(String::new());
    lines.push(format!(
        "chosen: {}",
        trace.chosen.as_deref().unwrap_or("none")
    ));
    lines.extend(
        trace
            .notice
            .as_ref()
            .map(|notice| format!("notice: {}", output::visible(notice))),
    );
    lines.join("\n")
}

fn check(global: &Global, registry: &Registry, json: bool) -> Result<ExitCode> {
    let plugins = listed(registry);
    let available = plugins.iter().any(|plugin| plugin.verdict.is_available());
    if json {
        output::json(&json!({ "available": available, "plugins": plugins }))?;
    } else if !plugins.is_empty() {
        let colour = output::answer_colour(global);
        let line = |plugin: &Plugin| {
            let style = output::verdict_style(plugin.verdict.state);
            let verdict = output::visible(&plugin.verdict.to_string());
            format!(
                "{:<12} {}",
                plugin.name,
                output::styled(colour, style, &verdict)
            )
        };
        output::line(&plugins.iter().map(line).collect::<Vec<_>>().join("\n"))?;
    }
    match registry.default() {
        _ if available => Ok(ExitCode::SUCCESS),
        Err(error @ Error::NoBackend { .. }) => Err(error),
        _ => Ok(ExitCode::from(3)),
    }
}
