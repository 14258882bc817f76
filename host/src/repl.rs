//! `chat`: a conversation at the terminal, or over a pipe.
//!
//! Ctrl-C stops a reply and not the program; at the prompt it clears the line. Ctrl-D leaves. Several lines: Alt-Enter, a
//! line that ends with `\`, text between `"""`, or lines that are pasted. The conversation is kept whole: when it does not fit the context any
//! more, the backend refuses it with both counts, and the last message is taken back; nothing is cut silently.

mod commands;
mod editor;
mod session;
mod settings;
#[cfg(unix)]
mod terminal;

use crate::cli::arguments::{Chat, Global};
use crate::cli::interrupt::Interrupt;
use crate::cli::{output, registry, speaker};
use crate::error::Result;
use editor::{Editor, Input};
use session::Session;
use std::io::{BufRead, IsTerminal};
use std::process::ExitCode;

/// Runs the conversation until its end.
///
/// # Errors
/// The manifest is wrong, the model named can't be loaded, or the terminal fails.
pub(crate) fn run(global: &Global, verb: &Chat) -> Result<ExitCode> {
    let registry = registry(global)?.reloadable();
    let interrupt = Interrupt::catch(false)?;
    let server = speaker::elsewhere(&verb.elsewhere)?;
    let mut session = Session::new(global, &registry, interrupt, verb, server);
    // A terminal that can't move its cursor gets plain lines, as a pipe does.
    let dumb = std::env::var_os("TERM").is_some_and(|kind| kind == "dumb");
    if std::io::stdin().is_terminal() && !dumb {
        at_terminal(&mut session, verb.model.as_deref())?;
    } else {
        if let Some(model) = &verb.model {
            session.load(model)?;
        }
        over_pipe(&mut session)?;
        // A script learns of a message that got no reply, or a command that failed, by the exit code of the first.
        if let Some(code) = session.failed {
            return Ok(ExitCode::from(code));
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn at_terminal(session: &mut Session<'_>, model: Option<&str>) -> Result<()> {
    #[cfg(unix)]
    let terminal = terminal::Terminal::take()?;
    if let Some(model) = model {
        session.load(model)?;
    }
    session.say("Type a message. /help lists the commands; Ctrl-C stops a reply, Ctrl-D leaves.");
    let mut editor = Editor::new(session.registry().folders().state.as_deref());
    loop {
        #[cfg(unix)]
        {
            terminal.hold_keys()?;
            terminal.edit()?;
        }
        match editor.read()? {
            Input::Text(text) => {
                if !session.take(&text)? {
                    return Ok(());
                }
            }
            Input::Cleared => {}
            Input::End => return Ok(()),
        }
    }
}

/// Without a line editor every line is a message or a command, and replies are all that standard output holds.
fn over_pipe(session: &mut Session<'_>) -> Result<()> {
    let mut pending = String::new();
    for line in std::io::stdin().lock().lines() {
        let line = line.map_err(|error| crate::error::Error::file("standard input", &error))?;
        pending.push_str(&line);
        if editor::is_open(&pending) {
            pending.push('\n');
            continue;
        }
        if !session.take(&std::mem::take(&mut pending))? {
            return Ok(());
        }
    }
    if !pending.is_empty() {
        session.take(&pending)?;
    }
    Ok(())
}

/// A line for the person at the terminal, dim, on standard error.
fn remark(global: &Global, text: &str) {
    if !global.quiet {
        output::error_line(&output::styled(output::error_colour(global), "2", text));
    }
}
