//! Generations on threads of their own, and what they tell.

use super::access::{self, Exchange};
use super::errors::Problem;
use super::fields::Asked;
use super::http::App;
use super::likely::Likely;
use super::metrics::Series;
use super::models::{Served, Use};
use super::queue::{Place, Room};
use super::tools::{Call, Held, Piece, Plan, Reader, Repeats, Tools};
use crate::error::Result;
use crate::manifest::KeepAlive;
use crate::registry::{Model, Reply};
use backplane_plugin_api::sdk::Sink;
use backplane_plugin_api::types::{
    ChatMessage, ChatRequest, Control, Event, FinishReason, GenerateOptions, GenerateRequest,
    Prompt, TokenLogprob,
};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

/// One generation.
#[derive(Clone)]
pub(super) enum Job {
    /// The next message of a chat, which may call tools.
    Chat(ChatRequest, Arc<Tools>),
    /// The continuation of a prompt, which may be held to something.
    Text(GenerateRequest, Option<Arc<Held>>),
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
        let held = asked.tools.held.clone().map(Arc::new);
        Self::Text(GenerateRequest { prompt, options }, held)
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
            Self::Text(request, _) => &mut request.options,
        }
    }

    /// Makes it one that the model can be asked: how its tools are told of, and its reply is read.
    fn prepare(&mut self, model: &Model) -> std::result::Result<Plan, Problem> {
        match self {
            Self::Chat(request, tools) => Plan::new(model, tools, request),
            Self::Text(_, held) => {
                held.as_ref().map_or(Ok(()), |held| held.check())?;
                Ok(Plan::default())
            }
        }
    }

    fn run(&self, model: &Model, sink: &mut dyn Sink) -> Result<Reply> {
        match self {
            Self::Chat(request, _) => model.chat(request, sink),
            Self::Text(request, _) => model.generate(request, sink),
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
        logprobs: Vec<Likely>,
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
    /// The log probabilities of a reply that is not told in pieces: for each token its own, then those of the likeliest others.
    pub(super) logprobs: Vec<Vec<Likely>>,
    /// What it thought before, and in how many tokens.
    pub(super) thought: String,
    pub(super) thought_tokens: u64,
    /// What it says, without calls.
    pub(super) text: String,
    /// The tools that it calls.
    pub(super) calls: Vec<Call>,
    /// Whether all of these are whole.
    whole: bool,
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
    fn new(reply: Reply, reader: Reader, thought_tokens: u64, plan: &Plan) -> Self {
        let whole = reader.whole();
        let (thought, text, mut calls) = reader.into_parts();
        let whole = whole >= calls.len();
        let told = reply.notice.iter().chain(plan.notices());
        let mut notices: Vec<String> = told.cloned().collect();
        if let Some(stop) = reply.completion.stop_string.as_ref().filter(|_| !whole) {
            // Who asks for a stop text knows of no call that it cuts.
            let count = calls.len();
            calls.retain(|call| call.value().is_some());
            if calls.len() < count {
                notices.push(format!(
                    "a call is left out that the stop text {stop:?} cut"
                ));
            }
        }
        Self {
            thought,
            thought_tokens,
            text,
            whole,
            calls,
            notices,
            reply,
            logprobs: Vec::new(),
        }
    }

    /// How it ended.
    pub(super) fn ended(&self) -> Ended {
        match self.reply.completion.finish_reason {
            // One that was cancelled and is told all the same had no more time.
            FinishReason::Length | FinishReason::ContextFull | FinishReason::Cancelled => {
                Ended::Length
            }
            // Within a call as well: nobody should act on a part of one.
            FinishReason::StopString if self.calls.is_empty() || !self.whole => Ended::StopString,
            _ if !self.calls.is_empty() => Ended::ToolCalls,
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

/// Starts generations, once there is room and their model is loaded; `pieces` are told as they come, else the ends alone.
/// The model stays loaded after it for as long as `keep` says.
///
/// # Errors
/// Too many wait already.
pub(super) fn start(
    app: &Arc<App>,
    served: &Arc<Served>,
    keep: Option<KeepAlive>,
    jobs: Vec<Job>,
    pieces: bool,
) -> std::result::Result<Running, Problem> {
    if app.is_stopping() {
        return Err(Problem::unavailable("the server is stopping", None));
    }
    let (tell, told) = unbounded_channel();
    let cancel = Arc::new(AtomicBool::new(false));
    let count = jobs.len();
    let exchange = access::current();
    if let Some(exchange) = &exchange {
        exchange.asks_for(&served.id);
    }
    let place = app.queue.enter(count)?;
    let begun = exchange.as_ref().map_or_else(Instant::now, |it| it.begun);
    let reply_time = app.options.reply_time.0;
    let waiting = Waiting {
        app: app.clone(),
        served: served.clone(),
        keep,
        jobs,
        pieces,
        tell,
        cancel: cancel.clone(),
        until: reply_time.and_then(|time| begun.checked_add(time)),
    };
    match exchange {
        Some(exchange) => tokio::spawn(exchange.run(waiting.begin(place))),
        None => tokio::spawn(waiting.begin(place)),
    };
    Ok(Running {
        told,
        count,
        quiet: app.options.heartbeat,
        _cancel: Cancel(cancel),
    })
}

/// Generations that have not begun.
struct Waiting {
    app: Arc<App>,
    served: Arc<Served>,
    keep: Option<KeepAlive>,
    jobs: Vec<Job>,
    pieces: bool,
    tell: UnboundedSender<Told>,
    cancel: Arc<AtomicBool>,
    /// When they are to have ended.
    until: Option<Instant>,
}

impl Waiting {
    /// Begins them when there is room and the model is there; not at all where the client goes away before that.
    async fn begin(self, place: Place) {
        let since = Instant::now();
        let (app, tell) = (self.app.clone(), self.tell.clone());
        let ready = async {
            let room = place.room().await?;
            let model = app.models.acquire(&self.served, self.keep).await?;
            Ok((room, model))
        };
        let late = async {
            match self.until {
                Some(until) => tokio::time::sleep_until(until.into()).await,
                None => std::future::pending().await,
            }
        };
        let ready = tokio::select! {
            ready = ready => ready,
            () = tell.closed() => {
                waited(since);
                return;
            }
            () = app.cut() => Err(Problem::unavailable("the server is stopping", None)),
            () = late => Err(too_slow(&app)),
        };
        match ready {
            Ok((room, model)) => self.run(room, model, since.elapsed()),
            Err(problem) => {
                waited(since);
                let result = Err(problem);
                // One that does not listen any more has gone away.
                let _ = tell.send(Told::Done { index: 0, result });
            }
        }
    }

    /// Runs each on a thread of its own.
    fn run(self, mut room: Room, model: Use, waited: Duration) {
        let id = self.served.id.clone();
        let model = Arc::new(model);
        for (index, job) in self.jobs.into_iter().enumerate() {
            let teller = Teller {
                index,
                model: model.clone(),
                room: None,
                beyond: None,
                pieces: self.pieces,
                begun: false,
                reader: Reader::plain(),
                repeats: Repeats::default(),
                thought_tokens: 0,
                silent: Vec::new(),
                plan: Plan::default(),
                tell: self.tell.clone(),
                cancel: self.cancel.clone(),
                app: self.app.clone(),
                meter: Meter::new(&self.app, &id, &model.backend()),
                waited,
                until: self.until,
            };
            let room = room.split();
            let run = move || teller.run(job, room);
            let thread = std::thread::Builder::new().name(format!("reply of {id}"));
            if let Err(error) = thread.spawn(run) {
                let result = Err(Problem::internal(format!(
                    "no thread for the reply: {error}"
                )));
                let _ = self.tell.send(Told::Done { index, result });
            }
        }
    }
}

/// Nothing has come of the request's waiting.
fn waited(since: Instant) {
    if let Some(exchange) = access::current() {
        exchange.waited(since.elapsed());
    }
}

/// A reply of which nothing was said in its time.
fn too_slow(app: &App) -> Problem {
    let time = app.options.reply_time;
    Problem::timed_out(format!(
        "nothing was said within the {time} that a reply may take"
    ))
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
    /// Tokens of the prompt that were read, and those that were made: what counts where no reply tells it.
    read: u64,
    made: u64,
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
            read: 0,
            made: 0,
        }
    }

    /// What stands for the request in logs.
    fn request(&self) -> &str {
        self.exchange
            .as_ref()
            .map_or("", |exchange| exchange.id.as_str())
    }

    fn token(&mut self) {
        self.made += 1;
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

    fn ended(&self, reply: &Reply) {
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
        series.ended(completion.finish_reason);
        if let Some(exchange) = &self.exchange {
            exchange.took(reply);
        }
    }

    fn failed(&self, problem: &Problem) {
        let series = &self.series;
        // Of what is refused the tokens are known, and nothing more was done with them.
        let read = match problem.is_refusal() && self.made == 0 {
            true => 0,
            false => self.read,
        };
        series.prompt_tokens.fetch_add(read, Ordering::Relaxed);
        let made = &series.completion_tokens;
        made.fetch_add(self.made, Ordering::Relaxed);
        series.failed(problem.is_refusal());
        if let Some(exchange) = &self.exchange {
            exchange.lost(read, self.made);
            if !problem.is_refusal() {
                exchange.fails();
            }
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
    model: Arc<Use>,
    /// The field that states how many tokens the reply is to have, how many, and the context that they are to fit with the prompt.
    room: Option<(&'static str, u64, u64)>,
    /// Why it ends before it begins: they do not fit.
    beyond: Option<Problem>,
    pieces: bool,
    begun: bool,
    reader: Reader,
    repeats: Repeats,
    /// Tokens of what was thought.
    thought_tokens: u64,
    /// Log probabilities of tokens that have shown no text yet: what a stop string ends is not told.
    silent: Vec<Vec<TokenLogprob>>,
    plan: Plan,
    tell: UnboundedSender<Told>,
    cancel: Arc<AtomicBool>,
    app: Arc<App>,
    meter: Meter,
    /// How long it waited for room and its model.
    waited: Duration,
    /// When it is to have ended.
    until: Option<Instant>,
}

impl Teller {
    fn run(mut self, mut job: Job, room: Room) {
        let model = self.model.clone();
        let result = self.answer(&model, &mut job);
        match &result {
            Ok(answer) => self.meter.ended(&answer.reply),
            Err(problem) => self.meter.failed(problem),
        }
        let Self {
            index,
            tell,
            meter,
            model: _,
            ..
        } = self;
        // Before its end is told, so that who waits for it finds room and counts.
        drop(room);
        model.measure();
        drop(model);
        drop(meter);
        // One that does not listen any more has gone away.
        let _ = tell.send(Told::Done { index, result });
    }

    fn answer(&mut self, model: &Use, job: &mut Job) -> std::result::Result<Box<Answer>, Problem> {
        let (app, id) = (self.app.clone(), &model.served().id);
        let request = self.meter.request().to_owned();
        let asked = job.options().max_tokens;
        let names = self.meter.exchange.as_ref().and_then(|it| it.names());
        let failed = |error: crate::error::Error| {
            let problem = Problem::of(&error, names.as_ref(), asked);
            problem.log(&request, id, &error);
            problem
        };
        app.registry.renew(model).map_err(failed)?;
        let stated = names.as_ref().and_then(|names| names.stated());
        self.room = stated.zip(asked).and_then(|(field, asked)| {
            // Of some models that run elsewhere it is not told.
            let context = Some(model.info().loaded_context).filter(|context| *context > 0)?;
            Some((field, asked.into(), context))
        });
        self.plan = job.prepare(model)?;
        self.take_up();
        let mut reply = job.run(model, self);
        if let (Err(error), Job::Chat(request, _)) = (&reply, &mut *job)
            && self.plan.give_way(error, request)
        {
            self.take_up();
            reply = job.run(model, self);
        }
        if let Some(problem) = self.beyond.take() {
            return Err(problem);
        }
        let mut reply = reply.map_err(failed)?;
        let completion = &mut reply.completion;
        if completion.finish_reason == FinishReason::Cancelled {
            if app.is_cut_off() {
                return Err(Problem::unavailable("the server is stopping", None));
            }
            if self.has_enough() {
                completion.finish_reason = FinishReason::Stop;
            } else if self.is_late() && completion.completion_tokens == 0 {
                return Err(too_slow(&app));
            }
        }
        completion.queue_s += self.waited.as_secs_f64();
        model.served().has_answered();
        let late = completion.finish_reason == FinishReason::Cancelled && self.is_late();
        let cut = !matches!(
            completion.finish_reason,
            FinishReason::Stop | FinishReason::StopString
        );
        let mut last = self.reader.finish(cut);
        last = self.repeats.pass(last, self.reader.whole());
        last.extend(self.repeats.finish());
        // Tokens that only made up the stop string.
        match completion.finish_reason == FinishReason::StopString {
            true => {
                let left = reply.logprobs.len().saturating_sub(self.silent.len());
                reply.logprobs.truncate(left);
                self.silent.clear();
            }
            false => drop(self.say_silent()),
        }
        self.say_all(last, &[]);
        let reader = std::mem::replace(&mut self.reader, Reader::plain());
        let logprobs = std::mem::take(&mut reply.logprobs);
        let mut answer = Answer::new(reply, reader, self.thought_tokens, &self.plan);
        if !self.pieces {
            let told = logprobs.iter().map(|tokens| Likely::all(model, tokens));
            answer.logprobs = told.collect();
        }
        if let Some(repeated) = self.repeats.found() {
            answer.calls.truncate(repeated);
            let notice = "a call that repeats one before it is left out, and ends the reply";
            answer.notices.push(notice.to_owned());
        }
        if late {
            let time = app.options.reply_time;
            let notice = format!("the reply was ended after the {time} that one may take");
            answer.notices.push(notice);
        }
        Ok(Box::new(answer))
    }

    /// Reads a reply from its beginning.
    fn take_up(&mut self) {
        self.reader = self.plan.reader();
        self.repeats = self.plan.repeats();
        self.thought_tokens = 0;
        self.silent.clear();
    }

    /// Whether its time is over.
    fn is_late(&self) -> bool {
        self.until.is_some_and(|until| Instant::now() >= until)
    }

    /// Whether all calls that it may make are made.
    fn has_enough(&self) -> bool {
        let most = self.plan.most_calls();
        most.is_some_and(|most| self.reader.whole() >= most) || self.repeats.found().is_some()
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
        let mut logprobs = Likely::all(&self.model, logprobs);
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

    /// Tells log probabilities that were held back.
    fn say_silent(&mut self) -> Control {
        for logprobs in std::mem::take(&mut self.silent) {
            if self.say_all(Vec::new(), &logprobs) == Control::Stop {
                return Control::Stop;
            }
        }
        Control::Continue
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
        match event {
            Event::Token { .. } => {
                self.meter.token();
                self.thought_tokens += u64::from(self.reader.thinks());
            }
            Event::Prefill { done, .. } => self.meter.read = done,
            Event::Text { .. } => {}
        }
        if !std::mem::replace(&mut self.begun, true) {
            let prompt_tokens = match event {
                Event::Prefill { total, .. } => total,
                _ => 0,
            };
            self.beyond = self.room.and_then(|(field, asked, context)| {
                let beyond = prompt_tokens > 0 && prompt_tokens + asked > context;
                beyond.then(|| Problem::beyond(field, prompt_tokens, asked, context))
            });
            if self.beyond.is_some() {
                return Control::Stop;
            }
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
        if text.is_empty() && !logprobs.is_empty() && self.plan.spelled(token).is_none() {
            self.silent.push(logprobs.to_vec());
            return self.go_on();
        }
        if self.say_silent() == Control::Stop {
            return Control::Stop;
        }
        let mut pieces = self.reader.push(text);
        if let Some(mark) = self.plan.spelled(token) {
            pieces.extend(self.reader.push_mark(mark));
        }
        let pieces = self.repeats.pass(pieces, self.reader.whole());
        self.say_all(pieces, logprobs)
    }

    fn should_stop(&self) -> bool {
        self.cancel.load(Ordering::Acquire)
            || self.app.is_cut_off()
            || self.is_late()
            || self.has_enough()
    }
}
