use super::*;
use crate::serve::tools::{To, check, formats};

fn tools() -> Vec<Tool> {
    let schema = json!({ "type": "object", "properties": { "a": { "$ref": "#/$defs/n" } }, "required": ["a"],
        "additionalProperties": false, "$defs": { "n": { "type": "integer", "maximum": 9 } } });
    let tool = |name: &str, parameters| Tool {
        name: name.to_owned(),
        description: None,
        parameters,
        place: String::new(),
    };
    vec![tool("f", Some(schema)), tool("g", None)]
}

fn grammar(format: &str, calls: Calls, held: Option<&Held>) -> Grammar {
    let tools = tools();
    let tools: Vec<&Tool> = tools.iter().collect();
    of(
        formats::named(format),
        &mut Marks::of(None),
        &tools,
        calls,
        held,
    )
    .unwrap()
}

/// Whether a grammar takes a text, as a whole.
fn takes(grammar: &Grammar, text: &str) -> bool {
    let mut matcher =
        check::matcher(grammar).unwrap_or_else(|error| panic!("{}\n{error}", grammar.source));
    for byte in text.bytes() {
        if matcher.is_stopped() || matcher.try_consume_tokens(&[u32::from(byte)]).unwrap() == 0 {
            return false;
        }
    }
    matcher.is_accepting().unwrap()
}

const FREE: Calls = Calls {
    must: false,
    several: true,
};
const MUST: Calls = Calls {
    must: true,
    several: true,
};
const ONE: Calls = Calls {
    must: true,
    several: false,
};

#[test]
fn every_family_is_held_to_what_its_reader_reads() {
    for (format, one, two) in [
        (
            "hermes",
            "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": 1}}\n</tool_call>",
            "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": 1}}\n</tool_call>\n<tool_call>\n{\"name\": \"g\", \"arguments\": {}}\n</tool_call>",
        ),
        (
            "phi-4",
            r#"<|tool_call|>[{"name": "f", "arguments": {"a": 1}}]<|/tool_call|>"#,
            r#"<|tool_call|>[{"name": "f", "arguments": {"a": 1}}, {"name": "g", "arguments": {}}]<|/tool_call|>"#,
        ),
        (
            "mistral",
            r#"[TOOL_CALLS][{"name": "f", "arguments": {"a": 1}}]"#,
            r#"[TOOL_CALLS][{"name": "f", "arguments": {"a": 1}}, {"name": "g", "arguments": {}}]"#,
        ),
        (
            "mistral, named",
            r#"[TOOL_CALLS]f[ARGS]{"a": 1}"#,
            r#"[TOOL_CALLS]f[ARGS]{"a": 1}[TOOL_CALLS]g[ARGS]{}"#,
        ),
        (
            "deepseek",
            "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n{\"a\": 1}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
            "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n{\"a\": 1}\n```<｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>function<｜tool▁sep｜>g\n```json\n{}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        ),
        (
            "deepseek-3.1",
            "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>{\"a\": 1}<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
            "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>{\"a\": 1}<｜tool▁call▁end｜><｜tool▁call▁begin｜>g<｜tool▁sep｜>{}<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        ),
        (
            "llama-3",
            r#"{"name": "f", "parameters": {"a": 1}}"#,
            r#"{"name": "f", "parameters": {"a": 1}}; {"name": "g", "parameters": {}}"#,
        ),
        (
            "command-r7b",
            r#"<|START_ACTION|>[{"tool_name": "f", "parameters": {"a": 1}}]<|END_ACTION|>"#,
            r#"<|START_ACTION|>[{"tool_name": "f", "parameters": {"a": 1}}, {"tool_name": "g", "parameters": {}}]<|END_ACTION|>"#,
        ),
    ] {
        let (free, must, single) = (
            grammar(format, FREE, None),
            grammar(format, MUST, None),
            grammar(format, ONE, None),
        );
        for grammar in [&free, &must, &single] {
            assert!(takes(grammar, one), "{format}: {}", grammar.source);
            assert_eq!(
                takes(grammar, two),
                *grammar != single,
                "{format}: {}",
                grammar.source
            );
            assert!(
                !takes(grammar, &one.replace("1}", "10}")),
                "{format}: {}",
                grammar.source
            );
            assert!(
                !takes(grammar, &one.replace("\"a\"", "\"b\"")),
                "{format}: {}",
                grammar.source
            );
            assert_eq!(
                takes(grammar, "No tool helps."),
                *grammar == free,
                "{format}: {}",
                grammar.source
            );
        }
        let said = format!("Let me see. {one}");
        // What begins with a call is one; else this family's calls are text.
        assert!(takes(&free, &said), "{format}: {}", free.source);
        assert!(!takes(&must, &said) && !takes(&must, ""), "{format}");
        let mut reader =
            crate::serve::tools::Reader::new(formats::named(format), vec!["f".into(), "g".into()]);
        reader.push(two);
        reader.finish(false);
        let (text, calls) = reader.into_parts();
        let calls: Vec<&str> = calls.iter().map(|call| call.arguments.as_str()).collect();
        assert_eq!(
            (text.as_str(), &calls[..]),
            ("", &[r#"{"a": 1}"#, "{}"][..]),
            "{format}"
        );
    }
}

#[test]
fn a_format_may_stand_beside_calls() {
    let held = |to| Held {
        to,
        field: "response_format",
        place: "",
    };
    let number = held(To::Schema(json!({ "type": "integer", "maximum": 7 })));
    let grammar = grammar("hermes", FREE, Some(&number));
    assert!(takes(&grammar, "7") && !takes(&grammar, "8") && !takes(&grammar, "x"));
    assert!(takes(
        &grammar,
        "<tool_call>\n{\"name\": \"g\", \"arguments\": {}}\n</tool_call>"
    ));
    let tools = tools();
    let tools: Vec<&Tool> = tools.iter().collect();
    let lark = held(To::Lark("start: \"a\"".into()));
    assert!(
        of(
            formats::GENERIC,
            &mut Marks::of(None),
            &tools,
            FREE,
            Some(&lark)
        )
        .is_err()
    );
}

#[test]
fn engines_without_lark_get_a_schema() {
    let tools = tools();
    let grammar = as_schema(&tools.iter().collect::<Vec<_>>());
    assert_eq!(grammar.kind, "json_schema");
    assert!(takes(&grammar, r#"{"name": "f", "arguments": {"a": 1}}"#));
    assert!(takes(&grammar, r#"{"name": "g", "arguments": {}}"#));
    assert!(!takes(&grammar, r#"{"name": "f", "arguments": {"a": 10}}"#));
    assert!(!takes(&grammar, r#"{"name": "h", "arguments": {}}"#));
}
