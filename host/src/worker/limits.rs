//! What a worker may take.

use crate::manifest::{Bytes, Watchdog};
use backplane_plugin_api::types::{Verdict, VerdictState};

/// Limits of a worker.
#[derive(Clone, Copy, Debug, Default)]
#[cfg_attr(not(unix), allow(dead_code))]
pub(crate) struct Limits {
    /// When its calls count as hung.
    pub(crate) watchdog: Watchdog,
    /// Most memory of its own and its descendants'.
    pub(crate) memory: Option<Bytes>,
}

/// What is said of a worker that was ended for a limit begins so.
#[cfg_attr(not(unix), allow(dead_code))]
pub(super) const ENDED: &str = "was ended: ";
/// What is said of a worker that held too much has this before the limit.
#[cfg_attr(not(unix), allow(dead_code))]
pub(super) const OVER_MEMORY: &str = "its memory_limit is";

/// What to do about a worker that was ended for one of its limits; `None` where it ended otherwise.
#[cfg_attr(not(unix), allow(dead_code))]
pub(super) fn advice(how: &str, plugin: &str) -> Option<String> {
    if !how.starts_with(ENDED) {
        return None;
    }
    Some(if how.contains(OVER_MEMORY) {
        format!("raise memory_limit in [plugin.{plugin}], and load the model again")
    } else {
        format!("raise watchdog in [plugin.{plugin}] if it is only slow, and load the model again")
    })
}

/// Why a limit of memory can't be kept on this system.
pub(crate) fn memory_refused(plugin: &str) -> Option<Verdict> {
    (!cfg!(target_os = "linux")).then(|| {
        Verdict::unavailable(
            VerdictState::Misconfigured,
            "memory_limit can be kept on Linux only",
            format!("remove memory_limit from [plugin.{plugin}]"),
        )
    })
}

/// The verdict on limits of a plugin that runs in the host's process.
pub(crate) fn needs_process(plugin: &str, key: &str) -> Verdict {
    Verdict::unavailable(
        VerdictState::Misconfigured,
        format!("{key} needs isolation = \"process\"; the plugin runs in the host's process"),
        format!("set isolation = \"process\" in [plugin.{plugin}], or remove {key}"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limit_that_ended_a_worker_is_named() {
        let held = format!("was ended: it held 65MiB of memory; {OVER_MEMORY} 64MiB");
        let raised = |how: &str| advice(how, "cpu").unwrap_or_default();
        assert!(raised(&held).starts_with("raise memory_limit in [plugin.cpu]"));
        let hung = format!("{ENDED}`generate` gave no sign of life within 2s");
        assert!(raised(&hung).starts_with("raise watchdog in [plugin.cpu]"));
        assert_eq!(advice("ended by signal 6 (SIGABRT)", "cpu"), None);
    }
}
