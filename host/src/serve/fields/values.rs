//! Values of fields, each with the error that says what was expected.

use serde_json::Value;
use std::fmt;

/// What is wrong with a field: where in it, and why.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(in crate::serve) struct Amiss {
    /// The way from the field, such as `[0].function`; empty for the field itself.
    pub(in crate::serve) place: String,
    pub(in crate::serve) why: String,
}

impl Amiss {
    /// The same, seen from outside of a field or an item of an array: `.function`, `[0]`.
    pub(in crate::serve) fn inside(mut self, step: &str) -> Self {
        self.place.insert_str(0, step);
        self
    }
}

impl fmt::Display for Amiss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`{}`: {}", self.place, self.why)
    }
}

impl From<String> for Amiss {
    fn from(why: String) -> Self {
        let place = String::new();
        Self { place, why }
    }
}

/// What is wrong with a field of an object.
pub(in crate::serve) fn of_field(name: &str, why: impl Into<Amiss>) -> Amiss {
    why.into().inside(&format!(".{name}"))
}

/// What is wrong with an item of an array.
pub(in crate::serve) fn of_item(index: usize, why: impl Into<Amiss>) -> Amiss {
    why.into().inside(&format!("[{index}]"))
}

/// What was expected, and the beginning of what was found.
pub(in crate::serve) fn expected(what: &str, found: &Value) -> String {
    let shown: String = found.to_string().chars().take(40).collect();
    format!("expected {what}, found {shown}")
}

/// A text.
pub(super) fn text(value: &Value) -> Result<String, Amiss> {
    let text = value.as_str().map(str::to_owned);
    text.ok_or_else(|| expected("a text", value).into())
}

/// One of some words: its number.
pub(super) fn choice(value: &Value, words: &[&str]) -> Result<usize, Amiss> {
    let found = words.iter().position(|word| value == word);
    found.ok_or_else(|| expected(&words.join(" or "), value).into())
}

/// True or false.
pub(super) fn boolean(value: &Value) -> Result<bool, Amiss> {
    value
        .as_bool()
        .ok_or_else(|| expected("true or false", value).into())
}

/// A number within bounds.
pub(super) fn number(value: &Value, least: f32, most: f32) -> Result<f32, Amiss> {
    let number = value.as_f64();
    number
        .filter(|number| (f64::from(least)..=f64::from(most)).contains(number))
        .map(|number| number as f32)
        .ok_or_else(|| {
            let what = match (least, most) {
                (0.0, f32::MAX) => "a number from 0 to 3.4e38".to_owned(),
                (_, f32::MAX) => "a number above 0, up to 3.4e38".to_owned(),
                _ => format!("a number from {least} to {most}"),
            };
            expected(&what, value).into()
        })
}

/// A whole number within bounds.
pub(super) fn whole(value: &Value, least: u32, most: u32) -> Result<u32, Amiss> {
    let number = value.as_u64().and_then(|number| u32::try_from(number).ok());
    number
        .filter(|number| (least..=most).contains(number))
        .ok_or_else(|| expected(&format!("a whole number from {least} to {most}"), value).into())
}

/// Whether it is false.
pub(super) fn is_false(value: &Value) -> bool {
    *value == Value::Bool(false)
}

/// An array, object or text without anything in it.
pub(super) fn is_empty(value: &Value) -> bool {
    match value {
        Value::Array(items) => items.is_empty(),
        Value::Object(items) => items.is_empty(),
        Value::String(text) => text.is_empty(),
        _ => false,
    }
}
