//! SentencePiece models that aren't what they should be.

use proptest::prelude::*;
use serde_json::json;

use crate::{common, exercise, refusal};

fn model(name: &str) -> Vec<u8> {
    std::fs::read(common::fixture(&format!("tiny/{name}/tokenizer.model"))).unwrap()
}

#[test]
fn a_sentencepiece_model_cut_at_any_byte_is_refused_or_whole() {
    let bytes = model("mistral-full");
    let mut whole = 0;
    for length in 0..bytes.len() {
        match common::hub_keys(&[("tokenizer.model", &bytes[..length])], Some(512)) {
            Ok(_) => whole += 1,
            Err(error) => assert!(
                error.starts_with("tokenizer.model: ") && error.len() < 300,
                "{error}"
            ),
        }
    }
    // The message ends with the settings, without which it is a model of another type.
    assert_eq!(whole, 0);
}

/// A field of a message.
fn field(number: u64, content: &[u8]) -> Vec<u8> {
    let mut out = vec![(number << 3) as u8 | 2, content.len() as u8];
    out.extend(content);
    out
}

#[test]
fn what_is_wrong_with_a_sentencepiece_model_is_said_in_one_line() {
    let good = model("mistral-full");
    let after = |more: &[u8]| [&good[..], more].concat();
    let end = good.len();
    let broken = format!(
        "tokenizer.model: byte {end}: not a field of a SentencePiece model, or the file is cut off"
    );
    let settings = |flags: &[u8]| after(&field(3, flags));
    let trainer = |flags: &[u8]| after(&field(2, flags));
    let huge = [
        0x0A, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0x01,
    ];
    let cases: Vec<(Vec<u8>, &str)> = vec![
        (Vec::new(), "is a model of type UNIGRAM, expected BPE"),
        (
            b"version https://git-lfs.github.com/spec/v1\n".to_vec(),
            "is a Git LFS pointer",
        ),
        (
            b"<!DOCTYPE html>".to_vec(),
            "byte 0: not a field of a SentencePiece model",
        ),
        (field(2, &[0x18, 2]), "holds no pieces"),
        (after(&huge), &broken),
        (after(&[0xFF; 20]), &broken),
        (after(&[0x0A]), &broken),
        (
            after(&[0x08, 1]),
            "field 1 is Varint(1), expected a message",
        ),
        (
            after(&field(1, &[0x0A, 5, b'a'])),
            "not a field of a SentencePiece model",
        ),
        (after(&field(1, &[])), "piece 512 is empty"),
        (after(&field(1, &[0x0A, 1, 0xFF])), "piece 512 is not UTF-8"),
        (
            after(&field(1, &[0x0A, 1, b'z', 0x15, 0, 0, 0xC0, 0x7F])),
            "the score of piece 512 is not a number",
        ),
        (
            after(&field(1, &[0x0A, 1, b'z', 0x18, 9])),
            "piece 512 is of type 9, expected 1 to 6",
        ),
        (
            after(&field(1, &[0x0A, 1, b'z', 0x18, 6])),
            "piece 512 is \"z\", expected the name of a byte",
        ),
        (
            after(&field(1, &[0x0A, 3, b'<', b's', b'>'])),
            "token \"<s>\" has two ids, 1 and 512",
        ),
        (
            trainer(&[0x18, 1]),
            "is a model of type UNIGRAM, expected BPE, the only one supported",
        ),
        (trainer(&[0x18, 3]), "is a model of type WORD"),
        (trainer(&[0x18, 0x80, 1]), "is a model of type 128"),
        (
            trainer(&[0x98, 2, 0]),
            "byte_fallback is false, which is not supported",
        ),
        (trainer(&[0xC0, 1, 1]), "treat_whitespace_as_suffix is true"),
        (settings(&[0x20, 1]), "remove_extra_whitespaces is true"),
        (settings(&[0x28, 0]), "escape_whitespaces is false"),
        (
            settings(&[0x0A, 3, b'n', b'm', b't', 0x12, 1, 0]),
            "normalizer \"nmt\" changes text",
        ),
    ];
    for (bytes, expected) in cases {
        let error = refusal(&[("tokenizer.model", &bytes)], None);
        assert!(error.starts_with("tokenizer.model: "), "{error}");
        assert!(
            error.contains(expected),
            "found {error:?}, expected {expected:?}"
        );
    }
    let error = refusal(&[("tokenizer.model", &good)], Some(511));
    assert!(
        error.contains("token \"8\" has id 511, expected below 511, the rows of the embedding"),
        "{error}"
    );
    for (content, expected) in [
        (json!([]), "added_tokens.json: invalid"),
        (
            json!({"x": "y"}),
            "added_tokens.json: token \"x\" has id \"y\", expected a number",
        ),
        (
            json!({"x": -1}),
            "added_tokens.json: token \"x\" has id -1, expected a number",
        ),
        (
            json!({"x": 514}),
            "added_tokens.json: added token \"x\" has id 514, expected below 513",
        ),
        (
            json!({"x": 1u64 << 40}),
            "added token \"x\" has id 1099511627776, expected below 513",
        ),
        (
            json!({"<s>": 512}),
            "added token \"<s>\" has two ids, 1 and 512",
        ),
        (json!({"": 512}), "added token 512 is empty"),
    ] {
        let content = content.to_string();
        let error = refusal(
            &[
                ("tokenizer.model", &good),
                ("added_tokens.json", content.as_bytes()),
            ],
            None,
        );
        assert!(
            error.contains(expected),
            "found {error:?}, expected {expected:?}"
        );
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn changed_bytes_never_panic(changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4), rows in prop::option::of(500u64..520)) {
        let mut bytes = model("gemma3-text");
        for (place, byte) in &changes {
            let place = place.index(bytes.len());
            bytes[place] = *byte;
        }
        exercise(common::hub_keys(&[("tokenizer.model", &bytes)], rows));
    }
}
