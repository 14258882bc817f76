//! Both roads to a model give the same: metadata, summary, and the numbers of the tensors.

use crate::support::{MODELS, Model, folder, metadata};
use backplane_golden::{open_tiny, tiny_models};
use backplane_models::{hub, lower, summarize};
use backplane_weights::{Weights, writer::OwnedValue};
use std::collections::BTreeSet;

/// Keys of converters that describe a file and not a model. The type of the weights differs in truth: the F32 files hold what
/// the directories have in BF16.
const OF_THE_FILE: &[&str] = &[
    "general.basename",
    "general.file_type",
    "general.name",
    "general.quantization_version",
    "general.size_label",
    "general.type",
    "general.version",
];
/// Keys that GGUF has no place for, or that its converter does not write.
const OF_THE_HUB: &[(&str, &str)] = &[
    ("backplane.rope.style", ""),
    ("llama.attention.sliding_window", "mistral-sliding"),
];

fn gguf(model: &str) -> Option<Weights> {
    let mut names = ["model-f32.gguf", "model-f16.gguf"].into_iter();
    let name = names.find(|name| folder(model).join(name).is_file())?;
    Some(open_tiny(model, name))
}

fn directory(model: &str) -> Weights {
    hub::open(&folder(model), vec![]).unwrap_or_else(|error| panic!("{error}"))
}

#[test]
fn every_model_of_the_fixtures_is_tested() {
    let sharded = |name: &String| name.ends_with("-sharded");
    let names: Vec<_> = tiny_models()
        .into_iter()
        .filter(|name| !sharded(name))
        .collect();
    assert_eq!(names, MODELS);
    assert_eq!(
        MODELS.iter().filter(|model| gguf(model).is_none()).count(),
        1
    );
}

#[test]
fn metadata_are_those_of_gguf() {
    for model in MODELS {
        let Some(gguf) = gguf(model) else { continue };
        let mut theirs = metadata(&gguf);
        let mut ours = metadata(&directory(model));
        theirs.retain(|(key, _)| !OF_THE_FILE.contains(&key.as_str()));
        ours.retain(|(key, _)| !OF_THE_FILE.contains(&key.as_str()));
        ours.retain(|(key, _)| {
            let of_hub = |(known, only): &(&str, &str)| known == key && (*only).contains(model);
            key != "backplane.rope.style" && !OF_THE_HUB.iter().any(of_hub)
        });
        assert_eq!(ours, theirs, "{model}");
    }
}

#[test]
fn summaries_are_those_of_gguf() {
    for model in MODELS {
        let Some(gguf) = gguf(model) else { continue };
        let theirs = summarize(&gguf).expect("a summary");
        let ours = summarize(&directory(model)).expect("a summary");
        if *model == "mistral-sliding" {
            assert_eq!(theirs.window, "full attention");
            assert_eq!(ours.window, "window of 16 in every layer");
        }
        let mut expected = theirs.clone();
        expected.name = Some((*model).into());
        expected.quantization = match *model {
            "llama3-gqa" => "F32".into(),
            "llama-256-quant" => "F16".into(),
            _ => "BF16".into(),
        };
        if *model == "mistral-sliding" {
            expected.window = ours.window.clone();
        }
        assert_eq!(ours, expected, "{model}");
    }
}

#[test]
fn both_dialects_give_one_model() {
    for model in MODELS {
        let folder = folder(model);
        assert!(
            folder.join("config.transformers5.json").is_file(),
            "{model}"
        );
        let older = open_tiny(model, "config.json");
        let newer = open_tiny(model, "config.transformers5.json");
        let named = |weights| {
            let mut pairs = metadata(weights);
            pairs.retain(|(key, _)| key != "general.name");
            pairs
        };
        assert_eq!(named(&older), named(&newer), "{model}");
        assert_eq!(
            lower(&older).expect("lowered"),
            lower(&newer).expect("lowered"),
            "{model}"
        );
        for tensor in older.tensors() {
            let other = newer.require(&tensor.name).expect("a tensor");
            assert!(other.data == older.require(&tensor.name).expect("a tensor").data);
        }
    }
}

/// Where the converter has reordered rows, where it has stacked experts, and where it computes in f32.
#[test]
fn tensors_are_those_of_gguf() {
    for model in MODELS {
        let Some(gguf) = gguf(model) else { continue };
        let ours = directory(model);
        let halves = ours.metadata().get("backplane.rope.style").is_some();
        let mut compared = 0;
        for tensor in gguf.tensors() {
            let theirs = gguf.require(&tensor.name).expect("a tensor").to_f32();
            let reordered = halves
                && ["attn_q.weight", "attn_k.weight"]
                    .iter()
                    .any(|end| tensor.name.ends_with(end));
            let mut found = match tensor.name.strip_suffix("_exps.weight") {
                Some(stem) => (0..tensor.shape[0])
                    .flat_map(|expert| {
                        let one = ours.require(&format!("{stem}.{expert}.weight"));
                        let one = one.expect("an expert");
                        assert_eq!(one.info.shape, tensor.shape[1..], "{model} {}", tensor.name);
                        one.to_f32()
                    })
                    .collect(),
                None => {
                    let one = ours.require(&tensor.name).expect("a tensor");
                    assert_eq!(one.info.shape, tensor.shape, "{model} {}", tensor.name);
                    one.to_f32()
                }
            };
            if reordered {
                let heads = ours
                    .metadata()
                    .require_usize(match tensor.name.contains("attn_q") {
                        true => "llama.attention.head_count",
                        false => "llama.attention.head_count_kv",
                    });
                found = neighbours(&found, heads.expect("a number"), tensor.shape[1]);
            }
            let same = match tensor.name.as_str() {
                "rope_freqs.weight" => {
                    let off = found.iter().zip(&theirs).map(|(a, b)| (a / b - 1.0).abs());
                    found.len() == theirs.len() && off.fold(0.0, f32::max) < 1e-6
                }
                _ => found == theirs,
            };
            assert!(same, "{model} {}: other numbers", tensor.name);
            compared += 1;
        }
        assert!(compared > 10, "{model}");
    }
}

/// Rows of heads whose pairs lie half a head apart, as GGUF has them: side by side.
fn neighbours(rows: &[f32], heads: usize, width: usize) -> Vec<f32> {
    let head = rows.len() / heads;
    let half = head / width / 2;
    let mut out = vec![];
    for head in rows.chunks_exact(head) {
        for pair in 0..half {
            for row in [pair, half + pair] {
                out.extend_from_slice(&head[row * width..][..width]);
            }
        }
    }
    out
}

#[test]
fn a_sharded_model_is_the_whole_one() {
    let (parts, whole) = (directory("llama3-gqa-sharded"), directory("llama3-gqa"));
    assert_eq!(parts.files().len(), 4);
    assert_eq!(
        lower(&parts).expect("lowered"),
        lower(&whole).expect("lowered")
    );
    let names = |weights: &Weights| {
        weights
            .tensors()
            .map(|it| it.name.clone())
            .collect::<BTreeSet<_>>()
    };
    assert_eq!(names(&parts), names(&whole));
    for tensor in whole.tensors() {
        let [one, other] =
            [&parts, &whole].map(|weights| weights.require(&tensor.name).expect("a tensor").data);
        assert!(one == other, "{}", tensor.name);
    }
}

#[test]
fn any_of_the_files_opens_the_directory() {
    for name in [
        "model.safetensors.index.json",
        "model-00002-of-00004.safetensors",
    ] {
        let weights = hub::open(&folder("llama3-gqa-sharded").join(name), vec![]);
        let weights = weights.expect("a model");
        let name = weights.metadata().require_str("general.name");
        assert_eq!(name.expect("a name"), "llama3-gqa-sharded");
    }
}

/// Only what can't be used as stored is in memory: norms with their 1 added, rope tables, and the two halves of the matrix
/// that leads from DeepSeek's latent to keys and values.
#[test]
fn opening_owns_only_what_is_not_as_stored() {
    for model in MODELS {
        let stored = Model::of(model);
        let ends = ["norm.weight", "kv_b_proj.weight"];
        let owned =
            stored
                .tensors
                .iter()
                .filter(|tensor| match stored.config["model_type"].as_str() {
                    Some("gemma3_text") => tensor.name.ends_with(ends[0]),
                    Some("deepseek_v3") => tensor.name.ends_with(ends[1]),
                    _ => false,
                });
        let bytes: usize = owned
            .map(|tensor| {
                let values: usize = tensor.shape.iter().product();
                values * if tensor.name.ends_with(ends[0]) { 4 } else { 2 }
            })
            .sum();
        let tables = match *model {
            "llama3-ropescaled" => 8 * 4,
            "phi4mini-partial-longrope" => 2 * 6 * 4,
            _ => 0,
        };
        let weights = directory(model);
        assert_eq!(weights.owned_bytes(), (bytes + tables) as u64, "{model}");
        assert!(weights.files()[0].ends_with("model.safetensors"));
    }
}

#[test]
fn metadata_of_the_tokenizer_are_added() {
    let tokens: OwnedValue = vec!["a", "b"].into();
    let added = vec![("tokenizer.ggml.tokens".to_owned(), tokens)];
    let weights = hub::open(&folder("llama3-gqa"), added).expect("a model");
    let tokens = weights.metadata().require_array("tokenizer.ggml.tokens");
    assert_eq!(tokens.expect("an array").len(), 2);
}

#[test]
fn families_are_run_by_known_architectures() {
    for (model_type, architecture) in hub::families() {
        let mut known = backplane_models::ARCHITECTURES.iter();
        assert!(
            known.any(|known| known.name == architecture),
            "{model_type}"
        );
    }
    let names: Vec<_> = hub::families().map(|(name, _)| name).collect();
    assert!(names.is_sorted(), "{names:?}");
}
