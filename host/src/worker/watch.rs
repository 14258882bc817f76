//! When a worker counts as hung.
//!
//! The worker's own thread answers pings whatever its plugin does, and says of each call how often the plugin touched its
//! sink. Time is counted in steps of the watching thread, so that a host that was stopped for a while blames nobody.

use super::message::Call;
use crate::manifest::{Limit, Watchdog};
use std::time::Duration;

/// Bounds of a step.
const SHORTEST: Duration = Duration::from_millis(10);
const LONGEST: Duration = Duration::from_secs(1);

/// What a call is expected to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Duty {
    /// Is answered within `answer`.
    Answer,
    /// Is answered within so many times `load`.
    Load(u32),
    /// Gives signs of life, and events.
    Generation,
    /// Tells its steps.
    Steps,
}

/// A call that runs, watched.
#[derive(Debug)]
pub(super) struct Watched {
    name: &'static str,
    duty: Duty,
    age: Duration,
    /// Since its last sign of life.
    silent: Duration,
    touches: u64,
    /// Since all of it was told to stop.
    stopping: Option<Duration>,
}

impl Watched {
    pub(super) fn new(call: &Call) -> Self {
        let (name, duty) = duty(call);
        Self {
            name,
            duty,
            age: Duration::ZERO,
            silent: Duration::ZERO,
            touches: 0,
            stopping: None,
        }
    }

    /// It told something.
    pub(super) fn told(&mut self) {
        self.silent = Duration::ZERO;
    }

    /// All of it was told to stop.
    pub(super) fn stopping(&mut self) {
        self.stopping.get_or_insert(Duration::ZERO);
    }

    /// What the worker says of it: how often its sink was touched, and whether it waits for the host.
    pub(super) fn heard(&mut self, touches: u64, waits: bool) {
        if waits || touches != self.touches {
            self.touches = touches;
            self.silent = Duration::ZERO;
        }
    }
}

fn duty(call: &Call) -> (&'static str, Duty) {
    match call {
        Call::Probe => ("probe", Duty::Answer),
        Call::Devices => ("devices", Duty::Answer),
        Call::Inspect { .. } => ("inspect", Duty::Answer),
        Call::Load { .. } => ("load", Duty::Load(1)),
        Call::Generate { .. } => ("generate", Duty::Generation),
        Call::Chat { .. } => ("chat", Duty::Generation),
        Call::Batch { .. } => ("batch_generate", Duty::Generation),
        Call::RenderChat { .. } => ("render_chat", Duty::Answer),
        Call::Classify { request, .. } => {
            let prompts = u32::try_from(request.prompts.len()).unwrap_or(u32::MAX);
            ("classify", Duty::Load(prompts.max(1)))
        }
        Call::Tokenize { .. } => ("tokenize", Duty::Answer),
        Call::Detokenize { .. } => ("detokenize", Duty::Answer),
        Call::Metrics { .. } => ("metrics", Duty::Answer),
        Call::Close { .. } => ("close", Duty::Answer),
        Call::Offers { .. } => ("capability", Duty::Answer),
        Call::Embed { .. } => ("embed", Duty::Steps),
        Call::Score { .. } => ("score", Duty::Steps),
        Call::Attention { .. } => ("inspect_attention", Duty::Steps),
        Call::Peaks { .. } => ("measure_peaks", Duty::Steps),
        Call::Check { .. } => ("check", Duty::Steps),
        Call::Convert { .. } => ("convert", Duty::Steps),
    }
}

/// What is watched of a worker as a whole.
#[derive(Debug)]
pub(super) struct Watch {
    limits: Watchdog,
    /// Since any generation told an event, while one runs.
    eventless: Duration,
    /// Since the worker was asked whether it is there; `None`: it has answered.
    unanswered: Option<Duration>,
}

impl Watch {
    /// `None` where nothing is limited.
    pub(super) fn new(limits: Watchdog) -> Option<Self> {
        let all = [limits.answer, limits.load, limits.sign, limits.event];
        all.iter().any(|limit| limit.0.is_some()).then_some(Self {
            limits,
            eventless: Duration::ZERO,
            unanswered: None,
        })
    }

    /// Time between two looks.
    pub(super) fn step(&self) -> Duration {
        let limits = self.limits;
        let all = [limits.answer, limits.load, limits.sign, limits.event];
        let least = all.iter().filter_map(|limit| limit.0).min();
        least.map_or(LONGEST, |least| (least / 4).clamp(SHORTEST, LONGEST))
    }

    /// A generation told an event.
    pub(super) fn event(&mut self) {
        self.eventless = Duration::ZERO;
    }

    /// The worker has answered.
    pub(super) fn answered(&mut self) {
        self.unanswered = None;
    }

    /// Whether the worker is to be asked now.
    pub(super) fn asks(&mut self) -> bool {
        let asks = self.unanswered.is_none();
        self.unanswered.get_or_insert(Duration::ZERO);
        asks
    }

    /// No call runs.
    pub(super) fn rest(&mut self) {
        self.eventless = Duration::ZERO;
    }

    /// Counts the time that has passed; says why the worker is hung, if it is.
    pub(super) fn pass<'a>(
        &mut self,
        passed: Duration,
        calls: impl Iterator<Item = &'a mut Watched>,
    ) -> Option<String> {
        // More than that means that this process did not run.
        let passed = passed.min(self.step() * 2);
        let limits = self.limits;
        let mut hung = None;
        let mut generates = false;
        for call in calls {
            call.age += passed;
            call.silent += passed;
            if let Some(stopping) = &mut call.stopping {
                *stopping += passed;
            }
            generates |= call.duty == Duty::Generation;
            hung = hung.or_else(|| call.hung(&limits));
        }
        self.eventless = if generates {
            self.eventless + passed
        } else {
            Duration::ZERO
        };
        if let Some(unanswered) = &mut self.unanswered {
            *unanswered += passed;
        }
        let silent = self.unanswered.is_some_and(|it| over(it, limits.answer));
        hung.or_else(|| {
            over(self.eventless, limits.event)
                .then(|| format!("its generations told nothing for {}", limits.event))
        })
        .or_else(|| silent.then(|| format!("its process gave no answer within {}", limits.answer)))
    }
}

impl Watched {
    fn hung(&self, limits: &Watchdog) -> Option<String> {
        let name = self.name;
        if self
            .stopping
            .is_some_and(|since| over(since, limits.answer))
        {
            let limit = limits.answer;
            return Some(format!(
                "`{name}` did not end within {limit} of being told to stop"
            ));
        }
        let (late, what, limit) = match self.duty {
            Duty::Answer => (self.age, "did not answer", limits.answer),
            Duty::Load(times) => (self.age, "did not answer", multiplied(limits.load, times)),
            Duty::Generation => (self.silent, "gave no sign of life", limits.sign),
            Duty::Steps => (self.silent, "told no progress", limits.load),
        };
        over(late, limit).then(|| format!("`{name}` {what} within {limit}"))
    }
}

fn multiplied(limit: Limit, times: u32) -> Limit {
    Limit(limit.0.map(|limit| limit.saturating_mul(times)))
}

fn over(passed: Duration, limit: Limit) -> bool {
    limit.0.is_some_and(|limit| passed > limit)
}

#[cfg(test)]
mod tests {
    use super::*;
    use backplane_plugin_api::types::{ClassifyRequest, GenerateOptions, GenerateRequest, Prompt};

    fn limits() -> Watchdog {
        Watchdog {
            open: Limit::seconds(10),
            answer: Limit::seconds(60),
            load: Limit::seconds(600),
            sign: Limit::seconds(60),
            event: Limit::seconds(1800),
        }
    }

    fn generate() -> Watched {
        let request = GenerateRequest {
            prompt: Prompt::text("a"),
            options: GenerateOptions::default(),
        };
        let (model, odd) = (1, Default::default());
        Watched::new(&Call::Generate {
            model,
            request,
            odd,
        })
    }

    /// Seconds after which a call is found hung, and why; `each` is done every second.
    fn until(
        mut call: Watched,
        limits: Watchdog,
        mut each: impl FnMut(u64, &mut Watch, &mut Watched),
    ) -> (u64, String) {
        let mut watch = Watch::new(limits).unwrap();
        assert_eq!(watch.step(), Duration::from_secs(1));
        for second in 1..10_000 {
            each(second, &mut watch, &mut call);
            if let Some(why) = watch.pass(Duration::from_secs(1), std::iter::once(&mut call)) {
                return (second, why);
            }
        }
        (u64::MAX, String::new())
    }

    #[test]
    fn each_kind_of_call_has_its_limit() {
        let nothing = |_: u64, _: &mut Watch, _: &mut Watched| {};
        let silent = until(generate(), limits(), nothing);
        assert_eq!(
            silent,
            (61, "`generate` gave no sign of life within 1m".to_owned())
        );
        let metrics = until(Watched::new(&Call::Metrics { model: 1 }), limits(), nothing);
        assert_eq!(
            metrics,
            (61, "`metrics` did not answer within 1m".to_owned())
        );
        let request = ClassifyRequest {
            prompts: vec![Prompt::text("a"); 3],
            top: 1,
            logits: false,
            extra: Default::default(),
        };
        let classify = Watched::new(&Call::Classify { model: 1, request });
        let classify = until(classify, limits(), nothing);
        assert_eq!(
            classify,
            (1801, "`classify` did not answer within 30m".to_owned())
        );
    }

    #[test]
    fn a_long_prompt_is_no_hang_and_silence_for_half_an_hour_is() {
        // It asks whether to stop, every half minute.
        let polls = |second: u64, _: &mut Watch, call: &mut Watched| call.heard(second / 30, false);
        let polled = until(generate(), limits(), polls);
        assert_eq!(
            polled,
            (1801, "its generations told nothing for 30m".to_owned())
        );
        // It waits for a slow consumer.
        let waits = |_: u64, watch: &mut Watch, call: &mut Watched| {
            call.heard(7, true);
            watch.event();
        };
        assert_eq!(until(generate(), limits(), waits).0, u64::MAX);
        // Others tell events: it may be queued.
        let queued = |second: u64, watch: &mut Watch, call: &mut Watched| {
            call.heard(second, false);
            if second.is_multiple_of(1000) {
                watch.event();
            }
        };
        assert_eq!(until(generate(), limits(), queued).0, u64::MAX);
    }

    #[test]
    fn what_was_told_to_stop_must_end() {
        let never = |second: u64, watch: &mut Watch, call: &mut Watched| {
            call.heard(second, false);
            watch.event();
            if second == 100 {
                call.stopping();
            }
        };
        let (second, why) = until(generate(), limits(), never);
        assert_eq!(second, 160);
        assert_eq!(
            why,
            "`generate` did not end within 1m of being told to stop"
        );
    }

    #[test]
    fn a_process_that_answers_no_ping_is_hung() {
        let request = Call::Load {
            path: std::path::Path::new("m").into(),
            options: Default::default(),
        };
        let asks = |_: u64, watch: &mut Watch, _: &mut Watched| {
            watch.asks();
        };
        let found = until(Watched::new(&request), limits(), asks);
        assert_eq!(
            found,
            (61, "its process gave no answer within 1m".to_owned())
        );
    }

    #[test]
    fn time_in_which_the_host_did_not_run_is_not_counted() {
        let mut watch = Watch::new(limits()).unwrap();
        let mut call = generate();
        for _ in 0..20 {
            let hung = watch.pass(Duration::from_secs(3600), std::iter::once(&mut call));
            assert_eq!(hung, None);
        }
        let off = Limit(None);
        let none = Watchdog {
            open: off,
            answer: off,
            load: off,
            sign: off,
            event: off,
        };
        assert!(Watch::new(none).is_none());
    }
}
