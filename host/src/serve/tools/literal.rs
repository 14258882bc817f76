//! Calls that are written like those of a programming language: `f(a=1, b="x")`, or `call:f{a:1,b:<escape>x<escape>}`.

use super::json::Told;
use super::typed::{self, Signature};
use serde_json::{Map, Number, Value};

/// How such calls are written.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Notation {
    /// Before the name.
    pub(super) before: &'static str,
    /// Around the arguments.
    pub(super) open: char,
    pub(super) close: char,
    /// Between the name of an argument and its value.
    pub(super) assign: char,
    /// Around texts, the longer first.
    pub(super) quotes: &'static [&'static str],
    /// Whether texts have escapes with `\`.
    pub(super) escapes: bool,
    /// How the words are written that JSON knows as `true`, `false` and `null`.
    pub(super) words: [&'static str; 3],
}

/// Python's.
pub(super) const PYTHON: Notation = Notation {
    before: "",
    open: '(',
    close: ')',
    assign: '=',
    quotes: &["\"\"\"", "'''", "\"", "'"],
    escapes: true,
    words: ["True", "False", "None"],
};

/// That of FunctionGemma.
pub(super) const ESCAPED: Notation = Notation {
    before: "call:",
    open: '{',
    close: '}',
    assign: ':',
    quotes: &["<escape>"],
    escapes: false,
    words: ["true", "false", "null"],
};

/// That of Gemma 4.
pub(super) const QUOTED: Notation = Notation {
    quotes: &["<|\"|>"],
    ..ESCAPED
};

/// A call as a notation has it.
pub(super) fn written(notation: &Notation, name: &str, arguments: &Value) -> String {
    let Notation {
        before,
        open,
        close,
        assign,
        ..
    } = *notation;
    let all = arguments.as_object().into_iter().flatten();
    let all = all.map(|(key, value)| format!("{key}{assign}{}", written_value(notation, value)));
    let comma = if notation.escapes { ", " } else { "," };
    let all = all.collect::<Vec<_>>().join(comma);
    format!("{before}{name}{open}{all}{close}")
}

fn written_value(notation: &Notation, value: &Value) -> String {
    let quoted = |text: &str| match (notation.escapes, notation.quotes.first()) {
        (false, Some(quote)) => format!("{quote}{text}{quote}"),
        _ => Value::from(text).to_string(),
    };
    let comma = if notation.escapes { ", " } else { "," };
    let [yes, no, nothing] = notation.words;
    match value {
        Value::Bool(true) => yes.to_owned(),
        Value::Bool(false) => no.to_owned(),
        Value::Null => nothing.to_owned(),
        Value::Number(number) => number.to_string(),
        Value::String(text) => quoted(text),
        Value::Array(all) => {
            let all = all.iter().map(|one| written_value(notation, one));
            format!("[{}]", all.collect::<Vec<_>>().join(comma))
        }
        Value::Object(all) => {
            let one = |(key, value): (&String, &Value)| {
                format!("{}: {}", quoted(key), written_value(notation, value))
            };
            let all = all.iter().map(one).collect::<Vec<_>>();
            format!("{{{}}}", all.join(comma))
        }
    }
}

/// How deep values are read.
const DEEP: usize = 64;
/// The longest name, bytes.
const NAME: usize = 1024;

/// Reads one call as it comes.
#[derive(Clone, Debug)]
pub(super) struct Literal {
    notation: &'static Notation,
    tools: Vec<Signature>,
    /// What came, and was not told.
    text: String,
    /// Up to where it is known what it is.
    at: usize,
    place: Place,
    name: String,
    key: String,
    /// Brackets that are due in a value.
    due: Vec<char>,
    /// The quotes of the text that goes on.
    quote: Option<&'static str>,
    /// Keys that were told.
    told: Vec<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Name,
    /// Before a key, or the end.
    Key,
    Value,
    End,
}

impl Literal {
    pub(super) fn new(notation: &'static Notation, tools: Vec<Signature>) -> Self {
        Self {
            notation,
            tools,
            text: String::new(),
            at: 0,
            place: Place::Name,
            name: String::new(),
            key: String::new(),
            due: Vec::new(),
            quote: None,
            told: Vec::new(),
        }
    }

    /// Takes text; gives how much of it belongs to the call, and `told` what it tells. `None` where it is none, or no more.
    pub(super) fn take(&mut self, text: &str, told: &mut Vec<Told>) -> Option<usize> {
        self.text.push_str(text);
        while self.place != Place::End {
            let more = match self.place {
                Place::Name => self.name()?,
                Place::Key => self.key(told)?,
                Place::Value => self.value(told)?,
                Place::End => false,
            };
            if !more {
                return Some(text.len());
            }
        }
        Some(text.len() - self.text.len())
    }

    /// Drops what is known.
    fn forget(&mut self, count: usize) {
        self.text.drain(..count);
        self.at = 0;
    }

    fn name(&mut self) -> Option<bool> {
        let Notation { before, open, .. } = *self.notation;
        let Some(at) = self.text.find(open) else {
            let begun = self.text.trim_start();
            let name = begun.strip_prefix(before);
            let right = |letter: char| letter.is_ascii_alphanumeric() || "_-. ".contains(letter);
            let may = match name {
                Some(name) => name.len() <= NAME && name.chars().all(right),
                None => before.starts_with(begun),
            };
            return may.then_some(false);
        };
        let name = self.text[..at].trim().strip_prefix(before)?.trim();
        self.tools.iter().find(|tool| tool.name == name)?;
        self.name = name.to_owned();
        self.forget(at + open.len_utf8());
        self.place = Place::Key;
        Some(true)
    }

    /// The name of an argument, or the end.
    fn key(&mut self, told: &mut Vec<Told>) -> Option<bool> {
        let Notation { close, assign, .. } = *self.notation;
        let begun = self.text.trim_start();
        let begun = begun
            .strip_prefix(',')
            .filter(|_| !self.told.is_empty())
            .unwrap_or(begun);
        let begun = begun.trim_start();
        if let Some(rest) = begun.strip_prefix(close) {
            let count = self.text.len() - rest.len();
            if self.told.is_empty() {
                told.push(Told::Name(self.name.clone()));
                told.push(Told::Arguments("{}".to_owned()));
            } else {
                told.push(Told::Arguments("}".to_owned()));
            }
            told.push(Told::End);
            self.forget(count);
            self.place = Place::End;
            return Some(true);
        }
        let Some(at) = begun.find(assign) else {
            let right = |letter: char| letter.is_alphanumeric() || "_-.$\"'| <>".contains(letter);
            let may = begun.chars().all(right) && begun.len() <= NAME;
            return may.then_some(false);
        };
        let written = begun[..at].trim();
        let mut key = written;
        for quote in self.notation.quotes {
            let inner = key
                .strip_prefix(quote)
                .and_then(|key| key.strip_suffix(quote));
            key = inner.unwrap_or(key);
        }
        if key.is_empty() || key.contains([',', '(', '{', '[']) {
            return None;
        }
        self.key = key.to_owned();
        let count = self.text.len() - begun.len() + at + assign.len_utf8();
        self.forget(count);
        self.place = Place::Value;
        Some(true)
    }

    /// The value of an argument, up to the comma or the end behind it.
    fn value(&mut self, told: &mut Vec<Told>) -> Option<bool> {
        let Notation {
            close,
            quotes,
            escapes,
            ..
        } = *self.notation;
        while self.at < self.text.len() {
            let rest = &self.text[self.at..];
            if let Some(quote) = self.quote {
                if rest.starts_with(quote) {
                    self.quote = None;
                    self.at += quote.len();
                } else if escapes && rest.starts_with('\\') {
                    let mut letters = rest.chars();
                    let both = letters.next().zip(letters.next());
                    let Some((_, second)) = both else {
                        return Some(false);
                    };
                    self.at += 1 + second.len_utf8();
                } else if quote.starts_with(rest) {
                    return Some(false);
                } else {
                    self.at += rest.chars().next().map_or(0, char::len_utf8);
                }
                continue;
            }
            if let Some(quote) = quotes.iter().find(|quote| rest.starts_with(**quote)) {
                // Two may be an empty text, or the beginning of three.
                if quotes
                    .iter()
                    .any(|longer| longer.len() > rest.len() && longer.starts_with(rest))
                {
                    return Some(false);
                }
                self.quote = Some(quote);
                self.at += quote.len();
                continue;
            }
            if quotes.iter().any(|quote| quote.starts_with(rest)) {
                return Some(false);
            }
            let letter = rest.chars().next()?;
            if self.due.is_empty() && (letter == ',' || letter == close) {
                return self.valued(told).then_some(true);
            }
            match letter {
                '(' => self.due.push(')'),
                '[' => self.due.push(']'),
                '{' => self.due.push('}'),
                ')' | ']' | '}' if self.due.pop() != Some(letter) => return None,
                _ => {}
            }
            if self.due.len() > DEEP {
                return None;
            }
            self.at += letter.len_utf8();
        }
        Some(false)
    }

    /// The value is whole: whether it is one.
    fn valued(&mut self, told: &mut Vec<Told>) -> bool {
        let written = self.text[..self.at].trim().to_owned();
        let Some(value) = read(&written, self.notation) else {
            return false;
        };
        self.forget(self.at);
        self.place = Place::Key;
        if self.told.contains(&self.key) {
            return true;
        }
        let tool = self.tools.iter().find(|tool| tool.name == self.name);
        let schema = tool.map(|tool| &tool.schema).unwrap_or(&Value::Null);
        let value = typed::literal(&value, &written, typed::kinds(schema, &self.key));
        let first = self.told.is_empty();
        if first {
            told.push(Told::Name(self.name.clone()));
        }
        let between = if first { "{" } else { ", " };
        let key = Value::from(self.key.as_str());
        told.push(Told::Arguments(format!("{between}{key}: {value}")));
        self.told.push(std::mem::take(&mut self.key));
        true
    }
}

/// A literal as a value; `None` where it is none.
pub(super) fn read(text: &str, notation: &Notation) -> Option<Value> {
    let mut rest = text.trim();
    let value = Read { notation }.value(&mut rest, DEEP)?;
    rest.trim().is_empty().then_some(value)
}

struct Read<'a> {
    notation: &'a Notation,
}

impl Read<'_> {
    fn value(&self, rest: &mut &str, deep: usize) -> Option<Value> {
        let deep = deep.checked_sub(1)?;
        *rest = rest.trim_start();
        if let Some(text) = self.text(rest) {
            return Some(Value::String(text?));
        }
        let open = rest.chars().next()?;
        match open {
            '[' | '(' => {
                let close = if open == '[' { ']' } else { ')' };
                let mut all = Vec::new();
                self.items(rest, close, |rest| {
                    all.push(self.value(rest, deep)?);
                    Some(())
                })?;
                Some(Value::Array(all))
            }
            '{' => {
                let mut all = Map::new();
                self.items(rest, '}', |rest| {
                    let key = self.key(rest)?;
                    *rest = rest.trim_start().strip_prefix(':')?;
                    all.insert(key, self.value(rest, deep)?);
                    Some(())
                })?;
                Some(Value::Object(all))
            }
            _ => self.word(rest),
        }
    }

    /// What stands between brackets and commas.
    fn items(
        &self,
        rest: &mut &str,
        close: char,
        mut item: impl FnMut(&mut &str) -> Option<()>,
    ) -> Option<()> {
        *rest = &rest[1..];
        loop {
            *rest = rest.trim_start();
            if let Some(behind) = rest.strip_prefix(close) {
                *rest = behind;
                return Some(());
            }
            item(rest)?;
            *rest = rest.trim_start();
            if let Some(behind) = rest.strip_prefix(',') {
                *rest = behind;
            } else if !rest.starts_with(close) {
                return None;
            }
        }
    }

    /// The key of an object: a text, or without quotes where the notation has no others.
    fn key(&self, rest: &mut &str) -> Option<String> {
        *rest = rest.trim_start();
        if let Some(text) = self.text(rest) {
            return text;
        }
        let at = rest.find(':').filter(|_| !self.notation.escapes)?;
        let key = rest[..at].trim().to_owned();
        *rest = &rest[at..];
        (!key.is_empty()).then_some(key)
    }

    /// A text in quotes; `None` where none begins, and inside of it where it does not end.
    fn text(&self, rest: &mut &str) -> Option<Option<String>> {
        let Notation {
            quotes, escapes, ..
        } = *self.notation;
        // What is written as JSON is taken besides.
        let json = if escapes { None } else { Some(&"\"") };
        let quote = quotes
            .iter()
            .chain(json)
            .find(|quote| rest.starts_with(**quote))?;
        *rest = &rest[quote.len()..];
        let mut text = String::new();
        loop {
            if let Some(behind) = rest.strip_prefix(quote) {
                *rest = behind;
                return Some(Some(text));
            }
            let Some(letter) = rest.chars().next() else {
                return Some(None);
            };
            *rest = &rest[letter.len_utf8()..];
            match letter {
                '\\' if escapes => {
                    if escape(rest, &mut text).is_none() {
                        return Some(None);
                    }
                }
                letter => text.push(letter),
            }
        }
    }

    fn word(&self, rest: &mut &str) -> Option<Value> {
        let end = rest.find([',', ']', ')', '}']).unwrap_or(rest.len());
        let word = rest[..end].trim();
        let [yes, no, nothing] = self.notation.words;
        let value = match word {
            "true" => Value::Bool(true),
            "false" => Value::Bool(false),
            "null" => Value::Null,
            _ if word == yes => Value::Bool(true),
            _ if word == no => Value::Bool(false),
            _ if word == nothing => Value::Null,
            _ => Value::Number(serde_json::from_str::<Number>(word).ok()?),
        };
        *rest = &rest[end..];
        Some(value)
    }
}

/// What stands behind a `\`.
fn escape(rest: &mut &str, text: &mut String) -> Option<()> {
    let letter = rest.chars().next()?;
    *rest = &rest[letter.len_utf8()..];
    let digits = |rest: &mut &str, count: usize| {
        let code = u32::from_str_radix(rest.get(..count)?, 16).ok()?;
        *rest = &rest[count..];
        Some(code)
    };
    match letter {
        '\n' => {}
        'n' => text.push('\n'),
        't' => text.push('\t'),
        'r' => text.push('\r'),
        'b' => text.push('\u{8}'),
        'f' => text.push('\u{c}'),
        '\\' | '\'' | '"' | '/' => text.push(letter),
        'x' => text.push(char::from_u32(digits(rest, 2)?)?),
        'U' => text.push(char::from_u32(digits(rest, 8)?)?),
        'u' => {
            let first = digits(rest, 4)?;
            let mut behind = rest.strip_prefix("\\u").unwrap_or_default();
            let second = match first {
                0xD800..=0xDBFF => digits(&mut behind, 4),
                _ => None,
            };
            match second {
                // Two halves, as JSON writes letters beyond the first plane.
                Some(second @ 0xDC00..=0xDFFF) => {
                    *rest = behind;
                    let code = 0x1_0000 + ((first - 0xD800) << 10) + (second - 0xDC00);
                    text.push(char::from_u32(code)?);
                }
                // A half by itself is no letter.
                _ => text.push(char::from_u32(first).unwrap_or(char::REPLACEMENT_CHARACTER)),
            }
        }
        // As Python has it.
        other => text.extend(['\\', other]),
    }
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn literals_of_python() {
        for (text, value) in [
            ("1", json!(1)),
            (" -1.5e3 ", json!(-1500.0)),
            ("True", json!(true)),
            ("None", json!(null)),
            ("true", json!(true)),
            ("'a\"b'", json!("a\"b")),
            (
                r#""a\"b\n\u00e9\ud83d\ude00\x41\d""#,
                json!("a\"b\né😀A\\d"),
            ),
            ("'''a\n'b'''", json!("a\n'b")),
            (r"'\ud800\u0041'", json!("\u{fffd}A")),
            ("[1, 'a', [], (2,),]", json!([1, "a", [], [2]])),
            (
                "{'a': {\"b\": None}, 'c': [True]}",
                json!({ "a": { "b": null }, "c": [true] }),
            ),
        ] {
            assert_eq!(read(text, &PYTHON), Some(value), "{text}");
        }
        for wrong in [
            "", "a", "f(1)", "'a", "[1", "{1: 2}", "1 2", "{'a'}", "'\\x4'", "x=1", "[1 2]", "'\\",
        ] {
            assert_eq!(read(wrong, &PYTHON), None, "{wrong}");
        }
        let deep = "[".repeat(100_000);
        assert_eq!(read(&deep, &PYTHON), None);
    }

    #[test]
    fn what_is_written_is_read() {
        let value = json!({ "a": [1, "x\n\"", true, null, { "b": -0.5 }], "c": false });
        for notation in [&PYTHON, &QUOTED] {
            let text = written_value(notation, &value);
            assert_eq!(read(&text, notation), Some(value.clone()), "{text}");
        }
        assert_eq!(
            written(&PYTHON, "f", &json!({ "a": 1, "b": "x" })),
            "f(a=1, b=\"x\")"
        );
        assert_eq!(
            written(&ESCAPED, "f", &json!({ "b": "x" })),
            "call:f{b:<escape>x<escape>}"
        );
        assert_eq!(written(&PYTHON, "f", &json!({})), "f()");
    }

    #[test]
    fn literals_of_gemma() {
        for (text, value) in [
            ("<escape>a,}b<escape>", json!("a,}b")),
            ("<escape>a\\n<escape>", json!("a\\n")),
            ("[<escape>a<escape>,1]", json!(["a", 1])),
            (
                "{a:<escape>b<escape>,<escape>c<escape>:true}",
                json!({ "a": "b", "c": true }),
            ),
            ("\"a\"", json!("a")),
        ] {
            assert_eq!(read(text, &ESCAPED), Some(value), "{text}");
        }
        for wrong in ["", "a b", "<escape>a", "{:1}", "[<escape>]"] {
            assert_eq!(read(wrong, &ESCAPED), None, "{wrong}");
        }
    }
}
