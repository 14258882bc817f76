//! Workers on Unix: children of this process at the other end of a socket pair.

mod backend;
mod capability;
mod floats;
mod frame;
mod link;
mod message;
mod model;
mod process;
mod serve;
#[cfg(test)]
mod tests;
#[cfg(feature = "cli")]
pub(crate) mod trial;

use super::{BUDGET, BUDGET_TIME, Isolated, Spec, Start, VERB};
use link::StartError;
use std::process::ExitCode;
use std::sync::Arc;

/// Starts a worker for a module.
pub(super) fn start(spec: Spec) -> Start {
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
