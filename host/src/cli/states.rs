//! `embed` and `inspect-attention`: what a model makes of a text, as numbers.

use super::arguments::{Embed, Global, InspectAttention};
use super::progress::Bar;
use super::run::text_of;
use super::{output, registry};
use crate::error::{Error, Result};
use backplane_plugin_api::capability::{AttentionRequest, AttentionState, EmbedRequest, Pooling};
use backplane_plugin_api::types::Prompt;
use serde::Serialize;
use serde_json::{Value, json};
use std::collections::BTreeMap;
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
    let mut failed: Option<Error> = None;
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
                // Standard output keeps a place for each text.
                lines.push("-".to_owned());
                let message = error.to_string();
                if let Some(earlier) = failed.replace(error) {
                    output::error(global, &earlier);
                }
                Embedded::Refused { error: message }
            }
        });
    }
    if verb.json {
        output::json(&Embeddings {
            model: model.path().display().to_string(),
            backend: &model.backend(),
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
    let options = verb
        .loading
        .options_for(backplane_plugin_api::capability::ATTENTION);
    let own = own_files(&registry.meant(&verb.model, &options)?.0);
    let destination = Destination::of(&out, verb.force, &own)?;
    let prompt = if verb.tokens.is_empty() {
        Prompt::Text {
            text: text_of(verb.prompt.as_deref(), "PROMPT")?,
            special: true,
        }
    } else {
        Prompt::Tokens(verb.tokens.clone())
    };
    let mut bar = Bar::new(global)?;
    let model = registry.load(&verb.model, &options)?;
    let request = AttentionRequest {
        prompt,
        layers: (!verb.layers.is_empty()).then(|| verb.layers.clone()),
        extra: BTreeMap::new(),
    };
    let state = model.inspect_attention(&request, &mut bar);
    let state = bar.end(state)?;
    let info = model.info();
    let pairs = info.details.iter().find(|(name, _)| name == "rope_pairs");
    destination.write(
        &state,
        json!({
            "producer": "backplane",
            "model": info.name,
            "architecture": info.architecture,
            "backend": model.backend(),
            "layout": "[heads, positions, head_dim]",
            "rope_pairs": pairs.map_or("", |(_, pairs)| pairs),
        }),
    )?;
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
        let told = json!({
            "model": model.path().display().to_string(),
            "backend": model.backend(),
            "file": out.display().to_string(),
            "tokens": state.tokens,
            "layers": shapes,
        });
        destination.tell(&format!("{told:#}"))?;
    } else {
        destination.tell(&format!(
            "{}: queries and keys of {positions} positions in {layers} layers",
            out.display()
        ))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// The files of a model at this path, by their places: the folder's, or the file with its shards.
fn own_files(model: &Path) -> Vec<PathBuf> {
    let name = |path: &Path| path.file_name().map(|it| it.to_string_lossy().into_owned());
    let hub = ["safetensors", "json"].map(|ending| Some(ending.as_ref()));
    let folder = match model.parent() {
        _ if model.is_dir() => model,
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    };
    // NAME-00001-of-00003.gguf
    let shard = |path: &Path| {
        let name = name(path)?;
        let (rest, count) = name.rsplit_once("-of-")?;
        let (stem, _) = rest.rsplit_once('-')?;
        Some((stem.to_owned(), count.to_owned()))
    };
    let whole = model.is_dir() || hub.contains(&model.extension());
    let shards = shard(model);
    let entries = folder.read_dir().into_iter().flatten().flatten();
    let others = entries
        .map(|entry| entry.path())
        .filter(|path| whole || shards.is_some() && shard(path) == shards);
    let files = others.chain([model.to_owned()]);
    files.filter_map(|path| path.canonicalize().ok()).collect()
}

/// Whether what is at a path is written to as it is, whatever kind of file that may be: a name for an open file, as
/// `/dev/stdout` is.
fn names_open_file(path: &Path) -> bool {
    let folder = path.parent().and_then(|folder| folder.canonicalize().ok());
    cfg!(unix)
        && folder.is_some_and(|folder| folder == Path::new("/dev") || folder.starts_with("/proc"))
}

/// Where a file is to come: beside it first, so that it is there whole or not at all.
struct Destination {
    path: PathBuf,
    /// What is written, and moved to `path`; the same where that is a device or a pipe.
    partial: PathBuf,
}

impl Destination {
    /// Checks, before anything is computed, that a file may come there.
    fn of(path: &Path, force: bool, own: &[PathBuf]) -> Result<Self> {
        if path.canonicalize().is_ok_and(|place| own.contains(&place)) && !path.is_dir() {
            return Err(Error::usage(
                format!("{}: a file of the model itself", path.display()),
                "choose another name",
            ));
        }
        let special = match path.metadata() {
            Ok(_) if names_open_file(path) => true,
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
        // Not all of a long name: file systems have names of 255 bytes.
        let name = &name[..name.floor_char_boundary(128)];
        let partial = match special {
            true => path.to_owned(),
            false => folder.join(format!(".{name}.partial-{}", std::process::id())),
        };
        Ok(Self {
            path: path.to_owned(),
            partial,
        })
    }

    /// A line about the file, for people or scripts: on standard output, unless that may be where the file went.
    fn tell(&self, text: &str) -> Result<()> {
        if self.partial == self.path {
            output::error_line(text);
            return Ok(());
        }
        output::line(text)
    }

    /// The same bytes each time, for the same state and metadata.
    fn write(&self, state: &AttentionState, metadata: Value) -> Result<()> {
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
        let written = std::fs::write(&self.partial, safetensors(&tensors, metadata))
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

/// A safetensors file. Its header is in the order of the names, where the crate's own has the metadata in any.
fn safetensors(tensors: &[(String, Numbers<'_>)], metadata: Value) -> Vec<u8> {
    let mut header = BTreeMap::from([("__metadata__", metadata)]);
    let mut end = 0;
    for (name, numbers) in tensors {
        let begin = end;
        end += numbers.bytes();
        let entry = json!({
            "dtype": numbers.dtype(),
            "shape": numbers.shape,
            "data_offsets": [begin, end],
        });
        header.insert(name, entry);
    }
    let mut header = json!(header).to_string();
    // The tokens come first and are wide, so that all lie as their types want.
    header.push_str(&" ".repeat(header.len().next_multiple_of(8) - header.len()));
    let mut file = Vec::with_capacity(8 + header.len() + end);
    file.extend((header.len() as u64).to_le_bytes());
    file.extend(header.bytes());
    for (_, numbers) in tensors {
        match numbers.values {
            Values::Tokens(tokens) => {
                let wide = tokens.iter().map(|&token| i64::from(token));
                file.extend(wide.flat_map(i64::to_le_bytes));
            }
            Values::Floats(values) => {
                file.extend(values.iter().flat_map(|value| value.to_le_bytes()));
            }
        }
    }
    file
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

impl Numbers<'_> {
    fn dtype(&self) -> &'static str {
        match self.values {
            // Every reader knows this one.
            Values::Tokens(_) => "I64",
            Values::Floats(_) => "F32",
        }
    }

    fn bytes(&self) -> usize {
        match self.values {
            Values::Tokens(tokens) => size_of_val(tokens) * 2,
            Values::Floats(values) => size_of_val(values),
        }
    }
}
