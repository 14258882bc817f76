//! Logs: through `tracing` to standard error.

use super::arguments::{Global, LogFormat};
use super::output;
use tracing_subscriber::filter::LevelFilter;

/// Starts logging as the arguments say: warnings alone, more with `-v`, errors alone when quiet.
pub(super) fn start(global: &Global) {
    let level = match (global.quiet, global.verbose) {
        (true, _) => LevelFilter::ERROR,
        (_, 0) => LevelFilter::WARN,
        (_, 1) => LevelFilter::INFO,
        (_, 2) => LevelFilter::DEBUG,
        _ => LevelFilter::TRACE,
    };
    let builder = tracing_subscriber::fmt()
        .with_writer(std::io::stderr)
        .with_max_level(level);
    // Only a second call could fail, and there is none.
    let _ = match global.log_format {
        LogFormat::Json => builder.json().try_init(),
        LogFormat::Text => builder
            .without_time()
            .with_ansi(output::error_colour(global))
            .try_init(),
    };
}
