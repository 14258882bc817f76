//! Backplane plugin: models of any endpoint that speaks the API of OpenAI (`/v1/chat/completions` and `/v1/completions`).
//!
//! A model is named `remote:NAME`; no file is ever taken for one.
//!
//! Options in the manifest:
//!
//! | key | value |
//! |---|---|
//! | `base_url` | what stands before `/chat/completions`, such as `https://api.openai.com/v1`; without it the plugin is absent |
//! | `key_env` | name of the environment variable that holds the key |
//! | `key_file` | path of a file that holds the key and nothing else; one of the two, or neither |
//! | `ca_file` | path of PEM certificates to trust besides those of the system |
//! | `models` | names that may be asked for; by default whatever the endpoint has |
//! | `context` | the models' context in tokens, where the endpoint does not tell it |
//! | `fields` | what the endpoint takes beside prompts and `max_tokens`, see below |
//! | `timeout_s` | longest silence of the endpoint, 300 s by default |
//! | `connect_timeout_s` | time for a connection, 10 s by default |
//!
//! `fields` is by default `["temperature", "top_p", "presence_penalty", "frequency_penalty", "seed", "logit_bias", "logprobs",
//! "grammar", "stream_options"]`. There are further `top_k`, `min_p`, `repeat_penalty`, `repeat_last_n` and `ignore_end` (as
//! llama.cpp's server and vLLM have them), `template_options` (as `chat_template_kwargs`), `max_completion_tokens` (in place of
//! `max_tokens`). A request with a field that is not among them is refused by name, unless its value means nothing.
//!
//! Anything else makes the backend report itself as misconfigured. The key is never shown.

mod connect;
mod errors;
mod fields;
mod model;
mod options;
mod request;

#[cfg(test)]
mod tests;

use backplane_llama_server::http::{Client, Endpoint, HttpError};
use backplane_llama_server::openai::{self, Listed};
use backplane_plugin_api::export_plugin;
use backplane_plugin_api::sdk::{Backend, Context, Result, TextModel};
use backplane_plugin_api::types::{
    DeviceInfo, Error, ErrorCode, LoadOptions, ModelInfo, Verdict, VerdictState,
};
use connect::Remote;
use errors::Place;
use model::Model;
use options::{Options, Problem};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

const NAME: &str = "remote";
/// Longest time for the list of models.
const LIST_WITHIN: Duration = Duration::from_secs(30);
/// Most names of an endpoint's list that an error tells.
const TOLD_NAMES: usize = 8;

export_plugin! { name: NAME, backend: backend }

fn backend(context: Context) -> Result<RemoteBackend> {
    Ok(RemoteBackend {
        options: Options::read(&context.options),
    })
}

#[derive(Debug)]
struct RemoteBackend {
    options: std::result::Result<Options, Problem>,
}

/// The name of a remote model, in a path that names one.
fn model_name(path: &Path) -> Option<&str> {
    let name = path.to_str()?.strip_prefix(NAME)?.strip_prefix(':')?;
    (!name.is_empty()).then_some(name)
}

impl RemoteBackend {
    fn options(&self) -> Result<&Options> {
        self.options
            .as_ref()
            .map_err(|problem| Error::new(ErrorCode::InvalidRequest, problem.to_string()))
    }

    fn info(&self, path: &Path, name: &str, options: &Options) -> Result<ModelInfo> {
        if !options.models.is_empty() && !options.models.iter().any(|known| known == name) {
            let message = format!(
                "{}: the option `models` has {}",
                path.display(),
                options.models.join(", ")
            );
            return Err(Error::new(ErrorCode::ModelUnusable, message));
        }
        Ok(ModelInfo {
            name: name.to_owned(),
            path: path.to_owned(),
            format: "openai".into(),
            architecture: NAME.into(),
            quantization: String::new(),
            parameters: 0,
            file_bytes: 0,
            context_length: u64::from(options.context.unwrap_or(0)),
            loaded_context: 0,
            vocabulary: 0,
            chat_template: None,
            unsupported: None,
            details: vec![("endpoint".into(), options.base.to_string())],
            metadata: vec![],
            tensors: vec![],
            warnings: vec![],
        })
    }

    /// The model as the endpoint lists it; `None` where it has no list, or the manifest vouches for the name.
    fn listed(&self, place: &Place, name: &str, endpoint: &Endpoint) -> Result<Option<Listed>> {
        let silence = endpoint.silence.map(|limit| limit.min(LIST_WITHIN));
        let endpoint = Endpoint {
            silence,
            ..endpoint.clone()
        };
        let client = Client::of(endpoint).map_err(|error| place.no_threads(&error))?;
        let models = match openai::models(&client, &|| false) {
            Ok(models) => models,
            Err(HttpError::Refused {
                status: 404 | 405 | 501,
                ..
            }) => return Ok(None),
            Err(error) => return Err(place.error(error)),
        };
        if let Some(found) = models.iter().find(|model| model.id == name) {
            return Ok(Some(found.clone()));
        }
        if models.is_empty() || self.options()?.models.iter().any(|known| known == name) {
            return Ok(None);
        }
        let mut names: Vec<&str> = models.iter().map(|model| &*model.id).collect();
        let more = names.len().saturating_sub(TOLD_NAMES);
        names.truncate(TOLD_NAMES);
        let more = match more {
            0 => String::new(),
            more => format!(" and {more} more"),
        };
        let message = format!(
            "{place}: the endpoint does not list it; it has {}{more}",
            names.join(", ")
        );
        let action = "choose one of them, or name it in the option `models` of `remote`";
        Err(Error::new(ErrorCode::ModelUnusable, place.shown(&message)).with_action(action))
    }
}

impl Backend for RemoteBackend {
    fn name(&self) -> String {
        NAME.into()
    }

    fn version(&self) -> String {
        env!("CARGO_PKG_VERSION").into()
    }

    /// By the configuration alone: no endpoint is asked before a model of its is loaded.
    fn probe(&self) -> Verdict {
        let options = match &self.options {
            Ok(options) => options,
            Err(problem) => {
                return match problem {
                    // Not wanted is not broken.
                    Problem::NoBaseUrl => Verdict::unavailable(
                        VerdictState::Absent,
                        problem.to_string(),
                        "set base_url under [plugin.remote.options] in the manifest",
                    ),
                    Problem::Wrong(message) => Verdict::unavailable(
                        VerdictState::Misconfigured,
                        message,
                        "correct the options of `remote` in the manifest",
                    ),
                };
            }
        };
        if let Err(message) = options.key.read() {
            let action = "put the key there; the manifest's options of `remote` name the place";
            return Verdict::unavailable(VerdictState::Misconfigured, message, action);
        }
        Verdict::available(format!("models of {}", options.base))
    }

    fn devices(&self) -> Result<Vec<DeviceInfo>> {
        let of = |options: &Options| DeviceInfo {
            id: options.base.to_string(),
            name: options.base.host.clone(),
            kind: "remote".into(),
            memory_total: None,
            memory_free: None,
            details: BTreeMap::new(),
        };
        Ok(self.options.iter().map(of).collect())
    }

    fn inspect(&self, path: &Path) -> Result<Option<ModelInfo>> {
        match (model_name(path), &self.options) {
            (Some(name), Ok(options)) => self.info(path, name, options).map(Some),
            _ => Ok(None),
        }
    }

    fn load(&self, path: &Path, load: &LoadOptions) -> Result<Arc<dyn TextModel>> {
        let options = self.options()?;
        let Some(name) = model_name(path) else {
            let message = format!(
                "{}: not a remote model, expected remote:NAME",
                path.display()
            );
            return Err(Error::new(ErrorCode::ModelUnusable, message));
        };
        let mut info = self.info(path, name, options)?;
        let asked = [
            ("context", load.context.is_some()),
            ("threads", load.threads.is_some()),
            ("parallel", load.parallel.is_some()),
            ("device", load.device.is_some()),
        ];
        let given = asked
            .iter()
            .find(|(_, given)| *given)
            .map(|(name, _)| *name);
        let extra = load.extra.keys().next().map(String::as_str);
        if let Some(field) = given.or(extra) {
            return Err(Error::unsupported_field(field, NAME));
        }
        let misconfigured = |message| Error::new(ErrorCode::Device, message);
        let key = options.key.read().map_err(misconfigured)?;
        if key.is_some() && !options.base.tls && !options.base.is_loopback() {
            let warning = format!(
                "the key for {} crosses the network unencrypted",
                options.base
            );
            info.warnings.push(warning);
        }
        let remote = Remote::new(options).map_err(misconfigured)?;
        let place = Place {
            model: path.display().to_string(),
            url: options.base.to_string(),
            key: key.clone(),
        };
        let endpoint = Endpoint {
            connect: Arc::new(remote),
            host: options.base.authority.clone(),
            base: options.base.path.clone(),
            key,
            silence: Some(options.silence),
        };
        if let Some(listed) = self.listed(&place, name, &endpoint)? {
            info.context_length = listed
                .trained_context
                .or(listed.context)
                .unwrap_or(info.context_length);
            info.loaded_context = listed.context.unwrap_or(0);
            info.vocabulary = listed.vocabulary.unwrap_or(0);
        }
        if info.loaded_context == 0 {
            info.loaded_context = info.context_length;
        }
        let client = Client::of(endpoint).map_err(|error| place.no_threads(&error))?;
        Ok(Arc::new(Model::new(
            place,
            name.to_owned(),
            info,
            options.fields.clone(),
            client,
        )))
    }
}
