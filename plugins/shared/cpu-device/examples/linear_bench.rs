//! Speed of one matrix in every storage type, on every set of kernels that this machine runs: `linear_bench [ROWS] [TYPE…]`.
//!
//! Prints for one thread and several numbers of tokens at once thousands of millions of weights times activations a second. The matrix has
//! 256 rows of 1536 where nothing else is said, which is small enough for the cache next to the processor: this is arithmetic, not
//! memory.

use backplane_cpu_device::{CpuDevice, CpuOptions, Isa};
use backplane_program::{
    Builder, CacheType, Device, Limits, Program, SequenceStep, Step, StepOutput,
};
use backplane_weights::writer::GgufWriter;
use backplane_weights::{TensorType, Weights};
use std::time::{Duration, Instant};

const COLS: usize = 1536;
const TOKENS: [usize; 9] = [1, 2, 4, 8, 12, 16, 32, 48, 64];
const MOST: usize = 64;
/// How long each case is measured.
const SPAN: Duration = Duration::from_millis(100);

type Failure = Box<dyn std::error::Error>;

fn main() -> Result<(), Failure> {
    let mut names: Vec<String> = std::env::args().skip(1).collect();
    let rows = names.first().and_then(|first| first.parse().ok());
    names.drain(..usize::from(rows.is_some()));
    let rows: usize = rows.unwrap_or(256);
    let wanted = |ty: &&TensorType| {
        names.is_empty()
            || names
                .iter()
                .any(|name| name.eq_ignore_ascii_case(ty.name()))
    };
    let isas: Vec<Isa> = Isa::ALL
        .into_iter()
        .filter(|isa| *isa != Isa::Scalar && isa.is_supported())
        .collect();
    for ty in TensorType::ALL.iter().filter(wanted) {
        let (weights, program) = model(*ty, rows)?;
        print!("{ty:8}");
        for isa in &isas {
            print!("  {}", isa.name());
            for tokens in TOKENS {
                print!(
                    " {:6.2}",
                    rows as f64 * speed(&weights, &program, *isa, tokens)?
                );
            }
        }
        println!("  G/s (tokens: {TOKENS:?})");
    }
    Ok(())
}

/// A matrix of random blocks behind an embedding.
fn model(ty: TensorType, rows: usize) -> Result<(Weights, Program), Failure> {
    let mut state = 1u64;
    let mut next = move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 24) as u8
    };
    let bytes = rows * ty.row_bytes(COLS).ok_or("a row is whole blocks")?;
    let blocks: Vec<u8> = (0..bytes).map(|_| next()).collect();
    let values: Vec<f32> = (0..rows * COLS)
        .map(|_| f32::from(next()) - 127.5)
        .collect();
    let mut writer = GgufWriter::new();
    writer.add_f32("table", &[rows, COLS], &values);
    writer.add_tensor("matrix", ty, &[rows, COLS], blocks);
    let weights = Weights::from_bytes("bench.gguf".as_ref(), &writer.to_bytes()?)?;
    let mut builder = Builder::new("bench", &weights);
    let table = builder.weight("table", &[rows, COLS])?;
    let matrix = builder.weight("matrix", &[rows, COLS])?;
    let x = builder.embed(table, 1.0)?;
    let x = builder.gather(x)?;
    let logits = builder.linear(x, matrix, None)?;
    let program = builder.finish(logits, rows, MOST)?;
    Ok((weights, program))
}

/// Times that a row meets a token in a second, times columns, in thousands of millions: the best of several steps, for others use the machine too.
fn speed(weights: &Weights, program: &Program, isa: Isa, tokens: usize) -> Result<f64, Failure> {
    let device = CpuDevice::with_options(CpuOptions {
        threads: Some(1),
        isa: Some(isa),
    })?;
    let limits = Limits {
        max_step_tokens: MOST,
        max_wanted: MOST,
        page_size: MOST,
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
    Ok((COLS * tokens) as f64 / best.as_secs_f64() / 1e9)
}
