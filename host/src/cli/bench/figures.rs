//! Samples of one figure, and what they come to.

use serde_json::{Value, json};

/// Samples in the order in which they were taken.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Samples(Vec<f64>);

impl Samples {
    pub(super) fn add(&mut self, sample: f64) {
        self.0.push(sample);
    }

    /// The value below which a part of the samples lies, between samples in proportion; 0 without samples.
    fn quantile(&self, part: f64) -> f64 {
        let mut sorted = self.0.clone();
        sorted.sort_by(f64::total_cmp);
        let Some(last) = sorted.len().checked_sub(1) else {
            return 0.0;
        };
        let place = part.clamp(0.0, 1.0) * last as f64;
        let (below, above) = (place.floor() as usize, place.ceil() as usize);
        sorted[below] + (sorted[above] - sorted[below]) * place.fract()
    }

    pub(super) fn median(&self) -> f64 {
        self.quantile(0.5)
    }

    /// Half of the range of the middle half of the samples, as a share of the median.
    pub(super) fn spread(&self) -> f64 {
        share(
            (self.quantile(0.75) - self.quantile(0.25)) / 2.0,
            self.median(),
        )
    }

    /// The median of what this has, run by run, of what the other has: both were taken in turns.
    pub(super) fn ratio(&self, other: &Self) -> Self {
        let pairs = self.0.iter().zip(&other.0);
        Self(pairs.map(|(one, other)| share(*one, *other)).collect())
    }

    pub(super) fn as_json(&self) -> Value {
        json!({
            "median": self.median(),
            "min": self.quantile(0.0),
            "max": self.quantile(1.0),
            "spread": self.spread(),
            "samples": self.0,
        })
    }
}

/// One number as a part of another; 0 of nothing.
pub(super) fn share(part: f64, whole: f64) -> f64 {
    if whole > 0.0 { part / whole } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn samples(all: &[f64]) -> Samples {
        Samples(all.to_vec())
    }

    #[test]
    fn the_middle_and_its_spread() {
        let five = samples(&[50.0, 10.0, 30.0, 20.0, 40.0]);
        assert_eq!(five.median(), 30.0);
        // The middle half reaches from 20 to 40.
        assert!((five.spread() - 10.0 / 30.0).abs() < 1e-12);
        assert_eq!(samples(&[1.0, 2.0]).median(), 1.5);
        let one = samples(&[7.0]);
        assert_eq!((one.median(), one.spread()), (7.0, 0.0));
        let none = samples(&[]);
        assert_eq!((none.median(), none.spread()), (0.0, 0.0));
        // An outlier moves neither by much.
        let noisy = samples(&[10.0, 10.0, 10.0, 1.0, 10.0]);
        assert_eq!((noisy.median(), noisy.spread()), (10.0, 0.0));
    }

    #[test]
    fn ratios_pair_what_was_taken_in_turns() {
        let ratio = samples(&[2.0, 8.0, 3.0]).ratio(&samples(&[1.0, 4.0, 3.0]));
        assert_eq!(ratio, samples(&[2.0, 2.0, 1.0]));
        assert_eq!(samples(&[1.0]).ratio(&samples(&[0.0])), samples(&[0.0]));
    }
}
