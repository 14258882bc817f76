//! The digits to base 3 of TQ1_0.

use std::arch::x86_64::*;

/// For each 32 values of a block, in pairs: what a byte is to be multiplied with so that the wanted digit is its first.
static POWERS: [[u16; 16]; 8] = {
    let mut powers = [[1; 16]; 8];
    let mut value = 0;
    while value < 256 {
        let digit = match value {
            0..160 => value / 32,
            160..240 => (value - 160) / 16,
            _ => (value - 240) / 4,
        };
        powers[value / 32][value % 32 / 2] = 3u16.pow(digit as u32);
        value += 1;
    }
    powers
};

/// Values `32 part .. 32 part + 32` as their digits: 0, 1 or 2.
///
/// # Safety
/// The 52 bytes of digits of a block lie at `p`, `part` is below 8, and the processor has AVX2.
#[inline]
#[target_feature(enable = "avx2")]
pub(super) unsafe fn digits(p: *const u8, part: usize) -> __m256i {
    // SAFETY: 32 bytes, then 16, then 4; a row of the table is 32 bytes.
    let (bytes, powers) = unsafe {
        let bytes = match part {
            0..5 => _mm256_loadu_si256(p.cast()),
            5 | 6 => _mm256_broadcastsi128_si256(_mm_loadu_si128(p.add(32).cast())),
            _ => {
                let last = _mm_set1_epi32(p.add(48).cast::<i32>().read_unaligned());
                _mm256_set_m128i(last, _mm_loadu_si128(p.add(32).cast()))
            }
        };
        (bytes, _mm256_loadu_si256(POWERS[part & 7].as_ptr().cast()))
    };
    let low = _mm256_set1_epi16(0xff);
    let even = _mm256_and_si256(_mm256_mullo_epi16(bytes, powers), low);
    let odd = _mm256_mullo_epi16(_mm256_andnot_si256(low, bytes), powers);
    let fraction = _mm256_or_si256(even, odd);
    // The first digit of a fraction of 256: 1 from a third on, 2 from two thirds.
    let from = |least: u8| {
        let least = _mm256_set1_epi8(least as i8);
        _mm256_cmpeq_epi8(_mm256_max_epu8(fraction, least), fraction)
    };
    let minus = _mm256_add_epi8(from(86), from(171));
    _mm256_sub_epi8(_mm256_setzero_si256(), minus)
}
