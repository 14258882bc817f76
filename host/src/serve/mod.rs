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
//! | what every request passes | `door.rs`, with `keys.rs` and `cors.rs` |
//! | what is told of requests | `access.rs` (one by one), `metrics.rs` (counted) |
//! | sockets, signals, the end | `lifecycle.rs`, with `connection.rs` and `tls.rs` |
//! | what of a reply is text and what a call | `tools/` |
//!
//! Invariants: nothing in a request is ignored silently: an unknown field is refused by its name. Nothing of HTTP is known
//! outside this folder. A model is never named by a path: only those that the operator loaded are served.

mod access;
mod connection;
mod cors;
mod door;
mod errors;
mod fields;
mod generation;
mod http;
mod keys;
mod lifecycle;
mod metrics;
mod models;
mod openai;
mod operator;
mod page;
mod routes;
mod sse;
mod tls;
mod tools;

use crate::error::Result;
use crate::registry::{ModelOptions, Registry};
use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
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
    /// Files for TLS; `None` speaks plain HTTP.
    pub tls: Option<TlsFiles>,
    /// Time for which a connection may be silent: before a request, within its head, and until the next one.
    pub idle: Duration,
    /// Time for which a stream is silent before a comment is sent, so that nothing on the way takes it for dead.
    pub keep_alive: Duration,
    /// A file of keys, without one of which nothing is answered; `None` asks for none.
    pub keys: Option<PathBuf>,
    /// Who gets at the metrics.
    pub metrics: MetricsFor,
    /// Origins whose web pages may ask, `*` any; the server's own always may.
    pub origins: Vec<String>,
    /// Names by which this machine asks, `*` any, besides addresses and its own name. They don't matter where keys are
    /// asked for.
    pub hosts: Vec<String>,
}

/// Files for TLS, as PEM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsFiles {
    /// The server's certificate first, then those that vouch for it.
    pub certificate: PathBuf,
    /// Its private key.
    pub key: PathBuf,
    /// Certificates of the authorities whose clients alone are taken; `None` asks clients for no certificate.
    pub client_authority: Option<PathBuf>,
}

/// Who gets at the metrics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MetricsFor {
    /// Who has a key, where keys are asked for.
    #[default]
    Keys,
    /// All.
    All,
    /// There are none.
    Nobody,
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
            tls: None,
            idle: Duration::from_secs(120),
            keep_alive: Duration::from_secs(10),
            keys: None,
            metrics: MetricsFor::default(),
            origins: Vec::new(),
            hosts: Vec::new(),
        }
    }
}

/// What an operator is told.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Notice {
    /// It listens there, and loads its models.
    Listening {
        /// The address.
        address: SocketAddr,
        /// Whether it speaks TLS.
        tls: bool,
    },
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
            Self::Listening {
                address,
                tls: false,
            } => write!(f, "listening on http://{address}"),
            Self::Listening { address, tls: true } => write!(f, "listening on https://{address}"),
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
