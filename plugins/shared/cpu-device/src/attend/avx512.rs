//! Several queries at once with AVX-512: a page's keys and values are read once for up to four of them, and their sums stay in
//! registers. Every sum is taken in the order of the plain code, so that both agree bit for bit.

// Queries and vectors are indices into several arrays at once.
#![allow(clippy::needless_range_loop)]

use super::{Held, LINE, MOST_QUERIES, POSITIONS, Page, Query, Softmax, Soon, cap, one_by_one};
use crate::isa::Isa;
use crate::kernels::total;
use crate::vector;
use std::arch::x86_64::*;
use std::array::from_fn;
use std::ops::Range;

/// Queries that one call of [`attend`] takes best: as many as have their sums in registers.
pub(crate) fn queries_at_once(isa: Isa) -> usize {
    match isa {
        Isa::Avx512 => MOST_QUERIES,
        Isa::Scalar | Isa::Neon | Isa::Avx2 => 1,
    }
}

/// Whether [`attend`] takes keys and values as halves.
pub(crate) fn takes_halves(isa: Isa) -> bool {
    isa == Isa::Avx512
}

/// How keys and values are stored.
trait Stored: Copy {
    /// Sixteen of them, of which those of `mask` are read.
    ///
    /// # Safety
    /// Those of `mask` lie at `at`, and the processor has AVX-512 F, BW, VL.
    unsafe fn load(at: *const Self, mask: __mmask16) -> __m512;
}

impl Stored for f32 {
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl")]
    unsafe fn load(at: *const Self, mask: __mmask16) -> __m512 {
        // SAFETY: the caller's promise.
        unsafe { _mm512_maskz_loadu_ps(mask, at) }
    }
}

/// A half-precision number's bits.
impl Stored for u16 {
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl")]
    unsafe fn load(at: *const Self, mask: __mmask16) -> __m512 {
        // SAFETY: the caller's promise.
        _mm512_cvtph_ps(unsafe { _mm256_maskz_loadu_epi16(mask, at.cast()) })
    }
}

/// Floats of a vector.
const LANES: usize = 16;

/// Takes the next positions, within one page, into the attention of query heads that read the same keys, one for each of
/// `states`, at most [`queries_at_once`]. `scores` is scratch, `[queries, stride]`. What comes out for one doesn't depend on the
/// others; it depends on where the positions are cut, so callers cut at page ends only.
pub(crate) fn attend<'a>(
    isa: Isa,
    page: Page<'_>,
    query: impl FnMut(usize) -> Query<'a>,
    states: &mut [Softmax],
    scores: &mut [f32],
) {
    if isa != Isa::Avx512 {
        return one_by_one(isa, page, query, states, scores);
    }
    match page.held {
        Held::Floats(held) => some(page, held, query, states, scores),
        Held::Halves(held) => some(page, held, query, states, scores),
    }
}

/// One to four queries. Only where the instruction set is [`Isa::Avx512`].
fn some<'a, T: Stored>(
    page: Page<'_>,
    held: [&[T]; 2],
    query: impl FnMut(usize) -> Query<'a>,
    states: &mut [Softmax],
    scores: &mut [f32],
) {
    // SAFETY: the functions need AVX-512 F, BW, DQ and VL, AVX2, FMA and F16C, and nothing else: this is `Isa::Avx512`, which an
    // executable carries only after `Isa::is_supported` has found them.
    unsafe {
        match states.len() {
            1 => together::<T, 1>(page, held, from_fn(query), states, scores),
            2 => together::<T, 2>(page, held, from_fn(query), states, scores),
            3 => together::<T, 3>(page, held, from_fn(query), states, scores),
            4 => together::<T, 4>(page, held, from_fn(query), states, scores),
            other => unreachable!("{other} queries at once"),
        }
    }
}

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
fn together<T: Stored, const Q: usize>(
    page: Page<'_>,
    [keys, values]: [&[T]; 2],
    mut queries: [Query<'_>; Q],
    states: &mut [Softmax],
    scores: &mut [f32],
) {
    let (stride, value_dim) = (page.stride, queries[0].out.len());
    let (mut first, mut end, mut all_from, mut all_to) = (usize::MAX, 0, 0, usize::MAX);
    for Query { seen, .. } in &queries {
        (first, end) = (first.min(seen.start), end.max(seen.end));
        (all_from, all_to) = (all_from.max(seen.start), all_to.min(seen.end));
    }
    let heads: [&[f32]; Q] = from_fn(|q| queries[q].query);
    let (mut soon, mut nothing) = (page.soon, Soon::NONE);
    for at in (first / POSITIONS * POSITIONS..end).step_by(POSITIONS) {
        let products = products(heads, (keys, stride), at, &mut soon);
        for (scores, products) in scores.chunks_exact_mut(stride).zip(products) {
            let scores = &mut scores[at..][..POSITIONS];
            let scaled = _mm512_mul_ps(products, _mm512_set1_ps(page.scale));
            // SAFETY: sixteen floats are written to sixteen.
            unsafe { _mm512_storeu_ps(scores.as_mut_ptr(), scaled) };
        }
    }
    let rows = scores.chunks_exact_mut(stride).zip(states);
    for (query, (scores, state)) in queries.iter_mut().zip(rows) {
        let scores = &mut scores[query.seen.clone()];
        cap(scores, page.soft_cap);
        soften(scores, state, query.out);
    }
    // Position after position for each, so that it makes no difference which others there are: what not all see, before and
    // after what all do, is added to each by itself.
    let all = all_from..all_to.max(all_from);
    let rows: [&[f32]; Q] = from_fn(|q| &scores[q * stride..][..stride]);
    let seen = queries.each_ref().map(|query| query.seen.clone());
    let mut outs = queries.map(|query| query.out);
    let values =
        |positions: &Range<usize>| &values[positions.start * value_dim..positions.end * value_dim];
    for q in 0..Q {
        let before = seen[q].start..all.start.min(seen[q].end);
        add_values(
            [&rows[q][before.clone()]],
            values(&before),
            [&mut *outs[q]],
            &mut nothing,
        );
    }
    let together = rows.map(|row| &row[all.clone()]);
    add_values(
        together,
        values(&all),
        outs.each_mut().map(|out| &mut **out),
        &mut soon,
    );
    // Where few positions are seen, more is left.
    while ask(&mut soon) {}
    for q in 0..Q {
        let after = all.end.min(seen[q].end)..seen[q].end;
        add_values(
            [&rows[q][after.clone()]],
            values(&after),
            [&mut *outs[q]],
            &mut nothing,
        );
    }
}

/// As the plain [`soften`](super::soften), operation by operation.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")]
fn soften(scores: &mut [f32], state: &mut Softmax, out: &mut [f32]) {
    let mut most = _mm512_set1_ps(state.largest);
    for part in scores.chunks(LANES) {
        let there = first_lanes(part.len());
        // SAFETY: as many as the mask has.
        let part = unsafe { _mm512_maskz_loadu_ps(there, part.as_ptr()) };
        // The second of the two where one is no number.
        most = _mm512_mask_max_ps(most, there, part, most);
    }
    let largest = _mm512_reduce_max_ps(most);
    if largest > state.largest {
        let factor = vector::exp::<true>(state.largest - largest);
        state.largest = largest;
        state.sum *= factor;
        for part in out.chunks_mut(LANES) {
            let there = first_lanes(part.len());
            // SAFETY: as many as the mask has.
            unsafe {
                let scaled = _mm512_maskz_loadu_ps(there, part.as_ptr());
                let scaled = _mm512_mul_ps(scaled, _mm512_set1_ps(factor));
                _mm512_mask_storeu_ps(part.as_mut_ptr(), there, scaled);
            }
        }
    }
    let mut sums = _mm512_setzero_ps();
    for part in scores.chunks_mut(LANES) {
        let there = first_lanes(part.len());
        // SAFETY: as many as the mask has.
        unsafe {
            let scores = _mm512_maskz_loadu_ps(there, part.as_ptr());
            let scores = exp(_mm512_sub_ps(scores, _mm512_set1_ps(state.largest)));
            _mm512_mask_storeu_ps(part.as_mut_ptr(), there, scores);
            sums = _mm512_mask_add_ps(sums, there, sums, scores);
        }
    }
    state.sum += total(sums);
}

/// The first lanes of a vector, at most all.
#[inline(always)]
fn first_lanes(count: usize) -> __mmask16 {
    match count {
        0..LANES => (1 << count) - 1,
        _ => !0,
    }
}

/// As [`vector::exp`], lane by lane.
#[inline]
#[target_feature(enable = "avx512f")]
fn exp(x: __m512) -> __m512 {
    let all = |x: f32| _mm512_set1_ps(x);
    // The second of the two where one is no number.
    let x = _mm512_max_ps(all(-87.0), _mm512_min_ps(all(88.3), x));
    let rounder = all(12_582_912.0);
    let shifted = _mm512_fmadd_ps(x, all(std::f32::consts::LOG2_E), rounder);
    let n = _mm512_sub_ps(shifted, rounder);
    let r = _mm512_fmadd_ps(n, all(-0.693_359_4), x);
    let r = _mm512_fmadd_ps(n, all(2.121_944_4e-4), r);
    let mut p = all(vector::EXP_SERIES[0]);
    for factor in &vector::EXP_SERIES[1..] {
        p = _mm512_fmadd_ps(p, r, all(*factor));
    }
    let exponent = _mm512_slli_epi32::<23>(_mm512_castps_si512(shifted));
    let exponent = _mm512_add_epi32(exponent, _mm512_set1_epi32(127 << 23));
    _mm512_mul_ps(p, _mm512_castsi512_ps(exponent))
}

/// Asks for the next line; whether there was one.
#[inline(always)]
fn ask(soon: &mut Soon) -> bool {
    let line = soon.line();
    if let Some(line) = line {
        // SAFETY: every x86-64 processor can, and the address need not be one of ours.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(line.cast()) };
    }
    line.is_some()
}

/// `query · key` of sixteen neighbours from `at` on; in four partial sums each.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
fn products<T: Stored, const Q: usize>(
    queries: [&[f32]; Q],
    (keys, stride): (&[T], usize),
    at: usize,
    soon: &mut Soon,
) -> [__m512; Q] {
    let dim = queries[0].len();
    let queries = queries.map(|query| query[..dim].as_ptr());
    // What is read below, from the first row to the last.
    let keys = keys[at..][..dim.saturating_sub(1) * stride + LANES].as_ptr();
    // Two vectors of halves are a line.
    let each = size_of::<T>() * LANES == LINE;
    let mut sums = [[_mm512_setzero_ps(); 4]; Q];
    let mut d = 0;
    // SAFETY: elements of the queries below `dim`, and sixteen of a row of keys below it: these lie in `keys`, by its length.
    unsafe {
        while d + 4 <= dim {
            for j in 0..4 {
                let row = keys.add((d + j) * stride);
                if each || j % 2 == 0 {
                    ask(soon);
                }
                let row = T::load(row, !0);
                for q in 0..Q {
                    let query = _mm512_set1_ps(queries[q].add(d + j).read());
                    sums[q][j] = _mm512_fmadd_ps(query, row, sums[q][j]);
                }
            }
            d += 4;
        }
        while d < dim {
            let row = keys.add(d * stride);
            ask(soon);
            let row = T::load(row, !0);
            for q in 0..Q {
                let query = _mm512_set1_ps(queries[q].add(d).read());
                sums[q][0] = _mm512_fmadd_ps(query, row, sums[q][0]);
            }
            d += 1;
        }
    }
    let mut all = [_mm512_setzero_ps(); Q];
    for q in 0..Q {
        let [a, b, c, d] = sums[q];
        all[q] = _mm512_add_ps(_mm512_add_ps(a, b), _mm512_add_ps(c, d));
    }
    all
}

/// Adds the values of positions, each times its score.
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
fn add_values<T: Stored, const Q: usize>(
    scores: [&[f32]; Q],
    values: &[T],
    mut outs: [&mut [f32]; Q],
    soon: &mut Soon,
) {
    let (dim, count) = (outs[0].len(), scores[0].len());
    if count == 0 {
        return;
    }
    assert!(values.len() == count * dim, "values of every position");
    let outs = outs.each_mut().map(|out| &mut out[..dim]);
    let scores = scores.map(|scores| &scores[..count]);
    let outs = outs.map(|out| out.as_mut_ptr());
    let mut at = 0;
    // SAFETY: so many elements are read from each row of `values`, of which there are `count` of `dim`, and from and to each
    // output of `dim`, from `at` on.
    unsafe {
        while dim - at >= 4 * LANES {
            add_vectors::<T, Q, 4>(scores, (values.as_ptr(), dim), at, outs, !0, soon);
            at += 4 * LANES;
        }
        while dim - at >= LANES {
            add_vectors::<T, Q, 1>(scores, (values.as_ptr(), dim), at, outs, !0, soon);
            at += LANES;
        }
        if at < dim {
            let mask = (1 << (dim - at)) - 1;
            add_vectors::<T, Q, 1>(scores, (values.as_ptr(), dim), at, outs, mask, soon);
        }
    }
}

/// `V` vectors of the outputs, from element `at` on; of each vector the elements of `mask`.
///
/// # Safety
/// `values` points to `dim` elements for each of the scores, of which there are as many for each query, each of `outs` to `dim` floats;
/// the elements are among them.
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
unsafe fn add_vectors<T: Stored, const Q: usize, const V: usize>(
    scores: [&[f32]; Q],
    (values, dim): (*const T, usize),
    at: usize,
    outs: [*mut f32; Q],
    mask: __mmask16,
    soon: &mut Soon,
) {
    let (count, scores) = (scores[0].len(), scores.map(<[f32]>::as_ptr));
    let mut sums = [[_mm512_setzero_ps(); V]; Q];
    // SAFETY: the caller's promise, for every load and store here.
    unsafe {
        for q in 0..Q {
            for v in 0..V {
                sums[q][v] = _mm512_maskz_loadu_ps(mask, outs[q].add(at + v * LANES));
            }
        }
        for position in 0..count {
            let row = values.add(position * dim + at);
            let mut vectors = [_mm512_setzero_ps(); V];
            for v in 0..V {
                let part = row.add(v * LANES);
                // Two vectors of halves are a line.
                if size_of::<T>() * LANES == LINE || v % 2 == 0 {
                    ask(soon);
                }
                vectors[v] = T::load(part, mask);
            }
            for q in 0..Q {
                let score = _mm512_set1_ps(scores[q].add(position).read());
                for v in 0..V {
                    sums[q][v] = _mm512_fmadd_ps(score, vectors[v], sums[q][v]);
                }
            }
        }
        for q in 0..Q {
            for v in 0..V {
                _mm512_mask_storeu_ps(outs[q].add(at + v * LANES), mask, sums[q][v]);
            }
        }
    }
}
