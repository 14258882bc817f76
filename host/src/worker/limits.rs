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
