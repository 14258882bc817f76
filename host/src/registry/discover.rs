//! Which module files there are. Opens none of them.

use crate::manifest::{DEFAULT_ORDER, Manifest, PluginEntry, normal_name};
use crate::module_copy::ModuleCopy;
use crate::nearest::nearest;
use backplane_plugin_api::types::{Verdict, VerdictState};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// A module file, or the name of one that is missing.
#[derive(Clone, Debug)]
pub(crate) struct Found {
    /// The name that its entry or file gives it.
    pub(crate) name: String,
    /// The file.
    pub(crate) path: Option<PathBuf>,
    /// Set where it is not to be opened.
    pub(crate) verdict: Option<Verdict>,
    /// What is opened instead of the file itself: a copy, which later changes don't reach.
    pub(super) copy: Option<ModuleCopy>,
    /// Whether it runs in a worker whatever its entry says.
    pub(super) in_worker: bool,
}

/// Module files in the order in which duplicates are decided: explicit paths, then the directories in order, each in
/// the order of file names; then the names that have no module.
pub(crate) fn discover(manifest: &Manifest) -> Vec<Found> {
    let mut found: Vec<Found> = Vec::new();
    for entry in manifest.plugins.values() {
        if let Some(path) = &entry.path {
            let verdict = (!entry.enabled).then(|| disabled(&entry.name, manifest));
            found.push(Found {
                name: entry.name.clone(),
                path: Some(path.clone()),
                verdict,
                copy: None,
                in_worker: false,
            });
        }
    }
    let mut seen: BTreeSet<PathBuf> = found
        .iter()
        .filter_map(|found| found.path.as_deref())
        .map(real)
        .collect();
    for directory in &manifest.directories {
        for path in modules(directory, manifest.directories_named) {
            let Some(name) = module_name(&path) else {
                continue;
            };
            let entry = manifest.plugin(&name);
            if !seen.insert(real(&path)) || (entry.is_none() && !manifest.discover) {
                continue;
            }
            let verdict = entry.and_then(|entry| match &entry.path {
                _ if !entry.enabled => Some(disabled(&name, manifest)),
                // The entry means that very module, also where it can't be used.
                Some(path) => Some(elsewhere(&name, path)),
                None => None,
            });
            found.push(Found {
                name,
                path: Some(path),
                verdict,
                copy: None,
                in_worker: false,
            });
        }
    }
    let mut missing: Vec<&str> = manifest.plugins.keys().map(String::as_str).collect();
    missing.extend(
        manifest
            .order
            .iter()
            .map(String::as_str)
            .filter(|name| *name != "*"),
    );
    let installed: Vec<String> = found.iter().map(|found| found.name.clone()).collect();
    for name in missing {
        if found.iter().any(|found| found.name == name) {
            continue;
        }
        let off = manifest.plugin(name).is_some_and(|entry| !entry.enabled);
        let verdict = if off {
            disabled(name, manifest)
        } else {
            not_installed(name, manifest, &installed)
        };
        found.push(Found {
            name: name.to_owned(),
            path: None,
            verdict: Some(verdict),
            copy: None,
            in_worker: false,
        });
    }
    found
}

/// The file itself, by whatever links it is reached.
fn real(path: &Path) -> PathBuf {
    path.canonicalize().unwrap_or_else(|_| path.to_path_buf())
}

/// Files that are named like modules, by file name. A folder that can't be read has none, and the log says why.
fn modules(directory: &Path, stated: bool) -> Vec<PathBuf> {
    let entries = match std::fs::read_dir(directory) {
        Ok(entries) => entries,
        Err(error) => {
            let why = crate::error::plain(&error);
            if stated {
                tracing::warn!("plugin directory {}: {why}", directory.display());
            } else {
                tracing::debug!("{}: {why}", directory.display());
            }
            return Vec::new();
        }
    };
    let mut paths: Vec<PathBuf> = entries
        .flatten()
        .map(|entry| entry.path())
        .filter(|path| module_name(path).is_some())
        .collect();
    paths.sort();
    paths
}

/// The plugin name that a file name stands for: `NAME`, `libNAME` or `libbackplane_NAME`, with `.so`, `.dylib`, `.dll`.
pub(crate) fn module_name(path: &Path) -> Option<String> {
    let extension = path.extension()?.to_str()?;
    if !["so", "dylib", "dll"]
        .iter()
        .any(|known| extension.eq_ignore_ascii_case(known))
    {
        return None;
    }
    let stem = normal_name(path.file_stem()?.to_str()?);
    let stem = stem.strip_prefix("lib").unwrap_or(&stem);
    let name = stem.strip_prefix("backplane_").unwrap_or(stem);
    (!name.is_empty()).then(|| name.to_owned())
}

fn elsewhere(name: &str, path: &Path) -> Verdict {
    let message = format!("not opened: [plugin.{name}] names {}", path.display());
    Verdict::unavailable(
        VerdictState::Disabled,
        message,
        "remove one of the two modules",
    )
}

pub(super) fn disabled(name: &str, manifest: &Manifest) -> Verdict {
    let place = manifest
        .source
        .path()
        .map_or("the manifest".to_owned(), |path| path.display().to_string());
    let action = format!("set enabled = true in [plugin.{name}] of {place}");
    Verdict::unavailable(
        VerdictState::Disabled,
        "switched off in the manifest; not opened",
        action,
    )
}

/// The verdict on a name without a module. One that is nearly the name of a plugin that is installed, or of one that the
/// default order knows, was most likely meant for it.
fn not_installed(name: &str, manifest: &Manifest, installed: &[String]) -> Verdict {
    let places: Vec<String> = manifest
        .directories
        .iter()
        .map(|folder| folder.display().to_string())
        .collect();
    let places = if places.is_empty() {
        "no directory is named".to_owned()
    } else {
        places.join(", ")
    };
    let message = format!("no module of that name was found in: {places}");
    let usual = || DEFAULT_ORDER.iter().copied().filter(|name| *name != "*");
    let known = installed.iter().map(String::as_str).chain(usual());
    let meant = nearest(name, known).filter(|_| !usual().any(|usual| usual == name));
    let action = match meant {
        Some(meant) => {
            let place = &manifest.source;
            tracing::warn!("{place}: no plugin is named `{name}`; did you mean `{meant}`?");
            format!("did you mean `{meant}`?")
        }
        None => "put the module there, or name it by `path` in the manifest".to_owned(),
    };
    Verdict::unavailable(VerdictState::Absent, message, action)
}

/// The verdict on a module whose own name is not that of its file or entry, where the manifest says something about
/// either name that could not be heeded.
pub(super) fn misnamed(name: &str, found: &Found, manifest: &Manifest) -> Option<Verdict> {
    let by_entry = manifest.plugin(&found.name).is_some();
    let heeded = |entry: &PluginEntry| entry.sha256.is_none() && entry.options.is_empty();
    match manifest.plugin(name) {
        Some(entry) if !entry.enabled => {
            let message = format!(
                "switched off in the manifest; opened only since its file name says `{}`",
                found.name
            );
            let action = format!("name the file `{name}` or remove it");
            Some(Verdict::unavailable(
                VerdictState::Disabled,
                message,
                action,
            ))
        }
        Some(entry) if !heeded(entry) => {
            let message = format!(
                "this module is the plugin `{name}`, but its file name says `{}`",
                found.name
            );
            let action =
                format!("name the file by `path` in [plugin.{name}], so that its entry is heeded");
            Some(Verdict::unavailable(
                VerdictState::Misconfigured,
                message,
                action,
            ))
        }
        _ if by_entry => {
            let message = format!(
                "[plugin.{}] leads to a module that is the plugin `{name}`",
                found.name
            );
            let action = format!("rename the entry to [plugin.{name}]");
            Some(Verdict::unavailable(
                VerdictState::Misconfigured,
                message,
                action,
            ))
        }
        _ => None,
    }
}
