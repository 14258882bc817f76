//! From an author's [`Backend`] to what crosses the boundary. Authors use [`export_plugin!`](crate::export_plugin);
//! the rest is its machinery.

use crate::abi::codes::Control;
use crate::abi::traits::{
    Backend_TO, BackendObject, BatchSinkObject, HostServicesObject, SinkObject, TextModel_TO,
    TextModelObject,
};
use crate::abi::{self, data};
use crate::convert;
use crate::guard::{guard, install_hook};
use crate::sdk::{Backend, BatchSink, Context, Result, Sink, TextModel};
use crate::types::{self, Error, ErrorCode, Event, Verdict, VerdictState};
use crate::{AnyCapability, log};
use abi_stable::erased_types::TD_Opaque;
use abi_stable::std_types::{ROption, RResult, RSlice, RStr, RString, RVec};
use std::sync::Arc;

pub use abi_stable::library::{
    __call_root_module_loader as call_root_module, CheckTypeLayout, LibHeader, RootModuleResult,
};
pub use abi_stable::prefix_type::PrefixTypeTrait;

/// Exports a plugin from a `cdylib`.
///
/// `name` is the plugin's name (lower case, digits, `_`), `backend` a function or closure from [`Context`] to
/// [`Result`] of something that is a [`Backend`]. The plugin's version is that of the crate that invokes the macro.
///
/// ```text
/// backplane_plugin_api::export_plugin! { name: "cpu", backend: |context| CpuBackend::new(context) }
/// ```
///
/// A complete plugin stands at the top of the [crate's documentation](crate). One crate exports one plugin; two crates
/// that export one can't be linked into the same program, only loaded side by side.
#[macro_export]
macro_rules! export_plugin {
    (name: $name:expr, backend: $make:expr $(,)?) => {
        const _: () = {
            extern "C" fn new_backend(
                context: $crate::abi::data::Context,
                services: $crate::abi::traits::HostServicesObject,
            ) -> $crate::abi::abi_stable::std_types::RResult<
                $crate::abi::traits::BackendObject,
                $crate::abi::data::Error,
            > {
                $crate::export::new_backend(
                    $name,
                    env!("CARGO_PKG_VERSION"),
                    &context,
                    services,
                    $make,
                )
            }

            fn module() -> $crate::abi::PluginModuleRef {
                $crate::export::PrefixTypeTrait::leak_into_prefix($crate::abi::PluginModule {
                    contract_version: $crate::abi::CONTRACT_VERSION.into(),
                    name: $name.into(),
                    version: env!("CARGO_PKG_VERSION").into(),
                    rustc: $crate::abi::RUSTC_VERSION.into(),
                    panic_unwind: cfg!(panic = "unwind"),
                    new_backend,
                })
            }

            extern "C" fn root_module() -> $crate::export::RootModuleResult {
                $crate::export::call_root_module(module)
            }

            // The name is that of `abi::ROOT_SYMBOL`, which a test of the contract compares.
            // SAFETY: no other symbol of a plugin has this name.
            #[unsafe(export_name = "_1as_0lib_1header_0root_bmodule_bloader")]
            static HEADER: $crate::export::LibHeader = {
                // SAFETY: `root_module` gives what `module` made, a `PluginModuleRef`.
                unsafe {
                    $crate::export::LibHeader::from_constructor::<$crate::abi::PluginModuleRef>(
                        root_module,
                        $crate::export::CheckTypeLayout::Yes,
                    )
                }
            };
        };
    };
}

/// Makes the backend of a module; the body of what [`export_plugin!`](crate::export_plugin) exports.
pub fn new_backend<B: Backend + 'static>(
    name: &'static str,
    version: &'static str,
    context: &data::Context,
    services: HostServicesObject,
    make: impl FnOnce(Context) -> Result<B>,
) -> RResult<BackendObject, data::Error> {
    install_hook();
    log::install(services);
    let made = guard(|| Context::try_from(context).and_then(make));
    match made {
        Ok(Ok(backend)) => RResult::ROk(backend_object(name, version, Arc::new(backend))),
        Ok(Err(error)) => RResult::RErr(error.into()),
        Err(panic) => RResult::RErr(panicked(name, "new_backend", &panic).into()),
    }
}

/// A backend as it crosses, under a name and a version.
pub fn backend_object(name: &str, version: &str, backend: Arc<dyn Backend>) -> BackendObject {
    let plugin = Plugin {
        name: name.into(),
        version: version.into(),
    };
    Backend_TO::from_value(
        ExportedBackend {
            plugin: Arc::new(plugin),
            backend,
        },
        TD_Opaque,
    )
}

struct Plugin {
    name: String,
    version: String,
}

impl Plugin {
    /// Runs a call of the author's; a panic becomes an error.
    fn call<T>(&self, what: &str, call: impl FnOnce() -> Result<T>) -> Result<T> {
        guard(call).unwrap_or_else(|panic| Err(panicked(&self.name, what, &panic)))
    }

    /// Runs a call of the author's that can't err; a panic is logged and the fallback given.
    fn call_or<T>(&self, what: &str, call: impl FnOnce() -> T, fallback: impl FnOnce() -> T) -> T {
        guard(call).unwrap_or_else(|panic| {
            tracing::error!("{}", panicked(&self.name, what, &panic).message);
            fallback()
        })
    }
}

fn panicked(plugin: &str, what: &str, panic: &str) -> Error {
    Error::new(
        ErrorCode::Panicked,
        format!("plugin {plugin} panicked in {what}: {panic}"),
    )
    .with_action("report this to the plugin's author; the next call works")
}

struct ExportedBackend {
    plugin: Arc<Plugin>,
    backend: Arc<dyn Backend>,
}

impl abi::traits::Backend for ExportedBackend {
    fn name(&self) -> RString {
        self.plugin
            .call_or("name", || self.backend.name(), || self.plugin.name.clone())
            .into()
    }

    fn version(&self) -> RString {
        self.plugin
            .call_or(
                "version",
                || self.backend.version(),
                || self.plugin.version.clone(),
            )
            .into()
    }

    fn probe(&self) -> data::Verdict {
        guard(|| self.backend.probe())
            .unwrap_or_else(|panic| {
                let error = panicked(&self.plugin.name, "probe", &panic);
                Verdict::unavailable(
                    VerdictState::Crashed,
                    error.message,
                    "report this to the plugin's author",
                )
            })
            .into()
    }

    fn devices(&self) -> RResult<RVec<data::DeviceInfo>, data::Error> {
        let devices = self.plugin.call("devices", || self.backend.devices());
        convert::result_out(
            devices.map(|list| list.into_iter().map(Into::into).collect::<RVec<_>>()),
        )
    }

    fn inspect(&self, path: RSlice<'_, u8>) -> RResult<ROption<data::ModelInfo>, data::Error> {
        convert::inspected_out(self.plugin.call("inspect", || {
            self.backend.inspect(&convert::path_from(path.as_slice()))
        }))
    }

    fn load(
        &self,
        path: RSlice<'_, u8>,
        options: &data::LoadOptions,
    ) -> RResult<TextModelObject, data::Error> {
        let loaded = self.plugin.call("load", || {
            let model = self
                .backend
                .load(&convert::path_from(path.as_slice()), &options.try_into()?)?;
            let info = model.info();
            Ok((model, info))
        });
        convert::result_out(loaded.map(|(model, info)| {
            TextModel_TO::from_value(
                ExportedModel {
                    plugin: self.plugin.clone(),
                    model,
                    info,
                },
                TD_Opaque,
            )
        }))
    }

    fn capability(&self, name: RStr<'_>) -> ROption<AnyCapability> {
        self.plugin
            .call_or(
                "capability",
                || self.backend.capability(name.as_str()),
                || None,
            )
            .into()
    }
}

struct ExportedModel {
    plugin: Arc<Plugin>,
    model: Arc<dyn TextModel>,
    /// As it was when it was loaded; told again should the author's code panic.
    info: types::ModelInfo,
}

impl abi::traits::TextModel for ExportedModel {
    fn info(&self) -> data::ModelInfo {
        self.plugin
            .call_or("info", || self.model.info(), || self.info.clone())
            .into()
    }

    fn generate(
        &self,
        request: &data::GenerateRequest,
        sink: SinkObject<'_>,
    ) -> RResult<data::Completion, data::Error> {
        convert::result_out(self.plugin.call("generate", || {
            self.model
                .generate(&request.try_into()?, &mut LentSink { sink })
        }))
    }

    fn chat(
        &self,
        request: &data::ChatRequest,
        sink: SinkObject<'_>,
    ) -> RResult<data::Completion, data::Error> {
        convert::result_out(self.plugin.call("chat", || {
            self.model
                .chat(&request.try_into()?, &mut LentSink { sink })
        }))
    }

    fn render_chat(&self, request: &data::ChatRequest) -> RResult<RString, data::Error> {
        convert::result_out(self.plugin.call("render_chat", || {
            self.model.render_chat(&request.try_into()?)
        }))
    }

    fn classify(
        &self,
        request: &data::ClassifyRequest,
    ) -> RResult<RVec<RResult<data::Classification, data::Error>>, data::Error> {
        convert::results_out(
            self.plugin
                .call("classify", || self.model.classify(&request.try_into()?)),
        )
    }

    fn batch_generate(
        &self,
        requests: RSlice<'_, data::GenerateRequest>,
        sink: BatchSinkObject<'_>,
    ) -> RResult<RVec<RResult<data::Completion, data::Error>>, data::Error> {
        convert::results_out(self.plugin.call("batch_generate", || {
            let requests = requests
                .iter()
                .map(TryInto::try_into)
                .collect::<Result<Vec<_>>>()?;
            self.model
                .batch_generate(&requests, &mut LentBatchSink { sink })
        }))
    }

    fn tokenize(
        &self,
        text: RStr<'_>,
        add_special: bool,
        parse_special: bool,
    ) -> RResult<RVec<u32>, data::Error> {
        convert::result_out(self.plugin.call("tokenize", || {
            self.model
                .tokenize(text.as_str(), add_special, parse_special)
        }))
    }

    fn detokenize(&self, tokens: RSlice<'_, u32>, special: bool) -> RResult<RVec<u8>, data::Error> {
        convert::result_out(self.plugin.call("detokenize", || {
            self.model.detokenize(tokens.as_slice(), special)
        }))
    }

    fn metrics(&self) -> RVec<data::Metric> {
        convert::metrics_out(self.plugin.call_or(
            "metrics",
            || self.model.metrics(),
            Default::default,
        ))
    }

    fn close(&self) -> RResult<(), data::Error> {
        convert::result_out(self.plugin.call("close", || self.model.close()))
    }

    fn capability(&self, name: RStr<'_>) -> ROption<AnyCapability> {
        self.plugin
            .call_or(
                "capability",
                || self.model.capability(name.as_str()),
                || None,
            )
            .into()
    }
}

/// The host's sink, as the author sees it.
struct LentSink<'a> {
    sink: SinkObject<'a>,
}

impl Sink for LentSink<'_> {
    #[inline]
    fn on_event(&mut self, event: Event<'_>) -> types::Control {
        convert::with_event_out(event, |event| self.sink.on_event(event)).into()
    }

    #[inline]
    fn should_stop(&self) -> bool {
        self.sink.should_stop()
    }
}

/// The host's batch sink, as the author sees it.
struct LentBatchSink<'a> {
    sink: BatchSinkObject<'a>,
}

impl BatchSink for LentBatchSink<'_> {
    #[inline]
    fn on_event(&mut self, index: usize, event: Event<'_>) -> types::Control {
        convert::with_event_out(event, |event| self.sink.on_event(index, event)).into()
    }

    #[inline]
    fn should_stop(&self, index: usize) -> bool {
        self.sink.should_stop(index)
    }
}

/// Codes are one number each way.
const _: () = assert!(size_of::<Control>() == 4);
