//! Ctrl-C: a flag that a running reply polls.

use crate::error::{Error, Result};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Set while an interrupt waits to be noticed.
#[derive(Clone, Debug, Default)]
pub(crate) struct Interrupt(Arc<AtomicBool>);

impl Interrupt {
    /// From now on Ctrl-C sets the flag. With `second_ends`, one that comes while the flag is still set ends the program.
    pub(crate) fn catch(second_ends: bool) -> Result<Self> {
        let flag = Self::default();
        let failed =
            |error: std::io::Error| Error::usage(format!("Ctrl-C can't be caught: {error}"), "");
        if second_ends {
            signal_hook::flag::register_conditional_shutdown(
                signal_hook::consts::SIGINT,
                130,
                Arc::clone(&flag.0),
            )
            .map_err(failed)?;
        }
        signal_hook::flag::register(signal_hook::consts::SIGINT, Arc::clone(&flag.0))
            .map_err(failed)?;
        Ok(flag)
    }

    /// From now on SIGTERM is as Ctrl-C, so that a call ends in good order; one that comes while the flag is set ends the program.
    pub(crate) fn catch_termination(&self) -> Result<()> {
        let signal = signal_hook::consts::SIGTERM;
        signal_hook::flag::register_conditional_shutdown(signal, 143, Arc::clone(&self.0))
            .and_then(|_| signal_hook::flag::register(signal, Arc::clone(&self.0)))
            .map_err(|error| Error::usage(format!("SIGTERM can't be caught: {error}"), ""))?;
        Ok(())
    }

    /// Whether an interrupt waits.
    pub(crate) fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// Whether one waited; it is noticed now.
    pub(crate) fn take(&self) -> bool {
        self.0.swap(false, Ordering::Relaxed)
    }
}
