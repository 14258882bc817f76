//! `plugins validate` and `plugins inspect`.

use super::{echo_as, home, refused, report, text, write};
use backplane_contract_tests::c_module;
use backplane_tests::{Ran, command, host, root, run};
use serde_json::Value;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::PathBuf;
use std::process::Command;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// The checks of a report that failed, each as `name: detail`.
fn failures(report: &Value) -> Vec<String> {
    let checks = report["checks"].as_array().expect("checks");
    let failed = checks.iter().filter(|check| check["outcome"] == "failed");
    failed
        .map(|check| {
            let words = |key: &str| check[key].as_str().expect("a text").to_owned();
            format!("{}: {}", words("name"), words("detail"))
        })
        .collect()
}

#[test]
fn files_that_are_no_modules_are_named() {
    let home = home();
    let module = echo_as(&home, "echo_a.so");
    let whole = std::fs::read(&module).expect("the module");
    let mut other = whole.clone();
    other[18] = 243;
    let writable = |name: &str| {
        let path = write(&home, name, &whole);
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o666)).expect("a mode");
    };
    writable("open.so");
    write(&home, "text.so", "no module\n");
    write(&home, "empty.so", "");
    write(&home, "cut.so", &whole[..whole.len() / 2]);
    write(&home, "other.so", other);
    std::fs::copy(host(), home.path().join("program.so")).expect("a copy");
    // What is no file at all is wrong usage.
    let fifo = Command::new("mkfifo")
        .arg(home.path().join("fifo.so"))
        .status();
    assert!(fifo.expect("mkfifo runs").success());
    symlink("loop.so", home.path().join("loop.so")).expect("a link");
    for verb in ["validate", "inspect"] {
        for (path, part) in [
            ("missing.so", "no such file"),
            (".", "a folder"),
            ("fifo.so", "not a regular file"),
            ("loop.so", "loop.so"),
        ] {
            refused(&run(home.path(), &["plugins", verb, path]), 2, &[part]);
        }
    }
    for (path, check, part) in [
        ("text.so", "format", "a text file; expected a plugin module"),
        ("empty.so", "format", "an empty file"),
        ("cut.so", "format", "truncated"),
        ("other.so", "format", "built for RISC-V"),
        ("program.so", "symbols", "not a Backplane plugin"),
        ("open.so", "permissions", "writable by everyone"),
    ] {
        let ran = run(home.path(), &["plugins", "validate", path, "--json"]);
        assert_eq!(ran.code, Some(5), "{path}: {}", ran.err);
        let report = report(&ran);
        let failed = failures(&report);
        assert_eq!(failed.len(), 1, "{path}: {failed:?}");
        let right = failed[0].starts_with(check) && failed[0].contains(part);
        assert!(right && !failed[0].contains('\n'), "{path}: {failed:?}");
        let opened = &report["checks"].as_array().expect("checks")[4];
        assert_eq!(
            (&opened["name"], &opened["outcome"]),
            (&"opens".into(), &"not_run".into())
        );
        // For people it is one line, and one for what was not run.
        let ran = run(home.path(), &["plugins", "validate", path]);
        assert_eq!(ran.out.matches("FAIL").count(), 1, "{}", ran.out);
        assert!(ran.out.lines().count() < 10, "{}", ran.out);
    }
}

#[test]
fn a_module_that_keeps_the_contract_is_valid() {
    let home = home();
    let module = echo_as(&home, "echo_a.so");
    let arguments = [
        "plugins",
        "validate",
        text(&module),
        "--model",
        "model.echo",
    ];
    let ran = run(home.path(), &arguments);
    assert_eq!(ran.code, Some(0), "{}\n{}", ran.out, ran.err);
    assert!(
        ran.out.contains("valid: ") && ran.out.contains(" 0 failed"),
        "{}",
        ran.out
    );
    // Without a model, the cases that need one are not applicable.
    let told = run(
        home.path(),
        &["plugins", "validate", text(&module), "--json"],
    )
    .json();
    assert_eq!(told["verdict"], "passed");
    assert!(told["not_applicable"].as_u64() > Some(30), "{told}");
    let only = [
        "plugins",
        "validate",
        text(&module),
        "--only",
        "cancelled",
        "--model",
        "model.echo",
        "--json",
    ];
    let told = run(home.path(), &only).json();
    let names: Vec<&str> = told["checks"]
        .as_array()
        .expect("checks")
        .iter()
        .filter_map(|check| check["name"].as_str())
        .collect();
    assert!(
        names.contains(&"cancelled_in_decode") && !names.contains(&"generates"),
        "{names:?}"
    );
    let ran = run(
        home.path(),
        &["plugins", "validate", text(&module), "--only", "greddy"],
    );
    refused(&ran, 2, &["no case has"]);
    let ran = run(
        home.path(),
        &["plugins", "validate", text(&module), "--model", "gone.echo"],
    );
    refused(&ran, 4, &["gone.echo"]);
    let ran = run(
        home.path(),
        &["plugins", "validate", text(&module), "--time-limit", "0"],
    );
    assert_eq!((ran.code, ran.out.as_str()), (Some(2), ""));
}

#[test]
fn options_of_the_manifest_reach_the_module() {
    let home = home();
    let module = echo_as(&home, "echo_a.so");
    let manifest = |options: &str| {
        write(
            &home,
            "plugins.toml",
            format!("[plugin.echo_a.options]\n{options}\n"),
        )
    };
    let validate = |options: &str| {
        let manifest = manifest(options);
        let arguments = [
            "plugins",
            "validate",
            text(&module),
            "--json",
            "--manifest",
            text(&manifest),
        ];
        run(home.path(), &arguments)
    };
    // Not being available is no fault, and is told by the exit code.
    let ran = validate("probe = \"no_device\"");
    assert_eq!(
        (ran.code, &report(&ran)["verdict"]),
        (Some(3), &"unavailable".into())
    );
    let ran = validate("no_such = 1");
    assert!(ran.out.contains("no such option of echo_a"), "{}", ran.out);
    assert_eq!(ran.code, Some(3));
    for (call, check) in [("new", "opens"), ("probe", "probe"), ("devices", "probe")] {
        let ran = validate(&format!("crash_in = [\"{call}\"]"));
        let failed = failures(&report(&ran));
        assert_eq!((ran.code, failed.len()), (Some(5), 1), "{call}: {failed:?}");
        let right = failed[0].starts_with(check) && failed[0].contains("signal 6 (SIGABRT)");
        assert!(right, "{call}: {failed:?}");
    }
    let ran = validate("panic_in = [\"probe\"]");
    let failed = failures(&report(&ran));
    assert!(
        ran.code == Some(5) && failed[0].contains("told to panic in probe"),
        "{failed:?}"
    );
}

/// A module of the C door that does what the environment says.
fn misbehaving() -> PathBuf {
    const SOURCE: &str = r#"
#define backplane_plugin_v1 dice_plugin_v1
#include "dice.cpp"
#undef backplane_plugin_v1
#include <cstdio>
#include <cstdlib>
#include <unistd.h>

static bool told(const char *what) {
  const char *how = getenv("MISBEHAVE");
  return how && !strcmp(how, what);
}
static void misbehave(const char *where) {
  const auto does = [&](const char *what) { return told((std::string(where) + " " + what).c_str()); };
  if (does("hangs")) for (;;) pause();
  if (does("crashes")) { fprintf(stderr, "crashing in %s\n", where); *static_cast<volatile int *>(nullptr) = 1; }
  if (does("exits")) _exit(0);
  if (does("forks") && fork() == 0) { sleep(5); _exit(0); } // holds standard error meanwhile
  if (does("chatters")) for (int i = 0; i < 100000; ++i) puts("{\"Done\":null} chatter on standard output");
}
__attribute__((constructor)) static void constructed() { misbehave("constructor"); }

static void probe(backplane_backend *backend, backplane_verdict_fn *tell, void *to) {
  misbehave("probe");
  API.backend_probe(backend, tell, to);
}
static backplane_error *load(backplane_backend *backend, backplane_text path, const backplane_load_options *options,
                             backplane_model **out) {
  misbehave("load");
  return API.backend_load(backend, path, options, out);
}
static backplane_error *generate(backplane_model *model, const backplane_prompt *prompt, const backplane_options *options,
                                 const backplane_sink *sink, backplane_completion *out) {
  misbehave("generate");
  return API.model_generate(model, prompt, options, sink, out);
}

extern "C" BACKPLANE_EXPORT const backplane_api_v1 *backplane_plugin_v1(uint32_t major, uint32_t) {
  misbehave("entry");
  static backplane_api_v1 table = API;
  table.backend_probe = probe;
  table.backend_load = load;
  table.model_generate = generate;
  return major == BACKPLANE_MAJOR ? &table : nullptr;
}
"#;
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    let build = || {
        let folder = tempfile::tempdir().expect("a folder");
        let source = folder.path().join("misbehaving.cpp");
        std::fs::write(&source, SOURCE).expect("a source");
        c_module(
            "misbehaving",
            &source,
            &root().join("plugin-api/c"),
            &["-O0"],
        )
    };
    BUILT.get_or_init(build).clone()
}

/// What the module does, where it is found out, and the words for it. `None`: it is no fault.
const MISBEHAVIOUR: &[(&str, Option<(&str, &str)>)] = &[
    (
        "constructor crashes",
        Some(("opens", "signal 11 (SIGSEGV)")),
    ),
    ("constructor exits", Some(("opens", "exit status 0"))),
    (
        "constructor hangs",
        Some(("opens", "did not answer within 10 s")),
    ),
    ("entry crashes", Some(("opens", "crashing in entry"))),
    ("probe crashes", Some(("probe", "crashing in probe"))),
    ("probe exits", Some(("probe", "exit status 0"))),
    ("probe hangs", Some(("probe", "did not answer within 10 s"))),
    ("load crashes", Some(("loads", "signal 11 (SIGSEGV)"))),
    ("load hangs", Some(("loads", "did not answer within 1 s"))),
    (
        "generate crashes",
        Some(("generates", "signal 11 (SIGSEGV)")),
    ),
    ("generate exits", Some(("generates", "exit status 0"))),
    (
        "generate hangs",
        Some(("generates", "did not answer within 1 s")),
    ),
    ("constructor chatters", None),
    ("generate chatters", None),
    ("constructor forks", None),
];

#[test]
fn a_module_that_misbehaves_fails_one_check_in_one_line() {
    let module = misbehaving();
    let home = home();
    let model = write(&home, "model.dice", "anything");
    let started = Instant::now();
    std::thread::scope(|scope| {
        for (how, expected) in MISBEHAVIOUR {
            let (home, module, model) = (home.path(), &module, &model);
            // One case that needs the call, besides what comes before it.
            let case = if how.starts_with("load") {
                "loads"
            } else {
                "generates"
            };
            scope.spawn(move || {
                let arguments = [
                    "plugins",
                    "validate",
                    text(module),
                    "--model",
                    text(model),
                    "--only",
                    case,
                    "--time-limit",
                    "1",
                    "--json",
                ];
                let ran: Ran = command(home, &arguments)
                    .env("MISBEHAVE", how)
                    .output()
                    .expect("the program starts")
                    .into();
                let failed = failures(&report(&ran));
                let Some((check, part)) = expected else {
                    assert_eq!((ran.code, failed), (Some(0), vec![]), "{how}");
                    return;
                };
                assert_eq!((ran.code, failed.len()), (Some(5), 1), "{how}: {failed:?}");
                let line = &failed[0];
                assert!(line.starts_with(check), "{how}: {line}");
                assert!(line.contains(part) && !line.contains('\n'), "{how}: {line}");
            });
        }
    });
    assert!(started.elapsed() < Duration::from_secs(60), "nothing hangs");
}

#[test]
fn a_case_that_crashes_leaves_the_others() {
    let (module, home) = (misbehaving(), home());
    let model = write(&home, "model.dice", "anything");
    let arguments = [
        "plugins",
        "validate",
        text(&module),
        "--model",
        text(&model),
        "--json",
    ];
    let ran: Ran = command(home.path(), &arguments)
        .env("MISBEHAVE", "generate crashes")
        .output()
        .expect("the program starts")
        .into();
    let told = report(&ran);
    let failed = failures(&told);
    // Every case that generates would crash; after three the rest is not run.
    assert_eq!((ran.code, failed.len()), (Some(5), 3), "{failed:?}");
    assert!(
        failed.iter().all(|line| line.contains("SIGSEGV")),
        "{failed:?}"
    );
    assert!(
        told["passed"].as_u64() > Some(10) && told["not_run"].as_u64() > Some(20),
        "{told}"
    );
}

#[test]
fn a_module_is_described_without_being_run() {
    let (module, home) = (misbehaving(), home());
    let inspect = |more: &[&str], how: &str| -> Ran {
        let mut arguments = vec!["plugins", "inspect", text(&module), "--json"];
        arguments.extend(more);
        let mut command = command(home.path(), &arguments);
        command
            .env("MISBEHAVE", how)
            .output()
            .expect("the program starts")
            .into()
    };
    let told = inspect(&["--file-only"], "constructor crashes").json();
    assert_eq!(
        (&told["module"], &told["file"]["door"]),
        (&Value::Null, &"c".into())
    );
    let listed = |key: &str| told["file"][key].as_array().expect("a list").clone();
    assert!(
        listed("exported").contains(&"backplane_plugin_v1".into()),
        "{told}"
    );
    assert!(!listed("needed").is_empty(), "{told}");
    let sha256 = told["file"]["sha256"].as_str().expect("a hash");
    assert!(sha256.len() == 64 && sha256.bytes().all(|byte| byte.is_ascii_hexdigit()));
    // Asked in a child: what it states, or how it fell.
    let told = inspect(&[], "").json();
    assert_eq!(
        (&told["module"]["name"], &told["module"]["version"]),
        (&"dice".into(), &"1.0.0".into())
    );
    let ran = inspect(&[], "constructor crashes");
    assert_eq!(ran.code, Some(5));
    let error = report(&ran)["module"]["error"]
        .as_str()
        .expect("an error")
        .to_owned();
    assert!(error.contains("SIGSEGV"), "{error}");
    let told = inspect(&[], "probe crashes").json();
    assert_eq!(told["module"]["verdict"]["state"], "crashed");
    // A module in Rust, and a library that is none.
    let echo = echo_as(&home, "echo_a.so");
    let told = run(home.path(), &["plugins", "inspect", text(&echo), "--json"]).json();
    assert_eq!(told["file"]["door"], "rust");
    assert_eq!(
        told["module"]["capabilities"],
        serde_json::json!(["check/1", "convert/1"])
    );
    let ran = run(home.path(), &["plugins", "inspect", text(&echo)]);
    assert!(
        ran.out.contains("read from the file:") && ran.out.contains("asked of the module"),
        "{}",
        ran.out
    );
}
