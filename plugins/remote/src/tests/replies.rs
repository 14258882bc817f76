//! Replies of endpoints that answer well, oddly and wrongly.

use super::*;
use backplane_endpoint::{begin_events, piece};
use backplane_plugin_api::types::{ClassifyRequest, FinishReason, Grammar, Sampling};
use std::time::Duration;

fn sampling(sampling: Sampling) -> GenerateOptions {
    GenerateOptions {
        sampling,
        ..GenerateOptions::default()
    }
}

/// The body of the last request.
fn sent(endpoint: &Fake) -> Value {
    let requests = endpoint.requests();
    serde_json::from_str(&requests.last().unwrap().body).unwrap()
}

#[test]
fn a_chat_is_asked_for_and_told() {
    let endpoint = fake(hello);
    let model = load(&endpoint, json!({})).unwrap();
    let options = GenerateOptions {
        sampling: Sampling {
            temperature: Some(0.7),
            seed: Some(7),
            logit_bias: vec![(5, -1.5), (6, f32::NEG_INFINITY)],
            ..Sampling::default()
        },
        max_tokens: Some(12),
        grammar: Some(Grammar {
            kind: "json_schema".into(),
            source: "{\"type\": \"object\"}".into(),
        }),
        ..GenerateOptions::default()
    };
    let (text, done, tokens) = chat(&*model, options).unwrap();
    assert_eq!((&*text, done.finish_reason), ("Hello!", FinishReason::Stop));
    // Two pieces; the third token that is counted is the end.
    assert_eq!((tokens, done.completion_tokens), (2, 2));
    assert_eq!(
        (done.prompt_tokens, done.cached_tokens, done.seed),
        (9, 4, 7)
    );
    assert_eq!(
        endpoint.requests().last().unwrap().path,
        "/v1/chat/completions"
    );
    assert_eq!(
        sent(&endpoint),
        json!({
            "model": "small",
            "messages": [{"role": "user", "content": "Hi"}],
            "temperature": 0.7,
            "top_p": 0.95,
            "presence_penalty": 0.0,
            "frequency_penalty": 0.0,
            "seed": 7,
            "logit_bias": {"5": -1.5, "6": -100.0},
            "max_tokens": 12,
            "stream": true,
            "stream_options": {"include_usage": true},
            "response_format": {"type": "json_schema", "json_schema":
                {"name": "answer", "strict": true, "schema": {"type": "object"}}},
        })
    );
    assert_eq!(model.metrics()["tokens_generated_total"], 2.0);

    // Named otherwise, and further fields.
    let more = json!({ "fields": ["max_completion_tokens", "top_k", "ignore_end"] });
    let model = load(&endpoint, more).unwrap();
    let options = GenerateOptions {
        max_tokens: Some(3),
        ignore_end: true,
        ..GenerateOptions::default()
    };
    chat(&*model, options).unwrap();
    assert_eq!(
        sent(&endpoint),
        json!({"model": "small", "messages": [{"role": "user", "content": "Hi"}], "top_k": 40, "ignore_eos": true,
            "max_completion_tokens": 3, "stream": true})
    );
}

#[test]
fn what_it_can_not_be_told_is_refused_by_name() {
    let endpoint = fake(hello);
    let model = load(&endpoint, json!({})).unwrap();
    let sampled = |change: fn(&mut Sampling)| {
        let mut sampling = Sampling::default();
        change(&mut sampling);
        super::replies::sampling(sampling)
    };
    let mut extra = GenerateOptions::default();
    extra.extra.insert("mirostat".into(), 2.into());
    let grammar = |kind: &str, source: &str| GenerateOptions {
        grammar: Some(Grammar {
            kind: kind.into(),
            source: source.into(),
        }),
        ..GenerateOptions::default()
    };
    for (field, options) in [
        ("top_k", sampled(|sampling| sampling.top_k = Some(5))),
        ("min_p", sampled(|sampling| sampling.min_p = Some(0.5))),
        (
            "repeat_penalty",
            sampled(|sampling| sampling.repeat_penalty = Some(1.5)),
        ),
        (
            "repeat_last_n",
            sampled(|sampling| sampling.repeat_last_n = Some(5)),
        ),
        (
            "temperature",
            sampled(|sampling| sampling.temperature = Some(-1.0)),
        ),
        ("seed", sampled(|sampling| sampling.seed = Some(1 << 31))),
        (
            "logit_bias",
            sampled(|sampling| sampling.logit_bias = vec![(1, 101.0)]),
        ),
        (
            "logit_bias",
            sampled(|sampling| sampling.logit_bias = vec![(1, f32::NAN)]),
        ),
        (
            "stop_tokens",
            GenerateOptions {
                stop_tokens: vec![1],
                ..GenerateOptions::default()
            },
        ),
        (
            "ignore_end",
            GenerateOptions {
                ignore_end: true,
                ..GenerateOptions::default()
            },
        ),
        (
            "logprobs",
            GenerateOptions {
                logprobs: Some(1000),
                ..GenerateOptions::default()
            },
        ),
        (
            "stop",
            GenerateOptions {
                stop: vec![String::new()],
                ..GenerateOptions::default()
            },
        ),
        ("grammar", grammar("regex", "a+")),
        ("grammar", grammar("json_schema", "{")),
        ("mirostat", extra),
    ] {
        let error = chat(&*model, options).unwrap_err();
        assert_eq!(error.field, field, "{error}");
    }
    // Values that change nothing are no reason.
    let neutral = sampled(|sampling| {
        (sampling.top_k, sampling.min_p, sampling.repeat_penalty) = (Some(0), Some(0.0), Some(1.0));
    });
    chat(&*model, neutral).unwrap();

    let mut request = ChatRequest {
        messages: vec![ChatMessage::new("user", "Hi")],
        tools: Some(json!([{"type": "function"}])),
        ..ChatRequest::default()
    };
    let ignore = |_: Event<'_>| Control::Continue;
    let error = model.chat(&request, &mut { ignore }).unwrap_err();
    assert_eq!(error.field, "tools");
    request.tools = None;
    request
        .template_options
        .insert("enable_thinking".into(), false.into());
    let error = model.chat(&request, &mut { ignore }).unwrap_err();
    assert_eq!(error.field, "template_options");
    let taking = load(&endpoint, json!({ "fields": ["template_options"] })).unwrap();
    taking.chat(&request, &mut { ignore }).unwrap();
    assert_eq!(
        sent(&endpoint)["chat_template_kwargs"],
        json!({"enable_thinking": false})
    );
    assert_eq!(
        model
            .chat(&ChatRequest::default(), &mut { ignore })
            .unwrap_err()
            .field,
        "messages"
    );
    for error in [
        model.tokenize("a", true, false).err(),
        model.detokenize(&[1], false).err(),
        model.render_chat(&request).err(),
    ] {
        assert_eq!(error.unwrap().code, ErrorCode::Unsupported);
    }
}

#[test]
fn refusals_have_their_kind_and_what_to_do() {
    let cases: &[(Talk, ErrorCode, &str, &str)] = &[
        (
            |out| json(out, "401 Unauthorized", "", "{}"),
            ErrorCode::Device,
            "(401)",
            "key_env",
        ),
        (
            |out| json(out, "403 Forbidden", "", "{}"),
            ErrorCode::Device,
            "access is refused",
            "key",
        ),
        (
            |out| {
                json(
                    out,
                    "404 Not Found",
                    "",
                    "{\"error\": {\"message\": \"no such model\"}}",
                )
            },
            ErrorCode::ModelUnusable,
            "no such model",
            "name",
        ),
        (
            |out| json(out, "429 Too Many Requests", "retry-after: 7\r\n", "{}"),
            ErrorCode::Busy,
            "too much",
            "try again in 7 s",
        ),
        (
            |out| {
                json(
                    out,
                    "503 Service Unavailable",
                    "retry-after: Fri, 31 Dec 1999 23:59:59 GMT\r\n",
                    "{}",
                )
            },
            ErrorCode::Busy,
            "not ready",
            "after Fri, 31 Dec",
        ),
        (
            |out| json(out, "500 Internal Server Error", "", "oh no"),
            ErrorCode::Device,
            "oh no",
            "",
        ),
        (
            |out| json(out, "504 Gateway Timeout", "", ""),
            ErrorCode::Device,
            "took too long",
            "again",
        ),
        (
            |out| {
                json(
                    out,
                    "400 Bad Request",
                    "",
                    "{\"error\": {\"message\": \"bad\"}}",
                )
            },
            ErrorCode::InvalidRequest,
            "bad",
            "",
        ),
        (
            |out| {
                json(
                    out,
                    "400 Bad Request",
                    "",
                    "{\"error\": {\"message\": \"This model's maximum context length is 4096 tokens, you asked for 5000\", \"code\": \"context_length_exceeded\"}}",
                )
            },
            ErrorCode::ContextOverflow,
            "5000",
            "shorten",
        ),
        (
            |out| json(out, "301 Moved", "location: https://b.example\r\n", ""),
            ErrorCode::Device,
            "https://b.example",
            "base_url",
        ),
        (
            |out| out.write_all(b"HTTP/1.1 200 OK\r\ncontent-type: text/html\r\n\r\n<html>"),
            ErrorCode::Device,
            "text/html",
            "/v1",
        ),
        (
            |out| {
                begin_events(out)?;
                piece(out, HELLO[1])?;
                out.write_all(b"99\r\nda")
            },
            ErrorCode::Device,
            "the connection failed",
            "endpoint runs",
        ),
        (
            |out| {
                events(
                    out,
                    [
                        HELLO[1],
                        b"data: {\"error\": {\"message\": \"gone\", \"code\": 429}}\n\n",
                    ],
                )
            },
            ErrorCode::Busy,
            "gone",
            "later",
        ),
        (
            |out| {
                events(out, [HELLO[1], b"data: {\"choices\": [{\"delta\": {}, \"finish_reason\": \"content_filter\"}]}\n\ndata: [DONE]\n\n"])
            },
            ErrorCode::Device,
            "filter",
            "",
        ),
        (
            |out| {
                events(
                    out,
                    [&b"data: {\"choices\": [{\"delta\": {\"tool_calls\": [{}]}}]}\n\n"[..]],
                )
            },
            ErrorCode::Device,
            "tool",
            "",
        ),
    ];
    for (talk, code, told, action) in cases {
        let endpoint = fake(*talk);
        let model = load(&endpoint, json!({})).unwrap();
        let error = chat(&*model, GenerateOptions::default()).unwrap_err();
        assert_eq!(error.code, *code, "{error}");
        assert!(
            error.message.contains(told) && error.action.contains(action),
            "{error:?}"
        );
        assert!(
            error.message.contains(MODEL) && !error.message.contains('\n'),
            "{error}"
        );
        assert_eq!(model.metrics()["requests_failed_total"], 1.0);
    }
    let gone = fake(hello);
    let model = load(&gone, json!({})).unwrap();
    drop(gone);
    let error = chat(&*model, GenerateOptions::default()).unwrap_err();
    assert_eq!(error.code, ErrorCode::Device);
    assert!(error.message.contains("refused"), "{error}");
    let silent = fake(|out| {
        begin_events(out)?;
        out.flush()?;
        std::thread::sleep(Duration::from_secs(2));
        Ok(())
    });
    let model = load(&silent, json!({ "timeout_s": 0.2 })).unwrap();
    let error = chat(&*model, GenerateOptions::default()).unwrap_err();
    assert!(error.message.contains("no answer within 0.2 s"), "{error}");
    assert!(error.action.contains("timeout_s"), "{error:?}");
}

#[test]
fn text_is_neither_lost_nor_made_up() {
    let stopping = |stops: &[&str]| GenerateOptions {
        stop: stops.iter().map(|&stop| stop.to_owned()).collect(),
        ..GenerateOptions::default()
    };
    let endpoint = fake(hello);
    let model = load(&endpoint, json!({})).unwrap();
    // Across pieces; then one that only begins.
    let (text, done, _) = chat(&*model, stopping(&["lo!", "ello"])).unwrap();
    assert_eq!(
        (&*text, done.finish_reason),
        ("H", FinishReason::StopString)
    );
    assert_eq!(done.stop_string.as_deref(), Some("ello"));
    let (text, done, _) = chat(&*model, stopping(&["lo!?"])).unwrap();
    assert_eq!((&*text, done.finish_reason), ("Hello!", FinishReason::Stop));

    // Reasoning that is kept apart, and a count beyond the pieces.
    let thinking = fake(|out| {
        let pieces: [&[u8]; 5] = [
            b"data: {\"choices\": [{\"delta\": {\"reasoning_content\": \"1+1\"}}]}\n\n",
            b"data: {\"choices\": [{\"delta\": {\"reasoning_content\": \"=2\"}}]}\n\n",
            b"data: {\"choices\": [{\"delta\": {\"content\": \"two\"}}]}\n\n",
            b"data: {\"choices\": [{\"delta\": {}, \"finish_reason\": \"length\"}]}\n\n",
            b"data: {\"choices\": [], \"usage\": {\"prompt_tokens\": 1, \"completion_tokens\": 5}}\n\n",
        ];
        events(out, pieces)
    });
    let model = load(&thinking, json!({})).unwrap();
    let (text, done, tokens) = chat(&*model, GenerateOptions::default()).unwrap();
    assert_eq!(text, "<think>\n1+1=2\n</think>\n\ntwo");
    assert_eq!((tokens, done.completion_tokens), (5, 5));
    assert_eq!(done.finish_reason, FinishReason::ContextFull);
    // Log probabilities were asked for, and did not come.
    let options = GenerateOptions {
        logprobs: Some(1),
        ..GenerateOptions::default()
    };
    let error = chat(&*model, options).unwrap_err();
    assert_eq!(
        (error.code, &*error.field),
        (ErrorCode::UnsupportedField, "logprobs")
    );

    let none = GenerateOptions {
        max_tokens: Some(0),
        ..GenerateOptions::default()
    };
    let before = endpoint.requests().len();
    let model = load(&endpoint, json!({})).unwrap();
    let (text, done, _) = chat(&*model, none).unwrap();
    assert_eq!((&*text, done.finish_reason), ("", FinishReason::Length));
    assert_eq!(
        endpoint.requests().len(),
        before + 1,
        "only the list of models"
    );
}

#[test]
fn ids_that_are_not_given_are_unknown() {
    let endpoint = fake(|out| {
        let piece = b"data: {\"choices\": [{\"delta\": {\"content\": \"ab\"}, \"logprobs\": {\"content\": [\
            {\"token\": \"a\", \"logprob\": -0.5, \"top_logprobs\": [{\"token\": \"a\", \"logprob\": -0.5}, {\"token\": \"x\", \"logprob\": -1}]},\
            {\"id\": 7, \"token\": \"b\", \"logprob\": -0.25, \"top_logprobs\": []}]}}]}\n\n";
        events(out, [&piece[..], HELLO[3], b"data: [DONE]\n\n"])
    });
    let model = load(&endpoint, json!({ "fields": ["logprobs"] })).unwrap();
    let request = GenerateRequest {
        prompt: Prompt::Tokens(vec![1, 2]),
        options: GenerateOptions {
            logprobs: Some(1),
            ..GenerateOptions::default()
        },
    };
    let mut told = vec![];
    model
        .generate(&request, &mut |event: Event<'_>| {
            if let Event::Token {
                token,
                text,
                logprobs,
            } = event
            {
                let ids: Vec<_> = logprobs
                    .iter()
                    .map(|one| (one.id(), one.text.clone()))
                    .collect();
                told.push((token, text.to_owned(), ids));
            }
            Control::Continue
        })
        .unwrap();
    assert_eq!(
        told,
        [
            (
                None,
                String::new(),
                vec![(None, "a".to_owned()), (None, "x".to_owned())]
            ),
            (Some(7), "ab".to_owned(), vec![(Some(7), "b".to_owned())]),
        ]
    );
    assert_eq!(sent(&endpoint)["prompt"], json!([1, 2]));
    assert_eq!(sent(&endpoint)["logprobs"], 2);
}

#[test]
fn classes_come_from_the_first_token() {
    let endpoint = fake(|out| {
        json(
            out,
            "200 OK",
            "",
            "{\"choices\": [{\"text\": \"a\", \"logprobs\": {\"tokens\": [\"a\"], \"token_logprobs\": [-0.1], \
            \"top_logprobs\": [{\"b\": -2.0, \"a\": -0.1, \"c\": -3.0}]}}], \"usage\": {\"prompt_tokens\": 4}}",
        )
    });
    let model = load(&endpoint, json!({})).unwrap();
    let request = |top, logits| ClassifyRequest {
        prompts: vec![Prompt::text("x"), Prompt::text("")],
        top,
        logits,
        extra: Default::default(),
    };
    let answers = model.classify(&request(2, false)).unwrap();
    let found = answers[0].as_ref().unwrap();
    let texts: Vec<_> = found.top.iter().map(|one| &*one.text).collect();
    assert_eq!((found.prompt_tokens, texts), (4, vec!["a", "b"]));
    assert_eq!(answers[1].as_ref().unwrap_err().field, "prompt");
    assert_eq!(
        model.classify(&request(2, true)).unwrap_err().field,
        "logits"
    );
}

/// An endpoint that never ends its answer, whatever was asked.
fn endless() -> Fake {
    fake(|out| {
        begin_events(out)?;
        loop {
            piece(out, HELLO[1])?;
            std::thread::sleep(Duration::from_millis(1));
        }
    })
}

#[test]
fn endless_answers_end_by_what_was_asked_or_by_the_caller() {
    let limit = Duration::from_secs(20);
    let endpoint = endless();
    let model = load(&endpoint, json!({})).unwrap();
    let options = GenerateOptions {
        max_tokens: Some(5),
        ..GenerateOptions::default()
    };
    let (_, done, tokens) = chat(&*model, options).unwrap();
    assert_eq!((tokens, done.finish_reason), (5, FinishReason::Length));
    assert_eq!(endpoint.left_within(limit), 1, "the connection is closed");

    let endpoint = endless();
    let model = load(&endpoint, json!({})).unwrap();
    let request = GenerateRequest {
        prompt: Prompt::text("a"),
        options: GenerateOptions::default(),
    };
    let mut tokens = 0;
    let done = model.generate(&request, &mut |_: Event<'_>| {
        tokens += 1;
        if tokens == 3 {
            Control::Stop
        } else {
            Control::Continue
        }
    });
    assert_eq!(
        (tokens, done.unwrap().finish_reason),
        (3, FinishReason::Cancelled)
    );
    assert_eq!(endpoint.left_within(limit), 1, "the connection is closed");

    // Closing the model ends what runs.
    let endpoint = endless();
    let model = load(&endpoint, json!({})).unwrap();
    let closer = model.clone();
    let error = model
        .generate(&request, &mut |_: Event<'_>| {
            closer.close().unwrap();
            Control::Continue
        })
        .unwrap_err();
    assert_eq!(error.code, ErrorCode::Closed);
    assert_eq!(
        chat(&*model, GenerateOptions::default()).unwrap_err().code,
        ErrorCode::Closed
    );
}

#[test]
fn nothing_that_is_made_for_debugging_shows_the_key() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("key");
    std::fs::write(&file, KEY).unwrap();
    let endpoint = fake(hello);
    let backend = with(options(&endpoint, json!({ "key_file": file.to_str() })));
    let key = backend.options().unwrap().key.read().unwrap();
    let shown = format!(
        "{backend:?} {key:?} {:?} {:?}",
        backend.probe(),
        backend.devices()
    );
    assert!(!shown.contains(KEY), "{shown}");
    let model = backend
        .load(Path::new(MODEL), &LoadOptions::default())
        .unwrap();
    let shown = format!("{:?} {:?}", model.info(), model.metrics());
    assert!(!shown.contains(KEY), "{shown}");
}
