//! How much memory models may take together.

use crate::manifest::{Bytes, MemoryBudget};

/// Bytes for models; `None`: as much as they want.
pub(super) fn bytes(setting: MemoryBudget) -> Option<u64> {
    match setting {
        MemoryBudget::Off => None,
        MemoryBudget::Bytes(Bytes(bytes)) => Some(bytes),
        MemoryBudget::Auto => available().map(|bytes| bytes / 5 * 4),
    }
}

/// Memory that is available now, as far as the system tells it: of the machine, and of the group of processes that this one is
/// in.
fn available() -> Option<u64> {
    let read = |path: &str| std::fs::read_to_string(path).ok();
    let machine = read("/proc/meminfo").and_then(|text| of_machine(&text))?;
    let group = read("/proc/self/cgroup").and_then(|text| {
        let group = text.lines().find_map(|line| line.strip_prefix("0::"))?;
        let file = |name: &str| read(&format!("/sys/fs/cgroup{}/{name}", group.trim_end()));
        of_group(&file("memory.max")?, &file("memory.current")?)
    });
    Some(group.map_or(machine, |group| group.min(machine)))
}

fn of_machine(meminfo: &str) -> Option<u64> {
    let line = meminfo
        .lines()
        .find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1024)
}

fn of_group(most: &str, now: &str) -> Option<u64> {
    let most: u64 = most.trim().parse().ok()?;
    let now: u64 = now.trim().parse().ok()?;
    Some(most.saturating_sub(now))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_system_tells() {
        let text = "MemTotal: 9 kB\nMemAvailable:   12 kB\n";
        assert_eq!(of_machine(text), Some(12 * 1024));
        assert_eq!(of_machine("MemTotal: 9 kB"), None);
        assert_eq!(of_group("100\n", "40\n"), Some(60));
        assert_eq!(of_group("100", "140"), Some(0));
        assert_eq!(of_group("max\n", "40"), None);
        assert_eq!(bytes(MemoryBudget::Off), None);
        assert_eq!(bytes(MemoryBudget::Bytes(Bytes(7))), Some(7));
    }
}
