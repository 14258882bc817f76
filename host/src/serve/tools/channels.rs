//! Replies in channels, as gpt-oss writes them: messages with a head that says whether they are thought, said, or for a tool.
//!
//! `<|channel|>analysis<|message|>…<|end|><|start|>assistant<|channel|>final<|message|>…`

use super::json::{Step, Value};

const START: &str = "<|start|>";
const MESSAGE: &str = "<|message|>";
const CHANNEL: &str = "<|channel|>";
/// Marks that end a message.
const ENDS: [&str; 3] = ["<|end|>", "<|call|>", "<|return|>"];
/// All marks.
pub(super) const MARKS: [&str; 7] = [
    START,
    MESSAGE,
    CHANNEL,
    "<|end|>",
    "<|call|>",
    "<|return|>",
    "<|constrain|>",
];
/// The longest head, bytes.
const HEAD: usize = 1024;

/// What a reply tells.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Said {
    Thought(String),
    Text(String),
    /// The tool of this name is called.
    Call(String),
    Arguments(String),
    /// The call is whole.
    Whole,
}

/// Reads one reply as it comes.
#[derive(Debug, Default)]
pub(super) struct Channels {
    held: String,
    place: Place,
    /// Whether there was a head.
    begun: bool,
}

#[derive(Debug, Default)]
enum Place {
    #[default]
    Head,
    Thought,
    Text,
    Call(Value),
    /// Behind the arguments, or in a message for nobody that is known.
    Over,
}

impl Channels {
    /// Whether it thinks.
    pub(super) fn is_within(&self) -> bool {
        matches!(self.place, Place::Thought)
    }

    /// Takes text; gives what it tells. `known`: whether a tool may be called.
    pub(super) fn push(&mut self, text: &str, known: impl Fn(&str) -> bool) -> Vec<Said> {
        self.held.push_str(text);
        let mut told = Vec::new();
        while self.step(&known, &mut told) {}
        told
    }

    /// What is left at the end.
    pub(super) fn finish(&mut self) -> Vec<Said> {
        let held = std::mem::take(&mut self.held);
        let said = match self.place {
            Place::Thought => Said::Thought(held),
            Place::Text => Said::Text(held),
            // A reply without any mark.
            Place::Head if !self.begun && !MARKS.iter().any(|mark| held.contains(mark)) => {
                Said::Text(held)
            }
            _ => return Vec::new(),
        };
        Vec::from([said])
    }

    fn step(&mut self, known: &impl Fn(&str) -> bool, told: &mut Vec<Said>) -> bool {
        if let Place::Head = self.place {
            let Some(at) = self.held.find(MESSAGE) else {
                let begun = self.held.trim_start();
                let head = MARKS
                    .iter()
                    .any(|mark| begun.starts_with(mark) || mark.starts_with(begun));
                let head =
                    head || begun.starts_with("to=") || "to=".starts_with(begun) || self.begun;
                if head && self.held.len() <= HEAD {
                    return false;
                }
                // It speaks without a head.
                self.place = Place::Text;
                return true;
            };
            let head: String = self.held.drain(..at + MESSAGE.len()).collect();
            self.place = self.of_head(&head[..at], known, told);
            return true;
        }
        // Up to the next mark that ends the message; one of a head does so where an end was forgotten.
        let ends = ENDS.iter().chain([&START, &CHANNEL]);
        let found = ends
            .filter_map(|mark| Some((self.held.find(mark)?, *mark)))
            .min();
        let certain = found.map(|(at, _)| at).unwrap_or_else(|| {
            let cuts = ENDS.iter().chain([&START, &CHANNEL]);
            let cuts = cuts.map(|mark| super::reader::partial(&self.held, mark));
            cuts.min().unwrap_or(self.held.len())
        });
        let text: String = self.held.drain(..certain).collect();
        self.tell(text, told);
        let Some((_, mark)) = found else {
            return false;
        };
        if ENDS.contains(&mark) {
            self.held.drain(..mark.len());
        }
        self.place = Place::Head;
        true
    }

    fn of_head(
        &mut self,
        head: &str,
        known: &impl Fn(&str) -> bool,
        told: &mut Vec<Said>,
    ) -> Place {
        let word = |after: &str| {
            let rest = head.split_once(after)?.1;
            let end = rest.find(|letter: char| letter.is_whitespace() || letter == '<');
            Some(rest[..end.unwrap_or(rest.len())].to_owned())
        };
        self.begun = true;
        let to = word("to=");
        let name = to
            .as_deref()
            .map(|to| to.strip_prefix("functions.").unwrap_or(to));
        match (name, word(CHANNEL).as_deref()) {
            (Some(name), _) if known(name) => {
                told.push(Said::Call(name.to_owned()));
                Place::Call(Value::default())
            }
            (Some(_), _) => Place::Over,
            (None, Some("analysis")) => Place::Thought,
            (None, _) => Place::Text,
        }
    }

    fn tell(&mut self, text: String, told: &mut Vec<Said>) {
        if text.is_empty() {
            return;
        }
        match &mut self.place {
            Place::Thought => told.push(Said::Thought(text)),
            Place::Text => told.push(Said::Text(text)),
            Place::Call(value) => {
                // White space around arguments is no part of them.
                let begun = match value.has_begun() {
                    true => &*text,
                    false => text.trim_start(),
                };
                let mut end = begun.len();
                let mut whole = false;
                for (at, byte) in begun.bytes().enumerate() {
                    match value.step(byte) {
                        Step::Within => continue,
                        Step::Last => (end, whole) = (at + 1, true),
                        Step::After | Step::Wrong => end = at,
                    }
                    self.place = Place::Over;
                    break;
                }
                if end > 0 {
                    told.push(Said::Arguments(begun[..end].to_owned()));
                }
                if whole {
                    told.push(Said::Whole);
                }
            }
            Place::Head | Place::Over => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reads a text cut everywhere it can be: thought, text, and calls with their arguments.
    fn check(text: &str, thought: &str, said: &str, calls: &[&str]) {
        let cuts = (0..=text.len()).filter(|&at| text.is_char_boundary(at));
        let mut all: Vec<Vec<&str>> = cuts.map(|at| vec![&text[..at], &text[at..]]).collect();
        let each = text
            .char_indices()
            .map(|(at, letter)| &text[at..at + letter.len_utf8()]);
        all.push(each.collect());
        for parts in all {
            let mut channels = Channels::default();
            let mut told = Vec::new();
            for part in &parts {
                told.extend(channels.push(part, |name| name == "f" || name == "g"));
            }
            told.extend(channels.finish());
            let (mut thoughts, mut texts, mut found) = (String::new(), String::new(), Vec::new());
            for one in told {
                match one {
                    Said::Thought(text) => thoughts += &text,
                    Said::Text(text) => texts += &text,
                    Said::Call(name) => found.push(name + " "),
                    Said::Arguments(text) => *found.last_mut().unwrap() += &text,
                    Said::Whole => {}
                }
            }
            assert_eq!((&*thoughts, &*texts), (thought, said), "{parts:?}");
            assert_eq!(found, calls, "{parts:?}");
        }
    }

    #[test]
    fn messages_of_every_channel() {
        for (text, thought, said, calls) in [
            (
                "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>Yes.<|return|>",
                "Hm.",
                "Yes.",
                &[][..],
            ),
            (
                "<|channel|>final<|message|>a < b <|x|> é",
                "",
                "a < b <|x|> é",
                &[],
            ),
            ("<|channel|>analysis<|message|>Hm <|en", "Hm <|en", "", &[]),
            (
                "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>commentary to=functions.f <|constrain|>json<|message|>{\"a\": \"<|x\"}<|call|>",
                "Hm.",
                "",
                &["f {\"a\": \"<|x\"}"],
            ),
            (
                " to=functions.f<|channel|>commentary json<|message|>{\"a\": 1}",
                "",
                "",
                &["f {\"a\": 1}"],
            ),
            (
                "<|channel|>commentary<|message|>I look.<|end|><|start|>assistant<|channel|>commentary to=functions.g<|message|> {} <|call|>",
                "",
                "I look.",
                &["g {}"],
            ),
            // An end that was forgotten, a tool that is not known, and no head at all.
            (
                "<|channel|>analysis<|message|>Hm.<|channel|>final<|message|>Yes.",
                "Hm.",
                "Yes.",
                &[],
            ),
            (
                "<|channel|>commentary to=functions.h<|message|>{}<|call|><|start|>assistant<|channel|>final<|message|>No.",
                "",
                "No.",
                &[],
            ),
            ("Just text.", "", "Just text.", &[]),
            ("", "", "", &[]),
            ("<|channel|>analysis", "", "", &[]),
            ("<|start|>assistant<|channel|>final<|message|>", "", "", &[]),
            (
                "<|channel|>commentary to=functions.f<|message|>{\"a\": 1",
                "",
                "",
                &["f {\"a\": 1"],
            ),
            (
                "<|channel|>commentary to=functions.f<|message|>{\"a\": 1]} oh<|call|>",
                "",
                "",
                &["f {\"a\": 1"],
            ),
        ] {
            check(text, thought, said, calls);
        }
    }
}
