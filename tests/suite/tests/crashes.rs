//! Plugins that crash, through the staged program: the host lives, the verdict says why, the others go on.
#![cfg(unix)]

use backplane_contract_tests::module_path;
use backplane_tests::{Ran, command, fixture, host, run};
use serde_json::Value;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// A user's folder with a manifest that has the staged `cpu` and the plugin `panics`, with this in its entry.
struct Setup {
    home: TempDir,
    manifest: PathBuf,
}

fn setup(entry: &str, options: &str) -> Setup {
    let home = tempfile::tempdir().expect("a folder");
    let manifest = home.path().join("plugins.toml");
    let suffix = std::env::consts::DLL_SUFFIX;
    let cpu = host()
        .with_file_name("plugins")
        .join(format!("cpu{suffix}"));
    let panics = module_path("backplane-module-panics");
    let text = format!(
        "order = [\"panics\", \"*\"]\n[plugin.cpu]\npath = {cpu:?}\n[plugin.panics]\npath = {panics:?}\n{entry}\n\
         [plugin.panics.options]\n{options}\n"
    );
    std::fs::write(&manifest, text).expect("a manifest");
    std::fs::write(home.path().join("model.echo"), "anything").expect("a model");
    Setup { home, manifest }
}

impl Setup {
    fn arguments<'a>(&'a self, arguments: &[&'a str]) -> Vec<&'a str> {
        let manifest = self.manifest.to_str().expect("a UTF-8 path");
        let mut all = vec!["--manifest", manifest];
        all.extend(arguments);
        all
    }

    fn run(&self, arguments: &[&str]) -> Ran {
        run(self.home.path(), &self.arguments(arguments))
    }

    fn plugin(&self, name: &str) -> Value {
        let all = self.run(&["plugins", "--json"]).json();
        let plugins = all["plugins"].as_array().expect("plugins");
        let found = plugins.iter().find(|plugin| plugin["name"] == name);
        found.expect("the plugin is listed").clone()
    }
}

fn tiny() -> String {
    let model = fixture("tiny/llama3-gqa/model-f32.gguf");
    model.to_str().expect("a UTF-8 path").to_owned()
}

#[test]
fn a_crash_before_use_is_a_verdict_and_the_others_run() {
    for call in ["new", "probe", "devices"] {
        let setup = setup("", &format!("crash_in = [\"{call}\"]"));
        let plugin = setup.plugin("panics");
        let verdict = &plugin["verdict"];
        assert_eq!(verdict["state"], "crashed", "{call}: {plugin}");
        let message = verdict["message"].as_str().expect("a message");
        for part in ["backplane_module_panics", "signal 6 (SIGABRT)"] {
            assert!(message.contains(part), "{call}: {message}");
        }
        assert_eq!(message.lines().count(), 1, "{call}: {message}");
        let action = verdict["action"].as_str().expect("an action");
        assert!(action.contains("[plugin.panics]"), "{call}: {action}");
        assert_eq!(setup.plugin("cpu")["verdict"]["state"], "available");

        let model = tiny();
        let ran = setup.run(&["run", "--raw", "--json", "--max-tokens", "4", &model, "a"]);
        assert_eq!(ran.json()["backend"], "cpu", "{call}");
    }
}

#[test]
fn a_crash_in_a_worker_is_an_error_of_the_call() {
    for (call, ended) in [
        ("load", true),
        ("generate", true),
        ("decode", true),
        ("chat", false),
    ] {
        let entry = "isolation = \"process\"";
        let setup = setup(entry, &format!("crash_in = [\"{call}\"]"));
        assert_eq!(setup.plugin("panics")["verdict"]["state"], "available");
        let ran = setup.run(&["run", "--raw", "--temperature", "0", "model.echo", "hello"]);
        if ended {
            assert_eq!(ran.code, Some(5), "{call}: {}", ran.err);
            assert!(
                ran.err.contains("signal 6 (SIGABRT)"),
                "{call}: {}",
                ran.err
            );
            assert!(ran.err.contains("`panics`"), "{call}: {}", ran.err);
        } else {
            // A call that is not made does no harm.
            assert_eq!(
                (ran.code, ran.out.trim()),
                (Some(0), "hello"),
                "{}",
                ran.err
            );
        }
    }
}

#[test]
fn an_unknown_isolation_is_named_with_its_line() {
    let ran = setup("isolation = \"thread\"", "").run(&["plugins"]);
    assert_eq!(ran.code, Some(2));
    assert!(
        ran.err
            .contains("plugins.toml:6:13: `plugin.panics.isolation`"),
        "{}",
        ran.err
    );
}

/// Processes that descend from `parent` and run as workers.
fn workers_of(parent: u32) -> Vec<String> {
    let output = Command::new("ps")
        .args(["-A", "-o", "pid=,ppid=,args="])
        .output()
        .expect("ps runs");
    let text = String::from_utf8_lossy(&output.stdout);
    let of = |line: &str| {
        let mut words = line.split_whitespace();
        let pid = words.next()?.to_owned();
        let parents = words.next()?.parse::<u32>().ok()? == parent;
        (parents && line.ends_with(" worker")).then_some(pid)
    };
    text.lines().filter_map(of).collect()
}

fn lives(pid: &str) -> bool {
    let listed = Command::new("ps").args(["-o", "stat=", "-p", pid]).output();
    let listed = listed.expect("ps runs").stdout;
    let state = String::from_utf8_lossy(&listed).trim().to_owned();
    // One that has ended and that nobody has waited for yet lives no more.
    !state.is_empty() && !state.starts_with('Z')
}

fn wait_for(what: &str, limit: Duration, mut done: impl FnMut() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < limit, "{what}: not within {limit:?}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn a_killed_host_leaves_no_worker() {
    let setup = setup("isolation = \"process\"", "token_delay_ms = 50");
    let arguments = ["run", "--raw", "--temperature", "0", "model.echo"];
    let prompt = "a long reply ".repeat(100);
    let mut command = command(setup.home.path(), &setup.arguments(&arguments));
    let command = command.arg(&prompt).stdout(Stdio::piped());
    let mut host = command.spawn().expect("the program starts");
    let mut first = [0];
    let out = host.stdout.as_mut().expect("standard output");
    out.read_exact(&mut first).expect("a reply has begun");
    let workers = workers_of(host.id());
    assert!(!workers.is_empty(), "a worker runs");
    host.kill().expect("SIGKILL");
    host.wait().expect("it has ended");
    let gone = || workers.iter().all(|pid| !lives(pid));
    wait_for("workers end", Duration::from_secs(2), gone);
}

#[test]
fn a_killed_worker_is_named_and_the_host_ends_by_itself() {
    let setup = setup("isolation = \"process\"", "token_delay_ms = 50");
    let arguments = ["run", "--raw", "--temperature", "0", "model.echo"];
    let prompt = "a long reply ".repeat(100);
    let mut command = command(setup.home.path(), &setup.arguments(&arguments));
    let command = command
        .arg(&prompt)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut host = command.spawn().expect("the program starts");
    let mut first = [0];
    let out = host.stdout.as_mut().expect("standard output");
    out.read_exact(&mut first).expect("a reply has begun");
    for pid in workers_of(host.id()) {
        let killed = Command::new("kill").args(["-KILL", &pid]).status();
        assert!(killed.expect("kill runs").success());
    }
    let errors = BufReader::new(host.stderr.take().expect("standard error"));
    let lines: Vec<String> = errors.lines().map_while(Result::ok).collect();
    assert_eq!(host.wait().expect("it ends").code(), Some(5));
    let last = lines.last().expect("an error");
    assert!(last.contains("signal 9 (SIGKILL)"), "{last}");
}

#[test]
fn a_worker_needs_a_host() {
    let home = tempfile::tempdir().expect("a folder");
    let ran = run(home.path(), &["worker"]);
    assert_eq!((ran.code, ran.out.as_str()), (Some(2), ""));
    assert!(ran.err.contains("not the socket of a host"), "{}", ran.err);
    for arguments in [&["--help"][..], &["man"], &["completions", "bash"]] {
        let ran = run(home.path(), arguments);
        assert!(
            !ran.out.contains("worker"),
            "{arguments:?}: it is the host's own"
        );
    }
}

#[test]
fn without_a_worker_modules_are_opened_in_the_host() {
    let setup = setup("", "");
    let missing = Path::new("no-such-program");
    let mut command = command(setup.home.path(), &setup.arguments(&["plugins", "--json"]));
    let ran: Ran = command
        .env("BACKPLANE_WORKER", missing)
        .output()
        .expect("the program starts")
        .into();
    let plugins = ran.json();
    let states = plugins["plugins"].as_array().expect("plugins");
    let available = states.iter().all(|p| p["verdict"]["state"] == "available");
    assert!(
        available,
        "without a worker they are opened in the host: {plugins}"
    );
}
