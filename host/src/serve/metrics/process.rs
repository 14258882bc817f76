//! Numbers of this process, by the names that Prometheus' own clients give them. Linux tells them in text files; elsewhere
//! the start alone is known.

use super::page::{Kind, Page};

/// Ticks of the system's clock in a second, as Linux tells times to programs.
const TICKS: f64 = 100.0;

pub(super) fn write(page: &mut Page, started: u64) {
    page.gauge(
        "process_start_time_seconds",
        "When it was started, in seconds since 1970.",
        started as f64,
    );
    let read = |name: &str| std::fs::read_to_string(format!("/proc/self/{name}")).ok();
    if let Some(status) = read("status") {
        for (line, name, help) in [
            (
                "VmRSS:",
                "process_resident_memory_bytes",
                "Memory in use, mapped files included.",
            ),
            (
                "VmHWM:",
                "process_peak_memory_bytes",
                "Most memory that was in use at once.",
            ),
            (
                "VmSize:",
                "process_virtual_memory_bytes",
                "Addresses in use.",
            ),
        ] {
            if let Some(kib) = number(&status, line) {
                page.gauge(name, help, kib * 1024.0);
            }
        }
        if let Some(threads) = number(&status, "Threads:") {
            page.gauge("process_threads", "Threads.", threads);
        }
    }
    if let Some(seconds) = read("stat").and_then(|stat| cpu_seconds(&stat)) {
        let name = "process_cpu_seconds_total";
        page.family(name, Kind::Counter, "Time that processors spent on it.");
        page.bare(name, seconds);
    }
    if let Ok(open) = std::fs::read_dir("/proc/self/fd") {
        // One is the folder itself.
        let open = open.count().saturating_sub(1);
        page.gauge("process_open_fds", "Open files.", open as f64);
    }
    if let Some(most) = read("limits").and_then(|limits| number(&limits, "Max open files")) {
        page.gauge("process_max_fds", "Most open files.", most);
    }
}

/// The first number after a word at the beginning of a line.
fn number(text: &str, word: &str) -> Option<f64> {
    let line = text.lines().find_map(|line| line.strip_prefix(word))?;
    line.split_whitespace().next()?.parse().ok()
}

/// Time in user and system, of `/proc/self/stat`.
fn cpu_seconds(stat: &str) -> Option<f64> {
    // The name before it may hold anything.
    let (_, rest) = stat.rsplit_once(')')?;
    let mut fields = rest.split_whitespace().skip(11);
    let mut ticks = || fields.next()?.parse::<f64>().ok();
    Some((ticks()? + ticks()?) / TICKS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_systems_files_are_read() {
        let status = "VmPeak:\t 9 kB\nVmRSS:\t   12 kB\nThreads:\t7\n";
        assert_eq!(number(status, "VmRSS:"), Some(12.0));
        assert_eq!(number(status, "Threads:"), Some(7.0));
        assert_eq!(number("VmRSS:", "VmRSS:"), None);
        let limits = "Max open files            1024                 4096                 files\n";
        assert_eq!(number(limits, "Max open files"), Some(1024.0));
        let stat = "1 (a) b) S 1 1 1 0 -1 4 1 2 3 4 150 50 0 0 20";
        assert_eq!(cpu_seconds(stat), Some(2.0));
        assert_eq!(cpu_seconds("1 (a) S 1"), None);
    }
}
