//! SentencePiece's byte-pair encoding: characters are joined in the order of the joined token's score, what is left without a
//! token becomes byte tokens.

use std::collections::BinaryHeap;

use crate::error::Error;
use crate::keys::SCORES;
use crate::merges::{self, Merges, NONE};
use crate::vocabulary::Vocabulary;

/// How SentencePiece spells a space.
pub(crate) const SPACE: &str = "\u{2581}";

/// Where text is encoded as if a space came before it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum SpacePrefix {
    Never,
    /// Before a text, and before what follows a special token.
    #[default]
    EachPart,
    /// There, unless a space is there already.
    EachPartUnlessSpaced,
    /// Before a text, if it begins with no special token.
    Text,
    /// There, unless a space is there already.
    TextUnlessSpaced,
}

impl SpacePrefix {
    const ALL: [Self; 5] = [
        Self::Never,
        Self::EachPart,
        Self::EachPartUnlessSpaced,
        Self::Text,
        Self::TextUnlessSpaced,
    ];

    /// Its name in metadata.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Never => "never",
            Self::EachPart => "each_part",
            Self::EachPartUnlessSpaced => "each_part_unless_spaced",
            Self::Text => "text",
            Self::TextUnlessSpaced => "text_unless_spaced",
        }
    }

    /// All names, for an error that lists them.
    pub(crate) fn known_names() -> String {
        Self::ALL.map(Self::name).join(", ")
    }

    /// The one of that name in metadata.
    pub(crate) fn by_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|prefix| prefix.name() == name)
    }

    /// Whether a part of a text gets a space. `first`: it begins a text or follows a special token; `begins`: it begins a text.
    fn applies(self, text: &str, first: bool, begins: bool) -> bool {
        let spaced = text.starts_with(' ') || text.starts_with(SPACE);
        match self {
            Self::Never => false,
            Self::EachPart => first,
            Self::EachPartUnlessSpaced => first && !spaced,
            Self::Text => begins,
            Self::TextUnlessSpaced => begins && !spaced,
        }
    }
}

#[derive(Debug)]
pub(crate) struct SentencePieces {
    pub(crate) prefix: SpacePrefix,
    /// Text is cut before each space: no token reaches over it.
    pub(crate) cuts_at_spaces: bool,
    /// Neighbours are joined by these, and not by their score.
    pub(crate) merges: Option<Merges>,
    /// Each token's score as an integer of the same order.
    scores: Box<[u32]>,
    byte_tokens: Box<[u32; 256]>,
}

/// Buffers that are used again from text to text.
#[derive(Debug, Default)]
pub(crate) struct Scratch {
    text: String,
    symbols: Vec<Symbol>,
    candidates: BinaryHeap<Candidate>,
    merges: merges::Scratch,
}

/// A part of the text: `length` bytes from `start`, 0 bytes once merged into the one before it.
#[derive(Debug, Clone, Copy)]
struct Symbol {
    start: usize,
    length: usize,
    previous: u32,
    next: u32,
}

/// Two neighbours whose text is a token. Highest score first, then leftmost.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Candidate {
    score: u32,
    left: std::cmp::Reverse<u32>,
    length: usize,
}

/// An integer that orders as the float does. Both zeros are one.
fn ordered(score: f32) -> u32 {
    let bits = (score + 0.0).to_bits();
    if bits >> 31 == 1 {
        !bits
    } else {
        bits | 1 << 31
    }
}

impl SentencePieces {
    pub(crate) fn new(
        vocabulary: &Vocabulary,
        scores: &[f32],
        prefix: SpacePrefix,
    ) -> Result<Self, Error> {
        if scores.len() != vocabulary.size() {
            let problem = format!(
                "holds {} entries, expected {}, one for each token",
                scores.len(),
                vocabulary.size()
            );
            return Err(Error::vocabulary(SCORES, problem));
        }
        if let Some(id) = scores.iter().position(|score| score.is_nan()) {
            return Err(Error::vocabulary(
                SCORES,
                format!("entry {id} is not a number"),
            ));
        }
        let mut byte_tokens = Box::new([NONE; 256]);
        for byte in 0..=255u8 {
            let own = vocabulary.find(format!("<0x{byte:02X}>").as_bytes());
            let id = own.or_else(|| vocabulary.find(&[byte]));
            byte_tokens[usize::from(byte)] = id.unwrap_or(NONE);
        }
        let scores = scores.iter().map(|&score| ordered(score)).collect();
        Ok(Self {
            prefix,
            cuts_at_spaces: false,
            merges: None,
            scores,
            byte_tokens,
        })
    }

    /// Appends the tokens of `text`, in which no special tokens are looked for; `first` where it begins a text or follows a
    /// special token, `begins` where it begins a text.
    pub(crate) fn encode(
        &self,
        vocabulary: &Vocabulary,
        unknown: Option<u32>,
        text: &str,
        (first, begins): (bool, bool),
        scratch: &mut Scratch,
        out: &mut Vec<u32>,
    ) -> Result<(), Error> {
        let mut spelled = std::mem::take(&mut scratch.text);
        spelled.clear();
        if self.prefix.applies(text, first, begins) {
            spelled.push_str(SPACE);
        }
        for part in text.split_inclusive(' ') {
            match part.strip_suffix(' ') {
                Some(part) => spelled.extend([part, SPACE]),
                None => spelled.push_str(part),
            }
        }
        let mut rest = spelled.as_str();
        let mut result = Ok(());
        while result.is_ok() && !rest.is_empty() {
            let after =
                |(index, _): (usize, char)| rest[index..].find(SPACE).map(|place| index + place);
            let next = rest
                .char_indices()
                .nth(1)
                .filter(|_| self.cuts_at_spaces)
                .and_then(after);
            let (part, after) = rest.split_at(next.unwrap_or(rest.len()));
            result = match &self.merges {
                Some(merges) => {
                    self.encode_by_rank(merges, vocabulary, unknown, part, scratch, out)
                }
                None => self.encode_by_score(vocabulary, unknown, part, scratch, out),
            };
            rest = after;
        }
        scratch.text = spelled;
        result
    }

    fn encode_by_rank(
        &self,
        merges: &Merges,
        vocabulary: &Vocabulary,
        unknown: Option<u32>,
        spelled: &str,
        scratch: &mut Scratch,
        out: &mut Vec<u32>,
    ) -> Result<(), Error> {
        let mut ids = Vec::with_capacity(spelled.len());
        for (start, character) in spelled.char_indices() {
            let piece = &spelled.as_bytes()[start..start + character.len_utf8()];
            match vocabulary.find(piece) {
                Some(id) => ids.push(id),
                None => self.push_bytes(piece, unknown, &mut ids)?,
            }
        }
        merges.apply(ids.into_iter(), &mut scratch.merges, out);
        Ok(())
    }

    fn encode_by_score(
        &self,
        vocabulary: &Vocabulary,
        unknown: Option<u32>,
        spelled: &str,
        scratch: &mut Scratch,
        out: &mut Vec<u32>,
    ) -> Result<(), Error> {
        let Scratch {
            symbols,
            candidates,
            ..
        } = scratch;
        symbols.clear();
        candidates.clear();
        let bytes = spelled.as_bytes();
        for (start, character) in spelled.char_indices() {
            let index = symbols.len() as u32;
            symbols.push(Symbol {
                start,
                length: character.len_utf8(),
                previous: index.wrapping_sub(1),
                next: index + 1,
            });
        }
        if let Some(last) = symbols.last_mut() {
            last.next = NONE;
        }
        let candidate = |symbols: &[Symbol], left: u32| {
            let symbol = symbols.get(left as usize)?;
            let length = symbol.length + symbols.get(symbol.next as usize)?.length;
            let id = vocabulary.find(&bytes[symbol.start..symbol.start + length])?;
            Some(Candidate {
                score: self.scores[id as usize],
                left: std::cmp::Reverse(left),
                length,
            })
        };
        candidates.extend((0..symbols.len() as u32).filter_map(|left| candidate(symbols, left)));
        while let Some(Candidate { left, length, .. }) = candidates.pop() {
            let left = left.0;
            let Symbol {
                length: left_length,
                previous,
                next: right,
                ..
            } = symbols[left as usize];
            let Some(&Symbol {
                length: right_length,
                next,
                ..
            }) = symbols.get(right as usize)
            else {
                continue;
            };
            if left_length == 0 || left_length + right_length != length {
                continue; // one of the two was merged otherwise meanwhile
            }
            symbols[right as usize].length = 0;
            symbols[left as usize].length = length;
            symbols[left as usize].next = next;
            if let Some(after) = symbols.get_mut(next as usize) {
                after.previous = left;
            }
            candidates.extend(candidate(symbols, previous));
            candidates.extend(candidate(symbols, left));
        }
        let mut position = 0;
        while let Some(symbol) = symbols.get(position as usize) {
            let piece = &bytes[symbol.start..symbol.start + symbol.length];
            match vocabulary.find(piece) {
                Some(id) => out.push(id),
                None => self.push_bytes(piece, unknown, out)?,
            }
            position = symbol.next;
        }
        Ok(())
    }

    fn push_bytes(
        &self,
        piece: &[u8],
        unknown: Option<u32>,
        out: &mut Vec<u32>,
    ) -> Result<(), Error> {
        for &byte in piece {
            match self.byte_tokens[usize::from(byte)] {
                NONE => out.push(unknown.ok_or(Error::NoTokenForByte { byte })?),
                id => out.push(id),
            }
        }
        Ok(())
    }
}

/// The byte that a byte token (`<0x0A>`) stands for.
pub(crate) fn byte_of(spelling: &str) -> Option<u8> {
    let digits = spelling.strip_prefix("<0x")?.strip_suffix('>')?;
    digits
        .bytes()
        .all(|digit| digit.is_ascii_hexdigit())
        .then_some(())?;
    (digits.len() == 2).then(|| u8::from_str_radix(digits, 16).ok())?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scores_order_as_floats() {
        let scores = [
            f32::NEG_INFINITY,
            -1000.0,
            -1.5,
            -1.0,
            0.0,
            0.5,
            3.0,
            f32::INFINITY,
        ];
        assert!(
            scores
                .windows(2)
                .all(|pair| ordered(pair[0]) < ordered(pair[1]))
        );
        assert_eq!(ordered(-0.0), ordered(0.0));
    }

    #[test]
    fn byte_tokens_are_read_by_their_name() {
        assert_eq!(byte_of("<0x0A>"), Some(10));
        assert_eq!(byte_of("<0xff>"), Some(255));
        assert_eq!(
            ["<0x0>", "<0x+1>", "0x0A", "<0x0G>"].map(byte_of),
            [None; 4]
        );
    }
}
