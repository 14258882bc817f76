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
        None,
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
        let signatures = tools().iter().map(Tool::signature).collect();
        let mut reader = crate::serve::tools::Reader::new(formats::named(format), signatures);
        reader.push(two);
        reader.finish(false);
        let (_, text, calls) = reader.into_parts();
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
            Some(&lark),
            None
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

/// One call of `f` with the 1 in it, and a call of `g` behind it.
const OTHERS: &[(&str, &str, &str)] = &[
    (
        "qwen-3-coder",
        "<tool_call>\n<function=f>\n<parameter=a>\n1\n</parameter>\n<parameter=t>\nx y</parameter\n</parameter>\n</function>\n</tool_call>",
        "\n<tool_call>\n<function=g>\n</function>\n</tool_call>",
    ),
    (
        "glm, in lines",
        "<tool_call>f\n<arg_key>a</arg_key>\n<arg_value>1</arg_value>\n<arg_key>t</arg_key>\n<arg_value>x y</arg_value>\n</tool_call>",
        "\n<tool_call>g\n</tool_call>",
    ),
    (
        "glm",
        "<tool_call>f<arg_key>a</arg_key><arg_value>1</arg_value><arg_key>t</arg_key><arg_value>x y</arg_value></tool_call>",
        "<tool_call>g</tool_call>",
    ),
    (
        "kimi-k2",
        "<|tool_calls_section_begin|><|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{\"a\": 1, \"t\": \"x y\"}<|tool_call_end|>",
        "<|tool_call_begin|>functions.g:1<|tool_call_argument_begin|>{}<|tool_call_end|>",
    ),
    (
        "functiongemma",
        "<start_function_call>call:f{a:1,t:<escape>x y<escape>}<end_function_call>",
        "<start_function_call>call:g{}<end_function_call>",
    ),
    (
        "gemma-4",
        "<|tool_call>call:f{a:1,t:<|\"|>x y<|\"|>}<tool_call|>",
        "<|tool_call>call:g{}<tool_call|>",
    ),
];

/// The same of formats with marks around all calls: what is before, the calls, and what is between and behind.
const TOGETHER: &[(&str, &str, &str, &str, &str, &str)] = &[
    (
        "minimax-m2",
        "<minimax:tool_call>\n",
        "<invoke name=\"f\">\n<parameter name=\"a\">1</parameter>\n<parameter name=\"t\">x y</parameter>\n</invoke>",
        "\n",
        "<invoke name=\"g\">\n</invoke>",
        "\n</minimax:tool_call>",
    ),
    (
        "deepseek-3.2",
        "<｜DSML｜function_calls>\n",
        "<｜DSML｜invoke name=\"f\">\n<｜DSML｜parameter name=\"a\" string=\"false\">1</｜DSML｜parameter>\n<｜DSML｜parameter name=\"t\" string=\"true\">x y</｜DSML｜parameter>\n</｜DSML｜invoke>",
        "\n",
        "<｜DSML｜invoke name=\"g\">\n</｜DSML｜invoke>",
        "\n</｜DSML｜function_calls>",
    ),
    (
        "lfm-2",
        "<|tool_call_start|>[",
        "f(a=1, t=\"x y\")",
        ", ",
        "g()",
        "]<|tool_call_end|>",
    ),
    ("python", "[", "f(a=1, t=\"x y\")", ", ", "g()", "]"),
];

#[test]
fn families_that_write_no_json_are_held_to_what_their_readers_read() {
    let mut all: Vec<(&str, String, String)> = Vec::new();
    for (format, one, more) in OTHERS {
        let end = if *format == "kimi-k2" {
            "<|tool_calls_section_end|>"
        } else {
            ""
        };
        all.push((*format, format!("{one}{end}"), format!("{one}{more}{end}")));
    }
    for (format, before, one, between, more, behind) in TOGETHER {
        let two = format!("{before}{one}{between}{more}{behind}");
        all.push((*format, format!("{before}{one}{behind}"), two));
    }
    let number = json!({ "$ref": "#/$defs/n" });
    let schema = json!({ "type": "object", "properties": { "a": number, "t": { "type": "string" }, "on": { "type": "boolean" } },
        "required": ["a"], "additionalProperties": false, "$defs": { "n": { "type": "integer", "maximum": 9 } } });
    let mut tools = tools();
    tools[0].parameters = Some(schema);
    let offered: Vec<&Tool> = tools.iter().collect();
    for (name, one, two) in &all {
        let format = formats::named(name);
        let grammar =
            |calls| of(format, &mut Marks::of(None), &offered, calls, None, None).unwrap();
        let (free, must, single) = (grammar(FREE), grammar(MUST), grammar(ONE));
        for grammar in [&free, &must, &single] {
            let source = &grammar.source;
            assert!(takes(grammar, one), "{name}: {one}\n{source}");
            assert_eq!(
                takes(grammar, two),
                *grammar != single,
                "{name}: {two}\n{source}"
            );
            for more in ["10", "x"] {
                let wrong = one.replacen('1', more, 1);
                assert!(!takes(grammar, &wrong), "{name}: {wrong}\n{source}");
            }
            assert_eq!(
                takes(grammar, "No tool helps."),
                *grammar == free,
                "{name}: {source}"
            );
        }
        assert!(
            takes(&free, &format!("Let me see. {one}")),
            "{name}: {}",
            free.source
        );
        assert!(!takes(&must, ""), "{name}");
        let mut reader =
            crate::serve::tools::Reader::new(format, tools.iter().map(Tool::signature).collect());
        reader.push(two);
        reader.finish(false);
        let (_, text, calls) = reader.into_parts();
        let calls: Vec<Value> = calls
            .iter()
            .map(|call| serde_json::from_str(&call.arguments).unwrap())
            .collect();
        assert_eq!(text, "", "{name}");
        assert_eq!(calls[0]["a"], 1, "{name}");
        assert!(calls[0]["t"].as_str().unwrap().starts_with("x y"), "{name}");
        assert_eq!(calls[1], json!({}), "{name}");
    }
}

#[test]
fn parameters_of_every_kind_are_held_to() {
    let schema = json!({ "type": "object", "properties": {
        "on": { "type": "boolean" },
        "unit": { "enum": ["c", "f", 1] },
        "short": { "type": "string", "maxLength": 3 },
        "maybe": { "type": ["integer", "null"] },
        "all": { "type": "array", "items": { "$ref": "#/properties/on" } },
    }, "required": ["unit"] });
    let tool = Tool {
        name: "f".into(),
        description: None,
        parameters: Some(schema),
        place: String::new(),
    };
    let free = Tool {
        name: "g".into(),
        description: None,
        parameters: Some(json!({ "type": "object" })),
        place: String::new(),
    };
    let offered = [&tool, &free];
    for (name, right, wrong) in [
        (
            "python",
            &[
                "[f(on=True, unit=\"c\")]",
                "[f(unit=1, maybe=None)]",
                "[f(unit=\"f\", short=\"abc\", maybe=7, all=[true, false])]",
                "[g()]",
                "[g(x=[1], y=\"z\")]",
            ][..],
            &[
                "[f()]",
                "[f(on=True)]",
                "[f(unit=\"d\")]",
                "[f(unit=\"c\", on=True)]",
                "[f(unit=\"c\", short=\"abcd\")]",
                "[f(unit=\"c\", maybe=\"x\")]",
            ][..],
        ),
        (
            "functiongemma",
            &[
                "<start_function_call>call:f{on:true,unit:<escape>c<escape>}<end_function_call>",
                "<start_function_call>call:f{unit:1,short:<escape>abc<escape>,maybe:null,all:[true]}<end_function_call>",
                "<start_function_call>call:g{x:{y:<escape>}<escape>}}<end_function_call>",
            ],
            &[
                "<start_function_call>call:f{}<end_function_call>",
                "<start_function_call>call:f{unit:<escape>d<escape>}<end_function_call>",
                "<start_function_call>call:f{unit:1,short:<escape>abcd<escape>}<end_function_call>",
            ],
        ),
        (
            "glm",
            &[
                "<tool_call>f<arg_key>unit</arg_key><arg_value>c</arg_value><arg_key>all</arg_key><arg_value>[true]</arg_value></tool_call>",
                "<tool_call>g<arg_key>x</arg_key><arg_value>any thing</arg_value></tool_call>",
                "<tool_call>g</tool_call>",
            ],
            &[
                "<tool_call>f</tool_call>",
                "<tool_call>f<arg_key>unit</arg_key><arg_value>d</arg_value></tool_call>",
                "<tool_call>f<arg_key>unit</arg_key><arg_value>c</arg_value><arg_key>short</arg_key><arg_value>abcd</arg_value></tool_call>",
                "<tool_call>f<arg_key>unit</arg_key><arg_value>c</arg_value><arg_key>all</arg_key><arg_value>[1]</arg_value></tool_call>",
            ],
        ),
    ] {
        let grammar = of(
            formats::named(name),
            &mut Marks::of(None),
            &offered,
            MUST,
            None,
            None,
        )
        .unwrap();
        for text in right {
            assert!(takes(&grammar, text), "{name}: {text}\n{}", grammar.source);
        }
        for text in wrong {
            assert!(!takes(&grammar, text), "{name}: {text}\n{}", grammar.source);
        }
    }
}

#[test]
fn thoughts_come_before_what_is_held() {
    let marks = crate::serve::tools::thoughts::of_template("</think>").unwrap();
    let after = |prompt| Thoughts::after(marks, prompt).unwrap();
    let (opened, open) = (after("<think>"), after(""));
    let number = Held {
        to: To::Schema(json!({ "type": "integer", "maximum": 7 })),
        field: "response_format",
        place: "",
    };
    let word = Held {
        to: To::Regex("a+/b".into()),
        ..number.clone()
    };
    let tools = tools();
    let tools: Vec<&Tool> = tools.iter().collect();
    let call = "<tool_call>\n{\"name\": \"g\", \"arguments\": {}}\n</tool_call>";
    for (thoughts, before, others) in [
        (opened, "Hm, {7}.</think>\n\n", ["", "Hm. "]),
        (
            open,
            "<think>\nHm, {8}.\n</think>\n\n",
            ["Hm, {7}.</think>\n\n", "<think>Hm. "],
        ),
    ] {
        let held = |held: &Held| super::held(&mut Marks::of(None), thoughts, held).unwrap();
        let calls = |calls| {
            let hermes = formats::named("hermes");
            of(
                hermes,
                &mut Marks::of(None),
                &tools,
                calls,
                None,
                Some(thoughts),
            )
            .unwrap()
        };
        let (held, words, must, free) = (held(&number), held(&word), calls(MUST), calls(FREE));
        for (grammar, right, wrong) in [
            (&held, "7", "8"),
            (&words, "aa/b", "b"),
            (&must, call, "No."),
        ] {
            let source = &grammar.source;
            assert!(
                takes(grammar, &format!("{before}{right}")),
                "{before}{right}: {source}"
            );
            assert!(
                !takes(grammar, &format!("{before}{wrong}")),
                "{before}{wrong}: {source}"
            );
            assert_eq!(takes(grammar, right), !thoughts.opened, "{right}: {source}");
            for other in others.iter().filter(|other| !other.is_empty()) {
                assert!(
                    !takes(grammar, &format!("{other}{right}")),
                    "{other}{right}: {source}"
                );
            }
        }
        for said in ["No.", call, &format!("Well. {call}")] {
            assert!(
                takes(&free, &format!("{before}{said}")),
                "{said}: {}",
                free.source
            );
        }
        let wrong = call.replace("\"g\"", "\"h\"");
        assert!(
            !takes(&free, &format!("{before}{wrong}")),
            "{}",
            free.source
        );
    }
}

#[test]
fn channels_hold_calls_and_formats() {
    let tools = tools();
    let tools: Vec<&Tool> = tools.iter().collect();
    let number = Held {
        to: To::Schema(json!({ "type": "integer", "maximum": 7 })),
        field: "response_format",
        place: "",
    };
    let thought = "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant";
    let call = |days: &str| {
        format!(
            "<|channel|>commentary to=functions.f <|constrain|>json<|message|>{{\"a\": {days}}}"
        )
    };
    let said = |text: &str| format!("<|channel|>final<|message|>{text}");
    let of = |must, held| in_channels(&mut Marks::of(None), &tools, must, held).unwrap();
    let (must, free, or) = (of(true, None), of(false, None), of(false, Some(&number)));
    let held = in_channels(&mut Marks::of(None), &[], true, Some(&number)).unwrap();
    for (grammar, calls, texts, numbers) in [
        (&must, true, false, false),
        (&free, true, true, true),
        (&or, true, false, true),
        (&held, false, false, true),
    ] {
        for before in ["", thought] {
            let takes = |text: String| takes(grammar, &format!("{before}{text}"));
            assert_eq!(takes(call("1")), calls, "{}", grammar.source);
            assert!(!takes(call("10")), "{}", grammar.source);
            assert_eq!(takes(said("Yes.")), texts, "{}", grammar.source);
            assert_eq!(takes(said("7")), numbers, "{}", grammar.source);
        }
    }
}

/// Numbers that are as good as random.
struct Dice(u64);

impl Dice {
    fn below(&mut self, count: usize) -> usize {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (self.0 >> 33) as usize % count
    }
}

/// A text that a grammar takes; `None` where it goes on and on.
fn sample(grammar: &Grammar, dice: &mut Dice) -> Option<String> {
    let mut matcher = check::matcher(grammar).unwrap();
    let mut text = Vec::new();
    while text.len() < 1500 {
        if matcher.is_stopped() || matcher.is_accepting().unwrap() && dice.below(2) == 0 {
            return String::from_utf8(text).ok();
        }
        let mask = matcher.compute_mask().unwrap();
        // Letters that people write, and seldom white space.
        let allowed: Vec<u32> = (32..127)
            .chain([10])
            .filter(|&byte| mask.is_allowed(byte))
            .collect();
        let dark: Vec<u32> = allowed.iter().copied().filter(|&byte| byte > 32).collect();
        // What is in no other text is a part of a mark beyond ASCII.
        let some = if dark.is_empty() || dice.below(8) == 0 {
            &allowed
        } else {
            &dark
        };
        let byte = match some.len() {
            0 => (128..256).find(|&byte| mask.is_allowed(byte))?,
            count => some[dice.below(count)],
        };
        matcher.consume_token(byte).unwrap();
        text.push(byte as u8);
    }
    None
}

#[test]
fn whatever_a_grammar_takes_is_read_as_calls_by_the_schema() {
    let schema = json!({ "type": "object", "properties": {
        "t": { "type": "string", "maxLength": 5 },
        "n": { "type": "integer", "minimum": -9, "maximum": 99 },
        "on": { "type": "boolean" },
        "unit": { "enum": ["c", "f", 1, null] },
        "l": { "type": "array", "items": { "type": "integer", "minimum": 0, "maximum": 9 }, "maxItems": 2 },
    }, "required": ["n", "unit"], "additionalProperties": false });
    let mut tools = tools();
    tools[0].parameters = Some(schema);
    let offered: Vec<&Tool> = tools.iter().collect();
    let mut dice = Dice(7);
    for name in [
        "qwen-3-coder",
        "seed",
        "glm, in lines",
        "glm",
        "minimax-m2",
        "deepseek-3.2",
        "deepseek-4",
        "kimi-k2",
        "functiongemma",
        "gemma-4",
        "lfm-2",
        "python",
        "hermes",
        "channels",
    ] {
        let format = formats::named(name);
        let mut marks = Marks::of(None);
        let grammar = match name {
            "channels" => in_channels(&mut marks, &offered, true, None).unwrap(),
            _ => of(format, &mut marks, &offered, MUST, None, None).unwrap(),
        };
        let mut read = 0;
        let mut tries = 0;
        while tries < 12 || (read == 0 && tries < 100) {
            tries += 1;
            let Some(text) = sample(&grammar, &mut dice) else {
                continue;
            };
            let signatures = tools.iter().map(Tool::signature).collect();
            let mut reader = crate::serve::tools::Reader::new(format, signatures);
            reader.push(&text);
            reader.finish(false);
            let whole = reader.whole();
            let (_, said, calls) = reader.into_parts();
            assert!(
                !calls.is_empty() && calls.len() == whole,
                "{name}: {text:?}: {calls:?}"
            );
            assert!(
                said.is_empty() || name == "channels",
                "{name}: {text:?}: {said:?}"
            );
            for call in calls.iter().filter(|call| call.name == "f") {
                let given: Value = serde_json::from_str(&call.arguments).unwrap_or_else(|error| {
                    panic!("{name}: {text:?}: {}: {error}", call.arguments)
                });
                // A whole number too, though none of `i64`.
                let zero = (given["n"] == json!(-0.0)).then_some(0);
                let right = given["n"]
                    .as_i64()
                    .or(zero)
                    .is_some_and(|n| (-9..=99).contains(&n))
                    && [json!("c"), json!("f"), json!(1), json!(null)].contains(&given["unit"])
                    && given
                        .get("t")
                        .is_none_or(|t| t.as_str().is_some_and(|t| t.chars().count() <= 5))
                    && given.get("on").is_none_or(Value::is_boolean)
                    && given.get("l").is_none_or(Value::is_array);
                assert!(right, "{name}: {text:?}: {given}");
            }
            read += 1;
        }
        assert!(read > 0, "{name}");
    }
}
