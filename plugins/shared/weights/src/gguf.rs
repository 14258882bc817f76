//! The header of a GGUF file: read once, by hopping over values; every number in it is checked against the file.
//!
//! Layout (little-endian): magic `GGUF`, version u32, tensor count u64, metadata count u64; the metadata (key, type u32,
//! value); the tensors' descriptions (name, number of dimensions u32, dimensions u64 with the innermost first, type u32,
//! offset u64 from the start of the data); padding to the alignment; the data. A string is a u64 length and its bytes; an
//! array is an element type u32, a u64 count, and the elements. Versions 2 and 3 are alike; version 1 had 32-bit counts.

use std::path::Path;

use crate::blocks::{TensorType, ggml_name};
use crate::error::{Error, shown, shown_bytes};
use crate::metadata::{ValueType, decode};

/// Longest metadata key and tensor name, in bytes.
pub(crate) const MAX_NAME: u64 = 64 << 10;
/// Longest string value, in bytes.
pub(crate) const MAX_STRING: u64 = 1 << 20;
/// Most metadata keys of a file; real ones have some dozens.
pub(crate) const MAX_KEYS: u64 = 1 << 16;
/// Most tensors of a file; real ones have some thousands.
pub(crate) const MAX_TENSORS: u64 = 1 << 20;
/// How deep arrays may lie in arrays.
pub(crate) const MAX_DEPTH: usize = 4;
/// Where tensor data starts, and each tensor in it, unless `general.alignment` says otherwise.
pub(crate) const DEFAULT_ALIGNMENT: usize = 32;
/// Most dimensions of a tensor.
pub(crate) const MAX_DIMENSIONS: u32 = 4;
/// The key that sets the alignment.
pub(crate) const ALIGNMENT_KEY: &str = "general.alignment";

/// A metadata value's place in the file.
pub(crate) struct Entry {
    pub(crate) key: Box<str>,
    pub(crate) ty: ValueType,
    /// First byte of the value, and the byte after its last.
    pub(crate) start: usize,
    pub(crate) end: usize,
}

/// A tensor as described by one file.
pub(crate) struct RawTensor {
    pub(crate) name: String,
    pub(crate) ty: TensorType,
    /// Outermost first.
    pub(crate) shape: Vec<usize>,
    /// First byte in the file.
    pub(crate) start: usize,
    pub(crate) bytes: usize,
}

/// The part of the header before the tensors' descriptions.
pub(crate) struct Head {
    pub(crate) version: u32,
    pub(crate) entries: Vec<Entry>,
    /// Entries by key.
    pub(crate) sorted: Vec<u32>,
    tensor_count: u64,
    /// Where the tensors' descriptions start.
    end: usize,
}

/// What is being read, for messages.
#[derive(Clone, Copy)]
enum Subject<'a> {
    File,
    Key(&'a str),
    TensorNumber(u64),
    Tensor(&'a str),
}

/// Reads little-endian numbers and strings, and says where it failed.
pub(crate) struct Reader<'a> {
    bytes: &'a [u8],
    pub(crate) at: usize,
    path: &'a Path,
    subject: Subject<'a>,
}

impl<'a> Reader<'a> {
    pub(crate) fn new(bytes: &'a [u8], path: &'a Path) -> Self {
        Reader {
            bytes,
            at: 0,
            path,
            subject: Subject::File,
        }
    }

    fn remaining(&self) -> u64 {
        (self.bytes.len() - self.at) as u64
    }

    #[cold]
    fn malformed(
        &self,
        at: usize,
        what: &str,
        found: impl Into<String>,
        expected: impl Into<String>,
    ) -> Error {
        let what = match self.subject {
            Subject::File => what.into(),
            Subject::Key(key) => format!("{what} of key {}", shown(key)),
            Subject::TensorNumber(number) => format!("{what} of tensor number {number}"),
            Subject::Tensor(name) => format!("{what} of tensor {}", shown(name)),
        };
        Error::Malformed {
            path: self.path.into(),
            offset: at as u64,
            what,
            found: found.into(),
            expected: expected.into(),
        }
    }

    #[cold]
    fn ended(&self, what: &str, wanted: u64) -> Error {
        self.malformed(
            self.at,
            what,
            format!("the end of the file after {} bytes", self.remaining()),
            format!("{wanted} bytes"),
        )
    }

    #[inline]
    fn array<const N: usize>(&mut self, what: &str) -> Result<[u8; N], Error> {
        match self.bytes.get(self.at..).and_then(<[u8]>::first_chunk::<N>) {
            Some(bytes) => {
                self.at += N;
                Ok(*bytes)
            }
            None => Err(self.ended(what, N as u64)),
        }
    }

    #[inline]
    fn u32(&mut self, what: &str) -> Result<u32, Error> {
        self.array(what).map(u32::from_le_bytes)
    }

    #[inline]
    fn u64(&mut self, what: &str) -> Result<u64, Error> {
        self.array(what).map(u64::from_le_bytes)
    }

    /// A string's bytes, at most `cap` of them.
    #[inline]
    fn string(&mut self, what: &str, cap: u64) -> Result<&'a [u8], Error> {
        let at = self.at;
        let length = self.u64(what)?;
        if length > cap {
            return Err(self.malformed(
                at,
                what,
                format!("a string of {length} bytes"),
                format!("at most {cap}"),
            ));
        }
        if length > self.remaining() {
            let found = format!("a string of {length} bytes");
            return Err(self.malformed(
                at,
                what,
                found,
                format!("at most the {} left in the file", self.remaining()),
            ));
        }
        let start = self.at;
        self.at += length as usize;
        Ok(&self.bytes[start..self.at])
    }

    /// A string that must be UTF-8.
    fn text(&mut self, what: &str, cap: u64) -> Result<&'a str, Error> {
        let at = self.at;
        let bytes = self.string(what, cap)?;
        std::str::from_utf8(bytes).map_err(|_| {
            self.malformed(
                at + 8,
                what,
                format!("\"{}\"", shown_bytes(bytes)),
                "valid UTF-8",
            )
        })
    }

    fn value_type(&mut self, what: &str) -> Result<ValueType, Error> {
        let at = self.at;
        let id = self.u32(what)?;
        ValueType::from_id(id)
            .ok_or_else(|| self.malformed(at, what, id.to_string(), "a metadata type, 0 to 12"))
    }

    /// Hops over a value, checking all lengths in it.
    fn skip(&mut self, ty: ValueType, depth: usize) -> Result<(), Error> {
        if let Some(size) = ty.size() {
            return self.skip_bytes(size as u64, "value");
        }
        if ty == ValueType::String {
            return self.string("value", MAX_STRING).map(|_| ());
        }
        let at = self.at;
        if depth == MAX_DEPTH {
            return Err(self.malformed(
                at,
                "value",
                "an array inside too many arrays",
                format!("at most {MAX_DEPTH} levels"),
            ));
        }
        let element = self.value_type("array's element type")?;
        let at = self.at;
        let count = self.u64("array's length")?;
        // A string takes at least its length, an array its element type and length.
        let least = element
            .size()
            .unwrap_or(if element == ValueType::String { 8 } else { 12 })
            as u64;
        if count > self.remaining() / least {
            let found = format!("{count} elements of type {}", element.name());
            let expected = format!(
                "at most {}, the file has {} bytes left",
                self.remaining() / least,
                self.remaining()
            );
            return Err(self.malformed(at, "array's length", found, expected));
        }
        match element.size() {
            Some(size) => self.skip_bytes(count * size as u64, "array"),
            None if element == ValueType::String => self.skip_strings(count),
            None => {
                for _ in 0..count {
                    self.skip(element, depth + 1)?;
                }
                Ok(())
            }
        }
    }

    /// Hops over an array's strings: a vocabulary has hundreds of thousands, and each length must be read before the next
    /// can be. So it goes by stretches, in several places at once where [`hop`] can.
    fn skip_strings(&mut self, count: u64) -> Result<(), Error> {
        let mut left = count;
        while left > 0 {
            let until = self.at.saturating_add(LANES * STRIDE);
            if let Some((strings, end)) = hop(self.bytes, self.at)
                && strings <= left
            {
                left -= strings;
                self.at = end;
                continue;
            }
            while left > 0 && self.at < until {
                self.string("array's string", MAX_STRING)?;
                left -= 1;
            }
        }
        Ok(())
    }

    fn skip_bytes(&mut self, count: u64, what: &str) -> Result<(), Error> {
        if count > self.remaining() {
            return Err(self.ended(what, count));
        }
        self.at += count as usize;
        Ok(())
    }
}

/// In how many places [`hop`] works at once, and the bytes between them.
const LANES: usize = 4;
const STRIDE: usize = 16 << 10;

/// Hops over the strings that start in the `LANES * STRIDE` bytes from `at` on: their number, and the end of the last.
///
/// It guesses where strings start further on, hops from there too, and proves each guess by arriving there from before; so the
/// answer is that of hopping over one string after the other. `None` when a guess is wrong, a length is out of bounds, or the
/// bytes end: then the caller does just that, and says what is wrong.
fn hop(bytes: &[u8], at: usize) -> Option<(u64, usize)> {
    let end = at.checked_add(LANES * STRIDE)?;
    // A length that starts before the end can be read.
    let head = bytes.get(..end.checked_add(8)?)?;
    let mut places = [at; LANES];
    let mut ends = [end; LANES];
    for lane in 1..LANES {
        places[lane] = guess(head, at + lane * STRIDE)?;
        ends[lane - 1] = places[lane];
    }
    let step = |place: usize| {
        let length = length_at(head, place)?;
        (length <= MAX_STRING).then(|| place + 8 + length as usize)
    };
    let mut strings = 0;
    while (0..LANES).all(|lane| places[lane] < ends[lane]) {
        for place in &mut places {
            *place = step(*place)?;
        }
        strings += LANES as u64;
    }
    for (place, end) in places.iter_mut().zip(ends) {
        while *place < end {
            *place = step(*place)?;
            strings += 1;
        }
    }
    let proven = (1..LANES).all(|lane| places[lane - 1] == ends[lane - 1]);
    let last = places[LANES - 1];
    (proven && last <= bytes.len()).then_some((strings, last))
}

/// The first place at or behind `from`, not far away, that looks like the start of a string: eight bytes that make a small
/// number. Of several in a row it is the last: bytes before a length may look like its own lower ones.
fn guess(bytes: &[u8], from: usize) -> Option<usize> {
    let small = |place: &usize| length_at(bytes, *place).is_some_and(|length| length <= MAX_STRING);
    let first = (from..from + STRIDE / 4).find(small)?;
    (first..first + 8).take_while(small).last()
}

#[inline]
fn length_at(bytes: &[u8], place: usize) -> Option<u64> {
    let length = bytes.get(place..)?.first_chunk()?;
    Some(u64::from_le_bytes(*length))
}

/// The end of the value of type `ty` that starts at the head of `bytes`; `None` if it isn't all there.
pub(crate) fn value_length(bytes: &[u8], ty: ValueType) -> Option<usize> {
    let mut reader = Reader::new(bytes, Path::new(""));
    reader.skip(ty, 0).ok()?;
    Some(reader.at)
}

/// Reads the fixed header and the metadata. The caller has seen the magic.
pub(crate) fn read_head(bytes: &[u8], path: &Path) -> Result<Head, Error> {
    let mut reader = Reader::new(bytes, path);
    reader.skip_bytes(4, "magic")?;
    let version = reader.u32("version")?;
    if version != 2 && version != 3 {
        let swapped = version.swap_bytes();
        let found = if (1..=4).contains(&swapped) {
            format!("a big-endian file of version {swapped}")
        } else {
            format!("version {version}")
        };
        return Err(Error::Version {
            path: path.into(),
            found,
        });
    }
    let tensors_at = reader.at;
    let tensor_count = reader.u64("tensor count")?;
    let metadata_at = reader.at;
    let metadata_count = reader.u64("metadata count")?;
    // The least a description takes: an empty string, and a type and one byte, or one dimension, a type and an offset.
    for (at, what, count, least, cap) in [
        (tensors_at, "tensor count", tensor_count, 32, MAX_TENSORS),
        (metadata_at, "metadata count", metadata_count, 13, MAX_KEYS),
    ] {
        let fit = reader.remaining() / least;
        if count > fit {
            let expected = format!(
                "at most {fit}, the file has {} bytes left",
                reader.remaining()
            );
            return Err(reader.malformed(at, what, count.to_string(), expected));
        }
        if count > cap {
            return Err(reader.malformed(at, what, count.to_string(), format!("at most {cap}")));
        }
    }

    let mut entries = Vec::new();
    for _ in 0..metadata_count {
        reader.subject = Subject::File;
        let key_at = reader.at;
        let key = reader.text("metadata key", MAX_NAME)?;
        if key.is_empty() {
            return Err(reader.malformed(key_at, "metadata key", "an empty string", "a name"));
        }
        reader.subject = Subject::Key(key);
        let ty = reader.value_type("type")?;
        let start = reader.at;
        reader.skip(ty, 0)?;
        if ty == ValueType::Bool && bytes[start] > 1 {
            return Err(reader.malformed(start, "bool", bytes[start].to_string(), "0 or 1"));
        }
        entries.push(Entry {
            key: key.into(),
            ty,
            start,
            end: reader.at,
        });
    }
    let sorted = index(entries.len(), |i| &entries[i].key);
    if let Some(twice) = repeated(&sorted, |i| &entries[i].key) {
        return Err(Error::Key {
            path: path.into(),
            key: shown(&entries[twice].key),
            found: "the key twice".into(),
            expected: "each key once".into(),
        });
    }
    Ok(Head {
        version,
        entries,
        sorted,
        tensor_count,
        end: reader.at,
    })
}

impl Head {
    /// Reads the tensors' descriptions and checks that their data lies in the file, in no other's place.
    pub(crate) fn read_tensors(&self, bytes: &[u8], path: &Path) -> Result<Vec<RawTensor>, Error> {
        let alignment = self.alignment(bytes, path)?;
        let mut reader = Reader::new(bytes, path);
        reader.at = self.end;
        let mut tensors = Vec::new();
        for number in 0..self.tensor_count {
            reader.subject = Subject::TensorNumber(number);
            tensors.push(read_tensor(&mut reader)?);
        }
        let data = (reader.at as u64).checked_next_multiple_of(alignment as u64);
        let Some(data) = data else {
            return Err(reader.ended("data", alignment as u64));
        };

        for tensor in &mut tensors {
            let fail = |found: String, expected: String| Error::Tensor {
                path: path.into(),
                tensor: shown(&tensor.name),
                found,
                expected,
            };
            // `start` holds the offset from the start of the data until here.
            let offset = tensor.start as u64;
            if !offset.is_multiple_of(alignment as u64) {
                return Err(fail(
                    format!("offset {offset}"),
                    format!("a multiple of the alignment {alignment}"),
                ));
            }
            let start = data.checked_add(offset);
            let end = start.and_then(|start| start.checked_add(tensor.bytes as u64));
            let (Some(start), Some(end)) = (start, end) else {
                return Err(fail(
                    format!("offset {offset}"),
                    "an offset in the file".into(),
                ));
            };
            if end > bytes.len() as u64 {
                return Err(fail(
                    format!("a file of {} bytes", bytes.len()),
                    format!(
                        "at least {end}: {} bytes of data at offset {start} (is the file cut short?)",
                        tensor.bytes
                    ),
                ));
            }
            tensor.start = start as usize;
        }

        let mut places: Vec<usize> = (0..tensors.len()).collect();
        places.sort_unstable_by_key(|i| tensors[*i].start);
        for pair in places.windows(2) {
            let (before, after) = (&tensors[pair[0]], &tensors[pair[1]]);
            if before.start + before.bytes > after.start {
                return Err(Error::Tensor {
                    path: path.into(),
                    tensor: shown(&after.name),
                    found: format!(
                        "data at offset {}, inside that of {}",
                        after.start,
                        shown(&before.name)
                    ),
                    expected: "data of its own".into(),
                });
            }
        }
        Ok(tensors)
    }

    /// Tensors that the file describes.
    pub(crate) fn tensor_count(&self) -> u64 {
        self.tensor_count
    }

    /// The value of a key that must be a whole number, not negative.
    pub(crate) fn integer(
        &self,
        bytes: &[u8],
        path: &Path,
        key: &str,
    ) -> Result<Option<u64>, Error> {
        let Some(at) = find(&self.sorted, |i| &self.entries[i].key, key) else {
            return Ok(None);
        };
        let entry = &self.entries[at];
        let value =
            decode(entry.ty, &bytes[entry.start..entry.end], path, key).map(|(value, _)| value);
        match value.and_then(|value| value.int()) {
            Some(value) => Ok(Some(value)),
            None => Err(Error::Key {
                path: path.into(),
                key: key.into(),
                found: value.map_or_else(String::new, |value| value.described()),
                expected: "an unsigned integer".into(),
            }),
        }
    }

    fn alignment(&self, bytes: &[u8], path: &Path) -> Result<usize, Error> {
        let Some(entry) = self
            .entries
            .iter()
            .find(|entry| &*entry.key == ALIGNMENT_KEY)
        else {
            return Ok(DEFAULT_ALIGNMENT);
        };
        let fail = |found: String| Error::Key {
            path: path.into(),
            key: ALIGNMENT_KEY.into(),
            found,
            expected: "u32, a power of two from 8 to 1048576".into(),
        };
        if entry.ty != ValueType::U32 {
            return Err(fail(format!("type {}", entry.ty.name())));
        }
        let value = bytes[entry.start..]
            .first_chunk()
            .map_or(0, |bytes| u32::from_le_bytes(*bytes));
        if is_alignment(value as usize) {
            Ok(value as usize)
        } else {
            Err(fail(value.to_string()))
        }
    }
}

/// The format wants a multiple of 8; a power of two is what every writer uses and what offsets can be rounded to.
pub(crate) fn is_alignment(value: usize) -> bool {
    value.is_power_of_two() && (8..=1 << 20).contains(&value)
}

/// One description; `start` is still the offset from the start of the data.
fn read_tensor(reader: &mut Reader<'_>) -> Result<RawTensor, Error> {
    let name_at = reader.at;
    let name = reader.text("name", MAX_NAME)?;
    if name.is_empty() {
        return Err(reader.malformed(name_at, "name", "an empty string", "a name"));
    }
    reader.subject = Subject::Tensor(name);
    let path = reader.path;
    let fail = |found: String, expected: String| Error::Tensor {
        path: path.into(),
        tensor: shown(name),
        found,
        expected,
    };
    let dimensions = reader.u32("number of dimensions")?;
    if !(1..=MAX_DIMENSIONS).contains(&dimensions) {
        return Err(fail(
            format!("{dimensions} dimensions"),
            format!("1 to {MAX_DIMENSIONS}"),
        ));
    }
    let mut shape = Vec::with_capacity(dimensions as usize);
    let mut elements = Some(1_u64);
    for dimension in 0..dimensions {
        let length = reader.u64("dimension")?;
        if length == 0 {
            return Err(fail(
                format!("dimension {dimension} of length 0"),
                "at least 1".into(),
            ));
        }
        elements = elements.and_then(|elements| elements.checked_mul(length));
        shape.push(length);
    }
    let shown_shape = || format!("dimensions {shape:?}");
    let too_many = || fail(shown_shape(), "a size that 64 bits can count".into());
    let id = reader.u32("type")?;
    let Some(ty) = TensorType::from_ggml(id) else {
        let found = ggml_name(id).map_or_else(|| format!("number {id}"), |known| known.into());
        return Err(Error::UnsupportedType {
            path: reader.path.into(),
            tensor: shown(name),
            found,
        });
    };
    let block = ty.block_elems() as u64;
    if !shape[0].is_multiple_of(block) {
        return Err(fail(
            shown_shape(),
            format!("a first dimension divisible by {block}, the block length of {ty}"),
        ));
    }
    let bytes = elements.ok_or_else(too_many)? / block;
    let bytes = bytes
        .checked_mul(ty.block_bytes() as u64)
        .ok_or_else(too_many)?;
    let offset = reader.u64("offset")?;
    let small = |value: u64| usize::try_from(value).map_err(|_| too_many());
    let raw = RawTensor {
        name: name.into(),
        ty,
        shape: shape
            .iter()
            .rev()
            .map(|length| small(*length))
            .collect::<Result<_, _>>()?,
        start: small(offset)?,
        bytes: small(bytes)?,
    };
    Ok(raw)
}

/// The numbers below `count`, ordered by name.
pub(crate) fn index<'a>(count: usize, name: impl Fn(usize) -> &'a str) -> Vec<u32> {
    let mut sorted: Vec<u32> = (0..count as u32).collect();
    sorted.sort_unstable_by(|a, b| name(*a as usize).cmp(name(*b as usize)));
    sorted
}

/// The later of two things of one name, if there are such.
pub(crate) fn repeated<'a>(sorted: &[u32], name: impl Fn(usize) -> &'a str) -> Option<usize> {
    let twice = sorted
        .windows(2)
        .find(|pair| name(pair[0] as usize) == name(pair[1] as usize))?;
    Some(twice[0].max(twice[1]) as usize)
}

/// Looks a name up in an [`index`].
pub(crate) fn find<'a>(
    sorted: &[u32],
    name: impl Fn(usize) -> &'a str,
    wanted: &str,
) -> Option<usize> {
    let at = sorted
        .binary_search_by(|i| name(*i as usize).cmp(wanted))
        .ok()?;
    Some(sorted[at] as usize)
}
