//! Pre-tokenizers of byte-level vocabularies: how a text is cut into words before merges are looked for.
//!
//! A pre-tokenizer is a row of [`PRE_TOKENIZERS`]: its names in `tokenizer.ggml.pre` and its stages. Each stage cuts every piece
//! that the stage before it left; what a stage doesn't match becomes a piece of its own. The stages stand for the regular
//! expressions of the models' `tokenizer.json`, written as scanners: one pass, no backtracking beyond a run of characters, so
//! no text makes them slow.

mod patterns;

pub(crate) use patterns::{EACH_NUMBER, GPT2, by_stages, stage_of};

use unicode_properties::{GeneralCategory, UnicodeGeneralCategory};

/// One pre-tokenizer and what its name implies.
#[derive(Debug)]
pub(crate) struct PreTokenizer {
    /// Its names in `tokenizer.ggml.pre`; the first is its own.
    pub(crate) names: &'static [&'static str],
    /// A word that is a token is that token, whatever the merges would make of it.
    pub(crate) whole_words_first: bool,
    /// BOS is added where the metadata doesn't say.
    pub(crate) adds_bos: bool,
    /// Decoding drops the spaces before punctuation (see [`crate::DecodeOptions`]).
    pub(crate) cleans_spaces: bool,
    pub(crate) stages: &'static [Stage],
}

/// A way to cut a piece of text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stage {
    /// Runs of `min` to `max` characters of one class.
    Runs {
        class: Class,
        min: usize,
        max: usize,
    },
    /// `'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+`
    Gpt2,
    /// `(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,digits}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`
    Llama3 { digits: usize },
    /// `[^\r\n\p{L}\p{N}]?U*L+C?|[^\r\n\p{L}\p{N}]?U+L*C?|\p{N}{1,digits}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+`
    /// where U is `[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]`, L is `[\p{Ll}\p{Lm}\p{Lo}\p{M}]` and C the contractions of `Llama3`.
    Cased { digits: usize, contractions: bool },
    /// ``[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+``
    DeepSeek,
}

/// The characters of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Class {
    /// `\p{N}`
    Number,
    /// `[0-9]`
    AsciiDigit,
    /// ``[\p{P}$+<=>^~|]``
    DefaultPunctuation,
    /// `[一-龥぀-ゟ゠-ヿ]`
    ChineseOrKana,
}

impl Class {
    fn holds(self, c: char) -> bool {
        match self {
            Class::Number => is_number(c),
            Class::AsciiDigit => c.is_ascii_digit(),
            Class::DefaultPunctuation => {
                matches!(c, '$' | '+' | '<' | '=' | '>' | '^' | '~' | '|') || is_punctuation(c)
            }
            Class::ChineseOrKana => {
                matches!(c, '\u{4E00}'..='\u{9FA5}' | '\u{3040}'..='\u{309F}' | '\u{30A0}'..='\u{30FF}')
            }
        }
    }
}

const MANY: usize = usize::MAX;

/// Every pre-tokenizer that is known. The regular expressions are those of the models' published `tokenizer.json` files.
pub(crate) const PRE_TOKENIZERS: &[PreTokenizer] = &[
    PreTokenizer {
        names: &["default"],
        whole_words_first: false,
        adds_bos: false,
        cleans_spaces: true,
        stages: &[
            Stage::Runs {
                class: Class::DefaultPunctuation,
                min: 1,
                max: MANY,
            },
            Stage::Gpt2,
            Stage::Runs {
                class: Class::Number,
                min: 1,
                max: MANY,
            },
            Stage::Runs {
                class: Class::AsciiDigit,
                min: 3,
                max: 3,
            },
        ],
    },
    PreTokenizer {
        names: &["gpt-2", "phi-2", "mpt", "olmo", "jais", "exaone4"],
        whole_words_first: false,
        adds_bos: false,
        cleans_spaces: true,
        stages: &[Stage::Gpt2],
    },
    PreTokenizer {
        names: &[
            "llama-bpe",
            "llama3",
            "llama-v3",
            "falcon3",
            "pixtral",
            "lfm2",
        ],
        whole_words_first: true,
        adds_bos: true,
        cleans_spaces: true,
        stages: &[Stage::Llama3 { digits: 3 }],
    },
    PreTokenizer {
        names: &["smaug-bpe", "dbrx", "glm4", "chatglm-bpe"],
        whole_words_first: false,
        adds_bos: false,
        cleans_spaces: true,
        stages: &[Stage::Llama3 { digits: 3 }],
    },
    PreTokenizer {
        names: &["qwen2", "deepseek-r1-qwen", "hunyuan"],
        whole_words_first: false,
        adds_bos: false,
        cleans_spaces: false,
        stages: &[Stage::Llama3 { digits: 1 }],
    },
    PreTokenizer {
        names: &["stablelm2", "megrez"],
        whole_words_first: false,
        adds_bos: false,
        cleans_spaces: true,
        stages: &[Stage::Llama3 { digits: 1 }],
    },
    PreTokenizer {
        names: &["gpt-4o", "llama4", "kanana2"],
        whole_words_first: false,
        adds_bos: false,
        cleans_spaces: false,
        stages: &[Stage::Cased {
            digits: 3,
            contractions: true,
        }],
    },
    PreTokenizer {
        names: &["tekken"],
        whole_words_first: true,
        adds_bos: true,
        cleans_spaces: false,
        stages: &[Stage::Cased {
            digits: 1,
            contractions: false,
        }],
    },
    PreTokenizer {
        names: &["deepseek-v3", "hunyuan-dense"],
        whole_words_first: false,
        adds_bos: false,
        cleans_spaces: false,
        stages: &[
            Stage::Runs {
                class: Class::Number,
                min: 1,
                max: 3,
            },
            Stage::Runs {
                class: Class::ChineseOrKana,
                min: 1,
                max: MANY,
            },
            Stage::DeepSeek,
        ],
    },
    PreTokenizer {
        names: &["smollm", "command-r"],
        whole_words_first: false,
        adds_bos: false,
        cleans_spaces: false,
        stages: &[
            Stage::Runs {
                class: Class::Number,
                min: 1,
                max: 1,
            },
            Stage::Gpt2,
        ],
    },
    PreTokenizer {
        names: &["starcoder", "refact", "codeshell", "exaone", "minerva-7b"],
        whole_words_first: false,
        adds_bos: false,
        cleans_spaces: true,
        stages: &[
            Stage::Runs {
                class: Class::Number,
                min: 1,
                max: 1,
            },
            Stage::Gpt2,
        ],
    },
];

/// The pre-tokenizer that is taken where the metadata names none.
pub(crate) const DEFAULT: &str = "default";

/// The row of that name.
pub(crate) fn by_name(name: &str) -> Option<&'static PreTokenizer> {
    PRE_TOKENIZERS.iter().find(|row| row.names.contains(&name))
}

/// All names, for an error that lists them.
pub(crate) fn known_names() -> String {
    PRE_TOKENIZERS
        .iter()
        .flat_map(|row| row.names)
        .copied()
        .collect::<Vec<_>>()
        .join(", ")
}

impl PreTokenizer {
    /// Hands every word of `text` to `word`, in order. The words joined are the text.
    pub(crate) fn split<'t>(&self, text: &'t str, word: &mut impl FnMut(&'t str)) {
        cut(self.stages, text, word);
    }
}

fn cut<'t>(stages: &[Stage], text: &'t str, word: &mut impl FnMut(&'t str)) {
    let Some((stage, rest)) = stages.split_first() else {
        return word(text);
    };
    let (mut position, mut gap) = (0, 0);
    while let Some(first) = text[position..].chars().next() {
        let scanner = Scanner {
            text,
            start: position,
            first,
        };
        let Some(end) = scanner.match_end(*stage) else {
            position += first.len_utf8();
            continue;
        };
        if gap < position {
            cut(rest, &text[gap..position], word);
        }
        cut(rest, &text[position..end], word);
        (position, gap) = (end, end);
    }
    if gap < text.len() {
        cut(rest, &text[gap..], word);
    }
}

/// Looks for one match at one place.
struct Scanner<'t> {
    text: &'t str,
    start: usize,
    first: char,
}

impl Scanner<'_> {
    /// Where the match that begins at `start` ends; always beyond `start`.
    fn match_end(&self, stage: Stage) -> Option<usize> {
        match stage {
            Stage::Runs { class, min, max } => {
                let mut end = self.start;
                let mut count = 0;
                for character in self.text[self.start..]
                    .chars()
                    .take(max)
                    .take_while(|&c| class.holds(c))
                {
                    end += character.len_utf8();
                    count += 1;
                }
                (count >= min).then_some(end)
            }
            Stage::Gpt2 => (self.contraction(self.start, false))
                .or_else(|| self.spaced_run(is_letter))
                .or_else(|| self.spaced_run(is_number))
                .or_else(|| self.spaced_run(is_other))
                .or_else(|| self.spaces()),
            Stage::Llama3 { digits } => (self.contraction(self.start, true))
                .or_else(|| self.word())
                .or_else(|| self.digits(digits))
                .or_else(|| {
                    self.spaced_run(is_other)
                        .map(|end| self.run(end, is_newline))
                })
                .or_else(|| self.newlines())
                .or_else(|| self.spaces()),
            Stage::Cased {
                digits,
                contractions,
            } => self
                .cased_word(contractions)
                .or_else(|| self.digits(digits))
                .or_else(|| {
                    self.spaced_run(is_other)
                        .map(|end| self.run(end, |c| is_newline(c) || c == '/'))
                })
                .or_else(|| self.newlines())
                .or_else(|| self.spaces()),
            Stage::DeepSeek => (self.punctuated_ascii_word())
                .or_else(|| self.accented_word())
                .or_else(|| {
                    self.spaced_run(is_punctuation_or_symbol)
                        .map(|end| self.run(end, is_newline))
                })
                .or_else(|| self.newlines())
                .or_else(|| self.spaces()),
        }
    }

    fn at(&self, position: usize) -> Option<char> {
        self.text[position..].chars().next()
    }

    /// The end of the run of `class` that begins at `position`; `position` itself for an empty run.
    fn run(&self, position: usize, class: impl Fn(char) -> bool) -> usize {
        let rest = &self.text[position..];
        rest.find(|character| !class(character))
            .map_or(self.text.len(), |length| position + length)
    }

    /// The run of `class` at `position`, if there is one.
    fn some_run(&self, position: usize, class: impl Fn(char) -> bool) -> Option<usize> {
        Some(self.run(position, class)).filter(|&end| end > position)
    }

    /// ` ?[class]+`
    fn spaced_run(&self, class: impl Fn(char) -> bool) -> Option<usize> {
        self.some_run(self.start + usize::from(self.first == ' '), class)
    }

    /// `'s|'t|'re|'ve|'m|'ll|'d` at `position`.
    fn contraction(&self, position: usize, any_case: bool) -> Option<usize> {
        let rest = self.text.as_bytes()[position..].strip_prefix(b"'")?;
        let is = |word: &[u8]| {
            rest.get(..word.len()).is_some_and(|r| {
                if any_case {
                    r.eq_ignore_ascii_case(word)
                } else {
                    r == word
                }
            })
        };
        let words: [&[u8]; 7] = [b"s", b"t", b"re", b"ve", b"m", b"ll", b"d"];
        words
            .into_iter()
            .find(|word| is(word))
            .map(|word| position + 1 + word.len())
    }

    /// `\p{N}{1,max}`
    fn digits(&self, max: usize) -> Option<usize> {
        self.match_end(Stage::Runs {
            class: Class::Number,
            min: 1,
            max,
        })
    }

    /// `[^\r\n\p{L}\p{N}]?\p{L}+`
    fn word(&self) -> Option<usize> {
        if is_letter(self.first) {
            return Some(self.run(self.start, is_letter));
        }
        if is_newline(self.first) || is_number(self.first) {
            return None;
        }
        self.some_run(self.start + self.first.len_utf8(), is_letter)
    }

    /// The two cased alternatives of `Stage::Cased`.
    fn cased_word(&self, contractions: bool) -> Option<usize> {
        let prefixed =
            (!is_newline(self.first) && !is_letter(self.first) && !is_number(self.first))
                .then(|| self.start + self.first.len_utf8());
        let starts = || prefixed.into_iter().chain([self.start]);
        let end = starts()
            .find_map(|start| self.upper_then_some_lower(start))
            .or_else(|| {
                starts()
                    .find_map(|start| self.some_run(start, is_upper_like))
                    .map(|end| self.run(end, is_lower_like))
            })?;
        Some(if contractions {
            self.contraction(end, true).unwrap_or(end)
        } else {
            end
        })
    }

    /// `U*L+` at `start`: where no lower-case letter follows the run of U, the run gives back its end until L matches.
    fn upper_then_some_lower(&self, start: usize) -> Option<usize> {
        let upper_end = self.run(start, is_upper_like);
        self.some_run(upper_end, is_lower_like).or_else(|| {
            let (last, character) = self.text[start..upper_end]
                .char_indices()
                .rfind(|&(_, c)| is_lower_like(c))?;
            Some(start + last + character.len_utf8())
        })
    }

    /// ``[!-/:-@\[-`{-~][A-Za-z]+``
    fn punctuated_ascii_word(&self) -> Option<usize> {
        self.first
            .is_ascii_punctuation()
            .then(|| self.some_run(self.start + 1, |c| c.is_ascii_alphabetic()))?
    }

    /// `[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+`
    fn accented_word(&self) -> Option<usize> {
        let letter = is_letter(self.first);
        let prefix = !letter && !is_newline(self.first) && !is_punctuation_or_symbol(self.first);
        let after = self.start + self.first.len_utf8();
        let prefixed = prefix
            .then(|| self.some_run(after, is_letter_or_mark))
            .flatten();
        prefixed.or_else(|| self.some_run(self.start, is_letter_or_mark))
    }

    /// `\s*[\r\n]+`: up to the last line end within the run of white space.
    fn newlines(&self) -> Option<usize> {
        let end = self.run(self.start, char::is_whitespace);
        self.text[self.start..end]
            .rfind(['\r', '\n'])
            .map(|last| self.start + last + 1)
    }

    /// `\s+(?!\S)|\s+`: all white space but its last character where something follows it.
    fn spaces(&self) -> Option<usize> {
        let end = self.some_run(self.start, char::is_whitespace)?;
        if self.at(end).is_none() {
            return Some(end);
        }
        let last = self.text[self.start..end]
            .char_indices()
            .next_back()
            .map_or(0, |(offset, _)| offset);
        Some(if last > 0 { self.start + last } else { end })
    }
}

fn is_newline(c: char) -> bool {
    c == '\r' || c == '\n'
}

fn is_letter(c: char) -> bool {
    use GeneralCategory::{
        LowercaseLetter, ModifierLetter, OtherLetter, TitlecaseLetter, UppercaseLetter,
    };
    if c.is_ascii() {
        return c.is_ascii_alphabetic();
    }
    matches!(
        c.general_category(),
        LowercaseLetter | ModifierLetter | OtherLetter | TitlecaseLetter | UppercaseLetter
    )
}

fn is_number(c: char) -> bool {
    use GeneralCategory::{DecimalNumber, LetterNumber, OtherNumber};
    if c.is_ascii() {
        return c.is_ascii_digit();
    }
    matches!(
        c.general_category(),
        DecimalNumber | LetterNumber | OtherNumber
    )
}

fn is_mark(c: char) -> bool {
    use GeneralCategory::{EnclosingMark, NonspacingMark, SpacingMark};
    !c.is_ascii()
        && matches!(
            c.general_category(),
            EnclosingMark | NonspacingMark | SpacingMark
        )
}

fn is_letter_or_mark(c: char) -> bool {
    is_letter(c) || is_mark(c)
}

/// `[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]`
fn is_upper_like(c: char) -> bool {
    if c.is_ascii() {
        return c.is_ascii_uppercase();
    }
    is_letter_or_mark(c) && c.general_category() != GeneralCategory::LowercaseLetter
}

/// `[\p{Ll}\p{Lm}\p{Lo}\p{M}]`
fn is_lower_like(c: char) -> bool {
    use GeneralCategory::{TitlecaseLetter, UppercaseLetter};
    if c.is_ascii() {
        return c.is_ascii_lowercase();
    }
    is_letter_or_mark(c) && !matches!(c.general_category(), TitlecaseLetter | UppercaseLetter)
}

/// `[^\s\p{L}\p{N}]`
fn is_other(c: char) -> bool {
    !c.is_whitespace() && !is_letter(c) && !is_number(c)
}

fn is_punctuation(c: char) -> bool {
    use GeneralCategory::{
        ClosePunctuation, ConnectorPunctuation, DashPunctuation, FinalPunctuation,
        InitialPunctuation, OpenPunctuation, OtherPunctuation,
    };
    matches!(
        c.general_category(),
        ClosePunctuation
            | ConnectorPunctuation
            | DashPunctuation
            | FinalPunctuation
            | InitialPunctuation
            | OpenPunctuation
            | OtherPunctuation
    )
}

fn is_punctuation_or_symbol(c: char) -> bool {
    use GeneralCategory::{CurrencySymbol, MathSymbol, ModifierSymbol, OtherSymbol};
    if c.is_ascii() {
        return c.is_ascii_punctuation();
    }
    is_punctuation(c)
        || matches!(
            c.general_category(),
            CurrencySymbol | MathSymbol | ModifierSymbol | OtherSymbol
        )
}

#[cfg(test)]
mod tests;
