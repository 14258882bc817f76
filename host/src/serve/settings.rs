//! The settings that hold, each with where it comes from: a flag, a variable, the manifest, or the default.

use super::Options;
use crate::error::{Error, Result};
use crate::folders::Folders;
use crate::manifest::{Kind, Manifest, SETTINGS, Setting, VARIABLES, Value};
use crate::nearest::suggestion;
use serde::Serialize;
use std::ffi::OsString;
use std::fmt;
use std::path::PathBuf;

/// Where a value comes from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case", tag = "from")]
pub enum Origin {
    /// Nothing says anything.
    Default,
    /// The manifest.
    Manifest {
        /// Its file, where it has one.
        #[serde(serialize_with = "crate::lossy::option")]
        file: Option<PathBuf>,
        /// In that line.
        line: usize,
    },
    /// A variable of the environment.
    Environment {
        /// Its name.
        variable: String,
    },
    /// An option of the command line, or the program that embeds the server.
    Flag {
        /// What was given.
        flag: String,
    },
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => f.write_str("default"),
            Self::Manifest { file, line } => match file {
                Some(file) => write!(f, "{}:{line}", file.display()),
                None => write!(f, "manifest, line {line}"),
            },
            Self::Environment { variable } => f.write_str(variable),
            Self::Flag { flag } => f.write_str(flag),
        }
    }
}

/// A value by a flag: the setting's name, and what it was given.
pub type Flag = (&'static str, Value);

/// The settings that hold.
#[derive(Clone, Debug)]
pub struct Resolved {
    /// As the server takes them.
    pub options: Options,
    /// Where each comes from, in the order of [`SETTINGS`].
    pub origins: Vec<(&'static Setting<Options>, Origin)>,
    /// Variables that look like settings and are none: lines.
    pub notices: Vec<String>,
}

impl Resolved {
    /// The settings of a manifest, of this process's environment, and of flags.
    ///
    /// # Errors
    /// A variable's value is none.
    pub fn of(manifest: &Manifest, folders: &Folders, flags: &[Flag]) -> Result<Self> {
        Self::with(manifest, folders, std::env::vars_os(), flags)
    }

    /// The same of any environment.
    ///
    /// # Errors
    /// As [`Resolved::of`].
    pub fn with(
        manifest: &Manifest,
        folders: &Folders,
        environment: impl IntoIterator<Item = (OsString, OsString)>,
        flags: &[Flag],
    ) -> Result<Self> {
        let mut variables = Vec::new();
        let mut notices = Vec::new();
        for (name, value) in environment {
            let Some(name) = name.to_str().filter(|name| name.starts_with(VARIABLES)) else {
                continue;
            };
            // An empty one is as if it were not there.
            if value.is_empty() {
                continue;
            }
            let known = || SETTINGS.iter().map(|setting| setting.variable());
            if known().any(|known| known == name) {
                variables.push((name.to_owned(), value));
            } else {
                // Not an error: where services are announced by variables, there may be others.
                let known: Vec<String> = known().collect();
                let action = suggestion(name, known.iter().map(String::as_str), "");
                notices.push(format!("the variable {name} is no setting ({action})"));
            }
        }
        notices.sort();
        let mut options = Options {
            entries: manifest.serve.entries(),
            ..Options::default()
        };
        let mut origins = Vec::new();
        for setting in SETTINGS {
            let (value, origin) = one(setting, manifest, &variables, flags)?;
            if let Some(value) = value {
                let value = match value {
                    Value::File(path) => Value::File(folders.expand(&path)),
                    other => other,
                };
                setting.put(&mut options, value);
            }
            origins.push((setting, origin));
        }
        Ok(Self {
            options,
            origins,
            notices,
        })
    }
}

impl Resolved {
    /// Where a server with these settings is asked from this machine; `None` where its port is not known before it runs.
    pub fn url(&self) -> Option<String> {
        let Options { host, port, .. } = &self.options;
        let host = match host.as_str() {
            "0.0.0.0" => "127.0.0.1".to_owned(),
            "::" => "[::1]".to_owned(),
            address if address.contains(':') => format!("[{address}]"),
            name => name.to_owned(),
        };
        let secure = self.options.tls_certificate.is_some();
        let scheme = if secure { "https" } else { "http" };
        (*port != 0).then(|| format!("{scheme}://{host}:{port}"))
    }
}

fn one(
    setting: &Setting<Options>,
    manifest: &Manifest,
    variables: &[(String, OsString)],
    flags: &[Flag],
) -> Result<(Option<Value>, Origin)> {
    if let Some((_, value)) = flags.iter().find(|(name, _)| *name == setting.name) {
        let flag = match setting.kind {
            Kind::Texts if setting.name == "models" => "MODEL".to_owned(),
            _ => format!("--{}", setting.flag()),
        };
        return Ok((Some(value.clone()), Origin::Flag { flag }));
    }
    let variable = setting.variable();
    if let Some((_, value)) = variables.iter().find(|(name, _)| *name == variable) {
        let read = value.to_str().map(|text| (text, setting.kind.read(text)));
        let (text, read) = read
            .ok_or_else(|| Error::usage(format!("{variable} is not UTF-8 text"), "set it anew"))?;
        let value = read.map_err(|why| {
            let message = format!("{variable}: found {text:?}, {why}");
            Error::usage(message, "correct or unset the variable")
        })?;
        return Ok((Some(value), Origin::Environment { variable }));
    }
    if let Some(given) = manifest.serve.given.get(setting.name) {
        let origin = Origin::Manifest {
            file: manifest.source.path().map(PathBuf::from),
            line: given.line,
        };
        return Ok((Some(given.value.clone()), origin));
    }
    Ok((None, Origin::Default))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::manifest::Source;
    use std::path::Path;

    fn resolved(manifest: &str, variables: &[(&str, &str)], flags: &[Flag]) -> Result<Resolved> {
        let path = Path::new("/etc/b/plugins.toml");
        let manifest = Manifest::parse(manifest, path, Source::Named).unwrap();
        let variables = variables.iter();
        let variables = variables.map(|(name, value)| ((*name).into(), (*value).into()));
        Resolved::with(&manifest, &Folders::default(), variables, flags)
    }

    #[test]
    fn flags_come_before_variables_before_the_manifest() {
        let manifest =
            "[serve]\nport = 1\nhost = \"::1\"\nreplies = 3\n[serve.model.x]\npinned = true";
        let variables = [
            ("BACKPLANE_SERVE_PORT", "2"),
            ("BACKPLANE_SERVE_HOST", "0.0.0.0"),
            ("BACKPLANE_SERVE_QUEUE", ""),
            ("BACKPLANE_SERVE_PROT", "2"),
            ("HOME", "/x"),
        ];
        let resolved = resolved(manifest, &variables, &[("port", Value::Whole(3))]).unwrap();
        let options = &resolved.options;
        assert_eq!((options.port, options.host.as_str()), (3, "0.0.0.0"));
        assert_eq!(
            (options.replies, options.queue),
            (3, Options::default().queue)
        );
        assert_eq!(options.entries["x"].pinned, Some(true));
        let origin = |name: &str| {
            let found = resolved
                .origins
                .iter()
                .find(|(setting, _)| setting.name == name);
            found.unwrap().1.to_string()
        };
        assert_eq!(origin("port"), "--port");
        assert_eq!(origin("host"), "BACKPLANE_SERVE_HOST");
        assert_eq!(origin("replies"), "/etc/b/plugins.toml:4");
        assert_eq!(origin("queue"), "default");
        assert_eq!(resolved.url().as_deref(), Some("http://127.0.0.1:3"));
        assert_eq!(resolved.notices.len(), 1, "{:?}", resolved.notices);
        assert!(resolved.notices[0].contains("did you mean `BACKPLANE_SERVE_PORT`?"));
    }

    #[test]
    fn a_variable_that_is_wrong_is_named_with_what_was_expected() {
        let wrong = [("BACKPLANE_SERVE_PORT", "tcp://10.0.0.1:80")];
        let error = resolved("", &wrong, &[]).unwrap_err();
        assert_eq!(
            error.line(),
            "BACKPLANE_SERVE_PORT: found \"tcp://10.0.0.1:80\", expected a whole number from 0 to 65535 (correct or unset the \
             variable)"
        );
    }
}
