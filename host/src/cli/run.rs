//! `run`: one reply.

use super::arguments::{Global, Run};
use super::interrupt::Interrupt;
use super::speaker::{self, Speaker};
use super::{output, registry, written};
use crate::error::{Error, Result};
use crate::registry::{Model, Reply};
use backplane_plugin_api::sdk::Sink;
use backplane_plugin_api::types::{
    ChatMessage, ChatRequest, Completion, Control, Event, FinishReason, GenerateRequest, Prompt,
    TokenLogprob,
};
use serde_json::{Value, json};
use std::io::{IsTerminal, Read, Write};
use std::process::ExitCode;

pub(super) fn run(global: &Global, verb: &Run) -> Result<ExitCode> {
    let prompt = if verb.tokens.is_empty() {
        text_of(verb.prompt.as_deref(), "PROMPT")?
    } else {
        String::new()
    };
    if verb.tokens.is_empty() && !verb.raw && prompt.trim().is_empty() {
        let message = "PROMPT is empty: there is nothing to answer";
        return Err(Error::usage(message, "say something"));
    }
    let interrupt = Interrupt::catch(true)?;
    let model = match speaker::elsewhere(&verb.elsewhere)? {
        Some(server) => Speaker::there(&server, &verb.model)?,
        None => Speaker::Here(registry(global)?.load(&verb.model, &verb.loading.options())?),
    };
    let mut sink = Printer {
        silent: verb.json,
        interrupt: interrupt.clone(),
        failed: None,
        ends_line: true,
    };
    let mut options = verb.generating.options();
    options.logprobs = verb.logprobs;
    let reply = if !verb.tokens.is_empty() {
        model.generate(
            &GenerateRequest {
                prompt: Prompt::Tokens(verb.tokens.clone()),
                options,
            },
            &mut sink,
        )
    } else if verb.raw {
        model.generate(
            &GenerateRequest {
                prompt: Prompt::Text {
                    text: prompt,
                    special: true,
                },
                options,
            },
            &mut sink,
        )
    } else {
        let system = verb
            .system
            .iter()
            .map(|text| ChatMessage::new("system", text));
        let messages = system.chain([ChatMessage::new("user", prompt)]).collect();
        model.chat(
            &ChatRequest {
                messages,
                options,
                ..ChatRequest::default()
            },
            &mut sink,
        )
    };
    sink.end_line()?;
    let reply = reply?;
    if reply.completion.finish_reason == FinishReason::Cancelled && interrupt.is_set() {
        return Err(Error::Interrupted);
    }
    if verb.json {
        output::json(&as_json(&model, &reply))?;
    } else if !reply.logprobs.is_empty() {
        output::line(&logprobs_table(&reply))?;
    }
    if reply.completion.finish_reason == FinishReason::ContextFull {
        let context = model.context();
        output::notice(global, &format!("the reply stops where {context} is full"));
    }
    tracing::info!("{}", speed(&reply.completion));
    Ok(ExitCode::SUCCESS)
}

/// The text given, or standard input where it is `-` or not given, without the end of its last line.
pub(super) fn text_of(given: Option<&str>, name: &str) -> Result<String> {
    match given {
        Some(text) if text != "-" => return Ok(text.to_owned()),
        None if std::io::stdin().is_terminal() => {
            let action = format!("give {name}, or pipe it: echo text | backplane ...");
            return Err(Error::usage(
                format!("no {name} was given, and standard input is a terminal"),
                action,
            ));
        }
        _ => {}
    }
    let text = standard_input()?;
    let text = text.strip_suffix('\n').unwrap_or(&text);
    Ok(text.strip_suffix('\r').unwrap_or(text).to_owned())
}

/// All of standard input, as it is.
pub(super) fn standard_input() -> Result<String> {
    let mut bytes = Vec::new();
    std::io::stdin()
        .read_to_end(&mut bytes)
        .map_err(|error| Error::file("standard input", &error))?;
    String::from_utf8(bytes).map_err(|error| {
        let at = error.utf8_error().valid_up_to();
        Error::usage(
            format!("standard input is not UTF-8 text: byte {at}"),
            "convert it to UTF-8",
        )
    })
}

/// Prints a reply as it comes; stops at an interrupt, or when nobody reads any more.
pub(crate) struct Printer {
    pub(crate) silent: bool,
    pub(crate) interrupt: Interrupt,
    pub(crate) failed: Option<std::io::Error>,
    pub(crate) ends_line: bool,
}

impl Printer {
    /// Ends the last line, where it is not ended; tells whether all could be written.
    pub(crate) fn end_line(&mut self) -> Result<()> {
        let failed = self.failed.take();
        if failed.is_none() && !std::mem::replace(&mut self.ends_line, true) {
            output::line("")?;
        }
        written(failed.map_or(Ok(()), Err))
    }
}

impl Sink for Printer {
    fn on_event(&mut self, event: Event<'_>) -> Control {
        if let (false, Event::Token { text, .. } | Event::Text { text }) = (self.silent, &event)
            && !text.is_empty()
        {
            let mut out = std::io::stdout().lock();
            if let Err(error) = out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
                self.failed = Some(error);
                return Control::Stop;
            }
            self.ends_line = text.ends_with('\n');
        }
        if self.interrupt.is_set() {
            Control::Stop
        } else {
            Control::Continue
        }
    }

    fn should_stop(&self) -> bool {
        self.interrupt.is_set()
    }
}

/// Tokens per second of reading the prompt and of generating. The first token comes with the prompt.
fn rates(completion: &Completion) -> (f64, f64) {
    let rate = |count: u64, seconds: f64| {
        if seconds > 0.0 {
            count as f64 / seconds
        } else {
            0.0
        }
    };
    let read = completion
        .prompt_tokens
        .saturating_sub(completion.cached_tokens);
    (
        rate(read, completion.prefill_s),
        rate(
            completion.completion_tokens.saturating_sub(1),
            completion.decode_s,
        ),
    )
}

/// One line of what a reply took.
pub(crate) fn speed(completion: &Completion) -> String {
    let (prefill, decode) = rates(completion);
    format!(
        "{} prompt tokens ({} from the cache) at {prefill:.0} tokens/s, {} tokens at {decode:.1} tokens/s",
        completion.prompt_tokens, completion.cached_tokens, completion.completion_tokens
    )
}

fn as_json(model: &Speaker, reply: &Reply) -> Value {
    let completion = &reply.completion;
    let (prefill, decode) = rates(completion);
    let mut answer = json!({
        "model": match model {
            Speaker::Here(model) => model.path().display().to_string(),
            Speaker::There { model, .. } => model.clone(),
        },
        "text": reply.text,
        "tokens": reply.tokens,
        "finish_reason": completion.finish_reason,
        "stop_string": completion.stop_string,
        "usage": {
            "prompt_tokens": completion.prompt_tokens,
            "cached_tokens": completion.cached_tokens,
            "completion_tokens": completion.completion_tokens,
        },
        "timings": {
            "load_s": model.here().map(Model::load_s),
            "queue_s": completion.queue_s,
            "prefill_s": completion.prefill_s,
            "decode_s": completion.decode_s,
            "prefill_tokens_per_s": prefill,
            "decode_tokens_per_s": decode,
        },
        "seed": completion.seed,
        "backend": reply.backend,
        "notice": reply.notice,
        "selection": model.here().map(Model::trace),
    });
    if let Speaker::There { server, .. } = model {
        answer["server"] = json!(server.url());
    }
    if !reply.logprobs.is_empty() {
        answer["logprobs"] = reply
            .logprobs
            .iter()
            .filter_map(|token| {
                let (chosen, top) = token.split_first()?;
                Some(json!({ "token": chosen.id(), "text": chosen.text, "logprob": chosen.logprob, "top": likeliest(top) }))
            })
            .collect();
    }
    answer
}

/// Tokens with their probabilities; an id that the engine can't know is null.
pub(super) fn likeliest(top: &[TokenLogprob]) -> Value {
    let one = |token: &TokenLogprob| json!({ "token": token.id(), "text": token.text, "logprob": token.logprob });
    top.iter().map(one).collect()
}

fn logprobs_table(reply: &Reply) -> String {
    let row = |token: &Vec<TokenLogprob>| {
        let (chosen, top) = token.split_first()?;
        let others: Vec<String> = top
            .iter()
            .map(|other| format!("{:?} {:.3}", other.text, other.logprob))
            .collect();
        Some(vec![
            chosen.id().map_or("-".to_owned(), |id| id.to_string()),
            format!("{:?}", chosen.text),
            format!("{:.3}", chosen.logprob),
            others.join("  "),
        ])
    };
    output::table(
        &["token", "text", "logprob", "likeliest"],
        reply.logprobs.iter().filter_map(row).collect(),
    )
}
