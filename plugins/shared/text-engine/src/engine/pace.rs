//! How long steps take, as measured: how many prompt tokens a step may read beside sequences that generate, and what one more
//! row costs.

use std::time::Duration;

/// A step that only reads prompts is kept near this long, so that cancelling and other sequences don't wait for more.
pub(super) const STEP_TIME: Duration = Duration::from_millis(300);
/// Fewest prompt tokens in a step where nothing generates, however slow the device.
const MIN_CHUNK: usize = 32;
/// Prompt tokens in a step until the device's speed is known.
const FIRST_CHUNK: usize = 64;
/// How much longer than by itself a step may take for what is read beside it. Sequences that generate may be slowed to twice the
/// time between their tokens; the rest is for steps that take longer than foreseen.
const SLOWDOWN: f64 = 1.8;
/// Steps after which the time of a step that reads nothing is measured again.
const RELEARN: u64 = 32;
/// Steps for which a measured time is believed: the first one, which may have been held up, one that was measured again and came out
/// otherwise, and at most, where measuring again gave nearly the same.
const BELIEVED_FIRST: u64 = 32;
const BELIEVED: u64 = 256;
const BELIEVED_AT_MOST: u64 = 4096;

/// The time of steps with one number of rows.
#[derive(Clone, Copy, Debug, Default)]
struct Measured {
    seconds: f64,
    /// The step at which it was last measured.
    at: u64,
    /// Whether the last took more than twice as long as those before.
    late: bool,
    /// Steps for which it is believed; 0 before it was ever measured.
    believed: u64,
}

/// The pace of one engine.
#[derive(Debug)]
pub(super) struct Pace {
    /// Steps that read nothing, by their rows, from 1 on.
    rows: Vec<Measured>,
    steps: u64,
    /// The last step that read nothing.
    alone: Option<u64>,
    /// Prompt tokens that a step may read where nothing generates.
    chunk: usize,
    /// Prompt tokens that a step may read beside rows that generate.
    beside: usize,
    /// Most tokens in a step.
    most: usize,
}

impl Pace {
    /// Of an engine with at most so many rows and tokens in a step.
    pub(super) fn new(rows: usize, most: usize) -> Self {
        Self {
            rows: vec![Measured::default(); rows],
            steps: 0,
            alone: None,
            chunk: FIRST_CHUNK.min(most),
            beside: 1,
            most,
        }
    }

    /// Seconds of a step of so many rows that reads nothing; between numbers of rows that were measured in proportion, above
    /// them as the nearest: the first of more rows costs nothing until it is tried. `None` where none so small is known.
    pub(super) fn cost(&self, rows: usize) -> Option<f64> {
        let known = |rows: usize| {
            let measured = self.rows.get(rows.checked_sub(1)?)?;
            let fresh =
                measured.believed > 0 && self.steps.saturating_sub(measured.at) < measured.believed;
            fresh.then_some((rows, measured.seconds))
        };
        let (lower, below) = (1..=rows.min(self.rows.len())).rev().find_map(known)?;
        let above = (rows + 1..=self.rows.len()).find_map(known);
        Some(match above {
            Some((upper, above)) if lower < rows => {
                below + (above - below) * (rows - lower) as f64 / (upper - lower) as f64
            }
            _ => below,
        })
    }

    /// Seconds that may be spent in one turn beside so many rows that generate; `None` before a step of them was measured.
    pub(super) fn spare(&self, rows: usize) -> Option<f64> {
        Some((SLOWDOWN - 1.0) * self.cost(rows)?)
    }

    /// Prompt tokens for the next step, of so many rows that generate. 0 where that step is to show how long it takes by
    /// itself. `crowd` is for how many times as many as generate it reads, at least 1: they have as many times as much, up to what a
    /// step reads where nothing generates.
    pub(super) fn prompt_tokens(&self, rows: usize, crowd: f64) -> usize {
        if rows == 0 {
            return self.chunk;
        }
        let learnt = self.alone.is_some_and(|at| self.steps - at < RELEARN);
        if learnt && self.cost(rows).is_some() {
            let all = (self.beside as f64 * crowd) as usize;
            all.min(self.chunk.max(self.beside))
        } else {
            0
        }
    }

    /// Takes the time of a step that read nothing.
    pub(super) fn generated(&mut self, rows: usize, took: Duration) {
        self.steps += 1;
        self.alone = Some(self.steps);
        let (steps, sample) = (self.steps, took.as_secs_f64());
        let Some(measured) = rows.checked_sub(1).and_then(|at| self.rows.get_mut(at)) else {
            return;
        };
        let fresh = measured.believed > 0 && steps - measured.at < measured.believed;
        if measured.believed == 0 {
            measured.seconds = sample;
            measured.believed = BELIEVED_FIRST;
        } else {
            let near = (sample - measured.seconds).abs() < 0.25 * measured.seconds;
            measured.believed = match (fresh, near) {
                // Tried again after a while, and found as before.
                (false, true) => (measured.believed * 2).clamp(BELIEVED, BELIEVED_AT_MOST),
                // The first was held up, or this one was.
                (false, false) if measured.believed < BELIEVED => {
                    (measured.believed * 2).min(BELIEVED)
                }
                (false, false) => BELIEVED,
                (true, _) => measured.believed,
            };
            // One step that was held up says little, two in a row do; none is fast by accident.
            let late = sample > 2.0 * measured.seconds;
            let weight = match (fresh, sample < measured.seconds) {
                _ if late && measured.late => 1.0,
                _ if late => 0.25 * measured.seconds / (sample - measured.seconds),
                (false, true) => 1.0,
                (false, false) | (true, true) => 0.5,
                (true, false) => 0.25,
            };
            measured.late = late;
            measured.seconds += (sample - measured.seconds) * weight;
        }
        measured.at = steps;
    }

    /// Takes the time of a step of so many rows that generate and so many prompt tokens, for which it could spend this part of
    /// the time that is to spare, `crowd` times over.
    pub(super) fn read(
        &mut self,
        rows: usize,
        tokens: usize,
        took: Duration,
        (part, crowd): (f64, f64),
    ) {
        self.steps += 1;
        let took = took.as_secs_f64();
        if rows == 0 {
            self.chunk = fitting(tokens, took, STEP_TIME.as_secs_f64(), MIN_CHUNK, self.most);
            return;
        }
        let (Some(own), Some(spare)) = (self.cost(rows), self.spare(rows)) else {
            return;
        };
        let (extra, spare) = (took - own, spare * part);
        let fits = if extra > 0.0 {
            (tokens as f64 * spare / extra) as usize
        } else {
            usize::MAX
        };
        // A prompt's last tokens are few, and say nothing of more.
        let once = (tokens as f64 / crowd) as usize;
        if once >= self.beside || extra > spare * crowd {
            self.beside = fits
                .clamp((once / 2).max(1), (once * 2).max(1))
                .min(self.most);
        }
    }
}

/// How many tokens fit into a time, if so many took as long as they did. Grows by steps: a short chunk says little about a
/// long one.
pub(super) fn fitting(tokens: usize, took: f64, time: f64, least: usize, most: usize) -> usize {
    let fits = (tokens as f64 * time / took.max(1e-6)) as usize;
    fits.min(tokens.max(least) * 4).clamp(least.min(most), most)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seconds(seconds: f64) -> Duration {
        Duration::from_secs_f64(seconds)
    }

    #[test]
    fn costs_lie_between_what_was_measured() {
        let mut pace = Pace::new(16, 64);
        assert_eq!(pace.cost(1), None);
        pace.generated(2, seconds(2.0));
        assert_eq!((pace.cost(1), pace.cost(2)), (None, Some(2.0)));
        assert_eq!(pace.cost(9), Some(2.0), "not tried yet");
        pace.generated(10, seconds(4.0));
        assert_eq!((pace.cost(6), pace.cost(16)), (Some(3.0), Some(4.0)));
        assert_eq!(pace.cost(17), Some(4.0));
        pace.generated(0, seconds(1.0));
        pace.generated(17, seconds(1.0));
        assert_eq!(pace.cost(17), Some(4.0), "out of the table");
    }

    #[test]
    fn one_slow_step_is_not_believed_and_many_are() {
        let mut pace = Pace::new(1, 64);
        pace.generated(1, seconds(1.0));
        pace.generated(1, seconds(100.0));
        assert!(pace.cost(1).unwrap() < 1.3);
        (0..20).for_each(|_| pace.generated(1, seconds(3.0)));
        assert!((pace.cost(1).unwrap() - 3.0).abs() < 0.1);
    }

    #[test]
    fn what_was_measured_long_ago_is_tried_again() {
        let mut pace = Pace::new(4, 64);
        pace.generated(4, seconds(9.0));
        let steps_believed = |pace: &mut Pace| {
            let mut steps = 0;
            while pace.cost(4) > Some(1.0) {
                pace.generated(1, seconds(1.0));
                steps += 1;
            }
            steps
        };
        assert_eq!(steps_believed(&mut pace), BELIEVED_FIRST);
        pace.generated(4, seconds(9.0));
        assert_eq!(steps_believed(&mut pace), BELIEVED, "found as before");
        pace.generated(4, seconds(9.0));
        assert_eq!(steps_believed(&mut pace), 2 * BELIEVED, "again");
        pace.generated(4, seconds(1.0));
        assert_eq!(pace.cost(4), Some(1.0));
    }

    /// With a device of a fixed cost for each row and prompt token: no step beside generating rows takes longer than twice a step by
    /// itself, and most of what is to spare is used.
    #[test]
    fn reading_takes_what_is_to_spare() {
        for (base, token) in [(5.0, 0.2), (5.0, 1.0), (5.0, 4.9), (0.1, 1.0)] {
            let mut pace = Pace::new(4, 256);
            let own = base + token;
            let (mut read, mut steps) = (0, 0);
            for step in 0..400 {
                match pace.prompt_tokens(1, 1.0) {
                    0 => pace.generated(1, seconds(own)),
                    tokens => {
                        let took = own + tokens as f64 * token;
                        assert!(took <= 2.0 * own + 1e-9, "{tokens} tokens at step {step}");
                        pace.read(1, tokens, seconds(took), (1.0, 1.0));
                        read += tokens;
                        steps += 1;
                    }
                }
            }
            let best = (0.8 * own / token).max(1.0);
            assert!(
                steps > 380 && read as f64 > 0.7 * best.floor() * 380.0,
                "{read}"
            );
        }
    }

    #[test]
    fn reading_alone_takes_steps_of_a_stated_time() {
        let mut pace = Pace::new(4, 256);
        assert_eq!(pace.prompt_tokens(0, 1.0), FIRST_CHUNK);
        pace.read(0, 64, seconds(0.6), (1.0, 1.0));
        assert_eq!(pace.prompt_tokens(0, 1.0), 32);
        pace.read(0, 32, seconds(60.0), (1.0, 1.0));
        assert_eq!(pace.prompt_tokens(0, 1.0), MIN_CHUNK);
        pace.read(0, 32, seconds(1e-3), (1.0, 1.0));
        assert_eq!(pace.prompt_tokens(0, 1.0), 128);
    }
}
