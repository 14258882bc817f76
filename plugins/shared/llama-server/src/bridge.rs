//! The contract's `Backend` over servers.

use crate::describe;
use crate::gpus::Gpus;
use crate::locate;
use crate::model::Model;
use crate::server::{Options, Server, StartError};
use crate::settings::Settings;
use backplane_plugin_api::sdk::{Backend, Result, TextModel};
use backplane_plugin_api::types::{
    DeviceInfo, Error, ErrorCode, LoadOptions, ModelInfo, Verdict, VerdictState,
};
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Context where the caller names none and the model allows it.
const DEFAULT_CONTEXT: u32 = 4096;
/// Sequences side by side where the caller names none.
const DEFAULT_PARALLEL: u32 = 4;
/// Most sequences side by side, and threads.
const MAX_PARALLEL: u32 = 256;
const MAX_THREADS: u32 = 1024;
/// Time for the program to tell its version.
const VERSION_WITHIN: Duration = Duration::from_secs(5);

/// What makes one plugin over the server different from another.
#[derive(Debug)]
pub struct Flavour {
    /// The plugin's name.
    pub name: &'static str,
    /// Its version.
    pub version: &'static str,
    /// Environment variables that may name the program, the first before the others.
    pub variables: &'static [&'static str],
    /// The devices that it is for.
    pub gpus: Gpus,
}

impl Flavour {
    /// Any build of the server, with whatever devices it finds; those of the machine are below `root`.
    pub fn any(name: &'static str, version: &'static str, root: &Path) -> Self {
        Self {
            name,
            version,
            variables: &["LLAMA_SERVER_PATH"],
            gpus: Gpus::any(root),
        }
    }
}

/// A backend whose models run in a server each.
#[derive(Debug)]
pub struct Bridge {
    flavour: Flavour,
    settings: std::result::Result<Settings, String>,
}

impl Bridge {
    /// The backend for a manifest's options. Wrong ones are told by its probe and refuse every load.
    pub fn new(flavour: Flavour, options: &BTreeMap<String, Value>) -> Self {
        let settings = Settings::read(options, flavour.gpus.are_chosen());
        Self { flavour, settings }
    }

    fn program(&self, settings: &Settings) -> std::result::Result<PathBuf, locate::NotFound> {
        locate::program(settings.server.as_deref(), self.flavour.variables, |name| {
            std::env::var_os(name)
        })
    }

    fn options(&self, path: &Path, info: &ModelInfo, load: &LoadOptions) -> Result<Options> {
        let settings = self
            .settings
            .as_ref()
            .map_err(|problem| Error::new(ErrorCode::InvalidRequest, problem.clone()))?;
        let mut cache_type = None;
        for (name, value) in &load.extra {
            if name != "cache_type" {
                return Err(Error::unsupported_field(name.clone(), self.flavour.name));
            }
            let kind = value
                .as_str()
                .filter(|kind| ["f32", "f16", "q8_0"].contains(kind));
            let Some(kind) = kind else {
                let message = format!("cache_type: {value}; expected f32, f16 or q8_0");
                return Err(Error::invalid_field(name.clone(), message));
            };
            cache_type = Some(kind.to_owned());
        }
        let within = |field: &str, value: Option<u32>, most: u32| match value {
            Some(value) if !(1..=most).contains(&value) => {
                let message = format!("{field}: {value}; expected 1 to {most}");
                Err(Error::invalid_field(field, message))
            }
            value => Ok(value),
        };
        let longest = u32::try_from(info.context_length).unwrap_or(u32::MAX);
        let longest = if longest == 0 { u32::MAX } else { longest };
        let context = match load.context {
            Some(context) if !(1..=longest).contains(&context) => {
                let message =
                    format!("context: {context} tokens; the model was made for 1 to {longest}");
                return Err(Error::invalid_field("context", message)
                    .with_action(format!("ask for a context of at most {longest}")));
            }
            context => context.unwrap_or(longest.min(DEFAULT_CONTEXT)),
        };
        let parallel = within("parallel", load.parallel, MAX_PARALLEL)?.unwrap_or(DEFAULT_PARALLEL);
        let threads = within("threads", load.threads, MAX_THREADS)?;
        if u64::from(context) * u64::from(parallel) > i32::MAX as u64 {
            let message = format!(
                "context: {parallel} contexts of {context} tokens are more than the server can number"
            );
            return Err(Error::invalid_field("context", message));
        }
        let gpus = &self.flavour.gpus;
        let environment = match &load.device {
            device if gpus.are_chosen() => {
                let chosen = gpus.choose(device.as_deref().or(settings.device.as_deref()));
                gpus.environment(
                    &chosen.map_err(|message| Error::invalid_field("device", message))?,
                )
            }
            Some(device) => {
                let message = format!(
                    "device: {} chooses none: device {device:?} can't be asked for",
                    self.flavour.name
                );
                return Err(Error::invalid_field("device", message));
            }
            None => vec![],
        };
        let program = self
            .program(settings)
            .map_err(|error| Error::new(ErrorCode::Device, error.to_string()))?;
        Ok(Options {
            program,
            model: path.to_owned(),
            gpu_layers: settings.gpu_layers,
            context,
            parallel,
            threads,
            cache_type,
            extra_args: settings.extra_args.clone(),
            environment,
            ready_within: settings.ready_within,
        })
    }
}

impl Backend for Bridge {
    fn name(&self) -> String {
        self.flavour.name.into()
    }

    fn version(&self) -> String {
        self.flavour.version.into()
    }

    fn probe(&self) -> Verdict {
        let settings = match &self.settings {
            Ok(settings) => settings,
            Err(problem) => {
                let action = format!(
                    "correct the options of `{}` in the manifest",
                    self.flavour.name
                );
                return Verdict::unavailable(VerdictState::Misconfigured, problem, action);
            }
        };
        let gpus = &self.flavour.gpus;
        let machine = match gpus.are_chosen() {
            false => gpus.overview(),
            true => match gpus.probe(settings) {
                Ok(found) => found,
                Err(verdict) => return verdict,
            },
        };
        let program = match self.program(settings) {
            Ok(program) => program,
            Err(error) => {
                let action = format!(
                    "install llama.cpp's server, or name it in the option `server` of `{}`",
                    self.flavour.name
                );
                return Verdict::unavailable(
                    // Nobody asked for one: not installed, rather than broken.
                    if error.named {
                        VerdictState::MissingLibrary
                    } else {
                        VerdictState::Absent
                    },
                    match gpus.are_chosen() {
                        false => format!("{error}; {machine}"),
                        true => error.to_string(),
                    },
                    action,
                );
            }
        };
        let mut verdict = version_verdict(&program);
        if verdict.is_available() {
            verdict.message = match gpus.are_chosen() {
                true => format!("{machine}; {}", verdict.message),
                false => format!("{}; {machine}", verdict.message),
            };
        }
        verdict
    }

    fn devices(&self) -> Result<Vec<DeviceInfo>> {
        let configured = self.settings.as_ref().ok();
        let configured = configured.and_then(|settings| settings.device.as_deref());
        Ok(self.flavour.gpus.devices(configured))
    }

    fn inspect(&self, path: &Path) -> Result<Option<ModelInfo>> {
        describe::inspect(path)
    }

    fn load(&self, path: &Path, load: &LoadOptions) -> Result<Arc<dyn TextModel>> {
        let info = describe::inspect(path)?.ok_or_else(|| {
            let message = format!("{}: not a GGUF file", path.display());
            Error::new(ErrorCode::ModelUnusable, message)
        })?;
        // The server runs in this process's folder, but a relative path would be read differently once that changes.
        let absolute = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
        let options = self.options(&absolute, &info, load)?;
        let server = Server::start(&options).map_err(|error| start_error(path, &error))?;
        Ok(Arc::new(Model::new(
            self.flavour.name,
            info,
            options,
            server,
        )?))
    }
}

/// A failed start, as an error of the call that wanted it.
pub(crate) fn start_error(path: &Path, error: &StartError) -> Error {
    let code = match error.is_of_the_model() {
        true => ErrorCode::ModelUnusable,
        false => ErrorCode::Device,
    };
    Error::new(code, format!("{}: {error}", path.display()))
}

/// Has the program tell its version: whether it can run here at all.
fn version_verdict(program: &Path) -> Verdict {
    let shown = program.display();
    let unavailable =
        |state, message: String, action: &str| Verdict::unavailable(state, message, action);
    let child = Command::new(program)
        .arg("--version")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    let mut child = match child {
        Ok(child) => child,
        Err(error) => {
            let message = format!("{shown}: can't be started: {error}");
            return unavailable(
                VerdictState::Incompatible,
                message,
                "get a build of llama-server for this machine",
            );
        }
    };
    let start = Instant::now();
    while matches!(child.try_wait(), Ok(None)) {
        if start.elapsed() > VERSION_WITHIN {
            // An error says that it has ended just now.
            let _ = child.kill();
            let _ = child.wait();
            let message = format!(
                "{shown}: --version gave no answer within {} s",
                VERSION_WITHIN.as_secs()
            );
            return unavailable(
                VerdictState::Crashed,
                message,
                "check that it is llama.cpp's server",
            );
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    let output = match child.wait_with_output() {
        Ok(output) => output,
        Err(error) => {
            let message = format!("{shown}: {error}");
            return unavailable(
                VerdictState::Crashed,
                message,
                "check that it is llama.cpp's server",
            );
        }
    };
    // Builds differ in where they write it.
    let text = [output.stdout, output.stderr].concat();
    let text = String::from_utf8_lossy(&text);
    let lines = || text.lines().map(str::trim).filter(|line| !line.is_empty());
    let last = || lines().next_back().unwrap_or("no word").to_owned();
    if let Some(version) = lines().find_map(|line| line.strip_prefix("version:")) {
        return Verdict::available(format!("llama-server {} at {shown}", version.trim()));
    }
    if text.contains("error while loading shared libraries") || text.contains("Library not loaded")
    {
        let message = format!("{shown}: {}", last());
        return unavailable(
            VerdictState::MissingLibrary,
            message,
            "install the library, or another build of llama-server",
        );
    }
    let message = format!("{shown}: --version gave {:?}, not a version", last());
    unavailable(
        VerdictState::Incompatible,
        message,
        "check that it is llama.cpp's server",
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    fn verdict(script: &str) -> Verdict {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("llama-server");
        std::fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
        let options = BTreeMap::from([("server".to_owned(), Value::from(path.to_str()))]);
        Bridge::new(Flavour::any("llama_cpp", "1.0.0", "/".as_ref()), &options).probe()
    }

    #[test]
    fn programs_are_told_apart() {
        let found = verdict("echo 'version: 7 (abc)' >&2; echo built with care >&2");
        assert!(
            found.is_available() && found.message.starts_with("llama-server 7 (abc) at "),
            "{found}"
        );
        let found = verdict(
            "echo \"$0: error while loading shared libraries: libvulkan.so.1: cannot open\" >&2; exit 127",
        );
        assert_eq!(found.state, VerdictState::MissingLibrary);
        assert!(found.message.contains("libvulkan.so.1"), "{found}");
        assert_eq!(verdict("echo hello").state, VerdictState::Incompatible);
        assert_eq!(verdict("exit 1").state, VerdictState::Incompatible);
    }

    #[test]
    fn wrong_options_are_told() {
        let options = BTreeMap::from([("port".to_owned(), Value::from(3))]);
        let bridge = Bridge::new(Flavour::any("llama_cpp", "1.0.0", "/".as_ref()), &options);
        let verdict = bridge.probe();
        assert_eq!(verdict.state, VerdictState::Misconfigured);
        assert!(verdict.message.contains("`port`"), "{verdict}");
    }
}
