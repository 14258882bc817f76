//! Q5_0 for one token on processors that also move bytes across a vector (VBMI) and multiply matrices of bits (GFNI).
//!
//! The instructions are written by hand: code for more features than its caller's would be called, not inlined.

use super::blocks32::{self, Weights32};
use std::arch::x86_64::*;

/// Q5_0 with the instructions that [`there`] asks for.
pub(super) struct Q5_0;

/// Whether this processor and operating system have them, besides those of all kernels here.
pub(super) fn there() -> bool {
    is_x86_feature_detected!("avx512vbmi") && is_x86_feature_detected!("gfni")
}

/// Bytes of a table by their places; zeros where `keep` has none.
///
/// # Safety
/// The processor has AVX-512 VBMI.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
unsafe fn pick(table: __m512i, places: __m512i, keep: __mmask64) -> __m512i {
    let picked;
    // SAFETY: one instruction on registers.
    unsafe {
        std::arch::asm!(
            "vpermb {picked}{{{keep}}}{{z}}, {places}, {table}",
            picked = out(zmm_reg) picked,
            keep = in(kreg) keep,
            places = in(zmm_reg) places,
            table = in(zmm_reg) table,
            options(pure, nomem, nostack, preserves_flags),
        );
    }
    picked
}

/// Each byte of `x` times the matrix of bits in its eight bytes of `matrices`: bit `i` of the result is the sum of those bits of `x` that byte `7 - i` of
/// the matrix has.
///
/// # Safety
/// The processor has GFNI.
#[inline]
#[target_feature(enable = "avx512f")]
unsafe fn times_bits(x: __m512i, matrices: __m512i) -> __m512i {
    let product;
    // SAFETY: one instruction on registers.
    unsafe {
        std::arch::asm!(
            "vgf2p8affineqb {product}, {x}, {matrices}, 0",
            product = out(zmm_reg) product,
            x = in(zmm_reg) x,
            matrices = in(zmm_reg) matrices,
            options(pure, nomem, nostack, preserves_flags),
        );
    }
    product
}

/// With lane 1 replaced by the four bytes at `p`.
///
/// # Safety
/// They lie there.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
unsafe fn with_second(v: __m512i, p: *const u8) -> __m512i {
    let mut v = v;
    // SAFETY: one instruction that reads what the caller promises. The compiler would take three.
    unsafe {
        std::arch::asm!(
            "vpbroadcastd {v}{{{second}}}, dword ptr [{p}]",
            v = inout(zmm_reg) v,
            second = in(kreg) 2u16,
            p = in(reg) p,
            options(pure, readonly, nostack, preserves_flags),
        );
    }
    v
}

/// Where, from the first block's field on, the nibbles of the blocks lie; of the fourth they lie beyond the vector.
const NIBBLES: [u8; 64] = {
    let mut places = [0; 64];
    let mut i = 0;
    while i < 48 {
        places[i] = (22 * (i / 16) + 4 + i % 16) as u8;
        i += 1;
    }
    places
};

/// The same of their fields, the fourth of which stands where the first block's nibbles began: byte 3 of each eight has the bits of eight elements of the
/// first half of a block, byte 4 those of the second half.
const FIELDS: [u8; 64] = {
    let mut places = [0; 64];
    let mut i = 0;
    while i < 8 {
        let (block, part) = (i / 2, i % 2);
        let field = if block == 3 { 4 } else { 22 * block };
        places[8 * i + 3] = (field + part) as u8;
        places[8 * i + 4] = (field + 2 + part) as u8;
        i += 1;
    }
    places
};

impl Weights32 for Q5_0 {
    const BYTES: usize = blocks32::Q5_0::BYTES;
    const OFFSET: Option<u32> = blocks32::Q5_0::OFFSET;

    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
    unsafe fn unpack(p: *const u8) -> [__m512i; 2] {
        // SAFETY: four blocks of 22 bytes lie at `p`: scale 2 bytes, fifth bits 4, nibbles 16; lists of 64 bytes.
        let (front, last, nibbles, fields) = unsafe {
            (
                _mm512_loadu_si512(p.add(2).cast()),
                _mm_loadu_si128(p.add(72).cast()),
                _mm512_loadu_si512(NIBBLES.as_ptr().cast()),
                _mm512_loadu_si512(FIELDS.as_ptr().cast()),
            )
        };
        // SAFETY: only where `there` has found the features.
        unsafe {
            let both = pick(front, nibbles, !0);
            let both = _mm512_mask_broadcast_i32x4(both, 0xf000, last);
            let front = with_second(front, p.add(68));
            let fields = pick(front, fields, 0x1818_1818_1818_1818);
            // Bit `j` of a field's byte to byte `j`: bit 4 of it is the first half's, bit 3 the second's.
            let each = _mm512_set1_epi64(0x8040_2010_0804_0201u64 as i64);
            let fifth = times_bits(each, fields);
            let low = _mm512_set1_epi8(15);
            let second = _mm512_ternarylogic_epi64::<0b1101_1000>(both, fifth, low);
            [
                // The nibble where `low` has bits, the fifth where it has none; and the other way round, the nibble brought down.
                _mm512_ternarylogic_epi64::<0b1110_0100>(both, fifth, low),
                times_bits(second, _mm512_set1_epi64(0x1020_4080_0800_0000)),
            ]
        }
    }

    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
    unsafe fn turned(at: [*const u8; 4], step: usize) -> [__m512i; 8] {
        // SAFETY: the caller's promise.
        unsafe { blocks32::Q5_0::turned(at, step) }
    }
}
