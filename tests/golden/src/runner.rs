//! Runs a model on a device: sequences on scattered cache pages, fed in any portions.

use backplane_program::{
    CacheType, Device, Executable, Limits, Program, SequenceStep, Step, StepOutput,
};
use backplane_weights::Weights;
use std::path::Path;

/// Positions per page: small, so that even short prompts cross pages.
const PAGE_SIZE: usize = 4;

/// A compiled model with a stock of cache pages in shuffled order.
pub struct Runner {
    executable: Box<dyn Executable>,
    program: Program,
    free: Vec<u32>,
    max_step_tokens: usize,
}

/// A sequence of a [`Runner`]: what it has been fed so far.
#[derive(Debug, Default)]
pub struct Sequence {
    past: usize,
    pages: Vec<u32>,
}

impl Runner {
    /// Compiles the model of a file for steps of up to `max_step_tokens` tokens, with cache for `positions` positions.
    ///
    /// # Panics
    /// The file can't be read, lowered or compiled.
    #[must_use]
    pub fn new(device: &dyn Device, path: &Path, positions: usize, max_step_tokens: usize) -> Self {
        Self::for_context(device, path, None, positions, max_step_tokens)
    }

    /// As [`new`](Self::new), for sequences of at most `context` positions each; `None` stands for the model's longest.
    ///
    /// # Panics
    /// As [`new`](Self::new).
    #[must_use]
    pub fn for_context(
        device: &dyn Device,
        path: &Path,
        context: Option<usize>,
        positions: usize,
        max_step_tokens: usize,
    ) -> Self {
        let weights = Weights::open(path).unwrap_or_else(|error| panic!("{error}"));
        Self::of(device, &weights, context, positions, max_step_tokens)
    }

    /// As [`for_context`](Self::for_context), of a model that is open.
    ///
    /// # Panics
    /// As [`new`](Self::new).
    #[must_use]
    pub fn of(
        device: &dyn Device,
        weights: &Weights,
        context: Option<usize>,
        positions: usize,
        max_step_tokens: usize,
    ) -> Self {
        let at = weights.path().display();
        let program =
            backplane_models::lower_for(weights, context).unwrap_or_else(|error| panic!("{error}"));
        let pages = positions.div_ceil(PAGE_SIZE);
        let limits = Limits {
            max_step_tokens,
            max_wanted: max_step_tokens,
            page_size: PAGE_SIZE,
            pages,
            threads: 0,
            cache_type: CacheType::F32,
        };
        let executable = device
            .compile(&program, weights, limits)
            .unwrap_or_else(|error| panic!("{at}: {error}"));
        Self {
            executable,
            program,
            free: shuffled(pages),
            max_step_tokens,
        }
    }

    /// Tokens in the vocabulary.
    #[must_use]
    pub fn vocab(&self) -> usize {
        self.program.vocab
    }

    /// Feeds each sequence its tokens, all in one step. Rows of `wanted` count over all tokens of the step.
    ///
    /// # Panics
    /// The device fails, or pages run out.
    pub fn step(
        &mut self,
        parts: &mut [(&mut Sequence, &[u32])],
        wanted: &[u32],
        marks: bool,
    ) -> StepOutput {
        for (sequence, tokens) in parts.iter_mut() {
            while sequence.pages.len() * PAGE_SIZE < sequence.past + tokens.len() {
                sequence.pages.push(
                    self.free
                        .pop()
                        .unwrap_or_else(|| panic!("the test asks for too few pages")),
                );
            }
        }
        let tokens: Vec<u32> = parts
            .iter()
            .flat_map(|(_, tokens)| tokens.iter().copied())
            .collect();
        let sequences: Vec<_> = parts
            .iter()
            .map(|(sequence, tokens)| SequenceStep {
                count: tokens.len(),
                past: sequence.past,
                pages: &sequence.pages,
            })
            .collect();
        let mut out = StepOutput::default();
        let step = Step {
            tokens: &tokens,
            sequences: &sequences,
            wanted,
            marks,
        };
        self.executable
            .step(&step, &mut out)
            .unwrap_or_else(|error| panic!("{error}"));
        for (sequence, tokens) in parts.iter_mut() {
            sequence.past += tokens.len();
        }
        assert_eq!(
            out.logits.len(),
            wanted.len() * self.program.vocab,
            "logits are [wanted, vocab]"
        );
        out
    }

    /// Feeds one sequence in portions of at most `portion` tokens; logits of the rows from `first_wanted` on.
    pub fn feed(
        &mut self,
        sequence: &mut Sequence,
        tokens: &[u32],
        portion: usize,
        first_wanted: usize,
    ) -> Vec<f32> {
        let mut logits = vec![];
        let portion = portion.min(self.max_step_tokens);
        for (index, chunk) in tokens.chunks(portion).enumerate() {
            let first = first_wanted
                .saturating_sub(index * portion)
                .min(chunk.len());
            let wanted: Vec<u32> = (first as u32..chunk.len() as u32).collect();
            logits.extend(self.step(&mut [(sequence, chunk)], &wanted, false).logits);
        }
        logits
    }

    /// Gives a sequence's pages back.
    pub fn release(&mut self, sequence: Sequence) {
        self.free.extend(sequence.pages);
    }
}

/// The numbers below `count` in a fixed, scattered order.
fn shuffled(count: usize) -> Vec<u32> {
    let mut ids: Vec<u32> = (0..count as u32).collect();
    let mut state = 0x2545_f491_4f6c_dd1du64;
    for place in (1..ids.len()).rev() {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        ids.swap(place, (state >> 33) as usize % (place + 1));
    }
    ids
}
