//! Where the fixtures and the real models lie.
#![allow(clippy::unwrap_used)]
#![allow(dead_code)] // each test program uses its part

use std::path::{Path, PathBuf};

use backplane_tokenizer::Tokenizer;
use backplane_tokenizer::hub::{self, Files};
use backplane_weights::Weights;
use backplane_weights::writer::{GgufWriter, OwnedValue};

fn workspace() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../.."))
}

pub(crate) fn fixture(path: &str) -> PathBuf {
    let root = std::env::var_os("BACKPLANE_FIXTURES").map(PathBuf::from);
    root.unwrap_or_else(|| workspace().join("../shared/fixtures"))
        .join(path)
}

pub(crate) fn model(file: &str) -> PathBuf {
    let root = std::env::var_os("BACKPLANE_TEST_MODELS").map(PathBuf::from);
    root.unwrap_or_else(|| workspace().join("cache/models"))
        .join(file)
}

pub(crate) fn json(path: &str) -> serde_json::Value {
    let path = fixture(path);
    let text = std::fs::read_to_string(&path)
        .unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    serde_json::from_str(&text).unwrap()
}

pub(crate) fn open(path: &Path) -> Weights {
    Weights::open(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Each tokenizer of the fixtures with a model that carries it.
pub(crate) const TOKENIZERS: &[(&str, &str)] = &[
    ("tiny-bpe-llama3", "tiny/llama3-gqa/model-f32.gguf"),
    ("tiny-bpe-qwen2", "tiny/qwen2.5-bias/model-f32.gguf"),
    (
        "tiny-bpe-gpt4o",
        "tiny/phi4mini-partial-longrope/model-f32.gguf",
    ),
    ("tiny-bpe-deepseek3", "tiny/deepseek-v3/model-f32.gguf"),
    ("tiny-spm-llama", "tiny/mistral-full/model-f32.gguf"),
    ("tiny-spm-gemma", "tiny/gemma3-text/model-f32.gguf"),
    ("smollm2-135m", "SmolLM2-135M-Instruct.Q4_1.gguf"),
    ("gemma3-270m", "gemma-3-270m.Q4_K_M.gguf"),
];

pub(crate) fn weights(name: &str) -> Weights {
    let (_, file) = TOKENIZERS
        .iter()
        .find(|(tokenizer, _)| *tokenizer == name)
        .expect(name);
    open(&if file.starts_with("tiny/") {
        fixture(file)
    } else {
        model(file)
    })
}

pub(crate) fn tokenizer(name: &str) -> Tokenizer {
    Tokenizer::from_metadata(weights(name).metadata()).unwrap()
}

/// The metadata keys of a directory's files.
pub(crate) fn hub_keys(
    files: &[(&str, &[u8])],
    rows: Option<u64>,
) -> Result<Vec<(String, OwnedValue)>, String> {
    let mut all = Files {
        vocabulary_rows: rows,
        ..Files::default()
    };
    for (name, bytes) in files {
        assert!(all.set(name, bytes), "{name}");
    }
    hub::metadata(&all).map_err(|error| error.to_string())
}

/// A model file of no tensors with these keys.
pub(crate) fn with_keys(keys: Vec<(String, OwnedValue)>) -> Weights {
    let mut writer = GgufWriter::new();
    writer.add_meta("general.architecture", "llama");
    for (key, value) in keys {
        writer.add_meta(key, value);
    }
    Weights::from_bytes(Path::new("assembled"), &writer.to_bytes().unwrap()).unwrap()
}

/// The tokenizer of a directory's files.
pub(crate) fn hub_tokenizer(files: &[(&str, &str)]) -> Result<Tokenizer, String> {
    let files: Vec<(&str, &[u8])> = files
        .iter()
        .map(|(name, text)| (*name, text.as_bytes()))
        .collect();
    let weights = with_keys(hub_keys(&files, None)?);
    Tokenizer::from_metadata(weights.metadata()).map_err(|error| error.to_string())
}
