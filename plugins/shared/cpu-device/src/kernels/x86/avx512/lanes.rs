//! Some tokens: a block of sixteen rows is turned in registers, so that every lane is a row, and meets all tokens.
//!
//! A lane has four neighbours of its row as bytes; one instruction multiplies them with four activations of a plane, the same for all
//! lanes. Activations are put in the order in which they are met, for all rows of a tile at once. Turning a block costs as much as
//! multiplying it with two tokens; nothing is kept of it.
//!
//! The order of the sums is that of [`narrow`](super::narrow): within a block of 32 whole numbers, exactly; block `b` goes to
//! partial sum `b % 4`; the four are added up at the end.

// Tokens are indices into several arrays at once.
#![allow(clippy::needless_range_loop)]

use super::super::super::{Line, Operand, Out, Scratch, Tile};
use super::super::soon;
use super::blocks32::Weights32;
use super::narrow;
use crate::activations::Group32;
use std::arch::x86_64::*;
use std::mem::MaybeUninit;

/// Rows at once.
const ROWS: usize = 16;
/// Most tokens that meet a block while it is there.
const TOKENS: usize = 16;
/// Most tokens whose activations are put in order at once.
const MOST: usize = 4 * TOKENS;
/// Tokens from which there are enough of them for one sum each.
const MANY: usize = 16;
/// Fewest tokens for which it pays.
const FROM: usize = 2;
/// Bytes of a block of 32 activations: two planes, scale, total, sum.
const BLOCK: usize = 64 + 3 * 4;

/// Lines of memory that the activations of [`MOST`] tokens take.
pub(super) fn lines(cols: usize) -> usize {
    MOST / TOKENS * lines_of_pass(cols)
}

/// Those of [`TOKENS`] tokens.
fn lines_of_pass(cols: usize) -> usize {
    (cols.div_ceil(32) * TOKENS * BLOCK).div_ceil(size_of::<Line>())
}

/// The kernel of a type with blocks of 32 for any number of tokens: this one where it pays, [`narrow`] where it does not and for the
/// rows that are left.
///
/// # Safety
/// The processor has AVX-512 F, BW, DQ, VL, VNNI, and AVX2, FMA, F16C; the tile is of this storage type.
///
/// # Panics
/// When there are fewer than [`lines`] lines.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
pub(super) unsafe fn tiles<W: Weights32>(tile: &Tile<'_>, scratch: &mut Scratch<'_>) {
    let Operand::Int32(x) = tile.x else {
        unreachable!("the tile checks the kind")
    };
    let x_len = tile.x.kind().row_len(tile.cols);
    let blocks = tile.cols / 32;
    assert!(
        i32::try_from(tile.weights.len()).is_ok(),
        "a tile is a chunk of a matrix"
    );
    let turned = match tile.tokens < FROM {
        true => 0,
        false => tile.rows / ROWS * ROWS,
    };
    // Four neighbours in each quarter of the rows: memory gives more when it is read in several places at once.
    let quarter = turned / 4;
    let each = lines_of_pass(tile.cols);
    // Put in order once for all tiles of the job, if there is room for all tokens.
    let (lines, there) = match tile.tokens <= MOST && turned > 0 {
        true => scratch.of_job(tile.job),
        false => (scratch.alone(), false),
    };
    for token in (0..tile.tokens).step_by(TOKENS) {
        if turned == 0 {
            break;
        }
        let tokens = TOKENS.min(tile.tokens - token);
        let pass = token / TOKENS % (MOST / TOKENS);
        let lines = &mut lines[pass * each..][..each];
        let x = match there {
            true => Activations::of(lines, tokens, blocks),
            // SAFETY: as many groups as there are tokens, and room for them.
            false => unsafe {
                let x = x[token * x_len..].as_ptr();
                Activations::new(x, x_len, tokens, blocks, lines)
            },
        };
        for first in (0..quarter).step_by(4) {
            let row =
                |part: usize| tile.weights[(part * quarter + first) * tile.row_bytes..].as_ptr();
            let at = std::array::from_fn(row);
            // Once for all tokens; after the last rows what the next tile begins with.
            let behind = at.map(|four: *const u8| four.wrapping_add(4 * tile.row_bytes));
            let rows = Rows {
                at,
                next: match tile.next {
                    Some(next) if first + 4 >= quarter => next,
                    _ => behind,
                },
                bytes: tile.row_bytes,
                apart: quarter,
            };
            // SAFETY: rows and tokens lie in the tile, whose sizes `Tile::new` has checked, and the results' places are the tile's own.
            unsafe {
                let out = Out {
                    start: tile.out.start.add(token * tile.out.stride + first),
                    stride: tile.out.stride,
                };
                product::<W>(rows, x, out);
            }
        }
    }
    if turned < tile.rows {
        let rest = Tile {
            weights: &tile.weights[turned * tile.row_bytes..],
            rows: tile.rows - turned,
            out: Out {
                // SAFETY: a row of the tile.
                start: unsafe { tile.out.start.add(turned) },
                stride: tile.out.stride,
            },
            ..*tile
        };
        // SAFETY: the caller's promise; rows of the tile.
        unsafe { narrow::tiles32::<W>(&rest) };
    }
}

/// Sixteen rows.
#[derive(Clone, Copy)]
struct Rows {
    /// The first of each four.
    at: [*const u8; 4],
    /// Of the four rows that are met after these.
    next: [*const u8; 4],
    /// Bytes of each.
    bytes: usize,
    /// Rows from one four to the next.
    apart: usize,
}

/// Activations of some tokens as [`Block::take`] meets them.
///
/// The tokens are taken sixteen at a time, then eight, four, two, one: a *set* of `N`. It is, for each block, `[8, N, 2]` times four bytes, of the
/// high plane and of the low one, in the order of [`Group32`]; then `[N]` scales, totals and sums.
#[derive(Clone, Copy)]
struct Activations {
    start: *const u8,
    tokens: usize,
    blocks: usize,
}

/// Calls `$one!(N, token)` for each set of `$tokens` tokens.
macro_rules! sets {
    ($tokens:expr, $one:ident) => {{
        let (tokens, mut token): (usize, usize) = ($tokens, 0);
        while tokens - token >= 16 {
            $one!(16, token);
            token += 16;
        }
        if tokens & 8 != 0 {
            $one!(8, token);
            token += 8;
        }
        if tokens & 4 != 0 {
            $one!(4, token);
            token += 4;
        }
        if tokens & 2 != 0 {
            $one!(2, token);
            token += 2;
        }
        if tokens & 1 != 0 {
            $one!(1, token);
        }
    }};
}

impl Activations {
    /// Puts them there.
    ///
    /// # Safety
    /// `tokens` rows of `x_len` groups with `blocks` blocks lie at `x`, and `scratch` is large enough.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2")]
    unsafe fn new(
        x: *const Group32,
        x_len: usize,
        tokens: usize,
        blocks: usize,
        scratch: &mut [Line],
    ) -> Self {
        let all = Self::of(scratch, tokens, blocks);
        let start = scratch.as_mut_ptr().cast::<u8>();
        macro_rules! put {
            ($n:literal, $token:ident) => {
                // SAFETY: the set's tokens and its place.
                unsafe {
                    let to = start.add($token * blocks * BLOCK);
                    put::<$n>(x.add($token * x_len), x_len, blocks, to);
                }
            };
        }
        sets!(tokens, put);
        all
    }

    /// Those that are there.
    fn of(scratch: &mut [Line], tokens: usize, blocks: usize) -> Self {
        Self {
            start: scratch.as_mut_ptr().cast(),
            tokens,
            blocks,
        }
    }
}

/// Writes a set of `N` tokens.
///
/// # Safety
/// `N` rows of `x_len` groups with `blocks` blocks lie at `x`, and there is room at `to`.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2")]
unsafe fn put<const N: usize>(x: *const Group32, x_len: usize, blocks: usize, to: *mut u8) {
    // Eight tokens at a time.
    let most = const { if N < 8 { N } else { 8 } };
    for place in 0..blocks * (N / most) {
        let (b, part) = (place / (N / most), place % (N / most) * most);
        let mut fours = [_mm512_setzero_si512(); 8];
        // SAFETY: the block lies in its group, and the set has room for it.
        unsafe {
            let to = to.add(b * N * BLOCK);
            let numbers = to.add(64 * N).cast::<u32>().add(part);
            for t in 0..most {
                let x = x.add((part + t) * x_len + b / 4);
                let (high, low) = (
                    block_of(&raw const (*x).high, b % 4),
                    block_of(&raw const (*x).low, b % 4),
                );
                let index = _mm512_set_epi32(
                    15 + 8,
                    15,
                    14 + 8,
                    14,
                    13 + 8,
                    13,
                    12 + 8,
                    12,
                    11 + 8,
                    11,
                    10 + 8,
                    10,
                    9 + 8,
                    9,
                    8 + 8,
                    8,
                );
                let index = _mm512_sub_epi32(index, _mm512_set1_epi32(8));
                let both = _mm512_inserti64x4::<1>(_mm512_castsi256_si512(high), low);
                fours[t] = _mm512_permutexvar_epi32(index, both);
                numbers.add(t).write((*x).scale[4 * (b % 4)].to_bits());
                numbers.add(N + t).write((*x).total[4 * (b % 4)].to_bits());
                numbers
                    .add(2 * N + t)
                    .write((*x).block_sum[4 * (b % 4)] as u32);
            }
            for (j, tokens) in turn(fours).into_iter().enumerate() {
                let mask = const { (1u32 << if N < 8 { N } else { 8 }) - 1 } as u8;
                _mm512_mask_storeu_epi64(to.add(8 * (N * j + part)).cast(), mask, tokens);
            }
        }
    }
}

/// The 32 activations of block `b` of a plane.
///
/// # Safety
/// The plane is there, aligned to 64 bytes.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn block_of(plane: *const [i8; 128], b: usize) -> __m256i {
    // SAFETY: the caller's promise: each half of a plane has sixteen of each of four blocks.
    unsafe {
        let first = _mm_load_si128(plane.byte_add(16 * b).cast());
        let second = _mm_load_si128(plane.byte_add(64 + 16 * b).cast());
        _mm256_set_m128i(second, first)
    }
}

/// Turns eight rows of eight pairs of lanes: pair `r` of result `i` is pair `i` of row `r`.
#[inline]
#[target_feature(enable = "avx512f")]
fn turn(rows: [__m512i; 8]) -> [__m512i; 8] {
    let [a, b, c, d, e, f, g, h] = rows;
    // Pairs 0 2 4 6 of two rows, and 1 3 5 7.
    let low = [(a, b), (c, d), (e, f), (g, h)].map(|(a, b)| _mm512_unpacklo_epi64(a, b));
    let high = [(a, b), (c, d), (e, f), (g, h)].map(|(a, b)| _mm512_unpackhi_epi64(a, b));
    // Of four vectors of four parts: part `r` of result `i` is part `i` of vector `r`.
    let parts = |[a, b, c, d]: [__m512i; 4]| {
        let (ab, cd) = (
            _mm512_shuffle_i64x2::<0b10_00_10_00>(a, b),
            _mm512_shuffle_i64x2::<0b10_00_10_00>(c, d),
        );
        let (upper_ab, upper_cd) = (
            _mm512_shuffle_i64x2::<0b11_01_11_01>(a, b),
            _mm512_shuffle_i64x2::<0b11_01_11_01>(c, d),
        );
        [
            _mm512_shuffle_i64x2::<0b10_00_10_00>(ab, cd),
            _mm512_shuffle_i64x2::<0b10_00_10_00>(upper_ab, upper_cd),
            _mm512_shuffle_i64x2::<0b11_01_11_01>(ab, cd),
            _mm512_shuffle_i64x2::<0b11_01_11_01>(upper_ab, upper_cd),
        ]
    };
    let ([a, c, e, g], [b, d, f, h]) = (parts(low), parts(high));
    [a, b, c, d, e, f, g, h]
}

/// Sixteen rows times some tokens.
///
/// # Safety
/// The rows are there, as long as the activations; results go to `t * stride + f * apart + r` of `out` for row `r` of four `f`.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
unsafe fn product<W: Weights32>(rows: Rows, x: Activations, out: Out) {
    let mut sums = [MaybeUninit::<[__m512; 4]>::uninit(); TOKENS];
    for sums in &mut sums[..x.tokens] {
        for b in 0..4 {
            // One by one: as a whole they would be a call that costs more than they do.
            // SAFETY: four sums.
            unsafe {
                let sum = sums.as_mut_ptr().cast::<__m512>().add(b);
                sum.write_volatile(_mm512_setzero_ps());
            }
        }
    }
    let counted = _mm512_set_epi32(3, 2, 1, 0, 3, 2, 1, 0, 3, 2, 1, 0, 3, 2, 1, 0);
    let fours = _mm512_set_epi32(3, 3, 3, 3, 2, 2, 2, 2, 1, 1, 1, 1, 0, 0, 0, 0);
    let [bytes, apart] =
        [rows.bytes, rows.apart * rows.bytes].map(|bytes| _mm512_set1_epi32(bytes as i32));
    let lanes = _mm512_add_epi32(
        _mm512_mullo_epi32(counted, bytes),
        _mm512_mullo_epi32(fours, apart),
    );
    for b in 0..x.blocks {
        // SAFETY: block `b` lies in every row, and in every set.
        unsafe {
            for four in rows.next {
                soon(four.wrapping_add(4 * b * W::BYTES), 4 * W::BYTES);
            }
            let at = rows.at.map(|four| four.add(b * W::BYTES));
            let w = W::turned(at, rows.bytes);
            let (d, m) = W::scales(at[0], lanes);
            let block = Block { w, d, m };
            macro_rules! take {
                ($n:literal, $token:ident) => {
                    let set = x.start.add(($token * x.blocks + b * $n) * BLOCK);
                    block.take::<W, $n>(sums[$token].as_mut_ptr().cast::<__m512>().add(b % 4), set);
                };
            }
            sets!(x.tokens, take);
        }
    }
    for (t, sums) in sums[..x.tokens].iter().enumerate() {
        // SAFETY: written above.
        let [a, b, c, d] = unsafe { sums.assume_init_ref() };
        let sum = _mm512_add_ps(_mm512_add_ps(*a, *c), _mm512_add_ps(*b, *d));
        let four = [
            _mm512_castps512_ps128(sum),
            _mm512_extractf32x4_ps::<1>(sum),
            _mm512_extractf32x4_ps::<2>(sum),
            _mm512_extractf32x4_ps::<3>(sum),
        ];
        for (f, four) in four.into_iter().enumerate() {
            // SAFETY: the caller's promise about `out`.
            unsafe { _mm_storeu_ps(out.start.add(t * out.stride + f * rows.apart), four) };
        }
    }
}

/// A block of sixteen rows.
#[derive(Clone, Copy)]
struct Block {
    w: [__m512i; 8],
    d: __m512,
    m: __m512,
}

impl Block {
    /// Adds its products with the `N` tokens of a set to a partial sum of each, four sums apart. So many sums grow side by side that none
    /// waits for itself: of many tokens one for each, the planes one after the other; of few one for each plane. The products are written by
    /// hand because their order matters: the compiler would put those that wait for each other side by side, more of them than the
    /// processor looks ahead.
    ///
    /// # Safety
    /// The set's block lies at `x`, and `N` times four sums from the first of these on.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
    unsafe fn take<W: Weights32, const N: usize>(self, sums: *mut __m512, x: *const u8) {
        let (mut high, mut low) = ([_mm512_setzero_si512(); N], [_mm512_setzero_si512(); N]);
        macro_rules! product {
            ($sums:ident, $j:literal, $t:literal, $plane:literal) => {
                // SAFETY: an instruction of AVX-512 VNNI on registers and on bytes of the set.
                unsafe {
                    std::arch::asm!(
                        "vpdpbusd {sum}, {w}, dword ptr [{x} + {at}]{{1to16}}",
                        sum = inout(zmm_reg) $sums[$t % N],
                        w = in(zmm_reg) self.w[$j],
                        x = in(reg) x,
                        at = const ($j * N + $t) * 8 + 4 * $plane,
                        options(readonly, nostack, preserves_flags),
                    );
                }
            };
        }
        // For each four neighbours of a row: all tokens.
        macro_rules! plane {
            ($sums:ident, $plane:literal) => {
                plane!(@ $sums, $plane, 0 1 2 3 4 5 6 7);
            };
            (@ $sums:ident, $plane:literal, $($j:literal)*) => {$(
                plane!(# $sums, $plane, $j, 0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15);
            )*};
            (# $sums:ident, $plane:literal, $j:literal, $($t:literal)*) => {$(
                if $t < N {
                    product!($sums, $j, $t, $plane);
                }
            )*};
        }
        macro_rules! planes {
            ($($j:literal)*) => {$(
                planes!(@ $j, 0 1 2 3 4 5 6 7);
            )*};
            (@ $j:literal, $($t:literal)*) => {$(
                if $t < N {
                    product!(high, $j, $t, 0);
                    product!(low, $j, $t, 1);
                }
            )*};
        }
        // SAFETY: numbers of the set's block.
        let number = |kind: usize, t: usize| unsafe { x.add(64 * N + 4 * (kind * N + t)) };
        // What the high plane comes to.
        let raised = |high: __m512i, t: usize| match W::OFFSET {
            None => _mm512_slli_epi32::<7>(high),
            Some(offset) => {
                // What the stored numbers are too large by times the sum of the block. 128 is the offset times another
                // power of two.
                // SAFETY: a number of the set's block.
                let sum = _mm512_set1_epi32(unsafe { number(2, t).cast::<i32>().read() });
                let high = shifted(high, (128 / offset).trailing_zeros());
                shifted(_mm512_sub_epi32(high, sum), offset.trailing_zeros())
            }
        };
        if N < MANY {
            planes!(0 1 2 3 4 5 6 7);
        } else {
            plane!(low, 0);
            for t in 0..N {
                low[t] = raised(low[t], t);
            }
            plane!(low, 1);
        }
        for t in 0..N {
            // SAFETY: numbers of the set's block, and sums of the caller's promise.
            unsafe {
                let whole = match N < MANY {
                    true => _mm512_add_epi32(raised(high[t], t), low[t]),
                    false => low[t],
                };
                let value = _mm512_cvtepi32_ps(whole);
                let scale = _mm512_set1_ps(number(0, t).cast::<f32>().read());
                let sum = sums.add(4 * t);
                let mut after = _mm512_fmadd_ps(_mm512_mul_ps(self.d, scale), value, *sum);
                if W::OFFSET.is_none() {
                    let total = _mm512_set1_ps(number(1, t).cast::<f32>().read());
                    after = _mm512_fmadd_ps(self.m, total, after);
                }
                *sum = after;
            }
        }
    }
}

/// Shifted to the left by a number of bits that the compiler knows.
#[inline]
#[target_feature(enable = "avx512f")]
fn shifted(whole: __m512i, bits: u32) -> __m512i {
    _mm512_sll_epi32(whole, _mm_cvtsi32_si128(bits as i32))
}
