//! A page in Prometheus' text format.

use super::{Histogram, Labels};
use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::atomic::Ordering;

/// Its content type.
pub(super) const TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// What the numbers of a family are.
#[derive(Clone, Copy, Debug)]
pub(super) enum Kind {
    Counter,
    Gauge,
    Histogram,
}

/// Lines of text, one family after the other.
#[derive(Debug, Default)]
pub(super) struct Page(String);

impl Page {
    /// Begins a family: its samples follow.
    pub(super) fn family(&mut self, name: &str, kind: Kind, help: &str) {
        let kind = match kind {
            Kind::Counter => "counter",
            Kind::Gauge => "gauge",
            Kind::Histogram => "histogram",
        };
        // Writing to a text does not fail.
        let _ = writeln!(self.0, "# HELP {name} {help}\n# TYPE {name} {kind}");
    }

    pub(super) fn sample(&mut self, name: &str, labels: &[(&str, impl AsRef<str>)], value: f64) {
        self.0.push_str(name);
        for (index, (label, text)) in labels.iter().enumerate() {
            let before = if index == 0 { '{' } else { ',' };
            let _ = write!(self.0, "{before}{label}=\"");
            for symbol in text.as_ref().chars() {
                match symbol {
                    '\\' => self.0.push_str("\\\\"),
                    '"' => self.0.push_str("\\\""),
                    '\n' => self.0.push_str("\\n"),
                    other => self.0.push(other),
                }
            }
            self.0.push('"');
        }
        if !labels.is_empty() {
            self.0.push('}');
        }
        let _ = if value == f64::INFINITY {
            writeln!(self.0, " +Inf")
        } else if value == f64::NEG_INFINITY {
            writeln!(self.0, " -Inf")
        } else {
            writeln!(self.0, " {value}")
        };
    }

    /// A gauge without labels.
    pub(super) fn gauge(&mut self, name: &str, help: &str, value: f64) {
        self.family(name, Kind::Gauge, help);
        self.bare(name, value);
    }

    /// A sample without labels.
    pub(super) fn bare(&mut self, name: &str, value: f64) {
        self.sample(name, &[] as &[(&str, &str)], value);
    }

    /// A family of counters.
    pub(super) fn counters<const N: usize>(
        &mut self,
        name: &str,
        help: &str,
        labels: [&str; N],
        counts: &BTreeMap<Labels<N>, u64>,
    ) {
        self.family(name, Kind::Counter, help);
        for (values, count) in counts {
            let pairs: Vec<(&str, &String)> = labels.into_iter().zip(values).collect();
            self.sample(name, &pairs, *count as f64);
        }
    }

    /// A family of histograms.
    pub(super) fn histograms<'a>(
        &mut self,
        name: &str,
        help: &str,
        each: impl Iterator<Item = (&'a [(&'static str, String)], &'a Histogram)>,
    ) {
        self.family(name, Kind::Histogram, help);
        for (labels, histogram) in each {
            let bucket = format!("{name}_bucket");
            let mut so_far = 0;
            let bounds = histogram.bounds.iter().copied().chain([f64::INFINITY]);
            for (bound, count) in bounds.zip(&histogram.counts) {
                so_far += count.load(Ordering::Relaxed);
                let mut labels = labels.to_vec();
                let bound = match bound {
                    f64::INFINITY => "+Inf".to_owned(),
                    bound => bound.to_string(),
                };
                labels.push(("le", bound));
                self.sample(&bucket, &labels, so_far as f64);
            }
            let nanoseconds = histogram.nanoseconds.load(Ordering::Relaxed);
            self.sample(&format!("{name}_sum"), labels, nanoseconds as f64 / 1e9);
            self.sample(&format!("{name}_count"), labels, so_far as f64);
        }
    }

    pub(super) fn text(self) -> String {
        self.0
    }
}
