//! Linear layers: activations in the forms that weights want, then all rows of all matrices shared out.

use super::frame::{Frame, Parts, share};
use crate::activations::{Group32, Group256, quantise_row32, quantise_row256};
use crate::kernels::{ActivationKind, Operand, Out, Tile, activation_kind};
use crate::lower::Linears;
use crate::memory::Buffer;
use crate::pool::Pool;

impl Frame<'_> {
    /// Brings the input of linear layers into the forms that their weights want.
    pub(super) fn quantise(
        &self,
        pool: &mut Pool,
        linears: &Linears,
        int32: &Buffer<Group32>,
        int256: &Buffer<Group256>,
    ) {
        let (isa, cols, rows) = (self.isa, linears.cols, self.count(linears.x));
        let (small, large) = (
            linears.wants(ActivationKind::Int32),
            linears.wants(ActivationKind::Int256),
        );
        let (small_len, large_len) = (
            ActivationKind::Int32.row_len(cols),
            ActivationKind::Int256.row_len(cols),
        );
        if !small && !large {
            return;
        }
        let (int32, int256) = (Parts::new(int32), Parts::new(int256));
        share(pool, rows, 2 * cols, &|row| {
            // SAFETY: the input was written by an earlier kernel.
            let x = unsafe { self.row(linears.x, row) };
            if small {
                // SAFETY: each task has its own row.
                quantise_row32(isa, x, unsafe { int32.part(row * small_len, small_len) });
            }
            if large {
                // SAFETY: each task has its own row.
                quantise_row256(isa, x, unsafe { int256.part(row * large_len, large_len) });
            }
        });
    }

    pub(super) fn linears(
        &self,
        pool: &mut Pool,
        linears: &Linears,
        int32: &Buffer<Group32>,
        int256: &Buffer<Group256>,
    ) {
        let (isa, cols, tokens) = (self.isa, linears.cols, self.count(linears.x));
        if tokens == 0 {
            return;
        }
        // SAFETY: the input was written by an earlier kernel.
        let floats = unsafe { self.read(linears.x) };
        pool.run(linears.chunks.len(), &|task, _| {
            let chunk = linears.chunks[task];
            let part = &linears.parts[chunk.part];
            let kind = activation_kind(part.ty);
            let len = tokens * kind.row_len(cols);
            let x = match kind {
                ActivationKind::Float => Operand::Float(floats),
                ActivationKind::Int32 => Operand::Int32(&int32.as_slice()[..len]),
                ActivationKind::Int256 => Operand::Int256(&int256.as_slice()[..len]),
            };
            let weights =
                &part.weight.data()[chunk.row * part.row_bytes..][..chunk.rows * part.row_bytes];
            // SAFETY: row `chunk.row` of the output lies within it.
            let start = unsafe { self.start(part.out).add(chunk.row) };
            let out = Out {
                start,
                stride: part.rows,
            };
            // SAFETY: the output is `[tokens, part.rows]`, apart from all inputs and the other parts' outputs, and no other
            // task has these rows.
            unsafe { Tile::new(part.ty, weights, cols, x, tokens, out) }.run(isa);
            if let Some(bias) = &part.bias {
                for t in 0..tokens {
                    // SAFETY: as above; the tile is done.
                    let out = unsafe {
                        std::slice::from_raw_parts_mut(start.add(t * part.rows), chunk.rows)
                    };
                    for (out, bias) in out.iter_mut().zip(&bias[chunk.row..]) {
                        *out += bias;
                    }
                }
            }
        });
    }
}
