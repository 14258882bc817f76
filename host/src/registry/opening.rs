//! Opening modules: anew, or again after they were opened before.

use super::discover::Found;
use super::plugin::{self, Plugin};
use super::stamp::Stamp;
use crate::manifest::{Isolation, Manifest, PluginEntry};
use crate::module_copy::ModuleCopy;
use std::path::Path;
use std::sync::Arc;

/// From what a plugin was opened.
#[derive(Debug)]
pub(super) struct Origin {
    stamp: Stamp,
    entry: Option<PluginEntry>,
    /// Whether a module of its file or name was ever opened in this process: there it stays, being never unloaded.
    here: bool,
    /// What there was to say when it was opened.
    notice: Option<String>,
}

/// How modules are opened.
#[derive(Clone, Copy)]
pub(super) struct Opening<'a> {
    pub(super) manifest: &'a Manifest,
    /// Whether copies are opened, which later changes of the files don't reach.
    pub(super) copies: bool,
    /// The folder of the user's state, where crashes are remembered.
    pub(super) state: Option<&'a Path>,
    /// Those that were opened before: one whose module and entry are as they were is not opened again.
    pub(super) before: &'a [Plugin],
}

impl Opening<'_> {
    /// Opens and asks one module, unless it is open already.
    ///
    /// What replaces a module that was opened in this process runs in a worker: modules are never unloaded, and two of one
    /// plugin are more than a process was made for.
    pub(super) fn open(&self, found: &Found) -> Plugin {
        let (Some(path), None) = (&found.path, &found.verdict) else {
            return plugin::open(found, self.manifest, self.state);
        };
        if let Some(unchanged) = self.unchanged(found, path) {
            return unchanged;
        }
        // Before it is copied, so that what changes meanwhile is noticed at the next reload.
        let stamp = Stamp::of(path);
        // Where it can't be read, opening it says why.
        let copy = self.copies.then(|| ModuleCopy::of(path).ok().flatten());
        let copy = copy.flatten();
        let content = copy.as_ref().map(|copy| copy.path());
        let stamp = match (&content, self.copies) {
            (Some(content), _) => stamp.with_content(content),
            (None, true) => stamp.with_content(path),
            (None, false) => stamp,
        };
        let was_here = self.was_here(&found.name, path);
        let found = Found {
            copy,
            in_worker: was_here,
            ..found.clone()
        };
        let mut plugin = plugin::open(&found, self.manifest, self.state);
        let entry = self.manifest.plugin(&found.name);
        let stated = entry.and_then(|entry| entry.isolation);
        if was_here && plugin.verdict.is_available() && stated != Some(Isolation::Process) {
            let notice = "runs in a worker until the program is started again: another module of it is open here";
            plugin.notice = Some(notice.to_owned());
        }
        plugin.origin = Some(Arc::new(Origin {
            stamp,
            entry: entry.cloned(),
            here: was_here || plugin.is_here(),
            notice: plugin.notice.clone(),
        }));
        plugin
    }

    /// One that is usable and of which nothing has changed.
    fn unchanged(&self, found: &Found, path: &Path) -> Option<Plugin> {
        let same = |plugin: &&Plugin| {
            let origin = plugin.origin.as_ref();
            plugin.path.as_deref() == Some(path)
                && plugin.backend().is_some()
                && plugin.verdict.is_available()
                && origin.is_some_and(|origin| {
                    origin.entry.as_ref() == self.manifest.plugin(&found.name)
                        && origin.stamp.still_of(path)
                })
        };
        let found = self.before.iter().find(same)?;
        let mut plugin = found.clone();
        plugin.notice.clone_from(&found.origin.as_ref()?.notice);
        Some(plugin)
    }

    fn was_here(&self, name: &str, path: &Path) -> bool {
        let here = |plugin: &Plugin| plugin.origin.as_ref().is_some_and(|origin| origin.here);
        let same = |plugin: &&Plugin| plugin.name == name || plugin.path.as_deref() == Some(path);
        self.before.iter().filter(same).any(here)
    }
}
