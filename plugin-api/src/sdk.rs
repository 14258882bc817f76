//! What a plugin author writes, and what a host calls: ordinary Rust traits.
//!
//! [`Backend`] and [`TextModel`] are implemented by plugins and called by hosts; [`Sink`] is implemented by the caller
//! of a generation. The adapters in this crate carry them across the boundary in both directions and turn every panic
//! into an error.

use crate::capability::AnyCapability;
use crate::types::{
    ChatRequest, Classification, ClassifyRequest, Completion, Control, DeviceInfo, Error, Event,
    GenerateRequest, LoadOptions, Metrics, ModelInfo, Verdict,
};
use std::path::Path;
use std::sync::Arc;

pub use crate::batch::side_by_side;

/// Result of a call across the contract.
pub type Result<T> = std::result::Result<T, Error>;

/// An engine. One instance per plugin and process, mostly; a second one is independent.
///
/// Since 1.0. Threads: calls may come from any thread, many at once. Ownership: what a call returns is the caller's;
/// arguments are lent for the call. Lifetime: it may be dropped while models that it loaded live on. A panic is an error
/// with the code [`ErrorCode::Panicked`](crate::types::ErrorCode::Panicked), in [`Backend::probe`] a verdict, where a call
/// can't err a logged line and an empty answer.
pub trait Backend: Send + Sync {
    /// Name in manifests and messages, such as `cpu`: lower case, digits, `_`.
    fn name(&self) -> String;

    /// The plugin's own version (semver).
    fn version(&self) -> String;

    /// Whether models can be run here, and if not, why and what would mend it. Must answer within a second or so.
    fn probe(&self) -> Verdict;

    /// The devices it would use; empty when there is none.
    ///
    /// # Errors
    /// A device could not be read.
    fn devices(&self) -> Result<Vec<DeviceInfo>>;

    /// Says what a model file is, reading no weights. `Ok(None)`: not a format of this backend.
    /// A file of its format that it can't run is `Ok(Some(info))` with [`ModelInfo::unsupported`] set, or an error when
    /// the file is broken.
    ///
    /// # Errors
    /// The file is of this backend's format, but broken or unreadable.
    fn inspect(&self, path: &Path) -> Result<Option<ModelInfo>>;

    /// Loads a model.
    ///
    /// # Errors
    /// The file can't be used, an option is refused, memory is short.
    fn load(&self, path: &Path, options: &LoadOptions) -> Result<Arc<dyn TextModel>>;

    /// An optional capability by name and version, such as `embed/1`. `None` is an answer.
    fn capability(&self, name: &str) -> Option<AnyCapability> {
        let _ = name;
        None
    }
}

/// A loaded model.
///
/// Since 1.0. Threads: calls may come from any thread, many at once; errors belong to the call that made them.
/// Ownership: requests and sinks are lent for the call, and no part of them is used after it returns. Lifetime: dropping
/// the model frees what it holds, as [`TextModel::close`] does; after that one, calls that run the model err with
/// [`ErrorCode::Closed`](crate::types::ErrorCode::Closed).
pub trait TextModel: Send + Sync {
    /// What was loaded.
    fn info(&self) -> ModelInfo;

    /// Generates from a prompt. Blocks until the end; events go to `sink` on the calling thread or another, one at a
    /// time. Cancellation ([`Control::Stop`] or [`Sink::should_stop`]) takes effect within one batch of prefill and
    /// between tokens.
    ///
    /// # Errors
    /// The request is refused, or the backend failed; what was streamed until then stands.
    fn generate(&self, request: &GenerateRequest, sink: &mut dyn Sink) -> Result<Completion>;

    /// Generates the next message of a chat with the model's own template.
    ///
    /// # Errors
    /// As [`TextModel::generate`]; also where the template refuses the messages or the model has none.
    fn chat(&self, request: &ChatRequest, sink: &mut dyn Sink) -> Result<Completion>;

    /// The text that [`TextModel::chat`] would give the model, template applied.
    ///
    /// # Errors
    /// The template refuses the messages, or the model has none.
    fn render_chat(&self, request: &ChatRequest) -> Result<String>;

    /// One forward pass a prompt; results in order, an error per prompt.
    ///
    /// # Errors
    /// The request as a whole is refused.
    fn classify(&self, request: &ClassifyRequest) -> Result<Vec<Result<Classification>>>;

    /// Several generations side by side; event `i` belongs to request `i`; an error per request.
    ///
    /// # Errors
    /// The batch as a whole is refused.
    fn batch_generate(
        &self,
        requests: &[GenerateRequest],
        sink: &mut dyn BatchSink,
    ) -> Result<Vec<Result<Completion>>>;

    /// Token ids of a text. `add_special` adds what the model wants around it (BOS …); `parse_special` reads special
    /// tokens in the text.
    ///
    /// # Errors
    /// The engine has no tokenizer to ask.
    fn tokenize(&self, text: &str, add_special: bool, parse_special: bool) -> Result<Vec<u32>>;

    /// Bytes of token ids (UTF-8 unless the ids cut a character). Special tokens are written out when `special`.
    ///
    /// # Errors
    /// An id is outside the vocabulary.
    fn detokenize(&self, tokens: &[u32], special: bool) -> Result<Vec<u8>>;

    /// Counters and gauges of this model.
    fn metrics(&self) -> Metrics;

    /// Ends running generations (they err as closed) and frees what the model holds. A second call does nothing.
    ///
    /// # Errors
    /// The engine could not let go.
    fn close(&self) -> Result<()>;

    /// An optional capability of this model by name and version. `None` is an answer.
    fn capability(&self, name: &str) -> Option<AnyCapability> {
        let _ = name;
        None
    }
}

/// Takes the events of one generation.
///
/// Since 1.0. Implemented by callers. Threads: called by one thread at a time, not always the caller's, until the call it
/// was lent to returns. Events and what they lend live for the call only. After [`Control::Stop`] no event comes. A panic
/// stops the generation, and is the error of the call.
pub trait Sink: Send {
    /// Takes an event; the answer says whether to go on.
    fn on_event(&mut self, event: Event<'_>) -> Control;

    /// Polled while the prompt is read and between tokens.
    fn should_stop(&self) -> bool {
        false
    }
}

/// Takes the events of several generations.
///
/// Since 1.0. As [`Sink`], with the index of the request; a panic stops all requests of the batch.
pub trait BatchSink: Send {
    /// Takes an event of request `index`; the answer says whether that request goes on.
    fn on_event(&mut self, index: usize, event: Event<'_>) -> Control;

    /// Polled while prompts are read and between tokens; true ends request `index`.
    fn should_stop(&self, index: usize) -> bool {
        let _ = index;
        false
    }
}

/// A closure is a sink.
impl<F: FnMut(Event<'_>) -> Control + Send> Sink for F {
    fn on_event(&mut self, event: Event<'_>) -> Control {
        self(event)
    }
}

/// What a backend is made with.
#[derive(Clone, Debug, Default)]
pub struct Context {
    /// The plugin's options table in the manifest; the plugin refuses keys it does not know (its probe then says
    /// `misconfigured`).
    pub options: std::collections::BTreeMap<String, serde_json::Value>,
    /// Folder of the module file.
    pub module_dir: std::path::PathBuf,
}
