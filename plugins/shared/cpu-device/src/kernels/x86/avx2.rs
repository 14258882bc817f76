//! AVX2 kernels.
//!
//! As the AVX-512 kernels, with half a group (64 elements) or an eighth of one (32) per vector. A result is one vector of
//! eight partial sums whose order of operations is the same whatever the number of rows and tokens at once.

// Rows and tokens are indices into several arrays at once.
#![allow(clippy::needless_range_loop)]

use super::super::{Operand, Scratch, Tile};
use super::ahead;
use super::points::{Iq1M, Iq1S, Iq2S, Iq2Xs, Iq2Xxs, Iq3S, Iq3Xxs};
use crate::activations::{Group32, Group256};
use std::arch::x86_64::*;

mod blocks256;
mod blocks32;
mod floats;
mod points;

use blocks32::{Iq4Nl, Mxfp4, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Weights32};
use blocks256::{Iq4Xs, Q2K, Q3K, Q4K, Q5K, Q6K, Tq1, Tq2, Weights256};
use floats::{Bf16, F16, F32, WeightsFloat};
use points::Lattice;

/// Sum of eight partial sums, always in the same order.
#[inline]
#[target_feature(enable = "avx2,fma")]
fn total(v: __m256) -> f32 {
    let v = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps::<1>(v));
    let v = _mm_add_ps(v, _mm_movehl_ps(v, v));
    _mm_cvtss_f32(_mm_add_ss(v, _mm_shuffle_ps::<1>(v, v)))
}

/// Runs `$block::<$w, R, T>` over the rows and tokens of a tile: four tokens and two rows at once while there are as many,
/// then one token and four rows far from each other.
macro_rules! matmul {
    ($name:ident, $block:ident, $weights:ty, $operand:ident) => {
        /// The kernel of a storage type.
        ///
        /// # Safety
        /// The processor has AVX2, FMA and F16C; the tile is of this storage type.
        #[target_feature(enable = "avx2,fma,f16c")]
        pub(crate) unsafe fn $name(tile: &Tile<'_>, _scratch: &mut Scratch<'_>) {
            let Operand::$operand(x) = tile.x else { unreachable!("the tile checks the kind") };
            let x_len = tile.x.kind().row_len(tile.cols);
            let (rows, bytes) = (tile.rows, tile.row_bytes);
            let mut token = 0;
            while token < tile.tokens {
                let left = tile.tokens - token;
                let x = x[token * x_len..].as_ptr();
                let weights = |row: usize| tile.weights[row * bytes..].as_ptr();
                let mut row = 0;
                macro_rules! pass {
                    // Rows that are neighbours.
                    ($r:literal, $t:literal) => {
                        while rows - row >= $r {
                            pass!($r, $t, row, 1);
                            row += $r;
                        }
                    };
                    // Rows `$apart` from each other: memory gives more when it is read in several places at once.
                    ($r:literal, $t:literal, $apart:expr) => {
                        let apart = $apart;
                        while row < apart {
                            pass!($r, $t, row, apart);
                            row += 1;
                        }
                        row = $r * apart;
                    };
                    ($r:literal, $t:literal, $row:expr, $apart:expr) => {
                        // SAFETY: rows `row + r * apart` for `r < R` and tokens `token .. token + T` lie in the tile, whose
                        // sizes `Tile::new` has checked, and the results' places are the tile's own.
                        unsafe {
                            let out = tile.out.start.add(token * tile.out.stride + $row);
                            let places = [tile.out.stride, $apart];
                            $block::<$weights, $r, $t>(weights($row), $apart * bytes, tile.cols, x, x_len, out, places);
                        }
                    };
                }
                token += if left >= 4 {
                    pass!(2, 4);
                    pass!(1, 4);
                    4
                } else {
                    pass!(4, 1, rows / 4);
                    pass!(1, 1);
                    1
                };
            }
        }
    };
}

matmul!(matmul_f32_avx2, product_floats, F32, Float);
matmul!(matmul_f16_avx2, product_floats, F16, Float);
matmul!(matmul_bf16_avx2, product_floats, Bf16, Float);
matmul!(matmul_q8_0_avx2, product32, Q8_0, Int32);
matmul!(matmul_q4_0_avx2, product32, Q4_0, Int32);
matmul!(matmul_q4_1_avx2, product32, Q4_1, Int32);
matmul!(matmul_q5_0_avx2, product32, Q5_0, Int32);
matmul!(matmul_q5_1_avx2, product32, Q5_1, Int32);
matmul!(matmul_q4_k_avx2, product256, Q4K, Int256);
matmul!(matmul_q5_k_avx2, product256, Q5K, Int256);
matmul!(matmul_q6_k_avx2, product256, Q6K, Int256);
matmul!(matmul_q2_k_avx2, product256, Q2K, Int256);
matmul!(matmul_q3_k_avx2, product256, Q3K, Int256);
matmul!(matmul_iq4_nl_avx2, product32, Iq4Nl, Int32);
matmul!(matmul_iq4_xs_avx2, product256, Iq4Xs, Int256);
matmul!(matmul_mxfp4_avx2, product32, Mxfp4, Int32);
matmul!(matmul_tq1_0_avx2, product256, Tq1, Int256);
matmul!(matmul_tq2_0_avx2, product256, Tq2, Int256);
matmul!(matmul_iq2_xxs_avx2, product256, Lattice<Iq2Xxs>, Int256);
matmul!(matmul_iq2_xs_avx2, product256, Lattice<Iq2Xs>, Int256);
matmul!(matmul_iq2_s_avx2, product256, Lattice<Iq2S>, Int256);
matmul!(matmul_iq3_xxs_avx2, product256, Lattice<Iq3Xxs>, Int256);
matmul!(matmul_iq3_s_avx2, product256, Lattice<Iq3S>, Int256);
matmul!(matmul_iq1_s_avx2, product256, Lattice<Iq1S>, Int256);
matmul!(matmul_iq1_m_avx2, product256, Lattice<Iq1M>, Int256);

/// Per lane of 32 bits: `factor` times the sum of four products of unsigned bytes, below 128, with signed ones above -128.
#[inline]
#[target_feature(enable = "avx2")]
fn dot_unsigned(w: __m256i, x: __m256i, factor: i16) -> __m256i {
    // A pair's sum is at most 2 * 127 * 127: it fits 16 bits.
    _mm256_madd_epi16(_mm256_maddubs_epi16(w, x), _mm256_set1_epi16(factor))
}

/// Per lane of 32 bits: `factor` times the sum of four products of signed bytes; `x` is above -128.
#[inline]
#[target_feature(enable = "avx2")]
fn dot_signed(w: __m256i, x: __m256i, factor: i16) -> __m256i {
    // The signs of w move to x. A pair's sum is at most 2 * 128 * 127: it fits 16 bits.
    let pairs = _mm256_maddubs_epi16(_mm256_abs_epi8(w), _mm256_sign_epi8(x, w));
    _mm256_madd_epi16(pairs, _mm256_set1_epi16(factor))
}

/// Both halves of two blocks times one plane of activations, times `factor`, per lane.
#[inline]
#[target_feature(enable = "avx2")]
fn plane<const SIGNED: bool>(
    w: &blocks32::Unpacked,
    [first, second]: [__m256i; 2],
    factor: i16,
) -> __m256i {
    if SIGNED {
        return _mm256_add_epi32(
            dot_signed(w.low, first, factor),
            dot_signed(w.high, second, factor),
        );
    }
    // Weights below 32: the sums of both halves fit 16 bits together.
    let pairs = _mm256_add_epi16(
        _mm256_maddubs_epi16(w.low, first),
        _mm256_maddubs_epi16(w.high, second),
    );
    _mm256_madd_epi16(pairs, _mm256_set1_epi16(factor))
}

/// `R` rows times `T` tokens of a type with blocks of 32.
///
/// # Safety
/// `R` rows of `cols` elements, `bytes` apart, at `weights`; `T` rows of `x_len` groups at `x`; results at
/// `t * stride + r * apart` of `out`.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn product32<W: Weights32, const R: usize, const T: usize>(
    weights: *const u8,
    bytes: usize,
    cols: usize,
    x: *const Group32,
    x_len: usize,
    out: *mut f32,
    [stride, apart]: [usize; 2],
) {
    let mut sums = [[_mm256_setzero_ps(); T]; R];
    let pairs = cols / 64;
    for pair in 0..pairs {
        for r in 0..R {
            // SAFETY: two blocks of the row, and the half of a group that goes with them.
            unsafe {
                let p = weights.add(r * bytes + pair * 2 * W::BYTES);
                if T == 1 {
                    ahead(p, 2 * W::BYTES);
                }
                let w = W::unpack(p);
                take32::<W, T>(&mut sums[r], &w, x.add(pair / 2), x_len, pair % 2);
            }
        }
    }
    if !cols.is_multiple_of(64) {
        for r in 0..R {
            let mut copy = [0u8; 2 * 34];
            // SAFETY: one block is left of each row, and the copy holds two of any type here.
            unsafe {
                let last = weights.add(r * bytes + pairs * 2 * W::BYTES);
                std::ptr::copy_nonoverlapping(last, copy.as_mut_ptr(), W::BYTES.min(34));
                let w = W::unpack(copy.as_ptr());
                take32::<W, T>(&mut sums[r], &w, x.add(pairs / 2), x_len, pairs % 2);
            }
        }
    }
    for r in 0..R {
        for t in 0..T {
            // SAFETY: the caller's promise about `out`.
            unsafe { out.add(t * stride + r * apart).write(total(sums[r][t])) };
        }
    }
}

/// Adds half a group of one row and every token to the partial sums.
///
/// # Safety
/// `T` groups, `x_len` apart, at `x`; `half` is 0 or 1.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn take32<W: Weights32, const T: usize>(
    sums: &mut [__m256; T],
    w: &blocks32::Unpacked,
    x: *const Group32,
    x_len: usize,
    half: usize,
) {
    for t in 0..T {
        // SAFETY: the caller's promise about `x`; the parts of a group are multiples of 32 bytes, aligned to 32.
        let (high, low, scale, sum) = unsafe {
            let x = x.add(t * x_len);
            let planes = (&raw const (*x).high).cast::<__m256i>().add(half);
            let floats = (&raw const (*x).scale).cast::<__m256>().add(half);
            (
                [*planes, *planes.add(2)],
                [*planes.add(4), *planes.add(6)],
                *floats,
                *floats.add(2),
            )
        };
        let whole = match W::SIGNED {
            true => _mm256_add_epi32(plane::<true>(w, high, 128), plane::<true>(w, low, 1)),
            false => _mm256_add_epi32(plane::<false>(w, high, 128), plane::<false>(w, low, 1)),
        };
        let whole = _mm256_cvtepi32_ps(whole);
        let value = match W::OFFSET {
            Some(0.0) => _mm256_mul_ps(w.d, whole),
            Some(offset) => {
                _mm256_mul_ps(w.d, _mm256_fnmadd_ps(_mm256_set1_ps(offset), sum, whole))
            }
            None => _mm256_fmadd_ps(w.m, sum, _mm256_mul_ps(w.d, whole)),
        };
        sums[t] = _mm256_fmadd_ps(scale, value, sums[t]);
    }
}

/// `R` rows times `T` tokens of a type with blocks of 256.
///
/// # Safety
/// As for [`product32`].
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn product256<W: Weights256, const R: usize, const T: usize>(
    weights: *const u8,
    bytes: usize,
    cols: usize,
    x: *const Group256,
    x_len: usize,
    out: *mut f32,
    [stride, apart]: [usize; 2],
) {
    let mut sums = [[_mm256_setzero_ps(); T]; R];
    for g in 0..cols / Group256::ELEMS {
        for r in 0..R {
            // SAFETY: block `g` of the row and group `g` of every token lie within the rows the caller promised.
            unsafe {
                let block = weights.add(r * bytes + g * W::BYTES);
                if T == 1 {
                    ahead(block, W::BYTES);
                }
                let head = W::head(block);
                let mut products = [_mm256_setzero_ps(); T];
                for part in 0..8 {
                    let (q, scale) = W::part(block, &head, part);
                    for t in 0..T {
                        let x = x.add(t * x_len + g);
                        let high = *(&raw const (*x).high).cast::<__m256i>().add(part);
                        let low = *(&raw const (*x).low).cast::<__m256i>().add(part);
                        let whole = match W::SIGNED {
                            true => {
                                _mm256_add_epi32(dot_signed(q, high, 128), dot_signed(q, low, 1))
                            }
                            false => _mm256_add_epi32(
                                dot_unsigned(q, high, 128),
                                dot_unsigned(q, low, 1),
                            ),
                        };
                        let whole = _mm256_cvtepi32_ps(whole);
                        products[t] = _mm256_fmadd_ps(scale, whole, products[t]);
                    }
                }
                for t in 0..T {
                    let x = x.add(t * x_len + g);
                    let sum = (&raw const (*x).sum).cast::<f32>();
                    let minima = _mm256_mul_ps(head.minima[0], _mm256_load_ps(sum));
                    let minima =
                        _mm256_fmadd_ps(head.minima[1], _mm256_load_ps(sum.add(8)), minima);
                    let value = _mm256_mul_ps(_mm256_set1_ps(head.d), products[t]);
                    let value = _mm256_fnmadd_ps(_mm256_set1_ps(head.dmin), minima, value);
                    sums[r][t] = _mm256_fmadd_ps(_mm256_set1_ps((*x).scale), value, sums[r][t]);
                }
            }
        }
    }
    for r in 0..R {
        for t in 0..T {
            // SAFETY: the caller's promise about `out`.
            unsafe { out.add(t * stride + r * apart).write(total(sums[r][t])) };
        }
    }
}

/// `R` rows times `T` tokens of a floating-point type.
///
/// # Safety
/// As for [`product32`], with `x_len == cols`.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn product_floats<W: WeightsFloat, const R: usize, const T: usize>(
    weights: *const u8,
    bytes: usize,
    cols: usize,
    x: *const f32,
    x_len: usize,
    out: *mut f32,
    [stride, apart]: [usize; 2],
) {
    let mut sums = [[_mm256_setzero_ps(); T]; R];
    let whole = cols / 8 * 8;
    for at in (0..whole).step_by(8) {
        // SAFETY: elements `at .. at + 8` of rows and tokens.
        unsafe {
            let mut w = [_mm256_setzero_ps(); R];
            for r in 0..R {
                w[r] = W::load(weights.add(r * bytes + at * W::BYTES));
            }
            for t in 0..T {
                let x = _mm256_loadu_ps(x.add(t * x_len + at));
                for r in 0..R {
                    sums[r][t] = _mm256_fmadd_ps(w[r], x, sums[r][t]);
                }
            }
        }
    }
    let rest = cols - whole;
    if rest > 0 {
        for r in 0..R {
            for t in 0..T {
                let (mut w, mut a) = ([0u8; 32], [0f32; 8]);
                // SAFETY: the last `rest < 8` elements of the row and the token, each of at most 4 bytes.
                unsafe {
                    let row = weights.add(r * bytes + whole * W::BYTES);
                    std::ptr::copy_nonoverlapping(row, w.as_mut_ptr(), rest * W::BYTES);
                    std::ptr::copy_nonoverlapping(x.add(t * x_len + whole), a.as_mut_ptr(), rest);
                    sums[r][t] = _mm256_fmadd_ps(
                        W::load(w.as_ptr()),
                        _mm256_loadu_ps(a.as_ptr()),
                        sums[r][t],
                    );
                }
            }
        }
    }
    for r in 0..R {
        for t in 0..T {
            // SAFETY: the caller's promise about `out`.
            unsafe { out.add(t * stride + r * apart).write(total(sums[r][t])) };
        }
    }
}
