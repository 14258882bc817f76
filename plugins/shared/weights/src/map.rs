//! Read-only bytes of a file, mapped; and what a file is that isn't GGUF.

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
        let file = open_regular(path)?;
        let length = file.metadata().map_err(|cause| io(path, cause))?.len();
        if length == 0 {
            return Err(Error::NotGguf {
                path: path.into(),
                found: "an empty file".into(),
            });
        }
        // SAFETY: the mapping is read-only and private to this process's view of a regular file. That nobody shortens or
        // rewrites the file while it is mapped can't be enforced; it is the invariant stated in the crate's documentation.
        let map = unsafe { memmap2::Mmap::map(&file) }.map_err(|cause| io(path, cause))?;
        let map = Map(map);
        map.check_magic(path)?;
        Ok(map)
    }

    /// Copies bytes into memory with the alignment of a mapped file. `path` is for messages.
    pub(crate) fn from_bytes(path: &Path, bytes: &[u8]) -> Result<Self, Error> {
        let mut copy =
            memmap2::MmapMut::map_anon(bytes.len().max(1)).map_err(|cause| io(path, cause))?;
        copy[..bytes.len()].copy_from_slice(bytes);
        let map = copy.make_read_only().map_err(|cause| io(path, cause))?;
        if bytes.is_empty() {
            return Err(Error::NotGguf {
                path: path.into(),
                found: "an empty file".into(),
            });
        }
        let map = Map(map);
        map.check_magic(path)?;
        Ok(map)
    }

    /// Asks the system to read the whole file ahead. Failing to is no error: pages then come when they are first touched.
    pub(crate) fn prefetch(&self) {
        #[cfg(unix)]
        let _ = self.0.advise(memmap2::Advice::WillNeed);
    }

    fn check_magic(&self, path: &Path) -> Result<(), Error> {
        if self.starts_with(MAGIC) {
            return Ok(());
        }
        Err(Error::NotGguf {
            path: path.into(),
            found: describe(self),
        })
    }
}

/// Whether a regular file begins with the GGUF magic.
pub(crate) fn has_magic(path: &Path) -> bool {
    let mut head = [0; 4];
    open_regular(path).is_ok_and(|mut file| file.read_exact(&mut head).is_ok() && head == *MAGIC)
}

/// Opens a file after seeing that it is one: opening a pipe would wait for its other end.
fn open_regular(path: &Path) -> Result<File, Error> {
    let kind = std::fs::metadata(path)
        .map_err(|cause| io(path, cause))?
        .file_type();
    if kind.is_dir() {
        return Err(Error::NotGguf {
            path: path.into(),
            found: "a directory".into(),
        });
    }
    if !kind.is_file() {
        return Err(Error::NotGguf {
            path: path.into(),
            found: "a pipe, socket or device".into(),
        });
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
fn describe(bytes: &[u8]) -> String {
    const SIGNATURES: &[(&[u8], &str)] = &[
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
    if is_safetensors(bytes) {
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

fn is_safetensors(bytes: &[u8]) -> bool {
    let Some((length, rest)) = bytes.split_first_chunk::<8>() else {
        return false;
    };
    u64::from_le_bytes(*length) <= rest.len() as u64 && rest.starts_with(b"{")
}
