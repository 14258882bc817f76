//! Generations against the golden references, and the rules of a generation's end.
#![allow(missing_docs, clippy::unwrap_used)]

mod common;

use backplane_plugin_api::sdk::TextModel;
use backplane_plugin_api::types::{
    ClassifyRequest, ErrorCode, FinishReason, GenerateOptions, GenerateRequest, LoadOptions, Prompt,
};
use common::*;
use std::collections::BTreeMap;

/// Greedy ids as transformers has them, up to a step whose margin is within the tolerance.
fn check_golden(model: &dyn TextModel, name: &str, tolerance: f64) {
    let golden = json(&fixtures().join("tiny").join(name).join("golden.json"));
    for sequence in golden["sequences"].as_array().unwrap() {
        let tokens = ids(&sequence["tokens"]);
        let expected = ids(&sequence["greedy_ids"]);
        let margins = sequence["greedy_margins"].as_array().unwrap();
        let clear = margins
            .iter()
            .take_while(|margin| margin.as_f64().unwrap() > tolerance)
            .count();
        let (told, completion) = generate(model, &tokens_request(&tokens, greedy(32))).unwrap();
        assert!(clear > 0);
        assert_eq!(
            told.tokens[..clear],
            expected[..clear],
            "{name}, prompt of {}",
            tokens.len()
        );
        assert_eq!(completion.finish_reason, FinishReason::Length);
        assert_eq!(completion.prompt_tokens, tokens.len() as u64);
        assert_eq!(completion.completion_tokens, 32);
        assert_eq!(
            told.prefill.last(),
            Some(&(tokens.len() as u64, tokens.len() as u64))
        );
    }
}

#[test]
fn greedy_equals_the_references() {
    for name in [
        "llama3-gqa",
        "llama3-ropescaled",
        "mistral-full",
        "gemma3-text",
    ] {
        let (model, _) = load_tiny(name, &context(200, 2));
        check_golden(&*model, name, 2e-3);
    }
}

#[test]
fn logits_equal_the_references() {
    let (model, _) = load_tiny("llama3-gqa", &exactly(context(200, 4)));
    let golden = json(&fixtures().join("tiny/llama3-gqa/golden.json"));
    let sequences = golden["sequences"].as_array().unwrap();
    let request = ClassifyRequest {
        prompts: sequences
            .iter()
            .map(|sequence| Prompt::Tokens(ids(&sequence["tokens"])))
            .collect(),
        top: 5,
        logits: true,
        extra: BTreeMap::new(),
    };
    // The second time everything but the last token comes from the cache.
    for _ in 0..2 {
        let answers = model.classify(&request).unwrap();
        for (answer, sequence) in answers.into_iter().zip(sequences) {
            let answer = answer.unwrap();
            let logits = answer.logits.unwrap();
            let expected = sequence["last_logits"].as_array().unwrap();
            assert_eq!(logits.len(), expected.len());
            let worst = logits
                .iter()
                .zip(expected)
                .map(|(a, b)| (f64::from(*a) - b.as_f64().unwrap()).abs())
                .fold(0.0, f64::max);
            assert!(worst < 1e-3, "{worst}");
            let top: Vec<u32> = answer.top.iter().map(|top| top.token).collect();
            let last = sequence["top20_ids"].as_array().unwrap().last().unwrap();
            assert_eq!(top, ids(last)[..5]);
            assert!(
                answer
                    .top
                    .windows(2)
                    .all(|pair| pair[0].logprob >= pair[1].logprob)
            );
        }
    }
    assert!(model.metrics()["prefix_cached_tokens_total"] > 0.0);
    let plain = ClassifyRequest {
        logits: false,
        top: 0,
        ..request
    };
    let answer = model.classify(&plain).unwrap().remove(0).unwrap();
    assert_eq!((answer.logits, answer.top.len()), (None, 0));
}

#[test]
fn max_tokens_and_the_context_bound_a_generation() {
    let (model, watch) = load_tiny("llama3-gqa", &context(40, 2));
    let tokens = prompt(1, 30);
    let run = |options: GenerateOptions| {
        generate(&*model, &tokens_request(&tokens, options))
            .unwrap()
            .1
    };
    let ended = |options: GenerateOptions| {
        let completion = run(options);
        (completion.finish_reason, completion.completion_tokens)
    };
    assert_eq!(ended(greedy(0)), (FinishReason::Length, 0));
    assert_eq!(watch.steps.load(std::sync::atomic::Ordering::SeqCst), 0);
    assert_eq!(ended(greedy(1)), (FinishReason::Length, 1));
    assert_eq!(ended(greedy(10)), (FinishReason::Length, 10));
    assert_eq!(ended(greedy(11)), (FinishReason::ContextFull, 10));
    assert_eq!(ended(greedy(100_000_000)), (FinishReason::ContextFull, 10));
    assert_eq!(
        ended(GenerateOptions {
            max_tokens: None,
            ..greedy(0)
        }),
        (FinishReason::ContextFull, 10)
    );

    let full = generate(&*model, &tokens_request(&prompt(1, 39), greedy(5)))
        .unwrap()
        .1;
    assert_eq!(
        (full.finish_reason, full.completion_tokens),
        (FinishReason::ContextFull, 1)
    );
    for length in [40, 41, 4000] {
        let error = generate(&*model, &tokens_request(&prompt(1, length), greedy(5))).unwrap_err();
        assert_eq!(error.code, ErrorCode::ContextOverflow);
        assert!(
            error.message.contains(&length.to_string()) && error.message.contains("40"),
            "{error}"
        );
    }
}

#[test]
fn end_and_stop_tokens_end_without_text() {
    let (model, _) = load_tiny("llama3-gqa", &context(200, 2));
    let tokens = prompt(2, 9);
    let (free, _) = generate(&*model, &tokens_request(&tokens, greedy(20))).unwrap();
    // The first token that did not occur before it.
    let at = (3..20)
        .find(|&at| !free.tokens[..at].contains(&free.tokens[at]))
        .unwrap();
    let options = GenerateOptions {
        stop_tokens: vec![free.tokens[at]],
        ..greedy(20)
    };
    let (told, completion) = generate(&*model, &tokens_request(&tokens, options)).unwrap();
    assert_eq!(completion.finish_reason, FinishReason::Stop);
    assert_eq!(told.tokens, free.tokens[..at]);
    let bytes = model.detokenize(&free.tokens[..at], false).unwrap();
    assert_eq!(told.text, String::from_utf8_lossy(&bytes));
}

#[test]
fn stop_strings_are_found_across_tokens() {
    let (model, _) = load_tiny("llama3-gqa", &context(400, 2));
    for seed in 0..12 {
        let tokens = prompt(seed, 6);
        let (free, _) = generate(
            &*model,
            &tokens_request(&tokens, seeded(u64::from(seed), 60)),
        )
        .unwrap();
        let characters: Vec<char> = free.text.chars().collect();
        assert!(characters.len() > 12, "{:?}", free.text);
        let stop: String = characters[6..10].iter().collect();
        let near_miss = format!("{stop}\u{1}never");
        let options = GenerateOptions {
            stop: vec![near_miss, stop.clone()],
            ..seeded(u64::from(seed), 60)
        };
        let (told, completion) = generate(&*model, &tokens_request(&tokens, options)).unwrap();
        let expected = &free.text[..free.text.find(&stop).unwrap()];
        assert_eq!(told.text, expected);
        assert_eq!(completion.finish_reason, FinishReason::StopString);
        assert_eq!(completion.stop_string.as_deref(), Some(&*stop));

        let never = GenerateOptions {
            stop: vec![format!("{}\u{1}", free.text)],
            ..seeded(u64::from(seed), 60)
        };
        let (told, completion) = generate(&*model, &tokens_request(&tokens, never)).unwrap();
        assert_eq!(told.text, free.text);
        assert_eq!(completion.finish_reason, FinishReason::Length);
    }
}

#[test]
fn log_probabilities_are_those_of_the_model() {
    let (model, _) = load_tiny("llama3-gqa", &context(200, 2));
    let tokens = prompt(3, 9);
    let options = GenerateOptions {
        logprobs: Some(4),
        ..seeded(5, 8)
    };
    let (told, _) = generate(&*model, &tokens_request(&tokens, options)).unwrap();
    let (quiet, _) = generate(&*model, &tokens_request(&tokens, seeded(5, 8))).unwrap();
    assert_eq!(told.tokens, quiet.tokens);
    assert!(quiet.logprobs.iter().all(Vec::is_empty));
    let mut history = tokens;
    for (token, logprobs) in told.tokens.iter().zip(&told.logprobs) {
        let request = ClassifyRequest {
            prompts: vec![Prompt::Tokens(history.clone())],
            top: 512,
            logits: false,
            extra: BTreeMap::new(),
        };
        let all = model.classify(&request).unwrap().remove(0).unwrap().top;
        let total: f32 = all.iter().map(|one| one.logprob.exp()).sum();
        assert!((total - 1.0).abs() < 1e-4);
        assert_eq!(logprobs.len(), 5);
        assert_eq!(logprobs[0].token, *token);
        let others: Vec<_> = all
            .iter()
            .filter(|one| one.token != *token)
            .take(4)
            .collect();
        assert_eq!(logprobs[1..].iter().collect::<Vec<_>>(), others);
        assert_eq!(
            Some(logprobs[0].logprob),
            all.iter()
                .find(|one| one.token == *token)
                .map(|one| one.logprob)
        );
        history.push(*token);
    }
    let zero = GenerateOptions {
        logprobs: Some(0),
        ..greedy(2)
    };
    let (told, _) = generate(&*model, &tokens_request(&history, zero)).unwrap();
    assert!(told.logprobs.iter().all(|logprobs| logprobs.len() == 1));
}

#[test]
fn a_seed_is_told_and_repeats() {
    let (model, _) = load_tiny("llama3-gqa", &context(200, 2));
    let mut options = seeded(0, 24);
    options.sampling.seed = None;
    let (first, completion) =
        generate(&*model, &tokens_request(&prompt(4, 5), options.clone())).unwrap();
    let (other, again) = generate(&*model, &tokens_request(&prompt(4, 5), options)).unwrap();
    assert_ne!(completion.seed, again.seed);
    assert_ne!(first.tokens, other.tokens);
    let (same, _) = generate(
        &*model,
        &tokens_request(&prompt(4, 5), seeded(completion.seed, 24)),
    )
    .unwrap();
    assert_eq!(same.tokens, first.tokens);
    assert_eq!(same.text, first.text);
}

#[test]
fn text_prompts_get_one_bos() {
    let (model, _) = load_tiny("mistral-full", &context(200, 2));
    let run = |prompt: Prompt| {
        generate(
            &*model,
            &GenerateRequest {
                prompt,
                options: greedy(4),
            },
        )
        .unwrap()
        .1
        .prompt_tokens as usize
    };
    let plain = model.tokenize("hello world", false, false).unwrap().len();
    assert_eq!(run(Prompt::text("hello world")), plain + 1);
    assert_eq!(
        run(Prompt::Text {
            text: "<s>hello world".into(),
            special: true
        }),
        plain + 1
    );
    assert_eq!(run(Prompt::text("")), 1);
    let (model, _) = load_tiny("llama3-gqa", &LoadOptions::default());
    let tokens = model.tokenize("hello world", true, false).unwrap();
    assert_eq!(
        model
            .detokenize(&model.tokenize("hello world", false, false).unwrap(), false)
            .unwrap(),
        b"hello world"
    );
    assert!(!tokens.is_empty());
}

/// Random tokens of a random model are mostly broken characters: the stream gives what the whole bytes would, and never
/// a part of a character.
#[test]
fn the_stream_is_the_text_of_the_tokens() {
    let (model, _) = load_tiny("llama3-gqa", &context(400, 2));
    let mut broken = 0;
    for seed in 0..20 {
        let (told, _) = generate(
            &*model,
            &tokens_request(&prompt(7, 5), seeded(seed, 10 + seed as u32)),
        )
        .unwrap();
        let bytes = model.detokenize(&told.tokens, false).unwrap();
        // A character that the reply was cut in is left out.
        let end = bytes
            .utf8_chunks()
            .last()
            .map_or(&[][..], |it| it.invalid());
        let cut = std::str::from_utf8(end).is_err_and(|error| error.error_len().is_none());
        let whole = if cut {
            bytes.len() - end.len()
        } else {
            bytes.len()
        };
        assert_eq!(told.text, String::from_utf8_lossy(&bytes[..whole]));
        broken += usize::from(cut);
    }
    assert!(broken > 0, "no text ended within a character");
}
