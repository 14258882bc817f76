//! Directories that tests change: the configuration and tensors of a fixture, written somewhere else.

use backplane_golden::fixtures_dir;
use backplane_models::{ModelError, hub};
use backplane_weights::{Checkpoint, Weights};
use serde_json::{Map, Value, json};
use std::path::{Path, PathBuf};

/// The folder of a tiny model.
pub(crate) fn folder(model: &str) -> PathBuf {
    fixtures_dir().join("tiny").join(model)
}

/// Tiny models with a configuration, by name; each covers a family.
pub(crate) const MODELS: &[&str] = &[
    "deepseek-v3",
    "deepseek-v3-yarn",
    "gemma3-text",
    "gemma3-text-attnscale",
    "gemma3-text-linear8",
    "llama-256-quant",
    "llama3-gqa",
    "llama3-ropescaled",
    "mistral-full",
    "mistral-sliding",
    "mixtral",
    "phi3-full-rotary",
    "phi4mini-partial-longrope",
    "qwen2-moe",
    "qwen2.5-bias",
    "qwen2.5-yarn",
    "qwen3-moe",
    "qwen3-qknorm",
];

#[derive(Clone)]
pub(crate) struct Tensor {
    pub(crate) name: String,
    pub(crate) dtype: String,
    pub(crate) shape: Vec<usize>,
    pub(crate) bytes: Vec<u8>,
}

/// A model that is not written yet.
#[derive(Clone)]
pub(crate) struct Model {
    pub(crate) config: Value,
    pub(crate) tensors: Vec<Tensor>,
}

impl Model {
    /// As the fixture has it, by the older dialect of its configuration.
    pub(crate) fn of(model: &str) -> Self {
        Self::in_dialect(model, "config.json")
    }

    pub(crate) fn in_dialect(model: &str, configuration: &str) -> Self {
        let text = std::fs::read(folder(model).join(configuration)).expect("a configuration");
        let checkpoint = Checkpoint::open(&folder(model)).expect("a checkpoint");
        let tensors = checkpoint.tensors().map(|tensor| Tensor {
            name: tensor.name.into(),
            dtype: tensor.dtype.name().into(),
            shape: tensor.shape.into(),
            bytes: tensor.data.into(),
        });
        Self {
            config: serde_json::from_slice(&text).expect("JSON"),
            tensors: tensors.collect(),
        }
    }

    pub(crate) fn set(mut self, key: &str, value: Value) -> Self {
        self.config[key] = value;
        self
    }

    pub(crate) fn without_key(mut self, key: &str) -> Self {
        let keys = self.config.as_object_mut().expect("an object");
        keys.remove(key).expect("a key that is there");
        self
    }

    /// Changes the tensors whose names contain `part`, of which there is at least one.
    pub(crate) fn change(mut self, part: &str, change: impl Fn(&mut Tensor)) -> Self {
        let mut changed = self
            .tensors
            .iter_mut()
            .filter(|it| it.name.contains(part))
            .peekable();
        assert!(changed.peek().is_some(), "no tensor {part}");
        changed.for_each(change);
        self
    }

    pub(crate) fn without(mut self, part: &str) -> Self {
        let before = self.tensors.len();
        self.tensors.retain(|tensor| !tensor.name.contains(part));
        assert!(self.tensors.len() < before, "no tensor {part}");
        self
    }

    /// Adds a tensor of zeros in F32.
    pub(crate) fn with(mut self, name: &str, shape: &[usize]) -> Self {
        self.tensors.push(Tensor {
            name: name.into(),
            dtype: "F32".into(),
            shape: shape.into(),
            bytes: vec![0; 4 * shape.iter().product::<usize>()],
        });
        self
    }

    pub(crate) fn tensor(&self, name: &str) -> &Tensor {
        let found = self.tensors.iter().find(|tensor| tensor.name == name);
        found.unwrap_or_else(|| panic!("no tensor {name}"))
    }

    /// Writes the directory.
    pub(crate) fn write(&self) -> tempfile::TempDir {
        let folder = tempfile::tempdir().expect("a folder");
        let config = serde_json::to_vec(&self.config).expect("JSON");
        std::fs::write(folder.path().join("config.json"), config).expect("written");
        std::fs::write(folder.path().join("model.safetensors"), self.safetensors())
            .expect("written");
        folder
    }

    fn safetensors(&self) -> Vec<u8> {
        let mut header = Map::new();
        let mut data = vec![];
        for tensor in &self.tensors {
            let start = data.len();
            data.extend_from_slice(&tensor.bytes);
            let entry = json!({
                "dtype": tensor.dtype, "shape": tensor.shape, "data_offsets": [start, data.len()],
            });
            header.insert(tensor.name.clone(), entry);
        }
        let mut header = serde_json::to_vec(&header).expect("JSON");
        header.resize(header.len().next_multiple_of(8), b' ');
        [&(header.len() as u64).to_le_bytes()[..], &header, &data].concat()
    }

    /// Opens what was written; once open, the files may go.
    pub(crate) fn open(&self) -> Result<Weights, ModelError> {
        hub::open(self.write().path(), vec![])
    }

    /// What opening refuses, in one line, without the folder.
    pub(crate) fn refusal(&self) -> String {
        let folder = self.write();
        match hub::open(folder.path(), vec![]) {
            Ok(_) => panic!("was opened"),
            Err(error) => line(&error, folder.path()),
        }
    }
}

/// An error's line, without the folder before its files.
pub(crate) fn line(error: &ModelError, folder: &Path) -> String {
    let line = error.to_string();
    assert!(!line.contains('\n'), "{line}");
    let folder = folder.display().to_string();
    let rest = line
        .strip_prefix(&folder)
        .unwrap_or_else(|| panic!("{line}: names no file"));
    rest.trim_start_matches(['/', ':', ' ']).into()
}

/// All metadata but the vocabulary, by key.
pub(crate) fn metadata(weights: &Weights) -> Vec<(String, String)> {
    let keys = weights
        .metadata()
        .keys()
        .filter(|key| !key.starts_with("tokenizer."));
    let mut pairs: Vec<_> = keys
        .map(|key| (key.into(), format!("{:?}", weights.metadata().get(key))))
        .collect();
    pairs.sort();
    pairs
}
