//! One running job: its tokens, its pages, and what a row of logits leads to.

use super::drafts::{Account, Drafter};
use super::generation::{Stuck, token_logprob};
use super::job::Call;
use super::{Message, Reply, Shared, Work, internal, not_finite};
use crate::sampling::{LogProbabilities, SamplingError, likeliest};
use backplane_plugin_api::types::{Classification, Completion, Error, ErrorCode, FinishReason};
use backplane_tokenizer::Tokenizer;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// A job that has cache pages.
pub(super) struct Sequence {
    /// Its own number.
    pub(super) id: u64,
    pub(super) call: Call,
    /// Prompt and text so far.
    pub(super) tokens: Vec<u32>,
    pub(super) prompt: usize,
    /// Positions whose keys and values are in the pages.
    pub(super) computed: usize,
    /// Positions that are read rather than generated: the prompt, or all there was when it had to give its pages back.
    pub(super) read_to: usize,
    /// Positions that were computed before it gave its pages back.
    pub(super) again: usize,
    /// Positions of the prompt that its caller was told of.
    pub(super) told: usize,
    pub(super) pages: Vec<u32>,
    /// Most pages it will ever hold.
    pub(super) most: usize,
    /// Prompt tokens taken from the cache.
    pub(super) cached: usize,
    /// The sequence that reads what this one's prompt begins with, and up to which position: worth waiting for.
    pub(super) follows: Option<(u64, usize)>,
    pub(super) work: Work,
    /// `None` where nothing is drafted.
    pub(super) drafter: Option<Drafter>,
    pub(super) cancel: Arc<AtomicBool>,
    pub(super) reply: Reply,
    pub(super) queued: Duration,
    pub(super) begun: Instant,
    pub(super) first_token: Option<Instant>,
}

/// The part of a step that belongs to one sequence.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Portion {
    /// Tokens that are known.
    pub(super) tokens: usize,
    /// Drafted tokens after them.
    pub(super) drafts: usize,
}

impl Portion {
    pub(super) fn rows(self) -> usize {
        self.tokens + self.drafts
    }
}

impl Sequence {
    pub(super) fn remaining(&self) -> usize {
        self.tokens.len() - self.computed
    }

    /// Whether it reads what is known, rather than generates.
    pub(super) fn reads(&self) -> bool {
        self.computed < self.read_to
    }

    /// Tells its caller how much of the prompt is read, where that is news; `false` when the caller is gone.
    pub(super) fn tell_read(&mut self) -> bool {
        let done = self.computed.min(self.prompt);
        if done <= self.told {
            return true;
        }
        self.told = done;
        let (done, total) = (done as u64, self.prompt as u64);
        self.reply.send(Message::Prefill { done, total })
    }

    /// Rows of logits that it wants of a step.
    pub(super) fn wanted(&self, portion: Portion) -> usize {
        if portion.tokens == self.remaining() {
            1 + portion.drafts
        } else {
            0
        }
    }

    /// Drafted tokens that may yet be generated: the token after them is the last at the latest.
    pub(super) fn draft_limit(&self) -> usize {
        match &self.work {
            Work::Generate(generation) => {
                (generation.limit - generation.generated).saturating_sub(1)
            }
            Work::Classify { .. } | Work::Inspect(_) => 0,
        }
    }

    pub(super) fn completion(
        &self,
        finish_reason: FinishReason,
        stop_string: Option<String>,
        now: Instant,
    ) -> Completion {
        let (seed, generated) = match &self.work {
            Work::Generate(generation) => (generation.seed, generation.generated),
            Work::Classify { .. } | Work::Inspect(_) => (0, 0),
        };
        let first = self.first_token.unwrap_or(now);
        Completion {
            finish_reason,
            stop_string,
            prompt_tokens: self.prompt as u64,
            cached_tokens: self.cached as u64,
            completion_tokens: generated as u64,
            seed,
            queue_s: self.queued.as_secs_f64(),
            prefill_s: (first - self.begun).as_secs_f64(),
            decode_s: (now - first).as_secs_f64(),
        }
    }

    /// Takes the rows of logits of a step, `[1 + drafts, vocabulary]`, as far as the drafts come true: sends what is certain, and
    /// gives the last message when the sequence has ended. The last row taken is that of the last token of `tokens` whose
    /// keys and values are in the pages.
    pub(super) fn take_rows<'l>(
        &mut self,
        rows: impl Iterator<Item = &'l mut [f32]>,
        drafts: usize,
        account: &mut Account,
        context: &Context<'_>,
    ) -> Option<Message> {
        let drafted = match &self.drafter {
            Some(drafter) => drafter.tokens(drafts).to_vec(),
            None => Vec::new(),
        };
        let known = self.tokens.len();
        let (mut end, mut accepted) = (None, 0);
        for (at, row) in rows.enumerate() {
            end = self.advance(row, context);
            let came_true =
                self.tokens.len() == known + at + 1 && drafted.get(at) == self.tokens.last();
            accepted += u64::from(came_true);
            if end.is_some() || !came_true || self.cancel.load(Ordering::Relaxed) {
                break;
            }
            self.computed += 1;
        }
        if let Some(drafter) = &mut self.drafter {
            drafter.note(&self.tokens[known..], account);
        }
        let counters = &context.shared.counters;
        counters.drafted.fetch_add(drafts as u64, Ordering::Relaxed);
        counters.accepted.fetch_add(accepted, Ordering::Relaxed);
        end
    }

    /// Takes one row of logits: that of the last token.
    fn advance(&mut self, row: &mut [f32], context: &Context<'_>) -> Option<Message> {
        let Context {
            tokenizer,
            shared,
            model,
            now,
        } = *context;
        self.first_token.get_or_insert(now);
        match &mut self.work {
            Work::Classify { top, logits } => {
                let log = LogProbabilities::new(row);
                if row.iter().any(|logit| logit.is_nan()) {
                    return Some(Message::Failed(not_finite(model)));
                }
                Some(Message::Classified(Classification {
                    prompt_tokens: self.prompt as u64,
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
                let advance = match generation.advance(tokenizer, row, &self.tokens) {
                    Ok(advance) => advance,
                    Err(Stuck::Sampling(SamplingError::NotFinite)) => {
                        return Some(Message::Failed(not_finite(model)));
                    }
                    Err(Stuck::Sampling(error @ SamplingError::NothingLeft)) => {
                        let error = Error::new(ErrorCode::InvalidRequest, error.to_string());
                        return Some(Message::Failed(error));
                    }
                    Err(Stuck::Grammar(error)) => return Some(Message::Failed(error)),
                };
                let mut heard = true;
                if let Some((token, text, logprobs)) = advance.token {
                    shared
                        .counters
                        .tokens_generated
                        .fetch_add(1, Ordering::Relaxed);
                    self.tokens.push(token);
                    heard = self.reply.send(Message::Token {
                        token,
                        text,
                        logprobs,
                    });
                }
                if !advance.tail.is_empty() {
                    self.reply.send(Message::Text(advance.tail));
                }
                match advance.end {
                    Some((reason, stop)) => {
                        Some(Message::Generated(self.completion(reason, stop, now)))
                    }
                    None => {
                        if !heard {
                            self.cancel.store(true, Ordering::Relaxed);
                        }
                        None
                    }
                }
            }
        }
    }
}

/// What taking a row needs beside the sequence.
#[derive(Clone, Copy)]
pub(super) struct Context<'a> {
    pub(super) tokenizer: &'a Tokenizer,
    pub(super) shared: &'a Shared,
    /// The model's file, for messages.
    pub(super) model: &'a Path,
    /// When the rows came.
    pub(super) now: Instant,
}
