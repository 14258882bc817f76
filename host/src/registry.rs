//! The plugins of this process: found, opened once, asked, and models loaded through them.
//!
//! Of two modules with one plugin name, the one that the manifest gives an explicit `path` wins; else the one of the
//! earlier directory; else the one whose file name comes first. The loser is listed with the verdict `disabled`.

mod answer;
mod discover;
mod files;
mod model;
mod opening;
mod plugin;
mod reference;
mod reload;
mod stamp;
mod watch;

#[cfg(all(unix, feature = "cli"))]
pub(crate) use discover::{discover, module_name};
pub use files::{Checked, Converted};
pub use model::{Model, ModelOptions, Reply};
pub use plugin::{Plugin, PluginKind};
pub use reload::{Change, ModelChange, PluginChange, Reloaded};
pub use watch::Watch;

use crate::catalog::Catalog;
use crate::error::{Error, Result};
use crate::folders::Folders;
use crate::manifest::{Fallback, Manifest, locate, normal_name};
use crate::nearest::suggestion;
use crate::selection::{Attempt, Candidate, Failure, Trace, choose};
use crate::worker::{Record, Records};
use backplane_plugin_api::sdk::Backend;
use backplane_plugin_api::types::{self, DeviceInfo, ErrorCode, ModelInfo};
use opening::Opening;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::Instant;

/// What a backend says of a file.
pub type Inspection = std::result::Result<Option<ModelInfo>, types::Error>;

/// The plugins of a manifest, and those that the embedding program registers. Nothing is opened before it is needed;
/// each module is opened and asked once, and again only by [`Registry::reload`]. Shared freely between threads.
#[derive(Debug)]
pub struct Registry {
    folders: Folders,
    /// Where the manifest is read anew; `None` for one that was in memory.
    named: Option<Option<PathBuf>>,
    /// Whether copies of modules are opened.
    copies: bool,
    registered: Mutex<Vec<Plugin>>,
    /// What is in force; a reload puts another in its place.
    current: Mutex<Arc<View>>,
    /// Models that are loaded.
    models: Mutex<Vec<Weak<model::Shared>>>,
    /// Held by the reload that runs.
    reloading: Mutex<()>,
}

/// A manifest and what it led to.
#[derive(Debug)]
struct View {
    manifest: Arc<Manifest>,
    found: OnceLock<Vec<Plugin>>,
}

impl View {
    fn new(manifest: Manifest) -> Arc<Self> {
        Arc::new(Self {
            manifest: Arc::new(manifest),
            found: OnceLock::new(),
        })
    }
}

/// The plugins as they are at one moment: what a selection is made of.
struct Look {
    manifest: Arc<Manifest>,
    all: Vec<Plugin>,
}

impl Look {
    fn backend(&self, name: &str) -> Option<Arc<dyn Backend>> {
        let usable = |plugin: &&Plugin| plugin.name == name && plugin.verdict.is_available();
        self.all.iter().find(usable)?.backend().cloned()
    }

    /// One for each name: the plugin that is used.
    fn candidates(&self) -> Vec<Candidate> {
        let mut all = self.all.clone();
        all.dedup_by(|later, earlier| later.name == earlier.name);
        let candidate = |plugin: Plugin| Candidate {
            name: plugin.name,
            version: plugin.version,
            path: plugin.path,
            verdict: plugin.verdict,
        };
        all.into_iter().map(candidate).collect()
    }

    /// The plugin of a name, whatever its case and verdict.
    fn get(&self, name: &str) -> Result<Plugin> {
        let wanted = normal_name(name);
        if let Some(plugin) = self.all.iter().find(|plugin| plugin.name == wanted) {
            return Ok(plugin.clone());
        }
        let known = self.all.iter().map(|plugin| plugin.name.as_str());
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

    fn pinned(&self, options: &ModelOptions) -> Result<Option<String>> {
        options
            .backend
            .as_deref()
            .map(|name| self.get(name).map(|plugin| plugin.name))
            .transpose()
    }

    fn fallback(&self, options: &ModelOptions) -> Fallback {
        options.fallback.unwrap_or(self.manifest.fallback)
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

/// A lock whose holder can't have left it half done.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Registry {
    /// The registry of a manifest; `None` finds the manifest as [`locate`] says.
    ///
    /// # Errors
    /// The manifest can't be read or is wrong.
    pub fn open<'a>(manifest: impl Into<Option<&'a Path>>) -> Result<Self> {
        let folders = Folders::from_environment();
        let named = manifest.into();
        let manifest = locate(named, &folders)?;
        Ok(Self {
            named: Some(named.map(Path::to_path_buf)),
            ..Self::new(manifest, folders)
        })
    }

    /// The registry of a manifest that is already in memory; a reload keeps it.
    pub fn new(manifest: Manifest, folders: Folders) -> Self {
        Self {
            folders,
            named: None,
            copies: false,
            registered: Mutex::default(),
            current: Mutex::new(View::new(manifest)),
            models: Mutex::default(),
            reloading: Mutex::default(),
        }
    }

    /// The same for a program that runs for long: copies of modules are opened, so that a file may be replaced, even in
    /// place, while it is in use; and their content is remembered, so that only one that differs is opened again. Costs
    /// the reading of every module, and on Linux its size in memory; elsewhere the files themselves are opened, and one
    /// that is in use must be replaced by another file of its name, never written over.
    #[must_use]
    pub fn reloadable(mut self) -> Self {
        self.copies = true;
        self
    }

    /// The manifest in force.
    pub fn manifest(&self) -> Arc<Manifest> {
        self.view().manifest.clone()
    }

    fn view(&self) -> Arc<View> {
        lock(&self.current).clone()
    }

    /// The plugins now.
    fn look(&self) -> Look {
        let view = self.view();
        Look {
            all: self.all_of(&view),
            manifest: view.manifest.clone(),
        }
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
        let mut registered = lock(&self.registered);
        if registered.iter().any(|plugin| plugin.name == name) {
            let message = format!("a backend named `{name}` is registered already");
            return Err(Error::usage(message, "register each backend once"));
        }
        let plugin = Plugin::embedded(name, backend, &self.manifest());
        registered.push(plugin.clone());
        Ok(plugin)
    }

    /// Every plugin, usable or not, in name order; of several with one name the one that is used comes first.
    pub fn all(&self) -> Vec<Plugin> {
        self.all_of(&self.view())
    }

    fn all_of(&self, view: &View) -> Vec<Plugin> {
        let mut all = lock(&self.registered).clone();
        let embedded: Vec<String> = all.iter().map(|plugin| plugin.name.clone()).collect();
        let open = || {
            plugin::open_all(&Opening {
                manifest: &view.manifest,
                copies: self.copies,
                state: self.folders.state.as_deref(),
                before: &[],
            })
        };
        for plugin in view.found.get_or_init(open) {
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
        self.look().get(name)
    }

    /// Forgets the crashes of a plugin, so that it is tried again: also those that other hosts have counted. Gives what was
    /// known of them; nothing where there were none.
    ///
    /// # Errors
    /// There is no plugin of that name and nothing was known of it, or what is known can't be read or written.
    pub fn clear_crashes(&self, name: &str) -> Result<Vec<Record>> {
        let wanted = normal_name(name);
        let records = self.folders.state.as_deref().map(Records::new);
        let cleared = records.map_or(Ok(Vec::new()), |records| records.clear(&wanted));
        let cleared = cleared.map_err(|problem| {
            Error::usage(problem, "remove that file, or mend its permissions")
        })?;
        if cleared.is_empty() && self.manifest().plugin(&wanted).is_none() {
            self.get(name)?;
        }
        Ok(cleared)
    }

    /// The plugin that is preferred for a model that all take.
    ///
    /// # Errors
    /// None is available, or the policy forbids another than one that can't be used.
    pub fn default(&self) -> Result<Plugin> {
        let look = self.look();
        let (order, fallback) = (&look.manifest.order, look.manifest.fallback);
        let take = |candidate: &Candidate| Attempt::Taken(candidate.name.clone());
        match choose(look.candidates(), order, None, fallback, None, take) {
            (_, Ok(name)) => look.get(&name),
            (trace, Err(failure)) => Err(look.failure(failure, trace)),
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
        let look = self.look();
        let mut answers = Vec::new();
        let ask = |candidate: &Candidate| {
            if let Some(backend) = look.backend(&candidate.name) {
                answers.push((candidate.name.clone(), backend.inspect(path)));
            }
            Attempt::<()>::OtherFormat
        };
        let _ = choose(
            look.candidates(),
            &look.manifest.order,
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
        let look = self.look();
        let pinned = look.pinned(&options)?;
        let fallback = look.fallback(&options);
        let ask = |candidate: &Candidate| match (&path, look.backend(&candidate.name)) {
            (Some(path), Some(backend)) => match Attempt::from_inspection(backend.inspect(path)) {
                Ok(_) => Attempt::Taken(()),
                Err(lost) => lost,
            },
            _ => Attempt::Taken(()),
        };
        let order = &look.manifest.order;
        Ok(choose(
            look.candidates(),
            order,
            pinned.as_deref(),
            fallback,
            path.clone(),
            ask,
        )
        .0)
    }

    /// Loads a model: a path, a name in the catalogue, or `BACKEND:NAME` for a model of that backend which is no file. The
    /// backend is the pinned one, else the first in the order that can run it. Without a context of the caller's it is the model's own, up to the manifest's cap.
    ///
    /// # Errors
    /// The model is not there, no backend can run it, or loading failed.
    pub fn load(&self, model: &str, options: &ModelOptions) -> Result<Model> {
        let (path, options) = self.meant(model, options)?;
        warn_of_threads(options.load.threads);
        let loaded = self.load_at(&path, &options)?;
        let model = Model::new(path, options, loaded);
        let mut models = lock(&self.models);
        models.retain(|model| model.strong_count() > 0);
        models.push(model.weak());
        Ok(model)
    }

    /// Loads a model anew where its last call failed in a way that says that its engine is gone, as after the crash of a
    /// worker. Later calls of the model go to the new one; the backend is chosen as by [`Registry::load`]. Does nothing
    /// where the model is well.
    ///
    /// # Errors
    /// As [`Registry::load`]; the model is then as it was.
    pub fn renew(&self, model: &Model) -> Result<()> {
        model.renew(|path, options| self.load_at(path, options))
    }

    fn load_at(&self, path: &Path, options: &ModelOptions) -> Result<model::Loaded> {
        let started = Instant::now();
        let look = self.look();
        let pinned = look.pinned(options)?;
        let fallback = look.fallback(options);
        let load = |candidate: &Candidate| {
            let Some(backend) = look.backend(&candidate.name) else {
                return Attempt::OtherFormat;
            };
            let info = match Attempt::from_inspection(backend.inspect(path)) {
                Ok(info) => info,
                Err(lost) => return lost,
            };
            let load = load_options(options, path, &info, &look.manifest);
            match backend.load(path, &load) {
                Ok(model) => match options.needs {
                    // What was loaded in vain is closed by being dropped.
                    Some(need) if pinned.is_none() && model.capability(need).is_none() => {
                        Attempt::Lacks(need.to_owned())
                    }
                    _ => Attempt::Taken((model, backend)),
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
        let order = &look.manifest.order;
        let (trace, loaded) = choose(
            look.candidates(),
            order,
            pinned.as_deref(),
            fallback,
            Some(path.to_path_buf()),
            load,
        );
        for candidate in &trace.candidates {
            let (name, outcome, reason) = (&candidate.name, candidate.outcome, &candidate.reason);
            tracing::debug!(backend = %name, ?outcome, %reason, "candidate");
        }
        let (model, engine) = loaded.map_err(|failure| look.failure(failure, trace.clone()))?;
        match (&trace.notice, fallback) {
            (Some(notice), Fallback::Allow) => tracing::info!("{notice}"),
            (Some(notice), _) => tracing::warn!("{notice}"),
            (None, _) => {}
        }
        let loaded =
            model::Loaded::new(path, model, engine, trace, started.elapsed().as_secs_f64());
        tracing::info!(backend = %loaded.backend(), seconds = loaded.load_s, "loaded {}", path.display());
        for warning in loaded.model.info().warnings {
            tracing::warn!("{}: {warning}", path.display());
        }
        Ok(loaded)
    }
}

/// What a backend is given: the caller's options, and a context where the caller states none.
fn load_options(
    options: &ModelOptions,
    path: &Path,
    info: &ModelInfo,
    manifest: &Manifest,
) -> types::LoadOptions {
    let mut load = options.load.clone();
    // What is no file takes none of this machine's memory: its context is not ours to choose.
    if !reference::is_reference(path) {
        load.context = load
            .context
            .or_else(|| Some(default_context(info.context_length, manifest.context)));
    }
    load
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
