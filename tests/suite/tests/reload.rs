//! Modules that are added, replaced, broken and removed while a conversation goes on.
#![cfg(unix)]

use backplane_tests::modules::{move_over, place, variant, write_manifest};
use backplane_tests::{Heard, command};
use std::io::Write;
use std::path::PathBuf;
use std::process::{Child, ChildStdin, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// A user with modules of their own, in a conversation over a pipe.
struct Talk {
    home: TempDir,
    child: Child,
    input: ChildStdin,
    out: Heard,
    err: Heard,
}

impl Talk {
    fn start(modules: &[(&str, &str)], manifest: &str) -> Self {
        let home = tempfile::tempdir().expect("a folder");
        std::fs::create_dir(home.path().join("modules")).expect("a folder");
        std::fs::write(home.path().join("model.echo"), "anything").expect("a model");
        for (name, module) in modules {
            std::fs::write(place(home.path(), name), variant(module, "")).expect("a module");
        }
        let file = write_manifest(home.path(), manifest);
        let arguments = [
            "--manifest",
            &file,
            "chat",
            "--temperature",
            "0",
            "model.echo",
        ];
        let mut child = command(home.path(), &arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the program starts");
        let input = child.stdin.take().expect("standard input");
        let out = Heard::of(child.stdout.take().expect("standard output"));
        let err = Heard::of(child.stderr.take().expect("standard error"));
        let talk = Self {
            home,
            child,
            input,
            out,
            err,
        };
        talk.hear(&talk.err, "loaded by");
        talk
    }

    fn module(&self, name: &str) -> PathBuf {
        place(self.home.path(), name)
    }

    fn manifest(&self, text: &str) {
        write_manifest(self.home.path(), text);
    }

    fn hear(&self, heard: &Heard, expected: &str) -> String {
        let start = Instant::now();
        while !heard.text().contains(expected) {
            let (out, err) = (self.out.text(), self.err.text());
            let late = start.elapsed() > Duration::from_secs(15);
            assert!(!late, "{expected:?} is not in:\n{out}\n{err}");
            std::thread::sleep(Duration::from_millis(5));
        }
        heard.take()
    }

    fn enter(&mut self, line: &str) {
        writeln!(self.input, "{line}").expect("the program listens");
    }

    /// A message gets its reply, without those before it.
    fn says(&mut self, text: &str) {
        self.enter("/reset");
        self.enter(text);
        self.hear(&self.out, text);
    }

    /// A line that is answered on standard error.
    fn tells(&mut self, line: &str, expected: &str) -> String {
        self.err.take();
        self.enter(line);
        let heard = self.hear(&self.err, expected);
        // What follows it in the same answer.
        std::thread::sleep(Duration::from_millis(50));
        heard + &self.err.take()
    }

    fn end(mut self) {
        self.enter("/exit");
        let code = self.child.wait().expect("it ends").code();
        assert_eq!(code, Some(0), "{}", self.err.text());
    }

    /// Workers that run for it.
    fn workers(&self) -> usize {
        let output = std::process::Command::new("ps")
            .args(["-A", "-o", "ppid=,stat=,args="])
            .output()
            .expect("ps runs");
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let ours = self.child.id().to_string();
        let worker = |line: &&str| {
            let mut words = line.split_whitespace();
            words.next() == Some(&ours)
                && words.next().is_some_and(|stat| !stat.starts_with('Z'))
                && line.ends_with(" worker")
        };
        text.lines().filter(worker).count()
    }

    fn waits_for_workers(&self, count: usize) {
        let start = Instant::now();
        while self.workers() != count {
            assert!(
                start.elapsed() < Duration::from_secs(5),
                "{} workers",
                self.workers()
            );
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

#[test]
fn a_module_that_is_overwritten_in_use_does_no_harm_and_a_new_one_takes_over() {
    let mut talk = Talk::start(&[("echo_a", "echo-a")], "");
    talk.says("one");
    assert_eq!(
        talk.tells("/reload", "changed").trim(),
        "nothing has changed"
    );
    // In place, as `cp` does it: the pages of a file that is mapped would change, and be gone.
    std::fs::write(talk.module("echo_a"), "not a module").expect("written over");
    talk.says("two");
    let told = talk.tells("/reload", "refused");
    assert!(told.contains("the new module is not used"), "{told}");
    talk.says("three");
    let told = talk.tells("/plugins", "not used");
    assert!(told.contains("a text file"), "the reason is kept: {told}");
    assert_eq!(talk.workers(), 0, "it runs in the host's process");

    move_over(&talk.module("echo_a"), &variant("echo-a", "another"));
    let told = talk.tells("/reload", "answers as before");
    assert!(told.contains("replaced"), "{told}");
    assert!(!talk.tells("/plugins", "echo_a").contains("not used"));
    talk.waits_for_workers(1);
    talk.says("four");

    // And again, in place: the old worker is let go.
    std::fs::write(talk.module("echo_a"), variant("echo-a", "a third")).expect("written over");
    talk.says("five");
    talk.tells("/reload", "answers as before");
    talk.waits_for_workers(1);
    talk.says("six");
    assert_eq!(
        talk.tells("/reload", "changed").trim(),
        "nothing has changed"
    );
    talk.end();
}

#[test]
fn modules_come_and_go() {
    let mut talk = Talk::start(&[("echo_a", "echo-a")], "");
    move_over(&talk.module("echo_b"), &variant("echo-b", ""));
    std::fs::write(talk.module("echo_c"), "half a mod").expect("a file");
    let told = talk.tells("/reload", "echo_b 0.1.0: added");
    assert!(told.contains("echo_c: added: incompatible"), "{told}");
    assert_eq!(
        talk.tells("/reload", "changed").trim(),
        "nothing has changed"
    );
    talk.says("one");
    std::fs::remove_file(talk.module("echo_a")).expect("it was there");
    let told = talk.tells("/reload", "echo_a 0.1.0: removed");
    assert!(told.contains("is run by echo_b"), "{told}");
    talk.says("two");
    // The last one that can run it: the model stays on it.
    std::fs::remove_file(talk.module("echo_b")).expect("it was there");
    let told = talk.tells("/reload", "echo_b 0.1.0: removed");
    assert!(told.contains("could not be moved"), "{told}");
    talk.says("three");
    talk.tells("/load model.echo", "loaded already");
    talk.tells("/unload", "is unloaded");
    talk.tells("/load model.echo", "error");
    move_over(&talk.module("echo_a"), &variant("echo-a", ""));
    talk.tells("/reload", "echo_a 0.1.0: added");
    talk.tells("/load model.echo", "loaded by echo_a");
    talk.says("four");
    talk.enter("/exit");
    // A command failed, and a script is to know.
    assert_ne!(talk.child.wait().expect("it ends").code(), Some(0));
}

#[test]
fn what_fails_its_first_answers_takes_nothing_over() {
    let entry = |options: &str| {
        format!("[plugin.echo_a]\nisolation = \"process\"\n[plugin.echo_a.options]\n{options}")
    };
    let mut talk = Talk::start(&[("echo_a", "echo-a")], &entry(""));
    talk.says("one");
    for (options, why) in [
        ("panic_in = [\"load\"]", "loading fails"),
        ("panic_in = [\"generate\"]", "a greedy request fails"),
        ("crash_in = [\"generate\"]", "SIGABRT"),
        ("crash_in = [\"load\"]", "SIGABRT"),
        ("probe = \"no_device\"", "no device"),
        ("nonsense = 1", "options.nonsense"),
    ] {
        talk.manifest(&entry(options));
        let told = talk.tells("/reload", "refused");
        assert!(told.contains(why), "{options}: {told}");
        assert!(!told.trim().contains('\n'), "one line: {told}");
        talk.says("still here");
    }
    talk.manifest(&entry("token_delay_ms = 1"));
    talk.tells("/reload", "answers as before");
    talk.waits_for_workers(1);
    talk.says("two");
    // A manifest that is wrong changes nothing.
    talk.manifest("fallbakc = \"deny\"");
    let told = talk.tells("/reload", "error");
    assert!(told.contains("plugins.toml:2:1: unknown key"), "{told}");
    talk.says("three");
    talk.manifest(&format!(
        "{}\n",
        entry("").replace("\n[", "\nenabled = false\n[")
    ));
    let told = talk.tells("/reload", "removed");
    assert!(told.contains("switched off"), "{told}");
    talk.enter("/exit");
    assert_ne!(talk.child.wait().expect("it ends").code(), Some(0));
}

#[test]
fn a_model_whose_worker_crashed_is_loaded_anew() {
    let entry = |options: &str| {
        format!("[plugin.panics]\nisolation = \"process\"\n[plugin.panics.options]\n{options}")
    };
    let crashing = entry("crash_in = [\"chat\"]");
    let mut talk = Talk::start(&[("panics", "panics")], &crashing);
    let told = talk.tells("one", "SIGABRT");
    assert!(told.contains("the worker of plugin `panics`"), "{told}");
    talk.manifest(&entry(""));
    let told = talk.tells("/reload", "replaced");
    assert!(told.contains("is run by panics"), "{told}");
    talk.says("two");
    talk.waits_for_workers(1);
    talk.enter("/exit");
    assert_ne!(talk.child.wait().expect("it ends").code(), Some(0));
}
