//! One token, or a few, and types with blocks of 32: four rows, far from each other, at a time.
//!
//! The sums of a block of 32 are whole numbers, exactly; those of four rows and four blocks become one vector, lane `4 b + r` for
//! block `b` and row `r`. Block `b` of a row goes to partial sum `b % 4`; the four are added up at the end: `(0 + 2) + (1 + 3)`.

// Rows and tokens are indices into several arrays at once.
#![allow(clippy::needless_range_loop)]

use super::super::super::{Operand, Tile};
use super::super::{AHEAD, far, soon};
use super::blocks32::Weights32;
use crate::activations::Group32;
use std::arch::x86_64::*;

/// Rows at once.
pub(super) const ROWS: usize = 4;

/// Four rows of a tile and where their results go.
pub(super) struct Quad {
    /// Where the rows begin; where there are fewer, the last one stands for the rest.
    pub(super) rows: [*const u8; ROWS],
    /// How far behind what is read of each lies what is asked for meanwhile.
    pub(super) far: [isize; ROWS],
    /// End of the tile's weights.
    pub(super) end: *const u8,
    /// Of the first row's and token's result.
    pub(super) out: *mut f32,
    /// From a token's results to the next one's.
    pub(super) stride: usize,
    /// From a row's result to the next one's.
    pub(super) apart: usize,
    /// Rows that are there.
    pub(super) count: usize,
}

impl Quad {
    /// Adds up the partial sums of a token and writes them.
    ///
    /// # Safety
    /// The places of the token's results are the tile's own.
    #[inline]
    #[target_feature(enable = "avx512f,avx512dq,avx2")]
    pub(super) unsafe fn write(&self, token: usize, sums: __m512) {
        let halves = _mm256_add_ps(
            _mm512_castps512_ps256(sums),
            _mm512_extractf32x8_ps::<1>(sums),
        );
        let rows = _mm_add_ps(
            _mm256_castps256_ps128(halves),
            _mm256_extractf128_ps::<1>(halves),
        );
        let mut four = [0f32; ROWS];
        // SAFETY: an array of four.
        unsafe { _mm_storeu_ps(four.as_mut_ptr(), rows) };
        for (row, sum) in four.into_iter().enumerate().take(self.count) {
            // SAFETY: the caller's promise.
            unsafe {
                self.out
                    .add(token * self.stride + row * self.apart)
                    .write(sum);
            }
        }
    }
}

/// Sums of neighbouring four lanes of four vectors: lane `4 b + r` is the sum of part `b` of vector `r`.
#[inline]
#[target_feature(enable = "avx512f")]
pub(super) fn sums_of_parts([a, b, c, d]: [__m512i; 4]) -> __m512i {
    let ab = _mm512_add_epi32(_mm512_unpacklo_epi32(a, b), _mm512_unpackhi_epi32(a, b));
    let cd = _mm512_add_epi32(_mm512_unpacklo_epi32(c, d), _mm512_unpackhi_epi32(c, d));
    _mm512_add_epi32(_mm512_unpacklo_epi64(ab, cd), _mm512_unpackhi_epi64(ab, cd))
}

/// Runs `$product::<$w, T>` over a tile: eight tokens at once while there are as many, then four, two, one.
macro_rules! tiles {
    ($tile:ident, $x:ident, $x_len:ident, $product:ident, $weights:ty) => {{
        let (rows, bytes) = ($tile.rows, $tile.row_bytes);
        let quarter = (rows / ROWS).max(1);
        let end = $tile.weights.as_ptr_range().end;
        let mut token = 0;
        while token < $tile.tokens {
            let left = $tile.tokens - token;
            let x = $x[token * $x_len..].as_ptr();
            macro_rules! pass {
                ($t:literal) => {{
                    let mut first = 0;
                    while first < rows {
                        // Quarters of the rows side by side; then those that are left, one by one.
                        let (apart, count, next) = match first < quarter && rows >= ROWS {
                            true => (quarter, ROWS, first + 1),
                            false => (1, ROWS.min(rows - first), first + ROWS),
                        };
                        let row = |r: usize| {
                            let row = first + r.min(count - 1) * apart;
                            $tile.weights[row * bytes..].as_ptr()
                        };
                        // SAFETY: rows and tokens lie in the tile, whose sizes `Tile::new` has checked, and the results'
                        // places are the tile's own.
                        unsafe {
                            let quad = Quad {
                                rows: std::array::from_fn(row),
                                far: std::array::from_fn(|r| match count == ROWS && apart == quarter {
                                    true => far($tile, quarter, next, r),
                                    false => AHEAD as isize,
                                }),
                                end,
                                out: $tile.out.start.add(token * $tile.out.stride + first),
                                stride: $tile.out.stride,
                                apart,
                                count,
                            };
                            $product::<$weights, $t>(&quad, $tile.cols, x, $x_len);
                        }
                        first = match next == quarter && rows >= ROWS {
                            true => ROWS * quarter,
                            false => next,
                        };
                    }
                    $t
                }};
            }
            token += match left {
                8.. => pass!(8),
                4.. => pass!(4),
                2.. => pass!(2),
                _ => pass!(1),
            };
        }
    }};
}

pub(super) use tiles;

/// The kernel of a type with blocks of 32.
///
/// # Safety
/// The processor has AVX-512 F, BW, DQ, VL, VNNI, and AVX2, FMA, F16C; the tile is of this storage type.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
pub(super) unsafe fn tiles32<W: Weights32>(tile: &Tile<'_>) {
    let Operand::Int32(x) = tile.x else {
        unreachable!("the tile checks the kind")
    };
    assert!(
        i32::try_from(tile.weights.len()).is_ok(),
        "a tile is a chunk of a matrix"
    );
    let x_len = tile.x.kind().row_len(tile.cols);
    tiles!(tile, x, x_len, product32, W);
}

/// Four rows times `T` tokens of a type with blocks of 32.
///
/// # Safety
/// The quad's rows have `cols` elements; `T` rows of `x_len` groups lie at `x`.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
unsafe fn product32<W: Weights32, const T: usize>(
    quad: &Quad,
    cols: usize,
    x: *const Group32,
    x_len: usize,
) {
    let mut sums = [_mm512_setzero_ps(); T];
    let (full, rest) = (cols / Group32::ELEMS, cols % Group32::ELEMS / 32);
    let lanes = lanes::<W>(quad.rows);
    for g in 0..full {
        // SAFETY: group `g` of every row is whole: four blocks.
        unsafe {
            let at = quad.rows.map(|row| row.add(g * 4 * W::BYTES));
            for r in 0..ROWS {
                soon(at[r].wrapping_offset(quad.far[r]), 4 * W::BYTES);
            }
            take32::<W, T>(&mut sums, at, lanes, !0, x.add(g), x_len);
        }
    }
    if rest > 0 {
        let mut copies = [[0u8; 4 * 34]; ROWS];
        const { assert!(W::BYTES <= 34) };
        // SAFETY: each row ends in `rest` blocks after its whole groups. Four blocks are read: what follows in the tile is masked;
        // where nothing follows, copies are read.
        unsafe {
            let mut at = quad.rows.map(|row| row.add(full * 4 * W::BYTES));
            let mut lanes = lanes;
            if at
                .iter()
                .any(|at| quad.end.offset_from_unsigned(*at) < 4 * W::BYTES)
            {
                for (at, copy) in at.iter_mut().zip(&mut copies) {
                    std::ptr::copy_nonoverlapping(*at, copy.as_mut_ptr(), rest * W::BYTES);
                    *at = copy.as_ptr();
                }
                lanes = self::lanes::<W>(at);
            }
            take32::<W, T>(
                &mut sums,
                at,
                lanes,
                (1 << (4 * rest)) - 1,
                x.add(full),
                x_len,
            );
        }
    }
    for t in 0..T {
        // SAFETY: the quad's results are the tile's own.
        unsafe { quad.write(t, sums[t]) };
    }
}

/// Where block `b` of row `r` begins, in bytes from the first row: lane `4 b + r`.
#[inline]
#[target_feature(enable = "avx512f,avx512dq,avx2")]
fn lanes<W: Weights32>(rows: [*const u8; ROWS]) -> __m512i {
    // Rows of a tile are less than 2 GiB apart.
    let [a, b, c, d] = rows.map(|row| (row as isize - rows[0] as isize) as i32);
    let rows = _mm512_broadcast_i32x4(_mm_set_epi32(d, c, b, a));
    let bytes = W::BYTES as i32;
    let blocks = _mm512_set_epi32(3, 3, 3, 3, 2, 2, 2, 2, 1, 1, 1, 1, 0, 0, 0, 0);
    _mm512_add_epi32(rows, _mm512_mullo_epi32(blocks, _mm512_set1_epi32(bytes)))
}

/// Adds one group of four rows and every token to the partial sums; `lanes` are as the function says, and `there` are the lanes of blocks that count.
///
/// # Safety
/// Four blocks lie at each of `rows`; `T` groups, `x_len` apart, lie at `x`.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
unsafe fn take32<W: Weights32, const T: usize>(
    sums: &mut [__m512; T],
    rows: [*const u8; ROWS],
    lanes: __m512i,
    there: u16,
    x: *const Group32,
    x_len: usize,
) {
    // SAFETY: four blocks lie at each.
    let (w, d, m) = unsafe {
        let (d, m) = W::scales_of_rows(rows, lanes);
        let [a, b, c, d_row] = rows;
        (
            // Not by `map`: what a closure does would be called.
            [W::unpack(a), W::unpack(b), W::unpack(c), W::unpack(d_row)],
            _mm512_maskz_mov_ps(there, d),
            _mm512_maskz_mov_ps(there, m),
        )
    };
    for t in 0..T {
        // SAFETY: the caller's promise about `x`; the parts of a group are multiples of 64 bytes, aligned to 64.
        let ([high0, high1, low0, low1], [scale, total], block_sum) = unsafe {
            let x = x.add(t * x_len);
            let planes = (&raw const (*x).high).cast::<__m512i>();
            (
                [0, 1, 2, 3].map(|i| *planes.add(i)),
                [&raw const (*x).scale, &raw const (*x).total]
                    .map(|floats| *floats.cast::<__m512>()),
                *(&raw const (*x).block_sum).cast::<__m512i>(),
            )
        };
        let mut whole = [_mm512_setzero_si512(); ROWS];
        for r in 0..ROWS {
            let [first, second] = w[r];
            let high = _mm512_dpbusd_epi32(_mm512_setzero_si512(), first, high0);
            let high = _mm512_slli_epi32::<7>(_mm512_dpbusd_epi32(high, second, high1));
            let low = _mm512_dpbusd_epi32(high, first, low0);
            whole[r] = _mm512_dpbusd_epi32(low, second, low1);
        }
        let mut whole = sums_of_parts(whole);
        if let Some(offset) = W::OFFSET {
            // What the stored numbers are too large by times the sum of the block is the same for all rows.
            let shift = _mm_cvtsi32_si128(offset.trailing_zeros() as i32);
            whole = _mm512_sub_epi32(whole, _mm512_sll_epi32(block_sum, shift));
        }
        let value = _mm512_cvtepi32_ps(whole);
        let mut sum = _mm512_fmadd_ps(_mm512_mul_ps(d, scale), value, sums[t]);
        if W::OFFSET.is_none() {
            sum = _mm512_fmadd_ps(m, total, sum);
        }
        sums[t] = sum;
    }
}
