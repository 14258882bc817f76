//! Files that are refused, each in one line.

use crate::file::{File, WIDTH};
use backplane_models::{lower, summarize};
use backplane_weights::writer::OwnedValue;
use proptest::prelude::*;

#[test]
fn unknown_architectures_are_named_with_those_known() {
    let mut file = File::llama();
    file.meta
        .insert("general.architecture".into(), "mamba\n9".into());
    assert_eq!(
        file.refusal(),
        "m.gguf: key general.architecture: found \"mamba\\n9\", expected one of deepseek2, gemma3, llama, phi3, qwen2, qwen2moe, qwen3, \
         qwen3moe"
    );
    file.meta.remove("general.architecture");
    assert_eq!(
        file.refusal(),
        "m.gguf: key general.architecture: missing, expected string"
    );
}

#[test]
fn hostile_metadata_gets_one_clear_line() {
    for architecture in ["llama", "phi3", "qwen2", "qwen2moe", "qwen3", "qwen3moe"] {
        hostile_metadata(architecture, || File::new(architecture, 3));
    }
    hostile_metadata("llama", || File::mixtral(3));
}

fn hostile_metadata(architecture: &str, file: impl Fn() -> File) {
    let most_layers = format!(
        "found 1000000000, expected at most {}, the number of tensors in the file",
        file().tensors.len()
    );
    let refused = |key: &str, value: OwnedValue| {
        let mut file = file();
        file.set(key, value);
        let line = file.refusal();
        assert_eq!(line, summarize(&file.weights()).unwrap_err().to_string());
        line.strip_prefix(&format!("m.gguf: key {architecture}.{key}: "))
            .unwrap_or(&line)
            .to_owned()
    };
    let cases: [(&str, OwnedValue, &str); 20] = [
        ("block_count", 0u32.into(), "found 0, expected at least 1"),
        ("block_count", 1_000_000_000u32.into(), &most_layers),
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
        let mut file = file();
        file.meta.remove(&format!("{architecture}.{key}"));
        assert_eq!(
            file.refusal(),
            format!("m.gguf: key {architecture}.{key}: missing, expected an unsigned integer")
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
        architecture in prop::sample::select(vec![
            "deepseek2", "gemma3", "llama", "mixtral", "phi3", "qwen2", "qwen2moe", "qwen3", "qwen3moe",
        ]),
        (yarn, long) in any::<(bool, bool)>(),
        changes in prop::collection::vec((any::<prop::sample::Index>(), any_value()), 1..4),
    ) {
        const KEYS: [&str; 37] = [
            "block_count", "embedding_length", "context_length", "feed_forward_length", "attention.head_count",
            "attention.head_count_kv", "attention.key_length", "attention.value_length", "rope.dimension_count",
            "rope.freq_base", "rope.freq_base_swa", "rope.scaling.type", "rope.scaling.factor",
            "attention.layer_norm_rms_epsilon", "attention.sliding_window", "attention.sliding_window_pattern",
            "final_logit_softcapping", "expert_count", "rope.scaling.original_context_length",
            "rope.scaling.attn_factor", "rope.scaling.yarn_attn_factor", "rope.scaling.yarn_beta_fast",
            "rope.scaling.yarn_beta_slow", "rope.scaling.yarn_log_multiplier", "expert_used_count",
            "expert_feed_forward_length", "expert_group_count", "expert_group_used_count", "expert_gating_func",
            "expert_weights_scale", "expert_weights_norm", "expert_shared_count", "leading_dense_block_count",
            "attention.key_length_mla", "attention.kv_lora_rank", "attention.q_lora_rank", "attention.scale",
        ];
        let mut file = match architecture {
            "mixtral" => File::mixtral(3),
            "gemma3" => File::new("gemma3", 7),
            _ => File::new(architecture, 3),
        };
        if long && architecture == "phi3" {
            file.tensor("rope_factors_long.weight", &[1]).tensor("rope_factors_short.weight", &[1]);
        }
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

#[test]
fn keys_that_would_change_the_arithmetic_are_not_passed_over() {
    for (key, value) in [
        ("attention.clamp_kqv", OwnedValue::from(8.0f32)),
        ("attention.scale", 0.5f32.into()),
        ("attn_logit_softcapping", 50.0f32.into()),
        ("final_logit_softcapping", 30.0f32.into()),
        ("rope.scaling.yarn_log_multiplier", 0.1f32.into()),
        ("use_parallel_residual", true.into()),
    ] {
        let mut file = File::new("llama", 3);
        file.set(key, value);
        let line = file.refusal();
        assert!(
            line.starts_with(&format!("m.gguf: key llama.{key}: found ")),
            "{line}"
        );
    }
    // What changes nothing is no reason to refuse.
    for (key, value) in [
        ("final_logit_softcapping", OwnedValue::from(0.0f32)),
        ("rope.scaling.yarn_log_multiplier", 0.0f32.into()),
        ("use_parallel_residual", false.into()),
    ] {
        let mut file = File::new("llama", 3);
        file.set(key, value);
        assert!(lower(&file.weights()).is_ok(), "{key}");
    }
    // Llama with a window is Mistral; Qwen 2 with one is nothing known, unless the window holds the whole context.
    let mut file = File::new("qwen2", 3);
    file.set("attention.sliding_window", 64u32);
    assert!(lower(&file.weights()).is_ok());
    for (key, value) in [("attention.sliding_window", 63u32), ("expert_count", 8)] {
        let mut file = File::new("qwen2", 3);
        file.set(key, value);
        let expected = format!(
            "m.gguf: key qwen2.{key}: found {value}, expected no such key: qwen2 is run without it"
        );
        assert_eq!(file.refusal(), expected);
        assert_eq!(
            summarize(&file.weights()).unwrap_err().to_string(),
            expected
        );
    }
}
