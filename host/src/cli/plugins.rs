//! `plugins`: what is there, what would be chosen, and whether it works.

mod author;

use super::arguments::{Explain, Global, Plugins, PluginsVerb};
use super::{output, registry};
use crate::error::{Error, Result};
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
        Some(PluginsVerb::Check { json }) => check(global, &registry?, *json),
        Some(PluginsVerb::Reload(verb)) => super::serve::reload(verb),
        // These look at files, and need no plugin of the manifest.
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
        &["name", "version", "kind", "verdict", "devices", "path"],
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
