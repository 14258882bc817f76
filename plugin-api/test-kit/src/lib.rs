//! Conformance suite for Backplane plugins: the semantics of the contract as cases that run against any backend and a
//! model of its.
//!
//! ```no_run
//! use backplane_test_kit::{Options, run};
//! # fn check(backend: std::sync::Arc<dyn backplane_plugin_api::Backend>) {
//! let report = run(&backend, "model.gguf".as_ref(), &Options::default());
//! print!("{report}");
//! assert!(report.passed());
//! # }
//! ```
//!
//! A host opens the built module and hands its backend in; so the boundary is tested along with the engine. A case that
//! asks for something that the backend is free not to have (a tokenizer, a chat template) is *not applicable*, with the
//! reason; everything else passes or fails.

mod bench;
mod cases;

pub use bench::Options;

use backplane_plugin_api::Backend;
use bench::Bench;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Instant;

/// How a case ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "outcome", content = "detail", rename_all = "snake_case")]
pub enum Outcome {
    /// As the contract says.
    Passed,
    /// The backend is free not to have this, and has not: why.
    NotApplicable(String),
    /// Against the contract: what was found, what was expected.
    Failed(String),
}

/// What a case's function returns: `Err` is why it did not pass.
pub(crate) type Verdict = Result<(), Outcome>;

/// One property of the contract.
#[derive(Clone, Copy)]
pub struct Case {
    /// Its name, for reports and filters.
    pub name: &'static str,
    /// The property, in one line.
    pub about: &'static str,
    /// Whether it is about a model; the others are about the backend alone.
    pub needs_model: bool,
    check: fn(&Bench) -> Verdict,
}

impl fmt::Debug for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Case")
            .field("name", &self.name)
            .field("about", &self.about)
            .field("needs_model", &self.needs_model)
            .finish_non_exhaustive()
    }
}

/// A case and how it ended.
#[derive(Clone, Debug, Serialize)]
pub struct CaseResult {
    /// [`Case::name`].
    pub name: &'static str,
    /// [`Case::about`].
    pub about: &'static str,
    /// How it ended.
    #[serde(flatten)]
    pub outcome: Outcome,
    /// Seconds it took.
    pub seconds: f64,
}

/// How all cases ended. Prints for people; serialises for machines.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// The backend's name.
    pub backend: String,
    /// The backend's version.
    pub version: String,
    /// The model file.
    pub model: String,
    /// In the order of [`cases`].
    pub results: Vec<CaseResult>,
}

impl Report {
    /// Whether no case failed, and any passed.
    pub fn passed(&self) -> bool {
        self.failed().next().is_none()
            && self
                .results
                .iter()
                .any(|result| result.outcome == Outcome::Passed)
    }

    /// The cases that failed.
    pub fn failed(&self) -> impl Iterator<Item = &CaseResult> {
        self.results
            .iter()
            .filter(|result| matches!(result.outcome, Outcome::Failed(_)))
    }

    /// The report as JSON.
    ///
    /// # Errors
    /// None in practice: a report has nothing that JSON lacks.
    pub fn to_json(&self) -> serde_json::Result<String> {
        serde_json::to_string_pretty(self)
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{} {} with {}", self.backend, self.version, self.model)?;
        let (mut passed, mut failed, mut other) = (0, 0, 0);
        for result in &self.results {
            let milliseconds = result.seconds * 1e3;
            match &result.outcome {
                Outcome::Passed => {
                    passed += 1;
                    writeln!(f, "pass  {:<32} {milliseconds:>8.1} ms", result.name)?;
                }
                Outcome::NotApplicable(why) => {
                    other += 1;
                    writeln!(f, "n/a   {:<32} {milliseconds:>8.1} ms  {why}", result.name)?;
                }
                Outcome::Failed(what) => {
                    failed += 1;
                    writeln!(
                        f,
                        "FAIL  {:<32} {milliseconds:>8.1} ms  {what} [{}]",
                        result.name, result.about
                    )?;
                }
            }
        }
        writeln!(
            f,
            "{passed} passed, {failed} failed, {other} not applicable"
        )
    }
}

/// Every case, in the order in which they run.
pub fn cases() -> Vec<Case> {
    cases::all()
}

/// Runs every case that the options let through against a backend and a model of its.
pub fn run(backend: &Arc<dyn Backend>, model: &Path, options: &Options) -> Report {
    let suite = Suite::new(backend.clone(), Some(model), options.clone());
    let results = cases()
        .into_iter()
        .filter(|case| {
            options
                .only
                .as_ref()
                .is_none_or(|part| case.name.contains(part.as_str()))
        })
        .map(|case| suite.run(case))
        .collect();
    let text = |call: &dyn Fn() -> String| {
        catch_unwind(AssertUnwindSafe(call)).unwrap_or_else(|_| "?".to_owned())
    };
    Report {
        backend: text(&|| backend.name()),
        version: text(&|| backend.version()),
        model: model.display().to_string(),
        results,
    }
}

/// Runs cases one by one, for who wants to tell of each as it ends, or has no model. The model is loaded by the first case
/// that needs it, and kept for the others.
#[derive(Clone)]
pub struct Suite {
    bench: Arc<Bench>,
    has_model: bool,
}

impl fmt::Debug for Suite {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Suite")
            .field("model", &self.bench.path)
            .finish_non_exhaustive()
    }
}

impl Suite {
    /// The suite over a backend and, where there is one, a model of its.
    pub fn new(backend: Arc<dyn Backend>, model: Option<&Path>, options: Options) -> Self {
        let path = model.map(Path::to_path_buf).unwrap_or_default();
        Self {
            bench: Arc::new(Bench::new(backend, path, options)),
            has_model: model.is_some(),
        }
    }

    /// Runs a case. One that needs a model is not applicable where there is none; one that takes too long has failed, and
    /// its thread goes on.
    pub fn run(&self, case: Case) -> CaseResult {
        if case.needs_model && !self.has_model {
            return CaseResult {
                name: case.name,
                about: case.about,
                outcome: Outcome::NotApplicable("it needs a model".to_owned()),
                seconds: 0.0,
            };
        }
        run_case(case, &self.bench)
    }
}

/// Runs a case on a thread of its own: one that hangs is a failure, not the end of the run.
fn run_case(case: Case, bench: &Arc<Bench>) -> CaseResult {
    let start = Instant::now();
    let (send, receive) = channel();
    let theirs = bench.clone();
    std::thread::spawn(move || {
        let outcome = match catch_unwind(AssertUnwindSafe(|| (case.check)(&theirs))) {
            Ok(Ok(())) => Outcome::Passed,
            Ok(Err(outcome)) => outcome,
            Err(payload) => Outcome::Failed(format!(
                "a panic came out of the backend: {}",
                bench::panic_text(&*payload)
            )),
        };
        // Nobody listens any more when the case took too long.
        let _ = send.send(outcome);
    });
    let outcome = receive
        .recv_timeout(bench.options.time_limit)
        .unwrap_or_else(|error| match error {
            RecvTimeoutError::Timeout => Outcome::Failed(format!(
                "still running after {:?}",
                bench.options.time_limit
            )),
            RecvTimeoutError::Disconnected => {
                Outcome::Failed("the case's thread ended without an answer".to_owned())
            }
        });
    CaseResult {
        name: case.name,
        about: case.about,
        outcome,
        seconds: start.elapsed().as_secs_f64(),
    }
}
