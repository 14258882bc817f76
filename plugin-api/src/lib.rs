//! The contract between the Backplane host and its plugins, and the plugin author's SDK.
//!
//! A plugin is a `cdylib` that implements two traits and exports itself with one macro. This is a whole one: its models
//! say their prompt again.
//!
//! ```
//! use backplane_plugin_api::*;
//! use std::path::Path;
//! use std::sync::Arc;
//!
//! struct Parrot;
//!
//! impl Backend for Parrot {
//!     fn name(&self) -> String {
//!         "parrot".into()
//!     }
//!     fn version(&self) -> String {
//!         env!("CARGO_PKG_VERSION").into()
//!     }
//!     fn probe(&self) -> Verdict {
//!         Verdict::available("parrots need no device")
//!     }
//!     fn devices(&self) -> Result<Vec<DeviceInfo>> {
//!         Ok(Vec::new())
//!     }
//!     fn inspect(&self, path: &Path) -> Result<Option<ModelInfo>> {
//!         Ok(path.extension().is_some_and(|e| e == "parrot").then(|| info(path)))
//!     }
//!     fn load(&self, path: &Path, options: &LoadOptions) -> Result<Arc<dyn TextModel>> {
//!         // Nothing is silently ignored: an option that means nothing here is refused by name.
//!         // (A context is no such option: hosts always offer one, and these models need none.)
//!         let refused = [("threads", options.threads.is_some()), ("parallel", options.parallel.is_some())];
//!         let refused = refused.into_iter().find(|(_, given)| *given).map(|(name, _)| name);
//!         if let Some(name) = refused.or(options.extra.keys().next().map(String::as_str)) {
//!             return Err(Error::unsupported_field(name, "parrot"));
//!         }
//!         Ok(Arc::new(Words { info: info(path) }))
//!     }
//! }
//!
//! struct Words {
//!     info: ModelInfo,
//! }
//!
//! impl TextModel for Words {
//!     fn info(&self) -> ModelInfo {
//!         self.info.clone()
//!     }
//!     fn generate(&self, request: &GenerateRequest, sink: &mut dyn Sink) -> Result<Completion> {
//!         let default = GenerateOptions { max_tokens: request.options.max_tokens, ..GenerateOptions::default() };
//!         if request.options != default {
//!             return Err(Error::unsupported_field("options", "parrot"));
//!         }
//!         let Prompt::Text { text, .. } = &request.prompt else {
//!             return Err(Error::unsupported_field("prompt.tokens", "parrot"));
//!         };
//!         let most = request.options.max_tokens.unwrap_or(u32::MAX) as usize;
//!         let words: Vec<&str> = text.split_inclusive(' ').collect();
//!         let mut said = 0;
//!         let mut reason = if words.len() > most { FinishReason::Length } else { FinishReason::Stop };
//!         for word in words.iter().take(most) {
//!             if sink.should_stop() {
//!                 reason = FinishReason::Cancelled;
//!                 break;
//!             }
//!             said += 1;
//!             // The engine has no token ids, and says so.
//!             let event = Event::Token { token: None, text: word, logprobs: &[] };
//!             if sink.on_event(event) == Control::Stop {
//!                 reason = FinishReason::Cancelled;
//!                 break;
//!             }
//!         }
//!         Ok(Completion {
//!             finish_reason: reason,
//!             stop_string: None,
//!             prompt_tokens: words.len() as u64,
//!             cached_tokens: 0,
//!             completion_tokens: said,
//!             seed: 0,
//!             queue_s: 0.0,
//!             prefill_s: 0.0,
//!             decode_s: 0.0,
//!         })
//!     }
//!     fn chat(&self, _: &ChatRequest, _: &mut dyn Sink) -> Result<Completion> {
//!         Err(unsupported("chat"))
//!     }
//!     fn render_chat(&self, _: &ChatRequest) -> Result<String> {
//!         Err(unsupported("render_chat"))
//!     }
//!     fn classify(&self, _: &ClassifyRequest) -> Result<Vec<Result<Classification>>> {
//!         Err(unsupported("classify"))
//!     }
//!     fn batch_generate(&self, _: &[GenerateRequest], _: &mut dyn BatchSink) -> Result<Vec<Result<Completion>>> {
//!         Err(unsupported("batch_generate"))
//!     }
//!     fn tokenize(&self, _: &str, _: bool, _: bool) -> Result<Vec<u32>> {
//!         Err(unsupported("tokenize"))
//!     }
//!     fn detokenize(&self, _: &[u32], _: bool) -> Result<Vec<u8>> {
//!         Err(unsupported("detokenize"))
//!     }
//!     fn metrics(&self) -> Metrics {
//!         Metrics::new()
//!     }
//!     fn close(&self) -> Result<()> {
//!         Ok(())
//!     }
//! }
//!
//! fn unsupported(what: &str) -> Error {
//!     Error::new(ErrorCode::Unsupported, format!("parrots don't {what}"))
//! }
//!
//! fn info(path: &Path) -> ModelInfo {
//!     ModelInfo {
//!         name: path.file_stem().unwrap_or_default().to_string_lossy().into(),
//!         path: path.into(),
//!         format: "parrot".into(),
//!         architecture: "parrot".into(),
//!         quantization: "none".into(),
//!         parameters: 0,
//!         file_bytes: 0,
//!         context_length: 0,
//!         loaded_context: 0,
//!         vocabulary: 0,
//!         chat_template: None,
//!         unsupported: None,
//!         details: Vec::new(),
//!         metadata: Vec::new(),
//!         tensors: Vec::new(),
//!         warnings: Vec::new(),
//!     }
//! }
//!
//! export_plugin! { name: "parrot", backend: |_context| Ok(Parrot) }
//!
//! # fn main() {
//! # let model = Parrot.load(Path::new("polly.parrot"), &LoadOptions::default()).unwrap();
//! # let mut text = String::new();
//! # let request = GenerateRequest { prompt: Prompt::text("say it again"), options: GenerateOptions::default() };
//! # let done = model.generate(&request, &mut |event: Event<'_>| {
//! #     if let Event::Token { text: word, .. } = event { text.push_str(word); }
//! #     Control::Continue
//! # }).unwrap();
//! # assert_eq!((text.as_str(), done.completion_tokens), ("say it again", 3));
//! # }
//! ```
//!
//! | module | for |
//! |---|---|
//! | [`types`] | the plain data: verdicts, models, requests, events, errors |
//! | [`sdk`] | the traits that plugins implement and hosts call |
//! | [`capability`] | optional capabilities, each with its own layout check |
//! | [`export`] | [`export_plugin!`] and its machinery, for plugins |
//! | [`import`] | what crossed, as hosts call it |
//! | [`abi`] | what crosses, and the rules by which it grows |
//!
//! # Rules
//!
//! * **Threads.** [`Backend`] and [`TextModel`] are called from any thread, many at once. A [`Sink`] is called by one
//!   thread at a time, not always the caller's. A plugin owns its threads and its runtime; no handle of one crosses.
//! * **Errors** belong to the call that made them. A bad call among good ones fails alone.
//! * **Nothing is ignored.** A field of a request that a backend can't honour is refused by name
//!   ([`ErrorCode::UnsupportedField`]).
//! * **Panics** in a plugin become [`ErrorCode::Panicked`] and the next call works; a panic in a caller's sink stops the
//!   generation and is that call's error.
//! * **Cancellation** is polled within one batch of prefill and between tokens.
//! * **Logs.** A plugin uses `tracing`; the SDK sends its events to the host, asking first whether they are wanted.
//! * **Lifetime.** Modules are never unloaded.
//!
//! Everything here is there since contract 1.0 unless it says otherwise.

#![allow(non_local_definitions, unused_braces)]

pub mod abi;
mod batch;
pub mod c;
pub mod capability;
mod convert;
pub mod export;
mod guard;
pub mod import;
mod log;
pub mod schema;
pub mod sdk;
pub mod types;

pub use capability::{
    AnyCapability, Attention, AttentionRequest, AttentionState, CapabilityError, Check, Convert,
    ConvertOptions, ConvertReport, Embed, EmbedRequest, Embedding, Finding, LayerAttention, Peaks,
    PeaksReport, PeaksRequest, Pooling, Progress, Score, ScoreRequest, Unwatched,
};
pub use sdk::*;
pub use types::*;

#[cfg(test)]
mod tests;
