//! Linear layers: activations in the forms that weights want, then all rows of all matrices shared out.

use super::frame::{Frame, share};
use super::operands::Operands;
use crate::isa::Isa;
use crate::kernels::{
    ActivationKind, ActivationKinds, Operand, Out, Scratch, Tile, activation_kind,
};
use crate::lower::{Chunk, HeadLinear, Linears, Matrix};
use crate::pool::Pool;
use backplane_weights::TensorType;
use std::ops::Range;

/// In which forms the activations of linear layers with matrices of these types are needed, besides the one they have.
pub(super) fn kinds(isa: Isa, tokens: usize, types: &[TensorType]) -> ActivationKinds {
    ActivationKinds {
        float: false,
        ..ActivationKinds::of(isa, tokens, types.iter().copied())
    }
}

impl HeadLinear {
    /// In which forms the activations are needed. Those of one head lie apart in a value, so that floats are moved, too.
    pub(super) fn kinds(&self, isa: Isa, tokens: usize) -> ActivationKinds {
        ActivationKinds::of(isa, tokens, [self.matrix.ty])
    }
}

/// Rows of a matrix.
pub(super) type Rows<'a> = (&'a Matrix, Range<usize>);

/// Rows of a matrix times tokens: row `r` of the chunk, token `t` goes to `out.start + t * out.stride + r`.
///
/// The products of one job, which is not zero, have the same `x`; zero is for those that stand alone. `next` are rows that this thread is
/// likely to multiply after these.
///
/// # Safety
/// These places of `out` are there, and nobody else touches them.
pub(super) unsafe fn multiply(
    isa: Isa,
    matrix: &Matrix,
    rows: Range<usize>,
    x: Operand<'_>,
    tokens: usize,
    out: Out,
    (mut scratch, job, next): (Scratch<'_>, u64, Option<Rows<'_>>),
) {
    let data = matrix.data(rows);
    // SAFETY: the caller's promise.
    let mut tile = unsafe { Tile::new(matrix.ty, data, matrix.cols, x, tokens, out) }.of_job(job);
    if let Some((matrix, rows)) = next {
        let count = rows.len();
        let data = matrix.data(rows);
        tile = tile.before(data, data.len() / count);
    }
    tile.run(isa, &mut scratch);
}

impl Frame<'_> {
    /// Its operands were put there. `job` is another number each time, and not zero.
    pub(super) fn linears(
        &self,
        pool: &mut Pool,
        linears: &Linears,
        operands: &Operands,
        job: u64,
    ) {
        let (isa, tokens) = (self.isa, self.count(linears.x));
        let cols = linears.parts[0].matrix.cols;
        if tokens == 0 {
            return;
        }
        // SAFETY: the input was written by an earlier kernel.
        let floats = unsafe { self.read(linears.x) };
        let threads = pool.threads();
        pool.run(linears.chunks.len(), &|task, worker| {
            let Chunk { part, row, rows } = linears.chunks[task];
            let part = &linears.parts[part];
            let next = linears.chunks.get(task + threads).map(|next| {
                let rows = next.row..next.row + next.rows;
                (&linears.parts[next.part].matrix, rows)
            });
            let x = match activation_kind(isa, part.matrix.ty, tokens) {
                ActivationKind::Float => Operand::Float(floats),
                kind => operands.rows(kind, cols, 0..tokens),
            };
            let stride = part.matrix.rows;
            // SAFETY: row `row` of the output lies within it.
            let start = unsafe { self.start(part.out).add(row) };
            // SAFETY: the output is `[tokens, rows of the matrix]`, apart from all inputs and the other parts' outputs, and no
            // other task has these rows; a worker runs one task at a time.
            unsafe {
                let (out, scratch) = (Out { start, stride }, operands.scratch(worker));
                let scratch = (scratch, job, next);
                multiply(isa, &part.matrix, row..row + rows, x, tokens, out, scratch);
            }
            if let Some(bias) = &part.bias {
                for t in 0..tokens {
                    // SAFETY: as above; the product is done.
                    let out =
                        unsafe { std::slice::from_raw_parts_mut(start.add(t * stride), rows) };
                    for (out, bias) in out.iter_mut().zip(&bias[row..]) {
                        *out += bias;
                    }
                }
            }
        });
    }

    pub(super) fn head_linear(&self, pool: &mut Pool, layer: &HeadLinear, operands: &Operands) {
        let (isa, tokens, heads) = (self.isa, self.count(layer.x), layer.heads);
        let (cols, kinds) = (layer.matrix.cols, layer.kinds(isa, tokens));
        if tokens == 0 {
            return;
        }
        // Places go head by head.
        share(pool, tokens, 2 * cols * heads, &|row, _| {
            // SAFETY: the input was written by an earlier kernel; each task has its own row.
            let x = unsafe { self.row(layer.x, row) };
            for (head, x) in x.chunks_exact(cols).enumerate() {
                // SAFETY: as above.
                unsafe { operands.put(isa, kinds, x, head * tokens + row) };
            }
        });
        let kind = activation_kind(isa, layer.matrix.ty, tokens);
        let width = layer.matrix.rows / heads;
        pool.run(layer.chunks.len() * heads, &|task, worker| {
            let (head, chunk) = (
                task / layer.chunks.len(),
                layer.chunks[task % layer.chunks.len()],
            );
            let x = operands.rows(kind, cols, head * tokens..(head + 1) * tokens);
            let first = head * width + chunk.row;
            // SAFETY: the output is `[tokens, heads, width]`, apart from the input, and no other task has these rows; a worker runs one
            // task at a time.
            unsafe {
                let out = Out {
                    start: self.start(layer.out).add(first),
                    stride: heads * width,
                };
                multiply(
                    isa,
                    &layer.matrix,
                    first..first + chunk.rows,
                    x,
                    tokens,
                    out,
                    (operands.scratch(worker), 0, None),
                );
            }
        });
    }
}
