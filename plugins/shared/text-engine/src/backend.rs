//! The contract's `Backend` over any device.

use crate::check;
use crate::convert::Converter;
use crate::engine::{Config, Engine, device_error};
use crate::grammar::Grammars;
use crate::inspect;
use crate::model::{Model, Parts};
use crate::open::{Last, Opened};
use crate::options::LoadExtras;
use crate::peaks::{Cost, DevicePeaks, Measure, Measuring};
use crate::states::States;
use crate::vocabulary::Short;
use backplane_plugin_api::AnyCapability;
use backplane_plugin_api::capability::{CHECK, CONVERT};
use backplane_plugin_api::sdk::{Backend, Result, TextModel};
use backplane_plugin_api::types::{DeviceInfo, Error, ErrorCode, LoadOptions, ModelInfo, Verdict};
use backplane_program::{CacheType, Device, Limits, Program};
use backplane_tokenizer::ChatTemplate;
use backplane_weights::quantize::requantize;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;

/// Context where the caller names none and the model allows it.
const DEFAULT_CONTEXT: usize = 4096;
/// Sequences side by side where the caller names none, and the whole contexts that the cache then has room for: many short texts run
/// side by side, of the longest as many as memory is held for.
const DEFAULT_PARALLEL: usize = 32;
const DEFAULT_CONTEXTS: usize = 4;
/// The part of a device's memory that those contexts may take at most; one context there is always.
const DEFAULT_SHARE: u64 = 4;
/// Most pages of a cache: 67 million positions, beyond any model and any memory of today.
const MAX_PAGES: usize = 1 << 22;
/// Most sequences side by side.
const MAX_PARALLEL: usize = 256;
/// Bytes of logits that a step of scores may give, and the fewest rows in one.
const WANTED_BYTES: usize = 32 << 20;
const MIN_WANTED: usize = 8;
/// Most threads a caller may ask for.
const MAX_THREADS: u32 = 1024;

type MakeDevice = dyn Fn(&LoadOptions) -> Result<Arc<dyn Device>> + Send + Sync;
type Probe = dyn Fn() -> Verdict + Send + Sync;
type Devices = dyn Fn() -> Result<Vec<DeviceInfo>> + Send + Sync;

/// Sizes of an engine that depend on the kind of device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EngineOptions {
    /// Most tokens in one step.
    pub max_step_tokens: usize,
    /// Positions in a cache page.
    pub page_size: usize,
}

impl Default for EngineOptions {
    fn default() -> Self {
        Self {
            max_step_tokens: 256,
            page_size: 16,
        }
    }
}

/// A backend of text models over one kind of device. Making one does nothing but keep what it is given.
pub struct TextBackend {
    name: String,
    version: String,
    device: Box<MakeDevice>,
    probe: Box<Probe>,
    devices: Box<Devices>,
    measure: Option<Arc<Measure>>,
    options: EngineOptions,
    defaults: LoadExtras,
    last: Last,
}

impl std::fmt::Debug for TextBackend {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TextBackend")
            .field("name", &self.name)
            .field("version", &self.version)
            .field("options", &self.options)
            .finish_non_exhaustive()
    }
}

impl TextBackend {
    /// A backend that makes its device with `device` when a model is loaded; threads that the caller names reach the
    /// device through its limits as well. It probes as available and lists no
    /// devices until told otherwise.
    pub fn new(
        name: impl Into<String>,
        version: impl Into<String>,
        device: impl Fn(&LoadOptions) -> Result<Arc<dyn Device>> + Send + Sync + 'static,
    ) -> Self {
        Self {
            name: name.into(),
            version: version.into(),
            device: Box::new(device),
            probe: Box::new(|| Verdict::available("ready")),
            devices: Box::new(|| Ok(Vec::new())),
            measure: None,
            options: EngineOptions::default(),
            defaults: LoadExtras::default(),
            last: Last::default(),
        }
    }

    /// With what it says of this machine.
    #[must_use]
    pub fn with_probe(mut self, probe: impl Fn() -> Verdict + Send + Sync + 'static) -> Self {
        self.probe = Box::new(probe);
        self
    }

    /// With the devices it lists. A load that names a device must name one of them.
    #[must_use]
    pub fn with_devices(
        mut self,
        devices: impl Fn() -> Result<Vec<DeviceInfo>> + Send + Sync + 'static,
    ) -> Self {
        self.devices = Box::new(devices);
        self
    }

    /// With how the device of a load is measured: by reading a buffer of so many bytes, and by multiplying. The closure tells
    /// passes done and of how many, and gives `None` where it was told to break. Models then offer `peaks/1`.
    #[must_use]
    pub fn with_peaks(
        mut self,
        measure: impl Fn(
            &LoadOptions,
            u64,
            &mut dyn FnMut(u64, u64) -> ControlFlow<()>,
        ) -> Result<Option<DevicePeaks>>
        + Send
        + Sync
        + 'static,
    ) -> Self {
        self.measure = Some(Arc::new(measure));
        self
    }

    /// With other sizes.
    #[must_use]
    pub fn with_options(mut self, options: EngineOptions) -> Self {
        self.options = options;
        self
    }

    /// With what loads say that don't say otherwise.
    #[must_use]
    pub fn with_defaults(mut self, defaults: LoadExtras) -> Self {
        self.defaults = defaults;
        self
    }

    /// Checks what does not depend on the model; gives the options of these engines' own.
    fn check_options(&self, options: &LoadOptions) -> Result<LoadExtras> {
        let extras = LoadExtras::read(&options.extra).map_err(|(name, message)| {
            if message.is_empty() {
                Error::unsupported_field(name, &self.name)
            } else {
                let message = format!("{name}: {message}");
                Error::invalid_field(name, message)
            }
        })?;
        if let Some(threads) = options.threads
            && !(1..=MAX_THREADS).contains(&threads)
        {
            return Err(Error::invalid_field(
                "threads",
                format!("threads: {threads}; expected 1 to {MAX_THREADS}"),
            ));
        }
        if let Some(parallel) = options.parallel
            && !(1..=MAX_PARALLEL as u32).contains(&parallel)
        {
            return Err(Error::invalid_field(
                "parallel",
                format!("parallel: {parallel}; expected 1 to {MAX_PARALLEL}"),
            ));
        }
        if let Some(device) = &options.device {
            let known: Vec<String> = (self.devices)()?
                .into_iter()
                .map(|device| device.id)
                .collect();
            if !known.contains(device) {
                let message = format!(
                    "device: {} has no device {device:?}; it has {}",
                    self.name,
                    known.join(", ")
                );
                return Err(Error::invalid_field("device", message));
            }
        }
        Ok(extras.or(self.defaults))
    }

    /// Bytes of the memory of a load's device, as far as that is known.
    fn memory(&self, options: &LoadOptions) -> u64 {
        let devices = (self.devices)().unwrap_or_default();
        let wanted = |device: &&DeviceInfo| match &options.device {
            Some(id) => device.id == *id,
            None => true,
        };
        let memory = devices.iter().find(wanted).and_then(|it| it.memory_total);
        memory.unwrap_or(u64::MAX)
    }

    fn config(
        &self,
        options: &LoadOptions,
        extras: LoadExtras,
        program: &Program,
    ) -> Result<Config> {
        let longest = program.context_length;
        let context = match options.context {
            None => longest.min(DEFAULT_CONTEXT),
            Some(context) if (1..=longest).contains(&(context as usize)) => context as usize,
            Some(context) => {
                let message =
                    format!("context: {context} tokens; the model was made for 1 to {longest}");
                return Err(Error::invalid_field("context", message)
                    .with_action(format!("ask for a context of at most {longest}")));
            }
        };
        let parallel = options
            .parallel
            .map_or(DEFAULT_PARALLEL, |parallel| parallel as usize);
        let EngineOptions {
            max_step_tokens,
            page_size,
        } = self.options;
        let whole = options.parallel.map_or(DEFAULT_CONTEXTS, |_| parallel);
        let one = context.div_ceil(page_size);
        let contexts = one.saturating_mul(whole);
        let pages = match extras.cache_tokens {
            None if options.parallel.is_none() => {
                let page = page_bytes(program, extras.cache_type.unwrap_or_default(), page_size);
                let share = self.memory(options) / DEFAULT_SHARE;
                let room = share.checked_div(page).unwrap_or(u64::MAX);
                contexts
                    .min(usize::try_from(room).unwrap_or(usize::MAX))
                    .max(one)
            }
            None => contexts,
            // More than what can ever be in use is of use for prompts that begin alike.
            Some(tokens) => tokens.div_ceil(page_size),
        };
        if pages > MAX_PAGES {
            let (field, message) = match extras.cache_tokens {
                None => (
                    "context",
                    format!("context: {whole} contexts of {context} tokens are"),
                ),
                Some(tokens) => ("cache_tokens", format!("cache_tokens: {tokens} are")),
            };
            let message = format!("{message} more than the cache can number");
            return Err(Error::invalid_field(field, message));
        }
        let max_step_tokens = max_step_tokens.max(parallel);
        Ok(Config {
            context,
            parallel,
            page_size,
            pages,
            max_step_tokens,
            // Untouched memory is not committed: only scores write more rows than there are sequences.
            max_wanted: (WANTED_BYTES / size_of::<f32>() / program.vocab.max(1))
                .clamp(MIN_WANTED, max_step_tokens)
                .max(parallel),
            vocabulary: program.vocab,
            speculation: extras.speculation.unwrap_or_default(),
        })
    }
}

/// Bytes of a cache page, over all layers.
fn page_bytes(program: &Program, cache_type: CacheType, page_size: usize) -> u64 {
    let widths = program.caches.iter().map(|cache| cache.width());
    let elements = widths.fold(0, |sum: usize, width| {
        sum.saturating_add(width.unwrap_or(usize::MAX))
    });
    let blocks = elements.saturating_mul(page_size) / cache_type.block();
    blocks.saturating_mul(cache_type.block_bytes()) as u64
}

impl Backend for TextBackend {
    fn name(&self) -> String {
        self.name.clone()
    }

    fn version(&self) -> String {
        self.version.clone()
    }

    fn probe(&self) -> Verdict {
        (self.probe)()
    }

    fn devices(&self) -> Result<Vec<DeviceInfo>> {
        (self.devices)()
    }

    fn inspect(&self, path: &Path) -> Result<Option<ModelInfo>> {
        inspect::inspect(path, &self.last)
    }

    fn load(&self, path: &Path, options: &LoadOptions) -> Result<Arc<dyn TextModel>> {
        let extras = self.check_options(options)?;
        let opened = self.last.take_or_open(path)?;
        let short = Short::of(&opened);
        let Opened { weights, tokenizer } = opened;
        let tokenizer = tokenizer.map_err(|error| at_path(path, error))?;
        weights.prefetch();
        let mut info = inspect::describe(&weights)?;
        if let Some(short) = short {
            if short.is_suspicious() {
                tracing::warn!("{}: {short}", path.display());
            }
            info.warnings.push(short.to_string());
        }
        let weights = match extras.quantize.flatten() {
            None => weights,
            Some(ty) => {
                let requantized =
                    requantize(&weights, ty, &mut |_, _, _| ControlFlow::Continue(()))
                        .map_err(|error| at_path(path, error))?;
                let memory = requantized.weights.owned_bytes() >> 20;
                info.details.push((
                    "quantized".into(),
                    format!("to {ty}, {memory} MiB in memory"),
                ));
                info.warnings.extend(requantized.notes);
                requantized.weights
            }
        };
        let context = options.context.map_or(DEFAULT_CONTEXT, |it| it as usize);
        let mut program = backplane_models::lower_for(&weights, Some(context)).map_err(unusable)?;
        let config = self.config(options, extras, &program)?;
        let states = States::of(&mut program);
        let limits = Limits {
            max_step_tokens: config.max_step_tokens,
            max_wanted: config.max_wanted,
            page_size: config.page_size,
            pages: config.pages,
            threads: options.threads.map_or(0, |threads| threads as usize),
            cache_type: extras.cache_type.unwrap_or_default(),
        };
        let measuring = self.measure.clone().map(|measure| Measuring {
            cost: Cost::of(&program, &weights),
            measure,
            options: options.clone(),
        });
        let device = (self.device)(options)?;
        let executable = device
            .compile(&program, &weights, limits)
            .map_err(|error| {
                let error = device_error(&error);
                Error {
                    message: format!("{}: {}", path.display(), error.message),
                    ..error
                }
            })?;
        tracing::info!(
            "{}: {} on {}",
            path.display(),
            executable.describe(),
            device.name()
        );
        info.loaded_context = config.context as u64;
        info.warnings.extend_from_slice(tokenizer.warnings());
        info.details.push(("device".into(), device.name()));
        info.details.push(("runs".into(), executable.describe()));
        info.details
            .push(("cache".into(), limits.cache_type.to_string()));
        info.details
            .push(("speculation".into(), config.speculation.name().into()));
        let template = ChatTemplate::from_metadata(weights.metadata(), &tokenizer)
            .map_err(|error| at_path(path, error));
        let engine = Engine::start(executable, tokenizer.clone(), config, path.to_owned())?;
        let grammars = Grammars::new(tokenizer.clone());
        Ok(Arc::new(Model::new(Parts {
            backend: self.name.clone(),
            info,
            tokenizer,
            template,
            engine,
            config,
            states,
            grammars,
            measuring,
        })))
    }

    fn capability(&self, name: &str) -> Option<AnyCapability> {
        match name {
            CHECK => Some(AnyCapability::check(Arc::new(check::Checker))),
            CONVERT => Some(AnyCapability::convert(Arc::new(Converter {
                backend: self.name.clone(),
            }))),
            _ => None,
        }
    }
}

/// The model file can't be used; the message names it.
pub(crate) fn unusable(error: impl std::fmt::Display) -> Error {
    Error::new(ErrorCode::ModelUnusable, error.to_string())
}

/// As [`unusable`], for errors that may not name the file.
pub(crate) fn at_path(path: &Path, error: impl std::fmt::Display) -> Error {
    unusable(located(path, error))
}

/// A line that names the file, where it does not yet.
pub(crate) fn located(path: &Path, error: impl std::fmt::Display) -> String {
    let (path, message) = (path.display().to_string(), error.to_string());
    if message.contains(&path) {
        message
    } else {
        format!("{path}: {message}")
    }
}
