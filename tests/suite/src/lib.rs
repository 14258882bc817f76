//! Tests over the whole: the laws of the house, and the product as its users run it.
//!
//! The tests are in `tests/`; this library holds what they share.

pub mod http;
pub mod modules;
pub mod server;
pub mod terminal;

use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The workspace's root folder.
pub fn root() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.ancestors().nth(2).unwrap_or(here).to_path_buf()
}

/// A file of the golden references; a missing one fails the test that asks for it.
///
/// # Panics
/// The file is not there.
pub fn fixture(path: &str) -> PathBuf {
    let folder = std::env::var_os("BACKPLANE_FIXTURES")
        .map_or_else(|| root().join("../shared/fixtures"), PathBuf::from);
    let file = folder.join(path);
    assert!(file.exists(), "fixture {} is missing", file.display());
    file
}

/// A real model, by file name; a missing one fails the test that asks for it.
///
/// # Panics
/// The file is not there.
pub fn real_model(file: &str) -> PathBuf {
    let folder = std::env::var_os("BACKPLANE_TEST_MODELS")
        .map_or_else(|| root().join("cache/models"), PathBuf::from);
    let model = folder.join(file);
    assert!(
        model.exists(),
        "{} is missing: `cargo verify` gets it",
        model.display()
    );
    model
}

/// File name of SmolLM2-135M-Instruct.
pub const SMOLLM2: &str = "SmolLM2-135M-Instruct.Q4_1.gguf";
/// File name of Gemma 3 270M.
pub const GEMMA3: &str = "gemma-3-270m.Q4_K_M.gguf";

/// The staged program: that of the installation in `BACKPLANE_DIST`, else one that is built now, once per test process.
///
/// # Panics
/// It can't be built.
pub fn host() -> PathBuf {
    static HOST: std::sync::OnceLock<PathBuf> = std::sync::OnceLock::new();
    let program = format!("backplane{}", std::env::consts::EXE_SUFFIX);
    HOST.get_or_init(|| {
        if let Some(dist) = std::env::var_os("BACKPLANE_DIST") {
            return PathBuf::from(dist).join(program);
        }
        let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        let mut stage = Command::new(cargo);
        stage
            .args([
                "run",
                "--quiet",
                "--release",
                "--package",
                "backplane-tasks",
                "--",
                "stage",
            ])
            .current_dir(root());
        let output = stage.output().expect("cargo runs");
        assert!(
            output.status.success(),
            "staging failed:\n{}",
            String::from_utf8_lossy(&output.stderr)
        );
        let target = std::env::var_os("CARGO_TARGET_DIR")
            .map_or_else(|| root().join("target"), |dir| root().join(dir));
        target.join("dist").join(program)
    })
    .clone()
}

/// Python with the packages that `cargo verify` installs.
pub fn python() -> Command {
    let program = root().join("cache/venv/bin/python");
    Command::new(std::env::var_os("BACKPLANE_TEST_PYTHON").map_or(program, PathBuf::from))
}

/// The environment of a user whose folders are all under `home`: nothing of the machine's own user is read or written.
pub fn environment(home: &Path) -> Vec<(&'static str, PathBuf)> {
    vec![
        ("HOME", home.to_path_buf()),
        ("XDG_CONFIG_HOME", home.join("config")),
        ("XDG_DATA_HOME", home.join("data")),
        ("XDG_STATE_HOME", home.join("state")),
        ("XDG_CACHE_HOME", home.join("cache")),
    ]
}

/// The staged program with these arguments, as a new user would run it.
pub fn command(home: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(host());
    command
        .args(arguments)
        .stdin(Stdio::null())
        .current_dir(home);
    for name in [
        "BACKPLANE_MANIFEST",
        "BACKPLANE_MODELS",
        "BACKPLANE_CPU",
        "NO_COLOR",
    ] {
        command.env_remove(name);
    }
    command.envs(environment(home));
    command
}

/// What comes out of a pipe, as it comes.
#[derive(Clone, Default)]
pub struct Heard(Arc<Mutex<String>>);

impl Heard {
    /// Listens until the pipe ends.
    pub fn of(mut pipe: impl Read + Send + 'static) -> Self {
        let heard = Self::default();
        let kept = heard.clone();
        std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            while let Ok(read @ 1..) = pipe.read(&mut bytes) {
                kept.lock()
                    .push_str(&String::from_utf8_lossy(&bytes[..read]));
            }
        });
        heard
    }

    fn lock(&self) -> MutexGuard<'_, String> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What was heard, which is forgotten.
    pub fn take(&self) -> String {
        std::mem::take(&mut self.lock())
    }

    /// What was heard.
    pub fn text(&self) -> String {
        self.lock().clone()
    }
}

/// What a run of the program left.
pub struct Ran {
    /// Exit code; `None` where a signal ended it.
    pub code: Option<i32>,
    /// Standard output.
    pub out: String,
    /// Standard error.
    pub err: String,
}

impl From<Output> for Ran {
    fn from(output: Output) -> Self {
        Self {
            code: output.status.code(),
            out: String::from_utf8_lossy(&output.stdout).into_owned(),
            err: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }
}

impl Ran {
    /// Standard output as JSON.
    ///
    /// # Panics
    /// The program failed, or printed no JSON.
    pub fn json(&self) -> serde_json::Value {
        assert_eq!(self.code, Some(0), "{}", self.err);
        serde_json::from_str(&self.out).unwrap_or_else(|error| panic!("{error}:\n{}", self.out))
    }
}

/// Runs the staged program to its end.
///
/// # Panics
/// It can't be started.
pub fn run(home: &Path, arguments: &[&str]) -> Ran {
    command(home, arguments)
        .output()
        .expect("the program starts")
        .into()
}
