//! Who starts when, who waits for whom, and what becomes of those who don't wait.

use super::*;
use backplane_plugin_api::types::ErrorCode;

#[test]
fn a_call_of_many_does_not_hold_up_one_of_a_few() {
    let mut harness = Harness::new(sizes(512, 2), PLAIN);
    let long: Vec<(Vec<u32>, GenerateOptions)> = (0..20)
        .map(|seed| (prompt(seed, 100), greedy(100)))
        .collect();
    let many = harness.call(&long);
    (0..20).for_each(|_| assert!(harness.turn()));
    let first = harness.ask(&prompt(50, 10), greedy(10));
    let second = harness.ask(&prompt(51, 10), greedy(10));
    harness.run();
    let ends: Vec<Duration> = (0..harness.asked.len())
        .map(|at| *harness.told(at).times.last().unwrap())
        .collect();
    let before = |at: usize| many.iter().filter(|&&other| ends[other] < ends[at]).count();
    assert!(before(first) <= 2 && before(second) <= 3, "{ends:?}");
    // Within a call it is first come, first served.
    let starts: Vec<Duration> = many.iter().map(|&at| harness.told(at).times[0]).collect();
    assert!(starts.is_sorted(), "{starts:?}");
}

#[test]
fn a_long_prompt_does_not_hold_up_a_short_one() {
    let mut harness = Harness::new(sizes(16384, 2), PLAIN);
    let long = harness.ask(&prompt(1, 8192), greedy(4));
    (0..3).for_each(|_| assert!(harness.turn()));
    let asked = harness.now();
    let short = harness.ask(&prompt(2, 20), greedy(10));
    harness.run();
    let told = harness.told(short);
    let waited = told.times[0] - asked;
    assert!(waited < Duration::from_secs(1), "{waited:?}");
    assert!(told.times[9] < harness.told(long).times[0]);
}

#[test]
fn texts_start_with_what_they_need_now() {
    // 64 pages of 8 tokens: one text of the length that each may become, or four with what they need at first.
    let config = Config {
        pages: 64,
        ..sizes(512, 32)
    };
    let mut harness = Harness::new(config, PLAIN);
    let open = GenerateOptions {
        max_tokens: None,
        ..greedy(1)
    };
    let all: Vec<usize> = (0..10)
        .map(|seed| harness.ask(&prompt(seed, 64), open.clone()))
        .collect();
    harness.turn();
    assert_eq!(harness.scheduler.running.len(), 4);
    all.into_iter().for_each(|at| harness.cancel(at));
    harness.turn();
    // A text that says how little it wants counts as no more.
    (0..10).for_each(|seed| {
        harness.ask(&prompt(20 + seed, 32), greedy(16));
    });
    harness.turn();
    assert_eq!(harness.scheduler.running.len(), 10);
    harness.run();
    assert_eq!(harness.metric("preemptions_total"), 0.0);
    assert_eq!(harness.pages_used(), 0);
}

#[test]
fn what_texts_share_counts_once() {
    // 64 pages, 50 of which hold what all prompts begin with.
    let config = Config {
        pages: 64,
        ..sizes(512, 32)
    };
    let mut harness = Harness::new(config, PLAIN);
    let requests: Vec<(Vec<u32>, GenerateOptions)> = (0..6)
        .map(|seed| {
            let mut tokens = prompt(1, 400);
            tokens.extend(prompt(20 + seed, 8));
            (tokens, greedy(8))
        })
        .collect();
    let all = harness.call(&requests);
    let mut widest = 0;
    while harness.turn() {
        widest = widest.max(harness.scheduler.running.len());
    }
    assert!(widest >= 5, "{widest}");
    for (at, (tokens, options)) in all.iter().zip(&requests) {
        let own = alone(PLAIN, config, tokens, options);
        assert_eq!(harness.told(*at).shown(), own.shown());
    }
}

#[test]
fn a_large_one_has_its_turn() {
    let config = Config {
        pages: 64,
        ..sizes(512, 4)
    };
    let mut harness = Harness::new(config, PLAIN);
    let small = harness.ask(&prompt(1, 120), greedy(100));
    let large = harness.ask(&prompt(2, 400), greedy(100));
    let later: Vec<usize> = (0..6)
        .map(|seed| harness.ask(&prompt(10 + seed, 20), greedy(100)))
        .collect();
    harness.run();
    let start = |at: usize| harness.told(at).times[0];
    assert!(start(small) < start(large));
    assert!(later.iter().all(|&at| start(large) < start(at)));
}

#[test]
fn what_never_fits_is_refused_with_all_sizes() {
    let config = Config {
        pages: 16,
        ..sizes(512, 4)
    };
    let tokenizer = tokenizer();
    let checker = Checker {
        backend: "test",
        tokenizer: &tokenizer,
        config: &config,
        grammars: grammars(),
    };
    let error = checker.check_prompt(prompt(1, 200)).unwrap_err();
    assert_eq!(error.code, ErrorCode::ContextOverflow);
    assert_eq!(
        error.message,
        "prompt: a prompt of 200 tokens and 1 to generate take 26 cache pages of 8, and the cache has 16 (context 512)"
    );
    let asks = |max_tokens: Option<u32>| {
        let options = GenerateOptions {
            max_tokens,
            ..greedy(1)
        };
        checker.generation(prompt(1, 100), &options)
    };
    let error = asks(Some(29)).map(|_| ()).unwrap_err();
    assert_eq!(
        (error.code, error.field.as_str()),
        (ErrorCode::ContextOverflow, "max_tokens")
    );
    assert_eq!(
        error.message,
        "max_tokens: a prompt of 100 tokens and 29 to generate take 17 cache pages of 8, and the cache has 16 (context 512)"
    );
    assert!(error.action.contains("cache_tokens"));
    assert_eq!(asks(Some(28)).unwrap().generation.unwrap().limit, 28);
    let all = asks(None).unwrap().generation.unwrap();
    assert_eq!((all.limit, all.at_limit), (28, FinishReason::ContextFull));
    assert!(asks(Some(0)).unwrap().generation.is_none());
    let whole = checker.check_whole("input", &prompt(1, 129)).unwrap_err();
    assert_eq!(
        whole.message,
        "input: 129 tokens, and the cache has room for 128"
    );
}

#[test]
fn stopping_frees_pages_at_once() {
    let config = Config {
        speculation: Speculation::Auto,
        ..sizes(4096, 2)
    };
    let mut harness = Harness::new(config, PLAIN);
    let texts = harness.ask(&prompt(1, 100), greedy(2000));
    while harness.told(texts).tokens.len() < 60 {
        harness.turn();
    }
    let reading = harness.ask(&prompt(2, 3000), greedy(10));
    let waiting = harness.ask(&prompt(3, 3000), greedy(10));
    (0..10).for_each(|_| assert!(harness.turn()));
    let (read, used) = (harness.told(reading).read, harness.pages_used());
    assert!(read > 0 && read < 3000 && used > (read / 8) as usize);
    // In the middle of its prompt; its place is taken at once.
    harness.cancel(reading);
    harness.turn();
    assert!(harness.pages_used() < used);
    assert_eq!(harness.scheduler.running.len(), 2);
    let done = harness.told(reading).completion().clone();
    assert_eq!(
        (done.finish_reason, done.completion_tokens),
        (FinishReason::Cancelled, 0)
    );
    // While it waits.
    let late = harness.ask(&prompt(4, 100), greedy(10));
    harness.turn();
    harness.cancel(late);
    harness.turn();
    assert_eq!(
        harness.told(late).completion().finish_reason,
        FinishReason::Cancelled
    );
    // While it generates, between drafts.
    harness.cancel(texts);
    harness.cancel(waiting);
    assert!(!harness.turn());
    assert_eq!(harness.pages_used(), 0);
    let told = harness.told(texts);
    assert_eq!(
        told.completion().completion_tokens,
        told.tokens.len() as u64
    );
    assert_eq!(harness.metric("requests_cancelled_total"), 4.0);
    // What was read of a stopped prompt is not read again.
    let again = harness.ask(&prompt(2, 3000), greedy(1));
    harness.run();
    assert!(harness.told(again).completion().cached_tokens >= read);
}

#[test]
fn prompts_that_begin_alike_are_read_once() {
    let mut harness = Harness::new(sizes(1024, 8), PLAIN);
    let requests: Vec<(Vec<u32>, GenerateOptions)> = (0..8)
        .map(|seed| {
            let mut tokens = prompt(1, 600);
            tokens.extend(prompt(20 + seed, 5 + seed as usize));
            (tokens, greedy(12))
        })
        .collect();
    let all = harness.call(&requests);
    harness.run();
    let read: usize = harness.seen().iter().map(Seen::tokens).sum();
    let parts: usize = requests.iter().map(|(tokens, _)| tokens.len() - 600).sum();
    assert!(read <= 600 + parts + 8 * 12, "{read} tokens");
    assert_eq!(harness.metric("prefix_cached_tokens_total"), 7.0 * 600.0);
    for (at, (tokens, options)) in all.iter().zip(&requests) {
        let own = alone(PLAIN, sizes(1024, 1), tokens, options);
        assert_eq!(harness.told(*at).shown(), own.shown());
        let done = harness.told(*at).completion();
        assert_eq!(done.cached_tokens, if *at == all[0] { 0 } else { 600 });
    }
    assert_eq!(harness.pages_used(), 0);
}

#[test]
fn who_waits_for_another_goes_on_when_it_is_gone() {
    let mut harness = Harness::new(sizes(4096, 3), PLAIN);
    let first = harness.ask(&prompt(1, 3000), greedy(4));
    let second = harness.ask(&prompt(1, 3000), greedy(4));
    (0..5).for_each(|_| assert!(harness.turn()));
    assert!(harness.told(first).read > 200);
    assert_eq!(harness.told(second).read, 0);
    harness.cancel(first);
    harness.run();
    let done = harness.told(second).completion();
    assert!(
        done.cached_tokens > 200 && done.completion_tokens == 4,
        "{done:?}"
    );
    let own = alone(PLAIN, sizes(4096, 1), &prompt(1, 3000), &greedy(4));
    assert_eq!(harness.told(second).shown(), own.shown());
}
