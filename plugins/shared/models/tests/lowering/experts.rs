//! Mixtures of experts and latent attention.

use crate::file::{File, WIDTH, count, windows};
use backplane_models::summarize;
use backplane_program::{CachedValues, ExpertGroups, Op, Program, RopeStyle, Scoring};
use backplane_weights::writer::OwnedValue;

/// The routers of a program: scoring, experts used, whether weights are normalised, and their factor.
fn routers(program: &Program) -> Vec<(Scoring, usize, bool, f32)> {
    let router = |op: &Op| match op {
        Op::Route {
            scoring,
            used,
            normalise,
            scale,
            ..
        } => Some((*scoring, *used, *normalise, *scale)),
        _ => None,
    };
    program.ops.iter().filter_map(router).collect()
}

fn dense_layers(program: &Program) -> usize {
    count(program, |op| matches!(op, Op::Gated { .. }))
}

fn routing(file: &File) -> Option<String> {
    summarize(&file.weights()).unwrap().routing
}

#[test]
fn llama_with_experts_is_mixtral() {
    let mut file = File::mixtral(2);
    let program = file.lower();
    assert_eq!(routers(&program), [(Scoring::Softmax, 2, true, 1.0); 2]);
    assert_eq!(dense_layers(&program), 0);
    let listing = program.listing();
    for line in [
        "route     %11 Softmax used 2 normalise scale 1",
        "experts   %10 %12 blk.0.ffn_gate_exps.weight[0..6] blk.0.ffn_up_exps.weight[0..6] \
         blk.0.ffn_down_exps.weight[0..8] experts 4 Silu",
    ] {
        assert!(listing.contains(line), "{listing}");
    }
    assert_eq!(
        routing(&file).as_deref(),
        Some("2 of 4 experts by softmax, weights normalised")
    );
    assert_eq!(routing(&File::llama()), None);
    assert_eq!(windows(&program), [None; 2]);
    file.set("attention.sliding_window", 7u32);
    assert_eq!(windows(&file.lower()), [Some(7); 2]);
    // Experts as wide as the feed-forward is said to be.
    file.meta.remove("llama.expert_feed_forward_length");
    assert_eq!(
        file.refusal(),
        "m.gguf: blk.0.ffn_gate_exps.weight: expected [4, 12, 8], got [4, 6, 8]"
    );
    file.set("feed_forward_length", vec![6u32, 6]);
    assert_eq!(routers(&file.lower()).len(), 2);
}

#[test]
fn llama_with_a_window_is_mistral() {
    let mut file = File::llama();
    assert_eq!(windows(&file.lower()), [None; 3]);
    file.set("attention.sliding_window", 9u32);
    assert_eq!(windows(&file.lower()), [Some(9); 3]);
    let summary = summarize(&file.weights()).unwrap();
    assert_eq!(summary.window, "window of 9 in every layer");
}

#[test]
fn assembled_llamas_rotate_halves() {
    for mut file in [File::llama(), File::mixtral(1), File::new("deepseek2", 1)] {
        let style = |file: &File| file.lower().ropes[0].style;
        assert_eq!(style(&file), RopeStyle::Interleaved);
        let key = "backplane.rope.style";
        file.meta.insert(key.into(), "halves".into());
        assert_eq!(style(&file), RopeStyle::Halves);
        file.meta.insert(key.into(), "thirds\n".into());
        assert_eq!(
            file.refusal(),
            "m.gguf: key backplane.rope.style: found \"thirds\\n\", expected halves, or no such key"
        );
    }
}

#[test]
fn experts_may_be_stored_singly() {
    let mut file = File::mixtral(1);
    let stacked = file.lower();
    for (name, shape) in [
        ("gate", [6, WIDTH]),
        ("up", [6, WIDTH]),
        ("down", [WIDTH, 6]),
    ] {
        file.tensors
            .remove(&format!("blk.0.ffn_{name}_exps.weight"));
        for expert in 0..4 {
            file.tensor(&format!("blk.0.ffn_{name}.{expert}.weight"), &shape);
        }
    }
    let program = file.lower();
    assert_eq!(program.weights.len(), stacked.weights.len());
    assert!(
        program
            .listing()
            .contains("blk.0.ffn_down.0.weight experts 4")
    );
    file.tensors.remove("blk.0.ffn_up.3.weight");
    assert_eq!(
        file.refusal(),
        "m.gguf: blk.0.ffn_up.3.weight: tensor is missing"
    );
    file.tensor("blk.0.ffn_up.3.weight", &[7, WIDTH]);
    assert_eq!(
        file.refusal(),
        "m.gguf: blk.0.ffn_up.3.weight: expected [6, 8], got [7, 8]"
    );
    file.tensor("blk.0.ffn_up.3.weight", &[6, WIDTH])
        .tensor("blk.0.ffn_up.4.weight", &[6, WIDTH]);
    assert_eq!(
        file.refusal(),
        "m.gguf: tensor \"blk.0.ffn_up.4.weight\" has no place in architecture llama"
    );
}

#[test]
fn gates_and_ups_may_be_stored_as_one() {
    let mut file = File::mixtral(1);
    for name in ["gate", "up"] {
        file.tensors
            .remove(&format!("blk.0.ffn_{name}_exps.weight"));
    }
    file.tensor("blk.0.ffn_gate_up_exps.weight", &[4, 12, WIDTH]);
    let program = file.lower();
    let listing = program.listing();
    assert!(
        listing
            .contains("blk.0.ffn_gate_up_exps.weight[0..6] blk.0.ffn_gate_up_exps.weight[6..12]"),
        "{listing}"
    );
    let last_up = program
        .weights
        .iter()
        .filter_map(|weight| weight.view.as_ref());
    assert!(last_up.into_iter().any(|view| view.first == 3 * 12 + 6));
    file.tensor("blk.0.ffn_gate_up_exps.weight", &[4, 6, WIDTH]);
    assert_eq!(
        file.refusal(),
        "m.gguf: blk.0.ffn_gate_up_exps.weight: expected [4, 12, 8], got [4, 6, 8]"
    );
}

#[test]
fn qwen2_moe_has_an_expert_behind_a_gate_of_its_own() {
    let mut file = File::new("qwen2moe", 2);
    let program = file.lower();
    let (routed, gate) = (
        (Scoring::Softmax, 2, false, 1.0),
        (Scoring::Sigmoid, 1, false, 1.0),
    );
    assert_eq!(routers(&program), [routed, gate, routed, gate]);
    assert_eq!(
        routing(&file).as_deref(),
        Some("2 of 4 experts by softmax; one that sees all, gated")
    );
    // Some files have the gate as a vector.
    file.tensor("blk.1.ffn_gate_inp_shexp.weight", &[WIDTH]);
    assert_eq!(routers(&file.lower()).len(), 4);
    file.tensor("blk.1.ffn_gate_inp_shexp.weight", &[2, WIDTH]);
    assert_eq!(
        file.refusal(),
        "m.gguf: blk.1.ffn_gate_inp_shexp.weight: expected [1, 8], got [2, 8]"
    );
    file.set("expert_weights_norm", true);
    file.tensor("blk.1.ffn_gate_inp_shexp.weight", &[1, WIDTH]);
    assert_eq!(routers(&file.lower())[0], (Scoring::Softmax, 2, true, 1.0));
}

#[test]
fn layers_of_qwen_mixtures_may_be_dense() {
    for architecture in ["qwen2moe", "qwen3moe"] {
        let mut file = File::new(architecture, 3);
        assert_eq!(dense_layers(&file.lower()), 0);
        for (name, shape) in [
            ("gate", [12, WIDTH]),
            ("up", [12, WIDTH]),
            ("down", [WIDTH, 12]),
        ] {
            file.tensor(&format!("blk.1.ffn_{name}.weight"), &shape);
        }
        let both = file.refusal();
        assert!(both.contains("has no place in architecture"), "{both}");
        file.tensors.retain(|name, _| {
            !name.starts_with("blk.1.ffn_")
                || ["_gate.", "_up.", "_down.", "_norm."]
                    .iter()
                    .any(|part| name.contains(part))
        });
        assert_eq!(dense_layers(&file.lower()), 1);
    }
}

#[test]
fn qwen3_moe_normalises_weights_and_heads() {
    let file = File::new("qwen3moe", 2);
    let program = file.lower();
    assert_eq!(routers(&program), [(Scoring::Softmax, 2, true, 1.0); 2]);
    let head_norm = |op: &Op| matches!(op, Op::RmsNorm { group: 2, .. });
    assert_eq!(count(&program, head_norm), 2 * 2);
}

#[test]
fn deepseek_caches_latents_and_compares_with_absorbed_queries() {
    let mut file = File::new("deepseek2", 2);
    let program = file.lower();
    let cache = program.caches[1];
    assert_eq!(
        (cache.kv_heads, cache.key_dim, cache.value_dim, cache.values),
        (1, 6, 4, CachedValues::InKeys)
    );
    assert_eq!(cache.width(), Some(6));
    let marked: Vec<_> = program
        .marks
        .iter()
        .filter(|(name, _)| name.starts_with("layer.1."))
        .map(|(name, id)| (name.as_str(), program.values[id.0].width))
        .collect();
    assert_eq!(marked, [("layer.1.queries", 4 * 6), ("layer.1.keys", 6)]);
    let scale = |file: &File| {
        let program = file.lower();
        let scale = program.ops.iter().find_map(|op| match op {
            Op::Attention { scale, .. } => Some(*scale),
            _ => None,
        });
        (scale.unwrap(), program.ropes[0].magnitude)
    };
    // Heads of 3 + 2 elements, whatever the latent is wide.
    assert_eq!(scale(&file), (1.0 / 5f32.sqrt(), 1.0));
    file.set("rope.scaling.type", "yarn")
        .set("rope.scaling.factor", 4f32);
    let usual = 0.1 * 4f32.ln() + 1.0;
    assert_eq!(scale(&file), (1.0 / 5f32.sqrt(), usual));
    file.set("rope.scaling.yarn_log_multiplier", 0.1f32);
    assert_eq!(scale(&file), (usual * usual / 5f32.sqrt(), 1.0));
    file.set("rope.scaling.attn_factor", 1.25f32);
    assert_eq!(scale(&file), (usual * usual / 5f32.sqrt(), 1.25));
    let summary = summarize(&file.weights()).unwrap();
    assert_eq!(
        summary.rope,
        "base 10000, YaRN scaling by 4 from 64 positions, 2 of 5 elements"
    );
    assert_eq!(
        summary.window,
        "full attention, over one latent head of 4 + 2 elements"
    );
    // Queries straight from the stream.
    file.meta.remove("deepseek2.attention.q_lora_rank");
    file.tensors.retain(|name, _| !name.contains("attn_q_"));
    for layer in 0..2 {
        file.tensor(&format!("blk.{layer}.attn_q.weight"), &[20, WIDTH]);
    }
    assert_eq!(file.lower().caches.len(), 2);
}

#[test]
fn deepseek_routes_by_sigmoid_within_groups() {
    let mut file = File::new("deepseek2", 3);
    let program = file.lower();
    assert_eq!(routers(&program), [(Scoring::Sigmoid, 2, true, 2.5); 2]);
    let grouped = |op: &Op| {
        let one_of_two = Some(ExpertGroups { count: 2, used: 1 });
        matches!(op, Op::Route { bias: Some(_), groups, .. } if *groups == one_of_two)
    };
    assert_eq!(count(&program, grouped), 2);
    // One plain layer, and shared experts in the others.
    assert_eq!(dense_layers(&program), 1 + 2);
    assert_eq!(
        routing(&file).as_deref(),
        Some(
            "2 of 4 experts by sigmoid within 1 of 2 groups, weights normalised, times 2.5; 12 wide shared; \
             none in the first 1 layers"
        )
    );
    file.set("expert_group_count", 1u32);
    assert_eq!(count(&file.lower(), grouped), 0);
    file.tensor("blk.2.exp_probs_b.bias", &[5]);
    assert_eq!(
        file.refusal(),
        "m.gguf: blk.2.exp_probs_b.bias: expected [4], got [5]"
    );
}

#[test]
fn experts_that_cannot_be_are_refused_in_one_line() {
    let refused = |file: &File, key: &str, value: OwnedValue| {
        let mut file = file.clone();
        file.set(key, value);
        let line = file.refusal();
        assert_eq!(line, summarize(&file.weights()).unwrap_err().to_string());
        let (_, after) = line.split_once(&format!(".{key}: ")).unwrap_or(("", &line));
        after.to_owned()
    };
    for file in [
        File::mixtral(2),
        File::new("qwen2moe", 2),
        File::new("qwen3moe", 2),
        File::new("deepseek2", 2),
    ] {
        let cases: [(&str, OwnedValue, &str); 7] = [
            ("expert_count", 0u32.into(), "found 0, expected at least 1"),
            (
                "expert_count",
                1u32.into(),
                "found 2, expected at most expert_count, 1",
            ),
            (
                "expert_used_count",
                0u32.into(),
                "found 0, expected at least 1",
            ),
            (
                "expert_used_count",
                5u32.into(),
                "found 5, expected at most expert_count, 4",
            ),
            (
                "expert_gating_func",
                3u32.into(),
                "found 3, expected 1 for softmax or 2 for sigmoid",
            ),
            (
                "expert_feed_forward_length",
                0u32.into(),
                "found 0, expected at least 1",
            ),
            (
                "expert_weights_scale",
                f32::NAN.into(),
                "found NaN, expected a finite number above 0",
            ),
        ];
        for (key, value, expected) in cases {
            let line = refused(&file, key, value);
            assert!(line.ends_with(expected), "{key}: {line}");
        }
    }
    let deepseek = File::new("deepseek2", 2);
    let cases: [(&str, OwnedValue, &str); 12] = [
        (
            "expert_group_count",
            3u32.into(),
            "found 3, expected a divisor of expert_count, 4",
        ),
        (
            "expert_group_used_count",
            0u32.into(),
            "found 0, expected at least 1",
        ),
        (
            "expert_group_used_count",
            3u32.into(),
            "found 3, expected at most expert_group_count, 2",
        ),
        (
            "expert_used_count",
            3u32.into(),
            "found 3, expected at most 2, the experts in 1 of 2 groups",
        ),
        (
            "expert_gating_func",
            1u32.into(),
            "m.gguf: key deepseek2.expert_group_count: found 2, expected 1: groups are known for sigmoid routing only",
        ),
        (
            "attention.kv_lora_rank",
            0u32.into(),
            "found 0, expected at least 1",
        ),
        (
            "attention.kv_lora_rank",
            u64::MAX.into(),
            "m.gguf: key deepseek2.attention.key_length: found 6, expected 18446744073709551615, as kv_lora_rank and \
             rope.dimension_count say",
        ),
        (
            "attention.head_count_kv",
            4u32.into(),
            "found 4, expected 1, as kv_lora_rank and rope.dimension_count say",
        ),
        (
            "attention.key_length_mla",
            2u32.into(),
            "found 2, expected more than rope.dimension_count, 2",
        ),
        (
            "attention.value_length_mla",
            0u32.into(),
            "found 0, expected at least 1",
        ),
        (
            "attention.value_length",
            5u32.into(),
            "found 5, expected 4, as kv_lora_rank and rope.dimension_count say",
        ),
        (
            "leading_dense_block_count",
            (-1i32).into(),
            "found i32 -1, expected an unsigned integer",
        ),
    ];
    for (key, value, expected) in cases {
        assert_eq!(refused(&deepseek, key, value), expected, "{key}");
    }
}

#[test]
fn tensors_of_experts_that_disagree_are_refused_in_one_line() {
    type Alteration = fn(&mut File);
    let cases: [(&str, Alteration, &str); 9] = [
        (
            "llama",
            |f| {
                f.set("expert_count", 1_000_000_000u32);
            },
            "blk.0.ffn_gate_inp.weight: expected [1000000000, 8], got [4, 8]",
        ),
        (
            "llama",
            |f| {
                f.tensor("blk.1.ffn_up_exps.weight", &[3, 6, WIDTH]);
            },
            "blk.1.ffn_up_exps.weight: expected [4, 6, 8], got [3, 6, 8]",
        ),
        (
            "llama",
            |f| {
                f.tensor("blk.1.ffn_down_exps.weight", &[4, 6, WIDTH]);
            },
            "blk.1.ffn_down_exps.weight: expected [4, 8, 6], got [4, 6, 8]",
        ),
        (
            "qwen3moe",
            |f| {
                f.tensors.remove("blk.0.ffn_gate_exps.weight");
            },
            "blk.0.ffn_gate_exps.weight: tensor is missing",
        ),
        (
            "qwen3moe",
            |f| {
                f.set("expert_feed_forward_length", u64::MAX);
            },
            "blk.0.ffn_gate_exps.weight: expected [4, 18446744073709551615, 8], got [4, 6, 8]",
        ),
        (
            "deepseek2",
            |f| {
                f.set("expert_shared_count", u64::MAX);
            },
            "blk.1.ffn_gate_shexp.weight: expected [18446744073709551615, 8], got [12, 8]",
        ),
        (
            "deepseek2",
            |f| {
                f.tensors.remove("blk.0.attn_k_b.weight");
            },
            "blk.0.attn_k_b.weight: tensor is missing",
        ),
        (
            "deepseek2",
            |f| {
                f.tensor("blk.1.attn_v_b.weight", &[4, 4, 5]);
            },
            "blk.1.attn_v_b.weight: expected [4, 5, 4], got [4, 4, 5]",
        ),
        (
            "deepseek2",
            |f| {
                f.set("leading_dense_block_count", 0u32);
            },
            "blk.0.ffn_gate_inp.weight: tensor is missing",
        ),
    ];
    for (architecture, alter, expected) in cases {
        let mut file = match architecture {
            "llama" => File::mixtral(2),
            _ => File::new(architecture, 2),
        };
        alter(&mut file);
        assert_eq!(file.refusal(), format!("m.gguf: {expected}"));
    }
}
