//! Where fixtures are, and a builder of files that no writer would write.

use std::path::{Path, PathBuf};

use backplane_weights::{Error, Weights};

fn workspace() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..")
}

pub(crate) fn fixtures() -> PathBuf {
    let path = std::env::var_os("BACKPLANE_FIXTURES")
        .map_or_else(|| workspace().join("../shared/fixtures"), PathBuf::from);
    assert!(
        path.is_dir(),
        "no fixtures at {} (set BACKPLANE_FIXTURES)",
        path.display()
    );
    path
}

pub(crate) fn real_model(name: &str) -> PathBuf {
    let folder = std::env::var_os("BACKPLANE_TEST_MODELS")
        .map_or_else(|| workspace().join("cache/models"), PathBuf::from);
    let path = folder.join(name);
    assert!(
        path.is_file(),
        "no model at {} (set BACKPLANE_TEST_MODELS)",
        path.display()
    );
    path
}

/// Opens bytes as `model.gguf`.
pub(crate) fn open(bytes: &[u8]) -> Result<Weights, Error> {
    Weights::from_bytes("model.gguf".as_ref(), bytes)
}

/// Opens bytes that must be refused, with a message in one line that names the file and holds all `parts`.
#[track_caller]
pub(crate) fn refused(bytes: &[u8], parts: &[&str]) {
    says(
        &open(bytes).expect_err("must be refused"),
        "model.gguf",
        parts,
    );
}

#[track_caller]
pub(crate) fn says(error: &Error, file: &str, parts: &[&str]) {
    let message = error.to_string();
    assert!(!message.contains('\n'), "more than one line: {message}");
    for part in [file].iter().chain(parts) {
        assert!(message.contains(part), "no `{part}` in: {message}");
    }
}

pub(crate) const U8: u32 = 0;
pub(crate) const U32: u32 = 4;
pub(crate) const I32: u32 = 5;
pub(crate) const BOOL: u32 = 7;
pub(crate) const STRING: u32 = 8;
pub(crate) const ARRAY: u32 = 9;

/// A file put together by hand.
#[derive(Clone, Default)]
pub(crate) struct Raw(pub(crate) Vec<u8>);

impl Raw {
    pub(crate) fn new(version: u32, tensors: u64, keys: u64) -> Self {
        Raw(b"GGUF".to_vec()).u32(version).u64(tensors).u64(keys)
    }

    pub(crate) fn u8(self, value: u8) -> Self {
        self.bytes(&[value])
    }

    pub(crate) fn u32(self, value: u32) -> Self {
        self.bytes(&value.to_le_bytes())
    }

    pub(crate) fn u64(self, value: u64) -> Self {
        self.bytes(&value.to_le_bytes())
    }

    pub(crate) fn bytes(mut self, bytes: &[u8]) -> Self {
        self.0.extend(bytes);
        self
    }

    pub(crate) fn string(self, text: impl AsRef<[u8]>) -> Self {
        self.u64(text.as_ref().len() as u64).bytes(text.as_ref())
    }

    pub(crate) fn key(self, key: &str, ty: u32) -> Self {
        self.string(key).u32(ty)
    }

    /// `dimensions` innermost first, as stored.
    pub(crate) fn tensor(self, name: &str, dimensions: &[u64], ty: u32, offset: u64) -> Self {
        let raw = self.string(name).u32(dimensions.len() as u32);
        dimensions
            .iter()
            .fold(raw, |raw, length| raw.u64(*length))
            .u32(ty)
            .u64(offset)
    }

    pub(crate) fn pad(mut self, alignment: usize) -> Self {
        self.0.resize(self.0.len().next_multiple_of(alignment), 0);
        self
    }

    #[track_caller]
    pub(crate) fn refused(&self, parts: &[&str]) {
        refused(&self.0, parts);
    }
}
