//! Floating-point weights, 8 at a time.

use std::arch::x86_64::*;

/// A floating-point storage type.
pub(super) trait WeightsFloat {
    /// Bytes of an element.
    const BYTES: usize;

    /// Loads eight elements.
    ///
    /// # Safety
    /// They lie at `p`, and the processor has AVX2 and F16C.
    unsafe fn load(p: *const u8) -> __m256;
}

pub(super) struct F32;
pub(super) struct F16;
pub(super) struct Bf16;

impl WeightsFloat for F32 {
    const BYTES: usize = 4;

    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn load(p: *const u8) -> __m256 {
        // SAFETY: the caller's promise.
        unsafe { _mm256_loadu_ps(p.cast()) }
    }
}

impl WeightsFloat for F16 {
    const BYTES: usize = 2;

    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn load(p: *const u8) -> __m256 {
        // SAFETY: the caller's promise.
        _mm256_cvtph_ps(unsafe { _mm_loadu_si128(p.cast()) })
    }
}

impl WeightsFloat for Bf16 {
    const BYTES: usize = 2;

    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn load(p: *const u8) -> __m256 {
        // SAFETY: the caller's promise.
        let words = unsafe { _mm_loadu_si128(p.cast()) };
        _mm256_castsi256_ps(_mm256_slli_epi32::<16>(_mm256_cvtepu16_epi32(words)))
    }
}
