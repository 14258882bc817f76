//! A worker as a process: started, listened to on its standard error, and its end put into words.

use super::group;
use crate::manifest::Bytes;
use rustix::process::{Pid, WaitId, WaitIdOptions, waitid};
use std::collections::VecDeque;
use std::io::{BufRead, BufReader, Read};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Lines of standard error that are told.
const TOLD: usize = 3;
/// Lines of standard error that are kept.
const LINES: usize = 20;
/// Bytes of a line that are kept.
const LINE: u64 = 4096;
/// Time that a worker has to end once its socket is closed, before it is killed.
const GRACE: Duration = Duration::from_secs(2);

/// Starts `program` as a worker; gives it with the host's end of its socket.
pub(super) fn start(program: &Path, plugin: &str) -> std::io::Result<(Process, UnixStream)> {
    start_as(program, super::VERB, plugin)
}

/// Starts `program` with one argument; gives it with the host's end of its socket.
pub(super) fn start_as(
    program: &Path,
    verb: &str,
    plugin: &str,
) -> std::io::Result<(Process, UnixStream)> {
    let (ours, theirs) = UnixStream::pair()?;
    let (errors, words) = std::io::pipe()?;
    let mark = group::fresh_mark();
    let child = Command::new(program)
        .arg(verb)
        .env(group::MARK, &mark)
        .stdin(Stdio::from(OwnedFd::from(theirs)))
        .stdout(words.try_clone()?)
        .stderr(words)
        // Ctrl-C on the terminal is the host's to answer.
        .process_group(0)
        .spawn()?;
    let last = Arc::new(LastLines::default());
    let (kept, plugin) = (last.clone(), plugin.to_owned());
    std::thread::Builder::new()
        .name(format!("stderr of {plugin}"))
        .spawn(move || kept.listen(errors, &plugin))?;
    let pid = Pid::from_child(&child);
    let life = Arc::new(Life {
        pid,
        mark,
        state: Mutex::default(),
        ended: Condvar::new(),
    });
    Ok((Process { child, last, life }, ours))
}

/// A worker's process.
#[derive(Debug)]
pub(super) struct Process {
    child: Child,
    last: Arc<LastLines>,
    life: Arc<Life>,
}

/// What threads that watch a process share.
#[derive(Debug)]
struct Life {
    pid: Pid,
    mark: String,
    state: Mutex<LifeState>,
    ended: Condvar,
}

#[derive(Debug, Default)]
struct LifeState {
    /// It has been waited for: its number may be another's.
    gone: bool,
    /// Why it was killed, if it was.
    why: Option<String>,
}

impl Life {
    fn state(&self) -> MutexGuard<'_, LifeState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Kills it and all that it started; the first reason stands.
    fn kill(&self, why: impl FnOnce() -> String) {
        let mut state = self.state();
        if !state.gone {
            state.why.get_or_insert_with(why);
            group::kill(self.pid, &self.mark);
        }
    }

    /// Waits for a pause; false once the process is gone.
    #[cfg(target_os = "linux")]
    fn pause(&self, pause: Duration) -> bool {
        let waited = self
            .ended
            .wait_timeout_while(self.state(), pause, |state| !state.gone);
        !waited.unwrap_or_else(PoisonError::into_inner).0.gone
    }
}

impl Process {
    /// Has it killed when it and its descendants hold more memory of their own.
    pub(super) fn limit_memory(&self, limit: Bytes) -> std::io::Result<()> {
        #[cfg(target_os = "linux")]
        {
            use super::memory_limit::{Family, PAUSE};
            use crate::worker::limits::{ENDED, OVER_MEMORY};
            let life = self.life.clone();
            let mut family = Family::of(life.pid);
            let watch = move || {
                while life.pause(PAUSE) {
                    let held = Bytes(family.own_bytes());
                    if held > limit {
                        life.kill(|| {
                            format!("{ENDED}it held {held} of memory; {OVER_MEMORY} {limit}")
                        });
                        break;
                    }
                }
            };
            let name = "worker's memory".to_owned();
            std::thread::Builder::new()
                .name(name)
                .spawn(watch)
                .map(drop)
        }
        #[cfg(not(target_os = "linux"))]
        Err(std::io::Error::other(format!(
            "memory_limit {limit} can be kept on Linux only"
        )))
    }

    /// Waits for the end of a worker whose socket was closed, kills it if it does not end, and says how it ended.
    pub(super) fn end(mut self) -> String {
        if !self.has_ended(GRACE) {
            self.life
                .kill(|| "closed its socket and did not end".to_owned());
        }
        self.reap()
    }

    /// Kills a worker that did not answer in time.
    pub(super) fn end_now(mut self, why: String) -> String {
        self.life.kill(|| why);
        self.reap()
    }

    /// Ends what it has left behind, and waits for it.
    fn reap(&mut self) -> String {
        let mut state = self.life.state();
        group::kill(self.life.pid, &self.life.mark);
        let status = self.child.wait();
        state.gone = true;
        self.life.ended.notify_all();
        let how = state.why.take().unwrap_or_else(|| match status {
            Ok(status) => describe(status),
            Err(error) => format!("ended: {error}"),
        });
        drop(state);
        match self.last.last() {
            Some(lines) => format!("{how}: {lines}"),
            None => how,
        }
    }

    /// Whether it ends in time. It is not waited for: its group keeps its number.
    fn has_ended(&self, limit: Duration) -> bool {
        let start = Instant::now();
        let mut pause = Duration::from_micros(200);
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT | WaitIdOptions::NOHANG;
        loop {
            match waitid(WaitId::Pid(self.life.pid), options) {
                Ok(None) if start.elapsed() < limit => std::thread::sleep(pause),
                Ok(None) => return false,
                // An error says that there is nothing to wait for.
                Ok(Some(_)) | Err(_) => return true,
            }
            pause = (pause * 2).min(Duration::from_millis(20));
        }
    }
}

/// How a process ended, for people: a signal by its name, else the status.
fn describe(status: ExitStatus) -> String {
    match (status.signal(), status.code()) {
        (Some(signal), _) => match signal_name(signal) {
            Some(name) => format!("ended by signal {signal} ({name})"),
            None => format!("ended by signal {signal}"),
        },
        (None, Some(code)) => format!("ended with exit status {code}"),
        (None, None) => format!("ended: {status}"),
    }
}

/// Names of the signals that end processes.
fn signal_name(signal: i32) -> Option<&'static str> {
    const BUS: i32 = if cfg!(any(target_os = "linux", target_os = "android")) {
        7
    } else {
        10
    };
    const SYS: i32 = if cfg!(any(target_os = "linux", target_os = "android")) {
        31
    } else {
        12
    };
    Some(match signal {
        1 => "SIGHUP",
        2 => "SIGINT",
        3 => "SIGQUIT",
        4 => "SIGILL",
        5 => "SIGTRAP",
        6 => "SIGABRT",
        BUS => "SIGBUS",
        8 => "SIGFPE",
        9 => "SIGKILL",
        11 => "SIGSEGV",
        13 => "SIGPIPE",
        14 => "SIGALRM",
        15 => "SIGTERM",
        24 => "SIGXCPU",
        25 => "SIGXFSZ",
        SYS => "SIGSYS",
        _ => return None,
    })
}

/// The last lines of a standard error.
#[derive(Debug, Default)]
struct LastLines {
    state: Mutex<Lines>,
    ended: Condvar,
}

#[derive(Debug, Default)]
struct Lines {
    lines: VecDeque<String>,
    ended: bool,
}

impl LastLines {
    fn listen(&self, from: impl Read, plugin: &str) {
        let mut from = BufReader::new(from);
        let mut line = Vec::new();
        loop {
            line.clear();
            match (&mut from).take(LINE).read_until(b'\n', &mut line) {
                Ok(0) | Err(_) => break,
                Ok(_) => {}
            }
            let text = String::from_utf8_lossy(&line);
            let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
            if text.is_empty() {
                continue;
            }
            tracing::debug!(target: "backplane::plugin", plugin, "{text}");
            let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
            if state.lines.len() == LINES {
                state.lines.pop_front();
            }
            state.lines.push_back(text);
        }
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.ended = true;
        self.ended.notify_all();
    }

    /// The last lines, once all are there, as one.
    fn last(&self) -> Option<String> {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let limit = Duration::from_millis(200);
        let (state, _) = self
            .ended
            .wait_timeout_while(state, limit, |state| !state.ended)
            .unwrap_or_else(PoisonError::into_inner);
        telling(&state.lines)
    }
}

/// The lines that tell most, as one: the last that are no mere hints.
fn telling(lines: &VecDeque<String>) -> Option<String> {
    let hint = |line: &&String| !line.starts_with("note: ");
    let mut last: Vec<&str> = lines
        .iter()
        .rev()
        .filter(hint)
        .take(TOLD)
        .map(String::as_str)
        .collect();
    last.reverse();
    (!last.is_empty()).then(|| last.join(" | "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_lines_are_kept() {
        let last = LastLines::default();
        let long = "x".repeat(10_000);
        let text: String = (0..30).map(|i| format!("line  {i}\n\n")).collect();
        last.listen(format!("{long}\n{text}note: a hint\n").as_bytes(), "t");
        assert_eq!(last.last().as_deref(), Some("line 27 | line 28 | line 29"));
        let state = last.state.lock().unwrap();
        assert_eq!(state.lines.len(), LINES);
        assert!(state.lines.iter().all(|line| line.len() <= LINE as usize));
    }

    #[test]
    fn ends_are_put_into_words() {
        let end = |script: &str| {
            let status = Command::new("sh").args(["-c", script]).status().unwrap();
            describe(status)
        };
        assert_eq!(end("exit 7"), "ended with exit status 7");
        assert_eq!(end("kill -SEGV $$"), "ended by signal 11 (SIGSEGV)");
        assert_eq!(end("kill -KILL $$"), "ended by signal 9 (SIGKILL)");
    }
}
