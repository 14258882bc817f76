//! Each operation against numbers worked out by hand, the cache pool, and the checks of steps.

mod caches;
mod experts;

use super::cache::Pool;
use super::{Interpreter, ops};
use crate::program::{Activation, CacheId, CacheSpec, CachedValues, Rope, RopeStyle};
use crate::{
    AttentionSpec, Builder, CacheType, Device, DeviceError, Executable, Limits, Program,
    SequenceStep, Step, StepOutput,
};
use backplane_weights::Weights;
use backplane_weights::writer::GgufWriter;
use proptest::prelude::*;
use std::path::Path;

fn weights(tensors: &[(&str, &[usize], &[f32])]) -> Weights {
    let mut writer = GgufWriter::new();
    for (name, shape, values) in tensors {
        writer.add_f32(*name, shape, values);
    }
    Weights::from_bytes(Path::new("test.gguf"), &writer.to_bytes().unwrap()).unwrap()
}

fn assert_close(found: &[f32], expected: &[f32]) {
    assert_eq!(found.len(), expected.len());
    for (place, (a, b)) in found.iter().zip(expected).enumerate() {
        assert!(
            (a - b).abs() <= 1e-6,
            "at {place}: {found:?}, expected {expected:?}"
        );
    }
}

#[test]
fn embed_takes_scaled_rows() {
    let weights = weights(&[("t", &[3, 2], &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0])]);
    let mut out = [0.0; 4];
    ops::embed(&weights.tensor("t").unwrap(), &[2, 0], 0.5, &mut out);
    assert_eq!(out, [2.5, 3.0, 0.5, 1.0]);
}

#[test]
fn rms_norm_divides_each_group_by_its_root_mean_square() {
    let mut out = [0.0; 4];
    // Mean squares 12.5 and 2; eps 0.
    ops::rms_norm(&[3.0, 4.0, 0.0, -2.0], &[1.0, 10.0], 0.0, 2, &mut out);
    assert_close(
        &out,
        &[
            3.0 / 12.5f32.sqrt(),
            40.0 / 12.5f32.sqrt(),
            0.0,
            -20.0 / 2f32.sqrt(),
        ],
    );
    // eps counts: mean square 1 and eps 3 make a root of 2; an all-zero group stays zero.
    ops::rms_norm(&[1.0, -1.0, 0.0, 0.0], &[1.0, 1.0], 3.0, 2, &mut out);
    assert_close(&out, &[0.5, -0.5, 0.0, 0.0]);
}

#[test]
fn linear_multiplies_by_the_transposed_matrix_and_adds_the_bias() {
    let weights = weights(&[("w", &[3, 2], &[1.0, 0.0, 0.0, 1.0, 2.0, -1.0])]);
    let w = weights.tensor("w").unwrap();
    let mut out = [0.0; 6];
    ops::linear(
        &[5.0, 7.0, -1.0, 2.0],
        &w,
        0..3,
        Some(&[100.0, 200.0, 300.0]),
        1,
        &mut out,
    );
    assert_eq!(out, [105.0, 207.0, 303.0, 99.0, 202.0, 296.0]);
    ops::linear(&[5.0, 7.0, -1.0, 2.0], &w, 0..w.rows(), None, 1, &mut out);
    assert_eq!(out, [5.0, 7.0, 3.0, -1.0, 2.0, -4.0]);
    // A view of the last two rows.
    let mut out = [0.0; 4];
    let bias = Some(&[10.0, 20.0][..]);
    ops::linear(&[5.0, 7.0, -1.0, 2.0], &w, 1..3, bias, 1, &mut out);
    assert_eq!(out, [17.0, 23.0, 12.0, 16.0]);
}

#[test]
fn linear_gives_the_same_on_any_number_of_threads() {
    const N: usize = 300;
    let matrix: Vec<f32> = (0..N * N)
        .map(|i| ((i * 37 % 101) as f32 - 50.0) / 50.0)
        .collect();
    let x: Vec<f32> = (0..13 * N)
        .map(|i| ((i * 53 % 97) as f32 - 48.0) / 48.0)
        .collect();
    let weights = weights(&[("w", &[N, N], &matrix)]);
    let run = |threads| {
        let mut out = vec![0.0; 13 * N];
        let w = weights.tensor("w").unwrap();
        ops::linear(&x, &w, 0..w.rows(), None, threads, &mut out);
        out
    };
    let one = run(1);
    assert_eq!(one, run(7));
    let exact: f64 = (0..N)
        .map(|i| f64::from(x[12 * N + i]) * f64::from(matrix[5 * N + i]))
        .sum();
    assert!((f64::from(one[12 * N + 5]) - exact).abs() < 1e-4);
}

#[test]
fn rope_pairs_by_style_and_leaves_the_rest() {
    let quarter = std::f32::consts::FRAC_PI_2;
    let rope = |style| Rope {
        style,
        inverse_frequencies: vec![quarter, 2.0 * quarter],
        magnitude: 1.0,
    };
    // One head of 5 of which 4 are rotated; at position 1 the pairs turn by 90 and 180 degrees.
    let x = [1.0, 2.0, 3.0, 4.0, 9.0];
    let mut out = [0.0; 5];
    ops::rope(&x, &[1], &rope(RopeStyle::Interleaved), 5, 5, &mut out);
    assert_close(&out, &[-2.0, 1.0, -3.0, -4.0, 9.0]);
    ops::rope(&x, &[1], &rope(RopeStyle::Halves), 5, 5, &mut out);
    assert_close(&out, &[-3.0, -2.0, 1.0, -4.0, 9.0]);
    ops::rope(&x, &[0], &rope(RopeStyle::Halves), 5, 5, &mut out);
    assert_eq!(out, x);
    let doubled = Rope {
        magnitude: 2.0,
        ..rope(RopeStyle::Interleaved)
    };
    ops::rope(&x, &[0], &doubled, 5, 5, &mut out);
    assert_eq!(out, [2.0, 4.0, 6.0, 8.0, 9.0]);
}

#[test]
fn rope_turns_every_head_by_the_position_of_its_row() {
    let rope = Rope {
        style: RopeStyle::Halves,
        inverse_frequencies: vec![std::f32::consts::FRAC_PI_2],
        magnitude: 1.0,
    };
    let mut out = [0.0; 8];
    ops::rope(
        &[1.0, 0.0, 0.0, 1.0, 1.0, 0.0, 0.0, 1.0],
        &[1, 2],
        &rope,
        2,
        4,
        &mut out,
    );
    assert_close(&out, &[0.0, 1.0, -1.0, 0.0, -1.0, 0.0, 0.0, -1.0]);
}

/// A pool for one cache of one key/value head, keys and values of one element.
fn scalar_pool(page_size: usize) -> (Pool, Limits) {
    let weights = weights(&[]);
    let mut builder = Builder::new("test", &weights);
    builder.cache(CacheSpec {
        kv_heads: 1,
        key_dim: 1,
        value_dim: 1,
        values: CachedValues::Stored,
    });
    let program = builder.unchecked();
    let limits = Limits {
        max_step_tokens: 8,
        max_wanted: 8,
        page_size,
        pages: 8,
        threads: 1,
        cache_type: CacheType::F32,
    };
    (Pool::new(&program, &limits).unwrap(), limits)
}

/// Attention of one head over keys that are logarithms, so that weights are ratios of whole numbers.
fn attend(window: Option<usize>, soft_cap: Option<f32>, q: f32, scale: f32) -> Vec<f32> {
    let (mut pool, _) = scalar_pool(2);
    let pages = [5, 1];
    let sequences = [SequenceStep {
        count: 3,
        past: 0,
        pages: &pages,
    }];
    let step = Step {
        tokens: &[0, 0, 0],
        sequences: &sequences,
        wanted: &[],
        marks: false,
    };
    pool.commit(&step).unwrap();
    pool.append(
        CacheId(0),
        &step,
        &[1f32.ln(), 3f32.ln(), 4f32.ln()],
        Some(&[10.0, 20.0, 40.0]),
    );
    let shape = ops::AttentionShape {
        heads: 1,
        scale,
        window,
        soft_cap,
    };
    let mut out = vec![0.0; 3];
    ops::attention(&[q; 3], &step, &pool.view(CacheId(0)), shape, 1, &mut out);
    out
}

#[test]
fn attention_weighs_values_causally() {
    // Weights 1; 1:3; 1:3:4.
    assert_close(
        &attend(None, None, 1.0, 1.0),
        &[10.0, 70.0 / 4.0, 230.0 / 8.0],
    );
    // A scale of 2 squares them: 1; 1:9; 1:9:16.
    assert_close(
        &attend(None, None, 1.0, 2.0),
        &[10.0, 190.0 / 10.0, 830.0 / 26.0],
    );
}

#[test]
fn attention_sees_only_its_window() {
    assert_close(&attend(Some(1), None, 1.0, 1.0), &[10.0, 20.0, 40.0]);
    assert_close(
        &attend(Some(2), None, 1.0, 1.0),
        &[10.0, 70.0 / 4.0, 220.0 / 7.0],
    );
    assert_eq!(
        attend(Some(3), None, 1.0, 1.0),
        attend(None, None, 1.0, 1.0)
    );
}

#[test]
fn attention_caps_scores() {
    // Scores 0 and 200 ln 3 are capped to 0 and ln 9 at most: weights 1:9.
    assert_close(
        &attend(None, Some(9f32.ln()), 200.0, 1.0)[..2],
        &[10.0, 19.0],
    );
}

#[test]
fn attention_groups_query_heads_over_key_heads() {
    let weights = weights(&[]);
    let mut builder = Builder::new("test", &weights);
    builder.cache(CacheSpec {
        kv_heads: 2,
        key_dim: 1,
        value_dim: 2,
        values: CachedValues::Stored,
    });
    let program = builder.unchecked();
    let limits = Limits {
        max_step_tokens: 8,
        max_wanted: 8,
        page_size: 4,
        pages: 2,
        threads: 1,
        cache_type: CacheType::F32,
    };
    let mut pool = Pool::new(&program, &limits).unwrap();
    assert_eq!(pool.page_floats(), 4 * 2 * (1 + 2));
    let sequences = [SequenceStep {
        count: 1,
        past: 0,
        pages: &[1],
    }];
    let step = Step {
        tokens: &[0],
        sequences: &sequences,
        wanted: &[],
        marks: false,
    };
    pool.commit(&step).unwrap();
    pool.append(CacheId(0), &step, &[0.0, 0.0], Some(&[1.0, 2.0, 3.0, 4.0]));
    let shape = ops::AttentionShape {
        heads: 4,
        scale: 1.0,
        window: None,
        soft_cap: None,
    };
    let mut out = vec![0.0; 8];
    ops::attention(&[1.0; 4], &step, &pool.view(CacheId(0)), shape, 1, &mut out);
    assert_eq!(out, [1.0, 2.0, 1.0, 2.0, 3.0, 4.0, 3.0, 4.0]);
}

#[test]
fn gated_activates_one_side() {
    let mut out = [0.0; 3];
    // sigmoid(ln 3) is 3/4.
    ops::gated(
        &[0.0, 3f32.ln(), -(3f32.ln())],
        &[5.0, 2.0, 2.0],
        Activation::Silu,
        &mut out,
    );
    assert_close(&out, &[0.0, 1.5 * 3f32.ln(), -0.5 * 3f32.ln()]);
    // 0.5 (1 + tanh(0.797884561 * 1.044715)) is 0.841191990.
    ops::gated(
        &[0.0, 1.0, -1.0],
        &[5.0, 1.0, 2.0],
        Activation::GeluTanh,
        &mut out,
    );
    assert_close(&out, &[0.0, 0.841_192, -0.317_616_02]);
    // Far out there is no overflow to nan.
    ops::gated(
        &[-200.0, 200.0, -1e30],
        &[1.0; 3],
        Activation::Silu,
        &mut out,
    );
    assert_eq!(out, [0.0, 200.0, 0.0]);
    ops::gated(
        &[-200.0, 200.0, -1e30],
        &[1.0; 3],
        Activation::GeluTanh,
        &mut out,
    );
    assert_eq!(out, [0.0, 200.0, 0.0]);
}

#[test]
fn heads_are_cut_joined_and_multiplied_one_by_one() {
    let x = [
        1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0, 11.0, 12.0,
    ]; // [2 rows, 2 heads, 3]
    let mut ends = [0.0; 8];
    ops::head_slice(&x, 3, 1..3, &mut ends);
    assert_eq!(ends, [2.0, 3.0, 5.0, 6.0, 8.0, 9.0, 11.0, 12.0]);
    let mut joined = [0.0; 12];
    ops::head_concat(&ends, &[-1.0, -2.0, -3.0, -4.0], 2, 1, &mut joined);
    assert_eq!(joined[..6], [2.0, 3.0, -1.0, 5.0, 6.0, -2.0]);
    assert_eq!(joined[6..], [8.0, 9.0, -3.0, 11.0, 12.0, -4.0]);
    // The first head's sum, twice its last element; the second head's first element, its last one.
    let matrices = [1.0, 1.0, 1.0, 0.0, 0.0, 2.0, 1.0, 0.0, 0.0, 0.0, 0.0, 1.0];
    let weights = weights(&[("w", &[2, 2, 3], &matrices)]);
    let mut out = [0.0; 8];
    ops::head_linear(&x, &weights.tensor("w").unwrap(), &mut out);
    assert_eq!(out, [6.0, 6.0, 4.0, 6.0, 24.0, 18.0, 10.0, 12.0]);
}

#[test]
fn elementwise_operations() {
    let mut out = [0.0; 2];
    ops::add(&[1.0, 2.0], &[10.0, -2.0], &mut out);
    assert_eq!(out, [11.0, 0.0]);
    ops::scale(&[1.0, -2.0], 3.0, &mut out);
    assert_eq!(out, [3.0, -6.0]);
    // tanh(ln 2) is 3/5.
    ops::soft_cap(&[10.0 * 2f32.ln(), -1e9], 10.0, &mut out);
    assert_close(&out, &[6.0, -10.0]);
    ops::gather(&[1.0, 2.0, 3.0, 4.0], &[3, 1], 1, &mut out);
    assert_eq!(out, [4.0, 2.0]);
}

const VOCAB: usize = 7;
const WIDTH: usize = 4;

/// A one-layer model with fixed, uneven numbers: attention over a window of 5, then logits.
fn model() -> (Program, Weights) {
    let numbers = |count: usize, seed: usize| -> Vec<f32> {
        (0..count)
            .map(|i| (((i + seed) * 7919 % 211) as f32 - 105.0) / 60.0)
            .collect()
    };
    let (table, k, v) = (
        numbers(VOCAB * WIDTH, 1),
        numbers(2 * WIDTH, 2),
        numbers(2 * WIDTH, 3),
    );
    let tensors: [(&str, &[usize], &[f32]); 3] = [
        ("table", &[VOCAB, WIDTH], &table),
        ("k", &[2, WIDTH], &k),
        ("v", &[2, WIDTH], &v),
    ];
    let weights = weights(&tensors);
    let program = {
        let mut b = Builder::new("test", &weights);
        let table = b.weight("table", &[VOCAB, WIDTH]).unwrap();
        let (wk, wv) = (
            b.weight("k", &[2, WIDTH]).unwrap(),
            b.weight("v", &[2, WIDTH]).unwrap(),
        );
        let rope = b.declare_rope(Rope {
            style: RopeStyle::Interleaved,
            inverse_frequencies: vec![0.7],
            magnitude: 1.0,
        });
        let cache = b.cache(CacheSpec {
            kv_heads: 1,
            key_dim: 2,
            value_dim: 2,
            values: CachedValues::Stored,
        });
        let x = b.embed(table, 1.0).unwrap();
        b.mark("embedding", x);
        let (k, v) = (
            b.linear(x, wk, None).unwrap(),
            b.linear(x, wv, None).unwrap(),
        );
        let (q, k) = (b.rope(x, rope, 2).unwrap(), b.rope(k, rope, 2).unwrap());
        let spec = AttentionSpec {
            heads: 2,
            scale: 0.7,
            window: Some(5),
            soft_cap: None,
        };
        let a = b.attention([q, k, v], cache, spec).unwrap();
        let x = b.add(x, a).unwrap();
        let x = b.gather(x).unwrap();
        let logits = b.linear(x, table, None).unwrap();
        b.finish(logits, VOCAB, 64).unwrap()
    };
    (program, weights)
}

fn compile(page_size: usize, pages: usize) -> Box<dyn Executable> {
    let (program, weights) = model();
    let limits = Limits {
        max_step_tokens: 16,
        max_wanted: 16,
        page_size,
        pages,
        threads: 1,
        cache_type: CacheType::F32,
    };
    Interpreter.compile(&program, &weights, limits).unwrap()
}

fn compile_with(
    program: &Program,
    weights: &Weights,
    cache_type: CacheType,
) -> Result<Box<dyn Executable>, DeviceError> {
    let limits = Limits {
        max_step_tokens: 8,
        max_wanted: 8,
        page_size: 4,
        pages: 2,
        threads: 1,
        cache_type,
    };
    Interpreter.compile(program, weights, limits)
}

fn run(executable: &mut dyn Executable, tokens: &[u32], past: usize, pages: &[u32]) -> Vec<f32> {
    let sequences = [SequenceStep {
        count: tokens.len(),
        past,
        pages,
    }];
    let wanted: Vec<u32> = (0..tokens.len() as u32).collect();
    let mut out = StepOutput::default();
    let step = Step {
        tokens,
        sequences: &sequences,
        wanted: &wanted,
        marks: false,
    };
    executable.step(&step, &mut out).unwrap();
    out.logits
}

#[test]
fn wanted_rows_and_marks_are_what_was_asked_for() {
    let mut executable = compile(4, 4);
    let sequences = [SequenceStep {
        count: 3,
        past: 0,
        pages: &[2],
    }];
    let mut out = StepOutput::default();
    let mut step = Step {
        tokens: &[1, 2, 3],
        sequences: &sequences,
        wanted: &[0, 2],
        marks: true,
    };
    executable.step(&step, &mut out).unwrap();
    assert_eq!(out.logits.len(), 2 * VOCAB);
    assert_eq!(out.marks.len(), 1);
    assert_eq!(
        (out.marks[0].0.as_str(), out.marks[0].1.len()),
        ("embedding", 3 * WIDTH)
    );
    (step.wanted, step.marks) = (&[], false);
    executable.step(&step, &mut out).unwrap();
    assert!(out.logits.is_empty() && out.marks.is_empty());
}

#[test]
fn a_copied_page_continues_as_its_original_and_apart_from_it() {
    let mut executable = compile(4, 4);
    run(&mut *executable, &[1, 2], 0, &[3]);
    executable.copy_page(3, 0).unwrap();
    let original = run(&mut *executable, &[5, 6], 2, &[3]);
    assert_eq!(run(&mut *executable, &[5, 6], 2, &[0]), original);
    run(&mut *executable, &[4, 4], 2, &[0]);
    let again = run(&mut *executable, &[6], 3, &[3]);
    assert_eq!(again, original[VOCAB..]);
    assert!(
        matches!(executable.copy_page(0, 4), Err(DeviceError::Step(message)) if message == "page 4, expected below 4")
    );
}

#[test]
fn steps_that_break_the_limits_are_refused_by_name() {
    let mut executable = compile(4, 4);
    let mut refuse =
        |tokens: &[u32], sequences: &[(usize, usize, &[u32])], wanted: &[u32], expected: &str| {
            let sequences: Vec<_> = sequences
                .iter()
                .map(|&(count, past, pages)| SequenceStep { count, past, pages })
                .collect();
            let step = Step {
                tokens,
                sequences: &sequences,
                wanted,
                marks: false,
            };
            match executable.step(&step, &mut StepOutput::default()) {
                Err(DeviceError::Step(message)) => assert_eq!(message, expected),
                other => panic!("expected {expected:?}, got {other:?}"),
            }
        };
    refuse(&[], &[], &[], "0 tokens, expected 1 to 16");
    refuse(
        &[0; 17],
        &[(17, 0, &[0, 1, 2, 3])],
        &[],
        "17 tokens, expected 1 to 16",
    );
    refuse(
        &[0, 7],
        &[(2, 0, &[0])],
        &[],
        "token 7 at row 1, expected below 7",
    );
    refuse(
        &[0, 1],
        &[(1, 0, &[0])],
        &[],
        "2 tokens, the sequences' counts do not add up to that",
    );
    refuse(
        &[0],
        &[(usize::MAX, 0, &[0]), (2, 0, &[1])],
        &[],
        "1 tokens, the sequences' counts do not add up to that",
    );
    refuse(
        &[0],
        &[(1, 0, &[0]), (0, 0, &[1])],
        &[],
        "sequence 1 has no tokens",
    );
    refuse(
        &[0],
        &[(1, usize::MAX, &[0])],
        &[],
        "sequence 0: position overflows",
    );
    refuse(
        &[0; 5],
        &[(5, 0, &[0])],
        &[],
        "sequence 0 has 1 pages, expected at least 2",
    );
    refuse(
        &[0],
        &[(1, 0, &[4])],
        &[],
        "sequence 0 has page 4, expected below 4",
    );
    refuse(
        &[0; 5],
        &[(5, 0, &[1, 1])],
        &[],
        "sequence 0 has page 1 twice",
    );
    refuse(
        &[0],
        &[(1, 2, &[1])],
        &[],
        "sequence 0 has 2 positions behind it, but page 1 was never written",
    );
    refuse(
        &[0, 0],
        &[(1, 0, &[1]), (1, 0, &[1])],
        &[],
        "sequence 1 writes page 1, as another sequence does",
    );
    refuse(
        &[0],
        &[(1, 0, &[0])],
        &[1],
        "row 1 wanted, expected below 1",
    );
    refuse(
        &[0, 0],
        &[(2, 0, &[0])],
        &[1, 0],
        "row 0 wanted after row 1, expected ascending rows",
    );
    refuse(
        &[0, 0],
        &[(2, 0, &[0])],
        &[1, 1],
        "row 1 wanted after row 1, expected ascending rows",
    );
    refuse(
        &[0],
        &[(1, 0, &[0])],
        &[0; 17],
        "17 rows wanted, expected at most 16",
    );
}

#[test]
fn compiling_checks_limits_and_weights() {
    let (program, weights) = model();
    let limits = Limits {
        max_step_tokens: 4,
        max_wanted: 4,
        page_size: 4,
        pages: 4,
        threads: 1,
        cache_type: CacheType::F32,
    };
    let refuse = |program: &Program, limits: Limits| {
        Interpreter
            .compile(program, &weights, limits)
            .err()
            .unwrap()
    };
    let no_pages = Limits {
        page_size: 0,
        ..limits
    };
    assert!(matches!(refuse(&program, no_pages), DeviceError::Step(_)));
    let endless = Limits {
        page_size: usize::MAX / 2,
        ..limits
    };
    assert!(matches!(
        refuse(&program, endless),
        DeviceError::Memory { .. }
    ));
    let endless = Limits {
        pages: usize::MAX,
        ..limits
    };
    assert!(matches!(
        refuse(&program, endless),
        DeviceError::Memory { .. }
    ));
    let mut other = program.clone();
    other.weights[1].name = "nowhere".into();
    assert_eq!(
        refuse(&other, limits).to_string(),
        "nowhere: tensor is missing"
    );
}

proptest! {
    /// However a sequence is cut into steps and scattered over pages of any size, and whatever runs beside it,
    /// its logits are the same to the bit.
    #[test]
    fn portions_and_pages_do_not_matter(
        tokens in prop::collection::vec(0..VOCAB as u32, 1..16),
        cuts in prop::collection::vec(1usize..6, 16),
        page_size in 1usize..6,
        first_page in 0usize..40,
    ) {
        let whole = run(&mut *compile(16, 1), &tokens, 0, &[0]);
        let mut executable = compile(page_size, 40);
        let pages: Vec<u32> = (0..16).map(|i| ((first_page + i * 7) % 40) as u32).collect();
        let others: Vec<u32> = (0..16).map(|i| ((first_page + 3 + i * 7 + 16 * 7) % 40) as u32)
            .filter(|page| !pages.contains(page)).collect();
        let (mut past, mut portions) = (0, vec![]);
        for cut in cuts {
            let count = cut.min(tokens.len() - past);
            if count == 0 { break; }
            let step_tokens = [&[3, 1][..], &tokens[past..past + count]].concat();
            let beside = SequenceStep { count: 2, past: 0, pages: &others };
            let own = SequenceStep { count, past, pages: &pages };
            let wanted: Vec<u32> = (2..2 + count as u32).collect();
            let mut out = StepOutput::default();
            let step = Step { tokens: &step_tokens, sequences: &[beside, own], wanted: &wanted, marks: false };
            executable.step(&step, &mut out).unwrap();
            portions.extend(out.logits);
            past += count;
        }
        prop_assert_eq!(&portions[..], &whole[..past * VOCAB]);
    }
}
