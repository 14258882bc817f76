//! What the engine's tests share: fixtures, sinks, and a device that can be watched and disturbed.
#![allow(dead_code, missing_docs, unreachable_pub, clippy::unwrap_used)]

use backplane_plugin_api::sdk::{Backend, BatchSink, Sink, TextModel};
use backplane_plugin_api::types::{
    Completion, Control, Error, ErrorCode, Event, FinishReason, GenerateOptions, GenerateRequest,
    LoadOptions, Prompt, Sampling, TokenLogprob,
};
use backplane_program::{
    Device, DeviceError, Executable, Interpreter, Limits, Program, Step, StepOutput,
};
use backplane_text_engine::{EngineOptions, TextBackend};
use backplane_weights::Weights;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..")
}

pub fn fixtures() -> PathBuf {
    std::env::var_os("BACKPLANE_FIXTURES")
        .map_or_else(|| root().join("../shared/fixtures"), PathBuf::from)
}

pub fn test_model(name: &str) -> PathBuf {
    std::env::var_os("BACKPLANE_TEST_MODELS")
        .map_or_else(|| root().join("cache/models"), PathBuf::from)
        .join(name)
}

pub fn json(path: &Path) -> serde_json::Value {
    let text =
        std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    serde_json::from_str(&text).unwrap()
}

pub fn ids(value: &serde_json::Value) -> Vec<u32> {
    value
        .as_array()
        .unwrap()
        .iter()
        .map(|id| id.as_u64().unwrap() as u32)
        .collect()
}

pub fn tiny(name: &str) -> PathBuf {
    fixtures().join("tiny").join(name).join("model-f32.gguf")
}

/// What a watched device does and saw.
#[derive(Debug, Default)]
pub struct Watch {
    pub steps: AtomicUsize,
    /// Most sequences seen in one step.
    pub widest: AtomicUsize,
    /// Most tokens seen in one step.
    pub longest: AtomicUsize,
    /// Steps that had both a chunk and a single token.
    pub mixed: AtomicUsize,
    /// Milliseconds every step sleeps.
    pub sleep_ms: AtomicUsize,
    /// The step that panics, from 1 on; 0 never.
    pub panic_at: AtomicUsize,
    /// The step that fails, from 1 on; 0 never.
    pub fail_at: AtomicUsize,
    /// The step whose logits are NaN.
    pub nan_at: AtomicUsize,
    /// Executables dropped.
    pub dropped: AtomicUsize,
}

/// The interpreter (or another device) under watch.
pub struct Watched {
    pub device: Arc<dyn Device>,
    pub watch: Arc<Watch>,
}

struct WatchedExecutable {
    inner: Box<dyn Executable>,
    watch: Arc<Watch>,
}

impl Device for Watched {
    fn name(&self) -> String {
        self.device.name()
    }

    fn compile(
        &self,
        program: &Program,
        weights: &Weights,
        limits: Limits,
    ) -> Result<Box<dyn Executable>, DeviceError> {
        let inner = self.device.compile(program, weights, limits)?;
        Ok(Box::new(WatchedExecutable {
            inner,
            watch: Arc::clone(&self.watch),
        }))
    }
}

impl Executable for WatchedExecutable {
    fn step(&mut self, step: &Step<'_>, out: &mut StepOutput) -> Result<(), DeviceError> {
        let watch = &self.watch;
        let number = watch.steps.fetch_add(1, Ordering::SeqCst) + 1;
        watch
            .widest
            .fetch_max(step.sequences.len(), Ordering::SeqCst);
        watch.longest.fetch_max(step.tokens.len(), Ordering::SeqCst);
        let single = step.sequences.iter().any(|sequence| sequence.count == 1);
        let chunk = step.sequences.iter().any(|sequence| sequence.count > 1);
        watch
            .mixed
            .fetch_add(usize::from(single && chunk), Ordering::SeqCst);
        std::thread::sleep(Duration::from_millis(
            watch.sleep_ms.load(Ordering::SeqCst) as u64
        ));
        assert_ne!(
            number,
            watch.panic_at.load(Ordering::SeqCst),
            "the device was told to panic"
        );
        if number == watch.fail_at.load(Ordering::SeqCst) {
            return Err(DeviceError::Failed {
                device: "watched".into(),
                message: "told to fail".into(),
            });
        }
        self.inner.step(step, out)?;
        if number == watch.nan_at.load(Ordering::SeqCst) {
            out.logits.fill(f32::NAN);
        }
        Ok(())
    }

    fn copy_page(&mut self, from: u32, to: u32) -> Result<(), DeviceError> {
        self.inner.copy_page(from, to)
    }

    fn page_bytes(&self) -> usize {
        self.inner.page_bytes()
    }

    fn describe(&self) -> String {
        self.inner.describe()
    }
}

impl Drop for WatchedExecutable {
    fn drop(&mut self) {
        self.watch.dropped.fetch_add(1, Ordering::SeqCst);
    }
}

/// A backend over a device under watch; short pages and chunks, so that small models meet every boundary.
pub fn backend_over(device: Arc<dyn Device>) -> (TextBackend, Arc<Watch>) {
    let watch = Arc::new(Watch::default());
    let kept = Arc::clone(&watch);
    let backend = TextBackend::new("test", "0.0.1", move |_: &LoadOptions| {
        Ok(Arc::new(Watched {
            device: Arc::clone(&device),
            watch: Arc::clone(&kept),
        }) as Arc<dyn Device>)
    })
    .with_options(EngineOptions {
        max_step_tokens: 16,
        page_size: 8,
    });
    (backend, watch)
}

pub fn backend() -> (TextBackend, Arc<Watch>) {
    backend_over(Arc::new(Interpreter))
}

pub fn load_tiny(name: &str, options: &LoadOptions) -> (Arc<dyn TextModel>, Arc<Watch>) {
    let (backend, watch) = backend();
    (backend.load(&tiny(name), options).unwrap(), watch)
}

pub fn context(tokens: u32, parallel: u32) -> LoadOptions {
    LoadOptions {
        context: Some(tokens),
        parallel: Some(parallel),
        threads: Some(1),
        ..LoadOptions::default()
    }
}

/// With keys and values as they were computed: for comparisons with references that round nothing.
pub fn exactly(mut options: LoadOptions) -> LoadOptions {
    options.extra.insert("cache_type".into(), "f32".into());
    options
}

pub fn greedy(max_tokens: u32) -> GenerateOptions {
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

pub fn seeded(seed: u64, max_tokens: u32) -> GenerateOptions {
    let sampling = Sampling {
        temperature: Some(1.2),
        seed: Some(seed),
        ..Sampling::default()
    };
    GenerateOptions {
        sampling,
        ..greedy(max_tokens)
    }
}

pub fn tokens_request(tokens: &[u32], options: GenerateOptions) -> GenerateRequest {
    GenerateRequest {
        prompt: Prompt::Tokens(tokens.to_vec()),
        options,
    }
}

/// Everything that a sink was told.
#[derive(Debug, Default, Clone, PartialEq)]
pub struct Told {
    pub text: String,
    pub tokens: Vec<u32>,
    pub logprobs: Vec<Vec<TokenLogprob>>,
    pub prefill: Vec<(u64, u64)>,
}

impl Told {
    pub fn take(&mut self, event: &Event<'_>) {
        match event {
            Event::Prefill { done, total } => self.prefill.push((*done, *total)),
            Event::Token {
                token,
                text,
                logprobs,
            } => {
                self.tokens.extend(*token);
                self.text.push_str(text);
                self.logprobs.push(logprobs.to_vec());
            }
            Event::Text { text } => self.text.push_str(text),
        }
    }
}

/// Collects; stops after so many tokens, prefill events or questions.
#[derive(Debug, Default)]
pub struct Collect {
    pub told: Told,
    pub stop_after_tokens: Option<usize>,
    pub stop_after_prefill: Option<usize>,
    /// Asks to stop when it has been asked so often.
    pub stop_after_polls: Option<usize>,
    pub polls: AtomicUsize,
}

impl Sink for Collect {
    fn on_event(&mut self, event: Event<'_>) -> Control {
        self.told.take(&event);
        let enough = |limit: Option<usize>, have: usize| limit.is_some_and(|limit| have >= limit);
        if enough(self.stop_after_tokens, self.told.tokens.len())
            || enough(self.stop_after_prefill, self.told.prefill.len())
        {
            Control::Stop
        } else {
            Control::Continue
        }
    }

    fn should_stop(&self) -> bool {
        let polls = self.polls.fetch_add(1, Ordering::SeqCst);
        self.stop_after_polls.is_some_and(|limit| polls >= limit)
    }
}

#[derive(Debug, Default)]
pub struct CollectBatch(pub Mutex<Vec<Told>>);

impl BatchSink for CollectBatch {
    fn on_event(&mut self, index: usize, event: Event<'_>) -> Control {
        let told = self.0.get_mut().unwrap();
        if told.len() <= index {
            told.resize(index + 1, Told::default());
        }
        told[index].take(&event);
        Control::Continue
    }
}

pub fn generate(
    model: &dyn TextModel,
    request: &GenerateRequest,
) -> Result<(Told, Completion), Error> {
    let mut sink = Collect::default();
    let completion = model.generate(request, &mut sink)?;
    assert_eq!(sink.told.tokens.len() as u64, completion.completion_tokens);
    Ok((sink.told, completion))
}

/// Numbers that look random: a prompt of a length.
pub fn prompt(seed: u32, length: usize) -> Vec<u32> {
    (0..length as u32)
        .map(|position| (seed.wrapping_mul(7919) + position * position * 31 + position * 7) % 512)
        .collect()
}

fn mixed_requests() -> Vec<GenerateRequest> {
    (0..10)
        .map(|index| {
            let mut tokens = prompt(index % 3, 20);
            tokens.extend(prompt(100 + index, 3 + 5 * index as usize));
            let options = if index % 2 == 0 {
                greedy(24)
            } else {
                seeded(u64::from(index), 24)
            };
            tokens_request(&tokens, options)
        })
        .collect()
}

/// Alone, side by side in one call, from threads, and again with everything in the cache: always the same.
pub fn check_same_texts(backend: &dyn Backend, path: &Path) {
    let options = context(200, 4);
    let alone: Vec<Told> = mixed_requests()
        .iter()
        .map(|request| {
            let fresh = backend
                .load(
                    path,
                    &LoadOptions {
                        parallel: Some(1),
                        ..options.clone()
                    },
                )
                .unwrap();
            let told = generate(&*fresh, request).unwrap().0;
            fresh.close().unwrap();
            told
        })
        .collect();
    let model = backend.load(path, &options).unwrap();
    for _ in 0..2 {
        let mut sink = CollectBatch::default();
        let results = model.batch_generate(&mixed_requests(), &mut sink).unwrap();
        let told = sink.0.into_inner().unwrap();
        for (index, result) in results.into_iter().enumerate() {
            assert_eq!(result.unwrap().completion_tokens, 24);
            assert_eq!(told[index].tokens, alone[index].tokens, "request {index}");
            assert_eq!(told[index].text, alone[index].text, "request {index}");
        }
    }
    std::thread::scope(|scope| {
        for (request, alone) in mixed_requests().into_iter().zip(&alone) {
            let model = &model;
            scope.spawn(move || {
                assert_eq!(generate(&**model, &request).unwrap().0.tokens, alone.tokens)
            });
        }
    });
    assert!(model.metrics()["prefix_cached_tokens_total"] > 100.0);
}

/// A request that says not how long it may become.
fn open_request(tokens: &[u32], options: GenerateOptions) -> GenerateRequest {
    let options = GenerateOptions {
        max_tokens: None,
        ..options
    };
    tokens_request(tokens, options)
}

/// Texts that outgrow the cache together, of which each in turn gives its pages back and goes on later: the same as alone, also
/// where the cache rounds. One that is longer than the context errs alone.
pub fn check_preempted(backend: &dyn Backend, path: &Path, cache_type: &str) {
    const TEXTS: u32 = 6;
    let mut options = context(160, TEXTS);
    options.extra.insert("cache_type".into(), cache_type.into());
    let request = |index: u32| match index % 2 {
        0 => open_request(&prompt(index, 30), greedy(1)),
        _ => open_request(&prompt(index, 30), seeded(u64::from(index), 1)),
    };
    let alone = backend.load(path, &options).unwrap();
    let alone: Vec<Told> = (0..TEXTS)
        .map(|index| generate(&*alone, &request(index)).unwrap().0)
        .collect();
    // Two whole contexts.
    options.extra.insert("cache_tokens".into(), 320.into());
    let model = backend.load(path, &options).unwrap();
    let mut requests: Vec<GenerateRequest> = (0..TEXTS).map(request).collect();
    requests.push(tokens_request(&prompt(1, 160), greedy(1)));
    let mut sink = CollectBatch::default();
    let mut results = model.batch_generate(&requests, &mut sink).unwrap();
    let error = results.pop().unwrap().unwrap_err();
    assert_eq!(error.code, ErrorCode::ContextOverflow);
    let told = sink.0.into_inner().unwrap();
    for (index, result) in results.into_iter().enumerate() {
        let done = result.unwrap();
        assert_eq!(done.finish_reason, FinishReason::ContextFull);
        assert_eq!((done.prompt_tokens, done.cached_tokens), (30, 0));
        assert_eq!(told[index].tokens, alone[index].tokens, "text {index}");
        assert_eq!(told[index].text, alone[index].text, "text {index}");
    }
    let metrics = model.metrics();
    assert!(metrics["preemptions_total"] > 0.0 && metrics["tokens_recomputed_total"] > 0.0);
    assert_eq!(metrics["tokens_prompt_total"], f64::from(30 * TEXTS));
    assert_eq!(metrics["kv_pages_used"], 0.0);
}

/// Two hundred requests from eight threads, greedy and seeded, some that begin alike and some that repeat themselves, some stopped
/// while they wait, while they read and while they generate, some to the end of the context, in a cache too small to keep
/// everything: the same texts as alone and undrafted, and no page lost.
pub fn check_soak(backend: &dyn Backend, path: &Path) {
    const REQUESTS: u32 = 200;
    let mut options = context(160, 6);
    // Two whole contexts: pages bound how many run, not places.
    options.extra.insert("cache_tokens".into(), 320.into());
    let model = backend.load(path, &options).unwrap();
    let request = |index: u32| {
        let mut tokens = prompt(index % 4, 17);
        if index % 5 == 1 {
            // The same few tokens over and over: there is something to draft.
            tokens.extend(prompt(index % 3, 5).repeat(6));
        } else {
            tokens.extend(prompt(index, (index as usize * 7) % 60));
        }
        if index % 10 == 4 {
            return open_request(&tokens, seeded(u64::from(index), 1));
        }
        let length = (index * 5) % 30;
        tokens_request(
            &tokens,
            if index.is_multiple_of(3) {
                greedy(length)
            } else {
                seeded(u64::from(index), length)
            },
        )
    };
    let mut plain = context(160, 1);
    plain.extra.insert("speculation".into(), "off".into());
    let fresh = backend.load(path, &plain).unwrap();
    let alone: Vec<Told> = (0..REQUESTS)
        .map(|index| generate(&*fresh, &request(index)).unwrap().0)
        .collect();
    assert_eq!(fresh.metrics()["tokens_drafted_total"], 0.0);
    let stopped = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for worker in 0..8 {
            let (model, alone, stopped) = (&model, &alone, &stopped);
            scope.spawn(move || {
                for index in (worker..REQUESTS).step_by(8) {
                    let mut sink = Collect {
                        stop_after_tokens: (index % 7 == 0).then_some(3),
                        stop_after_prefill: (index % 11 == 0).then_some(1),
                        stop_after_polls: (index % 13 == 0).then_some(index as usize % 3),
                        ..Collect::default()
                    };
                    let completion = model.generate(&request(index), &mut sink).unwrap();
                    let alone = &alone[index as usize];
                    if completion.finish_reason == FinishReason::Cancelled {
                        stopped.fetch_add(1, Ordering::SeqCst);
                        assert!(alone.tokens.starts_with(&sink.told.tokens));
                        let told = sink.told.tokens.len();
                        assert_eq!(completion.completion_tokens, told as u64);
                    } else {
                        assert_eq!(
                            (&sink.told.tokens, &sink.told.text),
                            (&alone.tokens, &alone.text)
                        );
                    }
                }
            });
        }
    });
    assert!(stopped.into_inner() > 30);
    let metrics = model.metrics();
    assert_eq!(
        (metrics["sequences_running"], metrics["sequences_waiting"]),
        (0.0, 0.0)
    );
    assert_eq!(metrics["kv_pages_used"], 0.0);
    assert_eq!(metrics["kv_pages_total"], 40.0);
    assert!(
        metrics["kv_pages_cached"] > 0.0 && metrics["kv_pages_cached"] <= metrics["kv_pages_total"]
    );
    assert!(metrics["tokens_generated_total"] > 1000.0 && metrics["steps_total"] > 100.0);
    assert!(metrics["tokens_draft_accepted_total"] <= metrics["tokens_drafted_total"]);
    assert!(metrics["kv_bytes"] > 0.0 && metrics["kv_bytes"] <= metrics["kv_bytes_limit"]);
    // Every page can be had: two whole contexts at once take all of them.
    let whole: Vec<GenerateRequest> = (0..2)
        .map(|seed| tokens_request(&prompt(seed + 1000, 60), greedy(100)))
        .collect();
    let results = model
        .batch_generate(&whole, &mut CollectBatch::default())
        .unwrap();
    for result in results {
        assert_eq!(result.unwrap().completion_tokens, 100);
    }
    assert_eq!(model.metrics()["kv_pages_used"], 0.0);
}
