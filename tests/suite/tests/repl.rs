//! The REPL, driven through a pseudo-terminal: typing, interrupting, history.

use backplane_tests::terminal::Terminal;
use backplane_tests::{SMOLLM2, fixture, host, real_model};

fn chat(home: &std::path::Path) -> Terminal {
    let model = real_model(SMOLLM2);
    let terminal = Terminal::start(&host(), &["chat", model.to_str().expect("UTF-8")], home);
    terminal.wait("the prompt", |screen| screen.contains("/help"));
    terminal
}

/// Enters a line once the prompt is there again, and waits for what it brings.
fn enter(terminal: &Terminal, line: &str, expected: &str) -> String {
    terminal.keys(line);
    terminal.wait("the typed line", |screen| screen.contains(line));
    terminal.keys("\r");
    terminal.wait(expected, |screen| screen.contains(expected))
}

/// Ctrl-D at an empty prompt: before the prompt is there, the terminal itself would take the key.
fn leave(terminal: Terminal) {
    terminal.wait("an empty prompt", |screen| {
        screen.lines().last().is_some_and(|line| line.trim() == ">")
    });
    terminal.keys("\x04");
    assert_eq!(terminal.exit_code(), 0);
}

#[test]
fn a_reply_can_be_interrupted_and_the_session_lives() {
    let home = tempfile::tempdir().expect("a folder");
    let terminal = chat(home.path());
    enter(&terminal, "/set temperature 0", "temperature");
    enter(&terminal, "/set max-tokens 1500", "max-tokens");
    // A reply that would run to the end of the context: stopped as soon as some of it is there.
    let before = terminal.screen();
    terminal.keys("Write a very long story about a dragon and a knight.\r");
    terminal.wait("the reply", |screen| screen.len() > before.len() + 160);
    terminal.keys("\x03");
    terminal.wait("the notice", |screen| screen.contains("stopped"));
    // The next prompt works, and the stopped reply did not end the program.
    enter(&terminal, "/set max-tokens 12", "12");
    enter(&terminal, "/stats", "tokens");
    enter(&terminal, "/exit", "/exit");
    assert_eq!(terminal.exit_code(), 0);
}

#[test]
fn the_history_outlives_the_session() {
    let home = tempfile::tempdir().expect("a folder");
    let first = chat(home.path());
    enter(&first, "/set seed 4711", "4711");
    enter(&first, "/exit", "/exit");
    assert_eq!(first.exit_code(), 0);
    let second = chat(home.path());
    second.keys("\x1b[A\x1b[A");
    second.wait("the line before the last", |screen| {
        screen.contains("/set seed 4711")
    });
    second.keys("\x03");
    leave(second);
}

#[test]
fn a_conversation_is_kept_saved_and_opened() {
    let home = tempfile::tempdir().expect("a folder");
    let file = home.path().join("talk.json");
    let terminal = chat(home.path());
    enter(&terminal, "/set temperature 0", "temperature");
    enter(&terminal, "/set max-tokens 8", "max-tokens");
    enter(&terminal, "/system You are terse.", "terse");
    enter(&terminal, "Hello there", "Hello there");
    terminal.wait("the reply's end", |screen| {
        screen.trim_end().ends_with('>') || screen.contains("length")
    });
    enter(&terminal, "/save talk.json", "saved");
    let saved = std::fs::read_to_string(&file).expect("the conversation");
    let saved: serde_json::Value = serde_json::from_str(&saved).expect("JSON");
    let roles: Vec<&str> = saved["messages"]
        .as_array()
        .expect("messages")
        .iter()
        .filter_map(|m| m["role"].as_str())
        .collect();
    assert_eq!(roles, ["system", "user", "assistant"], "{saved}");
    enter(&terminal, "/reset", "reset");
    enter(&terminal, "/open talk.json", "3 messages");
    leave(terminal);
}

#[test]
fn models_lie_side_by_side() {
    let home = tempfile::tempdir().expect("a folder");
    let tiny = fixture("tiny/mistral-full/model-f32.gguf")
        .canonicalize()
        .expect("a path");
    let terminal = chat(home.path());
    std::os::unix::fs::symlink(&tiny, home.path().join("tiny.gguf")).expect("a link");
    enter(&terminal, "/load tiny.gguf", "loaded");
    let screen = enter(&terminal, "/models", "SmolLM2-135M-Instruct");
    assert!(screen.contains("tiny"), "{screen}");
    enter(&terminal, "/unload tiny", "unloaded");
    enter(&terminal, "/nonsense", "/help");
    leave(terminal);
}
