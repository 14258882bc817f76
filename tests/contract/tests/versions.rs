//! Version skew: the contract as its next minor and next major version would be, built from this checkout's sources with
//! the growth that its rules allow, against the contract as it is.

#![allow(clippy::unwrap_used)] // Here an unwrap is an assertion.

use backplane::loader::{LoadRequest, LoadedPlugin, TracingServices, open};
use backplane_contract_tests::{build, module_path, target_dir, workspace_root};
use backplane_plugin_api::abi::CONTRACT_VERSION;
use backplane_plugin_api::{
    Context, Control, EmbedRequest, ErrorCode, Event, FinishReason, GenerateOptions,
    GenerateRequest, LoadOptions, Pooling, Prompt, Sampling, Unwatched, VerdictState, capability,
};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, OnceLock};

/// What the next minor version adds, each where the rules of growth allow it: file, text that is there (`…` in it stands
/// for any), text instead.
const GROWTH: &[(&str, &str, &str)] = &[
    // A field of the root module.
    (
        "src/abi.rs",
        "// Fields of later minor versions go here.",
        "/// Where to read more.\n    pub homepage: RStr<'static>,",
    ),
    (
        "src/export.rs",
        "                    new_backend,\n",
        "                    new_backend,\n homepage: \"https://example.org\".into(),\n",
    ),
    // A method of the backend, which hosts call, with a default for modules that lack it.
    (
        "src/abi/traits.rs",
        "// Methods of later minor versions of `Backend` go here, each with a default.",
        "/// A number.\n    fn number(&self) -> u32 { 7 }",
    ),
    (
        "src/export.rs",
        "impl abi::traits::Backend for ExportedBackend {\n",
        "impl abi::traits::Backend for ExportedBackend {\n    fn number(&self) -> u32 { 9 }\n",
    ),
    (
        "src/import.rs",
        "self.object.version().into()",
        "format!(\"{}+number.{}\", self.object.version(), self.object.number())",
    ),
    // A method of the sink, which modules call, with a default for hosts that lack it.
    (
        "src/abi/traits.rs",
        "// Methods of later minor versions of `Sink` go here, each with a default.",
        "/// Whether to stop right now.\n    fn should_stop_now(&self) -> bool { false }",
    ),
    (
        "src/export.rs",
        "        self.sink.should_stop()\n",
        "        self.sink.should_stop() || self.sink.should_stop_now()\n",
    ),
    // A method of a capability, which hosts call.
    (
        "src/abi/capabilities.rs",
        "// Methods of later minor versions of `Embed` go here, each with a default.",
        "/// A number.\n    fn number(&self) -> u32 { 7 }",
    ),
    (
        "src/capability/export.rs",
        "impl data::Embed for Exported<dyn Embed> {\n",
        "impl data::Embed for Exported<dyn Embed> {\n    fn number(&self) -> u32 { 9 }\n",
    ),
    // And what the rules forbid, in another capability: it is to cost that one alone.
    (
        "src/abi/capabilities.rs",
        "        /// `[scored]`, natural logarithms.\n        logprobs: RVec<f32>,\n",
        "        /// `[scored]`, natural logarithms.\n        logprobs: RVec<f64>,\n",
    ),
    (
        "src/capability/crossing.rs",
        "            logprobs: logprobs.into(),\n",
        "            logprobs: logprobs.into_iter().map(f64::from).collect(),\n",
    ),
    (
        "src/capability/crossing.rs",
        "        scores.logprobs.into()\n",
        "        scores.logprobs.into_iter().map(|one| one as f32).collect()\n",
    ),
];

/// The contract as it was in 1.0, without the capabilities of its own, and the engine without what it offers of them.
const BEFORE_CAPABILITIES: &[(&str, &str, &str)] = &[
    ("src/abi.rs", "pub mod capabilities;\n", ""),
    (
        "src/abi/codes.rs",
        "codes! {\n    /// A [`Pooling`]…capability::Pooling::Cls,\n    }\n}\n",
        "",
    ),
    (
        "src/abi/codes.rs",
        "use crate::{capability, types};",
        "use crate::types;",
    ),
    (
        "src/capability.rs",
        "mod attention;\n…pub use score::{SCORE, Score, ScoreRequest};\n",
        "",
    ),
    (
        "src/lib.rs",
        "pub use capability::{\n…\n};\n",
        "pub use capability::{AnyCapability, CapabilityError};\n",
    ),
    ("engine/src/lib.rs", "mod capabilities;\n", ""),
    (
        "engine/src/lib.rs",
        "use backplane_plugin_api::capability::{…};\n",
        "",
    ),
    (
        "engine/src/lib.rs",
        "        let files = ||…            _ => capability(name),\n        }\n",
        "        capability(name)\n",
    ),
    (
        "engine/src/model.rs",
        "use backplane_plugin_api::capability::{…};\n",
        "",
    ),
    (
        "engine/src/model.rs",
        "        let shared = self.shared.clone();\n        match name…            _ => capability(name),\n        }\n",
        "        capability(name)\n",
    ),
];

/// What no minor version may do: two fields of a by-value struct change places.
const BREAKAGE: &[(&str, &str, &str)] = &[(
    "src/abi/data.rs",
    "        /// Its name.\n        name: RString,\n        /// Its value.\n        value: f64,\n",
    "        /// Its value.\n        value: f64,\n        /// Its name.\n        name: RString,\n",
)];

/// A program that opens the module at its first argument with the newer contract, and says what it found.
const DRIVER: &str = r#"
mod loader;
use backplane_plugin_api::abi::{PluginModuleRef, abi_stable::library::lib_header_from_path};
use backplane_plugin_api::*;
use std::sync::Arc;
fn main() {
    let path = std::path::PathBuf::from(std::env::args_os().nth(1).unwrap());
    let request = loader::LoadRequest { path: &path, context: Context::default(), sha256: None };
    let plugin = match loader::open(&request, Arc::new(loader::TracingServices { plugin: "test".into() })) {
        Ok(plugin) => plugin,
        Err(verdict) => return println!("{verdict}"),
    };
    let header = lib_header_from_path(&plugin.path).unwrap();
    let module = unsafe { header.init_root_module_with_unchecked_layout::<PluginModuleRef>() }.unwrap();
    let homepage = module.homepage().map(|text| text.to_string());
    let model = plugin.backend.load(std::env::args_os().nth(2).unwrap().as_ref(), &LoadOptions::default()).unwrap();
    let mut said = String::new();
    let sampling = Sampling { temperature: Some(0.0), ..Sampling::default() };
    let options = GenerateOptions { sampling, ..GenerateOptions::default() };
    let request = GenerateRequest { prompt: Prompt::text("across versions"), options };
    let done = model.generate(&request, &mut |event: Event<'_>| {
        if let Event::Token { text, .. } | Event::Text { text } = event { said.push_str(text); }
        Control::Continue
    }).unwrap();
    println!("{}", embeds(&*model));
    println!("{} {} {} {homepage:?} {said:?} {:?}", plugin.name, plugin.contract_version, plugin.backend.version(), done.finish_reason);
}
fn embeds(model: &dyn TextModel) -> String {
    let Some(object) = model.capability(capability::EMBED) else { return "embeds nothing".into() };
    let number = object.take::<abi::capabilities::EmbedObject>().unwrap().number();
    let request = EmbedRequest { inputs: vec![Prompt::text("a")], pooling: Pooling::Mean, normalize: true, extra: Default::default() };
    let embed = capability::embed(model).unwrap().unwrap();
    let answers = embed.embed(&request, &mut Unwatched).unwrap();
    format!("embeds {} numbers, number {number}", answers[0].as_ref().unwrap().values.len())
}
"#;

struct Skew {
    /// A module of the next minor version.
    newer: PathBuf,
    /// A module of the next major version.
    major: PathBuf,
    /// A module of a minor version that breaks the rules.
    broken: PathBuf,
    /// A module of the contract's first version.
    first: PathBuf,
    /// A host of the next minor version.
    newer_host: PathBuf,
}

fn ours() -> (u64, u64) {
    let mut parts = CONTRACT_VERSION
        .split('.')
        .map(|part| part.parse().unwrap());
    (parts.next().unwrap(), parts.next().unwrap())
}

fn next_minor() -> String {
    format!("{}.{}.0", ours().0, ours().1 + 1)
}

fn broken_minor() -> String {
    format!("{}.{}.0", ours().0, ours().1 + 2)
}

fn first_version() -> String {
    format!("{}.0.0", ours().0)
}

fn next_major() -> String {
    format!("{}.0.0", ours().0 + 1)
}

/// Writes a file unless it has that content already, so that what is built from it stays fresh.
fn put(path: &Path, content: &str) {
    if fs::read_to_string(path).is_ok_and(|now| now == content) {
        return;
    }
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, content).unwrap();
}

/// Copies a folder's files, changed.
fn copy(from: &Path, to: &Path, change: &dyn Fn(&Path, String) -> String) {
    for entry in fs::read_dir(from).unwrap() {
        let path = entry.unwrap().path();
        let target = to.join(path.file_name().unwrap());
        if path.is_dir() {
            copy(&path, &target, change);
        } else {
            put(&target, &change(&path, fs::read_to_string(&path).unwrap()));
        }
    }
}

/// A crate's manifest that stands without the workspace: what it inherits is written out, the contract is at `api`.
fn detached(manifest: &str, version: &str, api: &Path) -> String {
    let root = fs::read_to_string(workspace_root().join("Cargo.toml")).unwrap();
    let api_line = format!("backplane-plugin-api = {{ path = {api:?} }}");
    let inherited = |key: &str| match key {
        "version" => format!("version = {version:?}"),
        "backplane-plugin-api" => api_line.clone(),
        _ => {
            let start = format!("{key} = ");
            root.lines()
                .find(|line| line.starts_with(&start))
                .unwrap_or_else(|| panic!("{key} is not in the workspace"))
                .to_owned()
        }
    };
    let lines = manifest.replace("[lints]\nworkspace = true\n", "");
    lines
        .lines()
        .map(|line| match line.split_once(".workspace = true") {
            Some((key, _)) => inherited(key),
            None if line.contains("workspace = true") => inherited(line.split(' ').next().unwrap()),
            None if line.starts_with("version = ") => format!("version = {version:?}"),
            None => line.to_owned(),
        })
        .map(|line| line + "\n")
        .collect()
}

/// Lays out the contract at `version` and the test plugin's engine on it; gives the engine's folder.
fn contract_at(skew: &Path, version: &str, growth: &[(&str, &str, &str)]) -> PathBuf {
    let root = workspace_root();
    let (api, engine) = (
        skew.join(format!("api-{version}")),
        skew.join(format!("engine-{version}")),
    );
    let change = |name: &str, text: String| {
        let changes = growth.iter().filter(|(file, ..)| *file == name);
        changes.fold(text, |text, (_, before, after)| {
            let (start, end) = before.split_once('…').unwrap_or((before, ""));
            let at = text
                .find(start)
                .unwrap_or_else(|| panic!("{name}: the place to change has moved: {before}"));
            let rest = &text[at + start.len()..];
            let length = rest
                .find(end)
                .unwrap_or_else(|| panic!("{name}: the place to change has moved: {before}"));
            let rest = &rest[length + end.len()..];
            assert!(!rest.contains(start), "{name}: {before} is there twice");
            format!("{}{after}{rest}", &text[..at])
        })
    };
    let source = root.join("plugin-api");
    copy(&source.join("src"), &api.join("src"), &|path, text| {
        change(path.strip_prefix(&source).unwrap().to_str().unwrap(), text)
    });
    put(
        &api.join("build.rs"),
        &fs::read_to_string(source.join("build.rs")).unwrap(),
    );
    let manifest = fs::read_to_string(source.join("Cargo.toml")).unwrap();
    put(&api.join("Cargo.toml"), &detached(&manifest, version, &api));
    let source = root.join("tests/modules/echo");
    copy(&source.join("src"), &engine.join("src"), &|path, text| {
        let name = path.strip_prefix(&source).unwrap().to_str().unwrap();
        change(&format!("engine/{name}"), text)
    });
    let manifest = fs::read_to_string(source.join("Cargo.toml")).unwrap();
    put(
        &engine.join("Cargo.toml"),
        &detached(&manifest, version, &api),
    );
    engine
}

/// Lays out and builds everything, once. One workspace holds all: the packages that share a name differ in version.
fn skew() -> &'static Skew {
    static BUILT: OnceLock<Skew> = OnceLock::new();
    BUILT.get_or_init(|| {
        let root = workspace_root();
        let skew = target_dir().join("contract-skew");
        let workspace = skew.join("workspace");
        let (minor, major, broken, first) = (next_minor(), next_major(), broken_minor(), first_version());
        for (package, version, growth) in [("skew-minor", &minor, GROWTH), ("skew-major", &major, &[][..]), ("skew-broken", &broken, BREAKAGE), ("skew-first", &first, BEFORE_CAPABILITIES)] {
            let engine = contract_at(&skew, version, growth);
            let api = skew.join(format!("api-{version}"));
            put(
                &workspace.join(package).join("Cargo.toml"),
                &format!(
                    "[package]\nname = {package:?}\nversion = \"0.1.0\"\nedition = \"2024\"\n\n[lib]\ncrate-type = [\"cdylib\"]\n\n\
                     [dependencies]\nbackplane-plugin-api = {{ path = {api:?} }}\nbackplane-echo-engine = {{ path = {engine:?} }}\n"
                ),
            );
            put(
                &workspace.join(package).join("src/lib.rs"),
                "use backplane_echo_engine::EchoBackend;\nbackplane_plugin_api::export_plugin! { name: \"skewed\", \
                 backend: |context| EchoBackend::new(\"skewed\", env!(\"CARGO_PKG_VERSION\"), context) }\n",
            );
        }
        let host = fs::read_to_string(root.join("host/Cargo.toml")).unwrap();
        let dependencies: String = host
            .lines()
            .filter(|line| ["libloading", "semver", "serde", "sha2", "tracing."].iter().any(|name| line.starts_with(name)))
            .map(|line| format!("{line}\n"))
            .collect();
        let driver = format!(
            "[package]\nname = \"skew-host\"\nversion = \"0.1.0\"\nedition = \"2024\"\n\n[dependencies]\n\
             backplane-plugin-api.workspace = true\n{dependencies}"
        );
        let api = skew.join(format!("api-{minor}"));
        put(&workspace.join("skew-host/Cargo.toml"), &detached(&driver, "0.1.0", &api));
        put(&workspace.join("skew-host/src/main.rs"), DRIVER);
        copy(&root.join("host/src/loader"), &workspace.join("skew-host/src/loader"), &|_, text| text);
        put(
            &workspace.join("Cargo.toml"),
            "[workspace]\nresolver = \"3\"\nmembers = [\"skew-minor\", \"skew-major\", \"skew-broken\", \"skew-first\", \"skew-host\"]\n\n[profile.dev]\ndebug = false\n\n\
             [profile.dev.package]\nmemchr.opt-level = 1\nserde_json.opt-level = 1\n",
        );
        if !workspace.join("Cargo.lock").exists() {
            // The same versions of everything else.
            fs::copy(root.join("Cargo.lock"), workspace.join("Cargo.lock")).unwrap();
        }
        // What others wrote is what other tests build as well.
        let built = |package| build(&workspace, &target_dir(), package, &["build"], &[]);
        Skew { newer: built("skew-minor"), major: built("skew-major"), broken: built("skew-broken"), first: built("skew-first"), newer_host: built("skew-host") }
    })
}

fn model(folder: &tempfile::TempDir) -> PathBuf {
    let path = folder.path().join("model.echo");
    fs::write(&path, "anything").unwrap();
    path
}

/// What a host of the next minor version says of a module.
fn newer_host_says(module: &Path) -> String {
    let folder = tempfile::tempdir().unwrap();
    let output = Command::new(&skew().newer_host)
        .arg(module)
        .arg(model(&folder))
        .output()
        .unwrap();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

#[test]
fn a_newer_module_works_in_this_host() {
    let request = LoadRequest {
        path: &skew().newer,
        context: Context::default(),
        sha256: None,
    };
    let plugin = open(
        &request,
        Arc::new(TracingServices {
            plugin: "test".into(),
        }),
    )
    .unwrap();
    assert_eq!(
        (plugin.name.as_str(), plugin.contract_version),
        ("skewed", next_minor())
    );
    let folder = tempfile::tempdir().unwrap();
    let loaded = plugin
        .backend
        .load(&model(&folder), &LoadOptions::default())
        .unwrap();
    let mut said = String::new();
    let sampling = Sampling {
        temperature: Some(0.0),
        ..Sampling::default()
    };
    let options = GenerateOptions {
        sampling,
        ..GenerateOptions::default()
    };
    let request = GenerateRequest {
        prompt: Prompt::text("newer"),
        options,
    };
    // The module asks the sink a question that this host's sink does not know: its default answers.
    let done = loaded
        .generate(&request, &mut |event: Event<'_>| {
            if let Event::Token { text, .. } | Event::Text { text } = event {
                said.push_str(text);
            }
            Control::Continue
        })
        .unwrap();
    assert_eq!(
        (said.as_str(), done.finish_reason),
        ("newer", FinishReason::Stop)
    );
}

#[test]
fn an_older_module_works_in_a_newer_host() {
    let said = newer_host_says(&module_path("backplane-module-echo-b"));
    // The module lacks the field and the method: there is no homepage, and the default number.
    let version = env!("CARGO_PKG_VERSION");
    assert_eq!(
        said,
        format!(
            "embeds 8 numbers, number 7\necho_b {CONTRACT_VERSION} {version}+number.7 None \"across versions\" Stop"
        )
    );
}

#[test]
fn what_was_added_works_where_both_have_it() {
    let said = newer_host_says(&skew().newer);
    let homepage = "Some(\"https://example.org\")";
    assert_eq!(
        said,
        format!(
            "embeds 8 numbers, number 9\nskewed {} 0.1.0+number.9 {homepage} \"across versions\" Stop",
            next_minor()
        )
    );
}

fn opened(module: &Path) -> LoadedPlugin {
    let request = LoadRequest {
        path: module,
        context: Context::default(),
        sha256: None,
    };
    let services = TracingServices {
        plugin: "test".into(),
    };
    open(&request, Arc::new(services)).unwrap()
}

#[test]
fn a_module_of_the_first_version_lacks_capabilities_and_nothing_else() {
    let plugin = opened(&skew().first);
    assert_eq!(plugin.contract_version, first_version());
    let folder = tempfile::tempdir().unwrap();
    let model = plugin
        .backend
        .load(&model(&folder), &LoadOptions::default())
        .unwrap();
    assert_eq!(model.tokenize("a", false, false).unwrap(), [97]);
    assert!(matches!(capability::embed(&*model), Ok(None)));
    assert!(matches!(capability::score(&*model), Ok(None)));
    assert!(matches!(capability::attention(&*model), Ok(None)));
    assert!(matches!(capability::check(&*plugin.backend), Ok(None)));
    assert!(matches!(capability::convert(&*plugin.backend), Ok(None)));
    let said = newer_host_says(&skew().first);
    assert!(said.starts_with("embeds nothing\n"), "{said}");
}

#[test]
fn a_capability_may_grow_and_one_of_another_layout_costs_itself_alone() {
    let plugin = opened(&skew().newer);
    let folder = tempfile::tempdir().unwrap();
    let model = plugin
        .backend
        .load(&model(&folder), &LoadOptions::default())
        .unwrap();
    let request = EmbedRequest {
        inputs: vec![Prompt::text("a")],
        pooling: Pooling::Last,
        normalize: false,
        extra: Default::default(),
    };
    let embed = capability::embed(&*model).unwrap().unwrap();
    let answers = embed.embed(&request, &mut Unwatched).unwrap();
    assert_eq!(answers[0].as_ref().unwrap().values.len(), 8);
    let error = capability::score(&*model).err().unwrap();
    assert_eq!(error.code, ErrorCode::Unsupported);
    assert!(
        error.message.starts_with("score/1: ")
            && error.message.ends_with("Expected: f32 Found: f64"),
        "{error}"
    );
    assert!(!error.message.contains('\n') && error.message.len() < 800);
    assert!(matches!(capability::attention(&*model), Ok(Some(_))));
}

#[test]
fn the_next_major_is_refused_with_both_versions() {
    let request = LoadRequest {
        path: &skew().major,
        context: Context::default(),
        sha256: None,
    };
    let verdict = open(
        &request,
        Arc::new(TracingServices {
            plugin: "test".into(),
        }),
    )
    .unwrap_err();
    assert_eq!(verdict.state, VerdictState::Incompatible);
    let both = format!(
        "built against contract {}; this host has contract {CONTRACT_VERSION}",
        next_major()
    );
    assert!(verdict.message.ends_with(&both), "{verdict}");
    assert_eq!(verdict.action, "update Backplane");
}

#[test]
fn another_layout_is_refused_in_one_line() {
    let request = LoadRequest {
        path: &skew().broken,
        context: Context::default(),
        sha256: None,
    };
    let verdict = open(
        &request,
        Arc::new(TracingServices {
            plugin: "test".into(),
        }),
    )
    .unwrap_err();
    assert_eq!(verdict.state, VerdictState::Incompatible);
    let versions = format!(
        "contract {} has another layout than this host's {CONTRACT_VERSION}: ",
        broken_minor()
    );
    assert!(verdict.message.contains(&versions), "{verdict}");
    let line = verdict.message.split(&versions).last().unwrap();
    assert!(
        line.contains("Metric") && line.contains("xpected") && line.contains("ound"),
        "where and what: {verdict}"
    );
    assert!(
        verdict.message.len() < 800 && !verdict.message.contains('\n'),
        "one line: {verdict}"
    );
}
