use super::*;
use crate::engine::tokenizer;
use backplane_tokenizer::EncodeOptions;
use serde_json::{Value, json};

pub(crate) fn grammars() -> &'static Grammars {
    static GRAMMARS: OnceLock<Grammars> = OnceLock::new();
    GRAMMARS.get_or_init(|| Grammars::new(tokenizer()))
}

fn compile(kind: &str, source: impl ToString) -> Result<Constraint> {
    grammars().compile(&Grammar {
        kind: kind.to_owned(),
        source: source.to_string(),
    })
}

/// How far a text is allowed, and whether it is whole then.
fn follow(constraint: &mut Constraint, text: &str) -> (String, bool) {
    let tokenizer = tokenizer();
    let plain = EncodeOptions {
        add_special: false,
        parse_special: false,
    };
    let mut taken = Vec::new();
    for token in tokenizer.encode(text, plain).unwrap() {
        if constraint.is_complete() {
            break;
        }
        let mut logits = vec![0.0; 600];
        constraint.mask(&mut logits, &[]).unwrap();
        assert!(
            logits[tokenizer.vocab_size()..]
                .iter()
                .all(|it| *it == f32::NEG_INFINITY)
        );
        if logits[token as usize] == f32::NEG_INFINITY {
            break;
        }
        constraint.accept(token).unwrap();
        taken.extend(tokenizer.token_bytes(token).unwrap());
    }
    let text = String::from_utf8_lossy(&taken).into_owned();
    let whole = constraint.is_complete() || {
        let mut logits = vec![0.0; 600];
        constraint.mask(&mut logits, &[]).unwrap();
        let ends = tokenizer.end_of_generation();
        ends.iter().all(|&end| logits[end as usize] == 0.0)
    };
    (text, whole)
}

#[test]
fn what_nothing_satisfies_is_said_so() {
    for (kind, source) in [
        ("json_schema", json!({ "$ref": "#" }).to_string()),
        ("lark", "start: a\na: a".to_owned()),
    ] {
        let mut constraint = compile(kind, &source).unwrap();
        let error = constraint.mask(&mut [0.0; 600], &[]).unwrap_err();
        assert_eq!(error.message, "grammar: no text satisfies it", "{source}");
        assert_eq!(error.field, "grammar");
    }
}

fn check(kind: &str, source: impl ToString, right: &[&str], wrong: &[&str]) {
    let source = source.to_string();
    for text in right {
        let mut constraint =
            compile(kind, &source).unwrap_or_else(|error| panic!("{source}: {error}"));
        let (taken, whole) = follow(&mut constraint, text);
        assert_eq!((taken.as_str(), whole), (*text, true), "{source}");
    }
    for text in wrong {
        let mut constraint = compile(kind, &source).unwrap();
        let (taken, whole) = follow(&mut constraint, text);
        assert!(taken != *text || !whole, "{source} takes {text:?}");
    }
}

#[test]
fn every_kind_holds_a_text_to_it() {
    check(
        "regex",
        "(yes|no)!{1,2}",
        &["yes!", "no!!"],
        &["yes", "maybe!", "no!!!", ""],
    );
    check("regex", "a*", &["", "aaa"], &["b"]);
    let lark = "start: sum\nsum: NUMBER (\" + \" NUMBER)*\nNUMBER: /[0-9]{1,3}/";
    check("lark", lark, &["1", "12 + 3 + 456"], &["1 +", "+", "1234"]);
    let schema = json!({ "type": "object", "properties": { "b": { "type": "integer" }, "a": { "enum": ["x", "é😀"] } },
        "required": ["b", "a"], "additionalProperties": false });
    let right = [r#"{"b":1,"a":"x"}"#, "{ \"b\": -20,\n  \"a\": \"é😀\" }"];
    let wrong = [
        r#"{"a":"x","b":1}"#,
        r#"{"b":1}"#,
        r#"{"b":1.5,"a":"x"}"#,
        r#"{"b":1,"a":"x","c":1}"#,
        "[]",
    ];
    check("json_schema", schema, &right, &wrong);
}

#[test]
fn references_are_followed_wherever_they_lead() {
    // Into the middle of another place, before what it names stands.
    let inside = json!({ "type": "object", "required": ["leaf", "tree"], "additionalProperties": false, "properties": {
        "leaf": { "$ref": "#/properties/tree/anyOf/0" },
        "tree": { "anyOf": [{ "type": "string", "maxLength": 3 }, { "type": "array", "items": { "$ref": "#/properties/tree" } }] } } });
    check(
        "json_schema",
        &inside,
        &[r#"{"leaf":"a","tree":[["b"],"c"]}"#],
        &[r#"{"leaf":["a"],"tree":"b"}"#, r#"{"leaf":"a","tree":1}"#],
    );
    // Definitions in any order, one by way of another.
    let defs = json!({ "$ref": "#/$defs/a", "$defs": { "a": { "type": "array", "items": { "$ref": "#/$defs/c" }, "maxItems": 2 },
        "b": { "enum": ["q"] }, "c": { "$ref": "#/$defs/b" } } });
    check(
        "json_schema",
        &defs,
        &[r#"["q","q"]"#, "[]"],
        &[r#"["r"]"#, r#"["q","q","q"]"#],
    );
    let older = json!({ "definitions": { "a/b c": { "const": 7 } }, "type": "array", "items": { "$ref": "#/definitions/a~1b%20c" } });
    check("json_schema", &older, &["[7,7]"], &["[8]"]);
    let itself = json!({ "type": "object", "properties": { "next": { "anyOf": [{ "$ref": "#" }, { "type": "null" }] } },
        "required": ["next"], "additionalProperties": false });
    check(
        "json_schema",
        &itself,
        &[r#"{"next":{"next":null}}"#],
        &[r#"{"next":{}}"#],
    );
}

#[test]
fn what_is_wrong_with_a_grammar_is_said() {
    let long = "a".repeat(LONGEST + 1);
    let deep = format!(
        "start: {}\"a\"{}",
        "(".repeat(DEEPEST + 1),
        ")".repeat(DEEPEST + 1)
    );
    for (kind, source, said) in [
        ("gbnf", "root ::= \"a\"", "found kind \"gbnf\""),
        ("json_schema", "{", "the schema is no JSON"),
        ("json_schema", "7", ""),
        ("json_schema", r#"{"type": "objet"}"#, "objet"),
        ("json_schema", r##"{"$ref": "#/$defs/none"}"##, "none"),
        (
            "json_schema",
            r#"{"$ref": "https://example.com/a.json"}"#,
            "",
        ),
        (
            "json_schema",
            r#"{"type": "string", "pattern": "(?=a)"}"#,
            "",
        ),
        (
            "json_schema",
            r#"{"type": "integer", "minimum": 2, "maximum": 1}"#,
            "",
        ),
        // The compiler would call itself without end.
        (
            "json_schema",
            r#"{"const": -9223372036854775808}"#,
            "/const: -9223372036854775808 is",
        ),
        (
            "lark",
            r#"start: a | %json {"items": {"minimum": -9223372036854775808}}"#,
            "/items/minimum: ",
        ),
        ("json_schema", "", "it is empty"),
        ("regex", "(a", ""),
        ("regex", "(?<=a)b", ""),
        ("lark", "start: nothing", "nothing"),
        ("lark", "start \"a\"", ""),
        ("lark", "begin: \"a\"", "start"),
        ("lark", "start: <|no_such_token|>", ""),
        ("lark", &long, "expected at most 524288"),
        ("lark", &deep, "nested more than 500 deep"),
    ] {
        let error = compile(kind, source).expect_err(source);
        assert_eq!(
            (error.code, error.field.as_str()),
            (ErrorCode::InvalidRequest, "grammar"),
            "{kind} {source}"
        );
        assert!(
            error.message.starts_with("grammar: ") && error.message.contains(said),
            "{}",
            error.message
        );
        assert!(
            !error.message.contains('\n') && error.message.len() < 1000,
            "{}",
            error.message
        );
    }
}

/// Each is an error, or a grammar that can be followed: no crash, no hang.
#[test]
fn hostile_grammars_end() {
    let many =
        |count: usize, one: &dyn Fn(usize) -> String| (0..count).map(one).collect::<String>();
    let chain = format!(
        "start: r0\n{}r6000: \"a\"\n",
        many(6000, &|at| format!("r{at}: r{}\n", at + 1))
    );
    let terminals = format!(
        "start: T0\n{}T6000: \"a\"\n",
        many(6000, &|at| format!("T{at}: T{}\n", at + 1))
    );
    let references = many(3000, &|at| {
        format!("\"d{at}\": {{\"$ref\": \"#/$defs/d{}\"}},", at + 1)
    });
    let doubling = many(24, &|at| {
        format!(
            "\"d{at}\": {{\"type\": \"object\", \"properties\": {{\"a\": {{\"$ref\": \"#/$defs/d{0}\"}}, \"b\": {{\"$ref\": \"#/$defs/d{0}\"}}}}}},",
            at + 1
        )
    });
    let all_of = (0..60)
        .map(|at| json!({ "type": "string", "pattern": format!("a{{{at},}}b*") }))
        .collect::<Vec<Value>>();
    let wide: serde_json::Map<_, _> = (0..4000)
        .map(|at| (format!("p{at}"), json!({ "type": "string" })))
        .collect();
    for (kind, source) in [
        ("regex", "((((a{1,100}){1,100}){1,100}){1,100}){1,100}".to_owned()),
        ("regex", "(a|b|ab)*(a?){500}a{500}".to_owned()),
        ("regex", "(.*a){30}.{1000}".to_owned()),
        ("regex", format!("{}a", "(a|".repeat(200)) + &")".repeat(200)),
        ("lark", chain),
        ("lark", terminals),
        ("lark", "start: start start | \"a\" start | ".to_owned()),
        ("lark", "start: A{1000000000}\nA: \"a\"".to_owned()),
        ("lark", "start: /(a|b)*a(a|b){60}/".to_owned()),
        ("json_schema", format!("{{\"$ref\": \"#/$defs/d0\", \"$defs\": {{{references}\"d3000\": {{\"type\": \"null\"}}}}}}")),
        ("json_schema", format!("{{\"$ref\": \"#/$defs/d0\", \"$defs\": {{{doubling}\"d24\": {{\"type\": \"null\"}}}}}}")),
        ("json_schema", r##"{"$ref": "#"}"##.to_owned()),
        ("json_schema", r##"{"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}}"##.to_owned()),
        ("json_schema", json!({ "allOf": all_of }).to_string()),
        ("json_schema", json!({ "type": "object", "properties": wide }).to_string()),
        ("json_schema", r#"{"type": "string", "minLength": 1000000000}"#.to_owned()),
        ("json_schema", r#"{"type": "array", "minItems": 18446744073709551615}"#.to_owned()),
        ("json_schema", r#"{"type": "number", "multipleOf": 1e-300}"#.to_owned()),
        ("json_schema", r#"{"type": "integer", "minimum": -1e308, "maximum": 1e308}"#.to_owned()),
        ("json_schema", "true".to_owned()),
        ("json_schema", "false".to_owned()),
    ] {
        match compile(kind, &source) {
            Err(error) => assert_eq!(error.field, "grammar", "{error}"),
            Ok(mut constraint) => {
                for _ in 0..8 {
                    let mut logits = vec![0.0; 512];
                    if constraint.is_complete() || constraint.mask(&mut logits, &[]).is_err() {
                        break;
                    }
                    let next = logits.iter().position(|it| *it == 0.0).expect("something can follow");
                    if tokenizer().is_end_of_generation(next as u32) || constraint.accept(next as u32).is_err() {
                        break;
                    }
                }
            }
        }
    }
}

#[test]
fn special_tokens_are_no_text() {
    let tokenizer = tokenizer();
    let mut constraint = compile("regex", "(?s:.*)").unwrap();
    let mut logits = vec![0.0; 512];
    constraint.mask(&mut logits, &[]).unwrap();
    let ends = tokenizer.end_of_generation();
    for id in 0..tokenizer.vocab_size() as u32 {
        let may = logits[id as usize] == 0.0;
        let bytes = tokenizer.token_bytes(id).unwrap();
        if tokenizer.is_special(id) {
            assert_eq!(may, ends.contains(&id), "{id}");
        } else if bytes.is_ascii() && !bytes.is_empty() {
            assert!(may, "{id}");
        }
    }
    // Where ends are not wanted, all else may follow; where nothing else can, they are all there is.
    let mut logits = vec![0.0; 512];
    constraint.mask(&mut logits, &ends).unwrap();
    assert!(
        ends.iter()
            .all(|&end| logits[end as usize] == f32::NEG_INFINITY)
    );
    assert!(logits.contains(&0.0));
    let special = (0..512).find(|&id| tokenizer.is_special(id) && !ends.contains(&id));
    if let Some(special) = special {
        let mut constraint = compile("lark", format!("start: <[{special}]> \"a\"")).unwrap();
        let mut logits = vec![0.0; 512];
        constraint.mask(&mut logits, &[]).unwrap();
        assert_eq!(
            logits.iter().position(|it| *it == 0.0),
            Some(special as usize)
        );
    }
}

#[test]
fn masks_of_any_length_are_kept_to() {
    let mut allowed = SimpleVob::alloc(70);
    for token in [0, 31, 32, 69] {
        allowed.allow_token(token);
    }
    let mut logits: Vec<f32> = (0..70).map(|it| it as f32).collect();
    keep(&allowed, &mut logits);
    let left: Vec<f32> = logits.into_iter().filter(|it| it.is_finite()).collect();
    assert_eq!(left, [0.0, 31.0, 32.0, 69.0]);
}
