//! From a reply's text to what it says and which tools it calls.
//!
//! Text that may yet turn out to be a mark is held back, and given when it turns out to be text; marks never are. What comes
//! out depends on the text alone, never on how it was cut.

use super::channels::{self, Channels, Said};
use super::formats::{Body, Format, Ids};
use super::json::{Object, Step, Told, Value};
use super::literal::Literal;
use super::tags::Tagged;
use super::thoughts::{Thinker, Thoughts};
use super::typed::Signature;
use std::hash::{BuildHasher, RandomState};

/// A part of a reply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::serve) enum Piece {
    /// More of what it says.
    Text(String),
    /// More of what is thought before that.
    Thought(String),
    /// A tool is called: the calls of a reply are numbered from 0.
    Begun {
        number: usize,
        id: String,
        name: String,
    },
    /// More of the arguments of call `number`: JSON.
    Arguments { number: usize, text: String },
}

/// A call as a whole.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(in crate::serve) struct Call {
    pub(in crate::serve) id: String,
    pub(in crate::serve) name: String,
    /// JSON: as the model wrote it where it writes JSON.
    pub(in crate::serve) arguments: String,
}

impl Call {
    /// Its arguments; `None` where they were cut off, and are no JSON.
    pub(in crate::serve) fn value(&self) -> Option<serde_json::Value> {
        serde_json::from_str(&self.arguments).ok()
    }
}

/// Reads one reply.
#[derive(Debug)]
pub(in crate::serve) struct Reader {
    /// `None` where no tool may be called: all is text.
    format: Option<&'static Format>,
    /// Takes thoughts out, where there may be any.
    thinker: Option<Thinker>,
    /// Where all of it stands in channels.
    channels: Option<Channels>,
    thought: String,
    /// The tools that may be called.
    tools: Vec<Signature>,
    /// Marks that came as tokens that are no text: they are never said.
    hidden: Vec<String>,
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
    /// In a call by itself.
    Call(Box<Written>),
    /// Before a call that begins with its name.
    Head,
    Name,
    Arguments(Value),
    /// Behind the arguments of a call that began with its name.
    Tail,
    /// Behind a call by itself.
    Behind,
    Close,
    /// It was a call, and went wrong: all up to the closing mark is passed over.
    Broken,
}

/// A call by itself, by how it is written.
#[derive(Debug)]
enum Written {
    Object(Object),
    Tagged(Tagged),
    Literal(Literal),
}

impl Written {
    fn take(&mut self, text: &str, told: &mut Vec<Told>) -> Option<usize> {
        match self {
            Self::Object(object) => object.take(text, told),
            Self::Tagged(tagged) => tagged.take(text, told),
            Self::Literal(literal) => literal.take(text, told),
        }
    }
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
pub(super) fn partial(text: &str, mark: &str) -> usize {
    let longest = mark.len().saturating_sub(1).min(text.len());
    let start = (text.len() - longest..text.len())
        .find(|&at| text.is_char_boundary(at) && mark.starts_with(&text[at..]));
    start.unwrap_or(text.len())
}

impl Reader {
    /// Of a reply that may call these tools in this format.
    pub(in crate::serve) fn new(format: &'static Format, tools: Vec<Signature>) -> Self {
        Self {
            format: Some(format),
            state: if format.bare {
                State::Open
            } else {
                State::Text
            },
            channels: (format.body == Body::Channels).then(Channels::default),
            hidden: format.passed_over.iter().map(|&mark| mark.into()).collect(),
            ..Self::text(tools)
        }
    }

    /// Of a reply that is text.
    pub(in crate::serve) fn plain() -> Self {
        Self::text(Vec::new())
    }

    fn text(tools: Vec<Signature>) -> Self {
        Self {
            format: None,
            thinker: None,
            channels: None,
            thought: String::new(),
            tools,
            hidden: Vec::new(),
            state: State::Text,
            held: String::new(),
            raw: String::new(),
            before: 0,
            said: String::new(),
            calls: Vec::new(),
            whole: 0,
        }
    }

    /// The same of a reply that may think before.
    pub(in crate::serve) fn thinking(mut self, thoughts: Option<Thoughts>) -> Self {
        self.thinker = thoughts.map(Thinker::new);
        self
    }

    /// Whether it thinks.
    pub(in crate::serve) fn thinks(&self) -> bool {
        let channels = self.channels.as_ref();
        self.thinker.as_ref().is_some_and(Thinker::is_within)
            || channels.is_some_and(Channels::is_within)
    }

    /// What it thought, what it said, and the calls.
    pub(in crate::serve) fn into_parts(self) -> (String, String, Vec<Call>) {
        (self.thought, self.said, self.calls)
    }

    /// How many calls are whole.
    pub(in crate::serve) fn whole(&self) -> usize {
        self.whole
    }

    /// What is certain with more of the text.
    pub(in crate::serve) fn push(&mut self, text: &str) -> Vec<Piece> {
        let mut out = Vec::new();
        let parts = self.thinker.as_mut().map(|thinker| thinker.push(text));
        match parts {
            Some(parts) => self.push_parts(parts, &mut out),
            None => self.push_text(text, &mut out),
        }
        out
    }

    fn push_parts(&mut self, (thought, text): (String, String), out: &mut Vec<Piece>) {
        if !thought.is_empty() {
            self.thought.push_str(&thought);
            out.push(Piece::Thought(thought));
        }
        self.push_text(&text, out);
    }

    fn push_text(&mut self, text: &str, out: &mut Vec<Piece>) {
        if text.is_empty() {
            return;
        }
        if let Some(channels) = &mut self.channels {
            let tools = &self.tools;
            let known = |name: &str| tools.iter().any(|tool| tool.name == name);
            let told = channels.push(text, known);
            self.take_channels(told, out);
            return;
        }
        let Some(format) = self.format else {
            self.say(text.to_owned(), out);
            return;
        };
        self.held.push_str(text);
        while self.step(format, out) {}
    }

    fn take_channels(&mut self, told: Vec<Said>, out: &mut Vec<Piece>) {
        for one in told {
            match one {
                Said::Text(text) => self.say(text, out),
                Said::Thought(text) if text.is_empty() => {}
                Said::Thought(text) => {
                    self.thought.push_str(&text);
                    out.push(Piece::Thought(text));
                }
                Said::Call(name) => {
                    self.begin(name, None, out);
                }
                Said::Arguments(text) => self.argue(text, out),
                Said::Whole => self.whole += 1,
            }
        }
    }

    /// The same with a mark that came as a token, and is no text.
    pub(in crate::serve) fn push_mark(&mut self, mark: &str) -> Vec<Piece> {
        let mut out = Vec::new();
        if self.channels.is_some() {
            if channels::MARKS.contains(&mark) {
                self.push_text(mark, &mut out);
            }
            return out;
        }
        let call = self.format.map_or("", |format| format.open);
        let thinker = self.thinker.as_mut();
        if let Some(parts) = thinker.and_then(|thinker| thinker.push_mark(mark, call)) {
            self.push_parts(parts, &mut out);
            return out;
        }
        let Some(format) = self.format else {
            return out;
        };
        let outside = match self.state {
            State::Text => true,
            State::Open => format.bare && self.raw.is_empty(),
            _ => false,
        };
        if format.passed_over.contains(&mark) || outside && !format.open.contains(mark) {
            return out;
        }
        if self.hidden.iter().all(|known| known != mark) {
            self.hidden.push(mark.to_owned());
        }
        self.push_text(mark, &mut out);
        out
    }

    /// What is certain with the end. A reply that was `cut` in a call, or in the mark before one, is not taken for text.
    pub(in crate::serve) fn finish(&mut self, cut: bool) -> Vec<Piece> {
        let mut out = Vec::new();
        if let Some(mut channels) = self.channels.take() {
            self.take_channels(channels.finish(), &mut out);
            return out;
        }
        if let Some(mut thinker) = self.thinker.take() {
            self.push_parts(thinker.finish(), &mut out);
        }
        let Some(format) = self.format else {
            return out;
        };
        // Arguments that are a bare number or word end with the text.
        if let (State::Tail | State::Behind | State::Close, "") = (&self.state, format.close) {
            self.state = State::Text;
        }
        let mut undecided = std::mem::take(&mut self.held);
        let mark = partial(&undecided, format.open);
        if cut && mark < undecided.len() && matches!(self.state, State::Text) {
            undecided.truncate(undecided[..mark].trim_end().len());
        }
        match self.state {
            State::Text if self.calls.is_empty() || !undecided.trim().is_empty() => {
                self.say(undecided, &mut out);
            }
            State::Text | State::Broken | State::Close => {}
            _ if self.calls.len() > self.before => {}
            _ => {
                let text = std::mem::take(&mut self.raw) + &undecided;
                let (mark, begun) = (format.open, text.trim_start());
                let marked =
                    !mark.is_empty() && (begun.starts_with(mark) || mark.starts_with(begun));
                let blank = !self.calls.is_empty() && text.trim().is_empty();
                if !(blank || cut && marked) {
                    self.say(text, &mut out);
                }
            }
        }
        self.state = State::Text;
        out
    }

    fn say(&mut self, mut text: String, out: &mut Vec<Piece>) {
        for mark in &self.hidden {
            if text.contains(mark) {
                text = text.replace(mark, "");
            }
        }
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
            State::Call(written) => {
                let mut told = Vec::new();
                let taken = written.take(&self.held, &mut told);
                self.consume(taken.unwrap_or_default());
                for one in told {
                    match one {
                        Told::Name(name) => {
                            if !self.begin(name, None, out) {
                                return self.fail(out);
                            }
                        }
                        Told::Arguments(text) => self.argue(text, out),
                        Told::End => {
                            self.whole += 1;
                            self.state = State::Behind;
                            return true;
                        }
                        Told::Closed => {
                            self.whole += 1;
                            self.state = State::Text;
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
                let written = self.held[..at].trim().to_owned();
                self.consume(at + middle.len());
                let numbered = format.ids == Ids::Numbered;
                let parts = written.rsplit_once(':').filter(|_| numbered);
                let name = parts.map_or(&*written, |(name, _)| name).to_owned();
                let id = parts.map(|_| format!("functions.{written}"));
                if !self.begin(name, id, out) {
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
        let others = format.passed_over.iter();
        let others = others.map(|other| partial(&self.held, other));
        let certain = others.fold(certain, usize::min);
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
                (State::Open, Body::List { .. } | Body::Literals(_)) => (("[", State::Item), None),
                (State::Open, Body::Tagged(_) | Body::Literal(_)) => {
                    return self.expect_call(format);
                }
                (State::Item, Body::List { name, arguments }) => {
                    return self.expect_object(name, arguments, Some(("]", State::Close)), out);
                }
                (State::Item, Body::Literals(_)) => match begins(&self.held, "]") {
                    Match::No => return self.expect_call(format),
                    _ => (("]", State::Close), None),
                },
                (State::Behind, Body::Tagged(tags)) if !tags.name[0].is_empty() => {
                    return self.expect_another(format, tags.name[0], out);
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
                (State::Behind, body) if body.is_list() => {
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
                    let object = Object::new(name, arguments, true);
                    State::Call(Box::new(Written::Object(object)))
                }
                Body::Literals(_) if first.starts_with('[') => {
                    self.consume(1);
                    State::Item
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
                let object = Object::new(name, arguments, bare);
                self.state = State::Call(Box::new(Written::Object(object)));
                true
            }
            Match::Wait => false,
            Match::No => match or {
                Some(or) => self.choose(or, None, out),
                None => self.fail(out),
            },
        }
    }

    /// A call that tells by itself whether it is one.
    fn expect_call(&mut self, format: &'static Format) -> bool {
        let tools = self.tools.clone();
        let written = match format.body {
            Body::Tagged(tags) => Written::Tagged(Tagged::new(tags, format.close, tools)),
            Body::Literal(notation) | Body::Literals(notation) => {
                Written::Literal(Literal::new(notation, tools))
            }
            _ => return false,
        };
        self.state = State::Call(Box::new(written));
        true
    }

    /// Behind a call: the closing mark, or one more call.
    fn expect_another(
        &mut self,
        format: &'static Format,
        next: &str,
        out: &mut Vec<Piece>,
    ) -> bool {
        match (begins(&self.held, format.close), begins(&self.held, next)) {
            (Match::Yes(count), _) => {
                self.consume(count);
                self.state = State::Text;
                true
            }
            (_, Match::Yes(_)) => self.expect_call(format),
            (Match::Wait, _) | (_, Match::Wait) => false,
            (Match::No, Match::No) => self.fail(out),
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
    fn begin(&mut self, name: String, id: Option<String>, out: &mut Vec<Piece>) -> bool {
        if !self.tools.iter().any(|tool| tool.name == name) {
            return false;
        }
        let number = self.calls.len();
        let ids = self.format.map_or(Ids::Long, |format| format.ids);
        let own = id.filter(|id| self.calls.iter().all(|call| call.id != *id));
        let id = own.unwrap_or_else(|| call_id(ids, &name, number));
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
fn call_id(ids: Ids, name: &str, number: usize) -> String {
    const DIGITS: &[u8; 36] = b"0123456789abcdefghijklmnopqrstuvwxyz";
    let mut random = RandomState::new().hash_one(0);
    let mut id = match ids {
        Ids::Long => "call_".to_owned(),
        Ids::Short => String::new(),
        Ids::Numbered => return format!("functions.{name}:{number}"),
    };
    for _ in 0..9 {
        id.push(char::from(DIGITS[(random % 36) as usize]));
        random /= 36;
    }
    id
}

#[cfg(test)]
mod tests;
