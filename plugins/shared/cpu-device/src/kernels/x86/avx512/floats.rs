//! Floating-point weights, 16 at a time.

use std::arch::x86_64::*;

/// A floating-point storage type.
pub(super) trait WeightsFloat {
    /// Bytes of an element.
    const BYTES: usize;

    /// Loads the elements whose bits are set in `mask`, zeros elsewhere.
    ///
    /// # Safety
    /// These elements lie at `p`, and the processor has AVX-512 F, BW, VL.
    unsafe fn load(p: *const u8, mask: u16) -> __m512;
}

pub(super) struct F32;
pub(super) struct F16;
pub(super) struct Bf16;

impl WeightsFloat for F32 {
    const BYTES: usize = 4;

    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl")]
    unsafe fn load(p: *const u8, mask: u16) -> __m512 {
        // SAFETY: the caller's promise.
        unsafe { _mm512_maskz_loadu_ps(mask, p.cast()) }
    }
}

impl WeightsFloat for F16 {
    const BYTES: usize = 2;

    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl")]
    unsafe fn load(p: *const u8, mask: u16) -> __m512 {
        // SAFETY: the caller's promise.
        _mm512_cvtph_ps(unsafe { _mm256_maskz_loadu_epi16(mask, p.cast()) })
    }
}

impl WeightsFloat for Bf16 {
    const BYTES: usize = 2;

    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl")]
    unsafe fn load(p: *const u8, mask: u16) -> __m512 {
        // SAFETY: the caller's promise.
        let words = unsafe { _mm256_maskz_loadu_epi16(mask, p.cast()) };
        _mm512_castsi512_ps(_mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(words)))
    }
}
