//! What a reply that may call tools is held to, as a grammar.
//!
//! Text is free up to the mark of a call; from there on it is a call with arguments by the tool's schema, and the last call is
//! the end. Marks that are tokens of their own, and no text, are named by their ids.

use super::Held;
use super::choice::Tool;
use super::formats::{Body, Format, Ids};
use super::thoughts::Thoughts;
use crate::registry::Model;
use backplane_plugin_api::types::Grammar;
use serde_json::{Value, json};
use std::fmt::Write as _;

mod calls;

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

    /// Finds the tokens of a mark that are no text.
    pub(super) fn look_up(&mut self, text: &str) {
        self.parts(text);
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

/// Free text, up to and with what ends it, as the rule `name`.
fn until(marks: &mut Marks<'_>, name: &str, text: &str, end: &str) -> String {
    let Some(parts) = marks.parts(end) else {
        return format!("{name}[suffix={}]: /{text}/\n", quoted(end));
    };
    // A token that is no text ends a text by itself.
    let mut rule = String::new();
    let mut text = text.to_owned();
    for (at, part) in parts.into_iter().enumerate() {
        match part {
            Ok(part) if at == 0 => text += &calls::escaped(&part),
            Ok(part) => rule += &format!(" {}", quoted(&part)),
            Err(id) => rule += &format!(" <[{id}]>"),
        }
    }
    format!(
        "{name}: {}?{rule}\n{}: /{text}/\n",
        name.to_uppercase(),
        name.to_uppercase()
    )
}

/// A text as Lark writes it: as JSON does.
fn quoted(text: &str) -> String {
    json!(text).to_string()
}

/// White space as it is usual in JSON, so that a text can't go on with nothing else.
fn with_spaces(mut schema: Value) -> Value {
    if let Some(object) = schema.as_object_mut() {
        let space = json!({ "whitespace_pattern": r"(\x20|\x0D?\x0A[\x20\x09]{0,20})" });
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

/// What is thought before all else, as the rule `thought`.
fn thought(marks: &mut Marks<'_>, thoughts: Thoughts) -> String {
    let (open, close) = (thoughts.marks.open, thoughts.marks.close);
    let (before, text) = match thoughts.opened {
        true => (String::new(), "(?s:.*)".to_owned()),
        false if marks.is_hidden(open) => (marks.lark(open), "(?s:.*)".to_owned()),
        // One piece with what follows: free text would be the longer match else.
        false => (
            String::new(),
            format!("[ \\n]*{}(?s:.*)", calls::escaped(open)),
        ),
    };
    let rule = until(marks, "thoughts", &text, close);
    format!("{rule}BLANK: /[ \\n]{{1,4}}/\nthought: {before} thoughts BLANK?\n")
}

/// The grammar of a reply that is `held`, and may think before.
///
/// # Errors
/// It can't be put behind thoughts.
pub(super) fn held(
    marks: &mut Marks<'_>,
    thoughts: Thoughts,
    held: &Held,
) -> Result<Grammar, String> {
    let maybe = if thoughts.opened { "" } else { "?" };
    let source = format!(
        "%llguidance {{}}\n{}held: {}\nstart: thought{maybe} held\n",
        thought(marks, thoughts),
        held.lark()?
    );
    Ok(Grammar {
        kind: "lark".to_owned(),
        source,
    })
}

/// The grammar of a reply in channels: thoughts, then a call, or the text, which may be `held`. A call is its end.
///
/// # Errors
/// What is held can't be put into a channel.
pub(super) fn in_channels(
    marks: &mut Marks<'_>,
    tools: &[&Tool],
    must: bool,
    held: Option<&Held>,
) -> Result<Grammar, String> {
    let mut lark = String::from("%llguidance {}\n");
    let [channel, message, constrain] =
        ["<|channel|>", "<|message|>", "<|constrain|>"].map(|mark| marks.lark(mark));
    let again = marks.lark("<|start|>assistant");
    for channel in ["analysis", "commentary"] {
        lark += &until(marks, &format!("{channel}_text"), "(?s:.*)", "<|end|>");
    }
    let before = |name: &str| format!("{channel} \"{name}\" {message} {name}_text {again}");
    let before = format!("({})* ({})?", before("analysis"), before("commentary"));
    let mut ways = Vec::new();
    for (at, tool) in tools.iter().enumerate() {
        let head = quoted(&format!("commentary to=functions.{} ", tool.name));
        let schema = with_spaces(tool.schema());
        let _ = writeln!(
            lark,
            "call_{at}: {channel} {head} {constrain} \"json\" {message} arguments_{at}"
        );
        let _ = writeln!(lark, "arguments_{at}: %json {schema}");
        ways.push(format!("call_{at}"));
    }
    match held {
        Some(held) if tools.is_empty() || !must => {
            let _ = writeln!(lark, "held: {}", held.lark()?);
            ways.push(format!("{channel} \"final\" {message} held"));
        }
        None if !must => {
            let _ = writeln!(lark, "TEXT: /(?s:.*)/");
            ways.push(format!("{channel} \"final\" {message} TEXT?"));
        }
        _ => {}
    }
    let _ = writeln!(lark, "start: {before} ({})", ways.join(" | "));
    Ok(Grammar {
        kind: "lark".to_owned(),
        source: lark,
    })
}

/// The grammar of replies that call these tools, or say what is `held`, or anything; after `thoughts`, where there may be any.
///
/// # Errors
/// What is held can't be put beside calls.
pub(super) fn of(
    format: &Format,
    marks: &mut Marks<'_>,
    tools: &[&Tool],
    calls: Calls,
    held: Option<&Held>,
    thoughts: Option<Thoughts>,
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
    if format.body.is_list() {
        before = format!("{around} \"[\"");
        after = format!("\"]\" {around} {close}");
    }
    // Free text would go on with the bracket: it comes with the call where no mark is before it.
    let led = format.bare && matches!(format.body, Body::Literals(_));
    if led {
        before = around.clone();
    }
    // Whether each call has its own marks.
    let each = match format.body {
        Body::Object { .. } | Body::Literal(_) => true,
        Body::Tagged(tags) => !tags.together,
        Body::Named { .. } => format.close.is_empty(),
        Body::List { .. } | Body::Literals(_) | Body::Channels => false,
    };
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
        let first = if led { "first" } else { "call" };
        format!("{before} {first}{} {after}", more("call"))
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
            let blank = r"[ \n\r\t]*";
            let begun = match format.body {
                Body::Object { name, .. } => format!(r#"\{{{blank}"{name}"#),
                _ => {
                    let names = tools.iter().map(|tool| calls::escaped(&tool.name));
                    let names: Vec<String> = names.collect();
                    format!(r"\[{blank}({}){blank}\(", names.join("|"))
                }
            };
            let _ = writeln!(lark, "TEXT: /(?s:.*)/ & ~/{blank}{begun}(?s:.*)/");
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
    match thoughts {
        None => {
            let _ = writeln!(lark, "start: {start}");
        }
        Some(thoughts) => {
            lark += &thought(marks, thoughts);
            let or = if thoughts.opened { "" } else { "said | " };
            let _ = writeln!(lark, "said: {start}\nstart: {or}thought said");
        }
    }
    let names: Vec<String> = (0..tools.len()).map(|at| format!("call_{at}")).collect();
    let _ = writeln!(lark, "call: {}", names.join(" | "));
    if led {
        let names: Vec<String> = (0..tools.len()).map(|at| format!("first_{at}")).collect();
        let _ = writeln!(lark, "first: {}", names.join(" | "));
    }
    if let Body::Literal(notation) | Body::Literals(notation) = format.body {
        lark += &calls::any(notation, marks);
    }
    // What models write besides is no text.
    for mark in format.passed_over {
        marks.look_up(mark);
    }
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
                let number = match format.ids {
                    Ids::Numbered => " /:[0-9]{1,4}/",
                    Ids::Long | Ids::Short => "",
                };
                format!(
                    "{head} {}{number} {middle} arguments_{rule} {after}",
                    quoted(&tool.name)
                )
            }
            Body::Tagged(tags) => {
                let ends = !tags.end.is_empty();
                lark += &calls::tagged(tags, marks, tool, &rule);
                let end = if ends {
                    shown(marks.lark(tags.end))
                } else {
                    String::new()
                };
                let _ = writeln!(lark, "{rule}: {rule}_all {end}");
                continue;
            }
            Body::Channels => continue,
            Body::Literal(notation) | Body::Literals(notation) => {
                lark += &calls::literal(notation, marks, tool, &rule, "");
                if led {
                    let rule = rule.replacen("call", "first", 1);
                    lark += &calls::literal(notation, marks, tool, &rule, "[");
                }
                continue;
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
