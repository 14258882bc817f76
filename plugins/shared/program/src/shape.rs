//! What every operation reads and writes, and which shapes it takes: the one place where operands are checked.

use crate::program::{
    CacheId, CacheSpec, CachedValues, Expert, ExpertGroups, Op, Program, ProgramError, Rope,
    RopeId, RowView, Rows, Value, ValueId, WeightId, WeightRef,
};
use backplane_weights::Weights;

impl Op {
    /// The value this operation writes.
    #[must_use]
    pub fn output(&self) -> ValueId {
        match self {
            Op::Embed { out, .. }
            | Op::RmsNorm { out, .. }
            | Op::Linear { out, .. }
            | Op::Rope { out, .. }
            | Op::Attention { out, .. }
            | Op::Gated { out, .. }
            | Op::Add { out, .. }
            | Op::Scale { out, .. }
            | Op::SoftCap { out, .. }
            | Op::HeadSlice { out, .. }
            | Op::HeadConcat { out, .. }
            | Op::HeadLinear { out, .. }
            | Op::Route { out, .. }
            | Op::Experts { out, .. }
            | Op::Gather { out, .. } => *out,
        }
    }

    /// The values this operation reads, in the order of its fields.
    #[must_use]
    pub fn inputs(&self) -> Vec<ValueId> {
        match self {
            Op::Embed { .. } => vec![],
            Op::RmsNorm { x, .. }
            | Op::Linear { x, .. }
            | Op::Rope { x, .. }
            | Op::Scale { x, .. }
            | Op::SoftCap { x, .. }
            | Op::HeadSlice { x, .. }
            | Op::HeadLinear { x, .. }
            | Op::Route { x, .. }
            | Op::Gather { x, .. } => vec![*x],
            Op::Attention { q, k, v, .. } => [*q, *k].into_iter().chain(*v).collect(),
            Op::Gated { gate, up, .. } => vec![*gate, *up],
            Op::Add { a, b, .. } | Op::HeadConcat { a, b, .. } => vec![*a, *b],
            Op::Experts { x, routing, .. } => vec![*x, *routing],
        }
    }

    /// The weights this operation reads.
    #[must_use]
    pub fn weights(&self) -> Vec<WeightId> {
        match self {
            Op::Embed { table, .. } => vec![*table],
            Op::RmsNorm { weight, .. } => vec![*weight],
            Op::Linear { weight, bias, .. } => std::iter::once(*weight).chain(*bias).collect(),
            Op::HeadLinear { weight, .. } => vec![*weight],
            Op::Route { bias, .. } => bias.iter().copied().collect(),
            Op::Experts { experts, .. } => {
                let matrices = |expert: &Expert| [expert.gate, expert.up, expert.down];
                experts.iter().flat_map(matrices).collect()
            }
            _ => vec![],
        }
    }

    /// Name of the operation, as listings and messages have it.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Op::Embed { .. } => "embed",
            Op::RmsNorm { .. } => "rms_norm",
            Op::Linear { .. } => "linear",
            Op::Rope { .. } => "rope",
            Op::Attention { .. } => "attention",
            Op::Gated { .. } => "gated",
            Op::Add { .. } => "add",
            Op::Scale { .. } => "scale",
            Op::SoftCap { .. } => "soft_cap",
            Op::HeadSlice { .. } => "head_slice",
            Op::HeadConcat { .. } => "head_concat",
            Op::HeadLinear { .. } => "head_linear",
            Op::Route { .. } => "route",
            Op::Experts { .. } => "experts",
            Op::Gather { .. } => "gather",
        }
    }

    /// Checks the operands against the declarations of `program` and says what shape the result has.
    pub(crate) fn shape(&self, program: &Program) -> Result<Value, String> {
        self.infer(program)
            .map_err(|message| format!("{}: {message}", self.name()))
    }

    fn infer(&self, program: &Program) -> Result<Value, String> {
        match self {
            Op::Embed { table, scale, .. } => {
                finite("scale", *scale)?;
                let table = weight(program, *table)?;
                let [_, width] = matrix(table)?;
                if table.view.is_some() {
                    let name = &table.name;
                    return Err(format!("{name} is a view of rows, expected a whole table"));
                }
                Ok(Value {
                    rows: Rows::Tokens,
                    width,
                })
            }
            Op::RmsNorm {
                x,
                weight: gain,
                eps,
                group,
                ..
            } => {
                let x = value(program, *x)?;
                let gain = weight(program, *gain)?;
                if !(eps.is_finite() && *eps >= 0.0) {
                    return Err(format!(
                        "eps is {eps}, expected a finite number not below 0"
                    ));
                }
                divides("group", *group, x.width)?;
                expect_shape(gain, &[*group])?;
                Ok(x)
            }
            Op::Linear {
                x,
                weight: matrix_id,
                bias,
                ..
            } => {
                let x = value(program, *x)?;
                let stored = weight(program, *matrix_id)?;
                let [out, input] = matrix(stored)?;
                if input != x.width {
                    return Err(format!(
                        "input is {} wide, {} takes {input}",
                        x.width, stored.name
                    ));
                }
                if let Some(bias) = bias {
                    expect_shape(weight(program, *bias)?, &[out])?;
                }
                Ok(Value {
                    rows: x.rows,
                    width: out,
                })
            }
            Op::Rope {
                x, rope, head_dim, ..
            } => {
                let x = tokens_value(program, *x)?;
                let rope = rope_of(program, *rope)?;
                divides("head_dim", *head_dim, x.width)?;
                let pairs = rope.inverse_frequencies.len();
                if pairs > *head_dim / 2 {
                    return Err(format!("{pairs} pairs do not fit a head of {head_dim}"));
                }
                Ok(x)
            }
            Op::Attention {
                q,
                k,
                v,
                cache,
                heads,
                scale,
                window,
                soft_cap,
                ..
            } => {
                let spec = cache_of(program, *cache)?;
                finite("scale", *scale)?;
                divides("kv_heads", spec.kv_heads, *heads)?;
                if *heads == 0 || spec.key_dim == 0 || spec.value_dim == 0 {
                    return Err(format!(
                        "{heads} heads of {}/{}, expected no zeros",
                        spec.key_dim, spec.value_dim
                    ));
                }
                match (spec.values, v) {
                    (CachedValues::Stored, None) => {
                        return Err("no values, but the cache stores some".into());
                    }
                    (CachedValues::InKeys, Some(_)) => {
                        return Err("values, but the cache has them in the keys".into());
                    }
                    (CachedValues::InKeys, None) if spec.value_dim > spec.key_dim => {
                        return Err(format!(
                            "values of {} in keys of {}, expected no more",
                            spec.value_dim, spec.key_dim
                        ));
                    }
                    _ => {}
                }
                let values = v.map(|v| ("values", v, spec.kv_heads, spec.value_dim));
                let operands = [
                    ("queries", *q, *heads, spec.key_dim),
                    ("keys", *k, spec.kv_heads, spec.key_dim),
                ];
                for (what, operand, heads, dim) in operands.into_iter().chain(values) {
                    let found = tokens_value(program, operand)?.width;
                    if heads.checked_mul(dim) != Some(found) {
                        return Err(format!(
                            "{what} are {found} wide, expected {heads} heads of {dim}"
                        ));
                    }
                }
                if *window == Some(0) {
                    return Err("window is 0, expected at least 1".into());
                }
                soft_cap.map_or(Ok(()), |cap| positive("soft cap", cap))?;
                let width = heads.checked_mul(spec.value_dim).ok_or("width overflows")?;
                Ok(Value {
                    rows: Rows::Tokens,
                    width,
                })
            }
            Op::Gated { gate: a, up: b, .. } | Op::Add { a, b, .. } => {
                let (a, b) = (value(program, *a)?, value(program, *b)?);
                if a != b {
                    return Err(format!("operands are {a} and {b}, expected equal shapes"));
                }
                Ok(a)
            }
            Op::Scale { x, factor, .. } => {
                finite("factor", *factor)?;
                value(program, *x)
            }
            Op::SoftCap { x, cap, .. } => {
                positive("cap", *cap)?;
                value(program, *x)
            }
            Op::HeadSlice {
                x,
                head_dim,
                first,
                width,
                ..
            } => {
                let x = value(program, *x)?;
                divides("head_dim", *head_dim, x.width)?;
                if *width == 0 || first.checked_add(*width).is_none_or(|end| end > *head_dim) {
                    return Err(format!(
                        "{width} elements from {first} on, expected some of {head_dim}"
                    ));
                }
                Ok(Value {
                    rows: x.rows,
                    width: x.width / head_dim * width,
                })
            }
            Op::HeadConcat { a, b, heads, .. } => {
                let (a, b) = (value(program, *a)?, value(program, *b)?);
                divides("heads", *heads, a.width)?;
                divides("heads", *heads, b.width)?;
                if a.rows != b.rows {
                    return Err(format!("operands are {a} and {b}, expected equal rows"));
                }
                Ok(Value {
                    rows: a.rows,
                    width: a.width.checked_add(b.width).ok_or("width overflows")?,
                })
            }
            Op::HeadLinear {
                x,
                weight: matrices,
                ..
            } => {
                let x = value(program, *x)?;
                let stored = weight(program, *matrices)?;
                let [heads, out, input] = <[usize; 3]>::try_from(stored.shape.as_slice())
                    .ok()
                    .filter(|shape| !shape.contains(&0) && stored.view.is_none())
                    .ok_or_else(|| {
                        format!(
                            "{} is {:?}, expected a matrix for each head",
                            stored.name, stored.shape
                        )
                    })?;
                if heads.checked_mul(input) != Some(x.width) {
                    return Err(format!(
                        "input is {} wide, {} takes {heads} heads of {input}",
                        x.width, stored.name
                    ));
                }
                Ok(Value {
                    rows: x.rows,
                    width: heads.checked_mul(out).ok_or("width overflows")?,
                })
            }
            Op::Route {
                x,
                bias,
                groups,
                used,
                scale,
                ..
            } => {
                let x = value(program, *x)?;
                finite("scale", *scale)?;
                if let Some(bias) = bias {
                    expect_shape(weight(program, *bias)?, &[x.width])?;
                }
                route(x.width, *groups, *used)?;
                Ok(x)
            }
            Op::Experts {
                x,
                routing,
                experts,
                ..
            } => {
                let (x, routing) = (value(program, *x)?, value(program, *routing)?);
                if experts.len() != routing.width || experts.is_empty() {
                    return Err(format!(
                        "{} experts, routing is {} wide",
                        experts.len(),
                        routing.width
                    ));
                }
                if x.rows != routing.rows {
                    return Err(format!(
                        "operands are {x} and {routing}, expected equal rows"
                    ));
                }
                let [inner, _] = matrix(weight(program, experts[0].gate)?)?;
                let [width, _] = matrix(weight(program, experts[0].down)?)?;
                for expert in experts {
                    expect_shape(weight(program, expert.gate)?, &[inner, x.width])?;
                    expect_shape(weight(program, expert.up)?, &[inner, x.width])?;
                    expect_shape(weight(program, expert.down)?, &[width, inner])?;
                }
                Ok(Value {
                    rows: x.rows,
                    width,
                })
            }
            Op::Gather { x, .. } => Ok(Value {
                rows: Rows::Wanted,
                width: tokens_value(program, *x)?.width,
            }),
        }
    }
}

/// Checks that so many experts can be chosen.
fn route(experts: usize, groups: Option<ExpertGroups>, used: usize) -> Result<(), String> {
    let mut open = experts;
    if let Some(ExpertGroups { count, used }) = groups {
        divides("groups", count, experts)?;
        if used == 0 || used > count {
            return Err(format!("{used} of {count} groups used, expected some"));
        }
        open = experts / count * used;
    }
    if used == 0 || used > open {
        return Err(format!("{used} of {open} experts used, expected some"));
    }
    Ok(())
}

impl std::fmt::Display for Value {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let rows = match self.rows {
            Rows::Tokens => "tokens",
            Rows::Wanted => "wanted",
        };
        write!(f, "[{rows}, {}]", self.width)
    }
}

impl Program {
    /// Checks the whole program: every operand is declared and written before it is read, every value is written once
    /// with its declared shape, every cache belongs to one attention, the logits are `[wanted, vocab]`, and every
    /// embedding table has a row per token of the vocabulary. Programs out of a [`crate::Builder`] pass.
    ///
    /// # Errors
    /// The first rule broken, with the operation's index (one past the last for rules about the whole).
    pub fn validate(&self) -> Result<(), ProgramError> {
        let mut written = vec![false; self.values.len()];
        let mut cached = vec![false; self.caches.len()];
        for (index, op) in self.ops.iter().enumerate() {
            let err = |message: String| ProgramError::Shape { op: index, message };
            if let Some(early) = op
                .inputs()
                .into_iter()
                .find(|id| written.get(id.0) != Some(&true))
            {
                return Err(err(format!(
                    "{}: %{} is read before it is written",
                    op.name(),
                    early.0
                )));
            }
            let shape = op.shape(self).map_err(err)?;
            let out = op.output();
            let declared = value(self, out).map_err(err)?;
            if shape != declared {
                return Err(err(format!(
                    "{}: result is {shape}, %{} is declared {declared}",
                    op.name(),
                    out.0
                )));
            }
            if std::mem::replace(&mut written[out.0], true) {
                return Err(err(format!("{}: %{} is written twice", op.name(), out.0)));
            }
            if let Op::Attention { cache, .. } = op
                && std::mem::replace(&mut cached[cache.0], true)
            {
                return Err(err(format!("attention: cache {} is used twice", cache.0)));
            }
            if let Op::Embed { table, .. } = op {
                let table = weight(self, *table).map_err(err)?;
                if table.shape[0] != self.vocab {
                    let (name, rows, vocab) = (&table.name, table.shape[0], self.vocab);
                    return Err(err(format!(
                        "{name} has {rows} rows, the logits have {vocab} columns"
                    )));
                }
            }
        }
        self.validate_ends(&written)
            .map_err(|message| ProgramError::Shape {
                op: self.ops.len(),
                message,
            })
    }

    fn validate_ends(&self, written: &[bool]) -> Result<(), String> {
        if let Some(id) = written.iter().position(|done| !done) {
            return Err(format!("%{id} is never written"));
        }
        let logits = value(self, self.logits)?;
        if logits
            != (Value {
                rows: Rows::Wanted,
                width: self.vocab,
            })
        {
            return Err(format!(
                "logits are {logits}, expected [wanted, {}]",
                self.vocab
            ));
        }
        if self.context_length == 0 || self.vocab == 0 {
            return Err(format!(
                "context of {} tokens, vocabulary of {}",
                self.context_length, self.vocab
            ));
        }
        self.weights.iter().try_for_each(check_view)?;
        for (name, id) in &self.marks {
            value(self, *id).map_err(|message| format!("mark {name}: {message}"))?;
        }
        for rope in &self.ropes {
            finite("rope magnitude", rope.magnitude)?;
            for frequency in &rope.inverse_frequencies {
                finite("rope frequency", *frequency)?;
            }
        }
        Ok(())
    }

    /// Checks that every weight the program reads is there with the shape it must have. That views lie within their
    /// matrices is a rule of [`validate`](Self::validate).
    ///
    /// # Errors
    /// [`ProgramError::MissingWeight`] or [`ProgramError::WeightShape`] for the first that is not.
    pub fn check_weights(&self, weights: &Weights) -> Result<(), ProgramError> {
        self.weights
            .iter()
            .try_for_each(|weight| check_weight(weight, weights))
    }
}

/// Checks that a view is of a matrix, and of rows that the matrix has.
pub(crate) fn check_view(declared: &WeightRef) -> Result<(), String> {
    let Some(RowView { first, of }) = &declared.view else {
        return Ok(());
    };
    let name = &declared.name;
    let [rows, columns] = matrix(declared)?;
    let Some((_, outer)) = of.split_last().filter(|(width, _)| **width == columns) else {
        return Err(format!("{name} is {of:?}, a view has {columns} columns"));
    };
    let there = outer
        .iter()
        .try_fold(1usize, |product, n| product.checked_mul(*n));
    if first
        .checked_add(rows)
        .zip(there)
        .is_none_or(|(end, there)| end > there)
    {
        return Err(format!(
            "{name} has {} rows, a view takes {rows} from row {first} on",
            there.map_or("too many".into(), |there| there.to_string())
        ));
    }
    Ok(())
}

/// Checks one declared weight against the model file.
pub(crate) fn check_weight(declared: &WeightRef, weights: &Weights) -> Result<(), ProgramError> {
    let name = declared.name.clone();
    let Some(tensor) = weights.tensor(&name) else {
        return Err(ProgramError::MissingWeight { name });
    };
    let stored = declared.stored_shape();
    if tensor.info.shape != stored {
        return Err(ProgramError::WeightShape {
            name,
            expected: stored,
            found: tensor.info.shape.clone(),
        });
    }
    Ok(())
}

fn value(program: &Program, id: ValueId) -> Result<Value, String> {
    program
        .values
        .get(id.0)
        .copied()
        .ok_or_else(|| format!("no value %{}", id.0))
}

fn tokens_value(program: &Program, id: ValueId) -> Result<Value, String> {
    let found = value(program, id)?;
    if found.rows != Rows::Tokens {
        return Err(format!("%{} is {found}, expected a row per token", id.0));
    }
    Ok(found)
}

fn weight(program: &Program, id: WeightId) -> Result<&WeightRef, String> {
    program
        .weights
        .get(id.0)
        .ok_or_else(|| format!("no weight {}", id.0))
}

fn cache_of(program: &Program, id: CacheId) -> Result<CacheSpec, String> {
    program
        .caches
        .get(id.0)
        .copied()
        .ok_or_else(|| format!("no cache {}", id.0))
}

fn rope_of(program: &Program, id: RopeId) -> Result<&Rope, String> {
    program
        .ropes
        .get(id.0)
        .ok_or_else(|| format!("no rope {}", id.0))
}

fn matrix(weight: &WeightRef) -> Result<[usize; 2], String> {
    <[usize; 2]>::try_from(weight.shape.as_slice())
        .ok()
        .filter(|shape| !shape.contains(&0))
        .ok_or_else(|| format!("{} is {:?}, expected a matrix", weight.name, weight.shape))
}

fn expect_shape(weight: &WeightRef, expected: &[usize]) -> Result<(), String> {
    if weight.shape != expected {
        return Err(format!(
            "{} is {:?}, expected {expected:?}",
            weight.name, weight.shape
        ));
    }
    Ok(())
}

fn divides(what: &str, part: usize, whole: usize) -> Result<(), String> {
    if part == 0 || !whole.is_multiple_of(part) {
        return Err(format!("{what} is {part}, expected a divisor of {whole}"));
    }
    Ok(())
}

fn finite(what: &str, number: f32) -> Result<(), String> {
    if !number.is_finite() {
        return Err(format!("{what} is {number}, expected a finite number"));
    }
    Ok(())
}

fn positive(what: &str, number: f32) -> Result<(), String> {
    if !(number.is_finite() && number > 0.0) {
        return Err(format!(
            "{what} is {number}, expected a finite number above 0"
        ));
    }
    Ok(())
}
