//! The plugin's options in the manifest.
//!
//! Invariant: no message here repeats a value that may be a key.

use crate::fields::Fields;
use backplane_llama_server::Key;
use hyper::Uri;
use serde_json::Value;
use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Longest times that a manifest may give.
const MAX_SILENCE_S: f64 = 24.0 * 3600.0;
const MAX_CONNECT_S: f64 = 600.0;
/// Longest key, in bytes.
const MAX_KEY: u64 = 16 << 10;

/// Options, checked.
#[derive(Debug)]
pub(crate) struct Options {
    pub(crate) base: Base,
    pub(crate) key: KeySource,
    pub(crate) ca_file: Option<PathBuf>,
    pub(crate) models: Vec<String>,
    pub(crate) context: Option<u32>,
    pub(crate) fields: Fields,
    pub(crate) silence: Duration,
    pub(crate) connect: Duration,
}

/// Why there is no endpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Problem {
    /// None is wanted.
    NoBaseUrl,
    /// An option is wrong: one line that names it.
    Wrong(String),
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoBaseUrl => f.write_str("no base_url configured"),
            Self::Wrong(message) => f.write_str(message),
        }
    }
}

/// Where an endpoint is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Base {
    pub(crate) tls: bool,
    /// Name or address, without brackets.
    pub(crate) host: String,
    pub(crate) port: u16,
    /// As requests state it: with brackets, and the port where it is stated.
    pub(crate) authority: String,
    /// Without a slash at its end; empty for the root.
    pub(crate) path: String,
}

impl fmt::Display for Base {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = if self.tls { "https" } else { "http" };
        write!(f, "{scheme}://{}{}", self.authority, self.path)
    }
}

impl Base {
    /// Says what is wrong without the URL, as that may hold a key.
    fn parse(text: &str) -> Result<Self, &'static str> {
        let scheme = |scheme: &str| {
            let start = text.get(..scheme.len());
            start.is_some_and(|start| start.eq_ignore_ascii_case(scheme))
        };
        let tls = scheme("https://");
        if !tls && !scheme("http://") {
            return Err("begins with neither https:// nor http://");
        }
        let uri: Uri = text.parse().map_err(|_| "is no URL")?;
        let authority = uri.authority().ok_or("has no host")?.as_str();
        if authority.contains('@') {
            return Err("has a user name or a key in it; name the key by `key_env` or `key_file`");
        }
        if uri.query().is_some() || text.contains('#') {
            return Err("has a query or a fragment");
        }
        let host = uri.host().unwrap_or_default();
        let host = host.trim_start_matches('[').trim_end_matches(']');
        if host.is_empty() {
            return Err("has no host");
        }
        let stated = authority
            .rsplit_once(':')
            .is_some_and(|(_, port)| !port.contains(']'));
        let port = match (stated, uri.port_u16()) {
            (true, None | Some(0)) => return Err("has no port number after its `:`"),
            (_, port) => port.unwrap_or(if tls { 443 } else { 80 }),
        };
        Ok(Self {
            tls,
            host: host.to_owned(),
            port,
            authority: authority.to_owned(),
            path: uri.path().trim_end_matches('/').to_owned(),
        })
    }

    /// Whether it is this very machine.
    pub(crate) fn is_loopback(&self) -> bool {
        let address = self.host.parse::<std::net::IpAddr>();
        address.map_or(self.host.eq_ignore_ascii_case("localhost"), |ip| {
            ip.is_loopback()
        })
    }
}

/// Where the key is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum KeySource {
    None,
    Environment(String),
    File(PathBuf),
}

impl KeySource {
    /// The key, as it is now.
    ///
    /// # Errors
    /// One line: it is not there, or can't be one.
    pub(crate) fn read(&self) -> Result<Option<Key>, String> {
        let (text, place) = match self {
            Self::None => return Ok(None),
            Self::Environment(name) => {
                let place = format!("the environment variable {name} (option `key_env`)");
                let Some(value) = std::env::var_os(name).filter(|value| !value.is_empty()) else {
                    return Err(format!("{place} is not set"));
                };
                (value.into_string().unwrap_or_default(), place)
            }
            Self::File(path) => {
                let place = format!("{} (option `key_file`)", path.display());
                (
                    short_file(path).map_err(|error| format!("{place}: {error}"))?,
                    place,
                )
            }
        };
        let key = Key::new(text.trim());
        key.map(Some).ok_or_else(|| {
            format!("{place} holds no key; expected one word of plain ASCII characters")
        })
    }
}

fn short_file(path: &Path) -> std::io::Result<String> {
    use std::io::Read;
    let mut text = String::new();
    let mut file = std::fs::File::open(path)?.take(MAX_KEY + 1);
    file.read_to_string(&mut text)?;
    match text.len() as u64 > MAX_KEY {
        true => Err(std::io::Error::other(format!("more than {MAX_KEY} bytes"))),
        false => Ok(text),
    }
}

impl Options {
    /// Reads the table.
    ///
    /// # Errors
    /// There is no `base_url`, or an option is wrong.
    pub(crate) fn read(table: &BTreeMap<String, Value>) -> Result<Self, Problem> {
        let wrong = |key: &str, expected: &str| {
            Problem::Wrong(format!("option `{key}` is wrong; expected {expected}"))
        };
        let mut base = None;
        let mut key = KeySource::None;
        let mut options = Self {
            base: Base {
                tls: true,
                host: String::new(),
                port: 443,
                authority: String::new(),
                path: String::new(),
            },
            key: KeySource::None,
            ca_file: None,
            models: vec![],
            context: None,
            fields: Fields::default(),
            silence: Duration::from_secs(300),
            connect: Duration::from_secs(10),
        };
        for (name, value) in table {
            let text = value.as_str().filter(|text| !text.is_empty());
            let path = || {
                let path = text.map(PathBuf::from).filter(|path| path.is_absolute());
                path.ok_or_else(|| wrong(name, "an absolute path"))
            };
            let seconds = |most: f64| {
                let seconds = value.as_f64().filter(|s| *s > 0.0 && *s <= most);
                seconds
                    .map(Duration::from_secs_f64)
                    .ok_or_else(|| wrong(name, &format!("seconds, above 0 and at most {most}")))
            };
            let texts = || {
                let list = value.as_array()?.iter().map(Value::as_str);
                list.collect::<Option<Vec<_>>>()
            };
            match name.as_str() {
                "base_url" => {
                    let expected = "a URL such as https://api.openai.com/v1";
                    let url = text.ok_or_else(|| wrong(name, expected))?;
                    let parsed = Base::parse(url).map_err(|what| {
                        Problem::Wrong(format!("option `{name}` {what}; expected {expected}"))
                    })?;
                    base = Some(parsed);
                }
                "key_env" | "key_file" if key != KeySource::None => {
                    let message = "both `key_env` and `key_file` are given; expected one of them";
                    return Err(Problem::Wrong(message.into()));
                }
                "key_env" => {
                    // Stricter than the system: a key that was put here by mistake must not be shown as a name.
                    let plain = |c: char| c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_';
                    let variable = text.filter(|text| text.len() <= 64 && text.chars().all(plain));
                    let expected =
                        "the name of an environment variable in capitals, such as OPENAI_API_KEY";
                    let variable = variable.ok_or_else(|| wrong(name, expected))?;
                    key = KeySource::Environment(variable.to_owned());
                }
                "key_file" => key = KeySource::File(path()?),
                "ca_file" => options.ca_file = Some(path()?),
                "models" => {
                    let names = texts().filter(|names| names.iter().all(|name| !name.is_empty()));
                    let names = names.ok_or_else(|| wrong(name, "a list of names"))?;
                    options.models = names.into_iter().map(str::to_owned).collect();
                }
                "context" => {
                    let tokens = value.as_u64().and_then(|tokens| u32::try_from(tokens).ok());
                    let tokens = tokens.filter(|&tokens| tokens > 0);
                    options.context =
                        Some(tokens.ok_or_else(|| wrong(name, "a number of tokens"))?);
                }
                "fields" => {
                    let names = texts().ok_or_else(|| wrong(name, "a list of names"))?;
                    options.fields = Fields::of(names).map_err(|field| {
                        let known = Fields::known();
                        Problem::Wrong(format!(
                            "option `{name}` has {field:?}; known fields: {known}"
                        ))
                    })?;
                }
                "timeout_s" => options.silence = seconds(MAX_SILENCE_S)?,
                "connect_timeout_s" => options.connect = seconds(MAX_CONNECT_S)?,
                "key" | "api_key" | "token" => {
                    let message = format!(
                        "option `{name}`: a key does not belong into the manifest; name its place by `key_env` or `key_file`"
                    );
                    return Err(Problem::Wrong(message));
                }
                _ => {
                    let message = format!(
                        "unknown option `{name}`; known options: base_url, key_env, key_file, ca_file, models, context, fields, \
                         timeout_s, connect_timeout_s"
                    );
                    return Err(Problem::Wrong(message));
                }
            }
        }
        options.base = base.ok_or(Problem::NoBaseUrl)?;
        options.key = key;
        Ok(options)
    }
}
