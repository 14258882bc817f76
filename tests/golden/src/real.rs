//! Checks on the real models.

use crate::compare::{Judge, argmax};
use crate::fixtures::{floats, ids, list, read_json, real_model_path};
use crate::runner::{Runner, Sequence};
use backplane_program::Device;

const STEPS: usize = 64;
const AGREE: usize = 59;
/// Margins above which even activations of 8 bits must find the same token: where llama.cpp's greedy runs leave the exact
/// ones, the exact margin is at most 0.39.
const INT8_MARGIN: f32 = 0.5;
/// The same for `f32`: the references' logits are not closer than this over models of this depth.
const EXACT_MARGIN: f32 = 2e-2;
/// Tokens of a step: keeps the logits of a vocabulary of 262,144 small.
const PORTION: usize = 32;

/// Feeds each prompt of `real/{model}-greedy.json` with llama.cpp's greedy continuation and compares the argmax at each of the
/// 64 steps with the exact one. As long as both references go the same way, steps with a clear margin must agree.
/// Returns the agreement for each prompt.
///
/// # Panics
/// Fewer than 59 of 64 agree for a prompt, or one with a clear margin does not.
pub fn real_teacher_forced(device: &dyn Device, model: &str, judge: Judge) -> Vec<usize> {
    let golden = read_json(&format!("real/{model}-greedy.json"));
    let mut runner = Runner::new(device, &real_model_path(model), 1024, PORTION);
    let clear = match judge {
        Judge::Exact => EXACT_MARGIN,
        Judge::Int8Activations => INT8_MARGIN,
    };
    let cases = list(&golden, "cases");
    assert!(!cases.is_empty(), "{model}: no prompts");
    let mut agreements = vec![];
    for (index, case) in cases.iter().enumerate() {
        let exact = &case["dequant_f32"];
        let prompt = ids(list(case, "tokens"));
        let path = ids(list(&case["llama_cpp"], "greedy_ids"));
        let expected = ids(list(&exact["teacher_forced"], "argmax"));
        let exact_path = ids(list(exact, "greedy_ids"));
        let margins = floats(list(exact, "greedy_margins"));
        assert!(
            path.len() == STEPS && expected.len() == STEPS,
            "{model}, prompt {index}: {} steps",
            path.len()
        );
        let tokens = [&prompt[..], &path[..STEPS - 1]].concat();
        let mut sequence = Sequence::default();
        let logits = runner.feed(&mut sequence, &tokens, PORTION, prompt.len() - 1);
        runner.release(sequence);
        let found: Vec<u32> = logits.chunks_exact(runner.vocab()).map(argmax).collect();
        assert_eq!(found.len(), STEPS);
        let agree = found
            .iter()
            .zip(&expected)
            .filter(|(found, expected)| found == expected)
            .count();
        assert!(
            agree >= AGREE,
            "{model}, prompt {index}: {agree} of {STEPS} agree, at least {AGREE} must"
        );
        let common = path
            .iter()
            .zip(&exact_path)
            .take_while(|(a, b)| a == b)
            .count();
        for step in 0..STEPS.min(common + 1) {
            let (found, expected, margin) = (found[step], expected[step], margins[step]);
            let fine = found == expected || margin <= clear;
            assert!(
                fine,
                "{model}, prompt {index}, step {step}: token {found}, expected {expected} by a margin of {margin}"
            );
        }
        agreements.push(agree);
    }
    agreements
}

/// Perplexity of a real model over the text in `perplexity/`, by the rule given there.
///
/// # Panics
/// It differs from the exact value by more than 1 %.
pub fn perplexity(device: &dyn Device, model: &str) -> f64 {
    perplexity_within(device, model, 0.01)
}

/// As [`perplexity`], for a device that may be off by another share than 0.01, such as one that stores its cache in 8 bits.
///
/// # Panics
/// It differs from the exact value by more than this share.
pub fn perplexity_within(device: &dyn Device, model: &str, most: f64) -> f64 {
    let results = &read_json("perplexity/results.json")["models"][model];
    let number = |key: &str| {
        results[key]
            .as_u64()
            .unwrap_or_else(|| panic!("reference has no number {key}")) as usize
    };
    let (context, chunks, scored) = (
        number("n_ctx"),
        number("chunks"),
        number("scored_positions_per_chunk"),
    );
    let exact = results["dequant_f32"]
        .as_f64()
        .unwrap_or_else(|| panic!("reference has no exact value"));
    let tokens = ids(list(results, "tokens"));
    let path = real_model_path(model);
    let bos = bos(&path);
    let mut runner = Runner::new(device, &path, context, PORTION);
    let (mut loss, mut count) = (0.0f64, 0);
    for chunk in tokens.chunks_exact(context) {
        let mut chunk = chunk.to_vec();
        if let Some(bos) = bos {
            chunk[0] = bos;
        }
        let mut sequence = Sequence::default();
        let logits = runner.feed(&mut sequence, &chunk, PORTION, context / 2);
        runner.release(sequence);
        for (position, row) in (context / 2..context - 1).zip(logits.chunks_exact(runner.vocab())) {
            loss += negative_log_likelihood(row, chunk[position + 1]);
            count += 1;
        }
    }
    assert_eq!(count, chunks * scored, "{model}: scored positions");
    let found = (loss / f64::from(count as u32)).exp();
    let off = (found / exact - 1.0).abs();
    assert!(off <= most, "{model}: perplexity {found}, exact {exact}");
    found
}

/// The token that the model's vocabulary puts first, if it puts one.
fn bos(path: &std::path::Path) -> Option<u32> {
    let weights = backplane_weights::Weights::open(path).unwrap_or_else(|error| panic!("{error}"));
    let adds = weights
        .metadata()
        .bool("tokenizer.ggml.add_bos_token")
        .unwrap_or_else(|error| panic!("{error}"));
    let id = weights
        .metadata()
        .u32("tokenizer.ggml.bos_token_id")
        .unwrap_or_else(|error| panic!("{error}"));
    id.filter(|_| adds == Some(true))
}

fn negative_log_likelihood(logits: &[f32], token: u32) -> f64 {
    let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f64 = logits
        .iter()
        .map(|logit| f64::from(logit - max).exp())
        .sum();
    sum.ln() + f64::from(max) - f64::from(logits[token as usize])
}
