//! Noticing that manifest, directories or modules have changed.
//!
//! By looking, not by the system's notices: those don't come from network file systems, and stop when a folder is
//! replaced. A look reads no file.

use super::Registry;
use super::discover::{self, Found};
use super::stamp::Stamp;
use crate::folders::Folders;
use crate::manifest::locate;
use std::path::PathBuf;
use std::sync::Arc;

/// What could be seen of manifest and modules at one moment.
type Sight = Vec<(PathBuf, Stamp)>;

/// Tells when there is something to [reload](Registry::reload).
#[derive(Debug)]
pub struct Watch {
    registry: Arc<Registry>,
    /// As it was when it was last reloaded.
    known: Sight,
    /// As it was at the last look, where that was another.
    last: Option<Sight>,
}

impl Watch {
    /// A watch over what a registry has looked at; what changes from now on is noticed.
    pub fn new(registry: Arc<Registry>) -> Self {
        let known = sight(&registry);
        Self {
            registry,
            known,
            last: None,
        }
    }

    /// Looks. True when something has changed and was the same at the look before, so that no file is taken that is still
    /// being written; true once for each change. To be called every second or so.
    pub fn is_due(&mut self) -> bool {
        let now = sight(&self.registry);
        if now == self.known {
            self.last = None;
            return false;
        }
        if self.last.as_ref() == Some(&now) {
            self.known = now;
            self.last = None;
            return true;
        }
        self.last = Some(now);
        false
    }
}

fn sight(registry: &Registry) -> Sight {
    let named = registry.named.as_ref();
    let places = named.map(|named| manifests(named.as_ref(), registry.folders()));
    // What the manifest says now, so that a directory that it has come to name is looked at; where it can't be read, what
    // it said before.
    let read = named.and_then(|named| locate(named.as_deref(), registry.folders()).ok());
    let old = registry.manifest();
    let nobody = tracing::subscriber::NoSubscriber::default();
    // What there is to say was said when it was looked at to be opened.
    let found = tracing::subscriber::with_default(nobody, || {
        discover::discover(read.as_ref().unwrap_or(&old))
    });
    let modules = found.into_iter().filter_map(|found: Found| found.path);
    let all = places.into_iter().flatten().chain(modules);
    all.map(|path| {
        let stamp = Stamp::of(&path);
        (path, stamp)
    })
    .collect()
}

/// Where a manifest may be, or come to be.
fn manifests(named: Option<&PathBuf>, folders: &Folders) -> Vec<PathBuf> {
    if let Some(one) = named.or(folders.manifest.as_ref()) {
        return vec![folders.expand(one)];
    }
    let places = [&folders.config, &folders.system, &folders.executable];
    let places = places.into_iter().flatten();
    places.map(|folder| folder.join("plugins.toml")).collect()
}
