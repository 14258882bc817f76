//! Types with blocks of 32, four blocks at a time.

use backplane_weights::blocks::{BlockMxfp4, E2M1_DOUBLED, IQ4_LEVELS};
use std::arch::x86_64::*;

/// A storage type with blocks of 32.
pub(super) trait Weights32 {
    /// Bytes of a block.
    const BYTES: usize;
    /// What the stored numbers are too large by, a power of two; `None` for types with a minimum.
    const OFFSET: Option<u32>;

    /// Four blocks as unsigned bytes, in the order of [`Group32`](crate::activations::Group32): their first halves, `[4 blocks, 16]`,
    /// and their second halves.
    ///
    /// # Safety
    /// Four blocks lie at `p`, and the processor has AVX-512 F, BW, DQ, VL.
    unsafe fn unpack(p: *const u8) -> [__m512i; 2];

    /// A block of four rows, `step` bytes apart, at each place of `at`: lane `4 f + r` of vector `j` is the elements `4 j .. 4 j + 4` of
    /// row `r` there as unsigned bytes.
    ///
    /// # Safety
    /// A block lies at each row, and the processor has AVX-512 F, BW, DQ, VL.
    unsafe fn turned(at: [*const u8; 4], step: usize) -> [__m512i; 8];

    /// Scales of sixteen blocks, which begin `lanes` bytes after `p`, and their minima for types that have them.
    ///
    /// # Safety
    /// They lie there, and the processor has AVX-512 F, BW, DQ, VL, F16C.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
    unsafe fn scales(p: *const u8, lanes: __m512i) -> (__m512, __m512) {
        // SAFETY: the caller's promise; blocks begin with their scale and, after it, the minimum of types that have one, or two
        // other bytes.
        let both = unsafe { _mm512_i32gather_epi32::<1>(lanes, p.cast()) };
        match Self::OFFSET {
            Some(_) => (
                _mm512_cvtph_ps(_mm512_cvtepi32_epi16(both)),
                _mm512_setzero_ps(),
            ),
            None => {
                const fn index() -> [i16; 32] {
                    let mut index = [0; 32];
                    let mut lane = 0;
                    while lane < 16 {
                        index[lane] = 2 * lane as i16;
                        index[lane + 16] = index[lane] + 1;
                        lane += 1;
                    }
                    index
                }
                let index = const { index() };
                // SAFETY: an array of 64 bytes.
                let index = unsafe { _mm512_loadu_si512(index.as_ptr().cast()) };
                let apart = _mm512_permutexvar_epi16(index, both);
                (
                    _mm512_cvtph_ps(_mm512_castsi512_si256(apart)),
                    _mm512_cvtph_ps(_mm512_extracti64x4_epi64::<1>(apart)),
                )
            }
        }
    }

    /// The same of four blocks of each of four rows: lane `4 b + r`.
    ///
    /// # Safety
    /// As for `scales`, from the first row on; and four blocks lie at each of `rows`.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
    unsafe fn scales_of_rows(rows: [*const u8; 4], lanes: __m512i) -> (__m512, __m512) {
        // SAFETY: the caller's promise.
        unsafe { Self::scales(rows[0], lanes) }
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

/// Four pieces of 16 bytes, `step` bytes apart, `first` bytes after each of `at`, turned: lane `4 f + r` of vector `j` is the bytes
/// `4 j .. 4 j + 4` of piece `r` of the four.
///
/// # Safety
/// They lie there.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2")]
unsafe fn turned_pieces(at: [*const u8; 4], first: usize, step: usize) -> [__m512i; 4] {
    // Piece `i` of each four.
    let piece = |i: usize| {
        let load = |f: usize| {
            // SAFETY: the caller's promise.
            unsafe { _mm_loadu_si128(at[f].add(first + i * step).cast()) }
        };
        let v = _mm512_inserti32x4::<1>(_mm512_castsi128_si512(load(0)), load(1));
        _mm512_inserti32x4::<3>(_mm512_inserti32x4::<2>(v, load(2)), load(3))
    };
    let (a, b, c, d) = (piece(0), piece(1), piece(2), piece(3));
    let (ab, cd) = (_mm512_unpacklo_epi32(a, b), _mm512_unpacklo_epi32(c, d));
    let (upper_ab, upper_cd) = (_mm512_unpackhi_epi32(a, b), _mm512_unpackhi_epi32(c, d));
    [
        _mm512_unpacklo_epi64(ab, cd),
        _mm512_unpackhi_epi64(ab, cd),
        _mm512_unpacklo_epi64(upper_ab, upper_cd),
        _mm512_unpackhi_epi64(upper_ab, upper_cd),
    ]
}

/// Nibbles of [`turned_pieces`]: the low ones, then the high ones.
///
/// # Safety
/// As there.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2")]
unsafe fn turned_nibbles(at: [*const u8; 4], first: usize, step: usize) -> [__m512i; 8] {
    // SAFETY: the caller's promise.
    let [a, b, c, d] = unsafe { turned_pieces(at, first, step) };
    let ([a, e], [b, f], [c, g], [d, h]) = (nibbles(a), nibbles(b), nibbles(c), nibbles(d));
    [a, b, c, d, e, f, g, h]
}

/// The 32 bits of four fields, `step` bytes apart, `first` bytes after each of `at`: lane `4 f + r`.
///
/// # Safety
/// They lie there.
#[inline]
#[target_feature(enable = "avx512f,avx512dq,avx2")]
unsafe fn fields(at: [*const u8; 4], first: usize, step: usize) -> __m512i {
    let [a, b, c, d] = at.map(|four| {
        // SAFETY: the caller's promise.
        let field = |r: usize| unsafe { four.add(first + r * step).cast::<i32>().read_unaligned() };
        _mm_set_epi32(field(3), field(2), field(1), field(0))
    });
    let v = _mm512_inserti32x4::<1>(_mm512_castsi128_si512(a), b);
    _mm512_inserti32x4::<3>(_mm512_inserti32x4::<2>(v, c), d)
}

/// Adds the fifth bits of sixteen blocks, whose fields are `fields`: bit `i` belongs to element `i`.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
fn turned_with_fifth(low: [__m512i; 8], fields: __m512i) -> [__m512i; 8] {
    let mut all = low;
    for (j, four) in all.iter_mut().enumerate() {
        // The byte of the field that has the bits of these four elements, four times.
        let byte = _mm512_set1_epi32(0x0101_0101 * (j as i32 / 2));
        let first = _mm512_set_epi64(
            0x0c0c_0c0c_0808_0808,
            0x0404_0404_0000_0000,
            0x0c0c_0c0c_0808_0808,
            0x0404_0404_0000_0000,
            0x0c0c_0c0c_0808_0808,
            0x0404_0404_0000_0000,
            0x0c0c_0c0c_0808_0808,
            0x0404_0404_0000_0000,
        );
        let bits = _mm512_shuffle_epi8(fields, _mm512_add_epi8(first, byte));
        let bit = _mm512_set1_epi32(if j % 2 == 0 {
            0x0804_0201
        } else {
            0x8040_2010u32 as i32
        });
        let set = _mm512_test_epi8_mask(bits, bit);
        *four = _mm512_mask_add_epi8(*four, set, *four, _mm512_set1_epi8(16));
    }
    all
}

/// Low and high nibbles of every byte.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
fn nibbles(v: __m512i) -> [__m512i; 2] {
    let mask = _mm512_set1_epi8(15);
    [
        _mm512_and_si512(v, mask),
        _mm512_and_si512(_mm512_srli_epi16::<4>(v), mask),
    ]
}

/// Adds the fifth bits of four blocks, whose fields lie `step` bytes apart: bits 0..16 go to the block's first half, bits 16..32 to its second.
///
/// # Safety
/// Four fields lie at `p`.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx2")]
unsafe fn with_fifth([low, high]: [__m512i; 2], p: *const u8, step: usize) -> [__m512i; 2] {
    // SAFETY: the caller's promise.
    let field =
        |b: usize| unsafe { _mm_set1_epi32(p.add(b * step).cast::<i32>().read_unaligned()) };
    let fields = _mm512_inserti32x4::<1>(_mm512_castsi128_si512(field(0)), field(1));
    let fields = _mm512_inserti32x4::<3>(_mm512_inserti32x4::<2>(fields, field(2)), field(3));
    // Bit `i` of a field to byte `i`.
    let bits = _mm512_set1_epi64(0x8040_2010_0804_0201u64 as i64);
    let bytes = _mm512_broadcast_i32x4(_mm_set_epi64x(0x0101_0101_0101_0101, 0));
    let first = _mm512_test_epi8_mask(_mm512_shuffle_epi8(fields, bytes), bits);
    let bytes = _mm512_or_si512(bytes, _mm512_set1_epi8(2));
    let second = _mm512_test_epi8_mask(_mm512_shuffle_epi8(fields, bytes), bits);
    let bit = _mm512_set1_epi8(16);
    [
        _mm512_mask_add_epi8(low, first, low, bit),
        _mm512_mask_add_epi8(high, second, high, bit),
    ]
}

impl Weights32 for Q8_0 {
    const BYTES: usize = 34;
    const OFFSET: Option<u32> = Some(128);

    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
    unsafe fn unpack(p: *const u8) -> [__m512i; 2] {
        // SAFETY: four blocks lie at `p`, each a scale of 2 bytes and 32 values.
        let [a, b, c, d] =
            [0, 1, 2, 3].map(|i| unsafe { _mm256_loadu_si256(p.add(34 * i + 2).cast()) });
        let front = _mm512_inserti64x4::<1>(_mm512_castsi256_si512(a), b);
        let back = _mm512_inserti64x4::<1>(_mm512_castsi256_si512(c), d);
        let sign = _mm512_set1_epi8(-128);
        [
            _mm512_xor_si512(_mm512_shuffle_i32x4::<0b10_00_10_00>(front, back), sign),
            _mm512_xor_si512(_mm512_shuffle_i32x4::<0b11_01_11_01>(front, back), sign),
        ]
    }

    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
    unsafe fn turned(at: [*const u8; 4], step: usize) -> [__m512i; 8] {
        let sign = _mm512_set1_epi8(-128);
        // SAFETY: blocks are a scale of 2 bytes and 32 values.
        let ([a, b, c, d], [e, f, g, h]) =
            unsafe { (turned_pieces(at, 2, step), turned_pieces(at, 18, step)) };
        [a, b, c, d, e, f, g, h].map(|four| _mm512_xor_si512(four, sign))
    }
}

impl Weights32 for Q4_0 {
    const BYTES: usize = 18;
    const OFFSET: Option<u32> = Some(8);

    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
    unsafe fn unpack(p: *const u8) -> [__m512i; 2] {
        // SAFETY: four blocks lie at `p`, each a scale of 2 bytes and 16 bytes of nibbles.
        nibbles(unsafe { pieces(p.add(2), 18) })
    }

    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
    unsafe fn turned(at: [*const u8; 4], step: usize) -> [__m512i; 8] {
        // SAFETY: blocks are a scale of 2 bytes and 16 bytes of nibbles.
        unsafe { turned_nibbles(at, 2, step) }
    }
}

impl Weights32 for Q5_0 {
    const BYTES: usize = 22;
    const OFFSET: Option<u32> = Some(16);

    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
    unsafe fn unpack(p: *const u8) -> [__m512i; 2] {
        // SAFETY: four blocks lie at `p`: scale 2 bytes, fifth bits 4, nibbles 16.
        unsafe { with_fifth(nibbles(pieces(p.add(6), 22)), p.add(2), 22) }
    }

    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
    unsafe fn turned(at: [*const u8; 4], step: usize) -> [__m512i; 8] {
        // SAFETY: blocks are a scale of 2 bytes, fifth bits of 4, nibbles of 16.
        unsafe { turned_with_fifth(turned_nibbles(at, 6, step), fields(at, 2, step)) }
    }
}

/// Nibbles of four blocks of `STEP` 32-bit words that end in 16 bytes of them.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
fn gather_nibbles<const STEP: i32>(front: __m512i, back: __m512i) -> [__m512i; 2] {
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

impl Weights32 for Q4_1 {
    const BYTES: usize = 20;
    const OFFSET: Option<u32> = None;

    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
    unsafe fn unpack(p: *const u8) -> [__m512i; 2] {
        // SAFETY: four blocks are 80 bytes: 64, then 16.
        unsafe {
            let back = _mm512_castsi128_si512(_mm_loadu_si128(p.add(64).cast()));
            gather_nibbles::<5>(_mm512_loadu_si512(p.cast()), back)
        }
    }

    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
    unsafe fn turned(at: [*const u8; 4], step: usize) -> [__m512i; 8] {
        // SAFETY: blocks are a scale and a minimum of 2 bytes each and 16 bytes of nibbles.
        unsafe { turned_nibbles(at, 4, step) }
    }

    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
    unsafe fn scales_of_rows([a, b, c, d]: [*const u8; 4], _lanes: __m512i) -> (__m512, __m512) {
        const fn index() -> [i16; 32] {
            let mut index = [0; 32];
            let mut lane = 0;
            while lane < 16 {
                let (block, row) = (lane as i16 / 4, lane as i16 % 4);
                index[lane] = 2 * (4 * row + block);
                index[lane + 16] = index[lane] + 1;
                lane += 1;
            }
            index
        }
        let index = const { index() };
        // SAFETY: a scale and a minimum are the first word of five of each block, so that those of four blocks lie in the first 16
        // words; an array of 64 bytes.
        let (a, b, c, d, index) = unsafe {
            (
                _mm512_loadu_si512(a.cast()),
                _mm512_loadu_si512(b.cast()),
                _mm512_loadu_si512(c.cast()),
                _mm512_loadu_si512(d.cast()),
                _mm512_loadu_si512(index.as_ptr().cast()),
            )
        };
        let begins = _mm512_set_epi32(0, 0, 0, 0, 0, 0, 0, 0, 31, 26, 21, 16, 15, 10, 5, 0);
        let (ab, cd) = (
            _mm512_permutex2var_epi32(a, begins, b),
            _mm512_permutex2var_epi32(c, begins, d),
        );
        let by_row = _mm512_inserti64x4::<1>(ab, _mm512_castsi512_si256(cd));
        let both = _mm512_permutexvar_epi16(index, by_row);
        (
            _mm512_cvtph_ps(_mm512_castsi512_si256(both)),
            _mm512_cvtph_ps(_mm512_extracti64x4_epi64::<1>(both)),
        )
    }
}

impl Weights32 for Q5_1 {
    const BYTES: usize = 24;
    const OFFSET: Option<u32> = None;

    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
    unsafe fn unpack(p: *const u8) -> [__m512i; 2] {
        // SAFETY: four blocks are 96 bytes: 64, then 32; the fifth bits follow scale and minimum.
        unsafe {
            let front = _mm512_loadu_si512(p.cast());
            let back = _mm512_castsi256_si512(_mm256_loadu_si256(p.add(64).cast()));
            with_fifth(gather_nibbles::<6>(front, back), p.add(4), 24)
        }
    }

    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
    unsafe fn turned(at: [*const u8; 4], step: usize) -> [__m512i; 8] {
        // SAFETY: blocks are a scale and a minimum of 2 bytes each, fifth bits of 4, nibbles of 16.
        unsafe { turned_with_fifth(turned_nibbles(at, 8, step), fields(at, 4, step)) }
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
    const OFFSET: Option<u32> = Some(128);

    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
    unsafe fn unpack(p: *const u8) -> [__m512i; 2] {
        // SAFETY: four blocks lie at `p`, each a scale of 2 bytes and 16 bytes of nibbles.
        nibbles(unsafe { pieces(p.add(2), 18) }).map(|codes| iq4_levels_and_128(codes))
    }

    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
    unsafe fn turned(at: [*const u8; 4], step: usize) -> [__m512i; 8] {
        // SAFETY: blocks are a scale of 2 bytes and 16 bytes of nibbles.
        unsafe { turned_nibbles(at, 2, step) }.map(|codes| iq4_levels_and_128(codes))
    }
}

impl Weights32 for Mxfp4 {
    const BYTES: usize = 17;
    const OFFSET: Option<u32> = Some(128);

    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
    unsafe fn unpack(p: *const u8) -> [__m512i; 2] {
        // SAFETY: four blocks lie at `p`, each an exponent of a byte and 16 bytes of nibbles; a list of 16 bytes.
        let (qs, levels) = unsafe {
            (
                pieces(p.add(1), 17),
                _mm_loadu_si128(E2M1_DOUBLED.as_ptr().cast()),
            )
        };
        let levels = _mm_xor_si128(levels, _mm_set1_epi8(-128));
        let levels = _mm512_broadcast_i32x4(levels);
        nibbles(qs).map(|codes| _mm512_shuffle_epi8(levels, codes))
    }

    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
    unsafe fn turned(at: [*const u8; 4], step: usize) -> [__m512i; 8] {
        // SAFETY: blocks are an exponent of a byte and 16 bytes of nibbles; a list of 16 bytes.
        let (codes, levels) = unsafe {
            (
                turned_nibbles(at, 1, step),
                _mm_loadu_si128(E2M1_DOUBLED.as_ptr().cast()),
            )
        };
        let levels = _mm512_broadcast_i32x4(_mm_xor_si128(levels, _mm_set1_epi8(-128)));
        codes.map(|codes| _mm512_shuffle_epi8(levels, codes))
    }

    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
    unsafe fn scales(p: *const u8, lanes: __m512i) -> (__m512, __m512) {
        let (mut offsets, mut scales) = ([0i32; 16], [0f32; 16]);
        // SAFETY: an array of sixteen.
        unsafe { _mm512_storeu_si512(offsets.as_mut_ptr().cast(), lanes) };
        for (scale, offset) in scales.iter_mut().zip(offsets) {
            // SAFETY: blocks begin with their exponent.
            *scale = BlockMxfp4::half_scale_of(unsafe { p.offset(offset as isize).read() });
        }
        // SAFETY: an array of sixteen.
        let scales = unsafe { _mm512_loadu_ps(scales.as_ptr()) };
        (scales, _mm512_setzero_ps())
    }
}
