//! What the files beside the tokenizer say: special tokens, flags, chat templates.

use serde::Deserialize;
use serde_json::Value;

use super::draft::{Ids, Parsed};
use super::json::{read, shortened, shown};
use super::tokenizer_json::AddedToken;
use super::{
    CHAT_TEMPLATE_JINJA, CONFIG, Files, GENERATION_CONFIG, Keys, SPECIAL_TOKENS_MAP,
    TOKENIZER_CONFIG,
};
use crate::error::Error;
use crate::keys;

/// The files beside the tokenizer; null for those that aren't there.
pub(super) struct Configs {
    tokenizer: Value,
    special_tokens: Value,
    generation: Value,
    model: Value,
}

/// A flag in `tokenizer_config.json`; `None` where it is missing or null.
fn flag(config: &Value, name: &str) -> Result<Option<bool>, Error> {
    match &config[name] {
        Value::Null => Ok(None),
        Value::Bool(value) => Ok(Some(*value)),
        other => Err(Error::vocabulary(
            TOKENIZER_CONFIG,
            format!("{name} is {}, expected true or false", shown(other)),
        )),
    }
}

impl Configs {
    pub(super) fn read(files: &Files<'_>) -> Result<Self, Error> {
        let object = |file: &'static str, bytes: Option<&[u8]>| match bytes {
            None => Ok(Value::Null),
            Some(bytes) => match read(file, bytes)? {
                object @ Value::Object(_) => Ok(object),
                other => Err(Error::vocabulary(
                    file,
                    format!("is {}, expected an object", shown(&other)),
                )),
            },
        };
        let configs = Self {
            tokenizer: object(TOKENIZER_CONFIG, files.tokenizer_config)?,
            special_tokens: object(SPECIAL_TOKENS_MAP, files.special_tokens_map)?,
            generation: object(GENERATION_CONFIG, files.generation_config)?,
            model: object(CONFIG, files.config)?,
        };
        for name in [
            "add_bos_token",
            "add_eos_token",
            "add_prefix_space",
            "clean_up_tokenization_spaces",
            "legacy",
        ] {
            flag(&configs.tokenizer, name)?;
        }
        Ok(configs)
    }

    fn flag(&self, name: &str) -> Option<bool> {
        self.tokenizer[name].as_bool()
    }

    pub(super) fn cleans_spaces(&self) -> Option<bool> {
        self.flag("clean_up_tokenization_spaces")
    }

    pub(super) fn adds_prefix_space(&self) -> Option<bool> {
        self.flag("add_prefix_space")
    }

    /// Whether a space is put before each part of a text, between special tokens; otherwise only before the text.
    pub(super) fn is_legacy(&self) -> bool {
        self.flag("legacy").unwrap_or(true)
    }

    /// The tokens of `added_tokens_decoder`, in order of their ids.
    pub(super) fn added_tokens(&self) -> Result<Vec<AddedToken>, Error> {
        let fault = |problem: String| {
            Error::vocabulary(TOKENIZER_CONFIG, format!("added_tokens_decoder: {problem}"))
        };
        let entries = match &self.tokenizer["added_tokens_decoder"] {
            Value::Null => return Ok(Vec::new()),
            Value::Object(entries) => entries,
            other => return Err(fault(format!("is {}, expected an object", shown(other)))),
        };
        /// A token without its id, which is the key.
        #[derive(Deserialize)]
        struct Entry {
            content: String,
            #[serde(default)]
            single_word: bool,
            #[serde(default)]
            lstrip: bool,
            #[serde(default)]
            rstrip: bool,
            #[serde(default)]
            normalized: bool,
            #[serde(default)]
            special: bool,
        }
        let mut tokens = Vec::with_capacity(entries.len());
        for (id, entry) in entries {
            let id_of = |text: &str| {
                text.bytes()
                    .all(|byte| byte.is_ascii_digit())
                    .then(|| text.parse().ok())?
            };
            let id = id_of(id).ok_or_else(|| {
                fault(format!(
                    "{} is not a token id",
                    shortened(&format!("{id:?}"))
                ))
            })?;
            let Entry {
                content,
                single_word,
                lstrip,
                rstrip,
                normalized,
                special,
            } = Entry::deserialize(entry)
                .map_err(|error| fault(format!("token {id}: {}", shortened(&error.to_string()))))?;
            tokens.push(AddedToken {
                id,
                content,
                single_word,
                lstrip,
                rstrip,
                normalized,
                special,
            });
        }
        tokens.sort_by_key(|token| token.id);
        Ok(tokens)
    }

    /// Names that `special_tokens_map.json` or `tokenizer_config.json` list as special besides the customary ones.
    pub(super) fn other_special_tokens(&self) -> Vec<&str> {
        [&self.tokenizer, &self.special_tokens]
            .into_iter()
            .filter_map(|file| file["additional_special_tokens"].as_array())
            .flatten()
            .filter_map(name_of)
            .collect()
    }
}

/// The name of a token: a text, or the `content` of an object.
fn name_of(token: &Value) -> Option<&str> {
    token.as_str().or_else(|| token["content"].as_str())
}

/// The special tokens and what they are for.
pub(super) struct Special {
    ids: Ids,
    adds_bos: bool,
    adds_eos: bool,
    /// Besides EOS; ascending.
    end_of_generation: Vec<u32>,
}

impl Special {
    pub(super) fn find(configs: &Configs, parsed: &mut Parsed) -> Result<Self, Error> {
        let own = parsed.ids;
        let mut ids = Ids {
            bos: one(configs, parsed, "bos", own.bos)?,
            eos: one(configs, parsed, "eos", own.eos)?,
            unknown: one(configs, parsed, "unk", own.unknown)?,
            padding: one(configs, parsed, "pad", own.padding)?,
        };
        let mut end_of_generation = Vec::new();
        for (file, config) in [
            (GENERATION_CONFIG, &configs.generation),
            (CONFIG, &configs.model),
        ] {
            end_of_generation.extend(numbers(file, config, "eos", parsed)?);
        }
        end_of_generation.sort_unstable();
        end_of_generation.dedup();
        end_of_generation.retain(|&id| Some(id) != ids.eos);

        let adds = parsed.adds;
        let adds_bos = configs
            .flag("add_bos_token")
            .unwrap_or(adds.bos || adds.before.is_some());
        let adds_eos = configs
            .flag("add_eos_token")
            .unwrap_or(adds.after.is_some());
        if let Some(before) = adds
            .before
            .filter(|&before| adds_bos && ids.bos != Some(before))
        {
            if let Some(bos) = ids.bos {
                let problem = format!(
                    "the post_processor begins a text with token {before}, though BOS is {bos}: {before} is taken as BOS"
                );
                let source = parsed.draft.source;
                parsed.draft.warn(source, problem);
            }
            ids.bos = Some(before);
        }
        if let Some(after) = adds
            .after
            .filter(|&after| adds_eos && ids.eos != Some(after))
        {
            if let Some(eos) = ids.eos {
                return Err(parsed.draft.fault(format!(
                    "the post_processor ends a text with token {after}, though EOS is {eos}, which is not supported"
                )));
            }
            ids.eos = Some(after);
        }
        for (name, adds, id) in [("bos", adds_bos, ids.bos), ("eos", adds_eos, ids.eos)] {
            if adds && id.is_none() {
                let problem = format!(
                    "add_{name}_token is true, but no file names a {name}_token of the vocabulary"
                );
                return Err(Error::vocabulary(TOKENIZER_CONFIG, problem));
            }
        }
        Ok(Self {
            ids,
            adds_bos,
            adds_eos,
            end_of_generation,
        })
    }

    pub(super) fn write(&self, keys: &mut Keys) {
        for (key, id) in [
            (keys::BOS, self.ids.bos),
            (keys::EOS, self.ids.eos),
            (keys::UNKNOWN, self.ids.unknown),
            (keys::PADDING, self.ids.padding),
        ] {
            if let Some(id) = id {
                keys.add(key, id);
            }
        }
        keys.add(keys::ADDS_BOS, self.adds_bos);
        keys.add(keys::ADDS_EOS, self.adds_eos);
        keys.add_some(keys::END_OF_GENERATION, &self.end_of_generation);
    }
}

/// The id of a special token: by its name in `tokenizer_config.json` or `special_tokens_map.json`, or as the tokenizer's own
/// file says, or the first number in `generation_config.json` or `config.json`.
fn one(
    configs: &Configs,
    parsed: &mut Parsed,
    which: &str,
    own: Option<u32>,
) -> Result<Option<u32>, Error> {
    let key = format!("{which}_token");
    for (file, config) in [
        (TOKENIZER_CONFIG, &configs.tokenizer),
        (SPECIAL_TOKENS_MAP, &configs.special_tokens),
    ] {
        let token = &config[&key];
        if token.is_null() || token == false {
            continue;
        }
        let Some(name) = name_of(token) else {
            return Err(Error::vocabulary(
                file,
                format!("{key} is {}, expected the name of a token", shown(token)),
            ));
        };
        match parsed.draft.find(name) {
            Some(id) => return Ok(Some(id)),
            None => {
                let problem = format!(
                    "{key} is {}, which is not a token: it is left out",
                    shortened(&format!("{name:?}"))
                );
                parsed.draft.warn(file, problem);
            }
        }
    }
    if own.is_some() {
        return Ok(own);
    }
    for (file, config) in [
        (GENERATION_CONFIG, &configs.generation),
        (CONFIG, &configs.model),
    ] {
        if let Some(&id) = numbers(file, config, which, parsed)?.first() {
            return Ok(Some(id));
        }
    }
    Ok(None)
}

/// The ids that `KIND_token_id` holds, a number or a list of numbers. Negative ones stand for none; those that the
/// vocabulary hasn't are left out with a warning.
fn numbers(
    file: &'static str,
    config: &Value,
    which: &str,
    parsed: &mut Parsed,
) -> Result<Vec<u32>, Error> {
    let key = format!("{which}_token_id");
    let value = [&config[&key], &config["text_config"][&key]]
        .into_iter()
        .find(|value| !value.is_null());
    let list = match value {
        None => return Ok(Vec::new()),
        Some(Value::Array(list)) => list.iter().collect(),
        Some(number) => vec![number],
    };
    let mut ids = Vec::new();
    for number in list {
        let Some(id) = number.as_i64() else {
            return Err(Error::vocabulary(
                file,
                format!("{key} is {}, expected a token id", shown(number)),
            ));
        };
        let size = parsed.draft.size();
        match u32::try_from(id) {
            Ok(id) if (id as usize) < size => ids.push(id),
            _ if id < 0 => {}
            _ => {
                let problem = format!(
                    "{file}: {key} is {id}, and the vocabulary has {size} tokens: it is left out"
                );
                if !parsed.draft.warnings.contains(&problem) {
                    parsed.draft.warnings.push(problem);
                }
            }
        }
    }
    Ok(ids)
}

/// The keys of the chat templates: the one that is used where none is named, and the others by their names.
pub(super) fn templates(
    files: &Files<'_>,
    configs: &Configs,
    warnings: &mut Vec<String>,
) -> Result<Vec<(String, backplane_weights::writer::OwnedValue)>, Error> {
    let key = keys::CHAT_TEMPLATE;
    if let Some(bytes) = files.chat_template {
        let text = std::str::from_utf8(bytes).map_err(|error| {
            Error::vocabulary(CHAT_TEMPLATE_JINJA, format!("is not UTF-8: {error}"))
        })?;
        return Ok(vec![(key.into(), text.into())]);
    }
    let fault =
        |problem: String| Error::vocabulary(TOKENIZER_CONFIG, format!("chat_template: {problem}"));
    let list = match &configs.tokenizer["chat_template"] {
        Value::Null => return Ok(Vec::new()),
        Value::String(text) => return Ok(vec![(key.into(), text.as_str().into())]),
        Value::Array(list) => list,
        other => {
            return Err(fault(format!(
                "is {}, expected a text or a list of named templates",
                shown(other)
            )));
        }
    };
    let mut keys = Vec::new();
    let mut others: Vec<&str> = Vec::new();
    let mut default = None;
    for entry in list {
        let (Some(name), Some(template)) = (entry["name"].as_str(), entry["template"].as_str())
        else {
            return Err(fault(format!(
                "holds {}, expected a name and a template",
                shown(entry)
            )));
        };
        if name == "default" {
            if default.replace(template).is_some() {
                return Err(fault("holds two templates named \"default\"".into()));
            }
        } else if !name.is_empty()
            && name
                .bytes()
                .all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
            && !others.contains(&name)
        {
            keys.push((format!("{key}.{name}"), template.into()));
            others.push(name);
        } else {
            return Err(fault(format!(
                "holds the name {}, expected another of letters, digits and \"_\"",
                shortened(&format!("{name:?}"))
            )));
        }
    }
    match (default, list.as_slice()) {
        (Some(default), _) => keys.insert(0, (key.into(), default.into())),
        // The only one is the one to use, whatever its name.
        (None, [only]) => keys.insert(
            0,
            (
                key.into(),
                only["template"].as_str().unwrap_or_default().into(),
            ),
        ),
        (None, []) => {}
        (None, _) => warnings.push(format!(
            "{TOKENIZER_CONFIG}: chat_template has {}, and no \"default\": none is used",
            others.join(", ")
        )),
    }
    if !others.is_empty() {
        keys.push((keys::CHAT_TEMPLATES.into(), others.into()));
    }
    Ok(keys)
}
