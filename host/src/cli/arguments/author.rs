//! `plugins new`, `validate`, `inspect`, `pin`: the tools of those who write plugins.

use crate::cli::values;
use clap::{Args, Subcommand, ValueHint};
use std::path::PathBuf;
use std::time::Duration;

/// The verbs.
#[derive(Debug, Subcommand)]
pub(crate) enum Author {
    /// Write a first project of a plugin: a small backend that works
    New(New),
    /// Whether a module keeps the contract: its file, its opening, the conformance suite
    Validate(Validate),
    /// What a module file is: versions, symbols, libraries, hash
    Inspect(Inspect),
    /// Write the hashes of modules into the manifest
    Pin(Pin),
}

/// `plugins new`.
#[derive(Args, Debug)]
#[command(
    after_help = "Examples:\n  backplane plugins new parrot\n  backplane plugins new parrot --sdk ../backplane/plugin-api\n  \
    backplane plugins new parrot --sdk https://example.org/backplane.git#v0.1.0\n  backplane plugins new dice --c --path src/dice\n\
    The Rust SDK is on no registry. Without --sdk and BACKPLANE_SDK it is that of the source tree that this program stands in, as \
    a build of your own does. A project in C++ needs none: the header is copied into it."
)]
pub(crate) struct New {
    /// The plugin's name: lower-case letters, digits and `_`
    pub(crate) name: String,
    /// A project in C++ over the C door instead of a Rust crate
    #[arg(long)]
    pub(crate) c: bool,
    /// The folder to make [default: NAME]
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub(crate) path: Option<PathBuf>,
    /// Where a Rust crate gets the SDK from: the folder plugin-api of a source tree, or the URL of a Git repository, with #REV or without
    #[arg(long, value_name = "DIR|URL", conflicts_with = "c")]
    pub(crate) sdk: Option<String>,
    /// One JSON object: name, folder, files, sdk
    #[arg(long)]
    pub(crate) json: bool,
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
    /// Longest a case may take: seconds, or a time such as 2s, 500ms, 10m
    #[arg(long, value_name = "TIME", default_value = "120s", allow_negative_numbers = true, value_parser = values::time)]
    pub(crate) time_limit: Duration,
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
    A pinned plugin is opened only while its file has that hash. Modules are opened in processes of their own. \
    Exit codes: 0 all are pinned, 3 one was left out as it can't be opened, or with --check is not pinned as it is."
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
