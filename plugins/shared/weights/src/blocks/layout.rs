//! The block structs and what their bits mean.

use super::{Block, Pod, TensorType, Zeroable};

/// A half-precision number as stored: two bytes, little-endian.
#[derive(Clone, Copy, Pod, Zeroable, PartialEq, Eq, Debug)]
#[repr(transparent)]
pub struct Half(pub [u8; 2]);

impl Half {
    /// The number.
    #[inline]
    pub fn to_f32(self) -> f32 {
        half::f16::from_le_bytes(self.0).to_f32()
    }

    /// The number's 16 bits.
    #[inline]
    pub fn bits(self) -> u16 {
        u16::from_le_bytes(self.0)
    }
}

/// The eight 6-bit scales and eight 6-bit minima of a Q4_K or Q5_K block, packed into 12 bytes; see [`k_scale_min`].
pub type Scales6 = [u8; 12];

/// Scale and minimum of group `group` (0..8) of a Q4_K or Q5_K block, both 0..64.
///
/// Groups 0..4 lie in the lower six bits of bytes 0..4 (scales) and 4..8 (minima). Groups 4..8 have their lower four bits in
/// bytes 8..12 (scale low nibble, minimum high nibble) and their upper two in the upper two bits of bytes 0..8.
#[inline]
pub fn k_scale_min(scales: &Scales6, group: usize) -> (u8, u8) {
    if group < 4 {
        (scales[group] & 63, scales[group + 4] & 63)
    } else {
        let low = scales[group + 4];
        (
            (low & 0x0f) | ((scales[group - 4] >> 6) << 4),
            (low >> 4) | ((scales[group] >> 6) << 4),
        )
    }
}

/// One 32-bit float.
#[derive(Clone, Copy, Pod, Zeroable, Debug)]
#[repr(C)]
pub struct BlockF32 {
    /// The value, little-endian.
    pub value: [u8; 4],
}

impl Block for BlockF32 {
    const TYPE: TensorType = TensorType::F32;
    const ELEMS: usize = 1;

    #[inline]
    fn dequantize(&self, out: &mut [f32]) {
        out[0] = f32::from_le_bytes(self.value);
    }
}

/// One half-precision float.
#[derive(Clone, Copy, Pod, Zeroable, Debug)]
#[repr(C)]
pub struct BlockF16 {
    /// The value.
    pub value: Half,
}

impl Block for BlockF16 {
    const TYPE: TensorType = TensorType::F16;
    const ELEMS: usize = 1;

    #[inline]
    fn dequantize(&self, out: &mut [f32]) {
        out[0] = self.value.to_f32();
    }
}

/// One bfloat16: the upper 16 bits of a 32-bit float.
#[derive(Clone, Copy, Pod, Zeroable, Debug)]
#[repr(C)]
pub struct BlockBF16 {
    /// The value, little-endian.
    pub value: [u8; 2],
}

impl Block for BlockBF16 {
    const TYPE: TensorType = TensorType::BF16;
    const ELEMS: usize = 1;

    #[inline]
    fn dequantize(&self, out: &mut [f32]) {
        out[0] = f32::from_bits(u32::from(u16::from_le_bytes(self.value)) << 16);
    }
}

/// 32 values `d * qs[i]`.
#[derive(Clone, Copy, Pod, Zeroable, Debug)]
#[repr(C)]
pub struct BlockQ8_0 {
    /// Scale.
    pub d: Half,
    /// Values.
    pub qs: [i8; 32],
}

impl Block for BlockQ8_0 {
    const TYPE: TensorType = TensorType::Q8_0;
    const ELEMS: usize = 32;

    #[inline]
    fn dequantize(&self, out: &mut [f32]) {
        assert_eq!(out.len(), Self::ELEMS);
        let d = self.d.to_f32();
        for (value, q) in out.iter_mut().zip(self.qs) {
            *value = f32::from(q) * d;
        }
    }
}

/// 32 values `d * (q - 8)`: the low nibbles of `qs` are values 0..16, the high nibbles 16..32.
#[derive(Clone, Copy, Pod, Zeroable, Debug)]
#[repr(C)]
pub struct BlockQ4_0 {
    /// Scale.
    pub d: Half,
    /// Nibbles.
    pub qs: [u8; 16],
}

impl Block for BlockQ4_0 {
    const TYPE: TensorType = TensorType::Q4_0;
    const ELEMS: usize = 32;

    #[inline]
    fn dequantize(&self, out: &mut [f32]) {
        assert_eq!(out.len(), Self::ELEMS);
        let d = self.d.to_f32();
        for (i, q) in self.qs.into_iter().enumerate() {
            out[i] = f32::from((q & 0x0f) as i8 - 8) * d;
            out[i + 16] = f32::from((q >> 4) as i8 - 8) * d;
        }
    }
}

/// 32 values `d * q + m`: the low nibbles of `qs` are values 0..16, the high nibbles 16..32.
#[derive(Clone, Copy, Pod, Zeroable, Debug)]
#[repr(C)]
pub struct BlockQ4_1 {
    /// Scale.
    pub d: Half,
    /// Minimum.
    pub m: Half,
    /// Nibbles.
    pub qs: [u8; 16],
}

impl Block for BlockQ4_1 {
    const TYPE: TensorType = TensorType::Q4_1;
    const ELEMS: usize = 32;

    #[inline]
    fn dequantize(&self, out: &mut [f32]) {
        assert_eq!(out.len(), Self::ELEMS);
        let (d, m) = (self.d.to_f32(), self.m.to_f32());
        for (i, q) in self.qs.into_iter().enumerate() {
            out[i] = f32::from(q & 0x0f) * d + m;
            out[i + 16] = f32::from(q >> 4) * d + m;
        }
    }
}

/// 32 values `d * (q - 16)`: as [`BlockQ4_0`], with the fifth bit of value `i` in bit `i` of `qh`.
#[derive(Clone, Copy, Pod, Zeroable, Debug)]
#[repr(C)]
pub struct BlockQ5_0 {
    /// Scale.
    pub d: Half,
    /// Fifth bits, little-endian.
    pub qh: [u8; 4],
    /// Nibbles.
    pub qs: [u8; 16],
}

impl Block for BlockQ5_0 {
    const TYPE: TensorType = TensorType::Q5_0;
    const ELEMS: usize = 32;

    #[inline]
    fn dequantize(&self, out: &mut [f32]) {
        assert_eq!(out.len(), Self::ELEMS);
        let d = self.d.to_f32();
        let (low, high) = five_bits(self.qh, &self.qs);
        for i in 0..16 {
            out[i] = f32::from(low[i] as i8 - 16) * d;
            out[i + 16] = f32::from(high[i] as i8 - 16) * d;
        }
    }
}

/// 32 values `d * q + m`: as [`BlockQ4_1`], with the fifth bit of value `i` in bit `i` of `qh`.
#[derive(Clone, Copy, Pod, Zeroable, Debug)]
#[repr(C)]
pub struct BlockQ5_1 {
    /// Scale.
    pub d: Half,
    /// Minimum.
    pub m: Half,
    /// Fifth bits, little-endian.
    pub qh: [u8; 4],
    /// Nibbles.
    pub qs: [u8; 16],
}

impl Block for BlockQ5_1 {
    const TYPE: TensorType = TensorType::Q5_1;
    const ELEMS: usize = 32;

    #[inline]
    fn dequantize(&self, out: &mut [f32]) {
        assert_eq!(out.len(), Self::ELEMS);
        let (d, m) = (self.d.to_f32(), self.m.to_f32());
        let (low, high) = five_bits(self.qh, &self.qs);
        for i in 0..16 {
            out[i] = f32::from(low[i]) * d + m;
            out[i + 16] = f32::from(high[i]) * d + m;
        }
    }
}

/// Values 0..16 and 16..32 of a 5-bit block, each 0..32.
#[inline]
fn five_bits(qh: [u8; 4], qs: &[u8; 16]) -> ([u8; 16], [u8; 16]) {
    let bits = u32::from_le_bytes(qh);
    let fifth = |value: usize| (((bits >> value) & 1) as u8) << 4;
    (
        std::array::from_fn(|i| (qs[i] & 0x0f) | fifth(i)),
        std::array::from_fn(|i| (qs[i] >> 4) | fifth(i + 16)),
    )
}

/// 256 values `d * scale * q - dmin * min` in 8 groups of 32: bytes `32 g .. 32 g + 32` of `qs` hold group `2 g` in their low
/// nibbles and group `2 g + 1` in their high ones.
#[derive(Clone, Copy, Pod, Zeroable, Debug)]
#[repr(C)]
pub struct BlockQ4K {
    /// Scale of the scales.
    pub d: Half,
    /// Scale of the minima.
    pub dmin: Half,
    /// Scales and minima, see [`k_scale_min`].
    pub scales: Scales6,
    /// Nibbles.
    pub qs: [u8; 128],
}

impl Block for BlockQ4K {
    const TYPE: TensorType = TensorType::Q4_K;
    const ELEMS: usize = 256;

    #[inline]
    fn dequantize(&self, out: &mut [f32]) {
        assert_eq!(out.len(), Self::ELEMS);
        let (d, dmin) = (self.d.to_f32(), self.dmin.to_f32());
        for (group, values) in out.chunks_exact_mut(32).enumerate() {
            let (scale, min) = k_scale_min(&self.scales, group);
            let (scale, min) = (d * f32::from(scale), dmin * f32::from(min));
            let quants = &self.qs[group / 2 * 32..][..32];
            let shift = group % 2 * 4;
            for (value, q) in values.iter_mut().zip(quants) {
                *value = scale * f32::from((q >> shift) & 0x0f) - min;
            }
        }
    }
}

/// 256 values as [`BlockQ4K`], with the fifth bit of value `i` of group `g` in bit `g` of `qh[i]`.
#[derive(Clone, Copy, Pod, Zeroable, Debug)]
#[repr(C)]
pub struct BlockQ5K {
    /// Scale of the scales.
    pub d: Half,
    /// Scale of the minima.
    pub dmin: Half,
    /// Scales and minima, see [`k_scale_min`].
    pub scales: Scales6,
    /// Fifth bits.
    pub qh: [u8; 32],
    /// Nibbles.
    pub qs: [u8; 128],
}

impl Block for BlockQ5K {
    const TYPE: TensorType = TensorType::Q5_K;
    const ELEMS: usize = 256;

    #[inline]
    fn dequantize(&self, out: &mut [f32]) {
        assert_eq!(out.len(), Self::ELEMS);
        let (d, dmin) = (self.d.to_f32(), self.dmin.to_f32());
        for (group, values) in out.chunks_exact_mut(32).enumerate() {
            let (scale, min) = k_scale_min(&self.scales, group);
            let (scale, min) = (d * f32::from(scale), dmin * f32::from(min));
            let quants = &self.qs[group / 2 * 32..][..32];
            let shift = group % 2 * 4;
            for ((value, q), high) in values.iter_mut().zip(quants).zip(self.qh) {
                let q = ((q >> shift) & 0x0f) | (((high >> group) & 1) << 4);
                *value = scale * f32::from(q) - min;
            }
        }
    }
}

/// 256 values `d * scale * (q - 32)` in 16 groups of 16 with signed 8-bit scales.
///
/// Each half of 128 values takes 64 bytes of `ql` and 32 of `qh`. Value `32 k + i` of a half (`k` in 0..4, `i` in 0..32) has
/// its lower four bits in `ql[32 (k % 2) + i]`, the low nibble for `k < 2` and the high one otherwise, and its upper two in
/// bits `2 k` and `2 k + 1` of `qh[i]`.
#[derive(Clone, Copy, Pod, Zeroable, Debug)]
#[repr(C)]
pub struct BlockQ6K {
    /// Lower four bits.
    pub ql: [u8; 128],
    /// Upper two bits.
    pub qh: [u8; 64],
    /// Scales of the groups.
    pub scales: [i8; 16],
    /// Scale of the scales.
    pub d: Half,
}

impl Block for BlockQ6K {
    const TYPE: TensorType = TensorType::Q6_K;
    const ELEMS: usize = 256;

    #[inline]
    fn dequantize(&self, out: &mut [f32]) {
        assert_eq!(out.len(), Self::ELEMS);
        let d = self.d.to_f32();
        for (quarter, values) in out.chunks_exact_mut(32).enumerate() {
            let (half, k) = (quarter / 4, quarter % 4);
            let low = &self.ql[64 * half + 32 * (k % 2)..][..32];
            let high = &self.qh[32 * half..][..32];
            let scales = &self.scales[2 * quarter..][..2];
            for i in 0..32 {
                let q = ((low[i] >> (k / 2 * 4)) & 0x0f) | (((high[i] >> (2 * k)) & 3) << 4);
                values[i] = d * f32::from(scales[i / 16]) * f32::from(q as i8 - 32);
            }
        }
    }
}

/// 256 values `d * scale * q - dmin * min` in 16 groups of 16.
///
/// Value `128 h + 32 k + i` has its two bits at `2 k` and `2 k + 1` of `qs[32 h + i]`.
#[derive(Clone, Copy, Pod, Zeroable, Debug)]
#[repr(C)]
pub struct BlockQ2K {
    /// Of each group: the scale in the low nibble, the minimum in the high one.
    pub scales: [u8; 16],
    /// Pairs of bits.
    pub qs: [u8; 64],
    /// Scale of the scales.
    pub d: Half,
    /// Scale of the minima.
    pub dmin: Half,
}

impl BlockQ2K {
    /// The stored numbers of group `group` (0..16), each 0..4.
    #[inline]
    pub fn quants(&self, group: usize) -> [u8; 16] {
        two_bits(&self.qs, group)
    }
}

/// The two-bit numbers of group `group` (0..16) of a Q2_K or Q3_K block.
#[inline]
fn two_bits(qs: &[u8; 64], group: usize) -> [u8; 16] {
    let (half, k, start) = (group / 8, group / 2 % 4, group % 2 * 16);
    std::array::from_fn(|i| (qs[32 * half + start + i] >> (2 * k)) & 3)
}

impl Block for BlockQ2K {
    const TYPE: TensorType = TensorType::Q2_K;
    const ELEMS: usize = 256;

    #[inline]
    fn dequantize(&self, out: &mut [f32]) {
        assert_eq!(out.len(), Self::ELEMS);
        let (d, dmin) = (self.d.to_f32(), self.dmin.to_f32());
        for (group, values) in out.chunks_exact_mut(16).enumerate() {
            let scale = d * f32::from(self.scales[group] & 0x0f);
            let min = dmin * f32::from(self.scales[group] >> 4);
            for (value, q) in values.iter_mut().zip(self.quants(group)) {
                *value = scale * f32::from(q) - min;
            }
        }
    }
}

/// 256 values `d * (scale - 32) * q` in 16 groups of 16: two bits as in [`BlockQ2K`], less four where the third bit is clear.
///
/// The third bit of value `32 k + i` (`k` in 0..8, `i` in 0..32) is bit `k` of `hmask[i]`. Scale `g` has its lower four bits in
/// byte `g % 8` of `scales`, the low nibble for `g < 8` and the high one otherwise, and its upper two in bits `2 (g / 4)` and
/// `2 (g / 4) + 1` of byte `8 + g % 4`.
#[derive(Clone, Copy, Pod, Zeroable, Debug)]
#[repr(C)]
pub struct BlockQ3K {
    /// Third bits.
    pub hmask: [u8; 32],
    /// Pairs of bits.
    pub qs: [u8; 64],
    /// Scales of the groups, 6 bits each.
    pub scales: [u8; 12],
    /// Scale of the scales.
    pub d: Half,
}

impl BlockQ3K {
    /// Scale of group `group` (0..16): -32..32.
    #[inline]
    pub fn scale(&self, group: usize) -> i8 {
        let low = (self.scales[group % 8] >> (group / 8 * 4)) & 0x0f;
        let high = (self.scales[8 + group % 4] >> (group / 4 * 2)) & 3;
        (low | high << 4) as i8 - 32
    }

    /// The numbers of group `group` (0..16), each -4..4.
    #[inline]
    pub fn quants(&self, group: usize) -> [i8; 16] {
        let low = two_bits(&self.qs, group);
        let (bit, start) = (group / 2, group % 2 * 16);
        std::array::from_fn(|i| {
            let third = (self.hmask[start + i] >> bit) & 1;
            (low[i] | third << 2) as i8 - 4
        })
    }
}

impl Block for BlockQ3K {
    const TYPE: TensorType = TensorType::Q3_K;
    const ELEMS: usize = 256;

    #[inline]
    fn dequantize(&self, out: &mut [f32]) {
        assert_eq!(out.len(), Self::ELEMS);
        let d = self.d.to_f32();
        for (group, values) in out.chunks_exact_mut(16).enumerate() {
            let scale = d * f32::from(self.scale(group));
            for (value, q) in values.iter_mut().zip(self.quants(group)) {
                *value = scale * f32::from(q);
            }
        }
    }
}
