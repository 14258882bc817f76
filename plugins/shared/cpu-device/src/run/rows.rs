//! Kernels whose rows don't need each other.

use super::attention::{Place, append};
use super::frame::{Frame, share};
use super::operands::Operands;
use super::{RopeTable, linears};
use crate::cache::Cache;
use crate::lower::RowKernel;
use crate::pool::Pool;
use crate::vector;
use backplane_program::Step;

/// What row kernels need besides their values.
pub(super) struct Around<'a> {
    pub(super) step: &'a Step<'a>,
    /// Of each token of the step.
    pub(super) places: &'a [Place],
    pub(super) ropes: &'a [RopeTable],
    pub(super) operands: &'a Operands,
    pub(super) cache: &'a Cache,
}

impl Frame<'_> {
    /// Runs row kernels of the same rows, for each row one after the other.
    pub(super) fn rows(&self, pool: &mut Pool, kernels: &[RowKernel], around: &Around<'_>) {
        let rows = self.count(kernels[0].of());
        let cost = kernels.iter().map(|kernel| self.cost(kernel)).sum();
        share(pool, rows, cost, &|row, _| {
            for kernel in kernels {
                // SAFETY: a row of the step. Inputs from other rows were written by earlier jobs; a row of an output is written by the one
                // task that has it, and lies over nothing that other tasks read or write: those that share a job were chosen so.
                unsafe { self.row_of(kernel, rows, row, around) };
            }
        });
    }

    /// What a row costs, in elements that are added up.
    fn cost(&self, kernel: &RowKernel) -> usize {
        let width = self.values[kernel.of().0].width;
        let each = match kernel {
            RowKernel::RmsNorm { .. }
            | RowKernel::Rope { .. }
            | RowKernel::Add { .. }
            | RowKernel::Scale { .. }
            | RowKernel::Gather { .. }
            | RowKernel::HeadSlice { .. }
            | RowKernel::HeadConcat { .. } => 1,
            RowKernel::Embed { .. } | RowKernel::Operands { .. } => 2,
            RowKernel::Gated { .. } => 4,
            RowKernel::SoftCap { .. } => 16,
            // Keys lie across: a line for each element.
            RowKernel::Append(_) => 32,
        };
        width * each
    }

    /// Runs a kernel for one of `rows` rows.
    ///
    /// # Safety
    /// Its inputs were written, and nobody else touches the row of its output meanwhile.
    unsafe fn row_of(&self, kernel: &RowKernel, rows: usize, row: usize, around: &Around<'_>) {
        let isa = self.isa;
        // SAFETY: the caller's promise.
        let read = |id| unsafe { self.row(id, row) };
        // SAFETY: as above.
        let write = |id| unsafe { self.row_mut(id, row) };
        match kernel {
            RowKernel::Embed { table, scale, out } => {
                let out = write(*out);
                let token = around.step.tokens[row] as usize;
                table.tensor().row_f32(token, out);
                out.iter_mut().for_each(|x| *x *= scale);
            }
            RowKernel::RmsNorm { x, gain, eps, out } => {
                vector::rms_norm(isa, read(*x), gain, *eps, write(*out));
            }
            RowKernel::Rope {
                x,
                rope,
                head_dim,
                out,
            } => {
                let table = &around.ropes[*rope];
                let (turn, style) = (table.turn(row), table.rope.style);
                vector::rope(isa, read(*x), turn, style, *head_dim, write(*out));
            }
            RowKernel::Gated {
                gate,
                up,
                activation,
                out,
            } => vector::gated(isa, read(*gate), read(*up), *activation, write(*out)),
            RowKernel::Add { a, b, out } => vector::add(isa, read(*a), read(*b), write(*out)),
            RowKernel::Scale { x, factor, out } => {
                vector::scale(isa, read(*x), *factor, write(*out));
            }
            RowKernel::SoftCap { x, cap, out } => vector::soft_cap(read(*x), *cap, write(*out)),
            RowKernel::Gather { x, out } => {
                let wanted = around.step.wanted[row] as usize;
                // SAFETY: wanted rows are below the number of tokens; the value was written by an earlier job.
                write(*out).copy_from_slice(unsafe { self.row(*x, wanted) });
            }
            RowKernel::HeadSlice {
                x,
                head_dim,
                elements,
                out,
            } => {
                let heads = write(*out).chunks_exact_mut(elements.len());
                for (out, x) in heads.zip(read(*x).chunks_exact(*head_dim)) {
                    out.copy_from_slice(&x[elements.clone()]);
                }
            }
            RowKernel::HeadConcat { a, b, heads, out } => {
                let (a, b, out) = (read(*a), read(*b), write(*out));
                let (a_dim, b_dim) = (a.len() / heads, b.len() / heads);
                let parts = a.chunks_exact(a_dim).zip(b.chunks_exact(b_dim));
                for (out, (a, b)) in out.chunks_exact_mut(a_dim + b_dim).zip(parts) {
                    let (first, second) = out.split_at_mut(a_dim);
                    first.copy_from_slice(a);
                    second.copy_from_slice(b);
                }
            }
            RowKernel::Operands { x, types } => {
                let kinds = linears::kinds(isa, rows, types);
                // SAFETY: each task has its own row.
                unsafe { around.operands.put(isa, kinds, read(*x), row) };
            }
            RowKernel::Append(attention) => {
                // SAFETY: each token has a position of its own: the step was checked for that.
                unsafe { append(self, around, attention, row) };
            }
        }
    }
}
