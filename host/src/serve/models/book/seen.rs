//! What is seen of models from outside, and whether they are ready.

use super::{Models, Served, State};
use serde::Serialize;
use std::time::Instant;

/// What is seen of a model from outside.
#[derive(Clone, Debug, Serialize)]
pub(in crate::serve) struct Seen {
    pub(in crate::serve) name: String,
    pub(in crate::serve) aliases: Vec<String>,
    /// `loaded`, `loading`, `unloading` or `unloaded`.
    pub(in crate::serve) state: &'static str,
    pub(in crate::serve) pinned: bool,
    pub(in crate::serve) backend: Option<String>,
    pub(in crate::serve) device: Option<String>,
    /// What it takes, as far as that is known.
    pub(in crate::serve) size_bytes: u64,
    /// Tokens.
    pub(in crate::serve) context: Option<u64>,
    pub(in crate::serve) in_use: usize,
    pub(in crate::serve) idle_s: Option<f64>,
    /// Seconds until it is unloaded, if nobody asks it.
    pub(in crate::serve) expires_s: Option<f64>,
    /// What is to be known of the choice of its backend.
    pub(in crate::serve) notice: Option<String>,
}

impl Models {
    /// What is seen of one.
    pub(in crate::serve) fn seen(&self, served: &Served) -> Seen {
        let mut seen = Seen {
            name: served.id.clone(),
            aliases: served.aliases.clone(),
            state: "unloaded",
            pinned: served.pinned,
            backend: None,
            device: served.device(),
            size_bytes: 0,
            context: None,
            in_use: 0,
            idle_s: None,
            expires_s: None,
            notice: None,
        };
        let model = {
            let book = self.book();
            let Some(slot) = book.slots.get(&served.id) else {
                return seen;
            };
            seen.size_bytes = slot.size.bytes();
            seen.in_use = slot.uses;
            let now = Instant::now();
            if slot.is_idle() {
                seen.idle_s = Some(now.duration_since(slot.last).as_secs_f64());
            }
            let due = slot.due();
            seen.expires_s = due.map(|due| due.saturating_duration_since(now).as_secs_f64());
            match &slot.state {
                State::Loading(_) => {
                    seen.state = "loading";
                    return seen;
                }
                State::Unloading => {
                    seen.state = "unloading";
                    return seen;
                }
                State::Loaded(model) => model.clone(),
            }
        };
        // Asked without the lock: an engine may take its time.
        let info = model.info();
        seen.state = if model.is_gone() { "gone" } else { "loaded" };
        seen.backend = Some(model.backend());
        seen.context = (info.loaded_context > 0).then_some(info.loaded_context);
        seen.notice = model.trace().notice;
        let device = info.details.iter().find(|(name, _)| name == "device");
        seen.device = seen
            .device
            .or_else(|| device.map(|(_, device)| device.clone()));
        seen
    }

    /// Why not every model that is loaded at the start has answered, or where there is none, why none can be loaded when it is asked
    /// for. Looks at the disk.
    pub(in crate::serve) fn not_ready(&self) -> Vec<String> {
        let named = self.names.at_start();
        if !named.is_empty() {
            let named = named.iter();
            return named.filter_map(|served| self.unready(served)).collect();
        }
        let mut reasons = Vec::new();
        for served in self.names.all() {
            let why = match self.loaded(&served) {
                Some(_) => None,
                None => {
                    let there = served.is_there(&self.registry);
                    there
                        .err()
                        .map(|error| error.line())
                        .or_else(|| served.failed())
                }
            };
            match why {
                Some(why) => reasons.push(format!("{}: {why}", served.id)),
                None => return Vec::new(),
            }
        }
        if reasons.is_empty() {
            let folder = self
                .names
                .folder()
                .map(|folder| folder.display().to_string());
            let folder = folder.unwrap_or_default();
            reasons.push(format!(
                "there is no model: the model folder {folder} has none"
            ));
        }
        reasons
    }

    /// Why one that is loaded at the start is not ready; `None` where it is.
    pub(in crate::serve) fn unready(&self, served: &Served) -> Option<String> {
        let id = &served.id;
        let book = self.book();
        let stopped = || format!("{id} was stopped; the next request for it loads it");
        let Some(slot) = book.slots.get(id) else {
            if book.stopped.contains(id) {
                return Some(stopped());
            }
            // One that was unloaded when idle is loaded by the next request.
            return (!served.answered()).then(|| format!("{id} is not loaded yet"));
        };
        match &slot.state {
            _ if book.stopped.contains(id) => Some(stopped()),
            State::Loaded(model) if model.is_gone() => Some(format!(
                "{id}: its engine is gone; the next request loads it anew"
            )),
            _ if served.answered() => None,
            State::Loaded(_) => {
                let why = served.ailing();
                Some(why.unwrap_or_else(|| format!("{id} has not answered yet")))
            }
            _ => Some(format!("{id} is being loaded")),
        }
    }
}
