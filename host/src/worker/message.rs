//! What host and worker say to each other. Both are of one version, which they check first.
//!
//! JSON has no numbers that are none (not a number, infinity) and paths are not always text; both cross as bits and
//! bytes.

use super::floats::Floats;
use backplane_plugin_api::types::{
    ChatRequest, Classification, ClassifyRequest, Completion, DeviceInfo, Error, Event,
    GenerateOptions, GenerateRequest, LoadOptions, Metrics, ModelInfo, TokenLogprob, Verdict,
};
use backplane_plugin_api::{
    AttentionRequest, AttentionState, ConvertOptions, ConvertReport, EmbedRequest, Embedding,
    Finding, LayerAttention, PeaksReport, PeaksRequest, ScoreRequest,
};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

/// Events that a worker may be ahead of the consumer.
pub(super) const AHEAD: usize = 64;

/// Version of this program and of these messages.
pub(super) const VERSION: &str = env!("CARGO_PKG_VERSION");

/// A path's bytes.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Bytes(Vec<u8>);

impl From<&Path> for Bytes {
    fn from(path: &Path) -> Self {
        Self(path.as_os_str().as_bytes().to_vec())
    }
}

impl From<Bytes> for PathBuf {
    fn from(bytes: Bytes) -> Self {
        OsString::from_vec(bytes.0).into()
    }
}

/// Which module to open, and how.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Open {
    pub(super) version: String,
    pub(super) plugin: String,
    pub(super) module: Bytes,
    pub(super) module_dir: Bytes,
    pub(super) options: BTreeMap<String, serde_json::Value>,
    pub(super) sha256: Option<String>,
    /// Where a copy of the module is, if that is to be opened.
    pub(super) copy: Option<Bytes>,
    /// Word of the most detailed level that the host keeps.
    pub(super) log: String,
}

/// From the host.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum ToWorker {
    /// The first message.
    Open(Open),
    /// A call, and the requests of it that are to be stopped at once.
    Call {
        call: Box<Call>,
        stopped: Vec<usize>,
    },
    /// Request `index` of the call is to be stopped.
    Stop { index: usize },
    /// So many events more were consumed, or a step of progress was taken.
    Consumed { events: usize },
    /// The model is not used any more.
    Forget { model: u64 },
    /// Nobody listens to the call any more: all of it is to stop.
    Abandon,
    /// Is to be answered whatever the module does.
    Ping,
}

/// A call of a backend or of a model that it loaded.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Call {
    Probe,
    Devices,
    Inspect {
        path: Bytes,
    },
    Load {
        path: Bytes,
        options: LoadOptions,
    },
    Generate {
        model: u64,
        request: GenerateRequest,
        odd: Odd,
    },
    Chat {
        model: u64,
        request: ChatRequest,
        odd: Odd,
    },
    Batch {
        model: u64,
        requests: Vec<GenerateRequest>,
        odd: Vec<Odd>,
    },
    RenderChat {
        model: u64,
        request: ChatRequest,
        odd: Odd,
    },
    Classify {
        model: u64,
        request: ClassifyRequest,
    },
    Tokenize {
        model: u64,
        text: String,
        add_special: bool,
        parse_special: bool,
    },
    Detokenize {
        model: u64,
        tokens: Vec<u32>,
        special: bool,
    },
    Metrics {
        model: u64,
    },
    Close {
        model: u64,
    },
    /// Whether the model, or the backend where there is none, offers a capability.
    Offers {
        model: Option<u64>,
        name: String,
    },
    Embed {
        model: u64,
        request: EmbedRequest,
    },
    Score {
        model: u64,
        request: ScoreRequest,
    },
    Attention {
        model: u64,
        request: AttentionRequest,
    },
    Peaks {
        model: u64,
        request: PeaksRequest,
    },
    Check {
        path: Bytes,
    },
    Convert {
        source: Bytes,
        destination: Bytes,
        options: ConvertOptions,
    },
}

/// From the worker.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum FromWorker {
    /// The worker runs; said before anything is opened.
    Ready { version: String },
    /// The module is open, or why not.
    Opened(Result<Opened, Verdict>),
    /// A record of the module's log.
    Log {
        level: String,
        target: String,
        message: String,
        place: String,
    },
    /// An event of request `index` of the call.
    Event { index: usize, event: OwnEvent },
    /// How far the call is; the worker waits for the answer.
    Progress { done: u64, total: u64, what: String },
    /// The call's end.
    Done(Result<Answer, Error>),
    /// Of the calls that run: how often the module has touched the call's sink, and whether it waits for the host.
    Pong { calls: Vec<(u64, u64, bool)> },
}

/// What an open module says of itself.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Opened {
    pub(super) name: String,
    pub(super) version: String,
    pub(super) contract_version: String,
}

/// What calls return.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Answer {
    Nothing,
    Verdict(Verdict),
    Devices(Vec<DeviceInfo>),
    Info(Option<Box<Info>>),
    Loaded { model: u64, info: Box<Info> },
    Completion(Completion),
    Batch(Vec<Result<Completion, Error>>),
    Classify(Vec<Result<Classes, Error>>),
    Text(String),
    Tokens(Vec<u32>),
    Bytes(Vec<u8>),
    Metrics(Vec<(String, u64)>),
    Offers(bool),
    Embeddings(Vec<Result<Embedded, Error>>),
    Scores(Floats),
    Attention(Attended),
    Peaks(PeaksReport),
    Findings(Vec<Finding>),
    Converted(ConvertReport),
}

/// [`ModelInfo`] with its path as bytes.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Info {
    info: ModelInfo,
    path: Bytes,
}

impl From<ModelInfo> for Info {
    fn from(mut info: ModelInfo) -> Self {
        let path = std::mem::take(&mut info.path);
        let path = path.as_path().into();
        Self { info, path }
    }
}

impl From<Info> for ModelInfo {
    fn from(Info { mut info, path }: Info) -> Self {
        info.path = path.into();
        info
    }
}

/// [`TokenLogprob`] with the probability's bits.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Logprob(u32, String, u32);

fn logprobs_out(all: &[TokenLogprob]) -> Vec<Logprob> {
    let out = |one: &TokenLogprob| Logprob(one.token, one.text.clone(), one.logprob.to_bits());
    all.iter().map(out).collect()
}

fn logprobs_in(all: Vec<Logprob>) -> Vec<TokenLogprob> {
    let one = |Logprob(token, text, bits)| TokenLogprob {
        token,
        text,
        logprob: f32::from_bits(bits),
    };
    all.into_iter().map(one).collect()
}

/// [`Classification`] with the bits of its numbers.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Classes {
    prompt_tokens: u64,
    top: Vec<Logprob>,
    logits: Option<Floats>,
}

impl From<Classification> for Classes {
    fn from(it: Classification) -> Self {
        Self {
            prompt_tokens: it.prompt_tokens,
            top: logprobs_out(&it.top),
            logits: it.logits.map(Into::into),
        }
    }
}

impl From<Classes> for Classification {
    fn from(it: Classes) -> Self {
        Self {
            prompt_tokens: it.prompt_tokens,
            top: logprobs_in(it.top),
            logits: it.logits.map(Into::into),
        }
    }
}

/// An [`Embedding`].
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Embedded {
    values: Floats,
    prompt_tokens: u64,
}

impl From<Embedding> for Embedded {
    fn from(it: Embedding) -> Self {
        Self {
            values: it.values.into(),
            prompt_tokens: it.prompt_tokens,
        }
    }
}

impl From<Embedded> for Embedding {
    fn from(it: Embedded) -> Self {
        Self {
            values: it.values.into(),
            prompt_tokens: it.prompt_tokens,
        }
    }
}

/// An [`AttentionState`].
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Attended {
    tokens: Vec<u32>,
    layers: Vec<AttendedLayer>,
}

/// A [`LayerAttention`].
#[derive(Debug, Serialize, Deserialize)]
struct AttendedLayer {
    layer: u32,
    heads: u32,
    kv_heads: u32,
    head_dim: u32,
    queries: Floats,
    keys: Floats,
}

impl From<AttentionState> for Attended {
    fn from(it: AttentionState) -> Self {
        let layer = |it: LayerAttention| AttendedLayer {
            layer: it.layer,
            heads: it.heads,
            kv_heads: it.kv_heads,
            head_dim: it.head_dim,
            queries: it.queries.into(),
            keys: it.keys.into(),
        };
        Self {
            tokens: it.tokens,
            layers: it.layers.into_iter().map(layer).collect(),
        }
    }
}

impl From<Attended> for AttentionState {
    fn from(it: Attended) -> Self {
        let layer = |it: AttendedLayer| LayerAttention {
            layer: it.layer,
            heads: it.heads,
            kv_heads: it.kv_heads,
            head_dim: it.head_dim,
            queries: it.queries.into(),
            keys: it.keys.into(),
        };
        Self {
            tokens: it.tokens,
            layers: it.layers.into_iter().map(layer).collect(),
        }
    }
}

/// Metrics as bits.
pub(super) fn metrics_out(metrics: Metrics) -> Vec<(String, u64)> {
    let bits = |(name, value): (String, f64)| (name, value.to_bits());
    metrics.into_iter().map(bits).collect()
}

/// Metrics from their bits.
pub(super) fn metrics_in(metrics: Vec<(String, u64)>) -> Metrics {
    let value = |(name, bits)| (name, f64::from_bits(bits));
    metrics.into_iter().map(value).collect()
}

/// [`Event`] that lends nothing.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum OwnEvent {
    Prefill(u64, u64),
    Token(Option<u32>, String, Vec<Logprob>),
    Text(String),
}

impl From<Event<'_>> for OwnEvent {
    fn from(event: Event<'_>) -> Self {
        match event {
            Event::Prefill { done, total } => Self::Prefill(done, total),
            Event::Token {
                token,
                text,
                logprobs,
            } => Self::Token(token, text.to_owned(), logprobs_out(logprobs)),
            Event::Text { text } => Self::Text(text.to_owned()),
        }
    }
}

impl OwnEvent {
    /// Lends the event to `call`.
    pub(super) fn lend<R>(self, call: impl FnOnce(Event<'_>) -> R) -> R {
        match self {
            Self::Prefill(done, total) => call(Event::Prefill { done, total }),
            Self::Token(token, text, logprobs) => call(Event::Token {
                token,
                text: &text,
                logprobs: &logprobs_in(logprobs),
            }),
            Self::Text(text) => call(Event::Text { text: &text }),
        }
    }
}

/// The numbers of a request that JSON lacks: which of its numbers, in order, and their bits.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Odd(Vec<(usize, u32)>);

impl Odd {
    /// Takes such numbers out of a request, which has zeros in their place then.
    pub(super) fn take(options: &mut GenerateOptions) -> Self {
        let mut odd = Vec::new();
        for (at, number) in numbers(options).into_iter().enumerate() {
            if !number.is_finite() {
                odd.push((at, number.to_bits()));
                *number = 0.0;
            }
        }
        Self(odd)
    }

    /// Puts them back.
    pub(super) fn give(self, options: &mut GenerateOptions) {
        let mut numbers = numbers(options);
        for (at, bits) in self.0 {
            if let Some(number) = numbers.get_mut(at) {
                **number = f32::from_bits(bits);
            }
        }
    }
}

fn numbers(options: &mut GenerateOptions) -> Vec<&mut f32> {
    let sampling = &mut options.sampling;
    let single = [
        &mut sampling.temperature,
        &mut sampling.top_p,
        &mut sampling.min_p,
        &mut sampling.repeat_penalty,
        &mut sampling.presence_penalty,
        &mut sampling.frequency_penalty,
    ];
    let biases = sampling.logit_bias.iter_mut().map(|(_, bias)| bias);
    single.into_iter().flatten().chain(biases).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use backplane_plugin_api::types::Prompt;

    fn through<T: Serialize + serde::de::DeserializeOwned>(value: &T) -> T {
        serde_json::from_str(&serde_json::to_string(value).unwrap()).unwrap()
    }

    #[test]
    fn numbers_that_json_lacks_cross() {
        let mut request = GenerateRequest {
            prompt: Prompt::text("x"),
            options: GenerateOptions::default(),
        };
        request.options.sampling.temperature = Some(0.25);
        request.options.sampling.min_p = Some(f32::NAN);
        request.options.sampling.logit_bias = vec![(1, 0.5), (2, f32::NEG_INFINITY)];
        let mut sent = request.clone();
        let odd = Odd::take(&mut sent.options);
        let mut back = through(&sent);
        through(&odd).give(&mut back.options);
        let sampling = back.options.sampling;
        assert_eq!(sampling.temperature, Some(0.25));
        assert!(sampling.min_p.is_some_and(f32::is_nan));
        assert_eq!(sampling.logit_bias, request.options.sampling.logit_bias);

        let answer = Classification {
            prompt_tokens: 1,
            top: vec![TokenLogprob {
                token: 3,
                text: "x".into(),
                logprob: f32::NEG_INFINITY,
            }],
            logits: Some(vec![0.1, f32::NEG_INFINITY]),
        };
        let back: Classification = through(&Classes::from(answer.clone())).into();
        assert_eq!(back, answer);
        let metrics: Metrics = [("m".to_owned(), f64::INFINITY)].into();
        assert_eq!(metrics_in(through(&metrics_out(metrics.clone()))), metrics);
    }

    #[test]
    fn paths_that_are_no_text_cross() {
        let path = PathBuf::from(OsString::from_vec(b"/a/\xff".to_vec()));
        let back: PathBuf = through(&Bytes::from(path.as_path())).into();
        assert_eq!(back, path);
    }
}
