//! Fields of `POST /v1/chat/completions` and `POST /v1/completions`.

use super::Does::{Content, Honoured, NoEffect, Refused};
use super::values::{
    Amiss, boolean, expected, is_empty, is_false, number, of_field, of_item, text, whole,
};
use super::{Asked, Endpoint, Field};
use crate::serve::tools;
use serde_json::Value;

const BOTH: &[Endpoint] = &[Endpoint::Chat, Endpoint::Completions];
const CHAT: &[Endpoint] = &[Endpoint::Chat];
const COMPLETIONS: &[Endpoint] = &[Endpoint::Completions];

/// Most choices of one request.
const CHOICES: u32 = 128;

#[rustfmt::skip]
pub(super) const FIELDS: &[Field] = &[
    Field { name: "model", on: BOTH, does: Honoured(|it, v| text(v).map(|v| it.model = v)),
        about: "name of a model that is served, as `GET /v1/models` lists it; required" },
    Field { name: "messages", on: CHAT, does: Content,
        about: "the conversation; the table of a message is below; required" },
    Field { name: "prompt", on: COMPLETIONS, does: Content,
        about: "a text, in which special tokens are read, an array of token ids, or an array of several of either; required" },
    Field { name: "stream", on: BOTH, does: Honoured(|it, v| boolean(v).map(|v| it.stream = v)),
        about: "the reply as server-sent events, as it is made" },
    Field { name: "stream_options", on: BOTH, does: Honoured(stream_options),
        about: "`include_usage`: a last event tells the tokens; `include_obfuscation` has no effect" },
    Field { name: "n", on: BOTH, does: Honoured(|it, v| whole(v, 1, CHOICES).map(|v| it.choices = v)),
        about: "choices, 1 to 128; with `seed`, each further one adds 1 to it" },
    Field { name: "best_of", on: COMPLETIONS, does: Refused(|v| v.as_u64() == Some(1)),
        about: "only 1: none is left out" },
    Field { name: "max_tokens", on: BOTH, does: Honoured(max_tokens),
        about: "most tokens of a reply: with those of the prompt more than the context is an error; −1, and unless given in a chat: up to the end of the context; completions: 16 unless given" },
    Field { name: "max_completion_tokens", on: CHAT, does: Honoured(max_tokens),
        about: "the same as `max_tokens`; the smaller holds where both are given" },
    Field { name: "temperature", on: BOTH, does: Honoured(|it, v| number(v, 0.0, f32::MAX).map(|v| it.generate.sampling.temperature = Some(v))),
        about: "0 always takes the likeliest token; the backend's default unless given (0.8 for `cpu`)" },
    Field { name: "top_p", on: BOTH, does: Honoured(|it, v| number(v, 0.0, 1.0).map(|v| it.generate.sampling.top_p = Some(v))),
        about: "keeps the likeliest tokens whose probabilities reach it" },
    Field { name: "top_k", on: BOTH, does: Honoured(|it, v| whole(v, 0, u32::MAX).map(|v| it.generate.sampling.top_k = Some(v))),
        about: "keeps that many of the likeliest tokens; 0 keeps all (not OpenAI's)" },
    Field { name: "min_p", on: BOTH, does: Honoured(|it, v| number(v, 0.0, 1.0).map(|v| it.generate.sampling.min_p = Some(v))),
        about: "drops tokens less likely than that share of the likeliest (not OpenAI's)" },
    Field { name: "presence_penalty", on: BOTH, does: Honoured(|it, v| number(v, -2.0, 2.0).map(|v| it.generate.sampling.presence_penalty = Some(v))),
        about: "taken off tokens that were there" },
    Field { name: "frequency_penalty", on: BOTH, does: Honoured(|it, v| number(v, -2.0, 2.0).map(|v| it.generate.sampling.frequency_penalty = Some(v))),
        about: "taken off tokens for each time that they were there" },
    Field { name: "repeat_penalty", on: BOTH, does: Honoured(|it, v| number(v, f32::MIN_POSITIVE, f32::MAX).map(|v| it.generate.sampling.repeat_penalty = Some(v))),
        about: "divides the logits of tokens that were there lately; 1 is off (not OpenAI's)" },
    Field { name: "repeat_last_n", on: BOTH, does: Honoured(|it, v| whole(v, 0, u32::MAX).map(|v| it.generate.sampling.repeat_last_n = Some(v))),
        about: "how many tokens the penalties look back (not OpenAI's)" },
    Field { name: "logit_bias", on: BOTH, does: Honoured(logit_bias),
        about: "added to the logits of tokens, by their ids; −100 to 100" },
    Field { name: "seed", on: BOTH, does: Honoured(seed),
        about: "the same seed gives the same reply; the reply tells the one that was used" },
    Field { name: "stop", on: BOTH, does: Honoured(stop),
        about: "a text, or up to 16, before which the reply ends, within thoughts too, and within a call that the model makes of itself, which is then none; none within a call that has to be made" },
    Field { name: "stop_token_ids", on: BOTH, does: Honoured(stop_tokens),
        about: "tokens at which the reply ends, besides the model's own (not OpenAI's)" },
    Field { name: "ignore_eos", on: BOTH, does: Honoured(|it, v| boolean(v).map(|v| it.generate.ignore_end = v)),
        about: "goes on past the model's own end (not OpenAI's)" },
    Field { name: "logprobs", on: CHAT, does: Honoured(|it, v| boolean(v).map(|v| it.wants_logprobs = v)),
        about: "log probabilities of the tokens" },
    Field { name: "top_logprobs", on: CHAT, does: Honoured(|it, v| whole(v, 0, 20).map(|v| it.top_logprobs = Some(v))),
        about: "of how many of the likeliest, 0 to 20; needs `logprobs`" },
    Field { name: "logprobs", on: COMPLETIONS, does: Honoured(|it, v| whole(v, 0, 20).map(|v| it.logprobs = Some(v))),
        about: "log probabilities of the tokens and of that many of the likeliest, 0 to 20; a token that is part of a character is written as `bytes:` and its bytes; `text_offset` counts characters from the beginning of the reply's text" },
    Field { name: "chat_template_kwargs", on: CHAT, does: Honoured(template),
        about: "variables for the model's chat template, such as `enable_thinking` (not OpenAI's)" },
    Field { name: "echo", on: COMPLETIONS, does: Refused(is_false), about: "the prompt is not said again" },
    Field { name: "suffix", on: COMPLETIONS, does: Refused(is_empty), about: "texts are not filled in" },
    Field { name: "tools", on: CHAT, does: Honoured(|it, v| tools::read(v).map(|v| it.tools.offered = v)),
        about: "up to 128 functions that the model may call; `parameters` is a JSON schema; `strict` has no effect: arguments always follow the schema" },
    Field { name: "tool_choice", on: CHAT, does: Honoured(|it, v| tools::read_choice(v, &mut it.tools)),
        about: "`auto`, `none`, `required`, a function by its name, or `allowed_tools` with a mode" },
    Field { name: "parallel_tool_calls", on: CHAT, does: Honoured(|it, v| boolean(v).map(|v| it.tools.parallel = v)),
        about: "whether several tools may be called in one reply; true unless given" },
    Field { name: "functions", on: CHAT, does: Refused(is_empty), about: "the older form of `tools`" },
    Field { name: "function_call", on: CHAT, does: Refused(|v| v == "none" || v == "auto"), about: "the older form of `tool_choice`" },
    Field { name: "response_format", on: CHAT, does: Honoured(|it, v| tools::read_format(v).map(|v| it.hold(v))),
        about: "`text`, `json_object`, or `json_schema` with a `schema` that the reply follows; `json_object` with a `schema` follows it too (not OpenAI's); `strict` has no effect: it always does" },
    Field { name: "grammar", on: BOTH, does: Honoured(|it, v| tools::read_grammar(v).map(|v| it.hold(v))),
        about: "what the text follows: an object with one of `json_schema`, `regex` and `lark` (not OpenAI's)" },
    Field { name: "modalities", on: CHAT, does: Refused(|v| v.as_array().is_some_and(|all| all.iter().all(|one| one == "text"))), about: "only `text`" },
    Field { name: "audio", on: CHAT, does: Refused(is_empty), about: "there is no audio" },
    Field { name: "prediction", on: CHAT, does: Refused(is_empty), about: "predicted output is not offered" },
    Field { name: "reasoning_effort", on: CHAT, does: Honoured(effort), about: "given to the template as `reasoning_effort`, and as `enable_thinking`, which `none` turns off; models whose template knows neither think as they do" },
    Field { name: "reasoning_format", on: CHAT, does: Honoured(reasoning_format), about: "`auto` or `deepseek`: what is thought is told apart, as `reasoning_content`; `none`: it stays in the text, with its marks (not OpenAI's)" },
    Field { name: "verbosity", on: CHAT, does: Refused(|v| v == "medium"), about: "replies are as long as the model makes them" },
    Field { name: "web_search_options", on: CHAT, does: Refused(is_empty), about: "nothing is searched" },
    Field { name: "service_tier", on: CHAT, does: Refused(|v| v == "auto" || v == "default"), about: "there is one tier" },
    Field { name: "store", on: CHAT, does: Refused(is_false), about: "nothing is stored" },
    Field { name: "metadata", on: CHAT, does: NoEffect, about: "labels for the caller's own use" },
    Field { name: "user", on: BOTH, does: NoEffect, about: "names an end user to the provider" },
    Field { name: "safety_identifier", on: CHAT, does: NoEffect, about: "names an end user to the provider" },
    Field { name: "prompt_cache_key", on: CHAT, does: NoEffect, about: "prompts are cached by what they begin with" },
    Field { name: "prompt_cache_retention", on: CHAT, does: NoEffect, about: "prompts are cached by what they begin with" },
];

fn max_tokens(asked: &mut Asked, value: &Value) -> Result<(), Amiss> {
    // As clients of llama-server have it: up to the end of the context.
    if value.as_f64() == Some(-1.0) {
        return Ok(());
    }
    let most = whole(value, 0, u32::MAX)?;
    let before = asked.generate.max_tokens;
    asked.generate.max_tokens = Some(before.map_or(most, |before| before.min(most)));
    Ok(())
}

pub(super) fn seed(asked: &mut Asked, value: &Value) -> Result<(), Amiss> {
    // A seed is 64 bits, whatever they mean.
    let seed = value.as_u64().or(value.as_i64().map(|seed| seed as u64));
    let seed = seed.ok_or_else(|| expected("a whole number of 64 bits", value))?;
    asked.generate.sampling.seed = Some(seed);
    Ok(())
}

pub(super) fn stop(asked: &mut Asked, value: &Value) -> Result<(), Amiss> {
    let what = "a text that is not empty, or an array of up to 16";
    let one = |value: &Value| {
        let text = value.as_str().filter(|text| !text.is_empty());
        text.map(str::to_owned).ok_or_else(|| expected(what, value))
    };
    let item = |(index, value)| one(value).map_err(|why| of_item(index, why));
    asked.generate.stop = match value.as_array() {
        Some(many) if many.len() <= 16 => many
            .iter()
            .enumerate()
            .map(item)
            .collect::<Result<_, _>>()?,
        Some(_) => return Err(expected(what, value).into()),
        None => vec![one(value)?],
    };
    Ok(())
}

fn stop_tokens(asked: &mut Asked, value: &Value) -> Result<(), Amiss> {
    let many = value.as_array().filter(|many| many.len() <= 1024);
    let many = many.ok_or_else(|| expected("an array of up to 1024 token ids", value))?;
    let one = |(index, one)| whole(one, 0, u32::MAX).map_err(|why| of_item(index, why));
    let ids = many.iter().enumerate().map(one);
    asked.generate.stop_tokens = ids.collect::<Result<_, _>>()?;
    Ok(())
}

fn logit_bias(asked: &mut Asked, value: &Value) -> Result<(), Amiss> {
    let what = "an object of numbers from -100 to 100 by token ids";
    let object = value.as_object().ok_or_else(|| expected(what, value))?;
    let one = |(id, bias): (&String, &Value)| {
        let token = id.parse::<u32>().map_err(|_| expected(what, value))?;
        let bias = number(bias, -100.0, 100.0).map_err(|why| of_field(id, why))?;
        Ok::<_, Amiss>((token, bias))
    };
    asked.generate.sampling.logit_bias = object.iter().map(one).collect::<Result<_, _>>()?;
    Ok(())
}

pub(super) fn stream_options(asked: &mut Asked, value: &Value) -> Result<(), Amiss> {
    let what = "an object with `include_usage`";
    let object = value.as_object().ok_or_else(|| expected(what, value))?;
    for (name, value) in object {
        match name.as_str() {
            "include_usage" => {
                asked.usage =
                    value.is_null() || boolean(value).map_err(|why| of_field(name, why))?
            }
            "include_obfuscation" => {}
            other => return Err(of_field(other, "no such option".to_owned())),
        }
    }
    Ok(())
}

/// How much a model is to think, for templates that know of it.
pub(super) fn effort(asked: &mut Asked, value: &Value) -> Result<(), Amiss> {
    let what = "`none`, `minimal`, `low`, `medium`, `high` or `xhigh`";
    let word = value.as_str().unwrap_or_default();
    if !["none", "minimal", "low", "medium", "high", "xhigh"].contains(&word) {
        return Err(expected(what, value).into());
    }
    if word != "none" {
        asked.set_template("reasoning_effort", value.clone());
    }
    asked.set_template("enable_thinking", Value::Bool(word != "none"));
    Ok(())
}

fn reasoning_format(asked: &mut Asked, value: &Value) -> Result<(), Amiss> {
    asked.tools.as_written = match value.as_str() {
        Some("none") => true,
        Some("auto" | "deepseek") => false,
        _ => return Err(expected("`auto`, `deepseek` or `none`", value).into()),
    };
    Ok(())
}

pub(super) fn template(asked: &mut Asked, value: &Value) -> Result<(), Amiss> {
    let object = value
        .as_object()
        .ok_or_else(|| expected("an object", value))?;
    // What is said here goes before what other fields come to.
    asked.template.extend(object.clone());
    Ok(())
}
