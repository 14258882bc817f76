//! Steps for programs made by hand, on every set of kernels.

// Each test file takes what it needs.
#![allow(dead_code, unreachable_pub)]

use backplane_cpu_device::{CpuDevice, CpuOptions, Isa};
use backplane_program::{
    CacheType, Device, Executable, Limits, Program, SequenceStep, Step, StepOutput,
};
use backplane_weights::Weights;

/// Tokens of the programs.
pub const VOCAB: usize = 23;
/// What [`steps`] fits into.
pub const LIMITS: Limits = Limits {
    max_step_tokens: 12,
    max_wanted: 4,
    page_size: 3,
    pages: 9,
    threads: 2,
    cache_type: CacheType::F32,
};

/// Every set of kernels that this machine runs.
pub fn devices() -> impl Iterator<Item = CpuDevice> {
    let isas = Isa::ALL.into_iter().filter(|isa| isa.is_supported());
    isas.map(|isa| {
        CpuDevice::with_options(CpuOptions {
            threads: None,
            isa: Some(isa),
        })
        .expect("a set that is supported")
    })
}

/// A program made ready for steps.
pub fn compile(
    device: &dyn Device,
    program: &Program,
    weights: &Weights,
    limits: Limits,
) -> Box<dyn Executable> {
    device
        .compile(program, weights, limits)
        .expect("a program that every device runs")
}

/// A few steps of two sequences, pages out of order and shared in the end; all logits.
pub fn steps(executable: &mut dyn Executable) -> Vec<f32> {
    let mut all = vec![];
    let mut run = |tokens: &[u32], sequences: &[SequenceStep<'_>], wanted: &[u32]| {
        let mut out = StepOutput::default();
        let step = Step {
            tokens,
            sequences,
            wanted,
            marks: false,
        };
        executable
            .step(&step, &mut out)
            .expect("a step within the limits");
        assert_eq!(out.logits.len(), wanted.len() * VOCAB);
        all.extend(out.logits);
    };
    let (first, second) = ([5, 0, 7, 2], [8, 3, 1]);
    run(
        &[1, 2, 3, 4, 5],
        &[SequenceStep {
            count: 5,
            past: 0,
            pages: &first,
        }],
        &[0, 3, 4],
    );
    run(
        &[6, 7, 8],
        &[
            SequenceStep {
                count: 1,
                past: 5,
                pages: &first,
            },
            SequenceStep {
                count: 2,
                past: 0,
                pages: &second,
            },
        ],
        &[],
    );
    run(
        &[9, 22, 0, 11, 12],
        &[
            SequenceStep {
                count: 3,
                past: 2,
                pages: &second,
            },
            SequenceStep {
                count: 2,
                past: 6,
                pages: &first,
            },
        ],
        &[0, 2, 4],
    );
    executable.copy_page(7, 6).expect("pages that there are");
    let copied = [5, 0, 6];
    let mut out = StepOutput::default();
    let sequences = [SequenceStep {
        count: 1,
        past: 8,
        pages: &copied,
    }];
    executable
        .step(
            &Step {
                tokens: &[3],
                sequences: &sequences,
                wanted: &[0],
                marks: false,
            },
            &mut out,
        )
        .expect("a step");
    all.extend(out.logits);
    all
}

/// Greatest difference.
pub fn worst(found: &[f32], truth: &[f32]) -> f32 {
    assert_eq!(found.len(), truth.len());
    let off = found.iter().zip(truth).map(|(a, b)| (a - b).abs());
    // Not a number is no difference that `max` would see.
    off.fold(0.0, |most, off| if off <= most { most } else { off })
}
