use crate::types::Control;

/// Takes the progress of one long call, and may stop it.
///
/// Since 1.1. Implemented by callers. Threads: called by one thread at a time, not always the caller's, until the call it
/// was lent to returns. Cancellation: after [`Control::Stop`] it is not called again, and the call errs with
/// [`ErrorCode::Cancelled`](crate::types::ErrorCode::Cancelled) within one unit of work (a batch of tokens, a tensor).
/// A panic stops the call, and is its error.
pub trait Progress: Send {
    /// So many units of `total` are done; `what` says in a word or two what they are (`tokens`, a tensor's name). `total`
    /// is 0 where it is not known. `done` never falls; the first call comes before the first unit, so that a caller may stop
    /// at once.
    fn on_progress(&mut self, done: u64, total: u64, what: &str) -> Control;
}

/// A closure takes progress.
impl<F: FnMut(u64, u64, &str) -> Control + Send> Progress for F {
    fn on_progress(&mut self, done: u64, total: u64, what: &str) -> Control {
        self(done, total, what)
    }
}

/// Progress that nobody watches.
///
/// Since 1.1.
#[derive(Clone, Copy, Debug, Default)]
pub struct Unwatched;

impl Progress for Unwatched {
    fn on_progress(&mut self, _done: u64, _total: u64, _what: &str) -> Control {
        Control::Continue
    }
}
