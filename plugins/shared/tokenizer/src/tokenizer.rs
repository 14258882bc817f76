//! Text to token ids and what the vocabulary says about them.

use std::borrow::Cow;
use std::sync::Arc;

use backplane_weights::Metadata;

use crate::byte_pairs::{self, BytePairs};
use crate::decode::{DecodeOptions, StreamDecoder};
use crate::error::Error;
use crate::keys::*;
use crate::merges::Merges;
use crate::normalize::NormalForm;
use crate::sentence_pieces::{self, SPACE, SentencePieces, SpacePrefix};
use crate::vocabulary::{Kind, Vocabulary};
use crate::{bytes, pre};

/// How a text becomes tokens.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct EncodeOptions {
    /// Put BOS before and EOS after the text where the vocabulary wants them ([`Tokenizer::adds_bos`], [`Tokenizer::adds_eos`]).
    pub add_special: bool,
    /// Text that spells a control or unknown token is that token. Otherwise it is only text. User-defined tokens are always
    /// parsed.
    pub parse_special: bool,
}

/// A vocabulary: text to token ids and back. A clone is another handle to the same tables.
///
/// Two kinds are known, by `tokenizer.ggml.model`: `gpt2` (byte-level byte-pair encoding, with a pre-tokenizer named by
/// `tokenizer.ggml.pre`) and `llama` (SentencePiece's byte-pair encoding with byte fallback). Token ids agree with llama.cpp;
/// those of a vocabulary that [`crate::hub`] read agree with the `tokenizers` library or SentencePiece.
#[derive(Debug, Clone)]
pub struct Tokenizer {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    vocabulary: Vocabulary,
    model: Model,
    bos: Option<u32>,
    eos: Option<u32>,
    unknown: Option<u32>,
    adds_bos: bool,
    adds_eos: bool,
    /// Sorted.
    end_of_generation: Vec<u32>,
    /// Tokens that swallow the white space before and after them when they are parsed; sorted.
    strip_before: Vec<u32>,
    strip_after: Vec<u32>,
    /// What white space is for these tokens.
    is_stripped: fn(char) -> bool,
    /// Text is brought to this form after special tokens were found in it.
    normalizer: Option<NormalForm>,
    /// Tokens that are looked for only then; sorted.
    normalized: Vec<u32>,
    /// Decoding drops the space that begins a text, and spaces before punctuation.
    strips_space: bool,
    cleans_spaces: bool,
    /// User-defined tokens spell spaces as the others do.
    spells_spaces_in_names: bool,
    warnings: Vec<String>,
}

/// Which tokens are looked for in a text.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Look {
    BeforeNormalization,
    After,
}

#[derive(Debug)]
enum Model {
    BytePairs(BytePairs),
    SentencePieces(SentencePieces),
}

/// A stretch of a text: text without special tokens, or a special token.
enum Fragment<'t> {
    Text(&'t str),
    Token(u32),
}

impl Tokenizer {
    /// Builds the tokenizer from a model file's `tokenizer.ggml.*` keys.
    ///
    /// # Errors
    /// One line that names the key: it is missing, has another type or length than expected, a merge names what is no token, an
    /// id is not in the vocabulary, the kind of vocabulary or its pre-tokenizer is not known.
    pub fn from_metadata(m: &Metadata) -> Result<Self, Error> {
        let mut warnings = Vec::new();
        let missing = |key| Error::vocabulary(key, "is missing");
        let kind = m.str(MODEL)?.ok_or_else(|| missing(MODEL))?;
        if kind != "gpt2" && kind != "llama" {
            return Err(Error::vocabulary(
                MODEL,
                format!("is {kind:?}, expected \"gpt2\" or \"llama\""),
            ));
        }
        let tokens = m.array(TOKENS)?.ok_or_else(|| missing(TOKENS))?.strings()?;
        let kinds = m.array(TOKEN_TYPE)?.map(|kinds| kinds.i32s()).transpose()?;
        // A GGUF file says less than the files that it was made from: the rest is custom.
        let from_gguf = m.str(SOURCE)?.is_none();
        let vocabulary = Vocabulary::new(tokens, kinds.as_deref(), from_gguf, &mut warnings)?;
        let byte_level = kind == "gpt2";
        let (model, bos_by_default) = if byte_level {
            let name = m.str(PRE)?;
            if name.is_none() {
                warnings.push(format!("{PRE} is missing: using \"{}\"", pre::DEFAULT));
            }
            let name = name.unwrap_or(pre::DEFAULT);
            let pre =
                pre::by_name(name).ok_or_else(|| not_one_of(PRE, name, &pre::known_names()))?;
            let merges = m.array(MERGES)?.ok_or_else(|| missing(MERGES))?.strings()?;
            let whole_words_first = m.bool(IGNORES_MERGES)?.unwrap_or(pre.whole_words_first);
            (
                Model::BytePairs(BytePairs::new(pre, whole_words_first, &vocabulary, merges)?),
                pre.adds_bos,
            )
        } else {
            (Model::SentencePieces(pieces(m, &vocabulary)?), true)
        };

        // SentencePiece vocabularies without these keys have them at their customary places.
        let id = |key, customary: u32| -> Result<Option<u32>, Error> {
            let given = vocabulary.checked(key, m.u32(key)?)?;
            let by_custom = Some(customary).filter(|&id| {
                from_gguf && !byte_level && vocabulary.kind(id).is_some_and(Kind::is_special)
            });
            Ok(given.or(by_custom))
        };
        let (unknown, bos, eos) = (id(UNKNOWN, 0)?, id(BOS, 1)?, id(EOS, 2)?);
        let adds_bos = adds(m, ADDS_BOS, bos_by_default, BOS, bos, &mut warnings)?;
        let adds_eos = adds(m, ADDS_EOS, false, EOS, eos, &mut warnings)?;

        let mut end_of_generation = vocabulary.end_tokens();
        for key in [EOT, EOM, FIM_PAD, FIM_REPOSITORY, FIM_FILE] {
            end_of_generation.extend(vocabulary.checked(key, m.u32(key)?)?);
        }
        end_of_generation.extend(ids(m, END_OF_GENERATION, &vocabulary)?);
        end_of_generation.extend(eos);
        end_of_generation.sort_unstable();
        end_of_generation.dedup();

        let name = m.str("general.name")?.unwrap_or_default().to_lowercase();
        let strip_after = if from_gguf && (name.contains("phi-3") || name.contains("phi3")) {
            phi3_strip_after(&vocabulary)
        } else {
            ids(m, STRIP_AFTER, &vocabulary)?
        };
        let normalizer = m.str(NORMALIZER)?.map(|name| {
            NormalForm::by_name(name)
                .ok_or_else(|| not_one_of(NORMALIZER, name, "nfc, nfd, nfkc, nfkd"))
        });
        if let Some(doubts) = m.array(WARNINGS)? {
            warnings.extend(doubts.strings()?.map(String::from));
        }
        let (adds_space_prefix, row_cleans_spaces) = match &model {
            Model::BytePairs(model) => (false, model.pre.cleans_spaces),
            Model::SentencePieces(model) => (model.prefix != SpacePrefix::Never, false),
        };
        let inner = Inner {
            strip_before: ids(m, STRIP_BEFORE, &vocabulary)?,
            strip_after,
            is_stripped: if from_gguf {
                is_ascii_space
            } else {
                char::is_whitespace
            },
            normalizer: normalizer.transpose()?,
            normalized: ids(m, NORMALIZED_TOKENS, &vocabulary)?,
            strips_space: m.bool(STRIPS_SPACE)?.unwrap_or(adds_space_prefix),
            cleans_spaces: m.bool(CLEANS_SPACES)?.unwrap_or(row_cleans_spaces),
            spells_spaces_in_names: m.bool(RANKED_MERGES)?.unwrap_or(false),
            vocabulary,
            model,
            bos,
            eos,
            unknown,
            adds_bos,
            adds_eos,
            end_of_generation,
            warnings,
        };
        Ok(Self {
            inner: Arc::new(inner),
        })
    }

    /// The tokens of `text`. The empty text has no tokens but those that `add_special` adds.
    ///
    /// Some byte-level vocabularies have no token for a few bytes that no usual text holds (SmolLM2 has none for U+0004): such
    /// bytes are left out, as in all implementations. SentencePiece vocabularies have a token for every byte, or else use the
    /// unknown token.
    ///
    /// Where the vocabulary's file asks for a Unicode normal form (Qwen's `tokenizer.json`: NFC), the text between special tokens
    /// is brought to it first: what [`Tokenizer::decode`] gives back is the normalised text. GGUF files don't say so, and text
    /// is taken as it is.
    ///
    /// # Errors
    /// A SentencePiece vocabulary has neither a token for a byte of the text nor an unknown token.
    pub fn encode(&self, text: &str, opts: EncodeOptions) -> Result<Vec<u32>, Error> {
        let inner = &*self.inner;
        let mut out = Vec::with_capacity(text.len() / 3 + 2);
        if opts.add_special && inner.adds_bos {
            out.extend(inner.bos);
        }
        let mut encoding = Encoding {
            out,
            first: true,
            begins: true,
            byte_pairs: byte_pairs::Scratch::default(),
            sentence_pieces: sentence_pieces::Scratch::default(),
        };
        let parse = opts.parse_special;
        inner.fragments(text, Look::BeforeNormalization, parse, &mut |fragment| {
            let text = match fragment {
                Fragment::Text(text)
                    if !inner.normalized.is_empty() || inner.normalizer.is_some() =>
                {
                    text
                }
                fragment => return inner.push(fragment, &mut encoding),
            };
            let text = inner
                .normalizer
                .map_or(Cow::Borrowed(text), |form| form.apply(text));
            inner.fragments(&text, Look::After, parse, &mut |fragment| {
                inner.push(fragment, &mut encoding)
            })
        })?;
        let mut out = encoding.out;
        if opts.add_special && inner.adds_eos {
            out.extend(inner.eos);
        }
        Ok(out)
    }

    /// The tokens of a rendered chat template or another text that spells its own special tokens. Where the vocabulary adds
    /// BOS the result begins with exactly one, whether the text spells none, one or several.
    ///
    /// # Errors
    /// As [`Tokenizer::encode`].
    pub fn encode_prompt(&self, rendered: &str) -> Result<Vec<u32>, Error> {
        let mut ids = self.encode(
            rendered,
            EncodeOptions {
                add_special: false,
                parse_special: true,
            },
        )?;
        if let Some(bos) = self.inner.bos.filter(|_| self.inner.adds_bos) {
            let spelled = ids.iter().take_while(|&&id| id == bos).count();
            ids.splice(..spelled, [bos]);
        }
        Ok(ids)
    }

    /// The bytes of a sequence of tokens that begins a text.
    ///
    /// Where the vocabulary encodes a text as if a space came before it (SentencePiece), the first token loses one leading
    /// space; with `skip_special` the first token that isn't skipped. See [`DecodeOptions::clean_spaces`] for the spaces before
    /// punctuation. The bytes need not be UTF-8: a token may hold a part of a character.
    ///
    /// # Errors
    /// An id is not in the vocabulary.
    pub fn decode(&self, ids: &[u32], opts: DecodeOptions) -> Result<Vec<u8>, Error> {
        let mut decoder = StreamDecoder::new(self, opts);
        let mut out = Vec::with_capacity(ids.len() * 4);
        for &id in ids {
            decoder.push_into(id, &mut out)?;
        }
        decoder.finish_into(&mut out);
        Ok(out)
    }

    /// Appends the bytes of one token by itself: no space is removed. Special tokens are left out with `skip_special`.
    ///
    /// # Errors
    /// The id is not in the vocabulary.
    pub fn decode_bytes(
        &self,
        id: u32,
        out: &mut Vec<u8>,
        opts: DecodeOptions,
    ) -> Result<(), Error> {
        let vocabulary = &self.inner.vocabulary;
        let (Some(spelling), Some(kind)) = (vocabulary.spelling(id), vocabulary.kind(id)) else {
            return Err(Error::NoSuchToken {
                id,
                size: vocabulary.size(),
            });
        };
        match (kind, &self.inner.model) {
            (Kind::Control | Kind::Unknown, _) if opts.skip_special => {}
            (Kind::UserDefined, Model::SentencePieces(_)) if self.inner.spells_spaces_in_names => {
                push_spaced(spelling, out);
            }
            (Kind::Control | Kind::Unknown | Kind::UserDefined, _) => {
                out.extend_from_slice(spelling.as_bytes())
            }
            (Kind::Byte, _) if let Some(byte) = sentence_pieces::byte_of(spelling) => {
                out.push(byte)
            }
            (_, Model::BytePairs(_)) => bytes::decode_into(spelling, out),
            (_, Model::SentencePieces(_)) => push_spaced(spelling, out),
        }
        Ok(())
    }

    /// The bytes of one token by itself, special tokens as they are spelled; `None` for an id outside the vocabulary.
    pub fn token_bytes(&self, id: u32) -> Option<Vec<u8>> {
        let mut out = Vec::new();
        self.decode_bytes(
            id,
            &mut out,
            DecodeOptions {
                skip_special: false,
                ..DecodeOptions::default()
            },
        )
        .ok()?;
        Some(out)
    }

    /// The text of one token by itself, for people to read: bytes that are no whole character are shown as U+FFFD. `None` for
    /// an id outside the vocabulary.
    pub fn token_text(&self, id: u32) -> Option<String> {
        let bytes = self.token_bytes(id)?;
        Some(
            String::from_utf8(bytes)
                .unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned()),
        )
    }

    /// The token that is spelled so in the vocabulary, or else the one whose text this is (the spelling of a space differs
    /// from vocabulary to vocabulary).
    pub fn id_of(&self, piece: &str) -> Option<u32> {
        let vocabulary = &self.inner.vocabulary;
        vocabulary
            .find(piece.as_bytes())
            .or_else(|| match &self.inner.model {
                Model::BytePairs(_) => {
                    let mut spelling = String::new();
                    bytes::encode_into(piece.as_bytes(), &mut spelling);
                    vocabulary.find(spelling.as_bytes())
                }
                Model::SentencePieces(_) => vocabulary.find(piece.replace(' ', SPACE).as_bytes()),
            })
    }

    /// The number of tokens. Ids are below it.
    pub fn vocab_size(&self) -> usize {
        self.inner.vocabulary.size()
    }

    /// The token that begins a sequence, if the vocabulary has one.
    pub fn bos(&self) -> Option<u32> {
        self.inner.bos
    }

    /// The token that ends a sequence, if the vocabulary names one.
    pub fn eos(&self) -> Option<u32> {
        self.inner.eos
    }

    /// Whether BOS is put before a text.
    pub fn adds_bos(&self) -> bool {
        self.inner.adds_bos
    }

    /// Whether EOS is put after a text.
    pub fn adds_eos(&self) -> bool {
        self.inner.adds_eos
    }

    /// Whether the token ends a model's answer: EOS, an end of turn or of message, or another token known to by its name, such
    /// as `<|im_end|>` and `<end_of_turn>`.
    pub fn is_end_of_generation(&self, id: u32) -> bool {
        self.inner.end_of_generation.binary_search(&id).is_ok()
    }

    /// All tokens that end a model's answer, in ascending order.
    pub fn end_of_generation(&self) -> Vec<u32> {
        self.inner.end_of_generation.clone()
    }

    /// Whether the token is a mark rather than text (a control token or the unknown token): what `skip_special` leaves out.
    pub fn is_special(&self, id: u32) -> bool {
        self.inner.vocabulary.kind(id).is_some_and(Kind::is_special)
    }

    /// Whether the token is a control token.
    pub fn is_control(&self, id: u32) -> bool {
        self.inner.vocabulary.kind(id) == Some(Kind::Control)
    }

    /// What is doubtful about the vocabulary, one line each, such as a pre-tokenizer that had to be guessed.
    pub fn warnings(&self) -> &[String] {
        &self.inner.warnings
    }

    /// Whether decoding drops the space that begins a text, because encoding put it there.
    pub(crate) fn strips_space(&self) -> bool {
        self.inner.strips_space
    }

    /// Whether decoding drops spaces before punctuation.
    pub(crate) fn cleans_spaces(&self) -> bool {
        self.inner.cleans_spaces
    }
}

/// What has become of a text so far.
struct Encoding {
    out: Vec<u32>,
    /// At the start, or after a special token.
    first: bool,
    /// At the start.
    begins: bool,
    byte_pairs: byte_pairs::Scratch,
    sentence_pieces: sentence_pieces::Scratch,
}

impl Inner {
    /// Appends the tokens of a fragment.
    fn push(&self, fragment: Fragment<'_>, to: &mut Encoding) -> Result<(), Error> {
        let is_token = matches!(fragment, Fragment::Token(_));
        match (fragment, &self.model) {
            (Fragment::Token(id), _) => to.out.push(id),
            (Fragment::Text(text), Model::BytePairs(model)) => {
                model.encode(&self.vocabulary, text, &mut to.byte_pairs, &mut to.out);
            }
            (Fragment::Text(text), Model::SentencePieces(model)) => {
                model.encode(
                    &self.vocabulary,
                    self.unknown,
                    text,
                    (to.first, to.begins),
                    &mut to.sentence_pieces,
                    &mut to.out,
                )?;
            }
        }
        (to.first, to.begins) = (is_token, false);
        Ok(())
    }

    /// Hands on the special tokens in `text` and the stretches between them. At each place the longest token is taken.
    fn fragments<'t>(
        &self,
        text: &'t str,
        look: Look,
        parse_special: bool,
        fragment: &mut impl FnMut(Fragment<'t>) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let looked_for = |id: u32| {
            self.normalized.is_empty()
                || self.normalized.binary_search(&id).is_ok() == (look == Look::After)
        };
        let (mut start, mut position) = (0, 0);
        // Without tokens that are looked for after normalisation there is nothing left to look for.
        if look == Look::After && self.normalized.is_empty() {
            position = text.len();
        }
        while position < text.len() {
            let Some((id, length)) = self.vocabulary.named_token(
                &text.as_bytes()[position..],
                parse_special,
                looked_for,
            ) else {
                position += 1;
                continue;
            };
            let mut before = &text[start..position];
            if self.strip_before.binary_search(&id).is_ok() {
                before = before.trim_end_matches(self.is_stripped);
            }
            if !before.is_empty() {
                fragment(Fragment::Text(before))?;
            }
            fragment(Fragment::Token(id))?;
            position += length;
            if self.strip_after.binary_search(&id).is_ok() {
                let rest = &text[position..];
                position += rest.len() - rest.trim_start_matches(self.is_stripped).len();
            }
            start = position;
        }
        if start < text.len() {
            fragment(Fragment::Text(&text[start..]))
        } else {
            Ok(())
        }
    }
}

fn is_ascii_space(character: char) -> bool {
    matches!(character, ' ' | '\t'..='\r')
}

/// Appends a spelling of SentencePiece's kind, with its spaces as spaces.
fn push_spaced(spelling: &str, out: &mut Vec<u8>) {
    let mut parts = spelling.split(SPACE);
    out.extend_from_slice(parts.next().unwrap_or_default().as_bytes());
    for part in parts {
        out.push(b' ');
        out.extend_from_slice(part.as_bytes());
    }
}

fn not_one_of(key: &'static str, found: &str, expected: &str) -> Error {
    Error::vocabulary(key, format!("is {found:?}, expected one of {expected}"))
}

/// A vocabulary of SentencePiece's kind.
fn pieces(m: &Metadata, vocabulary: &Vocabulary) -> Result<SentencePieces, Error> {
    let missing = |key| Error::vocabulary(key, "is missing");
    let scores = m.array(SCORES)?.ok_or_else(|| missing(SCORES))?.f32s()?;
    let prefix = match (m.bool(ADDS_SPACE_PREFIX)?, m.str(SPACE_PREFIX)?) {
        (Some(false), _) => SpacePrefix::Never,
        (_, None) => SpacePrefix::default(),
        (_, Some(name)) => SpacePrefix::by_name(name)
            .ok_or_else(|| not_one_of(SPACE_PREFIX, name, &SpacePrefix::known_names()))?,
    };
    let mut pieces = SentencePieces::new(vocabulary, &scores, prefix)?;
    pieces.cuts_at_spaces = m.bool(CUTS_AT_SPACES)?.unwrap_or(false);
    if m.bool(RANKED_MERGES)?.unwrap_or(false) {
        let merges = m.array(MERGES)?.ok_or_else(|| missing(MERGES))?.strings()?;
        pieces.merges = Some(Merges::new(vocabulary, merges)?);
    }
    Ok(pieces)
}

/// A list of token ids, ascending; none where the key is missing.
fn ids(m: &Metadata, key: &'static str, vocabulary: &Vocabulary) -> Result<Vec<u32>, Error> {
    let mut ids = m
        .array(key)?
        .map(|ids| ids.u32s())
        .transpose()?
        .unwrap_or_default();
    for &id in &ids {
        vocabulary.checked(key, Some(id))?;
    }
    ids.sort_unstable();
    ids.dedup();
    Ok(ids)
}

/// Whether a token is added to a text: as the metadata says, or as the kind of vocabulary has it.
fn adds(
    m: &Metadata,
    key: &'static str,
    by_default: bool,
    id_key: &'static str,
    id: Option<u32>,
    warnings: &mut Vec<String>,
) -> Result<bool, Error> {
    match (m.bool(key)?, id) {
        (Some(true), None) => Err(Error::vocabulary(
            key,
            format!("is true, but {id_key} is missing"),
        )),
        (None, None) if by_default => {
            warnings.push(format!("{id_key} is missing: none is added"));
            Ok(false)
        }
        (given, _) => Ok(given.unwrap_or(by_default)),
    }
}

/// Phi-3's tokenizer swallows the white space after its own special tokens; GGUF files don't say so.
fn phi3_strip_after(vocabulary: &Vocabulary) -> Vec<u32> {
    let names = ["<unk>", "<s>", "<|endoftext|>"];
    let named = |id: &u32| {
        let kind = vocabulary.kind(*id);
        kind.is_some_and(|kind| kind.is_special() || kind == Kind::UserDefined)
            && vocabulary
                .spelling(*id)
                .is_some_and(|spelling| !names.contains(&spelling))
    };
    (0..vocabulary.size() as u32).filter(named).collect()
}
