//! Log probabilities over the whole vocabulary.

use super::select;

/// The softmax of one row of logits, kept as its normaliser.
#[derive(Clone, Copy, Debug)]
pub struct LogProbabilities {
    log_sum: f64,
}

impl LogProbabilities {
    /// Of logits `[vocabulary]` as the model gave them.
    pub fn new(logits: &[f32]) -> Self {
        let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let sum: f64 = logits
            .iter()
            .map(|&logit| f64::from((logit - max).exp()))
            .sum();
        Self {
            log_sum: f64::from(max) + sum.ln(),
        }
    }

    /// Natural logarithm of the probability of a token with this logit.
    pub fn of(&self, logit: f32) -> f32 {
        (f64::from(logit) - self.log_sum) as f32
    }
}

/// The `count` likeliest tokens with their logits, likeliest first; of equals the lowest id first.
pub fn likeliest(logits: &[f32], count: usize) -> Vec<(u32, f32)> {
    let mut candidates = Vec::new();
    select::top_k(logits, count, &mut candidates);
    candidates
        .into_iter()
        .map(|candidate| (candidate.token, candidate.logit))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn probabilities_add_up() {
        let logits = [1.0, 2.0, 3.0, -50.0, 100.0];
        let log = LogProbabilities::new(&logits);
        let total: f32 = logits.iter().map(|&logit| log.of(logit).exp()).sum();
        assert!((total - 1.0).abs() < 1e-6, "{total}");
        assert_eq!(likeliest(&logits, 2), [(4, 100.0), (2, 3.0)]);
    }
}
