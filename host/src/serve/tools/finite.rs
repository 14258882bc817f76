//! Whether a JSON schema has any finite text: one that requires itself within itself has none, and a model that is held to it
//! writes for ever.
//!
//! What is said here to have none has none; of schemas with more than is looked at here, that they may have one.

use serde_json::Value;
use std::collections::HashMap;

/// How often all references are looked at; each time those are known that need one more step.
const ROUNDS: usize = 100;

/// Where a schema has no finite text, as a JSON pointer; `None` where it may have one.
pub(super) fn endless(root: &Value) -> Option<String> {
    let mut known: HashMap<&str, bool> = HashMap::new();
    references(root, &mut known);
    // None has one until it is found.
    for _ in 0..ROUNDS {
        let open = known.iter().filter(|(_, finite)| !**finite);
        let open: Vec<&str> = open.map(|(name, _)| *name).collect();
        let is_finite = |name: &&str| match target(root, name) {
            Some(schema) => finite(schema, &known),
            None => true,
        };
        let found: Vec<&str> = open.into_iter().filter(is_finite).collect();
        if found.is_empty() {
            return place(root, &known, String::new());
        }
        known.extend(found.into_iter().map(|name| (name, true)));
    }
    None
}

/// Every reference within.
fn references<'a>(value: &'a Value, known: &mut HashMap<&'a str, bool>) {
    match value {
        Value::Object(object) => {
            for (key, value) in object {
                if let ("$ref", Value::String(name)) = (key.as_str(), value) {
                    known.insert(name, false);
                }
                references(value, known);
            }
        }
        Value::Array(all) => all.iter().for_each(|value| references(value, known)),
        _ => {}
    }
}

/// What a reference names, where that is a place in the schema.
fn target<'a>(root: &'a Value, name: &str) -> Option<&'a Value> {
    root.pointer(name.strip_prefix('#')?)
}

/// A part without which nothing satisfies a schema: its step of a pointer, and the ways in which it can be, each a schema.
type Part<'a> = (String, Vec<&'a Value>);

/// The parts of a schema without which nothing satisfies it.
fn needed(schema: &Value) -> Vec<Part<'_>> {
    let mut parts: Vec<Part<'_>> = Vec::new();
    let all = |name: &str| schema[name].as_array().map_or(&[][..], Vec::as_slice);
    for name in ["anyOf", "oneOf"] {
        if schema[name].is_array() {
            parts.push((String::new(), all(name).iter().collect()));
        }
    }
    let each = all("allOf").iter().enumerate();
    parts.extend(each.map(|(at, part)| (format!("/allOf/{at}"), vec![part])));
    if schema["type"] == "object" {
        for name in all("required").iter().filter_map(Value::as_str) {
            if let Some(part) = schema["properties"].get(name) {
                let name = name.replace('~', "~0").replace('/', "~1");
                parts.push((format!("/properties/{name}"), vec![part]));
            }
        }
    }
    if schema["type"] == "array" {
        let least = schema["minItems"].as_u64().unwrap_or(0);
        let first = all("prefixItems");
        let some = first.iter().enumerate().take(least.min(1000) as usize);
        parts.extend(some.map(|(at, part)| (format!("/prefixItems/{at}"), vec![part])));
        if least > first.len() as u64 && schema["items"].is_object() {
            parts.push(("/items".to_owned(), vec![&schema["items"]]));
        }
    }
    parts
}

/// Whether a schema has a finite text, as far as is known of references.
fn finite(schema: &Value, known: &HashMap<&str, bool>) -> bool {
    let of_reference = match schema["$ref"].as_str() {
        Some(name) => known.get(name).copied().unwrap_or(true),
        None => true,
    };
    // What stands beside these is a value, which is finite.
    let is_value = schema.get("enum").is_some() || schema.get("const").is_some();
    of_reference
        && (is_value
            || needed(schema)
                .iter()
                .all(|(_, ways)| ways.is_empty() || ways.iter().any(|way| finite(way, known))))
}

/// The innermost place that has none.
fn place(schema: &Value, known: &HashMap<&str, bool>, pointer: String) -> Option<String> {
    if finite(schema, known) {
        return None;
    }
    for (step, ways) in needed(schema) {
        if let ([way], false) = (ways.as_slice(), step.is_empty())
            && let Some(inner) = place(way, known, format!("{pointer}{step}"))
        {
            return Some(inner);
        }
    }
    Some(pointer)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn nested(inner: Value) -> Value {
        json!({ "type": "object", "properties": { "a": inner }, "required": ["a"] })
    }

    #[test]
    fn schemas_that_need_themselves_have_no_end() {
        let itself = json!({ "$ref": "#/$defs/a" });
        let defs = |schema: Value, a: Value| {
            let mut schema = schema;
            schema["$defs"] = json!({ "a": a });
            schema
        };
        for (schema, expected) in [
            (defs(itself.clone(), nested(itself.clone())), Some("")),
            (
                defs(nested(itself.clone()), nested(itself.clone())),
                Some("/properties/a"),
            ),
            (json!({ "$ref": "#" }), Some("")),
            (nested(json!({ "$ref": "#" })), Some("/properties/a")),
            (
                nested(json!({ "allOf": [{}, { "$ref": "#" }] })),
                Some("/properties/a/allOf/1"),
            ),
            (
                nested(json!({ "anyOf": [{ "$ref": "#" }, nested(json!({ "$ref": "#" }))] })),
                Some("/properties/a"),
            ),
            (
                json!({ "type": "array", "minItems": 1, "items": { "$ref": "#" } }),
                Some("/items"),
            ),
            (
                json!({ "type": "array", "minItems": 2, "prefixItems": [{}, { "$ref": "#" }] }),
                Some("/prefixItems/1"),
            ),
            (
                json!({ "$ref": "#/$defs/a", "$defs": { "a": { "$ref": "#/$defs/b" }, "b": { "$ref": "#/$defs/a" } } }),
                Some(""),
            ),
            // A tree, a list, and others that end.
            (
                nested(json!({ "anyOf": [{ "$ref": "#" }, { "type": "null" }] })),
                None,
            ),
            (
                nested(
                    json!({ "type": ["object", "null"], "properties": { "a": { "$ref": "#" } }, "required": ["a"] }),
                ),
                None,
            ),
            (
                json!({ "type": "object", "properties": { "a": { "$ref": "#" } } }),
                None,
            ),
            (json!({ "type": "array", "items": { "$ref": "#" } }), None),
            (
                json!({ "type": "array", "minItems": 1, "prefixItems": [{}, { "$ref": "#" }] }),
                None,
            ),
            // What has no type may be a text.
            (
                json!({ "properties": { "a": { "$ref": "#" } }, "required": ["a"] }),
                None,
            ),
            (nested(json!({ "$ref": "#/nowhere" })), None),
            (nested(json!({ "$ref": "https://example.com/a" })), None),
            (json!({}), None),
            (json!(true), None),
            (json!([]), None),
        ] {
            assert_eq!(endless(&schema).as_deref(), expected, "{schema}");
        }
    }

    #[test]
    fn long_chains_are_followed_as_far_as_they_may_be() {
        // The last has an end, so all have; those that are too far off are not said to have none.
        for length in [50, 5000] {
            let mut defs = serde_json::Map::new();
            for at in 0..length {
                let next = json!({ "$ref": format!("#/$defs/n{}", at + 1) });
                defs.insert(format!("n{at}"), nested(next));
            }
            defs.insert(format!("n{length}"), json!({ "type": "string" }));
            let schema = json!({ "$ref": "#/$defs/n0", "$defs": defs });
            assert_eq!(endless(&schema), None);
        }
    }
}
