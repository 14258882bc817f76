//! Types whose values are points of a lattice, several coordinates to one code: IQ1, IQ2 and IQ3. The points are in `grids`.

use super::{Block, Half, Pod, TensorType, Zeroable, grids};

/// Magnitudes of the coordinates of IQ2 points.
const IQ2_LEVELS: [f32; 4] = [8.0, 25.0, 43.0, 0.0];
/// Magnitudes of the coordinates of IQ3_XXS points.
const IQ3_XXS_LEVELS: [f32; 8] = [4.0, 12.0, 20.0, 28.0, 36.0, 44.0, 52.0, 62.0];
/// Magnitudes of the coordinates of IQ3_S points.
const IQ3_S_LEVELS: [f32; 8] = [1.0, 3.0, 5.0, 7.0, 9.0, 11.0, 13.0, 15.0];
/// What IQ1 adds to or takes from every coordinate.
const IQ1_DELTA: f32 = 0.125;

/// Eight signs from seven stored ones: the number of minuses is even.
#[inline]
fn even_signs(seven: u32) -> u8 {
    let seven = (seven & 127) as u8;
    seven | ((seven.count_ones() & 1) as u8) << 7
}

/// `value`, negated when bit `i` of `signs` is set.
#[inline]
fn signed(value: f32, signs: u8, i: usize) -> f32 {
    if (signs >> i) & 1 == 1 { -value } else { value }
}

/// Writes a point of eight coordinates; `out` is `[8]`.
#[inline]
fn point8(point: u16, signs: u8, scale: f32, out: &mut [f32]) {
    for (i, value) in out.iter_mut().enumerate() {
        let level = IQ2_LEVELS[usize::from((point >> (2 * i)) & 3)];
        *value = signed(scale * level, signs, i);
    }
}

/// Writes two points of four coordinates; `out` is `[8]`.
#[inline]
fn points4(points: [u16; 2], levels: &[f32; 8], signs: u8, scale: f32, out: &mut [f32]) {
    for (i, value) in out.iter_mut().enumerate() {
        let level = levels[usize::from((points[i / 4] >> (4 * (i % 4))) & 7)];
        *value = signed(scale * level, signs, i);
    }
}

/// Writes a point of IQ1; `out` is `[8]`.
#[inline]
fn point1(index: usize, delta: f32, scale: f32, out: &mut [f32]) {
    let point = grids::IQ1[index];
    for (i, value) in out.iter_mut().enumerate() {
        let coordinate = f32::from(((point >> (2 * i)) & 3) as i8 - 1);
        *value = scale * (coordinate + delta);
    }
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
        assert_eq!(out.len(), Self::ELEMS);
        let d = self.d.to_f32();
        for (values, [a, b, c, e, rest @ ..]) in out.chunks_exact_mut(32).zip(self.qs) {
            let rest = u32::from_le_bytes(rest);
            let scale = d * (0.5 + (rest >> 28) as f32) * 0.25;
            for (k, (values, index)) in values.chunks_exact_mut(8).zip([a, b, c, e]).enumerate() {
                let point = grids::IQ2_XXS[usize::from(index)];
                point8(point, even_signs(rest >> (7 * k)), scale, values);
            }
        }
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
        assert_eq!(out.len(), Self::ELEMS);
        let d = self.d.to_f32();
        for (k, values) in out.chunks_exact_mut(8).enumerate() {
            let scale = d * (0.5 + f32::from(nibble(&self.scales, k / 2))) * 0.25;
            let code = u16::from_le_bytes(self.qs[k]);
            let point = grids::IQ2_XS[usize::from(code & 511)];
            point8(point, even_signs(u32::from(code >> 9)), scale, values);
        }
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
        assert_eq!(out.len(), Self::ELEMS);
        let d = self.d.to_f32();
        for (k, values) in out.chunks_exact_mut(8).enumerate() {
            let scale = d * (0.5 + f32::from(nibble(&self.scales, k / 2))) * 0.25;
            let high = usize::from((self.qh[k / 4] >> (2 * (k % 4))) & 3);
            let point = grids::IQ2_S[usize::from(self.qs[k]) | high << 8];
            point8(point, self.signs[k], scale, values);
        }
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
        assert_eq!(out.len(), Self::ELEMS);
        let d = self.d.to_f32();
        for (k, values) in out.chunks_exact_mut(8).enumerate() {
            let rest = u32::from_le_bytes(self.signs[k / 4]);
            let scale = d * (0.5 + (rest >> 28) as f32) * 0.5;
            let points = [0, 1].map(|i| grids::IQ3_XXS[usize::from(self.qs[2 * k + i])]);
            let signs = even_signs(rest >> (7 * (k % 4)));
            points4(points, &IQ3_XXS_LEVELS, signs, scale, values);
        }
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
        assert_eq!(out.len(), Self::ELEMS);
        let d = self.d.to_f32();
        for (k, values) in out.chunks_exact_mut(8).enumerate() {
            let scale = d * f32::from(1 + 2 * nibble(&self.scales, k / 4));
            let points = [2 * k, 2 * k + 1].map(|i| {
                let ninth = usize::from((self.qh[i / 8] >> (i % 8)) & 1);
                grids::IQ3_S[usize::from(self.qs[i]) | ninth << 8]
            });
            points4(points, &IQ3_S_LEVELS, self.signs[k], scale, values);
        }
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
        assert_eq!(out.len(), Self::ELEMS);
        let d = self.d.to_f32();
        for (k, values) in out.chunks_exact_mut(8).enumerate() {
            let group = u16::from_le_bytes(self.qh[k / 4]);
            let scale = d * f32::from(2 * ((group >> 12) & 7) + 1);
            let delta = signed(IQ1_DELTA, (group >> 15) as u8, 0);
            let high = usize::from((group >> (3 * (k % 4))) & 7);
            point1(usize::from(self.qs[k]) | high << 8, delta, scale, values);
        }
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
        assert_eq!(out.len(), Self::ELEMS);
        let d = self.d();
        for (k, values) in out.chunks_exact_mut(8).enumerate() {
            let group = k / 2;
            let scale = (u16::from_le_bytes(self.scales[group / 4]) >> (3 * (group % 4))) & 7;
            let scale = d * f32::from(2 * scale + 1);
            let code = nibble(&self.qh, k);
            let delta = signed(IQ1_DELTA, code >> 3, 0);
            let high = usize::from(code & 7);
            point1(usize::from(self.qs[k]) | high << 8, delta, scale, values);
        }
    }
}
