//! A token's results depend on its own sequence only: bit for bit the same whatever else is in the step, however a prompt is
//! cut, and on any number of threads.

use backplane_cpu_device::{CpuDevice, CpuOptions, Isa};
use backplane_golden::{Runner, Sequence, WithCache, fixture};
use backplane_program::CacheType;

const TOKENS: [u32; 45] = {
    let mut tokens = [0; 45];
    let mut i = 0;
    while i < 45 {
        tokens[i] = (i as u32 * 97 + 31) % 512;
        i += 1;
    }
    tokens
};

fn runner(isa: Isa, threads: usize, model: &str, cache_type: CacheType) -> Runner {
    let device = CpuDevice::with_options(CpuOptions {
        threads: Some(threads),
        isa: Some(isa),
    });
    Runner::new(
        &WithCache(&device.expect("kernels that the machine runs"), cache_type),
        &fixture(model),
        256,
        64,
    )
}

fn bits(logits: &[f32]) -> Vec<u32> {
    logits.iter().map(|logit| logit.to_bits()).collect()
}

fn check(model: &str) {
    check_cache(model, CacheType::F32);
}

fn check_cache(model: &str, cache_type: CacheType) {
    for isa in Isa::ALL.into_iter().filter(|isa| isa.is_supported()) {
        let mut alone = runner(isa, 1, model, cache_type);
        let truth = bits(&alone.feed(&mut Sequence::default(), &TOKENS, 1, 0));
        for threads in [1, 2, 3] {
            let mut runner = runner(isa, threads, model, cache_type);
            for portion in [64, 13, 8, 5, 2, 1] {
                let mut sequence = Sequence::default();
                let found = bits(&runner.feed(&mut sequence, &TOKENS, portion, 0));
                runner.release(sequence);
                assert!(
                    found == truth,
                    "{model} {isa:?}, {threads} threads, portions of {portion}"
                );
            }
            let (mut first, mut second) = (Sequence::default(), Sequence::default());
            let vocab = runner.vocab();
            runner.feed(&mut first, &TOKENS[..20], 20, 20);
            let mut parts = [(&mut second, &TOKENS[..9]), (&mut first, &TOKENS[20..])];
            let wanted: Vec<u32> = (0..34).collect();
            let mixed = bits(&runner.step(&mut parts, &wanted, false).logits);
            assert!(
                mixed[..9 * vocab] == truth[..9 * vocab],
                "{model} {isa:?}, {threads} threads, short one mixed"
            );
            assert!(
                mixed[9 * vocab..] == truth[20 * vocab..],
                "{model} {isa:?}, {threads} threads, long one mixed"
            );
        }
    }
}

#[test]
fn mixed_block_types() {
    check("tiny/llama-256-quant/model-Q4_K_M-mixed.gguf");
}

#[test]
fn blocks_of_32() {
    check("tiny/llama-256-quant/model-Q4_1.gguf");
    check("tiny/llama-256-quant/model-Q5_0.gguf");
    check("tiny/llama-256-quant/model-Q8_0.gguf");
}

#[test]
fn floats_and_windows() {
    check("tiny/gemma3-text/model-f32.gguf");
}

#[test]
fn mixtures_of_experts() {
    check("tiny/mixtral/model-f32.gguf");
    check("tiny/qwen2-moe/model-f32.gguf");
    check("tiny/qwen3-moe/model-f32.gguf");
}

#[test]
fn latent_attention_with_groups_of_experts() {
    check("tiny/deepseek-v3/model-f32.gguf");
    check_cache("tiny/deepseek-v3-yarn/model-f32.gguf", CacheType::F16);
}

#[test]
fn other_types_of_the_cache() {
    check_cache("tiny/gemma3-text/model-f32.gguf", CacheType::F16);
    check_cache("tiny/llama-256-quant/model-Q8_0.gguf", CacheType::Q8_0);
    check_cache("tiny/qwen3-moe/model-f32.gguf", CacheType::Q8_0);
}
