//! Types with blocks of 32, four blocks at a time.

use backplane_weights::blocks::{BlockMxfp4, E2M1_DOUBLED, IQ4_LEVELS};
use std::arch::x86_64::*;

/// Four blocks of one row, in the order of [`crate::activations::Group32`].
#[derive(Clone, Copy)]
pub(super) struct Unpacked {
    /// First halves of the blocks: `[4 blocks, 16]`, unsigned bytes.
    pub(super) low: __m512i,
    /// Second halves.
    pub(super) high: __m512i,
    /// Per lane: the block's scale.
    pub(super) d: __m512,
    /// Per lane: the block's minimum, for types that have one.
    pub(super) m: __m512,
}

/// A storage type with blocks of 32.
pub(super) trait Weights32 {
    /// Bytes of a block.
    const BYTES: usize;
    /// What the stored numbers are too large by; `None` for types with a minimum.
    const OFFSET: Option<f32>;
    /// Nothing unpacked.
    // SAFETY: integers and floats, for which zero bits are zeros.
    const ZERO: Unpacked = unsafe { std::mem::zeroed() };

    /// Unpacks four blocks.
    ///
    /// # Safety
    /// Four blocks lie at `p`, and the processor has AVX-512 F, BW, DQ, VL.
    unsafe fn unpack(p: *const u8) -> Unpacked;

    /// Unpacks `blocks` blocks (1 to 3), with zeros for the rest.
    ///
    /// # Safety
    /// That many blocks lie at `p`, and the processor has AVX-512 F, BW, DQ, VL.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
    unsafe fn unpack_part(p: *const u8, blocks: usize) -> Unpacked {
        let mut copy = [0u8; 4 * 34];
        debug_assert!(blocks < 4 && Self::BYTES <= 34);
        // SAFETY: `blocks` blocks lie at `p` and fit the copy; the copy holds four blocks of any type here.
        unsafe {
            std::ptr::copy_nonoverlapping(p, copy.as_mut_ptr(), blocks.min(3) * Self::BYTES);
            Self::unpack(copy.as_ptr())
        }
    }
}

pub(super) struct Q8_0;
pub(super) struct Q4_0;
pub(super) struct Q4_1;
pub(super) struct Q5_0;
pub(super) struct Q5_1;
pub(super) struct Iq4Nl;
pub(super) struct Mxfp4;

/// Four 16-byte pieces, `step` bytes apart.
///
/// # Safety
/// They lie at `p`.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2")]
unsafe fn pieces(p: *const u8, step: usize) -> __m512i {
    // SAFETY: the caller's promise.
    unsafe {
        let v = _mm512_castsi128_si512(_mm_loadu_si128(p.cast()));
        let v = _mm512_inserti32x4::<1>(v, _mm_loadu_si128(p.add(step).cast()));
        let v = _mm512_inserti32x4::<2>(v, _mm_loadu_si128(p.add(2 * step).cast()));
        _mm512_inserti32x4::<3>(v, _mm_loadu_si128(p.add(3 * step).cast()))
    }
}

/// Four 16-bit words, `step` bytes apart, as one number.
///
/// # Safety
/// They lie at `p`.
#[inline(always)]
unsafe fn words(p: *const u8, step: usize) -> u64 {
    // SAFETY: the caller's promise.
    let word = |i: usize| u64::from(unsafe { p.add(i * step).cast::<u16>().read_unaligned() });
    word(0) | word(1) << 16 | word(2) << 32 | word(3) << 48
}

/// Four half-precision numbers, `step` bytes apart, each in four lanes.
///
/// # Safety
/// They lie at `p`.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,f16c")]
unsafe fn halves(p: *const u8, step: usize) -> __m512 {
    // SAFETY: the caller's promise.
    four_lanes(unsafe { words(p, step) })
}

/// Four half-precision numbers, each in four lanes.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,f16c")]
fn four_lanes(words: u64) -> __m512 {
    let four = _mm_cvtph_ps(_mm_cvtsi64_si128(words as i64));
    _mm512_permutexvar_ps(four_times(), _mm512_castps128_ps512(four))
}

/// Indices 0, 0, 0, 0, 1, 1, …
#[inline]
#[target_feature(enable = "avx512f")]
fn four_times() -> __m512i {
    _mm512_set_epi32(3, 3, 3, 3, 2, 2, 2, 2, 1, 1, 1, 1, 0, 0, 0, 0)
}

/// Low and high nibbles of every byte.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
fn nibbles(v: __m512i) -> (__m512i, __m512i) {
    let mask = _mm512_set1_epi8(15);
    (
        _mm512_and_si512(v, mask),
        _mm512_and_si512(_mm512_srli_epi16::<4>(v), mask),
    )
}

/// Adds the fifth bits: bits 0..16 of each block's field go to its first half, bits 16..32 to its second.
///
/// # Safety
/// Four fields, `step` bytes apart, lie at `p`.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
unsafe fn with_fifth(
    (low, high): (__m512i, __m512i),
    p: *const u8,
    step: usize,
) -> (__m512i, __m512i) {
    let bit = _mm512_set1_epi8(16);
    // SAFETY: the caller's promise.
    let (first, second) = unsafe { (words(p, step), words(p.add(2), step)) };
    (
        _mm512_mask_add_epi8(low, first, low, bit),
        _mm512_mask_add_epi8(high, second, high, bit),
    )
}

impl Q8_0 {
    /// Puts four blocks of 32 values and their scales in order.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
    fn in_order([a, b, c, d]: [__m256i; 4], scales: __m512) -> Unpacked {
        let front = _mm512_inserti64x4::<1>(_mm512_castsi256_si512(a), b);
        let back = _mm512_inserti64x4::<1>(_mm512_castsi256_si512(c), d);
        let sign = _mm512_set1_epi8(-128);
        let low = _mm512_xor_si512(_mm512_shuffle_i32x4::<0b10_00_10_00>(front, back), sign);
        let high = _mm512_xor_si512(_mm512_shuffle_i32x4::<0b11_01_11_01>(front, back), sign);
        Unpacked {
            low,
            high,
            d: scales,
            m: _mm512_setzero_ps(),
        }
    }
}

impl Weights32 for Q8_0 {
    const BYTES: usize = 34;
    const OFFSET: Option<f32> = Some(128.0);

    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
    unsafe fn unpack(p: *const u8) -> Unpacked {
        // SAFETY: four blocks lie at `p`, each a scale of 2 bytes and 32 values.
        unsafe {
            Self::in_order(
                [0, 1, 2, 3].map(|i| _mm256_loadu_si256(p.add(34 * i + 2).cast())),
                halves(p, 34),
            )
        }
    }

    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
    unsafe fn unpack_part(p: *const u8, blocks: usize) -> Unpacked {
        let mut values = [_mm256_setzero_si256(); 4];
        let mut scales = 0;
        for i in 0..3 {
            if i < blocks {
                // SAFETY: block `i` is one of those that lie at `p`.
                unsafe {
                    values[i] = _mm256_loadu_si256(p.add(34 * i + 2).cast());
                    scales |= u64::from(p.add(34 * i).cast::<u16>().read_unaligned()) << (16 * i);
                }
            }
        }
        Self::in_order(values, four_lanes(scales))
    }
}

impl Weights32 for Q4_0 {
    const BYTES: usize = 18;
    const OFFSET: Option<f32> = Some(8.0);

    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
    unsafe fn unpack(p: *const u8) -> Unpacked {
        // SAFETY: four blocks lie at `p`, each a scale of 2 bytes and 16 bytes of nibbles.
        let (qs, d) = unsafe { (pieces(p.add(2), 18), halves(p, 18)) };
        let (low, high) = nibbles(qs);
        Unpacked {
            low,
            high,
            d,
            m: _mm512_setzero_ps(),
        }
    }
}

impl Weights32 for Q5_0 {
    const BYTES: usize = 22;
    const OFFSET: Option<f32> = Some(16.0);

    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
    unsafe fn unpack(p: *const u8) -> Unpacked {
        // SAFETY: four blocks lie at `p`: scale 2 bytes, fifth bits 4, nibbles 16.
        unsafe {
            let (low, high) = with_fifth(nibbles(pieces(p.add(6), 22)), p.add(2), 22);
            Unpacked {
                low,
                high,
                d: halves(p, 22),
                m: _mm512_setzero_ps(),
            }
        }
    }
}

/// Scale and minimum of four blocks of `STEP` 32-bit words that begin with both: each in four lanes.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
fn scale_and_minimum<const STEP: i16>(front: __m512i, back: __m512i) -> (__m512, __m512) {
    const fn index(step: i16) -> [i16; 32] {
        let mut index = [0; 32];
        let mut lane = 0;
        while lane < 16 {
            index[lane] = (lane as i16 / 4) * 2 * step;
            index[lane + 16] = (lane as i16 / 4) * 2 * step + 1;
            lane += 1;
        }
        index
    }
    let index = const { index(STEP) };
    // SAFETY: an array of 64 bytes.
    let index = unsafe { _mm512_loadu_si512(index.as_ptr().cast()) };
    // Blocks of 5 words begin within the first 16 words, blocks of 6 don't.
    let both = if STEP == 5 {
        _mm512_permutexvar_epi16(index, front)
    } else {
        _mm512_permutex2var_epi16(front, index, back)
    };
    (
        _mm512_cvtph_ps(_mm512_castsi512_si256(both)),
        _mm512_cvtph_ps(_mm512_extracti64x4_epi64::<1>(both)),
    )
}

/// Nibbles of four blocks of `STEP` 32-bit words that end in 16 bytes of them.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
fn gather_nibbles<const STEP: i32>(front: __m512i, back: __m512i) -> (__m512i, __m512i) {
    const fn index(step: i32) -> [i32; 16] {
        let mut index = [0; 16];
        let mut lane = 0;
        while lane < 16 {
            index[lane] = (lane as i32 / 4) * step + step - 4 + lane as i32 % 4;
            lane += 1;
        }
        index
    }
    let index = const { index(STEP) };
    // SAFETY: an array of 64 bytes.
    let index = unsafe { _mm512_loadu_si512(index.as_ptr().cast()) };
    nibbles(_mm512_permutex2var_epi32(front, index, back))
}

impl Q4_1 {
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw")]
    fn from_words(front: __m512i, back: __m512i) -> Unpacked {
        let (low, high) = gather_nibbles::<5>(front, back);
        let (d, m) = scale_and_minimum::<5>(front, back);
        Unpacked { low, high, d, m }
    }
}

impl Weights32 for Q4_1 {
    const BYTES: usize = 20;
    const OFFSET: Option<f32> = None;

    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
    unsafe fn unpack(p: *const u8) -> Unpacked {
        // SAFETY: four blocks are 80 bytes: 64, then 16.
        unsafe {
            let back = _mm512_castsi128_si512(_mm_loadu_si128(p.add(64).cast()));
            Self::from_words(_mm512_loadu_si512(p.cast()), back)
        }
    }

    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
    unsafe fn unpack_part(p: *const u8, blocks: usize) -> Unpacked {
        // SAFETY: up to three blocks are at most 15 words, and the mask keeps the load within them.
        let front = unsafe { _mm512_maskz_loadu_epi32((1 << (5 * blocks.min(3))) - 1, p.cast()) };
        Self::from_words(front, _mm512_setzero_si512())
    }
}

impl Weights32 for Q5_1 {
    const BYTES: usize = 24;
    const OFFSET: Option<f32> = None;

    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
    unsafe fn unpack(p: *const u8) -> Unpacked {
        // SAFETY: four blocks are 96 bytes: 64, then 32; the fifth bits follow scale and minimum.
        unsafe {
            let front = _mm512_loadu_si512(p.cast());
            let back = _mm512_castsi256_si512(_mm256_loadu_si256(p.add(64).cast()));
            let (low, high) = with_fifth(gather_nibbles::<6>(front, back), p.add(4), 24);
            let (d, m) = scale_and_minimum::<6>(front, back);
            Unpacked { low, high, d, m }
        }
    }
}

/// What the codes of IQ4_NL and IQ4_XS stand for, code by code, and 128 more: unsigned bytes.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
pub(super) fn iq4_levels_and_128(codes: __m512i) -> __m512i {
    // SAFETY: a list of 16 bytes.
    let levels = unsafe { _mm_loadu_si128(IQ4_LEVELS.as_ptr().cast()) };
    let levels = _mm512_shuffle_epi8(_mm512_broadcast_i32x4(levels), codes);
    _mm512_xor_si512(levels, _mm512_set1_epi8(-128))
}

impl Weights32 for Iq4Nl {
    const BYTES: usize = 18;
    const OFFSET: Option<f32> = Some(128.0);

    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
    unsafe fn unpack(p: *const u8) -> Unpacked {
        // SAFETY: four blocks lie at `p`, each a scale of 2 bytes and 16 bytes of nibbles.
        let (qs, d) = unsafe { (pieces(p.add(2), 18), halves(p, 18)) };
        let (low, high) = nibbles(qs);
        Unpacked {
            low: iq4_levels_and_128(low),
            high: iq4_levels_and_128(high),
            d,
            m: _mm512_setzero_ps(),
        }
    }
}

impl Weights32 for Mxfp4 {
    const BYTES: usize = 17;
    const OFFSET: Option<f32> = Some(128.0);

    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
    unsafe fn unpack(p: *const u8) -> Unpacked {
        // SAFETY: four blocks lie at `p`, each an exponent of a byte and 16 bytes of nibbles; a list of 16 bytes.
        let (qs, scales, levels) = unsafe {
            let scale = |i: usize| BlockMxfp4::half_scale_of(p.add(17 * i).read());
            (
                pieces(p.add(1), 17),
                _mm_set_ps(scale(3), scale(2), scale(1), scale(0)),
                _mm_loadu_si128(E2M1_DOUBLED.as_ptr().cast()),
            )
        };
        let levels = _mm_xor_si128(levels, _mm_set1_epi8(-128));
        let levels = _mm512_broadcast_i32x4(levels);
        let (low, high) = nibbles(qs);
        Unpacked {
            low: _mm512_shuffle_epi8(levels, low),
            high: _mm512_shuffle_epi8(levels, high),
            d: _mm512_permutexvar_ps(four_times(), _mm512_castps128_ps512(scales)),
            m: _mm512_setzero_ps(),
        }
    }
}
