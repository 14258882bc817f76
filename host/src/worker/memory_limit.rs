//! How much memory a process and its descendants hold of their own, by Linux's files.
//!
//! Counted are pages that no file backs: heap, stacks, private pages that were written, and what of them was swapped out.
//! Not counted are mapped files (models), memory that processes share, and memory of devices.

use super::group::{Relatives, processes};
use rustix::process::Pid;
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

/// Time between two looks at a worker.
pub(super) const PAUSE: Duration = Duration::from_millis(50);
/// Time between two searches for its descendants.
const SEARCH: Duration = Duration::from_millis(500);

/// A worker and what descends from it.
#[derive(Debug)]
pub(super) struct Family {
    leader: Pid,
    descendants: Vec<Pid>,
    searched: Option<Instant>,
}

impl Family {
    pub(super) fn of(leader: Pid) -> Self {
        Self {
            leader,
            descendants: Vec::new(),
            searched: None,
        }
    }

    /// Bytes that they hold of their own now.
    pub(super) fn own_bytes(&mut self) -> u64 {
        if self.searched.is_none_or(|at| at.elapsed() >= SEARCH) {
            self.descendants = descendants(self.leader);
            self.searched = Some(Instant::now());
        }
        let all = self.descendants.iter().chain([&self.leader]);
        all.map(|pid| own_bytes(*pid)).sum()
    }
}

fn own_bytes(pid: Pid) -> u64 {
    let path = format!("/proc/{}/status", pid.as_raw_nonzero());
    std::fs::read_to_string(path).map_or(0, |status| own_bytes_of(&status))
}

/// The sum of two lines of a `status` file. A process that has ended has neither.
fn own_bytes_of(status: &str) -> u64 {
    let of = |line: &str| {
        let kilobytes = line
            .strip_prefix("RssAnon:")
            .or_else(|| line.strip_prefix("VmSwap:"))?;
        let number = kilobytes.trim().strip_suffix("kB")?.trim();
        number.parse::<u64>().ok()?.checked_mul(1024)
    };
    status.lines().filter_map(of).sum()
}

fn descendants(leader: Pid) -> Vec<Pid> {
    let mut children: BTreeMap<i32, Vec<Pid>> = BTreeMap::new();
    for pid in processes() {
        let parent = Relatives::of(pid).map(|it| it.parent);
        if let Some(parent) = parent {
            children.entry(parent).or_default().push(pid);
        }
    }
    let (mut found, mut seen) = (Vec::new(), BTreeSet::new());
    let mut open = vec![leader];
    while let Some(pid) = open.pop() {
        for child in children
            .get(&pid.as_raw_nonzero().get())
            .into_iter()
            .flatten()
        {
            if seen.insert(child.as_raw_nonzero()) {
                found.push(*child);
                open.push(*child);
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_of_the_system_are_read() {
        let status = "Name:\tx\nVmSwap:\t      4 kB\nRssAnon:\t    2048 kB\nRssFile:\t 99999 kB\nRssShmem:\t 5 kB\n";
        assert_eq!(own_bytes_of(status), (2048 + 4) * 1024);
        assert_eq!(
            own_bytes_of("RssAnon: x kB\nRssAnon:\nVmSwap: 99999999999999999999 kB"),
            0
        );
    }

    #[test]
    fn memory_of_children_counts_and_mapped_files_do_not() {
        let own = rustix::process::getpid();
        let before = Family::of(own).own_bytes();
        assert!(before > 0);
        let kept = vec![1_u8; 64 << 20];
        assert!(Family::of(own).own_bytes() >= before + (32 << 20));
        drop(kept);
        let mut child = std::process::Command::new("sleep")
            .arg("30")
            .spawn()
            .unwrap();
        assert!(descendants(own).contains(&Pid::from_child(&child)));
        child.kill().unwrap();
        child.wait().unwrap();
    }
}
