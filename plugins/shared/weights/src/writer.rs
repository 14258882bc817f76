//! Writes GGUF files: for tests, and for tools that convert models.
//!
//! ```
//! use backplane_weights::{TensorType, Weights, writer::GgufWriter};
//!
//! let mut writer = GgufWriter::new();
//! writer.add_meta("general.architecture", "llama");
//! writer.add_meta("llama.block_count", 2_u32);
//! writer.add_tensor("output_norm.weight", TensorType::F32, &[2], [1.0_f32, 2.0].map(f32::to_le_bytes).concat());
//! let bytes = writer.to_bytes()?;
//!
//! let weights = Weights::from_bytes("small.gguf".as_ref(), &bytes)?;
//! assert_eq!(weights.require("output_norm.weight")?.to_f32(), [1.0, 2.0]);
//! # Ok::<(), backplane_weights::Error>(())
//! ```

use std::collections::HashSet;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use crate::blocks::TensorType;
use crate::error::{Error, shown};
use crate::gguf::{
    ALIGNMENT_KEY, DEFAULT_ALIGNMENT, MAX_DEPTH, MAX_DIMENSIONS, MAX_NAME, MAX_STRING, is_alignment,
};
use crate::map::{MAGIC, io};
use crate::metadata::ValueType;

/// A metadata value to write.
#[derive(Clone, PartialEq, Debug)]
#[allow(missing_docs)]
pub enum OwnedValue {
    U8(u8),
    I8(i8),
    U16(u16),
    I16(i16),
    U32(u32),
    I32(i32),
    U64(u64),
    I64(i64),
    F32(f32),
    F64(f64),
    Bool(bool),
    String(String),
    /// The type of the elements, and the elements, all of that type.
    Array(ValueType, Vec<OwnedValue>),
}

macro_rules! from {
    ($($variant:ident $rust:ty),*) => {$(
        impl From<$rust> for OwnedValue {
            fn from(value: $rust) -> Self {
                OwnedValue::$variant(value)
            }
        }

        impl From<Vec<$rust>> for OwnedValue {
            fn from(values: Vec<$rust>) -> Self {
                OwnedValue::Array(ValueType::$variant, values.into_iter().map(OwnedValue::$variant).collect())
            }
        }
    )*};
}

from!(U8 u8, I8 i8, U16 u16, I16 i16, U32 u32, I32 i32, U64 u64, I64 i64, F32 f32, F64 f64, Bool bool, String String);

impl From<&str> for OwnedValue {
    fn from(value: &str) -> Self {
        OwnedValue::String(value.into())
    }
}

impl From<Vec<&str>> for OwnedValue {
    fn from(values: Vec<&str>) -> Self {
        OwnedValue::Array(
            ValueType::String,
            values.into_iter().map(OwnedValue::from).collect(),
        )
    }
}

impl OwnedValue {
    /// The value's type.
    pub fn value_type(&self) -> ValueType {
        match self {
            OwnedValue::U8(_) => ValueType::U8,
            OwnedValue::I8(_) => ValueType::I8,
            OwnedValue::U16(_) => ValueType::U16,
            OwnedValue::I16(_) => ValueType::I16,
            OwnedValue::U32(_) => ValueType::U32,
            OwnedValue::I32(_) => ValueType::I32,
            OwnedValue::U64(_) => ValueType::U64,
            OwnedValue::I64(_) => ValueType::I64,
            OwnedValue::F32(_) => ValueType::F32,
            OwnedValue::F64(_) => ValueType::F64,
            OwnedValue::Bool(_) => ValueType::Bool,
            OwnedValue::String(_) => ValueType::String,
            OwnedValue::Array(..) => ValueType::Array,
        }
    }

    fn write(&self, key: &str, depth: usize, out: &mut Vec<u8>) -> Result<(), Error> {
        match self {
            OwnedValue::U8(value) => out.extend(value.to_le_bytes()),
            OwnedValue::I8(value) => out.extend(value.to_le_bytes()),
            OwnedValue::U16(value) => out.extend(value.to_le_bytes()),
            OwnedValue::I16(value) => out.extend(value.to_le_bytes()),
            OwnedValue::U32(value) => out.extend(value.to_le_bytes()),
            OwnedValue::I32(value) => out.extend(value.to_le_bytes()),
            OwnedValue::U64(value) => out.extend(value.to_le_bytes()),
            OwnedValue::I64(value) => out.extend(value.to_le_bytes()),
            OwnedValue::F32(value) => out.extend(value.to_le_bytes()),
            OwnedValue::F64(value) => out.extend(value.to_le_bytes()),
            OwnedValue::Bool(value) => out.push(u8::from(*value)),
            OwnedValue::String(value) => {
                write_string(value, &format!("key {}", shown(key)), MAX_STRING, out)?
            }
            OwnedValue::Array(element, values) => {
                let fail = |found: String, expected: String| {
                    Err(Error::Unwritable {
                        what: format!("key {}", shown(key)),
                        found,
                        expected,
                    })
                };
                if depth == MAX_DEPTH {
                    return fail(
                        "an array inside too many arrays".into(),
                        format!("at most {MAX_DEPTH} levels"),
                    );
                }
                out.extend(element.id().to_le_bytes());
                out.extend((values.len() as u64).to_le_bytes());
                for value in values {
                    if value.value_type() != *element {
                        return fail(
                            format!("an element of type {}", value.value_type()),
                            format!("{element}"),
                        );
                    }
                    value.write(key, depth + 1, out)?;
                }
            }
        }
        Ok(())
    }
}

/// Collects metadata and tensors, then writes them. What can't be written is reported by [`to_bytes`](Self::to_bytes) and
/// [`write_to`](Self::write_to).
#[derive(Clone, Debug)]
pub struct GgufWriter {
    version: u32,
    alignment: usize,
    meta: Vec<(String, OwnedValue)>,
    tensors: Vec<NewTensor>,
}

#[derive(Clone, Debug)]
struct NewTensor {
    name: String,
    ty: TensorType,
    shape: Vec<usize>,
    data: Data,
}

#[derive(Clone, Debug)]
enum Data {
    Here(Vec<u8>),
    /// To be handed to a [`Stream`].
    Later,
}

impl Default for GgufWriter {
    fn default() -> Self {
        Self::new()
    }
}

impl GgufWriter {
    /// A file of version 3 with nothing in it.
    pub fn new() -> Self {
        GgufWriter {
            version: 3,
            alignment: DEFAULT_ALIGNMENT,
            meta: Vec::new(),
            tensors: Vec::new(),
        }
    }

    /// Sets the version, 2 or 3.
    pub fn version(&mut self, version: u32) -> &mut Self {
        self.version = version;
        self
    }

    /// Sets the alignment of tensor data, a power of two from 8 to 1 MiB. Any other than 32 is also written as
    /// `general.alignment`.
    pub fn alignment(&mut self, alignment: usize) -> &mut Self {
        self.alignment = alignment;
        self
    }

    /// Adds a metadata value.
    pub fn add_meta(&mut self, key: impl Into<String>, value: impl Into<OwnedValue>) -> &mut Self {
        self.meta.push((key.into(), value.into()));
        self
    }

    /// Adds a tensor: `shape` outermost first, `bytes` its blocks row by row.
    pub fn add_tensor(
        &mut self,
        name: impl Into<String>,
        ty: TensorType,
        shape: &[usize],
        bytes: impl Into<Vec<u8>>,
    ) -> &mut Self {
        self.tensors.push(NewTensor {
            name: name.into(),
            ty,
            shape: shape.into(),
            data: Data::Here(bytes.into()),
        });
        self
    }

    /// Adds a tensor whose bytes are handed to the [`Stream`] that [`begin`](Self::begin) gives: `shape` outermost first.
    pub fn declare_tensor(
        &mut self,
        name: impl Into<String>,
        ty: TensorType,
        shape: &[usize],
    ) -> &mut Self {
        self.tensors.push(NewTensor {
            name: name.into(),
            ty,
            shape: shape.into(),
            data: Data::Later,
        });
        self
    }

    /// Adds an F32 tensor: `shape` outermost first.
    pub fn add_f32(
        &mut self,
        name: impl Into<String>,
        shape: &[usize],
        values: &[f32],
    ) -> &mut Self {
        let bytes: Vec<u8> = values
            .iter()
            .flat_map(|value| value.to_le_bytes())
            .collect();
        self.add_tensor(name, TensorType::F32, shape, bytes)
    }

    /// The whole file.
    ///
    /// # Errors
    /// When something was added that the format can't hold, or that [`Weights`](crate::Weights) would refuse, and when a tensor
    /// was only declared.
    pub fn to_bytes(&self) -> Result<Vec<u8>, Error> {
        let mut out = Vec::new();
        self.write_all("memory".as_ref(), &mut out)?;
        Ok(out)
    }

    /// Writes the file.
    ///
    /// # Errors
    /// As [`to_bytes`](Self::to_bytes), and when the file can't be written.
    pub fn write_to(&self, path: &Path) -> Result<(), Error> {
        // Errors that are no fault of the file come before there is one.
        self.header()?;
        let file = std::fs::File::create(path).map_err(|cause| io(path, cause))?;
        let mut file = BufWriter::new(file);
        self.write_all(path, &mut file)?;
        file.flush().map_err(|cause| io(path, cause))
    }

    fn write_all(&self, path: &Path, out: &mut dyn Write) -> Result<(), Error> {
        let mut stream = self.begin(path, out)?;
        for tensor in &self.tensors {
            if let Data::Here(bytes) = &tensor.data {
                stream.write(bytes)?;
            }
        }
        stream.finish().map(|_| ())
    }

    /// Writes everything before the tensors' bytes, which are then handed to the stream, tensor after tensor in the order in
    /// which they were added. `path` is for messages.
    ///
    /// # Errors
    /// As [`to_bytes`](Self::to_bytes), and when `out` can't be written.
    pub fn begin<W: Write>(&self, path: &Path, mut out: W) -> Result<Stream<W>, Error> {
        let (header, sizes) = self.header()?;
        out.write_all(&header).map_err(|cause| io(path, cause))?;
        let names = self.tensors.iter().map(|tensor| tensor.name.clone());
        Ok(Stream {
            path: path.into(),
            alignment: self.alignment,
            written: header.len() as u64,
            left: names.zip(sizes).rev().collect(),
            out,
        })
    }

    /// Everything before the data, padded, and the bytes of each tensor.
    fn header(&self) -> Result<(Vec<u8>, Vec<usize>), Error> {
        if self.version != 2 && self.version != 3 {
            return Err(unwritable(
                "file".into(),
                format!("version {}", self.version),
                "2 or 3".into(),
            ));
        }
        if !is_alignment(self.alignment) {
            let expected = "a power of two from 8 to 1048576".into();
            return Err(unwritable(
                "alignment".into(),
                self.alignment.to_string(),
                expected,
            ));
        }
        let mut meta: Vec<(&str, &OwnedValue)> = self
            .meta
            .iter()
            .map(|(key, value)| (&**key, value))
            .collect();
        let alignment = OwnedValue::U32(self.alignment as u32);
        match meta.iter().find(|(key, _)| *key == ALIGNMENT_KEY) {
            Some((_, value)) if **value == alignment => {}
            Some((_, value)) => {
                let expected = format!("u32 {}, as set by alignment()", self.alignment);
                return Err(unwritable(
                    format!("key {ALIGNMENT_KEY}"),
                    format!("{value:?}"),
                    expected,
                ));
            }
            None if self.alignment == DEFAULT_ALIGNMENT => {}
            None => meta.push((ALIGNMENT_KEY, &alignment)),
        }

        let mut out = Vec::new();
        out.extend(MAGIC);
        out.extend(self.version.to_le_bytes());
        out.extend((self.tensors.len() as u64).to_le_bytes());
        out.extend((meta.len() as u64).to_le_bytes());
        let mut keys = HashSet::new();
        for (key, value) in meta {
            name_is_new("key", key, &mut keys)?;
            write_string(key, "key", MAX_NAME, &mut out)?;
            out.extend(value.value_type().id().to_le_bytes());
            value.write(key, 0, &mut out)?;
        }
        let mut names = HashSet::new();
        let mut sizes = Vec::with_capacity(self.tensors.len());
        let mut offset = 0_u64;
        for tensor in &self.tensors {
            name_is_new("tensor", &tensor.name, &mut names)?;
            let size = tensor.check()?;
            write_string(&tensor.name, "tensor", MAX_NAME, &mut out)?;
            out.extend((tensor.shape.len() as u32).to_le_bytes());
            tensor
                .shape
                .iter()
                .rev()
                .for_each(|length| out.extend((*length as u64).to_le_bytes()));
            out.extend(tensor.ty.ggml_id().to_le_bytes());
            out.extend(offset.to_le_bytes());
            offset = (size as u64)
                .checked_next_multiple_of(self.alignment as u64)
                .and_then(|size| offset.checked_add(size))
                .ok_or_else(|| {
                    let what = format!("tensor {}", shown(&tensor.name));
                    let expected = "a file whose bytes can be counted".into();
                    unwritable(what, format!("{size} bytes"), expected)
                })?;
            sizes.push(size);
        }
        out.resize(out.len().next_multiple_of(self.alignment), 0);
        Ok((out, sizes))
    }
}

impl NewTensor {
    /// Its bytes, by its type and shape.
    fn check(&self) -> Result<usize, Error> {
        let fail = |found: String, expected: String| {
            Err(unwritable(
                format!("tensor {}", shown(&self.name)),
                found,
                expected,
            ))
        };
        if self.shape.is_empty()
            || self.shape.len() > MAX_DIMENSIONS as usize
            || self.shape.contains(&0)
        {
            let expected = format!("1 to {MAX_DIMENSIONS} dimensions, each at least 1");
            return fail(format!("shape {:?}", self.shape), expected);
        }
        let (cols, outer) = match self.shape.split_last() {
            Some((cols, outer)) => (*cols, outer),
            None => (1, &[][..]),
        };
        let row = self.ty.row_bytes(cols);
        let bytes = outer
            .iter()
            .try_fold(row.unwrap_or(0), |bytes, length| bytes.checked_mul(*length));
        match (row, bytes) {
            (None, _) | (_, None) => fail(
                format!("shape {:?}", self.shape),
                format!(
                    "rows of whole blocks, {} values in {}",
                    self.ty.block_elems(),
                    self.ty
                ),
            ),
            (_, Some(bytes)) => match &self.data {
                Data::Here(here) if here.len() != bytes => fail(
                    format!("{} bytes", here.len()),
                    format!("{bytes} for {:?} in {}", self.shape, self.ty),
                ),
                _ => Ok(bytes),
            },
        }
    }
}

/// A file being written, tensor after tensor: see [`GgufWriter::begin`].
pub struct Stream<W> {
    path: PathBuf,
    alignment: usize,
    /// Bytes of the file so far.
    written: u64,
    /// Tensors that are not whole yet, the next one last, with the bytes that each still wants.
    left: Vec<(String, usize)>,
    out: W,
}

impl<W: Write> Stream<W> {
    /// Writes the next bytes of the tensor that is next, or all of them.
    ///
    /// # Errors
    /// When these are more than it wants, and when the file can't be written.
    pub fn write(&mut self, bytes: &[u8]) -> Result<(), Error> {
        let Some((_, wanted)) = self
            .left
            .last_mut()
            .filter(|(_, wanted)| bytes.len() <= *wanted)
        else {
            let (what, expected) = match self.left.last() {
                Some((name, wanted)) => {
                    (format!("tensor {}", shown(name)), format!("{wanted} bytes"))
                }
                None => ("file".into(), "no more tensors".into()),
            };
            return Err(unwritable(what, format!("{} bytes", bytes.len()), expected));
        };
        self.out
            .write_all(bytes)
            .map_err(|cause| io(&self.path, cause))?;
        self.written += bytes.len() as u64;
        *wanted -= bytes.len();
        if *wanted == 0 {
            self.left.pop();
            let padding = self.written.next_multiple_of(self.alignment as u64) - self.written;
            self.out
                .write_all(&vec![0; padding as usize])
                .map_err(|cause| io(&self.path, cause))?;
            self.written += padding;
        }
        Ok(())
    }

    /// What was written to, and how many bytes.
    ///
    /// # Errors
    /// When a tensor is not whole.
    pub fn finish(self) -> Result<(W, u64), Error> {
        match self.left.last() {
            None => Ok((self.out, self.written)),
            Some((name, wanted)) => Err(unwritable(
                format!("tensor {}", shown(name)),
                format!("{wanted} bytes too few"),
                "all of them".into(),
            )),
        }
    }
}

fn unwritable(what: String, found: String, expected: String) -> Error {
    Error::Unwritable {
        what,
        found,
        expected,
    }
}

fn name_is_new<'a>(what: &str, name: &'a str, seen: &mut HashSet<&'a str>) -> Result<(), Error> {
    if name.is_empty() || !seen.insert(name) {
        let found = if name.is_empty() {
            "an empty name"
        } else {
            "the name twice"
        };
        return Err(unwritable(
            format!("{what} {}", shown(name)),
            found.into(),
            "each name once".into(),
        ));
    }
    Ok(())
}

fn write_string(text: &str, what: &str, cap: u64, out: &mut Vec<u8>) -> Result<(), Error> {
    if text.len() as u64 > cap {
        return Err(unwritable(
            what.into(),
            format!("a string of {} bytes", text.len()),
            format!("at most {cap}"),
        ));
    }
    out.extend((text.len() as u64).to_le_bytes());
    out.extend(text.as_bytes());
    Ok(())
}
