//! All that a worker started: its process group, and on Linux whatever carries its mark.

use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The environment variable that marks what a worker started. A child that leaves the group still has it.
pub(super) const MARK: &str = "BACKPLANE_WORKER_MARK";

/// A mark that no other worker has.
pub(super) fn fresh_mark() -> String {
    static LAST: AtomicU64 = AtomicU64::new(0);
    let number = LAST.fetch_add(1, Ordering::Relaxed);
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    let nanoseconds = since.map_or(0, |since| since.as_nanos());
    format!("{}-{number}-{nanoseconds}", std::process::id())
}

/// Kills the group that `leader` leads, and what carries the mark elsewhere. The leader must not have been waited for:
/// its number could be another's then.
pub(super) fn kill(leader: Pid, mark: &str) {
    // Errors say that nothing is left.
    let _ = kill_process_group(leader, Signal::KILL);
    // One that was being started meanwhile is found the second time.
    for _ in 0..2 {
        let left = marked(mark);
        if left.is_empty() {
            return;
        }
        for pid in left {
            let _ = kill_process(pid, Signal::KILL);
        }
    }
}

/// Ends this process, a worker, and all that it started. The module's threads may still run; what they do at the exit must
/// not keep it.
pub(super) fn end_self(code: i32) -> ! {
    let own = rustix::process::getpid();
    let leads = rustix::process::getpgrp() == own;
    let mark = std::env::var(MARK).ok().filter(|mark| !mark.is_empty());
    let number = own.as_raw_nonzero().get();
    let in_group = |pid: &Pid| leads && Relatives::of(*pid).is_some_and(|it| it.group == number);
    let mut left = mark.map(|mark| marked(&mark)).unwrap_or_default();
    left.extend(processes().filter(in_group));
    for pid in left.into_iter().filter(|pid| *pid != own) {
        let _ = kill_process(pid, Signal::KILL);
    }
    let late = || {
        std::thread::sleep(Duration::from_secs(1));
        std::process::abort();
    };
    let watched = std::thread::Builder::new().spawn(late).is_ok();
    if (!watched || cfg!(not(target_os = "linux"))) && leads {
        let _ = kill_process_group(own, Signal::KILL);
    }
    std::process::exit(code)
}

/// Numbers of a process's parent and group; 0 where they are outside of what this process sees.
pub(super) struct Relatives {
    pub(super) parent: i32,
    pub(super) group: i32,
}

impl Relatives {
    /// Of a process; `None` where it has ended, or the system does not tell.
    pub(super) fn of(pid: Pid) -> Option<Self> {
        let path = format!("/proc/{}/stat", pid.as_raw_nonzero());
        Self::in_stat(&std::fs::read_to_string(path).ok()?)
    }

    /// By a `stat` file, whose second field may hold anything.
    fn in_stat(stat: &str) -> Option<Self> {
        let (_, rest) = stat.rsplit_once(')')?;
        let mut fields = rest.split_whitespace().skip(1);
        let mut number = || fields.next()?.parse().ok();
        let (parent, group) = (number()?, number()?);
        Some(Self { parent, group })
    }
}

/// Processes whose environment has the mark; zombies have none.
#[cfg(target_os = "linux")]
fn marked(mark: &str) -> Vec<Pid> {
    use std::io::Read;
    let wanted = format!("{MARK}={mark}");
    let has = |pid: &Pid| {
        let path = format!("/proc/{}/environ", pid.as_raw_nonzero());
        let mut environment = Vec::new();
        let read = std::fs::File::open(path)
            .and_then(|file| file.take(1 << 20).read_to_end(&mut environment));
        read.is_ok()
            && environment
                .split(|byte| *byte == 0)
                .any(|one| one == wanted.as_bytes())
    };
    processes().filter(has).collect()
}

#[cfg(not(target_os = "linux"))]
fn marked(_mark: &str) -> Vec<Pid> {
    Vec::new()
}

/// All processes that there are; none where the system does not tell.
pub(super) fn processes() -> impl Iterator<Item = Pid> {
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| Pid::from_raw(entry.file_name().to_str()?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn relatives_are_read() {
        let of = |stat: &str| Relatives::in_stat(stat).map(|it| (it.parent, it.group));
        assert_eq!(of("7 (a ) b) S 42 43 7 0"), Some((42, 43)));
        assert_eq!(of("1 (init) S 0 0 0"), Some((0, 0)));
        assert_eq!(of("7 (a"), None);
        assert_eq!(of("7 (a) S 1"), None);
    }
}
