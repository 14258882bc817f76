use super::*;
use crate::serve::tools::formats;
use serde_json::{Value, json};

/// What a reply said, and its calls as `name arguments`.
type Read = (String, Vec<String>);

fn shown(pieces: &[Piece]) -> Read {
    let (mut text, mut calls) = (String::new(), Vec::<String>::new());
    for piece in pieces {
        match piece {
            Piece::Text(more) => text.push_str(more),
            Piece::Thought(_) => panic!("nothing is thought here"),
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

/// Two tools: `f` knows what its arguments are, `g` does not.
fn signatures() -> Vec<Signature> {
    let f = json!({ "type": "object", "properties": {
        "a": { "type": "integer" }, "t": { "type": "string" }, "on": { "type": "boolean" },
        "l": { "type": "array" }, "o": { "type": "object" }, "n": { "type": ["string", "null"] },
    } });
    let one = |name: &str, schema| Signature {
        name: name.to_owned(),
        schema,
    };
    vec![one("f", f), one("g", Value::Null)]
}

/// Reads a text cut at these places.
fn read(format: &'static Format, parts: &[&str], cut: bool) -> Read {
    let mut reader = Reader::new(format, signatures());
    let mut pieces = Vec::new();
    for part in parts {
        pieces.extend(reader.push(part));
    }
    pieces.extend(reader.finish(cut));
    let told = shown(&pieces);
    let (_, said, calls) = reader.into_parts();
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
    // A part of a mark is text, unless what would follow was cut off.
    assert_eq!(read(format, &["a <tool"], false).0, "a <tool");
    for part in ["a <", "a \n<tool", "a <tool_call"] {
        assert_eq!(read(format, &[part], true).0, "a", "{part}");
    }
    let after = "<tool_call>{\"name\": \"f\", \"arguments\": {}}</tool_call>\n<tool";
    assert_eq!(
        read(format, &[after], true),
        (String::new(), vec!["f {}".to_owned()])
    );
}

#[test]
fn arguments_come_as_they_are_written() {
    let mut reader = Reader::new(formats::named("hermes"), signatures());
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
    let (long, short) = (call_id(Ids::Long, "f", 0), call_id(Ids::Short, "f", 0));
    assert!(long.starts_with("call_") && long.len() == 14, "{long}");
    assert!(short.len() == 9 && short.bytes().all(|it| it.is_ascii_alphanumeric()));
    assert_ne!(call_id(Ids::Short, "f", 0), short);
    assert_eq!(call_id(Ids::Numbered, "f", 3), "functions.f:3");
}

#[test]
fn calls_that_are_not_json() {
    let f = r#"f {"a": 1, "t": "x"}"#;
    for (name, text, said, calls) in [
        (
            "qwen-3-coder",
            "Well.\n<tool_call>\n<function=f>\n<parameter=a>\n1\n</parameter>\n<parameter=t>\nx\n</parameter>\n</function>\n</tool_call>\n<tool_call>\n<function=g>\n</function>\n</tool_call>",
            "Well.",
            &[f, "g {}"][..],
        ),
        (
            "qwen-3-coder",
            "<tool_call><function=f><parameter=a>1</parameter><parameter=t>x</parameter></function><function=g></tool_call> Done",
            " Done",
            &[f, "g {}"],
        ),
        (
            "qwen-3-coder",
            "<tool_call>\n<function=f>\n<parameter=t>\n\n two\nlines\n\n</parameter>\n<parameter=on>\nTrue\n</parameter>\n<parameter=l>\n[1, \"é\"]\n</parameter>\n<parameter=n>\nnull\n</parameter>\n</function>\n</tool_call>",
            "",
            &[r#"f {"t": "\n two\nlines\n", "on": true, "l": [1,"é"], "n": null}"#],
        ),
        (
            "qwen-3-coder",
            "<tool_call>\n<function=f>\n<parameter=t>\na</parameter> b </tool_call> \"<parameter=a>\" 😀\n</parameter>\n</function>\n</tool_call>",
            "",
            &[r#"f {"t": "a</parameter> b </tool_call> \"<parameter=a>\" 😀"}"#],
        ),
        (
            "qwen-3-coder",
            "<tool_call><function=g><parameter=b>true</parameter><parameter=b>x</parameter><parameter=c>x y</parameter></function></tool_call>",
            "",
            &[r#"g {"b": true, "c": "x y"}"#],
        ),
        (
            "seed",
            "<seed:tool_call>\n<function=f>\n<parameter=a>1</parameter>\n<parameter=t>x</parameter>\n</function>\n</seed:tool_call>",
            "",
            &[f],
        ),
        (
            "glm, in lines",
            "\n<tool_call>f\n<arg_key>a</arg_key>\n<arg_value>1</arg_value>\n<arg_key>t</arg_key>\n<arg_value>x</arg_value>\n</tool_call>\n<tool_call>g\n</tool_call>",
            "",
            &[f, "g {}"],
        ),
        (
            "glm",
            "<tool_call>f<arg_key>a</arg_key><arg_value>1</arg_value><arg_key>t</arg_key><arg_value>x</arg_value></tool_call><tool_call>g</tool_call>",
            "",
            &[f, "g {}"],
        ),
        (
            "minimax-m2",
            "<minimax:tool_call>\n<invoke name=\"f\">\n<parameter name=\"a\">1</parameter>\n<parameter name=\"t\">x</parameter>\n</invoke>\n<invoke name=\"g\">\n</invoke>\n</minimax:tool_call>",
            "",
            &[f, "g {}"],
        ),
        (
            "deepseek-3.2",
            "Hm.\n\n<｜DSML｜function_calls>\n<｜DSML｜invoke name=\"f\">\n<｜DSML｜parameter name=\"a\" string=\"false\">1</｜DSML｜parameter>\n<｜DSML｜parameter name=\"t\" string=\"true\">x</｜DSML｜parameter>\n</｜DSML｜invoke>\n</｜DSML｜function_calls>",
            "Hm.",
            &[f],
        ),
        (
            "kimi-k2",
            "Hm.<|tool_calls_section_begin|><|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{\"a\": 1, \"t\": \"x\"}<|tool_call_end|><|tool_call_begin|>functions.g:1<|tool_call_argument_begin|>{}<|tool_call_end|><|tool_calls_section_end|>",
            "Hm.",
            &[f, "g {}"],
        ),
        (
            "functiongemma",
            "<start_function_call>call:f{a:1,t:<escape>x<escape>}<end_function_call><start_function_call>call:g{}<end_function_call><start_function_response>",
            "",
            &[f, "g {}"],
        ),
        (
            "functiongemma",
            "<start_function_call>call:f{t:<escape>a},b:1 <end_function_call> <esc<escape>,l:[<escape>,<escape>,{k:null}]}<end_function_call>",
            "",
            &[r#"f {"t": "a},b:1 <end_function_call> <esc", "l": [",",{"k":null}]}"#],
        ),
        (
            "gemma-4",
            "<|tool_call>call:f{a:1,t:<|\"|>x<|\"|>}<tool_call|>",
            "",
            &[f],
        ),
        (
            "lfm-2",
            "<|tool_call_start|>[f(a=1, t=\"x\"), g()]<|tool_call_end|>Checking.",
            "Checking.",
            &[f, "g {}"],
        ),
        ("python", "[f(a=1, t='x'), g()]", "", &[f, "g {}"]),
        ("python", "\n[ f( a = 1 , t = \"\"\"x\"\"\" ) ]\n", "", &[f]),
        (
            "python",
            "<|python_start|>[f(a=1, t='x')]<|python_end|>",
            "",
            &[f],
        ),
        (
            "python",
            "[f(t=\"a), g(b=1)] \\\"\", l=[(1,), {'k': 'v)'}], on=False, n=None, o={})]",
            "",
            &[
                r#"f {"t": "a), g(b=1)] \"", "l": [[1],{"k":"v)"}], "on": false, "n": null, "o": {}}"#,
            ],
        ),
        (
            "python",
            "[f(a='1', t=7)]",
            "",
            &[r#"f {"a": 1, "t": "7"}"#],
        ),
    ] {
        check(name, text, said, calls);
    }
}

#[test]
fn what_only_looks_like_such_a_call_is_text() {
    for (name, text) in [
        ("python", "[1] is a note."),
        ("python", "[f] and [g]"),
        ("python", "[f(x) is what we want]"),
        ("python", "[h(a=1)]"),
        ("python", "[f(a=b)]"),
        ("python", "[f(a=1"),
        ("python", "[f(a='1]"),
        ("python", "[f(1)]"),
        ("python", "f(a=1)"),
        ("python", "It is [f(a=1)]"),
        (
            "qwen-3-coder",
            "<tool_call>{\"name\": \"f\", \"arguments\": {}}</tool_call>",
        ),
        (
            "qwen-3-coder",
            "<tool_call>\n<function=h>\n</function>\n</tool_call>",
        ),
        ("qwen-3-coder", "<tool_call>\n<function=f\n<parameter=a>"),
        ("qwen-3-coder", "<tool_call>\n<function="),
        ("glm", "<tool_call>f is a tool</tool_call>"),
        ("glm", "<tool_call>h<arg_key>a</arg_key>"),
        ("minimax-m2", "<minimax:tool_call>\n<invoke name=\"h\">"),
        (
            "functiongemma",
            "<start_function_call>call:h{}<end_function_call>",
        ),
        ("functiongemma", "<start_function_call>f{}"),
        ("functiongemma", "<start_function_call>call:f{a:oh}"),
        (
            "kimi-k2",
            "<|tool_calls_section_begin|><|tool_call_begin|>functions.h:0<|tool_call_argument_begin|>{}",
        ),
    ] {
        check(name, text, text, &[]);
    }
}

#[test]
fn what_goes_wrong_in_such_a_call_leaks_no_mark() {
    for (name, text, said, calls) in [
        (
            "qwen-3-coder",
            "<tool_call>\n<function=f>\n<parameter=a>\n1\n</parameter>\noh\n</function>\n</tool_call> then",
            "",
            &["f {\"a\": "][..],
        ),
        (
            "minimax-m2",
            "<minimax:tool_call><invoke name=\"g\"></invoke><invoke name=\"h\"></invoke></minimax:tool_call> then",
            " then",
            &["g {}"],
        ),
        (
            "lfm-2",
            "<|tool_call_start|>[g(), h()]<|tool_call_end|> then",
            " then",
            &["g {}"],
        ),
        (
            "lfm-2",
            "<|tool_call_start|>[g() g()]<|tool_call_end|> then",
            " then",
            &["g {}"],
        ),
        (
            "gemma-4",
            "<|tool_call>call:g{} oh<tool_call|> then",
            " then",
            &["g {}"],
        ),
        (
            "glm",
            "<tool_call>f<arg_key>a</arg_key><arg_value>1</arg_value>oh</tool_call> then",
            "",
            &["f {\"a\": "],
        ),
    ] {
        check(name, text, said, calls);
    }
    // Cut in a value: what came of it is told.
    for (name, text, calls) in [
        (
            "qwen-3-coder",
            "<tool_call>\n<function=f>\n<parameter=t>\nab",
            "f {\"t\": \"ab",
        ),
        ("python", "[f(a=1, t='b", "f {\"a\": 1"),
    ] {
        let expected = (String::new(), vec![calls.to_owned()]);
        assert_eq!(
            read(formats::named(name), &[text], true),
            expected,
            "{name}"
        );
    }
}

#[test]
fn marks_that_are_no_text_are_never_said() {
    let read = |name: &str, parts: &[&str]| {
        let mut reader = Reader::new(formats::named(name), signatures());
        let mut pieces = Vec::new();
        for part in parts {
            pieces.extend(match part.strip_prefix('@') {
                Some(mark) => reader.push_mark(mark),
                None => reader.push(part),
            });
        }
        pieces.extend(reader.finish(false));
        shown(&pieces)
    };
    let none: Vec<String> = Vec::new();
    let one = |call: &str| vec![call.to_owned()];
    for (name, parts, said, calls) in [
        (
            "hermes",
            &[
                "a",
                "@<tool_call>",
                "{\"name\": \"g\", \"arguments\": {}}",
                "@</tool_call>",
                "b",
            ][..],
            "ab",
            one("g {}"),
        ),
        (
            "hermes",
            &["a", "@<tool_call>", " oh ", "@</tool_call>", "b"],
            "a oh b",
            none.clone(),
        ),
        ("hermes", &["a", "@</tool_call>", "b"], "ab", none.clone()),
        (
            "hermes",
            &["a", "@<tool_call>", "@</tool_call>", "b"],
            "ab",
            none.clone(),
        ),
        ("hermes", &["a", "@<tool_call>"], "a", none.clone()),
        (
            "python",
            &["@<|python_start|>", "[g()]", "@<|python_end|>"],
            "",
            one("g {}"),
        ),
        ("python", &["@<|python_end|>", "[g()]"], "", one("g {}")),
        (
            "gemma-4",
            &[
                "@<|tool_call>",
                "call:f{t:",
                "@<|\"|>",
                "x",
                "@<|\"|>",
                "}",
                "@<tool_call|>",
                "@<|tool_response>",
            ],
            "",
            one("f {\"t\": \"x\"}"),
        ),
        (
            "deepseek-3.2",
            &[
                "a<",
                "@｜DSML｜",
                "function_calls>\n<",
                "@｜DSML｜",
                "invoke name=\"g\">\n</",
                "@｜DSML｜",
                "invoke>\n</",
                "@｜DSML｜",
                "function_calls>",
            ],
            "a",
            one("g {}"),
        ),
    ] {
        assert_eq!(
            read(name, parts),
            (said.to_owned(), calls),
            "{name}: {parts:?}"
        );
    }
}

#[test]
fn texts_in_tags_come_as_they_are_written() {
    let mut reader = Reader::new(formats::named("qwen-3-coder"), signatures());
    reader.push("<tool_call>\n<function=f>\n<parameter=t>\n");
    let more = |text: &str| {
        vec![Piece::Arguments {
            number: 0,
            text: text.to_owned(),
        }]
    };
    assert_eq!(reader.push("one\n"), more("one"));
    assert_eq!(reader.push("two"), more("\\ntwo"));
    assert_eq!(reader.push("\n</para"), []);
    assert_eq!(reader.push("ble>"), more("\\n</parable>"));
}

#[test]
fn ids_of_kimi_are_what_it_writes() {
    let mut reader = Reader::new(formats::named("kimi-k2"), signatures());
    let call = |number: u8| {
        format!(
            "<|tool_call_begin|>functions.g:{number}<|tool_call_argument_begin|>{{}}<|tool_call_end|>"
        )
    };
    reader.push(&format!(
        "<|tool_calls_section_begin|>{}{}",
        call(4),
        call(5)
    ));
    let (_, _, calls) = reader.into_parts();
    let ids: Vec<&str> = calls.iter().map(|call| call.id.as_str()).collect();
    assert_eq!(ids, ["functions.g:4", "functions.g:5"]);
}

#[test]
fn long_values_are_read_in_time() {
    for (name, before, after) in [
        (
            "qwen-3-coder",
            "<tool_call><function=f><parameter=t>",
            "</parameter></function></tool_call>",
        ),
        (
            "qwen-3-coder",
            "<tool_call><function=g><parameter=t>",
            "</parameter></function></tool_call>",
        ),
        ("python", "[f(t='", "')]"),
    ] {
        let mut reader = Reader::new(formats::named(name), signatures());
        reader.push(before);
        for _ in 0..200_000 {
            reader.push("</paramet");
        }
        reader.push(after);
        reader.finish(false);
        let (_, _, calls) = reader.into_parts();
        assert!(
            calls[0].arguments.len() > 1_800_000 && calls[0].arguments.ends_with("\"}"),
            "{name}"
        );
    }
}

#[test]
fn calls_come_after_thoughts() {
    let text = "<think>Call <tool_call>?</think>\n\n<tool_call>{\"name\": \"g\", \"arguments\": {}}</tool_call>";
    for at in 0..text.len() {
        let thoughts = super::super::thoughts::of_template("</think>").unwrap();
        let thoughts = Thoughts::after(thoughts, "");
        let mut reader = Reader::new(formats::named("hermes"), signatures()).thinking(thoughts);
        let mut pieces = reader.push(&text[..at]);
        pieces.extend(reader.push(&text[at..]));
        pieces.extend(reader.finish(false));
        let calls = pieces
            .iter()
            .filter(|piece| matches!(piece, Piece::Begun { .. }));
        assert_eq!(calls.count(), 1, "{at}");
        assert!(!reader.thinks());
        let (thought, said, calls) = reader.into_parts();
        assert_eq!(
            (&*thought, &*said, &*calls[0].name),
            ("Call <tool_call>?", "", "g"),
            "{at}"
        );
    }
}
