//! Safetensors: a file, or a directory of them with an index, as model hubs have them; mapped and checked.
//!
//! Names are the hub's. [`Assembly`](crate::Assembly) makes [`Weights`](crate::Weights) of them.

use std::collections::BTreeSet;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

mod directory;
mod header;
mod index;

use crate::blocks::TensorType;
use crate::error::{Error, shown};
use crate::gguf;
use crate::map::Map;
use crate::store::Store;

/// A checkpoint's named tensors, mapped. Cloning is cheap, and the data lives as long as any clone.
#[derive(Clone)]
pub struct Checkpoint {
    inner: Arc<Inner>,
}

struct Inner {
    path: PathBuf,
    directory: PathBuf,
    files: Vec<PathBuf>,
    maps: Vec<Arc<Map>>,
    tensors: Vec<Info>,
    sorted: Vec<u32>,
}

struct Info {
    name: String,
    dtype: Dtype,
    shape: Vec<usize>,
    file: usize,
    start: usize,
    bytes: usize,
}

/// Dtypes that are known by name only, and the bits of a value.
const FOREIGN: &[(&str, u64)] = &[
    ("BOOL", 8),
    ("U8", 8),
    ("I8", 8),
    ("U16", 16),
    ("I16", 16),
    ("U32", 32),
    ("I32", 32),
    ("U64", 64),
    ("I64", 64),
    ("F64", 64),
    ("C64", 64),
    ("F8_E4M3", 8),
    ("F8_E5M2", 8),
    ("F8_E8M0", 8),
    ("F8_E4M3FNUZ", 8),
    ("F8_E5M2FNUZ", 8),
    ("F6_E2M3", 6),
    ("F6_E3M2", 6),
    ("F4", 4),
];

/// How a tensor's values are stored.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Dtype {
    /// F32, F16 or BF16: the types that can be used.
    Known(TensorType),
    /// Any other, by the name in the file: listed, never used.
    Foreign(String),
}

impl Dtype {
    fn new(name: &str) -> Self {
        match name {
            "F32" => Dtype::Known(TensorType::F32),
            "F16" => Dtype::Known(TensorType::F16),
            "BF16" => Dtype::Known(TensorType::BF16),
            other => Dtype::Foreign(other.into()),
        }
    }

    /// Bits of a value; `None` where the dtype is not even known by name.
    fn bits(&self) -> Option<u64> {
        match self {
            Dtype::Known(ty) => Some(8 * ty.block_bytes() as u64),
            Dtype::Foreign(name) => FOREIGN
                .iter()
                .find(|(known, _)| known == name)
                .map(|(_, bits)| *bits),
        }
    }

    /// The type, where it is one that can be used.
    pub fn ty(&self) -> Option<TensorType> {
        match self {
            Dtype::Known(ty) => Some(*ty),
            Dtype::Foreign(_) => None,
        }
    }

    /// Its name in the file.
    pub fn name(&self) -> &str {
        match self {
            Dtype::Known(ty) => ty.name(),
            Dtype::Foreign(name) => name,
        }
    }
}

impl fmt::Display for Dtype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&shown(self.name()))
    }
}

/// A tensor of a checkpoint, borrowed.
#[derive(Clone, Copy)]
pub struct StoredTensor<'a> {
    /// The hub's name.
    pub name: &'a str,
    /// How its values are stored.
    pub dtype: &'a Dtype,
    /// Lengths of its dimensions, outermost first; none for a scalar. May hold zeros.
    pub shape: &'a [usize],
    /// Its bytes, mapped: little-endian values, the innermost dimension varying fastest. May start at any address.
    pub data: &'a [u8],
    /// The file that it lies in.
    pub file: &'a Path,
    /// Which file that is, and where in it the data starts.
    pub(crate) part: usize,
    pub(crate) start: usize,
}

impl StoredTensor<'_> {
    /// The type of its values.
    ///
    /// # Errors
    /// When it is not F32, F16 or BF16.
    pub fn require_type(&self) -> Result<TensorType, Error> {
        self.dtype.ty().ok_or_else(|| Error::Tensor {
            path: self.file.into(),
            tensor: shown(self.name),
            found: format!("dtype {}", self.dtype),
            expected: "F32, F16 or BF16".into(),
        })
    }

    /// All its values.
    ///
    /// # Errors
    /// As [`require_type`](Self::require_type).
    pub fn to_f32(&self) -> Result<Vec<f32>, Error> {
        let ty = self.require_type()?;
        let mut out = vec![0.0; self.data.len() / ty.block_bytes()];
        ty.dequantize(self.data, &mut out);
        Ok(out)
    }
}

impl fmt::Debug for StoredTensor<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (name, dtype, shape) = (self.name, self.dtype, self.shape);
        write!(f, "StoredTensor({name} {dtype} {shape:?})")
    }
}

impl Checkpoint {
    /// Opens a checkpoint: a directory, an index (`model.safetensors.index.json`), or a safetensors file.
    ///
    /// In a directory that is `model.safetensors`, else `model.safetensors.index.json`, else the only other safetensors file. A file
    /// that is named as a part of several (`model-00001-of-00004.safetensors`) stands for all of them, by the index beside it.
    ///
    /// Reads and checks the headers; tensor data is mapped and not read. Tensors of a part that the index doesn't name are
    /// there as any other.
    ///
    /// # Errors
    /// When there is no checkpoint at `path`, a file can't be read, is malformed or cut short, when the index names a file that is missing or outside
    /// the directory, or a tensor that its file doesn't have, or when two files have a tensor of the same name.
    pub fn open(path: &Path) -> Result<Self, Error> {
        match directory::find(path)? {
            directory::Found::File(file) => {
                let map = Map::open_any(&file, not_safetensors)?;
                Self::build(path, vec![(file, map)])
            }
            directory::Found::Index(index) => Self::open_parts(path, &index),
        }
    }

    /// Reads a safetensors file that is in memory; the bytes are copied. `name` stands for the path in messages.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn from_bytes(name: &Path, bytes: &[u8]) -> Result<Self, Error> {
        let map = Map::copy_of(name, bytes, not_safetensors)?;
        Self::build(name, vec![(name.into(), map)])
    }

    fn open_parts(path: &Path, index: &Path) -> Result<Self, Error> {
        let weight_map = index::read(index)?;
        let names: BTreeSet<&str> = weight_map.iter().map(|(_, name)| &**name).collect();
        let names: Vec<&str> = names.into_iter().collect();
        let mut parts = Vec::new();
        for name in &names {
            let part = index::part(index, name)?;
            let map = Map::open_any(&part, not_safetensors)?;
            parts.push((part, map));
        }
        let checkpoint = Self::build(path, parts)?;
        for (tensor, name) in &weight_map {
            let found = match checkpoint.find(tensor) {
                None => "no such tensor".into(),
                Some(found) => match names[checkpoint.inner.tensors[found].file] {
                    file if file == name => continue,
                    other => format!("it in {other}"),
                },
            };
            return Err(Error::Tensor {
                path: index.with_file_name(name),
                tensor: shown(tensor),
                found,
                expected: format!("it here, by {}", index.display()),
            });
        }
        Ok(checkpoint)
    }

    fn build(path: &Path, parts: Vec<(PathBuf, Map)>) -> Result<Self, Error> {
        let mut tensors = Vec::new();
        let mut files = Vec::new();
        let mut maps = Vec::new();
        for (number, (file, map)) in parts.into_iter().enumerate() {
            let described = header::read(&map, &file)?;
            tensors.extend(described.into_iter().map(|tensor| Info {
                name: tensor.name,
                dtype: tensor.dtype,
                shape: tensor.shape,
                file: number,
                start: tensor.start,
                bytes: tensor.bytes,
            }));
            files.push(file);
            maps.push(Arc::new(map));
        }
        let sorted = gguf::index(tensors.len(), |i| &tensors[i].name);
        if let Some(twice) = gguf::repeated(&sorted, |i| &tensors[i].name) {
            let name = &tensors[twice].name;
            let first = tensors.iter().find(|tensor| tensor.name == *name);
            let first = first.map_or(0, |tensor| tensor.file);
            return Err(Error::Tensor {
                path: files[tensors[twice].file].clone(),
                tensor: shown(name),
                found: format!("the tensor also in {}", files[first].display()),
                expected: "it in one file".into(),
            });
        }
        let directory = match path.is_dir() {
            true => path,
            false => directory::parent(path),
        };
        Ok(Checkpoint {
            inner: Arc::new(Inner {
                path: path.into(),
                directory: directory.into(),
                files,
                maps,
                tensors,
                sorted,
            }),
        })
    }

    /// Whether `path` is a directory that holds a checkpoint, an index, or a safetensors file, by names and first bytes; no header
    /// is read. A directory with more than weights (tokenizer, configuration) may still miss parts of them.
    pub fn looks_like(path: &Path) -> bool {
        directory::looks_like(path)
    }

    /// The path that was opened.
    pub fn path(&self) -> &Path {
        &self.inner.path
    }

    /// The directory that the files lie in: where configuration and tokenizer are.
    pub fn directory(&self) -> &Path {
        &self.inner.directory
    }

    /// All safetensors files, in the order of their names.
    pub fn files(&self) -> &[PathBuf] {
        &self.inner.files
    }

    /// All tensors, in the order of the files and of the data in them.
    pub fn tensors(&self) -> impl ExactSizeIterator<Item = StoredTensor<'_>> {
        (0..self.inner.tensors.len()).map(|index| self.tensor_at(index))
    }

    /// A tensor by the hub's name.
    pub fn tensor(&self, name: &str) -> Option<StoredTensor<'_>> {
        self.find(name).map(|index| self.tensor_at(index))
    }

    /// A tensor by the hub's name.
    ///
    /// # Errors
    /// When there is none of that name.
    pub fn require(&self, name: &str) -> Result<StoredTensor<'_>, Error> {
        self.tensor(name).ok_or_else(|| Error::MissingTensor {
            path: self.inner.path.clone(),
            tensor: shown(name),
        })
    }

    fn find(&self, name: &str) -> Option<usize> {
        gguf::find(&self.inner.sorted, |i| &self.inner.tensors[i].name, name)
    }

    fn tensor_at(&self, index: usize) -> StoredTensor<'_> {
        let info = &self.inner.tensors[index];
        StoredTensor {
            name: &info.name,
            dtype: &info.dtype,
            shape: &info.shape,
            data: &self.inner.maps[info.file][info.start..][..info.bytes],
            file: &self.inner.files[info.file],
            part: info.file,
            start: info.start,
        }
    }

    /// The files' bytes, for what is made of the checkpoint.
    pub(crate) fn stores(&self) -> Vec<Store> {
        self.inner.maps.iter().cloned().map(Store::Mapped).collect()
    }
}

impl fmt::Debug for Checkpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (path, tensors) = (self.inner.path.display(), self.inner.tensors.len());
        write!(f, "Checkpoint({path}, {tensors} tensors)")
    }
}

fn not_safetensors(path: &Path, found: String) -> Error {
    Error::NotSafetensors {
        path: path.into(),
        found,
        expected: "a safetensors file",
    }
}
