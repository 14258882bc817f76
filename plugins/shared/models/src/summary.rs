//! What a model is, for people: from metadata and shapes alone.

use crate::hyperparameters::Hyperparameters;
use crate::{Architecture, ModelError};
use backplane_weights::{TensorType, Weights};

/// What a model is. Where layers differ, numbers are those of the first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelSummary {
    /// Architecture name, such as `llama`.
    pub architecture: String,
    /// The model's own name, if it has one.
    pub name: Option<String>,
    /// Numbers in all tensors together.
    pub parameters: u64,
    /// Layers.
    pub layers: usize,
    /// Width of the residual stream.
    pub width: usize,
    /// Query heads.
    pub heads: usize,
    /// Key/value heads.
    pub kv_heads: usize,
    /// Elements of a query or key head.
    pub head_dim: usize,
    /// Inner width of the feed-forward.
    pub feed_forward: usize,
    /// Tokens in the vocabulary.
    pub vocab: usize,
    /// Longest context the model was made for, in tokens.
    pub context_length: usize,
    /// Rotary embedding, in words.
    pub rope: String,
    /// Norms, in words.
    pub norm: String,
    /// Attention window, in words.
    pub window: String,
    /// How tokens are routed to experts, in words; `None` for a model without.
    pub routing: Option<String>,
    /// How the weights are stored, such as `Q4_K - Medium`.
    pub quantization: String,
}

/// Describes a model file without reading tensor data.
///
/// # Errors
/// The architecture is unknown, or metadata is missing, out of range or contradicts itself.
pub fn summarize(weights: &Weights) -> Result<ModelSummary, ModelError> {
    let architecture = Architecture::of(weights)?;
    let h = Hyperparameters::read(architecture.name, weights, None)?;
    h.refuse_unheeded(architecture.heeds)?;
    let parameters = weights
        .tensors()
        .map(|tensor| tensor.shape.iter().product::<usize>() as u64)
        .sum();
    Ok(ModelSummary {
        architecture: architecture.name.into(),
        name: weights.metadata().str("general.name")?.map(Into::into),
        parameters,
        layers: h.layers,
        width: h.width,
        heads: h.heads[0],
        kv_heads: h.kv_heads[0],
        head_dim: h.key_dim,
        feed_forward: h.feed_forward[0],
        vocab: h.vocab,
        context_length: h.context_length,
        rope: (architecture.describe_rope)(&h)?,
        norm: architecture.norm.into(),
        window: (architecture.describe_window)(&h)?,
        routing: (architecture.describe_routing)(&h)?,
        quantization: quantization(weights)?,
    })
}

/// The label of `general.file_type`; without one that is known, the type that holds most bytes.
fn quantization(weights: &Weights) -> Result<String, ModelError> {
    let file_type = weights.metadata().u32("general.file_type")?;
    if let Some((_, label)) = FILE_TYPES
        .iter()
        .find(|(number, _)| Some(*number) == file_type)
    {
        return Ok((*label).into());
    }
    let bytes = |ty: TensorType| {
        weights
            .tensors()
            .filter(|tensor| tensor.ty == ty)
            .map(|tensor| tensor.bytes)
            .sum()
    };
    let dominant = TensorType::ALL
        .iter()
        .max_by_key(|ty| -> usize { bytes(**ty) });
    Ok(dominant.map_or_else(String::new, ToString::to_string))
}

/// Numbers of `general.file_type`, and how people name those mixtures.
const FILE_TYPES: &[(u32, &str)] = &[
    (0, "F32"),
    (1, "F16"),
    (2, "Q4_0"),
    (3, "Q4_1"),
    (7, "Q8_0"),
    (8, "Q5_0"),
    (9, "Q5_1"),
    (10, "Q2_K - Medium"),
    (11, "Q3_K - Small"),
    (12, "Q3_K - Medium"),
    (13, "Q3_K - Large"),
    (14, "Q4_K - Small"),
    (15, "Q4_K - Medium"),
    (16, "Q5_K - Small"),
    (17, "Q5_K - Medium"),
    (18, "Q6_K"),
    (19, "IQ2_XXS"),
    (20, "IQ2_XS"),
    (21, "Q2_K - Small"),
    (22, "IQ3_XS"),
    (23, "IQ3_XXS"),
    (24, "IQ1_S"),
    (25, "IQ4_NL"),
    (26, "IQ3_S"),
    (27, "IQ3_M"),
    (28, "IQ2_S"),
    (29, "IQ2_M"),
    (30, "IQ4_XS"),
    (31, "IQ1_M"),
    (32, "BF16"),
    (36, "TQ1_0"),
    (37, "TQ2_0"),
    (38, "MXFP4"),
];
