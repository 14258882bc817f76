//! Many tokens at once: rows of weights are repacked into a panel in which every lane is a row.
//!
//! A panel holds [`ROWS`] rows as whole numbers of 16 bits, two neighbours of one row in a lane, so that one instruction multiplies
//! two activations (the same for all lanes) with 16 rows. It is made inside the product and thrown away after it.
//!
//! The order of the sums is that of [`narrow`](super::narrow): within a block of 32 whole numbers, exactly; block `b` goes to
//! partial sum `b % 4`; the four are added up at the end.

// Rows and tokens are indices into several arrays at once.
#![allow(clippy::needless_range_loop)]

use super::super::super::{Operand, Scratch, Tile};
use super::super::ahead;
use super::whole::{STRIP, Strip, Whole, add_products};
use crate::activations::Wide;
use crate::kernels::Line;
use std::arch::x86_64::*;
use std::mem::MaybeUninit;

/// Rows of a panel.
const ROWS: usize = 32;
/// Pairs of neighbours in a block.
const PAIRS: usize = 16;
/// Most tokens multiplied at once.
const TOKENS: usize = 12;

/// Lines of memory that a panel of `cols` columns takes.
pub(super) fn lines(cols: usize) -> usize {
    // Whole numbers, scales, minima.
    cols.div_ceil(32) * (2 * PAIRS + 2 + 2)
}

/// Where a panel's parts are: `[blocks, PAIRS, 2, 16 lanes of 2 words]`, `[blocks, ROWS]`, `[blocks, ROWS]`.
#[derive(Clone, Copy)]
struct Panel {
    whole: *mut __m512i,
    d: *mut f32,
    m: *mut f32,
}

impl Panel {
    /// # Panics
    /// When there are fewer than `lines(32 * blocks)` lines.
    fn new(scratch: &mut [Line], blocks: usize) -> Self {
        let scratch = &mut scratch[..lines(32 * blocks)];
        let (whole, rest) = scratch.split_at_mut(blocks * 2 * PAIRS);
        let (d, m) = rest.split_at_mut(2 * blocks);
        Self {
            whole: whole.as_mut_ptr().cast(),
            d: d.as_mut_ptr().cast(),
            m: m.as_mut_ptr().cast(),
        }
    }
}

/// The kernel of a storage type for activations as [`Wide`] groups.
///
/// # Safety
/// The processor has AVX-512 F, BW, DQ, VL, VNNI, and AVX2, FMA, F16C; the tile is of this storage type.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
pub(super) unsafe fn panels<W: Whole>(tile: &Tile<'_>, scratch: &mut Scratch<'_>) {
    let Operand::Wide(x, _) = tile.x else {
        unreachable!("the tile checks the kind")
    };
    let x_len = tile.cols.div_ceil(Wide::ELEMS);
    let blocks = tile.cols / 32;
    let panel = Panel::new(scratch.alone(), blocks);
    for first in (0..tile.rows).step_by(ROWS) {
        let rows = ROWS.min(tile.rows - first);
        for half in 0..2 {
            // SAFETY: rows of the tile, of which the last stands for those that are not there; the panel has room for them.
            unsafe {
                let row = |lane: usize| {
                    let row = first + (16 * half + lane).min(rows - 1);
                    tile.weights[row * tile.row_bytes..].as_ptr()
                };
                pack::<W>(std::array::from_fn(row), blocks, panel, half);
            }
        }
        // Rows `0..16` and `16..32` of the panel that are there.
        let there = u32::MAX >> (ROWS - rows);
        let masks = [there as u16, (there >> 16) as u16];
        let mut token = 0;
        macro_rules! pass {
            ($t:expr) => {
                while tile.tokens - token >= $t {
                    // SAFETY: tokens `token .. token + T` lie in the tile; the panel is full; the masks keep writes to the rows
                    // of the tile.
                    unsafe {
                        let x = x[token * x_len..].as_ptr();
                        let out = tile.out.start.add(token * tile.out.stride + first);
                        if W::MINIMA {
                            product::<true, { $t }>(panel, blocks, x, x_len, out, tile.out.stride, masks);
                        } else {
                            product::<false, { $t }>(panel, blocks, x, x_len, out, tile.out.stride, masks);
                        }
                    }
                    token += $t;
                }
            };
        }
        pass!(TOKENS);
        pass!(8);
        pass!(4);
        pass!(1);
    }
}

/// Packs 16 rows into one half of a panel.
///
/// # Safety
/// `blocks` blocks of 32 lie at each of `rows`; the panel has room for as many.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
unsafe fn pack<W: Whole>(rows: [*const u8; 16], blocks: usize, panel: Panel, half: usize) {
    let mut whole = [[_mm512_setzero_si512(); 16]; STRIP];
    for first in (0..blocks).step_by(STRIP) {
        let count = STRIP.min(blocks - first);
        let bytes = first * 32 / W::ELEMS * W::BYTES;
        for (lane, row) in rows.into_iter().enumerate() {
            // SAFETY: `count` blocks of 32 lie there; rows and blocks that the panel has room for.
            unsafe {
                let at = row.add(bytes);
                ahead(at, count * 32 / W::ELEMS * W::BYTES);
                let Strip { whole: q, d, m } = W::strip(at, count);
                let (mut ds, mut ms) = ([0f32; STRIP], [0f32; STRIP]);
                _mm256_storeu_ps(ds.as_mut_ptr(), d);
                _mm256_storeu_ps(ms.as_mut_ptr(), m);
                for i in 0..count {
                    whole[i][lane] = q[i];
                    let place = (first + i) * ROWS + 16 * half + lane;
                    panel.d.add(place).write(ds[i]);
                    panel.m.add(place).write(ms[i]);
                }
            }
        }
        for i in 0..count {
            let pairs = turn(&whole[i]);
            for (pair, lanes) in pairs.into_iter().enumerate() {
                // SAFETY: the panel has room for the block.
                unsafe {
                    let place = ((first + i) * PAIRS + pair) * 2 + half;
                    _mm512_store_si512(panel.whole.add(place), lanes);
                }
            }
        }
    }
}

/// Turns 16 rows of 16 lanes: lane `r` of result `i` is lane `i` of row `r`.
#[inline]
#[target_feature(enable = "avx512f")]
fn turn(rows: &[__m512i; 16]) -> [__m512i; 16] {
    let zero = _mm512_setzero_si512();
    // Within parts of four lanes: rows 4 k .. 4 k + 4.
    let mut quads = [zero; 16];
    for k in 0..4 {
        let [a, b, c, d] = [0, 1, 2, 3].map(|i| rows[4 * k + i]);
        let (ab, cd) = (_mm512_unpacklo_epi32(a, b), _mm512_unpacklo_epi32(c, d));
        quads[4 * k] = _mm512_unpacklo_epi64(ab, cd);
        quads[4 * k + 1] = _mm512_unpackhi_epi64(ab, cd);
        let (ab, cd) = (_mm512_unpackhi_epi32(a, b), _mm512_unpackhi_epi32(c, d));
        quads[4 * k + 2] = _mm512_unpacklo_epi64(ab, cd);
        quads[4 * k + 3] = _mm512_unpackhi_epi64(ab, cd);
    }
    // Then the parts.
    let mut lanes = [zero; 16];
    for i in 0..4 {
        let [a, b, c, d] = [0, 1, 2, 3].map(|k| quads[4 * k + i]);
        let (ab, cd) = (
            _mm512_shuffle_i32x4::<0b10_00_10_00>(a, b),
            _mm512_shuffle_i32x4::<0b10_00_10_00>(c, d),
        );
        lanes[i] = _mm512_shuffle_i32x4::<0b10_00_10_00>(ab, cd);
        lanes[8 + i] = _mm512_shuffle_i32x4::<0b11_01_11_01>(ab, cd);
        let (ab, cd) = (
            _mm512_shuffle_i32x4::<0b11_01_11_01>(a, b),
            _mm512_shuffle_i32x4::<0b11_01_11_01>(c, d),
        );
        lanes[4 + i] = _mm512_shuffle_i32x4::<0b10_00_10_00>(ab, cd);
        lanes[12 + i] = _mm512_shuffle_i32x4::<0b11_01_11_01>(ab, cd);
    }
    lanes
}

/// A panel times `T` tokens.
///
/// # Safety
/// The panel has `blocks` blocks; `T` rows of `x_len` groups lie at `x`; the masked lanes of `t * stride .. t * stride + 32` of
/// `out` may be written.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
unsafe fn product<const MINIMA: bool, const T: usize>(
    panel: Panel,
    blocks: usize,
    x: *const Wide,
    x_len: usize,
    out: *mut f32,
    stride: usize,
    masks: [u16; 2],
) {
    // Written by the first four blocks; of fewer, by what follows.
    let mut sums = [const { MaybeUninit::<[[__m512; 2]; T]>::uninit() }; 4];
    for sums in &mut sums[blocks.min(4)..] {
        sums.write([[_mm512_setzero_ps(); 2]; T]);
    }
    for b in 0..blocks {
        // SAFETY: the block is in the panel, and its activations in the group.
        unsafe {
            let mut whole = [[_mm512_setzero_si512(); 2]; T];
            let lanes = panel.whole.add(b * PAIRS * 2);
            let x = x.add(b / 4);
            let pairs = (&raw const (*x).whole[b % 4]).cast::<i32>();
            for pair in 0..PAIRS {
                let w = [*lanes.add(2 * pair), *lanes.add(2 * pair + 1)];
                for t in 0..T {
                    // Groups are a whole number of pairs long.
                    let at = pairs.add(t * x_len * (size_of::<Wide>() / 4) + pair);
                    let x = _mm512_set1_epi32(*at);
                    whole[t][0] = add_products(whole[t][0], w[0], x);
                    whole[t][1] = add_products(whole[t][1], w[1], x);
                }
            }
            let [d, m] = [panel.d, panel.m].map(|at| at.add(b * ROWS).cast::<__m512>());
            let (d, m) = ([*d, *d.add(1)], [*m, *m.add(1)]);
            let sums = sums[b % 4].as_mut_ptr().cast::<[__m512; 2]>();
            for t in 0..T {
                let x = x.add(t * x_len);
                let scale = _mm512_set1_ps((*x).scale[b % 4]);
                let total = _mm512_set1_ps((*x).total[b % 4]);
                for h in 0..2 {
                    let value = _mm512_cvtepi32_ps(whole[t][h]);
                    let sum = (&raw mut (*sums.add(t))[h]).cast::<f32>();
                    let before = match b < 4 {
                        true => _mm512_setzero_ps(),
                        false => _mm512_load_ps(sum),
                    };
                    let after = _mm512_fmadd_ps(_mm512_mul_ps(d[h], scale), value, before);
                    let after = match MINIMA {
                        true => _mm512_fmadd_ps(m[h], total, after),
                        false => after,
                    };
                    _mm512_store_ps(sum, after);
                }
            }
        }
    }
    // SAFETY: each was written above.
    let sums = sums.map(|sums| unsafe { sums.assume_init() });
    for t in 0..T {
        for h in 0..2 {
            let [a, b, c, d] = [0, 1, 2, 3].map(|part| sums[part][t][h]);
            let sum = _mm512_add_ps(_mm512_add_ps(a, c), _mm512_add_ps(b, d));
            // SAFETY: the caller's promise about `out`.
            unsafe { _mm512_mask_storeu_ps(out.add(t * stride + 16 * h), masks[h], sum) };
        }
    }
}
