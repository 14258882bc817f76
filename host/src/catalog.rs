//! Models on disk.
//!
//! A model is a GGUF file, or a folder with safetensors files. Of a model in shards only the first is listed. Hidden
//! folders are passed over; a folder is entered once, however many links lead to it. What a file really is, backends
//! say: nothing here reads one.

use crate::error::{Error, Result, plain};
use crate::folders::Folders;
use crate::nearest::suggestion;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// The catalogue folder of this machine: `BACKPLANE_MODELS`, else `models` in the user's data folder.
#[derive(Clone, Debug)]
pub struct Catalog {
    folder: Option<PathBuf>,
    folders: Folders,
}

impl Catalog {
    /// The catalogue of a user.
    pub fn new(folders: &Folders) -> Self {
        let folder = folders.models.as_ref().map(|path| folders.expand(path));
        let folder = folder.or_else(|| folders.data.as_ref().map(|data| data.join("models")));
        Self {
            folder,
            folders: folders.clone(),
        }
    }

    /// Its folder; `None` where there is neither a variable nor a home.
    pub fn folder(&self) -> Option<&Path> {
        self.folder.as_deref()
    }

    /// The path of a model: a path that exists, or a name in the catalogue, whatever its case.
    ///
    /// # Errors
    /// There is none; the error says where was looked and names the nearest. Several have the name.
    pub fn resolve(&self, model: &str) -> Result<PathBuf> {
        if model.trim().is_empty() {
            return Err(Error::ModelNotFound {
                message: "the model's name is empty".to_owned(),
                action: "give a path, or a name that `backplane models` lists".to_owned(),
            });
        }
        let path = self.folders.expand(Path::new(model));
        let trimmed = model.trim_end_matches(['/', '\\']);
        let bare = self
            .folders
            .expand(Path::new(if trimmed.is_empty() { model } else { trimmed }));
        for path in [path, bare.clone()] {
            match path.metadata() {
                Ok(_) => return Ok(bare_of(&path)),
                Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => {
                    return Err(Error::ModelNotFound {
                        message: format!("{}: {}", path.display(), plain(&error)),
                        action: "check its permissions".to_owned(),
                    });
                }
                Err(_) => {}
            }
            if path
                .symlink_metadata()
                .is_ok_and(|found| found.is_symlink())
            {
                return Err(Error::ModelNotFound {
                    message: format!("{}: a link that leads nowhere", path.display()),
                    action: "mend the link".to_owned(),
                });
            }
        }
        self.by_name(model, trimmed, &bare)
    }

    fn by_name(&self, model: &str, trimmed: &str, path: &Path) -> Result<PathBuf> {
        let Some(folder) = &self.folder else {
            return Err(not_found(
                model,
                "no such file, and there is no catalogue folder",
                "set BACKPLANE_MODELS",
            ));
        };
        let mut names: BTreeMap<String, PathBuf> = BTreeMap::new();
        let mut matches = BTreeSet::new();
        let wanted = trimmed.replace('\\', "/").to_lowercase();
        for found in scan(folder) {
            let relative = found
                .strip_prefix(folder)
                .unwrap_or(&found)
                .to_string_lossy()
                .replace('\\', "/");
            let name = model_name(&found);
            let without = relative
                .strip_suffix(".gguf")
                .unwrap_or(&relative)
                .to_owned();
            if [&name, &relative, &without]
                .iter()
                .any(|known| known.to_lowercase() == wanted)
                || found
                    .file_name()
                    .is_some_and(|file| file.to_string_lossy().to_lowercase() == wanted)
            {
                matches.insert(found.clone());
            }
            names.insert(name, found);
        }
        let mut matches = matches.into_iter();
        match (matches.next(), matches.len()) {
            (Some(only), 0) => return Ok(only),
            (Some(first), _) => {
                let all: Vec<String> = std::iter::once(first)
                    .chain(matches)
                    .map(|p| p.display().to_string())
                    .collect();
                return Err(Error::ModelNotFound {
                    message: format!(
                        "`{model}` is the name of {} models: {}",
                        all.len(),
                        all.join(", ")
                    ),
                    action: "give the path of one".to_owned(),
                });
            }
            (None, _) => {}
        }
        let where_ = folder.display();
        if trimmed.contains(['/', '\\']) || trimmed.starts_with(['~', '.']) {
            return Err(not_found(
                &path.display().to_string(),
                "no such file or folder",
                &format!("check the path, or give a name from the catalogue {where_}"),
            ));
        }
        let known = names.keys().map(String::as_str);
        let none = format!("give a path, or put a model into {where_}");
        Err(not_found(
            model,
            &format!("no such file, and no model of that name in the catalogue {where_}"),
            &suggestion(model, known, &none),
        ))
    }
}

fn not_found(model: &str, what: &str, action: &str) -> Error {
    Error::ModelNotFound {
        message: format!("{model}: {what}"),
        action: action.to_owned(),
    }
}

/// A path without a slash at its end, unless it is the root.
fn bare_of(path: &Path) -> PathBuf {
    path.components().collect()
}

/// The name by which a model is found: its file's name without `.gguf` and without the number of its shard.
pub fn model_name(path: &Path) -> String {
    let file = path
        .file_name()
        .unwrap_or_default()
        .to_string_lossy()
        .into_owned();
    let stem = file
        .strip_suffix(".gguf")
        .or_else(|| file.strip_suffix(".GGUF"))
        .unwrap_or(&file);
    match shard(stem) {
        Some((name, _)) => name.to_owned(),
        None => stem.to_owned(),
    }
}

/// `NAME-00002-of-00003` is the second shard of NAME.
fn shard(stem: &str) -> Option<(&str, u32)> {
    let (rest, total) = stem.rsplit_once("-of-")?;
    let (name, number) = rest.rsplit_once('-')?;
    let digits = |text: &str| text.len() == 5 && text.bytes().all(|byte| byte.is_ascii_digit());
    (digits(total) && digits(number) && !name.is_empty())
        .then(|| number.parse().ok().map(|n| (name, n)))?
}

/// Models under a folder (or the one file), as they are found: folder by folder, each in name order. Lazy.
pub fn scan(root: &Path) -> Scan {
    Scan {
        pending: vec![root.to_path_buf()],
        ready: Vec::new(),
        entered: BTreeSet::new(),
    }
}

/// The iterator of [`scan`].
#[derive(Debug)]
pub struct Scan {
    /// Folders still to be read, the next one last.
    pending: Vec<PathBuf>,
    /// Models found, the next one last.
    ready: Vec<PathBuf>,
    /// Real paths of folders entered.
    entered: BTreeSet<PathBuf>,
}

impl Iterator for Scan {
    type Item = PathBuf;

    fn next(&mut self) -> Option<PathBuf> {
        loop {
            if let Some(model) = self.ready.pop() {
                return Some(model);
            }
            let next = self.pending.pop()?;
            self.enter(&next);
        }
    }
}

impl Scan {
    fn enter(&mut self, path: &Path) {
        if path.is_file() {
            if has_extension(path, "gguf") {
                self.ready.push(path.to_path_buf());
            }
            return;
        }
        let Ok(real) = path.canonicalize() else {
            return;
        };
        if !self.entered.insert(real) {
            return;
        }
        let entries = match std::fs::read_dir(path) {
            Ok(entries) => entries,
            Err(error) => {
                tracing::warn!("{}: {}", path.display(), plain(&error));
                return;
            }
        };
        let mut paths: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
        paths.sort();
        let mut folders = Vec::new();
        let mut models = Vec::new();
        let mut shards: BTreeSet<String> = BTreeSet::new();
        let mut safetensors = false;
        for entry in paths {
            let name = entry
                .file_name()
                .unwrap_or_default()
                .to_string_lossy()
                .into_owned();
            if name.starts_with('.') {
                continue;
            }
            if entry.is_dir() {
                folders.push(entry);
            } else if has_extension(&entry, "gguf") {
                let stem = entry
                    .file_stem()
                    .unwrap_or_default()
                    .to_string_lossy()
                    .into_owned();
                // Names are in order, so the first shard that is there is the lowest.
                let first = shard(&stem).is_none_or(|(name, _)| shards.insert(name.to_owned()));
                if first {
                    models.push(entry);
                }
            } else if has_extension(&entry, "safetensors") {
                safetensors = true;
            }
        }
        if safetensors {
            models.insert(0, path.to_path_buf());
        }
        self.ready = models.into_iter().rev().collect();
        self.pending.extend(folders.into_iter().rev());
    }
}

fn has_extension(path: &Path, wanted: &str) -> bool {
    path.extension()
        .is_some_and(|found| found.eq_ignore_ascii_case(wanted))
}

/// What a file or folder is that no backend takes, in a few words.
pub(crate) fn describe(path: &Path) -> String {
    if path.is_dir() {
        let holds = |extension: &str| {
            let entries = std::fs::read_dir(path).into_iter().flatten().flatten();
            entries
                .filter(|entry| has_extension(&entry.path(), extension))
                .count()
        };
        return match (holds("safetensors"), holds("gguf")) {
            (0, 0) if holds("bin") + holds("pt") + holds("pth") > 0 => {
                "a folder with PyTorch files, expected safetensors".to_owned()
            }
            (0, 0) => "a folder without model files".to_owned(),
            (0, files) => format!("a folder with {files} GGUF files: name one of them"),
            (files, _) => format!("a folder with {files} safetensors files"),
        };
    }
    let mut start = [0_u8; 64];
    let read =
        std::fs::File::open(path).and_then(|mut file| std::io::Read::read(&mut file, &mut start));
    let start = match read {
        Ok(0) => return "an empty file".to_owned(),
        Ok(read) => &start[..read],
        Err(error) => return plain(&error),
    };
    const SIGNATURES: &[(&[u8], &str)] = &[
        (
            b"version https://git-lfs",
            "a Git LFS pointer: the model itself was not downloaded",
        ),
        (b"PK", "a zip archive"),
        (b"\x7fELF", "a program or library"),
        (b"<!DOCTYPE", "an HTML page"),
        (b"<html", "an HTML page"),
    ];
    if let Some((_, what)) = SIGNATURES
        .iter()
        .find(|(signature, _)| start.starts_with(signature))
    {
        return (*what).to_owned();
    }
    // A safetensors file begins with the length of its JSON header.
    if start.get(8) == Some(&b'{') {
        return "a safetensors file".to_owned();
    }
    let text = std::str::from_utf8(start).is_ok_and(|text| !text.contains('\0'));
    if text {
        "a text file".to_owned()
    } else {
        "a file of unknown format".to_owned()
    }
}

/// Bytes of a model on disk as far as the file system says: the file, or the weights files of the folder.
pub fn bytes_on_disk(path: &Path) -> u64 {
    if path.is_file() {
        return path.metadata().map_or(0, |found| found.len());
    }
    let entries = std::fs::read_dir(path)
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.path());
    entries
        .filter(|file| has_extension(file, "safetensors"))
        .filter_map(|f| f.metadata().ok())
        .map(|m| m.len())
        .sum()
}

#[cfg(test)]
mod tests;
