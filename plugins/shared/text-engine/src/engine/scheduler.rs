//! Continuous batching: every step takes one token of each sequence that generates, what is drafted after it, and chunks of
//! the prompts that are still being read.
//!
//! - Who starts, and when: [`queue`](super::queue).
//! - How much is read in a step: [`pace`](super::pace). Beside sequences that generate, as much as keeps the time between their tokens
//!   under twice of what it is without; where nothing generates, as much as takes 300 ms. Prompts share it evenly, what one
//!   doesn't need goes to the others, and where there are fewer tokens than prompts they take turns.
//! - What is drafted: [`drafts`](super::drafts). Rows of drafts are wanted rows like any other; keys and values of a draft that
//!   did not come true lie behind the last position and are written over, and pages that held only such are given back.
//! - What becomes of whom when pages run out: [`room`](super::room).

use super::drafts::{Account, choose};
use super::inspection::Inspecting;
use super::job::Call;
use super::pace::Pace;
use super::sequence::{Context, Portion, Sequence};
use super::{Config, Job, Message, Shared};
use crate::pages::PagePool;
use backplane_plugin_api::types::{Error, ErrorCode};
use backplane_program::{DeviceError, Executable, SequenceStep, Step, StepOutput};
use backplane_tokenizer::Tokenizer;
use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::time::Instant;

/// Tells the time.
pub(super) type Clock = Box<dyn Fn() -> Instant + Send>;

/// The state of the engine thread.
pub(super) struct Scheduler {
    pub(super) executable: Box<dyn Executable>,
    tokenizer: Tokenizer,
    pub(super) config: Config,
    /// The model's file, for messages.
    pub(super) model: PathBuf,
    pub(super) shared: Arc<Shared>,
    pub(super) pool: PagePool,
    clock: Clock,
    pub(super) waiting: VecDeque<(Call, Job)>,
    /// What had to give its pages back, the oldest first: before all that waits.
    pub(super) preempted: VecDeque<Sequence>,
    /// The oldest first.
    pub(super) running: Vec<Sequence>,
    pub(super) inspecting: Vec<Inspecting>,
    /// Tokens a step of inspections may take where nothing generates, and beside what does.
    pub(super) inspection_chunk: usize,
    pub(super) inspection_beside: usize,
    pub(super) pace: Pace,
    /// What drafts of all sequences came to.
    pub(super) account: Account,
    /// Texts started so far.
    pub(super) started: u64,
    output: StepOutput,
    /// Which of the sequences that read is served first.
    first_reader: usize,
}

impl Scheduler {
    pub(super) fn new(
        executable: Box<dyn Executable>,
        tokenizer: Tokenizer,
        config: Config,
        model: PathBuf,
        shared: Arc<Shared>,
        clock: Clock,
    ) -> Self {
        let pace = Pace::new(config.max_wanted, config.max_step_tokens);
        Self {
            executable,
            tokenizer,
            config,
            model,
            shared,
            pool: PagePool::new(config.pages, config.page_size),
            clock,
            waiting: VecDeque::new(),
            preempted: VecDeque::new(),
            running: Vec::new(),
            inspecting: Vec::new(),
            inspection_chunk: pace.prompt_tokens(0, 1.0),
            inspection_beside: 1,
            pace,
            account: Account::default(),
            started: 0,
            output: StepOutput::default(),
            first_reader: 0,
        }
    }

    pub(super) fn shared(&self) -> Arc<Shared> {
        Arc::clone(&self.shared)
    }

    pub(super) fn now(&self) -> Instant {
        (self.clock)()
    }

    /// Goes on until the inbox is ended; gives the reason.
    pub(super) fn run(&mut self) -> Error {
        loop {
            if let Some(reason) = self.take_jobs() {
                return reason;
            }
            self.turn();
        }
    }

    /// One step of the texts and one of the inspections.
    pub(super) fn turn(&mut self) {
        self.drop_cancelled();
        self.admit();
        self.report();
        if !self.running.is_empty() {
            self.step();
            self.report();
        }
        if !self.inspecting.is_empty() {
            self.inspect();
        }
    }

    /// Tells everybody that it is over.
    pub(super) fn fail_all(&mut self, reason: &Error) {
        let jobs = std::mem::take(&mut self.shared.inbox().jobs);
        self.waiting.extend(jobs);
        for (_, job) in self.waiting.drain(..) {
            job.reply.send(Message::Failed(reason.clone()));
        }
        for inspecting in self.inspecting.drain(..) {
            inspecting.reply.send(Message::Failed(reason.clone()));
        }
        for sequence in self.running.drain(..).chain(self.preempted.drain(..)) {
            sequence.reply.send(Message::Failed(reason.clone()));
        }
        let counters = &self.shared.counters;
        counters.gauges(0, 0, crate::pages::PageCounts::default());
    }

    /// Moves new jobs to the queue; waits for one when there is nothing to do.
    fn take_jobs(&mut self) -> Option<Error> {
        let shared = Arc::clone(&self.shared);
        let mut inbox = shared.inbox();
        loop {
            if let Some(reason) = &inbox.ended {
                return Some(reason.clone());
            }
            self.waiting.extend(inbox.jobs.drain(..));
            if !self.is_idle() {
                return None;
            }
            inbox = shared
                .wake
                .wait(inbox)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Whether there is nothing to do.
    pub(super) fn is_idle(&self) -> bool {
        let texts = self.running.len() + self.preempted.len() + self.waiting.len();
        texts + self.inspecting.len() == 0
    }

    /// What each running sequence has in the next step.
    fn portions(&mut self) -> Vec<Portion> {
        let mut portions: Vec<Portion> = self
            .running
            .iter()
            .map(|sequence| Portion {
                tokens: usize::from(!sequence.reads()),
                drafts: 0,
            })
            .collect();
        let readers: Vec<usize> = (0..self.running.len())
            .filter(|&index| self.running[index].reads())
            .collect();
        self.draft(&mut portions, readers.len());
        self.share(&mut portions, readers);
        portions
    }

    /// Gives drafts to sequences that generate. `readers` sequences may want a row of logits as well.
    fn draft(&mut self, portions: &mut [Portion], readers: usize) {
        let (mut places, mut drafters) = (Vec::new(), Vec::new());
        let rows = portions.iter().filter(|portion| portion.tokens > 0).count();
        for (index, sequence) in self.running.iter_mut().enumerate() {
            let (reads, limit) = (sequence.reads(), sequence.draft_limit());
            if let Some(drafter) = sequence.drafter.as_mut().filter(|_| !reads) {
                drafter.look_up(&sequence.tokens);
                places.push(index);
                drafters.push((&*drafter, limit));
            }
        }
        // What reads keeps its row, and at least a token.
        let room = self.config.max_wanted.min(self.config.max_step_tokens);
        let room = room.saturating_sub(rows + readers);
        let counts = choose(&drafters, rows, room, |rows| self.pace.cost(rows));
        for (index, count) in places.into_iter().zip(counts) {
            portions[index].drafts = count;
        }
    }

    /// Shares among the sequences that read what may be read beside the rows that were given away.
    fn share(&mut self, portions: &mut [Portion], mut readers: Vec<usize>) {
        // Those that wait for another to read the same take nothing.
        readers.retain(|&index| self.running[index].follows.is_none());
        if readers.is_empty() {
            return;
        }
        let rows: usize = portions.iter().map(|portion| portion.rows()).sum();
        let room = self.pace.prompt_tokens(rows, self.crowd());
        let mut room = room.min(self.config.max_step_tokens - rows);
        self.first_reader = self.first_reader.wrapping_add(1);
        let first = self.first_reader % readers.len();
        readers.rotate_left(first);
        // Where there is not a token for each, they take turns; else those that need little go first, so that what they leave
        // is shared by the others.
        readers.truncate(room);
        let mut by_need = readers.clone();
        by_need.sort_by_key(|&index| self.running[index].remaining());
        for (served, &index) in by_need.iter().enumerate() {
            let share = room
                .div_ceil(by_need.len() - served)
                .min(self.running[index].remaining());
            portions[index].tokens = share;
            room -= share;
        }
    }

    /// Runs one step and hands out what came of it.
    fn step(&mut self) {
        self.follow();
        let mut portions = self.portions();
        self.make_room(&mut portions);
        let (tokens, wanted) = self.gather(&portions);
        if tokens.is_empty() {
            return;
        }
        let sequences: Vec<SequenceStep<'_>> = self
            .running
            .iter()
            .zip(&portions)
            .filter(|(_, portion)| portion.tokens > 0)
            .map(|(sequence, portion)| SequenceStep {
                count: portion.rows(),
                past: sequence.computed,
                pages: &sequence.pages,
            })
            .collect();
        let step = Step {
            tokens: &tokens,
            sequences: &sequences,
            wanted: &wanted,
            marks: false,
        };
        let started = (self.clock)();
        let result = self.executable.step(&step, &mut self.output);
        let now = (self.clock)();
        self.shared.counters.steps.fetch_add(1, Ordering::Relaxed);
        let expected = wanted.len() * self.config.vocabulary;
        let result = match result {
            Ok(()) if self.output.logits.len() < expected => Err(internal(format!(
                "the device gave {} logits, expected {expected}",
                self.output.logits.len()
            ))),
            Ok(()) => Ok(()),
            Err(error) => Err(device_error(&error)),
        };
        if let Err(error) = result {
            for index in (0..self.running.len())
                .rev()
                .filter(|&index| portions[index].tokens > 0)
            {
                self.fail(index, error.clone());
            }
            return;
        }
        self.measure(&portions, now.saturating_duration_since(started));
        self.hand_out(&portions, now);
    }

    /// Learns from how long a step took.
    fn measure(&mut self, portions: &[Portion], took: std::time::Duration) {
        let (mut rows, mut read) = (0, 0);
        for (sequence, portion) in self.running.iter().zip(portions) {
            if sequence.reads() {
                read += portion.tokens;
            } else {
                rows += portion.rows();
            }
        }
        if read == 0 {
            self.pace.generated(rows, took);
        } else {
            let shares = (self.part(), self.crowd());
            self.pace.read(rows, read, took, shares);
        }
    }

    /// How many prompts are read for each text that generates, at least 1. One prompt holds up texts by no more than is to spare;
    /// many that come at once are as many who wait, and each counts as much as one who is written to.
    fn crowd(&self) -> f64 {
        let reading = |sequence: &&Sequence| sequence.reads() && sequence.follows.is_none();
        let readers = self.running.iter().filter(reading).count();
        let others = self.running.iter().filter(|sequence| !sequence.reads());
        (readers as f64 / others.count().max(1) as f64).max(1.0)
    }

    /// The part of the time to spare that prompts, and inspections, have each.
    pub(super) fn part(&self) -> f64 {
        let reads = self.running.iter().any(Sequence::reads);
        if reads && !self.inspecting.is_empty() {
            0.5
        } else {
            1.0
        }
    }

    pub(super) fn out_of_pages(&self) -> Error {
        let pages = self.config.pages;
        Error::new(
            ErrorCode::OutOfMemory,
            format!("all {pages} cache pages are in use by other sequences"),
        )
    }

    /// The tokens of a step, and the rows whose logits are wanted: the last known one of every sequence whose tokens are then all
    /// read, and those of drafts.
    fn gather(&self, portions: &[Portion]) -> (Vec<u32>, Vec<u32>) {
        let mut tokens = Vec::with_capacity(portions.iter().map(|portion| portion.rows()).sum());
        let mut wanted = Vec::new();
        for (sequence, &portion) in self
            .running
            .iter()
            .zip(portions)
            .filter(|(_, portion)| portion.tokens > 0)
        {
            tokens.extend_from_slice(&sequence.tokens[sequence.computed..][..portion.tokens]);
            if let Some(drafter) = &sequence.drafter {
                tokens.extend_from_slice(drafter.tokens(portion.drafts));
            }
            let rows = sequence.wanted(portion);
            wanted.extend((tokens.len() - rows..tokens.len()).map(|row| row as u32));
        }
        (tokens, wanted)
    }

    /// Goes on with every sequence of the step; rows of logits are in the order of the sequences.
    fn hand_out(&mut self, portions: &[Portion], now: Instant) {
        let mut logits = std::mem::take(&mut self.output.logits);
        let mut rest = logits.as_mut_slice();
        let mut ended: Vec<(usize, Message)> = Vec::new();
        for (index, &portion) in portions
            .iter()
            .enumerate()
            .filter(|(_, portion)| portion.tokens > 0)
        {
            let sequence = &mut self.running[index];
            let read = sequence.reads();
            let rows = sequence.wanted(portion) * self.config.vocabulary;
            let (own, others) = rest.split_at_mut(rows);
            rest = others;
            let before = sequence.computed / self.config.page_size;
            let again = sequence.again.saturating_sub(sequence.computed);
            sequence.computed += portion.tokens;
            if read {
                let counters = &self.shared.counters;
                let again = again.min(portion.tokens) as u64;
                counters.recomputed.fetch_add(again, Ordering::Relaxed);
                if !sequence.tell_read() {
                    sequence.cancel.store(true, Ordering::Relaxed);
                }
                if let Some(drafter) = &mut sequence.drafter {
                    drafter.read(&sequence.tokens, sequence.computed);
                }
                // Others may share the prompt's whole pages from now on.
                if sequence.computed / self.config.page_size > before {
                    let known = &sequence.tokens[..sequence.computed];
                    self.pool.keep(known, &mut sequence.pages, false);
                }
            }
            if rows == 0 || sequence.cancel.load(Ordering::Relaxed) {
                continue;
            }
            let context = Context {
                tokenizer: &self.tokenizer,
                shared: &self.shared,
                model: &self.model,
                now,
            };
            let own = own.chunks_exact_mut(self.config.vocabulary.max(1));
            let end = sequence.take_rows(own, portion.drafts, &mut self.account, &context);
            ended.extend(end.map(|message| (index, message)));
            if portion.drafts > 0 {
                let kept = sequence.computed.div_ceil(self.config.page_size);
                for page in sequence.pages.drain(kept..) {
                    self.pool.release(page);
                }
            }
        }
        self.output.logits = logits;
        for (index, message) in ended.into_iter().rev() {
            match message {
                Message::Failed(error) => self.fail(index, error),
                message => self.finish(index, message),
            }
        }
    }

    /// Ends a sequence whose pages are good: what they hold stays known.
    pub(super) fn finish(&mut self, index: usize, message: Message) {
        let mut sequence = self.running.remove(index);
        let known = &sequence.tokens[..sequence.computed];
        self.pool.keep(known, &mut sequence.pages, true);
        self.release(&sequence);
        self.report();
        sequence.reply.send(message);
    }

    /// Ends a sequence with an error; its pages are not trusted.
    pub(super) fn fail(&mut self, index: usize, error: Error) {
        let sequence = self.running.remove(index);
        self.release(&sequence);
        self.report();
        sequence.reply.send(Message::Failed(error));
    }

    pub(super) fn release(&mut self, sequence: &Sequence) {
        for &page in &sequence.pages {
            self.pool.release(page);
        }
    }

    pub(super) fn report(&self) {
        let running = self.running.len() + self.inspecting.len();
        let waiting = self.waiting.len() + self.preempted.len();
        let counters = &self.shared.counters;
        counters.gauges(running, waiting, self.pool.counts());
    }
}

pub(super) fn internal(message: String) -> Error {
    Error::new(ErrorCode::Internal, message)
}

/// A device's error as the contract says it.
pub(crate) fn device_error(error: &DeviceError) -> Error {
    let code = match error {
        DeviceError::CacheType { .. } => {
            return Error::invalid_field("cache_type", error.to_string())
                .with_action("load with --cache-type f16 or f32, which take heads of any length");
        }
        DeviceError::Program(_) | DeviceError::Unsupported { .. } => ErrorCode::ModelUnusable,
        DeviceError::Memory { .. } => ErrorCode::OutOfMemory,
        DeviceError::Step(_) => ErrorCode::Internal,
        DeviceError::Failed { .. } => ErrorCode::Device,
    };
    Error::new(code, error.to_string())
}
