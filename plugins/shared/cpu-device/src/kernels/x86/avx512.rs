//! AVX-512 kernels with VNNI integer dot products.
//!
//! The types that most files have come as whole numbers with a scale for each 32: [`narrow`] and [`planes`] multiply four rows with one token,
//! [`lanes`] turns rows for some, [`panel`] repacks them for many; all add up in one order. The kernels of the others walk a row group by group (256
//! elements), unpack a group once, and multiply it with the same group of several tokens; there a result is one vector of 16
//! partial sums. Either way the order of operations is the same whatever the number of rows and tokens at once.

// Rows and tokens are indices into several arrays at once.
#![allow(clippy::needless_range_loop)]

use super::super::{Operand, Scratch, Tile, WIDE32_FROM};
use super::ahead;
use super::points::{Iq1M, Iq1S, Iq2S, Iq2Xs, Iq2Xxs, Iq3S, Iq3Xxs};
use crate::activations::Group256;
use backplane_weights::TensorType;
use std::arch::x86_64::*;

mod blocks256;
mod blocks32;
mod fifth;
mod floats;
mod lanes;
mod narrow;
mod panel;
mod planes;
mod points;
mod whole;

use blocks32::{Iq4Nl, Mxfp4, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0};
use blocks256::{Iq4Xs, Q2K, Q3K, Q4K, Q5K, Q6K, Tq1, Tq2, Weights256};
use floats::{Bf16, F16, F32, WeightsFloat};
use points::Lattice;

/// Lines of scratch that a tile of these columns takes at most.
pub(super) fn lines(cols: usize) -> usize {
    panel::lines(cols).max(lanes::lines(cols))
}

/// Tokens from which rows of types with blocks of 256 are repacked.
const WIDE_FROM: usize = 12;
/// The same of Q6_K, which has more to do for each token.
const WIDE_Q6_K_FROM: usize = 8;

/// Sum of 16 partial sums, always in the same order: as [`vector::total`](crate::vector).
#[inline]
#[target_feature(enable = "avx512f,avx512dq,avx2,fma")]
pub(crate) fn total(v: __m512) -> f32 {
    let v = _mm256_add_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps::<1>(v));
    let v = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps::<1>(v));
    let v = _mm_add_ps(v, _mm_movehl_ps(v, v));
    _mm_cvtss_f32(_mm_add_ss(v, _mm_shuffle_ps::<1>(v, v)))
}

/// Runs `$block::<$w, R, T>` over the rows and tokens of a tile: eight tokens and two rows at once while there are as many,
/// then four, then one token and four rows far from each other.
macro_rules! matmul {
    ($name:ident, $block:ident, $weights:ty, $operand:ident) => {
        /// The kernel of a storage type.
        ///
        /// # Safety
        /// The processor has AVX-512 F, BW, DQ, VL, VNNI, and AVX2, FMA, F16C; the tile is of this storage type.
        #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
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
                token += if left >= 8 {
                    pass!(2, 8);
                    pass!(1, 8);
                    8
                } else if left >= 4 {
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

matmul!(matmul_f32_avx512, product_floats, F32, Float);
matmul!(matmul_f16_avx512, product_floats, F16, Float);
matmul!(matmul_bf16_avx512, product_floats, Bf16, Float);
matmul!(matmul_q2_k_avx512, product256, Q2K, Int256);
matmul!(matmul_q3_k_avx512, product256, Q3K, Int256);
matmul!(matmul_iq4_xs_avx512, product256, Iq4Xs, Int256);
matmul!(matmul_tq1_0_avx512, product256, Tq1, Int256);
matmul!(matmul_tq2_0_avx512, product256, Tq2, Int256);
matmul!(matmul_iq2_xxs_avx512, product256, Lattice<Iq2Xxs>, Int256);
matmul!(matmul_iq2_xs_avx512, product256, Lattice<Iq2Xs>, Int256);
matmul!(matmul_iq2_s_avx512, product256, Lattice<Iq2S>, Int256);
matmul!(matmul_iq3_xxs_avx512, product256, Lattice<Iq3Xxs>, Int256);
matmul!(matmul_iq3_s_avx512, product256, Lattice<Iq3S>, Int256);
matmul!(matmul_iq1_s_avx512, product256, Lattice<Iq1S>, Int256);
matmul!(matmul_iq1_m_avx512, product256, Lattice<Iq1M>, Int256);

/// The kernels of types that come as whole numbers: one token, some, or panels for many. Types that a module has another form of for one token have it
/// where the processor has what that asks for.
macro_rules! matmul_whole {
    ($name:ident, $weights:ident, 32) => {
        matmul_whole!(@ $name, $weights, tile, scratch => lanes::tiles::<$weights>(tile, scratch), Operand::Wide(..));
    };
    ($name:ident, $weights:ident, 32, $one:ident) => {
        matmul_whole!(@ $name, $weights, tile, scratch => match tile.tokens == 1 && $one::there() {
            true => narrow::tiles32::<$one::$weights>(tile),
            false => lanes::tiles::<$weights>(tile, scratch),
        }, Operand::Wide(..));
    };
    ($name:ident, $weights:ident, 256, $from:expr) => {
        matmul_whole!(@ $name, $weights, tile, scratch => planes::tiles256::<$weights>(tile, scratch), _ if tile.tokens >= $from);
    };
    (@ $name:ident, $weights:ident, $tile:ident, $scratch:ident => $few:expr, $($wide:tt)+) => {
        /// The kernel of a storage type.
        ///
        /// # Safety
        /// The processor has AVX-512 F, BW, DQ, VL, VNNI, and AVX2, FMA, F16C; the tile is of this storage type.
        #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
        pub(crate) unsafe fn $name($tile: &Tile<'_>, $scratch: &mut Scratch<'_>) {
            // SAFETY: the caller's promise.
            unsafe {
                match $tile.x {
                    $($wide)+ => panel::panels::<$weights>($tile, $scratch),
                    _ => $few,
                }
            }
        }
    };
}

matmul_whole!(matmul_q8_0_avx512, Q8_0, 32);
matmul_whole!(matmul_q4_0_avx512, Q4_0, 32);
matmul_whole!(matmul_q4_1_avx512, Q4_1, 32);
matmul_whole!(matmul_q5_0_avx512, Q5_0, 32, fifth);
matmul_whole!(matmul_q5_1_avx512, Q5_1, 32);
matmul_whole!(matmul_iq4_nl_avx512, Iq4Nl, 32);
matmul_whole!(matmul_mxfp4_avx512, Mxfp4, 32);
matmul_whole!(matmul_q4_k_avx512, Q4K, 256, WIDE_FROM);
matmul_whole!(matmul_q5_k_avx512, Q5K, 256, WIDE_FROM);
matmul_whole!(matmul_q6_k_avx512, Q6K, 256, WIDE_Q6_K_FROM);

/// In which form a tile of so many tokens takes its activations here, where that isn't the form that the table has for its type.
pub(super) fn wide(ty: TensorType, tokens: usize) -> bool {
    use TensorType::{IQ4_NL, MXFP4, Q4_0, Q4_1, Q4_K, Q5_0, Q5_1, Q5_K, Q6_K, Q8_0};
    match ty {
        Q8_0 | Q4_0 | Q4_1 | Q5_0 | Q5_1 | IQ4_NL | MXFP4 => tokens >= WIDE32_FROM,
        Q4_K | Q5_K | Q6_K => true,
        _ => false,
    }
}

/// `R` rows times `T` tokens of a type with blocks of 256.
///
/// # Safety
/// `R` rows of `cols` elements, `bytes` apart, at `weights`; `T` rows of `x_len` groups at `x`; results at
/// `t * stride + r * apart` of `out`.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
unsafe fn product256<W: Weights256, const R: usize, const T: usize>(
    weights: *const u8,
    bytes: usize,
    cols: usize,
    x: *const Group256,
    x_len: usize,
    out: *mut f32,
    [stride, apart]: [usize; 2],
) {
    let mut sums = [[_mm512_setzero_ps(); T]; R];
    for g in 0..cols / Group256::ELEMS {
        for r in 0..R {
            // SAFETY: block `g` of the row and group `g` of every token lie within the rows the caller promised.
            unsafe {
                let block = weights.add(r * bytes + g * W::BYTES);
                if T == 1 {
                    ahead(block, W::BYTES);
                }
                let head = W::head(block);
                let mut products = [_mm512_setzero_ps(); T];
                for part in 0..4 {
                    let (q, scale) = W::part(block, &head, part);
                    for t in 0..T {
                        let x = x.add(t * x_len + g);
                        let high = (&raw const (*x).high).cast::<__m512i>().add(part);
                        let low = (&raw const (*x).low).cast::<__m512i>().add(part);
                        let whole = _mm512_dpbusd_epi32(_mm512_setzero_si512(), q, *high);
                        let whole = _mm512_dpbusd_epi32(_mm512_slli_epi32::<7>(whole), q, *low);
                        products[t] =
                            _mm512_fmadd_ps(scale, _mm512_cvtepi32_ps(whole), products[t]);
                    }
                }
                for t in 0..T {
                    let x = x.add(t * x_len + g);
                    let scale = _mm512_set1_ps((*x).scale);
                    let minima =
                        _mm512_mul_ps(head.minima, _mm512_load_ps((&raw const (*x).sum).cast()));
                    let value = _mm512_mul_ps(head.d, products[t]);
                    let value = _mm512_fnmadd_ps(head.dmin, minima, value);
                    sums[r][t] = _mm512_fmadd_ps(scale, value, sums[r][t]);
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
/// As for [`product256`], with `x_len == cols`.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
unsafe fn product_floats<W: WeightsFloat, const R: usize, const T: usize>(
    weights: *const u8,
    bytes: usize,
    cols: usize,
    x: *const f32,
    x_len: usize,
    out: *mut f32,
    [stride, apart]: [usize; 2],
) {
    let mut sums = [[_mm512_setzero_ps(); T]; R];
    let mut at = 0;
    while at < cols {
        let left = cols - at;
        let mask = if left >= 16 { !0u16 } else { (1 << left) - 1 };
        // SAFETY: elements `at .. at + min(left, 16)` of rows and tokens; the mask keeps loads from the rest.
        unsafe {
            let mut w = [_mm512_setzero_ps(); R];
            for r in 0..R {
                w[r] = W::load(weights.add(r * bytes + at * W::BYTES), mask);
            }
            for t in 0..T {
                let x = _mm512_maskz_loadu_ps(mask, x.add(t * x_len + at));
                for r in 0..R {
                    sums[r][t] = _mm512_fmadd_ps(w[r], x, sums[r][t]);
                }
            }
        }
        at += 16;
    }
    for r in 0..R {
        for t in 0..T {
            // SAFETY: the caller's promise about `out`.
            unsafe { out.add(t * stride + r * apart).write(total(sums[r][t])) };
        }
    }
}
