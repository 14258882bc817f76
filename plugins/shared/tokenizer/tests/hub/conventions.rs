//! What directories say in one way or another, and how much of it is taken.

use backplane_tokenizer::{DecodeOptions, EncodeOptions, Tokenizer};
use backplane_weights::writer::OwnedValue;
use serde_json::{Value, json};

use crate::common;
use crate::hostile_json::{byte_level, pieces, with};

const PARSED: EncodeOptions = EncodeOptions {
    add_special: false,
    parse_special: true,
};

fn value<'k>(keys: &'k [(String, OwnedValue)], key: &str) -> Option<&'k OwnedValue> {
    let mut found = keys.iter().filter(|(name, _)| name == key);
    let value = found.next().map(|(_, value)| value);
    assert!(found.next().is_none(), "{key} is there twice");
    value
}

fn list(keys: &[(String, OwnedValue)], key: &str) -> Vec<OwnedValue> {
    match value(keys, key) {
        Some(OwnedValue::Array(_, values)) => values.clone(),
        other => panic!("{key}: {other:?}"),
    }
}

fn keys(files: &[(&str, Value)], rows: Option<u64>) -> Vec<(String, OwnedValue)> {
    let texts: Vec<(&str, String)> = files
        .iter()
        .map(|(name, value)| (*name, value.to_string()))
        .collect();
    let files: Vec<(&str, &[u8])> = texts
        .iter()
        .map(|(name, text)| (*name, text.as_bytes()))
        .collect();
    common::hub_keys(&files, rows).unwrap()
}

fn tokenizer(files: &[(&str, Value)]) -> Tokenizer {
    Tokenizer::from_metadata(common::with_keys(keys(files, None)).metadata()).unwrap()
}

#[test]
fn rows_beyond_the_vocabulary_are_unused_tokens() {
    for (file, scored) in [
        (byte_level(), false),
        (with(pieces(), "/model/vocab/▁a", json!(5)), true),
    ] {
        let keys = keys(&[("tokenizer.json", file)], Some(8));
        let tokens = list(&keys, "tokenizer.ggml.tokens");
        let kinds = list(&keys, "tokenizer.ggml.token_type");
        assert_eq!((tokens.len(), kinds.len()), (8, 8));
        assert_eq!(tokens[6..], ["[PAD6]".into(), "[PAD7]".into()]);
        assert_eq!(kinds[6..], [OwnedValue::I32(5), OwnedValue::I32(5)]);
        if scored {
            // Holes are filled, too.
            assert_eq!(
                tokens[3..6],
                ["[PAD3]".into(), "[PAD4]".into(), "▁a".into()]
            );
            let scores = list(&keys, "tokenizer.ggml.scores");
            assert_eq!(
                scores[6..],
                [OwnedValue::F32(-10000.0), OwnedValue::F32(-10000.0)]
            );
        }
        let tokenizer = Tokenizer::from_metadata(common::with_keys(keys).metadata()).unwrap();
        // Text that looks like an unused token is text.
        assert!(
            !tokenizer
                .encode("[PAD6]", PARSED)
                .unwrap_or_default()
                .contains(&6)
        );
    }
}

#[test]
fn an_added_token_without_a_row_is_left_out_with_a_warning() {
    let keys = keys(&[("tokenizer.json", byte_level())], Some(5));
    assert_eq!(list(&keys, "tokenizer.ggml.tokens").len(), 5);
    assert_eq!(
        list(&keys, "backplane.tokenizer.warnings"),
        ["tokenizer.json: added token \"<|end|>\" has id 5, which the embedding of 5 rows hasn't: it is left out".into()]
    );
}

#[test]
fn the_first_end_is_eos_and_all_of_them_end_an_answer() {
    let generation = (
        "generation_config.json",
        json!({"eos_token_id": [4, 3], "bos_token_id": 2}),
    );
    let config = ("config.json", json!({"eos_token_id": 1, "pad_token_id": 0}));
    let file = ("tokenizer.json", byte_level());
    let found = keys(&[file.clone(), generation.clone(), config.clone()], None);
    assert_eq!(
        value(&found, "tokenizer.ggml.eos_token_id"),
        Some(&4u32.into())
    );
    assert_eq!(
        value(&found, "tokenizer.ggml.bos_token_id"),
        Some(&2u32.into())
    );
    assert_eq!(
        value(&found, "tokenizer.ggml.padding_token_id"),
        Some(&0u32.into())
    );
    assert_eq!(
        value(&found, "backplane.tokenizer.eog_token_ids"),
        Some(&vec![1u32, 3].into())
    );
    let tokenizer = Tokenizer::from_metadata(common::with_keys(found).metadata()).unwrap();
    // `<|end|>` ends it by its name.
    assert_eq!(tokenizer.end_of_generation(), [1, 3, 4, 5]);
    // A name comes before numbers; of numbers, those of generation before those of the model.
    let named = (
        "tokenizer_config.json",
        json!({"eos_token": {"content": "<|end|>", "lstrip": false}}),
    );
    let found = keys(&[file.clone(), named, generation, config.clone()], None);
    assert_eq!(
        value(&found, "tokenizer.ggml.eos_token_id"),
        Some(&5u32.into())
    );
    assert_eq!(
        value(&found, "backplane.tokenizer.eog_token_ids"),
        Some(&vec![1u32, 3, 4].into())
    );
    let mapped = (
        "special_tokens_map.json",
        json!({"eos_token": "b", "pad_token": "c"}),
    );
    let found = keys(&[file, mapped, config], None);
    assert_eq!(
        value(&found, "tokenizer.ggml.eos_token_id"),
        Some(&1u32.into())
    );
    assert_eq!(
        value(&found, "tokenizer.ggml.padding_token_id"),
        Some(&2u32.into())
    );
    assert_eq!(value(&found, "backplane.tokenizer.eog_token_ids"), None);
}

#[test]
fn what_is_put_around_a_text_is_the_templates_unless_the_configuration_says_otherwise() {
    let around = json!({
        "type": "TemplateProcessing",
        "single": [{"SpecialToken": {"id": "a"}}, {"Sequence": {"id": "A"}}, {"SpecialToken": {"id": "b"}}],
        "special_tokens": {"a": {"ids": [0]}, "b": {"ids": [1]}},
    });
    let file = with(byte_level(), "/post_processor", around);
    let flags = |config: Value| {
        let tokenizer = tokenizer(&[
            ("tokenizer.json", file.clone()),
            ("tokenizer_config.json", config),
        ]);
        let opts = EncodeOptions {
            add_special: true,
            parse_special: true,
        };
        (
            tokenizer.encode("c", opts).unwrap(),
            tokenizer.warnings().len(),
        )
    };
    assert_eq!(flags(json!({})), (vec![0, 2, 1], 0));
    assert_eq!(flags(json!({"add_bos_token": false})), (vec![2, 1], 0));
    assert_eq!(
        flags(json!({"add_bos_token": null, "add_eos_token": false})),
        (vec![0, 2], 0)
    );
    // The template's own token is the one that is put there.
    assert_eq!(flags(json!({"bos_token": "c"})), (vec![0, 2, 1], 1));
    let config = json!({"eos_token": "c"}).to_string();
    let error = common::hub_tokenizer(&[
        ("tokenizer.json", &file.to_string()),
        ("tokenizer_config.json", &config),
    ]);
    assert!(
        error
            .unwrap_err()
            .contains("ends a text with token 1, though EOS is 2, which is not supported")
    );
}

#[test]
fn chat_templates_are_found_wherever_they_are() {
    let with_template = |template: Value, more: &[(&str, &[u8])]| {
        let (file, config) = (
            byte_level().to_string(),
            json!({"chat_template": template}).to_string(),
        );
        let mut files: Vec<(&str, &[u8])> = vec![
            ("tokenizer.json", file.as_bytes()),
            ("tokenizer_config.json", config.as_bytes()),
        ];
        files.extend(more);
        let mut keys = common::hub_keys(&files, None).unwrap();
        keys.retain(|(key, _)| key.contains("chat_template") || key.contains("warnings"));
        keys
    };
    let key = |name: &str, value: OwnedValue| (name.to_owned(), value);
    let default = key("tokenizer.chat_template", "T".into());
    assert_eq!(with_template(json!("T"), &[]), vec![default.clone()]);
    assert_eq!(
        with_template(json!("no"), &[("chat_template.jinja", b"T")]),
        vec![default.clone()]
    );
    assert_eq!(with_template(json!(null), &[]), []);
    assert_eq!(with_template(json!([]), &[]), []);
    let named = |name: &str, template: &str| json!({"name": name, "template": template});
    let tool_use = key("tokenizer.chat_template.tool_use", "U".into());
    let others = key("tokenizer.chat_templates", vec!["tool_use"].into());
    assert_eq!(
        with_template(json!([named("tool_use", "U"), named("default", "T")]), &[]),
        [default, tool_use.clone(), others.clone()]
    );
    assert_eq!(
        with_template(json!([named("tool_use", "U")]), &[]),
        [
            key("tokenizer.chat_template", "U".into()),
            tool_use.clone(),
            others
        ]
    );
    let none = with_template(json!([named("tool_use", "U"), named("rag", "R")]), &[]);
    assert!(
        none.iter().all(|(key, _)| key != "tokenizer.chat_template"),
        "{none:?}"
    );
    assert_eq!(
        none.last(),
        Some(&key("backplane.tokenizer.warnings", vec!["tokenizer_config.json: chat_template has tool_use, rag, and no \"default\": none is used"].into()))
    );
}

#[test]
fn tokens_of_the_configuration_are_added_to_a_tokenizer_json() {
    let decoder = json!({"3": {"content": "ab"}, "5": {"content": "<|end|>"}, "6": {"content": "<more>", "rstrip": true}});
    let tokenizer = tokenizer(&[
        ("tokenizer.json", byte_level()),
        (
            "tokenizer_config.json",
            json!({"added_tokens_decoder": decoder}),
        ),
    ]);
    assert_eq!(
        tokenizer.encode("ab<more>  c<|end|>", PARSED).unwrap(),
        [3, 6, 2, 5]
    );
    // What the file doesn't say is special is text, but what looks like a mark is one.
    assert!(!tokenizer.is_control(6) && tokenizer.is_control(5));
}

/// A directory as Phi-3 has it: a SentencePiece model, and tokens beside it that swallow white space.
#[test]
fn tokens_beside_a_sentencepiece_model() {
    let model = std::fs::read(common::fixture("tiny/phi3-full-rotary/tokenizer.model")).unwrap();
    let build = |config: Value, rows| {
        let added = json!({"<|user|>": 513, "<|end|>": 512, "<note>": 514}).to_string();
        let config = config.to_string();
        let files: [(&str, &[u8]); 3] = [
            ("tokenizer.model", &model),
            ("added_tokens.json", added.as_bytes()),
            ("tokenizer_config.json", config.as_bytes()),
        ];
        let keys = common::hub_keys(&files, rows).unwrap();
        Tokenizer::from_metadata(common::with_keys(keys).metadata()).unwrap()
    };
    let decoder = json!({
        "2": {"content": "</s>", "rstrip": true, "special": false},
        "513": {"content": "<|user|>", "rstrip": true, "special": true},
        "515": {"content": "▁hm", "special": false},
    });
    let tokenizer = build(
        json!({"added_tokens_decoder": decoder, "eos_token": "<|end|>"}),
        Some(520),
    );
    assert_eq!(
        (tokenizer.vocab_size(), tokenizer.bos(), tokenizer.eos()),
        (520, Some(1), Some(512))
    );
    assert!(tokenizer.adds_bos() && !tokenizer.adds_eos() && tokenizer.warnings().is_empty());
    assert!(tokenizer.is_control(512) && tokenizer.is_control(513));
    assert!(!tokenizer.is_special(514) && !tokenizer.is_special(2));
    let encode = |text| tokenizer.encode(text, PARSED).unwrap();
    let x = encode("x");
    assert_eq!(
        encode("<|user|> \nx<|end|>"),
        [&[513], &x[..], &[512]].concat()
    );
    assert_eq!(encode("<note> hm"), [514, 515]);
    assert_eq!(
        tokenizer
            .decode(&[514, 515], DecodeOptions::default())
            .unwrap(),
        b"<note> hm"
    );
    // Without a legacy flag each part gets a space; otherwise only the text does.
    let newer = build(json!({"legacy": false}), None);
    assert_eq!(newer.encode("x", PARSED).unwrap(), x);
    assert_eq!(newer.encode("<note>x", PARSED).unwrap(), [514, x[1]]);
    assert_eq!(
        build(json!({"add_prefix_space": false}), None)
            .encode("x", PARSED)
            .unwrap(),
        x[1..]
    );
    // A token beyond the embedding.
    let short = build(json!({}), Some(514));
    assert_eq!(short.vocab_size(), 514);
    assert_eq!(
        short.warnings(),
        [
            "added_tokens.json: added token \"<note>\" has id 514, which the embedding of 514 rows hasn't: it is left out"
        ]
    );
}

#[test]
fn scores_follow_the_merges() {
    let vocab = json!({"<unk>": 0, "▁": 1, "a": 2, "▁a": 3, "aa": 4, "▁▁": 5});
    let file = with(pieces(), "/model/vocab", vocab);
    let file = with(
        file,
        "/model/merges",
        json!([["a", "a"], ["▁", "▁"], ["▁", "a"]]),
    );
    let keys = keys(&[("tokenizer.json", file)], None);
    let scores = list(&keys, "tokenizer.ggml.scores");
    let expected = [-4.0, -5.0, -3.0, -1.0, -2.0].map(OwnedValue::F32);
    assert_eq!(scores[1..], expected);
    assert_eq!(
        value(&keys, "backplane.tokenizer.ranked_merges"),
        Some(&true.into())
    );
}
