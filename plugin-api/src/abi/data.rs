//! Plain data, mirroring [`types`](crate::types). Frozen within a major version; see [how it grows](super).
//!
//! Maps are JSON objects as text, empty text for an empty map. Paths are the bytes of the path on Unix, UTF-8 elsewhere.

use super::codes::{ErrorCode, EventKind, FinishReason, LogLevel, PromptKind, VerdictState};
use abi_stable::StableAbi;
use abi_stable::std_types::{ROption, RSlice, RStr, RString, RVec};

macro_rules! data {
    ($($(#[$about:meta])* $name:ident $(<$life:lifetime>)? { $($(#[$doc:meta])* $field:ident: $type:ty,)* })*) => {$(
        $(#[$about])*
        ///
        /// Since 1.0.
        #[repr(C)]
        #[derive(Clone, Debug, StableAbi)]
        pub struct $name $(<$life>)? {
            $($(#[$doc])* pub $field: $type,)*
        }
    )*};
}

data! {
    /// See [`types::Verdict`](crate::types::Verdict).
    Verdict {
        /// The state.
        state: VerdictState,
        /// One line.
        message: RString,
        /// What would mend it.
        action: RString,
    }

    /// See [`types::DeviceInfo`](crate::types::DeviceInfo).
    DeviceInfo {
        /// Stable identity.
        id: RString,
        /// For people.
        name: RString,
        /// `cpu`, `gpu` …
        kind: RString,
        /// Bytes.
        memory_total: ROption<u64>,
        /// Bytes.
        memory_free: ROption<u64>,
        /// JSON object of texts.
        details: RString,
    }

    /// A name and a text.
    Pair {
        /// The name.
        key: RString,
        /// The text.
        value: RString,
    }

    /// See [`types::TensorSummary`](crate::types::TensorSummary).
    TensorSummary {
        /// Name in the file.
        name: RString,
        /// Storage type.
        storage: RString,
        /// Outermost first.
        shape: RVec<u64>,
        /// Bytes.
        bytes: u64,
    }

    /// See [`types::ModelInfo`](crate::types::ModelInfo).
    ModelInfo {
        /// The model's name.
        name: RString,
        /// Path.
        path: RVec<u8>,
        /// File format.
        format: RString,
        /// Architecture.
        architecture: RString,
        /// Label.
        quantization: RString,
        /// Number of weights.
        parameters: u64,
        /// Bytes on disk.
        file_bytes: u64,
        /// Tokens.
        context_length: u64,
        /// Tokens; 0 when not loaded.
        loaded_context: u64,
        /// Tokens.
        vocabulary: u64,
        /// The template.
        chat_template: ROption<RString>,
        /// Why it can't run.
        unsupported: ROption<RString>,
        /// In order.
        details: RVec<Pair>,
        /// In order.
        metadata: RVec<Pair>,
        /// In order.
        tensors: RVec<TensorSummary>,
        /// For people.
        warnings: RVec<RString>,
        /// Room to grow: JSON object, empty in 1.0.
        more: RString,
    }

    /// See [`types::LoadOptions`](crate::types::LoadOptions).
    LoadOptions {
        /// Tokens.
        context: ROption<u32>,
        /// Threads.
        threads: ROption<u32>,
        /// Sequences.
        parallel: ROption<u32>,
        /// Device id.
        device: ROption<RString>,
        /// JSON object.
        extra: RString,
    }

    /// See [`types::ChatMessage`](crate::types::ChatMessage).
    ChatMessage {
        /// The role.
        role: RString,
        /// The text.
        content: ROption<RString>,
        /// JSON object.
        extra: RString,
    }

    /// See [`types::Prompt`](crate::types::Prompt).
    Prompt {
        /// Which of the two fields counts.
        kind: PromptKind,
        /// The text.
        text: RString,
        /// The ids.
        tokens: RVec<u32>,
    }

    /// A token and what is added to its logit.
    TokenBias {
        /// Token id.
        token: u32,
        /// Added to its logit.
        bias: f32,
    }

    /// See [`types::Sampling`](crate::types::Sampling).
    Sampling {
        /// As there.
        temperature: ROption<f32>,
        /// As there.
        top_k: ROption<u32>,
        /// As there.
        top_p: ROption<f32>,
        /// As there.
        min_p: ROption<f32>,
        /// As there.
        repeat_penalty: ROption<f32>,
        /// As there.
        repeat_last_n: ROption<u32>,
        /// As there.
        presence_penalty: ROption<f32>,
        /// As there.
        frequency_penalty: ROption<f32>,
        /// As there.
        seed: ROption<u64>,
        /// As there.
        logit_bias: RVec<TokenBias>,
    }

    /// See [`types::Grammar`](crate::types::Grammar).
    Grammar {
        /// Which language.
        kind: RString,
        /// Its source.
        source: RString,
    }

    /// See [`types::GenerateOptions`](crate::types::GenerateOptions).
    GenerateOptions {
        /// As there.
        sampling: Sampling,
        /// As there.
        max_tokens: ROption<u32>,
        /// As there.
        stop: RVec<RString>,
        /// As there.
        stop_tokens: RVec<u32>,
        /// As there.
        ignore_end: bool,
        /// As there.
        logprobs: ROption<u32>,
        /// As there.
        grammar: ROption<Grammar>,
        /// JSON object. A field that a later minor version adds travels here, and is refused by name where unknown.
        extra: RString,
    }

    /// See [`types::GenerateRequest`](crate::types::GenerateRequest).
    GenerateRequest {
        /// What the model is given.
        prompt: Prompt,
        /// How.
        options: GenerateOptions,
    }

    /// See [`types::ChatRequest`](crate::types::ChatRequest).
    ChatRequest {
        /// The conversation.
        messages: RVec<ChatMessage>,
        /// JSON.
        tools: ROption<RString>,
        /// JSON object.
        template_options: RString,
        /// How.
        options: GenerateOptions,
    }

    /// See [`types::ClassifyRequest`](crate::types::ClassifyRequest).
    ClassifyRequest {
        /// The prompts.
        prompts: RVec<Prompt>,
        /// How many likeliest tokens.
        top: u32,
        /// Whether to give all logits.
        logits: bool,
        /// JSON object.
        extra: RString,
    }

    /// See [`types::TokenLogprob`](crate::types::TokenLogprob).
    TokenLogprob {
        /// Token id.
        token: u32,
        /// Natural logarithm.
        logprob: f32,
        /// Text.
        text: RString,
    }

    /// A [`TokenLogprob`] of an event, lent.
    TokenLogprobRef<'a> {
        /// Token id.
        token: u32,
        /// Natural logarithm.
        logprob: f32,
        /// Text.
        text: RStr<'a>,
    }

    /// See [`types::Classification`](crate::types::Classification).
    Classification {
        /// Tokens.
        prompt_tokens: u64,
        /// Likeliest first.
        top: RVec<TokenLogprob>,
        /// `[vocabulary]`.
        logits: ROption<RVec<f32>>,
    }

    /// See [`types::Event`](crate::types::Event).
    Event<'a> {
        /// Which fields count.
        kind: EventKind,
        /// Id of a token event, where known.
        token: ROption<u32>,
        /// Tokens read, of a prefill event.
        done: u64,
        /// Of how many.
        total: u64,
        /// Text of a token or text event.
        text: RStr<'a>,
        /// Of a token event, when asked for.
        logprobs: RSlice<'a, TokenLogprobRef<'a>>,
        /// Room to grow: JSON object, empty in 1.0.
        more: RStr<'a>,
    }

    /// See [`types::Completion`](crate::types::Completion).
    Completion {
        /// Why it ended.
        finish_reason: FinishReason,
        /// The stop string found.
        stop_string: ROption<RString>,
        /// Tokens.
        prompt_tokens: u64,
        /// Tokens.
        cached_tokens: u64,
        /// Tokens.
        completion_tokens: u64,
        /// The seed used.
        seed: u64,
        /// Seconds.
        queue_s: f64,
        /// Seconds.
        prefill_s: f64,
        /// Seconds.
        decode_s: f64,
        /// Room to grow: JSON object, empty in 1.0.
        more: RString,
    }

    /// A metric.
    Metric {
        /// Its name.
        name: RString,
        /// Its value.
        value: f64,
    }

    /// See [`types::Error`](crate::types::Error).
    Error {
        /// What kind.
        code: ErrorCode,
        /// One line.
        message: RString,
        /// The field at fault.
        field: RString,
        /// What to do.
        action: RString,
    }

    /// See [`sdk::Context`](crate::sdk::Context).
    Context {
        /// JSON object.
        options: RString,
        /// Path.
        module_dir: RVec<u8>,
        /// Room to grow: JSON object, empty in 1.0.
        more: RString,
    }

    /// One line of log.
    LogRecord<'a> {
        /// Severity.
        level: LogLevel,
        /// Module path or target.
        target: RStr<'a>,
        /// The message, with its fields as ` key=value`.
        message: RStr<'a>,
        /// Source file; may be empty.
        file: RStr<'a>,
        /// Line; 0 where unknown.
        line: u32,
    }
}
