//! The file that a model is written to: beside its destination until it is whole.

use crate::ModelError;
use backplane_weights::{Error, Weights};
use std::collections::BTreeSet;
use std::fs::File;
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

/// A file in the making. Dropped before [`finish`](Self::finish) it leaves nothing behind.
pub(super) struct Destination {
    path: PathBuf,
    partial: PathBuf,
    replace: bool,
    file: Blocks<File>,
    moved: bool,
}

impl Destination {
    /// Checks that a file may be written here, and makes the one beside it.
    pub(super) fn new(path: &Path, weights: &Weights, replace: bool) -> Result<Self, ModelError> {
        let Some(name) = path.file_name() else {
            return Err(refused(path, "no name of a file", "a file to write"));
        };
        check(path, weights, replace)?;
        let folder = folder(path);
        match std::fs::metadata(folder) {
            Ok(metadata) if metadata.is_dir() => {}
            Ok(_) => return Err(refused(folder, "no folder", "a folder")),
            Err(cause) if cause.kind() == ErrorKind::NotFound => {
                return Err(refused(folder, "nothing", "a folder"));
            }
            Err(cause) => return Err(io(folder, cause)),
        }
        // Conversions of one process to one destination don't share a file.
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let partial = path.with_file_name(format!(
            ".{}.partial-{}-{}",
            shortened(&name.to_string_lossy()),
            std::process::id(),
            NUMBER.fetch_add(1, Ordering::Relaxed)
        ));
        let file = File::create_new(&partial).map_err(|cause| io(path, cause))?;
        Ok(Self {
            path: path.into(),
            partial,
            replace,
            file: Blocks::new(file),
            moved: false,
        })
    }

    /// The path of the file that is written, for messages.
    pub(super) fn written_path(&self) -> &Path {
        &self.partial
    }

    pub(super) fn file(&mut self) -> &mut Blocks<File> {
        &mut self.file
    }

    /// Moves the file to its destination, once all of it is on the disk.
    pub(super) fn finish(mut self, weights: &Weights) -> Result<(), ModelError> {
        let written = self.file.flush().and_then(|()| self.file.out.sync_all());
        written.map_err(|cause| io(&self.partial, cause))?;
        // Something may have come there in the meantime.
        check(&self.path, weights, self.replace)?;
        std::fs::rename(&self.partial, &self.path).map_err(|cause| io(&self.path, cause))?;
        self.moved = true;
        #[cfg(unix)]
        {
            let folder = folder(&self.path);
            let synced = File::open(folder).and_then(|folder| folder.sync_all());
            synced.map_err(|cause| io(folder, cause))?;
        }
        Ok(())
    }
}

impl Drop for Destination {
    fn drop(&mut self) {
        if !self.moved {
            let _ = std::fs::remove_file(&self.partial);
        }
    }
}

/// Writes blocks of 2 MiB, each where a multiple of that begins: what the system then keeps of the file lies in large pages, which engines map.
pub(super) struct Blocks<W> {
    out: W,
    block: Vec<u8>,
}

impl<W: Write> Blocks<W> {
    const BYTES: usize = 2 << 20;

    fn new(out: W) -> Self {
        Self {
            out,
            block: Vec::with_capacity(Self::BYTES),
        }
    }

    fn write_block(&mut self) -> std::io::Result<()> {
        self.out.write_all(&self.block)?;
        self.block.clear();
        Ok(())
    }
}

impl<W: Write> Write for Blocks<W> {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        let room = Self::BYTES - self.block.len();
        let taken = &bytes[..room.min(bytes.len())];
        self.block.extend_from_slice(taken);
        if self.block.len() == Self::BYTES {
            self.write_block()?;
        }
        Ok(taken.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.write_block()?;
        self.out.flush()
    }
}

/// The folder that a file is in.
fn folder(path: &Path) -> &Path {
    match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    }
}

/// As much of a name as leaves room for more beside it: file systems have names of 255 bytes.
fn shortened(name: &str) -> &str {
    &name[..name.floor_char_boundary(128)]
}

/// The files that make up a model, by their places: those with its tensors, and in a directory also what describes them.
fn own_files(weights: &Weights) -> Vec<PathBuf> {
    let mut own = weights.files().to_vec();
    let safetensors = |file: &PathBuf| file.extension().is_some_and(|it| it == "safetensors");
    let folders: BTreeSet<&Path> = own
        .iter()
        .filter(|it| safetensors(it))
        .map(|it| folder(it))
        .collect();
    let described: Vec<PathBuf> = folders
        .into_iter()
        .chain(weights.path().is_dir().then(|| weights.path()))
        .filter_map(|folder| folder.read_dir().ok())
        .flatten()
        .flatten()
        .filter(|entry| describes(&entry.file_name().to_string_lossy()))
        .map(|entry| entry.path())
        .collect();
    own.extend(described);
    own.iter().filter_map(|it| it.canonicalize().ok()).collect()
}

/// Whether a file of this name beside tensors is part of the model.
fn describes(name: &str) -> bool {
    let ending = name.rsplit_once('.').map_or("", |(_, ending)| ending);
    ["json", "jinja", "model", "safetensors"].contains(&ending)
        || name.starts_with("tokenizer")
        || ["merges.txt", "vocab.txt"].contains(&name)
}

/// Whether a file may come to be here.
fn check(path: &Path, weights: &Weights, replace: bool) -> Result<(), ModelError> {
    let kind = match std::fs::metadata(path) {
        Ok(metadata) => metadata.file_type(),
        Err(cause) if cause.kind() == ErrorKind::NotFound => return Ok(()),
        Err(cause) => return Err(io(path, cause)),
    };
    if kind.is_dir() {
        return Err(refused(path, "a directory", "the name of a file"));
    }
    if !kind.is_file() {
        return Err(refused(
            path,
            "a pipe, socket or device",
            "the name of a file",
        ));
    }
    let place = path.canonicalize().map_err(|cause| io(path, cause))?;
    if own_files(weights).contains(&place) {
        return Err(refused(path, "a file of the model itself", "another file"));
    }
    if !replace {
        return Err(refused(
            path,
            "a file",
            "no file yet, or leave to replace it",
        ));
    }
    Ok(())
}

fn refused(path: &Path, found: &'static str, expected: &'static str) -> ModelError {
    ModelError::Destination {
        path: path.into(),
        found,
        expected,
    }
}

fn io(path: &Path, cause: std::io::Error) -> ModelError {
    ModelError::Weights(Error::Io {
        path: path.into(),
        cause,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Keeps what each write was given.
    #[derive(Default)]
    struct Writes(Vec<Vec<u8>>);

    impl Write for Writes {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.push(bytes.to_vec());
            Ok(bytes.len())
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_file_is_written_in_whole_blocks() {
        let bytes: Vec<u8> = (0..5 << 20).map(|at: u32| (at % 251) as u8).collect();
        let mut blocks = Blocks::new(Writes::default());
        for piece in bytes.chunks(700_001) {
            blocks.write_all(piece).unwrap();
        }
        blocks.flush().unwrap();
        let sizes: Vec<usize> = blocks.out.0.iter().map(Vec::len).collect();
        assert_eq!(sizes, [2 << 20, 2 << 20, 1 << 20]);
        assert!(blocks.out.0.concat() == bytes);
    }
}
