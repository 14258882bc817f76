//! Instructions of one step of a matrix, counted: `cargo counts`.
//!
//! Counts don't depend on who else uses the machine, so that a kernel that got slower by more instructions is found on any. Each
//! has a limit some percent above what it took when that was set (Rust 1.95); a count above it fails. Where a change is worth it,
//! the limit is what changes, with the reason in the commit. Valgrind knows no AVX-512: counted are the kernels for AVX2, and
//! what all kernels share.

use backplane_cpu_device::{CpuDevice, CpuOptions, Isa};
use backplane_program::{
    Builder, CacheType, Device, Executable, Limits, SequenceStep, Step, StepOutput,
};
use backplane_weights::writer::GgufWriter;
use backplane_weights::{TensorType, Weights};
use gungraun::prelude::*;
use gungraun::{Callgrind, EventKind};
use std::hint::black_box;

const ROWS: usize = 256;
const COLS: usize = 512;
const MANY: usize = 32;

/// A matrix behind an embedding, compiled, and the tokens of a step.
struct Case {
    executable: Box<dyn Executable>,
    ids: Vec<u32>,
    out: StepOutput,
}

fn case(ty: TensorType, tokens: usize) -> Case {
    // Blocks whose bytes are small: whichever are scales, they are ordinary numbers.
    let bytes = ROWS * ty.row_bytes(COLS).expect("a row is whole blocks");
    let blocks: Vec<u8> = (0..bytes).map(|i| (i * 7 % 61) as u8).collect();
    let values: Vec<f32> = (0..ROWS * COLS).map(|i| (i % 255) as f32 - 127.0).collect();
    let mut writer = GgufWriter::new();
    writer.add_f32("table", &[ROWS, COLS], &values);
    writer.add_tensor("matrix", ty, &[ROWS, COLS], blocks);
    let file = writer.to_bytes().expect("a small file");
    let weights = Weights::from_bytes("counts.gguf".as_ref(), &file).expect("what was written");
    let mut builder = Builder::new("counts", &weights);
    let table = builder.weight("table", &[ROWS, COLS]).expect("is there");
    let matrix = builder.weight("matrix", &[ROWS, COLS]).expect("is there");
    let x = builder.embed(table, 1.0).expect("fits");
    let x = builder.gather(x).expect("fits");
    let logits = builder.linear(x, matrix, None).expect("fits");
    let program = builder.finish(logits, ROWS, MANY).expect("is whole");
    let device = CpuDevice::with_options(CpuOptions {
        threads: Some(1),
        isa: Some(Isa::Avx2),
    });
    let device = device.expect("a processor with AVX2");
    let limits = Limits {
        max_step_tokens: MANY,
        max_wanted: MANY,
        page_size: MANY,
        pages: 1,
        threads: 1,
        cache_type: CacheType::F32,
    };
    let executable = device
        .compile(&program, &weights, limits)
        .expect("compiles");
    let mut case = Case {
        executable,
        ids: (0..tokens as u32).collect(),
        out: StepOutput::default(),
    };
    // Once, so that memory is there.
    step(&mut case);
    case
}

fn step(case: &mut Case) {
    let sequences = [SequenceStep {
        count: case.ids.len(),
        past: 0,
        pages: &[0],
    }];
    let step = Step {
        tokens: &case.ids,
        sequences: &sequences,
        wanted: &case.ids,
        marks: false,
    };
    case.executable
        .step(&step, &mut case.out)
        .expect("a good step");
}

/// What a count may be at most, in thousands.
fn at_most(thousands: u64) -> LibraryBenchmarkConfig {
    let mut callgrind = Callgrind::with_args(["--cache-sim=no"]);
    callgrind
        .hard_limits([(EventKind::Ir, thousands * 1000)])
        .fail_fast(false);
    let mut config = LibraryBenchmarkConfig::default();
    config.tool(callgrind);
    config
}

macro_rules! kernels {
    ($($name:ident: $ty:ident, $tokens:expr, $most:literal;)*) => {
        $(
            #[library_benchmark(config = at_most($most))]
            #[bench::step(args = (TensorType::$ty, $tokens), setup = case)]
            fn $name(mut case: Case) -> Case {
                step(black_box(&mut case));
                case
            }
        )*
        library_benchmark_group!(name = kernels, benchmarks = [$($name),*]);
    };
}

kernels! {
    q8_0_one_token: Q8_0, 1, 96;
    q8_0_many_tokens: Q8_0, MANY, 2383;
    q4_1_one_token: Q4_1, 1, 101;
    q4_1_many_tokens: Q4_1, MANY, 2197;
    q5_0_one_token: Q5_0, 1, 124;
    q5_0_many_tokens: Q5_0, MANY, 2287;
    q4_k_one_token: Q4_K, 1, 90;
    q4_k_many_tokens: Q4_K, MANY, 2142;
    q6_k_one_token: Q6_K, 1, 97;
    q6_k_many_tokens: Q6_K, MANY, 2682;
    f16_one_token: F16, 1, 59;
}

main!(library_benchmark_groups = kernels);
