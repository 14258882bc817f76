//! Activations as the integer dot products want them: whole numbers of 15 bits in two planes of 8, in groups that fit one
//! vector of weights.
//!
//! One plane of 8 bits is what most engines take; it costs one to six percent of perplexity on small models (measured on the
//! references' texts), while a second plane costs few instructions where decoding waits for memory anyway.

#[cfg(target_arch = "x86_64")]
mod avx512;

use crate::isa::Isa;
use crate::memory::Zeroed;

/// Largest whole number of an activation.
const LARGEST: f32 = 16_256.0;

/// 128 activations for the weight types with blocks of 32: four blocks side by side.
///
/// An activation is `scale * (128 * high + low)`. The order in a plane is that of the nibbles in a weight block:
/// `[16 b + i]` is element `i` of block `b`, and `[64 + 16 b + i]` its element `16 + i`. A *lane* is four neighbours in each
/// half; lanes `4 b .. 4 b + 4` belong to block `b`. A row that is no multiple of 128 ends in blocks of zeros.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
pub(crate) struct Group32 {
    /// `[2 halves, 4 blocks, 16]`, -127 to 127.
    pub(crate) high: [i8; 128],
    /// As `high`, -64 to 63.
    pub(crate) low: [i8; 128],
    /// Per lane: the scale of its block.
    pub(crate) scale: [f32; 16],
    /// Per lane: the sum of its eight whole numbers.
    pub(crate) sum: [f32; 16],
    /// Per lane: the sum of its block's whole numbers times the scale.
    pub(crate) total: [f32; 16],
    /// Per lane: the sum of its block's whole numbers.
    pub(crate) block_sum: [i32; 16],
}

/// 256 activations for the weight types with blocks of 256, in their own order; planes as in [`Group32`].
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
pub(crate) struct Group256 {
    /// -127 to 127.
    pub(crate) high: [i8; 256],
    /// -64 to 63.
    pub(crate) low: [i8; 256],
    /// Sums of 16 neighbours' whole numbers each.
    pub(crate) sum: [f32; 16],
    /// The scale.
    pub(crate) scale: f32,
}

/// 128 activations in their own order as plain whole numbers: the same as in [`Group32`] or [`Group256`], for kernels that multiply
/// 16 bits at a time. A row that is no multiple of 128 ends in blocks of zeros.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
pub(crate) struct Wide {
    /// Blocks of 32, -16256 to 16256.
    pub(crate) whole: [[i16; 32]; 4],
    /// Per block: the scale.
    pub(crate) scale: [f32; 4],
    /// Per block: the sum of the whole numbers times the scale.
    pub(crate) total: [f32; 4],
}

const _: () = assert!(size_of::<Group32>() == 512);
const _: () = assert!(size_of::<Group256>() == 640);

// SAFETY: integers and floats only; padding needs no value; alignment 64.
unsafe impl Zeroed for Group32 {}
// SAFETY: as above.
unsafe impl Zeroed for Group256 {}

// SAFETY: as above.
unsafe impl Zeroed for Wide {}

impl Wide {
    pub(crate) const ELEMS: usize = 128;
    /// Nothing but zeros.
    pub(crate) const ZERO: Self = Self {
        whole: [[0; 32]; 4],
        scale: [0.0; 4],
        total: [0.0; 4],
    };
}

impl Group32 {
    pub(crate) const ELEMS: usize = 128;
    /// Nothing but zeros.
    pub(crate) const ZERO: Self = Self {
        high: [0; 128],
        low: [0; 128],
        scale: [0.0; 16],
        sum: [0.0; 16],
        total: [0.0; 16],
        block_sum: [0; 16],
    };
}

impl Group256 {
    pub(crate) const ELEMS: usize = 256;
    /// Nothing but zeros.
    #[cfg(test)]
    pub(crate) const ZERO: Self = Self {
        high: [0; 256],
        low: [0; 256],
        sum: [0.0; 16],
        scale: 0.0,
    };
}

/// Adding this to a float of at most 2^22 rounds it to a whole number, ties to even, which then stands in the low bits.
const ROUNDER: f32 = 12_582_912.0;

/// Scale of a block, and its inverse.
#[inline(always)]
fn scales(x: &[f32]) -> (f32, f32) {
    let mut lanes = [0f32; 16];
    for part in x.chunks_exact(16) {
        for (lane, x) in lanes.iter_mut().zip(part) {
            let magnitude = x.abs();
            *lane = if magnitude > *lane { magnitude } else { *lane };
        }
    }
    for width in [8, 4, 2, 1] {
        for i in 0..width {
            lanes[i] = if lanes[i + width] > lanes[i] {
                lanes[i + width]
            } else {
                lanes[i]
            };
        }
    }
    let largest = lanes[0];
    (
        largest / LARGEST,
        if largest > 0.0 {
            LARGEST / largest
        } else {
            0.0
        },
    )
}

/// The nearest whole number.
#[inline(always)]
fn rounded(x: f32) -> i32 {
    (x + ROUNDER).to_bits().wrapping_sub(ROUNDER.to_bits()) as i32
}

/// A whole number as its two planes.
#[inline(always)]
fn planes(whole: i32) -> (i8, i8) {
    let upper = whole.wrapping_add(64) >> 7;
    (upper as i8, whole.wrapping_sub(upper << 7) as i8)
}

#[inline(always)]
fn quantise<const N: usize>(x: &[f32], inverse: f32, high: &mut [i8], low: &mut [i8]) {
    let (mut highs, mut lows) = ([0i8; N], [0i8; N]);
    for ((high, low), x) in highs.iter_mut().zip(&mut lows).zip(x) {
        (*high, *low) = planes(rounded(x * inverse));
    }
    high.copy_from_slice(&highs);
    low.copy_from_slice(&lows);
}

/// Sum of whole numbers.
#[inline(always)]
fn sum(high: &[i8], low: &[i8]) -> i32 {
    let sum = |plane: &[i8]| -> i32 { plane.iter().map(|value| i32::from(*value)).sum() };
    128 * sum(high) + sum(low)
}

#[inline(always)]
fn row_body32<const FUSED: bool>(x: &[f32], out: &mut [Group32]) {
    for (part, group) in x.chunks(Group32::ELEMS).zip(out) {
        if part.len() < Group32::ELEMS {
            *group = Group32::ZERO;
        }
        for (block, x) in part.chunks_exact(32).enumerate() {
            let (scale, inverse) = scales(x);
            let mut wholes = [0; 32];
            for (whole, x) in wholes.iter_mut().zip(x) {
                *whole = rounded(x * inverse);
            }
            for half in 0..2 {
                let at = 64 * half + 16 * block;
                let (mut highs, mut lows) = ([0; 16], [0; 16]);
                for i in 0..16 {
                    (highs[i], lows[i]) = planes(wholes[16 * half + i]);
                }
                group.high[at..at + 16].copy_from_slice(&highs);
                group.low[at..at + 16].copy_from_slice(&lows);
            }
            let both: [i32; 16] = std::array::from_fn(|i| wholes[i].wrapping_add(wholes[16 + i]));
            let mut all = 0i32;
            for (lane, four) in both.as_chunks::<4>().0.iter().enumerate() {
                let sum = four
                    .iter()
                    .fold(0i32, |sum, whole| sum.wrapping_add(*whole));
                group.sum[4 * block + lane] = sum as f32;
                all = all.wrapping_add(sum);
            }
            let lanes = 4 * block..4 * block + 4;
            group.scale[lanes.clone()].fill(scale);
            group.total[lanes.clone()].fill(scale * all as f32);
            group.block_sum[lanes].fill(all);
        }
    }
}

#[inline(always)]
fn row_body256<const FUSED: bool>(x: &[f32], out: &mut [Group256]) {
    for (part, group) in x.chunks_exact(Group256::ELEMS).zip(out) {
        let (scale, inverse) = scales(part);
        group.scale = scale;
        quantise::<256>(part, inverse, &mut group.high, &mut group.low);
        for (i, out) in group.sum.iter_mut().enumerate() {
            *out = sum(&group.high[16 * i..][..16], &group.low[16 * i..][..16]) as f32;
        }
    }
}

#[inline(always)]
fn wide_body<const FUSED: bool>(x: &[f32], of_one_scale: usize, out: &mut [Wide]) {
    if let Some(last) = out.last_mut() {
        *last = Wide::ZERO;
    }
    let (mut scale, mut inverse) = (0.0, 0.0);
    for (block, elements) in x.chunks_exact(32).enumerate() {
        if (32 * block).is_multiple_of(of_one_scale) {
            (scale, inverse) = scales(&x[32 * block..][..of_one_scale]);
        }
        let group = &mut out[block / 4];
        let mut sum = 0;
        for (whole, x) in group.whole[block % 4].iter_mut().zip(elements) {
            *whole = rounded(x * inverse) as i16;
            sum += i32::from(*whole);
        }
        group.scale[block % 4] = scale;
        group.total[block % 4] = scale * sum as f32;
    }
}

per_isa! {
    fn quantise_wide_plain = wide_body(x: &[f32], of_one_scale: usize, out: &mut [Wide])
}

per_isa! {
    fn quantise_row32_plain = row_body32(x: &[f32], out: &mut [Group32])
}

/// Quantises a row to `ceil(x.len() / 128)` groups, `of_one_scale` elements (32 or 256, of which the row is a multiple) with one
/// scale.
pub(crate) fn quantise_wide(isa: Isa, x: &[f32], of_one_scale: usize, out: &mut [Wide]) {
    #[cfg(target_arch = "x86_64")]
    if isa == Isa::Avx512 {
        // SAFETY: an executable carries this `Isa` only after `Isa::is_supported` has found its features.
        return unsafe { avx512::wide(x, of_one_scale, out) };
    }
    quantise_wide_plain(isa, x, of_one_scale, out);
}

/// Quantises a row (a multiple of 32 elements) to `ceil(x.len() / 128)` groups.
pub(crate) fn quantise_row32(isa: Isa, x: &[f32], out: &mut [Group32]) {
    #[cfg(target_arch = "x86_64")]
    if isa == Isa::Avx512 {
        // SAFETY: as above.
        return unsafe { avx512::row32(x, out) };
    }
    quantise_row32_plain(isa, x, out);
}

per_isa! {
    /// Quantises a row (a multiple of 256 elements) to `x.len() / 256` groups.
    fn quantise_row256 = row_body256(x: &[f32], out: &mut [Group256])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::isa::Isa;
    use proptest::prelude::*;

    fn isas() -> impl Iterator<Item = Isa> {
        Isa::ALL.into_iter().filter(|isa| isa.is_supported())
    }

    const STALE: Group32 = Group32 {
        high: [1; 128],
        low: [1; 128],
        scale: [1.0; 16],
        sum: [1.0; 16],
        total: [1.0; 16],
        block_sum: [1; 16],
    };
    const STALE256: Group256 = Group256 {
        high: [1; 256],
        low: [1; 256],
        sum: [1.0; 16],
        scale: 1.0,
    };

    proptest! {
        #[test]
        fn every_isa_quantises_alike(x in prop::collection::vec(-1e4f32..1e4, 512), blocks in 1usize..=16) {
            let x = &x[..32 * blocks];
            let mut truth = vec![STALE; blocks.div_ceil(4)];
            quantise_row32(Isa::Scalar, x, &mut truth);
            for isa in isas() {
                let mut out = vec![STALE; blocks.div_ceil(4)];
                quantise_row32(isa, x, &mut out);
                for (a, b) in out.iter().zip(&truth) {
                    prop_assert_eq!((a.high, a.low, a.scale, a.sum), (b.high, b.low, b.scale, b.sum));
                    prop_assert_eq!((a.total, a.block_sum), (b.total, b.block_sum));
                }
            }
        }

        #[test]
        fn wide_groups_hold_the_same_whole_numbers(x in prop::collection::vec(-1e4f32..1e4, 512), blocks in 1usize..=16) {
            let whole = |high: i8, low: i8| 128 * i16::from(high) + i16::from(low);
            for isa in isas() {
                let x = &x[..32 * blocks];
                let mut groups = vec![STALE; blocks.div_ceil(4)];
                quantise_row32(isa, x, &mut groups);
                let mut wide = vec![Wide { whole: [[1; 32]; 4], scale: [1.0; 4], total: [1.0; 4] }; blocks.div_ceil(4)];
                quantise_wide(isa, x, 32, &mut wide);
                for (group, wide) in groups.iter().zip(&wide) {
                    for b in 0..4 {
                        for i in 0..32 {
                            let at = 64 * (i / 16) + 16 * b + i % 16;
                            prop_assert_eq!(wide.whole[b][i], whole(group.high[at], group.low[at]));
                        }
                        prop_assert_eq!(wide.scale[b].to_bits(), group.scale[4 * b].to_bits());
                        prop_assert_eq!(wide.total[b].to_bits(), group.total[4 * b].to_bits());
                        let sum: i32 = wide.whole[b].iter().map(|whole| i32::from(*whole)).sum();
                        prop_assert_eq!(&group.block_sum[4 * b..][..4], &[sum; 4]);
                    }
                }
                let x = &x[..x.len() / 256 * 256];
                let mut groups = vec![STALE256; x.len() / 256];
                quantise_row256(isa, x, &mut groups);
                let mut wide = vec![Wide::ZERO; x.len() / 128];
                quantise_wide(isa, x, 256, &mut wide);
                for (i, whole_of) in wide.iter().flat_map(|wide| wide.whole.as_flattened()).enumerate() {
                    let group = &groups[i / 256];
                    prop_assert_eq!(*whole_of, whole(group.high[i % 256], group.low[i % 256]));
                    prop_assert_eq!(wide[i / 128].scale[i / 32 % 4], group.scale);
                }
            }
        }

        #[test]
        fn values_come_back_within_half_a_step(x in prop::collection::vec(-50f32..50.0, 512)) {
            let mut groups = [STALE; 4];
            quantise_row32(Isa::Scalar, &x, &mut groups);
            let mut large = [STALE256; 2];
            quantise_row256(Isa::Scalar, &x, &mut large);
            let value = |high: i8, low: i8, scale: f32| (128.0 * f32::from(high) + f32::from(low)) * scale;
            for (i, x) in x.iter().enumerate() {
                let (group, block, element) = (&groups[i / 128], i / 32 % 4, i % 32);
                let (at, scale) = (64 * (element / 16) + 16 * block + element % 16, group.scale[4 * block]);
                prop_assert!((value(group.high[at], group.low[at], scale) - x).abs() <= 0.52 * scale);
                let (group, at) = (&large[i / 256], i % 256);
                prop_assert!((value(group.high[at], group.low[at], group.scale) - x).abs() <= 0.52 * group.scale);
            }
            let found: f32 = large.iter().flat_map(|group| group.sum).sum();
            let expected: i32 = large.iter().map(|group| sum(&group.high, &group.low)).sum();
            prop_assert_eq!(found, expected as f32);
        }
    }

    #[test]
    fn zeros_and_non_numbers_do_no_harm() {
        for isa in isas() {
            for bad in [
                0.0,
                f32::NAN,
                f32::INFINITY,
                f32::MIN_POSITIVE / 4.0,
                f32::MAX,
            ] {
                let mut out = [STALE];
                quantise_row32(isa, &[bad; 64], &mut out);
                assert_eq!(
                    (&out[0].high[32..64], &out[0].low[32..64]),
                    (&[0; 32][..], &[0; 32][..]),
                    "past the row"
                );
                if bad == 0.0 {
                    assert_eq!(
                        (out[0].high, out[0].low, out[0].scale),
                        ([0; 128], [0; 128], [0.0; 16])
                    );
                }
            }
        }
    }
}
