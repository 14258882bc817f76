//! Vocabularies that aren't what they should be: one clear line each.
#![allow(clippy::unwrap_used)] // in helpers of tests too

use std::path::Path;
use std::time::{Duration, Instant};

use backplane_tokenizer::{DecodeOptions, EncodeOptions, Tokenizer};
use backplane_weights::Weights;
use backplane_weights::writer::{GgufWriter, OwnedValue};

type Keys = Vec<(&'static str, OwnedValue)>;

/// A byte-level vocabulary: the printable ASCII bytes, then a few merges and marks.
fn byte_level() -> Keys {
    let mut tokens: Vec<String> = (b'!'..=b'~')
        .map(|byte| char::from(byte).to_string())
        .collect();
    tokens.extend(["Ġ", "ab", "abc", "<|endoftext|>", "<mark>"].map(String::from));
    let mut kinds = vec![1i32; tokens.len()];
    let last = kinds.len() - 1;
    (kinds[last - 1], kinds[last]) = (3, 4);
    vec![
        ("tokenizer.ggml.model", "gpt2".into()),
        ("tokenizer.ggml.pre", "gpt-2".into()),
        ("tokenizer.ggml.tokens", tokens.into()),
        ("tokenizer.ggml.token_type", kinds.into()),
        ("tokenizer.ggml.merges", vec!["a b", "ab c"].into()),
        ("tokenizer.ggml.eos_token_id", 97u32.into()),
    ]
}

/// A SentencePiece vocabulary without byte tokens.
fn sentence_pieces() -> Keys {
    vec![
        ("tokenizer.ggml.model", "llama".into()),
        (
            "tokenizer.ggml.tokens",
            vec!["<unk>", "<s>", "</s>", "▁", "a", "▁a", "aa"].into(),
        ),
        (
            "tokenizer.ggml.token_type",
            vec![2i32, 3, 3, 1, 1, 1, 1].into(),
        ),
        (
            "tokenizer.ggml.scores",
            vec![0f32, 0., 0., -1., -2., -3., -4.].into(),
        ),
    ]
}

fn with(mut keys: Keys, key: &'static str, value: impl Into<OwnedValue>) -> Keys {
    keys.retain(|(other, _)| *other != key);
    keys.push((key, value.into()));
    keys
}

fn without(mut keys: Keys, key: &str) -> Keys {
    keys.retain(|(other, _)| *other != key);
    keys
}

fn build(keys: Keys) -> Result<Tokenizer, String> {
    let mut writer = GgufWriter::new();
    writer.add_meta("general.architecture", "llama");
    for (key, value) in keys {
        writer.add_meta(key, value);
    }
    let weights = Weights::from_bytes(Path::new("test.gguf"), &writer.to_bytes().unwrap()).unwrap();
    Tokenizer::from_metadata(weights.metadata()).map_err(|error| error.to_string())
}

#[test]
fn what_is_wrong_is_said_in_one_line() {
    let cases: Vec<(Keys, &str)> = vec![
        (vec![], "tokenizer.ggml.model: is missing"),
        (
            with(byte_level(), "tokenizer.ggml.model", "bert"),
            "tokenizer.ggml.model: is \"bert\", expected \"gpt2\" or \"llama\"",
        ),
        (
            with(byte_level(), "tokenizer.ggml.pre", "my-own"),
            "tokenizer.ggml.pre: is \"my-own\", expected one of default, gpt-2,",
        ),
        (
            without(byte_level(), "tokenizer.ggml.tokens"),
            "tokenizer.ggml.tokens: is missing",
        ),
        (
            with(byte_level(), "tokenizer.ggml.tokens", Vec::<&str>::new()),
            "tokenizer.ggml.tokens: holds no tokens",
        ),
        (
            with(byte_level(), "tokenizer.ggml.tokens", vec![1i32, 2]),
            "tokenizer.ggml.tokens",
        ),
        (
            with(byte_level(), "tokenizer.ggml.tokens", "abc"),
            "tokenizer.ggml.tokens",
        ),
        (
            with(byte_level(), "tokenizer.ggml.token_type", vec![1i32; 100]),
            "tokenizer.ggml.token_type: holds 100 entries, expected 99, one for each token",
        ),
        (
            with(byte_level(), "tokenizer.ggml.token_type", vec!["x"; 99]),
            "tokenizer.ggml.token_type",
        ),
        (
            without(byte_level(), "tokenizer.ggml.merges"),
            "tokenizer.ggml.merges: is missing",
        ),
        (
            with(byte_level(), "tokenizer.ggml.merges", vec!["a b", "x yz"]),
            "tokenizer.ggml.merges: entry 1, \"x yz\", names \"yz\", which is not a token",
        ),
        (
            with(byte_level(), "tokenizer.ggml.merges", vec!["a c"]),
            "tokenizer.ggml.merges: entry 0, \"a c\", names \"ac\", which is not a token",
        ),
        (
            with(byte_level(), "tokenizer.ggml.merges", vec!["ab"]),
            "tokenizer.ggml.merges: entry 0, \"ab\", is not two tokens with a space between them",
        ),
        (
            with(byte_level(), "tokenizer.ggml.merges", vec![""]),
            "tokenizer.ggml.merges: entry 0, \"\", is not two tokens",
        ),
        (
            with(byte_level(), "tokenizer.ggml.eos_token_id", 99u32),
            "tokenizer.ggml.eos_token_id: is 99, expected a token id below 99, the size of the vocabulary",
        ),
        (
            with(byte_level(), "tokenizer.ggml.bos_token_id", u32::MAX),
            "tokenizer.ggml.bos_token_id: is 4294967295, expected a token id below 99",
        ),
        (
            with(byte_level(), "tokenizer.ggml.bos_token_id", "1"),
            "tokenizer.ggml.bos_token_id",
        ),
        (
            with(byte_level(), "tokenizer.ggml.bos_token_id", -1i32),
            "tokenizer.ggml.bos_token_id",
        ),
        (
            with(byte_level(), "tokenizer.ggml.add_bos_token", true),
            "tokenizer.ggml.add_bos_token: is true, but tokenizer.ggml.bos_token_id is missing",
        ),
        (
            with(byte_level(), "tokenizer.ggml.add_bos_token", 1u32),
            "tokenizer.ggml.add_bos_token",
        ),
        (
            without(sentence_pieces(), "tokenizer.ggml.scores"),
            "tokenizer.ggml.scores: is missing",
        ),
        (
            with(sentence_pieces(), "tokenizer.ggml.scores", vec![0f32; 8]),
            "tokenizer.ggml.scores: holds 8 entries, expected 7, one for each token",
        ),
        (
            with(
                sentence_pieces(),
                "tokenizer.ggml.scores",
                vec![0f32, 0., f32::NAN, 0., 0., 0., 0.],
            ),
            "tokenizer.ggml.scores: entry 2 is not a number",
        ),
        (
            with(sentence_pieces(), "tokenizer.ggml.scores", vec!["0"; 7]),
            "tokenizer.ggml.scores",
        ),
    ];
    for (keys, expected) in cases {
        let error = build(keys).unwrap_err();
        assert!(
            error.contains(expected),
            "found {error:?}, expected {expected:?}"
        );
        assert!(!error.contains('\n'), "{error:?}");
    }
}

#[test]
fn a_missing_pre_tokenizer_is_the_default_with_a_warning() {
    let tokenizer = build(without(byte_level(), "tokenizer.ggml.pre")).unwrap();
    assert_eq!(
        tokenizer.warnings(),
        ["tokenizer.ggml.pre is missing: using \"default\""]
    );
    let named = build(with(byte_level(), "tokenizer.ggml.pre", "default")).unwrap();
    assert!(named.warnings().is_empty());
    let text = "a, b+12345 abc";
    assert_eq!(
        tokenizer.encode(text, EncodeOptions::default()).unwrap(),
        named.encode(text, EncodeOptions::default()).unwrap()
    );
}

#[test]
fn odd_vocabularies_work_as_stated() {
    let options = EncodeOptions::default();
    let decode = |tokenizer: &Tokenizer, ids: &[u32]| {
        String::from_utf8(tokenizer.decode(ids, DecodeOptions::default()).unwrap()).unwrap()
    };
    // A byte without a token is left out.
    let tokenizer = build(byte_level()).unwrap();
    assert_eq!(
        decode(
            &tokenizer,
            &tokenizer.encode("abc\u{1}é abcab", options).unwrap()
        ),
        "abc abcab"
    );
    assert_eq!(
        tokenizer.encode("abc", options).unwrap(),
        [tokenizer.id_of("abc").unwrap()]
    );
    // User-defined tokens are always parsed, control tokens on demand.
    let mark = tokenizer.id_of("<mark>").unwrap();
    let end = tokenizer.id_of("<|endoftext|>").unwrap();
    let text = "a<mark>b<|endoftext|>";
    let plain = tokenizer.encode(text, options).unwrap();
    assert!(plain.contains(&mark) && !plain.contains(&end));
    let parsed = tokenizer
        .encode(
            text,
            EncodeOptions {
                parse_special: true,
                ..options
            },
        )
        .unwrap();
    assert_eq!(parsed[1..], [mark, tokenizer.id_of("b").unwrap(), end]);
    // Without byte tokens, what has no token is unknown; without an unknown token it is an error.
    let pieces = build(sentence_pieces()).unwrap();
    assert_eq!(
        (pieces.bos(), pieces.eos(), pieces.adds_bos()),
        (Some(1), Some(2), true)
    );
    assert_eq!(pieces.encode("ab", options).unwrap(), [5, 0]);
    let known = with(
        sentence_pieces(),
        "tokenizer.ggml.token_type",
        vec![1i32, 3, 3, 1, 1, 1, 1],
    );
    let error = build(known).unwrap().encode("ab", options).unwrap_err();
    assert_eq!(
        error.to_string(),
        "the vocabulary has no token for byte 0x62"
    );
    // Types may be missing; a token may be there twice or be empty.
    let untyped = build(without(byte_level(), "tokenizer.ggml.token_type")).unwrap();
    assert_eq!(untyped.encode("abc", options).unwrap().len(), 1);
    let twice = with(
        sentence_pieces(),
        "tokenizer.ggml.tokens",
        vec!["<unk>", "<s>", "</s>", "▁", "a", "a", ""],
    );
    let twice = build(twice).unwrap();
    assert_eq!(
        twice.warnings(),
        ["tokenizer.ggml.tokens holds 1 tokens twice: text becomes the first of them"]
    );
    assert_eq!(twice.encode("a", options).unwrap(), [3, 4]);
    assert_eq!(decode(&twice, &[5, 6]), "a");
    // A vocabulary that would add BOS but has none.
    let none = with(
        with(byte_level(), "tokenizer.ggml.pre", "llama-bpe"),
        "tokenizer.ggml.eos_token_id",
        97u32,
    );
    let none = build(none).unwrap();
    assert_eq!((none.bos(), none.adds_bos()), (None, false));
    assert_eq!(
        none.warnings(),
        ["tokenizer.ggml.bos_token_id is missing: none is added"]
    );
    let both = EncodeOptions {
        add_special: true,
        parse_special: true,
    };
    assert!(none.encode("", both).unwrap().is_empty());
}

#[test]
fn phi_3_swallows_white_space_after_its_special_tokens() {
    let tokenizer = build(with(sentence_pieces(), "general.name", "Phi-3 mini")).unwrap();
    let options = EncodeOptions {
        parse_special: true,
        ..EncodeOptions::default()
    };
    assert_eq!(tokenizer.encode("</s> \n a", options).unwrap(), [2, 5]);
    assert_eq!(tokenizer.encode("<s> a", options).unwrap(), [1, 3, 5]);
}

#[test]
fn long_texts_take_no_longer_than_their_length() {
    for tokenizer in [
        build(byte_level()).unwrap(),
        build(sentence_pieces()).unwrap(),
    ] {
        for text in [
            "a".repeat(1_000_000),
            " ".repeat(1_000_000),
            "<".repeat(1_000_000),
            "ab".repeat(500_000),
        ] {
            let started = Instant::now();
            let ids = tokenizer
                .encode(
                    &text,
                    EncodeOptions {
                        add_special: true,
                        parse_special: true,
                    },
                )
                .unwrap();
            assert!(ids.len() >= 333_333, "{}", ids.len());
            assert!(
                started.elapsed() < Duration::from_secs(10),
                "{:?} {:?}",
                &text[..2],
                started.elapsed()
            );
        }
    }
}
