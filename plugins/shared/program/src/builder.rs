//! How a program is written down: declarations checked against the model file, one method per operation.

use crate::program::{
    Activation, CacheId, CacheSpec, Expert, ExpertGroups, Op, Program, ProgramError, Rope, RopeId,
    RowView, Scoring, Value, ValueId, WeightId, WeightRef,
};
use crate::shape::{check_view, check_weight};
use backplane_weights::Weights;
use std::collections::HashMap;
use std::ops::Range;

/// How an attention operation looks at the cache: everything but its operands.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AttentionSpec {
    /// Query heads.
    pub heads: usize,
    /// Factor on the dot products, usually `1 / sqrt(key_dim)`.
    pub scale: f32,
    /// Sliding window in positions, own position included; `None` sees all.
    pub window: Option<usize>,
    /// `cap * tanh(score / cap)` on the scores.
    pub soft_cap: Option<f32>,
}

/// How a router chooses: everything of [`Op::Route`] but its logits.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RouteSpec {
    /// From logits to scores.
    pub scoring: Scoring,
    /// `[experts]`, added to the scores for the choice only.
    pub bias: Option<WeightId>,
    /// Limits the choice to some groups.
    pub groups: Option<ExpertGroups>,
    /// Experts chosen for each row.
    pub used: usize,
    /// Whether the weights of a row add up to `scale`.
    pub normalise: bool,
    /// Factor on the weights.
    pub scale: f32,
}

/// Writes a [`Program`], one operation after the other. Every method checks its operands when it is called, so that an
/// error names the first operation or weight that does not fit.
///
/// ```no_run
/// # fn run(weights: &backplane_weights::Weights) -> Result<(), backplane_program::ProgramError> {
/// use backplane_program::Builder;
/// let mut b = Builder::new("tiny", weights);
/// let table = b.weight("token_embd.weight", &[512, 64])?;
/// let gain = b.weight("output_norm.weight", &[64])?;
/// let x = b.embed(table, 1.0)?;
/// let x = b.gather(x)?;
/// let x = b.rms_norm(x, gain, 1e-5)?;
/// let logits = b.linear(x, table, None)?;
/// let program = b.finish(logits, 512, 2048)?;
/// # Ok(()) }
/// ```
#[derive(Debug)]
pub struct Builder<'w> {
    weights: &'w Weights,
    program: Program,
    declared: HashMap<WeightRef, WeightId>,
}

impl<'w> Builder<'w> {
    /// Starts an empty program for a model file.
    #[must_use]
    pub fn new(architecture: impl Into<String>, weights: &'w Weights) -> Self {
        let program = Program {
            architecture: architecture.into(),
            values: vec![],
            weights: vec![],
            caches: vec![],
            ropes: vec![],
            ops: vec![],
            logits: ValueId(usize::MAX),
            marks: vec![],
            vocab: 0,
            context_length: 0,
        };
        Self {
            weights,
            program,
            declared: HashMap::new(),
        }
    }

    /// Whether the model file has this tensor.
    #[must_use]
    pub fn has(&self, name: &str) -> bool {
        self.weights.tensor(name).is_some()
    }

    /// Columns of a value.
    ///
    /// # Panics
    /// The value is of another program.
    #[must_use]
    pub fn width(&self, value: ValueId) -> usize {
        self.program.values[value.0].width
    }

    /// Declares a weight with the shape it must have, outermost dimension first. Declaring it again gives the same id.
    ///
    /// # Errors
    /// The model file lacks it or has it in another shape.
    pub fn weight(
        &mut self,
        name: impl Into<String>,
        shape: &[usize],
    ) -> Result<WeightId, ProgramError> {
        self.declare(WeightRef {
            name: name.into(),
            shape: shape.to_vec(),
            view: None,
        })
    }

    /// Declares some rows of a stored matrix of shape `[of, in]` as a weight of its own. Declaring it again gives the same id.
    ///
    /// # Errors
    /// The model file lacks the matrix, has it in another shape, or the rows are none or not within it.
    pub fn weight_rows(
        &mut self,
        name: impl Into<String>,
        [of, columns]: [usize; 2],
        rows: Range<usize>,
    ) -> Result<WeightId, ProgramError> {
        let declared = WeightRef {
            name: name.into(),
            shape: vec![rows.len(), columns],
            view: Some(RowView {
                first: rows.start,
                of: vec![of, columns],
            }),
        };
        self.declare_view(declared)
    }

    /// Declares each matrix of a stored tensor of shape `[matrices, rows, columns]` as a weight of its own.
    ///
    /// # Errors
    /// The model file lacks the tensor, has it in another shape, or a dimension is 0.
    pub fn stacked_weights(
        &mut self,
        name: &str,
        [matrices, rows, columns]: [usize; 3],
    ) -> Result<Vec<WeightId>, ProgramError> {
        self.stacked_weight_rows(name, [matrices, rows, columns], 0..rows)
    }

    /// Declares some rows of each matrix of a stored tensor of shape `[matrices, rows, columns]` as a weight of its own.
    ///
    /// # Errors
    /// As [`stacked_weights`](Self::stacked_weights), or the rows are none or not within a matrix.
    pub fn stacked_weight_rows(
        &mut self,
        name: &str,
        [matrices, rows, columns]: [usize; 3],
        part: Range<usize>,
    ) -> Result<Vec<WeightId>, ProgramError> {
        let of = vec![matrices, rows, columns];
        // First of all, so that no number is trusted before it is known to be the file's.
        let whole = WeightRef {
            name: name.into(),
            shape: of.clone(),
            view: None,
        };
        check_weight(&whole, self.weights)?;
        if part.end > rows {
            return Err(ProgramError::Shape {
                op: self.program.ops.len(),
                message: format!(
                    "{name} has matrices of {rows} rows, a view ends at {}",
                    part.end
                ),
            });
        }
        (0..matrices)
            .map(|matrix| {
                self.declare_view(WeightRef {
                    name: name.into(),
                    shape: vec![part.len(), columns],
                    view: Some(RowView {
                        first: matrix * rows + part.start,
                        of: of.clone(),
                    }),
                })
            })
            .collect()
    }

    /// Declares a vector as a matrix of one row. A file may have it as either.
    ///
    /// # Errors
    /// The model file lacks it, or has it in a shape that is neither `[1, columns]` nor `[columns]`.
    pub fn row_weight(
        &mut self,
        name: impl Into<String>,
        columns: usize,
    ) -> Result<WeightId, ProgramError> {
        let name = name.into();
        let vector = vec![columns];
        let stored = self.weights.tensor(&name);
        let is_vector = stored.is_some_and(|tensor| tensor.info.shape == vector);
        self.declare_view(WeightRef {
            name,
            shape: vec![1, columns],
            view: is_vector.then_some(RowView {
                first: 0,
                of: vector,
            }),
        })
    }

    fn declare_view(&mut self, declared: WeightRef) -> Result<WeightId, ProgramError> {
        check_view(&declared).map_err(|message| ProgramError::Shape {
            op: self.program.ops.len(),
            message,
        })?;
        self.declare(declared)
    }

    fn declare(&mut self, declared: WeightRef) -> Result<WeightId, ProgramError> {
        check_weight(&declared, self.weights)?;
        let next = WeightId(self.program.weights.len());
        let id = *self.declared.entry(declared.clone()).or_insert(next);
        if id == next {
            self.program.weights.push(declared);
        }
        Ok(id)
    }

    /// Declares a weight that a model may go without.
    ///
    /// # Errors
    /// The model file has it in another shape.
    pub fn optional_weight(
        &mut self,
        name: impl Into<String>,
        shape: &[usize],
    ) -> Result<Option<WeightId>, ProgramError> {
        let name = name.into();
        if self.has(&name) {
            self.weight(name, shape).map(Some)
        } else {
            Ok(None)
        }
    }

    /// Declares the cache of one attention layer.
    pub fn cache(&mut self, spec: CacheSpec) -> CacheId {
        self.program.caches.push(spec);
        CacheId(self.program.caches.len() - 1)
    }

    /// Declares a rotary embedding. Declaring an equal one again gives the same id.
    pub fn declare_rope(&mut self, rope: Rope) -> RopeId {
        let known = self.program.ropes.iter().position(|known| *known == rope);
        RopeId(known.unwrap_or_else(|| {
            self.program.ropes.push(rope);
            self.program.ropes.len() - 1
        }))
    }

    /// Rows of an embedding table for the step's tokens, times `scale`.
    ///
    /// # Errors
    /// The table is no matrix.
    pub fn embed(&mut self, table: WeightId, scale: f32) -> Result<ValueId, ProgramError> {
        self.push(|out| Op::Embed { table, scale, out })
    }

    /// RMS norm of whole rows.
    ///
    /// # Errors
    /// The gain has another length than a row.
    pub fn rms_norm(
        &mut self,
        x: ValueId,
        weight: WeightId,
        eps: f32,
    ) -> Result<ValueId, ProgramError> {
        let group = self.program.values.get(x.0).map_or(0, |value| value.width);
        self.rms_norm_groups(x, weight, eps, group)
    }

    /// RMS norm of each group of `group` neighbours in a row (the heads of a q/k norm).
    ///
    /// # Errors
    /// The groups don't fill a row, or the gain has another length than a group.
    pub fn rms_norm_groups(
        &mut self,
        x: ValueId,
        weight: WeightId,
        eps: f32,
        group: usize,
    ) -> Result<ValueId, ProgramError> {
        self.push(|out| Op::RmsNorm {
            x,
            weight,
            eps,
            group,
            out,
        })
    }

    /// `x · weightᵀ + bias`.
    ///
    /// # Errors
    /// Input, matrix and bias don't fit together.
    pub fn linear(
        &mut self,
        x: ValueId,
        weight: WeightId,
        bias: Option<WeightId>,
    ) -> Result<ValueId, ProgramError> {
        self.push(|out| Op::Linear {
            x,
            weight,
            bias,
            out,
        })
    }

    /// Turns each head of `head_dim` elements by its token's position.
    ///
    /// # Errors
    /// Heads don't fill a row, or the rotary embedding has more pairs than a head.
    pub fn rope(
        &mut self,
        x: ValueId,
        rope: RopeId,
        head_dim: usize,
    ) -> Result<ValueId, ProgramError> {
        self.push(|out| Op::Rope {
            x,
            rope,
            head_dim,
            out,
        })
    }

    /// Appends keys and values to the cache and attends to it causally.
    ///
    /// # Errors
    /// Queries, keys and values don't fit the cache, or the cache has been used before.
    pub fn attention(
        &mut self,
        [q, k, v]: [ValueId; 3],
        cache: CacheId,
        spec: AttentionSpec,
    ) -> Result<ValueId, ProgramError> {
        self.attend(q, k, Some(v), cache, spec)
    }

    /// As [`attention`](Self::attention), over a cache that has its values in the keys.
    ///
    /// # Errors
    /// Queries and keys don't fit the cache, or the cache has been used before.
    pub fn latent_attention(
        &mut self,
        [q, k]: [ValueId; 2],
        cache: CacheId,
        spec: AttentionSpec,
    ) -> Result<ValueId, ProgramError> {
        self.attend(q, k, None, cache, spec)
    }

    fn attend(
        &mut self,
        q: ValueId,
        k: ValueId,
        v: Option<ValueId>,
        cache: CacheId,
        spec: AttentionSpec,
    ) -> Result<ValueId, ProgramError> {
        let AttentionSpec {
            heads,
            scale,
            window,
            soft_cap,
        } = spec;
        self.push(|out| Op::Attention {
            q,
            k,
            v,
            cache,
            heads,
            scale,
            window,
            soft_cap,
            out,
        })
    }

    /// `activation(gate) * up`.
    ///
    /// # Errors
    /// The operands have different shapes.
    pub fn gated(
        &mut self,
        gate: ValueId,
        up: ValueId,
        activation: Activation,
    ) -> Result<ValueId, ProgramError> {
        self.push(|out| Op::Gated {
            gate,
            up,
            activation,
            out,
        })
    }

    /// `a + b`.
    ///
    /// # Errors
    /// The operands have different shapes.
    pub fn add(&mut self, a: ValueId, b: ValueId) -> Result<ValueId, ProgramError> {
        self.push(|out| Op::Add { a, b, out })
    }

    /// `x * factor`.
    ///
    /// # Errors
    /// The factor is not finite.
    pub fn scale(&mut self, x: ValueId, factor: f32) -> Result<ValueId, ProgramError> {
        self.push(|out| Op::Scale { x, factor, out })
    }

    /// `cap * tanh(x / cap)`.
    ///
    /// # Errors
    /// The cap is not above 0.
    pub fn soft_cap(&mut self, x: ValueId, cap: f32) -> Result<ValueId, ProgramError> {
        self.push(|out| Op::SoftCap { x, cap, out })
    }

    /// `width` elements from `first` on of each head of `head_dim`.
    ///
    /// # Errors
    /// Heads don't fill a row, or the elements are none or not within a head.
    pub fn head_slice(
        &mut self,
        x: ValueId,
        head_dim: usize,
        elements: Range<usize>,
    ) -> Result<ValueId, ProgramError> {
        self.push(|out| Op::HeadSlice {
            x,
            head_dim,
            first: elements.start,
            width: elements.len(),
            out,
        })
    }

    /// Each of the `heads` heads of `a`, followed by the same head of `b`.
    ///
    /// # Errors
    /// Heads don't fill the rows of both, or these have different numbers of rows.
    pub fn head_concat(
        &mut self,
        a: ValueId,
        b: ValueId,
        heads: usize,
    ) -> Result<ValueId, ProgramError> {
        self.push(|out| Op::HeadConcat { a, b, heads, out })
    }

    /// A matrix for each head: weight `[heads, out, in]`.
    ///
    /// # Errors
    /// Input and weight don't fit together.
    pub fn head_linear(&mut self, x: ValueId, weight: WeightId) -> Result<ValueId, ProgramError> {
        self.push(|out| Op::HeadLinear { x, weight, out })
    }

    /// How much each expert counts for each row, from the router's logits.
    ///
    /// # Errors
    /// Fewer experts than are to be used, groups that don't divide them, or a bias of another length.
    pub fn route(&mut self, x: ValueId, spec: RouteSpec) -> Result<ValueId, ProgramError> {
        let RouteSpec {
            scoring,
            bias,
            groups,
            used,
            normalise,
            scale,
        } = spec;
        self.push(|out| Op::Route {
            x,
            scoring,
            bias,
            groups,
            used,
            normalise,
            scale,
            out,
        })
    }

    /// The weighted sum of the experts over `x`.
    ///
    /// # Errors
    /// The experts' matrices don't fit `x` or each other, or are not as many as `routing` has columns.
    pub fn experts(
        &mut self,
        x: ValueId,
        routing: ValueId,
        experts: Vec<Expert>,
        activation: Activation,
    ) -> Result<ValueId, ProgramError> {
        self.push(|out| Op::Experts {
            x,
            routing,
            experts,
            activation,
            out,
        })
    }

    /// Keeps the rows whose logits are wanted.
    ///
    /// # Errors
    /// The operand has no row per token.
    pub fn gather(&mut self, x: ValueId) -> Result<ValueId, ProgramError> {
        self.push(|out| Op::Gather { x, out })
    }

    /// Names a value for inspection; see [`Program::marks`] for the names in use.
    pub fn mark(&mut self, name: impl Into<String>, value: ValueId) {
        self.program.marks.push((name.into(), value));
    }

    /// Ends the program with its logits.
    ///
    /// # Errors
    /// A rule of [`Program::validate`] is broken; the vocabulary of embedding and logits differ, for one.
    pub fn finish(
        mut self,
        logits: ValueId,
        vocab: usize,
        context_length: usize,
    ) -> Result<Program, ProgramError> {
        self.program.logits = logits;
        self.program.vocab = vocab;
        self.program.context_length = context_length;
        self.program.validate()?;
        Ok(self.program)
    }

    /// The declarations so far, unfinished: for tests of single pieces.
    #[cfg(test)]
    pub(crate) fn unchecked(self) -> Program {
        self.program
    }

    fn push(&mut self, op: impl FnOnce(ValueId) -> Op) -> Result<ValueId, ProgramError> {
        let out = ValueId(self.program.values.len());
        let op = op(out);
        let shape: Value = op
            .shape(&self.program)
            .map_err(|message| ProgramError::Shape {
                op: self.program.ops.len(),
                message,
            })?;
        self.program.values.push(shape);
        self.program.ops.push(op);
        Ok(out)
    }
}
