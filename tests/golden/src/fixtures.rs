//! Where the references and the real models are.

use serde_json::Value;
use std::path::{Path, PathBuf};

fn workspace_root() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
}

/// The folder of the references: `BACKPLANE_FIXTURES`, else `shared/fixtures` beside the workspace.
#[must_use]
pub fn fixtures_dir() -> PathBuf {
    std::env::var_os("BACKPLANE_FIXTURES").map_or_else(
        || workspace_root().join("../shared/fixtures"),
        PathBuf::from,
    )
}

/// A file of the references, which must be there.
///
/// # Panics
/// It is not.
#[must_use]
pub fn fixture(relative: &str) -> PathBuf {
    let path = fixtures_dir().join(relative);
    assert!(path.is_file(), "fixture {} is missing", path.display());
    path
}

/// The file of a real model, `smollm2-135m` or `gemma3-270m`, which must be there: in `BACKPLANE_TEST_MODELS`, else in the
/// workspace's `cache/models`.
///
/// # Panics
/// It is not, or the name is another.
#[must_use]
pub fn real_model_path(model: &str) -> PathBuf {
    let file = match model {
        "smollm2-135m" => "SmolLM2-135M-Instruct.Q4_1.gguf",
        "gemma3-270m" => "gemma-3-270m.Q4_K_M.gguf",
        other => panic!("no real model {other}"),
    };
    let folder = std::env::var_os("BACKPLANE_TEST_MODELS")
        .map_or_else(|| workspace_root().join("cache/models"), PathBuf::from);
    let path = folder.join(file);
    assert!(path.is_file(), "model {} is missing", path.display());
    path
}

/// Reads a reference. JSON of the fixtures is trusted: a surprise in it panics.
pub(crate) fn read_json(relative: &str) -> Value {
    let path = fixture(relative);
    let text = std::fs::read_to_string(&path)
        .unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

pub(crate) fn list<'a>(value: &'a Value, key: &str) -> &'a [Value] {
    value[key]
        .as_array()
        .unwrap_or_else(|| panic!("reference has no array {key}"))
}

pub(crate) fn floats(values: &[Value]) -> Vec<f32> {
    values
        .iter()
        .map(|value| {
            value
                .as_f64()
                .unwrap_or_else(|| panic!("reference: {value} is no number")) as f32
        })
        .collect()
}

pub(crate) fn ids(values: &[Value]) -> Vec<u32> {
    let id = |value: &Value| value.as_u64().and_then(|id| u32::try_from(id).ok());
    values
        .iter()
        .map(|value| id(value).unwrap_or_else(|| panic!("reference: {value} is no id")))
        .collect()
}
