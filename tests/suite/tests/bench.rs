//! `bench`: figures of a small model through the whole stack, and what it refuses.

use backplane_tests::{Ran, command, fixture, run};
use serde_json::Value;
use std::process::Stdio;
use tempfile::TempDir;

fn home() -> TempDir {
    tempfile::tempdir().expect("a folder")
}

/// A model made for 1024 tokens, of a vocabulary of 512.
fn bench(arguments: &[&str]) -> Ran {
    let model = fixture("tiny/llama3-gqa/model-f32.gguf");
    let home = home();
    let mut all = vec!["bench", model.to_str().expect("a UTF-8 path")];
    all.extend(arguments);
    run(home.path(), &all)
}

const SMALL: [&str; 6] = ["--prompt", "9", "--generate", "4", "--repeat", "3"];

fn number(value: &Value, path: &str) -> f64 {
    let found = value
        .pointer(path)
        .unwrap_or_else(|| panic!("{path} is missing: {value}"));
    found
        .as_f64()
        .unwrap_or_else(|| panic!("{path} is {found}, no number"))
}

fn check_samples(value: &Value, path: &str, count: usize) {
    let samples = value[path]["samples"]
        .as_array()
        .unwrap_or_else(|| panic!("no samples of {path}: {value}"));
    assert_eq!(samples.len(), count, "{path}");
    let of = |key: &str| number(&value[path], &format!("/{key}"));
    assert!(
        of("min") > 0.0 && of("min") <= of("median") && of("median") <= of("max"),
        "{path}: {value}"
    );
    assert!(of("spread") >= 0.0, "{path}: {value}");
}

#[test]
fn every_figure_is_there() {
    let mut arguments = SMALL.to_vec();
    arguments.extend(["--threads", "2,1", "--batch", "3,1", "--json"]);
    let found = bench(&arguments).json();
    assert_eq!(found["backend"], "cpu");
    assert_eq!(
        (&found["prompt"], &found["generate"], &found["repeat"]),
        (&9.into(), &4.into(), &3.into())
    );
    let runs = found["runs"].as_array().expect("runs");
    assert_eq!(runs.len(), 2, "{found}");
    for (run, threads) in runs.iter().zip([2, 1]) {
        assert_eq!(run["threads"], threads);
        assert_eq!(run["isolation"], "in-process");
        assert!(!run["runs"].as_str().expect("runs").is_empty(), "{run}");
        check_samples(&run["prefill"], "tokens_per_s", 3);
        check_samples(run, "first_token_s", 3);
        let decode = run["decode"].as_array().expect("decode");
        assert_eq!(decode.len(), 2);
        for (one, sequences) in decode.iter().zip([3, 1]) {
            assert_eq!(one["sequences"], sequences);
            check_samples(one, "tokens_per_s", 3);
            assert!(number(one, "/share_of_read_bandwidth") > 0.0);
        }
        assert!(number(run, "/prefill/share_of_integer_throughput") > 0.0);
        assert!(number(run, "/load_s") > 0.0);
        assert!(
            number(run, "/peak_memory_bytes") > 1e6,
            "no process is so small: {run}"
        );
        for limit in ["read_bytes_per_s", "multiply_adds_per_s"] {
            assert!(number(run, &format!("/limits/{limit}")) > 1e6, "{run}");
        }
        // All matrices but the table of embeddings are multiplied with; every one of them is read, the output's too.
        let (bytes, products) = (
            number(run, "/limits/token_bytes"),
            number(run, "/limits/token_multiply_adds"),
        );
        assert!(products > 0.0 && bytes > 4.0 * products, "{run}");
        let measured = run["limits"]["measured"].as_str().expect("measured");
        assert!(
            measured.contains(&format!("{threads} thread")),
            "{measured}"
        );
    }
    assert_eq!(
        found["worker_over_in_process"].as_array().map(Vec::len),
        Some(0)
    );
}

#[test]
fn a_worker_is_compared_with_this_process() {
    let mut arguments = SMALL.to_vec();
    arguments.extend(["--threads", "1", "--batch", "1,2", "--json"]);
    arguments.extend(["--isolation", "in-process,process"]);
    let found = bench(&arguments).json();
    let runs = found["runs"].as_array().expect("runs");
    let isolations: Vec<&Value> = runs.iter().map(|run| &run["isolation"]).collect();
    assert_eq!(isolations, ["in-process", "process"], "{found}");
    let memory: Vec<f64> = runs
        .iter()
        .map(|run| number(run, "/peak_memory_bytes"))
        .collect();
    assert!(
        memory[0] != memory[1] && memory[1] > 1e6,
        "that of the process that ran it: {memory:?}"
    );
    assert!(runs.iter().all(|run| run["limits"].is_object()), "{found}");
    let ratio = &found["worker_over_in_process"][0];
    assert_eq!(ratio["threads"], 1);
    check_samples(ratio, "prefill", 3);
    for (one, sequences) in ratio["decode"]
        .as_array()
        .expect("decode")
        .iter()
        .zip([1, 2])
    {
        assert_eq!(one["sequences"], sequences);
        check_samples(one, "tokens_per_s", 3);
    }
}

#[test]
fn drafts_are_compared_with_none() {
    let sizes = ["--prompt", "9", "--generate", "40", "--repeat", "3"];
    let mut arguments = sizes.to_vec();
    arguments.extend(["--threads", "1", "--batch", "1", "--speculate", "--json"]);
    let found = bench(&arguments).json();
    let texts = found["runs"][0]["speculation"].as_array().expect("texts");
    let names: Vec<&Value> = texts.iter().map(|text| &text["text"]).collect();
    assert_eq!(names, ["repetitive", "creative"], "{found}");
    for text in texts {
        check_samples(&text["off"], "tokens_per_s", 3);
        check_samples(&text["auto"], "tokens_per_s", 3);
        check_samples(text, "gain", 3);
        let (drafted, accepted) = (number(text, "/drafted"), number(text, "/accepted"));
        assert!(accepted >= 0.0 && accepted <= drafted, "{text}");
        assert!((0.0..=1.0).contains(&number(text, "/acceptance")), "{text}");
    }
    arguments.pop();
    let table = bench(&arguments).out;
    for part in [
        "repetitive 40",
        "creative 40",
        "without drafts",
        "came true",
    ] {
        assert!(table.contains(part), "no {part:?} in\n{table}");
    }
    // Nothing of it where nobody asks.
    let plain = bench(&[&SMALL[..], &["--batch", "1", "--json"]].concat()).json();
    assert_eq!(plain["runs"][0]["speculation"], serde_json::json!([]));
}

#[test]
fn people_get_a_table() {
    let mut arguments = SMALL.to_vec();
    arguments.extend(["--batch", "1,2", "--isolation", "process"]);
    let ran = bench(&arguments);
    assert_eq!(ran.code, Some(0), "{}", ran.err);
    for part in [
        "read 9",
        "generate 4 ",
        "generate 4 x 2",
        "TOKENS/S",
        "of read bandwidth",
        "of integer throughput",
        "first token",
        "peak memory",
        "runs ",
        "process",
    ] {
        assert!(ran.out.contains(part), "no {part:?} in\n{}", ran.out);
    }
}

/// Wrong usage ends with 2 and one line that has all of `parts`.
#[track_caller]
fn refused(arguments: &[&str], parts: &[&str]) {
    let ran = bench(arguments);
    assert_eq!(ran.code, Some(2), "{arguments:?}: {}{}", ran.out, ran.err);
    assert_eq!(ran.out, "", "{arguments:?}");
    for part in parts {
        assert!(ran.err.contains(part), "{arguments:?}: {}", ran.err);
    }
}

#[test]
fn hostile_numbers_are_refused() {
    for option in ["--prompt", "--generate", "--threads", "--batch", "--repeat"] {
        for value in ["0", "-1", "x", "4294967296", "1e3", ""] {
            refused(&[option, value], &[option]);
        }
    }
    refused(&["--threads", "1,2,1"], &["--threads", "1 is there twice"]);
    refused(&["--batch", "8,8"], &["--batch", "8 is there twice"]);
    refused(&["--batch", "1,,2"], &["--batch"]);
    refused(&["--threads", "1000000000"], &["1000000000", "1 to 1024"]);
    refused(&["--batch", "1000000000"], &["1000000000", "1 to 256"]);
    refused(&["--repeat", "1000000000"], &["1000000000", "1 to 1000"]);
    refused(
        &["--isolation", "elsewhere"],
        &["--isolation", "in-process, process"],
    );
    refused(
        &["--isolation", "process,process"],
        &["--isolation", "process is there twice"],
    );
}

#[test]
fn sizes_beyond_the_context_are_refused_with_all_counts() {
    refused(
        &["--prompt", "1000000000", "--generate", "7"],
        &["1000000000", "1000000007", " 7 ", "1024"],
    );
    refused(&["--prompt", "1000", "--generate", "25"], &["1025", "1024"]);
    refused(
        &["--prompt", "4294967295", "--generate", "4294967295"],
        &["8589934590", "1024"],
    );
    // A generation is one token, and one more that is not read.
    refused(&["--prompt", "1", "--generate", "1023"], &["1025", "1024"]);
}

#[test]
fn all_of_the_context_can_be_used() {
    let ran = bench(&[
        "--prompt",
        "1",
        "--generate",
        "1022",
        "--repeat",
        "1",
        "--batch",
        "1",
        "--json",
    ]);
    assert_eq!(ran.json()["generate"], 1022);
}

#[test]
fn what_is_no_model_is_refused() {
    let home = home();
    let text = home.path().join("page.gguf");
    std::fs::write(&text, "<html>").expect("a file");
    let ran = run(
        home.path(),
        &["bench", text.to_str().expect("a UTF-8 path")],
    );
    assert_eq!(ran.code, Some(4), "{}", ran.err);
    let ran = run(home.path(), &["bench", "nowhere.gguf"]);
    assert_eq!((ran.code, ran.out.as_str()), (Some(4), ""), "{}", ran.err);
    assert_eq!(ran.err.lines().count(), 1, "{}", ran.err);
    refused(&["--backend", "cpuu"], &["cpuu", "cpu"]);
}

#[cfg(unix)]
#[test]
fn an_interrupt_ends_it_with_130() {
    let home = home();
    let model = fixture("tiny/llama3-gqa/model-f32.gguf");
    let sizes = ["--prompt", "200", "--generate", "50", "--repeat", "1000"];
    let mut arguments = vec!["bench", model.to_str().expect("a UTF-8 path"), "-v"];
    arguments.extend(sizes);
    let mut child = command(home.path(), &arguments)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the program starts");
    // The log tells when the model is there: thousands of runs are ahead.
    let mut log = std::io::BufReader::new(child.stderr.take().expect("a pipe"));
    let mut line = String::new();
    while !line.contains("loaded") {
        line.clear();
        let read = std::io::BufRead::read_line(&mut log, &mut line).expect("a line");
        assert!(read > 0, "it ended before the model was loaded");
    }
    let interrupted = std::process::Command::new("kill")
        .args(["-INT", &child.id().to_string()])
        .status()
        .expect("kill runs");
    assert!(interrupted.success());
    let mut rest = String::new();
    std::io::Read::read_to_string(&mut log, &mut rest).expect("the log");
    let output = child.wait_with_output().expect("it ends");
    assert_eq!(output.status.code(), Some(130), "{rest}");
    assert!(output.stdout.is_empty());
}
