//! `serve`, and what is asked of a server.

use super::Loading;
use crate::cli::values;
use clap::{Args, ValueHint};

/// `serve`.
#[derive(Args, Debug)]
#[command(
    after_help = "It speaks OpenAI's API: POST /v1/chat/completions and /v1/completions, GET /v1/models; GET /healthz and /readyz \
    say how it is, GET /v1/backends what runs and why.\n\nExamples:\n  backplane serve smollm2\n  \
    backplane serve model.gguf other.gguf --port 9000 --parallel 8\n  \
    curl http://127.0.0.1:8080/v1/chat/completions -d '{\"model\":\"smollm2\",\"messages\":[{\"role\":\"user\",\"content\":\"Hi\"}]}'"
)]
pub(crate) struct Serve {
    /// Models to serve: paths, or names in the model folder
    #[arg(value_name = "MODEL", value_hint = ValueHint::AnyPath)]
    pub(crate) models: Vec<String>,
    /// Address to listen on; others than this machine's own let anybody in
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1")]
    pub(crate) host: String,
    /// Port to listen on; 0 takes a free one and says which
    #[arg(long, value_name = "PORT", default_value = "8080")]
    pub(crate) port: u16,
    /// Replies that run side by side [default: the backend's choice]
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = values::count)]
    pub(crate) parallel: Option<u32>,
    /// Seconds that replies have to end when it is told to stop
    #[arg(long, value_name = "SECONDS", allow_negative_numbers = true, default_value = "10", value_parser = values::whole)]
    pub(crate) grace: u32,
    /// Don't look for changes of manifest and plugins; `plugins reload` still does
    #[arg(long)]
    pub(crate) no_watch: bool,
    /// Which backend, and how it loads.
    #[command(flatten)]
    pub(crate) loading: Loading,
}

/// `plugins reload`.
#[derive(Args, Debug)]
pub(crate) struct Reload {
    /// The server to ask
    #[arg(long, value_name = "URL", default_value = "http://127.0.0.1:8080", value_hint = ValueHint::Url)]
    pub(crate) server: String,
    /// One JSON object: changes
    #[arg(long)]
    pub(crate) json: bool,
}
