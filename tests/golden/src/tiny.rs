//! Checks on the tiny models.

use crate::compare::{Judge, Seen, Tolerance, argmax, max_abs, std_dev};
use crate::fixtures::{floats, ids, list, read_json};
use crate::formats::{formats, open_tiny, reference_of, unknown_window};
use crate::runner::{Runner, Sequence};
use backplane_program::{Device, StepOutput};
use backplane_weights::Weights;
use serde_json::Value;

/// Largest relative rms and smallest argmax agreement for activations of 8 bits, as the references' README suggests.
const INT8_REL_RMS: f32 = 5e-2;
const INT8_ARGMAX: f32 = 0.84;
/// Enough for all sequences of a model at once, with their greedy continuations.
const POSITIONS: usize = 4096;
const MAX_STEP_TOKENS: usize = 512;

/// One sequence of a reference: what a device must give for `tokens`.
struct Case {
    tokens: Vec<u32>,
    /// The context's size that the reference was made with.
    n_ctx: Option<usize>,
    last_logits: Vec<f32>,
    /// Whether `tokens` ends before the position of `last_logits`.
    cut: bool,
    /// `[tokens][20]`.
    top_ids: Vec<Vec<u32>>,
    top_logits: Vec<Vec<f32>>,
    greedy_ids: Vec<u32>,
    greedy_margins: Vec<f32>,
    /// `[layers + 1][width]`, for some sequences.
    hidden: Option<Vec<Vec<f32>>>,
}

impl Case {
    fn new(tokens: &Value, reference: &Value) -> Self {
        let rows = |key: &str| -> Vec<Vec<f32>> { list(reference, key).iter().map(row).collect() };
        let row_ids = |row: &Value| row.as_array().map_or_else(Vec::new, |row| ids(row));
        Self {
            tokens: ids(list(tokens, "tokens")),
            n_ctx: tokens["n_ctx"].as_u64().map(|n_ctx| n_ctx as usize),
            last_logits: floats(list(reference, "last_logits")),
            cut: false,
            top_ids: list(reference, "top20_ids").iter().map(row_ids).collect(),
            top_logits: rows("top20_logits"),
            greedy_ids: ids(list(reference, "greedy_ids")),
            greedy_margins: floats(list(reference, "greedy_margins")),
            hidden: reference
                .get("hidden_last_position")
                .filter(|hidden| hidden.is_array())
                .map(|_| rows("hidden_last_position")),
        }
    }
}

impl Case {
    /// What is left of the reference within the first `positions`.
    fn within(mut self, positions: usize) -> Self {
        self.cut = self.tokens.len() > positions;
        self.tokens.truncate(positions);
        self.top_ids.truncate(positions);
        self.top_logits.truncate(positions);
        let steps = match self.cut {
            true => 0,
            false => positions + 1 - self.tokens.len(),
        };
        self.greedy_ids.truncate(steps);
        self.hidden = self.hidden.filter(|_| !self.cut);
        self
    }
}

fn row(value: &Value) -> Vec<f32> {
    value.as_array().map_or_else(Vec::new, |row| floats(row))
}

/// Judges a device by `tiny/{model}/golden.json` on one of the model's [`formats`]: logits of the last position, the best 20
/// of every position, greedy continuations, and the hidden state after each layer; by one prefill, token by token, in portions,
/// and with all sequences mixed in single steps.
///
/// # Panics
/// The device is off by more than the tolerance.
pub fn check_f32(device: &dyn Device, model: &str, format: &str, tolerance: Tolerance) -> Seen {
    let weights = open_tiny(model, format);
    let name = format!("{model}/{format}");
    let model = reference_of(model);
    let golden = read_json(&format!("tiny/{model}/golden.json"));
    let cases = list(&golden, "sequences").iter();
    let cases = cases.map(|case| Case::new(case, case));
    let cases: Vec<_> = match unknown_window(model, &weights) {
        Some(window) => cases.map(|case| case.within(window)).collect(),
        None => cases.collect(),
    };
    assert!(
        cases.iter().any(|case| case.hidden.is_some()),
        "{model}: no reference for hidden states"
    );
    check(device, &weights, &name, &cases, Limit::Exact(tolerance))
}

/// As [`check_f32`], on every format that the model ships.
///
/// # Panics
/// The device is off by more than the tolerance.
pub fn check_formats(
    device: &dyn Device,
    model: &str,
    tolerance: Tolerance,
) -> Vec<(&'static str, Seen)> {
    let judged = formats(model).into_iter();
    judged
        .map(|format| (format, check_f32(device, model, format, tolerance)))
        .collect()
}

/// Judges a device by `tiny/llama-256-quant/golden_quant.json` on the file of one block type, such as `Q4_K` or
/// `Q4_K_M-mixed`; `f16` is judged by `golden.json`.
///
/// # Panics
/// The device is off by more than the judge allows.
pub fn check_quant(device: &dyn Device, block_type: &str, judge: Judge) -> Seen {
    const MODEL: &str = "llama-256-quant";
    let file = format!("model-{block_type}.gguf");
    let cases: Vec<_> = if block_type == "f16" {
        let golden = read_json(&format!("tiny/{MODEL}/golden.json"));
        list(&golden, "sequences")
            .iter()
            .map(|case| Case::new(case, case))
            .collect()
    } else {
        let golden = read_json(&format!("tiny/{MODEL}/golden_quant.json"));
        let references = list(&golden["files"][&file], "sequences");
        let inputs = list(&golden, "sequences");
        assert_eq!(inputs.len(), references.len());
        inputs
            .iter()
            .zip(references)
            .map(|(input, case)| Case::new(input, &case["dequant_f32"]))
            .collect()
    };
    let limit = match judge {
        Judge::Exact => Limit::Exact(Tolerance::default()),
        Judge::Int8Activations => Limit::Int8,
    };
    let weights = open_tiny(MODEL, &file);
    check(device, &weights, &format!("{MODEL}/{file}"), &cases, limit)
}

#[derive(Clone, Copy)]
enum Limit {
    Exact(Tolerance),
    Int8,
}

fn check(device: &dyn Device, weights: &Weights, name: &str, cases: &[Case], limit: Limit) -> Seen {
    assert!(!cases.is_empty(), "{name}: no sequences");
    let mut cases: Vec<&Case> = cases.iter().collect();
    cases.sort_by_key(|case| case.n_ctx);
    cases
        .chunk_by(|a, b| a.n_ctx == b.n_ctx)
        .map(|cases| check_context(device, weights, name, cases, limit))
        .fold(Seen::nothing(), Seen::worst)
}

/// Judges sequences whose references have contexts of the same size.
fn check_context(
    device: &dyn Device,
    weights: &Weights,
    name: &str,
    cases: &[&Case],
    limit: Limit,
) -> Seen {
    let context = cases[0].n_ctx;
    let mut runner = Runner::of(device, weights, context, POSITIONS, MAX_STEP_TOKENS);
    let mut seen = Seen::nothing();
    for (index, case) in cases.iter().enumerate() {
        for (how, portion) in [
            ("one prefill", MAX_STEP_TOKENS),
            ("token by token", 1),
            ("portions of 7", 7),
        ] {
            let place = format!("{name}, sequence {index}, {how}");
            let mut sequence = Sequence::default();
            let logits = runner.feed(&mut sequence, &case.tokens, portion, 0);
            seen = seen.worst(judge_logits(&place, &logits, case, limit));
            if let Limit::Exact(tolerance) = limit {
                greedy(&mut runner, &mut sequence, &place, &logits, case, tolerance);
            }
            runner.release(sequence);
        }
        if let (Some(hidden), Limit::Exact(tolerance)) = (&case.hidden, limit) {
            let place = format!("{name}, sequence {index}");
            let worst = hidden_states(&mut runner, &place, case, hidden, tolerance);
            seen.hidden_max_abs = seen.hidden_max_abs.max(worst);
        }
    }
    mixed(&mut runner, name, cases, limit).worst(seen)
}

/// Judges logits of all positions of one sequence, `[tokens, vocab]`.
fn judge_logits(place: &str, logits: &[f32], case: &Case, limit: Limit) -> Seen {
    let vocab = case.last_logits.len();
    let rows: Vec<_> = logits.chunks_exact(vocab).collect();
    assert_eq!(rows.len(), case.tokens.len(), "{place}: rows of logits");
    assert_eq!(
        rows.len(),
        case.top_ids.len(),
        "{place}: positions of the reference"
    );
    let (mut ours, mut theirs) = match case.cut {
        true => (vec![], vec![]),
        false => (rows[rows.len() - 1].to_vec(), case.last_logits.clone()),
    };
    let mut right = 0;
    for (position, row) in rows.iter().enumerate() {
        let (top_ids, top_logits) = (&case.top_ids[position], &case.top_logits[position]);
        assert!(
            !top_ids.is_empty() && top_ids.len() == top_logits.len(),
            "{place}: position {position} of the reference"
        );
        let at_ids: Vec<f32> = top_ids.iter().map(|id| row[*id as usize]).collect();
        right += usize::from(argmax(row) == top_ids[0]);
        if let Limit::Exact(tolerance) = limit {
            // Our best 20 equal theirs in order of size: ids differ only where logits are within the tolerance.
            let mut best = row.to_vec();
            best.sort_unstable_by(|a, b| b.total_cmp(a));
            for (what, found) in [
                ("logits of the best ids", &at_ids[..]),
                ("best logits", &best[..top_ids.len()]),
            ] {
                let off = max_abs(found, top_logits);
                assert!(
                    off <= tolerance.max_abs,
                    "{place}, position {position}: {what} are off by {off:e}"
                );
            }
        }
        ours.extend(at_ids);
        theirs.extend(top_logits);
    }
    let off = max_abs(&ours, &theirs);
    let mean_square = ours
        .iter()
        .zip(&theirs)
        .map(|(a, b)| (a - b).powi(2))
        .sum::<f32>()
        / ours.len() as f32;
    let rel_rms = mean_square.sqrt() / std_dev(&case.last_logits);
    let argmax = right as f32 / rows.len() as f32;
    match limit {
        Limit::Exact(tolerance) => assert!(
            off <= tolerance.max_abs,
            "{place}: logits are off by {off:e}"
        ),
        Limit::Int8 => {
            assert!(
                rel_rms <= INT8_REL_RMS,
                "{place}: relative rms {rel_rms:e}, at most {INT8_REL_RMS:e}"
            );
            assert!(
                argmax >= INT8_ARGMAX,
                "{place}: argmax right at {argmax} of positions, at least {INT8_ARGMAX}"
            );
        }
    }
    Seen {
        max_abs: off,
        hidden_max_abs: 0.0,
        rel_rms,
        argmax,
    }
}

/// Continues a fed sequence greedily; stops comparing at a step whose margin is within the tolerance and went otherwise.
fn greedy(
    runner: &mut Runner,
    sequence: &mut Sequence,
    place: &str,
    logits: &[f32],
    case: &Case,
    tolerance: Tolerance,
) {
    let mut last = logits[logits.len() - case.last_logits.len()..].to_vec();
    for (step, (expected, margin)) in case.greedy_ids.iter().zip(&case.greedy_margins).enumerate() {
        let found = argmax(&last);
        if found != *expected {
            // Both logits of the pair may be off.
            let close = *margin <= 2.0 * tolerance.max_abs;
            assert!(
                close,
                "{place}, greedy step {step}: token {found}, expected {expected} by a margin of {margin}"
            );
            return;
        }
        last = runner.feed(sequence, &[*expected], 1, 0);
    }
}

fn hidden_states(
    runner: &mut Runner,
    place: &str,
    case: &Case,
    hidden: &[Vec<f32>],
    tolerance: Tolerance,
) -> f32 {
    let mut sequence = Sequence::default();
    let last_row = case.tokens.len() as u32 - 1;
    let out = runner.step(&mut [(&mut sequence, &case.tokens)], &[last_row], true);
    let layers = hidden.len() - 1;
    let mut worst = 0.0f32;
    for (index, expected) in hidden.iter().enumerate() {
        let name = match index {
            0 => "embedding".to_owned(),
            index if index == layers => "final_norm".to_owned(),
            index => format!("layer.{}", index - 1),
        };
        let off = max_abs(last_row_of(&out, &name, expected.len()), expected);
        assert!(
            off <= tolerance.max_abs,
            "{place}: {name} is off by {off:e}"
        );
        worst = worst.max(off);
    }
    let last_layer = format!("layer.{}", layers - 1);
    assert!(
        out.marks.iter().any(|(name, _)| *name == last_layer),
        "{place}: no mark {last_layer}"
    );
    runner.release(sequence);
    worst
}

fn last_row_of<'a>(out: &'a StepOutput, name: &str, width: usize) -> &'a [f32] {
    let mark = out
        .marks
        .iter()
        .find(|(mark, _)| mark == name)
        .map(|(_, values)| values);
    let values = mark.unwrap_or_else(|| panic!("no mark {name}"));
    &values[values.len() - width..]
}

/// All sequences side by side: a first step with the head of each, then single tokens of some beside portions of others.
fn mixed(runner: &mut Runner, place: &str, cases: &[&Case], limit: Limit) -> Seen {
    let mut sequences: Vec<Sequence> = cases.iter().map(|_| Sequence::default()).collect();
    let mut logits: Vec<Vec<f32>> = vec![vec![]; cases.len()];
    let mut fed = vec![0usize; cases.len()];
    for round in 0.. {
        let mut parts: Vec<(&mut Sequence, &[u32])> = vec![];
        let mut owners = vec![];
        for (index, sequence) in sequences.iter_mut().enumerate() {
            let portion = if (round + index) % 2 == 0 { 5 } else { 1 };
            let rest = &cases[index].tokens[fed[index]..];
            let chunk = &rest[..portion.min(rest.len())];
            if !chunk.is_empty() {
                fed[index] += chunk.len();
                owners.extend(std::iter::repeat_n(index, chunk.len()));
                parts.push((sequence, chunk));
            }
        }
        if parts.is_empty() {
            break;
        }
        let wanted: Vec<u32> = (0..owners.len() as u32).collect();
        let out = runner.step(&mut parts, &wanted, false);
        for (owner, row) in owners.iter().zip(out.logits.chunks_exact(runner.vocab())) {
            logits[*owner].extend_from_slice(row);
        }
    }
    sequences
        .into_iter()
        .for_each(|sequence| runner.release(sequence));
    let judged = cases.iter().zip(&logits).enumerate();
    judged.fold(Seen::nothing(), |seen, (index, (case, logits))| {
        seen.worst(judge_logits(
            &format!("{place}, sequence {index}, mixed"),
            logits,
            case,
            limit,
        ))
    })
}
