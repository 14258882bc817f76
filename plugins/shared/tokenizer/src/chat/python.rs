//! Values as Python prints them: `str`, `repr` and `json.dumps`.

use std::fmt::{self, Display, Formatter, Write};

use minijinja::value::{Kwargs, Rest, ValueKind};
use minijinja::{Error, ErrorKind, Value};

/// Prints a value as Python's `str` does. The undefined value prints nothing.
pub(super) struct Str<'a>(pub(super) &'a Value);

/// Prints a value as Python's `repr` does; inside so many lists and dicts.
struct Repr<'a>(&'a Value, usize);

/// Bytes of the longest text that a value becomes by itself.
const LONGEST_TEXT: usize = 64 << 20;

/// Text up to that length.
#[derive(Default)]
struct Bounded(String);

impl Write for Bounded {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        if self.0.len() + text.len() > LONGEST_TEXT {
            return Err(fmt::Error);
        }
        self.0.push_str(text);
        Ok(())
    }
}

/// A value's text, as `str` gives it, as far as it can be printed.
pub(super) fn text_of(value: &Value) -> String {
    let mut text = Bounded::default();
    let _ = write!(text, "{}", Str(value));
    text.0
}

/// The filter `string`.
pub(super) fn to_text(value: &Value) -> Result<String, Error> {
    let mut text = Bounded::default();
    match write!(text, "{}", Str(value)) {
        Ok(()) => Ok(text.0),
        Err(_) => Err(invalid(
            "string: the text is longer than 64 MiB or can't be printed",
        )),
    }
}

/// Lists and dicts within each other that are printed; deeper ones are three dots. They would exhaust the stack, and no conversation has them.
const DEEPEST: usize = 200;

impl Display for Str<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self.0.kind() {
            ValueKind::Undefined => Ok(()),
            ValueKind::String => Display::fmt(self.0, f),
            _ => Display::fmt(&Repr(self.0, 0), f),
        }
    }
}

impl Display for Repr<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self.0.kind() {
            ValueKind::Undefined => f.write_str("Undefined"),
            ValueKind::None => f.write_str("None"),
            ValueKind::Bool => f.write_str(if self.0.is_true() { "True" } else { "False" }),
            ValueKind::Number if !self.0.is_integer() => match f64::try_from(self.0.clone()) {
                Ok(number) => write_float(number, f),
                Err(_) => Display::fmt(self.0, f),
            },
            ValueKind::String => write_quoted(self.0.as_str().unwrap_or_default(), f),
            ValueKind::Seq | ValueKind::Map if self.1 >= DEEPEST => f.write_str("..."),
            ValueKind::Seq => {
                let item = |item: &Value, f: &mut Formatter<'_>| Repr(item, self.1 + 1).fmt(f);
                write_list(self.0, ('[', ']'), item, f)
            }
            ValueKind::Map => {
                let item = |key: &Value, f: &mut Formatter<'_>| {
                    let value = self.0.get_item(key).unwrap_or_default();
                    write!(f, "{}: {}", Repr(key, self.1 + 1), Repr(&value, self.1 + 1))
                };
                write_list(self.0, ('{', '}'), item, f)
            }
            _ => Display::fmt(self.0, f),
        }
    }
}

fn write_list(
    values: &Value,
    (open, close): (char, char),
    mut write_item: impl FnMut(&Value, &mut Formatter<'_>) -> fmt::Result,
    f: &mut Formatter<'_>,
) -> fmt::Result {
    f.write_char(open)?;
    for (index, item) in values.try_iter().map_err(|_| fmt::Error)?.enumerate() {
        if index > 0 {
            f.write_str(", ")?;
        }
        write_item(&item, f)?;
    }
    f.write_char(close)
}

fn write_quoted(text: &str, f: &mut impl Write) -> fmt::Result {
    let quote = if text.contains('\'') && !text.contains('"') {
        '"'
    } else {
        '\''
    };
    f.write_char(quote)?;
    for character in text.chars() {
        match character {
            '\\' => f.write_str("\\\\")?,
            '\n' => f.write_str("\\n")?,
            '\r' => f.write_str("\\r")?,
            '\t' => f.write_str("\\t")?,
            character if character == quote => write!(f, "\\{character}")?,
            character if (character as u32) < 0xA0 && character.is_control() => {
                write!(f, "\\x{:02x}", character as u32)?;
            }
            character => f.write_char(character)?,
        }
    }
    f.write_char(quote)
}

/// The shortest digits that give the number back; an exponent below 1e-4 and from 1e16 on.
fn write_float(number: f64, f: &mut impl Write) -> fmt::Result {
    if number.is_nan() {
        return f.write_str("nan");
    }
    if number.is_infinite() {
        return f.write_str(if number > 0.0 { "inf" } else { "-inf" });
    }
    let scientific = format!("{number:e}");
    let (digits, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().map_err(|_| fmt::Error)?;
    if (-4..16).contains(&exponent) {
        let plain = number.to_string();
        f.write_str(&plain)?;
        return if plain.contains('.') {
            Ok(())
        } else {
            f.write_str(".0")
        };
    }
    write!(
        f,
        "{digits}e{}{:02}",
        if exponent < 0 { '-' } else { '+' },
        exponent.abs()
    )
}

/// Indents could make a deep value's text much longer than the value.
const LONGEST_JSON: usize = 64 << 20;

/// How `json.dumps` prints.
struct JsonStyle {
    indent: Option<String>,
    item_separator: String,
    key_separator: String,
    ensure_ascii: bool,
    sort_keys: bool,
}

/// The filter `tojson(indent, ensure_ascii, separators, sort_keys)`: Python's `json.dumps` with non-ASCII text kept. A number
/// without a name is the indent.
pub(super) fn to_json(
    value: &Value,
    positional: Rest<Value>,
    named: Kwargs,
) -> Result<Value, Error> {
    let mut ensure_ascii: Option<bool> = named.get("ensure_ascii")?;
    let mut indent: Option<Value> = named.get("indent")?;
    for value in positional.0 {
        match value.kind() {
            ValueKind::Bool => ensure_ascii = Some(value.is_true()),
            _ => indent = Some(value),
        }
    }
    let separators: Option<Value> = named.get("separators")?;
    let sort_keys: Option<bool> = named.get("sort_keys")?;
    named.assert_all_used()?;
    let indent = indent
        .filter(|indent| !indent.is_none())
        .map(indent_text)
        .transpose()?;
    let mut style = JsonStyle {
        item_separator: if indent.is_some() { "," } else { ", " }.into(),
        key_separator: ": ".into(),
        indent,
        ensure_ascii: ensure_ascii.unwrap_or(false),
        sort_keys: sort_keys.unwrap_or(false),
    };
    if let Some(separators) = separators.filter(|separators| !separators.is_none()) {
        let text = |index: usize| {
            separators
                .get_item_by_index(index)
                .ok()
                .and_then(|item| item.as_str().map(String::from))
        };
        let (Some(items), Some(keys)) = (text(0), text(1)) else {
            return Err(invalid("tojson: separators must be two strings"));
        };
        (style.item_separator, style.key_separator) = (items, keys);
    }
    let mut out = String::new();
    write_json(value, &style, 0, &mut out)?;
    Ok(Value::from(out))
}

fn invalid(problem: impl Into<std::borrow::Cow<'static, str>>) -> Error {
    Error::new(ErrorKind::InvalidOperation, problem)
}

fn indent_text(indent: Value) -> Result<String, Error> {
    match (indent.as_str(), i64::try_from(indent.clone())) {
        (Some(text), _) => Ok(text.into()),
        (None, Ok(width)) if width <= 64 => Ok(" ".repeat(usize::try_from(width).unwrap_or(0))),
        _ => Err(invalid(format!(
            "tojson: indent is {indent}, expected a text or a number up to 64"
        ))),
    }
}

fn write_json(
    value: &Value,
    style: &JsonStyle,
    depth: usize,
    out: &mut String,
) -> Result<(), Error> {
    if depth > DEEPEST {
        return Err(invalid(format!(
            "tojson: the value is nested more than {DEEPEST} deep"
        )));
    }
    let unprintable = |_| invalid("tojson: the value cannot be printed");
    match value.kind() {
        ValueKind::None => out.push_str("null"),
        ValueKind::Bool => out.push_str(if value.is_true() { "true" } else { "false" }),
        ValueKind::Number if value.is_integer() => write!(out, "{value}").map_err(unprintable)?,
        ValueKind::Number => {
            write_float(f64::try_from(value.clone())?, out).map_err(unprintable)?
        }
        ValueKind::String => {
            write_json_text(value.as_str().unwrap_or_default(), style.ensure_ascii, out)
        }
        ValueKind::Seq | ValueKind::Iterable => {
            out.push('[');
            let mut count = 0;
            for item in value.try_iter()? {
                begin_item(count, style, depth + 1, out)?;
                write_json(&item, style, depth + 1, out)?;
                count += 1;
            }
            end_items(count, style, depth, out);
            out.push(']');
        }
        ValueKind::Map => {
            let mut keys: Vec<Value> = value.try_iter()?.collect();
            if style.sort_keys {
                keys.sort();
            }
            out.push('{');
            for (index, key) in keys.iter().enumerate() {
                begin_item(index, style, depth + 1, out)?;
                let name = match key.kind() {
                    ValueKind::None => "null".into(),
                    ValueKind::Bool => key.is_true().to_string(),
                    _ => text_of(key),
                };
                write_json_text(&name, style.ensure_ascii, out);
                out.push_str(&style.key_separator);
                write_json(&value.get_item(key)?, style, depth + 1, out)?;
            }
            end_items(keys.len(), style, depth, out);
            out.push('}');
        }
        kind => {
            return Err(invalid(format!(
                "tojson: a value of kind {kind} has no JSON"
            )));
        }
    }
    Ok(())
}

fn end_items(count: usize, style: &JsonStyle, depth: usize, out: &mut String) {
    if count > 0 {
        begin_line(style, depth, out);
    }
}

fn begin_item(
    index: usize,
    style: &JsonStyle,
    depth: usize,
    out: &mut String,
) -> Result<(), Error> {
    if out.len() > LONGEST_JSON {
        return Err(invalid("tojson: the text is longer than 64 MiB"));
    }
    if index > 0 {
        out.push_str(&style.item_separator);
    }
    begin_line(style, depth, out);
    Ok(())
}

fn begin_line(style: &JsonStyle, depth: usize, out: &mut String) {
    if let Some(indent) = &style.indent {
        out.push('\n');
        (0..depth).for_each(|_| out.push_str(indent));
    }
}

fn write_json_text(text: &str, ensure_ascii: bool, out: &mut String) {
    out.push('"');
    for character in text.chars() {
        match character {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\u{8}' => out.push_str("\\b"),
            '\u{c}' => out.push_str("\\f"),
            character if character < ' ' || ensure_ascii && !(' '..='~').contains(&character) => {
                for unit in character.encode_utf16(&mut [0; 2]) {
                    out.push_str(&format!("\\u{unit:04x}"));
                }
            }
            character => out.push(character),
        }
    }
    out.push('"');
}
