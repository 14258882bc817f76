//! Settings of the server: which hold, and where they come from.

use backplane_program::CacheType;
use backplane_tests::{command, run};
use backplane_weights::TensorType;
use serde_json::{Value, json};

fn setting<'a>(answer: &'a Value, name: &str) -> &'a Value {
    let all = answer["settings"].as_array().expect("settings");
    let found = all.iter().find(|one| one["name"] == name);
    found.unwrap_or_else(|| panic!("{name} is not shown"))
}

#[test]
fn every_setting_says_where_it_comes_from() {
    let home = tempfile::tempdir().expect("a folder");
    let manifest = home.path().join("plugins.toml");
    let text = "[serve]\nport = 9000\nreplies = 3\nkeep_alive = \"1h\"\n[serve.model.small]\nmodel = \"models/x.gguf\"\npinned = true\n";
    std::fs::write(&manifest, text).expect("a manifest");
    let file = manifest.to_str().expect("UTF-8");
    let arguments = [
        "--manifest",
        file,
        "config",
        "small",
        "--replies",
        "4",
        "--pin=false",
        "--no-watch",
        "--json",
    ];
    let output = command(home.path(), &arguments)
        .env("BACKPLANE_SERVE_PORT", "9001")
        .env("BACKPLANE_SERVE_REPLIES", "5")
        .env("BACKPLANE_SERVE_REPLYS", "5")
        .output();
    let output = output.expect("it runs");
    assert!(output.status.success());
    let answer: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    for (name, value, from) in [
        ("serve.port", json!(9001), "environment"),
        ("serve.replies", json!(4), "flag"),
        ("serve.pin", json!(false), "flag"),
        ("serve.watch", json!("off"), "flag"),
        ("serve.models", json!(["small"]), "flag"),
        ("serve.keep_alive", json!("1h"), "manifest"),
        ("serve.host", json!("127.0.0.1"), "default"),
        ("serve.backend", Value::Null, "default"),
        ("serve.model.small.pinned", json!(true), "manifest"),
    ] {
        let found = setting(&answer, name);
        assert_eq!(
            (&found["value"], &found["from"]),
            (&value, &json!(from)),
            "{name}"
        );
    }
    let port = setting(&answer, "serve.port");
    assert_eq!(port["variable"], "BACKPLANE_SERVE_PORT");
    assert_eq!(setting(&answer, "serve.keep_alive")["line"], 4);
    let model = setting(&answer, "serve.model.small.model")["value"].to_string();
    let beside = home.path().join("models/x.gguf").display().to_string();
    assert!(model.contains(&beside), "{model}");
    let notice = answer["notices"][0].to_string();
    assert!(notice.contains("BACKPLANE_SERVE_REPLIES"), "{notice}");

    let shown = run(home.path(), &["--manifest", file, "config"]);
    assert_eq!(shown.code, Some(0), "{}", shown.err);
    let line = shown
        .out
        .lines()
        .find(|line| line.trim_start().starts_with("serve.port"));
    let line = line.expect("a line");
    assert!(
        line.contains("9000") && line.contains("plugins.toml:2"),
        "{line}"
    );
    assert!(shown.out.contains(file), "the manifest that was read");
}

#[test]
fn what_is_wrong_is_one_line_that_says_where() {
    let home = tempfile::tempdir().expect("a folder");
    let manifest = home.path().join("plugins.toml");
    let file = manifest.to_str().expect("UTF-8");
    for verb in ["config", "serve"] {
        for (text, said) in [
            (
                "[serve]\nprot = 1",
                ":2:1: unknown key `prot` in [serve] (did you mean `port`?)",
            ),
            (
                "[serve]\nport = \"x\"",
                ":2:8: `serve.port`: found the text \"x\"",
            ),
            (
                "[serve.model.a]\npined = true",
                "unknown key `pined` in [serve.model.a]",
            ),
        ] {
            std::fs::write(&manifest, text).expect("a manifest");
            let ran = run(home.path(), &["--manifest", file, verb]);
            assert_eq!(ran.code, Some(2), "{verb}: {}", ran.err);
            assert!(ran.err.contains(said), "{verb}: {}", ran.err);
            assert_eq!(ran.err.lines().count(), 1, "{}", ran.err);
        }
        std::fs::write(&manifest, "").expect("a manifest");
        for (option, said) in [
            (
                ["--port", "70000"],
                "expected a whole number from 0 to 65535",
            ),
            (["--keep-alive", "soon"], "expected a time such as"),
            (["--memory", "much"], "expected a size such as"),
        ] {
            let ran = run(
                home.path(),
                &["--manifest", file, verb, option[0], option[1]],
            );
            assert_eq!(ran.code, Some(2), "{verb} {option:?}: {}", ran.err);
            assert!(ran.err.contains(said), "{verb} {option:?}: {}", ran.err);
        }
        let output = command(home.path(), &["--manifest", file, verb])
            .env("BACKPLANE_SERVE_PORT", "tcp://10.0.0.1:80")
            .output();
        let output = output.expect("it runs");
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{said}");
        assert!(
            said.contains("BACKPLANE_SERVE_PORT: found \"tcp://10.0.0.1:80\""),
            "{said}"
        );
    }
}

#[test]
fn settings_that_nothing_starts_with_are_said_before_it_listens() {
    let home = tempfile::tempdir().expect("a folder");
    for verb in ["config", "serve"] {
        for (options, said) in [
            (
                &["--origins", "chat.example"][..],
                "`origins`: found \"chat.example\", expected `*`, or a scheme and a host",
            ),
            (
                &["--origins", "https://a.example,https://b.example/"],
                "write it as https://b.example",
            ),
            (
                &["--hosts", "http://models.example"],
                "`hosts`: found \"http://models.example\"",
            ),
            (&["--host", "127.0.0.1:80"], "the port is `port`"),
            (&["--host", "192.0.2.1"], "can't listen on 192.0.2.1: "),
            (&["--tls-key", "key.pem"], "`tls_certificate` is missing"),
            (&["--tls-certificate", "own.pem"], "`tls_key` is missing"),
            (&["--api-keys", "keys"], "keys: "),
            (
                &["--cache-type", "int4"],
                "`cache_type`: found \"int4\", expected one of f32, f16, q8_0",
            ),
            (&["--quantize", "q4_kk"], "did you mean `q4_k`?"),
            (
                &["--backend", "vulkan"],
                "no backend is named `vulkan` (known: `",
            ),
        ] {
            let arguments = [&[verb][..], options].concat();
            let ran = run(home.path(), &arguments);
            assert_eq!(ran.code, Some(2), "{arguments:?}: {}", ran.err);
            assert!(ran.err.contains(said), "{arguments:?}: {}", ran.err);
            assert_eq!(ran.err.lines().count(), 1, "{}", ran.err);
        }
        let output = command(home.path(), &[verb])
            .env("BACKPLANE_MODELS", home.path().join("nowhere"))
            .output()
            .expect("it runs");
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{said}");
        assert!(
            said.contains("nowhere is not there, or is no folder"),
            "{said}"
        );
    }
    let config = run(home.path(), &["config", "nope"]);
    assert_eq!(config.code, Some(2), "{}", config.err);
    let serve = run(home.path(), &["serve", "nope", "--port", "0"]);
    assert!(serve.code.is_some_and(|code| code != 0), "{}", serve.err);
    for ran in [config, serve] {
        assert!(ran.err.contains("nope"), "{}", ran.err);
        assert_eq!(ran.err.lines().count(), 1, "{}", ran.err);
    }
    let several = ["config", "--host", "a b", "--hosts", "a/", "--json"];
    let output = command(home.path(), &several).output().expect("it runs");
    assert_eq!(output.status.code(), Some(2));
    let answer: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(
        answer["faults"].as_array().map(Vec::len),
        Some(2),
        "{answer}"
    );
}

#[test]
fn every_type_that_the_engine_has_may_be_set() {
    let home = tempfile::tempdir().expect("a folder");
    let weights = TensorType::ALL.iter().filter(|ty| ty.can_quantize());
    let weights = weights.map(|ty| ("--quantize", ty.to_string()));
    let caches = CacheType::ALL.map(|ty| ("--cache-type", ty.to_string()));
    let none = ("--quantize", "none".to_owned());
    for (option, name) in weights.chain(caches).chain([none]) {
        let ran = run(home.path(), &["config", option, &name]);
        assert_eq!(ran.code, Some(0), "{option} {name}: {}", ran.err);
    }
}
