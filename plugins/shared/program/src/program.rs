//! What a program is: values, weights, caches and the operations over them.

pub use crate::builder::Builder;

/// A value of the program: a matrix of `f32` activations, rows by `width`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ValueId(pub usize);

/// A weight tensor, by its place in [`Program::weights`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct WeightId(pub usize);

/// A key/value cache (one per attention layer), by its place in [`Program::caches`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CacheId(pub usize);

/// A rotary embedding, by its place in [`Program::ropes`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RopeId(pub usize);

/// How many rows a value has in a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rows {
    /// One row per token of the step.
    Tokens,
    /// One row per token whose logits are wanted.
    Wanted,
}

/// Shape of a value: `[rows, width]`, row-major `f32`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Value {
    /// Number of rows.
    pub rows: Rows,
    /// Number of columns.
    pub width: usize,
}

/// A weight the program reads: its name in the model file and the shape it must have, outermost first.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct WeightRef {
    /// Name of the tensor in the weights.
    pub name: String,
    /// `[out, in]` for a linear layer, `[n]` for a vector; of the rows viewed where `view` is set.
    pub shape: Vec<usize>,
    /// Set where the program reads only some rows of a stored matrix: one projection of several that are stored as one.
    pub view: Option<RowView>,
}

/// `shape[0]` neighbouring rows of a stored matrix, or of matrices stored as one tensor. Rows are whole numbers of blocks in
/// every storage type, so that these are a range of its bytes.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct RowView {
    /// The first of them, counted through all dimensions of the stored tensor but the last.
    pub first: usize,
    /// Shape of the stored tensor, outermost first: `[rows, columns]`, or `[matrices, rows, columns]` where several lie one
    /// after the other.
    pub of: Vec<usize>,
}

impl WeightRef {
    /// First row read of the stored matrix.
    #[must_use]
    pub fn first_row(&self) -> usize {
        self.view.as_ref().map_or(0, |view| view.first)
    }

    /// The shape that the tensor must have in the model file.
    #[must_use]
    pub fn stored_shape(&self) -> Vec<usize> {
        match &self.view {
            Some(view) => view.of.clone(),
            None => self.shape.clone(),
        }
    }
}

/// What one attention layer keeps per position.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheSpec {
    /// Key/value heads.
    pub kv_heads: usize,
    /// Elements of a key head.
    pub key_dim: usize,
    /// Elements of a value head.
    pub value_dim: usize,
    /// Where the values are.
    pub values: CachedValues,
}

/// Where a cache has its values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CachedValues {
    /// Beside the keys.
    Stored,
    /// In the keys: a value head is the first `value_dim` elements of its key head, stored once. This is the compressed cache
    /// of latent attention, where both are made from one latent vector.
    InKeys,
}

impl CacheSpec {
    /// Elements kept per position: keys, and values where they are stored.
    ///
    /// `None` if the number overflows.
    #[must_use]
    pub fn width(&self) -> Option<usize> {
        let values = match self.values {
            CachedValues::Stored => self.value_dim,
            CachedValues::InKeys => 0,
        };
        self.key_dim.checked_add(values)?.checked_mul(self.kv_heads)
    }
}

/// Which elements of a head a rotary embedding pairs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RopeStyle {
    /// Element `2i` with `2i + 1` (as GGUF stores the llama family).
    Interleaved,
    /// Element `i` with `i + rotary/2` (as the original checkpoints and GGUF's NeoX families have it).
    Halves,
}

/// A rotary position embedding. Pair `i` of a head turns by `position * inverse_frequencies[i]` radians,
/// and the rotated pair is multiplied by `magnitude` (1 unless the scaling says otherwise, as YaRN's does).
/// Elements past `2 * inverse_frequencies.len()` are left alone (partial rotary).
#[derive(Clone, Debug, PartialEq)]
pub struct Rope {
    /// Pairing.
    pub style: RopeStyle,
    /// One per pair: `theta^(-2i / rotary_dim)` before any scaling.
    pub inverse_frequencies: Vec<f32>,
    /// Factor on cosine and sine.
    pub magnitude: f32,
}

/// Nonlinearity of a gated feed-forward layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activation {
    /// `x * sigmoid(x)`.
    Silu,
    /// GELU, tanh approximation: `0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3)))`.
    GeluTanh,
}

/// How a router turns its logits into scores.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scoring {
    /// Softmax over all experts.
    Softmax,
    /// The logistic function of each logit by itself.
    Sigmoid,
}

/// Groups of neighbouring experts of which only the best may be chosen from. A group counts as the sum of its two highest
/// scores (with the bias), or as its one score.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExpertGroups {
    /// Groups of equal size; divides the number of experts.
    pub count: usize,
    /// How many of them stay in the choice.
    pub used: usize,
}

/// The matrices of one expert, a gated feed-forward layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Expert {
    /// `[inner, width of x]`: goes through the activation.
    pub gate: WeightId,
    /// `[inner, width of x]`.
    pub up: WeightId,
    /// `[width of out, inner]`.
    pub down: WeightId,
}

/// One operation. Every operation writes `out`, a value no earlier operation has written.
#[derive(Clone, Debug, PartialEq)]
pub enum Op {
    /// `out[t] = table[token[t]] * scale`; table `[vocab, width]`.
    Embed {
        /// The embedding table.
        table: WeightId,
        /// Factor on each row (Gemma: `sqrt(width)`).
        scale: f32,
        /// Output.
        out: ValueId,
    },
    /// `out = x / sqrt(mean(x^2) + eps) * weight`, over each group of `group` neighbours of a row (a whole row, or
    /// one head of a q/k norm); `weight` has `group` elements.
    RmsNorm {
        /// Input.
        x: ValueId,
        /// Gain, already in its final form (GGUF stores Gemma's `1 + w`).
        weight: WeightId,
        /// Added to the mean square.
        eps: f32,
        /// Elements per group; divides the width.
        group: usize,
        /// Output.
        out: ValueId,
    },
    /// `out = x · weightᵀ + bias`; weight `[out.width, x.width]`, bias `[out.width]`.
    Linear {
        /// Input.
        x: ValueId,
        /// Matrix in any storage type.
        weight: WeightId,
        /// Optional bias.
        bias: Option<WeightId>,
        /// Output.
        out: ValueId,
    },
    /// Turns each head of `x` by its token's position.
    Rope {
        /// Input, `heads * head_dim` wide.
        x: ValueId,
        /// Which rotary embedding.
        rope: RopeId,
        /// Elements per head.
        head_dim: usize,
        /// Output.
        out: ValueId,
    },
    /// Appends `k` and `v` of every token to the cache of its sequence, then attends causally:
    /// `softmax(cap(q·k * scale)) · v` over the positions `p` with `token_pos - window < p <= token_pos`. Keys and values are
    /// those of the cache, rounded as its type has it ([`crate::CacheType`]), the step's own included.
    Attention {
        /// Queries, `heads * key_dim` wide.
        q: ValueId,
        /// Keys, `kv_heads * key_dim` wide.
        k: ValueId,
        /// Values, `kv_heads * value_dim` wide; `None` where the cache has them in the keys ([`CachedValues::InKeys`]).
        v: Option<ValueId>,
        /// Where keys and values are kept.
        cache: CacheId,
        /// Query heads; query head `h` reads key head `h / (heads / kv_heads)`.
        heads: usize,
        /// Factor on the dot products.
        scale: f32,
        /// Sliding window in positions, own position included; `None` sees all.
        window: Option<usize>,
        /// `cap * tanh(score / cap)` on the scores.
        soft_cap: Option<f32>,
        /// Output, `heads * value_dim` wide.
        out: ValueId,
    },
    /// `out = activation(gate) * up`.
    Gated {
        /// Input of the activation.
        gate: ValueId,
        /// Factor.
        up: ValueId,
        /// Nonlinearity.
        activation: Activation,
        /// Output.
        out: ValueId,
    },
    /// `out = a + b`.
    Add {
        /// First summand.
        a: ValueId,
        /// Second summand.
        b: ValueId,
        /// Output.
        out: ValueId,
    },
    /// `out = x * factor`.
    Scale {
        /// Input.
        x: ValueId,
        /// Factor.
        factor: f32,
        /// Output.
        out: ValueId,
    },
    /// `out = cap * tanh(x / cap)`.
    SoftCap {
        /// Input.
        x: ValueId,
        /// Bound.
        cap: f32,
        /// Output.
        out: ValueId,
    },
    /// Elements `first .. first + width` of each head of `x`.
    HeadSlice {
        /// Input, `heads * head_dim` wide.
        x: ValueId,
        /// Elements per head.
        head_dim: usize,
        /// The first element taken.
        first: usize,
        /// Elements taken of each head.
        width: usize,
        /// Output, `heads * width` wide.
        out: ValueId,
    },
    /// Each head of `a`, followed by the same head of `b`.
    HeadConcat {
        /// Beginnings, `heads * a_dim` wide.
        a: ValueId,
        /// Ends, `heads * b_dim` wide.
        b: ValueId,
        /// Number of heads in both.
        heads: usize,
        /// Output, `heads * (a_dim + b_dim)` wide.
        out: ValueId,
    },
    /// A matrix for each head: `out_h = x_h · weight_hᵀ`.
    HeadLinear {
        /// Input, `heads * in` wide.
        x: ValueId,
        /// `[heads, out, in]`, in any storage type.
        weight: WeightId,
        /// Output, `heads * out` wide.
        out: ValueId,
    },
    /// How much each expert counts for each row: `out [rows, experts]` has the weights of the `used` experts chosen, and 0 for
    /// all others.
    ///
    /// Scores are `scoring(x)`. Chosen are the experts whose scores, with the bias added, are highest, out of the groups that
    /// are used; of equal ones the first. The weight of an expert is its score without the bias, divided by the sum of the
    /// chosen scores if `normalise` (a sum of 0 leaves zeros), times `scale`.
    Route {
        /// The router's logits, `experts` wide.
        x: ValueId,
        /// From logits to scores.
        scoring: Scoring,
        /// `[experts]`, added to the scores for the choice only.
        bias: Option<WeightId>,
        /// Limits the choice to some groups.
        groups: Option<ExpertGroups>,
        /// Experts chosen for each row; at least 1, at most `experts`.
        used: usize,
        /// Whether the weights of a row add up to `scale`.
        normalise: bool,
        /// Factor on the weights.
        scale: f32,
        /// Output, `experts` wide.
        out: ValueId,
    },
    /// The weighted sum of the experts, each a gated feed-forward layer:
    /// `out = Σ_e routing_e * (activation(x · gate_eᵀ) * (x · up_eᵀ)) · down_eᵀ`, in the order of the experts. An expert whose
    /// weight is 0 is not computed, so that nothing it would give counts. It is one operation so that a device may gather the
    /// rows of each expert, and read each of its matrices once a step.
    Experts {
        /// Input.
        x: ValueId,
        /// Weights out of [`Op::Route`], as wide as there are experts.
        routing: ValueId,
        /// The experts, all of the same shapes; at least one.
        experts: Vec<Expert>,
        /// Nonlinearity on the gate.
        activation: Activation,
        /// Output, as wide as the rows of `down`.
        out: ValueId,
    },
    /// `out[r] = x[wanted[r]]`: from one row per token to one row per wanted token.
    Gather {
        /// Input, a row per token.
        x: ValueId,
        /// Output, a row per wanted token.
        out: ValueId,
    },
}

/// A model's forward pass. Built by [`Builder`], which checks every shape.
#[derive(Clone, Debug, PartialEq)]
pub struct Program {
    /// Architecture name, for messages.
    pub architecture: String,
    /// Shapes of all values.
    pub values: Vec<Value>,
    /// Weights read.
    pub weights: Vec<WeightRef>,
    /// Caches, one per attention layer.
    pub caches: Vec<CacheSpec>,
    /// Rotary embeddings.
    pub ropes: Vec<Rope>,
    /// The operations in order.
    pub ops: Vec<Op>,
    /// The logits, `[wanted, vocab]`.
    pub logits: ValueId,
    /// Named inner values for inspection: `embedding`, `layer.0` … `layer.N-1` (residual after the layer), `final_norm`, and of
    /// each layer what its attention compares, after rotation: `layer.N.queries` `[tokens, heads * key_dim]` and `layer.N.keys`
    /// `[tokens, kv_heads * key_dim]`. Of latent attention these are the absorbed queries and the one latent key head with its
    /// rotated end, whose dot products are the scores that the heads' own queries and keys would give. `final_norm` has a row
    /// per wanted token, the others a row per token. Marks are copied out when their operation has run, and only in steps
    /// that ask for them.
    pub marks: Vec<(String, ValueId)>,
    /// Vocabulary size (width of the logits).
    pub vocab: usize,
    /// Longest context the model was made for, in tokens.
    pub context_length: usize,
}

/// Why a program could not be built or does not fit the weights.
#[derive(Debug, thiserror::Error, Clone, PartialEq, Eq)]
pub enum ProgramError {
    /// A tensor is not in the model file.
    #[error("{name}: tensor is missing")]
    MissingWeight {
        /// Its name.
        name: String,
    },
    /// A tensor has another shape than the architecture needs.
    #[error("{name}: expected {expected:?}, got {found:?}")]
    WeightShape {
        /// Its name.
        name: String,
        /// `[out, in]`.
        expected: Vec<usize>,
        /// As stored.
        found: Vec<usize>,
    },
    /// An operation's operands don't fit together.
    #[error("operation {op}: {message}")]
    Shape {
        /// Index of the operation.
        op: usize,
        /// What does not fit.
        message: String,
    },
}
