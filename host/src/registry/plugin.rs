//! One plugin, from its file to its verdict.

use super::discover::{self, Found};
use super::opening::{Opening, Origin};
use crate::loader::{LoadRequest, LoadedPlugin, TracingServices};
use crate::manifest::{Isolation, Manifest, PluginEntry, normal_name};
use crate::worker::{self, Identity, Isolated, Limits, Records, Spec, Start};
use backplane_plugin_api::sdk::{Backend, Context};
use backplane_plugin_api::types::{DeviceInfo, Verdict, VerdictState};
use serde::Serialize;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Plugins that run on graphics processors, whichever devices they tell.
const GPU_PLUGINS: &[&str] = &["metal", "rocm", "cuda", "sycl"];

/// How a plugin came to this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum PluginKind {
    /// A module file.
    Module,
    /// Registered by the embedding program.
    Embedded,
    /// Named in the manifest or its order, but no module was found.
    Missing,
}

/// One plugin, usable or not.
#[derive(Clone, Serialize)]
pub struct Plugin {
    /// Its name; where its module could not be opened, the name that its file or entry gives it.
    pub name: String,
    /// Its own version.
    pub version: Option<String>,
    /// Version of the contract that it was built against.
    pub contract_version: Option<String>,
    /// How it came here.
    pub kind: PluginKind,
    /// Whether it can be used, and why not.
    pub verdict: Verdict,
    /// Its devices; empty where it has none or is not available.
    pub devices: Vec<DeviceInfo>,
    /// Its module.
    #[serde(serialize_with = "crate::lossy::option")]
    pub path: Option<PathBuf>,
    /// What a reload has to say: why a new module is not used, or that this one runs elsewhere than the manifest says.
    pub notice: Option<String>,
    /// From what it was opened, where it was.
    #[serde(skip)]
    pub(super) origin: Option<Arc<Origin>>,
    /// Where it runs; `None` where it was not opened.
    pub isolation: Option<Isolation>,
    /// Whether that is the default: the manifest says nothing of it.
    pub isolation_default: bool,
    #[serde(skip)]
    backend: Option<Arc<dyn Backend>>,
    /// The same backend, where it is in a worker.
    #[serde(skip)]
    worker: Option<Arc<dyn Isolated>>,
}

impl Plugin {
    /// Its backend, where it was opened.
    pub fn backend(&self) -> Option<&Arc<dyn Backend>> {
        self.backend.as_ref()
    }

    pub(super) fn unopened(
        name: String,
        kind: PluginKind,
        path: Option<PathBuf>,
        verdict: Verdict,
    ) -> Self {
        let (version, contract_version) = (None, None);
        Self {
            name,
            version,
            contract_version,
            kind,
            verdict,
            devices: Vec::new(),
            path,
            notice: None,
            origin: None,
            isolation: None,
            isolation_default: true,
            backend: None,
            worker: None,
        }
    }

    /// Whether both are one backend, opened once.
    pub(super) fn is_same_as(&self, other: &Self) -> bool {
        match (&self.backend, &other.backend) {
            (Some(this), Some(that)) => Arc::ptr_eq(this, that),
            _ => false,
        }
    }

    /// The same, with what a reload has to say.
    pub(super) fn with_notice(mut self, notice: impl Into<String>) -> Self {
        self.notice = Some(notice.into());
        self
    }

    /// Whether its module was opened in this process.
    pub(super) fn is_here(&self) -> bool {
        self.backend.is_some() && self.worker.is_none()
    }

    /// The same, as it runs.
    fn running(mut self, isolation: Isolation, stated: Option<Isolation>) -> Self {
        self.isolation = Some(isolation);
        self.isolation_default = stated.is_none();
        self
    }

    /// The same, with a verdict that keeps it from being used.
    fn unusable(mut self, verdict: Verdict) -> Self {
        self.verdict = verdict;
        self.backend = None;
        self.worker = None;
        self.devices.clear();
        self
    }

    /// The same, with the verdict that crashes of its worker have brought since.
    pub(super) fn refreshed(mut self) -> Self {
        if let Some(verdict) = self.worker.as_ref().and_then(|it| it.quarantined()) {
            self.verdict = verdict;
            self.devices.clear();
        }
        self
    }

    /// One that the program itself brings.
    pub(super) fn embedded(name: String, backend: Arc<dyn Backend>, manifest: &Manifest) -> Self {
        let off = manifest.plugin(&name).is_some_and(|entry| !entry.enabled);
        let verdict = discover::disabled(&name, manifest);
        let plugin = Self {
            version: Some(backend.version()),
            ..Self::unopened(name, PluginKind::Embedded, None, verdict)
        };
        if off { plugin } else { plugin.ask(backend) }
    }

    /// The same, put out by another of its name.
    pub(super) fn beaten_by(mut self, winner: &str) -> Self {
        let message = format!("a duplicate: {winner} comes first and is used");
        let action = "remove one of the two, or name the other by `path` in the manifest";
        self.verdict = Verdict::unavailable(VerdictState::Disabled, message, action);
        self.backend = None;
        self.worker = None;
        self.devices.clear();
        self
    }

    /// Asks a backend for its verdict and devices. A panic is a verdict.
    fn ask(mut self, backend: Arc<dyn Backend>) -> Self {
        let asked = catch_unwind(AssertUnwindSafe(|| {
            let verdict = backend.probe();
            let devices = if verdict.is_available() {
                backend.devices()
            } else {
                Ok(Vec::new())
            };
            (verdict, devices)
        }));
        match asked {
            Ok((verdict, Ok(devices))) => {
                self.verdict = said_once(verdict);
                self.devices = devices;
            }
            Ok((_, Err(error))) => {
                let message = format!("its devices can't be read: {error}");
                let action = if error.action.is_empty() {
                    "check the device and its driver"
                } else {
                    &error.action
                };
                self.verdict = Verdict::unavailable(VerdictState::NoDevice, message, action);
            }
            Err(_) => self.verdict = crashed("panicked when it was probed"),
        }
        self.backend = Some(backend);
        self
    }
}

impl std::fmt::Debug for Plugin {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Plugin")
            .field("name", &self.name)
            .field("version", &self.version)
            .field("kind", &self.kind)
            .field("verdict", &self.verdict)
            .field("path", &self.path)
            .finish_non_exhaustive()
    }
}

/// A verdict whose message does not begin with its state, which is shown before it.
fn said_once(mut verdict: Verdict) -> Verdict {
    let state = format!("{}: ", verdict.state);
    if let Some(rest) = verdict.message.strip_prefix(&state) {
        verdict.message = rest.to_owned();
    }
    verdict
}

fn crashed(what: &str) -> Verdict {
    Verdict::unavailable(
        VerdictState::Crashed,
        what,
        "update the plugin, or disable it in the manifest",
    )
}

/// Opens and asks every module of a manifest, side by side, and decides between those of one name.
pub(super) fn open_all(opening: &Opening<'_>) -> Vec<Plugin> {
    let found = discover::discover(opening.manifest);
    let opened: Vec<Plugin> = std::thread::scope(|scope| {
        let to_open = found.iter().filter(|found| found.verdict.is_none()).count();
        if to_open < 2 {
            return found.iter().map(|found| opening.open(found)).collect();
        }
        let threads: Vec<_> = found
            .iter()
            .map(|found| scope.spawn(move || opening.open(found)))
            .collect();
        let join = |(found, thread): (&Found, std::thread::ScopedJoinHandle<'_, Plugin>)| {
            thread.join().unwrap_or_else(|_| {
                let verdict = crashed("panicked when it was opened");
                Plugin::unopened(
                    found.name.clone(),
                    PluginKind::Module,
                    found.path.clone(),
                    verdict,
                )
            })
        };
        found.iter().zip(threads).map(join).collect()
    });
    let mut plugins: Vec<Plugin> = Vec::new();
    for plugin in opened {
        let winner = plugins
            .iter()
            .find(|earlier| earlier.name == plugin.name && earlier.backend.is_some());
        let winner = winner
            .filter(|_| plugin.backend.is_some())
            .and_then(|winner| winner.path.as_deref());
        let winner = winner.map(|path| path.display().to_string());
        plugins.push(match winner {
            Some(winner) => plugin.beaten_by(&winner),
            None => plugin,
        });
    }
    // A name that only a file or an order suggested, and that a module turned out to have, is not missing.
    let there: Vec<String> = plugins
        .iter()
        .filter(|p| p.kind == PluginKind::Module)
        .map(|p| p.name.clone())
        .collect();
    plugins.retain(|plugin| plugin.kind != PluginKind::Missing || !there.contains(&plugin.name));
    plugins
}

/// Opens and asks one module; `state` is where crashes are remembered.
pub(super) fn open(found: &Found, manifest: &Manifest, state: Option<&Path>) -> Plugin {
    let path = match (&found.path, &found.verdict) {
        (Some(path), None) => path.clone(),
        (path, verdict) => {
            let kind = if path.is_some() {
                PluginKind::Module
            } else {
                PluginKind::Missing
            };
            // One without a path has a verdict: why it has none.
            let verdict = verdict
                .clone()
                .unwrap_or_else(|| Verdict::unavailable(VerdictState::Absent, "not found", ""));
            return Plugin::unopened(found.name.clone(), kind, path.clone(), verdict);
        }
    };
    let in_process = || open_here(found, &path, manifest);
    let entry = manifest.plugin(&found.name);
    let stated = entry.and_then(|entry| entry.isolation);
    let stated = if found.in_worker {
        Some(Isolation::Process)
    } else {
        stated
    };
    let unopened = |verdict| {
        Plugin::unopened(
            found.name.clone(),
            PluginKind::Module,
            Some(path.clone()),
            verdict,
        )
    };
    let refused = entry.and_then(|entry| refused_limit(entry, stated));
    if let Some(verdict) = refused {
        return unopened(verdict);
    }
    let worker = match start_worker(found, &path, manifest, state) {
        Start::Worker(worker) => worker,
        Start::Refused(verdict) => return unopened(verdict),
        Start::NoProgram(why) if stated == Some(Isolation::Process) => {
            let message = format!("isolation = \"process\": {why}");
            let action =
                "put the program `backplane` beside this one or name it in BACKPLANE_WORKER";
            return unopened(Verdict::unavailable(
                VerdictState::Misconfigured,
                message,
                action,
            ));
        }
        Start::NoProgram(why) => {
            tracing::debug!("plugin `{}` is probed in this process: {why}", found.name);
            let loaded = match in_process() {
                Ok(loaded) => loaded,
                Err(verdict) => return unopened(verdict),
            };
            let (version, contract) = (loaded.version, loaded.contract_version);
            let plugin = named(found, &path, manifest, &loaded.name, version, contract);
            if !plugin.verdict.is_available() {
                return plugin;
            }
            let plugin = plugin
                .ask(loaded.backend)
                .running(Isolation::InProcess, stated);
            let refused = entry.and_then(|entry| refused_limit(entry, Some(Isolation::InProcess)));
            return match refused {
                Some(verdict) => plugin.unusable(verdict),
                None => plugin,
            };
        }
    };
    let (version, contract) = (worker.version(), worker.contract_version());
    let plugin = named(found, &path, manifest, &worker.name(), version, contract);
    if !plugin.verdict.is_available() {
        return plugin;
    }
    let plugin = plugin.ask(worker.clone());
    let isolation = stated.unwrap_or_else(|| default_isolation(&plugin));
    let plugin = plugin.running(isolation, stated);
    // What took its worker down, now or too often, or said that it crashed, is not opened here.
    let fallen = worker.fallen().or_else(|| worker.runs_on(&plugin.devices));
    if let Some(verdict) = fallen {
        return plugin.unusable(verdict);
    }
    if plugin.verdict.state == VerdictState::Crashed {
        let verdict = plugin.verdict.clone();
        return plugin.unusable(verdict);
    }
    if let Some(verdict) = entry.and_then(|entry| refused_limit(entry, Some(isolation))) {
        return plugin.unusable(verdict);
    }
    if isolation == Isolation::Process {
        return Plugin {
            worker: Some(worker),
            ..plugin
        };
    }
    match in_process() {
        Ok(loaded) => Plugin {
            backend: Some(loaded.backend),
            ..plugin
        },
        Err(verdict) => unopened(verdict),
    }
}

/// Plugins of graphics processors run in a process of their own, others in the host's.
fn default_isolation(plugin: &Plugin) -> Isolation {
    let kinds = ["gpu", "integrated_gpu"];
    let has_gpu = plugin
        .devices
        .iter()
        .any(|device| kinds.contains(&device.kind.as_str()));
    if has_gpu || GPU_PLUGINS.contains(&plugin.name.as_str()) {
        Isolation::Process
    } else {
        Isolation::InProcess
    }
}

/// Why a limit of an entry can't be kept where its plugin runs.
fn refused_limit(entry: &PluginEntry, isolation: Option<Isolation>) -> Option<Verdict> {
    let stated = [
        ("memory_limit", entry.memory_limit.is_some()),
        (
            "watchdog",
            entry.watchdog.is_some_and(|it| it.limits_calls()),
        ),
    ];
    let first = stated.iter().find(|(_, stated)| *stated);
    if let (Some((key, _)), Some(Isolation::InProcess)) = (first, isolation) {
        return Some(worker::needs_process(&entry.name, key));
    }
    entry
        .memory_limit
        .and_then(|_| worker::memory_refused(&entry.name))
}

/// A module's plugin before it is asked: available, unless it is not the one that the manifest means.
fn named(
    found: &Found,
    path: &Path,
    manifest: &Manifest,
    name: &str,
    version: String,
    contract_version: String,
) -> Plugin {
    let name = normal_name(name);
    let misnamed = (name != found.name)
        .then(|| discover::misnamed(&name, found, manifest))
        .flatten();
    let verdict = misnamed.unwrap_or_else(|| Verdict::available(""));
    Plugin {
        version: Some(version),
        contract_version: Some(contract_version),
        ..Plugin::unopened(name, PluginKind::Module, Some(path.to_path_buf()), verdict)
    }
}

fn context(found: &Found, path: &Path, manifest: &Manifest) -> Context {
    let entry = manifest.plugin(&found.name);
    Context {
        options: entry.map(|entry| entry.options.clone()).unwrap_or_default(),
        module_dir: path.parent().unwrap_or(Path::new("")).to_path_buf(),
    }
}

/// Opens a module in a worker.
fn start_worker(found: &Found, path: &Path, manifest: &Manifest, state: Option<&Path>) -> Start {
    let Some(program) = worker::program() else {
        let why = "there is no program `backplane` beside this one to run it in";
        return Start::NoProgram(why.to_owned());
    };
    let entry = manifest.plugin(&found.name);
    let watchdog = entry.and_then(|entry| entry.watchdog).unwrap_or_default();
    worker::start(Spec {
        program,
        plugin: found.name.clone(),
        path: path.to_path_buf(),
        context: context(found, path, manifest),
        sha256: entry.and_then(|entry| entry.sha256.clone()),
        copy: found.copy.clone(),
        time_limit: watchdog.open.0.unwrap_or(worker::NO_LIMIT),
        limits: Limits {
            watchdog,
            memory: entry.and_then(|entry| entry.memory_limit),
        },
        records: state.map(Records::new),
        identity: match &found.copy {
            Some(copy) => Identity::of(&copy.path()),
            None => Identity::of(path),
        },
    })
}

/// Opens a module in this process.
fn open_here(found: &Found, path: &Path, manifest: &Manifest) -> Result<LoadedPlugin, Verdict> {
    let entry = manifest.plugin(&found.name);
    let request = LoadRequest {
        path,
        context: context(found, path, manifest),
        sha256: entry.and_then(|entry| entry.sha256.as_deref()),
    };
    let services = Arc::new(TracingServices {
        plugin: found.name.clone(),
    });
    match &found.copy {
        Some(copy) => {
            copy.keep();
            crate::loader::open_copy(&request, &copy.path(), services)
        }
        None => crate::loader::open(&request, services),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_state_is_said_once() {
        let said = |message: &str| {
            let verdict = Verdict::unavailable(VerdictState::NoDevice, message, "");
            said_once(verdict).to_string()
        };
        let expected = "no device: /dev/kfd is missing";
        assert_eq!(said(expected), expected);
        assert_eq!(said("/dev/kfd is missing"), expected);
    }
}
