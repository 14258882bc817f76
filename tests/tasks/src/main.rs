//! The project's own tasks, run as `cargo demo` and `cargo verify`.
//!
//! - `demo [PROMPT]`: builds host and plugins, gets a small model, chats with it.
//! - `verify`: every check there is; ends with exit code 0 only when all passed.
//! - `stage`: builds host and plugins into `target/dist`, laid out as an installation.
//! - `references`: gets the real models and the real llama-server that the tests need.
//! - `limits`: measures the figures that have a limit, each as a ratio within this run.

mod limits;
mod steps;

use anyhow::{Result, bail};
use std::process::ExitCode;

fn main() -> ExitCode {
    match run() {
        Ok(code) => code,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<ExitCode> {
    let mut arguments = std::env::args().skip(1);
    let task = arguments.next().unwrap_or_default();
    let rest: Vec<String> = arguments.collect();
    match task.as_str() {
        "demo" => steps::demo(&rest),
        "verify" if rest.is_empty() => steps::verify(),
        "stage" if rest.is_empty() => steps::stage().map(|_| ExitCode::SUCCESS),
        "references" if rest.is_empty() => steps::references().map(|()| ExitCode::SUCCESS),
        "limits" if rest.is_empty() => limits::run(),
        other => bail!(
            "`{other} {}`: expected demo [PROMPT], verify, stage, references or limits",
            rest.join(" ")
        ),
    }
}
