//! A plugin that does what plugins must not do, through the program: in a worker, and in the host's process where that is
//! survivable. The table is the expected outcome of each deed.
#![cfg(unix)]

use backplane_contract_tests::module_path;
use backplane_tests::{Ran, command, run};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Mutex;
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// Where the plugin runs.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Runs {
    /// `isolation = "process"`, with limits.
    Worker,
    /// `isolation = "in-process"`.
    Here,
}
use Runs::{Here, Worker};

/// What comes of a deed.
#[derive(Clone, Copy, Debug)]
enum Outcome {
    /// The plugin has this verdict, whose line has these parts, and another plugin answers.
    Verdict(&'static str, &'static [&'static str]),
    /// The call fails with exit code 5 and a line that has these parts.
    Fails(&'static [&'static str]),
    /// The reply is whole.
    Replies,
}
use Outcome::{Fails, Replies, Verdict};

/// A deed: where it runs, what the plugin is told (`in` and `does`, or else the environment variable), what comes of it.
type Row = (Runs, &'static str, &'static str, Outcome);

const MEMORY: &[&str] = &[
    "`hostile`",
    "was ended: it held",
    "its memory_limit is 64MiB",
];
const PANIC: &[&str] = &["hostile: ", "panicked in ", "told to panic"];
const ABORT: &[&str] = &["`hostile`", "signal 6 (SIGABRT)"];
const FAULT: &[&str] = &["`hostile`", "signal 11 (SIGSEGV)"];
const EXIT: &[&str] = &["`hostile`", "ended with exit status 0"];

#[rustfmt::skip]
const TABLE: &[Row] = &[
    // While the library is opened.
    (Here,   "constructor", "abort",   Verdict("crashed", &["signal 6 (SIGABRT)"])),
    (Here,   "constructor", "fault",   Verdict("crashed", &["signal 11 (SIGSEGV)"])),
    (Worker, "constructor", "exit",    Verdict("crashed", &["ended with exit status 0"])),
    (Worker, "constructor", "hang",    Verdict("crashed", &["was not open after"])),
    (Worker, "constructor", "eat",     Verdict("crashed", &["its memory_limit is 64MiB"])),
    (Here,   "root",        "panic",   Verdict("crashed", &["panicked while it was initialised"])),
    (Worker, "root",        "abort",   Verdict("crashed", &["signal 6 (SIGABRT)"])),
    (Worker, "root",        "hang",    Verdict("crashed", &["was not open after"])),
    // Lies.
    (Here,   "version",     "banana",  Verdict("incompatible", &["states the version \"banana\"", "expected"])),
    (Here,   "contract",    "9.0.0",   Verdict("incompatible", &["states contract 9.0.0", "was built against"])),
    // While the backend is made and asked.
    (Here,   "new",     "panic",       Verdict("crashed", &["told to panic"])),
    (Here,   "new",     "abort",       Verdict("crashed", &["signal 6 (SIGABRT)"])),
    (Here,   "probe",   "panic",       Verdict("crashed", &["told to panic"])),
    (Here,   "probe",   "fault",       Verdict("crashed", &["signal 11 (SIGSEGV)"])),
    (Here,   "probe",   "exit",        Verdict("crashed", &["ended with exit status 0"])),
    (Here,   "probe",   "hang",        Verdict("crashed", &["did not answer within"])),
    (Here,   "devices", "hang",        Verdict("crashed", &["did not answer within"])),
    (Worker, "probe",   "eat",         Verdict("crashed", &["its memory_limit is 64MiB"])),
    // While a model is looked at and loaded.
    (Worker, "inspect", "hang",        Fails(&["`inspect` did not answer within 2s"])),
    (Worker, "inspect", "abort",       Fails(ABORT)),
    (Here,   "load",    "panic",       Fails(PANIC)),
    (Worker, "load",    "panic",       Fails(PANIC)),
    (Worker, "load",    "abort",       Fails(ABORT)),
    (Worker, "load",    "exit",        Fails(EXIT)),
    (Worker, "load",    "hang",        Fails(&["`load` did not answer within 2s"])),
    (Worker, "load",    "eat",         Fails(MEMORY)),
    // While it generates.
    (Here,   "decode",  "panic",       Fails(PANIC)),
    (Worker, "decode",  "panic",       Fails(PANIC)),
    (Worker, "decode",  "fault",       Fails(FAULT)),
    (Worker, "decode",  "exit",        Fails(EXIT)),
    (Worker, "decode",  "hang",        Fails(&["`generate` gave no sign of life within 2s"])),
    (Worker, "decode",  "eat",         Fails(MEMORY)),
    (Worker, "decode",  "print,abort", Fails(&["signal 6 (SIGABRT): {\"noise\": \"on standard output\"} | noise on standard error"])),
    (Here,   "generate", "invalid_utf8", Fails(&["told text that is not UTF-8"])),
    (Worker, "generate", "invalid_utf8", Fails(&["told text that is not UTF-8"])),
    (Worker, "generate", "endless",    Fails(&["`generate` did not end within 2s of being told to stop"])),
    // What does no harm.
    (Worker, "decode",  "print",       Replies),
    (Worker, "close",   "abort",       Replies),
    (Worker, "close",   "hang",        Replies),
    (Here,   "tokenize", "abort",      Replies),
    (Worker, "decode",  "fork",        Replies),
];

struct Setup {
    home: TempDir,
    manifest: PathBuf,
}

fn setup(runs: Runs, options: &str) -> Setup {
    let home = tempfile::tempdir().expect("a folder");
    let manifest = home.path().join("plugins.toml");
    let hostile = module_path("backplane-module-hostile");
    let other = module_path("backplane-module-echo-a");
    let limits = "{ open = \"3s\", answer = \"2s\", load = \"2s\", sign = \"2s\" }";
    let entry = match runs {
        Worker => {
            format!("isolation = \"process\"\nmemory_limit = \"64MiB\"\nwatchdog = {limits}")
        }
        Here => "isolation = \"in-process\"\nwatchdog = { open = \"3s\" }".to_owned(),
    };
    let text = format!(
        "directories = []\norder = [\"hostile\", \"echo_a\"]\n[plugin.echo_a]\npath = {other:?}\n[plugin.hostile]\n\
         path = {hostile:?}\n{entry}\n[plugin.hostile.options]\n{options}\n"
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

    fn run(&self, arguments: &[&str], variable: &str) -> Ran {
        let mut command = command(self.home.path(), &self.arguments(arguments));
        command.env("BACKPLANE_HOSTILE", variable);
        command.output().expect("the program starts").into()
    }

    fn verdict(&self, name: &str, variable: &str) -> Value {
        let all = self.run(&["plugins", "--json"], variable).json();
        let plugins = all["plugins"].as_array().expect("plugins");
        let found = plugins.iter().find(|plugin| plugin["name"] == name);
        found.unwrap_or_else(|| panic!("{name}: {all}"))["verdict"].clone()
    }
}

const ASK: &[&str] = &[
    "run",
    "--raw",
    "--temperature",
    "0",
    "--max-tokens",
    "16",
    "model.echo",
    "hello",
];

/// What is not as the row says.
fn problem((runs, place, words, outcome): &Row) -> Option<String> {
    let early = ["constructor", "root", "version", "contract"].contains(place);
    let list: Vec<String> = words.split(',').map(|word| format!("{word:?}")).collect();
    let options = format!("in = {place:?}\ndoes = [{}]", list.join(", "));
    let setup = setup(*runs, if early { "" } else { &options });
    let variable = if early {
        format!("{place}:{words}")
    } else {
        String::new()
    };
    let lacks = |text: &str, parts: &[&str]| {
        let missing = parts.iter().find(|part| !text.contains(**part))?;
        Some(format!("{missing:?} is not in {text:?}"))
    };
    match outcome {
        Verdict(state, parts) => {
            let verdict = setup.verdict("hostile", &variable);
            let line = verdict["message"].as_str().unwrap_or_default();
            if verdict["state"] != *state || line.lines().count() != 1 {
                return Some(format!("{verdict}"));
            }
            let ran = setup.run(ASK, &variable);
            if (ran.code, ran.out.trim()) != (Some(0), "hello") {
                return Some(format!(
                    "another plugin: {:?} {} {}",
                    ran.code, ran.out, ran.err
                ));
            }
            lacks(line, parts)
        }
        Fails(parts) => {
            let mut arguments = ASK.to_vec();
            arguments.extend(["--backend", "hostile"]);
            let ran = setup.run(&arguments, &variable);
            let line = ran.err.lines().last().unwrap_or_default();
            if ran.code != Some(5) {
                return Some(format!("exit code {:?}: {}{}", ran.code, ran.out, ran.err));
            }
            lacks(line, parts)
        }
        Replies => {
            let ran = setup.run(ASK, &variable);
            let right = (ran.code, ran.out.trim()) == (Some(0), "hello");
            (!right).then(|| format!("{:?} {:?} {}", ran.code, ran.out, ran.err))
        }
    }
}

#[test]
fn every_deed_has_its_outcome() {
    module_path("backplane-module-hostile");
    let (next, problems) = (Mutex::new(TABLE.iter()), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for _ in 0..6 {
            scope.spawn(|| {
                loop {
                    let row = next.lock().expect("no panic").next();
                    let Some(row) = row else { break };
                    if let Some(problem) = problem(row) {
                        let (runs, place, words, _) = row;
                        let line = format!("{runs:?} {place} {words}: {problem}");
                        problems.lock().expect("no panic").push(line);
                    }
                }
            });
        }
    });
    let problems = problems.into_inner().expect("no panic");
    assert!(problems.is_empty(), "{}", problems.join("\n"));
}

#[test]
fn limits_that_can_not_be_kept_are_refused() {
    for (entry, expected) in [
        (
            "isolation = \"in-process\"\nmemory_limit = \"1GiB\"",
            "memory_limit needs isolation = \"process\"",
        ),
        (
            "memory_limit = \"1GiB\"",
            "memory_limit needs isolation = \"process\"",
        ),
        (
            "watchdog = \"5s\"",
            "watchdog needs isolation = \"process\"",
        ),
    ] {
        let setup = setup(Here, "");
        let text = std::fs::read_to_string(&setup.manifest).expect("a manifest");
        let old = "isolation = \"in-process\"\nwatchdog = { open = \"3s\" }";
        std::fs::write(&setup.manifest, text.replace(old, entry)).expect("a manifest");
        let verdict = setup.verdict("hostile", "");
        assert_eq!(verdict["state"], "misconfigured", "{entry}: {verdict}");
        let message = verdict["message"].as_str().expect("a message");
        assert!(message.contains(expected), "{entry}: {message}");
    }
}

#[test]
fn the_third_crash_is_remembered_until_it_is_cleared() {
    let setup = setup(Worker, "in = \"load\"\ndoes = [\"abort\"]");
    let ask: Vec<&str> = ASK
        .iter()
        .copied()
        .chain(["--backend", "hostile"])
        .collect();
    for crash in 1..=3 {
        assert_eq!(
            setup.verdict("hostile", "")["state"],
            "available",
            "{crash}"
        );
        assert_eq!(setup.run(&ask, "").code, Some(5), "{crash}");
    }
    // Another host, later: not started any more, and the order goes on.
    let verdict = setup.verdict("hostile", "");
    assert_eq!(verdict["state"], "quarantined", "{verdict}");
    let message = verdict["message"].as_str().expect("a message");
    for part in [
        "3 crashes within 10 minutes",
        " UTC: its process",
        "signal 6 (SIGABRT)",
    ] {
        assert!(message.contains(part), "{message}");
    }
    let action = verdict["action"].as_str().expect("an action");
    assert!(
        action.contains("backplane plugins clear hostile"),
        "{action}"
    );
    let ran = setup.run(ASK, "");
    assert_eq!(
        (ran.code, ran.out.trim()),
        (Some(0), "hello"),
        "{}",
        ran.err
    );
    assert!(ran.err.contains("quarantined"), "{}", ran.err);
    let table = setup.run(&["plugins"], "").out;
    assert!(
        table.contains("quarantined") && table.contains("UTC"),
        "{table}"
    );

    let cleared = setup
        .run(&["plugins", "clear", "HOSTILE", "--json"], "")
        .json();
    assert_eq!(
        cleared["cleared"][0]["crashes"].as_array().map(Vec::len),
        Some(3),
        "{cleared}"
    );
    assert_eq!(setup.verdict("hostile", "")["state"], "available");
    let again = setup.run(&["plugins", "clear", "hostile"], "");
    assert_eq!(again.code, Some(0), "{}", again.err);
    assert!(
        again.out.contains("no crashes of `hostile` are remembered"),
        "{}",
        again.out
    );
    let unknown = setup.run(&["plugins", "clear", "hostil"], "");
    assert_eq!(unknown.code, Some(2), "{}", unknown.err);
    assert!(
        unknown.err.contains("did you mean `hostile`?"),
        "{}",
        unknown.err
    );
}

#[test]
fn another_module_is_tried_again_and_so_is_one_whose_record_is_broken() {
    let setup = setup(Here, "in = \"probe\"\ndoes = [\"abort\"]");
    let module = setup
        .home
        .path()
        .join(format!("m{}", std::env::consts::DLL_SUFFIX));
    std::fs::copy(module_path("backplane-module-hostile"), &module).expect("a copy");
    let text = std::fs::read_to_string(&setup.manifest).expect("a manifest");
    let old = module_path("backplane-module-hostile");
    let (old, new) = (format!("{old:?}"), format!("{module:?}"));
    std::fs::write(&setup.manifest, text.replace(&old, &new)).expect("a manifest");
    let state = |setup: &Setup| setup.verdict("hostile", "")["state"].clone();
    for _ in 0..2 {
        assert_eq!(state(&setup), "crashed");
    }
    assert_eq!(state(&setup), "quarantined");
    assert_eq!(state(&setup), "quarantined");
    // One byte more at its end: another file, and as good a library.
    let mut bytes = std::fs::read(&module).expect("the module");
    bytes.push(0);
    let fresh = setup.home.path().join("fresh");
    std::fs::write(&fresh, bytes).expect("a file");
    std::fs::rename(&fresh, &module).expect("a module");
    assert_eq!(state(&setup), "crashed");

    for text in ["{", "{\"version\": 7, \"records\": []}"] {
        let file = setup.home.path().join("state/backplane/crashes.json");
        std::fs::write(&file, text).expect("a record");
        let ran = setup.run(&["plugins", "--json"], "");
        let warnings = ran.err.lines().filter(|line| line.contains("crashes.json"));
        assert_eq!(warnings.count(), 1, "{}", ran.err);
        assert!(ran.out.contains("\"crashed\""), "{}", ran.out);
        let kept = std::fs::read_to_string(&file).expect("it is left alone");
        assert_eq!(kept, text);
        assert_eq!(
            setup.run(&["plugins", "clear", "hostile"], "").code,
            Some(2)
        );
    }
}

fn lives(pid: &str) -> bool {
    let stat = std::process::Command::new("ps")
        .args(["-o", "stat=", "-p", pid])
        .output();
    let stat = stat.expect("ps runs").stdout;
    let state = String::from_utf8_lossy(&stat).trim().to_owned();
    // One that has ended and that nobody has waited for yet lives no more.
    !state.is_empty() && !state.starts_with('Z')
}

fn children(file: &Path) -> Vec<String> {
    let start = Instant::now();
    loop {
        if let Ok(text) = std::fs::read_to_string(file) {
            return text.lines().map(str::to_owned).collect();
        }
        assert!(
            start.elapsed() < Duration::from_secs(20),
            "no child was started"
        );
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn gone_within_two_seconds(pids: &[String]) {
    let start = Instant::now();
    while pids.iter().any(|pid| lives(pid)) {
        assert!(start.elapsed() < Duration::from_secs(2), "{pids:?} live");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn what_a_worker_started_ends_with_it() {
    // It ends well, by a crash, by the watchdog, by a crash before it is in use.
    for (place, then, code) in [
        ("decode", "", 0),
        ("decode", "abort", 5),
        ("decode", "hang", 5),
        ("load", "exit", 5),
    ] {
        let setup = setup(Worker, "");
        let file = setup.home.path().join("pids");
        let text = std::fs::read_to_string(&setup.manifest).expect("a manifest");
        let options = format!("in = {place:?}\ndoes = [\"fork\", {then:?}]\npids = {file:?}\n");
        std::fs::write(&setup.manifest, text + &options).expect("a manifest");
        let ask: Vec<&str> = ASK
            .iter()
            .copied()
            .chain(["--backend", "hostile"])
            .collect();
        let ran = run(setup.home.path(), &setup.arguments(&ask));
        assert_eq!(ran.code, Some(code), "{place} {then}: {}", ran.err);
        let pids = children(&file);
        assert_eq!(pids.len(), 2);
        if cfg!(target_os = "linux") {
            gone_within_two_seconds(&pids);
        } else {
            gone_within_two_seconds(&pids[..1]);
        }
    }
}

#[test]
fn a_killed_host_leaves_nothing_that_a_worker_started() {
    // The worker generates, or is hung.
    for then in ["", "hang"] {
        let setup = setup(Worker, "");
        let file = setup.home.path().join("pids");
        let text = std::fs::read_to_string(&setup.manifest).expect("a manifest");
        let limits = text.replace("sign = \"2s\"", "sign = \"1h\"");
        let options = format!(
            "in = \"decode\"\ndoes = [\"fork\", {then:?}]\npids = {file:?}\ntoken_delay_ms = 20\n"
        );
        std::fs::write(&setup.manifest, limits + &options).expect("a manifest");
        let prompt = "a long reply ".repeat(100);
        let arguments = [
            "run",
            "--raw",
            "--temperature",
            "0",
            "--backend",
            "hostile",
            "model.echo",
            &prompt,
        ];
        let mut command = command(setup.home.path(), &setup.arguments(&arguments));
        let mut host = command
            .stdout(Stdio::null())
            .spawn()
            .expect("the program starts");
        let mut pids = children(&file);
        pids.extend(workers_of(host.id()));
        assert!(pids.len() >= 3, "two children and a worker: {pids:?}");
        assert!(pids.iter().all(|pid| lives(pid)), "{pids:?}");
        host.kill().expect("SIGKILL");
        host.wait().expect("it has ended");
        if !cfg!(target_os = "linux") {
            pids.remove(1);
        }
        gone_within_two_seconds(&pids);
    }
}

/// Processes that descend from `parent` and run as workers.
fn workers_of(parent: u32) -> Vec<String> {
    let listed = std::process::Command::new("ps")
        .args(["-A", "-o", "pid=,ppid=,args="])
        .output();
    let listed = listed.expect("ps runs").stdout;
    let of = |line: &str| {
        let mut words = line.split_whitespace();
        let pid = words.next()?.to_owned();
        let parents = words.next()?.parse::<u32>().ok()? == parent;
        (parents && line.ends_with(" worker")).then_some(pid)
    };
    String::from_utf8_lossy(&listed)
        .lines()
        .filter_map(of)
        .collect()
}

#[test]
fn where_a_plugin_runs_is_shown() {
    let setup = setup(Worker, "");
    let all = setup.run(&["plugins", "--json"], "").json();
    let of = |name: &str| {
        let plugins = all["plugins"].as_array().expect("plugins");
        let plugin = plugins
            .iter()
            .find(|plugin| plugin["name"] == name)
            .expect("a plugin");
        (
            plugin["isolation"].clone(),
            plugin["isolation_default"].clone(),
        )
    };
    assert_eq!(of("hostile"), ("process".into(), false.into()));
    assert_eq!(of("echo_a"), ("in-process".into(), true.into()));
    let table = setup.run(&["plugins"], "").out;
    assert!(table.contains("in-process (default)"), "{table}");
    let explained = setup.run(&["plugins", "explain", "model.echo"], "").out;
    assert!(explained.contains("runs in: process\n"), "{explained}");
    let explained = setup.run(&["plugins", "explain", "--json"], "").json();
    assert_eq!(
        explained["isolation"]["echo_a"]["isolation"], "in-process",
        "{explained}"
    );

    // A graphics processor's plugin runs in a process where nothing else is said.
    let gpu = "devices = [{ id = \"0000:03:00.0\", name = \"G\", kind = \"gpu\", details = { driver = \"d 1\" } }]";
    let text = std::fs::read_to_string(&setup.manifest).expect("a manifest");
    let text = text.replace("isolation = \"process\"\n", "");
    std::fs::write(&setup.manifest, format!("{text}{gpu}\n")).expect("a manifest");
    let table = setup.run(&["plugins"], "").out;
    assert!(table.contains("process (default)"), "{table}");
}
