//! Between [`types`](crate::types) and [`abi::data`](crate::abi::data), both ways.

use crate::abi::codes::PromptKind;
use crate::abi::data;
use crate::sdk::Context;
use crate::types;
use crate::types::{Error, ErrorCode};
use abi_stable::std_types::{RNone, ROption, RResult, RSlice, RSome, RString, RVec};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::path::{Path, PathBuf};

type Result<T> = std::result::Result<T, Error>;

/// JSON text of a map; empty text for an empty map.
pub(crate) fn map_text<M: Serialize>(map: &M, empty: bool) -> RString {
    if empty {
        RString::new()
    } else {
        serde_json::to_string(map).unwrap_or_default().into()
    }
}

/// The map of a JSON text; empty for empty text.
pub(crate) fn map_from_text<M: DeserializeOwned + Default>(text: &str, what: &str) -> Result<M> {
    if text.is_empty() {
        return Ok(M::default());
    }
    serde_json::from_str(text).map_err(|error| {
        Error::invalid_field(what, format!("{what}: expected a JSON object: {error}"))
    })
}

fn texts(list: &[String]) -> RVec<RString> {
    list.iter().map(|text| text.as_str().into()).collect()
}

fn strings(list: RVec<RString>) -> Vec<String> {
    list.into_iter().map(Into::into).collect()
}

fn text_option(text: Option<&String>) -> ROption<RString> {
    text.map(|text| RString::from(text.as_str())).into()
}

fn string_option(text: ROption<RString>) -> Option<String> {
    text.into_option().map(Into::into)
}

/// The bytes that stand for a path.
#[cfg(unix)]
pub(crate) fn path_bytes(path: &Path) -> &[u8] {
    std::os::unix::ffi::OsStrExt::as_bytes(path.as_os_str())
}

/// The path that bytes stand for.
#[cfg(unix)]
pub(crate) fn path_from(bytes: &[u8]) -> PathBuf {
    <std::ffi::OsStr as std::os::unix::ffi::OsStrExt>::from_bytes(bytes).into()
}

/// The bytes that stand for a path.
#[cfg(not(unix))]
pub(crate) fn path_bytes(path: &Path) -> &[u8] {
    path.to_str().unwrap_or_default().as_bytes()
}

/// The path that bytes stand for.
#[cfg(not(unix))]
pub(crate) fn path_from(bytes: &[u8]) -> PathBuf {
    String::from_utf8_lossy(bytes).into_owned().into()
}

/// A result of the contract as it crosses.
pub(crate) fn result_out<T, U: From<T>>(result: Result<T>) -> RResult<U, data::Error> {
    match result {
        Ok(value) => RResult::ROk(value.into()),
        Err(error) => RResult::RErr(error.into()),
    }
}

/// Results in a list, as they cross.
pub(crate) fn results_out<T, U: From<T>>(
    result: Result<Vec<Result<T>>>,
) -> RResult<RVec<RResult<U, data::Error>>, data::Error> {
    match result {
        Ok(list) => RResult::ROk(list.into_iter().map(result_out).collect()),
        Err(error) => RResult::RErr(error.into()),
    }
}

/// A result that crossed.
pub(crate) fn result_in<T, U: From<T>>(result: RResult<T, data::Error>) -> Result<U> {
    match result {
        RResult::ROk(value) => Ok(value.into()),
        RResult::RErr(error) => Err(error.into()),
    }
}

/// Results in a list, that crossed.
pub(crate) fn results_in<T, U: From<T>>(
    result: RResult<RVec<RResult<T, data::Error>>, data::Error>,
) -> Result<Vec<Result<U>>> {
    match result {
        RResult::ROk(list) => Ok(list.into_iter().map(result_in).collect()),
        RResult::RErr(error) => Err(error.into()),
    }
}

impl From<Error> for data::Error {
    fn from(error: Error) -> Self {
        Self {
            code: error.code.into(),
            message: error.message.into(),
            field: error.field.into(),
            action: error.action.into(),
        }
    }
}

impl From<data::Error> for Error {
    fn from(error: data::Error) -> Self {
        Self {
            code: error.code.into(),
            message: error.message.into(),
            field: error.field.into(),
            action: error.action.into(),
        }
    }
}

impl From<types::Verdict> for data::Verdict {
    fn from(verdict: types::Verdict) -> Self {
        Self {
            state: verdict.state.into(),
            message: verdict.message.into(),
            action: verdict.action.into(),
        }
    }
}

impl From<data::Verdict> for types::Verdict {
    fn from(verdict: data::Verdict) -> Self {
        let mut message = String::from(verdict.message);
        if !verdict.state.is_known() {
            message = format!(
                "verdict {} is not known to contract {}: {message}",
                verdict.state.0,
                crate::abi::CONTRACT_VERSION
            );
        }
        Self {
            state: verdict.state.into(),
            message,
            action: verdict.action.into(),
        }
    }
}

impl From<types::DeviceInfo> for data::DeviceInfo {
    fn from(device: types::DeviceInfo) -> Self {
        Self {
            details: map_text(&device.details, device.details.is_empty()),
            id: device.id.into(),
            name: device.name.into(),
            kind: device.kind.into(),
            memory_total: device.memory_total.into(),
            memory_free: device.memory_free.into(),
        }
    }
}

impl From<data::DeviceInfo> for types::DeviceInfo {
    fn from(device: data::DeviceInfo) -> Self {
        Self {
            id: device.id.into(),
            name: device.name.into(),
            kind: device.kind.into(),
            memory_total: device.memory_total.into(),
            memory_free: device.memory_free.into(),
            // For people: details that can't be read are left out.
            details: map_from_text(&device.details, "details").unwrap_or_default(),
        }
    }
}

fn pairs_out(pairs: Vec<(String, String)>) -> RVec<data::Pair> {
    pairs
        .into_iter()
        .map(|(key, value)| data::Pair {
            key: key.into(),
            value: value.into(),
        })
        .collect()
}

fn pairs_in(pairs: RVec<data::Pair>) -> Vec<(String, String)> {
    pairs
        .into_iter()
        .map(|pair| (pair.key.into(), pair.value.into()))
        .collect()
}

impl From<types::TensorSummary> for data::TensorSummary {
    fn from(tensor: types::TensorSummary) -> Self {
        Self {
            name: tensor.name.into(),
            storage: tensor.storage.into(),
            shape: tensor.shape.into(),
            bytes: tensor.bytes,
        }
    }
}

impl From<data::TensorSummary> for types::TensorSummary {
    fn from(tensor: data::TensorSummary) -> Self {
        Self {
            name: tensor.name.into(),
            storage: tensor.storage.into(),
            shape: tensor.shape.into(),
            bytes: tensor.bytes,
        }
    }
}

impl From<types::ModelInfo> for data::ModelInfo {
    fn from(info: types::ModelInfo) -> Self {
        Self {
            name: info.name.into(),
            path: path_bytes(&info.path).into(),
            format: info.format.into(),
            architecture: info.architecture.into(),
            quantization: info.quantization.into(),
            parameters: info.parameters,
            file_bytes: info.file_bytes,
            context_length: info.context_length,
            loaded_context: info.loaded_context,
            vocabulary: info.vocabulary,
            chat_template: info.chat_template.map(RString::from).into(),
            unsupported: info.unsupported.map(RString::from).into(),
            details: pairs_out(info.details),
            metadata: pairs_out(info.metadata),
            tensors: info.tensors.into_iter().map(Into::into).collect(),
            warnings: info.warnings.into_iter().map(RString::from).collect(),
            more: RString::new(),
        }
    }
}

impl From<data::ModelInfo> for types::ModelInfo {
    fn from(info: data::ModelInfo) -> Self {
        Self {
            name: info.name.into(),
            path: path_from(&info.path),
            format: info.format.into(),
            architecture: info.architecture.into(),
            quantization: info.quantization.into(),
            parameters: info.parameters,
            file_bytes: info.file_bytes,
            context_length: info.context_length,
            loaded_context: info.loaded_context,
            vocabulary: info.vocabulary,
            chat_template: string_option(info.chat_template),
            unsupported: string_option(info.unsupported),
            details: pairs_in(info.details),
            metadata: pairs_in(info.metadata),
            tensors: info.tensors.into_iter().map(Into::into).collect(),
            warnings: strings(info.warnings),
        }
    }
}

/// `Option<ModelInfo>` as it crosses.
pub(crate) fn inspected_out(
    result: Result<Option<types::ModelInfo>>,
) -> RResult<ROption<data::ModelInfo>, data::Error> {
    match result {
        Ok(Some(info)) => RResult::ROk(RSome(info.into())),
        Ok(None) => RResult::ROk(RNone),
        Err(error) => RResult::RErr(error.into()),
    }
}

impl From<&types::LoadOptions> for data::LoadOptions {
    fn from(options: &types::LoadOptions) -> Self {
        Self {
            context: options.context.into(),
            threads: options.threads.into(),
            parallel: options.parallel.into(),
            device: text_option(options.device.as_ref()),
            extra: map_text(&options.extra, options.extra.is_empty()),
        }
    }
}

impl TryFrom<&data::LoadOptions> for types::LoadOptions {
    type Error = Error;

    fn try_from(options: &data::LoadOptions) -> Result<Self> {
        Ok(Self {
            context: options.context.into(),
            threads: options.threads.into(),
            parallel: options.parallel.into(),
            device: string_option(options.device.clone()),
            extra: map_from_text(&options.extra, "extra")?,
        })
    }
}

impl From<&types::ChatMessage> for data::ChatMessage {
    fn from(message: &types::ChatMessage) -> Self {
        Self {
            role: message.role.as_str().into(),
            content: text_option(message.content.as_ref()),
            extra: map_text(&message.extra, message.extra.is_empty()),
        }
    }
}

impl TryFrom<&data::ChatMessage> for types::ChatMessage {
    type Error = Error;

    fn try_from(message: &data::ChatMessage) -> Result<Self> {
        Ok(Self {
            role: message.role.as_str().into(),
            content: string_option(message.content.clone()),
            extra: map_from_text(&message.extra, "messages")?,
        })
    }
}

impl From<&types::Prompt> for data::Prompt {
    fn from(prompt: &types::Prompt) -> Self {
        match prompt {
            types::Prompt::Text { text, special } => Self {
                kind: if *special {
                    PromptKind::TEXT_WITH_SPECIAL
                } else {
                    PromptKind::TEXT
                },
                text: text.as_str().into(),
                tokens: RVec::new(),
            },
            types::Prompt::Tokens(tokens) => Self {
                kind: PromptKind::TOKENS,
                text: RString::new(),
                tokens: tokens.as_slice().into(),
            },
        }
    }
}

impl TryFrom<&data::Prompt> for types::Prompt {
    type Error = Error;

    fn try_from(prompt: &data::Prompt) -> Result<Self> {
        match prompt.kind {
            PromptKind::TEXT => Ok(Self::Text {
                text: prompt.text.as_str().into(),
                special: false,
            }),
            PromptKind::TEXT_WITH_SPECIAL => Ok(Self::Text {
                text: prompt.text.as_str().into(),
                special: true,
            }),
            PromptKind::TOKENS => Ok(Self::Tokens(prompt.tokens.to_vec())),
            PromptKind(other) => Err(Error {
                code: ErrorCode::UnsupportedField,
                message: format!(
                    "prompt of kind {other}, which contract {} does not know",
                    crate::abi::CONTRACT_VERSION
                ),
                field: "prompt".into(),
                action: String::new(),
            }),
        }
    }
}

impl From<&types::Sampling> for data::Sampling {
    fn from(sampling: &types::Sampling) -> Self {
        Self {
            temperature: sampling.temperature.into(),
            top_k: sampling.top_k.into(),
            top_p: sampling.top_p.into(),
            min_p: sampling.min_p.into(),
            repeat_penalty: sampling.repeat_penalty.into(),
            repeat_last_n: sampling.repeat_last_n.into(),
            presence_penalty: sampling.presence_penalty.into(),
            frequency_penalty: sampling.frequency_penalty.into(),
            seed: sampling.seed.into(),
            logit_bias: sampling
                .logit_bias
                .iter()
                .map(|&(token, bias)| data::TokenBias { token, bias })
                .collect(),
        }
    }
}

impl From<&data::Sampling> for types::Sampling {
    fn from(sampling: &data::Sampling) -> Self {
        Self {
            temperature: sampling.temperature.into(),
            top_k: sampling.top_k.into(),
            top_p: sampling.top_p.into(),
            min_p: sampling.min_p.into(),
            repeat_penalty: sampling.repeat_penalty.into(),
            repeat_last_n: sampling.repeat_last_n.into(),
            presence_penalty: sampling.presence_penalty.into(),
            frequency_penalty: sampling.frequency_penalty.into(),
            seed: sampling.seed.into(),
            logit_bias: sampling
                .logit_bias
                .iter()
                .map(|bias| (bias.token, bias.bias))
                .collect(),
        }
    }
}

impl From<&types::GenerateOptions> for data::GenerateOptions {
    fn from(options: &types::GenerateOptions) -> Self {
        Self {
            sampling: (&options.sampling).into(),
            max_tokens: options.max_tokens.into(),
            stop: texts(&options.stop),
            stop_tokens: options.stop_tokens.as_slice().into(),
            ignore_end: options.ignore_end,
            logprobs: options.logprobs.into(),
            grammar: options
                .grammar
                .as_ref()
                .map(|grammar| data::Grammar {
                    kind: grammar.kind.as_str().into(),
                    source: grammar.source.as_str().into(),
                })
                .into(),
            extra: map_text(&options.extra, options.extra.is_empty()),
        }
    }
}

impl TryFrom<&data::GenerateOptions> for types::GenerateOptions {
    type Error = Error;

    fn try_from(options: &data::GenerateOptions) -> Result<Self> {
        Ok(Self {
            sampling: (&options.sampling).into(),
            max_tokens: options.max_tokens.into(),
            stop: options
                .stop
                .iter()
                .map(|text| text.as_str().into())
                .collect(),
            stop_tokens: options.stop_tokens.to_vec(),
            ignore_end: options.ignore_end,
            logprobs: options.logprobs.into(),
            grammar: options
                .grammar
                .as_ref()
                .into_option()
                .map(|grammar| types::Grammar {
                    kind: grammar.kind.as_str().into(),
                    source: grammar.source.as_str().into(),
                }),
            extra: map_from_text(&options.extra, "extra")?,
        })
    }
}

impl From<&types::GenerateRequest> for data::GenerateRequest {
    fn from(request: &types::GenerateRequest) -> Self {
        Self {
            prompt: (&request.prompt).into(),
            options: (&request.options).into(),
        }
    }
}

impl TryFrom<&data::GenerateRequest> for types::GenerateRequest {
    type Error = Error;

    fn try_from(request: &data::GenerateRequest) -> Result<Self> {
        Ok(Self {
            prompt: (&request.prompt).try_into()?,
            options: (&request.options).try_into()?,
        })
    }
}

impl From<&types::ChatRequest> for data::ChatRequest {
    fn from(request: &types::ChatRequest) -> Self {
        Self {
            messages: request.messages.iter().map(Into::into).collect(),
            tools: request
                .tools
                .as_ref()
                .map(|tools| RString::from(tools.to_string()))
                .into(),
            template_options: map_text(
                &request.template_options,
                request.template_options.is_empty(),
            ),
            options: (&request.options).into(),
        }
    }
}

impl TryFrom<&data::ChatRequest> for types::ChatRequest {
    type Error = Error;

    fn try_from(request: &data::ChatRequest) -> Result<Self> {
        Ok(Self {
            messages: request
                .messages
                .iter()
                .map(TryInto::try_into)
                .collect::<Result<_>>()?,
            tools: request
                .tools
                .as_ref()
                .into_option()
                .map(|tools| {
                    serde_json::from_str(tools).map_err(|error| {
                        Error::invalid_field("tools", format!("tools: expected JSON: {error}"))
                    })
                })
                .transpose()?,
            template_options: map_from_text(&request.template_options, "template_options")?,
            options: (&request.options).try_into()?,
        })
    }
}

impl From<&types::ClassifyRequest> for data::ClassifyRequest {
    fn from(request: &types::ClassifyRequest) -> Self {
        Self {
            prompts: request.prompts.iter().map(Into::into).collect(),
            top: request.top,
            logits: request.logits,
            extra: map_text(&request.extra, request.extra.is_empty()),
        }
    }
}

impl TryFrom<&data::ClassifyRequest> for types::ClassifyRequest {
    type Error = Error;

    fn try_from(request: &data::ClassifyRequest) -> Result<Self> {
        Ok(Self {
            prompts: request
                .prompts
                .iter()
                .map(TryInto::try_into)
                .collect::<Result<_>>()?,
            top: request.top,
            logits: request.logits,
            extra: map_from_text(&request.extra, "extra")?,
        })
    }
}

impl From<types::Classification> for data::Classification {
    fn from(answer: types::Classification) -> Self {
        Self {
            prompt_tokens: answer.prompt_tokens,
            top: answer
                .top
                .into_iter()
                .map(|one| data::TokenLogprob {
                    token: one.token,
                    logprob: one.logprob,
                    text: one.text.into(),
                })
                .collect(),
            logits: answer.logits.map(RVec::from).into(),
        }
    }
}

impl From<data::Classification> for types::Classification {
    fn from(answer: data::Classification) -> Self {
        Self {
            prompt_tokens: answer.prompt_tokens,
            top: answer
                .top
                .into_iter()
                .map(|one| types::TokenLogprob {
                    token: one.token,
                    logprob: one.logprob,
                    text: one.text.into(),
                })
                .collect(),
            logits: answer.logits.into_option().map(Into::into),
        }
    }
}

impl From<types::Completion> for data::Completion {
    fn from(completion: types::Completion) -> Self {
        Self {
            finish_reason: completion.finish_reason.into(),
            stop_string: completion.stop_string.map(RString::from).into(),
            prompt_tokens: completion.prompt_tokens,
            cached_tokens: completion.cached_tokens,
            completion_tokens: completion.completion_tokens,
            seed: completion.seed,
            queue_s: completion.queue_s,
            prefill_s: completion.prefill_s,
            decode_s: completion.decode_s,
            more: RString::new(),
        }
    }
}

impl From<data::Completion> for types::Completion {
    fn from(completion: data::Completion) -> Self {
        Self {
            finish_reason: completion.finish_reason.into(),
            stop_string: string_option(completion.stop_string),
            prompt_tokens: completion.prompt_tokens,
            cached_tokens: completion.cached_tokens,
            completion_tokens: completion.completion_tokens,
            seed: completion.seed,
            queue_s: completion.queue_s,
            prefill_s: completion.prefill_s,
            decode_s: completion.decode_s,
        }
    }
}

/// Metrics as they cross.
pub(crate) fn metrics_out(metrics: types::Metrics) -> RVec<data::Metric> {
    metrics
        .into_iter()
        .map(|(name, value)| data::Metric {
            name: name.into(),
            value,
        })
        .collect()
}

/// Metrics that crossed.
pub(crate) fn metrics_in(metrics: RVec<data::Metric>) -> types::Metrics {
    metrics
        .into_iter()
        .map(|metric| (metric.name.into(), metric.value))
        .collect()
}

impl From<&Context> for data::Context {
    fn from(context: &Context) -> Self {
        Self {
            options: map_text(&context.options, context.options.is_empty()),
            module_dir: path_bytes(&context.module_dir).into(),
            more: RString::new(),
        }
    }
}

impl TryFrom<&data::Context> for Context {
    type Error = Error;

    fn try_from(context: &data::Context) -> Result<Self> {
        Ok(Self {
            options: map_from_text(&context.options, "options")?,
            module_dir: path_from(&context.module_dir),
        })
    }
}

/// Calls `take` with an event as it crosses. Allocates only for log probabilities.
#[inline]
pub(crate) fn with_event_out<R>(
    event: types::Event<'_>,
    take: impl FnOnce(data::Event<'_>) -> R,
) -> R {
    use crate::abi::codes::EventKind;
    let empty = data::Event {
        kind: EventKind::TEXT,
        token: RNone,
        done: 0,
        total: 0,
        text: "".into(),
        logprobs: RSlice::EMPTY,
        more: "".into(),
    };
    match event {
        types::Event::Prefill { done, total } => take(data::Event {
            kind: EventKind::PREFILL,
            done,
            total,
            ..empty
        }),
        types::Event::Text { text } => take(data::Event {
            text: text.into(),
            ..empty
        }),
        types::Event::Token {
            token,
            text,
            logprobs,
        } => {
            let lent: Vec<_> = logprobs
                .iter()
                .map(|one| data::TokenLogprobRef {
                    token: one.token,
                    logprob: one.logprob,
                    text: one.text.as_str().into(),
                })
                .collect();
            take(data::Event {
                kind: EventKind::TOKEN,
                token: token.into(),
                text: text.into(),
                logprobs: lent.as_slice().into(),
                ..empty
            })
        }
    }
}

/// Calls `take` with an event that crossed; `None` for a kind that this contract does not know.
#[inline]
pub(crate) fn with_event_in<R>(
    event: &data::Event<'_>,
    take: impl FnOnce(types::Event<'_>) -> R,
) -> Option<R> {
    use crate::abi::codes::EventKind;
    let text = event.text.as_str();
    match event.kind {
        EventKind::PREFILL => Some(take(types::Event::Prefill {
            done: event.done,
            total: event.total,
        })),
        EventKind::TEXT => Some(take(types::Event::Text { text })),
        EventKind::TOKEN => {
            let logprobs: Vec<_> = event
                .logprobs
                .iter()
                .map(|one| types::TokenLogprob {
                    token: one.token,
                    logprob: one.logprob,
                    text: one.text.as_str().into(),
                })
                .collect();
            Some(take(types::Event::Token {
                token: event.token.into_option(),
                text,
                logprobs: &logprobs,
            }))
        }
        _ => None,
    }
}
