//! Where the server's program is.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// Names under which builds of the server are found on the `PATH`, the plain one first.
const NAMES: &[&str] = &["llama-server", "llama-server-vulkan"];

/// No program of the server was found.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{found}; expected {expected}")]
pub struct NotFound {
    /// What was looked at, and what is wrong with it.
    pub found: String,
    /// What was wanted.
    pub expected: String,
    /// Whether a certain program was named, and not merely any looked for.
    pub named: bool,
}

/// The program: what the configuration says, else what the first of these environment variables says that is set, else
/// `llama-server` on the `PATH`. Something that is named and isn't there is an error: nothing else is taken in its place.
///
/// # Errors
/// What was named is no program that can be run, or nothing was found.
pub fn program(
    configured: Option<&Path>,
    variables: &[&str],
    environment: impl Fn(&str) -> Option<OsString>,
) -> Result<PathBuf, NotFound> {
    if let Some(path) = configured {
        return usable(path, "option `server`");
    }
    let set = |name: &&&str| {
        environment(name)
            .filter(|value| !value.is_empty())
            .is_some()
    };
    if let Some(name) = variables.iter().find(set) {
        let value = environment(name).unwrap_or_default();
        return usable(Path::new(&value), name);
    }
    let folders: Vec<PathBuf> = environment("PATH")
        .map(|path| std::env::split_paths(&path).collect())
        .unwrap_or_default();
    // A relative folder on the PATH would be looked for where the program happens to be started.
    let folders = || folders.iter().filter(|folder| folder.is_absolute());
    NAMES
        .iter()
        .flat_map(|name| folders().map(move |folder| folder.join(name)))
        .find(|path| is_program(path))
        .ok_or_else(|| NotFound {
            found: format!("no {} on the PATH", NAMES[0]),
            expected: format!(
                "llama.cpp's server there, in option `server`, or in {}",
                variables.join(" or ")
            ),
            named: false,
        })
}

fn usable(path: &Path, by: &str) -> Result<PathBuf, NotFound> {
    if is_program(path) {
        return Ok(path.to_path_buf());
    }
    let what = match path.metadata() {
        Ok(file) if file.is_dir() => "is a folder",
        Ok(_) => "can't be executed",
        Err(_) => "is not there",
    };
    Err(NotFound {
        found: format!("{} (by {by}) {what}", path.display()),
        expected: "llama.cpp's server".into(),
        named: true,
    })
}

#[cfg(unix)]
fn is_program(path: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt;
    path.metadata()
        .is_ok_and(|file| file.is_file() && file.permissions().mode() & 0o111 != 0)
}

#[cfg(not(unix))]
fn is_program(path: &Path) -> bool {
    path.is_file()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use std::collections::HashMap;
    use std::os::unix::fs::PermissionsExt;

    fn write(path: &Path, mode: u32) {
        std::fs::write(path, "#!/bin/sh\n").unwrap();
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
    }

    #[test]
    fn the_nearest_says_which() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        std::fs::create_dir(at("bin")).unwrap();
        write(&at("bin/llama-server"), 0o755);
        write(&at("mine"), 0o755);
        write(&at("theirs"), 0o755);
        write(&at("plain"), 0o644);
        let find = |configured: Option<&Path>, set: &[(&str, PathBuf)]| {
            let set: HashMap<&str, OsString> = set
                .iter()
                .map(|(name, path)| (*name, path.clone().into()))
                .collect();
            program(
                configured,
                &["ROCM_LLAMA_SERVER_PATH", "LLAMA_SERVER_PATH"],
                |name| set.get(name).cloned(),
            )
        };
        let path = ("PATH", at("bin"));
        assert_eq!(
            find(None, std::slice::from_ref(&path)),
            Ok(at("bin/llama-server"))
        );
        let theirs = ("LLAMA_SERVER_PATH", at("theirs"));
        assert_eq!(
            find(None, &[path.clone(), theirs.clone()]),
            Ok(at("theirs"))
        );
        let rocm = ("ROCM_LLAMA_SERVER_PATH", at("mine"));
        assert_eq!(find(None, &[theirs.clone(), rocm]), Ok(at("mine")));
        assert_eq!(
            find(Some(&at("mine")), &[path.clone(), theirs]),
            Ok(at("mine"))
        );

        // What is named and wrong is told, although another would be there.
        for (name, what) in [
            ("plain", "can't be executed"),
            ("bin", "is a folder"),
            ("gone", "is not there"),
        ] {
            let error = find(Some(&at(name)), std::slice::from_ref(&path))
                .unwrap_err()
                .to_string();
            assert!(
                error.contains(what) && error.contains("option `server`"),
                "{error}"
            );
            let set = [path.clone(), ("LLAMA_SERVER_PATH", at(name))];
            let error = find(None, &set).unwrap_err().to_string();
            assert!(
                error.contains(what) && error.contains("LLAMA_SERVER_PATH"),
                "{error}"
            );
        }
        let error = find(None, &[("PATH", PathBuf::from("bin"))])
            .unwrap_err()
            .to_string();
        assert!(error.contains("no llama-server on the PATH"), "{error}");
        let empty = ("LLAMA_SERVER_PATH", PathBuf::new());
        assert_eq!(find(None, &[path, empty]), Ok(at("bin/llama-server")));
    }
}
