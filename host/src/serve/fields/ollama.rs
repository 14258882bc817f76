//! Fields of Ollama's requests, and of the `options` in them.

use super::Does::{Content, Honoured, NoEffect, Refused};
use super::openai::{effort, seed, stop};
use super::values::{Amiss, boolean, expected, is_empty, is_false, number, text, whole};
use super::{Asked, Endpoint, Field};
use crate::manifest::KeepAlive;
use crate::serve::tools::{self, Held, To};
use serde_json::{Value, json};
use std::borrow::Cow;

const CHAT: &[Endpoint] = &[Endpoint::OllamaChat];
const GENERATE: &[Endpoint] = &[Endpoint::OllamaGenerate];
const BOTH: &[Endpoint] = &[Endpoint::OllamaChat, Endpoint::OllamaGenerate];
const EMBED: &[Endpoint] = &[Endpoint::OllamaEmbed];
const EMBEDDINGS: &[Endpoint] = &[Endpoint::OllamaEmbeddings];
const VECTORS: &[Endpoint] = &[Endpoint::OllamaEmbed, Endpoint::OllamaEmbeddings];
const SHOW: &[Endpoint] = &[Endpoint::OllamaShow];
const OPTIONS: &[Endpoint] = &[Endpoint::OllamaOptions];
const LOADING: &[Endpoint] = &[
    Endpoint::OllamaChat,
    Endpoint::OllamaGenerate,
    Endpoint::OllamaEmbed,
    Endpoint::OllamaEmbeddings,
];
const ALL: &[Endpoint] = &[
    Endpoint::OllamaChat,
    Endpoint::OllamaGenerate,
    Endpoint::OllamaEmbed,
    Endpoint::OllamaEmbeddings,
    Endpoint::OllamaShow,
];

/// What only Ollama's requests ask.
#[derive(Clone, Debug, Default)]
pub(in crate::serve) struct Ollama {
    /// The prompt as it is, without a template.
    pub(in crate::serve) raw: bool,
    /// The context that the model is to have at least.
    pub(in crate::serve) context: Option<u32>,
    /// How long the model stays loaded.
    pub(in crate::serve) keep: Option<KeepAlive>,
    /// How many numbers of an embedding.
    pub(in crate::serve) dimensions: Option<u32>,
    /// Whether a text that is too long is refused, and not cut.
    pub(in crate::serve) whole: bool,
}

#[rustfmt::skip]
pub(super) const FIELDS: &[Field] = &[
    Field { name: "model", on: ALL, does: Honoured(|it, v| text(v).map(|v| it.model = v)),
        about: "name of a model that is served, as `GET /api/tags` lists it, also with `:latest` behind it; required" },
    Field { name: "name", on: SHOW, does: Honoured(|it, v| text(v).map(|v| it.model = v)), about: "the older name of `model`" },
    Field { name: "verbose", on: SHOW, does: NoEffect, about: "vocabularies are not told" },
    Field { name: "messages", on: CHAT, does: Content,
        about: "the conversation; a message may have `tool_calls`, or `tool_name` where it is a tool's; none loads the model" },
    Field { name: "prompt", on: GENERATE, does: Content, about: "what the user says, or with `raw` all that the model is given; none loads the model" },
    Field { name: "system", on: GENERATE, does: Content, about: "what comes before the prompt, by the template; not with `raw`" },
    Field { name: "raw", on: GENERATE, does: Honoured(|it, v| boolean(v).map(|v| it.ollama.raw = v)),
        about: "the prompt is a text as it is, in which special tokens are read, and no template is used" },
    Field { name: "stream", on: BOTH, does: Honoured(|it, v| boolean(v).map(|v| it.stream = v)),
        about: "the reply as lines of JSON, as it is made; it is unless this is false" },
    Field { name: "options", on: BOTH, does: Honoured(|it, v| super::nested(Endpoint::OllamaOptions, v, it)),
        about: "how tokens are chosen, and more: the table below" },
    Field { name: "format", on: BOTH, does: Honoured(format), about: "`json`, or a JSON schema that the reply follows" },
    Field { name: "tools", on: CHAT, does: Honoured(|it, v| tools::read(v).map(|v| it.tools.offered = v)),
        about: "up to 128 functions that the model may call; `parameters` is a JSON schema" },
    Field { name: "think", on: BOTH, does: Honoured(think),
        about: "given to the template as `enable_thinking`; `low`, `medium` and `high` as `reasoning_effort` besides; what is thought is told apart, as `thinking`, whatever this is" },
    Field { name: "logprobs", on: BOTH, does: Honoured(|it, v| boolean(v).map(|v| it.wants_logprobs = v)), about: "log probabilities of the tokens" },
    Field { name: "top_logprobs", on: BOTH, does: Honoured(|it, v| whole(v, 0, 20).map(|v| it.top_logprobs = Some(v))),
        about: "of how many of the likeliest, 0 to 20; needs `logprobs`" },
    Field { name: "input", on: EMBED, does: Content, about: "a text, an array of token ids, or an array of up to 2048 of either; where there is none, or the text is empty, the model is loaded" },
    Field { name: "prompt", on: EMBEDDINGS, does: Content, about: "a text; required" },
    Field { name: "dimensions", on: EMBED, does: Honoured(|it, v| whole(v, 0, u32::MAX).map(|v| it.ollama.dimensions = Some(v).filter(|v| *v > 0))),
        about: "how many numbers of each vector are kept, the first; what is kept has the length 1 again; more than there are is refused; 0: all" },
    Field { name: "options", on: VECTORS, does: Honoured(|it, v| super::nested(Endpoint::OllamaOptions, v, it)),
        about: "the table below; what concerns replies has no effect" },
    Field { name: "truncate", on: EMBED, does: Honoured(|it, v| boolean(v).map(|v| it.ollama.whole = !v)),
        about: "whether the end is cut off a text that is longer than the context; it is unless this is false, which has it refused" },
    Field { name: "truncate", on: BOTH, does: Refused(is_false), about: "nothing is cut: what is longer than the context is refused" },
    Field { name: "shift", on: BOTH, does: Refused(is_false), about: "nothing is left out where the context is full" },
    Field { name: "keep_alive", on: LOADING, does: Honoured(keep_alive),
        about: "how long the model stays loaded after this: seconds, or a time such as `5m`; below 0, such as -1: until its memory is needed or the server stops; as it is set unless given; 0 with nothing asked unloads it at once, one that is pinned where the sender may operate the server, and is 403 else; otherwise what is pinned stays" },
    Field { name: "images", on: GENERATE, does: Refused(is_empty), about: "only texts are read" },
    Field { name: "suffix", on: GENERATE, does: Refused(is_empty), about: "texts are not filled in" },
    Field { name: "template", on: GENERATE, does: Refused(is_empty), about: "the model's own template is used; see `raw`" },
    Field { name: "context", on: GENERATE, does: Refused(is_empty), about: "conversations are given as messages to `/api/chat`" },
    Field { name: "width", on: GENERATE, does: Refused(|_| false), about: "no images are made" },
    Field { name: "height", on: GENERATE, does: Refused(|_| false), about: "no images are made" },
    Field { name: "steps", on: GENERATE, does: Refused(|_| false), about: "no images are made" },

    Field { name: "num_predict", on: OPTIONS, does: Honoured(num_predict), about: "most tokens of a reply, which ends at the end of the context where that comes first, as Ollama's clients expect; −1 (the default) and −2: up to there" },
    Field { name: "temperature", on: OPTIONS, does: Honoured(|it, v| number(v, 0.0, f32::MAX).map(|v| it.generate.sampling.temperature = Some(v))),
        about: "0 always takes the likeliest token; the backend's default unless given, here and below" },
    Field { name: "top_k", on: OPTIONS, does: Honoured(|it, v| whole(&settled(v), 0, u32::MAX).map(|v| it.generate.sampling.top_k = Some(v))), about: "keeps that many of the likeliest tokens; 0 keeps all" },
    Field { name: "top_p", on: OPTIONS, does: Honoured(|it, v| number(v, 0.0, 1.0).map(|v| it.generate.sampling.top_p = Some(v))), about: "keeps the likeliest tokens whose probabilities reach it" },
    Field { name: "min_p", on: OPTIONS, does: Honoured(|it, v| number(v, 0.0, 1.0).map(|v| it.generate.sampling.min_p = Some(v))), about: "drops tokens less likely than that share of the likeliest" },
    Field { name: "repeat_penalty", on: OPTIONS, does: Honoured(|it, v| number(v, f32::MIN_POSITIVE, f32::MAX).map(|v| it.generate.sampling.repeat_penalty = Some(v))), about: "divides the logits of tokens that were there lately; 1 is off" },
    Field { name: "repeat_last_n", on: OPTIONS, does: Honoured(repeat_last_n), about: "how many tokens the penalties look back; −1 is all" },
    Field { name: "presence_penalty", on: OPTIONS, does: Honoured(|it, v| number(v, -2.0, 2.0).map(|v| it.generate.sampling.presence_penalty = Some(v))), about: "taken off tokens that were there" },
    Field { name: "frequency_penalty", on: OPTIONS, does: Honoured(|it, v| number(v, -2.0, 2.0).map(|v| it.generate.sampling.frequency_penalty = Some(v))), about: "taken off tokens for each time that they were there" },
    Field { name: "seed", on: OPTIONS, does: Honoured(|it, v| seed(it, &settled(v))), about: "the same seed gives the same reply" },
    Field { name: "stop", on: OPTIONS, does: Honoured(stop), about: "a text, or up to 16, before which the reply ends, within thoughts too, and within a call that the model makes of itself, which is then none; none within a call that has to be made" },
    Field { name: "num_ctx", on: OPTIONS, does: Honoured(|it, v| whole(&settled(v), 1, u32::MAX).map(|v| it.ollama.context = Some(v))),
        about: "the context that the model is to have at least: a longer one than it was loaded with is refused" },
    Field { name: "mirostat", on: OPTIONS, does: Refused(is_zero), about: "there is no such sampling" },
    Field { name: "mirostat_tau", on: OPTIONS, does: NoEffect, about: "of `mirostat`" },
    Field { name: "mirostat_eta", on: OPTIONS, does: NoEffect, about: "of `mirostat`" },
    Field { name: "tfs_z", on: OPTIONS, does: Refused(is_one), about: "there is no such sampling" },
    Field { name: "typical_p", on: OPTIONS, does: Refused(is_one), about: "there is no such sampling" },
    Field { name: "penalize_newline", on: OPTIONS, does: Refused(|v| *v == Value::Bool(true)), about: "line ends are tokens as others" },
    Field { name: "num_keep", on: OPTIONS, does: NoEffect, about: "nothing is left out where the context is full" },
    Field { name: "num_batch", on: OPTIONS, does: NoEffect, about: "tokens read at once: set by who serves the model" },
    Field { name: "num_gpu", on: OPTIONS, does: NoEffect, about: "layers on a GPU: set by who serves the model" },
    Field { name: "main_gpu", on: OPTIONS, does: NoEffect, about: "the first GPU: set by who serves the model" },
    Field { name: "num_thread", on: OPTIONS, does: NoEffect, about: "threads: set by who serves the model" },
    Field { name: "numa", on: OPTIONS, does: NoEffect, about: "memory near processors: set by who serves the model" },
    Field { name: "low_vram", on: OPTIONS, does: NoEffect, about: "less memory of the GPU: set by who serves the model" },
    Field { name: "f16_kv", on: OPTIONS, does: NoEffect, about: "the cache's type: set by who serves the model" },
    Field { name: "use_mmap", on: OPTIONS, does: NoEffect, about: "files mapped into memory: set by who serves the model" },
    Field { name: "use_mlock", on: OPTIONS, does: NoEffect, about: "memory that is kept: set by who serves the model" },
    Field { name: "logits_all", on: OPTIONS, does: Refused(is_false), about: "see `logprobs`" },
    Field { name: "vocab_only", on: OPTIONS, does: Refused(is_false), about: "models are loaded whole" },
    Field { name: "embedding_only", on: OPTIONS, does: Refused(is_false), about: "models are loaded whole" },
];

fn think(asked: &mut Asked, value: &Value) -> Result<(), Amiss> {
    match value {
        Value::Bool(_) => asked.set_template("enable_thinking", value.clone()),
        Value::String(word) if ["low", "medium", "high"].contains(&word.as_str()) => {
            effort(asked, value)?;
        }
        _ => return Err(expected("true, false, `low`, `medium` or `high`", value).into()),
    }
    Ok(())
}

fn keep_alive(asked: &mut Asked, value: &Value) -> Result<(), Amiss> {
    let keep = KeepAlive::from_json(value);
    let what = "seconds, or a time such as `5m`";
    asked.ollama.keep = Some(keep.ok_or_else(|| expected(what, value))?);
    Ok(())
}

fn format(asked: &mut Asked, value: &Value) -> Result<(), Amiss> {
    let schema = match value {
        Value::String(word) if word.is_empty() => return Ok(()),
        Value::String(word) if word == "json" => json!({ "type": "object" }),
        Value::Object(_) => value.clone(),
        other => return Err(expected("`json`, or a JSON schema, an object", other).into()),
    };
    asked.hold(Some(Held {
        to: To::Schema(schema),
        field: "format",
        place: "/format",
    }));
    Ok(())
}

/// What is whole, whichever way it is written: clients of Ollama write `2.0` as well.
fn settled(value: &Value) -> Cow<'_, Value> {
    const MOST: f64 = (1_u64 << 53) as f64;
    let whole = |number: &f64| number.fract() == 0.0 && number.abs() <= MOST;
    match value.as_f64().filter(|_| value.is_f64()).filter(whole) {
        Some(number) => Cow::Owned((number as i64).into()),
        None => Cow::Borrowed(value),
    }
}

/// A number that may be −1 or −2.
fn open_ended(value: &Value) -> Result<Option<u32>, Amiss> {
    let wrong = || Amiss::from(expected("a whole number from -2", value));
    match settled(value).as_i64() {
        Some(-2..=-1) => Ok(None),
        Some(number) => u32::try_from(number).map(Some).map_err(|_| wrong()),
        None => Err(wrong()),
    }
}

fn num_predict(asked: &mut Asked, value: &Value) -> Result<(), Amiss> {
    asked.generate.max_tokens = open_ended(value)?;
    Ok(())
}

fn repeat_last_n(asked: &mut Asked, value: &Value) -> Result<(), Amiss> {
    let count = open_ended(value)?.unwrap_or(u32::MAX);
    asked.generate.sampling.repeat_last_n = Some(count);
    Ok(())
}

fn is_zero(value: &Value) -> bool {
    value.as_f64() == Some(0.0)
}

fn is_one(value: &Value) -> bool {
    value.as_f64() == Some(1.0)
}
