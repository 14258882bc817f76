//! Requests of the contract in the endpoint's words: what it can't be told is refused by name.

use crate::NAME;
use crate::fields::Fields;
use backplane_llama_server::{openai, request};
use backplane_plugin_api::sdk::Result;
use backplane_plugin_api::types::{Error, GenerateOptions, Sampling};
use serde_json::{Map, Value, json};

/// Most log probabilities beside the chosen token's; endpoints take fewer, and say so.
const MAX_LOGPROBS: u32 = 100;
/// A bias in the original API; the lowest bans a token.
const MAX_BIAS: f32 = 100.0;

/// Which of the two APIs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Api {
    Text,
    Chat,
}

/// A generation's settings, checked.
///
/// # Errors
/// A field is out of range, or one that the endpoint does not take.
pub(crate) fn settings(
    model: &str,
    fields: &Fields,
    options: &GenerateOptions,
    api: Api,
    seed: u64,
) -> Result<Map<String, Value>> {
    let refused = |name: &str| Error::unsupported_field(name, NAME);
    if let Some(name) = options.extra.keys().next() {
        return Err(refused(name));
    }
    if !options.stop_tokens.is_empty() {
        return Err(refused("stop_tokens"));
    }
    request::check_stops(&options.stop)?;
    let mut body = sampling(fields, &options.sampling)?;
    body.insert("model".into(), model.into());
    if fields.has("seed") {
        // Endpoints differ in how large a seed they take; all take these.
        if seed > u64::from(i32::MAX as u32) {
            let message = format!("seed: {seed}; {NAME} takes 0 to {}", i32::MAX);
            return Err(Error::invalid_field("seed", message));
        }
        body.insert("seed".into(), seed.into());
    } else if options.sampling.seed.is_some() {
        return Err(refused("seed"));
    }
    if options.ignore_end {
        if !fields.has("ignore_end") {
            return Err(refused("ignore_end"));
        }
        body.insert("ignore_eos".into(), true.into());
    }
    if let Some(count) = options.logprobs {
        if !fields.has("logprobs") {
            return Err(refused("logprobs"));
        }
        if count > MAX_LOGPROBS {
            let message = format!("logprobs: {count}; expected at most {MAX_LOGPROBS}");
            return Err(Error::invalid_field("logprobs", message));
        }
        match api {
            // The chosen token may be among the likeliest.
            Api::Text => body.insert("logprobs".into(), (count + 1).into()),
            Api::Chat => {
                body.insert("top_logprobs".into(), (count + 1).into());
                body.insert("logprobs".into(), true.into())
            }
        };
    }
    if let Some(grammar) = &options.grammar {
        if api == Api::Text || !fields.has("grammar") || grammar.kind != "json_schema" {
            let message = format!(
                "grammar: {NAME} takes json_schema in chats, where the endpoint does; found kind {:?}",
                grammar.kind
            );
            return Err(Error {
                message,
                ..refused("grammar")
            });
        }
        let schema: Value = serde_json::from_str(&grammar.source).map_err(|error| {
            Error::invalid_field(
                "grammar",
                format!("grammar: the schema is not JSON: {error}"),
            )
        })?;
        // Strict: an endpoint that can't hold itself to the schema is to say so.
        let named = json!({ "name": "answer", "strict": true, "schema": schema });
        let format = json!({ "type": "json_schema", "json_schema": named });
        body.insert("response_format".into(), format);
    }
    if let Some(tokens) = options.max_tokens {
        let newer = api == Api::Chat && fields.has("max_completion_tokens");
        let name = if newer {
            "max_completion_tokens"
        } else {
            "max_tokens"
        };
        body.insert(name.into(), tokens.into());
    }
    if fields.has("stream_options") {
        body.insert("stream_options".into(), openai::with_usage());
    }
    Ok(body)
}

/// What is unset and taken by the endpoint has the contract's default; what is set and not taken is refused, unless its value
/// changes nothing.
fn sampling(fields: &Fields, sampling: &Sampling) -> Result<Map<String, Value>> {
    // Ranges are those of every backend.
    let checked = request::sampling(sampling, 0)?;
    let mut body = Map::new();
    let of = |value: Option<f32>| value.map(f64::from);
    let count = |value: Option<u32>| value.map(f64::from);
    // With the value by which each is off.
    for (name, given, off) in [
        ("temperature", of(sampling.temperature), 1.0),
        ("top_p", of(sampling.top_p), 1.0),
        ("top_k", count(sampling.top_k), 0.0),
        ("min_p", of(sampling.min_p), 0.0),
        ("repeat_penalty", of(sampling.repeat_penalty), 1.0),
        ("repeat_last_n", count(sampling.repeat_last_n), f64::NAN),
        ("presence_penalty", of(sampling.presence_penalty), 0.0),
        ("frequency_penalty", of(sampling.frequency_penalty), 0.0),
    ] {
        match given {
            _ if fields.has(name) => {
                body.insert(name.into(), short(&checked[name]));
            }
            Some(value) if value != off => return Err(Error::unsupported_field(name, NAME)),
            _ => {}
        }
    }
    if sampling.logit_bias.is_empty() {
        return Ok(body);
    }
    if !fields.has("logit_bias") {
        return Err(Error::unsupported_field("logit_bias", NAME));
    }
    let mut biases = Map::new();
    for &(token, bias) in &sampling.logit_bias {
        let bias = match bias {
            bias if bias == f32::NEG_INFINITY => -MAX_BIAS,
            bias if bias.abs() <= MAX_BIAS => bias,
            bias => {
                let message = format!(
                    "logit_bias: {bias} for token {token}; {NAME} takes {} to {MAX_BIAS}",
                    -MAX_BIAS
                );
                return Err(Error::invalid_field("logit_bias", message));
            }
        };
        biases.insert(token.to_string(), short(&bias.into()));
    }
    body.insert("logit_bias".into(), biases.into());
    Ok(body)
}

/// A number in the digits that it was given in: 0.7, not 0.699999988079071.
fn short(number: &Value) -> Value {
    match number.as_f64().filter(|_| number.is_f64()) {
        Some(wide) => {
            let digits = (wide as f32).to_string();
            digits
                .parse::<f64>()
                .map_or_else(|_| number.clone(), Value::from)
        }
        None => number.clone(),
    }
}
