//! What a model is told of tools, what its reply is held to, and how that is read.

use super::channels;
use super::check::{self, Fault};
use super::choice::{Choice, Tool};
use super::formats::{self, Body, Format};
use super::grammar::{self, Calls, Hidden, Marks};
use super::held;
use super::repeats::Repeats;
use super::thoughts::{self, Thoughts};
use super::typed::Signature;
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
    tools: Vec<Signature>,
    most_calls: Option<usize>,
    /// Whether it may have to call on and on.
    must_call: bool,
    notices: Vec<String>,
    /// How the reply begins, where it may begin with thoughts.
    thoughts: Option<Thoughts>,
    /// The same where no template tells: what it is held to knows nothing of these.
    untold: Option<Thoughts>,
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
    /// The format that the reply is held to, from its first token on.
    Held(Grammar),
}

/// The format of calls, the tools that are right, and what is to be said of the others.
type Offered<'a> = (&'static Format, Vec<&'a Tool>, Vec<String>);

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
            held.check()?;
            request.options.grammar = Some(held.grammar());
        }
        let template = model.info().chat_template;
        let untold = template.is_none() && !tools.as_written;
        let untold = untold.then_some(Thoughts::UNTOLD);
        let template = template.unwrap_or_default();
        let channels = formats::of_template(&template);
        let channels = channels.filter(|format| format.body == Body::Channels && !tools.as_written);
        telling::thoughts(&mut request.messages, &template);
        let offered = Self::offer(model, &template, tools, request)?;
        let mut marks = Marks::of(Some(model));
        let thoughts = match tools.as_written {
            true => None,
            false => find_thoughts(model, &template, request, &mut marks),
        };
        let held = tools.held.as_ref();
        if channels.is_some() {
            channels::MARKS.iter().for_each(|mark| marks.look_up(mark));
        }
        let Some((format, right, notices)) = offered else {
            let otherwise = match (held, thoughts) {
                (Some(held), None) if channels.is_some() && !matches!(held.to, To::Lark(_)) => {
                    let plain = request.options.grammar.take();
                    let grammar = grammar::in_channels(&mut marks, &[], true, Some(held));
                    request.options.grammar = Some(grammar.map_err(|why| held.wrong("", &why))?);
                    plain.map(Otherwise::Held)
                }
                (Some(held), Some(thoughts)) => {
                    let plain = request.options.grammar.take();
                    let grammar = grammar::held(&mut marks, thoughts, held);
                    request.options.grammar = Some(grammar.map_err(|why| held.wrong("", &why))?);
                    plain.map(Otherwise::Held)
                }
                _ => None,
            };
            return Ok(Self {
                format: channels,
                thoughts,
                untold,
                hidden: marks.hidden,
                otherwise,
                ..Self::default()
            });
        };
        let named = matches!(tools.choice, Choice::Named(_));
        let calls = Calls {
            must: named || tools.choice == Choice::Required,
            several: tools.parallel && !named,
        };
        let grammar = match channels {
            Some(_) => grammar::in_channels(&mut marks, &right, calls.must, held),
            None => grammar::of(format, &mut marks, &right, calls, held, thoughts),
        };
        if calls.must {
            // Such texts end what is said; a reply that only calls says nothing, and half a call is of no use.
            request.options.stop.clear();
        }
        let field = held.map_or("tools", |held| held.field);
        request.options.grammar = Some(grammar.map_err(|why| Problem::field(field, why))?);
        let otherwise = match held {
            _ if calls.must => Some(Otherwise::Schema(grammar::as_schema(&right))),
            Some(_) => None,
            None => Some(Otherwise::Free),
        };
        Ok(Self {
            format: Some(format),
            tools: right.iter().map(|tool| tool.signature()).collect(),
            most_calls: (!calls.several).then_some(1),
            must_call: calls.must,
            notices,
            thoughts,
            untold,
            hidden: marks.hidden,
            otherwise,
        })
    }

    /// Tells the model of tools, of calls and of results: the format of its calls, the tools that are right, and what is to be
    /// said of the others; `None` where none may be called.
    ///
    /// # Errors
    /// No tool is right.
    fn offer<'a>(
        model: &Model,
        template: &str,
        tools: &'a Tools,
        request: &mut ChatRequest,
    ) -> Result<Option<Offered<'a>>, Problem> {
        let told = request
            .messages
            .iter()
            .any(|message| message.role == "tool" || message.extra.contains_key("tool_calls"));
        if !tools.any() && !told {
            return Ok(None);
        }
        let known = formats::of_template(template);
        match known {
            Some(format) => telling::by_template(&mut request.messages, format, template),
            None => telling::by_messages(&mut request.messages),
        }
        if !tools.any() {
            return Ok(None);
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
        Ok(Some((format, right, notices)))
    }

    /// A reader of a reply.
    pub(in crate::serve) fn reader(&self) -> Reader {
        let reader = match self.format {
            Some(format) => Reader::new(format, self.tools.clone()),
            None => Reader::plain(),
        };
        reader.thinking(self.thoughts.or(self.untold))
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
                self.thoughts = None;
                Some(grammar)
            }
            Otherwise::Held(grammar) => {
                self.format = None;
                self.thoughts = None;
                Some(grammar)
            }
        };
        true
    }

    /// After how many calls a reply is to end.
    pub(in crate::serve) fn most_calls(&self) -> Option<usize> {
        self.most_calls
    }

    /// What finds calls that repeat the one before. Who calls of itself may have its reasons to.
    pub(in crate::serve) fn repeats(&self) -> Repeats {
        Repeats::new(self.must_call)
    }

    /// What the user should know of it.
    pub(in crate::serve) fn notices(&self) -> &[String] {
        &self.notices
    }
}

/// How the reply begins, where the model may think before it. Who gives a grammar of their own has written all of the reply.
fn find_thoughts(
    model: &Model,
    template: &str,
    request: &ChatRequest,
    marks: &mut Marks<'_>,
) -> Option<Thoughts> {
    let known = thoughts::of_template(template)?;
    let grammar = request.options.grammar.as_ref();
    if grammar.is_some_and(|grammar| grammar.kind == "lark") {
        return None;
    }
    // A template that refuses the conversation refuses it again when it is asked.
    let prompt = model.render_chat(request).ok()?;
    marks.look_up(known.open);
    marks.look_up(known.close);
    Thoughts::after(known, &prompt)
}

/// Whether the model of a template may think before it answers.
pub(in crate::serve) fn thinks(template: &str) -> bool {
    let format = formats::of_template(template);
    thoughts::of_template(template).is_some()
        || format.is_some_and(|format| format.body == Body::Channels)
}

/// The tools whose schemas are right, and what is to be said of the others.
///
/// # Errors
/// None is right.
fn sift(tools: &Tools) -> Result<(Vec<&Tool>, Vec<String>), Problem> {
    let all: Vec<&Tool> = tools.callable().collect();
    let mut faults = check::schemas(all.iter().map(|tool| tool.schema()).collect());
    for (tool, fault) in all.iter().zip(&mut faults) {
        if let Some(why) = tool.no_object() {
            *fault = Some(Fault {
                pointer: "/type".to_owned(),
                why,
            });
        }
    }
    if let ([tool], [Some(Fault { pointer, why })]) = (all.as_slice(), faults.as_slice()) {
        return Err(held::wrong(&tool.place, pointer, why));
    }
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
