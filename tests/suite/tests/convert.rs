//! `backplane convert` against a real llama-server: files that we write are read by what we didn't write, and mean the same.
#![cfg(target_os = "linux")]

use backplane_golden::{Runner, Sequence};
use backplane_program::Interpreter;
use backplane_tests::{SMOLLM2, fixture, real_model, root, run};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// A real llama-server with a model; ended when it goes out of scope.
struct Server {
    child: Child,
    port: u16,
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Server {
    fn start(model: &Path, context: u64) -> Self {
        let program = root().join("cache/venv/bin/llama-server-vulkan");
        let shown = program.display();
        assert!(program.is_file(), "{shown}: `cargo verify` installs it");
        let port = TcpListener::bind(("127.0.0.1", 0))
            .and_then(|listener| listener.local_addr())
            .expect("a free port")
            .port();
        let log = model.with_extension("log");
        let output = std::fs::File::create(&log).expect("a log");
        let mut command = Command::new(&program);
        command
            .arg("--model")
            .arg(model)
            .args(["--host", "127.0.0.1"]);
        command.args([
            "--port",
            &port.to_string(),
            "--ctx-size",
            &context.to_string(),
        ]);
        // As the references: exact keys and values, plain attention; one sequence at a time.
        command.args([
            "--cache-type-k",
            "f32",
            "--cache-type-v",
            "f32",
            "--flash-attn",
            "off",
        ]);
        command.args([
            "--parallel",
            "1",
            "--no-warmup",
            "--n-gpu-layers",
            "0",
            "--threads",
            "1",
        ]);
        command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(output);
        let mut server = Self {
            child: command.spawn().expect("llama-server starts"),
            port,
        };
        let start = Instant::now();
        loop {
            if let Some((200, _)) = server.request("GET", "/health", "") {
                return server;
            }
            let ended = server.child.try_wait().expect("a child").is_some();
            if ended || start.elapsed() > Duration::from_secs(120) {
                let log = std::fs::read_to_string(&log).unwrap_or_default();
                panic!("{}: llama-server does not load it:\n{log}", model.display());
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Status and body; `None` where there is no whole reply.
    fn request(&self, method: &str, path: &str, body: &str) -> Option<(u16, Vec<u8>)> {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).ok()?;
        stream
            .set_read_timeout(Some(Duration::from_secs(60)))
            .ok()?;
        let length = body.len();
        write!(
            stream,
            "{method} {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\nContent-Type: application/json\r\n\
             Content-Length: {length}\r\n\r\n{body}"
        )
        .ok()?;
        let mut reply = Vec::new();
        stream.read_to_end(&mut reply).ok()?;
        let head = reply.windows(4).position(|bytes| bytes == b"\r\n\r\n")?;
        let status = std::str::from_utf8(reply.get(9..12)?).ok()?.parse().ok()?;
        Some((status, reply.split_off(head + 4)))
    }

    /// The likeliest token after these, and the natural logarithms of the likeliest 20's probabilities, where the server gives
    /// them. `None` where it gives no reply because it can't make text of the token: these models have random weights, and their
    /// vocabularies bytes that are no text.
    fn next(&self, tokens: &[u64]) -> Option<(u64, Vec<(u64, f64)>)> {
        let body = json!({
            "prompt": tokens, "n_predict": 1, "temperature": 0, "n_probs": 20, "return_tokens": true,
        });
        let reply = self.request("POST", "/completion", &body.to_string());
        let (status, body) = reply.expect("a reply");
        let text = String::from_utf8_lossy(&body).into_owned();
        if status == 500 && text.contains("does not match the expected Content-only format") {
            return None;
        }
        assert_eq!(status, 200, "{text}");
        let reply: Value = serde_json::from_str(&text).expect("JSON");
        let probabilities = reply["completion_probabilities"][0]["top_logprobs"].as_array();
        let probabilities = probabilities.into_iter().flatten().map(|one| {
            let number = one["logprob"].as_f64().expect("a number");
            (one["id"].as_u64().expect("an id"), number)
        });
        let next = reply["tokens"][0].as_u64().expect("a token");
        Some((next, probabilities.collect()))
    }
}

/// `convert SRC DST --quantize TYPE`; the file, and the report.
fn convert(home: &TempDir, source: &Path, ty: Option<&str>) -> (PathBuf, Value) {
    let path = home.path().join(format!("{}.gguf", ty.unwrap_or("same")));
    let mut arguments = vec!["convert", text(source), text(&path), "--json"];
    if let Some(ty) = ty {
        arguments.extend(["--quantize", ty]);
    }
    let report = run(home.path(), &arguments).json();
    let length = std::fs::metadata(&path).expect("the file").len();
    assert_eq!(report["bytes"], length);
    (path, report)
}

fn text(path: &Path) -> &str {
    path.to_str().expect("a UTF-8 path")
}

fn home() -> TempDir {
    tempfile::tempdir().expect("a folder")
}

fn folder(model: &str) -> PathBuf {
    fixture(&format!("tiny/{model}"))
}

fn golden(model: &str) -> Vec<Value> {
    let path = fixture(&format!("tiny/{model}/golden.json"));
    let text = std::fs::read_to_string(path).expect("a reference");
    let golden: Value = serde_json::from_str(&text).expect("JSON");
    golden["sequences"].as_array().expect("sequences").clone()
}

fn ids(value: &Value) -> Vec<u64> {
    let ids = value.as_array().expect("ids").iter();
    ids.map(|id| id.as_u64().expect("an id")).collect()
}

fn numbers(value: &Value) -> Vec<f64> {
    let numbers = value.as_array().expect("numbers").iter();
    numbers
        .map(|number| number.as_f64().expect("a number"))
        .collect()
}

/// A directory, converted without loss, in a real server: its tokens and probabilities are those of transformers on the directory.
fn server_agrees(model: &str, tolerance: f64) {
    let home = home();
    let (file, _) = convert(&home, &folder(model), Some("f32"));
    let mut by_context: BTreeMap<u64, Vec<Value>> = BTreeMap::new();
    for sequence in golden(model) {
        let context = sequence["n_ctx"].as_u64().expect("n_ctx");
        by_context.entry(context).or_default().push(sequence);
    }
    let (mut steps, mut compared, mut probabilities) = (0, 0, 0);
    for (context, sequences) in by_context {
        let server = Server::start(&file, context);
        for sequence in sequences {
            let mut tokens = ids(&sequence["tokens"]);
            let margins = numbers(&sequence["greedy_margins"]);
            let logits = numbers(&sequence["last_logits"]);
            for (step, expected) in ids(&sequence["greedy_ids"]).into_iter().enumerate() {
                steps += 1;
                if let Some((next, found)) = server.next(&tokens) {
                    compared += 1;
                    let clear = margins[step] > 2.0 * tolerance;
                    assert!(
                        next == expected || !clear,
                        "{model}: {next}, not {expected} after {} tokens",
                        tokens.len()
                    );
                    if step == 0 {
                        probabilities += found.len();
                        let off = furthest(&found, &logits);
                        assert!(off <= tolerance, "{model}: probabilities differ by {off}");
                    }
                }
                tokens.push(expected);
            }
        }
    }
    assert!(
        compared * 2 > steps,
        "{model}: only {compared} of {steps} steps are compared"
    );
    println!("{model}: {compared} of {steps} steps, {probabilities} probabilities");
}

/// How far logarithms of probabilities are from those of these logits, at most.
fn furthest(found: &[(u64, f64)], logits: &[f64]) -> f64 {
    let largest = logits.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let total = largest
        + logits
            .iter()
            .map(|logit| (logit - largest).exp())
            .sum::<f64>()
            .ln();
    let off = |(id, found): &(u64, f64)| (found - (logits[*id as usize] - total)).abs();
    found.iter().map(off).fold(0.0, f64::max)
}

macro_rules! agreements {
    ($($name:ident = $model:literal within $tolerance:literal;)*) => {$(
        #[test]
        fn $name() {
            server_agrees($model, $tolerance);
        }
    )*};
}

// The tolerances of the references.
agreements! {
    a_server_agrees_on_llama3 = "llama3-gqa" within 1e-3;
    a_server_agrees_on_llama3_with_scaled_rotation = "llama3-ropescaled" within 1e-3;
    a_server_agrees_on_mistral = "mistral-full" within 1e-3;
    a_server_agrees_on_qwen25 = "qwen2.5-bias" within 1e-3;
    a_server_agrees_on_qwen25_with_yarn = "qwen2.5-yarn" within 1e-3;
    a_server_agrees_on_qwen3 = "qwen3-qknorm" within 1e-3;
    a_server_agrees_on_phi3 = "phi3-full-rotary" within 1e-3;
    a_server_agrees_on_phi4_mini = "phi4mini-partial-longrope" within 1e-3;
    a_server_agrees_on_gemma3 = "gemma3-text" within 2e-2;
    a_server_agrees_on_gemma3_with_linear_scaling = "gemma3-text-linear8" within 2e-2;
    a_server_agrees_on_deepseek_v3 = "deepseek-v3" within 1e-3;
    a_server_agrees_on_deepseek_v3_with_yarn = "deepseek-v3-yarn" within 1e-3;
    a_server_agrees_on_mixtral = "mixtral" within 1e-3;
    a_server_agrees_on_qwen2_moe = "qwen2-moe" within 1e-3;
    a_server_agrees_on_qwen3_moe = "qwen3-moe" within 1e-3;
}

/// How far llama.cpp's integer products may move a logit against another, by the references' figures for this model.
const CLEAR: f32 = 3.0;

/// The same file on the reference interpreter and in a server: the likeliest token is the same where it is clear which that is.
fn engines_agree(ty: &str, file_type: u32) {
    let home = home();
    let (file, report) = convert(&home, &folder("llama-256-quant"), Some(ty));
    let notes = notes_of(&report);
    let of_types = notes
        .iter()
        .filter(|note| note.contains("blocks") || note.contains("quantised"));
    assert_eq!(of_types.count(), 0, "{notes:?}");
    let weights = backplane_weights::Weights::open(&file).expect("our own file");
    let meta = weights.metadata();
    assert_eq!(
        meta.u32("general.file_type").expect("a number"),
        Some(file_type)
    );
    let server = Server::start(&file, 256);
    let mut runner = Runner::new(&Interpreter, &file, 256, 64);
    let vocab = runner.vocab();
    let (mut clear, mut agreed, mut compared) = (0, 0, 0);
    for sequence in golden("llama-256-quant") {
        let mut tokens = ids(&sequence["tokens"]);
        let first = tokens.len();
        tokens.extend(ids(&sequence["greedy_ids"]));
        let narrow: Vec<u32> = tokens.iter().map(|id| *id as u32).collect();
        let mut state = Sequence::default();
        let logits = runner.feed(&mut state, &narrow, 64, first - 1);
        runner.release(state);
        for (step, logits) in logits.chunks_exact(vocab).enumerate() {
            let Some((next, _)) = server.next(&tokens[..first + step]) else {
                continue;
            };
            let mut order: Vec<usize> = (0..vocab).collect();
            order.sort_by(|a, b| logits[*b].total_cmp(&logits[*a]));
            let same = next == order[0] as u64;
            compared += 1;
            agreed += usize::from(same);
            if logits[order[0]] - logits[order[1]] > CLEAR {
                clear += 1;
                assert!(
                    same,
                    "{ty}: {next}, not {} after {} tokens",
                    order[0],
                    first + step
                );
            }
        }
    }
    println!("{ty}: {agreed} of {compared} agree, {clear} of them clear");
    assert!(compared > 40 && clear > 5, "{ty}: {clear} of {compared}");
    assert!(
        agreed * 100 >= compared * 84,
        "{ty}: {agreed} of {compared} agree"
    );

    let arguments = [
        "run",
        text(&file),
        "--raw",
        "--json",
        "--max-tokens",
        "4",
        "a",
    ];
    let reply = run(home.path(), &arguments).json();
    assert!(
        reply["usage"]["completion_tokens"]
            .as_u64()
            .is_some_and(|count| count > 0)
    );
}

#[test]
fn both_engines_run_f16() {
    engines_agree("f16", 1);
}

#[test]
fn both_engines_run_q8_0() {
    engines_agree("q8_0", 7);
}

#[test]
fn both_engines_run_q4_0() {
    engines_agree("q4_0", 2);
}

#[test]
fn both_engines_run_q4_k() {
    engines_agree("Q4_K", 14);
}

#[test]
fn both_engines_run_q6_k() {
    engines_agree("q6_k", 18);
}

/// A real model in another type: the server, and our own engine, go on as both did before.
#[test]
fn a_real_model_stays_what_it_was() {
    let reference = fixture("real/smollm2-135m-greedy.json");
    let reference: Value =
        serde_json::from_str(&std::fs::read_to_string(reference).expect("a reference"))
            .expect("JSON");
    let home = home();
    let (file, report) = convert(&home, &real_model(SMOLLM2), Some("q8_0"));
    let notes = notes_of(&report);
    assert_eq!(
        notes[0],
        "already quantised (210 in Q4_1): the loss of both quantisations adds up"
    );
    let larger = "the file is larger than what it was made of: 138.1 MiB after 93.8 MiB";
    assert_eq!(notes[1..], [larger]);
    let server = Server::start(&file, 512);
    let (mut same, mut compared) = (0, 0);
    for prompt in &reference["cases"].as_array().expect("cases")[..4] {
        let mut tokens = ids(&prompt["tokens"]);
        for expected in ids(&prompt["dequant_f32"]["greedy_ids"])
            .into_iter()
            .take(16)
        {
            if let Some((next, _)) = server.next(&tokens) {
                compared += 1;
                same += usize::from(next == expected);
            }
            tokens.push(expected);
        }
    }
    println!("{same} of {compared}");
    assert!(
        compared >= 48 && same * 64 >= compared * 59,
        "{same} of {compared}"
    );
}

fn notes_of(report: &Value) -> Vec<String> {
    let notes = report["notes"].as_array().expect("notes").iter();
    notes
        .map(|note| note.as_str().expect("text").to_owned())
        .collect()
}

#[test]
fn what_is_there_is_not_overwritten_unasked() {
    let home = home();
    let source = fixture("tiny/llama3-gqa/model-f16.gguf");
    let there = home.path().join("there.gguf");
    std::fs::write(&there, "precious").expect("a file");
    let refused = |arguments: &[&str], code: i32, part: &str| {
        let ran = run(home.path(), &[&["convert"], arguments].concat());
        assert_eq!(ran.code, Some(code), "{}", ran.err);
        assert!(ran.err.contains(part) && ran.out.is_empty(), "{}", ran.err);
        assert_eq!(std::fs::read(&there).expect("it is there"), b"precious");
        let files = std::fs::read_dir(home.path())
            .expect("a folder")
            .filter(|entry| {
                let name = entry.as_ref().expect("an entry").file_name();
                name.to_string_lossy().contains("gguf")
            });
        assert_eq!(files.count(), 1, "{}", ran.err);
    };
    let (source_text, there_text) = (text(&source), text(&there));
    refused(&[source_text, there_text], 2, "--force");
    refused(
        &[source_text, "new.gguf", "--quantize", "q4_k_m"],
        2,
        "like Q4_K: mixtures of types are not made",
    );
    refused(
        &[source_text, "new.gguf", "--quantize", "iq1_s"],
        2,
        "importance matrix",
    );
    refused(
        &[source_text, "new.gguf", "--quantize", "q9_0"],
        2,
        "did you mean Q8_0?",
    );
    refused(
        &[source_text, "missing/new.gguf"],
        2,
        "missing: found nothing, expected a folder",
    );

    let copy = home.path().join("copy");
    std::fs::copy(&source, &copy).expect("copied");
    let before = std::fs::read(&copy).expect("read");
    let ran = run(
        home.path(),
        &["convert", text(&copy), text(&copy), "--force"],
    );
    assert_eq!(ran.code, Some(2), "{}", ran.err);
    assert!(
        ran.err.contains("a file of the model itself"),
        "{}",
        ran.err
    );
    assert_eq!(std::fs::read(&copy).expect("read"), before);

    let ran = run(
        home.path(),
        &[
            "convert",
            source_text,
            there_text,
            "--force",
            "--quantize",
            "q8_0",
        ],
    );
    assert_eq!(ran.code, Some(0), "{}", ran.err);
    let weights = backplane_weights::Weights::open(&there).expect("replaced");
    assert_eq!(
        weights
            .require("token_embd.weight")
            .expect("a tensor")
            .info
            .ty
            .name(),
        "Q8_0"
    );
}
