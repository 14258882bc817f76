//! The lowered programs on the reference interpreter, judged by the golden references.

use backplane_golden::{
    Judge, Tolerance, check_formats, check_quant, every_tiny_model, perplexity, real_teacher_forced,
};
use backplane_program::Interpreter;

fn tiny(model: &str) {
    for (format, seen) in check_formats(&Interpreter, model, Tolerance::default()) {
        println!("{model}/{format}: {seen:?}");
    }
}

every_tiny_model!(tiny);

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
