//! What a long prompt costs those that generate meanwhile.

use super::*;

/// The widest gap between tokens of a sequence from a time on, until another.
fn widest_gap(told: &Told, from: Duration, to: Duration) -> Duration {
    let within = |pair: &&[Duration]| pair[1] > from && pair[0] < to;
    let gaps = told.times.windows(2).filter(within);
    gaps.map(|pair| pair[1] - pair[0]).max().unwrap_or_default()
}

#[test]
fn tokens_come_at_most_twice_as_late_while_a_long_prompt_is_read() {
    let natures = [
        PLAIN,
        // Attention takes most of the time at the end of the prompt.
        Nature {
            past: 100.0,
            ..PLAIN
        },
        // A prompt's token costs nearly as much as a step of its own, and nearly nothing.
        Nature {
            token: 1500.0,
            ..PLAIN
        },
        Nature {
            token: 1.0,
            past: 0.0,
            ..PLAIN
        },
    ];
    for (nature, speculation) in natures
        .into_iter()
        .flat_map(|nature| [(nature, Speculation::Off), (nature, Speculation::Auto)])
    {
        let config = Config {
            speculation,
            ..sizes(16384, 4)
        };
        let mut harness = Harness::new(config, nature);
        let texts: Vec<usize> = (0..3)
            .map(|seed| harness.ask(&prompt(seed, 10), greedy(15000)))
            .collect();
        while harness.told(texts[2]).tokens.len() < 400 {
            harness.turn();
        }
        let asked = harness.now();
        let steady = harness.told(texts[0]).times[100];
        let before: Vec<Duration> = texts
            .iter()
            .map(|&text| widest_gap(harness.told(text), steady, asked))
            .collect();
        let steps = harness.seen().len();
        let long = harness.ask(&prompt(9, 8192), greedy(4));
        while harness.told(long).tokens.is_empty() {
            harness.turn();
        }
        let read = harness.now();
        let seen = &harness.seen()[steps..];
        for (&text, before) in texts.iter().zip(before) {
            let widest = widest_gap(harness.told(text), asked, read);
            println!(
                "{speculation:?}, {nature:?}: {:.2} times, read in {:?}",
                widest.as_secs_f64() / before.as_secs_f64(),
                read - asked
            );
            assert!(
                widest <= 2 * before,
                "{nature:?} {speculation:?}: {widest:?} after {before:?}"
            );
        }
        // It is no standstill either: more than a third of the time goes into the prompt, and nobody misses a step.
        let mut harness = Harness::new(config, nature);
        harness.ask(&prompt(9, 8192), greedy(4));
        harness.run();
        let own = harness.now();
        println!("alone in {own:?}");
        assert!(
            read - asked < own * 3 + Duration::from_secs(1),
            "{nature:?} {speculation:?}: {:?} instead of {own:?} alone, {} steps",
            read - asked,
            seen.len()
        );
        assert!(seen.iter().all(|step| step.sequences.len() >= 3));
    }
}

#[test]
fn what_a_prompt_may_take_follows_the_device() {
    let nature = Nature { past: 0.0, ..PLAIN };
    let mut harness = Harness::new(sizes(16384, 2), nature);
    let text = harness.ask(&prompt(1, 10), greedy(15000));
    while harness.told(text).tokens.len() < 50 {
        harness.turn();
    }
    let portion = |harness: &mut Harness| {
        (0..60).for_each(|_| assert!(harness.turn()));
        let steps = harness.seen();
        let latest = steps[steps.len() - 30..].iter().map(Seen::tokens);
        latest.max().unwrap() - 1
    };
    harness.ask(&prompt(9, 8192), greedy(4));
    let usual = portion(&mut harness);
    assert!((15..30).contains(&usual), "{usual}");
    harness.nature.lock().unwrap().token *= 4.0;
    let slow = portion(&mut harness);
    assert!((3..10).contains(&slow), "{slow}");
    harness.nature.lock().unwrap().token /= 16.0;
    let fast = portion(&mut harness);
    assert!(fast > 60, "{fast}");
}

#[test]
fn prompts_share_evenly_and_take_turns_where_there_is_little() {
    // A token of a prompt takes more than a step: two of them may be read at a time, of five prompts beside one text.
    let nature = Nature {
        token: 7000.0,
        past: 0.0,
        ..PLAIN
    };
    let mut harness = Harness::new(sizes(2048, 6), nature);
    let text = harness.ask(&prompt(1, 10), greedy(1500));
    while harness.told(text).tokens.len() < 20 {
        harness.turn();
    }
    let prompts: Vec<(Vec<u32>, GenerateOptions)> = (0..5)
        .map(|seed| (prompt(seed + 20, 300 + 10 * seed as usize), greedy(2)))
        .collect();
    let readers = harness.call(&prompts);
    for _ in 0..300 {
        harness.turn();
        let read: Vec<u64> = readers.iter().map(|&at| harness.told(at).read).collect();
        let (least, most) = (read.iter().min().unwrap(), read.iter().max().unwrap());
        assert!(most - least <= 10, "{read:?}");
    }
    assert!(harness.told(readers[4]).read > 80);
    assert!(harness.told(readers[4]).read < 300, "the test is too short");
}

/// One text doesn't make thirty wait: many short prompts that come at once are read in a few steps, not a few tokens at a time.
#[test]
fn many_prompts_at_once_are_read_sooner_than_one_after_the_other() {
    let nature = Nature { past: 0.0, ..PLAIN };
    let mut harness = Harness::new(sizes(2048, 32), nature);
    let text = harness.ask(&prompt(1, 10), greedy(1500));
    while harness.told(text).tokens.len() < 40 {
        harness.turn();
    }
    let steps = harness.seen().len();
    let prompts: Vec<(Vec<u32>, GenerateOptions)> = (0..31)
        .map(|seed| (prompt(seed + 20, 30), greedy(20)))
        .collect();
    let readers = harness.call(&prompts);
    while readers.iter().any(|&at| harness.told(at).tokens.is_empty()) {
        harness.turn();
    }
    let seen = &harness.seen()[steps..];
    println!("{} steps", seen.len());
    // 930 tokens, at most 64 in a step; at the pace beside one text it takes 71.
    assert!(seen.len() < 30, "{} steps", seen.len());
    // And the text had a token in each.
    assert!(seen.iter().all(|step| step.wanted >= 1));
}
