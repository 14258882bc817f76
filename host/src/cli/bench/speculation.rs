//! What drafting brings: a text that repeats itself and one that does not, each generated with and without, in turns.
//!
//! Drafts must change nothing but the time: texts that differ are an error.

use super::figures::{Samples, share};
use super::measure::{Clock, checked, drafted, failed};
use crate::error::{Error, Result};
use crate::registry::Model;
use backplane_plugin_api::sdk::Sink;
use backplane_plugin_api::types::{
    Control, Event, GenerateOptions, GenerateRequest, Prompt, Sampling,
};
use serde_json::{Value, json};

/// Tokens that the prompts may take, whatever the vocabulary.
pub(super) const PROMPT: u64 = 512;

/// A text to be generated.
pub(super) struct Text {
    pub(super) name: &'static str,
    prompt: &'static str,
    /// 0 takes the likeliest token.
    temperature: f32,
}

/// What is generated.
pub(super) const TEXTS: [Text; 2] = [
    Text {
        name: "repetitive",
        prompt: "id,name,state\n1,alpha,ready\n2,alpha,ready\n3,alpha,ready\n4,alpha,ready\n5,alpha,ready\n\
                 6,alpha,ready\n7,alpha,ready\n8,alpha,ready\n9,alpha,ready\n10,alpha,ready\n11,alpha,ready\n",
        temperature: 0.0,
    },
    Text {
        name: "creative",
        prompt: "The keeper of the lighthouse had not spoken to anyone for eleven years when, one evening,",
        temperature: 1.0,
    },
];

/// One text, with and without drafts.
#[derive(Debug, Default)]
pub(super) struct Drafting {
    /// Tokens per second.
    pub(super) off: Samples,
    pub(super) auto: Samples,
    /// Drafted tokens that were verified, those that came true, and all tokens generated with drafts on.
    drafted: f64,
    accepted: f64,
    generated: f64,
}

impl Drafting {
    /// How much faster with drafts, run by run.
    pub(super) fn gain(&self) -> Samples {
        self.auto.ratio(&self.off)
    }

    /// The part of what was drafted that came true.
    pub(super) fn acceptance(&self) -> f64 {
        share(self.accepted, self.drafted)
    }

    /// Tokens drafted for each that was generated.
    pub(super) fn tried(&self) -> f64 {
        share(self.drafted, self.generated)
    }

    pub(super) fn as_json(&self, text: &Text) -> Value {
        json!({
            "text": text.name,
            "off": { "tokens_per_s": self.off.as_json() },
            "auto": { "tokens_per_s": self.auto.as_json() },
            "gain": self.gain().as_json(),
            "drafted": self.drafted,
            "accepted": self.accepted,
            "acceptance": self.acceptance(),
        })
    }

    /// Generates `text` without drafts and with, so many tokens after the first; `round` is the seed.
    pub(super) fn measure(
        &mut self,
        model: &Model,
        text: &Text,
        tokens: u32,
        round: u32,
        clock: &mut Clock,
    ) -> Result<()> {
        let all = tokens.saturating_add(1);
        let mut run = |speculation: &str| -> Result<(f64, Vec<u32>)> {
            let request = GenerateRequest {
                prompt: Prompt::Text {
                    text: text.prompt.to_owned(),
                    special: false,
                },
                options: GenerateOptions {
                    sampling: Sampling {
                        temperature: Some(text.temperature),
                        seed: Some(u64::from(round)),
                        ..Sampling::default()
                    },
                    max_tokens: Some(all),
                    ignore_end: true,
                    extra: drafted(speculation),
                    ..GenerateOptions::default()
                },
            };
            clock.start(1, all as usize);
            let mut heard = Heard {
                clock,
                tokens: Vec::with_capacity(all as usize),
            };
            let reply = model.generate(&request, &mut heard);
            let tokens = heard.tokens;
            let done = checked(model, reply.map(|reply| reply.completion), all, clock)?;
            Ok((clock.rate(done.decode_s), tokens))
        };
        let (off, plain) = run("off")?;
        let before = model.metrics();
        let (auto, drafted) = run("auto")?;
        let after = model.metrics();
        if plain != drafted {
            let message = format!("the {} text is another with drafts", text.name);
            return Err(failed(model, message));
        }
        let count = |name: &str| {
            let of = |metrics: &backplane_plugin_api::types::Metrics| metrics.get(name).copied();
            of(&after).unwrap_or(0.0) - of(&before).unwrap_or(0.0)
        };
        self.off.add(off);
        self.auto.add(auto);
        self.drafted += count("tokens_drafted_total");
        self.accepted += count("tokens_draft_accepted_total");
        self.generated += f64::from(all);
        Ok(())
    }
}

/// That a model drafts at all.
pub(super) fn check(model: &Model) -> Result<()> {
    if super::measure::speculates(model) {
        return Ok(());
    }
    let message = format!(
        "--speculate: {} has no speculative decoding",
        model.backend()
    );
    Err(Error::usage(message, "leave --speculate out"))
}

/// Keeps the tokens beside their times.
struct Heard<'a> {
    clock: &'a mut Clock,
    tokens: Vec<u32>,
}

impl Sink for Heard<'_> {
    fn on_event(&mut self, event: Event<'_>) -> Control {
        if let Event::Token {
            token: Some(token), ..
        } = event
        {
            self.tokens.push(token);
        }
        Sink::on_event(self.clock, event)
    }

    fn should_stop(&self) -> bool {
        Sink::should_stop(&*self.clock)
    }
}
