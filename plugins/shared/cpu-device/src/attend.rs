//! Some query heads over one page of the cache.

#[cfg_attr(target_arch = "x86_64", path = "attend/avx512.rs")]
#[cfg_attr(not(target_arch = "x86_64"), path = "attend/alone.rs")]
mod together;
mod widen;

use crate::isa::Isa;
use crate::memory::Zeroed;
use crate::vector::{exp, fma, total};
use std::ops::Range;

pub(crate) use together::{attend, queries_at_once, takes_halves};
pub(crate) use widen::{
    narrow_f16, round_q8_0, turn_over, widen_f16, widen_q8_0_across, widen_q8_0_along,
};

/// Positions that attention takes at once: pages are made up to a multiple.
pub(crate) const POSITIONS: usize = 16;

/// Bytes that are asked for at once.
pub(crate) const LINE: usize = 64;

/// Most queries that one call takes, so that a page's keys and values are read once for all of them.
pub(crate) const MOST_QUERIES: usize = 4;

/// Keys and values of one head in a page: `[key_dim, stride]` and `[positions, value_dim]`.
#[derive(Clone, Copy)]
pub(crate) enum Held<'a> {
    Floats([&'a [f32]; 2]),
    /// Bits of half-precision numbers: only where [`takes_halves`].
    #[cfg_attr(not(target_arch = "x86_64"), allow(dead_code))]
    Halves([&'a [u16]; 2]),
}

/// What query heads see of a page.
#[derive(Clone, Copy)]
pub(crate) struct Page<'a> {
    /// Keys and values.
    pub(crate) held: Held<'a>,
    /// Positions made up to a multiple of [`POSITIONS`].
    pub(crate) stride: usize,
    /// What products are multiplied with.
    pub(crate) scale: f32,
    /// What they are held under, softly, after that.
    pub(crate) soft_cap: Option<f32>,
    /// What is read after it.
    pub(crate) soon: Soon,
}

/// What is soon read, to be asked for line by line while something else is met: in four places in turn, because memory gives more when it
/// is read in several places at once.
#[derive(Clone, Copy, Debug)]
#[cfg_attr(not(target_arch = "x86_64"), allow(dead_code))]
pub(crate) struct Soon {
    places: [*const u8; 4],
    /// Lines that were asked for.
    asked: usize,
    /// Lines in all.
    lines: usize,
}

impl Soon {
    /// Nothing.
    pub(crate) const NONE: Self = Self {
        places: [std::ptr::null(); 4],
        asked: 0,
        lines: 0,
    };

    /// So many lines from each place on.
    pub(crate) fn new(places: [*const u8; 4], lines: usize) -> Self {
        Self {
            places,
            asked: 0,
            lines: 4 * lines,
        }
    }

    /// The next line, if there is one.
    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    fn line(&mut self) -> Option<*const u8> {
        if self.asked == self.lines {
            return None;
        }
        let place = self.places[self.asked % 4];
        let line = place.wrapping_add(self.asked / 4 * LINE);
        self.asked += 1;
        Some(line)
    }
}

/// One query head of one token.
pub(crate) struct Query<'a> {
    /// `[key_dim]`.
    pub(crate) query: &'a [f32],
    /// Positions of the page that it sees, at least one.
    pub(crate) seen: Range<usize>,
    /// `[value_dim]`: the sum of `e^(score - largest) * value`, to be divided by [`Softmax::sum`] at the end.
    pub(crate) out: &'a mut [f32],
}

/// The running state of one query head's softmax: see [`attend`].
#[derive(Clone, Copy)]
pub(crate) struct Softmax {
    /// Largest score so far.
    pub(crate) largest: f32,
    /// Sum of `e^(score - largest)`.
    pub(crate) sum: f32,
}

// SAFETY: floats only; alignment 4.
unsafe impl Zeroed for Softmax {}

impl Softmax {
    pub(crate) const START: Self = Self {
        largest: f32::NEG_INFINITY,
        sum: 0.0,
    };
}

/// `query · key` of `POSITIONS` neighbours from `at` on; in four partial sums each.
#[inline(always)]
fn products<const FUSED: bool>(
    query: &[f32],
    all_keys: &[f32],
    stride: usize,
    at: usize,
) -> [f32; POSITIONS] {
    let mut sums = [[0f32; POSITIONS]; 4];
    let keys = &all_keys[at..];
    let (quads, rest) = (query.chunks_exact(4), query.chunks_exact(4).remainder());
    for (q, query) in quads.enumerate() {
        // One check for the four rows.
        let rows = &keys[4 * q * stride..][..3 * stride + POSITIONS];
        for (j, sums) in sums.iter_mut().enumerate() {
            let row = &rows[j * stride..][..POSITIONS];
            for i in 0..POSITIONS {
                sums[i] = fma::<FUSED>(query[j], row[i], sums[i]);
            }
        }
    }
    let done = query.len() - rest.len();
    for (d, query) in rest.iter().enumerate() {
        let row = &all_keys[(done + d) * stride + at..][..POSITIONS];
        for i in 0..POSITIONS {
            sums[0][i] = fma::<FUSED>(*query, row[i], sums[0][i]);
        }
    }
    std::array::from_fn(|i| (sums[0][i] + sums[1][i]) + (sums[2][i] + sums[3][i]))
}

/// The larger, lane by lane; an element of `lanes` stays where the other is no number.
#[inline(always)]
fn larger(lanes: &mut [f32; 16], values: &[f32]) {
    for (lane, value) in lanes.iter_mut().zip(values) {
        *lane = if *value > *lane { *value } else { *lane };
    }
}

/// The largest of sixteen that are no NaN, by halves.
#[inline(always)]
fn largest(lanes: [f32; 16]) -> f32 {
    let pick = |a: f32, b: f32| if b > a { b } else { a };
    let eight: [f32; 8] = std::array::from_fn(|i| pick(lanes[i], lanes[i + 8]));
    let four: [f32; 4] = std::array::from_fn(|i| pick(eight[i], eight[i + 4]));
    pick(pick(four[0], four[2]), pick(four[1], four[3]))
}

/// Holds scores under what they are to be held under.
#[inline(always)]
fn cap(scores: &mut [f32], soft_cap: Option<f32>) {
    if let Some(cap) = soft_cap {
        for score in scores.iter_mut() {
            *score = cap * (*score / cap).tanh();
        }
    }
}

/// Takes scores into a softmax: they become `e^(score - largest)`, and `out` is brought to the same.
#[inline(always)]
fn soften<const FUSED: bool>(scores: &mut [f32], state: &mut Softmax, out: &mut [f32]) {
    let mut lanes = [state.largest; 16];
    let parts = scores.chunks_exact(16);
    larger(&mut lanes, parts.remainder());
    parts.for_each(|part| larger(&mut lanes, part));
    let largest = largest(lanes);
    if largest > state.largest {
        let factor = exp::<FUSED>(state.largest - largest);
        state.largest = largest;
        state.sum *= factor;
        for out in out.iter_mut() {
            *out *= factor;
        }
    }
    for score in scores.iter_mut() {
        *score = exp::<FUSED>(*score - state.largest);
    }
    let mut lanes = [0f32; 16];
    for part in scores.chunks(16) {
        for (lane, score) in lanes.iter_mut().zip(part) {
            *lane += *score;
        }
    }
    state.sum += total(lanes);
}

/// Of a query that sees positions `seen`.
#[inline(always)]
fn attend_body<const FUSED: bool>(
    page: Page<'_>,
    query: Query<'_>,
    state: &mut Softmax,
    scores: &mut [f32],
) {
    let Query { query, seen, out } = query;
    let dim = out.len();
    let Held::Floats([keys, values]) = page.held else {
        unreachable!("halves are given only to who takes them")
    };
    for at in (seen.start / POSITIONS * POSITIONS..seen.end).step_by(POSITIONS) {
        let products = products::<FUSED>(query, keys, page.stride, at);
        for (score, product) in scores[at..][..POSITIONS].iter_mut().zip(products) {
            *score = product * page.scale;
        }
    }
    let scores = &mut scores[seen.clone()];
    cap(scores, page.soft_cap);
    soften::<FUSED>(scores, state, out);
    let values = &values[seen.start * dim..seen.end * dim];
    let (quads, rows) = (scores.chunks_exact(4), values.chunks_exact(4 * dim));
    let (rest, rest_rows) = (
        quads.remainder(),
        values[scores.len() / 4 * 4 * dim..].chunks_exact(dim),
    );
    for (score, rows) in quads.zip(rows) {
        let (a, b) = rows.split_at(2 * dim);
        let ((a, b), (c, d)) = (a.split_at(dim), b.split_at(dim));
        for i in 0..dim {
            let sum = fma::<FUSED>(score[0], a[i], out[i]);
            let sum = fma::<FUSED>(score[1], b[i], sum);
            let sum = fma::<FUSED>(score[2], c[i], sum);
            out[i] = fma::<FUSED>(score[3], d[i], sum);
        }
    }
    for (score, row) in rest.iter().zip(rest_rows) {
        for (out, value) in out.iter_mut().zip(row) {
            *out = fma::<FUSED>(*score, *value, *out);
        }
    }
}

per_isa! {
    fn attend_alone = attend_body(page: Page<'_>, query: Query<'_>, state: &mut Softmax, scores: &mut [f32])
}

/// Each query by itself.
fn one_by_one<'a>(
    isa: Isa,
    page: Page<'_>,
    mut query: impl FnMut(usize) -> Query<'a>,
    states: &mut [Softmax],
    scores: &mut [f32],
) {
    for (index, state) in states.iter_mut().enumerate() {
        attend_alone(isa, page, query(index), state, scores);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Bit for bit, whatever each sees.
        #[test]
        fn queries_together_are_as_each_alone(
            dims in (1usize..=9, 1usize..=9),
            size in 1usize..=40,
            seen in prop::collection::vec((0usize..40, 1usize..40), 4),
            soft_cap in prop::option::of(5f32..50.0),
            seed in any::<u32>(),
        ) {
            let (key_dim, value_dim) = (dims.0 * 9, dims.1 * 11);
            let stride = size.next_multiple_of(POSITIONS);
            let mut state = seed;
            let mut numbers = |count: usize| -> Vec<f32> {
                (0..count).map(|_| {
                    state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                    (state >> 8) as f32 / (1 << 23) as f32 - 1.0
                }).collect()
            };
            let (keys, values) = (numbers(key_dim * stride), numbers(size * value_dim));
            let halves = [&keys, &values].map(|all| all.iter().map(|x| half::f16::from_f32(*x).to_bits()).collect::<Vec<_>>());
            let page = Page { held: Held::Floats([&keys, &values]), stride, scale: 0.3, soft_cap, soon: Soon::new([keys.as_ptr().cast(); 4], 7) };
            let heads: Vec<_> = (0..4).map(|_| numbers(key_dim)).collect();
            let before: Vec<_> = (0..4).map(|_| numbers(value_dim)).collect();
            let seen: Vec<Range<usize>> = seen.into_iter().map(|(from, count)| {
                let from = from % size;
                from..(from + count).min(size)
            }).collect();
            let rounded = halves.each_ref().map(|all| {
                all.iter().map(|bits| half::f16::from_bits(*bits).to_f32()).collect::<Vec<_>>()
            });
            for isa in Isa::ALL.into_iter().filter(|isa| isa.is_supported()) {
                let run = |held: Held<'_>, which: Range<usize>| {
                    let page = Page { held, ..page };
                    let mut outs = before[which.clone()].to_vec();
                    let mut states = vec![Softmax { largest: 0.25, sum: 1.5 }; which.len()];
                    let mut scores = vec![f32::NAN; which.len() * stride];
                    let mut rest = outs.iter_mut();
                    let query = |i: usize| Query {
                        query: &heads[which.start + i],
                        seen: seen[which.start + i].clone(),
                        out: rest.next().unwrap(),
                    };
                    attend(isa, page, query, &mut states, &mut scores);
                    (outs, states.iter().map(|state| [state.largest, state.sum]).collect::<Vec<_>>())
                };
                let alone: Vec<_> = (0..4).map(|q| {
                    let (mut outs, mut states) = (vec![before[q].clone()], vec![Softmax { largest: 0.25, sum: 1.5 }]);
                    let mut scores = vec![f32::NAN; stride];
                    let query = Query { query: &heads[q], seen: seen[q].clone(), out: &mut outs[0] };
                    attend_alone(isa, page, query, &mut states[0], &mut scores);
                    (outs, states.iter().map(|state| [state.largest, state.sum]).collect::<Vec<_>>())
                }).collect();
                for count in 1..=queries_at_once(isa) {
                    let (outs, states) = run(page.held, 0..count);
                    for q in 0..count {
                        prop_assert_eq!(&outs[q], &alone[q].0[0], "{:?}", isa);
                        prop_assert_eq!(states[q], alone[q].1[0]);
                    }
                    if takes_halves(isa) {
                        let halves = run(Held::Halves([&halves[0], &halves[1]]), 0..count);
                        let floats = run(Held::Floats([&rounded[0], &rounded[1]]), 0..count);
                        prop_assert_eq!(halves, floats, "halves are the floats that they stand for");
                    }
                }
            }
        }
    }

    #[test]
    fn scores_that_are_no_numbers_go_as_they_do_alone() {
        let (dim, size) = (16, 32);
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, f32::MAX, 0.0] {
            for (at, everywhere) in [(0, false), (17, false), (0, true)] {
                let place = |i: usize| everywhere || i % size == at;
                let keys: Vec<f32> = (0..dim * size)
                    .map(|i| if place(i) { bad } else { 0.25 })
                    .collect();
                let values = vec![0.5; size * dim];
                let page = Page {
                    held: Held::Floats([&keys, &values]),
                    stride: size,
                    scale: 1.0,
                    soft_cap: None,
                    soon: Soon::NONE,
                };
                let (query, start) = (vec![1.0; dim], Softmax::START);
                for isa in Isa::ALL.into_iter().filter(|isa| isa.is_supported()) {
                    let mut outs = [vec![0.0; dim], vec![0.0; dim]];
                    let mut alone = vec![0.0; dim];
                    let mut scores = vec![0.0; 2 * size];
                    let (mut states, mut state) = ([start; 2], start);
                    let of = |out| Query {
                        query: &query,
                        seen: 0..size,
                        out,
                    };
                    let mut rest = outs.iter_mut();
                    let next = |_: usize| of(rest.next().expect("two queries"));
                    attend(isa, page, next, &mut states, &mut scores);
                    attend_alone(isa, page, of(&mut alone), &mut state, &mut scores);
                    let alike =
                        |a: f32, b: f32| a.to_bits() == b.to_bits() || a.is_nan() && b.is_nan();
                    for which in 0..2 {
                        let all = outs[which].iter().zip(&alone);
                        assert!(
                            all.clone().all(|(a, b)| alike(*a, *b)),
                            "{isa:?} {bad} {all:?}"
                        );
                        assert!(alike(states[which].sum, state.sum), "{isa:?} {bad}");
                        assert!(alike(states[which].largest, state.largest), "{isa:?} {bad}");
                    }
                }
            }
        }
    }
}
