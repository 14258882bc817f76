//! Routing and experts against numbers worked out by hand.

use super::{assert_close, compile_with, weights};
use crate::interpreter::experts::{Choice, route};
use crate::program::{Activation, Expert, ExpertGroups, Scoring};
use crate::{Builder, CacheType, RouteSpec, SequenceStep, Step, StepOutput};

const SOFTMAX: Choice<'_> = Choice {
    scoring: Scoring::Softmax,
    bias: None,
    groups: None,
    used: 2,
    normalise: false,
    scale: 1.0,
};

fn routed(logits: &[f32], experts: usize, choice: Choice<'_>) -> Vec<f32> {
    let mut out = vec![0.0; logits.len()];
    route(logits, experts, choice, &mut out);
    out
}

#[test]
fn softmax_routing_keeps_the_highest() {
    // Scores 0.1, 0.4, 0.2, 0.3.
    let logits = [1f32.ln(), 4f32.ln(), 2f32.ln(), 3f32.ln()];
    assert_close(&routed(&logits, 4, SOFTMAX), &[0.0, 0.4, 0.0, 0.3]);
    let normalised = Choice {
        normalise: true,
        ..SOFTMAX
    };
    assert_close(
        &routed(&logits, 4, normalised),
        &[0.0, 4.0 / 7.0, 0.0, 3.0 / 7.0],
    );
    let scaled = Choice {
        scale: 3.5,
        ..normalised
    };
    assert_close(&routed(&logits, 4, scaled), &[0.0, 2.0, 0.0, 1.5]);
    // Every row by itself; of equal ones the first.
    assert_close(
        &routed(
            &[0.0, 0.0, 0.0, 0.0, 9.0, 0.0],
            3,
            Choice { used: 1, ..SOFTMAX },
        )[..3],
        &[1.0 / 3.0, 0.0, 0.0],
    );
    let all = Choice { used: 4, ..SOFTMAX };
    assert_close(&routed(&logits, 4, all), &[0.1, 0.4, 0.2, 0.3]);
}

#[test]
fn a_bias_counts_for_the_choice_only() {
    // Scores 0.5, 0.75, 0.25; with the bias 0.5, -0.25, 1.25.
    let logits = [0.0, 3f32.ln(), -(3f32.ln())];
    let choice = Choice {
        scoring: Scoring::Sigmoid,
        bias: Some(&[0.0, -1.0, 1.0]),
        used: 2,
        ..SOFTMAX
    };
    assert_close(&routed(&logits, 3, choice), &[0.5, 0.0, 0.25]);
    let normalised = Choice {
        normalise: true,
        scale: 2.5,
        ..choice
    };
    assert_close(
        &routed(&logits, 3, normalised),
        &[2.5 * 2.0 / 3.0, 0.0, 2.5 / 3.0],
    );
}

#[test]
fn groups_count_as_their_two_best() {
    let two_groups = |used| Choice {
        scoring: Scoring::Sigmoid,
        groups: Some(ExpertGroups { count: 2, used }),
        used: 2,
        ..SOFTMAX
    };
    // Scores 0.75, 0.1, 0.1 | 0.5, 0.25, 0.5: the best expert is in the group that has less.
    let logits = [
        3f32.ln(),
        -(9f32.ln()),
        -(9f32.ln()),
        0.0,
        -(3f32.ln()),
        0.0,
    ];
    assert_close(
        &routed(&logits, 6, two_groups(1)),
        &[0.0, 0.0, 0.0, 0.5, 0.0, 0.5],
    );
    assert_close(
        &routed(&logits, 6, two_groups(2)),
        &[0.75, 0.0, 0.0, 0.5, 0.0, 0.0],
    );
    // However low the bias makes the open group, none of the closed one is chosen.
    let lowered = Choice {
        bias: Some(&[-9.0, -9.0, -9.0, -2.0, -2.0, -2.0]),
        ..two_groups(1)
    };
    assert_close(
        &routed(&logits, 6, lowered),
        &[0.0, 0.0, 0.0, 0.5, 0.0, 0.5],
    );
    // A group of one counts as that one.
    let single = Choice {
        groups: Some(ExpertGroups { count: 3, used: 2 }),
        ..two_groups(1)
    };
    assert_close(
        &routed(&[0.0, -1.0, 3f32.ln()], 3, single),
        &[0.5, 0.0, 0.75],
    );
}

#[test]
fn odd_logits_end_in_weights_all_the_same() {
    let sigmoid = Choice {
        scoring: Scoring::Sigmoid,
        normalise: true,
        ..SOFTMAX
    };
    // Scores that are all 0 have no sum to be divided by.
    assert_eq!(routed(&[-200.0; 3], 3, sigmoid), [0.0; 3]);
    let nan = routed(&[f32::NAN, 1.0, 2.0], 3, SOFTMAX);
    assert_eq!(nan.iter().filter(|weight| weight.is_nan()).count(), 2);
}

/// Three experts over a stream of 2, of which a token sees two; the first one's matrices are no numbers.
fn mixture(stacked: bool) -> Vec<f32> {
    const NAN: f32 = f32::NAN;
    let (gates, ups) = (
        [NAN, NAN, 1.0, 0.0, 0.0, 1.0],
        [NAN, NAN, 0.0, 2.0, 3.0, 0.0],
    );
    let downs = [NAN, NAN, 1.0, -1.0, 0.5, 4.0];
    let single: Vec<(String, [usize; 2], &[f32])> = (0..3)
        .flat_map(|e| {
            let part = 2 * e..2 * e + 2;
            [
                (format!("gate.{e}"), [1, 2], &gates[part.clone()]),
                (format!("up.{e}"), [1, 2], &ups[part.clone()]),
                (format!("down.{e}"), [2, 1], &downs[part]),
            ]
        })
        .collect();
    let mut tensors: Vec<(&str, &[usize], &[f32])> = vec![
        ("table", &[2, 2], &[1.0, 2.0, -1.0, 3.0]),
        ("router", &[3, 2], &[-9.0, -9.0, 0.5, 0.0, 0.0, 0.5]),
        ("gates", &[3, 1, 2], &gates),
        ("ups", &[3, 1, 2], &ups),
        ("downs", &[3, 2, 1], &downs),
    ];
    tensors.extend(
        single
            .iter()
            .map(|(name, shape, values)| (name.as_str(), &shape[..], *values)),
    );
    let weights = weights(&tensors);
    let mut b = Builder::new("test", &weights);
    let mut all = |name: &str, shape: [usize; 2]| {
        if stacked {
            let [rows, columns] = shape;
            return b
                .stacked_weights(&format!("{name}s"), [3, rows, columns])
                .unwrap();
        }
        (0..3)
            .map(|e| b.weight(format!("{name}.{e}"), &shape).unwrap())
            .collect()
    };
    let (gates, ups, downs) = (all("gate", [1, 2]), all("up", [1, 2]), all("down", [2, 1]));
    let experts = (0..3)
        .map(|e| Expert {
            gate: gates[e],
            up: ups[e],
            down: downs[e],
        })
        .collect();
    let table = b.weight("table", &[2, 2]).unwrap();
    let router = b.weight("router", &[3, 2]).unwrap();
    let x = b.embed(table, 1.0).unwrap();
    let logits = b.linear(x, router, None).unwrap();
    let spec = RouteSpec {
        scoring: Scoring::Sigmoid,
        bias: None,
        groups: None,
        used: 2,
        normalise: false,
        scale: 1.0,
    };
    let routing = b.route(logits, spec).unwrap();
    let y = b.experts(x, routing, experts, Activation::Silu).unwrap();
    b.mark("y", y);
    let x = b.gather(y).unwrap();
    let logits = b.linear(x, table, None).unwrap();
    let program = b.finish(logits, 2, 8).unwrap();
    let mut executable = compile_with(&program, &weights, CacheType::F32).unwrap();
    let mut out = StepOutput::default();
    let sequences = [SequenceStep {
        count: 2,
        past: 0,
        pages: &[0],
    }];
    let step = Step {
        tokens: &[0, 1],
        sequences: &sequences,
        wanted: &[],
        marks: true,
    };
    executable.step(&step, &mut out).unwrap();
    out.marks.remove(0).1
}

#[test]
fn experts_are_weighted_sums_of_those_that_count() {
    let sigmoid = |x: f32| 1.0 / (1.0 + (-x).exp());
    // x = [1, 2]: expert 1 gives silu(1) * 4 times [1, -1], expert 2 silu(2) * 3 times [0.5, 4];
    // x = [-1, 3]: silu(-1) * 6 and silu(3) * -3. Weights are sigmoids of half an element.
    let token = |x: [f32; 2]| {
        let first = sigmoid(x[0] / 2.0) * x[0] * sigmoid(x[0]) * 2.0 * x[1];
        let second = sigmoid(x[1] / 2.0) * x[1] * sigmoid(x[1]) * 3.0 * x[0];
        [first + 0.5 * second, 4.0 * second - first]
    };
    let expected = [token([1.0, 2.0]), token([-1.0, 3.0])].concat();
    for stacked in [false, true] {
        let found = mixture(stacked);
        for (found, expected) in found.iter().zip(&expected) {
            assert!((found - expected).abs() < 1e-5, "{found} {expected}");
        }
    }
}
