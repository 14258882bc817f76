//! The scalar truth: one row of weights times one row of activations.

use super::Operand;
use crate::activations::{Group32, Group256};
use backplane_weights::blocks::{
    BlockBF16, BlockF16, BlockF32, BlockIQ1M, BlockIQ1S, BlockIQ2S, BlockIQ2XS, BlockIQ2XXS,
    BlockIQ3S, BlockIQ3XXS, BlockIQ4NL, BlockIQ4XS, BlockMxfp4, BlockQ2K, BlockQ3K, BlockQ4_0,
    BlockQ4_1, BlockQ4K, BlockQ5_0, BlockQ5_1, BlockQ5K, BlockQ6K, BlockQ8_0, BlockTQ1_0,
    BlockTQ2_0, E2M1_DOUBLED, IQ4_LEVELS, WholeBlock, as_blocks, k_scale_min,
};

/// A row of blocks times a row of activations of the kind in the table; panics on another kind.
pub(super) type Dot = fn(&[u8], Operand<'_>) -> f32;

fn floats(weights: impl Iterator<Item = f32>, x: Operand<'_>) -> f32 {
    let Operand::Float(x) = x else {
        unreachable!("the tile checks the kind")
    };
    let mut lanes = [0f32; 16];
    for (i, (w, x)) in weights.zip(x).enumerate() {
        lanes[i % 16] += w * x;
    }
    lanes.iter().sum()
}

pub(super) fn dot_f32(row: &[u8], x: Operand<'_>) -> f32 {
    floats(
        as_blocks::<BlockF32>(row)
            .iter()
            .map(|block| f32::from_le_bytes(block.value)),
        x,
    )
}

pub(super) fn dot_f16(row: &[u8], x: Operand<'_>) -> f32 {
    floats(
        as_blocks::<BlockF16>(row)
            .iter()
            .map(|block| block.value.to_f32()),
        x,
    )
}

pub(super) fn dot_bf16(row: &[u8], x: Operand<'_>) -> f32 {
    let widen =
        |block: &BlockBF16| f32::from_bits(u32::from(u16::from_le_bytes(block.value)) << 16);
    floats(as_blocks::<BlockBF16>(row).iter().map(widen), x)
}

/// A block of 32 quantised activations: `[2 halves, 16]`, its scale, and its sum.
struct Block32<'a> {
    high: [&'a [i8]; 2],
    low: [&'a [i8]; 2],
    scale: f32,
    sum: f32,
}

fn blocks32<'a>(x: Operand<'a>) -> impl Iterator<Item = Block32<'a>> {
    let Operand::Int32(groups) = x else {
        unreachable!("the tile checks the kind")
    };
    groups.iter().flat_map(|group: &'a Group32| {
        (0..4).map(move |b| Block32 {
            high: [
                &group.high[16 * b..][..16],
                &group.high[64 + 16 * b..][..16],
            ],
            low: [&group.low[16 * b..][..16], &group.low[64 + 16 * b..][..16]],
            scale: group.scale[4 * b],
            sum: group.block_sum[4 * b] as f32,
        })
    })
}

/// Dot product of whole numbers: weight `(half, i)` of the block times the activation there.
fn whole(x: &Block32<'_>, weight: impl Fn(usize, usize) -> i32) -> f32 {
    let half = |h: usize| -> i32 { part(x.high[h], x.low[h], |i| weight(h, i)) };
    (half(0) + half(1)) as f32
}

fn nibble(qs: &[u8; 16], half: usize, i: usize) -> i32 {
    i32::from((qs[i] >> (4 * half)) & 15)
}

fn fifth(qh: [u8; 4], half: usize, i: usize) -> i32 {
    (((u32::from_le_bytes(qh) >> (16 * half + i)) & 1) << 4) as i32
}

pub(super) fn dot_q8_0(row: &[u8], x: Operand<'_>) -> f32 {
    let blocks = as_blocks::<BlockQ8_0>(row).iter().zip(blocks32(x));
    blocks
        .map(|(w, x)| w.d.to_f32() * x.scale * whole(&x, |h, i| i32::from(w.qs[16 * h + i])))
        .sum()
}

pub(super) fn dot_q4_0(row: &[u8], x: Operand<'_>) -> f32 {
    let blocks = as_blocks::<BlockQ4_0>(row).iter().zip(blocks32(x));
    blocks
        .map(|(w, x)| w.d.to_f32() * x.scale * whole(&x, |h, i| nibble(&w.qs, h, i) - 8))
        .sum()
}

pub(super) fn dot_q4_1(row: &[u8], x: Operand<'_>) -> f32 {
    let blocks = as_blocks::<BlockQ4_1>(row).iter().zip(blocks32(x));
    let one = |(w, x): (&BlockQ4_1, Block32<'_>)| {
        x.scale * (w.d.to_f32() * whole(&x, |h, i| nibble(&w.qs, h, i)) + w.m.to_f32() * x.sum)
    };
    blocks.map(one).sum()
}

pub(super) fn dot_q5_0(row: &[u8], x: Operand<'_>) -> f32 {
    let blocks = as_blocks::<BlockQ5_0>(row).iter().zip(blocks32(x));
    let one = |(w, x): (&BlockQ5_0, Block32<'_>)| {
        w.d.to_f32() * x.scale * whole(&x, |h, i| (nibble(&w.qs, h, i) | fifth(w.qh, h, i)) - 16)
    };
    blocks.map(one).sum()
}

pub(super) fn dot_q5_1(row: &[u8], x: Operand<'_>) -> f32 {
    let blocks = as_blocks::<BlockQ5_1>(row).iter().zip(blocks32(x));
    let one = |(w, x): (&BlockQ5_1, Block32<'_>)| {
        let whole = whole(&x, |h, i| nibble(&w.qs, h, i) | fifth(w.qh, h, i));
        x.scale * (w.d.to_f32() * whole + w.m.to_f32() * x.sum)
    };
    blocks.map(one).sum()
}

pub(super) fn dot_iq4_nl(row: &[u8], x: Operand<'_>) -> f32 {
    let blocks = as_blocks::<BlockIQ4NL>(row).iter().zip(blocks32(x));
    let level = |qs: &[u8; 16], h, i| i32::from(IQ4_LEVELS[nibble(qs, h, i) as usize]);
    blocks
        .map(|(w, x)| w.d.to_f32() * x.scale * whole(&x, |h, i| level(&w.qs, h, i)))
        .sum()
}

pub(super) fn dot_mxfp4(row: &[u8], x: Operand<'_>) -> f32 {
    let blocks = as_blocks::<BlockMxfp4>(row).iter().zip(blocks32(x));
    let level = |qs: &[u8; 16], h, i| i32::from(E2M1_DOUBLED[nibble(qs, h, i) as usize]);
    blocks
        .map(|(w, x)| w.half_scale() * x.scale * whole(&x, |h, i| level(&w.qs, h, i)))
        .sum()
}

fn groups256(x: Operand<'_>) -> &[Group256] {
    let Operand::Int256(groups) = x else {
        unreachable!("the tile checks the kind")
    };
    groups
}

/// Sum of `weight(i) * x[i]` over a part of a group, given by its two planes.
fn part(high: &[i8], low: &[i8], weight: impl Fn(usize) -> i32) -> i32 {
    let whole = |(high, low): (&i8, &i8)| 128 * i32::from(*high) + i32::from(*low);
    high.iter()
        .zip(low)
        .map(whole)
        .enumerate()
        .map(|(i, x)| weight(i) * x)
        .sum()
}

/// A block of eight groups of 32 with 6-bit scales and minima; `weight(g, i)` is element `i` of group `g`.
fn eight_groups(
    x: &Group256,
    d: f32,
    dmin: f32,
    scales: &[u8; 12],
    weight: impl Fn(usize, usize) -> i32,
) -> f32 {
    let (mut products, mut minima) = (0f32, 0f32);
    for g in 0..8 {
        let (high, low) = (&x.high[32 * g..][..32], &x.low[32 * g..][..32]);
        let (scale, min) = k_scale_min(scales, g);
        products += f32::from(scale) * part(high, low, |i| weight(g, i)) as f32;
        minima += f32::from(min) * (x.sum[2 * g] + x.sum[2 * g + 1]);
    }
    x.scale * (d * products - dmin * minima)
}

pub(super) fn dot_q4_k(row: &[u8], x: Operand<'_>) -> f32 {
    let one = |(w, x): (&BlockQ4K, &Group256)| {
        let weight = |g: usize, i: usize| i32::from((w.qs[32 * (g / 2) + i] >> (4 * (g % 2))) & 15);
        eight_groups(x, w.d.to_f32(), w.dmin.to_f32(), &w.scales, weight)
    };
    as_blocks::<BlockQ4K>(row)
        .iter()
        .zip(groups256(x))
        .map(one)
        .sum()
}

pub(super) fn dot_q5_k(row: &[u8], x: Operand<'_>) -> f32 {
    let one = |(w, x): (&BlockQ5K, &Group256)| {
        let weight = |g: usize, i: usize| {
            i32::from(
                ((w.qs[32 * (g / 2) + i] >> (4 * (g % 2))) & 15) | (((w.qh[i] >> g) & 1) << 4),
            )
        };
        eight_groups(x, w.d.to_f32(), w.dmin.to_f32(), &w.scales, weight)
    };
    as_blocks::<BlockQ5K>(row)
        .iter()
        .zip(groups256(x))
        .map(one)
        .sum()
}

pub(super) fn dot_q6_k(row: &[u8], x: Operand<'_>) -> f32 {
    let one = |(w, x): (&BlockQ6K, &Group256)| {
        let weight = |g: usize, i: usize| {
            let (half, k, i) = (g / 8, g / 2 % 4, 16 * (g % 2) + i);
            let low = (w.ql[64 * half + 32 * (k % 2) + i] >> (4 * (k / 2))) & 15;
            let high = (w.qh[32 * half + i] >> (2 * k)) & 3;
            i32::from(low | (high << 4)) - 32
        };
        let product = |g: usize| {
            let whole = part(&x.high[16 * g..][..16], &x.low[16 * g..][..16], |i| {
                weight(g, i)
            });
            f32::from(w.scales[g]) * whole as f32
        };
        w.d.to_f32() * x.scale * (0..16).map(product).sum::<f32>()
    };
    as_blocks::<BlockQ6K>(row)
        .iter()
        .zip(groups256(x))
        .map(one)
        .sum()
}

pub(super) fn dot_q2_k(row: &[u8], x: Operand<'_>) -> f32 {
    let one = |(w, x): (&BlockQ2K, &Group256)| {
        let (mut products, mut minima) = (0f32, 0f32);
        for g in 0..16 {
            let (high, low) = (&x.high[16 * g..][..16], &x.low[16 * g..][..16]);
            let quants = w.quants(g);
            let whole = part(high, low, |i| i32::from(quants[i]));
            products += f32::from(w.scales[g] & 15) * whole as f32;
            minima += f32::from(w.scales[g] >> 4) * x.sum[g];
        }
        x.scale * (w.d.to_f32() * products - w.dmin.to_f32() * minima)
    };
    as_blocks::<BlockQ2K>(row)
        .iter()
        .zip(groups256(x))
        .map(one)
        .sum()
}

pub(super) fn dot_q3_k(row: &[u8], x: Operand<'_>) -> f32 {
    let one = |(w, x): (&BlockQ3K, &Group256)| {
        let product = |g: usize| {
            let (high, low) = (&x.high[16 * g..][..16], &x.low[16 * g..][..16]);
            let quants = w.quants(g);
            f32::from(w.scale(g)) * part(high, low, |i| i32::from(quants[i])) as f32
        };
        w.d.to_f32() * x.scale * (0..16).map(product).sum::<f32>()
    };
    as_blocks::<BlockQ3K>(row)
        .iter()
        .zip(groups256(x))
        .map(one)
        .sum()
}

pub(super) fn dot_iq4_xs(row: &[u8], x: Operand<'_>) -> f32 {
    let one = |(w, x): (&BlockIQ4XS, &Group256)| {
        let product = |g: usize| {
            let (high, low) = (&x.high[32 * g..][..32], &x.low[32 * g..][..32]);
            let level = |i: usize| {
                let code = (w.qs[16 * g + i % 16] >> (i / 16 * 4)) & 15;
                i32::from(IQ4_LEVELS[usize::from(code)])
            };
            f32::from(w.scale(g)) * part(high, low, level) as f32
        };
        w.d.to_f32() * x.scale * (0..8).map(product).sum::<f32>()
    };
    as_blocks::<BlockIQ4XS>(row)
        .iter()
        .zip(groups256(x))
        .map(one)
        .sum()
}

/// A row of a type whose blocks say what their whole numbers are.
fn dot_whole<B: WholeBlock>(row: &[u8], x: Operand<'_>) -> f32 {
    let one = |(w, x): (&B, &Group256)| {
        let w = w.whole();
        let product = |g: usize| {
            let (high, low) = (&x.high[16 * g..][..16], &x.low[16 * g..][..16]);
            let values = &w.values[16 * g..][..16];
            f32::from(w.scales[g]) * part(high, low, |i| i32::from(values[i])) as f32
        };
        w.scale * x.scale * (0..16).map(product).sum::<f32>()
    };
    as_blocks::<B>(row).iter().zip(groups256(x)).map(one).sum()
}

macro_rules! whole {
    ($($name:ident = $block:ident;)*) => {$(
        pub(super) fn $name(row: &[u8], x: Operand<'_>) -> f32 {
            dot_whole::<$block>(row, x)
        }
    )*};
}

whole! {
    dot_tq1_0 = BlockTQ1_0;
    dot_tq2_0 = BlockTQ2_0;
    dot_iq2_xxs = BlockIQ2XXS;
    dot_iq2_xs = BlockIQ2XS;
    dot_iq2_s = BlockIQ2S;
    dot_iq3_xxs = BlockIQ3XXS;
    dot_iq3_s = BlockIQ3S;
    dot_iq1_s = BlockIQ1S;
    dot_iq1_m = BlockIQ1M;
}
