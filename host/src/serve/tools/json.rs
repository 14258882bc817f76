//! JSON that comes in pieces: where a value ends, and the name and arguments of a call.

/// What a byte is to a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// Part of it, which goes on.
    Within,
    /// Its last.
    Last,
    /// No part of it: it ended before.
    After,
    /// It can't be.
    Wrong,
}

/// Follows one value to its end: brackets and strings, not what numbers and words look like.
#[derive(Clone, Debug, Default)]
pub(super) struct Value {
    /// Closing brackets that are due, the next one last.
    due: Vec<u8>,
    begun: bool,
    in_text: bool,
    escaped: bool,
}

impl Value {
    /// Whether anything of it came.
    pub(super) fn has_begun(&self) -> bool {
        self.begun
    }

    pub(super) fn step(&mut self, byte: u8) -> Step {
        if self.in_text {
            match byte {
                _ if self.escaped => self.escaped = false,
                b'\\' => self.escaped = true,
                b'"' => {
                    self.in_text = false;
                    return self.closed();
                }
                _ => {}
            }
            return Step::Within;
        }
        // A number or a word ends with what can't be part of it.
        if self.begun
            && self.due.is_empty()
            && !(byte.is_ascii_alphanumeric() || b"+-.".contains(&byte))
        {
            return Step::After;
        }
        self.begun = true;
        match byte {
            b'"' => self.in_text = true,
            b'{' => self.due.push(b'}'),
            b'[' => self.due.push(b']'),
            b'}' | b']' => {
                return match self.due.pop() {
                    Some(due) if due == byte => self.closed(),
                    _ => Step::Wrong,
                };
            }
            b',' | b':' if self.due.is_empty() => return Step::Wrong,
            _ => {}
        }
        Step::Within
    }

    fn closed(&self) -> Step {
        if self.due.is_empty() {
            Step::Last
        } else {
            Step::Within
        }
    }
}

/// What a call tells, however it is written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Told {
    Name(String),
    /// More of the arguments, as they are written.
    Arguments(String),
    /// The call is whole.
    End,
    /// It is whole, and the mark behind it was read.
    Closed,
}

/// Reads `{"name": …, "arguments": …}`, the keys in any order, others passed over. The name is told once there are arguments,
/// and these as they come.
#[derive(Clone, Debug)]
pub(super) struct Object {
    name_key: &'static str,
    arguments_key: &'static str,
    at: At,
    key: String,
    value: Value,
    /// Key, name, or arguments that wait for the name.
    text: String,
    /// Whether there must be arguments.
    must_argue: bool,
    name: Option<String>,
    /// Whether the value that is read is a text.
    quoted: bool,
    /// Arguments that came before the name.
    early: Option<String>,
    argued: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum At {
    Start,
    /// Before a key, or the end where nothing was before.
    First,
    Key,
    InKey,
    Colon,
    Before,
    Within,
    Comma,
    End,
}

impl Object {
    pub(super) fn new(
        name_key: &'static str,
        arguments_key: &'static str,
        must_argue: bool,
    ) -> Self {
        Self {
            name_key,
            arguments_key,
            at: At::Start,
            key: String::new(),
            value: Value::default(),
            text: String::new(),
            must_argue,
            name: None,
            quoted: false,
            early: None,
            argued: false,
        }
    }

    /// Takes text; gives how much of it belongs to the object, and `told` what it tells. `None` where it is none, or no more.
    pub(super) fn take(&mut self, text: &str, told: &mut Vec<Told>) -> Option<usize> {
        let mut taken = 0;
        // Arguments are told in one piece for each text.
        let mut since = 0;
        let bytes = text.as_bytes();
        while taken < bytes.len() && self.at != At::End {
            let byte = bytes[taken];
            let blank = byte.is_ascii_whitespace();
            match self.at {
                At::Start if byte == b'{' => self.at = At::First,
                At::First | At::Comma if byte == b'}' => {
                    self.at = At::End;
                    self.end(told)?;
                }
                At::First | At::Key if byte == b'"' => {
                    self.at = At::InKey;
                    self.value = Value::default();
                    self.value.step(byte);
                    since = taken;
                }
                At::InKey => {
                    if self.value.step(byte) == Step::Last {
                        self.text.push_str(&text[since..=taken]);
                        self.key = serde_json::from_str(&std::mem::take(&mut self.text)).ok()?;
                        self.at = At::Colon;
                    }
                }
                At::Colon if byte == b':' => self.at = At::Before,
                At::Before if !blank => {
                    self.value = Value::default();
                    self.quoted = byte == b'"';
                    self.at = At::Within;
                    if self.streams() {
                        told.extend(self.name.clone().map(Told::Name));
                    }
                    since = taken;
                    continue;
                }
                At::Within => match self.value.step(byte) {
                    Step::Within => {}
                    Step::Last => {
                        self.more(&text[since..=taken], told);
                        self.valued(told)?;
                    }
                    Step::After => {
                        self.more(&text[since..taken], told);
                        self.valued(told)?;
                        continue;
                    }
                    Step::Wrong => {
                        self.more(&text[since..taken], told);
                        return None;
                    }
                },
                At::Comma if byte == b',' => self.at = At::Key,
                _ if blank => {}
                _ => return None,
            }
            taken += 1;
        }
        match self.at {
            At::InKey => self.text.push_str(&text[since..taken]),
            At::Within => self.more(&text[since..taken], told),
            _ => {}
        }
        Some(taken)
    }

    /// Whether arguments are an object that is told as it comes; a text holds them as JSON, and is told when it is whole.
    fn streams(&self) -> bool {
        self.name.is_some() && !self.argued && self.key == self.arguments_key
    }

    fn more(&mut self, part: &str, told: &mut Vec<Told>) {
        if !part.is_empty() && self.streams() && !self.quoted {
            told.push(Told::Arguments(part.to_owned()));
        } else if self.key == self.name_key || self.key == self.arguments_key {
            self.text.push_str(part);
        }
    }

    /// A value is whole.
    fn valued(&mut self, told: &mut Vec<Told>) -> Option<()> {
        self.at = At::Comma;
        let text = std::mem::take(&mut self.text);
        if self.key == self.name_key && self.name.is_none() {
            let name: String = serde_json::from_str(&text).ok()?;
            self.name = Some(name.clone());
            if let Some(early) = self.early.take() {
                told.extend([Told::Name(name), Told::Arguments(early)]);
            }
        } else if self.key == self.arguments_key && !self.argued {
            self.argued = true;
            let text = match self.quoted {
                true => serde_json::from_str(&text).ok()?,
                false => text,
            };
            if self.name.is_none() {
                self.early = Some(text);
            } else if !text.is_empty() {
                told.push(Told::Arguments(text));
            }
        }
        Some(())
    }

    fn end(&mut self, told: &mut Vec<Told>) -> Option<()> {
        let name = self.name.clone()?;
        if !self.argued {
            if self.must_argue {
                return None;
            }
            told.extend([Told::Name(name), Told::Arguments("{}".to_owned())]);
        }
        told.push(Told::End);
        Some(())
    }
}
