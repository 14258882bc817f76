//! Directories as model hubs have them, and options of a load: what is opened, told and refused.
#![allow(missing_docs, clippy::unwrap_used)]

mod common;

use backplane_cpu_device::CpuDevice;
use backplane_plugin_api::capability::{self, ConvertOptions, ConvertReport, Finding, Unwatched};
use backplane_plugin_api::sdk::Backend;
use backplane_plugin_api::types::{Control, Error, ErrorCode, LoadOptions, ModelInfo};
use backplane_text_engine::TextBackend;
use backplane_weights::writer::GgufWriter;
use backplane_weights::{Checkpoint, TensorType, Weights};
use common::*;
use serde_json::json;
use std::path::{Path, PathBuf};
use std::sync::Arc;

fn cpu() -> TextBackend {
    backend_over(Arc::new(CpuDevice::detect().unwrap())).0
}

fn directory(name: &str) -> PathBuf {
    fixtures().join("tiny").join(name)
}

/// The model's directory in a folder of its own, to be changed.
fn copy(name: &str) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    for entry in std::fs::read_dir(directory(name)).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|extension| extension != "gguf") {
            std::fs::copy(&path, folder.path().join(path.file_name().unwrap())).unwrap();
        }
    }
    folder
}

/// The model in several files, with the tokenizer of its twin.
fn sharded() -> tempfile::TempDir {
    let folder = copy("llama3-gqa-sharded");
    for name in ["tokenizer.json", "tokenizer_config.json"] {
        std::fs::copy(directory("llama3-gqa").join(name), folder.path().join(name)).unwrap();
    }
    folder
}

fn info(path: &Path) -> ModelInfo {
    cpu().inspect(path).unwrap().unwrap()
}

fn detail<'a>(info: &'a ModelInfo, name: &str) -> &'a str {
    let found = info.details.iter().find(|(known, _)| known == name);
    found.map_or("", |(_, value)| value)
}

fn extra(name: &str, value: serde_json::Value) -> LoadOptions {
    LoadOptions {
        extra: [(name.to_owned(), value)].into(),
        ..context(256, 2)
    }
}

#[test]
fn every_directory_gives_the_references_texts() {
    let backend = cpu();
    let mut compared = 0;
    for name in [
        "llama3-gqa",
        "llama3-ropescaled",
        "mistral-full",
        "qwen2.5-bias",
        "qwen2.5-yarn",
        "qwen3-qknorm",
        "phi3-full-rotary",
        "phi4mini-partial-longrope",
        "gemma3-text",
        "gemma3-text-linear8",
        "gemma3-text-attnscale",
        "mistral-sliding",
        "mixtral",
        "qwen2-moe",
        "qwen3-moe",
        "deepseek-v3",
        "deepseek-v3-yarn",
    ] {
        let golden = json(&directory(name).join("golden.json"));
        for sequence in golden["sequences"].as_array().unwrap() {
            let length = sequence["n_ctx"].as_u64().unwrap() as u32;
            let margins = sequence["greedy_margins"].as_array().unwrap();
            let expected = ids(&sequence["greedy_ids"]);
            // Exactly, and with keys and values as the engine keeps them unless told otherwise.
            for (options, least) in [
                (exactly(context(length, 1)), 1e-3),
                (context(length, 1), 2e-2),
            ] {
                let model = backend.load(&directory(name), &options).unwrap();
                let request = tokens_request(&ids(&sequence["tokens"]), greedy(32));
                let told = generate(&*model, &request).unwrap().0;
                let sure = margins
                    .iter()
                    .take_while(|margin| margin.as_f64().unwrap() > least)
                    .count();
                compared += sure;
                assert_eq!(told.tokens[..sure], expected[..sure], "{name}");
            }
        }
    }
    println!("{compared} tokens");
    assert!(compared > 1000, "{compared}");
}

#[test]
fn a_directory_is_described() {
    let path = directory("llama3-ropescaled");
    let info = info(&path);
    assert_eq!(
        (info.name.as_str(), info.format.as_str()),
        ("llama3-ropescaled", "safetensors")
    );
    assert_eq!(
        (info.architecture.as_str(), info.quantization.as_str()),
        ("llama", "BF16")
    );
    assert_eq!((info.vocabulary, info.unsupported.as_deref()), (512, None));
    let size = path.join("model.safetensors").metadata().unwrap().len();
    assert_eq!(info.file_bytes, size);
    assert_eq!(detail(&info, "layers"), "3");
    assert!(
        detail(&info, "rope").contains("scaled"),
        "{:?}",
        info.details
    );
    assert_eq!(detail(&info, "rope_pairs"), "halves");
    let file = cpu().inspect(&tiny("llama3-ropescaled")).unwrap().unwrap();
    assert_eq!(detail(&file, "rope_pairs"), "neighbours");
    assert!(!detail(&info, "norm").is_empty() && !detail(&info, "window").is_empty());
    assert_eq!(detail(&info, "gguf_version"), "");
    // The same model by its file, and by an index.
    for (path, of) in [
        (path.join("model.safetensors"), &info),
        (
            directory("llama3-gqa-sharded").join("model.safetensors.index.json"),
            &cpu()
                .inspect(&directory("llama3-gqa-sharded"))
                .unwrap()
                .unwrap(),
        ),
    ] {
        let found = cpu().inspect(&path).unwrap().unwrap();
        assert_eq!((&found.name, &found.tensors), (&of.name, &of.tensors));
        assert_eq!(found.path, path);
    }
}

#[test]
fn the_same_text_comes_from_every_format() {
    let backend = cpu();
    let text = |path: &Path| {
        let model = backend.load(path, &context(256, 1)).unwrap();
        let tokens = model.tokenize("Hello, world! 123 été", true, true).unwrap();
        let told = generate(&*model, &tokens_request(&prompt(4, 30), seeded(5, 40))).unwrap();
        (tokens, told.0.text)
    };
    let gguf = text(&tiny("llama3-gqa"));
    assert!(!gguf.1.is_empty());
    assert_eq!(text(&directory("llama3-gqa")), gguf);
}

/// What inspecting and loading say of a directory that can't be used: one line each that names it.
fn refused(path: &Path, part: &str) {
    let backend = cpu();
    let told = match backend.inspect(path) {
        Ok(Some(info)) => info
            .unsupported
            .unwrap_or_else(|| panic!("{part}: not told")),
        Ok(None) => panic!("{part}: not a format of this backend"),
        Err(error) => error.message,
    };
    let error = backend.load(path, &context(64, 1)).err().unwrap();
    assert_eq!(error.code, ErrorCode::ModelUnusable, "{error}");
    for message in [told, error.message] {
        assert!(message.contains(part), "no {part:?} in {message:?}");
        let name = path.file_name().unwrap().to_str().unwrap();
        assert!(message.contains(name), "no {name:?} in {message:?}");
        assert!(!message.contains('\n'), "{message:?}");
    }
}

#[test]
fn broken_directories_get_one_line() {
    for (file, content, part) in [
        ("config.json", None, "config.json"),
        ("config.json", Some("{"), "config.json"),
        ("config.json", Some("{\"model_type\": \"bert\"}"), "bert"),
        ("tokenizer.json", None, "tokenizer.json"),
        ("tokenizer.json", Some("[1, 2"), "tokenizer.json"),
        (
            "model.safetensors",
            Some("<!DOCTYPE html><html></html>"),
            "HTML",
        ),
        ("model.safetensors", Some(""), "model.safetensors"),
    ] {
        let folder = copy("llama3-gqa");
        let path = folder.path().join(file);
        match content {
            None => std::fs::remove_file(&path).unwrap(),
            Some(content) => std::fs::write(&path, content).unwrap(),
        }
        refused(folder.path(), part);
    }
    let folder = copy("llama3-gqa");
    let weights = folder.path().join("model.safetensors");
    let bytes = std::fs::read(&weights).unwrap();
    std::fs::write(&weights, &bytes[..bytes.len() - 1024]).unwrap();
    refused(folder.path(), "model.safetensors");

    let folder = copy("llama3-gqa");
    std::fs::remove_file(folder.path().join("tokenizer.json")).unwrap();
    std::fs::create_dir(folder.path().join("tokenizer.json")).unwrap();
    refused(folder.path(), "tokenizer.json");

    let folder = copy("llama3-gqa-sharded");
    let part = "model-00003-of-00004.safetensors";
    std::fs::remove_file(folder.path().join(part)).unwrap();
    refused(folder.path(), part);
}

#[test]
fn an_unknown_family_is_described_by_its_tensors() {
    let folder = copy("llama3-gqa");
    std::fs::write(
        folder.path().join("config.json"),
        "{\"model_type\": \"bert\"}",
    )
    .unwrap();
    let info = info(folder.path());
    assert_eq!(
        (info.architecture.as_str(), info.format.as_str()),
        ("bert", "safetensors")
    );
    assert!(
        info.unsupported.unwrap().contains("llama"),
        "the families known are told"
    );
    assert!(
        info.tensors
            .iter()
            .any(|tensor| tensor.name == "model.embed_tokens.weight")
    );
    assert!(info.parameters > 100_000);
}

#[test]
fn what_is_no_model_is_not_claimed() {
    let folder = tempfile::tempdir().unwrap();
    assert_eq!(cpu().inspect(folder.path()), Ok(None));
    std::fs::write(folder.path().join("config.json"), "{}").unwrap();
    assert_eq!(cpu().inspect(folder.path()), Ok(None));
    let words = folder.path().join("words.txt");
    std::fs::write(&words, "some words").unwrap();
    assert_eq!(cpu().inspect(&words), Ok(None));
}

#[test]
fn a_model_that_changed_after_it_was_inspected_is_opened_again() {
    let folder = copy("llama3-gqa");
    let backend = cpu();
    assert!(
        backend
            .inspect(folder.path())
            .unwrap()
            .unwrap()
            .unsupported
            .is_none()
    );
    let config = folder.path().join("config.json");
    let text = std::fs::read_to_string(&config).unwrap();
    let changed = text.replace("\"silu\"", "\"relu\"");
    assert_ne!(text, changed);
    std::fs::write(&config, changed).unwrap();
    let error = backend.load(folder.path(), &context(64, 1)).err().unwrap();
    assert!(error.message.contains("relu"), "{error}");
    std::fs::write(&config, text).unwrap();
    assert!(backend.load(folder.path(), &context(64, 1)).is_ok());
}

#[test]
fn cache_types_are_told_and_nearly_the_same() {
    let backend = cpu();
    let path = directory("llama-256-quant");
    let request = tokens_request(&prompt(1, 20), greedy(4));
    let exact = generate(&*backend.load(&path, &context(256, 2)).unwrap(), &request).unwrap();
    for cache_type in ["f32", "f16", "Q8_0"] {
        let model = backend
            .load(&path, &extra("cache_type", json!(cache_type)))
            .unwrap();
        assert_eq!(detail(&model.info(), "cache"), cache_type.to_lowercase());
        let told = generate(&*model, &request).unwrap();
        assert_eq!(told.0.tokens[0], exact.0.tokens[0], "{cache_type}");
    }
    // Heads of 16 can't be kept in blocks of 32.
    let options = extra("cache_type", json!("q8_0"));
    let error = backend
        .load(&directory("llama3-gqa"), &options)
        .err()
        .unwrap();
    assert!(
        error.message.contains("q8_0")
            && error.message.contains("16")
            && error.message.contains("32"),
        "{error}"
    );
    // It is the caller's to change, not the file's.
    assert_eq!(
        (error.code, error.field.as_str()),
        (ErrorCode::InvalidRequest, "cache_type")
    );
    assert!(error.action.contains("f16 or f32"), "{error:?}");
}

#[test]
fn weights_can_be_quantised_while_loading() {
    let backend = cpu();
    let path = directory("llama-256-quant");
    for (name, shown) in [("q8_0", "Q8_0"), ("Q4_K", "Q4_K")] {
        let model = backend
            .load(&path, &extra("quantize", json!(name)))
            .unwrap();
        let info = model.info();
        assert!(
            detail(&info, "quantized").contains(shown),
            "{:?}",
            info.details
        );
        let told = generate(&*model, &tokens_request(&prompt(1, 20), greedy(8))).unwrap();
        assert_eq!(told.0.tokens.len(), 8);
    }
    let model = backend
        .load(&path, &extra("quantize", json!("none")))
        .unwrap();
    assert_eq!(detail(&model.info(), "quantized"), "");
    // Rows of 64 are no whole blocks of 256: the fallback is told.
    let model = backend
        .load(&directory("llama3-gqa"), &extra("quantize", json!("q4_k")))
        .unwrap();
    let warnings = model.info().warnings.join("; ");
    assert!(warnings.contains("Q8_0"), "{warnings}");
}

#[test]
fn wrong_options_of_a_load_are_told() {
    let backend = cpu();
    for (name, value, parts) in [
        ("cache_type", json!("q4_0"), ["q4_0", "f16"]),
        ("cache_type", json!(16), ["16", "text"]),
        ("quantize", json!("q9_0"), ["q9_0", "did you mean"]),
        ("quantize", json!("iq2_xxs"), ["iq2_xxs", "another type"]),
        ("quantize", json!(null), ["null", "text"]),
    ] {
        let error = backend
            .load(&tiny("llama3-gqa"), &extra(name, value))
            .err()
            .unwrap();
        assert_eq!(
            (error.code, error.field.as_str()),
            (ErrorCode::InvalidRequest, name)
        );
        for part in parts {
            let message = error.message.to_lowercase();
            assert!(message.contains(part), "no {part} in {error}");
        }
    }
    let error = backend
        .load(&tiny("llama3-gqa"), &extra("cachetype", json!("f16")))
        .err()
        .unwrap();
    assert_eq!(
        (error.code, error.field.as_str()),
        (ErrorCode::UnsupportedField, "cachetype")
    );
}

/// A copy of a GGUF file with the bytes of a tensor changed.
fn changed(source: &Path, to: &Path, tensor: &str, change: impl FnOnce(&mut [u8])) {
    let mut bytes = std::fs::read(source).unwrap();
    let weights = Weights::open(source).unwrap();
    let stored = weights.require(tensor).unwrap();
    let at = bytes
        .windows(stored.data.len())
        .position(|window| window == stored.data)
        .unwrap();
    change(&mut bytes[at..at + stored.data.len()]);
    std::fs::write(to, bytes).unwrap();
}

fn check(path: &Path) -> Vec<Finding> {
    let backend = cpu();
    let check = capability::check(&backend).unwrap().unwrap();
    check.check(path, &mut Unwatched).unwrap()
}

#[test]
fn numbers_that_are_none_are_found_and_named() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("nan.gguf");
    let set = |bytes: &mut [u8], at: usize, value: f32| {
        bytes[4 * at..4 * at + 4].copy_from_slice(&value.to_le_bytes());
    };
    changed(&tiny("llama3-gqa"), &path, "blk.1.ffn_up.weight", |bytes| {
        set(bytes, 64 * 2 + 3, f32::NAN);
        set(bytes, 64 * 5, f32::NEG_INFINITY);
        set(bytes, 64 * 5 + 1, f32::NAN);
    });
    let once = std::fs::read(&path).unwrap();
    let other = folder.path().join("once.gguf");
    std::fs::write(&other, once).unwrap();
    changed(&other, &path, "output_norm.weight", |bytes| {
        set(bytes, 7, f32::INFINITY)
    });
    let findings = check(&path);
    let named: Vec<&str> = findings.iter().map(|it| it.tensor.as_str()).collect();
    assert_eq!(named.len(), 2, "{findings:?}");
    let of = |name: &str| {
        &findings
            .iter()
            .find(|it| it.tensor == name)
            .unwrap()
            .message
    };
    let message = of("blk.1.ffn_up.weight");
    assert!(
        message.contains("2 NaN and 1 infinite") && message.contains("[2, 3]"),
        "{message}"
    );
    assert!(of("output_norm.weight").contains("[7]"), "{findings:?}");
    // Running it says what to do.
    let model = cpu().load(&path, &context(64, 1)).unwrap();
    let error = generate(&*model, &tokens_request(&[1, 2], greedy(2))).unwrap_err();
    assert!(error.message.contains("nan.gguf"), "{error}");
    assert!(error.action.contains("show --check"), "{error:?}");
}

#[test]
fn findings_of_a_directory_have_the_hubs_names() {
    for (model, tensor) in [
        ("llama3-gqa", "model.layers.0.self_attn.q_proj.weight"),
        ("gemma3-text", "model.layers.1.input_layernorm.weight"),
        ("deepseek-v3", "model.layers.1.self_attn.kv_b_proj.weight"),
    ] {
        let folder = copy(model);
        let path = folder.path().join("model.safetensors");
        let mut bytes = std::fs::read(&path).unwrap();
        let checkpoint = Checkpoint::open(&directory(model)).unwrap();
        let stored = checkpoint.tensor(tensor).unwrap();
        let mut places = bytes.windows(stored.data.len());
        let at = places.position(|window| window == stored.data).unwrap();
        let size = stored.data.len() / stored.shape.iter().product::<usize>();
        // No number in F32, F16 and BF16.
        bytes[at + size - 2..at + size].copy_from_slice(&[0xC0, 0x7F]);
        std::fs::write(&path, bytes).unwrap();
        let findings = check(folder.path());
        assert_eq!(findings.len(), 1, "{findings:?}");
        assert_eq!(findings[0].tensor, tensor);
        assert!(findings[0].message.contains("1 NaN"), "{findings:?}");
    }
}

#[test]
fn whole_models_of_every_format_and_type_are_right() {
    let quantised = std::fs::read_dir(directory("llama-256-quant")).unwrap();
    let mut seen = 0;
    for entry in quantised {
        let path = entry.unwrap().path();
        if path
            .extension()
            .is_some_and(|extension| extension == "gguf")
        {
            assert_eq!(check(&path), [], "{}", path.display());
            seen += 1;
        }
    }
    assert!(seen > 12, "{seen}");
    for name in ["llama3-gqa", "gemma3-text"] {
        assert_eq!(check(&directory(name)), [], "{name}");
    }
    assert_eq!(check(sharded().path()), []);
    // A scale that is no number is found in every type that has one.
    let folder = tempfile::tempdir().unwrap();
    for ty in [TensorType::Q4_0, TensorType::Q6_K, TensorType::IQ4_XS] {
        let source = directory("llama-256-quant").join(format!("model-{ty}.gguf"));
        let path = folder.path().join(format!("{ty}.gguf"));
        changed(&source, &path, "blk.0.ffn_up.weight", |bytes| {
            // The scale of the first block: an f16 at its start, or its end.
            let at = match ty {
                TensorType::Q6_K => ty.block_bytes() - 2,
                _ => 0,
            };
            bytes[at..at + 2].copy_from_slice(&0x7E00_u16.to_le_bytes());
        });
        let findings = check(&path);
        assert_eq!(findings.len(), 1, "{ty}: {findings:?}");
        assert_eq!(findings[0].tensor, "blk.0.ffn_up.weight");
        assert!(findings[0].message.contains("[0, 0]"), "{findings:?}");
    }
}

#[test]
fn what_loading_refuses_is_found() {
    // A vocabulary of one token more than the embedding has rows.
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("long.gguf");
    let mut writer = GgufWriter::new();
    let whole = |name: &str, value: u32| (format!("llama.{name}"), value);
    for (key, value) in [
        whole("block_count", 1),
        whole("context_length", 64),
        whole("embedding_length", 8),
        whole("feed_forward_length", 8),
        whole("attention.head_count", 1),
    ] {
        writer.add_meta(key, value);
    }
    let tokens = ["<s>", "</s>", "a", "b", "c"];
    writer
        .add_meta("general.architecture", "llama")
        .add_meta("llama.attention.layer_norm_rms_epsilon", 1e-5_f32)
        .add_meta("tokenizer.ggml.model", "llama")
        .add_meta("tokenizer.ggml.tokens", tokens.to_vec())
        .add_meta("tokenizer.ggml.scores", vec![0.0_f32; tokens.len()])
        .add_meta("tokenizer.ggml.token_type", vec![3_i32, 3, 1, 1, 1]);
    writer.add_f32("token_embd.weight", &[4, 8], &[0.1; 32]);
    writer.add_f32("output_norm.weight", &[8], &[1.0; 8]);
    for name in ["attn_norm", "ffn_norm"] {
        writer.add_f32(format!("blk.0.{name}.weight"), &[8], &[1.0; 8]);
    }
    for name in [
        "attn_q",
        "attn_k",
        "attn_v",
        "attn_output",
        "ffn_gate",
        "ffn_up",
        "ffn_down",
    ] {
        writer.add_f32(format!("blk.0.{name}.weight"), &[8, 8], &[0.1; 64]);
    }
    writer.write_to(&path).unwrap();
    let findings = check(&path);
    assert_eq!(findings.len(), 1, "{findings:?}");
    assert!(
        findings[0].message.contains("5 tokens") && findings[0].message.contains("at most 4"),
        "{findings:?}"
    );
    refused(&path, "at most 4");

    let backend = cpu();
    let checker = capability::check(&backend).unwrap().unwrap();
    let nowhere = folder.path().join("nowhere.gguf");
    assert!(checker.check(&nowhere, &mut Unwatched).is_err());
    let mut told = Vec::new();
    let mut stop = |done: u64, total: u64, what: &str| {
        told.push((done, total, what.to_owned()));
        if done == 3 {
            Control::Stop
        } else {
            Control::Continue
        }
    };
    let error = checker.check(&tiny("llama3-gqa"), &mut stop).unwrap_err();
    assert_eq!(error.code, ErrorCode::Cancelled);
    assert_eq!(told.first().map(|(done, ..)| *done), Some(0));
    assert_eq!(told.last().map(|(done, ..)| *done), Some(3));
}

/// The directory with the last tokens of its vocabulary left out.
fn with_fewer_tokens(name: &str, left: u64) -> tempfile::TempDir {
    let folder = copy(name);
    let path = folder.path().join("tokenizer.json");
    let mut tokenizer = json(&path);
    tokenizer["added_tokens"]
        .as_array_mut()
        .unwrap()
        .retain(|token| token["id"].as_u64().unwrap() < left);
    let model = &mut tokenizer["model"];
    let vocabulary = model["vocab"].as_object_mut().unwrap();
    vocabulary.retain(|_, id| id.as_u64().unwrap() < left);
    let known: Vec<String> = vocabulary.keys().cloned().collect();
    model["merges"].as_array_mut().unwrap().retain(|merge| {
        let parts: Vec<&str> = match merge.as_str() {
            Some(text) => text.split(' ').collect(),
            None => merge
                .as_array()
                .unwrap()
                .iter()
                .map(|it| it.as_str().unwrap())
                .collect(),
        };
        known.contains(&parts.concat())
    });
    std::fs::write(&path, tokenizer.to_string()).unwrap();
    folder
}

#[test]
fn a_vocabulary_shorter_than_the_embedding_is_told() {
    let told = |path: &Path| {
        let of = |warnings: &[String]| {
            let mut lines = warnings.iter().filter(|it| it.contains("ids have no text"));
            lines.next().cloned().unwrap_or_default()
        };
        let inspected = of(&info(path).warnings);
        let loaded = cpu().load(path, &context(64, 1)).unwrap().info();
        assert_eq!(of(&loaded.warnings), inspected);
        let out = tempfile::tempdir().unwrap();
        let file = out.path().join("out.gguf");
        let report = convert(path, &file, &ConvertOptions::default()).unwrap();
        assert_eq!(of(&report.notes), inspected);
        if !inspected.is_empty() {
            // The file says no less.
            assert_eq!(of(&info(&file).warnings), inspected);
        }
        inspected
    };
    assert_eq!(told(&directory("llama3-gqa")), "");
    let padded = with_fewer_tokens("llama3-gqa", 500);
    let line = told(padded.path());
    assert_eq!(
        line,
        "the vocabulary has 500 tokens, the embedding 512 rows: 12 ids have no text"
    );
    assert_eq!(check(padded.path()), []);
    let others = with_fewer_tokens("llama3-gqa", 400);
    let line = told(others.path());
    assert!(
        line.contains("400 tokens") && line.contains("512 rows: 112 ids"),
        "{line}"
    );
    let findings = check(others.path());
    assert_eq!(findings.len(), 1, "{findings:?}");
    assert!(findings[0].message.ends_with(&line), "{findings:?}");
}

fn convert(
    source: &Path,
    destination: &Path,
    options: &ConvertOptions,
) -> Result<ConvertReport, Error> {
    let backend = cpu();
    let converter = capability::convert(&backend).unwrap().unwrap();
    converter.convert(source, destination, options, &mut Unwatched)
}

#[test]
fn a_directory_becomes_a_file_of_the_same_texts() {
    let folder = tempfile::tempdir().unwrap();
    let backend = cpu();
    let request = tokens_request(&prompt(7, 25), greedy(24));
    let sharded = sharded();
    for (name, source) in [
        ("sharded", sharded.path().to_owned()),
        ("gemma3", directory("gemma3-text")),
        ("qwen3", directory("qwen3-qknorm")),
    ] {
        let file = folder.path().join(format!("{name}.gguf"));
        let report = convert(&source, &file, &ConvertOptions::default()).unwrap();
        assert_eq!(report.bytes, file.metadata().unwrap().len());
        let [stored, converted] = [&source, &file].map(|path| {
            let model = backend.load(path, &context(256, 1)).unwrap();
            generate(&*model, &request).unwrap().0
        });
        assert_eq!(converted.tokens, stored.tokens, "{name}");
        assert_eq!(converted.text, stored.text, "{name}");
    }
}

#[test]
fn conversions_are_refused_in_one_line_and_leave_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("m.gguf");
    let options = |name: &str, value: serde_json::Value| ConvertOptions {
        quantize: None,
        extra: [(name.to_owned(), value)].into(),
    };
    let quantize = |name: &str| ConvertOptions {
        quantize: Some(name.to_owned()),
        ..ConvertOptions::default()
    };
    let source = directory("llama3-gqa");
    let missing = folder.path().join("missing/m.gguf");
    let mut wrong = vec![
        (file.clone(), options("overwrite", json!(true)), "overwrite"),
        (file.clone(), options("replace", json!("yes")), "yes"),
        (file.clone(), quantize("q8_1x"), "did you mean"),
        (missing, ConvertOptions::default(), "missing"),
        (
            folder.path().to_owned(),
            ConvertOptions::default(),
            "directory",
        ),
    ];
    #[cfg(target_os = "linux")]
    wrong.push((
        PathBuf::from("/dev/full"),
        options("replace", json!(true)),
        "/dev/full",
    ));
    for (destination, options, part) in wrong {
        let error = convert(&source, &destination, &options).unwrap_err();
        assert!(error.message.contains(part), "no {part} in {error}");
        assert!(
            matches!(
                error.code,
                ErrorCode::InvalidRequest | ErrorCode::UnsupportedField
            ),
            "{error:?}"
        );
    }
    let error = convert(&folder.path().join("no"), &file, &quantize("q8_0")).unwrap_err();
    assert_eq!(error.code, ErrorCode::ModelUnusable);

    let backend = cpu();
    let converter = capability::convert(&backend).unwrap().unwrap();
    let mut told = Vec::new();
    let mut stop = |done: u64, total: u64, _: &str| {
        told.push((done, total));
        if done == 5 {
            Control::Stop
        } else {
            Control::Continue
        }
    };
    let error = converter
        .convert(&source, &file, &ConvertOptions::default(), &mut stop)
        .unwrap_err();
    assert_eq!(error.code, ErrorCode::Cancelled);
    assert_eq!((told[0].0, told.last().unwrap().0), (0, 5));
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);

    std::fs::write(&file, "here first").unwrap();
    let error = convert(&source, &file, &ConvertOptions::default()).unwrap_err();
    assert_eq!(error.code, ErrorCode::InvalidRequest);
    assert_eq!(std::fs::read(&file).unwrap(), b"here first");
    assert!(convert(&source, &file, &options("replace", json!(true))).is_ok());
    assert!(Weights::open(&file).is_ok());
}
