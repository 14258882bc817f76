//! The contract's `TextModel` over a server.

use crate::bridge::start_error;
use crate::http::{Client, HttpError};
use crate::native::{self, Chunk, End};
use crate::pieces;
use crate::request;
use crate::server::{Options, Server};
use crate::stops::Stops;
use backplane_plugin_api::sdk::{BatchSink, Result, Sink, TextModel, side_by_side};
use backplane_plugin_api::types::{
    ChatRequest, Classification, ClassifyRequest, Completion, Control, Error, ErrorCode, Event,
    FinishReason, GenerateOptions, GenerateRequest, Metrics, ModelInfo, Prompt, TokenLogprob,
};
use serde_json::{Map, Value, json};
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Time in which a server whose connections fail is expected to end, where it crashed.
const CRASH_SEEN_WITHIN: Duration = Duration::from_millis(500);
/// Starts after crashes, for one model.
const RESTARTS: u32 = 5;

/// A model in a server.
pub(crate) struct Model {
    backend: &'static str,
    info: ModelInfo,
    options: Options,
    /// Beginning-of-sequence token, where the server puts one before a text.
    bos: Option<u32>,
    /// Tokens that a text is written without, sorted.
    special: Vec<u32>,
    running: Mutex<Running>,
    closed: AtomicBool,
    counters: Counters,
}

struct Running {
    server: Arc<Server>,
    restarts: u32,
}

#[derive(Default)]
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
        backend: &'static str,
        mut info: ModelInfo,
        options: Options,
        server: Server,
    ) -> Result<Self> {
        // The server rounds a small context up, and holds a longer one than it was asked for.
        info.loaded_context = u64::from(server.context().min(options.context));
        if let Some(template) = server.properties()["chat_template"].as_str() {
            // What the server falls back to where the file has none is not the model's.
            if info.chat_template.is_some() {
                info.chat_template = Some(template.to_owned());
            }
        }
        if let Some(build) = server.properties()["build_info"].as_str() {
            info.details
                .push(("server".into(), format!("llama-server {build}")));
        }
        info.details
            .push(("process".into(), server.id().to_string()));
        let special = crate::describe::special_tokens(&info.path);
        let mut model = Self {
            backend,
            info,
            options,
            bos: None,
            special,
            running: Mutex::new(Running {
                server: Arc::new(server),
                restarts: 0,
            }),
            closed: AtomicBool::new(false),
            counters: Counters::default(),
        };
        let empty = model.call(&|| false, |client, stop| {
            native::tokenize(client, "", true, false, stop)
        })?;
        model.bos = empty.first().copied();
        Ok(model)
    }

    fn running(&self) -> MutexGuard<'_, Running> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The server; started again if it crashed since.
    fn server(&self) -> Result<Arc<Server>> {
        if self.closed.load(Ordering::Acquire) {
            return Err(self.closed_error());
        }
        let mut running = self.running();
        let Some(how) = running.server.ended_within(Duration::ZERO) else {
            return Ok(running.server.clone());
        };
        let path = &self.info.path;
        if running.restarts >= RESTARTS {
            let message = format!(
                "{}: {how}; it was started again {RESTARTS} times",
                path.display()
            );
            return Err(Error::new(ErrorCode::Device, message).with_action("load the model again"));
        }
        tracing::warn!("{}: {how}: starting it again", path.display());
        running.restarts += 1;
        let server = Server::start(&self.options).map_err(|error| start_error(path, &error))?;
        running.server = Arc::new(server);
        Ok(running.server.clone())
    }

    /// Runs a call on the server; a failure is put into words by what became of it.
    fn call<T>(
        &self,
        stop: &dyn Fn() -> bool,
        call: impl FnOnce(&Client, &dyn Fn() -> bool) -> std::result::Result<T, HttpError>,
    ) -> Result<T> {
        let server = self.server()?;
        let stop = || stop() || self.closed.load(Ordering::Acquire);
        call(server.client(), &stop).map_err(|error| self.error(&server, error))
    }

    fn error(&self, server: &Server, error: HttpError) -> Error {
        if self.closed.load(Ordering::Acquire) {
            return self.closed_error();
        }
        let path = self.info.path.display();
        match error {
            HttpError::Stopped => Error::new(ErrorCode::Internal, "stopped before an answer"),
            HttpError::Tls(cause) => Error::new(ErrorCode::Device, format!("{path}: {cause}")),
            error @ HttpError::TimedOut(_) => Error::new(
                ErrorCode::Device,
                format!("{path}: llama-server gave {error}"),
            ),
            HttpError::Connection(cause) => match server.ended_within(CRASH_SEEN_WITHIN) {
                Some(how) => Error::new(ErrorCode::Device, format!("{path}: {how}"))
                    .with_action("send the request again: the server is started anew"),
                None => Error::new(ErrorCode::Device, format!("{path}: {cause}")),
            },
            HttpError::Answer(what) => Error::new(
                ErrorCode::Internal,
                format!("{path}: llama-server gave {what}"),
            ),
            HttpError::Refused {
                status,
                kind,
                message,
                ..
            } => {
                let code = match (status, &*kind) {
                    (_, "exceed_context_size_error") => ErrorCode::ContextOverflow,
                    (400..=499, _) => ErrorCode::InvalidRequest,
                    (503, _) => ErrorCode::Busy,
                    _ => ErrorCode::Device,
                };
                Error::new(code, format!("llama-server: {message}"))
            }
        }
    }

    fn closed_error(&self) -> Error {
        Error::new(
            ErrorCode::Closed,
            format!("{}: the model is closed", self.info.path.display()),
        )
    }

    /// Tokens of a prompt, with the beginning-of-sequence token as the model wants it: exactly one.
    fn prompt(&self, prompt: &Prompt, stop: &dyn Fn() -> bool) -> Result<Vec<u32>> {
        let tokens = match prompt {
            Prompt::Tokens(tokens) => tokens.clone(),
            Prompt::Text { text, special } => {
                let mut tokens = self.call(stop, |client, stop| {
                    native::tokenize(client, text, true, *special, stop)
                })?;
                if let Some(bos) = self.bos.filter(|_| *special) {
                    let spelled = tokens.iter().take_while(|&&token| token == bos).count();
                    tokens.drain(..spelled.saturating_sub(1));
                }
                tokens
            }
        };
        if tokens.is_empty() {
            return Err(Error::invalid_field(
                "prompt",
                "empty prompt: expected at least one token",
            ));
        }
        let vocabulary = self.info.vocabulary;
        let outside = |&&token: &&u32| vocabulary > 0 && u64::from(token) >= vocabulary;
        if let Some(token) = tokens.iter().find(outside) {
            let message =
                format!("prompt: token {token} is outside the vocabulary of {vocabulary}");
            return Err(Error::invalid_field("prompt", message));
        }
        let context = self.info.loaded_context;
        if tokens.len() as u64 >= context {
            let message = format!(
                "the prompt has {} tokens and the context {context}: at least one must be left for the answer",
                tokens.len()
            );
            return Err(Error {
                field: "prompt".into(),
                ..Error::new(ErrorCode::ContextOverflow, message)
            }
            .with_action("shorten the prompt or load the model with a longer context"));
        }
        Ok(tokens)
    }

    fn run(
        &self,
        prompt: &Prompt,
        options: &GenerateOptions,
        sink: &mut dyn Sink,
    ) -> Result<Completion> {
        let _running = InFlight::new(&self.counters);
        let result = self.generation(prompt, options, sink);
        match &result {
            Ok(done) => {
                let count = |counter: &AtomicU64, by| counter.fetch_add(by, Ordering::Relaxed);
                count(&self.counters.prompt_tokens, done.prompt_tokens);
                count(&self.counters.cached_tokens, done.cached_tokens);
                count(&self.counters.generated, done.completion_tokens);
            }
            Err(_) => {
                self.counters.failed.fetch_add(1, Ordering::Relaxed);
            }
        }
        result
    }

    fn generation(
        &self,
        prompt: &Prompt,
        options: &GenerateOptions,
        sink: &mut dyn Sink,
    ) -> Result<Completion> {
        if self.closed.load(Ordering::Acquire) {
            return Err(self.closed_error());
        }
        let seed = options.sampling.seed.unwrap_or_else(request::fresh_seed);
        let mut body = request::settings(self.backend, options, self.info.vocabulary, seed)?;
        let started = Instant::now();
        let cancelled = |prompt_tokens, heard: &Heard| Completion {
            finish_reason: FinishReason::Cancelled,
            stop_string: None,
            prompt_tokens,
            cached_tokens: 0,
            completion_tokens: heard.tokens,
            seed,
            queue_s: 0.0,
            prefill_s: started.elapsed().as_secs_f64(),
            decode_s: 0.0,
        };
        let mut heard = Heard::default();
        let sink = std::cell::RefCell::new(sink);
        // The sink is busy only while it takes an event, and then it answers by itself.
        let stop = || sink.try_borrow().is_ok_and(|sink| sink.should_stop());
        if stop() {
            return Ok(cancelled(0, &heard));
        }
        let tokens = match self.prompt(prompt, &stop) {
            Err(_) if stop() => return Ok(cancelled(0, &heard)),
            result => result?,
        };
        let prompt_tokens = tokens.len() as u64;
        let room = self.info.loaded_context - prompt_tokens;
        let asked = options.max_tokens.map(u64::from);
        if asked == Some(0) {
            return Ok(Completion {
                finish_reason: FinishReason::Length,
                prefill_s: 0.0,
                ..cancelled(prompt_tokens, &heard)
            });
        }
        let within = asked.filter(|&tokens| tokens <= room);
        body.insert("prompt".into(), json!(tokens));
        body.insert("n_predict".into(), within.unwrap_or(room).into());
        heard.logprobs = options.logprobs.map(|count| count as usize);
        heard.stop_tokens.clone_from(&options.stop_tokens);
        heard.special.clone_from(&self.special);
        heard.stops = Stops::new(options.stop.clone());
        // The size of the prompt is told before the server is asked, which tells of it late or not at all.
        heard.read = Some(0);
        let event = Event::Prefill {
            done: 0,
            total: prompt_tokens,
        };
        if sink.borrow_mut().on_event(event) == Control::Stop {
            return Ok(cancelled(prompt_tokens, &heard));
        }
        let result = self.call(&stop, |client, stop| {
            native::completion(client, body, stop, &mut |chunk| {
                heard.take(chunk, prompt_tokens, &mut **sink.borrow_mut())
            })
        });
        match result {
            Ok(()) => {}
            Err(_) if stop() && !self.closed.load(Ordering::Acquire) => heard.cancelled = true,
            Err(error) => return Err(error),
        }
        let (finish_reason, stop_string) = heard.finish(within.is_some());
        let wall = started.elapsed().as_secs_f64();
        let end = heard.end.take().unwrap_or_default();
        let (prefill_s, decode_s) = match heard.first_token {
            // Cut short: the server tells no times.
            Some(first) if end.prefill_s == 0.0 => {
                let prefill = first.duration_since(started).as_secs_f64();
                (prefill, wall - prefill)
            }
            _ => (end.prefill_s, end.decode_s),
        };
        Ok(Completion {
            finish_reason,
            stop_string,
            prompt_tokens,
            cached_tokens: end.cached_tokens.min(prompt_tokens),
            completion_tokens: heard.tokens,
            seed,
            queue_s: (wall - prefill_s - decode_s).max(0.0),
            prefill_s,
            decode_s,
        })
    }

    fn classify_one(&self, prompt: &Prompt, top: u32) -> Result<Classification> {
        let never = || false;
        let tokens = self.prompt(prompt, &never)?;
        let prompt_tokens = tokens.len() as u64;
        let mut found = Classification {
            prompt_tokens,
            top: vec![],
            logits: None,
        };
        if top == 0 {
            return Ok(found);
        }
        let body: Map<String, Value> = [
            ("prompt", json!(tokens)),
            ("n_predict", 1.into()),
            ("temperature", 0.into()),
            ("n_probs", top.into()),
            ("ignore_eos", false.into()),
            ("cache_prompt", true.into()),
            ("stream", false.into()),
        ]
        .into_iter()
        .map(|(key, value)| (key.to_owned(), value))
        .collect();
        let answer = self.call(&never, |client, stop| {
            client.post("/completion", &Value::Object(body), stop)
        })?;
        let list = answer["completion_probabilities"][0]["top_logprobs"].as_array();
        let one = |value: &Value| {
            Some(TokenLogprob {
                token: value["id"].as_u64().and_then(|id| u32::try_from(id).ok())?,
                text: value["token"].as_str()?.to_owned(),
                logprob: value["logprob"].as_f64()? as f32,
            })
        };
        found.top = list.into_iter().flatten().filter_map(one).collect();
        if found.top.is_empty() {
            let message = "llama-server gave no probabilities";
            return Err(Error::new(ErrorCode::Internal, message));
        }
        Ok(found)
    }
}

/// A running request, counted.
struct InFlight<'a>(&'a Counters);

impl<'a> InFlight<'a> {
    fn new(counters: &'a Counters) -> Self {
        counters.requests.fetch_add(1, Ordering::Relaxed);
        counters.running.fetch_add(1, Ordering::Relaxed);
        Self(counters)
    }
}

impl Drop for InFlight<'_> {
    fn drop(&mut self) {
        self.0.running.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A token as the server told of it; see [`Chunk::Token`].
struct Told {
    token: Option<u32>,
    text: String,
    count: u64,
    logprobs: Vec<(u32, String, f32)>,
}

/// What came of a stream so far.
#[derive(Default)]
struct Heard {
    /// Tokens told.
    tokens: u64,
    first_token: Option<Instant>,
    /// Prompt tokens of the last event about them.
    read: Option<u64>,
    logprobs: Option<usize>,
    stop_tokens: Vec<u32>,
    /// Tokens that a text is written without, sorted: the end tokens are among them.
    special: Vec<u32>,
    /// A token that is the end token if the end is the next thing heard, and so is not told yet.
    perhaps_end: Option<Told>,
    stopped_at_token: bool,
    stops: Stops,
    stop_string: Option<String>,
    cancelled: bool,
    end: Option<End>,
}

impl Heard {
    fn take(&mut self, chunk: Chunk, prompt_tokens: u64, sink: &mut dyn Sink) -> ControlFlow<()> {
        let control = match chunk {
            Chunk::Progress { done, .. } => {
                let done = done.min(prompt_tokens).max(self.read.unwrap_or(0));
                self.read = Some(done);
                sink.on_event(Event::Prefill {
                    done,
                    total: prompt_tokens,
                })
            }
            Chunk::Token {
                token,
                text,
                count,
                logprobs,
            } => {
                let told = Told {
                    token,
                    text,
                    count,
                    logprobs,
                };
                self.token_or_end(told, prompt_tokens, sink)
            }
            Chunk::End(end) => self.ended(end, prompt_tokens, sink),
        };
        if control == Control::Stop {
            self.cancelled = true;
        }
        if control == Control::Stop || self.stopped_at_token || self.stop_string.is_some() {
            ControlFlow::Break(())
        } else {
            ControlFlow::Continue(())
        }
    }

    /// Takes a token, and keeps it until the next chunk where it may be the end token: the server tells of that one too,
    /// mostly without a text, and only afterwards that it was the end.
    fn token_or_end(&mut self, told: Told, prompt_tokens: u64, sink: &mut dyn Sink) -> Control {
        let control = self.no_end(prompt_tokens, sink);
        if control == Control::Stop || self.stop_string.is_some() {
            return control;
        }
        let is = |tokens: &[u32]| told.token.is_some_and(|token| tokens.contains(&token));
        if (told.text.is_empty() || is(&self.special)) && !is(&self.stop_tokens) {
            self.perhaps_end = Some(told);
            return Control::Continue;
        }
        self.token(&told, prompt_tokens, sink)
    }

    /// Tells of the token that might have been the end token, and was not.
    fn no_end(&mut self, prompt_tokens: u64, sink: &mut dyn Sink) -> Control {
        match self.perhaps_end.take() {
            Some(told) => self.token(&told, prompt_tokens, sink),
            None => Control::Continue,
        }
    }

    fn token(&mut self, told: &Told, prompt_tokens: u64, sink: &mut dyn Sink) -> Control {
        let Told {
            token,
            text,
            count,
            logprobs,
        } = told;
        let (token, count) = (*token, *count);
        let control = self.held_back(count.saturating_sub(1), prompt_tokens, sink);
        if control == Control::Stop {
            return control;
        }
        if token.is_some_and(|token| self.stop_tokens.contains(&token)) {
            self.stopped_at_token = true;
            return self.rest(sink);
        }
        self.tokens += 1;
        let others = self.logprobs.map_or(0, |others| others + 1);
        let logprobs: Vec<TokenLogprob> = logprobs
            .iter()
            .take(others)
            .map(|(token, text, logprob)| TokenLogprob {
                token: *token,
                text: text.clone(),
                logprob: *logprob,
            })
            .collect();
        let (text, stop_string) = self.stops.push(text);
        self.stop_string = stop_string;
        sink.on_event(Event::Token {
            token,
            text: &text,
            logprobs: &logprobs,
        })
    }

    /// Gives out what only began a stop string.
    fn rest(&mut self, sink: &mut dyn Sink) -> Control {
        let text = self.stops.rest();
        if text.is_empty() {
            Control::Continue
        } else {
            sink.on_event(Event::Text { text: &text })
        }
    }

    /// Tells of tokens that the server passed over because their text is held back; it does not give their ids.
    fn held_back(&mut self, until: u64, prompt_tokens: u64, sink: &mut dyn Sink) -> Control {
        if self.first_token.is_none() {
            self.first_token = Some(Instant::now());
            if self.read.is_some_and(|read| read < prompt_tokens) {
                let (done, total) = (prompt_tokens, prompt_tokens);
                if sink.on_event(Event::Prefill { done, total }) == Control::Stop {
                    return Control::Stop;
                }
            }
        }
        while self.tokens < until {
            self.tokens += 1;
            let event = Event::Token {
                token: None,
                text: "",
                logprobs: &[],
            };
            if sink.on_event(event) == Control::Stop {
                return Control::Stop;
            }
        }
        Control::Continue
    }

    fn ended(&mut self, end: End, prompt_tokens: u64, sink: &mut dyn Sink) -> Control {
        let own = u64::from(end.stop_type == "eos");
        let mut control = match self.perhaps_end.take() {
            Some(told) if own == 0 => self.token(&told, prompt_tokens, sink),
            _ => Control::Continue,
        };
        if control == Control::Continue && self.stop_string.is_none() {
            control = self.held_back(end.count.saturating_sub(own), prompt_tokens, sink);
        }
        if control == Control::Continue && self.stop_string.is_none() {
            let (mut text, stop_string) = self.stops.push(&end.text);
            self.stop_string = stop_string;
            if self.stop_string.is_none() {
                text += &self.stops.rest();
            }
            if !text.is_empty() {
                control = sink.on_event(Event::Text { text: &text });
            }
        }
        self.end = Some(end);
        control
    }

    /// Why it ended; `asked`: the number of tokens was the caller's, not the context's.
    fn finish(&self, asked: bool) -> (FinishReason, Option<String>) {
        if self.cancelled {
            return (FinishReason::Cancelled, None);
        }
        if let Some(stop) = &self.stop_string {
            return (FinishReason::StopString, Some(stop.clone()));
        }
        match &self.end {
            Some(end) if end.stop_type == "limit" && asked => (FinishReason::Length, None),
            Some(end) if end.stop_type == "limit" => (FinishReason::ContextFull, None),
            _ => (FinishReason::Stop, None),
        }
    }
}

impl TextModel for Model {
    fn info(&self) -> ModelInfo {
        self.info.clone()
    }

    fn generate(&self, request: &GenerateRequest, sink: &mut dyn Sink) -> Result<Completion> {
        self.run(&request.prompt, &request.options, sink)
    }

    fn chat(&self, request: &ChatRequest, sink: &mut dyn Sink) -> Result<Completion> {
        let text = self.render_chat(request)?;
        let prompt = Prompt::Text {
            text,
            special: true,
        };
        self.run(&prompt, &request.options, sink)
    }

    fn render_chat(&self, request: &ChatRequest) -> Result<String> {
        if self.info.chat_template.is_none() {
            let message = format!(
                "{}: the model has no chat template",
                self.info.path.display()
            );
            return Err(Error::new(ErrorCode::TemplateRefused, message)
                .with_action("send a prompt without a template (`run --raw`)"));
        }
        let messages = serde_json::to_value(&request.messages)
            .map_err(|error| Error::invalid_field("messages", format!("messages: {error}")))?;
        let mut options = request.template_options.clone();
        let mut body = json!({ "messages": messages });
        if let Some(tools) = &request.tools {
            body["tools"] = tools.clone();
        }
        match options.remove("add_generation_prompt") {
            None => {}
            Some(Value::Bool(add)) => body["add_generation_prompt"] = add.into(),
            Some(other) => {
                let message = format!(
                    "template_options: add_generation_prompt is {other}; expected true or false"
                );
                return Err(Error::invalid_field("template_options", message));
            }
        }
        if !options.is_empty() {
            body["chat_template_kwargs"] = options.into();
        }
        let rendered = self.call(&|| false, |client, stop| {
            native::apply_template(client, &body, stop)
        });
        rendered.map_err(|error| match error.code {
            // The server's own words; a crash is an error of the device.
            ErrorCode::InvalidRequest => Error {
                code: ErrorCode::TemplateRefused,
                ..error
            },
            _ => error,
        })
    }

    fn classify(&self, request: &ClassifyRequest) -> Result<Vec<Result<Classification>>> {
        if let Some(name) = request.extra.keys().next() {
            return Err(Error::unsupported_field(name.clone(), self.backend));
        }
        if request.logits {
            return Err(Error::unsupported_field("logits", self.backend));
        }
        let _running = InFlight::new(&self.counters);
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

    fn tokenize(&self, text: &str, add_special: bool, parse_special: bool) -> Result<Vec<u32>> {
        self.call(&|| false, |client, stop| {
            native::tokenize(client, text, add_special, parse_special, stop)
        })
    }

    fn detokenize(&self, tokens: &[u32], special: bool) -> Result<Vec<u8>> {
        let vocabulary = self.info.vocabulary;
        if let Some(token) = tokens
            .iter()
            .find(|&&token| vocabulary > 0 && u64::from(token) >= vocabulary)
        {
            let message = format!("token {token} is outside the vocabulary of {vocabulary}");
            return Err(Error::invalid_field("tokens", message));
        }
        let written = |token: &u32| special || self.special.binary_search(token).is_err();
        let ids: Vec<u32> = tokens.iter().copied().filter(written).collect();
        let text = self.call(&|| false, |client, stop| {
            native::detokenize(client, &ids, stop)
        })?;
        // The server marks what is only part of a character; the file has its bytes.
        let exact = match text.contains(char::REPLACEMENT_CHARACTER) {
            true => pieces::exact(&self.info.path, &ids, &text),
            false => None,
        };
        Ok(exact.unwrap_or_else(|| text.into_bytes()))
    }

    fn metrics(&self) -> Metrics {
        let counters = &self.counters;
        let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed) as f64;
        let running = self.running();
        let restarts = f64::from(running.restarts);
        // Of the process that the engine really runs in: not the host's, nor the worker's.
        let server = &running.server;
        let memory = [
            ("memory_bytes", server.memory()),
            ("process_peak_memory_bytes", server.peak_memory()),
        ];
        let memory = memory
            .into_iter()
            .filter_map(|(name, bytes)| Some((name, bytes? as f64)));
        [
            ("requests_total", of(&counters.requests)),
            ("requests_failed_total", of(&counters.failed)),
            ("requests_running", of(&counters.running)),
            ("prompt_tokens_total", of(&counters.prompt_tokens)),
            ("cached_tokens_total", of(&counters.cached_tokens)),
            ("tokens_generated_total", of(&counters.generated)),
            ("server_restarts_total", restarts),
        ]
        .into_iter()
        .chain(memory)
        .map(|(name, value)| (name.to_owned(), value))
        .collect()
    }

    fn close(&self) -> Result<()> {
        if !self.closed.swap(true, Ordering::AcqRel) {
            let server = self.running().server.clone();
            server.stop();
        }
        Ok(())
    }
}

impl Drop for Model {
    fn drop(&mut self) {
        // Stops the server unless it is stopped already.
        let _ = self.close();
    }
}
