//! The check that a new module passes before it takes a model over: does it answer at all, and the same twice?
//!
//! A fixed prompt is continued greedily, twice. Both answers must be equal, not empty (unless the old module says nothing
//! either), and their log probabilities numbers no greater than 0, where the backend tells any. That proves that the
//! module loads this model, computes, and repeats itself. It can't prove that the answer is right: an improved kernel may
//! well answer otherwise than the old one, so whether both say the same is reported and not required.

use backplane_plugin_api::sdk::{Sink, TextModel};
use backplane_plugin_api::types::{
    Completion, Control, Error, ErrorCode, Event, FinishReason, GenerateOptions, GenerateRequest,
    Prompt, Sampling,
};
use std::time::{Duration, Instant};

/// What is continued.
const PROMPT: &str = "The capital of France is";
/// Tokens of the answer.
const TOKENS: u32 = 8;
/// Time for one answer.
const LIMIT: Duration = Duration::from_secs(60);

/// What a model said.
#[derive(Debug, PartialEq)]
struct Answer {
    text: String,
    tokens: Vec<Option<u32>>,
}

/// Checks a new model; tells whether it answers as the old one does, where that one answers at all.
///
/// # Errors
/// Why it is not fit, in one line.
pub(super) fn check(new: &dyn TextModel, old: &dyn TextModel) -> Result<Option<bool>, String> {
    let first = ask(new)?;
    let second = ask(new)?;
    if first != second {
        return Err(format!(
            "it answers {:?} and then {:?} to the same greedy request",
            first.text, second.text
        ));
    }
    let before = ask(old).ok();
    let said_nothing = |answer: &Answer| answer.tokens.is_empty() && answer.text.is_empty();
    if said_nothing(&first) && !before.as_ref().is_some_and(said_nothing) {
        return Err("its answer is empty".to_owned());
    }
    Ok(before.map(|before| before == first))
}

fn ask(model: &dyn TextModel) -> Result<Answer, String> {
    let mut request = GenerateRequest {
        prompt: Prompt::text(PROMPT),
        options: GenerateOptions {
            sampling: Sampling {
                temperature: Some(0.0),
                seed: Some(1),
                ..Sampling::default()
            },
            max_tokens: Some(TOKENS),
            logprobs: Some(0),
            ..GenerateOptions::default()
        },
    };
    match generate(model, &request) {
        Err(Failure::Call(error)) if error.code == ErrorCode::UnsupportedField => {
            request.options.logprobs = None;
            generate(model, &request)
        }
        answer => answer,
    }
    .map_err(|failure| match failure {
        Failure::Call(error) => format!("a greedy request fails: {error}"),
        Failure::Answer(why) => why,
    })
}

enum Failure {
    Call(Error),
    Answer(String),
}

fn generate(model: &dyn TextModel, request: &GenerateRequest) -> Result<Answer, Failure> {
    let mut listener = Listener {
        answer: Answer {
            text: String::new(),
            tokens: Vec::new(),
        },
        odd: None,
        until: Instant::now() + LIMIT,
    };
    let ended: Completion = model
        .generate(request, &mut listener)
        .map_err(Failure::Call)?;
    if let Some(odd) = listener.odd {
        let why = format!("the log probability of a token is {odd}, expected a number up to 0");
        return Err(Failure::Answer(why));
    }
    if ended.finish_reason == FinishReason::Cancelled {
        let why = format!("it has not answered after {LIMIT:?}");
        return Err(Failure::Answer(why));
    }
    Ok(listener.answer)
}

struct Listener {
    answer: Answer,
    /// A log probability that is none.
    odd: Option<f32>,
    until: Instant,
}

impl Sink for Listener {
    fn on_event(&mut self, event: Event<'_>) -> Control {
        match event {
            Event::Token {
                token,
                text,
                logprobs,
            } => {
                self.answer.tokens.push(token);
                self.answer.text.push_str(text);
                // Rounding may bring the surest token a little above 0.
                let right = |value: f32| value.is_finite() && value < 1e-3;
                let odd = logprobs
                    .iter()
                    .map(|one| one.logprob)
                    .find(|it| !right(*it));
                self.odd = self.odd.or(odd);
            }
            Event::Text { text } => self.answer.text.push_str(text),
            Event::Prefill { .. } => {}
        }
        if self.should_stop() {
            Control::Stop
        } else {
            Control::Continue
        }
    }

    fn should_stop(&self) -> bool {
        Instant::now() >= self.until
    }
}
