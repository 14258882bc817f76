//! Descriptions for people.

use crate::file::File;
use backplane_golden::{fixture, real_model_path};
use backplane_models::summarize;
use backplane_weights::Weights;
use std::path::Path;

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
