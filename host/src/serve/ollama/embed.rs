//! `POST /api/embed` and the older `POST /api/embeddings`.

use super::time::nanoseconds;
use crate::error::Error;
use crate::registry::Model;
use crate::serve::calls::{Stop, call_keeping};
use crate::serve::errors::Problem;
use crate::serve::fields::{self, Asked, Endpoint};
use crate::serve::http::{self, App, Shared};
use crate::serve::openai;
use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::response::Response;
use backplane_plugin_api::types::Prompt;
use backplane_plugin_api::{EmbedRequest, Embedding};
use serde::Serialize;
use serde_json::Value;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

// Written as they are, and not by way of a JSON value, so that numbers are as short as `f32` has them.
#[derive(Serialize)]
struct Many<'a> {
    model: &'a str,
    embeddings: Vec<Vec<f32>>,
    total_duration: u64,
    load_duration: u64,
    prompt_eval_count: u64,
}

#[derive(Serialize)]
struct One {
    embedding: Vec<f32>,
}

/// Gives texts as vectors.
pub(in crate::serve) async fn embed(
    State(app): Shared,
    request: Request,
) -> Result<Response, Problem> {
    let begun = Instant::now();
    let body = http::read(&app, request).await?;
    let asked = fields::read(Endpoint::OllamaEmbed, &body)?;
    let inputs = match body.get("input") {
        None | Some(Value::Null) => Vec::new(),
        Some(Value::String(text)) if text.is_empty() => Vec::new(),
        Some(Value::Array(all)) if all.is_empty() => Vec::new(),
        Some(input) => openai::embeddings::inputs(input)?,
    };
    let (id, vectors) = vectors(&app, &asked, inputs).await?;
    let answer = Many {
        model: &id,
        prompt_eval_count: vectors.iter().map(|one| one.prompt_tokens).sum(),
        embeddings: vectors.into_iter().map(|one| one.values).collect(),
        total_duration: nanoseconds(begun.elapsed().as_secs_f64()),
        load_duration: 0,
    };
    written(&answer)
}

/// Gives one text as a vector.
pub(in crate::serve) async fn embeddings(
    State(app): Shared,
    request: Request,
) -> Result<Response, Problem> {
    let body = http::read(&app, request).await?;
    let mut asked = fields::read(Endpoint::OllamaEmbeddings, &body)?;
    let prompt = body.get("prompt").and_then(Value::as_str);
    let prompt = prompt.ok_or_else(|| Problem::field("prompt", "expected a text"))?;
    asked.ollama.whole = true;
    let (_, vectors) = vectors(&app, &asked, vec![Prompt::text(prompt)]).await?;
    let embedding = vectors.into_iter().next().map(|one| one.values);
    written(&One {
        embedding: embedding.unwrap_or_default(),
    })
}

fn written(answer: &impl Serialize) -> Result<Response, Problem> {
    let text = serde_json::to_string(answer);
    let text = text.map_err(|error| Problem::internal(error.to_string()))?;
    Ok(http::json_text(StatusCode::OK, text))
}

async fn vectors(
    app: &Arc<App>,
    asked: &Asked,
    inputs: Vec<Prompt>,
) -> Result<(String, Vec<Embedding>), Problem> {
    let served = super::model(app, asked)?;
    let options = fields::Embeddings::default();
    let mut request = EmbedRequest {
        inputs,
        pooling: options.pooling,
        normalize: options.normalize,
        extra: BTreeMap::new(),
    };
    let whole = asked.ollama.whole;
    let work = move |model: &Model, stop: &Stop| {
        if request.inputs.is_empty() {
            return Ok((Vec::new(), model.backend()));
        }
        if !whole {
            let context = model.info().loaded_context as usize;
            for input in &mut request.inputs {
                fit(model, context, input)?;
            }
        }
        openai::embeddings::embed(model, &request, stop)
    };
    let (mut vectors, _) = call_keeping(app, &served, asked.ollama.keep, work).await?;
    served.has_answered();
    if let Some(wanted) = asked.ollama.dimensions {
        for vector in &mut vectors {
            cut(&mut vector.values, wanted as usize)?;
        }
    }
    Ok((served.id.clone(), vectors))
}

/// Cuts the end off what is longer than a context; what a model wants around a text stays around it.
fn fit(model: &Model, context: usize, input: &mut Prompt) -> Result<(), Error> {
    let cut = match input {
        Prompt::Tokens(tokens) => tokens.get(..context).map(<[u32]>::to_vec),
        // There are no more tokens than bytes, besides those around them.
        Prompt::Text { text, .. } if text.len() + AROUND < context => None,
        Prompt::Text { text, special } => {
            let whole = model.tokenize(text, true, *special)?;
            let plain = match whole.len() > context {
                true => model.tokenize(text, false, *special)?,
                false => Vec::new(),
            };
            (whole.len() > context).then(|| within(&whole, &plain, context))
        }
    };
    if let Some(tokens) = cut.filter(|_| context > 0) {
        *input = Prompt::Tokens(tokens);
    }
    Ok(())
}

/// More tokens than any model wants around a text.
const AROUND: usize = 16;

/// The beginning of a text, `plain`, with what is around it in `whole`.
fn within(whole: &[u32], plain: &[u32], context: usize) -> Vec<u32> {
    let around = whole.len().saturating_sub(plain.len());
    let before = (0..=around).find(|at| whole[*at..].starts_with(plain));
    match (before, context.checked_sub(around)) {
        (Some(before), Some(room)) => {
            let after = &whole[before + plain.len()..];
            [&whole[..before], &plain[..room.min(plain.len())], after].concat()
        }
        _ => whole[..context.min(whole.len())].to_vec(),
    }
}

/// Keeps the first numbers, and gives what is left the length 1 again.
fn cut(values: &mut Vec<f32>, wanted: usize) -> Result<(), Problem> {
    let width = values.len();
    if wanted > width {
        let message =
            format!("can't be honoured: the model's embeddings have {width}, not {wanted}");
        return Err(Problem::unsupported("dimensions", message));
    }
    values.truncate(wanted);
    let square: f64 = values.iter().map(|value| f64::from(*value).powi(2)).sum();
    let length = square.sqrt() as f32;
    if length > 0.0 {
        values.iter_mut().for_each(|value| *value /= length);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_is_cut_off_and_what_is_around_stays() {
        let plain: Vec<u32> = (10..20).collect();
        let around = |before: &[u32], after: &[u32]| [before, &plain[..], after].concat();
        for (before, after, context, expected) in [
            (&[1][..], &[2][..], 5, &[1, 10, 11, 12, 2][..]),
            (&[1], &[], 3, &[1, 10, 11]),
            (&[], &[2], 2, &[10, 2]),
            (&[], &[], 2, &[10, 11]),
            (&[1], &[2], 2, &[1, 2]),
            (&[1], &[2], 1, &[1]),
        ] {
            assert_eq!(within(&around(before, after), &plain, context), expected);
        }
        // Where a text by itself is read otherwise, what is there is cut.
        assert_eq!(within(&[1, 5, 6], &[7, 8], 2), [1, 5]);
    }

    #[test]
    fn what_is_kept_has_the_length_1() {
        let mut values = vec![3.0, 4.0, 12.0];
        cut(&mut values, 2).unwrap();
        assert_eq!(values, [0.6, 0.8]);
        assert!(cut(&mut values, 3).is_err());
        let mut zero = vec![0.0, 0.0];
        cut(&mut zero, 1).unwrap();
        assert_eq!(zero, [0.0]);
    }
}
