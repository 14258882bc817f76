//! A server under supervision: started, waited for until it can answer, watched, stopped.

use crate::child::Child;
use crate::http::{Client, HttpError};
use crate::key::Key;
use serde_json::Value;
use std::ffi::OsString;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

/// Time between two questions whether it is ready.
const ASK_EVERY: Duration = Duration::from_millis(100);
/// Time for one answer whether it is ready: a server that does not answer, being stopped or hung, is asked anew.
const ANSWER_WITHIN: Duration = Duration::from_secs(2);
/// Starts, each with a new port, where the server ends before it is ready: another program may have taken the port.
const TRIES: usize = 3;

/// How to start a server.
#[derive(Clone, Debug)]
pub struct Options {
    /// The program.
    pub program: PathBuf,
    /// The model file.
    pub model: PathBuf,
    /// Layers to keep on the GPU; more than the model has means all.
    pub gpu_layers: u32,
    /// Context of each sequence, in tokens.
    pub context: u32,
    /// Sequences side by side.
    pub parallel: u32,
    /// Threads; `None` leaves it to the server.
    pub threads: Option<u32>,
    /// How keys and values are kept (`f32`, `f16`, `q8_0`); `None` leaves it to the server.
    pub cache_type: Option<String>,
    /// Further arguments, put last, so that they win.
    pub extra_args: Vec<String>,
    /// Environment variables set, or with `None` removed; all others are as they are here.
    pub environment: Vec<(OsString, Option<OsString>)>,
    /// Time until it must be ready.
    pub ready_within: Duration,
}

/// Why a server could not be had.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The program could not be started.
    #[error("{program}: can't be started: {cause}")]
    Spawn {
        /// The program.
        program: String,
        /// Why.
        cause: std::io::Error,
    },
    /// It ended before it was ready, every time.
    #[error("{program} {how} before it was ready{}", line.as_ref().map(|line| format!(": {line}")).unwrap_or_default())]
    Ended {
        /// The program.
        program: String,
        /// How.
        how: String,
        /// What it said.
        line: Option<String>,
    },
    /// It was not ready in time.
    #[error("llama-server was not ready within {seconds} s{}", line.as_ref().map(|line| format!(": {line}")).unwrap_or_default())]
    TimedOut {
        /// The time it had.
        seconds: u64,
        /// What it said last.
        line: Option<String>,
    },
    /// What answers on its port is something else, or the server is of another kind than known.
    #[error("llama-server: {0}")]
    Strange(String),
}

impl StartError {
    /// Whether the server says that it can't read the model, rather than that it can't run here.
    #[must_use]
    pub fn is_of_the_model(&self) -> bool {
        match self {
            Self::Ended {
                line: Some(line), ..
            } => {
                let line = line.to_lowercase();
                line.contains("error loading model")
                    && !["memory", "alloc", "device", "buffer"]
                        .iter()
                        .any(|word| line.contains(word))
            }
            _ => false,
        }
    }
}

/// A running server that is ready.
#[derive(Debug)]
pub struct Server {
    // Before the child: connections close first.
    client: Client,
    child: Child,
    address: SocketAddr,
    key: Key,
    /// Context of each sequence, as the server has it.
    context: u32,
    properties: Value,
}

impl Server {
    /// Starts a server and waits until it is ready.
    ///
    /// # Errors
    /// See [`StartError`].
    pub fn start(options: &Options) -> Result<Self, StartError> {
        let mut tries = 1;
        loop {
            match Self::start_once(options) {
                Err(StartError::Ended { program, how, line }) if tries < TRIES => {
                    tracing::info!(
                        "{program} {how} before it was ready ({}): starting it again",
                        line.unwrap_or_default()
                    );
                    tries += 1;
                }
                result => return result,
            }
        }
    }

    fn start_once(options: &Options) -> Result<Self, StartError> {
        let address = free_address().map_err(|cause| StartError::Spawn {
            program: "a free port on 127.0.0.1".into(),
            cause,
        })?;
        let spawn = |cause| StartError::Spawn {
            program: options.program.display().to_string(),
            cause,
        };
        let key = fresh_key();
        let client = Client::new(address, key.expose().to_owned()).map_err(spawn)?;
        let child = Child::start(command(options, address, &key), "llama-server").map_err(spawn)?;
        tracing::info!("llama-server started: process {}, {address}", child.id());
        let start = Instant::now();
        let over = || start.elapsed() >= options.ready_within;
        let program = options.program.display().to_string();
        wait_until_ready(&child, &client, program, &over).map_err(|error| match error {
            Some(error) => error,
            None => given_up(&child, options.ready_within),
        })?;
        let properties = client.get("/props", &over).map_err(|error| match error {
            HttpError::Stopped => given_up(&child, options.ready_within),
            error => StartError::Strange(error.to_string()),
        })?;
        if !is_model(&properties, &options.model) {
            let found = properties["model_path"].to_string();
            return Err(StartError::Strange(format!(
                "what answers on {address} has the model {found}"
            )));
        }
        let context = properties["default_generation_settings"]["n_ctx"]
            .as_u64()
            .and_then(|context| u32::try_from(context).ok())
            .ok_or_else(|| StartError::Strange("its properties tell no n_ctx".into()))?;
        Ok(Self {
            client,
            child,
            address,
            key,
            context,
            properties,
        })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// What it asks for.
    pub fn key(&self) -> &Key {
        &self.key
    }

    /// For requests.
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// Context of each sequence, in tokens, as the server has it.
    pub fn context(&self) -> u32 {
        self.context
    }

    /// The server's own description (`/props`).
    pub fn properties(&self) -> &Value {
        &self.properties
    }

    /// The process id.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Most memory that it has held at once, in bytes, mapped files included; `None` where the system does not tell.
    pub fn peak_memory(&self) -> Option<u64> {
        self.status("VmHWM:")
    }

    /// What it holds now, counted the same.
    pub fn memory(&self) -> Option<u64> {
        self.status("VmRSS:")
    }

    /// Bytes of a line that the system tells of it.
    fn status(&self, name: &str) -> Option<u64> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.id())).ok()?;
        let line = status.lines().find_map(|line| line.strip_prefix(name))?;
        let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
        kib.checked_mul(1024)
    }

    /// How it ended and what it said; `None` while it runs. Waits for at most `limit`.
    pub fn ended_within(&self, limit: Duration) -> Option<String> {
        let how = self.child.ended_within(limit)?;
        Some(match self.child.telling_line() {
            Some(line) => format!("llama-server {how}: {line}"),
            None => format!("llama-server {how}"),
        })
    }

    /// Stops it: SIGTERM, and SIGKILL after 5 s. Its calls end with errors.
    pub fn stop(&self) {
        self.child.stop();
    }
}

fn command(options: &Options, address: SocketAddr, key: &Key) -> Command {
    let mut command = Command::new(&options.program);
    let total = options.context.saturating_mul(options.parallel);
    command
        .arg("--model")
        .arg(&options.model)
        .args(["--host", &address.ip().to_string()])
        .args(["--port", &address.port().to_string()])
        .args(["--n-gpu-layers", &options.gpu_layers.to_string()])
        // The server's number is of all sequences together.
        .args(["--ctx-size", &total.to_string()])
        .args(["--parallel", &options.parallel.to_string()])
        .arg("--no-webui");
    if let Some(threads) = options.threads {
        command.args(["--threads", &threads.to_string()]);
    }
    if let Some(kind) = &options.cache_type {
        command.args(["--cache-type-k", kind, "--cache-type-v", kind]);
        if kind == "q8_0" {
            // Quantised values need it.
            command.args(["--flash-attn", "on"]);
        }
    }
    command.args(&options.extra_args);
    for (name, value) in &options.environment {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    // Not an argument: those can be read by every user of the machine.
    command.env("LLAMA_API_KEY", key.expose());
    command
}

/// A port that the kernel says is free.
fn free_address() -> std::io::Result<SocketAddr> {
    TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()
}

/// A key that other users of the machine can't guess: from the randomness that the standard library keeps for its hash maps,
/// which is seeded by the system for every thread.
fn fresh_key() -> Key {
    use std::hash::{BuildHasher, Hasher};
    let piece = |number: u64| {
        let mut hasher = std::hash::RandomState::new().build_hasher();
        hasher.write_u64(number);
        hasher.finish()
    };
    Key::of_numbers([0, 1, 2, 3].map(piece))
}

/// Waits until it is ready; the error is `None` where the time is over.
fn wait_until_ready(
    child: &Child,
    client: &Client,
    program: String,
    over: &dyn Fn() -> bool,
) -> Result<(), Option<StartError>> {
    loop {
        if let Some(how) = child.ended_within(Duration::ZERO) {
            let line = child.telling_line();
            return Err(Some(StartError::Ended { program, how, line }));
        }
        let asked = Instant::now();
        match client.get("/health", &|| {
            over()
                || asked.elapsed() >= ANSWER_WITHIN
                || child.ended_within(Duration::ZERO).is_some()
        }) {
            Ok(_) => return Ok(()),
            Err(error @ HttpError::Answer(_)) => {
                return Err(Some(StartError::Strange(error.to_string())));
            }
            Err(_) => {}
        }
        if over() {
            return Err(None);
        }
        // Wakes at once when the server ends.
        child.ended_within(ASK_EVERY);
    }
}

/// Stops a server that was not ready in time.
fn given_up(child: &Child, limit: Duration) -> StartError {
    let line = child.telling_line();
    child.stop();
    let seconds = limit.as_secs();
    StartError::TimedOut { seconds, line }
}

/// Whether the server says that it has this model, as far as it says so.
fn is_model(properties: &Value, model: &Path) -> bool {
    match properties["model_path"].as_str() {
        Some(path) => Path::new(path) == model || model.to_str().is_none(),
        None => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options() -> Options {
        Options {
            program: "server".into(),
            model: "model.gguf".into(),
            gpu_layers: 999,
            context: 4096,
            parallel: 2,
            threads: Some(3),
            cache_type: Some("q8_0".into()),
            extra_args: vec!["--mlock".into()],
            environment: vec![
                ("HIP_VISIBLE_DEVICES".into(), Some("1".into())),
                ("ROCR_VISIBLE_DEVICES".into(), None),
            ],
            ready_within: Duration::from_secs(60),
        }
    }

    #[test]
    fn the_command_has_it_all() {
        let address = SocketAddr::from(([127, 0, 0, 1], 4711));
        let command = command(&options(), address, &Key::new("secret").unwrap());
        let arguments: Vec<_> = command
            .get_args()
            .filter_map(|word| word.to_str())
            .collect();
        assert_eq!(
            arguments.join(" "),
            "--model model.gguf --host 127.0.0.1 --port 4711 --n-gpu-layers 999 --ctx-size 8192 --parallel 2 --no-webui \
             --threads 3 --cache-type-k q8_0 --cache-type-v q8_0 --flash-attn on --mlock"
        );
        let environment: Vec<_> = command.get_envs().collect();
        assert!(environment.contains(&("HIP_VISIBLE_DEVICES".as_ref(), Some("1".as_ref()))));
        assert!(environment.contains(&("ROCR_VISIBLE_DEVICES".as_ref(), None)));
        assert!(environment.contains(&("LLAMA_API_KEY".as_ref(), Some("secret".as_ref()))));
    }

    #[test]
    fn keys_and_ports_differ() {
        assert_ne!(fresh_key().expose(), fresh_key().expose());
        assert_eq!(fresh_key().expose().len(), 64);
        let (a, b) = (free_address().unwrap(), free_address().unwrap());
        assert!(a.ip().is_loopback() && a.port() != 0 && b.port() != 0);
    }
}
