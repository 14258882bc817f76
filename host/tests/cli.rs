//! The binary as a user meets it, where no module is needed: what is refused, with which line and which exit code.
#![cfg(feature = "cli")]
#![allow(clippy::unwrap_used)] // Helpers of tests are tests too.

use expect_test::{Expect, expect};
use std::path::Path;
use std::process::{Command, Output, Stdio};

/// Runs a program in a folder that has a manifest, an empty plugin folder and an empty catalogue.
fn run(program: &Path, root: &Path, arguments: &[&str]) -> Output {
    std::fs::create_dir_all(root.join("plugins")).unwrap();
    std::fs::create_dir_all(root.join("models")).unwrap();
    let manifest = root.join("plugins.toml");
    if !manifest.exists() {
        std::fs::write(&manifest, "").unwrap();
    }
    Command::new(program)
        .args(arguments)
        .env("BACKPLANE_MANIFEST", manifest)
        .env("BACKPLANE_MODELS", root.join("models"))
        .env("NO_COLOR", "1")
        .stdin(Stdio::null())
        .output()
        .unwrap()
}

fn backplane(root: &Path, arguments: &[&str]) -> (i32, String, String) {
    let output = run(Path::new(env!("CARGO_BIN_EXE_backplane")), root, arguments);
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    let code = output.status.code().unwrap();
    (code, text(output.stdout), text(output.stderr))
}

/// What is refused: exit code and first line, nothing on standard output.
fn refused(root: &Path, line: &str, expected: Expect) {
    let (code, out, err) = backplane(root, &line.split_whitespace().collect::<Vec<_>>());
    assert_eq!(out, "", "{line}: standard output is for the answer");
    let place = root.display().to_string();
    let first = err
        .lines()
        .next()
        .unwrap_or_default()
        .replace(&place, "ROOT");
    expected.assert_eq(&format!("{code} {first}"));
}

#[test]
fn wrong_usage_is_exit_code_2_and_one_clear_line() {
    let root = tempfile::tempdir().unwrap();
    let root = root.path();
    refused(
        root,
        "rum m",
        expect!["2 error: unrecognized subcommand 'rum'"],
    );
    refused(
        root,
        "run m p --tokens 1,2",
        expect!["2 error: the argument '[PROMPT]' cannot be used with '--tokens <IDS>'"],
    );
    refused(
        root,
        "run m p --raw --system x",
        expect!["2 error: the argument '--raw' cannot be used with '--system <TEXT>'"],
    );
    refused(
        root,
        "run m p -q -v",
        expect!["2 error: the argument '--quiet' cannot be used with '--verbose...'"],
    );
    refused(
        root,
        "run m p --temperature -1",
        expect![
            "2 error: invalid value '-1' for '--temperature <T>': expected a number from 0 to 3.4e38"
        ],
    );
    refused(
        root,
        "run m p --top-p NaN",
        expect!["2 error: invalid value 'NaN' for '--top-p <P>': expected a number from 0 to 1"],
    );
    refused(
        root,
        "run m p --max-tokens -1",
        expect![
            "2 error: invalid value '-1' for '--max-tokens <N>': expected a whole number from 0 to 4294967295"
        ],
    );
    refused(
        root,
        "run m p --context 0",
        expect![
            "2 error: invalid value '0' for '--context <TOKENS>': expected a whole number from 1 to 4294967295"
        ],
    );
}

#[test]
fn a_wrong_manifest_is_named_with_its_line() {
    let root = tempfile::tempdir().unwrap();
    std::fs::write(root.path().join("plugins.toml"), "\ndirectorys = []\n").unwrap();
    refused(
        root.path(),
        "plugins",
        expect![
            "2 error: ROOT/plugins.toml:2:1: unknown key `directorys` (did you mean `directories`?)"
        ],
    );
    refused(
        root.path(),
        "plugins --manifest /nowhere/p.toml",
        expect![
            "2 error: /nowhere/p.toml: manifest can't be read: no such file or directory (check the path and its permissions)"
        ],
    );
}

#[test]
fn no_backend_is_3_and_no_model_is_4() {
    let root = tempfile::tempdir().unwrap();
    let (code, ..) = backplane(root.path(), &["plugins", "check"]);
    assert_eq!(code, 3);
    refused(
        root.path(),
        "run ./gone.gguf p",
        expect![
            "4 error: ./gone.gguf: no such file or folder (check the path, or give a name from the catalogue ROOT/models)"
        ],
    );
    std::fs::write(root.path().join("models/m.gguf"), "x").unwrap();
    refused(
        root.path(),
        "run M p",
        expect![
            "3 error: no backend is available: not installed: metal, rocm, cuda, sycl, llama_cpp (see `backplane plugins explain`; manifest: ROOT/plugins.toml (BACKPLANE_MANIFEST))"
        ],
    );
    refused(
        root.path(),
        "run m p --backend rocmm",
        expect!["2 error: no backend is named `rocmm` (did you mean `rocm`?)"],
    );
}

#[test]
fn the_trace_is_json() {
    let root = tempfile::tempdir().unwrap();
    let (code, out, _) = backplane(root.path(), &["plugins", "explain", "--json"]);
    // Nothing is installed, and so nothing chosen.
    assert_eq!(code, 3);
    let trace: serde_json::Value = serde_json::from_str(&out).unwrap();
    let text = trace.to_string();
    assert!(
        text.contains("\"rocm\"") && text.contains("\"absent\""),
        "{text}"
    );
}

#[test]
fn pages_are_generated() {
    let root = tempfile::tempdir().unwrap();
    let (code, out, _) = backplane(root.path(), &["completions", "bash"]);
    assert!(code == 0 && out.contains("detokenize"), "{code}");
    let folder = root.path().join("man");
    let (code, ..) = backplane(root.path(), &["man", &folder.display().to_string()]);
    assert!(
        code == 0 && folder.join("backplane-run.1").is_file(),
        "{code}"
    );
}

#[test]
fn the_example_runs() {
    let binary = Path::new(env!("CARGO_BIN_EXE_backplane"));
    let name = format!("examples/stream{}", std::env::consts::EXE_SUFFIX);
    let example = binary.with_file_name(name);
    assert!(
        example.is_file(),
        "{}: run all tests of the package, which builds it",
        example.display()
    );
    let root = tempfile::tempdir().unwrap();
    let model = root.path().join("m.gguf");
    std::fs::write(&model, "x").unwrap();
    let output = run(
        &example,
        root.path(),
        &[&model.display().to_string(), "hello"],
    );
    let err = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        !output.status.success() && err.contains("not installed"),
        "{err}"
    );
}
