//! The models that are served: named at the start, or loaded when they are asked for, and unloaded when they are idle or their memory is
//! needed.
//!
//! | question | place |
//! | --- | --- |
//! | which names there are, and what each means | `names.rs` |
//! | what is loaded, in use, idle; who makes room | `book.rs` |
//! | how much memory there is | `budget.rs` |
//! | what a model takes of it, and may come to take | `size.rs` |
//!
//! Invariants: a model in use is never unloaded. No model is used with which all could come to take more than their memory, as far as
//! engines tell. Requests for a model that is being loaded share that load. What a request waits
//! for ends, or its client is told why not.

mod book;
mod budget;
mod names;
mod size;

pub(super) use book::{Models, Stopped, Use};
pub(super) use names::Served;

use super::errors::Problem;
use super::{Notice, Tell};
use crate::error::{Error, Result};
use backplane_plugin_api::types::{Control, Event, GenerateOptions, GenerateRequest, Prompt};
use std::sync::Arc;

/// Why a request does not get its model.
#[derive(Clone, Debug)]
pub(super) enum Refused {
    /// It can't be loaded.
    Failed(Error),
    /// Not now.
    Later(String),
}

impl From<Refused> for Problem {
    fn from(refused: Refused) -> Self {
        match refused {
            // What is wrong with a load is not the request's fault.
            Refused::Failed(error) => Self::unavailable(error.line(), None),
            Refused::Later(message) => Self::unavailable(message, Some(1)),
        }
    }
}

impl From<Refused> for Error {
    fn from(refused: Refused) -> Self {
        match refused {
            Refused::Failed(error) => error,
            Refused::Later(message) => {
                Self::usage(message, "raise `memory`, or serve fewer models")
            }
        }
    }
}

/// The model of a name, whatever its case.
///
/// # Errors
/// There is none.
pub(super) fn find(all: &Models, name: &str) -> std::result::Result<Arc<Served>, Problem> {
    all.names().find(name)
}

/// The model of a name, or where none is given the only one.
///
/// # Errors
/// There is none, or no name and several.
pub(super) fn find_or_only(all: &Models, name: &str) -> std::result::Result<Arc<Served>, Problem> {
    if !name.is_empty() {
        return find(all, name);
    }
    let mut every = all.iter();
    match (every.next(), every.next()) {
        (Some(only), None) => Ok(only),
        _ => {
            let message = "expected the name of a model, as several are served";
            Err(Problem::field("model", message))
        }
    }
}

/// Loads a model that is named at the start, and has it answer. Blocks.
///
/// # Errors
/// It can't be loaded.
pub(super) fn start(models: &Arc<Models>, served: &Arc<Served>, tell: &Tell) -> Result<()> {
    let model = models.acquire_blocking(served)?;
    let first = GenerateRequest {
        prompt: Prompt::text("Hello"),
        options: GenerateOptions {
            max_tokens: Some(1),
            ..GenerateOptions::default()
        },
    };
    match model.generate(&first, &mut |_: Event<'_>| Control::Continue) {
        Ok(_) => {
            served.has_answered();
            tell(Notice::Ready(served.id.clone()));
        }
        Err(error) => {
            let why = format!("{}: its first answer failed: {error}", served.id);
            tell(Notice::Note(why.clone()));
            served.is_ailing(why);
        }
    }
    Ok(())
}
