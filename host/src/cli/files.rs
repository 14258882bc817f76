//! `convert` and `show --check`: models as files.

use super::arguments::{Convert, Global, Show};
use super::progress::Bar;
use super::values::Bytes;
use super::{output, registry};
use crate::catalog::bytes_on_disk;
use crate::error::{Error, Result};
use crate::registry::ModelOptions;
use backplane_plugin_api::capability::ConvertOptions;
use serde_json::json;
use std::process::ExitCode;

pub(super) fn convert(global: &Global, verb: &Convert) -> Result<ExitCode> {
    let registry = registry(global)?;
    let destination = registry.folders().expand(&verb.destination);
    if destination.is_file() && !verb.force {
        return Err(Error::usage(
            format!("{}: there is a file already", destination.display()),
            "choose another name, or replace it with --force",
        ));
    }
    let mut options = ConvertOptions {
        // As where a model is loaded, `none` keeps what is stored.
        quantize: verb.quantize.clone().filter(|ty| ty != "none"),
        ..ConvertOptions::default()
    };
    if verb.force {
        options.extra.insert("replace".to_owned(), json!(true));
    }
    let mut bar = Bar::new(global)?;
    let backend = pinned(verb.backend.as_ref());
    let converted = registry.convert(&verb.source, &destination, &options, &backend, &mut bar);
    let converted = bar.end(converted)?;
    let mut report = converted.report;
    let stored = bytes_on_disk(&converted.path);
    if options.quantize.is_some() && report.bytes > stored && stored > 0 {
        report.notes.push(format!(
            "the file is larger than what it was made of: {} after {}",
            Bytes(report.bytes),
            Bytes(stored)
        ));
    }
    for note in &report.notes {
        output::notice(global, &output::visible(note));
    }
    if verb.json {
        output::json(&json!({
            "source": converted.path.display().to_string(),
            "destination": destination.display().to_string(),
            "tensors": report.tensors,
            "bytes": report.bytes,
            "notes": report.notes,
            "backend": converted.backend,
        }))?;
    } else {
        output::line(&format!(
            "{}: {} tensors, {}",
            destination.display(),
            report.tensors,
            Bytes(report.bytes)
        ))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Reads all weights and says what is wrong with them; then the exit code is that of an unusable model.
pub(super) fn check(global: &Global, verb: &Show) -> Result<ExitCode> {
    let registry = registry(global)?;
    let mut bar = Bar::new(global)?;
    let checked = registry.check(&verb.model, &pinned(verb.backend.as_ref()), &mut bar);
    let checked = bar.end(checked)?;
    if verb.json {
        output::json(&json!({
            "path": checked.path.display().to_string(),
            "backend": checked.backend,
            "findings": checked.findings,
        }))?;
    } else if checked.findings.is_empty() {
        output::line(&format!("{}: nothing is wrong", checked.path.display()))?;
    } else {
        for finding in &checked.findings {
            let line = match finding.tensor.as_str() {
                "" => finding.message.clone(),
                tensor => format!("{tensor}: {}", finding.message),
            };
            output::line(&output::visible(&line))?;
        }
    }
    match checked.findings.len() {
        0 => Ok(ExitCode::SUCCESS),
        count => Err(Error::ModelUnusable {
            message: format!(
                "{}: {count} finding{}",
                checked.path.display(),
                if count == 1 { "" } else { "s" }
            ),
            action: "get the file again, or choose another model".to_owned(),
            trace: None,
        }),
    }
}

fn pinned(backend: Option<&String>) -> ModelOptions {
    ModelOptions {
        backend: backend.cloned(),
        ..ModelOptions::default()
    }
}
