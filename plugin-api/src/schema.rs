//! Which numbers of a JSON schema no compiler of grammars here can hold a text to.
//!
//! Bounds become whole numbers of 64 bits on the way, and values floats: a text would be held to another number, and a bound of
//! -2^63 has the compiler (`llguidance` 1.9) call itself without end. So these are refused before it sees them.

use serde_json::Value;

/// Whole numbers up to this size are themselves as floats.
const EXACT: u64 = 1 << 53;
/// 2^63.
const LARGEST: f64 = 9_223_372_036_854_775_808.0;

/// The first number of a schema that a text can't be held to: its place as a JSON pointer, and what is wrong with it.
///
/// ```
/// use backplane_plugin_api::schema::unheld_number;
/// use serde_json::json;
///
/// assert_eq!(unheld_number(&json!({ "const": 7, "maximum": i64::MAX })), None);
/// let (pointer, why) = unheld_number(&json!({ "items": { "enum": [1, 9_007_199_254_740_993_i64] } })).unwrap();
/// assert_eq!(pointer, "/items/enum/1");
/// assert!(why.starts_with("9007199254740993 is"));
/// ```
pub fn unheld_number(schema: &Value) -> Option<(String, String)> {
    let Value::Object(parts) = schema else {
        return within(schema, unheld_number);
    };
    parts.iter().find_map(|(key, part)| {
        let found = match (key.as_str(), part) {
            // Said of texts, and nothing that one is held to.
            ("default" | "example" | "examples", _) => None,
            // Names of their own, one of which may be `enum`.
            ("properties" | "patternProperties" | "$defs" | "definitions", _) => {
                within(part, unheld_number)
            }
            ("const" | "enum", _) => unheld_value(part),
            (_, Value::Number(bound)) => {
                let (bound, least) = (bound.as_f64()?, key.to_lowercase().ends_with("minimum"));
                let why = "is beyond what bounds may be: above -2^63, and minima below 2^63";
                let beyond = bound <= -LARGEST || least && bound >= LARGEST;
                beyond.then(|| (String::new(), format!("{part} {why}")))
            }
            _ => unheld_number(part),
        };
        found.map(|(pointer, why)| (step(key) + &pointer, why))
    })
}

/// The first number of a value that a text is to have which is not itself as a float.
fn unheld_value(value: &Value) -> Option<(String, String)> {
    match value {
        Value::Number(number) => {
            // 2^53 + 1 would be 2^53 as a float.
            let large = match number.as_i64() {
                Some(whole) => whole.unsigned_abs() > EXACT,
                None => number.as_f64().is_none_or(|it| it.abs() > EXACT as f64),
            };
            let why = "is larger than numbers that a text has to have may be: 2^53";
            large.then(|| (String::new(), format!("{number} {why}")))
        }
        _ => within(value, unheld_value),
    }
}

/// Looks into the parts of a value.
fn within(value: &Value, look: fn(&Value) -> Option<(String, String)>) -> Option<(String, String)> {
    let at =
        |name: &str, part: &Value| look(part).map(|(pointer, why)| (step(name) + &pointer, why));
    match value {
        Value::Array(parts) => {
            let mut parts = parts.iter().enumerate();
            parts.find_map(|(index, part)| at(&index.to_string(), part))
        }
        Value::Object(parts) => parts.iter().find_map(|(name, part)| at(name, part)),
        _ => None,
    }
}

/// A step of a JSON pointer.
fn step(name: &str) -> String {
    format!("/{}", name.replace('~', "~0").replace('/', "~1"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn numbers_that_are_held_pass_and_others_are_told_with_their_place() {
        for schema in [
            json!(true),
            json!({ "const": 9_007_199_254_740_992_i64 }),
            json!({ "enum": [-1.5, 1e15, -9_007_199_254_740_992_i64] }),
            json!({ "minimum": i64::MIN + 1024, "maximum": u64::MAX }),
            json!({ "exclusiveMaximum": 1e300, "multipleOf": 0.25 }),
            json!({ "default": i64::MIN, "examples": [{ "minimum": i64::MIN }] }),
            json!({ "properties": { "minimum": { "type": "integer" }, "enum": { "maximum": u64::MAX } } }),
        ] {
            assert_eq!(unheld_number(&schema), None, "{schema}");
        }
        for (schema, place) in [
            (json!({ "const": i64::MIN }), "/const"),
            (json!({ "const": i64::MIN + 1 }), "/const"),
            (json!({ "const": 9_007_199_254_740_993_i64 }), "/const"),
            (
                json!({ "enum": [0, { "a": [-9_007_199_254_740_993_i64] }] }),
                "/enum/1/a/0",
            ),
            (json!({ "const": u64::MAX }), "/const"),
            (json!({ "const": 1e30 }), "/const"),
            (json!({ "minimum": i64::MIN }), "/minimum"),
            (json!({ "maximum": -9.3e18 }), "/maximum"),
            (json!({ "exclusiveMinimum": 1e19 }), "/exclusiveMinimum"),
            (
                json!({ "properties": { "a/b~": { "anyOf": [{}, { "minimum": 1e30 }] } } }),
                "/properties/a~1b~0/anyOf/1/minimum",
            ),
            (
                json!({ "properties": { "enum": { "const": u64::MAX } } }),
                "/properties/enum/const",
            ),
            (
                json!([{ "items": { "maximum": i64::MIN } }]),
                "/0/items/maximum",
            ),
        ] {
            let (pointer, why) = unheld_number(&schema).unwrap_or_else(|| panic!("{schema}"));
            assert_eq!(pointer, place, "{schema}");
            let found = schema.pointer(&pointer).expect("it is there");
            assert!(why.starts_with(&found.to_string()), "{schema}: {why}");
        }
    }
}
