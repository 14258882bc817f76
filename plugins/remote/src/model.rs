//! The contract's `TextModel` over an endpoint.

use crate::NAME;
use crate::errors::Place;
use crate::fields::Fields;
use crate::request::{self, Api};
use backplane_llama_server::Stops;
use backplane_llama_server::http::{Client, HttpError};
use backplane_llama_server::openai::{self, Chunk, Token, Usage};
use backplane_llama_server::request::fresh_seed;
use backplane_plugin_api::sdk::{BatchSink, Result, Sink, TextModel, side_by_side};
use backplane_plugin_api::types::{
    ChatRequest, Classification, ClassifyRequest, Completion, Control, Error, ErrorCode, Event,
    FinishReason, GenerateOptions, GenerateRequest, Metrics, ModelInfo, Prompt, TokenLogprob,
};
use serde_json::{Map, Value, json};
use std::cell::RefCell;
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

/// A model of an endpoint.
#[derive(Debug)]
pub(crate) struct Model {
    place: Place,
    /// In requests.
    name: String,
    info: ModelInfo,
    fields: Fields,
    client: Client,
    closed: AtomicBool,
    counters: Counters,
}

#[derive(Debug, Default)]
struct Counters {
    requests: AtomicU64,
    failed: AtomicU64,
    prompt_tokens: AtomicU64,
    cached_tokens: AtomicU64,
    generated: AtomicU64,
    running: AtomicU64,
}

impl Model {
    pub(crate) fn new(
        place: Place,
        name: String,
        info: ModelInfo,
        fields: Fields,
        client: Client,
    ) -> Self {
        Self {
            place,
            name,
            info,
            fields,
            client,
            closed: AtomicBool::new(false),
            counters: Counters::default(),
        }
    }

    fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    fn closed_error(&self) -> Error {
        Error::new(
            ErrorCode::Closed,
            format!("{}: the model is closed", self.place),
        )
    }

    fn error(&self, error: HttpError) -> Error {
        match self.is_closed() {
            true => self.closed_error(),
            false => self.place.error(error),
        }
    }

    /// What an endpoint has no call for.
    fn lacks(&self, what: &str) -> Error {
        Error::new(
            ErrorCode::Unsupported,
            format!("{}: an endpoint can't {what}", self.place),
        )
    }

    fn run(
        &self,
        api: Api,
        prompt: Map<String, Value>,
        options: &GenerateOptions,
        sink: &mut dyn Sink,
    ) -> Result<Completion> {
        let counters = &self.counters;
        let count = |counter: &AtomicU64, by| counter.fetch_add(by, Ordering::Relaxed);
        count(&counters.requests, 1);
        count(&counters.running, 1);
        let result = self.generation(api, prompt, options, sink);
        counters.running.fetch_sub(1, Ordering::Relaxed);
        match &result {
            Ok(done) => {
                count(&counters.prompt_tokens, done.prompt_tokens);
                count(&counters.cached_tokens, done.cached_tokens);
                count(&counters.generated, done.completion_tokens);
            }
            Err(_) => {
                count(&counters.failed, 1);
            }
        }
        result
    }

    fn generation(
        &self,
        api: Api,
        prompt: Map<String, Value>,
        options: &GenerateOptions,
        sink: &mut dyn Sink,
    ) -> Result<Completion> {
        if self.is_closed() {
            return Err(self.closed_error());
        }
        let drawn = || fresh_seed() & u64::from(i32::MAX as u32);
        let seed = options.sampling.seed.unwrap_or_else(drawn);
        let mut body = request::settings(&self.name, &self.fields, options, api, seed)?;
        body.extend(prompt);
        let started = Instant::now();
        let mut heard = Heard::new(options);
        heard.waits_for_usage = self.fields.has("stream_options");
        let sink = RefCell::new(sink);
        // The sink is busy only while it takes an event, and then it answers by itself.
        let cancelled = || sink.try_borrow().is_ok_and(|sink| sink.should_stop());
        let stop = || cancelled() || self.is_closed();
        if cancelled() {
            heard.cancelled = true;
        } else if options.max_tokens != Some(0) {
            let take = &mut |chunk| heard.take(chunk, &mut **sink.borrow_mut());
            let result = match api {
                Api::Text => openai::completions(&self.client, body, &stop, take),
                Api::Chat => openai::chat_completions(&self.client, body, &stop, take),
            };
            match result {
                Ok(()) => {}
                Err(_) if cancelled() && !self.is_closed() => heard.cancelled = true,
                Err(error) => return Err(self.error(error)),
            }
        }
        heard.end(&mut **sink.borrow_mut());
        if let Some(mut error) = heard.failed.take() {
            error.message = format!("{}: {}", self.place, error.message);
            return Err(error);
        }
        let (finish_reason, stop_string) = heard.finish(options.max_tokens);
        let wall = started.elapsed().as_secs_f64();
        let prefill_s = heard
            .first_token
            .map_or(wall, |first| first.duration_since(started).as_secs_f64());
        let usage = heard.usage.unwrap_or_default();
        Ok(Completion {
            finish_reason,
            stop_string,
            prompt_tokens: usage.prompt_tokens,
            cached_tokens: usage.cached_tokens.min(usage.prompt_tokens),
            completion_tokens: heard.tokens,
            seed: if self.fields.has("seed") { seed } else { 0 },
            queue_s: 0.0,
            prefill_s,
            decode_s: wall - prefill_s,
        })
    }

    fn classify_one(&self, prompt: &Prompt, top: u32) -> Result<Classification> {
        if self.is_closed() {
            return Err(self.closed_error());
        }
        let options = GenerateOptions {
            max_tokens: Some(1),
            // One more is asked for: that is the one which is chosen.
            logprobs: Some(top.saturating_sub(1)),
            ..GenerateOptions::default()
        };
        let mut body = request::settings(&self.name, &self.fields, &options, Api::Text, 0)?;
        body.insert("temperature".into(), 0.into());
        body.remove("stream_options");
        body.extend(of_prompt(prompt)?);
        let chunks = openai::completion(&self.client, body, &|| self.is_closed());
        let mut found = Classification {
            prompt_tokens: 0,
            top: vec![],
            logits: None,
        };
        for chunk in chunks.map_err(|error| self.error(error))? {
            match chunk {
                Chunk::Usage(usage) => found.prompt_tokens = usage.prompt_tokens,
                Chunk::Text { tokens, .. } if found.top.is_empty() => {
                    let likeliest = tokens.first().map(|token| &token.top);
                    found.top = likeliest.into_iter().flatten().filter_map(told).collect();
                }
                _ => {}
            }
        }
        if found.top.is_empty() && top > 0 {
            return Err(Error {
                message: format!("{}: the endpoint gives no log probabilities", self.place),
                ..Error::unsupported_field("top", NAME)
            });
        }
        found.top.truncate(top as usize);
        Ok(found)
    }
}

/// A token as the contract tells it; `None` where its probability is not known.
fn told(token: &Token) -> Option<TokenLogprob> {
    Some(TokenLogprob {
        token: token.id.unwrap_or(TokenLogprob::UNKNOWN),
        text: token.text.clone(),
        // Rounding may bring it above nothing.
        logprob: token.logprob?.min(0.0),
    })
}

/// The prompt's part of a request for text.
fn of_prompt(prompt: &Prompt) -> Result<Map<String, Value>> {
    let (empty, value) = match prompt {
        Prompt::Text { text, .. } => (text.is_empty(), json!(text)),
        Prompt::Tokens(tokens) => (tokens.is_empty(), json!(tokens)),
    };
    if empty {
        let message = "empty prompt: expected at least one token";
        return Err(Error::invalid_field("prompt", message));
    }
    Ok(Map::from_iter([("prompt".to_owned(), value)]))
}

/// What came of a stream so far.
struct Heard {
    /// Tokens told.
    tokens: u64,
    most: Option<u64>,
    /// Pieces of text past the last token that was asked for.
    past: u32,
    first_token: Option<Instant>,
    /// Log probabilities are wanted, with this many others.
    others: Option<usize>,
    logprobs_came: bool,
    text_came: bool,
    stops: Stops,
    stop_string: Option<String>,
    /// Within what an endpoint keeps apart as reasoning.
    reasoning: bool,
    finish: Option<String>,
    usage: Option<Usage>,
    waits_for_usage: bool,
    cancelled: bool,
    failed: Option<Error>,
}

impl Heard {
    fn new(options: &GenerateOptions) -> Self {
        Self {
            tokens: 0,
            most: options.max_tokens.map(u64::from),
            past: 0,
            first_token: None,
            others: options.logprobs.map(|count| count as usize),
            logprobs_came: false,
            text_came: false,
            stops: Stops::new(options.stop.clone()),
            stop_string: None,
            reasoning: false,
            finish: None,
            usage: None,
            waits_for_usage: false,
            cancelled: false,
            failed: None,
        }
    }

    fn take(&mut self, chunk: Chunk, sink: &mut dyn Sink) -> ControlFlow<()> {
        match chunk {
            Chunk::Text {
                text,
                reasoning,
                tokens,
            } => {
                let text = self.joined(&reasoning, &text);
                let full = self.most.is_some_and(|most| self.tokens >= most);
                if full && (self.past > 0 || !tokens.is_empty()) {
                    // It goes on past what was asked of it: it is left.
                    self.finish = Some("length".into());
                    return ControlFlow::Break(());
                }
                let control = if full {
                    // Text of the last tokens, held back until now.
                    self.past += 1;
                    self.more_text(&text, sink)
                } else {
                    self.text(&text, &tokens, sink)
                };
                if control == Control::Stop {
                    self.cancelled = true;
                    return ControlFlow::Break(());
                }
                if self.stop_string.is_some() {
                    return ControlFlow::Break(());
                }
            }
            Chunk::ToolCall => {
                let message = "the model calls a tool, which was not offered and is no text";
                self.failed = Some(Error::new(ErrorCode::Device, message));
                return ControlFlow::Break(());
            }
            Chunk::Finish(reason) => self.finish = Some(reason),
            Chunk::Usage(usage) => self.usage = Some(usage),
        }
        let over = self.finish.is_some() && (self.usage.is_some() || !self.waits_for_usage);
        match over {
            true => ControlFlow::Break(()),
            false => ControlFlow::Continue(()),
        }
    }

    /// Reasoning that the endpoint keeps apart is told as models write it.
    fn joined(&mut self, reasoning: &str, text: &str) -> String {
        let mut joined = String::new();
        if !reasoning.is_empty() {
            if !std::mem::replace(&mut self.reasoning, true) {
                joined += "<think>\n";
            }
            joined += reasoning;
        }
        if !text.is_empty() {
            if std::mem::replace(&mut self.reasoning, false) {
                joined += "\n</think>\n\n";
            }
            joined += text;
        }
        joined
    }

    fn text(&mut self, text: &str, tokens: &[Token], sink: &mut dyn Sink) -> Control {
        self.first_token.get_or_insert_with(Instant::now);
        self.text_came = true;
        self.logprobs_came |= !tokens.is_empty();
        let last = tokens.last();
        let before = &tokens[..tokens.len().saturating_sub(1)];
        // Text comes with the last of its tokens, as it is certain only then.
        for token in before {
            if self.token("", Some(token), sink) == Control::Stop {
                return Control::Stop;
            }
        }
        let (text, stop_string) = self.stops.push(text);
        self.stop_string = stop_string;
        self.token(&text, last, sink)
    }

    fn more_text(&mut self, text: &str, sink: &mut dyn Sink) -> Control {
        let (text, stop_string) = self.stops.push(text);
        self.stop_string = stop_string;
        match text.is_empty() {
            true => Control::Continue,
            false => sink.on_event(Event::Text { text: &text }),
        }
    }

    fn token(&mut self, text: &str, token: Option<&Token>, sink: &mut dyn Sink) -> Control {
        self.tokens += 1;
        let mut logprobs = vec![];
        if let (Some(others), Some(token)) = (self.others, token)
            && let Some(chosen) = told(token)
        {
            let same = |other: &TokenLogprob| match (other.id(), chosen.id()) {
                (Some(other), Some(chosen)) => other == chosen,
                _ => other.text == chosen.text,
            };
            let top = token.top.iter().filter_map(told);
            let top: Vec<_> = top.filter(|other| !same(other)).take(others).collect();
            logprobs = std::iter::once(chosen).chain(top).collect();
        }
        sink.on_event(Event::Token {
            token: token.and_then(|token| token.id),
            text,
            logprobs: &logprobs,
        })
    }

    /// Tells what is left at the end.
    fn end(&mut self, sink: &mut dyn Sink) {
        if self.cancelled || self.failed.is_some() {
            return;
        }
        if self.stop_string.is_none() {
            let rest = self.stops.rest();
            if !rest.is_empty() && sink.on_event(Event::Text { text: &rest }) == Control::Stop {
                self.cancelled = true;
                return;
            }
        }
        if self.others.is_some() && self.text_came && !self.logprobs_came {
            self.failed = Some(Error {
                message: "the endpoint gives no log probabilities".into(),
                ..Error::unsupported_field("logprobs", NAME)
            });
            return;
        }
        match self.finish.as_deref() {
            Some("content_filter") => {
                let message = "the endpoint's filter ended the answer (content_filter)";
                self.failed = Some(Error::new(ErrorCode::Device, message));
            }
            Some("error") => {
                let message = "the endpoint ended the answer with an error";
                self.failed = Some(Error::new(ErrorCode::Device, message));
            }
            _ => self.unseen_tokens(sink),
        }
    }

    /// Tokens that the endpoint counts and did not tell one by one. An end token, which some count, is none of them.
    fn unseen_tokens(&mut self, sink: &mut dyn Sink) {
        let counted = self.usage.map_or(0, |usage| usage.completion_tokens);
        let counted = self.most.map_or(counted, |most| counted.min(most));
        let ended = self.ended_by_itself();
        if ended && counted == self.tokens + 1 {
            return;
        }
        // No more than a hostile count may claim is told in events; the number itself is the endpoint's.
        const MOST: u64 = 1 << 20;
        let unseen = counted.saturating_sub(self.tokens).min(MOST);
        for _ in 0..unseen {
            if self.token("", None, sink) == Control::Stop {
                self.cancelled = true;
                return;
            }
        }
    }

    fn ended_by_itself(&self) -> bool {
        !matches!(
            self.finish.as_deref(),
            Some("length" | "max_tokens" | "model_length")
        )
    }

    fn finish(&self, max_tokens: Option<u32>) -> (FinishReason, Option<String>) {
        if self.cancelled {
            return (FinishReason::Cancelled, None);
        }
        if let Some(stop) = &self.stop_string {
            return (FinishReason::StopString, Some(stop.clone()));
        }
        match max_tokens {
            Some(0) => (FinishReason::Length, None),
            _ if self.ended_by_itself() => (FinishReason::Stop, None),
            // As far as it was asked to go, else as far as it could.
            Some(most) if self.tokens >= u64::from(most) || self.usage.is_none() => {
                (FinishReason::Length, None)
            }
            _ => (FinishReason::ContextFull, None),
        }
    }
}

impl TextModel for Model {
    fn info(&self) -> ModelInfo {
        self.info.clone()
    }

    fn generate(&self, request: &GenerateRequest, sink: &mut dyn Sink) -> Result<Completion> {
        let prompt = of_prompt(&request.prompt)?;
        self.run(Api::Text, prompt, &request.options, sink)
    }

    fn chat(&self, request: &ChatRequest, sink: &mut dyn Sink) -> Result<Completion> {
        if request.tools.is_some() {
            return Err(Error::unsupported_field("tools", NAME));
        }
        if request.messages.is_empty() {
            let message = "no messages: expected at least one";
            return Err(Error::invalid_field("messages", message));
        }
        let messages = serde_json::to_value(&request.messages)
            .map_err(|error| Error::invalid_field("messages", format!("messages: {error}")))?;
        let mut prompt = Map::from_iter([("messages".to_owned(), messages)]);
        if !request.template_options.is_empty() {
            if !self.fields.has("template_options") {
                return Err(Error::unsupported_field("template_options", NAME));
            }
            let options = request.template_options.clone();
            prompt.insert("chat_template_kwargs".into(), options.into());
        }
        self.run(Api::Chat, prompt, &request.options, sink)
    }

    fn render_chat(&self, _: &ChatRequest) -> Result<String> {
        Err(self.lacks("show a chat as its template writes it"))
    }

    fn classify(&self, request: &ClassifyRequest) -> Result<Vec<Result<Classification>>> {
        if let Some(name) = request.extra.keys().next() {
            return Err(Error::unsupported_field(name.clone(), NAME));
        }
        if request.logits {
            return Err(Error::unsupported_field("logits", NAME));
        }
        let one = |prompt| self.classify_one(prompt, request.top);
        Ok(request.prompts.iter().map(one).collect())
    }

    fn batch_generate(
        &self,
        requests: &[GenerateRequest],
        sink: &mut dyn BatchSink,
    ) -> Result<Vec<Result<Completion>>> {
        side_by_side(self, requests, sink)
    }

    fn tokenize(&self, _: &str, _: bool, _: bool) -> Result<Vec<u32>> {
        Err(self.lacks("tell the tokens of a text"))
    }

    fn detokenize(&self, _: &[u32], _: bool) -> Result<Vec<u8>> {
        Err(self.lacks("tell the text of tokens"))
    }

    fn metrics(&self) -> Metrics {
        let counters = &self.counters;
        [
            ("requests_total", &counters.requests),
            ("requests_failed_total", &counters.failed),
            ("requests_running", &counters.running),
            ("prompt_tokens_total", &counters.prompt_tokens),
            ("cached_tokens_total", &counters.cached_tokens),
            ("tokens_generated_total", &counters.generated),
        ]
        .into_iter()
        .map(|(name, counter)| (name.to_owned(), counter.load(Ordering::Relaxed) as f64))
        .collect()
    }

    fn close(&self) -> Result<()> {
        // Running calls see it within moments, and close their connections.
        self.closed.store(true, Ordering::Release);
        Ok(())
    }
}
