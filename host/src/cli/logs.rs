//! Logs: through `tracing` to standard error.

use super::arguments::{Global, LogFormat};
use super::output;
use tracing_subscriber::Layer;
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

/// Starts logging as the arguments say: warnings alone, more with `-v`, errors alone when quiet. `times` are of use where
/// logs are kept: for a server.
pub(super) fn start(global: &Global, times: bool) {
    let level = match (global.quiet, global.verbose) {
        (true, _) => LevelFilter::ERROR,
        (_, 0) => LevelFilter::WARN,
        (_, 1) => LevelFilter::INFO,
        (_, 2) => LevelFilter::DEBUG,
        _ => LevelFilter::TRACE,
    };
    // The access log is the server's to turn off; a quiet one has none.
    let access = level.max(LevelFilter::INFO);
    let levels = Targets::new().with_default(level);
    let levels = match global.quiet {
        true => levels,
        false => levels.with_target("access", access),
    };
    let layer = tracing_subscriber::fmt::layer().with_writer(std::io::stderr);
    let layer = match (global.log_format, times) {
        (LogFormat::Json, _) => layer.json().boxed(),
        (LogFormat::Text, true) => layer.with_ansi(output::error_colour(global)).boxed(),
        (LogFormat::Text, false) => {
            let layer = layer.with_ansi(output::error_colour(global));
            layer.without_time().boxed()
        }
    };
    // Only a second call could fail, and there is none.
    let _ = tracing_subscriber::registry()
        .with(layer.with_filter(levels))
        .try_init();
}
