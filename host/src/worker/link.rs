//! The host's end of a worker: many calls at once over one socket.

use super::message::{Answer, Call, FromWorker, Open, Opened, OwnEvent, ToWorker, VERSION};
use super::process::{self, Process};
use super::watch::{Watch, Watched};
use super::{Spec, frame};
use crate::loader::TracingServices;
use crate::worker::limits::{self, ENDED};
use backplane_plugin_api::import::HostServices;
use backplane_plugin_api::types::{Error, ErrorCode, Verdict, VerdictState};
use std::collections::HashMap;
use std::io::BufReader;
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// What comes back on a call.
#[derive(Debug)]
pub(super) enum Reply {
    Event(usize, OwnEvent),
    Progress(u64, u64, String),
    Done(Result<Answer, Error>),
}

/// Why there is no worker.
#[derive(Debug)]
pub(super) enum StartError {
    /// The program itself does not work as a worker.
    Program(String),
    /// The module was refused.
    Refused(Verdict),
    /// The worker ended or hung over the module.
    Crashed(String),
}

/// A running worker. It ends when this is dropped.
#[derive(Debug)]
pub(super) struct Link {
    shared: Arc<Shared>,
    pub(super) opened: Opened,
}

struct Shared {
    /// For messages.
    plugin: String,
    writer: Mutex<UnixStream>,
    calls: Mutex<Calls>,
    /// The first call has begun, or the worker has ended.
    changed: Condvar,
    process: Mutex<Option<Process>>,
    /// Told how the worker ended, before its calls are, unless this side has closed it.
    ended: Box<dyn Fn(&str) + Send + Sync>,
    closed: AtomicBool,
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared")
            .field("plugin", &self.plugin)
            .finish_non_exhaustive()
    }
}

#[derive(Debug, Default)]
struct Calls {
    last: u64,
    waiting: HashMap<u64, Waiting>,
    /// `None` where nothing is limited.
    watch: Option<Watch>,
    /// Set once the worker is gone: how.
    ended: Option<String>,
}

/// A call that runs.
#[derive(Debug)]
struct Waiting {
    /// `None`: nobody listens any more.
    send: Option<Sender<Reply>>,
    watched: Watched,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Link {
    /// Starts a worker and has it open a module; `ended` is told how it ends later, unless the link is dropped.
    pub(super) fn start(
        spec: &Spec,
        ended: impl Fn(&str) + Send + Sync + 'static,
    ) -> Result<Self, StartError> {
        let deadline = Instant::now() + spec.time_limit;
        let program = spec.program.display();
        let (process, mut socket) = process::start(&spec.program, &spec.plugin)
            .map_err(|error| StartError::Program(format!("{program}: {error}")))?;
        if let Some(Err(error)) = spec.limits.memory.map(|limit| process.limit_memory(limit)) {
            let why = process.end_now(format!("its memory can't be watched: {error}"));
            return Err(StartError::Program(format!("{program}: {why}")));
        }
        let open = ToWorker::Open(Open {
            version: VERSION.to_owned(),
            plugin: spec.plugin.clone(),
            module: spec.path.as_path().into(),
            module_dir: spec.context.module_dir.as_path().into(),
            options: spec.context.options.clone(),
            sha256: spec.sha256.clone(),
            copy: spec.copy.as_ref().map(|copy| copy.path().as_path().into()),
            log: tracing::level_filters::LevelFilter::current().to_string(),
        });
        // A worker that is gone already is noticed when it is listened to.
        let _ = frame::write(&mut socket, 0, &open);
        match next(&mut socket, deadline) {
            Next::Message(FromWorker::Ready { version }) if version == VERSION => {}
            Next::Message(FromWorker::Ready { version }) => {
                drop(socket);
                process.end();
                let message = format!("{program} has version {version}; expected {VERSION}");
                return Err(StartError::Program(message));
            }
            Next::Late => {
                let why = process.end_now("did not start".to_owned());
                return Err(StartError::Program(format!("{program}: {why}")));
            }
            _ => {
                drop(socket);
                let how = process.end();
                return Err(StartError::Program(format!("{program}: {how}")));
            }
        }
        let services = TracingServices {
            plugin: spec.plugin.clone(),
        };
        let opened = loop {
            match next(&mut socket, deadline) {
                Next::Message(FromWorker::Opened(Ok(opened))) => break opened,
                Next::Message(FromWorker::Opened(Err(verdict))) => {
                    drop(socket);
                    reap(process);
                    return Err(StartError::Refused(verdict));
                }
                Next::Message(message) => log(&services, message),
                Next::Late => {
                    let why = format!("was not open after {:?}", spec.time_limit);
                    return Err(StartError::Crashed(process.end_now(why)));
                }
                Next::Ended => {
                    drop(socket);
                    return Err(StartError::Crashed(process.end()));
                }
            }
        };
        let failed = |error: std::io::Error| StartError::Program(format!("{program}: {error}"));
        socket.set_read_timeout(None).map_err(failed)?;
        let reader = socket.try_clone().map_err(failed)?;
        let shared = Arc::new(Shared {
            plugin: spec.plugin.clone(),
            writer: Mutex::new(socket),
            calls: Mutex::new(Calls {
                watch: Watch::new(spec.limits.watchdog),
                ..Calls::default()
            }),
            changed: Condvar::new(),
            process: Mutex::new(Some(process)),
            ended: Box::new(ended),
            closed: AtomicBool::new(false),
        });
        let watcher = shared.clone();
        std::thread::Builder::new()
            .name(format!("watch of {}", spec.plugin))
            .spawn(move || watcher.watch())
            .map_err(failed)?;
        let listener = shared.clone();
        std::thread::Builder::new()
            .name(format!("worker of {}", spec.plugin))
            .spawn(move || listener.listen(reader, &services))
            .map_err(failed)?;
        Ok(Self { shared, opened })
    }

    /// Makes a call; its replies come from the receiver.
    pub(super) fn begin(&self, call: Call, stopped: Vec<usize>) -> Result<Running<'_>, Error> {
        let (send, receive) = channel();
        let id = {
            let mut calls = lock(&self.shared.calls);
            if let Some(how) = &calls.ended {
                return Err(self.shared.gone(how));
            }
            calls.last += 1;
            let id = calls.last;
            if calls.waiting.is_empty() {
                self.shared.changed.notify_all();
            }
            let (send, watched) = (Some(send), Watched::new(&call));
            calls.waiting.insert(id, Waiting { send, watched });
            id
        };
        let running = Running {
            link: self,
            id,
            receive,
        };
        let call = Box::new(call);
        match frame::frame(id, &ToWorker::Call { call, stopped }) {
            Ok(bytes) => self.send_bytes(&bytes),
            Err(error) => {
                lock(&self.shared.calls).waiting.remove(&id);
                let message = format!("the call can't be sent: {error}");
                return Err(Error::new(ErrorCode::InvalidRequest, message));
            }
        }
        Ok(running)
    }

    /// Makes a call that has no events.
    pub(super) fn call(&self, call: Call) -> Result<Answer, Error> {
        self.begin(call, Vec::new())?.end()
    }

    /// Makes a call that must answer in time; a worker that does not is ended.
    pub(super) fn call_within(&self, call: Call, limit: Duration) -> Result<Answer, Error> {
        let running = self.begin(call, Vec::new())?;
        let deadline = Instant::now() + limit;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            match running.receive.recv_timeout(left) {
                Ok(Reply::Done(result)) => return result,
                Ok(Reply::Event(..) | Reply::Progress(..)) => {}
                Err(_) => {
                    let why = format!("did not answer within {limit:?}");
                    let how = self.shared.stop(|process| process.end_now(why));
                    return Err(self.shared.gone(&how));
                }
            }
        }
    }

    /// A message without an answer.
    pub(super) fn tell(&self, id: u64, message: &ToWorker) {
        self.shared.tell(id, message);
    }

    /// All of a call was told to stop: it must end in time.
    pub(super) fn stopping(&self, id: u64) {
        if let Some(waiting) = lock(&self.shared.calls).waiting.get_mut(&id) {
            waiting.watched.stopping();
        }
    }

    /// How the worker ended, if it has.
    pub(super) fn ended(&self) -> Option<String> {
        lock(&self.shared.calls).ended.clone()
    }

    fn send_bytes(&self, bytes: &[u8]) {
        use std::io::Write;
        // A failure is the worker's end, which the listener notices and tells every call.
        let _ = lock(&self.shared.writer).write_all(bytes);
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.shared.closed.store(true, Ordering::Release);
        let _ = lock(&self.shared.writer).shutdown(Shutdown::Both);
        // The listener waits for the process, unless it has been taken.
    }
}

impl Shared {
    fn listen(&self, socket: UnixStream, services: &TracingServices) {
        let mut socket = BufReader::new(socket);
        let how = loop {
            match frame::read::<FromWorker>(&mut socket) {
                Ok(Some((id, Ok(FromWorker::Event { index, event })))) => {
                    self.pass(id, Reply::Event(index, event));
                }
                Ok(Some((id, Ok(FromWorker::Progress { done, total, what })))) => {
                    self.pass(id, Reply::Progress(done, total, what));
                }
                Ok(Some((id, Ok(FromWorker::Done(result))))) => {
                    self.pass(id, Reply::Done(result));
                }
                Ok(Some((_, Ok(FromWorker::Pong { calls })))) => self.heard(&calls),
                Ok(Some((_, Ok(message)))) => log(services, message),
                Ok(Some((id, Err(problem)))) => {
                    let message = format!("{}: its answer can't be read: {problem}", self.plugin);
                    let error = Error::new(ErrorCode::Internal, message);
                    self.break_off(id, error);
                }
                Ok(None) | Err(_) => break self.stop(Process::end),
            }
        };
        tracing::debug!(plugin = %self.plugin, "worker {how}");
    }

    /// Ends the process, once, and tells all that wait.
    fn stop(&self, end: impl FnOnce(Process) -> String) -> String {
        // Held until the end is known, so that a second caller learns it.
        let mut process = lock(&self.process);
        if let Some(process) = process.take() {
            let how = end(process);
            if !self.closed.load(Ordering::Acquire) {
                (self.ended)(&how);
            }
            let mut calls = lock(&self.calls);
            calls.ended = Some(how.clone());
            for send in calls
                .waiting
                .drain()
                .filter_map(|(_, waiting)| waiting.send)
            {
                let _ = send.send(Reply::Done(Err(self.gone(&how))));
            }
            self.changed.notify_all();
            return how;
        }
        lock(&self.calls).ended.clone().unwrap_or_default()
    }

    fn pass(&self, id: u64, reply: Reply) {
        let mut calls = lock(&self.calls);
        let Calls { waiting, watch, .. } = &mut *calls;
        if matches!(reply, Reply::Done(_)) {
            if let Some(send) = waiting.remove(&id).and_then(|waiting| waiting.send) {
                let _ = send.send(reply);
            }
            return;
        }
        if let (Reply::Event(..), Some(watch)) = (&reply, watch) {
            watch.event();
        }
        if let Some(waiting) = waiting.get_mut(&id) {
            waiting.watched.told();
            if let Some(send) = &waiting.send {
                // One that does not listen any more has gone away.
                let _ = send.send(reply);
            }
        }
    }

    /// Ends a call whose answers can't be read; the worker is to end it too.
    fn break_off(&self, id: u64, error: Error) {
        let send = {
            let mut calls = lock(&self.calls);
            let waiting = calls.waiting.get_mut(&id);
            waiting.and_then(|waiting| {
                waiting.watched.stopping();
                waiting.send.take()
            })
        };
        if let Some(send) = send {
            let _ = send.send(Reply::Done(Err(error)));
            self.tell(id, &ToWorker::Abandon);
        }
    }

    fn tell(&self, id: u64, message: &ToWorker) {
        use std::io::Write;
        if let Ok(bytes) = frame::frame(id, message) {
            // A failure is the worker's end, which the listener notices.
            let _ = lock(&self.writer).write_all(&bytes);
        }
    }

    fn heard(&self, calls: &[(u64, u64, bool)]) {
        let mut guard = lock(&self.calls);
        if let Some(watch) = &mut guard.watch {
            watch.answered();
        }
        for (id, touches, waits) in calls {
            if let Some(waiting) = guard.waiting.get_mut(id) {
                waiting.watched.heard(*touches, *waits);
            }
        }
    }

    /// Ends the worker when it is hung. Sleeps while no call runs.
    fn watch(&self) {
        let mut calls = lock(&self.calls);
        let mut last = Instant::now();
        loop {
            if calls.waiting.is_empty() && calls.ended.is_none() {
                if let Some(watch) = &mut calls.watch {
                    watch.rest();
                }
                let idle = |calls: &mut Calls| calls.waiting.is_empty() && calls.ended.is_none();
                calls = self
                    .changed
                    .wait_while(calls, idle)
                    .unwrap_or_else(PoisonError::into_inner);
                last = Instant::now();
            }
            let step = calls.watch.as_ref().map(Watch::step);
            let Some(step) = step.filter(|_| calls.ended.is_none()) else {
                return;
            };
            let runs = |calls: &mut Calls| calls.ended.is_none();
            let waited = self.changed.wait_timeout_while(calls, step, runs);
            calls = waited.unwrap_or_else(PoisonError::into_inner).0;
            let (now, before) = (Instant::now(), last);
            last = now;
            let Calls {
                waiting,
                watch,
                ended,
                ..
            } = &mut *calls;
            let Some(watch) = watch.as_mut().filter(|_| ended.is_none()) else {
                return;
            };
            let each = waiting.values_mut().map(|waiting| &mut waiting.watched);
            if let Some(why) = watch.pass(now - before, each) {
                drop(calls);
                let how = self.stop(|process| process.end_now(format!("{ENDED}{why}")));
                tracing::debug!(plugin = %self.plugin, "worker {how}");
                return;
            }
            let asks = !waiting.is_empty() && watch.asks();
            drop(calls);
            if asks {
                self.ping();
            }
            calls = lock(&self.calls);
        }
    }

    /// Asks whether the worker is there, unless somebody else is writing: that must not keep the watch.
    fn ping(&self) {
        use std::io::Write;
        if let Ok(bytes) = frame::frame(0, &ToWorker::Ping)
            && let Ok(mut writer) = self.writer.try_lock()
        {
            let _ = writer.write_all(&bytes);
        } else if let Some(watch) = &mut lock(&self.calls).watch {
            watch.answered();
        }
    }

    fn gone(&self, how: &str) -> Error {
        let message = format!("the worker of plugin `{}` {how}", self.plugin);
        let action = limits::advice(how, &self.plugin).unwrap_or_else(|| {
            "load the model again; update the plugin if it happens again".to_owned()
        });
        Error::new(ErrorCode::Device, message).with_action(action)
    }
}

/// A call that runs. Dropping it stops it.
#[derive(Debug)]
pub(super) struct Running<'a> {
    link: &'a Link,
    pub(super) id: u64,
    receive: Receiver<Reply>,
}

impl Running<'_> {
    /// The next reply; `None` when none came in time.
    pub(super) fn next(&self, limit: Duration) -> Option<Reply> {
        match self.receive.recv_timeout(limit) {
            Ok(reply) => Some(reply),
            Err(RecvTimeoutError::Timeout) => None,
            Err(RecvTimeoutError::Disconnected) => Some(Reply::Done(Err(self.lost()))),
        }
    }

    fn end(self) -> Result<Answer, Error> {
        loop {
            match self.receive.recv() {
                Ok(Reply::Done(result)) => return result,
                Ok(Reply::Event(..) | Reply::Progress(..)) => {}
                Err(_) => return Err(self.lost()),
            }
        }
    }

    fn lost(&self) -> Error {
        let how = self.link.ended();
        self.link.shared.gone(how.as_deref().unwrap_or("is gone"))
    }
}

impl Drop for Running<'_> {
    /// What still runs then is to stop, and is watched until it has.
    fn drop(&mut self) {
        let abandoned = {
            let mut calls = lock(&self.link.shared.calls);
            calls.waiting.get_mut(&self.id).is_some_and(|waiting| {
                waiting.watched.stopping();
                waiting.send.take().is_some()
            })
        };
        if abandoned {
            self.link.tell(self.id, &ToWorker::Abandon);
        }
    }
}

enum Next {
    Message(FromWorker),
    Late,
    Ended,
}

/// The next message before the deadline. A message that can't be read is the end.
fn next(socket: &mut UnixStream, deadline: Instant) -> Next {
    let left = deadline.saturating_duration_since(Instant::now());
    if left.is_zero() || socket.set_read_timeout(Some(left)).is_err() {
        return Next::Late;
    }
    match frame::read(socket) {
        Ok(Some((_, Ok(message)))) => Next::Message(message),
        Err(error)
            if matches!(
                error.kind(),
                std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut
            ) =>
        {
            Next::Late
        }
        _ => Next::Ended,
    }
}

fn log(services: &TracingServices, message: FromWorker) {
    if let FromWorker::Log {
        level,
        target,
        message,
        place,
    } = message
        && let Ok(level) = level.parse()
    {
        services.log(level, &target, &message, &place);
    }
}

/// Waits for the end of a process in the background.
fn reap(process: Process) {
    let waiting = std::thread::Builder::new().name("worker's end".to_owned());
    let _ = waiting.spawn(move || process.end());
}

/// The verdict on a module that took its worker down.
pub(super) fn crashed(spec: &Spec, how: &str) -> Verdict {
    let message = format!("{}: its process {how}", spec.path.display());
    let message = message.split_whitespace().collect::<Vec<_>>().join(" ");
    let action = limits::advice(how, &spec.plugin).unwrap_or_else(|| {
        format!(
            "update the plugin, or set enabled = false in [plugin.{}]",
            spec.plugin
        )
    });
    Verdict::unavailable(VerdictState::Crashed, message, action)
}
