//! The terminal while a conversation goes on: what is typed between two prompts waits for the next one, key by key.
//!
//! As it is found, a terminal takes lines: it shows them at once, amid what is printed, and ends them with another character than
//! Enter sends, which the line editor takes for an end only after it has read on, past the line. So keys are neither shown nor
//! changed from the first to the last prompt, but that every end of a line is Enter, at prompts too: of lines that are pasted, or
//! come from a program that plays the person, none is lost. Ctrl-C is a signal as before.

use crate::error::{Error, Result};
use rustix::termios::{
    InputModes, LocalModes, OptionalActions, SpecialCodeIndex, Termios, tcgetattr, tcsetattr,
};
use signal_hook::consts::{SIGHUP, SIGQUIT, SIGTERM};
use signal_hook::low_level::{emulate_default_handler, pipe};
use std::io::{Read, stdin};
use std::os::unix::net::UnixStream;

/// The terminal of a conversation; it is put back as it was found with this, and by a signal that ends the program.
pub(super) struct Terminal {
    found: Termios,
    between: Termios,
}

impl Terminal {
    /// Takes the terminal at standard input.
    pub(super) fn take() -> Result<Self> {
        let found = tcgetattr(stdin()).map_err(|error| failed(error.into()))?;
        for signal in [SIGTERM, SIGHUP, SIGQUIT] {
            let (mut wait, wake) = UnixStream::pair().map_err(failed)?;
            pipe::register(signal, wake).map_err(failed)?;
            let found = found.clone();
            let end = move || {
                if wait.read_exact(&mut [0]).is_ok() {
                    // A terminal that is gone has nothing to be put back.
                    let _ = tcsetattr(stdin(), OptionalActions::Now, &found);
                    let _ = emulate_default_handler(signal);
                }
            };
            std::thread::Builder::new()
                .name("signals".to_owned())
                .spawn(end)
                .map_err(failed)?;
        }
        let mut between = found.clone();
        between.local_modes -= LocalModes::ICANON | LocalModes::ECHO | LocalModes::IEXTEN;
        between.input_modes -= InputModes::ICRNL | InputModes::IGNCR;
        between.input_modes |= InputModes::INLCR;
        between.special_codes[SpecialCodeIndex::VMIN] = 1;
        between.special_codes[SpecialCodeIndex::VTIME] = 0;
        let terminal = Self { found, between };
        terminal.hold_keys()?;
        Ok(terminal)
    }

    /// From now on keys wait. Said anew before each prompt, which leaves the terminal as it finds it: a shell that stopped the
    /// program and went on with it may have brought its own ways.
    pub(super) fn hold_keys(&self) -> Result<()> {
        tcsetattr(stdin(), OptionalActions::Now, &self.between)
            .map_err(|error| failed(error.into()))
    }

    /// Readies it for the line editor, which leaves it so until the line is entered.
    pub(super) fn edit(&self) -> Result<()> {
        crossterm::terminal::enable_raw_mode().map_err(failed)?;
        let mut editing = tcgetattr(stdin()).map_err(|error| failed(error.into()))?;
        editing.input_modes |= InputModes::INLCR;
        tcsetattr(stdin(), OptionalActions::Now, &editing).map_err(|error| failed(error.into()))
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = tcsetattr(stdin(), OptionalActions::Now, &self.found);
    }
}

fn failed(error: std::io::Error) -> Error {
    Error::file("terminal", &error)
}
