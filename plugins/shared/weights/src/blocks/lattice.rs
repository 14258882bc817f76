//! Types whose values are points of a lattice, several coordinates to one code: IQ1, IQ2 and IQ3. The points are in `grids`.

use super::{Block, Half, Pod, TensorType, WholeBlock, WholeNumbers, Zeroable, grids};

/// Points of eight coordinates, the first in the lowest byte: `levels` by the number at each coordinate.
const fn points8<const N: usize>(points: &[u16; N], levels: [u8; 4]) -> [u64; N] {
    let mut out = [0; N];
    let mut at = 0;
    while at < N {
        let mut i = 0;
        while i < 8 {
            let level = levels[(points[at] >> (2 * i)) as usize & 3];
            out[at] |= (level as u64) << (8 * i);
            i += 1;
        }
        at += 1;
    }
    out
}

/// As [`points8`], of four coordinates.
const fn points4<const N: usize>(points: &[u16; N], levels: [u8; 8]) -> [u32; N] {
    let mut out = [0; N];
    let mut at = 0;
    while at < N {
        let mut i = 0;
        while i < 4 {
            let level = levels[(points[at] >> (4 * i)) as usize & 7];
            out[at] |= (level as u32) << (8 * i);
            i += 1;
        }
        at += 1;
    }
    out
}

/// Magnitudes of the coordinates of IQ2 points.
const IQ2_LEVELS: [u8; 4] = [8, 25, 43, 0];

/// Points of IQ2_XXS: a byte for each of eight magnitudes, the first in the lowest.
pub static IQ2_XXS_POINTS: [u64; 256] = points8(&grids::IQ2_XXS, IQ2_LEVELS);
/// Points of IQ2_XS, as those of IQ2_XXS.
pub static IQ2_XS_POINTS: [u64; 512] = points8(&grids::IQ2_XS, IQ2_LEVELS);
/// Points of IQ2_S, as those of IQ2_XXS.
pub static IQ2_S_POINTS: [u64; 1024] = points8(&grids::IQ2_S, IQ2_LEVELS);
/// Points of IQ3_XXS: a byte for each of four magnitudes.
pub static IQ3_XXS_POINTS: [u32; 256] = points4(&grids::IQ3_XXS, [4, 12, 20, 28, 36, 44, 52, 62]);
/// Points of IQ3_S: a byte for each of four magnitudes.
pub static IQ3_S_POINTS: [u32; 512] = points4(&grids::IQ3_S, [1, 3, 5, 7, 9, 11, 13, 15]);
/// Points of IQ1_S and IQ1_M: a byte for each of eight coordinates -1, 0 and 1, as 8 times one more.
pub static IQ1_POINTS: [u64; 2048] = points8(&grids::IQ1, [0, 8, 16, 24]);

/// Eight signs from seven stored ones: the number of minuses is even.
#[inline]
fn even_signs(seven: u32) -> u8 {
    let seven = (seven & 127) as u8;
    seven | ((seven.count_ones() & 1) as u8) << 7
}

/// Writes a point of eight magnitudes, negated where a bit of `signs` is set; `out` is `[8]`.
#[inline]
fn point(point: u64, signs: u8, out: &mut [i8]) {
    for (i, (value, level)) in out.iter_mut().zip(point.to_le_bytes()).enumerate() {
        let level = level as i8;
        *value = if (signs >> i) & 1 == 1 { -level } else { level };
    }
}

/// Two points of four as one of eight.
#[inline]
fn pair([first, second]: [u32; 2]) -> u64 {
    u64::from(first) | u64::from(second) << 32
}

/// Writes a point of IQ1 times eight: eight times a coordinate, and one more or (`minus`) less; `out` is `[8]`.
#[inline]
fn point1(index: usize, minus: bool, out: &mut [i8]) {
    let delta = if minus { -1 } else { 1 };
    for (value, level) in out.iter_mut().zip(IQ1_POINTS[index].to_le_bytes()) {
        *value = level as i8 - 8 + delta;
    }
}

/// The scale of a group by its code.
#[inline]
fn odd(code: u32) -> u8 {
    2 * code as u8 + 1
}

/// Nibble `i`: the low one of byte `i / 2` first.
#[inline]
fn nibble(bytes: &[u8], i: usize) -> u8 {
    (bytes[i / 2] >> (i % 2 * 4)) & 0x0f
}

/// 256 values `d * (scale + 1/2) / 4 * point` in 8 groups of 32: four points of eight, each with eight signs.
///
/// Eight bytes a group: four numbers of points, then 32 bits with four times seven signs and, in the upper four, the scale.
#[derive(Clone, Copy, Pod, Zeroable, Debug)]
#[repr(C)]
pub struct BlockIQ2XXS {
    /// Scale of the scales.
    pub d: Half,
    /// Points, signs and scales.
    pub qs: [[u8; 8]; 8],
}

impl Block for BlockIQ2XXS {
    const TYPE: TensorType = TensorType::IQ2_XXS;
    const ELEMS: usize = 256;

    fn dequantize(&self, out: &mut [f32]) {
        self.whole().write(out);
    }
}

impl WholeBlock for BlockIQ2XXS {
    fn whole(&self) -> WholeNumbers {
        let mut whole = WholeNumbers::new(self.d.to_f32() * 0.125);
        let groups = whole.scales.chunks_exact_mut(2);
        for ((values, scales), [a, b, c, e, rest @ ..]) in
            whole.values.chunks_exact_mut(32).zip(groups).zip(self.qs)
        {
            let rest = u32::from_le_bytes(rest);
            scales.fill(odd(rest >> 28));
            for (k, (values, index)) in values.chunks_exact_mut(8).zip([a, b, c, e]).enumerate() {
                let signs = even_signs(rest >> (7 * k));
                point(IQ2_XXS_POINTS[usize::from(index)], signs, values);
            }
        }
        whole
    }
}

/// 256 values as [`BlockIQ2XXS`], in 16 groups of 16 with two points each.
#[derive(Clone, Copy, Pod, Zeroable, Debug)]
#[repr(C)]
pub struct BlockIQ2XS {
    /// Scale of the scales.
    pub d: Half,
    /// A point of eight each, little-endian: nine bits of its number, then seven signs.
    pub qs: [[u8; 2]; 32],
    /// Scales of the groups, 4 bits each, low nibbles first.
    pub scales: [u8; 8],
}

impl Block for BlockIQ2XS {
    const TYPE: TensorType = TensorType::IQ2_XS;
    const ELEMS: usize = 256;

    fn dequantize(&self, out: &mut [f32]) {
        self.whole().write(out);
    }
}

impl WholeBlock for BlockIQ2XS {
    fn whole(&self) -> WholeNumbers {
        let mut whole = WholeNumbers::new(self.d.to_f32() * 0.125);
        for (k, values) in whole.values.chunks_exact_mut(8).enumerate() {
            whole.scales[k / 2] = odd(nibble(&self.scales, k / 2).into());
            let code = u16::from_le_bytes(self.qs[k]);
            let signs = even_signs(u32::from(code >> 9));
            point(IQ2_XS_POINTS[usize::from(code & 511)], signs, values);
        }
        whole
    }
}

/// 256 values as [`BlockIQ2XS`], with more points and all eight signs stored.
#[derive(Clone, Copy, Pod, Zeroable, Debug)]
#[repr(C)]
pub struct BlockIQ2S {
    /// Scale of the scales.
    pub d: Half,
    /// Lower eight bits of the points' numbers.
    pub qs: [u8; 32],
    /// Signs of each point.
    pub signs: [u8; 32],
    /// Upper two bits of the points' numbers, four to a byte.
    pub qh: [u8; 8],
    /// Scales of the groups, 4 bits each, low nibbles first.
    pub scales: [u8; 8],
}

impl Block for BlockIQ2S {
    const TYPE: TensorType = TensorType::IQ2_S;
    const ELEMS: usize = 256;

    fn dequantize(&self, out: &mut [f32]) {
        self.whole().write(out);
    }
}

impl WholeBlock for BlockIQ2S {
    fn whole(&self) -> WholeNumbers {
        let mut whole = WholeNumbers::new(self.d.to_f32() * 0.125);
        for (k, values) in whole.values.chunks_exact_mut(8).enumerate() {
            whole.scales[k / 2] = odd(nibble(&self.scales, k / 2).into());
            let high = usize::from((self.qh[k / 4] >> (2 * (k % 4))) & 3);
            let index = usize::from(self.qs[k]) | high << 8;
            point(IQ2_S_POINTS[index], self.signs[k], values);
        }
        whole
    }
}

/// 256 values `d * (scale + 1/2) / 2 * point` in 8 groups of 32: eight points of four.
#[derive(Clone, Copy, Pod, Zeroable, Debug)]
#[repr(C)]
pub struct BlockIQ3XXS {
    /// Scale of the scales.
    pub d: Half,
    /// Numbers of the points.
    pub qs: [u8; 64],
    /// Of each group, little-endian: four times seven signs and, in the upper four bits, the scale.
    pub signs: [[u8; 4]; 8],
}

impl Block for BlockIQ3XXS {
    const TYPE: TensorType = TensorType::IQ3_XXS;
    const ELEMS: usize = 256;

    fn dequantize(&self, out: &mut [f32]) {
        self.whole().write(out);
    }
}

impl WholeBlock for BlockIQ3XXS {
    fn whole(&self) -> WholeNumbers {
        let mut whole = WholeNumbers::new(self.d.to_f32() * 0.25);
        for (k, values) in whole.values.chunks_exact_mut(8).enumerate() {
            let rest = u32::from_le_bytes(self.signs[k / 4]);
            whole.scales[k / 2] = odd(rest >> 28);
            let points = [0, 1].map(|i| IQ3_XXS_POINTS[usize::from(self.qs[2 * k + i])]);
            point(pair(points), even_signs(rest >> (7 * (k % 4))), values);
        }
        whole
    }
}

/// 256 values `d * (2 * scale + 1) * point` in 8 groups of 32: eight points of four, all signs stored.
#[derive(Clone, Copy, Pod, Zeroable, Debug)]
#[repr(C)]
pub struct BlockIQ3S {
    /// Scale of the scales.
    pub d: Half,
    /// Lower eight bits of the points' numbers.
    pub qs: [u8; 64],
    /// Ninth bits of the points' numbers.
    pub qh: [u8; 8],
    /// Signs, a byte for two points.
    pub signs: [u8; 32],
    /// Scales of the groups, 4 bits each, low nibbles first.
    pub scales: [u8; 4],
}

impl Block for BlockIQ3S {
    const TYPE: TensorType = TensorType::IQ3_S;
    const ELEMS: usize = 256;

    fn dequantize(&self, out: &mut [f32]) {
        self.whole().write(out);
    }
}

impl WholeBlock for BlockIQ3S {
    fn whole(&self) -> WholeNumbers {
        let mut whole = WholeNumbers::new(self.d.to_f32());
        for (k, values) in whole.values.chunks_exact_mut(8).enumerate() {
            whole.scales[k / 2] = odd(nibble(&self.scales, k / 4).into());
            let points = [2 * k, 2 * k + 1].map(|i| {
                let ninth = usize::from((self.qh[i / 8] >> (i % 8)) & 1);
                IQ3_S_POINTS[usize::from(self.qs[i]) | ninth << 8]
            });
            point(pair(points), self.signs[k], values);
        }
        whole
    }
}

/// 256 values `d * (2 * scale + 1) * (point ± 1/8)` in 8 groups of 32: four points of eight, coordinates -1, 0 and 1.
#[derive(Clone, Copy, Pod, Zeroable, Debug)]
#[repr(C)]
pub struct BlockIQ1S {
    /// Scale of the scales.
    pub d: Half,
    /// Lower eight bits of the points' numbers.
    pub qs: [u8; 32],
    /// Of each group, little-endian: four times the upper three bits of a number, three bits of scale, and the sign of 1/8.
    pub qh: [[u8; 2]; 8],
}

impl Block for BlockIQ1S {
    const TYPE: TensorType = TensorType::IQ1_S;
    const ELEMS: usize = 256;

    fn dequantize(&self, out: &mut [f32]) {
        self.whole().write(out);
    }
}

impl WholeBlock for BlockIQ1S {
    fn whole(&self) -> WholeNumbers {
        let mut whole = WholeNumbers::new(self.d.to_f32() * 0.125);
        for (k, values) in whole.values.chunks_exact_mut(8).enumerate() {
            let group = u16::from_le_bytes(self.qh[k / 4]);
            whole.scales[k / 2] = odd(u32::from(group >> 12) & 7);
            let high = usize::from((group >> (3 * (k % 4))) & 7);
            let index = usize::from(self.qs[k]) | high << 8;
            point1(index, group >> 15 == 1, values);
        }
        whole
    }
}

/// 256 values as [`BlockIQ1S`], in 16 groups of 16 with two points each and a sign of 1/8 for every point.
#[derive(Clone, Copy, Pod, Zeroable, Debug)]
#[repr(C)]
pub struct BlockIQ1M {
    /// Lower eight bits of the points' numbers.
    pub qs: [u8; 32],
    /// A nibble for each point, low ones first: upper three bits of its number, and the sign of 1/8.
    pub qh: [u8; 16],
    /// Four 16-bit numbers, little-endian: the scales of four groups, three bits each, and above them four bits of the
    /// block's scale, lowest first.
    pub scales: [[u8; 2]; 4],
}

impl BlockIQ1M {
    /// Scale of the scales.
    #[inline]
    fn d(&self) -> f32 {
        let bits = self.scales.iter().enumerate().fold(0, |bits, (i, part)| {
            bits | (u16::from_le_bytes(*part) >> 12) << (4 * i)
        });
        Half(bits.to_le_bytes()).to_f32()
    }
}

impl Block for BlockIQ1M {
    const TYPE: TensorType = TensorType::IQ1_M;
    const ELEMS: usize = 256;

    fn dequantize(&self, out: &mut [f32]) {
        self.whole().write(out);
    }
}

impl WholeBlock for BlockIQ1M {
    fn whole(&self) -> WholeNumbers {
        let mut whole = WholeNumbers::new(self.d() * 0.125);
        for (k, values) in whole.values.chunks_exact_mut(8).enumerate() {
            let group = k / 2;
            let scale = u16::from_le_bytes(self.scales[group / 4]) >> (3 * (group % 4));
            whole.scales[group] = odd(u32::from(scale) & 7);
            let code = nibble(&self.qh, k);
            let index = usize::from(self.qs[k]) | usize::from(code & 7) << 8;
            point1(index, code >> 3 == 1, values);
        }
        whole
    }
}
