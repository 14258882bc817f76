//! `plugins.toml`: which plugins, in which order of preference, with which options.
//!
//! ```toml
//! directories = ["plugins"]        # searched for modules; relative to the manifest. Default: ["plugins"]
//! order = ["metal", "rocm", "cuda", "sycl", "llama_cpp", "*"]   # preference; "*" is any other, in name order. This is the default
//! fallback = "warn"                # deny | warn | allow. Default: warn
//! discover = true                  # modules in the directories appear without an entry. Default: true
//! context = 4096                   # tokens; a model's own context is used up to this. Default: 4096
//!
//! [plugin.cpu]
//! enabled = true                   # false: its module is never opened. Default: true
//! path = "plugins/cpu.so"          # relative to the manifest. Default: found by its name in the directories
//! sha256 = "…"                     # 64 hexadecimal digits: only this very file is opened
//! isolation = "in-process"         # or "process": it runs in a process of its own. Default: process for GPUs, else in-process
//! watchdog = "60s"                 # with isolation = "process": when its calls count as hung; "off" never. See Watchdog
//! memory_limit = "8GiB"            # with isolation = "process", on Linux: most memory, mapped files not counted. Default: none
//! [plugin.cpu.options]             # the plugin's own options; it refuses those it does not know
//! threads = 2
//! [serve]                          # the server's settings: see SETTINGS
//! port = 8080
//! [serve.model.small]              # and what holds for one model: see MODEL_SETTINGS
//! ```
//!
//! Names of plugins are compared without regard to case, and `-` is `_`. An unknown key is an error that names its
//! line and the nearest known key.
//!
//! Invariant: nothing here opens a module.

mod limits;
mod locate;
mod parse;
mod serve;

pub use limits::{Bytes, Limit, Watchdog};
pub use locate::{Source, locate};
pub use serve::{
    Given, KeepAlive, Kind, MODEL_SETTINGS, MemoryBudget, MetricsFor, SETTINGS, ServeEntry,
    ServeModel, ServeOptions, Setting, VARIABLES, Value,
};

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};

/// What happens when a preferred backend is there but can't be used, and a later one in the order could.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Fallback {
    /// An error.
    Deny,
    /// The later one is used, and the user is told.
    #[default]
    Warn,
    /// The later one is used; the trace and the reply's metadata say so.
    Allow,
}

impl Fallback {
    /// Every policy with its word.
    pub const ALL: &'static [(Self, &'static str)] = &[
        (Self::Deny, "deny"),
        (Self::Warn, "warn"),
        (Self::Allow, "allow"),
    ];
}

impl fmt::Display for Fallback {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(
            Self::ALL
                .iter()
                .find(|(policy, _)| policy == self)
                .map_or("", |(_, word)| word),
        )
    }
}

/// Where a plugin runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Isolation {
    /// In the host's process, once a worker has opened and probed it without harm.
    #[default]
    InProcess,
    /// In a worker, whose crash is an error and nothing else; see [`worker`](crate::worker).
    Process,
}

impl Isolation {
    /// Every kind with its word.
    pub const ALL: &'static [(Self, &'static str)] =
        &[(Self::InProcess, "in-process"), (Self::Process, "process")];
}

impl fmt::Display for Isolation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let known = Self::ALL.iter().find(|(isolation, _)| isolation == self);
        f.pad(known.map_or("", |(_, word)| word))
    }
}

/// The order of preference where a manifest states none.
pub const DEFAULT_ORDER: &[&str] = &["metal", "rocm", "cuda", "sycl", "llama_cpp", "*"];
/// The cap on context where a manifest states none, in tokens.
pub const DEFAULT_CONTEXT: u32 = 4096;
/// The folder of modules, beside the manifest or the executable, where a manifest states none.
pub const DEFAULT_DIRECTORY: &str = "plugins";

/// One plugin's entry.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PluginEntry {
    /// Its name, normalised by [`normal_name`].
    pub name: String,
    /// False: never opened.
    pub enabled: bool,
    /// Its module, absolute; else it is looked for by name in the directories.
    #[serde(serialize_with = "crate::lossy::option")]
    pub path: Option<PathBuf>,
    /// SHA-256 of the module, lower-case hexadecimal.
    pub sha256: Option<String>,
    /// Where it runs; where nothing is said, plugins of graphics processors run in a process, others in the host's.
    pub isolation: Option<Isolation>,
    /// When its calls count as hung, where it runs in a process.
    pub watchdog: Option<Watchdog>,
    /// Most memory of its process and that of its children, in bytes, mapped files not counted.
    pub memory_limit: Option<Bytes>,
    /// Its own options.
    pub options: BTreeMap<String, serde_json::Value>,
}

impl PluginEntry {
    /// An entry that says nothing.
    pub fn new(name: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            enabled: true,
            path: None,
            sha256: None,
            isolation: None,
            watchdog: None,
            memory_limit: None,
            options: BTreeMap::new(),
        }
    }
}

/// A manifest, checked, with every path absolute.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Manifest {
    /// Where it came from.
    pub source: Source,
    /// Folders searched for modules, in order.
    #[serde(serialize_with = "crate::lossy::list")]
    pub directories: Vec<PathBuf>,
    /// Whether the manifest itself names them: one that is missing is then warned of.
    pub directories_named: bool,
    /// Names in order of preference; `*` is any other.
    pub order: Vec<String>,
    /// What happens when a preferred backend can't be used.
    pub fallback: Fallback,
    /// Whether modules appear without an entry.
    pub discover: bool,
    /// Cap on the context where the caller states none, in tokens.
    pub context: u32,
    /// Entries by name.
    pub plugins: BTreeMap<String, PluginEntry>,
    /// Settings of the server.
    pub serve: ServeEntry,
}

impl Manifest {
    /// The defaults, with modules looked for in `directories`.
    pub fn with_directories(source: Source, directories: Vec<PathBuf>) -> Self {
        Self {
            source,
            directories,
            directories_named: false,
            order: DEFAULT_ORDER.iter().map(|&name| name.to_owned()).collect(),
            fallback: Fallback::default(),
            discover: true,
            context: DEFAULT_CONTEXT,
            plugins: BTreeMap::new(),
            serve: ServeEntry::default(),
        }
    }

    /// Reads a manifest file.
    ///
    /// # Errors
    /// It can't be read, or something in it is wrong; the error names the line.
    pub fn read(path: &Path, source: fn(PathBuf) -> Source) -> Result<Self, ManifestError> {
        let text = std::fs::read_to_string(path).map_err(|error| ManifestError {
            path: path.to_path_buf(),
            line: 0,
            column: 0,
            message: format!("manifest can't be read: {}", crate::error::plain(&error)),
            action: "check the path and its permissions".to_owned(),
        })?;
        let absolute = std::path::absolute(path).unwrap_or_else(|_| path.to_path_buf());
        Self::parse(&text, &absolute, source)
    }

    /// Reads a manifest from its text; `path` is where it stands, for messages and relative paths.
    ///
    /// # Errors
    /// Something in it is wrong; the error names the line.
    pub fn parse(
        text: &str,
        path: &Path,
        source: fn(PathBuf) -> Source,
    ) -> Result<Self, ManifestError> {
        parse::parse(text, path, source(path.to_path_buf()))
    }

    /// The entry of a plugin, whatever the case of its name.
    pub fn plugin(&self, name: &str) -> Option<&PluginEntry> {
        self.plugins.get(&normal_name(name))
    }
}

/// A plugin's name as it is compared: lower case, `-` as `_`.
pub fn normal_name(name: &str) -> String {
    name.trim().to_lowercase().replace('-', "_")
}

/// What is wrong in a manifest, and where.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct ManifestError {
    /// The file.
    pub path: PathBuf,
    /// Line from 1; 0 where the file as a whole is meant.
    pub line: usize,
    /// Column from 1, in characters.
    pub column: usize,
    /// What was found and what was expected.
    pub message: String,
    /// What to do.
    pub action: String,
}

impl fmt::Display for ManifestError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.line == 0 {
            write!(f, "{}: {}", self.path.display(), self.message)
        } else {
            write!(
                f,
                "{}:{}:{}: {}",
                self.path.display(),
                self.line,
                self.column,
                self.message
            )
        }
    }
}

#[cfg(test)]
mod tests;
