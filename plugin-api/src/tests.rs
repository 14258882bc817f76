//! All that the contract can say crosses and comes back the same.

use crate::abi::codes;
use crate::abi::data;
use crate::convert;
use crate::types::*;
use crate::{Context, abi};
use abi_stable::std_types::{RResult, RString};
use serde_json::json;

fn map(value: serde_json::Value) -> serde_json::Map<String, serde_json::Value> {
    value.as_object().unwrap().clone()
}

/// Every field differs from its default.
fn options() -> GenerateOptions {
    GenerateOptions {
        sampling: Sampling {
            temperature: Some(0.5),
            top_k: Some(3),
            top_p: Some(0.75),
            min_p: Some(0.25),
            repeat_penalty: Some(1.5),
            repeat_last_n: Some(7),
            presence_penalty: Some(0.125),
            frequency_penalty: Some(-0.5),
            seed: Some(u64::MAX),
            logit_bias: vec![(5, -1.0), (6, f32::NEG_INFINITY)],
        },
        max_tokens: Some(0),
        stop: vec!["a".into(), "é\0".into()],
        stop_tokens: vec![1, u32::MAX],
        ignore_end: true,
        logprobs: Some(0),
        grammar: Some(Grammar {
            kind: "regex".into(),
            source: "a+".into(),
        }),
        extra: map(json!({ "x": [1, 2.5, null], "é": { "y": "z" } }))
            .into_iter()
            .collect(),
    }
}

#[test]
fn requests() {
    for prompt in [
        Prompt::text("hello"),
        Prompt::Text {
            text: String::new(),
            special: true,
        },
        Prompt::Tokens(vec![]),
        Prompt::Tokens(vec![0, u32::MAX]),
    ] {
        for options in [GenerateOptions::default(), options()] {
            let request = GenerateRequest {
                prompt: prompt.clone(),
                options,
            };
            assert_eq!(
                GenerateRequest::try_from(&data::GenerateRequest::from(&request)),
                Ok(request)
            );
        }
    }
    let mut named = ChatMessage::new("tool", "");
    named.extra = map(json!({ "name": "f", "tool_calls": [{ "id": 1 }] }));
    let silent = ChatMessage {
        role: "assistant".into(),
        content: None,
        ..ChatMessage::default()
    };
    let chat = ChatRequest {
        messages: vec![named, silent],
        tools: Some(json!([{ "type": "function" }])),
        template_options: map(json!({ "enable_thinking": false })),
        options: options(),
    };
    for chat in [chat, ChatRequest::default()] {
        assert_eq!(
            ChatRequest::try_from(&data::ChatRequest::from(&chat)),
            Ok(chat)
        );
    }
    let classify = ClassifyRequest {
        prompts: vec![Prompt::text("a"), Prompt::Tokens(vec![1])],
        top: 9,
        logits: true,
        extra: map(json!({ "k": 1 })).into_iter().collect(),
    };
    assert_eq!(
        ClassifyRequest::try_from(&data::ClassifyRequest::from(&classify)),
        Ok(classify)
    );
    let load = LoadOptions {
        context: Some(1),
        threads: Some(2),
        parallel: Some(3),
        device: Some("cpu".into()),
        extra: map(json!({ "k": "v" })).into_iter().collect(),
    };
    for load in [load, LoadOptions::default()] {
        assert_eq!(
            LoadOptions::try_from(&data::LoadOptions::from(&load)),
            Ok(load)
        );
    }
    let context = Context {
        options: map(json!({ "a": 1 })).into_iter().collect(),
        module_dir: "/a b/é".into(),
    };
    let back = Context::try_from(&data::Context::from(&context)).unwrap();
    assert_eq!(
        (back.options, back.module_dir),
        (context.options, context.module_dir)
    );
}

#[test]
fn answers() {
    let info = ModelInfo {
        name: "n".into(),
        path: "/p/é".into(),
        format: "f".into(),
        architecture: "a".into(),
        quantization: "q".into(),
        parameters: 1,
        file_bytes: 2,
        context_length: 3,
        loaded_context: 4,
        vocabulary: 5,
        chat_template: Some("t".into()),
        unsupported: Some("u".into()),
        details: vec![("b".into(), "1".into()), ("a".into(), "2".into())],
        metadata: vec![("k".into(), "v".into())],
        tensors: vec![TensorSummary {
            name: "w".into(),
            storage: "F32".into(),
            shape: vec![2, 3],
            bytes: 24,
        }],
        warnings: vec!["w".into()],
    };
    assert_eq!(ModelInfo::from(data::ModelInfo::from(info.clone())), info);
    let completion = Completion {
        finish_reason: FinishReason::StopString,
        stop_string: Some("s".into()),
        prompt_tokens: 1,
        cached_tokens: 2,
        completion_tokens: 3,
        seed: 4,
        queue_s: 0.1,
        prefill_s: 0.2,
        decode_s: 0.3,
    };
    assert_eq!(
        Completion::from(data::Completion::from(completion.clone())),
        completion
    );
    let classification = Classification {
        prompt_tokens: 1,
        top: vec![TokenLogprob {
            token: 2,
            text: "t".into(),
            logprob: -0.5,
        }],
        logits: Some(vec![1.0, f32::NEG_INFINITY]),
    };
    assert_eq!(
        Classification::from(data::Classification::from(classification.clone())),
        classification
    );
    let device = DeviceInfo {
        id: "i".into(),
        name: "n".into(),
        kind: "k".into(),
        memory_total: Some(1),
        memory_free: None,
        details: [("driver".to_owned(), "7".to_owned())].into(),
    };
    assert_eq!(
        DeviceInfo::from(data::DeviceInfo::from(device.clone())),
        device
    );
    let metrics: Metrics = [("a".to_owned(), 1.5)].into();
    assert_eq!(
        convert::metrics_in(convert::metrics_out(metrics.clone())),
        metrics
    );
}

#[test]
fn events() {
    let logprobs = [TokenLogprob {
        token: 1,
        text: "x".into(),
        logprob: -1.0,
    }];
    for event in [
        Event::Prefill { done: 1, total: 2 },
        Event::Token {
            token: None,
            text: "é",
            logprobs: &[],
        },
        Event::Token {
            token: Some(7),
            text: "",
            logprobs: &logprobs,
        },
        Event::Text { text: "t" },
    ] {
        let same = convert::with_event_out(event.clone(), |out| {
            convert::with_event_in(&out, |back| back == event)
        });
        assert_eq!(same, Some(true), "{event:?}");
    }
    let unknown = convert::with_event_out(Event::Text { text: "t" }, |mut out| {
        out.kind = codes::EventKind(99);
        convert::with_event_in(&out, |_| ())
    });
    assert_eq!(unknown, None, "skipped");
}

#[test]
fn codes_and_their_fallbacks() {
    for (state, _) in VerdictState::ALL {
        let verdict = Verdict::unavailable(*state, "m", "a");
        assert_eq!(Verdict::from(data::Verdict::from(verdict.clone())), verdict);
    }
    use ErrorCode::{Cancelled as CallCancelled, *};
    for code in [
        InvalidRequest,
        UnsupportedField,
        ContextOverflow,
        ModelUnusable,
        TemplateRefused,
        Device,
        OutOfMemory,
        Busy,
        Closed,
        Panicked,
        Unsupported,
        Internal,
        CallCancelled,
    ] {
        let error = Error {
            code,
            message: "m".into(),
            field: "f".into(),
            action: "a".into(),
        };
        let back = convert::result_in::<u8, u8>(convert::result_out::<u8, u8>(Err(error.clone())));
        assert_eq!(back, Err(error));
    }
    use FinishReason::{Cancelled, *};
    for reason in [Stop, StopString, Length, ContextFull, Cancelled] {
        assert_eq!(
            FinishReason::from(codes::FinishReason::from(reason)),
            reason
        );
    }
    assert_eq!(ErrorCode::from(codes::ErrorCode(999)), Internal);
    assert_eq!(FinishReason::from(codes::FinishReason(999)), Stop);
    assert_eq!(Control::from(codes::Control(999)), Control::Stop);
    let unknown = data::Verdict {
        state: codes::VerdictState(999),
        message: "m".into(),
        action: RString::new(),
    };
    let verdict = Verdict::from(unknown);
    assert_eq!(verdict.state, VerdictState::Incompatible);
    assert!(verdict.message.contains("999"), "{verdict}");
}

#[test]
fn what_makes_no_sense_is_refused_by_name() {
    let mut request = data::GenerateRequest::from(&GenerateRequest {
        prompt: Prompt::text("a"),
        options: options(),
    });
    request.options.extra = "[1]".into();
    assert_eq!(
        GenerateRequest::try_from(&request).unwrap_err().field,
        "extra"
    );
    request.prompt.kind = codes::PromptKind(99);
    let error = GenerateRequest::try_from(&request).unwrap_err();
    assert_eq!(
        (error.code, error.field.as_str()),
        (ErrorCode::UnsupportedField, "prompt")
    );
    let mut chat = data::ChatRequest::from(&ChatRequest {
        tools: Some(json!([])),
        ..ChatRequest::default()
    });
    chat.tools = Some(RString::from("{")).into();
    assert_eq!(ChatRequest::try_from(&chat).unwrap_err().field, "tools");
}

#[test]
fn results_keep_their_places() {
    let results = vec![Ok(1_u8), Err(Error::new(ErrorCode::Busy, "b")), Ok(3)];
    let crossed: RResult<_, _> = convert::results_out::<u8, u8>(Ok(results.clone()));
    assert_eq!(convert::results_in::<u8, u8>(crossed), Ok(results));
}

#[test]
fn the_macros_symbol_is_the_one_that_hosts_look_for() {
    assert_eq!(abi::ROOT_SYMBOL, "_1as_0lib_1header_0root_bmodule_bloader");
}

#[test]
fn a_path_that_is_no_text_crosses() {
    use std::os::unix::ffi::OsStrExt;
    let path = std::path::Path::new(std::ffi::OsStr::from_bytes(b"/a\xff/b"));
    assert_eq!(convert::path_from(convert::path_bytes(path)), path);
}
