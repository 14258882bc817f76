//! A child process that ends with this one, with the last lines that it wrote.

use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process_group, waitid};
use std::collections::VecDeque;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::mpsc;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Lines that are kept.
const LINES: usize = 64;
/// Bytes of a line that are kept.
const LINE: u64 = 4096;
/// Time between the request to end and the end by force.
const GRACE: Duration = Duration::from_secs(5);

/// A running child. It is stopped when this is dropped, and with all that it started when this process ends, however that
/// comes about.
#[derive(Debug)]
pub(crate) struct Child {
    pid: Pid,
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    lines: VecDeque<String>,
    /// The child's outputs are closed: no line will come.
    silent: bool,
    ended: Option<ExitStatus>,
}

impl Child {
    /// Starts `command`, its outputs read here and its input empty. Ctrl-C on the terminal does not reach it.
    ///
    /// # Errors
    /// It could not be started.
    pub(crate) fn start(mut command: Command, name: &str) -> std::io::Result<Self> {
        let (output, words) = std::io::pipe()?;
        command
            .stdin(Stdio::null())
            .stdout(words.try_clone()?)
            .stderr(words)
            .process_group(0);
        let shared = Arc::new(Shared::default());
        let (keeper, (tell, told)) = (shared.clone(), mpsc::channel());
        // The system ends a child when the *thread* that started it ends: this one stays until the child has ended.
        std::thread::Builder::new()
            .name(format!("keeper of {name}"))
            .spawn(move || {
                end_with_parent(&mut command);
                let child = command.spawn();
                // Closes this side's copy of the pipe, so that its end is seen.
                drop(command);
                match child {
                    Ok(child) => {
                        let pid = Pid::from_child(&child);
                        let guard = Guard::start(pid);
                        if let Err(error) = &guard {
                            tracing::warn!(
                                "nothing watches over what process {pid} starts: {error}"
                            );
                        }
                        // The receiver waits for exactly this.
                        let _ = tell.send(Ok(pid));
                        keeper.wait_for_end(pid, child, guard.ok());
                    }
                    Err(error) => {
                        let _ = tell.send(Err(error));
                    }
                }
            })?;
        let pid = told
            .recv()
            .map_err(|_| std::io::Error::other("the thread that starts it is gone"))??;
        let (listener, name) = (shared.clone(), name.to_owned());
        std::thread::Builder::new()
            .name(format!("output of {name}"))
            .spawn(move || listener.listen(output, &name))?;
        Ok(Self { pid, shared })
    }

    /// Its process id.
    pub(crate) fn id(&self) -> u32 {
        self.pid.as_raw_nonzero().get().unsigned_abs()
    }

    /// How it ended; `None` while it runs. Waits for at most `limit`.
    pub(crate) fn ended_within(&self, limit: Duration) -> Option<String> {
        let (state, _) = self
            .shared
            .changed
            .wait_timeout_while(self.shared.lock(), limit, |state| state.ended.is_none())
            .unwrap_or_else(PoisonError::into_inner);
        state.ended.map(describe)
    }

    /// The line that tells most about what went wrong, of those that it wrote last.
    pub(crate) fn telling_line(&self) -> Option<String> {
        // What it wrote before its end may still be under way; a child of its own may hold its outputs open.
        let limit = Duration::from_millis(300);
        let (state, _) = self
            .shared
            .changed
            .wait_timeout_while(self.shared.lock(), limit, |state| {
                state.ended.is_some() && !state.silent
            })
            .unwrap_or_else(PoisonError::into_inner);
        telling(&state.lines).map(str::to_owned)
    }

    /// Asks it to end, waits, and ends it by force after [`GRACE`]. Does nothing once it has ended.
    pub(crate) fn stop(&self) {
        if !self.signal(Signal::TERM) {
            return;
        }
        let start = Instant::now();
        if self.ended_within(GRACE).is_none() {
            tracing::warn!(
                "process {} did not end within {} s of SIGTERM: killing it",
                self.id(),
                start.elapsed().as_secs()
            );
            self.signal(Signal::KILL);
            self.ended_within(GRACE);
        }
    }

    /// Whether it still ran, and so was sent the signal, with all that it started. (Its number is its own until its end is
    /// taken note of.)
    fn signal(&self, signal: Signal) -> bool {
        let state = self.shared.lock();
        state.ended.is_none() && kill_process_group(self.pid, signal).is_ok()
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        self.stop();
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait_for_end(&self, pid: Pid, mut child: std::process::Child, guard: Option<Guard>) {
        // First without taking the end: until the lock is held, signals may be sent to this number.
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
        while matches!(
            waitid(WaitId::Pid(pid), options),
            Err(rustix::io::Errno::INTR)
        ) {}
        // What it started and left behind, while the number of the group can't be another's. Mostly there is nothing.
        let _ = kill_process_group(pid, Signal::KILL);
        drop(guard);
        let mut state = self.lock();
        state.ended = Some(child.wait().unwrap_or_default());
        self.changed.notify_all();
    }

    fn listen(&self, from: impl Read, name: &str) {
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
            tracing::debug!(name, "{text}");
            let mut state = self.lock();
            if state.lines.len() == LINES {
                state.lines.pop_front();
            }
            state.lines.push_back(text);
        }
        self.lock().silent = true;
        self.changed.notify_all();
    }
}

/// The last line that speaks of an error, else of a failure, else the last one; without the time and level before it.
fn telling(lines: &VecDeque<String>) -> Option<&str> {
    let with = |words: &'static [&str]| {
        move |line: &&String| {
            let line = line.to_lowercase();
            // llama.cpp ends with a line that says only that it ends.
            words.iter().any(|word| line.contains(word)) && !line.contains("exiting due to")
        }
    };
    let last = |words| lines.iter().rev().find(with(words));
    let line = last(&["error"])
        .or_else(|| last(&["failed", "unable", "couldn't", "terminate"]))
        .or_else(|| lines.back())?;
    let rest = line.trim_start_matches(|c: char| c.is_ascii_digit() || c == '.');
    let rest = rest.strip_prefix(|c: char| c == ' ').unwrap_or(line);
    let level = ["E ", "W ", "I ", "D "];
    Some(
        level
            .iter()
            .find_map(|level| rest.strip_prefix(level))
            .unwrap_or(line),
    )
}

/// How a process ended, for people.
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

fn signal_name(signal: i32) -> Option<&'static str> {
    const NAMES: &[(Signal, &str)] = &[
        (Signal::HUP, "SIGHUP"),
        (Signal::INT, "SIGINT"),
        (Signal::ILL, "SIGILL"),
        (Signal::TRAP, "SIGTRAP"),
        (Signal::ABORT, "SIGABRT"),
        (Signal::BUS, "SIGBUS"),
        (Signal::FPE, "SIGFPE"),
        (Signal::KILL, "SIGKILL"),
        (Signal::SEGV, "SIGSEGV"),
        (Signal::PIPE, "SIGPIPE"),
        (Signal::TERM, "SIGTERM"),
        (Signal::SYS, "SIGSYS"),
    ];
    let (_, name) = NAMES.iter().find(|(known, _)| known.as_raw() == signal)?;
    Some(name)
}

/// A small process that ends a group of processes when this process ends: the system ends only the child itself with its
/// parent, not what a child that is a script has started.
#[derive(Debug)]
struct Guard {
    shell: std::process::Child,
    /// Closed by the system when this process ends, which the guard sees.
    _open: std::io::PipeWriter,
}

impl Guard {
    fn start(group: Pid) -> std::io::Result<Self> {
        let (end, open) = std::io::pipe()?;
        let shell = Command::new("/bin/sh")
            .args([
                "-c",
                "trap '' HUP INT TERM; read -r line; kill -s KILL -- \"-$0\"",
            ])
            .arg(group.as_raw_nonzero().to_string())
            .env_clear()
            .current_dir("/")
            .stdin(end)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .process_group(0)
            .spawn()?;
        Ok(Self { shell, _open: open })
    }
}

impl Drop for Guard {
    /// Dismisses it: the group has ended.
    fn drop(&mut self) {
        // An error says that it has ended already.
        let _ = self.shell.kill();
        let _ = self.shell.wait();
    }
}

/// Has the system end the child when the thread that starts it ends.
#[cfg(target_os = "linux")]
fn end_with_parent(command: &mut Command) {
    let parent = rustix::process::getpid();
    let ask = move || {
        rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
        // The parent may have ended before the system was asked.
        if rustix::process::getppid() == Some(parent) {
            Ok(())
        } else {
            Err(std::io::ErrorKind::NotFound.into())
        }
    };
    // SAFETY: between fork and exec only the two system calls above are made: nothing is allocated and no lock taken.
    unsafe { command.pre_exec(ask) };
}

/// Elsewhere the system can't be asked: the child is stopped when its [`Child`] is dropped, and by its [`Guard`] when this process is killed.
#[cfg(not(target_os = "linux"))]
fn end_with_parent(_: &mut Command) {}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> Child {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        Child::start(command, "test").unwrap()
    }

    const LONG: Duration = Duration::from_secs(20);

    #[test]
    fn ends_and_last_lines_are_told() {
        let child =
            shell("echo one; echo 'error:  a   b' >&2; echo exiting due to that error; exit 7");
        assert_eq!(
            child.ended_within(LONG).as_deref(),
            Some("ended with exit status 7")
        );
        assert_eq!(child.telling_line().as_deref(), Some("error: a b"));
        let child =
            shell("echo '0.00.016 E load: error: x'; echo '0.00.017 E srv: failed to load'");
        assert!(child.ended_within(LONG).is_some());
        assert_eq!(child.telling_line().as_deref(), Some("load: error: x"));
        let child = shell("kill -SEGV $$");
        assert_eq!(
            child.ended_within(LONG).as_deref(),
            Some("ended by signal 11 (SIGSEGV)")
        );
        assert_eq!(child.telling_line(), None);
        child.stop();
    }

    #[test]
    fn a_deaf_child_is_killed() {
        let child = shell("trap '' TERM; echo ready; while :; do sleep 0.1; done");
        while child.telling_line().is_none() {}
        child.stop();
        assert_eq!(
            child.ended_within(LONG).as_deref(),
            Some("ended by signal 9 (SIGKILL)")
        );
    }

    #[test]
    fn dropping_stops() {
        let child = shell("exec sleep 60");
        let shared = child.shared.clone();
        drop(child);
        assert!(shared.lock().ended.is_some());
    }

    fn lives(pid: u32) -> bool {
        let listed = Command::new("ps")
            .args(["-o", "stat=", "-p", &pid.to_string()])
            .output()
            .unwrap();
        let state = String::from_utf8_lossy(&listed.stdout).trim().to_owned();
        !state.is_empty() && !state.starts_with('Z')
    }

    fn ends(pid: u32) -> bool {
        let start = Instant::now();
        while start.elapsed() < LONG {
            if !lives(pid) {
                return true;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        false
    }

    /// The process that a script started and waits for.
    fn started_by(note: &std::path::Path) -> u32 {
        let start = Instant::now();
        loop {
            let noted = std::fs::read_to_string(note).unwrap_or_default();
            if let Some(line) = noted.strip_suffix('\n') {
                return line.parse().unwrap();
            }
            assert!(start.elapsed() < LONG, "nothing was started");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// This test is its own host too, told by a variable where its script shall note what it started.
    #[test]
    fn what_a_script_started_ends_with_a_host_that_is_killed() {
        const NOTE: &str = "BACKPLANE_TEST_GUARD_NOTE";
        if let Some(note) = std::env::var_os(NOTE) {
            let note = note.into_string().unwrap();
            let child = shell(&format!("sleep 60 & echo $! > '{note}'; wait"));
            child.ended_within(LONG * 2);
            return;
        }
        let folder = tempfile::tempdir().unwrap();
        let note = folder.path().join("note");
        let mut host = Command::new(std::env::current_exe().unwrap())
            .args([
                "--exact",
                "child::tests::what_a_script_started_ends_with_a_host_that_is_killed",
            ])
            .env(NOTE, &note)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let started = started_by(&note);
        let was_there = lives(started);
        host.kill().unwrap();
        host.wait().unwrap();
        assert!(was_there && ends(started));
    }

    #[test]
    fn what_a_script_left_behind_ends_with_it() {
        let folder = tempfile::tempdir().unwrap();
        let note = folder.path().join("note");
        let child = shell(&format!("sleep 60 & echo $! > '{}'", note.display()));
        assert!(child.ended_within(LONG).is_some());
        assert!(ends(started_by(&note)));
    }

    #[test]
    fn what_cannot_start_is_an_error() {
        let error = Child::start(Command::new("/nowhere/to/be/found"), "test").unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::NotFound);
    }
}
