//! Who is next: jobs that wait, and texts that go on.
//!
//! A job starts when there is a place (`parallel`) and when the pool has room for it by the rule of [`room`](super::room). What had to
//! give its pages back goes on before anything new starts. Then next is always the job of the call with the fewest jobs started,
//! of equals the one that came first: a call of a thousand jobs doesn't hold up one of a single job. The next one is waited for,
//! not passed over, when it is too large to start now: so large ones have their turn.

use super::drafts::Drafter;
use super::job::Call;
use super::scheduler::Scheduler;
use super::sequence::Sequence;
use super::{Job, Message, Work, cancelled};
use crate::options::Speculation;
use backplane_plugin_api::types::{Completion, FinishReason};
use std::sync::atomic::Ordering;
use std::time::Instant;

/// The beginning of a text that was found in the cache.
struct Found {
    /// Held by the caller.
    pages: Vec<u32>,
    tokens: usize,
}

impl Scheduler {
    /// Goes on with texts and starts waiting jobs as long as the next one fits.
    pub(super) fn admit(&mut self) {
        while self.running.len() + self.inspecting.len() < self.config.parallel {
            if let Some(sequence) = self.preempted.front() {
                if !self.fits(
                    &sequence.tokens,
                    self.claim(sequence.tokens.len(), sequence.most),
                ) {
                    return;
                }
                if let Some(sequence) = self.preempted.pop_front() {
                    self.resume(sequence);
                }
                continue;
            }
            let Some(next) = self.next_waiting() else {
                return;
            };
            let (_, job) = &self.waiting[next];
            let most = job.positions().div_ceil(self.config.page_size);
            let fits = match job.work {
                Work::Inspect(_) => self.fits(&[], most),
                _ => self.fits(&job.prompt, self.claim(job.prompt.len(), most)),
            };
            if !fits {
                return;
            }
            let Some((call, job)) = self.waiting.remove(next) else {
                return;
            };
            match job.work {
                Work::Inspect(_) => self.begin_inspection(call, job, most),
                _ => self.begin(call, job, most),
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

    /// Starts a text.
    fn begin(&mut self, call: Call, job: Job, most: usize) {
        let begun = self.now();
        let counters = &self.shared.counters;
        counters.requests.fetch_add(1, Ordering::Relaxed);
        counters
            .tokens_prompt
            .fetch_add(job.prompt.len() as u64, Ordering::Relaxed);
        let drafter = match &job.work {
            Work::Generate(generation) if generation.speculation == Speculation::Auto => {
                Some(Drafter::new(&self.account))
            }
            _ => None,
        };
        self.started += 1;
        self.resume(Sequence {
            id: self.started,
            call,
            follows: None,
            prompt: job.prompt.len(),
            read_to: job.prompt.len(),
            tokens: job.prompt,
            computed: 0,
            again: 0,
            told: 0,
            pages: Vec::new(),
            most,
            cached: 0,
            work: job.work,
            drafter,
            cancel: job.cancel,
            reply: job.reply,
            queued: begun.saturating_duration_since(job.submitted),
            begun,
            first_token: None,
        });
    }

    /// Lets a text that has no pages read what is not known of it.
    fn resume(&mut self, mut sequence: Sequence) {
        let found = self.find(&sequence.tokens);
        sequence.follows = self.leader(&sequence.tokens, found.tokens);
        self.take_found(&mut sequence, found);
        let place = self.running.partition_point(|it| it.id < sequence.id);
        self.running.insert(place, sequence);
    }

    /// Goes on from what was found, and counts what it need not read of its prompt.
    fn take_found(&mut self, sequence: &mut Sequence, found: Found) {
        let read = sequence.computed.max(sequence.again);
        let more = found.tokens.min(sequence.prompt).saturating_sub(read);
        sequence.cached += more;
        let counters = &self.shared.counters;
        counters
            .prefix_cached_tokens
            .fetch_add(more as u64, Ordering::Relaxed);
        sequence.computed = found.tokens;
        sequence.pages = found.pages;
    }

    /// The sequence that is reading more of what these tokens begin with than is known of it, whole pages counted.
    fn leader(&self, tokens: &[u32], known: usize) -> Option<(u64, usize)> {
        let page = self.config.page_size;
        let shared = |sequence: &&Sequence| {
            let read = &sequence.tokens[..sequence.read_to];
            let pairs = tokens[..tokens.len() - 1].iter().zip(read);
            pairs.take_while(|(one, other)| one == other).count() / page * page
        };
        let readers = self.running.iter().filter(|it| it.reads());
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
            let mut sequence = self.running.remove(index);
            sequence.follows = None;
            let found = self.find(&sequence.tokens);
            let unused = if found.tokens > sequence.computed {
                let unused = std::mem::take(&mut sequence.pages);
                self.take_found(&mut sequence, found);
                unused
            } else {
                found.pages
            };
            unused.iter().for_each(|&page| self.pool.release(page));
            self.running.insert(index, sequence);
        }
    }

    /// Takes hold of the pages that tokens begin with. The last of them is copied where the tokens part from it.
    fn find(&mut self, tokens: &[u32]) -> Found {
        // The last token is always read again: its logits are wanted.
        let prefix = self.pool.take_prefix(tokens, tokens.len() - 1);
        let mut found = Found {
            pages: prefix.pages,
            tokens: prefix.tokens,
        };
        if let Some((from, tokens)) = prefix.partial {
            if let Some(to) = self.page_for_text() {
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
        self.preempted.retain(|sequence| {
            let dropped = sequence.cancel.load(Ordering::Relaxed);
            if dropped {
                counters.cancelled.fetch_add(1, Ordering::Relaxed);
                let completion = sequence.completion(FinishReason::Cancelled, None, now);
                sequence.reply.send(Message::Generated(completion));
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
