//! Pages of other types made `f32`, and elements stored as those types.

use super::POSITIONS;
use crate::dispatch::{floats, halves};
use half::f16;

#[inline(always)]
fn round_q8_0_body<const FUSED: bool>(x: &[f32; 32]) -> ([i8; 32], u16) {
    let mut largest = 0f32;
    for x in x {
        let magnitude = x.abs();
        largest = if magnitude > largest {
            magnitude
        } else {
            largest
        };
    }
    let scale = largest / 127.0;
    let inverse = if scale > 0.0 { 1.0 / scale } else { 0.0 };
    let codes = x.map(|x| (x * inverse).round() as i8);
    (codes, f16::from_f32(scale).to_bits())
}

#[inline(always)]
fn widen_f16_body<const FUSED: bool>(stored: &[u16], out: &mut [f32]) {
    let (parts, rest) = stored.as_chunks::<16>();
    let (out_parts, out_rest) = out.as_chunks_mut::<16>();
    for (out, part) in out_parts.iter_mut().zip(parts) {
        halves::<FUSED>(part, out);
    }
    let mut part = [0; 16];
    part[..rest.len()].copy_from_slice(rest);
    let mut floats = [0.0; 16];
    halves::<FUSED>(&part, &mut floats);
    out_rest.copy_from_slice(&floats[..rest.len()]);
}

#[inline(always)]
fn narrow_f16_body<const FUSED: bool>(x: &[f32], out: &mut [u16]) {
    let (parts, rest) = x.as_chunks::<16>();
    let (out_parts, out_rest) = out.as_chunks_mut::<16>();
    for (out, part) in out_parts.iter_mut().zip(parts) {
        floats::<FUSED>(part, out);
    }
    let mut part = [0.0; 16];
    part[..rest.len()].copy_from_slice(rest);
    let mut halves = [0; 16];
    floats::<FUSED>(&part, &mut halves);
    out_rest.copy_from_slice(&halves[..rest.len()]);
}

#[inline(always)]
fn widen_q8_0_across_body<const FUSED: bool>(
    codes: &[i8],
    scales: &[u16],
    stride: usize,
    out: &mut [f32],
) {
    let blocks = codes
        .chunks_exact(32 * stride)
        .zip(out.chunks_exact_mut(32 * stride));
    for ((codes, out), scales) in blocks.zip(scales.chunks_exact(stride)) {
        for (part, stored) in scales.as_chunks::<POSITIONS>().0.iter().enumerate() {
            let mut scales = [0.0; 16];
            halves::<FUSED>(stored, &mut scales);
            let at = part * POSITIONS;
            let rows = codes.chunks_exact(stride).zip(out.chunks_exact_mut(stride));
            for (codes, out) in rows {
                let (codes, out) = (&codes[at..][..POSITIONS], &mut out[at..][..POSITIONS]);
                for i in 0..POSITIONS {
                    out[i] = f32::from(codes[i]) * scales[i];
                }
            }
        }
    }
}

#[inline(always)]
fn widen_q8_0_along_body<const FUSED: bool>(codes: &[i8], scales: &[u16], out: &mut [f32]) {
    let many = codes.chunks(32 * 16).zip(out.chunks_mut(32 * 16));
    for ((codes, out), scales) in many.zip(scales.chunks(16)) {
        let mut part = [0; 16];
        part[..scales.len()].copy_from_slice(scales);
        let mut scales = [0.0; 16];
        halves::<FUSED>(&part, &mut scales);
        let blocks = codes
            .as_chunks::<32>()
            .0
            .iter()
            .zip(out.as_chunks_mut::<32>().0);
        for ((codes, out), scale) in blocks.zip(scales) {
            for i in 0..32 {
                out[i] = f32::from(codes[i]) * scale;
            }
        }
    }
}

#[inline(always)]
fn turn_over_body<const FUSED: bool>(
    across: &[f32],
    stride: usize,
    from: usize,
    to: usize,
    out: &mut [f32],
) {
    let dim = across.len() / stride;
    for first in (0..dim).step_by(16) {
        let count = 16.min(dim - first);
        for position in from..to {
            let column = &across[first * stride + position..];
            let out = &mut out[position * dim + first..][..count];
            for (i, out) in out.iter_mut().enumerate() {
                *out = column[i * stride];
            }
        }
    }
}

per_isa! {
    /// Halves as floats.
    fn widen_f16 = widen_f16_body(stored: &[u16], out: &mut [f32])
}
per_isa! {
    /// Floats rounded to halves, to even where two are as near.
    fn narrow_f16 = narrow_f16_body(x: &[f32], out: &mut [u16])
}
per_isa! {
    /// Whole numbers `[dim, stride]` times scales in halves `[dim / 32, stride]`, as floats `[dim, stride]`.
    fn widen_q8_0_across = widen_q8_0_across_body(codes: &[i8], scales: &[u16], stride: usize, out: &mut [f32])
}
per_isa! {
    /// Whole numbers times scales in halves, one for 32 neighbours, as floats.
    fn widen_q8_0_along = widen_q8_0_along_body(codes: &[i8], scales: &[u16], out: &mut [f32])
}
per_isa! {
    /// From `[dim, stride]` to `[positions, dim]`, positions `from .. to` only.
    fn turn_over = turn_over_body(across: &[f32], stride: usize, from: usize, to: usize, out: &mut [f32])
}
per_isa! {
    /// Whole numbers and their scale, a half: see [`CacheType::Q8_0`](backplane_program::CacheType).
    fn round_q8_0 = round_q8_0_body(x: &[f32; 32]) -> ([i8; 32], u16)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::isa::Isa;
    use proptest::prelude::*;

    fn isas() -> impl Iterator<Item = Isa> {
        Isa::ALL.into_iter().filter(|isa| isa.is_supported())
    }

    #[test]
    fn every_half_is_widened_exactly() {
        let stored: Vec<u16> = (0..=u16::MAX).collect();
        for isa in isas() {
            // A length that fills no vector.
            let mut out = vec![0.0; stored.len() - 5];
            widen_f16(isa, &stored[..stored.len() - 5], &mut out);
            for (half, out) in stored.iter().zip(out) {
                let exact = f16::from_bits(*half).to_f32();
                assert!(
                    out.to_bits() == exact.to_bits() || out.is_nan() && exact.is_nan(),
                    "{isa:?}: {half:#x} is {exact}, found {out}"
                );
            }
        }
    }

    #[test]
    fn floats_are_rounded_to_the_nearest_half() {
        let mut x: Vec<f32> = (0..=u16::MAX)
            .map(|bits| f16::from_bits(bits).to_f32())
            .collect();
        // Between two halves, and a little to either side.
        for i in 0..x.len() - 1 {
            let middle = (x[i] + x[i + 1]) / 2.0;
            x.extend([middle, middle.next_up(), middle.next_down()]);
        }
        for isa in isas() {
            // A length that fills no vector.
            let x = &x[..x.len() - 5];
            let mut out = vec![0; x.len()];
            narrow_f16(isa, x, &mut out);
            for (x, out) in x.iter().zip(out) {
                let (exact, found) = (f16::from_f32(*x), f16::from_bits(out));
                assert!(
                    exact.to_bits() == out || exact.is_nan() && found.is_nan(),
                    "{isa:?}: {x} is {exact}, found {found}"
                );
            }
        }
    }

    /// By the definition, one element after the other.
    fn stored(block: &[f32; 32]) -> ([i8; 32], f16) {
        let largest = block.iter().fold(0f32, |most, x| most.max(x.abs()));
        let scale = largest / 127.0;
        let inverse = if scale == 0.0 { 0.0 } else { 1.0 / scale };
        (
            block.map(|x| (x * inverse).round() as i8),
            f16::from_f32(scale),
        )
    }

    proptest! {
        #[test]
        fn q8_0_is_rounded_and_widened_by_its_definition(
            x in prop::collection::vec(-30f32..30.0, 32 * 32 * 3),
            stride in 1usize..=2,
        ) {
            let stride = stride * POSITIONS;
            for isa in isas() {
                let blocks = x.as_chunks::<32>().0;
                let (mut codes, mut scales, mut exact) = (vec![], vec![], vec![]);
                for block in blocks {
                    let (whole, scale) = round_q8_0(isa, block);
                    let (expected, expected_scale) = stored(block);
                    prop_assert_eq!((whole, scale), (expected, expected_scale.to_bits()));
                    codes.extend(whole);
                    scales.push(scale);
                    exact.extend(whole.map(|whole| f32::from(whole) * expected_scale.to_f32()));
                }
                let mut along = vec![0.0; x.len()];
                widen_q8_0_along(isa, &codes, &scales, &mut along);
                prop_assert_eq!(&along, &exact);
                // The same numbers as `[dim, stride]`, with a scale for 32 rows.
                let dim = x.len() / stride;
                let mut across = vec![0.0; x.len()];
                let scales = &scales[..dim / 32 * stride];
                widen_q8_0_across(isa, &codes[..dim / 32 * 32 * stride], scales, stride, &mut across[..dim / 32 * 32 * stride]);
                for (i, found) in across[..dim / 32 * 32 * stride].iter().enumerate() {
                    let (row, position) = (i / stride, i % stride);
                    let scale = f16::from_bits(scales[row / 32 * stride + position]).to_f32();
                    prop_assert_eq!(*found, f32::from(codes[i]) * scale);
                }
                let mut over = vec![f32::NAN; x.len()];
                turn_over(isa, &x, stride, 3, stride - 2, &mut over);
                for (i, found) in over.iter().enumerate() {
                    let (position, element) = (i / dim, i % dim);
                    if position >= 3 && position < stride - 2 {
                        prop_assert_eq!(*found, x[element * stride + position]);
                    } else {
                        prop_assert!(found.is_nan());
                    }
                }
            }
        }
    }

    #[test]
    fn extremes_are_stored_without_harm() {
        for isa in isas() {
            assert_eq!(round_q8_0(isa, &[0.0; 32]), ([0; 32], 0));
            let mut block = [0.0; 32];
            (block[0], block[1]) = (-127.0, 63.5);
            let (codes, scale) = round_q8_0(isa, &block);
            assert_eq!((codes[0], codes[1], scale), (-127, 64, f16::ONE.to_bits()));
            for bad in [f32::NAN, f32::INFINITY, f32::MAX, f32::MIN_POSITIVE / 8.0] {
                round_q8_0(isa, &[bad; 32]);
            }
        }
    }
}
