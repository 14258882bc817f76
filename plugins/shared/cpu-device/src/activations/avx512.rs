//! Quantising with AVX-512, a block of 32 in two vectors. What comes out is what the plain code gives, bit for bit.

use super::{Group32, LARGEST, ROUNDER, Wide};
use std::arch::x86_64::*;

/// 32 elements.
type Block = [__m512; 2];

/// # Safety
/// 32 floats lie at `x`.
#[inline]
#[target_feature(enable = "avx512f")]
unsafe fn load(x: *const f32) -> Block {
    // SAFETY: the caller's promise.
    unsafe { [_mm512_loadu_ps(x), _mm512_loadu_ps(x.add(16))] }
}

/// The larger magnitudes, lane by lane. A lane stays where the other is no number.
#[inline]
#[target_feature(enable = "avx512f")]
fn largest(lanes: __m512, [a, b]: Block) -> __m512 {
    // The second of the two where one is no number.
    let lanes = _mm512_max_ps(_mm512_abs_ps(a), lanes);
    _mm512_max_ps(_mm512_abs_ps(b), lanes)
}

/// Scale of elements with these largest magnitudes, and its inverse.
#[inline]
#[target_feature(enable = "avx512f")]
fn scales(lanes: __m512) -> (f32, f32) {
    let largest = _mm512_reduce_max_ps(lanes);
    let inverse = if largest > 0.0 {
        LARGEST / largest
    } else {
        0.0
    };
    (largest / LARGEST, inverse)
}

/// The nearest whole numbers.
#[inline]
#[target_feature(enable = "avx512f")]
fn rounded([a, b]: Block, inverse: f32) -> [__m512i; 2] {
    let (inverse, rounder) = (_mm512_set1_ps(inverse), _mm512_set1_ps(ROUNDER));
    let one = |x| {
        let shifted = _mm512_add_ps(_mm512_mul_ps(x, inverse), rounder);
        _mm512_sub_epi32(_mm512_castps_si512(shifted), _mm512_castps_si512(rounder))
    };
    [one(a), one(b)]
}

/// As `row_body32`.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
pub(super) fn row32(x: &[f32], out: &mut [Group32]) {
    for (part, group) in x.chunks(Group32::ELEMS).zip(out) {
        if part.len() < Group32::ELEMS {
            *group = Group32::ZERO;
        }
        for (block, x) in part.chunks_exact(32).enumerate() {
            // SAFETY: 32 floats.
            let x = unsafe { load(x.as_ptr()) };
            let (scale, inverse) = scales(largest(_mm512_setzero_ps(), x));
            let wholes = rounded(x, inverse);
            for (half, whole) in wholes.into_iter().enumerate() {
                let upper = _mm512_srai_epi32::<7>(_mm512_add_epi32(whole, _mm512_set1_epi32(64)));
                let lower = _mm512_sub_epi32(whole, _mm512_slli_epi32::<7>(upper));
                let at = 64 * half + 16 * block;
                // SAFETY: sixteen bytes of each plane: `block` is below four.
                unsafe {
                    let planes =
                        [&mut group.high, &mut group.low].map(|plane| &mut plane[at..at + 16]);
                    let [high, low] = planes.map(|plane| plane.as_mut_ptr().cast());
                    _mm_storeu_si128(high, _mm512_cvtepi32_epi8(upper));
                    _mm_storeu_si128(low, _mm512_cvtepi32_epi8(lower));
                }
            }
            // Sums of four neighbours, in each of the four; then of all sixteen, in all.
            let both = _mm512_add_epi32(wholes[0], wholes[1]);
            let pairs = _mm512_add_epi32(both, _mm512_shuffle_epi32::<0b10_11_00_01>(both));
            let fours = _mm512_add_epi32(pairs, _mm512_shuffle_epi32::<0b01_00_11_10>(pairs));
            let firsts = _mm512_set_epi32(12, 8, 4, 0, 12, 8, 4, 0, 12, 8, 4, 0, 12, 8, 4, 0);
            let sums = _mm512_castsi512_si128(_mm512_permutexvar_epi32(firsts, fours));
            let pairs = _mm_add_epi32(sums, _mm_shuffle_epi32::<0b10_11_00_01>(sums));
            let all = _mm_add_epi32(pairs, _mm_shuffle_epi32::<0b01_00_11_10>(pairs));
            let scale = _mm_set1_ps(scale);
            let lanes = 4 * block..4 * block + 4;
            // SAFETY: four lanes of each.
            unsafe {
                let floats = |lane: &mut [f32; 16]| lane[lanes.clone()].as_mut_ptr();
                _mm_storeu_ps(floats(&mut group.sum), _mm_cvtepi32_ps(sums));
                _mm_storeu_ps(floats(&mut group.scale), scale);
                let total = _mm_mul_ps(scale, _mm_cvtepi32_ps(all));
                _mm_storeu_ps(floats(&mut group.total), total);
                _mm_storeu_si128(group.block_sum[lanes].as_mut_ptr().cast(), all);
            }
        }
    }
}

/// As `wide_body`.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
pub(super) fn wide(x: &[f32], of_one_scale: usize, out: &mut [Wide]) {
    if let Some(last) = out.last_mut() {
        *last = Wide::ZERO;
    }
    let (mut scale, mut inverse) = (0.0, 0.0);
    for (block, elements) in x.chunks_exact(32).enumerate() {
        if (32 * block).is_multiple_of(of_one_scale) {
            let of_one = x[32 * block..][..of_one_scale].chunks_exact(32);
            // SAFETY: 32 floats.
            let lanes = of_one.fold(_mm512_setzero_ps(), |lanes, x| unsafe {
                largest(lanes, load(x.as_ptr()))
            });
            (scale, inverse) = scales(lanes);
        }
        let group = &mut out[block / 4];
        // SAFETY: 32 floats.
        let [a, b] = rounded(unsafe { load(elements.as_ptr()) }, inverse);
        let whole = _mm512_inserti64x4::<1>(
            _mm512_castsi256_si512(_mm512_cvtepi32_epi16(a)),
            _mm512_cvtepi32_epi16(b),
        );
        let pairs = _mm512_madd_epi16(whole, _mm512_set1_epi16(1));
        let sum = _mm512_reduce_add_epi32(pairs);
        // SAFETY: 32 whole numbers.
        unsafe { _mm512_storeu_si512(group.whole[block % 4].as_mut_ptr().cast(), whole) };
        group.scale[block % 4] = scale;
        group.total[block % 4] = scale * sum as f32;
    }
}
