use super::*;
use crate::folders::Folders;
use expect_test::{Expect, expect};

fn parse(text: &str) -> Result<Manifest, ManifestError> {
    Manifest::parse(text, Path::new("/etc/b/plugins.toml"), Source::Named)
}

fn refused(text: &str, expected: Expect) {
    let error = parse(text).unwrap_err();
    expected.assert_eq(&format!("{error} ({})", error.action));
}

#[test]
fn everything_at_once() {
    let manifest = parse(
        r#"
directories = ["plugins", "/opt/b"]
order = ["CPU", "llama-cpp"]
fallback = "deny"
discover = false
context = 0x200
[plugin.Llama-Cpp]
enabled = false
path = "x/y.so"
sha256 = "B179C9523D0E6A0F98A330C7562B682750A6F8C8C15E5BC70EA373728110DB53"
[plugin.Llama-Cpp.options]
threads = 2
list = [1, { a = 0.5 }]
"#,
    );
    let manifest = manifest.unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(
        manifest.directories,
        [PathBuf::from("/etc/b/plugins"), PathBuf::from("/opt/b")]
    );
    assert_eq!(manifest.order, ["cpu", "llama_cpp"]);
    assert_eq!(
        (manifest.fallback, manifest.discover, manifest.context),
        (Fallback::Deny, false, 512)
    );
    let entry = manifest.plugin("LLAMA_CPP").unwrap();
    assert!(!entry.enabled);
    assert_eq!(entry.path, Some(PathBuf::from("/etc/b/x/y.so")));
    assert!(entry.sha256.as_ref().unwrap().starts_with("b179"));
    assert_eq!(
        serde_json::json!(entry.options),
        serde_json::json!({"threads": 2, "list": [1, {"a": 0.5}]})
    );
}

#[test]
fn limits_of_a_plugin_are_read() {
    let of = |text: &str| {
        let manifest = parse(&format!("[plugin.a]\n{text}"));
        let manifest = manifest.unwrap_or_else(|error| panic!("{error}"));
        manifest.plugin("a").unwrap().clone()
    };
    let entry = of("");
    assert_eq!(entry, PluginEntry::new("a"));
    let entry = of("isolation = \"process\"\nmemory_limit = \"8GiB\"\nwatchdog = \"5s\"");
    assert_eq!(entry.isolation, Some(Isolation::Process));
    assert_eq!(entry.memory_limit, Some(Bytes(8 << 30)));
    let watchdog = Watchdog {
        answer: Limit::seconds(5),
        sign: Limit::seconds(5),
        ..Watchdog::default()
    };
    assert_eq!(entry.watchdog, Some(watchdog));
    let off = Limit(None);
    let watchdog = of("watchdog = \"off\"").watchdog.unwrap();
    assert_eq!(
        [
            watchdog.answer,
            watchdog.load,
            watchdog.sign,
            watchdog.event
        ],
        [off; 4]
    );
    let watchdog = of("watchdog = { load = \"1h\", event = \"off\" }")
        .watchdog
        .unwrap();
    let expected = Watchdog {
        load: Limit::seconds(3600),
        event: off,
        ..Watchdog::default()
    };
    assert_eq!(watchdog, expected);
}

#[test]
fn an_empty_manifest_is_the_defaults() {
    let manifest = parse("").unwrap();
    assert_eq!(manifest.order, DEFAULT_ORDER);
    assert_eq!(manifest.directories, [PathBuf::from("/etc/b/plugins")]);
    assert_eq!(
        (manifest.fallback, manifest.discover, manifest.context),
        (Fallback::Warn, true, 4096)
    );
}

#[test]
fn the_manifest_of_the_repository_states_the_defaults() {
    let text = include_str!("../../../plugins.toml");
    let mut defaults = parse("").unwrap();
    assert!(!defaults.directories_named);
    defaults.directories_named = true;
    let mut stated = parse(text).unwrap();
    assert!(stated.serve.given.is_empty());
    stated.serve = ServeEntry::default();
    defaults.serve = ServeEntry::default();
    assert_eq!(stated, defaults);
    // Settings of the server stand there as comments: what is said once they are none holds anyway.
    let serve = text.split("\n# [serve]\n").nth(1).unwrap();
    let serve = serve.split("\n#\n").next().unwrap();
    for setting in SETTINGS {
        let line = format!("# {} = ", setting.name);
        let line = serve.lines().find_map(|text| text.strip_prefix(&line));
        let line = line.unwrap_or_else(|| panic!("plugins.toml does not show {}", setting.name));
        let mut options = ServeOptions::default();
        let read = parse(&format!("[serve]\n{} = {line}", setting.name));
        let read = read.unwrap_or_else(|error| panic!("{error}"));
        let stated = read.serve.given[setting.name].value.clone();
        if let Some(default) = setting.value(&options) {
            assert_eq!(stated, default, "{}", setting.name);
        }
        setting.put(&mut options, stated);
    }
}

/// The table of settings, as the documentation shows it.
fn table<T>(settings: &[Setting<T>], nothing: &T, variables: bool) -> String {
    let mut text = String::from(if variables {
        "| key | variable, option | takes | default | |\n| --- | --- | --- | --- | --- |\n"
    } else {
        "| key | takes | default | |\n| --- | --- | --- | --- |\n"
    });
    for setting in settings {
        let default = match setting.value(nothing) {
            Some(value) => format!("`{value}`"),
            None => setting.otherwise.to_owned(),
        };
        let ways = match setting.name {
            _ if !variables => String::new(),
            "models" => format!("`{}`, `MODEL…` | ", setting.variable()),
            _ => format!("`{}`, `--{}` | ", setting.variable(), setting.flag()),
        };
        let takes = setting.kind.expected().replace('|', "\\|");
        let (name, about) = (setting.name, setting.about);
        text += &format!("| `{name}` | {ways}{takes} | {default} | {about} |\n");
    }
    text
}

#[test]
fn the_documentation_shows_every_setting() {
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/settings.md");
    let text = std::fs::read_to_string(page).unwrap();
    for table in [
        table(SETTINGS, &ServeOptions::default(), true),
        table(MODEL_SETTINGS, &ServeModel::default(), false),
    ] {
        assert!(
            text.contains(&table),
            "docs/settings.md is to have:\n{table}"
        );
    }
}

#[test]
fn settings_of_the_server_are_read() {
    let manifest = parse(
        r#"
[serve]
models = ["a", "b/c.gguf"]
port = 0
keep_alive = -1
grace = 3
memory = "8GiB"
watch = "off"
pin = false
[serve.model.Small]
model = "models/x.gguf"
aliases = ["gpt-4o-mini"]
pinned = true
keep_alive = "1h"
context = 512
[serve.model."remote model"]
model = "remote:some/model"
"#,
    );
    let manifest = manifest.unwrap_or_else(|error| panic!("{error}"));
    let given = |name: &str| manifest.serve.given[name].clone();
    assert_eq!(given("port").value, Value::Whole(0));
    assert_eq!(given("port").line, 4);
    assert_eq!(given("keep_alive").value, Value::Keep(KeepAlive::Forever));
    let three = std::time::Duration::from_secs(3);
    assert_eq!(given("grace").value, Value::Time(Some(three)));
    assert_eq!(given("watch").value, Value::Time(None));
    let entries = manifest.serve.entries();
    let small = &entries["Small"];
    assert_eq!(small.model.as_deref(), Some("/etc/b/models/x.gguf"));
    assert_eq!((small.pinned, small.context), (Some(true), Some(512)));
    let remote = &entries["remote model"];
    assert_eq!(remote.model.as_deref(), Some("remote:some/model"));
    let options = ServeOptions {
        context: Some(64),
        threads: Some(2),
        ..ServeOptions::default()
    };
    let load = options.loading_of(small).load;
    assert_eq!((load.context, load.threads), (Some(512), Some(2)));
}

#[test]
fn what_is_wrong_in_settings_of_the_server_is_named_with_its_line() {
    refused(
        "[serve]\n\nprot = 1",
        expect!["/etc/b/plugins.toml:3:1: unknown key `prot` in [serve] (did you mean `port`?)"],
    );
    refused(
        "[serve]\nport = \"8080\"",
        expect![[
            r#"/etc/b/plugins.toml:2:8: `serve.port`: found the text "8080", expected a whole number from 0 to 65535 (make it a whole number from 0 to 65535)"#
        ]],
    );
    refused(
        "[serve]\nport = 70000",
        expect![
            "/etc/b/plugins.toml:2:8: `serve.port`: found the number 70000, expected a whole number from 0 to 65535 (make it a whole number from 0 to 65535)"
        ],
    );
    refused(
        "serve = 1",
        expect![
            "/etc/b/plugins.toml:1:9: `serve`: found the number 1, expected a table (make it a table)"
        ],
    );
    refused(
        "[serve.modle.x]",
        expect!["/etc/b/plugins.toml:1:8: unknown key `modle` in [serve] (did you mean `model`?)"],
    );
    refused(
        "[serve.model.x]\ncontxt = 1",
        expect![
            "/etc/b/plugins.toml:2:1: unknown key `contxt` in [serve.model.x] (did you mean `context`?)"
        ],
    );
    refused(
        "[serve.model.x]\naliases = [\"b\"]\n[serve.model.B]",
        expect![
            "/etc/b/plugins.toml:3:14: `serve.model.B`: `B` is a name of `x` already (give each model its names)"
        ],
    );
    refused(
        "[serve.model.\" \"]",
        expect![[
            r#"/etc/b/plugins.toml:1:14: `serve.model`: found the name "" (call it as clients should)"#
        ]],
    );
    for wrong in [
        "models = \"a\"",
        "models = [\"\"]",
        "models = [1]",
        "keep_alive = true",
        "keep_alive = 1.5",
        "memory = 8",
        "memory = \"0GiB\"",
        "grace = -1",
        "queue_time = 0",
        "pin = \"true\"",
        "replies = 0",
        "backend = \"\"",
        "model = 1",
        "body_limit = \"16\"",
        "context = 99999999999999999999",
    ] {
        let error = parse(&format!("[serve]\n{wrong}")).unwrap_err();
        assert_eq!(error.line, 2, "{wrong}: {error}");
    }
}

#[test]
fn what_is_wrong_is_named_with_its_line() {
    refused(
        "\ndirectorys = []",
        expect!["/etc/b/plugins.toml:2:1: unknown key `directorys` (did you mean `directories`?)"],
    );
    refused(
        "[plugin.cpu]\nwatchdog = \"60\"",
        expect![[
            r#"/etc/b/plugins.toml:2:12: `plugin.cpu.watchdog`: found the text "60", expected a time such as "60s", "500ms", "10m" or "1h", up to a week, or "off" (make it a time such as "60s", "500ms", "10m" or "1h", up to a week, or "off")"#
        ]],
    );
    refused(
        "[plugin.cpu]\nwatchdog = { answer = 60 }",
        expect![[
            r#"/etc/b/plugins.toml:2:23: `plugin.cpu.watchdog.answer`: found the number 60, expected a time such as "60s", "500ms", "10m" or "1h", up to a week, or "off" (make it a time such as "60s", "500ms", "10m" or "1h", up to a week, or "off")"#
        ]],
    );
    refused(
        "[plugin.cpu]\nwatchdog = \"99ms\"",
        expect![
            "/etc/b/plugins.toml:2:12: `plugin.cpu.watchdog`: found 99ms, expected 100ms or longer (raise it, or leave it out)"
        ],
    );
    refused(
        "[plugin.cpu]\nmemory_limit = \"1KiB\"",
        expect![
            "/etc/b/plugins.toml:2:16: `plugin.cpu.memory_limit`: found 1KiB, expected 16MiB or more (raise it, or leave it out)"
        ],
    );
    refused(
        "[plugin.cpu]\nwatchdog = { answr = \"1s\" }",
        expect![
            "/etc/b/plugins.toml:2:14: unknown key `answr` in [plugin.cpu.watchdog] (did you mean `answer`?)"
        ],
    );
    refused(
        "[plugin.cpu]\nmemory_limit = \"8\"",
        expect![[
            r#"/etc/b/plugins.toml:2:16: `plugin.cpu.memory_limit`: found the text "8", expected a size such as "8GiB" or "512MiB" (make it a size such as "8GiB" or "512MiB")"#
        ]],
    );
    refused(
        "[plugin.cpu]\nisolation = \"proces\"",
        expect![[
            r#"/etc/b/plugins.toml:2:13: `plugin.cpu.isolation`: found "proces", expected "in-process" or "process" (did you mean `process`?)"#
        ]],
    );
    refused(
        "[plugin.cpu]\nenable = true",
        expect![
            "/etc/b/plugins.toml:2:1: unknown key `enable` in [plugin.cpu] (did you mean `enabled`?)"
        ],
    );
    refused(
        "discover = \"yes\"",
        expect![[
            r#"/etc/b/plugins.toml:1:12: `discover`: found the text "yes", expected true or false (make it true or false)"#
        ]],
    );
    refused(
        "directories = \"plugins\"",
        expect![[
            r#"/etc/b/plugins.toml:1:15: `directories`: found the text "plugins", expected an array of texts (make it an array of texts)"#
        ]],
    );
    refused(
        "order = [\"cpu\", 3]",
        expect![
            "/etc/b/plugins.toml:1:17: `order`: found the number 3, expected a text in quotes (make it a text in quotes)"
        ],
    );
    refused(
        "order = [\"cpu\", \"CPU\"]",
        expect!["/etc/b/plugins.toml:1:17: `order`: `cpu` stands there twice (name each once)"],
    );
    refused(
        "order = []",
        expect![[
            r#"/etc/b/plugins.toml:1:9: `order`: found an empty array (name at least one plugin, or "*" for any)"#
        ]],
    );
    refused(
        "fallback = \"denyy\"",
        expect![[
            r#"/etc/b/plugins.toml:1:12: `fallback`: found "denyy", expected "deny", "warn" or "allow" (did you mean `deny`?)"#
        ]],
    );
    refused(
        "context = 0",
        expect![
            "/etc/b/plugins.toml:1:11: `context`: found the number 0, expected a whole number of tokens from 1 to 134217728 (make it a whole number of tokens from 1 to 134217728)"
        ],
    );
    refused(
        "[plugin.cpu]\nsha256 = \"12\"",
        expect![
            "/etc/b/plugins.toml:2:10: `plugin.cpu.sha256`: found 2 characters, expected 64 hexadecimal digits (take it from `sha256sum MODULE`)"
        ],
    );
    refused(
        "[plugin.cpu]\n[plugin.CPU]",
        expect![
            "/etc/b/plugins.toml:2:9: `plugin.CPU`: the plugin `cpu` has an entry already (keep one; case and `-` make no difference)"
        ],
    );
    refused(
        "plugin = 1",
        expect![
            "/etc/b/plugins.toml:1:10: `plugin`: found the number 1, expected tables such as [plugin.cpu] (make it tables such as [plugin.cpu])"
        ],
    );
    refused(
        "[plugin.cpu.options]\nx = nan",
        expect![
            "/etc/b/plugins.toml:2:5: `plugin.cpu.options.x`: found the number nan, expected a finite number (make it a finite number)"
        ],
    );
}

#[test]
fn broken_syntax_is_one_line() {
    for text in [
        "a = ",
        "[",
        "x = 1\nx = 2",
        "\u{0}",
        "é = \"",
        "directories = [\"a\"",
    ] {
        let error = parse(text).unwrap_err();
        assert!(
            error.line >= 1 && !error.to_string().contains('\n'),
            "{text:?}: {error}"
        );
    }
}

fn put(folder: &Path, text: &str) -> PathBuf {
    std::fs::create_dir_all(folder).unwrap();
    let file = folder.join("plugins.toml");
    std::fs::write(&file, text).unwrap();
    file
}

#[test]
fn looked_for_in_order_and_never_in_the_working_directory() {
    let root = tempfile::tempdir().unwrap();
    let folder = |name: &str| Some(root.path().join(name));
    let mut folders = Folders {
        config: folder("user"),
        system: folder("system"),
        executable: folder("bin"),
        ..Folders::default()
    };
    let built_in = locate(None, &folders).unwrap();
    assert_eq!(built_in.source, Source::BuiltIn);
    assert_eq!(built_in.directories, [root.path().join("bin/plugins")]);
    let beside = put(&root.path().join("bin"), "");
    assert_eq!(
        locate(None, &folders).unwrap().source,
        Source::Executable(beside)
    );
    let system = put(&root.path().join("system"), "");
    assert_eq!(
        locate(None, &folders).unwrap().source,
        Source::System(system)
    );
    let user = put(&root.path().join("user"), "");
    assert_eq!(locate(None, &folders).unwrap().source, Source::User(user));
    let environment = put(&root.path().join("environment"), "");
    folders.manifest = Some(environment.clone());
    assert_eq!(
        locate(None, &folders).unwrap().source,
        Source::Environment(environment)
    );
    let named = put(&root.path().join("named"), "context = 7");
    let found = locate(Some(&named), &folders).unwrap();
    assert_eq!((found.context, found.source), (7, Source::Named(named)));
    // What is named but missing is an error, not a reason to look further.
    folders.manifest = folder("gone.toml");
    let error = locate(None, &folders).unwrap_err().to_string();
    assert!(
        error.contains("gone.toml") && error.contains("can't be read"),
        "{error}"
    );
}
