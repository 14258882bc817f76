//! Models over HTTP: OpenAI's chat and completions, and what operators ask.
//!
//! The contract's calls block, so each generation has a thread of its own, and tells what it says over a channel; HTTP
//! runs on two others. A client that goes away drops its side of the channel, which stops the generation at its next
//! step, while its prompt is read too.
//!
//! | question | place |
//! | --- | --- |
//! | which fields a request may have, and what becomes of each | `fields.rs` |
//! | which parameters a query may have | `queries.rs` |
//! | what an error looks like | `errors.rs` |
//! | what is wrong with settings before it starts | `faults.rs` |
//! | which paths there are, and who may ask for them | `routes.rs` |
//! | what every request passes | `door.rs`, with `keys.rs` and `cors.rs` |
//! | what is told of requests | `access.rs` (one by one), `metrics.rs` (counted) |
//! | sockets, signals, the end | `lifecycle.rs`, with `connection.rs` and `tls.rs` |
//! | what of a reply is text and what a call | `tools/` |
//!
//! Invariants: nothing in a request is ignored silently: an unknown field is refused by its name. Nothing of HTTP is known
//! outside this folder. A model is never named by a path: only those that the operator named, or that are in the model folder where they are served.

mod access;
mod anthropic;
mod calls;
mod client;
mod connection;
mod conversation;
mod cors;
mod door;
mod errors;
mod faults;
mod fields;
mod generation;
mod http;
mod keys;
mod lifecycle;
mod likely;
mod metrics;
mod models;
mod ollama;
mod openai;
mod openapi;
mod operator;
mod page;
mod queries;
mod queue;
mod reply;
mod routes;
mod settings;
mod tls;
mod tokens;
mod tools;

pub use crate::manifest::ServeOptions as Options;
pub use client::{Client, Trust};
pub use faults::{CACHE_TYPES, QUANTIZE_TYPES, faults};
pub use settings::{Flag, Origin, Resolved};

use crate::error::Result;
use crate::registry::Registry;
use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;

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
/// A setting is wrong, the address can't be listened on, a model can't be loaded, or the system lacks what a server needs.
pub fn serve(registry: Registry, options: Options, tell: Tell) -> Result<()> {
    lifecycle::run(Arc::new(registry.reloadable()), options, tell)
}

/// Asks a server to look at manifest and modules again.
///
/// # Errors
/// No server answers there, or it refuses.
pub fn ask_to_reload(server: &Client) -> Result<crate::registry::Reloaded> {
    operator::ask_to_reload(server)
}
