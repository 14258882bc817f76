//! A model in a worker, as a model of this process.

use super::capability::{self, Home, Loaded};
use super::link::{Link, Reply};
use super::message::{AHEAD, Answer, Call, Odd, ToWorker, metrics_in};
use backplane_plugin_api::capability::AnyCapability;
use backplane_plugin_api::sdk::{BatchSink, Result, Sink, TextModel};
use backplane_plugin_api::types::{
    ChatRequest, Classification, ClassifyRequest, Completion, Control, Error, ErrorCode, Event,
    FinishReason, GenerateRequest, Metrics, ModelInfo,
};
use std::any::Any;
use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// How often a sink is asked whether to stop while nothing comes.
const POLL: Duration = Duration::from_millis(10);

/// A model that a worker loaded.
#[derive(Debug)]
pub(super) struct WorkerModel {
    loaded: Arc<Loaded>,
    info: ModelInfo,
    closed: AtomicBool,
}

/// The error of an answer to another question.
pub(super) fn wrong_answer(answer: &Answer) -> Error {
    let kind: String = format!("{answer:?}").chars().take(40).collect();
    let message = format!("the worker answered another question: {kind}");
    Error::new(ErrorCode::Internal, message)
}

/// Takes the expected kind of answer.
macro_rules! take {
    ($answer:expr, $pattern:pat => $value:expr) => {
        match $answer {
            $pattern => Ok($value),
            other => Err($crate::worker::imp::model::wrong_answer(&other)),
        }
    };
}
pub(super) use take;

impl WorkerModel {
    pub(super) fn new(link: Arc<Link>, home: Arc<Home>, id: u64, info: ModelInfo) -> Self {
        let closed = AtomicBool::new(false);
        Self {
            loaded: Arc::new(Loaded { link, id, home }),
            info,
            closed,
        }
    }

    /// Runs a call whose events go to `sink`; gives its answer and what the sink was told of each of `count` requests.
    fn stream(
        &self,
        call: Call,
        count: usize,
        sink: &mut dyn BatchSink,
    ) -> Result<(Answer, Vec<Told>)> {
        let mut consumer = Consumer {
            sink,
            told: vec![Told::default(); count],
            panic: None,
        };
        let stopped = consumer.poll();
        let running = self.loaded.link.begin(call, stopped.clone())?;
        let open = Cell::new(count - stopped.len());
        if open.get() == 0 && count > 0 {
            self.loaded.link.stopping(running.id);
        }
        let stop = |indices: Vec<usize>| {
            for index in indices {
                self.loaded.link.tell(running.id, &ToWorker::Stop { index });
                open.set(open.get().saturating_sub(1));
                if open.get() == 0 {
                    self.loaded.link.stopping(running.id);
                }
            }
        };
        let (mut consumed, mut polled) = (0, Instant::now());
        let answer = loop {
            match running.next(POLL) {
                Some(Reply::Done(result)) => break result,
                Some(Reply::Event(index, event)) => {
                    if !self.closed.load(Ordering::Acquire) {
                        stop(consumer.take(index, event));
                    }
                    consumed += 1;
                    if consumed % (AHEAD / 2) == 0 {
                        let events = AHEAD / 2;
                        self.loaded
                            .link
                            .tell(running.id, &ToWorker::Consumed { events });
                    }
                    if count > 1 && polled.elapsed() >= POLL {
                        stop(consumer.poll());
                        polled = Instant::now();
                    }
                }
                Some(Reply::Progress(..)) | None => stop(consumer.poll()),
            }
        };
        if let Some(payload) = consumer.panic {
            let message = format!("the caller's sink panicked: {}", text_of(&*payload));
            return Err(Error::new(ErrorCode::Internal, message));
        }
        let answer = answer?;
        if self.closed.load(Ordering::Acquire) {
            let message = format!("{}: the model was closed", self.info.name);
            return Err(Error::new(ErrorCode::Closed, message));
        }
        Ok((answer, consumer.told))
    }

    fn stream_one(&self, call: Call, sink: &mut dyn Sink) -> Result<Completion> {
        let (answer, told) = self.stream(call, 1, &mut One(sink))?;
        let done = take!(answer, Answer::Completion(done) => done)?;
        Ok(told[0].adjust(done))
    }
}

fn text_of(payload: &(dyn Any + Send)) -> &str {
    let owned = || payload.downcast_ref::<String>().map(String::as_str);
    let text = payload.downcast_ref::<&str>().copied().or_else(owned);
    text.unwrap_or("a panic without a message")
}

/// What the sink was told of one request.
#[derive(Clone, Copy, Debug, Default)]
struct Told {
    tokens: u64,
    stopped: bool,
}

impl Told {
    /// The end as the consumer saw it: the worker may have been a little ahead when it was stopped.
    fn adjust(self, mut done: Completion) -> Completion {
        if self.stopped {
            done.finish_reason = FinishReason::Cancelled;
            done.stop_string = None;
            done.completion_tokens = self.tokens;
        }
        done
    }
}

struct Consumer<'a> {
    sink: &'a mut dyn BatchSink,
    told: Vec<Told>,
    /// The first panic of the sink, which stops everything.
    panic: Option<Box<dyn Any + Send>>,
}

impl Consumer<'_> {
    /// Asks for every request whether to stop; gives those that are to.
    fn poll(&mut self) -> Vec<usize> {
        (0..self.told.len())
            .flat_map(|index| self.ask(index))
            .collect()
    }

    fn ask(&mut self, index: usize) -> Vec<usize> {
        if self.told[index].stopped {
            return Vec::new();
        }
        let asked = catch_unwind(AssertUnwindSafe(|| self.sink.should_stop(index)));
        match asked {
            Ok(false) => Vec::new(),
            Ok(true) => self.stop(index),
            Err(payload) => self.panicked(payload),
        }
    }

    /// Hands an event on, unless its request was stopped; gives the requests that are to stop.
    fn take(&mut self, index: usize, event: super::message::OwnEvent) -> Vec<usize> {
        if index >= self.told.len() {
            return Vec::new();
        }
        let stop = self.ask(index);
        if self.told[index].stopped {
            return stop;
        }
        let sink = &mut *self.sink;
        let told = &mut self.told[index];
        let control = catch_unwind(AssertUnwindSafe(|| {
            event.lend(|event| {
                told.tokens += u64::from(matches!(event, Event::Token { .. }));
                sink.on_event(index, event)
            })
        }));
        match control {
            Ok(Control::Continue) => Vec::new(),
            Ok(Control::Stop) => self.stop(index),
            Err(payload) => self.panicked(payload),
        }
    }

    fn stop(&mut self, index: usize) -> Vec<usize> {
        self.told[index].stopped = true;
        vec![index]
    }

    fn panicked(&mut self, payload: Box<dyn Any + Send>) -> Vec<usize> {
        self.panic = Some(payload);
        for told in &mut self.told {
            told.stopped = true;
        }
        (0..self.told.len()).collect()
    }
}

/// A sink as that of a batch of one.
struct One<'a>(&'a mut dyn Sink);

impl BatchSink for One<'_> {
    fn on_event(&mut self, _index: usize, event: Event<'_>) -> Control {
        self.0.on_event(event)
    }

    fn should_stop(&self, _index: usize) -> bool {
        self.0.should_stop()
    }
}

impl TextModel for WorkerModel {
    fn info(&self) -> ModelInfo {
        self.info.clone()
    }

    fn generate(&self, request: &GenerateRequest, sink: &mut dyn Sink) -> Result<Completion> {
        let mut request = request.clone();
        let odd = Odd::take(&mut request.options);
        let model = self.loaded.id;
        let call = Call::Generate {
            model,
            request,
            odd,
        };
        self.stream_one(call, sink)
    }

    fn chat(&self, request: &ChatRequest, sink: &mut dyn Sink) -> Result<Completion> {
        let mut request = request.clone();
        let odd = Odd::take(&mut request.options);
        let model = self.loaded.id;
        let call = Call::Chat {
            model,
            request,
            odd,
        };
        self.stream_one(call, sink)
    }

    fn render_chat(&self, request: &ChatRequest) -> Result<String> {
        let mut request = request.clone();
        let odd = Odd::take(&mut request.options);
        let model = self.loaded.id;
        let call = Call::RenderChat {
            model,
            request,
            odd,
        };
        take!(self.loaded.link.call(call)?, Answer::Text(text) => text)
    }

    fn classify(&self, request: &ClassifyRequest) -> Result<Vec<Result<Classification>>> {
        let (model, request) = (self.loaded.id, request.clone());
        let answer = self.loaded.link.call(Call::Classify { model, request })?;
        let results = take!(answer, Answer::Classify(results) => results)?;
        let each = results.into_iter().map(|result| result.map(Into::into));
        Ok(each.collect())
    }

    fn batch_generate(
        &self,
        requests: &[GenerateRequest],
        sink: &mut dyn BatchSink,
    ) -> Result<Vec<Result<Completion>>> {
        let mut requests = requests.to_vec();
        let count = requests.len();
        let odd = requests
            .iter_mut()
            .map(|request| Odd::take(&mut request.options))
            .collect();
        let model = self.loaded.id;
        let call = Call::Batch {
            model,
            requests,
            odd,
        };
        let (answer, told) = self.stream(call, count, sink)?;
        let results = take!(answer, Answer::Batch(results) => results)?;
        let each = results.into_iter().zip(told);
        Ok(each
            .map(|(result, told)| result.map(|done| told.adjust(done)))
            .collect())
    }

    fn tokenize(&self, text: &str, add_special: bool, parse_special: bool) -> Result<Vec<u32>> {
        let answer = self.loaded.link.call(Call::Tokenize {
            model: self.loaded.id,
            text: text.to_owned(),
            add_special,
            parse_special,
        })?;
        take!(answer, Answer::Tokens(tokens) => tokens)
    }

    fn detokenize(&self, tokens: &[u32], special: bool) -> Result<Vec<u8>> {
        let (model, tokens) = (self.loaded.id, tokens.to_vec());
        let answer = self.loaded.link.call(Call::Detokenize {
            model,
            tokens,
            special,
        })?;
        take!(answer, Answer::Bytes(bytes) => bytes)
    }

    fn metrics(&self) -> Metrics {
        match self.loaded.link.call(Call::Metrics {
            model: self.loaded.id,
        }) {
            Ok(Answer::Metrics(metrics)) => metrics_in(metrics),
            _ => Metrics::new(),
        }
    }

    fn close(&self) -> Result<()> {
        self.closed.store(true, Ordering::Release);
        if self.loaded.link.ended().is_some() {
            return Ok(());
        }
        let answer = self.loaded.link.call(Call::Close {
            model: self.loaded.id,
        })?;
        take!(answer, Answer::Nothing => ())
    }

    fn capability(&self, name: &str) -> Option<AnyCapability> {
        capability::of_model(&self.loaded, name)
    }
}
