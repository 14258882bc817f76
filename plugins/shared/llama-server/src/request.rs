//! Requests of the contract, checked, in the server's words.

use backplane_plugin_api::sdk::Result;
use backplane_plugin_api::types::{Error, GenerateOptions, Sampling};
use serde_json::{Map, Value, json};

/// Most log probabilities beside the chosen token's.
const MAX_LOGPROBS: u32 = 100;
/// Most stop strings, and most bytes of one.
const MAX_STOPS: usize = 64;
const MAX_STOP_BYTES: usize = 4096;

/// A generation's settings for `/completion`, everything stated: the server's own defaults play no part.
///
/// # Errors
/// A field is out of range, or one that the server can't honour.
pub(crate) fn settings(
    backend: &str,
    options: &GenerateOptions,
    vocabulary: u64,
    seed: u64,
) -> Result<Map<String, Value>> {
    if let Some(name) = options.extra.keys().next() {
        return Err(Error::unsupported_field(name.clone(), backend));
    }
    let mut body = sampling(&options.sampling, vocabulary)?;
    check_stops(&options.stop)?;
    let outside = |&&token: &&u32| vocabulary > 0 && u64::from(token) >= vocabulary;
    if let Some(token) = options.stop_tokens.iter().find(outside) {
        let message =
            format!("stop_tokens: token {token} is outside the vocabulary of {vocabulary}");
        return Err(Error::invalid_field("stop_tokens", message));
    }
    if let Some(logprobs) = options.logprobs {
        if logprobs > MAX_LOGPROBS {
            let message = format!("logprobs: {logprobs}; expected at most {MAX_LOGPROBS}");
            return Err(Error::invalid_field("logprobs", message));
        }
        // The server counts the chosen token where it is among the likeliest.
        body.insert("n_probs".into(), (logprobs + 1).into());
    }
    if let Some(grammar) = &options.grammar {
        if grammar.kind != "json_schema" {
            let message = format!(
                "grammar: kind {:?}; {backend} takes json_schema",
                grammar.kind
            );
            return Err(Error {
                message,
                ..Error::unsupported_field("grammar", backend)
            });
        }
        let schema: Value = serde_json::from_str(&grammar.source).map_err(|error| {
            Error::invalid_field(
                "grammar",
                format!("grammar: the schema is not JSON: {error}"),
            )
        })?;
        body.insert("json_schema".into(), schema);
    }
    body.insert("ignore_eos".into(), options.ignore_end.into());
    body.insert("cache_prompt".into(), true.into());
    // The server's seeds have 32 bits, and its largest one asks it to draw.
    let seed = u32::try_from(seed)
        .ok()
        .filter(|&seed| seed != u32::MAX)
        .ok_or_else(|| {
            let message = format!("seed: {seed}; {backend} takes 0 to {}", u32::MAX - 1);
            Error::invalid_field("seed", message)
        })?;
    body.insert("seed".into(), seed.into());
    Ok(body)
}

/// Stop strings as every backend takes them.
///
/// # Errors
/// There are too many, or one is empty or too long.
pub fn check_stops(stops: &[String]) -> Result<()> {
    if stops.len() > MAX_STOPS {
        let message = format!(
            "stop: {} stop strings; expected at most {MAX_STOPS}",
            stops.len()
        );
        return Err(Error::invalid_field("stop", message));
    }
    let odd = |stop: &&String| stop.is_empty() || stop.len() > MAX_STOP_BYTES;
    if let Some(stop) = stops.iter().find(odd) {
        let message = format!(
            "stop: a stop string of {} bytes; expected 1 to {MAX_STOP_BYTES}",
            stop.len()
        );
        return Err(Error::invalid_field("stop", message));
    }
    Ok(())
}

/// Sampling settings by the names of their fields, each stated; `vocabulary` is 0 where it is not known.
///
/// # Errors
/// A field is out of range.
pub fn sampling(sampling: &Sampling, vocabulary: u64) -> Result<Map<String, Value>> {
    let mut body = Map::new();
    let mut float =
        |field: &str, value: Option<f32>, default: f32, within: fn(f32) -> bool, expected: &str| {
            let value = value.unwrap_or(default);
            if !(value.is_finite() && within(value)) {
                let message = format!("{field}: {value}; expected {expected}");
                return Err(Error::invalid_field(field, message));
            }
            body.insert(field.into(), value.into());
            Ok(())
        };
    let share = |value: f32| (0.0..=1.0).contains(&value);
    float(
        "temperature",
        sampling.temperature,
        0.8,
        |value| value >= 0.0,
        "0 or more",
    )?;
    float("top_p", sampling.top_p, 0.95, share, "0 to 1")?;
    float("min_p", sampling.min_p, 0.05, share, "0 to 1")?;
    float(
        "repeat_penalty",
        sampling.repeat_penalty,
        1.0,
        |value| value > 0.0,
        "more than 0",
    )?;
    float(
        "presence_penalty",
        sampling.presence_penalty,
        0.0,
        |_| true,
        "a number",
    )?;
    float(
        "frequency_penalty",
        sampling.frequency_penalty,
        0.0,
        |_| true,
        "a number",
    )?;
    for (field, value, default) in [
        ("top_k", sampling.top_k, 40),
        ("repeat_last_n", sampling.repeat_last_n, 64),
    ] {
        let value = value.unwrap_or(default);
        if value > i32::MAX as u32 {
            let message = format!("{field}: {value}; expected at most {}", i32::MAX);
            return Err(Error::invalid_field(field, message));
        }
        body.insert(field.into(), value.into());
    }
    let mut biases = vec![];
    for &(token, bias) in &sampling.logit_bias {
        if vocabulary > 0 && u64::from(token) >= vocabulary {
            let message =
                format!("logit_bias: token {token} is outside the vocabulary of {vocabulary}");
            return Err(Error::invalid_field("logit_bias", message));
        }
        // JSON has no infinity; the server takes `false` for a token that must not come.
        biases.push(match bias {
            bias if bias == f32::NEG_INFINITY => json!([token, false]),
            bias if bias.is_finite() => json!([token, bias]),
            bias => {
                let message = format!(
                    "logit_bias: {bias} for token {token}; expected a number or negative infinity"
                );
                return Err(Error::invalid_field("logit_bias", message));
            }
        });
    }
    body.insert("logit_bias".into(), biases.into());
    Ok(body)
}

/// A seed that the server takes as it is, from the randomness that the standard library keeps for its hash maps.
pub fn fresh_seed() -> u64 {
    use std::hash::{BuildHasher, Hasher};
    std::hash::RandomState::new().build_hasher().finish() % u64::from(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use backplane_plugin_api::types::{ErrorCode, Grammar};

    fn of(options: &GenerateOptions) -> Result<Map<String, Value>> {
        settings("llama_cpp", options, 100, 7)
    }

    #[test]
    fn every_field_arrives() {
        let options = GenerateOptions {
            sampling: Sampling {
                temperature: Some(0.5),
                top_k: Some(3),
                logit_bias: vec![(5, 1.5), (6, f32::NEG_INFINITY)],
                ..Sampling::default()
            },
            stop: vec!["x".into()],
            ignore_end: true,
            logprobs: Some(2),
            grammar: Some(Grammar {
                kind: "json_schema".into(),
                source: "{\"type\": \"object\"}".into(),
            }),
            ..GenerateOptions::default()
        };
        let body = of(&options).unwrap();
        for (key, value) in [
            ("temperature", json!(0.5)),
            ("top_k", json!(3)),
            ("top_p", json!(0.95_f32)),
            ("min_p", json!(0.05_f32)),
            ("repeat_penalty", json!(1.0)),
            ("repeat_last_n", json!(64)),
            ("presence_penalty", json!(0.0)),
            ("frequency_penalty", json!(0.0)),
            ("logit_bias", json!([[5, 1.5], [6, false]])),
            ("ignore_eos", json!(true)),
            ("n_probs", json!(3)),
            ("json_schema", json!({"type": "object"})),
            ("seed", json!(7)),
        ] {
            assert_eq!(body[key], value, "{key}");
        }
        assert!(fresh_seed() < u64::from(u32::MAX));
    }

    #[test]
    fn what_can_not_be_honoured_is_named() {
        let sampling = |sampling| GenerateOptions {
            sampling,
            ..GenerateOptions::default()
        };
        let grammar = |kind: &str| GenerateOptions {
            grammar: Some(Grammar {
                kind: kind.into(),
                source: "{".into(),
            }),
            ..GenerateOptions::default()
        };
        let mut extra = GenerateOptions::default();
        extra.extra.insert("mirostat".into(), 2.into());
        let cases = [
            (
                "temperature",
                sampling(Sampling {
                    temperature: Some(f32::NAN),
                    ..Sampling::default()
                }),
            ),
            (
                "top_p",
                sampling(Sampling {
                    top_p: Some(2.0),
                    ..Sampling::default()
                }),
            ),
            (
                "repeat_penalty",
                sampling(Sampling {
                    repeat_penalty: Some(0.0),
                    ..Sampling::default()
                }),
            ),
            (
                "top_k",
                sampling(Sampling {
                    top_k: Some(u32::MAX),
                    ..Sampling::default()
                }),
            ),
            (
                "logit_bias",
                sampling(Sampling {
                    logit_bias: vec![(100, 1.0)],
                    ..Sampling::default()
                }),
            ),
            (
                "logit_bias",
                sampling(Sampling {
                    logit_bias: vec![(1, f32::INFINITY)],
                    ..Sampling::default()
                }),
            ),
            (
                "stop",
                GenerateOptions {
                    stop: vec![String::new()],
                    ..GenerateOptions::default()
                },
            ),
            (
                "stop_tokens",
                GenerateOptions {
                    stop_tokens: vec![100],
                    ..GenerateOptions::default()
                },
            ),
            (
                "logprobs",
                GenerateOptions {
                    logprobs: Some(101),
                    ..GenerateOptions::default()
                },
            ),
            ("grammar", grammar("lark")),
            ("grammar", grammar("json_schema")),
            ("mirostat", extra),
        ];
        for (field, options) in cases {
            let error = of(&options).unwrap_err();
            assert_eq!(error.field, field, "{error}");
            assert!(matches!(
                error.code,
                ErrorCode::InvalidRequest | ErrorCode::UnsupportedField
            ));
        }
        let error = settings("llama_cpp", &GenerateOptions::default(), 0, u64::MAX).unwrap_err();
        assert_eq!(error.field, "seed");
    }
}
