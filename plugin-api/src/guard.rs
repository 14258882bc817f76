//! Keeps panics on their side of the boundary.

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Once;

thread_local! {
    /// How many guards are on this thread's stack.
    static DEPTH: Cell<u32> = const { Cell::new(0) };
    /// Message and place of the last panic under a guard.
    static LAST: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// Makes panics under a guard silent: their message goes into the error. Panics elsewhere are printed as before.
pub(crate) fn install_hook() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let previous = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            if DEPTH.try_with(Cell::get).unwrap_or(0) == 0 {
                return previous(info);
            }
            let message = payload_text(info.payload());
            let text = match info.location() {
                Some(place) => format!("{message} ({}:{})", place.file(), place.line()),
                None => message,
            };
            let _ = LAST.try_with(|last| last.replace(Some(text)));
        }));
    });
}

/// Runs `call`; a panic in it becomes its message, in one line.
#[inline]
pub(crate) fn guard<R>(call: impl FnOnce() -> R) -> Result<R, String> {
    DEPTH.with(|depth| depth.set(depth.get() + 1));
    let outcome = catch_unwind(AssertUnwindSafe(call));
    DEPTH.with(|depth| depth.set(depth.get() - 1));
    outcome.map_err(|payload| {
        let text = LAST
            .with(RefCell::take)
            .unwrap_or_else(|| payload_text(&*payload));
        // A payload may panic when it is dropped; that must not cross either.
        std::mem::forget(payload);
        text.split_whitespace().collect::<Vec<_>>().join(" ")
    })
}

/// What a panic's payload says.
pub(crate) fn payload_text(payload: &(dyn Any + Send)) -> String {
    payload
        .downcast_ref::<&str>()
        .map(|text| (*text).to_owned())
        .or_else(|| payload.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "a panic without a message".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_becomes_its_message() {
        assert_eq!(guard(|| 7), Ok(7));
        let text = guard(|| panic!("two\nlines")).unwrap_err();
        assert!(text.starts_with("two lines"), "{text}");
        assert_eq!(guard(|| 8), Ok(8), "the next call works");
    }
}
