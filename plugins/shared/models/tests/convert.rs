//! Conversion to GGUF against llama.cpp's own conversion of the same directories.
#![allow(
    clippy::unwrap_used,
    reason = "helpers of tests, which clippy does not count as tests"
)]

use backplane_golden::{open_tiny, tiny_models};
use backplane_models::ModelError;
use backplane_models::convert::{ConvertOptions, ConvertReport, convert};
use backplane_weights::{TensorType, Weights};
use std::collections::BTreeSet;
use std::ops::ControlFlow;
use std::path::Path;

fn quantized(ty: TensorType) -> ConvertOptions {
    ConvertOptions {
        quantize: Some(ty),
        ..ConvertOptions::default()
    }
}

fn try_convert(
    weights: &Weights,
    to: &Path,
    options: ConvertOptions,
) -> Result<ConvertReport, ModelError> {
    convert(weights, to, options, &mut |_, _, _| {
        ControlFlow::Continue(())
    })
}

/// Converts and opens again.
#[track_caller]
fn converted(weights: &Weights, options: ConvertOptions) -> (Weights, ConvertReport) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    let report = try_convert(weights, &path, options).unwrap();
    let again = Weights::open(&path).unwrap();
    assert_eq!(report.bytes, std::fs::metadata(&path).unwrap().len());
    assert_eq!(report.tensors, again.tensors().count() as u64);
    let left: Vec<_> = std::fs::read_dir(&folder).unwrap().collect();
    assert_eq!(left.len(), 1, "{left:?}");
    (again, report)
}

/// Keys that llama.cpp's converter writes and this one doesn't: descriptions, which no engine reads.
const DESCRIPTIONS: &[&str] = &[
    "general.basename",
    "general.name",
    "general.size_label",
    "general.version",
];

/// Keys that this converter writes and llama.cpp's doesn't.
const MORE: &[&str] = &[
    // Windows that llama.cpp doesn't know, so that this engine has them.
    "llama.attention.sliding_window",
];

#[test]
fn directories_become_the_files_that_llama_cpp_makes_of_them() {
    let (mut models, mut compared) = (0, 0);
    for model in tiny_models() {
        let shipped = backplane_golden::formats(&model);
        let reference = ["model-f32.gguf", "model-f16.gguf"]
            .into_iter()
            .find(|name| shipped.contains(name));
        let Some(reference) = reference else {
            continue;
        };
        let theirs = open_tiny(&model, reference);
        for dialect in ["config.json", "config.transformers5.json"] {
            let (ours, _) = converted(&open_tiny(&model, dialect), quantized(TensorType::F32));
            let names = |weights: &Weights| -> BTreeSet<String> {
                weights.tensors().map(|info| info.name.clone()).collect()
            };
            assert_eq!(names(&ours), names(&theirs), "{model}");
            for info in theirs.tensors() {
                let (our, their) = (
                    ours.require(&info.name).unwrap(),
                    theirs.require(&info.name).unwrap(),
                );
                let at = format!("{model}, {dialect}: {}", info.name);
                assert_eq!(our.info.ty, TensorType::F32, "{at}");
                assert_eq!(our.info.shape, info.shape, "{at}");
                let (our, their) = (our.to_f32(), their.to_f32());
                if info.name.starts_with("rope_f") {
                    // Computed from the configuration, by each in its own way.
                    let near = |(our, their): (&f32, &f32)| (our - their).abs() <= 1e-6 * their;
                    assert!(our.iter().zip(&their).all(near), "{at}: {our:?}, {their:?}");
                } else {
                    assert!(our == their, "{at} differs");
                }
                compared += 1;
            }
            compare_keys(&ours, &theirs, &format!("{model}, {dialect}"));
        }
        models += 1;
    }
    assert!(
        models >= 17 && compared > 1000,
        "{models} models, {compared} tensors"
    );
}

/// All keys but those of the tokenizer, and but those listed above.
fn compare_keys(ours: &Weights, theirs: &Weights, model: &str) {
    let keys = |weights: &Weights, left_out: &[&str]| -> BTreeSet<String> {
        let keys = weights.metadata().keys();
        let keys = keys.filter(|key| !key.starts_with("tokenizer.") && !left_out.contains(key));
        keys.map(Into::into).collect()
    };
    let (our_keys, their_keys) = (keys(ours, MORE), keys(theirs, DESCRIPTIONS));
    let only_ours: Vec<_> = our_keys.difference(&their_keys).collect();
    assert!(
        only_ours
            .iter()
            .all(|key| DESCRIPTIONS.contains(&key.as_str())),
        "{model}: {only_ours:?}"
    );
    for key in their_keys {
        let (our, their) = (ours.metadata().get(&key), theirs.metadata().get(&key));
        // The reference may be a file of another type than was asked for here.
        if key != "general.file_type" {
            assert_eq!(our, their, "{model}: {key}");
        }
    }
    assert_eq!(
        ours.metadata().u32("general.file_type").unwrap(),
        Some(0),
        "{model}"
    );
}
