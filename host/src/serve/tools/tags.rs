//! Calls whose name and arguments stand in tags: `<function=f><parameter=a>1</parameter></function>` and its like.

use super::json::Told;
use super::typed::{self, Kinds, Signature};
use serde_json::Value;

/// How such calls are written.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Tags {
    /// Around the name.
    pub(super) name: [&'static str; 2],
    /// Around the name of an argument.
    pub(super) key: [&'static str; 2],
    /// Around its value; attributes before it are passed over.
    pub(super) value: [&'static str; 2],
    /// What models write before a value of text, and before others, where they tell them apart.
    pub(super) attributes: [&'static str; 2],
    /// Behind the arguments; empty where the call ends with the format's mark.
    pub(super) end: &'static str,
    /// What models write around values, no part of them.
    pub(super) around: &'static str,
    /// What they write behind the name, and behind each argument.
    pub(super) behind: &'static str,
    /// Whether all calls stand between the same marks.
    pub(super) together: bool,
}

/// The longest name, or what else is no value.
const NAME: usize = 1024;

/// Reads one call as it comes.
#[derive(Clone, Debug)]
pub(super) struct Tagged {
    tags: &'static Tags,
    /// The mark behind the call.
    close: &'static str,
    tools: Vec<Signature>,
    /// What came, and was not told.
    text: String,
    place: Place,
    schema: Value,
    kinds: Option<Kinds>,
    /// A value that is no text, as far as it came.
    value: String,
    /// Whether something of the value came.
    begun: bool,
    /// Keys that were told.
    told: Vec<String>,
    /// Whether the value is one that was told before.
    again: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Name,
    /// Before a key, or the end.
    Key,
    /// Between the key and its value.
    Between,
    Value,
    End,
}

/// What was found of something that is looked for.
enum Found<T> {
    Yes(T),
    No,
    /// It may yet.
    Wait,
}

/// Whether text begins with one of some marks, white space aside: how much, and which.
fn begins(text: &str, marks: &[&str]) -> Found<(usize, usize)> {
    let trimmed = text.trim_start();
    let blank = text.len() - trimmed.len();
    for (number, mark) in marks.iter().enumerate() {
        if trimmed.starts_with(mark) && !mark.is_empty() {
            return Found::Yes((blank + mark.len(), number));
        }
    }
    match marks
        .iter()
        .any(|mark| mark.starts_with(trimmed) && !mark.is_empty())
    {
        true => Found::Wait,
        false => Found::No,
    }
}

impl Tagged {
    pub(super) fn new(tags: &'static Tags, close: &'static str, tools: Vec<Signature>) -> Self {
        Self {
            tags,
            close,
            tools,
            text: String::new(),
            place: Place::Name,
            schema: Value::Null,
            kinds: None,
            value: String::new(),
            begun: false,
            told: Vec::new(),
            again: false,
        }
    }

    /// Takes text; gives how much of it belongs to the call, and `told` what it tells. `None` where it is none, or no more.
    pub(super) fn take(&mut self, text: &str, told: &mut Vec<Told>) -> Option<usize> {
        self.text.push_str(text);
        while self.place != Place::End {
            let more = match self.place {
                Place::Name => self.name(told)?,
                Place::Key => self.key(told)?,
                Place::Between => self.between()?,
                Place::Value => self.value(told)?,
                Place::End => false,
            };
            if !more {
                return Some(text.len());
            }
        }
        Some(text.len() - self.text.len())
    }

    fn name(&mut self, told: &mut Vec<Told>) -> Option<bool> {
        let [before, after] = self.tags.name;
        let trimmed = self.text.trim_start();
        if !trimmed.starts_with(before) {
            return before.starts_with(trimmed).then_some(false);
        }
        let begun = trimmed[before.len()..].trim_start();
        let right = |letter: char| letter.is_ascii_alphanumeric() || "_-.".contains(letter);
        let end = begun.find(|letter| !right(letter));
        let Some(end) = end.filter(|end| *end > 0) else {
            return (end.is_none() && begun.len() <= NAME).then_some(false);
        };
        let behind = &begun[end..];
        if !behind.starts_with(after) {
            return after.starts_with(behind).then_some(false);
        }
        let name = begun[..end].to_owned();
        let rest = behind[after.len()..].to_owned();
        self.schema = self
            .tools
            .iter()
            .find(|tool| tool.name == name)?
            .schema
            .clone();
        // A name without a mark behind it is known with what follows.
        if after.is_empty() {
            match begins(&rest, &[self.tags.key[0], self.ending()]) {
                Found::Yes(_) => {}
                Found::Wait => return Some(false),
                Found::No => return None,
            }
        }
        told.push(Told::Name(name));
        self.text = rest;
        self.place = Place::Key;
        Some(true)
    }

    /// The mark with which it ends.
    fn ending(&self) -> &'static str {
        match self.tags.end {
            "" => self.close,
            end => end,
        }
    }

    fn key(&mut self, told: &mut Vec<Told>) -> Option<bool> {
        let [before, after] = self.tags.key;
        match begins(&self.text, &[before, self.tags.end, self.close]) {
            Found::Wait => Some(false),
            Found::No => None,
            Found::Yes((count, 0)) => {
                let rest = &self.text[count..];
                let Some(at) = rest.find(after) else {
                    return (rest.len() <= NAME).then_some(false);
                };
                let key = rest[..at].trim().to_owned();
                if key.is_empty() {
                    return None;
                }
                self.text.drain(..count + at + after.len());
                self.kinds = Some(typed::kinds(&self.schema, &key));
                self.again = self.told.contains(&key);
                if !self.again {
                    let between = if self.told.is_empty() { "{" } else { ", " };
                    let written = Value::from(key.as_str());
                    told.push(Told::Arguments(format!("{between}{written}: ")));
                    self.told.push(key);
                }
                self.place = Place::Between;
                Some(true)
            }
            Found::Yes((count, which)) => {
                let end = if self.told.is_empty() { "{}" } else { "}" };
                told.push(Told::Arguments(end.to_owned()));
                told.push(if which == 1 { Told::End } else { Told::Closed });
                self.text.drain(..count);
                self.place = Place::End;
                Some(true)
            }
        }
    }

    fn between(&mut self) -> Option<bool> {
        let Some(at) = self.text.find(self.tags.value[0]) else {
            return (self.text.len() <= NAME).then_some(false);
        };
        self.text.drain(..at + self.tags.value[0].len());
        self.value.clear();
        self.begun = false;
        self.place = Place::Value;
        Some(true)
    }

    fn value(&mut self, told: &mut Vec<Told>) -> Option<bool> {
        if !self.begun {
            let around = self.tags.around;
            if self.text.len() < around.len() && around.starts_with(&self.text) {
                return Some(false);
            }
            if self.text.starts_with(around) {
                self.text.drain(..around.len());
            }
            self.begun = true;
            if self.only_text() {
                self.tell("\"".to_owned(), told);
            }
        }
        let mark = self.tags.value[1];
        let mut from = 0;
        while let Some(at) = self.text[from..].find(mark).map(|at| from + at) {
            // A text may have the mark in it: it is the end where a key or the end of the call follows.
            let behind = at + mark.len();
            match begins(
                &self.text[behind..],
                &[self.tags.key[0], self.tags.end, self.close],
            ) {
                Found::Yes(_) => {
                    let value = self.text[..at].to_owned();
                    let value = value.strip_suffix(self.tags.around).unwrap_or(&value);
                    self.more(value, told);
                    self.ended(told);
                    self.text.drain(..behind);
                    self.place = Place::Key;
                    return Some(true);
                }
                Found::Wait => {
                    self.certain(at, told);
                    return Some(false);
                }
                Found::No => from = behind,
            }
        }
        let end = self.text.len();
        let longest = (mark.len() - 1).min(end - from);
        let mut cuts = (end - longest..end).filter(|&at| self.text.is_char_boundary(at));
        let at = cuts.find(|&at| mark.starts_with(&self.text[at..]));
        self.certain(at.unwrap_or(end), told);
        Some(false)
    }

    /// What stands before `at` belongs to the value, but for what may stand around it.
    fn certain(&mut self, at: usize, told: &mut Vec<Told>) {
        let value = &self.text[..at];
        let value = value
            .strip_suffix(self.tags.around)
            .unwrap_or(value)
            .to_owned();
        self.text.drain(..value.len());
        self.more(&value, told);
    }

    fn only_text(&self) -> bool {
        self.kinds.is_some_and(Kinds::only_text)
    }

    fn tell(&self, text: String, told: &mut Vec<Told>) {
        if !self.again {
            told.push(Told::Arguments(text));
        }
    }

    /// More of a value; texts are told as they come.
    fn more(&mut self, text: &str, told: &mut Vec<Told>) {
        if text.is_empty() {
        } else if self.only_text() {
            let written = Value::from(text).to_string();
            self.tell(written[1..written.len() - 1].to_owned(), told);
        } else {
            self.value.push_str(text);
        }
    }

    fn ended(&mut self, told: &mut Vec<Told>) {
        if self.only_text() {
            self.tell("\"".to_owned(), told);
        } else if let Some(kinds) = self.kinds {
            let value = std::mem::take(&mut self.value);
            self.tell(typed::bare(&value, kinds), told);
        }
    }
}
