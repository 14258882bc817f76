//! Who fits where, and who makes room.

use super::{Book, Models, Refused, Step};
use crate::error::{Error, Result};
use crate::manifest::Bytes;
use crate::registry::Model;
use crate::serve::Notice;
use crate::serve::models::names::Served;
use crate::serve::models::size::{Size, cache_guess};
use std::sync::Arc;

const MIB: u64 = 1 << 20;

/// What of the memory a model may have at most, whoever goes for it, and who has the rest.
struct Room {
    all: u64,
    /// Pinned models that are loaded, and what they take.
    held: Vec<(String, Size)>,
    /// Pinned models that are not loaded yet, and what they take at least.
    kept: Vec<(String, u64)>,
}

impl Room {
    /// What others have or are to have.
    fn others(&self) -> u64 {
        let held = self.held.iter().map(|(_, size)| size.bytes());
        let kept = self.kept.iter().map(|(_, bytes)| *bytes);
        held.chain(kept).fold(0, u64::saturating_add)
    }

    fn free(&self) -> u64 {
        self.all.saturating_sub(self.others())
    }

    /// Why a model has none here, and what helps.
    fn refusal(&self, served: &Served, needs: Size) -> Error {
        let (id, all) = (&served.id, Bytes(self.all));
        let open = needs.is_bound() && served.cache_is_set().is_none();
        let least = if open { " at least" } else { "" };
        let mut message = format!("{id} takes{least} {needs}, and there are {all} for models");
        let held = self.held.iter();
        let held =
            held.map(|(id, size)| format!("{id}, which is pinned, has {}", Bytes(size.bytes())));
        let kept = self.kept.iter();
        let kept = kept.map(|(id, bytes)| format!("{id} is to have {} at least", Bytes(*bytes)));
        let others: Vec<String> = held.chain(kept).collect();
        if !others.is_empty() {
            let free = Bytes(self.free());
            message += &format!(", of which {free} are free: {}", others.join(", "));
        }
        Error::ModelUnusable {
            message,
            action: self.remedy(served, needs),
            trace: None,
        }
    }

    /// What can be set otherwise so that it fits.
    fn remedy(&self, served: &Served, needs: Size) -> String {
        let mut ways = Vec::new();
        // With no cache at all it would fit.
        if needs.is_bound() && needs.without_cache() < self.free() {
            ways.push(match served.cache_is_set() {
                None => "lower its `context`",
                Some("parallel") => "lower its `parallel` or `context`",
                Some(_) => "lower its `cache_tokens`",
            });
        }
        if self.held.iter().any(|(_, size)| *size != size.least()) {
            ways.push("set a smaller `cache_tokens` for what is pinned");
        }
        if !self.held.is_empty() || !self.kept.is_empty() {
            ways.push("pin fewer models");
        }
        ways.push("choose a smaller model");
        let enough = needs.bytes().saturating_add(self.others());
        // Of larger units there would be too few.
        let enough = enough.div_ceil(MIB);
        format!("{}, or raise `memory` to {enough}MiB", ways.join(", "))
    }
}

impl Models {
    /// What room there is for a model, where there is a limit.
    fn room(&self, book: &Book, served: &Served) -> Option<Room> {
        let all = self.budget?;
        let held = book.pinned(&served.id);
        let held = held
            .map(|slot| (slot.served.id.clone(), slot.size))
            .collect();
        let kept = self.to_come(book, served).into_iter();
        let kept = kept.map(|one| (one.id.clone(), one.size(&self.registry).least().bytes()));
        Some(Room {
            all,
            held,
            kept: kept.collect(),
        })
    }

    /// Pinned models that are loaded at the start, and are not yet; one aside.
    fn to_come(&self, book: &Book, but: &Served) -> Vec<Arc<Served>> {
        let mut all = self.names.at_start();
        all.retain(|one| {
            let there = book.slots.contains_key(&one.id) || book.stopped.contains(&one.id);
            one.pinned && one.id != but.id && !there
        });
        all
    }

    /// What it takes: with the smallest cache where it never fits with the largest, and that is left open.
    pub(super) fn expects(&self, book: &Book, served: &Served) -> Size {
        let size = served.size(&self.registry);
        let fits = |room: Room| size.bytes() <= room.free();
        match served.cache_is_set().is_some() || self.room(book, served).is_none_or(fits) {
            true => size,
            false => size.least(),
        }
    }

    /// Why it never fits beside those that are pinned.
    fn too_large(&self, book: &Book, served: &Served, size: Size) -> Option<Error> {
        let room = self.room(book, served)?;
        let needs = match served.cache_is_set() {
            None => size.least(),
            Some(_) => size,
        };
        (needs.bytes() > room.free()).then(|| room.refusal(served, needs))
    }

    /// Unloads those that were not asked longest until so much more fits; what is left then.
    fn clear(self: &Arc<Self>, book: &mut Book, served: &Served, more: u64) -> u64 {
        // What goes already counts as gone, so that no more than is needed follows it.
        let mut left = book.left();
        while left.saturating_add(more) > self.budget.unwrap_or(u64::MAX) {
            let Some(oldest) = book.oldest(&served.id) else {
                break;
            };
            let (id, bytes) = (oldest.served.id.clone(), oldest.size.bytes());
            left = left.saturating_sub(bytes);
            self.begin_unload(book, &id, format!("to make room for {}", served.id));
        }
        left
    }

    /// Sees to it that there is room; what to do instead where there is none yet.
    pub(super) fn make_room(
        self: &Arc<Self>,
        book: &mut Book,
        served: &Served,
        size: Size,
    ) -> Option<Step> {
        let budget = self.budget?;
        if book.taken().saturating_add(size.bytes()) <= budget {
            return None;
        }
        if let Some(error) = self.too_large(book, served, size) {
            return Some(Step::Refuse(Refused::Failed(error)));
        }
        let left = Bytes(self.clear(book, served, size.bytes()));
        let (id, all) = (&served.id, Bytes(budget));
        let others = book.slots.values().filter(|slot| slot.served.id != *id);
        let others: Vec<&str> = others.map(|slot| slot.served.id.as_str()).collect();
        Some(Step::Wait(format!(
            "{id} takes {size}, and of {all} for models (`memory`) {left} are in use, by {}",
            others.join(", ")
        )))
    }

    /// What a model that is loaded takes at most, or now where its engine does not tell that.
    pub(super) fn size_of(&self, served: &Served, model: &Model) -> Size {
        let info = model.info();
        let weights = info.file_bytes.max(served.bytes(&self.registry));
        Size::told(weights, info.loaded_context, &model.metrics())
    }

    /// Bytes that a model may come to take: all that is left, or where pinned models are to be loaded yet, a share of what is left
    /// for caches.
    fn share(&self, served: &Served, size: Size) -> Option<u64> {
        let (room, to_come) = {
            let book = self.book();
            (self.room(&book, served)?, self.to_come(&book, served))
        };
        let free = room.free();
        if to_come.is_empty() {
            return Some(free);
        }
        let guess = |one: &Served| {
            let info = self.info(one)?;
            cache_guess(&info.details, info.context_length, one.cache_wanted())
        };
        // What the others compute in is not known yet: thought to be as much as this one does.
        let buffers = size.buffers().saturating_mul(to_come.len() as u64);
        let caches = free.saturating_sub(size.without_cache().saturating_add(buffers));
        let others: Option<Vec<u64>> = to_come.iter().map(|one| guess(one)).collect();
        let part = match guess(served).zip(others) {
            Some((own, others)) => {
                let all = others
                    .into_iter()
                    .fold(u128::from(own), |all, one| all + u128::from(one));
                (u128::from(caches) * u128::from(own) / all) as u64
            }
            None => caches / (to_come.len() as u64 + 1),
        };
        let share = size.without_cache().saturating_add(part);
        Some(share.max(size.least().bytes()).min(free))
    }

    /// Loads it, with a smaller cache where the engine's own choice of one never fits.
    pub(super) fn open(&self, served: &Served) -> Result<(Model, Size)> {
        let model = self.registry.load(&served.named, &served.loading())?;
        let size = self.size_of(served, &model);
        if served.cache_is_set().is_some() || !size.is_bound() {
            return Ok((model, size));
        }
        let room = self.share(served, size);
        let Some(room) = room.filter(|room| size.bytes() > *room) else {
            return Ok((model, size));
        };
        let Some(tokens) = size.cache_within(room) else {
            return Ok((model, size));
        };
        drop(model);
        (self.tell)(Notice::Note(format!(
            "{} takes {size}, and there are {} for it: its cache gets room for {tokens} tokens",
            served.id,
            Bytes(room)
        )));
        served.has_cache_of(tokens);
        let model = self.registry.load(&served.named, &served.loading())?;
        let size = self.size_of(served, &model);
        Ok((model, size))
    }

    /// Makes room for what a model that was just loaded takes more than was thought; where there is none yet, it is unloaded
    /// again, and who asks for it waits, with what is known now.
    pub(super) fn settle(
        self: &Arc<Self>,
        book: &mut Book,
        served: &Served,
        size: Size,
    ) -> Result<()> {
        if let Some(error) = self.too_large(book, served, size) {
            self.begin_unload(book, &served.id, "it does not fit".to_owned());
            return Err(error);
        }
        let left = self.clear(book, served, 0);
        if self.budget.is_some_and(|budget| left > budget) {
            self.begin_unload(book, &served.id, "it waits for room".to_owned());
        }
        Ok(())
    }

    /// Unloads idle models, those first that were not asked longest, where one has grown.
    pub(super) fn within_budget(self: &Arc<Self>, book: &mut Book) {
        let Some(budget) = self.budget else { return };
        let mut left = book.left();
        let said = |left: u64| {
            let (left, budget) = (Bytes(left), Bytes(budget));
            format!("models take {left}, and there are {budget} for them")
        };
        while left > budget {
            let Some(oldest) = book.oldest("") else {
                if !std::mem::replace(&mut book.told, true) {
                    (self.tell)(Notice::Note(said(left)));
                }
                return;
            };
            let (id, bytes) = (oldest.served.id.clone(), oldest.size.bytes());
            self.begin_unload(book, &id, said(left));
            left = left.saturating_sub(bytes);
        }
        book.told = false;
    }
}
