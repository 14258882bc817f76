//! Where there are no workers.

use super::{Spec, Start};
use std::process::ExitCode;

pub(super) fn start(_spec: Spec) -> Start {
    Start::NoProgram("worker processes need Unix".to_owned())
}

pub(super) fn main() -> ExitCode {
    eprintln!("error: worker processes need Unix");
    ExitCode::from(2)
}
