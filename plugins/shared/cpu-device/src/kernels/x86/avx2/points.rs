//! Types whose values are points of a lattice.

use super::super::points::Points;
use super::blocks256::{Head, Weights256, half_of, pair_of_scales};
use std::arch::x86_64::*;

/// A type of points.
pub(super) struct Lattice<P>(std::marker::PhantomData<P>);

impl<P: Points> Weights256 for Lattice<P> {
    const BYTES: usize = P::BYTES;

    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn head(p: *const u8) -> Head {
        // SAFETY: the caller's promise.
        let (d, [first, second]) = unsafe { (half_of(P::scale(p)) * P::UNIT, P::scales(p)) };
        let two = _mm256_set1_ps(2.0);
        let odd = |codes: u64| {
            let eight = _mm256_cvtepu8_epi32(_mm_cvtsi64_si128(codes as i64));
            _mm256_fmadd_ps(_mm256_cvtepi32_ps(eight), two, _mm256_set1_ps(1.0))
        };
        let minima = [odd(first), odd(second)];
        // d * scale * (q - OFFSET) is d * scale * q less OFFSET d times the scale.
        Head::new(d, d * f32::from(P::OFFSET), minima, minima)
    }

    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn part(p: *const u8, head: &Head, part: usize) -> (__m256i, __m256) {
        // SAFETY: the caller's promise.
        let (points, signs) = unsafe { P::group(p, part) };
        let scale = pair_of_scales(head, part);
        if !P::SIGNS {
            return (points, scale);
        }
        // Byte i looks at byte i / 8 of the signs, then at bit i % 8.
        let bytes = _mm256_set_epi64x(
            0x0303_0303_0303_0303,
            0x0202_0202_0202_0202,
            0x0101_0101_0101_0101,
            0,
        );
        let bits = _mm256_set1_epi64x(0x8040_2010_0804_0201u64 as i64);
        let signs = _mm256_shuffle_epi8(_mm256_set1_epi32(signs as i32), bytes);
        let minus = _mm256_cmpeq_epi8(_mm256_and_si256(signs, bits), bits);
        let signed = _mm256_sub_epi8(_mm256_xor_si256(points, minus), minus);
        (_mm256_add_epi8(signed, _mm256_set1_epi8(P::OFFSET)), scale)
    }
}
