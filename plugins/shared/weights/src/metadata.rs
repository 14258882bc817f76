//! Metadata: keys and typed values, read where they lie in the file.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use crate::error::{Error, shown, shown_bytes};
use crate::gguf::{self, Entry, Head};
use crate::map::Map;

macro_rules! value_types {
    ($($(#[doc = $doc:literal])* $name:ident = $id:literal, $text:literal, $size:expr;)*) => {
        /// The type of a metadata value.
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
        pub enum ValueType {
            $($(#[doc = $doc])* $name,)*
        }

        impl ValueType {
            /// The type with this number in a file.
            pub fn from_id(id: u32) -> Option<Self> {
                match id {
                    $($id => Some(ValueType::$name),)*
                    _ => None,
                }
            }

            /// The type's number in a file.
            pub fn id(self) -> u32 {
                match self { $(ValueType::$name => $id,)* }
            }

            /// The type's name, as in Rust.
            pub fn name(self) -> &'static str {
                match self { $(ValueType::$name => $text,)* }
            }

            /// Bytes of a value; `None` where that depends on the value.
            pub fn size(self) -> Option<usize> {
                match self { $(ValueType::$name => $size,)* }
            }
        }
    };
}

value_types! {
    /// Unsigned, 8 bits.
    U8 = 0, "u8", Some(1);
    /// Signed, 8 bits.
    I8 = 1, "i8", Some(1);
    /// Unsigned, 16 bits.
    U16 = 2, "u16", Some(2);
    /// Signed, 16 bits.
    I16 = 3, "i16", Some(2);
    /// Unsigned, 32 bits.
    U32 = 4, "u32", Some(4);
    /// Signed, 32 bits.
    I32 = 5, "i32", Some(4);
    /// Float, 32 bits.
    F32 = 6, "f32", Some(4);
    /// A byte, 0 or 1.
    Bool = 7, "bool", Some(1);
    /// Text.
    String = 8, "string", None;
    /// Values of one type.
    Array = 9, "array", None;
    /// Unsigned, 64 bits.
    U64 = 10, "u64", Some(8);
    /// Signed, 64 bits.
    I64 = 11, "i64", Some(8);
    /// Float, 64 bits.
    F64 = 12, "f64", Some(8);
}

impl fmt::Display for ValueType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// A metadata value. Strings and arrays are views into the file.
///
/// `Display` prints it in one line: strings quoted, long strings and arrays shortened.
#[derive(Clone, Copy, PartialEq, Debug)]
#[allow(missing_docs)]
pub enum Value<'a> {
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
    String(&'a str),
    /// A string whose bytes are not UTF-8. Reading it as text is an error.
    InvalidString(&'a [u8]),
    Array(Array<'a>),
}

impl<'a> Value<'a> {
    /// The value's type.
    pub fn value_type(&self) -> ValueType {
        match self {
            Value::U8(_) => ValueType::U8,
            Value::I8(_) => ValueType::I8,
            Value::U16(_) => ValueType::U16,
            Value::I16(_) => ValueType::I16,
            Value::U32(_) => ValueType::U32,
            Value::I32(_) => ValueType::I32,
            Value::U64(_) => ValueType::U64,
            Value::I64(_) => ValueType::I64,
            Value::F32(_) => ValueType::F32,
            Value::F64(_) => ValueType::F64,
            Value::Bool(_) => ValueType::Bool,
            Value::String(_) | Value::InvalidString(_) => ValueType::String,
            Value::Array(_) => ValueType::Array,
        }
    }

    /// The value as an integer of any width; `None` for other types.
    fn integer(&self) -> Option<i128> {
        Some(match *self {
            Value::U8(value) => value.into(),
            Value::I8(value) => value.into(),
            Value::U16(value) => value.into(),
            Value::I16(value) => value.into(),
            Value::U32(value) => value.into(),
            Value::I32(value) => value.into(),
            Value::U64(value) => value.into(),
            Value::I64(value) => value.into(),
            _ => return None,
        })
    }

    pub(crate) fn int<T: TryFrom<i128>>(&self) -> Option<T> {
        self.integer().and_then(|value| T::try_from(value).ok())
    }

    fn float(&self) -> Option<f32> {
        match *self {
            Value::F32(value) => Some(value),
            Value::F64(value) => Some(value as f32),
            _ => None,
        }
    }

    fn bool(&self) -> Option<bool> {
        if let Value::Bool(value) = *self {
            Some(value)
        } else {
            None
        }
    }

    fn str(&self) -> Option<&'a str> {
        if let Value::String(value) = *self {
            Some(value)
        } else {
            None
        }
    }

    fn array(&self) -> Option<Array<'a>> {
        if let Value::Array(value) = *self {
            Some(value)
        } else {
            None
        }
    }

    /// Type and value, for messages.
    pub(crate) fn described(&self) -> String {
        match self {
            Value::Array(_) => self.to_string(),
            Value::InvalidString(_) => format!("a string that is not UTF-8, {self}"),
            _ => format!("{} {self}", self.value_type()),
        }
    }
}

impl fmt::Display for Value<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Value::U8(value) => write!(f, "{value}"),
            Value::I8(value) => write!(f, "{value}"),
            Value::U16(value) => write!(f, "{value}"),
            Value::I16(value) => write!(f, "{value}"),
            Value::U32(value) => write!(f, "{value}"),
            Value::I32(value) => write!(f, "{value}"),
            Value::U64(value) => write!(f, "{value}"),
            Value::I64(value) => write!(f, "{value}"),
            Value::F32(value) => write!(f, "{value}"),
            Value::F64(value) => write!(f, "{value}"),
            Value::Bool(value) => write!(f, "{value}"),
            Value::String(value) => write!(f, "\"{}\"", shown(value)),
            Value::InvalidString(value) => write!(f, "\"{}\"", shown_bytes(value)),
            Value::Array(value) => value.fmt(f),
        }
    }
}

/// An array in the metadata: a view into the file, nothing copied.
#[derive(Clone, Copy)]
pub struct Array<'a> {
    element_type: ValueType,
    len: usize,
    /// The elements as they lie in the file.
    data: &'a [u8],
    path: &'a Path,
    key: &'a str,
}

/// How many elements `Display` prints before it shortens.
const SHOWN_ELEMENTS: usize = 4;

impl<'a> Array<'a> {
    /// Number of elements.
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The type of every element.
    pub fn element_type(&self) -> ValueType {
        self.element_type
    }

    /// The elements in order.
    pub fn iter(&self) -> impl Iterator<Item = Value<'a>> + use<'a> {
        let this = *self;
        let mut rest = this.data;
        (0..this.len).map_while(move |_| {
            let (value, after) = decode(this.element_type, rest, this.path, this.key)?;
            rest = after;
            Some(value)
        })
    }

    /// The elements as text.
    ///
    /// # Errors
    /// When the elements are not strings, or one of them is not UTF-8.
    pub fn strings(&self) -> Result<impl ExactSizeIterator<Item = &'a str> + use<'a>, Error> {
        if let Some(strings) = self.strings_in_runs() {
            return Ok(strings.into_iter());
        }
        Ok(self.collect("strings", |value| value.str())?.into_iter())
    }

    /// The strings of a vocabulary, quickly; `None` means: look at each and say what is wrong.
    ///
    /// A run of strings is checked as one text, lengths and all. That decides for each of them as long as the lengths'
    /// bytes are ASCII (below 128), so a longer string ends a run and is checked on its own.
    fn strings_in_runs(&self) -> Option<Vec<&'a str>> {
        if self.element_type != ValueType::String {
            return None;
        }
        // The reader has seen `len` elements in the file, of eight bytes each at least.
        let mut strings = Vec::with_capacity(self.len.min(self.data.len() / 8));
        let mut rest = self.data;
        while strings.len() < self.len {
            let run = run_of_strings(rest, self.len - strings.len());
            let (head, after) = rest.split_at_checked(run)?;
            let mut text = simdutf8::basic::from_utf8(head).ok()?;
            while !text.is_empty() {
                let (string, after) = text
                    .get(8..)?
                    .split_at_checked(string_length(text.as_bytes())?)?;
                strings.push(string);
                text = after;
            }
            rest = after;
            if strings.len() < self.len {
                let (string, after) = rest.get(8..)?.split_at_checked(string_length(rest)?)?;
                strings.push(simdutf8::basic::from_utf8(string).ok()?);
                rest = after;
            }
        }
        Some(strings)
    }

    /// The elements, each of any integer type that a `u32` can hold.
    ///
    /// # Errors
    /// When the elements are not integers, or one doesn't fit.
    pub fn u32s(&self) -> Result<Vec<u32>, Error> {
        self.collect("u32", Value::int)
    }

    /// The elements, each of any integer type that an `i32` can hold.
    ///
    /// # Errors
    /// When the elements are not integers, or one doesn't fit.
    pub fn i32s(&self) -> Result<Vec<i32>, Error> {
        self.collect("i32", Value::int)
    }

    /// The elements, each of any integer type that a `usize` can hold.
    ///
    /// # Errors
    /// When the elements are not integers, or one doesn't fit.
    pub fn usizes(&self) -> Result<Vec<usize>, Error> {
        self.collect("unsigned integers", Value::int)
    }

    /// The elements, which are `f32` or `f64`.
    ///
    /// # Errors
    /// When the elements are something else.
    pub fn f32s(&self) -> Result<Vec<f32>, Error> {
        self.collect("f32", Value::float)
    }

    /// The elements.
    ///
    /// # Errors
    /// When the elements are not bools, or a byte is neither 0 nor 1.
    pub fn bools(&self) -> Result<Vec<bool>, Error> {
        if self.element_type == ValueType::Bool
            && let Some(at) = self.data.iter().position(|byte| *byte > 1)
        {
            return Err(self.fail(format!("element {at}: byte {}", self.data[at]), "0 or 1"));
        }
        self.collect("bool", Value::bool)
    }

    /// The elements, which are arrays.
    ///
    /// # Errors
    /// When the elements are something else.
    pub fn arrays(&self) -> Result<Vec<Array<'a>>, Error> {
        self.collect("arrays", |value| value.array())
    }

    fn collect<T>(
        &self,
        expected: &str,
        convert: impl Fn(&Value<'a>) -> Option<T>,
    ) -> Result<Vec<T>, Error> {
        // The reader has seen `len` elements in the file, of a byte each at least.
        let mut out = Vec::with_capacity(self.len.min(self.data.len()));
        for (at, value) in self.iter().enumerate() {
            match convert(&value) {
                Some(value) => out.push(value),
                None => {
                    let found = format!("an array with element {at}: {}", value.described());
                    return Err(self.fail(found, &format!("an array of {expected}")));
                }
            }
        }
        if out.len() != self.len {
            let found = format!("{} elements (was the file changed while open?)", out.len());
            return Err(self.fail(found, &format!("{} elements", self.len)));
        }
        Ok(out)
    }

    fn fail(&self, found: String, expected: &str) -> Error {
        Error::Key {
            path: self.path.into(),
            key: shown(self.key),
            found,
            expected: expected.into(),
        }
    }
}

impl PartialEq for Array<'_> {
    fn eq(&self, other: &Self) -> bool {
        (self.element_type, self.len, self.data) == (other.element_type, other.len, other.data)
    }
}

impl fmt::Display for Array<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} [", self.len, self.element_type)?;
        for (at, value) in self.iter().take(SHOWN_ELEMENTS).enumerate() {
            write!(f, "{}{value}", if at == 0 { "" } else { ", " })?;
        }
        write!(
            f,
            "{}]",
            if self.len > SHOWN_ELEMENTS {
                ", …"
            } else {
                ""
            }
        )
    }
}

impl fmt::Debug for Array<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Array({self})")
    }
}

/// The length that a stored string starts with.
fn string_length(bytes: &[u8]) -> Option<usize> {
    usize::try_from(u64::from_le_bytes(*bytes.first_chunk()?)).ok()
}

/// Bytes of the strings at the head of `bytes`, at most `count` of them, up to one whose length's bytes are not ASCII.
fn run_of_strings(bytes: &[u8], count: usize) -> usize {
    let mut end = 0;
    for _ in 0..count {
        let Some(length) = bytes.get(end..).and_then(string_length) else {
            break;
        };
        if length as u64 & 0x8080_8080_8080_8080 != 0 || length > bytes.len() - end - 8 {
            break;
        }
        end += 8 + length;
    }
    end
}

/// The value at the head of `bytes`, and what follows it; `None` if it isn't all there.
pub(crate) fn decode<'a>(
    ty: ValueType,
    bytes: &'a [u8],
    path: &'a Path,
    key: &'a str,
) -> Option<(Value<'a>, &'a [u8])> {
    macro_rules! number {
        ($variant:ident, $number:ty) => {{
            let (head, rest) = bytes.split_first_chunk()?;
            (Value::$variant(<$number>::from_le_bytes(*head)), rest)
        }};
    }
    Some(match ty {
        ValueType::U8 => number!(U8, u8),
        ValueType::I8 => number!(I8, i8),
        ValueType::U16 => number!(U16, u16),
        ValueType::I16 => number!(I16, i16),
        ValueType::U32 => number!(U32, u32),
        ValueType::I32 => number!(I32, i32),
        ValueType::U64 => number!(U64, u64),
        ValueType::I64 => number!(I64, i64),
        ValueType::F32 => number!(F32, f32),
        ValueType::F64 => number!(F64, f64),
        ValueType::Bool => {
            let (head, rest) = bytes.split_first()?;
            (Value::Bool(*head != 0), rest)
        }
        ValueType::String => {
            let (length, rest) = bytes.split_first_chunk()?;
            let (text, rest) =
                rest.split_at_checked(usize::try_from(u64::from_le_bytes(*length)).ok()?)?;
            (
                std::str::from_utf8(text).map_or(Value::InvalidString(text), Value::String),
                rest,
            )
        }
        ValueType::Array => {
            let (value, rest) = bytes.split_at_checked(gguf::value_length(bytes, ty)?)?;
            let (element_type, data) = value.split_first_chunk()?;
            let (len, data) = data.split_first_chunk()?;
            let array = Array {
                element_type: ValueType::from_id(u32::from_le_bytes(*element_type))?,
                len: usize::try_from(u64::from_le_bytes(*len)).ok()?,
                data,
                path,
                key,
            };
            (Value::Array(array), rest)
        }
    })
}

/// A model's metadata, read where it lies in the mapped file.
///
/// The typed readers ([`str`](Self::str), [`u32`](Self::u32), …) answer `None` for a key that isn't there and an error,
/// naming file, key, found and expected, for one that holds something else. Integers of any type are accepted where the
/// value fits. A file with the same key twice was refused when it was opened.
#[derive(Clone)]
pub struct Metadata {
    inner: Arc<Inner>,
}

struct Inner {
    map: Arc<Map>,
    path: Box<Path>,
    version: u32,
    entries: Vec<Entry>,
    sorted: Vec<u32>,
}

/// Most layers that a scalar is repeated for; far above any model, far below what would hurt.
const MAX_LAYERS: usize = 1 << 16;

impl Metadata {
    /// Reads a file's metadata only, so that files with unsupported tensor types or missing parts can be described too.
    ///
    /// # Errors
    /// When the file can't be read, is not GGUF 2 or 3, or its metadata is malformed.
    pub fn open(path: &Path) -> Result<Self, Error> {
        let map = Map::open(path)?;
        let head = gguf::read_head(&map, path)?;
        Ok(Self::new(Arc::new(map), path, head))
    }

    pub(crate) fn new(map: Arc<Map>, path: &Path, head: Head) -> Self {
        let Head {
            version,
            entries,
            sorted,
            ..
        } = head;
        Metadata {
            inner: Arc::new(Inner {
                map,
                path: path.into(),
                version,
                entries,
                sorted,
            }),
        }
    }

    /// The GGUF version of the file, 2 or 3.
    pub fn version(&self) -> u32 {
        self.inner.version
    }

    /// All keys, in the file's order.
    pub fn keys(&self) -> impl Iterator<Item = &str> {
        self.inner.entries.iter().map(|entry| &*entry.key)
    }

    /// A value of any type.
    pub fn get(&self, key: &str) -> Option<Value<'_>> {
        let at = gguf::find(&self.inner.sorted, |i| &self.inner.entries[i].key, key)?;
        let entry = &self.inner.entries[at];
        let bytes = &self.inner.map[entry.start..entry.end];
        Some(decode(entry.ty, bytes, &self.inner.path, &entry.key)?.0)
    }

    fn read<'a, T>(
        &'a self,
        key: &str,
        expected: &str,
        convert: impl Fn(&Value<'a>) -> Option<T>,
    ) -> Result<Option<T>, Error> {
        let Some(value) = self.get(key) else {
            return Ok(None);
        };
        match convert(&value) {
            Some(value) => Ok(Some(value)),
            None => Err(self.wrong(key, value.described(), expected)),
        }
    }

    fn wrong(&self, key: &str, found: String, expected: impl Into<String>) -> Error {
        Error::Key {
            path: (*self.inner.path).into(),
            key: shown(key),
            found,
            expected: expected.into(),
        }
    }

    fn missing(&self, key: &str, expected: &str) -> Error {
        Error::MissingKey {
            path: (*self.inner.path).into(),
            key: shown(key),
            expected: expected.into(),
        }
    }

    /// A string.
    ///
    /// # Errors
    /// When the key holds another type, or bytes that are not UTF-8.
    pub fn str(&self, key: &str) -> Result<Option<&str>, Error> {
        self.read(key, "string", |value| value.str())
    }

    /// An integer of any type that a `u32` can hold.
    ///
    /// # Errors
    /// When the key holds another type or value.
    pub fn u32(&self, key: &str) -> Result<Option<u32>, Error> {
        self.read(key, "u32", Value::int)
    }

    /// An integer of any type that a `u64` can hold.
    ///
    /// # Errors
    /// When the key holds another type or value.
    pub fn u64(&self, key: &str) -> Result<Option<u64>, Error> {
        self.read(key, "u64", Value::int)
    }

    /// An integer of any type that a `usize` can hold.
    ///
    /// # Errors
    /// When the key holds another type or value.
    pub fn usize(&self, key: &str) -> Result<Option<usize>, Error> {
        self.read(key, "an unsigned integer", Value::int)
    }

    /// A float, stored as `f32` or `f64`.
    ///
    /// # Errors
    /// When the key holds another type.
    pub fn f32(&self, key: &str) -> Result<Option<f32>, Error> {
        self.read(key, "f32", Value::float)
    }

    /// A bool.
    ///
    /// # Errors
    /// When the key holds another type.
    pub fn bool(&self, key: &str) -> Result<Option<bool>, Error> {
        self.read(key, "bool", Value::bool)
    }

    /// An array.
    ///
    /// # Errors
    /// When the key holds another type.
    pub fn array(&self, key: &str) -> Result<Option<Array<'_>>, Error> {
        self.read(key, "array", |value| value.array())
    }

    /// As [`str`](Self::str).
    ///
    /// # Errors
    /// Also when the key is missing.
    pub fn require_str(&self, key: &str) -> Result<&str, Error> {
        self.str(key)?.ok_or_else(|| self.missing(key, "string"))
    }

    /// As [`u32`](Self::u32).
    ///
    /// # Errors
    /// Also when the key is missing.
    pub fn require_u32(&self, key: &str) -> Result<u32, Error> {
        self.u32(key)?.ok_or_else(|| self.missing(key, "u32"))
    }

    /// As [`usize`](Self::usize).
    ///
    /// # Errors
    /// Also when the key is missing.
    pub fn require_usize(&self, key: &str) -> Result<usize, Error> {
        self.usize(key)?
            .ok_or_else(|| self.missing(key, "an unsigned integer"))
    }

    /// As [`f32`](Self::f32).
    ///
    /// # Errors
    /// Also when the key is missing.
    pub fn require_f32(&self, key: &str) -> Result<f32, Error> {
        self.f32(key)?.ok_or_else(|| self.missing(key, "f32"))
    }

    /// As [`array`](Self::array).
    ///
    /// # Errors
    /// Also when the key is missing.
    pub fn require_array(&self, key: &str) -> Result<Array<'_>, Error> {
        self.array(key)?.ok_or_else(|| self.missing(key, "array"))
    }

    /// One number a layer: a scalar counts for every layer, an array must have exactly one element for each.
    ///
    /// # Errors
    /// When the key holds another type, another number of elements, or values that a `usize` can't hold.
    pub fn per_layer_usize(&self, key: &str, layers: usize) -> Result<Option<Vec<usize>>, Error> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::Array(array)) if array.len() == layers => array.usizes().map(Some),
            Some(Value::Array(array)) => {
                let found = format!("an array of {}", array.len());
                Err(self.wrong(
                    key,
                    found,
                    format!("one number, or an array of {layers}, one for each layer"),
                ))
            }
            Some(_) if layers > MAX_LAYERS => Err(self.wrong(
                key,
                format!("{layers} layers"),
                format!("at most {MAX_LAYERS}"),
            )),
            Some(_) => Ok(self.usize(key)?.map(|value| vec![value; layers])),
        }
    }
}

impl fmt::Debug for Metadata {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map()
            .entries(self.keys().map(|key| (key, self.get(key))))
            .finish()
    }
}
