//! What this machine's processor and memory are.

use backplane_cpu_device::CpuDevice;
use backplane_plugin_api::types::DeviceInfo;
use std::collections::BTreeMap;

/// The processor, all cores and sockets as one device. What the system does not tell is left out.
pub(crate) fn device() -> DeviceInfo {
    // Linux tells both in text files; elsewhere they are absent.
    let cpuinfo = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let meminfo = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    DeviceInfo {
        id: "cpu".into(),
        name: model_name(&cpuinfo)
            .unwrap_or_else(|| format!("{} processor", std::env::consts::ARCH)),
        kind: "cpu".into(),
        memory_total: memory(&meminfo, "MemTotal"),
        memory_free: memory(&meminfo, "MemAvailable"),
        details: BTreeMap::from([
            ("threads".into(), cores.to_string()),
            ("features".into(), CpuDevice::features()),
        ]),
    }
}

fn model_name(cpuinfo: &str) -> Option<String> {
    let line = cpuinfo
        .lines()
        .find(|line| line.starts_with("model name"))?;
    Some(line.split_once(':')?.1.trim().to_owned())
}

/// Bytes of a line such as `MemTotal:  16384 kB`.
fn memory(meminfo: &str, key: &str) -> Option<u64> {
    let line = meminfo
        .lines()
        .find_map(|line| line.strip_prefix(key)?.strip_prefix(':'))?;
    line.trim()
        .strip_suffix("kB")?
        .trim()
        .parse::<u64>()
        .ok()?
        .checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_the_system_are_read() {
        let cpuinfo = "processor\t: 0\nmodel name\t: Some CPU @ 3 GHz\nmodel name\t: other\n";
        assert_eq!(model_name(cpuinfo).as_deref(), Some("Some CPU @ 3 GHz"));
        assert_eq!(model_name("nothing"), None);
        let meminfo = "MemTotal:       16 kB\nMemFree: 1 kB\nMemAvailable:   8 kB\nHuge: 2\n";
        assert_eq!(
            (memory(meminfo, "MemTotal"), memory(meminfo, "MemAvailable")),
            (Some(16384), Some(8192))
        );
        assert_eq!(
            (
                memory(meminfo, "Huge"),
                memory(meminfo, "Mem"),
                memory("", "MemTotal")
            ),
            (None, None, None)
        );
    }
}
