//! The line that is typed: editing, history, several lines.

use crate::error::{Error, Result};
use reedline::{
    DefaultHinter, FileBackedHistory, Prompt, PromptEditMode, PromptHistorySearch, Reedline,
    Signal, ValidationResult, Validator,
};
use std::borrow::Cow;
use std::path::Path;

/// Lines of history kept.
const HISTORY: usize = 2000;

/// What was entered.
pub(super) enum Input {
    /// A message or a command.
    Text(String),
    /// The line was given up.
    Cleared,
    /// No more will come.
    End,
}

pub(super) struct Editor {
    line: Reedline,
}

impl Editor {
    /// An editor whose history is kept in the user's state folder; where it can't be, it ends with the session.
    pub(super) fn new(state: Option<&Path>) -> Self {
        let mut line = Reedline::create()
            .with_validator(Box::new(Whole))
            .with_hinter(Box::new(DefaultHinter::default()))
            // Lines that are pasted wait for Enter, all in one.
            .use_bracketed_paste(true)
            .with_ansi_colors(std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty()));
        if let Some(state) = state
            && let Err(error) = std::fs::create_dir_all(state)
        {
            tracing::warn!(
                "{}: {}: this session's history is not kept",
                state.display(),
                crate::error::plain(&error)
            );
        } else if let Some(state) = state {
            let file = state.join("history.txt");
            match FileBackedHistory::with_file(HISTORY, file.clone()) {
                Ok(history) => line = line.with_history(Box::new(history)),
                Err(error) => {
                    tracing::warn!(
                        "{}: {error}: this session's history is not kept",
                        file.display()
                    );
                }
            }
        }
        Self { line }
    }

    pub(super) fn read(&mut self) -> Result<Input> {
        match self.line.read_line(&Arrow) {
            Ok(Signal::Success(text)) => Ok(Input::Text(text)),
            Ok(Signal::CtrlD) => Ok(Input::End),
            Ok(_) => Ok(Input::Cleared),
            Err(error) => Err(Error::File {
                path: "terminal".into(),
                message: error.to_string(),
            }),
        }
    }
}

/// Whether a text goes on in the next line: it ends with `\`, or a `"""` is not closed.
pub(super) fn is_open(text: &str) -> bool {
    text.matches("\"\"\"").count() % 2 == 1 || text.ends_with('\\')
}

/// A text as it is meant: without the marks that let it go on. Marks in the midst of a text are part of it.
pub(super) fn joined(text: &str) -> String {
    const MARK: &str = "\"\"\"";
    let text = text.replace("\\\n", "\n");
    let text = text.trim();
    // Of a command the text comes after its name.
    let name = match text.starts_with('/') {
        true => text.find(char::is_whitespace).unwrap_or(text.len()),
        false => 0,
    };
    let (name, rest) = text.split_at(name);
    let marked = rest.trim_start().strip_prefix(MARK);
    match marked.and_then(|it| it.strip_suffix(MARK)) {
        Some(inner) if name.is_empty() => inner.trim().to_owned(),
        Some(inner) => format!("{name} {}", inner.trim()),
        None => text.to_owned(),
    }
}

/// The commands of a text that has nothing else, a line each, as they are pasted; else the text as a whole.
pub(super) fn commands(text: &str) -> Vec<&str> {
    let lines = || text.lines().filter(|line| !line.trim().is_empty());
    match lines().all(|line| line.starts_with('/') && !line.starts_with("//")) {
        true => lines().collect(),
        false => vec![text],
    }
}

struct Whole;

impl Validator for Whole {
    fn validate(&self, line: &str) -> ValidationResult {
        if is_open(line) {
            ValidationResult::Incomplete
        } else {
            ValidationResult::Complete
        }
    }
}

struct Arrow;

impl Prompt for Arrow {
    fn render_prompt_left(&self) -> Cow<'_, str> {
        Cow::Borrowed("> ")
    }

    fn render_prompt_right(&self) -> Cow<'_, str> {
        Cow::Borrowed("")
    }

    fn render_prompt_indicator(&self, _: PromptEditMode) -> Cow<'_, str> {
        Cow::Borrowed("")
    }

    fn render_prompt_multiline_indicator(&self) -> Cow<'_, str> {
        Cow::Borrowed(". ")
    }

    fn render_prompt_history_search_indicator(&self, search: PromptHistorySearch) -> Cow<'_, str> {
        Cow::Owned(format!("(search: {}) ", search.term))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn several_lines() {
        assert!(
            is_open("one\\")
                && is_open("\"\"\"one")
                && !is_open("\"\"\"one\ntwo\"\"\"")
                && !is_open("one")
        );
        assert_eq!(joined("one\\\ntwo"), "one\ntwo");
        assert_eq!(joined("\"\"\"one\ntwo\"\"\""), "one\ntwo");
        assert_eq!(joined("  one "), "one");
        assert_eq!(joined("/system \"\"\"one\ntwo\"\"\""), "/system one\ntwo");
        let code = "def f():\n    \"\"\"Says so.\"\"\"\n    pass";
        assert_eq!(joined(code), code);
        assert_eq!(joined("/set"), "/set");
    }

    #[test]
    fn commands_are_pasted_a_line_each() {
        assert_eq!(commands("/set seed 1\n\n/reset"), ["/set seed 1", "/reset"]);
        for whole in ["/system one\ntwo", "one\n/two", "//one\n/two", "one"] {
            assert_eq!(commands(whole), [whole]);
        }
    }
}
