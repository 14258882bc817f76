//! Mixtures of experts on plain slices.

use super::ops;
use crate::program::{Activation, ExpertGroups, Scoring};
use backplane_weights::Tensor;
use std::cmp::Ordering;
use std::ops::Range;

/// What a route operation says beside its operands.
#[derive(Clone, Copy)]
pub(super) struct Choice<'a> {
    pub(super) scoring: Scoring,
    /// `[experts]`.
    pub(super) bias: Option<&'a [f32]>,
    pub(super) groups: Option<ExpertGroups>,
    pub(super) used: usize,
    pub(super) normalise: bool,
    pub(super) scale: f32,
}

/// `logits, out [rows, experts]`; `out` is zeros before.
pub(super) fn route(logits: &[f32], experts: usize, choice: Choice<'_>, out: &mut [f32]) {
    for (logits, out) in logits
        .chunks_exact(experts)
        .zip(out.chunks_exact_mut(experts))
    {
        let mut scores = logits.to_vec();
        match choice.scoring {
            Scoring::Softmax => ops::softmax(&mut scores),
            Scoring::Sigmoid => scores
                .iter_mut()
                .for_each(|score| *score = ops::sigmoid(*score)),
        }
        let biased: Vec<f32> = match choice.bias {
            Some(bias) => scores.iter().zip(bias).map(|(a, b)| a + b).collect(),
            None => scores.clone(),
        };
        let mut open: Vec<usize> = open_experts(&biased, choice.groups);
        open.sort_by(|a, b| descending(biased[*a], biased[*b]));
        let chosen = &open[..choice.used];
        let sum: f32 = chosen.iter().map(|expert| scores[*expert]).sum();
        let divisor = if choice.normalise && sum != 0.0 {
            sum
        } else {
            1.0
        };
        for expert in chosen {
            out[*expert] = scores[*expert] / divisor * choice.scale;
        }
    }
}

/// The experts that may be chosen, in order.
fn open_experts(biased: &[f32], groups: Option<ExpertGroups>) -> Vec<usize> {
    let Some(ExpertGroups { count, used }) = groups else {
        return (0..biased.len()).collect();
    };
    let size = biased.len() / count;
    let ranks: Vec<f32> = biased
        .chunks_exact(size)
        .map(|group| {
            let mut group = group.to_vec();
            group.sort_by(|a, b| descending(*a, *b));
            group.iter().take(2).sum()
        })
        .collect();
    let mut order: Vec<usize> = (0..count).collect();
    order.sort_by(|a, b| descending(ranks[*a], ranks[*b]));
    order.truncate(used);
    order.sort_unstable();
    order
        .into_iter()
        .flat_map(|group| group * size..(group + 1) * size)
        .collect()
}

/// Highest first; sorting by it is stable, so that of equal ones the first stays first. NaN has some place.
fn descending(a: f32, b: f32) -> Ordering {
    if a == b {
        Ordering::Equal
    } else {
        b.total_cmp(&a)
    }
}

/// Some rows of a stored tensor.
pub(super) struct Matrix<'a> {
    pub(super) tensor: Tensor<'a>,
    pub(super) rows: Range<usize>,
}

/// One expert's matrices.
pub(super) struct ExpertMatrices<'a> {
    /// `[inner, in]`.
    pub(super) gate: Matrix<'a>,
    /// `[inner, in]`.
    pub(super) up: Matrix<'a>,
    /// `[width, inner]`.
    pub(super) down: Matrix<'a>,
}

/// Adds one expert to `out [rows, width]`, over the rows of `x [rows, in]` that it counts for: `weights [rows]`.
pub(super) fn expert(
    x: &[f32],
    weights: &[f32],
    matrices: &ExpertMatrices<'_>,
    activation: Activation,
    threads: usize,
    out: &mut [f32],
) {
    let (inner, width) = (matrices.gate.rows.len(), matrices.down.rows.len());
    let rows: Vec<usize> = (0..weights.len())
        .filter(|row| weights[*row] != 0.0)
        .collect();
    if rows.is_empty() {
        return;
    }
    let columns = x.len() / weights.len();
    let gathered: Vec<f32> = rows
        .iter()
        .flat_map(|row| &x[row * columns..][..columns])
        .copied()
        .collect(); // [rows of this expert, in]
    let linear = |x: &[f32], matrix: &Matrix<'_>, width: usize| {
        let mut out = vec![0.0; rows.len() * width];
        ops::linear(
            x,
            &matrix.tensor,
            matrix.rows.clone(),
            None,
            threads,
            &mut out,
        );
        out
    };
    let gate = linear(&gathered, &matrices.gate, inner);
    let up = linear(&gathered, &matrices.up, inner);
    let mut hidden = vec![0.0; gate.len()];
    ops::gated(&gate, &up, activation, &mut hidden);
    let down = linear(&hidden, &matrices.down, width);
    for (row, down) in rows.iter().zip(down.chunks_exact(width)) {
        for (out, down) in out[row * width..][..width].iter_mut().zip(down) {
            *out += weights[*row] * down;
        }
    }
}
