//! The choice of experts.

use super::frame::{Frame, Parts, share};
use crate::lower::{Kernel, Route};
use crate::memory::Buffer;
use crate::pool::Pool;
use backplane_program::{DeviceError, ExpertGroups, Scoring, ValueId};
use std::cmp::Ordering;

/// What a thread needs to rank experts: `[threads, 3 * experts]`.
pub(super) struct Ranking {
    floats: Buffer<f32>,
    each: usize,
}

impl Ranking {
    pub(super) fn new(
        kernels: &[Kernel],
        threads: usize,
        width: impl Fn(ValueId) -> usize,
    ) -> Result<Self, DeviceError> {
        let experts = kernels.iter().map(|kernel| match kernel {
            Kernel::Route(route) => width(route.x),
            _ => 0,
        });
        let each = experts.max().unwrap_or(0).saturating_mul(3);
        Ok(Self {
            floats: Buffer::new(threads.saturating_mul(each), "scores of experts")?,
            each,
        })
    }

    /// Bytes of all of it.
    pub(super) fn bytes(&self) -> usize {
        self.floats.bytes()
    }
}

impl Frame<'_> {
    pub(super) fn route(&self, pool: &mut Pool, route: &Route, ranking: &Ranking) {
        let floats = Parts::new(&ranking.floats);
        let experts = self.values[route.x.0].width;
        let cost = 64 * self.values[route.out.0].width;
        share(pool, self.count(route.out), cost, &|row, worker| {
            // SAFETY: the input was written by an earlier kernel, no other task has this row of the output, and each worker
            // has its own scratch.
            let (x, out, scratch) = unsafe {
                (
                    self.row(route.x, row),
                    self.row_mut(route.out, row),
                    floats.part(worker * ranking.each, 3 * experts),
                )
            };
            choose(route, x, scratch, out);
        });
    }
}

/// Writes the weights of the experts chosen. Ranks are found in the same arithmetic as the interpreter's, so that a near tie goes
/// the same way.
fn choose(route: &Route, logits: &[f32], scratch: &mut [f32], out: &mut [f32]) {
    let (scores, rest) = scratch.split_at_mut(logits.len());
    let (biased, ranks) = rest.split_at_mut(logits.len());
    scores.copy_from_slice(logits);
    match route.scoring {
        Scoring::Softmax => {
            let largest = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            let mut sum = 0.0;
            for score in scores.iter_mut() {
                *score = (*score - largest).exp();
                sum += *score;
            }
            scores.iter_mut().for_each(|score| *score /= sum);
        }
        Scoring::Sigmoid => scores
            .iter_mut()
            .for_each(|score| *score = 1.0 / (1.0 + (-*score).exp())),
    }
    biased.copy_from_slice(scores);
    if let Some(bias) = &route.bias {
        for (biased, bias) in biased.iter_mut().zip(bias) {
            *biased += bias;
        }
    }
    // Ranks of what has been taken are no longer looked at: `out` is 1 where an expert is out of the choice.
    out.fill(0.0);
    if let Some(ExpertGroups { count, used }) = route.groups {
        let size = biased.len() / count;
        let ranks = &mut ranks[..count];
        for (rank, group) in ranks.iter_mut().zip(biased.chunks_exact(size)) {
            *rank = two_best(group);
        }
        out.fill(1.0);
        for _ in 0..used {
            let best = (0..count)
                .filter(|group| out[group * size] != 0.0)
                .reduce(|best, group| higher(ranks, best, group));
            if let Some(best) = best {
                out[best * size..(best + 1) * size].fill(0.0);
            }
        }
    }
    let mut sum = 0.0;
    for _ in 0..route.used {
        let best = (0..biased.len())
            .filter(|expert| out[*expert] == 0.0)
            .reduce(|best, expert| higher(biased, best, expert));
        if let Some(best) = best {
            // Chosen.
            out[best] = 2.0;
            sum += scores[best];
        }
    }
    let divisor = if route.normalise && sum != 0.0 {
        sum
    } else {
        1.0
    };
    for (out, score) in out.iter_mut().zip(scores) {
        *out = if *out == 2.0 {
            *score / divisor * route.scale
        } else {
            0.0
        };
    }
}

/// Of two places the one with the higher number, the first of equal ones. NaN has some place.
fn higher(numbers: &[f32], first: usize, second: usize) -> usize {
    let (a, b) = (numbers[first], numbers[second]);
    if a != b && b.total_cmp(&a) == Ordering::Greater {
        second
    } else {
        first
    }
}

/// Sum of the two highest, or the one there is.
fn two_best(numbers: &[f32]) -> f32 {
    let Some(best) = (0..numbers.len()).reduce(|best, next| higher(numbers, best, next)) else {
        return 0.0;
    };
    let second = (0..numbers.len())
        .filter(|place| *place != best)
        .reduce(|best, next| higher(numbers, best, next));
    second.map_or(numbers[best], |second| numbers[best] + numbers[second])
}
