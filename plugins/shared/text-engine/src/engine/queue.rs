//! Who is next: jobs that wait, and the pages that a started one takes.
//!
//! A job starts when there is a place (`parallel`) and when the pool has room for the longest that it may become, so that what
//! was started never runs out of pages. Next is always the job of the call with the fewest jobs started, of equals the one that
//! came first: a call of a thousand jobs doesn't hold up one of a single job. The next one is waited for, not passed over, when
//! it is too large to start now: so large ones have their turn.

use super::drafts::Drafter;
use super::job::Call;
use super::scheduler::Scheduler;
use super::sequence::Sequence;
use super::{Job, Message, Work, cancelled};
use crate::options::Speculation;
use backplane_plugin_api::types::{Completion, FinishReason};
use std::sync::atomic::Ordering;
use std::time::Instant;

/// The beginning of a prompt that was found in the cache.
struct Found {
    /// Held by the caller.
    pages: Vec<u32>,
    tokens: usize,
}

impl Scheduler {
    /// Starts waiting jobs as long as the next one fits.
    pub(super) fn admit(&mut self) {
        while self.running.len() + self.inspecting.len() < self.config.parallel {
            let Some(next) = self.next_waiting() else {
                return;
            };
            let needed = self.waiting[next].1.positions();
            let needed = needed.div_ceil(self.config.page_size);
            let nothing_runs = self.running.is_empty() && self.inspecting.is_empty();
            // What can never fit was refused with its request.
            if !nothing_runs && self.reserved() + needed > self.config.pages {
                return;
            }
            let Some((call, job)) = self.waiting.remove(next) else {
                return;
            };
            match job.work {
                Work::Inspect(_) => self.begin_inspection(call, job, needed),
                _ => self.begin(call, job, needed),
            }
        }
    }

    /// Place of the job that is next.
    fn next_waiting(&self) -> Option<usize> {
        let started = |call: Call| {
            let texts = self.running.iter().map(|sequence| sequence.call);
            let inspections = self.inspecting.iter().map(|inspecting| inspecting.call);
            texts.chain(inspections).filter(|of| *of == call).count()
        };
        let mut best: Option<(usize, usize)> = None;
        let mut last = None;
        for (at, (call, _)) in self.waiting.iter().enumerate() {
            // Jobs of a call come together, and only its first can be next.
            if last.replace(*call) == Some(*call) {
                continue;
            }
            let started = started(*call);
            if best.is_none_or(|(_, fewest)| started < fewest) {
                best = Some((at, started));
                if started == 0 {
                    break;
                }
            }
        }
        best.map(|(at, _)| at)
    }

    /// Pages that running jobs may yet come to hold, those that they hold included.
    fn reserved(&self) -> usize {
        let texts = self.running.iter().map(|sequence| sequence.reserved);
        let inspections = self.inspecting.iter().map(|inspecting| inspecting.reserved);
        texts.chain(inspections).sum()
    }

    /// Starts a text.
    fn begin(&mut self, call: Call, job: Job, reserved: usize) {
        let begun = self.now();
        let found = self.find(&job.prompt);
        let counters = &self.shared.counters;
        counters.requests.fetch_add(1, Ordering::Relaxed);
        counters
            .tokens_prompt
            .fetch_add(job.prompt.len() as u64, Ordering::Relaxed);
        counters
            .prefix_cached_tokens
            .fetch_add(found.tokens as u64, Ordering::Relaxed);
        let drafter = match &job.work {
            Work::Generate(generation) if generation.speculation == Speculation::Auto => {
                Some(Drafter::new(&self.account))
            }
            _ => None,
        };
        self.started += 1;
        self.running.push(Sequence {
            id: self.started,
            call,
            follows: self.leader(&job.prompt, found.tokens),
            prompt: job.prompt.len(),
            tokens: job.prompt,
            computed: found.tokens,
            pages: found.pages,
            reserved,
            cached: found.tokens,
            work: job.work,
            drafter,
            cancel: job.cancel,
            reply: job.reply,
            queued: begun.saturating_duration_since(job.submitted),
            begun,
            first_token: None,
        });
    }

    /// The sequence that is reading more of what this prompt begins with than is known of it, whole pages counted.
    fn leader(&self, prompt: &[u32], known: usize) -> Option<(u64, usize)> {
        let page = self.config.page_size;
        let shared = |sequence: &&Sequence| {
            let read = &sequence.tokens[..sequence.prompt];
            let pairs = prompt[..prompt.len() - 1].iter().zip(read);
            pairs.take_while(|(one, other)| one == other).count() / page * page
        };
        let readers = self.running.iter().filter(|it| it.reads_prompt());
        let leader = readers.map(|reader| (reader.id, shared(&reader)));
        leader
            .filter(|(_, shared)| *shared > known)
            .max_by_key(|(_, shared)| *shared)
    }

    /// Lets sequences go on that waited for what another reads, as soon as that is read or the other is gone.
    pub(super) fn follow(&mut self) {
        for index in 0..self.running.len() {
            let Some((leader, end)) = self.running[index].follows else {
                continue;
            };
            let leader = self.running.iter().find(|other| other.id == leader);
            if leader.is_some_and(|leader| leader.computed < end) {
                continue;
            }
            self.running[index].follows = None;
            let prompt = self.running[index].prompt;
            let tokens = self.running[index].tokens[..prompt].to_vec();
            let found = self.find(&tokens);
            let sequence = &mut self.running[index];
            let unused = if found.tokens > sequence.computed {
                let more = found.tokens - sequence.computed;
                sequence.computed = found.tokens;
                sequence.cached += more;
                self.shared
                    .counters
                    .prefix_cached_tokens
                    .fetch_add(more as u64, Ordering::Relaxed);
                std::mem::replace(&mut sequence.pages, found.pages)
            } else {
                found.pages
            };
            unused.iter().for_each(|&page| self.pool.release(page));
        }
    }

    /// Takes hold of the pages that a prompt begins with. The last of them is copied where the prompt parts from it.
    fn find(&mut self, prompt: &[u32]) -> Found {
        // The last prompt token is always read again: its logits are wanted.
        let prefix = self.pool.take_prefix(prompt, prompt.len() - 1);
        let mut found = Found {
            pages: prefix.pages,
            tokens: prefix.tokens,
        };
        if let Some((from, tokens)) = prefix.partial {
            if let Some(to) = self.pool.allocate() {
                match self.executable.copy_page(from, to) {
                    Ok(()) => {
                        found.pages.push(to);
                        found.tokens += tokens;
                    }
                    Err(error) => {
                        tracing::warn!("a cache page could not be copied: {error}");
                        self.pool.release(to);
                    }
                }
            }
            self.pool.release(from);
        }
        found
    }

    /// Ends what its caller has stopped, waiting or running, and frees its pages.
    pub(super) fn drop_cancelled(&mut self) {
        let now = self.now();
        let counters = &self.shared.counters;
        self.waiting.retain(|(_, job)| {
            let dropped = job.cancel.load(Ordering::Relaxed);
            if dropped {
                counters.cancelled.fetch_add(1, Ordering::Relaxed);
                job.reply.send(never_begun(job, now));
            }
            !dropped
        });
        let mut index = 0;
        while index < self.running.len() {
            if self.running[index].cancel.load(Ordering::Relaxed) {
                self.shared
                    .counters
                    .cancelled
                    .fetch_add(1, Ordering::Relaxed);
                let completion = self.running[index].completion(FinishReason::Cancelled, None, now);
                self.finish(index, Message::Generated(completion));
            } else {
                index += 1;
            }
        }
        for index in (0..self.inspecting.len()).rev() {
            if self.inspecting[index].cancel.load(Ordering::Relaxed) {
                let counters = &self.shared.counters;
                counters.cancelled.fetch_add(1, Ordering::Relaxed);
                self.end_inspection(index, Err(cancelled()));
            }
        }
    }
}

/// The answer to a job that was stopped while it waited.
fn never_begun(job: &Job, now: Instant) -> Message {
    let seed = match &job.work {
        Work::Inspect(_) => return Message::Failed(cancelled()),
        Work::Generate(generation) => generation.seed,
        Work::Classify { .. } => 0,
    };
    Message::Generated(Completion {
        finish_reason: FinishReason::Cancelled,
        stop_string: None,
        prompt_tokens: job.prompt.len() as u64,
        cached_tokens: 0,
        completion_tokens: 0,
        seed,
        queue_s: now.saturating_duration_since(job.submitted).as_secs_f64(),
        prefill_s: 0.0,
        decode_s: 0.0,
    })
}
