//! The contract's `TextModel` over an engine.

use crate::capabilities;
use crate::engine::{Config, Engine, Job, Message, Reply, Work};
use crate::grammar::Grammars;
use crate::peaks::Measuring;
use crate::request::{Checker, Prepared};
use crate::states::States;
use backplane_plugin_api::AnyCapability;
use backplane_plugin_api::sdk::{BatchSink, Result, Sink, TextModel};
use backplane_plugin_api::types::{
    ChatRequest, Classification, ClassifyRequest, Completion, Control, Error, ErrorCode, Event,
    FinishReason, GenerateRequest, Metrics, ModelInfo,
};
use backplane_tokenizer::{ChatTemplate, DecodeOptions, EncodeOptions, Tokenizer};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

/// How soon a waiting caller asks its sink whether to stop, and how seldom at last while nothing comes: where many wait, those who
/// ask take the processor from the engine.
pub(crate) const POLL: Duration = Duration::from_millis(5);
const SELDOM: Duration = Duration::from_millis(40);
/// How long it waits at most for an event before it asks.
const LATE: Duration = Duration::from_millis(200);

/// What makes up a loaded model; its capabilities share it.
pub(crate) struct Parts {
    pub(crate) backend: String,
    pub(crate) info: ModelInfo,
    pub(crate) tokenizer: Tokenizer,
    /// `Ok(None)`: the model has none. An error belongs to the calls that need it.
    pub(crate) template: Result<Option<ChatTemplate>>,
    pub(crate) engine: Engine,
    pub(crate) config: Config,
    pub(crate) states: States,
    pub(crate) grammars: Grammars,
    /// `None` where the device does not measure.
    pub(crate) measuring: Option<Measuring>,
}

/// A loaded model. Dropped, it is closed, whatever capabilities of it live on.
pub(crate) struct Model(Arc<Parts>);

impl std::ops::Deref for Model {
    type Target = Parts;

    fn deref(&self) -> &Parts {
        &self.0
    }
}

impl Drop for Model {
    fn drop(&mut self) {
        self.0.engine.close();
    }
}

impl Parts {
    pub(crate) fn checker(&self) -> Checker<'_> {
        Checker {
            backend: &self.backend,
            tokenizer: &self.tokenizer,
            config: &self.config,
            grammars: &self.grammars,
        }
    }
}

impl Model {
    pub(crate) fn new(parts: Parts) -> Self {
        Self(Arc::new(parts))
    }

    fn prepare(&self, request: &GenerateRequest) -> Result<Prepared> {
        let checker = self.checker();
        checker.generation(checker.prompt(&request.prompt)?, &request.options)
    }

    fn prepare_chat(&self, request: &ChatRequest) -> Result<Prepared> {
        let rendered = self.render_chat(request)?;
        let tokens = self
            .tokenizer
            .encode_prompt(&rendered)
            .map_err(tokenizer_error)?;
        let checker = self.checker();
        checker.generation(checker.check_prompt(tokens)?, &request.options)
    }

    /// Runs generations side by side; one result each, in order.
    fn run(
        &self,
        prepared: Vec<Result<Prepared>>,
        sink: &mut dyn BatchSink,
    ) -> Result<Vec<Result<Completion>>> {
        let (sender, receiver) = channel();
        let submitted = Instant::now();
        let mut call = Call {
            receiver,
            requests: Vec::with_capacity(prepared.len()),
        };
        let mut jobs = Vec::new();
        for (index, prepared) in prepared.into_iter().enumerate() {
            let cancel = Arc::new(AtomicBool::new(false));
            let result = match prepared {
                Err(error) => Some(Err(error)),
                Ok(Prepared {
                    prompt,
                    seed,
                    generation: None,
                }) => Some(Ok(nothing_asked(prompt.len(), seed))),
                Ok(Prepared {
                    prompt,
                    generation: Some(generation),
                    ..
                }) => {
                    jobs.push(Job {
                        prompt,
                        work: Work::Generate(generation),
                        cancel: Arc::clone(&cancel),
                        reply: Reply {
                            sender: sender.clone(),
                            index,
                        },
                        submitted,
                    });
                    None
                }
            };
            call.requests.push(Request {
                cancel,
                result,
                stopped: false,
                tokens: 0,
            });
        }
        drop(sender);
        // A caller that wants to stop at once costs no step.
        call.poll(sink);
        if !jobs.is_empty() {
            self.engine.submit(jobs)?;
            call.wait(sink);
        }
        Ok(std::mem::take(&mut call.requests)
            .into_iter()
            .map(Request::into_result)
            .collect())
    }

    fn run_one(&self, prepared: Prepared, sink: &mut dyn Sink) -> Result<Completion> {
        let mut results = self.run(vec![Ok(prepared)], &mut Single(sink))?;
        results.pop().unwrap_or_else(|| Err(engine_gone()))
    }
}

impl TextModel for Model {
    fn info(&self) -> ModelInfo {
        self.info.clone()
    }

    fn generate(&self, request: &GenerateRequest, sink: &mut dyn Sink) -> Result<Completion> {
        self.run_one(self.prepare(request)?, sink)
    }

    fn chat(&self, request: &ChatRequest, sink: &mut dyn Sink) -> Result<Completion> {
        self.run_one(self.prepare_chat(request)?, sink)
    }

    fn render_chat(&self, request: &ChatRequest) -> Result<String> {
        if request.messages.is_empty() {
            return Err(Error::invalid_field(
                "messages",
                "messages: empty; expected at least one message",
            ));
        }
        let template = match &self.template {
            Ok(Some(template)) => template,
            Ok(None) => {
                let message = format!("{} has no chat template", self.info.name);
                return Err(Error::new(ErrorCode::Unsupported, message)
                    .with_action("give it a raw prompt (--raw), or use a model made for chat"));
            }
            Err(error) => return Err(error.clone()),
        };
        let (messages, options) = self.checker().conversation(request)?;
        template
            .render(&messages, &options)
            .map_err(|error| match error {
                backplane_tokenizer::Error::TemplateRefused { message } => {
                    Error::new(ErrorCode::TemplateRefused, message)
                }
                // Whatever else goes wrong in a template is the model's fault, not the request's.
                error => {
                    let message = format!("{}: {error}", self.info.path.display());
                    Error::new(ErrorCode::ModelUnusable, message)
                        .with_action("give it a raw prompt (--raw), or use another model")
                }
            })
    }

    fn classify(&self, request: &ClassifyRequest) -> Result<Vec<Result<Classification>>> {
        let checker = self.checker();
        checker.classification(request)?;
        let (sender, receiver) = channel();
        let submitted = Instant::now();
        let mut results: Vec<Option<Result<Classification>>> =
            Vec::with_capacity(request.prompts.len());
        let mut jobs = Vec::new();
        for (index, prompt) in request.prompts.iter().enumerate() {
            results.push(match checker.prompt(prompt) {
                Err(error) => Some(Err(error)),
                Ok(prompt) => {
                    jobs.push(Job {
                        prompt,
                        work: Work::Classify {
                            top: request.top as usize,
                            logits: request.logits,
                        },
                        cancel: Arc::new(AtomicBool::new(false)),
                        reply: Reply {
                            sender: sender.clone(),
                            index,
                        },
                        submitted,
                    });
                    None
                }
            });
        }
        drop(sender);
        if !jobs.is_empty() {
            self.engine.submit(jobs)?;
        }
        // The channel ends when the last job is done.
        for (index, message) in receiver {
            match message {
                Message::Classified(classification) => results[index] = Some(Ok(classification)),
                Message::Failed(error) => results[index] = Some(Err(error)),
                _ => {}
            }
        }
        Ok(results
            .into_iter()
            .map(|result| result.unwrap_or_else(|| Err(engine_gone())))
            .collect())
    }

    fn batch_generate(
        &self,
        requests: &[GenerateRequest],
        sink: &mut dyn BatchSink,
    ) -> Result<Vec<Result<Completion>>> {
        self.run(
            requests
                .iter()
                .map(|request| self.prepare(request))
                .collect(),
            sink,
        )
    }

    fn tokenize(&self, text: &str, add_special: bool, parse_special: bool) -> Result<Vec<u32>> {
        let options = EncodeOptions {
            add_special,
            parse_special,
        };
        let mut tokens = self
            .tokenizer
            .encode(text, options)
            .map_err(tokenizer_error)?;
        // One that the text spells is the one that would be added, as in prompts.
        let bos = self.tokenizer.bos().filter(|_| self.tokenizer.adds_bos());
        if let Some(bos) = bos.filter(|_| add_special && parse_special) {
            let first = tokens.iter().take_while(|&&token| token == bos).count();
            tokens.drain(..first.saturating_sub(1));
        }
        Ok(tokens)
    }

    fn detokenize(&self, tokens: &[u32], special: bool) -> Result<Vec<u8>> {
        let options = DecodeOptions {
            skip_special: !special,
            ..DecodeOptions::default()
        };
        self.tokenizer
            .decode(tokens, options)
            .map_err(tokenizer_error)
    }

    fn metrics(&self) -> Metrics {
        self.engine.shared.counters.metrics()
    }

    fn close(&self) -> Result<()> {
        self.engine.close();
        Ok(())
    }

    fn capability(&self, name: &str) -> Option<AnyCapability> {
        capabilities::of(&self.0, name)
    }
}

/// One call while it waits. Dropped early (the sink panicked), it cancels what still runs.
struct Call {
    receiver: Receiver<(usize, Message)>,
    requests: Vec<Request>,
}

struct Request {
    cancel: Arc<AtomicBool>,
    result: Option<Result<Completion>>,
    /// The sink asked to stop: it gets no more events.
    stopped: bool,
    /// Tokens that the sink was given.
    tokens: u64,
}

impl Call {
    /// Asks the sink which of the open requests to stop.
    fn poll(&mut self, sink: &dyn BatchSink) {
        for (index, request) in self.requests.iter_mut().enumerate() {
            if request.result.is_none() && !request.stopped && sink.should_stop(index) {
                request.stop();
            }
        }
    }

    /// Hands events to the sink until every request has ended.
    fn wait(&mut self, sink: &mut dyn BatchSink) {
        let (mut pause, mut usual, mut last) = (POLL, Duration::ZERO, Instant::now());
        while self.requests.iter().any(|request| request.result.is_none()) {
            match self.receiver.recv_timeout(pause) {
                Ok((index, message)) => {
                    self.take(index, message, sink);
                    // The sink is asked with every event: in between only where the next one is late.
                    let now = Instant::now();
                    usual = (now - last).max(usual * 3 / 4);
                    last = now;
                    pause = (usual * 3 / 2).clamp(POLL, LATE);
                }
                Err(RecvTimeoutError::Timeout) => {
                    pause = (2 * pause).min(SELDOM);
                    self.poll(sink);
                }
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    }

    fn take(&mut self, index: usize, message: Message, sink: &mut dyn BatchSink) {
        let request = &mut self.requests[index];
        let event = match &message {
            Message::Generated(completion) => {
                request.result = Some(Ok(completion.clone()));
                return;
            }
            Message::Failed(error) => {
                request.result = Some(Err(error.clone()));
                return;
            }
            Message::Classified(_) | Message::Inspected(_) => return,
            Message::Prefill { done, total } => Event::Prefill {
                done: *done,
                total: *total,
            },
            Message::Token {
                token,
                text,
                logprobs,
            } => Event::Token {
                token: Some(*token),
                text,
                logprobs,
            },
            Message::Text(text) => Event::Text { text },
        };
        if request.stopped {
            return;
        }
        request.tokens += u64::from(matches!(event, Event::Token { .. }));
        if sink.on_event(index, event) == Control::Stop || sink.should_stop(index) {
            request.stop();
        }
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        self.requests.iter_mut().for_each(Request::stop);
    }
}

impl Request {
    fn stop(&mut self) {
        self.stopped = true;
        self.cancel.store(true, Ordering::Relaxed);
    }

    /// What the caller is told: what it stopped was cancelled, even if the engine was done before it noticed.
    fn into_result(self) -> Result<Completion> {
        let result = self.result.unwrap_or_else(|| Err(engine_gone()));
        if !self.stopped {
            return result;
        }
        result.map(|completion| Completion {
            finish_reason: FinishReason::Cancelled,
            stop_string: None,
            completion_tokens: self.tokens,
            ..completion
        })
    }
}

/// A sink of one request as a sink of several.
struct Single<'a>(&'a mut dyn Sink);

impl BatchSink for Single<'_> {
    fn on_event(&mut self, _: usize, event: Event<'_>) -> Control {
        self.0.on_event(event)
    }

    fn should_stop(&self, _: usize) -> bool {
        self.0.should_stop()
    }
}

fn nothing_asked(prompt: usize, seed: u64) -> Completion {
    Completion {
        finish_reason: FinishReason::Length,
        stop_string: None,
        prompt_tokens: prompt as u64,
        cached_tokens: 0,
        completion_tokens: 0,
        seed,
        queue_s: 0.0,
        prefill_s: 0.0,
        decode_s: 0.0,
    }
}

pub(crate) fn engine_gone() -> Error {
    Error::new(ErrorCode::Internal, "the engine ended without an answer")
}

fn tokenizer_error(error: backplane_tokenizer::Error) -> Error {
    Error::new(ErrorCode::InvalidRequest, error.to_string())
}
