//! What a model is told of tools, and how its reply is read.

use super::choice::Choice;
use super::formats::{self, Format};
use super::{Reader, Tools};
use crate::registry::Model;
use crate::serve::errors::Problem;
use backplane_plugin_api::types::ChatRequest;
use serde_json::Value;

/// How one request goes about its tools with one model.
#[derive(Clone, Debug, Default)]
pub(in crate::serve) struct Plan {
    format: Option<&'static Format>,
    names: Vec<String>,
    most_calls: Option<usize>,
    notices: Vec<String>,
}

impl Plan {
    /// Tells `request` of the tools.
    ///
    /// # Errors
    /// The choice can't be honoured.
    pub(in crate::serve) fn new(
        model: &Model,
        tools: &Tools,
        request: &mut ChatRequest,
    ) -> Result<Self, Problem> {
        if !tools.any() {
            return Ok(Self::default());
        }
        let template = model.info().chat_template.unwrap_or_default();
        let format = formats::of_template(&template).unwrap_or(formats::GENERIC);
        tracing::debug!("calls of tools are read as {}", format.name);
        if matches!(tools.choice, Choice::Required | Choice::Named(_)) {
            let why = "can't be honoured: only `auto` and `none` are offered yet";
            return Err(Problem::unsupported("tool_choice", why));
        }
        let offered: Vec<Value> = tools.offered.iter().map(|tool| tool.json()).collect();
        request.tools = Some(Value::Array(offered));
        Ok(Self {
            format: Some(format),
            names: tools.callable().map(|tool| tool.name.clone()).collect(),
            most_calls: (!tools.parallel).then_some(1),
            notices: Vec::new(),
        })
    }

    /// After how many calls a reply is to end.
    pub(in crate::serve) fn most_calls(&self) -> Option<usize> {
        self.most_calls
    }

    /// What the user should know of it.
    pub(in crate::serve) fn notices(&self) -> &[String] {
        &self.notices
    }

    /// A reader of a reply.
    pub(in crate::serve) fn reader(&self) -> Reader {
        match self.format {
            Some(format) => Reader::new(format, self.names.clone()),
            None => Reader::plain(),
        }
    }
}
