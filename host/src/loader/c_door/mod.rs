//! Modules of the C door, adapted into the contract's traits.
//!
//! Invariants:
//! - The table lives as long as the process: modules are never unloaded.
//! - Every backend and model is freed once, by the function that its module gave for it; models keep nothing of their backend.
//! - What a module tells is copied before its callback returns, and checked: text that is not UTF-8 is an error of the call.
//! - No panic of a sink or of this code reaches the module.

mod lend;
mod read;

use self::lend::{Lent, LentChat, LentOptions, LentPrompt, LentSink};
use backplane_plugin_api::abi::codes;
use backplane_plugin_api::c::{self, Api, Text};
use backplane_plugin_api::{
    Backend, BatchSink, ChatRequest, Classification, ClassifyRequest, Completion, Context,
    DeviceInfo, Error, ErrorCode, FinishReason, GenerateOptions, GenerateRequest, LoadOptions,
    Metrics, ModelInfo, Prompt, Result, Sink, TextModel, Verdict, VerdictState,
};
use std::ffi::c_void;
use std::path::Path;
use std::ptr::NonNull;
use std::sync::Arc;

/// Calls a function of the table, which `Door::enter` found to be there.
macro_rules! call {
    ($door:expr, $function:ident $(, $argument:expr)*) => {
        match $door.api.$function {
            Some(function) => function($($argument),*),
            None => unreachable!("checked when the module was opened"),
        }
    };
}
/// A module's table, checked: it is of this major version and has every function of 1.0.
#[derive(Clone, Copy)]
pub(super) struct Door {
    api: &'static Api,
}

/// What a table says of itself.
#[derive(Debug)]
pub(super) struct Stated {
    pub(super) name: String,
    pub(super) version: String,
    pub(super) contract_version: String,
}

impl Door {
    /// Calls the exported function and checks what it gives.
    ///
    /// # Errors
    /// One line: the plugin can't work with this host, or its table is not what the header says.
    ///
    /// # Safety
    /// `plugin` is the exported function of a module that is never unloaded.
    pub(super) unsafe fn enter(plugin: c::Plugin) -> std::result::Result<(Self, Stated), String> {
        // SAFETY: promised by the caller; the function may be called at any time.
        let table = unsafe { plugin(c::MAJOR, c::MINOR) };
        if table.is_null() {
            return Err(format!(
                "does not work with version {}.{} of the C door",
                c::MAJOR,
                c::MINOR
            ));
        }
        // SAFETY: the header says that a table is given, which begins with its size and lives as long as the module.
        let api = unsafe { c::prefix(table) };
        if api.major != c::MAJOR {
            return Err(format!(
                "built against version {}.{} of the C door; this host has {}.{}",
                api.major,
                api.minor,
                c::MAJOR,
                c::MINOR
            ));
        }
        if let Some(function) = api.missing() {
            let size = api.struct_size;
            return Err(format!(
                "its table of {size} bytes has no function `{function}`"
            ));
        }
        let text = |text: Text, what: &str| {
            // SAFETY: lent by the table, which lives as long as the module.
            unsafe { read::text(text) }.map_err(|_| format!("its {what} is not UTF-8"))
        };
        let stated = Stated {
            name: text(api.name, "name")?,
            version: text(api.version, "version")?,
            contract_version: format!("{}.{} (C)", api.major, api.minor),
        };
        let api = Box::leak(Box::new(api));
        Ok((Self { api }, stated))
    }

    /// Makes a backend.
    ///
    /// # Errors
    /// As the module says.
    pub(super) fn backend(self, context: &Context, stated: &Stated) -> Result<Arc<dyn Backend>> {
        let options = serde_json::to_string(&context.options).unwrap_or_default();
        let folder = lend::path(&context.module_dir);
        let lent = c::Context {
            struct_size: size_of::<c::Context>(),
            options_json: Text::of(options.as_bytes()),
            module_dir: Text::of(&folder),
        };
        let mut backend = std::ptr::null_mut();
        // SAFETY: the context is lent for the call; the place for the backend is writable.
        self.done(unsafe { call!(self, backend_new, &raw const lent, &raw mut backend) })?;
        let backend = NonNull::new(backend)
            .ok_or_else(|| Error::new(ErrorCode::Internal, "it made no backend"))?;
        Ok(Arc::new(CBackend {
            door: self,
            backend,
            name: stated.name.clone(),
            version: stated.version.clone(),
        }))
    }

    /// The error that a call gave, read and freed.
    fn done(self, error: *mut c::Error) -> Result<()> {
        if error.is_null() {
            return Ok(());
        }
        let shared = error.cast_const();
        // SAFETY: the error is the module's own and alive until it is freed below; its texts live as long.
        let (code, message, field, action) = unsafe {
            let text = |text| String::from_utf8_lossy(Text::bytes(text)).into_owned();
            (
                call!(self, error_code, shared),
                text(call!(self, error_message, shared)),
                text(call!(self, error_field, shared)),
                text(call!(self, error_action, shared)),
            )
        };
        // SAFETY: it is freed once, here, and not used after.
        unsafe { call!(self, error_free, error) };
        let line = |text: String| text.split_whitespace().collect::<Vec<_>>().join(" ");
        Err(Error {
            code: codes::ErrorCode(code).into(),
            message: line(message),
            field: line(field),
            action: line(action),
        })
    }

    /// Runs a call that tells through a callback, and gives what was told.
    ///
    /// # Errors
    /// The call's own; or what it told can't be read.
    fn told<T: Default>(self, run: impl FnOnce(*mut c_void) -> *mut c::Error) -> Result<T> {
        let mut told = read::Told::<T>::default();
        let result = self.done(run((&raw mut told).cast()));
        result.and_then(|()| told.into_result())
    }
}

struct CBackend {
    door: Door,
    backend: NonNull<c::Backend>,
    name: String,
    version: String,
}

// SAFETY: the header asks of modules that a backend may be used from any thread, many at once.
unsafe impl Send for CBackend {}
// SAFETY: as above.
unsafe impl Sync for CBackend {}

impl Drop for CBackend {
    fn drop(&mut self) {
        // SAFETY: freed once, by the module that made it.
        unsafe { call!(self.door, backend_free, self.backend.as_ptr()) };
    }
}

impl Backend for CBackend {
    fn name(&self) -> String {
        self.name.clone()
    }

    fn version(&self) -> String {
        self.version.clone()
    }

    fn probe(&self) -> Verdict {
        let told = self.door.told::<Option<Verdict>>(|to| {
            // SAFETY: the backend is alive; `to` is what the callback expects, and lives for the call.
            unsafe {
                call!(
                    self.door,
                    backend_probe,
                    self.backend.as_ptr(),
                    read::tell_verdict,
                    to
                )
            };
            std::ptr::null_mut()
        });
        let broken = |message: String| {
            Verdict::unavailable(
                VerdictState::Crashed,
                message,
                "report this to the plugin's author",
            )
        };
        match told {
            Ok(Some(verdict)) => verdict,
            Ok(None) => broken("its probe told nothing".into()),
            Err(error) => broken(error.message),
        }
    }

    fn devices(&self) -> Result<Vec<DeviceInfo>> {
        // SAFETY: as in `probe`.
        self.door.told(|to| unsafe {
            call!(
                self.door,
                backend_devices,
                self.backend.as_ptr(),
                read::tell_device,
                to
            )
        })
    }

    fn inspect(&self, path: &Path) -> Result<Option<ModelInfo>> {
        let bytes = lend::path(path);
        let told: Option<ModelInfo> = self.door.told(|to| {
            // SAFETY: as in `probe`; the path is lent for the call.
            unsafe {
                call!(
                    self.door,
                    backend_inspect,
                    self.backend.as_ptr(),
                    Text::of(&bytes),
                    read::tell_model_info,
                    to
                )
            }
        })?;
        Ok(told.map(|info| ModelInfo {
            path: path.to_owned(),
            ..info
        }))
    }

    fn load(&self, path: &Path, options: &LoadOptions) -> Result<Arc<dyn TextModel>> {
        let bytes = lend::path(path);
        let extra = lend::json(&options.extra);
        let device = options
            .device
            .as_ref()
            .map(|device| Text::of(device.as_bytes()));
        let lent = c::LoadOptions {
            struct_size: size_of::<c::LoadOptions>(),
            context: lend::optional(&options.context),
            threads: lend::optional(&options.threads),
            parallel: lend::optional(&options.parallel),
            device: lend::optional(&device),
            extra_json: Text::of(extra.as_bytes()),
        };
        let mut model = std::ptr::null_mut();
        // SAFETY: the backend is alive; path and options are lent for the call; the place for the model is writable.
        self.door.done(unsafe {
            call!(
                self.door,
                backend_load,
                self.backend.as_ptr(),
                Text::of(&bytes),
                &raw const lent,
                &raw mut model
            )
        })?;
        let model = NonNull::new(model)
            .ok_or_else(|| Error::new(ErrorCode::Internal, "it made no model"))?;
        Ok(Arc::new(CModel {
            door: self.door,
            model,
            path: path.to_owned(),
        }))
    }
}

struct CModel {
    door: Door,
    model: NonNull<c::Model>,
    path: std::path::PathBuf,
}

// SAFETY: the header asks of modules that a model may be used from any thread, many at once.
unsafe impl Send for CModel {}
// SAFETY: as above.
unsafe impl Sync for CModel {}

impl Drop for CModel {
    fn drop(&mut self) {
        // SAFETY: freed once, by the module that made it.
        unsafe { call!(self.door, model_free, self.model.as_ptr()) };
    }
}

impl CModel {
    /// Runs a generation with its sink lent to the module.
    fn generation(
        &self,
        options: &GenerateOptions,
        sink: &mut dyn Sink,
        run: impl FnOnce(*const c::Options, *const c::Sink, *mut c::Completion) -> *mut c::Error,
    ) -> Result<Completion> {
        let lent_options = LentOptions::new(options);
        let lent_sink = LentSink::new(sink);
        let mut done = c::Completion {
            struct_size: size_of::<c::Completion>(),
            finish_reason: 0,
            stop_index: 0,
            prompt_tokens: 0,
            cached_tokens: 0,
            completion_tokens: 0,
            seed: 0,
            queue_s: 0.0,
            prefill_s: 0.0,
            decode_s: 0.0,
        };
        let result = self.door.done(run(
            lent_options.as_ptr(),
            lent_sink.as_ptr(),
            &raw mut done,
        ));
        lent_sink.finish()?;
        result?;
        let finish_reason = FinishReason::from(codes::FinishReason(done.finish_reason));
        let stop_string = match finish_reason {
            FinishReason::StopString => {
                Some(options.stop.get(done.stop_index).cloned().ok_or_else(|| {
                    let message = format!(
                        "it names stop string {} of {}",
                        done.stop_index,
                        options.stop.len()
                    );
                    Error::new(ErrorCode::Internal, message)
                })?)
            }
            _ => None,
        };
        Ok(Completion {
            finish_reason,
            stop_string,
            prompt_tokens: done.prompt_tokens,
            cached_tokens: done.cached_tokens,
            completion_tokens: done.completion_tokens,
            seed: done.seed,
            queue_s: done.queue_s,
            prefill_s: done.prefill_s,
            decode_s: done.decode_s,
        })
    }

    fn classify_one(
        &self,
        prompt: &Prompt,
        request: &ClassifyRequest,
        extra: &str,
    ) -> Result<Classification> {
        let prompt = LentPrompt::new(prompt);
        let (top, logits, extra) = (request.top, request.logits, Text::of(extra.as_bytes()));
        let told: Option<Classification> = self.door.told(|to| {
            // SAFETY: the model is alive; all else is lent for the call, and `to` is what the callback expects.
            unsafe {
                call!(
                    self.door,
                    model_classify,
                    self.model.as_ptr(),
                    prompt.as_ptr(),
                    top,
                    logits,
                    extra,
                    read::tell_classification,
                    to
                )
            }
        })?;
        told.ok_or_else(|| Error::new(ErrorCode::Internal, "its classification told nothing"))
    }
}

impl TextModel for CModel {
    fn info(&self) -> ModelInfo {
        let told: Result<Option<ModelInfo>> = self.door.told(|to| {
            // SAFETY: the model is alive; `to` is what the callback expects, and lives for the call.
            unsafe {
                call!(
                    self.door,
                    model_info,
                    self.model.as_ptr(),
                    read::tell_model_info,
                    to
                )
            };
            std::ptr::null_mut()
        });
        let info = told.unwrap_or_else(|error| {
            tracing::error!(
                "{}: its information can't be read: {error}",
                self.path.display()
            );
            None
        });
        ModelInfo {
            path: self.path.clone(),
            ..info.unwrap_or_else(read::no_info)
        }
    }

    fn generate(&self, request: &GenerateRequest, sink: &mut dyn Sink) -> Result<Completion> {
        let prompt = LentPrompt::new(&request.prompt);
        self.generation(&request.options, sink, |options, sink, done| {
            // SAFETY: the model is alive; all else is lent for the call.
            unsafe {
                call!(
                    self.door,
                    model_generate,
                    self.model.as_ptr(),
                    prompt.as_ptr(),
                    options,
                    sink,
                    done
                )
            }
        })
    }

    fn chat(&self, request: &ChatRequest, sink: &mut dyn Sink) -> Result<Completion> {
        let chat = LentChat::new(request);
        self.generation(&request.options, sink, |options, sink, done| {
            // SAFETY: as in `generate`.
            unsafe {
                call!(
                    self.door,
                    model_chat,
                    self.model.as_ptr(),
                    chat.as_ptr(),
                    options,
                    sink,
                    done
                )
            }
        })
    }

    fn render_chat(&self, request: &ChatRequest) -> Result<String> {
        let chat = LentChat::new(request);
        let bytes: Vec<u8> = self.door.told(|to| {
            // SAFETY: the model is alive; the chat is lent for the call, and `to` is what the callback expects.
            unsafe {
                call!(
                    self.door,
                    model_render_chat,
                    self.model.as_ptr(),
                    chat.as_ptr(),
                    read::tell_text,
                    to
                )
            }
        })?;
        String::from_utf8(bytes).map_err(|_| read::not_utf8("its rendered chat"))
    }

    fn classify(&self, request: &ClassifyRequest) -> Result<Vec<Result<Classification>>> {
        let extra = lend::json(&request.extra);
        let one = |prompt| self.classify_one(prompt, request, &extra);
        let answers: Vec<Result<Classification>> = request.prompts.iter().map(one).collect();
        // A refused field is one of the request, not of a prompt.
        let refused = |answer: &Result<Classification>| {
            answer
                .as_ref()
                .is_err_and(|error| error.code == ErrorCode::UnsupportedField)
        };
        match answers.into_iter().partition::<Vec<_>, _>(refused) {
            (mut refusals, _) if !refusals.is_empty() => {
                refusals.swap_remove(0).map(|_| Vec::new())
            }
            (_, answers) => Ok(answers),
        }
    }

    fn batch_generate(
        &self,
        requests: &[GenerateRequest],
        sink: &mut dyn BatchSink,
    ) -> Result<Vec<Result<Completion>>> {
        backplane_plugin_api::sdk::side_by_side(self, requests, sink)
    }

    fn tokenize(&self, text: &str, add_special: bool, parse_special: bool) -> Result<Vec<u32>> {
        let text = Text::of(text.as_bytes());
        self.door.told(|to| {
            // SAFETY: the model is alive; the text is lent for the call, and `to` is what the callback expects.
            unsafe {
                call!(
                    self.door,
                    model_tokenize,
                    self.model.as_ptr(),
                    text,
                    add_special,
                    parse_special,
                    read::tell_tokens,
                    to
                )
            }
        })
    }

    fn detokenize(&self, tokens: &[u32], special: bool) -> Result<Vec<u8>> {
        self.door.told(|to| {
            // SAFETY: the model is alive; the tokens are lent for the call, and `to` is what the callback expects.
            unsafe {
                call!(
                    self.door,
                    model_detokenize,
                    self.model.as_ptr(),
                    tokens.as_ptr(),
                    tokens.len(),
                    special,
                    read::tell_text,
                    to
                )
            }
        })
    }

    fn metrics(&self) -> Metrics {
        let told = self.door.told(|to| {
            // SAFETY: the model is alive; `to` is what the callback expects.
            unsafe {
                call!(
                    self.door,
                    model_metrics,
                    self.model.as_ptr(),
                    read::tell_metric,
                    to
                )
            };
            std::ptr::null_mut()
        });
        told.unwrap_or_else(|error| {
            tracing::error!(
                "{}: its metrics can't be read: {error}",
                self.path.display()
            );
            Metrics::new()
        })
    }

    fn close(&self) -> Result<()> {
        // SAFETY: the model is alive, closed or not.
        self.door
            .done(unsafe { call!(self.door, model_close, self.model.as_ptr()) })
    }
}
