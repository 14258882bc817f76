//! A first project: a small backend that works, for its author to change.

use crate::error::{Error, Result};
use crate::folders::Folders;
use std::fmt;
use std::fs;
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};

/// Longest name, in letters; the loader takes as long ones.
const LONGEST: usize = 64;

/// The environment variable that names the SDK where `--sdk` does not.
const VARIABLE: &str = "BACKPLANE_SDK";

/// The files of the templates: where they go, and their text. `NAME`, `TITLE` and `SDK…` in them are filled in.
const RUST: &[(&str, &str)] = &[
    (
        "Cargo.toml",
        include_str!("../../templates/rust/Cargo.toml.in"),
    ),
    (
        "README.md",
        include_str!("../../templates/rust/README.md.in"),
    ),
    ("src/lib.rs", include_str!("../../templates/rust/lib.rs.in")),
    (
        "src/model.rs",
        include_str!("../../templates/rust/model.rs.in"),
    ),
    (
        "src/stream.rs",
        include_str!("../../templates/rust/stream.rs.in"),
    ),
    (
        "tests/conformance.rs",
        include_str!("../../templates/rust/conformance.rs.in"),
    ),
    ("sample.NAME", include_str!("../../templates/sample.txt")),
    (".gitignore", "/target\n"),
];

const C: &[(&str, &str)] = &[
    ("Makefile", include_str!("../../templates/c/Makefile.in")),
    ("README.md", include_str!("../../templates/c/README.md.in")),
    (
        "NAME.cpp",
        include_str!("../../../plugin-api/c/sample/dice.cpp"),
    ),
    (
        "backplane_plugin.h",
        include_str!("../../../plugin-api/c/backplane_plugin.h"),
    ),
    ("sample.NAME", include_str!("../../templates/sample.txt")),
    (".gitignore", "/build\n"),
];

/// Words that no crate may be named.
const RESERVED: &[&str] = &[
    "abstract",
    "as",
    "async",
    "await",
    "become",
    "box",
    "break",
    "const",
    "continue",
    "crate",
    "do",
    "dyn",
    "else",
    "enum",
    "extern",
    "false",
    "final",
    "fn",
    "for",
    "gen",
    "if",
    "impl",
    "in",
    "let",
    "loop",
    "macro",
    "match",
    "mod",
    "move",
    "mut",
    "override",
    "priv",
    "pub",
    "ref",
    "return",
    "self",
    "static",
    "struct",
    "super",
    "trait",
    "true",
    "try",
    "type",
    "typeof",
    "unsafe",
    "unsized",
    "use",
    "virtual",
    "where",
    "while",
    "yield",
    "test",
    "core",
    "std",
    "alloc",
    "proc_macro",
    "build",
    "deps",
    "examples",
    "incremental",
];

/// A plugin's name, if it can be one.
///
/// # Errors
/// What is wrong with it.
pub(crate) fn check_name(name: &str) -> Result<&str> {
    let found = |what: &str| {
        let shown: String = name.chars().take(LONGEST + 1).collect();
        let action =
            "use lower-case letters, digits and `_`, beginning with a letter, such as `parrot`";
        Err(Error::usage(
            format!("the plugin name {shown:?} {what}"),
            action,
        ))
    };
    if name.is_empty() {
        return found("is empty");
    }
    if name.len() > LONGEST {
        return found(&format!("is longer than {LONGEST} letters"));
    }
    let letters = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_';
    if !name.bytes().all(letters) {
        return found("has other letters than a to z, digits and `_`");
    }
    if !name.as_bytes()[0].is_ascii_lowercase() {
        return found("does not begin with a letter");
    }
    if RESERVED.contains(&name) {
        return found("is a word of Rust or Cargo");
    }
    if name.starts_with("lib") || name.starts_with("backplane_") {
        return found(
            "begins as file names of modules do (`lib`, `backplane_`), which is taken off",
        );
    }
    Ok(name)
}

/// Where a Rust crate gets the contract from: the SDK is on no registry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Sdk {
    /// The folder `plugin-api` of a source tree, absolute.
    Folder(PathBuf),
    /// A Git repository, with what to check out of it.
    Git(String, Option<String>),
}

impl fmt::Display for Sdk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Folder(folder) => write!(f, "{}", folder.display()),
            Self::Git(url, None) => f.write_str(url),
            Self::Git(url, Some(rev)) => write!(f, "{url}#{rev}"),
        }
    }
}

impl Sdk {
    /// The one that was named, by the caller or the environment; else that of the source tree in which this program stands.
    ///
    /// # Errors
    /// There is none, or it is no SDK.
    pub(crate) fn find(named: Option<&str>, folders: &Folders) -> Result<Self> {
        let variable = std::env::var(VARIABLE)
            .ok()
            .filter(|value| !value.is_empty());
        if let Some(named) = named.or(variable.as_deref()) {
            return Self::named(named, folders);
        }
        let places = folders
            .executable
            .iter()
            .flat_map(|folder| folder.ancestors());
        places
            .map(|folder| folder.join("plugin-api"))
            .find(|folder| is_sdk(folder))
            .map(Self::Folder)
            .ok_or_else(|| {
                Error::usage(
                    "the place of the Rust SDK is not known: it is on no registry, and this program stands in no source tree",
                    "name it with --sdk: the folder plugin-api of a source tree, or the URL of its Git repository",
                )
            })
    }

    fn named(named: &str, folders: &Folders) -> Result<Self> {
        if named.contains("://") || named.starts_with("git@") {
            if named
                .chars()
                .any(|c| c.is_control() || c.is_whitespace() || c == '"' || c == '\\')
            {
                let message = format!("--sdk {named:?}: expected a URL");
                return Err(Error::usage(message, "write it without spaces and quotes"));
            }
            return Ok(match named.split_once('#') {
                Some((url, rev)) if !rev.is_empty() => {
                    Self::Git(url.to_owned(), Some(rev.to_owned()))
                }
                _ => Self::Git(named.trim_end_matches('#').to_owned(), None),
            });
        }
        let folder = folders.expand(Path::new(named));
        let wrong = |what: &str| {
            let message = format!("--sdk {}: {what}", folder.display());
            Error::usage(
                message,
                "name the folder plugin-api of a source tree of Backplane, or a URL",
            )
        };
        let real = folder
            .canonicalize()
            .map_err(|error| wrong(&crate::error::plain(&error)))?;
        // The source tree itself is as good.
        let inner = real.join("plugin-api");
        let real = if is_sdk(&inner) { inner } else { real };
        if !is_sdk(&real) {
            return Err(wrong("no crate `backplane-plugin-api` is there"));
        }
        if real.to_str().is_none() {
            return Err(wrong("the path is not UTF-8, as Cargo.toml is"));
        }
        Ok(Self::Folder(real))
    }

    /// The line of a dependency on one of its crates, of the folder `inner` in it.
    fn dependency(&self, package: &str, inner: &str) -> String {
        match self {
            Self::Folder(folder) => {
                let folder = if inner.is_empty() {
                    folder.clone()
                } else {
                    folder.join(inner)
                };
                format!(
                    "{package} = {{ path = {} }}",
                    quoted(&folder.to_string_lossy())
                )
            }
            Self::Git(url, rev) => {
                let rev = rev.as_ref().map(|rev| format!(", rev = {}", quoted(rev)));
                format!(
                    "{package} = {{ git = {}{} }}",
                    quoted(url),
                    rev.unwrap_or_default()
                )
            }
        }
    }
}

/// A text of TOML in quotes.
fn quoted(text: &str) -> String {
    toml_edit::Value::from(text).to_string().trim().to_owned()
}

/// Whether a folder is the contract's crate, with the suite beside it.
fn is_sdk(folder: &Path) -> bool {
    let names = |file: PathBuf, package: &str| {
        let text = fs::read_to_string(file).unwrap_or_default();
        text.lines()
            .any(|line| line.trim() == format!("name = \"{package}\""))
    };
    names(folder.join("Cargo.toml"), "backplane-plugin-api")
        && names(folder.join("test-kit/Cargo.toml"), "backplane-test-kit")
}

/// The files of a Rust crate.
pub(crate) fn rust_crate(name: &str, sdk: &Sdk) -> Vec<(String, String)> {
    let fill = |text: &str| {
        text.replace("SDK_API", &sdk.dependency("backplane-plugin-api", ""))
            .replace("SDK_KIT", &sdk.dependency("backplane-test-kit", "test-kit"))
    };
    RUST.iter()
        .map(|(path, text)| (filled(path, name), fill(&filled(text, name))))
        .collect()
}

/// The files of a project in C++: the sample of the C door under another name, with the header.
pub(crate) fn c_project(name: &str) -> Vec<(String, String)> {
    C.iter()
        .map(|(path, text)| {
            let text = match *path {
                "backplane_plugin.h" => (*text).to_owned(),
                "NAME.cpp" => text.replace("dice", name),
                _ => filled(text, name),
            };
            (filled(path, name), text)
        })
        .collect()
}

/// `NAME` as it is, `TITLE` as a type's name.
fn filled(text: &str, name: &str) -> String {
    let title: String = name
        .split('_')
        .map(|word| {
            let mut letters = word.chars();
            let first = letters.next().map(|letter| letter.to_ascii_uppercase());
            first.map_or_else(String::new, |first| format!("{first}{}", letters.as_str()))
        })
        .collect();
    text.replace("NAME", name).replace("TITLE", &title)
}

/// Writes a project into a folder that is not there yet, or is empty. Nothing is ever written over.
///
/// # Errors
/// There is something, or a file can't be written.
pub(crate) fn write(folder: &Path, files: &[(String, String)]) -> Result<()> {
    check_folder(folder)?;
    for (path, text) in files {
        let path = folder.join(path);
        let parent = path.parent().unwrap_or(folder);
        fs::create_dir_all(parent).map_err(|error| Error::file(parent, &error))?;
        fs::File::create_new(&path)
            .and_then(|mut file| file.write_all(text.as_bytes()))
            .map_err(|error| Error::file(&path, &error))?;
    }
    Ok(())
}

/// Whether a project can be written into a folder.
///
/// # Errors
/// There is something.
pub(crate) fn check_folder(folder: &Path) -> Result<()> {
    match fs::read_dir(folder) {
        Ok(mut entries) => {
            if entries.next().is_some() {
                let message = format!(
                    "{}: there is a folder already, and it is not empty",
                    folder.display()
                );
                return Err(Error::usage(message, "name another with --path"));
            }
        }
        Err(_) if folder.symlink_metadata().is_ok() => {
            let message = format!(
                "{}: there is something else than a folder",
                folder.display()
            );
            return Err(Error::usage(message, "name another with --path"));
        }
        Err(error) if error.kind() == ErrorKind::NotFound => {}
        Err(error) => return Err(Error::file(folder, &error)),
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folders(executable: &Path) -> Folders {
        Folders {
            executable: Some(executable.to_path_buf()),
            ..Folders::default()
        }
    }

    fn source_tree() -> PathBuf {
        let here = Path::new(env!("CARGO_MANIFEST_DIR"));
        here.parent().unwrap().canonicalize().unwrap()
    }

    #[test]
    fn the_sdk_is_that_of_the_source_tree_in_which_the_program_stands() {
        let root = source_tree();
        let api = Sdk::Folder(root.join("plugin-api"));
        let dist = folders(&root.join("target/dist"));
        assert_eq!(Sdk::find(None, &dist).unwrap(), api);
        let elsewhere = folders(Path::new("/usr/bin"));
        let error = Sdk::find(None, &elsewhere).unwrap_err();
        assert!(error.action().contains("--sdk"), "{}", error.line());
        // The tree and the folder in it are both named rightly.
        for named in [root.clone(), root.join("plugin-api")] {
            assert_eq!(Sdk::find(named.to_str(), &elsewhere).unwrap(), api);
        }
        let git = |rev: Option<&str>| {
            Sdk::Git(
                "https://example.org/x.git".to_owned(),
                rev.map(str::to_owned),
            )
        };
        for (named, sdk) in [
            ("https://example.org/x.git", git(None)),
            ("https://example.org/x.git#", git(None)),
            ("https://example.org/x.git#v1", git(Some("v1"))),
        ] {
            assert_eq!(Sdk::find(Some(named), &elsewhere).unwrap(), sdk);
        }
    }

    #[test]
    fn projects_are_filled_in() {
        let sdk = Sdk::Folder("/with \"quotes\"".into());
        let projects = [rust_crate("red_parrot", &sdk), c_project("red_parrot")];
        for (path, text) in projects.iter().flatten() {
            for hole in ["NAME", "TITLE", "SDK_", "`dice`", "\"dice"] {
                // The header is a copy, and speaks of no project.
                let ours = path != "backplane_plugin.h";
                assert!(
                    !(path.contains(hole) || ours && text.contains(hole)),
                    "{path}: {hole}"
                );
            }
            // As TOML wants it.
            if path == "Cargo.toml" {
                let table: toml_edit::DocumentMut = text.parse().unwrap();
                let api = &table["dependencies"]["backplane-plugin-api"]["path"];
                assert_eq!(api.as_str(), Some("/with \"quotes\""));
            }
        }
        let lib = &projects[0]
            .iter()
            .find(|(path, _)| path == "src/lib.rs")
            .unwrap()
            .1;
        assert!(lib.contains("pub struct RedParrotBackend"), "{lib}");
    }
}
