//! `[serve]`: every setting of the server, once. Its key, variable and flag, what it takes, its default and what the
//! documentation says come from the table here.
//!
//! ```toml
//! [serve]
//! port = 9000                      # or BACKPLANE_SERVE_PORT, or --port
//! keep_alive = "30m"
//!
//! [serve.model.small]              # `small` is what clients call it
//! model = "SmolLM2-135M-Instruct.Q4_1"   # a name in the model folder, or a path
//! aliases = ["gpt-4o-mini"]
//! pinned = true
//! ```
//!
//! A flag comes before a variable, a variable before the manifest, the manifest before the default. To add a setting: a field of
//! [`ServeOptions`] with its default, and a row.

mod value;

pub use value::{KeepAlive, Kind, MemoryBudget, MetricsFor, Value};

use super::{Bytes, Limit};
use crate::registry::ModelOptions;
use backplane_plugin_api::types::LoadOptions;
use serde::Serialize;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;
use value::Held;

/// What is served, where, and within which limits.
#[derive(Clone, Debug, PartialEq)]
pub struct ServeOptions {
    /// Models to load at the start, by path or name; each is called by its name.
    pub models: Vec<String>,
    /// Whether models of the model folder are loaded when they are asked for; `None`: where no model is named.
    pub on_demand: Option<bool>,
    /// Whether models that are named at the start stay loaded.
    pub pin: bool,
    /// How long other models stay when nobody asks them.
    pub keep_alive: KeepAlive,
    /// How much memory models may take together.
    pub memory: MemoryBudget,
    /// Address or name to listen on.
    pub host: String,
    /// Port; 0 takes one that is free.
    pub port: u16,
    /// Most replies at once.
    pub replies: u32,
    /// Most replies that wait for those to end; beyond that a request is refused, with a time to try again.
    pub queue: u32,
    /// How long one waits at most.
    pub queue_time: Limit,
    /// How long a reply takes at most, from its request on.
    pub reply_time: Limit,
    /// Most bytes of a request.
    pub body_limit: Bytes,
    /// Time that replies have to end once the server is to stop.
    pub grace: Duration,
    /// How often manifest and modules are looked at for changes.
    pub watch: Limit,
    /// A file of keys, without one of which nothing is answered; `None` asks for none.
    pub api_keys: Option<PathBuf>,
    /// Certificate of TLS, with those that vouch for it; `None` speaks plain HTTP.
    pub tls_certificate: Option<PathBuf>,
    /// Its private key.
    pub tls_key: Option<PathBuf>,
    /// Authorities whose clients alone are taken; `None` asks clients for no certificate.
    pub tls_client_authority: Option<PathBuf>,
    /// Origins whose web pages may ask, `*` any; the server's own always may.
    pub origins: Vec<String>,
    /// Names by which this machine asks, `*` any, besides addresses and its own name.
    pub hosts: Vec<String>,
    /// Whether each request is a line of the log.
    pub access_log: bool,
    /// Who gets at the metrics.
    pub metrics: MetricsFor,
    /// Time for which a connection may be silent: before a request, within its head, and until the next one.
    pub idle_time: Duration,
    /// Time for which a stream is silent before a comment is sent, so that nothing on the way takes it for dead.
    pub heartbeat: Duration,
    /// Backend of all models that don't name theirs.
    pub backend: Option<String>,
    /// Context in tokens, likewise.
    pub context: Option<u32>,
    /// Threads, likewise.
    pub threads: Option<u32>,
    /// Replies of one model that run side by side, likewise.
    pub parallel: Option<u32>,
    /// Tokens that a model's cache has room for, likewise.
    pub cache_tokens: Option<u32>,
    /// How keys and values are kept, likewise.
    pub cache_type: Option<String>,
    /// Type in which matrices are stored while loading, likewise.
    pub quantize: Option<String>,
    /// What is said of single models, by their names.
    pub entries: BTreeMap<String, ServeModel>,
}

impl Default for ServeOptions {
    fn default() -> Self {
        Self {
            models: Vec::new(),
            on_demand: None,
            pin: true,
            keep_alive: KeepAlive::For(Duration::from_secs(300)),
            memory: MemoryBudget::Auto,
            host: "127.0.0.1".to_owned(),
            port: 8080,
            replies: 256,
            queue: 512,
            queue_time: Limit::seconds(60),
            reply_time: Limit(None),
            body_limit: Bytes(16 << 20),
            grace: Duration::from_secs(10),
            watch: Limit::seconds(1),
            api_keys: None,
            tls_certificate: None,
            tls_key: None,
            tls_client_authority: None,
            origins: Vec::new(),
            hosts: Vec::new(),
            access_log: true,
            metrics: MetricsFor::Keys,
            idle_time: Duration::from_secs(120),
            heartbeat: Duration::from_secs(10),
            backend: None,
            context: None,
            threads: None,
            parallel: None,
            cache_tokens: None,
            cache_type: None,
            quantize: None,
            entries: BTreeMap::new(),
        }
    }
}

impl ServeOptions {
    /// How models are loaded of which nothing else is said.
    pub fn loading(&self) -> ModelOptions {
        loading(ServeModel {
            backend: self.backend.clone(),
            context: self.context,
            threads: self.threads,
            parallel: self.parallel,
            cache_tokens: self.cache_tokens,
            cache_type: self.cache_type.clone(),
            quantize: self.quantize.clone(),
            ..ServeModel::default()
        })
    }

    /// How the model of an entry is loaded.
    pub fn loading_of(&self, entry: &ServeModel) -> ModelOptions {
        let entry = entry.clone();
        loading(ServeModel {
            backend: entry.backend.or_else(|| self.backend.clone()),
            context: entry.context.or(self.context),
            threads: entry.threads.or(self.threads),
            parallel: entry.parallel.or(self.parallel),
            cache_tokens: entry.cache_tokens.or(self.cache_tokens),
            cache_type: entry.cache_type.or_else(|| self.cache_type.clone()),
            quantize: entry.quantize.or_else(|| self.quantize.clone()),
            ..entry
        })
    }
}

fn loading(entry: ServeModel) -> ModelOptions {
    let extra: [(&str, Option<serde_json::Value>); 3] = [
        ("cache_tokens", entry.cache_tokens.map(Into::into)),
        ("cache_type", entry.cache_type.map(Into::into)),
        ("quantize", entry.quantize.map(Into::into)),
    ];
    let given = |(name, value): (&str, _)| Some((name.to_owned(), value?));
    ModelOptions {
        backend: entry.backend,
        load: LoadOptions {
            context: entry.context,
            threads: entry.threads,
            parallel: entry.parallel,
            device: entry.device,
            extra: extra.into_iter().filter_map(given).collect(),
        },
        ..ModelOptions::default()
    }
}

/// What is said of one model: `[serve.model.NAME]`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ServeModel {
    /// Where it is: a path, a name in the model folder, or `BACKEND:NAME`; `None`: its own name.
    pub model: Option<String>,
    /// Other names that clients may call it.
    pub aliases: Vec<String>,
    /// Whether it is loaded at the start and stays.
    pub pinned: Option<bool>,
    /// How long it stays when nobody asks it.
    pub keep_alive: Option<KeepAlive>,
    /// Backend.
    pub backend: Option<String>,
    /// Device, by its id.
    pub device: Option<String>,
    /// Context in tokens.
    pub context: Option<u32>,
    /// Threads.
    pub threads: Option<u32>,
    /// Replies that run side by side.
    pub parallel: Option<u32>,
    /// Tokens that its cache has room for.
    pub cache_tokens: Option<u32>,
    /// How keys and values are kept.
    pub cache_type: Option<String>,
    /// Type in which matrices are stored while loading.
    pub quantize: Option<String>,
}

/// One setting of `T`.
pub struct Setting<T> {
    /// Key in the manifest.
    pub name: &'static str,
    /// What it takes.
    pub kind: Kind,
    /// What holds where nothing is said and the value has no default of its own.
    pub otherwise: &'static str,
    /// For people: what it does, in one line.
    pub about: &'static str,
    put: fn(&mut T, Value) -> bool,
    shown: fn(&T) -> Option<Value>,
}

impl<T> Setting<T> {
    /// Sets it; a value of another kind changes nothing.
    pub fn put(&self, options: &mut T, value: Value) {
        let put = (self.put)(options, value);
        debug_assert!(put, "{}: the field is of another kind", self.name);
    }

    /// What holds; `None` where [`Setting::otherwise`] does.
    pub fn value(&self, options: &T) -> Option<Value> {
        (self.shown)(options)
    }

    /// The option of the command line, without its dashes.
    pub fn flag(&self) -> String {
        self.name.replace('_', "-")
    }

    /// The variable of the environment.
    pub fn variable(&self) -> String {
        format!("{VARIABLES}{}", self.name.to_uppercase())
    }
}

impl<T> std::fmt::Debug for Setting<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name)
    }
}

/// What the names of variables begin with.
pub const VARIABLES: &str = "BACKPLANE_SERVE_";

macro_rules! setting {
    ($field:ident, $kind:expr, $about:literal) => {
        setting!($field, $kind, $about, "none")
    };
    ($field:ident, $kind:expr, $about:literal, $otherwise:literal) => {
        Setting {
            name: stringify!($field),
            kind: $kind,
            otherwise: $otherwise,
            about: $about,
            put: |options, value| match Held::of(value) {
                Some(value) => {
                    options.$field = value;
                    true
                }
                None => false,
            },
            shown: |options| options.$field.shown(),
        }
    };
}

const COUNT: Kind = Kind::Whole(1, u32::MAX as u64);
const TOKENS: Kind = Kind::Whole(1, 1 << 27);
const TIME: Kind = Kind::Time {
    zero: false,
    off: true,
};

const SPAN: Kind = Kind::Time {
    zero: false,
    off: false,
};

/// Every setting of `[serve]`.
#[rustfmt::skip]
pub const SETTINGS: &[Setting<ServeOptions>] = &[
    setting!(models, Kind::Texts, "models to load at the start: names in the model folder, or paths", "none: each is loaded when it is asked for"),
    setting!(on_demand, Kind::Truth, "whether the models of the model folder are loaded when they are asked for", "true where no model is named"),
    setting!(pin, Kind::Truth, "whether models that are named at the start stay loaded; false: they are unloaded as others are"),
    setting!(keep_alive, Kind::Keep, "how long a model stays loaded that nobody asks; 0 unloads it after each reply, forever (or -1) where its memory is needed"),
    setting!(memory, Kind::Memory, "most memory of all models together, their caches counted as large as they may become; those not asked for longest are unloaded; auto: four fifths of what is available at the start"),
    setting!(host, Kind::Text, "address to listen on; others than this machine's own let others in"),
    setting!(port, Kind::Whole(0, 65535), "port to listen on; 0 takes a free one and says which"),
    setting!(replies, COUNT, "most replies at once, of all models together"),
    setting!(queue, Kind::Whole(0, 1 << 20), "most replies that wait for those to end; beyond it requests are refused, with a time to try again"),
    setting!(queue_time, TIME, "how long one waits at most"),
    setting!(reply_time, TIME, "how long a reply takes at most, from its request on; what was said by then stands"),
    setting!(body_limit, Kind::Size, "most bytes of a request"),
    setting!(grace, Kind::Time { zero: true, off: false }, "time that replies have to end when it is told to stop"),
    setting!(watch, TIME, "how often manifest and plugins are looked at for changes; `plugins reload` does it too"),
    setting!(api_keys, Kind::File, "file of keys, without one of which nothing is answered: a line `NAME: KEY` for each, with `admin` after it where it may operate the server"),
    setting!(tls_certificate, Kind::File, "certificate as PEM, with those that vouch for it: the server speaks TLS"),
    setting!(tls_key, Kind::File, "private key of the certificate, as PEM"),
    setting!(tls_client_authority, Kind::File, "certificates as PEM of the authorities whose clients alone are taken"),
    setting!(origins, Kind::Texts, "origins whose web pages may ask, such as https://chat.example; * is any; the server's own always may"),
    setting!(hosts, Kind::Texts, "names by which this machine may ask besides addresses, localhost and its own name, such as that of a proxy; * is any; not needed where keys are asked for"),
    setting!(access_log, Kind::Truth, "whether each request is a line of the log; never its text"),
    setting!(metrics, Kind::Word(MetricsFor::WORDS), "who gets at /metrics: who has a key where keys are asked for, all, or nobody"),
    setting!(idle_time, SPAN, "how long a connection may be silent: before a request, within its head, and until the next one"),
    setting!(heartbeat, SPAN, "how long a stream is silent before a comment is sent, so that nothing on the way takes it for dead"),
    setting!(backend, Kind::Text, "use this backend and no other", "the first available in the manifest's order"),
    setting!(context, TOKENS, "context in tokens", "the model's, at most the manifest's `context`"),
    setting!(threads, COUNT, "threads", "the backend's choice"),
    setting!(parallel, COUNT, "replies of one model that run side by side", "the backend's choice"),
    setting!(cache_tokens, TOKENS, "tokens that the cache of a model has room for, of all its replies together", "the backend's choice"),
    setting!(cache_type, Kind::Text, "how keys and values are kept: f32, f16 or q8_0", "the backend's choice"),
    setting!(quantize, Kind::Text, "store matrices in this type while loading, such as q8_0 or q4_k", "the backend's choice"),
];

/// Every key of `[serve.model.NAME]`.
#[rustfmt::skip]
pub const MODEL_SETTINGS: &[Setting<ServeModel>] = &[
    setting!(model, Kind::Text, "where it is: a name in the model folder, a path, or BACKEND:NAME", "its own name"),
    setting!(aliases, Kind::Texts, "other names that clients may call it"),
    setting!(pinned, Kind::Truth, "whether it is loaded at the start and stays", "as `pin` says where it is named at the start, else false"),
    setting!(keep_alive, Kind::Keep, "how long it stays loaded when nobody asks it", "as [serve] says"),
    setting!(backend, Kind::Text, "use this backend and no other", "as [serve] says"),
    setting!(device, Kind::Text, "use this device, by the id that `backplane devices` shows", "the backend's choice"),
    setting!(context, TOKENS, "context in tokens", "as [serve] says"),
    setting!(threads, COUNT, "threads", "as [serve] says"),
    setting!(parallel, COUNT, "replies that run side by side", "as [serve] says"),
    setting!(cache_tokens, TOKENS, "tokens that its cache has room for, of all its replies together", "as [serve] says"),
    setting!(cache_type, Kind::Text, "how keys and values are kept: f32, f16 or q8_0", "as [serve] says"),
    setting!(quantize, Kind::Text, "store matrices in this type while loading, such as q8_0 or q4_k", "as [serve] says"),
];

/// A value out of the manifest.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Given {
    /// What stands there.
    pub value: Value,
    /// In which line.
    pub line: usize,
}

/// `[serve]` as a manifest has it.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct ServeEntry {
    /// What is set, by name.
    pub given: BTreeMap<&'static str, Given>,
    /// What is said of single models: what is set, by the model's name.
    pub models: BTreeMap<String, BTreeMap<&'static str, Given>>,
    /// The manifest's folder, which paths of models are relative to.
    #[serde(skip)]
    pub folder: PathBuf,
}

impl ServeEntry {
    /// What is said of single models. A `model` that is a path is made absolute; a plain name stays one.
    pub fn entries(&self) -> BTreeMap<String, ServeModel> {
        let entry = |(name, given): (&String, &BTreeMap<&'static str, Given>)| {
            let mut entry = ServeModel::default();
            for setting in MODEL_SETTINGS {
                if let Some(given) = given.get(setting.name) {
                    setting.put(&mut entry, given.value.clone());
                }
            }
            let is_path = |model: &String| {
                !model.starts_with('~')
                    && (model.contains(['/', '\\']) || self.folder.join(model).exists())
            };
            entry.model = entry
                .model
                .map(|model| match is_path(&model) && !is_reference(&model) {
                    true => self.folder.join(&model).to_string_lossy().into_owned(),
                    false => model,
                });
            (name.clone(), entry)
        };
        self.models.iter().map(entry).collect()
    }
}

/// Whether it is a model of a backend that is no file, such as `remote:some/model`.
fn is_reference(model: &str) -> bool {
    let before = model.split_once(':').map(|(before, _)| before);
    before.is_some_and(|name| name.len() > 1 && !name.contains(['/', '\\', '.']))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_setting_has_its_field_and_default() {
        for setting in SETTINGS {
            let mut options = ServeOptions::default();
            let sample = match setting.kind {
                Kind::Word(words) => words[0],
                Kind::Whole(..) => "7",
                Kind::Truth => "false",
                Kind::Time { .. } | Kind::Keep => "7s",
                Kind::Size | Kind::Memory => "7MiB",
                Kind::Text | Kind::File | Kind::Texts => "seven",
            };
            let value = setting.kind.read(sample).unwrap();
            setting.put(&mut options, value.clone());
            assert_eq!(setting.value(&options), Some(value), "{}", setting.name);
            let default = setting.value(&ServeOptions::default());
            let default = default.map(|value| setting.kind.read(&value.to_string()).unwrap());
            assert_eq!(default, setting.value(&ServeOptions::default()));
            assert!(!setting.about.ends_with('.'), "{}", setting.name);
        }
        let mut names: Vec<&str> = SETTINGS.iter().map(|setting| setting.name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), SETTINGS.len(), "each once");
        for setting in MODEL_SETTINGS {
            assert_eq!(
                setting.value(&ServeModel::default()),
                None,
                "{}",
                setting.name
            );
        }
    }
}
