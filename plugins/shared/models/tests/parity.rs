//! The lowered programs on the reference interpreter, judged by the golden references.

use backplane_golden::{Judge, Tolerance, check_f32, check_quant, perplexity, real_teacher_forced};
use backplane_program::Interpreter;

fn f32_parity(model: &str, file: &str) {
    let seen = check_f32(&Interpreter, model, file, Tolerance { max_abs: 1e-3 });
    println!("{model}/{file}: {seen:?}");
}

#[test]
fn llama3_gqa_in_every_float_type() {
    for file in ["model-f32.gguf", "model-f16.gguf", "model-bf16.gguf"] {
        f32_parity("llama3-gqa", file);
    }
}

#[test]
fn llama3_ropescaled() {
    f32_parity("llama3-ropescaled", "model-f32.gguf");
}

#[test]
fn mistral_full() {
    f32_parity("mistral-full", "model-f32.gguf");
}

#[test]
fn gemma3_text() {
    f32_parity("gemma3-text", "model-f32.gguf");
}

#[test]
fn gemma3_text_linear8() {
    f32_parity("gemma3-text-linear8", "model-f32.gguf");
}

#[test]
fn qwen25_with_biases() {
    f32_parity("qwen2.5-bias", "model-f32.gguf");
}

#[test]
fn qwen25_with_yarn() {
    f32_parity("qwen2.5-yarn", "model-f32.gguf");
}

#[test]
fn qwen3_with_normalised_heads() {
    f32_parity("qwen3-qknorm", "model-f32.gguf");
}

#[test]
fn phi3_with_fused_matrices() {
    f32_parity("phi3-full-rotary", "model-f32.gguf");
}

#[test]
fn phi4_mini_with_partial_and_long_rotation() {
    f32_parity("phi4mini-partial-longrope", "model-f32.gguf");
}

#[test]
fn mixtral() {
    f32_parity("mixtral", "model-f32.gguf");
}

#[test]
fn qwen2_moe_with_a_gated_shared_expert() {
    f32_parity("qwen2-moe", "model-f32.gguf");
}

#[test]
fn qwen3_moe() {
    f32_parity("qwen3-moe", "model-f32.gguf");
}

#[test]
fn deepseek_v3_with_the_compressed_cache() {
    f32_parity("deepseek-v3", "model-f32.gguf");
}

#[test]
fn deepseek_v3_with_yarn() {
    f32_parity("deepseek-v3-yarn", "model-f32.gguf");
}

#[test]
fn llama_256_in_every_block_type() {
    for block_type in [
        "f16",
        "Q8_0",
        "Q4_0",
        "Q4_1",
        "Q5_0",
        "Q5_1",
        "Q4_K",
        "Q5_K",
        "Q6_K",
        "Q2_K",
        "Q3_K",
        "IQ4_NL",
        "IQ4_XS",
        "Q4_K_M-mixed",
    ] {
        let seen = check_quant(&Interpreter, block_type, Judge::Exact);
        println!("llama-256-quant {block_type}: {seen:?}");
    }
}

#[test]
fn real_models_teacher_forced() {
    for model in ["smollm2-135m", "gemma3-270m"] {
        println!(
            "{model}: {:?} of 64",
            real_teacher_forced(&Interpreter, model, Judge::Exact)
        );
    }
}

#[test]
fn real_models_perplexity() {
    for model in ["smollm2-135m", "gemma3-270m"] {
        println!("{model}: perplexity {}", perplexity(&Interpreter, model));
    }
}
