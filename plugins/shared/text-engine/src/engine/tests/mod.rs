//! The scheduler without threads: steps are counted, time is what a made-up device says it takes.

mod admission;
mod pace;
mod preemption;
mod speculation;

use super::job::Call;
use super::scheduler::Scheduler;
use super::{Config, Job, Message, Reply, Shared, Work};
use crate::grammar::tests::grammars;
use crate::options::Speculation;
use crate::request::Checker;
use backplane_plugin_api::types::{
    Completion, Error, FinishReason, GenerateOptions, Sampling, TokenLogprob,
};
use backplane_program::{DeviceError, Executable, Step, StepOutput};
use backplane_tokenizer::Tokenizer;
use backplane_weights::Weights;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

/// Tokens of the vocabulary of the model whose tokenizer is used.
const VOCABULARY: usize = 512;
/// The first token that the made-up device says.
const FIRST: u32 = 20;

pub(crate) fn tokenizer() -> Tokenizer {
    static TOKENIZER: OnceLock<Tokenizer> = OnceLock::new();
    let open = || {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../../shared/fixtures");
        let fixtures = std::env::var_os("BACKPLANE_FIXTURES").map_or(root, PathBuf::from);
        let model = fixtures.join("tiny/llama3-gqa/model-f32.gguf");
        let weights = Weights::open(&model).expect("a model of the fixtures");
        Tokenizer::from_metadata(weights.metadata()).expect("a tokenizer")
    };
    TOKENIZER.get_or_init(open).clone()
}

/// What a device says, and how long it takes.
#[derive(Clone, Copy, Debug)]
struct Nature {
    /// Of a hundred tokens, how many are those of a period before.
    repeats: u64,
    /// How many tokens it knows.
    words: u64,
    /// Microseconds of a step; of each row whose logits are wanted; of each other token; of a thousand past positions of a token.
    step: f64,
    row: f64,
    token: f64,
    past: f64,
}

const PLAIN: Nature = Nature {
    repeats: 50,
    words: 6,
    step: 4000.0,
    row: 300.0,
    token: 150.0,
    past: 20.0,
};

/// What the device saw of one step.
#[derive(Clone, Debug, PartialEq)]
struct Seen {
    /// Tokens and past of each sequence.
    sequences: Vec<(usize, usize)>,
    wanted: usize,
}

impl Seen {
    fn tokens(&self) -> usize {
        self.sequences.iter().map(|(count, _)| count).sum()
    }
}

/// A device whose next token depends on every token before it, as its pages hold them. Whatever becomes of a page shows in
/// the text.
struct Babbler {
    nature: Arc<Mutex<Nature>>,
    page_size: usize,
    pages: Vec<Vec<Option<u32>>>,
    clock: Arc<AtomicU64>,
    seen: Arc<Mutex<Vec<Seen>>>,
    /// Whether the next step fails.
    fails: Arc<AtomicBool>,
}

impl Babbler {
    /// The logits after so many tokens of a sequence.
    fn logits(&self, pages: &[u32], positions: usize, out: &mut Vec<f32>) {
        let nature = *self.nature.lock().unwrap();
        let at = |position: usize| {
            let page = &self.pages[pages[position / self.page_size] as usize];
            u64::from(page[position % self.page_size].expect("a position that was computed"))
        };
        let mut hash = 0x9e37_79b9_7f4a_7c15_u64;
        for position in 0..positions {
            hash = (hash ^ at(position)).wrapping_mul(0x0000_0100_0000_01b3);
            hash ^= hash >> 29;
        }
        hash = hash.wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let word = |bits: u64| FIRST as usize + (bits % nature.words) as usize;
        let period = 3 + (at(0) % 5) as usize;
        let top = if (hash >> 40) % 100 < nature.repeats && positions > period {
            at(positions - period) as usize
        } else {
            word(hash >> 8)
        };
        let start = out.len();
        out.resize(start + VOCABULARY, -20.0);
        let row = &mut out[start..];
        row[word(hash >> 16)] = 3.0;
        row[word(hash >> 24)] = 4.0;
        row[top] = 5.0;
    }
}

impl Executable for Babbler {
    fn step(&mut self, step: &Step<'_>, out: &mut StepOutput) -> Result<(), DeviceError> {
        if self.fails.swap(false, Ordering::Relaxed) {
            return Err(DeviceError::Failed {
                device: "made up".into(),
                message: "told to fail".into(),
            });
        }
        let nature = *self.nature.lock().unwrap();
        let mut nanos = nature.step * 1e3;
        let (mut first, mut written) = (0, Vec::new());
        for sequence in step.sequences {
            assert!(sequence.count > 0 && sequence.pages.len() * self.page_size >= sequence.past);
            for offset in 0..sequence.count {
                let position = sequence.past + offset;
                let page = sequence.pages[position / self.page_size];
                let slot = (page, position % self.page_size);
                assert!(!written.contains(&slot), "written twice in a step");
                written.push(slot);
                self.pages[page as usize][slot.1] = Some(step.tokens[first + offset]);
                nanos += nature.past * position as f64;
            }
            first += sequence.count;
        }
        nanos += step.wanted.len() as f64 * nature.row * 1e3;
        nanos += (step.tokens.len() - step.wanted.len()) as f64 * nature.token * 1e3;
        out.logits.clear();
        let mut wanted = step.wanted.iter().map(|row| *row as usize).peekable();
        let mut first = 0;
        for sequence in step.sequences {
            while let Some(row) = wanted.next_if(|row| *row < first + sequence.count) {
                self.logits(
                    sequence.pages,
                    sequence.past + row - first + 1,
                    &mut out.logits,
                );
            }
            first += sequence.count;
        }
        assert_eq!((wanted.next(), first), (None, step.tokens.len()));
        self.clock.fetch_add(nanos as u64, Ordering::Relaxed);
        self.seen.lock().unwrap().push(Seen {
            sequences: step
                .sequences
                .iter()
                .map(|sequence| (sequence.count, sequence.past))
                .collect(),
            wanted: step.wanted.len(),
        });
        Ok(())
    }

    fn copy_page(&mut self, from: u32, to: u32) -> Result<(), DeviceError> {
        self.pages[to as usize] = self.pages[from as usize].clone();
        Ok(())
    }

    fn page_bytes(&self) -> usize {
        1
    }

    fn describe(&self) -> String {
        "made up".into()
    }
}

/// One request as its caller sees it.
struct Asked {
    receiver: Receiver<(usize, Message)>,
    cancel: Arc<AtomicBool>,
    prompt: usize,
    told: Told,
}

/// What a caller was told.
#[derive(Debug, Default)]
struct Told {
    tokens: Vec<u32>,
    text: String,
    logprobs: Vec<Vec<TokenLogprob>>,
    /// When each token came.
    times: Vec<Duration>,
    read: u64,
    end: Option<Result<Completion, Error>>,
}

impl Told {
    fn completion(&self) -> &Completion {
        self.end.as_ref().expect("an end").as_ref().expect("a text")
    }

    /// All of it that is the same at any time.
    fn shown(&self) -> Shown<'_> {
        let done = self.completion();
        Shown {
            tokens: &self.tokens,
            text: &self.text,
            logprobs: &self.logprobs,
            finish_reason: done.finish_reason,
            stop_string: done.stop_string.as_deref(),
            completion_tokens: done.completion_tokens,
        }
    }
}

#[derive(Debug, PartialEq)]
struct Shown<'a> {
    tokens: &'a [u32],
    text: &'a str,
    logprobs: &'a [Vec<TokenLogprob>],
    finish_reason: FinishReason,
    stop_string: Option<&'a str>,
    completion_tokens: u64,
}

struct Harness {
    scheduler: Scheduler,
    clock: Arc<AtomicU64>,
    seen: Arc<Mutex<Vec<Seen>>>,
    nature: Arc<Mutex<Nature>>,
    fails: Arc<AtomicBool>,
    asked: Vec<Asked>,
    calls: u64,
}

fn sizes(context: usize, parallel: usize) -> Config {
    Config {
        context,
        parallel,
        page_size: 8,
        pages: context.div_ceil(8) * parallel,
        max_step_tokens: 256,
        max_wanted: 64.max(parallel),
        vocabulary: VOCABULARY,
        speculation: Speculation::Off,
    }
}

impl Harness {
    fn new(config: Config, nature: Nature) -> Self {
        let clock = Arc::new(AtomicU64::new(0));
        let seen = Arc::new(Mutex::new(Vec::new()));
        let nature = Arc::new(Mutex::new(nature));
        let fails = Arc::new(AtomicBool::new(false));
        let device = Babbler {
            nature: Arc::clone(&nature),
            page_size: config.page_size,
            pages: vec![vec![None; config.page_size]; config.pages],
            clock: Arc::clone(&clock),
            seen: Arc::clone(&seen),
            fails: Arc::clone(&fails),
        };
        let (start, ticks) = (Instant::now(), Arc::clone(&clock));
        let scheduler = Scheduler::new(
            Box::new(device),
            tokenizer(),
            config,
            "made-up.gguf".into(),
            Arc::new(Shared::new()),
            Box::new(move || start + Duration::from_nanos(ticks.load(Ordering::Relaxed))),
        );
        Self {
            scheduler,
            clock,
            seen,
            nature,
            fails,
            asked: Vec::new(),
            calls: 0,
        }
    }

    fn now(&self) -> Duration {
        Duration::from_nanos(self.clock.load(Ordering::Relaxed))
    }

    fn seen(&self) -> Vec<Seen> {
        self.seen.lock().unwrap().clone()
    }

    /// One call of several requests; the places of their answers.
    fn call(&mut self, requests: &[(Vec<u32>, GenerateOptions)]) -> Vec<usize> {
        self.calls += 1;
        let first = self.asked.len();
        for (prompt, options) in requests {
            let tokenizer = tokenizer();
            let checker = Checker {
                backend: "test",
                tokenizer: &tokenizer,
                config: &self.scheduler.config,
                grammars: grammars(),
            };
            let prompt = checker.check_prompt(prompt.clone()).expect("a prompt");
            let prepared = checker.generation(prompt, options).expect("a request");
            let (sender, receiver) = channel();
            let cancel = Arc::new(AtomicBool::new(false));
            self.asked.push(Asked {
                receiver,
                cancel: Arc::clone(&cancel),
                prompt: prepared.prompt.len(),
                told: Told::default(),
            });
            let job = Job {
                prompt: prepared.prompt,
                work: Work::Generate(prepared.generation.expect("something to generate")),
                cancel,
                reply: Reply { sender, index: 0 },
                submitted: self.scheduler.now(),
            };
            self.scheduler.waiting.push_back((Call(self.calls), job));
        }
        (first..self.asked.len()).collect()
    }

    fn ask(&mut self, prompt: &[u32], options: GenerateOptions) -> usize {
        self.call(&[(prompt.to_vec(), options)])[0]
    }

    /// One turn of the engine; whether there was anything to do.
    fn turn(&mut self) -> bool {
        self.scheduler.turn();
        let now = self.now();
        for Asked { receiver, told, .. } in &mut self.asked {
            while let Ok((_, message)) = receiver.try_recv() {
                match message {
                    Message::Prefill { done, .. } => told.read = done,
                    Message::Token {
                        token,
                        text,
                        logprobs,
                    } => {
                        told.tokens.push(token);
                        told.text.push_str(&text);
                        told.logprobs.push(logprobs);
                        told.times.push(now);
                    }
                    Message::Text(text) => told.text.push_str(&text),
                    Message::Generated(completion) => told.end = Some(Ok(completion)),
                    Message::Failed(error) => told.end = Some(Err(error)),
                    Message::Classified(_) | Message::Inspected(_) => {}
                }
            }
        }
        !self.scheduler.is_idle()
    }

    fn run(&mut self) {
        for _ in 0..200_000 {
            if !self.turn() {
                return;
            }
        }
        panic!("the engine never comes to an end");
    }

    fn told(&self, at: usize) -> &Told {
        &self.asked[at].told
    }

    fn cancel(&self, at: usize) {
        self.asked[at].cancel.store(true, Ordering::Relaxed);
    }

    fn pages_used(&self) -> usize {
        self.scheduler.pool.counts().used
    }

    fn metric(&self, name: &str) -> f64 {
        self.scheduler.shared.counters.metrics()[name]
    }
}

fn greedy(max_tokens: u32) -> GenerateOptions {
    GenerateOptions {
        sampling: Sampling {
            temperature: Some(0.0),
            ..Sampling::default()
        },
        max_tokens: Some(max_tokens),
        ignore_end: true,
        ..GenerateOptions::default()
    }
}

fn prompt(seed: u32, length: usize) -> Vec<u32> {
    (0..length as u32)
        .map(|at| (seed.wrapping_mul(7919) + at * at * 31 + at * 7) % VOCABULARY as u32)
        .collect()
}

/// Of the same requests, one after the other, each in an engine of its own without drafts.
fn alone(nature: Nature, config: Config, prompt: &[u32], options: &GenerateOptions) -> Told {
    let config = Config {
        speculation: Speculation::Off,
        ..config
    };
    let mut harness = Harness::new(config, nature);
    harness.ask(prompt, options.clone());
    harness.run();
    harness.asked.remove(0).told
}
