//! What is loaded, who uses it, and who makes room.
//!
//! A model that is not in the book is not loaded. All changes are made under one lock, which nothing that takes time is done under;
//! whoever waits for one looks again at each.

mod room;
mod seen;

use super::Refused;
use super::budget;
use super::names::{Names, Served};
use super::size::Size;
use crate::error::{Error, Result};
use crate::manifest::{Bytes, KeepAlive};
use crate::registry::{Model, Registry};
use crate::serve::metrics::Metrics;
use crate::serve::{Notice, Options, Tell};
use backplane_plugin_api::types::ModelInfo;
use std::collections::BTreeMap;
use std::ops::Deref;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::watch;

/// How long a model that was loaded for a request waits for it, even where it is to be unloaded at once.
const FIRST_USE: Duration = Duration::from_secs(10);
/// How long nothing happens before idle models are looked for again.
const REST: Duration = Duration::from_secs(3600);

/// Every model that is served.
pub(in crate::serve) struct Models {
    registry: Arc<Registry>,
    names: Names,
    /// Bytes for all of them together.
    budget: Option<u64>,
    /// How long one waits for another to make room.
    patience: Option<Duration>,
    tell: Tell,
    metrics: Arc<Metrics>,
    book: Mutex<Book>,
    /// Counts changes of the book.
    changed: watch::Sender<u64>,
    runtime: tokio::runtime::Handle,
}

#[derive(Default)]
struct Book {
    slots: BTreeMap<String, Slot>,
    /// Loads so far.
    loads: u64,
    /// Nothing is loaded any more.
    closed: bool,
    /// Models to load at the start that the operator has unloaded.
    stopped: Vec<String>,
    /// Whether it was told that models take more than they may.
    told: bool,
}

impl Book {
    /// What all take; those that go take theirs until they have gone.
    fn taken(&self) -> u64 {
        let all = self.slots.values().map(|slot| slot.size.bytes());
        all.fold(0, u64::saturating_add)
    }

    /// What is taken once those that go have gone.
    fn left(&self) -> u64 {
        let stay = self.slots.values().filter(|slot| !slot.goes());
        let all = stay.map(|slot| slot.size.bytes());
        all.fold(0, u64::saturating_add)
    }

    /// Those that stay whatever is asked for, one aside.
    fn pinned(&self, but: &str) -> impl Iterator<Item = &Slot> {
        let stay = move |slot: &&Slot| slot.served.pinned && !slot.leaving && slot.served.id != but;
        self.slots.values().filter(stay)
    }

    /// Whom nobody has asked longest, of those that may go; one aside.
    fn oldest(&self, but: &str) -> Option<&Slot> {
        let may_go = |slot: &&Slot| {
            slot.is_idle() && !slot.served.pinned && !slot.goes() && slot.served.id != but
        };
        let idle = self.slots.values().filter(may_go);
        idle.min_by_key(|slot| slot.last)
    }
}

/// A model that is loaded, or is being loaded or unloaded.
struct Slot {
    served: Arc<Served>,
    state: State,
    /// What it takes, or is thought to take.
    size: Size,
    uses: usize,
    /// Whether it was ever used.
    used: bool,
    last: Instant,
    keep: KeepAlive,
    /// The how-manyth load it was.
    number: u64,
    /// Unload it as soon as nobody uses it.
    leaving: bool,
}

enum State {
    /// Told how it ended.
    Loading(watch::Receiver<Option<std::result::Result<(), Error>>>),
    Loaded(Model),
    Unloading,
}

impl Slot {
    fn is_idle(&self) -> bool {
        matches!(self.state, State::Loaded(_)) && self.uses == 0
    }

    /// Whether it makes room already.
    fn goes(&self) -> bool {
        matches!(self.state, State::Unloading) || self.leaving
    }

    /// When it is to be unloaded; `None`: never.
    fn due(&self) -> Option<Instant> {
        if !self.is_idle() {
            return None;
        }
        if self.leaving {
            return Some(self.last);
        }
        match self.keep {
            _ if self.served.pinned => None,
            KeepAlive::Forever => None,
            KeepAlive::For(time) if self.used => self.last.checked_add(time),
            KeepAlive::For(time) => self.last.checked_add(time.max(FIRST_USE)),
        }
    }
}

/// What became of a model that was to be unloaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::serve) enum Stopped {
    /// It is unloaded.
    Unloaded,
    /// It was not loaded.
    WasNot,
    /// It is unloaded when the replies that use it have ended.
    InUse(usize),
}

/// A model that is used: it stays loaded as long as this is there.
pub(in crate::serve) struct Use {
    models: Arc<Models>,
    served: Arc<Served>,
    model: Model,
    number: u64,
}

impl Deref for Use {
    type Target = Model;

    fn deref(&self) -> &Model {
        &self.model
    }
}

impl Use {
    /// Asks what it takes after a reply, where its engine has not told what it takes at most; idle ones go where it has grown too much.
    pub(in crate::serve) fn measure(&self) {
        {
            let book = self.models.book();
            let slot = book.slots.get(&self.served.id);
            let grows = |slot: &&Slot| slot.number == self.number && !slot.size.is_bound();
            let grows = slot.filter(grows).is_some();
            if self.models.budget.is_none() || !grows || self.model.is_gone() {
                return;
            }
        }
        let size = self.models.size_of(&self.served, &self.model);
        let mut book = self.models.book();
        let slot = book.slots.get_mut(&self.served.id);
        if let Some(slot) = slot.filter(|slot| slot.number == self.number) {
            slot.size = size;
            self.served.is_of(size);
        }
        self.models.within_budget(&mut book);
    }

    /// Which model it is.
    pub(in crate::serve) fn served(&self) -> &Arc<Served> {
        &self.served
    }
}

impl Drop for Use {
    fn drop(&mut self) {
        let mut book = self.models.book();
        let slot = book.slots.get_mut(&self.served.id);
        if let Some(slot) = slot.filter(|slot| slot.number == self.number) {
            slot.uses = slot.uses.saturating_sub(1);
            slot.last = Instant::now();
        }
        // Who was in use when room was needed may be who can go now.
        self.models.within_budget(&mut book);
        drop(book);
        self.models.change();
    }
}

/// What a request does next.
enum Step {
    Use(Use),
    Join(watch::Receiver<Option<std::result::Result<(), Error>>>),
    /// For what.
    Wait(String),
    Refuse(Refused),
}

impl Models {
    /// Those of the settings, none loaded yet.
    ///
    /// # Errors
    /// There is none, or two would have one name.
    pub(in crate::serve) fn new(
        registry: Arc<Registry>,
        options: &Options,
        tell: Tell,
        metrics: Arc<Metrics>,
        runtime: tokio::runtime::Handle,
    ) -> Result<Arc<Self>> {
        Ok(Arc::new(Self {
            names: Names::new(&registry, options)?,
            budget: budget::bytes(options.memory),
            patience: options.queue_time.0,
            registry,
            tell,
            metrics,
            book: Mutex::default(),
            changed: watch::Sender::new(0),
            runtime,
        }))
    }

    /// Bytes for all of them together; `None`: as much as they want.
    pub(in crate::serve) fn budget(&self) -> Option<u64> {
        self.budget
    }

    pub(in crate::serve) fn names(&self) -> &Names {
        &self.names
    }

    /// All that may be asked for.
    pub(in crate::serve) fn iter(&self) -> impl Iterator<Item = Arc<Served>> {
        self.names.all().into_iter()
    }

    fn book(&self) -> MutexGuard<'_, Book> {
        self.book.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn change(&self) {
        self.changed.send_modify(|count| *count += 1);
    }

    /// The model itself, where it is loaded. It may be unloaded while this is held: for a look at it, not for use.
    pub(in crate::serve) fn loaded(&self, served: &Served) -> Option<Model> {
        match &self.book().slots.get(&served.id)?.state {
            State::Loaded(model) => Some(model.clone()),
            _ => None,
        }
    }

    /// What it is: as it is loaded, or else as the first backend says that knows it. May look at the disk.
    pub(in crate::serve) fn info(&self, served: &Served) -> Option<ModelInfo> {
        if let Some(model) = self.loaded(served) {
            return Some(model.info());
        }
        let path = self.registry.catalog().resolve(&served.named).ok()?;
        let mut found = self.registry.inspect(&path).into_iter();
        found.find_map(|(_, inspection)| inspection.ok().flatten())
    }

    /// A model for use, loaded where it is not.
    ///
    /// # Errors
    /// It can't be loaded, it is too large for the memory, or no room was made in time.
    pub(in crate::serve) async fn acquire(
        self: &Arc<Self>,
        served: &Arc<Served>,
        keep: Option<KeepAlive>,
    ) -> std::result::Result<Use, Refused> {
        let mut changes = self.changed.subscribe();
        let late = async {
            match self.patience {
                Some(time) => tokio::time::sleep(time).await,
                None => std::future::pending().await,
            }
        };
        let mut late = std::pin::pin!(late);
        self.look_up(served).await;
        loop {
            changes.borrow_and_update();
            let why = match self.step(served, keep) {
                Step::Use(taken) => return Ok(taken),
                Step::Refuse(refused) => return Err(refused),
                Step::Join(mut load) => {
                    let ended = load.wait_for(Option::is_some).await;
                    let ended = ended.ok().and_then(|ended| ended.clone());
                    match ended {
                        Some(Ok(())) => continue,
                        Some(Err(error)) => return Err(Refused::Failed(error)),
                        None => {
                            let why = format!("{} is not loaded: its load was lost", served.id);
                            return Err(Refused::Later(why));
                        }
                    }
                }
                Step::Wait(why) => why,
            };
            tokio::select! {
                _ = changes.changed() => {}
                () = &mut late => return Err(Refused::Later(why)),
            }
        }
    }

    /// The same from a thread of its own.
    pub(super) fn acquire_blocking(
        self: &Arc<Self>,
        served: &Arc<Served>,
    ) -> std::result::Result<Use, Refused> {
        self.runtime.block_on(self.acquire(served, None))
    }

    /// Its size on disk and those of models that room is kept for, which are looked for once.
    async fn look_up(self: &Arc<Self>, served: &Arc<Served>) {
        let (models, served) = (self.clone(), served.clone());
        let look = move || {
            let kept = models.names.at_start();
            for one in kept.iter().chain([&served]) {
                one.bytes(&models.registry);
            }
        };
        let _ = tokio::task::spawn_blocking(look).await;
    }

    fn step(self: &Arc<Self>, served: &Arc<Served>, keep: Option<KeepAlive>) -> Step {
        let mut book = self.book();
        if book.closed {
            return Step::Refuse(Refused::Later("the server is stopping".to_owned()));
        }
        let most = self.budget.unwrap_or(u64::MAX);
        let (taken, left) = (book.taken(), book.left());
        if let Some(slot) = book.slots.get_mut(&served.id) {
            return match &slot.state {
                State::Loading(load) => Step::Join(load.clone()),
                State::Unloading => Step::Wait(format!("{} is being unloaded", served.id)),
                State::Loaded(_) if slot.leaving => {
                    Step::Wait(format!("{} is to be unloaded first", served.id))
                }
                // So that it comes to be idle, and can make room.
                State::Loaded(_) if left > most && slot.uses > 0 && !served.pinned => {
                    let (left, most) = (Bytes(left), Bytes(most));
                    Step::Wait(format!("models take {left}, and there are {most} for them"))
                }
                // What goes for it has its memory yet.
                State::Loaded(_) if !slot.used && taken > most && left <= most => {
                    Step::Wait(format!("room is being made for {}", served.id))
                }
                State::Loaded(model) => {
                    slot.uses += 1;
                    slot.used = true;
                    slot.keep = keep.unwrap_or(served.keep);
                    Step::Use(Use {
                        models: self.clone(),
                        served: served.clone(),
                        model: model.clone(),
                        number: slot.number,
                    })
                }
            };
        }
        let size = self.expects(&book, served);
        if let Some(waits) = self.make_room(&mut book, served, size) {
            return waits;
        }
        book.loads += 1;
        if book.stopped.contains(&served.id) {
            book.stopped.retain(|stopped| *stopped != served.id);
            served.begins_anew();
        }
        let (ended, load) = watch::channel(None);
        let slot = Slot {
            served: served.clone(),
            state: State::Loading(load.clone()),
            size,
            uses: 0,
            used: false,
            last: Instant::now(),
            keep: keep.unwrap_or(served.keep),
            number: book.loads,
            leaving: false,
        };
        book.slots.insert(served.id.clone(), slot);
        drop(book);
        let (models, served) = (self.clone(), served.clone());
        let thread = std::thread::Builder::new().name("loading".to_owned());
        let id = served.id.clone();
        // Where there is no thread the sender is dropped, and those that wait are told.
        if thread.spawn(move || models.load(&served, &ended)).is_err() {
            self.book().slots.remove(&id);
            self.change();
        }
        Step::Join(load)
    }

    fn load(
        self: Arc<Self>,
        served: &Arc<Served>,
        ended: &watch::Sender<Option<std::result::Result<(), Error>>>,
    ) {
        let result = match self.open(served) {
            Ok((model, size)) => {
                self.metrics.loads.add([served.id.clone()], 1);
                served.is_of(size);
                let mut book = self.book();
                if let Some(slot) = book.slots.get_mut(&served.id) {
                    slot.state = State::Loaded(model);
                    slot.last = Instant::now();
                    slot.size = size;
                }
                self.settle(&mut book, served, size)
            }
            Err(error) => {
                self.book().slots.remove(&served.id);
                Err(error)
            }
        };
        served.was_loaded(&result);
        if let Err(error) = result.as_ref()
            && !served.at_start
        {
            let (id, why) = (&served.id, error.line());
            (self.tell)(Notice::Note(format!("{id} is not loaded: {why}")));
        }
        ended.send_replace(Some(result));
        self.change();
    }

    /// Closes a model on a thread of its own; it takes its memory until then.
    fn begin_unload(self: &Arc<Self>, book: &mut Book, id: &str, why: String) {
        let Some(slot) = book.slots.get_mut(id) else {
            return;
        };
        let State::Loaded(model) = std::mem::replace(&mut slot.state, State::Unloading) else {
            return;
        };
        let (models, id, number) = (self.clone(), id.to_owned(), slot.number);
        let gone = id.clone();
        let work = move || {
            drop(model);
            models.forget(&id, number);
            models.metrics.unloads.add([id.clone()], 1);
            (models.tell)(Notice::Note(format!("{id} is unloaded: {why}")));
            models.change();
        };
        let thread = std::thread::Builder::new().name("unloading".to_owned());
        if let Err(error) = thread.spawn(work) {
            // It went with the work that is not done.
            tracing::error!("no thread to unload on: {error}");
            book.slots.remove(&gone);
        }
    }

    fn forget(&self, id: &str, number: u64) {
        let mut book = self.book();
        if book.slots.get(id).is_some_and(|slot| slot.number == number) {
            book.slots.remove(id);
        }
    }

    /// Unloads models that nobody has asked for long enough, until the server stops.
    pub(in crate::serve) async fn unload_idle(self: Arc<Self>) {
        let mut changes = self.changed.subscribe();
        loop {
            changes.borrow_and_update();
            let now = Instant::now();
            let mut next = now + REST;
            {
                let mut book = self.book();
                if book.closed {
                    return;
                }
                let mut due = Vec::new();
                for (id, slot) in &book.slots {
                    match slot.due() {
                        Some(at) if at <= now => {
                            let why = if slot.leaving {
                                "its operator says so".to_owned()
                            } else {
                                format!("nobody asked it for {}", slot.keep)
                            };
                            due.push((id.clone(), why));
                        }
                        Some(at) => next = next.min(at),
                        None => {}
                    }
                }
                for (id, why) in due {
                    self.begin_unload(&mut book, &id, why);
                }
            }
            tokio::select! {
                _ = changes.changed() => {}
                () = tokio::time::sleep_until(next.into()) => {}
            }
        }
    }

    /// Unloads a model at its operator's wish; waits for it, unless it is in use.
    pub(in crate::serve) async fn stop(&self, served: &Served) -> Stopped {
        let mut changes = self.changed.subscribe();
        let number = {
            let mut book = self.book();
            let Some(slot) = book.slots.get_mut(&served.id) else {
                return Stopped::WasNot;
            };
            slot.leaving = true;
            let number = slot.number;
            if served.at_start && !book.stopped.contains(&served.id) {
                book.stopped.push(served.id.clone());
            }
            number
        };
        self.change();
        loop {
            changes.borrow_and_update();
            match self.book().slots.get(&served.id) {
                Some(slot) if slot.number == number => {
                    if slot.uses > 0 {
                        return Stopped::InUse(slot.uses);
                    }
                }
                _ => return Stopped::Unloaded,
            }
            let _ = changes.changed().await;
        }
    }

    /// Closes all models in the reverse order of their loading, and lets none be loaded any more. Blocks.
    pub(in crate::serve) fn close(&self) {
        let mut models: Vec<(u64, String, Model)> = Vec::new();
        {
            let mut book = self.book();
            book.closed = true;
            for (id, slot) in &mut book.slots {
                if let State::Loaded(model) = std::mem::replace(&mut slot.state, State::Unloading) {
                    models.push((slot.number, id.clone(), model));
                }
            }
        }
        self.change();
        models.sort_by_key(|(number, ..)| std::cmp::Reverse(*number));
        for (number, id, model) in models {
            tracing::info!("{id} is closed");
            drop(model);
            self.forget(&id, number);
        }
    }
}
