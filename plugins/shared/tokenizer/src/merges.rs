//! Merges: pairs of neighbouring tokens that become one, in the order of their rank.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use hashbrown::HashMap;
use rustc_hash::FxBuildHasher;

use crate::error::Error;
use crate::keys::MERGES;
use crate::vocabulary::Vocabulary;

/// No token: a symbol that no token stands for, or that was merged into the one before it.
pub(crate) const NONE: u32 = u32::MAX;

#[derive(Debug)]
pub(crate) struct Merges {
    /// (left id, right id) to (rank, id of the two joined).
    pairs: HashMap<(u32, u32), (u32, u32), FxBuildHasher>,
}

/// Buffers that are used again from word to word.
#[derive(Debug, Default)]
pub(crate) struct Scratch {
    symbols: Vec<Symbol>,
    candidates: BinaryHeap<Reverse<Candidate>>,
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

/// A part of a word.
#[derive(Debug, Clone, Copy)]
struct Symbol {
    id: u32,
    previous: u32,
    next: u32,
}

impl Merges {
    /// Reads merges, each two tokens with a space between them.
    pub(crate) fn new<'t>(
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
        Ok(Self { pairs: table })
    }

    /// Appends the tokens that `ids` become. What is [`NONE`] stands between its neighbours, and is left out.
    pub(crate) fn apply(
        &self,
        ids: impl Iterator<Item = u32>,
        scratch: &mut Scratch,
        out: &mut Vec<u32>,
    ) {
        let Scratch {
            symbols,
            candidates,
        } = scratch;
        symbols.clear();
        candidates.clear();
        symbols.extend((0u32..).zip(ids).map(|(index, id)| Symbol {
            id,
            previous: index.wrapping_sub(1),
            next: index + 1,
        }));
        if let Some(last) = symbols.last_mut() {
            last.next = NONE;
        }
        let count = symbols.len() as u32;
        let candidate = |symbols: &[Symbol], left: u32| {
            let symbol = symbols.get(left as usize)?;
            let next = symbols.get(symbol.next as usize)?;
            let ids = (symbol.id, next.id);
            let &(rank, joined) = self.pairs.get(&ids)?;
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
