//! Progress of long calls: a bar on a terminal, nothing elsewhere. Ctrl-C and SIGTERM stop the call.

use super::arguments::Global;
use super::interrupt::Interrupt;
use crate::error::{Error, Result};
use backplane_plugin_api::capability::Progress;
use backplane_plugin_api::types::{Control, ErrorCode};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::io::IsTerminal;

/// Watches calls, one after the other.
pub(crate) struct Bar {
    bar: ProgressBar,
    interrupt: Interrupt,
    /// Units done by earlier calls, and units of all calls together; `None` leaves them to the call.
    whole: Option<(u64, u64)>,
}

impl Bar {
    /// A bar that is drawn on a terminal only, and catches Ctrl-C and SIGTERM from now on.
    pub(crate) fn new(global: &Global) -> Result<Self> {
        let shown = std::io::stderr().is_terminal() && !global.quiet;
        let target = if shown {
            ProgressDrawTarget::stderr()
        } else {
            ProgressDrawTarget::hidden()
        };
        let bar = ProgressBar::with_draw_target(None, target);
        let style = "{bar:30} {pos}/{len} {msg} ({eta} left)";
        bar.set_style(
            ProgressStyle::with_template(style).unwrap_or_else(|_| ProgressStyle::default_bar()),
        );
        let interrupt = Interrupt::catch(true)?;
        interrupt.catch_termination()?;
        Ok(Self {
            bar,
            interrupt,
            whole: None,
        })
    }

    /// Counts the next call as the part after `done` units of `total`.
    pub(crate) fn part(&mut self, done: u64, total: u64) {
        self.whole = Some((done, total));
    }

    /// Takes the bar away; an answer that was stopped by Ctrl-C is an interruption.
    pub(crate) fn end<T>(&self, answer: Result<T>) -> Result<T> {
        self.bar.finish_and_clear();
        match answer {
            Err(Error::Backend { error, .. })
                if error.code == ErrorCode::Cancelled && self.interrupt.is_set() =>
            {
                Err(Error::Interrupted)
            }
            answer => answer,
        }
    }
}

impl Progress for Bar {
    fn on_progress(&mut self, done: u64, total: u64, what: &str) -> Control {
        let (before, total) = self.whole.unwrap_or((0, total));
        self.bar.set_length(total);
        self.bar.set_position(before + done);
        self.bar.set_message(super::output::visible(what));
        if self.interrupt.is_set() {
            Control::Stop
        } else {
            Control::Continue
        }
    }
}

impl Drop for Bar {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}
