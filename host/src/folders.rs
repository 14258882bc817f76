//! Where a user's files are: configuration, data, state.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// The folders that the host looks in. XDG variables are honoured on every platform; without them the platform's own
/// folders are used.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Folders {
    /// The user's home, for `~`.
    pub home: Option<PathBuf>,
    /// The user's configuration: `$XDG_CONFIG_HOME/backplane`.
    pub config: Option<PathBuf>,
    /// The user's data: `$XDG_DATA_HOME/backplane`.
    pub data: Option<PathBuf>,
    /// The user's state (history): `$XDG_STATE_HOME/backplane`.
    pub state: Option<PathBuf>,
    /// The system's configuration: `/etc/backplane`.
    pub system: Option<PathBuf>,
    /// The folder of the running executable.
    pub executable: Option<PathBuf>,
    /// The manifest that `BACKPLANE_MANIFEST` names.
    pub manifest: Option<PathBuf>,
    /// The catalogue folder that `BACKPLANE_MODELS` names.
    pub models: Option<PathBuf>,
}

impl Folders {
    /// Reads the process's environment.
    pub fn from_environment() -> Self {
        let executable = std::env::current_exe().ok();
        let executable = executable.map(|exe| exe.canonicalize().unwrap_or(exe));
        Self::resolve(
            |name| std::env::var_os(name),
            executable.as_deref().and_then(Path::parent),
        )
    }

    /// The same over any lookup of variables, and a given folder of the executable.
    pub fn resolve(lookup: impl Fn(&str) -> Option<OsString>, executable: Option<&Path>) -> Self {
        let value = |name: &str| {
            lookup(name)
                .filter(|value| !value.is_empty())
                .map(PathBuf::from)
        };
        let absolute = |name: &str| value(name).filter(|path| path.is_absolute());
        let home = absolute("HOME").or_else(|| absolute("USERPROFILE"));
        let platform = |unix: &str, mac: &str, windows: &str| {
            if cfg!(windows) {
                absolute(windows)
            } else if cfg!(target_os = "macos") {
                home.as_ref().map(|home| home.join(mac))
            } else {
                home.as_ref().map(|home| home.join(unix))
            }
        };
        let own = |xdg: &str, unix: &str, mac: &str, windows: &str| {
            absolute(xdg)
                .or_else(|| platform(unix, mac, windows))
                .map(|folder| folder.join("backplane"))
        };
        let support = "Library/Application Support";
        Self {
            config: own("XDG_CONFIG_HOME", ".config", support, "APPDATA"),
            data: own("XDG_DATA_HOME", ".local/share", support, "LOCALAPPDATA"),
            state: own("XDG_STATE_HOME", ".local/state", support, "LOCALAPPDATA"),
            system: if cfg!(windows) {
                absolute("PROGRAMDATA").map(|folder| folder.join("backplane"))
            } else {
                Some(PathBuf::from("/etc/backplane"))
            },
            executable: executable.map(Path::to_path_buf),
            manifest: value("BACKPLANE_MANIFEST"),
            models: value("BACKPLANE_MODELS"),
            home,
        }
    }

    /// Writes `~` and `~/…` out; every other path stays as it is.
    pub fn expand(&self, path: &Path) -> PathBuf {
        match (path.strip_prefix("~"), &self.home) {
            (Ok(rest), Some(home)) if rest.as_os_str().is_empty() => home.clone(),
            (Ok(rest), Some(home)) => home.join(rest),
            _ => path.to_path_buf(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folders(variables: &[(&str, &str)]) -> Folders {
        Folders::resolve(
            |name| {
                variables
                    .iter()
                    .find(|(key, _)| *key == name)
                    .map(|(_, value)| OsString::from(value))
            },
            Some(Path::new("/opt/bin")),
        )
    }

    #[test]
    fn xdg_variables_win_and_relative_ones_are_ignored() {
        let found = folders(&[
            ("HOME", "/h"),
            ("XDG_CONFIG_HOME", "/c"),
            ("XDG_DATA_HOME", "relative"),
        ]);
        assert_eq!(found.config, Some(PathBuf::from("/c/backplane")));
        if cfg!(target_os = "linux") {
            assert_eq!(found.data, Some(PathBuf::from("/h/.local/share/backplane")));
        }
    }

    #[test]
    fn tilde_is_the_home_folder() {
        let found = folders(&[("HOME", "/h")]);
        assert_eq!(found.expand(Path::new("~/a b")), PathBuf::from("/h/a b"));
        assert_eq!(found.expand(Path::new("~")), PathBuf::from("/h"));
        assert_eq!(
            found.expand(Path::new("~other/a")),
            PathBuf::from("~other/a")
        );
        assert_eq!(folders(&[]).expand(Path::new("~/a")), PathBuf::from("~/a"));
    }
}
