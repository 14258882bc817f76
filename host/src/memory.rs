//! How much memory this process has held.

use backplane_plugin_api::types::Metrics;

/// The metric's name.
pub(crate) const PEAK: &str = "process_peak_memory_bytes";

/// Adds the peak of this process, unless one is told already: of the process that the engine really runs in.
pub(crate) fn tell(metrics: &mut Metrics) {
    if !metrics.contains_key(PEAK)
        && let Some(bytes) = peak()
    {
        metrics.insert(PEAK.to_owned(), bytes as f64);
    }
}

/// Most memory that this process has held at once, in bytes. Linux tells it in a text file; elsewhere it is not known.
fn peak() -> Option<u64> {
    high_water(&std::fs::read_to_string("/proc/self/status").ok()?)
}

fn high_water(status: &str) -> Option<u64> {
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmHWM:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_systems_line_is_read() {
        let status = "VmPeak:\t  900 kB\nVmHWM:\t   12 kB\nVmRSS:\t 3 kB\n";
        assert_eq!(high_water(status), Some(12 * 1024));
        for wrong in [
            "",
            "VmHWM: 12",
            "VmHWM: x kB",
            "VmHWM: 18446744073709551615 kB",
        ] {
            assert_eq!(high_water(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn what_the_engine_tells_comes_first() {
        let mut metrics = Metrics::from([(PEAK.to_owned(), 5.0)]);
        tell(&mut metrics);
        assert_eq!(metrics[PEAK], 5.0);
    }
}
