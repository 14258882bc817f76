//! Client and supervisor of llama.cpp's server, and the contract over it.
//!
//! [`Bridge`] is a backend whose models run in a `llama-server` process each: started on a free port of this machine, waited
//! for, watched, started again when it crashed between calls, and stopped with the model. Plugins differ by [`Flavour`]:
//! their name, where the program is looked for, and what they ask of the machine.
//!
//! Invariants:
//! - A server never outlives the process that started it (on Linux the system sees to it, even on SIGKILL).
//! - Nothing but this process can use the server: it listens on the loopback address and asks for a key drawn at its start.
//! - An error belongs to the call that made it; the server's own words are part of it.
#![cfg(unix)]

mod bridge;
mod child;
mod describe;
mod gpus;
pub mod http;
mod key;
pub mod locate;
mod model;
pub mod native;
pub mod openai;
mod pieces;
pub mod request;
pub mod server;
mod settings;
pub mod sse;
mod stops;

pub use backplane_machine::root as machine_root;
pub use bridge::{Bridge, Flavour};
pub use gpus::Gpus;
pub use key::Key;
pub use settings::Settings;
pub use stops::Stops;
