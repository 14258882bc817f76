//! Weights as whole numbers of 16 bits with a scale (and a minimum) for each 32 of them, in portable code, and products with
//! activations as [`Wide`] groups: for processors whose instructions multiply 16 bits at a time.

// Blocks and tokens are indices into several arrays at once.
#![allow(clippy::needless_range_loop)]

use super::{Operand, Tile};
use backplane_weights::blocks::{
    Block, BlockIQ4NL, BlockMxfp4, BlockQ4_0, BlockQ4_1, BlockQ4K, BlockQ5_0, BlockQ5_1, BlockQ5K,
    BlockQ6K, BlockQ8_0, E2M1_DOUBLED, IQ4_LEVELS, as_blocks, k_scale_min,
};

/// Most blocks of 32 in a block of a type.
const MOST: usize = 8;
/// Tokens for which a block is unpacked once.
const TOKENS: usize = 8;

/// What a block of a type holds.
#[derive(Clone, Copy, Debug)]
pub(super) struct Strip {
    /// Whole numbers, `[blocks of 32, 32]`; below 4097 in size, so that 32 products with activations of 15 bits fit 32 bits.
    pub(super) whole: [[i16; 32]; MOST],
    /// Scale of each block of 32.
    pub(super) d: [f32; MOST],
    /// What each has besides whole numbers times scale.
    pub(super) m: [f32; MOST],
}

/// A block that comes as whole numbers.
pub(super) trait Whole: Block {
    /// Blocks of 32 that it has.
    const BLOCKS: usize;

    /// Unpacks it.
    fn strip(&self, strip: &mut Strip);
}

/// Element `i` of 32 nibbles: the low ones first.
fn nibble(qs: &[u8; 16], i: usize) -> i16 {
    i16::from((qs[i % 16] >> (4 * (i / 16))) & 15)
}

/// 16 where bit `i` of the field is set.
fn fifth(qh: [u8; 4], i: usize) -> i16 {
    (((u32::from_le_bytes(qh) >> i) & 1) << 4) as i16
}

macro_rules! blocks_of_32 {
    ($($block:ident: $b:ident, $i:ident => $whole:expr, $d:expr $(, $m:expr)?;)*) => {$(
        impl Whole for $block {
            const BLOCKS: usize = 1;

            fn strip(&self, strip: &mut Strip) {
                let $b = self;
                strip.whole[0] = std::array::from_fn(|$i| $whole);
                strip.d[0] = $d;
                strip.m[0] = 0.0 $(+ $m)?;
            }
        }
    )*};
}

blocks_of_32! {
    BlockQ8_0: b, i => i16::from(b.qs[i]), b.d.to_f32();
    BlockQ4_0: b, i => nibble(&b.qs, i) - 8, b.d.to_f32();
    BlockQ4_1: b, i => nibble(&b.qs, i), b.d.to_f32(), b.m.to_f32();
    BlockQ5_0: b, i => (nibble(&b.qs, i) | fifth(b.qh, i)) - 16, b.d.to_f32();
    BlockQ5_1: b, i => nibble(&b.qs, i) | fifth(b.qh, i), b.d.to_f32(), b.m.to_f32();
    BlockIQ4NL: b, i => i16::from(IQ4_LEVELS[nibble(&b.qs, i) as usize]), b.d.to_f32();
    BlockMxfp4: b, i => i16::from(E2M1_DOUBLED[nibble(&b.qs, i) as usize]), b.half_scale();
}

/// Scales and minima of Q4_K and Q5_K times what the block multiplies them with; the products are exact.
fn six_bits(strip: &mut Strip, scales: &[u8; 12], d: f32, dmin: f32) {
    for group in 0..MOST {
        let (scale, min) = k_scale_min(scales, group);
        strip.d[group] = d * f32::from(scale);
        strip.m[group] = -dmin * f32::from(min);
    }
}

impl Whole for BlockQ4K {
    const BLOCKS: usize = 8;

    fn strip(&self, strip: &mut Strip) {
        for (group, whole) in strip.whole.iter_mut().enumerate() {
            let qs = &self.qs[group / 2 * 32..][..32];
            for (whole, q) in whole.iter_mut().zip(qs) {
                *whole = i16::from((q >> (4 * (group % 2))) & 15);
            }
        }
        six_bits(strip, &self.scales, self.d.to_f32(), self.dmin.to_f32());
    }
}

impl Whole for BlockQ5K {
    const BLOCKS: usize = 8;

    fn strip(&self, strip: &mut Strip) {
        for (group, whole) in strip.whole.iter_mut().enumerate() {
            let qs = &self.qs[group / 2 * 32..][..32];
            for ((whole, q), fifth) in whole.iter_mut().zip(qs).zip(&self.qh) {
                let (low, high) = ((q >> (4 * (group % 2))) & 15, (fifth >> group) & 1);
                *whole = i16::from(low | high << 4);
            }
        }
        six_bits(strip, &self.scales, self.d.to_f32(), self.dmin.to_f32());
    }
}

impl Whole for BlockQ6K {
    const BLOCKS: usize = 8;

    fn strip(&self, strip: &mut Strip) {
        for (block, whole) in strip.whole.iter_mut().enumerate() {
            let (half, quarter) = (block / 4, block % 4);
            let ql = &self.ql[64 * half + 32 * (quarter % 2)..][..32];
            let qh = &self.qh[32 * half..][..32];
            let scales = [self.scales[2 * block], self.scales[2 * block + 1]];
            for (i, whole) in whole.iter_mut().enumerate() {
                let low = (ql[i] >> (4 * (quarter / 2))) & 15;
                let high = (qh[i] >> (2 * quarter)) & 3;
                *whole = (i16::from(low | high << 4) - 32) * i16::from(scales[i / 16]);
            }
        }
        strip.d = [self.d.to_f32(); MOST];
        strip.m = [0.0; MOST];
    }
}

/// The kernel of a type: block `b` of 32 of a row goes to partial sum `b % 4`; the four are added up at the end. `products` is the
/// sum of 32 products.
pub(super) fn matmul<W: Whole>(
    tile: &Tile<'_>,
    products: impl Fn(&[i16; 32], &[i16; 32]) -> i32 + Copy,
) {
    let Operand::Wide(x, kind) = tile.x else {
        unreachable!("the tile checks the kind")
    };
    let x_len = kind.row_len(tile.cols);
    let mut strip = Strip {
        whole: [[0; 32]; MOST],
        d: [0.0; MOST],
        m: [0.0; MOST],
    };
    for r in 0..tile.rows {
        let row = as_blocks::<W>(&tile.weights[r * tile.row_bytes..][..tile.row_bytes]);
        for first in (0..tile.tokens).step_by(TOKENS) {
            let count = TOKENS.min(tile.tokens - first);
            let mut sums = [[0f32; 4]; TOKENS];
            for (i, block) in row.iter().enumerate() {
                block.strip(&mut strip);
                for b in 0..W::BLOCKS {
                    let at = i * W::BLOCKS + b;
                    for t in 0..count {
                        let x = &x[(first + t) * x_len + at / 4];
                        let whole = products(&strip.whole[b], &x.whole[at % 4]) as f32;
                        let sum = &mut sums[t][at % 4];
                        *sum = (strip.d[b] * x.scale[at % 4]).mul_add(whole, *sum);
                        *sum = strip.m[b].mul_add(x.total[at % 4], *sum);
                    }
                }
            }
            for (t, [a, b, c, d]) in sums.into_iter().enumerate().take(count) {
                let sum = (a + c) + (b + d);
                // SAFETY: the place belongs to this tile, by the promise made to `Tile::new`.
                unsafe {
                    tile.out
                        .start
                        .add((first + t) * tile.out.stride + r)
                        .write(sum)
                };
            }
        }
    }
}

/// Calls `$call!(Block)` with the block of a type that comes as whole numbers; `$else` for the others.
macro_rules! with_whole {
    ($ty:expr, $call:ident, $else:expr) => {{
        use backplane_weights::blocks::*;
        match $ty {
            TensorType::Q8_0 => $call!(BlockQ8_0),
            TensorType::Q4_0 => $call!(BlockQ4_0),
            TensorType::Q4_1 => $call!(BlockQ4_1),
            TensorType::Q5_0 => $call!(BlockQ5_0),
            TensorType::Q5_1 => $call!(BlockQ5_1),
            TensorType::IQ4_NL => $call!(BlockIQ4NL),
            TensorType::MXFP4 => $call!(BlockMxfp4),
            TensorType::Q4_K => $call!(BlockQ4K),
            TensorType::Q5_K => $call!(BlockQ5K),
            TensorType::Q6_K => $call!(BlockQ6K),
            _ => $else,
        }
    }};
}
pub(super) use with_whole;
