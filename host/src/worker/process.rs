//! A worker as a process: started, listened to on its standard error, and its end put into words.

use std::collections::VecDeque;
use std::io::{BufRead, BufReader, Read};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

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
    let child = Command::new(program)
        .arg(verb)
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
    Ok((Process { child, last }, ours))
}

/// A worker's process.
#[derive(Debug)]
pub(super) struct Process {
    child: Child,
    last: Arc<LastLines>,
}

impl Process {
    /// Waits for the end of a worker whose socket was closed, kills it if it does not end, and says how it ended.
    pub(super) fn end(mut self) -> String {
        let status = self.wait(GRACE);
        let how = match status {
            Some(status) => describe(status),
            None => {
                self.kill();
                "closed its socket and did not end".to_owned()
            }
        };
        self.with_last_line(how)
    }

    /// Kills a worker that did not answer in time.
    pub(super) fn end_now(mut self, why: String) -> String {
        self.kill();
        self.with_last_line(why)
    }

    fn with_last_line(&self, how: String) -> String {
        match self.last.last() {
            Some(line) => format!("{how}: {line}"),
            None => how,
        }
    }

    fn kill(&mut self) {
        // An error says that it has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    fn wait(&mut self, limit: Duration) -> Option<ExitStatus> {
        let start = Instant::now();
        let mut pause = Duration::from_micros(200);
        loop {
            match self.child.try_wait() {
                Ok(Some(status)) => return Some(status),
                Ok(None) if start.elapsed() < limit => std::thread::sleep(pause),
                _ => return None,
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

    /// The last line, once all are there; a child of the worker's that holds its standard error open is not waited for.
    fn last(&self) -> Option<String> {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let limit = Duration::from_millis(200);
        let (state, _) = self
            .ended
            .wait_timeout_while(state, limit, |state| !state.ended)
            .unwrap_or_else(PoisonError::into_inner);
        telling(&state.lines).map(str::to_owned)
    }
}

/// The line that tells most: the last that is no mere hint.
fn telling(lines: &VecDeque<String>) -> Option<&str> {
    let hint = |line: &&String| !line.starts_with("note: ");
    lines.iter().rev().find(hint).map(String::as_str)
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
        assert_eq!(last.last().as_deref(), Some("line 29"));
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
