//! A conversation: its messages, its models, and what became of the last reply.

use super::settings::Settings;
use super::{commands, editor, remark};
use crate::catalog::model_name;
use crate::cli::arguments::{Chat, Global};
use crate::cli::interrupt::Interrupt;
use crate::cli::output;
use crate::cli::run::{Printer, speed};
use crate::cli::speaker::Speaker;
use crate::error::{Error, Result};
use crate::registry::{ModelOptions, Registry};
use crate::serve::Client;
use backplane_plugin_api::types::{
    ChatMessage, ChatRequest, Completion, ErrorCode, FinishReason, LoadOptions,
};
use std::path::Path;

/// A model that is loaded, under the name it is called by.
pub(super) struct Loaded {
    pub(super) name: String,
    pub(super) model: Speaker,
}

pub(super) struct Session<'a> {
    global: &'a Global,
    registry: &'a Registry,
    interrupt: Interrupt,
    /// The server that has the models, where they are not loaded here.
    server: Option<Client>,
    /// Models side by side; the last one loaded or switched to is talked to.
    pub(super) models: Vec<Loaded>,
    pub(super) current: usize,
    /// The backend for the next load; `None` follows the manifest's order.
    pub(super) backend: Option<String>,
    /// The conversation, a system message first if there is one.
    pub(super) messages: Vec<ChatMessage>,
    pub(super) settings: Settings,
    pub(super) last: Option<Completion>,
    /// Exit code of the first line that failed.
    pub(super) failed: Option<u8>,
}

impl<'a> Session<'a> {
    pub(super) fn new(
        global: &'a Global,
        registry: &'a Registry,
        interrupt: Interrupt,
        verb: &Chat,
        server: Option<Client>,
    ) -> Self {
        let loading = verb.loading.options();
        Self {
            global,
            registry,
            interrupt,
            server,
            models: Vec::new(),
            current: 0,
            backend: loading.backend,
            messages: verb
                .system
                .iter()
                .map(|text| ChatMessage::new("system", text))
                .collect(),
            settings: Settings {
                generate: verb.generating.options(),
                load: loading.load,
            },
            last: None,
            failed: None,
        }
    }

    pub(super) fn registry(&self) -> &Registry {
        self.registry
    }

    /// The server that has the models.
    pub(super) fn server(&self) -> Option<&Client> {
        self.server.as_ref()
    }

    pub(super) fn global(&self) -> &Global {
        self.global
    }

    /// A remark to the person, not part of any reply.
    pub(super) fn say(&self, text: &str) {
        remark(self.global, text);
    }

    /// Takes what was entered; false ends the session. Only a standard output that is gone is an error.
    pub(super) fn take(&mut self, text: &str) -> Result<bool> {
        let text = editor::joined(text);
        if text.is_empty() {
            return Ok(true);
        }
        for one in editor::commands(&text) {
            if !self.take_one(one)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn take_one(&mut self, text: &str) -> Result<bool> {
        // Two slashes begin a message that begins with one.
        let result = match (text.strip_prefix("//"), text.strip_prefix('/')) {
            (Some(rest), _) => self.reply(&format!("/{rest}")).map(|()| true),
            (None, Some(command)) => commands::run(self, command),
            (None, None) => self.reply(text).map(|()| true),
        };
        match result {
            Err(error @ Error::File { .. }) if error.to_string().starts_with("standard output") => {
                Err(error)
            }
            Err(error) => {
                output::error(self.global, &error);
                self.failed.get_or_insert(error.exit_code());
                Ok(true)
            }
            Ok(more) => Ok(more),
        }
    }

    /// The model that is talked to.
    pub(super) fn model(&self) -> Result<&Loaded> {
        self.models.get(self.current).ok_or_else(|| {
            Error::usage(
                "no model is loaded",
                "load one: /load MODEL; /models lists them",
            )
        })
    }

    /// Loads a model, or switches to it where it is loaded.
    pub(super) fn load(&mut self, model: &str) -> Result<()> {
        if let Some(at) = self.position(model) {
            self.current = at;
            self.say(&format!(
                "{} is loaded already; talking to it (/unload it first to load it anew)",
                self.models[at].name
            ));
            return Ok(());
        }
        if let Some(server) = &self.server {
            let loads = &self.settings.load;
            if self.backend.is_some() || *loads != LoadOptions::default() {
                let message = "how a server loads its models is not for its clients to say";
                let action =
                    "take back /backend, and /set of context, threads, cache-type and quantize";
                return Err(Error::usage(message, action));
            }
            let model = Speaker::there(server, model)?;
            if let Speaker::There { model: name, .. } = &model {
                let name = name.clone();
                self.say(&format!("{name} of {}", server.url()));
                self.models.push(Loaded { name, model });
                self.current = self.models.len() - 1;
            }
            return Ok(());
        }
        let options = ModelOptions {
            backend: self.backend.clone(),
            load: self.settings.load.clone(),
            ..ModelOptions::default()
        };
        let model = self.registry.load(model, &options)?;
        let info = model.info();
        let mut name = model_name(model.path());
        let same = self
            .models
            .iter()
            .filter(|loaded| loaded.name == name)
            .count();
        if same > 0 {
            name = format!("{name}-{}", same + 1);
        }
        let (backend, context, seconds) = (model.backend(), info.loaded_context, model.load_s());
        let context = match context {
            // Of some models that run elsewhere it is not told.
            0 => "context not known".to_owned(),
            context => format!("context of {context} tokens"),
        };
        self.say(&format!(
            "{name} loaded by {backend} in {seconds:.2} s, {context}"
        ));
        let model = Speaker::Here(model);
        self.models.push(Loaded { name, model });
        self.current = self.models.len() - 1;
        Ok(())
    }

    /// Where a loaded model is, by name or by path.
    pub(super) fn position(&self, name: &str) -> Option<usize> {
        let path = self
            .registry
            .folders()
            .expand(Path::new(name))
            .canonicalize()
            .ok();
        self.models.iter().position(|loaded| {
            loaded.name.eq_ignore_ascii_case(name)
                || path.is_some()
                    && loaded
                        .model
                        .path()
                        .and_then(|path| path.canonicalize().ok())
                        == path
        })
    }

    /// Says something to the model and prints its reply.
    fn reply(&mut self, text: &str) -> Result<()> {
        let model = self.model()?.model.clone();
        if let Some(model) = model.here() {
            self.registry.renew(model)?;
        }
        self.interrupt.take();
        self.messages.push(ChatMessage::new("user", text));
        let request = ChatRequest {
            messages: self.messages.clone(),
            options: self.settings.generate.clone(),
            ..ChatRequest::default()
        };
        let mut sink = Printer {
            silent: false,
            interrupt: self.interrupt.clone(),
            failed: None,
            ends_line: true,
        };
        let reply = model.chat(&request, &mut sink);
        sink.end_line()?;
        self.interrupt.take();
        let reply = match reply {
            Ok(reply) => reply,
            Err(error) => {
                self.messages.pop();
                return Err(advised(error));
            }
        };
        match reply.completion.finish_reason {
            FinishReason::Cancelled => self.say("[stopped]"),
            FinishReason::Length => self.say("[max-tokens reached; /set max-tokens changes it]"),
            FinishReason::ContextFull => {
                let context = model.context();
                self.say(&format!("[{context} is full; /reset begins anew]"));
            }
            _ => {}
        }
        // What was said stands, also where it was stopped: the person has read it.
        self.messages
            .push(ChatMessage::new("assistant", reply.text));
        tracing::info!("{}", speed(&reply.completion));
        self.last = Some(reply.completion);
        Ok(())
    }
}

/// An error with what to do about it here.
fn advised(error: Error) -> Error {
    match error {
        Error::Backend { backend, error } if error.code == ErrorCode::ContextOverflow => Error::Backend {
            backend,
            error: error.with_action(
                "your message was not added; /reset begins anew, or /set context N, /unload and /load the model again",
            ),
        },
        other => other,
    }
}
