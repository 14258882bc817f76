//! Trials: a child of the host that opens a module for its author, tells what it is, and runs the conformance suite on it.
//!
//! A trial is [`program`](super::super::program) with the one argument [`VERB`]. Its standard input is one end of a socket
//! pair: it reads one [`Order`], writes one [`Told`] a line, and ends when the socket does. What the module writes to
//! standard output and standard error is kept for messages. The host waits for each line only so long.

use super::message::Bytes;
use super::process::{self, Process};
use super::serve;
use crate::loader::{self, LoadRequest, TracingServices};
use backplane_plugin_api::capability::{CHECK, CONVERT};
use backplane_plugin_api::sdk::{Backend, Context};
use backplane_plugin_api::types::{DeviceInfo, Error, Verdict};
use backplane_test_kit::{Options, Outcome, Suite, cases};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The argument that makes the program a trial.
pub(crate) const VERB: &str = "trial";

/// Longest line that either side takes, in bytes.
const LONGEST: usize = 4 << 20;

/// Capabilities of the contract that a backend may offer; those of models need one.
const BACKEND_CAPABILITIES: &[&str] = &[CHECK, CONVERT];

/// What a trial is to do.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Order {
    module: Bytes,
    options: BTreeMap<String, serde_json::Value>,
    model: Option<Bytes>,
    cases: Vec<String>,
}

impl Order {
    /// To open a module with these options of its, and run these cases over a model, if it is available.
    pub(crate) fn new(
        module: &Path,
        options: &BTreeMap<String, serde_json::Value>,
        model: Option<&Path>,
        cases: Vec<String>,
    ) -> Self {
        Self {
            module: module.into(),
            options: options.clone(),
            model: model.map(Bytes::from),
            cases,
        }
    }
}

/// What a trial tells, in this order: opened or refused, the verdict, capabilities, each case, done.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum Told {
    /// The module is open.
    Opened(Opened),
    /// The loader refused it.
    Refused(Verdict),
    /// What its probe said, with its devices where it is available.
    Probed(Verdict, Result<Vec<DeviceInfo>, Error>),
    /// What its backend offers besides.
    Capabilities(Vec<String>),
    /// A case begins.
    Began(String),
    /// A case ended so, after so many seconds.
    Ended(String, Outcome, f64),
    /// That was all.
    Done,
}

/// What a module states of itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Opened {
    /// Its name.
    pub(crate) name: String,
    /// Its version.
    pub(crate) version: String,
    /// Version of the contract that it was built against.
    pub(crate) contract_version: String,
    /// The compiler that built it; empty for the C door.
    pub(crate) rustc: String,
}

/// A running trial, as the host has it. Dropping it ends it.
#[derive(Debug)]
pub(crate) struct Trial {
    process: Option<Process>,
    socket: UnixStream,
    read: Vec<u8>,
}

impl Trial {
    /// Starts one.
    ///
    /// # Errors
    /// The program does not start.
    pub(crate) fn start(program: &Path, plugin: &str, order: &Order) -> Result<Self, String> {
        let started = process::start_as(program, VERB, plugin);
        let (process, mut socket) = started
            .map_err(|error| format!("{}: {}", program.display(), crate::error::plain(&error)))?;
        let line = serde_json::to_string(order).map_err(|error| error.to_string())?;
        // A program that is gone already is noticed by its silence.
        let _ = socket.write_all(format!("{line}\n").as_bytes());
        Ok(Self {
            process: Some(process),
            socket,
            read: Vec::new(),
        })
    }

    /// The next that it tells.
    ///
    /// # Errors
    /// It ended, or told nothing in time and was ended: how, with the last line of its standard error.
    pub(crate) fn next(&mut self, limit: Duration) -> Result<Told, String> {
        let line = match self.line(limit) {
            Ok(line) => line,
            Err(how) => return Err(self.end(how)),
        };
        serde_json::from_slice(&line)
            .map_err(|_| self.end(Some("told what is no answer".to_owned())))
    }

    /// A line without its end. `None`: the socket ended; else why it was given up.
    fn line(&mut self, limit: Duration) -> Result<Vec<u8>, Option<String>> {
        let start = Instant::now();
        let mut seen = 0;
        loop {
            if let Some(at) = self.read[seen..].iter().position(|&byte| byte == b'\n') {
                let rest = self.read.split_off(seen + at + 1);
                let mut line = std::mem::replace(&mut self.read, rest);
                line.pop();
                return Ok(line);
            }
            seen = self.read.len();
            let late = || Some(format!("did not answer within {} s", limit.as_secs()));
            let left = limit.saturating_sub(start.elapsed());
            if left.is_zero() {
                return Err(late());
            }
            if seen > LONGEST {
                return Err(Some("told what is no answer".to_owned()));
            }
            let mut some = [0; 4096];
            let heard = self
                .socket
                .set_read_timeout(Some(left))
                .and_then(|()| self.socket.read(&mut some));
            match heard {
                Ok(0) => return Err(None),
                Ok(count) => self.read.extend_from_slice(&some[..count]),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error)
                    if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) =>
                {
                    return Err(late());
                }
                Err(_) => return Err(None),
            }
        }
    }

    fn end(&mut self, why: Option<String>) -> String {
        let _ = self.socket.shutdown(Shutdown::Both);
        match (self.process.take(), why) {
            (Some(process), Some(why)) => process.end_now(why),
            (Some(process), None) => process.end(),
            (None, why) => why.unwrap_or_else(|| "it has ended".to_owned()),
        }
    }
}

impl Drop for Trial {
    fn drop(&mut self) {
        if self.process.is_some() {
            // It was told that the host is gone: nothing of it is waited for.
            let _ = self.end(Some(String::new()));
        }
    }
}

/// Does what the host at the other end of standard input orders.
pub(crate) fn main() -> ExitCode {
    let socket = match serve::socket() {
        Ok(socket) => socket,
        Err(error) => {
            eprintln!("error: standard input is not the socket of a host: {error}");
            return ExitCode::from(2);
        }
    };
    let read = socket.try_clone().and_then(|reader| {
        let mut reader = BufReader::new(reader);
        let mut line = Vec::new();
        (&mut reader)
            .take(LONGEST as u64)
            .read_until(b'\n', &mut line)?;
        Ok((serde_json::from_slice::<Order>(&line)?, reader))
    });
    let Ok((order, mut reader)) = read else {
        return ExitCode::from(2);
    };
    // On a thread of its own, with a main thread's stack: this one is to notice the host's end whatever the module does.
    let worked = serve::thread(move || {
        let out = Out(socket);
        let told = work(order, &out);
        // Where that fails the host is gone.
        let _ = told.and_then(|()| out.tell(&Told::Done));
    });
    if worked.is_ok() {
        // Ends with the socket, at the host's end of it or, when all is told, at this one.
        let _ = reader.read_to_end(&mut Vec::new());
    }
    serve::leave(0)
}

struct Out(UnixStream);

impl Out {
    fn tell(&self, told: &Told) -> std::io::Result<()> {
        let line = serde_json::to_string(told)?;
        (&self.0).write_all(format!("{line}\n").as_bytes())
    }
}

fn work(order: Order, out: &Out) -> std::io::Result<()> {
    let module: PathBuf = order.module.into();
    let context = Context {
        options: order.options,
        module_dir: module.parent().unwrap_or(Path::new("")).to_path_buf(),
    };
    let request = LoadRequest {
        path: &module,
        context,
        sha256: None,
    };
    let services = TracingServices {
        plugin: module.display().to_string(),
    };
    let plugin = match loader::open(&request, Arc::new(services)) {
        Ok(plugin) => plugin,
        Err(verdict) => return out.tell(&Told::Refused(verdict)),
    };
    out.tell(&Told::Opened(Opened {
        name: plugin.name,
        version: plugin.version,
        contract_version: plugin.contract_version,
        rustc: plugin.rustc,
    }))?;
    let backend = plugin.backend;
    let verdict = backend.probe();
    let available = verdict.is_available();
    let devices = if available {
        backend.devices()
    } else {
        Ok(Vec::new())
    };
    out.tell(&Told::Probed(verdict, devices))?;
    out.tell(&Told::Capabilities(offered(&*backend)))?;
    if available {
        let model: Option<PathBuf> = order.model.map(PathBuf::from);
        let options = Options {
            // The host watches the time.
            time_limit: Duration::from_secs(24 * 60 * 60),
            ..Options::default()
        };
        let suite = Suite::new(backend, model.as_deref(), options);
        for case in cases() {
            if order.cases.iter().any(|wanted| wanted == case.name) {
                out.tell(&Told::Began(case.name.to_owned()))?;
                let result = suite.run(case);
                let name = result.name.to_owned();
                out.tell(&Told::Ended(name, result.outcome, result.seconds))?;
            }
        }
    }
    Ok(())
}

fn offered(backend: &dyn Backend) -> Vec<String> {
    let there = |name: &&&str| backend.capability(name).is_some();
    let names = BACKEND_CAPABILITIES.iter().filter(there);
    names.map(|name| (*name).to_owned()).collect()
}
