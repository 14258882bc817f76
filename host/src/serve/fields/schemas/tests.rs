use super::*;
use crate::serve::fields::{Asked, TABLES, set};

/// Fields whose schema says less than what is read: objects and texts with rules of their own.
const LOOSE: &[&str] = &[
    "tools",
    "tool_choice",
    "text",
    "response_format",
    "format",
    "grammar",
    "keep_alive",
];

/// As much of JSON schema as is used here.
fn takes(schema: &Value, value: &Value) -> bool {
    let each = |name: &str| schema[name].as_array();
    let number = |name: &str| schema[name].as_f64();
    let of_type = |kind: &Value| match kind.as_str() {
        Some("string") => value.is_string(),
        Some("boolean") => value.is_boolean(),
        Some("integer") => value.is_i64() || value.is_u64(),
        Some("number") => value.is_number(),
        Some("array") => value.is_array(),
        Some("object") => value.is_object(),
        Some("null") => value.is_null(),
        other => panic!("{other:?}"),
    };
    let known = [
        "anyOf",
        "enum",
        "const",
        "type",
        "minimum",
        "maximum",
        "exclusiveMaximum",
        "minLength",
        "minItems",
        "maxItems",
        "items",
    ];
    let more = [
        "properties",
        "required",
        "additionalProperties",
        "propertyNames",
        "description",
        "examples",
    ];
    for name in schema.as_object().unwrap().keys() {
        assert!(
            known.contains(&name.as_str()) || more.contains(&name.as_str()),
            "{name}"
        );
    }
    each("anyOf").is_none_or(|all| all.iter().any(|one| takes(one, value)))
        && each("enum").is_none_or(|all| all.iter().any(|one| one == value || same(one, value)))
        && schema.get("const").is_none_or(|one| one == value)
        && schema.get("type").is_none_or(of_type)
        && value.as_f64().is_none_or(|found| {
            number("minimum").is_none_or(|least| least <= found)
                && number("maximum").is_none_or(|most| found <= most)
                && number("exclusiveMaximum").is_none_or(|most| found < most)
        })
        && value.as_str().is_none_or(|text| {
            number("minLength").is_none_or(|least| least as usize <= text.chars().count())
        })
        && value.as_array().is_none_or(|items| {
            number("minItems").is_none_or(|least| least as usize <= items.len())
                && number("maxItems").is_none_or(|most| items.len() <= most as usize)
                && schema
                    .get("items")
                    .is_none_or(|one| items.iter().all(|item| takes(one, item)))
        })
        && value.as_object().is_none_or(|object| {
            let required = each("required").cloned().unwrap_or_default();
            let digits =
                |name: &str| name.len() < 10 && name.bytes().all(|byte| byte.is_ascii_digit());
            required
                .iter()
                .all(|name| object.contains_key(name.as_str().unwrap()))
                && object.iter().all(|(name, value)| {
                    let named = schema
                        .get("propertyNames")
                        .is_none_or(|_| !name.is_empty() && digits(name));
                    named
                        && match (
                            schema["properties"].get(name),
                            schema.get("additionalProperties"),
                        ) {
                            (Some(one), _) => takes(one, value),
                            (None, Some(Value::Bool(others))) => *others,
                            (None, Some(others)) => takes(others, value),
                            (None, None) => true,
                        }
                })
        })
}

/// The same number, written otherwise.
fn same(one: &Value, other: &Value) -> bool {
    one.is_number() && other.is_number() && one.as_f64() == other.as_f64()
}

fn probes() -> Vec<Value> {
    let mut all = vec![
        json!(true),
        json!(false),
        json!(0),
        json!(1),
        json!(-1),
        json!(-2),
        json!(-3),
        json!(2),
        json!(16),
        json!(17),
        json!(20),
        json!(21),
        json!(100),
        json!(128),
        json!(129),
        json!(u32::MAX),
        json!(1_u64 << 32),
        json!(u64::MAX),
        json!(i64::MIN),
        json!(0.5),
        json!(1.5),
        json!(-2.5),
        json!(2.5),
        json!(1e300),
        json!(-0.25),
        json!([]),
        json!({}),
        json!([[]]),
        json!([[1]]),
        json!([1]),
        json!([-1]),
        json!([1.5]),
        json!([null]),
        json!([{}]),
        json!([""]),
        json!(["a"]),
        json!(["a", 1]),
        json!(["text"]),
        json!(["text", "audio"]),
        json!(vec!["a"; 16]),
        json!(vec!["a"; 17]),
        json!(vec![1; 1024]),
        json!(vec![1; 1025]),
        json!({ "a": 1 }),
        json!({ "1": 5 }),
        json!({ "1": 101 }),
        json!({ "1": "a" }),
        json!({ "1": -100, "2": 0.5 }),
        json!({ "type": "text" }),
        json!({ "type": "disabled" }),
        json!({ "type": "enabled" }),
        json!({ "effort": "none" }),
        json!({ "effort": "low" }),
        json!({ "include_usage": true }),
        json!({ "include_usage": null }),
        json!({ "include_usage": 1 }),
        json!({ "include_obfuscation": 1 }),
        json!({ "temperature": 0 }),
        json!({ "temperature": -1 }),
        json!({ "temperature": null, "seed": 4, "stop": ["a"] }),
        json!(["message.output_text.logprobs"]),
    ];
    let words = [
        "",
        "a",
        "auto",
        "none",
        "default",
        "standard_only",
        "standard",
        "global",
        "float",
        "base64",
        "mean",
        "last",
        "cls",
        "medium",
        "low",
        "disabled",
        "json",
        "text",
    ];
    all.extend(words.map(|word| json!(word)));
    all
}

#[test]
fn schemas_and_readers_take_the_same() {
    let mut endpoints: Vec<Endpoint> = Vec::new();
    for endpoint in TABLES.iter().copied().flatten().flat_map(|field| field.on) {
        if !endpoints.contains(endpoint) {
            endpoints.push(*endpoint);
        }
    }
    let mut compared = 0;
    let mut different: Vec<String> = Vec::new();
    for endpoint in endpoints {
        let document = body(endpoint);
        for field in fields(endpoint) {
            let schema = &document["properties"][field.name];
            let open = schema.as_object().is_some_and(|schema| schema.len() == 1);
            let known = !open || is_loose(field.name) || matches!(field.does, Does::NoEffect);
            if !known {
                let name = field.name;
                different.push(format!("{endpoint:?} {name}: what does it take?"));
            }
            if !known
                || is_loose(field.name)
                || matches!(field.does, Does::NoEffect | Does::Content)
            {
                continue;
            }
            for value in probes() {
                let read = set(endpoint, field.name, &value, &mut Asked::default()).is_ok();
                if read != takes(schema, &value) {
                    let place = format!("{endpoint:?} {}", field.name);
                    different.push(format!("{place}: {value} is read: {read}; {schema}"));
                }
                compared += 1;
            }
        }
    }
    assert!(different.is_empty(), "{}", different.join("\n"));
    assert!(compared > 5000, "{compared}");
}

fn is_loose(name: &str) -> bool {
    LOOSE.contains(&name)
}
