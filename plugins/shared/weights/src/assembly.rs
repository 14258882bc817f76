//! A model put together from a checkpoint: GGUF's names and metadata, the checkpoint's mapped bytes.

use std::path::Path;
use std::sync::Arc;

use crate::blocks::TensorType;
use crate::error::{Error, shown};
use crate::gguf;
use crate::map::Map;
use crate::metadata::Metadata;
use crate::safetensors::Checkpoint;
use crate::store::{Owned, Store};
use crate::weights::{TensorInfo, Weights, check_bytes};
use crate::writer::{GgufWriter, OwnedValue};

/// Collects metadata and tensors over a [`Checkpoint`]; [`finish`](Self::finish) reports what can't be put together.
pub struct Assembly {
    checkpoint: Checkpoint,
    meta: GgufWriter,
    tensors: Vec<New>,
}

/// A tensor to be.
struct New {
    name: String,
    source: Source,
}

enum Source {
    /// The checkpoint's tensor of this name, with its own shape or another.
    Mapped(String, Option<Vec<usize>>),
    Owned(TensorType, Vec<usize>, Vec<u8>),
}

impl Assembly {
    /// An assembly with neither metadata nor tensors.
    pub fn new(checkpoint: &Checkpoint) -> Self {
        Assembly {
            checkpoint: checkpoint.clone(),
            meta: GgufWriter::new(),
            tensors: Vec::new(),
        }
    }

    /// Adds a metadata value.
    pub fn meta(&mut self, key: impl Into<String>, value: impl Into<OwnedValue>) -> &mut Self {
        self.meta.add_meta(key, value);
        self
    }

    /// Adds the tensor that the hub calls `hub`, as stored, mapped.
    pub fn map(&mut self, name: impl Into<String>, hub: impl Into<String>) -> &mut Self {
        self.add(name, Source::Mapped(hub.into(), None))
    }

    /// Adds the tensor that the hub calls `hub`, mapped, with the same values in the same order in another `shape` (outermost
    /// first).
    pub fn map_as(
        &mut self,
        name: impl Into<String>,
        hub: impl Into<String>,
        shape: &[usize],
    ) -> &mut Self {
        self.add(name, Source::Mapped(hub.into(), Some(shape.into())))
    }

    /// Adds a tensor that is not in the checkpoint as it should be: `shape` outermost first, `bytes` its blocks row by row.
    pub fn own(
        &mut self,
        name: impl Into<String>,
        ty: TensorType,
        shape: &[usize],
        bytes: Vec<u8>,
    ) -> &mut Self {
        self.add(name, Source::Owned(ty, shape.into(), bytes))
    }

    fn add(&mut self, name: impl Into<String>, source: Source) -> &mut Self {
        let name = name.into();
        self.tensors.push(New { name, source });
        self
    }

    /// The model. A tensor whose bytes lie at an address that its numbers can't have (a multiple of their size) is copied; any
    /// other that was mapped stays mapped.
    ///
    /// # Errors
    /// When the checkpoint lacks a tensor, or has it in another dtype than F32, F16 or BF16; when a shape is empty, of more than 4
    /// dimensions, holds a zero or does not fit the bytes; when a name or key comes twice, or a value can't be written as GGUF.
    pub fn finish(self) -> Result<Weights, Error> {
        let path = self.checkpoint.path();
        let metadata = metadata(&self.meta, path)?;
        let mut stores = self.checkpoint.stores();
        let mut tensors = Vec::new();
        for New { name, source } in self.tensors {
            if name.is_empty() {
                return Err(Error::Tensor {
                    path: path.into(),
                    tensor: String::new(),
                    found: "an empty name".into(),
                    expected: "a name".into(),
                });
            }
            let (ty, shape, bytes, place) = match source {
                Source::Owned(ty, shape, bytes) => {
                    check_bytes(path, &name, ty, &shape, bytes.len())?;
                    let length = bytes.len();
                    (ty, shape, length, Err(Owned::new(bytes)))
                }
                Source::Mapped(hub, shape) => {
                    let stored = self.checkpoint.require(&hub)?;
                    let ty = stored.require_type()?;
                    let shape = shape.unwrap_or_else(|| stored.shape.into());
                    check_bytes(stored.file, &hub, ty, &shape, stored.data.len())?;
                    let aligned = stored.data.as_ptr().addr().is_multiple_of(ty.block_bytes());
                    let place = match aligned {
                        true => Ok((stored.part, stored.start)),
                        false => Err(Owned::copy_of(stored.data)),
                    };
                    (ty, shape, stored.data.len(), place)
                }
            };
            let (part, start) = place.unwrap_or_else(|owned| {
                stores.push(Store::Owned(Arc::new(owned)));
                (stores.len() - 1, 0)
            });
            tensors.push(TensorInfo {
                name,
                ty,
                shape,
                bytes,
                part,
                start,
            });
        }
        let files = self.checkpoint.files().into();
        Weights::assemble(path, files, stores, metadata, tensors)
    }
}

/// Writes metadata as GGUF has it, and reads that: metadata has one representation.
fn metadata(meta: &GgufWriter, path: &Path) -> Result<Metadata, Error> {
    let bytes = meta.to_bytes().map_err(|error| match error {
        Error::Unwritable {
            what,
            found,
            expected,
        } => Error::Key {
            path: path.into(),
            key: what
                .strip_prefix("key ")
                .map_or_else(|| shown(&what), Into::into),
            found,
            expected,
        },
        other => other,
    })?;
    let map = Map::from_bytes(path, &bytes)?;
    let head = gguf::read_head(&map, path)?;
    Ok(Metadata::new(Arc::new(map), path, head))
}
