//! Figures that have a limit, each measured as a ratio within this run: the machine's speed cancels out.
//!
//! A ratio over its limit is measured again, up to five times: the best of the tries counts, since noise only ever
//! makes a program slower.

use crate::steps::{self, GEMMA3, SMOLLM2};
use anyhow::{Context, Result, bail};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

/// Time to first token of `run`, at most this many times llama-server's.
const FIRST_TOKEN_LIMIT: f64 = 1.5;
/// Peak memory of `run` beyond the size of the model file, in MiB.
const MEMORY_LIMIT_MIB: f64 = 150.0;
/// Decode reads at least this share of the bandwidth measured over as many bytes as a token reads.
const BANDWIDTH_LIMIT: f64 = 0.35;
/// Nanoseconds of one token callback across the contract.
const CALLBACK_LIMIT_NS: f64 = 1000.0;
const TRIES: usize = 5;

struct Outcome {
    name: String,
    found: String,
    limit: String,
    passed: bool,
}

/// Measures everything and prints one table.
pub(crate) fn run() -> Result<ExitCode> {
    let host = steps::stage()?.host;
    let smollm2 = steps::model(SMOLLM2)?;
    let gemma3 = steps::model(GEMMA3)?;
    let server = steps::llama_server()?;

    let outcomes = [
        first_token(&host, &server, &smollm2)?,
        memory(&host, &smollm2)?,
        memory(&host, &gemma3)?,
        bandwidth(&host, &smollm2)?,
        bandwidth(&host, &gemma3)?,
        callback()?,
    ];
    println!("{:<58} {:>28} {:>12}", "limit", "found", "limit");
    for outcome in &outcomes {
        let mark = if outcome.passed { "" } else { "  FAILED" };
        println!(
            "{:<58} {:>28} {:>12}{mark}",
            outcome.name, outcome.found, outcome.limit
        );
    }
    Ok(if outcomes.iter().all(|outcome| outcome.passed) {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

fn label(model: &Path) -> String {
    model
        .file_stem()
        .unwrap_or_default()
        .to_string_lossy()
        .into_owned()
}

/// Ends the child when it goes out of scope.
struct Guard(Child);

impl Drop for Guard {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The whole of `run` up to its first byte of text, against a real llama-server from its start to its first token.
fn first_token(host: &Path, server: &Path, model: &Path) -> Result<Outcome> {
    std::fs::read(model)?; // warms the page cache
    let (mut best, mut ours, mut theirs) = (f64::INFINITY, 0.0, 0.0);
    for _ in 0..TRIES {
        let reference = llama_first_token(server, model)?;
        let measured = our_first_token(host, model)?;
        if measured / reference < best {
            (best, ours, theirs) = (measured / reference, measured, reference);
        }
        if best <= FIRST_TOKEN_LIMIT {
            break;
        }
    }
    Ok(Outcome {
        name: format!("{}: start to first token, run / llama-server", label(model)),
        found: format!("{best:.2} ({ours:.2} s / {theirs:.2} s)"),
        limit: format!("<= {FIRST_TOKEN_LIMIT}"),
        passed: best <= FIRST_TOKEN_LIMIT,
    })
}

fn our_first_token(host: &Path, model: &Path) -> Result<f64> {
    let start = Instant::now();
    let mut command = Command::new(host);
    command.arg("run").arg(model).args([
        "--raw",
        "--temperature",
        "0",
        "--max-tokens",
        "4",
        "The capital of France is",
    ]);
    let mut child = Guard(
        command
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()?,
    );
    let mut byte = [0_u8; 1];
    child
        .0
        .stdout
        .as_mut()
        .context("no pipe")?
        .read_exact(&mut byte)
        .context("`run` printed nothing")?;
    Ok(start.elapsed().as_secs_f64())
}

fn llama_first_token(server: &Path, model: &Path) -> Result<f64> {
    let port = TcpListener::bind(("127.0.0.1", 0))?.local_addr()?.port();
    let start = Instant::now();
    let mut command = Command::new(server);
    command.arg("--model").arg(model).args([
        "--host",
        "127.0.0.1",
        "--n-gpu-layers",
        "0",
        "--ctx-size",
        "4096",
    ]);
    command.args([
        "--parallel",
        "1",
        "--no-warmup",
        "--port",
        &port.to_string(),
    ]);
    let _child = Guard(
        command
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()?,
    );
    while !http(port, "GET", "/health", "").is_ok_and(|reply| reply.starts_with("HTTP/1.1 200")) {
        if start.elapsed() > Duration::from_secs(60) {
            bail!("llama-server was not ready after 60 s");
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    let body = r#"{"prompt":"The capital of France is","n_predict":1,"temperature":0}"#;
    let reply = http(port, "POST", "/completion", body)?;
    if !reply.starts_with("HTTP/1.1 200") {
        bail!(
            "llama-server answered: {}",
            reply.lines().next().unwrap_or_default()
        );
    }
    Ok(start.elapsed().as_secs_f64())
}

fn http(port: u16, method: &str, path: &str, body: &str) -> Result<String> {
    let mut stream = TcpStream::connect(("127.0.0.1", port))?;
    stream.set_read_timeout(Some(Duration::from_secs(30)))?;
    let length = body.len();
    write!(
        stream,
        "{method} {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\nContent-Type: application/json\r\n\
         Content-Length: {length}\r\n\r\n{body}"
    )?;
    let mut reply = Vec::new();
    stream.read_to_end(&mut reply)?;
    Ok(String::from_utf8_lossy(&reply).into_owned())
}

/// Peak resident memory of a whole `run` with the default context, the mapped file included.
fn memory(host: &Path, model: &Path) -> Result<Outcome> {
    let file = std::fs::metadata(model)?.len() as f64 / 1048576.0;
    let mut command = Command::new(host);
    command.arg("run").arg(model).args([
        "--raw",
        "--temperature",
        "0",
        "--max-tokens",
        "64",
        "Once upon a time",
    ]);
    let mut child = Guard(
        command
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()?,
    );
    let status = PathBuf::from(format!("/proc/{}/status", child.0.id()));
    let mut peak = 0.0_f64;
    // VmHWM only grows: the last reading before the end is the peak.
    while child.0.try_wait()?.is_none() {
        if let Ok(text) = std::fs::read_to_string(&status)
            && let Some(line) = text.lines().find(|line| line.starts_with("VmHWM"))
            && let Some(kib) = line
                .split_whitespace()
                .nth(1)
                .and_then(|kib| kib.parse::<f64>().ok())
        {
            peak = peak.max(kib / 1024.0);
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    if !child.0.wait()?.success() || peak == 0.0 {
        bail!(
            "{}: `run` failed or its memory could not be read",
            label(model)
        );
    }
    let extra = peak - file;
    Ok(Outcome {
        name: format!("{}: peak memory beyond the file, MiB", label(model)),
        found: format!("{extra:.0} ({peak:.0} - {file:.0})"),
        limit: format!("<= {MEMORY_LIMIT_MIB}"),
        passed: extra <= MEMORY_LIMIT_MIB,
    })
}

/// Bytes of weights read per second while decoding one sequence, over what reading as many reaches, both as `bench` measures them.
fn bandwidth(host: &Path, model: &Path) -> Result<Outcome> {
    let threads = std::thread::available_parallelism()?.get().to_string();
    let (mut best, mut tokens, mut plain) = (0.0, 0.0, 0.0);
    for _ in 0..TRIES {
        let mut command = Command::new(host);
        command
            .arg("bench")
            .arg(model)
            .args(["--threads", &threads]);
        command.args([
            "--prompt",
            "16",
            "--generate",
            "64",
            "--batch",
            "1",
            "--repeat",
            "3",
        ]);
        command.args(["--backend", "cpu", "--json"]);
        let output = command.stderr(Stdio::inherit()).output()?;
        let found: serde_json::Value =
            serde_json::from_slice(&output.stdout).context("`bench --json` gave no JSON")?;
        let run = &found["runs"][0];
        let figure = |value: &serde_json::Value, name: &str| {
            value
                .as_f64()
                .with_context(|| format!("`bench --json` has no {name}"))
        };
        let rate = figure(&run["decode"][0]["tokens_per_s"]["median"], "decode rate")?;
        let limit = figure(&run["limits"]["read_bytes_per_s"], "limit of reading")?;
        let share = rate * figure(&run["limits"]["token_bytes"], "bytes of a token")? / limit;
        if share > best {
            (best, tokens, plain) = (share, rate, limit);
        }
        if best >= BANDWIDTH_LIMIT {
            break;
        }
    }
    Ok(Outcome {
        name: format!("{}: decode, share of read bandwidth", label(model)),
        found: format!("{best:.2} ({tokens:.0} tokens/s, {:.1} GB/s)", plain / 1e9),
        limit: format!(">= {BANDWIDTH_LIMIT}"),
        passed: best >= BANDWIDTH_LIMIT,
    })
}

/// One token callback through both adapters of the contract, as its own example measures it.
fn callback() -> Result<Outcome> {
    let mut best = f64::INFINITY;
    for _ in 0..TRIES {
        let mut example = steps::cargo();
        example.args([
            "run",
            "--quiet",
            "--release",
            "--package",
            "backplane-plugin-api",
        ]);
        let output = example.args(["--example", "callback_cost"]).output()?;
        let text = String::from_utf8_lossy(&output.stdout);
        let line = text
            .lines()
            .find_map(|line| line.strip_prefix("across the boundary: "));
        let figure = line.and_then(|line| line.split_whitespace().next()?.parse::<f64>().ok());
        best = best.min(figure.with_context(|| format!("callback_cost printed {text:?}"))?);
        if best < CALLBACK_LIMIT_NS {
            break;
        }
    }
    Ok(Outcome {
        name: "a token callback across the contract, ns".into(),
        found: format!("{best:.0}"),
        limit: format!("< {CALLBACK_LIMIT_NS:.0}"),
        passed: best < CALLBACK_LIMIT_NS,
    })
}
