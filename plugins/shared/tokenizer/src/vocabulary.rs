//! The tokens: their spellings in one arena, their kinds, and which of them a text may name.

use std::hash::Hasher;

use hashbrown::HashTable;

use crate::error::Error;
use crate::keys::{TOKEN_TYPE, TOKENS};

/// What a token is, as `tokenizer.ggml.token_type` numbers it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Normal,
    Unknown,
    Control,
    UserDefined,
    Unused,
    Byte,
}

impl Kind {
    /// 0 and unknown numbers are plain text, so that a later format's kinds don't stop a model from loading.
    fn of(number: i32) -> Self {
        match number {
            2 => Kind::Unknown,
            3 => Kind::Control,
            4 => Kind::UserDefined,
            5 => Kind::Unused,
            6 => Kind::Byte,
            _ => Kind::Normal,
        }
    }

    /// Stands for no text of its own: left out when special tokens are skipped, and text that looks like it is only text
    /// unless special tokens are parsed.
    pub(crate) fn is_special(self) -> bool {
        matches!(self, Kind::Control | Kind::Unknown)
    }
}

/// Names of tokens that end a model's answer, whatever their type in the file: names are all that a GGUF file tells about
/// end-of-turn tokens. The list is llama.cpp's.
const END_NAMES: &[&str] = &[
    "<|eot_id|>",
    "<|im_end|>",
    "<|end|>",
    "<|return|>",
    "<|call|>",
    "<|flush|>",
    "<|calls|>",
    "<end_of_turn>",
    "<|endoftext|>",
    "</s>",
    "<|eom_id|>",
    "<EOT>",
    "_<EOT>",
    "[EOT]",
    "[EOS]",
    "<|end_of_text|>",
    "<end_of_utterance>",
    "<eos>",
    "<turn|>",
    "<|tool_response>",
    "<｜end▁of▁sentence｜>",
    "[e~[",
    // Fill-in-the-middle tokens that begin another file: nothing after them belongs to the answer.
    "<|fim_pad|>",
    "<fim-pad>",
    "<fim_pad>",
    "<PAD>",
    "[PAD]",
    "<|fim_repo|>",
    "<|repo_name|>",
    "<fim-repo>",
    "<REPO>",
    "<reponame>",
    "<|file_sep|>",
];

/// Names of fill-in-the-middle tokens: control tokens, whatever their type in the file.
const CONTROL_NAMES: &[&str] = &[
    "<|fim_prefix|>",
    "<fim-prefix>",
    "<fim_prefix>",
    "<｜fim▁begin｜>",
    "<PRE>",
    "▁<PRE>",
    "<|code_prefix|>",
    "<|prefix|>",
    "<|fim_suffix|>",
    "<fim-suffix>",
    "<fim_suffix>",
    "<｜fim▁hole｜>",
    "<SUF>",
    "▁<SUF>",
    "<|code_suffix|>",
    "<|suffix|>",
    "<|fim_middle|>",
    "<fim-middle>",
    "<fim_middle>",
    "<｜fim▁end｜>",
    "<MID>",
    "▁<MID>",
    "<|code_middle|>",
    "<|middle|>",
];

/// Parts of a reply rather than marks around it: always text (gpt-oss).
const TEXT_NAMES: &[&str] = &["<|channel|>", "<|message|>", "<|start|>", "<|constrain|>"];

#[derive(Debug)]
pub(crate) struct Vocabulary {
    arena: Box<str>,
    /// Where each spelling begins in `arena`, and where the last one ends: size + 1 entries.
    offsets: Box<[u32]>,
    kinds: Box<[Kind]>,
    /// Ids by the hash of their spelling.
    by_spelling: HashTable<u32>,
    longest: usize,
    /// Lengths of the tokens that a text may name, longest first, by their first byte.
    named: Box<[Vec<u32>]>,
}

fn hash(spelling: &[u8]) -> u64 {
    let mut hasher = rustc_hash::FxHasher::default();
    hasher.write(spelling);
    hasher.finish()
}

impl Vocabulary {
    /// Builds the table. `kinds` may be absent: all tokens are plain text then. `marks_by_name`: tokens with customary names
    /// are control tokens, whatever their kind.
    pub(crate) fn new<'t>(
        tokens: impl ExactSizeIterator<Item = &'t str>,
        kinds: Option<&[i32]>,
        marks_by_name: bool,
        warnings: &mut Vec<String>,
    ) -> Result<Self, Error> {
        let size = tokens.len();
        if size == 0 {
            return Err(Error::vocabulary(
                TOKENS,
                "holds no tokens, expected at least one",
            ));
        }
        if let Some(kinds) = kinds.filter(|kinds| kinds.len() != size) {
            let problem = format!(
                "holds {} entries, expected {size}, one for each token",
                kinds.len()
            );
            return Err(Error::vocabulary(TOKEN_TYPE, problem));
        }
        let mut arena = String::new();
        let mut offsets = vec![0u32];
        let mut by_spelling = HashTable::with_capacity(size);
        let (mut longest, mut duplicates) = (0, 0);
        for (id, token) in tokens.enumerate() {
            let id = u32::try_from(id)
                .map_err(|_| Error::vocabulary(TOKENS, "holds more than 2^32 tokens"))?;
            arena.push_str(token);
            let end = u32::try_from(arena.len()).map_err(|_| {
                Error::vocabulary(TOKENS, "is longer than 4 GiB of text, expected less")
            })?;
            offsets.push(end);
            longest = longest.max(token.len());
            let spelled = |id: u32| spelling(arena.as_bytes(), &offsets, id);
            let key = hash(token.as_bytes());
            if by_spelling
                .find(key, |&other| spelled(other) == token.as_bytes())
                .is_some()
            {
                duplicates += 1;
            } else if !token.is_empty() {
                by_spelling.insert_unique(key, id, |&other| hash(spelled(other)));
            }
        }
        if duplicates > 0 {
            warnings.push(format!(
                "{TOKENS} holds {duplicates} tokens twice: text becomes the first of them"
            ));
        }
        let kinds = match kinds {
            Some(kinds) => kinds.iter().map(|&kind| Kind::of(kind)).collect(),
            None => vec![Kind::Normal; size].into_boxed_slice(),
        };
        let mut vocabulary = Self {
            arena: arena.into_boxed_str(),
            offsets: offsets.into_boxed_slice(),
            kinds,
            by_spelling,
            longest,
            named: vec![Vec::new(); 256].into_boxed_slice(),
        };
        vocabulary.correct_kinds(marks_by_name);
        vocabulary.index_named_tokens();
        Ok(vocabulary)
    }

    fn correct_kinds(&mut self, marks_by_name: bool) {
        let marks = END_NAMES.iter().chain(CONTROL_NAMES);
        for name in marks.filter(|_| marks_by_name) {
            if let Some(id) = self.find(name.as_bytes()) {
                self.kinds[id as usize] = Kind::Control;
            }
        }
        for name in TEXT_NAMES {
            if let Some(id) = self.find(name.as_bytes()) {
                self.kinds[id as usize] = Kind::UserDefined;
            }
        }
        if let Some(id) = self.end_of_part() {
            self.kinds[id as usize] = Kind::UserDefined;
        }
    }

    /// `<|end|>` where it ends a part of an answer, not the answer: beside `<|return|>` and `<|call|>` (gpt-oss), or
    /// `<|flush|>` and `<|calls|>`.
    fn end_of_part(&self) -> Option<u32> {
        let has = |name: &str| self.find(name.as_bytes()).is_some();
        let called = has("<|call|>") || has("<|calls|>");
        if called && (has("<|return|>") || has("<|flush|>")) {
            self.find(b"<|end|>")
        } else {
            None
        }
    }

    /// The tokens that end an answer by their name.
    pub(crate) fn end_tokens(&self) -> Vec<u32> {
        let part = self.end_of_part();
        // A vocabulary with `<|tool_response>` has `</s>` as text (Gemma 4).
        let text = self
            .find(b"<|tool_response>")
            .and_then(|_| self.find(b"</s>"));
        let named = END_NAMES
            .iter()
            .filter_map(|name| self.find(name.as_bytes()));
        named
            .filter(|&id| Some(id) != part && Some(id) != text)
            .collect()
    }

    fn index_named_tokens(&mut self) {
        for id in 0..self.kinds.len() as u32 {
            let kind = self.kinds[id as usize];
            let spelling = self.spelling(id).unwrap_or_default();
            if let (true, Some(&first)) = (
                kind.is_special() || kind == Kind::UserDefined,
                spelling.as_bytes().first(),
            ) {
                let length = spelling.len() as u32;
                let lengths = &mut self.named[usize::from(first)];
                if let Err(place) = lengths.binary_search_by(|other| length.cmp(other)) {
                    lengths.insert(place, length);
                }
            }
        }
    }

    /// The longest token at the start of `text` that a text may name: user-defined tokens always, control and unknown tokens
    /// with `parse_special`; of both, those that are `looked_for`.
    pub(crate) fn named_token(
        &self,
        text: &[u8],
        parse_special: bool,
        looked_for: impl Fn(u32) -> bool,
    ) -> Option<(u32, usize)> {
        let lengths = &self.named[usize::from(*text.first()?)];
        lengths.iter().find_map(|&length| {
            let id = self.find(text.get(..length as usize)?)?;
            let kind = self.kinds[id as usize];
            let named = kind == Kind::UserDefined || parse_special && kind.is_special();
            (named && looked_for(id)).then_some((id, length as usize))
        })
    }

    pub(crate) fn size(&self) -> usize {
        self.kinds.len()
    }

    /// The id of that spelling. Where two tokens share it, the first.
    pub(crate) fn find(&self, text: &[u8]) -> Option<u32> {
        if text.len() > self.longest {
            return None;
        }
        let same = |&id: &u32| spelling(self.arena.as_bytes(), &self.offsets, id) == text;
        self.by_spelling.find(hash(text), same).copied()
    }

    /// A token as the file spells it.
    pub(crate) fn spelling(&self, id: u32) -> Option<&str> {
        let end = *self.offsets.get(id as usize + 1)?;
        self.arena
            .get(self.offsets[id as usize] as usize..end as usize)
    }

    pub(crate) fn kind(&self, id: u32) -> Option<Kind> {
        self.kinds.get(id as usize).copied()
    }

    /// Checks an id that the metadata gives for `key`.
    pub(crate) fn checked(&self, key: &'static str, id: Option<u32>) -> Result<Option<u32>, Error> {
        match id {
            Some(id) if id as usize >= self.size() => {
                let problem = format!(
                    "is {id}, expected a token id below {}, the size of the vocabulary",
                    self.size()
                );
                Err(Error::vocabulary(key, problem))
            }
            id => Ok(id),
        }
    }
}

fn spelling<'a>(arena: &'a [u8], offsets: &[u32], id: u32) -> &'a [u8] {
    &arena[offsets[id as usize] as usize..offsets[id as usize + 1] as usize]
}
