//! Byte-level byte-pair encoding: words are cut by a pre-tokenizer, their bytes joined by merges in the order of their rank.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use hashbrown::HashMap;
use rustc_hash::FxBuildHasher;

use crate::bytes;
use crate::error::Error;
use crate::pre::PreTokenizer;
use crate::vocabulary::Vocabulary;

pub(crate) const MERGES: &str = "tokenizer.ggml.merges";

/// No token: the byte isn't in the vocabulary, or the symbol was merged into the one before it.
const NONE: u32 = u32::MAX;

#[derive(Debug)]
pub(crate) struct BytePairs {
    pub(crate) pre: &'static PreTokenizer,
    /// (left id, right id) to (rank, id of the two joined).
    merges: HashMap<(u32, u32), (u32, u32), FxBuildHasher>,
    byte_tokens: Box<[u32; 256]>,
}

/// Buffers that are used again from word to word.
#[derive(Debug, Default)]
pub(crate) struct Scratch {
    symbols: Vec<Symbol>,
    candidates: BinaryHeap<Reverse<Candidate>>,
    spelling: String,
}

/// Two neighbours that a merge joins; lowest rank first, then leftmost.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Candidate {
    rank: u32,
    /// Index of the left symbol.
    left: u32,
    /// The ids that the two had when this was found.
    ids: (u32, u32),
    joined: u32,
}

/// A part of a word. The index of a symbol is that of its first byte, so a symbol that was never merged is that byte.
#[derive(Debug, Clone, Copy)]
struct Symbol {
    id: u32,
    previous: u32,
    next: u32,
}

impl BytePairs {
    pub(crate) fn new<'t>(
        pre: &'static PreTokenizer,
        vocabulary: &Vocabulary,
        merges: impl ExactSizeIterator<Item = &'t str>,
    ) -> Result<Self, Error> {
        let mut table = HashMap::with_capacity_and_hasher(merges.len(), FxBuildHasher);
        let mut joined = String::new();
        for (rank, merge) in merges.enumerate() {
            let fault = |problem: String| {
                Error::vocabulary(MERGES, format!("entry {rank}, {merge:?}, {problem}"))
            };
            // A part may begin with a space, in vocabularies that spell spaces so.
            let space = merge
                .char_indices()
                .skip(1)
                .find(|&(_, character)| character == ' ');
            let Some((space, _)) = space else {
                return Err(fault("is not two tokens with a space between them".into()));
            };
            let (left, right) = (&merge[..space], &merge[space + 1..]);
            joined.clear();
            joined.push_str(left);
            joined.push_str(right);
            let id = |part: &str| {
                vocabulary
                    .find(part.as_bytes())
                    .ok_or_else(|| fault(format!("names {part:?}, which is not a token")))
            };
            let pair = (id(left)?, id(right)?);
            table.entry(pair).or_insert((rank as u32, id(&joined)?));
        }
        let mut byte_tokens = Box::new([NONE; 256]);
        for byte in 0..=255u8 {
            let spelling = bytes::character_of(byte);
            let id = vocabulary.find(spelling.encode_utf8(&mut [0; 4]).as_bytes());
            byte_tokens[usize::from(byte)] = id.unwrap_or(NONE);
        }
        Ok(Self {
            pre,
            merges: table,
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
            if self.pre.whole_words_first {
                scratch.spelling.clear();
                bytes::encode_into(word.as_bytes(), &mut scratch.spelling);
                if let Some(id) = vocabulary.find(scratch.spelling.as_bytes()) {
                    out.push(id);
                    return;
                }
            }
            self.encode_word(word.as_bytes(), scratch, out);
        });
    }

    fn encode_word(&self, word: &[u8], scratch: &mut Scratch, out: &mut Vec<u32>) {
        let Scratch {
            symbols,
            candidates,
            ..
        } = scratch;
        symbols.clear();
        candidates.clear();
        let count = word.len() as u32;
        symbols.extend((0..count).zip(word).map(|(index, &byte)| Symbol {
            id: self.byte_tokens[usize::from(byte)],
            previous: index.wrapping_sub(1),
            next: if index + 1 < count { index + 1 } else { NONE },
        }));
        let candidate = |symbols: &[Symbol], left: u32| {
            let symbol = symbols.get(left as usize)?;
            let next = symbols.get(symbol.next as usize)?;
            let ids = (symbol.id, next.id);
            let &(rank, joined) = self.merges.get(&ids)?;
            Some(Reverse(Candidate {
                rank,
                left,
                ids,
                joined,
            }))
        };
        candidates.extend((0..count).filter_map(|left| candidate(symbols, left)));
        while let Some(Reverse(Candidate {
            left, ids, joined, ..
        })) = candidates.pop()
        {
            let Symbol {
                id,
                previous,
                next: right,
            } = symbols[left as usize];
            let Some(&Symbol {
                id: id_of_right,
                next,
                ..
            }) = symbols.get(right as usize)
            else {
                continue;
            };
            if (id, id_of_right) != ids {
                continue; // one of the two was merged otherwise meanwhile
            }
            symbols[right as usize].id = NONE;
            symbols[left as usize] = Symbol {
                id: joined,
                previous,
                next,
            };
            if let Some(after) = symbols.get_mut(next as usize) {
                after.previous = left;
            }
            candidates.extend(candidate(symbols, previous));
            candidates.extend(candidate(symbols, left));
        }
        let mut position = 0;
        while let Some(symbol) = symbols.get(position as usize) {
            out.extend(Some(symbol.id).filter(|&id| id != NONE));
            position = symbol.next;
        }
    }
}
