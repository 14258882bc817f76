//! Types whose values are points of a lattice.

use super::super::points::Points;
use super::blocks256::{Head, Weights256, four_scales, half_of};
use std::arch::x86_64::*;

/// A type of points.
pub(super) struct Lattice<P>(std::marker::PhantomData<P>);

impl<P: Points> Weights256 for Lattice<P> {
    const BYTES: usize = P::BYTES;

    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
    unsafe fn head(p: *const u8) -> Head {
        // SAFETY: the caller's promise.
        let (d, [first, second]) = unsafe { (half_of(P::scale(p)), P::scales(p)) };
        let codes = _mm512_cvtepu8_epi32(_mm_set_epi64x(second as i64, first as i64));
        let two = _mm512_set1_ps(2.0);
        let scales = _mm512_fmadd_ps(_mm512_cvtepi32_ps(codes), two, _mm512_set1_ps(1.0));
        // d * scale * (q - OFFSET) is d * scale * q less OFFSET d times the scale.
        let offset = const { P::UNIT * P::OFFSET as f32 };
        Head {
            d: _mm512_mul_ps(d, _mm512_set1_ps(P::UNIT)),
            dmin: _mm512_mul_ps(d, _mm512_set1_ps(offset)),
            minima: scales,
            scales,
        }
    }

    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
    unsafe fn part(p: *const u8, head: &Head, part: usize) -> (__m512i, __m512) {
        // SAFETY: the caller's promise.
        let (first, second) = unsafe { (P::group(p, 2 * part), P::group(p, 2 * part + 1)) };
        let points = _mm512_inserti64x4::<1>(_mm512_castsi256_si512(first.0), second.0);
        let scale = four_scales(head.scales, part);
        if !P::SIGNS {
            return (points, scale);
        }
        let minus = u64::from(first.1) | u64::from(second.1) << 32;
        let offset = _mm512_set1_epi8(P::OFFSET);
        let plus = _mm512_add_epi8(offset, points);
        (_mm512_mask_sub_epi8(plus, minus, offset, points), scale)
    }
}
