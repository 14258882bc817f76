//! The header of one safetensors file; every number in it is checked against the file.
//!
//! Layout: the header's length u64 (little-endian); the header, JSON that maps each tensor's name to its dtype, its shape (outermost
//! first) and the first and last offset of its bytes, counted from the end of the header; the bytes, without holes.

use std::fmt;
use std::path::Path;

use serde::de::{Deserialize, Deserializer, Error as _, IgnoredAny, MapAccess, Visitor};

use super::{Dtype, not_safetensors};
use crate::error::{Error, shown};
use crate::gguf::MAX_TENSORS;
use crate::map::describe;

/// Longest header, in bytes: the format's own limit.
const MAX_HEADER: u64 = 100_000_000;
/// The one name in a header that is no tensor's.
const METADATA: &str = "__metadata__";

/// A tensor as its file describes it.
pub(super) struct Described {
    pub(super) name: String,
    pub(super) dtype: Dtype,
    /// Outermost first.
    pub(super) shape: Vec<usize>,
    /// First byte in the file.
    pub(super) start: usize,
    pub(super) bytes: usize,
}

/// Reads a file's header. The tensors come in the order of their data.
pub(super) fn read(bytes: &[u8], path: &Path) -> Result<Vec<Described>, Error> {
    let Some((length, rest)) = bytes.split_first_chunk::<8>() else {
        let found = format!("a file of {} bytes", bytes.len());
        return Err(not_safetensors(path, found));
    };
    let length = u64::from_le_bytes(*length);
    let malformed = |offset: u64, found: String, expected: String| Error::Malformed {
        path: path.into(),
        offset,
        what: if offset == 0 {
            "header's length"
        } else {
            "header"
        }
        .into(),
        found,
        expected,
    };
    if !rest.is_empty() && !rest.starts_with(b"{") {
        return Err(not_safetensors(path, describe(bytes)));
    }
    if length > rest.len() as u64 {
        let expected = format!(
            "at most the {} left in the file (is the file cut short?)",
            rest.len()
        );
        return Err(malformed(0, format!("{length} bytes"), expected));
    }
    if length > MAX_HEADER {
        let expected = format!("at most {MAX_HEADER}");
        return Err(malformed(0, format!("{length} bytes"), expected));
    }
    let (header, data) = rest.split_at(length as usize);
    let Header(tensors) = serde_json::from_slice(header).map_err(|error| {
        let expected = "JSON that gives each tensor's dtype, shape and data_offsets".into();
        malformed(
            8 + offset_of(&error, header) as u64,
            json_message(&error),
            expected,
        )
    })?;
    if tensors.len() as u64 > MAX_TENSORS {
        let found = format!("{} tensors", tensors.len());
        return Err(malformed(8, found, format!("at most {MAX_TENSORS}")));
    }

    let mut described = Vec::with_capacity(tensors.len());
    for (name, tensor) in tensors {
        described.push(tensor.check(name, 8 + header.len(), data.len(), path)?);
    }
    described.sort_by_key(|tensor| (tensor.start, tensor.bytes));
    let mut end = 8 + header.len();
    for (number, tensor) in described.iter().enumerate() {
        if tensor.start != end {
            let before = match number.checked_sub(1) {
                Some(before) => format!("the end of {}", shown(&described[before].name)),
                None => "the end of the header".into(),
            };
            return Err(Error::Tensor {
                path: path.into(),
                tensor: shown(&tensor.name),
                found: format!("data at offset {}", tensor.start),
                expected: format!("offset {end}, {before}"),
            });
        }
        end += tensor.bytes;
    }
    if end != bytes.len() {
        return Err(Error::Malformed {
            path: path.into(),
            offset: end as u64,
            what: "end of the data".into(),
            found: format!("{} bytes that are no tensor's", bytes.len() - end),
            expected: "the end of the file".into(),
        });
    }
    Ok(described)
}

/// What a header says of a tensor.
#[derive(serde::Deserialize)]
struct Stored {
    dtype: String,
    shape: Vec<u64>,
    /// From the end of the header.
    data_offsets: [u64; 2],
}

impl Stored {
    /// Checks a description against the `data` bytes that start at `start`.
    fn check(
        self,
        name: String,
        start: usize,
        data: usize,
        path: &Path,
    ) -> Result<Described, Error> {
        let fail = |found: String, expected: String| Error::Tensor {
            path: path.into(),
            tensor: shown(&name),
            found,
            expected,
        };
        if name.is_empty() {
            return Err(fail("an empty name".into(), "a name".into()));
        }
        let [begin, end] = self.data_offsets;
        let Some(bytes) = end.checked_sub(begin) else {
            return Err(fail(
                format!("data_offsets {begin} to {end}"),
                "an end not before the beginning".into(),
            ));
        };
        let dtype = Dtype::new(&self.dtype);
        if let Some(bits) = dtype.bits() {
            let bits = self
                .shape
                .iter()
                .try_fold(bits, |bits, length| bits.checked_mul(*length));
            let expected = bits
                .filter(|bits| bits.is_multiple_of(8))
                .map(|bits| bits / 8);
            let Some(expected) = expected else {
                return Err(fail(
                    format!("shape {:?} in {dtype}", self.shape),
                    "a whole number of bytes that 64 bits can count".into(),
                ));
            };
            if bytes != expected {
                return Err(fail(
                    format!("{bytes} bytes by its data_offsets"),
                    format!("{expected} for shape {:?} in {dtype}", self.shape),
                ));
            }
        }
        if end > data as u64 {
            return Err(fail(
                format!("a file of {} bytes", start + data),
                format!(
                    "at least {}: {bytes} bytes of data at offset {} (is the file cut short?)",
                    u128::from(end) + start as u128,
                    u128::from(begin) + start as u128
                ),
            ));
        }
        let shape = self.shape.iter().map(|length| usize::try_from(*length));
        let Ok(shape) = shape.collect::<Result<Vec<_>, _>>() else {
            let found = format!("shape {:?}", self.shape);
            return Err(fail(found, "lengths that fit the address space".into()));
        };
        Ok(Described {
            // Both lie in the file, which is mapped.
            start: start + begin as usize,
            bytes: bytes as usize,
            name,
            dtype,
            shape,
        })
    }
}

/// All tensors of a header, in its order. A name that comes twice is refused: JSON readers disagree on which of them counts.
struct Header(Vec<(String, Stored)>);

impl<'de> Deserialize<'de> for Header {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Tensors;

        impl<'de> Visitor<'de> for Tensors {
            type Value = Header;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of tensors")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Header, A::Error> {
                let mut tensors = Vec::new();
                while let Some(name) = map.next_key::<String>()? {
                    if name == METADATA {
                        map.next_value::<IgnoredAny>()?;
                    } else {
                        let named =
                            |error| A::Error::custom(format!("tensor {}: {error}", shown(&name)));
                        let tensor = map.next_value().map_err(named)?;
                        tensors.push((name, tensor));
                    }
                }
                Ok(Header(tensors))
            }
        }

        let header = deserializer.deserialize_map(Tensors)?;
        let mut names: Vec<&str> = header.0.iter().map(|(name, _)| &**name).collect();
        names.sort_unstable();
        if let Some(twice) = names.windows(2).find(|pair| pair[0] == pair[1]) {
            let message = format!("tensor {}: the name twice", shown(twice[0]));
            return Err(D::Error::custom(message));
        }
        Ok(header)
    }
}

/// Where in `text` a JSON error lies, in bytes.
pub(super) fn offset_of(error: &serde_json::Error, text: &[u8]) -> usize {
    let lines = text.split_inclusive(|byte| *byte == b'\n');
    let before: usize = lines
        .take(error.line().saturating_sub(1))
        .map(<[u8]>::len)
        .sum();
    (before + error.column().saturating_sub(1)).min(text.len())
}

/// A JSON error's text, without the place: that is said as an offset.
pub(super) fn json_message(error: &serde_json::Error) -> String {
    let text = error.to_string();
    let place = format!(" at line {} column {}", error.line(), error.column());
    shown(text.strip_suffix(&place).unwrap_or(&text))
}
