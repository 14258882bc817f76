//! Rotary embeddings out of metadata and tables.

use crate::file::{File, WIDTH};
use backplane_golden::fixture;
use backplane_models::{lower, lower_for, summarize};
use backplane_program::RopeStyle;
use backplane_weights::Weights;

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
    // The context that the file states, 64, stays behind what is stretched.
    assert_eq!(file.lower().context_length, 4 * 4096);
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
    assert_eq!(file.lower().context_length, 64);
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
fn longrope_picks_its_table_by_the_context() {
    let mut file = File::new("phi3", 1);
    file.set("rope.scaling.original_context_length", 16u32);
    file.tensor("rope_factors_long.weight", &[1]);
    assert_eq!(
        file.refusal(),
        "m.gguf: tensor rope_factors_short.weight: missing"
    );
    file.tensor("rope_factors_short.weight", &[2]);
    assert_eq!(
        file.refusal(),
        "m.gguf: tensor rope_factors_short.weight: found [2], expected [1], one for each pair"
    );
    file.tensor("rope_factors_short.weight", &[1]);
    // 64 positions out of 16: sqrt(1 + ln 4 / ln 16).
    assert_eq!(file.lower().ropes[0].magnitude, 1.5f32.sqrt());
    file.set("rope.scaling.attn_factor", 1.25f32);
    assert_eq!(file.lower().ropes[0].magnitude, 1.25);
    assert_eq!(
        summarize(&file.weights()).unwrap().rope,
        "base 10000, LongRoPE past 16 positions"
    );
    file.set("rope.scaling.type", "longrope");
    assert!(lower(&file.weights()).is_ok());
    file.set("rope.scaling.type", "yarn");
    assert_eq!(
        file.refusal(),
        "m.gguf: key phi3.rope.scaling.type: found \"yarn\", expected longrope, since there is a tensor \
         rope_factors_long.weight or rope_factors_short.weight"
    );
    let mut llama = File::llama();
    llama.tensor("rope_factors_long.weight", &[1]);
    assert_eq!(
        llama.refusal(),
        "m.gguf: tensor \"rope_factors_long.weight\" has no place in architecture llama"
    );
    // The real tables: 1, 1.02, 1.04 ... within 256 positions, 1, 1.9, 2.8 ... past them.
    let path = fixture("tiny/phi4mini-partial-longrope/model-f32.gguf");
    let weights = Weights::open(&path).unwrap();
    let second = |context| {
        let program = lower_for(&weights, context).unwrap();
        let rope = &program.ropes[0];
        assert_eq!(
            (rope.inverse_frequencies.len(), rope.magnitude),
            (6, 1.118_034)
        );
        10_000f32.powf(-1.0 / 6.0) / rope.inverse_frequencies[1]
    };
    for (context, divisor) in [
        (Some(1), 1.02),
        (Some(256), 1.02),
        (Some(257), 1.9),
        (Some(1 << 40), 1.9),
        (None, 1.9),
    ] {
        assert!((second(context) - divisor).abs() < 1e-5, "{context:?}");
    }
    assert_eq!(
        summarize(&weights).unwrap().rope,
        "base 10000, LongRoPE past 256 positions, 12 of 16 elements"
    );
}
