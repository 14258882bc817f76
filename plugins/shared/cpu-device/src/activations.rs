//! Activations as the integer dot products want them: 8-bit, in groups that fit one vector of weights.

use crate::memory::Zeroed;

/// 128 activations for the weight types with blocks of 32: four blocks side by side.
///
/// The order is that of the nibbles in a weight block: `values[16 b + i]` is element `i` of block `b`, and
/// `values[64 + 16 b + i]` its element `16 + i`. A *lane* is four neighbours in each half; lanes `4 b .. 4 b + 4` belong to
/// block `b`. A row that is no multiple of 128 ends in blocks of zeros.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
pub(crate) struct Group32 {
    /// `[2 halves, 4 blocks, 16]`.
    pub(crate) values: [i8; 128],
    /// Per lane: the scale of its block.
    pub(crate) scale: [f32; 16],
    /// Per lane: the sum of its eight values (a whole number).
    pub(crate) sum: [f32; 16],
}

const _: () = assert!(size_of::<Group32>() == 256);

/// 256 activations for the weight types with blocks of 256, in their own order.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
pub(crate) struct Group256 {
    /// In order.
    pub(crate) values: [i8; 256],
    /// Sums of 16 neighbours each (whole numbers).
    pub(crate) sum: [f32; 16],
    /// The scale.
    pub(crate) scale: f32,
}

const _: () = assert!(size_of::<Group256>() == 384);

// SAFETY: integers and floats only; padding needs no value; alignment 64.
unsafe impl Zeroed for Group32 {}
// SAFETY: as above.
unsafe impl Zeroed for Group256 {}

impl Group32 {
    pub(crate) const ELEMS: usize = 128;
}

impl Group256 {
    pub(crate) const ELEMS: usize = 256;
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
    let largest = lanes
        .into_iter()
        .fold(0f32, |a, b| if b > a { b } else { a });
    (
        largest / 127.0,
        if largest > 0.0 { 127.0 / largest } else { 0.0 },
    )
}

#[inline(always)]
fn quantise<const N: usize>(x: &[f32], inverse: f32, out: &mut [i8]) {
    let mut whole = [0i8; N];
    for (whole, x) in whole.iter_mut().zip(x) {
        *whole = (x * inverse + ROUNDER).to_bits() as i8;
    }
    out.copy_from_slice(&whole);
}

#[inline(always)]
fn row_body32<const FUSED: bool>(x: &[f32], out: &mut [Group32]) {
    for (part, group) in x.chunks(Group32::ELEMS).zip(out) {
        *group = Group32 {
            values: [0; 128],
            scale: [0.0; 16],
            sum: [0.0; 16],
        };
        for (block, x) in part.chunks_exact(32).enumerate() {
            let (scale, inverse) = scales(x);
            quantise::<16>(&x[..16], inverse, &mut group.values[16 * block..][..16]);
            quantise::<16>(
                &x[16..],
                inverse,
                &mut group.values[64 + 16 * block..][..16],
            );
            group.scale[4 * block..][..4].fill(scale);
        }
        for lane in 0..16 {
            let sum = |half: usize| -> i32 {
                group.values[64 * half + 4 * lane..][..4]
                    .iter()
                    .map(|v| i32::from(*v))
                    .sum()
            };
            group.sum[lane] = (sum(0) + sum(1)) as f32;
        }
    }
}

#[inline(always)]
fn row_body256<const FUSED: bool>(x: &[f32], out: &mut [Group256]) {
    for (part, group) in x.chunks_exact(Group256::ELEMS).zip(out) {
        let (scale, inverse) = scales(part);
        group.scale = scale;
        quantise::<256>(part, inverse, &mut group.values);
        for (sum, values) in group.sum.iter_mut().zip(group.values.chunks_exact(16)) {
            *sum = values.iter().map(|v| i32::from(*v)).sum::<i32>() as f32;
        }
    }
}

per_isa! {
    /// Quantises a row (a multiple of 32 elements) to `ceil(x.len() / 128)` groups.
    fn quantise_row32 = row_body32(x: &[f32], out: &mut [Group32])
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

    fn group32() -> Group32 {
        Group32 {
            values: [1; 128],
            scale: [1.0; 16],
            sum: [1.0; 16],
        }
    }

    proptest! {
        #[test]
        fn every_isa_quantises_alike(x in prop::collection::vec(-1e4f32..1e4, 512), blocks in 1usize..=16) {
            let x = &x[..32 * blocks];
            let mut truth = vec![group32(); blocks.div_ceil(4)];
            quantise_row32(Isa::Scalar, x, &mut truth);
            for isa in Isa::ALL.into_iter().filter(|isa| isa.is_supported()) {
                let mut out = vec![group32(); blocks.div_ceil(4)];
                quantise_row32(isa, x, &mut out);
                for (a, b) in out.iter().zip(&truth) {
                    prop_assert_eq!((a.values, a.scale, a.sum), (b.values, b.scale, b.sum));
                }
            }
        }

        #[test]
        fn values_come_back_within_half_a_step(x in prop::collection::vec(-50f32..50.0, 512)) {
            let mut groups = vec![group32(); 4];
            quantise_row32(Isa::Scalar, &x, &mut groups);
            let mut large = vec![Group256 { values: [0; 256], sum: [0.0; 16], scale: 0.0 }; 2];
            quantise_row256(Isa::Scalar, &x, &mut large);
            for (i, x) in x.iter().enumerate() {
                let (group, block, element) = (&groups[i / 128], i / 32 % 4, i % 32);
                let scale = group.scale[4 * block];
                let value = f32::from(group.values[64 * (element / 16) + 16 * block + element % 16]) * scale;
                prop_assert!((value - x).abs() <= 0.501 * scale);
                let group = &large[i / 256];
                prop_assert!((f32::from(group.values[i % 256]) * group.scale - x).abs() <= 0.501 * group.scale);
            }
            let total: f32 = large.iter().flat_map(|group| group.sum).sum();
            let expected: i32 = large.iter().flat_map(|group| group.values).map(i32::from).sum();
            prop_assert_eq!(total, expected as f32);
        }
    }

    #[test]
    fn zeros_and_non_numbers_do_no_harm() {
        for isa in Isa::ALL.into_iter().filter(|isa| isa.is_supported()) {
            for bad in [
                0.0,
                f32::NAN,
                f32::INFINITY,
                f32::MIN_POSITIVE / 4.0,
                f32::MAX,
            ] {
                let mut out = [group32()];
                quantise_row32(isa, &[bad; 64], &mut out);
                assert_eq!(
                    out[0].values[32..64],
                    [0; 32],
                    "blocks past the row are zeros"
                );
                if bad == 0.0 {
                    assert_eq!((out[0].values, out[0].scale), ([0; 128], [0.0; 16]));
                }
            }
        }
    }
}
