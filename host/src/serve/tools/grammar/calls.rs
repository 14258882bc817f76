//! Calls that are not written as JSON, as rules of a grammar.

use super::{Marks, quoted, until, with_spaces};
use crate::serve::tools::choice::Tool;
use crate::serve::tools::literal::Notation;
use crate::serve::tools::tags::Tags;
use crate::serve::tools::typed::{self, Kinds};
use serde_json::{Value, json};
use std::fmt::Write as _;

/// Any text.
const FREE: &str = "(?s:.*)";

/// A parameter of a tool.
struct Parameter<'a> {
    key: &'a str,
    /// What it refers to, where it refers to something.
    schema: &'a Value,
    kinds: Kinds,
    required: bool,
}

/// The parameters of a schema; `None` where it is not a plain list of them.
fn parameters(root: &Value) -> Option<Vec<Parameter<'_>>> {
    let others = [
        "$ref",
        "allOf",
        "anyOf",
        "oneOf",
        "not",
        "if",
        "patternProperties",
    ];
    if others.iter().any(|name| root.get(name).is_some()) {
        return None;
    }
    let Some(properties) = root["properties"].as_object() else {
        // Nothing may be given, or anything.
        return (root["additionalProperties"] == false).then(Vec::new);
    };
    let required = |key: &str| {
        let all = root["required"].as_array().into_iter().flatten();
        all.into_iter().any(|one| one == key)
    };
    // What nothing satisfies is not given; where it has to be, the schema has been refused.
    let properties = properties.iter().filter(|(_, schema)| **schema != false);
    let all = properties.map(|(key, schema)| Parameter {
        key,
        schema: typed::resolved(root, schema),
        kinds: typed::kinds(root, key),
        required: required(key),
    });
    Some(all.collect())
}

/// A text in a regular expression of Lark.
pub(super) fn escaped(text: &str) -> String {
    let mut out = String::new();
    for letter in text.chars() {
        match letter {
            '\n' => out += "\\n",
            letter if letter.is_alphanumeric() || " _-:,;\"'<>=｜▁@!%&~`#".contains(letter) => {
                out.push(letter)
            }
            letter => out.extend(['\\', letter]),
        }
    }
    out
}

/// The values that a schema names.
fn named(schema: &Value) -> Option<Vec<&Value>> {
    match (schema.get("const"), schema["enum"].as_array()) {
        (Some(one), _) => Some(vec![one]),
        (None, Some(many)) if !many.is_empty() => Some(many.iter().collect()),
        _ => None,
    }
}

/// A schema that stands by itself, with all that its references may name.
fn by_itself(root: &Value, parameter: &Parameter<'_>) -> Value {
    if !parameter.schema.to_string().contains("\"$ref\"") {
        return with_spaces(parameter.schema.clone());
    }
    let key = parameter.key.replace('~', "~0").replace('/', "~1");
    let within = super::moved(root.clone(), "/$defs/all");
    with_spaces(
        json!({ "$ref": format!("#/$defs/all/properties/{key}"), "$defs": { "all": within } }),
    )
}

/// Texts of the length that a schema knows.
fn of_length(schema: &Value) -> String {
    let bound = |name: &str| schema[name].as_u64().filter(|&bound| bound <= 10_000);
    match (bound("minLength"), bound("maxLength")) {
        (None, None) => FREE.to_owned(),
        (least, most) => {
            let most = most.map_or(String::new(), |most| most.to_string());
            format!("(?s:.{{{},{most}}})", least.unwrap_or_default())
        }
    }
}

/// Name and arguments of a call in tags, but for what is behind them, as the rule `{rule}_all`.
pub(super) fn tagged(tags: &Tags, marks: &mut Marks<'_>, tool: &Tool, rule: &str) -> String {
    let mut lark = String::new();
    let root = tool.schema();
    let shown = |text: String| if text == "\"\"" { String::new() } else { text };
    let (before, after) = (
        shown(marks.lark(tags.name[0])),
        shown(marks.lark(tags.name[1])),
    );
    let behind = shown(quoted(tags.behind));
    // Where the value has a tag of its own, it may stand in the next line.
    let between = if tags.attributes[0].is_empty() && !tags.value[0].is_empty() {
        &*behind
    } else {
        ""
    };
    let mut all = format!("{before} {} {after} {behind}", quoted(&tool.name));
    let end = format!("{}{}", tags.around, tags.value[1]);
    let argument = |marks: &mut Marks<'_>, key: &str, text: bool, value: &str| {
        let open = (
            shown(marks.lark(tags.key[0])),
            shown(marks.lark(tags.key[1])),
        );
        let attributes = shown(quoted(tags.attributes[usize::from(!text)]));
        let start = shown(marks.lark(tags.value[0]));
        let around = shown(quoted(tags.around));
        format!(
            "{} {key} {} {between} {attributes} {start} {around} {value} {behind}",
            open.0, open.1
        )
    };
    let Some(parameters) = parameters(&root) else {
        let _ = writeln!(lark, "{rule}_key: /[A-Za-z0-9_.\\-]{{1,64}}/");
        lark += &until(marks, &format!("{rule}_any"), FREE, &end);
        let one = argument(marks, &format!("{rule}_key"), true, &format!("{rule}_any"));
        let _ = writeln!(lark, "{rule}_one: {one}\n{rule}_all: {all} {rule}_one*");
        return lark;
    };
    let close = marks.lark(&end);
    for (at, parameter) in parameters.iter().enumerate() {
        let value = format!("{rule}_value_{at}");
        if let Some(values) = named(parameter.schema) {
            let written = values.into_iter().map(|value| match value {
                Value::String(text) => quoted(text),
                other => quoted(&other.to_string()),
            });
            let written: Vec<String> = written.collect();
            let _ = writeln!(lark, "{value}: ({}) {close}", written.join(" | "));
        } else if parameter.kinds.text() {
            let text = if parameter.kinds.only_text() {
                of_length(parameter.schema)
            } else {
                FREE.to_owned()
            };
            lark += &until(marks, &value, &text, &end);
        } else {
            let schema = by_itself(&root, parameter);
            let _ = writeln!(
                lark,
                "{value}_json: %json {schema}\n{value}: {value}_json {close}"
            );
        }
        let one = argument(
            marks,
            &quoted(parameter.key),
            parameter.kinds.text(),
            &value,
        );
        let often = if parameter.required { "" } else { "?" };
        let _ = writeln!(lark, "{rule}_one_{at}: {one}");
        let _ = write!(all, " {rule}_one_{at}{often}");
    }
    let _ = writeln!(lark, "{rule}_all: {all}");
    lark
}

/// Any value in a notation that is not JSON's, as the rules `text`, `list`, `object` and `any`.
pub(super) fn any(notation: &Notation, marks: &mut Marks<'_>) -> String {
    if notation.escapes {
        return String::new();
    }
    let quote = notation.quotes.first().copied().unwrap_or("\"");
    let mut lark = until(marks, "texts", FREE, quote);
    let open = marks.lark(quote);
    lark += &format!(
        "text: {open} texts\n\
         key: text | /[A-Za-z0-9_]{{1,64}}/\n\
         list: \"[\" (any (\",\" any)*)? \"]\"\n\
         object: \"{{\" (key \":\" any (\",\" key \":\" any)*)? \"}}\"\n\
         number: /-?(0|[1-9][0-9]{{0,14}})(\\.[0-9]{{1,14}})?/\n\
         any: text | list | object | number | \"true\" | \"false\" | \"null\"\n"
    );
    lark
}

/// A call as a notation has it, with what leads it in one piece, as the rule `rule`.
pub(super) fn literal(
    notation: &Notation,
    marks: &mut Marks<'_>,
    tool: &Tool,
    rule: &str,
    lead: &str,
) -> String {
    let mut lark = String::new();
    let root = tool.schema();
    let around = |text: String| quoted(&text);
    let open = around(format!(
        "{lead}{}{}{}",
        notation.before, tool.name, notation.open
    ));
    let close = quoted(&notation.close.to_string());
    let comma = if notation.escapes { ", " } else { "," };
    let comma = quoted(comma);
    let Some(parameters) = parameters(&root) else {
        let value = if notation.escapes { "%json {}" } else { "any" };
        let _ = writeln!(lark, "{rule}_any: {value}");
        let assign = quoted(&notation.assign.to_string());
        let _ = writeln!(
            lark,
            "{rule}_one: /[A-Za-z_][A-Za-z0-9_]{{0,63}}/ {assign} {rule}_any"
        );
        let _ = writeln!(
            lark,
            "{rule}: {open} ({rule}_one ({comma} {rule}_one)*)? {close}"
        );
        return lark;
    };
    for (at, parameter) in parameters.iter().enumerate() {
        let value = value(
            notation,
            marks,
            &root,
            parameter,
            &format!("{rule}_json_{at}"),
            &mut lark,
        );
        let key = quoted(&format!("{}{}", parameter.key, notation.assign));
        let _ = writeln!(lark, "{rule}_one_{at}: {key} ({value})");
        // What follows the arguments before.
        let often = if parameter.required { "" } else { "?" };
        let next = if at + 1 < parameters.len() {
            format!("{rule}_rest_{}", at + 1)
        } else {
            String::new()
        };
        let _ = writeln!(
            lark,
            "{rule}_rest_{at}: ({comma} {rule}_one_{at}){often} {next}"
        );
    }
    let mut starts = Vec::new();
    for (at, parameter) in parameters.iter().enumerate() {
        let next = if at + 1 < parameters.len() {
            format!("{rule}_rest_{}", at + 1)
        } else {
            String::new()
        };
        starts.push(format!("{open} {rule}_one_{at} {next} {close}"));
        if parameter.required {
            break;
        }
    }
    if parameters.iter().all(|parameter| !parameter.required) {
        starts.push(format!("{open} {close}"));
    }
    let _ = writeln!(lark, "{rule}: {}", starts.join(" | "));
    lark
}

/// The value of a parameter.
fn value(
    notation: &Notation,
    marks: &mut Marks<'_>,
    root: &Value,
    parameter: &Parameter<'_>,
    rule: &str,
    lark: &mut String,
) -> String {
    let [yes, no, nothing] = notation.words;
    let quote = notation.quotes.first().copied().unwrap_or("\"");
    if let Some(values) = named(parameter.schema) {
        let written = values.into_iter().map(|value| match value {
            Value::String(text) if !notation.escapes => {
                let open = marks.lark(quote);
                format!("{open} {} {open}", quoted(text))
            }
            Value::Bool(true) => quoted(yes),
            Value::Bool(false) => quoted(no),
            Value::Null => quoted(nothing),
            other => quoted(&other.to_string()),
        });
        return written.collect::<Vec<_>>().join(" | ");
    }
    let mut ways = Vec::new();
    let kinds = parameter.kinds;
    if kinds.boolean() {
        ways.extend([quoted(yes), quoted(no)]);
    }
    if kinds.null() {
        ways.push(quoted(nothing));
    }
    if notation.escapes {
        if kinds.text() || kinds.others() {
            let schema = by_itself(root, parameter);
            let _ = writeln!(lark, "{rule}: %json {schema}");
            ways.push(rule.to_owned());
        }
        return ways.join(" | ");
    }
    if kinds.text() {
        if kinds.only_text() {
            *lark += &until(marks, rule, &of_length(parameter.schema), quote);
            ways.push(format!("{} {rule}", marks.lark(quote)));
        } else {
            ways.push("text".to_owned());
        }
    }
    if kinds.number() {
        let schema = by_itself(root, parameter);
        match kinds.list() || kinds.object() || kinds.text() {
            true => ways.push("number".to_owned()),
            false => {
                let _ = writeln!(lark, "{rule}: %json {schema}");
                ways.push(rule.to_owned());
            }
        }
    }
    if kinds.list() {
        ways.push("list".to_owned());
    }
    if kinds.object() {
        ways.push("object".to_owned());
    }
    ways.join(" | ")
}
