//! Types whose codes stand for the numbers of a short list: the sixteen levels of IQ4, the 4-bit floats of MXFP4, and -1, 0, 1.

use super::{Block, Half, Pod, TensorType, WholeBlock, WholeNumbers, Zeroable};

/// What the sixteen codes of IQ4_NL and IQ4_XS stand for.
pub const IQ4_LEVELS: [i8; 16] = [
    -127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113,
];

/// Twice the sixteen values of a 4-bit float (sign, two bits of exponent, one of fraction), as in the OCP Microscaling
/// Formats specification 1.0.
pub const E2M1_DOUBLED: [i8; 16] = [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12];

/// 32 values `d * IQ4_LEVELS[q]`: the low nibbles of `qs` are values 0..16, the high nibbles 16..32.
#[derive(Clone, Copy, Pod, Zeroable, Debug)]
#[repr(C)]
pub struct BlockIQ4NL {
    /// Scale.
    pub d: Half,
    /// Nibbles.
    pub qs: [u8; 16],
}

impl Block for BlockIQ4NL {
    const TYPE: TensorType = TensorType::IQ4_NL;
    const ELEMS: usize = 32;

    #[inline]
    fn dequantize(&self, out: &mut [f32]) {
        assert_eq!(out.len(), Self::ELEMS);
        nibbles(&self.qs, &IQ4_LEVELS, self.d.to_f32(), out);
    }
}

/// Writes `scale * levels[q]`; `out` is `[32]`: first the low nibbles of `qs`, then the high ones.
#[inline]
fn nibbles(qs: &[u8], levels: &[i8; 16], scale: f32, out: &mut [f32]) {
    for (i, q) in qs.iter().enumerate() {
        out[i] = scale * f32::from(levels[usize::from(q & 0x0f)]);
        out[i + 16] = scale * f32::from(levels[usize::from(q >> 4)]);
    }
}

/// 256 values `d * (scale - 32) * IQ4_LEVELS[q]` in 8 groups of 32; bytes `16 g .. 16 g + 16` of `qs` hold group `g` as in
/// [`BlockIQ4NL`].
#[derive(Clone, Copy, Pod, Zeroable, Debug)]
#[repr(C)]
pub struct BlockIQ4XS {
    /// Scale of the scales.
    pub d: Half,
    /// Upper two bits of the scales, little-endian: bits `2 g` and `2 g + 1` for group `g`.
    pub scales_h: [u8; 2],
    /// Lower four bits of the scales: low nibbles for even groups, high ones for odd groups.
    pub scales_l: [u8; 4],
    /// Nibbles.
    pub qs: [u8; 128],
}

impl BlockIQ4XS {
    /// Scale of group `group` (0..8): -32..32.
    #[inline]
    pub fn scale(&self, group: usize) -> i8 {
        let low = (self.scales_l[group / 2] >> (group % 2 * 4)) & 0x0f;
        let high = (u16::from_le_bytes(self.scales_h) >> (2 * group)) & 3;
        (low | (high as u8) << 4) as i8 - 32
    }
}

impl Block for BlockIQ4XS {
    const TYPE: TensorType = TensorType::IQ4_XS;
    const ELEMS: usize = 256;

    #[inline]
    fn dequantize(&self, out: &mut [f32]) {
        assert_eq!(out.len(), Self::ELEMS);
        let d = self.d.to_f32();
        for (group, values) in out.chunks_exact_mut(32).enumerate() {
            let scale = d * f32::from(self.scale(group));
            nibbles(&self.qs[16 * group..][..16], &IQ4_LEVELS, scale, values);
        }
    }
}

/// 32 4-bit floats with a power of two as scale: the low nibbles of `qs` are values 0..16, the high nibbles 16..32.
#[derive(Clone, Copy, Pod, Zeroable, Debug)]
#[repr(C)]
pub struct BlockMxfp4 {
    /// The scale is `2^(e - 127)`.
    pub e: u8,
    /// Nibbles.
    pub qs: [u8; 16],
}

impl BlockMxfp4 {
    /// Half the scale, which goes with doubled values ([`E2M1_DOUBLED`]).
    #[inline]
    pub fn half_scale(&self) -> f32 {
        Self::half_scale_of(self.e)
    }

    /// Half the scale of a block with this exponent; exact also where it is below the normal floats.
    #[inline]
    pub fn half_scale_of(e: u8) -> f32 {
        match e {
            0 | 1 => f32::from_bits(0x0020_0000 << e),
            e => f32::from_bits(u32::from(e - 1) << 23),
        }
    }
}

impl Block for BlockMxfp4 {
    const TYPE: TensorType = TensorType::MXFP4;
    const ELEMS: usize = 32;

    #[inline]
    fn dequantize(&self, out: &mut [f32]) {
        assert_eq!(out.len(), Self::ELEMS);
        nibbles(&self.qs, &E2M1_DOUBLED, self.half_scale(), out);
    }
}

/// 256 values `d * t`, `t` one of -1, 0 and 1, five to a byte of `qs` and four to one of `qh`.
///
/// A byte holds its digits to base 3 as a fraction of 256, most significant first: digit `n` is the whole part of
/// `3 * ((byte * 3^n) mod 256) / 256`, and `t` is the digit less one. Bytes 0..32 of `qs` hold values `32 n + i`, bytes 32..48
/// values `160 + 16 n + i`, and `qh` values `240 + 4 n + i`, for digit `n` of byte `i` of each.
#[derive(Clone, Copy, Pod, Zeroable, Debug)]
#[repr(C)]
pub struct BlockTQ1_0 {
    /// Five digits a byte.
    pub qs: [u8; 48],
    /// Four digits a byte.
    pub qh: [u8; 4],
    /// Scale.
    pub d: Half,
}

impl Block for BlockTQ1_0 {
    const TYPE: TensorType = TensorType::TQ1_0;
    const ELEMS: usize = 256;

    fn dequantize(&self, out: &mut [f32]) {
        self.whole().write(out);
    }
}

impl WholeBlock for BlockTQ1_0 {
    fn whole(&self) -> WholeNumbers {
        let mut whole = WholeNumbers::new(self.d.to_f32());
        whole.scales.fill(1);
        let (wide, rest) = whole.values.split_at_mut(160);
        let (narrow, last) = rest.split_at_mut(80);
        let parts = [
            (&self.qs[..32], wide),
            (&self.qs[32..], narrow),
            (&self.qh[..], last),
        ];
        for (bytes, values) in parts {
            let mut power = 1u8;
            for values in values.chunks_exact_mut(bytes.len()) {
                for (value, byte) in values.iter_mut().zip(bytes) {
                    let digit = (u16::from(byte.wrapping_mul(power)) * 3) >> 8;
                    *value = digit as i8 - 1;
                }
                power = power.wrapping_mul(3);
            }
        }
        whole
    }
}

/// 256 values `d * (q - 1)`: value `128 h + 32 k + i` in bits `2 k` and `2 k + 1` of `qs[32 h + i]`.
#[derive(Clone, Copy, Pod, Zeroable, Debug)]
#[repr(C)]
pub struct BlockTQ2_0 {
    /// Pairs of bits.
    pub qs: [u8; 64],
    /// Scale.
    pub d: Half,
}

impl Block for BlockTQ2_0 {
    const TYPE: TensorType = TensorType::TQ2_0;
    const ELEMS: usize = 256;

    fn dequantize(&self, out: &mut [f32]) {
        self.whole().write(out);
    }
}

impl WholeBlock for BlockTQ2_0 {
    fn whole(&self) -> WholeNumbers {
        let mut whole = WholeNumbers::new(self.d.to_f32());
        whole.scales.fill(1);
        for (quarter, values) in whole.values.chunks_exact_mut(32).enumerate() {
            let quants = &self.qs[32 * (quarter / 4)..][..32];
            for (value, q) in values.iter_mut().zip(quants) {
                *value = ((q >> (2 * (quarter % 4))) & 3) as i8 - 1;
            }
        }
        whole
    }
}
