//! `embed` and `inspect-attention`: what a model makes of a text, as numbers.

use super::arguments::{Embed, Global, InspectAttention};
use super::progress::Bar;
use super::run::text_of;
use super::{output, registry};
use crate::error::{Error, Result};
use backplane_plugin_api::capability::{AttentionRequest, AttentionState, EmbedRequest, Pooling};
use backplane_plugin_api::types::Prompt;
use safetensors::{Dtype, View};
use serde::Serialize;
use serde_json::json;
use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

pub(super) fn embed(global: &Global, verb: &Embed) -> Result<ExitCode> {
    let mut inputs: Vec<Prompt> = verb.texts.iter().map(Prompt::text).collect();
    if inputs.is_empty() || verb.texts == ["-"] {
        inputs = vec![Prompt::text(text_of(None, "TEXT")?)];
    }
    let mut bar = Bar::new(global)?;
    let options = verb
        .loading
        .options_for(backplane_plugin_api::capability::EMBED);
    let model = registry(global)?.load(&verb.model, &options)?;
    let request = EmbedRequest {
        inputs,
        pooling: verb.pooling.0,
        normalize: !verb.no_normalize,
        extra: BTreeMap::new(),
    };
    let answers = model.embed(&request, &mut bar);
    let answers = bar.end(answers)?;
    let mut failed = None;
    let (mut results, mut lines) = (Vec::new(), Vec::new());
    for answer in answers {
        results.push(match answer {
            Ok(embedding) => {
                let numbers = embedding.values.iter().map(ToString::to_string);
                lines.push(numbers.collect::<Vec<_>>().join(" "));
                Embedded::Vector {
                    embedding: embedding.values,
                    prompt_tokens: embedding.prompt_tokens,
                }
            }
            Err(error) => {
                lines.push(format!("error: {}", error.line()));
                let message = error.to_string();
                failed = failed.or(Some(error));
                Embedded::Refused { error: message }
            }
        });
    }
    if verb.json {
        output::json(&Embeddings {
            model: model.path().display().to_string(),
            backend: model.backend(),
            pooling: request.pooling,
            normalized: request.normalize,
            dimensions: results.iter().find_map(Embedded::dimensions),
            results,
        })?;
    } else {
        output::line(&lines.join("\n"))?;
    }
    failed.map_or(Ok(ExitCode::SUCCESS), Err)
}

/// The answer of `embed` as JSON. Not by way of a JSON value, so that numbers are as short as `f32` has them.
#[derive(Serialize)]
struct Embeddings<'a> {
    model: String,
    backend: &'a str,
    pooling: Pooling,
    normalized: bool,
    /// `None` where every text was refused.
    dimensions: Option<usize>,
    results: Vec<Embedded>,
}

/// The answer for one text.
#[derive(Serialize)]
#[serde(untagged)]
enum Embedded {
    Vector {
        embedding: Vec<f32>,
        prompt_tokens: u64,
    },
    Refused {
        error: String,
    },
}

impl Embedded {
    fn dimensions(&self) -> Option<usize> {
        match self {
            Self::Vector { embedding, .. } => Some(embedding.len()),
            Self::Refused { .. } => None,
        }
    }
}

pub(super) fn inspect_attention(global: &Global, verb: &InspectAttention) -> Result<ExitCode> {
    let registry = registry(global)?;
    let out = registry.folders().expand(&verb.out);
    let destination = Destination::of(&out, verb.force)?;
    let prompt = if verb.tokens.is_empty() {
        Prompt::Text {
            text: text_of(verb.prompt.as_deref(), "PROMPT")?,
            special: true,
        }
    } else {
        Prompt::Tokens(verb.tokens.clone())
    };
    let mut bar = Bar::new(global)?;
    let options = verb
        .loading
        .options_for(backplane_plugin_api::capability::ATTENTION);
    let model = registry.load(&verb.model, &options)?;
    let request = AttentionRequest {
        prompt,
        layers: (!verb.layers.is_empty()).then(|| verb.layers.clone()),
        extra: BTreeMap::new(),
    };
    let state = model.inspect_attention(&request, &mut bar);
    let state = bar.end(state)?;
    let info = model.info();
    let metadata = HashMap::from(
        [
            ("producer", "backplane".to_owned()),
            ("model", info.name),
            ("architecture", info.architecture),
            ("backend", model.backend().to_owned()),
            ("layout", "[heads, positions, head_dim]".to_owned()),
        ]
        .map(|(name, value)| (name.to_owned(), value)),
    );
    destination.write(&state, metadata)?;
    let layers = state.layers.len();
    let positions = state.tokens.len();
    if verb.json {
        let shapes: Vec<_> = state
            .layers
            .iter()
            .map(|layer| {
                json!({
                    "layer": layer.layer,
                    "heads": layer.heads,
                    "kv_heads": layer.kv_heads,
                    "head_dim": layer.head_dim,
                })
            })
            .collect();
        output::json(&json!({
            "model": model.path().display().to_string(),
            "backend": model.backend(),
            "file": out.display().to_string(),
            "tokens": state.tokens,
            "layers": shapes,
        }))?;
    } else {
        output::line(&format!(
            "{}: queries and keys of {positions} positions in {layers} layers",
            out.display()
        ))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Where a file is to come: beside it first, so that it is there whole or not at all.
struct Destination {
    path: PathBuf,
    /// What is written, and moved to `path`; the same where that is a device or a pipe.
    partial: PathBuf,
}

impl Destination {
    /// Checks, before anything is computed, that a file may come there.
    fn of(path: &Path, force: bool) -> Result<Self> {
        let special = match path.metadata() {
            Ok(found) if found.is_dir() => {
                return Err(Error::usage(
                    format!("{}: a folder, expected the name of a file", path.display()),
                    "name a file in it",
                ));
            }
            Ok(found) if found.is_file() && !force => {
                return Err(Error::usage(
                    format!("{}: there is a file already", path.display()),
                    "choose another name, or replace it with --force",
                ));
            }
            Ok(found) => !found.is_file(),
            Err(_) => false,
        };
        let folder = match path.parent() {
            Some(folder) if !folder.as_os_str().is_empty() => folder,
            _ => Path::new("."),
        };
        if !folder.is_dir() {
            return Err(Error::usage(
                format!("{}: no such folder", folder.display()),
                "make it, or choose another one",
            ));
        }
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let partial = match special {
            true => path.to_owned(),
            false => folder.join(format!(".{name}.partial-{}", std::process::id())),
        };
        Ok(Self {
            path: path.to_owned(),
            partial,
        })
    }

    fn write(&self, state: &AttentionState, metadata: HashMap<String, String>) -> Result<()> {
        let positions = state.tokens.len();
        let tokens = Numbers {
            values: Values::Tokens(&state.tokens),
            shape: vec![positions],
        };
        let mut tensors = vec![("tokens".to_owned(), tokens)];
        for layer in &state.layers {
            for (name, values, heads) in [
                ("queries", &layer.queries, layer.heads),
                ("keys", &layer.keys, layer.kv_heads),
            ] {
                let numbers = Numbers {
                    values: Values::Floats(values),
                    shape: vec![heads as usize, positions, layer.head_dim as usize],
                };
                tensors.push((format!("layers.{}.{name}", layer.layer), numbers));
            }
        }
        let bytes = safetensors::serialize(tensors, Some(metadata))
            .map_err(|error| Error::usage(format!("{}: {error}", self.path.display()), ""))?;
        let written = std::fs::write(&self.partial, bytes)
            .and_then(|()| match self.partial == self.path {
                true => Ok(()),
                false => std::fs::rename(&self.partial, &self.path),
            })
            .map_err(|error| Error::file(&self.path, &error));
        if written.is_err() && self.partial != self.path {
            let _ = std::fs::remove_file(&self.partial);
        }
        written
    }
}

/// A tensor of the file.
struct Numbers<'a> {
    values: Values<'a>,
    shape: Vec<usize>,
}

enum Values<'a> {
    Tokens(&'a [u32]),
    Floats(&'a [f32]),
}

impl View for Numbers<'_> {
    fn dtype(&self) -> Dtype {
        match self.values {
            // Every reader knows this one.
            Values::Tokens(_) => Dtype::I64,
            Values::Floats(_) => Dtype::F32,
        }
    }

    fn shape(&self) -> &[usize] {
        &self.shape
    }

    fn data(&self) -> Cow<'_, [u8]> {
        match self.values {
            Values::Tokens(tokens) => {
                let wide = tokens.iter().map(|&token| i64::from(token));
                wide.flat_map(i64::to_le_bytes).collect()
            }
            Values::Floats(values) => values
                .iter()
                .flat_map(|value| value.to_le_bytes())
                .collect(),
        }
    }

    fn data_len(&self) -> usize {
        match self.values {
            Values::Tokens(tokens) => size_of_val(tokens) * 2,
            Values::Floats(values) => size_of_val(values),
        }
    }
}
