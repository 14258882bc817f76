//! Everything but the products with weights: plain loops that the compiler turns into vectors, once per instruction set.
//!
//! Every element's result depends on its own operands only, never on its place in a vector or on what else is in the
//! batch; sums run in 16 fixed partial sums.

use backplane_program::{Activation, RopeStyle};

/// `a * b + c`, fused where that is one instruction.
#[inline(always)]
pub(crate) fn fma<const FUSED: bool>(a: f32, b: f32, c: f32) -> f32 {
    if FUSED { a.mul_add(b, c) } else { a * b + c }
}

/// Sum of 16 partial sums, always in the same order.
#[inline(always)]
pub(crate) fn total(lanes: [f32; 16]) -> f32 {
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
pub(crate) fn dot<const FUSED: bool>(a: &[f32], b: &[f32]) -> f32 {
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

/// Taylor series of `e^r` to degree 7 around 0, for `|r| <= ln 2 / 2`, the highest power first.
pub(crate) const EXP_SERIES: [f32; 8] = [
    1.0 / 5040.0,
    1.0 / 720.0,
    1.0 / 120.0,
    1.0 / 24.0,
    1.0 / 6.0,
    0.5,
    1.0,
    1.0,
];

/// `e^x` with a relative error below 3e-7; below -87 it stays at about 1e-38, above 88.3 at about 2e38.
#[inline(always)]
pub(crate) fn exp<const FUSED: bool>(x: f32) -> f32 {
    const ROUNDER: f32 = 12_582_912.0;
    let x = if x > 88.3 { 88.3 } else { x };
    let x = if x < -87.0 { -87.0 } else { x };
    let shifted = fma::<FUSED>(x, std::f32::consts::LOG2_E, ROUNDER);
    let n = shifted - ROUNDER;
    // ln 2 in two parts: the first has few enough bits that n times it is exact.
    let r = fma::<FUSED>(n, -0.693_359_4, x);
    let r = fma::<FUSED>(n, 2.121_944_4e-4, r);
    let mut p = EXP_SERIES[0];
    for factor in &EXP_SERIES[1..] {
        p = fma::<FUSED>(p, r, *factor);
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
fn add_scaled_body<const FUSED: bool>(x: &[f32], factor: f32, out: &mut [f32]) {
    for (out, x) in out.iter_mut().zip(x) {
        *out = fma::<FUSED>(factor, *x, *out);
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
    /// Adds `x * factor` to what is there.
    fn add_scaled = add_scaled_body(x: &[f32], factor: f32, out: &mut [f32])
}
per_isa! {
    /// `x * factor`.
    fn scale = scale_body(x: &[f32], factor: f32, out: &mut [f32])
}
per_isa! {
    /// Turns every head of one row.
    fn rope = rope_body(x: &[f32], turn: Turn<'_>, style: RopeStyle, head_dim: usize, out: &mut [f32])
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
