//! Continuous batching: every step takes one token of each sequence that generates and chunks of those whose prompt is
//! still being read, shared fairly.

use super::generation::token_logprob;
use super::inspection::Inspecting;
use super::{Config, Job, Message, Reply, Shared, Work, cancelled, not_finite};
use crate::pages::PagePool;
use crate::sampling::{LogProbabilities, SamplingError, likeliest};
use backplane_plugin_api::types::{Classification, Completion, Error, ErrorCode, FinishReason};
use backplane_program::{DeviceError, Executable, SequenceStep, Step, StepOutput};
use backplane_tokenizer::Tokenizer;
use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

/// A step that reads prompts is kept near this long, so that cancelling and other sequences don't wait for more.
pub(super) const STEP_TIME: Duration = Duration::from_millis(300);
/// Fewest prompt tokens in a step, however slow the device.
const MIN_CHUNK: usize = 32;
/// Prompt tokens in a step until the device's speed is known.
const FIRST_CHUNK: usize = 64;

/// A job that has cache pages.
struct Sequence {
    /// Prompt and text so far.
    tokens: Vec<u32>,
    prompt: usize,
    /// Positions whose keys and values are in the pages.
    computed: usize,
    pages: Vec<u32>,
    /// Prompt tokens taken from the cache.
    cached: usize,
    work: Work,
    cancel: Arc<AtomicBool>,
    reply: Reply,
    queued: Duration,
    begun: Instant,
    first_token: Option<Instant>,
}

impl Sequence {
    fn remaining(&self) -> usize {
        self.tokens.len() - self.computed
    }

    fn reads_prompt(&self) -> bool {
        self.computed < self.prompt
    }

    fn completion(&self, finish_reason: FinishReason, stop_string: Option<String>) -> Completion {
        let (seed, generated) = match &self.work {
            Work::Generate(generation) => (generation.seed, generation.generated),
            Work::Classify { .. } | Work::Inspect(_) => (0, 0),
        };
        let first = self.first_token.unwrap_or_else(Instant::now);
        Completion {
            finish_reason,
            stop_string,
            prompt_tokens: self.prompt as u64,
            cached_tokens: self.cached as u64,
            completion_tokens: generated as u64,
            seed,
            queue_s: self.queued.as_secs_f64(),
            prefill_s: (first - self.begun).as_secs_f64(),
            decode_s: first.elapsed().as_secs_f64(),
        }
    }
}

/// The state of the engine thread.
pub(super) struct Scheduler {
    pub(super) executable: Box<dyn Executable>,
    tokenizer: Tokenizer,
    pub(super) config: Config,
    /// The model's file, for messages.
    pub(super) model: PathBuf,
    pub(super) shared: Arc<Shared>,
    pub(super) pool: PagePool,
    waiting: VecDeque<Job>,
    running: Vec<Sequence>,
    pub(super) inspecting: Vec<Inspecting>,
    /// Tokens a step of inspections may take.
    pub(super) inspection_chunk: usize,
    output: StepOutput,
    /// Prompt tokens a step may take.
    chunk: usize,
    /// Which of the sequences that read is served first.
    turn: usize,
}

impl Scheduler {
    pub(super) fn new(
        executable: Box<dyn Executable>,
        tokenizer: Tokenizer,
        config: Config,
        model: PathBuf,
        shared: Arc<Shared>,
    ) -> Self {
        shared
            .counters
            .page_bytes
            .store(executable.page_bytes() as u64, Ordering::Relaxed);
        Self {
            executable,
            tokenizer,
            config,
            model,
            shared,
            pool: PagePool::new(config.pages, config.page_size),
            waiting: VecDeque::new(),
            running: Vec::new(),
            inspecting: Vec::new(),
            inspection_chunk: FIRST_CHUNK.min(config.max_step_tokens),
            output: StepOutput::default(),
            chunk: FIRST_CHUNK.min(config.max_step_tokens),
            turn: 0,
        }
    }

    pub(super) fn shared(&self) -> Arc<Shared> {
        Arc::clone(&self.shared)
    }

    /// Steps until the inbox is ended; gives the reason.
    pub(super) fn run(&mut self) -> Error {
        loop {
            if let Some(reason) = self.take_jobs() {
                return reason;
            }
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
    }

    /// Tells everybody that it is over.
    pub(super) fn fail_all(&mut self, reason: &Error) {
        let jobs = std::mem::take(&mut self.shared.inbox().jobs);
        self.waiting.extend(jobs);
        for job in self.waiting.drain(..) {
            job.reply.send(Message::Failed(reason.clone()));
        }
        for inspecting in self.inspecting.drain(..) {
            inspecting.reply.send(Message::Failed(reason.clone()));
        }
        for sequence in self.running.drain(..) {
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
            if !(self.waiting.is_empty() && self.running.is_empty() && self.inspecting.is_empty()) {
                return None;
            }
            inbox = shared
                .wake
                .wait(inbox)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn drop_cancelled(&mut self) {
        let counters = &self.shared.counters;
        self.waiting.retain(|job| {
            let dropped = job.cancel.load(Ordering::Relaxed);
            if dropped {
                counters.cancelled.fetch_add(1, Ordering::Relaxed);
                job.reply.send(match &job.work {
                    Work::Inspect(_) => Message::Failed(cancelled()),
                    work => Message::Generated(Completion {
                        finish_reason: FinishReason::Cancelled,
                        stop_string: None,
                        prompt_tokens: job.prompt.len() as u64,
                        cached_tokens: 0,
                        completion_tokens: 0,
                        seed: match work {
                            Work::Generate(generation) => generation.seed,
                            _ => 0,
                        },
                        queue_s: job.submitted.elapsed().as_secs_f64(),
                        prefill_s: 0.0,
                        decode_s: 0.0,
                    }),
                });
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
                let completion = self.running[index].completion(FinishReason::Cancelled, None);
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

    /// Starts waiting jobs, first come first served, as long as there is a place.
    fn admit(&mut self) {
        while self.running.len() + self.inspecting.len() < self.config.parallel {
            let Some(job) = self.waiting.pop_front() else {
                return;
            };
            if let Work::Inspect(_) = job.work {
                self.begin_inspection(job);
                continue;
            }
            let begun = Instant::now();
            // The last prompt token is always read again: its logits are wanted.
            let prefix = self.pool.take_prefix(&job.prompt, job.prompt.len() - 1);
            let (mut pages, mut computed) = (prefix.pages, prefix.tokens);
            if let Some((from, tokens)) = prefix.partial {
                if let Some(to) = self.pool.allocate() {
                    match self.executable.copy_page(from, to) {
                        Ok(()) => {
                            pages.push(to);
                            computed += tokens;
                        }
                        Err(error) => {
                            tracing::warn!("a cache page could not be copied: {error}");
                            self.pool.release(to);
                        }
                    }
                }
                self.pool.release(from);
            }
            let counters = &self.shared.counters;
            counters.requests.fetch_add(1, Ordering::Relaxed);
            counters
                .tokens_prompt
                .fetch_add(job.prompt.len() as u64, Ordering::Relaxed);
            counters
                .prefix_cached_tokens
                .fetch_add(computed as u64, Ordering::Relaxed);
            self.running.push(Sequence {
                prompt: job.prompt.len(),
                tokens: job.prompt,
                computed,
                pages,
                cached: computed,
                work: job.work,
                cancel: job.cancel,
                reply: job.reply,
                queued: begun - job.submitted,
                begun,
                first_token: None,
            });
        }
    }

    /// How many tokens each running sequence has in the next step.
    fn shares(&mut self) -> Vec<usize> {
        let mut shares: Vec<usize> = self
            .running
            .iter()
            .map(|sequence| usize::from(!sequence.reads_prompt()))
            .collect();
        let generating: usize = shares.iter().sum();
        let mut room = self
            .chunk
            .max(MIN_CHUNK)
            .min(self.config.max_step_tokens - generating);
        let mut readers: Vec<usize> = (0..self.running.len())
            .filter(|&index| self.running[index].reads_prompt())
            .collect();
        if readers.is_empty() {
            return shares;
        }
        self.turn = self.turn.wrapping_add(1);
        let first = self.turn % readers.len();
        readers.rotate_left(first);
        // Those who need little go first, so that what they leave is shared by the others.
        let mut by_need: Vec<usize> = readers.clone();
        by_need.sort_by_key(|&index| self.running[index].remaining());
        for (served, &index) in by_need.iter().enumerate() {
            let share = room
                .div_ceil(readers.len() - served)
                .min(self.running[index].remaining());
            shares[index] = share;
            room -= share;
        }
        shares
    }

    /// Runs one step and hands out what came of it.
    fn step(&mut self) {
        let mut shares = self.shares();
        let mut index = 0;
        while index < self.running.len() {
            if self.make_room(index, shares[index]) {
                index += 1;
            } else {
                let error = self.out_of_pages();
                shares.remove(index);
                self.fail(index, error);
            }
        }
        let (tokens, wanted) = self.gather(&shares);
        if tokens.is_empty() {
            return;
        }
        let reads = tokens.len() > wanted.len();
        let started = Instant::now();
        let sequences: Vec<SequenceStep<'_>> = self
            .running
            .iter()
            .zip(&shares)
            .filter(|(_, share)| **share > 0)
            .map(|(sequence, &count)| SequenceStep {
                count,
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
        let result = self.executable.step(&step, &mut self.output);
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
                .filter(|&index| shares[index] > 0)
            {
                self.fail(index, error.clone());
            }
            return;
        }
        if reads {
            self.adapt_chunk(tokens.len(), started.elapsed());
        }
        self.hand_out(&shares);
    }

    pub(super) fn out_of_pages(&self) -> Error {
        let pages = self.config.pages;
        Error::new(
            ErrorCode::OutOfMemory,
            format!("all {pages} cache pages are in use by other sequences"),
        )
    }

    /// Gets the pages for the next `count` positions of a sequence.
    fn make_room(&mut self, index: usize, count: usize) -> bool {
        let sequence = &mut self.running[index];
        let pages = (sequence.computed + count).div_ceil(self.config.page_size);
        while sequence.pages.len() < pages {
            match self.pool.allocate() {
                Some(page) => sequence.pages.push(page),
                None => return false,
            }
        }
        true
    }

    /// The tokens of a step, and the rows whose logits are wanted: the last of every sequence whose tokens are then
    /// all read.
    fn gather(&self, shares: &[usize]) -> (Vec<u32>, Vec<u32>) {
        let mut tokens = Vec::with_capacity(shares.iter().sum());
        let mut wanted = Vec::new();
        for (sequence, &share) in self
            .running
            .iter()
            .zip(shares)
            .filter(|(_, share)| **share > 0)
        {
            tokens
                .extend_from_slice(&sequence.tokens[sequence.computed..sequence.computed + share]);
            if share == sequence.remaining() {
                wanted.push((tokens.len() - 1) as u32);
            }
        }
        (tokens, wanted)
    }

    fn adapt_chunk(&mut self, tokens: usize, took: Duration) {
        let fits = tokens as f64 * STEP_TIME.as_secs_f64() / took.as_secs_f64().max(1e-6);
        // Grows by steps: a short chunk says little about a long one.
        let target = (fits as usize).min(tokens.max(MIN_CHUNK) * 4);
        self.chunk = target.clamp(
            MIN_CHUNK.min(self.config.max_step_tokens),
            self.config.max_step_tokens,
        );
    }

    /// Goes on with every sequence of the step; rows of logits are in the order of the sequences.
    fn hand_out(&mut self, shares: &[usize]) {
        let mut logits = std::mem::take(&mut self.output.logits);
        let mut rows = logits.chunks_exact_mut(self.config.vocabulary.max(1));
        let mut ended: Vec<(usize, Message)> = Vec::new();
        for (index, &share) in shares.iter().enumerate().filter(|(_, share)| **share > 0) {
            let sequence = &mut self.running[index];
            let read = sequence.reads_prompt();
            sequence.computed += share;
            if read {
                let (done, total) = (sequence.computed as u64, sequence.prompt as u64);
                if !sequence.reply.send(Message::Prefill { done, total }) {
                    sequence.cancel.store(true, Ordering::Relaxed);
                }
            }
            if sequence.remaining() > 0 {
                continue;
            }
            let Some(row) = rows.next() else {
                ended.push((
                    index,
                    Message::Failed(internal("the device gave too few logits".into())),
                ));
                continue;
            };
            if sequence.cancel.load(Ordering::Relaxed) {
                continue;
            }
            match advance(sequence, &self.tokenizer, row, &self.shared, &self.model) {
                Some(message) => ended.push((index, message)),
                // Others may share the prompt's whole pages from now on.
                None if read => {
                    let known = &sequence.tokens[..sequence.computed];
                    self.pool.keep(known, &mut sequence.pages, false);
                }
                None => {}
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
    fn finish(&mut self, index: usize, message: Message) {
        let mut sequence = self.running.remove(index);
        let known = &sequence.tokens[..sequence.computed];
        self.pool.keep(known, &mut sequence.pages, true);
        self.release(&sequence);
        self.report();
        sequence.reply.send(message);
    }

    /// Ends a sequence with an error; its pages are not trusted.
    fn fail(&mut self, index: usize, error: Error) {
        let sequence = self.running.remove(index);
        self.release(&sequence);
        self.report();
        sequence.reply.send(Message::Failed(error));
    }

    fn release(&mut self, sequence: &Sequence) {
        for &page in &sequence.pages {
            self.pool.release(page);
        }
    }

    pub(super) fn report(&self) {
        let running = self.running.len() + self.inspecting.len();
        self.shared
            .counters
            .gauges(running, self.waiting.len(), self.pool.counts());
    }
}

/// Takes a row of logits: sends what is certain, and gives the last message when the sequence has ended.
fn advance(
    sequence: &mut Sequence,
    tokenizer: &Tokenizer,
    row: &mut [f32],
    shared: &Shared,
    model: &Path,
) -> Option<Message> {
    if sequence.first_token.is_none() {
        sequence.first_token = Some(Instant::now());
    }
    match &mut sequence.work {
        Work::Classify { top, logits } => {
            let log = LogProbabilities::new(row);
            if row.iter().any(|logit| logit.is_nan()) {
                return Some(Message::Failed(not_finite(model)));
            }
            Some(Message::Classified(Classification {
                prompt_tokens: sequence.prompt as u64,
                top: likeliest(row, *top)
                    .into_iter()
                    .map(|(token, logit)| token_logprob(tokenizer, token, log.of(logit)))
                    .collect(),
                logits: logits.then(|| row.to_vec()),
            }))
        }
        // These have steps of their own.
        Work::Inspect(_) => Some(Message::Failed(internal(
            "an inspection among texts".into(),
        ))),
        Work::Generate(generation) => {
            let advance = match generation.advance(tokenizer, row, &sequence.tokens) {
                Ok(advance) => advance,
                Err(SamplingError::NotFinite) => return Some(Message::Failed(not_finite(model))),
                Err(error @ SamplingError::NothingLeft) => {
                    let error = Error::new(ErrorCode::InvalidRequest, error.to_string());
                    return Some(Message::Failed(error));
                }
            };
            let mut heard = true;
            if let Some((token, text, logprobs)) = advance.token {
                shared
                    .counters
                    .tokens_generated
                    .fetch_add(1, Ordering::Relaxed);
                sequence.tokens.push(token);
                heard = sequence.reply.send(Message::Token {
                    token,
                    text,
                    logprobs,
                });
            }
            if !advance.tail.is_empty() {
                sequence.reply.send(Message::Text(advance.tail));
            }
            match advance.end {
                Some((reason, stop)) => Some(Message::Generated(sequence.completion(reason, stop))),
                None => {
                    if !heard {
                        sequence.cancel.store(true, Ordering::Relaxed);
                    }
                    None
                }
            }
        }
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
