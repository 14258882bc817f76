//! Kernels whose rows don't need each other, and which of them run row by row in one job.

use super::{Attention, Kernel};
use backplane_program::{Activation, Plan, Program, ValueId};
use backplane_weights::{OwnedTensor, TensorType};
use std::ops::Range;

/// What is done to each row: it reads and writes nothing but what stands in that row of its values.
pub(crate) enum RowKernel {
    Embed {
        table: OwnedTensor,
        scale: f32,
        out: ValueId,
    },
    RmsNorm {
        x: ValueId,
        gain: Vec<f32>,
        eps: f32,
        out: ValueId,
    },
    Rope {
        x: ValueId,
        rope: usize,
        head_dim: usize,
        out: ValueId,
    },
    Gated {
        gate: ValueId,
        up: ValueId,
        activation: Activation,
        out: ValueId,
    },
    Add {
        a: ValueId,
        b: ValueId,
        out: ValueId,
    },
    Scale {
        x: ValueId,
        factor: f32,
        out: ValueId,
    },
    SoftCap {
        x: ValueId,
        cap: f32,
        out: ValueId,
    },
    /// The rows that are wanted, out of all.
    Gather {
        x: ValueId,
        out: ValueId,
    },
    HeadSlice {
        x: ValueId,
        head_dim: usize,
        elements: Range<usize>,
        out: ValueId,
    },
    HeadConcat {
        a: ValueId,
        b: ValueId,
        heads: usize,
        out: ValueId,
    },
    /// Activations in the forms that the linear layers after it want for matrices of these types.
    Operands {
        x: ValueId,
        types: Vec<TensorType>,
    },
    /// Keys and values go to the row's page, for the attention after it.
    Append(Attention),
}

impl RowKernel {
    /// What it reads at its own row.
    fn reads(&self) -> impl Iterator<Item = ValueId> {
        let (first, second) = match *self {
            // From rows of other values.
            Self::Embed { .. } | Self::Gather { .. } => (None, None),
            Self::RmsNorm { x, .. }
            | Self::Rope { x, .. }
            | Self::Scale { x, .. }
            | Self::SoftCap { x, .. }
            | Self::HeadSlice { x, .. }
            | Self::Operands { x, .. } => (Some(x), None),
            Self::Gated { gate: a, up: b, .. }
            | Self::Add { a, b, .. }
            | Self::HeadConcat { a, b, .. } => (Some(a), Some(b)),
            Self::Append(Attention { k, v, .. }) => (Some(k), v),
        };
        first.into_iter().chain(second)
    }

    /// The value that it writes.
    pub(crate) fn out(&self) -> Option<ValueId> {
        match *self {
            Self::Embed { out, .. }
            | Self::RmsNorm { out, .. }
            | Self::Rope { out, .. }
            | Self::Gated { out, .. }
            | Self::Add { out, .. }
            | Self::Scale { out, .. }
            | Self::SoftCap { out, .. }
            | Self::Gather { out, .. }
            | Self::HeadSlice { out, .. }
            | Self::HeadConcat { out, .. } => Some(out),
            Self::Operands { .. } | Self::Append(_) => None,
        }
    }

    /// A value with a row for each of its own.
    pub(crate) fn of(&self) -> ValueId {
        match *self {
            Self::Operands { x, .. } => x,
            Self::Append(Attention { k, .. }) => k,
            _ => self.out().expect("the others write"),
        }
    }
}

/// Puts before linear layers and attentions what brings their rows into place, and joins neighbours whose rows are the same.
pub(super) fn joined(kernels: Vec<Kernel>, program: &Program, plan: &Plan) -> Vec<Kernel> {
    let mut all: Vec<Kernel> = vec![];
    let mut push = |kernel: Kernel| {
        let kernel = match (all.last_mut(), kernel) {
            (Some(Kernel::Rows(before)), Kernel::Rows(rows)) => {
                match rows.iter().all(|next| joins(before, next, program, plan)) {
                    true => return before.extend(rows),
                    false => Kernel::Rows(rows),
                }
            }
            (_, kernel) => kernel,
        };
        all.push(kernel);
    };
    for kernel in kernels {
        match &kernel {
            Kernel::Linears(linears) => push(Kernel::Rows(vec![RowKernel::Operands {
                x: linears.x,
                types: linears.parts.iter().map(|part| part.matrix.ty).collect(),
            }])),
            Kernel::Attention(attention) => {
                push(Kernel::Rows(vec![RowKernel::Append(*attention)]));
            }
            _ => {}
        }
        push(kernel);
    }
    all
}

/// Whether a kernel can run right after others for each row, while they run for other rows: then rows of its output must not lie over
/// other rows of what they read and write.
fn joins(before: &[RowKernel], next: &RowKernel, program: &Program, plan: &Plan) -> bool {
    let value = |id: ValueId| program.values[id.0];
    let same_rows = |kernel: &RowKernel| value(kernel.of()).rows == value(next.of()).rows;
    let apart = |id: ValueId| {
        next.out().is_none_or(|out| {
            plan.slot_of[out.0] != plan.slot_of[id.0] || value(out).width == value(id).width
        })
    };
    before.iter().all(same_rows)
        && before
            .iter()
            .flat_map(|kernel| kernel.reads().chain(kernel.out()))
            .all(apart)
}

#[cfg(test)]
mod tests {
    use super::super::{Arena, lower};
    use super::*;
    use backplane_golden::{formats, open_tiny, tiny_models};

    /// Floats of the arena that the rows of a value take.
    fn place(arena: &Arena, program: &Program, id: ValueId) -> Range<usize> {
        const TOKENS: usize = 16;
        let start = arena.start[id.0];
        start..start + TOKENS * program.values[id.0].width
    }

    #[test]
    fn neighbours_are_joined_and_never_write_over_other_rows() {
        let mut joined = 0;
        for model in tiny_models() {
            let weights = open_tiny(&model, formats(&model)[0]);
            let program = backplane_models::lower(&weights).unwrap();
            let plan = Plan::new(&program);
            let arena = Arena::new(&program, &plan, 16, 16).unwrap();
            let kernels = lower(&program, &plan, &weights, 2).unwrap();
            for pair in kernels.windows(2) {
                let prepared = |rows: &[RowKernel]| match (&pair[1], rows.last()) {
                    (Kernel::Linears(linears), Some(RowKernel::Operands { x, .. })) => {
                        *x == linears.x
                    }
                    (Kernel::Attention(attention), Some(RowKernel::Append(of))) => {
                        of.out == attention.out
                    }
                    (Kernel::Linears(_) | Kernel::Attention(_), _) => false,
                    _ => true,
                };
                match &pair[0] {
                    Kernel::Rows(rows) => assert!(prepared(rows), "{model}"),
                    _ => assert!(!matches!(
                        pair[1],
                        Kernel::Linears(_) | Kernel::Attention(_)
                    )),
                }
            }
            for kernel in kernels {
                let Kernel::Rows(rows) = kernel else { continue };
                joined += usize::from(rows.len() > 2);
                for (at, out) in rows
                    .iter()
                    .enumerate()
                    .filter_map(|(at, row)| Some((at, row.out()?)))
                {
                    let (own, width) = (place(&arena, &program, out), program.values[out.0].width);
                    for other in rows[..at]
                        .iter()
                        .flat_map(|row| row.reads().chain(row.out()))
                    {
                        let there = place(&arena, &program, other);
                        let apart = own.end <= there.start || there.end <= own.start;
                        let same = own == there && width == program.values[other.0].width;
                        assert!(
                            apart || same || out == program.logits,
                            "{model}: {own:?} {there:?}"
                        );
                    }
                }
            }
        }
        assert!(joined > 20, "{joined} chains of three or more");
    }
}
