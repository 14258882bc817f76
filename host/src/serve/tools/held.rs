//! What the text of a reply is held to: `response_format`, `grammar`, and what other dialects call it.

use super::{check, finite};
use crate::serve::errors::Problem;
use crate::serve::fields::values::{Amiss, expected, of_field};
use backplane_plugin_api::types::Grammar;
use serde_json::{Value, json};

/// A constraint on a reply's text, and where it stands in the request.
#[derive(Clone, Debug, PartialEq)]
pub(in crate::serve) struct Held {
    pub(in crate::serve) to: To,
    /// The field of the request.
    pub(in crate::serve) field: &'static str,
    /// Where the constraint stands in the request, as a JSON pointer.
    pub(in crate::serve) place: &'static str,
}

/// To what.
#[derive(Clone, Debug, PartialEq)]
pub(in crate::serve) enum To {
    Schema(Value),
    Regex(String),
    Lark(String),
}

impl Held {
    /// As the contract has it.
    pub(in crate::serve) fn grammar(&self) -> Grammar {
        let (kind, source) = match &self.to {
            To::Schema(schema) => ("json_schema", finite::pruned(schema.clone()).to_string()),
            To::Regex(source) => ("regex", source.clone()),
            To::Lark(source) => ("lark", source.clone()),
        };
        Grammar {
            kind: kind.to_owned(),
            source,
        }
    }

    /// As a rule of a Lark grammar.
    ///
    /// # Errors
    /// It is a grammar of its own.
    pub(super) fn lark(&self) -> Result<String, String> {
        match &self.to {
            To::Schema(schema) => Ok(format!("%json {}", finite::pruned(schema.clone()))),
            To::Regex(source) => Ok(format!("/{}/", source.replace('/', "\\/"))),
            To::Lark(_) => Err("beside tools no grammar of Lark is taken".to_owned()),
        }
    }

    /// That its schema, where it is one, can be held to.
    ///
    /// # Errors
    /// It can't, with the place.
    pub(in crate::serve) fn check(&self) -> Result<(), Problem> {
        let To::Schema(schema) = &self.to else {
            return Ok(());
        };
        match check::schemas(vec![schema.clone()]).pop().flatten() {
            Some(fault) => Err(self.wrong(&fault.pointer, &fault.why)),
            None => Ok(()),
        }
    }

    /// The error of a fault in its schema, at a pointer into that.
    pub(super) fn wrong(&self, pointer: &str, why: &str) -> Problem {
        wrong(self.place, pointer, why)
    }
}

/// The error of a fault in what stands at a place of a request: by the name of the field, and then by a pointer into it.
pub(super) fn wrong(place: &str, pointer: &str, why: &str) -> Problem {
    match pointer {
        "" => Problem::field(path(place), why),
        _ => Problem::field(path(place), format!("{pointer}: {why}")),
    }
}

/// A place in a request as errors name fields: `tools[0].function` for `/tools/0/function`.
pub(super) fn path(pointer: &str) -> String {
    let mut path = String::new();
    for step in pointer.split('/').skip(1) {
        match step.parse::<usize>() {
            Ok(index) => path += &format!("[{index}]"),
            Err(_) if path.is_empty() => path += step,
            Err(_) => path += &format!(".{step}"),
        }
    }
    path
}

/// OpenAI's `response_format`.
///
/// # Errors
/// It is none that is known.
pub(in crate::serve) fn read_format(value: &Value) -> Result<Option<Held>, Amiss> {
    let held = |schema: Value, place| Held {
        to: To::Schema(schema),
        field: "response_format",
        place,
    };
    let what = "the type `text`, `json_object` or `json_schema`";
    match value["type"].as_str() {
        Some("text") => only_with(value, "").map(|()| None),
        Some("json_object") => {
            only_with(value, "schema")?;
            match &value["schema"] {
                Value::Null => Ok(Some(held(json!({ "type": "object" }), "/response_format"))),
                Value::Object(_) => {
                    let schema = value["schema"].clone();
                    Ok(Some(held(schema, "/response_format/schema")))
                }
                other => {
                    let what = expected("a JSON schema, an object", other);
                    Err(of_field("schema", what))
                }
            }
        }
        Some("json_schema") => {
            only_with(value, "json_schema")?;
            let named = value["json_schema"].as_object();
            let named = named.ok_or_else(|| expected("`json_schema` with a `schema`", value))?;
            let inside = |key: &str, why: String| of_field("json_schema", of_field(key, why));
            for (key, value) in named {
                let right = match key.as_str() {
                    "name" | "description" => value.is_string() || value.is_null(),
                    "strict" => value.is_boolean() || value.is_null(),
                    "schema" => value.is_object(),
                    other => return Err(inside(other, "no such field".to_owned())),
                };
                if !right {
                    let what = match key.as_str() {
                        "schema" => "a JSON schema, an object",
                        "strict" => "true or false",
                        _ => "a text",
                    };
                    return Err(inside(key, expected(what, value)));
                }
            }
            let schema = named.get("schema").cloned();
            let schema = schema.unwrap_or_else(|| json!({ "type": "object" }));
            Ok(Some(held(schema, "/response_format/json_schema/schema")))
        }
        None if value.is_object() => Err(of_field("type", expected(what, &value["type"]))),
        Some(_) => Err(of_field("type", expected(what, &value["type"]))),
        None => Err(expected(what, value).into()),
    }
}

/// That a format has besides its type no field but this one; one of another type may be null.
fn only_with(value: &Value, field: &str) -> Result<(), Amiss> {
    for (key, inner) in value.as_object().into_iter().flatten() {
        let known = ["schema", "json_schema"].contains(&key.as_str());
        if key != "type" && key != field && !(known && inner.is_null()) {
            let of = value["type"].as_str().unwrap_or_default();
            return Err(of_field(key, format!("no such field of the type `{of}`")));
        }
    }
    Ok(())
}

/// Our `grammar`: an object with one of `json_schema`, `regex` and `lark`.
///
/// # Errors
/// It is none.
pub(in crate::serve) fn read_grammar(value: &Value) -> Result<Option<Held>, Amiss> {
    let what = "an object with one of `json_schema`, `regex` and `lark`";
    let wrong = || expected(what, value);
    let object = value.as_object().ok_or_else(wrong)?;
    let mut each = object.iter();
    let (Some((kind, source)), None) = (each.next(), each.next()) else {
        return if object.is_empty() {
            Ok(None)
        } else {
            Err(wrong().into())
        };
    };
    let text = || source.as_str().map(str::to_owned).ok_or_else(wrong);
    let (to, place) = match kind.as_str() {
        "json_schema" if source.is_object() => (To::Schema(source.clone()), "/grammar/json_schema"),
        "regex" => (To::Regex(text()?), "/grammar/regex"),
        "lark" => (To::Lark(text()?), "/grammar/lark"),
        _ => return Err(wrong().into()),
    };
    Ok(Some(Held {
        to,
        field: "grammar",
        place,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formats_of_a_request() {
        let schema = json!({ "type": "object" });
        let named = json!({ "type": "json_schema", "json_schema": { "name": "a", "strict": true, "schema": schema } });
        let held = read_format(&named).unwrap().unwrap();
        assert_eq!(
            (held.to.clone(), held.place),
            (
                To::Schema(schema.clone()),
                "/response_format/json_schema/schema"
            )
        );
        assert_eq!(held.grammar().kind, "json_schema");
        assert_eq!(
            read_format(&json!({ "type": "json_object" }))
                .unwrap()
                .unwrap()
                .to,
            To::Schema(schema)
        );
        assert_eq!(read_format(&json!({ "type": "text" })), Ok(None));
        let with = json!({ "type": "json_object", "schema": { "type": "array" } });
        let held = read_format(&with).unwrap().unwrap();
        assert_eq!(held.to, To::Schema(json!({ "type": "array" })));
        assert_eq!(held.place, "/response_format/schema");
        let null = json!({ "type": "text", "schema": null, "json_schema": null });
        assert_eq!(read_format(&null), Ok(None));
        for (wrong, said) in [
            (
                json!({ "type": "text", "schema": {} }),
                "`.schema`: no such field of the type `text`",
            ),
            (
                json!({ "type": "json_object", "foo": null }),
                "`.foo`: no such field of the type `json_object`",
            ),
            (
                json!({ "type": "json_object", "schema": 1 }),
                "`.schema`: expected a JSON schema",
            ),
            (
                json!({ "type": "json_schema", "json_schema": {}, "foo": 1 }),
                "`.foo`: no such field",
            ),
            (json!({}), "`.type`: expected the type"),
            (json!("json"), "expected the type"),
            (json!({ "type": "xml" }), "expected the type"),
            (
                json!({ "type": "json_schema" }),
                "`json_schema` with a `schema`",
            ),
            (
                json!({ "type": "json_schema", "json_schema": { "schema": 1 } }),
                "`.json_schema.schema`",
            ),
            (
                json!({ "type": "json_schema", "json_schema": { "scheme": {} } }),
                "`.json_schema.scheme`: no such field",
            ),
            (
                json!({ "type": "json_schema", "json_schema": { "strict": 1 } }),
                "true or false",
            ),
        ] {
            let why = read_format(&wrong).unwrap_err().to_string();
            assert!(why.contains(said), "{why}");
        }
    }

    #[test]
    fn places_are_paths_too() {
        for (pointer, expected) in [
            (
                "/tools/0/function/parameters",
                "tools[0].function.parameters",
            ),
            ("/tools/12/input_schema", "tools[12].input_schema"),
            ("/format", "format"),
            ("", ""),
        ] {
            assert_eq!(path(pointer), expected);
        }
    }

    #[test]
    fn a_fault_has_its_place_once() {
        for (pointer, expected) in [
            ("", "`response_format.schema`: why"),
            ("/items", "`response_format.schema`: /items: why"),
        ] {
            let json = wrong("/response_format/schema", pointer, "why").json();
            assert_eq!(json["error"]["message"], expected);
            assert_eq!(json["error"]["param"], "response_format.schema");
        }
    }

    #[test]
    fn grammars_of_a_request() {
        let of = |value: Value| read_grammar(&value).map(|held| held.map(|held| held.to));
        assert_eq!(
            of(json!({ "regex": "a+" })),
            Ok(Some(To::Regex("a+".into())))
        );
        assert_eq!(
            of(json!({ "lark": "start: \"a\"" })),
            Ok(Some(To::Lark("start: \"a\"".into())))
        );
        assert_eq!(
            of(json!({ "json_schema": {} })),
            Ok(Some(To::Schema(json!({}))))
        );
        assert_eq!(of(json!({})), Ok(None));
        for wrong in [
            json!("root ::= x"),
            json!({ "gbnf": "x" }),
            json!({ "regex": 1 }),
            json!({ "regex": "a", "lark": "b" }),
            json!({ "json_schema": "x" }),
        ] {
            assert!(
                of(wrong)
                    .unwrap_err()
                    .why
                    .contains("one of `json_schema`, `regex` and `lark`")
            );
        }
    }
}
