//! One token, or a few, and types with blocks of 256: four rows, far from each other, at a time, as in [`narrow`](super::narrow).
//!
//! Activations come as words; here they are put as two planes of bytes into the order of [`Group32`](crate::activations::Group32), once for
//! all rows that a thread has of a job, and meet the weights as bytes. Lane `4 b + r` of a sum is block `b` of row `r` again.

// Rows and tokens are indices into several arrays at once.
#![allow(clippy::needless_range_loop)]

use super::super::super::{Line, Operand, Scratch, Tile};
use super::super::{AHEAD, far, soon};
use super::blocks256::{Q4K, Q5K, Q6K};
use super::narrow::{Quad, ROWS, sums_of_parts, tiles};
use crate::activations::Wide;
use std::arch::x86_64::*;

/// What a job's number is told apart by from that of activations which [`lanes`](super::lanes) left.
const PLANES: u64 = 1 << 63;

/// 128 activations: four blocks of 32.
#[repr(C, align(64))]
struct Group {
    /// Upper plane: first halves of the blocks, `[4 blocks, 16]`, and their second halves.
    high: [__m512i; 2],
    /// Lower plane.
    low: [__m512i; 2],
    /// Per lane: the scale.
    scale: __m512,
    /// Per lane: the sum of its block's whole numbers times the scale.
    total: __m512,
    /// Per lane: sums of the whole numbers of its block's halves.
    sums: [__m512i; 2],
}

/// Lines of memory that a group takes.
const LINES: usize = size_of::<Group>() / size_of::<Line>();

/// Scales of 256 elements of four rows, lane `4 b + r`, of the first four blocks and of the others.
pub(super) struct Scales {
    /// Of each block.
    d: [__m512; 2],
    /// Minima, to be taken off; of types that have them.
    m: [__m512; 2],
    /// Whole numbers by which the sums of a block's halves are multiplied; of types that have scales for 16.
    halves: [[__m512i; 2]; 2],
}

/// A storage type with blocks of 256 whose weights come as bytes.
pub(super) trait Weights {
    /// Bytes of a block.
    const BYTES: usize;
    /// What the stored numbers are too large by, a power of two, where each half of a block of 32 has a scale of its own; `None` for types with
    /// minima.
    const OFFSET: Option<u32>;

    /// Blocks of 32 `4 part .. 4 part + 4` as unsigned bytes, first halves and second halves, as in [`Group`].
    ///
    /// # Safety
    /// A block lies at `p`, and the processor has AVX-512 F, BW, DQ, VL.
    unsafe fn unpack(p: *const u8, part: usize) -> [__m512i; 2];

    /// Scales of a block of each row.
    ///
    /// # Safety
    /// Blocks lie there, and the processor has AVX-512 F, BW, DQ, VL, F16C.
    unsafe fn scales(rows: [*const u8; ROWS]) -> Scales;
}

/// The kernel of a type with blocks of 256.
///
/// # Safety
/// The processor has AVX-512 F, BW, DQ, VL, VNNI, and AVX2, FMA, F16C; the tile is of this storage type.
///
/// # Panics
/// When there are not [`LINES`] lines for each group.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
pub(super) unsafe fn tiles256<W: Weights>(tile: &Tile<'_>, scratch: &mut Scratch<'_>) {
    let Operand::Wide(x, _) = tile.x else {
        unreachable!("the tile checks the kind")
    };
    let job = match tile.job {
        0 => 0,
        job => job ^ PLANES,
    };
    let (lines, there) = scratch.of_job(job);
    assert!(LINES * x.len() <= lines.len(), "room for all groups");
    let groups = lines.as_mut_ptr().cast::<Group>();
    if !there {
        for (i, x) in x.iter().enumerate() {
            // SAFETY: there is room for as many, as aligned as lines are.
            unsafe { groups.add(i).write(planes(x)) };
        }
    }
    // SAFETY: written just now, or by a tile with the same activations.
    let x = unsafe { std::slice::from_raw_parts(groups, x.len()) };
    let x_len = tile.cols / Wide::ELEMS;
    tiles!(tile, x, x_len, product256, W);
}

/// Activations as planes.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2")]
fn planes(x: &Wide) -> Group {
    let (mut highs, mut lows) = ([_mm256_setzero_si256(); 4], [_mm256_setzero_si256(); 4]);
    for (b, block) in x.whole.iter().enumerate() {
        // SAFETY: 32 words.
        let whole = unsafe { _mm512_loadu_si512(block.as_ptr().cast()) };
        let upper = _mm512_srai_epi16::<7>(_mm512_add_epi16(whole, _mm512_set1_epi16(64)));
        highs[b] = _mm512_cvtepi16_epi8(upper);
        lows[b] = _mm512_cvtepi16_epi8(_mm512_sub_epi16(whole, _mm512_slli_epi16::<7>(upper)));
    }
    let by_halves = |[a, b, c, d]: [__m256i; 4]| {
        let front = _mm512_inserti64x4::<1>(_mm512_castsi256_si512(a), b);
        let back = _mm512_inserti64x4::<1>(_mm512_castsi256_si512(c), d);
        [
            _mm512_shuffle_i32x4::<0b10_00_10_00>(front, back),
            _mm512_shuffle_i32x4::<0b11_01_11_01>(front, back),
        ]
    };
    let (high, low) = (by_halves(highs), by_halves(lows));
    let sums = [0, 1].map(|half| {
        let ones = _mm512_set1_epi8(1);
        let four = _mm512_dpbusd_epi32(_mm512_setzero_si512(), ones, high[half]);
        let four = _mm512_dpbusd_epi32(_mm512_slli_epi32::<7>(four), ones, low[half]);
        let two = _mm512_add_epi32(four, _mm512_shuffle_epi32::<0b10_11_00_01>(four));
        _mm512_add_epi32(two, _mm512_shuffle_epi32::<0b01_00_11_10>(two))
    });
    Group {
        high,
        low,
        scale: four_times(&x.scale),
        total: four_times(&x.total),
        sums,
    }
}

/// Four numbers, each in four lanes.
#[inline]
#[target_feature(enable = "avx512f")]
fn four_times(four: &[f32; 4]) -> __m512 {
    // SAFETY: four floats.
    let four = _mm512_castps128_ps512(unsafe { _mm_loadu_ps(four.as_ptr()) });
    let index = _mm512_set_epi32(3, 3, 3, 3, 2, 2, 2, 2, 1, 1, 1, 1, 0, 0, 0, 0);
    _mm512_permutexvar_ps(index, four)
}

/// Sums of products of some bytes with both planes of as many activations.
#[inline]
#[target_feature(enable = "avx512f,avx512vnni")]
fn products<const N: usize>(w: [__m512i; N], high: [__m512i; N], low: [__m512i; N]) -> __m512i {
    let mut sums = _mm512_setzero_si512();
    for i in 0..N {
        sums = _mm512_dpbusd_epi32(sums, w[i], high[i]);
    }
    sums = _mm512_slli_epi32::<7>(sums);
    for i in 0..N {
        sums = _mm512_dpbusd_epi32(sums, w[i], low[i]);
    }
    sums
}

/// Four rows times `T` tokens of a type with blocks of 256.
///
/// # Safety
/// The quad's rows have `cols` elements; `T` rows of `x_len` groups lie at `x`.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
unsafe fn product256<W: Weights, const T: usize>(
    quad: &Quad,
    cols: usize,
    x: *const Group,
    x_len: usize,
) {
    let mut sums = [_mm512_setzero_ps(); T];
    for g in 0..cols / 256 {
        // SAFETY: block `g` of every row.
        let (at, scales) = unsafe {
            let at = quad.rows.map(|row| row.add(g * W::BYTES));
            for r in 0..ROWS {
                soon(at[r].wrapping_offset(quad.far[r]), W::BYTES);
            }
            (at, W::scales(at))
        };
        for part in 0..2 {
            // SAFETY: as above. Not by `map`: what a closure does would be called.
            let w = unsafe {
                [
                    W::unpack(at[0], part),
                    W::unpack(at[1], part),
                    W::unpack(at[2], part),
                    W::unpack(at[3], part),
                ]
            };
            for t in 0..T {
                // SAFETY: the two groups of every token that go with the block.
                let x = unsafe { &*x.add(t * x_len + 2 * g + part) };
                let mut whole = [_mm512_setzero_si512(); ROWS];
                let whole = match W::OFFSET {
                    None => {
                        for r in 0..ROWS {
                            whole[r] = products(w[r], x.high, x.low);
                        }
                        sums_of_parts(whole)
                    }
                    Some(offset) => {
                        let shift = _mm_cvtsi32_si128(offset.trailing_zeros() as i32);
                        let mut both = _mm512_setzero_si512();
                        for half in 0..2 {
                            for r in 0..ROWS {
                                whole[r] = products([w[r][half]], [x.high[half]], [x.low[half]]);
                            }
                            let offset = _mm512_sll_epi32(x.sums[half], shift);
                            let sum = _mm512_sub_epi32(sums_of_parts(whole), offset);
                            let scaled = _mm512_mullo_epi32(sum, scales.halves[part][half]);
                            both = _mm512_add_epi32(both, scaled);
                        }
                        both
                    }
                };
                let value = _mm512_cvtepi32_ps(whole);
                let scale = _mm512_mul_ps(scales.d[part], x.scale);
                sums[t] = _mm512_fmadd_ps(scale, value, sums[t]);
                if W::OFFSET.is_none() {
                    sums[t] = _mm512_fnmadd_ps(scales.m[part], x.total, sums[t]);
                }
            }
        }
    }
    for t in 0..T {
        // SAFETY: the quad's results are the tile's own.
        unsafe { quad.write(t, sums[t]) };
    }
}

/// Sixteen bytes of each row.
///
/// # Safety
/// They lie there.
#[inline]
#[target_feature(enable = "avx512f,avx512dq,avx2")]
unsafe fn sixteen_bytes([a, b, c, d]: [*const u8; ROWS]) -> __m512i {
    // SAFETY: the caller's promise.
    unsafe {
        let v = _mm512_castsi128_si512(_mm_loadu_si128(a.cast()));
        let v = _mm512_inserti32x4::<1>(v, _mm_loadu_si128(b.cast()));
        let v = _mm512_inserti32x4::<2>(v, _mm_loadu_si128(c.cast()));
        _mm512_inserti32x4::<3>(v, _mm_loadu_si128(d.cast()))
    }
}

/// Lanes `0, 4, 8, 12` plus `first`, four times.
#[inline]
#[target_feature(enable = "avx512f")]
fn every_fourth(first: i32) -> __m512i {
    let index = _mm512_set_epi32(12, 8, 4, 0, 12, 8, 4, 0, 12, 8, 4, 0, 12, 8, 4, 0);
    _mm512_add_epi32(index, _mm512_set1_epi32(first))
}

/// Scales and minima of Q4_K and Q5_K.
///
/// # Safety
/// At each row: scale, scale of minima (2 bytes each), then 12 bytes of 6-bit scales and minima.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,f16c")]
unsafe fn six_bits(rows: [*const u8; ROWS]) -> Scales {
    // SAFETY: the caller's promise.
    let heads = unsafe { sixteen_bytes(rows) };
    // Of each row four bytes of scales, of minima, then of the other scales, and minima, whose upper bits are those of the former.
    let lower = _mm512_shuffle_epi32::<0b11_11_10_01>(heads);
    let lower = _mm512_srlv_epi32(lower, _mm512_broadcast_i32x4(_mm_set_epi32(4, 0, 0, 0)));
    let upper = _mm512_srli_epi32::<2>(_mm512_shuffle_epi32::<0b10_01_00_00>(heads));
    let of_lower = _mm_set_epi32(0x0f0f_0f0f, 0x0f0f_0f0f, 0x3f3f_3f3f, 0x3f3f_3f3f);
    let of_upper = _mm_set_epi32(0x3030_3030, 0x3030_3030, 0, 0);
    let bytes = _mm512_or_si512(
        _mm512_and_si512(lower, _mm512_broadcast_i32x4(of_lower)),
        _mm512_and_si512(upper, _mm512_broadcast_i32x4(of_upper)),
    );
    let byte_of_block = _mm512_set_epi32(24, 24, 24, 24, 16, 16, 16, 16, 8, 8, 8, 8, 0, 0, 0, 0);
    let numbers = |part: i32| {
        let four = _mm512_permutexvar_epi32(every_fourth(part), bytes);
        let one = _mm512_and_si512(
            _mm512_srlv_epi32(four, byte_of_block),
            _mm512_set1_epi32(255),
        );
        _mm512_cvtepi32_ps(one)
    };
    // Scale and scale of minima of each row.
    let both = _mm512_permutexvar_epi32(every_fourth(0), heads);
    let both = _mm512_castps256_ps512(_mm256_cvtph_ps(_mm512_castsi512_si128(both)));
    let twice = _mm512_broadcast_i32x4(_mm_set_epi32(6, 4, 2, 0));
    let d = _mm512_permutexvar_ps(twice, both);
    let dmin = _mm512_permutexvar_ps(_mm512_add_epi32(twice, _mm512_set1_epi32(1)), both);
    // The products are exact: 11 bits times 6.
    Scales {
        d: [_mm512_mul_ps(numbers(0), d), _mm512_mul_ps(numbers(2), d)],
        m: [
            _mm512_mul_ps(numbers(1), dmin),
            _mm512_mul_ps(numbers(3), dmin),
        ],
        halves: [[_mm512_setzero_si512(); 2]; 2],
    }
}

/// Nibbles of 64 bytes: of each 32 bytes the low ones are a block, the high ones the next.
///
/// # Safety
/// They lie at `p`.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
unsafe fn four_blocks(p: *const u8) -> [__m512i; 2] {
    // SAFETY: the caller's promise.
    let both = unsafe { _mm512_loadu_si512(p.cast()) };
    let mask = _mm512_set1_epi8(15);
    let low = _mm512_and_si512(both, mask);
    let high = _mm512_and_si512(_mm512_srli_epi16::<4>(both), mask);
    let first = _mm512_set_epi64(13, 12, 5, 4, 9, 8, 1, 0);
    let second = _mm512_add_epi64(first, _mm512_set1_epi64(2));
    [
        _mm512_permutex2var_epi64(low, first, high),
        _mm512_permutex2var_epi64(low, second, high),
    ]
}

impl Weights for Q4K {
    const BYTES: usize = 144;
    const OFFSET: Option<u32> = None;

    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
    unsafe fn unpack(p: *const u8, part: usize) -> [__m512i; 2] {
        // SAFETY: a block lies at `p`: 128 bytes of nibbles from 16 on.
        unsafe { four_blocks(p.add(16 + 64 * part)) }
    }

    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
    unsafe fn scales(rows: [*const u8; ROWS]) -> Scales {
        // SAFETY: blocks begin as it wants them.
        unsafe { six_bits(rows) }
    }
}

impl Weights for Q5K {
    const BYTES: usize = 176;
    const OFFSET: Option<u32> = None;

    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
    unsafe fn unpack(p: *const u8, part: usize) -> [__m512i; 2] {
        // SAFETY: a block lies at `p`: 32 bytes of fifth bits from 16 on, nibbles from 48 on.
        let (mut all, bits) = unsafe {
            let bits = [0, 16].map(|first| _mm_loadu_si128(p.add(16 + first).cast()));
            (four_blocks(p.add(48 + 64 * part)), bits)
        };
        // Bit `i` of a byte belongs to block `i`.
        let of_block = _mm512_set_epi64(8, 8, 4, 4, 2, 2, 1, 1);
        let of_block = _mm512_mullo_epi64(of_block, _mm512_set1_epi64(0x0101_0101_0101_0101));
        let of_block = match part {
            0 => of_block,
            _ => _mm512_slli_epi64::<4>(of_block),
        };
        for (half, bits) in all.iter_mut().zip(bits) {
            let set = _mm512_test_epi8_mask(_mm512_broadcast_i32x4(bits), of_block);
            *half = _mm512_mask_add_epi8(*half, set, *half, _mm512_set1_epi8(16));
        }
        all
    }

    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
    unsafe fn scales(rows: [*const u8; ROWS]) -> Scales {
        // SAFETY: blocks begin as it wants them.
        unsafe { six_bits(rows) }
    }
}

impl Weights for Q6K {
    const BYTES: usize = 210;
    const OFFSET: Option<u32> = Some(32);

    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
    unsafe fn unpack(p: *const u8, part: usize) -> [__m512i; 2] {
        // SAFETY: a block lies at `p`: 128 bytes of low nibbles, 64 of upper bits.
        let (nibbles, bits) = unsafe {
            (
                _mm512_loadu_si512(p.add(64 * part).cast()),
                _mm256_loadu_si256(p.add(128 + 32 * part).cast()),
            )
        };
        let (nibble, six) = (_mm512_set1_epi8(15), _mm512_set1_epi8(63));
        let bits = _mm512_broadcast_i64x4(bits);
        // Blocks 0 and 1 have the lower four bits of each byte of upper ones, blocks 2 and 3 the upper four.
        let of_low = _mm512_sllv_epi64(bits, _mm512_set_epi64(2, 2, 2, 2, 4, 4, 4, 4));
        let of_high = _mm512_srlv_epi64(bits, _mm512_set_epi64(2, 2, 2, 2, 0, 0, 0, 0));
        // A nibble, and what lies above it in the other: the bits of the first where the last are set.
        let both = |low, bits| _mm512_ternarylogic_epi64::<0b1110_0100>(low, bits, nibble);
        let low = _mm512_and_si512(both(nibbles, of_low), six);
        let high = _mm512_and_si512(both(_mm512_srli_epi16::<4>(nibbles), of_high), six);
        [
            _mm512_shuffle_i32x4::<0b10_00_10_00>(low, high),
            _mm512_shuffle_i32x4::<0b11_01_11_01>(low, high),
        ]
    }

    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
    unsafe fn scales(rows: [*const u8; ROWS]) -> Scales {
        // SAFETY: 16 scales from 192 on, then the block's scale.
        let (scales, d) = unsafe {
            let [a, b, c, d] =
                rows.map(|row| u64::from(row.add(208).cast::<u16>().read_unaligned()));
            (
                sixteen_bytes(rows.map(|row| row.add(192))),
                _mm_cvtsi64_si128((a | b << 16 | c << 32 | d << 48) as i64),
            )
        };
        let d = _mm512_broadcast_f32x4(_mm_cvtph_ps(d));
        // Four bytes are the scales of two blocks.
        let pairs = _mm512_set_epi32(13, 9, 5, 1, 13, 9, 5, 1, 12, 8, 4, 0, 12, 8, 4, 0);
        let up = _mm512_set_epi32(8, 8, 8, 8, 24, 24, 24, 24, 8, 8, 8, 8, 24, 24, 24, 24);
        let halves = |part: i32| {
            let index = _mm512_add_epi32(pairs, _mm512_set1_epi32(2 * part));
            let pairs = _mm512_permutexvar_epi32(index, scales);
            let second = _mm512_sub_epi32(up, _mm512_set1_epi32(8));
            [up, second].map(|up| _mm512_srai_epi32::<24>(_mm512_sllv_epi32(pairs, up)))
        };
        Scales {
            d: [d, d],
            m: [_mm512_setzero_ps(); 2],
            halves: [halves(0), halves(1)],
        }
    }
}
