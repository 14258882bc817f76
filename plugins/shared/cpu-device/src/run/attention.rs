//! Attention: keys and values of the step go to their pages, then every head of every token reads the pages it sees.

use super::frame::{Frame, Parts};
use super::rows::Around;
use crate::attend::{self, MOST_QUERIES, Page, Query, Softmax, Soon};
use crate::cache::Cache;
use crate::isa::Isa;
use crate::lower::{Attention, Kernel};
use crate::memory::Buffer;
use crate::pool::Pool;
use backplane_program::DeviceError;
use std::ops::Range;

/// Most tokens that a task takes together, so that a page is brought in, and widened, once for all of them.
const MOST_TOKENS: usize = 8;

/// Products, in eights, below which an attention is not worth sharing out among threads.
const SHARE_FROM: usize = 16 << 10;

/// Where a token of the step stands.
#[derive(Clone, Copy)]
pub(super) struct Place {
    /// Its position in its sequence.
    pub(super) position: usize,
    /// Index of the sequence in the step.
    pub(super) sequence: usize,
}

/// Memory that a thread needs while it runs a task, for each.
pub(super) struct Scratch {
    /// `[threads, floats]`: scores of a page for some queries, and its keys and values where they are not stored as `f32`.
    floats: Buffer<f32>,
    floats_each: usize,
    /// `[threads, MOST_TOKENS * heads]`.
    states: Buffer<Softmax>,
    states_each: usize,
}

impl Scratch {
    pub(super) fn new(
        threads: usize,
        kernels: &[Kernel],
        isa: Isa,
        cache: &Cache,
    ) -> Result<Self, DeviceError> {
        let heads = kernels.iter().map(|kernel| match kernel {
            Kernel::Attention(attention) => attention.heads / attention.kv_heads,
            _ => 0,
        });
        // A number that overflows is more than there is memory: the buffer says so.
        let states_each = heads.max().unwrap_or(0).saturating_mul(MOST_TOKENS);
        let scores = cache.stride().saturating_mul(MOST_QUERIES);
        let floats_each = scores.saturating_add(cache.scratch(isa));
        let what = "attention scores";
        Ok(Self {
            floats: Buffer::new(threads.saturating_mul(floats_each), what)?,
            floats_each,
            states: Buffer::new(threads.saturating_mul(states_each), what)?,
            states_each,
        })
    }

    /// Bytes of all of it.
    pub(super) fn bytes(&self) -> usize {
        self.floats.bytes() + self.states.bytes()
    }
}

/// Writes keys and values of a token to its page.
///
/// # Safety
/// Nobody writes the token's keys and values, or touches its position of the cache, meanwhile.
pub(super) unsafe fn append(
    frame: &Frame<'_>,
    around: &Around<'_>,
    attention: &Attention,
    token: usize,
) {
    let (cache, place) = (around.cache, around.places[token]);
    let (index, row) = (
        place.position / cache.page_size(),
        place.position % cache.page_size(),
    );
    let page = around.step.sequences[place.sequence].pages[index] as usize;
    // SAFETY: the caller's promise.
    unsafe {
        let keys = frame.row(attention.k, token);
        let values = attention.v.map_or(&[][..], |v| frame.row(v, token));
        cache.append(frame.isa, attention.cache, page, row, keys, values);
    }
}

/// How the work of one attention is cut: a task takes some neighbouring tokens and some neighbouring heads that read the same
/// keys. What comes out does not depend on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Cut {
    tokens: usize,
    heads: usize,
    /// Tasks for the heads that read the same keys.
    parts: usize,
}

impl Cut {
    /// `group` query heads read each of `kv_heads`. Bringing a page in costs about as much as the attention of `once` heads to it, so
    /// that heads stay together unless threads would be idle.
    fn new(tokens: usize, kv_heads: usize, group: usize, threads: usize, once: usize) -> Self {
        let at_once = (tokens * kv_heads / (4 * threads)).clamp(1, MOST_TOKENS);
        let tasks = tokens.div_ceil(at_once) * kv_heads;
        let busiest = |parts: usize| {
            let heads = at_once * group.div_ceil(parts) + once;
            (tasks * parts).div_ceil(threads) * heads
        };
        let fewest = (1..=group).min_by_key(|parts| busiest(*parts)).unwrap_or(1);
        let heads = group.div_ceil(fewest);
        Self {
            tokens: at_once,
            heads,
            parts: group.div_ceil(heads),
        }
    }
}

impl Cut {
    /// Block of tokens, key head, and part of its query heads of a task.
    fn task(&self, task: usize, kv_heads: usize) -> (usize, usize, usize) {
        let (rest, part) = (task / self.parts, task % self.parts);
        (rest / kv_heads, rest % kv_heads, part)
    }
}

/// What a page costs once for all heads that read it together, in heads: what was measured of widening, and of reading keys and
/// values for several queries.
fn once(isa: Isa, widened: bool) -> usize {
    let together = attend::queries_at_once(isa) > 1;
    usize::from(widened) + if together { 3 } else { 0 }
}

impl Frame<'_> {
    pub(super) fn attention(
        &self,
        pool: &mut Pool,
        attention: &Attention,
        around: &Around<'_>,
        scratch: &Scratch,
    ) {
        let Around {
            step,
            places,
            cache,
            ..
        } = *around;
        let (heads, kv_heads) = (attention.heads, attention.kv_heads);
        let group = heads / kv_heads;
        let cut = Cut::new(
            self.tokens,
            kv_heads,
            group,
            pool.threads(),
            once(self.isa, cache.is_widened(self.isa, attention.cache)),
        );
        let floats = Parts::new(&scratch.floats);
        let states = Parts::new(&scratch.states);
        let threads = pool.threads();
        let tasks = self.tokens.div_ceil(cut.tokens) * kv_heads * cut.parts;
        // The pages that a task reads, and the head.
        let begins = |task: usize| {
            let (block, kv_head, _) = cut.task(task, kv_heads);
            let place = places.get(block * cut.tokens).filter(|_| task < tasks)?;
            let from = place.position + 1 - attention.sees(place.position);
            let pages = from / cache.page_size()..=place.position / cache.page_size();
            Some((&step.sequences[place.sequence].pages[pages], kv_head))
        };
        let task = |task: usize, worker: usize| {
            // SAFETY: each worker has its own part, and runs one task at a time.
            let (floats, states) = unsafe {
                (
                    floats.part(worker * scratch.floats_each, scratch.floats_each),
                    states.part(worker * scratch.states_each, scratch.states_each),
                )
            };
            let (scores, widened) = floats.split_at_mut(cache.stride() * MOST_QUERIES);
            let (block, kv_head, part) = cut.task(task, kv_heads);
            let heads = kv_head * group + part * cut.heads;
            let heads = heads..(kv_head * group + group).min(heads + cut.heads);
            let mut token = block * cut.tokens;
            let end = self.tokens.min(token + cut.tokens);
            while token < end {
                let same = |place: &&Place| place.sequence == places[token].sequence;
                let count = places[token..end].iter().take_while(same).count();
                let work = Work {
                    frame: self,
                    attention,
                    cache,
                    pages: step.sequences[places[token].sequence].pages,
                    kv_head,
                    heads: heads.clone(),
                    token,
                    first: places[token].position,
                    next: begins(task + threads),
                };
                // SAFETY: queries were written by an earlier kernel; no other task has these heads of these tokens.
                unsafe { work.run(count, scores, widened, states) };
                token += count;
            }
        };
        let positions: usize = places
            .iter()
            .map(|place| attention.sees(place.position))
            .sum();
        let work = positions * heads * (attention.key_dim + attention.value_dim) / 8;
        if work < SHARE_FROM {
            (0..tasks).for_each(|index| task(index, 0));
        } else {
            pool.run(tasks, &task);
        }
    }
}

impl Attention {
    /// How many positions, its own the last, a token attends to.
    fn sees(&self, position: usize) -> usize {
        self.window
            .map_or(position + 1, |window| window.min(position + 1))
    }
}

/// Some neighbouring tokens of one sequence, and some heads that read the same keys.
struct Work<'a> {
    frame: &'a Frame<'a>,
    attention: &'a Attention,
    cache: &'a Cache,
    /// The sequence's.
    pages: &'a [u32],
    kv_head: usize,
    heads: Range<usize>,
    /// The first token's row.
    token: usize,
    /// And its position.
    first: usize,
    /// The pages, and the head, that are likely to be read after these.
    next: Option<(&'a [u32], usize)>,
}

impl Work<'_> {
    /// Runs it for `tokens` tokens.
    ///
    /// # Safety
    /// The tokens' queries and outputs are there; nobody writes the queries, or touches these heads of the outputs, meanwhile.
    unsafe fn run(
        &self,
        tokens: usize,
        scores: &mut [f32],
        widened: &mut [f32],
        states: &mut [Softmax],
    ) {
        let (isa, size) = (self.frame.isa, self.cache.page_size());
        let count = self.heads.len();
        let at_once = attend::queries_at_once(isa);
        let states = &mut states[..tokens * count];
        states.fill(Softmax::START);
        for token in 0..tokens {
            for head in self.heads.clone() {
                // SAFETY: the caller's promise.
                unsafe { self.output(token, head) }.fill(0.0);
            }
        }
        let from = |token: usize| {
            let position = self.first + token;
            position + 1 - self.attention.sees(position)
        };
        let last = self.first + tokens - 1;
        let pages = self.pages[..=last / size].iter().enumerate();
        for (index, page) in pages.skip(from(0) / size) {
            let start = index * size;
            // Of the page, from what the first token sees to what the last does.
            let rows = from(0).max(start) - start..(last + 1).min(start + size) - start;
            let place = (self.attention.cache, *page as usize, self.kv_head);
            let next = self.after(index, last / size, 1);
            let is_widened = self.cache.is_widened(isa, self.attention.cache);
            let ahead = next.filter(|_| is_widened).map_or([0; 2], |next| {
                let this = (*page as usize, self.kv_head);
                self.cache.apart(self.attention.cache, this, next)
            });
            let held = self.cache.head(isa, place, rows, ahead, widened);
            // What is widened has been asked for.
            let soon = next.filter(|_| !is_widened).map_or(Soon::NONE, |next| {
                let behind = self.after(index, last / size, 2);
                self.cache.soon(self.attention.cache, next, behind)
            });
            let seen = |token: usize| {
                let to = (self.first + token + 1).clamp(start, start + size);
                from(token).clamp(start, to) - start..to - start
            };
            // Later tokens see later positions: those that see some of this page are neighbours.
            let sees = |token: &usize| !seen(*token).is_empty();
            let before = (0..tokens).take_while(|token| !sees(token)).count();
            let those = (before..tokens).take_while(sees).count();
            let mut page = Page {
                held,
                stride: self.cache.stride(),
                scale: self.attention.scale,
                soft_cap: self.attention.soft_cap,
                soon,
            };
            let mut next = before * count;
            let end = next + those * count;
            while next < end {
                let states = &mut states[next..end.min(next + at_once)];
                let query = |i: usize| {
                    let (token, head) = ((next + i) / count, self.heads.start + (next + i) % count);
                    // SAFETY: the caller's promise; each is another head or another token.
                    let (query, out) =
                        unsafe { (self.query(token, head), self.output(token, head)) };
                    let seen = seen(token);
                    Query { query, seen, out }
                };
                let queries = states.len();
                attend::attend(isa, page, query, states, scores);
                // Once is enough.
                page.soon = Soon::NONE;
                next += queries;
            }
        }
        for token in 0..tokens {
            for (head, state) in self.heads.clone().zip(&states[token * count..]) {
                let inverse = 1.0 / state.sum;
                // SAFETY: the caller's promise.
                let out = unsafe { self.output(token, head) };
                out.iter_mut().for_each(|out| *out *= inverse);
            }
        }
    }

    /// The page, and the head, that is read so many pages after one of the sequence's, of which `last` is the last that is read.
    fn after(&self, index: usize, last: usize, by: usize) -> Option<(usize, usize)> {
        let (page, head) = match self.pages[..=last].get(index + by) {
            Some(page) => (page, self.kv_head),
            None => {
                let (pages, head) = self.next?;
                (pages.get(index + by - last - 1)?, head)
            }
        };
        Some((*page as usize, head))
    }

    /// # Safety
    /// As for [`run`](Self::run).
    unsafe fn query(&self, token: usize, head: usize) -> &[f32] {
        let dim = self.attention.key_dim;
        // SAFETY: the caller's promise; the row is one of the step's.
        let row = unsafe { self.frame.row(self.attention.q, self.token + token) };
        &row[head * dim..][..dim]
    }

    /// # Safety
    /// As for [`run`](Self::run); and what was given out before is in use no longer.
    #[allow(clippy::mut_from_ref)]
    unsafe fn output(&self, token: usize, head: usize) -> &mut [f32] {
        let dim = self.attention.value_dim;
        let at = ((self.token + token) * self.attention.heads + head) * dim;
        // SAFETY: the output is `[tokens, heads, value_dim]`; this head of this row is ours by the caller's promise.
        unsafe { std::slice::from_raw_parts_mut(self.frame.start(self.attention.out).add(at), dim) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heads_stay_together_unless_threads_would_be_idle() {
        let cut = |tokens, heads, parts| Cut {
            tokens,
            heads,
            parts,
        };
        // One token, three key heads for nine.
        assert_eq!(Cut::new(1, 3, 3, 1, 1), cut(1, 3, 1));
        assert_eq!(Cut::new(1, 3, 3, 2, 1), cut(1, 3, 1));
        assert_eq!(Cut::new(1, 3, 3, 2, 0), cut(1, 1, 3));
        assert_eq!(Cut::new(1, 3, 3, 2, 3), cut(1, 3, 1));
        // One key head for all.
        assert_eq!(Cut::new(1, 1, 4, 2, 1), cut(1, 2, 2));
        assert_eq!(Cut::new(1, 1, 128, 16, 1), cut(1, 8, 16));
        // Many tokens.
        assert_eq!(Cut::new(512, 3, 3, 2, 1), cut(8, 3, 1));
        assert_eq!(Cut::new(5, 2, 4, 3, 0), cut(1, 2, 2));
        for tokens in 1..40 {
            for (kv_heads, group, threads) in [(1, 1, 1), (1, 7, 3), (2, 5, 4), (8, 4, 64)] {
                let cut = Cut::new(tokens, kv_heads, group, threads, tokens % 4);
                assert!(cut.tokens >= 1 && cut.tokens <= MOST_TOKENS);
                let last = (cut.parts - 1) * cut.heads;
                assert!(last < group && cut.parts * cut.heads >= group, "{cut:?}");
            }
        }
    }
}
