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
mod deepseek;
mod error;
mod gemma3;
pub mod hub;
mod hyperparameters;
mod llama;
mod mistral;
mod mixtral;
mod mixture;
mod phi3;
mod qwen2;
mod qwen2moe;
mod qwen3;
mod qwen3moe;
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
    /// What people call the models. Families that share a name in files are told apart by what else these say.
    pub family: &'static str,
    /// What kind of norm it has, in words.
    pub norm: &'static str,
    /// Whether a file of this name is of this family; the first row that says so counts.
    is: fn(&Weights) -> Result<bool, ModelError>,
    /// Keys out of [`Hyperparameters::refuse_unheeded`]'s table that it does heed.
    heeds: &'static [&'static str],
    /// Tensors that lowering reads, beside those that the program does.
    tables: &'static [&'static str],
    lower: fn(&Hyperparameters<'_>) -> Result<Program, ModelError>,
    describe_rope: fn(&Hyperparameters<'_>) -> Result<String, ModelError>,
    describe_window: fn(&Hyperparameters<'_>) -> Result<String, ModelError>,
    describe_routing: fn(&Hyperparameters<'_>) -> Result<Option<String>, ModelError>,
}

/// What most rows have in common.
const LLAMA: Architecture = Architecture {
    name: "llama",
    family: "Llama",
    norm: "RMS, before attention and feed-forward",
    is: |_| Ok(true),
    heeds: &[],
    tables: &[rope::FACTORS],
    lower: llama::lower,
    describe_rope: llama::describe_rope,
    describe_window: |_| Ok("full attention".into()),
    describe_routing: |_| Ok(None),
};

const NORMS_ON_HEADS: &str = "RMS, before attention and feed-forward, on queries and keys";

/// All architectures, by name.
pub const ARCHITECTURES: &[Architecture] = &[
    Architecture {
        name: "deepseek2",
        family: "DeepSeek V3",
        norm: "RMS, before attention and feed-forward, on latents",
        heeds: &["expert_count", "rope.scaling.yarn_log_multiplier"],
        lower: deepseek::lower,
        describe_rope: deepseek::describe_rope,
        describe_window: deepseek::describe_window,
        describe_routing: deepseek::describe_routing,
        ..LLAMA
    },
    Architecture {
        name: "gemma3",
        family: "Gemma 3",
        norm: "RMS, before and after attention and feed-forward, on queries and keys",
        heeds: &[
            "attention.scale",
            "attention.sliding_window",
            "attn_logit_softcapping",
            "final_logit_softcapping",
        ],
        tables: &[],
        lower: gemma3::lower,
        describe_rope: gemma3::describe_rope,
        describe_window: gemma3::describe_window,
        ..LLAMA
    },
    Architecture {
        family: "Mixtral",
        is: mixtral::is,
        heeds: &["attention.sliding_window", "expert_count"],
        lower: mixtral::lower,
        describe_routing: mixtral::describe_routing,
        describe_window: |h| h.describe_window(),
        ..LLAMA
    },
    Architecture {
        family: "Mistral",
        is: mistral::is,
        heeds: &["attention.sliding_window"],
        lower: mistral::lower,
        describe_window: |h| h.describe_window(),
        ..LLAMA
    },
    LLAMA,
    Architecture {
        name: "phi3",
        family: "Phi-3",
        heeds: &["attention.sliding_window"],
        tables: &[rope::LONG, rope::SHORT],
        lower: phi3::lower,
        describe_rope: phi3::describe_rope,
        describe_window: |h| h.describe_window(),
        ..LLAMA
    },
    Architecture {
        name: "qwen2",
        family: "Qwen 2",
        lower: qwen2::lower,
        describe_rope: qwen2::describe_rope,
        ..LLAMA
    },
    Architecture {
        name: "qwen2moe",
        family: "Qwen 2 MoE",
        heeds: &["expert_count"],
        lower: qwen2moe::lower,
        describe_rope: qwen2::describe_rope,
        describe_routing: qwen2moe::describe_routing,
        ..LLAMA
    },
    Architecture {
        name: "qwen3",
        family: "Qwen 3",
        norm: NORMS_ON_HEADS,
        lower: qwen3::lower,
        describe_rope: qwen3::describe_rope,
        ..LLAMA
    },
    Architecture {
        name: "qwen3moe",
        family: "Qwen 3 MoE",
        norm: NORMS_ON_HEADS,
        heeds: &["expert_count"],
        lower: qwen3moe::lower,
        describe_rope: qwen3::describe_rope,
        describe_routing: qwen3moe::describe_routing,
        ..LLAMA
    },
];

impl Architecture {
    /// The architecture of a model file.
    ///
    /// # Errors
    /// The file names none, or one that is not in [`ARCHITECTURES`].
    pub fn of(weights: &Weights) -> Result<&'static Self, ModelError> {
        let name = weights.metadata().require_str("general.architecture")?;
        for known in ARCHITECTURES.iter().filter(|known| known.name == name) {
            if (known.is)(weights)? {
                return Ok(known);
            }
        }
        Err(ModelError::unknown_architecture(weights.path(), name))
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
