//! Tolerances, and comparisons of logits.

/// How far a device with `f32` activations may be off.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Tolerance {
    /// Greatest difference of a logit (their standard deviation is 4 to 8) or of an inner value.
    pub max_abs: f32,
}

impl Default for Tolerance {
    /// What the references' README asks of an `f32` engine.
    fn default() -> Self {
        Self { max_abs: 1e-3 }
    }
}

/// By which rules quantised weights are judged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Judge {
    /// Activations stay `f32`: as exact as without quantisation.
    Exact,
    /// Activations are rounded to 8 bits before products: relative rms and agreement of the argmax.
    Int8Activations,
}

/// What a check saw.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Seen {
    /// Greatest difference of a logit.
    pub max_abs: f32,
    /// Greatest difference of a marked inner value.
    pub hidden_max_abs: f32,
    /// Greatest rms of the differences over the standard deviation of the logits, by sequence.
    pub rel_rms: f32,
    /// Smallest share of positions with the right argmax, by sequence.
    pub argmax: f32,
}

impl Seen {
    /// The worse of both in every figure.
    #[must_use]
    pub fn worst(self, other: Self) -> Self {
        Self {
            max_abs: self.max_abs.max(other.max_abs),
            hidden_max_abs: self.hidden_max_abs.max(other.hidden_max_abs),
            rel_rms: self.rel_rms.max(other.rel_rms),
            argmax: self.argmax.min(other.argmax),
        }
    }

    pub(crate) fn nothing() -> Self {
        Self {
            argmax: 1.0,
            ..Self::default()
        }
    }
}

/// Greatest difference; infinite if a number is not finite or lengths differ.
pub(crate) fn max_abs(a: &[f32], b: &[f32]) -> f32 {
    if a.len() != b.len() {
        return f32::INFINITY;
    }
    let worse = |worst: f32, difference: f32| {
        if difference.is_finite() {
            worst.max(difference)
        } else {
            f32::INFINITY
        }
    };
    a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, worse)
}

/// Place of the greatest number, the first of equals.
pub(crate) fn argmax(logits: &[f32]) -> u32 {
    assert!(
        logits.iter().all(|logit| logit.is_finite()),
        "a logit is not finite"
    );
    (0..logits.len())
        .max_by(|&a, &b| logits[a].total_cmp(&logits[b]).then(b.cmp(&a)))
        .map_or(0, |place| place as u32)
}

pub(crate) fn std_dev(values: &[f32]) -> f32 {
    let mean = values.iter().sum::<f32>() / values.len() as f32;
    (values
        .iter()
        .map(|value| (value - mean).powi(2))
        .sum::<f32>()
        / values.len() as f32)
        .sqrt()
}
