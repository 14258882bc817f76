//! The REPL, driven through a pseudo-terminal: typing, interrupting, history.

use backplane_tests::terminal::Terminal;
use backplane_tests::{SMOLLM2, fixture, host, real_model};

fn chat(home: &std::path::Path) -> Terminal {
    let model = real_model(SMOLLM2);
    let terminal = Terminal::start(&host(), &["chat", model.to_str().expect("UTF-8")], home);
    terminal.wait("the prompt", |screen| screen.contains("/help"));
    terminal
}

/// What stands below the prompt at which this line was entered.
fn below<'a>(screen: &'a str, line: &str) -> Option<&'a str> {
    let (_, below) = screen.rsplit_once(&format!("> {line}\n"))?;
    Some(below)
}

/// Enters a line at a prompt, and waits for what it brings.
fn enter(terminal: &Terminal, line: &str, expected: &str) -> String {
    terminal.keys(line);
    let typed = format!("> {line}");
    terminal.wait("the typed line", |screen| {
        // A hint of the history may follow it.
        screen
            .lines()
            .last()
            .is_some_and(|last| last.starts_with(&typed))
    });
    terminal.keys("\r");
    terminal.wait(expected, |screen| {
        below(screen, line).is_some_and(|below| below.contains(expected))
    })
}

/// Ctrl-D: where a prompt is not there yet, it waits for it.
fn leave(terminal: Terminal) {
    terminal.keys("\x04");
    assert_eq!(terminal.exit_code(), 0);
}

/// What is seen of the reply to a message.
fn reply_begins(terminal: &Terminal, message: &str, length: usize) {
    terminal.wait("the reply", |screen| {
        below(screen, message).is_some_and(|below| below.trim().len() > length)
    });
}

#[test]
fn a_reply_can_be_interrupted_and_the_session_lives() {
    let home = tempfile::tempdir().expect("a folder");
    let terminal = chat(home.path());
    enter(&terminal, "/set temperature 0", "temperature is 0");
    enter(&terminal, "/set max-tokens 1500", "max-tokens is 1500");
    // A reply that would run to the end of the context: stopped as soon as some of it is there.
    let story = "Write a very long story about a dragon and a knight.";
    terminal.keys(&format!("{story}\r"));
    reply_begins(&terminal, story, 160);
    terminal.keys("\x03");
    terminal.wait("the notice", |screen| screen.contains("[stopped]"));
    // The next prompt works, and the stopped reply did not end the program.
    enter(&terminal, "/set max-tokens 12", "max-tokens is 12");
    enter(&terminal, "/stats", "tokens");
    terminal.keys("/exit\r");
    assert_eq!(terminal.exit_code(), 0);
}

#[test]
fn what_is_typed_during_a_reply_waits_for_the_prompts() {
    let home = tempfile::tempdir().expect("a folder");
    let terminal = chat(home.path());
    enter(&terminal, "/set temperature 0", "temperature is 0");
    enter(&terminal, "/set max-tokens 100", "max-tokens is 100");
    let message = "Count from one to fifty.";
    terminal.keys(&format!("{message}\r"));
    reply_begins(&terminal, message, 0);
    terminal.keys("/set seed 11\r/set seed 12\r/set seed 13");
    let screen = terminal.wait("the third line", |screen| {
        screen.trim_end().ends_with("> /set seed 13")
    });
    // Each at its prompt, and nothing of it amid the reply.
    let typed = "\n> /set seed 11\nseed is 11\n> /set seed 12\nseed is 12\n> /set seed 13";
    assert!(screen.trim_end().ends_with(typed), "{screen}");
    assert_eq!(screen.matches("/set seed").count(), 3, "{screen}");
    terminal.keys("\r");
    terminal.wait("the third answer", |screen| screen.contains("seed is 13"));
    leave(terminal);
}

/// An empty prompt, at which the terminal is as the editor wants it.
fn prompt(terminal: &Terminal) {
    terminal.wait("an empty prompt", |screen| {
        screen.lines().last().is_some_and(|last| last.trim() == ">")
    });
}

#[test]
fn lines_that_are_pasted_are_one_message() {
    let home = tempfile::tempdir().expect("a folder");
    let terminal = chat(home.path());
    prompt(&terminal);
    // Commands are each their own.
    terminal.paste("/set temperature 0\n/set max-tokens 4");
    terminal.wait("both lines", |screen| {
        screen.ends_with("> /set temperature 0\n. /set max-tokens 4")
    });
    terminal.keys("\r");
    terminal.wait("both answers", |screen| {
        screen.contains("temperature is 0\nmax-tokens is 4")
    });
    prompt(&terminal);
    let code = "What does this do?\ndef f(x):\n    \"\"\"Doubles it.\"\"\"\n    return 2 * x";
    terminal.paste(code);
    let last = ".     return 2 * x";
    terminal.wait("all lines", |screen| screen.ends_with(last));
    terminal.keys("\r");
    terminal.wait("the reply", |screen| screen.contains("[max-tokens reached"));
    prompt(&terminal);
    enter(&terminal, "/save talk.json", "saved");
    let saved = std::fs::read_to_string(home.path().join("talk.json")).expect("the conversation");
    let saved: serde_json::Value = serde_json::from_str(&saved).expect("JSON");
    assert_eq!(saved["messages"][0]["content"], code);
    assert_eq!(saved["messages"].as_array().map(Vec::len), Some(2));
    leave(terminal);
}

#[test]
fn lines_that_come_without_marks_are_each_entered() {
    let home = tempfile::tempdir().expect("a folder");
    let terminal = chat(home.path());
    prompt(&terminal);
    // As Enter ends them, and as programs that play the person do.
    terminal.keys("/set seed 1\r/set seed 2\r/set seed 3\n/set seed 4\n/set seed 5\n");
    let screen = terminal.wait("the last answer", |screen| screen.contains("seed is 5"));
    for seed in 1..=5 {
        let answered = format!("> /set seed {seed}\nseed is {seed}\n");
        assert!(screen.contains(&answered), "{screen}");
    }
    leave(terminal);
}

#[test]
fn the_history_outlives_the_session() {
    let home = tempfile::tempdir().expect("a folder");
    let first = chat(home.path());
    enter(&first, "/set seed 4711", "seed is 4711");
    first.keys("/exit\r");
    assert_eq!(first.exit_code(), 0);
    let second = chat(home.path());
    second.keys("\x1b[A\x1b[A");
    second.wait("the line before the last", |screen| {
        screen.contains("/set seed 4711")
    });
    second.keys("\x03");
    second.wait("an empty prompt", |screen| {
        screen.lines().last().is_some_and(|last| last.trim() == ">")
    });
    leave(second);
}

#[test]
fn a_conversation_is_kept_saved_and_opened() {
    let home = tempfile::tempdir().expect("a folder");
    let file = home.path().join("talk.json");
    let terminal = chat(home.path());
    enter(&terminal, "/set temperature 0", "temperature is 0");
    enter(&terminal, "/set max-tokens 8", "max-tokens is 8");
    enter(&terminal, "/system You are terse.", "message is set");
    enter(&terminal, "Hello there", "\n>");
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
    let both = below(&screen, "/models").is_some_and(|below| below.contains("tiny"));
    assert!(both, "{screen}");
    enter(&terminal, "/unload tiny", "unloaded");
    enter(&terminal, "/nonsense", "/help");
    leave(terminal);
}
