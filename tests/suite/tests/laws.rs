//! The laws of the house: which crate may know which, and what may stand in the repository.

use backplane_tests::root;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;

/// The rooms of the house, by the folder of a package.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Room {
    Api,
    Host,
    Plugin,
    Shared(u8, bool),
    Tests,
}

/// Levels of the shared crates: an arrow goes to a lower level only. `true`: may know the contract.
const SHARED: &[(&str, u8, bool)] = &[
    ("text-engine", 5, true),
    ("llama-server", 5, true),
    ("cpu-device", 4, false),
    ("models", 3, false),
    ("program", 2, false),
    ("tokenizer", 1, false),
    ("weights", 0, false),
    ("machine", 0, false),
];

fn room(folder: &str) -> Room {
    if let Some(shared) = folder.strip_prefix("plugins/shared/") {
        let (_, level, contract) = SHARED
            .iter()
            .find(|(name, ..)| *name == shared)
            .unwrap_or_else(|| panic!("{folder}: no level is stated for it"));
        Room::Shared(*level, *contract)
    } else if folder.starts_with("plugins/") {
        Room::Plugin
    } else if folder.starts_with("plugin-api") {
        Room::Api
    } else if folder == "host" {
        Room::Host
    } else if folder.starts_with("tests/") {
        Room::Tests
    } else {
        panic!("{folder}: a package outside the ground plan")
    }
}

/// Why an arrow must not be, or `None`.
fn forbidden(from: Room, to: Room) -> Option<&'static str> {
    match (from, to) {
        (Room::Tests, _) | (Room::Api, Room::Api) => None,
        (_, Room::Tests) => Some("anything to tests"),
        (Room::Api, _) => Some("the contract knows nobody"),
        (Room::Host, Room::Api) => None,
        (Room::Host, _) => Some("host to plugins"),
        (Room::Plugin, Room::Plugin) => Some("plugin to plugin"),
        (Room::Shared(..), Room::Plugin) => Some("shared upward to a plugin"),
        (_, Room::Host) => Some("plugins to host"),
        (Room::Shared(_, false), Room::Api) => Some("shared crates to the contract"),
        (Room::Shared(from, _), Room::Shared(to, _)) if to >= from => Some("shared crates upward"),
        _ => None,
    }
}

fn packages() -> BTreeMap<String, (String, Vec<(String, bool)>)> {
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    let output = cargo
        .args(["metadata", "--no-deps", "--format-version", "1"])
        .current_dir(root())
        .output()
        .expect("cargo");
    let metadata: Value =
        serde_json::from_slice(&output.stdout).expect("cargo metadata gives JSON");
    let base = metadata["workspace_root"]
        .as_str()
        .expect("workspace_root")
        .to_owned()
        + "/";
    let list = metadata["packages"].as_array().expect("packages");
    list.iter()
        .map(|package| {
            let manifest = package["manifest_path"].as_str().expect("manifest_path");
            let folder = manifest
                .strip_prefix(&base)
                .expect("inside the workspace")
                .trim_end_matches("/Cargo.toml");
            let dependencies = package["dependencies"].as_array().expect("dependencies");
            let dependencies = dependencies.iter().map(|dependency| {
                (
                    dependency["name"].as_str().expect("name").to_owned(),
                    dependency["kind"] == "dev",
                )
            });
            (
                package["name"].as_str().expect("name").to_owned(),
                (folder.to_owned(), dependencies.collect()),
            )
        })
        .collect()
}

#[test]
fn no_forbidden_arrow() {
    let packages = packages();
    let mut broken = Vec::new();
    for (name, (folder, dependencies)) in &packages {
        for (dependency, dev) in dependencies {
            let Some((target, _)) = packages.get(dependency) else {
                continue;
            };
            if let (false, Some(why)) = (*dev, forbidden(room(folder), room(target))) {
                broken.push(format!("{name} -> {dependency}: {why}"));
            }
        }
    }
    assert!(broken.is_empty(), "{}", broken.join("\n"));
    assert!(packages.len() > 10, "the whole workspace was looked at");
}

#[test]
fn the_law_can_fail() {
    assert_eq!(forbidden(Room::Host, Room::Plugin), Some("host to plugins"));
    assert_eq!(forbidden(Room::Plugin, Room::Host), Some("plugins to host"));
    assert_eq!(
        forbidden(Room::Shared(2, false), Room::Shared(3, false)),
        Some("shared crates upward")
    );
    assert_eq!(
        forbidden(Room::Shared(4, false), Room::Api),
        Some("shared crates to the contract")
    );
    assert_eq!(forbidden(Room::Shared(5, true), Room::Api), None);
    assert_eq!(
        forbidden(Room::Api, Room::Shared(0, false)),
        Some("the contract knows nobody")
    );
}

fn tracked_files() -> Vec<String> {
    let output = Command::new("git")
        .args(["ls-files", "-z"])
        .current_dir(root())
        .output()
        .expect("git");
    String::from_utf8(output.stdout)
        .expect("UTF-8 names")
        .split_terminator('\0')
        .map(str::to_owned)
        .collect()
}

#[test]
fn the_top_level_is_as_planned() {
    let folders: BTreeSet<String> = tracked_files()
        .iter()
        .filter_map(|file| file.split_once('/').map(|(top, _)| top.to_owned()))
        .collect();
    let planned = [
        ".cargo",
        ".ci",
        "docs",
        "host",
        "plugin-api",
        "plugins",
        "tests",
    ];
    assert_eq!(folders.into_iter().collect::<Vec<_>>(), planned);
}

/// Files of `models` that are no architecture: what architectures are built from. (Folders there hold none.)
const SHARED_PIECES: &[&str] = &[
    "blocks.rs",
    "convert.rs",
    "error.rs",
    "hyperparameters.rs",
    "lib.rs",
    "rope.rs",
    "summary.rs",
];

#[test]
fn files_stay_readable() {
    let mut broken = Vec::new();
    for file in tracked_files() {
        let Ok(bytes) = std::fs::read(root().join(&file)) else {
            continue;
        };
        if bytes.len() > 1_000_000 {
            broken.push(format!("{file}: {} bytes, at most 1,000,000", bytes.len()));
        }
        let lines = bytes.iter().filter(|byte| **byte == b'\n').count();
        if file.ends_with(".rs") && lines > 800 {
            broken.push(format!("{file}: {lines} lines, at most 800"));
        }
        let architecture = file
            .strip_prefix("plugins/shared/models/src/")
            .filter(|name| !name.contains('/') && !SHARED_PIECES.contains(name));
        if architecture.is_some() && lines > 250 {
            broken.push(format!("{file}: {lines} lines, at most 250"));
        }
    }
    assert!(broken.is_empty(), "{}", broken.join("\n"));
}

#[test]
fn nothing_of_one_machine() {
    // Spelled in pieces, so that this file does not break its own law.
    let words = [
        ["/ro", "ot/"],
        ["/ho", "me/"],
        ["/wo", "rk/"],
        ["pypi", ".org"],
        ["crates", ".io/"],
        ["npmjs", ".com"],
    ];
    let mut broken = Vec::new();
    for file in tracked_files().iter().filter(|file| *file != "Cargo.lock") {
        let Ok(text) = std::fs::read_to_string(root().join(file)) else {
            continue;
        };
        for (number, line) in text.lines().enumerate() {
            for word in words
                .iter()
                .map(|pieces| pieces.concat())
                .filter(|word| line.contains(word))
            {
                broken.push(format!("{file}:{}: {word}", number + 1));
            }
        }
    }
    assert!(broken.is_empty(), "{}", broken.join("\n"));
}
