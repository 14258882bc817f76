//! Tokenizers of Hugging Face directories: `tokenizer.json` or `tokenizer.model`, and the files beside them.
//!
//! [`metadata`] says in the keys of GGUF files what those files say, so that [`crate::Tokenizer::from_metadata`] is the one
//! tokenizer and a converted model carries the same keys. What GGUF has no key for is said by keys that begin
//! `backplane.tokenizer.`.
//!
//! ```no_run
//! use backplane_tokenizer::hub::{self, Files};
//!
//! let contents: Vec<(&str, Vec<u8>)> = Files::NAMES
//!     .iter()
//!     .filter_map(|&name| Some((name, std::fs::read(format!("model/{name}")).ok()?)))
//!     .collect();
//! let mut files = Files { vocabulary_rows: Some(151_936), ..Files::default() };
//! for (name, bytes) in &contents {
//!     files.set(name, bytes);
//! }
//! let keys = hub::metadata(&files)?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod draft;
mod json;
mod protobuf;
mod sentence_piece;
mod special;
mod steps;
mod tokenizer_json;

use backplane_weights::ValueType;
use backplane_weights::writer::OwnedValue;

use crate::error::Error;
use crate::keys;
use crate::sentence_pieces::SpacePrefix;
use draft::{Draft, Model, Parsed};

macro_rules! files {
    ($($(#[doc = $doc:literal])* $field:ident = $name:ident $text:literal;)*) => {
        /// What lies in a model's directory, each file's whole content. All are optional but one of the first two.
        #[derive(Debug, Clone, Copy, Default)]
        pub struct Files<'a> {
            $($(#[doc = $doc])* pub $field: Option<&'a [u8]>,)*
            /// Rows of the embedding: the vocabulary is filled up to it with unused tokens, and must not be longer. Without it
            /// the vocabulary is taken as long as it is.
            pub vocabulary_rows: Option<u64>,
        }

        $(const $name: &str = $text;)*

        impl<'a> Files<'a> {
            /// The names of the files that are looked at.
            pub const NAMES: &'static [&'static str] = &[$($name),*];

            /// Sets the content of a file by its name; `false` for a name that isn't one of [`Files::NAMES`].
            pub fn set(&mut self, name: &str, content: &'a [u8]) -> bool {
                match name {
                    $($name => self.$field = Some(content),)*
                    _ => return false,
                }
                true
            }
        }
    };
}

files! {
    /// `tokenizer.json`, which is read if it is there.
    tokenizer_json = TOKENIZER_JSON "tokenizer.json";
    /// `tokenizer.model`, a SentencePiece model: read where there is no `tokenizer.json`.
    tokenizer_model = TOKENIZER_MODEL "tokenizer.model";
    /// `tokenizer_config.json`: special tokens, flags, chat template.
    tokenizer_config = TOKENIZER_CONFIG "tokenizer_config.json";
    /// `special_tokens_map.json`: special tokens that `tokenizer_config.json` doesn't name.
    special_tokens_map = SPECIAL_TOKENS_MAP "special_tokens_map.json";
    /// `added_tokens.json`: ids of tokens beside those of `tokenizer.model`.
    added_tokens = ADDED_TOKENS "added_tokens.json";
    /// `generation_config.json`: which tokens end an answer.
    generation_config = GENERATION_CONFIG "generation_config.json";
    /// `chat_template.jinja`, which comes before the template in `tokenizer_config.json`.
    chat_template = CHAT_TEMPLATE_JINJA "chat_template.jinja";
    /// `config.json`, for the ids of special tokens that no other file names.
    config = CONFIG "config.json";
}

/// The metadata keys of a model's tokenizer, for [`crate::Tokenizer::from_metadata`].
///
/// # Errors
/// One line that names the file: it is not what it should be, or says what can't be honoured (another kind of model than
/// byte-pair encoding, an unknown pre-tokenizer or normaliser, a vocabulary with more tokens than the embedding has rows).
/// Lesser doubts become [`crate::Tokenizer::warnings`].
pub fn metadata(files: &Files<'_>) -> Result<Vec<(String, OwnedValue)>, Error> {
    let configs = special::Configs::read(files)?;
    let mut parsed = match (files.tokenizer_json, files.tokenizer_model) {
        (Some(bytes), _) => tokenizer_json::read(bytes, &configs, files.vocabulary_rows)?,
        (None, Some(bytes)) => {
            sentence_piece::read(bytes, files.added_tokens, &configs, files.vocabulary_rows)?
        }
        (None, None) => {
            return Err(Error::vocabulary(
                TOKENIZER_JSON,
                format!("is missing, and so is {TOKENIZER_MODEL}: expected one of the two"),
            ));
        }
    };
    let special = special::Special::find(&configs, &mut parsed)?;
    let templates = special::templates(files, &configs, &mut parsed.draft.warnings)?;
    let mut keys = Keys::default();
    write_model(&mut keys, &mut parsed, &configs);
    special.write(&mut keys);
    for (key, template) in templates {
        keys.add(key, template);
    }
    if !parsed.draft.warnings.is_empty() {
        keys.add(keys::WARNINGS, parsed.draft.warnings);
    }
    Ok(keys.0)
}

/// The keys so far.
#[derive(Default)]
struct Keys(Vec<(String, OwnedValue)>);

impl Keys {
    fn add(&mut self, key: impl Into<String>, value: impl Into<OwnedValue>) {
        self.0.push((key.into(), value.into()));
    }

    /// A list that is left out where it is empty.
    fn add_some(&mut self, key: &str, ids: &[u32]) {
        if !ids.is_empty() {
            self.add(key, ids.to_vec());
        }
    }
}

fn write_model(keys: &mut Keys, parsed: &mut Parsed, configs: &special::Configs) {
    let Draft { source, tokens, .. } = &mut parsed.draft;
    let tokens = std::mem::take(tokens);
    let pieces = matches!(parsed.model, Model::Pieces { .. });
    let (name, pre) = match &parsed.model {
        Model::ByteLevel { pre, .. } => ("gpt2", pre.names[0]),
        Model::Pieces { .. } => ("llama", crate::pre::DEFAULT),
    };
    keys.add(keys::MODEL, name);
    keys.add(keys::PRE, pre);
    let kinds: Vec<i32> = tokens.iter().map(|token| token.kind as i32).collect();
    let scores: Vec<f32> = tokens.iter().map(|token| token.score).collect();
    let spellings = tokens
        .into_iter()
        .map(|token| OwnedValue::String(token.spelling));
    keys.add(
        keys::TOKENS,
        OwnedValue::Array(ValueType::String, spellings.collect()),
    );
    if pieces {
        keys.add(keys::SCORES, scores);
    }
    keys.add(keys::TOKEN_TYPE, kinds);
    keys.add(keys::SOURCE, *source);
    let cleans_spaces = configs.cleans_spaces();
    match &mut parsed.model {
        Model::ByteLevel {
            pre,
            merges,
            ignores_merges,
        } => {
            keys.add(keys::MERGES, std::mem::take(merges));
            if *ignores_merges != pre.whole_words_first {
                keys.add(keys::IGNORES_MERGES, *ignores_merges);
            }
            if let Some(cleans) = cleans_spaces.filter(|&cleans| cleans != pre.cleans_spaces) {
                keys.add(keys::CLEANS_SPACES, cleans);
            }
        }
        Model::Pieces {
            prefix,
            strips_space,
            cuts_at_spaces,
            merges,
        } => {
            if let Some(merges) = merges {
                keys.add(keys::MERGES, std::mem::take(merges));
                keys.add(keys::RANKED_MERGES, true);
            }
            let adds = *prefix != SpacePrefix::Never;
            keys.add(keys::ADDS_SPACE_PREFIX, adds);
            if adds && *prefix != SpacePrefix::default() {
                keys.add(keys::SPACE_PREFIX, prefix.name());
            }
            if *strips_space != adds {
                keys.add(keys::STRIPS_SPACE, *strips_space);
            }
            if *cuts_at_spaces {
                keys.add(keys::CUTS_AT_SPACES, true);
            }
            if cleans_spaces == Some(true) {
                keys.add(keys::CLEANS_SPACES, true);
            }
        }
    }
    if let Some(form) = parsed.normalizer {
        keys.add(keys::NORMALIZER, form.name());
    }
    keys.add_some(keys::NORMALIZED_TOKENS, &parsed.normalized);
    keys.add_some(keys::STRIP_BEFORE, &parsed.strip_before);
    keys.add_some(keys::STRIP_AFTER, &parsed.strip_after);
}
