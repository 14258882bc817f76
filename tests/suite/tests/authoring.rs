//! The tools for authors, through the staged program: `plugins new`, `validate`, `inspect`, `pin`, and the guide.
#![cfg(unix)]

#[path = "authoring/modules.rs"]
mod modules;
#[path = "authoring/pins.rs"]
mod pins;

use backplane_contract_tests::{module_path, target_dir};
use backplane_tests::{Ran, host, root, run};
use serde_json::Value;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use tempfile::TempDir;

fn home() -> TempDir {
    let home = tempfile::tempdir().expect("a folder");
    std::fs::write(home.path().join("model.echo"), "anything").expect("a model");
    home
}

fn text(path: &Path) -> &str {
    path.to_str().expect("a UTF-8 path")
}

fn write(home: &TempDir, name: &str, content: impl AsRef<[u8]>) -> PathBuf {
    let path = home.path().join(name);
    std::fs::write(&path, content).expect("a file");
    path
}

/// A copy of the well-behaved module, as a file of this name.
fn echo_as(home: &TempDir, name: &str) -> PathBuf {
    let path = home.path().join(name);
    std::fs::copy(module_path("backplane-module-echo-a"), &path).expect("a copy");
    path
}

/// The one line of an error.
#[track_caller]
fn refused(ran: &Ran, code: i32, parts: &[&str]) {
    assert_eq!(ran.code, Some(code), "{}\n{}", ran.out, ran.err);
    assert_eq!(ran.out, "", "an error is no answer");
    // A warning of the log may come before it.
    let errors = ran.err.lines().filter(|line| !line.starts_with(" WARN "));
    assert_eq!(errors.count(), 1, "{}", ran.err);
    for part in parts {
        assert!(ran.err.contains(part), "{part}: {}", ran.err);
    }
}

fn report(ran: &Ran) -> Value {
    serde_json::from_str(&ran.out)
        .unwrap_or_else(|error| panic!("{error}:\n{}\n{}", ran.out, ran.err))
}

// The guide.

/// The blocks of a page with this language, and the text block that follows each, if one does.
fn blocks(page: &str) -> Vec<(String, Option<String>)> {
    let mut blocks: Vec<(String, Option<String>)> = Vec::new();
    let mut lines = page.lines();
    while let Some(line) = lines.next() {
        let Some(language) = line.strip_prefix("```").filter(|word| !word.is_empty()) else {
            continue;
        };
        let block: Vec<&str> = lines.by_ref().take_while(|line| *line != "```").collect();
        match language {
            "sh" => blocks.push((block.join("\n"), None)),
            "text" => blocks.last_mut().expect("commands first").1 = Some(block.join("\n")),
            other => panic!("a block of {other}: the test would not heed it"),
        }
    }
    blocks
}

/// Whether a line is as a pattern says, in which `…` is anything.
fn like(line: &str, pattern: &str) -> bool {
    let mut rest = line;
    let mut pieces = pattern.split('…').map(str::trim_end);
    if !pieces.next().is_some_and(|first| rest.starts_with(first)) {
        return false;
    }
    pieces.all(|piece| {
        let at = rest.find(piece.trim());
        at.map(|at| rest = &rest[at + piece.trim().len()..])
            .is_some()
    })
}

#[test]
fn patterns_can_fail() {
    assert!(like(
        "pass  opens   1.0 ms  parrot 0.1.0",
        "pass  opens … parrot"
    ));
    assert!(like("valid: 3 passed, 0 failed, x", "valid: … 0 failed, …"));
    assert!(!like("not valid: 3 passed, 0 failed", "valid: … 0 failed"));
    assert!(!like("valid: 3 passed, 1 failed", "valid: … 0 failed"));
}

#[test]
fn the_guide_is_followed_to_the_letter() {
    let page =
        std::fs::read_to_string(root().join("docs/guide/write-a-backend.md")).expect("the guide");
    let blocks = blocks(&page);
    assert!(blocks.len() > 5, "the guide has commands");
    let home = home();
    let bin = home.path().join("bin");
    let work = home.path().join("work");
    for folder in [&bin, &work] {
        std::fs::create_dir(folder).expect("a folder");
    }
    symlink(host(), bin.join("backplane")).expect("a link to the program");
    symlink(root(), work.join("backplane")).expect("a link to the source tree");
    // Cargo builds what is built already where the other tests do, and takes the versions that the workspace has.
    let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned());
    let (target, lock) = (target_dir(), root().join("Cargo.lock"));
    let shim = format!(
        "#!/bin/sh\nset -e\n[ -e target ] || ln -s '{}' target\n[ -e Cargo.lock ] || cp '{}' Cargo.lock\nexec '{cargo}' \"$@\"\n",
        target.display(),
        lock.display()
    );
    let shim_path = write(&home, "bin/cargo", shim);
    std::fs::set_permissions(&shim_path, std::fs::Permissions::from_mode(0o755))
        .expect("a program");
    // It builds what others wrote as the workspace does, so that other tests have built it.
    let profile = "[profile.dev]\ndebug = false\n\n\
        [profile.dev.package]\nmemchr.opt-level = 1\nserde_json.opt-level = 1\n";
    std::fs::create_dir(work.join(".cargo")).expect("a folder");
    std::fs::write(work.join(".cargo/config.toml"), profile).expect("a configuration");
    // One shell for all; a line between the blocks tells their outputs apart.
    const MARK: &str = "---- block ----";
    let script: String = blocks
        .iter()
        .map(|(commands, _)| format!("{commands}\nprintf '%s\\n' '{MARK}'\n"))
        .collect();
    let path = std::env::var("PATH").unwrap_or_default();
    let mut command = Command::new("sh");
    command.args(["-euc", &script]).current_dir(&work);
    // Cargo and rustup keep their own home.
    for (name, folder) in backplane_tests::environment(home.path()) {
        if name != "HOME" {
            command.env(name, folder);
        }
    }
    for name in [
        "BACKPLANE_MANIFEST",
        "BACKPLANE_MODELS",
        "BACKPLANE_SDK",
        "CARGO_TARGET_DIR",
    ] {
        command.env_remove(name);
    }
    let ran: Ran = command
        .env("PATH", format!("{}:{path}", bin.display()))
        .env("CARGO_NET_OFFLINE", "true")
        .output()
        .expect("a shell")
        .into();
    assert_eq!(ran.code, Some(0), "{}\n{}", ran.out, ran.err);
    let outputs: Vec<&str> = ran.out.split(MARK).collect();
    for ((commands, expected), output) in blocks.iter().zip(&outputs) {
        for pattern in expected.iter().flat_map(|text| text.lines()) {
            let found = output.lines().any(|line| like(line, pattern));
            assert!(
                found,
                "{commands}\nshould print {pattern:?}; printed\n{output}"
            );
        }
    }
    let manifest = std::fs::read_to_string(work.join("plugins.toml")).expect("the manifest");
    assert!(manifest.contains("# of `cargo build`"), "{manifest}");
    assert_eq!(manifest.matches("sha256 = ").count(), 2, "{manifest}");
}

// `new`.

#[test]
fn names_that_can_be_none_are_refused() {
    let home = home();
    let long = "x".repeat(70);
    for (name, part) in [
        ("", "is empty"),
        ("Parrot", "other letters"),
        ("a-b", "other letters"),
        ("a b", "other letters"),
        ("../up", "other letters"),
        ("é", "other letters"),
        ("a\nb", "other letters"),
        ("9lives", "begin with a letter"),
        ("self", "a word of Rust"),
        ("libparrot", "file names of modules"),
        (&long, "longer than 64"),
    ] {
        for kind in [&["--c"][..], &["--sdk", "plugin-api"]] {
            let mut arguments = vec!["plugins", "new", name];
            arguments.extend(kind);
            refused(&run(home.path(), &arguments), 2, &[part]);
        }
    }
    let entries = std::fs::read_dir(home.path()).expect("a folder").count();
    assert_eq!(entries, 1, "nothing was written");
}

#[test]
fn nothing_is_written_over() {
    let home = home();
    write(&home, "taken", "mine");
    std::fs::create_dir(home.path().join("full")).expect("a folder");
    write(&home, "full/Makefile", "mine");
    symlink("nowhere", home.path().join("dangling")).expect("a link");
    for (folder, part) in [
        ("taken", "something else than a folder"),
        ("full", "not empty"),
        ("dangling", "something else than a folder"),
        ("taken/below", "taken/below"),
    ] {
        let ran = run(
            home.path(),
            &["plugins", "new", "dice", "--c", "--path", folder],
        );
        refused(&ran, 2, &[part]);
    }
    let read = |name: &str| std::fs::read_to_string(home.path().join(name)).expect("a file");
    assert_eq!(
        (read("taken").as_str(), read("full/Makefile").as_str()),
        ("mine", "mine")
    );
    // An empty folder is as good as none.
    std::fs::create_dir(home.path().join("empty")).expect("a folder");
    let ran = run(
        home.path(),
        &["plugins", "new", "dice", "--c", "--path", "empty", "--json"],
    );
    let told = ran.json();
    assert_eq!(
        (&told["name"], &told["kind"]),
        (&"dice".into(), &"c".into())
    );
    for file in told["files"].as_array().expect("files") {
        let file = file.as_str().expect("a path");
        assert!(home.path().join("empty").join(file).is_file(), "{file}");
    }
}

#[test]
fn the_place_of_the_sdk_is_checked() {
    let home = home();
    let new = |sdk: &str| run(home.path(), &["plugins", "new", "parrot", "--sdk", sdk]);
    refused(&new("nowhere"), 2, &["--sdk nowhere", "no such file"]);
    refused(&new("."), 2, &["no crate `backplane-plugin-api`"]);
    refused(&new("https://a b"), 2, &["expected a URL"]);
    let ran = run(
        home.path(),
        &["plugins", "new", "parrot", "--c", "--sdk", "x"],
    );
    assert_eq!((ran.code, ran.out.as_str()), (Some(2), ""));
    assert!(!home.path().join("parrot").exists(), "nothing was written");
    // A URL is taken as it is: Cargo knows more of it.
    let ran = new("https://example.org/backplane.git#v0.1.0");
    assert_eq!(ran.code, Some(0), "{}", ran.err);
    let cargo = std::fs::read_to_string(home.path().join("parrot/Cargo.toml")).expect("Cargo.toml");
    let line =
        "backplane-plugin-api = { git = \"https://example.org/backplane.git\", rev = \"v0.1.0\" }";
    assert!(cargo.contains(line), "{cargo}");
    assert!(
        !cargo.contains("NAME") && !cargo.contains("SDK_"),
        "{cargo}"
    );
}

#[test]
fn the_verbs_are_in_help_completions_and_man() {
    let home = home();
    for verb in ["new", "validate", "inspect", "pin"] {
        let help = run(home.path(), &["plugins", verb, "--help"]);
        assert!(
            help.code == Some(0) && help.out.contains("Example"),
            "{}",
            help.out
        );
    }
    let script = run(home.path(), &["completions", "bash"]).out;
    assert!(
        script.contains("--file-only")
            && script.contains("--time-limit")
            && !script.contains("trial")
    );
    let ran = run(home.path(), &["man", "pages"]);
    assert_eq!(ran.code, Some(0), "{}", ran.err);
    for page in ["new", "validate", "inspect", "pin"] {
        let page = home
            .path()
            .join(format!("pages/backplane-plugins-{page}.1"));
        assert!(page.is_file(), "{}", page.display());
    }
    // The child is the host's own.
    refused(
        &run(home.path(), &["trial"]),
        2,
        &["not the socket of a host"],
    );
}
