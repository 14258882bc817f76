//! What cases share: the backend, the loaded model, and ways to ask and to judge.

use crate::{Outcome, Verdict};
use backplane_plugin_api::{
    Backend, Completion, Control, Error, ErrorCode, Event, GenerateOptions, GenerateRequest,
    LoadOptions, Prompt, Sampling, Sink, TextModel,
};
use std::any::Any;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// How to run the suite.
#[derive(Clone, Debug)]
pub struct Options {
    /// How to load the model.
    pub load: LoadOptions,
    /// A text to go on from. Best one that the model goes on from at length.
    pub prompt: String,
    /// Tokens that a case generates where any number would do.
    pub tokens: u32,
    /// Longest a case may take.
    pub time_limit: Duration,
    /// Runs only cases with this in their name.
    pub only: Option<String>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            load: LoadOptions {
                context: Some(1024),
                ..LoadOptions::default()
            },
            prompt: "Once upon a time there was a small house at the edge of a forest, and in it"
                .into(),
            tokens: 12,
            time_limit: Duration::from_secs(300),
            only: None,
        }
    }
}

pub(crate) struct Bench {
    pub(crate) backend: Arc<dyn Backend>,
    pub(crate) path: PathBuf,
    pub(crate) options: Options,
    model: OnceLock<Result<Arc<dyn TextModel>, Error>>,
}

/// Fails unless the condition holds.
macro_rules! ensure {
    ($condition:expr, $($message:tt)*) => {
        let holds: bool = $condition;
        if !holds {
            return Err($crate::Outcome::Failed(format!($($message)*)));
        }
    };
}
pub(crate) use ensure;

/// A failure.
pub(crate) fn fail<T>(what: impl Into<String>) -> Result<T, Outcome> {
    Err(Outcome::Failed(what.into()))
}

pub(crate) fn not_applicable<T>(why: impl Into<String>) -> Result<T, Outcome> {
    Err(Outcome::NotApplicable(why.into()))
}

/// The value, or: a function or field that the backend says it lacks makes the case not applicable, any other error
/// fails it.
pub(crate) fn need<T>(what: &str, result: backplane_plugin_api::Result<T>) -> Result<T, Outcome> {
    result.map_err(|error| match error.code {
        ErrorCode::Unsupported | ErrorCode::UnsupportedField => {
            Outcome::NotApplicable(error.message)
        }
        _ => Outcome::Failed(format!("{what}: {error} ({:?})", error.code)),
    })
}

/// An error must be one of these kinds, and one line.
pub(crate) fn expect_error<T>(
    what: &str,
    result: backplane_plugin_api::Result<T>,
    codes: &[ErrorCode],
) -> Result<Error, Outcome> {
    match result {
        Ok(_) => fail(format!("{what}: succeeded; expected an error")),
        Err(error) if !codes.contains(&error.code) => fail(format!(
            "{what}: {:?} ({error}); expected one of {codes:?}",
            error.code
        )),
        Err(error) if error.message.is_empty() || error.message.contains('\n') => fail(format!(
            "{what}: the message {:?} is not one line",
            error.message
        )),
        Err(error) => Ok(error),
    }
}

/// An unknown field must be refused by its name.
pub(crate) fn expect_refusal<T>(
    what: &str,
    result: backplane_plugin_api::Result<T>,
    field: &str,
) -> Verdict {
    if let Err(error) = &result
        && error.code == ErrorCode::Unsupported
    {
        return Ok(());
    }
    let error = expect_error(
        what,
        result,
        &[ErrorCode::UnsupportedField, ErrorCode::InvalidRequest],
    )?;
    ensure!(
        error.message.contains(field),
        "{what}: {error}; expected a message with `{field}`"
    );
    ensure!(
        error.field.contains(field),
        "{what}: the error's field is `{}`; expected `{field}`",
        error.field
    );
    Ok(())
}

pub(crate) fn panic_text(payload: &(dyn Any + Send)) -> String {
    payload
        .downcast_ref::<&str>()
        .map(|text| (*text).to_owned())
        .or_else(|| payload.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "without a message".to_owned())
}

/// What a generation told.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Heard {
    pub(crate) text: String,
    /// Ids of the tokens, where the engine knows them.
    pub(crate) tokens: Vec<Option<u32>>,
    /// `done, total` of each prefill event.
    pub(crate) prefill: Vec<(u64, u64)>,
    /// Kinds of events that came after the sink said stop.
    pub(crate) after_stop: usize,
    /// Lengths of the log probabilities of each token, and whether they are in order and at most 0.
    pub(crate) logprobs: Vec<(usize, bool)>,
}

impl Heard {
    pub(crate) fn take(&mut self, event: &Event<'_>) {
        match event {
            Event::Prefill { done, total } => self.prefill.push((*done, *total)),
            Event::Token {
                token,
                text,
                logprobs,
            } => {
                self.tokens.push(*token);
                self.text.push_str(text);
                let sound = logprobs.iter().all(|one| one.logprob <= 0.0)
                    && logprobs
                        .first()
                        .is_none_or(|first| token.is_none_or(|token| first.token == token));
                self.logprobs.push((logprobs.len(), sound));
            }
            Event::Text { text } => self.text.push_str(text),
        }
    }

    /// The ids, if the engine knows them all.
    pub(crate) fn ids(&self) -> Option<Vec<u32>> {
        self.tokens.iter().copied().collect()
    }
}

/// A sink that stops as a case wants.
pub(crate) struct Listener<S, P> {
    pub(crate) heard: Heard,
    stopped: bool,
    stop: S,
    poll: P,
}

impl<S: FnMut(&Heard, &Event<'_>) -> bool + Send, P: Fn(&Heard) -> bool + Send> Listener<S, P> {
    pub(crate) fn new(stop: S, poll: P) -> Self {
        Self {
            heard: Heard::default(),
            stopped: false,
            stop,
            poll,
        }
    }
}

impl<S: FnMut(&Heard, &Event<'_>) -> bool + Send, P: Fn(&Heard) -> bool + Send> Sink
    for Listener<S, P>
{
    fn on_event(&mut self, event: Event<'_>) -> Control {
        if self.stopped {
            self.heard.after_stop += 1;
        }
        self.heard.take(&event);
        self.stopped |= (self.stop)(&self.heard, &event);
        if self.stopped {
            Control::Stop
        } else {
            Control::Continue
        }
    }

    fn should_stop(&self) -> bool {
        self.stopped || (self.poll)(&self.heard)
    }
}

/// Greedy, with as many tokens, past the model's own end.
pub(crate) fn greedy(tokens: u32) -> GenerateOptions {
    GenerateOptions {
        sampling: Sampling {
            temperature: Some(0.0),
            ..Sampling::default()
        },
        max_tokens: Some(tokens),
        ignore_end: true,
        ..GenerateOptions::default()
    }
}

/// Generates to the end.
pub(crate) fn generate(
    model: &dyn TextModel,
    prompt: &Prompt,
    options: &GenerateOptions,
) -> backplane_plugin_api::Result<(Heard, Completion)> {
    let mut listener = Listener::new(|_, _| false, |_| false);
    let request = GenerateRequest {
        prompt: prompt.clone(),
        options: options.clone(),
    };
    let completion = model.generate(&request, &mut listener)?;
    Ok((listener.heard, completion))
}

impl Bench {
    pub(crate) fn new(backend: Arc<dyn Backend>, path: PathBuf, options: Options) -> Self {
        Self {
            backend,
            path,
            options,
            model: OnceLock::new(),
        }
    }

    /// The model, loaded once for all cases.
    pub(crate) fn model(&self) -> Result<Arc<dyn TextModel>, Outcome> {
        let loaded = self
            .model
            .get_or_init(|| self.backend.load(&self.path, &self.options.load));
        loaded
            .clone()
            .map_err(|error| Outcome::Failed(format!("the model does not load: {error}")))
    }

    /// The model, loaded for one case.
    pub(crate) fn own_model(&self, context: Option<u32>) -> Result<Arc<dyn TextModel>, Outcome> {
        let options = LoadOptions {
            context: context.or(self.options.load.context),
            ..self.options.load.clone()
        };
        need("load", self.backend.load(&self.path, &options))
    }

    pub(crate) fn prompt(&self) -> Prompt {
        Prompt::text(&self.options.prompt)
    }

    /// A different prompt for each index.
    pub(crate) fn numbered_prompt(&self, index: usize) -> Prompt {
        const WORDS: [&str; 6] = ["red", "seven", "mountain", "quietly", "Paris", "glass"];
        Prompt::text(format!(
            "{} {}: {}",
            WORDS[index % WORDS.len()],
            index,
            self.options.prompt
        ))
    }

    /// A prompt of many tokens that leaves room in the context: at least a word a token.
    pub(crate) fn long_prompt(&self, model: &dyn TextModel) -> Prompt {
        let context = model.info().loaded_context as usize;
        let room = context.saturating_sub(64).clamp(1, 4000);
        let mut text = String::new();
        // About five bytes a word; a byte is a token at worst.
        let words = if let Ok(tokens) = model.tokenize("stone water ", true, false) {
            2 * room / tokens.len().max(1)
        } else {
            room / 8
        };
        for index in 0..words.max(1) {
            text += if index % 2 == 0 { "stone " } else { "water " };
        }
        Prompt::text(text)
    }
}
