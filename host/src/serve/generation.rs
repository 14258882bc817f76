//! Generations on threads of their own, and what they tell.

use super::access::{self, Exchange};
use super::errors::Problem;
use super::fields::Asked;
use super::http::App;
use super::metrics::Series;
use super::models::Served;
use super::tools::{Call, Held, Piece, Plan, Reader, Tools};
use crate::error::Result;
use crate::registry::{Model, Reply};
use backplane_plugin_api::sdk::Sink;
use backplane_plugin_api::types::{
    ChatMessage, ChatRequest, Control, Event, FinishReason, GenerateOptions, GenerateRequest,
    Prompt, TokenLogprob,
};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use tokio::sync::OwnedSemaphorePermit;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

/// One generation.
#[derive(Clone)]
pub(super) enum Job {
    /// The next message of a chat, which may call tools.
    Chat(ChatRequest, Arc<Tools>),
    Text(GenerateRequest),
}

impl Job {
    /// The next message of a conversation, as a dialect's request asks for it.
    pub(super) fn chat(asked: Asked, messages: Vec<ChatMessage>) -> Self {
        let request = ChatRequest {
            messages,
            tools: None,
            template_options: asked.template,
            options: asked.generate,
        };
        Self::Chat(request, Arc::new(asked.tools))
    }

    /// The continuation of a prompt.
    pub(super) fn text(asked: &Asked, prompt: Prompt) -> Self {
        let options = GenerateOptions {
            grammar: asked.tools.held.as_ref().map(Held::grammar),
            ..asked.generate.clone()
        };
        Self::Text(GenerateRequest { prompt, options })
    }

    /// One for each choice, each with a seed of its own where one is given.
    pub(super) fn choices(self, count: u32) -> Vec<Self> {
        let choice = |number: u32| {
            let mut job = self.clone();
            let seed = &mut job.options().sampling.seed;
            *seed = seed.map(|seed| seed.wrapping_add(number.into()));
            job
        };
        (0..count).map(choice).collect()
    }

    fn options(&mut self) -> &mut GenerateOptions {
        match self {
            Self::Chat(request, _) => &mut request.options,
            Self::Text(request) => &mut request.options,
        }
    }

    /// Makes it one that the model can be asked: how its tools are told of, and its reply is read.
    fn prepare(&mut self, model: &Model) -> std::result::Result<Plan, Problem> {
        match self {
            Self::Chat(request, tools) => Plan::new(model, tools, request),
            Self::Text(_) => Ok(Plan::default()),
        }
    }

    fn run(&self, model: &Model, sink: &mut dyn Sink) -> Result<Reply> {
        match self {
            Self::Chat(request, _) => model.chat(request, sink),
            Self::Text(request) => model.generate(request, sink),
        }
    }
}

/// What a generation tells.
pub(super) enum Told {
    /// It was accepted, and runs; the tokens of its prompt, 0 where that is not known yet.
    Begun { prompt_tokens: u64 },
    /// Text, a part of a call, or log probabilities, of choice `index`.
    Piece {
        index: usize,
        piece: Piece,
        logprobs: Vec<TokenLogprob>,
    },
    /// Choice `index` has ended.
    Done {
        index: usize,
        result: std::result::Result<Box<Answer>, Problem>,
    },
}

/// A reply as a whole, read.
#[derive(Clone, Debug)]
pub(super) struct Answer {
    /// As the backend gave it.
    pub(super) reply: Reply,
    /// What it says, without calls.
    pub(super) text: String,
    /// The tools that it calls.
    pub(super) calls: Vec<Call>,
    /// What the user should know of how it was made.
    pub(super) notices: Vec<String>,
}

/// How an answer ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ended {
    /// By itself.
    Stop,
    /// At a stop string.
    StopString,
    /// Cut, by `max_tokens` or the context.
    Length,
    /// With calls of tools.
    ToolCalls,
}

impl Answer {
    fn new(reply: Reply, reader: Reader, plan: &Plan) -> Self {
        let (text, calls) = reader.into_parts();
        let notices = reply.notice.iter().cloned();
        Self {
            text,
            calls,
            notices: notices.chain(plan.notices().iter().cloned()).collect(),
            reply,
        }
    }

    /// How it ended.
    pub(super) fn ended(&self) -> Ended {
        match self.reply.completion.finish_reason {
            FinishReason::Length | FinishReason::ContextFull => Ended::Length,
            _ if !self.calls.is_empty() => Ended::ToolCalls,
            FinishReason::StopString => Ended::StopString,
            _ => Ended::Stop,
        }
    }
}

/// Stops its generations when it is dropped.
struct Cancel(Arc<AtomicBool>);

impl Drop for Cancel {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

/// The generations of one request. Dropping this stops them.
pub(super) struct Running {
    told: UnboundedReceiver<Told>,
    count: usize,
    quiet: Duration,
    _cancel: Cancel,
}

/// Starts generations; `pieces` are told as they come, else the ends alone.
///
/// # Errors
/// Too many run already.
pub(super) fn start(
    app: &Arc<App>,
    served: &Served,
    jobs: Vec<Job>,
    pieces: bool,
) -> std::result::Result<Running, Problem> {
    let model = served.model()?.clone();
    if app.is_stopping() {
        return Err(Problem::unavailable("the server is stopping", None));
    }
    let (tell, told) = unbounded_channel();
    let cancel = Arc::new(AtomicBool::new(false));
    let count = jobs.len();
    // All or none, so that no request waits for what another has.
    let wanted = u32::try_from(count).unwrap_or(u32::MAX);
    let permits = app.replies.clone().try_acquire_many_owned(wanted);
    let mut permits = permits.map_err(|_| {
        let most = app.options.replies;
        Problem::busy(format!(
            "{count} more replies than the {most} at once that are made"
        ))
    })?;
    for (index, job) in jobs.into_iter().enumerate() {
        let permit = permits.split(1);
        let teller = Teller {
            index,
            pieces,
            begun: false,
            reader: Reader::plain(),
            plan: Plan::default(),
            tell: tell.clone(),
            cancel: cancel.clone(),
            app: app.clone(),
            meter: Meter::new(app, &served.id, &model.backend()),
        };
        let (app, model, id) = (app.clone(), model.clone(), served.id.clone());
        let failed = tell.clone();
        let run = move || teller.run(&app, &model, &id, job, permit);
        let thread = std::thread::Builder::new().name(format!("reply of {}", served.id));
        if let Err(error) = thread.spawn(run) {
            let result = Err(Problem::internal(format!(
                "no thread for the reply: {error}"
            )));
            let _ = failed.send(Told::Done { index, result });
        }
    }
    Ok(Running {
        told,
        count,
        quiet: app.options.heartbeat,
        _cancel: Cancel(cancel),
    })
}

impl Running {
    /// The answers, in order, once all are there.
    ///
    /// # Errors
    /// One failed; the others are stopped.
    pub(super) async fn answers(mut self) -> std::result::Result<Vec<Answer>, Problem> {
        let mut answers: Vec<Option<Answer>> = vec![None; self.count];
        while let Some(told) = self.told.recv().await {
            if let Told::Done { index, result } = told {
                answers[index] = Some(*result?);
            }
        }
        let all: Option<Vec<Answer>> = answers.into_iter().collect();
        all.ok_or_else(|| Problem::internal("a reply has ended without an end"))
    }

    /// What is told next; `None` once all have ended.
    pub(super) async fn next(&mut self) -> Option<Told> {
        self.told.recv().await
    }

    /// The same, for a body that is polled.
    pub(super) fn poll_next(
        &mut self,
        context: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<Told>> {
        self.told.poll_recv(context)
    }

    /// How long a stream of them is silent before a comment is sent.
    pub(super) fn quiet(&self) -> Duration {
        self.quiet
    }

    /// How many there are.
    pub(super) fn count(&self) -> usize {
        self.count
    }
}

/// Counts what a generation takes.
struct Meter {
    /// The request that it is for.
    exchange: Option<Arc<Exchange>>,
    series: Arc<Series>,
    begun: Instant,
    /// When the last token came.
    last: Option<Instant>,
}

impl Meter {
    fn new(app: &App, model: &str, backend: &str) -> Self {
        let exchange = access::current();
        let series = match &exchange {
            Some(exchange) => exchange.series(model, backend),
            None => app.metrics.series(model, backend),
        };
        series.running.up();
        let begun = exchange.as_ref().map(|exchange| exchange.begun);
        Self {
            exchange,
            series,
            begun: begun.unwrap_or_else(Instant::now),
            last: None,
        }
    }

    /// What stands for the request in logs.
    fn request(&self) -> &str {
        self.exchange
            .as_ref()
            .map_or("", |exchange| exchange.id.as_str())
    }

    fn token(&mut self) {
        let now = Instant::now();
        match self.last.replace(now) {
            Some(last) => self.series.next_token.observe((now - last).as_secs_f64()),
            None => {
                let after = now - self.begun;
                self.series.first_token.observe(after.as_secs_f64());
                if let Some(exchange) = &self.exchange {
                    exchange.first_token(after);
                }
            }
        }
    }

    fn ended(&self, reply: Option<&Reply>) {
        let Some(reply) = reply else {
            self.series.ended(None);
            return;
        };
        let completion = &reply.completion;
        let series = &self.series;
        for (counter, tokens) in [
            (&series.prompt_tokens, completion.prompt_tokens),
            (&series.cached_tokens, completion.cached_tokens),
            (&series.completion_tokens, completion.completion_tokens),
        ] {
            counter.fetch_add(tokens, Ordering::Relaxed);
        }
        series.waited.observe(completion.queue_s);
        series.ended(Some(completion.finish_reason));
        if let Some(exchange) = &self.exchange {
            exchange.took(reply);
        }
    }
}

impl Drop for Meter {
    fn drop(&mut self) {
        self.series.running.down();
    }
}

/// Tells what a generation says, and stops it when nobody listens.
struct Teller {
    index: usize,
    pieces: bool,
    begun: bool,
    reader: Reader,
    plan: Plan,
    tell: UnboundedSender<Told>,
    cancel: Arc<AtomicBool>,
    app: Arc<App>,
    meter: Meter,
}

impl Teller {
    fn run(
        mut self,
        app: &App,
        model: &Model,
        id: &str,
        mut job: Job,
        permit: Option<OwnedSemaphorePermit>,
    ) {
        let result = self.answer(app, model, id, &mut job);
        let answer = result.as_ref().ok();
        self.meter.ended(answer.map(|answer| &answer.reply));
        let Self {
            index, tell, meter, ..
        } = self;
        // Before its end is told, so that who waits for it finds room and counts.
        drop(permit);
        drop(meter);
        // One that does not listen any more has gone away.
        let _ = tell.send(Told::Done { index, result });
    }

    fn answer(
        &mut self,
        app: &App,
        model: &Model,
        id: &str,
        job: &mut Job,
    ) -> std::result::Result<Box<Answer>, Problem> {
        let request = self.meter.request().to_owned();
        let failed = |error: crate::error::Error| {
            tracing::warn!(request, "{id}: {error}");
            Problem::from(&error)
        };
        app.registry.renew(model).map_err(failed)?;
        self.plan = job.prepare(model)?;
        self.take_up();
        let mut reply = job.run(model, self);
        if let (Err(error), Job::Chat(request, _)) = (&reply, &mut *job)
            && self.plan.give_way(error, request)
        {
            self.take_up();
            reply = job.run(model, self);
        }
        let mut reply = reply.map_err(failed)?;
        let completion = &mut reply.completion;
        if completion.finish_reason == FinishReason::Cancelled {
            if app.is_cut_off() {
                return Err(Problem::unavailable("the server is stopping", None));
            }
            if self.has_enough() {
                completion.finish_reason = FinishReason::Stop;
            }
        }
        if let Some(served) = app.models.iter().find(|one| one.id == id) {
            served.has_answered();
        }
        let cut = !matches!(
            completion.finish_reason,
            FinishReason::Stop | FinishReason::StopString
        );
        let last = self.reader.finish(cut);
        self.say_all(last, &[]);
        let reader = std::mem::replace(&mut self.reader, Reader::plain());
        Ok(Box::new(Answer::new(reply, reader, &self.plan)))
    }

    /// Reads a reply from its beginning.
    fn take_up(&mut self) {
        self.reader = self.plan.reader();
    }

    /// Whether all calls that it may make are made.
    fn has_enough(&self) -> bool {
        self.plan
            .most_calls()
            .is_some_and(|most| self.reader.whole() >= most)
    }

    /// Tells pieces; log probabilities go with the first.
    fn say_all(&mut self, mut pieces: Vec<Piece>, logprobs: &[TokenLogprob]) -> Control {
        if !self.pieces {
            return self.go_on();
        }
        if pieces.is_empty() && !logprobs.is_empty() {
            pieces.push(Piece::Text(String::new()));
        }
        let index = self.index;
        let mut logprobs = logprobs.to_vec();
        for piece in pieces {
            let logprobs = std::mem::take(&mut logprobs);
            let told = Told::Piece {
                index,
                piece,
                logprobs,
            };
            if self.say(told) == Control::Stop {
                return Control::Stop;
            }
        }
        self.go_on()
    }

    fn go_on(&self) -> Control {
        match self.should_stop() {
            true => Control::Stop,
            false => Control::Continue,
        }
    }

    fn say(&mut self, told: Told) -> Control {
        if self.tell.send(told).is_err() || self.should_stop() {
            Control::Stop
        } else {
            Control::Continue
        }
    }
}

impl Sink for Teller {
    fn on_event(&mut self, event: Event<'_>) -> Control {
        if matches!(event, Event::Token { .. }) {
            self.meter.token();
        }
        if !std::mem::replace(&mut self.begun, true) {
            let prompt_tokens = match event {
                Event::Prefill { total, .. } => total,
                _ => 0,
            };
            if self.say(Told::Begun { prompt_tokens }) == Control::Stop {
                return Control::Stop;
            }
        }
        let (token, text, logprobs) = match event {
            Event::Token {
                token,
                text,
                logprobs,
            } => (token, text, logprobs),
            Event::Text { text } => (None, text, &[][..]),
            Event::Prefill { .. } => (None, "", &[][..]),
        };
        let mut pieces = self.reader.push(text);
        if let Some(mark) = self.plan.spelled(token) {
            pieces.extend(self.reader.push(mark));
        }
        self.say_all(pieces, logprobs)
    }

    fn should_stop(&self) -> bool {
        self.cancel.load(Ordering::Acquire) || self.app.is_cut_off() || self.has_enough()
    }
}
