//! Models that are no files: `BACKEND:NAME`, such as `remote:some-model`, is the model NAME of that backend and no other.
//!
//! A file or folder of that very name comes before it.

use super::{ModelOptions, Registry};
use crate::error::{Error, Result};
use crate::manifest::normal_name;
use crate::nearest::nearest;
use std::path::{Path, PathBuf};

/// The backend's part and the model's, of a text that has both. One letter is a drive, not a backend.
fn parts(model: &str) -> Option<(&str, &str)> {
    let (backend, name) = model.split_once(':')?;
    let plain = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
    let right = backend.len() > 1 && backend.chars().all(plain);
    (right && !name.is_empty()).then_some((backend, name))
}

/// Whether this names a model that is no file.
pub(super) fn is_reference(path: &Path) -> bool {
    path.to_str().and_then(parts).is_some() && !path.exists()
}

impl Registry {
    /// What a caller's MODEL means: a path, and the options with the backend that it names, if it does.
    ///
    /// # Errors
    /// There is no such model; the backend that it names is unknown, or not the pinned one.
    pub(crate) fn meant(
        &self,
        model: &str,
        options: &ModelOptions,
    ) -> Result<(PathBuf, ModelOptions)> {
        let not_found = match self.catalog().resolve(model) {
            // Not to be taken for the name of a model that is no file.
            Ok(path) if path.to_str().and_then(parts).is_some() => {
                let path = std::path::absolute(&path).unwrap_or(path);
                return Ok((path, options.clone()));
            }
            Ok(path) => return Ok((path, options.clone())),
            Err(error) => error,
        };
        let Some((backend, name)) = parts(model) else {
            return Err(not_found);
        };
        let backend = normal_name(backend);
        let known: Vec<String> = self.all().into_iter().map(|plugin| plugin.name).collect();
        if !known.contains(&backend) {
            // Meant for one that is there, or no backend at all.
            let near = nearest(&backend, known.iter().map(String::as_str)).is_some();
            return Err(match self.get(&backend) {
                Err(unknown) if near => unknown,
                _ => not_found,
            });
        }
        let pinned = options.backend.as_deref().map(normal_name);
        if let Some(pinned) = pinned.filter(|pinned| *pinned != backend) {
            let message = format!("`{model}` is a model of `{backend}`, but `{pinned}` is pinned");
            return Err(Error::usage(message, "leave out one of the two"));
        }
        let options = ModelOptions {
            backend: Some(backend.clone()),
            ..options.clone()
        };
        Ok((format!("{backend}:{name}").into(), options))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drives_and_addresses_are_no_backends() {
        for (model, expected) in [
            ("remote:m", Some(("remote", "m"))),
            ("Llama-cpp:a/b:c", Some(("Llama-cpp", "a/b:c"))),
            ("remote:", None),
            (":m", None),
            ("m", None),
            ("c:m", None),
            ("./remote:m", None),
            ("a b:m", None),
        ] {
            assert_eq!(parts(model), expected, "{model}");
            assert_eq!(
                is_reference(Path::new(model)),
                expected.is_some(),
                "{model}"
            );
        }
    }
}
