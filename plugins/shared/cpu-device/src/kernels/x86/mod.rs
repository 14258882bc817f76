//! Kernels for x86-64.

mod avx2;
mod avx512;
mod points;
mod ternary;

pub(super) use avx2::*;
pub(super) use avx512::*;

use super::{Line, Tile};
use crate::dispatch::ask;
use crate::isa::Isa;
use backplane_weights::TensorType;

/// A kernel for one storage type and instruction set.
///
/// # Safety
/// The processor has the instruction set's features, and the tile is of that storage type.
pub(super) type Matmul = unsafe fn(&Tile<'_>, &mut [Line]);

/// Whether a tile of this type and of so many tokens takes its activations as [`Wide`](crate::activations::Wide) groups.
pub(super) fn wide(isa: Isa, ty: TensorType, tokens: usize) -> bool {
    isa == Isa::Avx512 && avx512::wide(ty, tokens)
}

/// Lines of scratch that a tile with these columns takes at most.
pub(super) fn scratch(isa: Isa, cols: usize) -> usize {
    match isa {
        Isa::Avx512 => panel_lines(cols),
        Isa::Scalar | Isa::Avx2 => 0,
    }
}

/// Runs a tile with the kernel of its type.
pub(super) fn run(matmul: Matmul, tile: &Tile<'_>, scratch: &mut [Line]) {
    // SAFETY: `Tile::run` picks the kernel from the table by the tile's type and by an `Isa`, which an executable holds
    // only after `Isa::is_supported` has found its features.
    unsafe { matmul(tile, scratch) }
}

/// How far ahead of what is read weights are asked for, in bytes.
const AHEAD: usize = 1024;

/// Asks for the weights that are read [`AHEAD`] bytes after the `bytes` bytes at `p`. Beyond the end of a matrix that does no
/// harm: asking never faults.
#[inline(always)]
fn ahead(p: *const u8, bytes: usize) {
    for lines in (0..bytes).step_by(128) {
        ask(p.wrapping_add(AHEAD + lines));
    }
}
