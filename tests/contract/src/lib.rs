//! Builds plugin modules for tests, once a process, and says where they are.
//!
//! `cargo verify` builds all of them together with the tests and names Cargo's folder in `BACKPLANE_BUILT`: then nothing is
//! built here.
//!
//! ```no_run
//! let module = backplane_contract_tests::module_path("backplane-module-echo-a");
//! ```

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, OnceLock, PoisonError};

/// The root of the workspace.
pub fn workspace_root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../..")
        .canonicalize()
        .expect("the workspace is where it was built")
}

/// Where tests build: `CARGO_TARGET_DIR`, else the workspace's `target`.
pub fn target_dir() -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(
        || workspace_root().join("target"),
        |dir| workspace_root().join(dir),
    )
}

/// Path of the module, or the program, that a package of this workspace builds; builds it when it is out of date.
///
/// # Panics
/// It can't be built; the compiler's words are in the message.
pub fn module_path(package: &str) -> PathBuf {
    let module = format!(
        "{}{}{}",
        std::env::consts::DLL_PREFIX,
        package.replace('-', "_"),
        std::env::consts::DLL_SUFFIX
    );
    let program = format!("{package}{}", std::env::consts::EXE_SUFFIX);
    built(&module)
        .or_else(|| built(&program))
        .unwrap_or_else(|| build_once(package, &["build"], &[]))
}

/// A file of the folder that `BACKPLANE_BUILT` names, where one is named and it is there.
pub fn built(file: &str) -> Option<PathBuf> {
    let folder = PathBuf::from(std::env::var_os("BACKPLANE_BUILT")?);
    Some(folder.join(file)).filter(|path| path.exists())
}

/// As [`module_path()`], with panics that abort.
///
/// # Panics
/// It can't be built.
pub fn aborting_module_path(package: &str) -> PathBuf {
    build_once(package, &["rustc", "--lib"], &["--", "-C", "panic=abort"])
}

fn build_once(package: &str, command: &[&str], flags: &[&str]) -> PathBuf {
    static BUILT: OnceLock<Mutex<HashMap<String, PathBuf>>> = OnceLock::new();
    let mut built = BUILT
        .get_or_init(Mutex::default)
        .lock()
        .unwrap_or_else(PoisonError::into_inner);
    built
        .entry(package.to_owned())
        .or_insert_with(|| build(&workspace_root(), &target_dir(), package, command, flags))
        .clone()
}

/// Builds a package of the workspace at `root` and gives the path of its `cdylib`, or of its program.
///
/// # Panics
/// It can't be built.
pub fn build(
    root: &Path,
    target: &Path,
    package: &str,
    command: &[&str],
    flags: &[&str],
) -> PathBuf {
    let output = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
        .args(command)
        .args([
            "--quiet",
            "--offline",
            "--message-format=json",
            "--package",
            package,
        ])
        .args(flags)
        .current_dir(root)
        .env("CARGO_TARGET_DIR", target)
        .output()
        .expect("cargo runs");
    let lines = String::from_utf8_lossy(&output.stdout);
    let messages: Vec<serde_json::Value> = lines
        .lines()
        .filter_map(|line| serde_json::from_str(line).ok())
        .collect();
    if !output.status.success() {
        let rendered: String = messages
            .iter()
            .filter_map(|one| one["message"]["rendered"].as_str())
            .collect();
        panic!(
            "{package} does not build:\n{rendered}\n{}",
            String::from_utf8_lossy(&output.stderr)
        );
    }
    let is_module = |file: &&str| file.ends_with(std::env::consts::DLL_SUFFIX);
    messages
        .iter()
        .rfind(|one| {
            let kind = &one["target"]["kind"][0];
            one["reason"] == "compiler-artifact"
                && one["target"]["name"]
                    .as_str()
                    .is_some_and(|name| name.replace('-', "_") == package.replace('-', "_"))
                && (kind == "cdylib" || kind == "bin")
        })
        .and_then(|one| {
            let files = one["filenames"]
                .as_array()?
                .iter()
                .filter_map(|file| file.as_str());
            files
                .clone()
                .find(is_module)
                .or(one["executable"].as_str())
                .map(PathBuf::from)
        })
        .unwrap_or_else(|| panic!("cargo built {package} and named no module"))
}

/// Path of the sample backend of the C door, built with the machine's compiler.
///
/// # Panics
/// It can't be built.
pub fn c_sample() -> PathBuf {
    let header = workspace_root().join("plugin-api/c");
    let source = header.join("sample/dice.cpp");
    c_module("dice", &source, &header, &[])
}

/// Builds a module of the C door from a C++ source, against the header in `include`, into a file `{name}` of its own.
///
/// # Panics
/// It can't be built; the compiler's words are in the message.
pub fn c_module(name: &str, source: &Path, include: &Path, flags: &[&str]) -> PathBuf {
    let folder = target_dir().join("c-modules");
    std::fs::create_dir_all(&folder).expect("a folder for C modules");
    let module = folder.join(format!("{name}{}", std::env::consts::DLL_SUFFIX));
    // Under a name of this process first: other test processes may build, or have opened, the same module.
    let fresh = folder.join(format!("{name}-{}.new", std::process::id()));
    let compiler = std::env::var_os("CXX").unwrap_or_else(|| "c++".into());
    let output = Command::new(&compiler)
        .args([
            "-std=c++17",
            "-O1",
            "-Wall",
            "-Wextra",
            "-Werror",
            "-shared",
            "-fPIC",
            "-fvisibility=hidden",
            "-I",
        ])
        .arg(include)
        .arg("-I")
        .arg(workspace_root().join("plugin-api/c/sample"))
        .args(flags)
        .arg("-o")
        .arg(&fresh)
        .arg(source)
        .output()
        .unwrap_or_else(|error| panic!("{}: {error}", compiler.display()));
    assert!(
        output.status.success(),
        "{name}:\n{}",
        String::from_utf8_lossy(&output.stderr)
    );
    std::fs::rename(&fresh, &module).expect("the module's place is writable");
    module
}
