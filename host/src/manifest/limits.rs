//! How long calls of a plugin may take before it counts as hung, and how much memory its process may hold.

use serde::{Serialize, Serializer};
use std::fmt;
use std::time::Duration;

/// Longest time that is taken for meant.
const MOST_TIME: Duration = Duration::from_secs(7 * 24 * 3600);

/// Units of a time, and their milliseconds.
const TIMES: &[(&str, u64)] = &[("h", 3_600_000), ("m", 60_000), ("s", 1000), ("ms", 1)];

/// Units of a size, and their bytes.
const SIZES: &[(&str, u64)] = &[
    ("TiB", 1 << 40),
    ("GiB", 1 << 30),
    ("MiB", 1 << 20),
    ("KiB", 1 << 10),
    ("TB", 1_000_000_000_000),
    ("GB", 1_000_000_000),
    ("MB", 1_000_000),
    ("kB", 1000),
    ("B", 1),
];

/// A limit of time; `None`: there is none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limit(pub Option<Duration>);

impl Limit {
    /// The word of a limit that is none.
    pub const OFF: &str = "off";

    /// A limit of so many seconds.
    pub const fn seconds(seconds: u64) -> Self {
        Self(Some(Duration::from_secs(seconds)))
    }

    /// Reads `60s`, `500ms`, `10m`, `1h` or `off`; `None` where it is none of these, or not between 1 ms and a week.
    pub fn parse(text: &str) -> Option<Self> {
        if text == Self::OFF {
            return Some(Self(None));
        }
        let milliseconds = whole(text, TIMES)?;
        let limit = Duration::from_millis(milliseconds);
        (milliseconds > 0 && limit <= MOST_TIME).then_some(Self(Some(limit)))
    }
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            None => f.pad(Self::OFF),
            Some(limit) => {
                let milliseconds = u64::try_from(limit.as_millis()).unwrap_or(u64::MAX);
                let (unit, size) = unit(milliseconds, TIMES);
                write!(f, "{}{unit}", milliseconds / size)
            }
        }
    }
}

impl Serialize for Limit {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// When calls of a plugin in a worker count as hung. Time in which the host itself did not run is not counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Watchdog {
    /// Until the module is open, and until it has told whether it can be used, and its devices. Also where the plugin runs in
    /// the host's process: that is asked in a worker first.
    pub open: Limit,
    /// Until what should answer does: `inspect`, `tokenize`, `detokenize`, a template, metrics, `close`, whether a
    /// capability is there; and until a call ends that was told to stop.
    pub answer: Limit,
    /// Until a model is loaded, for each prompt of `classify`, and between steps of calls that tell their progress.
    pub load: Limit,
    /// Between two signs of life of a generation: it tells an event, or asks whether to stop.
    pub sign: Limit,
    /// While any generation runs: between two events of the plugin, whichever call they belong to.
    pub event: Limit,
}

impl Watchdog {
    /// Names of the limits, as manifests write them.
    pub const KEYS: &[&str] = &["open", "answer", "load", "sign", "event"];

    /// Whether it says more than how long opening may take.
    pub(crate) fn limits_calls(&self) -> bool {
        let open = self.open;
        *self
            != Self {
                open,
                ..Self::default()
            }
    }

    /// The limit of a name of [`Watchdog::KEYS`].
    pub(crate) fn limit_mut(&mut self, key: &str) -> Option<&mut Limit> {
        match key {
            "open" => Some(&mut self.open),
            "answer" => Some(&mut self.answer),
            "load" => Some(&mut self.load),
            "sign" => Some(&mut self.sign),
            "event" => Some(&mut self.event),
            _ => None,
        }
    }
}

impl Default for Watchdog {
    fn default() -> Self {
        Self {
            open: Limit(Some(crate::worker::TIME_LIMIT)),
            answer: Limit::seconds(60),
            load: Limit::seconds(10 * 60),
            sign: Limit::seconds(60),
            event: Limit::seconds(30 * 60),
        }
    }
}

/// A number of bytes that people write and read as `8GiB`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Bytes(pub u64);

impl Bytes {
    /// Reads a whole number with a unit (`B`, `KiB` to `TiB`, `kB` to `TB`); `None` where it is none, or zero.
    pub fn parse(text: &str) -> Option<Self> {
        whole(text, SIZES).filter(|bytes| *bytes > 0).map(Self)
    }
}

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (unit, size) = unit(self.0, &SIZES[..4]);
        if self.0.is_multiple_of(size) {
            write!(f, "{}{unit}", self.0 / size)
        } else {
            write!(f, "{:.1}{unit}", self.0 as f64 / size as f64)
        }
    }
}

impl Serialize for Bytes {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// A whole number and its unit, multiplied.
fn whole(text: &str, units: &[(&str, u64)]) -> Option<u64> {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = text.split_at(digits);
    let (_, size) = units.iter().find(|(name, _)| *name == unit.trim_start())?;
    number.parse::<u64>().ok()?.checked_mul(*size)
}

/// The largest unit that divides the time; for sizes the largest that is not larger.
fn unit(value: u64, units: &[(&'static str, u64)]) -> (&'static str, u64) {
    let times = units.as_ptr() == TIMES.as_ptr();
    let fits = |size: u64| {
        if times {
            value.is_multiple_of(size)
        } else {
            value >= size
        }
    };
    let found = units.iter().find(|(_, size)| fits(*size));
    found
        .copied()
        .unwrap_or(if times { ("ms", 1) } else { ("B", 1) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read_and_written() {
        for (text, milliseconds) in [
            ("60s", 60_000),
            ("1 s", 1000),
            ("500ms", 500),
            ("10m", 600_000),
            ("1h", 3_600_000),
            ("90m", 5_400_000),
        ] {
            let limit = Limit::parse(text).unwrap();
            assert_eq!(limit.0, Some(Duration::from_millis(milliseconds)), "{text}");
            assert_eq!(Limit::parse(&limit.to_string()), Some(limit), "{limit}");
        }
        assert_eq!(Limit::parse("off"), Some(Limit(None)));
        assert_eq!(Limit::seconds(60).to_string(), "1m");
        assert_eq!(
            Limit(Some(Duration::from_millis(1500))).to_string(),
            "1500ms"
        );
        for wrong in [
            "",
            "60",
            "s",
            "-1s",
            "1.5s",
            "0s",
            "1d",
            "99999999999999999999s",
            "8d",
            "200h",
        ] {
            assert_eq!(Limit::parse(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn sizes_are_read_and_written() {
        for (text, bytes, written) in [
            ("8GiB", 8 << 30, "8GiB"),
            ("8 GiB", 8 << 30, "8GiB"),
            ("1536MiB", 1536 << 20, "1.5GiB"),
            ("1GB", 1_000_000_000, "953.7MiB"),
            ("17B", 17, "17B"),
        ] {
            let size = Bytes::parse(text).unwrap();
            assert_eq!(size, Bytes(bytes), "{text}");
            assert_eq!(size.to_string(), written, "{text}");
        }
        for wrong in [
            "",
            "8",
            "GiB",
            "-8GiB",
            "8gib",
            "0GiB",
            "1.5GiB",
            "99999999999TiB",
        ] {
            assert_eq!(Bytes::parse(wrong), None, "{wrong}");
        }
    }
}
