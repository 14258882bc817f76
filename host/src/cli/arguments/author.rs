//! `plugins validate`, `inspect`, `pin`: the tools of those who write plugins.

use crate::cli::values;
use clap::{Args, Subcommand, ValueHint};
use std::path::PathBuf;

/// The verbs.
#[derive(Debug, Subcommand)]
pub(crate) enum Author {
    /// Whether a module keeps the contract: its file, its opening, the conformance suite
    Validate(Validate),
    /// What a module file is: versions, symbols, libraries, hash
    Inspect(Inspect),
    /// Write the hashes of modules into the manifest
    Pin(Pin),
}

/// `plugins validate`.
#[derive(Args, Debug)]
#[command(
    after_help = "Examples:\n  backplane plugins validate target/release/libparrot.so\n  \
    backplane plugins validate target/release/libparrot.so --model sample.parrot\n  \
    backplane plugins validate build/dice.so --model sample.dice --only cancel --json\n\
    The module is opened, probed and tried in processes of their own. Exit codes: 0 nothing failed, 3 nothing failed but the \
    plugin is not available here and was not tried, 5 something failed."
)]
pub(crate) struct Validate {
    /// The module file
    #[arg(value_hint = ValueHint::FilePath)]
    pub(crate) path: PathBuf,
    /// A model of the plugin's, a path or a name in the model folder: without it only what needs none is tried
    #[arg(long, value_hint = ValueHint::AnyPath)]
    pub(crate) model: Option<String>,
    /// Only cases of the conformance suite with this in their name
    #[arg(long, value_name = "PART")]
    pub(crate) only: Option<String>,
    /// Longest a case may take
    #[arg(long, value_name = "SECONDS", default_value = "120", allow_negative_numbers = true, value_parser = values::count)]
    pub(crate) time_limit: u32,
    /// One JSON object: path, model, verdict, checks
    #[arg(long)]
    pub(crate) json: bool,
}

/// `plugins inspect`.
#[derive(Args, Debug)]
#[command(
    after_help = "Examples:\n  backplane plugins inspect plugins/cpu.so\n  backplane plugins inspect plugins/cpu.so --file-only --json"
)]
pub(crate) struct Inspect {
    /// The module file
    #[arg(value_hint = ValueHint::FilePath)]
    pub(crate) path: PathBuf,
    /// Only what the file itself says: no code of it is run
    #[arg(long)]
    pub(crate) file_only: bool,
    /// One JSON object: path, file, module
    #[arg(long)]
    pub(crate) json: bool,
}

/// `plugins pin`.
#[derive(Args, Debug)]
#[command(
    after_help = "Examples:\n  backplane plugins pin\n  backplane plugins pin cpu llama_cpp\n  backplane plugins pin --check\n\
    A pinned plugin is opened only while its file has that hash. No module is opened for this. Exit codes of --check: 0 all are \
    pinned as they are, 3 one is not."
)]
pub(crate) struct Pin {
    /// Which plugins [default: all that have a module file]
    pub(crate) names: Vec<String>,
    /// Compare only, write nothing
    #[arg(long)]
    pub(crate) check: bool,
    /// One JSON object: manifest, plugins
    #[arg(long)]
    pub(crate) json: bool,
}
