//! `config`: every setting, what it is, and where that comes from.

use super::arguments::{Config, Global};
use super::{output, registry};
use crate::error::{Error, Result};
use crate::manifest::{MODEL_SETTINGS, Manifest, ServeModel, Value};
use crate::serve::{Origin, Resolved, faults};
use serde_json::{Value as Json, json};
use std::path::PathBuf;
use std::process::ExitCode;

/// One line of the answer.
struct Row {
    name: String,
    value: Option<Value>,
    /// What holds where there is no value.
    otherwise: String,
    variable: Option<String>,
    about: &'static str,
    origin: Origin,
}

impl Row {
    fn shown(&self) -> String {
        let value = self.value.as_ref().map(ToString::to_string);
        value.unwrap_or_else(|| self.otherwise.clone())
    }

    fn json(&self) -> Json {
        let mut json = serde_json::to_value(&self.origin).unwrap_or_default();
        json["name"] = json!(self.name);
        json["value"] = json!(self.value);
        json["about"] = json!(self.about);
        if self.value.is_none() {
            json["otherwise"] = json!(self.otherwise);
        }
        if let Some(variable) = &self.variable {
            json["variable"] = json!(variable);
        }
        json
    }
}

pub(super) fn config(global: &Global, verb: &Config) -> Result<ExitCode> {
    let registry = registry(global)?;
    let manifest = registry.manifest();
    let resolved = Resolved::of(&manifest, registry.folders(), &verb.given.flags())?;
    let rows = rows(&manifest, &resolved);
    let faults = faults(&registry, &resolved.options);
    // A script learns from the code that `serve` would not start.
    let code = if faults.is_empty() { 0 } else { 2 };
    let folder = registry.catalog().folder().map(PathBuf::from);
    if verb.json {
        output::json(&json!({
            "manifest": manifest.source,
            "models": folder.as_ref().map(|folder| folder.to_string_lossy()),
            "settings": rows.iter().map(Row::json).collect::<Vec<_>>(),
            "notices": resolved.notices,
            "faults": faults.iter().map(Error::line).collect::<Vec<_>>(),
        }))?;
        return Ok(ExitCode::from(code));
    }
    let cells = rows.iter();
    let cells = cells.map(|row| vec![row.name.clone(), row.shown(), row.origin.to_string()]);
    let table = output::table(&["setting", "value", "from"], cells.collect());
    let folder = folder.map_or("none".to_owned(), |folder| folder.display().to_string());
    let head = format!(
        "manifest      {}\nmodel folder  {folder}\n",
        manifest.source
    );
    output::line(&output::visible(&format!("{head}\n{table}")))?;
    for notice in &resolved.notices {
        output::notice(global, &output::visible(notice));
    }
    for fault in &faults {
        output::error(global, fault);
    }
    Ok(ExitCode::from(code))
}

fn rows(manifest: &Manifest, resolved: &Resolved) -> Vec<Row> {
    let mut rows: Vec<Row> = resolved
        .origins
        .iter()
        .map(|(setting, origin)| Row {
            name: format!("serve.{}", setting.name),
            value: setting.value(&resolved.options),
            otherwise: setting.otherwise.to_owned(),
            variable: Some(setting.variable()),
            about: setting.about,
            origin: origin.clone(),
        })
        .collect();
    let file = manifest.source.path().map(PathBuf::from);
    for (name, given) in &manifest.serve.models {
        let nothing = ServeModel::default();
        let entry = resolved.options.entries.get(name).unwrap_or(&nothing);
        for setting in MODEL_SETTINGS {
            let Some(found) = given.get(setting.name) else {
                continue;
            };
            rows.push(Row {
                name: format!("serve.model.{name}.{}", setting.name),
                value: setting.value(entry),
                otherwise: setting.otherwise.to_owned(),
                variable: None,
                about: setting.about,
                origin: Origin::Manifest {
                    file: file.clone(),
                    line: found.line,
                },
            });
        }
    }
    rows
}
