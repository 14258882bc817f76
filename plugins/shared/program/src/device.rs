//! What runs a program: the device, what it compiles to, and what one step takes and gives.

use crate::program::Program;
use backplane_weights::Weights;

/// Sizes a compiled program must be able to take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Most tokens in one step.
    pub max_step_tokens: usize,
    /// Most rows of logits wanted in one step.
    pub max_wanted: usize,
    /// Positions per cache page.
    pub page_size: usize,
    /// Cache pages in the pool. The pool is committed as pages are first written.
    pub pages: usize,
    /// Threads to use; `0` leaves the choice to the device.
    pub threads: usize,
}

/// The part of a step that belongs to one sequence: `count` tokens, next to each other in [`Step::tokens`].
#[derive(Clone, Copy, Debug)]
pub struct SequenceStep<'a> {
    /// Tokens of this sequence in the step; at least 1.
    pub count: usize,
    /// Position of the first of them; positions `0 .. past` are in the cache already.
    pub past: usize,
    /// Cache pages in order of position; covers at least `past + count` positions. No page stands twice in it, and a
    /// page that holds a position of this step is in no other sequence of the step at a position of the step; pages that
    /// are only read may be shared.
    pub pages: &'a [u32],
}

/// One step: tokens of one or more sequences.
#[derive(Clone, Copy, Debug)]
pub struct Step<'a> {
    /// Token ids of all sequences, one sequence after the other.
    pub tokens: &'a [u32],
    /// The sequences, in the order of their tokens.
    pub sequences: &'a [SequenceStep<'a>],
    /// Rows (indices into `tokens`) whose logits are wanted, ascending.
    pub wanted: &'a [u32],
    /// Whether the marks of the program are to be copied out (slow; for inspection and tests).
    pub marks: bool,
}

/// What a step gives back. Reused between steps.
#[derive(Clone, Debug, Default)]
pub struct StepOutput {
    /// `[wanted, vocab]`, row-major.
    pub logits: Vec<f32>,
    /// The marks asked for: name and `[rows, width]`, row-major.
    pub marks: Vec<(String, Vec<f32>)>,
}

/// Why a device could not compile or run.
#[derive(Debug, thiserror::Error)]
pub enum DeviceError {
    /// The program does not fit the weights or the device.
    #[error(transparent)]
    Program(#[from] crate::program::ProgramError),
    /// The device can't do what the program asks: names the operation or storage type.
    #[error("{device} can't run this model: {message}")]
    Unsupported {
        /// Device name.
        device: String,
        /// What it lacks.
        message: String,
    },
    /// The step does not fit the limits the program was compiled for.
    #[error("step: {0}")]
    Step(String),
    /// Memory could not be had.
    #[error("{device}: {bytes} bytes of memory for {what} could not be had")]
    Memory {
        /// Device name.
        device: String,
        /// Bytes asked for.
        bytes: usize,
        /// For what.
        what: String,
    },
    /// The device failed while running.
    #[error("{device}: {message}")]
    Failed {
        /// Device name.
        device: String,
        /// What happened.
        message: String,
    },
}

/// Something that runs programs.
pub trait Device: Send + Sync {
    /// Name for people, such as `cpu (AVX-512 VNNI, 2 threads)`.
    fn name(&self) -> String;

    /// Makes a program ready to run against these weights. The weights stay mapped as long as the executable lives.
    ///
    /// # Errors
    /// The program does not fit the weights, needs what the device lacks, or memory is short.
    fn compile(
        &self,
        program: &Program,
        weights: &Weights,
        limits: Limits,
    ) -> Result<Box<dyn Executable>, DeviceError>;
}

/// A compiled program with its cache pool.
pub trait Executable: Send {
    /// Runs one step. Keys and values of the step's tokens are written to the pages given.
    ///
    /// # Errors
    /// The step breaks the limits (too many tokens, a token or page out of range, too few pages).
    fn step(&mut self, step: &Step<'_>, out: &mut StepOutput) -> Result<(), DeviceError>;

    /// Copies one cache page onto another, in all layers.
    ///
    /// # Errors
    /// A page is out of range.
    fn copy_page(&mut self, from: u32, to: u32) -> Result<(), DeviceError>;

    /// Bytes of one cache page over all layers.
    fn page_bytes(&self) -> usize;

    /// What runs: kernels, threads, repacking. One line for people.
    fn describe(&self) -> String;
}
