//! The formats that a tiny model ships in, and how each is opened.

use crate::fixtures::{fixture, fixtures_dir, read_json};
use backplane_models::hub;
use backplane_weights::Weights;
use std::path::{Path, PathBuf};

/// GGUF files with the same numbers as the safetensors.
const GGUF: &[&str] = &["model-bf16.gguf", "model-f16.gguf", "model-f32.gguf"];
/// Directories of safetensors, by the dialect of their configuration.
const OLDER: &str = "config.json";
const NEWER: &str = "config.transformers5.json";

/// A test for each tiny model of the fixtures, which calls a function with the model's name; and one that says that there are no
/// others.
#[macro_export]
macro_rules! every_tiny_model {
    ($judge:path) => {
        $crate::every_tiny_model! { $judge:
            deepseek_v3 = "deepseek-v3",
            deepseek_v3_with_yarn = "deepseek-v3-yarn",
            gemma3_with_windows = "gemma3-text",
            gemma3_with_another_scale = "gemma3-text-attnscale",
            gemma3_with_linear_scaling = "gemma3-text-linear8",
            llama_of_256 = "llama-256-quant",
            llama3_with_grouped_queries = "llama3-gqa",
            llama3_in_parts = "llama3-gqa-sharded",
            llama3_with_scaled_rotation = "llama3-ropescaled",
            mistral_without_window = "mistral-full",
            mistral_with_window = "mistral-sliding",
            mixtral = "mixtral",
            phi3_with_fused_matrices = "phi3-full-rotary",
            phi4_mini_with_partial_and_long_rotation = "phi4mini-partial-longrope",
            qwen2_moe_with_a_gated_shared_expert = "qwen2-moe",
            qwen25_with_biases = "qwen2.5-bias",
            qwen25_with_yarn = "qwen2.5-yarn",
            qwen3_moe = "qwen3-moe",
            qwen3_with_normalised_heads = "qwen3-qknorm",
        }
    };
    ($judge:path: $($test:ident = $model:literal,)*) => {
        $(
            #[test]
            fn $test() {
                $judge($model);
            }
        )*

        #[test]
        fn every_model_of_the_fixtures_is_judged() {
            assert_eq!($crate::tiny_models(), [$($model),*]);
        }
    };
}

/// The tiny models of the fixtures, by name.
///
/// # Panics
/// The folder can't be read.
#[must_use]
pub fn tiny_models() -> Vec<String> {
    let folder = fixtures_dir().join("tiny");
    let entries =
        std::fs::read_dir(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let mut names: Vec<String> = entries
        .map(|entry| entry.unwrap_or_else(|error| panic!("{}: {error}", folder.display())))
        .filter(|entry| entry.path().is_dir())
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .collect();
    names.sort();
    names
}

/// What a tiny model ships: names of GGUF files with floats, and of configurations, each of which stands for the directory of
/// safetensors read by it.
///
/// # Panics
/// There is no such model, or it has no file.
#[must_use]
pub fn formats(model: &str) -> Vec<&'static str> {
    let folder = fixtures_dir().join("tiny").join(model);
    let names = GGUF.iter().chain(&[OLDER, NEWER]).copied();
    let found: Vec<_> = names.filter(|name| folder.join(name).is_file()).collect();
    assert!(!found.is_empty(), "no model in {}", folder.display());
    found
}

/// Opens a tiny model by one of its [`formats`], or any other GGUF file of it.
///
/// # Panics
/// It can't be opened.
#[must_use]
pub fn open_tiny(model: &str, format: &str) -> Weights {
    let path = fixture(&format!("tiny/{model}/{format}"));
    match format {
        OLDER => open_directory(folder_of(&path)),
        NEWER => {
            let other = with_configuration(folder_of(&path), &path);
            open_directory(other.path())
        }
        _ => Weights::open(&path).unwrap_or_else(|error| panic!("{error}")),
    }
}

fn folder_of(path: &Path) -> &Path {
    path.parent()
        .unwrap_or_else(|| panic!("{} is in no folder", path.display()))
}

fn open_directory(folder: &Path) -> Weights {
    hub::open(folder, vec![]).unwrap_or_else(|error| panic!("{error}"))
}

/// A directory with the weights of `folder` and another configuration. Once a model is open, its files may go.
fn with_configuration(folder: &Path, configuration: &Path) -> tempfile::TempDir {
    let fail = |error: std::io::Error| -> ! { panic!("{}: {error}", folder.display()) };
    let other = tempfile::tempdir().unwrap_or_else(|error| fail(error));
    let copy = |from: PathBuf, name: &str| {
        if let Err(error) = std::fs::copy(&from, other.path().join(name)) {
            fail(error);
        }
    };
    for entry in std::fs::read_dir(folder).unwrap_or_else(|error| fail(error)) {
        let entry = entry.unwrap_or_else(|error| fail(error));
        let name = entry.file_name().to_string_lossy().into_owned();
        if name.ends_with(".safetensors") || name.ends_with(".safetensors.index.json") {
            copy(entry.path(), &name);
        }
    }
    copy(configuration.into(), OLDER);
    other
}

/// The window that a model has and this file of it does not know: references are right for the file only within it.
pub(crate) fn unknown_window(model: &str, weights: &Weights) -> Option<usize> {
    let config = read_json(&format!("tiny/{model}/{OLDER}"));
    let is_mistral = config["model_type"] == "mistral";
    let knows = weights
        .metadata()
        .get("llama.attention.sliding_window")
        .is_some();
    let window = config["sliding_window"].as_u64().map(|it| it as usize);
    window.filter(|_| is_mistral && !knows)
}

/// The model whose references a model has: a sharded one has none of its own.
pub(crate) fn reference_of(model: &str) -> &str {
    model.strip_suffix("-sharded").unwrap_or(model)
}
