//! The two real models.

use backplane_weights::{TensorType, Weights};

use crate::support::real_model;

#[test]
fn smollm2() {
    let weights = Weights::open(&real_model("SmolLM2-135M-Instruct.Q4_1.gguf")).unwrap();
    let meta = weights.metadata();
    assert_eq!(weights.file_bytes(), 98_362_432);
    assert_eq!(meta.require_str("general.architecture").unwrap(), "llama");
    assert_eq!(meta.require_usize("llama.block_count").unwrap(), 30);
    assert_eq!(
        meta.per_layer_usize("llama.attention.head_count_kv", 30)
            .unwrap(),
        Some(vec![3; 30])
    );
    assert_eq!(
        meta.require_array("tokenizer.ggml.tokens")
            .unwrap()
            .strings()
            .unwrap()
            .len(),
        49_152
    );
    let embedding = weights.require("token_embd.weight").unwrap();
    assert_eq!(embedding.info.shape, [49_152, 576]);
    let mut row = vec![0.0; 576];
    embedding.row_f32(49_151, &mut row);
    assert!(row.iter().all(|value| value.is_finite()) && row.iter().any(|value| *value != 0.0));
}

#[test]
fn gemma() {
    let weights = Weights::open(&real_model("gemma-3-270m.Q4_K_M.gguf")).unwrap();
    let meta = weights.metadata();
    assert_eq!(weights.file_bytes(), 253_113_024);
    assert_eq!(meta.require_str("general.architecture").unwrap(), "gemma3");
    let tokens: Vec<_> = meta
        .require_array("tokenizer.ggml.tokens")
        .unwrap()
        .strings()
        .unwrap()
        .collect();
    assert_eq!(tokens.len(), 262_144);
    assert_eq!(tokens[2], "<bos>");
    assert_eq!(
        meta.require_array("tokenizer.ggml.scores")
            .unwrap()
            .f32s()
            .unwrap()
            .len(),
        262_144
    );
    assert_eq!(
        meta.require_array("tokenizer.ggml.token_type")
            .unwrap()
            .i32s()
            .unwrap()
            .len(),
        262_144
    );
    let types: std::collections::HashSet<TensorType> =
        weights.tensors().map(|info| info.ty).collect();
    assert!(
        types.contains(&TensorType::Q4_K) && types.contains(&TensorType::Q6_K),
        "{types:?}"
    );
}
