//! The worker's side: opens one module and answers calls until its socket ends.

use super::capability::absent;
use super::message::{
    AHEAD, Answer, Call, FromWorker, Info, Odd, Open, Opened, ToWorker, VERSION, metrics_out,
};
use super::{frame, group};
use crate::loader::{LoadRequest, open, open_copy};
use crate::memory;
use backplane_plugin_api::capability::{
    self, ATTENTION, CHECK, CONVERT, EMBED, PEAKS, Progress, SCORE,
};
use backplane_plugin_api::import::HostServices;
use backplane_plugin_api::sdk::{Backend, BatchSink, Context, Sink, TextModel};
use backplane_plugin_api::types::{Control, Error, ErrorCode, Event};
use std::collections::{BTreeSet, HashMap};
use std::io::BufReader;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;
use tracing::Level;
use tracing::level_filters::LevelFilter;

/// Time to let models go once the host is gone.
const PARTING: Duration = Duration::from_secs(1);

/// Stack of the threads that run the module's code, in bytes: as a main thread has it.
const STACK: usize = 8 << 20;

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Serves the host at the other end of standard input.
pub(super) fn main() -> ExitCode {
    let socket = match socket() {
        Ok(socket) => socket,
        Err(error) => {
            eprintln!("error: standard input is not the socket of a host: {error}");
            return ExitCode::from(2);
        }
    };
    let served = serve(socket);
    leave(i32::from(served.is_err()))
}

/// Ends the process and all that it started.
pub(super) fn leave(code: i32) -> ! {
    group::end_self(code)
}

/// The socket, taken off standard input, so that children of the module's don't hold it open.
pub(super) fn socket() -> std::io::Result<UnixStream> {
    let socket = UnixStream::from(std::io::stdin().as_fd().try_clone_to_owned()?);
    socket.peer_addr()?;
    let nothing = std::fs::File::open("/dev/null")?;
    rustix::stdio::dup2_stdin(&nothing)?;
    Ok(socket)
}

fn serve(mut socket: UnixStream) -> std::io::Result<()> {
    let out = Arc::new(Out(Mutex::new(socket.try_clone()?)));
    let version = VERSION.to_owned();
    out.send(0, &FromWorker::Ready { version });
    let Some((_, Ok(ToWorker::Open(order)))) = frame::read(&mut socket)? else {
        return Ok(());
    };
    let worker = Arc::new(Worker {
        out,
        backend: OnceLock::new(),
        models: Mutex::default(),
        last_model: AtomicU64::new(0),
        gates: Mutex::default(),
    });
    // Not on this thread: it is to notice the host's end whatever the module does.
    let opener = worker.clone();
    thread(move || opener.open(order))?;
    let mut socket = BufReader::new(socket);
    let served = loop {
        match frame::read(&mut socket) {
            Ok(Some((id, Ok(message)))) => worker.take(id, message),
            Ok(Some((id, Err(problem)))) => {
                let message = format!("the call can't be read: {problem}");
                worker.done(id, Err(Error::new(ErrorCode::InvalidRequest, message)));
            }
            Ok(None) => break Ok(()),
            Err(error) => break Err(error),
        }
    };
    // What the module does while its models are let go, and its threads that still run, must not keep the process.
    thread(|| {
        std::thread::sleep(PARTING);
        group::end_self(1)
    })?;
    served
}

pub(super) fn thread(run: impl FnOnce() + Send + 'static) -> std::io::Result<()> {
    let builder = std::thread::Builder::new().stack_size(STACK);
    builder.spawn(run).map(|_| ())
}

/// The way to the host.
struct Out(Mutex<UnixStream>);

impl Out {
    fn send(&self, id: u64, message: &FromWorker) {
        // Where it fails the host is gone, which ends this process.
        let sent = frame::frame(id, message).and_then(|bytes| {
            use std::io::Write;
            lock(&self.0).write_all(&bytes)
        });
        if let Err(error) = sent
            && error.kind() == std::io::ErrorKind::InvalidData
        {
            let message = format!("the answer can't be sent: {error}");
            let error = Error::new(ErrorCode::Internal, message);
            let _ = frame::write(&mut *lock(&self.0), id, &FromWorker::Done(Err(error)));
        }
    }
}

/// Sends the module's records to the host.
struct Records {
    out: Arc<Out>,
    most: LevelFilter,
}

impl HostServices for Records {
    fn log_enabled(&self, level: Level, _target: &str) -> bool {
        level <= self.most
    }

    fn log(&self, level: Level, target: &str, message: &str, place: &str) {
        let record = FromWorker::Log {
            level: level.to_string(),
            target: target.to_owned(),
            message: message.to_owned(),
            place: place.to_owned(),
        };
        self.out.send(0, &record);
    }
}

struct Worker {
    out: Arc<Out>,
    backend: OnceLock<Arc<dyn Backend>>,
    models: Mutex<HashMap<u64, Arc<dyn TextModel>>>,
    last_model: AtomicU64,
    /// Of the calls that run.
    gates: Mutex<HashMap<u64, Arc<Gate>>>,
}

impl Worker {
    fn open(&self, order: Open) {
        let module: PathBuf = order.module.into();
        let context = Context {
            options: order.options,
            module_dir: order.module_dir.into(),
        };
        let request = LoadRequest {
            path: &module,
            context,
            sha256: order.sha256.as_deref(),
        };
        let records = Records {
            out: self.out.clone(),
            most: order.log.parse().unwrap_or(LevelFilter::WARN),
        };
        let opened = match order.copy.map(PathBuf::from) {
            Some(copy) => open_copy(&request, &copy, Arc::new(records)),
            None => open(&request, Arc::new(records)),
        };
        let opened = opened.map(|plugin| {
            let _ = self.backend.set(plugin.backend);
            Opened {
                name: plugin.name,
                version: plugin.version,
                contract_version: plugin.contract_version,
            }
        });
        self.out.send(0, &FromWorker::Opened(opened));
    }

    fn take(self: &Arc<Self>, id: u64, message: ToWorker) {
        match message {
            ToWorker::Open(_) => {}
            ToWorker::Call { call, stopped } => {
                let gate = Arc::new(Gate::new(stopped));
                lock(&self.gates).insert(id, gate.clone());
                let worker = self.clone();
                let run = move || {
                    let call = AssertUnwindSafe(|| worker.answer(id, *call, &gate));
                    let result = catch_unwind(call).unwrap_or_else(|_| {
                        Err(Error::new(ErrorCode::Panicked, "the worker panicked"))
                    });
                    worker.done(id, result);
                };
                if let Err(error) = thread(run) {
                    let message = format!("no thread for the call: {error}");
                    self.done(id, Err(Error::new(ErrorCode::Busy, message)));
                }
            }
            ToWorker::Stop { index } => self.gate(id, |state| {
                state.stopped.insert(index);
            }),
            ToWorker::Consumed { events } => self.gate(id, |state| {
                state.ahead = state.ahead.saturating_sub(events);
            }),
            ToWorker::Abandon => self.gate(id, |state| state.all_stopped = true),
            ToWorker::Ping => {
                let gates: Vec<_> = lock(&self.gates)
                    .iter()
                    .map(|(id, gate)| (*id, gate.clone()))
                    .collect();
                let of = |(id, gate): (u64, Arc<Gate>)| {
                    let touches = gate.touches.load(Ordering::Relaxed);
                    (id, touches, lock(&gate.state).waits)
                };
                let calls = gates.into_iter().map(of).collect();
                self.out.send(0, &FromWorker::Pong { calls });
            }
            ToWorker::Forget { model } => {
                let model = lock(&self.models).remove(&model);
                // It may take its time.
                let _ = thread(move || drop(model));
            }
        }
    }

    fn gate(&self, id: u64, change: impl FnOnce(&mut GateState)) {
        if let Some(gate) = lock(&self.gates).get(&id) {
            change(&mut lock(&gate.state));
            gate.changed.notify_all();
        }
    }

    fn done(&self, id: u64, result: Result<Answer, Error>) {
        lock(&self.gates).remove(&id);
        self.out.send(id, &FromWorker::Done(result));
    }

    fn model(&self, id: u64) -> Result<Arc<dyn TextModel>, Error> {
        let model = lock(&self.models).get(&id).cloned();
        model.ok_or_else(|| Error::new(ErrorCode::Closed, "the model is not loaded"))
    }

    fn answer(&self, id: u64, call: Call, gate: &Gate) -> Result<Answer, Error> {
        let Some(backend) = self.backend.get() else {
            return Err(Error::new(ErrorCode::Internal, "no module is open"));
        };
        let mut sink = ToHost {
            out: &self.out,
            id,
            gate,
        };
        Ok(match call {
            Call::Probe => Answer::Verdict(backend.probe()),
            Call::Devices => Answer::Devices(backend.devices()?),
            Call::Inspect { path } => {
                let info = backend.inspect(&PathBuf::from(path))?;
                Answer::Info(info.map(|info| Box::new(Info::from(info))))
            }
            Call::Load { path, options } => {
                let loaded = backend.load(&PathBuf::from(path), &options)?;
                let info = Box::new(Info::from(loaded.info()));
                let model = self.last_model.fetch_add(1, Ordering::Relaxed) + 1;
                lock(&self.models).insert(model, loaded);
                Answer::Loaded { model, info }
            }
            Call::Generate {
                model,
                mut request,
                odd,
            } => {
                odd.give(&mut request.options);
                Answer::Completion(self.model(model)?.generate(&request, &mut sink)?)
            }
            Call::Chat {
                model,
                mut request,
                odd,
            } => {
                odd.give(&mut request.options);
                Answer::Completion(self.model(model)?.chat(&request, &mut sink)?)
            }
            Call::Batch {
                model,
                mut requests,
                odd,
            } => {
                for (request, odd) in requests.iter_mut().zip(odd) {
                    Odd::give(odd, &mut request.options);
                }
                Answer::Batch(self.model(model)?.batch_generate(&requests, &mut sink)?)
            }
            Call::RenderChat {
                model,
                mut request,
                odd,
            } => {
                odd.give(&mut request.options);
                Answer::Text(self.model(model)?.render_chat(&request)?)
            }
            Call::Classify { model, request } => {
                let results = self.model(model)?.classify(&request)?;
                let each = results.into_iter().map(|result| result.map(Into::into));
                Answer::Classify(each.collect())
            }
            Call::Tokenize {
                model,
                text,
                add_special,
                parse_special,
            } => {
                let model = self.model(model)?;
                Answer::Tokens(model.tokenize(&text, add_special, parse_special)?)
            }
            Call::Detokenize {
                model,
                tokens,
                special,
            } => Answer::Bytes(self.model(model)?.detokenize(&tokens, special)?),
            Call::Metrics { model } => {
                let mut metrics = self.model(model)?.metrics();
                memory::tell(&mut metrics);
                Answer::Metrics(metrics_out(metrics))
            }
            Call::Close { model } => {
                self.model(model)?.close()?;
                Answer::Nothing
            }
            Call::Offers { model, name } => Answer::Offers(match model {
                Some(model) => self.model(model)?.capability(&name).is_some(),
                None => backend.capability(&name).is_some(),
            }),
            Call::Embed { model, request } => {
                let embed = capability::embed(&*self.model(model)?)?;
                let embed = embed.ok_or_else(|| absent(EMBED))?;
                let results = embed.embed(&request, &mut sink)?;
                let each = results.into_iter().map(|result| result.map(Into::into));
                Answer::Embeddings(each.collect())
            }
            Call::Score { model, request } => {
                let score = capability::score(&*self.model(model)?)?;
                let score = score.ok_or_else(|| absent(SCORE))?;
                Answer::Scores(score.score(&request, &mut sink)?.into())
            }
            Call::Attention { model, request } => {
                let attention = capability::attention(&*self.model(model)?)?;
                let attention = attention.ok_or_else(|| absent(ATTENTION))?;
                Answer::Attention(attention.inspect_attention(&request, &mut sink)?.into())
            }
            Call::Peaks { model, request } => {
                let peaks = capability::peaks(&*self.model(model)?)?;
                let peaks = peaks.ok_or_else(|| absent(PEAKS))?;
                Answer::Peaks(peaks.measure_peaks(&request, &mut sink)?)
            }
            Call::Check { path } => {
                let check = capability::check(&**backend)?;
                let check = check.ok_or_else(|| absent(CHECK))?;
                Answer::Findings(check.check(&PathBuf::from(path), &mut sink)?)
            }
            Call::Convert {
                source,
                destination,
                options,
            } => {
                let convert = capability::convert(&**backend)?;
                let convert = convert.ok_or_else(|| absent(CONVERT))?;
                let (source, destination) = (PathBuf::from(source), PathBuf::from(destination));
                Answer::Converted(convert.convert(&source, &destination, &options, &mut sink)?)
            }
        })
    }
}

/// What the host says of a call while it runs.
struct Gate {
    state: Mutex<GateState>,
    changed: Condvar,
    /// How often the module has told something, or asked whether to stop: its signs of life.
    touches: AtomicU64,
}

struct GateState {
    /// Events that were sent and not consumed.
    ahead: usize,
    /// Requests that are to stop.
    stopped: BTreeSet<usize>,
    /// All of them are.
    all_stopped: bool,
    /// The module waits for the host.
    waits: bool,
}

impl GateState {
    fn stops(&self, index: usize) -> bool {
        self.all_stopped || self.stopped.contains(&index)
    }
}

impl Gate {
    fn new(stopped: Vec<usize>) -> Self {
        let state = GateState {
            ahead: 0,
            stopped: stopped.into_iter().collect(),
            all_stopped: false,
            waits: false,
        };
        Self {
            state: Mutex::new(state),
            changed: Condvar::new(),
            touches: AtomicU64::new(0),
        }
    }
}

/// Sends events to the host, a little ahead of their consumer.
struct ToHost<'a> {
    out: &'a Out,
    id: u64,
    gate: &'a Gate,
}

impl ToHost<'_> {
    fn touch(&self) {
        self.gate.touches.fetch_add(1, Ordering::Relaxed);
    }

    /// Waits for the host while it must.
    fn wait_while(&self, must: impl Fn(&GateState) -> bool) -> MutexGuard<'_, GateState> {
        let mut state = lock(&self.gate.state);
        if must(&state) {
            state.waits = true;
            let waited = self.gate.changed.wait_while(state, |state| must(state));
            state = waited.unwrap_or_else(PoisonError::into_inner);
            state.waits = false;
        }
        state
    }
}

impl BatchSink for ToHost<'_> {
    fn on_event(&mut self, index: usize, event: Event<'_>) -> Control {
        self.touch();
        {
            let mut state = self.wait_while(|state| state.ahead >= AHEAD && !state.stops(index));
            if state.stops(index) {
                return Control::Stop;
            }
            state.ahead += 1;
        }
        let event = event.into();
        self.out.send(self.id, &FromWorker::Event { index, event });
        Control::Continue
    }

    fn should_stop(&self, index: usize) -> bool {
        self.touch();
        lock(&self.gate.state).stops(index)
    }
}

impl Sink for ToHost<'_> {
    fn on_event(&mut self, event: Event<'_>) -> Control {
        BatchSink::on_event(self, 0, event)
    }

    fn should_stop(&self) -> bool {
        BatchSink::should_stop(self, 0)
    }
}

impl Progress for ToHost<'_> {
    /// Waits for the host's answer: the call is to end as the watcher said.
    fn on_progress(&mut self, done: u64, total: u64, what: &str) -> Control {
        self.touch();
        {
            let mut state = lock(&self.gate.state);
            if state.stops(0) {
                return Control::Stop;
            }
            state.ahead += 1;
        }
        let what = what.to_owned();
        let progress = FromWorker::Progress { done, total, what };
        self.out.send(self.id, &progress);
        let state = self.wait_while(|state| state.ahead > 0 && !state.stops(0));
        if state.stops(0) {
            Control::Stop
        } else {
            Control::Continue
        }
    }
}
