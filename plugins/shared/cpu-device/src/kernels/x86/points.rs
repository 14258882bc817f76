//! Types whose values are points of a lattice (IQ1, IQ2, IQ3): the points of a group of 32 values.

use backplane_weights::blocks::{
    IQ1_POINTS, IQ2_S_POINTS, IQ2_XS_POINTS, IQ2_XXS_POINTS, IQ3_S_POINTS, IQ3_XXS_POINTS,
};
use std::arch::x86_64::*;

/// Groups of scales: a byte for each of 16.
pub(super) type Scales = [u64; 2];

/// A storage type with blocks of 256 values in groups of 32, which are four points of eight.
pub(super) trait Points {
    /// Bytes of a block.
    const BYTES: usize;
    /// What the block's scale is to be multiplied with.
    const UNIT: f32;
    /// What makes the values numbers from 0 to 127 when it is added. `group` has already done so where there are no signs.
    const OFFSET: i8;
    /// Whether the points are magnitudes, and signs stand beside them.
    const SIGNS: bool = true;

    /// The bits of the block's scale, a half-precision number.
    ///
    /// # Safety
    /// A block lies at `p`.
    #[inline(always)]
    unsafe fn scale(p: *const u8) -> u16 {
        // SAFETY: the caller's promise.
        unsafe { u16::from_le_bytes(p.cast::<[u8; 2]>().read()) }
    }

    /// The codes of the scales of each 16 values, at most 15. A code `s` stands for `2 s + 1`.
    ///
    /// # Safety
    /// A block lies at `p`.
    unsafe fn scales(p: *const u8) -> Scales;

    /// Group `group` (below 8): the bytes of its points, and its signs, a bit for each value.
    ///
    /// # Safety
    /// A block lies at `p`, and the processor has AVX2.
    unsafe fn group(p: *const u8, group: usize) -> (__m256i, u32);
}

pub(super) struct Iq2Xxs;
pub(super) struct Iq2Xs;
pub(super) struct Iq2S;
pub(super) struct Iq3Xxs;
pub(super) struct Iq3S;
pub(super) struct Iq1S;
pub(super) struct Iq1M;

/// A number that lies at `p`, at any address.
///
/// # Safety
/// It lies there.
#[inline(always)]
unsafe fn word(p: *const u8) -> u32 {
    // SAFETY: the caller's promise.
    unsafe { u32::from_le_bytes(p.cast::<[u8; 4]>().read()) }
}

/// As [`word`].
///
/// # Safety
/// It lies there.
#[inline(always)]
unsafe fn long(p: *const u8) -> u64 {
    // SAFETY: the caller's promise.
    unsafe { u64::from_le_bytes(p.cast::<[u8; 8]>().read()) }
}

/// Four points of eight.
#[inline]
#[target_feature(enable = "avx2")]
fn eights(points: [u64; 4]) -> __m256i {
    let [a, b, c, d] = points.map(|point| point as i64);
    _mm256_setr_epi64x(a, b, c, d)
}

/// Eight points of four.
#[inline]
#[target_feature(enable = "avx2")]
fn fours(point: impl Fn(usize) -> u32) -> __m256i {
    let point = |i| point(i) as i32;
    let (a, b) = ([0, 1, 2, 3].map(point), [4, 5, 6, 7].map(point));
    _mm256_setr_epi32(a[0], a[1], a[2], a[3], b[0], b[1], b[2], b[3])
}

/// Eight nibbles as bytes.
#[inline(always)]
fn spread(nibbles: u32) -> u64 {
    let x = u64::from(nibbles);
    let x = (x | x << 16) & 0x0000_ffff_0000_ffff;
    let x = (x | x << 8) & 0x00ff_00ff_00ff_00ff;
    (x | x << 4) & 0x0f0f_0f0f_0f0f_0f0f
}

/// Sixteen nibbles as bytes.
#[inline(always)]
fn each(nibbles: u64) -> Scales {
    [spread(nibbles as u32), spread((nibbles >> 32) as u32)]
}

/// Eight nibbles as bytes, each twice.
#[inline(always)]
fn twice(nibbles: u32) -> Scales {
    [nibbles & 0xffff, nibbles >> 16].map(|four| {
        let x = u64::from(four);
        let x = (x | x << 24) & 0x0000_00ff_0000_00ff;
        let x = (x | x << 12) & 0x000f_000f_000f_000f;
        x | x << 8
    })
}

/// In each byte the eighth bit, such that the number of ones is even.
#[inline(always)]
fn even(sevens: u32) -> u32 {
    let x = sevens ^ sevens >> 4;
    let x = x ^ x >> 2;
    let x = x ^ x >> 1;
    sevens | (x & 0x0101_0101) << 7
}

/// Signs from four times seven bits, the lowest first.
#[inline(always)]
fn four_sevens(bits: u32) -> u32 {
    let x = (bits & 0x3fff) | (bits << 2 & 0x3fff_0000);
    even((x & 0x007f_007f) | (x << 1 & 0x7f00_7f00))
}

/// A point's bytes with two more in each where a bit of IQ1 says that an eighth is added; else it is taken away.
#[inline(always)]
fn shifted(point: u64, minus: u32) -> u64 {
    point + 0x0101_0101_0101_0101 * u64::from(2 - 2 * (minus & 1))
}

impl Points for Iq2Xxs {
    const BYTES: usize = 66;
    const UNIT: f32 = 0.125;
    const OFFSET: i8 = 64;

    #[inline(always)]
    unsafe fn scales(p: *const u8) -> Scales {
        let mut nibbles = 0;
        for group in 0..8 {
            // SAFETY: eight groups of 8 bytes from 2 on; the scale is in the last byte.
            let last = unsafe { p.add(9 + 8 * group).read() };
            nibbles |= u32::from(last >> 4) << (4 * group);
        }
        twice(nibbles)
    }

    #[inline]
    #[target_feature(enable = "avx2")]
    unsafe fn group(p: *const u8, group: usize) -> (__m256i, u32) {
        // SAFETY: eight groups of 8 bytes from 2 on: four of codes, four of signs.
        let (codes, signs) = unsafe {
            let codes = p.add(2 + 8 * group);
            (codes.cast::<[u8; 4]>().read(), word(codes.add(4)))
        };
        (
            eights(codes.map(|code| IQ2_XXS_POINTS[usize::from(code)])),
            four_sevens(signs),
        )
    }
}

impl Points for Iq2Xs {
    const BYTES: usize = 74;
    const UNIT: f32 = 0.125;
    const OFFSET: i8 = 64;

    #[inline(always)]
    unsafe fn scales(p: *const u8) -> Scales {
        // SAFETY: eight bytes of scales from 66 on.
        each(unsafe { long(p.add(66)) })
    }

    #[inline]
    #[target_feature(enable = "avx2")]
    unsafe fn group(p: *const u8, group: usize) -> (__m256i, u32) {
        // SAFETY: 32 codes of 2 bytes from 2 on.
        let codes = unsafe { long(p.add(2 + 8 * group)) };
        let point = |i: usize| IQ2_XS_POINTS[(codes >> (16 * i)) as usize & 511];
        let sevens = codes >> 9 & 0x007f_007f_007f_007f;
        let sevens = (sevens | sevens >> 8) & 0x0000_ffff_0000_ffff;
        let sevens = sevens | sevens >> 16;
        (
            eights([point(0), point(1), point(2), point(3)]),
            even(sevens as u32),
        )
    }
}

impl Points for Iq2S {
    const BYTES: usize = 82;
    const UNIT: f32 = 0.125;
    const OFFSET: i8 = 64;

    #[inline(always)]
    unsafe fn scales(p: *const u8) -> Scales {
        // SAFETY: eight bytes of scales from 74 on.
        each(unsafe { long(p.add(74)) })
    }

    #[inline]
    #[target_feature(enable = "avx2")]
    unsafe fn group(p: *const u8, group: usize) -> (__m256i, u32) {
        // SAFETY: 32 bytes of codes from 2 on, 32 of signs from 34 on, eight of upper bits from 66 on.
        let (low, signs, high) = unsafe {
            (
                word(p.add(2 + 4 * group)),
                word(p.add(34 + 4 * group)),
                u32::from(p.add(66 + group).read()),
            )
        };
        let point = |i: usize| {
            let index = (low >> (8 * i) & 255) | (high >> (2 * i) & 3) << 8;
            IQ2_S_POINTS[index as usize]
        };
        (eights([point(0), point(1), point(2), point(3)]), signs)
    }
}

impl Points for Iq3Xxs {
    const BYTES: usize = 98;
    const UNIT: f32 = 0.25;
    const OFFSET: i8 = 64;

    #[inline(always)]
    unsafe fn scales(p: *const u8) -> Scales {
        let mut nibbles = 0;
        for group in 0..8 {
            // SAFETY: eight groups of 4 bytes of signs from 66 on; the scale is in the last byte.
            let last = unsafe { p.add(69 + 4 * group).read() };
            nibbles |= u32::from(last >> 4) << (4 * group);
        }
        twice(nibbles)
    }

    #[inline]
    #[target_feature(enable = "avx2")]
    unsafe fn group(p: *const u8, group: usize) -> (__m256i, u32) {
        // SAFETY: 64 bytes of codes from 2 on, then eight groups of 4 bytes of signs.
        let (codes, signs) = unsafe {
            let codes = p.add(2 + 8 * group).cast::<[u8; 8]>().read();
            (codes, word(p.add(66 + 4 * group)))
        };
        let points = fours(|i| IQ3_XXS_POINTS[usize::from(codes[i])]);
        (points, four_sevens(signs))
    }
}

impl Points for Iq3S {
    const BYTES: usize = 110;
    const UNIT: f32 = 1.0;
    const OFFSET: i8 = 16;

    #[inline(always)]
    unsafe fn scales(p: *const u8) -> Scales {
        // SAFETY: four bytes of scales from 106 on.
        twice(unsafe { word(p.add(106)) })
    }

    #[inline]
    #[target_feature(enable = "avx2")]
    unsafe fn group(p: *const u8, group: usize) -> (__m256i, u32) {
        // SAFETY: 64 bytes of codes from 2 on, eight of ninth bits from 66 on, 32 of signs from 74 on.
        let (codes, ninth, signs) = unsafe {
            (
                p.add(2 + 8 * group).cast::<[u8; 8]>().read(),
                usize::from(p.add(66 + group).read()),
                word(p.add(74 + 4 * group)),
            )
        };
        let points = fours(|i| IQ3_S_POINTS[usize::from(codes[i]) | (ninth << (8 - i) & 256)]);
        (points, signs)
    }
}

impl Points for Iq1S {
    const BYTES: usize = 50;
    const UNIT: f32 = 0.125;
    const OFFSET: i8 = 9;
    const SIGNS: bool = false;

    #[inline(always)]
    unsafe fn scales(p: *const u8) -> Scales {
        let mut nibbles = 0;
        for group in 0..8 {
            // SAFETY: eight groups of 2 bytes from 34 on; the scale is in three bits of the second.
            let last = unsafe { p.add(35 + 2 * group).read() };
            nibbles |= u32::from(last >> 4 & 7) << (4 * group);
        }
        twice(nibbles)
    }

    #[inline]
    #[target_feature(enable = "avx2")]
    unsafe fn group(p: *const u8, group: usize) -> (__m256i, u32) {
        // SAFETY: 32 bytes of codes from 2 on, then eight groups of 2 bytes.
        let (low, high) = unsafe {
            let high = p.add(34 + 2 * group).cast::<[u8; 2]>().read();
            (
                word(p.add(2 + 4 * group)),
                u32::from(u16::from_le_bytes(high)),
            )
        };
        let point = |i: usize| {
            let index = (low >> (8 * i) & 255) | (high >> (3 * i) & 7) << 8;
            shifted(IQ1_POINTS[index as usize], high >> 15)
        };
        (eights([point(0), point(1), point(2), point(3)]), 0)
    }
}

impl Points for Iq1M {
    const BYTES: usize = 56;
    const UNIT: f32 = 0.125;
    const OFFSET: i8 = 9;
    const SIGNS: bool = false;

    #[inline(always)]
    unsafe fn scale(p: *const u8) -> u16 {
        // SAFETY: four numbers of 2 bytes from 48 on; the scale's bits are the upper four of each.
        let x = unsafe { long(p.add(48)) } >> 12 & 0x000f_000f_000f_000f;
        let x = (x | x >> 12) & 0x0000_00ff_0000_00ff;
        (x | x >> 24) as u16
    }

    #[inline(always)]
    unsafe fn scales(p: *const u8) -> Scales {
        // SAFETY: four numbers of 2 bytes from 48 on, each with four scales of three bits.
        let x = unsafe { long(p.add(48)) };
        [x as u32, (x >> 32) as u32].map(|two| {
            let x = u64::from(two);
            let x = (x | x << 16) & 0x0000_0fff_0000_0fff;
            let x = (x | x << 10) & 0x003f_003f_003f_003f;
            (x | x << 5) & 0x0707_0707_0707_0707
        })
    }

    #[inline]
    #[target_feature(enable = "avx2")]
    unsafe fn group(p: *const u8, group: usize) -> (__m256i, u32) {
        // SAFETY: 32 bytes of codes, then 16 with a nibble for each point.
        let (low, high) = unsafe {
            let high = p.add(32 + 2 * group).cast::<[u8; 2]>().read();
            (word(p.add(4 * group)), u32::from(u16::from_le_bytes(high)))
        };
        let point = |i: usize| {
            let high = high >> (4 * i);
            let index = (low >> (8 * i) & 255) | (high & 7) << 8;
            shifted(IQ1_POINTS[index as usize], high >> 3)
        };
        (eights([point(0), point(1), point(2), point(3)]), 0)
    }
}
