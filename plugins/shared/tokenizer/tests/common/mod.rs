//! Where the fixtures and the real models lie.
#![allow(dead_code)] // each test program uses its part

use std::path::{Path, PathBuf};

use backplane_tokenizer::Tokenizer;
use backplane_weights::Weights;

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
