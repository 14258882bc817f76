//! Whether a module keeps the contract: its file, then in a child of the host its opening, its probe, and each case of the
//! conformance suite.
//!
//! A module that crashes or hangs in a case has failed it; the others are tried in a new child. After [`MOST_ENDS`] such
//! cases the rest is not run.

use super::{file, libraries};
use crate::error::{Error, Result};
use crate::loader;
use crate::worker;
use crate::worker::trial::{Opened, Order, Told, Trial};
use backplane_plugin_api::types::{Verdict, VerdictState};
use backplane_test_kit::{Case, Outcome};
use serde::Serialize;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Cases that may take their process down before the rest is given up.
const MOST_ENDS: usize = 3;

/// What is said of a child whose words make no sense.
const NO_ANSWER: &str = "its process told what is no answer";

/// How a check ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "outcome", content = "detail", rename_all = "snake_case")]
pub(crate) enum Ended {
    /// As it should be: what was found, where there is something to say.
    Passed(String),
    /// Not as it should be: what was found, what was expected.
    Failed(String),
    /// The plugin is free not to have this, or it can't be known here: why.
    NotApplicable(String),
    /// Not come to: why.
    NotRun(String),
}

/// One check.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Check {
    /// Its name; those of cases are the suite's.
    pub(crate) name: String,
    /// What it is about, in one line.
    pub(crate) about: String,
    /// How it ended.
    #[serde(flatten)]
    pub(crate) ended: Ended,
    /// Seconds it took.
    pub(crate) seconds: f64,
}

/// What it comes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Outline {
    /// Nothing failed.
    Passed,
    /// Something failed.
    Failed,
    /// Nothing failed, but the plugin is not available here, and was not tried.
    Unavailable,
}

impl Outline {
    /// 0, 5 (backend failed), 3 (no backend available).
    pub(crate) fn exit_code(self) -> u8 {
        match self {
            Self::Passed => 0,
            Self::Failed => 5,
            Self::Unavailable => 3,
        }
    }
}

/// What to validate, and how.
#[derive(Debug)]
pub(crate) struct Request<'a> {
    /// The module, links resolved.
    pub(crate) module: &'a Path,
    /// A model of its.
    pub(crate) model: Option<&'a Path>,
    /// The plugin's options.
    pub(crate) options: &'a BTreeMap<String, serde_json::Value>,
    /// The cases to run.
    pub(crate) cases: Vec<Case>,
    /// Longest that a case may take.
    pub(crate) time_limit: Duration,
    /// The program that is the child.
    pub(crate) program: PathBuf,
}

/// The module file of a path, links resolved.
///
/// # Errors
/// There is none: nothing, a folder, a pipe …
pub(crate) fn module_file(path: &Path) -> Result<PathBuf> {
    let usage =
        |what: String| Error::usage(format!("{}: {what}", path.display()), "name a module file");
    let metadata = std::fs::metadata(path).map_err(|error| usage(crate::error::plain(&error)))?;
    if metadata.is_dir() {
        return Err(usage("a folder; expected a module file".to_owned()));
    }
    if !metadata.is_file() {
        return Err(usage(
            "not a regular file; expected a module file".to_owned(),
        ));
    }
    path.canonicalize()
        .map_err(|error| usage(crate::error::plain(&error)))
}

/// The program for children that open modules.
///
/// # Errors
/// There is none.
pub(crate) fn program() -> Result<PathBuf> {
    worker::program().ok_or_else(|| {
        Error::usage(
            "there is no program `backplane` beside this one to open the module in",
            "put it there, or name it in BACKPLANE_WORKER",
        )
    })
}

/// Collects checks, telling each.
struct Checks<'t> {
    all: Vec<Check>,
    tell: &'t mut dyn FnMut(&Check),
    since: Instant,
}

impl Checks<'_> {
    fn add(&mut self, name: &str, about: &str, ended: Ended) {
        let seconds = self.since.elapsed().as_secs_f64();
        self.timed(name, about, ended, seconds);
    }

    fn timed(&mut self, name: &str, about: &str, ended: Ended, seconds: f64) {
        let check = Check {
            name: name.to_owned(),
            about: about.to_owned(),
            ended,
            seconds,
        };
        (self.tell)(&check);
        self.all.push(check);
        self.since = Instant::now();
    }

    fn not_run(&mut self, rows: &[(&str, &str)], why: &str) {
        for (name, about) in rows {
            self.timed(name, about, Ended::NotRun(why.to_owned()), 0.0);
        }
    }
}

const PERMISSIONS: (&str, &str) = (
    "permissions",
    "neither the file nor a folder above it can be written by everyone",
);
const FORMAT: (&str, &str) = ("format", "a whole shared library for this machine");
const SYMBOLS: (&str, &str) = ("symbols", "it exports one of the contract's symbols");
const LIBRARIES: (&str, &str) = (
    "libraries",
    "the libraries that it needs are on this machine",
);
const OPENS: (&str, &str) = (
    "opens",
    "it loads with all symbols bound, its contract and layout are this host's, and it makes a backend",
);
const PROBE: (&str, &str) = ("probe", "it says whether it can be used, in time");

/// Runs the checks in order, telling each as it ends.
pub(crate) fn validate(
    request: &Request<'_>,
    tell: &mut dyn FnMut(&Check),
) -> (Vec<Check>, Outline) {
    let mut checks = Checks {
        all: Vec::new(),
        tell,
        since: Instant::now(),
    };
    let cases: Vec<(&str, &str)> = request
        .cases
        .iter()
        .map(|case| (case.name, case.about))
        .collect();
    let unavailable = if looks_right(request.module, &mut checks) {
        tried(request, &mut checks)
    } else {
        let why = "the file is no module that could be opened";
        checks.not_run(&[OPENS, PROBE], why);
        checks.not_run(&cases, why);
        false
    };
    let failed = |check: &Check| matches!(check.ended, Ended::Failed(_));
    let outline = if checks.all.iter().any(failed) {
        Outline::Failed
    } else if unavailable {
        Outline::Unavailable
    } else {
        Outline::Passed
    };
    (checks.all, outline)
}

/// The checks of the file; whether it may be opened.
fn looks_right(module: &Path, checks: &mut Checks<'_>) -> bool {
    let verdict = |verdict: Verdict| Ended::Failed(refused(module, &verdict));
    let trusted = loader::check_trust(module);
    let may = trusted.is_ok();
    let ended = trusted.map_or_else(verdict, |_| Ended::Passed(String::new()));
    checks.add(PERMISSIONS.0, PERMISSIONS.1, ended);
    let format = loader::check_format(module);
    if let Err(why) = format {
        checks.add(FORMAT.0, FORMAT.1, verdict(why));
        checks.not_run(&[SYMBOLS, LIBRARIES], "the file can't be read as a module");
        return false;
    }
    let read = match file::read(module) {
        Ok(read) => read,
        Err(why) => {
            checks.add(FORMAT.0, FORMAT.1, Ended::Failed(why));
            checks.not_run(&[SYMBOLS, LIBRARIES], "the file can't be read as a module");
            return false;
        }
    };
    let found = format!(
        "{} for {}, {} bytes",
        read.format, read.architecture, read.size
    );
    checks.add(FORMAT.0, FORMAT.1, Ended::Passed(found));
    let ended = match read.door {
        Some(door) => Ended::Passed(door.words().to_owned()),
        None => Ended::Failed(format!(
            "not a Backplane plugin: of its {} exported symbols none is `{}` or `{}`",
            read.exported.len(),
            backplane_plugin_api::abi::ROOT_SYMBOL,
            backplane_plugin_api::c::SYMBOL
        )),
    };
    checks.add(SYMBOLS.0, SYMBOLS.1, ended);
    let glibc = read
        .glibc
        .map(|version| format!(", glibc {version} or newer"));
    let ended = match libraries::look(module, &read) {
        None => Ended::NotApplicable(
            "where this system looks for libraries is not known here; `opens` tells".to_owned(),
        ),
        Some(found) if !found.missing.is_empty() => {
            Ended::Failed(format!("not found: {}", found.missing.join(", ")))
        }
        Some(libraries::Found {
            older_glibc: Some(ours),
            ..
        }) => Ended::Failed(format!(
            "needs glibc {} or newer; this machine has {ours}",
            read.glibc
                .map(|version| version.to_string())
                .unwrap_or_default()
        )),
        Some(_) => Ended::Passed(format!(
            "{}{}",
            read.needed.join(", "),
            glibc.unwrap_or_default()
        )),
    };
    checks.add(LIBRARIES.0, LIBRARIES.1, ended);
    may && read.door.is_some()
}

/// Why the loader refused a module, in one line, without the file's name, which heads the report.
fn refused(module: &Path, verdict: &Verdict) -> String {
    let head = format!("{}: ", module.display());
    let what = verdict.message.strip_prefix(&head);
    let what = what.unwrap_or(&verdict.message);
    if verdict.action.is_empty() {
        what.to_owned()
    } else {
        format!("{what} ({})", verdict.action)
    }
}

/// The checks in children; whether the plugin is not available here.
fn tried(request: &Request<'_>, checks: &mut Checks<'_>) -> bool {
    let rows = |cases: &[Case]| -> Vec<(&'static str, &'static str)> {
        cases.iter().map(|case| (case.name, case.about)).collect()
    };
    let mut left = request.cases.clone();
    let mut ends = 0;
    loop {
        let first = ends == 0;
        let mut trial = match opened(request, &left) {
            Ok((trial, opened, verdict)) => {
                if first {
                    checks.add(OPENS.0, OPENS.1, Ended::Passed(stated(&opened)));
                    let unavailable = probed(&verdict, checks);
                    if unavailable.is_some() {
                        let why = "the plugin is not available here";
                        checks.not_run(&rows(&left), why);
                        return unavailable == Some(true);
                    }
                }
                trial
            }
            Err((check, how)) => {
                // It was open before, so that this is the case's doing, or the module is not the same each time.
                let (name, about) = if check == OPENS.0 { OPENS } else { PROBE };
                if first {
                    if name == PROBE.0 {
                        checks.add(OPENS.0, OPENS.1, Ended::Passed(String::new()));
                    }
                    checks.add(name, about, Ended::Failed(how));
                    if name == OPENS.0 {
                        checks.not_run(&[PROBE], "the module does not open");
                    }
                    checks.not_run(&rows(&left), "the plugin could not be asked");
                } else {
                    let why = format!("the module opened before and now does not: {how}");
                    checks.not_run(&rows(&left), &why);
                }
                return false;
            }
        };
        let Some(how) = run(&mut trial, request, &mut left, checks) else {
            return false;
        };
        // The case that ran, or that would have been next.
        let case = left.remove(0);
        checks.add(case.name, case.about, Ended::Failed(how));
        ends += 1;
        if ends == MOST_ENDS {
            let why = format!("{MOST_ENDS} cases took the plugin's process down");
            checks.not_run(&rows(&left), &why);
            return false;
        }
        if left.is_empty() {
            return false;
        }
    }
}

/// Runs the cases that are left and takes them off; how the child ended in the first of those that stay, if it did.
fn run(
    trial: &mut Trial,
    request: &Request<'_>,
    left: &mut Vec<Case>,
    checks: &mut Checks<'_>,
) -> Option<String> {
    while let Some(case) = left.first().copied() {
        match trial.next(worker::TIME_LIMIT) {
            Ok(Told::Began(name)) if name == case.name => {}
            Ok(_) => return Some(NO_ANSWER.to_owned()),
            Err(how) => return Some(format!("its process {how}")),
        }
        match trial.next(request.time_limit) {
            Ok(Told::Ended(name, outcome, seconds)) if name == case.name => {
                let ended = match outcome {
                    Outcome::Passed => Ended::Passed(String::new()),
                    Outcome::Failed(what) => Ended::Failed(what),
                    Outcome::NotApplicable(why) => Ended::NotApplicable(why),
                };
                checks.timed(case.name, case.about, ended, seconds);
                left.remove(0);
            }
            Ok(_) => return Some(NO_ANSWER.to_owned()),
            Err(how) => return Some(format!("its process {how}")),
        }
    }
    None
}

/// What a module states, for people.
fn stated(opened: &Opened) -> String {
    let by = if opened.rustc.is_empty() {
        String::new()
    } else {
        format!(", built by {}", opened.rustc)
    };
    format!(
        "{} {}, contract {}{by}",
        opened.name, opened.version, opened.contract_version
    )
}

/// Adds the check of the probe. `None`: the plugin is available; else whether that is no fault of its.
fn probed(verdict: &Verdict, checks: &mut Checks<'_>) -> Option<bool> {
    let text = verdict.to_string();
    let (ended, unavailable) = match verdict.state {
        VerdictState::Available => (Ended::Passed(text), None),
        VerdictState::Crashed => (Ended::Failed(text), Some(false)),
        _ => (Ended::NotApplicable(text), Some(true)),
    };
    checks.add(PROBE.0, PROBE.1, ended);
    unavailable
}

/// Starts a child and has it open the module and probe it. An error names the check, and says how it failed.
fn opened(
    request: &Request<'_>,
    cases: &[Case],
) -> std::result::Result<(Trial, Opened, Verdict), (&'static str, String)> {
    let names = cases.iter().map(|case| case.name.to_owned()).collect();
    let order = Order::new(request.module, request.options, request.model, names);
    let plugin = request.module.display().to_string();
    let in_open = |how: String| (OPENS.0, how);
    let mut trial = Trial::start(&request.program, &plugin, &order).map_err(in_open)?;
    let opened = match trial.next(worker::TIME_LIMIT) {
        Ok(Told::Opened(opened)) => opened,
        Ok(Told::Refused(verdict)) => return Err(in_open(refused(request.module, &verdict))),
        Ok(_) => return Err(in_open(NO_ANSWER.to_owned())),
        Err(how) => return Err(in_open(format!("its process {how}"))),
    };
    let in_probe = |how: String| (PROBE.0, how);
    let verdict = match trial.next(worker::TIME_LIMIT) {
        Ok(Told::Probed(verdict, Ok(_))) => verdict,
        Ok(Told::Probed(_, Err(error))) => {
            return Err(in_probe(format!("its devices can't be read: {error}")));
        }
        Ok(_) => return Err(in_probe(NO_ANSWER.to_owned())),
        Err(how) => return Err(in_probe(format!("its process {how}"))),
    };
    match trial.next(worker::TIME_LIMIT) {
        Ok(Told::Capabilities(_)) => Ok((trial, opened, verdict)),
        Ok(_) => Err(in_probe(NO_ANSWER.to_owned())),
        Err(how) => Err(in_probe(format!("its process {how}"))),
    }
}

/// What a child could tell of a module.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Asked {
    /// What it states.
    #[serde(flatten)]
    pub(crate) opened: Opened,
    /// What its probe says.
    pub(crate) verdict: Verdict,
    /// What its backend offers besides.
    pub(crate) capabilities: Vec<String>,
}

/// Has a child open a module and ask it.
///
/// # Errors
/// It can't be opened: why, in one line.
pub(crate) fn ask(module: &Path, program: &Path) -> std::result::Result<Asked, String> {
    let order = Order::new(module, &BTreeMap::new(), None, Vec::new());
    let plugin = module.display().to_string();
    let mut trial = Trial::start(program, &plugin, &order)?;
    let opened = match trial.next(worker::TIME_LIMIT) {
        Ok(Told::Opened(opened)) => opened,
        Ok(Told::Refused(verdict)) => return Err(refused(module, &verdict)),
        Ok(_) => return Err(NO_ANSWER.to_owned()),
        Err(how) => return Err(format!("its process {how}")),
    };
    let fallen = |how: String| Verdict::unavailable(VerdictState::Crashed, how, "");
    let verdict = match trial.next(worker::TIME_LIMIT) {
        Ok(Told::Probed(verdict, _)) => verdict,
        Ok(_) => fallen(NO_ANSWER.to_owned()),
        Err(how) => fallen(format!("its process {how}")),
    };
    let capabilities = match trial.next(worker::TIME_LIMIT) {
        Ok(Told::Capabilities(offered)) => offered,
        _ => Vec::new(),
    };
    Ok(Asked {
        opened,
        verdict,
        capabilities,
    })
}
