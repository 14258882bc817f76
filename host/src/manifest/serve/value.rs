//! What a setting may hold, and how it is read: out of a manifest, a variable or a flag, by the same rule.

use crate::manifest::{Bytes, Limit};
use serde::{Serialize, Serializer};
use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// A time longer than this is for ever.
const MOST_KEEP: Duration = Duration::from_secs(100 * 365 * 24 * 3600);

/// How long a model stays loaded that nobody asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum KeepAlive {
    /// So long after its last reply; 0 unloads it with that.
    For(Duration),
    /// Until the memory is needed, or the server stops.
    Forever,
}

impl KeepAlive {
    /// The word of [`KeepAlive::Forever`].
    pub const FOREVER: &'static str = "forever";

    /// Reads seconds (`300`), a time (`5m`, `1h30m`, `90s`), `0`, or `forever`, for which anything below 0 stands as well; `None`
    /// where it is none of these. It is what Ollama's clients send as `keep_alive`.
    pub fn parse(text: &str) -> Option<Self> {
        let text = text.trim();
        if text == Self::FOREVER {
            return Some(Self::Forever);
        }
        let (below, text) = match text.strip_prefix('-') {
            Some(rest) => (true, rest),
            None => (false, text),
        };
        let seconds = match text.parse::<u64>() {
            Ok(seconds) => seconds as f64,
            Err(_) => parts(text)?,
        };
        if below && seconds > 0.0 || seconds > MOST_KEEP.as_secs_f64() {
            return Some(Self::Forever);
        }
        Some(Self::For(Duration::from_secs_f64(seconds)))
    }

    /// The same out of a request: a text, or a number of seconds.
    pub fn from_json(value: &serde_json::Value) -> Option<Self> {
        match value {
            serde_json::Value::String(text) => Self::parse(text),
            serde_json::Value::Number(number) => {
                let seconds = number.as_f64()?;
                match seconds {
                    ..0.0 => Some(Self::Forever),
                    _ if seconds > MOST_KEEP.as_secs_f64() => Some(Self::Forever),
                    _ => Some(Self::For(Duration::from_secs_f64(seconds))),
                }
            }
            _ => None,
        }
    }
}

/// A time of several parts, `1h30m` or `1.5h`, in seconds.
fn parts(mut text: &str) -> Option<f64> {
    const UNITS: &[(&str, f64)] = &[("ms", 0.001), ("h", 3600.0), ("m", 60.0), ("s", 1.0)];
    let mut seconds = 0.0;
    if text.is_empty() {
        return None;
    }
    while !text.is_empty() {
        let digits = text
            .bytes()
            .take_while(|byte| byte.is_ascii_digit() || *byte == b'.')
            .count();
        let number: f64 = text[..digits].parse().ok()?;
        text = &text[digits..];
        let (unit, size) = UNITS.iter().find(|(unit, _)| text.starts_with(unit))?;
        seconds += number * size;
        text = &text[unit.len()..];
    }
    Some(seconds)
}

impl fmt::Display for KeepAlive {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Forever => f.pad(Self::FOREVER),
            Self::For(Duration::ZERO) => f.pad("0"),
            Self::For(time) => write!(f, "{}", Limit(Some(*time))),
        }
    }
}

impl Serialize for KeepAlive {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// How much memory models may take together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MemoryBudget {
    /// Four fifths of what is available when the server starts, where the system tells that.
    #[default]
    Auto,
    /// So much.
    Bytes(Bytes),
    /// As much as they want.
    Off,
}

impl MemoryBudget {
    fn parse(text: &str) -> Option<Self> {
        match text {
            "auto" => Some(Self::Auto),
            "off" => Some(Self::Off),
            size => Bytes::parse(size).map(Self::Bytes),
        }
    }
}

impl fmt::Display for MemoryBudget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => f.pad("auto"),
            Self::Bytes(bytes) => bytes.fmt(f),
            Self::Off => f.pad("off"),
        }
    }
}

/// Who gets at the metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetricsFor {
    /// Who has a key, where keys are asked for.
    Keys,
    /// All.
    All,
    /// Nobody: there are none.
    Off,
}

impl MetricsFor {
    /// Their words, in order.
    pub const WORDS: &'static [&'static str] = &["keys", "all", "off"];
    const ALL: [Self; 3] = [Self::Keys, Self::All, Self::Off];
}

impl Held for MetricsFor {
    fn of(value: Value) -> Option<Self> {
        let Value::Text(text) = value else {
            return None;
        };
        let at = Self::WORDS.iter().position(|word| *word == text)?;
        Self::ALL.get(at).copied()
    }

    fn shown(&self) -> Option<Value> {
        Some(Value::Text(Self::WORDS[*self as usize].to_owned()))
    }
}

/// What a setting holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A text that is not empty.
    Text,
    /// One of these words.
    Word(&'static [&'static str]),
    /// A whole number in a range.
    Whole(u64, u64),
    /// True or false.
    Truth,
    /// A time; seconds where no unit is given.
    Time {
        /// Whether it may be 0.
        zero: bool,
        /// Whether it may be `off`.
        off: bool,
    },
    /// A size.
    Size,
    /// How long a model stays.
    Keep,
    /// How much memory there is for models.
    Memory,
    /// A file or folder: beside the manifest where that names it, else where the program runs.
    File,
    /// Several texts; separated by commas where they are one text.
    Texts,
}

/// A value that a setting was given.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// Of [`Kind::Text`] and [`Kind::Word`].
    Text(String),
    /// Of [`Kind::Whole`].
    Whole(u64),
    /// Of [`Kind::Truth`].
    Truth(bool),
    /// Of [`Kind::Time`].
    Time(Option<Duration>),
    /// Of [`Kind::Size`].
    Size(Bytes),
    /// Of [`Kind::Keep`].
    Keep(KeepAlive),
    /// Of [`Kind::Memory`].
    Memory(MemoryBudget),
    /// Of [`Kind::File`].
    File(PathBuf),
    /// Of [`Kind::Texts`].
    Texts(Vec<String>),
}

impl Kind {
    /// What is expected, for messages.
    pub fn expected(self) -> String {
        match self {
            Self::Text => "a text that is not empty".to_owned(),
            Self::Word(words) => {
                let words: Vec<String> = words.iter().map(|word| format!("{word:?}")).collect();
                format!("one of {}", words.join(", "))
            }
            Self::Whole(least, most) => format!("a whole number from {least} to {most}"),
            Self::Truth => "true or false".to_owned(),
            Self::Time { zero, off } => {
                let mut text =
                    "a time such as \"30s\", \"500ms\" or \"10m\", up to a week".to_owned();
                text.push_str(if zero { ", or 0" } else { "" });
                text.push_str(if off { ", or \"off\"" } else { "" });
                text
            }
            Self::Size => "a size such as \"16MiB\"".to_owned(),
            Self::Keep => "a time such as \"5m\", 0 or \"forever\"".to_owned(),
            Self::Memory => "a size such as \"8GiB\", \"auto\" or \"off\"".to_owned(),
            Self::File => "a path".to_owned(),
            Self::Texts => "texts".to_owned(),
        }
    }

    /// What stands for its value in a help text.
    pub fn placeholder(self) -> &'static str {
        match self {
            Self::Text => "TEXT",
            Self::Word(_) => "WORD",
            Self::Whole(..) => "N",
            Self::Truth => "true|false",
            Self::Time { .. } | Self::Keep => "TIME",
            Self::Size | Self::Memory => "SIZE",
            Self::File => "PATH",
            Self::Texts => "TEXT,...",
        }
    }

    /// Reads it out of a variable or a flag. A relative path stays relative.
    ///
    /// # Errors
    /// What was expected.
    pub fn read(self, text: &str) -> Result<Value, String> {
        let text = text.trim();
        let value = match self {
            Self::Text => (!text.is_empty()).then(|| Value::Text(text.to_owned())),
            Self::Word(words) => words.contains(&text).then(|| Value::Text(text.to_owned())),
            Self::Whole(least, most) => text
                .parse()
                .ok()
                .filter(|number| (least..=most).contains(number))
                .map(Value::Whole),
            Self::Truth => match text {
                "true" | "1" | "yes" | "on" => Some(Value::Truth(true)),
                "false" | "0" | "no" | "off" => Some(Value::Truth(false)),
                _ => None,
            },
            Self::Time { zero, off } => time(text, zero, off).map(Value::Time),
            Self::Size => Bytes::parse(text).map(Value::Size),
            Self::Keep => KeepAlive::parse(text).map(Value::Keep),
            Self::Memory => MemoryBudget::parse(text).map(Value::Memory),
            Self::File => (!text.is_empty()).then(|| Value::File(PathBuf::from(text))),
            Self::Texts => {
                let texts = text.split(',').map(|text| text.trim().to_owned());
                let texts: Vec<String> = texts.filter(|text| !text.is_empty()).collect();
                (!texts.is_empty()).then_some(Value::Texts(texts))
            }
        };
        value.ok_or_else(|| format!("expected {}", self.expected()))
    }

    /// Reads it out of a manifest, where numbers are numbers; paths are relative to `folder`. `None`: not what was expected.
    pub(in crate::manifest) fn of_manifest(
        self,
        value: &toml::de::DeValue<'_>,
        folder: &Path,
    ) -> Option<Value> {
        use toml::de::DeValue;
        match (self, value) {
            (Self::Truth, DeValue::Boolean(truth)) => Some(Value::Truth(*truth)),
            (Self::Whole(..) | Self::Time { .. } | Self::Keep, DeValue::Integer(_)) => {
                let number = crate::manifest::parse::integer(value)?;
                self.read(&number.to_string()).ok()
            }
            (Self::Truth | Self::Whole(..), _) => None,
            (Self::Texts, DeValue::Array(items)) => {
                let text = |item: &toml::Spanned<DeValue<'_>>| {
                    let text = item.get_ref().as_str()?.trim().to_owned();
                    (!text.is_empty()).then_some(text)
                };
                items
                    .iter()
                    .map(text)
                    .collect::<Option<_>>()
                    .map(Value::Texts)
            }
            (Self::Texts, _) => None,
            (_, DeValue::String(text)) => match self.read(text).ok()? {
                // `~` is written out where the path is used.
                Value::File(path) if path.starts_with("~") => Some(Value::File(path)),
                Value::File(path) => Some(Value::File(folder.join(path))),
                value => Some(value),
            },
            _ => None,
        }
    }
}

/// A time of this setting, in a `Some`.
#[allow(clippy::option_option)]
fn time(text: &str, zero: bool, off: bool) -> Option<Option<Duration>> {
    let seconds = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    if seconds && text.bytes().all(|byte| byte == b'0') || text == "0s" {
        return zero.then_some(Some(Duration::ZERO));
    }
    let limit = match seconds {
        true => Limit::parse(&format!("{text}s")),
        false => Limit::parse(text),
    };
    limit
        .map(|limit| limit.0)
        .filter(|time| off || time.is_some())
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Text(text) => f.write_str(text),
            Self::Whole(number) => number.fmt(f),
            Self::Truth(truth) => truth.fmt(f),
            Self::Time(Some(Duration::ZERO)) => f.write_str("0"),
            Self::Time(time) => Limit(*time).fmt(f),
            Self::Size(size) => size.fmt(f),
            Self::Keep(keep) => keep.fmt(f),
            Self::Memory(memory) => memory.fmt(f),
            Self::File(path) => path.display().fmt(f),
            Self::Texts(texts) => f.write_str(&texts.join(", ")),
        }
    }
}

impl Serialize for Value {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Whole(number) => serializer.serialize_u64(*number),
            Self::Truth(truth) => serializer.serialize_bool(*truth),
            Self::Texts(texts) => texts.serialize(serializer),
            other => serializer.collect_str(other),
        }
    }
}

/// A field that a setting is kept in.
pub(super) trait Held: Sized {
    /// Out of a value of its kind; `None` where the row names another kind than the field has.
    fn of(value: Value) -> Option<Self>;
    /// As a value; `None` where there is none.
    fn shown(&self) -> Option<Value>;
}

macro_rules! held {
    ($type:ty, $variant:ident) => {
        impl Held for $type {
            fn of(value: Value) -> Option<Self> {
                match value {
                    Value::$variant(value) => value.try_into().ok(),
                    _ => None,
                }
            }

            fn shown(&self) -> Option<Value> {
                Some(Value::$variant(self.clone().into()))
            }
        }
    };
}

held!(String, Text);
held!(u16, Whole);
held!(u32, Whole);
held!(bool, Truth);
held!(Bytes, Size);
held!(KeepAlive, Keep);
held!(MemoryBudget, Memory);
held!(PathBuf, File);

impl Held for Duration {
    fn of(value: Value) -> Option<Self> {
        match value {
            Value::Time(time) => time,
            _ => None,
        }
    }

    fn shown(&self) -> Option<Value> {
        Some(Value::Time(Some(*self)))
    }
}

impl Held for Limit {
    fn of(value: Value) -> Option<Self> {
        match value {
            Value::Time(time) => Some(Self(time)),
            _ => None,
        }
    }

    fn shown(&self) -> Option<Value> {
        Some(Value::Time(self.0))
    }
}

impl Held for Vec<String> {
    fn of(value: Value) -> Option<Self> {
        match value {
            Value::Texts(texts) => Some(texts),
            _ => None,
        }
    }

    fn shown(&self) -> Option<Value> {
        (!self.is_empty()).then(|| Value::Texts(self.clone()))
    }
}

impl<T: Held> Held for Option<T> {
    fn of(value: Value) -> Option<Self> {
        T::of(value).map(Some)
    }

    fn shown(&self) -> Option<Value> {
        self.as_ref().and_then(T::shown)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn how_long_models_stay() {
        let seconds = |seconds| KeepAlive::For(Duration::from_secs(seconds));
        for (text, expected) in [
            ("5m", seconds(300)),
            ("300", seconds(300)),
            ("1h30m", seconds(5400)),
            ("1.5h", seconds(5400)),
            ("0", seconds(0)),
            ("0s", seconds(0)),
            ("-1", KeepAlive::Forever),
            ("-1m", KeepAlive::Forever),
            ("forever", KeepAlive::Forever),
            ("99999999999999999", KeepAlive::Forever),
        ] {
            assert_eq!(KeepAlive::parse(text), Some(expected), "{text}");
            assert_eq!(
                KeepAlive::parse(&expected.to_string()),
                Some(expected),
                "{expected}"
            );
        }
        for wrong in [
            "", "x", "5x", "m", "5 m", "1..5s", "NaN", "inf", "--1", "never",
        ] {
            assert_eq!(KeepAlive::parse(wrong), None, "{wrong}");
        }
        for (json, expected) in [
            (json!("10m"), Some(seconds(600))),
            (json!(0), Some(seconds(0))),
            (json!(-1), Some(KeepAlive::Forever)),
            (
                json!(1.5),
                Some(KeepAlive::For(Duration::from_millis(1500))),
            ),
            (json!(1e300), Some(KeepAlive::Forever)),
            (json!(true), None),
            (json!([]), None),
        ] {
            assert_eq!(KeepAlive::from_json(&json), expected, "{json}");
        }
    }

    #[test]
    fn values_are_read_as_they_are_written() {
        let time = Kind::Time {
            zero: true,
            off: true,
        };
        for (kind, text, shown) in [
            (Kind::Text, " a ", "a"),
            (Kind::Word(&["a", "b"]), "b", "b"),
            (Kind::Whole(1, 9), "9", "9"),
            (Kind::Truth, "on", "true"),
            (time, "90", "90s"),
            (time, "0", "0"),
            (time, "off", "off"),
            (Kind::Size, "16MiB", "16MiB"),
            (Kind::Keep, "-1", "forever"),
            (Kind::Memory, "auto", "auto"),
            (Kind::Memory, "8GiB", "8GiB"),
            (Kind::File, "a/b", "a/b"),
            (Kind::Texts, "a, b,", "a, b"),
        ] {
            let value = kind.read(text).unwrap();
            assert_eq!(value.to_string(), shown, "{kind:?}");
            assert_eq!(kind.read(shown).unwrap(), value, "{kind:?}");
        }
        let strict = Kind::Time {
            zero: false,
            off: false,
        };
        for (kind, wrong) in [
            (Kind::Text, " "),
            (Kind::Word(&["a", "b"]), "c"),
            (Kind::Whole(1, 9), "0"),
            (Kind::Whole(0, 65535), "65536"),
            (Kind::Whole(0, 65535), "tcp://10.0.0.1:8080"),
            (Kind::Truth, "maybe"),
            (strict, "0"),
            (strict, "off"),
            (strict, "9d"),
            (Kind::Size, "16"),
            (Kind::Keep, "soon"),
            (Kind::Memory, "half"),
            (Kind::File, ""),
            (Kind::Texts, ","),
        ] {
            let said = kind.read(wrong).unwrap_err();
            assert!(said.starts_with("expected "), "{kind:?} {wrong}: {said}");
        }
    }
}
