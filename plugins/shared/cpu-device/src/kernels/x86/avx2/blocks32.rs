//! Types with blocks of 32, two blocks at a time.

use backplane_weights::blocks::{BlockMxfp4, E2M1_DOUBLED, IQ4_LEVELS};
use std::arch::x86_64::*;

/// Two blocks of one row, in the order of half a [`crate::activations::Group32`].
pub(super) struct Unpacked {
    /// First halves of the blocks: `[2 blocks, 16]` bytes.
    pub(super) low: __m256i,
    /// Second halves.
    pub(super) high: __m256i,
    /// Per lane: the block's scale.
    pub(super) d: __m256,
    /// Per lane: the block's minimum, for types that have one.
    pub(super) m: __m256,
}

/// A storage type with blocks of 32.
pub(super) trait Weights32 {
    /// Bytes of a block.
    const BYTES: usize;
    /// Whether the bytes unpacked are signed; else they are below 32.
    const SIGNED: bool = false;
    /// What the stored numbers are too large by; `None` for types with a minimum.
    const OFFSET: Option<f32>;

    /// Unpacks two blocks.
    ///
    /// # Safety
    /// Two blocks lie at `p`, and the processor has AVX2, FMA and F16C.
    unsafe fn unpack(p: *const u8) -> Unpacked;
}

pub(super) struct Q8_0;
pub(super) struct Q4_0;
pub(super) struct Q4_1;
pub(super) struct Q5_0;
pub(super) struct Q5_1;
pub(super) struct Iq4Nl;
pub(super) struct Mxfp4;

/// Two 16-byte pieces, `step` bytes apart.
///
/// # Safety
/// They lie at `p`.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn pieces(p: *const u8, step: usize) -> __m256i {
    // SAFETY: the caller's promise.
    unsafe {
        _mm256_set_m128i(
            _mm_loadu_si128(p.add(step).cast()),
            _mm_loadu_si128(p.cast()),
        )
    }
}

/// Two half-precision numbers, `step` bytes apart, each in four lanes.
///
/// # Safety
/// They lie at `p`.
#[inline]
#[target_feature(enable = "avx2,f16c")]
unsafe fn halves(p: *const u8, step: usize) -> __m256 {
    // SAFETY: the caller's promise.
    let word = |i: usize| u32::from(unsafe { p.add(i * step).cast::<u16>().read_unaligned() });
    let two = _mm_cvtph_ps(_mm_cvtsi32_si128((word(0) | word(1) << 16) as i32));
    _mm256_set_m128(
        _mm_shuffle_ps::<0b01_01_01_01>(two, two),
        _mm_shuffle_ps::<0>(two, two),
    )
}

/// Low and high nibbles of every byte.
#[inline]
#[target_feature(enable = "avx2")]
fn nibbles(v: __m256i) -> (__m256i, __m256i) {
    let mask = _mm256_set1_epi8(15);
    (
        _mm256_and_si256(v, mask),
        _mm256_and_si256(_mm256_srli_epi16::<4>(v), mask),
    )
}

/// Adds the fifth bits: bits 0..16 of each block's field go to its first half, bits 16..32 to its second.
///
/// # Safety
/// Two fields, `step` bytes apart, lie at `p`.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn with_fifth(
    (low, high): (__m256i, __m256i),
    p: *const u8,
    step: usize,
) -> (__m256i, __m256i) {
    // SAFETY: the caller's promise.
    let field = |i: usize| unsafe { p.add(i * step).cast::<i32>().read_unaligned() };
    let fields = _mm256_set_m128i(_mm_set1_epi32(field(1)), _mm_set1_epi32(field(0)));
    // Byte i of a half looks at byte i / 8 of its field, then at bit i % 8.
    let bytes = _mm256_set_epi64x(0x0101_0101_0101_0101, 0, 0x0101_0101_0101_0101, 0);
    let bits = _mm256_set1_epi64x(0x8040_2010_0804_0201u64 as i64);
    let sixteen = _mm256_set1_epi8(16);
    let spread = |bytes: __m256i| {
        let set = _mm256_and_si256(_mm256_shuffle_epi8(fields, bytes), bits);
        _mm256_and_si256(_mm256_cmpeq_epi8(set, bits), sixteen)
    };
    let later = _mm256_add_epi8(bytes, _mm256_set1_epi8(2));
    (
        _mm256_or_si256(low, spread(bytes)),
        _mm256_or_si256(high, spread(later)),
    )
}

impl Weights32 for Q8_0 {
    const BYTES: usize = 34;
    const SIGNED: bool = true;
    const OFFSET: Option<f32> = Some(0.0);

    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn unpack(p: *const u8) -> Unpacked {
        // SAFETY: two blocks lie at `p`, each a scale of 2 bytes and 32 values.
        unsafe {
            let (low, high, d) = (pieces(p.add(2), 34), pieces(p.add(18), 34), halves(p, 34));
            Unpacked {
                low,
                high,
                d,
                m: _mm256_setzero_ps(),
            }
        }
    }
}

impl Weights32 for Q4_0 {
    const BYTES: usize = 18;
    const OFFSET: Option<f32> = Some(8.0);

    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn unpack(p: *const u8) -> Unpacked {
        // SAFETY: two blocks lie at `p`, each a scale of 2 bytes and 16 bytes of nibbles.
        let (qs, d) = unsafe { (pieces(p.add(2), 18), halves(p, 18)) };
        let (low, high) = nibbles(qs);
        Unpacked {
            low,
            high,
            d,
            m: _mm256_setzero_ps(),
        }
    }
}

impl Weights32 for Q4_1 {
    const BYTES: usize = 20;
    const OFFSET: Option<f32> = None;

    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn unpack(p: *const u8) -> Unpacked {
        // SAFETY: two blocks lie at `p`: scale and minimum of 2 bytes each, 16 bytes of nibbles.
        let (qs, d, m) = unsafe { (pieces(p.add(4), 20), halves(p, 20), halves(p.add(2), 20)) };
        let (low, high) = nibbles(qs);
        Unpacked { low, high, d, m }
    }
}

impl Weights32 for Q5_0 {
    const BYTES: usize = 22;
    const OFFSET: Option<f32> = Some(16.0);

    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn unpack(p: *const u8) -> Unpacked {
        // SAFETY: two blocks lie at `p`: scale 2 bytes, fifth bits 4, nibbles 16.
        unsafe {
            let (low, high) = with_fifth(nibbles(pieces(p.add(6), 22)), p.add(2), 22);
            Unpacked {
                low,
                high,
                d: halves(p, 22),
                m: _mm256_setzero_ps(),
            }
        }
    }
}

impl Weights32 for Q5_1 {
    const BYTES: usize = 24;
    const OFFSET: Option<f32> = None;

    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn unpack(p: *const u8) -> Unpacked {
        // SAFETY: two blocks lie at `p`: scale and minimum of 2 bytes each, fifth bits 4, nibbles 16.
        unsafe {
            let (low, high) = with_fifth(nibbles(pieces(p.add(8), 24)), p.add(4), 24);
            Unpacked {
                low,
                high,
                d: halves(p, 24),
                m: halves(p.add(2), 24),
            }
        }
    }
}

/// What the codes of IQ4_NL and IQ4_XS stand for, code by code.
#[inline]
#[target_feature(enable = "avx2")]
pub(super) fn iq4_levels(codes: __m256i) -> __m256i {
    listed(&IQ4_LEVELS, codes)
}

/// What codes stand for by a list of sixteen.
#[inline]
#[target_feature(enable = "avx2")]
fn listed(levels: &[i8; 16], codes: __m256i) -> __m256i {
    // SAFETY: a list of 16 bytes.
    let levels = unsafe { _mm_loadu_si128(levels.as_ptr().cast()) };
    _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(levels), codes)
}

impl Weights32 for Iq4Nl {
    const BYTES: usize = 18;
    const SIGNED: bool = true;
    const OFFSET: Option<f32> = Some(0.0);

    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn unpack(p: *const u8) -> Unpacked {
        // SAFETY: two blocks lie at `p`, each a scale of 2 bytes and 16 bytes of nibbles.
        let (qs, d) = unsafe { (pieces(p.add(2), 18), halves(p, 18)) };
        let (low, high) = nibbles(qs);
        Unpacked {
            low: iq4_levels(low),
            high: iq4_levels(high),
            d,
            m: _mm256_setzero_ps(),
        }
    }
}

impl Weights32 for Mxfp4 {
    const BYTES: usize = 17;
    const SIGNED: bool = true;
    const OFFSET: Option<f32> = Some(0.0);

    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn unpack(p: *const u8) -> Unpacked {
        // SAFETY: two blocks lie at `p`, each an exponent of a byte and 16 bytes of nibbles.
        let (qs, d) = unsafe {
            let scale = |i: usize| _mm_set1_ps(BlockMxfp4::half_scale_of(p.add(17 * i).read()));
            (pieces(p.add(1), 17), _mm256_set_m128(scale(1), scale(0)))
        };
        let (low, high) = nibbles(qs);
        Unpacked {
            low: listed(&E2M1_DOUBLED, low),
            high: listed(&E2M1_DOUBLED, high),
            d,
            m: _mm256_setzero_ps(),
        }
    }
}
