//! Embeddings, scores, queries and keys of loaded models, against the golden references and the reference interpreter.
#![allow(missing_docs, clippy::unwrap_used)]

mod common;

use backplane_cpu_device::CpuDevice;
use backplane_plugin_api::capability::{
    self, Attention, AttentionRequest, AttentionState, Embed, EmbedRequest, Pooling, Score,
    ScoreRequest, Unwatched,
};
use backplane_plugin_api::sdk::{Backend, TextModel};
use backplane_plugin_api::types::{Control, Error, ErrorCode, Prompt};
use backplane_program::{
    CacheType, Device, Interpreter, Limits, Op, Program, SequenceStep, Step, StepOutput,
};
use backplane_weights::Weights;
use common::*;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Every family, with the largest difference that its hidden states and logits may have.
const FAMILIES: &[(&str, f32)] = &[
    ("llama3-gqa", 1e-3),
    ("llama3-ropescaled", 1e-3),
    ("mistral-full", 1e-3),
    ("qwen2.5-bias", 1e-3),
    ("qwen2.5-yarn", 1e-3),
    ("qwen3-qknorm", 1e-3),
    ("phi3-full-rotary", 1e-3),
    ("phi4mini-partial-longrope", 1e-3),
    ("gemma3-text", 1e-3),
    ("gemma3-text-linear8", 1e-3),
    ("mixtral", 1e-3),
    ("qwen2-moe", 1e-3),
    ("qwen3-moe", 1e-3),
    ("deepseek-v3", 1e-3),
    ("deepseek-v3-yarn", 1e-3),
];

fn devices() -> [Arc<dyn Device>; 2] {
    [
        Arc::new(Interpreter),
        Arc::new(CpuDevice::detect().unwrap()),
    ]
}

fn embedder(model: &dyn TextModel) -> Arc<dyn Embed> {
    capability::embed(model).unwrap().unwrap()
}

fn scorer(model: &dyn TextModel) -> Arc<dyn Score> {
    capability::score(model).unwrap().unwrap()
}

fn inspector(model: &dyn TextModel) -> Arc<dyn Attention> {
    capability::attention(model).unwrap().unwrap()
}

fn embed_request(inputs: &[&[u32]], pooling: Pooling, normalize: bool) -> EmbedRequest {
    EmbedRequest {
        inputs: inputs
            .iter()
            .map(|tokens| Prompt::Tokens(tokens.to_vec()))
            .collect(),
        pooling,
        normalize,
        extra: BTreeMap::new(),
    }
}

fn embed_one(model: &dyn TextModel, tokens: &[u32], pooling: Pooling) -> Vec<f32> {
    let request = embed_request(&[tokens], pooling, false);
    let mut answers = embedder(model).embed(&request, &mut Unwatched).unwrap();
    assert_eq!(answers.len(), 1);
    let embedding = answers.remove(0).unwrap();
    assert_eq!(embedding.prompt_tokens, tokens.len() as u64);
    embedding.values
}

fn score_request(tokens: &[u32], first: u32) -> ScoreRequest {
    ScoreRequest {
        tokens: tokens.to_vec(),
        first,
        extra: BTreeMap::new(),
    }
}

fn floats(value: &serde_json::Value) -> Vec<f32> {
    let numbers = value.as_array().unwrap().iter();
    numbers
        .map(|number| number.as_f64().unwrap() as f32)
        .collect()
}

/// Sequences of a model's golden references: tokens, the context they were made for, and the rest.
fn sequences(name: &str) -> Vec<(Vec<u32>, u32, serde_json::Value)> {
    let golden = json(&fixtures().join("tiny").join(name).join("golden.json"));
    let sequences = golden["sequences"].as_array().unwrap();
    sequences
        .iter()
        .map(|sequence| {
            let context = sequence["n_ctx"].as_u64().unwrap() as u32;
            (ids(&sequence["tokens"]), context, sequence.clone())
        })
        .collect()
}

fn log_softmax(logits: &[f32]) -> Vec<f32> {
    let max = logits.iter().copied().fold(f32::MIN, f32::max);
    let sum: f64 = logits.iter().map(|x| f64::from(x - max).exp()).sum();
    logits
        .iter()
        .map(|x| (f64::from(x - max) - sum.ln()) as f32)
        .collect()
}

fn assert_close(found: &[f32], expected: &[f32], tolerance: f32, what: &str) {
    assert_eq!(found.len(), expected.len(), "{what}");
    let difference = found
        .iter()
        .zip(expected)
        .map(|(a, b)| (a - b).abs())
        .fold(0.0, f32::max);
    // Written so that NaN fails.
    assert!(difference <= tolerance, "{what}: {difference}");
}

fn inspect(
    model: &dyn TextModel,
    tokens: &[u32],
    layers: Option<Vec<u32>>,
) -> Result<AttentionState, Error> {
    let request = AttentionRequest {
        prompt: Prompt::Tokens(tokens.to_vec()),
        layers,
        extra: BTreeMap::new(),
    };
    inspector(model).inspect_attention(&request, &mut Unwatched)
}

/// The marks of a sequence read at once by the reference interpreter, and its logits at every position.
fn interpreted(path: &Path, tokens: &[u32], context: u32) -> StepOutput {
    let weights = Weights::open(path).unwrap();
    let program = backplane_models::lower_for(&weights, Some(context as usize)).unwrap();
    run(&program, &weights, tokens)
}

fn run(program: &Program, weights: &Weights, tokens: &[u32]) -> StepOutput {
    let limits = Limits {
        max_step_tokens: tokens.len(),
        max_wanted: tokens.len(),
        page_size: tokens.len(),
        pages: 1,
        threads: 1,
        cache_type: CacheType::F32,
    };
    let mut executable = Interpreter.compile(program, weights, limits).unwrap();
    let wanted: Vec<u32> = (0..tokens.len() as u32).collect();
    let step = Step {
        tokens,
        sequences: &[SequenceStep {
            count: tokens.len(),
            past: 0,
            pages: &[0],
        }],
        wanted: &wanted,
        marks: true,
    };
    let mut output = StepOutput::default();
    executable.step(&step, &mut output).unwrap();
    output
}

fn mark<'a>(output: &'a StepOutput, name: &str) -> &'a [f32] {
    let found = output.marks.iter().find(|(known, _)| known == name);
    &found.unwrap_or_else(|| panic!("no mark {name}")).1
}

#[test]
fn the_last_hidden_state_is_the_references() {
    for device in devices() {
        let (backend, _) = backend_over(device);
        for &(name, tolerance) in FAMILIES {
            let (tokens, length, golden) = sequences(name).swap_remove(1);
            let model = backend
                .load(&tiny(name), &exactly(context(length, 2)))
                .unwrap();
            let hidden = golden["hidden_last_position"].as_array().unwrap();
            let expected = floats(hidden.last().unwrap());
            let found = embed_one(&*model, &tokens, Pooling::Last);
            assert_close(&found, &expected, tolerance, name);
        }
    }
}

#[test]
fn poolings_are_those_of_the_interpreters_hidden_states() {
    let (backend, watch) = backend_over(Arc::new(CpuDevice::detect().unwrap()));
    for &(name, _) in FAMILIES {
        let (tokens, length, _) = sequences(name).swap_remove(2);
        let model = backend
            .load(&tiny(name), &exactly(context(length, 2)))
            .unwrap();
        let output = interpreted(&tiny(name), &tokens, length);
        let rows = mark(&output, "final_norm");
        let width = rows.len() / tokens.len();
        let cls = &rows[..width];
        let last = &rows[rows.len() - width..];
        let mean: Vec<f32> = (0..width)
            .map(|column| {
                let column = rows.iter().skip(column).step_by(width);
                column.map(|x| f64::from(*x)).sum::<f64>() as f32 / tokens.len() as f32
            })
            .collect();
        for (pooling, expected) in [
            (Pooling::Cls, cls),
            (Pooling::Last, last),
            (Pooling::Mean, &mean),
        ] {
            let found = embed_one(&*model, &tokens, pooling);
            assert_close(&found, expected, 1e-3, &format!("{name}, {pooling:?}"));
        }
        // Normalised: the same direction, length 1.
        let request = embed_request(&[&tokens], Pooling::Mean, true);
        let answers = embedder(&*model).embed(&request, &mut Unwatched).unwrap();
        let values = answers[0].as_ref().unwrap().values.clone();
        let length = mean.iter().map(|x| x * x).sum::<f32>().sqrt();
        let expected: Vec<f32> = mean.iter().map(|x| x / length).collect();
        assert_close(&values, &expected, 1e-4, name);
    }
    // The first position needs one token read, however long the input is: pages of 8, steps of at most 16.
    assert_eq!(watch.longest.load(Ordering::SeqCst), 16);
}

#[test]
fn many_inputs_each_have_their_answer() {
    let (model, _) = load_tiny("llama3-gqa", &context(64, 3));
    let inputs: Vec<Vec<u32>> = (0..20).map(|n| prompt(n, 1 + 3 * n as usize)).collect();
    let alone: Vec<Vec<f32>> = inputs
        .iter()
        .map(|tokens| embed_one(&*model, tokens, Pooling::Mean))
        .collect();
    let mut request = embed_request(&[], Pooling::Mean, false);
    request.inputs = inputs.iter().cloned().map(Prompt::Tokens).collect();
    // Errors belong to their inputs.
    request.inputs.insert(3, Prompt::Tokens(Vec::new()));
    request.inputs.insert(7, Prompt::Tokens(prompt(1, 65)));
    request.inputs.insert(9, Prompt::Tokens(vec![1, 512]));
    let mut told: Vec<(u64, u64, String)> = Vec::new();
    let mut watch = |done: u64, total: u64, what: &str| {
        told.push((done, total, what.to_owned()));
        Control::Continue
    };
    let mut answers = embedder(&*model).embed(&request, &mut watch).unwrap();
    assert_eq!(answers.len(), 23);
    let outside = answers.remove(9).unwrap_err();
    assert_eq!(outside.code, ErrorCode::InvalidRequest);
    assert!(outside.message.contains("512"), "{outside}");
    let long = answers.remove(7).unwrap_err();
    assert_eq!(long.code, ErrorCode::ContextOverflow);
    assert!(
        long.message.contains("65") && long.message.contains("64"),
        "{long}"
    );
    let empty = answers.remove(3).unwrap_err();
    assert!(empty.message.contains("empty"), "{empty}");
    for (answer, alone) in answers.iter().zip(&alone) {
        assert_eq!(answer.as_ref().unwrap().values, *alone);
    }
    assert_eq!(told.first(), Some(&(3, 23, "inputs".to_owned())));
    assert_eq!(told.last(), Some(&(23, 23, "inputs".to_owned())));
    assert!(told.windows(2).all(|pair| pair[0].0 <= pair[1].0));
    let none = embed_request(&[], Pooling::Cls, true);
    assert_eq!(
        embedder(&*model).embed(&none, &mut Unwatched),
        Ok(Vec::new())
    );
    assert_eq!(model.metrics()["kv_pages_used"], 0.0);
}

#[test]
fn scores_are_the_references_log_probabilities() {
    for device in devices() {
        let (backend, _) = backend_over(device);
        for &(name, tolerance) in FAMILIES {
            for (tokens, length, golden) in sequences(name) {
                let expected = log_softmax(&floats(&golden["last_logits"]));
                let model = backend
                    .load(&tiny(name), &exactly(context(length, 2)))
                    .unwrap();
                for next in [0, 17, 511] {
                    let mut tokens = tokens.clone();
                    tokens.push(next);
                    let request = score_request(&tokens, tokens.len() as u32 - 1);
                    let found = scorer(&*model).score(&request, &mut Unwatched).unwrap();
                    assert_close(&found, &[expected[next as usize]], tolerance, name);
                }
            }
        }
    }
}

#[test]
fn scores_are_the_same_in_portions_and_from_any_first() {
    let (model, _) = load_tiny("llama3-gqa", &exactly(context(128, 2)));
    let tokens = prompt(5, 128);
    let output = interpreted(&tiny("llama3-gqa"), &tokens, 128);
    let expected: Vec<f32> = output
        .logits
        .chunks_exact(512)
        .zip(&tokens[1..])
        .map(|(logits, next)| log_softmax(logits)[*next as usize])
        .collect();
    let score = |tokens: &[u32], first: u32| {
        let request = score_request(tokens, first);
        let found = scorer(&*model).score(&request, &mut Unwatched).unwrap();
        assert_eq!(found.len(), request.scored());
        found
    };
    let whole = score(&tokens, 0);
    assert_close(&whole, &expected, 1e-4, "whole");
    assert_eq!(score(&tokens, 1), whole);
    for first in [2, 64, 127] {
        assert_eq!(score(&tokens, first), whole[first as usize - 1..]);
    }
    for first in [128, 129, u32::MAX] {
        assert!(score(&tokens, first).is_empty());
    }
    assert!(score(&tokens[..1], 0).is_empty() && score(&[], 0).is_empty());

    let long = prompt(5, 129);
    let error = scorer(&*model)
        .score(&score_request(&long, 0), &mut Unwatched)
        .unwrap_err();
    assert_eq!(error.code, ErrorCode::ContextOverflow);
    assert!(
        error.message.contains("129") && error.message.contains("128"),
        "{error}"
    );
    let error = scorer(&*model)
        .score(&score_request(&[1, 600], 0), &mut Unwatched)
        .unwrap_err();
    assert!(error.message.contains("600"), "{error}");
}

/// Queries and keys by the interpreter's own values: `[position][head × head_dim]` of every attention of the program.
fn interpreted_states(path: &Path, tokens: &[u32], context: u32) -> Vec<[Vec<f32>; 2]> {
    let weights = Weights::open(path).unwrap();
    let mut program = backplane_models::lower_for(&weights, Some(context as usize)).unwrap();
    program.marks.clear();
    let mut layers = 0;
    for op in &program.ops {
        if let Op::Attention { q, k, .. } = op {
            program.marks.push((format!("{layers} q"), *q));
            program.marks.push((format!("{layers} k"), *k));
            layers += 1;
        }
    }
    let output = run(&program, &weights, tokens);
    (0..layers)
        .map(|layer| ["q", "k"].map(|name| mark(&output, &format!("{layer} {name}")).to_vec()))
        .collect()
}

fn by_position(state: &[f32], heads: u32, positions: usize, dim: u32) -> Vec<f32> {
    let (heads, dim) = (heads as usize, dim as usize);
    let mut rows = vec![0.0; state.len()];
    for head in 0..heads {
        for position in 0..positions {
            for element in 0..dim {
                rows[(position * heads + head) * dim + element] =
                    state[(head * positions + position) * dim + element];
            }
        }
    }
    rows
}

#[test]
fn queries_and_keys_are_the_interpreters() {
    let (backend, _) = backend_over(Arc::new(CpuDevice::detect().unwrap()));
    for &(name, _) in FAMILIES {
        let (tokens, length, _) = sequences(name).swap_remove(2);
        let model = backend
            .load(&tiny(name), &exactly(context(length, 2)))
            .unwrap();
        let expected = interpreted_states(&tiny(name), &tokens, length);
        let state = inspect(&*model, &tokens, None).unwrap();
        assert_eq!(state.tokens, tokens);
        assert_eq!(state.layers.len(), expected.len(), "{name}");
        for (layer, [queries, keys]) in state.layers.iter().zip(&expected) {
            let what = format!("{name}, layer {}", layer.layer);
            let (positions, dim) = (tokens.len(), layer.head_dim);
            let found = by_position(&layer.queries, layer.heads, positions, dim);
            assert_close(&found, queries, 1e-3, &what);
            let found = by_position(&layer.keys, layer.kv_heads, positions, dim);
            assert_close(&found, keys, 1e-3, &what);
            assert!(keys.iter().any(|key| key.abs() > 0.1), "{what}");
        }
        let last = expected.len() as u32 - 1;
        let some = inspect(&*model, &tokens, Some(vec![last, 0, last])).unwrap();
        let layers: Vec<u32> = some.layers.iter().map(|layer| layer.layer).collect();
        assert_eq!(layers, [0, last], "in the order of the model, each once");
        assert_eq!(some.layers[1], state.layers[last as usize]);
        let error = inspect(&*model, &tokens, Some(vec![0, 99])).unwrap_err();
        assert!(error.message.contains("99"), "{error}");
        assert!(
            inspect(&*model, &tokens, Some(Vec::new()))
                .unwrap()
                .layers
                .is_empty()
        );
        let long = prompt(1, length as usize + 1);
        let error = inspect(&*model, &long, None).unwrap_err();
        assert_eq!(error.code, ErrorCode::ContextOverflow);
    }
}

#[test]
fn unknown_fields_are_refused_by_name() {
    let (model, _) = load_tiny("llama3-gqa", &context(64, 2));
    let extra = BTreeMap::from([("prefix".to_owned(), serde_json::json!("x"))]);
    let embed = EmbedRequest {
        extra: extra.clone(),
        ..embed_request(&[&[1]], Pooling::Mean, true)
    };
    let score = ScoreRequest {
        extra: extra.clone(),
        ..score_request(&[1, 2], 0)
    };
    let attention = AttentionRequest {
        prompt: Prompt::Tokens(vec![1]),
        layers: None,
        extra,
    };
    for error in [
        embedder(&*model).embed(&embed, &mut Unwatched).unwrap_err(),
        scorer(&*model).score(&score, &mut Unwatched).unwrap_err(),
        inspector(&*model)
            .inspect_attention(&attention, &mut Unwatched)
            .unwrap_err(),
    ] {
        assert_eq!(
            (error.code, error.field.as_str()),
            (ErrorCode::UnsupportedField, "prefix")
        );
    }
    assert!(model.capability("embed/2").is_none() && model.capability("train/1").is_none());
}

#[test]
fn what_is_not_a_number_is_an_error_that_names_the_model() {
    let (model, watch) = load_tiny("llama3-gqa", &context(64, 2));
    watch.nan_at.store(1, Ordering::SeqCst);
    let request = score_request(&[1, 2, 3], 0);
    let error = scorer(&*model).score(&request, &mut Unwatched).unwrap_err();
    assert!(error.message.contains("model-f32.gguf"), "{error}");
    assert!(error.action.contains("--check"), "{error:?}");
}

#[test]
fn a_caller_can_stop() {
    let (model, watch) = load_tiny("llama3-gqa", &context(400, 2));
    watch.sleep_ms.store(5, Ordering::SeqCst);
    let tokens = prompt(3, 400);
    let mut at_once = |_: u64, _: u64, _: &str| Control::Stop;
    let error = scorer(&*model)
        .score(&score_request(&tokens, 0), &mut at_once)
        .unwrap_err();
    assert_eq!(error.code, ErrorCode::Cancelled);
    assert_eq!(watch.steps.load(Ordering::SeqCst), 0);
    let mut after_some = |done: u64, _: u64, _: &str| match done {
        0..32 => Control::Continue,
        _ => Control::Stop,
    };
    let error = scorer(&*model)
        .score(&score_request(&tokens, 0), &mut after_some)
        .unwrap_err();
    assert_eq!(error.code, ErrorCode::Cancelled);
    // The engine gives up its pages, and goes on.
    let mut ended = false;
    for _ in 0..400 {
        let metrics = model.metrics();
        ended = metrics["kv_pages_used"] == 0.0 && metrics["sequences_running"] == 0.0;
        if ended {
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    assert!(ended, "{:?}", model.metrics());
    assert!(watch.steps.load(Ordering::SeqCst) < 25);
    assert!(generate(&*model, &tokens_request(&[1, 2], greedy(3))).is_ok());
}

#[test]
fn a_closed_model_says_so() {
    let (model, _) = load_tiny("llama3-gqa", &context(64, 2));
    let (embed, score, attention) = (embedder(&*model), scorer(&*model), inspector(&*model));
    drop(model);
    let state = AttentionRequest {
        prompt: Prompt::Tokens(vec![1]),
        layers: None,
        extra: BTreeMap::new(),
    };
    for code in [
        embed
            .embed(&embed_request(&[&[1]], Pooling::Mean, true), &mut Unwatched)
            .unwrap_err()
            .code,
        score
            .score(&score_request(&[1, 2], 0), &mut Unwatched)
            .unwrap_err()
            .code,
        attention
            .inspect_attention(&state, &mut Unwatched)
            .unwrap_err()
            .code,
    ] {
        assert_eq!(code, ErrorCode::Closed);
    }
}

#[test]
fn closing_ends_what_runs() {
    let (model, watch) = load_tiny("llama3-gqa", &context(400, 2));
    watch.sleep_ms.store(20, Ordering::SeqCst);
    let score = scorer(&*model);
    std::thread::scope(|scope| {
        let call = scope.spawn(|| score.score(&score_request(&prompt(3, 400), 0), &mut Unwatched));
        while watch.steps.load(Ordering::SeqCst) < 2 {
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        model.close().unwrap();
        assert_eq!(call.join().unwrap().unwrap_err().code, ErrorCode::Closed);
    });
}

#[test]
fn texts_and_inspections_run_side_by_side_and_change_nothing() {
    let (model, _) = load_tiny("llama3-gqa", &context(200, 4));
    let request = tokens_request(&prompt(1, 40), greedy(100));
    let alone = generate(&*model, &request).unwrap().0;
    let tokens = prompt(2, 180);
    let mean = embed_one(&*model, &tokens, Pooling::Mean);
    let scores = scorer(&*model)
        .score(&score_request(&tokens, 0), &mut Unwatched)
        .unwrap();
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                let told = generate(&*model, &request).unwrap().0;
                assert_eq!(
                    (told.tokens, told.text),
                    (alone.tokens.clone(), alone.text.clone())
                );
            });
            scope.spawn(|| assert_eq!(embed_one(&*model, &tokens, Pooling::Mean), mean));
            scope.spawn(|| {
                let again = scorer(&*model).score(&score_request(&tokens, 0), &mut Unwatched);
                assert_eq!(again.unwrap(), scores);
            });
        }
    });
    assert_eq!(model.metrics()["kv_pages_used"], 0.0);
}

#[test]
fn a_long_inspection_does_not_hold_up_texts() {
    let (model, watch) = load_tiny("llama3-gqa", &context(400, 2));
    watch.sleep_ms.store(2, Ordering::SeqCst);
    let score = scorer(&*model);
    let tokens = prompt(2, 400);
    std::thread::scope(|scope| {
        let call = scope.spawn(|| score.score(&score_request(&tokens, 0), &mut Unwatched));
        while watch.steps.load(Ordering::SeqCst) < 2 {
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        // 25 steps of 16 tokens take turns with those of the text.
        let told = generate(&*model, &tokens_request(&[1, 2], greedy(8)))
            .unwrap()
            .0;
        assert_eq!(told.tokens.len(), 8);
        assert!(!call.is_finished());
        assert_eq!(call.join().unwrap().unwrap().len(), 399);
    });
}
