//! Types with blocks of 256.

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
    scales: __m512,
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

/// A half-precision number in every lane.
///
/// # Safety
/// It lies at `p`.
#[inline]
#[target_feature(enable = "avx512f,avx512vl,avx2,f16c")]
unsafe fn half(p: *const u8) -> __m512 {
    // SAFETY: the caller's promise.
    let bits = unsafe { p.cast::<u16>().read_unaligned() };
    _mm512_broadcastss_ps(_mm_cvtph_ps(_mm_cvtsi32_si128(i32::from(bits))))
}

/// Scales and minima of Q4_K and Q5_K.
///
/// # Safety
/// At `p`: scale, scale of minima (2 bytes each), then 12 bytes of 6-bit scales and minima.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
unsafe fn six_bit_head(p: *const u8) -> Head {
    const LOW: u32 = 0x0f0f_0f0f;
    const SIX: u32 = 0x3f3f_3f3f;
    // SAFETY: the caller's promise.
    let (d, dmin, [a, b, c]) = unsafe {
        (
            half(p),
            half(p.add(2)),
            p.add(4).cast::<[u32; 3]>().read_unaligned(),
        )
    };
    let scales = u64::from(a & SIX) | u64::from((c & LOW) | ((a >> 6) & 0x0303_0303) << 4) << 32;
    let minima =
        u64::from(b & SIX) | u64::from(((c >> 4) & LOW) | ((b >> 6) & 0x0303_0303) << 4) << 32;
    let both = _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_set_epi64x(
        minima as i64,
        scales as i64,
    )));
    let twice = _mm512_set_epi32(15, 15, 14, 14, 13, 13, 12, 12, 11, 11, 10, 10, 9, 9, 8, 8);
    Head {
        d,
        dmin,
        minima: _mm512_permutexvar_ps(twice, both),
        scales: both,
    }
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

/// Low nibbles of 32 bytes, then their high nibbles.
///
/// # Safety
/// 32 bytes lie at `p`.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx2")]
unsafe fn split(p: *const u8) -> __m512i {
    // SAFETY: the caller's promise.
    let both = _mm512_broadcast_i64x4(unsafe { _mm256_loadu_si256(p.cast()) });
    let shift = _mm512_set_epi64(4, 4, 4, 4, 0, 0, 0, 0);
    _mm512_and_si512(_mm512_srlv_epi64(both, shift), _mm512_set1_epi8(15))
}

impl Weights256 for Q4K {
    const BYTES: usize = 144;

    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
    unsafe fn head(p: *const u8) -> Head {
        // SAFETY: the block begins as `six_bit_head` wants it.
        unsafe { six_bit_head(p) }
    }

    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
    unsafe fn part(p: *const u8, head: &Head, part: usize) -> (__m512i, __m512) {
        // SAFETY: the nibbles are 128 bytes from 16 on.
        (
            unsafe { split(p.add(16 + 32 * part)) },
            pair_of_scales(head.scales, part),
        )
    }
}

impl Weights256 for Q5K {
    const BYTES: usize = 176;

    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
    unsafe fn head(p: *const u8) -> Head {
        // SAFETY: the block begins as `six_bit_head` wants it.
        unsafe { six_bit_head(p) }
    }

    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
    unsafe fn part(p: *const u8, head: &Head, part: usize) -> (__m512i, __m512) {
        // SAFETY: the fifth bits are 32 bytes from 16 on, the nibbles 128 bytes from 48 on.
        let (low, fifth) = unsafe {
            (
                split(p.add(48 + 32 * part)),
                _mm256_loadu_si256(p.add(16).cast()),
            )
        };
        let (first, second) = (
            _mm256_set1_epi8(1 << (2 * part)),
            _mm256_set1_epi8((2u8 << (2 * part)) as i8),
        );
        let bits = _mm512_inserti64x4::<1>(_mm512_castsi256_si512(first), second);
        let set = _mm512_test_epi8_mask(_mm512_broadcast_i64x4(fifth), bits);
        (
            _mm512_mask_add_epi8(low, set, low, _mm512_set1_epi8(16)),
            pair_of_scales(head.scales, part),
        )
    }
}

impl Weights256 for Q6K {
    const BYTES: usize = 210;

    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
    unsafe fn head(p: *const u8) -> Head {
        // SAFETY: the scales are 16 bytes from 192 on, then the block's scale.
        let (scales, d) = unsafe { (_mm_loadu_si128(p.add(192).cast()), half(p.add(208))) };
        let scales = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(scales));
        // d * scale * (q - 32) is d * scale * q less 32 d times the scale.
        Head {
            d,
            dmin: _mm512_mul_ps(d, _mm512_set1_ps(32.0)),
            minima: scales,
            scales,
        }
    }

    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
    unsafe fn part(p: *const u8, head: &Head, part: usize) -> (__m512i, __m512) {
        let (half, upper) = (part / 2, part % 2);
        // SAFETY: per half of the block 64 bytes of low nibbles from 0 on, and 32 bytes of upper bits from 128 on.
        let (low, high) = unsafe {
            let low = _mm512_loadu_si512(p.add(64 * half).cast());
            (
                low,
                _mm512_broadcast_i64x4(_mm256_loadu_si256(p.add(128 + 32 * half).cast())),
            )
        };
        // Quarter k of the half has its upper bits at 2 k; they go to bits 4 and 5.
        let (low, high) = if upper == 0 {
            (
                low,
                _mm512_sllv_epi64(high, _mm512_set_epi64(2, 2, 2, 2, 4, 4, 4, 4)),
            )
        } else {
            (
                _mm512_srli_epi16::<4>(low),
                _mm512_srlv_epi64(high, _mm512_set_epi64(2, 2, 2, 2, 0, 0, 0, 0)),
            )
        };
        let low = _mm512_and_si512(low, _mm512_set1_epi8(0x0f));
        let high = _mm512_and_si512(high, _mm512_set1_epi8(0x30));
        let four = _mm512_set_epi32(3, 3, 3, 3, 2, 2, 2, 2, 1, 1, 1, 1, 0, 0, 0, 0);
        let four = _mm512_add_epi32(four, _mm512_set1_epi32(4 * part as i32));
        (
            _mm512_or_si512(low, high),
            _mm512_permutexvar_ps(four, head.scales),
        )
    }
}
