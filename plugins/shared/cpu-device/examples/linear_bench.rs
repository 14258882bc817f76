//! Speed of one matrix in every storage type, on every set of kernels that this machine runs: `linear_bench [TYPE…]`.
//!
//! Prints for one thread, for one token, for 8 and for 32 at once, thousands of millions of weights times activations a second. The
//! matrix is small enough for the cache: this is arithmetic, not memory.

use backplane_cpu_device::{CpuDevice, CpuOptions, Isa};
use backplane_program::{
    Builder, CacheType, Device, Limits, Program, SequenceStep, Step, StepOutput,
};
use backplane_weights::writer::GgufWriter;
use backplane_weights::{TensorType, Weights};
use std::time::{Duration, Instant};

const ROWS: usize = 1024;
const COLS: usize = 4096;
const TOKENS: usize = 32;
/// How long each case is measured.
const SPAN: Duration = Duration::from_millis(400);

type Failure = Box<dyn std::error::Error>;

fn main() -> Result<(), Failure> {
    let names: Vec<String> = std::env::args().skip(1).collect();
    let wanted = |ty: &&TensorType| {
        names.is_empty()
            || names
                .iter()
                .any(|name| name.eq_ignore_ascii_case(ty.name()))
    };
    let isas: Vec<Isa> = Isa::ALL
        .into_iter()
        .filter(|isa| isa.is_supported())
        .collect();
    for ty in TensorType::ALL.iter().filter(wanted) {
        let (weights, program) = model(*ty)?;
        print!("{ty:8}");
        for isa in &isas {
            print!("  {}", isa.name());
            for tokens in [1, 8, TOKENS] {
                print!(" {:6.2}", speed(&weights, &program, *isa, tokens)?);
            }
        }
        println!("  G/s (1 token, 8, {TOKENS})");
    }
    Ok(())
}

/// A matrix of random blocks behind an embedding.
fn model(ty: TensorType) -> Result<(Weights, Program), Failure> {
    let mut state = 1u64;
    let mut next = move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 24) as u8
    };
    let bytes = ROWS * ty.row_bytes(COLS).ok_or("a row is whole blocks")?;
    let blocks: Vec<u8> = (0..bytes).map(|_| next()).collect();
    let values: Vec<f32> = (0..ROWS * COLS)
        .map(|_| f32::from(next()) - 127.5)
        .collect();
    let mut writer = GgufWriter::new();
    writer.add_f32("table", &[ROWS, COLS], &values);
    writer.add_tensor("matrix", ty, &[ROWS, COLS], blocks);
    let weights = Weights::from_bytes("bench.gguf".as_ref(), &writer.to_bytes()?)?;
    let mut builder = Builder::new("bench", &weights);
    let table = builder.weight("table", &[ROWS, COLS])?;
    let matrix = builder.weight("matrix", &[ROWS, COLS])?;
    let x = builder.embed(table, 1.0)?;
    let x = builder.gather(x)?;
    let logits = builder.linear(x, matrix, None)?;
    let program = builder.finish(logits, ROWS, TOKENS)?;
    Ok((weights, program))
}

/// Weights times activations a second, in thousands of millions: the best of several steps, for others use the machine too.
fn speed(weights: &Weights, program: &Program, isa: Isa, tokens: usize) -> Result<f64, Failure> {
    let device = CpuDevice::with_options(CpuOptions {
        threads: Some(1),
        isa: Some(isa),
    })?;
    let limits = Limits {
        max_step_tokens: TOKENS,
        max_wanted: TOKENS,
        page_size: TOKENS,
        pages: 1,
        threads: 1,
        cache_type: CacheType::F32,
    };
    let mut executable = device.compile(program, weights, limits)?;
    let ids: Vec<u32> = (0..tokens as u32).collect();
    let sequences = [SequenceStep {
        count: tokens,
        past: 0,
        pages: &[0],
    }];
    let step = Step {
        tokens: &ids,
        sequences: &sequences,
        wanted: &ids,
        marks: false,
    };
    let mut out = StepOutput::default();
    let (start, mut best) = (Instant::now(), Duration::MAX);
    while start.elapsed() < SPAN {
        let start = Instant::now();
        executable.step(&step, &mut out)?;
        best = best.min(start.elapsed());
    }
    Ok((ROWS * COLS * tokens) as f64 / best.as_secs_f64() / 1e9)
}
