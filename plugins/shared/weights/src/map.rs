//! Read-only bytes of a file, mapped; and what a file is that isn't the model it should be.

use std::fs::File;
use std::io::Read;
use std::ops::Deref;
use std::path::Path;

use crate::error::{Error, shown_bytes};

/// The first four bytes of every GGUF file.
pub(crate) const MAGIC: &[u8; 4] = b"GGUF";

/// Read-only bytes that stay at one address; page-aligned.
pub(crate) struct Map(memmap2::Mmap);

impl Deref for Map {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.0
    }
}

impl Map {
    /// Maps a file that begins with the GGUF magic.
    pub(crate) fn open(path: &Path) -> Result<Self, Error> {
        let map = Self::open_any(path, not_gguf)?;
        map.check_magic(path)?;
        Ok(map)
    }

    /// Maps a file that isn't empty; `refuse` makes the error for what is no such file.
    pub(crate) fn open_any(path: &Path, refuse: fn(&Path, String) -> Error) -> Result<Self, Error> {
        let file = open_regular(path, refuse)?;
        let length = file.metadata().map_err(|cause| io(path, cause))?.len();
        if length == 0 {
            return Err(refuse(path, "an empty file".into()));
        }
        // SAFETY: the mapping is read-only and private to this process's view of a regular file. That nobody shortens or
        // rewrites the file while it is mapped can't be enforced; it is the invariant stated in the crate's documentation.
        let map = unsafe { memmap2::Mmap::map(&file) }.map_err(|cause| io(path, cause))?;
        Ok(Map(map))
    }

    /// Copies bytes that begin with the GGUF magic into memory with the alignment of a mapped file. `path` is for messages.
    pub(crate) fn from_bytes(path: &Path, bytes: &[u8]) -> Result<Self, Error> {
        let map = Self::copy_of(path, bytes, not_gguf)?;
        map.check_magic(path)?;
        Ok(map)
    }

    /// Copies bytes, which are not none, into memory with the alignment of a mapped file.
    pub(crate) fn copy_of(
        path: &Path,
        bytes: &[u8],
        refuse: fn(&Path, String) -> Error,
    ) -> Result<Self, Error> {
        if bytes.is_empty() {
            return Err(refuse(path, "an empty file".into()));
        }
        let mut copy = memmap2::MmapMut::map_anon(bytes.len()).map_err(|cause| io(path, cause))?;
        copy.copy_from_slice(bytes);
        let map = copy.make_read_only().map_err(|cause| io(path, cause))?;
        Ok(Map(map))
    }

    /// Asks the system to read the whole file ahead, and to map it in large pages where it can. Failing to is no error: pages then come
    /// when they are first touched.
    pub(crate) fn prefetch(&self) {
        #[cfg(target_os = "linux")]
        let _ = self.0.advise(memmap2::Advice::HugePage);
        #[cfg(unix)]
        let _ = self.0.advise(memmap2::Advice::WillNeed);
    }

    fn check_magic(&self, path: &Path) -> Result<(), Error> {
        if self.starts_with(MAGIC) {
            return Ok(());
        }
        Err(not_gguf(path, describe(self)))
    }
}

fn not_gguf(path: &Path, found: String) -> Error {
    Error::NotGguf {
        path: path.into(),
        found,
    }
}

/// Whether a regular file begins with the GGUF magic.
pub(crate) fn has_magic(path: &Path) -> bool {
    let mut head = [0; 4];
    open_regular(path, not_gguf)
        .is_ok_and(|mut file| file.read_exact(&mut head).is_ok() && head == *MAGIC)
}

/// Whether a regular file begins as safetensors do: a length that fits the file, and an opening brace.
pub(crate) fn is_safetensors_file(path: &Path) -> bool {
    let mut head = [0; 9];
    let Ok(mut file) = open_regular(path, not_gguf) else {
        return false;
    };
    let Ok(length) = file.metadata().map(|metadata| metadata.len()) else {
        return false;
    };
    file.read_exact(&mut head).is_ok() && starts_safetensors(&head, length)
}

/// Opens a file after seeing that it is one: opening a pipe would wait for its other end.
fn open_regular(path: &Path, refuse: fn(&Path, String) -> Error) -> Result<File, Error> {
    let kind = std::fs::metadata(path)
        .map_err(|cause| io(path, cause))?
        .file_type();
    if kind.is_dir() {
        return Err(refuse(path, "a directory".into()));
    }
    if !kind.is_file() {
        return Err(refuse(path, "a pipe, socket or device".into()));
    }
    File::open(path).map_err(|cause| io(path, cause))
}

pub(crate) fn io(path: &Path, cause: std::io::Error) -> Error {
    Error::Io {
        path: path.into(),
        cause,
    }
}

/// What a file is, by its first bytes.
pub(crate) fn describe(bytes: &[u8]) -> String {
    const SIGNATURES: &[(&[u8], &str)] = &[
        (MAGIC, "a GGUF file"),
        (
            b"version https://git-lfs",
            "a Git LFS pointer (the model itself was not downloaded: run `git lfs pull`)",
        ),
        (
            b"PK\x03\x04",
            "a zip archive (PyTorch checkpoints are zip archives too)",
        ),
        (b"PK\x05\x06", "an empty zip archive"),
        (b"\x1f\x8b", "a gzip archive"),
        (b"\x28\xb5\x2f\xfd", "a zstd archive"),
        (b"\x80\x02", "a Python pickle (an old PyTorch checkpoint)"),
        (b"\x7fELF", "an ELF executable or library"),
        (b"%PDF", "a PDF document"),
        (
            b"lmgg",
            "a GGML file (the format before GGUF, no longer read)",
        ),
        (
            b"fmgg",
            "a GGMF file (a format before GGUF, no longer read)",
        ),
        (
            b"tjgg",
            "a GGJT file (a format before GGUF, no longer read)",
        ),
        (b"FUGG", "a GGUF file with its magic in reverse byte order"),
    ];
    if let Some((_, name)) = SIGNATURES
        .iter()
        .find(|(signature, _)| bytes.starts_with(signature))
    {
        return (*name).into();
    }
    if starts_safetensors(bytes, bytes.len() as u64) {
        return "a safetensors file".into();
    }
    let head = &bytes[..bytes.len().min(512)];
    let text = head.trim_ascii_start();
    let text = text.strip_prefix(b"\xef\xbb\xbf").unwrap_or(text);
    let lower = text.to_ascii_lowercase();
    if lower.starts_with(b"<!doctype html")
        || lower.starts_with(b"<html")
        || lower.starts_with(b"<head")
    {
        return "an HTML page (a web page was saved in place of the model)".into();
    }
    if head.iter().all(|byte| *byte == 0) {
        return "zeros (an unfinished download?)".into();
    }
    let start = &head[..head.len().min(32)];
    if start
        .iter()
        .all(|byte| !byte.is_ascii_control() || byte.is_ascii_whitespace())
        && text.is_ascii()
    {
        return format!("text that starts with \"{}\"", shown_bytes(start));
    }
    let hex = bytes
        .iter()
        .take(8)
        .map(|byte| format!("{byte:02x}"))
        .collect::<Vec<_>>()
        .join(" ");
    format!("bytes {hex}")
}

/// Whether a file of `length` bytes that begins with `head` is safetensors, by its looks.
fn starts_safetensors(head: &[u8], length: u64) -> bool {
    let Some((header, rest)) = head.split_first_chunk::<8>() else {
        return false;
    };
    rest.starts_with(b"{") && u64::from_le_bytes(*header) <= length - 8
}
