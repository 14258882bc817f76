//! Whole models into another storage type: which tensors change, and the work on all processors.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;
use std::path::Path;

use super::Unstorable;
use crate::blocks::TensorType;
use crate::error::{Error, shown};
use crate::weights::{Tensor, TensorInfo, Weights};

/// Told how many of how many values are done, and of which tensor; [`ControlFlow::Break`] ends the work with
/// [`Error::Cancelled`].
pub type Progress<'a> = dyn FnMut(u64, u64, &str) -> ControlFlow<()> + 'a;

/// Values between two calls of [`Progress`], about.
const SLAB: usize = 1 << 21;

/// What becomes of a tensor when its model is quantised.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Destination {
    /// It is no matrix of the model's linear maps, or of the type already: it stays as it is.
    Stays,
    /// It gets the type asked for.
    Becomes(TensorType),
    /// Its rows are no whole blocks of the type: it gets the nearest one that fits.
    FallsBack(TensorType),
    /// Its rows are no whole blocks of the type, and nothing smaller than what it has fits: it stays as it is.
    Unfit,
}

impl Destination {
    /// The type that a tensor stored as `now` has afterwards.
    pub fn or(self, now: TensorType) -> TensorType {
        match self {
            Destination::Stays | Destination::Unfit => now,
            Destination::Becomes(ty) | Destination::FallsBack(ty) => ty,
        }
    }
}

/// What a matrix is stored as when its rows are no whole blocks of the type asked for.
const FALLBACK: TensorType = TensorType::Q8_0;

/// Parts of names of matrices that stay as they are: a router's small errors choose other experts, the others are tables.
const STAY: &[&str] = &[
    "ffn_gate_inp",
    "exp_probs_b",
    "rope_freqs",
    "rope_factors",
    "position_embd",
    "token_types",
    "norm",
];

/// Whether a tensor is what quantising a model changes: a matrix or a stack of them, such as embedding, head, projections and
/// experts; no vector, norm, bias, router or table.
pub fn changes(info: &TensorInfo) -> bool {
    let matrix = info.shape.len() > 1 && info.rows() > 1;
    matrix && !STAY.iter().any(|part| info.name.contains(part))
}

/// What becomes of a tensor when its model is quantised to `ty`; see [`changes`].
pub fn destination(info: &TensorInfo, ty: TensorType) -> Destination {
    if info.ty == ty || !changes(info) {
        return Destination::Stays;
    }
    if ty.row_bytes(info.cols()).is_some() {
        return Destination::Becomes(ty);
    }
    let now = info.bytes / info.rows();
    match FALLBACK.row_bytes(info.cols()) {
        Some(bytes) if bytes < now => Destination::FallsBack(FALLBACK),
        _ => Destination::Unfit,
    }
}

/// A model in another storage type.
pub struct Requantized {
    /// The model: changed matrices in memory, everything else mapped as it was.
    pub weights: Weights,
    /// What didn't go as asked, or costs more than it seems; a line each.
    pub notes: Vec<String>,
}

/// Stores a model's matrices in another type, in memory. [`destination`] says which change.
///
/// Takes memory for the changed matrices in their new type and some megabytes beside. Uses all processors; the result doesn't
/// depend on how many there are.
///
/// # Errors
/// When the type can't be quantised to, when a value is NaN, infinite or too large for the type (naming the tensor and the
/// place), and when `progress` said so.
pub fn requantize(
    weights: &Weights,
    ty: TensorType,
    progress: &mut Progress<'_>,
) -> Result<Requantized, Error> {
    if let Some(reason) = ty.refuses_quantizing() {
        return Err(Error::TypeName {
            found: ty.name().into(),
            expected: format!("another type: {reason}"),
        });
    }
    let changed = |info: &&TensorInfo| destination(info, ty).or(info.ty) != info.ty;
    let values = |info: &TensorInfo| (info.rows() * info.cols()) as u64;
    let total = weights.tensors().filter(changed).map(values).sum();
    let mut replaced = Vec::new();
    let mut done = 0;
    for info in weights.tensors().filter(changed) {
        let tensor = weights.require(&info.name)?;
        let to = destination(info, ty).or(info.ty);
        let bytes = quantize_tensor(weights.path(), &tensor, to, &mut |values, _, name| {
            progress(done + values, total, name)
        })?;
        done += values(info);
        replaced.push((info.name.clone(), to, bytes));
    }
    Ok(Requantized {
        notes: notes(weights.tensors(), ty),
        weights: weights.replacing(replaced)?,
    })
}

/// What a user should know about quantising these tensors to `ty`; a line each, tensors of all layers together.
pub fn notes<'a>(tensors: impl Iterator<Item = &'a TensorInfo>, ty: TensorType) -> Vec<String> {
    // By what is said of them: their names, and how many they are.
    let mut unfit: BTreeMap<String, (BTreeSet<String>, usize)> = BTreeMap::new();
    let mut twice: BTreeMap<&str, usize> = BTreeMap::new();
    for info in tensors {
        let destination = destination(info, ty);
        let stored = match destination {
            Destination::Stays => continue,
            Destination::Becomes(_) => None,
            Destination::FallsBack(to) => Some(format!("stored as {to}")),
            Destination::Unfit => Some(format!("kept as {}", info.ty)),
        };
        if let Some(stored) = stored {
            let line = format!(
                "rows of {} values are no whole blocks of {ty} ({}), {stored}",
                info.cols(),
                ty.block_elems()
            );
            let (names, count) = unfit.entry(line).or_default();
            names.insert(any_layer(&info.name));
            *count += 1;
        }
        if info.ty.block_elems() > 1 && destination != Destination::Unfit {
            *twice.entry(info.ty.name()).or_default() += 1;
        }
    }
    let mut notes: Vec<String> = unfit
        .into_iter()
        .map(|(line, (names, count))| {
            let names = names.into_iter().collect::<Vec<_>>().join(", ");
            match count {
                1 => format!("{names}: {line}"),
                _ => format!("{names} ({count} tensors): {line}"),
            }
        })
        .collect();
    if !twice.is_empty() {
        let types: Vec<String> = twice
            .iter()
            .map(|(ty, count)| format!("{count} in {ty}"))
            .collect();
        notes.push(format!(
            "already quantised ({}): the loss of both quantisations adds up",
            types.join(", ")
        ));
    }
    notes
}

/// The name with a star for numbers of layers and experts, so that a note is said once.
fn any_layer(name: &str) -> String {
    let digits = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
    shown(name)
        .split('.')
        .map(|part| if digits(part) { "*" } else { part })
        .collect::<Vec<_>>()
        .join(".")
}

/// A tensor's values stored in another type, row by row: the blocks of `[rows, cols]`. `path` is for messages.
///
/// # Errors
/// As [`requantize`]; also when rows are no whole blocks of the type.
pub fn quantize_tensor(
    path: &Path,
    tensor: &Tensor<'_>,
    ty: TensorType,
    progress: &mut Progress<'_>,
) -> Result<Vec<u8>, Error> {
    let threads = std::thread::available_parallelism().map_or(1, |count| count.get());
    on_threads(path, tensor, ty, threads, progress)
}

pub(super) fn on_threads(
    path: &Path,
    tensor: &Tensor<'_>,
    ty: TensorType,
    threads: usize,
    progress: &mut Progress<'_>,
) -> Result<Vec<u8>, Error> {
    let (rows, cols) = (tensor.rows(), tensor.cols());
    let fail = |found: String, expected: String| Error::Tensor {
        path: path.into(),
        tensor: shown(&tensor.info.name),
        found,
        expected,
    };
    let Some(row_bytes) = ty.row_bytes(cols) else {
        return Err(fail(
            format!("rows of {cols} values"),
            format!("whole blocks of {ty}, {} values each", ty.block_elems()),
        ));
    };
    let total = (rows * cols) as u64;
    let mut out = vec![0; rows * row_bytes];
    let slab = (SLAB / cols.max(1)).max(1);
    for (number, bytes) in out.chunks_mut(slab * row_bytes).enumerate() {
        let first = number * slab;
        if progress((first * cols) as u64, total, &tensor.info.name).is_break() {
            return Err(Error::Cancelled);
        }
        let share = (bytes.len() / row_bytes).div_ceil(threads);
        let work = |worker: usize, bytes: &mut [u8]| {
            let mut values = vec![0.0; cols];
            for (row, bytes) in (first + worker * share..).zip(bytes.chunks_exact_mut(row_bytes)) {
                tensor.row_f32(row, &mut values);
                ty.quantize(&values, bytes)
                    .map_err(|unstorable| (row, unstorable))?;
            }
            Ok::<(), (usize, Unstorable)>(())
        };
        // Rows are handed out in order and asked in order, so the first that can't be stored is the one reported.
        std::thread::scope(|scope| {
            let workers: Vec<_> = bytes
                .chunks_mut(share * row_bytes)
                .enumerate()
                .map(|(worker, bytes)| scope.spawn(move || work(worker, bytes)))
                .collect();
            workers.into_iter().try_for_each(|worker| {
                worker
                    .join()
                    .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
            })
        })
        .map_err(|(row, Unstorable { at, value })| {
            let expected = match value.is_finite() {
                true => format!("numbers that {ty} can hold"),
                false => "finite numbers".into(),
            };
            fail(format!("{value} in row {row}, column {at}"), expected)
        })?;
    }
    if progress(total, total, &tensor.info.name).is_break() {
        return Err(Error::Cancelled);
    }
    Ok(out)
}
