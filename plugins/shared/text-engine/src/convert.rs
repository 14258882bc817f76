//! The capability `convert/1`: models of every format known here, written as GGUF.

use crate::backend::unusable;
use crate::engine::cancelled;
use crate::open::open_model;
use crate::vocabulary::Short;
use backplane_models::ModelError;
use backplane_models::convert::{ConvertOptions as Options, convert};
use backplane_plugin_api::capability::{Convert, ConvertOptions, ConvertReport, Progress};
use backplane_plugin_api::sdk::Result;
use backplane_plugin_api::types::{Control, Error, ErrorCode};
use backplane_weights::{Error as WeightsError, TensorType};
use std::ops::ControlFlow;
use std::path::Path;

/// Converts to GGUF.
pub(crate) struct Converter {
    /// The backend's name, for messages.
    pub(crate) backend: String,
}

impl Converter {
    /// What is asked for; `extra` may say `replace`: whether a file at the destination is replaced.
    fn options(&self, options: &ConvertOptions) -> Result<Options> {
        let mut read = Options::default();
        for (name, value) in &options.extra {
            match (name.as_str(), value.as_bool()) {
                ("replace", Some(replace)) => read.replace = replace,
                ("replace", None) => {
                    let message = format!("replace: found {value}, expected true or false");
                    return Err(Error::invalid_field("replace", message));
                }
                _ => return Err(Error::unsupported_field(name.clone(), &self.backend)),
            }
        }
        if let Some(name) = &options.quantize {
            let ty = TensorType::to_quantize_to(name);
            read.quantize =
                Some(ty.map_err(|error| {
                    Error::invalid_field("quantize", format!("quantize: {error}"))
                })?);
        }
        Ok(read)
    }
}

impl Convert for Converter {
    fn convert(
        &self,
        source: &Path,
        destination: &Path,
        options: &ConvertOptions,
        progress: &mut dyn Progress,
    ) -> Result<ConvertReport> {
        let options = self.options(options)?;
        let opened = open_model(source)?;
        let short = Short::of(&opened).map(|it| it.to_string());
        if let Err(error) = opened.tokenizer {
            // It would be a file that nothing runs.
            return Err(unusable(error));
        }
        let mut counted = Counted {
            total: opened.weights.tensors().count() as u64,
            done: 0,
            current: String::new(),
            progress,
        };
        counted.tell("tensors")?;
        let written = convert(
            &opened.weights,
            destination,
            options,
            &mut |_, _, name| match counted.at(name) {
                Ok(()) => ControlFlow::Continue(()),
                Err(_) => ControlFlow::Break(()),
            },
        );
        let report = written.map_err(|error| refusal(&error))?;
        Ok(ConvertReport {
            tensors: report.tensors,
            bytes: report.bytes,
            notes: report.notes.into_iter().chain(short).collect(),
        })
    }
}

/// Progress in tensors, from the names of those that are written.
struct Counted<'a> {
    total: u64,
    done: u64,
    current: String,
    progress: &'a mut dyn Progress,
}

impl Counted<'_> {
    fn at(&mut self, name: &str) -> Result<()> {
        if self.current != name {
            self.done += u64::from(!self.current.is_empty());
            self.current = name.to_owned();
        }
        self.tell(name)
    }

    fn tell(&mut self, what: &str) -> Result<()> {
        match self.progress.on_progress(self.done, self.total, what) {
            Control::Continue => Ok(()),
            Control::Stop => Err(cancelled()),
        }
    }
}

/// A conversion's error, by whose fault it is.
fn refusal(error: &ModelError) -> Error {
    let at_fault =
        |code: ErrorCode, action: &str| Error::new(code, error.to_string()).with_action(action);
    match error {
        ModelError::Weights(WeightsError::Cancelled) => cancelled(),
        ModelError::Weights(WeightsError::TypeName { .. }) => {
            Error::invalid_field("quantize", error.to_string())
        }
        ModelError::Destination { .. } => {
            at_fault(ErrorCode::InvalidRequest, "choose another destination")
        }
        // The source is mapped already.
        ModelError::Weights(WeightsError::Io { .. }) => at_fault(
            ErrorCode::InvalidRequest,
            "check the destination, and that its disk has room",
        ),
        error => unusable(error),
    }
}
