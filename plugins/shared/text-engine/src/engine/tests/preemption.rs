//! What becomes of texts when pages run out: the same texts, whoever gave pages back and how often.

use super::speculation::{CHEAP, drafting, requests};
use super::*;
use crate::engine::{Inspected, Inspection};
use backplane_plugin_api::types::{ErrorCode, Grammar};
use proptest::prelude::*;

/// A pool of so many pages of 8 tokens, in which one text may take all.
fn pool(pages: usize, parallel: usize) -> Config {
    Config {
        pages,
        ..sizes(pages * 8, parallel)
    }
}

fn open() -> GenerateOptions {
    GenerateOptions {
        max_tokens: None,
        ..greedy(1)
    }
}

impl Harness {
    fn preempted(&self) -> usize {
        self.scheduler.preempted.len()
    }

    /// Goes on until something has given its pages back.
    fn run_until_preempted(&mut self) {
        while self.preempted() == 0 {
            assert!(self.turn(), "nothing was preempted");
        }
    }

    /// That no page is held and nobody waits.
    fn check_empty(&self) {
        let counts = self.scheduler.pool.counts();
        assert_eq!(counts.used, 0);
        assert_eq!(self.scheduler.pool.available(), counts.total);
        assert!(self.scheduler.is_idle());
    }

    /// That requests had what each has alone, and that nothing was counted twice.
    fn check_as_alone(&self, nature: Nature, requests: &[(Vec<u32>, GenerateOptions)]) {
        for (at, (prompt, options)) in requests.iter().enumerate() {
            let own = alone(nature, self.scheduler.config, prompt, options);
            let told = self.told(at);
            assert_eq!(told.shown(), own.shown(), "request {at}");
            let done = told.completion();
            assert_eq!(done.prompt_tokens, prompt.len() as u64);
            assert!(done.cached_tokens < done.prompt_tokens);
            assert!(told.times.is_sorted());
        }
        let prompts: usize = requests.iter().map(|(prompt, _)| prompt.len()).sum();
        assert_eq!(self.metric("tokens_prompt_total"), prompts as f64);
        let texts: u64 = (0..requests.len())
            .map(|at| self.told(at).completion().completion_tokens)
            .sum();
        assert_eq!(self.metric("tokens_generated_total"), texts as f64);
        assert_eq!(self.metric("requests_total"), requests.len() as f64);
    }
}

#[test]
fn many_long_texts_at_once_are_those_alone() {
    for speculation in [Speculation::Off, Speculation::Auto] {
        let config = Config {
            speculation,
            ..pool(64, 16)
        };
        let mut harness = Harness::new(config, PLAIN);
        let requests: Vec<(Vec<u32>, GenerateOptions)> = (0..12)
            .map(|seed| (prompt(seed, 5 + 7 * seed as usize), open()))
            .collect();
        for (prompt, options) in &requests {
            harness.ask(prompt, options.clone());
        }
        let mut widest = 0;
        while harness.turn() {
            widest = widest.max(harness.scheduler.running.len());
            assert!(harness.scheduler.running.is_sorted_by_key(|it| it.id));
            assert!(
                harness
                    .scheduler
                    .preempted
                    .iter()
                    .is_sorted_by_key(|it| it.id)
            );
        }
        assert!(widest >= 4, "{widest}");
        harness.check_as_alone(PLAIN, &requests);
        harness.check_empty();
        let (times, tokens) = (
            harness.metric("preemptions_total"),
            harness.metric("tokens_recomputed_total"),
        );
        println!("{speculation:?}: {times} preemptions, {tokens} tokens computed again");
        assert!(times > 0.0 && tokens > 0.0);
        let ends = (0..requests.len()).map(|at| harness.told(at).completion().finish_reason);
        assert!(ends.into_iter().all(|end| end == FinishReason::ContextFull));
    }
}

#[test]
fn a_pool_of_the_least_size_serves_all_in_turn() {
    // Pages of one position; a pool that is exactly one text.
    for (page_size, positions) in [(1, 2), (1, 9), (8, 8), (8, 16)] {
        let config = Config {
            page_size,
            pages: positions / page_size,
            max_step_tokens: 8,
            max_wanted: 8,
            ..sizes(positions, 8)
        };
        let mut harness = Harness::new(config, PLAIN);
        let requests: Vec<(Vec<u32>, GenerateOptions)> = (0..9)
            .map(|seed| {
                (
                    prompt(seed % 4, 1 + seed as usize % (positions - 1)),
                    open(),
                )
            })
            .collect();
        for (prompt, options) in &requests {
            harness.ask(prompt, options.clone());
        }
        harness.run();
        harness.check_as_alone(PLAIN, &requests);
        harness.check_empty();
    }
}

#[test]
fn the_oldest_goes_on_and_the_last_gives_way() {
    let mut harness = Harness::new(pool(48, 8), PLAIN);
    let all: Vec<usize> = (0..4)
        .map(|seed| harness.ask(&prompt(seed, 16), open()))
        .collect();
    harness.run_until_preempted();
    let ids = |harness: &Harness| {
        let of = |it: &crate::engine::sequence::Sequence| it.id;
        let running: Vec<u64> = harness.scheduler.running.iter().map(of).collect();
        let preempted: Vec<u64> = harness.scheduler.preempted.iter().map(of).collect();
        (running, preempted)
    };
    let (running, preempted) = ids(&harness);
    assert!(running.iter().max() < preempted.iter().min());
    // The oldest has a token of every turn until it ends.
    while harness.told(all[0]).end.is_none() {
        let before = harness.told(all[0]).tokens.len();
        harness.turn();
        assert_eq!(harness.told(all[0]).tokens.len(), before + 1);
    }
    harness.run();
    let requests: Vec<_> = (0..4).map(|seed| (prompt(seed, 16), open())).collect();
    harness.check_as_alone(PLAIN, &requests);
}

#[test]
fn what_was_preempted_goes_on_before_what_is_new() {
    let mut harness = Harness::new(pool(48, 8), PLAIN);
    let all: Vec<usize> = (0..4)
        .map(|seed| harness.ask(&prompt(seed, 16), open()))
        .collect();
    harness.run_until_preempted();
    // As many newcomers as come, each of which would fit.
    let new: Vec<usize> = (0..20)
        .map(|seed| harness.ask(&prompt(40 + seed, 8), greedy(8)))
        .collect();
    while harness.preempted() > 0 {
        assert!(new.iter().all(|&at| harness.told(at).read == 0));
        assert!(harness.turn());
        assert_eq!(
            harness.metric("sequences_waiting") as usize,
            harness.preempted() + harness.scheduler.waiting.len()
        );
    }
    harness.run();
    let last = |at: usize| *harness.told(at).times.last().unwrap();
    assert!(all.iter().all(|&at| harness.told(at).end.is_some()));
    assert!(new.iter().any(|&at| last(at) > last(all[0])));
    harness.check_empty();
}

#[test]
fn a_call_of_many_gives_way_to_one_of_a_few() {
    let mut harness = Harness::new(pool(96, 16), PLAIN);
    let many: Vec<(Vec<u32>, GenerateOptions)> =
        (0..6).map(|seed| (prompt(seed, 16), open())).collect();
    let many = harness.call(&many);
    (0..4).for_each(|_| assert!(harness.turn()));
    let single = harness.ask(&prompt(30, 16), greedy(120));
    while harness.told(single).end.is_none() {
        assert!(harness.turn());
        let preempted = &harness.scheduler.preempted;
        assert!(preempted.iter().all(|it| it.call == Call(1)));
    }
    assert!(harness.metric("preemptions_total") > 0.0);
    many.into_iter().for_each(|at| harness.cancel(at));
    harness.run();
    harness.check_empty();
}

#[test]
fn what_was_computed_is_taken_again_where_it_is_still_there() {
    // What the second has computed lies in the cache but for what the first took of it.
    let mut harness = Harness::new(pool(48, 2), PLAIN);
    let first = harness.ask(&prompt(1, 100), open());
    let second = harness.ask(&prompt(2, 150), greedy(100));
    harness.run_until_preempted();
    let known = harness.told(second).tokens.len() + 150;
    harness.cancel(first);
    harness.run();
    let again = harness.metric("tokens_recomputed_total");
    assert!(again < known as f64 / 4.0, "{again} of {known}");
    let own = alone(PLAIN, pool(48, 2), &prompt(2, 150), &greedy(100));
    assert_eq!(harness.told(second).shown(), own.shown());
    let done = harness.told(second).completion();
    assert_eq!((done.prompt_tokens, done.cached_tokens), (150, 0));
}

#[test]
fn a_prompt_that_gives_way_is_read_on() {
    let slow = Nature {
        token: 2000.0,
        ..PLAIN
    };
    let mut harness = Harness::new(pool(128, 4), slow);
    let texts: Vec<usize> = (0..3)
        .map(|seed| harness.ask(&prompt(seed, 16), open()))
        .collect();
    (0..10).for_each(|_| assert!(harness.turn()));
    let long = harness.ask(&prompt(9, 500), greedy(5));
    harness.run_until_preempted();
    let read = harness.told(long).read;
    assert!(read > 0 && read < 500, "{read}");
    assert!(harness.told(long).tokens.is_empty());
    harness.cancel(texts[0]);
    // What it tells of its reading never goes back.
    let mut told = read;
    while harness.turn() {
        let read = harness.told(long).read;
        assert!(read >= told);
        told = read;
    }
    assert_eq!(told, 500);
    let own = alone(slow, pool(128, 4), &prompt(9, 500), &greedy(5));
    assert_eq!(harness.told(long).shown(), own.shown());
    harness.check_empty();
}

#[test]
fn a_preempted_text_is_stopped_like_any_other() {
    let mut harness = Harness::new(pool(48, 8), PLAIN);
    let all: Vec<usize> = (0..4)
        .map(|seed| harness.ask(&prompt(seed, 16), open()))
        .collect();
    harness.run_until_preempted();
    let last = all[3];
    assert!(harness.told(last).end.is_none());
    let told = harness.told(last).tokens.len();
    assert!(told > 0);
    harness.cancel(last);
    harness.turn();
    assert_eq!(harness.preempted(), 0);
    let done = harness.told(last).completion();
    assert_eq!(
        (done.finish_reason, done.completion_tokens),
        (FinishReason::Cancelled, told as u64)
    );
    assert_eq!(harness.metric("requests_cancelled_total"), 1.0);
    harness.run();
    harness.check_empty();
}

#[test]
fn closing_ends_preempted_texts() {
    let mut harness = Harness::new(pool(48, 8), PLAIN);
    let all: Vec<usize> = (0..4)
        .map(|seed| harness.ask(&prompt(seed, 16), open()))
        .collect();
    harness.run_until_preempted();
    let closed = Error::new(ErrorCode::Closed, "the model was closed");
    harness.scheduler.fail_all(&closed);
    assert!(!harness.turn());
    for at in all {
        let end = harness.told(at).end.as_ref().unwrap();
        assert_eq!(end.as_ref().unwrap_err().code, ErrorCode::Closed);
    }
}

#[test]
fn a_step_that_fails_ends_only_those_in_it() {
    let mut harness = Harness::new(pool(48, 8), PLAIN);
    let all: Vec<usize> = (0..4)
        .map(|seed| harness.ask(&prompt(seed, 16), open()))
        .collect();
    harness.run_until_preempted();
    let preempted = harness.preempted();
    harness.fails.store(true, Ordering::Relaxed);
    harness.run();
    let (good, bad): (Vec<usize>, Vec<usize>) = all
        .into_iter()
        .partition(|&at| harness.told(at).end.as_ref().unwrap().is_ok());
    assert_eq!((good.len(), bad.len()), (preempted, 4 - preempted));
    for at in good {
        let own = alone(PLAIN, pool(48, 8), &prompt(at as u32, 16), &open());
        assert_eq!(harness.told(at).shown(), own.shown());
    }
    harness.check_empty();
}

#[test]
fn those_that_follow_each_other_come_to_an_end() {
    // All begin alike, more of them than have room, and pages run out while they read and wait for each other.
    let mut harness = Harness::new(
        pool(40, 12),
        Nature {
            token: 3000.0,
            ..PLAIN
        },
    );
    let requests: Vec<(Vec<u32>, GenerateOptions)> = (0..10)
        .map(|seed| {
            let mut tokens = prompt(1, 120);
            tokens.extend(prompt(20 + seed % 3, 30 + seed as usize));
            (tokens, open())
        })
        .collect();
    for (prompt, options) in &requests {
        harness.ask(prompt, options.clone());
        (0..7).for_each(|_| assert!(harness.turn()));
    }
    harness.run();
    assert!(harness.metric("preemptions_total") > 0.0);
    harness.check_as_alone(PLAIN, &requests);
    harness.check_empty();
}

#[test]
fn a_grammar_goes_on_where_it_was() {
    let numbers = GenerateOptions {
        grammar: Some(Grammar {
            kind: "regex".to_owned(),
            source: "([a-z]{3}[0-9]{2}){40}".to_owned(),
        }),
        logprobs: Some(2),
        ..open()
    };
    let mut harness = Harness::new(pool(48, 8), PLAIN);
    let requests: Vec<(Vec<u32>, GenerateOptions)> = (0..6)
        .map(|seed| (prompt(seed, 16), numbers.clone()))
        .collect();
    for (prompt, options) in &requests {
        harness.ask(prompt, options.clone());
    }
    harness.run_until_preempted();
    harness.run();
    harness.check_as_alone(PLAIN, &requests);
    for at in 0..requests.len() {
        let text = &harness.told(at).text;
        assert_eq!(text.len(), 200, "{text}");
    }
}

#[test]
fn inspections_have_the_pages_they_were_promised() {
    let config = Config {
        max_step_tokens: 8,
        ..pool(48, 8)
    };
    let mut harness = Harness::new(config, PLAIN);
    let requests: Vec<(Vec<u32>, GenerateOptions)> =
        (0..2).map(|seed| (prompt(seed, 16), open())).collect();
    for (prompt, options) in &requests {
        harness.ask(prompt, options.clone());
    }
    harness.turn();
    let (sender, receiver) = channel();
    let job = Job {
        prompt: prompt(7, 200),
        work: Work::Inspect(Box::new(Inspection::score(1))),
        cancel: Arc::default(),
        reply: Reply { sender, index: 0 },
        submitted: harness.scheduler.now(),
    };
    harness.scheduler.waiting.push_back((Call(99), job));
    harness.turn();
    assert_eq!(harness.scheduler.inspecting.len(), 1);
    // So slow that the texts would take all pages meanwhile, and even the oldest has to wait.
    harness.scheduler.inspection_beside = 1;
    harness.run();
    let messages: Vec<Message> = receiver.try_iter().map(|(_, message)| message).collect();
    let Some(Message::Inspected(Inspected::Scores(scores))) = messages.last() else {
        panic!("{messages:?}");
    };
    assert_eq!(scores.len(), 199);
    for (at, (prompt, options)) in requests.iter().enumerate() {
        let own = alone(PLAIN, config, prompt, options);
        assert_eq!(harness.told(at).shown(), own.shown());
    }
    harness.check_empty();
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]
    /// Any texts in any pool in which each fits alone, drafted, held to grammars, stopped anywhere: those that come alone in a pool that
    /// has room for all, and every page is free in the end.
    #[test]
    fn texts_are_those_of_a_large_pool(
        requests in requests(),
        repeats in 0u64..100,
        page_size in 1usize..9,
        spare in 0usize..30,
        parallel in 2usize..7,
        steps in 1usize..30,
    ) {
        let nature = Nature { repeats, ..CHEAP };
        let longest = requests.iter().map(|request| {
            request.prompt.len() + request.options.max_tokens.unwrap_or_default() as usize
        });
        let longest = longest.max().unwrap_or_default();
        let large = Config {
            page_size,
            max_wanted: parallel + steps,
            max_step_tokens: parallel + steps,
            ..drafting(160, parallel)
        };
        let large = Config { pages: 160usize.div_ceil(page_size) * parallel, ..large };
        let config = Config { pages: longest.div_ceil(page_size) + spare, ..large };
        let mut harness = Harness::new(config, nature);
        for request in &requests {
            harness.ask(&request.prompt, request.options.clone());
        }
        for turn in 0.. {
            prop_assert!(turn < 20_000, "the engine never comes to an end");
            for (at, request) in requests.iter().enumerate() {
                if request.stopped == Some(turn) {
                    harness.cancel(at);
                }
            }
            if !harness.turn() {
                break;
            }
        }
        for (at, request) in requests.iter().enumerate() {
            let own = alone(nature, large, &request.prompt, &request.options);
            let told = harness.told(at);
            if told.completion().finish_reason == FinishReason::Cancelled {
                prop_assert!(request.stopped.is_some());
                prop_assert!(own.tokens.starts_with(&told.tokens));
                prop_assert_eq!(told.completion().completion_tokens, told.tokens.len() as u64);
            } else {
                prop_assert_eq!(told.shown(), own.shown());
            }
            prop_assert_eq!(told.completion().prompt_tokens, request.prompt.len() as u64);
        }
        harness.check_empty();
    }
}
