//! From what crossed the boundary to the traits that a host calls.

use crate::abi::codes::Control;
use crate::abi::traits::{
    BackendObject, BatchSink_TO, BatchSinkObject, HostServices_TO, HostServicesObject, Sink_TO,
    SinkObject, TextModelObject,
};
use crate::abi::{self, data};
use crate::capability::AnyCapability;
use crate::convert;
use crate::guard::{guard, payload_text};
use crate::sdk::{Backend, BatchSink, Context, Result, Sink, TextModel};
use crate::types::{
    self, ChatRequest, Classification, ClassifyRequest, Completion, DeviceInfo, Error, ErrorCode,
    GenerateRequest, LoadOptions, Metrics, ModelInfo, Verdict,
};
use abi_stable::erased_types::TD_Opaque;
use abi_stable::std_types::{RArc, RResult, RStr};
use std::any::Any;
use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Arc;

/// A backend that crossed, as hosts call it.
pub fn backend(object: BackendObject) -> Arc<dyn Backend> {
    Arc::new(ImportedBackend { object })
}

/// A model that crossed, as hosts call it.
pub fn text_model(object: TextModelObject) -> Arc<dyn TextModel> {
    Arc::new(ImportedModel { object })
}

/// A context as it crosses.
pub fn context(context: &Context) -> data::Context {
    context.into()
}

/// What a host does for its modules.
pub trait HostServices: Send + Sync {
    /// Whether a record of this level and target would be kept.
    fn log_enabled(&self, level: tracing::Level, target: &str) -> bool;

    /// Takes a record: its target, its message with its fields, and where it was written, such as `src/lib.rs:7`.
    fn log(&self, level: tracing::Level, target: &str, message: &str, place: &str);
}

/// A host's services as they cross.
pub fn host_services(services: Arc<dyn HostServices>) -> HostServicesObject {
    HostServices_TO::from_ptr(RArc::new(LentServices { services }), TD_Opaque)
}

struct LentServices {
    services: Arc<dyn HostServices>,
}

impl abi::traits::HostServices for LentServices {
    fn log_enabled(&self, level: abi::codes::LogLevel, target: RStr<'_>) -> bool {
        guard(|| self.services.log_enabled(level.into(), target.as_str())).unwrap_or(false)
    }

    fn log(&self, record: data::LogRecord<'_>) {
        // A record that makes the host's logging panic is dropped: there is nowhere to tell it.
        let _ = guard(|| {
            let place = if record.file.is_empty() {
                String::new()
            } else {
                format!("{}:{}", record.file, record.line)
            };
            self.services.log(
                record.level.into(),
                record.target.as_str(),
                record.message.as_str(),
                &place,
            );
        });
    }
}

struct ImportedBackend {
    object: BackendObject,
}

impl Backend for ImportedBackend {
    fn name(&self) -> String {
        self.object.name().into()
    }

    fn version(&self) -> String {
        self.object.version().into()
    }

    fn probe(&self) -> Verdict {
        self.object.probe().into()
    }

    fn devices(&self) -> Result<Vec<DeviceInfo>> {
        match self.object.devices() {
            RResult::ROk(list) => Ok(list.into_iter().map(Into::into).collect()),
            RResult::RErr(error) => Err(error.into()),
        }
    }

    fn inspect(&self, path: &Path) -> Result<Option<ModelInfo>> {
        match self.object.inspect(convert::path_bytes(path).into()) {
            RResult::ROk(info) => Ok(info.into_option().map(Into::into)),
            RResult::RErr(error) => Err(error.into()),
        }
    }

    fn load(&self, path: &Path, options: &LoadOptions) -> Result<Arc<dyn TextModel>> {
        match self
            .object
            .load(convert::path_bytes(path).into(), &options.into())
        {
            RResult::ROk(object) => Ok(text_model(object)),
            RResult::RErr(error) => Err(error.into()),
        }
    }

    fn capability(&self, name: &str) -> Option<AnyCapability> {
        self.object.capability(name.into()).into()
    }
}

struct ImportedModel {
    object: TextModelObject,
}

impl TextModel for ImportedModel {
    fn info(&self) -> ModelInfo {
        self.object.info().into()
    }

    fn generate(&self, request: &GenerateRequest, sink: &mut dyn Sink) -> Result<Completion> {
        let request = request.into();
        with_sink(sink, |sink| {
            convert::result_in(self.object.generate(&request, sink))
        })
    }

    fn chat(&self, request: &ChatRequest, sink: &mut dyn Sink) -> Result<Completion> {
        let request = request.into();
        with_sink(sink, |sink| {
            convert::result_in(self.object.chat(&request, sink))
        })
    }

    fn render_chat(&self, request: &ChatRequest) -> Result<String> {
        convert::result_in(self.object.render_chat(&request.into()))
    }

    fn classify(&self, request: &ClassifyRequest) -> Result<Vec<Result<Classification>>> {
        convert::results_in(self.object.classify(&request.into()))
    }

    fn batch_generate(
        &self,
        requests: &[GenerateRequest],
        sink: &mut dyn BatchSink,
    ) -> Result<Vec<Result<Completion>>> {
        let requests: Vec<data::GenerateRequest> = requests.iter().map(Into::into).collect();
        let mut guarded = GuardedBatchSink {
            sink,
            panic: Cell::new(None),
            garbled: Cell::new(false),
        };
        let object: BatchSinkObject<'_> =
            BatchSink_TO::from_ptr(abi_stable::RMut::new(&mut guarded), TD_Opaque);
        let result = convert::results_in(
            self.object
                .batch_generate(requests.as_slice().into(), object),
        );
        match guarded.panic.take() {
            Some(payload) => Err(sink_panicked(&*payload)),
            None if guarded.garbled.get() => Err(garbled()),
            None => result,
        }
    }

    fn tokenize(&self, text: &str, add_special: bool, parse_special: bool) -> Result<Vec<u32>> {
        convert::result_in(
            self.object
                .tokenize(text.into(), add_special, parse_special),
        )
    }

    fn detokenize(&self, tokens: &[u32], special: bool) -> Result<Vec<u8>> {
        convert::result_in(self.object.detokenize(tokens.into(), special))
    }

    fn metrics(&self) -> Metrics {
        convert::metrics_in(self.object.metrics())
    }

    fn close(&self) -> Result<()> {
        convert::result_in(self.object.close())
    }

    fn capability(&self, name: &str) -> Option<AnyCapability> {
        self.object.capability(name.into()).into()
    }
}

type Payload = Box<dyn Any + Send>;

/// A caller's sink whose panics don't cross: the first stops the generation and is kept.
struct GuardedSink<'a> {
    sink: &'a mut dyn Sink,
    panic: Cell<Option<Payload>>,
    /// The module told a text that is none, which stops the generation.
    garbled: Cell<bool>,
}

// SAFETY: `RMut` asks for `Sync` where `Send` would do. The only shared access to a guarded sink is through the trait object
// made of it, which is `Send` but not `Sync` (its trait asks for `Send` alone), so that one thread reaches it at a time;
// the caller's sink is `Send`.
unsafe impl Sync for GuardedSink<'_> {}

/// Lends `sink` for one call; should it have panicked, that is the call's error.
fn with_sink<T>(sink: &mut dyn Sink, call: impl FnOnce(SinkObject<'_>) -> Result<T>) -> Result<T> {
    let mut guarded = GuardedSink {
        sink,
        panic: Cell::new(None),
        garbled: Cell::new(false),
    };
    let result = call(Sink_TO::from_ptr(
        abi_stable::RMut::new(&mut guarded),
        TD_Opaque,
    ));
    match guarded.panic.take() {
        Some(payload) => Err(sink_panicked(&*payload)),
        None if guarded.garbled.get() => Err(garbled()),
        None => result,
    }
}

fn garbled() -> Error {
    Error::new(ErrorCode::Internal, "told text that is not UTF-8")
        .with_action("report this to the plugin's author")
}

/// Whether a module's event holds nothing but text: a module that was built wrongly must not break the caller's strings.
#[inline]
fn is_text(event: &data::Event<'_>) -> bool {
    let right = |bytes: &[u8]| std::str::from_utf8(bytes).is_ok();
    let mut alternatives = event.logprobs.iter();
    right(event.text.as_bytes()) && alternatives.all(|one| right(one.text.as_bytes()))
}

fn sink_panicked(payload: &(dyn Any + Send)) -> Error {
    Error::new(
        ErrorCode::Internal,
        format!("the caller's sink panicked: {}", payload_text(payload)),
    )
}

/// Whether a panic was kept.
fn holds(panic: &Cell<Option<Payload>>) -> bool {
    let kept = panic.take();
    let held = kept.is_some();
    panic.set(kept);
    held
}

/// Calls a sink, unless it has panicked before; a panic gives `otherwise`.
#[inline]
fn contain<R>(panic: &Cell<Option<Payload>>, otherwise: R, call: impl FnOnce() -> R) -> R {
    if holds(panic) {
        return otherwise;
    }
    catch_unwind(AssertUnwindSafe(call)).unwrap_or_else(|payload| {
        panic.set(Some(payload));
        otherwise
    })
}

impl abi::traits::Sink for GuardedSink<'_> {
    #[inline]
    fn on_event(&mut self, event: data::Event<'_>) -> Control {
        if self.garbled.get() || !is_text(&event) {
            self.garbled.set(true);
            return types::Control::Stop.into();
        }
        let sink = &mut *self.sink;
        contain(&self.panic, types::Control::Stop, || {
            // An event of a kind that this contract does not know is skipped.
            convert::with_event_in(&event, |event| sink.on_event(event))
                .unwrap_or(types::Control::Continue)
        })
        .into()
    }

    #[inline]
    fn should_stop(&self) -> bool {
        contain(&self.panic, true, || self.sink.should_stop())
    }
}

/// As [`GuardedSink`], for a batch: a panic stops every request of it.
struct GuardedBatchSink<'a> {
    sink: &'a mut dyn BatchSink,
    panic: Cell<Option<Payload>>,
    garbled: Cell<bool>,
}

// SAFETY: as for `GuardedSink`.
unsafe impl Sync for GuardedBatchSink<'_> {}

impl abi::traits::BatchSink for GuardedBatchSink<'_> {
    #[inline]
    fn on_event(&mut self, index: usize, event: data::Event<'_>) -> Control {
        if self.garbled.get() || !is_text(&event) {
            self.garbled.set(true);
            return types::Control::Stop.into();
        }
        let sink = &mut *self.sink;
        contain(&self.panic, types::Control::Stop, || {
            convert::with_event_in(&event, |event| sink.on_event(index, event))
                .unwrap_or(types::Control::Continue)
        })
        .into()
    }

    #[inline]
    fn should_stop(&self, index: usize) -> bool {
        contain(&self.panic, true, || self.sink.should_stop(index))
    }
}
