//! Where there are no fast kernels.

use super::{Scratch, Tile};
use crate::isa::Isa;
use backplane_weights::TensorType;
use std::convert::Infallible;

/// A fast kernel: there is none.
pub(super) type Matmul = Infallible;

/// The kernel of a type and instruction set: none.
pub(super) fn kernel(_isa: Isa, _ty: TensorType) -> Option<Matmul> {
    None
}

/// Whether a tile takes its activations as wide groups: never.
pub(super) fn wide(_isa: Isa, _ty: TensorType, _tokens: usize) -> bool {
    false
}

/// Lines of scratch that a tile takes: none.
pub(super) fn scratch(_isa: Isa, _cols: usize) -> usize {
    0
}

/// Runs a tile.
pub(super) fn run(matmul: Matmul, _tile: &Tile<'_>, _scratch: &mut Scratch<'_>) {
    match matmul {}
}
