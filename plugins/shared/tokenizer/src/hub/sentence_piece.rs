//! `tokenizer.model`: a SentencePiece model, as far as it is byte-pair encoding with byte tokens.
//!
//! The message is `ModelProto` of SentencePiece's `sentencepiece_model.proto`.

use serde_json::Value as Json;
use std::collections::HashMap;

use super::draft::{ADDED_SCORE, Adds, Draft, Ids, Kind, Model, Parsed, looks_special};
use super::json::{self, shortened};
use super::protobuf::{Fields, Value};
use super::special::Configs;
use super::{ADDED_TOKENS, TOKENIZER_CONFIG, TOKENIZER_MODEL};
use crate::error::Error;
use crate::sentence_pieces::{SPACE, SpacePrefix, byte_of};

fn fault(problem: impl Into<String>) -> Error {
    Error::vocabulary(TOKENIZER_MODEL, problem)
}

struct Piece {
    spelling: String,
    score: f32,
    kind: Kind,
}

/// What the model says, with the defaults of its format.
struct Proto {
    pieces: Vec<Piece>,
    model_type: u64,
    byte_fallback: bool,
    suffix_spaces: bool,
    ids: [i32; 4],
    normalizer: String,
    has_map: bool,
    adds_prefix: bool,
    removes_spaces: bool,
    escapes_spaces: bool,
}

const UNIGRAM: u64 = 1;
const BPE: u64 = 2;

/// The fields of a message that begins at `start` of the file.
fn fields(message: &[u8], start: usize) -> impl Iterator<Item = Result<(u64, Value<'_>), Error>> {
    Fields::new(message).map(move |field| {
        field.map_err(|offset| {
            fault(format!(
                "byte {}: not a field of a SentencePiece model, or the file is cut off",
                start + offset
            ))
        })
    })
}

impl Proto {
    fn read(bytes: &[u8]) -> Result<Self, Error> {
        let mut out = Self {
            pieces: Vec::new(),
            model_type: UNIGRAM,
            byte_fallback: false,
            suffix_spaces: false,
            ids: [0, 1, 2, -1],
            normalizer: String::new(),
            has_map: false,
            adds_prefix: true,
            removes_spaces: true,
            escapes_spaces: true,
        };
        for field in fields(bytes, 0) {
            match field? {
                (1, Value::Bytes(piece)) => {
                    let start = offset(bytes, piece);
                    let piece = self::piece(piece, start, out.pieces.len())?;
                    out.pieces.push(piece);
                }
                (2, Value::Bytes(trainer)) => out.trainer(trainer, offset(bytes, trainer))?,
                (3, Value::Bytes(normalizer)) => {
                    out.normalizer(normalizer, offset(bytes, normalizer))?
                }
                (number @ 1..=3, other) => {
                    return Err(fault(format!(
                        "field {number} is {other:?}, expected a message"
                    )));
                }
                _ => {}
            }
        }
        Ok(out)
    }

    fn trainer(&mut self, message: &[u8], start: usize) -> Result<(), Error> {
        for field in fields(message, start) {
            match field? {
                (3, Value::Varint(kind)) => self.model_type = kind,
                (24, Value::Varint(flag)) => self.suffix_spaces = flag != 0,
                (35, Value::Varint(flag)) => self.byte_fallback = flag != 0,
                // An int32 is cut out of 64 bits.
                (number @ 40..=43, Value::Varint(id)) => self.ids[number as usize - 40] = id as i32,
                _ => {}
            }
        }
        Ok(())
    }

    fn normalizer(&mut self, message: &[u8], start: usize) -> Result<(), Error> {
        for field in fields(message, start) {
            match field? {
                (1, Value::Bytes(name)) => {
                    self.normalizer = String::from_utf8_lossy(name).into_owned()
                }
                (2 | 6, Value::Bytes(map)) => self.has_map |= !map.is_empty(),
                (3, Value::Varint(flag)) => self.adds_prefix = flag != 0,
                (4, Value::Varint(flag)) => self.removes_spaces = flag != 0,
                (5, Value::Varint(flag)) => self.escapes_spaces = flag != 0,
                _ => {}
            }
        }
        Ok(())
    }

    /// Refuses what would be tokenized otherwise than the model says.
    fn check(&self) -> Result<(), Error> {
        let name = match self.model_type {
            BPE => None,
            UNIGRAM => Some("UNIGRAM".into()),
            3 => Some("WORD".into()),
            4 => Some("CHAR".into()),
            other => Some(format!("{other}")),
        };
        if let Some(name) = name {
            return Err(fault(format!(
                "is a model of type {name}, expected BPE, the only one supported"
            )));
        }
        if self.pieces.is_empty() {
            return Err(fault("holds no pieces, expected at least one"));
        }
        let refused = [
            (
                self.has_map,
                format!("normalizer {:?} changes text", self.normalizer),
            ),
            (
                self.removes_spaces,
                "remove_extra_whitespaces is true".into(),
            ),
            (!self.escapes_spaces, "escape_whitespaces is false".into()),
            (
                self.suffix_spaces,
                "treat_whitespace_as_suffix is true".into(),
            ),
            (!self.byte_fallback, "byte_fallback is false".into()),
        ];
        match refused.into_iter().find(|(refused, _)| *refused) {
            Some((_, what)) => Err(fault(format!(
                "{}, which is not supported",
                shortened(&what)
            ))),
            None => Ok(()),
        }
    }
}

/// Where `part` begins within `whole`, of which it is a slice.
fn offset(whole: &[u8], part: &[u8]) -> usize {
    part.as_ptr() as usize - whole.as_ptr() as usize
}

fn piece(message: &[u8], start: usize, index: usize) -> Result<Piece, Error> {
    let mut out = Piece {
        spelling: String::new(),
        score: 0.0,
        kind: Kind::Normal,
    };
    for field in fields(message, start) {
        match field? {
            (1, Value::Bytes(text)) => {
                let text = std::str::from_utf8(text)
                    .map_err(|_| fault(format!("piece {index} is not UTF-8")))?;
                out.spelling = text.into();
            }
            (2, Value::Fixed32(score)) => out.score = f32::from_le_bytes(score),
            (3, Value::Varint(kind)) => {
                out.kind = match kind {
                    1 => Kind::Normal,
                    2 => Kind::Unknown,
                    3 => Kind::Control,
                    4 => Kind::UserDefined,
                    5 => Kind::Unused,
                    6 => Kind::Byte,
                    other => {
                        return Err(fault(format!(
                            "piece {index} is of type {other}, expected 1 to 6"
                        )));
                    }
                };
            }
            _ => {}
        }
    }
    if out.spelling.is_empty() {
        return Err(fault(format!("piece {index} is empty")));
    }
    if out.score.is_nan() {
        return Err(fault(format!("the score of piece {index} is not a number")));
    }
    if out.kind == Kind::Byte && byte_of(&out.spelling).is_none() {
        let shown = shortened(&format!("{:?}", out.spelling));
        return Err(fault(format!(
            "piece {index} is {shown}, expected the name of a byte, as \"<0x0A>\""
        )));
    }
    Ok(out)
}

pub(super) fn read(
    bytes: &[u8],
    added_tokens: Option<&[u8]>,
    configs: &Configs,
    rows: Option<u64>,
) -> Result<Parsed, Error> {
    if bytes.starts_with(b"version https://git-lfs") {
        return Err(fault(
            "is a Git LFS pointer, expected the file that it points to",
        ));
    }
    let mut proto = Proto::read(bytes)?;
    proto.check()?;
    let added = read_added(added_tokens)?;
    let pieces = std::mem::take(&mut proto.pieces);
    let count = pieces.len();
    let beyond = |id: u64| id >= count as u64;
    let mut extra: Vec<u64> = added
        .iter()
        .map(|(_, id)| *id)
        .filter(|&id| beyond(id))
        .collect();
    let decoder = configs.added_tokens()?;
    extra.extend(
        decoder
            .iter()
            .map(|token| token.id)
            .filter(|&id| beyond(id)),
    );
    extra.sort_unstable();
    extra.dedup();
    let mut draft = Draft::new(TOKENIZER_MODEL, count + extra.len(), rows)?;
    for (
        id,
        Piece {
            spelling,
            score,
            kind,
        },
    ) in (0..).zip(pieces)
    {
        // Text is looked through for user-defined symbols before its spaces are spelled so.
        let spelling = match kind {
            Kind::UserDefined => spelling.replace(SPACE, " "),
            _ => spelling,
        };
        draft.put(id, spelling, kind, score)?;
    }
    let special = configs.other_special_tokens();
    let mut parsed = Parsed {
        draft,
        model: Model::Pieces {
            prefix: prefix(&proto, configs),
            strips_space: false,
            cuts_at_spaces: false,
            merges: None,
        },
        normalizer: None,
        normalized: Vec::new(),
        strip_before: Vec::new(),
        strip_after: Vec::new(),
        adds: Adds::default(),
        ids: Ids::default(),
    };
    for (name, id) in added {
        let is_special = special.contains(&name.as_str()) || looks_special(&name);
        place(&mut parsed.draft, ADDED_TOKENS, id, &name, is_special)?;
    }
    for token in decoder {
        if token.single_word {
            let shown = shortened(&format!("{:?}", token.content));
            let problem =
                format!("added token {shown} has single_word true, which is not supported");
            return Err(Error::vocabulary(TOKENIZER_CONFIG, problem));
        }
        let is_special = token.special || looks_special(&token.content);
        if let Some(id) = place(
            &mut parsed.draft,
            TOKENIZER_CONFIG,
            token.id,
            &token.content,
            is_special,
        )? {
            parsed.strip_before.extend(token.lstrip.then_some(id));
            parsed.strip_after.extend(token.rstrip.then_some(id));
        }
    }
    if let Model::Pieces {
        prefix,
        strips_space,
        ..
    } = &mut parsed.model
    {
        *strips_space = *prefix != SpacePrefix::Never;
    }
    let known = |id: i32| u32::try_from(id).ok().filter(|&id| (id as usize) < count);
    let [unknown, bos, eos, padding] = proto.ids.map(known);
    parsed.ids = Ids {
        bos,
        eos,
        unknown,
        padding,
    };
    parsed.adds.bos = bos.is_some();
    Ok(parsed)
}

/// Where the model puts a space before a text.
fn prefix(proto: &Proto, configs: &Configs) -> SpacePrefix {
    match configs.adds_prefix_space().unwrap_or(proto.adds_prefix) {
        false => SpacePrefix::Never,
        true if configs.is_legacy() => SpacePrefix::EachPart,
        true => SpacePrefix::Text,
    }
}

/// The tokens of `added_tokens.json`, in order of their ids.
fn read_added(bytes: Option<&[u8]>) -> Result<Vec<(String, u64)>, Error> {
    let Some(bytes) = bytes else {
        return Ok(Vec::new());
    };
    let entries: HashMap<String, Json> = json::read(ADDED_TOKENS, bytes)?;
    let mut tokens = Vec::with_capacity(entries.len());
    for (name, id) in entries {
        let Some(id) = id.as_u64() else {
            let problem = format!(
                "token {} has id {}, expected a number",
                shortened(&format!("{name:?}")),
                json::shown(&id)
            );
            return Err(Error::vocabulary(ADDED_TOKENS, problem));
        };
        tokens.push((name, id));
    }
    tokens.sort_by(|left, right| (left.1, &left.0).cmp(&(right.1, &right.0)));
    Ok(tokens)
}

/// Puts a token that was added to the model, or says more of one that it has.
fn place(
    draft: &mut Draft,
    file: &'static str,
    id: u64,
    name: &str,
    special: bool,
) -> Result<Option<u32>, Error> {
    let shown = shortened(&format!("{name:?}"));
    if name.is_empty() {
        return Err(Error::vocabulary(
            file,
            format!("added token {id} is empty"),
        ));
    }
    if draft.has_no_row(id) {
        let rows = draft.size();
        draft.warn(file, format_args!("added token {shown} has id {id}, which the embedding of {rows} rows hasn't: it is left out"));
        return Ok(None);
    }
    let spelling = if special {
        name.to_owned()
    } else {
        name.replace(SPACE, " ")
    };
    let kind = if special {
        Kind::Control
    } else {
        Kind::UserDefined
    };
    let Some(slot) = usize::try_from(id)
        .ok()
        .and_then(|id| draft.tokens.get_mut(id))
    else {
        let problem = format!(
            "added token {shown} has id {id}, expected below {}, the number of tokens",
            draft.size()
        );
        return Err(Error::vocabulary(file, problem));
    };
    let id = id as u32;
    if slot.kind == Kind::Unused && draft.find(&spelling).is_none_or(|other| other == id) {
        draft.respell(id, spelling);
        let slot = &mut draft.tokens[id as usize];
        (slot.kind, slot.score) = (kind, ADDED_SCORE);
        return Ok(Some(id));
    }
    let slot = &draft.tokens[id as usize];
    if let Some(other) = draft.find(&spelling).filter(|&other| other != id) {
        return Err(Error::vocabulary(
            file,
            format!("added token {shown} has two ids, {other} and {id}"),
        ));
    }
    if slot.spelling != spelling {
        let replaced = shortened(&format!("{:?}", slot.spelling));
        draft.warn(
            file,
            format_args!("added token {shown} takes the place of {replaced}, id {id}"),
        );
        draft.respell(id, spelling);
    }
    let slot = &mut draft.tokens[id as usize];
    if slot.kind != Kind::Unknown {
        (slot.kind, slot.score) = (kind, ADDED_SCORE);
    }
    Ok(Some(id))
}
