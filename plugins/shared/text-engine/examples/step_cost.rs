//! What a step costs by what is in it: the figures that pace and drafts rest on.
//!
//! ```sh
//! cargo run --release -p backplane-text-engine --example step_cost -- MODEL [THREADS] [PAST]
//! ```
#![allow(clippy::unwrap_used)]

use backplane_cpu_device::{CpuDevice, CpuOptions};
use backplane_program::{CacheType, Device, Limits, SequenceStep, Step, StepOutput};
use backplane_weights::Weights;
use std::time::Instant;

const PAGE: usize = 16;
const MOST: usize = 64;
const REPEAT: usize = 15;

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    let number = |at: usize, default: usize| {
        let given = arguments.get(at).map(|text| text.parse());
        given.transpose().unwrap().unwrap_or(default)
    };
    let (threads, past) = (number(2, 2), number(3, 256).next_multiple_of(MOST));
    let weights = Weights::open(arguments.get(1).expect("a model").as_ref()).unwrap();
    let program = backplane_models::lower(&weights).unwrap();
    let device = CpuDevice::with_options(CpuOptions {
        threads: Some(threads),
        ..CpuOptions::default()
    })
    .unwrap();
    let each = (past + MOST).div_ceil(PAGE);
    let limits = Limits {
        max_step_tokens: MOST,
        max_wanted: MOST,
        page_size: PAGE,
        pages: each * 17,
        threads,
        cache_type: CacheType::F32,
    };
    let mut executable = device.compile(&program, &weights, limits).unwrap();
    let pages: Vec<Vec<u32>> = (0..17)
        .map(|sequence| {
            (0..each)
                .map(|page| (sequence * each + page) as u32)
                .collect()
        })
        .collect();
    let mut out = StepOutput::default();
    // What lies behind has to be there.
    for pages in &pages {
        for past in (0..past).step_by(MOST) {
            let tokens = vec![7; MOST];
            let sequences = [SequenceStep {
                count: tokens.len(),
                past,
                pages,
            }];
            let step = Step {
                tokens: &tokens,
                sequences: &sequences,
                wanted: &[],
                marks: false,
            };
            executable.step(&step, &mut out).unwrap();
        }
    }
    // Sequences of so many tokens each, of which the last `wanted` of each want logits; the median in milliseconds.
    let mut time = |counts: &[usize], wanted: &[usize]| {
        let sequences: Vec<SequenceStep<'_>> = counts
            .iter()
            .zip(&pages)
            .map(|(&count, pages)| SequenceStep { count, past, pages })
            .collect();
        let (mut tokens, mut rows) = (Vec::new(), Vec::new());
        for (&count, &wanted) in counts.iter().zip(wanted) {
            let first = tokens.len();
            tokens.extend((0..count).map(|at| (at * 31 + first * 7 + 5) as u32 % 1000));
            rows.extend((tokens.len() - wanted..tokens.len()).map(|row| row as u32));
        }
        let step = Step {
            tokens: &tokens,
            sequences: &sequences,
            wanted: &rows,
            marks: false,
        };
        let mut samples: Vec<f64> = (0..REPEAT)
            .map(|_| {
                let begun = Instant::now();
                executable.step(&step, &mut out).unwrap();
                begun.elapsed().as_secs_f64() * 1e3
            })
            .collect();
        samples.sort_unstable_by(f64::total_cmp);
        samples[REPEAT / 2]
    };
    let one = time(&[1], &[1]);
    let one = time(&[1], &[1]).min(one);
    println!("{threads} threads, {past} tokens behind each; one row {one:.2} ms");
    println!("rows    drafts  sequences  prompt beside 1  (times one row)");
    for rows in [1, 2, 3, 4, 5, 6, 8, 9, 12, 16, 17, 32, 64] {
        let drafts = time(&[rows], &[rows]);
        let sequences = if rows <= 17 {
            time(&vec![1; rows], &vec![1; rows]) / one
        } else {
            f64::NAN
        };
        let beside = if rows > 1 {
            time(&[1, rows - 1], &[1, 0]) / one
        } else {
            f64::NAN
        };
        println!(
            "{rows:4} {:9.2} {sequences:10.2} {beside:16.2}",
            drafts / one
        );
    }
}
