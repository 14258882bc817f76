//! What a module is given: requests as C structures, and the caller's sink.

use super::read;
use backplane_plugin_api::c::{self, Text};
use backplane_plugin_api::{
    ChatRequest, Control, Error, ErrorCode, Event, GenerateOptions, Prompt, Sink,
};
use serde::Serialize;
use std::borrow::Cow;
use std::cell::RefCell;
use std::ffi::c_void;
use std::marker::PhantomData;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

/// Where a value is, or null.
pub(super) fn optional<T>(value: &Option<T>) -> *const T {
    value.as_ref().map_or(std::ptr::null(), std::ptr::from_ref)
}

#[cfg(unix)]
pub(super) fn path(path: &Path) -> Cow<'_, [u8]> {
    use std::os::unix::ffi::OsStrExt;
    path.as_os_str().as_bytes().into()
}

#[cfg(not(unix))]
pub(super) fn path(path: &Path) -> Cow<'_, [u8]> {
    path.to_string_lossy().into_owned().into_bytes().into()
}

pub(super) fn json(value: &impl Serialize) -> String {
    // Maps with text as keys always have a text.
    serde_json::to_string(value).unwrap_or_default()
}

fn texts(list: &[String]) -> Vec<Text> {
    list.iter().map(|text| Text::of(text.as_bytes())).collect()
}

/// A structure with what it points to.
pub(super) trait Lent<T> {
    fn as_ptr(&self) -> *const T;
}

/// [`GenerateOptions`].
pub(super) struct LentOptions<'a> {
    lent: c::Options,
    // What `lent` points to; on the heap or borrowed, so that this may be moved.
    _stop: Vec<Text>,
    _biases: Vec<c::TokenBias>,
    _grammar: Option<Box<[Text; 2]>>,
    _extra: String,
    _options: PhantomData<&'a GenerateOptions>,
}

impl<'a> LentOptions<'a> {
    pub(super) fn new(options: &'a GenerateOptions) -> Self {
        let sampling = &options.sampling;
        let stop = texts(&options.stop);
        let biases: Vec<c::TokenBias> = sampling
            .logit_bias
            .iter()
            .map(|&(token, bias)| c::TokenBias { token, bias })
            .collect();
        let grammar = options.grammar.as_ref().map(|grammar| {
            Box::new([
                Text::of(grammar.kind.as_bytes()),
                Text::of(grammar.source.as_bytes()),
            ])
        });
        let extra = json(&options.extra);
        let of_grammar = |index: usize| {
            grammar
                .as_ref()
                .map_or(std::ptr::null(), |texts| &raw const texts[index])
        };
        let lent = c::Options {
            struct_size: size_of::<c::Options>(),
            temperature: optional(&sampling.temperature),
            top_k: optional(&sampling.top_k),
            top_p: optional(&sampling.top_p),
            min_p: optional(&sampling.min_p),
            repeat_penalty: optional(&sampling.repeat_penalty),
            repeat_last_n: optional(&sampling.repeat_last_n),
            presence_penalty: optional(&sampling.presence_penalty),
            frequency_penalty: optional(&sampling.frequency_penalty),
            seed: optional(&sampling.seed),
            logit_bias: biases.as_ptr(),
            logit_bias_count: biases.len(),
            max_tokens: optional(&options.max_tokens),
            stop: stop.as_ptr(),
            stop_count: stop.len(),
            stop_tokens: options.stop_tokens.as_ptr(),
            stop_tokens_count: options.stop_tokens.len(),
            ignore_end: options.ignore_end,
            logprobs: optional(&options.logprobs),
            grammar_kind: of_grammar(0),
            grammar_source: of_grammar(1),
            extra_json: Text::of(extra.as_bytes()),
        };
        Self {
            lent,
            _stop: stop,
            _biases: biases,
            _grammar: grammar,
            _extra: extra,
            _options: PhantomData,
        }
    }
}

impl Lent<c::Options> for LentOptions<'_> {
    fn as_ptr(&self) -> *const c::Options {
        &raw const self.lent
    }
}

/// [`Prompt`].
pub(super) struct LentPrompt<'a> {
    lent: c::Prompt,
    _text: Option<Box<Text>>,
    _prompt: PhantomData<&'a Prompt>,
}

impl<'a> LentPrompt<'a> {
    pub(super) fn new(prompt: &'a Prompt) -> Self {
        let (text, special, tokens) = match prompt {
            Prompt::Text { text, special } => {
                (Some(Box::new(Text::of(text.as_bytes()))), *special, &[][..])
            }
            Prompt::Tokens(tokens) => (None, false, &tokens[..]),
        };
        let lent = c::Prompt {
            struct_size: size_of::<c::Prompt>(),
            text: text.as_deref().map_or(std::ptr::null(), std::ptr::from_ref),
            special,
            tokens: tokens.as_ptr(),
            tokens_count: tokens.len(),
        };
        Self {
            lent,
            _text: text,
            _prompt: PhantomData,
        }
    }
}

impl Lent<c::Prompt> for LentPrompt<'_> {
    fn as_ptr(&self) -> *const c::Prompt {
        &raw const self.lent
    }
}

/// [`ChatRequest`], without its options.
pub(super) struct LentChat<'a> {
    lent: c::Chat,
    _pointers: Vec<*const c::Message>,
    _messages: Vec<c::Message>,
    _contents: Vec<Option<Text>>,
    _extras: Vec<String>,
    _tools: Option<(String, Box<Text>)>,
    _template_options: String,
    _request: PhantomData<&'a ChatRequest>,
}

impl<'a> LentChat<'a> {
    pub(super) fn new(request: &'a ChatRequest) -> Self {
        let contents: Vec<Option<Text>> = request
            .messages
            .iter()
            .map(|message| {
                message
                    .content
                    .as_ref()
                    .map(|content| Text::of(content.as_bytes()))
            })
            .collect();
        let extras: Vec<String> = request
            .messages
            .iter()
            .map(|message| json(&message.extra))
            .collect();
        let messages: Vec<c::Message> = request
            .messages
            .iter()
            .zip(contents.iter().zip(&extras))
            .map(|(message, (content, extra))| c::Message {
                struct_size: size_of::<c::Message>(),
                role: Text::of(message.role.as_bytes()),
                content: optional(content),
                extra_json: Text::of(extra.as_bytes()),
            })
            .collect();
        let pointers: Vec<*const c::Message> = messages.iter().map(std::ptr::from_ref).collect();
        let tools = request.tools.as_ref().map(|tools| {
            let text = json(tools);
            let lent = Box::new(Text::of(text.as_bytes()));
            (text, lent)
        });
        let template_options = json(&request.template_options);
        let lent = c::Chat {
            struct_size: size_of::<c::Chat>(),
            messages: pointers.as_ptr(),
            messages_count: pointers.len(),
            tools_json: tools
                .as_ref()
                .map_or(std::ptr::null(), |(_, lent)| &raw const **lent),
            template_options_json: Text::of(template_options.as_bytes()),
        };
        Self {
            lent,
            _pointers: pointers,
            _messages: messages,
            _contents: contents,
            _extras: extras,
            _tools: tools,
            _template_options: template_options,
            _request: PhantomData,
        }
    }
}

impl Lent<c::Chat> for LentChat<'_> {
    fn as_ptr(&self) -> *const c::Chat {
        &raw const self.lent
    }
}

/// A caller's sink. A panic of it, or an event that can't be read, stops the generation and is the call's error.
pub(super) struct LentSink<'a> {
    state: Box<State<'a>>,
    lent: c::Sink,
}

struct State<'a> {
    sink: RefCell<&'a mut dyn Sink>,
    wrong: RefCell<Option<Error>>,
}

impl<'a> LentSink<'a> {
    pub(super) fn new(sink: &'a mut dyn Sink) -> Self {
        let state = Box::new(State {
            sink: RefCell::new(sink),
            wrong: RefCell::new(None),
        });
        let lent = c::Sink {
            struct_size: size_of::<c::Sink>(),
            to: std::ptr::from_ref(&*state).cast_mut().cast(),
            on_event: Some(on_event),
            should_stop: Some(should_stop),
        };
        Self { state, lent }
    }

    /// After the call: what was wrong.
    pub(super) fn finish(self) -> Result<(), Error> {
        match self.state.wrong.into_inner() {
            Some(error) => Err(error),
            None => Ok(()),
        }
    }
}

impl Lent<c::Sink> for LentSink<'_> {
    fn as_ptr(&self) -> *const c::Sink {
        &raw const self.lent
    }
}

impl State<'_> {
    /// Runs something with the sink, unless something was wrong before.
    fn with(
        &self,
        otherwise: bool,
        run: impl FnOnce(&mut dyn Sink) -> Result<bool, Error>,
    ) -> bool {
        if self.wrong.borrow().is_some() {
            return otherwise;
        }
        let ran = catch_unwind(AssertUnwindSafe(|| run(&mut **self.sink.borrow_mut())));
        let error = match ran {
            Ok(Ok(answer)) => return answer,
            Ok(Err(error)) => error,
            Err(payload) => {
                let text = payload
                    .downcast_ref::<&str>()
                    .map(|text| (*text).to_owned())
                    .or_else(|| payload.downcast_ref::<String>().cloned());
                let text = text.unwrap_or_else(|| "a panic without a message".into());
                Error::new(
                    ErrorCode::Internal,
                    format!("the caller's sink panicked: {text}"),
                )
            }
        };
        *self.wrong.borrow_mut() = Some(error);
        otherwise
    }
}

unsafe extern "C" fn on_event(to: *mut c_void, event: *const c::Event) -> bool {
    // SAFETY: `to` is the state that the sink was lent with; the header has one thread at a time call this.
    let state = unsafe { &*to.cast::<State<'_>>() };
    // SAFETY: the event, and all that it points to, is lent for this call.
    let event = unsafe { c::prefix(event) };
    state.with(false, |sink| {
        let text = || {
            // SAFETY: as above.
            let bytes = unsafe { event.text.bytes() };
            std::str::from_utf8(bytes).map_err(|_| read::not_utf8("the text of an event"))
        };
        let control = match event.kind {
            c::EVENT_PREFILL => sink.on_event(Event::Prefill {
                done: event.done,
                total: event.total,
            }),
            c::EVENT_TOKEN => {
                // SAFETY: as above.
                let (token, logprobs) = unsafe {
                    (
                        event.token.as_ref().copied(),
                        read::logprobs(event.logprobs, event.logprobs_count)?,
                    )
                };
                sink.on_event(Event::Token {
                    token,
                    text: text()?,
                    logprobs: &logprobs,
                })
            }
            c::EVENT_TEXT => sink.on_event(Event::Text { text: text()? }),
            // Of a kind that this version does not know: passed over.
            _ => Control::Continue,
        };
        Ok(control == Control::Continue)
    })
}

unsafe extern "C" fn should_stop(to: *mut c_void) -> bool {
    // SAFETY: as in `on_event`.
    let state = unsafe { &*to.cast::<State<'_>>() };
    state.with(true, |sink| Ok(sink.should_stop()))
}
