//! Options of a load that these engines have of their own: [`LoadOptions::extra`].
//!
//! [`LoadOptions::extra`]: backplane_plugin_api::types::LoadOptions::extra

use backplane_program::CacheType;
use backplane_weights::TensorType;
use serde_json::Value;
use std::collections::BTreeMap;

/// Whether texts are drafted from what they repeat, and the drafts verified in one step. The text is the same either way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Speculation {
    /// Where it is faster by what was measured so far.
    #[default]
    Auto,
    /// Never.
    Off,
}

impl Speculation {
    /// The name of the option, of a load and of a request.
    pub(crate) const OPTION: &'static str = "speculation";

    /// As options have it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Off => "off",
        }
    }

    /// Reads the value of an option.
    ///
    /// # Errors
    /// One line without the option's name.
    pub(crate) fn read(value: &Value) -> Result<Self, String> {
        [Self::Auto, Self::Off]
            .into_iter()
            .find(|known| value.as_str() == Some(known.name()))
            .ok_or_else(|| format!("found {}, expected auto or off", shown(value)))
    }
}

/// A value as it was given, if it is short.
fn shown(value: &Value) -> String {
    let text = value.to_string();
    match text.char_indices().nth(40) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}

/// What a load, or a manifest for all loads, says beside the contract's fields.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LoadExtras {
    /// How keys and values are kept; by default as computed.
    pub cache_type: Option<CacheType>,
    /// The type that matrices are quantised to while the model is loaded. `Some(None)` keeps them as stored, whatever the
    /// default says.
    pub quantize: Option<Option<TensorType>>,
    /// Whether texts are drafted.
    pub speculation: Option<Speculation>,
    /// Tokens that the cache has room for, of all sequences together; by default as many as `parallel` whole contexts, where that is
    /// not given 4 in a quarter of the memory at most.
    pub cache_tokens: Option<usize>,
}

impl LoadExtras {
    /// Their names.
    pub const NAMES: &'static [&'static str] = &[
        "cache_type",
        "quantize",
        Speculation::OPTION,
        "cache_tokens",
    ];

    /// Takes the value of an option; `false` where there is none of that name.
    ///
    /// # Errors
    /// One line without the name: the value is another than expected.
    pub fn set(&mut self, name: &str, value: &Value) -> Result<bool, String> {
        let text = || {
            value
                .as_str()
                .ok_or_else(|| format!("found {value}, expected a text"))
        };
        match name {
            "cache_type" => {
                let cache_type = text()?.parse().map_err(|_| {
                    let known = CacheType::ALL.map(|known| known.to_string()).join(", ");
                    format!("found {value}, expected one of {known}")
                })?;
                self.cache_type = Some(cache_type);
            }
            "quantize" => {
                self.quantize = Some(match text()? {
                    "none" => None,
                    name => {
                        let found = TensorType::to_quantize_to(name);
                        Some(found.map_err(|error| error.to_string())?)
                    }
                });
            }
            Speculation::OPTION => self.speculation = Some(Speculation::read(value)?),
            "cache_tokens" => {
                let tokens = value.as_u64().filter(|tokens| *tokens > 0);
                let tokens = tokens.and_then(|tokens| usize::try_from(tokens).ok());
                let expected = || format!("found {}, expected a number above 0", shown(value));
                self.cache_tokens = Some(tokens.ok_or_else(expected)?);
            }
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// Reads a table of options.
    ///
    /// # Errors
    /// The name at fault, and one line without it; an unknown name has an empty line.
    pub(crate) fn read(table: &BTreeMap<String, Value>) -> Result<Self, (String, String)> {
        let mut extras = Self::default();
        for (name, value) in table {
            match extras.set(name, value) {
                Ok(true) => {}
                Ok(false) => return Err((name.clone(), String::new())),
                Err(message) => return Err((name.clone(), message)),
            }
        }
        Ok(extras)
    }

    /// With what is not said taken from `defaults`.
    #[must_use]
    pub(crate) fn or(self, defaults: Self) -> Self {
        Self {
            cache_type: self.cache_type.or(defaults.cache_type),
            quantize: self.quantize.or(defaults.quantize),
            speculation: self.speculation.or(defaults.speculation),
            cache_tokens: self.cache_tokens.or(defaults.cache_tokens),
        }
    }
}
