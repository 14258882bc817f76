//! What several sequences decoded in one step cost beside one: `batch_bench MODEL [THREADS] [SEQUENCES,…] [POSITION] [ROUNDS] [CACHE_TYPE]`.
//!
//! Steps of each number of sequences take turns. Prints for each the fastest and the median step, tokens per second by the fastest, and
//! their ratio to those of the first number. Nothing but the device is measured: no sampling, no text.

use backplane_cpu_device::CpuDevice;
use backplane_program::{CacheType, Device, Limits, SequenceStep, Step, StepOutput};
use backplane_weights::Weights;
use std::time::{Duration, Instant};

const PAGE: usize = 32;
/// Steps of one number of sequences before it is another's turn.
const SPAN: usize = 4;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let path = args.next().ok_or(
        "usage: batch_bench MODEL [THREADS] [SEQUENCES,…] [POSITION] [ROUNDS] [CACHE_TYPE]",
    )?;
    let threads: usize = args.next().map_or(Ok(1), |text| text.parse())?;
    let numbers = args.next().unwrap_or_else(|| "1,8".into());
    let numbers: Vec<usize> = numbers
        .split(',')
        .map(str::parse)
        .collect::<Result<_, _>>()?;
    let position: usize = args.next().map_or(Ok(40), |text| text.parse())?;
    let rounds: usize = args.next().map_or(Ok(12), |text| text.parse())?;
    let cache_type: CacheType = args
        .next()
        .map_or(Ok(CacheType::F32), |text| text.parse())?;
    let most = numbers.iter().copied().max().ok_or("no sequences")?;

    let weights = Weights::open(path.as_ref())?;
    let program = backplane_models::lower(&weights)?;
    let each = (position + 1).div_ceil(PAGE);
    let limits = Limits {
        max_step_tokens: most,
        max_wanted: most,
        page_size: PAGE,
        pages: most * each,
        threads,
        cache_type,
    };
    let device = CpuDevice::detect()?;
    let mut executable = device.compile(&program, &weights, limits)?;
    println!(
        "{}: {path}, position {position}, cache {cache_type}",
        executable.describe()
    );

    let pages: Vec<Vec<u32>> = (0..most)
        .map(|sequence| (0..each).map(|i| (sequence * each + i) as u32).collect())
        .collect();
    let mut out = StepOutput::default();
    let mut step = |count: usize, past: usize| -> Result<Duration, Box<dyn std::error::Error>> {
        let tokens: Vec<u32> = (0..count)
            .map(|i| ((i + past) * 7919 + 13) as u32 % program.vocab as u32)
            .collect();
        let sequences: Vec<SequenceStep<'_>> = pages[..count]
            .iter()
            .map(|pages| SequenceStep {
                count: 1,
                past,
                pages,
            })
            .collect();
        let wanted: Vec<u32> = (0..count as u32).collect();
        let step = Step {
            tokens: &tokens,
            sequences: &sequences,
            wanted: &wanted,
            marks: false,
        };
        let start = Instant::now();
        executable.step(&step, &mut out)?;
        Ok(start.elapsed())
    };
    // What is behind has to be there.
    for past in 0..position {
        step(most, past)?;
    }
    let mut times = vec![vec![]; numbers.len()];
    for _ in 0..rounds {
        for (number, times) in numbers.iter().zip(&mut times) {
            for _ in 0..SPAN {
                times.push(step(*number, position)?);
            }
        }
    }
    let mut first = None;
    for (number, times) in numbers.iter().zip(&mut times) {
        times.sort();
        let (fastest, median) = (times[0], times[times.len() / 2]);
        let speed = |time: Duration| *number as f64 / time.as_secs_f64();
        let base = *first.get_or_insert([speed(fastest), speed(median)]);
        println!(
            "{number} sequences: {:.2} ms, median {:.2} ms; {:.1} tokens/s: {:.2} times the first, by medians {:.2}",
            1e3 * fastest.as_secs_f64(),
            1e3 * median.as_secs_f64(),
            speed(fastest),
            speed(fastest) / base[0],
            speed(median) / base[1],
        );
    }
    Ok(())
}
