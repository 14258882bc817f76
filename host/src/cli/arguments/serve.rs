//! `serve`, its settings, and what is asked of a server.

use super::settings::Settings;
use crate::manifest::Value;
use crate::serve::{Flag, Trust};
use clap::{Args, ValueHint};
use std::path::PathBuf;

/// `serve`.
#[derive(Args, Debug)]
#[command(
    after_help = "It speaks OpenAI's API: POST /v1/chat/completions and /v1/completions, GET /v1/models; GET /healthz and /readyz \
    say how it is, GET /v1/backends what runs and why.\nEvery option is also a key of [serve] in the manifest and a variable, \
    BACKPLANE_SERVE_PORT for --port; `backplane config` shows what holds.\n\nExamples:\n  backplane serve smollm2\n  \
    backplane serve model.gguf other.gguf --port 9000 --parallel 8\n  \
    curl http://127.0.0.1:8080/v1/chat/completions -d '{\"model\":\"smollm2\",\"messages\":[{\"role\":\"user\",\"content\":\"Hi\"}]}'"
)]
pub(crate) struct Serve {
    /// What is served, where, and how.
    #[command(flatten)]
    pub(crate) given: Given,
}

/// What may be said of a server on the command line.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct Given {
    /// Models to serve: paths, or names in the model folder
    #[arg(value_name = "MODEL", value_hint = ValueHint::AnyPath)]
    models: Vec<String>,
    /// As --watch off
    #[arg(long, conflicts_with = "watch")]
    no_watch: bool,
    /// One for each row of the table.
    #[command(flatten)]
    settings: Settings,
}

impl Given {
    /// All of it, as settings.
    pub(crate) fn flags(&self) -> Vec<Flag> {
        let mut flags = self.settings.0.clone();
        if !self.models.is_empty() {
            flags.push(("models", Value::Texts(self.models.clone())));
        }
        if self.no_watch {
            flags.push(("watch", Value::Time(None)));
        }
        flags
    }
}

/// `config`.
#[derive(Args, Debug)]
#[command(
    after_help = "A flag comes before a variable, a variable before the manifest, the manifest before the default. What `serve` is given \
    may be given here too. With settings that `serve` does not start with the exit code is 2, and they are said.\n\nExamples:\n  backplane config\n  BACKPLANE_SERVE_PORT=9000 backplane config --json\n  \
    backplane config smollm2 --port 9000"
)]
pub(crate) struct Config {
    /// What `serve` would be given.
    #[command(flatten)]
    pub(crate) given: Given,
    /// One JSON object: manifest, settings, models, notices, faults
    #[arg(long)]
    pub(crate) json: bool,
}

/// How a server and this side believe each other, where one is asked by https.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct Believing {
    /// Trust the certificates in this file alone, as PEM, for --server https://… [default: those that this system trusts]
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    server_ca: Option<PathBuf>,
    /// Show this certificate, as PEM, to a server that takes only clients with one
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    server_cert: Option<PathBuf>,
    /// The private key of --server-cert, as PEM
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    server_key: Option<PathBuf>,
}

impl Believing {
    /// The files.
    pub(crate) fn files(&self) -> Trust {
        Trust {
            authority: self.server_ca.clone(),
            certificate: self.server_cert.clone(),
            key: self.server_key.clone(),
        }
    }
}

/// A server that runs.
#[derive(Args, Debug)]
pub(crate) struct AskedServer {
    /// The server to ask [default: the one of the settings]
    #[arg(long, value_name = "URL", value_hint = ValueHint::Url)]
    pub(crate) server: Option<String>,
    #[command(flatten)]
    pub(crate) trust: Believing,
}

/// A server that runs, in place of a model that is loaded here.
#[derive(Args, Debug)]
pub(crate) struct Elsewhere {
    /// Ask this running server, http://HOST:PORT or https://…, instead of loading the model here
    #[arg(long, value_name = "URL", value_hint = ValueHint::Url, conflicts_with_all = ["backend", "context", "threads", "cache_type", "quantize"])]
    pub(crate) server: Option<String>,
    #[command(flatten)]
    pub(crate) trust: Believing,
}

/// `ps`.
#[derive(Args, Debug)]
#[command(
    after_help = "Where the server asks for keys, BACKPLANE_API_KEY is sent; from another machine it needs one marked `admin`.\n\n\
    Examples:\n  backplane ps\n  backplane ps --server http://127.0.0.1:9000 --json"
)]
pub(crate) struct Ps {
    #[command(flatten)]
    pub(crate) asked: AskedServer,
    /// One JSON object: models, memory, replies
    #[arg(long)]
    pub(crate) json: bool,
}

/// `stop`.
#[derive(Args, Debug)]
#[command(
    after_help = "A model in use is unloaded when its replies have ended. The next request for it loads it again.\n\nExample:\n  \
    backplane stop smollm2"
)]
pub(crate) struct Stop {
    /// What clients call it
    pub(crate) model: String,
    #[command(flatten)]
    pub(crate) asked: AskedServer,
    /// One JSON object: model, state, in_use
    #[arg(long)]
    pub(crate) json: bool,
}

/// `plugins reload`.
#[derive(Args, Debug)]
pub(crate) struct Reload {
    #[command(flatten)]
    pub(crate) asked: AskedServer,
    /// One JSON object: changes
    #[arg(long)]
    pub(crate) json: bool,
}
