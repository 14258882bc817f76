//! From a reply's text to what it says and which tools it calls.
//!
//! Text that may yet turn out to be a mark is held back, and given when it turns out to be text; marks never are. What comes
//! out depends on the text alone, never on how it was cut.

use super::formats::{Body, Format};
use super::json::{Object, Step, Told, Value};
use std::hash::{BuildHasher, RandomState};

/// A part of a reply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::serve) enum Piece {
    /// More of what it says.
    Text(String),
    /// A tool is called: the calls of a reply are numbered from 0.
    Begun {
        number: usize,
        id: String,
        name: String,
    },
    /// More of the arguments of call `number`: JSON, as it is written.
    Arguments { number: usize, text: String },
}

/// A call as a whole.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(in crate::serve) struct Call {
    pub(in crate::serve) id: String,
    pub(in crate::serve) name: String,
    /// JSON, as the model wrote it.
    pub(in crate::serve) arguments: String,
}

/// Reads one reply.
#[derive(Debug)]
pub(in crate::serve) struct Reader {
    /// `None` where no tool may be called: all is text.
    format: Option<&'static Format>,
    /// The names of tools that may be called.
    names: Vec<String>,
    state: State,
    /// Text that is not decided.
    held: String,
    /// What was read since the mark, for the case that it is text after all.
    raw: String,
    /// Calls that there were before the mark.
    before: usize,
    said: String,
    calls: Vec<Call>,
    /// Calls that are whole.
    whole: usize,
}

#[derive(Debug)]
enum State {
    Text,
    /// Behind the mark.
    Open,
    /// Before an item of a list.
    Item,
    Object(Object),
    /// Before a call that begins with its name.
    Head,
    Name,
    Arguments(Value),
    /// Behind the arguments of a call that began with its name.
    Tail,
    /// Behind an object.
    Behind,
    Close,
    /// It was a call, and went wrong: all up to the closing mark is passed over.
    Broken,
}

/// Whether text begins with something, white space aside.
enum Match {
    Yes(usize),
    No,
    /// It may yet.
    Wait,
}

fn begins(text: &str, with: &str) -> Match {
    let with = with.trim_start();
    let trimmed = text.trim_start();
    if trimmed.starts_with(with) {
        Match::Yes(text.len() - trimmed.len() + with.len())
    } else if with.starts_with(trimmed) {
        Match::Wait
    } else {
        Match::No
    }
}

/// Where text ends with what may be the beginning of `mark`.
fn partial(text: &str, mark: &str) -> usize {
    let longest = mark.len().saturating_sub(1).min(text.len());
    let start = (text.len() - longest..text.len())
        .find(|&at| text.is_char_boundary(at) && mark.starts_with(&text[at..]));
    start.unwrap_or(text.len())
}

impl Reader {
    /// Of a reply that may call the tools of these names in this format.
    pub(in crate::serve) fn new(format: &'static Format, names: Vec<String>) -> Self {
        Self {
            format: Some(format),
            state: if format.bare {
                State::Open
            } else {
                State::Text
            },
            ..Self::text(names)
        }
    }

    /// Of a reply that is text.
    pub(in crate::serve) fn plain() -> Self {
        Self::text(Vec::new())
    }

    fn text(names: Vec<String>) -> Self {
        Self {
            format: None,
            names,
            state: State::Text,
            held: String::new(),
            raw: String::new(),
            before: 0,
            said: String::new(),
            calls: Vec::new(),
            whole: 0,
        }
    }

    /// What it said, and the calls.
    pub(in crate::serve) fn into_parts(self) -> (String, Vec<Call>) {
        (self.said, self.calls)
    }

    /// How many calls are whole.
    pub(in crate::serve) fn whole(&self) -> usize {
        self.whole
    }

    /// What is certain with more of the text.
    pub(in crate::serve) fn push(&mut self, text: &str) -> Vec<Piece> {
        let mut out = Vec::new();
        let Some(format) = self.format else {
            self.say(text.to_owned(), &mut out);
            return out;
        };
        self.held.push_str(text);
        while self.step(format, &mut out) {}
        out
    }

    /// What is certain with the end. A reply that was `cut` in a call is not taken for text.
    pub(in crate::serve) fn finish(&mut self, cut: bool) -> Vec<Piece> {
        let mut out = Vec::new();
        let Some(format) = self.format else {
            return out;
        };
        // Arguments that are a bare number or word end with the text.
        if let (State::Tail | State::Behind | State::Close, "") = (&self.state, format.close) {
            self.state = State::Text;
        }
        let undecided = std::mem::take(&mut self.held);
        match self.state {
            State::Text if self.calls.is_empty() || !undecided.trim().is_empty() => {
                self.say(undecided, &mut out);
            }
            State::Text | State::Broken | State::Close => {}
            _ if self.calls.len() > self.before => {}
            _ => {
                let text = std::mem::take(&mut self.raw) + &undecided;
                let marked = !format.open.is_empty() && text.trim_start().starts_with(format.open);
                let blank = !self.calls.is_empty() && text.trim().is_empty();
                if !(blank || cut && marked) {
                    self.say(text, &mut out);
                }
            }
        }
        self.state = State::Text;
        out
    }

    fn say(&mut self, text: String, out: &mut Vec<Piece>) {
        if !text.is_empty() {
            self.said.push_str(&text);
            out.push(Piece::Text(text));
        }
    }

    /// Takes the first `count` bytes of what is held.
    fn consume(&mut self, count: usize) {
        let rest = self.held.split_off(count);
        let taken = std::mem::replace(&mut self.held, rest);
        if self.calls.len() == self.before {
            self.raw.push_str(&taken);
        }
    }

    /// Goes on by one; whether there may be more to do.
    fn step(&mut self, format: &'static Format, out: &mut Vec<Piece>) -> bool {
        match &mut self.state {
            State::Text => return self.read_text(format, out),
            State::Object(object) => {
                let mut told = Vec::new();
                let taken = object.take(&self.held, &mut told);
                self.consume(taken.unwrap_or_default());
                for one in told {
                    match one {
                        Told::Name(name) => {
                            if !self.begin(name, out) {
                                return self.fail(out);
                            }
                        }
                        Told::Arguments(text) => self.argue(text, out),
                        Told::End => {
                            self.whole += 1;
                            self.state = State::Behind;
                            return true;
                        }
                    }
                }
                return taken.is_none() && self.fail(out);
            }
            State::Arguments(value) => {
                let mut ended = None;
                for (at, byte) in self.held.bytes().enumerate() {
                    match value.step(byte) {
                        Step::Within => continue,
                        Step::Last => ended = Some(at + 1),
                        Step::After => ended = Some(at),
                        Step::Wrong => return self.fail(out),
                    }
                    break;
                }
                let text = self.held[..ended.unwrap_or(self.held.len())].to_owned();
                self.consume(text.len());
                self.argue(text, out);
                if ended.is_some() {
                    self.whole += 1;
                    self.state = State::Tail;
                }
                return ended.is_some();
            }
            State::Name => {
                let Body::Named { middle, .. } = format.body else {
                    return self.fail(out);
                };
                let Some(at) = self.held.find(middle) else {
                    // No name is as long.
                    return self.held.len() > 1024 && self.fail(out);
                };
                let name = self.held[..at].to_owned();
                self.consume(at + middle.len());
                if !self.begin(name.trim().to_owned(), out) {
                    return self.fail(out);
                }
                self.state = State::Arguments(Value::default());
                // White space before the arguments is no part of them.
                let blank = self.held.len() - self.held.trim_start().len();
                self.consume(blank);
                return true;
            }
            State::Broken => {
                if format.close.is_empty() {
                    self.held.clear();
                    return false;
                }
                match self.held.find(format.close) {
                    Some(at) => {
                        self.consume(at + format.close.len());
                        self.state = State::Text;
                        return true;
                    }
                    None => {
                        let keep = partial(&self.held, format.close);
                        self.consume(keep);
                        return false;
                    }
                }
            }
            State::Open
            | State::Item
            | State::Head
            | State::Tail
            | State::Behind
            | State::Close => {}
        }
        self.read_mark(format, out)
    }

    fn read_text(&mut self, format: &'static Format, out: &mut Vec<Piece>) -> bool {
        let mark = format.open;
        if let Some(at) = (!mark.is_empty()).then(|| self.held.find(mark)).flatten() {
            let rest = self.held.split_off(at);
            let text = std::mem::replace(&mut self.held, rest);
            // White space before a mark is no text, unless the mark is.
            let (text, blank) = text.split_at(text.trim_end().len());
            self.say(text.to_owned(), out);
            self.before = self.calls.len();
            self.raw = blank.to_owned();
            self.consume(mark.len());
            self.state = State::Open;
            return true;
        }
        let certain = self.held.trim_end().len();
        let certain = certain.min(partial(&self.held, mark));
        let certain = self.held[..certain].trim_end().len();
        let rest = self.held.split_off(certain);
        let text = std::mem::replace(&mut self.held, rest);
        self.say(text, out);
        false
    }

    /// What stands around names and objects.
    fn read_mark(&mut self, format: &'static Format, out: &mut Vec<Piece>) -> bool {
        let next = if format.bare {
            State::Open
        } else {
            State::Text
        };
        let close = (format.close, next);
        // What may stand here, in this order, and what is next then.
        let (first, second): ((&str, State), Option<(&str, State)>) =
            match (&self.state, format.body) {
                (State::Open, _) if format.bare && self.raw.is_empty() => {
                    return self.read_bare(format);
                }
                (State::Open, Body::Object { name, arguments }) => {
                    return self.expect_object(name, arguments, None, out);
                }
                (State::Open, Body::List { .. }) => (("[", State::Item), None),
                (State::Item, Body::List { name, arguments }) => {
                    return self.expect_object(name, arguments, Some(("]", State::Close)), out);
                }
                (State::Open, Body::Named { .. }) => {
                    self.state = State::Head;
                    return true;
                }
                (State::Head, Body::Named { before, .. }) => (
                    (before, State::Name),
                    (!format.close.is_empty()).then_some(close),
                ),
                (State::Tail, Body::Named { after, .. }) => {
                    let next = if format.close.is_empty() {
                        State::Text
                    } else {
                        State::Head
                    };
                    ((after, next), None)
                }
                (State::Behind, Body::List { .. }) => {
                    ((",", State::Item), Some(("]", State::Close)))
                }
                _ => (close, None),
            };
        self.choose(first, second, out)
    }

    /// A reply, or what follows a call, that may be a call with or without the mark.
    fn read_bare(&mut self, format: &'static Format) -> bool {
        if !self.calls.is_empty()
            && let Match::Yes(count) = begins(&self.held, ";")
        {
            self.held.drain(..count);
        }
        let first = self.held.trim_start();
        if first.is_empty() || (first.len() < format.open.len() && format.open.starts_with(first)) {
            return false;
        }
        let count = match begins(&self.held, format.open) {
            Match::Yes(count) => count,
            // White space, so that this is behind it.
            _ => self.held.len() - first.len(),
        };
        self.before = self.calls.len();
        if count == 0 {
            self.state = match format.body {
                Body::Object { name, arguments } => {
                    State::Object(Object::new(name, arguments, true))
                }
                _ => State::Text,
            };
        } else {
            self.consume(count);
        }
        true
    }

    fn expect_object(
        &mut self,
        name: &'static str,
        arguments: &'static str,
        or: Option<(&str, State)>,
        out: &mut Vec<Piece>,
    ) -> bool {
        match begins(&self.held, "{") {
            Match::Yes(count) => {
                self.consume(count - 1);
                let bare = self.format.is_some_and(|format| format.bare);
                self.state = State::Object(Object::new(name, arguments, bare));
                true
            }
            Match::Wait => false,
            Match::No => match or {
                Some(or) => self.choose(or, None, out),
                None => self.fail(out),
            },
        }
    }

    fn choose(
        &mut self,
        (mark, next): (&str, State),
        or: Option<(&str, State)>,
        out: &mut Vec<Piece>,
    ) -> bool {
        // Nothing has to stand here.
        if mark.is_empty() {
            self.state = next;
            return true;
        }
        match begins(&self.held, mark) {
            Match::Yes(count) => {
                self.consume(count);
                self.state = next;
                true
            }
            Match::Wait => false,
            Match::No => match or {
                Some(or) => self.choose(or, None, out),
                None => self.fail(out),
            },
        }
    }

    /// It is no call: text, where nothing of it was told.
    fn fail(&mut self, out: &mut Vec<Piece>) -> bool {
        if self.calls.len() > self.before {
            self.state = State::Broken;
            return true;
        }
        let raw = std::mem::take(&mut self.raw);
        self.state = State::Text;
        self.say(raw, out);
        true
    }

    /// Whether a tool of this name may be called; it is told then.
    fn begin(&mut self, name: String, out: &mut Vec<Piece>) -> bool {
        if !self.names.contains(&name) {
            return false;
        }
        let short = self.format.is_some_and(|format| format.short_ids);
        let (number, id) = (self.calls.len(), call_id(short));
        self.calls.push(Call {
            id: id.clone(),
            name: name.clone(),
            arguments: String::new(),
        });
        self.raw.clear();
        out.push(Piece::Begun { number, id, name });
        true
    }

    fn argue(&mut self, text: String, out: &mut Vec<Piece>) {
        if let (Some(call), false) = (self.calls.last_mut(), text.is_empty()) {
            call.arguments.push_str(&text);
            let number = self.calls.len() - 1;
            out.push(Piece::Arguments { number, text });
        }
    }
}

/// An id that no other call has.
fn call_id(short: bool) -> String {
    const DIGITS: &[u8; 36] = b"0123456789abcdefghijklmnopqrstuvwxyz";
    let mut random = RandomState::new().hash_one(0);
    let mut id = String::from(if short { "" } else { "call_" });
    for _ in 0..9 {
        id.push(char::from(DIGITS[(random % 36) as usize]));
        random /= 36;
    }
    id
}

#[cfg(test)]
mod tests;
