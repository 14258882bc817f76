//! What clap has to say: help and version are answers, all else is wrong usage.

use super::arguments::LogFormat;
use super::{CLOSED_PIPE, output, written};
use crate::error::Error;
use clap::ValueEnum;
use std::ffi::OsString;
use std::io::Write;
use std::process::ExitCode;

/// Prints an answer or an error of clap's, and gives the exit code.
pub(super) fn tell(error: &clap::Error, arguments: impl Iterator<Item = OsString>) -> ExitCode {
    let code = error.exit_code();
    if code != 0 && asks_for_json(arguments) {
        let (message, action) = message_and_action(&error.render().to_string());
        let line = serde_json::json!({ "error": message, "action": action, "exit_code": code });
        output::error_line(&line.to_string());
    } else {
        let printed = error.print().and_then(|()| std::io::stdout().flush());
        match written(printed) {
            Err(Error::File { ref message, .. }) if message == CLOSED_PIPE => {}
            // An error that can't be printed has nowhere to go.
            Err(error) if code == 0 => {
                output::error_line(&format!("error: {}", error.line()));
                return ExitCode::from(error.exit_code());
            }
            _ => {}
        }
    }
    ExitCode::from(u8::try_from(code).unwrap_or(2))
}

/// Whether the arguments, which could not be parsed, ask for JSON on standard error.
fn asks_for_json(arguments: impl Iterator<Item = OsString>) -> bool {
    let json = |value: &str| LogFormat::from_str(value, false) == Ok(LogFormat::Json);
    let mut before_value = false;
    for argument in arguments {
        let argument = argument.to_string_lossy();
        if before_value && json(&argument) {
            return true;
        }
        if argument == "--" {
            return false;
        }
        before_value = argument == "--log-format";
        if argument.strip_prefix("--log-format=").is_some_and(json) {
            return true;
        }
    }
    false
}

/// The first paragraph of clap's text as one line, and the others, without the usage, as what to do.
fn message_and_action(text: &str) -> (String, String) {
    let one_line = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
    let mut paragraphs = text.split("\n\n").map(one_line);
    let message = paragraphs.next().unwrap_or_default();
    let message = message
        .strip_prefix("error: ")
        .unwrap_or(&message)
        .to_owned();
    let advice = paragraphs.filter(|text| !text.starts_with("Usage:") && !text.is_empty());
    let action = advice
        .map(|text| text.strip_prefix("tip: ").unwrap_or(&text).to_owned())
        .collect::<Vec<_>>();
    (message, action.join("; "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_is_asked_for_in_either_way_of_writing() {
        let asks = |line: &str| asks_for_json(line.split(' ').map(OsString::from));
        assert!(asks("run --log-format json --nope"));
        assert!(asks("--log-format=json run"));
        assert!(!asks("run --log-format text json"));
        assert!(!asks("run -- --log-format json"));
        assert!(!asks("run json"));
    }

    #[test]
    fn claps_text_is_taken_apart() {
        let text = "error: unexpected argument '--contxt' found\n\n  tip: a similar argument exists: '--context'\n\n\
                    Usage: backplane run <MODEL>\n\nFor more information, try '--help'.\n";
        assert_eq!(
            message_and_action(text),
            (
                "unexpected argument '--contxt' found".to_owned(),
                "a similar argument exists: '--context'; For more information, try '--help'."
                    .to_owned()
            )
        );
        let text =
            "error: the following required arguments were not provided:\n  <MODEL>\n\nUsage: x\n";
        assert_eq!(
            message_and_action(text),
            (
                "the following required arguments were not provided: <MODEL>".to_owned(),
                String::new()
            )
        );
    }
}
