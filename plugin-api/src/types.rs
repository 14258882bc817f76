//! The plain data of the contract, as plugin authors and hosts see it. The [`abi`](crate::abi) layer carries the same
//! data across the boundary.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;

/// What a backend says of itself on this machine: never a bare yes or no.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum VerdictState {
    /// Ready to load models.
    Available,
    /// Switched off in the manifest; its library was not opened.
    Disabled,
    /// The module file is not there, or the program that the module drives is not installed: passed over without a fall.
    Absent,
    /// Not a module this host can use: another contract version, layout, processor or file format.
    Incompatible,
    /// A library that the module needs could not be found.
    MissingLibrary,
    /// No device that the backend could use.
    NoDevice,
    /// A device is there, but of a kind the backend does not support.
    ArchitectureUnsupported,
    /// The module's hash, owner or folder is not trusted.
    Untrusted,
    /// Its options in the manifest are wrong.
    Misconfigured,
    /// It crashed or panicked when it was asked.
    Crashed,
    /// Kept out after too many crashes.
    Quarantined,
}

impl VerdictState {
    /// Every state, with its word in tables and JSON.
    pub const ALL: &'static [(VerdictState, &'static str)] = &[
        (VerdictState::Available, "available"),
        (VerdictState::Disabled, "disabled"),
        (VerdictState::Absent, "absent"),
        (VerdictState::Incompatible, "incompatible"),
        (VerdictState::MissingLibrary, "missing_library"),
        (VerdictState::NoDevice, "no_device"),
        (
            VerdictState::ArchitectureUnsupported,
            "architecture_unsupported",
        ),
        (VerdictState::Untrusted, "untrusted"),
        (VerdictState::Misconfigured, "misconfigured"),
        (VerdictState::Crashed, "crashed"),
        (VerdictState::Quarantined, "quarantined"),
    ];
}

impl fmt::Display for VerdictState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let word = Self::ALL
            .iter()
            .find(|(state, _)| state == self)
            .map_or("unknown", |(_, word)| word);
        f.pad(&word.replace('_', " "))
    }
}

/// A state, why, and what would mend it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Verdict {
    /// The state.
    pub state: VerdictState,
    /// One line: what was found.
    pub message: String,
    /// One line: what to do about it; empty where there is nothing to do.
    pub action: String,
}

impl Verdict {
    /// Ready, with one line of what was found.
    pub fn available(message: impl Into<String>) -> Self {
        Self {
            state: VerdictState::Available,
            message: message.into(),
            action: String::new(),
        }
    }

    /// Not usable: why, and what would mend it.
    pub fn unavailable(
        state: VerdictState,
        message: impl Into<String>,
        action: impl Into<String>,
    ) -> Self {
        Self {
            state,
            message: message.into(),
            action: action.into(),
        }
    }

    /// Whether models can be loaded.
    pub fn is_available(&self) -> bool {
        self.state == VerdictState::Available
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.state, self.message)?;
        if self.action.is_empty() {
            Ok(())
        } else {
            write!(f, " ({})", self.action)
        }
    }
}

/// A device as a backend sees it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceInfo {
    /// Stable identity: a PCI address, a UUID, or `cpu`; never an ordinal.
    pub id: String,
    /// Name for people.
    pub name: String,
    /// `cpu`, `gpu`, `integrated_gpu`, `remote` …
    pub kind: String,
    /// Memory in bytes, where known.
    pub memory_total: Option<u64>,
    /// Free memory in bytes, where known.
    pub memory_free: Option<u64>,
    /// Further facts (driver, features), for people.
    pub details: BTreeMap<String, String>,
}

/// What a backend says of a model file without reading weights.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModelInfo {
    /// The model's own name, or its file name.
    pub name: String,
    /// Where it is.
    #[serde(serialize_with = "lossy")]
    pub path: PathBuf,
    /// `gguf`, `safetensors` …
    pub format: String,
    /// Architecture as the file names it.
    pub architecture: String,
    /// Quantisation label, such as `Q4_K - Medium`.
    pub quantization: String,
    /// Number of weights.
    pub parameters: u64,
    /// Bytes on disk, all shards.
    pub file_bytes: u64,
    /// Longest context the model was made for, in tokens.
    pub context_length: u64,
    /// Context this instance was loaded with; 0 when not loaded.
    pub loaded_context: u64,
    /// Number of tokens in the vocabulary.
    pub vocabulary: u64,
    /// Whether the file carries a chat template.
    pub chat_template: Option<String>,
    /// `None` when the backend can run it; else one line of why not.
    pub unsupported: Option<String>,
    /// Further facts in order (layers, heads, rope, window …), for people.
    pub details: Vec<(String, String)>,
    /// Metadata of the file in order, values shortened for people.
    pub metadata: Vec<(String, String)>,
    /// Tensors of the file in order.
    pub tensors: Vec<TensorSummary>,
    /// Things a user should know, such as a missing pre-tokenizer name.
    pub warnings: Vec<String>,
}

/// A path as text for people and scripts: what is not UTF-8 in it is replaced.
fn lossy<S: serde::Serializer>(
    path: &std::path::Path,
    serializer: S,
) -> std::result::Result<S::Ok, S::Error> {
    serializer.collect_str(&path.display())
}

/// One tensor of a model file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TensorSummary {
    /// Name in the file.
    pub name: String,
    /// Storage type.
    pub storage: String,
    /// Outermost first.
    pub shape: Vec<u64>,
    /// Bytes.
    pub bytes: u64,
}

/// How to load a model.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct LoadOptions {
    /// Context in tokens; `None` is the backend's default, min(the model's, 4096).
    pub context: Option<u32>,
    /// Threads; `None` leaves it to the backend.
    pub threads: Option<u32>,
    /// Sequences that may run side by side; `None` leaves it to the backend.
    pub parallel: Option<u32>,
    /// Device to use, by [`DeviceInfo::id`].
    pub device: Option<String>,
    /// Options of this backend alone, by name; an unknown name is refused.
    pub extra: BTreeMap<String, serde_json::Value>,
}

/// One message of a chat.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ChatMessage {
    /// `system`, `user`, `assistant`, `tool` …
    pub role: String,
    /// The text; `None` where a message has none (tool calls).
    pub content: Option<String>,
    /// Other fields of the message (`name`, `tool_calls` …), handed to the template as they are.
    #[serde(flatten)]
    pub extra: serde_json::Map<String, serde_json::Value>,
}

impl ChatMessage {
    /// A message with a role and a text.
    pub fn new(role: impl Into<String>, content: impl Into<String>) -> Self {
        Self {
            role: role.into(),
            content: Some(content.into()),
            extra: serde_json::Map::new(),
        }
    }
}

/// What the model is given.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Prompt {
    /// Text. With `special`, special tokens in it are parsed; the beginning-of-sequence token is added as the model wants.
    Text {
        /// The text.
        text: String,
        /// Whether text that looks like a special token is one.
        special: bool,
    },
    /// Token ids, taken as they are: nothing is added.
    Tokens(Vec<u32>),
}

impl Prompt {
    /// Plain text: special-looking text is text.
    pub fn text(text: impl Into<String>) -> Self {
        Self::Text {
            text: text.into(),
            special: false,
        }
    }
}

/// How the next token is chosen. `None` is the default named with each field.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Sampling {
    /// 0 is greedy. Default 0.8.
    pub temperature: Option<f32>,
    /// Keep the k likeliest; 0 keeps all. Default 40.
    pub top_k: Option<u32>,
    /// Keep the likeliest whose probabilities reach p. Default 0.95.
    pub top_p: Option<f32>,
    /// Drop tokens less likely than p times the likeliest. Default 0.05.
    pub min_p: Option<f32>,
    /// Divide (multiply when negative) the logit of tokens seen in the last `repeat_last_n`. Default 1 (off).
    pub repeat_penalty: Option<f32>,
    /// Window of the penalties, in tokens. Default 64.
    pub repeat_last_n: Option<u32>,
    /// Taken off the logit of a token seen at all. Default 0.
    pub presence_penalty: Option<f32>,
    /// Taken off the logit once for each time a token was seen. Default 0.
    pub frequency_penalty: Option<f32>,
    /// Same seed, same text. Default: drawn anew, and told in the completion.
    pub seed: Option<u64>,
    /// Added to the logits of single tokens.
    pub logit_bias: Vec<(u32, f32)>,
}

/// A constraint on the text.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Grammar {
    /// `json_schema`, `regex`, `lark`.
    pub kind: String,
    /// Its source.
    pub source: String,
}

/// Everything a generation takes besides its prompt. A backend that can't honour a field refuses it by name.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct GenerateOptions {
    /// How tokens are chosen.
    pub sampling: Sampling,
    /// Most tokens to generate; `None` is up to the end of the context. 0 generates none.
    pub max_tokens: Option<u32>,
    /// Texts at which to stop; the text itself is not given out.
    pub stop: Vec<String>,
    /// Tokens at which to stop, besides the model's own end tokens.
    pub stop_tokens: Vec<u32>,
    /// Go on past the model's own end tokens.
    pub ignore_end: bool,
    /// Give log probabilities of the chosen token and of this many others.
    pub logprobs: Option<u32>,
    /// Constrains the text.
    pub grammar: Option<Grammar>,
    /// Fields that this contract does not know; a backend refuses those it does not know by name.
    pub extra: BTreeMap<String, serde_json::Value>,
}

/// A request for text from a prompt.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct GenerateRequest {
    /// What the model is given.
    pub prompt: Prompt,
    /// How.
    pub options: GenerateOptions,
}

/// A request for the next message of a chat. The model's own template is applied inside the plugin.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ChatRequest {
    /// The conversation so far.
    pub messages: Vec<ChatMessage>,
    /// Tool definitions, handed to the template.
    pub tools: Option<serde_json::Value>,
    /// Further variables for the template (`enable_thinking` …).
    pub template_options: serde_json::Map<String, serde_json::Value>,
    /// How.
    pub options: GenerateOptions,
}

/// A request for one forward pass a prompt.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ClassifyRequest {
    /// The prompts.
    pub prompts: Vec<Prompt>,
    /// How many of the likeliest next tokens to give.
    pub top: u32,
    /// Whether to give the logits of the whole vocabulary at the last position.
    pub logits: bool,
    /// As in [`GenerateOptions::extra`].
    pub extra: BTreeMap<String, serde_json::Value>,
}

/// A token with its log probability (natural logarithm, over the whole vocabulary, before sampling changes it).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TokenLogprob {
    /// Token id; [`TokenLogprob::UNKNOWN`] where the engine can't know it.
    pub token: u32,
    /// Its text, lossy where the token is part of a character.
    pub text: String,
    /// Natural logarithm of the probability.
    pub logprob: f32,
}

impl TokenLogprob {
    /// Stands for the id of a token whose id the engine can't know, as no vocabulary has it. Since 1.1.
    pub const UNKNOWN: u32 = u32::MAX;

    /// The token's id; `None` where the engine can't know it.
    pub fn id(&self) -> Option<u32> {
        (self.token != Self::UNKNOWN).then_some(self.token)
    }
}

/// The answer for one prompt of a [`ClassifyRequest`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Classification {
    /// Tokens of the prompt.
    pub prompt_tokens: u64,
    /// The likeliest next tokens, likeliest first.
    pub top: Vec<TokenLogprob>,
    /// `[vocabulary]`, only when asked for.
    pub logits: Option<Vec<f32>>,
}

/// What a generation tells while it runs.
#[derive(Clone, Debug, PartialEq)]
pub enum Event<'a> {
    /// Prompt tokens read so far, and of how many.
    Prefill {
        /// Read.
        done: u64,
        /// Of.
        total: u64,
    },
    /// A token was chosen. Its text may be held back (part of a character, or of a stop string) and come later.
    Token {
        /// The token's id; `None` where the engine can't know it.
        token: Option<u32>,
        /// Whole characters that are now certain; may be empty.
        text: &'a str,
        /// The chosen token's log probability, then the likeliest others, when asked for.
        logprobs: &'a [TokenLogprob],
    },
    /// Text that was held back and is now certain, with no new token (at the end).
    Text {
        /// The text.
        text: &'a str,
    },
}

/// Whether to go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Control {
    /// Go on.
    Continue,
    /// Stop: the generation ends as cancelled.
    Stop,
}

/// Why a generation ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum FinishReason {
    /// The model's end token, or a stop token.
    Stop,
    /// A stop string.
    StopString,
    /// `max_tokens` reached.
    Length,
    /// The context is full.
    ContextFull,
    /// The consumer asked to stop.
    Cancelled,
}

/// How a generation ended, and what it took.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Completion {
    /// Why it ended.
    pub finish_reason: FinishReason,
    /// The stop string found, if one was.
    pub stop_string: Option<String>,
    /// Tokens of the prompt, with all that was added to it.
    pub prompt_tokens: u64,
    /// Of these, how many were taken from the cache instead of read again.
    pub cached_tokens: u64,
    /// Tokens generated, an end token not counted.
    pub completion_tokens: u64,
    /// The seed that was used.
    pub seed: u64,
    /// Seconds waited before the prompt was begun.
    pub queue_s: f64,
    /// Seconds reading the prompt.
    pub prefill_s: f64,
    /// Seconds generating, from the first token on.
    pub decode_s: f64,
}

/// Numbers a loaded model keeps, by name (Prometheus style, `tokens_generated_total` …).
pub type Metrics = BTreeMap<String, f64>;

/// What kind of thing went wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum ErrorCode {
    /// The request is wrong.
    InvalidRequest,
    /// The request has a field that this backend can't honour; [`Error::field`] names it.
    UnsupportedField,
    /// Prompt (and tokens asked for) exceed the context; the message has both counts.
    ContextOverflow,
    /// The model file can't be used.
    ModelUnusable,
    /// The chat template refused the messages, in its own words.
    TemplateRefused,
    /// The device failed or is gone.
    Device,
    /// Not enough memory.
    OutOfMemory,
    /// Too much asked at once; try later.
    Busy,
    /// The model was closed.
    Closed,
    /// The plugin panicked; the next call works.
    Panicked,
    /// The backend lacks this function.
    Unsupported,
    /// The caller stopped the call ([`Progress`](crate::capability::Progress)). Since 1.1.
    Cancelled,
    /// Something else.
    Internal,
}

/// An error that belongs to the call that made it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
#[error("{message}")]
pub struct Error {
    /// What kind.
    pub code: ErrorCode,
    /// One line: file, key, found, expected.
    pub message: String,
    /// The field of the request at fault; empty when none is.
    pub field: String,
    /// One line: what to do about it; may be empty.
    pub action: String,
}

impl Error {
    /// An error of a kind with its line.
    pub fn new(code: ErrorCode, message: impl Into<String>) -> Self {
        Self {
            code,
            message: message.into(),
            field: String::new(),
            action: String::new(),
        }
    }

    /// A field that can't be honoured, by name.
    pub fn unsupported_field(field: impl Into<String>, backend: &str) -> Self {
        let field = field.into();
        Self {
            code: ErrorCode::UnsupportedField,
            message: format!("{backend} can't honour the request field `{field}`"),
            action: format!("leave out `{field}` or choose another backend"),
            field,
        }
    }

    /// A field whose value is wrong.
    pub fn invalid_field(field: impl Into<String>, message: impl Into<String>) -> Self {
        Self {
            code: ErrorCode::InvalidRequest,
            message: message.into(),
            field: field.into(),
            action: String::new(),
        }
    }

    /// A call that its caller stopped; `what` names the call.
    pub fn cancelled(what: &str) -> Self {
        Self::new(ErrorCode::Cancelled, format!("{what} was cancelled"))
    }

    /// With what to do about it.
    #[must_use]
    pub fn with_action(mut self, action: impl Into<String>) -> Self {
        self.action = action.into();
        self
    }
}
