//! Token ids and bytes against llama.cpp's, for every tokenizer of the fixtures.
#![allow(clippy::unwrap_used)] // in helpers of tests too

mod common;

use backplane_tokenizer::{DecodeOptions, EncodeOptions};

fn ids(value: &serde_json::Value) -> Vec<u32> {
    value
        .as_array()
        .unwrap()
        .iter()
        .map(|id| id.as_u64().unwrap() as u32)
        .collect()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[test]
fn every_case_has_the_reference_ids_and_bytes() {
    for (name, _) in common::TOKENIZERS {
        let fixture = common::json(&format!("tokenizers/{name}.json"));
        let tokenizer = common::tokenizer(name);
        let cases = fixture["cases"].as_array().unwrap();
        assert!(cases.len() >= 246, "{name}: {} cases", cases.len());
        let mut failures = Vec::new();
        for case in cases {
            let text = case["text"].as_str().unwrap();
            for (key, add_special, parse_special) in [
                ("plain", false, false),
                ("parse_special", false, true),
                ("add_special", true, false),
                ("add_special+parse_special", true, true),
            ] {
                let expected = ids(&case[key]);
                let found = tokenizer
                    .encode(
                        text,
                        EncodeOptions {
                            add_special,
                            parse_special,
                        },
                    )
                    .unwrap();
                if found != expected {
                    failures.push(format!(
                        "{name} {key} {text:?}: found {found:?}, expected {expected:?}"
                    ));
                }
            }
            let found = hex(&tokenizer
                .decode(&ids(&case["plain"]), DecodeOptions::default())
                .unwrap());
            if found != case["plain_detok_hex"].as_str().unwrap() {
                failures.push(format!(
                    "{name} bytes of {text:?}: found {found}, expected {}",
                    case["plain_detok_hex"]
                ));
            }
        }
        assert!(
            failures.is_empty(),
            "{} failures\n{}",
            failures.len(),
            failures.join("\n")
        );
    }
}

#[test]
fn vocabularies_are_what_the_reference_says() {
    for (name, _) in common::TOKENIZERS {
        let meta = &common::json(&format!("tokenizers/{name}.json"))["llama_cpp_meta"];
        let tokenizer = common::tokenizer(name);
        assert_eq!(
            tokenizer.vocab_size() as u64,
            meta["n"].as_u64().unwrap(),
            "{name}"
        );
        assert_eq!(
            u64::from(tokenizer.adds_bos()),
            meta["add_bos"].as_u64().unwrap(),
            "{name}"
        );
        assert_eq!(
            u64::from(tokenizer.adds_eos()),
            meta["add_eos"].as_u64().unwrap(),
            "{name}"
        );
        assert_eq!(
            tokenizer.eos().map(u64::from),
            meta["eos"].as_u64(),
            "{name}"
        );
        // The file of qwen2 names no BOS; llama.cpp then says 11, which is a comma.
        let bos = if *name == "tiny-bpe-qwen2" {
            None
        } else {
            meta["bos"].as_u64()
        };
        assert_eq!(tokenizer.bos().map(u64::from), bos, "{name}");
        if let Some(end_of_turn) = meta["eot"].as_u64() {
            assert!(
                tokenizer.is_end_of_generation(end_of_turn as u32),
                "{name}: {end_of_turn}"
            );
        }
        assert!(
            tokenizer.is_end_of_generation(tokenizer.eos().unwrap()),
            "{name}"
        );
        assert!(
            tokenizer.warnings().is_empty(),
            "{name}: {:?}",
            tokenizer.warnings()
        );
    }
}

#[test]
fn end_tokens_are_known_by_name() {
    let cases: &[(&str, &[&str])] = &[
        ("tiny-bpe-llama3", &["<|end_of_text|>", "<|eot_id|>"]),
        ("tiny-bpe-qwen2", &["<|endoftext|>", "<|im_end|>"]),
        ("tiny-bpe-gpt4o", &["<|endoftext|>", "<|end|>"]),
        ("tiny-bpe-deepseek3", &["<｜end▁of▁sentence｜>"]),
        ("tiny-spm-llama", &["</s>"]),
        ("tiny-spm-gemma", &["<eos>", "<end_of_turn>"]),
        (
            "smollm2-135m",
            &["<|endoftext|>", "<|im_end|>", "<reponame>"],
        ),
        // `</s>` is an HTML tag there, yet an end for llama.cpp too: its plain text is not the token (see the fixture).
        ("gemma3-270m", &["<eos>", "<end_of_turn>", "</s>"]),
    ];
    for (name, expected) in cases {
        let tokenizer = common::tokenizer(name);
        let found: Vec<_> = tokenizer
            .end_of_generation()
            .iter()
            .map(|&id| tokenizer.token_text(id).unwrap())
            .collect();
        let mut found: Vec<_> = found.iter().map(String::as_str).collect();
        found.sort_unstable();
        let mut expected = expected.to_vec();
        expected.sort_unstable();
        assert_eq!(found, expected, "{name}");
        assert!(
            tokenizer
                .end_of_generation()
                .iter()
                .all(|&id| tokenizer.is_control(id) && tokenizer.is_special(id))
        );
    }
}

#[test]
fn pieces_are_found_by_spelling_and_by_text() {
    for (name, piece) in [
        ("smollm2-135m", "ĠMama"),
        ("smollm2-135m", " Mama"),
        ("smollm2-135m", "<|im_end|>"),
    ] {
        let tokenizer = common::tokenizer(name);
        let id = tokenizer.id_of(piece).unwrap();
        assert_eq!(tokenizer.token_text(id).unwrap(), piece.replace('Ġ', " "));
    }
    let gemma = common::tokenizer("gemma3-270m");
    assert_eq!(gemma.id_of(" the"), gemma.id_of("▁the"));
    assert_eq!(
        gemma.token_text(gemma.id_of(" the").unwrap()).unwrap(),
        " the"
    );
    assert_eq!(gemma.id_of("no such piece in the vocabulary"), None);
    assert_eq!(
        gemma.token_bytes(gemma.id_of("<0xE2>").unwrap()).unwrap(),
        [0xE2]
    );
    assert_eq!(
        gemma.token_text(gemma.id_of("<0xE2>").unwrap()).unwrap(),
        "\u{FFFD}"
    );
    assert_eq!(gemma.token_bytes(gemma.vocab_size() as u32), None);
    assert_eq!(
        gemma
            .decode(&[1 << 30], DecodeOptions::default())
            .unwrap_err()
            .to_string(),
        "token id 1073741824 is out of range: the vocabulary has 262144 tokens"
    );
}

#[test]
fn prompts_begin_with_exactly_one_bos() {
    for (name, bos, text) in [
        ("tiny-bpe-llama3", "<|begin_of_text|>", "hi"),
        ("tiny-spm-llama", "<s>", "[INST] hi"),
        ("tiny-spm-gemma", "<bos>", "hi<end_of_turn>"),
        ("gemma3-270m", "<bos>", ""),
    ] {
        let tokenizer = common::tokenizer(name);
        let prompts: Vec<_> = (0..3)
            .map(|count| {
                tokenizer
                    .encode_prompt(&format!("{}{text}", bos.repeat(count)))
                    .unwrap()
            })
            .collect();
        assert_eq!(prompts[0].first().copied(), tokenizer.bos(), "{name}");
        assert_ne!(prompts[0].get(1).copied(), tokenizer.bos(), "{name}");
        assert!(
            prompts.iter().all(|prompt| *prompt == prompts[0]),
            "{name}: {prompts:?}"
        );
    }
    // A vocabulary that adds none gets none.
    let tokenizer = common::tokenizer("smollm2-135m");
    let ids = tokenizer
        .encode_prompt("<|im_start|>user\nhi<|im_end|>")
        .unwrap();
    assert_eq!(
        ids.iter()
            .filter(|&&id| Some(id) == tokenizer.bos())
            .count(),
        1
    );
    assert_eq!(
        tokenizer.encode_prompt("hi").unwrap(),
        tokenizer.encode("hi", EncodeOptions::default()).unwrap()
    );
}

#[test]
fn special_tokens_are_left_out_when_asked() {
    let tokenizer = common::tokenizer("tiny-spm-llama");
    let ids = tokenizer
        .encode(
            "hello",
            EncodeOptions {
                add_special: true,
                parse_special: false,
            },
        )
        .unwrap();
    assert_eq!(
        tokenizer.decode(&ids, DecodeOptions::default()).unwrap(),
        b"hello"
    );
    let shown = DecodeOptions {
        skip_special: false,
        ..DecodeOptions::default()
    };
    assert_eq!(tokenizer.decode(&ids, shown).unwrap(), b"<s> hello");
}
