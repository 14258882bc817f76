//! The verbs over models' and backends' optional capabilities: perplexity, embeddings, attention, conversion, checks.

use backplane_tests::{GEMMA3, Ran, SMOLLM2, command, fixture, real_model, run};
use backplane_weights::Weights;
use serde_json::Value;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use tempfile::TempDir;

fn home() -> TempDir {
    tempfile::tempdir().expect("a folder")
}

fn tiny(path: &str) -> String {
    let path = fixture(&format!("tiny/{path}"));
    let path = path.canonicalize().expect("a path");
    path.to_str().expect("a UTF-8 path").to_owned()
}

fn real(file: &str) -> String {
    real_model(file).to_str().expect("a UTF-8 path").to_owned()
}

const LLAMA: &str = "llama3-gqa/model-f32.gguf";

/// Refused with this exit code and one line that has all of `parts`; nothing on standard output.
fn refused(home: &Path, arguments: &[&str], code: i32, parts: &[&str]) {
    let ran = run(home, arguments);
    assert_eq!(
        ran.code,
        Some(code),
        "{arguments:?}: {} {}",
        ran.out,
        ran.err
    );
    assert!(ran.out.is_empty(), "{arguments:?}: {}", ran.out);
    let error = ran.err.lines().find(|line| line.starts_with("error"));
    let error = error.unwrap_or_else(|| panic!("{arguments:?}: {}", ran.err));
    for part in parts {
        assert!(
            ran.err.contains(part),
            "{arguments:?}: no {part:?} in {error:?}"
        );
    }
    assert!(!ran.err.contains("panicked"), "{}", ran.err);
}

#[test]
fn perplexity_is_the_references() {
    let home = home();
    let file = fixture("perplexity/text.txt")
        .canonicalize()
        .expect("a path");
    let file = file.to_str().expect("UTF-8");
    let golden = std::fs::read_to_string(fixture("perplexity/results.json")).expect("a file");
    let golden: Value = serde_json::from_str(&golden).expect("JSON");
    for (model, name) in [(SMOLLM2, "smollm2-135m"), (GEMMA3, "gemma3-270m")] {
        let expected = &golden["models"][name];
        let arguments = [
            "perplexity",
            &real(model),
            file,
            "--context",
            "256",
            "--json",
        ];
        let found = run(home.path(), &arguments).json();
        assert_eq!(found["tokens"], expected["n_tokens"], "{found}");
        assert_eq!(found["chunks"], expected["chunks"], "{found}");
        assert_eq!(found["scored"], 254, "{found}");
        let of = |value: &Value| value.as_f64().expect("a number");
        let (exact, perplexity) = (of(&expected["dequant_f32"]), of(&found["perplexity"]));
        assert!(
            (perplexity / exact - 1.0).abs() < 0.01,
            "{name}: {perplexity}, expected {exact}"
        );
        // The reference's own spread, of weights and activations rounded otherwise.
        let (error, theirs) = (
            of(&found["standard_error"]),
            of(&expected["llama_perplexity"]["stderr"]),
        );
        assert!(
            (error / theirs - 1.0).abs() < 0.1,
            "{name}: {error}, expected about {theirs}"
        );
    }
    let plain = run(
        home.path(),
        &["perplexity", &real(SMOLLM2), file, "--context", "256"],
    );
    assert!(
        plain.out.contains("9.3") && plain.out.contains("723"),
        "{}",
        plain.out
    );
    assert!(
        plain.err.is_empty(),
        "no bar without a terminal: {}",
        plain.err
    );
}

#[test]
fn texts_that_can_not_be_scored_are_refused() {
    let home = home();
    let write = |name: &str, content: &[u8]| {
        std::fs::write(home.path().join(name), content).expect("a file");
    };
    write("empty.txt", b"");
    write("short.txt", b"a few words");
    write("binary", b"text\xff\xfe\0");
    std::fs::create_dir(home.path().join("folder")).expect("a folder");
    let model = tiny(LLAMA);
    for (file, code, parts) in [
        ("empty.txt", 2, ["empty.txt", "empty"]),
        ("short.txt", 2, ["short.txt", "512"]),
        ("binary", 2, ["binary", "byte 4"]),
        ("nowhere.txt", 2, ["nowhere.txt", "no such file"]),
        ("folder", 2, ["folder", "directory"]),
    ] {
        refused(home.path(), &["perplexity", &model, file], code, &parts);
    }
    let short = ["perplexity", &model, "short.txt", "--context", "3"];
    refused(home.path(), &short, 2, &["--context 3", "at least 4"]);
    let long = ["perplexity", &model, "short.txt", "--context", "99999"];
    refused(home.path(), &long, 2, &["99999", "1 to"]);
    // The smallest pieces there are.
    write(
        "some.txt",
        "one two three four five six seven eight".as_bytes(),
    );
    let arguments = ["perplexity", &model, "some.txt", "--context", "4", "--json"];
    let found = run(home.path(), &arguments).json();
    assert_eq!(
        found["scored"], found["chunks"],
        "one token of each piece: {found}"
    );
}

fn vectors(ran: &Ran) -> Vec<Vec<f64>> {
    let results = ran.json()["results"].clone();
    let numbers = |value: &Value| value.as_f64().expect("a number");
    let of = |result: &Value| {
        result["embedding"]
            .as_array()
            .expect("a vector")
            .iter()
            .map(numbers)
            .collect()
    };
    results
        .as_array()
        .expect("results")
        .iter()
        .map(of)
        .collect()
}

#[test]
fn embeddings_are_vectors_of_length_one() {
    let home = home();
    let model = real(SMOLLM2);
    let cat = "A cat sat on the mat.";
    let arguments = [
        "embed",
        &model,
        cat,
        "Quarterly revenue fell by 3 %.",
        cat,
        "--json",
    ];
    let ran = run(home.path(), &arguments);
    let all = ran.json();
    assert_eq!(
        (&all["pooling"], &all["normalized"]),
        (&"mean".into(), &true.into())
    );
    assert_eq!(all["dimensions"], 576);
    assert_eq!(all["results"][0]["prompt_tokens"], 7);
    let vectors_ = vectors(&ran);
    let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(x, y)| x * y).sum::<f64>();
    for vector in &vectors_ {
        assert!((dot(vector, vector) - 1.0).abs() < 1e-4);
    }
    assert_eq!(vectors_[0], vectors_[2], "the same text, the same vector");
    assert!(dot(&vectors_[0], &vectors_[1]) < 0.999);
    let mut seen = vec![vectors_[0].clone()];
    for pooling in ["last", "cls"] {
        let arguments = [
            "embed",
            &model,
            cat,
            "--pooling",
            pooling,
            "--no-normalize",
            "--json",
        ];
        let vector = vectors(&run(home.path(), &arguments)).remove(0);
        assert!(
            (dot(&vector, &vector) - 1.0).abs() > 1e-3,
            "as long as it is"
        );
        assert!(!seen.contains(&vector));
        seen.push(vector);
    }
    // A pipe, and lines of numbers.
    let mut child = command(home.path(), &["embed", &model])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("it starts");
    let mut stdin = child.stdin.take().expect("stdin");
    stdin
        .write_all(format!("{cat}\n").as_bytes())
        .expect("it reads");
    drop(stdin);
    let ran: Ran = child.wait_with_output().expect("it ends").into();
    let numbers: Vec<f64> = ran
        .out
        .split_whitespace()
        .map(|x| x.parse().expect("a number"))
        .collect();
    assert_eq!(
        (ran.out.lines().count(), numbers),
        (1, vectors_[0].clone()),
        "{}",
        ran.err
    );
}

#[test]
fn texts_that_can_not_be_embedded_are_refused_each_on_its_own() {
    let home = home();
    let model = tiny(LLAMA);
    refused(
        home.path(),
        &["embed", &model, "x", "--pooling", "max"],
        2,
        &["max", "mean, last, cls"],
    );
    let long = "word ".repeat(300);
    let ran = run(
        home.path(),
        &["embed", &model, "--context", "64", "short", &long, "--json"],
    );
    assert_eq!(ran.code, Some(2), "{}", ran.err);
    let answer: Value = serde_json::from_str(&ran.out).expect("JSON");
    assert!(answer["results"][0]["embedding"].is_array(), "{answer}");
    let error = answer["results"][1]["error"].as_str().expect("an error");
    assert!(error.contains("64") && ran.err.contains("64"), "{error}");
}

#[test]
fn attention_is_written_as_safetensors() {
    let home = home();
    let out = home.path().join("states.safetensors");
    let model = tiny("llama3-gqa");
    let arguments = [
        "inspect-attention",
        &model,
        "--tokens",
        "1,2,3,4,5",
        "--out",
        "states.safetensors",
        "--json",
    ];
    let told = run(home.path(), &arguments).json();
    assert_eq!(told["tokens"], serde_json::json!([1, 2, 3, 4, 5]));
    assert_eq!(told["layers"].as_array().map(Vec::len), Some(3), "{told}");
    let bytes = std::fs::read(&out).expect("a file");
    let file = safetensors::SafeTensors::deserialize(&bytes).expect("safetensors");
    assert_eq!(file.names().len(), 7, "{:?}", file.names());
    let of = |name: &str| file.tensor(name).expect(name);
    assert_eq!(of("layers.2.queries").shape(), [4, 5, 16]);
    assert_eq!(of("layers.2.keys").shape(), [2, 5, 16]);
    assert_eq!(
        (of("tokens").dtype(), of("tokens").shape()),
        (safetensors::Dtype::I64, &[5][..])
    );
    assert_eq!(of("tokens").data()[8..16], 2_i64.to_le_bytes());
    let (_, header) = safetensors::SafeTensors::read_metadata(&bytes).expect("a header");
    let metadata = header.metadata().as_ref().expect("metadata");
    assert_eq!(metadata["architecture"], "llama");

    // Once more: not over the file, unless asked to; the same numbers.
    refused(
        home.path(),
        &arguments[..6],
        2,
        &["states.safetensors", "--force"],
    );
    assert_eq!(std::fs::read(&out).expect("a file"), bytes);
    let mut again = arguments.to_vec();
    again.extend(["--force", "--layers", "2,0"]);
    assert_eq!(run(home.path(), &again).code, Some(0));
    let fewer = std::fs::read(&out).expect("a file");
    let fewer = safetensors::SafeTensors::deserialize(&fewer).expect("safetensors");
    assert_eq!(fewer.names().len(), 5);
    assert_eq!(
        fewer.tensor("layers.2.keys").expect("keys").data(),
        of("layers.2.keys").data()
    );
    let left: Vec<_> = std::fs::read_dir(home.path())
        .expect("a folder")
        .flatten()
        .collect();
    assert_eq!(
        left.iter()
            .filter(|entry| entry.file_name().to_string_lossy().contains("partial"))
            .count(),
        0
    );
}

#[test]
fn the_model_itself_is_never_replaced() {
    let home = home();
    std::fs::copy(tiny(LLAMA), home.path().join("m.gguf")).expect("a copy");
    std::fs::create_dir(home.path().join("hub")).expect("a folder");
    let source = PathBuf::from(tiny("qwen3-qknorm"));
    for name in ["config.json", "model.safetensors", "tokenizer.json"] {
        let to = home.path().join("hub").join(name);
        std::fs::copy(source.join(name), to).expect("a copy");
    }
    for (model, file) in [
        ("m.gguf", "m.gguf"),
        ("hub", "hub/config.json"),
        ("hub", "hub/model.safetensors"),
    ] {
        let before = std::fs::read(home.path().join(file)).expect("a file");
        let inspect = ["inspect-attention", model, "--tokens", "1,2"];
        let inspect = [&inspect[..], &["--out", file, "--force"]].concat();
        refused(home.path(), &inspect, 2, &[file, "the model itself"]);
        let convert = ["convert", model, file, "--force"];
        refused(home.path(), &convert, 2, &[file, "the model itself"]);
        let after = std::fs::read(home.path().join(file)).expect("a file");
        assert_eq!(after, before, "{file}");
    }
}

#[test]
fn places_where_nothing_can_be_written_are_refused_before_anything_is_computed() {
    let home = home();
    let model = tiny(LLAMA);
    let inspect = |out: &str, code: i32, parts: &[&str]| {
        let arguments = ["inspect-attention", &model, "--tokens", "1,2", "--out", out];
        refused(home.path(), &arguments, code, parts);
    };
    inspect(
        "missing/file.safetensors",
        2,
        &["missing", "no such folder"],
    );
    inspect(".", 2, &["a folder"]);
    #[cfg(target_os = "linux")]
    inspect("/dev/full", 2, &["/dev/full", "no space"]);
    let layers = [
        "inspect-attention",
        &model,
        "--tokens",
        "1,2",
        "--out",
        "x.safetensors",
        "--layers",
        "0,9",
    ];
    refused(home.path(), &layers, 2, &["9", "3"]);
    assert!(!home.path().join("x.safetensors").exists());
    let convert = |destination: &str, code: i32, parts: &[&str]| {
        refused(home.path(), &["convert", &model, destination], code, parts);
    };
    convert("missing/m.gguf", 2, &["missing"]);
    std::fs::create_dir(home.path().join("folder")).expect("a folder");
    convert("folder", 2, &["a directory"]);
    convert(".", 2, &["no name of a file"]);
    #[cfg(target_os = "linux")]
    convert("/dev/full", 2, &["/dev/full"]);
    refused(
        home.path(),
        &["convert", "nowhere", "m.gguf"],
        4,
        &["nowhere"],
    );
    let quantize = ["convert", &model, "m.gguf", "--quantize", "q8_1x"];
    refused(home.path(), &quantize, 2, &["q8_1x", "did you mean"]);
    assert!(!home.path().join("m.gguf").exists());
}

#[test]
fn a_directory_is_converted_and_runs() {
    let home = home();
    let arguments = ["convert", &tiny("qwen3-qknorm"), "m.gguf", "--json"];
    let told = run(home.path(), &arguments).json();
    let file = home.path().join("m.gguf");
    assert_eq!(told["bytes"], file.metadata().expect("a file").len());
    assert!(
        told["tensors"].as_u64().is_some_and(|count| count > 30),
        "{told}"
    );
    let reply = |model: &str| {
        let arguments = [
            "run",
            model,
            "--tokens",
            "5,6,7",
            "--temperature",
            "0",
            "--max-tokens",
            "8",
            "--json",
        ];
        run(home.path(), &arguments).json()["tokens"].clone()
    };
    assert_eq!(reply("m.gguf"), reply(&tiny("qwen3-qknorm")));
    refused(
        home.path(),
        &["convert", &tiny("qwen3-qknorm"), "m.gguf"],
        2,
        &["m.gguf", "--force"],
    );
    let quantized = [
        "convert",
        &real(SMOLLM2),
        "m.gguf",
        "--quantize",
        "q8_0",
        "--force",
    ];
    let ran = run(home.path(), &quantized);
    assert_eq!(ran.code, Some(0), "{}", ran.err);
    let shown = run(home.path(), &["show", "m.gguf", "--json"]).json();
    assert_eq!(shown["quantization"], "Q8_0", "{shown}");
}

#[cfg(unix)]
#[test]
fn a_conversion_that_is_interrupted_leaves_nothing() {
    let home = home();
    // Slow enough to be caught in the middle.
    let arguments = ["convert", &real(GEMMA3), "m.gguf", "--quantize", "q6_k"];
    let child = command(home.path(), &arguments)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("it starts");
    let files = || std::fs::read_dir(home.path()).expect("a folder").count();
    while files() == 0 {
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    let kill = std::process::Command::new("kill")
        .args(["-INT", &child.id().to_string()])
        .status()
        .expect("kill");
    assert!(kill.success());
    let ran: Ran = child.wait_with_output().expect("it ends").into();
    assert_eq!(ran.code, Some(130), "{}", ran.err);
    assert_eq!(files(), 0, "nothing is left");
}

/// A copy of a small model in which one value of a tensor is no number.
fn broken(folder: &Path) -> PathBuf {
    let source = fixture(&format!("tiny/{LLAMA}"));
    let mut bytes = std::fs::read(&source).expect("a file");
    let weights = Weights::open(&source).expect("a model");
    let tensor = weights.require("blk.1.ffn_up.weight").expect("a tensor");
    let at = bytes
        .windows(tensor.data.len())
        .position(|window| window == tensor.data)
        .expect("its bytes");
    bytes[at + 400..at + 404].copy_from_slice(&f32::NAN.to_le_bytes());
    let path = folder.join("nan.gguf");
    std::fs::write(&path, bytes).expect("written");
    path
}

#[test]
fn numbers_that_are_none_are_found_and_named() {
    let home = home();
    broken(home.path());
    let ran = run(home.path(), &["show", "nan.gguf", "--check"]);
    assert_eq!(ran.code, Some(4), "{}", ran.err);
    let lines: Vec<&str> = ran.out.lines().collect();
    assert_eq!(lines.len(), 1, "{}", ran.out);
    for part in ["blk.1.ffn_up.weight", "1 NaN", "[1, 36]"] {
        assert!(lines[0].contains(part), "no {part:?} in {}", ran.out);
    }
    assert!(ran.err.contains("nan.gguf"), "{}", ran.err);
    let ran = run(home.path(), &["show", "nan.gguf", "--check", "--json"]);
    let told: Value = serde_json::from_str(&ran.out).expect("JSON");
    assert_eq!(
        told["findings"][0]["tensor"], "blk.1.ffn_up.weight",
        "{told}"
    );

    // What it does elsewhere says where to look.
    for arguments in [
        vec!["run", "nan.gguf", "--tokens", "1,2", "--max-tokens", "2"],
        vec!["embed", "nan.gguf", "abc"],
        vec!["classify", "nan.gguf", "abc"],
    ] {
        let ran = run(home.path(), &arguments);
        assert_eq!(ran.code, Some(5), "{arguments:?}: {}", ran.err);
        assert!(
            ran.err.contains("nan.gguf") && ran.err.contains("show --check"),
            "{arguments:?}: {}",
            ran.err
        );
    }
    for (model, name) in [
        (real(SMOLLM2), "SmolLM2"),
        (tiny("gemma3-text"), "gemma3-text"),
    ] {
        let ran = run(home.path(), &["show", &model, "--check"]);
        assert_eq!(ran.code, Some(0), "{}", ran.err);
        assert!(
            ran.out.contains(name) && ran.out.contains("nothing is wrong"),
            "{}",
            ran.out
        );
    }
}

#[test]
fn cache_types_and_quantising_are_options_of_a_load() {
    let home = home();
    let model = tiny("llama-256-quant");
    let mut replies = Vec::new();
    for options in [
        vec![],
        vec!["--cache-type", "f16"],
        vec!["--cache-type", "q8_0"],
        vec!["--quantize", "q8_0"],
    ] {
        let mut arguments = vec![
            "run",
            &model,
            "--tokens",
            "1,2,3",
            "--temperature",
            "0",
            "--max-tokens",
            "4",
            "--json",
        ];
        arguments.extend(options);
        replies.push(run(home.path(), &arguments).json());
    }
    assert!(
        replies
            .iter()
            .all(|reply| reply["tokens"].as_array().map(Vec::len) == Some(4))
    );
    for (option, value, parts) in [
        ("--cache-type", "q4_0", ["q4_0", "f32, f16, q8_0"]),
        ("--quantize", "q4_kk", ["q4_kk", "did you mean"]),
    ] {
        let arguments = ["run", &model, "--tokens", "1,2", option, value];
        refused(home.path(), &arguments, 2, &parts);
    }
    let narrow = [
        "run",
        &tiny("llama3-gqa"),
        "--tokens",
        "1,2",
        "--cache-type",
        "q8_0",
    ];
    let ran = run(home.path(), &narrow);
    assert!(
        ran.code.is_some_and(|code| code == 2 || code == 4),
        "{}",
        ran.err
    );
    assert!(
        ran.err.contains("q8_0") && ran.err.contains("32"),
        "{}",
        ran.err
    );
}

#[test]
fn capabilities_are_there_in_a_process_of_its_own() {
    let home = home();
    let dist = backplane_tests::host();
    let modules = dist.parent().expect("a folder").join("plugins");
    let manifest = format!(
        "directories = [{:?}]\n[plugin.cpu]\nisolation = \"process\"\n[plugin.cpu.options]\ncache_type = \"f16\"\n",
        modules.to_str().expect("UTF-8")
    );
    std::fs::write(home.path().join("plugins.toml"), manifest).expect("a manifest");
    let model = tiny(LLAMA);
    let with = |arguments: &[&str]| {
        let mut all = vec!["--manifest", "plugins.toml"];
        all.extend(arguments);
        run(home.path(), &all)
    };
    let [apart, here] = [
        with(&["embed", &model, "some words", "--json"]),
        run(
            home.path(),
            &[
                "embed",
                &model,
                "some words",
                "--json",
                "--cache-type",
                "f16",
            ],
        ),
    ];
    assert_eq!(vectors(&apart), vectors(&here));
    assert_eq!(with(&["show", &model, "--check"]).code, Some(0));
    assert_eq!(with(&["convert", &model, "m.gguf"]).code, Some(0));
    assert!(home.path().join("m.gguf").exists());
}
