//! Types whose blocks have one scale, with or without a minimum: floats and Q8_0 to Q5_1.

use super::Quantize;
use super::search::{Grid, Line, Normalised, Whole, error, half, line, reciprocal, round, scale};
use crate::blocks::{
    BlockBF16, BlockF16, BlockF32, BlockQ4_0, BlockQ4_1, BlockQ5_0, BlockQ5_1, BlockQ8_0, Half,
};

impl Quantize for BlockF32 {
    fn quantize(values: &[f32]) -> Option<Self> {
        Some(BlockF32 {
            value: values[0].to_le_bytes(),
        })
    }
}

impl Quantize for BlockF16 {
    fn quantize(values: &[f32]) -> Option<Self> {
        let value = half::f16::from_f32(values[0]);
        value.is_finite().then_some(BlockF16 {
            value: Half(value.to_le_bytes()),
        })
    }
}

impl Quantize for BlockBF16 {
    fn quantize(values: &[f32]) -> Option<Self> {
        let value = half::bf16::from_f32(values[0]);
        value.is_finite().then_some(BlockBF16 {
            value: value.to_le_bytes(),
        })
    }
}

impl Quantize for BlockQ8_0 {
    fn quantize(values: &[f32]) -> Option<Self> {
        // Steps are so fine that cutting the largest value off gains nothing.
        let peak = values
            .iter()
            .fold(0.0_f32, |peak, value| peak.max(value.abs()));
        let d = half(peak / 127.0)?;
        let inverse = reciprocal(d.to_f32());
        Some(BlockQ8_0 {
            d,
            qs: std::array::from_fn(|i| round((values[i] * inverse).clamp(-127.0, 127.0)) as i8),
        })
    }
}

/// Scale and codes, counted from the lowest level, of 32 values.
pub(super) fn around_zero<G: Grid>(
    values: &[f32],
    code: impl Fn(f32) -> u8,
) -> Option<(Half, [u8; 32])> {
    let Some(block) = Normalised::<32, 1>::new(values) else {
        return Some((Half([0; 2]), [code(G::nearest(0.0)); 32]));
    };
    let (mut d, mut exact) = block.stored(scale::<G, 32>(&block.groups[0]))?;
    // The smallest scale that half precision has may be far too large where no level is zero.
    if error::<G, 32>(&block.groups[0], exact) > error::<G, 32>(&block.groups[0], 0.0) {
        (d, exact) = (Half([0; 2]), 0.0);
    }
    let inverse = reciprocal(exact);
    Some((
        d,
        block.groups[0].map(|value| code(G::nearest(value * inverse))),
    ))
}

/// Scale, minimum and codes from 0 to `TOP` of 32 values.
fn from_minimum<const TOP: u8>(values: &[f32]) -> Option<(Half, Half, [u8; 32])> {
    let nothing = (Half([0; 2]), Half([0; 2]), [0; 32]);
    let Some(block) = Normalised::<32, 1>::new(values) else {
        return Some(nothing);
    };
    let values = &block.groups[0];
    let fit = line::<TOP, 32>(values, f32::INFINITY);
    let (d, scale) = block.stored(fit.scale)?;
    let (m, offset) = block.stored(fit.offset)?;
    let stored = Line { scale, offset };
    let zeros = Line {
        scale: 0.0,
        offset: 0.0,
    };
    if stored.error::<TOP, 32>(values) > zeros.error::<TOP, 32>(values) {
        return Some(nothing);
    }
    Some((d, m, stored.codes::<TOP, 32>(values)))
}

/// The lower four bits of 32 codes: values 0..16 in the low nibbles, 16..32 in the high ones.
pub(super) fn nibbles(codes: &[u8; 32]) -> [u8; 16] {
    std::array::from_fn(|i| (codes[i] & 0x0f) | (codes[i + 16] & 0x0f) << 4)
}

/// The fifth bits of 32 codes.
fn fifth_bits(codes: &[u8; 32]) -> [u8; 4] {
    std::array::from_fn(|byte| {
        (0..8).fold(0, |bits, bit| {
            bits | (codes[8 * byte + bit] >> 4 & 1) << bit
        })
    })
}

impl Quantize for BlockQ4_0 {
    fn quantize(values: &[f32]) -> Option<Self> {
        let (d, codes) = around_zero::<Whole<-8, 7>>(values, |level| (level + 8.0) as u8)?;
        Some(BlockQ4_0 {
            d,
            qs: nibbles(&codes),
        })
    }
}

impl Quantize for BlockQ5_0 {
    fn quantize(values: &[f32]) -> Option<Self> {
        let (d, codes) = around_zero::<Whole<-16, 15>>(values, |level| (level + 16.0) as u8)?;
        Some(BlockQ5_0 {
            d,
            qh: fifth_bits(&codes),
            qs: nibbles(&codes),
        })
    }
}

impl Quantize for BlockQ4_1 {
    fn quantize(values: &[f32]) -> Option<Self> {
        let (d, m, codes) = from_minimum::<15>(values)?;
        Some(BlockQ4_1 {
            d,
            m,
            qs: nibbles(&codes),
        })
    }
}

impl Quantize for BlockQ5_1 {
    fn quantize(values: &[f32]) -> Option<Self> {
        let (d, m, codes) = from_minimum::<31>(values)?;
        Some(BlockQ5_1 {
            d,
            m,
            qh: fifth_bits(&codes),
            qs: nibbles(&codes),
        })
    }
}
