//! JSON that isn't what it should be: one clear line each, and no panic, whatever it holds.

use std::time::{Duration, Instant};

use proptest::prelude::*;
use serde_json::{Value, json};

use crate::{common, exercise, refusal};

const JSON: &str = "tokenizer.json";
const CONFIG: &str = "tokenizer_config.json";

pub(crate) fn byte_level() -> Value {
    json!({
        "added_tokens": [{"id": 5, "content": "<|end|>", "special": true, "normalized": false}],
        "normalizer": null,
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "use_regex": true},
        "post_processor": null,
        "decoder": {"type": "ByteLevel"},
        "model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "c": 2, "ab": 3, "abc": 4}, "merges": [["a", "b"], "ab c"]},
    })
}

pub(crate) fn pieces() -> Value {
    json!({
        "added_tokens": [{"id": 0, "content": "<unk>", "special": true}],
        "normalizer": {"type": "Sequence", "normalizers": [
            {"type": "Prepend", "prepend": "▁"},
            {"type": "Replace", "pattern": {"String": " "}, "content": "▁"},
        ]},
        "pre_tokenizer": null,
        "decoder": {"type": "Sequence", "decoders": [
            {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
            {"type": "ByteFallback"},
            {"type": "Fuse"},
            {"type": "Strip", "content": " ", "start": 1, "stop": 0},
        ]},
        "model": {
            "type": "BPE", "byte_fallback": true, "unk_token": "<unk>",
            "vocab": {"<unk>": 0, "▁": 1, "a": 2, "▁a": 3},
            "merges": [["▁", "a"]],
        },
    })
}

/// A file with the value at a path of keys replaced.
pub(crate) fn with(mut file: Value, path: &str, value: Value) -> Value {
    *file.pointer_mut(path).unwrap_or_else(|| panic!("{path}")) = value;
    file
}

/// A file with another entry at a path of keys.
fn and(mut file: Value, path: &str, key: &str, value: Value) -> Value {
    let place = file.pointer_mut(path).unwrap_or_else(|| panic!("{path}"));
    place.as_object_mut().unwrap().insert(key.into(), value);
    file
}

#[test]
fn what_is_wrong_with_a_tokenizer_json_is_said_in_one_line() {
    let split = |pattern: &str, behavior: &str| {
        json!({"type": "Sequence", "pretokenizers": [
            {"type": "Split", "pattern": {"Regex": pattern}, "behavior": behavior, "invert": false},
            {"type": "ByteLevel", "add_prefix_space": false, "use_regex": false},
        ]})
    };
    let template = |single: Value, tokens: Value| json!({"type": "TemplateProcessing", "single": single, "special_tokens": tokens});
    let text = json!({"Sequence": {"id": "A", "type_id": 0}});
    let token = json!({"SpecialToken": {"id": "x", "type_id": 0}});
    let known = json!({"x": {"id": "x", "ids": [5], "tokens": ["x"]}});
    let cases: Vec<(Value, &str)> = vec![
        (json!([]), "tokenizer.json: invalid"),
        (json!({}), "tokenizer.json: missing field `model`"),
        (
            with(byte_level(), "/model", json!(3)),
            "tokenizer.json: invalid type: integer `3`",
        ),
        (
            with(byte_level(), "/model/type", json!("Unigram")),
            "model: is of type \"Unigram\", expected \"BPE\"",
        ),
        (
            json!({"model": {"type": "Unigram", "vocab": [["a", 0.5]]}}),
            "model: is of type \"Unigram\"",
        ),
        (
            with(byte_level(), "/model/vocab", json!(["a"])),
            "expected a map from tokens to ids",
        ),
        (
            with(byte_level(), "/model/vocab/a", json!("0")),
            "invalid type: string \"0\", expected u64",
        ),
        (
            with(byte_level(), "/model/vocab/a", json!(-1)),
            "invalid value: integer `-1`, expected u64",
        ),
        (
            with(byte_level(), "/model/vocab/a", json!(1.5)),
            "invalid type: floating point `1.5`",
        ),
        (
            with(byte_level(), "/model/vocab/a", json!(1)),
            "tokens \"a\" and \"b\" both have id 1",
        ),
        (
            with(byte_level(), "/model/vocab/c", json!(6)),
            "token \"c\" has id 6, expected below 6, the number of tokens",
        ),
        (
            with(byte_level(), "/model/vocab/c", json!(1u64 << 31)),
            "token \"c\" has id 2147483648, expected below 6",
        ),
        (
            with(byte_level(), "/model/vocab/c", json!(u64::MAX)),
            "token \"c\" has id 18446744073709551615",
        ),
        (
            with(byte_level(), "/model/vocab", json!({})),
            "has id 5, expected below 1",
        ),
        (
            with(byte_level(), "/model/merges", json!({})),
            "invalid type: map, expected a sequence",
        ),
        (
            with(byte_level(), "/model/merges", json!(["a"])),
            "the merge \"a\" is not two tokens with a space between them",
        ),
        (
            with(byte_level(), "/model/merges", json!(["a b c"])),
            "the merge \"a b c\" is not two tokens",
        ),
        (
            with(byte_level(), "/model/merges", json!([["a"]])),
            "a merge is not a list of two tokens",
        ),
        (
            with(byte_level(), "/model/merges", json!([["a", "b", "c"]])),
            "a merge is not a list of two tokens",
        ),
        (
            with(byte_level(), "/model/merges", json!([7])),
            "expected a merge: two tokens in a list",
        ),
        (
            with(byte_level(), "/model/merges", json!(["a z"])),
            "model: merge 0 of \"a\" and \"z\" names \"z\", which is not a token",
        ),
        (
            with(byte_level(), "/model/merges", json!(["b c"])),
            "model: merge 0 of \"b\" and \"c\" names \"bc\", which is not a token",
        ),
        (
            with(byte_level(), "/model/merges", json!([["a", ""]])),
            "model: merge 0 has the part \"\", expected a token without spaces",
        ),
        (
            with(byte_level(), "/model/merges", json!([["a", " "]])),
            "model: merge 0 has the part \" \"",
        ),
        (
            and(byte_level(), "/model", "dropout", json!(0.1)),
            "model: dropout is 0.1, which is not supported",
        ),
        (
            and(byte_level(), "/model", "end_of_word_suffix", json!("</w>")),
            "model: end_of_word_suffix is \"</w>\", which is not supported",
        ),
        (
            and(
                byte_level(),
                "/model",
                "continuing_subword_prefix",
                json!("##"),
            ),
            "continuing_subword_prefix is \"##\"",
        ),
        (
            and(byte_level(), "/model", "byte_fallback", json!(true)),
            "byte_fallback is true in a byte-level vocabulary",
        ),
        (
            with(byte_level(), "/added_tokens/0/id", json!(7)),
            "token \"<|end|>\" has id 7, expected below 6",
        ),
        (
            with(byte_level(), "/added_tokens/0/content", json!("ab")),
            "added token \"ab\" has two ids, 3 and 5",
        ),
        (
            with(byte_level(), "/added_tokens/0/content", json!("")),
            "added token 5 is empty",
        ),
        (
            with(byte_level(), "/added_tokens/0/content", json!(null)),
            "invalid type: null, expected a string",
        ),
        (
            and(byte_level(), "/added_tokens/0", "single_word", json!(true)),
            "added token \"<|end|>\" has single_word true, which is not supported",
        ),
        (
            with(byte_level(), "/pre_tokenizer", json!(null)),
            "pre_tokenizer: is null and byte_fallback is false, expected ByteLevel or byte_fallback",
        ),
        (
            with(
                byte_level(),
                "/pre_tokenizer",
                split(r"\w+|[^\w\s]+", "Isolated"),
            ),
            r#"pre_tokenizer: the pattern "\\w+|[^\\w\\s]+" is not known"#,
        ),
        (
            with(byte_level(), "/pre_tokenizer", split(r"\p{N}", "Removed")),
            "a Split with behavior Some(\"Removed\") and invert Some(false) is not supported",
        ),
        (
            with(
                byte_level(),
                "/pre_tokenizer",
                split(r"\p{N}{1,3}", "Isolated"),
            ),
            "pre_tokenizer: its patterns are known, but not in this order",
        ),
        (
            with(byte_level(), "/pre_tokenizer/add_prefix_space", json!(true)),
            "ByteLevel has add_prefix_space true, which is not supported",
        ),
        (
            with(byte_level(), "/pre_tokenizer/add_prefix_space", json!(1)),
            "has no flag add_prefix_space",
        ),
        (
            with(
                byte_level(),
                "/pre_tokenizer",
                json!({"type": "Sequence", "pretokenizers": [{"type": "ByteLevel", "add_prefix_space": false}, {"type": "Whitespace"}]}),
            ),
            "ByteLevel comes before {\"type\":\"Whitespace\"}",
        ),
        (
            with(
                byte_level(),
                "/pre_tokenizer",
                json!({"type": "Sequence", "pretokenizers": [{"type": "Whitespace"}, {"type": "ByteLevel", "add_prefix_space": false}]}),
            ),
            "pre_tokenizer: {\"type\":\"Whitespace\"} is not supported",
        ),
        (
            with(byte_level(), "/normalizer", json!({"type": "Lowercase"})),
            "normalizer: {\"type\":\"Lowercase\"} is not supported, expected at most one of NFC",
        ),
        (
            with(byte_level(), "/normalizer", json!("NFC")),
            "normalizer: \"NFC\" is not supported",
        ),
        (
            with(byte_level(), "/normalizer", json!({"type": "nfc"})),
            "normalizer: {\"type\":\"nfc\"} is not supported",
        ),
        (
            with(byte_level(), "/decoder", json!(null)),
            "decoder: is null, expected ByteLevel",
        ),
        (
            with(byte_level(), "/decoder", json!({"type": "WordPiece"})),
            "decoder: {\"type\":\"WordPiece\"} is not supported, expected ByteLevel",
        ),
        (
            with(
                byte_level(),
                "/post_processor",
                json!({"type": "BertProcessing"}),
            ),
            "post_processor: {\"type\":\"BertProcessing\"} is not supported",
        ),
        (
            with(
                byte_level(),
                "/post_processor",
                template(json!([token, token, text]), known.clone()),
            ),
            "expected the text and at most one token on each side of it",
        ),
        (
            with(
                byte_level(),
                "/post_processor",
                template(json!([token, text]), json!({})),
            ),
            "expected the text and at most one token",
        ),
        (
            with(
                byte_level(),
                "/post_processor",
                template(json!([token]), known.clone()),
            ),
            "expected a template with the text in it",
        ),
        (
            with(
                byte_level(),
                "/post_processor",
                template(json!([text, token, text]), known.clone()),
            ),
            "is not supported",
        ),
        (
            with(
                byte_level(),
                "/post_processor",
                template(json!([token, text]), json!({"x": {"ids": [99]}})),
            ),
            "post_processor: adds token 99, expected a token id below 6",
        ),
        (
            with(pieces(), "/normalizer", json!(null)),
            "normalizer: neither it nor the pre_tokenizer spells spaces as \"▁\"",
        ),
        (
            with(
                pieces(),
                "/normalizer/normalizers/0",
                json!({"type": "Lowercase"}),
            ),
            "normalizer: {\"type\":\"Lowercase\"} is not supported",
        ),
        (
            with(pieces(), "/normalizer/normalizers/0/prepend", json!("_")),
            "normalizer: {\"type\":\"Prepend\",\"prepend\":\"_\"} is not supported",
        ),
        (
            with(
                pieces(),
                "/pre_tokenizer",
                json!({"type": "Metaspace", "replacement": "▁"}),
            ),
            "pre_tokenizer: {\"type\":\"Metaspace\",\"replacement\":\"▁\"} is not supported",
        ),
        (
            with(pieces(), "/decoder", json!({"type": "ByteFallback"})),
            "decoder: is {\"type\":\"ByteFallback\"}, expected a Sequence with Replace",
        ),
        (
            with(pieces(), "/decoder/decoders/3/start", json!(2)),
            "decoder: {\"type\":\"Strip\",\"content\":\" \",\"start\":2",
        ),
        (
            and(pieces(), "/model", "ignore_merges", json!(true)),
            "ignore_merges is true beside byte_fallback",
        ),
    ];
    for (file, expected) in cases {
        let error = refusal(&[(JSON, file.to_string().as_bytes())], None);
        assert!(error.starts_with("tokenizer.json: "), "{error}");
        assert!(
            error.contains(expected),
            "found {error:?}, expected {expected:?}"
        );
    }
    assert!(common::hub_keys(&[(JSON, byte_level().to_string().as_bytes())], None).is_ok());
    assert!(common::hub_keys(&[(JSON, pieces().to_string().as_bytes())], None).is_ok());
}

#[test]
fn what_is_no_json_is_said_to_be_none() {
    for (bytes, expected) in [
        (
            &b""[..],
            "tokenizer.json: EOF while parsing a value at line 1 column 0",
        ),
        (
            b"<!DOCTYPE html>",
            "tokenizer.json: expected value at line 1 column 1",
        ),
        (
            b"version https://git-lfs.github.com/spec/v1\noid sha256:0",
            "tokenizer.json: is a Git LFS pointer",
        ),
        (b"\xFF\xFE\x00", "tokenizer.json: expected value"),
        (
            b"{\"model\": {\"vocab\": {\"a\xFF\": 1}}}",
            "tokenizer.json: invalid unicode code point",
        ),
        (&[b'['; 100_000], "tokenizer.json: invalid"),
    ] {
        assert!(
            refusal(&[(JSON, bytes)], None).contains(expected),
            "{expected}"
        );
    }
    // Depth is bounded where any value may stand.
    let deep = format!(
        "{{\"normalizer\": {}{}, \"model\": {{}}}}",
        "[".repeat(1_000_000),
        "]".repeat(1_000_000)
    );
    assert!(refusal(&[(JSON, deep.as_bytes())], None).contains("recursion limit exceeded"));
    assert_eq!(
        refusal(&[], None),
        "tokenizer.json: is missing, and so is tokenizer.model: expected one of the two"
    );
}

#[test]
fn other_files_are_checked_too() {
    let file = byte_level().to_string();
    let cases: Vec<(&str, Value, &str)> = vec![
        (
            CONFIG,
            json!([]),
            "tokenizer_config.json: is [], expected an object",
        ),
        (
            CONFIG,
            json!({"add_bos_token": 1}),
            "tokenizer_config.json: add_bos_token is 1, expected true or false",
        ),
        (
            CONFIG,
            json!({"add_bos_token": true}),
            "add_bos_token is true, but no file names a bos_token of the vocabulary",
        ),
        (
            CONFIG,
            json!({"eos_token": 7}),
            "tokenizer_config.json: eos_token is 7, expected the name of a token",
        ),
        (
            CONFIG,
            json!({"added_tokens_decoder": 7}),
            "added_tokens_decoder: is 7, expected an object",
        ),
        (
            CONFIG,
            json!({"added_tokens_decoder": {"x": {"content": "y"}}}),
            "added_tokens_decoder: \"x\" is not a token id",
        ),
        (
            CONFIG,
            json!({"added_tokens_decoder": {"-1": {"content": "y"}}}),
            "added_tokens_decoder: \"-1\" is not a token id",
        ),
        (
            CONFIG,
            json!({"added_tokens_decoder": {"": {"content": "y"}}}),
            "added_tokens_decoder: \"\" is not a token id",
        ),
        (
            CONFIG,
            json!({"added_tokens_decoder": {"6": {}}}),
            "added_tokens_decoder: token 6: missing field `content`",
        ),
        (
            CONFIG,
            json!({"added_tokens_decoder": {"5": {"content": "y"}}}),
            "tokens \"<|end|>\" and \"y\" both have id 5",
        ),
        (
            CONFIG,
            json!({"chat_template": 7}),
            "chat_template: is 7, expected a text or a list of named templates",
        ),
        (
            CONFIG,
            json!({"chat_template": [7]}),
            "chat_template: holds 7, expected a name and a template",
        ),
        (
            CONFIG,
            json!({"chat_template": [{"name": "default", "template": ""}, {"name": "default", "template": ""}]}),
            "two templates named \"default\"",
        ),
        (
            CONFIG,
            json!({"chat_template": [{"name": "a.b", "template": ""}]}),
            "holds the name \"a.b\"",
        ),
        (
            "special_tokens_map.json",
            json!(7),
            "special_tokens_map.json: is 7, expected an object",
        ),
        (
            "generation_config.json",
            json!({"eos_token_id": "5"}),
            "generation_config.json: eos_token_id is \"5\", expected a token id",
        ),
        (
            "generation_config.json",
            json!({"eos_token_id": [5, null]}),
            "generation_config.json: eos_token_id is null, expected a token id",
        ),
        (
            "config.json",
            json!({"pad_token_id": 0.5}),
            "config.json: pad_token_id is 0.5, expected a token id",
        ),
        (
            "config.json",
            json!({"text_config": {"bos_token_id": {}}}),
            "config.json: bos_token_id is {}, expected a token id",
        ),
    ];
    for (name, content, expected) in cases {
        let content = content.to_string();
        let error = refusal(&[(JSON, file.as_bytes()), (name, content.as_bytes())], None);
        assert!(
            error.contains(expected),
            "found {error:?}, expected {expected:?}"
        );
    }
    let error = refusal(
        &[(JSON, file.as_bytes()), ("chat_template.jinja", b"\xFF")],
        None,
    );
    assert!(
        error.contains("chat_template.jinja: is not UTF-8"),
        "{error}"
    );
    // What is only doubtful is told by the tokenizer.
    let config = json!({"bos_token": "<nothing>", "eos_token": {"content": "<|end|>"}}).to_string();
    let generation = json!({"eos_token_id": [4, 99], "pad_token_id": -1}).to_string();
    let tokenizer = common::hub_tokenizer(&[
        (JSON, &file),
        (CONFIG, &config),
        ("generation_config.json", &generation),
    ])
    .unwrap();
    assert_eq!(
        tokenizer.warnings(),
        [
            "tokenizer_config.json: bos_token is \"<nothing>\", which is not a token: it is left out",
            "generation_config.json: eos_token_id is 99, and the vocabulary has 6 tokens: it is left out",
        ]
    );
    assert_eq!((tokenizer.bos(), tokenizer.eos()), (None, Some(5)));
    assert_eq!(tokenizer.end_of_generation(), [4, 5]);
}

#[test]
fn rows_bound_the_vocabulary() {
    let file = byte_level().to_string();
    let files: &[(&str, &[u8])] = &[(JSON, file.as_bytes())];
    let error = refusal(files, Some(4));
    assert_eq!(
        error,
        "tokenizer.json: token \"abc\" has id 4, expected below 4, the rows of the embedding"
    );
    for rows in [(1 << 24) + 1, u64::MAX] {
        let error = refusal(files, Some(rows));
        assert!(
            error.contains(&format!(
                "the embedding has {rows} rows, expected at most 16777216"
            )),
            "{error}"
        );
    }
    assert!(refusal(files, Some(0)).contains("expected below 0, the rows of the embedding"));
}

#[test]
fn large_vocabularies_take_no_longer_than_their_length() {
    let names: serde_json::Map<String, Value> = (0..200_000u32)
        .map(|id| (char::from_u32(0x10000 + id).unwrap().to_string(), id.into()))
        .collect();
    let file = with(
        with(byte_level(), "/model/vocab", names.into()),
        "/added_tokens/0/id",
        json!(200_000),
    );
    let file = with(file, "/model/merges", json!([])).to_string();
    let started = Instant::now();
    let tokenizer = common::hub_tokenizer(&[(JSON, &file)]).unwrap();
    assert_eq!(tokenizer.vocab_size(), 200_001);
    assert!(
        started.elapsed() < Duration::from_secs(20),
        "{:?}",
        started.elapsed()
    );
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn changed_json_never_panics(file in prop::sample::select(vec![byte_level(), pieces()]), place in any::<prop::sample::Index>(), value in prop::sample::select(vec![json!(null), json!(0), json!(-1), json!(1e300), json!(u64::MAX), json!(""), json!("▁"), json!("NFC"), json!([]), json!({}), json!([[]]), json!(true), json!({"type": "Sequence"})])) {
        // Every value of the file by its path.
        fn paths(value: &Value, path: &str, out: &mut Vec<String>) {
            out.push(path.into());
            match value {
                Value::Array(list) => list.iter().enumerate().for_each(|(index, value)| paths(value, &format!("{path}/{index}"), out)),
                Value::Object(map) => map.iter().for_each(|(key, value)| paths(value, &format!("{path}/{key}"), out)),
                _ => {}
            }
        }
        let mut all = Vec::new();
        paths(&file, "", &mut all);
        let path = place.get(&all);
        let file = with(file, path, value).to_string();
        exercise(common::hub_keys(&[(JSON, file.as_bytes())], None));
    }
}
