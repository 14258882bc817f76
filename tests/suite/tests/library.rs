//! The library as an embedding program uses it: the example, on a real model through the real module.

use backplane_contract_tests::built;
use backplane_tests::{SMOLLM2, environment, host, real_model, root};
use std::path::PathBuf;
use std::process::Command;

/// Builds the example, by the features that it is built by with all the rest.
fn build() -> PathBuf {
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.args(["build", "--quiet", "--workspace", "--example", "stream"]);
    cargo.arg("--message-format=json").current_dir(root());
    let output = cargo.output().expect("cargo");
    let messages = String::from_utf8(output.stdout).expect("UTF-8");
    messages
        .lines()
        .filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok())
        .find_map(|message| Some(message["executable"].as_str()?.into()))
        .expect("the example builds")
}

#[test]
fn the_example_streams_a_reply() {
    let home = tempfile::tempdir().expect("a folder");
    let model = real_model(SMOLLM2);
    let manifest = host().parent().expect("a folder").join("plugins.toml");
    let example = format!("examples/stream{}", std::env::consts::EXE_SUFFIX);
    let program = built(&example).unwrap_or_else(build);
    let output = Command::new(program)
        .arg(model)
        .arg("The capital of France is")
        .envs(environment(home.path()))
        .env("BACKPLANE_MANIFEST", manifest)
        .output()
        .expect("the example starts");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    // No seed is given: a reply may end before its 32 tokens.
    let told = text.strip_suffix(" tokens by cpu]\n");
    let count = told.and_then(|told| told.rsplit_once('[')?.1.parse::<u32>().ok());
    assert!(
        count.is_some_and(|count| (1..=32).contains(&count)),
        "{text}"
    );
    let source =
        std::fs::read_to_string(root().join("host/examples/stream.rs")).expect("the source");
    assert!(
        source.lines().count() < 30,
        "the example stays under 30 lines"
    );
}
