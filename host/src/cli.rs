//! The command line: a thin face over the library.
//!
//! Standard output holds the answer and nothing else; notices, progress, logs and errors go to standard error. Every error is
//! one line, with its next step, and has its exit code: 2 usage, 3 no backend available, 4 model unusable, 5 backend
//! failed, 130 interrupted.

pub(crate) mod arguments;
mod bench;
mod config;
mod devices;
mod files;
mod generated;
pub(crate) mod interrupt;
mod logs;
mod models;
pub(crate) mod output;
mod perplexity;
pub(crate) mod plugins;
mod progress;
pub(crate) mod run;
mod serve;
pub(crate) mod speaker;
mod states;
mod text;
mod usage;
pub(crate) mod values;

use crate::error::{Error, Result};
use crate::registry::Registry;
use arguments::{Arguments, Global, Verb};
use clap::Parser;
use std::io::ErrorKind;
use std::process::ExitCode;

/// Parses the process's arguments, does what they say, and gives the exit code.
pub fn main() -> ExitCode {
    // Not among the verbs: it is the host's own, and is to be started without delay.
    if std::env::args_os().skip(1).eq([crate::worker::VERB]) {
        return crate::worker::main();
    }
    #[cfg(unix)]
    if std::env::args_os().skip(1).eq([crate::worker::trial::VERB]) {
        return crate::worker::trial::main();
    }
    let arguments = match Arguments::try_parse() {
        Ok(arguments) => arguments,
        Err(error) => {
            return usage::tell(&error, std::env::args_os().skip(1));
        }
    };
    let global = arguments.global.clone();
    logs::start(&global, matches!(arguments.verb, Verb::Serve(_)));
    match run(arguments) {
        Ok(code) => code,
        Err(Error::File { message, .. }) if message == CLOSED_PIPE => ExitCode::SUCCESS,
        Err(error) => {
            output::error(&global, &error);
            ExitCode::from(error.exit_code())
        }
    }
}

/// Message of the error that a reader who left is: it ends the program quietly.
const CLOSED_PIPE: &str = "closed pipe";

/// The error of a write to standard output.
pub(crate) fn written(result: std::io::Result<()>) -> Result<()> {
    result.map_err(|error| match error.kind() {
        ErrorKind::BrokenPipe => Error::File {
            path: "standard output".into(),
            message: CLOSED_PIPE.to_owned(),
        },
        _ => Error::file("standard output", &error),
    })
}

fn run(arguments: Arguments) -> Result<ExitCode> {
    let global = arguments.global;
    match arguments.verb {
        Verb::Run(verb) => run::run(&global, &verb),
        Verb::Chat(verb) => crate::repl::run(&global, &verb),
        Verb::Classify(verb) => text::classify(&global, &verb),
        Verb::Tokenize(verb) => text::tokenize(&global, &verb),
        Verb::Detokenize(verb) => text::detokenize(&global, &verb),
        Verb::Models(verb) => models::models(&global, &verb),
        Verb::Show(verb) if verb.check => files::check(&global, &verb),
        Verb::Show(verb) => models::show(&global, &verb),
        Verb::Convert(verb) => files::convert(&global, &verb),
        Verb::Perplexity(verb) => perplexity::perplexity(&global, &verb),
        Verb::Bench(verb) => bench::bench(&global, &verb),
        Verb::Embed(verb) => states::embed(&global, &verb),
        Verb::InspectAttention(verb) => states::inspect_attention(&global, &verb),
        Verb::Devices(verb) => devices::devices(&global, &verb),
        Verb::Serve(verb) => serve::serve(&global, &verb),
        Verb::Ps(verb) => serve::ps(&global, &verb),
        Verb::Stop(verb) => serve::stop(&global, &verb),
        Verb::Config(verb) => config::config(&global, &verb),
        Verb::Plugins(verb) => plugins::plugins(&global, &verb),
        Verb::Completions(verb) => generated::completions(&verb),
        Verb::Man(verb) => generated::man(&verb),
    }
}

/// The registry of the manifest that the arguments name.
pub(crate) fn registry(global: &Global) -> Result<Registry> {
    Registry::open(global.manifest.as_deref())
}
