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
//!   status and the last line of its standard error; so do later calls of its models. The next call of the backend starts
//!   a new worker. After three ends within five minutes the plugin is `quarantined` until the host ends.
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
#[cfg(all(unix, feature = "cli"))]
pub(crate) use imp::trial;

use crate::module_copy::ModuleCopy;
use backplane_plugin_api::sdk::{Backend, Context};
use backplane_plugin_api::types::Verdict;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

/// The argument that makes the program a worker.
pub const VERB: &str = "worker";

/// The environment variable that names the program that workers run.
pub const PROGRAM_VARIABLE: &str = "BACKPLANE_WORKER";

/// Time in which a worker opens its module, and answers a probe.
pub(crate) const TIME_LIMIT: Duration = Duration::from_secs(10);

/// Ends of workers within [`BUDGET_TIME`] after which no new one is started.
#[cfg(unix)]
const BUDGET: usize = 3;
#[cfg(unix)]
const BUDGET_TIME: Duration = Duration::from_secs(5 * 60);

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
}

/// Starts a worker.
pub(crate) fn start(spec: Spec) -> Start {
    imp::start(spec)
}
