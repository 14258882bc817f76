//! Drafts change nothing but the time.

use super::*;
use backplane_plugin_api::types::Grammar;
use proptest::prelude::*;

/// A device for which more rows of a step cost little.
pub(super) const CHEAP: Nature = Nature {
    repeats: 90,
    words: 6,
    step: 4000.0,
    row: 200.0,
    token: 100.0,
    past: 0.0,
};

pub(super) fn drafting(context: usize, parallel: usize) -> Config {
    Config {
        speculation: Speculation::Auto,
        ..sizes(context, parallel)
    }
}

/// Time with drafts over time without, drafted tokens and those accepted, of one text.
fn gain(nature: Nature, tokens: u32) -> (f64, f64, f64) {
    let mut harness = Harness::new(drafting(4096, 1), nature);
    let at = harness.ask(&prompt(1, 20), greedy(tokens));
    harness.run();
    let plain = alone(nature, sizes(4096, 1), &prompt(1, 20), &greedy(tokens));
    assert_eq!(harness.told(at).shown(), plain.shown());
    let time = |told: &Told| (*told.times.last().unwrap() - told.times[0]).as_secs_f64();
    let gain = time(&plain) / time(harness.told(at));
    let drafted = harness.metric("tokens_drafted_total");
    let accepted = harness.metric("tokens_draft_accepted_total");
    println!("{nature:?}: {gain:.2} times as fast, {accepted} of {drafted} came true");
    (gain, drafted, accepted)
}

#[test]
fn repetitive_texts_come_faster() {
    let (gain, drafted, accepted) = gain(
        Nature {
            repeats: 97,
            ..CHEAP
        },
        600,
    );
    assert!(gain > 2.0, "{gain}, {accepted} of {drafted}");
    assert!(accepted > 300.0 && accepted < drafted && accepted < 600.0);
}

#[test]
fn where_it_does_not_pay_it_is_off() {
    // Nothing comes true.
    let random = Nature {
        repeats: 0,
        words: 60,
        ..CHEAP
    };
    let (slowed, drafted, _) = gain(random, 1000);
    assert!(slowed > 0.97, "{slowed}, {drafted} drafted");
    // Much comes true, and a row costs as much as a step.
    let dear = Nature {
        step: 0.0,
        row: 4000.0,
        ..CHEAP
    };
    let (slowed, drafted, accepted) = gain(dear, 1000);
    assert!(slowed > 0.93, "{slowed}, {accepted} of {drafted}");
    assert!(drafted < 100.0, "{drafted}");
}

#[test]
fn it_is_on_again_when_the_text_repeats_itself() {
    let mut harness = Harness::new(drafting(8192, 1), CHEAP);
    harness.nature.lock().unwrap().repeats = 0;
    harness.nature.lock().unwrap().words = 60;
    let at = harness.ask(&prompt(1, 20), greedy(3000));
    let mut until = |tokens: usize| {
        let (before, steps) = (harness.told(at).tokens.len(), harness.seen().len());
        while harness.told(at).tokens.len() < tokens {
            assert!(harness.turn());
        }
        let tokens = harness.told(at).tokens.len() - before;
        let rate = tokens as f64 / (harness.seen().len() - steps) as f64;
        harness.nature.lock().unwrap().repeats ^= 97;
        rate
    };
    let rates = [1000, 1500, 2500].map(&mut until);
    assert!(
        rates[0] < 1.1 && rates[1] > 2.0 && rates[2] < 1.2,
        "{rates:?}"
    );
}

#[test]
fn a_device_that_becomes_dear_is_noticed() {
    let mut harness = Harness::new(drafting(16384, 1), CHEAP);
    let nature = Arc::clone(&harness.nature);
    let at = harness.ask(&prompt(1, 20), greedy(8000));
    let mut until = |tokens: usize| {
        let (before, steps) = (harness.told(at).tokens.len(), harness.seen().len());
        while harness.told(at).tokens.len() < tokens {
            assert!(harness.turn());
        }
        (harness.told(at).tokens.len() - before) as f64 / (harness.seen().len() - steps) as f64
    };
    assert!(until(500) > 1.5);
    // Every row costs as much as the first.
    *nature.lock().unwrap() = Nature {
        step: 0.0,
        row: 8000.0,
        ..CHEAP
    };
    until(1500);
    let off = until(2500);
    assert!(off < 1.1, "{off}");
    *nature.lock().unwrap() = CHEAP;
    until(5000);
    assert!(until(6000) > 1.5);
}

#[test]
fn drafts_take_only_the_room_there_is() {
    let config = Config {
        max_wanted: 6,
        max_step_tokens: 8,
        ..drafting(1024, 4)
    };
    let nature = Nature {
        repeats: 97,
        row: 10.0,
        ..CHEAP
    };
    let mut harness = Harness::new(config, nature);
    let requests: Vec<(Vec<u32>, GenerateOptions)> =
        (0..4).map(|seed| (prompt(seed, 30), greedy(200))).collect();
    let all = harness.call(&requests);
    harness.run();
    let seen = harness.seen();
    assert!(
        seen.iter()
            .all(|step| step.wanted <= 6 && step.tokens() <= 8)
    );
    assert!(harness.metric("tokens_draft_accepted_total") > 100.0);
    for (at, (tokens, options)) in all.into_iter().zip(&requests) {
        let own = alone(nature, config, tokens, options);
        assert_eq!(harness.told(at).shown(), own.shown());
    }
}

#[test]
fn a_request_may_forbid_and_ask_for_it() {
    for (default, asked) in [
        (Speculation::Auto, Speculation::Off),
        (Speculation::Off, Speculation::Auto),
    ] {
        let config = Config {
            speculation: default,
            ..sizes(1024, 1)
        };
        let mut harness = Harness::new(config, CHEAP);
        let options = GenerateOptions {
            extra: [("speculation".to_owned(), asked.name().into())].into(),
            ..greedy(200)
        };
        harness.ask(&prompt(1, 20), options);
        harness.run();
        let drafted = harness.metric("tokens_drafted_total");
        assert_eq!(drafted > 0.0, asked == Speculation::Auto, "{drafted}");
    }
}

#[derive(Clone, Debug)]
pub(super) struct Request {
    pub(super) prompt: Vec<u32>,
    pub(super) options: GenerateOptions,
    /// Stopped after so many turns.
    pub(super) stopped: Option<usize>,
}

pub(super) fn requests() -> impl Strategy<Value = Vec<Request>> {
    let options = (
        (1u32..90, any::<bool>(), 0u64..1000),
        proptest::option::of(0u32..3),
        (
            proptest::option::of(0u32..8),
            proptest::option::of(0usize..8),
        ),
        1.0f32..1.4,
    );
    let options = options.prop_map(
        |((tokens, seeded, seed), logprobs, (stop, text), penalty)| {
            // Texts of the device's words, as the tokenizer has them.
            let stop_text = text.map(|word| {
                let bytes = tokenizer().token_text(FIRST + word as u32);
                bytes.unwrap_or_default()
            });
            GenerateOptions {
                sampling: Sampling {
                    temperature: Some(if seeded { 1.3 } else { 0.0 }),
                    seed: Some(seed),
                    repeat_penalty: (seed % 3 == 0).then_some(penalty),
                    ..Sampling::default()
                },
                logprobs,
                stop_tokens: stop
                    .filter(|_| seed % 4 == 0)
                    .map(|stop| FIRST + stop)
                    .into_iter()
                    .collect(),
                stop: stop_text
                    .filter(|text| seed % 5 == 0 && !text.is_empty())
                    .into_iter()
                    .collect(),
                grammar: (seed % 6 == 0).then(|| Grammar {
                    kind: "regex".to_owned(),
                    source: "(?s:[^6]{0,40})".to_owned(),
                }),
                ..greedy(tokens)
            }
        },
    );
    let prompts = proptest::collection::vec(FIRST..FIRST + 4, 1..60);
    let request = (
        prompts,
        options,
        proptest::option::weighted(0.2, 0usize..60),
    );
    let request = request.prop_map(|(prompt, options, stopped)| Request {
        prompt,
        options,
        stopped,
    });
    proptest::collection::vec(request, 1..7)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]
    /// Any texts of any device, drafted and side by side, are those that come alone and undrafted: tokens, text, log
    /// probabilities, ends and counts; and every page is free in the end.
    #[test]
    fn texts_are_those_of_plain_decoding(
        requests in requests(),
        repeats in 0u64..100,
        words in 1u64..8,
        row in prop_oneof![Just(1.0), 1.0..4000.0],
        page_size in 1usize..9,
        parallel in 1usize..5,
        rows in 1usize..40,
    ) {
        let nature = Nature { repeats, words, row, ..CHEAP };
        let config = Config {
            page_size,
            pages: 160usize.div_ceil(page_size) * parallel,
            max_wanted: rows.max(parallel),
            max_step_tokens: (rows + 3).max(parallel),
            ..drafting(160, parallel)
        };
        let mut harness = Harness::new(config, nature);
        for request in &requests {
            harness.ask(&request.prompt, request.options.clone());
        }
        for turn in 0.. {
            for (at, request) in requests.iter().enumerate() {
                if request.stopped == Some(turn) {
                    harness.cancel(at);
                }
            }
            if !harness.turn() {
                break;
            }
            // Pages of drafts that did not come true are given back.
            for sequence in &harness.scheduler.running {
                prop_assert!(sequence.pages.len() * page_size < sequence.tokens.len() + page_size);
            }
        }
        for (at, request) in requests.iter().enumerate() {
            let own = alone(nature, config, &request.prompt, &request.options);
            let told = harness.told(at);
            if told.completion().finish_reason == FinishReason::Cancelled {
                prop_assert!(request.stopped.is_some());
                prop_assert!(own.tokens.starts_with(&told.tokens));
                prop_assert_eq!(told.completion().completion_tokens, told.tokens.len() as u64);
            } else {
                prop_assert_eq!(told.shown(), own.shown());
            }
            prop_assert_eq!(told.completion().prompt_tokens, harness.asked[at].prompt as u64);
        }
        prop_assert_eq!(harness.pages_used(), 0);
        let drafted = harness.metric("tokens_drafted_total");
        prop_assert!(harness.metric("tokens_draft_accepted_total") <= drafted);
    }
}
