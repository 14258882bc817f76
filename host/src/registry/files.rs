//! What backends do with model files besides running them: checks and conversions.

use super::{ModelOptions, Registry};
use crate::error::{Error, Result};
use crate::selection::{Attempt, Candidate, Outcome, Trace, choose};
use backplane_plugin_api::capability::{self, CHECK, CONVERT};
use backplane_plugin_api::sdk::Backend;
use backplane_plugin_api::types;
use backplane_plugin_api::{ConvertOptions, ConvertReport, Finding, Progress};
use std::path::{Path, PathBuf};

/// What is wrong with a model, and who says so.
#[derive(Clone, Debug, PartialEq)]
pub struct Checked {
    /// The model's file or folder.
    pub path: PathBuf,
    /// In the order of the file; empty where nothing is wrong.
    pub findings: Vec<Finding>,
    /// The backend that checked it.
    pub backend: String,
    /// How it was chosen.
    pub trace: Trace,
}

/// What was written, and by whom.
#[derive(Clone, Debug, PartialEq)]
pub struct Converted {
    /// The source's file or folder.
    pub path: PathBuf,
    /// What was written.
    pub report: ConvertReport,
    /// The backend that wrote it.
    pub backend: String,
    /// How it was chosen.
    pub trace: Trace,
}

impl Registry {
    /// Reads a model's weights and says what is wrong with them. The backend is chosen as by [`Registry::load`], among
    /// those that offer `check/1`; a model that it can't run may be checked all the same.
    ///
    /// # Errors
    /// The model is not there, no backend that offers the check takes it, or the check failed or was stopped.
    pub fn check(
        &self,
        model: &str,
        options: &ModelOptions,
        progress: &mut dyn Progress,
    ) -> Result<Checked> {
        let (path, trace, check) = self.offering(model, options, CHECK, capability::check)?;
        let (backend, trace) = chosen(trace);
        match check.check(&path, progress) {
            Ok(findings) => Ok(Checked {
                path,
                findings,
                backend,
                trace,
            }),
            Err(error) => Err(Error::Backend { backend, error }),
        }
    }

    /// Writes a model to `destination` in the file format of the backend, which is chosen as by [`Registry::load`], among
    /// those that offer `convert/1`.
    ///
    /// # Errors
    /// The model is not there, no backend that offers conversion takes it, or the conversion failed or was stopped; then
    /// nothing new is at the destination.
    pub fn convert(
        &self,
        model: &str,
        destination: &Path,
        convert: &ConvertOptions,
        options: &ModelOptions,
        progress: &mut dyn Progress,
    ) -> Result<Converted> {
        let (path, trace, object) = self.offering(model, options, CONVERT, capability::convert)?;
        let (backend, trace) = chosen(trace);
        match object.convert(&path, destination, convert, progress) {
            Ok(report) => Ok(Converted {
                path,
                report,
                backend,
                trace,
            }),
            Err(error) => Err(Error::Backend { backend, error }),
        }
    }

    /// The capability of the first backend in the order that offers it and takes the model.
    fn offering<T>(
        &self,
        model: &str,
        options: &ModelOptions,
        name: &'static str,
        take: impl Fn(&dyn Backend) -> std::result::Result<Option<T>, types::Error>,
    ) -> Result<(PathBuf, Trace, T)> {
        let path = self.catalog().resolve(model)?;
        let look = self.look();
        let pinned = look.pinned(options)?;
        let fallback = look.fallback(options);
        let ask = |candidate: &Candidate| {
            let Some(backend) = look.backend(&candidate.name) else {
                return Attempt::OtherFormat;
            };
            let object = match take(backend.as_ref()) {
                Ok(Some(object)) => object,
                Ok(None) => return Attempt::Lacks(name.to_owned()),
                Err(error) => return Attempt::Failed(error),
            };
            match backend.inspect(&path) {
                Ok(Some(_)) => Attempt::Taken(object),
                Ok(None) => Attempt::OtherFormat,
                Err(error) => Attempt::Broken(error),
            }
        };
        let (mut trace, found) = choose(
            look.candidates(),
            &look.manifest.order,
            pinned.as_deref(),
            fallback,
            Some(path.clone()),
            ask,
        );
        for candidate in &mut trace.candidates {
            if candidate.outcome == Outcome::Chosen && pinned.is_none() {
                candidate.reason = format!("first in the order that offers `{name}` for it");
            }
            let (name, outcome, reason) = (&candidate.name, candidate.outcome, &candidate.reason);
            tracing::debug!(backend = %name, ?outcome, %reason, "candidate");
        }
        match found {
            Ok(object) => Ok((path, trace, object)),
            Err(failure) => Err(look.failure(failure, trace)),
        }
    }
}

fn chosen(trace: Trace) -> (String, Trace) {
    (trace.chosen.clone().unwrap_or_default(), trace)
}
