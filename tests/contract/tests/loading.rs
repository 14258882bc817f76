//! Modules of every kind, well-behaved and hostile: each verdict in one line, and the rest work.

#![allow(clippy::unwrap_used)] // Here an unwrap is an assertion.

use backplane::loader::{LoadRequest, LoadedPlugin, TracingServices, open};
use backplane_contract_tests::{aborting_module_path, module_path};
use backplane_echo_engine::{CAPABILITY, EchoCapability};
use backplane_plugin_api::abi::abi_stable::std_types::RString;
use backplane_plugin_api::import::HostServices;
use backplane_plugin_api::{
    BatchSink, ChatMessage, ChatRequest, ClassifyRequest, Context, Control, ErrorCode, Event,
    FinishReason, GenerateOptions, GenerateRequest, LoadOptions, Prompt, Sampling, TextModel,
    Verdict, VerdictState,
};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex};
use tempfile::TempDir;

const ECHO: &str = "backplane-module-echo-a";

fn open_with(
    path: &Path,
    options: serde_json::Value,
    sha256: Option<&str>,
) -> Result<LoadedPlugin, Verdict> {
    let options = options
        .as_object()
        .expect("options are an object")
        .clone()
        .into_iter()
        .collect();
    let module_dir = path.parent().unwrap_or(Path::new("")).to_owned();
    let request = LoadRequest {
        path,
        context: Context {
            options,
            module_dir,
        },
        sha256,
    };
    open(
        &request,
        Arc::new(TracingServices {
            plugin: "test".into(),
        }),
    )
}

fn open_plain(path: &Path) -> Result<LoadedPlugin, Verdict> {
    open_with(path, serde_json::json!({}), None)
}

/// A folder with a model, and room for modules.
struct Room {
    folder: TempDir,
}

impl Room {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("model.echo"), "anything").unwrap();
        Self { folder }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// A module of its own instance: a copy of the package's.
    fn copy(&self, package: &str) -> PathBuf {
        let path = self.path(&format!("{package}.so"));
        fs::copy(module_path(package), &path).unwrap();
        path
    }

    fn model(&self, plugin: &LoadedPlugin) -> Arc<dyn TextModel> {
        plugin
            .backend
            .load(&self.path("model.echo"), &LoadOptions::default())
            .unwrap()
    }

    /// A shared library of C.
    fn compile(&self, name: &str, source: &str, flags: &[&str]) -> PathBuf {
        let (c, so) = (
            self.path(&format!("{name}.c")),
            self.path(&format!("{name}.so")),
        );
        fs::write(&c, source).unwrap();
        let status = Command::new("cc")
            .args(["-shared", "-fPIC", "-o"])
            .arg(&so)
            .arg(&c)
            .arg(format!("-L{}", self.folder.path().display()))
            .args(flags)
            .status()
            .expect("a C compiler is there, as Rust's linker");
        assert!(status.success());
        so
    }
}

fn greedy() -> GenerateOptions {
    GenerateOptions {
        sampling: Sampling {
            temperature: Some(0.0),
            ..Sampling::default()
        },
        ..GenerateOptions::default()
    }
}

fn say(model: &dyn TextModel, text: &str) -> backplane_plugin_api::Result<String> {
    let mut said = String::new();
    let request = GenerateRequest {
        prompt: Prompt::text(text),
        options: greedy(),
    };
    model.generate(&request, &mut |event: Event<'_>| {
        if let Event::Token { text, .. } | Event::Text { text } = event {
            said.push_str(text);
        }
        Control::Continue
    })?;
    Ok(said)
}

#[test]
fn a_module_does_all_that_a_backend_does() {
    let room = Room::new();
    let plugin = open_plain(&module_path(ECHO)).unwrap();
    assert_eq!(
        (plugin.name.as_str(), plugin.version.as_str()),
        ("echo_a", env!("CARGO_PKG_VERSION"))
    );
    assert_eq!(
        plugin.contract_version,
        backplane_plugin_api::abi::CONTRACT_VERSION
    );
    assert!(plugin.rustc.starts_with("rustc 1."), "{}", plugin.rustc);
    let backend = &plugin.backend;
    assert_eq!(
        (backend.name(), backend.version()),
        (plugin.name.clone(), plugin.version.clone())
    );
    assert!(backend.probe().is_available());
    let devices = backend.devices().unwrap();
    assert_eq!(
        (devices[0].id.as_str(), devices[0].memory_total),
        ("echo", Some(1 << 30))
    );
    assert_eq!(devices[0].details["walls"], "4");
    assert_eq!(backend.inspect(Path::new("model.gguf")).unwrap(), None);
    let info = backend.inspect(&room.path("model.echo")).unwrap().unwrap();
    assert_eq!(
        (info.format.as_str(), info.file_bytes, info.loaded_context),
        ("echo", 8, 0)
    );
    assert_eq!(info.path, room.path("model.echo"));
    assert_eq!(
        backend.inspect(&room.path("gone.echo")).unwrap_err().code,
        ErrorCode::ModelUnusable
    );

    let model = room.model(&plugin);
    assert_eq!(model.info().loaded_context, 4096);
    assert_eq!(say(&*model, "héllo 😊").unwrap(), "héllo 😊");
    let chat = ChatRequest {
        messages: vec![ChatMessage::new("user", "hi")],
        options: greedy(),
        ..ChatRequest::default()
    };
    assert_eq!(model.render_chat(&chat).unwrap(), "user: hi\n");
    let done = model
        .chat(&chat, &mut |_: Event<'_>| Control::Continue)
        .unwrap();
    assert_eq!(
        (done.finish_reason, done.completion_tokens),
        (FinishReason::Stop, 9)
    );
    let odd = ChatRequest {
        messages: vec![ChatMessage::new("wizard", "hi")],
        ..ChatRequest::default()
    };
    assert_eq!(
        model.render_chat(&odd).unwrap_err().code,
        ErrorCode::TemplateRefused
    );
    let request = ClassifyRequest {
        prompts: vec![
            Prompt::text("abc"),
            Prompt::Tokens(vec![9999]),
            Prompt::Tokens(vec![98]),
        ],
        top: 2,
        logits: true,
        extra: Default::default(),
    };
    let answers = model.classify(&request).unwrap();
    assert_eq!(answers[0].as_ref().unwrap().top[0].text, "a");
    assert!(
        answers[1].as_ref().unwrap_err().message.contains("9999"),
        "its own error"
    );
    assert_eq!(
        answers[2].as_ref().unwrap().logits.as_ref().unwrap().len(),
        258
    );
    let tokens = model.tokenize("<begin>é", true, true).unwrap();
    assert_eq!(tokens, [256, 256, 0xc3, 0xa9]);
    assert_eq!(
        model.detokenize(&tokens, true).unwrap(),
        "<begin><begin>é".as_bytes()
    );
    assert!(model.metrics()["tokens_generated_total"] > 0.0);
    model.close().unwrap();
    model.close().unwrap();
    assert_eq!(say(&*model, "x").unwrap_err().code, ErrorCode::Closed);
}

#[test]
fn a_batch_keeps_requests_apart() {
    #[derive(Default)]
    struct Texts([String; 3]);
    impl BatchSink for Texts {
        fn on_event(&mut self, index: usize, event: Event<'_>) -> Control {
            if let Event::Token { text, .. } | Event::Text { text } = event {
                self.0[index].push_str(text);
            }
            if index == 2 && self.0[2].len() == 3 {
                Control::Stop
            } else {
                Control::Continue
            }
        }
    }
    let room = Room::new();
    let model = room.model(&open_plain(&module_path(ECHO)).unwrap());
    let request = |text: &str| GenerateRequest {
        prompt: Prompt::text(text),
        options: greedy(),
    };
    let bad = GenerateRequest {
        prompt: Prompt::Tokens(vec![999]),
        options: greedy(),
    };
    let mut texts = Texts::default();
    let results = model
        .batch_generate(&[request("one"), bad, request("three")], &mut texts)
        .unwrap();
    assert_eq!(texts.0, ["one", "", "thr"]);
    assert_eq!(
        results[0].as_ref().unwrap().finish_reason,
        FinishReason::Stop
    );
    assert_eq!(
        results[1].as_ref().unwrap_err().code,
        ErrorCode::InvalidRequest
    );
    assert_eq!(
        results[2].as_ref().unwrap().finish_reason,
        FinishReason::Cancelled
    );
}

#[test]
fn three_modules_of_one_type() {
    let room = Room::new();
    let packages = [
        "backplane-module-echo-a",
        "backplane-module-echo-b",
        "backplane-module-echo-c",
    ];
    let plugins: Vec<_> = packages
        .iter()
        .map(|package| open_plain(&module_path(package)).unwrap())
        .collect();
    let names: Vec<_> = plugins.iter().map(|plugin| plugin.name.as_str()).collect();
    assert_eq!(names, ["echo_a", "echo_b", "echo_c"]);
    for plugin in &plugins {
        assert_eq!(plugin.backend.name(), plugin.name);
        assert_eq!(say(&*room.model(plugin), "all three").unwrap(), "all three");
    }
}

#[test]
fn one_file_by_two_links_is_one_plugin_by_name() {
    let room = Room::new();
    let file = room.copy(ECHO);
    let link = room.path("link.so");
    std::os::unix::fs::symlink(&file, &link).unwrap();
    let (first, second) = (open_plain(&file).unwrap(), open_plain(&link).unwrap());
    assert_eq!(
        (&first.name, &first.path),
        (&second.name, &second.path),
        "so that a registry can see the duplicate"
    );
    assert_eq!(say(&*room.model(&second), "still").unwrap(), "still");
}

#[test]
fn each_hostile_file_has_its_verdict_in_one_line() {
    let room = Room::new();
    let whole = fs::read(module_path(ECHO)).unwrap();
    let write = |name: &str, bytes: &[u8]| {
        fs::write(room.path(name), bytes).unwrap();
        room.path(name)
    };
    let mut other_machine = whole.clone();
    other_machine[18] = if other_machine[18] == 183 { 62 } else { 183 };

    room.compile(
        "libgone_away",
        "int gone(void) { return 1; }",
        &["-Wl,-soname,libgone_away.so.7"],
    );
    let needs_library = room.compile(
        "needs_library",
        "int gone(void); int f(void) { return gone(); }",
        &["-lgone_away"],
    );
    fs::remove_file(room.path("libgone_away.so")).unwrap();
    let needs_symbol = room.compile(
        "needs_symbol",
        "int no_such_symbol(void); int f(void) { return no_such_symbol(); }",
        &[],
    );
    let no_root = room.compile("no_root", "int f(void) { return 7; }", &[]);
    let abort = room.path("abort.so");
    fs::copy(aborting_module_path("backplane-module-abort"), &abort).unwrap();

    use VerdictState::{Absent, Incompatible, MissingLibrary, Untrusted};
    let cases = [
        (room.path("gone.so"), None, Absent, "no such file"),
        (
            room.folder.path().to_owned(),
            None,
            Incompatible,
            "a directory",
        ),
        (
            write("text.so", b"just words\n"),
            None,
            Incompatible,
            "a text file; expected a plugin module",
        ),
        (
            write("empty.so", b""),
            None,
            Incompatible,
            "an empty file; expected a plugin module",
        ),
        (
            write("zeros.so", &[0; 4096]),
            None,
            Incompatible,
            "a file of zeros",
        ),
        (
            write("half.so", &whole[..whole.len() / 2]),
            None,
            Incompatible,
            "truncated: ",
        ),
        (
            write("header.so", &whole[..20]),
            None,
            Incompatible,
            "truncated: the ELF header",
        ),
        (
            write("machine.so", &other_machine),
            None,
            Incompatible,
            "; this machine is",
        ),
        (
            write("windows.so", b"MZ\x90\0\x03"),
            None,
            Incompatible,
            "a Windows (PE) file",
        ),
        (
            needs_library,
            None,
            MissingLibrary,
            "needs the library libgone_away.so.7",
        ),
        (
            needs_symbol,
            None,
            Incompatible,
            "needs the symbol no_such_symbol",
        ),
        (no_root, None, Incompatible, "not a Backplane plugin"),
        (abort, None, Incompatible, "panic = \"abort\""),
        (
            module_path(ECHO),
            Some("00".repeat(32)),
            Untrusted,
            "the manifest pins 0000",
        ),
    ];
    for (path, pin, state, words) in cases {
        let verdict = open_with(&path, serde_json::json!({}), pin.as_deref()).expect_err(words);
        assert_eq!(verdict.state, state, "{verdict}");
        assert!(verdict.message.contains(words), "{verdict}");
        assert!(
            verdict
                .message
                .contains(path.file_name().unwrap().to_str().unwrap()),
            "names the file: {verdict}"
        );
        assert!(
            !verdict.to_string().contains('\n') && verdict.to_string().len() < 400,
            "one line: {verdict}"
        );
        assert!(!verdict.action.is_empty(), "says what to do: {verdict}");
    }
    // The rest work.
    let plugin = open_plain(&module_path(ECHO)).unwrap();
    assert_eq!(say(&*room.model(&plugin), "alive").unwrap(), "alive");
}

#[test]
fn every_cut_of_a_module_is_refused() {
    let room = Room::new();
    let whole = fs::read(module_path(ECHO)).unwrap();
    for part in 0..16 {
        let path = room.path(&format!("cut_{part}.so"));
        fs::write(&path, &whole[..(whole.len() - 1) * part / 15]).unwrap();
        assert_eq!(
            open_plain(&path).unwrap_err().state,
            VerdictState::Incompatible,
            "part {part} of 15"
        );
        fs::remove_file(&path).unwrap();
    }
}

#[test]
fn panics_stay_in_the_module() {
    let room = Room::new();
    let module = module_path("backplane-module-panics");
    let panicking =
        |call: &str| open_with(&module, serde_json::json!({ "panic_in": [call] }), None);

    let verdict = panicking("new").unwrap_err();
    assert_eq!(verdict.state, VerdictState::Crashed);
    assert!(
        verdict
            .message
            .contains("plugin panics panicked in new_backend: told to panic in new"),
        "{verdict}"
    );

    let verdict = panicking("probe").unwrap().backend.probe();
    assert_eq!(verdict.state, VerdictState::Crashed);
    assert!(
        verdict.message.contains("told to panic in probe"),
        "{verdict}"
    );
    assert!(
        panicking("devices")
            .unwrap()
            .backend
            .devices()
            .unwrap_err()
            .message
            .contains("told to panic in devices")
    );

    let plugin = panicking("load").unwrap();
    let error = plugin
        .backend
        .load(&room.path("model.echo"), &LoadOptions::default())
        .err()
        .unwrap();
    assert_eq!(error.code, ErrorCode::Panicked);
    assert!(plugin.backend.probe().is_available(), "the next call works");

    for call in ["generate", "decode"] {
        let model = room.model(&panicking(call).unwrap());
        for _ in 0..2 {
            let error = say(&*model, "x").unwrap_err();
            assert_eq!(error.code, ErrorCode::Panicked);
            assert!(
                error.message.contains(&format!("told to panic in {call}")),
                "{error}"
            );
        }
        assert_eq!(
            model.tokenize("ok", false, false).unwrap(),
            [111, 107],
            "the next call works"
        );
    }
    let model = room.model(&panicking("metrics").unwrap());
    assert!(model.metrics().is_empty());
}

#[test]
fn a_panic_in_the_callers_sink_is_the_calls_error() {
    let room = Room::new();
    let model = room.model(&open_plain(&module_path(ECHO)).unwrap());
    let request = GenerateRequest {
        prompt: Prompt::text("hello"),
        options: greedy(),
    };
    let mut events = 0;
    let error = model
        .generate(&request, &mut |event: Event<'_>| {
            events += 1;
            if matches!(event, Event::Token { .. }) {
                panic!("sink of the test");
            }
            Control::Continue
        })
        .unwrap_err();
    assert!(
        error.message.contains("sink panicked: sink of the test"),
        "{error}"
    );
    assert_eq!(events, 2, "one prefill, one token, none after the panic");
    assert_eq!(say(&*model, "next").unwrap(), "next");
}

#[test]
fn wrong_options_are_told_by_the_probe() {
    let plugin = open_with(
        &module_path(ECHO),
        serde_json::json!({ "colour": "red" }),
        None,
    )
    .unwrap();
    let verdict = plugin.backend.probe();
    assert_eq!(verdict.state, VerdictState::Misconfigured);
    assert!(verdict.message.contains("options.colour"), "{verdict}");
}

#[test]
fn capabilities_are_checked_one_by_one() {
    let room = Room::new();
    let plugin = open_plain(&module_path(ECHO)).unwrap();
    let model = room.model(&plugin);
    assert!(plugin.backend.capability("echo/2").is_none());
    assert!(model.capability("train/1").is_none());
    for capability in [
        plugin.backend.capability(CAPABILITY),
        model.capability(CAPABILITY),
    ] {
        let echo = capability.unwrap().take::<EchoCapability>().unwrap();
        assert_eq!((echo.twice)(21), 42);
    }
    let error = plugin
        .backend
        .capability(CAPABILITY)
        .unwrap()
        .take::<RString>()
        .err()
        .unwrap();
    assert!(!error.to_string().contains('\n'), "one line: {error}");
    assert!(
        error.to_string().len() < 500 && error.to_string().contains("RString"),
        "{error}"
    );
    assert_eq!(
        say(&*model, "costs nothing else").unwrap(),
        "costs nothing else"
    );
}

#[test]
fn logs_reach_the_host_when_it_wants_them() {
    #[derive(Default)]
    struct Records(Mutex<Vec<String>>);
    impl HostServices for Records {
        fn log_enabled(&self, level: tracing::Level, _target: &str) -> bool {
            level <= tracing::Level::INFO
        }
        fn log(&self, level: tracing::Level, target: &str, message: &str, place: &str) {
            self.0.lock().unwrap().push(format!(
                "{level} {target} {message} {}",
                place.contains("lib.rs:")
            ));
        }
    }
    let room = Room::new();
    let path = room.copy(ECHO);
    let records = Arc::new(Records::default());
    let request = LoadRequest {
        path: &path,
        context: Context::default(),
        sha256: None,
    };
    open(&request, records.clone()).unwrap();
    let records = records.0.lock().unwrap();
    assert_eq!(
        *records,
        ["INFO backplane_echo_engine echo backend made plugin=\"echo_a\" true"],
        "and not the debug line"
    );
}

#[test]
fn calls_may_come_from_many_threads() {
    let room = Room::new();
    let model = room.model(&open_plain(&module_path(ECHO)).unwrap());
    std::thread::scope(|scope| {
        for thread in 0..8 {
            let model = &model;
            scope.spawn(move || {
                let text = format!("thread {thread}");
                for _ in 0..50 {
                    assert_eq!(say(&**model, &text).unwrap(), text);
                }
            });
        }
    });
}
