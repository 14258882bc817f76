//! Which backend runs a model, and why.
//!
//! A pinned backend is the only one tried. Otherwise the names of the order are tried in turn; `*` stands for every
//! other one, in name order; a backend that the order does not reach is never chosen. A preferred backend that is there
//! but can't be used, or can't run the model, is a *fall*: the policy says whether the next one may be tried. One that
//! is absent, disabled, or does not take the file's format is passed over without a fall.
//!
//! Invariant: this module opens nothing; it asks through [`Attempt`].

use crate::manifest::{Fallback, normal_name};
use backplane_plugin_api::types::{Error, ErrorCode, ModelInfo, Verdict, VerdictState};
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// What became of a candidate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// It runs the model.
    Chosen,
    /// It was asked, or looked at, and lost.
    Lost,
    /// Its turn never came.
    NotTried,
}

/// One candidate of a selection.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CandidateTrace {
    /// Its name.
    pub name: String,
    /// Its version, where it was opened.
    pub version: Option<String>,
    /// Its module, where there is one.
    #[serde(serialize_with = "crate::lossy::option")]
    pub path: Option<PathBuf>,
    /// What it says of itself.
    pub verdict: Verdict,
    /// Its place in the order, from 1; `None` where the order does not reach it.
    pub rank: Option<usize>,
    /// What became of it.
    pub outcome: Outcome,
    /// Why.
    pub reason: String,
}

/// The record of a selection: the same in `plugins explain`, in logs and in replies.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Trace {
    /// The model it was for; `None` where only availability was asked.
    #[serde(serialize_with = "crate::lossy::option")]
    pub model: Option<PathBuf>,
    /// The backend that the caller pinned.
    pub pinned: Option<String>,
    /// The order of preference.
    pub order: Vec<String>,
    /// The policy in force; a pin implies `deny`.
    pub fallback: Fallback,
    /// Every candidate, in the order in which they are tried.
    pub candidates: Vec<CandidateTrace>,
    /// The one chosen.
    pub chosen: Option<String>,
    /// What the user should know: a preferred backend was passed over.
    pub notice: Option<String>,
}

/// A candidate as selection sees it.
#[derive(Clone, Debug)]
pub struct Candidate {
    /// Its name.
    pub name: String,
    /// Its version, where it was opened.
    pub version: Option<String>,
    /// Its module, where there is one.
    pub path: Option<PathBuf>,
    /// What it says of itself.
    pub verdict: Verdict,
}

/// What a backend says to a model.
#[derive(Debug)]
pub enum Attempt<T> {
    /// It runs it.
    Taken(T),
    /// Not a format of this backend.
    OtherFormat,
    /// It does not offer the capability of that name.
    Lacks(String),
    /// Its format, but it can't run this one: why.
    Unsupported(String),
    /// Its format, but the file is broken.
    Broken(Error),
    /// Loading failed.
    Failed(Error),
}

impl<T> Attempt<T> {
    /// From the answer of `inspect`; `Ok` where the model may be loaded.
    ///
    /// # Errors
    /// The attempt is lost, as the error says.
    pub fn from_inspection(answer: Result<Option<ModelInfo>, Error>) -> Result<ModelInfo, Self> {
        match answer {
            Ok(None) => Err(Self::OtherFormat),
            Ok(Some(ModelInfo {
                unsupported: Some(why),
                ..
            })) => Err(Self::Unsupported(why)),
            Ok(Some(info)) => Ok(info),
            // A worker that ended says nothing of the file.
            Err(error) if error.code == ErrorCode::Device => Err(Self::Failed(error)),
            Err(error) => Err(Self::Broken(error)),
        }
    }
}

/// Why nothing was chosen.
#[derive(Debug)]
pub enum Failure {
    /// No candidate was available, or the policy forbade to go on: one line.
    NoBackend(String),
    /// Available ones were there, but none can use the model: one line.
    Model(String),
    /// The backend of that name failed, and nothing took the model after it.
    Backend(String, Error),
}

/// What was found out on the way, for the message where nothing is chosen.
#[derive(Default)]
struct Losses {
    falls: Vec<String>,
    broken: Option<String>,
    failed: Option<(String, Error)>,
    unsupported: Option<String>,
    other_format: bool,
    /// Those that lack the capability, and its name.
    lacking: Vec<String>,
    capability: String,
}

impl Losses {
    /// Notes why a candidate lost; gives the reason, and whether that is a fall.
    fn note<T>(&mut self, name: &str, attempt: Attempt<T>) -> Result<T, (String, bool)> {
        match attempt {
            Attempt::Taken(value) => Ok(value),
            Attempt::OtherFormat => {
                self.other_format = true;
                Err(("does not take this format".to_owned(), false))
            }
            Attempt::Lacks(capability) => {
                let reason = format!("does not offer `{capability}`");
                self.lacking.push(format!("`{name}`"));
                self.capability = capability;
                Err((reason, false))
            }
            Attempt::Unsupported(why) => {
                self.unsupported
                    .get_or_insert_with(|| format!("{name}: {why}"));
                Err((format!("can't run this model: {why}"), true))
            }
            Attempt::Broken(error) => {
                self.broken
                    .get_or_insert_with(|| format!("{name}: {error}"));
                Err((format!("can't read the file: {error}"), false))
            }
            Attempt::Failed(error) => {
                let reason = format!("loading failed: {error}");
                let fall = !callers_fault(&error);
                self.failed.get_or_insert((name.to_owned(), error));
                Err((reason, fall))
            }
        }
    }

    fn failure(self, trace: &Trace) -> Failure {
        if let Some((name, error)) = self.failed {
            return Failure::Backend(name, error);
        }
        if let Some(why) = self.broken.or(self.unsupported) {
            return Failure::Model(why);
        }
        if !self.lacking.is_empty() && !self.other_format {
            let (what, who) = (&self.capability, self.lacking.join(", "));
            let unusable = unusable(trace);
            return Failure::NoBackend(match &trace.pinned {
                Some(pin) => format!("the pinned backend `{pin}` does not offer `{what}`"),
                None => format!("no available backend offers `{what}`, asked: {who}{unusable}"),
            });
        }
        if let (Some(pin), false) = (&trace.pinned, self.other_format) {
            let found = trace
                .candidates
                .iter()
                .find(|candidate| candidate.name == *pin);
            let verdict = found.map_or("not there".to_owned(), |found| found.verdict.to_string());
            return Failure::NoBackend(format!(
                "the pinned backend `{pin}` can't be used: {verdict}"
            ));
        }
        if let (Fallback::Deny, Some(fall)) = (trace.fallback, self.falls.first()) {
            return Failure::NoBackend(format!("{fall}; fallback = \"deny\" forbids another"));
        }
        if self.other_format {
            let path = trace
                .model
                .as_ref()
                .map_or(String::new(), |path| format!("{}: ", path.display()));
            let unusable = unusable(trace);
            let found = trace.model.as_deref().map_or(String::new(), |path| {
                format!("{}; ", crate::catalog::describe(path))
            });
            let who = match &trace.pinned {
                Some(pin) => format!("the pinned backend `{pin}` does not take it"),
                None if !self.lacking.is_empty() => {
                    let (what, who) = (&self.capability, self.lacking.join(", "));
                    format!(
                        "no available backend that offers `{what}` takes this format; not offered by {who}"
                    )
                }
                None => "no available backend takes this format".to_owned(),
            };
            return Failure::Model(format!("{path}{found}{who}{unusable}"));
        }
        let (missing, there): (Vec<_>, Vec<_>) = trace
            .candidates
            .iter()
            .partition(|candidate| is_missing(candidate));
        let mut why: Vec<String> = there
            .iter()
            .map(|candidate| match candidate.verdict.is_available() {
                true => format!("`{}`: {}", candidate.name, candidate.reason),
                false => format!("`{}`: {}", candidate.name, candidate.verdict),
            })
            .collect();
        if !missing.is_empty() {
            let names: Vec<String> = missing
                .iter()
                .map(|candidate| match candidate.verdict.action.as_str() {
                    meant if meant.starts_with("did you mean") => {
                        format!("{} ({meant})", candidate.name)
                    }
                    _ => candidate.name.clone(),
                })
                .collect();
            why.push(format!("not installed: {}", names.join(", ")));
        }
        let why = if why.is_empty() {
            "no plugin is installed".to_owned()
        } else {
            why.join("; ")
        };
        Failure::NoBackend(format!("no backend is available: {why}"))
    }
}

/// Whether there is no module of its name. One that was opened may call itself absent, with its own reason.
fn is_missing(candidate: &CandidateTrace) -> bool {
    let there = candidate.path.is_some() || candidate.version.is_some();
    candidate.verdict.state == VerdictState::Absent && !there
}

/// Those that are there but can't be used: one of them may well be what takes the model.
fn unusable(trace: &Trace) -> String {
    trace
        .candidates
        .iter()
        .filter(|candidate| candidate.rank.is_some() && is_fall(&candidate.verdict))
        .map(|candidate| format!("; `{}`: {}", candidate.name, candidate.verdict))
        .collect()
}

/// Whether a plugin is there but can't be used, so that going on to another is a fall.
fn is_fall(verdict: &Verdict) -> bool {
    !matches!(
        verdict.state,
        VerdictState::Available | VerdictState::Absent | VerdictState::Disabled
    )
}

/// Options that one backend refuses are not tried on the next: they were meant.
fn callers_fault(error: &Error) -> bool {
    matches!(
        error.code,
        ErrorCode::InvalidRequest | ErrorCode::UnsupportedField
    )
}

/// Chooses. `attempt` is called for available candidates only, in order, until one takes the model. The trace is given
/// whether or not one was chosen; where none was, it says why for each.
pub fn choose<T>(
    candidates: Vec<Candidate>,
    order: &[String],
    pinned: Option<&str>,
    fallback: Fallback,
    model: Option<PathBuf>,
    mut attempt: impl FnMut(&Candidate) -> Attempt<T>,
) -> (Trace, Result<T, Failure>) {
    let mut trace = Trace {
        model,
        pinned: pinned.map(normal_name),
        order: order.to_vec(),
        fallback: if pinned.is_some() {
            Fallback::Deny
        } else {
            fallback
        },
        candidates: Vec::new(),
        chosen: None,
        notice: None,
    };
    let mut losses = Losses::default();
    let mut denied: Option<String> = None;
    let mut won: Option<T> = None;
    for (candidate, rank) in ranked(candidates, order, pinned) {
        let (outcome, reason, fall) = if rank.is_none() {
            let why = if pinned.is_some() {
                "another backend is pinned"
            } else {
                "the order does not reach it"
            };
            (Outcome::NotTried, why.to_owned(), false)
        } else if let Some(winner) = &trace.chosen {
            (
                Outcome::NotTried,
                format!("`{winner}` comes before it"),
                false,
            )
        } else if let Some(cause) = &denied {
            (Outcome::NotTried, cause.clone(), false)
        } else if !candidate.verdict.is_available() {
            (
                Outcome::Lost,
                candidate.verdict.to_string(),
                // What `*` stands for was preferred by nobody: a file that is no plugin at all is no fall there.
                is_fall(&candidate.verdict)
                    && (pinned.is_some()
                        || order.contains(&candidate.name)
                        || candidate.verdict.state != VerdictState::Incompatible),
            )
        } else {
            match losses.note(&candidate.name, attempt(&candidate)) {
                Ok(value) => {
                    won = Some(value);
                    trace.chosen = Some(candidate.name.clone());
                    let why = if pinned.is_some() {
                        "pinned by the caller"
                    } else {
                        "first in the order that can run it"
                    };
                    (Outcome::Chosen, why.to_owned(), false)
                }
                Err((reason, fall)) => (Outcome::Lost, reason, fall),
            }
        };
        if fall {
            losses
                .falls
                .push(format!("`{}` is preferred, but {reason}", candidate.name));
            if trace.fallback == Fallback::Deny {
                denied = Some(format!(
                    "`{}` lost, and fallback = \"deny\"",
                    candidate.name
                ));
            }
        } else if losses
            .failed
            .as_ref()
            .is_some_and(|(name, error)| *name == candidate.name && callers_fault(error))
        {
            denied = Some(format!(
                "`{}` refused the options of the call",
                candidate.name
            ));
        }
        trace.candidates.push(CandidateTrace {
            name: candidate.name,
            version: candidate.version,
            path: candidate.path,
            verdict: candidate.verdict,
            rank,
            outcome,
            reason,
        });
    }
    let Some(value) = won else {
        let failure = losses.failure(&trace);
        return (trace, Err(failure));
    };
    if !losses.falls.is_empty() {
        let name = trace.chosen.as_deref().unwrap_or_default();
        trace.notice = Some(format!(
            "{}; using `{name}` instead",
            losses.falls.join("; ")
        ));
    }
    (trace, Ok(value))
}

/// Candidates in the order in which they are tried, those that are not reached last.
fn ranked(
    candidates: Vec<Candidate>,
    order: &[String],
    pinned: Option<&str>,
) -> Vec<(Candidate, Option<usize>)> {
    let pin = pinned.map(normal_name);
    let star = order.iter().position(|name| name == "*");
    let place = |candidate: &Candidate| match &pin {
        Some(pin) => (candidate.name == *pin).then_some(0),
        None => order
            .iter()
            .position(|name| *name == candidate.name)
            .or(star),
    };
    let mut placed: Vec<_> = candidates
        .into_iter()
        .map(|candidate| (place(&candidate), candidate))
        .collect();
    placed.sort_by(|(a, x), (b, y)| {
        let key = |place: &Option<usize>| place.unwrap_or(usize::MAX);
        key(a).cmp(&key(b)).then_with(|| x.name.cmp(&y.name))
    });
    let with_rank = |(index, (place, candidate)): (usize, (Option<usize>, Candidate))| {
        (candidate, place.map(|_| index + 1))
    };
    placed.into_iter().enumerate().map(with_rank).collect()
}

#[cfg(test)]
mod tests;
