//! Speed of a model on this CPU beside what the memory gives: `decode_bench MODEL [THREADS] [TOKENS] [CACHE_TYPE] [CONTEXT]`.
//!
//! Prints prefill and decode (from an empty context, after the prompt, and with `CONTEXT` tokens behind) in tokens per second, the bytes of weights and cache
//! read per token, and the share of the read bandwidth measured in the same run, with the same threads, over a buffer of the
//! weights' size.

use backplane_cpu_device::CpuDevice;
use backplane_program::{CacheType, Device, Limits, Op, SequenceStep, Step, StepOutput};
use backplane_weights::Weights;
use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::time::Instant;

const PROMPT: usize = 512;
const PAGE: usize = 32;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let path = args
        .next()
        .ok_or("usage: decode_bench MODEL [THREADS] [TOKENS] [CACHE_TYPE] [CONTEXT]")?;
    let threads: usize = args.next().map_or(Ok(1), |text| text.parse())?;
    let tokens: usize = args.next().map_or(Ok(128), |text| text.parse())?;
    let cache_type: CacheType = args
        .next()
        .map_or(Ok(CacheType::F32), |text| text.parse())?;
    let context: usize = args.next().map_or(Ok(PROMPT), |text| text.parse())?;

    let weights = Weights::open(path.as_ref())?;
    let program = backplane_models::lower(&weights)?;
    let device = CpuDevice::detect()?;
    let pages = (context.max(PROMPT) + tokens).div_ceil(PAGE);
    let limits = Limits {
        max_step_tokens: PROMPT,
        max_wanted: 1,
        page_size: PAGE,
        pages,
        threads,
        cache_type,
    };
    let mut executable = device.compile(&program, &weights, limits)?;

    let mut bytes = 0;
    let mut types: BTreeMap<String, usize> = BTreeMap::new();
    for op in &program.ops {
        if let Op::Linear { weight, .. } = op {
            let tensor = weights.require(&program.weights[weight.0].name)?;
            bytes += tensor.data.len();
            *types.entry(tensor.info.ty.to_string()).or_default() += tensor.data.len();
        }
    }

    let pages: Vec<u32> = (0..pages as u32).collect();
    let prompt: Vec<u32> = (0..PROMPT)
        .map(|i| (i * 7919 + 13) as u32 % program.vocab as u32)
        .collect();
    let cache_bytes = executable.page_bytes() / PAGE;
    let executable_name = executable.describe();
    let mut out = StepOutput::default();
    let mut run = |tokens: &[u32], past: usize| -> Result<u32, Box<dyn std::error::Error>> {
        let sequences = [SequenceStep {
            count: tokens.len(),
            past,
            pages: &pages,
        }];
        let wanted = [tokens.len() as u32 - 1];
        executable.step(
            &Step {
                tokens,
                sequences: &sequences,
                wanted: &wanted,
                marks: false,
            },
            &mut out,
        )?;
        let best = out
            .logits
            .iter()
            .enumerate()
            .max_by(|a, b| a.1.total_cmp(b.1));
        Ok(best.map_or(0, |(token, _)| token as u32))
    };
    // Once to bring the weights in, once to measure.
    run(&prompt, 0)?;
    let start = Instant::now();
    let mut token = run(&prompt, 0)?;
    let prefill = PROMPT as f64 / start.elapsed().as_secs_f64();

    println!("{executable_name}, cache {cache_type}: {path}");
    println!("weights read a token: {:.1} MiB {types:?}", mib(bytes));
    println!("prefill {PROMPT}: {prefill:.0} tokens/s");
    let mut go = |_, _| ControlFlow::Continue(());
    let peaks = device.peaks(threads, bytes as u64, &mut go)?;
    let bandwidth = peaks.ok_or("nobody stops it")?.read_bytes_per_s;
    let mut starts = vec![0, PROMPT];
    if context > PROMPT {
        starts.push(context);
    }
    for first in starts {
        // What is behind has to be there.
        for past in (PROMPT..first).step_by(PROMPT) {
            run(&prompt[..PROMPT.min(first - past)], past)?;
        }
        // The fastest of several spans: others use the machine too.
        let mut decode = 0f64;
        let span = tokens.div_ceil(8).max(1);
        let mut done = 0;
        while done < tokens {
            let count = span.min(tokens - done);
            let start = Instant::now();
            for _ in 0..count {
                token = run(&[token], first + done)?;
                done += 1;
            }
            decode = decode.max(count as f64 / start.elapsed().as_secs_f64());
        }
        let cache = cache_bytes * (first + tokens / 2);
        let used = decode * (bytes + cache) as f64;
        println!(
            "decode {tokens} from position {first}: {decode:.1} tokens/s, {:.1} MiB of cache read a token; {:.1} of {:.1} GB/s: {:.0} %",
            mib(cache),
            used / 1e9,
            bandwidth / 1e9,
            100.0 * used / bandwidth
        );
    }
    Ok(())
}

fn mib(bytes: usize) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}
