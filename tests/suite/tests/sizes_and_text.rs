//! Odd sizes and odd texts: each has a stated answer, and none hangs.

use backplane_tests::{Ran, SMOLLM2, command, fixture, real_model, run};
use serde_json::Value;
use std::io::Write;
use std::process::Stdio;

fn smollm2(arguments: &[&str]) -> Ran {
    let home = tempfile::tempdir().expect("a folder");
    let model = real_model(SMOLLM2);
    let mut all = vec!["run", model.to_str().expect("UTF-8")];
    all.extend(arguments);
    run(home.path(), &all)
}

#[test]
fn a_huge_max_tokens_is_bounded_by_the_context() {
    let arguments = [
        "--raw",
        "--context",
        "64",
        "--max-tokens",
        "100000000",
        "--temperature",
        "0",
        "--json",
    ];
    let mut all = arguments.to_vec();
    all.extend(["--stop", "never to be seen", "1, 2, 3, 4, 5, 6, 7, 8,"]);
    let reply = smollm2(&all).json();
    assert_eq!(reply["finish_reason"], "context_full", "{reply}");
    let usage = |key: &str| reply["usage"][key].as_u64().expect("a count");
    assert_eq!(
        usage("prompt_tokens") + usage("completion_tokens"),
        64,
        "{reply}"
    );
}

#[test]
fn an_empty_prompt_has_a_stated_answer() {
    let ran = smollm2(&["--raw", ""]);
    assert_eq!(ran.code, Some(2), "{}", ran.err);
    assert!(ran.err.contains("empty"), "{}", ran.err);
    // Nor is there anything to answer in a chat.
    let ran = smollm2(&["", "--max-tokens", "1", "--json"]);
    assert_eq!(ran.code, Some(2), "{}", ran.err);
    assert!(ran.err.contains("PROMPT is empty"), "{}", ran.err);
}

#[test]
fn a_reply_of_emoji_is_never_broken() {
    // Tokens are bytes of characters here: every event must hold whole characters, also where max-tokens cuts.
    for most in ["1", "2", "3", "5", "7"] {
        let arguments = [
            "--raw",
            "--temperature",
            "0",
            "--max-tokens",
            most,
            "--json",
            "😀😃😄😁😆😀😃😄😁😆😀😃",
        ];
        let reply = smollm2(&arguments).json();
        let text = reply["text"].as_str().expect("text");
        assert!(!text.contains('\u{fffd}'), "{text:?}");
        let told = reply["usage"]["completion_tokens"].to_string();
        assert_eq!(told, most, "what is left out is counted");
    }
}

#[test]
fn a_conversation_can_come_from_a_pipe() {
    let home = tempfile::tempdir().expect("a folder");
    let model = real_model(SMOLLM2);
    let mut child = command(
        home.path(),
        &[
            "chat",
            model.to_str().expect("UTF-8"),
            "--temperature",
            "0",
            "--max-tokens",
            "6",
        ],
    )
    .stdin(Stdio::piped())
    .stdout(Stdio::piped())
    .stderr(Stdio::piped())
    .spawn()
    .expect("it starts");
    let lines = b"Hello!\n/save talk.json\n/nonsense\nHow are\\\nyou?\n/exit\n";
    child
        .stdin
        .take()
        .expect("stdin")
        .write_all(lines)
        .expect("it reads");
    let ran: Ran = child.wait_with_output().expect("it ends").into();
    // One line failed: the exit code is that of its error.
    assert_eq!(ran.code, Some(2), "{}", ran.err);
    assert_eq!(ran.out.lines().count(), 2, "one line a reply: {}", ran.out);
    assert!(ran.err.contains("/nonsense"), "{}", ran.err);
    let saved = std::fs::read_to_string(home.path().join("talk.json")).expect("the conversation");
    let saved: Value = serde_json::from_str(&saved).expect("JSON");
    assert_eq!(
        saved["messages"].as_array().map(Vec::len),
        Some(2),
        "{saved}"
    );
}

#[test]
fn a_long_conversation_is_refused_with_both_counts_and_goes_on() {
    let home = tempfile::tempdir().expect("a folder");
    let model = real_model(SMOLLM2);
    let mut child = command(
        home.path(),
        &[
            "chat",
            model.to_str().expect("UTF-8"),
            "--context",
            "96",
            "--max-tokens",
            "4",
            "--temperature",
            "0",
        ],
    )
    .stdin(Stdio::piped())
    .stdout(Stdio::piped())
    .stderr(Stdio::piped())
    .spawn()
    .expect("it starts");
    let long = "word ".repeat(200);
    let lines = format!("Hello!\n{long}\n/reset\nHello!\n");
    child
        .stdin
        .take()
        .expect("stdin")
        .write_all(lines.as_bytes())
        .expect("it reads");
    let ran: Ran = child.wait_with_output().expect("it ends").into();
    assert_eq!(ran.code, Some(2), "{}", ran.err);
    assert!(
        ran.err.contains("96") && ran.err.contains("/reset"),
        "{}",
        ran.err
    );
    let replies: Vec<&str> = ran.out.lines().collect();
    assert_eq!(replies.len(), 2, "{}", ran.out);
    assert_eq!(
        replies[0], replies[1],
        "the message that did not fit left nothing behind"
    );
}

#[test]
fn a_model_without_a_template_says_so() {
    let home = tempfile::tempdir().expect("a folder");
    let tiny = fixture("tiny/llama3-gqa/model-f32.gguf")
        .canonicalize()
        .expect("a path");
    let ran = run(home.path(), &["run", tiny.to_str().expect("UTF-8"), "hi"]);
    assert_eq!(ran.code, Some(2), "{}", ran.err);
    assert!(
        ran.err.contains("template") && ran.err.contains("raw"),
        "{}",
        ran.err
    );
}
