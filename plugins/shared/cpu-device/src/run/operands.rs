//! Activations in the forms that matrices want them.

use super::frame::Parts;
use super::linears::kinds;
use crate::activations::{Group32, Group256, Wide, quantise_row32, quantise_row256, quantise_wide};
use crate::isa::Isa;
use crate::kernels::{
    ActivationKind, ActivationKinds, Line, Operand, Scratch, WIDE32_FROM, scratch_lines,
};
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
    wide32: Buffer<Wide>,
    wide256: Buffer<Wide>,
    /// `[threads, scratch_each]`.
    scratch: Buffer<Line>,
    scratch_each: usize,
}

/// Rows that a kernel puts there, how long they are, and in which forms.
type Demand = (Option<usize>, usize, ActivationKinds);

impl Operands {
    /// Room for each of these kernels; `rows` gives the most rows of a value.
    pub(super) fn new(
        isa: Isa,
        threads: usize,
        kernels: &[Kernel],
        rows: impl Fn(backplane_program::ValueId) -> usize,
    ) -> Result<Self, DeviceError> {
        let demands: Vec<Demand> = kernels
            .iter()
            .flat_map(|kernel| demands(isa, kernel, &rows))
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
        let scratch_each = kernels.iter().map(|kernel| scratch(isa, kernel)).max();
        let scratch_each = scratch_each.unwrap_or(0);
        Ok(Self {
            float: Buffer::new(most(ActivationKind::Float, |kinds| kinds.float), what)?,
            int32: Buffer::new(most(ActivationKind::Int32, |kinds| kinds.int32), what)?,
            int256: Buffer::new(most(ActivationKind::Int256, |kinds| kinds.int256), what)?,
            wide32: Buffer::new(most(ActivationKind::Wide32, |kinds| kinds.wide32), what)?,
            wide256: Buffer::new(most(ActivationKind::Wide256, |kinds| kinds.wide256), what)?,
            scratch: Buffer::new(scratch_each.saturating_mul(threads), what)?,
            scratch_each,
        })
    }

    /// Bytes of all of it.
    pub(super) fn bytes(&self) -> usize {
        let rows = self.float.bytes() + self.int32.bytes() + self.int256.bytes();
        rows + self.wide32.bytes() + self.wide256.bytes() + self.scratch.bytes()
    }

    /// What the products of a thread may use.
    ///
    /// # Safety
    /// Nobody else has this thread's scratch meanwhile.
    pub(super) unsafe fn scratch(&self, worker: usize) -> Scratch<'_> {
        // SAFETY: the caller's promise.
        Scratch::new(unsafe { part(&self.scratch, worker, self.scratch_each) })
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
            let len = ActivationKind::Wide32.row_len(x.len());
            if kinds.wide32 {
                quantise_wide(isa, x, 32, part(&self.wide32, place, len));
            }
            if kinds.wide256 {
                quantise_wide(isa, x, 256, part(&self.wide256, place, len));
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
            let len = ActivationKind::Wide32.row_len(cols);
            if kinds.wide32 {
                part(&self.wide32, to, len).copy_from_slice(part(&self.wide32, from, len));
            }
            if kinds.wide256 {
                part(&self.wide256, to, len).copy_from_slice(part(&self.wide256, from, len));
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
            ActivationKind::Wide32 => Operand::Wide(&self.wide32.as_slice()[range], kind),
            ActivationKind::Wide256 => Operand::Wide(&self.wide256.as_slice()[range], kind),
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

/// Rows in the form for many tokens, and, where that is another, in the form for few.
fn demands(
    isa: Isa,
    kernel: &Kernel,
    rows: impl Fn(backplane_program::ValueId) -> usize,
) -> impl Iterator<Item = Demand> {
    let few = |rows: Option<usize>| rows.map(|rows| rows.min(WIDE32_FROM - 1));
    let demands: Vec<Demand> = match kernel {
        Kernel::Linears(linears) => {
            let (rows, cols) = (rows(linears.x), linears.parts[0].matrix.cols);
            let types: Vec<_> = linears.parts.iter().map(|part| part.matrix.ty).collect();
            vec![
                (Some(rows), cols, kinds(isa, rows, &types)),
                (few(Some(rows)), cols, kinds(isa, 1, &types)),
            ]
        }
        Kernel::HeadLinear(layer) => {
            let (rows, cols) = (rows(layer.x), layer.matrix.cols);
            let places = |rows: Option<usize>| rows.and_then(|rows| rows.checked_mul(layer.heads));
            vec![
                (places(Some(rows)), cols, layer.kinds(isa, rows)),
                (places(few(Some(rows))), cols, layer.kinds(isa, 1)),
            ]
        }
        Kernel::Experts(layer) => {
            let rows = rows(layer.x);
            let places = rows.checked_mul(layer.used);
            let cols = layer.experts[0].first[0].cols;
            // Few tokens of each expert may be many in all.
            [rows, 1]
                .into_iter()
                .flat_map(|each| {
                    [
                        (places, cols, layer.first_kinds(isa, each)),
                        (places, layer.inner, layer.down_kinds(isa, each)),
                    ]
                })
                .collect()
        }
        _ => vec![],
    };
    demands.into_iter()
}

/// Lines of scratch that the products of a kernel take on each thread.
fn scratch(isa: Isa, kernel: &Kernel) -> usize {
    let cols = match kernel {
        Kernel::Linears(linears) => linears.parts[0].matrix.cols,
        Kernel::HeadLinear(layer) => layer.matrix.cols,
        Kernel::Experts(layer) => layer.inner.max(layer.experts[0].first[0].cols),
        _ => return 0,
    };
    scratch_lines(isa, cols)
}
