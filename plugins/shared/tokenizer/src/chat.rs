//! Chat templates: a conversation to the text that a model was trained on.
//!
//! Templates are written for Python's Jinja; minijinja renders them, with Python's methods and its ways to print values. A
//! template comes with a model file and is not trusted: it can read nothing but what it is given, and its steps and the length
//! of its result are bounded.

mod addition;
mod python;

use std::borrow::Cow;
use std::fmt::Write as _;
use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use backplane_weights::Metadata;
use minijinja::machinery::{self, CompiledTemplate, TemplateConfig};
use minijinja::syntax::SyntaxConfig;
use minijinja::value::Serde;
use minijinja::{Environment, ErrorKind, Value};
use serde_json::Map;

use crate::error::Error;
use crate::keys::CHAT_TEMPLATE;
use crate::tokenizer::Tokenizer;

/// Steps that a template may take; 64 bytes of text that it makes count as one more. A conversation of 10,000 messages takes
/// less than half of it.
const FUEL: u64 = 4_000_000;

/// The longest template, bytes. Published ones have up to some 30 KB.
const LONGEST_SOURCE: usize = 128 << 10;

/// Templates are compiled and rendered on a stack of their own: the depth of a template's expressions and values is bounded
/// by its length and its steps only. Pages that aren't touched cost nothing.
const STACK: usize = 256 << 20;

/// How long rendering may take. Steps bound it, mostly to less than a second.
const LONGEST_TIME: Duration = Duration::from_secs(30);

/// One message of a conversation.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Message {
    /// Who speaks: `system`, `user`, `assistant`, `tool`, or what else the template knows.
    pub role: String,
    /// The text. `None` becomes null, as beside tool calls.
    pub content: Option<String>,
    /// Other fields, such as `tool_calls`, `name`, `reasoning_content`; a `content` here, such as a list of parts, comes in
    /// place of the text.
    pub extra: Map<String, serde_json::Value>,
}

/// What a template is told besides the messages.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct RenderOptions {
    /// End with the beginning of the assistant's answer.
    pub add_generation_prompt: bool,
    /// The tools that the model may call: a list of JSON schemas, as OpenAI's chat completions have it.
    pub tools: Option<serde_json::Value>,
    /// Other variables, such as `enable_thinking`. `messages`, `tools` and `add_generation_prompt` are not replaced by them.
    pub extra: Map<String, serde_json::Value>,
}

/// A compiled chat template. A clone is another handle to it.
#[derive(Debug, Clone)]
pub struct ChatTemplate {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    environment: Environment<'static>,
    /// The template as it is compiled, which each rendering does: it takes no longer than a short conversation.
    compiled: String,
    /// The template as it was given.
    source: String,
    bos: String,
    eos: String,
}

impl ChatTemplate {
    /// Compiles a template. `bos` and `eos` are the texts of those tokens, for the variables `bos_token` and `eos_token`.
    ///
    /// # Errors
    /// [`Error::Template`] with the line that is not valid.
    pub fn new(source: &str, bos: &str, eos: &str) -> Result<Self, Error> {
        if source.len() > LONGEST_SOURCE {
            let problem = format!(
                "the template has {} bytes, expected at most {LONGEST_SOURCE}",
                source.len()
            );
            return Err(Error::Template { line: 0, problem });
        }
        let mut environment = Environment::new();
        let syntax = SyntaxConfig::builder()
            .trim_blocks(true)
            .lstrip_blocks(true)
            .build();
        environment.set_syntax(syntax.map_err(|error| template_error(&error))?);
        environment.set_auto_escape_callback(|_| minijinja::AutoEscape::None);
        environment.set_fuel(Some(FUEL));
        environment
            .set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
        environment.set_formatter(|out, _, value| Ok(write!(out, "{}", python::Str(value))?));
        environment.add_filter("string", |value: Value| python::to_text(&value));
        environment.add_filter("tojson", python::to_json);
        environment.add_function("raise_exception", raise_exception);
        environment.add_function("strftime_now", strftime_now);
        let compiled = without_generation_tags(source).into_owned();
        let (environment, compiled) = on_own_stack(move || {
            compile(&environment, &compiled).map_err(|error| template_error(&error))?;
            Ok((environment, compiled))
        })?;
        let inner = Inner {
            environment,
            compiled,
            source: source.into(),
            bos: bos.into(),
            eos: eos.into(),
        };
        Ok(Self {
            inner: Arc::new(inner),
        })
    }

    /// The template of a model file, `None` where it has none.
    ///
    /// # Errors
    /// As [`ChatTemplate::new`]; the metadata's template is no text.
    pub fn from_metadata(m: &Metadata, tokenizer: &Tokenizer) -> Result<Option<Self>, Error> {
        let text = |id: Option<u32>| {
            id.and_then(|id| tokenizer.token_text(id))
                .unwrap_or_default()
        };
        let Some(source) = m.str(CHAT_TEMPLATE)? else {
            return Ok(None);
        };
        Self::new(source, &text(tokenizer.bos()), &text(tokenizer.eos())).map(Some)
    }

    /// The text of a conversation. [`Tokenizer::encode_prompt`] makes tokens of it.
    ///
    /// # Errors
    /// [`Error::TemplateRefused`] with the template's own words where it calls `raise_exception`; otherwise
    /// [`Error::Template`] with the line that failed, also where it takes too many steps or writes too much.
    pub fn render(&self, messages: &[Message], opts: &RenderOptions) -> Result<String, Error> {
        let messages: Vec<serde_json::Value> = messages.iter().map(Message::to_json).collect();
        let mut context = Map::new();
        context.insert("bos_token".into(), self.inner.bos.as_str().into());
        context.insert("eos_token".into(), self.inner.eos.as_str().into());
        context.extend(opts.extra.clone());
        context.remove(addition::NAME);
        context.insert("messages".into(), messages.into());
        context.insert("tools".into(), opts.tools.clone().into());
        context.insert(
            "add_generation_prompt".into(),
            opts.add_generation_prompt.into(),
        );
        let inner = self.inner.clone();
        on_own_stack(move || {
            inner
                .render(&context)
                .map_err(|error| template_error(&error))
        })
    }

    /// The template as it was given.
    pub fn source(&self) -> &str {
        &self.inner.source
    }
}

impl Inner {
    fn render(&self, context: &Map<String, serde_json::Value>) -> Result<String, minijinja::Error> {
        let mut environment = self.environment.clone();
        environment.add_global(addition::NAME, addition::function());
        let mut template = compile(&environment, &self.compiled)?;
        addition::bound(&mut template);
        let mut out = String::with_capacity(template.buffer_size_hint);
        machinery::eval(
            &environment,
            &template.instructions,
            Value::from(Serde(context)),
            &template.blocks,
            &mut machinery::make_string_output(&mut out),
            minijinja::AutoEscape::None,
        )?;
        Ok(out)
    }
}

/// Compiles a template with the environment's syntax.
fn compile<'s>(
    environment: &Environment<'_>,
    source: &'s str,
) -> Result<CompiledTemplate<'s>, minijinja::Error> {
    let config = TemplateConfig {
        syntax_config: environment.syntax().clone(),
        default_auto_escape: Arc::new(|_| minijinja::AutoEscape::None),
    };
    CompiledTemplate::new("chat", source, &config)
}

impl Message {
    fn to_json(&self) -> serde_json::Value {
        let mut fields = Map::new();
        fields.insert("role".into(), self.role.as_str().into());
        fields.insert("content".into(), self.content.clone().into());
        fields.extend(self.extra.clone());
        fields.into()
    }
}

/// Runs `work` on a thread with a large stack, and waits for it no longer than `LONGEST_TIME`.
fn on_own_stack<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, Error> + Send + 'static,
) -> Result<T, Error> {
    let failed = |problem: String| Error::Template { line: 0, problem };
    let (sender, receiver) = mpsc::channel();
    let started = thread::Builder::new()
        .name("chat-template".into())
        .stack_size(STACK)
        .spawn(move || {
            // Nobody listens any more where it took too long.
            let _ = sender.send(work());
        });
    started.map_err(|error| failed(format!("no thread to render it: {error}")))?;
    receiver.recv_timeout(LONGEST_TIME).unwrap_or_else(|error| {
        Err(failed(match error {
            RecvTimeoutError::Timeout => format!("took longer than {} s", LONGEST_TIME.as_secs()),
            RecvTimeoutError::Disconnected => "the template engine panicked".into(),
        }))
    })
}

/// What a template says to `raise_exception`.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Refusal(String);

fn raise_exception(message: Value) -> Result<Value, minijinja::Error> {
    let refusal = Refusal(python::text_of(&message));
    Err(minijinja::Error::new(ErrorKind::InvalidOperation, refusal.0.clone()).with_source(refusal))
}

/// Python's `datetime.now().strftime(format)`.
fn strftime_now(format: &str) -> Result<String, minijinja::Error> {
    let mut out = String::new();
    let now = chrono::Local::now();
    match write!(out, "{}", now.format(format)) {
        Ok(()) => Ok(out),
        Err(_) => {
            let problem = format!("strftime_now: {format:?} is not a valid format");
            Err(minijinja::Error::new(ErrorKind::InvalidOperation, problem))
        }
    }
}

fn template_error(error: &minijinja::Error) -> Error {
    let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(error);
    let mut innermost = None;
    while let Some(current) = cause {
        if let Some(Refusal(message)) = current.downcast_ref() {
            return Error::TemplateRefused {
                message: message.clone(),
            };
        }
        innermost = Some(current);
        cause = current.source();
    }
    let mut problem = error.kind().to_string();
    match (error.detail(), innermost) {
        (Some(detail), _) => problem.extend([": ", detail]),
        (None, Some(cause)) if cause.downcast_ref::<minijinja::Error>().is_none() => {
            problem.extend([": ", &cause.to_string()]);
        }
        _ => {}
    }
    Error::Template {
        line: error.line().unwrap_or(0),
        problem: problem.replace('\n', " "),
    }
}

/// `{% generation %}` and `{% endgeneration %}` mark the assistant's part of a training text and print nothing: they become
/// an `if` that always holds, so that the white space around them and the lines of errors stay.
fn without_generation_tags(source: &str) -> Cow<'_, str> {
    if !source.contains("generation") {
        return Cow::Borrowed(source);
    }
    let mut out = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(open) = rest.find(['{']) {
        let (before, from) = rest.split_at(open);
        out.push_str(before);
        let end = match from.as_bytes().get(1) {
            Some(b'#') => from.find("#}").map(|end| end + 2),
            Some(b'{') => tag_end(from, "}}"),
            Some(b'%') => tag_end(from, "%}"),
            _ => Some(1),
        };
        let (tag, after) = from.split_at(end.unwrap_or(from.len()));
        let inside = tag
            .strip_prefix("{%")
            .and_then(|tag| tag.strip_suffix("%}"));
        let name = inside.map(|inside| inside.trim_matches(['-', '+']).trim());
        match name {
            Some("generation") => out.push_str(&tag.replacen("generation", "if true", 1)),
            Some("endgeneration") => out.push_str(&tag.replacen("endgeneration", "endif", 1)),
            // Nothing is a tag up to the end of a raw block.
            Some("raw") => {
                let end = end_of_raw(after);
                out.push_str(tag);
                out.push_str(&after[..end]);
                rest = &after[end..];
                continue;
            }
            _ => out.push_str(tag),
        }
        rest = after;
    }
    out.push_str(rest);
    Cow::Owned(out)
}

/// Where a tag that begins `text` ends: behind `close`, which quoted text may hold.
fn tag_end(text: &str, close: &str) -> Option<usize> {
    let mut quote = None;
    let mut escaped = false;
    for (index, &byte) in text.as_bytes().iter().enumerate().skip(2) {
        match quote {
            Some(_) if escaped => escaped = false,
            Some(_) if byte == b'\\' => escaped = true,
            Some(open) if byte == open => quote = None,
            Some(_) => {}
            None if byte == b'"' || byte == b'\'' => quote = Some(byte),
            None if text.as_bytes()[index..].starts_with(close.as_bytes()) => {
                return Some(index + close.len());
            }
            None => {}
        }
    }
    None
}

/// Where the tag that ends a raw block begins.
fn end_of_raw(text: &str) -> usize {
    let is_end = |&(index, _): &(usize, &str)| {
        text[index + 2..]
            .trim_start_matches(['-', '+'])
            .trim_start()
            .starts_with("endraw")
    };
    text.match_indices("{%")
        .find(is_end)
        .map_or(text.len(), |(index, _)| index)
}
