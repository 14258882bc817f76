//! The conformance suite: a right backend passes, in this process and across the boundary; each wrong one fails the case
//! that its flaw is against.

#![allow(clippy::unwrap_used)] // Here an unwrap is an assertion.

#[path = "conformance/capabilities.rs"]
mod capabilities;

use backplane::loader::{LoadRequest, TracingServices, open};
use backplane_contract_tests::module_path;
use backplane_echo_engine::EchoBackend;
use backplane_plugin_api::*;
use backplane_test_kit::{Options, Outcome, Report, cases, run};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tempfile::TempDir;

fn echo() -> EchoBackend {
    EchoBackend::new("echo", "1.2.3", Context::default()).unwrap()
}

fn model(folder: &TempDir) -> PathBuf {
    let path = folder.path().join("model.echo");
    std::fs::write(&path, "anything").unwrap();
    path
}

fn suite(backend: Arc<dyn Backend>) -> Report {
    let folder = tempfile::tempdir().unwrap();
    let options = Options {
        time_limit: Duration::from_secs(20),
        ..Options::default()
    };
    run(&backend, &model(&folder), &options)
}

fn check_right(report: &Report) {
    assert!(report.passed(), "{report}");
    assert_eq!(report.results.len(), cases().len());
    let missing: Vec<_> = report
        .results
        .iter()
        .filter(|r| matches!(r.outcome, Outcome::NotApplicable(_)))
        .map(|r| r.name)
        .collect();
    assert_eq!(missing, ["logprobs_given"], "{report}");
    let json: serde_json::Value = serde_json::from_str(&report.to_json().unwrap()).unwrap();
    assert_eq!(json["results"][0]["name"], "probe_answers");
    assert_eq!(json["results"][0]["outcome"], "passed");
    assert!(report.to_string().lines().count() == cases().len() + 2);
}

#[test]
fn a_right_backend_passes_in_this_process() {
    check_right(&suite(Arc::new(echo())));
}

#[test]
fn a_right_backend_passes_across_the_boundary() {
    let path = module_path("backplane-module-echo-a");
    let request = LoadRequest {
        path: &path,
        context: Context::default(),
        sha256: None,
    };
    let plugin = open(
        &request,
        Arc::new(TracingServices {
            plugin: "echo".into(),
        }),
    )
    .unwrap();
    check_right(&suite(plugin.backend));
}

/// What is wrong with a backend.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Flaw {
    NotAvailable,
    BadName,
    OrdinalDevices,
    InspectClaimsAll,
    InspectSaysLoaded,
    LoadsAnything,
    IgnoresLoadOptions,
    HasEveryCapability,
    LoadFails,
    Miscounts,
    Forgetful,
    IgnoresSeed,
    HidesSeed,
    OneTokenMore,
    LeaksStop,
    LosesHeldText,
    IgnoresStopTokens,
    PositiveLogprobs,
    OtherTemplate,
    WrongLogits,
    ClassifyFailsTogether,
    BatchMixesIndices,
    BadTokenizer,
    NanMetrics,
    Interferes,
    IgnoresCancel,
    IgnoresPoll,
    DiesAfterSinkPanic,
    SharedErrors,
    IgnoresExtra,
    TakesBadValues,
    PanicsOnEmptyPrompt,
    CutsPrompts,
    Unbounded,
    ClosesOnce,
    WorksAfterClose,
    IgnoresClose,
    Hangs,
    HidesProgress,
    WrongProgress,
    IgnoresPooling,
    NeverNormalises,
    EmbedFailsTogether,
    EmbedsAllAlike,
    EmbedsNan,
    ScoresTheFirst,
    ScoresLookAhead,
    OtherScores,
    AttentionIgnoresLayers,
    KeysCut,
    KeysTransposed,
    KeysLookAhead,
    PeaksOfNothing,
    CostsMoreEachTime,
    ChecksAnything,
    ForgetfulCheck,
    ConvertsToAnyType,
    ConvertOverwrites,
    ConvertLeavesFiles,
    ConvertMiscounts,
    ConvertWritesRubbish,
}

use Flaw::*;

/// Each flaw and the case that must fail for it.
const FLAWS: &[(Flaw, &str)] = &[
    (NotAvailable, "probe_answers"),
    (BadName, "names_itself"),
    (OrdinalDevices, "devices_have_identity"),
    (InspectClaimsAll, "inspect_leaves_others"),
    (InspectSaysLoaded, "inspect_answers"),
    (LoadsAnything, "load_refuses_missing_file"),
    (IgnoresLoadOptions, "load_refuses_unknown_option"),
    (HasEveryCapability, "absent_capability_answered"),
    (LoadFails, "loads"),
    (Miscounts, "generates"),
    (Forgetful, "greedy_repeats"),
    (IgnoresSeed, "seed_repeats"),
    (HidesSeed, "seed_repeats"),
    (OneTokenMore, "max_tokens_zero"),
    (OneTokenMore, "max_tokens_bounds"),
    (LeaksStop, "stop_string_ends"),
    (LosesHeldText, "near_stop_loses_nothing"),
    (IgnoresStopTokens, "stop_token_ends"),
    (PositiveLogprobs, "logprobs_given"),
    (OtherTemplate, "chats"),
    (WrongLogits, "classifies"),
    (ClassifyFailsTogether, "classify_keeps_errors_apart"),
    (BatchMixesIndices, "batch_is_as_alone"),
    (BatchMixesIndices, "batch_cancels_one"),
    (BadTokenizer, "tokens_round_trip"),
    (NanMetrics, "metrics_are_numbers"),
    (Interferes, "concurrent_as_alone"),
    (IgnoresCancel, "cancelled_in_prefill"),
    (IgnoresCancel, "cancelled_in_decode"),
    (IgnoresPoll, "cancelled_before_prefill"),
    (IgnoresPoll, "polled_in_prefill"),
    (IgnoresPoll, "polled_in_decode"),
    (DiesAfterSinkPanic, "sink_panic_contained"),
    (SharedErrors, "error_per_call"),
    (IgnoresExtra, "unknown_field_refused"),
    (TakesBadValues, "bad_values_refused"),
    (PanicsOnEmptyPrompt, "empty_prompt_answered"),
    (CutsPrompts, "overflow_refused"),
    (Unbounded, "context_bounds"),
    (ClosesOnce, "closed_twice"),
    (WorksAfterClose, "closed_twice"),
    (IgnoresClose, "close_ends_generations"),
    (Hangs, "generates"),
    (IgnoresPooling, "embeds"),
    (EmbedsAllAlike, "embeds"),
    (EmbedsNan, "embeds"),
    (HidesProgress, "embeds"),
    (NeverNormalises, "embeddings_normalise"),
    (EmbedFailsTogether, "embed_keeps_errors_apart"),
    (ScoresTheFirst, "scores"),
    (ScoresLookAhead, "scores"),
    (PositiveLogprobs, "scores"),
    (OtherScores, "scores"),
    (WrongProgress, "scores"),
    (AttentionIgnoresLayers, "attends"),
    (KeysCut, "attends"),
    (KeysTransposed, "attends"),
    (KeysLookAhead, "attends"),
    (HidesProgress, "attends"),
    (PeaksOfNothing, "measures"),
    (CostsMoreEachTime, "measures"),
    (HidesProgress, "measures"),
    (ChecksAnything, "checks"),
    (ForgetfulCheck, "checks"),
    (HidesProgress, "checks"),
    (ConvertOverwrites, "converts"),
    (ConvertMiscounts, "converts"),
    (ConvertWritesRubbish, "converts"),
    (HidesProgress, "converts"),
    (ConvertsToAnyType, "convert_leaves_nothing"),
    (ConvertLeavesFiles, "convert_leaves_nothing"),
    (IgnoresCancel, "convert_leaves_nothing"),
    (IgnoresExtra, "capability_fields_refused"),
    (IgnoresCancel, "capabilities_cancelled"),
    (HidesProgress, "capabilities_cancelled"),
    (WorksAfterClose, "capabilities_closed"),
];

struct Wrong {
    right: EchoBackend,
    flaw: Flaw,
}

impl Backend for Wrong {
    fn name(&self) -> String {
        if self.flaw == BadName {
            "My Backend!".into()
        } else {
            self.right.name()
        }
    }
    fn version(&self) -> String {
        self.right.version()
    }
    fn probe(&self) -> Verdict {
        match self.flaw {
            NotAvailable => Verdict::unavailable(VerdictState::NoDevice, "none", "buy one"),
            _ => self.right.probe(),
        }
    }
    fn devices(&self) -> Result<Vec<DeviceInfo>> {
        let mut devices = self.right.devices()?;
        if self.flaw == OrdinalDevices {
            devices[0].id = "0".into();
        }
        Ok(devices)
    }
    fn inspect(&self, path: &Path) -> Result<Option<ModelInfo>> {
        match self.flaw {
            InspectClaimsAll => {
                let info = self
                    .load(path, &LoadOptions::default())
                    .map(|model| model.info());
                Ok(Some(info.unwrap_or_else(|_| blank(path))))
            }
            InspectSaysLoaded => Ok(self.right.inspect(path)?.map(|info| ModelInfo {
                loaded_context: 5,
                ..info
            })),
            _ => self.right.inspect(path),
        }
    }
    fn load(&self, path: &Path, options: &LoadOptions) -> Result<Arc<dyn TextModel>> {
        if self.flaw == LoadFails {
            return Err(Error::new(ErrorCode::ModelUnusable, "never"));
        }
        let mut options = options.clone();
        let mut context = None;
        match self.flaw {
            IgnoresLoadOptions => options.extra.clear(),
            Unbounded => context = options.context.replace(900),
            _ => {}
        }
        let right = match self.right.load(path, &options) {
            Err(_) if self.flaw == LoadsAnything => {
                let folder = tempfile::tempdir().unwrap();
                self.right.load(&model(&folder), &options)?
            }
            other => other?,
        };
        Ok(Arc::new(WrongModel {
            right,
            flaw: self.flaw,
            context,
            calls: Default::default(),
            running: Default::default(),
            failed: Default::default(),
            dead: Default::default(),
            closed: Default::default(),
        }))
    }
    fn capability(&self, name: &str) -> Option<AnyCapability> {
        if self.flaw == HasEveryCapability {
            Some(AnyCapability::new(1_u8))
        } else {
            capabilities::of_backend(&self.right, self.flaw, name)
        }
    }
}

fn blank(path: &Path) -> ModelInfo {
    let folder = tempfile::tempdir().unwrap();
    let info = echo().inspect(&model(&folder)).unwrap().unwrap();
    ModelInfo {
        path: path.to_owned(),
        ..info
    }
}

struct WrongModel {
    right: Arc<dyn TextModel>,
    flaw: Flaw,
    context: Option<u32>,
    calls: std::sync::atomic::AtomicU32,
    running: std::sync::atomic::AtomicU32,
    failed: AtomicBool,
    dead: AtomicBool,
    closed: AtomicBool,
}

/// The caller's sink, with what is wrong about how it is served.
struct WrongSink<'a> {
    flaw: Flaw,
    sink: &'a mut dyn Sink,
    dead: &'a AtomicBool,
}

impl Sink for WrongSink<'_> {
    fn on_event(&mut self, event: Event<'_>) -> Control {
        if self.flaw == LosesHeldText && matches!(event, Event::Text { .. }) {
            return Control::Continue;
        }
        if self.flaw == DiesAfterSinkPanic {
            self.dead.store(true, Ordering::SeqCst);
        }
        let wrong = match &event {
            Event::Token {
                token: Some(token), ..
            } if self.flaw == PositiveLogprobs => {
                vec![TokenLogprob {
                    token: *token,
                    text: String::new(),
                    logprob: 0.5,
                }]
            }
            _ => Vec::new(),
        };
        let event = match event {
            Event::Token { token, text, .. } => Event::Token {
                token,
                text,
                logprobs: &wrong,
            },
            other => other,
        };
        let control = self.sink.on_event(event);
        self.dead.store(false, Ordering::SeqCst);
        if self.flaw == IgnoresCancel {
            Control::Continue
        } else {
            control
        }
    }
    fn should_stop(&self) -> bool {
        !matches!(self.flaw, IgnoresPoll | IgnoresCancel) && self.sink.should_stop()
    }
}

impl TextModel for WrongModel {
    fn info(&self) -> ModelInfo {
        let mut info = self.right.info();
        info.loaded_context = self.context.map_or(info.loaded_context, u64::from);
        info
    }

    fn generate(&self, request: &GenerateRequest, sink: &mut dyn Sink) -> Result<Completion> {
        let mut request = request.clone();
        let options = &mut request.options;
        let call = self.calls.fetch_add(1, Ordering::SeqCst);
        let extra_stop = options.stop.clone();
        if self.dead.load(Ordering::SeqCst) {
            return Err(Error::new(ErrorCode::Internal, "a lock is poisoned"));
        }
        match self.flaw {
            Hangs => loop {
                std::thread::park();
            },
            Forgetful => options.stop.push(if call.is_multiple_of(2) {
                "u".into()
            } else {
                "o".into()
            }),
            IgnoresSeed => options.sampling.seed = Some(u64::from(call)),
            OneTokenMore => options.max_tokens = options.max_tokens.map(|most| most + 1),
            LeaksStop => options.stop.clear(),
            IgnoresStopTokens => options.stop_tokens.clear(),
            IgnoresExtra => options.extra.clear(),
            PositiveLogprobs => options.logprobs = None,
            TakesBadValues => {
                options.sampling.temperature = options.sampling.temperature.map(|t| t.max(0.0))
            }
            PanicsOnEmptyPrompt if request.prompt == Prompt::Tokens(vec![]) => {
                panic!("index out of bounds")
            }
            CutsPrompts => {
                if let Prompt::Text { text, .. } = &mut request.prompt {
                    text.truncate(60);
                }
            }
            _ => {}
        }
        let seed = request.options.sampling.seed;
        if self.flaw == SharedErrors && matches!(request.prompt, Prompt::Tokens(_)) {
            self.failed.store(true, Ordering::SeqCst);
        }
        if self.flaw == Interferes {
            self.running.fetch_add(1, Ordering::SeqCst);
            std::thread::sleep(Duration::from_millis(100));
            if self.running.load(Ordering::SeqCst) > 1 {
                request.prompt = Prompt::text("somebody else's prompt");
            }
        }
        let mut wrong = WrongSink {
            flaw: self.flaw,
            sink,
            dead: &self.dead,
        };
        let mut result = self.right.generate(&request, &mut wrong);
        if self.flaw == Interferes {
            // Late enough for the others to see it.
            std::thread::sleep(Duration::from_millis(100));
            self.running.fetch_sub(1, Ordering::SeqCst);
        }
        if self.flaw == SharedErrors {
            std::thread::sleep(Duration::from_millis(50));
            if self.failed.load(Ordering::SeqCst) {
                return Err(Error::new(
                    ErrorCode::InvalidRequest,
                    "an error of some call",
                ));
            }
        }
        if let Ok(done) = &mut result {
            match self.flaw {
                Miscounts => done.completion_tokens += 1,
                HidesSeed if seed.is_none() => done.seed = 1,
                LeaksStop if !extra_stop.is_empty() => {
                    done.finish_reason = FinishReason::StopString
                }
                _ => {}
            }
        }
        result
    }

    fn chat(&self, request: &ChatRequest, sink: &mut dyn Sink) -> Result<Completion> {
        let mut request = request.clone();
        if self.flaw == IgnoresExtra {
            request.options.extra.clear();
        }
        self.right.chat(&request, sink)
    }

    fn render_chat(&self, request: &ChatRequest) -> Result<String> {
        let text = self.right.render_chat(request)?;
        Ok(if self.flaw == OtherTemplate {
            format!("<{text}>")
        } else {
            text
        })
    }

    fn classify(&self, request: &ClassifyRequest) -> Result<Vec<Result<Classification>>> {
        let mut answers = self.right.classify(request)?;
        match self.flaw {
            WrongLogits => {
                for answer in answers.iter_mut().flatten() {
                    answer.top[0].logprob = -3.0;
                }
            }
            ClassifyFailsTogether => {
                if let Some(error) = answers
                    .iter()
                    .find_map(|answer| answer.as_ref().err())
                    .cloned()
                {
                    return Err(error);
                }
            }
            _ => {}
        }
        Ok(answers)
    }

    fn batch_generate(
        &self,
        requests: &[GenerateRequest],
        sink: &mut dyn BatchSink,
    ) -> Result<Vec<Result<Completion>>> {
        struct Mixed<'a>(&'a mut dyn BatchSink);
        impl BatchSink for Mixed<'_> {
            fn on_event(&mut self, index: usize, event: Event<'_>) -> Control {
                self.0.on_event(index ^ 1, event)
            }
        }
        if self.flaw == BatchMixesIndices && requests.len() > 1 {
            let even = &requests[..requests.len() & !1];
            let mut results = self.right.batch_generate(even, &mut Mixed(sink))?;
            results.extend(self.right.batch_generate(&requests[even.len()..], sink)?);
            return Ok(results);
        }
        self.right.batch_generate(requests, sink)
    }

    fn tokenize(&self, text: &str, add_special: bool, parse_special: bool) -> Result<Vec<u32>> {
        let text = if self.flaw == BadTokenizer {
            text.to_lowercase()
        } else {
            text.to_owned()
        };
        self.right.tokenize(&text, add_special, parse_special)
    }

    fn detokenize(&self, tokens: &[u32], special: bool) -> Result<Vec<u8>> {
        self.right.detokenize(tokens, special)
    }

    fn metrics(&self) -> Metrics {
        if self.flaw == NanMetrics {
            [("speed".to_owned(), f64::NAN)].into()
        } else {
            self.right.metrics()
        }
    }

    fn close(&self) -> Result<()> {
        match self.flaw {
            WorksAfterClose | IgnoresClose => Ok(()),
            ClosesOnce if self.closed.swap(true, Ordering::SeqCst) => {
                Err(Error::new(ErrorCode::Internal, "freed twice"))
            }
            _ => self.right.close(),
        }
    }

    fn capability(&self, name: &str) -> Option<AnyCapability> {
        capabilities::of_model(&*self.right, self.flaw, name)
    }
}

#[test]
fn each_flaw_fails_its_case() {
    let mut never_failed: std::collections::BTreeSet<_> =
        cases().iter().map(|case| case.name).collect();
    for &(flaw, case) in FLAWS {
        let folder = tempfile::tempdir().unwrap();
        let limit = if flaw == Hangs {
            Duration::from_millis(300)
        } else {
            Duration::from_secs(20)
        };
        let options = Options {
            only: Some(case.to_owned()),
            time_limit: limit,
            ..Options::default()
        };
        let backend: Arc<dyn Backend> = Arc::new(Wrong {
            right: echo(),
            flaw,
        });
        let report = run(&backend, &model(&folder), &options);
        let failed: Vec<_> = report.failed().map(|result| result.name).collect();
        assert_eq!(failed, [case], "{flaw:?}: {report}");
        never_failed.remove(case);
    }
    assert!(
        never_failed.is_empty(),
        "no flaw is against {never_failed:?}"
    );
}
