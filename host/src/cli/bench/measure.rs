//! One run: a prompt read, or sequences generated together, and the times at which its events arrive.

use super::super::interrupt::Interrupt;
use super::figures::share;
use crate::error::{Error, Result};
use crate::registry::Model;
use backplane_plugin_api::sdk::{BatchSink, Sink};
use backplane_plugin_api::types::{
    self, Completion, Control, ErrorCode, Event, GenerateOptions, GenerateRequest, Prompt, Sampling,
};
use std::collections::BTreeMap;
use std::time::Instant;

/// The detail of a model, and the option of a request, that says whether texts are drafted.
const SPECULATION: &str = "speculation";

/// Token ids by a fixed rule, the same for every engine. No two prompts begin alike while there are tokens to begin with, so
/// that none is found in a cache.
#[derive(Debug, Default)]
pub(super) struct Ids {
    prompts: u64,
    state: u64,
}

impl Ids {
    pub(super) fn prompt(&mut self, model: &Model, tokens: u32) -> Vec<u32> {
        self.of(model.info().vocabulary, tokens)
    }

    /// So many ids below `vocabulary`.
    fn of(&mut self, vocabulary: u64, tokens: u32) -> Vec<u32> {
        let vocabulary = vocabulary.clamp(1, u64::from(u32::MAX));
        self.prompts += 1;
        let first = self.prompts % vocabulary;
        let rest = (1..tokens).map(|_| self.next() % vocabulary);
        std::iter::once(first)
            .chain(rest)
            .map(|id| u32::try_from(id).unwrap_or(0))
            .collect()
    }

    /// The next number of 32 bits, by a linear congruential generator (constants of Knuth's MMIX).
    fn next(&mut self) -> u64 {
        const FACTOR: u64 = 6_364_136_223_846_793_005;
        const STEP: u64 = 1_442_695_040_888_963_407;
        self.state = self.state.wrapping_mul(FACTOR).wrapping_add(STEP);
        self.state >> 32
    }
}

/// Takes the events of one run and notes when tokens arrive.
#[derive(Debug)]
pub(super) struct Clock {
    interrupt: Interrupt,
    /// Of each sequence: when each of its tokens came.
    arrivals: Vec<Vec<Instant>>,
}

impl Clock {
    pub(super) fn new(interrupt: Interrupt) -> Self {
        Self {
            interrupt,
            arrivals: Vec::new(),
        }
    }

    /// Ready for another run; nothing is allocated while it lasts.
    pub(super) fn start(&mut self, sequences: usize, tokens: usize) {
        self.arrivals = (0..sequences).map(|_| Vec::with_capacity(tokens)).collect();
    }

    fn first(&self) -> Option<Instant> {
        self.arrivals.first()?.first().copied()
    }

    /// Tokens per second from when every sequence had its first token, to the last. It took at least so many seconds as the
    /// engine says: events of a fast one may arrive all at once.
    pub(super) fn rate(&self, at_least: f64) -> f64 {
        let firsts: Option<Vec<&Instant>> =
            self.arrivals.iter().map(|times| times.first()).collect();
        let Some(begin) = firsts.and_then(|firsts| firsts.into_iter().max()) else {
            return 0.0;
        };
        let after = self.arrivals.iter().flatten().filter(|time| *time > begin);
        let (mut tokens, mut end) = (0_u64, *begin);
        for time in after {
            tokens += 1;
            end = end.max(*time);
        }
        let span = end.duration_since(*begin).as_secs_f64();
        share(tokens as f64, span.max(at_least))
    }
}

impl BatchSink for Clock {
    fn on_event(&mut self, index: usize, event: Event<'_>) -> Control {
        if let (Event::Token { .. }, Some(times)) = (event, self.arrivals.get_mut(index)) {
            times.push(Instant::now());
        }
        if self.interrupt.is_set() {
            Control::Stop
        } else {
            Control::Continue
        }
    }

    fn should_stop(&self, _index: usize) -> bool {
        self.interrupt.is_set()
    }
}

impl Sink for Clock {
    fn on_event(&mut self, event: Event<'_>) -> Control {
        BatchSink::on_event(self, 0, event)
    }

    fn should_stop(&self) -> bool {
        self.interrupt.is_set()
    }
}

/// A prompt that was read.
pub(super) struct Read {
    pub(super) tokens_per_s: f64,
    pub(super) first_token_s: f64,
}

/// Whether a model takes the option of a request that turns drafts on and off.
pub(super) fn speculates(model: &Model) -> bool {
    let details = model.info().details;
    details.iter().any(|(name, _)| name == SPECULATION)
}

/// The option of a request for it.
pub(super) fn drafted(speculation: &str) -> BTreeMap<String, serde_json::Value> {
    [(SPECULATION.to_owned(), speculation.into())].into()
}

/// Reads a prompt, up to its first token.
pub(super) fn prefill(model: &Model, prompt: Vec<u32>, clock: &mut Clock) -> Result<Read> {
    let count = prompt.len() as u64;
    clock.start(1, 1);
    let begun = Instant::now();
    let reply = model.generate(&request(model, prompt, 1), clock);
    let done = checked(model, reply.map(|reply| reply.completion), 1, clock)?;
    let first = clock.first().unwrap_or_else(Instant::now);
    if done.prompt_tokens != count {
        let found = done.prompt_tokens;
        let message = format!("{found} prompt tokens were read, expected {count}");
        return Err(failed(model, message));
    }
    // A small vocabulary soon has a prompt whose beginning was there before.
    let read = count.saturating_sub(done.cached_tokens);
    Ok(Read {
        tokens_per_s: share(read as f64, done.prefill_s),
        first_token_s: first.duration_since(begun).as_secs_f64(),
    })
}

/// Generates so many tokens after the first, of every prompt together; tokens per second, all sequences counted.
pub(super) fn decode(
    model: &Model,
    prompts: Vec<Vec<u32>>,
    tokens: u32,
    clock: &mut Clock,
) -> Result<f64> {
    let all = tokens.saturating_add(1);
    let requests: Vec<GenerateRequest> = prompts
        .into_iter()
        .map(|prompt| request(model, prompt, all))
        .collect();
    clock.start(requests.len(), all as usize);
    // One alone is what every backend can do.
    if let [only] = requests.as_slice() {
        let reply = model.generate(only, clock);
        let done = checked(model, reply.map(|reply| reply.completion), all, clock)?;
        Ok(clock.rate(done.decode_s))
    } else {
        let backend = |error| Error::Backend {
            backend: model.backend().to_owned(),
            error,
        };
        let answers = model.text_model().batch_generate(&requests, clock);
        // The sequence that began last, from where all are counted, took the shortest.
        let mut shortest = f64::INFINITY;
        for answer in answers.map_err(backend)? {
            let done = checked(model, answer.map_err(backend), all, clock)?;
            shortest = shortest.min(done.decode_s);
        }
        Ok(clock.rate(shortest))
    }
}

/// Greedy, with so many tokens, past the model's own end. Without drafts: every token is a step, as in other engines' benches.
fn request(model: &Model, prompt: Vec<u32>, tokens: u32) -> GenerateRequest {
    GenerateRequest {
        prompt: Prompt::Tokens(prompt),
        options: GenerateOptions {
            sampling: Sampling {
                temperature: Some(0.0),
                ..Sampling::default()
            },
            max_tokens: Some(tokens),
            ignore_end: true,
            extra: if speculates(model) {
                drafted("off")
            } else {
                BTreeMap::new()
            },
            ..GenerateOptions::default()
        },
    }
}

/// A run that did all its work; one that was interrupted is an interruption.
pub(super) fn checked(
    model: &Model,
    answer: Result<Completion>,
    tokens: u32,
    clock: &Clock,
) -> Result<Completion> {
    if clock.interrupt.is_set() {
        return Err(Error::Interrupted);
    }
    let done = answer?;
    if done.completion_tokens != u64::from(tokens) {
        let message = format!(
            "{} tokens were generated ({:?}), expected {tokens}",
            done.completion_tokens, done.finish_reason
        );
        return Err(failed(model, message));
    }
    Ok(done)
}

pub(super) fn failed(model: &Model, message: String) -> Error {
    Error::Backend {
        backend: model.backend().to_owned(),
        error: types::Error::new(ErrorCode::Internal, message),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn ids_are_those_of_the_rule_and_in_the_vocabulary() {
        let mut ids = Ids::default();
        let first = ids.of(50, 200);
        assert!(first.len() == 200 && first.iter().all(|id| *id < 50));
        assert_eq!(Ids::default().of(50, 200), first);
        let mut begins: Vec<u32> = (0..49).map(|_| ids.of(50, 2)[0]).collect();
        begins.push(first[0]);
        begins.sort_unstable();
        begins.dedup();
        assert_eq!(begins.len(), 50, "no two begin alike");
        for odd in [0, 1] {
            assert_eq!(Ids::default().of(odd, 3), [0, 0, 0]);
        }
    }

    #[test]
    fn a_rate_begins_when_the_last_sequence_has_its_first_token() {
        let begin = Instant::now();
        let at = |ms: u64| begin + Duration::from_millis(ms);
        let mut clock = Clock::new(Interrupt::default());
        assert_eq!(clock.rate(0.0), 0.0);
        clock.arrivals = vec![
            vec![at(0), at(10), at(20), at(30)],
            vec![at(10), at(20), at(30)],
        ];
        // From 10 ms on: two tokens of each in 20 ms.
        assert!((clock.rate(0.0) - 200.0).abs() < 1e-6, "{clock:?}");
        assert!(
            (clock.rate(0.04) - 100.0).abs() < 1e-6,
            "the engine took 40 ms"
        );
        clock.arrivals = vec![vec![at(0)], Vec::new()];
        assert_eq!(clock.rate(0.0), 0.0, "one gave nothing at all");
        clock.arrivals = vec![vec![at(5)]];
        assert_eq!(clock.rate(0.0), 0.0, "nothing after the first");
    }
}
