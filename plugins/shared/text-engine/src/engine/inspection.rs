//! Inspections: what a model makes of given tokens, beside the texts it generates.
//!
//! Inspections have pages and places as texts have, but steps of their own, one after each step of the texts: each is kept
//! as short as what a step that reads a prompt may add to one that generates. They take nothing from the cache, since they want what every position gives, and
//! leave nothing in it.

use super::job::Call;
use super::pace::{STEP_TIME, fitting};
use super::scheduler::device_error;
use super::{Job, Message, Reply, Scheduler, Work, internal, not_finite};
use crate::sampling::LogProbabilities;
use crate::states::{HIDDEN, LayerShape, attention_marks};
use backplane_plugin_api::capability::{LayerAttention, Pooling};
use backplane_plugin_api::types::{Error, ErrorCode};
use backplane_program::{SequenceStep, Step, StepOutput};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Most tokens of a step whose marks are copied out.
const MARKED_TOKENS: usize = 64;
/// Fewest tokens of a step, however slow the device.
const MIN_CHUNK: usize = 8;

/// What is wanted of a sequence of tokens.
#[derive(Debug)]
pub(crate) enum Inspection {
    /// The hidden states after the last norm, pooled: sums `[width]`.
    Embed { pooling: Pooling, sums: Vec<f64> },
    /// Log probabilities of the tokens from `first` on.
    Score { first: usize, values: Vec<f32> },
    /// Queries and keys of these layers: `[head][position][head_dim]`.
    Attention {
        shapes: Vec<LayerShape>,
        states: Vec<LayerAttention>,
    },
}

/// What an inspection found.
#[derive(Debug)]
pub(crate) enum Inspected {
    Embedding(Vec<f32>),
    Scores(Vec<f32>),
    Attention(Vec<LayerAttention>),
}

impl Inspection {
    /// Of hidden states of this width.
    pub(crate) fn embed(pooling: Pooling, width: usize) -> Self {
        Self::Embed {
            pooling,
            sums: vec![0.0; width],
        }
    }

    pub(crate) fn score(first: usize) -> Self {
        Self::Score {
            first,
            values: Vec::new(),
        }
    }

    /// Of `tokens` positions.
    ///
    /// # Errors
    /// There is no memory for them.
    pub(crate) fn attention(shapes: Vec<LayerShape>, tokens: usize) -> Result<Self, Error> {
        let zeros = |numbers: usize| {
            let mut values = Vec::new();
            let reserved = numbers
                .checked_mul(tokens)
                .filter(|length| values.try_reserve_exact(*length).is_ok());
            let Some(length) = reserved else {
                let message = format!(
                    "no memory for queries and keys of {tokens} positions in {} layers",
                    shapes.len()
                );
                return Err(Error::new(ErrorCode::OutOfMemory, message)
                    .with_action("ask for fewer layers, or shorten the prompt"));
            };
            values.resize(length, 0.0);
            Ok(values)
        };
        let states = shapes
            .iter()
            .map(|shape| {
                Ok(LayerAttention {
                    layer: shape.layer,
                    heads: shape.heads as u32,
                    kv_heads: shape.kv_heads as u32,
                    head_dim: shape.head_dim as u32,
                    queries: zeros(shape.heads * shape.head_dim)?,
                    keys: zeros(shape.kv_heads * shape.head_dim)?,
                })
            })
            .collect::<Result<_, Error>>()?;
        Ok(Self::Attention { shapes, states })
    }

    /// How many of `tokens` positions must be computed.
    pub(crate) fn span(&self, tokens: usize) -> usize {
        match self {
            // Attention is causal: nothing after the first position bears upon it.
            Self::Embed {
                pooling: Pooling::Cls,
                ..
            } => tokens.min(1),
            Self::Embed { .. } | Self::Attention { .. } => tokens,
            // The last token is only foretold.
            Self::Score { .. } => tokens.saturating_sub(1),
        }
    }

    /// Positions whose logits are wanted.
    fn wanted(&self, tokens: usize) -> Range<usize> {
        match self {
            Self::Score { first, .. } => first.saturating_sub(1)..tokens.saturating_sub(1),
            _ => 0..0,
        }
    }

    fn wants_marks(&self) -> bool {
        !matches!(self, Self::Score { .. })
    }

    /// Whether what was found so far are numbers. Queries and keys are told whatever they are.
    fn is_finite(&self) -> bool {
        match self {
            Self::Embed { sums, .. } => sums.iter().all(|sum| sum.is_finite()),
            // A token may be impossible.
            Self::Score { values, .. } => values.iter().all(|value| !value.is_nan()),
            Self::Attention { .. } => true,
        }
    }

    /// Takes what a step gave for positions of `tokens`: rows `rows` of its marks, and the logits of the positions wanted
    /// `[wanted, vocabulary]`.
    ///
    /// # Errors
    /// The device gave too little.
    fn take(
        &mut self,
        tokens: &[u32],
        positions: Range<usize>,
        marks: &[(String, Vec<f32>)],
        rows: Range<usize>,
        (logits, vocabulary): (&[f32], usize),
    ) -> Result<(), Error> {
        let mark = |name: &str, width: usize| {
            let found = marks.iter().find(|(known, _)| known == name);
            found
                .and_then(|(_, values)| values.get(rows.start * width..rows.end * width))
                .ok_or_else(|| internal(format!("the device gave no {name}")))
        };
        match self {
            Self::Embed { pooling, sums } => {
                let width = sums.len();
                let hidden = mark(HIDDEN, width)?;
                let last = tokens.len() - 1;
                for (position, row) in positions.zip(hidden.chunks_exact(width.max(1))) {
                    let counts = match pooling {
                        Pooling::Last => position == last,
                        Pooling::Cls => position == 0,
                        _ => true,
                    };
                    if counts {
                        for (sum, value) in sums.iter_mut().zip(row) {
                            *sum += f64::from(*value);
                        }
                    }
                }
            }
            Self::Score { values, .. } => {
                let rows = logits.chunks_exact(vocabulary);
                let first = positions.end - rows.len();
                for (target, row) in tokens[first + 1..=positions.end].iter().zip(rows) {
                    let log = LogProbabilities::new(row);
                    values.push(log.of(row[*target as usize]));
                }
            }
            Self::Attention { shapes, states } => {
                for (shape, state) in shapes.iter().zip(states) {
                    let LayerShape {
                        layer,
                        heads,
                        kv_heads,
                        head_dim,
                    } = *shape;
                    let [queries, keys] = attention_marks(layer);
                    let queries = mark(&queries, heads * head_dim)?;
                    let keys = mark(&keys, kv_heads * head_dim)?;
                    for (from, to, heads) in [
                        (queries, &mut state.queries, heads),
                        (keys, &mut state.keys, kv_heads),
                    ] {
                        let rows = from.chunks_exact(heads * head_dim);
                        for (position, row) in positions.clone().zip(rows) {
                            for (head, values) in row.chunks_exact(head_dim).enumerate() {
                                let at = (head * tokens.len() + position) * head_dim;
                                to[at..at + head_dim].copy_from_slice(values);
                            }
                        }
                    }
                }
            }
        }
        Ok(())
    }
}

/// A running inspection.
pub(super) struct Inspecting {
    pub(super) call: Call,
    /// Pages that it will hold at last.
    reserved: usize,
    tokens: Vec<u32>,
    /// Positions that must be computed, and those that are.
    span: usize,
    computed: usize,
    pages: Vec<u32>,
    inspection: Inspection,
    pub(super) cancel: Arc<AtomicBool>,
    pub(super) reply: Reply,
}

impl Inspecting {
    fn remaining(&self) -> usize {
        self.span - self.computed
    }

    /// Pages that it was promised and does not have yet.
    pub(super) fn promised(&self) -> usize {
        self.reserved - self.pages.len()
    }

    /// Positions among the next `count` whose logits are wanted.
    fn wanted(&self, count: usize) -> Range<usize> {
        let wanted = self.inspection.wanted(self.tokens.len());
        let end = (self.computed + count).min(wanted.end);
        wanted.start.max(self.computed).min(end)..end
    }

    /// The answer, when every position is computed.
    fn outcome(self) -> (Reply, Inspected) {
        let inspected = match self.inspection {
            Inspection::Embed { pooling, sums } => {
                let count = match pooling {
                    Pooling::Mean => self.tokens.len() as f64,
                    _ => 1.0,
                };
                Inspected::Embedding(sums.into_iter().map(|sum| (sum / count) as f32).collect())
            }
            Inspection::Score { values, .. } => Inspected::Scores(values),
            Inspection::Attention { states, .. } => Inspected::Attention(states),
        };
        (self.reply, inspected)
    }
}

impl Scheduler {
    /// Starts an inspection; the job's prompt has at least one position to compute.
    pub(super) fn begin_inspection(&mut self, call: Call, job: Job, reserved: usize) {
        let Work::Inspect(inspection) = job.work else {
            return;
        };
        let counters = &self.shared.counters;
        let span = inspection.span(job.prompt.len());
        counters.requests.fetch_add(1, Ordering::Relaxed);
        counters
            .tokens_prompt
            .fetch_add(span as u64, Ordering::Relaxed);
        self.inspecting.push(Inspecting {
            call,
            reserved,
            tokens: job.prompt,
            span,
            computed: 0,
            pages: Vec::new(),
            inspection: *inspection,
            cancel: job.cancel,
            reply: job.reply,
        });
    }

    /// One step of the inspections: as many of them as fit, another one first each time.
    pub(super) fn inspect(&mut self) {
        self.inspecting.rotate_left(1);
        let counts = self.inspection_counts();
        for index in (0..counts.len()).rev() {
            if !self.make_inspection_room(index, counts[index]) {
                let error = self.out_of_pages();
                self.end_inspection(index, Err(error));
                // The next step goes on with the others.
                return;
            }
        }
        let (mut tokens, mut wanted) = (Vec::new(), Vec::new());
        for (inspecting, &count) in self.inspecting.iter().zip(&counts) {
            let first = tokens.len();
            let rows = inspecting.wanted(count);
            wanted.extend(rows.map(|position| (first + position - inspecting.computed) as u32));
            tokens.extend_from_slice(&inspecting.tokens[inspecting.computed..][..count]);
        }
        let sequences: Vec<SequenceStep<'_>> = self
            .inspecting
            .iter()
            .zip(&counts)
            .map(|(inspecting, &count)| SequenceStep {
                count,
                past: inspecting.computed,
                pages: &inspecting.pages,
            })
            .collect();
        let step = Step {
            tokens: &tokens,
            sequences: &sequences,
            wanted: &wanted,
            marks: self.inspecting[..counts.len()]
                .iter()
                .any(|inspecting| inspecting.inspection.wants_marks()),
        };
        let started = self.now();
        // Not kept between steps: it may be large, and most models are never inspected.
        let mut output = StepOutput::default();
        let result = self.executable.step(&step, &mut output);
        self.shared.counters.steps.fetch_add(1, Ordering::Relaxed);
        let expected = wanted.len() * self.config.vocabulary;
        let result = match result {
            Ok(()) if output.logits.len() < expected => Err(internal(format!(
                "the device gave {} logits, expected {expected}",
                output.logits.len()
            ))),
            Ok(()) => Ok(()),
            Err(error) => Err(device_error(&error)),
        };
        if let Err(error) = result {
            for index in (0..counts.len()).rev() {
                self.end_inspection(index, Err(error.clone()));
            }
            return;
        }
        let took = self.now().saturating_duration_since(started);
        self.adapt_inspections(tokens.len(), took);
        self.hand_out_inspected(&counts, &output);
    }

    /// Learns from how long a step took.
    fn adapt_inspections(&mut self, tokens: usize, took: Duration) {
        let (took, most) = (took.as_secs_f64(), self.config.max_step_tokens);
        match self.generating() {
            0 => {
                let time = STEP_TIME.as_secs_f64();
                self.inspection_chunk = fitting(tokens, took, time, MIN_CHUNK, most);
            }
            rows => {
                let spare = self.pace.spare(rows).map(|spare| spare * self.part());
                self.inspection_beside = match spare {
                    Some(spare) => fitting(tokens, took, spare, 1, most),
                    None => 1,
                };
            }
        }
    }

    /// Sequences that generate.
    fn generating(&self) -> usize {
        let generating = self.running.iter().filter(|it| !it.reads());
        generating.count()
    }

    /// How many positions each of the first inspections computes in the next step: all of at least one.
    fn inspection_counts(&self) -> Vec<usize> {
        let mut room = match self.generating() {
            0 => self.inspection_chunk,
            _ => self.inspection_beside,
        };
        let mut rows = self.config.max_wanted;
        let mut counts = Vec::new();
        for inspecting in &self.inspecting {
            if inspecting.inspection.wants_marks() {
                room = room.min(MARKED_TOKENS.saturating_sub(counts.iter().sum()));
            }
            let mut count = inspecting.remaining().min(room);
            let wanted = inspecting.wanted(count);
            count -= wanted.len().saturating_sub(rows);
            if count == 0 {
                break;
            }
            room -= count;
            rows -= inspecting.wanted(count).len();
            counts.push(count);
        }
        counts
    }

    fn make_inspection_room(&mut self, index: usize, count: usize) -> bool {
        let inspecting = &mut self.inspecting[index];
        let pages = (inspecting.computed + count).div_ceil(self.config.page_size);
        while inspecting.pages.len() < pages {
            match self.pool.allocate() {
                Some(page) => inspecting.pages.push(page),
                None => return false,
            }
        }
        true
    }

    /// Goes on with every inspection of the step.
    fn hand_out_inspected(&mut self, counts: &[usize], output: &StepOutput) {
        let vocabulary = self.config.vocabulary.max(1);
        let (mut row, mut logits) = (0, output.logits.as_slice());
        let mut ended = Vec::new();
        for (index, &count) in counts.iter().enumerate() {
            let inspecting = &mut self.inspecting[index];
            let wanted = inspecting.wanted(count).len();
            let (own, rest) = logits.split_at(wanted * vocabulary);
            logits = rest;
            let positions = inspecting.computed..inspecting.computed + count;
            let taken = inspecting.inspection.take(
                &inspecting.tokens,
                positions,
                &output.marks,
                row..row + count,
                (own, vocabulary),
            );
            row += count;
            inspecting.computed += count;
            let (done, total) = (inspecting.computed as u64, inspecting.span as u64);
            if !inspecting.reply.send(Message::Prefill { done, total }) {
                inspecting.cancel.store(true, Ordering::Relaxed);
            }
            match taken {
                Err(error) => ended.push((index, Err(error))),
                Ok(()) if !inspecting.inspection.is_finite() => {
                    ended.push((index, Err(not_finite(&self.model))));
                }
                Ok(()) if inspecting.remaining() == 0 => ended.push((index, Ok(()))),
                Ok(()) => {}
            }
        }
        for (index, result) in ended.into_iter().rev() {
            self.end_inspection(index, result);
        }
    }

    /// Ends an inspection with what it found, or with an error.
    pub(super) fn end_inspection(&mut self, index: usize, result: Result<(), Error>) {
        let inspecting = self.inspecting.remove(index);
        for &page in &inspecting.pages {
            self.pool.release(page);
        }
        self.report();
        match result {
            Ok(()) => {
                let (reply, inspected) = inspecting.outcome();
                reply.send(Message::Inspected(inspected));
            }
            Err(error) => {
                inspecting.reply.send(Message::Failed(error));
            }
        }
    }
}
