//! `POST /v1/completions`.

use super::choices::{Choices, Kind};
use super::{Frame, logprobs};
use crate::serve::errors::Problem;
use crate::serve::fields::{self, Asked, Endpoint};
use crate::serve::generation::{Answer, Job};
use crate::serve::http::{self, Shared};
use crate::serve::likely::Likely;
use crate::serve::models::find;
use crate::serve::reply;
use crate::serve::tools::Piece;
use axum::extract::{Request, State};
use axum::response::Response;
use serde_json::{Map, Value, json};

/// Most prompts of one request, and most replies to them.
const PROMPTS: usize = 128;

/// Continues texts.
pub(in crate::serve) async fn create(
    State(app): Shared,
    request: Request,
) -> Result<Response, Problem> {
    let body = http::read(&app, request).await?;
    let asked = fields::read(Endpoint::Completions, &body)?;
    let jobs = jobs(&body, &asked)?;
    let served = find(&app.models, &asked.model)?;
    let frame = Frame::new("cmpl", &served.id, &asked);
    let kind = Text {
        places: vec![logprobs::Place::default(); jobs.len()],
    };
    let shape = Choices::new(kind, frame, &asked, jobs.len());
    reply::send(&app, &served, jobs, asked.stream, shape).await
}

fn jobs(body: &Map<String, Value>, asked: &Asked) -> Result<Vec<Job>, Problem> {
    let prompts = super::prompts(body.get("prompt").unwrap_or(&Value::Null), PROMPTS, true);
    let prompts = prompts.ok_or_else(|| {
        let what = format!(
            "expected a text, an array of token ids, or an array of up to {PROMPTS} of either"
        );
        Problem::field("prompt", what)
    })?;
    if prompts.len() * asked.choices as usize > PROMPTS {
        let message = format!("with the prompts there are more than {PROMPTS} replies");
        return Err(Problem::field("n", message));
    }
    let job = |prompt| Job::text(asked, prompt).choices(asked.choices);
    Ok(prompts.into_iter().flat_map(job).collect())
}

struct Text {
    /// Where the next token of each choice begins, in characters.
    places: Vec<logprobs::Place>,
}

impl Kind for Text {
    const WHOLE: (&'static str, &'static str) = ("text_completion", "text");
    const CHUNK: (&'static str, &'static str) = ("text_completion", "text");

    fn whole(&self, answer: &Answer) -> Value {
        json!(answer.text)
    }

    fn first(&self) -> Option<Value> {
        None
    }

    fn piece(&self, piece: Piece) -> Option<Value> {
        match piece {
            Piece::Text(text) => Some(json!(text)),
            // Only chats think and call tools.
            Piece::Thought(_) | Piece::Begun { .. } | Piece::Arguments { .. } => None,
        }
    }

    fn last(&self) -> Value {
        json!("")
    }

    fn logprobs(&mut self, index: usize, tokens: &[&[Likely]]) -> Value {
        match self.places.get_mut(index) {
            Some(place) => logprobs::completion(tokens.iter().copied(), place),
            None => Value::Null,
        }
    }
}
