//! Arguments that are not written as JSON become JSON of the types that the tool's schema knows.

use super::literal::{self, PYTHON};
use serde_json::Value;

/// A tool that may be called.
#[derive(Clone, Debug, Default)]
pub(in crate::serve) struct Signature {
    pub(super) name: String,
    /// The schema of its arguments.
    pub(super) schema: Value,
}

/// Which types a value may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Kinds(u8);

const STRING: u8 = 1;
const NUMBER: u8 = 2;
const BOOLEAN: u8 = 4;
const NULL: u8 = 8;
const ARRAY: u8 = 16;
const OBJECT: u8 = 32;
const ANY: u8 = 63;

/// How deep references and choices are followed.
const DEEP: usize = 16;

impl Kinds {
    /// Nothing but a text.
    pub(super) fn only_text(self) -> bool {
        self.0 == STRING
    }

    /// A text among others.
    pub(super) fn text(self) -> bool {
        self.0 & STRING != 0
    }

    pub(super) fn boolean(self) -> bool {
        self.0 & BOOLEAN != 0
    }

    pub(super) fn null(self) -> bool {
        self.0 & NULL != 0
    }

    /// Anything besides texts, booleans and null.
    pub(super) fn others(self) -> bool {
        self.0 & (NUMBER | ARRAY | OBJECT) != 0
    }

    pub(super) fn number(self) -> bool {
        self.0 & NUMBER != 0
    }

    pub(super) fn list(self) -> bool {
        self.0 & ARRAY != 0
    }

    pub(super) fn object(self) -> bool {
        self.0 & OBJECT != 0
    }

    fn take(self, value: &Value) -> bool {
        self.0 & kind(value) != 0
    }
}

fn kind(value: &Value) -> u8 {
    match value {
        Value::Null => NULL,
        Value::Bool(_) => BOOLEAN,
        Value::Number(_) => NUMBER,
        Value::String(_) => STRING,
        Value::Array(_) => ARRAY,
        Value::Object(_) => OBJECT,
    }
}

/// The types that values of parameter `key` may have.
pub(super) fn kinds(root: &Value, key: &str) -> Kinds {
    let known = parameter(root, key, DEEP);
    Kinds(known.map_or(ANY, |schema| of_schema(root, schema, DEEP)))
}

/// The schema of a parameter.
fn parameter<'a>(root: &'a Value, key: &str, deep: usize) -> Option<&'a Value> {
    find(root, root, key, deep)
}

fn find<'a>(root: &'a Value, schema: &'a Value, key: &str, deep: usize) -> Option<&'a Value> {
    let deep = deep.checked_sub(1)?;
    let here = schema["properties"].get(key);
    let there = || find(root, referred(root, schema)?, key, deep);
    let among = || {
        let all = ["allOf", "anyOf", "oneOf"];
        let all = all.iter().filter_map(|name| schema[name].as_array());
        all.flatten().find_map(|one| find(root, one, key, deep))
    };
    here.or_else(there).or_else(among)
}

/// A schema, or what it refers to in the end.
pub(super) fn resolved<'a>(root: &'a Value, mut schema: &'a Value) -> &'a Value {
    for _ in 0..DEEP {
        match referred(root, schema) {
            Some(there) => schema = there,
            None => break,
        }
    }
    schema
}

/// What a schema refers to.
fn referred<'a>(root: &'a Value, schema: &Value) -> Option<&'a Value> {
    root.pointer(schema["$ref"].as_str()?.strip_prefix('#')?)
}

fn of_schema(root: &Value, schema: &Value, deep: usize) -> u8 {
    let Some(deep) = deep.checked_sub(1) else {
        return ANY;
    };
    if let Some(there) = referred(root, schema) {
        return of_schema(root, there, deep);
    }
    if let Some(value) = schema.get("const") {
        return kind(value);
    }
    if let Some(values) = schema["enum"].as_array() {
        return values.iter().fold(0, |all, value| all | kind(value));
    }
    let named = |name: &Value| match name.as_str() {
        Some("string") => STRING,
        Some("integer" | "number") => NUMBER,
        Some("boolean") => BOOLEAN,
        Some("null") => NULL,
        Some("array") => ARRAY,
        Some("object") => OBJECT,
        _ => ANY,
    };
    let mut kinds = match &schema["type"] {
        Value::Null => ANY,
        Value::Array(many) => many.iter().fold(0, |all, one| all | named(one)),
        one => named(one),
    };
    for name in ["anyOf", "oneOf"] {
        if let Some(all) = schema[name].as_array() {
            kinds &= all
                .iter()
                .fold(0, |any, one| any | of_schema(root, one, deep));
        }
    }
    for one in schema["allOf"].as_array().into_iter().flatten() {
        kinds &= of_schema(root, one, deep);
    }
    kinds
}

/// A value that was written as bare text, as JSON: what it is where the schema knows only texts, else what it looks like, if
/// that may be.
pub(super) fn bare(text: &str, kinds: Kinds) -> String {
    if !kinds.only_text() {
        let trimmed = text.trim();
        let read = serde_json::from_str(trimmed).ok();
        let read = read.or_else(|| literal::read(trimmed, &PYTHON));
        if let Some(value) = read.filter(|value| kinds.take(value)) {
            // Numbers as they were written.
            return match value {
                Value::Number(_) => trimmed.to_owned(),
                value => value.to_string(),
            };
        }
    }
    Value::from(text).to_string()
}

/// A value that was written as a literal, as JSON: what was no text becomes one where the schema knows nothing else, and
/// what was becomes what it looks like where no text may be.
pub(super) fn literal(value: &Value, written: &str, kinds: Kinds) -> String {
    match value {
        Value::String(text) if !kinds.text() => bare(text, kinds),
        Value::String(_) => value.to_string(),
        other if kinds.only_text() && !kinds.take(other) => Value::from(written).to_string(),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn schema() -> Value {
        json!({
            "type": "object",
            "properties": {
                "text": { "type": "string" },
                "count": { "type": "integer" },
                "on": { "type": "boolean" },
                "maybe": { "type": ["string", "null"] },
                "either": { "anyOf": [{ "type": "string" }, { "$ref": "#/$defs/n" }] },
                "list": { "type": "array" },
                "level": { "enum": [1, "high"] },
                "loop": { "$ref": "#/properties/loop" },
                "free": {},
            },
            "allOf": [{ "properties": { "inner": { "$ref": "#/$defs/n" } } }],
            "$defs": { "n": { "type": "number" } },
        })
    }

    #[test]
    fn bare_text_becomes_what_the_schema_knows() {
        let schema = schema();
        for (key, text, expected) in [
            ("text", "7", "\"7\""),
            ("text", " a\n\"b\"", "\" a\\n\\\"b\\\"\""),
            ("text", "", "\"\""),
            ("count", "7", "7"),
            ("count", " 7 \n", "7"),
            ("count", "1e2", "1e2"),
            ("count", "seven", "\"seven\""),
            ("on", "True", "true"),
            ("on", "false", "false"),
            ("on", "yes", "\"yes\""),
            ("maybe", "None", "null"),
            ("maybe", "null", "null"),
            ("maybe", "7", "\"7\""),
            ("either", "7", "7"),
            ("either", "seven", "\"seven\""),
            ("list", "['a', 1]", "[\"a\",1]"),
            ("list", "[\"a\"", "\"[\\\"a\\\"\""),
            ("level", "high", "\"high\""),
            ("level", "1", "1"),
            ("inner", "0.5", "0.5"),
            ("loop", "[1]", "[1]"),
            ("free", "{\"a\": 1}", "{\"a\":1}"),
            ("unknown", "1", "1"),
            ("unknown", "a b", "\"a b\""),
        ] {
            assert_eq!(bare(text, kinds(&schema, key)), expected, "{key}: {text:?}");
        }
    }

    #[test]
    fn literals_become_what_the_schema_knows() {
        let schema = schema();
        for (key, value, expected) in [
            ("text", json!(7), "\"7\""),
            ("text", json!("7"), "\"7\""),
            ("count", json!("7"), "7"),
            ("count", json!(7), "7"),
            ("on", json!("true"), "true"),
            ("maybe", json!(null), "null"),
            ("list", json!([1]), "[1]"),
            ("unknown", json!("x"), "\"x\""),
        ] {
            let written = value.to_string();
            let read = literal(&value, &written, kinds(&schema, key));
            assert_eq!(read, expected, "{key}: {value}");
        }
    }
}
