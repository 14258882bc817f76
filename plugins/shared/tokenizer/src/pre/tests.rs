use super::*;

fn words<'t>(name: &str, text: &'t str) -> Vec<&'t str> {
    let mut words = Vec::new();
    by_name(name)
        .expect(name)
        .split(text, &mut |word| words.push(word));
    words
}

// Each row: pre-tokenizer, text, words. Worked out by hand from the regular expressions beside the stages.
const CASES: &[(&str, &str, &[&str])] = &[
    (
        "gpt-2",
        "I'm don't WE'LL",
        &["I", "'m", " don", "'t", " WE", "'", "LL"],
    ),
    (
        "gpt-2",
        "a  b\t\tc \n",
        &["a", " ", " b", "\t", "\t", "c", " \n"],
    ),
    ("gpt-2", "x12 34½ !?", &["x", "12", " 34½", " !?"]),
    (
        "llama-bpe",
        "I'm WE'LL'Re",
        &["I", "'m", " WE", "'LL", "'Re"],
    ),
    ("llama-bpe", "1234567", &["123", "456", "7"]),
    ("llama-bpe", "x;\n\n  y", &["x", ";\n\n", " ", " y"]),
    ("llama-bpe", "a \n \n  b", &["a", " \n \n", " ", " b"]),
    ("llama-bpe", "\tfoo(bar", &["\tfoo", "(bar"]),
    ("llama-bpe", "\n foo", &["\n", " foo"]),
    ("qwen2", "12a", &["1", "2", "a"]),
    (
        "gpt-4o",
        "aBcDeF HTMLText",
        &["a", "Bc", "De", "F", " HTMLText"],
    ),
    (
        "gpt-4o",
        "I'm HE'S camelCase's",
        &["I'm", " HE'S", " camel", "Case's"],
    ),
    ("gpt-4o", "приВет A一BC", &["при", "Вет", " A一", "BC"]),
    (
        "gpt-4o",
        "a//\n/b 1234",
        &["a", "//\n/", "b", " ", "123", "4"],
    ),
    ("tekken", "I'm 12", &["I", "'m", " ", "1", "2"]),
    (
        "deepseek-v3",
        "12345 我们a",
        &["123", "45", " ", "我们", "a"],
    ),
    (
        "deepseek-v3",
        "a.b _foo !!\n",
        &["a", ".b", " _", "foo", " !!\n"],
    ),
    (
        "deepseek-v3",
        "cafe\u{301} \u{1}\u{2}x",
        &["cafe\u{301}", " ", "\u{1}", "\u{2}x"],
    ),
    ("smollm", "a 123", &["a", " ", "1", "2", "3"]),
    ("default", "a, b+12345", &["a", ",", " b", "+", "123", "45"]),
    ("default", "x 1234", &["x", " ", "123", "4"]),
];

#[test]
fn words_are_cut_as_the_regular_expressions_say() {
    for &(name, text, expected) in CASES {
        assert_eq!(words(name, text), expected, "{name}: {text:?}");
    }
}

#[test]
fn names_are_unique_and_the_default_is_one_of_them() {
    let names: Vec<_> = PRE_TOKENIZERS.iter().flat_map(|row| row.names).collect();
    let unique: std::collections::BTreeSet<_> = names.iter().collect();
    assert_eq!(names.len(), unique.len());
    assert!(by_name(DEFAULT).is_some());
    assert!(by_name("no such").is_none());
}

proptest::proptest! {
    #[test]
    fn words_joined_are_the_text(text in "(\\PC|\\s|[a-zA-Z0-9' \r\n]){0,40}") {
        for row in PRE_TOKENIZERS {
            let words = words(row.names[0], &text);
            proptest::prop_assert!(words.iter().all(|word| !word.is_empty()));
            proptest::prop_assert_eq!(words.concat(), text.clone());
        }
    }
}
