//! Runs language models on whatever accelerators a machine has, through plugins loaded at run time.
//!
//! The binary `backplane` is a thin face over this library. A program that embeds it loads a model and streams:
//!
//! ```no_run
//! use backplane::{Control, Event, GenerateOptions, GenerateRequest, ModelOptions, Prompt, Registry};
//!
//! # fn main() -> backplane::Result<()> {
//! let model = Registry::open(None)?.load("SmolLM2-135M-Instruct.Q4_1", &ModelOptions::default())?;
//! let options = GenerateOptions { max_tokens: Some(64), ..GenerateOptions::default() };
//! let request = GenerateRequest { prompt: Prompt::text("The sky is"), options };
//! let reply = model.generate(&request, &mut |event: Event<'_>| {
//!     if let Event::Token { text, .. } | Event::Text { text } = event {
//!         print!("{text}");
//!     }
//!     Control::Continue
//! })?;
//! println!("\n{} tokens by {}", reply.completion.completion_tokens, reply.backend);
//! # Ok(())
//! # }
//! ```
//!
//! The same program is `examples/stream.rs`, which the tests run. Without the feature `cli` the command line and its
//! packages are left out.
//!
//! Invariants: the host knows the traits of the contract and no engine; a module is opened only from where the manifest
//! says; nothing is chosen that the order does not reach.

#[cfg(all(unix, feature = "cli"))]
mod authoring;
pub mod catalog;
#[cfg(feature = "cli")]
pub mod cli;
#[cfg(any(feature = "cli", feature = "serve"))]
mod devices;
mod error;
mod folders;
pub mod loader;
mod lossy;
pub mod manifest;
mod memory;
mod module_copy;
mod nearest;
pub mod registry;
#[cfg(feature = "cli")]
mod repl;
pub mod selection;
#[cfg(feature = "serve")]
pub mod serve;
pub mod worker;

pub use backplane_plugin_api::sdk::{Backend, Sink, TextModel};
pub use backplane_plugin_api::types::{
    ChatMessage, ChatRequest, ClassifyRequest, Completion, Control, DeviceInfo, Event,
    FinishReason, GenerateOptions, GenerateRequest, LoadOptions, ModelInfo, Prompt, Sampling,
    Verdict, VerdictState,
};
pub use backplane_plugin_api::{
    AttentionRequest, AttentionState, ConvertOptions, ConvertReport, EmbedRequest, Embedding,
    Finding, LayerAttention, PeaksReport, Pooling, Progress, ScoreRequest, Unwatched,
};
pub use error::{Error, Result};
pub use folders::Folders;
pub use manifest::{Fallback, Manifest};
pub use registry::{
    Change, Checked, Converted, Model, ModelChange, ModelOptions, Plugin, PluginChange, Registry,
    Reloaded, Reply, Watch,
};
