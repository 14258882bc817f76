//! `POST /v1/embeddings`.

use crate::error::Result;
use crate::registry::Model;
use crate::serve::calls::{Stop, call};
use crate::serve::errors::Problem;
use crate::serve::fields::{self, Endpoint};
use crate::serve::http::{self, Shared};
use crate::serve::models::find;
use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::response::Response;
use backplane_plugin_api::types::{Error, Prompt};
use backplane_plugin_api::{EmbedRequest, Embedding};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::Serialize;
use serde_json::Value;

/// Most inputs of one request.
const INPUTS: usize = 2048;

/// Gives texts as vectors.
pub(in crate::serve) async fn create(
    State(app): Shared,
    request: Request,
) -> std::result::Result<Response, Problem> {
    let body = http::read(&app, request).await?;
    let asked = fields::read(Endpoint::Embeddings, &body)?;
    let inputs = inputs(body.get("input").unwrap_or(&Value::Null))?;
    let served = find(&app.models, &asked.model)?;
    let options = asked.embeddings;
    let request = EmbedRequest {
        inputs,
        pooling: options.pooling,
        normalize: options.normalize,
        extra: std::collections::BTreeMap::new(),
    };
    let work = move |model: &Model, stop: &Stop| embed(model, &request, stop);
    let (vectors, backend) = call(&app, &served, work).await?;
    served.has_answered();
    let width = vectors.first().map_or(0, |vector| vector.values.len());
    if let Some(wanted) = options
        .dimensions
        .filter(|wanted| *wanted as usize != width)
    {
        let message =
            format!("can't be honoured: the model's embeddings have {width}, not {wanted}");
        return Err(Problem::unsupported("dimensions", message));
    }
    let tokens = vectors.iter().map(|vector| vector.prompt_tokens).sum();
    let answer = List {
        object: "list",
        data: vectors
            .into_iter()
            .enumerate()
            .map(|(index, vector)| One {
                object: "embedding",
                index,
                embedding: Numbers::new(vector.values, options.base64),
            })
            .collect(),
        model: &served.id,
        usage: Usage {
            prompt_tokens: tokens,
            total_tokens: tokens,
        },
        backplane: Ours { backend: &backend },
    };
    let text = serde_json::to_string(&answer);
    let text = text.map_err(|error| Problem::internal(error.to_string()))?;
    Ok(http::json_text(StatusCode::OK, text))
}

/// The embeddings, and the backend that made them. The error of an input is that of the request.
pub(in crate::serve) fn embed(
    model: &Model,
    request: &EmbedRequest,
    stop: &Stop,
) -> Result<(Vec<Embedding>, String)> {
    let mut progress = |_: u64, _: u64, _: &str| stop.control();
    let answers = model.embed(request, &mut progress)?;
    let named = |(index, answer): (usize, Result<Embedding>)| {
        answer.map_err(|error| at_input(error, index))
    };
    let vectors = answers.into_iter().enumerate().map(named);
    let vectors: Vec<Embedding> = vectors.collect::<Result<_>>()?;
    stop.has_read(vectors.iter().map(|vector| vector.prompt_tokens).sum());
    Ok((vectors, model.backend()))
}

/// An error of one input, with its place.
fn at_input(error: crate::error::Error, index: usize) -> crate::error::Error {
    match error {
        crate::error::Error::Backend { backend, error } => crate::error::Error::Backend {
            backend,
            error: Error {
                message: format!("input[{index}]: {}", error.message),
                field: "input".to_owned(),
                ..error
            },
        },
        other => other,
    }
}

/// A text, token ids, or an array of several of either. Text that looks like a special token is text.
pub(in crate::serve) fn inputs(value: &Value) -> std::result::Result<Vec<Prompt>, Problem> {
    let wrong = || {
        let what = format!(
            "expected a text, an array of token ids, or an array of up to {INPUTS} of either"
        );
        Problem::field("input", what)
    };
    let inputs = super::prompts(value, INPUTS, false).ok_or_else(wrong)?;
    Ok(inputs)
}

// Written as it is, and not by way of a JSON value, so that numbers are as short as `f32` has them.
#[derive(Serialize)]
struct List<'a> {
    object: &'static str,
    data: Vec<One>,
    model: &'a str,
    usage: Usage,
    backplane: Ours<'a>,
}

#[derive(Serialize)]
struct One {
    object: &'static str,
    index: usize,
    embedding: Numbers,
}

#[derive(Serialize)]
struct Usage {
    prompt_tokens: u64,
    total_tokens: u64,
}

#[derive(Serialize)]
struct Ours<'a> {
    backend: &'a str,
}

#[derive(Serialize)]
#[serde(untagged)]
enum Numbers {
    List(Vec<f32>),
    Base64(String),
}

impl Numbers {
    fn new(values: Vec<f32>, base64: bool) -> Self {
        if !base64 {
            return Self::List(values);
        }
        let bytes: Vec<u8> = values.into_iter().flat_map(f32::to_le_bytes).collect();
        Self::Base64(STANDARD.encode(bytes))
    }
}
