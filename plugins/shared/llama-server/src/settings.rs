//! A plugin's options in the manifest.

use serde_json::Value;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

/// Longest time that a manifest may give a server to become ready.
const MAX_READY_S: f64 = 3600.0;

/// Options, checked.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// The server's program; `None` looks for it.
    pub server: Option<PathBuf>,
    /// Layers to keep on the GPU.
    pub gpu_layers: u32,
    /// Further arguments for the server.
    pub extra_args: Vec<String>,
    /// Time until a server must be ready.
    pub ready_within: Duration,
    /// The device to use where a load names none, by UUID or PCI address.
    pub device: Option<String>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            server: None,
            gpu_layers: 999,
            extra_args: vec![],
            ready_within: Duration::from_secs(60),
            device: None,
        }
    }
}

/// Arguments that this crate sets itself and relies on.
const OURS: &[&str] = &[
    "-m",
    "--model",
    "--host",
    "--port",
    "-c",
    "--ctx-size",
    "-np",
    "--parallel",
    "--api-key",
    "--api-key-file",
];

impl Settings {
    /// Reads the table; `of_devices` where the plugin is for certain devices: it then has the keys `mode` and `device`.
    ///
    /// # Errors
    /// One line that names the key: it is unknown, or has another value than expected.
    pub fn read(table: &BTreeMap<String, Value>, of_devices: bool) -> Result<Self, String> {
        let mut settings = Self::default();
        for (key, value) in table {
            let wrong =
                |expected: &str| Err(format!("option `{key}` is {value}; expected {expected}"));
            match key.as_str() {
                "server" => match value.as_str().filter(|path| !path.is_empty()) {
                    Some(path) => settings.server = Some(path.into()),
                    None => return wrong("the path of llama-server"),
                },
                "gpu_layers" => {
                    match value.as_u64().and_then(|layers| u32::try_from(layers).ok()) {
                        Some(layers) if layers <= i32::MAX as u32 => settings.gpu_layers = layers,
                        _ => return wrong("a number of layers, such as 0 or 999"),
                    }
                }
                "extra_args" => {
                    let words = value
                        .as_array()
                        .map(|words| words.iter().map(Value::as_str));
                    let Some(words) = words.and_then(|words| words.collect::<Option<Vec<_>>>())
                    else {
                        return wrong("a list of words, such as [\"--mlock\"]");
                    };
                    let name = |word: &str| word.split('=').next().unwrap_or(word).to_owned();
                    if let Some(word) = words.iter().find(|word| OURS.contains(&&*name(word))) {
                        return Err(format!(
                            "option `{key}` has {word}, which Backplane sets itself"
                        ));
                    }
                    settings.extra_args = words.into_iter().map(str::to_owned).collect();
                }
                "start_timeout_s" => match value.as_f64() {
                    Some(seconds) if seconds > 0.0 && seconds <= MAX_READY_S => {
                        settings.ready_within = Duration::from_secs_f64(seconds);
                    }
                    _ => return wrong("seconds, above 0 and at most 3600"),
                },
                "mode" if of_devices => {
                    if value != "server" {
                        return wrong("\"server\": this build has no other mode");
                    }
                }
                "device" if of_devices => match value.as_str().filter(|id| !id.is_empty()) {
                    Some(id) => settings.device = Some(id.into()),
                    None => return wrong("the UUID or PCI address of a device"),
                },
                _ => {
                    let more = if of_devices { ", mode, device" } else { "" };
                    return Err(format!(
                        "unknown option `{key}`; known options: server, gpu_layers, extra_args, start_timeout_s{more}"
                    ));
                }
            }
        }
        Ok(settings)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn read(table: Value) -> Result<Settings, String> {
        Settings::read(&serde_json::from_value(table).unwrap(), true)
    }

    #[test]
    fn options_are_read() {
        assert_eq!(read(json!({})), Ok(Settings::default()));
        let table = json!({"server": "a/b", "gpu_layers": 0, "extra_args": ["--mlock"], "start_timeout_s": 0.5, "mode": "server",
            "device": "0000:03:00.0"});
        let expected = Settings {
            server: Some("a/b".into()),
            gpu_layers: 0,
            extra_args: vec!["--mlock".into()],
            ready_within: Duration::from_millis(500),
            device: Some("0000:03:00.0".into()),
        };
        assert!(
            Settings::read(&BTreeMap::from([("mode".into(), "server".into())]), false).is_err()
        );
        assert_eq!(read(table), Ok(expected));
    }

    #[test]
    fn wrong_options_are_told() {
        for (table, part) in [
            (json!({"mode": "native"}), "option `mode` is \"native\""),
            (json!({"device": 0}), "option `device` is 0"),
            (json!({"servr": "x"}), "unknown option `servr`"),
            (json!({"server": 3}), "option `server` is 3"),
            (json!({"server": ""}), "option `server`"),
            (json!({"gpu_layers": -1}), "option `gpu_layers` is -1"),
            (
                json!({"gpu_layers": 4_294_967_296_u64}),
                "option `gpu_layers`",
            ),
            (json!({"extra_args": "--mlock"}), "option `extra_args`"),
            (json!({"extra_args": [3]}), "option `extra_args`"),
            (
                json!({"extra_args": ["--port=1"]}),
                "--port=1, which Backplane sets itself",
            ),
            (
                json!({"start_timeout_s": 0}),
                "option `start_timeout_s` is 0",
            ),
            (json!({"start_timeout_s": 1e9}), "option `start_timeout_s`"),
        ] {
            let message = read(table).unwrap_err();
            assert!(message.contains(part), "{message}");
        }
    }
}
