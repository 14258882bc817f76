//! Worker processes: children of the host in which a plugin's crash is an error and nothing else.
//!
//! Every module is first opened and probed in a worker, so that one that crashes then is never opened in the host. A
//! plugin with `isolation = "process"` stays there: the same module runs behind the same traits, with these differences:
//!
//! * of its capabilities those of the contract are there, each call asking the plugin's own object in the worker; others are
//!   `None`, being objects of one process; those of a worker that has ended err, and are to be asked for again;
//! * it may be up to 64 events ahead of the consumer; what a consumer that stopped did not take is not told, and the end
//!   is as the consumer saw it;
//! * when the worker ends, the calls in it err as [`Device`](backplane_plugin_api::ErrorCode::Device) with the signal or
//!   status and the last lines of its standard error; so do later calls of its models. The next call of the backend starts
//!   a new worker, after a pause that grows. After three ends within ten minutes, in whichever hosts, the plugin is
//!   `quarantined` until `plugins clear`, or until its module, devices or driver are others;
//! * a worker that is hung ([`Watchdog`](crate::manifest::Watchdog)) or holds more than its `memory_limit` is ended, which
//!   is an end like others;
//! * what it started ends with it.
//!
//! A worker is [`program`] with the one argument [`VERB`]. Its standard input is one end of a socket pair, on which both
//! sides send length-prefixed JSON; standard output and standard error go into the lines kept for messages. It ends when
//! the socket does, so that it outlives no host, however that one ends.
//!
//! Workers need Unix and a program to run. Where there is none, modules are opened and probed in this process, and
//! `isolation = "process"` is refused.
//!
//! Invariant: nothing here opens a module in the host's process.

#[cfg(not(unix))]
#[path = "elsewhere.rs"]
mod imp;
#[cfg(unix)]
#[path = "unix.rs"]
mod imp;
mod limits;
mod quarantine;

#[cfg(all(unix, feature = "cli"))]
pub(crate) use imp::trial;
pub(crate) use limits::{Limits, memory_refused, needs_process};
pub(crate) use quarantine::Records;
pub use quarantine::{Crash, Record, Subject};

use crate::module_copy::ModuleCopy;
use backplane_plugin_api::sdk::{Backend, Context};
use backplane_plugin_api::types::{DeviceInfo, Verdict};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, SystemTime};

/// The argument that makes the program a worker.
pub const VERB: &str = "worker";

/// The environment variable that names the program that workers run.
pub const PROGRAM_VARIABLE: &str = "BACKPLANE_WORKER";

/// Time in which a module is opened, and answers a probe, where nothing else is said.
pub(crate) const TIME_LIMIT: Duration = Duration::from_secs(10);

/// The same where there is to be no limit: longer than anybody waits.
pub(crate) const NO_LIMIT: Duration = Duration::from_secs(365 * 24 * 3600);

/// Ends of workers within [`BUDGET_TIME`] after which no new one is started.
const BUDGET: usize = 3;
const BUDGET_TIME: Duration = Duration::from_secs(10 * 60);

/// Time before a worker is started again after the first end; four times as long after each further one, up to 64 times.
#[cfg(unix)]
const PAUSE: Duration = Duration::from_millis(100);

/// The program that workers run: that of [`PROGRAM_VARIABLE`]; else this very program, if it is named `backplane`; else
/// `backplane` beside it. `None` where there is no such file.
///
/// A program that embeds the library may be its own worker: it names itself in the variable, and calls [`main`] when its
/// one argument is [`VERB`].
pub fn program() -> Option<PathBuf> {
    if let Some(named) = std::env::var_os(PROGRAM_VARIABLE).filter(|named| !named.is_empty()) {
        return Some(named.into());
    }
    let own = std::env::current_exe().ok()?;
    if own.file_stem().is_some_and(|stem| stem == "backplane") {
        return Some(own);
    }
    let beside = own.with_file_name(format!("backplane{}", std::env::consts::EXE_SUFFIX));
    beside.is_file().then_some(beside)
}

/// Serves the host at the other end of standard input, until it closes. Gives 2 where standard input is no such socket.
pub fn main() -> ExitCode {
    imp::main()
}

/// Which module a worker opens, and how.
#[derive(Clone, Debug)]
#[cfg_attr(not(unix), allow(dead_code))]
pub(crate) struct Spec {
    /// The program that is the worker.
    pub(crate) program: PathBuf,
    /// The plugin's name, for messages.
    pub(crate) plugin: String,
    /// The module.
    pub(crate) path: PathBuf,
    /// What its backend is made with.
    pub(crate) context: Context,
    /// The SHA-256 that it must have.
    pub(crate) sha256: Option<String>,
    /// What is opened instead of the file itself: a copy, which later changes don't reach.
    pub(crate) copy: Option<ModuleCopy>,
    /// Time in which it is opened, and answers a probe.
    pub(crate) time_limit: Duration,
    /// What it may take.
    pub(crate) limits: Limits,
    /// Where its crashes are remembered.
    pub(crate) records: Option<Records>,
    /// The module as it is now.
    pub(crate) identity: Identity,
}

/// Which file a module is, told apart from one that takes its place later.
#[derive(Clone, Debug)]
#[cfg_attr(not(unix), allow(dead_code))]
pub(crate) struct Identity {
    path: PathBuf,
    /// Its length and when it was changed; `None` where the system does not say.
    stamp: Option<(u64, SystemTime)>,
    sha256: OnceLock<Option<String>>,
}

#[cfg_attr(not(unix), allow(dead_code))]
impl Identity {
    /// Of the file that is there now.
    pub(crate) fn of(path: &Path) -> Self {
        Self {
            path: path.to_path_buf(),
            stamp: stamp(path),
            sha256: OnceLock::new(),
        }
    }

    /// Its SHA-256; `None` where another file is there by now.
    fn sha256(&self) -> Option<String> {
        let hash = || {
            let before = self.stamp.filter(|_| stamp(&self.path) == self.stamp);
            before.and_then(|_| crate::loader::sha256_hex(&self.path).ok())
        };
        self.sha256.get_or_init(hash).clone()
    }
}

fn stamp(path: &Path) -> Option<(u64, SystemTime)> {
    let metadata = std::fs::metadata(path).ok()?;
    Some((metadata.len(), metadata.modified().ok()?))
}

/// How the start of a worker went.
#[cfg_attr(not(unix), allow(dead_code))]
pub(crate) enum Start {
    /// Its module is open.
    Worker(Arc<dyn Isolated>),
    /// The module was refused, or crashed.
    Refused(Verdict),
    /// The program is no worker: why.
    NoProgram(String),
}

/// A backend in a worker.
pub(crate) trait Isolated: Backend {
    /// Version of the contract that the module was built against.
    fn contract_version(&self) -> String;
    /// The verdict that a crash has brought; `None` where the worker runs.
    fn fallen(&self) -> Option<Verdict>;
    /// The verdict once too many crashes have brought it.
    fn quarantined(&self) -> Option<Verdict>;
    /// Says on which devices it runs: crashes on others don't count. Gives the verdict that an earlier host left.
    fn runs_on(&self, devices: &[DeviceInfo]) -> Option<Verdict>;
}

/// Starts a worker.
pub(crate) fn start(spec: Spec) -> Start {
    imp::start(spec)
}
