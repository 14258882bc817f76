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
    let Some(error) = errors.errors.iter().find(|error| !error.errs.is_empty()) else {
        return LayoutMismatch {
            line: "layouts differ".to_owned(),
            dump,
        };
    };
    // The innermost steps say where; those before them how one gets there.
    let steps: Vec<_> = error
        .stack_trace
        .iter()
        .map(|step| place(&step.found.to_string()))
        .collect();
    let innermost = &steps[steps.len().saturating_sub(3)..];
    let place = if innermost.is_empty() {
        "the root".to_owned()
    } else {
        innermost.join(" > ")
    };
    // The error's own text describes both types at length, then says what differs.
    let text = error.to_string();
    let what = ["Error:", "Expected:"]
        .iter()
        .find_map(|word| text.rfind(word))
        .map_or(&*text, |at| &text[at..]);
    LayoutMismatch {
        line: format!("at {}: {}", one_line(&place, 200), one_line(what, 200)),
        dump,
    }
}

/// `field: Type` of a step's text, which is `field_name:field type:Type size:…`.
fn place(step: &str) -> String {
    let between = |start: &str, end: &str| {
        let rest = step.split_once(start)?.1;
        Some(one_line(rest.split(end).next()?, 60))
    };
    match (between("field_name:", " type:"), between("type:", " size:")) {
        (Some(field), Some(kind)) => format!("{}: {}", field.trim(), kind.trim()),
        _ => one_line(step, 60),
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
