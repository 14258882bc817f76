//! What a reply that may call tools is held to, as a grammar.
//!
//! Text is free up to the mark of a call; from there on it is a call with arguments by the tool's schema, and the last call is
//! the end. Marks that are tokens of their own, and no text, are named by their ids.

use super::Held;
use super::choice::Tool;
use super::formats::{Body, Format};
use crate::registry::Model;
use backplane_plugin_api::types::Grammar;
use serde_json::{Value, json};
use std::fmt::Write as _;

/// Tokens that are no text, with how they are spelled.
pub(super) type Hidden = Vec<(u32, String)>;

/// Writes the marks of a format as a model's vocabulary has them.
pub(super) struct Marks<'a> {
    /// `None` writes all as text.
    model: Option<&'a Model>,
    pub(super) hidden: Hidden,
}

impl<'a> Marks<'a> {
    pub(super) fn of(model: Option<&'a Model>) -> Self {
        Self {
            model,
            hidden: Hidden::new(),
        }
    }

    /// A literal in Lark.
    pub(super) fn lark(&mut self, text: &str) -> String {
        let Some(parts) = self.parts(text) else {
            return quoted(text);
        };
        let parts = parts.into_iter().map(|part| match part {
            Ok(text) => quoted(&text),
            Err(id) => format!("<[{id}]>"),
        });
        parts.collect::<Vec<_>>().join(" ")
    }

    /// Whether it begins with a token that is no text.
    pub(super) fn is_hidden(&mut self, text: &str) -> bool {
        self.parts(text)
            .is_some_and(|parts| parts.first().is_some_and(Result::is_err))
    }

    /// Its texts and tokens; `None` where it is all text, or nobody knows.
    fn parts(&mut self, text: &str) -> Option<Vec<Result<String, u32>>> {
        let model = self.model.filter(|_| !text.is_empty())?;
        let tokens = model.tokenize(text, false, true).ok()?;
        if model.detokenize(&tokens, false).ok()? == text.as_bytes() {
            return None;
        }
        let mut parts: Vec<Result<String, u32>> = Vec::new();
        for token in tokens {
            let spelled = String::from_utf8(model.detokenize(&[token], true).ok()?).ok()?;
            if model.detokenize(&[token], false).ok()?.is_empty() && !spelled.is_empty() {
                if self.hidden.iter().all(|(known, _)| *known != token) {
                    self.hidden.push((token, spelled));
                }
                parts.push(Err(token));
            } else if let Some(Ok(last)) = parts.last_mut() {
                last.push_str(&spelled);
            } else {
                parts.push(Ok(spelled));
            }
        }
        Some(parts)
    }
}

/// A text as Lark writes it: as JSON does.
fn quoted(text: &str) -> String {
    json!(text).to_string()
}

/// White space as it is usual in JSON, so that a text can't go on with nothing else.
fn with_spaces(mut schema: Value) -> Value {
    if let Some(object) = schema.as_object_mut() {
        let space = json!({ "whitespace_pattern": r"[\x20\x0A\x0D\x09]{1,20}" });
        object.entry("x-guidance").or_insert(space);
    }
    schema
}

/// Which calls there are to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Calls {
    /// Whether there must be one.
    pub(super) must: bool,
    /// Whether there may be several.
    pub(super) several: bool,
}

/// The grammar of replies that call these tools, or say what is `held`, or anything.
///
/// # Errors
/// What is held can't be put beside calls.
pub(super) fn of(
    format: &Format,
    marks: &mut Marks<'_>,
    tools: &[&Tool],
    calls: Calls,
    held: Option<&Held>,
) -> Result<Grammar, String> {
    let mut lark = String::from("%llguidance {}\n");
    let open = marks.lark(format.open);
    let shown = |text: String| if text == "\"\"" { String::new() } else { text };
    let (around, close, between) = (
        shown(marks.lark(format.around)),
        shown(marks.lark(format.close)),
        shown(marks.lark(format.between)),
    );
    // A call without what stands around all of them, and what does.
    let (mut before, mut after) = (around.clone(), format!("{around} {close}"));
    if let Body::List { .. } = format.body {
        before = format!("{around} \"[\"");
        after = format!("\"]\" {around} {close}");
    }
    // Whether each call has its own marks.
    let each = matches!(format.body, Body::Object { .. })
        || format.close.is_empty() && !matches!(format.body, Body::List { .. });
    let repeated = if calls.several { "*" } else { "" };
    let more = |one: &str| match calls.several {
        true => format!(" ({between} {one}){repeated}"),
        false => String::new(),
    };
    // From behind the first mark on.
    let rest = if each {
        let marked = match format.bare {
            true => "marked".to_owned(),
            false => format!("{open} marked"),
        };
        let _ = writeln!(lark, "marked: {before} call {after}");
        format!("marked{}", more(&marked))
    } else {
        format!("{before} call{} {after}", more("call"))
    };
    let _ = writeln!(lark, "rest: {rest}");
    let first = match format.bare {
        true => "rest".to_owned(),
        false => format!("{open} rest"),
    };
    let start = match held {
        _ if calls.must => first,
        Some(held) => {
            let _ = writeln!(lark, "held: {}", held.lark()?);
            format!("{first} | held")
        }
        None if format.bare => {
            // What begins like a call is one.
            let Body::Object { name, .. } = format.body else {
                return Err("no such format".to_owned());
            };
            let _ = writeln!(
                lark,
                "TEXT: /(?s:.*)/ & ~/[ \\n\\r\\t]*\\{{[ \\n\\r\\t]*\"{name}(?s:.*)/"
            );
            format!("TEXT | {first}")
        }
        None if marks.is_hidden(format.open) => {
            let _ = writeln!(lark, "TEXT: /(?s:.*)/");
            format!("TEXT | {first} | TEXT {first}")
        }
        None => {
            let _ = writeln!(lark, "TEXT: /(?s:.*)/");
            let _ = writeln!(lark, "head[lazy]: TEXT {open}");
            "TEXT | head rest".to_owned()
        }
    };
    let _ = writeln!(lark, "start: {start}");
    let names: Vec<String> = (0..tools.len()).map(|at| format!("call_{at}")).collect();
    let _ = writeln!(lark, "call: {}", names.join(" | "));
    for (tool, rule) in tools.iter().zip(names) {
        let schema = with_spaces(tool.schema());
        let call = match format.body {
            Body::Object { name, arguments } | Body::List { name, arguments } => {
                let head = format!("{{\"{name}\": \"{}\", \"{arguments}\": ", tool.name);
                format!("{} arguments_{rule} \"}}\"", quoted(&head))
            }
            Body::Named {
                before,
                middle,
                after,
            } => {
                let head = shown(marks.lark(before));
                let (middle, after) = (marks.lark(middle), shown(marks.lark(after)));
                format!(
                    "{head} {} {middle} arguments_{rule} {after}",
                    quoted(&tool.name)
                )
            }
        };
        let _ = writeln!(lark, "{rule}: {call}");
        let _ = writeln!(lark, "arguments_{rule}: %json {schema}");
    }
    Ok(Grammar {
        kind: "lark".to_owned(),
        source: lark,
    })
}

/// The same for engines that take JSON schemas alone: one call, as an object.
pub(super) fn as_schema(tools: &[&Tool]) -> Grammar {
    let one = |(at, tool): (usize, &&Tool)| {
        let place = format!("/anyOf/{at}/properties/arguments");
        json!({
            "type": "object",
            "properties": { "name": { "const": tool.name }, "arguments": moved(tool.schema(), &place) },
            "required": ["name", "arguments"],
            "additionalProperties": false,
        })
    };
    let any: Vec<Value> = tools.iter().enumerate().map(one).collect();
    Grammar {
        kind: "json_schema".to_owned(),
        source: json!({ "anyOf": any }).to_string(),
    }
}

/// A schema that lies at `place` of another: its references into itself lead there.
fn moved(schema: Value, place: &str) -> Value {
    match schema {
        Value::Object(all) => {
            let each = all
                .into_iter()
                .map(|(key, value)| match (key.as_str(), &value) {
                    ("$ref", Value::String(to)) if to.starts_with('#') => {
                        let to = format!("#{place}{}", &to[1..]);
                        (key, Value::String(to))
                    }
                    _ => (key, moved(value, place)),
                });
            Value::Object(each.collect())
        }
        Value::Array(all) => all.into_iter().map(|value| moved(value, place)).collect(),
        other => other,
    }
}

#[cfg(test)]
mod tests;
