//! A loaded model and its replies.

use crate::error::{Error, Result};
use crate::manifest::Fallback;
use crate::memory;
use crate::selection::Trace;
use backplane_plugin_api::capability::{self, ATTENTION, EMBED, SCORE};
use backplane_plugin_api::sdk::{Sink, TextModel};
use backplane_plugin_api::types::{
    self, ChatRequest, Classification, ClassifyRequest, Completion, Control, Event,
    GenerateRequest, LoadOptions, Metrics, ModelInfo, TokenLogprob,
};
use backplane_plugin_api::{
    AttentionRequest, AttentionState, EmbedRequest, Embedding, Peaks, PeaksReport, PeaksRequest,
    Progress, ScoreRequest,
};
use std::path::{Path, PathBuf};
use std::sync::Arc;

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
#[derive(Clone)]
pub struct Model {
    inner: Arc<Inner>,
}

struct Inner {
    path: PathBuf,
    model: Arc<dyn TextModel>,
    trace: Trace,
    load_s: f64,
}

impl Drop for Inner {
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
    pub(super) fn new(path: PathBuf, model: Arc<dyn TextModel>, trace: Trace, load_s: f64) -> Self {
        Self {
            inner: Arc::new(Inner {
                path,
                model,
                trace,
                load_s,
            }),
        }
    }

    /// The backend that runs it.
    pub fn backend(&self) -> &str {
        self.inner.trace.chosen.as_deref().unwrap_or_default()
    }

    /// Its file or folder.
    pub fn path(&self) -> &Path {
        &self.inner.path
    }

    /// How its backend was chosen.
    pub fn trace(&self) -> &Trace {
        &self.inner.trace
    }

    /// Seconds from the call of [`crate::Registry::load`] to its end: plugins, choice and loading.
    pub fn load_s(&self) -> f64 {
        self.inner.load_s
    }

    /// What was loaded.
    pub fn info(&self) -> ModelInfo {
        self.inner.model.info()
    }

    /// The contract's own object, for all else that it offers.
    pub fn text_model(&self) -> &Arc<dyn TextModel> {
        &self.inner.model
    }

    /// Generates from a prompt; `sink` takes the events as they come (a closure is a sink). Blocks until the end.
    ///
    /// # Errors
    /// The request is refused, or the backend failed.
    pub fn generate(&self, request: &GenerateRequest, sink: &mut dyn Sink) -> Result<Reply> {
        self.collect(sink, |model, sink| model.generate(request, sink))
    }

    /// Generates the next message of a chat with the model's own template.
    ///
    /// # Errors
    /// As [`Model::generate`]; also where the template refuses the messages, or there is none.
    pub fn chat(&self, request: &ChatRequest, sink: &mut dyn Sink) -> Result<Reply> {
        self.collect(sink, |model, sink| model.chat(request, sink))
    }

    /// The text that [`Model::chat`] would give the model.
    ///
    /// # Errors
    /// The template refuses the messages, or there is none.
    pub fn render_chat(&self, request: &ChatRequest) -> Result<String> {
        self.of_backend(self.inner.model.render_chat(request))
    }

    /// One forward pass a prompt; an error per prompt.
    ///
    /// # Errors
    /// The request as a whole is refused.
    pub fn classify(&self, request: &ClassifyRequest) -> Result<Vec<Result<Classification>>> {
        let answers = self.of_backend(self.inner.model.classify(request))?;
        Ok(answers
            .into_iter()
            .map(|answer| self.of_backend(answer))
            .collect())
    }

    /// Token ids of a text.
    ///
    /// # Errors
    /// The engine has no tokenizer to ask.
    pub fn tokenize(&self, text: &str, add_special: bool, parse_special: bool) -> Result<Vec<u32>> {
        self.of_backend(self.inner.model.tokenize(text, add_special, parse_special))
    }

    /// Bytes of token ids.
    ///
    /// # Errors
    /// An id is outside the vocabulary.
    pub fn detokenize(&self, tokens: &[u32], special: bool) -> Result<Vec<u8>> {
        self.of_backend(self.inner.model.detokenize(tokens, special))
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
        let embed = self.offered(EMBED, capability::embed)?;
        let answers = self.of_backend(embed.embed(request, progress))?;
        Ok(answers
            .into_iter()
            .map(|answer| self.of_backend(answer))
            .collect())
    }

    /// For each `i` of `first.max(1)..tokens.len()` the natural logarithm of the probability of token `i` after those
    /// before it. `progress` counts tokens.
    ///
    /// # Errors
    /// The backend does not offer `score/1`, the request is refused, or the call was stopped.
    pub fn score(&self, request: &ScoreRequest, progress: &mut dyn Progress) -> Result<Vec<f32>> {
        let score = self.offered(SCORE, capability::score)?;
        self.of_backend(score.score(request, progress))
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
        let attention = self.offered(ATTENTION, capability::attention)?;
        self.of_backend(attention.inspect_attention(request, progress))
    }

    fn offered<T>(
        &self,
        name: &str,
        take: impl FnOnce(&dyn TextModel) -> std::result::Result<Option<T>, types::Error>,
    ) -> Result<T> {
        let taken = self.of_backend(take(self.inner.model.as_ref()))?;
        taken.ok_or_else(|| {
            let message = format!("does not offer `{name}` for this model");
            let error = types::Error::new(types::ErrorCode::Unsupported, message)
                .with_action("choose another backend; see `backplane plugins`");
            Error::Backend {
                backend: self.backend().to_owned(),
                error,
            }
        })
    }

    /// What the device that runs it could do at most, measured now; `None` where the backend does not offer `peaks/1`.
    /// `progress` counts passes.
    ///
    /// # Errors
    /// Memory is short, the device failed, or the call was stopped.
    pub fn peaks(&self, progress: &mut dyn Progress) -> Result<Option<PeaksReport>> {
        let peaks = self.of_backend(capability::peaks(self.inner.model.as_ref()))?;
        let measure = |peaks: Arc<dyn Peaks>| {
            self.of_backend(peaks.measure_peaks(&PeaksRequest::default(), progress))
        };
        peaks.map(measure).transpose()
    }

    /// Counters and gauges of this model, and `process_peak_memory_bytes` of the process that runs it, where the system
    /// tells.
    pub fn metrics(&self) -> Metrics {
        let mut metrics = self.inner.model.metrics();
        memory::tell(&mut metrics);
        metrics
    }

    /// Most memory that the process that runs it has held at once, in bytes, mapped files included; `None` where the system
    /// does not tell.
    pub fn peak_memory(&self) -> Option<u64> {
        self.metrics().get(memory::PEAK).map(|bytes| *bytes as u64)
    }

    fn of_backend<T>(&self, answer: std::result::Result<T, types::Error>) -> Result<T> {
        answer.map_err(|error| Error::Backend {
            backend: self.backend().to_owned(),
            error,
        })
    }

    fn collect(
        &self,
        sink: &mut dyn Sink,
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
        };
        let completion = self.of_backend(call(self.inner.model.as_ref(), &mut collector))?;
        Ok(Reply {
            text: collector.text,
            tokens: collector.tokens,
            logprobs: collector.logprobs,
            completion,
            backend: self.backend().to_owned(),
            notice: self.inner.trace.notice.clone(),
        })
    }
}

impl std::fmt::Debug for Model {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Model")
            .field("path", &self.inner.path)
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
}

impl Sink for Collector<'_> {
    fn on_event(&mut self, event: Event<'_>) -> Control {
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
