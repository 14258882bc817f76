//! The traits that cross. Methods and their order are frozen within a major version up to the one marked
//! `#[sabi(last_prefix_field)]`; later minor versions add defaulted methods after it ([how it grows](super)).
//!
//! The meaning of each method is that of the same method in [`sdk`](crate::sdk).

#![allow(missing_docs)] // The attribute macro writes public items of its own.

use super::codes::{Control, LogLevel};
use super::data::{
    ChatRequest, Classification, ClassifyRequest, Completion, DeviceInfo, Error, Event,
    GenerateRequest, LoadOptions, LogRecord, Metric, ModelInfo, Verdict,
};
use crate::capability::AnyCapability;
use abi_stable::sabi_trait;
use abi_stable::std_types::{RArc, RBox, ROption, RResult, RSlice, RStr, RString, RVec};

/// An owned backend.
pub type BackendObject = Backend_TO<'static, RBox<()>>;
/// An owned model.
pub type TextModelObject = TextModel_TO<'static, RBox<()>>;
/// A sink lent for one call. One thread at a time: it may be sent, and not shared.
///
/// ```compile_fail,E0277
/// fn shared<T: Sync>() {}
/// shared::<backplane_plugin_api::abi::traits::SinkObject<'static>>();
/// ```
///
/// ```
/// fn sent<T: Send>() {}
/// sent::<backplane_plugin_api::abi::traits::SinkObject<'static>>();
/// ```
pub type SinkObject<'a> = Sink_TO<'a, abi_stable::RMut<'a, ()>>;
/// A batch sink lent for one call.
pub type BatchSinkObject<'a> = BatchSink_TO<'a, abi_stable::RMut<'a, ()>>;
/// What the host offers the module, for as long as the module lives.
pub type HostServicesObject = HostServices_TO<'static, RArc<()>>;

/// See [`sdk::Backend`](crate::sdk::Backend). Since 1.0.
#[sabi_trait]
pub trait Backend: Send + Sync {
    /// The name.
    fn name(&self) -> RString;
    /// The version.
    fn version(&self) -> RString;
    /// The verdict.
    fn probe(&self) -> Verdict;
    /// The devices.
    fn devices(&self) -> RResult<RVec<DeviceInfo>, Error>;
    /// What a file is.
    fn inspect(&self, path: RSlice<'_, u8>) -> RResult<ROption<ModelInfo>, Error>;
    /// Loads a model.
    fn load(&self, path: RSlice<'_, u8>, options: &LoadOptions) -> RResult<TextModelObject, Error>;
    /// An optional capability.
    #[sabi(last_prefix_field)]
    fn capability(&self, name: RStr<'_>) -> ROption<AnyCapability>;
    // Methods of later minor versions of `Backend` go here, each with a default.
}

/// See [`sdk::TextModel`](crate::sdk::TextModel). Since 1.0.
#[sabi_trait]
pub trait TextModel: Send + Sync {
    /// What was loaded.
    fn info(&self) -> ModelInfo;
    /// Generates.
    fn generate(
        &self,
        request: &GenerateRequest,
        sink: SinkObject<'_>,
    ) -> RResult<Completion, Error>;
    /// Generates the next message.
    fn chat(&self, request: &ChatRequest, sink: SinkObject<'_>) -> RResult<Completion, Error>;
    /// The text of a chat.
    fn render_chat(&self, request: &ChatRequest) -> RResult<RString, Error>;
    /// One forward pass a prompt.
    fn classify(
        &self,
        request: &ClassifyRequest,
    ) -> RResult<RVec<RResult<Classification, Error>>, Error>;
    /// Several generations.
    fn batch_generate(
        &self,
        requests: RSlice<'_, GenerateRequest>,
        sink: BatchSinkObject<'_>,
    ) -> RResult<RVec<RResult<Completion, Error>>, Error>;
    /// Token ids of a text.
    fn tokenize(
        &self,
        text: RStr<'_>,
        add_special: bool,
        parse_special: bool,
    ) -> RResult<RVec<u32>, Error>;
    /// Bytes of token ids.
    fn detokenize(&self, tokens: RSlice<'_, u32>, special: bool) -> RResult<RVec<u8>, Error>;
    /// Counters and gauges.
    fn metrics(&self) -> RVec<Metric>;
    /// Lets go.
    fn close(&self) -> RResult<(), Error>;
    /// An optional capability.
    #[sabi(last_prefix_field)]
    fn capability(&self, name: RStr<'_>) -> ROption<AnyCapability>;
    // Methods of later minor versions of `TextModel` go here, each with a default.
}

/// See [`sdk::Sink`](crate::sdk::Sink). Implemented by the caller of a generation. Since 1.0.
#[sabi_trait]
pub trait Sink: Send {
    /// Takes an event.
    fn on_event(&mut self, event: Event<'_>) -> Control;
    /// Whether to stop.
    #[sabi(last_prefix_field)]
    fn should_stop(&self) -> bool;
    // Methods of later minor versions of `Sink` go here, each with a default.
}

/// See [`sdk::BatchSink`](crate::sdk::BatchSink). Implemented by the caller of a batch. Since 1.0.
#[sabi_trait]
pub trait BatchSink: Send {
    /// Takes an event of request `index`.
    fn on_event(&mut self, index: usize, event: Event<'_>) -> Control;
    /// Whether request `index` is to stop.
    #[sabi(last_prefix_field)]
    fn should_stop(&self, index: usize) -> bool;
    // Methods of later minor versions of `BatchSink` go here, each with a default.
}

/// What a host offers its modules. Called from any thread, many at once; never panics into the module. Since 1.0.
#[sabi_trait]
pub trait HostServices: Send + Sync {
    /// Whether a record of this level and target would be kept. Asked before a record is made.
    fn log_enabled(&self, level: LogLevel, target: RStr<'_>) -> bool;
    /// Takes a record.
    #[sabi(last_prefix_field)]
    fn log(&self, record: LogRecord<'_>);
    // Methods of later minor versions of `HostServices` go here, each with a default.
}
