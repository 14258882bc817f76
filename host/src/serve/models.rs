//! The models that are served: loading, ready, or not.

use super::errors::Problem;
use super::{Notice, Options, Tell};
use crate::catalog::model_name;
use crate::error::{Error, Result};
use crate::nearest::suggestion;
use crate::registry::{Model, Registry};
use backplane_plugin_api::types::{
    Control, Event, GenerateOptions, GenerateRequest, ModelInfo, Prompt,
};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{OnceLock, PoisonError, RwLock};

/// One model.
#[derive(Debug)]
pub(super) struct Served {
    /// What clients call it.
    pub(super) id: String,
    /// What the operator called it.
    named: String,
    model: OnceLock<Model>,
    /// Whether it has answered.
    ready: AtomicBool,
    /// Why its first answer failed.
    ailing: RwLock<Option<String>>,
}

impl Served {
    /// One for each model that is to be served, none loaded yet.
    ///
    /// # Errors
    /// There is none, or two would have one name.
    pub(super) fn all(options: &Options) -> Result<Vec<Self>> {
        if options.models.is_empty() {
            let action = "backplane serve MODEL; `backplane models` lists them";
            return Err(Error::usage("no model is named", action));
        }
        let mut all: Vec<Self> = Vec::new();
        for named in &options.models {
            let id = model_name(Path::new(named.trim_end_matches('/')));
            if let Some(other) = all.iter().find(|one| one.id.eq_ignore_ascii_case(&id)) {
                let message = format!("`{named}` and `{}` have one name: {id}", other.named);
                return Err(Error::usage(message, "serve one of them"));
            }
            all.push(Self {
                id,
                named: named.clone(),
                model: OnceLock::new(),
                ready: AtomicBool::new(false),
                ailing: RwLock::default(),
            });
        }
        Ok(all)
    }

    /// Loads it, and has it answer.
    ///
    /// # Errors
    /// It can't be loaded.
    pub(super) fn load(&self, registry: &Registry, options: &Options, tell: &Tell) -> Result<()> {
        let model = registry.load(&self.named, &options.loading())?;
        let first = GenerateRequest {
            prompt: Prompt::text("Hello"),
            options: GenerateOptions {
                max_tokens: Some(1),
                ..GenerateOptions::default()
            },
        };
        let answer = model.generate(&first, &mut |_: Event<'_>| Control::Continue);
        let _ = self.model.set(model);
        match answer {
            Ok(_) => {
                self.has_answered();
                tell(Notice::Ready(self.id.clone()));
            }
            Err(error) => {
                let why = format!("{}: its first answer failed: {error}", self.id);
                tell(Notice::Note(why.clone()));
                let ailing = self.ailing.write();
                *ailing.unwrap_or_else(PoisonError::into_inner) = Some(why);
            }
        }
        Ok(())
    }

    pub(super) fn has_answered(&self) {
        self.ready.store(true, Ordering::Release);
    }

    /// The model, where it is loaded.
    pub(super) fn loaded(&self) -> Option<&Model> {
        self.model.get()
    }

    /// What it is: as it is loaded, or else as the first backend says that knows it.
    pub(super) fn info(&self, registry: &Registry) -> Option<ModelInfo> {
        if let Some(model) = self.model.get() {
            return Some(model.info());
        }
        let path = registry.catalog().resolve(&self.named).ok()?;
        let mut found = registry.inspect(&path).into_iter();
        found.find_map(|(_, inspection)| inspection.ok().flatten())
    }

    /// The model for a request.
    ///
    /// # Errors
    /// It is being loaded.
    pub(super) fn model(&self) -> std::result::Result<&Model, Problem> {
        let loading = || Problem::unavailable(format!("{} is being loaded", self.id), Some(1));
        self.model.get().ok_or_else(loading)
    }

    /// Why it is not ready; `None` where it is.
    pub(super) fn unready(&self) -> Option<String> {
        if self.model.get().is_some_and(Model::is_gone) {
            return Some(format!(
                "{}: its engine is gone; the next request loads it anew",
                self.id
            ));
        }
        if self.ready.load(Ordering::Acquire) {
            return None;
        }
        let ailing = self.ailing.read().unwrap_or_else(PoisonError::into_inner);
        let why = ailing.clone();
        Some(why.unwrap_or_else(|| match self.model.get() {
            Some(_) => format!("{} has not answered yet", self.id),
            None => format!("{} is being loaded", self.id),
        }))
    }
}

/// The model of a name, whatever its case.
///
/// # Errors
/// There is none.
pub(super) fn find<'a>(all: &'a [Served], name: &str) -> std::result::Result<&'a Served, Problem> {
    let found = all.iter().find(|one| one.id.eq_ignore_ascii_case(name));
    found.ok_or_else(|| {
        let known = all.iter().map(|one| one.id.as_str());
        Problem::no_model(name, &suggestion(name, known, ""))
    })
}

/// The model of a name, or where none is given the only one.
///
/// # Errors
/// There is none, or no name and several.
pub(super) fn find_or_only<'a>(
    all: &'a [Served],
    name: &str,
) -> std::result::Result<&'a Served, Problem> {
    match all {
        [only] if name.is_empty() => Ok(only),
        _ if name.is_empty() => {
            let message = "expected the name of a model, as several are served";
            Err(Problem::field("model", message))
        }
        all => find(all, name),
    }
}
