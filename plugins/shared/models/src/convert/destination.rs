//! The file that a model is written to: beside its destination until it is whole.

use crate::ModelError;
use backplane_weights::{Error, Weights};
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

/// A file in the making. Dropped before [`finish`](Self::finish) it leaves nothing behind.
pub(super) struct Destination {
    path: PathBuf,
    partial: PathBuf,
    replace: bool,
    file: BufWriter<File>,
    moved: bool,
}

impl Destination {
    /// Checks that a file may be written here, and makes the one beside it.
    pub(super) fn new(path: &Path, weights: &Weights, replace: bool) -> Result<Self, ModelError> {
        let Some(name) = path.file_name() else {
            return Err(refused(path, "no name of a file", "a file to write"));
        };
        check(path, weights, replace)?;
        // Conversions of one process to one destination don't share a file.
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let mut hidden = std::ffi::OsString::from(".");
        hidden.push(name);
        hidden.push(format!(
            ".partial-{}-{}",
            std::process::id(),
            NUMBER.fetch_add(1, Ordering::Relaxed)
        ));
        let partial = path.with_file_name(hidden);
        let file = File::create_new(&partial).map_err(|cause| io(&partial, cause))?;
        Ok(Self {
            path: path.into(),
            partial,
            replace,
            file: BufWriter::with_capacity(1 << 20, file),
            moved: false,
        })
    }

    /// The path of the file that is written, for messages.
    pub(super) fn written_path(&self) -> &Path {
        &self.partial
    }

    pub(super) fn file(&mut self) -> &mut BufWriter<File> {
        &mut self.file
    }

    /// Moves the file to its destination, once all of it is on the disk.
    pub(super) fn finish(mut self, weights: &Weights) -> Result<(), ModelError> {
        let written = self
            .file
            .flush()
            .and_then(|()| self.file.get_ref().sync_all());
        written.map_err(|cause| io(&self.partial, cause))?;
        // Something may have come there in the meantime.
        check(&self.path, weights, self.replace)?;
        std::fs::rename(&self.partial, &self.path).map_err(|cause| io(&self.path, cause))?;
        self.moved = true;
        #[cfg(unix)]
        if let Some(folder) = self.path.parent() {
            let folder = if folder.as_os_str().is_empty() {
                Path::new(".")
            } else {
                folder
            };
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

/// Whether a file may come to be here.
fn check(path: &Path, weights: &Weights, replace: bool) -> Result<(), ModelError> {
    let kind = match std::fs::metadata(path) {
        Ok(metadata) => metadata.file_type(),
        Err(cause) if cause.kind() == std::io::ErrorKind::NotFound => return Ok(()),
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
    let place = |path: &Path| path.canonicalize().ok();
    let own = weights
        .files()
        .iter()
        .any(|file| place(file) == place(path));
    if own {
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
