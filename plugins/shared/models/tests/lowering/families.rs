//! What each architecture makes of its tensors.

use crate::file::{File, VOCAB, WIDTH, count, windows};
use backplane_models::{ARCHITECTURES, summarize};
use backplane_program::{Op, RopeStyle};
use std::collections::HashSet;

#[test]
fn the_table_is_sorted_and_families_are_unique() {
    assert!(ARCHITECTURES.is_sorted_by_key(|row| row.name));
    let families: HashSet<_> = ARCHITECTURES.iter().map(|row| row.family).collect();
    assert_eq!(families.len(), ARCHITECTURES.len());
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
            "rope      %2 rope 0 head_dim 2  ; layer.0.queries",
            "rope      %3 rope 0 head_dim 2  ; layer.0.keys",
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
        .map(|(name, id)| (name.as_str(), program.values[id.0].width))
        .collect();
    assert_eq!(
        marks[..4],
        [
            ("embedding", WIDTH),
            ("layer.0.queries", 8),
            ("layer.0.keys", 4),
            ("layer.0", WIDTH)
        ]
    );
    assert_eq!((marks.len(), marks[10]), (11, ("final_norm", WIDTH)));
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
fn qwen3_normalises_query_and_key_heads() {
    let mut file = File::new("qwen3", 2);
    let head_norm = |op: &Op| matches!(op, Op::RmsNorm { group: 2, .. });
    assert_eq!(count(&file.lower(), head_norm), 2 * 2);
    // Heads of their own size: 4 of 6 elements over a stream of 8.
    file.set("attention.key_length", 6u32)
        .set("attention.value_length", 6u32);
    for layer in 0..2 {
        for (name, shape) in [
            ("attn_q", vec![24, WIDTH]),
            ("attn_k", vec![12, WIDTH]),
            ("attn_v", vec![12, WIDTH]),
            ("attn_output", vec![WIDTH, 24]),
            ("attn_q_norm", vec![6]),
            ("attn_k_norm", vec![6]),
        ] {
            file.tensor(&format!("blk.{layer}.{name}.weight"), &shape);
        }
    }
    let program = file.lower();
    assert_eq!(program.caches[1].key_dim, 6);
    assert!(
        program
            .ropes
            .iter()
            .all(|rope| rope.style == RopeStyle::Halves)
    );
    file.tensors.remove("blk.1.attn_k_norm.weight");
    assert_eq!(
        file.refusal(),
        "m.gguf: blk.1.attn_k_norm.weight: tensor is missing"
    );
    file.tensor("blk.1.attn_k_norm.weight", &[12]);
    assert_eq!(
        file.refusal(),
        "m.gguf: blk.1.attn_k_norm.weight: expected [6], got [12]"
    );
}

#[test]
fn phi3_takes_its_fused_matrices_apart() {
    let mut file = File::new("phi3", 1);
    let listing = file.lower().listing();
    for (part, columns) in [
        ("%1 blk.0.attn_qkv.weight[0..8]", 8),
        ("%1 blk.0.attn_qkv.weight[8..12]", 4),
        ("%1 blk.0.attn_qkv.weight[12..16]", 4),
        ("blk.0.ffn_up.weight[0..12]", 12),
        ("blk.0.ffn_up.weight[12..24]", 12),
    ] {
        let line = listing.lines().find(|line| line.contains(part)).unwrap();
        assert!(line.contains(&format!("[tokens, {columns}]")), "{line}");
    }
    assert_eq!(windows(&file.lower()), [None]);
    file.set("attention.sliding_window", 9u32);
    assert_eq!(windows(&file.lower()), [Some(9)]);
    assert_eq!(
        summarize(&file.weights()).unwrap().window,
        "window of 9 in every layer"
    );
    for (tensor, shape, expected) in [
        (
            "attn_qkv",
            [17, WIDTH],
            "blk.0.attn_qkv.weight: expected [16, 8], got [17, 8]",
        ),
        (
            "ffn_up",
            [12, WIDTH],
            "blk.0.ffn_up.weight: expected [24, 8], got [12, 8]",
        ),
    ] {
        let mut file = file.clone();
        file.tensor(&format!("blk.0.{tensor}.weight"), &shape);
        assert_eq!(file.refusal(), format!("m.gguf: {expected}"));
    }
    let mut huge = file.clone();
    huge.set("attention.key_length", 2u32)
        .set("attention.value_length", 2u32)
        .set("attention.head_count", u64::MAX)
        .set("attention.head_count_kv", u64::MAX);
    assert_eq!(
        huge.refusal(),
        "m.gguf: blk.0.attn_qkv.weight: expected [18446744073709551615, 8], got [16, 8]"
    );
    huge.set("attention.head_count", 4u32)
        .set("attention.head_count_kv", 2u32)
        .set("feed_forward_length", u64::MAX);
    assert_eq!(
        huge.refusal(),
        "m.gguf: blk.0.ffn_up.weight: expected [18446744073709551615, 8], got [24, 8]"
    );
    file.tensor("blk.0.attn_q.weight", &[8, WIDTH]);
    assert_eq!(
        file.refusal(),
        "m.gguf: tensor \"blk.0.attn_q.weight\" has no place in architecture phi3"
    );
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
