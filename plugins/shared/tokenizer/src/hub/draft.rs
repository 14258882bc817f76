//! A vocabulary in the making.

use std::collections::HashMap;

use crate::error::Error;
use crate::normalize::NormalForm;
use crate::pre::PreTokenizer;
use crate::sentence_pieces::SpacePrefix;

/// What a tokenizer's own file says.
pub(super) struct Parsed {
    pub(super) draft: Draft,
    pub(super) model: Model,
    pub(super) normalizer: Option<NormalForm>,
    /// Ids, ascending: tokens that are looked for after normalisation, and that swallow white space around them.
    pub(super) normalized: Vec<u32>,
    pub(super) strip_before: Vec<u32>,
    pub(super) strip_after: Vec<u32>,
    pub(super) adds: Adds,
    /// What the file itself says, where the configuration says nothing.
    pub(super) ids: Ids,
}

pub(super) enum Model {
    ByteLevel {
        pre: &'static PreTokenizer,
        merges: Vec<String>,
        ignores_merges: bool,
    },
    Pieces {
        prefix: SpacePrefix,
        strips_space: bool,
        cuts_at_spaces: bool,
        /// `None`: by scores.
        merges: Option<Vec<String>>,
    },
}

/// Tokens that are put before and after a text.
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct Adds {
    pub(super) before: Option<u32>,
    pub(super) after: Option<u32>,
    /// BOS comes before a text, whichever it is.
    pub(super) bos: bool,
}

/// Ids of special tokens.
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct Ids {
    pub(super) bos: Option<u32>,
    pub(super) eos: Option<u32>,
    pub(super) unknown: Option<u32>,
    pub(super) padding: Option<u32>,
}

/// Kinds of tokens, by their numbers in `tokenizer.ggml.token_type`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Normal = 1,
    Unknown = 2,
    Control = 3,
    UserDefined = 4,
    Unused = 5,
    Byte = 6,
}

#[derive(Debug)]
pub(super) struct Token {
    pub(super) spelling: String,
    pub(super) kind: Kind,
    pub(super) score: f32,
}

/// The score of a token that fills the vocabulary up, and of one that was added to it, as llama.cpp's converter has them.
const UNUSED_SCORE: f32 = -10_000.0;
pub(super) const ADDED_SCORE: f32 = -1000.0;

/// More rows than any vocabulary has.
const MOST_ROWS: u64 = 1 << 24;

/// Tokens by id, and ids by spelling.
pub(super) struct Draft {
    /// The name of the file.
    pub(super) source: &'static str,
    pub(super) tokens: Vec<Token>,
    by_spelling: HashMap<String, u32>,
    rows: Option<usize>,
    pub(super) warnings: Vec<String>,
}

impl Draft {
    /// A vocabulary of `count` tokens, none of which is known yet; or of as many as the embedding has rows.
    pub(super) fn new(
        source: &'static str,
        count: usize,
        rows: Option<u64>,
    ) -> Result<Self, Error> {
        if let Some(rows) = rows.filter(|&rows| rows > MOST_ROWS) {
            let problem = format!("the embedding has {rows} rows, expected at most {MOST_ROWS}");
            return Err(Error::vocabulary(source, problem));
        }
        let rows = rows.map(|rows| rows as usize);
        let size = rows.unwrap_or(count);
        let unused = |id| Token {
            spelling: format!("[PAD{id}]"),
            kind: Kind::Unused,
            score: UNUSED_SCORE,
        };
        Ok(Self {
            source,
            tokens: (0..size).map(unused).collect(),
            by_spelling: HashMap::with_capacity(count.min(size)),
            rows,
            warnings: Vec::new(),
        })
    }

    pub(super) fn size(&self) -> usize {
        self.tokens.len()
    }

    pub(super) fn fault(&self, problem: impl Into<String>) -> Error {
        Error::vocabulary(self.source, problem)
    }

    /// Whether the embedding is known to have no row for `id`.
    pub(super) fn has_no_row(&self, id: u64) -> bool {
        self.rows.is_some_and(|rows| id >= rows as u64)
    }

    /// Puts a token at its id, where none was put before.
    pub(super) fn put(
        &mut self,
        id: u64,
        spelling: String,
        kind: Kind,
        score: f32,
    ) -> Result<u32, Error> {
        let shown = super::json::shortened(&format!("{spelling:?}"));
        let slot = usize::try_from(id).ok().and_then(|id| self.tokens.get(id));
        let Some(slot) = slot else {
            let size = self.size();
            return Err(self.fault(match self.rows {
                Some(_) => format!(
                    "token {shown} has id {id}, expected below {size}, the rows of the embedding"
                ),
                None => format!(
                    "token {shown} has id {id}, expected below {size}, the number of tokens"
                ),
            }));
        };
        let id = id as u32;
        if self.by_spelling.get(&slot.spelling) == Some(&id) {
            let other = super::json::shortened(&format!("{:?}", slot.spelling));
            return Err(self.fault(format!("tokens {other} and {shown} both have id {id}")));
        }
        if let Some(other) = self.by_spelling.get(&spelling) {
            return Err(self.fault(format!("token {shown} has two ids, {other} and {id}")));
        }
        self.by_spelling.insert(spelling.clone(), id);
        self.tokens[id as usize] = Token {
            spelling,
            kind,
            score,
        };
        Ok(id)
    }

    /// Gives the token at `id` another spelling.
    pub(super) fn respell(&mut self, id: u32, spelling: String) {
        let token = &mut self.tokens[id as usize];
        if self.by_spelling.get(&token.spelling) == Some(&id) {
            self.by_spelling.remove(&token.spelling);
        }
        self.by_spelling.entry(spelling.clone()).or_insert(id);
        token.spelling = spelling;
    }

    pub(super) fn find(&self, spelling: &str) -> Option<u32> {
        self.by_spelling.get(spelling).copied()
    }

    pub(super) fn warn(&mut self, file: &str, problem: impl std::fmt::Display) {
        self.warnings.push(format!("{file}: {problem}"));
    }
}

/// Whether a token's name says that it is a mark, whatever its file says: such a token is not read out of plain text.
pub(super) fn looks_special(name: &str) -> bool {
    matches!(name, "<pad>" | "<mask>" | "<2mass>" | "[@BOS@]")
        || name.starts_with("<|") && name.ends_with("|>")
        || name.starts_with("<｜") && name.ends_with("｜>")
        || name.starts_with("<unused") && name.ends_with('>')
}
