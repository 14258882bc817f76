//! `models` and `show`: what is on disk, as the backends say. No tensor data is read.

use super::arguments::{Global, Models, Show};
use super::values::{Bytes, Count};
use super::{output, registry};
use crate::catalog::{bytes_on_disk, model_name, scan};
use crate::error::{Error, Result};
use crate::registry::{ModelOptions, Registry};
use backplane_plugin_api::types::{self, ModelInfo};
use serde::Serialize;
use serde_json::json;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// A row of `models`.
#[derive(Serialize)]
struct Row {
    name: String,
    #[serde(serialize_with = "crate::lossy::path")]
    path: PathBuf,
    format: Option<String>,
    architecture: Option<String>,
    quantization: Option<String>,
    size_bytes: u64,
    parameters: Option<u64>,
    context_length: Option<u64>,
    /// Backends that can run it, in the order of preference.
    backends: Vec<String>,
    /// Why none can, or what is wrong with the file.
    problem: Option<String>,
}

type Answers = Vec<(String, std::result::Result<Option<ModelInfo>, types::Error>)>;

impl Row {
    fn new(path: PathBuf, answers: Answers) -> Self {
        let mut row = Self {
            name: model_name(&path),
            size_bytes: bytes_on_disk(&path),
            path,
            format: None,
            architecture: None,
            quantization: None,
            parameters: None,
            context_length: None,
            backends: Vec::new(),
            problem: None,
        };
        let mut problem = None;
        let none_available = answers.is_empty();
        for (backend, answer) in answers {
            match answer {
                Ok(None) => {}
                Ok(Some(info)) => {
                    match info.unsupported {
                        None => row.backends.push(backend),
                        Some(why) => problem = problem.or(Some(format!("{backend}: {why}"))),
                    }
                    if row.format.is_none() {
                        row.format = Some(info.format);
                        row.architecture = Some(info.architecture);
                        row.quantization = Some(info.quantization);
                        row.parameters = Some(info.parameters);
                        row.context_length = Some(info.context_length);
                        row.size_bytes = if info.file_bytes > 0 {
                            info.file_bytes
                        } else {
                            row.size_bytes
                        };
                    }
                }
                Err(error) => problem = problem.or(Some(format!("{backend}: {error}"))),
            }
        }
        if row.backends.is_empty() {
            let why = if none_available {
                "no backend is available"
            } else {
                "no available backend takes this format"
            };
            row.problem = problem.or(Some(why.to_owned()));
        }
        row
    }
}

fn table(rows: &[Row]) -> String {
    let text = |value: &Option<String>| value.clone().unwrap_or_else(|| "-".to_owned());
    let cells = rows.iter().map(|row| {
        let backends = if row.backends.is_empty() {
            "none".to_owned()
        } else {
            row.backends.join(", ")
        };
        vec![
            row.name.clone(),
            text(&row.architecture),
            text(&row.quantization),
            Bytes(row.size_bytes).to_string(),
            row.context_length
                .map_or("-".to_owned(), |context| context.to_string()),
            backends,
            row.path.display().to_string(),
        ]
    });
    output::table(
        &[
            "name",
            "architecture",
            "quantisation",
            "size",
            "context",
            "backends",
            "path",
        ],
        cells.collect(),
    )
}

pub(super) fn models(global: &Global, verb: &Models) -> Result<ExitCode> {
    let registry = registry(global)?;
    let roots: Vec<PathBuf> = if verb.folders.is_empty() {
        let action = "name a folder, or set BACKPLANE_MODELS";
        let catalog = registry.catalog();
        let folder = catalog
            .folder()
            .ok_or_else(|| Error::usage("there is no model folder", action))?;
        vec![folder.to_path_buf()]
    } else {
        verb.folders
            .iter()
            .map(|folder| registry.folders().expand(folder))
            .collect()
    };
    let mut rows = Vec::new();
    let mut seen = BTreeSet::new();
    for root in &roots {
        if let Err(error) = root.metadata() {
            if !verb.folders.is_empty() {
                return Err(Error::file(root, &error));
            }
            output::notice(
                global,
                &format!(
                    "the model folder {} is not there: make it, or name a folder",
                    root.display()
                ),
            );
        }
        for path in scan(root) {
            if seen.insert(path.canonicalize().unwrap_or_else(|_| path.clone())) {
                let answers = registry.inspect(&path);
                rows.push(Row::new(path, answers));
            }
        }
    }
    if verb.json {
        output::json(&json!({ "models": rows }))?;
        return Ok(ExitCode::SUCCESS);
    }
    if rows.is_empty() {
        let places: Vec<String> = roots
            .iter()
            .map(|root| root.display().to_string())
            .collect();
        output::notice(global, &format!("no models in {}", places.join(", ")));
    } else {
        output::line(&output::visible(&table(&rows)))?;
    }
    for row in &rows {
        if let Some(problem) = &row.problem {
            output::notice(
                global,
                &output::visible(&format!("{}: {problem}", row.path.display())),
            );
        }
    }
    Ok(ExitCode::SUCCESS)
}

pub(super) fn show(global: &Global, verb: &Show) -> Result<ExitCode> {
    let registry = registry(global)?;
    let options = ModelOptions {
        backend: verb.backend.clone(),
        ..ModelOptions::default()
    };
    let (path, options) = registry.meant(&verb.model, &options)?;
    let answers = answers(&registry, options.backend.as_deref(), &path)?;
    let takes: Vec<String> = answers
        .iter()
        .filter(|(_, answer)| matches!(answer, Ok(Some(info)) if info.unsupported.is_none()))
        .map(|(name, _)| name.clone())
        .collect();
    let mut broken = None;
    let mut info: Option<ModelInfo> = None;
    for (backend, answer) in answers {
        match answer {
            Ok(Some(found)) => {
                let better =
                    |old: &ModelInfo| old.unsupported.is_some() && found.unsupported.is_none();
                if info.as_ref().is_none_or(better) {
                    info = Some(found);
                }
            }
            Err(error) => broken = broken.or(Some(Error::Backend { backend, error })),
            Ok(None) => {}
        }
    }
    let Some(info) = info else {
        return Err(broken.unwrap_or_else(|| Error::ModelUnusable {
            message: format!(
                "{}: {}; no available backend takes this format",
                path.display(),
                crate::catalog::describe(&path)
            ),
            action: "see `backplane plugins explain MODEL`".to_owned(),
            trace: None,
        }));
    };
    if verb.json {
        let mut object = serde_json::to_value(&info).unwrap_or_default();
        object["backends"] = json!(takes);
        object["metadata"] = typed(&info.metadata);
        object["details"] = typed(&info.details);
        output::json(&object)?;
    } else {
        output::line(output::visible(&described(&info, &takes)).trim_end())?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Facts by name. Numbers, texts and truth values are what they are; long texts and arrays stay in the short form in which
/// backends give them.
fn typed(facts: &[(String, String)]) -> serde_json::Value {
    let value = |text: &String| serde_json::from_str(text).unwrap_or_else(|_| json!(text));
    facts
        .iter()
        .map(|(name, text)| (name.clone(), value(text)))
        .collect::<serde_json::Map<_, _>>()
        .into()
}

fn answers(registry: &Registry, backend: Option<&str>, path: &Path) -> Result<Answers> {
    let Some(name) = backend else {
        if registry.list().is_empty() {
            registry.default()?;
        }
        return Ok(registry.inspect(path));
    };
    let plugin = registry.get(name)?;
    let backend = plugin
        .backend()
        .filter(|_| plugin.verdict.is_available())
        .ok_or_else(|| {
            Error::usage(
                format!("`{}` can't be used: {}", plugin.name, plugin.verdict),
                "choose another backend",
            )
        })?;
    Ok(vec![(plugin.name.clone(), backend.inspect(path))])
}

fn described(info: &ModelInfo, takes: &[String]) -> String {
    let mut text = String::new();
    let mut fact = |name: &str, value: &str| text.push_str(&format!("{name:<16} {value}\n"));
    fact("name", &info.name);
    fact("path", &info.path.display().to_string());
    fact("format", &info.format);
    fact("architecture", &info.architecture);
    fact("quantisation", &info.quantization);
    fact("parameters", &Count(info.parameters).to_string());
    fact("size", &Bytes(info.file_bytes).to_string());
    fact("context", &format!("{} tokens", info.context_length));
    fact("vocabulary", &format!("{} tokens", info.vocabulary));
    fact(
        "backends",
        &if takes.is_empty() {
            "none".to_owned()
        } else {
            takes.join(", ")
        },
    );
    if let Some(why) = &info.unsupported {
        fact("unsupported", why);
    }
    for (name, value) in &info.details {
        fact(name, value);
    }
    for warning in &info.warnings {
        fact("warning", warning);
    }
    text.push_str("\nmetadata\n");
    for (name, value) in &info.metadata {
        text.push_str(&format!("  {name} = {value}\n"));
    }
    text.push_str("\nchat template\n");
    match &info.chat_template {
        Some(template) => template
            .lines()
            .for_each(|line| text.push_str(&format!("  {line}\n"))),
        None => text.push_str("  none\n"),
    }
    text.push_str(&format!("\ntensors ({})\n", info.tensors.len()));
    for tensor in &info.tensors {
        let shape: Vec<String> = tensor.shape.iter().map(u64::to_string).collect();
        let (name, storage) = (&tensor.name, &tensor.storage);
        text.push_str(&format!(
            "  {name:<40} {storage:<8} [{}]  {}\n",
            shape.join(", "),
            Bytes(tensor.bytes)
        ));
    }
    text
}
