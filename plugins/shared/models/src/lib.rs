//! Architectures: metadata and weights in, program out.
//!
//! [`lower`] turns a model file into the step program of its architecture; [`summarize`] describes it for people. Both go
//! through one table, [`ARCHITECTURES`]. A new architecture is a file that reads like its paper, and a row of that table.
//!
//! Invariants:
//! - Nothing here reads matrices: only metadata, shapes, and the few numbers of rope tables.
//! - Every tensor of the file is used by the program, or the file is refused: a tensor that an architecture does not know
//!   is a sign that the model computes something else.
//! - Nothing is allocated by a number from the metadata before it has been checked against the tensors there are.

mod blocks;
pub mod convert;
mod error;
mod gemma3;
pub mod hub;
mod hyperparameters;
mod llama;
mod phi3;
mod qwen2;
mod qwen3;
mod rope;
mod summary;

pub use error::ModelError;
pub use summary::{ModelSummary, summarize};

use backplane_program::Program;
use backplane_weights::Weights;
use hyperparameters::Hyperparameters;

/// How models of one architecture are lowered and described.
#[derive(Debug)]
pub struct Architecture {
    /// Its name in `general.architecture`, which also begins its metadata keys.
    pub name: &'static str,
    /// What kind of norm it has, in words.
    pub norm: &'static str,
    /// Keys out of [`Hyperparameters::refuse_unheeded`]'s table that it does heed.
    heeds: &'static [&'static str],
    /// Tensors that lowering reads, beside those that the program does.
    tables: &'static [&'static str],
    lower: fn(&Hyperparameters<'_>) -> Result<Program, ModelError>,
    describe_rope: fn(&Hyperparameters<'_>) -> Result<String, ModelError>,
    describe_window: fn(&Hyperparameters<'_>) -> Result<String, ModelError>,
}

/// All architectures, by name.
pub const ARCHITECTURES: &[Architecture] = &[
    Architecture {
        name: "gemma3",
        norm: "RMS, before and after attention and feed-forward, on queries and keys",
        heeds: &[
            "attention.sliding_window",
            "attn_logit_softcapping",
            "final_logit_softcapping",
        ],
        tables: &[],
        lower: gemma3::lower,
        describe_rope: gemma3::describe_rope,
        describe_window: gemma3::describe_window,
    },
    Architecture {
        name: "llama",
        norm: "RMS, before attention and feed-forward",
        heeds: &[],
        tables: &[rope::FACTORS],
        lower: llama::lower,
        describe_rope: llama::describe_rope,
        describe_window: |_| Ok("full attention".into()),
    },
    Architecture {
        name: "phi3",
        norm: "RMS, before attention and feed-forward",
        heeds: &["attention.sliding_window"],
        tables: &[rope::LONG, rope::SHORT],
        lower: phi3::lower,
        describe_rope: phi3::describe_rope,
        describe_window: phi3::describe_window,
    },
    Architecture {
        name: "qwen2",
        norm: "RMS, before attention and feed-forward",
        heeds: &[],
        tables: &[rope::FACTORS],
        lower: qwen2::lower,
        describe_rope: qwen2::describe_rope,
        describe_window: |_| Ok("full attention".into()),
    },
    Architecture {
        name: "qwen3",
        norm: "RMS, before attention and feed-forward, on queries and keys",
        heeds: &[],
        tables: &[rope::FACTORS],
        lower: qwen3::lower,
        describe_rope: qwen3::describe_rope,
        describe_window: |_| Ok("full attention".into()),
    },
];

impl Architecture {
    /// The architecture of a model file.
    ///
    /// # Errors
    /// The file names none, or one that is not in [`ARCHITECTURES`].
    pub fn of(weights: &Weights) -> Result<&'static Self, ModelError> {
        let name = weights.metadata().require_str("general.architecture")?;
        ARCHITECTURES
            .iter()
            .find(|known| known.name == name)
            .ok_or_else(|| ModelError::unknown_architecture(weights.path(), name))
    }
}

/// Lowers a model file to the program of its architecture, for its longest context; see [`lower_for`].
///
/// # Errors
/// As [`lower_for`].
pub fn lower(weights: &Weights) -> Result<Program, ModelError> {
    lower_for(weights, None)
}

/// Lowers a model file to the program of its architecture, for sequences of at most `context` positions (`None`, and
/// anything above the model's longest context: that one). Models with LongRoPE rotate in another way where the context
/// exceeds the one they were first trained on; for all others the context makes no difference.
///
/// # Errors
/// The architecture is unknown; metadata is missing, out of range or contradicts itself; a tensor is missing, has another
/// shape than the metadata say, or has no place in the architecture.
pub fn lower_for(weights: &Weights, context: Option<usize>) -> Result<Program, ModelError> {
    let architecture = Architecture::of(weights)?;
    let hyperparameters = Hyperparameters::read(architecture.name, weights, context)?;
    hyperparameters.refuse_unheeded(architecture.heeds)?;
    let program = (architecture.lower)(&hyperparameters)?;
    let names: std::collections::HashSet<&str> = program
        .weights
        .iter()
        .map(|weight| weight.name.as_str())
        .collect();
    let used = |name: &str| {
        names.contains(name) || architecture.tables.contains(&name) || rope::is_redundant(name)
    };
    match weights.tensors().find(|tensor| !used(&tensor.name)) {
        Some(tensor) => Err(ModelError::unused_tensor(
            weights.path(),
            &tensor.name,
            architecture.name,
        )),
        None => Ok(program),
    }
}
