//! Everything but the products with weights: plain loops that the compiler turns into vectors, once per instruction set.
//!
//! Every element's result depends on its own operands only, never on its place in a vector or on what else is in the
//! batch; sums run in 16 fixed partial sums.

use backplane_program::{Activation, RopeStyle};

/// `a * b + c`, fused where that is one instruction.
#[inline(always)]
fn fma<const FUSED: bool>(a: f32, b: f32, c: f32) -> f32 {
    if FUSED { a.mul_add(b, c) } else { a * b + c }
}

/// Sum of 16 partial sums, always in the same order.
#[inline(always)]
fn total(lanes: [f32; 16]) -> f32 {
    let mut lanes = lanes;
    for width in [8, 4, 2, 1] {
        for i in 0..width {
            lanes[i] += lanes[i + width];
        }
    }
    lanes[0]
}

/// Dot product in 16 partial sums.
#[inline(always)]
fn dot<const FUSED: bool>(a: &[f32], b: &[f32]) -> f32 {
    let mut lanes = [0f32; 16];
    let (a, b) = (a.chunks_exact(16), b.chunks_exact(16));
    let (rest_a, rest_b) = (a.remainder(), b.remainder());
    for (a, b) in a.zip(b) {
        for i in 0..16 {
            lanes[i] = fma::<FUSED>(a[i], b[i], lanes[i]);
        }
    }
    for (lane, (a, b)) in lanes.iter_mut().zip(rest_a.iter().zip(rest_b)) {
        *lane = fma::<FUSED>(*a, *b, *lane);
    }
    total(lanes)
}

/// `e^x` with a relative error below 3e-7; below -87 it stays at about 1e-38, above 88.3 at about 2e38.
#[inline(always)]
fn exp<const FUSED: bool>(x: f32) -> f32 {
    const ROUNDER: f32 = 12_582_912.0;
    let x = if x > 88.3 { 88.3 } else { x };
    let x = if x < -87.0 { -87.0 } else { x };
    let shifted = fma::<FUSED>(x, std::f32::consts::LOG2_E, ROUNDER);
    let n = shifted - ROUNDER;
    // ln 2 in two parts: the first has few enough bits that n times it is exact.
    let r = fma::<FUSED>(n, -0.693_359_4, x);
    let r = fma::<FUSED>(n, 2.121_944_4e-4, r);
    // Taylor series to degree 7 around 0 for |r| <= ln 2 / 2.
    let mut p = 1.0 / 5040.0;
    for factor in [
        1.0 / 720.0,
        1.0 / 120.0,
        1.0 / 24.0,
        1.0 / 6.0,
        0.5,
        1.0,
        1.0,
    ] {
        p = fma::<FUSED>(p, r, factor);
    }
    let exponent = (shifted.to_bits() << 23).wrapping_add(127 << 23);
    p * f32::from_bits(exponent)
}

#[inline(always)]
fn rms_norm_body<const FUSED: bool>(x: &[f32], gain: &[f32], eps: f32, out: &mut [f32]) {
    let group = gain.len();
    for (x, out) in x.chunks_exact(group).zip(out.chunks_exact_mut(group)) {
        let mean = dot::<FUSED>(x, x) / group as f32;
        let scale = 1.0 / (mean + eps).sqrt();
        for ((out, x), gain) in out.iter_mut().zip(x).zip(gain) {
            *out = x * scale * gain;
        }
    }
}

#[inline(always)]
fn gated_body<const FUSED: bool>(
    gate: &[f32],
    up: &[f32],
    activation: Activation,
    out: &mut [f32],
) {
    match activation {
        Activation::Silu => {
            for ((out, x), up) in out.iter_mut().zip(gate).zip(up) {
                *out = x / (1.0 + exp::<FUSED>(-x)) * up;
            }
        }
        // 0.5 (1 + tanh u) = 1 / (1 + e^-2u)
        Activation::GeluTanh => {
            let root = 2.0 * (2.0 / std::f32::consts::PI).sqrt();
            for ((out, x), up) in out.iter_mut().zip(gate).zip(up) {
                let u = root * (x * fma::<FUSED>(0.044_715 * x, *x, 1.0));
                *out = x / (1.0 + exp::<FUSED>(-u)) * up;
            }
        }
    }
}

#[inline(always)]
fn add_body<const FUSED: bool>(a: &[f32], b: &[f32], out: &mut [f32]) {
    for ((out, a), b) in out.iter_mut().zip(a).zip(b) {
        *out = a + b;
    }
}

#[inline(always)]
fn scale_body<const FUSED: bool>(x: &[f32], factor: f32, out: &mut [f32]) {
    for (out, x) in out.iter_mut().zip(x) {
        *out = x * factor;
    }
}

/// Cosine and sine of every pair of one position, magnitude included: `[pairs]` each.
#[derive(Clone, Copy)]
pub(crate) struct Turn<'a> {
    pub(crate) cos: &'a [f32],
    pub(crate) sin: &'a [f32],
}

#[inline(always)]
fn rope_body<const FUSED: bool>(
    x: &[f32],
    turn: Turn<'_>,
    style: RopeStyle,
    head_dim: usize,
    out: &mut [f32],
) {
    let pairs = turn.cos.len();
    for (x, out) in x.chunks_exact(head_dim).zip(out.chunks_exact_mut(head_dim)) {
        match style {
            RopeStyle::Interleaved => {
                let heads = x.chunks_exact(2).zip(out.chunks_exact_mut(2));
                for ((x, out), (cos, sin)) in heads.zip(turn.cos.iter().zip(turn.sin)) {
                    out[0] = x[0] * cos - x[1] * sin;
                    out[1] = x[0] * sin + x[1] * cos;
                }
            }
            RopeStyle::Halves => {
                let (a, b) = x[..2 * pairs].split_at(pairs);
                let (out_a, out_b) = out[..2 * pairs].split_at_mut(pairs);
                for i in 0..pairs {
                    out_a[i] = a[i] * turn.cos[i] - b[i] * turn.sin[i];
                    out_b[i] = a[i] * turn.sin[i] + b[i] * turn.cos[i];
                }
            }
        }
        out[2 * pairs..].copy_from_slice(&x[2 * pairs..]);
    }
}

/// Positions that attention takes at once: pages are made up to a multiple.
pub(crate) const POSITIONS: usize = 16;

/// What one query head sees of a page.
pub(crate) struct Page<'a> {
    /// `[key_dim, stride]`.
    pub(crate) keys: &'a [f32],
    /// Positions made up to a multiple of [`POSITIONS`].
    pub(crate) stride: usize,
    /// `[positions, value_dim]`.
    pub(crate) values: &'a [f32],
    /// First position seen.
    pub(crate) from: usize,
    /// One past the last.
    pub(crate) to: usize,
}

/// The running state of one query head's softmax: see [`attend`].
#[derive(Clone, Copy)]
pub(crate) struct Softmax {
    /// Largest score so far.
    pub(crate) largest: f32,
    /// Sum of `e^(score - largest)`.
    pub(crate) sum: f32,
}

impl Softmax {
    pub(crate) const START: Self = Self {
        largest: f32::NEG_INFINITY,
        sum: 0.0,
    };
}

/// `query · key` of `POSITIONS` neighbours from `at` on; in four partial sums each.
#[inline(always)]
fn products<const FUSED: bool>(query: &[f32], page: &Page<'_>, at: usize) -> [f32; POSITIONS] {
    let mut sums = [[0f32; POSITIONS]; 4];
    let keys = &page.keys[at..];
    let (quads, rest) = (query.chunks_exact(4), query.chunks_exact(4).remainder());
    for (q, query) in quads.enumerate() {
        // One check for the four rows.
        let rows = &keys[4 * q * page.stride..][..3 * page.stride + POSITIONS];
        for (j, sums) in sums.iter_mut().enumerate() {
            let row = &rows[j * page.stride..][..POSITIONS];
            for i in 0..POSITIONS {
                sums[i] = fma::<FUSED>(query[j], row[i], sums[i]);
            }
        }
    }
    let done = query.len() - rest.len();
    for (d, query) in rest.iter().enumerate() {
        let row = &page.keys[(done + d) * page.stride + at..][..POSITIONS];
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

#[inline(always)]
fn attend_body<const FUSED: bool>(
    query: &[f32],
    page: Page<'_>,
    scale: f32,
    soft_cap: Option<f32>,
    scores: &mut [f32],
    state: &mut Softmax,
    out: &mut [f32],
) {
    let first = page.from / POSITIONS * POSITIONS;
    for (block, scores) in scores[..page.to.next_multiple_of(POSITIONS)]
        .chunks_exact_mut(POSITIONS)
        .enumerate()
        .skip(first / POSITIONS)
    {
        let products = products::<FUSED>(query, &page, block * POSITIONS);
        for (score, product) in scores.iter_mut().zip(products) {
            *score = product * scale;
        }
    }
    let scores = &mut scores[page.from..page.to];
    if let Some(cap) = soft_cap {
        for score in scores.iter_mut() {
            *score = cap * (*score / cap).tanh();
        }
    }
    let mut lanes = [state.largest; 16];
    let parts = scores.chunks_exact(16);
    larger(&mut lanes, parts.remainder());
    parts.for_each(|part| larger(&mut lanes, part));
    let largest = lanes
        .into_iter()
        .fold(state.largest, |a, b| if b > a { b } else { a });
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
    let values = &page.values[page.from * out.len()..page.to * out.len()];
    let dim = out.len();
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
    /// RMS norm over groups of `gain.len()` neighbours of one row.
    fn rms_norm = rms_norm_body(x: &[f32], gain: &[f32], eps: f32, out: &mut [f32])
}
per_isa! {
    /// `activation(gate) * up`: relative error below 2e-6.
    fn gated = gated_body(gate: &[f32], up: &[f32], activation: Activation, out: &mut [f32])
}
per_isa! {
    /// `a + b`.
    fn add = add_body(a: &[f32], b: &[f32], out: &mut [f32])
}
per_isa! {
    /// `x * factor`.
    fn scale = scale_body(x: &[f32], factor: f32, out: &mut [f32])
}
per_isa! {
    /// Turns every head of one row.
    fn rope = rope_body(x: &[f32], turn: Turn<'_>, style: RopeStyle, head_dim: usize, out: &mut [f32])
}
per_isa! {
    /// Takes the next positions, within one page, into a query head's attention. `scores` is scratch, `[stride]`. `out` holds the
    /// sum of `e^(score - largest) * value`, to be divided by [`Softmax::sum`] at the end. What comes out depends on where
    /// the parts are cut, so callers cut at page ends only.
    fn attend = attend_body(query: &[f32], page: Page<'_>, scale: f32, soft_cap: Option<f32>, scores: &mut [f32],
        state: &mut Softmax, out: &mut [f32])
}

/// `cap * tanh(x / cap)`.
pub(crate) fn soft_cap(x: &[f32], cap: f32, out: &mut [f32]) {
    for (out, x) in out.iter_mut().zip(x) {
        *out = cap * (x / cap).tanh();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::isa::Isa;

    #[inline(always)]
    fn exp_all_body<const FUSED: bool>(x: &mut [f32]) {
        for x in x {
            *x = exp::<FUSED>(*x);
        }
    }

    per_isa! {
        /// `e^x` of every element: relative error below 3e-7 for `-87 <= x <= 88.3`, held at the ends' values outside.
        fn exp_all = exp_all_body(x: &mut [f32])
    }

    fn isas() -> impl Iterator<Item = Isa> {
        Isa::ALL.into_iter().filter(|isa| isa.is_supported())
    }

    #[test]
    fn exponentials_keep_their_stated_error() {
        let inputs: Vec<f32> = (-86_999..88_300)
            .step_by(7)
            .map(|x| x as f32 * 1e-3)
            .chain([0.0, -0.0, 1e-20])
            .collect();
        for isa in isas() {
            let mut outputs = inputs.clone();
            exp_all(isa, &mut outputs);
            for (x, y) in inputs.iter().zip(&outputs) {
                let exact = f64::from(*x).exp();
                assert!(
                    (f64::from(*y) / exact - 1.0).abs() < 3e-7,
                    "{isa:?}: exp({x}) = {y}, exactly {exact}"
                );
            }
            let mut ends = [-1e30, f32::NEG_INFINITY, 1e30, f32::INFINITY];
            exp_all(isa, &mut ends);
            assert!(ends[0] < 2e-38 && ends[1] < 2e-38 && ends[2] > 1e38 && ends[3].is_finite());
        }
    }

    #[test]
    fn activations_keep_their_stated_error() {
        let gate: Vec<f32> = (-9_000..9_000).map(|x| x as f32 * 1e-3).collect();
        let up = vec![1.0; gate.len()];
        for isa in isas() {
            for activation in [Activation::Silu, Activation::GeluTanh] {
                let mut out = vec![0.0; gate.len()];
                gated(isa, &gate, &up, activation, &mut out);
                for (x, y) in gate.iter().zip(&out) {
                    let x = f64::from(*x);
                    let u = match activation {
                        Activation::Silu => x,
                        Activation::GeluTanh => {
                            2.0 * (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x * x * x)
                        }
                    };
                    let exact = x / (1.0 + (-u).exp());
                    // The error of u in f32 grows with its size, and e^-u passes it on.
                    let bound = 2e-6 * exact.abs() * (1.0 + u.abs() / 8.0) + 1e-37;
                    assert!(
                        (f64::from(*y) - exact).abs() <= bound,
                        "{isa:?} {activation:?}({x}) = {y}, exactly {exact}"
                    );
                }
            }
        }
    }

    #[test]
    fn an_element_does_not_depend_on_its_neighbours() {
        let gate: Vec<f32> = (0..77).map(|x| (x as f32 * 0.37).sin() * 4.0).collect();
        for isa in isas() {
            let mut whole = vec![0.0; gate.len()];
            gated(isa, &gate, &gate, Activation::Silu, &mut whole);
            for i in 0..gate.len() {
                let mut one = [0.0];
                gated(isa, &gate[i..=i], &gate[i..=i], Activation::Silu, &mut one);
                assert_eq!(one[0].to_bits(), whole[i].to_bits(), "{isa:?} at {i}");
            }
        }
    }
}
