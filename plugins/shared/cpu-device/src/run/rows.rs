//! Kernels whose rows don't need each other.

use super::RopeTable;
use super::frame::{Frame, share};
use crate::lower::Kernel;
use crate::pool::Pool;
use crate::vector;
use backplane_program::{Step, ValueId};

impl Frame<'_> {
    /// Runs a kernel whose rows don't need each other.
    pub(super) fn rows(
        &self,
        pool: &mut Pool,
        kernel: &Kernel,
        step: &Step<'_>,
        ropes: &[RopeTable],
    ) {
        let isa = self.isa;
        // A row of the output is written by the one task that computes it; inputs were written by earlier kernels, and the
        // plan keeps outputs apart from inputs: this is what the blocks below rely on.
        match kernel {
            Kernel::Embed { table, scale, out } => {
                let table = table.tensor();
                self.each_row(pool, *out, 2, &|row, _| {
                    // SAFETY: see above.
                    let out = unsafe { self.row_mut(*out, row) };
                    table.row_f32(step.tokens[row] as usize, out);
                    out.iter_mut().for_each(|x| *x *= scale);
                });
            }
            Kernel::RmsNorm { x, gain, eps, out } => self.each_row(pool, *out, 1, &|row, _| {
                // SAFETY: see above.
                let (x, out) = unsafe { (self.row(*x, row), self.row_mut(*out, row)) };
                vector::rms_norm(isa, x, gain, *eps, out);
            }),
            Kernel::Rope {
                x,
                rope,
                head_dim,
                out,
            } => self.each_row(pool, *out, 1, &|row, _| {
                let table = &ropes[*rope];
                // SAFETY: see above.
                let (x, out) = unsafe { (self.row(*x, row), self.row_mut(*out, row)) };
                vector::rope(isa, x, table.turn(row), table.rope.style, *head_dim, out);
            }),
            Kernel::Gated {
                gate,
                up,
                activation,
                out,
            } => self.each_row(pool, *out, 4, &|row, _| {
                // SAFETY: see above.
                let (gate, up, out) = unsafe {
                    (
                        self.row(*gate, row),
                        self.row(*up, row),
                        self.row_mut(*out, row),
                    )
                };
                vector::gated(isa, gate, up, *activation, out);
            }),
            Kernel::Add { a, b, out } => self.each_row(pool, *out, 1, &|row, _| {
                // SAFETY: see above.
                let (a, b, out) = unsafe {
                    (
                        self.row(*a, row),
                        self.row(*b, row),
                        self.row_mut(*out, row),
                    )
                };
                vector::add(isa, a, b, out);
            }),
            Kernel::Scale { x, factor, out } => self.each_row(pool, *out, 1, &|row, _| {
                // SAFETY: see above.
                let (x, out) = unsafe { (self.row(*x, row), self.row_mut(*out, row)) };
                vector::scale(isa, x, *factor, out);
            }),
            Kernel::SoftCap { x, cap, out } => self.each_row(pool, *out, 16, &|row, _| {
                // SAFETY: see above.
                let (x, out) = unsafe { (self.row(*x, row), self.row_mut(*out, row)) };
                vector::soft_cap(x, *cap, out);
            }),
            Kernel::Gather { x, out } => self.each_row(pool, *out, 1, &|row, _| {
                // SAFETY: see above; wanted rows are below the number of tokens.
                let (x, out) = unsafe {
                    (
                        self.row(*x, step.wanted[row] as usize),
                        self.row_mut(*out, row),
                    )
                };
                out.copy_from_slice(x);
            }),
            Kernel::HeadSlice {
                x,
                head_dim,
                elements,
                out,
            } => self.each_row(pool, *out, 1, &|row, _| {
                // SAFETY: see above.
                let (x, out) = unsafe { (self.row(*x, row), self.row_mut(*out, row)) };
                let heads = out.chunks_exact_mut(elements.len());
                for (out, x) in heads.zip(x.chunks_exact(*head_dim)) {
                    out.copy_from_slice(&x[elements.clone()]);
                }
            }),
            Kernel::HeadConcat { a, b, heads, out } => self.each_row(pool, *out, 1, &|row, _| {
                // SAFETY: see above.
                let (a, b, out) = unsafe {
                    (
                        self.row(*a, row),
                        self.row(*b, row),
                        self.row_mut(*out, row),
                    )
                };
                let (a_dim, b_dim) = (a.len() / heads, b.len() / heads);
                let parts = a.chunks_exact(a_dim).zip(b.chunks_exact(b_dim));
                for (out, (a, b)) in out.chunks_exact_mut(a_dim + b_dim).zip(parts) {
                    let (first, second) = out.split_at_mut(a_dim);
                    first.copy_from_slice(a);
                    second.copy_from_slice(b);
                }
            }),
            Kernel::Linears(_)
            | Kernel::HeadLinear(_)
            | Kernel::Attention(_)
            | Kernel::Route(_)
            | Kernel::Experts(_) => {
                unreachable!("these have functions of their own")
            }
        }
    }

    /// Calls `task` for each row of `out` and the worker's number, on several threads if the work is worth it.
    pub(super) fn each_row(
        &self,
        pool: &mut Pool,
        out: ValueId,
        cost: usize,
        task: &(dyn Fn(usize, usize) + Sync),
    ) {
        let (rows, width) = (self.count(out), self.values[out.0].width);
        share(pool, rows, width * cost, task);
    }
}
