//! What runs a program: the device, what it compiles to, and what one step takes and gives.

use crate::program::{CacheSpec, CachedValues, Program};
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
    /// How keys and values are stored.
    pub cache_type: CacheType,
}

/// How keys and values are stored: what attention reads is what was written, rounded to this. Keys are rounded after they
/// were turned.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CacheType {
    /// As computed.
    F32,
    /// To the nearest `f16`, as most engines have it: of two equally near ones the even; numbers past 65504 become infinite.
    #[default]
    F16,
    /// Each 32 neighbouring elements of a head as GGUF's block `Q8_0`: whole numbers from -127 to 127, halves rounded away
    /// from zero, times a scale, the largest magnitude over 127 rounded to `f16`.
    Q8_0,
}

impl CacheType {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::F32, Self::F16, Self::Q8_0];

    /// Elements that share a scale; heads are whole numbers of these.
    #[must_use]
    pub fn block(self) -> usize {
        match self {
            Self::F32 | Self::F16 => 1,
            Self::Q8_0 => 32,
        }
    }

    /// Bytes of one block.
    #[must_use]
    pub fn block_bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::F16 => 2,
            Self::Q8_0 => 34,
        }
    }

    /// Checks that the heads of every cache of a program can be stored so.
    ///
    /// # Errors
    /// Heads are no whole number of blocks; says of which layer.
    pub fn check(self, caches: &[CacheSpec]) -> Result<(), DeviceError> {
        let block = self.block();
        for (layer, spec) in caches.iter().enumerate() {
            let parts = match spec.values {
                CachedValues::Stored => vec![("key", spec.key_dim), ("value", spec.value_dim)],
                CachedValues::InKeys => vec![("key", spec.key_dim)],
            };
            for (what, dim) in parts {
                if !dim.is_multiple_of(block) {
                    return Err(DeviceError::CacheType {
                        cache_type: self,
                        message: format!(
                            "layer {layer} has {what} heads of {dim} elements, expected a multiple of {block}"
                        ),
                    });
                }
            }
        }
        Ok(())
    }
}

impl std::fmt::Display for CacheType {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::F32 => "f32",
            Self::F16 => "f16",
            Self::Q8_0 => "q8_0",
        })
    }
}

impl std::str::FromStr for CacheType {
    type Err = String;

    /// Reads a name as [`Display`](std::fmt::Display) writes it, in either case.
    fn from_str(name: &str) -> Result<Self, String> {
        Self::ALL
            .into_iter()
            .find(|known| known.to_string().eq_ignore_ascii_case(name))
            .ok_or_else(|| {
                let shown: String = name.chars().take(32).collect();
                format!("cache type {shown:?}, expected f32, f16 or q8_0")
            })
    }
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
    /// The model's heads can't be stored in the cache type asked for.
    #[error("cache type {cache_type}: {message}")]
    CacheType {
        /// The type.
        cache_type: CacheType,
        /// Which heads.
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

    /// Bytes of what steps are computed in, as large as it may become, pages and weights aside; 0 where that is not known.
    fn buffer_bytes(&self) -> usize {
        0
    }

    /// What runs: kernels, threads, repacking. One line for people.
    fn describe(&self) -> String;
}
