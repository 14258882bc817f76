//! Models into GGUF files, as llama.cpp reads them: from GGUF, or from what [`hub`] assembled.
//!
//! [`convert`] restores the conventions of GGUF that an assembled model says it doesn't follow: rotated pairs side by side,
//! experts in one stack, queries, keys and values apart, vectors and routers in F32. Keys that begin with `backplane.` are
//! translated so or left out; those about tokens stay, since they say what GGUF has no key for and no other reader minds them.
//!
//! The file is written beside its destination, tensor by tensor, and moved there when it is whole: what stands at the
//! destination is always a whole model, and of a failure or cancellation nothing remains.

mod destination;
mod differences;
mod layout;
mod metadata;

use crate::{ModelError, hub};
use backplane_weights::quantize::{self, Progress, quantize_tensor};
use backplane_weights::writer::{GgufWriter, Stream};
use backplane_weights::{Error, Tensor, TensorType, Weights};
use destination::Destination;
use layout::{Order, Output, Piece};
use std::io::Write;
use std::ops::ControlFlow;
use std::path::Path;

/// How a model is converted.
#[derive(Clone, Copy, Debug, Default)]
pub struct ConvertOptions {
    /// The type that matrices get; as stored without it. [`quantize::destination`] says which tensors change.
    pub quantize: Option<TensorType>,
    /// Whether a file at the destination is replaced. The model's own files never are.
    pub replace: bool,
}

/// What was written.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ConvertReport {
    /// Tensors in the file.
    pub tensors: u64,
    /// Bytes of the file.
    pub bytes: u64,
    /// What a user should know, a line each: what was left out, what didn't get the type asked for, and where llama.cpp
    /// computes something else than this engine out of the same file.
    pub notes: Vec<String>,
}

/// Bytes written between two calls of `progress` where tensors are copied.
const SLAB: usize = 8 << 20;

/// Writes a model to a GGUF file. Takes memory for one matrix in its new type (one expert's, of a stack stored singly) and some
/// megabytes beside. `progress` is told how many bytes of how many are written, and of which tensor.
///
/// # Errors
/// The type can't be quantised to; a value is NaN, infinite or too large for its type; experts of a layer differ in shape; the
/// destination is a file already (unless it is to be replaced), a directory, or one of the model's own files, or can't be
/// written; a metadata value can't be written; `progress` said so ([`Error::Cancelled`]).
pub fn convert(
    weights: &Weights,
    destination: &Path,
    options: ConvertOptions,
    progress: &mut Progress<'_>,
) -> Result<ConvertReport, ModelError> {
    if let Some(ty) = options.quantize
        && let Some(reason) = ty.refuses_quantizing()
    {
        return Err(ModelError::Weights(Error::TypeName {
            found: ty.name().into(),
            expected: format!("another type: {reason}"),
        }));
    }
    let mut destination = Destination::new(destination, weights, options.replace)?;
    let outputs = layout::outputs(weights, options.quantize)?;
    let mut notes = hub::notes(weights)?;
    if let Some(ty) = options.quantize {
        notes.extend(quantize::notes(outputs.iter().map(|it| &it.info), ty));
    }
    notes.extend(differences::of(weights)?);

    let mut writer = GgufWriter::new();
    metadata::write(weights, &outputs, options.quantize, &mut writer, &mut notes)?;
    for output in &outputs {
        writer.declare_tensor(&output.info.name, output.to, &output.info.shape);
    }
    let total = outputs.iter().map(|output| output.bytes() as u64).sum();
    let path = destination.written_path().to_owned();
    let mut copy = Copy {
        weights,
        stream: writer.begin(&path, destination.file())?,
        done: 0,
        total,
        progress,
    };
    for output in &outputs {
        for piece in &output.pieces {
            copy.piece(output, piece)?;
        }
    }
    let (_, bytes) = copy.stream.finish()?;
    destination.finish(weights)?;
    Ok(ConvertReport {
        tensors: outputs.len() as u64,
        bytes,
        notes,
    })
}

/// The tensors' way into the file.
struct Copy<'a, 'p, W> {
    weights: &'a Weights,
    stream: Stream<W>,
    /// Bytes of tensors written, and to write.
    done: u64,
    total: u64,
    progress: &'a mut Progress<'p>,
}

impl<W: Write> Copy<'_, '_, W> {
    fn piece(&mut self, output: &Output, piece: &Piece) -> Result<(), ModelError> {
        let stored = self.weights.require(&piece.source)?;
        let info = piece.view(stored.info);
        let row_bytes = info.bytes / info.rows();
        let first = piece.rows.start * row_bytes;
        let tensor = Tensor {
            info: &info,
            data: &stored.data[first..][..info.bytes],
        };
        let made;
        let data = if output.to == info.ty {
            tensor.data
        } else {
            let bytes = layout::bytes(&info.shape, output.to) as u64;
            let (done, total, progress) = (self.done, self.total, &mut *self.progress);
            let name = &output.info.name;
            made = quantize_tensor(self.weights.path(), &tensor, output.to, &mut |at, of, _| {
                let share = u128::from(bytes) * u128::from(at) / u128::from(of.max(1));
                progress(done + share as u64, total, name)
            })?;
            &made
        };
        match piece.order {
            Order::AsStored => {
                for slab in data.chunks(SLAB) {
                    self.write(slab, &output.info.name)?;
                }
            }
            Order::Pairs(pairs) => {
                let row_bytes = data.len() / info.rows();
                let mut rows = Vec::with_capacity(data.len());
                for row in 0..info.rows() {
                    rows.extend_from_slice(&data[pairs.stored(row) * row_bytes..][..row_bytes]);
                }
                self.write(&rows, &output.info.name)?;
            }
        }
        Ok(())
    }

    fn write(&mut self, bytes: &[u8], name: &str) -> Result<(), ModelError> {
        self.stream.write(bytes)?;
        self.done += bytes.len() as u64;
        match (self.progress)(self.done, self.total, name) {
            ControlFlow::Continue(()) => Ok(()),
            ControlFlow::Break(()) => Err(Error::Cancelled.into()),
        }
    }
}
