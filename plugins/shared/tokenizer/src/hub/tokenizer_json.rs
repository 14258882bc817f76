//! `tokenizer.json`: the file of the `tokenizers` library, with byte-pair encoding of either kind.

use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, Error as _, MapAccess, SeqAccess, Visitor};
use serde_json::Value;

use super::draft::{ADDED_SCORE, Adds, Draft, Ids, Kind, Model, Parsed, looks_special};
use super::special::Configs;
use super::steps::{self, Preparation};
use super::{TOKENIZER_CONFIG, TOKENIZER_JSON, json};
use crate::error::Error;
use crate::pre;
use crate::sentence_pieces::byte_of;

#[derive(Deserialize)]
struct File {
    #[serde(default)]
    added_tokens: Option<Vec<AddedToken>>,
    #[serde(default)]
    normalizer: Value,
    #[serde(default)]
    pre_tokenizer: Value,
    #[serde(default)]
    post_processor: Value,
    #[serde(default)]
    decoder: Value,
    model: BytePairs,
}

/// A look at the model's kind, before all of it is read as what it may not be.
#[derive(Deserialize)]
struct Probe {
    model: ProbedModel,
}

#[derive(Deserialize)]
struct ProbedModel {
    #[serde(default)]
    r#type: Option<String>,
}

#[derive(Deserialize)]
struct BytePairs {
    #[serde(default)]
    dropout: Option<f64>,
    #[serde(default)]
    unk_token: Option<String>,
    #[serde(default)]
    continuing_subword_prefix: Option<String>,
    #[serde(default)]
    end_of_word_suffix: Option<String>,
    #[serde(default)]
    byte_fallback: Option<bool>,
    #[serde(default)]
    ignore_merges: Option<bool>,
    vocab: Entries,
    merges: Vec<Merge>,
}

/// A token that is looked for in the text before the model sees it.
#[derive(Debug, Clone, Deserialize)]
pub(super) struct AddedToken {
    pub(super) id: u64,
    pub(super) content: String,
    #[serde(default)]
    pub(super) single_word: bool,
    #[serde(default)]
    pub(super) lstrip: bool,
    #[serde(default)]
    pub(super) rstrip: bool,
    #[serde(default)]
    pub(super) normalized: bool,
    #[serde(default)]
    pub(super) special: bool,
}

/// The entries of a map in order, with those that are there twice.
struct Entries(Vec<(String, u64)>);

impl<'de> Deserialize<'de> for Entries {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Map;
        impl<'de> Visitor<'de> for Map {
            type Value = Entries;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a map from tokens to ids")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Entries, A::Error> {
                let mut entries = Vec::new();
                while let Some(entry) = map.next_entry()? {
                    entries.push(entry);
                }
                Ok(Entries(entries))
            }
        }
        deserializer.deserialize_map(Map)
    }
}

/// Two tokens that are joined: a list of them, or (in older files) a text with a space between them.
struct Merge(String, String);

impl<'de> Deserialize<'de> for Merge {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Pair;
        impl<'de> Visitor<'de> for Pair {
            type Value = Merge;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a merge: two tokens in a list, or in a text with a space between them")
            }

            fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Merge, E> {
                match text.split_once(' ') {
                    Some((left, right)) if !right.contains(' ') => {
                        Ok(Merge(left.into(), right.into()))
                    }
                    _ => Err(E::custom(format_args!(
                        "the merge {} is not two tokens with a space between them",
                        json::shortened(&format!("{text:?}"))
                    ))),
                }
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Merge, A::Error> {
                let fault = || A::Error::custom("a merge is not a list of two tokens");
                let left = list.next_element()?.ok_or_else(fault)?;
                let right = list.next_element()?.ok_or_else(fault)?;
                match list.next_element::<serde::de::IgnoredAny>()? {
                    Some(_) => Err(fault()),
                    None => Ok(Merge(left, right)),
                }
            }
        }
        deserializer.deserialize_any(Pair)
    }
}

fn fault(problem: String) -> Error {
    Error::vocabulary(TOKENIZER_JSON, problem)
}

pub(super) fn read(bytes: &[u8], configs: &Configs, rows: Option<u64>) -> Result<Parsed, Error> {
    let probe: Probe = json::read(TOKENIZER_JSON, bytes)?;
    if let Some(kind) = probe.model.r#type.filter(|kind| kind != "BPE") {
        return Err(fault(format!(
            "model: is of type {}, expected \"BPE\", the only one supported",
            json::shortened(&format!("{kind:?}"))
        )));
    }
    let file: File = json::read(TOKENIZER_JSON, bytes)?;
    let File {
        normalizer,
        pre_tokenizer,
        decoder,
        ..
    } = &file;
    refuse_unsupported(&file.model)?;

    let byte_level = steps::is_byte_level(pre_tokenizer);
    let byte_fallback = file.model.byte_fallback.unwrap_or(false);
    let ignores_merges = file.model.ignore_merges.unwrap_or(false);
    let (model, preparation) = if byte_level {
        if byte_fallback {
            return Err(fault(
                "model: byte_fallback is true in a byte-level vocabulary, which is not supported"
                    .into(),
            ));
        }
        let stages = steps::stages(pre_tokenizer)?;
        let pre = pre::by_stages(&stages, ignores_merges).ok_or_else(|| {
            fault(format!(
                "pre_tokenizer: its patterns are known, but not in this order: {}",
                json::shown(pre_tokenizer)
            ))
        })?;
        steps::check_byte_level_decoder(decoder)?;
        let form = steps::byte_level_normalizer(normalizer)?;
        let model = Model::ByteLevel {
            pre,
            merges: Vec::new(),
            ignores_merges,
        };
        (
            model,
            Preparation {
                form,
                ..Preparation::default()
            },
        )
    } else {
        if !byte_fallback {
            return Err(fault(format!(
                "pre_tokenizer: is {} and byte_fallback is false, expected ByteLevel or byte_fallback: no other byte-pair encoding is supported",
                json::shown(pre_tokenizer)
            )));
        }
        if ignores_merges {
            return Err(fault(
                "model: ignore_merges is true beside byte_fallback, which is not supported".into(),
            ));
        }
        let preparation = steps::preparation(normalizer, pre_tokenizer)?;
        let model = Model::Pieces {
            prefix: preparation.prefix,
            strips_space: steps::strips_space(decoder)?,
            cuts_at_spaces: preparation.cuts_at_spaces,
            merges: None,
        };
        (model, preparation)
    };
    let around = steps::around(&file.post_processor)?;

    let added = file.added_tokens.unwrap_or_default();
    let BytePairs {
        vocab: Entries(entries),
        merges,
        unk_token,
        ..
    } = file.model;
    let (mut draft, kept) = tokens(
        entries,
        added,
        configs,
        rows,
        !byte_level,
        unk_token.as_deref(),
    )?;
    let merges = check_merges(&mut draft, merges, !byte_level)?;
    let mut parsed = Parsed {
        model,
        normalizer: preparation.form,
        normalized: Vec::new(),
        strip_before: Vec::new(),
        strip_after: Vec::new(),
        adds: Adds::default(),
        ids: Ids {
            unknown: unk_token.and_then(|name| draft.find(&name)),
            ..Ids::default()
        },
        draft,
    };
    match &mut parsed.model {
        Model::ByteLevel { merges: place, .. } => *place = merges,
        Model::Pieces { merges: place, .. } => *place = Some(merges),
    }
    let known = |id: Option<u64>| match id {
        Some(id) if id >= parsed.draft.size() as u64 => {
            let size = parsed.draft.size();
            Err(fault(format!(
                "post_processor: adds token {id}, expected a token id below {size}"
            )))
        }
        id => Ok(id.map(|id| id as u32)),
    };
    parsed.adds = Adds {
        before: known(around.before)?,
        after: known(around.after)?,
        bos: false,
    };
    flags(&mut parsed, &kept, &preparation)?;
    Ok(parsed)
}

fn refuse_unsupported(model: &BytePairs) -> Result<(), Error> {
    let refused = |what: String| Err(fault(format!("model: {what}, which is not supported")));
    if let Some(dropout) = model.dropout.filter(|&dropout| dropout != 0.0) {
        return refused(format!("dropout is {dropout}"));
    }
    for (name, value) in [
        (
            "continuing_subword_prefix",
            &model.continuing_subword_prefix,
        ),
        ("end_of_word_suffix", &model.end_of_word_suffix),
    ] {
        if let Some(value) = value.as_deref().filter(|value| !value.is_empty()) {
            return refused(format!(
                "{name} is {}",
                json::shortened(&format!("{value:?}"))
            ));
        }
    }
    Ok(())
}

/// The tokens, and the added ones among them with their ids.
fn tokens(
    entries: Vec<(String, u64)>,
    added: Vec<AddedToken>,
    configs: &Configs,
    rows: Option<u64>,
    pieces: bool,
    unknown: Option<&str>,
) -> Result<(Draft, Vec<(u32, AddedToken)>), Error> {
    let more = configs.added_tokens()?;
    let mut draft = Draft::new(TOKENIZER_JSON, 0, rows)?;
    if rows.is_none() {
        let mut names: std::collections::HashSet<&str> =
            entries.iter().map(|(name, _)| name.as_str()).collect();
        names.extend(
            added
                .iter()
                .chain(&more)
                .map(|token| token.content.as_str()),
        );
        draft = Draft::new(TOKENIZER_JSON, names.len(), None)?;
    }
    for (name, id) in entries {
        let kind = if unknown == Some(&name) && pieces {
            Kind::Unknown
        } else if pieces && byte_of(&name).is_some() {
            Kind::Byte
        } else {
            Kind::Normal
        };
        draft.put(id, name, kind, 0.0)?;
    }
    let mut kept: Vec<(u32, AddedToken)> = Vec::new();
    let from_config = more.into_iter().map(|token| (TOKENIZER_CONFIG, token));
    for (file, token) in added
        .into_iter()
        .map(|token| (TOKENIZER_JSON, token))
        .chain(from_config)
    {
        let shown = json::shortened(&format!("{:?}", token.content));
        let known = draft.find(&token.content);
        if file == TOKENIZER_CONFIG && known.is_some() {
            continue; // the file of the tokenizer is right
        }
        if token.content.is_empty() {
            return Err(Error::vocabulary(
                file,
                format!("added token {} is empty", token.id),
            ));
        }
        if draft.has_no_row(token.id) && known.is_none() {
            let size = draft.size();
            draft.warn(file, format_args!("added token {shown} has id {}, which the embedding of {size} rows hasn't: it is left out", token.id));
            continue;
        }
        let kind = if token.special || looks_special(&token.content) {
            Kind::Control
        } else {
            Kind::UserDefined
        };
        let id = match known {
            Some(id) if u64::from(id) != token.id => {
                return Err(Error::vocabulary(
                    file,
                    format!("added token {shown} has two ids, {id} and {}", token.id),
                ));
            }
            Some(id) => {
                let slot = &mut draft.tokens[id as usize];
                if slot.kind != Kind::Unknown {
                    slot.kind = kind;
                }
                id
            }
            None => draft.put(token.id, token.content.clone(), kind, ADDED_SCORE)?,
        };
        kept.push((id, token));
    }
    Ok((draft, kept))
}

/// Checks the merges, and gives each token that they make a score of the same order.
fn check_merges(draft: &mut Draft, merges: Vec<Merge>, pieces: bool) -> Result<Vec<String>, Error> {
    let mut out = Vec::with_capacity(merges.len());
    let mut joined = String::new();
    let mut scores = 0u32;
    for (rank, Merge(left, right)) in merges.iter().enumerate() {
        let fault = |problem: String| fault(format!("model: merge {rank} {problem}"));
        let shown = |part: &str| json::shortened(&format!("{part:?}"));
        for part in [left, right] {
            if part.is_empty() || part.contains(' ') {
                return Err(fault(format!(
                    "has the part {}, expected a token without spaces",
                    shown(part)
                )));
            }
        }
        joined.clear();
        joined.extend([left.as_str(), right]);
        for part in [left, right, &joined] {
            if draft.find(part).is_none() {
                return Err(fault(format!(
                    "of {} and {} names {}, which is not a token",
                    shown(left),
                    shown(right),
                    shown(part)
                )));
            }
        }
        if let Some(id) = draft.find(&joined).filter(|_| pieces) {
            let token = &mut draft.tokens[id as usize];
            if token.score == 0.0 && matches!(token.kind, Kind::Normal | Kind::UserDefined) {
                scores += 1;
                token.score = -(scores as f32);
            }
        }
        out.push(format!("{left} {right}"));
    }
    // What no merge makes comes last: characters by themselves.
    if pieces {
        for token in &mut draft.tokens {
            if token.score == 0.0 && matches!(token.kind, Kind::Normal | Kind::UserDefined) {
                scores += 1;
                token.score = -(scores as f32);
            }
        }
    }
    Ok(out)
}

/// What the added tokens' flags ask for.
fn flags(
    parsed: &mut Parsed,
    added: &[(u32, AddedToken)],
    preparation: &Preparation,
) -> Result<(), Error> {
    let mut spelled = 0;
    // Those that are looked for in the text as it is come before those that aren't.
    let two_kinds = added.iter().any(|(_, token)| token.normalized)
        && added.iter().any(|(_, token)| !token.normalized);
    for (id, token) in added {
        if token.single_word {
            return Err(fault(format!(
                "added token {} has single_word true, which is not supported",
                json::shortened(&format!("{:?}", token.content))
            )));
        }
        if token.lstrip {
            parsed.strip_before.push(*id);
        }
        if token.rstrip {
            parsed.strip_after.push(*id);
        }
        if token.normalized && (two_kinds || preparation.form.is_some()) {
            parsed.normalized.push(*id);
        }
        if let Some(form) = preparation.form.filter(|_| token.normalized) {
            // It is looked for in normalised text, so it is normalised too.
            let spelling = form.apply(&token.content);
            if spelling != token.content {
                parsed.draft.respell(*id, spelling.into_owned());
            }
        }
        let spaced =
            token.content.contains([' ', '▁']) && matches!(parsed.model, Model::Pieces { .. });
        if token.normalized && (preparation.normalizer_prepends || spaced) {
            spelled += 1;
        }
    }
    for ids in [
        &mut parsed.strip_before,
        &mut parsed.strip_after,
        &mut parsed.normalized,
    ] {
        ids.sort_unstable();
        ids.dedup();
    }
    if spelled > 0 {
        parsed.draft.warn(
            TOKENIZER_JSON,
            format_args!("{spelled} added tokens are to be looked for with their spaces normalised; they are looked for as they are spelled"),
        );
    }
    Ok(())
}
