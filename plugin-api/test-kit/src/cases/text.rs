//! Cases about what is generated and told.

use crate::bench::{
    Bench, Heard, ensure, expect_error, fail, generate, greedy, need, not_applicable,
};
use crate::{Outcome, Verdict};
use backplane_plugin_api::{
    BatchSink, ChatMessage, ChatRequest, ClassifyRequest, Control, ErrorCode, Event, FinishReason,
    GenerateOptions, GenerateRequest, Prompt, Sampling, TextModel,
};

pub(super) fn generates(bench: &Bench) -> Verdict {
    let model = bench.model()?;
    let (heard, done) = need(
        "generate",
        generate(&*model, &bench.prompt(), &greedy(bench.options.tokens)),
    )?;
    ensure!(
        !heard.text.is_empty(),
        "no text in {} tokens",
        done.completion_tokens
    );
    ensure!(
        heard.tokens.len() as u64 == done.completion_tokens,
        "{} token events, {} completion tokens",
        heard.tokens.len(),
        done.completion_tokens
    );
    ensure!(
        done.completion_tokens == u64::from(bench.options.tokens),
        "{} tokens; asked for {} past the end",
        done.completion_tokens,
        bench.options.tokens
    );
    ensure!(
        done.finish_reason == FinishReason::Length,
        "ended by {:?}; expected length",
        done.finish_reason
    );
    ensure!(
        done.prompt_tokens > 0 && done.cached_tokens <= done.prompt_tokens,
        "{} of {} prompt tokens from the cache",
        done.cached_tokens,
        done.prompt_tokens
    );
    let mut before = 0;
    for &(read, total) in &heard.prefill {
        ensure!(
            total == done.prompt_tokens,
            "a prefill event of {total} tokens; the prompt has {}",
            done.prompt_tokens
        );
        ensure!(
            read >= before && read <= total,
            "prefill went from {before} to {read} of {total}"
        );
        before = read;
    }
    ensure!(
        heard.prefill.is_empty() || before == done.prompt_tokens,
        "prefill events end at {before} of {}",
        done.prompt_tokens
    );
    let vocabulary = model.info().vocabulary;
    if let Some(id) = heard
        .tokens
        .iter()
        .flatten()
        .find(|&&id| vocabulary > 0 && u64::from(id) >= vocabulary)
    {
        return fail(format!("token {id} of a vocabulary of {vocabulary}"));
    }
    for (name, seconds) in [
        ("queue", done.queue_s),
        ("prefill", done.prefill_s),
        ("decode", done.decode_s),
    ] {
        ensure!(
            seconds >= 0.0 && seconds.is_finite(),
            "{name} took {seconds} s"
        );
    }
    Ok(())
}

pub(super) fn greedy_repeats(bench: &Bench) -> Verdict {
    let model = bench.model()?;
    let run = || {
        need(
            "generate",
            generate(&*model, &bench.prompt(), &greedy(bench.options.tokens)),
        )
    };
    let (first, second) = (run()?.0, run()?.0);
    ensure!(
        first.text == second.text,
        "{:?}, then {:?}",
        first.text,
        second.text
    );
    ensure!(
        first.tokens == second.tokens,
        "tokens {:?}, then {:?}",
        first.tokens,
        second.tokens
    );
    Ok(())
}

pub(super) fn seed_repeats(bench: &Bench) -> Verdict {
    let model = bench.model()?;
    let run = |seed| {
        let sampling = Sampling {
            temperature: Some(1.5),
            seed,
            ..Sampling::default()
        };
        let options = GenerateOptions {
            sampling,
            ..greedy(bench.options.tokens)
        };
        need("generate", generate(&*model, &bench.prompt(), &options))
    };
    let ((first, done), (second, _)) = (run(Some(42))?, run(Some(42))?);
    ensure!(
        done.seed == 42,
        "the completion says seed {}; asked for 42",
        done.seed
    );
    ensure!(
        first.text == second.text,
        "seed 42 gave {:?}, then {:?}",
        first.text,
        second.text
    );
    let (drawn, done) = run(None)?;
    let (again, _) = run(Some(done.seed))?;
    ensure!(
        drawn.text == again.text,
        "seed {} was told for {:?} and gave {:?}",
        done.seed,
        drawn.text,
        again.text
    );
    let mut texts = vec![first.text, drawn.text];
    for seed in 0..6 {
        texts.push(run(Some(seed))?.0.text);
    }
    texts.dedup();
    ensure!(
        texts.len() > 1,
        "eight seeds at temperature 1.5 gave one text: {:?}",
        texts[0]
    );
    Ok(())
}

pub(super) fn max_tokens_zero(bench: &Bench) -> Verdict {
    let (heard, done) = need(
        "generate",
        generate(&*bench.model()?, &bench.prompt(), &greedy(0)),
    )?;
    ensure!(
        heard.tokens.is_empty() && heard.text.is_empty(),
        "{} tokens, text {:?}",
        heard.tokens.len(),
        heard.text
    );
    ensure!(
        done.completion_tokens == 0,
        "{} completion tokens",
        done.completion_tokens
    );
    ensure!(
        done.finish_reason == FinishReason::Length,
        "ended by {:?}; expected length",
        done.finish_reason
    );
    Ok(())
}

pub(super) fn max_tokens_bounds(bench: &Bench) -> Verdict {
    for tokens in [1, 2, 5] {
        let options = GenerateOptions {
            ignore_end: false,
            ..greedy(tokens)
        };
        let (heard, done) = need(
            "generate",
            generate(&*bench.model()?, &bench.prompt(), &options),
        )?;
        ensure!(
            heard.tokens.len() <= tokens as usize,
            "{} tokens; asked for {tokens}",
            heard.tokens.len()
        );
        ensure!(
            done.completion_tokens == heard.tokens.len() as u64,
            "{} token events, {} completion tokens",
            heard.tokens.len(),
            done.completion_tokens
        );
    }
    Ok(())
}

/// A piece from the middle of the greedy text, of a few characters, and the text.
fn text_and_piece(bench: &Bench, model: &dyn TextModel) -> Result<(String, String), Outcome> {
    let (heard, _) = need(
        "generate",
        generate(model, &bench.prompt(), &greedy(2 * bench.options.tokens)),
    )?;
    let chars: Vec<char> = heard.text.chars().collect();
    if chars.len() < 6 {
        return not_applicable(format!(
            "the greedy text {:?} is too short to stop in",
            heard.text
        ));
    }
    let middle = chars.len() / 2;
    let piece = chars[middle - 1..(middle + 4).min(chars.len())]
        .iter()
        .collect();
    Ok((heard.text, piece))
}

pub(super) fn stop_string_ends(bench: &Bench) -> Verdict {
    let model = bench.model()?;
    let (text, piece) = text_and_piece(bench, &*model)?;
    let expected = &text[..text.find(&piece).unwrap_or(text.len())];
    let stop = vec!["\u{1}never said\u{1}".to_owned(), piece.clone()];
    let options = GenerateOptions {
        stop,
        ..greedy(2 * bench.options.tokens)
    };
    let (heard, done) = need("generate", generate(&*model, &bench.prompt(), &options))?;
    ensure!(
        heard.text == expected,
        "stop {piece:?}: text {:?}; expected {expected:?}",
        heard.text
    );
    ensure!(
        done.finish_reason == FinishReason::StopString,
        "ended by {:?}; expected a stop string",
        done.finish_reason
    );
    ensure!(
        done.stop_string.as_deref() == Some(&*piece),
        "told {:?}; expected {piece:?}",
        done.stop_string
    );
    Ok(())
}

pub(super) fn near_stop_loses_nothing(bench: &Bench) -> Verdict {
    let model = bench.model()?;
    let (text, piece) = text_and_piece(bench, &*model)?;
    let end: String = text.chars().skip(text.chars().count() - 2).collect();
    let stop = vec![format!("{piece}\u{1}"), format!("{end}\u{1}")];
    let options = GenerateOptions {
        stop: stop.clone(),
        ..greedy(2 * bench.options.tokens)
    };
    let (heard, done) = need("generate", generate(&*model, &bench.prompt(), &options))?;
    ensure!(
        heard.text == text,
        "stops {stop:?} that are never completed gave {:?}; expected {text:?}",
        heard.text
    );
    ensure!(
        done.finish_reason == FinishReason::Length,
        "ended by {:?}; expected length",
        done.finish_reason
    );
    Ok(())
}

pub(super) fn stop_token_ends(bench: &Bench) -> Verdict {
    let model = bench.model()?;
    let (heard, _) = need(
        "generate",
        generate(&*model, &bench.prompt(), &greedy(bench.options.tokens)),
    )?;
    let Some(ids) = heard.ids() else {
        return not_applicable("the engine can't know token ids");
    };
    let stop = ids[ids.len() / 2];
    let expected = ids.iter().position(|&id| id == stop).unwrap_or(0);
    let options = GenerateOptions {
        stop_tokens: vec![stop],
        ..greedy(bench.options.tokens)
    };
    let (heard, done) = need("generate", generate(&*model, &bench.prompt(), &options))?;
    ensure!(
        heard.ids().is_some_and(|now| now == ids[..expected]),
        "stop token {stop}: {:?}; expected {:?}",
        heard.tokens,
        &ids[..expected]
    );
    ensure!(
        done.finish_reason == FinishReason::Stop,
        "ended by {:?}; expected stop",
        done.finish_reason
    );
    Ok(())
}

pub(super) fn logprobs_given(bench: &Bench) -> Verdict {
    let options = GenerateOptions {
        logprobs: Some(2),
        ..greedy(4)
    };
    let (heard, _) = need(
        "generate",
        generate(&*bench.model()?, &bench.prompt(), &options),
    )?;
    for (index, (count, sound)) in heard.logprobs.iter().enumerate() {
        ensure!(
            (1..=3).contains(count),
            "token {index} has {count} log probabilities; expected the chosen and 2 others"
        );
        ensure!(
            *sound,
            "token {index}: a log probability above 0, or the chosen token is not the first"
        );
    }
    Ok(())
}

pub(super) fn chats(bench: &Bench) -> Verdict {
    let model = bench.model()?;
    let messages = vec![ChatMessage::new(
        "user",
        "What is the colour of a ripe lemon?",
    )];
    let request = ChatRequest {
        messages,
        options: greedy(bench.options.tokens),
        ..ChatRequest::default()
    };
    if model.info().chat_template.is_none() {
        expect_error(
            "render_chat without a template",
            model.render_chat(&request),
            &[
                ErrorCode::TemplateRefused,
                ErrorCode::Unsupported,
                ErrorCode::InvalidRequest,
            ],
        )?;
        return not_applicable("the model has no chat template");
    }
    let rendered = need("render_chat", model.render_chat(&request))?;
    ensure!(
        rendered.contains("ripe lemon"),
        "the rendered chat {rendered:?} lacks the message"
    );
    let mut heard = Heard::default();
    let done = need(
        "chat",
        model.chat(&request, &mut |event: Event<'_>| {
            heard.take(&event);
            Control::Continue
        }),
    )?;
    ensure!(
        done.completion_tokens == heard.tokens.len() as u64,
        "{} token events, {} completion tokens",
        heard.tokens.len(),
        done.completion_tokens
    );
    let special = Prompt::Text {
        text: rendered,
        special: true,
    };
    let (alone, as_text) = need("generate", generate(&*model, &special, &request.options))?;
    ensure!(
        alone.text == heard.text,
        "chat gave {:?} ({} prompt tokens), its rendered text {:?} ({})",
        heard.text,
        done.prompt_tokens,
        alone.text,
        as_text.prompt_tokens
    );
    Ok(())
}

fn classify_request(prompts: Vec<Prompt>) -> ClassifyRequest {
    ClassifyRequest {
        prompts,
        top: 5,
        logits: true,
        extra: Default::default(),
    }
}

pub(super) fn classifies(bench: &Bench) -> Verdict {
    let model = bench.model()?;
    let answers = need(
        "classify",
        model.classify(&classify_request(vec![bench.prompt()])),
    )?;
    ensure!(
        answers.len() == 1,
        "{} answers to one prompt",
        answers.len()
    );
    let answer = need(
        "classify",
        answers
            .into_iter()
            .next()
            .unwrap_or_else(|| unreachable!("one answer")),
    )?;
    ensure!(
        answer.top.len() == 5,
        "{} tokens; asked for 5",
        answer.top.len()
    );
    ensure!(
        answer
            .top
            .windows(2)
            .all(|pair| pair[0].logprob >= pair[1].logprob),
        "not in order: {:?}",
        answer.top
    );
    ensure!(
        answer.top.iter().all(|one| one.logprob <= 0.0),
        "a log probability above 0: {:?}",
        answer.top
    );
    let Some(logits) = answer.logits else {
        return fail("no logits, although asked for");
    };
    let vocabulary = model.info().vocabulary;
    ensure!(
        logits.len() as u64 == vocabulary,
        "{} logits of a vocabulary of {vocabulary}",
        logits.len()
    );
    ensure!(
        logits.iter().all(|logit| !logit.is_nan()),
        "a logit is not a number"
    );
    let largest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f64 = logits
        .iter()
        .map(|&logit| f64::from(logit - largest).exp())
        .sum();
    for one in &answer.top {
        let Some(&logit) = logits.get(one.token as usize) else {
            return fail(format!(
                "token {} of a vocabulary of {vocabulary}",
                one.token
            ));
        };
        let expected = f64::from(logit - largest) - sum.ln();
        ensure!(
            (f64::from(one.logprob) - expected).abs() < 1e-2,
            "token {}: log probability {}; its logit gives {expected}",
            one.token,
            one.logprob
        );
    }
    ensure!(
        logits[answer.top[0].token as usize] >= largest,
        "token {} is not the likeliest",
        answer.top[0].token
    );
    let without = ClassifyRequest {
        logits: false,
        ..classify_request(vec![bench.prompt()])
    };
    for answer in need("classify", model.classify(&without))? {
        ensure!(
            need("classify", answer)?.logits.is_none(),
            "logits, although not asked for"
        );
    }
    Ok(())
}

pub(super) fn classify_keeps_errors_apart(bench: &Bench) -> Verdict {
    let model = bench.model()?;
    let prompts = vec![
        bench.numbered_prompt(0),
        Prompt::Tokens(vec![u32::MAX]),
        bench.numbered_prompt(1),
    ];
    let answers = need("classify", model.classify(&classify_request(prompts)))?;
    ensure!(
        answers.len() == 3,
        "{} answers to three prompts",
        answers.len()
    );
    ensure!(answers[1].is_err(), "token {} was taken", u32::MAX);
    for index in [0, 2] {
        if let Err(error) = &answers[index] {
            return fail(format!("prompt {index} fails with its neighbour: {error}"));
        }
    }
    Ok(())
}

#[derive(Default)]
struct Several {
    heard: Vec<Heard>,
}

impl BatchSink for Several {
    fn on_event(&mut self, index: usize, event: Event<'_>) -> Control {
        if self.heard.len() <= index {
            self.heard.resize(index + 1, Heard::default());
        }
        self.heard[index].take(&event);
        Control::Continue
    }
}

pub(super) fn batch_is_as_alone(bench: &Bench) -> Verdict {
    let model = bench.model()?;
    let options = greedy(bench.options.tokens);
    let mut alone = Vec::new();
    for index in 0..3 {
        alone.push(
            need(
                "generate",
                generate(&*model, &bench.numbered_prompt(index), &options),
            )?
            .0,
        );
    }
    let mut requests: Vec<_> = (0..3)
        .map(|index| GenerateRequest {
            prompt: bench.numbered_prompt(index),
            options: options.clone(),
        })
        .collect();
    requests.push(GenerateRequest {
        prompt: Prompt::Tokens(vec![u32::MAX]),
        options,
    });
    let mut sink = Several::default();
    let results = need("batch_generate", model.batch_generate(&requests, &mut sink))?;
    ensure!(
        results.len() == 4,
        "{} results for four requests",
        results.len()
    );
    ensure!(results[3].is_err(), "token {} was taken", u32::MAX);
    for index in 0..3 {
        let done = results[index]
            .as_ref()
            .map_err(|error| Outcome::Failed(format!("request {index}: {error}")))?;
        let Some(heard) = sink.heard.get(index) else {
            return fail(format!("no event of request {index}"));
        };
        ensure!(
            heard.text == alone[index].text,
            "request {index}: {:?}; alone {:?}",
            heard.text,
            alone[index].text
        );
        ensure!(
            done.completion_tokens == heard.tokens.len() as u64,
            "request {index}: {} token events, {} completion tokens",
            heard.tokens.len(),
            done.completion_tokens
        );
    }
    let mut sink = Several::default();
    ensure!(
        need("batch_generate", model.batch_generate(&[], &mut sink))?.is_empty(),
        "results for no request"
    );
    Ok(())
}

pub(super) fn tokens_round_trip(bench: &Bench) -> Verdict {
    let model = bench.model()?;
    for text in [
        "Hello, world!",
        "Café déjà vu — 1234567 😊",
        "a\n\n  b\tc",
        "fn main() { let x = 1; }",
        "",
    ] {
        let tokens = need("tokenize", model.tokenize(text, false, false))?;
        let bytes = need("detokenize", model.detokenize(&tokens, false))?;
        let back = String::from_utf8_lossy(&bytes);
        // Some vocabularies begin every text with a space.
        ensure!(
            back == text || back.strip_prefix(' ') == Some(text),
            "{text:?} became {tokens:?}, then {back:?}"
        );
    }
    let bare = need("tokenize", model.tokenize("word", false, false))?;
    let full = need("tokenize", model.tokenize("word", true, false))?;
    ensure!(
        full.windows(bare.len().max(1)).any(|part| part == bare),
        "{full:?} with special tokens, {bare:?} without"
    );
    expect_error(
        "detokenize of an id outside the vocabulary",
        model.detokenize(&[u32::MAX], false),
        &[ErrorCode::InvalidRequest],
    )?;
    Ok(())
}

pub(super) fn metrics_are_numbers(bench: &Bench) -> Verdict {
    for (name, value) in bench.model()?.metrics() {
        ensure!(
            !name.is_empty() && value.is_finite(),
            "metric {name:?} is {value}"
        );
    }
    Ok(())
}
