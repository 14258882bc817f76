//! Conversion to GGUF against llama.cpp's own conversion of the same directories.
#![allow(
    clippy::unwrap_used,
    reason = "helpers of tests, which clippy does not count as tests"
)]

#[path = "hub/support.rs"]
#[allow(
    dead_code,
    unreachable_pub,
    reason = "shared with another test, which uses more of it"
)]
mod support;

#[path = "convert/refusals.rs"]
mod refusals;

use backplane_golden::{Runner, Sequence, fixtures_dir, open_tiny, tiny_models};
use backplane_models::ModelError;
use backplane_models::convert::{ConvertOptions, ConvertReport, convert};
use backplane_program::Interpreter;
use backplane_weights::quantize::requantize;
use backplane_weights::writer::{GgufWriter, OwnedValue};
use backplane_weights::{Error, TensorType, ValueType, Weights};
use serde_json::json;
use std::collections::BTreeSet;
use std::ops::ControlFlow;
use std::path::Path;
use support::Model;

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

/// The numbers of a model that is F16 are the same bytes, and its other types are llama.cpp's.
#[test]
fn what_is_not_quantised_is_copied() {
    let theirs = open_tiny("llama-256-quant", "model-f16.gguf");
    let directory = open_tiny("llama-256-quant", "config.json");
    for source in [&theirs, &directory] {
        let (ours, report) = converted(source, ConvertOptions::default());
        assert_eq!(report.notes, [""; 0]);
        for info in theirs.tensors() {
            let (our, their) = (
                ours.require(&info.name).unwrap(),
                theirs.require(&info.name).unwrap(),
            );
            assert_eq!(our.info.ty, info.ty, "{}", info.name);
            assert!(our.data == their.data, "{} differs", info.name);
        }
        let meta = ours.metadata();
        assert_eq!(meta.u32("general.file_type").unwrap(), Some(1));
        assert_eq!(meta.u32("general.quantization_version").unwrap(), Some(2));
    }
    let (ours, _) = converted(
        &open_tiny("qwen2-moe", "config.json"),
        ConvertOptions::default(),
    );
    for (name, ty) in [
        ("token_embd.weight", TensorType::BF16),
        ("blk.0.ffn_down_exps.weight", TensorType::BF16),
        ("blk.0.ffn_gate_inp.weight", TensorType::F32),
        ("blk.0.ffn_gate_inp_shexp.weight", TensorType::F32),
        ("blk.0.attn_q.bias", TensorType::F32),
        ("blk.1.attn_norm.weight", TensorType::F32),
    ] {
        assert_eq!(ours.require(name).unwrap().info.ty, ty, "{name}");
    }
    assert_eq!(ours.metadata().u32("general.file_type").unwrap(), Some(32));
}

#[test]
fn files_are_quantised_to_the_types_that_llama_cpp_has_them_in() {
    let source = open_tiny("llama-256-quant", "config.json");
    let mut seen = 0;
    for ty in TensorType::ALL.iter().filter(|ty| ty.can_quantize()) {
        let (ours, report) = converted(&source, quantized(*ty));
        assert_eq!(report.notes, [""; 0], "{ty}");
        let path = fixtures_dir().join(format!("tiny/llama-256-quant/model-{ty}.gguf"));
        if !path.exists() {
            continue;
        }
        seen += 1;
        let theirs = Weights::open(&path).unwrap();
        for info in theirs.tensors() {
            let our = ours.require(&info.name).unwrap().info;
            assert_eq!(
                (our.ty, &our.shape),
                (info.ty, &info.shape),
                "{ty}: {}",
                info.name
            );
        }
        for key in [
            "general.file_type",
            "general.quantization_version",
            "general.architecture",
        ] {
            assert_eq!(
                ours.metadata().get(key),
                theirs.metadata().get(key),
                "{ty}: {key}"
            );
        }
        let memory = requantize(&source, *ty, &mut |_, _, _| ControlFlow::Continue(())).unwrap();
        for info in memory.weights.tensors().filter(|info| info.shape.len() > 1) {
            // Rows of queries and keys are in another order.
            if !info.name.contains("attn_q") && !info.name.contains("attn_k") {
                let file = ours.require(&info.name).unwrap();
                let here = memory.weights.require(&info.name).unwrap();
                assert!(file.data == here.data, "{ty}: {} differs", info.name);
            }
        }
    }
    assert_eq!(seen, 12);
}

fn logits(weights: &Weights, tokens: &[u32]) -> Vec<f32> {
    let mut runner = Runner::of(&Interpreter, weights, None, 64, 64);
    runner.feed(&mut Sequence::default(), tokens, 64, 0)
}

/// Whether a directory and the file made of it compute the same.
#[track_caller]
fn assert_same_logits(model: &str, weights: &Weights) {
    let tokens: Vec<u32> = (0..40).map(|at| (at * 37 + 11) % 512).collect();
    let (file, _) = converted(weights, ConvertOptions::default());
    let (expected, found) = (logits(weights, &tokens), logits(&file, &tokens));
    let pairs = expected.iter().zip(&found);
    let off = pairs.map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    assert!(off <= 1e-4, "{model}: {off}");
    assert!(expected.iter().any(|logit| logit.abs() > 1.0));
}

#[test]
fn directories_and_the_files_made_of_them_compute_the_same() {
    for model in tiny_models() {
        // A window beyond which the two families differ: this one is written, and kept.
        assert_same_logits(&model, &open_tiny(&model, "config.json"));
    }
}

#[test]
fn rotated_halves_of_latent_attention_become_pairs() {
    let model = Model::of("deepseek-v3").set("rope_interleave", json!(false));
    let weights = model.open().unwrap();
    assert_same_logits("deepseek-v3", &weights);
    let without_rank = {
        let mut model = model.set("q_lora_rank", json!(null)).without("q_a_");
        for layer in 0..3 {
            let name = format!("model.layers.{layer}.self_attn.q_b_proj.weight");
            let rows = model.tensor(&name).bytes.clone();
            let proj = format!("model.layers.{layer}.self_attn.q_proj.weight");
            model = model.with(&proj, &[128, 64]);
            // Any numbers do, as long as they are none that a permutation leaves alone.
            model = model.change(&proj, |tensor| {
                tensor.dtype = "BF16".into();
                tensor.bytes = [&rows[..], &rows[..]].concat();
            });
        }
        model.without("q_b_proj")
    };
    assert_same_logits("deepseek-v3 without a rank", &without_rank.open().unwrap());
}

/// A checkpoint that has queries, keys and values in one matrix, and gate and up.
#[test]
fn fused_matrices_are_cut_where_llama_cpp_wants_them_apart() {
    let plain = Model::of("llama3-gqa");
    let mut fused = plain.clone();
    for layer in 0..3 {
        for (parts, name, rows) in [
            (
                &["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"][..],
                "self_attn.qkv_proj",
                128,
            ),
            (&["mlp.gate_proj", "mlp.up_proj"], "mlp.gate_up_proj", 256),
        ] {
            let name_of = |part: &str| format!("model.layers.{layer}.{part}.weight");
            let bytes: Vec<u8> = parts
                .iter()
                .flat_map(|part| plain.tensor(&name_of(part)).bytes.clone())
                .collect();
            for part in parts {
                fused = fused.without(&name_of(part));
            }
            fused = fused.with(&name_of(name), &[rows, 64]);
            fused = fused.change(&name_of(name), |tensor| tensor.bytes = bytes.clone());
        }
    }
    let (expected, _) = converted(&plain.open().unwrap(), ConvertOptions::default());
    let (found, _) = converted(&fused.open().unwrap(), ConvertOptions::default());
    assert_eq!(expected.tensors().count(), found.tensors().count());
    for info in expected.tensors() {
        let (a, b) = (
            expected.require(&info.name).unwrap(),
            found.require(&info.name).unwrap(),
        );
        assert!(
            a.data == b.data && a.info.shape == b.info.shape,
            "{}",
            info.name
        );
    }
}

/// Experts as transformers 5 has them in memory: gates and ups of all in one tensor.
#[test]
fn stacked_experts_are_cut_into_gates_and_ups() {
    let single = Model::of("qwen3-moe");
    let mut stacked = single.clone();
    for layer in 0..2 {
        let of_each = |part: &str, expert: usize| {
            format!("model.layers.{layer}.mlp.experts.{expert}.{part}_proj.weight")
        };
        for (name, parts, shape) in [
            ("gate_up_proj", &["gate", "up"][..], [8, 64, 64]),
            ("down_proj", &["down"], [8, 64, 32]),
        ] {
            let names = (0..8).flat_map(|expert| parts.iter().map(move |part| (part, expert)));
            let names: Vec<String> = names.map(|(part, expert)| of_each(part, expert)).collect();
            let bytes: Vec<u8> = names
                .iter()
                .flat_map(|name| single.tensor(name).bytes.clone())
                .collect();
            stacked
                .tensors
                .retain(|tensor| !names.contains(&tensor.name));
            stacked = stacked.with(&format!("model.layers.{layer}.mlp.experts.{name}"), &shape);
            let tensor = stacked.tensors.last_mut().unwrap();
            (tensor.bytes, tensor.dtype) = (bytes, "BF16".into());
        }
    }
    let (expected, _) = converted(&single.open().unwrap(), ConvertOptions::default());
    let (found, _) = converted(&stacked.open().unwrap(), ConvertOptions::default());
    assert_eq!(expected.tensors().count(), found.tensors().count());
    for info in expected.tensors() {
        let (a, b) = (
            expected.require(&info.name).unwrap(),
            found.require(&info.name).unwrap(),
        );
        let same = a.data == b.data && a.info.shape == b.info.shape;
        assert!(same, "{}", info.name);
    }
}

/// The other way round: Phi-3 has them as one.
#[test]
fn split_matrices_are_joined_where_llama_cpp_wants_one() {
    let fused = Model::of("phi3-full-rotary");
    let mut split = fused.clone();
    for layer in 0..3 {
        for (name, parts) in [
            (
                "self_attn.qkv_proj",
                &[
                    ("self_attn.q_proj", 64),
                    ("self_attn.k_proj", 32),
                    ("self_attn.v_proj", 32),
                ][..],
            ),
            (
                "mlp.gate_up_proj",
                &[("mlp.gate_proj", 128), ("mlp.up_proj", 128)],
            ),
        ] {
            let name_of = |part: &str| format!("model.layers.{layer}.{part}.weight");
            let whole = fused.tensor(&name_of(name)).clone();
            split = split.without(&name_of(name));
            let mut rest = &whole.bytes[..];
            for (part, rows) in parts {
                let (head, tail) = rest.split_at(rows * 64 * 2);
                split = split
                    .with(&name_of(part), &[*rows, 64])
                    .change(&name_of(part), |tensor| {
                        tensor.bytes = head.to_vec();
                        tensor.dtype = whole.dtype.clone();
                    });
                rest = tail;
            }
        }
    }
    let (expected, _) = converted(&fused.open().unwrap(), ConvertOptions::default());
    let (found, _) = converted(&split.open().unwrap(), ConvertOptions::default());
    assert_eq!(expected.tensors().count(), found.tensors().count());
    for info in expected.tensors() {
        let (a, b) = (
            expected.require(&info.name).unwrap(),
            found.require(&info.name).unwrap(),
        );
        assert!(
            a.data == b.data && a.info.shape == b.info.shape,
            "{}",
            info.name
        );
    }
    let uneven = split.change("layers.1.mlp.up_proj", |tensor| {
        tensor.bytes = vec![0; 4 * 128 * 64];
        tensor.dtype = "F32".into();
    });
    refusals::refused(
        &uneven.open().unwrap(),
        ConvertOptions::default(),
        "tensor blk.1.ffn_up.weight: found [128, 64] in F32, expected rows as of blk.1.ffn_gate.weight, [128, 64] in BF16",
    );
}

#[test]
fn where_llama_cpp_computes_something_else_is_said() {
    let notes = |model: &str, change: &dyn Fn(Model) -> Model| -> Vec<String> {
        let weights = change(Model::of(model)).open().unwrap();
        converted(&weights, ConvertOptions::default()).1.notes
    };
    let same = |model: Model| model;
    for model in [
        "llama3-gqa",
        "qwen2.5-bias",
        "gemma3-text",
        "mixtral",
        "deepseek-v3",
        "qwen3-moe",
    ] {
        assert_eq!(notes(model, &same), [""; 0], "{model}");
    }
    let llama3_scaling = json!({"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 128});
    type Change<'a> = &'a dyn Fn(Model) -> Model;
    let cases: [(&str, Change<'_>, &str); 8] = [
        (
            "mistral-sliding",
            &same,
            "key llama.attention.sliding_window: llama.cpp knows no window for this architecture: past 16 ",
        ),
        (
            "phi3-full-rotary",
            &|model| model.set("sliding_window", json!(8)),
            "key phi3.attention.sliding_window: ",
        ),
        (
            "gemma3-text-attnscale",
            &same,
            "key gemma3.attention.scale: llama.cpp doesn't heed it",
        ),
        (
            "gemma3-text",
            &|model| model.set("sliding_window_pattern", json!(2)),
            "key gemma3.attention.sliding_window_pattern: ",
        ),
        (
            "gemma3-text",
            &|model| model.set("attn_logit_softcapping", json!(30.0)),
            "key gemma3.attn_logit_softcapping: ",
        ),
        (
            "qwen2-moe",
            &|model| model.set("norm_topk_prob", json!(true)),
            "key qwen2moe.expert_weights_norm: llama.cpp takes it to be false",
        ),
        (
            "qwen3-moe",
            &|model| model.set("norm_topk_prob", json!(false)),
            "key qwen3moe.expert_weights_norm: llama.cpp takes it to be true",
        ),
        (
            "qwen3-qknorm",
            &|model| model.set("rope_scaling", llama3_scaling.clone()),
            "tensor rope_freqs.weight: llama.cpp has no place for it",
        ),
    ];
    for (model, change, start) in cases {
        let notes = notes(model, change);
        assert_eq!(notes.len(), 1, "{model}: {notes:?}");
        assert!(notes[0].starts_with(start), "{model}: {notes:?}");
    }
    let unknown = notes("llama3-gqa", &|model| {
        model.set("best_of_all_models", json!(1))
    });
    assert!(unknown[0].contains("best_of_all_models"), "{unknown:?}");
}

/// A model with keys and tensors of every kind that conversion changes.
fn written(fill: impl FnOnce(&mut GgufWriter)) -> Weights {
    let mut writer = GgufWriter::new();
    writer.add_meta("general.architecture", "none that is known");
    fill(&mut writer);
    Weights::from_bytes("source.gguf".as_ref(), &writer.to_bytes().unwrap()).unwrap()
}

#[test]
fn metadata_are_kept_but_for_what_is_said_of_the_file() {
    let weights = written(|writer| {
        writer.alignment(64);
        writer
            .add_meta("split.no", 0_u16)
            .add_meta("split.count", 1_u16)
            .add_meta("split.tensors.count", 1_i32);
        writer
            .add_meta("general.file_type", 15_u32)
            .add_meta("general.quantization_version", 1_u32);
        writer.add_meta("backplane.notes", vec!["said before"]);
        writer.add_meta("backplane.rope.style", "halves");
        writer.add_meta("backplane.tokenizer.normalizer", "nfc");
        writer
            .add_meta("a.u8", 1_u8)
            .add_meta("a.i64", -5_i64)
            .add_meta("a.f64", 0.1_f64)
            .add_meta("a.bool", true);
        writer
            .add_meta("a.text", "ä\n")
            .add_meta("a.list", vec![1_i16, -2])
            .add_meta("a.texts", vec!["", "b"]);
        let nested = vec![
            OwnedValue::from(vec![1_u8]),
            OwnedValue::from(vec![2.5_f32]),
        ];
        writer.add_meta("a.lists", OwnedValue::Array(ValueType::Array, nested));
        writer.add_meta("a.none", OwnedValue::Array(ValueType::String, vec![]));
        writer.add_f32("a.weight", &[2, 32], &[0.5; 64]);
    });
    let (file, report) = converted(&weights, ConvertOptions::default());
    assert_eq!(
        report.notes,
        [
            "said before",
            "the tokenizer has what GGUF has no keys for (normalizer): llama.cpp may read or write some texts in another way"
        ]
    );
    let mut keys: Vec<&str> = file.metadata().keys().collect();
    keys.sort_unstable();
    assert_eq!(
        keys,
        [
            "a.bool",
            "a.f64",
            "a.i64",
            "a.list",
            "a.lists",
            "a.none",
            "a.text",
            "a.texts",
            "a.u8",
            "backplane.tokenizer.normalizer",
            "general.alignment",
            "general.architecture",
            "general.file_type",
            "general.quantization_version",
            "general.type",
        ]
    );
    for key in keys.iter().filter(|key| key.starts_with("a.")) {
        assert_eq!(
            file.metadata().get(key),
            weights.metadata().get(key),
            "{key}"
        );
    }
    let number = |key| file.metadata().u32(key).unwrap();
    assert_eq!(number("general.alignment"), Some(64));
    assert_eq!(number("general.quantization_version"), Some(2));
    assert_eq!(
        number("general.file_type"),
        Some(15),
        "a mixture that the tensors don't tell"
    );
    let (file, _) = converted(&weights, quantized(TensorType::Q8_0));
    assert_eq!(file.metadata().u32("general.file_type").unwrap(), Some(7));
}

#[test]
fn experts_stored_singly_become_one_tensor() {
    let values = |expert: usize| [expert as f32; 64];
    let weights = written(|writer| {
        for expert in [2, 0, 1] {
            writer.add_f32(
                format!("blk.0.ffn_up.{expert}.weight"),
                &[2, 32],
                &values(expert),
            );
        }
    });
    for ty in [None, Some(TensorType::Q8_0)] {
        let options = ConvertOptions {
            quantize: ty,
            ..ConvertOptions::default()
        };
        let (file, _) = converted(&weights, options);
        assert_eq!(file.tensors().count(), 1);
        let stack = file.require("blk.0.ffn_up_exps.weight").unwrap();
        assert_eq!(
            (stack.info.ty, &stack.info.shape[..]),
            (ty.unwrap_or(TensorType::F32), &[3, 2, 32][..])
        );
        let expected = [values(0), values(1), values(2)].concat();
        let mut pairs = stack.to_f32().into_iter().zip(expected);
        assert!(pairs.all(|(found, expected)| (found - expected).abs() < 1e-3));
    }
}
