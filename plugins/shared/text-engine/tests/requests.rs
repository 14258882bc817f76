//! Requests and files that must be refused, each with an error of its own that names the field, the key or the file.
#![allow(missing_docs, clippy::unwrap_used)]

mod common;

use backplane_plugin_api::sdk::Backend;
use backplane_plugin_api::types::{
    ChatMessage, ChatRequest, ClassifyRequest, DeviceInfo, Error, ErrorCode, GenerateOptions,
    GenerateRequest, Grammar, LoadOptions, Prompt, Sampling,
};
use backplane_text_engine::TextBackend;
use common::*;
use serde_json::json;
use std::collections::BTreeMap;
use std::sync::atomic::Ordering;

#[test]
fn bad_fields_are_named() {
    let (model, watch) = load_tiny("llama3-gqa", &context(64, 2));
    let base = greedy(4);
    let sampling = |sampling: Sampling| GenerateOptions {
        sampling,
        ..base.clone()
    };
    let none = Sampling::default();
    let grammar = Grammar {
        kind: "regex".into(),
        source: "a(".into(),
    };
    let unsupported = ErrorCode::UnsupportedField;
    let invalid = ErrorCode::InvalidRequest;
    let cases: Vec<(GenerateOptions, ErrorCode, &str)> = vec![
        (
            GenerateOptions {
                grammar: Some(grammar),
                ..base.clone()
            },
            invalid,
            "grammar",
        ),
        (
            GenerateOptions {
                extra: [("mirostat".into(), json!(2))].into(),
                ..base.clone()
            },
            unsupported,
            "mirostat",
        ),
        (
            GenerateOptions {
                extra: [("speculation".into(), json!("sometimes"))].into(),
                ..base.clone()
            },
            invalid,
            "speculation",
        ),
        (
            GenerateOptions {
                stop: vec!["ok".into(), String::new()],
                ..base.clone()
            },
            invalid,
            "stop",
        ),
        (
            GenerateOptions {
                stop: vec!["x".repeat(5000)],
                ..base.clone()
            },
            invalid,
            "stop",
        ),
        (
            GenerateOptions {
                stop: vec!["x".into(); 100],
                ..base.clone()
            },
            invalid,
            "stop",
        ),
        (
            GenerateOptions {
                stop_tokens: vec![512],
                ..base.clone()
            },
            invalid,
            "stop_tokens",
        ),
        (
            GenerateOptions {
                logprobs: Some(101),
                ..base.clone()
            },
            invalid,
            "logprobs",
        ),
        (
            sampling(Sampling {
                temperature: Some(-1.0),
                ..none.clone()
            }),
            invalid,
            "temperature",
        ),
        (
            sampling(Sampling {
                temperature: Some(f32::NAN),
                ..none.clone()
            }),
            invalid,
            "temperature",
        ),
        (
            sampling(Sampling {
                top_p: Some(2.0),
                ..none.clone()
            }),
            invalid,
            "top_p",
        ),
        (
            sampling(Sampling {
                min_p: Some(f32::NAN),
                ..none.clone()
            }),
            invalid,
            "min_p",
        ),
        (
            sampling(Sampling {
                repeat_penalty: Some(0.0),
                ..none.clone()
            }),
            invalid,
            "repeat_penalty",
        ),
        (
            sampling(Sampling {
                presence_penalty: Some(f32::INFINITY),
                ..none.clone()
            }),
            invalid,
            "presence_penalty",
        ),
        (
            sampling(Sampling {
                frequency_penalty: Some(f32::NAN),
                ..none.clone()
            }),
            invalid,
            "frequency_penalty",
        ),
        (
            sampling(Sampling {
                logit_bias: vec![(512, 1.0)],
                ..none.clone()
            }),
            invalid,
            "logit_bias",
        ),
    ];
    for (options, code, field) in cases {
        let error = generate(&*model, &tokens_request(&[1, 2], options)).unwrap_err();
        assert_eq!((error.code, error.field.as_str()), (code, field), "{error}");
        assert!(
            error.message.contains(field) && !error.message.contains('\n'),
            "{error}"
        );
    }
    assert_eq!(watch.steps.load(Ordering::SeqCst), 0);
}

#[test]
fn bad_prompts_are_refused() {
    let (model, _) = load_tiny("llama3-gqa", &context(64, 2));
    let run = |prompt: Prompt| {
        generate(
            &*model,
            &GenerateRequest {
                prompt,
                options: greedy(2),
            },
        )
        .unwrap_err()
    };
    let check = |error: Error, text: &str| {
        assert_eq!(error.code, ErrorCode::InvalidRequest);
        assert!(error.message.contains(text), "{error}");
    };
    check(run(Prompt::Tokens(vec![])), "empty prompt");
    check(
        run(Prompt::Tokens(vec![1, 512])),
        "token 512 is outside the vocabulary of 512",
    );
    check(
        run(Prompt::Tokens(vec![u32::MAX])),
        "outside the vocabulary",
    );

    let request = |prompts, top| ClassifyRequest {
        prompts,
        top,
        logits: false,
        extra: BTreeMap::new(),
    };
    let answers = model
        .classify(&request(
            vec![
                Prompt::Tokens(vec![1]),
                Prompt::Tokens(vec![]),
                Prompt::Tokens(vec![2]),
            ],
            3,
        ))
        .unwrap();
    assert_eq!(
        answers.iter().map(Result::is_ok).collect::<Vec<_>>(),
        [true, false, true]
    );
    check(
        model.classify(&request(vec![], 513)).unwrap_err(),
        "top: 513",
    );
    assert!(model.classify(&request(vec![], 1)).unwrap().is_empty());
    let extra = ClassifyRequest {
        extra: [("pooling".into(), json!("mean"))].into(),
        ..request(vec![], 1)
    };
    assert_eq!(model.classify(&extra).unwrap_err().field, "pooling");
    assert!(
        model
            .batch_generate(&[], &mut CollectBatch::default())
            .unwrap()
            .is_empty()
    );
    assert!(model.detokenize(&[100_000], false).is_err());
}

#[test]
fn a_model_without_a_template_says_so() {
    let (model, _) = load_tiny("llama3-gqa", &context(64, 2));
    let request = ChatRequest {
        messages: vec![ChatMessage::new("user", "hi")],
        ..ChatRequest::default()
    };
    for error in [model.render_chat(&request).unwrap_err(), {
        model.chat(&request, &mut Collect::default()).unwrap_err()
    }] {
        assert_eq!(error.code, ErrorCode::Unsupported);
        assert!(
            error.message.contains("no chat template") && error.action.contains("raw prompt"),
            "{error:?}"
        );
    }
    let empty = ChatRequest::default();
    assert_eq!(model.render_chat(&empty).unwrap_err().field, "messages");
}

#[test]
fn load_options_are_checked() {
    let (backend, _) = backend();
    let refused = |options: LoadOptions, field: &str| {
        let error = backend.load(&tiny("llama3-gqa"), &options).err().unwrap();
        assert_eq!(error.field, field, "{error}");
        error
    };
    let error = refused(context(100_000, 1), "context");
    assert!(
        error.message.contains("100000") && error.message.contains("1024"),
        "{error}"
    );
    refused(context(0, 1), "context");
    refused(context(64, 0), "parallel");
    refused(context(64, 100_000), "parallel");
    refused(
        LoadOptions {
            threads: Some(0),
            ..context(64, 1)
        },
        "threads",
    );
    refused(
        LoadOptions {
            device: Some("gpu7".into()),
            ..context(64, 1)
        },
        "device",
    );
    let extra = LoadOptions {
        extra: [("flash_attention".into(), json!(true))].into(),
        ..context(64, 1)
    };
    assert_eq!(
        refused(extra, "flash_attention").code,
        ErrorCode::UnsupportedField
    );

    for (name, value) in [
        ("speculation", json!("on")),
        ("speculation", json!(true)),
        ("speculation", json!(vec!["off"; 100])),
        ("cache_tokens", json!(0)),
        ("cache_tokens", json!(-5)),
        ("cache_tokens", json!(1.5)),
        ("cache_tokens", json!("many")),
        ("cache_tokens", json!(u64::MAX)),
    ] {
        let options = LoadOptions {
            extra: [(name.into(), value)].into(),
            ..context(64, 1)
        };
        let error = refused(options, name);
        assert_eq!(error.code, ErrorCode::InvalidRequest);
        assert!(error.message.len() < 120, "{error}");
    }

    let model = backend
        .load(&tiny("llama3-gqa"), &LoadOptions::default())
        .unwrap();
    let info = model.info();
    assert_eq!(
        (info.loaded_context, info.context_length, info.vocabulary),
        (1024, 1024, 512)
    );
}

#[test]
fn a_cache_smaller_than_the_context_bounds_what_is_asked() {
    let (backend, watch) = backend();
    let options = LoadOptions {
        extra: [("cache_tokens".into(), json!(64))].into(),
        ..context(512, 4)
    };
    let model = backend.load(&tiny("llama3-gqa"), &options).unwrap();
    assert_eq!(model.info().loaded_context, 512);
    let error = generate(&*model, &tokens_request(&prompt(1, 40), greedy(30))).unwrap_err();
    assert_eq!(error.code, ErrorCode::ContextOverflow);
    assert!(
        error.message.contains("40 tokens and 30 to generate")
            && error.message.contains("9 cache pages of 8")
            && error.message.contains("has 8 (context 512)"),
        "{error}"
    );
    let error = generate(&*model, &tokens_request(&prompt(1, 64), greedy(1))).unwrap_err();
    assert_eq!(
        (error.code, error.field.as_str()),
        (ErrorCode::ContextOverflow, "prompt")
    );
    assert_eq!(watch.steps.load(Ordering::SeqCst), 0);
    let unbounded = GenerateOptions {
        max_tokens: None,
        ..greedy(0)
    };
    let (_, completion) = generate(&*model, &tokens_request(&prompt(1, 40), unbounded)).unwrap();
    assert_eq!(completion.completion_tokens, 24);
    assert_eq!(
        completion.finish_reason,
        backplane_plugin_api::types::FinishReason::ContextFull
    );
}

#[test]
fn a_device_is_chosen_by_its_id() {
    let device = DeviceInfo {
        id: "one".into(),
        name: "One".into(),
        kind: "cpu".into(),
        memory_total: None,
        memory_free: None,
        details: BTreeMap::new(),
    };
    let backend = TextBackend::new("test", "0.0.1", |_: &LoadOptions| {
        Ok(std::sync::Arc::new(backplane_program::Interpreter) as _)
    })
    .with_devices(move || Ok(vec![device.clone()]));
    let load = |id: &str| {
        backend.load(
            &tiny("llama3-gqa"),
            &LoadOptions {
                device: Some(id.into()),
                ..context(64, 1)
            },
        )
    };
    assert!(load("one").is_ok());
    let error = load("two").err().unwrap();
    assert!(
        error.message.contains("\"two\"") && error.message.contains("one"),
        "{error}"
    );
}

#[test]
fn files_are_told_apart() {
    let (backend, _) = backend();
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, bytes: &[u8]| {
        let path = folder.path().join(name);
        std::fs::write(&path, bytes).unwrap();
        path
    };
    assert_eq!(backend.inspect(&write("text.bin", b"hello")).unwrap(), None);
    assert_eq!(backend.inspect(folder.path()).unwrap(), None);
    // What is named like a model and is none is told, not passed over.
    write("text.gguf", b"<!DOCTYPE html>");
    write("empty.gguf", b"");
    for (name, what) in [
        ("text.gguf", "HTML"),
        ("empty.gguf", "empty"),
        ("nowhere.gguf", "No such file"),
    ] {
        let error = backend.inspect(&folder.path().join(name)).unwrap_err();
        assert_eq!(error.code, ErrorCode::ModelUnusable);
        assert!(error.message.contains(what), "{error}");
    }

    let whole = std::fs::read(tiny("llama3-gqa")).unwrap();
    let cut = write("cut.gguf", &whole[..whole.len() - 1024]);
    for error in [
        backend.inspect(&cut).unwrap_err(),
        backend.load(&cut, &LoadOptions::default()).err().unwrap(),
    ] {
        assert_eq!(error.code, ErrorCode::ModelUnusable);
        assert!(error.message.contains("cut.gguf"), "{error}");
    }
    for name in ["text.gguf", "empty.gguf", "nowhere.gguf", "."] {
        let error = backend
            .load(&folder.path().join(name), &LoadOptions::default())
            .err()
            .unwrap();
        assert_eq!(error.code, ErrorCode::ModelUnusable, "{error}");
        assert!(
            error.message.contains(&folder.path().display().to_string()),
            "{error}"
        );
    }

    let info = backend.inspect(&tiny("llama3-gqa")).unwrap().unwrap();
    assert_eq!(
        (info.format.as_str(), info.architecture.as_str()),
        ("gguf", "llama")
    );
    assert_eq!(
        (info.unsupported, info.loaded_context, info.vocabulary),
        (None, 0, 512)
    );
    assert!(
        info.parameters > 0 && info.file_bytes == whole.len() as u64 && !info.tensors.is_empty()
    );
    assert!(
        info.details
            .iter()
            .any(|(key, value)| key == "layers" && value == "3")
    );
    assert!(info.metadata.iter().all(|(_, value)| value.len() < 400));
}

#[test]
fn an_unknown_architecture_is_described_and_not_loaded() {
    let (backend, _) = backend();
    // The value of `general.architecture`: a string of five bytes.
    let mut bytes = std::fs::read(tiny("llama3-gqa")).unwrap();
    let value = b"\x05\0\0\0\0\0\0\0llama";
    let at = bytes
        .windows(value.len())
        .position(|it| it == value)
        .unwrap();
    bytes[at + 8..at + 13].copy_from_slice(b"lemur");
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("lemur.gguf");
    std::fs::write(&path, bytes).unwrap();
    let info = backend.inspect(&path).unwrap().unwrap();
    let why = info.unsupported.unwrap();
    assert!(
        why.contains("lemur") && why.contains("llama") && why.contains("gemma3"),
        "{why}"
    );
    assert_eq!(info.architecture, "lemur");
    let error = backend.load(&path, &LoadOptions::default()).err().unwrap();
    assert_eq!(error.code, ErrorCode::ModelUnusable);
}

#[test]
fn the_cache_takes_a_quarter_of_the_memory_at_most_unless_told() {
    let load = |memory: Option<u64>, options: &LoadOptions| {
        let device = DeviceInfo {
            id: "made up".into(),
            name: "made up".into(),
            kind: "cpu".into(),
            memory_total: memory,
            memory_free: None,
            details: BTreeMap::new(),
        };
        let backend = backend().0.with_devices(move || Ok(vec![device.clone()]));
        let model = backend.load(&tiny("llama3-gqa"), options).unwrap();
        let metrics = model.metrics();
        assert_eq!(metrics["kv_tokens_limit"], metrics["kv_pages_total"] * 8.0);
        // Scores of the vocabulary at least, in whole rows.
        let row = model.info().vocabulary as f64 * 4.0;
        assert!(metrics["buffer_bytes"] >= row && metrics["buffer_bytes"] % row == 0.0);
        (metrics["kv_pages_total"], metrics["kv_bytes_limit"])
    };
    // Contexts of 1024 tokens in pages of 8.
    let exact = exactly(LoadOptions::default());
    let (pages, bytes) = load(None, &exact);
    assert_eq!(pages, 512.0);
    let page = (bytes / pages) as u64;
    let of = |pages: u64, options: &LoadOptions| load(Some(4 * pages * page), options).0;
    assert_eq!(of(200, &exact), 200.0);
    assert_eq!(of(5, &exact), 128.0, "one context");
    assert_eq!(of(10_000, &exact), 512.0);
    assert_eq!(of(5, &context(1024, 4)), 512.0, "as it was told");
    let mut told = LoadOptions::default();
    told.extra.insert("cache_tokens".into(), json!(4000));
    assert_eq!(of(5, &told), 500.0);
    assert_eq!(of(200, &LoadOptions::default()), 400.0, "halves");
}
