//! Workers with the test modules in them.

mod c_door;
mod capabilities;
mod hostile;

use super::super::{Identity, Isolated, Limits, Spec, Start, start};
use backplane_contract_tests::module_path;
use backplane_plugin_api::sdk::{Backend, Context, TextModel};
use backplane_plugin_api::types::{
    Control, ErrorCode, Event, GenerateOptions, GenerateRequest, LoadOptions, Prompt, VerdictState,
};
use backplane_test_kit::{Options, Outcome, cases, run};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tempfile::TempDir;

fn spec(module: &str, options: &[(&str, Value)]) -> Spec {
    let options = options
        .iter()
        .map(|(name, value)| ((*name).to_owned(), value.clone()));
    Spec {
        program: module_path("backplane"),
        plugin: "echo".to_owned(),
        path: module_path(module),
        context: Context {
            options: options.collect(),
            module_dir: PathBuf::new(),
        },
        sha256: None,
        copy: None,
        time_limit: Duration::from_secs(20),
        limits: Limits::default(),
        records: None,
        identity: Identity::of(&module_path(module)),
    }
}

fn worker(spec: Spec) -> Arc<dyn Isolated> {
    match start(spec) {
        Start::Worker(worker) => worker,
        Start::Refused(verdict) => panic!("{verdict}"),
        Start::NoProgram(why) => panic!("{why}"),
    }
}

fn model(folder: &TempDir) -> PathBuf {
    let path = folder.path().join("model.echo");
    std::fs::write(&path, "anything").unwrap();
    path
}

fn load(backend: &dyn Isolated, path: &Path) -> Arc<dyn TextModel> {
    backend.load(path, &LoadOptions::default()).unwrap()
}

fn say(prompt: &str) -> GenerateRequest {
    let mut options = GenerateOptions::default();
    options.sampling.temperature = Some(0.0);
    GenerateRequest {
        prompt: Prompt::text(prompt),
        options,
    }
}

fn ignore(_: Event<'_>) -> Control {
    Control::Continue
}

#[test]
fn a_right_backend_conforms_through_a_worker() {
    let backend: Arc<dyn Backend> = worker(spec("backplane-module-echo-a", &[]));
    let folder = tempfile::tempdir().unwrap();
    let options = Options {
        time_limit: Duration::from_secs(20),
        ..Options::default()
    };
    let report = run(&backend, &model(&folder), &options);
    assert!(report.passed(), "{report}");
    assert_eq!(report.results.len(), cases().len());
    let missing: Vec<_> = report
        .results
        .iter()
        .filter(|result| matches!(result.outcome, Outcome::NotApplicable(_)))
        .map(|result| result.name)
        .collect();
    assert_eq!(missing, ["logprobs_given"], "{report}");
}

#[test]
fn a_crash_is_an_error_and_the_third_is_the_last() {
    let backend = worker(spec(
        "backplane-module-panics",
        &[("crash_in", json!(["decode"]))],
    ));
    let folder = tempfile::tempdir().unwrap();
    let path = model(&folder);
    for crash in 1..=3 {
        assert!(backend.quarantined().is_none(), "before crash {crash}");
        let (model, other) = (load(&*backend, &path), load(&*backend, &path));
        assert_eq!(model.tokenize("a", false, false).unwrap(), [97]);
        let error = model.generate(&say("hello"), &mut ignore).unwrap_err();
        let line = error.to_string();
        assert_eq!(error.code, ErrorCode::Device, "{line}");
        assert!(
            line.contains("`echo`") && line.contains("SIGABRT"),
            "{line}"
        );
        // So does every other model of that worker, and later calls.
        for model in [&model, &other] {
            let again = model.tokenize("a", false, false).unwrap_err();
            assert_eq!(again, error);
            assert!(model.close().is_ok(), "nothing is left to free");
        }
    }
    let verdict = backend.quarantined().expect("three crashes");
    assert_eq!(verdict.state, VerdictState::Quarantined);
    assert!(verdict.message.contains("3 crashes"), "{verdict}");
    assert!(verdict.message.contains("SIGABRT"), "{verdict}");
    assert_eq!(backend.probe(), verdict);
    let error = backend.load(&path, &LoadOptions::default()).err().unwrap();
    assert_eq!(error.code, ErrorCode::Device);
    assert_eq!(error.message, verdict.message);
}

#[test]
fn a_crash_ends_every_call_that_runs() {
    let options = [
        ("crash_in", json!(["tokenize"])),
        ("token_delay_ms", json!(5)),
    ];
    let backend = worker(spec("backplane-module-panics", &options));
    let folder = tempfile::tempdir().unwrap();
    let model = load(&*backend, &model(&folder));
    let mut request = say("hello");
    request.options.ignore_end = true;
    std::thread::scope(|scope| {
        let (send, receive) = std::sync::mpsc::channel();
        let running = scope.spawn(|| {
            model.generate(&request, &mut move |_: Event<'_>| {
                let _ = send.send(());
                Control::Continue
            })
        });
        receive.recv().unwrap();
        assert!(model.tokenize("a", false, false).is_err());
        let error = running.join().unwrap().unwrap_err();
        assert!(error.message.contains("SIGABRT"), "{error}");
    });
}

#[test]
fn a_silent_generation_is_stopped_by_its_consumer() {
    struct Impatient(Instant);
    impl backplane_plugin_api::sdk::Sink for Impatient {
        fn on_event(&mut self, _: Event<'_>) -> Control {
            Control::Continue
        }
        fn should_stop(&self) -> bool {
            self.0.elapsed() > Duration::from_millis(50)
        }
    }
    let delay = [("token_delay_ms", json!(200))];
    let backend = worker(spec("backplane-module-echo-a", &delay));
    let folder = tempfile::tempdir().unwrap();
    let model = load(&*backend, &model(&folder));
    let mut request = say("hello");
    request.options.ignore_end = true;
    let start = Instant::now();
    let done = model
        .generate(&request, &mut Impatient(start))
        .expect("a cancelled end");
    assert_eq!(
        done.finish_reason,
        backplane_plugin_api::FinishReason::Cancelled
    );
    let took = start.elapsed();
    assert!(took < Duration::from_secs(2), "{took:?}");
}

#[test]
fn a_slow_consumer_holds_the_worker_back() {
    let backend = worker(spec("backplane-module-echo-a", &[]));
    let folder = tempfile::tempdir().unwrap();
    let model = load(&*backend, &model(&folder));
    let mut request = say("hello");
    request.options.ignore_end = true;
    request.options.max_tokens = Some(4_000);
    let (mut heard, mut most) = (0_u64, 0);
    let done = model.generate(&request, &mut |event: Event<'_>| {
        if matches!(event, Event::Token { .. }) {
            heard += 1;
            if heard == 100 {
                std::thread::sleep(Duration::from_millis(100));
                let metrics = model.metrics();
                most = metrics["tokens_generated_total"] as u64;
            }
        }
        Control::Continue
    });
    assert_eq!(done.unwrap().completion_tokens, 4_000);
    assert_eq!(heard, 4_000);
    assert!((100..=170).contains(&most), "{most} tokens at the 100th");
}

#[test]
fn a_program_that_is_no_worker_is_told_from_a_crash() {
    for (script, expected) in [
        ("echo oh no >&2; exit 3", "ended with exit status 3: oh no"),
        ("sleep 30", "did not start"),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let program = folder.path().join("program");
        std::fs::write(&program, format!("#!/bin/sh\n{script}\n")).unwrap();
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        std::fs::set_permissions(&program, mode).unwrap();
        let spec = Spec {
            program,
            time_limit: Duration::from_secs(2),
            ..spec("backplane-module-echo-a", &[])
        };
        let Start::NoProgram(why) = start(spec) else {
            panic!("{script}: expected no program")
        };
        assert!(why.ends_with(expected), "{why}");
    }
}

#[test]
fn a_module_that_is_none_is_refused_as_in_this_process() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("none.so");
    std::fs::write(&path, "no module\n").unwrap();
    let spec = Spec {
        path,
        ..spec("backplane-module-echo-a", &[])
    };
    let Start::Refused(verdict) = start(spec) else {
        panic!("expected a verdict")
    };
    assert_eq!(verdict.state, VerdictState::Incompatible);
    assert!(verdict.message.contains("a text file"), "{verdict}");
}
