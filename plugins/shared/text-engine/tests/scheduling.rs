//! Many sequences at once: the same texts as alone, fair shares, cancellation, failures, and no page lost.
#![allow(missing_docs, clippy::unwrap_used)]

mod common;

use backplane_plugin_api::sdk::Sink;
use backplane_plugin_api::types::{
    ClassifyRequest, Control, ErrorCode, Event, FinishReason, GenerateRequest, Prompt,
};
use common::*;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

#[test]
fn texts_are_the_same_alone_and_side_by_side() {
    let (backend, watch) = backend();
    check_same_texts(&backend, &tiny("llama3-gqa"));
    assert_eq!(watch.widest.load(Ordering::SeqCst), 4);
    assert!(watch.longest.load(Ordering::SeqCst) <= 16);
    assert!(watch.mixed.load(Ordering::SeqCst) > 0);
    check_same_texts(&backend, &tiny("gemma3-text"));
}

#[test]
fn a_repeated_prompt_is_not_read_again() {
    let (model, watch) = load_tiny("llama3-gqa", &context(200, 2));
    let tokens = prompt(9, 50);
    let (first, completion) = generate(&*model, &tokens_request(&tokens, greedy(10))).unwrap();
    assert_eq!(completion.cached_tokens, 0);
    let before = watch.steps.load(Ordering::SeqCst);
    let (second, completion) = generate(&*model, &tokens_request(&tokens, greedy(10))).unwrap();
    assert_eq!(completion.cached_tokens, 49);
    assert_eq!(watch.steps.load(Ordering::SeqCst) - before, 10);
    assert_eq!(first.tokens, second.tokens);

    // A conversation that goes on: prompt, answer and more.
    let mut longer = tokens.clone();
    longer.extend(&first.tokens);
    longer.extend(prompt(10, 7));
    let (_, completion) = generate(&*model, &tokens_request(&longer, greedy(1))).unwrap();
    assert_eq!(completion.cached_tokens, 59);
    // One that parts within a page.
    let mut other = tokens[..21].to_vec();
    other.push((tokens[21] + 1) % 512);
    let (_, completion) = generate(&*model, &tokens_request(&other, greedy(1))).unwrap();
    assert_eq!(completion.cached_tokens, 21);
}

#[test]
fn only_the_one_that_overflows_errs() {
    let (model, _) = load_tiny("llama3-gqa", &context(128, 4));
    let mut requests: Vec<GenerateRequest> = (0..4)
        .map(|index| tokens_request(&prompt(index, 40), greedy(50)))
        .collect();
    requests[2] = tokens_request(&prompt(2, 128), greedy(50));
    let mut sink = CollectBatch::default();
    let results = model.batch_generate(&requests, &mut sink).unwrap();
    for (index, result) in results.iter().enumerate() {
        match result {
            Ok(completion) => assert_eq!((index != 2, completion.completion_tokens), (true, 50)),
            Err(error) => assert_eq!((index, error.code), (2, ErrorCode::ContextOverflow)),
        }
    }
}

#[test]
fn stopping_in_the_prompt_takes_effect_within_a_chunk() {
    let (model, watch) = load_tiny("llama3-gqa", &context(1000, 2));
    watch.sleep_ms.store(100, Ordering::SeqCst);
    let mut sink = Collect {
        stop_after_prefill: Some(2),
        ..Collect::default()
    };
    let completion = model
        .generate(&tokens_request(&prompt(1, 900), greedy(50)), &mut sink)
        .unwrap();
    assert_eq!(completion.finish_reason, FinishReason::Cancelled);
    assert_eq!(
        (completion.completion_tokens, sink.told.prefill.len()),
        (0, 2)
    );
    // The chunk that was already under way when the sink answered may end.
    let steps = watch.steps.load(Ordering::SeqCst);
    assert!(steps <= 3, "{steps}");
    assert_eq!(model.metrics()["kv_pages_used"], 0.0);
    assert_eq!(model.metrics()["requests_cancelled_total"], 1.0);
}

struct Polled(Arc<AtomicBool>);

impl Sink for Polled {
    fn on_event(&mut self, _: Event<'_>) -> Control {
        Control::Continue
    }

    fn should_stop(&self) -> bool {
        self.0.load(Ordering::SeqCst)
    }
}

#[test]
fn polling_stops_running_and_waiting_requests() {
    let (model, watch) = load_tiny("llama3-gqa", &context(1000, 1));
    watch.sleep_ms.store(10, Ordering::SeqCst);
    let stop = Arc::new(AtomicBool::new(false));
    std::thread::scope(|scope| {
        let calls: Vec<_> = (0..3)
            .map(|index| {
                let (model, mut sink) = (&model, Polled(Arc::clone(&stop)));
                scope.spawn(move || {
                    model.generate(&tokens_request(&prompt(index, 500), greedy(400)), &mut sink)
                })
            })
            .collect();
        std::thread::sleep(Duration::from_millis(100));
        assert_eq!(model.metrics()["sequences_running"], 1.0);
        assert_eq!(model.metrics()["sequences_waiting"], 2.0);
        let asked = Instant::now();
        stop.store(true, Ordering::SeqCst);
        for call in calls {
            assert_eq!(
                call.join().unwrap().unwrap().finish_reason,
                FinishReason::Cancelled
            );
        }
        assert!(
            asked.elapsed() < Duration::from_secs(2),
            "{:?}",
            asked.elapsed()
        );
    });
    assert_eq!(model.metrics()["kv_pages_used"], 0.0);
}

#[test]
fn stopping_between_tokens_counts_what_was_given() {
    let (model, watch) = load_tiny("llama3-gqa", &context(500, 2));
    watch.sleep_ms.store(10, Ordering::SeqCst);
    let mut sink = Collect {
        stop_after_tokens: Some(5),
        ..Collect::default()
    };
    let completion = model
        .generate(&tokens_request(&prompt(1, 4), greedy(400)), &mut sink)
        .unwrap();
    assert_eq!(
        (completion.finish_reason, completion.completion_tokens),
        (FinishReason::Cancelled, 5)
    );
    assert_eq!(sink.told.tokens.len(), 5);
    assert!(watch.steps.load(Ordering::SeqCst) < 20);
}

#[test]
fn a_short_request_is_not_held_up_by_a_long_prompt() {
    let (model, watch) = load_tiny("llama3-gqa", &context(1000, 2));
    watch.sleep_ms.store(10, Ordering::SeqCst);
    std::thread::scope(|scope| {
        let long =
            scope.spawn(|| generate(&*model, &tokens_request(&prompt(1, 900), greedy(2))).unwrap());
        while model.metrics()["sequences_running"] < 1.0 {
            std::thread::yield_now();
        }
        let (_, short) = generate(&*model, &tokens_request(&prompt(2, 8), greedy(4))).unwrap();
        assert_eq!(short.completion_tokens, 4);
        assert!(
            !long.is_finished(),
            "the short request waited for the long one"
        );
        long.join().unwrap();
    });
}

#[test]
fn close_ends_what_runs_and_frees_the_device() {
    let (model, watch) = load_tiny("llama3-gqa", &context(1000, 1));
    watch.sleep_ms.store(5, Ordering::SeqCst);
    std::thread::scope(|scope| {
        let calls: Vec<_> = (0..3)
            .map(|index| {
                let model = &model;
                scope.spawn(move || {
                    generate(&**model, &tokens_request(&prompt(index, 20), greedy(900)))
                })
            })
            .collect();
        std::thread::sleep(Duration::from_millis(50));
        model.close().unwrap();
        assert_eq!(watch.dropped.load(Ordering::SeqCst), 1);
        for call in calls {
            assert_eq!(call.join().unwrap().unwrap_err().code, ErrorCode::Closed);
        }
    });
    model.close().unwrap();
    let error = generate(&*model, &tokens_request(&[1], greedy(1))).unwrap_err();
    assert_eq!(error.code, ErrorCode::Closed);
    let request = ClassifyRequest {
        prompts: vec![Prompt::Tokens(vec![1])],
        top: 1,
        logits: false,
        extra: BTreeMap::new(),
    };
    assert_eq!(
        model.classify(&request).unwrap_err().code,
        ErrorCode::Closed
    );
    assert!(
        !model
            .tokenize("still here", false, false)
            .unwrap()
            .is_empty()
    );
    drop(model);
    assert_eq!(watch.dropped.load(Ordering::SeqCst), 1);
}

#[test]
fn a_panic_of_the_device_is_an_error_to_all() {
    let (model, watch) = load_tiny("llama3-gqa", &context(1000, 2));
    watch.panic_at.store(6, Ordering::SeqCst);
    watch.sleep_ms.store(2, Ordering::SeqCst);
    let requests: Vec<GenerateRequest> = (0..4)
        .map(|index| tokens_request(&prompt(index, 20), greedy(100)))
        .collect();
    let results = model
        .batch_generate(&requests, &mut CollectBatch::default())
        .unwrap();
    for result in results {
        let error = result.unwrap_err();
        assert_eq!(error.code, ErrorCode::Device);
        assert!(error.message.contains("told to panic"), "{error}");
    }
    let later = generate(&*model, &requests[0]).unwrap_err();
    assert_eq!(later.code, ErrorCode::Device);
    model.close().unwrap();
}

#[test]
fn a_failed_step_errs_its_sequences_and_the_next_works() {
    let (model, watch) = load_tiny("llama3-gqa", &context(100, 2));
    watch.fail_at.store(2, Ordering::SeqCst);
    let error = generate(&*model, &tokens_request(&prompt(1, 4), greedy(10))).unwrap_err();
    assert_eq!(error.code, ErrorCode::Device);
    assert!(error.message.contains("told to fail"), "{error}");
    let (told, _) = generate(&*model, &tokens_request(&prompt(1, 4), greedy(10))).unwrap();
    let (fresh, _) = load_tiny("llama3-gqa", &context(100, 2));
    assert_eq!(
        told.tokens,
        generate(&*fresh, &tokens_request(&prompt(1, 4), greedy(10)))
            .unwrap()
            .0
            .tokens
    );
    watch
        .nan_at
        .store(watch.steps.load(Ordering::SeqCst) + 2, Ordering::SeqCst);
    let error = generate(&*model, &tokens_request(&prompt(2, 4), greedy(10))).unwrap_err();
    assert_eq!(error.code, ErrorCode::Device);
    assert_eq!(model.metrics()["kv_pages_used"], 0.0);
}

struct Panics;

impl Sink for Panics {
    fn on_event(&mut self, _: Event<'_>) -> Control {
        panic!("the sink was told to panic")
    }
}

#[test]
fn a_panic_of_the_sink_cancels_only_its_request() {
    let (model, watch) = load_tiny("llama3-gqa", &context(500, 2));
    // Printing the panic takes a while.
    watch.sleep_ms.store(10, Ordering::SeqCst);
    std::thread::scope(|scope| {
        let call = scope
            .spawn(|| model.generate(&tokens_request(&prompt(1, 5), greedy(400)), &mut Panics));
        assert!(call.join().is_err());
    });
    assert_eq!(
        generate(&*model, &tokens_request(&prompt(2, 5), greedy(20)))
            .unwrap()
            .0
            .tokens
            .len(),
        20
    );
    let started = Instant::now();
    while model.metrics()["sequences_running"] > 0.0 {
        assert!(started.elapsed() < Duration::from_secs(5));
    }
    assert_eq!(model.metrics()["requests_cancelled_total"], 1.0);
}

#[test]
fn texts_that_outgrow_the_cache_are_the_same_as_alone() {
    for cache_type in ["f32", "f16", "q8_0"] {
        // Heads of 32 numbers, blocks of which the cache may be made of.
        let path = fixtures().join("tiny/llama-256-quant/model-Q4_1.gguf");
        check_preempted(&backend().0, &path, cache_type);
    }
    check_preempted(&backend().0, &tiny("gemma3-text"), "f16");
    check_preempted(&backend().0, &tiny("deepseek-v3"), "f32");
}

#[test]
fn a_soak_leaves_every_page_free_or_cached() {
    check_soak(&backend().0, &tiny("llama3-gqa"));
}
