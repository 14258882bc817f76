//! The C door: the sample backend conforms, wrong tables are told apart, and structures may grow on either side.

#![allow(clippy::unwrap_used)] // Here an unwrap is an assertion.
#![cfg(unix)]

use backplane::loader::{LoadRequest, LoadedPlugin, TracingServices, open};
use backplane_contract_tests::{c_module, c_sample, workspace_root};
use backplane_plugin_api::c;
use backplane_plugin_api::*;
use backplane_test_kit::{Options, Outcome, run};
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use tempfile::TempDir;

fn load(path: &Path) -> std::result::Result<LoadedPlugin, Verdict> {
    let request = LoadRequest {
        path,
        context: Context::default(),
        sha256: None,
    };
    let plugin = "dice".into();
    open(&request, Arc::new(TracingServices { plugin }))
}

fn model(folder: &TempDir) -> PathBuf {
    let path = folder.path().join("model.dice");
    std::fs::write(&path, "anything").unwrap();
    path
}

fn check_conforms(plugin: &LoadedPlugin) {
    let folder = tempfile::tempdir().unwrap();
    let report = run(&plugin.backend, &model(&folder), &Options::default());
    assert!(report.passed(), "{report}");
    // A door has no capabilities yet; all else applies.
    let applies =
        |name: &str| ["chats", "classifies", "logprobs_given", "context_bounds"].contains(&name);
    for result in &report.results {
        let skipped = matches!(result.outcome, Outcome::NotApplicable(_));
        assert!(!(skipped && applies(result.name)), "{report}");
    }
}

#[test]
fn the_sample_conforms() {
    let plugin = load(&c_sample()).unwrap();
    assert_eq!((&*plugin.name, &*plugin.version), ("dice", "1.0.0"));
    assert_eq!(plugin.contract_version, "1.0 (C)");
    check_conforms(&plugin);
}

fn hostile(case: u32) -> std::result::Result<LoadedPlugin, Verdict> {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    let built = BUILT.get_or_init(|| {
        let source = workspace_root().join("tests/contract/tests/c_door/hostile.cpp");
        let header = workspace_root().join("plugin-api/c");
        c_module("hostile", &source, &header, &[])
    });
    // What is opened stays open without its name.
    let folder = tempfile::tempdir().unwrap();
    let module = folder.path().join(format!("hostile-{case}.so"));
    std::fs::copy(built, &module).unwrap();
    load(&module)
}

#[test]
fn wrong_tables_are_refused_in_one_line() {
    for (case, part) in [
        (1, "does not work with version 1.0 of the C door"),
        (
            2,
            "built against version 2.0 of the C door; this host has 1.0",
        ),
        (3, "has no function `error_free`"),
        (4, "has no function `model_chat`"),
        (5, "its name is not UTF-8"),
        (6, "states the name \"Loaded Dice\""),
        (7, "it made no backend"),
    ] {
        let verdict = hostile(case).unwrap_err();
        assert!(verdict.message.contains(part), "{case}: {verdict}");
        assert_eq!(verdict.message.lines().count(), 1, "{case}: {verdict}");
        assert!(!verdict.is_available());
    }
}

fn generate(plugin: &LoadedPlugin, stop: Vec<String>) -> Result<(Completion, usize)> {
    let folder = tempfile::tempdir().unwrap();
    let model = plugin
        .backend
        .load(&model(&folder), &LoadOptions::default())?;
    let request = GenerateRequest {
        prompt: Prompt::text("one two"),
        options: GenerateOptions {
            max_tokens: Some(5),
            stop,
            ..GenerateOptions::default()
        },
    };
    let mut events = 0;
    let done = model.generate(&request, &mut |_: Event<'_>| {
        events += 1;
        Control::Continue
    })?;
    Ok((done, events))
}

#[test]
fn what_a_backend_tells_is_checked() {
    for (case, state, part) in [
        (8, VerdictState::Crashed, "told nothing"),
        (9, VerdictState::Crashed, "not UTF-8"),
        (10, VerdictState::Incompatible, "new"),
    ] {
        let verdict = hostile(case).unwrap().backend.probe();
        assert_eq!(verdict.state, state, "{case}: {verdict}");
        assert!(verdict.message.contains(part), "{case}: {verdict}");
    }
    for (case, code, part) in [
        (11, ErrorCode::Internal, "not UTF-8"),
        (13, ErrorCode::Internal, "stop string 99 of 1"),
        (14, ErrorCode::Panicked, "two lines"),
        (15, ErrorCode::Internal, "made no model"),
    ] {
        let plugin = hostile(case).unwrap();
        let error = generate(&plugin, vec!["x".into()]).unwrap_err();
        assert_eq!(error.code, code, "{case}: {error}");
        assert!(error.message.contains(part), "{case}: {error}");
    }
    let (done, events) = generate(&hostile(12).unwrap(), vec![]).unwrap();
    assert_eq!(
        (done.completion_tokens, events),
        (5, 6),
        "an event of a later version is passed over"
    );
}

/// The header as a later minor version might have it: structures and the table have grown.
fn grown_header(folder: &Path) {
    let header =
        std::fs::read_to_string(workspace_root().join("plugin-api/c/backplane_plugin.h")).unwrap();
    let mut grown = header.replace("#define BACKPLANE_MINOR 0u", "#define BACKPLANE_MINOR 1");
    for name in [
        "backplane_device",
        "backplane_model_info",
        "backplane_event",
        "backplane_completion",
        "backplane_options",
    ] {
        let end = format!("}} {name};");
        assert!(grown.contains(&end), "{name}");
        grown = grown.replace(&end, &format!("  uint64_t new_member[3];\n{end}"));
    }
    grown = grown.replace(
        "} backplane_api_v1;",
        "  void (*new_function)(void);\n} backplane_api_v1;",
    );
    std::fs::write(folder.join("backplane_plugin.h"), grown).unwrap();
}

#[test]
fn a_newer_plugin_works() {
    let folder = tempfile::tempdir().unwrap();
    grown_header(folder.path());
    let source = workspace_root().join("plugin-api/c/sample/dice.cpp");
    // Members that it sets to nothing are what it does not know of its own header.
    let module = c_module(
        "dice-newer",
        &source,
        folder.path(),
        &["-Wno-missing-field-initializers"],
    );
    let plugin = load(&module).unwrap();
    assert_eq!(plugin.contract_version, "1.1 (C)");
    check_conforms(&plugin);
}

#[test]
fn structures_of_other_sizes_are_read_as_far_as_they_go() {
    // From an older plugin: what it does not have is empty.
    let text = |text: &'static str| c::Text::of(text.as_bytes());
    // SAFETY: zeros are a value of it.
    let mut device: c::Device = unsafe { std::mem::zeroed() };
    device.struct_size = std::mem::offset_of!(c::Device, kind);
    (device.id, device.name, device.kind) = (text("a"), text("b"), text("c"));
    // SAFETY: all of it can be read.
    let read = unsafe { c::prefix(&raw const device) };
    // SAFETY: the texts are static.
    let texts = unsafe { [read.id.bytes(), read.name.bytes(), read.kind.bytes()] };
    assert_eq!(texts, [&b"a"[..], b"b", b""]);

    // From a newer one: what is new is not read.
    #[repr(C)]
    struct Newer {
        device: c::Device,
        new_member: u64,
    }
    device.struct_size = size_of::<Newer>();
    let newer = Newer {
        device,
        new_member: 7,
    };
    // SAFETY: all of it can be read.
    let read = unsafe { c::prefix((&raw const newer).cast::<c::Device>()) };
    // SAFETY: the text is static.
    let kind = unsafe { read.kind.bytes() };
    assert_eq!((kind, newer.new_member), (&b"c"[..], 7));
}
