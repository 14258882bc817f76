//! Kernels for aarch64, all of whose processors have NEON: products of 16-bit whole numbers for the types that come as such;
//! the others take the scalar kernels, which the compiler turns into vectors.

use super::whole::{matmul, with_whole};
use super::{Scratch, Tile};
use crate::isa::Isa;
use backplane_weights::TensorType;
use std::arch::aarch64::*;

/// A kernel for one storage type.
pub(super) type Matmul = fn(&Tile<'_>);

/// Sum of 32 products.
#[inline]
fn products(a: &[i16; 32], b: &[i16; 32]) -> i32 {
    // SAFETY: NEON is there on every aarch64; eight of 32 numbers are read at each of four places.
    unsafe {
        let mut sums = [vdupq_n_s32(0); 2];
        for at in (0..32).step_by(8) {
            let (a, b) = (vld1q_s16(a.as_ptr().add(at)), vld1q_s16(b.as_ptr().add(at)));
            sums[0] = vmlal_s16(sums[0], vget_low_s16(a), vget_low_s16(b));
            sums[1] = vmlal_high_s16(sums[1], a, b);
        }
        vaddvq_s32(vaddq_s32(sums[0], sums[1]))
    }
}

/// The kernel of a type and instruction set; the scalar one where there is none.
pub(super) fn kernel(isa: Isa, ty: TensorType) -> Option<Matmul> {
    macro_rules! of {
        ($block:ident) => {
            Some(|tile: &Tile<'_>| matmul::<$block>(tile, products))
        };
    }
    if isa != Isa::Neon {
        return None;
    }
    with_whole!(ty, of, None)
}

/// Whether a tile of this type takes its activations as [`Wide`](crate::activations::Wide) groups.
pub(super) fn wide(isa: Isa, ty: TensorType, _tokens: usize) -> bool {
    kernel(isa, ty).is_some()
}

/// Lines of scratch that a tile takes: none.
pub(super) fn scratch(_isa: Isa, _cols: usize) -> usize {
    0
}

/// Runs a tile.
pub(super) fn run(matmul: Matmul, tile: &Tile<'_>, _scratch: &mut Scratch<'_>) {
    matmul(tile);
}
