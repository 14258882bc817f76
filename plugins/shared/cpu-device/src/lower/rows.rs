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
