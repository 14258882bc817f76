//! Choosing the next token from logits.
//!
//! The order is that of llama.cpp's default sampler chain (its `common/sampling` and the table of samplers in the
//! README of its server): logit bias, penalties, top-k, top-p, min-p, temperature, draw. Truncation thus sees
//! probabilities before temperature. At temperature 0 the likeliest token after bias and penalties is taken; of equals
//! the lowest id.
//!
//! A token whose logit is minus infinity is never chosen.

mod logprobs;
mod rng;
mod select;
mod settings;

pub use logprobs::{LogProbabilities, likeliest};
pub use rng::SplitMix64;
pub use settings::Settings;

use select::{Candidate, NotFinite, by_likelihood};
use std::collections::HashMap;

/// Why no token could be chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SamplingError {
    /// A logit is not a number, or plus infinity.
    #[error("the device gave logits that are not numbers")]
    NotFinite,
    /// Every logit is minus infinity.
    #[error("every token is excluded by its logit or bias")]
    NothingLeft,
}

impl From<NotFinite> for SamplingError {
    fn from(_: NotFinite) -> Self {
        Self::NotFinite
    }
}

/// Chooses the tokens of one sequence. Its random numbers depend on its seed alone, so that a text does not depend on
/// what else runs.
#[derive(Clone, Debug)]
pub struct Sampler {
    settings: Settings,
    rng: SplitMix64,
    candidates: Vec<Candidate>,
    counts: HashMap<u32, u32>,
}

impl Sampler {
    /// A sampler with its own random numbers from `seed`.
    pub fn new(settings: Settings, seed: u64) -> Self {
        Self {
            settings,
            rng: SplitMix64::new(seed),
            candidates: Vec::new(),
            counts: HashMap::new(),
        }
    }

    /// Chooses the next token. `logits` (`[vocabulary]`) are changed in place by bias and penalties; `history` is
    /// prompt and text so far, whose end the penalties look at.
    ///
    /// # Errors
    /// The logits are not numbers, or every token is excluded.
    pub fn sample(&mut self, logits: &mut [f32], history: &[u32]) -> Result<u32, SamplingError> {
        self.bias(logits);
        self.penalise(logits, history);
        if self.settings.temperature == 0.0 {
            let (token, logit) = select::argmax(logits)?;
            return if logit == f32::NEG_INFINITY {
                Err(SamplingError::NothingLeft)
            } else {
                Ok(token)
            };
        }
        let (_, top) = select::argmax(logits)?;
        if top == f32::NEG_INFINITY {
            return Err(SamplingError::NothingLeft);
        }
        self.truncate(logits, top);
        Ok(self.draw(top))
    }

    fn bias(&self, logits: &mut [f32]) {
        for &(token, bias) in &self.settings.logit_bias {
            if let Some(logit) = logits.get_mut(token as usize) {
                *logit += bias;
            }
        }
    }

    /// Repeat penalty divides a positive logit and multiplies a negative one; frequency and presence are taken off.
    fn penalise(&mut self, logits: &mut [f32], history: &[u32]) {
        let settings = &self.settings;
        if !settings.penalises() {
            return;
        }
        self.counts.clear();
        let window = history.len().saturating_sub(settings.repeat_last_n);
        for &token in &history[window..] {
            *self.counts.entry(token).or_insert(0) += 1;
        }
        for (&token, &count) in &self.counts {
            if let Some(logit) = logits.get_mut(token as usize) {
                if *logit > 0.0 {
                    *logit /= settings.repeat_penalty;
                } else {
                    *logit *= settings.repeat_penalty;
                }
                *logit -= count as f32 * settings.frequency_penalty + settings.presence_penalty;
            }
        }
    }

    /// Leaves in `candidates` what top-k, top-p and min-p keep, likeliest first (by id where nothing is cut).
    fn truncate(&mut self, logits: &[f32], top: f32) {
        let Settings {
            top_k,
            top_p,
            min_p,
            ..
        } = self.settings;
        // Both top-p and min-p keep a beginning of the tokens in order of likelihood, so min-p may be applied first
        // as long as top-p's share is taken of the whole.
        let floor = if min_p > 0.0 {
            top + min_p.ln()
        } else {
            f32::NEG_INFINITY
        };
        let candidates = &mut self.candidates;
        if top_k > 0 && top_k < logits.len() {
            select::top_k(logits, top_k, candidates);
            if top_p < 1.0 {
                let total: f64 = candidates
                    .iter()
                    .map(|candidate| weight(candidate.logit, top))
                    .sum();
                select::keep_share(candidates, top, total * f64::from(top_p));
            }
            let kept = candidates.partition_point(|candidate| candidate.logit >= floor);
            candidates.truncate(kept.max(1));
            return;
        }
        select::above(logits, floor, candidates);
        if top_p < 1.0 {
            let total: f64 = logits.iter().map(|&logit| weight(logit, top)).sum();
            select::keep_likeliest_share(candidates, top, total * f64::from(top_p));
        } else if min_p > 0.0 {
            candidates.sort_unstable_by(by_likelihood);
        }
    }

    /// Draws from `candidates` by softmax at the temperature.
    fn draw(&mut self, top: f32) -> u32 {
        let scale = 1.0 / f64::from(self.settings.temperature);
        let share = |candidate: &Candidate| (f64::from(candidate.logit - top) * scale).exp();
        let total: f64 = self.candidates.iter().map(share).sum();
        let mut left = self.rng.unit() * total;
        let mut chosen = self.candidates[0].token;
        for candidate in &self.candidates {
            let weight = share(candidate);
            if weight > 0.0 {
                chosen = candidate.token;
                if left < weight {
                    break;
                }
                left -= weight;
            }
        }
        chosen
    }
}

/// Softmax numerator.
fn weight(logit: f32, top: f32) -> f64 {
    f64::from((logit - top).exp())
}

#[cfg(test)]
mod tests {
    use super::*;
    use backplane_plugin_api::types::Sampling;
    use proptest::prelude::*;

    fn sampler(sampling: &Sampling, vocabulary: usize, seed: u64) -> Sampler {
        Sampler::new(Settings::new(sampling, vocabulary).unwrap(), seed)
    }

    fn plain() -> Sampling {
        Sampling {
            temperature: Some(1.0),
            top_k: Some(0),
            top_p: Some(1.0),
            min_p: Some(0.0),
            ..Sampling::default()
        }
    }

    /// Which tokens are ever drawn from these logits.
    fn support(sampling: &Sampling, logits: &[f32]) -> Vec<u32> {
        let mut seen = vec![false; logits.len()];
        let mut sampler = sampler(sampling, logits.len(), 7);
        for _ in 0..4000 {
            let token = sampler.sample(&mut logits.to_vec(), &[]).unwrap();
            seen[token as usize] = true;
        }
        (0..logits.len() as u32)
            .filter(|&token| seen[token as usize])
            .collect()
    }

    const LOGITS: [f32; 6] = [1.0, 3.0, 2.0, 0.0, 2.5, -1.0];

    #[test]
    fn greedy_takes_the_lowest_of_equals() {
        let mut greedy = sampler(
            &Sampling {
                temperature: Some(0.0),
                ..Sampling::default()
            },
            4,
            0,
        );
        assert_eq!(greedy.sample(&mut [0.0, 2.0, 2.0, 1.0], &[]), Ok(1));
    }

    #[test]
    fn truncation_keeps_what_it_says() {
        assert_eq!(
            support(
                &Sampling {
                    top_k: Some(2),
                    ..plain()
                },
                &LOGITS
            ),
            [1, 4]
        );
        assert_eq!(
            support(
                &Sampling {
                    top_k: Some(1),
                    ..plain()
                },
                &LOGITS
            ),
            [1]
        );
        // Shares: 1: .43, 4: .26, 2: .16, 0: .058 …
        assert_eq!(
            support(
                &Sampling {
                    top_p: Some(0.4),
                    ..plain()
                },
                &LOGITS
            ),
            [1]
        );
        assert_eq!(
            support(
                &Sampling {
                    top_p: Some(0.6),
                    ..plain()
                },
                &LOGITS
            ),
            [1, 4]
        );
        assert_eq!(
            support(
                &Sampling {
                    top_p: Some(0.0),
                    ..plain()
                },
                &LOGITS
            ),
            [1]
        );
        assert_eq!(
            support(
                &Sampling {
                    min_p: Some(0.5),
                    ..plain()
                },
                &LOGITS
            ),
            [1, 4]
        );
        assert_eq!(
            support(
                &Sampling {
                    min_p: Some(0.3),
                    ..plain()
                },
                &LOGITS
            ),
            [1, 2, 4]
        );
        assert_eq!(support(&plain(), &LOGITS), [0, 1, 2, 3, 4, 5]);
        // Top-p takes its share of what top-k left: 1 and 4 of {1, 4, 2} have .82 of it.
        assert_eq!(
            support(
                &Sampling {
                    top_k: Some(3),
                    top_p: Some(0.8),
                    ..plain()
                },
                &LOGITS
            ),
            [1, 4]
        );
    }

    #[test]
    fn frequencies_follow_the_temperature() {
        let mut sampler = sampler(
            &Sampling {
                temperature: Some(2.0),
                ..plain()
            },
            2,
            11,
        );
        let drawn = (0..20_000)
            .filter(|_| sampler.sample(&mut [2.0, 0.0], &[]).unwrap() == 0)
            .count();
        let expected = 1.0 / (1.0 + (-1.0f64).exp());
        assert!((drawn as f64 / 20_000.0 - expected).abs() < 0.01, "{drawn}");
    }

    #[test]
    fn penalties_and_bias() {
        let greedy = Sampling {
            temperature: Some(0.0),
            ..Sampling::default()
        };
        let check = |sampling: Sampling, logits: [f32; 3], history: &[u32], expected: [f32; 3]| {
            let mut logits = logits;
            let mut sampler = sampler(&sampling, 3, 0);
            sampler.sample(&mut logits, history).unwrap();
            assert_eq!(logits, expected);
        };
        let repeat = Sampling {
            repeat_penalty: Some(2.0),
            repeat_last_n: Some(2),
            ..greedy.clone()
        };
        check(repeat, [4.0, -4.0, 1.0], &[2, 0, 1], [2.0, -8.0, 1.0]);
        let counted = Sampling {
            presence_penalty: Some(0.5),
            frequency_penalty: Some(0.25),
            ..greedy.clone()
        };
        check(counted, [1.0, 1.0, 1.0], &[0, 0, 1], [0.0, 0.25, 1.0]);
        let biased = Sampling {
            logit_bias: vec![(2, 1.5), (0, f32::NEG_INFINITY)],
            ..greedy.clone()
        };
        check(biased, [1.0, 1.0, 1.0], &[], [f32::NEG_INFINITY, 1.0, 2.5]);
        let off = Sampling {
            repeat_penalty: Some(2.0),
            repeat_last_n: Some(0),
            ..greedy
        };
        check(off, [1.0, 1.0, 1.0], &[0], [1.0, 1.0, 1.0]);
    }

    #[test]
    fn bad_logits_are_errors() {
        for temperature in [0.0, 1.0] {
            let sampling = Sampling {
                temperature: Some(temperature),
                ..Sampling::default()
            };
            let mut sampler = sampler(&sampling, 3, 0);
            assert_eq!(
                sampler.sample(&mut [0.0, f32::NAN, 1.0], &[]),
                Err(SamplingError::NotFinite)
            );
            assert_eq!(
                sampler.sample(&mut [0.0, f32::INFINITY, 1.0], &[]),
                Err(SamplingError::NotFinite)
            );
            assert_eq!(
                sampler.sample(&mut [f32::NEG_INFINITY; 3], &[]),
                Err(SamplingError::NothingLeft)
            );
        }
    }

    #[test]
    fn extreme_temperatures_draw_something() {
        for temperature in [f32::MIN_POSITIVE, 1e-30, 1e30, f32::MAX] {
            let sampling = Sampling {
                temperature: Some(temperature),
                ..plain()
            };
            let token = sampler(&sampling, 6, 1)
                .sample(&mut LOGITS.to_vec(), &[])
                .unwrap();
            assert!(temperature > 1.0 || token == 1);
        }
    }

    proptest! {
        /// Against the plain definition: sort everything, cut, draw with the same random number.
        #[test]
        fn equals_the_full_sort(
            logits in proptest::collection::vec(-8.0f32..8.0, 1..600),
            top_k in 0u32..50,
            top_p in prop_oneof![Just(1.0f32), 0.0f32..1.0],
            min_p in prop_oneof![Just(0.0f32), 0.0f32..1.0],
            seed in any::<u64>(),
        ) {
            let sampling = Sampling {
                temperature: Some(0.7), top_k: Some(top_k), top_p: Some(top_p), min_p: Some(min_p), ..Sampling::default()
            };
            let token = sampler(&sampling, logits.len(), seed).sample(&mut logits.clone(), &[]).unwrap();

            let mut sorted: Vec<u32> = (0..logits.len() as u32).collect();
            sorted.sort_by(|&a, &b| logits[b as usize].total_cmp(&logits[a as usize]).then(a.cmp(&b)));
            if top_k > 0 { sorted.truncate(top_k as usize); }
            let top = logits[sorted[0] as usize];
            let share = |token: &u32| weight(logits[*token as usize], top);
            if top_p < 1.0 {
                let total: f64 = sorted.iter().map(share).sum();
                let mut reached = 0.0;
                let kept = sorted.iter().take_while(|token| {
                    let more = reached < total * f64::from(top_p);
                    reached += share(token);
                    more
                }).count();
                sorted.truncate(kept.max(1));
            }
            let kept = if min_p > 0.0 {
                sorted.iter().take_while(|&&token| logits[token as usize] >= top + min_p.ln()).count().max(1)
            } else { sorted.len() };
            sorted.truncate(kept);
            prop_assert!(sorted.contains(&token));
        }
    }
}
