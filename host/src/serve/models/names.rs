//! Which models there are, by the names that clients call them.

use super::size::Size;
use crate::catalog::{bytes_on_disk, model_name, scan};
use crate::error::{Error, Result};
use crate::manifest::KeepAlive;
use crate::nearest::suggestion;
use crate::registry::{ModelOptions, Registry};
use crate::serve::Options;
use crate::serve::errors::Problem;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock};
use std::time::{Duration, Instant};

/// How long what was found in the model folder holds.
const FRESH: Duration = Duration::from_secs(2);

/// How long a model counts as one that can't be served once its load has failed.
const LATELY: Duration = Duration::from_secs(60);

/// One model that may be asked for.
#[derive(Debug)]
pub(in crate::serve) struct Served {
    /// What clients call it.
    pub(in crate::serve) id: String,
    /// What they may call it as well.
    pub(in crate::serve) aliases: Vec<String>,
    /// What the operator calls it: a path, a name, or `BACKEND:NAME`.
    pub(super) named: String,
    loading: ModelOptions,
    /// Whether it is loaded at the start.
    pub(in crate::serve) at_start: bool,
    /// Whether it stays, whatever happens.
    pub(in crate::serve) pinned: bool,
    /// How long it stays when nobody asks it.
    pub(super) keep: KeepAlive,
    /// Bytes on disk.
    bytes: OnceLock<u64>,
    /// What it took when it was loaded last.
    size: RwLock<Option<Size>>,
    /// Tokens of its cache, where the engine's own choice of them does not fit.
    cache: RwLock<Option<u32>>,
    /// Whether it has answered.
    ready: AtomicBool,
    /// Why its first answer failed.
    ailing: RwLock<Option<String>>,
    /// Why its last load failed, and when.
    failed: RwLock<Option<(Instant, String)>>,
}

impl Served {
    fn new(id: String, named: String, options: &Options) -> Self {
        Self {
            id,
            aliases: Vec::new(),
            named,
            loading: options.loading(),
            at_start: false,
            pinned: false,
            keep: options.keep_alive,
            bytes: OnceLock::new(),
            size: RwLock::default(),
            cache: RwLock::default(),
            ready: AtomicBool::new(false),
            ailing: RwLock::default(),
            failed: RwLock::default(),
        }
    }

    /// Whether a client may mean it.
    fn is_called(&self, name: &str) -> bool {
        let mut names = std::iter::once(&self.id).chain(&self.aliases);
        names.any(|known| known.eq_ignore_ascii_case(name))
    }

    pub(in crate::serve) fn has_answered(&self) {
        self.ready.store(true, Ordering::Release);
    }

    pub(in crate::serve) fn answered(&self) -> bool {
        self.ready.load(Ordering::Acquire)
    }

    /// It counts as one that has not answered yet.
    pub(super) fn begins_anew(&self) {
        self.ready.store(false, Ordering::Release);
        let ailing = self.ailing.write();
        *ailing.unwrap_or_else(PoisonError::into_inner) = None;
    }

    /// How its last load went.
    pub(super) fn was_loaded(&self, result: &Result<()>) {
        let why = result.as_ref().err();
        let why = why.map(|error| (Instant::now(), error.line()));
        let failed = self.failed.write();
        *failed.unwrap_or_else(PoisonError::into_inner) = why;
    }

    /// Why it could not be loaded a short while ago. What failed longer ago may be mended.
    pub(super) fn failed(&self) -> Option<String> {
        let failed = self.failed.read().unwrap_or_else(PoisonError::into_inner);
        let lately = failed.as_ref().filter(|(at, _)| at.elapsed() < LATELY);
        lately.map(|(_, why)| why.clone())
    }

    pub(super) fn is_ailing(&self, why: String) {
        let ailing = self.ailing.write();
        *ailing.unwrap_or_else(PoisonError::into_inner) = Some(why);
    }

    pub(super) fn ailing(&self) -> Option<String> {
        let ailing = self.ailing.read().unwrap_or_else(PoisonError::into_inner);
        ailing.clone()
    }

    /// How it is loaded.
    pub(super) fn loading(&self) -> ModelOptions {
        let mut loading = self.loading.clone();
        let cache = *self.cache.read().unwrap_or_else(PoisonError::into_inner);
        if let Some(tokens) = cache {
            let extra = &mut loading.load.extra;
            extra.insert("cache_tokens".to_owned(), tokens.into());
        }
        loading
    }

    /// Whether it is there to be loaded. Looks at the disk.
    ///
    /// # Errors
    /// There is no such file, or no such backend.
    pub(super) fn is_there(&self, registry: &Registry) -> Result<()> {
        registry.meant(&self.named, &self.loading()).map(drop)
    }

    /// The device that it is to be on.
    pub(super) fn device(&self) -> Option<String> {
        self.loading.load.device.clone()
    }

    /// The setting by which its operator says how large its cache is; `None` where that is left open.
    pub(super) fn cache_is_set(&self) -> Option<&'static str> {
        let load = &self.loading.load;
        match load.extra.contains_key("cache_tokens") {
            true => Some("cache_tokens"),
            false => load.parallel.map(|_| "parallel"),
        }
    }

    /// For how many tokens its operator wants its cache to have room; `None`: one context of the engine's own choice.
    pub(super) fn cache_wanted(&self) -> Option<u64> {
        let load = &self.loading.load;
        let context = load.context.map(u64::from);
        match load.extra.get("cache_tokens") {
            Some(tokens) => tokens.as_u64(),
            None => {
                context.map(|context| context.saturating_mul(load.parallel.unwrap_or(1).into()))
            }
        }
    }

    pub(super) fn has_cache_of(&self, tokens: u32) {
        let cache = self.cache.write();
        *cache.unwrap_or_else(PoisonError::into_inner) = Some(tokens);
    }

    /// What it takes, or is thought to take as long as it was never loaded. May look at the disk.
    pub(super) fn size(&self, registry: &Registry) -> Size {
        let known = *self.size.read().unwrap_or_else(PoisonError::into_inner);
        known.unwrap_or_else(|| Size::of_file(self.bytes(registry)))
    }

    pub(super) fn is_of(&self, size: Size) {
        let known = self.size.write();
        *known.unwrap_or_else(PoisonError::into_inner) = Some(size);
    }

    /// Its size on disk, which stands for what it takes until it is loaded; 0 for one that is no file. May look at the disk.
    pub(super) fn bytes(&self, registry: &Registry) -> u64 {
        let look = || {
            let path = registry.catalog().resolve(&self.named);
            path.map_or(0, |path| bytes_on_disk(&path))
        };
        *self.bytes.get_or_init(look)
    }
}

/// All names.
#[derive(Debug)]
pub(in crate::serve) struct Names {
    /// Those that the operator named, in that order.
    fixed: Vec<Arc<Served>>,
    /// The model folder, where its models may be asked for.
    folder: Option<PathBuf>,
    options: Options,
    found: Mutex<Found>,
}

#[derive(Debug, Default)]
struct Found {
    at: Option<Instant>,
    models: BTreeMap<PathBuf, Arc<Served>>,
}

impl Names {
    /// Those of the settings.
    ///
    /// # Errors
    /// There is none, or two models would have one name.
    pub(super) fn new(registry: &Registry, options: &Options) -> Result<Self> {
        let mut fixed: Vec<Served> = Vec::new();
        for (id, entry) in &options.entries {
            let named = entry.model.clone().unwrap_or_else(|| id.clone());
            let pinned = entry.pinned.unwrap_or(false);
            fixed.push(Served {
                aliases: entry.aliases.clone(),
                loading: options.loading_of(entry),
                at_start: pinned,
                pinned,
                keep: entry.keep_alive.unwrap_or(options.keep_alive),
                ..Served::new(id.clone(), named, options)
            });
        }
        for named in &options.models {
            let id = model_name(Path::new(named.trim_end_matches('/')));
            let entries = &mut fixed[..options.entries.len()];
            if let Some(entry) = entries.iter_mut().find(|one| one.is_called(named)) {
                let stated = options
                    .entries
                    .get(&entry.id)
                    .and_then(|entry| entry.pinned);
                entry.at_start = true;
                entry.pinned = stated.unwrap_or(options.pin);
                continue;
            }
            if let Some(other) = fixed.iter().find(|one| one.is_called(&id)) {
                let message = format!("`{named}` and `{}` have one name: {id}", other.named);
                return Err(Error::usage(message, "serve one of them"));
            }
            fixed.push(Served {
                at_start: true,
                pinned: options.pin,
                ..Served::new(id, named.clone(), options)
            });
        }
        let on_demand = options.on_demand.unwrap_or(options.models.is_empty());
        let folder = registry.catalog().folder().map(Path::to_path_buf);
        let folder = folder.filter(|_| on_demand);
        if fixed.is_empty() && folder.is_none() {
            let action = "backplane serve MODEL; `backplane models` lists them";
            return Err(Error::usage("no model is named", action));
        }
        Ok(Self {
            fixed: fixed.into_iter().map(Arc::new).collect(),
            folder,
            options: options.clone(),
            found: Mutex::default(),
        })
    }

    /// The folder whose models may be asked for.
    pub(in crate::serve) fn folder(&self) -> Option<&Path> {
        self.folder.as_deref()
    }

    /// Those to load at the start.
    pub(in crate::serve) fn at_start(&self) -> Vec<Arc<Served>> {
        let named = self.fixed.iter().filter(|served| served.at_start);
        named.cloned().collect()
    }

    /// All: those that the operator named, then those of the model folder by name.
    pub(in crate::serve) fn all(&self) -> Vec<Arc<Served>> {
        let mut all = self.fixed.clone();
        let mut found = self.found();
        found.sort_by_key(|one| one.id.to_lowercase());
        all.extend(found);
        all
    }

    /// The model of a name, whatever its case.
    pub(super) fn find(&self, name: &str) -> std::result::Result<Arc<Served>, Problem> {
        if let Some(served) = self.fixed.iter().find(|one| one.is_called(name)) {
            return Ok(served.clone());
        }
        let found = self.found();
        if let Some(served) = found.iter().find(|one| one.is_called(name)) {
            return Ok(served.clone());
        }
        let known = self.fixed.iter().chain(&found).map(|one| one.id.as_str());
        let nothing = "the model folder is empty";
        Err(Problem::no_model(name, &suggestion(name, known, nothing)))
    }

    /// What is in the model folder now. Two of one name are called by their paths in it.
    fn found(&self) -> Vec<Arc<Served>> {
        let Some(folder) = &self.folder else {
            return Vec::new();
        };
        let mut found = self.found.lock().unwrap_or_else(PoisonError::into_inner);
        if found.at.is_none_or(|at| at.elapsed() > FRESH) {
            let paths: Vec<PathBuf> = scan(folder).collect();
            let mut seen = BTreeSet::new();
            let mut twice = BTreeSet::new();
            for path in &paths {
                let name = model_name(path).to_lowercase();
                if !seen.insert(name.clone()) {
                    twice.insert(name);
                }
            }
            let mut models = BTreeMap::new();
            for path in paths {
                let mut id = model_name(&path);
                if twice.contains(&id.to_lowercase()) {
                    let relative = path.strip_prefix(folder).unwrap_or(&path);
                    let text = relative.to_string_lossy().replace('\\', "/");
                    id = text.strip_suffix(".gguf").unwrap_or(&text).to_owned();
                }
                // What the operator named comes first.
                if self.fixed.iter().any(|one| one.is_called(&id)) {
                    continue;
                }
                let before = found.models.get(&path).filter(|one| one.id == id);
                let served = before.cloned().unwrap_or_else(|| {
                    let named = path.to_string_lossy().into_owned();
                    Arc::new(Served::new(id, named, &self.options))
                });
                models.insert(path, served);
            }
            *found = Found {
                at: Some(Instant::now()),
                models,
            };
        }
        found.models.values().cloned().collect()
    }
}
