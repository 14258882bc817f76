//! Values of fields, each with the error that says what was expected.

use serde_json::Value;

/// What was expected, and the beginning of what was found.
pub(in crate::serve) fn expected(what: &str, found: &Value) -> String {
    let shown: String = found.to_string().chars().take(40).collect();
    format!("expected {what}, found {shown}")
}

/// A text.
pub(super) fn text(value: &Value) -> Result<String, String> {
    let text = value.as_str().map(str::to_owned);
    text.ok_or_else(|| expected("a text", value))
}

/// One of some words: its number.
pub(super) fn choice(value: &Value, words: &[&str]) -> Result<usize, String> {
    let found = words.iter().position(|word| value == word);
    found.ok_or_else(|| expected(&words.join(" or "), value))
}

/// True or false.
pub(super) fn boolean(value: &Value) -> Result<bool, String> {
    value
        .as_bool()
        .ok_or_else(|| expected("true or false", value))
}

/// A number within bounds.
pub(super) fn number(value: &Value, least: f32, most: f32) -> Result<f32, String> {
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
            expected(&what, value)
        })
}

/// A whole number within bounds.
pub(super) fn whole(value: &Value, least: u32, most: u32) -> Result<u32, String> {
    let number = value.as_u64().and_then(|number| u32::try_from(number).ok());
    number
        .filter(|number| (least..=most).contains(number))
        .ok_or_else(|| expected(&format!("a whole number from {least} to {most}"), value))
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
