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

/// A text as it is meant: without the marks that let it go on.
pub(super) fn joined(text: &str) -> String {
    text.replace("\\\n", "\n")
        .replace("\"\"\"", "")
        .trim()
        .to_owned()
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
    }
}
