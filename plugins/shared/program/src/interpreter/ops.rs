//! The operations on plain slices. Matrices are row-major; shapes are in the comments.

use super::cache::CacheView;
use crate::device::Step;
use crate::program::{Activation, Rope, RopeStyle};
use backplane_weights::Tensor;
use std::ops::Range;

/// Multiply-adds below which an operation stays on one thread.
const THREAD_WORK: usize = 1 << 20;

/// `out [tokens, width]`: rows of `table [vocab, width]`, scaled.
pub(super) fn embed(table: &Tensor<'_>, tokens: &[u32], scale: f32, out: &mut [f32]) {
    let width = out.len() / tokens.len();
    for (row, token) in out.chunks_exact_mut(width).zip(tokens) {
        table.row_f32(*token as usize, row);
        row.iter_mut().for_each(|x| *x *= scale);
    }
}

/// `x, out [rows, groups * group]`, `weight [group]`.
pub(super) fn rms_norm(x: &[f32], weight: &[f32], eps: f32, group: usize, out: &mut [f32]) {
    for (out, x) in out.chunks_exact_mut(group).zip(x.chunks_exact(group)) {
        let mean_square = dot(x, x) / group as f32;
        let factor = 1.0 / (mean_square + eps).sqrt();
        for ((out, x), weight) in out.iter_mut().zip(x).zip(weight) {
            *out = x * factor * weight;
        }
    }
}

/// `x [rows, in]`, `weight_rows` of `weight [.., in]`, `bias [out]`, `out [rows, out]`; as many weight rows as `out`.
pub(super) fn linear(
    x: &[f32],
    weight: &Tensor<'_>,
    weight_rows: Range<usize>,
    bias: Option<&[f32]>,
    threads: usize,
    out: &mut [f32],
) {
    let (width, columns) = (weight_rows.len(), weight.cols());
    let rows = x.len() / columns;
    let mut transposed = vec![0.0; out.len()]; // [out, rows]
    parallel(
        &mut transposed,
        rows,
        threads,
        rows * width * columns,
        |first, chunk| {
            let mut weights = vec![0.0; columns];
            for (offset, sums) in chunk.chunks_exact_mut(rows).enumerate() {
                weight.row_f32(weight_rows.start + first + offset, &mut weights);
                for (sum, x) in sums.iter_mut().zip(x.chunks_exact(columns)) {
                    *sum = dot(x, &weights) + bias.map_or(0.0, |bias| bias[first + offset]);
                }
            }
        },
    );
    for (row, out) in out.chunks_exact_mut(width).enumerate() {
        for (column, out) in out.iter_mut().enumerate() {
            *out = transposed[column * rows + row];
        }
    }
}

/// `x, out [tokens, width]`; `positions [tokens]`.
pub(super) fn rope(
    x: &[f32],
    positions: &[usize],
    rope: &Rope,
    head_dim: usize,
    width: usize,
    out: &mut [f32],
) {
    out.copy_from_slice(x);
    let pairs = rope.inverse_frequencies.len();
    for (row, position) in out.chunks_exact_mut(width).zip(positions) {
        let turns: Vec<(f32, f32)> = rope
            .inverse_frequencies
            .iter()
            .map(|frequency| (*position as f32 * frequency).sin_cos())
            .map(|(sin, cos)| (sin * rope.magnitude, cos * rope.magnitude))
            .collect();
        for head in row.chunks_exact_mut(head_dim) {
            for (pair, (sin, cos)) in turns.iter().enumerate() {
                let (i, j) = match rope.style {
                    RopeStyle::Interleaved => (2 * pair, 2 * pair + 1),
                    RopeStyle::Halves => (pair, pair + pairs),
                };
                let (a, b) = (head[i], head[j]);
                head[i] = a * cos - b * sin;
                head[j] = a * sin + b * cos;
            }
        }
    }
}

/// What an attention operation says beside its operands.
#[derive(Clone, Copy)]
pub(super) struct AttentionShape {
    pub(super) heads: usize,
    pub(super) scale: f32,
    pub(super) window: Option<usize>,
    pub(super) soft_cap: Option<f32>,
}

/// `q [tokens, heads * key_dim]`, `out [tokens, heads * value_dim]`; keys and values of the step are in the cache already.
pub(super) fn attention(
    q: &[f32],
    step: &Step<'_>,
    cache: &CacheView<'_>,
    shape: AttentionShape,
    threads: usize,
    out: &mut [f32],
) {
    // [tokens]: position and pages of each token.
    let places: Vec<(usize, &[u32])> = step
        .sequences
        .iter()
        .flat_map(|sequence| {
            (sequence.past..sequence.past + sequence.count)
                .map(|position| (position, sequence.pages))
        })
        .collect();
    let (key_dim, value_dim) = (cache.spec.key_dim, cache.spec.value_dim);
    let heads_per_key = shape.heads / cache.spec.kv_heads;
    let work: usize = places
        .iter()
        .map(|(position, _)| (position + 1) * shape.heads * (key_dim + value_dim))
        .sum();
    parallel(
        out,
        shape.heads * value_dim,
        threads,
        work,
        |first, chunk| {
            for (offset, row) in chunk.chunks_exact_mut(shape.heads * value_dim).enumerate() {
                let token = first + offset;
                let (position, pages) = places[token];
                let start = shape
                    .window
                    .map_or(0, |window| (position + 1).saturating_sub(window));
                for (head, out) in row.chunks_exact_mut(value_dim).enumerate() {
                    let q = &q[(token * shape.heads + head) * key_dim..][..key_dim];
                    let mut scores: Vec<f32> = (start..=position) // [start ..= position]
                        .map(|past| {
                            dot(q, cache.key(pages, past, head / heads_per_key)) * shape.scale
                        })
                        .map(|score| {
                            shape
                                .soft_cap
                                .map_or(score, |cap| cap * (score / cap).tanh())
                        })
                        .collect();
                    softmax(&mut scores);
                    for (past, score) in (start..).zip(&scores) {
                        let value = cache.value(pages, past, head / heads_per_key);
                        out.iter_mut()
                            .zip(value)
                            .for_each(|(out, value)| *out += score * value);
                    }
                }
            }
        },
    );
}

pub(super) fn softmax(scores: &mut [f32]) {
    let max = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    scores
        .iter_mut()
        .for_each(|score| *score = (*score - max).exp());
    let sum: f32 = scores.iter().sum();
    scores.iter_mut().for_each(|score| *score /= sum);
}

/// All `[rows, width]`.
pub(super) fn gated(gate: &[f32], up: &[f32], activation: Activation, out: &mut [f32]) {
    for ((out, gate), up) in out.iter_mut().zip(gate).zip(up) {
        *out = activate(*gate, activation) * up;
    }
}

pub(super) fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + (-x).exp())
}

fn activate(x: f32, activation: Activation) -> f32 {
    match activation {
        Activation::Silu => x * sigmoid(x),
        Activation::GeluTanh => {
            let inner = (2.0 / std::f32::consts::PI).sqrt() * (x + 0.044_715 * x * x * x);
            0.5 * x * (1.0 + inner.tanh())
        }
    }
}

/// All `[rows, width]`.
pub(super) fn add(a: &[f32], b: &[f32], out: &mut [f32]) {
    for ((out, a), b) in out.iter_mut().zip(a).zip(b) {
        *out = a + b;
    }
}

/// Both `[rows, width]`.
pub(super) fn scale(x: &[f32], factor: f32, out: &mut [f32]) {
    for (out, x) in out.iter_mut().zip(x) {
        *out = x * factor;
    }
}

/// Both `[rows, width]`.
pub(super) fn soft_cap(x: &[f32], cap: f32, out: &mut [f32]) {
    for (out, x) in out.iter_mut().zip(x) {
        *out = cap * (x / cap).tanh();
    }
}

/// `x [rows, heads, head_dim]`, `out [rows, heads, elements]`.
pub(super) fn head_slice(x: &[f32], head_dim: usize, elements: Range<usize>, out: &mut [f32]) {
    for (out, x) in out
        .chunks_exact_mut(elements.len())
        .zip(x.chunks_exact(head_dim))
    {
        out.copy_from_slice(&x[elements.clone()]);
    }
}

/// `a [rows, heads, a_dim]`, `b [rows, heads, b_dim]`, `out [rows, heads, a_dim + b_dim]`.
pub(super) fn head_concat(a: &[f32], b: &[f32], a_dim: usize, b_dim: usize, out: &mut [f32]) {
    let heads = a.chunks_exact(a_dim).zip(b.chunks_exact(b_dim));
    for (out, (a, b)) in out.chunks_exact_mut(a_dim + b_dim).zip(heads) {
        out[..a_dim].copy_from_slice(a);
        out[a_dim..].copy_from_slice(b);
    }
}

/// `x [rows, heads, in]`, `weight [heads, out, in]`, `out [rows, heads, out]`.
pub(super) fn head_linear(x: &[f32], weight: &Tensor<'_>, out: &mut [f32]) {
    let [heads, width, columns] = [weight.info.shape[0], weight.info.shape[1], weight.cols()];
    let mut weights = vec![0.0; columns];
    for head in 0..heads {
        for column in 0..width {
            weight.row_f32(head * width + column, &mut weights);
            let rows = x.chunks_exact(heads * columns);
            for (out, x) in out.chunks_exact_mut(heads * width).zip(rows) {
                out[head * width + column] = dot(&x[head * columns..][..columns], &weights);
            }
        }
    }
}

/// `x [tokens, width]`, `out [wanted, width]`.
pub(super) fn gather(x: &[f32], wanted: &[u32], width: usize, out: &mut [f32]) {
    for (out, row) in out.chunks_exact_mut(width).zip(wanted) {
        out.copy_from_slice(&x[*row as usize * width..][..width]);
    }
}

/// Dot product in 16 interleaved partial sums.
fn dot(a: &[f32], b: &[f32]) -> f32 {
    let (a_chunks, a_rest) = a.as_chunks::<16>();
    let (b_chunks, b_rest) = b.as_chunks::<16>();
    let mut sums = [0.0f32; 16];
    for (a, b) in a_chunks.iter().zip(b_chunks) {
        for lane in 0..16 {
            sums[lane] += a[lane] * b[lane];
        }
    }
    let rest: f32 = a_rest.iter().zip(b_rest).map(|(a, b)| a * b).sum();
    sums.iter().sum::<f32>() + rest
}

/// Calls `work(first_row, rows)` over all of `out [rows, width]`, in one piece per thread when there is enough to do.
fn parallel(
    out: &mut [f32],
    width: usize,
    threads: usize,
    multiply_adds: usize,
    work: impl Fn(usize, &mut [f32]) + Sync,
) {
    if out.is_empty() {
        return;
    }
    if threads <= 1 || multiply_adds < THREAD_WORK {
        return work(0, out);
    }
    let rows = (out.len() / width).div_ceil(threads);
    std::thread::scope(|scope| {
        for (index, chunk) in out.chunks_mut(rows * width).enumerate() {
            let work = &work;
            scope.spawn(move || work(index * rows, chunk));
        }
    });
}
