//! Looking at manifest and modules again while models are in use.

use super::model::{Loaded, Shared};
use super::opening::Opening;
use super::plugin::{self, Plugin, PluginKind};
use super::{Registry, View, answer, load_options, lock};
use crate::error::Result;
use crate::manifest::{Manifest, locate};
use crate::selection::{Attempt, Trace};
use backplane_plugin_api::sdk::Backend;
use backplane_plugin_api::types::{Verdict, VerdictState};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

/// What a reload changed; nothing where all is as it was.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Reloaded {
    /// One for each plugin that changed, or was to.
    pub changes: Vec<PluginChange>,
}

/// What became of a plugin.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Change {
    /// It was not there, or not usable, before.
    Added,
    /// A new module, or new options, took its place.
    Replaced,
    /// It is gone or switched off. Models that nothing else can run stay on it until they are unloaded.
    Removed,
    /// The new module is not fit; the old one stays in use.
    Refused,
}

/// A plugin that changed, or was to.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PluginChange {
    /// Its name.
    pub plugin: String,
    /// What became of it.
    pub change: Change,
    /// Version that was in use.
    pub before: Option<String>,
    /// Version found now.
    pub version: Option<String>,
    /// Why, in one line; what there is to say of it.
    pub reason: String,
    /// The models that it ran.
    pub models: Vec<ModelChange>,
}

/// A model whose plugin changed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ModelChange {
    /// Its file or folder.
    #[serde(serialize_with = "crate::lossy::path")]
    pub model: PathBuf,
    /// The backend that runs calls that begin now.
    pub backend: String,
    /// Whether the new module continues a fixed prompt as the old one does; `None` where that was not asked.
    pub same_answer: Option<bool>,
    /// Why it could not be moved, where it could not.
    pub error: Option<String>,
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Added => "added",
            Self::Replaced => "replaced",
            Self::Removed => "removed",
            Self::Refused => "refused",
        })
    }
}

/// One line for the plugin and one for each of its models; that nothing has changed, where nothing has.
impl fmt::Display for Reloaded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.changes.is_empty() {
            return f.write_str("nothing has changed");
        }
        let mut between = "";
        for change in &self.changes {
            let version = change.version.as_ref().or(change.before.as_ref());
            let version = version.map_or(String::new(), |version| format!(" {version}"));
            write!(f, "{between}{}{version}: {}", change.plugin, change.change)?;
            if !change.reason.is_empty() {
                write!(f, ": {}", change.reason)?;
            }
            between = "\n";
            for model in &change.models {
                let place = model.model.display();
                write!(f, "\n  {place} is run by {}", model.backend)?;
                match (&model.error, model.same_answer) {
                    (Some(error), _) => write!(f, "; it could not be moved: {error}")?,
                    (None, Some(true)) => f.write_str(", which answers as before")?,
                    (None, Some(false)) => f.write_str(", which answers otherwise than before")?,
                    (None, None) => {}
                }
            }
        }
        Ok(())
    }
}

/// A model loaded by what is to take it over.
struct Moved {
    shared: Arc<Shared>,
    loaded: Loaded,
    same_answer: Option<bool>,
}

fn is_usable(plugin: &Plugin) -> bool {
    plugin.backend().is_some() && plugin.verdict.is_available()
}

impl Reloaded {
    /// Whether any module was refused.
    pub fn has_refused(&self) -> bool {
        let mut changes = self.changes.iter();
        changes.any(|change| change.change == Change::Refused)
    }
}

impl Registry {
    /// Looks at the manifest, the directories and the modules again. What is new is opened. A module that changed (by its
    /// content; or its entry did) is opened beside the old one, in a worker, and takes its models over once it has shown for each of
    /// them that it loads it and continues a fixed prompt, twice the same. Calls that run end in the old one, which is
    /// let go with the last of them; calls that begin later go to the new one. What is not fit is refused, and the old one stays. Models
    /// of a plugin that is gone are loaded anew by what the order gives.
    ///
    /// While models are taken over both copies are in memory. One reload runs at a time. A manifest that was in memory is kept; see
    /// [`Registry::reloadable`] for files that are replaced while they are open.
    ///
    /// # Errors
    /// The manifest can't be read or is wrong: then nothing is changed.
    pub fn reload(&self) -> Result<Reloaded> {
        let _one = lock(&self.reloading);
        let view = self.view();
        let manifest = match &self.named {
            Some(named) => locate(named.as_deref(), &self.folders)?,
            None => Manifest::clone(&view.manifest),
        };
        let Some(before) = view.found.get() else {
            // Nothing was opened yet, so nothing can have changed.
            *lock(&self.current) = View::new(manifest);
            return Ok(Reloaded::default());
        };
        // One that was put out since is not in use, and is tried again.
        let before: Vec<Plugin> = before.iter().cloned().map(Plugin::refreshed).collect();
        let before = before.as_slice();
        let mut opened = plugin::open_all(&Opening {
            manifest: &manifest,
            copies: self.copies,
            state: self.folders.state.as_deref(),
            before,
        });
        let mut changes = added(before, &opened);
        let mut moved = Vec::new();
        let mut left = Vec::new();
        for old in before.iter().filter(|plugin| is_usable(plugin)) {
            let new = opened
                .iter()
                .find(|new| new.name == old.name && is_usable(new));
            let (change, reason) = match new {
                Some(new) if new.is_same_as(old) => continue,
                Some(new) => match self.try_models(old, new, &manifest) {
                    Ok(models) => {
                        moved.extend(models.into_iter().map(|model| (changes.len(), model)));
                        let reason = new.notice.clone().unwrap_or_default();
                        (Change::Replaced, reason)
                    }
                    Err(why) => (
                        Change::Refused,
                        format!("the new module is not used: {why}"),
                    ),
                },
                None => lost(old, &opened),
            };
            let now = opened.iter().position(|new| stands_for(new, old));
            let version = now.and_then(|at| opened[at].version.clone());
            if change == Change::Refused {
                let kept = old.clone().with_notice(&reason);
                match now {
                    Some(at) => opened[at] = kept,
                    None => opened.push(kept),
                }
            } else if let Some(backend) = old.backend() {
                left.push((changes.len(), backend.clone()));
            }
            tracing::info!(plugin = %old.name, ?change, "{reason}");
            changes.push(PluginChange {
                plugin: old.name.clone(),
                change,
                before: old.version.clone(),
                version,
                reason,
                models: Vec::new(),
            });
        }
        let next = View::new(manifest);
        let _ = next.found.set(opened);
        *lock(&self.current) = next;
        for (at, model) in moved {
            changes[at].models.push(ModelChange {
                model: model.shared.path.clone(),
                backend: model.loaded.backend().to_owned(),
                same_answer: model.same_answer,
                error: None,
            });
            model.shared.replace(model.loaded);
        }
        // Those of a plugin that is gone, and those that were loaded by the old one just now.
        for (at, backend) in left {
            let moved = self.models_of(&backend).into_iter();
            let moved = moved.map(|shared| self.move_on(&shared));
            changes[at].models.extend(moved);
        }
        Ok(Reloaded { changes })
    }

    /// The models that a backend has loaded.
    fn models_of(&self, backend: &Arc<dyn Backend>) -> Vec<Arc<Shared>> {
        let models = lock(&self.models);
        let loaded = models.iter().filter_map(std::sync::Weak::upgrade);
        loaded
            .filter(|shared| Arc::ptr_eq(&shared.current().engine, backend))
            .collect()
    }

    /// Loads the models of `old` by `new`, and checks each.
    fn try_models(
        &self,
        old: &Plugin,
        new: &Plugin,
        manifest: &Manifest,
    ) -> std::result::Result<Vec<Moved>, String> {
        let (Some(before), Some(backend)) = (old.backend(), new.backend()) else {
            return Ok(Vec::new());
        };
        let models = self.models_of(before).into_iter();
        models
            .map(|shared| {
                let place = shared.path.display().to_string();
                try_model(shared, new, backend, manifest).map_err(|why| format!("{place}: {why}"))
            })
            .collect()
    }

    /// Loads a model by what the order gives now.
    fn move_on(&self, shared: &Shared) -> ModelChange {
        let error = match self.load_at(&shared.path, &shared.options) {
            Ok(loaded) => {
                shared.replace(loaded);
                None
            }
            Err(error) => {
                let place = shared.path.display();
                tracing::warn!("{place} stays where it is: {error}");
                Some(error.line())
            }
        };
        ModelChange {
            model: shared.path.clone(),
            backend: shared.current().backend().to_owned(),
            same_answer: None,
            error,
        }
    }
}

fn try_model(
    shared: Arc<Shared>,
    new: &Plugin,
    backend: &Arc<dyn Backend>,
    manifest: &Manifest,
) -> std::result::Result<Moved, String> {
    let started = Instant::now();
    let info = match Attempt::<()>::from_inspection(backend.inspect(&shared.path)) {
        Ok(info) => info,
        Err(Attempt::Unsupported(why)) => return Err(why),
        Err(Attempt::Broken(error)) => return Err(error.to_string()),
        Err(_) => return Err("it does not take this format any more".to_owned()),
    };
    let options = load_options(&shared.options, &shared.path, &info, manifest);
    let model = backend
        .load(&shared.path, &options)
        .map_err(|error| format!("loading fails: {error}"))?;
    if let Some(need) = shared.options.needs
        && model.capability(need).is_none()
    {
        return Err(format!("it does not offer `{need}` any more"));
    }
    let old = shared.current();
    let same_answer = answer::check(model.as_ref(), old.model.as_ref())?;
    let mut trace: Trace = old.trace.clone();
    let chosen = trace.candidates.iter_mut().find(|it| it.name == new.name);
    if let Some(candidate) = chosen {
        candidate.version.clone_from(&new.version);
        candidate.path.clone_from(&new.path);
        candidate.verdict.clone_from(&new.verdict);
        candidate.reason = format!("{}; reloaded since", candidate.reason);
    }
    let seconds = started.elapsed().as_secs_f64();
    let loaded = Loaded::new(&shared.path, model, backend.clone(), trace, seconds);
    Ok(Moved {
        shared,
        loaded,
        same_answer,
    })
}

/// Whether what was found now is what there is of an old plugin.
fn stands_for(new: &Plugin, old: &Plugin) -> bool {
    let of_its_file = new.path == old.path && !is_usable(new) && !is_other(new, old);
    new.name == old.name || of_its_file
}

/// Whether a file that held an old plugin now holds a whole one of another name, which the manifest does not forbid there.
fn is_other(new: &Plugin, old: &Plugin) -> bool {
    use VerdictState::{ArchitectureUnsupported, Available, NoDevice};
    let told = new.version.is_some() && new.name != old.name && new.path.is_some();
    let state = new.verdict.state;
    let whole = [
        Available,
        VerdictState::Absent,
        NoDevice,
        ArchitectureUnsupported,
    ];
    told && new.path == old.path && whole.contains(&state)
}

/// What became of a plugin that is not usable any more.
fn lost(old: &Plugin, opened: &[Plugin]) -> (Change, String) {
    let Some(now) = opened.iter().find(|new| stands_for(new, old)) else {
        let other = opened.iter().find(|new| is_other(new, old));
        let reason = other.map_or("its module is gone".to_owned(), |other| {
            format!("its file now holds plugin `{}`", other.name)
        });
        return (Change::Removed, reason);
    };
    let Verdict { state, .. } = now.verdict;
    let meant = matches!(state, VerdictState::Disabled | VerdictState::Absent);
    if meant || now.kind != PluginKind::Module {
        (Change::Removed, now.verdict.to_string())
    } else {
        let why = format!("the new module is not used: {}", now.verdict);
        (Change::Refused, why)
    }
}

/// Those that no usable plugin of before stands for, and that were not the same before.
fn added(before: &[Plugin], opened: &[Plugin]) -> Vec<PluginChange> {
    let is_new = |new: &&Plugin| {
        let old = |old: &Plugin| {
            if is_usable(old) {
                stands_for(new, old)
            } else {
                new.name == old.name && new.path == old.path && new.verdict == old.verdict
            }
        };
        new.kind == PluginKind::Module && !before.iter().any(old)
    };
    let change = |new: &Plugin| PluginChange {
        plugin: new.name.clone(),
        change: Change::Added,
        before: None,
        version: new.version.clone(),
        reason: new.verdict.to_string(),
        models: Vec::new(),
    };
    opened.iter().filter(is_new).map(change).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(name: &str, version: Option<&str>, state: VerdictState) -> Plugin {
        let verdict = Verdict::unavailable(state, "why", "");
        let path = Some(PathBuf::from("plugins/cpu.so"));
        let mut plugin = Plugin::unopened(name.to_owned(), PluginKind::Module, path, verdict);
        plugin.version = version.map(str::to_owned);
        plugin
    }

    #[test]
    fn a_file_may_come_to_hold_another_plugin() {
        let old = at("cpu", Some("0.1.0"), VerdictState::Available);
        let lost = |new: Plugin| lost(&old, &[new]);
        let other = lost(at("remote", Some("0.2.0"), VerdictState::Absent));
        let reason = "its file now holds plugin `remote`".to_owned();
        assert_eq!(other, (Change::Removed, reason));
        // One that the manifest forbids there, or that can't be opened, is a refused build of the old one.
        let forbidden = lost(at("remote", Some("0.2.0"), VerdictState::Misconfigured));
        assert_eq!(forbidden.0, Change::Refused);
        let broken = lost(at("cpu", None, VerdictState::Incompatible));
        assert_eq!(broken.0, Change::Refused);
        let own = lost(at("cpu", Some("0.2.0"), VerdictState::Absent));
        assert_eq!(own, (Change::Removed, "absent: why".to_owned()));
    }
}
