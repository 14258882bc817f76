//! Where in a directory a checkpoint is, and what a directory is that holds none.

use std::path::{Path, PathBuf};

use crate::error::{Error, shown};
use crate::map::{has_magic, io, is_safetensors_file};

const ONE: &str = "model.safetensors";
const INDEX: &str = "model.safetensors.index.json";
const INDEX_ENDING: &str = ".safetensors.index.json";
/// What a LoRA adapter's weights are called: no model.
const ADAPTER: &str = "adapter_model.safetensors";

/// What to open.
pub(super) enum Found {
    File(PathBuf),
    Index(PathBuf),
}

/// Finds the checkpoint at `path`.
pub(super) fn find(path: &Path) -> Result<Found, Error> {
    if std::fs::metadata(path)
        .map_err(|cause| io(path, cause))?
        .is_dir()
    {
        return find_in(path);
    }
    let name = name_of(path);
    if name.ends_with(".json") {
        return Ok(Found::Index(path.into()));
    }
    let Some(stem) = part_name(name) else {
        return Ok(Found::File(path.into()));
    };
    let index = path.with_file_name(format!("{stem}{INDEX_ENDING}"));
    if index.is_file() {
        return Ok(Found::Index(index));
    }
    Err(Error::Shard {
        path: path.into(),
        found: "one part of several by its name".into(),
        expected: format!("an index beside it, {}", name_of(&index)),
    })
}

fn find_in(directory: &Path) -> Result<Found, Error> {
    let one = directory.join(ONE);
    if one.is_file() {
        return Ok(Found::File(one));
    }
    let index = directory.join(INDEX);
    if index.is_file() {
        return Ok(Found::Index(index));
    }
    let names = names_in(directory)?;
    let ending = |ending: &str| -> Vec<&str> {
        let names = names.iter().map(|name| &**name);
        names.filter(|name| name.ends_with(ending)).collect()
    };
    let mut files = ending(".safetensors");
    files.retain(|name| *name != ADAPTER);
    match (&files[..], &ending(INDEX_ENDING)[..]) {
        (_, [index]) => Ok(Found::Index(directory.join(index))),
        ([file], []) if part_name(file).is_none() => Ok(Found::File(directory.join(file))),
        (files, indices) => Err(Error::NotSafetensors {
            path: directory.into(),
            found: describe(&names, files, indices),
            expected: "a directory with model.safetensors or model.safetensors.index.json",
        }),
    }
}

/// What a directory is that has no checkpoint, or more than one.
fn describe(names: &[String], files: &[&str], indices: &[&str]) -> String {
    if !indices.is_empty() {
        return format!("several indices: {}", list(indices));
    }
    if files.iter().any(|name| part_name(name).is_some()) {
        return format!("parts of a model without their index: {}", list(files));
    }
    if !files.is_empty() {
        return format!(
            "several safetensors files: {} (name one of them)",
            list(files)
        );
    }
    let having = |has: &dyn Fn(&str) -> bool| -> Vec<&str> {
        let names = names.iter().map(|name| &**name);
        names.filter(|name| has(name)).collect()
    };
    let gguf = having(&|name| name.ends_with(".gguf"));
    if !gguf.is_empty() {
        return format!(
            "a directory of GGUF files: {} (name one of them)",
            list(&gguf)
        );
    }
    let pytorch = having(&|name| {
        [".bin", ".pt", ".pth", ".ckpt"]
            .iter()
            .any(|end| name.ends_with(end))
    });
    if !pytorch.is_empty() {
        let pytorch = list(&pytorch);
        return format!("PyTorch checkpoints only: {pytorch} (convert them to safetensors)");
    }
    if names.iter().any(|name| name == ADAPTER) {
        return "a LoRA adapter only".into();
    }
    if names.iter().any(|name| name == "config.json") {
        return "a model's directory without weights (were they downloaded?)".into();
    }
    if names.is_empty() {
        return "an empty directory".into();
    }
    let names: Vec<&str> = names.iter().map(|name| &**name).collect();
    format!("a directory without weights: {}", list(&names))
}

/// The first few of some names.
fn list(names: &[&str]) -> String {
    const SHOWN: usize = 4;
    let mut text = names
        .iter()
        .take(SHOWN)
        .map(|name| shown(name))
        .collect::<Vec<_>>()
        .join(", ");
    if names.len() > SHOWN {
        text += &format!(" and {} more", names.len() - SHOWN);
    }
    text
}

/// The names of a directory's files, in order.
fn names_in(directory: &Path) -> Result<Vec<String>, Error> {
    let mut names = Vec::new();
    for entry in std::fs::read_dir(directory).map_err(|cause| io(directory, cause))? {
        let entry = entry.map_err(|cause| io(directory, cause))?;
        names.push(entry.file_name().to_string_lossy().into_owned());
    }
    names.sort();
    Ok(names)
}

pub(super) fn looks_like(path: &Path) -> bool {
    if path.is_dir() {
        return find_in(path).is_ok();
    }
    let name = name_of(path);
    path.is_file()
        && !has_magic(path)
        && (name.ends_with(INDEX_ENDING)
            || name.ends_with(".safetensors")
            || is_safetensors_file(path))
}

/// Splits `model-00001-of-00004.safetensors` at the number; `None` for another name.
fn part_name(name: &str) -> Option<&str> {
    let rest = name.strip_suffix(".safetensors")?;
    let (rest, count) = rest.rsplit_once("-of-")?;
    let (stem, number) = rest.rsplit_once('-')?;
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    (digits(number) && digits(count)).then_some(stem)
}

fn name_of(path: &Path) -> &str {
    path.file_name()
        .and_then(|name| name.to_str())
        .unwrap_or("")
}

/// The directory that a file lies in.
pub(super) fn parent(file: &Path) -> &Path {
    match file.parent() {
        Some(parent) if parent.as_os_str().is_empty() => Path::new("."),
        Some(parent) => parent,
        None => file,
    }
}
