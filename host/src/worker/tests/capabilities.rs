//! The contract's capabilities through a worker: as in this process.

use super::*;
use backplane_plugin_api::capability::{self, CHECK, EMBED};
use backplane_plugin_api::{
    AttentionRequest, ConvertOptions, EmbedRequest, Pooling, Progress, ScoreRequest, Unwatched,
};

fn embed_request() -> EmbedRequest {
    EmbedRequest {
        inputs: vec![Prompt::text("héllo"), Prompt::Tokens(vec![9999])],
        pooling: Pooling::Mean,
        normalize: true,
        extra: Default::default(),
    }
}

fn attention_request() -> AttentionRequest {
    AttentionRequest {
        prompt: Prompt::text("some words"),
        layers: Some(vec![1]),
        extra: Default::default(),
    }
}

fn score_request() -> ScoreRequest {
    ScoreRequest {
        tokens: (0..100).collect(),
        first: 90,
        ..ScoreRequest::default()
    }
}

/// What each capability answers, and the progress that was told.
fn answers(backend: &dyn Backend, folder: &TempDir) -> Vec<String> {
    let path = folder.path().join("lines.echo");
    std::fs::write(&path, "w1\nbad w2\n").unwrap();
    let target = folder.path().join("copy.echo");
    let model = backend.load(&path, &LoadOptions::default()).unwrap();
    let mut steps = Vec::new();
    let mut watch = |done: u64, total: u64, what: &str| {
        steps.push(format!("{done}/{total} {what}"));
        Control::Continue
    };
    let embed = capability::embed(&*model).unwrap().unwrap();
    let score = capability::score(&*model).unwrap().unwrap();
    let attention = capability::attention(&*model).unwrap().unwrap();
    let check = capability::check(backend).unwrap().unwrap();
    let convert = capability::convert(backend).unwrap().unwrap();
    let options = ConvertOptions {
        quantize: Some("q8_0".into()),
        ..ConvertOptions::default()
    };
    let mut all = vec![
        format!("{:?}", embed.embed(&embed_request(), &mut watch)),
        format!("{:?}", score.score(&score_request(), &mut watch)),
        format!(
            "{:?}",
            attention.inspect_attention(&attention_request(), &mut watch)
        ),
        format!("{:?}", check.check(&path, &mut watch)),
        format!(
            "{:?}",
            convert.convert(&path, &target, &options, &mut watch)
        ),
        // Errors cross too: the target is there now.
        format!(
            "{:?}",
            convert.convert(&path, &target, &options, &mut watch)
        ),
    ];
    assert!(all[..5].iter().all(|answer| answer.starts_with("Ok")));
    assert!(all[5].contains("is there already"), "{}", all[5]);
    std::fs::remove_file(target).unwrap();
    all.extend(steps);
    // They outlive the model's handle, and end with its close.
    model.close().unwrap();
    drop(model);
    let error = score.score(&score_request(), &mut Unwatched).unwrap_err();
    assert_eq!(error.code, ErrorCode::Closed, "{error}");
    all
}

#[test]
fn capabilities_answer_as_in_this_process() {
    let folder = tempfile::tempdir().unwrap();
    let there = answers(&*worker(spec("backplane-module-echo-a", &[])), &folder);
    let request = crate::loader::LoadRequest {
        path: &module_path("backplane-module-echo-a"),
        context: Context::default(),
        sha256: None,
    };
    let services = crate::loader::TracingServices {
        plugin: "echo".into(),
    };
    let here = crate::loader::open(&request, Arc::new(services)).unwrap();
    assert_eq!(there, answers(&*here.backend, &folder));
}

#[test]
fn what_is_not_offered_is_absent() {
    let options = [("offers", json!([EMBED]))];
    let backend = worker(spec("backplane-module-echo-a", &options));
    let folder = tempfile::tempdir().unwrap();
    let model = load(&*backend, &model(&folder));
    assert!(matches!(capability::embed(&*model), Ok(Some(_))));
    assert!(matches!(capability::score(&*model), Ok(None)));
    assert!(matches!(capability::attention(&*model), Ok(None)));
    assert!(matches!(capability::check(&*backend), Ok(None)));
    assert!(matches!(capability::convert(&*backend), Ok(None)));
    assert!(
        model.capability("echo/1").is_none() && backend.capability(CHECK).is_none(),
        "objects of the plugin's own stay in its process"
    );
}

#[test]
fn a_call_ends_where_its_watcher_stops_it() {
    struct StopAt(u64, u64);
    impl Progress for StopAt {
        fn on_progress(&mut self, done: u64, _: u64, _: &str) -> Control {
            self.1 += 1;
            if done >= self.0 {
                Control::Stop
            } else {
                Control::Continue
            }
        }
    }
    let backend = worker(spec("backplane-module-echo-a", &[]));
    let folder = tempfile::tempdir().unwrap();
    let lines = folder.path().join("lines.echo");
    std::fs::write(&lines, "w\n".repeat(5)).unwrap();
    let target = folder.path().join("copy.echo");
    let convert = capability::convert(&*backend).unwrap().unwrap();
    let options = ConvertOptions::default();
    // At the last step too: nothing was written ahead of the watcher.
    for at in [0, 3, 5] {
        let mut stop = StopAt(at, 0);
        let error = convert
            .convert(&lines, &target, &options, &mut stop)
            .unwrap_err();
        assert_eq!(error.code, ErrorCode::Cancelled, "{error}");
        assert_eq!(stop.1, at + 1, "asked once after another, and not after");
        assert!(!target.exists());
    }
    // A panic of the watcher is the call's error, and the worker lives.
    let mut panics = |done: u64, _: u64, _: &str| -> Control { panic!("at {done}") };
    let error = convert
        .convert(&lines, &target, &options, &mut panics)
        .unwrap_err();
    assert_eq!(error.message, "the caller's progress panicked: at 0");
    let report = convert.convert(&lines, &target, &options, &mut Unwatched);
    assert_eq!(report.unwrap().tensors, 5);
}

#[test]
fn a_crash_in_a_capability_is_an_error() {
    let options = [
        ("crash_in", json!(["check"])),
        ("panic_in", json!(["convert"])),
    ];
    let backend = worker(spec("backplane-module-panics", &options));
    let folder = tempfile::tempdir().unwrap();
    let path = model(&folder);
    let convert = capability::convert(&*backend).unwrap().unwrap();
    let options = ConvertOptions::default();
    let error = convert
        .convert(&path, &path, &options, &mut Unwatched)
        .unwrap_err();
    assert_eq!(error.code, ErrorCode::Panicked, "{error}");
    let check = capability::check(&*backend).unwrap().unwrap();
    let error = check.check(&path, &mut Unwatched).unwrap_err();
    assert_eq!(error.code, ErrorCode::Device, "{error}");
    assert!(error.message.contains("SIGABRT"), "{error}");
    // Of that worker all err from then on; asked again, a new worker answers.
    let again = convert.convert(&path, &path, &options, &mut Unwatched);
    assert_eq!(again.unwrap_err(), error);
    assert!(matches!(capability::convert(&*backend), Ok(Some(_))));
}

#[test]
fn large_answers_cross() {
    let backend = worker(spec("backplane-module-echo-a", &[]));
    let folder = tempfile::tempdir().unwrap();
    let options = LoadOptions {
        context: Some(1 << 20),
        ..LoadOptions::default()
    };
    let model = backend.load(&model(&folder), &options).unwrap();
    let attention = capability::attention(&*model).unwrap().unwrap();
    let request = AttentionRequest {
        prompt: Prompt::Tokens(vec![7; 100_000]),
        layers: None,
        extra: Default::default(),
    };
    let state = attention
        .inspect_attention(&request, &mut Unwatched)
        .unwrap();
    assert_eq!(state.tokens.len(), 100_000);
    for layer in state.layers {
        assert_eq!(
            (layer.queries.len(), layer.keys.len()),
            (1_600_000, 800_000)
        );
        assert!(
            layer
                .queries
                .iter()
                .chain(&layer.keys)
                .all(|x| x.is_finite())
        );
    }
}
