//! Who makes replies: a model that is loaded here, or one of a server that runs.

use super::arguments::Elsewhere;
use crate::error::{Error, Result};
use crate::registry::{Model, Reply};
use crate::serve::{Client, Trust};
use backplane_plugin_api::sdk::Sink;
use backplane_plugin_api::types::{ChatRequest, GenerateRequest, Metrics};
use std::path::{Path, PathBuf};

/// A model that can be talked to.
#[derive(Clone, Debug)]
pub(crate) enum Speaker {
    /// Loaded by this program.
    Here(Model),
    /// Of a server.
    There {
        /// The server.
        server: Client,
        /// What it calls the model.
        model: String,
        /// What runs it there, where it is loaded.
        backend: String,
    },
}

impl Speaker {
    /// The model of a server.
    ///
    /// # Errors
    /// No server answers, or it has no such model.
    pub(crate) fn there(server: &Client, model: &str) -> Result<Self> {
        let path = format!("/v1/models/{}", escaped(model));
        let found = server.get(&path)?;
        let backend = found["backplane"]["backend"].as_str();
        Ok(Self::There {
            server: server.clone(),
            model: found["id"].as_str().unwrap_or(model).to_owned(),
            backend: backend.unwrap_or_default().to_owned(),
        })
    }

    pub(crate) fn chat(&self, request: &ChatRequest, sink: &mut dyn Sink) -> Result<Reply> {
        match self {
            Self::Here(model) => model.chat(request, sink),
            Self::There { server, model, .. } => server.chat(model, request, sink),
        }
    }

    pub(crate) fn generate(&self, request: &GenerateRequest, sink: &mut dyn Sink) -> Result<Reply> {
        match self {
            Self::Here(model) => model.generate(request, sink),
            Self::There { server, model, .. } => server.generate(model, request, sink),
        }
    }

    /// The model itself, where it is loaded here.
    pub(crate) fn here(&self) -> Option<&Model> {
        match self {
            Self::Here(model) => Some(model),
            Self::There { .. } => None,
        }
    }

    /// Its file, where it is loaded here.
    pub(crate) fn path(&self) -> Option<&Path> {
        self.here().map(Model::path)
    }

    /// Where it is, for people.
    pub(crate) fn place(&self) -> String {
        match self {
            Self::Here(model) => model.path().display().to_string(),
            Self::There { server, .. } => server.url(),
        }
    }

    /// What runs it.
    pub(crate) fn backend(&self) -> String {
        match self {
            Self::Here(model) => model.backend(),
            Self::There { backend, .. } if backend.is_empty() => "the server's choice".to_owned(),
            Self::There { backend, .. } => backend.clone(),
        }
    }

    /// Its context, for messages.
    pub(crate) fn context(&self) -> String {
        match self.here().map_or(0, |model| model.info().loaded_context) {
            0 => "the context".to_owned(),
            size => format!("the context of {size} tokens"),
        }
    }

    /// Its counters, where it is loaded here.
    pub(crate) fn metrics(&self) -> Metrics {
        self.here().map(Model::metrics).unwrap_or_default()
    }
}

/// The server that is asked in place of a model that is loaded here, where one is named.
///
/// # Errors
/// As [`server`].
pub(crate) fn elsewhere(asked: &Elsewhere) -> Result<Option<Client>> {
    let url = asked.server.as_deref();
    url.map(|url| server(url, &asked.trust.files())).transpose()
}

/// The server at an address, with the key of this user's environment. By https it is to have a certificate of an authority that is
/// trusted, and gets this side's own, each of the environment where none is given.
///
/// # Errors
/// It is no address, the key none, or the files of certificates are no use.
pub(crate) fn server(url: &str, trust: &Trust) -> Result<Client> {
    let mut trust = trust.clone();
    // What the environment says is for who is asked by https.
    if url.starts_with("https://") {
        let of_user = |variable: &str| {
            let file = std::env::var_os(variable).filter(|file| !file.is_empty());
            file.map(PathBuf::from)
        };
        let Trust {
            authority,
            certificate,
            key,
        } = &mut trust;
        *authority = authority.take().or_else(|| of_user("BACKPLANE_SERVER_CA"));
        // One without the other would be of two pairs.
        if certificate.is_none() && key.is_none() {
            *certificate = of_user("BACKPLANE_SERVER_CERT");
            *key = of_user("BACKPLANE_SERVER_KEY");
        }
    }
    let key = match std::env::var("BACKPLANE_API_KEY") {
        Ok(key) => Some(key).filter(|key| !key.is_empty()),
        Err(std::env::VarError::NotPresent) => None,
        Err(_) => {
            return Err(Error::usage(
                "BACKPLANE_API_KEY is not UTF-8 text",
                "set it anew",
            ));
        }
    };
    Client::new(url, key, &trust)
}

/// A text as a part of a path.
fn escaped(text: &str) -> String {
    let one = |byte: u8| match byte {
        b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' => {
            char::from(byte).to_string()
        }
        other => format!("%{other:02X}"),
    };
    text.bytes().map(one).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_become_parts_of_paths() {
        assert_eq!(escaped("SmolLM2-135M.Q4_1"), "SmolLM2-135M.Q4_1");
        assert_eq!(escaped("a/b é?"), "a%2Fb%20%C3%A9%3F");
    }
}
