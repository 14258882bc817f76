//! The terminal as it was found: a signal that ends the program while a line is typed leaves it so.

use crate::error::{Error, Result};
use rustix::termios::{OptionalActions, tcgetattr, tcsetattr};
use signal_hook::consts::{SIGHUP, SIGTERM};
use signal_hook::low_level::{emulate_default_handler, pipe};
use std::io::Read;
use std::os::unix::net::UnixStream;

/// From now on SIGTERM and SIGHUP put the terminal back as it is now, then end the program as they would have.
pub(super) fn kept() -> Result<()> {
    let failed = |error: std::io::Error| Error::file("terminal", &error);
    let before = tcgetattr(std::io::stdin()).map_err(|error| failed(error.into()))?;
    for signal in [SIGTERM, SIGHUP] {
        let (mut wait, wake) = UnixStream::pair().map_err(failed)?;
        pipe::register(signal, wake).map_err(failed)?;
        let before = before.clone();
        let end = move || {
            if wait.read_exact(&mut [0]).is_ok() {
                // A terminal that is gone has nothing to be put back.
                let _ = tcsetattr(std::io::stdin(), OptionalActions::Now, &before);
                let _ = emulate_default_handler(signal);
            }
        };
        std::thread::Builder::new()
            .name("signals".to_owned())
            .spawn(end)
            .map_err(failed)?;
    }
    Ok(())
}
