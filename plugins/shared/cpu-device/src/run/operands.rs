//! Activations in the forms that matrices want them.

use super::frame::Parts;
use crate::activations::{Group32, Group256, quantise_row32, quantise_row256};
use crate::isa::Isa;
use crate::kernels::{ActivationKind, ActivationKinds, Operand};
use crate::lower::Kernel;
use crate::memory::{Buffer, Zeroed};
use backplane_program::DeviceError;
use std::ops::Range;

/// Room for the rows that one kernel multiplies, in each form: written in one job, read in the next.
///
/// A row has a *place*: rows of neighbouring places go through one tile.
pub(super) struct Operands {
    float: Buffer<f32>,
    int32: Buffer<Group32>,
    int256: Buffer<Group256>,
}

/// Rows that a kernel puts there, how long they are, and in which forms.
type Demand = (Option<usize>, usize, ActivationKinds);

impl Operands {
    /// Room for each of these kernels; `rows` gives the most rows of a value.
    pub(super) fn new(
        kernels: &[Kernel],
        rows: impl Fn(backplane_program::ValueId) -> usize,
    ) -> Result<Self, DeviceError> {
        let demands: Vec<Demand> = kernels
            .iter()
            .flat_map(|kernel| demands(kernel, &rows))
            .collect();
        let most = |kind: ActivationKind, wants: fn(&ActivationKinds) -> bool| {
            // A number that overflows is more than there is memory: the buffer says so.
            demands
                .iter()
                .filter(|(_, _, kinds)| wants(kinds))
                .map(|(rows, cols, _)| {
                    rows.and_then(|rows| rows.checked_mul(kind.row_len(*cols)))
                        .unwrap_or(usize::MAX)
                })
                .max()
                .unwrap_or(0)
        };
        let what = "activations in the forms that matrices take";
        Ok(Self {
            float: Buffer::new(most(ActivationKind::Float, |kinds| kinds.float), what)?,
            int32: Buffer::new(most(ActivationKind::Int32, |kinds| kinds.int32), what)?,
            int256: Buffer::new(most(ActivationKind::Int256, |kinds| kinds.int256), what)?,
        })
    }

    /// Puts a row to a place.
    ///
    /// # Safety
    /// Nobody else touches the place meanwhile.
    pub(super) unsafe fn put(&self, isa: Isa, kinds: ActivationKinds, x: &[f32], place: usize) {
        // SAFETY: the caller's promise.
        unsafe {
            if kinds.float {
                part(&self.float, place, x.len()).copy_from_slice(x);
            }
            if kinds.int32 {
                let len = ActivationKind::Int32.row_len(x.len());
                quantise_row32(isa, x, part(&self.int32, place, len));
            }
            if kinds.int256 {
                let len = ActivationKind::Int256.row_len(x.len());
                quantise_row256(isa, x, part(&self.int256, place, len));
            }
        }
    }

    /// Puts the row of `cols` elements that is in one place to another.
    ///
    /// # Safety
    /// Nobody else touches the places meanwhile.
    pub(super) unsafe fn copy(&self, kinds: ActivationKinds, cols: usize, from: usize, to: usize) {
        // SAFETY: the caller's promise; the places are apart.
        unsafe {
            if kinds.float {
                part(&self.float, to, cols).copy_from_slice(part(&self.float, from, cols));
            }
            if kinds.int32 {
                let len = ActivationKind::Int32.row_len(cols);
                part(&self.int32, to, len).copy_from_slice(part(&self.int32, from, len));
            }
            if kinds.int256 {
                let len = ActivationKind::Int256.row_len(cols);
                part(&self.int256, to, len).copy_from_slice(part(&self.int256, from, len));
            }
        }
    }

    /// Rows of `cols` elements that were put to these places, in one form. Nobody may write them meanwhile.
    pub(super) fn rows(
        &self,
        kind: ActivationKind,
        cols: usize,
        places: Range<usize>,
    ) -> Operand<'_> {
        let len = kind.row_len(cols);
        let range = places.start * len..places.end * len;
        match kind {
            ActivationKind::Float => Operand::Float(&self.float.as_slice()[range]),
            ActivationKind::Int32 => Operand::Int32(&self.int32.as_slice()[range]),
            ActivationKind::Int256 => Operand::Int256(&self.int256.as_slice()[range]),
        }
    }
}

/// # Safety
/// Nobody else touches the place meanwhile.
#[allow(clippy::mut_from_ref)]
unsafe fn part<T: Zeroed + Send>(buffer: &Buffer<T>, place: usize, len: usize) -> &mut [T] {
    // SAFETY: the caller's promise.
    unsafe { Parts::new(buffer).part(place * len, len) }
}

fn demands(
    kernel: &Kernel,
    rows: impl Fn(backplane_program::ValueId) -> usize,
) -> impl Iterator<Item = Demand> {
    let (one, two): (Option<Demand>, Option<Demand>) = match kernel {
        Kernel::Linears(linears) => {
            let cols = linears.parts[0].matrix.cols;
            (Some((Some(rows(linears.x)), cols, linears.kinds())), None)
        }
        Kernel::HeadLinear(layer) => {
            let rows = rows(layer.x).checked_mul(layer.heads);
            (Some((rows, layer.matrix.cols, layer.kinds())), None)
        }
        Kernel::Experts(layer) => {
            let rows = rows(layer.x).checked_mul(layer.used);
            let cols = layer.experts[0].first[0].cols;
            (
                Some((rows, cols, layer.first_kinds())),
                Some((rows, layer.inner, layer.down_kinds())),
            )
        }
        _ => (None, None),
    };
    one.into_iter().chain(two)
}
