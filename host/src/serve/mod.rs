//! Models over HTTP: OpenAI's chat and completions, and what operators ask.
//!
//! The contract's calls block, so each generation has a thread of its own, and tells what it says over a channel; HTTP
//! runs on two others. A client that goes away drops its side of the channel, which stops the generation at its next
//! step, while its prompt is read too.
//!
//! | question | place |
//! | --- | --- |
//! | which fields a request may have, and what becomes of each | `fields.rs` |
//! | what an error looks like | `errors.rs` |
//! | which paths there are, and who may ask for them | `routes.rs` |
//! | what every request passes | `door.rs` |
//! | what is told of requests | `access.rs` (one by one), `metrics.rs` (counted) |
//! | sockets, signals, the end | `lifecycle.rs` |
//!
//! Invariants: nothing in a request is ignored silently: an unknown field is refused by its name. Nothing of HTTP is known
//! outside this folder. A model is never named by a path: only those that the operator loaded are served.

mod access;
mod door;
mod errors;
mod fields;
mod generation;
mod http;
mod lifecycle;
mod metrics;
mod models;
mod openai;
mod operator;
mod routes;
mod sse;

use crate::error::Result;
use crate::registry::{ModelOptions, Registry};
use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

/// What is served, and where.
#[derive(Clone)]
pub struct Options {
    /// Models, by path or name, at least one; each is called by its name.
    pub models: Vec<String>,
    /// How they are loaded.
    pub loading: ModelOptions,
    /// Address or name to listen on.
    pub host: String,
    /// Port; 0 takes one that is free.
    pub port: u16,
    /// Time that replies have to end once the server is to stop.
    pub grace: Duration,
    /// Most bytes of a request.
    pub body_limit: usize,
    /// Most replies at once; more are refused, with a time to try again.
    pub replies: u32,
    /// How often manifest and modules are looked at for changes; `None` never.
    pub watch: Option<Duration>,
    /// Whether each request is a line of the log, by the target `access`.
    pub access_log: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            models: Vec::new(),
            loading: ModelOptions::default(),
            host: "127.0.0.1".to_owned(),
            port: 8080,
            grace: Duration::from_secs(10),
            body_limit: 16 << 20,
            replies: 256,
            watch: Some(Duration::from_secs(1)),
            access_log: true,
        }
    }
}

/// What an operator is told.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Notice {
    /// It listens there, and loads its models.
    Listening(SocketAddr),
    /// A model is loaded and has answered.
    Ready(String),
    /// Something changed by a reload, or went wrong and is gone on with: lines.
    Note(String),
    /// It stops: why.
    Stopping(&'static str),
}

impl fmt::Display for Notice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Listening(address) => write!(f, "listening on http://{address}"),
            Self::Ready(model) => write!(f, "{model} is ready"),
            Self::Note(text) => f.write_str(text),
            Self::Stopping(why) => write!(f, "stopping: {why}"),
        }
    }
}

/// Who is told.
pub type Tell = Arc<dyn Fn(Notice) + Send + Sync>;

/// Serves until SIGTERM or SIGINT, of which a second one ends the process at once.
///
/// # Errors
/// The address can't be listened on, a model can't be loaded, or the system lacks what a server needs.
pub fn serve(registry: Registry, options: Options, tell: Tell) -> Result<()> {
    lifecycle::run(Arc::new(registry.reloadable()), options, tell)
}

/// Asks the server at `url` (`http://HOST:PORT`) to look at manifest and modules again.
///
/// # Errors
/// No server answers there, or it refuses.
pub fn ask_to_reload(url: &str) -> Result<crate::registry::Reloaded> {
    operator::ask_to_reload(url)
}
