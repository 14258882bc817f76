//! What serving costs those who are served: the time between tokens of running texts before, while and after a long prompt is read,
//! and what drafts bring on a text that repeats itself and on one that does not.
//!
//! ```sh
//! cargo run --release -p backplane-text-engine --example serving -- MODEL [PROMPT_TOKENS] [TEXTS] [THREADS]
//! ```
#![allow(clippy::unwrap_used)]

use backplane_cpu_device::{CpuDevice, CpuOptions};
use backplane_plugin_api::sdk::{Backend, Sink, TextModel};
use backplane_plugin_api::types::{
    Control, Event, GenerateOptions, GenerateRequest, LoadOptions, Prompt, Sampling,
};
use backplane_program::Device;
use backplane_text_engine::TextBackend;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Notes when tokens come, until told to stop.
struct Times {
    times: Vec<Instant>,
    stop: Arc<AtomicBool>,
}

impl Sink for Times {
    fn on_event(&mut self, event: Event<'_>) -> Control {
        if let Event::Token { .. } = event {
            self.times.push(Instant::now());
        }
        if self.stop.load(Ordering::Relaxed) {
            Control::Stop
        } else {
            Control::Continue
        }
    }
}

fn request(prompt: Prompt, tokens: u32, temperature: f32, speculation: &str) -> GenerateRequest {
    GenerateRequest {
        prompt,
        options: GenerateOptions {
            sampling: Sampling {
                temperature: Some(temperature),
                seed: Some(1),
                ..Sampling::default()
            },
            max_tokens: Some(tokens),
            ignore_end: true,
            extra: [("speculation".to_owned(), speculation.into())].into(),
            ..GenerateOptions::default()
        },
    }
}

/// Median, the value under which 95 of 100 lie, and the widest, in milliseconds.
fn gaps(times: &[Instant], from: Instant, to: Instant) -> [f64; 3] {
    let within = |pair: &&[Instant]| pair[1] > from && pair[0] < to;
    let gaps = times.windows(2).filter(within);
    let mut gaps: Vec<Duration> = gaps.map(|pair| pair[1] - pair[0]).collect();
    gaps.sort_unstable();
    let at = |part: f64| {
        let place = (gaps.len() as f64 * part) as usize;
        let gap = gaps.get(place.min(gaps.len().saturating_sub(1)));
        gap.map_or(0.0, |gap| gap.as_secs_f64() * 1e3)
    };
    [at(0.5), at(0.95), at(1.0)]
}

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    let number = |at: usize, default: usize| {
        let given = arguments.get(at).map(|text| text.parse());
        given.transpose().unwrap().unwrap_or(default)
    };
    let path = arguments.get(1).expect("a model");
    let (length, texts, threads) = (number(2, 8000), number(3, 2), number(4, 2));
    let backend = TextBackend::new("cpu", "0.0.0", move |_: &LoadOptions| {
        let options = CpuOptions {
            threads: Some(threads),
            ..CpuOptions::default()
        };
        Ok(Arc::new(CpuDevice::with_options(options).unwrap()) as Arc<dyn Device>)
    });
    let load = |context: usize| {
        let options = LoadOptions {
            context: Some(context as u32),
            parallel: Some(texts as u32 + 1),
            ..LoadOptions::default()
        };
        backend.load(path.as_ref(), &options).unwrap()
    };
    let probe = load(64).info();
    let length = length.min(probe.context_length as usize - 64);
    let model = load(length + 64);
    long_prompt(&*model, length, texts, probe.vocabulary);
    drafts(&*model);
}

fn long_prompt(model: &dyn TextModel, length: usize, texts: usize, vocabulary: u64) {
    let long: Vec<u32> = (0..length as u64)
        .map(|at| (at * at * 31 + at * 7919) as u32 % vocabulary as u32)
        .collect();
    let stop = Arc::new(AtomicBool::new(false));
    std::thread::scope(|scope| {
        let running: Vec<_> = (0..texts as u32)
            .map(|text| {
                let stop = Arc::clone(&stop);
                scope.spawn(move || {
                    let (times, tokens) = (Vec::new(), (length - 16) as u32);
                    let mut sink = Times { times, stop };
                    let prompt = Prompt::Tokens(vec![text + 1; 4]);
                    model
                        .generate(&request(prompt, tokens, 1.0, "off"), &mut sink)
                        .unwrap();
                    sink.times
                })
            })
            .collect();
        std::thread::sleep(Duration::from_secs(3));
        let asked = Instant::now();
        let mut sink = Times {
            times: Vec::new(),
            stop: Arc::default(),
        };
        let done = model
            .generate(&request(Prompt::Tokens(long), 1, 0.0, "off"), &mut sink)
            .unwrap();
        let read = Instant::now();
        std::thread::sleep(Duration::from_secs(2));
        stop.store(true, Ordering::Relaxed);
        println!(
            "{length} tokens read in {:.1} s beside {texts} texts",
            done.prefill_s
        );
        for (text, times) in running.into_iter().enumerate() {
            let times = times.join().unwrap();
            let settled = asked - Duration::from_secs(2);
            // Texts grow meanwhile, and what they attend to with them: the first quarter is to be compared with before, the last with
            // after.
            let quarter = |number: u32| asked + (read - asked) / 4 * number;
            let phases = [
                ("before", settled, asked),
                ("while, 1st quarter", quarter(0), quarter(1)),
                ("while, 2nd quarter", quarter(1), quarter(2)),
                ("while, 3rd quarter", quarter(2), quarter(3)),
                ("while, 4th quarter", quarter(3), read),
                ("after", read, Instant::now()),
            ];
            for (phase, from, to) in phases {
                let [median, most, widest] = gaps(&times, from, to);
                println!(
                    "text {text} {phase:18}: a token every {median:.2} ms, 95 % within {most:.2}, widest {widest:.2}"
                );
            }
        }
    });
}

fn drafts(model: &dyn TextModel) {
    let list = "- the red apple costs 12 cents\n- the green pear costs 17 cents\n- the ripe plum costs 9 cents\n";
    let story = "Once upon a time, in a village at the edge of the sea,";
    for (name, text, temperature) in [
        ("repetitive", list.repeat(3), 0.0),
        ("creative", story.to_owned(), 1.0),
    ] {
        let mut rates = Vec::new();
        for speculation in ["off", "auto", "off", "auto", "off", "auto"] {
            let before = model.metrics();
            let prompt = Prompt::Text {
                text: text.clone(),
                special: false,
            };
            let mut sink = Times {
                times: Vec::new(),
                stop: Arc::default(),
            };
            let begun = Instant::now();
            let done = model
                .generate(&request(prompt, 256, temperature, speculation), &mut sink)
                .unwrap();
            let first = sink.times.first().copied().unwrap_or(begun);
            let rate = (done.completion_tokens - 1) as f64 / first.elapsed().as_secs_f64();
            let after = model.metrics();
            let count = |name: &str| after[name] - before[name];
            println!(
                "{name}, {speculation:4}: {rate:.1} tokens/s, {} steps, {} drafted, {} came true",
                count("steps_total"),
                count("tokens_drafted_total"),
                count("tokens_draft_accepted_total"),
            );
            rates.push(rate);
        }
        let ratios = rates.chunks_exact(2).map(|pair| pair[1] / pair[0]);
        let ratios: Vec<String> = ratios.map(|ratio| format!("{ratio:.2}")).collect();
        println!("{name}: with drafts {} times as fast", ratios.join(", "));
    }
}
