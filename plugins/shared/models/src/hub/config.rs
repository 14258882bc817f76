//! `config.json`, read key by key: what a key says, and which keys nobody asked for.

use crate::ModelError;
use serde_json::{Map, Value};
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::io::Read;
use std::path::{Path, PathBuf};

/// The file's name in a directory.
pub(crate) const NAME: &str = "config.json";
/// Far above any configuration, far below what would hurt.
const MAX_BYTES: u64 = 16 << 20;
/// Most characters of a file's own text in a message.
const SHOWN: usize = 64;

/// A JSON object of the configuration. Python's `null` and an absent key mean the same, but for the defaults of a family,
/// which stand for absent keys only.
#[derive(Debug)]
pub(crate) struct Section {
    path: PathBuf,
    /// What stands before the keys in messages, such as `rope_scaling.`
    prefix: String,
    keys: Map<String, Value>,
    asked: RefCell<BTreeSet<String>>,
}

impl Section {
    /// Reads the configuration of a directory.
    pub(crate) fn open(directory: &Path) -> Result<Self, ModelError> {
        let path = directory.join(NAME);
        let is_not = |found: String, expected: &str| ModelError::Configuration {
            path: path.clone(),
            found,
            expected: expected.into(),
        };
        let expected = "a file, the configuration of the model beside its weights";
        let metadata = std::fs::metadata(&path).map_err(|cause| {
            let found = match cause.kind() {
                std::io::ErrorKind::NotFound => "no such file".into(),
                _ => cause.to_string(),
            };
            is_not(found, expected)
        })?;
        if !metadata.is_file() {
            return Err(is_not("something that is no file".into(), expected));
        }
        if metadata.len() > MAX_BYTES {
            let found = format!("{} bytes", metadata.len());
            return Err(is_not(found, &format!("at most {MAX_BYTES}")));
        }
        let mut bytes = Vec::new();
        std::fs::File::open(&path)
            .and_then(|file| file.take(MAX_BYTES).read_to_end(&mut bytes))
            .map_err(|cause| is_not(cause.to_string(), expected))?;
        Self::parse(&path, &bytes)
    }

    /// Reads the bytes of a configuration; `path` is for messages.
    pub(crate) fn parse(path: &Path, bytes: &[u8]) -> Result<Self, ModelError> {
        let is_not = |found: String| ModelError::Configuration {
            path: path.into(),
            found,
            expected: "a JSON object".into(),
        };
        match serde_json::from_slice(bytes) {
            Ok(Value::Object(keys)) => Ok(Self::new(path, String::new(), keys)),
            Ok(other) => Err(is_not(shown(&other))),
            Err(error) if error.is_eof() && bytes.iter().all(u8::is_ascii_whitespace) => {
                Err(is_not("an empty file".into()))
            }
            Err(error) => Err(is_not(format!("something that is no JSON ({error})"))),
        }
    }

    fn new(path: &Path, prefix: String, keys: Map<String, Value>) -> Self {
        Self {
            path: path.into(),
            prefix,
            keys,
            asked: RefCell::default(),
        }
    }

    /// Puts in the values that keys have where a file does not name them; `defaults` is a JSON object.
    pub(crate) fn with_defaults(mut self, defaults: &'static str) -> Self {
        let Ok(Value::Object(defaults)) = serde_json::from_str(defaults) else {
            unreachable!("defaults are a JSON object: a test reads them all");
        };
        for (key, value) in defaults {
            self.keys.entry(key).or_insert(value);
        }
        self
    }

    /// A key's value, if it has one that is not null.
    pub(crate) fn get(&self, key: &str) -> Option<&Value> {
        self.asked.borrow_mut().insert(key.into());
        self.keys.get(key).filter(|value| !value.is_null())
    }

    /// A whole number that fits 32 bits, as the metadata of GGUF have them.
    pub(crate) fn whole(&self, key: &str) -> Result<Option<u32>, ModelError> {
        let Some(value) = self.get(key) else {
            return Ok(None);
        };
        match value.as_u64().and_then(|number| u32::try_from(number).ok()) {
            Some(number) => Ok(Some(number)),
            None => Err(self.wrong(key, value, "a whole number of at most 32 bits")),
        }
    }

    /// A whole number of at least 1.
    pub(crate) fn positive(&self, key: &str) -> Result<Option<u32>, ModelError> {
        match self.whole(key)? {
            Some(0) => Err(self.wrong(key, &Value::from(0), "at least 1")),
            number => Ok(number),
        }
    }

    /// A whole number of at least 1 that must be there.
    pub(crate) fn require_positive(&self, key: &str) -> Result<u32, ModelError> {
        self.positive(key)?
            .ok_or_else(|| self.missing(key, "a whole number of at least 1"))
    }

    /// A finite number, at least 0.
    pub(crate) fn number(&self, key: &str) -> Result<Option<f64>, ModelError> {
        let Some(value) = self.get(key) else {
            return Ok(None);
        };
        let fits = |number: &f64| *number >= 0.0 && (*number as f32).is_finite();
        match value.as_f64().filter(fits) {
            Some(number) => Ok(Some(number)),
            None => Err(self.wrong(key, value, "a number, not negative")),
        }
    }

    /// A finite number above 0, also as `f32`.
    pub(crate) fn above_zero(&self, key: &str) -> Result<Option<f64>, ModelError> {
        match self.number(key)? {
            Some(number) if number as f32 == 0.0 => {
                Err(self.wrong(key, &Value::from(number), "a number above 0"))
            }
            number => Ok(number),
        }
    }

    /// A finite number above 0 that must be there.
    pub(crate) fn require_above_zero(&self, key: &str) -> Result<f64, ModelError> {
        self.above_zero(key)?
            .ok_or_else(|| self.missing(key, "a number above 0"))
    }

    /// `count` finite numbers above 0 that must be there.
    pub(crate) fn numbers(&self, key: &str, count: usize) -> Result<Vec<f32>, ModelError> {
        let expected = format!("{count} numbers above 0, one for each pair that is turned");
        let value = self
            .get(key)
            .ok_or_else(|| self.missing(key, expected.as_str()))?;
        let Some(list) = value.as_array() else {
            return Err(self.wrong(key, value, &expected));
        };
        if list.len() != count {
            return Err(self.differs(key, format!("{} of them", list.len()), &expected));
        }
        let number = |value: &Value| {
            let number = value.as_f64().map(|number| number as f32);
            number
                .filter(|number| number.is_finite() && *number > 0.0)
                .ok_or_else(|| self.wrong(key, value, &expected))
        };
        list.iter().map(number).collect()
    }

    /// True or false.
    pub(crate) fn flag(&self, key: &str) -> Result<Option<bool>, ModelError> {
        let value = self.get(key);
        match value.map(|value| (value, value.as_bool())) {
            None => Ok(None),
            Some((_, Some(flag))) => Ok(Some(flag)),
            Some((value, None)) => Err(self.wrong(key, value, "true or false")),
        }
    }

    /// A string.
    pub(crate) fn text(&self, key: &str) -> Result<Option<&str>, ModelError> {
        let value = self.get(key);
        match value.map(|value| (value, value.as_str())) {
            None => Ok(None),
            Some((_, Some(text))) => Ok(Some(text)),
            Some((value, None)) => Err(self.wrong(key, value, "a string")),
        }
    }

    /// An object, as a section of its own.
    pub(crate) fn section(&self, key: &str) -> Result<Option<Section>, ModelError> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::Object(keys)) => Ok(Some(Self::new(
                &self.path,
                format!("{}{key}.", self.prefix),
                keys.clone(),
            ))),
            Some(value) => Err(self.wrong(key, value, "an object")),
        }
    }

    /// The keys that are there with a value and were not asked for.
    pub(crate) fn unasked(&self) -> Vec<(&str, &Value)> {
        let asked = self.asked.borrow();
        self.keys
            .iter()
            .filter(|(key, value)| !value.is_null() && !asked.contains(key.as_str()))
            .map(|(key, value)| (key.as_str(), value))
            .collect()
    }

    /// Says that a key should not have this value.
    pub(crate) fn wrong(&self, key: &str, found: &Value, expected: &str) -> ModelError {
        self.differs(key, shown(found), expected)
    }

    /// Says what was found at a key, in words, and what was expected.
    pub(crate) fn differs(&self, key: &str, found: String, expected: &str) -> ModelError {
        ModelError::Key {
            path: self.path.clone(),
            key: format!("{}{}", self.prefix, escaped(key)),
            found,
            expected: expected.into(),
        }
    }

    /// Says that a key has no value.
    pub(crate) fn missing(&self, key: &str, expected: &str) -> ModelError {
        self.differs(key, "nothing".into(), expected)
    }
}

/// A value, made fit for a one-line message.
pub(crate) fn shown(value: &Value) -> String {
    match value {
        Value::Array(list) => format!("a list of {}", list.len()),
        Value::Object(keys) => format!("an object of {} keys", keys.len()),
        Value::String(text) => format!("\"{}\"", escaped(text)),
        other => escaped(&other.to_string()),
    }
}

/// Text from a file, made fit for a one-line message.
pub(crate) fn escaped(text: &str) -> String {
    let mut out: String = text
        .chars()
        .take(SHOWN)
        .flat_map(char::escape_debug)
        .collect();
    if text.chars().nth(SHOWN).is_some() {
        out.push('…');
    }
    out
}
