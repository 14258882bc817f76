mod capabilities;

use super::*;
use crate::manifest::Source;
use backplane_plugin_api::sdk::{BatchSink, Result as SdkResult, Sink, TextModel};
use backplane_plugin_api::types::{
    ChatRequest, Classification, ClassifyRequest, Completion, Control, ErrorCode, Event,
    FinishReason, GenerateOptions, GenerateRequest, LoadOptions, Metrics, Prompt, TokenLogprob,
    Verdict, VerdictState,
};
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};

/// A backend in memory: says the prompt's words again; its fields say how it misbehaves.
struct Echo {
    name: &'static str,
    verdict: Verdict,
    takes: bool,
    panics: bool,
    asked: AtomicUsize,
}

fn echo(name: &'static str, verdict: Verdict) -> Arc<Echo> {
    Arc::new(Echo {
        name,
        verdict,
        takes: true,
        panics: false,
        asked: AtomicUsize::new(0),
    })
}

fn ready() -> Verdict {
    Verdict::available("ready")
}

fn info(path: &Path, loaded_context: u64) -> ModelInfo {
    ModelInfo {
        name: "m".into(),
        path: path.into(),
        format: "echo".into(),
        architecture: "echo".into(),
        quantization: "none".into(),
        parameters: 0,
        file_bytes: 1,
        context_length: 8192,
        loaded_context,
        vocabulary: 0,
        chat_template: None,
        unsupported: None,
        details: Vec::new(),
        metadata: Vec::new(),
        tensors: Vec::new(),
        warnings: Vec::new(),
    }
}

impl Backend for Echo {
    fn name(&self) -> String {
        self.name.into()
    }
    fn version(&self) -> String {
        "1.2.3".into()
    }
    fn probe(&self) -> Verdict {
        assert!(!self.panics, "asked to");
        self.asked.fetch_add(1, Ordering::SeqCst);
        self.verdict.clone()
    }
    fn devices(&self) -> SdkResult<Vec<DeviceInfo>> {
        let (id, name, kind) = ("cpu".into(), "Echo".into(), "cpu".into());
        let details = std::collections::BTreeMap::new();
        Ok(vec![DeviceInfo {
            id,
            name,
            kind,
            memory_total: None,
            memory_free: None,
            details,
        }])
    }
    fn inspect(&self, path: &Path) -> SdkResult<Option<ModelInfo>> {
        Ok(self.takes.then(|| info(path, 0)))
    }
    fn load(&self, path: &Path, options: &LoadOptions) -> SdkResult<Arc<dyn TextModel>> {
        if options.device.as_deref() == Some("full") {
            return Err(types::Error::new(ErrorCode::OutOfMemory, "needs 9 GiB"));
        }
        Ok(Arc::new(Words(info(
            path,
            options.context.unwrap_or_default().into(),
        ))))
    }
}

struct Words(ModelInfo);

fn none<T>() -> SdkResult<T> {
    Err(types::Error::new(ErrorCode::Unsupported, "not here"))
}

impl TextModel for Words {
    fn info(&self) -> ModelInfo {
        self.0.clone()
    }
    fn generate(&self, request: &GenerateRequest, sink: &mut dyn Sink) -> SdkResult<Completion> {
        let Prompt::Text { text, .. } = &request.prompt else {
            return none();
        };
        let mut said = 0;
        let mut finish_reason = FinishReason::Stop;
        for (word, token) in text.split_inclusive(' ').zip(7..) {
            let logprobs = [TokenLogprob {
                token,
                text: word.into(),
                logprob: -0.5,
            }];
            let logprobs = if request.options.logprobs.is_some() {
                &logprobs[..]
            } else {
                &[]
            };
            said += 1;
            if sink.on_event(Event::Token {
                token: Some(token),
                text: word,
                logprobs,
            }) == Control::Stop
            {
                finish_reason = FinishReason::Cancelled;
                break;
            }
        }
        let (prompt_tokens, cached_tokens) = (said, 0);
        let (queue_s, prefill_s, decode_s) = (0.0, 0.5, 0.25);
        let (stop_string, completion_tokens, seed) = (None, said, 1);
        Ok(Completion {
            finish_reason,
            stop_string,
            prompt_tokens,
            cached_tokens,
            completion_tokens,
            seed,
            queue_s,
            prefill_s,
            decode_s,
        })
    }
    fn chat(&self, _: &ChatRequest, _: &mut dyn Sink) -> SdkResult<Completion> {
        none()
    }
    fn render_chat(&self, _: &ChatRequest) -> SdkResult<String> {
        none()
    }
    fn classify(&self, _: &ClassifyRequest) -> SdkResult<Vec<SdkResult<Classification>>> {
        none()
    }
    fn batch_generate(
        &self,
        _: &[GenerateRequest],
        _: &mut dyn BatchSink,
    ) -> SdkResult<Vec<SdkResult<Completion>>> {
        none()
    }
    fn tokenize(&self, _: &str, _: bool, _: bool) -> SdkResult<Vec<u32>> {
        none()
    }
    fn detokenize(&self, _: &[u32], _: bool) -> SdkResult<Vec<u8>> {
        none()
    }
    fn metrics(&self) -> Metrics {
        Metrics::new()
    }
    fn close(&self) -> SdkResult<()> {
        Ok(())
    }
}

/// A registry over a folder of its own, with a manifest's text.
fn registry(root: &Path, manifest: &str) -> Registry {
    let file = root.join("plugins.toml");
    let manifest = Manifest::parse(manifest, &file, Source::Named).unwrap();
    Registry::new(
        manifest,
        Folders {
            models: Some(root.join("models")),
            ..Folders::default()
        },
    )
}

fn model(root: &Path) -> String {
    let path = root.join("m.echo");
    std::fs::write(&path, "x").unwrap();
    path.display().to_string()
}

#[test]
fn a_near_miss_in_the_manifest_is_told() {
    let root = tempfile::tempdir().unwrap();
    put(root.path().join("plugins/libbackplane_vulkan.so"));
    let manifest = "directories = [\"plugins\"]\norder = [\"vulcan\", \"rocmm\", \"metal\", \"other\"]\n\
                    [plugin.lama_cpp]\n";
    let registry = registry(root.path(), manifest);
    for (name, meant) in [
        ("vulcan", "did you mean `vulkan`?"),
        ("rocmm", "did you mean `rocm`?"),
        ("lama_cpp", "did you mean `llama_cpp`?"),
        ("metal", "put the module there"),
        ("other", "put the module there"),
    ] {
        let verdict = registry.get(name).unwrap().verdict;
        assert_eq!(verdict.state, VerdictState::Absent);
        assert!(verdict.action.starts_with(meant), "{name}: {verdict}");
    }
    let error = registry.default().unwrap_err().to_string();
    assert!(
        error.contains("not installed: vulcan (did you mean `vulkan`?), rocmm (did you mean `rocm`?), metal, other"),
        "{error}"
    );
}

fn put(path: PathBuf) {
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(path, "not a module").unwrap();
}

#[test]
fn from_manifest_to_text() {
    let root = tempfile::tempdir().unwrap();
    let registry = registry(root.path(), "");
    registry.register(echo("echo", ready())).unwrap();
    let loaded = registry
        .load(&model(root.path()), &ModelOptions::default())
        .unwrap();
    assert_eq!(
        (loaded.backend(), loaded.info().loaded_context),
        ("echo".to_owned(), 4096),
        "the manifest's cap"
    );
    let options = GenerateOptions {
        logprobs: Some(0),
        ..GenerateOptions::default()
    };
    let request = GenerateRequest {
        prompt: Prompt::text("one two three"),
        options,
    };
    let mut seen = Vec::new();
    let reply = loaded.generate(&request, &mut |event: Event<'_>| {
        if let Event::Token { text, .. } = event {
            seen.push(text.to_owned());
        }
        if seen.len() == 2 {
            Control::Stop
        } else {
            Control::Continue
        }
    });
    let reply = reply.unwrap();
    assert_eq!(seen, ["one ", "two "]);
    assert_eq!(
        (reply.text.as_str(), reply.tokens, reply.logprobs.len()),
        ("one two ", Some(vec![7, 8]), 2)
    );
    assert_eq!(reply.completion.finish_reason, FinishReason::Cancelled);
    let error = loaded.tokenize("x", true, false).unwrap_err();
    assert_eq!(
        (error.exit_code(), error.to_string().as_str()),
        (2, "echo: not here")
    );
}

#[test]
fn the_context_of_the_caller_wins() {
    let root = tempfile::tempdir().unwrap();
    let registry = registry(root.path(), "context = 100");
    registry.register(echo("echo", ready())).unwrap();
    let path = model(root.path());
    let load = |context| {
        let load = LoadOptions {
            context,
            ..LoadOptions::default()
        };
        registry
            .load(
                &path,
                &ModelOptions {
                    load,
                    ..ModelOptions::default()
                },
            )
            .unwrap()
            .info()
            .loaded_context
    };
    assert_eq!((load(None), load(Some(9000))), (100, 9000));
    assert_eq!(
        (
            default_context(50, 100),
            default_context(0, 100),
            default_context(u64::MAX, 100)
        ),
        (50, 100, 100)
    );
}

#[test]
fn falls_are_told_in_the_reply_and_pins_do_not_fall() {
    let root = tempfile::tempdir().unwrap();
    let registry = registry(root.path(), "order = [\"rocm\", \"echo\"]");
    registry
        .register(echo(
            "rocm",
            Verdict::unavailable(VerdictState::NoDevice, "no GPU", "fit one"),
        ))
        .unwrap();
    registry.register(echo("echo", ready())).unwrap();
    registry.register(echo("third", ready())).unwrap();
    let path = model(root.path());
    let loaded = registry.load(&path, &ModelOptions::default()).unwrap();
    let request = GenerateRequest {
        prompt: Prompt::text("a"),
        options: GenerateOptions::default(),
    };
    let reply = loaded
        .generate(&request, &mut |_: Event<'_>| Control::Continue)
        .unwrap();
    assert_eq!(
        reply.notice.as_deref(),
        Some("`rocm` is preferred, but no device: no GPU (fit one); using `echo` instead")
    );
    let pin = |name: &str| {
        let options = ModelOptions {
            backend: Some(name.to_owned()),
            ..ModelOptions::default()
        };
        registry.load(&path, &options)
    };
    let error = pin("ROCM").unwrap_err();
    assert_eq!(error.exit_code(), 3);
    assert!(
        error.line().contains("no GPU") && error.trace().is_some(),
        "{}",
        error.line()
    );
    assert_eq!(
        pin("Third").unwrap().backend(),
        "third",
        "a pin reaches beyond the order"
    );
    let error = pin("rocmm").unwrap_err();
    assert_eq!(
        (error.exit_code(), error.line().as_str()),
        (2, "no backend is named `rocmm` (did you mean `rocm`?)")
    );
    let deny = ModelOptions {
        fallback: Some(Fallback::Deny),
        ..ModelOptions::default()
    };
    assert_eq!(registry.load(&path, &deny).unwrap_err().exit_code(), 3);
    assert_eq!(registry.default().unwrap().name, "echo");
}

#[test]
fn a_load_that_fails_is_the_backends_failure() {
    let root = tempfile::tempdir().unwrap();
    let registry = registry(root.path(), "");
    registry.register(echo("echo", ready())).unwrap();
    let load = LoadOptions {
        device: Some("full".into()),
        ..LoadOptions::default()
    };
    let options = ModelOptions {
        load,
        ..ModelOptions::default()
    };
    let error = registry.load(&model(root.path()), &options).unwrap_err();
    assert_eq!(
        (error.exit_code(), error.to_string().as_str()),
        (5, "echo: needs 9 GiB")
    );
}

#[test]
fn asked_once_and_a_panic_is_a_verdict() {
    let root = tempfile::tempdir().unwrap();
    let registry = registry(root.path(), "");
    let backend = echo("echo", ready());
    registry.register(backend.clone()).unwrap();
    registry.all();
    registry.list();
    registry.default().unwrap();
    assert_eq!(backend.asked.load(Ordering::SeqCst), 1);
    assert!(
        registry
            .register(backend)
            .unwrap_err()
            .line()
            .contains("registered already")
    );
    let bad = Echo {
        name: "bad",
        verdict: ready(),
        takes: true,
        panics: true,
        asked: AtomicUsize::new(0),
    };
    let plugin = registry.register(Arc::new(bad)).unwrap();
    assert_eq!(plugin.verdict.state, VerdictState::Crashed);
    assert_eq!(registry.list().len(), 1);
    assert_eq!(registry.device_info().len(), 1);
}

#[test]
fn other_formats_and_no_backend_at_all() {
    let root = tempfile::tempdir().unwrap();
    let empty = registry(root.path(), "");
    let path = model(root.path());
    let error = empty.load(&path, &ModelOptions::default()).unwrap_err();
    assert_eq!(error.exit_code(), 3);
    assert!(
        error
            .line()
            .contains("not installed: metal, rocm, cuda, sycl, llama_cpp"),
        "{}",
        error.line()
    );
    let picky = Echo {
        name: "picky",
        verdict: ready(),
        takes: false,
        panics: false,
        asked: AtomicUsize::new(0),
    };
    empty.register(Arc::new(picky)).unwrap();
    let error = empty.load(&path, &ModelOptions::default()).unwrap_err();
    assert_eq!(error.exit_code(), 4);
    assert!(matches!(&empty.inspect(Path::new(&path))[..], [(name, Ok(None))] if name == "picky"));
    let trace = empty
        .explain(Some(&path), &ModelOptions::default())
        .unwrap();
    assert_eq!(trace.chosen, None);
    assert_eq!(
        empty
            .explain(None, &ModelOptions::default())
            .unwrap()
            .chosen
            .as_deref(),
        Some("picky")
    );
}

#[test]
fn files_that_are_no_modules_have_verdicts_and_disabled_ones_are_not_opened() {
    let root = tempfile::tempdir().unwrap();
    put(root.path().join("plugins/libbackplane_text.so"));
    put(root.path().join("plugins/off.so"));
    put(root.path().join("plugins/readme.txt"));
    let manifest = "order = [\"rocm\", \"*\"]\n[plugin.off]\nenabled = false\n[plugin.gone]\npath = \"x/gone.so\"\n[plugin.lost]\n";
    let registry = registry(root.path(), manifest);
    let states: Vec<(String, VerdictState)> = registry
        .all()
        .into_iter()
        .map(|plugin| (plugin.name, plugin.verdict.state))
        .collect();
    let expected = [
        ("gone", VerdictState::Absent),
        ("lost", VerdictState::Absent),
        ("off", VerdictState::Disabled),
        ("rocm", VerdictState::Absent),
        ("text", VerdictState::Incompatible),
    ];
    assert_eq!(
        states,
        expected.map(|(name, state)| (name.to_owned(), state))
    );
    let lost = registry.get("LOST").unwrap().verdict.message;
    assert!(
        lost.contains(&root.path().join("plugins").display().to_string()),
        "{lost}"
    );
}

#[test]
fn without_discovery_only_entries_count() {
    let root = tempfile::tempdir().unwrap();
    put(root.path().join("plugins/a.so"));
    put(root.path().join("plugins/b.so"));
    let registry = registry(
        root.path(),
        "discover = false\norder = [\"*\"]\n[plugin.b]\n",
    );
    let names: Vec<String> = registry
        .all()
        .into_iter()
        .map(|plugin| plugin.name)
        .collect();
    assert_eq!(names, ["b"]);
}

#[test]
fn file_names_give_plugin_names() {
    let name = |file: &str| discover::module_name(Path::new(file));
    for file in [
        "cpu.so",
        "libcpu.so",
        "libbackplane_cpu.so",
        "backplane-cpu.dll",
        "LibBackplane_CPU.DYLIB",
    ] {
        assert_eq!(name(file).as_deref(), Some("cpu"), "{file}");
    }
    assert_eq!(name("llama-cpp.so").as_deref(), Some("llama_cpp"));
    assert_eq!(
        (name("cpu.txt"), name("cpu"), name("lib.so")),
        (None, None, None)
    );
}

#[test]
fn an_embedded_backend_wins_over_a_module_of_its_name() {
    let root = tempfile::tempdir().unwrap();
    put(root.path().join("plugins/echo.so"));
    let registry = registry(root.path(), "order = [\"*\"]");
    registry.register(echo("echo", ready())).unwrap();
    let all = registry.all();
    assert_eq!(all.len(), 2);
    assert!(
        all[0].verdict.is_available() && all[1].verdict.message.contains("duplicate"),
        "{all:?}"
    );
    assert_eq!(
        registry
            .explain(None, &ModelOptions::default())
            .unwrap()
            .candidates
            .len(),
        1
    );
}
