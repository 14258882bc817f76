//! What the host does for its modules: it keeps their logs.

use backplane_plugin_api::import::HostServices;
use tracing::Level;

/// Sends the records of modules to this process's `tracing` subscriber, under the target `backplane::plugin`.
#[derive(Clone, Debug)]
pub struct TracingServices {
    /// The module's name in the records.
    pub plugin: String,
}

/// Calls a macro of `tracing` with a level that is known at run time only.
macro_rules! at_level {
    ($level:expr, $call:ident, $($rest:tt)*) => {
        match $level {
            Level::ERROR => tracing::$call!(target: "backplane::plugin", Level::ERROR, $($rest)*),
            Level::WARN => tracing::$call!(target: "backplane::plugin", Level::WARN, $($rest)*),
            Level::INFO => tracing::$call!(target: "backplane::plugin", Level::INFO, $($rest)*),
            Level::DEBUG => tracing::$call!(target: "backplane::plugin", Level::DEBUG, $($rest)*),
            _ => tracing::$call!(target: "backplane::plugin", Level::TRACE, $($rest)*),
        }
    };
}

impl HostServices for TracingServices {
    fn log_enabled(&self, level: Level, _target: &str) -> bool {
        at_level!(level, event_enabled,)
    }

    fn log(&self, level: Level, target: &str, message: &str, _place: &str) {
        at_level!(level, event, plugin = %self.plugin, from = target, "{message}");
    }
}
