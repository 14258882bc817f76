//! Types with blocks of 256.

use super::super::ternary;
use super::blocks32::iq4_levels;
use backplane_weights::blocks::{BlockIQ4XS, BlockQ3K};
use std::arch::x86_64::*;

/// Scales and minima of one block.
pub(super) struct Head {
    /// The block's scale.
    pub(super) d: f32,
    /// The scale of the minima.
    pub(super) dmin: f32,
    /// Per 16 elements: the minimum (a whole number).
    pub(super) minima: [__m256; 2],
    /// Per 16 elements: the scale (a whole number).
    scales: [f32; 16],
}

impl Head {
    /// A head of these numbers; the scales as the minima.
    #[inline]
    #[target_feature(enable = "avx2")]
    pub(super) fn new(d: f32, dmin: f32, minima: [__m256; 2], scales: [__m256; 2]) -> Self {
        let mut sixteen = [0f32; 16];
        for (part, scales) in sixteen.chunks_exact_mut(8).zip(scales) {
            // SAFETY: a part is eight floats.
            unsafe { _mm256_storeu_ps(part.as_mut_ptr(), scales) };
        }
        Head {
            d,
            dmin,
            minima,
            scales: sixteen,
        }
    }
}

/// A storage type with blocks of 256.
pub(super) trait Weights256 {
    /// Bytes of a block.
    const BYTES: usize;
    /// Whether the bytes unpacked are signed, above -128; else they are below 128.
    const SIGNED: bool = false;

    /// Reads a block's scales.
    ///
    /// # Safety
    /// A block lies at `p`, and the processor has AVX2, FMA and F16C.
    unsafe fn head(p: *const u8) -> Head;

    /// Elements `32 part .. 32 part + 32` as bytes, and for each lane of four of them their scale.
    ///
    /// # Safety
    /// As for `head`.
    unsafe fn part(p: *const u8, head: &Head, part: usize) -> (__m256i, __m256);
}

pub(super) struct Q4K;
pub(super) struct Q5K;
pub(super) struct Q6K;
pub(super) struct Q2K;
pub(super) struct Q3K;
pub(super) struct Iq4Xs;
pub(super) struct Tq1;
pub(super) struct Tq2;

/// A half-precision number.
///
/// # Safety
/// It lies at `p`.
#[inline]
#[target_feature(enable = "avx2,f16c")]
unsafe fn half(p: *const u8) -> f32 {
    // SAFETY: the caller's promise.
    half_of(unsafe { p.cast::<u16>().read_unaligned() })
}

/// A half-precision number by its bits.
#[inline]
#[target_feature(enable = "avx2,f16c")]
pub(super) fn half_of(bits: u16) -> f32 {
    _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(i32::from(bits))))
}

/// Scales and minima of Q4_K and Q5_K.
///
/// # Safety
/// At `p`: scale, scale of minima (2 bytes each), then 12 bytes of 6-bit scales and minima.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn six_bit_head(p: *const u8) -> Head {
    const LOW: u32 = 0x0f0f_0f0f;
    const SIX: u32 = 0x3f3f_3f3f;
    const TWO: u32 = 0x0303_0303;
    // SAFETY: the caller's promise.
    let (d, dmin, [a, b, c]) = unsafe {
        (
            half(p),
            half(p.add(2)),
            p.add(4).cast::<[u32; 3]>().read_unaligned(),
        )
    };
    let scales = u64::from(a & SIX) | u64::from((c & LOW) | ((a >> 6) & TWO) << 4) << 32;
    let minima = u64::from(b & SIX) | u64::from(((c >> 4) & LOW) | ((b >> 6) & TWO) << 4) << 32;
    Head::new(d, dmin, twice(minima), twice(scales))
}

/// Eight bytes as numbers, each in two lanes.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn twice(bytes: u64) -> [__m256; 2] {
    let eight = _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_cvtsi64_si128(bytes as i64)));
    let first = _mm256_set_epi32(3, 3, 2, 2, 1, 1, 0, 0);
    let second = _mm256_set_epi32(7, 7, 6, 6, 5, 5, 4, 4);
    [
        _mm256_permutevar8x32_ps(eight, first),
        _mm256_permutevar8x32_ps(eight, second),
    ]
}

/// The two scales of 32 elements, each in four lanes.
#[inline]
#[target_feature(enable = "avx2")]
pub(super) fn pair_of_scales(head: &Head, part: usize) -> __m256 {
    _mm256_set_m128(
        _mm_set1_ps(head.scales[2 * part + 1]),
        _mm_set1_ps(head.scales[2 * part]),
    )
}

/// The low nibbles (even `part`) or high nibbles of 32 bytes.
///
/// # Safety
/// 32 bytes lie at `p`.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn nibbles(p: *const u8, high: bool) -> __m256i {
    // SAFETY: the caller's promise.
    let both = unsafe { _mm256_loadu_si256(p.cast()) };
    let wanted = if high {
        _mm256_srli_epi16::<4>(both)
    } else {
        both
    };
    _mm256_and_si256(wanted, _mm256_set1_epi8(15))
}

/// Sixteen numbers as vectors.
#[inline]
#[target_feature(enable = "avx2")]
fn sixteen(numbers: &[f32; 16]) -> [__m256; 2] {
    // SAFETY: an array of 16 floats.
    unsafe {
        [
            _mm256_loadu_ps(numbers.as_ptr()),
            _mm256_loadu_ps(numbers.as_ptr().add(8)),
        ]
    }
}

/// Bits `2 k` and `2 k + 1` of 32 bytes, `k` below 4.
///
/// # Safety
/// 32 bytes lie at `p`.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn two_bits(p: *const u8, k: usize) -> __m256i {
    // SAFETY: the caller's promise.
    let all = unsafe { _mm256_loadu_si256(p.cast()) };
    let wanted = _mm256_srl_epi16(all, _mm_cvtsi32_si128(2 * k as i32));
    _mm256_and_si256(wanted, _mm256_set1_epi8(3))
}

impl Weights256 for Q4K {
    const BYTES: usize = 144;

    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn head(p: *const u8) -> Head {
        // SAFETY: the block begins as `six_bit_head` wants it.
        unsafe { six_bit_head(p) }
    }

    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn part(p: *const u8, head: &Head, part: usize) -> (__m256i, __m256) {
        // SAFETY: the nibbles are 128 bytes from 16 on.
        (
            unsafe { nibbles(p.add(16 + part / 2 * 32), part % 2 == 1) },
            pair_of_scales(head, part),
        )
    }
}

impl Weights256 for Q5K {
    const BYTES: usize = 176;

    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn head(p: *const u8) -> Head {
        // SAFETY: the block begins as `six_bit_head` wants it.
        unsafe { six_bit_head(p) }
    }

    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn part(p: *const u8, head: &Head, part: usize) -> (__m256i, __m256) {
        // SAFETY: the fifth bits are 32 bytes from 16 on, the nibbles 128 bytes from 48 on.
        let (low, fifth) = unsafe {
            (
                nibbles(p.add(48 + part / 2 * 32), part % 2 == 1),
                _mm256_loadu_si256(p.add(16).cast()),
            )
        };
        let bit = _mm256_set1_epi8((1u8 << part) as i8);
        let set = _mm256_cmpeq_epi8(_mm256_and_si256(fifth, bit), bit);
        (
            _mm256_or_si256(low, _mm256_and_si256(set, _mm256_set1_epi8(16))),
            pair_of_scales(head, part),
        )
    }
}

impl Weights256 for Q6K {
    const BYTES: usize = 210;

    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn head(p: *const u8) -> Head {
        // SAFETY: the scales are 16 bytes from 192 on, then the block's scale.
        let (packed, d) = unsafe { (p.add(192).cast::<[i8; 16]>().read(), half(p.add(208))) };
        let scales = packed.map(f32::from);
        let minima = sixteen(&scales);
        // d * scale * (q - 32) is d * scale * q less 32 d times the scale.
        Head {
            d,
            dmin: 32.0 * d,
            minima,
            scales,
        }
    }

    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn part(p: *const u8, head: &Head, part: usize) -> (__m256i, __m256) {
        let (half, k) = (part / 4, part % 4);
        // SAFETY: per half of the block 64 bytes of low nibbles from 0 on, and 32 bytes of upper bits from 128 on.
        let (low, high) = unsafe {
            let low = nibbles(p.add(64 * half + 32 * (k % 2)), k >= 2);
            (low, _mm256_loadu_si256(p.add(128 + 32 * half).cast()))
        };
        // The upper bits of quarter k are at 2 k; they go to bits 4 and 5.
        let high = match k {
            0 => _mm256_slli_epi16::<4>(high),
            1 => _mm256_slli_epi16::<2>(high),
            2 => high,
            _ => _mm256_srli_epi16::<2>(high),
        };
        let high = _mm256_and_si256(high, _mm256_set1_epi8(0x30));
        (_mm256_or_si256(low, high), pair_of_scales(head, part))
    }
}

impl Weights256 for Q2K {
    const BYTES: usize = 84;

    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn head(p: *const u8) -> Head {
        // SAFETY: 16 bytes of scales and minima, and from 80 on the scales of both.
        let (packed, d, dmin) = unsafe {
            (
                p.cast::<[u8; 16]>().read(),
                half(p.add(80)),
                half(p.add(82)),
            )
        };
        Head {
            d,
            dmin,
            minima: sixteen(&packed.map(|both| f32::from(both >> 4))),
            scales: packed.map(|both| f32::from(both & 15)),
        }
    }

    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn part(p: *const u8, head: &Head, part: usize) -> (__m256i, __m256) {
        // SAFETY: the pairs of bits are 64 bytes from 16 on, 32 for each half of the block.
        let q = unsafe { two_bits(p.add(16 + part / 4 * 32), part % 4) };
        (q, pair_of_scales(head, part))
    }
}

impl Weights256 for Q3K {
    const BYTES: usize = 110;

    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn head(p: *const u8) -> Head {
        // SAFETY: a block lies at `p`, and its struct is plain bytes of alignment 1; its scale is at 108.
        let (block, d) = unsafe { (&*p.cast::<BlockQ3K>(), half(p.add(108))) };
        let scales: [f32; 16] = std::array::from_fn(|group| f32::from(block.scale(group)));
        // d * scale * (q - 4) is d * scale * q less 4 d times the scale.
        Head {
            d,
            dmin: 4.0 * d,
            minima: sixteen(&scales),
            scales,
        }
    }

    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn part(p: *const u8, head: &Head, part: usize) -> (__m256i, __m256) {
        // SAFETY: the third bits are 32 bytes from 0 on, the pairs of bits 64 bytes from 32 on.
        let (low, third) = unsafe {
            (
                two_bits(p.add(32 + part / 4 * 32), part % 4),
                _mm256_loadu_si256(p.cast()),
            )
        };
        let bit = _mm256_set1_epi8((1u8 << part) as i8);
        let set = _mm256_cmpeq_epi8(_mm256_and_si256(third, bit), bit);
        (
            _mm256_or_si256(low, _mm256_and_si256(set, _mm256_set1_epi8(4))),
            pair_of_scales(head, part),
        )
    }
}

impl Weights256 for Iq4Xs {
    const BYTES: usize = 136;
    const SIGNED: bool = true;

    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn head(p: *const u8) -> Head {
        // SAFETY: a block lies at `p`, and its struct is plain bytes of alignment 1; it begins with its scale.
        let (block, d) = unsafe { (&*p.cast::<BlockIQ4XS>(), half(p)) };
        Head {
            d,
            dmin: 0.0,
            minima: [_mm256_setzero_ps(); 2],
            scales: std::array::from_fn(|i| f32::from(block.scale(i / 2))),
        }
    }

    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn part(p: *const u8, head: &Head, part: usize) -> (__m256i, __m256) {
        // SAFETY: the nibbles are 128 bytes from 8 on, 16 for each group of 32 elements.
        let both = unsafe { _mm_loadu_si128(p.add(8 + 16 * part).cast()) };
        let codes = _mm256_set_m128i(_mm_srli_epi16::<4>(both), both);
        let codes = _mm256_and_si256(codes, _mm256_set1_epi8(15));
        (iq4_levels(codes), pair_of_scales(head, part))
    }
}

/// The head of a type of -1, 0 and 1, stored as one more, with its scale at `p`.
///
/// # Safety
/// It lies there.
#[inline]
#[target_feature(enable = "avx2,f16c")]
unsafe fn ternary_head(p: *const u8) -> Head {
    // SAFETY: the caller's promise.
    let d = unsafe { half(p) };
    Head {
        d,
        dmin: d,
        minima: [_mm256_set1_ps(1.0); 2],
        scales: [1.0; 16],
    }
}

impl Weights256 for Tq1 {
    const BYTES: usize = 54;

    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn head(p: *const u8) -> Head {
        // SAFETY: 52 bytes of digits, then the scale.
        unsafe { ternary_head(p.add(52)) }
    }

    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn part(p: *const u8, _: &Head, part: usize) -> (__m256i, __m256) {
        // SAFETY: the block begins with its digits.
        (unsafe { ternary::digits(p, part) }, _mm256_set1_ps(1.0))
    }
}

impl Weights256 for Tq2 {
    const BYTES: usize = 66;

    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn head(p: *const u8) -> Head {
        // SAFETY: 64 bytes of pairs of bits, then the scale.
        unsafe { ternary_head(p.add(64)) }
    }

    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn part(p: *const u8, _: &Head, part: usize) -> (__m256i, __m256) {
        // SAFETY: the pairs of bits are 64 bytes, 32 for each half of the block.
        let q = unsafe { two_bits(p.add(part / 4 * 32), part % 4) };
        (q, _mm256_set1_ps(1.0))
    }
}
