//! Types with blocks of 256.

use super::super::ternary;
use super::blocks32::iq4_levels_and_128;
use backplane_weights::blocks::{BlockIQ4XS, BlockQ3K};
use std::arch::x86_64::*;

/// Scales and minima of one block.
pub(super) struct Head {
    /// The block's scale, in every lane.
    pub(super) d: __m512,
    /// The scale of the minima, in every lane.
    pub(super) dmin: __m512,
    /// Per 16 elements: the minimum (a whole number).
    pub(super) minima: __m512,
    /// Scales of the groups (whole numbers); see each type's `part` for their places.
    pub(super) scales: __m512,
}

/// A storage type with blocks of 256.
pub(super) trait Weights256 {
    /// Bytes of a block.
    const BYTES: usize;

    /// Reads a block's scales.
    ///
    /// # Safety
    /// A block lies at `p`, and the processor has AVX-512 F, BW, DQ, VL.
    unsafe fn head(p: *const u8) -> Head;

    /// Elements `64 part .. 64 part + 64` as unsigned bytes, and for each lane of four of them their group's scale.
    ///
    /// # Safety
    /// As for `head`.
    unsafe fn part(p: *const u8, head: &Head, part: usize) -> (__m512i, __m512);
}

pub(super) struct Q4K;
pub(super) struct Q5K;
pub(super) struct Q6K;
pub(super) struct Q2K;
pub(super) struct Q3K;
pub(super) struct Iq4Xs;
pub(super) struct Tq1;
pub(super) struct Tq2;

/// A half-precision number in every lane.
///
/// # Safety
/// It lies at `p`.
#[inline]
#[target_feature(enable = "avx512f,avx512vl,avx2,f16c")]
pub(super) unsafe fn half(p: *const u8) -> __m512 {
    // SAFETY: the caller's promise.
    half_of(unsafe { p.cast::<u16>().read_unaligned() })
}

/// A half-precision number in every lane, by its bits.
#[inline]
#[target_feature(enable = "avx512f,avx512vl,avx2,f16c")]
pub(super) fn half_of(bits: u16) -> __m512 {
    _mm512_broadcastss_ps(_mm_cvtph_ps(_mm_cvtsi32_si128(i32::from(bits))))
}

/// The scales of groups `2 part` and `2 part + 1`, each in eight lanes.
#[inline]
#[target_feature(enable = "avx512f")]
fn pair_of_scales(scales: __m512, part: usize) -> __m512 {
    let eight = _mm512_set_epi32(1, 1, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0);
    _mm512_permutexvar_ps(
        _mm512_add_epi32(eight, _mm512_set1_epi32(2 * part as i32)),
        scales,
    )
}

/// The scales of groups `4 part .. 4 part + 4`, each in four lanes.
#[inline]
#[target_feature(enable = "avx512f")]
pub(super) fn four_scales(scales: __m512, part: usize) -> __m512 {
    let four = _mm512_set_epi32(3, 3, 3, 3, 2, 2, 2, 2, 1, 1, 1, 1, 0, 0, 0, 0);
    let four = _mm512_add_epi32(four, _mm512_set1_epi32(4 * part as i32));
    _mm512_permutexvar_ps(four, scales)
}

/// Bit `2 part` in the first 32 bytes, bit `2 part + 1` in the others.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx2")]
fn two_masks(part: usize) -> __m512i {
    let first = _mm256_set1_epi8(1 << (2 * part));
    let second = _mm256_set1_epi8((2u8 << (2 * part)) as i8);
    _mm512_inserti64x4::<1>(_mm512_castsi256_si512(first), second)
}

/// Bits `4 upper` and `4 upper + 1` of 32 bytes, then the two bits above them.
///
/// # Safety
/// 32 bytes lie at `p`.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx2")]
unsafe fn two_bits(p: *const u8, upper: usize) -> __m512i {
    // SAFETY: the caller's promise.
    let all = _mm512_broadcast_i64x4(unsafe { _mm256_loadu_si256(p.cast()) });
    let shift = _mm512_set_epi64(2, 2, 2, 2, 0, 0, 0, 0);
    let shift = _mm512_add_epi64(shift, _mm512_set1_epi64(4 * upper as i64));
    _mm512_and_si512(_mm512_srlv_epi64(all, shift), _mm512_set1_epi8(3))
}

impl Weights256 for Q2K {
    const BYTES: usize = 84;

    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
    unsafe fn head(p: *const u8) -> Head {
        // SAFETY: 16 bytes of scales and minima, and from 80 on the scales of both.
        let (both, d, dmin) =
            unsafe { (_mm_loadu_si128(p.cast()), half(p.add(80)), half(p.add(82))) };
        let both = _mm512_cvtepu8_epi32(both);
        let scales = _mm512_and_si512(both, _mm512_set1_epi32(15));
        Head {
            d,
            dmin,
            minima: _mm512_cvtepi32_ps(_mm512_srli_epi32::<4>(both)),
            scales: _mm512_cvtepi32_ps(scales),
        }
    }

    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
    unsafe fn part(p: *const u8, head: &Head, part: usize) -> (__m512i, __m512) {
        // SAFETY: the pairs of bits are 64 bytes from 16 on, 32 for each half of the block.
        let q = unsafe { two_bits(p.add(16 + part / 2 * 32), part % 2) };
        (q, four_scales(head.scales, part))
    }
}

impl Weights256 for Q3K {
    const BYTES: usize = 110;

    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
    unsafe fn head(p: *const u8) -> Head {
        // SAFETY: a block lies at `p`, and its struct is plain bytes of alignment 1; its scale is at 108.
        let (block, d) = unsafe { (&*p.cast::<BlockQ3K>(), half(p.add(108))) };
        let scales: [i8; 16] = std::array::from_fn(|group| block.scale(group));
        // SAFETY: an array of 16 bytes.
        let scales = unsafe { _mm_loadu_si128(scales.as_ptr().cast()) };
        let scales = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(scales));
        // d * scale * (q - 4) is d * scale * q less 4 d times the scale.
        Head {
            d,
            dmin: _mm512_mul_ps(d, _mm512_set1_ps(4.0)),
            minima: scales,
            scales,
        }
    }

    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
    unsafe fn part(p: *const u8, head: &Head, part: usize) -> (__m512i, __m512) {
        // SAFETY: the third bits are 32 bytes from 0 on, the pairs of bits 64 bytes from 32 on.
        let (low, third) = unsafe {
            (
                two_bits(p.add(32 + part / 2 * 32), part % 2),
                _mm256_loadu_si256(p.cast()),
            )
        };
        let set = _mm512_test_epi8_mask(_mm512_broadcast_i64x4(third), two_masks(part));
        (
            _mm512_mask_add_epi8(low, set, low, _mm512_set1_epi8(4)),
            four_scales(head.scales, part),
        )
    }
}

impl Weights256 for Iq4Xs {
    const BYTES: usize = 136;

    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
    unsafe fn head(p: *const u8) -> Head {
        // SAFETY: a block lies at `p`, and its struct is plain bytes of alignment 1; it begins with its scale.
        let (block, d) = unsafe { (&*p.cast::<BlockIQ4XS>(), half(p)) };
        let scales: [i8; 8] = std::array::from_fn(|group| block.scale(group));
        let scales = _mm_cvtsi64_si128(i64::from_le_bytes(scales.map(|scale| scale as u8)));
        let scales = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(scales));
        let twice = _mm512_set_epi32(7, 7, 6, 6, 5, 5, 4, 4, 3, 3, 2, 2, 1, 1, 0, 0);
        // d * scale * (q - 128) is d * scale * q less 128 d times the scale.
        Head {
            d,
            dmin: _mm512_mul_ps(d, _mm512_set1_ps(128.0)),
            minima: _mm512_permutexvar_ps(twice, scales),
            scales,
        }
    }

    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
    unsafe fn part(p: *const u8, head: &Head, part: usize) -> (__m512i, __m512) {
        // SAFETY: the nibbles are 128 bytes from 8 on, 16 for each group of 32 elements.
        let both = unsafe { _mm256_loadu_si256(p.add(8 + 32 * part).cast()) };
        let both = _mm512_castsi256_si512(both);
        let both = _mm512_shuffle_i32x4::<0b01_01_00_00>(both, both);
        let codes = _mm512_srlv_epi64(both, _mm512_set_epi64(4, 4, 0, 0, 4, 4, 0, 0));
        let codes = _mm512_and_si512(codes, _mm512_set1_epi8(15));
        (iq4_levels_and_128(codes), pair_of_scales(head.scales, part))
    }
}

/// The head of a type of -1, 0 and 1, stored as one more, with its scale at `p`.
///
/// # Safety
/// It lies there.
#[inline]
#[target_feature(enable = "avx512f,avx512vl,avx2,f16c")]
unsafe fn ternary_head(p: *const u8) -> Head {
    // SAFETY: the caller's promise.
    let d = unsafe { half(p) };
    let one = _mm512_set1_ps(1.0);
    Head {
        d,
        dmin: d,
        minima: one,
        scales: one,
    }
}

impl Weights256 for Tq1 {
    const BYTES: usize = 54;

    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
    unsafe fn head(p: *const u8) -> Head {
        // SAFETY: 52 bytes of digits, then the scale.
        unsafe { ternary_head(p.add(52)) }
    }

    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
    unsafe fn part(p: *const u8, head: &Head, part: usize) -> (__m512i, __m512) {
        // SAFETY: the block begins with its digits.
        let (first, second) = unsafe {
            (
                ternary::digits(p, 2 * part),
                ternary::digits(p, 2 * part + 1),
            )
        };
        let both = _mm512_inserti64x4::<1>(_mm512_castsi256_si512(first), second);
        (both, head.scales)
    }
}

impl Weights256 for Tq2 {
    const BYTES: usize = 66;

    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
    unsafe fn head(p: *const u8) -> Head {
        // SAFETY: 64 bytes of pairs of bits, then the scale.
        unsafe { ternary_head(p.add(64)) }
    }

    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
    unsafe fn part(p: *const u8, head: &Head, part: usize) -> (__m512i, __m512) {
        // SAFETY: the pairs of bits are 64 bytes, 32 for each half of the block.
        let q = unsafe { two_bits(p.add(part / 2 * 32), part % 2) };
        (q, head.scales)
    }
}
