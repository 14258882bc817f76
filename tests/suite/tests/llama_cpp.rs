//! The `llama_cpp` plugin through the staged program, with a real server.
#![cfg(target_os = "linux")]

use backplane_tests::{Ran, SMOLLM2, command, fixture, host, real_model, root};
use serde_json::Value;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;

fn server() -> PathBuf {
    let server = root().join("cache/venv/bin/llama-server-vulkan");
    assert!(
        server.is_file(),
        "{}: `cargo verify` installs it",
        server.display()
    );
    server
}

/// A user's folder with a manifest that has the staged plugins; `more` is put at its end.
fn setup(more: &str) -> (TempDir, PathBuf) {
    let home = tempfile::tempdir().expect("a folder");
    let manifest = home.path().join("plugins.toml");
    let plugins = host().with_file_name("plugins");
    let text = format!("directories = [{plugins:?}]\n{more}\n");
    std::fs::write(&manifest, text).expect("a manifest");
    (home, manifest)
}

/// The program on a machine without graphics processors, with the server named in its environment, or with no trace of one.
fn backplane(home: &Path, manifest: &Path, server: Option<&Path>, arguments: &[&str]) -> Command {
    let mut all = vec!["--manifest", manifest.to_str().expect("a UTF-8 path")];
    all.extend(arguments);
    let mut command = command(home, &all);
    command
        .env("PATH", "/usr/bin:/bin")
        .env("BACKPLANE_MACHINE_ROOT", home.join("machine"))
        .env_remove("LLAMA_SERVER_PATH");
    if let Some(server) = server {
        command.env("LLAMA_SERVER_PATH", server);
    }
    command
}

fn run(mut command: Command) -> Ran {
    command.output().expect("the program starts").into()
}

fn smollm2() -> String {
    real_model(SMOLLM2)
        .to_str()
        .expect("a UTF-8 path")
        .to_owned()
}

#[test]
fn without_a_server_the_verdict_says_what_is_missing() {
    let (home, manifest) = setup("");
    let listed = run(backplane(
        home.path(),
        &manifest,
        None,
        &["plugins", "--json"],
    ))
    .json();
    let plugins = listed["plugins"].as_array().expect("plugins");
    let plugin = plugins
        .iter()
        .find(|plugin| plugin["name"] == "llama_cpp")
        .expect("it is listed");
    assert_eq!(plugin["verdict"]["state"], "absent", "{plugin}");
    let message = plugin["verdict"]["message"].as_str().expect("a message");
    assert!(message.contains("no llama-server on the PATH"), "{message}");

    // The next in the order runs; who asks for it by name gets an error, and so does who names a server that is not there.
    let arguments = [
        "run",
        "--json",
        "--raw",
        "--max-tokens",
        "1",
        &smollm2(),
        "a",
    ];
    let reply = run(backplane(home.path(), &manifest, None, &arguments)).json();
    assert_eq!(reply["backend"], "cpu");
    let named = [&arguments[..], &["--backend", "llama_cpp"]].concat();
    let ran = run(backplane(home.path(), &manifest, None, &named));
    assert_eq!(ran.code, Some(3), "{}", ran.err);
    assert!(ran.err.contains("llama-server"), "{}", ran.err);
    let gone = Path::new("/nowhere/llama-server");
    let reply = run(backplane(home.path(), &manifest, Some(gone), &arguments)).json();
    let notice = reply["selection"]["notice"]
        .as_str()
        .expect("a fall is told");
    assert!(notice.contains("/nowhere/llama-server"), "{notice}");
}

#[test]
fn it_gives_what_the_server_gives() {
    let text =
        std::fs::read_to_string(fixture("real/smollm2-135m-server.json")).expect("a reference");
    let golden: Value = serde_json::from_str(&text).expect("JSON");
    // The context of the reference, in one slot; a greedy reply depends on neither.
    let (home, manifest) = setup("[plugin.llama_cpp.options]\ngpu_layers = 0");
    let model = smollm2();
    let case = &golden["completions"][0];
    let prompt = case["prompt"].as_str().expect("a prompt");
    let arguments = [
        "run",
        &model,
        "--raw",
        "--json",
        "--temperature",
        "0",
        "--max-tokens",
        "64",
        "--context",
        "2048",
        "--logprobs",
        "2",
        prompt,
    ];
    let reply = run(backplane(
        home.path(),
        &manifest,
        Some(&server()),
        &arguments,
    ))
    .json();
    assert_eq!(
        reply["backend"], "llama_cpp",
        "the order puts it before cpu"
    );
    assert_eq!(reply["usage"]["prompt_tokens"], case["tokens_evaluated"]);
    assert_eq!(reply["usage"]["completion_tokens"], 64);
    assert_eq!(reply["finish_reason"], "length");
    // Builds round differently: equal as long as the reference's choices are clear.
    let ids = |value: &Value| -> Vec<u64> {
        value
            .as_array()
            .expect("ids")
            .iter()
            .filter_map(Value::as_u64)
            .collect()
    };
    let (found, expected) = (ids(&reply["tokens"]), ids(&case["tokens"]));
    assert_eq!(found.len(), 64);
    assert_eq!(found[..8], expected[..8]);
    for (step, first) in case["first8"].as_array().expect("steps").iter().enumerate() {
        let expected = first["logprob"].as_f64().expect("a number");
        let found = reply["logprobs"][step]["logprob"]
            .as_f64()
            .expect("a number");
        assert!(
            (found - expected).abs() < 0.15,
            "step {step}: {found}, expected {expected}"
        );
    }
}

#[test]
fn what_it_lacks_another_backend_does() {
    let (home, manifest) = setup("[plugin.llama_cpp.options]\ngpu_layers = 0");
    let model = smollm2();
    let cases: &[&[&str]] = &[
        &["embed", &model, "a text", "--json"],
        &[
            "run",
            &model,
            "--raw",
            "--json",
            "--max-tokens",
            "1",
            "--quantize",
            "q8_0",
            "a",
        ],
    ];
    for arguments in cases {
        let answer = run(backplane(
            home.path(),
            &manifest,
            Some(&server()),
            arguments,
        ))
        .json();
        assert_eq!(answer["backend"], "cpu", "{arguments:?}");
        // Who asks for it by name is told what it lacks.
        let pinned = [arguments, &["--backend", "llama_cpp"][..]].concat();
        let ran = run(backplane(home.path(), &manifest, Some(&server()), &pinned));
        assert_ne!(ran.code, Some(0), "{arguments:?}");
        assert!(ran.err.contains("llama_cpp"), "{}", ran.err);
    }
}

#[test]
fn a_machine_without_the_device_says_so_and_falls_as_the_order_allows() {
    let extra = host().with_file_name("extra");
    let plugins = host().with_file_name("plugins");
    let setup = |fallback: &str| {
        let home = tempfile::tempdir().expect("a folder");
        let manifest = home.path().join("plugins.toml");
        let text = format!(
            "directories = [{plugins:?}, {extra:?}]\norder = [\"rocm\", \"cpu\"]\nfallback = {fallback:?}\n"
        );
        std::fs::write(&manifest, text).expect("a manifest");
        (home, manifest)
    };
    let (home, manifest) = setup("warn");
    let listed = run(backplane(
        home.path(),
        &manifest,
        None,
        &["plugins", "--json"],
    ))
    .json();
    let plugins = listed["plugins"].as_array().expect("plugins");
    for (name, device) in [
        ("rocm", "/dev/kfd"),
        ("cuda", "/dev/nvidiactl"),
        ("sycl", "/dev/dri"),
    ] {
        let plugin = plugins
            .iter()
            .find(|plugin| plugin["name"] == name)
            .expect("it is listed");
        assert_eq!(plugin["verdict"]["state"], "no_device", "{plugin}");
        assert_eq!(plugin["verdict"]["message"], format!("{device} is missing"));
    }
    let model = smollm2();
    let arguments = ["run", "--json", "--raw", "--max-tokens", "1", &model, "a"];
    let reply = run(backplane(home.path(), &manifest, None, &arguments)).json();
    assert_eq!(reply["backend"], "cpu");
    let notice = reply["selection"]["notice"]
        .as_str()
        .expect("a fall is told");
    assert!(
        notice.contains("no device: /dev/kfd is missing"),
        "{notice}"
    );
    let (home, manifest) = setup("deny");
    let ran = run(backplane(home.path(), &manifest, None, &arguments));
    assert_eq!(ran.code, Some(3), "{}", ran.err);
    assert!(ran.err.contains("/dev/kfd is missing"), "{}", ran.err);
}

/// `cpu` is there as well, and never chosen: the order does not name it.
#[test]
fn a_fall_goes_only_where_the_order_leads() {
    let (plugins, extra) = (
        host().with_file_name("plugins"),
        host().with_file_name("extra"),
    );
    let run_with = |fallback: &str, server: Option<&Path>| {
        let home = tempfile::tempdir().expect("a folder");
        let manifest = home.path().join("plugins.toml");
        let text = format!(
            "directories = [{plugins:?}, {extra:?}]\norder = [\"rocm\", \"llama_cpp\"]\nfallback = {fallback:?}\n\
             [plugin.llama_cpp.options]\ngpu_layers = 0\n"
        );
        std::fs::write(&manifest, text).expect("a manifest");
        let model = smollm2();
        let arguments = ["run", "--json", "--raw", "--max-tokens", "1", &model, "a"];
        run(backplane(home.path(), &manifest, server, &arguments))
    };
    let missing = "no device: /dev/kfd is missing";
    for (fallback, loud) in [("warn", true), ("allow", false)] {
        let ran = run_with(fallback, Some(&server()));
        let reply = ran.json();
        assert_eq!(reply["backend"], "llama_cpp");
        // In the reply in any case; in the log where it is asked for.
        let notice = reply["notice"].as_str().expect("a fall is told");
        assert!(
            notice.contains(missing) && notice.contains("llama_cpp"),
            "{notice}"
        );
        assert_eq!(ran.err.contains(missing), loud, "{fallback}: {}", ran.err);
    }
    for (fallback, server) in [("warn", None), ("deny", Some(server()))] {
        let ran = run_with(fallback, server.as_deref());
        assert_eq!(ran.code, Some(3), "{fallback}: {}", ran.err);
        assert!(ran.err.contains(missing), "{fallback}: {}", ran.err);
        assert!(ran.out.is_empty(), "{fallback}: {}", ran.out);
    }
}

fn children(parent: u32) -> Vec<u32> {
    let output = Command::new("ps")
        .args(["-A", "-o", "pid=,ppid="])
        .output()
        .expect("ps runs");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let of = |line: &str| {
        let mut numbers = line
            .split_whitespace()
            .filter_map(|word| word.parse::<u32>().ok());
        let (pid, of) = (numbers.next()?, numbers.next()?);
        (of == parent).then_some(pid)
    };
    let direct: Vec<u32> = text.lines().filter_map(of).collect();
    let deeper = direct
        .iter()
        .flat_map(|&child| children(child))
        .collect::<Vec<_>>();
    [direct, deeper].concat()
}

fn lives(pid: u32) -> bool {
    let listed = Command::new("ps")
        .args(["-o", "stat=", "-p", &pid.to_string()])
        .output()
        .expect("ps runs");
    let state = String::from_utf8_lossy(&listed.stdout).trim().to_owned();
    !state.is_empty() && !state.starts_with('Z')
}

#[test]
fn a_killed_host_leaves_no_server() {
    for isolation in ["in-process", "process"] {
        let (home, manifest) = setup(&format!(
            "[plugin.llama_cpp]\nisolation = {isolation:?}\n[plugin.llama_cpp.options]\ngpu_layers = 0"
        ));
        let model = smollm2();
        let arguments = [
            "run",
            &model,
            "--raw",
            "--backend",
            "llama_cpp",
            "Once upon a time",
        ];
        let mut command = backplane(home.path(), &manifest, Some(&server()), &arguments);
        let mut host = command
            .stdout(Stdio::piped())
            .spawn()
            .expect("the program starts");
        let mut first = [0];
        let out = host.stdout.as_mut().expect("standard output");
        out.read_exact(&mut first).expect("a reply has begun");
        let family = children(host.id());
        assert!(!family.is_empty(), "a server runs");
        host.kill().expect("SIGKILL");
        host.wait().expect("it has ended");
        let start = Instant::now();
        while family.iter().any(|&pid| lives(pid)) {
            assert!(
                start.elapsed() < Duration::from_secs(2),
                "{isolation}: {family:?} still run"
            );
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}
