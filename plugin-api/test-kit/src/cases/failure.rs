//! Cases about what goes wrong.

use crate::bench::{
    Bench, ensure, expect_error, expect_refusal, fail, generate, greedy, need, not_applicable,
};
use crate::{Outcome, Verdict};
use backplane_plugin_api::{
    ChatMessage, ChatRequest, ClassifyRequest, Control, ErrorCode, Event, FinishReason,
    GenerateOptions, GenerateRequest, Prompt, Sampling,
};

const FIELD: &str = "no_such_field";

pub(super) fn error_per_call(bench: &Bench) -> Verdict {
    let model = bench.model()?;
    let options = greedy(bench.options.tokens);
    let alone = need("generate", generate(&*model, &bench.prompt(), &options))?
        .0
        .text;
    let bad = Prompt::Tokens(vec![u32::MAX]);
    let results: Vec<_> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..4)
            .map(|index| {
                let (model, options, bad) = (&model, &options, &bad);
                scope.spawn(move || {
                    let prompt = if index % 2 == 0 {
                        bench.prompt()
                    } else {
                        bad.clone()
                    };
                    generate(&**model, &prompt, options)
                })
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
    for (index, result) in results.into_iter().enumerate() {
        if index % 2 == 0 {
            let text = need("a good call among bad ones", result)?.0.text;
            ensure!(
                text == alone,
                "a good call among bad ones gave {text:?}; alone {alone:?}"
            );
        } else {
            let codes = [ErrorCode::InvalidRequest, ErrorCode::UnsupportedField];
            expect_error("a token outside the vocabulary", result, &codes)?;
        }
    }
    Ok(())
}

pub(super) fn unknown_field_refused(bench: &Bench) -> Verdict {
    let model = bench.model()?;
    let extra: std::collections::BTreeMap<_, _> =
        [(FIELD.to_owned(), serde_json::json!(true))].into();
    let options = GenerateOptions {
        extra: extra.clone(),
        ..greedy(2)
    };
    expect_refusal(
        "generate",
        generate(&*model, &bench.prompt(), &options),
        FIELD,
    )?;
    let request = GenerateRequest {
        prompt: bench.prompt(),
        options: options.clone(),
    };
    let mut silent = Silent;
    match model.batch_generate(&[request], &mut silent) {
        Ok(results) => {
            for result in results {
                expect_refusal("batch_generate", result, FIELD)?;
            }
        }
        Err(error) => expect_refusal::<()>("batch_generate", Err(error), FIELD)?,
    }
    let classify = ClassifyRequest {
        prompts: vec![bench.prompt()],
        top: 1,
        logits: false,
        extra,
    };
    expect_refusal("classify", model.classify(&classify), FIELD)?;
    if model.info().chat_template.is_some() {
        let messages = vec![ChatMessage::new("user", "hello")];
        let chat = ChatRequest {
            messages,
            options,
            ..ChatRequest::default()
        };
        expect_refusal(
            "chat",
            model.chat(&chat, &mut |_: Event<'_>| Control::Continue),
            FIELD,
        )?;
    }
    Ok(())
}

struct Silent;

impl backplane_plugin_api::BatchSink for Silent {
    fn on_event(&mut self, _index: usize, _event: Event<'_>) -> Control {
        Control::Continue
    }
}

pub(super) fn bad_values_refused(bench: &Bench) -> Verdict {
    let model = bench.model()?;
    let with = |sampling: Sampling| GenerateOptions {
        sampling,
        ..greedy(2)
    };
    let temperature = |value| {
        with(Sampling {
            temperature: Some(value),
            ..Sampling::default()
        })
    };
    let cases = [
        ("temperature -1", temperature(-1.0)),
        ("temperature NaN", temperature(f32::NAN)),
        (
            "top_p 2",
            with(Sampling {
                temperature: Some(1.0),
                top_p: Some(2.0),
                ..Sampling::default()
            }),
        ),
        (
            "an empty stop string",
            GenerateOptions {
                stop: vec![String::new()],
                ..greedy(2)
            },
        ),
    ];
    let codes = [ErrorCode::InvalidRequest, ErrorCode::UnsupportedField];
    for (what, options) in cases {
        expect_error(what, generate(&*model, &bench.prompt(), &options), &codes)?;
    }
    Ok(())
}

pub(super) fn empty_prompt_answered(bench: &Bench) -> Verdict {
    let model = bench.model()?;
    for prompt in [Prompt::text(""), Prompt::Tokens(Vec::new())] {
        if let Err(error) = generate(&*model, &prompt, &greedy(2)) {
            expect_error::<()>(
                "an empty prompt",
                Err(error),
                &[ErrorCode::InvalidRequest, ErrorCode::UnsupportedField],
            )?;
        }
    }
    Ok(())
}

pub(super) fn overflow_refused(bench: &Bench) -> Verdict {
    let model = bench.own_model(Some(64))?;
    let context = model.info().loaded_context;
    let text = "stone ".repeat(context as usize * 2);
    let error = expect_error(
        &format!("a prompt longer than the context of {context}"),
        generate(&*model, &Prompt::text(&text), &greedy(2)),
        &[ErrorCode::ContextOverflow],
    )?;
    let numbers: Vec<u64> = error
        .message
        .split(|c: char| !c.is_ascii_digit())
        .filter_map(|number| number.parse().ok())
        .collect();
    ensure!(
        numbers.contains(&context),
        "{error}; expected the context's {context} tokens in it"
    );
    ensure!(
        numbers.iter().any(|&number| number > context),
        "{error}; expected the prompt's tokens in it"
    );
    // The model is none the worse for it.
    need(
        "generate",
        generate(&*model, &Prompt::text("one"), &greedy(2)),
    )?;
    let _ = model.close();
    Ok(())
}

pub(super) fn context_bounds(bench: &Bench) -> Verdict {
    let model = bench.own_model(Some(64))?;
    let context = model.info().loaded_context;
    if context > 512 {
        return not_applicable(format!("the smallest context is {context}"));
    }
    for max_tokens in [None, Some(100_000_000)] {
        let options = GenerateOptions {
            max_tokens,
            ..greedy(0)
        };
        match generate(&*model, &Prompt::text("one two three"), &options) {
            Ok((heard, done)) => {
                let total = done.prompt_tokens + heard.tokens.len() as u64;
                ensure!(
                    total <= context + 1,
                    "{total} tokens in a context of {context}"
                );
                ensure!(
                    done.finish_reason == FinishReason::ContextFull,
                    "ended by {:?}; expected a full context",
                    done.finish_reason
                );
            }
            Err(error) if max_tokens.is_some() => {
                expect_error::<()>(
                    "100000000 tokens",
                    Err(error),
                    &[ErrorCode::InvalidRequest, ErrorCode::ContextOverflow],
                )?;
            }
            Err(error) => return fail(format!("no bound on tokens: {error}")),
        }
    }
    let _ = model.close();
    Ok(())
}

pub(super) fn closed_twice(bench: &Bench) -> Verdict {
    let model = bench.own_model(None)?;
    for time in ["first", "second"] {
        model
            .close()
            .map_err(|error| Outcome::Failed(format!("the {time} close: {error}")))?;
    }
    expect_error(
        "generate after close",
        generate(&*model, &bench.prompt(), &greedy(2)),
        &[ErrorCode::Closed],
    )?;
    let classify = ClassifyRequest {
        prompts: vec![bench.prompt()],
        top: 1,
        logits: false,
        extra: Default::default(),
    };
    match model.classify(&classify) {
        Ok(answers) => {
            for answer in answers {
                expect_error("classify after close", answer, &[ErrorCode::Closed])?;
            }
        }
        Err(error) => {
            expect_error::<()>(
                "classify after close",
                Err(error),
                &[ErrorCode::Closed, ErrorCode::Unsupported],
            )?;
        }
    }
    Ok(())
}

pub(super) fn close_ends_generations(bench: &Bench) -> Verdict {
    let model = bench.own_model(None)?;
    let request = GenerateRequest {
        prompt: bench.prompt(),
        options: GenerateOptions {
            max_tokens: None,
            ..greedy(0)
        },
    };
    let result = std::thread::scope(|scope| {
        let (send, receive) = std::sync::mpsc::channel();
        let closer = {
            let model = &model;
            scope.spawn(move || match receive.recv() {
                Ok(()) => model.close(),
                // No token ever came: nothing to close.
                Err(_) => Ok(()),
            })
        };
        let mut waited = false;
        let result = model.generate(&request, &mut |event: Event<'_>| {
            if matches!(event, Event::Token { .. }) {
                let _ = send.send(());
                // Gives the other thread the time to close while this generation runs.
                if !waited {
                    waited = true;
                    std::thread::sleep(std::time::Duration::from_millis(50));
                }
            }
            Control::Continue
        });
        drop(send);
        (
            result,
            closer
                .join()
                .unwrap_or_else(|panic| std::panic::resume_unwind(panic)),
        )
    });
    result
        .1
        .map_err(|error| Outcome::Failed(format!("close: {error}")))?;
    expect_error(
        "a generation whose model was closed",
        result.0,
        &[ErrorCode::Closed],
    )?;
    Ok(())
}
