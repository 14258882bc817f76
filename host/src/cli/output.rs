//! What is printed, and how: tables, JSON, colour, notices, errors.

use super::arguments::{Color, Global, LogFormat};
use super::written;
use crate::error::{Error, Result};
use backplane_plugin_api::types::VerdictState;
use comfy_table::{Table, presets};
use serde::Serialize;
use std::io::{IsTerminal, Write};

fn colour(global: &Global, terminal: bool) -> bool {
    match global.color {
        Color::Always => true,
        Color::Never => false,
        Color::Auto => {
            terminal && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
        }
    }
}

/// Whether standard output takes colour.
pub(crate) fn answer_colour(global: &Global) -> bool {
    colour(global, std::io::stdout().is_terminal())
}

/// Whether standard error takes colour.
pub(crate) fn error_colour(global: &Global) -> bool {
    colour(global, std::io::stderr().is_terminal())
}

/// A text in an ANSI style, where colour is on. Styles: `1` bold, `2` dim, `31` red, `32` green, `33` yellow.
pub(crate) fn styled(on: bool, style: &str, text: &str) -> String {
    if on {
        format!("\x1b[{style}m{text}\x1b[0m")
    } else {
        text.to_owned()
    }
}

/// The style of a verdict's state.
pub(crate) fn verdict_style(state: VerdictState) -> &'static str {
    match state {
        VerdictState::Available => "32",
        VerdictState::Absent | VerdictState::Disabled => "2",
        _ => "31",
    }
}

/// One line of a notice on standard error.
pub(crate) fn notice(global: &Global, text: &str) {
    if !global.quiet {
        error_line(&format!(
            "{} {text}",
            styled(error_colour(global), "33", "warning:")
        ));
    }
}

/// The line of an error on standard error: with JSON logs a JSON object.
pub(crate) fn error(global: &Global, error: &Error) {
    if global.log_format == LogFormat::Json {
        let (message, action, code) = (error.to_string(), error.action(), error.exit_code());
        error_line(
            &serde_json::json!({ "error": message, "action": action, "exit_code": code })
                .to_string(),
        );
    } else if !matches!(error, Error::Interrupted) {
        error_line(&format!(
            "{} {}",
            styled(error_colour(global), "31", "error:"),
            one_line(&error.line())
        ));
    }
}

/// A line on standard error. Where nobody reads it any more there is nowhere to say so.
pub(crate) fn error_line(text: &str) {
    let _ = writeln!(std::io::stderr().lock(), "{text}");
}

/// One JSON object on standard output.
pub(crate) fn json(value: &impl Serialize) -> Result<()> {
    let text = serde_json::to_string_pretty(value).map_err(|error| {
        Error::usage(format!("the answer can't be written as JSON: {error}"), "")
    })?;
    line(&text)
}

/// Lines on standard output. Text out of model files and plugins is shown by [`visible`].
pub(crate) fn line(text: &str) -> Result<()> {
    written(writeln!(std::io::stdout().lock(), "{text}"))
}

/// A text whose control characters are written out, so that no file can steer the terminal.
pub(crate) fn visible(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '\n' | '\t' => shown.push(character),
            control if control.is_control() => shown.extend(control.escape_default()),
            other => shown.push(other),
        }
    }
    shown
}

/// A text in one line, its control characters written out: line ends too, as paths may have them.
pub(crate) fn one_line(text: &str) -> String {
    visible(text).replace('\n', "\\n")
}

/// A table without lines, its cells unbroken.
pub(crate) fn table(header: &[&str], rows: Vec<Vec<String>>) -> String {
    let mut table = Table::new();
    table
        .load_style(presets::NOTHING)
        .set_header(header.iter().map(|name| name.to_uppercase()));
    for row in rows {
        table.add_row(row);
    }
    let text = table.to_string();
    text.lines()
        .map(str::trim_end)
        .collect::<Vec<_>>()
        .join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_are_written_out() {
        assert_eq!(
            visible("a\u{1b}[31mb\nc\td\u{7}é"),
            "a\\u{1b}[31mb\nc\td\\u{7}é"
        );
        assert_eq!(one_line("a\nb\u{7}"), "a\\nb\\u{7}");
    }
}
