//! Weights as whole numbers of 16 bits in their own order, with a scale (and a minimum) for each 32 of them.
//!
//! A whole number is what the scale of its block of 32 multiplies. Where a type has scales for 16 elements (Q6_K), those are in the
//! whole numbers; they stay below 4097, so that 32 products with activations of 15 bits fit 32 bits.

use super::blocks32::{Iq4Nl, Mxfp4, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0};
use super::blocks256::{Q4K, Q5K, Q6K, half};
use backplane_weights::blocks::{BlockMxfp4, E2M1_DOUBLED, IQ4_LEVELS};
use std::arch::x86_64::*;

/// Blocks of 32 in a strip.
pub(super) const STRIP: usize = 8;

/// Up to [`STRIP`] neighbouring blocks of 32 of one row.
pub(super) struct Strip {
    /// Whole numbers: `[blocks, 32]`.
    pub(super) whole: [__m512i; STRIP],
    /// Scale of each block.
    pub(super) d: __m256,
    /// Minimum of each block: what it has besides whole numbers times scale.
    pub(super) m: __m256,
}

/// A storage type that comes as whole numbers.
pub(super) trait Whole {
    /// Elements of a block of the type.
    const ELEMS: usize;
    /// Bytes of a block of the type.
    const BYTES: usize;
    /// Whether it has minima.
    const MINIMA: bool;

    /// Reads `count` blocks of 32, at least one and at most [`STRIP`], a whole number of blocks of the type. What the strip has
    /// beyond them is zeros.
    ///
    /// # Safety
    /// They lie at `p`, and the processor has AVX-512 F, BW, DQ, VL, AVX2, FMA, F16C.
    unsafe fn strip(p: *const u8, count: usize) -> Strip;
}

/// Adds to each lane of 32 bits the products of its two words, in one instruction: the compiler would take two where it believes
/// that the sum is waited for.
#[inline]
#[target_feature(enable = "avx512f,avx512vnni")]
pub(super) fn add_products(sums: __m512i, a: __m512i, b: __m512i) -> __m512i {
    let mut sums = sums;
    // SAFETY: one instruction of AVX-512 VNNI on registers.
    unsafe {
        std::arch::asm!(
            "vpdpwssd {sums}, {a}, {b}",
            sums = inout(zmm_reg) sums,
            a = in(zmm_reg) a,
            b = in(zmm_reg) b,
            options(pure, nomem, nostack, preserves_flags),
        );
    }
    sums
}

/// Sixteen bytes of nibbles as 32 words: the low nibbles, then the high ones.
///
/// # Safety
/// They lie at `p`.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx2")]
unsafe fn nibbles(p: *const u8) -> __m512i {
    // SAFETY: the caller's promise.
    let bytes = unsafe { _mm256_cvtepu8_epi16(_mm_loadu_si128(p.cast())) };
    let both =
        _mm512_inserti64x4::<1>(_mm512_castsi256_si512(bytes), _mm256_srli_epi16::<4>(bytes));
    _mm512_and_si512(both, _mm512_set1_epi16(15))
}

/// A list of 16 signed bytes, looked up by words below 16.
///
/// # Safety
/// The processor has AVX-512 F, BW, VL and AVX2.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx2")]
fn look_up(list: &[i8; 16], codes: __m512i) -> __m512i {
    // SAFETY: a list of 16 bytes.
    let list = _mm256_cvtepi8_epi16(unsafe { _mm_loadu_si128(list.as_ptr().cast()) });
    _mm512_permutexvar_epi16(codes, _mm512_castsi256_si512(list))
}

/// Types with blocks of 32: `$whole` gives the words of the block at `$p`, `$d` and `$m` are where its half-precision scale and
/// minimum lie.
macro_rules! blocks_of_32 {
    ($ty:ident, $bytes:literal, $p:ident => $whole:expr, $d:expr $(, $m:literal)?) => {
        impl Whole for $ty {
            const ELEMS: usize = 32;
            const BYTES: usize = $bytes;
            const MINIMA: bool = false $(|| $m > 0)?;

            #[inline]
            #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
            unsafe fn strip(p: *const u8, count: usize) -> Strip {
                let mut whole = [_mm512_setzero_si512(); STRIP];
                let (mut d, mut m) = ([0f32; STRIP], [0u16; STRIP]);
                for i in 0..count.min(STRIP) {
                    // SAFETY: block `i` is one of those that lie at `p`.
                    unsafe {
                        let $p = p.add(i * $bytes);
                        whole[i] = $whole;
                        d[i] = $d;
                        $(m[i] = $p.add($m).cast::<u16>().read_unaligned();)?
                    }
                }
                let _ = &mut m;
                // SAFETY: arrays of eight.
                unsafe {
                    Strip {
                        whole,
                        d: _mm256_loadu_ps(d.as_ptr()),
                        m: _mm256_cvtph_ps(_mm_loadu_si128(m.as_ptr().cast())),
                    }
                }
            }
        }
    };
}

/// A half-precision number.
///
/// # Safety
/// It lies at `p`.
#[inline]
#[target_feature(enable = "avx2,f16c")]
unsafe fn number(p: *const u8) -> f32 {
    // SAFETY: the caller's promise.
    let bits = unsafe { p.cast::<u16>().read_unaligned() };
    _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(i32::from(bits))))
}

/// Adds 16 where a bit of the field at `p` is set.
///
/// # Safety
/// Four bytes lie there.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
unsafe fn with_fifth(words: __m512i, p: *const u8) -> __m512i {
    // SAFETY: the caller's promise.
    let bits = unsafe { p.cast::<u32>().read_unaligned() };
    _mm512_mask_add_epi16(words, bits, words, _mm512_set1_epi16(16))
}

blocks_of_32!(Q8_0, 34, p => _mm512_cvtepi8_epi16(_mm256_loadu_si256(p.add(2).cast())), number(p));
blocks_of_32!(Q4_0, 18, p => _mm512_sub_epi16(nibbles(p.add(2)), _mm512_set1_epi16(8)), number(p));
blocks_of_32!(Q4_1, 20, p => nibbles(p.add(4)), number(p), 2);
blocks_of_32!(
    Q5_0, 22, p => _mm512_sub_epi16(with_fifth(nibbles(p.add(6)), p.add(2)), _mm512_set1_epi16(16)), number(p)
);
blocks_of_32!(Q5_1, 24, p => with_fifth(nibbles(p.add(8)), p.add(4)), number(p), 2);
blocks_of_32!(Iq4Nl, 18, p => look_up(&IQ4_LEVELS, nibbles(p.add(2))), number(p));
blocks_of_32!(
    Mxfp4, 17, p => look_up(&E2M1_DOUBLED, nibbles(p.add(1))), BlockMxfp4::half_scale_of(p.read())
);

/// Scales and minima of Q4_K and Q5_K, times what the block multiplies them with: minima negative.
///
/// # Safety
/// At `p`: scale, scale of minima (2 bytes each), then 12 bytes of 6-bit scales and minima.
#[inline]
#[target_feature(enable = "avx512f,avx512vl,avx2,f16c")]
unsafe fn six_bits(p: *const u8) -> (__m256, __m256) {
    const LOW: u32 = 0x0f0f_0f0f;
    const SIX: u32 = 0x3f3f_3f3f;
    const TWO: u32 = 0x0303_0303;
    // SAFETY: the caller's promise.
    let (d, dmin, [a, b, c]) = unsafe {
        let words = p.add(4).cast::<[u32; 3]>().read_unaligned();
        (number(p), number(p.add(2)), words)
    };
    let scales = u64::from(a & SIX) | u64::from((c & LOW) | ((a >> 6) & TWO) << 4) << 32;
    let minima = u64::from(b & SIX) | u64::from(((c >> 4) & LOW) | ((b >> 6) & TWO) << 4) << 32;
    // The products are exact: 11 bits times 6.
    let times = |eight: u64, factor: f32| {
        let eight = _mm256_cvtepu8_epi32(_mm_cvtsi64_si128(eight as i64));
        _mm256_mul_ps(_mm256_cvtepi32_ps(eight), _mm256_set1_ps(factor))
    };
    (times(scales, d), times(minima, -dmin))
}

/// Nibbles of 32 bytes as words: the low ones, and the high ones.
///
/// # Safety
/// They lie at `p`.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
unsafe fn split(p: *const u8) -> [__m512i; 2] {
    // SAFETY: the caller's promise.
    let words = _mm512_cvtepu8_epi16(unsafe { _mm256_loadu_si256(p.cast()) });
    [
        _mm512_and_si512(words, _mm512_set1_epi16(15)),
        _mm512_srli_epi16::<4>(words),
    ]
}

impl Whole for Q4K {
    const ELEMS: usize = 256;
    const BYTES: usize = 144;
    const MINIMA: bool = true;

    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
    unsafe fn strip(p: *const u8, _count: usize) -> Strip {
        let mut whole = [_mm512_setzero_si512(); STRIP];
        // SAFETY: a block lies at `p`: scales as `six_bits` wants them, then 128 bytes of nibbles from 16 on.
        unsafe {
            for pair in 0..4 {
                [whole[2 * pair], whole[2 * pair + 1]] = split(p.add(16 + 32 * pair));
            }
            let (d, m) = six_bits(p);
            Strip { whole, d, m }
        }
    }
}

impl Whole for Q5K {
    const ELEMS: usize = 256;
    const BYTES: usize = 176;
    const MINIMA: bool = true;

    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
    unsafe fn strip(p: *const u8, _count: usize) -> Strip {
        let mut whole = [_mm512_setzero_si512(); STRIP];
        let bit = _mm512_set1_epi16(16);
        // SAFETY: a block lies at `p`: scales as `six_bits` wants them, 32 bytes of fifth bits from 16 on, nibbles from 48 on.
        unsafe {
            // Bit `i` of a byte belongs to block `i`.
            let mut fifth = _mm512_cvtepu8_epi16(_mm256_loadu_si256(p.add(16).cast()));
            fifth = _mm512_slli_epi16::<4>(fifth);
            for pair in 0..4 {
                let [low, high] = split(p.add(48 + 32 * pair));
                whole[2 * pair] = _mm512_or_si512(low, _mm512_and_si512(fifth, bit));
                fifth = _mm512_srli_epi16::<1>(fifth);
                whole[2 * pair + 1] = _mm512_or_si512(high, _mm512_and_si512(fifth, bit));
                fifth = _mm512_srli_epi16::<1>(fifth);
            }
            let (d, m) = six_bits(p);
            Strip { whole, d, m }
        }
    }
}

impl Whole for Q6K {
    const ELEMS: usize = 256;
    const BYTES: usize = 210;
    const MINIMA: bool = false;

    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
    unsafe fn strip(p: *const u8, _count: usize) -> Strip {
        let mut whole = [_mm512_setzero_si512(); STRIP];
        let upper = _mm512_set1_epi16(0x30);
        // SAFETY: a block lies at `p`: 128 bytes of low nibbles, 64 of upper bits, 16 scales, the block's scale.
        unsafe {
            let scales = _mm256_cvtepi8_epi16(_mm_loadu_si128(p.add(192).cast()));
            let scales = _mm512_castsi256_si512(scales);
            let mut halves = _mm512_castsi256_si512(_mm256_set1_epi16(0));
            halves = _mm512_inserti64x4::<1>(halves, _mm256_set1_epi16(1));
            for half in 0..2 {
                let bits = _mm512_cvtepu8_epi16(_mm256_loadu_si256(p.add(128 + 32 * half).cast()));
                let [first, third] = split(p.add(64 * half));
                let [second, fourth] = split(p.add(64 * half + 32));
                let quarters = [
                    (first, _mm512_slli_epi16::<4>(bits)),
                    (second, _mm512_slli_epi16::<2>(bits)),
                    (third, bits),
                    (fourth, _mm512_srli_epi16::<2>(bits)),
                ];
                for (quarter, (low, bits)) in quarters.into_iter().enumerate() {
                    let q = _mm512_or_si512(low, _mm512_and_si512(bits, upper));
                    let q = _mm512_sub_epi16(q, _mm512_set1_epi16(32));
                    let scale = _mm512_permutexvar_epi16(halves, scales);
                    halves = _mm512_add_epi16(halves, _mm512_set1_epi16(2));
                    whole[4 * half + quarter] = _mm512_mullo_epi16(q, scale);
                }
            }
            Strip {
                whole,
                d: _mm512_castps512_ps256(self::half(p.add(208))),
                m: _mm256_setzero_ps(),
            }
        }
    }
}
