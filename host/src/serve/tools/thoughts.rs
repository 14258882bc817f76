//! What models think before they answer, and the marks around it, as data.
//!
//! A template that knows marks tells of a model that writes them. Some templates open the thoughts themselves, at the end of the
//! prompt: then a reply begins within.

/// The marks around thoughts.
#[derive(Debug, PartialEq, Eq)]
pub(in crate::serve) struct Marks {
    pub(super) open: &'static str,
    pub(super) close: &'static str,
}

const fn marks(open: &'static str, close: &'static str) -> Marks {
    Marks { open, close }
}

/// All that are known, each by its closing mark in the template.
const ALL: &[Marks] = &[
    marks("<think>", "</think>"),
    marks("[THINK]", "[/THINK]"),
    marks("<seed:think>", "</seed:think>"),
    marks("<mm:think>", "</mm:think>"),
    marks("<|START_THINKING|>", "<|END_THINKING|>"),
    marks("<|channel>thought\n", "<channel|>"),
    marks("<thought>", "</thought>"),
    marks("◁think▷", "◁/think▷"),
];

/// The marks that a template knows.
pub(super) fn of_template(template: &str) -> Option<&'static Marks> {
    ALL.iter().find(|marks| template.contains(marks.close))
}

/// How a reply begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::serve) struct Thoughts {
    pub(super) marks: &'static Marks,
    /// Whether the prompt has opened them.
    pub(super) opened: bool,
}

impl Thoughts {
    /// Of a backend that has no template to look at, as those that ask other servers: what these keep apart it writes between the
    /// marks that are most usual.
    pub(super) const UNTOLD: Self = Self {
        marks: &ALL[0],
        opened: false,
    };

    /// After a prompt; `None` where that has closed them already: then none are to come.
    pub(super) fn after(marks: &'static Marks, prompt: &str) -> Option<Self> {
        let prompt = prompt.trim_end();
        let opened = prompt.ends_with(marks.open.trim_end());
        (!prompt.ends_with(marks.close)).then_some(Self { marks, opened })
    }
}

/// Takes what is thought out of a reply.
#[derive(Clone, Debug)]
pub(super) struct Thinker {
    marks: &'static Marks,
    place: Place,
    held: String,
    /// Whether something was thought.
    told: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Before,
    Within,
    /// Behind them: white space is no text yet.
    Behind,
    Over,
}

impl Thinker {
    pub(super) fn new(thoughts: Thoughts) -> Self {
        Self {
            marks: thoughts.marks,
            place: if thoughts.opened {
                Place::Within
            } else {
                Place::Before
            },
            held: String::new(),
            told: false,
        }
    }

    /// Whether thoughts go on.
    pub(super) fn is_within(&self) -> bool {
        self.place == Place::Within
    }

    /// Takes text; gives what was thought, and what is text.
    pub(super) fn push(&mut self, text: &str) -> (String, String) {
        if self.place == Place::Over {
            return (String::new(), text.to_owned());
        }
        self.held.push_str(text);
        let Marks { open, close } = *self.marks;
        if self.place == Place::Before {
            let trimmed = self.held.trim_start();
            if let Some(rest) = trimmed.strip_prefix(open) {
                self.held = rest.to_owned();
                self.place = Place::Within;
            } else if open.starts_with(trimmed) {
                return (String::new(), String::new());
            } else {
                self.place = Place::Over;
                return (String::new(), std::mem::take(&mut self.held));
            }
        }
        let mut thought = String::new();
        if self.place == Place::Within {
            if !self.told {
                self.held
                    .drain(..self.held.len() - self.held.trim_start().len());
            }
            let at = self.held.find(close);
            let certain = at.unwrap_or_else(|| super::reader::partial(&self.held, close));
            let certain = self.held[..certain].trim_end().len();
            thought = self.held[..certain].to_owned();
            self.told |= !thought.is_empty();
            match at {
                Some(at) => {
                    self.held.drain(..at + close.len());
                    self.place = Place::Behind;
                }
                None => {
                    self.held.drain(..certain);
                    return (thought, String::new());
                }
            }
        }
        self.held
            .drain(..self.held.len() - self.held.trim_start().len());
        if self.held.is_empty() {
            return (thought, String::new());
        }
        self.place = Place::Over;
        (thought, std::mem::take(&mut self.held))
    }

    /// The same with a mark that came as a token; `None` where it is none of thoughts, and these are not what goes on. One
    /// of a call that begins ends them.
    pub(super) fn push_mark(&mut self, mark: &str, call: &str) -> Option<(String, String)> {
        let Marks { open, close } = *self.marks;
        match self.place {
            Place::Before if open.contains(mark) => Some(self.push(mark)),
            Place::Within if close.contains(mark) => Some(self.push(mark)),
            Place::Within if call.contains(mark) => {
                self.place = Place::Over;
                None
            }
            Place::Within => Some((String::new(), String::new())),
            Place::Before | Place::Behind => {
                self.place = Place::Over;
                None
            }
            Place::Over if mark == open || mark == close => Some((String::new(), String::new())),
            Place::Over => None,
        }
    }

    /// What is left at the end.
    pub(super) fn finish(&mut self) -> (String, String) {
        let held = std::mem::take(&mut self.held);
        match self.place {
            Place::Within => (held.trim_end().to_owned(), String::new()),
            Place::Before => (String::new(), held),
            Place::Behind | Place::Over => (String::new(), String::new()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reads a text cut everywhere it can be: what is thought and what is said.
    fn check(opened: bool, text: &str, thought: &str, said: &str) {
        let cuts = (0..=text.len()).filter(|&at| text.is_char_boundary(at));
        let cuts = cuts.map(|at| vec![&text[..at], &text[at..]]);
        let mut each: Vec<Vec<&str>> = cuts.collect();
        let ends = text
            .char_indices()
            .map(|(at, letter)| &text[at..at + letter.len_utf8()]);
        each.push(ends.collect());
        for parts in each {
            let mut thinker = Thinker::new(Thoughts {
                marks: &ALL[0],
                opened,
            });
            let (mut thoughts, mut texts) = (String::new(), String::new());
            for part in &parts {
                let (thought, text) = thinker.push(part);
                thoughts += &thought;
                texts += &text;
            }
            let (more, text) = thinker.finish();
            assert_eq!(
                (thoughts + &more, texts + &text),
                (thought.to_owned(), said.to_owned()),
                "{parts:?}"
            );
        }
    }

    #[test]
    fn thoughts_are_told_apart() {
        for (opened, text, thought, said) in [
            (
                false,
                "<think>\nHm.\n\nSo.\n</think>\n\nYes. ",
                "Hm.\n\nSo.",
                "Yes. ",
            ),
            (false, "\n<think>a</think>b</think>", "a", "b</think>"),
            (false, "<think></think>b <think>c", "", "b <think>c"),
            (false, "no <think>b</think>", "", "no <think>b</think>"),
            (false, "  <thin", "", "  <thin"),
            (false, "<think>é < </thin 😀", "é < </thin 😀", ""),
            (false, " ", "", " "),
            (false, "", "", ""),
            (true, "Hm.</think>Yes.", "Hm.", "Yes."),
            (true, "</think>\nYes.", "", "Yes."),
            (true, "Hm. </th", "Hm. </th", ""),
            (true, "Hm.</think>", "Hm.", ""),
            (true, "Hm.</think> \n", "Hm.", ""),
        ] {
            check(opened, text, thought, said);
        }
    }

    #[test]
    fn templates_tell_of_them() {
        let marks = of_template("{%- if '</think>' in content %}").unwrap();
        assert_eq!(marks.open, "<think>");
        assert_eq!(of_template("{{ messages }}"), None);
        for (prompt, opened) in [
            ("<|assistant|><think>\n", Some(true)),
            ("<|assistant|><think>", Some(true)),
            ("<|assistant|>", Some(false)),
            ("<|assistant|><think>\n\n</think>\n\n", None),
        ] {
            let thoughts = Thoughts::after(marks, prompt);
            assert_eq!(thoughts.map(|it| it.opened), opened, "{prompt}");
        }
    }

    #[test]
    fn marks_that_are_tokens_end_them() {
        let mut thinker = Thinker::new(Thoughts {
            marks: &ALL[1],
            opened: false,
        });
        let nothing = || Some((String::new(), String::new()));
        assert_eq!(thinker.push_mark("[THINK]", ""), nothing());
        assert!(thinker.is_within());
        assert_eq!(thinker.push("a"), ("a".to_owned(), String::new()));
        assert_eq!(thinker.push_mark("[ARGS]", "[TOOL_CALLS]"), nothing());
        assert_eq!(thinker.push_mark("[TOOL_CALLS]", "[TOOL_CALLS]"), None);
        assert!(!thinker.is_within());
        assert_eq!(thinker.push_mark("[/THINK]", "[TOOL_CALLS]"), nothing());
    }
}
