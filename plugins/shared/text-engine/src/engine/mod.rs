//! The engine of one loaded model: a thread that owns the executable and runs steps for every sequence at once.
//!
//! Callers hand in [`Job`]s and receive [`Message`]s over a channel of their own; they cancel by a flag that the thread
//! reads between steps. The thread never waits for a caller.

mod drafts;
mod generation;
mod inspection;
mod job;
mod pace;
mod queue;
mod room;
mod scheduler;
mod sequence;
#[cfg(test)]
mod tests;

pub(crate) use generation::Generation;
pub(crate) use inspection::{Inspected, Inspection};
pub(crate) use job::{Job, Message, Reply, Work};
pub(crate) use scheduler::device_error;
#[cfg(test)]
pub(crate) use tests::tokenizer;

use crate::counters::Counters;
use crate::options::Speculation;
use crate::pages::PageCounts;
use backplane_plugin_api::types::{Error, ErrorCode};
use backplane_program::Executable;
use backplane_tokenizer::Tokenizer;
use job::Call;
use scheduler::{Scheduler, internal};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Instant;

/// Sizes of an engine.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Config {
    /// Positions of one sequence.
    pub(crate) context: usize,
    /// Sequences at once.
    pub(crate) parallel: usize,
    /// Positions of a page.
    pub(crate) page_size: usize,
    /// Pages in the pool.
    pub(crate) pages: usize,
    /// Most tokens in a step; at least `parallel`.
    pub(crate) max_step_tokens: usize,
    /// Most rows of logits in a step; at least `parallel`.
    pub(crate) max_wanted: usize,
    /// Width of the logits.
    pub(crate) vocabulary: usize,
    /// Whether texts are drafted where a request doesn't say.
    pub(crate) speculation: Speculation,
}

impl Config {
    /// Positions that one sequence may take: those of the context, or of the whole pool.
    pub(crate) fn longest(&self) -> usize {
        self.context.min(self.positions())
    }

    /// Positions of the pool.
    pub(crate) fn positions(&self) -> usize {
        self.pages.saturating_mul(self.page_size)
    }
}

/// The error of a call that its caller stopped.
pub(crate) fn cancelled() -> Error {
    Error::new(ErrorCode::Cancelled, "the call was cancelled")
}

/// The error of a model whose arithmetic ends in what is no number.
pub(crate) fn not_finite(model: &Path) -> Error {
    let model = model.display();
    Error::new(
        ErrorCode::Device,
        format!("{model}: the model gives no finite logits"),
    )
    .with_action(format!("run `backplane show --check {model}`"))
}

/// What callers and the engine thread share.
#[derive(Debug)]
pub(crate) struct Shared {
    inbox: Mutex<Inbox>,
    wake: Condvar,
    pub(crate) counters: Counters,
}

#[derive(Debug)]
struct Inbox {
    jobs: Vec<(Call, Job)>,
    /// Calls so far.
    calls: u64,
    /// Why no more jobs are taken.
    ended: Option<Error>,
}

impl Shared {
    fn new() -> Self {
        Self {
            inbox: Mutex::new(Inbox {
                jobs: Vec::new(),
                calls: 0,
                ended: None,
            }),
            wake: Condvar::new(),
            counters: Counters::default(),
        }
    }

    fn inbox(&self) -> MutexGuard<'_, Inbox> {
        // The lock is only held to move jobs; what it guards is whole even after a panic.
        self.inbox.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes no more jobs from now on; the first reason stays.
    fn end(&self, reason: Error) -> Error {
        let reason = self.inbox().ended.get_or_insert(reason).clone();
        self.wake.notify_all();
        reason
    }
}

/// The engine as callers see it.
#[derive(Debug)]
pub(crate) struct Engine {
    pub(crate) shared: Arc<Shared>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Engine {
    /// Starts the thread.
    pub(crate) fn start(
        executable: Box<dyn Executable>,
        tokenizer: Tokenizer,
        config: Config,
        model: PathBuf,
    ) -> Result<Self, Error> {
        let shared = Arc::new(Shared::new());
        let free = PageCounts {
            total: config.pages,
            ..PageCounts::default()
        };
        shared.counters.gauges(0, 0, free);
        let page_bytes = executable.page_bytes() as u64;
        let counters = &shared.counters;
        counters.page_bytes.store(page_bytes, Ordering::Relaxed);
        let page_tokens = config.page_size as u64;
        counters.page_tokens.store(page_tokens, Ordering::Relaxed);
        let scores = config.max_wanted.saturating_mul(config.vocabulary);
        let scores = scores.saturating_mul(size_of::<f32>());
        let buffers = executable.buffer_bytes().saturating_add(scores) as u64;
        counters.buffer_bytes.store(buffers, Ordering::Relaxed);
        let thread = std::thread::Builder::new()
            .name("backplane-engine".into())
            .spawn({
                let shared = Arc::clone(&shared);
                move || {
                    run(Scheduler::new(
                        executable,
                        tokenizer,
                        config,
                        model,
                        shared,
                        Box::new(Instant::now),
                    ))
                }
            })
            .map_err(|error| {
                Error::new(
                    ErrorCode::Internal,
                    format!("the engine thread could not start: {error}"),
                )
            })?;
        Ok(Self {
            shared,
            thread: Mutex::new(Some(thread)),
        })
    }

    /// That jobs are taken.
    ///
    /// # Errors
    /// The model was closed or its engine failed.
    pub(crate) fn check_open(&self) -> Result<(), Error> {
        match &self.shared.inbox().ended {
            Some(reason) => Err(reason.clone()),
            None => Ok(()),
        }
    }

    /// Queues jobs, all of them or none.
    ///
    /// # Errors
    /// The model was closed or its engine failed.
    pub(crate) fn submit(&self, jobs: Vec<Job>) -> Result<(), Error> {
        let mut inbox = self.shared.inbox();
        if let Some(reason) = &inbox.ended {
            return Err(reason.clone());
        }
        inbox.calls += 1;
        let call = Call(inbox.calls);
        inbox.jobs.extend(jobs.into_iter().map(|job| (call, job)));
        drop(inbox);
        self.shared.wake.notify_all();
        Ok(())
    }

    /// Ends every running job as closed, waits for the thread and frees what it held. A second call does nothing.
    pub(crate) fn close(&self) {
        self.shared
            .end(Error::new(ErrorCode::Closed, "the model was closed"));
        // The lock is held while joining, so that every caller returns only after the memory is free.
        let mut thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(thread) = thread.take() {
            // A panic of the thread was caught inside it and told to its callers.
            let _ = thread.join();
        }
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.close();
    }
}

/// The thread: steps until closed. A panic becomes an error for everybody waiting and for later calls.
fn run(mut scheduler: Scheduler) {
    let shared = scheduler.shared();
    let reason = match catch_unwind(AssertUnwindSafe(|| scheduler.run())) {
        Ok(reason) => reason,
        Err(panic) => {
            let message = panic
                .downcast_ref::<&str>()
                .map(|text| (*text).to_owned())
                .or_else(|| panic.downcast_ref::<String>().cloned())
                .unwrap_or_else(|| "no message".into());
            tracing::error!("the engine panicked: {message}");
            let reason = Error::new(
                ErrorCode::Device,
                format!("the engine of this model failed: {message}"),
            )
            .with_action("load the model again");
            shared.end(reason)
        }
    };
    scheduler.fail_all(&reason);
    // The device's own clean-up must not take the process down either.
    if catch_unwind(AssertUnwindSafe(move || drop(scheduler))).is_err() {
        tracing::error!("the device panicked while it was freed");
    }
}
