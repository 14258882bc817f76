//! The steps around the model in `tokenizer.json`: normaliser, pre-tokenizer, decoder. Each is known exactly, or refused.

use serde_json::Value;

use super::TOKENIZER_JSON;
use super::json::{sequence, shortened, shown, type_of};
use crate::error::Error;
use crate::normalize::NormalForm;
use crate::pre::{self, EACH_NUMBER, GPT2, Stage};
use crate::sentence_pieces::{SPACE, SpacePrefix};

fn refused(part: &str, problem: String) -> Error {
    Error::vocabulary(TOKENIZER_JSON, format!("{part}: {problem}"))
}

fn unknown(part: &str, step: &Value, expected: &str) -> Error {
    refused(
        part,
        format!("{} is not supported, expected {expected}", shown(step)),
    )
}

/// A flag of a step.
fn flag(part: &str, step: &Value, name: &str, by_default: Option<bool>) -> Result<bool, Error> {
    match (&step[name], by_default) {
        (Value::Bool(value), _) => Ok(*value),
        (Value::Null, Some(value)) => Ok(value),
        _ => Err(refused(part, format!("{} has no flag {name}", shown(step)))),
    }
}

/// Whether the pre-tokenizer is one of byte-level vocabularies.
pub(super) fn is_byte_level(pre_tokenizer: &Value) -> bool {
    let steps = sequence(pre_tokenizer, "pretokenizers");
    steps.into_iter().any(|step| type_of(step) == "ByteLevel")
}

const PRE_TOKENIZER: &str = "pre_tokenizer";

/// The stages of a byte-level vocabulary's pre-tokenizer.
pub(super) fn stages(pre_tokenizer: &Value) -> Result<Vec<Stage>, Error> {
    let steps = sequence(pre_tokenizer, "pretokenizers");
    let mut stages = Vec::new();
    for (index, step) in steps.iter().enumerate() {
        match type_of(step) {
            "Split" => stages.push(split(step)?),
            "Digits" if step["individual_digits"] == true => {
                stages.extend(pre::stage_of(EACH_NUMBER))
            }
            "ByteLevel" if index + 1 < steps.len() => {
                return Err(refused(
                    PRE_TOKENIZER,
                    format!(
                        "ByteLevel comes before {}, expected it last",
                        shown(steps[index + 1])
                    ),
                ));
            }
            "ByteLevel" => {
                if flag(PRE_TOKENIZER, step, "add_prefix_space", None)? {
                    return Err(refused(
                        PRE_TOKENIZER,
                        "ByteLevel has add_prefix_space true, which is not supported".into(),
                    ));
                }
                if flag(PRE_TOKENIZER, step, "use_regex", Some(true))? {
                    stages.extend(pre::stage_of(GPT2));
                }
            }
            _ => {
                return Err(unknown(
                    PRE_TOKENIZER,
                    step,
                    "Split, Digits with individual_digits, or ByteLevel",
                ));
            }
        }
    }
    Ok(stages)
}

fn split(step: &Value) -> Result<Stage, Error> {
    let Some(pattern) = step["pattern"]["Regex"].as_str() else {
        return Err(unknown(
            PRE_TOKENIZER,
            step,
            "a Split by a regular expression",
        ));
    };
    let stage = pre::stage_of(pattern).ok_or_else(|| {
        refused(
            PRE_TOKENIZER,
            format!(
                "the pattern {} is not known",
                shortened(&format!("{pattern:?}"))
            ),
        )
    })?;
    // Matches stand by themselves; or what no match covers is dropped, which is the same where matches cover all text.
    let covers_all = matches!(
        stage,
        Stage::Gpt2 | Stage::Llama3 { .. } | Stage::Cased { .. }
    );
    match (step["behavior"].as_str(), step["invert"].as_bool()) {
        (Some("Isolated"), Some(false) | None) => Ok(stage),
        (Some("Removed"), Some(true)) if covers_all => Ok(stage),
        (behavior, invert) => Err(refused(
            PRE_TOKENIZER,
            format!(
                "a Split with behavior {behavior:?} and invert {invert:?} is not supported, expected \"Isolated\" and false"
            ),
        )),
    }
}

const NORMALIZER: &str = "normalizer";

/// The Unicode normal form that a normaliser's step asks for.
fn normal_form(step: &Value) -> Option<NormalForm> {
    let name = type_of(step);
    (name.to_uppercase() == name).then(|| NormalForm::by_name(&name.to_lowercase()))?
}

/// A byte-level vocabulary's normaliser.
pub(super) fn byte_level_normalizer(normalizer: &Value) -> Result<Option<NormalForm>, Error> {
    let mut form = None;
    for step in sequence(normalizer, "normalizers") {
        match normal_form(step) {
            Some(found) if form.is_none() => form = Some(found),
            _ => {
                return Err(unknown(
                    NORMALIZER,
                    step,
                    "at most one of NFC, NFD, NFKC and NFKD",
                ));
            }
        }
    }
    Ok(form)
}

/// How a vocabulary of SentencePiece's kind prepares text.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Preparation {
    pub(super) form: Option<NormalForm>,
    pub(super) prefix: SpacePrefix,
    pub(super) cuts_at_spaces: bool,
    /// The prefix is put by the normaliser, so that tokens which are looked for after it have it too.
    pub(super) normalizer_prepends: bool,
}

/// The preparation that normaliser and pre-tokenizer make up: spaces are spelled U+2581 by either of them, and one may be put
/// before the text.
pub(super) fn preparation(normalizer: &Value, pre_tokenizer: &Value) -> Result<Preparation, Error> {
    let mut out = Preparation {
        prefix: SpacePrefix::Never,
        ..Preparation::default()
    };
    let (mut replaced, mut prepended) = (false, false);
    for step in sequence(normalizer, "normalizers") {
        match type_of(step) {
            "Prepend" if step["prepend"] == SPACE && !prepended => prepended = true,
            "Replace"
                if step["pattern"]["String"] == " " && step["content"] == SPACE && !replaced =>
            {
                replaced = true
            }
            _ => match normal_form(step) {
                Some(form) if out.form.is_none() && !replaced && !prepended => {
                    out.form = Some(form)
                }
                _ => {
                    return Err(unknown(
                        NORMALIZER,
                        step,
                        "Prepend \"▁\", Replace \" \" by \"▁\", or a Unicode normal form",
                    ));
                }
            },
        }
    }
    if prepended {
        out.prefix = SpacePrefix::EachPart;
        out.normalizer_prepends = true;
    }
    for step in sequence(pre_tokenizer, "pretokenizers") {
        match type_of(step) {
            "Metaspace" if !replaced && !prepended => {
                (out.prefix, out.cuts_at_spaces) = metaspace(PRE_TOKENIZER, step)?;
                replaced = true;
            }
            // There are no spaces left to split at.
            "Split" if replaced && step["pattern"]["String"] == " " => {}
            _ => {
                return Err(unknown(
                    PRE_TOKENIZER,
                    step,
                    "Metaspace, or a Split at spaces after they were replaced",
                ));
            }
        }
    }
    if !replaced {
        let problem = "neither it nor the pre_tokenizer spells spaces as \"▁\": this kind of byte-pair encoding is not supported";
        return Err(refused(NORMALIZER, problem.into()));
    }
    Ok(out)
}

/// The prefix that a `Metaspace` puts, and whether it cuts at spaces.
fn metaspace(part: &str, step: &Value) -> Result<(SpacePrefix, bool), Error> {
    if step["replacement"] != SPACE {
        return Err(unknown(part, step, "the replacement \"▁\""));
    }
    // Before there were schemes, there was a flag.
    let prefixes = flag(part, step, "add_prefix_space", Some(true))?;
    let prefix = match (step["prepend_scheme"].as_str(), prefixes) {
        (None, false) | (Some("never"), _) => SpacePrefix::Never,
        (None, true) | (Some("always"), true) => SpacePrefix::EachPartUnlessSpaced,
        (Some("first"), true) => SpacePrefix::TextUnlessSpaced,
        _ => {
            return Err(unknown(
                part,
                step,
                "prepend_scheme \"always\", \"first\" or \"never\"",
            ));
        }
    };
    Ok((prefix, flag(part, step, "split", Some(true))?))
}

const DECODER: &str = "decoder";

/// Checks a byte-level vocabulary's decoder.
pub(super) fn check_byte_level_decoder(decoder: &Value) -> Result<(), Error> {
    let steps = sequence(decoder, "decoders");
    let known = |step: &&Value| matches!(type_of(step), "ByteLevel" | "Fuse");
    match steps.iter().find(|step| !known(step)) {
        Some(step) => Err(unknown(DECODER, step, "ByteLevel")),
        None if !steps.iter().any(|step| type_of(step) == "ByteLevel") => Err(refused(
            DECODER,
            format!("is {}, expected ByteLevel", shown(decoder)),
        )),
        None => Ok(()),
    }
}

/// Checks the decoder of a vocabulary of SentencePiece's kind, and says whether it drops the space that begins a text.
pub(super) fn strips_space(decoder: &Value) -> Result<bool, Error> {
    let (mut strips, mut spaces, mut bytes) = (false, false, false);
    for step in sequence(decoder, "decoders") {
        match type_of(step) {
            "Replace" if step["pattern"]["String"] == SPACE && step["content"] == " " => {
                spaces = true
            }
            "ByteFallback" => bytes = true,
            "Fuse" => {}
            "Strip" if step["content"] == " " && step["start"] == 1 && step["stop"] == 0 => {
                strips = true
            }
            "Metaspace" => {
                strips = metaspace(DECODER, step)?.0 != SpacePrefix::Never;
                spaces = true;
            }
            _ => {
                return Err(unknown(
                    DECODER,
                    step,
                    "Replace \"▁\" by \" \", ByteFallback, Fuse, or Strip of one space",
                ));
            }
        }
    }
    if spaces && bytes {
        Ok(strips)
    } else {
        let problem = format!(
            "is {}, expected a Sequence with Replace \"▁\" by \" \" and ByteFallback",
            shown(decoder)
        );
        Err(refused(DECODER, problem))
    }
}

const POST_PROCESSOR: &str = "post_processor";

/// What a post-processor puts around a text: names and ids of tokens.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Around {
    pub(super) before: Option<u64>,
    pub(super) after: Option<u64>,
}

/// The tokens that the post-processor puts around a single text; at most one on each side.
pub(super) fn around(post_processor: &Value) -> Result<Around, Error> {
    let mut out = Around::default();
    for step in sequence(post_processor, "processors") {
        match type_of(step) {
            "ByteLevel" => {}
            "TemplateProcessing" if out == Around::default() => out = template(step)?,
            _ => {
                return Err(unknown(
                    POST_PROCESSOR,
                    step,
                    "ByteLevel or one TemplateProcessing",
                ));
            }
        }
    }
    Ok(out)
}

fn template(step: &Value) -> Result<Around, Error> {
    let mut out = Around::default();
    let mut text_seen = false;
    let parts = step["single"]
        .as_array()
        .map(Vec::as_slice)
        .unwrap_or_default();
    for part in parts {
        if part["Sequence"]["id"] == "A" && !text_seen {
            text_seen = true;
            continue;
        }
        let side = if text_seen {
            &mut out.after
        } else {
            &mut out.before
        };
        let name = part["SpecialToken"]["id"].as_str();
        let ids = name.and_then(|name| step["special_tokens"][name]["ids"].as_array());
        match ids.map(Vec::as_slice) {
            Some([id])
                if side.is_none()
                    && let Some(id) = id.as_u64() =>
            {
                *side = Some(id)
            }
            _ => {
                return Err(unknown(
                    POST_PROCESSOR,
                    &step["single"],
                    "the text and at most one token on each side of it",
                ));
            }
        }
    }
    if text_seen {
        Ok(out)
    } else {
        Err(unknown(
            POST_PROCESSOR,
            &step["single"],
            "a template with the text in it",
        ))
    }
}
