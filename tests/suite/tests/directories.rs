//! Directories as model hubs have them, through the program: run, shown, listed, and refused in one line where they are broken.

use backplane_tests::{Ran, command, fixture, run};
use serde_json::Value;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

fn home() -> TempDir {
    tempfile::tempdir().expect("a folder")
}

fn tiny(name: &str) -> PathBuf {
    fixture(&format!("tiny/{name}"))
        .canonicalize()
        .expect("a path")
}

fn text(path: &Path) -> &str {
    path.to_str().expect("a UTF-8 path")
}

/// A copy of a fixture's directory without its GGUF files.
fn copy(name: &str, to: &Path) {
    std::fs::create_dir_all(to).expect("a folder");
    for entry in std::fs::read_dir(tiny(name)).expect("a folder") {
        let path = entry.expect("an entry").path();
        if path.extension().is_none_or(|extension| extension != "gguf") {
            std::fs::copy(&path, to.join(path.file_name().expect("a name"))).expect("a copy");
        }
    }
}

/// Llama 3 cut into four files, with the tokenizer of its twin.
fn sharded(to: &Path) {
    copy("llama3-gqa-sharded", to);
    for name in ["tokenizer.json", "tokenizer_config.json"] {
        std::fs::copy(tiny("llama3-gqa").join(name), to.join(name)).expect("a copy");
    }
}

fn reply(home: &Path, model: &str) -> Value {
    let tokens = "1,50,300,42,7";
    let arguments = [
        "run",
        model,
        "--tokens",
        tokens,
        "--temperature",
        "0",
        "--max-tokens",
        "12",
        "--json",
    ];
    run(home, &arguments).json()
}

#[test]
fn a_directory_an_index_and_a_file_run_as_the_gguf_file_does() {
    let home = home();
    let gguf = reply(home.path(), text(&tiny("llama3-gqa/model-f32.gguf")));
    assert_eq!(gguf["tokens"].as_array().expect("tokens").len(), 12);
    sharded(&home.path().join("Загрузки/モデル é"));
    let slash = format!("{}/", text(&tiny("llama3-gqa")));
    for model in [
        slash.as_str(),
        text(&tiny("llama3-gqa/model.safetensors")),
        "Загрузки/モデル é",
        "~/Загрузки/モデル é",
        "Загрузки/モデル é/model.safetensors.index.json",
        "Загрузки/モデル é/model-00002-of-00004.safetensors",
    ] {
        let found = reply(home.path(), model);
        assert_eq!(found["tokens"], gguf["tokens"], "{model}");
        assert_eq!(found["text"], gguf["text"], "{model}");
    }
}

#[test]
fn show_says_what_a_directory_is() {
    let home = home();
    for (name, parts) in [
        (
            "llama3-ropescaled",
            ["llama", "BF16", "scaled", "full attention"],
        ),
        ("gemma3-text", ["gemma3", "BF16", "1000000", "window"]),
        ("mixtral", ["llama", "BF16", "routing", "experts"]),
        ("deepseek-v3", ["deepseek", "BF16", "routing", "groups"]),
    ] {
        let ran = run(home.path(), &["show", text(&tiny(name))]);
        assert_eq!(ran.code, Some(0), "{}", ran.err);
        let head = ran
            .out
            .split("\nmetadata\n")
            .next()
            .expect("a head")
            .to_lowercase();
        for part in parts.iter().chain(&["safetensors", name, "norm", "cpu"]) {
            assert!(
                head.contains(&part.to_lowercase()),
                "{name}: no {part:?} in {head}"
            );
        }
    }
    let shown = run(home.path(), &["show", text(&tiny("qwen2-moe")), "--json"]).json();
    assert_eq!(shown["format"], "safetensors");
    assert_eq!(shown["unsupported"], Value::Null);
    assert_eq!(shown["backends"], serde_json::json!(["cpu"]));
    let size = tiny("qwen2-moe/model.safetensors")
        .metadata()
        .expect("a file")
        .len();
    assert_eq!(shown["file_bytes"], size);
}

#[test]
fn a_directory_is_listed_as_one_model_and_found_by_its_name() {
    let home = home();
    let models = home.path().join("models");
    sharded(&models.join("family/Tiny-Llama"));
    copy("gemma3-text", &models.join("gemma"));
    std::fs::copy(tiny("llama3-gqa/model-f32.gguf"), models.join("one.gguf")).expect("a copy");
    std::fs::create_dir(models.join("nothing")).expect("a folder");
    copy("llama3-gqa", &models.join("broken"));
    std::fs::remove_file(models.join("broken/config.json")).expect("removed");
    let listed = run(home.path(), &["models", "models", "--json"]).json();
    let rows = listed["models"].as_array().expect("rows");
    let names: Vec<&str> = rows.iter().filter_map(|row| row["name"].as_str()).collect();
    assert_eq!(names, ["one", "broken", "Tiny-Llama", "gemma"], "{listed}");
    for row in rows {
        let whole = row["name"] != "broken";
        assert_eq!(row["problem"] == Value::Null, whole, "{row}");
        if whole && row["name"] != "one" {
            assert_eq!(row["format"], "safetensors", "{row}");
        }
    }
    let problem = rows[1]["problem"].as_str().expect("a problem");
    assert!(problem.contains("config.json"), "{problem}");
    let ran: Ran = command(home.path(), &["tokenize", "tiny-llama", "hello", "--json"])
        .env("BACKPLANE_MODELS", &models)
        .output()
        .expect("it runs")
        .into();
    assert!(!ran.json()["tokens"].as_array().expect("tokens").is_empty());
}

/// Running and showing end with exit code 4 and one line that names the directory and all of `parts`.
fn refused(home: &Path, folder: &str, parts: &[&str]) {
    for arguments in [vec!["run", folder, "hi"], vec!["show", folder]] {
        let ran = run(home, &arguments);
        let verb = arguments[0];
        let told = match (verb, ran.code) {
            // A directory that can be described but not run.
            ("show", Some(0)) => ran.out.lines().find(|line| line.starts_with("unsupported")),
            (_, code) => {
                assert_eq!(code, Some(4), "{verb} {folder}: {} {}", ran.out, ran.err);
                assert!(ran.out.is_empty(), "{}", ran.out);
                let errors = || ran.err.lines().filter(|line| line.starts_with("error"));
                assert_eq!(errors().count(), 1, "{verb} {folder}: {}", ran.err);
                errors().next()
            }
        };
        let told = told.unwrap_or_else(|| panic!("{verb} {folder} says nothing: {}", ran.out));
        for part in parts.iter().chain(&[folder]) {
            assert!(
                told.contains(part),
                "{verb} {folder}: no {part:?} in {told:?}"
            );
        }
    }
}

#[test]
fn broken_directories_get_one_line_and_exit_code_four() {
    let home = home();
    let folder = |name: &str| home.path().join(name);
    let remove = |file: &str| std::fs::remove_file(folder(file)).expect("removed");
    let write = |file: &str, content: &str| std::fs::write(folder(file), content).expect("written");

    sharded(&folder("missing-part"));
    remove("missing-part/model-00003-of-00004.safetensors");
    refused(
        home.path(),
        "missing-part",
        &["model-00003-of-00004.safetensors"],
    );

    copy("llama3-gqa", &folder("truncated"));
    let weights = folder("truncated/model.safetensors");
    let bytes = std::fs::read(&weights).expect("a file");
    std::fs::write(&weights, &bytes[..bytes.len() - 1024]).expect("written");
    refused(home.path(), "truncated", &["model.safetensors"]);

    for (name, file, content, parts) in [
        (
            "no-config",
            "config.json",
            None,
            ["config.json", "no such file"],
        ),
        (
            "no-tokenizer",
            "tokenizer.json",
            None,
            ["tokenizer.json", "missing"],
        ),
        (
            "bad-config",
            "config.json",
            Some("{\"model_type\": "),
            ["config.json", "JSON"],
        ),
        (
            "bert",
            "config.json",
            Some("{\"model_type\": \"bert\"}"),
            ["bert", "llama"],
        ),
        (
            "pointer",
            "model.safetensors",
            Some("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n"),
            ["model.safetensors", "Git LFS"],
        ),
        (
            "page",
            "model.safetensors",
            Some("<!DOCTYPE html><html></html>"),
            ["model.safetensors", "HTML"],
        ),
    ] {
        copy("llama3-gqa", &folder(name));
        let path = format!("{name}/{file}");
        match content {
            None => remove(&path),
            Some(content) => write(&path, content),
        }
        refused(home.path(), name, &parts);
    }
}

#[test]
fn configuration_and_tensors_that_disagree_are_named() {
    let home = home();
    for (name, from, to, part) in [
        (
            "layers",
            "\"num_hidden_layers\": 3",
            "\"num_hidden_layers\": 4",
            "model.layers.3",
        ),
        (
            "fewer",
            "\"num_hidden_layers\": 3",
            "\"num_hidden_layers\": 2",
            "model.layers.2",
        ),
        (
            "heads",
            "\"num_key_value_heads\": 2",
            "\"num_key_value_heads\": 4",
            "k_proj",
        ),
        (
            "none",
            "\"num_attention_heads\": 4",
            "\"num_attention_heads\": 0",
            "num_attention_heads",
        ),
        (
            "huge",
            "\"hidden_size\": 64",
            "\"hidden_size\": 4611686018427387904",
            "hidden_size",
        ),
        (
            "text",
            "\"hidden_size\": 64",
            "\"hidden_size\": \"64\"",
            "hidden_size",
        ),
    ] {
        let folder = home.path().join(name);
        copy("llama3-gqa", &folder);
        let config = folder.join("config.json");
        let before = std::fs::read_to_string(&config).expect("a file");
        let after = before.replace(from, to);
        assert_ne!(before, after, "{name}");
        std::fs::write(&config, after).expect("written");
        refused(home.path(), name, &[part]);
    }
}

#[test]
fn folders_that_hold_no_model_are_described() {
    let home = home();
    std::fs::create_dir(home.path().join("torch")).expect("a folder");
    std::fs::write(home.path().join("torch/pytorch_model.bin"), "PK").expect("written");
    refused(home.path(), "torch", &["PyTorch"]);
    std::fs::create_dir(home.path().join("configured")).expect("a folder");
    std::fs::write(home.path().join("configured/config.json"), "{}").expect("written");
    refused(home.path(), "configured", &["without model files"]);
}
