//! A model's tensors and metadata, from one file, from all parts of a split one, or assembled.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::blocks::TensorType;
use crate::error::{Error, shown};
use crate::gguf::{self, Head};
use crate::map::{Map, has_magic};
use crate::metadata::Metadata;
use crate::store::{Owned, Store};

/// A model's named tensors and metadata, mapped. Cloning is cheap, and the data lives as long as any clone.
#[derive(Clone)]
pub struct Weights {
    inner: Arc<Inner>,
}

struct Inner {
    path: PathBuf,
    format: Format,
    files: Vec<PathBuf>,
    stores: Vec<Store>,
    metadata: Metadata,
    tensors: Vec<TensorInfo>,
    sorted: Vec<u32>,
}

/// What a model's files are.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Format {
    /// One GGUF file, or all parts of a split one.
    Gguf,
    /// Safetensors files, assembled ([`Assembly`](crate::Assembly)).
    Safetensors,
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Format::Gguf => "GGUF",
            Format::Safetensors => "safetensors",
        })
    }
}

/// What is known of a tensor without reading it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TensorInfo {
    /// Its name.
    pub name: String,
    /// How its values are stored.
    pub ty: TensorType,
    /// Lengths of its dimensions, outermost first: a matrix is `[rows, cols]`. (GGUF stores them innermost first.)
    pub shape: Vec<usize>,
    /// Bytes of its data.
    pub bytes: usize,
    /// Which store, and where in it.
    pub(crate) part: usize,
    pub(crate) start: usize,
}

impl TensorInfo {
    /// Length of the innermost dimension: values in a row.
    pub fn cols(&self) -> usize {
        self.shape.last().copied().unwrap_or(1)
    }

    /// Number of rows: the product of all other dimensions.
    pub fn rows(&self) -> usize {
        self.shape.iter().rev().skip(1).product()
    }
}

/// A tensor: its description and its bytes, mapped.
#[derive(Clone, Copy)]
pub struct Tensor<'a> {
    /// Name, type and shape.
    pub info: &'a TensorInfo,
    /// The blocks, row by row. Starts at a multiple of 8 bytes in memory, of 4 (F32) or 2 (F16, BF16) when it is mapped from a
    /// safetensors file.
    pub data: &'a [u8],
}

impl<'a> Tensor<'a> {
    /// Number of rows: the product of all dimensions but the innermost.
    pub fn rows(&self) -> usize {
        self.info.rows()
    }

    /// Values in a row: the innermost dimension.
    pub fn cols(&self) -> usize {
        self.info.cols()
    }

    /// A row's blocks.
    ///
    /// # Panics
    /// When `row >= rows()`.
    pub fn row(&self, row: usize) -> &'a [u8] {
        assert!(row < self.rows(), "row {row} of {}", self.rows());
        let bytes = self.info.bytes / self.rows();
        &self.data[row * bytes..][..bytes]
    }

    /// All values, dequantised: `[rows, cols]`.
    pub fn to_f32(&self) -> Vec<f32> {
        let mut out = vec![0.0; self.rows() * self.cols()];
        self.info.ty.dequantize(self.data, &mut out);
        out
    }

    /// A row's values, dequantised into `out`, which is `[cols]`.
    ///
    /// # Panics
    /// When `row >= rows()` or `out` has another length.
    pub fn row_f32(&self, row: usize, out: &mut [f32]) {
        self.info.ty.dequantize(self.row(row), out);
    }
}

impl fmt::Debug for Tensor<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "Tensor({} {} {:?})",
            self.info.name, self.info.ty, self.info.shape
        )
    }
}

/// A tensor that keeps its file mapped; for what outlives the [`Weights`] it came from.
#[derive(Clone)]
pub struct OwnedTensor {
    weights: Weights,
    index: usize,
}

impl OwnedTensor {
    /// The tensor, borrowed.
    pub fn tensor(&self) -> Tensor<'_> {
        self.weights.tensor_at(self.index)
    }

    /// Name, type and shape.
    pub fn info(&self) -> &TensorInfo {
        &self.weights.inner.tensors[self.index]
    }

    /// The blocks, row by row; always at the same address.
    pub fn data(&self) -> &[u8] {
        self.tensor().data
    }
}

impl fmt::Debug for OwnedTensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.tensor().fmt(f)
    }
}

impl Weights {
    /// Opens a GGUF file, or all parts of a split one when given any of them (`…-00002-of-00003.gguf`).
    ///
    /// Parses and checks the headers; tensor data is mapped and not read. The metadata is that of the first part.
    ///
    /// # Errors
    /// When a file can't be read, is not GGUF 2 or 3, is malformed or cut short, repeats a key or a tensor, stores a tensor
    /// in a type that is not supported, or when a part is missing or belongs to another model.
    pub fn open(path: &Path) -> Result<Self, Error> {
        let part = Part::open(path)?;
        match part.split()? {
            None => Self::build(path, vec![part]),
            Some(split) => {
                let mut given = Some(part);
                let mut parts = Vec::new();
                for number in 0..split.count {
                    let part = match given.take_if(|_| number == split.number) {
                        Some(part) => part,
                        None => split.open(path, number)?,
                    };
                    parts.push(part);
                }
                let total: u64 = parts.iter().map(|part| part.head.tensor_count()).sum();
                if total != split.tensors {
                    return Err(Error::Shard {
                        path: path.into(),
                        found: format!("{total} tensors in the {} parts together", split.count),
                        expected: format!("{} by {TENSORS_KEY}", split.tensors),
                    });
                }
                Self::build(path, parts)
            }
        }
    }

    /// Reads a GGUF file that is in memory; the bytes are copied. `name` stands for the path in messages. A part of a split
    /// model is taken as it is.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn from_bytes(name: &Path, bytes: &[u8]) -> Result<Self, Error> {
        Self::build(name, vec![Part::new(name, Map::from_bytes(name, bytes)?)?])
    }

    fn build(path: &Path, parts: Vec<Part>) -> Result<Self, Error> {
        let mut tensors = Vec::new();
        for (number, part) in parts.iter().enumerate() {
            let raw = part.head.read_tensors(&part.map, &part.path)?;
            tensors.extend(raw.into_iter().map(|raw| TensorInfo {
                name: raw.name,
                ty: raw.ty,
                shape: raw.shape,
                bytes: raw.bytes,
                part: number,
                start: raw.start,
            }));
        }
        let sorted = sorted(&tensors, |i| &parts[tensors[i].part].path)?;
        let files = parts.iter().map(|part| part.path.clone()).collect();
        let stores = parts
            .iter()
            .map(|part| Store::Mapped(part.map.clone()))
            .collect();
        let mut parts = parts.into_iter();
        let Some(first) = parts.next() else {
            unreachable!("a model has a first part")
        };
        let metadata = Metadata::new(first.map, &first.path, first.head);
        Ok(Weights {
            inner: Arc::new(Inner {
                path: path.into(),
                format: Format::Gguf,
                files,
                stores,
                metadata,
                tensors,
                sorted,
            }),
        })
    }

    /// Puts a model together. Each tensor's `part` and `start` say where in `stores` its bytes lie; the caller has seen that
    /// they are there.
    pub(crate) fn assemble(
        path: &Path,
        files: Vec<PathBuf>,
        stores: Vec<Store>,
        metadata: Metadata,
        tensors: Vec<TensorInfo>,
    ) -> Result<Self, Error> {
        let sorted = sorted(&tensors, |_| path)?;
        Ok(Weights {
            inner: Arc::new(Inner {
                path: path.into(),
                format: Format::Safetensors,
                files,
                stores,
                metadata,
                tensors,
                sorted,
            }),
        })
    }

    /// The same model with some tensors' values in another storage: name, type and blocks, row by row. Shapes, order, metadata and all other
    /// tensors stay; those stay mapped.
    ///
    /// # Errors
    /// When there is no tensor of a name, or its shape in the new type takes another number of bytes.
    pub fn replacing(
        &self,
        replacements: impl IntoIterator<Item = (String, TensorType, Vec<u8>)>,
    ) -> Result<Self, Error> {
        let mut tensors = self.inner.tensors.clone();
        let mut stores = self.inner.stores.clone();
        for (name, ty, bytes) in replacements {
            let index = self.find(&name).ok_or_else(|| self.missing(&name))?;
            let info = &mut tensors[index];
            check_bytes(&self.inner.path, &name, ty, &info.shape, bytes.len())?;
            info.ty = ty;
            info.bytes = bytes.len();
            info.part = stores.len();
            info.start = 0;
            stores.push(Store::Owned(Arc::new(Owned::new(bytes))));
        }
        Ok(Weights {
            inner: Arc::new(Inner {
                path: self.inner.path.clone(),
                format: self.inner.format,
                files: self.inner.files.clone(),
                stores,
                metadata: self.inner.metadata.clone(),
                tensors,
                sorted: self.inner.sorted.clone(),
            }),
        })
    }

    /// Whether a file begins as GGUF does. Anything that isn't a readable regular file doesn't.
    pub fn is_gguf(path: &Path) -> bool {
        has_magic(path)
    }

    /// The path that was opened.
    pub fn path(&self) -> &Path {
        &self.inner.path
    }

    /// What its files are.
    pub fn format(&self) -> Format {
        self.inner.format
    }

    /// All files with tensors, in the order of the parts.
    pub fn files(&self) -> &[PathBuf] {
        &self.inner.files
    }

    /// The size of all files together.
    pub fn file_bytes(&self) -> u64 {
        let mapped = |store: &&Store| matches!(store, Store::Mapped(_));
        let mapped = self.inner.stores.iter().filter(mapped);
        mapped.map(|store| store.len() as u64).sum()
    }

    /// Bytes of the tensors that are not mapped but lie in memory of their own: made by a transformation, or copied because
    /// they lay badly in their file. 0 for a GGUF file.
    pub fn owned_bytes(&self) -> u64 {
        let owned = |info: &&TensorInfo| matches!(self.inner.stores[info.part], Store::Owned(_));
        let owned = self.inner.tensors.iter().filter(owned);
        owned.map(|info| info.bytes as u64).sum()
    }

    /// The metadata; of a split model, that of its first part.
    pub fn metadata(&self) -> &Metadata {
        &self.inner.metadata
    }

    /// All tensors, in the files' order.
    pub fn tensors(&self) -> impl Iterator<Item = &TensorInfo> {
        self.inner.tensors.iter()
    }

    /// A tensor by name.
    pub fn tensor(&self, name: &str) -> Option<Tensor<'_>> {
        self.find(name).map(|index| self.tensor_at(index))
    }

    /// A tensor by name.
    ///
    /// # Errors
    /// When there is none of that name.
    pub fn require(&self, name: &str) -> Result<Tensor<'_>, Error> {
        self.tensor(name).ok_or_else(|| self.missing(name))
    }

    /// A tensor by name, as a handle that keeps the files mapped.
    ///
    /// # Errors
    /// When there is none of that name.
    pub fn owned(&self, name: &str) -> Result<OwnedTensor, Error> {
        let index = self.find(name).ok_or_else(|| self.missing(name))?;
        Ok(OwnedTensor {
            weights: self.clone(),
            index,
        })
    }

    /// Asks the system to start reading all files ahead, in the background.
    pub fn prefetch(&self) {
        for store in &self.inner.stores {
            if let Store::Mapped(map) = store {
                map.prefetch();
            }
        }
    }

    fn find(&self, name: &str) -> Option<usize> {
        gguf::find(&self.inner.sorted, |i| &self.inner.tensors[i].name, name)
    }

    fn tensor_at(&self, index: usize) -> Tensor<'_> {
        let info = &self.inner.tensors[index];
        Tensor {
            info,
            data: &self.inner.stores[info.part][info.start..][..info.bytes],
        }
    }

    fn missing(&self, name: &str) -> Error {
        Error::MissingTensor {
            path: self.inner.path.clone(),
            tensor: shown(name),
        }
    }
}

impl fmt::Debug for Weights {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "Weights({}, {} tensors)",
            self.inner.path.display(),
            self.inner.tensors.len()
        )
    }
}

/// The tensors' numbers, ordered by name; `path` is a tensor's file, for the message about a name that comes twice.
fn sorted<'a>(tensors: &[TensorInfo], path: impl Fn(usize) -> &'a Path) -> Result<Vec<u32>, Error> {
    let sorted = gguf::index(tensors.len(), |i| &tensors[i].name);
    match gguf::repeated(&sorted, |i| &tensors[i].name) {
        None => Ok(sorted),
        Some(twice) => Err(Error::Tensor {
            path: path(twice).into(),
            tensor: shown(&tensors[twice].name),
            found: "the name twice".into(),
            expected: "each name once".into(),
        }),
    }
}

/// Checks that a tensor of `shape` (outermost first) in `ty` takes `bytes` bytes.
pub(crate) fn check_bytes(
    path: &Path,
    name: &str,
    ty: TensorType,
    shape: &[usize],
    bytes: usize,
) -> Result<(), Error> {
    let fail = |found: String, expected: String| {
        Err(Error::Tensor {
            path: path.into(),
            tensor: shown(name),
            found,
            expected,
        })
    };
    if shape.is_empty() || shape.len() > gguf::MAX_DIMENSIONS as usize || shape.contains(&0) {
        return fail(
            format!("shape {shape:?}"),
            format!("1 to {} dimensions, each at least 1", gguf::MAX_DIMENSIONS),
        );
    }
    let (cols, outer) = match shape.split_last() {
        Some((cols, outer)) => (*cols, outer),
        None => (1, &[][..]),
    };
    let Some(row) = ty.row_bytes(cols) else {
        return fail(
            format!("shape {shape:?}"),
            format!("rows of whole blocks, {} values in {ty}", ty.block_elems()),
        );
    };
    let total = outer
        .iter()
        .try_fold(row, |bytes, length| bytes.checked_mul(*length));
    if total != Some(bytes) {
        let total = total.map_or("more bytes than can be counted".into(), |total| {
            format!("{total} bytes")
        });
        return fail(
            format!("{bytes} bytes"),
            format!("{total} for shape {shape:?} in {ty}"),
        );
    }
    Ok(())
}

/// One file, its metadata read.
struct Part {
    path: PathBuf,
    map: Arc<Map>,
    head: Head,
}

const NUMBER_KEY: &str = "split.no";
const COUNT_KEY: &str = "split.count";
const TENSORS_KEY: &str = "split.tensors.count";

/// A split model, as one of its parts describes it.
struct Split {
    /// The part that was opened, from 0.
    number: u64,
    count: u64,
    /// Tensors of all parts together.
    tensors: u64,
    /// File name up to `-00001-of-00003.gguf`.
    stem: String,
}

impl Part {
    fn open(path: &Path) -> Result<Self, Error> {
        Self::new(path, Map::open(path)?)
    }

    fn new(path: &Path, map: Map) -> Result<Self, Error> {
        let head = gguf::read_head(&map, path)?;
        Ok(Part {
            path: path.into(),
            map: Arc::new(map),
            head,
        })
    }

    /// What the file says of the model that it is a part of; `None` for a whole model.
    fn split(&self) -> Result<Option<Split>, Error> {
        let named = self
            .path
            .file_name()
            .and_then(|name| name.to_str())
            .and_then(split_name);
        let number = self.head.integer(&self.map, &self.path, NUMBER_KEY)?;
        let count = self.head.integer(&self.map, &self.path, COUNT_KEY)?;
        let tensors = self.head.integer(&self.map, &self.path, TENSORS_KEY)?;
        let fail = |found: String, expected: String| {
            Err(Error::Shard {
                path: self.path.clone(),
                found,
                expected,
            })
        };
        let (stem, named_number, named_count) = match (named, count) {
            (None, None | Some(0 | 1)) | (Some((_, 1, 1)), None | Some(0 | 1)) => return Ok(None),
            (None, Some(count)) => {
                let expected = format!(
                    "a name that ends in -00001-of-{count:05}.gguf, or the number of another part"
                );
                return fail(format!("one of {count} parts by {COUNT_KEY}"), expected);
            }
            (Some((_, number, count)), None) => {
                let found = format!("a name of part {number} of {count}, and no key {COUNT_KEY}");
                return fail(found, "both, or neither".into());
            }
            (Some(named), Some(_)) => named,
        };
        let keys = [number.map(|number| number + 1), count];
        if keys != [Some(named_number), Some(named_count)] {
            let text = |key: Option<u64>| key.map_or_else(|| "?".into(), |key| key.to_string());
            let found = format!(
                "part {} of {} by {NUMBER_KEY} and {COUNT_KEY}",
                text(keys[0]),
                text(keys[1])
            );
            return fail(
                found,
                format!("part {named_number} of {named_count} by its name"),
            );
        }
        let Some(tensors) = tensors else {
            return fail(
                format!("no key {TENSORS_KEY}"),
                "the number of tensors of all parts".into(),
            );
        };
        Ok(Some(Split {
            number: named_number - 1,
            count: named_count,
            tensors,
            stem: stem.into(),
        }))
    }
}

impl Split {
    /// Opens another part, beside `beside`, and checks that it belongs to the same model.
    fn open(&self, beside: &Path, number: u64) -> Result<Part, Error> {
        let path = beside.with_file_name(format!(
            "{}-{:05}-of-{:05}.gguf",
            self.stem,
            number + 1,
            self.count
        ));
        let expected = format!("part {} of {} of the model", number + 1, self.count);
        if matches!(path.try_exists(), Ok(false)) {
            return Err(Error::Shard {
                path,
                found: "no file".into(),
                expected,
            });
        }
        let part = Part::open(&path)?;
        match part.split()? {
            Some(split) if split.tensors == self.tensors => Ok(part),
            Some(split) => {
                let found = format!(
                    "a part of a model of {} tensors by {TENSORS_KEY}",
                    split.tensors
                );
                Err(Error::Shard {
                    path,
                    found,
                    expected: format!("{} as in {}", self.tensors, beside.display()),
                })
            }
            None => Err(Error::Shard {
                path,
                found: "a whole model".into(),
                expected,
            }),
        }
    }
}

/// Splits `name-00002-of-00003.gguf` into `name`, 2 and 3.
fn split_name(name: &str) -> Option<(&str, u64, u64)> {
    let rest = name.strip_suffix(".gguf")?;
    let (rest, count) = rest.rsplit_once("-of-")?;
    let (stem, number) = rest.rsplit_once('-')?;
    let digits = |text: &str| {
        (text.len() == 5 && text.bytes().all(|byte| byte.is_ascii_digit())).then_some(())
    };
    digits(number).and(digits(count))?;
    let (number, count) = (number.parse().ok()?, count.parse().ok()?);
    (1 <= number && number <= count).then_some((stem, number, count))
}
