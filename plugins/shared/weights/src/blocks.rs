//! Storage types of tensors: one row per type in one table, a block struct with a pinned layout for each, and the scalar
//! dequantisation that is the truth for every faster kernel.
//!
//! A row of a tensor is a sequence of blocks; a block holds [`Block::ELEMS`] values. All block structs are plain bytes with
//! alignment 1, so that any part of a mapped file can be viewed as blocks ([`as_blocks`]) without copying. Numbers of more
//! than one byte are little-endian. Layouts and arithmetic follow ggml: products and sums are rounded one by one (no fused
//! multiply-add), so values are bit-equal to its reference.

use bytemuck::{Pod, Zeroable};

mod codebook;
mod grids;
mod lattice;
mod layout;

pub use codebook::{
    BlockIQ4NL, BlockIQ4XS, BlockMxfp4, BlockTQ1_0, BlockTQ2_0, E2M1_DOUBLED, IQ4_LEVELS,
};
pub use lattice::{
    BlockIQ1M, BlockIQ1S, BlockIQ2S, BlockIQ2XS, BlockIQ2XXS, BlockIQ3S, BlockIQ3XXS, IQ1_POINTS,
    IQ2_S_POINTS, IQ2_XS_POINTS, IQ2_XXS_POINTS, IQ3_S_POINTS, IQ3_XXS_POINTS,
};
pub use layout::{
    BlockBF16, BlockF16, BlockF32, BlockQ2K, BlockQ3K, BlockQ4_0, BlockQ4_1, BlockQ4K, BlockQ5_0,
    BlockQ5_1, BlockQ5K, BlockQ6K, BlockQ8_0, Half, Scales6, k_scale_min,
};

/// One block of a storage type.
pub trait Block: Pod {
    /// The type that stores this block.
    const TYPE: TensorType;
    /// Values in a block.
    const ELEMS: usize;

    /// Writes the block's values; `out` is `[ELEMS]`.
    ///
    /// # Panics
    /// When `out` has another length.
    fn dequantize(&self, out: &mut [f32]);
}

/// A block of 256 values that are whole numbers, times a small whole number for each 16 of them, times a scale.
pub trait WholeBlock: Block {
    /// The numbers.
    fn whole(&self) -> WholeNumbers;
}

/// What a [`WholeBlock`] holds: value `i` is `scale * scales[i / 16] * values[i]`, which a float holds exactly where the
/// scale is an ordinary number.
#[derive(Clone, Debug)]
pub struct WholeNumbers {
    /// Scale of the block.
    pub scale: f32,
    /// Scale of each 16 values, at most 31.
    pub scales: [u8; 16],
    /// The values, of magnitude at most 62.
    pub values: [i8; 256],
}

impl WholeNumbers {
    /// Zeros with this scale.
    fn new(scale: f32) -> Self {
        WholeNumbers {
            scale,
            scales: [0; 16],
            values: [0; 256],
        }
    }

    /// Writes the values; `out` is `[256]`.
    fn write(&self, out: &mut [f32]) {
        assert_eq!(out.len(), 256);
        let groups = self.values.chunks_exact(16).zip(self.scales);
        for (out, (values, scale)) in out.chunks_exact_mut(16).zip(groups) {
            let scale = self.scale * f32::from(scale);
            for (out, value) in out.iter_mut().zip(values) {
                *out = scale * f32::from(*value);
            }
        }
    }
}

/// Views bytes as blocks, without copying.
///
/// # Panics
/// When `bytes` is not a whole number of blocks. A tensor's data, and each of its rows, always is.
pub fn as_blocks<B: Block>(bytes: &[u8]) -> &[B] {
    bytemuck::cast_slice(bytes)
}

/// Dequantises a whole number of blocks: `bytes` is `[blocks * size_of::<B>()]`, `out` is `[blocks * B::ELEMS]`.
///
/// # Panics
/// When the lengths don't fit each other.
pub fn dequantize<B: Block>(bytes: &[u8], out: &mut [f32]) {
    let blocks = as_blocks::<B>(bytes);
    assert_eq!(
        out.len(),
        blocks.len() * B::ELEMS,
        "{} blocks of {} values",
        blocks.len(),
        B::ELEMS
    );
    for (block, values) in blocks.iter().zip(out.chunks_exact_mut(B::ELEMS)) {
        block.dequantize(values);
    }
}

macro_rules! block_types {
    ($($(#[doc = $doc:literal])* $name:ident = $id:literal, $elems:literal values in $bytes:literal bytes, $block:ident;)*) => {
        /// How a tensor's values are stored. Names and numbers are ggml's.
        ///
        /// | type | ggml id | values a block | bytes a block |
        /// |---|---|---|---|
        $(#[doc = concat!("| ", stringify!($name), " | ", $id, " | ", $elems, " | ", $bytes, " |")])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
        #[allow(non_camel_case_types)]
        pub enum TensorType {
            $($(#[doc = $doc])* $name,)*
        }

        impl TensorType {
            /// Every supported type.
            pub const ALL: &'static [TensorType] = &[$(TensorType::$name),*];

            /// The type with this number in a GGUF file; `None` when it is not supported.
            pub fn from_ggml(id: u32) -> Option<Self> {
                match id {
                    $($id => Some(TensorType::$name),)*
                    _ => None,
                }
            }

            /// The type's number in a GGUF file.
            pub fn ggml_id(self) -> u32 {
                match self { $(TensorType::$name => $id,)* }
            }

            /// The type's name, for example `Q4_K`.
            pub fn name(self) -> &'static str {
                match self { $(TensorType::$name => stringify!($name),)* }
            }

            /// Values in a block.
            pub fn block_elems(self) -> usize {
                match self { $(TensorType::$name => $elems,)* }
            }

            /// Bytes of a block.
            pub fn block_bytes(self) -> usize {
                match self { $(TensorType::$name => $bytes,)* }
            }

            /// Dequantises a whole number of blocks, by the scalar truth.
            ///
            /// # Panics
            /// When `bytes` is not a whole number of blocks, or `out` not as many values as they hold.
            pub fn dequantize(self, bytes: &[u8], out: &mut [f32]) {
                match self { $(TensorType::$name => dequantize::<$block>(bytes, out),)* }
            }
        }

        $(
            const _: () = assert!(size_of::<$block>() == $bytes && align_of::<$block>() == 1);
            const _: () = assert!(<$block as Block>::ELEMS == $elems);
            const _: () = assert!(matches!(<$block as Block>::TYPE, TensorType::$name));
        )*
    };
}

block_types! {
    /// 32-bit floats.
    F32 = 0, 1 values in 4 bytes, BlockF32;
    /// IEEE half precision.
    F16 = 1, 1 values in 2 bytes, BlockF16;
    /// The upper half of a 32-bit float.
    BF16 = 30, 1 values in 2 bytes, BlockBF16;
    /// 8-bit integers with a scale.
    Q8_0 = 8, 32 values in 34 bytes, BlockQ8_0;
    /// 4-bit integers around 8 with a scale.
    Q4_0 = 2, 32 values in 18 bytes, BlockQ4_0;
    /// 4-bit integers with a scale and a minimum.
    Q4_1 = 3, 32 values in 20 bytes, BlockQ4_1;
    /// 5-bit integers around 16 with a scale.
    Q5_0 = 6, 32 values in 22 bytes, BlockQ5_0;
    /// 5-bit integers with a scale and a minimum.
    Q5_1 = 7, 32 values in 24 bytes, BlockQ5_1;
    /// 2-bit integers in 16 groups, each with a 4-bit scale and a 4-bit minimum.
    Q2_K = 10, 256 values in 84 bytes, BlockQ2K;
    /// 3-bit integers around 4 in 16 groups, each with a 6-bit scale.
    Q3_K = 11, 256 values in 110 bytes, BlockQ3K;
    /// 4-bit integers in 8 groups, each with a 6-bit scale and a 6-bit minimum.
    Q4_K = 12, 256 values in 144 bytes, BlockQ4K;
    /// 5-bit integers in 8 groups, each with a 6-bit scale and a 6-bit minimum.
    Q5_K = 13, 256 values in 176 bytes, BlockQ5K;
    /// 6-bit integers around 32 in 16 groups, each with an 8-bit scale.
    Q6_K = 14, 256 values in 210 bytes, BlockQ6K;
    /// 4-bit numbers into a list of sixteen levels, with a scale.
    IQ4_NL = 20, 32 values in 18 bytes, BlockIQ4NL;
    /// 4-bit numbers into a list of sixteen levels, in 8 groups, each with a 6-bit scale.
    IQ4_XS = 23, 256 values in 136 bytes, BlockIQ4XS;
    /// 4-bit floats with a power of two as scale.
    MXFP4 = 39, 32 values in 17 bytes, BlockMxfp4;
    /// -1, 0 and 1 with a scale, five values to a byte.
    TQ1_0 = 34, 256 values in 54 bytes, BlockTQ1_0;
    /// -1, 0 and 1 with a scale, four values to a byte.
    TQ2_0 = 35, 256 values in 66 bytes, BlockTQ2_0;
    /// Points of a lattice of 256, in 8 groups, each with a 4-bit scale.
    IQ2_XXS = 16, 256 values in 66 bytes, BlockIQ2XXS;
    /// Points of a lattice of 512, in 16 groups, each with a 4-bit scale.
    IQ2_XS = 17, 256 values in 74 bytes, BlockIQ2XS;
    /// Points of a lattice of 1024, in 16 groups, each with a 4-bit scale.
    IQ2_S = 22, 256 values in 82 bytes, BlockIQ2S;
    /// Points of a lattice of 256 in four dimensions, in 8 groups, each with a 4-bit scale.
    IQ3_XXS = 18, 256 values in 98 bytes, BlockIQ3XXS;
    /// Points of a lattice of 512 in four dimensions, in 8 groups, each with a 4-bit scale.
    IQ3_S = 21, 256 values in 110 bytes, BlockIQ3S;
    /// Points of a lattice of 2048 shifted by 1/8, in 8 groups, each with a 3-bit scale.
    IQ1_S = 19, 256 values in 50 bytes, BlockIQ1S;
    /// Points of a lattice of 2048 shifted by 1/8, in 16 groups, each with a 3-bit scale.
    IQ1_M = 29, 256 values in 56 bytes, BlockIQ1M;
}

impl TensorType {
    /// Bytes of a row of `cols` values; `None` when `cols` is not a whole number of blocks, or the product overflows.
    pub fn row_bytes(self, cols: usize) -> Option<usize> {
        if !cols.is_multiple_of(self.block_elems()) {
            return None;
        }
        (cols / self.block_elems()).checked_mul(self.block_bytes())
    }

    /// The supported types' names, for messages.
    pub(crate) fn list() -> String {
        TensorType::ALL
            .iter()
            .map(|ty| ty.name())
            .collect::<Vec<_>>()
            .join(", ")
    }
}

impl std::fmt::Display for TensorType {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(self.name())
    }
}

/// The name of any ggml type, supported or not: for messages only. Numbers that ggml has retired keep their old names.
pub(crate) fn ggml_name(id: u32) -> Option<&'static str> {
    if let Some(ty) = TensorType::from_ggml(id) {
        return Some(ty.name());
    }
    UNSUPPORTED
        .iter()
        .find(|(other, _)| *other == id)
        .map(|(_, name)| *name)
}

const UNSUPPORTED: &[(u32, &str)] = &[
    (4, "Q4_2"),
    (5, "Q4_3"),
    (9, "Q8_1"),
    (15, "Q8_K"),
    (24, "I8"),
    (25, "I16"),
    (26, "I32"),
    (27, "I64"),
    (28, "F64"),
    (31, "Q4_0_4_4"),
    (32, "Q4_0_4_8"),
    (33, "Q4_0_8_8"),
    (36, "IQ4_NL_4_4"),
    (37, "IQ4_NL_4_8"),
    (38, "IQ4_NL_8_8"),
    (40, "NVFP4"),
    (41, "Q1_0"),
    (42, "Q2_0"),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_table_and_the_block_table_share_no_number() {
        for (id, name) in UNSUPPORTED {
            assert_eq!(TensorType::from_ggml(*id), None, "{name}");
            assert_eq!(ggml_name(*id), Some(*name));
        }
        for ty in TensorType::ALL {
            assert_eq!(TensorType::from_ggml(ty.ggml_id()), Some(*ty));
            assert_eq!(ggml_name(ty.ggml_id()), Some(ty.name()));
        }
        assert_eq!(ggml_name(1000), None);
    }

    #[test]
    fn row_bytes_wants_whole_blocks_and_never_wraps() {
        assert_eq!(TensorType::Q4_K.row_bytes(512), Some(288));
        assert_eq!(TensorType::Q4_K.row_bytes(128), None);
        assert_eq!(TensorType::F32.row_bytes(usize::MAX), None);
        assert_eq!(TensorType::F32.row_bytes(0), Some(0));
    }
}
