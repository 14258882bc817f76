//! Homes with test modules in them.

use backplane_contract_tests::module_path;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

/// A folder with the test modules of these names (`echo-a`), a model that they run, and a manifest; and the manifest's path.
///
/// # Panics
/// A module can't be built, or a file not written.
pub fn home(names: &[&str], manifest: &str) -> (TempDir, String) {
    let home = tempfile::tempdir().expect("a folder");
    std::fs::create_dir(home.path().join("modules")).expect("a folder");
    for name in names {
        move_over(&place(home.path(), name), &variant(name, ""));
    }
    std::fs::write(home.path().join("model.echo"), "anything").expect("a model");
    let file = write_manifest(home.path(), manifest);
    (home, file)
}

/// Writes the manifest of such a folder anew, in one move; its path.
///
/// # Panics
/// It can't be written.
pub fn write_manifest(home: &Path, text: &str) -> String {
    let file = home.join("plugins.toml");
    let text = format!("directories = [\"modules\"]\n{text}\n");
    move_over(&file, text.as_bytes());
    file.to_str().expect("UTF-8").to_owned()
}

/// Where a test module lies in such a folder.
pub fn place(home: &Path, name: &str) -> PathBuf {
    let file = format!("{}{}", name.replace('-', "_"), std::env::consts::DLL_SUFFIX);
    home.join("modules").join(file)
}

/// The bytes of a test module, and nothing that it does, made others than they are.
///
/// # Panics
/// It can't be built.
pub fn variant(name: &str, more: &str) -> Vec<u8> {
    let built = module_path(&format!("backplane-module-{name}"));
    let mut bytes = std::fs::read(built).expect("a module");
    bytes.extend(more.as_bytes());
    bytes
}

/// Puts another file at a place in one move.
///
/// # Panics
/// It can't be written.
pub fn move_over(path: &Path, bytes: &[u8]) {
    let fresh = path.with_extension("new");
    std::fs::write(&fresh, bytes).expect("a file");
    std::fs::rename(fresh, path).expect("a file");
}
