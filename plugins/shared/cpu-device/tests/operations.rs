//! Every operation, at sizes that fill no vector, against the reference interpreter; and steps that must be refused.

use backplane_program::{
    Activation, AttentionSpec, Builder, CacheSpec, CacheType, CachedValues, Device, DeviceError,
    Interpreter, Limits, Program, Rope, RopeStyle, SequenceStep, Step, StepOutput,
};
use backplane_weights::Weights;
use backplane_weights::writer::GgufWriter;
use common::{LIMITS, VOCAB, compile, devices, steps, worst};
use std::path::Path;

mod common;

const WIDTH: usize = 19;
/// Elements of a key head and of a value head that fill no vector.
const HEADS: [usize; 2] = [7, 5];

fn weights([key, value]: [usize; 2]) -> Weights {
    let mut writer = GgufWriter::new();
    let mut add = |name: &str, shape: &[usize], seed: usize| {
        let values: Vec<f32> = (0..shape.iter().product())
            .map(|i: usize| ((i * 37 + seed * 11) as f32).sin() * 0.4)
            .collect();
        writer.add_f32(name, shape, &values);
    };
    add("table", &[VOCAB, WIDTH], 1);
    add("gain", &[WIDTH], 2);
    add("head_gain", &[key], 3);
    add("q", &[4 * key, WIDTH], 4);
    add("q_bias", &[4 * key], 5);
    add("k", &[2 * key, WIDTH], 6);
    add("v", &[2 * value, WIDTH], 7);
    add("o", &[WIDTH, 4 * value], 8);
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
    [key, value]: [usize; 2],
    style: RopeStyle,
    activation: Activation,
    window: Option<usize>,
) -> Program {
    let build = || {
        let mut b = Builder::new("test", weights);
        let table = b.weight("table", &[VOCAB, WIDTH])?;
        let gain = b.weight("gain", &[WIDTH])?;
        let head_gain = b.weight("head_gain", &[key])?;
        let q = b.weight("q", &[4 * key, WIDTH])?;
        let q_bias = b.weight("q_bias", &[4 * key])?;
        let k = b.weight("k", &[2 * key, WIDTH])?;
        let v = b.weight("v", &[2 * value, WIDTH])?;
        let o = b.weight("o", &[WIDTH, 4 * value])?;
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
            key_dim: key,
            value_dim: value,
            values: CachedValues::Stored,
        });
        let x = b.embed(table, 1.5)?;
        let n = b.rms_norm(x, gain, 1e-5)?;
        let q = b.linear(n, q, Some(q_bias))?;
        let k = b.linear(n, k, None)?;
        let v = b.linear(n, v, None)?;
        let q = b.rms_norm_groups(q, head_gain, 1e-6, key)?;
        let (q, k) = (b.rope(q, rope, key)?, b.rope(k, rope, key)?);
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

#[test]
fn every_operation_agrees_with_the_interpreter() {
    let weights = weights(HEADS);
    for style in [RopeStyle::Interleaved, RopeStyle::Halves] {
        for activation in [Activation::Silu, Activation::GeluTanh] {
            for window in [None, Some(1), Some(4)] {
                let program = program(&weights, HEADS, style, activation, window);
                let truth = steps(&mut *compile(&Interpreter, &program, &weights, LIMITS));
                for device in devices() {
                    let found = steps(&mut *compile(&device, &program, &weights, LIMITS));
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
fn every_type_of_the_cache_agrees_with_the_interpreter() {
    for (heads, types) in [
        (HEADS, &CacheType::ALL[..2]),
        ([32, 96], &CacheType::ALL),
        ([64, 32], &CacheType::ALL),
    ] {
        let weights = weights(heads);
        for window in [None, Some(4)] {
            let (style, activation) = (RopeStyle::Halves, Activation::Silu);
            let program = program(&weights, heads, style, activation, window);
            for cache_type in types {
                let limits = Limits {
                    cache_type: *cache_type,
                    ..LIMITS
                };
                let truth = steps(&mut *compile(&Interpreter, &program, &weights, limits));
                let exact = steps(&mut *compile(&Interpreter, &program, &weights, LIMITS));
                assert_eq!(truth != exact, *cache_type != CacheType::F32);
                for device in devices() {
                    let found = steps(&mut *compile(&device, &program, &weights, limits));
                    let off = worst(&found, &truth);
                    let isa = device.isa();
                    assert!(
                        off < 1e-5,
                        "{heads:?} {window:?} {cache_type} {isa:?}: {off}"
                    );
                }
            }
        }
    }
}

#[test]
fn steps_beyond_the_limits_are_refused_as_by_the_interpreter() {
    let weights = weights(HEADS);
    let program = program(&weights, HEADS, RopeStyle::Halves, Activation::Silu, None);
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
    let mut reference = compile(&Interpreter, &program, &weights, LIMITS);
    for device in devices() {
        let mut executable = compile(&device, &program, &weights, LIMITS);
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
    let weights = weights(HEADS);
    let program = program(&weights, HEADS, RopeStyle::Halves, Activation::Silu, None);
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
fn executables_say_what_they_are() {
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
        let executable = compile(&device, &program, &weights, limits);
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
    }
}

/// A mark is what its operation wrote, though later ones write over it: names, order and values are the interpreter's.
#[test]
fn marks_come_out_as_they_were_written() {
    for (model, queries, keys) in [("llama3-gqa", 4 * 16, 2 * 16), ("deepseek-v3", 4 * 48, 48)] {
        let path = backplane_golden::fixture(&format!("tiny/{model}/model-f32.gguf"));
        let weights = Weights::open(&path).expect("a fixture");
        let program = backplane_models::lower(&weights).expect("a model that is supported");
        let run = |device: &dyn Device, marks: bool| {
            let limits = Limits {
                page_size: 16,
                pages: 2,
                ..LIMITS
            };
            let mut executable = compile(device, &program, &weights, limits);
            let mut out = StepOutput::default();
            let step = Step {
                tokens: &[1, 2, 300],
                sequences: &[SequenceStep {
                    count: 3,
                    past: 0,
                    pages: &[1],
                }],
                wanted: &[1, 2],
                marks,
            };
            executable.step(&step, &mut out).expect("a step");
            out
        };
        let truth = run(&Interpreter, true).marks;
        let mut names = vec!["embedding".to_owned()];
        for layer in 0..3 {
            names.extend(["queries", "keys"].map(|what| format!("layer.{layer}.{what}")));
            names.push(format!("layer.{layer}"));
        }
        names.push("final_norm".into());
        for device in devices() {
            let out = run(&device, true);
            let found: Vec<_> = out.marks.iter().map(|(name, _)| name).collect();
            assert_eq!(found, names.iter().collect::<Vec<_>>());
            for ((name, found), (_, truth)) in out.marks.iter().zip(&truth) {
                let rows = match name.as_str() {
                    name if name.ends_with("queries") => 3 * queries,
                    name if name.ends_with("keys") => 3 * keys,
                    "final_norm" => 2 * 64,
                    _ => 3 * 64,
                };
                assert_eq!(found.len(), rows, "{model} {name}");
                let off = worst(found, truth);
                assert!(off < 5e-5, "{model} {name} {:?}: {off}", device.isa());
            }
            let without = run(&device, false);
            assert!(without.marks.is_empty() && without.logits == out.logits);
        }
    }
}
