//! What callers hand to the engine and what it answers.

use super::Generation;
use super::inspection::{Inspected, Inspection};
use backplane_plugin_api::types::{Classification, Completion, Error, TokenLogprob};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::mpsc::Sender;
use std::time::Instant;

/// One sequence to run.
#[derive(Debug)]
pub(crate) struct Job {
    /// At least one token, fewer than the context has positions; of an inspection as many.
    pub(crate) prompt: Vec<u32>,
    pub(crate) work: Work,
    /// Set by the caller to end the job; read between steps.
    pub(crate) cancel: Arc<AtomicBool>,
    pub(crate) reply: Reply,
    pub(crate) submitted: Instant,
}

impl Job {
    /// Most positions that it takes in the cache.
    pub(super) fn positions(&self) -> usize {
        match &self.work {
            Work::Generate(generation) => self.prompt.len() + generation.limit,
            Work::Classify { .. } => self.prompt.len(),
            Work::Inspect(inspection) => inspection.span(self.prompt.len()),
        }
    }
}

/// The call that a job came with; one of many jobs is one call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Call(pub(super) u64);

/// What to do after the prompt was read.
#[derive(Debug)]
pub(crate) enum Work {
    /// Generate text.
    Generate(Box<Generation>),
    /// Tell the logits of the last position.
    Classify {
        /// How many of the likeliest tokens.
        top: usize,
        /// Whether to give all logits.
        logits: bool,
    },
    /// Tell what the model makes of the prompt's tokens.
    Inspect(Box<Inspection>),
}

/// Where the answers go.
#[derive(Debug)]
pub(crate) struct Reply {
    pub(crate) sender: Sender<(usize, Message)>,
    /// The caller's own number for this job.
    pub(crate) index: usize,
}

impl Reply {
    /// Sends a message; `false` when the caller is gone.
    pub(crate) fn send(&self, message: Message) -> bool {
        self.sender.send((self.index, message)).is_ok()
    }
}

/// An answer. The last four end the job.
#[derive(Debug)]
pub(crate) enum Message {
    Prefill {
        done: u64,
        total: u64,
    },
    Token {
        token: u32,
        text: String,
        logprobs: Vec<TokenLogprob>,
    },
    Text(String),
    Generated(Completion),
    Classified(Classification),
    Inspected(Inspected),
    Failed(Error),
}
