//! The layout check, in the right direction.

use abi_stable::abi_stability::abi_checking::{
    AbiInstabilityErrors, CheckingGlobals, check_layout_compatibility_with_globals,
};
use abi_stable::type_layout::TypeLayout;
use std::sync::{Mutex, PoisonError};

/// Why two layouts don't go together.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{line}")]
pub struct LayoutMismatch {
    /// One line: where, what, expected, found.
    pub line: String,
    /// The whole story, tens of kilobytes: for debug logs.
    pub dump: String,
}

/// Checks that what was built against `newer` can be used through `older` and the other way round, given that both state
/// the same major version: `newer` has all that `older` has, at the same places, and perhaps more at the ends that may
/// grow. The order matters: an older module in a newer host is refused when they are swapped.
///
/// Every check starts with fresh records: records shared between modules refuse later modules that are fine.
///
/// # Errors
/// The layouts differ in more than growth.
pub fn check(older: &'static TypeLayout, newer: &'static TypeLayout) -> Result<(), LayoutMismatch> {
    // The checker walks the whole graph of types and is not made to be entered twice.
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    let _one = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    check_layout_compatibility_with_globals(older, newer, &CheckingGlobals::new())
        .map_err(|errors| describe(&errors))
}

fn describe(errors: &AbiInstabilityErrors) -> LayoutMismatch {
    let dump = errors.to_string();
    let line = errors
        .errors
        .iter()
        .find(|error| !error.errs.is_empty())
        .map_or_else(
            || "layouts differ".to_owned(),
            |error| {
                let path = error
                    .stack_trace
                    .iter()
                    .map(|step| one_line(&step.found.to_string(), 60))
                    .collect::<Vec<_>>();
                // The message is the last part of the error's own text, after the layouts.
                let text = error.to_string();
                let what = text
                    .rsplit("\n\n")
                    .find(|part| part.contains("Expected") || part.contains("Error"))
                    .unwrap_or(&text);
                format!(
                    "at {}: {}",
                    if path.is_empty() {
                        "the root".to_owned()
                    } else {
                        path.join(" > ")
                    },
                    one_line(what, 160)
                )
            },
        );
    LayoutMismatch {
        line: one_line(&line, 400),
        dump,
    }
}

/// Text with its white space folded, cut after `most` characters.
fn one_line(text: &str, most: usize) -> String {
    let folded = text.split_whitespace().collect::<Vec<_>>().join(" ");
    match folded.char_indices().nth(most) {
        Some((cut, _)) => format!("{}…", &folded[..cut]),
        None => folded,
    }
}
