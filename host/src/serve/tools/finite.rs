//! Whether a JSON schema has any finite text: one that requires itself within itself has none, and a model that is held to it
//! writes for ever. Parts that have none, in a schema that has one, are taken out of it: nothing finite can have them, so that what
//! satisfies the schema is the same, and a model can't begin with what it could never end.
//!
//! What is said here to have none has none; of schemas with more than is looked at here, that they may have one.

use serde_json::Value;
use std::collections::HashMap;

/// How often all references are looked at; each time those are known that need one more step.
const ROUNDS: usize = 100;

/// Where a schema has no finite text, as a JSON pointer; `None` where it may have one.
pub(super) fn endless(root: &Value) -> Option<String> {
    place(root, &known(root)?, String::new())
}

/// A schema without the parts that have no finite text: none satisfies what stands in their place. One that has none itself stays as
/// it is. Formats that the compiler doesn't know are left out as well: they are annotations, as JSON Schema has it.
pub(super) fn pruned(mut root: Value) -> Value {
    annotations(&mut root);
    let known = known(&root).filter(|known| known.values().any(|finite| !finite));
    let Some(known) = known else {
        return root;
    };
    let known: HashMap<String, bool> = known
        .iter()
        .map(|(name, is)| ((*name).to_owned(), *is))
        .collect();
    let known = known
        .iter()
        .map(|(name, is)| (name.as_str(), *is))
        .collect();
    if finite(&root, &known) {
        prune(&mut root, &known);
    }
    root
}

/// Formats that texts are held to.
const FORMATS: [&str; 10] = [
    "date-time",
    "time",
    "date",
    "duration",
    "email",
    "hostname",
    "ipv4",
    "ipv6",
    "uuid",
    "uri",
];

/// Leaves out formats that are not among these. What stands for values is no schema and stays.
fn annotations(schema: &mut Value) {
    match schema {
        Value::Object(object) => {
            let known = |format: &Value| format.as_str().is_none_or(|it| FORMATS.contains(&it));
            if object.get("format").is_some_and(|format| !known(format)) {
                object.remove("format");
            }
            for (key, part) in object {
                match key.as_str() {
                    "enum" | "const" | "default" | "examples" => {}
                    // Names of their own, one of which may be `enum`.
                    "properties" | "patternProperties" | "$defs" | "definitions" => {
                        let parts = part.as_object_mut().into_iter().flatten();
                        parts.for_each(|(_, part)| annotations(part));
                    }
                    _ => annotations(part),
                }
            }
        }
        Value::Array(parts) => parts.iter_mut().for_each(annotations),
        _ => {}
    }
}

/// Takes such parts out of a schema that has a finite text.
fn prune(schema: &mut Value, known: &HashMap<&str, bool>) {
    let one = |part: &mut Value| match finite(part, known) {
        true => prune(part, known),
        false => *part = Value::Bool(false),
    };
    for (key, value) in schema.as_object_mut().into_iter().flatten() {
        match (key.as_str(), value) {
            ("properties" | "patternProperties", Value::Object(parts)) => {
                parts.values_mut().for_each(one)
            }
            ("anyOf" | "oneOf" | "prefixItems", Value::Array(parts)) => {
                parts.iter_mut().for_each(one);
            }
            ("items" | "additionalProperties", part) => one(part),
            // What nothing refers to any more has no effect.
            ("$defs" | "definitions", Value::Object(parts)) => {
                let parts = parts.values_mut();
                parts
                    .filter(|part| finite(part, known))
                    .for_each(|part| prune(part, known));
            }
            // A part of these that has no end leaves the whole none.
            ("allOf", Value::Array(parts)) => {
                parts.iter_mut().for_each(|part| prune(part, known));
            }
            _ => {}
        }
    }
}

/// Which references lead to a schema with a finite text; `None` where that is too far to see.
fn known(root: &Value) -> Option<HashMap<&str, bool>> {
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
            return Some(known);
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
    fn parts_that_have_no_end_are_taken_out() {
        let endless = json!({ "$ref": "#/$defs/loop" });
        let with = |mut schema: Value| {
            schema["$defs"] = json!({ "loop": nested(json!({ "$ref": "#/$defs/loop" })), "fine": { "type": "object", "properties": { "x": { "$ref": "#/$defs/loop" } } } });
            schema
        };
        let text = json!({ "type": "string" });
        for (schema, place, expected) in [
            (
                json!({ "type": "object", "properties": { "a": endless, "b": text } }),
                "/properties",
                json!({ "a": false, "b": text }),
            ),
            (
                json!({ "type": "array", "items": endless }),
                "/items",
                json!(false),
            ),
            (
                json!({ "type": "array", "minItems": 1, "prefixItems": [text, nested(endless.clone())] }),
                "/prefixItems",
                json!([text, false]),
            ),
            (
                json!({ "anyOf": [endless, text] }),
                "/anyOf",
                json!([false, text]),
            ),
            (
                json!({ "oneOf": [nested(endless.clone()), text] }),
                "/oneOf",
                json!([false, text]),
            ),
            (
                json!({ "type": "object", "additionalProperties": endless }),
                "/additionalProperties",
                json!(false),
            ),
            (
                json!({ "type": ["object", "null"], "properties": { "a": endless }, "required": ["a"] }),
                "/properties/a",
                json!(false),
            ),
            (
                json!({ "$ref": "#/$defs/fine" }),
                "/$defs/fine/properties/x",
                json!(false),
            ),
            (
                nested(json!({ "allOf": [{ "type": "object", "properties": { "a": endless } }] })),
                "/properties/a/allOf/0/properties/a",
                json!(false),
            ),
        ] {
            let schema = with(schema);
            let pruned = pruned(schema.clone());
            assert_eq!(pruned.pointer(place), Some(&expected), "{schema}");
            assert_eq!(super::endless(&pruned), None, "{schema}");
        }
        // What ends, and what has no end at all, stays as it is.
        for schema in [
            json!({ "type": "object", "properties": { "a": { "$ref": "#" } } }),
            json!({ "type": "array", "items": { "$ref": "#" } }),
            nested(json!({ "$ref": "#" })),
            json!({ "$ref": "#" }),
            json!([]),
            json!(true),
        ] {
            assert_eq!(pruned(schema.clone()), schema);
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
    #[test]
    fn formats_that_are_not_known_are_annotations() {
        let schema = json!({ "type": "object", "properties": {
            "format": { "type": "string", "format": "path" },
            "enum": { "anyOf": [{ "type": "string", "format": "uuid" }, { "type": "string", "format": "uuid4" }] },
            "fixed": { "const": { "format": "path" } },
        } });
        let pruned = pruned(schema);
        assert_eq!(
            pruned["properties"],
            json!({
                "format": { "type": "string" },
                "enum": { "anyOf": [{ "type": "string", "format": "uuid" }, { "type": "string" }] },
                "fixed": { "const": { "format": "path" } },
            })
        );
        for format in FORMATS {
            let schema = json!({ "type": "string", "format": format });
            let faults = super::super::check::schemas(vec![schema]);
            assert!(faults[0].is_none(), "{format}: {faults:?}");
        }
    }
}
