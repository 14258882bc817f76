//! Byte-level byte-pair encoding: words are cut by a pre-tokenizer, their bytes joined by merges in the order of their rank.

use crate::bytes;
use crate::error::Error;
use crate::merges::{self, Merges, NONE};
use crate::pre::PreTokenizer;
use crate::vocabulary::Vocabulary;

#[derive(Debug)]
pub(crate) struct BytePairs {
    pub(crate) pre: &'static PreTokenizer,
    /// A word that is a token is that token, whatever the merges would make of it.
    pub(crate) whole_words_first: bool,
    merges: Merges,
    byte_tokens: Box<[u32; 256]>,
}

/// Buffers that are used again from word to word.
#[derive(Debug, Default)]
pub(crate) struct Scratch {
    merges: merges::Scratch,
    spelling: String,
}

impl BytePairs {
    pub(crate) fn new<'t>(
        pre: &'static PreTokenizer,
        whole_words_first: bool,
        vocabulary: &Vocabulary,
        merges: impl ExactSizeIterator<Item = &'t str>,
    ) -> Result<Self, Error> {
        let merges = Merges::new(vocabulary, merges)?;
        let mut byte_tokens = Box::new([NONE; 256]);
        for byte in 0..=255u8 {
            let spelling = bytes::character_of(byte);
            let id = vocabulary.find(spelling.encode_utf8(&mut [0; 4]).as_bytes());
            byte_tokens[usize::from(byte)] = id.unwrap_or(NONE);
        }
        Ok(Self {
            pre,
            whole_words_first,
            merges,
            byte_tokens,
        })
    }

    /// Appends the tokens of `text`, in which no special tokens are looked for. A byte without a token is left out.
    pub(crate) fn encode(
        &self,
        vocabulary: &Vocabulary,
        text: &str,
        scratch: &mut Scratch,
        out: &mut Vec<u32>,
    ) {
        self.pre.split(text, &mut |word| {
            if self.whole_words_first {
                scratch.spelling.clear();
                bytes::encode_into(word.as_bytes(), &mut scratch.spelling);
                if let Some(id) = vocabulary.find(scratch.spelling.as_bytes()) {
                    out.push(id);
                    return;
                }
            }
            let ids = word.bytes().map(|byte| self.byte_tokens[usize::from(byte)]);
            self.merges.apply(ids, &mut scratch.merges, out);
        });
    }
}
