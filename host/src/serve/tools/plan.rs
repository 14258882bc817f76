//! What a model is told of tools, what its reply is held to, and how that is read.

use super::check::{self, Fault};
use super::choice::{Choice, Tool};
use super::formats::{self, Format};
use super::grammar::{self, Calls, Hidden, Marks};
use super::{Reader, To, Tools, telling};
use crate::error::Error;
use crate::registry::Model;
use crate::serve::errors::Problem;
use backplane_plugin_api::types::{ChatRequest, ErrorCode, Grammar};
use serde_json::Value;

/// How one request goes about its tools with one model.
#[derive(Clone, Debug, Default)]
pub(in crate::serve) struct Plan {
    format: Option<&'static Format>,
    names: Vec<String>,
    most_calls: Option<usize>,
    notices: Vec<String>,
    hidden: Hidden,
    /// What it is held to where the engine refuses the grammar, and is then read by.
    otherwise: Option<Otherwise>,
}

#[derive(Clone, Debug)]
enum Otherwise {
    /// Nothing: calls come as the model makes them.
    Free,
    /// One call as a JSON object.
    Schema(Grammar),
}

impl Plan {
    /// Tells `request` of the tools, and what its reply is held to.
    ///
    /// # Errors
    /// A schema is wrong that is needed, or what is asked for can't be put together.
    pub(in crate::serve) fn new(
        model: &Model,
        tools: &Tools,
        request: &mut ChatRequest,
    ) -> Result<Self, Problem> {
        if let Some(held) = &tools.held {
            if let To::Schema(schema) = &held.to
                && let Some(Some(fault)) = check::schemas(vec![schema.clone()]).pop()
            {
                return Err(held.wrong(&fault.pointer, &fault.why));
            }
            request.options.grammar = Some(held.grammar());
        }
        let told = request
            .messages
            .iter()
            .any(|message| message.role == "tool" || message.extra.contains_key("tool_calls"));
        if !tools.any() && !told {
            return Ok(Self::default());
        }
        let template = model.info().chat_template.unwrap_or_default();
        let known = formats::of_template(&template);
        match known {
            Some(format) => telling::by_template(&mut request.messages, format),
            None => telling::by_messages(&mut request.messages),
        }
        if !tools.any() {
            return Ok(Self::default());
        }
        let (right, notices) = sift(tools)?;
        let format = known.unwrap_or(formats::GENERIC);
        tracing::debug!("calls of tools are read as {}", format.name);
        match known {
            Some(_) => {
                let all = right.iter().map(|tool| tool.json());
                request.tools = Some(Value::Array(all.collect()));
            }
            None => introduce(model, request, &right),
        }
        let named = matches!(tools.choice, Choice::Named(_));
        let calls = Calls {
            must: named || tools.choice == Choice::Required,
            several: tools.parallel && !named,
        };
        let mut marks = Marks::of(Some(model));
        let held = tools.held.as_ref();
        let grammar = grammar::of(format, &mut marks, &right, calls, held);
        let field = held.map_or("tools", |held| held.field);
        request.options.grammar = Some(grammar.map_err(|why| Problem::field(field, why))?);
        let otherwise = match held {
            _ if calls.must => Some(Otherwise::Schema(grammar::as_schema(&right))),
            Some(_) => None,
            None => Some(Otherwise::Free),
        };
        Ok(Self {
            format: Some(format),
            names: right.iter().map(|tool| tool.name.clone()).collect(),
            most_calls: (!calls.several).then_some(1),
            notices,
            hidden: marks.hidden,
            otherwise,
        })
    }

    /// A reader of a reply.
    pub(in crate::serve) fn reader(&self) -> Reader {
        match self.format {
            Some(format) => Reader::new(format, self.names.clone()),
            None => Reader::plain(),
        }
    }

    /// How a token is spelled that is no text, and a mark.
    pub(in crate::serve) fn spelled(&self, token: Option<u32>) -> Option<&str> {
        let token = token?;
        let mut hidden = self.hidden.iter();
        let found = hidden.find(|(known, _)| *known == token);
        found.map(|(_, text)| text.as_str())
    }

    /// Another way, where the engine has refused the first by `error`: whether there is one.
    pub(in crate::serve) fn give_way(&mut self, error: &Error, request: &mut ChatRequest) -> bool {
        let Error::Backend { backend, error } = error else {
            return false;
        };
        if error.code != ErrorCode::UnsupportedField || error.field != "grammar" {
            return false;
        }
        let Some(otherwise) = self.otherwise.take() else {
            return false;
        };
        request.options.grammar = match otherwise {
            Otherwise::Free => {
                let notice = format!("{backend} does not hold calls of tools to their schemas");
                self.notices.push(notice);
                None
            }
            Otherwise::Schema(grammar) => {
                self.format = Some(formats::BARE);
                self.most_calls = Some(1);
                Some(grammar)
            }
        };
        true
    }

    /// After how many calls a reply is to end.
    pub(in crate::serve) fn most_calls(&self) -> Option<usize> {
        self.most_calls
    }

    /// What the user should know of it.
    pub(in crate::serve) fn notices(&self) -> &[String] {
        &self.notices
    }
}

/// The tools whose schemas are right, and what is to be said of the others.
///
/// # Errors
/// None is right.
fn sift(tools: &Tools) -> Result<(Vec<&Tool>, Vec<String>), Problem> {
    let all: Vec<&Tool> = tools.callable().collect();
    let faults = check::schemas(all.iter().map(|tool| tool.schema()).collect());
    let said =
        |tool: &Tool, Fault { pointer, why }: &Fault| format!("{}{pointer}: {why}", tool.place);
    let (mut right, mut notices) = (Vec::new(), Vec::new());
    for (tool, fault) in all.into_iter().zip(&faults) {
        match fault {
            None => right.push(tool),
            Some(fault) => {
                let said = said(tool, fault);
                notices.push(format!("`{}` is left out: {said}", tool.name));
            }
        }
    }
    match right.is_empty() {
        true => Err(Problem::field("tools", notices.join("; "))),
        false => Ok((right, notices)),
    }
}

/// Tells of the tools by a message that the template takes.
fn introduce(model: &Model, request: &mut ChatRequest, tools: &[&Tool]) {
    let before = request.messages.clone();
    telling::introduce(&mut request.messages, tools, false);
    let refused = |error: &Error| matches!(error, Error::Backend { error, .. } if error.code == ErrorCode::TemplateRefused);
    if model
        .render_chat(request)
        .is_err_and(|error| refused(&error))
    {
        request.messages = before;
        telling::introduce(&mut request.messages, tools, true);
    }
}
