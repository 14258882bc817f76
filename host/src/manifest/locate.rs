//! Which manifest is used.

use super::{DEFAULT_DIRECTORY, Manifest, ManifestError};
use crate::folders::Folders;
use serde::Serialize;
use std::fmt;
use std::path::{Path, PathBuf};

/// Where a manifest came from, in the order in which they are looked for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case", tag = "from", content = "path")]
#[non_exhaustive]
pub enum Source {
    /// The caller named it (`--manifest`).
    Named(#[serde(serialize_with = "crate::lossy::path")] PathBuf),
    /// `BACKPLANE_MANIFEST` names it.
    Environment(#[serde(serialize_with = "crate::lossy::path")] PathBuf),
    /// The user's configuration folder.
    User(#[serde(serialize_with = "crate::lossy::path")] PathBuf),
    /// The system's configuration folder.
    System(#[serde(serialize_with = "crate::lossy::path")] PathBuf),
    /// Beside the executable.
    Executable(#[serde(serialize_with = "crate::lossy::path")] PathBuf),
    /// None was found: the defaults, with `plugins` beside the executable.
    BuiltIn,
}

impl Source {
    /// The file; `None` for the built-in defaults.
    pub fn path(&self) -> Option<&Path> {
        match self {
            Self::Named(path)
            | Self::Environment(path)
            | Self::User(path)
            | Self::System(path)
            | Self::Executable(path) => Some(path),
            Self::BuiltIn => None,
        }
    }
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Named(path) => write!(f, "{} (named by the caller)", path.display()),
            Self::Environment(path) => write!(f, "{} (BACKPLANE_MANIFEST)", path.display()),
            Self::User(path) => write!(f, "{} (user's configuration)", path.display()),
            Self::System(path) => write!(f, "{} (system's configuration)", path.display()),
            Self::Executable(path) => write!(f, "{} (beside the executable)", path.display()),
            Self::BuiltIn => f.write_str("built-in defaults (no manifest found)"),
        }
    }
}

/// Finds and reads the manifest: the one named, else that of `BACKPLANE_MANIFEST`, else the user's, the system's, the
/// one beside the executable; else the built-in defaults. Never one in the working directory. One that is named but
/// missing is an error.
///
/// # Errors
/// The manifest can't be read, or something in it is wrong.
pub fn locate(named: Option<&Path>, folders: &Folders) -> Result<Manifest, ManifestError> {
    if let Some(path) = named {
        return Manifest::read(&folders.expand(path), Source::Named);
    }
    if let Some(path) = &folders.manifest {
        return Manifest::read(&folders.expand(path), Source::Environment);
    }
    let source: fn(PathBuf) -> Source = Source::User;
    let places = [
        (&folders.config, source),
        (&folders.system, Source::System),
        (&folders.executable, Source::Executable),
    ];
    for (folder, source) in places {
        if let Some(path) = folder.as_ref().map(|folder| folder.join("plugins.toml"))
            && path.symlink_metadata().is_ok()
        {
            return Manifest::read(&path, source);
        }
    }
    let directories = folders
        .executable
        .iter()
        .map(|folder| folder.join(DEFAULT_DIRECTORY))
        .collect();
    Ok(Manifest::with_directories(Source::BuiltIn, directories))
}
