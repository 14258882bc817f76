//! Workers on Unix: children of this process at the other end of a socket pair.

mod backend;
mod capability;
mod floats;
mod frame;
mod group;
mod link;
#[cfg(target_os = "linux")]
mod memory_limit;
mod message;
mod model;
mod process;
mod serve;
#[cfg(test)]
mod tests;
#[cfg(feature = "cli")]
pub(crate) mod trial;
mod watch;

use super::{Isolated, PAUSE, Spec, Start, VERB, quarantine};
use link::StartError;
use std::process::ExitCode;
use std::sync::Arc;

/// Starts a worker for a module.
pub(super) fn start(spec: Spec) -> Start {
    if let Some(verdict) = backend::quarantined_before(&spec) {
        return Start::Refused(verdict);
    }
    match backend::WorkerBackend::start(spec.clone()) {
        Ok(backend) => Start::Worker(Arc::new(backend)),
        Err(StartError::Program(why)) => Start::NoProgram(why),
        Err(StartError::Refused(verdict)) => Start::Refused(verdict),
        Err(StartError::Crashed(how)) => Start::Refused(link::crashed(&spec, &how)),
    }
}

/// Serves the host at the other end of standard input.
pub(super) fn main() -> ExitCode {
    serve::main()
}
