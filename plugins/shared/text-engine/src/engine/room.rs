//! Pages for texts: what each may count on, and who gives them back when there are none left.
//!
//! A text starts when the pool has the pages of what is known of it and of [`HEADROOM`] more tokens, after those that running ones
//! may count on by the same rule. Nobody knows how long it becomes, and most end long before they may. So pages can
//! run out. Then, in this order:
//! - cached beginnings of texts that have ended are given up, the longest unused first ([`PagePool::allocate`]);
//! - drafts are cut to what fits;
//! - a text gives its pages back and is read again when there is room: of the call that has most texts running the one that began
//!   last, never the oldest of all. Its whole state is kept but its pages, and those are found again as long as nobody else
//!   took them. What follows is what would have followed: a row of logits does not depend on how its sequence was cut into steps.
//!
//! The oldest text always goes on, and what was preempted goes on before anything new starts: so everything comes to an end.
//! Inspections would have to begin anew: they are promised all their pages, and texts leave these alone.
//!
//! [`PagePool::allocate`]: crate::pages::PagePool::allocate

use super::scheduler::Scheduler;
use super::sequence::{Portion, Sequence};
use std::collections::HashMap;
use std::sync::atomic::Ordering;

/// Tokens for which a text finds pages when it starts, beyond those that are known.
pub(super) const HEADROOM: usize = 64;

impl Scheduler {
    /// Pages that a text may count on of which so many tokens are known, and that will hold `most` pages at most.
    pub(super) fn claim(&self, tokens: usize, most: usize) -> usize {
        (tokens + HEADROOM)
            .div_ceil(self.config.page_size)
            .min(most)
    }

    /// Whether something new, or something that goes on, finds so many pages, of which it has those that others hold of `tokens`.
    pub(super) fn fits(&self, tokens: &[u32], pages: usize) -> bool {
        // What can never fit was refused with its request.
        if self.running.is_empty() && self.inspecting.is_empty() {
            return true;
        }
        let claimed = |sequence: &Sequence| {
            let claim = self.claim(sequence.tokens.len(), sequence.most);
            claim.saturating_sub(sequence.pages.len())
        };
        let claimed: usize = self.running.iter().map(claimed).sum();
        let needed = claimed + self.promised() + pages;
        let available = self.pool.available();
        let held = || {
            self.pool
                .held_prefix(tokens, tokens.len().saturating_sub(1))
        };
        needed <= available || needed <= available + held()
    }

    /// Pages that inspections were promised and do not have yet.
    fn promised(&self) -> usize {
        self.inspecting.iter().map(|it| it.promised()).sum()
    }

    /// A page for a text, if there is one that nobody else holds or was promised.
    pub(super) fn page_for_text(&mut self) -> Option<u32> {
        if self.pool.available() > self.promised() {
            self.pool.allocate()
        } else {
            None
        }
    }

    /// Gets the pages of the next step; takes what gives its pages back out of it.
    pub(super) fn make_room(&mut self, portions: &mut Vec<Portion>) {
        let mut index = 0;
        while index < self.running.len() {
            if self.take_pages(index, portions[index].tokens) {
                index += 1;
            } else if let Some(last) = self.last_to_go_on() {
                portions.remove(last);
                self.preempt(last);
                index -= usize::from(last < index);
            } else if self.inspecting.is_empty() {
                // Its request would have been refused.
                portions.remove(index);
                let error = self.out_of_pages();
                self.fail(index, error);
            } else {
                // It waits for the inspections to end.
                portions[index] = Portion::default();
                index += 1;
            }
        }
        for (index, portion) in portions.iter_mut().enumerate() {
            if portion.drafts > 0 && !self.take_pages(index, portion.rows()) {
                let sequence = &self.running[index];
                let room = sequence.pages.len() * self.config.page_size - sequence.computed;
                portion.drafts = room - portion.tokens;
            }
        }
    }

    /// Gets the pages for the next `count` positions of a sequence, as far as there are any.
    fn take_pages(&mut self, index: usize, count: usize) -> bool {
        let end = self.running[index].computed + count;
        let pages = end.div_ceil(self.config.page_size);
        while self.running[index].pages.len() < pages {
            match self.page_for_text() {
                Some(page) => self.running[index].pages.push(page),
                None => return false,
            }
        }
        true
    }

    /// The text that gives its pages back next.
    fn last_to_go_on(&self) -> Option<usize> {
        let mut texts = HashMap::new();
        for sequence in &self.running {
            *texts.entry(sequence.call.0).or_insert(0_usize) += 1;
        }
        let of_call = |index: usize| texts[&self.running[index].call.0];
        (1..self.running.len()).max_by_key(|&index| (of_call(index), index))
    }

    /// Takes the pages of a text; it goes on before anything new starts.
    fn preempt(&mut self, index: usize) {
        let mut sequence = self.running.remove(index);
        let known = &sequence.tokens[..sequence.computed];
        self.pool.keep(known, &mut sequence.pages, true);
        self.release(&sequence);
        sequence.pages.clear();
        sequence.again = sequence.again.max(sequence.computed);
        sequence.computed = 0;
        sequence.read_to = sequence.tokens.len();
        sequence.follows = None;
        // Nobody waits for it any more: it may itself come to follow one that did.
        let followers = self.running.iter_mut().filter_map(|it| it.follows.as_mut());
        for (_, end) in followers.filter(|(leader, _)| *leader == sequence.id) {
            *end = 0;
        }
        let counters = &self.shared.counters;
        counters.preempted.fetch_add(1, Ordering::Relaxed);
        let place = self.preempted.partition_point(|it| it.id < sequence.id);
        self.preempted.insert(place, sequence);
    }
}
