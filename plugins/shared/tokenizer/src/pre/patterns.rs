//! The regular expressions of `tokenizer.json` files, letter by letter, and the stages that they stand for.

use super::{Class, MANY, PRE_TOKENIZERS, PreTokenizer, Stage};

const CONTRACTIONS: &str = "(?i:'s|'t|'re|'ve|'m|'ll|'d)";
/// The same without a case-folding group, as some exports have it.
const CONTRACTIONS_SPELLED: &str = "(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])";
const REST_OF_LLAMA3: &str = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const REST_OF_CASED: &str = r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const UPPER: &str = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]";
const LOWER: &str = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]";

/// The pattern of `ByteLevel` with `use_regex`.
pub(crate) const GPT2: &str =
    r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";

/// The pattern of `Digits` with `individual_digits`.
pub(crate) const EACH_NUMBER: &str = r"\p{N}";

/// The stage that an expression stands for. Nothing is guessed: one that differs in a letter is not known.
pub(crate) fn stage_of(pattern: &str) -> Option<Stage> {
    let pattern = plainly_escaped(pattern);
    known()
        .into_iter()
        .find_map(|(known, stage)| (known == pattern).then_some(stage))
}

fn known() -> Vec<(String, Stage)> {
    let number = |max| Stage::Runs {
        class: Class::Number,
        min: 1,
        max,
    };
    let mut known = vec![
        (GPT2.into(), Stage::Gpt2),
        (EACH_NUMBER.into(), number(1)),
        (r"\p{N}{1,3}".into(), number(3)),
        (
            "[一-龥぀-ゟ゠-ヿ]+".into(),
            Stage::Runs { class: Class::ChineseOrKana, min: 1, max: MANY },
        ),
        (
            r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"##.into(),
            Stage::DeepSeek,
        ),
    ];
    for (numbers, digits) in [(r"\p{N}", 1), (r"\p{N}{1,3}", 3)] {
        for contractions in [CONTRACTIONS, CONTRACTIONS_SPELLED] {
            known.push((
                format!(r"{contractions}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|{numbers}{REST_OF_LLAMA3}"),
                Stage::Llama3 { digits },
            ));
        }
        for suffix in [Some(CONTRACTIONS), Some(CONTRACTIONS_SPELLED), None] {
            let contractions = suffix.map_or(String::new(), |suffix| format!("{suffix}?"));
            let prefix = r"[^\r\n\p{L}\p{N}]?";
            known.push((
                format!(
                    "{prefix}{UPPER}*{LOWER}+{contractions}|{prefix}{UPPER}+{LOWER}*{contractions}|{numbers}{REST_OF_CASED}"
                ),
                Stage::Cased { digits, contractions: suffix.is_some() },
            ));
        }
    }
    known
}

/// Line ends as escapes, quotes and slashes as themselves: files write both and mean the same.
fn plainly_escaped(pattern: &str) -> String {
    let mut out = String::with_capacity(pattern.len());
    let mut characters = pattern.chars();
    while let Some(character) = characters.next() {
        match character {
            '\r' => out.push_str(r"\r"),
            '\n' => out.push_str(r"\n"),
            '\\' => match characters.next() {
                Some(quoted @ ('"' | '/')) => out.push(quoted),
                other => {
                    out.push('\\');
                    out.extend(other);
                }
            },
            other => out.push(other),
        }
    }
    out
}

/// The row with these stages; of several, one that takes whole words first as wanted, or else the first.
pub(crate) fn by_stages(
    stages: &[Stage],
    whole_words_first: bool,
) -> Option<&'static PreTokenizer> {
    let rows = || PRE_TOKENIZERS.iter().filter(|row| row.stages == stages);
    rows()
        .find(|row| row.whole_words_first == whole_words_first)
        .or_else(|| rows().next())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_are_known_letter_by_letter() {
        let deepseek = "[!\\\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\r\n]*|\\s*[\r\n]+|\\s+(?!\\S)|\\s+";
        assert_eq!(stage_of(deepseek), Some(Stage::DeepSeek));
        assert_eq!(stage_of(GPT2), Some(Stage::Gpt2));
        for wrong in [&GPT2[1..], "", "\\", r"\p{N}{1,2}", r"\p{n}"] {
            assert_eq!(stage_of(wrong), None, "{wrong:?}");
        }
        let mut patterns: Vec<String> = known().into_iter().map(|(pattern, _)| pattern).collect();
        patterns.sort_unstable();
        patterns.dedup();
        assert_eq!(patterns.len(), known().len());
    }

    #[test]
    fn rows_are_found_by_their_stages() {
        let name = |stages: &[Stage], whole| by_stages(stages, whole).map(|row| row.names[0]);
        let llama3 = [Stage::Llama3 { digits: 3 }];
        assert_eq!(name(&llama3, true), Some("llama-bpe"));
        assert_eq!(name(&llama3, false), Some("smaug-bpe"));
        assert_eq!(name(&[Stage::Llama3 { digits: 1 }], true), Some("qwen2"));
        assert_eq!(name(&[Stage::Gpt2, Stage::Gpt2], false), None);
        assert_eq!(name(&[], false), None);
    }
}
