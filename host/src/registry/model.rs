//! A loaded model and its replies.

use crate::error::{Error, Result};
use crate::manifest::Fallback;
use crate::memory;
use crate::selection::Trace;
use backplane_plugin_api::capability::{self, ATTENTION, EMBED, SCORE};
use backplane_plugin_api::sdk::{Backend, Sink, TextModel};
use backplane_plugin_api::types::{
    self, ChatRequest, Classification, ClassifyRequest, Completion, Control, ErrorCode, Event,
    GenerateRequest, LoadOptions, Metrics, ModelInfo, TokenLogprob,
};
use backplane_plugin_api::{
    AttentionRequest, AttentionState, EmbedRequest, Embedding, Peaks, PeaksReport, PeaksRequest,
    Progress, ScoreRequest,
};
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock, Weak};

/// How to load a model.
#[derive(Clone, Debug, Default)]
pub struct ModelOptions {
    /// The backend to use, and no other; `None` follows the manifest's order.
    pub backend: Option<String>,
    /// Another policy than the manifest's.
    pub fallback: Option<Fallback>,
    /// What the backend is given.
    pub load: LoadOptions,
    /// A capability that the model must have, such as `embed/1`: a backend without it is passed over.
    pub needs: Option<&'static str>,
}

/// A loaded model. Calls may come from any thread, many at once. It is closed when the last clone is dropped.
///
/// When its plugin is replaced by a reload, calls that run end as they began, and later ones go to the new plugin.
#[derive(Clone)]
pub struct Model {
    shared: Arc<Shared>,
}

/// What the clones of a model share.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) path: PathBuf,
    pub(super) options: ModelOptions,
    current: RwLock<Arc<Loaded>>,
    /// Held by the one that loads it anew.
    renewing: Mutex<()>,
}

impl Shared {
    /// What calls that begin now go to.
    pub(super) fn current(&self) -> Arc<Loaded> {
        let current = self.current.read();
        current.unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Calls that begin from now on go to `loaded`; what was there is closed when the last call in it ends.
    pub(super) fn replace(&self, loaded: Loaded) {
        let current = self.current.write();
        let mut current = current.unwrap_or_else(PoisonError::into_inner);
        let old = std::mem::replace(&mut *current, Arc::new(loaded));
        // Closing takes time, and calls that begin don't wait for it.
        drop(current);
        drop(old);
    }
}

/// A model in one backend.
pub(super) struct Loaded {
    path: PathBuf,
    pub(super) model: Arc<dyn TextModel>,
    /// What loaded it.
    pub(super) engine: Arc<dyn Backend>,
    pub(super) trace: Trace,
    pub(super) load_s: f64,
    /// Whether a call failed in a way that says that the engine is gone.
    gone: AtomicBool,
    /// Bytes of tokens whose text has lost some, as far as they were asked for; `None` where they can't be told.
    bytes: Mutex<HashMap<u32, Option<Vec<u8>>>>,
}

impl Loaded {
    pub(super) fn new(
        path: &Path,
        model: Arc<dyn TextModel>,
        engine: Arc<dyn Backend>,
        trace: Trace,
        load_s: f64,
    ) -> Self {
        Self {
            path: path.to_path_buf(),
            model,
            engine,
            trace,
            load_s,
            gone: AtomicBool::new(false),
            bytes: Mutex::new(HashMap::new()),
        }
    }

    /// The bytes of a token whose text has lost some.
    fn bytes(&self, token: u32) -> Option<Vec<u8>> {
        let known = || self.bytes.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(bytes) = known().get(&token) {
            return bytes.clone();
        }
        let bytes = self.model.detokenize(&[token], true).ok();
        // A mark of what is lost, unless the token is one that says just that.
        let exact = |bytes: &Vec<u8>| match std::str::from_utf8(bytes) {
            Ok(text) if text.contains(char::REPLACEMENT_CHARACTER) => {
                let tokens = self.model.tokenize(text, false, false);
                tokens.is_ok_and(|tokens| tokens == [token])
            }
            _ => true,
        };
        let bytes = bytes.filter(exact);
        known().insert(token, bytes.clone());
        bytes
    }

    /// The backend that runs it.
    pub(super) fn backend(&self) -> &str {
        self.trace.chosen.as_deref().unwrap_or_default()
    }

    fn of_backend<T>(&self, answer: std::result::Result<T, types::Error>) -> Result<T> {
        answer.map_err(|error| {
            if matches!(error.code, ErrorCode::Device | ErrorCode::Closed) {
                self.gone.store(true, Ordering::Release);
            }
            Error::Backend {
                backend: self.backend().to_owned(),
                error,
            }
        })
    }
}

impl std::fmt::Debug for Loaded {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Loaded")
            .field("path", &self.path)
            .field("backend", &self.backend())
            .finish_non_exhaustive()
    }
}

impl Drop for Loaded {
    fn drop(&mut self) {
        if let Err(error) = self.model.close() {
            tracing::warn!("{}: closing failed: {error}", self.path.display());
        }
    }
}

/// A whole reply.
#[derive(Clone, Debug, PartialEq)]
pub struct Reply {
    /// The text, without stop strings.
    pub text: String,
    /// The tokens generated; `None` where the engine can't know them.
    pub tokens: Option<Vec<u32>>,
    /// For each token its log probability, then the likeliest others, when asked for.
    pub logprobs: Vec<Vec<TokenLogprob>>,
    /// How it ended, and what it took.
    pub completion: Completion,
    /// The backend that gave it.
    pub backend: String,
    /// What the user should know about the choice of the backend.
    pub notice: Option<String>,
}

impl Model {
    pub(super) fn new(path: PathBuf, options: ModelOptions, loaded: Loaded) -> Self {
        Self {
            shared: Arc::new(Shared {
                path,
                options,
                current: RwLock::new(Arc::new(loaded)),
                renewing: Mutex::new(()),
            }),
        }
    }

    pub(super) fn weak(&self) -> Weak<Shared> {
        Arc::downgrade(&self.shared)
    }

    fn now(&self) -> Arc<Loaded> {
        self.shared.current()
    }

    /// Has it loaded anew where it is gone.
    pub(super) fn renew(
        &self,
        load: impl FnOnce(&Path, &ModelOptions) -> Result<Loaded>,
    ) -> Result<()> {
        if !self.is_gone() {
            return Ok(());
        }
        let renewing = self.shared.renewing.lock();
        let _one = renewing.unwrap_or_else(PoisonError::into_inner);
        // Another call may have done it meanwhile.
        if self.is_gone() {
            let loaded = load(&self.shared.path, &self.shared.options)?;
            self.shared.replace(loaded);
        }
        Ok(())
    }

    /// Whether a call has failed in a way that says that the engine is gone, as after the crash of a worker;
    /// [`crate::Registry::renew`] loads it anew.
    pub fn is_gone(&self) -> bool {
        self.now().gone.load(Ordering::Acquire)
    }

    /// The backend that runs it.
    pub fn backend(&self) -> String {
        self.now().backend().to_owned()
    }

    /// Its file or folder.
    pub fn path(&self) -> &Path {
        &self.shared.path
    }

    /// How its backend was chosen.
    pub fn trace(&self) -> Trace {
        self.now().trace.clone()
    }

    /// Seconds that loading took: plugins, choice and loading.
    pub fn load_s(&self) -> f64 {
        self.now().load_s
    }

    /// What was loaded.
    pub fn info(&self) -> ModelInfo {
        self.now().model.info()
    }

    /// The contract's own object, for all else that it offers. It is closed with the model, and when a reload has
    /// replaced its plugin.
    pub fn text_model(&self) -> Arc<dyn TextModel> {
        self.now().model.clone()
    }

    /// Generates from a prompt; `sink` takes the events as they come (a closure is a sink). Blocks until the end.
    ///
    /// # Errors
    /// The request is refused, or the backend failed.
    pub fn generate(&self, request: &GenerateRequest, sink: &mut dyn Sink) -> Result<Reply> {
        let most = request.options.max_tokens;
        self.collect(sink, most, |model, sink| model.generate(request, sink))
    }

    /// Generates the next message of a chat with the model's own template.
    ///
    /// # Errors
    /// As [`Model::generate`]; also where the template refuses the messages, or there is none.
    pub fn chat(&self, request: &ChatRequest, sink: &mut dyn Sink) -> Result<Reply> {
        let most = request.options.max_tokens;
        self.collect(sink, most, |model, sink| model.chat(request, sink))
    }

    /// The text that [`Model::chat`] would give the model.
    ///
    /// # Errors
    /// The template refuses the messages, or there is none.
    pub fn render_chat(&self, request: &ChatRequest) -> Result<String> {
        self.ask(|model| model.render_chat(request))
    }

    /// One forward pass a prompt; an error per prompt.
    ///
    /// # Errors
    /// The request as a whole is refused.
    pub fn classify(&self, request: &ClassifyRequest) -> Result<Vec<Result<Classification>>> {
        let now = self.now();
        let answers = now.of_backend(now.model.classify(request))?;
        Ok(answers
            .into_iter()
            .map(|answer| now.of_backend(answer))
            .collect())
    }

    /// Token ids of a text.
    ///
    /// # Errors
    /// The engine has no tokenizer to ask.
    pub fn tokenize(&self, text: &str, add_special: bool, parse_special: bool) -> Result<Vec<u32>> {
        self.ask(|model| model.tokenize(text, add_special, parse_special))
    }

    /// Bytes of token ids.
    ///
    /// # Errors
    /// An id is outside the vocabulary.
    pub fn detokenize(&self, tokens: &[u32], special: bool) -> Result<Vec<u8>> {
        self.ask(|model| model.detokenize(tokens, special))
    }

    /// The bytes of a token that a log probability is about, which may be part of a character; `None` where the engine can't
    /// tell them.
    pub fn token_bytes(&self, token: &TokenLogprob) -> Option<Vec<u8>> {
        match token.text.contains(char::REPLACEMENT_CHARACTER) {
            true => self.now().bytes(token.id()?),
            false => Some(token.text.as_bytes().to_vec()),
        }
    }

    /// Texts as vectors, one for each input, an error per input. `progress` counts inputs (a closure watches it).
    ///
    /// # Errors
    /// The backend does not offer `embed/1`, the request as a whole is refused, or the call was stopped.
    pub fn embed(
        &self,
        request: &EmbedRequest,
        progress: &mut dyn Progress,
    ) -> Result<Vec<Result<Embedding>>> {
        let (now, embed) = self.offered(EMBED, capability::embed)?;
        let answers = now.of_backend(embed.embed(request, progress))?;
        Ok(answers
            .into_iter()
            .map(|answer| now.of_backend(answer))
            .collect())
    }

    /// For each `i` of `first.max(1)..tokens.len()` the natural logarithm of the probability of token `i` after those
    /// before it. `progress` counts tokens.
    ///
    /// # Errors
    /// The backend does not offer `score/1`, the request is refused, or the call was stopped.
    pub fn score(&self, request: &ScoreRequest, progress: &mut dyn Progress) -> Result<Vec<f32>> {
        let (now, score) = self.offered(SCORE, capability::score)?;
        now.of_backend(score.score(request, progress))
    }

    /// Queries and keys of a prompt by layer and head, as attention multiplies them. `progress` counts tokens.
    ///
    /// # Errors
    /// The backend does not offer `attention/1`, the request is refused, or the call was stopped.
    pub fn inspect_attention(
        &self,
        request: &AttentionRequest,
        progress: &mut dyn Progress,
    ) -> Result<AttentionState> {
        let (now, attention) = self.offered(ATTENTION, capability::attention)?;
        now.of_backend(attention.inspect_attention(request, progress))
    }

    fn offered<T>(
        &self,
        name: &str,
        take: impl FnOnce(&dyn TextModel) -> std::result::Result<Option<T>, types::Error>,
    ) -> Result<(Arc<Loaded>, T)> {
        let now = self.now();
        match now.of_backend(take(now.model.as_ref()))? {
            Some(taken) => Ok((now, taken)),
            None => {
                let message = format!("does not offer `{name}` for this model");
                let error = types::Error::new(ErrorCode::Unsupported, message)
                    .with_action("choose another backend; see `backplane plugins`");
                now.of_backend(Err(error))
            }
        }
    }

    fn ask<T>(
        &self,
        call: impl FnOnce(&dyn TextModel) -> std::result::Result<T, types::Error>,
    ) -> Result<T> {
        let now = self.now();
        now.of_backend(call(now.model.as_ref()))
    }

    /// What the device that runs it could do at most, measured now; `None` where the backend does not offer `peaks/1`.
    /// `progress` counts passes.
    ///
    /// # Errors
    /// Memory is short, the device failed, or the call was stopped.
    pub fn peaks(&self, progress: &mut dyn Progress) -> Result<Option<PeaksReport>> {
        let now = self.now();
        let peaks = now.of_backend(capability::peaks(now.model.as_ref()))?;
        let measure = |peaks: Arc<dyn Peaks>| {
            now.of_backend(peaks.measure_peaks(&PeaksRequest::default(), progress))
        };
        peaks.map(measure).transpose()
    }

    /// Counters and gauges of this model, and `process_peak_memory_bytes` of the process that runs it, where the system
    /// tells.
    pub fn metrics(&self) -> Metrics {
        let mut metrics = self.now().model.metrics();
        memory::tell(&mut metrics);
        metrics
    }

    /// Most memory that the process that runs it has held at once, in bytes, mapped files included; `None` where the system
    /// does not tell.
    pub fn peak_memory(&self) -> Option<u64> {
        self.metrics().get(memory::PEAK).map(|bytes| *bytes as u64)
    }

    fn collect(
        &self,
        sink: &mut dyn Sink,
        most: Option<u32>,
        call: impl FnOnce(
            &dyn TextModel,
            &mut dyn Sink,
        ) -> std::result::Result<Completion, types::Error>,
    ) -> Result<Reply> {
        let mut collector = Collector {
            sink,
            text: String::new(),
            tokens: Some(Vec::new()),
            logprobs: Vec::new(),
            left: most.map(u64::from),
            over: false,
        };
        let now = self.now();
        let completion = now.of_backend(call(now.model.as_ref(), &mut collector))?;
        if let (true, Some(most)) = (collector.over, most) {
            let message = format!("told more than the {most} tokens that were asked for");
            let error = types::Error::new(types::ErrorCode::Internal, message)
                .with_action("report this to the plugin's author");
            return now.of_backend(Err(error));
        }
        Ok(Reply {
            text: collector.text,
            tokens: collector.tokens,
            logprobs: collector.logprobs,
            completion,
            backend: now.backend().to_owned(),
            notice: now.trace.notice.clone(),
        })
    }
}

impl std::fmt::Debug for Model {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Model")
            .field("path", &self.shared.path)
            .field("backend", &self.backend())
            .finish_non_exhaustive()
    }
}

/// Keeps what passes.
struct Collector<'a> {
    sink: &'a mut dyn Sink,
    text: String,
    tokens: Option<Vec<u32>>,
    logprobs: Vec<Vec<TokenLogprob>>,
    /// Tokens that may still come, where that is known.
    left: Option<u64>,
    /// More came.
    over: bool,
}

impl Sink for Collector<'_> {
    fn on_event(&mut self, event: Event<'_>) -> Control {
        if let (Event::Token { .. }, Some(left)) = (&event, &mut self.left) {
            if *left == 0 {
                self.over = true;
                return Control::Stop;
            }
            *left -= 1;
        }
        match &event {
            Event::Token {
                token,
                text,
                logprobs,
            } => {
                self.text.push_str(text);
                match (token, &mut self.tokens) {
                    (Some(token), Some(tokens)) => tokens.push(*token),
                    _ => self.tokens = None,
                }
                if !logprobs.is_empty() {
                    self.logprobs.push(logprobs.to_vec());
                }
            }
            Event::Text { text } => self.text.push_str(text),
            Event::Prefill { .. } => {}
        }
        self.sink.on_event(event)
    }

    fn should_stop(&self) -> bool {
        self.sink.should_stop()
    }
}
