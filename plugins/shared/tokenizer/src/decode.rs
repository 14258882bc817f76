//! Token ids to bytes, one at a time.

use crate::error::Error;
use crate::tokenizer::Tokenizer;

/// How tokens become text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DecodeOptions {
    /// Leave out control and unknown tokens ([`Tokenizer::is_special`]); otherwise they appear as they are spelled.
    pub skip_special: bool,
    /// Where the vocabulary wants it (Llama 3 and other older byte-level ones), drop the space before `?`, `!`, `.`, `,` and
    /// before `'s`, `'m`, `'re`, `'ve`, and those around a lone `'`. Other vocabularies' text is never changed.
    pub clean_spaces: bool,
}

impl Default for DecodeOptions {
    /// Text as a reader wants it: special tokens left out, spaces cleaned where the vocabulary wants that.
    fn default() -> Self {
        Self {
            skip_special: true,
            clean_spaces: true,
        }
    }
}

/// Decodes a sequence token by token. What [`StreamDecoder::push`] and [`StreamDecoder::finish`] return, joined, is what
/// [`Tokenizer::decode`] returns for the whole sequence.
#[derive(Debug, Clone)]
pub struct StreamDecoder {
    tokenizer: Tokenizer,
    opts: DecodeOptions,
    strip_space: bool,
    cleaner: Option<CleanSpaces>,
    piece: Vec<u8>,
}

impl StreamDecoder {
    /// A decoder for tokens that begin a text.
    pub fn new(tokenizer: &Tokenizer, opts: DecodeOptions) -> Self {
        Self {
            strip_space: tokenizer.strips_space(),
            ..Self::continuing(tokenizer, opts)
        }
    }

    /// A decoder for tokens that go on after others, such as a model's answer to a prompt: no leading space is removed.
    pub fn continuing(tokenizer: &Tokenizer, opts: DecodeOptions) -> Self {
        let cleaner = (opts.clean_spaces && tokenizer.cleans_spaces()).then(CleanSpaces::default);
        Self {
            tokenizer: tokenizer.clone(),
            opts,
            strip_space: false,
            cleaner,
            piece: Vec::new(),
        }
    }

    /// The bytes that become certain with this token. They may end within a character.
    ///
    /// # Errors
    /// The id is not in the vocabulary.
    pub fn push(&mut self, id: u32) -> Result<Vec<u8>, Error> {
        let mut out = Vec::new();
        self.push_into(id, &mut out)?;
        Ok(out)
    }

    /// The bytes that were held back, because a later token could have changed them: at most four, and none where no spaces
    /// are cleaned.
    pub fn finish(mut self) -> Vec<u8> {
        let mut out = Vec::new();
        self.finish_into(&mut out);
        out
    }

    pub(crate) fn push_into(&mut self, id: u32, out: &mut Vec<u8>) -> Result<(), Error> {
        self.piece.clear();
        self.tokenizer
            .decode_bytes(id, &mut self.piece, self.opts)?;
        let mut piece = &self.piece[..];
        if self.strip_space && !(self.opts.skip_special && self.tokenizer.is_special(id)) {
            self.strip_space = false;
            piece = piece.strip_prefix(b" ").unwrap_or(piece);
        }
        match &mut self.cleaner {
            Some(cleaner) => piece.iter().for_each(|&byte| cleaner.push(byte, out)),
            None => out.extend_from_slice(piece),
        }
        Ok(())
    }

    pub(crate) fn finish_into(&mut self, out: &mut Vec<u8>) {
        if let Some(cleaner) = self.cleaner.take() {
            cleaner.finish(out);
        }
    }
}

/// The rule of [`DecodeOptions::clean_spaces`], byte by byte: three passes, each of which holds back the bytes that it may
/// still change.
#[derive(Debug, Clone, Default)]
pub(crate) struct CleanSpaces {
    before_punctuation: Pass,
    lone_quote: Pass,
    before_suffix: Pass,
}

/// Bytes that begin with a space and may yet lose it.
#[derive(Debug, Clone, Default)]
struct Pass {
    held: Vec<u8>,
}

impl Pass {
    /// Takes one byte. `decide` looks at the held bytes and says what becomes of them.
    fn push(&mut self, byte: u8, decide: impl Fn(&[u8]) -> Verdict, out: &mut impl FnMut(u8)) {
        if self.held.is_empty() && byte != b' ' {
            return out(byte);
        }
        self.held.push(byte);
        match decide(&self.held) {
            Verdict::Undecided => {}
            Verdict::Becomes(text) => {
                self.held.clear();
                text.iter().for_each(|&byte| out(byte));
            }
            Verdict::Stays => {
                // The last byte may itself be the space that begins the next match.
                let last = self.held.pop();
                self.held.drain(..).for_each(&mut *out);
                match last {
                    Some(b' ') => self.held.push(b' '),
                    other => other.into_iter().for_each(out),
                }
            }
        }
    }
}

enum Verdict {
    Undecided,
    Becomes(&'static [u8]),
    Stays,
}

fn before_punctuation(held: &[u8]) -> Verdict {
    match held {
        b" " => Verdict::Undecided,
        b" ?" => Verdict::Becomes(b"?"),
        b" !" => Verdict::Becomes(b"!"),
        b" ." => Verdict::Becomes(b"."),
        b" ," => Verdict::Becomes(b","),
        _ => Verdict::Stays,
    }
}

fn lone_quote(held: &[u8]) -> Verdict {
    match held {
        b" " | b" '" => Verdict::Undecided,
        b" ' " => Verdict::Becomes(b"'"),
        _ => Verdict::Stays,
    }
}

fn before_suffix(held: &[u8]) -> Verdict {
    match held {
        b" " | b" '" | b" 'r" | b" 'v" => Verdict::Undecided,
        b" 's" => Verdict::Becomes(b"'s"),
        b" 'm" => Verdict::Becomes(b"'m"),
        b" 're" => Verdict::Becomes(b"'re"),
        b" 've" => Verdict::Becomes(b"'ve"),
        _ => Verdict::Stays,
    }
}

impl CleanSpaces {
    fn push(&mut self, byte: u8, out: &mut Vec<u8>) {
        let Self {
            before_punctuation: first,
            lone_quote: second,
            before_suffix: third,
        } = self;
        first.push(byte, before_punctuation, &mut |byte| {
            second.push(byte, lone_quote, &mut |byte| {
                third.push(byte, before_suffix, &mut |byte| out.push(byte))
            });
        });
    }

    /// Releases what is held: the passes end in turn.
    fn finish(self, out: &mut Vec<u8>) {
        let Self {
            before_punctuation: first,
            lone_quote: mut second,
            before_suffix: mut third,
        } = self;
        for byte in first.held {
            second.push(byte, lone_quote, &mut |byte| {
                third.push(byte, before_suffix, &mut |byte| out.push(byte))
            });
        }
        for byte in second.held {
            third.push(byte, before_suffix, &mut |byte| out.push(byte));
        }
        out.extend(third.held);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn clean(text: &str) -> String {
        let mut cleaner = CleanSpaces::default();
        let mut out = Vec::new();
        text.bytes().for_each(|byte| cleaner.push(byte, &mut out));
        cleaner.finish(&mut out);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn spaces_are_cleaned_as_stated() {
        let cases = [
            ("", ""),
            (" ", " "),
            ("a , b ! c ? d . e", "a, b! c? d. e"),
            ("a  .", "a ."),
            (" .", "."),
            ("it 's I 'm we 're they 've", "it's I'm we're they've"),
            ("can 't we 'll he 'd", "can 't we 'll he 'd"),
            ("a ' b", "a'b"),
            ("a ' ' b", "a'' b"),
            ("a '", "a '"),
            ("a 'r", "a 'r"),
            ("a 'r 's", "a 'r's"),
            ("a  ' b", "a 'b"),
            ("'s 't 're 've 'm 'll 'd", "'s 't're've'm 'll 'd"),
        ];
        for (text, expected) in cases {
            assert_eq!(clean(text), expected, "{text:?}");
        }
    }
}
