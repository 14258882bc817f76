use super::*;
use crate::serve::tools::formats;

/// What a reply said, and its calls as `name arguments`.
type Read = (String, Vec<String>);

fn shown(pieces: &[Piece]) -> Read {
    let (mut text, mut calls) = (String::new(), Vec::<String>::new());
    for piece in pieces {
        match piece {
            Piece::Text(more) => text.push_str(more),
            Piece::Begun { number, id, name } => {
                assert_eq!(*number, calls.len());
                assert!(id.len() >= 9, "{id}");
                calls.push(format!("{name} "));
            }
            Piece::Arguments { number, text } => {
                assert_eq!(*number + 1, calls.len(), "arguments of the last call");
                assert!(!text.is_empty());
                calls[*number].push_str(text);
            }
        }
    }
    (text, calls)
}

/// Reads a text cut at these places.
fn read(format: &'static Format, parts: &[&str], cut: bool) -> Read {
    let mut reader = Reader::new(format, vec!["f".into(), "g".into()]);
    let mut pieces = Vec::new();
    for part in parts {
        pieces.extend(reader.push(part));
    }
    pieces.extend(reader.finish(cut));
    let told = shown(&pieces);
    let (said, calls) = reader.into_parts();
    assert_eq!(said, told.0);
    let calls: Vec<String> = calls
        .iter()
        .map(|call| format!("{} {}", call.name, call.arguments))
        .collect();
    assert_eq!(calls, told.1, "the whole is what the pieces say");
    told
}

/// However a text is cut, it is read the same.
fn check(name: &str, text: &str, said: &str, calls: &[&str]) {
    let format = formats::named(name);
    let expected = (
        said.to_owned(),
        calls.iter().map(|call| (*call).to_owned()).collect(),
    );
    assert_eq!(read(format, &[text], false), expected, "{name}: {text}");
    for at in (0..text.len()).filter(|&at| text.is_char_boundary(at)) {
        let parts = [&text[..at], &text[at..]];
        assert_eq!(
            read(format, &parts, false),
            expected,
            "{name}: cut at {at}: {text}"
        );
    }
    let each: Vec<String> = text.chars().map(String::from).collect();
    let each: Vec<&str> = each.iter().map(String::as_str).collect();
    assert_eq!(
        read(format, &each, false),
        expected,
        "{name}: by characters: {text}"
    );
}

const ONE: &[&str] = &[r#"f {"a": 1}"#];
const TWO: &[&str] = &[r#"f {"a": 1}"#, "g {}"];

#[test]
fn calls_of_every_family() {
    for (name, text, said, calls) in [
        (
            "hermes",
            "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": 1}}\n</tool_call>",
            "",
            ONE,
        ),
        (
            "hermes",
            "Let me see.\n<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": 1}}</tool_call>\n<tool_call>\n{\"arguments\": {}, \"name\": \"g\"}\n</tool_call>\n",
            "Let me see.",
            TWO,
        ),
        (
            "hermes",
            r#"<tool_call>{"name": "g", "id": 7}</tool_call> Done."#,
            " Done.",
            &["g {}"],
        ),
        (
            "hermes",
            r#"<tool_call>{"name": "f", "arguments": "{\"a\": \"\\\"}\"}"}</tool_call>"#,
            "",
            &[r#"f {"a": "\"}"}"#],
        ),
        (
            "hermes",
            r#"<tool_call>{"arguments": "{\"a\": 1}", "name": "f"}</tool_call>"#,
            "",
            ONE,
        ),
        (
            "hermes",
            r#"<tool_call>{"name": "f", "arguments": {"t": "</tool_call> {\" é 😀"}}</tool_call>"#,
            "",
            &[r#"f {"t": "</tool_call> {\" é 😀"}"#],
        ),
        (
            "phi-4",
            r#"<|tool_call|>[{"name": "f", "arguments": {"a": 1}}, {"name": "g", "arguments": {}}]<|/tool_call|>"#,
            "",
            TWO,
        ),
        ("phi-4", "<|tool_call|>[]<|/tool_call|>x", "x", &[]),
        (
            "mistral",
            r#"[TOOL_CALLS][{"name": "f", "arguments": {"a": 1}, "id": "012345678"}, {"name": "g", "arguments": {}}]"#,
            "",
            TWO,
        ),
        (
            "mistral",
            r#"[TOOL_CALLS] [{"name": "f", "arguments": {"a": 1}}] "#,
            "",
            ONE,
        ),
        (
            "mistral, named",
            r#"[TOOL_CALLS]f[ARGS]{"a": 1}[TOOL_CALLS]g[ARGS]{}"#,
            "",
            TWO,
        ),
        (
            "deepseek",
            "Hm.<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n{\"a\": 1}\n```<｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>function<｜tool▁sep｜>g\n```json\n{}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
            "Hm.",
            TWO,
        ),
        (
            "deepseek-3.1",
            "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>{\"a\": 1}<｜tool▁call▁end｜><｜tool▁call▁begin｜>g<｜tool▁sep｜>{}<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
            "",
            TWO,
        ),
        (
            "llama-3",
            r#"{"name": "f", "parameters": {"a": 1}}"#,
            "",
            ONE,
        ),
        (
            "llama-3",
            "\n{\"name\": \"f\", \"parameters\": {\"a\": 1}}; {\"name\": \"g\", \"parameters\": {}}",
            "",
            TWO,
        ),
        (
            "llama-3",
            r#"<|python_tag|>{"name": "f", "parameters": {"a": 1}}"#,
            "",
            ONE,
        ),
        (
            "command-r7b",
            r#"I will.<|START_ACTION|>[{"tool_call_id": "0", "tool_name": "f", "parameters": {"a": 1}}]<|END_ACTION|>"#,
            "I will.",
            ONE,
        ),
    ] {
        check(name, text, said, calls);
    }
}

#[test]
fn what_only_looks_like_a_call_is_text() {
    for (name, text) in [
        ("hermes", "a <tool_cal b < <t <tool_call"),
        ("hermes", "<tool_call >{} </tool_call>"),
        ("hermes", "<tool_call> it is called"),
        (
            "hermes",
            "<tool_call>{\"name\": \"unknown\", \"arguments\": {}}</tool_call>",
        ),
        ("hermes", "<tool_call>{\"arguments\": {}}</tool_call>"),
        ("hermes", "<tool_call>{\"name\": 7}</tool_call>"),
        ("hermes", "<tool_call>"),
        ("hermes", "<tool_call>{\"na"),
        ("hermes", "  two  spaces \n\n"),
        ("hermes", "{\"name\": \"f\", \"arguments\": {}}"),
        ("hermes", ""),
        ("hermes", " "),
        ("mistral", "[TOOL_CALL] [TOOL_CALLS] none"),
        ("llama-3", "{\"city\": \"Paris\"}"),
        ("llama-3", "{\"name\": \"f\" \"parameters\"}"),
        ("llama-3", "{ is a brace"),
        ("llama-3", "plain"),
        ("llama-3", "{\"name\": \"f"),
        ("deepseek", "<｜tool▁calls▁begin｜> of them"),
        ("deepseek", "<｜tool▁calls▁"),
    ] {
        check(name, text, text, &[]);
    }
}

#[test]
fn what_goes_wrong_in_a_call_leaks_no_mark() {
    check(
        "hermes",
        r#"<tool_call>{"name": "f", "arguments": {"a": 1]}} </tool_call> then"#,
        " then",
        &[r#"f {"a": 1"#],
    );
    check(
        "hermes",
        r#"<tool_call>{"name": "f", "arguments": {"a": 1}} oh </tool_call>"#,
        "",
        ONE,
    );
    check(
        "phi-4",
        r#"<|tool_call|>[{"name": "f", "arguments": {"a": 1}}, {"name": "x"}]<|/tool_call|>"#,
        "",
        ONE,
    );
    check(
        "phi-4",
        r#"<|tool_call|>[{"name": "f", "arguments": {"a": 1}}"#,
        "",
        ONE,
    );
}

#[test]
fn a_reply_that_is_cut_leaks_no_mark() {
    let format = formats::named("hermes");
    for text in [
        "a <tool_call>",
        "a <tool_call>{\"name\": \"",
        "a<tool_call>{\"arguments\": {",
    ] {
        assert_eq!(
            read(format, &[text], true),
            ("a".to_owned(), vec![]),
            "{text}"
        );
    }
    let begun = "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": \"b";
    assert_eq!(
        read(format, &[begun], true),
        (String::new(), vec!["f {\"a\": \"b".to_owned()])
    );
    // A part of a mark is text.
    assert_eq!(read(format, &["a <tool"], true).0, "a <tool");
}

#[test]
fn arguments_come_as_they_are_written() {
    let mut reader = Reader::new(formats::named("hermes"), vec!["f".into()]);
    assert_eq!(reader.push("<tool_call>{\"name\": \"f\","), []);
    let more = |text: &str| Piece::Arguments {
        number: 0,
        text: text.to_owned(),
    };
    let begun = reader.push("\"arguments\": {\"a");
    assert!(
        matches!(&begun[..], [Piece::Begun { number: 0, .. }, first] if *first == more("{\"a")),
        "{begun:?}"
    );
    assert_eq!(reader.push("\": 1"), [more("\": 1")]);
    assert_eq!(reader.whole(), 0);
    assert_eq!(reader.push("}}</tool"), [more("}")]);
    assert_eq!(reader.whole(), 1);
    assert_eq!(reader.push("_call>"), []);
}

#[test]
fn without_tools_all_is_text() {
    let mut reader = Reader::plain();
    let text = "<tool_call> x ";
    assert_eq!(reader.push(text), [Piece::Text(text.into())]);
    assert_eq!(reader.finish(false), []);
}

#[test]
fn ids_are_their_own_and_as_short_as_the_family_wants() {
    let (long, short) = (call_id(false), call_id(true));
    assert!(long.starts_with("call_") && long.len() == 14, "{long}");
    assert!(short.len() == 9 && short.bytes().all(|it| it.is_ascii_alphanumeric()));
    assert_ne!(call_id(true), short);
}
