//! The engine of the test plugins: a model that says its prompt again, and misbehaves on demand.
//!
//! Its models are files named `*.echo`; the content does not matter. Tokens are bytes (0 to 255), [`BEGIN`] and [`END`].
//!
//! Options of the plugin (all optional; others are refused):
//! `probe` a verdict's word to answer with; `devices` an array of [`DeviceInfo`]; `panic_in`, `crash_in` arrays of names
//! of calls (`new`, `probe`, `devices`, `inspect`, `load`, `info`, `generate`, `decode`, `chat`, `classify`, `batch`,
//! `tokenize`, `metrics`, `close`, `embed`, `score`, `attention`, `check`, `convert`) in which to panic or to end the
//! process; `token_delay_ms` time a token takes (a batch where many are read at once, a line of a file); `offers` an array of
//! the names of the contract's capabilities that it offers, all when left out; `last_message` whether a chat is its last
//! message alone, whoever it is of, with tools that are passed over, so that a test can have a reply that calls them;
//! `cache_token_bytes` what it says that its cache takes for a token, of 4096 or of a load's `cache_tokens`; `grows` bytes that it says to take
//! more for each token that it has said.

mod capabilities;
mod model;
mod text;

pub use model::EchoModel;

use abi_stable::StableAbi;
use backplane_plugin_api::capability::{CHECK, CONVERT};
use backplane_plugin_api::{
    AnyCapability, Backend, Context, DeviceInfo, Error, ErrorCode, LoadOptions, ModelInfo, Result,
    TextModel, Verdict, VerdictState,
};
use serde_json::Value;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// Beginning of a sequence, written `<begin>`.
pub const BEGIN: u32 = 256;
/// End of a sequence, written `<end>`.
pub const END: u32 = 257;
/// Number of tokens.
pub const VOCABULARY: u32 = 258;
/// Longest context.
pub const CONTEXT: u64 = 1 << 20;
/// Name of the capability that backend and model offer.
pub const CAPABILITY: &str = "echo/1";

/// The capability [`CAPABILITY`].
#[repr(C)]
#[derive(StableAbi)]
pub struct EchoCapability {
    /// Gives twice its argument.
    pub twice: extern "C" fn(u64) -> u64,
}

extern "C" fn twice(value: u64) -> u64 {
    value.wrapping_mul(2)
}

fn capability(name: &str) -> Option<AnyCapability> {
    (name == CAPABILITY).then(|| AnyCapability::new(EchoCapability { twice }))
}

/// How to behave.
#[derive(Clone, Debug, Default)]
pub(crate) struct Behaviour {
    pub(crate) name: String,
    probe: Option<VerdictState>,
    devices: Option<Vec<DeviceInfo>>,
    panic_in: Vec<String>,
    crash_in: Vec<String>,
    pub(crate) token_delay: Duration,
    offers: Option<Vec<String>>,
    pub(crate) last_message: bool,
    pub(crate) cache_token_bytes: Option<u64>,
    pub(crate) grows: Option<u64>,
}

impl Behaviour {
    /// Misbehaves if it was told to in this call.
    pub(crate) fn enter(&self, call: &str) {
        if self.crash_in.iter().any(|name| name == call) {
            std::process::abort();
        }
        if self.panic_in.iter().any(|name| name == call) {
            panic!("told to panic in {call}");
        }
    }

    /// Whether it offers a capability of the contract.
    pub(crate) fn offers(&self, name: &str) -> bool {
        let offers = self.offers.as_ref();
        offers.is_none_or(|offers| offers.iter().any(|one| one == name))
    }
}

/// The backend.
pub struct EchoBackend {
    version: String,
    behaviour: Arc<Behaviour>,
    /// What is wrong with its options.
    misconfigured: Option<String>,
}

impl EchoBackend {
    /// A backend of a name; wrong options are told by its probe.
    ///
    /// # Errors
    /// None today.
    pub fn new(name: &str, version: &str, context: Context) -> Result<Self> {
        let (behaviour, misconfigured) = match behaviour(name, &context) {
            Ok(behaviour) => (behaviour, None),
            Err(problem) => (
                Behaviour {
                    name: name.to_owned(),
                    ..Behaviour::default()
                },
                Some(problem),
            ),
        };
        behaviour.enter("new");
        tracing::info!(plugin = name, "echo backend made");
        tracing::debug!(plugin = name, "a detail of echo");
        Ok(Self {
            version: version.to_owned(),
            behaviour: Arc::new(behaviour),
            misconfigured,
        })
    }
}

/// What a model's file says behind `template: `: which family it is taken for.
fn template(path: &Path) -> String {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    let given = text.strip_prefix("template: ");
    given.unwrap_or("{role}: {content}\\n").to_owned()
}

fn behaviour(name: &str, context: &Context) -> std::result::Result<Behaviour, String> {
    let names = |key: &str, value: &Value| -> std::result::Result<Vec<String>, String> {
        serde_json::from_value(value.clone())
            .map_err(|_| format!("options.{key}: expected an array of names, got {value}"))
    };
    let number = |key: &str, value: &Value| {
        let number = value.as_u64();
        number.ok_or_else(|| format!("options.{key}: expected a number, got {value}"))
    };
    let mut behaviour = Behaviour {
        name: name.to_owned(),
        ..Behaviour::default()
    };
    for (key, value) in &context.options {
        match key.as_str() {
            "probe" => {
                let state = serde_json::from_value(value.clone());
                behaviour.probe = Some(
                    state.map_err(|_| format!("options.probe: expected a verdict, got {value}"))?,
                );
            }
            "devices" => {
                let devices = serde_json::from_value(value.clone());
                behaviour.devices =
                    Some(devices.map_err(|error| format!("options.devices: {error}"))?);
            }
            "panic_in" => behaviour.panic_in = names(key, value)?,
            "crash_in" => behaviour.crash_in = names(key, value)?,
            "offers" => behaviour.offers = Some(names(key, value)?),
            "last_message" => {
                behaviour.last_message = value
                    .as_bool()
                    .ok_or_else(|| format!("options.{key}: expected true or false, got {value}"))?;
            }
            "token_delay_ms" => behaviour.token_delay = Duration::from_millis(number(key, value)?),
            "cache_token_bytes" => behaviour.cache_token_bytes = Some(number(key, value)?),
            "grows" => behaviour.grows = Some(number(key, value)?),
            other => return Err(format!("options.{other}: no such option of {name}")),
        }
    }
    Ok(behaviour)
}

impl Backend for EchoBackend {
    fn name(&self) -> String {
        self.behaviour.name.clone()
    }

    fn version(&self) -> String {
        self.version.clone()
    }

    fn probe(&self) -> Verdict {
        self.behaviour.enter("probe");
        if let Some(problem) = &self.misconfigured {
            return Verdict::unavailable(
                VerdictState::Misconfigured,
                problem,
                "correct the plugin's options",
            );
        }
        match self.behaviour.probe {
            None | Some(VerdictState::Available) => Verdict::available("echo is always there"),
            Some(state) => Verdict::unavailable(state, "told to say so", "change options.probe"),
        }
    }

    fn devices(&self) -> Result<Vec<DeviceInfo>> {
        self.behaviour.enter("devices");
        Ok(self.behaviour.devices.clone().unwrap_or_else(|| {
            vec![DeviceInfo {
                id: "echo".into(),
                name: "Echo chamber".into(),
                kind: "cpu".into(),
                memory_total: Some(1 << 30),
                memory_free: None,
                details: [("walls".to_owned(), "4".to_owned())].into(),
            }]
        }))
    }

    fn inspect(&self, path: &Path) -> Result<Option<ModelInfo>> {
        self.behaviour.enter("inspect");
        if path.extension().is_none_or(|extension| extension != "echo") {
            return Ok(None);
        }
        let bytes = std::fs::metadata(path)
            .map_err(|error| {
                Error::new(
                    ErrorCode::ModelUnusable,
                    format!("{}: {error}", path.display()),
                )
            })?
            .len();
        Ok(Some(ModelInfo {
            name: path
                .file_stem()
                .unwrap_or_default()
                .to_string_lossy()
                .into_owned(),
            path: path.to_owned(),
            format: "echo".into(),
            architecture: "echo".into(),
            quantization: "none".into(),
            parameters: 0,
            file_bytes: bytes,
            context_length: CONTEXT,
            loaded_context: 0,
            vocabulary: u64::from(VOCABULARY),
            chat_template: Some(template(path)),
            unsupported: None,
            details: vec![("layers".into(), "0".into())],
            metadata: vec![("general.architecture".into(), "echo".into())],
            tensors: Vec::new(),
            warnings: Vec::new(),
        }))
    }

    fn load(&self, path: &Path, options: &LoadOptions) -> Result<Arc<dyn TextModel>> {
        self.behaviour.enter("load");
        if let Some(problem) = &self.misconfigured {
            return Err(Error::invalid_field("options", problem));
        }
        let has_cache = self.behaviour.cache_token_bytes.is_some();
        let known = |name: &str| name == "cache_tokens" && has_cache;
        if let Some(name) = options.extra.keys().find(|name| !known(name)) {
            return Err(Error::unsupported_field(name, &self.behaviour.name));
        }
        let cache_tokens = options.extra.get("cache_tokens");
        let cache_tokens = cache_tokens.and_then(Value::as_u64).unwrap_or(4096);
        if let Some(device) = options.device.as_ref().filter(|device| {
            !self
                .devices()
                .is_ok_and(|all| all.iter().any(|one| &&one.id == device))
        }) {
            return Err(Error::invalid_field(
                "device",
                format!("no device `{device}`"),
            ));
        }
        let info = self.inspect(path)?.ok_or_else(|| {
            Error::new(
                ErrorCode::ModelUnusable,
                format!("{}: expected a file named *.echo", path.display()),
            )
        })?;
        let context = options
            .context
            .map_or(4096.min(info.context_length), u64::from);
        if context == 0 || context > info.context_length {
            return Err(Error::invalid_field(
                "context",
                format!("context {context}: expected 1 to {}", info.context_length),
            ));
        }
        Ok(Arc::new(EchoModel::new(
            self.behaviour.clone(),
            ModelInfo {
                loaded_context: context,
                ..info
            },
            cache_tokens,
        )))
    }

    fn capability(&self, name: &str) -> Option<AnyCapability> {
        let files = || Arc::new(capabilities::Files(self.behaviour.clone()));
        match name {
            CHECK if self.behaviour.offers(name) => Some(AnyCapability::check(files())),
            CONVERT if self.behaviour.offers(name) => Some(AnyCapability::convert(files())),
            _ => capability(name),
        }
    }
}
