//! Cases about many calls at once, and about stopping.

use crate::bench::{Bench, Heard, Listener, ensure, fail, generate, greedy, need, not_applicable};
use crate::{Outcome, Verdict};
use backplane_plugin_api::{BatchSink, Control, Event, FinishReason, GenerateRequest, Prompt};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};

pub(super) fn concurrent_as_alone(bench: &Bench) -> Verdict {
    let model = bench.model()?;
    let options = greedy(bench.options.tokens);
    let mut alone = Vec::new();
    for index in 0..4 {
        alone.push(
            need(
                "generate",
                generate(&*model, &bench.numbered_prompt(index), &options),
            )?
            .0
            .text,
        );
    }
    let together: Vec<_> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..4)
            .map(|index| {
                let (model, options) = (&model, &options);
                scope.spawn(move || generate(&**model, &bench.numbered_prompt(index), options))
            })
            .collect();
        threads
            .into_iter()
            .map(|thread| {
                thread
                    .join()
                    .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
            })
            .collect()
    });
    for (index, result) in together.into_iter().enumerate() {
        let text = need("generate", result)?.0.text;
        ensure!(
            text == alone[index],
            "thread {index}: {text:?}; alone {:?}",
            alone[index]
        );
    }
    Ok(())
}

fn cancelled(
    what: &str,
    heard: &Heard,
    reason: FinishReason,
    tokens: std::ops::RangeInclusive<usize>,
) -> Verdict {
    ensure!(
        reason == FinishReason::Cancelled,
        "{what}: ended by {reason:?}; expected cancelled"
    );
    ensure!(
        heard.after_stop == 0,
        "{what}: {} events after stop",
        heard.after_stop
    );
    ensure!(
        tokens.contains(&heard.tokens.len()),
        "{what}: {} tokens; expected {tokens:?}",
        heard.tokens.len()
    );
    Ok(())
}

pub(super) fn cancelled_before_prefill(bench: &Bench) -> Verdict {
    let mut sink = Listener::new(|_, _| false, |_| true);
    let request = GenerateRequest {
        prompt: bench.prompt(),
        options: greedy(8),
    };
    let done = need("generate", bench.model()?.generate(&request, &mut sink))?;
    cancelled(
        "should_stop from the start",
        &sink.heard,
        done.finish_reason,
        0..=0,
    )
}

/// A long prompt that no earlier case has put into a cache: the case's number stands at its head.
fn fresh_prompt(bench: &Bench, model: &dyn backplane_plugin_api::TextModel, number: u32) -> Prompt {
    match bench.long_prompt(model) {
        Prompt::Text { text, special } => Prompt::Text {
            text: format!("{number} {text}"),
            special,
        },
        tokens @ Prompt::Tokens(_) => tokens,
    }
}

pub(super) fn cancelled_in_prefill(bench: &Bench) -> Verdict {
    let model = bench.model()?;
    let mut sink = Listener::new(
        |_, event: &Event<'_>| matches!(event, Event::Prefill { .. }),
        |_| false,
    );
    let request = GenerateRequest {
        prompt: fresh_prompt(bench, &*model, 1),
        options: greedy(8),
    };
    let done = need("generate", model.generate(&request, &mut sink))?;
    if sink.heard.prefill.is_empty() {
        return not_applicable("the backend tells nothing of its prefill");
    }
    cancelled(
        "stop at the first prefill event",
        &sink.heard,
        done.finish_reason,
        0..=0,
    )?;
    // The model is none the worse for it.
    need("generate", generate(&*model, &bench.prompt(), &greedy(2))).map(|_| ())
}

pub(super) fn polled_in_prefill(bench: &Bench) -> Verdict {
    let model = bench.model()?;
    let mut sink = Listener::new(|_, _| false, |heard: &Heard| !heard.prefill.is_empty());
    let request = GenerateRequest {
        prompt: fresh_prompt(bench, &*model, 2),
        options: greedy(8),
    };
    let done = need("generate", model.generate(&request, &mut sink))?;
    if sink.heard.prefill.is_empty() {
        return not_applicable("the backend tells nothing of its prefill");
    }
    ensure!(
        sink.heard.prefill.len() <= 2,
        "{} batches of prefill after should_stop",
        sink.heard.prefill.len() - 1
    );
    cancelled(
        "should_stop in prefill",
        &sink.heard,
        done.finish_reason,
        0..=0,
    )
}

pub(super) fn cancelled_in_decode(bench: &Bench) -> Verdict {
    let mut sink = Listener::new(|heard: &Heard, _| heard.tokens.len() == 3, |_| false);
    let request = GenerateRequest {
        prompt: bench.prompt(),
        options: greedy(64),
    };
    let done = need("generate", bench.model()?.generate(&request, &mut sink))?;
    cancelled(
        "stop at the third token",
        &sink.heard,
        done.finish_reason,
        3..=3,
    )?;
    ensure!(
        done.completion_tokens >= 3,
        "{} completion tokens after three were given",
        done.completion_tokens
    );
    Ok(())
}

pub(super) fn polled_in_decode(bench: &Bench) -> Verdict {
    let mut sink = Listener::new(|_, _| false, |heard: &Heard| heard.tokens.len() >= 3);
    let request = GenerateRequest {
        prompt: bench.prompt(),
        options: greedy(64),
    };
    let done = need("generate", bench.model()?.generate(&request, &mut sink))?;
    cancelled(
        "should_stop after the third token",
        &sink.heard,
        done.finish_reason,
        3..=4,
    )
}

/// Stops request 1 at its second token.
#[derive(Default)]
struct StopsOne {
    heard: [Heard; 3],
}

impl BatchSink for StopsOne {
    fn on_event(&mut self, index: usize, event: Event<'_>) -> Control {
        self.heard[index].take(&event);
        if index == 1 && self.heard[1].tokens.len() >= 2 {
            Control::Stop
        } else {
            Control::Continue
        }
    }
}

pub(super) fn batch_cancels_one(bench: &Bench) -> Verdict {
    let model = bench.model()?;
    let requests: Vec<_> = (0..3)
        .map(|index| GenerateRequest {
            prompt: bench.numbered_prompt(index),
            options: greedy(bench.options.tokens),
        })
        .collect();
    let mut sink = StopsOne::default();
    let results = need("batch_generate", model.batch_generate(&requests, &mut sink))?;
    let expected = [
        FinishReason::Length,
        FinishReason::Cancelled,
        FinishReason::Length,
    ];
    for (index, (result, expected)) in results.into_iter().zip(expected).enumerate() {
        let done = result.map_err(|error| Outcome::Failed(format!("request {index}: {error}")))?;
        ensure!(
            done.finish_reason == expected,
            "request {index} ended by {:?}; expected {expected:?}",
            done.finish_reason
        );
    }
    ensure!(
        sink.heard[1].tokens.len() == 2,
        "{} tokens of a request stopped at its second",
        sink.heard[1].tokens.len()
    );
    Ok(())
}

pub(super) fn sink_panic_contained(bench: &Bench) -> Verdict {
    let model = bench.model()?;
    let (before, _) = need("generate", generate(&*model, &bench.prompt(), &greedy(4)))?;
    let request = GenerateRequest {
        prompt: bench.prompt(),
        options: greedy(8),
    };
    let panicked = AtomicBool::new(false);
    // A backend in the caller's own process may let the panic through to the caller; one behind the boundary errs.
    let outcome = catch_unwind(AssertUnwindSafe(|| {
        model.generate(&request, &mut |event: Event<'_>| {
            if matches!(event, Event::Token { .. }) {
                panicked.store(true, Ordering::Relaxed);
                // Past the panic hook: what is expected is not to be printed.
                std::panic::resume_unwind(Box::new("the suite's sink panics on purpose"));
            }
            Control::Continue
        })
    }));
    ensure!(
        panicked.load(Ordering::Relaxed),
        "no token reached the sink"
    );
    if let Ok(Ok(done)) = outcome {
        return fail(format!(
            "the generation ended by {:?} as if nothing had happened",
            done.finish_reason
        ));
    }
    let (after, _) = need(
        "generate after a panic in the sink",
        generate(&*model, &bench.prompt(), &greedy(4)),
    )?;
    ensure!(
        before.text == after.text,
        "{:?} before the panic, {:?} after it",
        before.text,
        after.text
    );
    Ok(())
}
