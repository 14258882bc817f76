//! Lowering and describing models: what metadata and tensors lead to, and what is refused.
#![allow(clippy::unwrap_used, reason = "helpers of tests, too, may panic")]

use backplane_golden::{fixture, real_model_path};
use backplane_models::{ARCHITECTURES, lower, summarize};
use backplane_program::{Op, Program, RopeStyle};
use backplane_weights::Weights;
use backplane_weights::writer::{GgufWriter, OwnedValue};
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::path::Path;

/// A model file in the making; every test alters what it is about.
#[derive(Clone)]
struct File {
    meta: BTreeMap<String, OwnedValue>,
    tensors: BTreeMap<String, Vec<usize>>,
}

const VOCAB: usize = 10;
const WIDTH: usize = 8;

impl File {
    /// 4 heads of 2 over 2 key heads, 12 wide inside.
    fn new(architecture: &str, layers: usize) -> Self {
        let mut file = Self {
            meta: BTreeMap::new(),
            tensors: BTreeMap::new(),
        };
        file.meta
            .insert("general.architecture".into(), architecture.into());
        for (key, value) in [
            ("block_count", layers as u32),
            ("embedding_length", WIDTH as u32),
            ("context_length", 64),
            ("feed_forward_length", 12),
            ("attention.head_count", 4),
            ("attention.head_count_kv", 2),
        ] {
            file.meta
                .insert(format!("{architecture}.{key}"), value.into());
        }
        file.set("attention.layer_norm_rms_epsilon", 1e-6f32);
        file.tensor("token_embd.weight", &[VOCAB, WIDTH])
            .tensor("output_norm.weight", &[WIDTH]);
        for layer in 0..layers {
            for (name, shape) in [
                ("attn_norm", vec![WIDTH]),
                ("attn_q", vec![8, WIDTH]),
                ("attn_k", vec![4, WIDTH]),
                ("attn_v", vec![4, WIDTH]),
                ("attn_output", vec![WIDTH, 8]),
                ("ffn_norm", vec![WIDTH]),
                ("ffn_gate", vec![12, WIDTH]),
                ("ffn_up", vec![12, WIDTH]),
                ("ffn_down", vec![WIDTH, 12]),
            ] {
                file.tensor(&format!("blk.{layer}.{name}.weight"), &shape);
            }
            if architecture == "qwen2" {
                for (name, width) in [("attn_q", 8), ("attn_k", 4), ("attn_v", 4)] {
                    file.tensor(&format!("blk.{layer}.{name}.bias"), &[width]);
                }
            }
            if architecture == "gemma3" {
                for (name, width) in [
                    ("attn_q_norm", 2),
                    ("attn_k_norm", 2),
                    ("post_attention_norm", WIDTH),
                    ("post_ffw_norm", WIDTH),
                ] {
                    file.tensor(&format!("blk.{layer}.{name}.weight"), &[width]);
                }
            }
        }
        file
    }

    fn llama() -> Self {
        Self::new("llama", 3)
    }

    fn set(&mut self, key: &str, value: impl Into<OwnedValue>) -> &mut Self {
        let Some(OwnedValue::String(architecture)) = self.meta.get("general.architecture") else {
            unreachable!()
        };
        let key = format!("{architecture}.{key}");
        self.meta.insert(key, value.into());
        self
    }

    fn tensor(&mut self, name: &str, shape: &[usize]) -> &mut Self {
        self.tensors.insert(name.into(), shape.into());
        self
    }

    fn weights(&self) -> Weights {
        let mut writer = GgufWriter::new();
        for (key, value) in &self.meta {
            writer.add_meta(key, value.clone());
        }
        for (name, shape) in &self.tensors {
            writer.add_f32(name, shape, &vec![0.5; shape.iter().product()]);
        }
        Weights::from_bytes(Path::new("m.gguf"), &writer.to_bytes().unwrap()).unwrap()
    }

    fn lower(&self) -> Program {
        lower(&self.weights()).unwrap()
    }

    fn refusal(&self) -> String {
        let weights = self.weights();
        lower(&weights).unwrap_err().to_string()
    }
}

fn windows(program: &Program) -> Vec<Option<usize>> {
    let window = |op: &Op| {
        if let Op::Attention { window, .. } = op {
            Some(*window)
        } else {
            None
        }
    };
    program.ops.iter().filter_map(window).collect()
}

fn count(program: &Program, is: impl Fn(&Op) -> bool) -> usize {
    program.ops.iter().filter(|op| is(op)).count()
}

#[test]
fn the_table_is_sorted_and_names_are_unique() {
    assert!(
        ARCHITECTURES
            .windows(2)
            .all(|pair| pair[0].name < pair[1].name)
    );
}

#[test]
fn llama_reads_like_the_paper() {
    let program = File::llama().lower();
    let one_layer = program
        .listing()
        .lines()
        .skip(2)
        .take(16)
        .map(|line| line[24..].trim().to_owned())
        .collect::<Vec<_>>();
    assert_eq!(
        one_layer,
        [
            "rms_norm  %0 blk.0.attn_norm.weight group 8 eps 1e-6",
            "linear    %1 blk.0.attn_q.weight",
            "linear    %1 blk.0.attn_k.weight",
            "linear    %1 blk.0.attn_v.weight",
            "rope      %2 rope 0 head_dim 2",
            "rope      %3 rope 0 head_dim 2",
            "attention %5 %6 %4 cache 0 heads 4 scale 0.70710677",
            "linear    %7 blk.0.attn_output.weight",
            "add       %0 %8",
            "rms_norm  %9 blk.0.ffn_norm.weight group 8 eps 1e-6",
            "linear    %10 blk.0.ffn_gate.weight",
            "linear    %10 blk.0.ffn_up.weight",
            "gated     %11 %12 Silu",
            "linear    %13 blk.0.ffn_down.weight",
            "add       %9 %14  ; layer.0",
            "rms_norm  %15 blk.1.attn_norm.weight group 8 eps 1e-6",
        ]
    );
    assert_eq!(
        (program.vocab, program.context_length, program.caches.len()),
        (VOCAB, 64, 3)
    );
    let marks: Vec<_> = program
        .marks
        .iter()
        .map(|(name, _)| name.as_str())
        .collect();
    assert_eq!(
        marks,
        ["embedding", "layer.0", "layer.1", "layer.2", "final_norm"]
    );
}

#[test]
fn the_output_is_tied_unless_the_file_has_its_own() {
    let last = |file: &File| {
        file.lower()
            .listing()
            .lines()
            .rev()
            .nth(1)
            .unwrap()
            .to_owned()
    };
    assert!(last(&File::llama()).ends_with("token_embd.weight"));
    assert!(
        last(File::llama().tensor("output.weight", &[VOCAB, WIDTH])).ends_with(" output.weight")
    );
}

#[test]
fn biases_are_used_where_there_are_any() {
    let program = File::llama().tensor("blk.1.attn_q.bias", &[8]).lower();
    assert_eq!(
        count(&program, |op| matches!(
            op,
            Op::Linear { bias: Some(_), .. }
        )),
        1
    );
    assert!(
        program
            .listing()
            .contains("blk.1.attn_q.weight blk.1.attn_q.bias")
    );
}

#[test]
fn numbers_may_differ_by_layer() {
    let mut file = File::llama();
    file.set("attention.head_count_kv", vec![2u32, 4, 1])
        .set("feed_forward_length", vec![12i32, 12, 20]);
    for (layer, width) in [(1, 8), (2, 2)] {
        file.tensor(&format!("blk.{layer}.attn_k.weight"), &[width, WIDTH]);
        file.tensor(&format!("blk.{layer}.attn_v.weight"), &[width, WIDTH]);
    }
    file.tensor("blk.2.ffn_gate.weight", &[20, WIDTH])
        .tensor("blk.2.ffn_up.weight", &[20, WIDTH]);
    file.tensor("blk.2.ffn_down.weight", &[WIDTH, 20]);
    let kv_heads: Vec<_> = file
        .lower()
        .caches
        .iter()
        .map(|cache| cache.kv_heads)
        .collect();
    assert_eq!(kv_heads, [2, 4, 1]);
}

#[test]
fn rope_follows_base_scaling_table_and_partial_rotation() {
    let mut file = File::llama();
    file.set("attention.head_count", 1u32)
        .set("attention.head_count_kv", 1u32);
    for layer in 0..3 {
        file.tensor(&format!("blk.{layer}.attn_k.weight"), &[8, WIDTH]);
        file.tensor(&format!("blk.{layer}.attn_v.weight"), &[8, WIDTH]);
    }
    let rope = |file: &File| {
        let mut ropes = file.lower().ropes;
        assert_eq!(
            (ropes.len(), ropes[0].style, ropes[0].magnitude),
            (1, RopeStyle::Interleaved, 1.0)
        );
        ropes.remove(0).inverse_frequencies
    };
    assert_eq!(rope(&file), [1.0, 0.1, 0.01, 0.001]);
    file.set("rope.freq_base", 16f32);
    assert_eq!(rope(&file), [1.0, 0.5, 0.25, 0.125]);
    file.set("rope.scaling.factor", 2f32);
    assert_eq!(rope(&file), [0.5, 0.25, 0.125, 0.0625]);
    file.set("rope.scaling.type", "linear");
    assert_eq!(rope(&file), [0.5, 0.25, 0.125, 0.0625]);
    file.set("rope.scaling.type", "none");
    assert_eq!(rope(&file), [1.0, 0.5, 0.25, 0.125]);
    file.set("rope.dimension_count", 4u32);
    assert_eq!(rope(&file), [1.0, 0.25]);
    // The table of these tests is 0.5 throughout.
    file.tensor("rope_freqs.weight", &[2]);
    assert_eq!(rope(&file), [2.0, 0.5]);
    assert_eq!(
        summarize(&file.weights()).unwrap().rope,
        "base 16, frequencies scaled by table, 4 of 8 elements"
    );
    file.tensor("rope_freqs.weight", &[3]);
    assert_eq!(
        file.refusal(),
        "m.gguf: tensor rope_freqs.weight: found [3], expected [2], one for each pair"
    );
    file.set("rope.scaling.type", "su");
    assert_eq!(
        file.refusal(),
        "m.gguf: key llama.rope.scaling.type: found \"su\", expected none, linear or yarn"
    );
    let mut gemma = File::new("gemma3", 1);
    gemma
        .set("rope.scaling.type", "yarn")
        .set("rope.scaling.factor", 4f32);
    assert_eq!(
        gemma.refusal(),
        "m.gguf: key gemma3.rope.scaling.type: found \"yarn\", expected none or linear"
    );
}

#[test]
fn yarn_stretches_slow_pairs_and_keeps_fast_ones() {
    let mut file = File::new("qwen2", 1);
    // One head of 8: 4 pairs, frequencies 1, 0.1, 0.01, 0.001.
    file.set("attention.head_count", 1u32)
        .set("attention.head_count_kv", 1u32)
        .set("rope.scaling.type", "yarn");
    for name in ["attn_k", "attn_v"] {
        file.tensor(&format!("blk.0.{name}.weight"), &[8, WIDTH])
            .tensor(&format!("blk.0.{name}.bias"), &[8]);
    }
    let refusal = file.refusal();
    assert_eq!(
        refusal,
        "m.gguf: key qwen2.rope.scaling.factor: missing, expected f32"
    );
    file.set("rope.scaling.factor", 4f32);
    // 2^12 positions: 4096 / (32 * 2 pi) = 20.4 turns into pair 1.3, 4096 / (2 pi) = 652 into pair 2.8; so the ramp goes
    // from pair 1 to pair 3, and is half way at pair 2.
    file.set("rope.scaling.original_context_length", 4096u32);
    let rope = |file: &File| file.lower().ropes.remove(0);
    let found = rope(&file);
    assert_eq!(found.style, RopeStyle::Halves);
    assert_eq!(
        found.inverse_frequencies,
        [1.0, 0.1, 0.01 * (1.0 + 0.25) / 2.0, 0.001 / 4.0]
    );
    assert_eq!(found.magnitude, 0.1 * 4f32.ln() + 1.0);
    assert_eq!(
        summarize(&file.weights()).unwrap().rope,
        "base 10000, YaRN scaling by 4 from 4096 positions"
    );
    file.set("rope.scaling.attn_factor", 0.5f32);
    assert_eq!(rope(&file).magnitude, 0.5 * (0.1 * 4f32.ln() + 1.0));
    // The more turns count as fast, the fewer pairs keep their frequency.
    file.set("rope.scaling.yarn_beta_fast", 4096f32)
        .set("rope.scaling.yarn_beta_slow", 652f32);
    assert_eq!(
        rope(&file).inverse_frequencies,
        [1.0, 0.025, 0.0025, 0.00025]
    );
    // Without an original context, that of the model counts: 64 positions.
    file.meta
        .remove("qwen2.rope.scaling.original_context_length");
    assert_eq!(
        summarize(&file.weights()).unwrap().rope,
        "base 10000, YaRN scaling by 4 from 64 positions"
    );
    for (key, value, expected) in [
        (
            "rope.scaling.factor",
            0f32,
            "found 0, expected a finite number above 0",
        ),
        (
            "rope.scaling.yarn_beta_slow",
            f32::INFINITY,
            "found inf, expected a finite number above 0",
        ),
        (
            "rope.scaling.attn_factor",
            -1.0,
            "found -1, expected a finite number above 0",
        ),
        ("rope.scaling.yarn_ext_factor", 0.5, "found 0.5, expected 1"),
    ] {
        let mut file = file.clone();
        file.set(key, value);
        assert_eq!(
            file.refusal(),
            format!("m.gguf: key qwen2.{key}: {expected}")
        );
    }
}

#[test]
fn qwen2_has_biases_on_queries_keys_and_values() {
    let mut file = File::new("qwen2", 2);
    let biased = |op: &Op| matches!(op, Op::Linear { bias: Some(_), .. });
    assert_eq!(count(&file.lower(), biased), 2 * 3);
    file.tensors.remove("blk.1.attn_v.bias");
    assert_eq!(
        file.refusal(),
        "m.gguf: blk.1.attn_v.bias: tensor is missing"
    );
    file.tensor("blk.1.attn_v.bias", &[8]);
    assert_eq!(
        file.refusal(),
        "m.gguf: blk.1.attn_v.bias: expected [4], got [8]"
    );
}

#[test]
fn gemma3_alternates_windows_and_bases() {
    let mut file = File::new("gemma3", 7);
    assert_eq!(windows(&file.lower()), [None; 7]);
    file.set("attention.sliding_window", 5u32);
    let w = Some(5);
    assert_eq!(windows(&file.lower()), [w, w, w, w, w, None, w]);
    assert_eq!(
        summarize(&file.weights()).unwrap().window,
        "window of 5 in 6 of 7 layers"
    );
    file.set("attention.sliding_window_pattern", 2u32);
    assert_eq!(windows(&file.lower()), [w, None, w, None, w, None, w]);
    file.set(
        "attention.sliding_window_pattern",
        vec![true, false, false, true, true, true, false],
    );
    assert_eq!(windows(&file.lower()), [w, None, None, w, w, w, None]);
    file.set(
        "attention.sliding_window_pattern",
        vec![0i32, 1, 1, 0, 0, 0, 1],
    );
    assert_eq!(windows(&file.lower()), [None, w, w, None, None, None, w]);
    file.set("rope.freq_base", 1e6f32)
        .set("rope.scaling.factor", 8f32)
        .set("rope.scaling.type", "linear");
    let program = file.lower();
    let ropes: Vec<_> = program
        .ropes
        .iter()
        .map(|rope| (rope.style, rope.inverse_frequencies[0]))
        .collect();
    // Only global layers are scaled.
    assert_eq!(
        ropes,
        [(RopeStyle::Halves, 1.0), (RopeStyle::Halves, 0.125)]
    );
    let used = program.ops.iter().filter_map(|op| {
        if let Op::Rope { rope, .. } = op {
            Some(rope.0)
        } else {
            None
        }
    });
    assert_eq!(
        used.collect::<Vec<_>>(),
        [1, 1, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 0, 0]
    );
    file.set("attention.sliding_window_pattern", vec![true; 6]);
    assert_eq!(
        file.refusal(),
        "m.gguf: key gemma3.attention.sliding_window_pattern: found an array of 6, expected one element for each of 7 layers"
    );
    file.set("attention.sliding_window_pattern", 0u32);
    assert_eq!(
        file.refusal(),
        "m.gguf: key gemma3.attention.sliding_window_pattern: found 0, expected at least 1"
    );
}

#[test]
fn gemma3_scales_embeddings_norms_and_scores() {
    let mut file = File::new("gemma3", 2);
    let program = file.lower();
    assert!(matches!(program.ops[0], Op::Embed { scale, .. } if scale == 8f32.sqrt()));
    assert_eq!(
        count(&program, |op| matches!(op, Op::RmsNorm { group: 2, .. })),
        4
    );
    assert_eq!(
        count(&program, |op| matches!(op, Op::RmsNorm { group: 8, .. })),
        2 * 4 + 1
    );
    assert_eq!(count(&program, |op| matches!(op, Op::SoftCap { .. })), 0);
    file.set("final_logit_softcapping", 30f32)
        .set("attn_logit_softcapping", 50f32);
    let program = file.lower();
    assert_eq!(
        count(&program, |op| matches!(op, Op::SoftCap { cap: 30.0, .. })),
        1
    );
    assert_eq!(
        count(&program, |op| matches!(
            op,
            Op::Attention {
                soft_cap: Some(50.0),
                ..
            }
        )),
        2
    );
    file.set("final_logit_softcapping", 0f32);
    assert_eq!(
        count(&file.lower(), |op| matches!(op, Op::SoftCap { .. })),
        0
    );
    // The 27B model alone scales by the width over the heads.
    let scale = |layers| {
        let mut file = File::new("gemma3", layers);
        file.set("attention.key_length", 4u32);
        for layer in 0..layers {
            for (name, shape) in [
                ("attn_q", vec![16, WIDTH]),
                ("attn_k", vec![8, WIDTH]),
                ("attn_q_norm", vec![4]),
                ("attn_k_norm", vec![4]),
            ] {
                file.tensor(&format!("blk.{layer}.{name}.weight"), &shape);
            }
        }
        let scales = file.lower().ops.into_iter().find_map(|op| {
            if let Op::Attention { scale, .. } = op {
                Some(scale)
            } else {
                None
            }
        });
        scales.unwrap()
    };
    assert_eq!((scale(61), scale(62)), (0.5, 0.5f32.sqrt()));
}

#[test]
fn unknown_architectures_are_named_with_those_known() {
    let mut file = File::llama();
    file.meta
        .insert("general.architecture".into(), "mamba\n9".into());
    assert_eq!(
        file.refusal(),
        "m.gguf: key general.architecture: found \"mamba\\n9\", expected one of gemma3, llama, qwen2"
    );
    file.meta.remove("general.architecture");
    assert_eq!(
        file.refusal(),
        "m.gguf: key general.architecture: missing, expected string"
    );
}

#[test]
fn hostile_metadata_gets_one_clear_line() {
    let refused = |key: &str, value: OwnedValue| {
        let mut file = File::llama();
        file.set(key, value);
        let line = file.refusal();
        assert_eq!(line, summarize(&file.weights()).unwrap_err().to_string());
        line.strip_prefix(&format!("m.gguf: key llama.{key}: "))
            .unwrap_or(&line)
            .to_owned()
    };
    let cases: [(&str, OwnedValue, &str); 21] = [
        ("block_count", 0u32.into(), "found 0, expected at least 1"),
        (
            "block_count",
            1_000_000_000u32.into(),
            "found 1000000000, expected at most 29, the number of tensors in the file",
        ),
        (
            "block_count",
            "3".into(),
            "found string \"3\", expected an unsigned integer",
        ),
        (
            "context_length",
            0u32.into(),
            "found 0, expected at least 1",
        ),
        (
            "embedding_length",
            0u32.into(),
            "found 0, expected at least 1",
        ),
        (
            "feed_forward_length",
            0u32.into(),
            "found 0 in layer 0, expected at least 1 in every layer",
        ),
        (
            "feed_forward_length",
            vec![12u32, 12].into(),
            "found an array of 2, expected one number, or an array of 3, one for each layer",
        ),
        (
            "attention.head_count",
            0u32.into(),
            "found 0 in layer 0, expected at least 1 in every layer",
        ),
        (
            "attention.head_count",
            6u32.into(),
            "found 6, expected a divisor of embedding_length, 8, or a key attention.key_length",
        ),
        (
            "attention.head_count_kv",
            0u32.into(),
            "found 0 in layer 0, expected at least 1 in every layer",
        ),
        (
            "attention.head_count_kv",
            vec![2u32, 0, 4].into(),
            "found 0 in layer 1, expected at least 1 in every layer",
        ),
        (
            "attention.head_count_kv",
            3u32.into(),
            "found 3, expected a divisor of attention.head_count, 4 in layer 0",
        ),
        (
            "attention.head_count_kv",
            8u32.into(),
            "found 8, expected a divisor of attention.head_count, 4 in layer 0",
        ),
        (
            "attention.key_length",
            0u32.into(),
            "found 0, expected at least 1",
        ),
        (
            "attention.key_length",
            3u32.into(),
            "found 3, expected an even number of rotated elements, at most 3",
        ),
        (
            "attention.key_length",
            u64::MAX.into(),
            "found 18446744073709551615, expected at most 65536",
        ),
        (
            "rope.dimension_count",
            1u32.into(),
            "found 1, expected an even number of rotated elements, at most 2",
        ),
        (
            "rope.dimension_count",
            4u32.into(),
            "found 4, expected an even number of rotated elements, at most 2",
        ),
        (
            "rope.freq_base",
            f32::NAN.into(),
            "found NaN, expected a finite number above 0",
        ),
        (
            "attention.layer_norm_rms_epsilon",
            (-1f32).into(),
            "found -1, expected a small number, not negative",
        ),
        (
            "expert_count",
            8u32.into(),
            "found 8, expected 0: mixtures of experts are not supported",
        ),
    ];
    for (key, value, expected) in cases {
        assert_eq!(refused(key, value), expected, "{key}");
    }
    for key in [
        "block_count",
        "embedding_length",
        "context_length",
        "attention.head_count",
        "feed_forward_length",
    ] {
        let mut file = File::llama();
        file.meta.remove(&format!("llama.{key}"));
        assert_eq!(
            file.refusal(),
            format!("m.gguf: key llama.{key}: missing, expected an unsigned integer")
        );
    }
}

#[test]
fn tensors_that_do_not_fit_the_metadata_are_named() {
    let refused = |alter: fn(&mut File)| {
        let mut file = File::llama();
        alter(&mut file);
        file.refusal()
    };
    type Alteration = fn(&mut File);
    let cases: [(Alteration, &str); 7] = [
        (
            |f| {
                f.tensors.remove("token_embd.weight");
            },
            "m.gguf: tensor token_embd.weight: missing",
        ),
        (
            |f| {
                f.tensors.remove("blk.2.ffn_up.weight");
            },
            "m.gguf: blk.2.ffn_up.weight: tensor is missing",
        ),
        (
            |f| {
                f.tensor("output.weight", &[9, WIDTH]);
            },
            "m.gguf: output.weight: expected [10, 8], got [9, 8]",
        ),
        (
            |f| {
                f.tensor("blk.0.attn_k.weight", &[8, WIDTH]);
            },
            "m.gguf: blk.0.attn_k.weight: expected [4, 8], got [8, 8]",
        ),
        (
            |f| {
                f.set("embedding_length", u32::MAX);
                f.set("attention.key_length", 2u32)
                    .set("attention.value_length", 2u32);
            },
            "m.gguf: token_embd.weight: expected [10, 4294967295], got [10, 8]",
        ),
        (
            |f| {
                f.set("attention.head_count", u64::MAX)
                    .set("attention.head_count_kv", u64::MAX);
                f.set("attention.key_length", 2u32)
                    .set("attention.value_length", 2u32);
            },
            "m.gguf: blk.0.attn_q.weight: expected [18446744073709551615, 8], got [8, 8]",
        ),
        (
            |f| {
                f.tensor("blk.0.attn_sinks.weight", &[4]);
            },
            "m.gguf: tensor \"blk.0.attn_sinks.weight\" has no place in architecture llama",
        ),
    ];
    for (alter, expected) in cases {
        assert_eq!(refused(alter), expected);
    }
    let mut gemma = File::new("gemma3", 1);
    gemma.tensor("rope_freqs.weight", &[1]);
    assert_eq!(
        gemma.refusal(),
        "m.gguf: tensor \"rope_freqs.weight\" has no place in architecture gemma3"
    );
}

#[test]
fn summaries_of_real_and_tiny_models() {
    let summary = |path: &Path| summarize(&Weights::open(path).unwrap()).unwrap();
    let smollm = summary(&real_model_path("smollm2-135m"));
    assert_eq!(
        smollm.name.as_deref(),
        Some("Smollm2 135M 8k Lc100K Mix1 Ep2")
    );
    assert_eq!(
        (smollm.architecture.as_str(), smollm.parameters),
        ("llama", 134_515_008)
    );
    assert_eq!(
        (smollm.layers, smollm.width, smollm.feed_forward),
        (30, 576, 1536)
    );
    assert_eq!((smollm.heads, smollm.kv_heads, smollm.head_dim), (9, 3, 64));
    assert_eq!((smollm.vocab, smollm.context_length), (49_152, 8192));
    assert_eq!(
        (smollm.quantization.as_str(), smollm.rope.as_str()),
        ("Q4_1", "base 100000")
    );
    assert_eq!(smollm.window, "full attention");
    let gemma = summary(&real_model_path("gemma3-270m"));
    assert_eq!(
        (gemma.architecture.as_str(), gemma.quantization.as_str()),
        ("gemma3", "Q4_K - Medium")
    );
    assert_eq!(
        (
            gemma.heads,
            gemma.kv_heads,
            gemma.head_dim,
            gemma.parameters
        ),
        (4, 1, 256, 268_098_176)
    );
    assert_eq!(gemma.window, "window of 512 in 15 of 18 layers");
    assert_eq!(
        gemma.rope,
        "base 10000 in windowed layers, 1000000 in full ones"
    );
    let scaled = summary(&fixture("tiny/gemma3-text-linear8/model-f32.gguf"));
    assert_eq!(
        scaled.rope,
        "base 10000 in windowed layers, 1000000 in full ones with linear scaling by 8"
    );
    assert_eq!(scaled.quantization, "F32");
    // Without `general.file_type`, the type of most bytes counts.
    assert_eq!(
        summarize(&File::llama().weights()).unwrap().quantization,
        "F32"
    );
}

fn any_value() -> impl Strategy<Value = OwnedValue> {
    let numbers = prop_oneof![
        Just(0u64),
        1..20u64,
        Just(u64::from(u32::MAX)),
        Just(1 << 62),
        any::<u64>()
    ];
    prop_oneof![
        numbers.clone().prop_map(OwnedValue::U64),
        any::<i32>().prop_map(OwnedValue::I32),
        any::<f32>().prop_map(OwnedValue::F32),
        any::<bool>().prop_map(OwnedValue::Bool),
        ".{0,8}".prop_map(OwnedValue::String),
        prop::collection::vec(numbers, 0..5).prop_map(OwnedValue::from),
        prop::collection::vec(any::<f32>(), 0..5).prop_map(OwnedValue::from),
        prop::collection::vec(any::<bool>(), 7).prop_map(OwnedValue::from),
    ]
}

proptest! {
    /// Whatever the metadata say, there is a valid program or one line; never a panic or a long wait.
    #[test]
    fn any_metadata_give_a_program_or_one_line(
        architecture in prop::sample::select(vec!["gemma3", "llama", "qwen2"]),
        yarn in any::<bool>(),
        changes in prop::collection::vec((any::<prop::sample::Index>(), any_value()), 1..4),
    ) {
        const KEYS: [&str; 23] = [
            "block_count", "embedding_length", "context_length", "feed_forward_length", "attention.head_count",
            "attention.head_count_kv", "attention.key_length", "attention.value_length", "rope.dimension_count",
            "rope.freq_base", "rope.freq_base_swa", "rope.scaling.type", "rope.scaling.factor",
            "attention.layer_norm_rms_epsilon", "attention.sliding_window", "attention.sliding_window_pattern",
            "final_logit_softcapping", "expert_count", "rope.scaling.original_context_length",
            "rope.scaling.attn_factor", "rope.scaling.yarn_attn_factor", "rope.scaling.yarn_beta_fast",
            "rope.scaling.yarn_beta_slow",
        ];
        let mut file = File::new(architecture, if architecture == "gemma3" { 7 } else { 3 });
        if yarn {
            file.set("rope.scaling.type", "yarn").set("rope.scaling.factor", 2f32);
        }
        for (key, value) in changes {
            file.set(KEYS[key.index(KEYS.len())], value);
        }
        let weights = file.weights();
        match lower(&weights) {
            Ok(program) => {
                prop_assert!(program.validate().is_ok());
                prop_assert!(summarize(&weights).is_ok());
            }
            Err(error) => prop_assert!(!error.to_string().contains('\n'), "{error}"),
        }
    }
}
