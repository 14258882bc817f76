//! `POST /api/embed` and the older `POST /api/embeddings`.

use super::time::nanoseconds;
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
    let input = body.get("input").unwrap_or(&Value::Null);
    let inputs = openai::embeddings::inputs(input)?;
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
    let asked = fields::read(Endpoint::OllamaEmbeddings, &body)?;
    let prompt = body.get("prompt").and_then(Value::as_str);
    let prompt = prompt.ok_or_else(|| Problem::field("prompt", "expected a text"))?;
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
    let request = EmbedRequest {
        inputs,
        pooling: options.pooling,
        normalize: options.normalize,
        extra: BTreeMap::new(),
    };
    let work = move |model: &Model, stop: &Stop| openai::embeddings::embed(model, &request, stop);
    let (mut vectors, _) = call_keeping(app, &served, asked.ollama.keep, work).await?;
    if let Some(wanted) = asked.ollama.dimensions {
        for vector in &mut vectors {
            cut(&mut vector.values, wanted as usize)?;
        }
    }
    Ok((served.id.clone(), vectors))
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
