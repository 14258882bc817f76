//! Every operation, at sizes that fill no vector, against the reference interpreter; and steps that must be refused.

use backplane_cpu_device::{CpuDevice, CpuOptions, Isa};
use backplane_program::{
    Activation, AttentionSpec, Builder, CacheSpec, CacheType, CachedValues, Device, DeviceError,
    Executable, Interpreter, Limits, Program, Rope, RopeStyle, SequenceStep, Step, StepOutput,
};
use backplane_weights::Weights;
use backplane_weights::writer::GgufWriter;
use std::path::Path;

const VOCAB: usize = 23;
const WIDTH: usize = 19;
const LIMITS: Limits = Limits {
    max_step_tokens: 12,
    max_wanted: 4,
    page_size: 3,
    pages: 9,
    threads: 2,
    cache_type: CacheType::F32,
};

fn weights() -> Weights {
    let mut writer = GgufWriter::new();
    let mut add = |name: &str, shape: &[usize], seed: usize| {
        let values: Vec<f32> = (0..shape.iter().product())
            .map(|i: usize| ((i * 37 + seed * 11) as f32).sin() * 0.4)
            .collect();
        writer.add_f32(name, shape, &values);
    };
    add("table", &[VOCAB, WIDTH], 1);
    add("gain", &[WIDTH], 2);
    add("head_gain", &[7], 3);
    add("q", &[4 * 7, WIDTH], 4);
    add("q_bias", &[4 * 7], 5);
    add("k", &[2 * 7, WIDTH], 6);
    add("v", &[2 * 5, WIDTH], 7);
    add("o", &[WIDTH, 4 * 5], 8);
    add("gate", &[33, WIDTH], 9);
    add("up", &[33, WIDTH], 10);
    add("down", &[WIDTH, 33], 11);
    add("head", &[VOCAB, WIDTH], 12);
    let bytes = writer.to_bytes().expect("a small file");
    Weights::from_bytes(Path::new("test.gguf"), &bytes).expect("a file just written")
}

/// A layer with everything an operation can do.
fn program(
    weights: &Weights,
    style: RopeStyle,
    activation: Activation,
    window: Option<usize>,
) -> Program {
    let build = || {
        let mut b = Builder::new("test", weights);
        let table = b.weight("table", &[VOCAB, WIDTH])?;
        let gain = b.weight("gain", &[WIDTH])?;
        let head_gain = b.weight("head_gain", &[7])?;
        let q = b.weight("q", &[28, WIDTH])?;
        let q_bias = b.weight("q_bias", &[28])?;
        let k = b.weight("k", &[14, WIDTH])?;
        let v = b.weight("v", &[10, WIDTH])?;
        let o = b.weight("o", &[WIDTH, 20])?;
        let gate = b.weight("gate", &[33, WIDTH])?;
        let up = b.weight("up", &[33, WIDTH])?;
        let down = b.weight("down", &[WIDTH, 33])?;
        let head = b.weight("head", &[VOCAB, WIDTH])?;
        let rope = b.declare_rope(Rope {
            style,
            inverse_frequencies: vec![1.0, 0.3],
            magnitude: 1.1,
        });
        let cache = b.cache(CacheSpec {
            kv_heads: 2,
            key_dim: 7,
            value_dim: 5,
            values: CachedValues::Stored,
        });
        let x = b.embed(table, 1.5)?;
        let n = b.rms_norm(x, gain, 1e-5)?;
        let q = b.linear(n, q, Some(q_bias))?;
        let k = b.linear(n, k, None)?;
        let v = b.linear(n, v, None)?;
        let q = b.rms_norm_groups(q, head_gain, 1e-6, 7)?;
        let (q, k) = (b.rope(q, rope, 7)?, b.rope(k, rope, 7)?);
        let spec = AttentionSpec {
            heads: 4,
            scale: 0.9,
            window,
            soft_cap: Some(2.0),
        };
        let a = b.attention([q, k, v], cache, spec)?;
        let a = b.linear(a, o, None)?;
        let x = b.add(x, a)?;
        let (g, u) = (b.linear(x, gate, None)?, b.linear(x, up, None)?);
        let f = b.gated(g, u, activation)?;
        let f = b.linear(f, down, None)?;
        let f = b.scale(f, 0.7)?;
        let x = b.add(x, f)?;
        let x = b.gather(x)?;
        let x = b.linear(x, head, None)?;
        let logits = b.soft_cap(x, 3.0)?;
        b.finish(logits, VOCAB, 64)
    };
    build().expect("a program that fits its weights")
}

fn devices() -> impl Iterator<Item = CpuDevice> {
    let isas = Isa::ALL.into_iter().filter(|isa| isa.is_supported());
    isas.map(|isa| {
        CpuDevice::with_options(CpuOptions {
            threads: None,
            isa: Some(isa),
        })
        .expect("a set that is supported")
    })
}

fn compile(device: &dyn Device, program: &Program, weights: &Weights) -> Box<dyn Executable> {
    device
        .compile(program, weights, LIMITS)
        .expect("a program that every device runs")
}

/// A few steps of two sequences, pages out of order and shared in the end; all logits.
fn steps(executable: &mut dyn Executable) -> Vec<f32> {
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

#[test]
fn every_operation_agrees_with_the_interpreter() {
    let weights = weights();
    for style in [RopeStyle::Interleaved, RopeStyle::Halves] {
        for activation in [Activation::Silu, Activation::GeluTanh] {
            for window in [None, Some(1), Some(4)] {
                let program = program(&weights, style, activation, window);
                let truth = steps(&mut *compile(&Interpreter, &program, &weights));
                for device in devices() {
                    let found = steps(&mut *compile(&device, &program, &weights));
                    let worst = found
                        .iter()
                        .zip(&truth)
                        .map(|(a, b)| (a - b).abs())
                        .fold(0.0, f32::max);
                    assert!(
                        worst < 2e-6,
                        "{style:?} {activation:?} {window:?} {:?}: {worst}",
                        device.isa()
                    );
                }
            }
        }
    }
}

#[test]
fn steps_beyond_the_limits_are_refused_as_by_the_interpreter() {
    let weights = weights();
    let program = program(&weights, RopeStyle::Halves, Activation::Silu, None);
    let whole: Vec<u32> = (0..30).map(|i| i % 20).collect();
    let sequence = |count, past, pages| SequenceStep { count, past, pages };
    type Bad<'a> = (&'a str, &'a [u32], Vec<SequenceStep<'a>>, &'a [u32]);
    let bad: Vec<Bad<'_>> = vec![
        ("no tokens", &[], vec![], &[]),
        (
            "too many tokens",
            &whole[..13],
            vec![sequence(13, 0, &[0, 1, 2, 3, 4])],
            &[],
        ),
        ("token out of range", &[23], vec![sequence(1, 0, &[0])], &[]),
        ("counts too small", &[1, 2], vec![sequence(1, 0, &[0])], &[]),
        (
            "counts that wrap",
            &[1, 2],
            vec![sequence(usize::MAX, 0, &[0]), sequence(3, 0, &[1])],
            &[],
        ),
        (
            "empty sequence",
            &[1],
            vec![sequence(1, 0, &[0]), sequence(0, 0, &[1])],
            &[],
        ),
        (
            "position that wraps",
            &[1],
            vec![sequence(1, usize::MAX, &[0])],
            &[],
        ),
        (
            "too few pages",
            &[1, 2, 3, 4],
            vec![sequence(4, 0, &[0])],
            &[],
        ),
        ("page out of range", &[1], vec![sequence(1, 0, &[9])], &[]),
        (
            "page twice",
            &[1, 2, 3, 4],
            vec![sequence(4, 0, &[0, 0])],
            &[],
        ),
        (
            "past never written",
            &[1],
            vec![sequence(1, 3, &[0, 1])],
            &[],
        ),
        (
            "page written by two",
            &[1, 2],
            vec![sequence(1, 0, &[0]), sequence(1, 0, &[0])],
            &[],
        ),
        (
            "too many wanted",
            &[1, 2, 3, 4, 5],
            vec![sequence(5, 0, &[0, 1])],
            &[0, 1, 2, 3, 4],
        ),
        (
            "wanted out of range",
            &[1],
            vec![sequence(1, 0, &[0])],
            &[1],
        ),
        ("wanted twice", &[1, 2], vec![sequence(2, 0, &[0])], &[1, 1]),
    ];
    let mut reference = compile(&Interpreter, &program, &weights);
    for device in devices() {
        let mut executable = compile(&device, &program, &weights);
        for (what, tokens, sequences, wanted) in &bad {
            let step = Step {
                tokens,
                sequences,
                wanted,
                marks: false,
            };
            let expected = reference.step(&step, &mut StepOutput::default());
            let found = executable.step(&step, &mut StepOutput::default());
            assert!(
                matches!(expected, Err(DeviceError::Step(_))),
                "{what}: the interpreter takes it"
            );
            let Err(DeviceError::Step(message)) = found else {
                panic!("{what}: {found:?}")
            };
            assert!(
                !message.is_empty() && !message.contains('\n'),
                "{what}: {message}"
            );
        }
        assert!(matches!(
            executable.copy_page(0, 9),
            Err(DeviceError::Step(_))
        ));
        steps(&mut *executable);
    }
}

#[test]
fn limits_that_make_no_sense_are_refused() {
    let weights = weights();
    let program = program(&weights, RopeStyle::Halves, Activation::Silu, None);
    let device = devices()
        .next()
        .expect("the scalar kernels are always there");
    for (limits, what) in [
        (
            Limits {
                page_size: 0,
                ..LIMITS
            },
            "page size 0",
        ),
        (
            Limits {
                max_step_tokens: 0,
                ..LIMITS
            },
            "0 tokens a step",
        ),
        (
            Limits {
                pages: usize::MAX,
                ..LIMITS
            },
            "could not be had",
        ),
        (
            Limits {
                max_step_tokens: usize::MAX / 8,
                ..LIMITS
            },
            "could not be had",
        ),
        (
            Limits {
                threads: 1 << 20,
                ..LIMITS
            },
            "threads",
        ),
    ] {
        let error = device
            .compile(&program, &weights, limits)
            .err()
            .expect("a refusal")
            .to_string();
        assert!(error.contains(what), "{error}");
    }
}

#[test]
fn marks_come_out_and_executables_say_what_they_are() {
    let path = backplane_golden::fixture("tiny/llama3-gqa/model-f32.gguf");
    let weights = Weights::open(&path).expect("a fixture");
    let program = backplane_models::lower(&weights).expect("a model that is supported");
    for device in devices() {
        let limits = Limits {
            pages: 2,
            page_size: 16,
            threads: 3,
            ..LIMITS
        };
        let mut executable = device
            .compile(&program, &weights, limits)
            .expect("a program that every device runs");
        assert_eq!(
            executable.describe(),
            format!("{}, 3 threads", device.isa().label())
        );
        let floats: usize = program
            .caches
            .iter()
            .map(|c| c.kv_heads * (c.key_dim + c.value_dim) * 16)
            .sum();
        assert_eq!(executable.page_bytes(), 4 * floats);
        let mut out = StepOutput::default();
        let sequences = [SequenceStep {
            count: 2,
            past: 0,
            pages: &[1],
        }];
        executable
            .step(
                &Step {
                    tokens: &[1, 2],
                    sequences: &sequences,
                    wanted: &[1],
                    marks: true,
                },
                &mut out,
            )
            .expect("a step");
        let names: Vec<_> = out.marks.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(
            names,
            ["embedding", "layer.0", "layer.1", "layer.2", "final_norm"]
        );
        let lengths: Vec<_> = out.marks.iter().map(|(_, values)| values.len()).collect();
        assert_eq!(lengths, [128, 128, 128, 128, 64]);
    }
}
