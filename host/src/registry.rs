//! The plugins of this process: found, opened once, asked, and models loaded through them.
//!
//! Of two modules with one plugin name, the one that the manifest gives an explicit `path` wins; else the one of the
//! earlier directory; else the one whose file name comes first. The loser is listed with the verdict `disabled`.

mod discover;
mod files;
mod model;
mod plugin;
mod reference;

#[cfg(feature = "cli")]
pub(crate) use discover::{discover, module_name};
pub use files::{Checked, Converted};
pub use model::{Model, ModelOptions, Reply};
pub use plugin::{Plugin, PluginKind};

use crate::catalog::Catalog;
use crate::error::{Error, Result};
use crate::folders::Folders;
use crate::manifest::{Fallback, Manifest, locate, normal_name};
use crate::nearest::suggestion;
use crate::selection::{Attempt, Candidate, Failure, Trace, choose};
use backplane_plugin_api::sdk::Backend;
use backplane_plugin_api::types::{self, DeviceInfo, ErrorCode, ModelInfo};
use std::path::Path;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Instant;

/// What a backend says of a file.
pub type Inspection = std::result::Result<Option<ModelInfo>, types::Error>;

/// The plugins of a manifest, and those that the embedding program registers. Nothing is opened before it is needed;
/// each module is opened and asked once. Shared freely between threads.
#[derive(Debug)]
pub struct Registry {
    manifest: Manifest,
    folders: Folders,
    registered: Mutex<Vec<Plugin>>,
    found: OnceLock<Vec<Plugin>>,
}

impl Registry {
    /// The registry of a manifest; `None` finds the manifest as [`locate`] says.
    ///
    /// # Errors
    /// The manifest can't be read or is wrong.
    pub fn open<'a>(manifest: impl Into<Option<&'a Path>>) -> Result<Self> {
        let folders = Folders::from_environment();
        let manifest = locate(manifest.into(), &folders)?;
        Ok(Self::new(manifest, folders))
    }

    /// The registry of a manifest that is already in memory.
    pub fn new(manifest: Manifest, folders: Folders) -> Self {
        Self {
            manifest,
            folders,
            registered: Mutex::new(Vec::new()),
            found: OnceLock::new(),
        }
    }

    /// The manifest in force.
    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// The folders in use.
    pub fn folders(&self) -> &Folders {
        &self.folders
    }

    /// The models on this machine.
    pub fn catalog(&self) -> Catalog {
        Catalog::new(&self.folders)
    }

    /// Adds a backend of the embedding program. It wins over a module of the same name.
    ///
    /// # Errors
    /// A backend of that name is registered already, or it has no name.
    pub fn register(&self, backend: Arc<dyn Backend>) -> Result<Plugin> {
        let name = normal_name(&backend.name());
        if name.is_empty() || name == "*" {
            return Err(Error::usage(
                "a backend needs a name",
                "give it one of letters, digits and `_`",
            ));
        }
        let mut registered = self
            .registered
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if registered.iter().any(|plugin| plugin.name == name) {
            let message = format!("a backend named `{name}` is registered already");
            return Err(Error::usage(message, "register each backend once"));
        }
        let plugin = Plugin::embedded(name, backend, &self.manifest);
        registered.push(plugin.clone());
        Ok(plugin)
    }

    /// Every plugin, usable or not, in name order; of several with one name the one that is used comes first.
    pub fn all(&self) -> Vec<Plugin> {
        let mut all = self
            .registered
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone();
        let embedded: Vec<String> = all.iter().map(|plugin| plugin.name.clone()).collect();
        for plugin in self.found.get_or_init(|| plugin::open_all(&self.manifest)) {
            if !embedded.contains(&plugin.name) {
                all.push(plugin.clone().refreshed());
            } else if plugin.kind != PluginKind::Missing {
                all.push(
                    plugin
                        .clone()
                        .beaten_by("a backend registered by the program"),
                );
            }
        }
        all.sort_by(|a, b| {
            a.name
                .cmp(&b.name)
                .then_with(|| a.backend().is_none().cmp(&b.backend().is_none()))
        });
        all
    }

    /// The available ones, in name order.
    pub fn list(&self) -> Vec<Plugin> {
        self.all()
            .into_iter()
            .filter(|plugin| plugin.verdict.is_available())
            .collect()
    }

    /// The plugin of a name, whatever its case and verdict.
    ///
    /// # Errors
    /// There is none; the error names the nearest.
    pub fn get(&self, name: &str) -> Result<Plugin> {
        let wanted = normal_name(name);
        let all = self.all();
        if let Some(plugin) = all.iter().find(|plugin| plugin.name == wanted) {
            return Ok(plugin.clone());
        }
        let known = all.iter().map(|plugin| plugin.name.as_str());
        let action = suggestion(
            &wanted,
            known,
            "no plugin is installed; see `backplane plugins`",
        );
        Err(Error::UnknownBackend {
            name: name.to_owned(),
            action,
        })
    }

    /// The plugin that is preferred for a model that all take.
    ///
    /// # Errors
    /// None is available, or the policy forbids another than one that can't be used.
    pub fn default(&self) -> Result<Plugin> {
        let (order, fallback) = (&self.manifest.order, self.manifest.fallback);
        let take = |candidate: &Candidate| Attempt::Taken(candidate.name.clone());
        match choose(self.candidates(), order, None, fallback, None, take) {
            (_, Ok(name)) => self.get(&name),
            (trace, Err(failure)) => Err(self.failure(failure, trace)),
        }
    }

    /// The devices of every available plugin, with its name.
    pub fn device_info(&self) -> Vec<(String, DeviceInfo)> {
        let of = |plugin: Plugin| {
            let name = plugin.name;
            plugin
                .devices
                .into_iter()
                .map(move |device| (name.clone(), device))
        };
        self.list().into_iter().flat_map(of).collect()
    }

    /// What each available backend that the order reaches says of a file, in the order of preference. No weights are
    /// read.
    pub fn inspect(&self, path: &Path) -> Vec<(String, Inspection)> {
        let mut answers = Vec::new();
        let ask = |candidate: &Candidate| {
            if let Some(backend) = self.backend(&candidate.name) {
                answers.push((candidate.name.clone(), backend.inspect(path)));
            }
            Attempt::<()>::OtherFormat
        };
        let _ = choose(
            self.candidates(),
            &self.manifest.order,
            None,
            Fallback::Allow,
            None,
            ask,
        );
        answers
    }

    /// What would run a model, and why, without loading it. `None` asks about availability alone. That nothing can run
    /// it is no error: the trace says so.
    ///
    /// # Errors
    /// The model or the pinned backend is not there.
    pub fn explain(&self, model: Option<&str>, options: &ModelOptions) -> Result<Trace> {
        let meant = model.map(|model| self.meant(model, options)).transpose()?;
        let (path, options) = match meant {
            Some((path, options)) => (Some(path), options),
            None => (None, options.clone()),
        };
        let options = &options;
        let pinned = self.pinned(options)?;
        let fallback = options.fallback.unwrap_or(self.manifest.fallback);
        let ask = |candidate: &Candidate| match (&path, self.backend(&candidate.name)) {
            (Some(path), Some(backend)) => match Attempt::from_inspection(backend.inspect(path)) {
                Ok(_) => Attempt::Taken(()),
                Err(lost) => lost,
            },
            _ => Attempt::Taken(()),
        };
        let order = &self.manifest.order;
        Ok(choose(
            self.candidates(),
            order,
            pinned.as_deref(),
            fallback,
            path.clone(),
            ask,
        )
        .0)
    }

    /// Loads a model: a path, a name in the catalogue, or `BACKEND:NAME` for a model of that backend which is no file. The backend is the pinned one, else the first in the order
    /// that can run it. Without a context of the caller's it is the model's own, up to the manifest's cap.
    ///
    /// # Errors
    /// The model is not there, no backend can run it, or loading failed.
    pub fn load(&self, model: &str, options: &ModelOptions) -> Result<Model> {
        let started = Instant::now();
        let (path, options) = self.meant(model, options)?;
        let options = &options;
        let pinned = self.pinned(options)?;
        let fallback = options.fallback.unwrap_or(self.manifest.fallback);
        warn_of_threads(options.load.threads);
        let load = |candidate: &Candidate| {
            let Some(backend) = self.backend(&candidate.name) else {
                return Attempt::OtherFormat;
            };
            let info = match Attempt::from_inspection(backend.inspect(&path)) {
                Ok(info) => info,
                Err(lost) => return lost,
            };
            let mut load = options.load.clone();
            // What is no file takes none of this machine's memory: its context is not ours to choose.
            if !reference::is_reference(&path) {
                load.context = load
                    .context
                    .or_else(|| Some(default_context(info.context_length, self.manifest.context)));
            }
            match backend.load(&path, &load) {
                Ok(model) => match options.needs {
                    // What was loaded in vain is closed by being dropped.
                    Some(need) if pinned.is_none() && model.capability(need).is_none() => {
                        Attempt::Lacks(need.to_owned())
                    }
                    _ => Attempt::Taken(model),
                },
                // An option of one backend alone asks for a backend that has it.
                Err(error)
                    if pinned.is_none()
                        && error.code == ErrorCode::UnsupportedField
                        && load.extra.contains_key(&error.field) =>
                {
                    Attempt::Lacks(error.field)
                }
                Err(error) => Attempt::Failed(error),
            }
        };
        let order = &self.manifest.order;
        let (trace, loaded) = choose(
            self.candidates(),
            order,
            pinned.as_deref(),
            fallback,
            Some(path.clone()),
            load,
        );
        for candidate in &trace.candidates {
            let (name, outcome, reason) = (&candidate.name, candidate.outcome, &candidate.reason);
            tracing::debug!(backend = %name, ?outcome, %reason, "candidate");
        }
        let model = loaded.map_err(|failure| self.failure(failure, trace.clone()))?;
        match (&trace.notice, fallback) {
            (Some(notice), Fallback::Allow) => tracing::info!("{notice}"),
            (Some(notice), _) => tracing::warn!("{notice}"),
            (None, _) => {}
        }
        let model = Model::new(path, model, trace, started.elapsed().as_secs_f64());
        tracing::info!(backend = %model.backend(), seconds = model.load_s(), "loaded {}", model.path().display());
        for warning in model.info().warnings {
            tracing::warn!("{}: {warning}", model.path().display());
        }
        Ok(model)
    }

    fn pinned(&self, options: &ModelOptions) -> Result<Option<String>> {
        options
            .backend
            .as_deref()
            .map(|name| self.get(name).map(|plugin| plugin.name))
            .transpose()
    }

    fn backend(&self, name: &str) -> Option<Arc<dyn Backend>> {
        let plugin = self
            .all()
            .into_iter()
            .find(|plugin| plugin.name == name && plugin.verdict.is_available())?;
        plugin.backend().cloned()
    }

    /// One for each name: the plugin that is used.
    fn candidates(&self) -> Vec<Candidate> {
        let mut all = self.all();
        all.dedup_by(|later, earlier| later.name == earlier.name);
        let candidate = |plugin: Plugin| Candidate {
            name: plugin.name,
            version: plugin.version,
            path: plugin.path,
            verdict: plugin.verdict,
        };
        all.into_iter().map(candidate).collect()
    }

    fn failure(&self, failure: Failure, trace: Trace) -> Error {
        let trace = Box::new(trace);
        match failure {
            Failure::NoBackend(message) => {
                let action = format!(
                    "see `backplane plugins explain`; manifest: {}",
                    self.manifest.source
                );
                Error::NoBackend {
                    message,
                    action,
                    trace,
                }
            }
            Failure::Model(message) => {
                let action =
                    "choose another model, or see `backplane plugins explain` with it".to_owned();
                Error::ModelUnusable {
                    message,
                    action,
                    trace: Some(trace),
                }
            }
            Failure::Backend(backend, error) => Error::Backend { backend, error },
        }
    }
}

/// Threads beyond the cores wait for each other.
fn warn_of_threads(asked: Option<u32>) {
    let cores = std::thread::available_parallelism().map_or(usize::MAX, |cores| cores.get());
    if let Some(asked) = asked.filter(|&asked| asked as usize > cores) {
        tracing::warn!("{asked} threads on {cores} cores: slower than {cores} threads");
    }
}

/// The model's own context up to the cap; the cap where the model states none.
fn default_context(own: u64, cap: u32) -> u32 {
    u32::try_from(own)
        .ok()
        .filter(|own| *own > 0)
        .map_or(cap, |own| own.min(cap))
}

#[cfg(test)]
mod tests;
