//! `POST /v1/completions`.

use super::{Frame, Usage, finish_reason, logprobs, ours};
use crate::serve::errors::Problem;
use crate::serve::fields::{self, Asked, Endpoint};
use crate::serve::generation::{self, Answer, Job, Told};
use crate::serve::http::{self, Shared};
use crate::serve::models::find;
use crate::serve::sse::{self, Render};
use crate::serve::tools::{Held, Piece};
use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::response::Response;
use backplane_plugin_api::types::{GenerateOptions, GenerateRequest, Prompt};
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
    let (choices, wants_logprobs) = (asked.choices, asked.logprobs.is_some());
    let count = jobs.len();
    let running = generation::start(&app, served, jobs, asked.stream)?;
    if asked.stream {
        let render = Stream {
            frame,
            choices,
            offsets: vec![0; count],
            wants_logprobs,
            usage: Usage::default(),
        };
        return sse::respond(running, render).await;
    }
    let answers = running.answers().await?;
    Ok(http::json(
        StatusCode::OK,
        &whole(&frame, choices, &answers, wants_logprobs),
    ))
}

fn jobs(body: &Map<String, Value>, asked: &Asked) -> Result<Vec<Job>, Problem> {
    let prompts = prompts(body.get("prompt").unwrap_or(&Value::Null))?;
    if prompts.len() * asked.choices as usize > PROMPTS {
        let message = format!("with the prompts there are more than {PROMPTS} replies");
        return Err(Problem::field("n", message));
    }
    let job = |prompt| {
        let options = GenerateOptions {
            grammar: asked.tools.held.as_ref().map(Held::grammar),
            ..asked.generate.clone()
        };
        Job::Text(GenerateRequest { prompt, options }).choices(asked.choices)
    };
    Ok(prompts.into_iter().flat_map(job).collect())
}

/// A text, token ids, or an array of several of either.
fn prompts(value: &Value) -> Result<Vec<Prompt>, Problem> {
    let wrong = || {
        let what = format!(
            "expected a text, an array of token ids, or an array of up to {PROMPTS} of either"
        );
        Problem::field("prompt", what)
    };
    match value {
        Value::Array(items) if items.iter().any(|item| item.is_string() || item.is_array()) => {
            if items.len() > PROMPTS {
                return Err(wrong());
            }
            items
                .iter()
                .map(|item| prompt(item).ok_or_else(wrong))
                .collect()
        }
        one => Ok(vec![prompt(one).ok_or_else(wrong)?]),
    }
}

fn prompt(value: &Value) -> Option<Prompt> {
    match value {
        Value::String(text) => Some(Prompt::Text {
            text: text.clone(),
            special: true,
        }),
        Value::Array(ids) if !ids.is_empty() => {
            let id = |id: &Value| id.as_u64().and_then(|id| u32::try_from(id).ok());
            ids.iter()
                .map(id)
                .collect::<Option<_>>()
                .map(Prompt::Tokens)
        }
        _ => None,
    }
}

fn whole(frame: &Frame, choices: u32, answers: &[Answer], wants_logprobs: bool) -> Value {
    let mut usage = Usage::default();
    let each = answers.iter().enumerate().map(|(index, answer)| {
        usage.add(index, choices, answer);
        let tokens = || answer.reply.logprobs.iter().map(Vec::as_slice);
        let logprobs = wants_logprobs.then(|| logprobs::completion(tokens(), &mut 0));
        json!({
            "text": answer.text,
            "index": index,
            "logprobs": logprobs,
            "finish_reason": finish_reason(answer),
        })
    });
    let choices: Value = each.collect();
    let mut answer = frame.json("text_completion", choices);
    answer["usage"] = usage.json();
    answer["backplane"] = answers.first().map_or(Value::Null, ours);
    answer
}

struct Stream {
    frame: Frame,
    choices: u32,
    /// Where the next token of each choice begins, in characters.
    offsets: Vec<usize>,
    wants_logprobs: bool,
    usage: Usage,
}

impl Stream {
    fn chunk(&self, index: usize, text: &str, logprobs: Value, reason: Option<&str>) -> Value {
        let choice = json!({
            "text": text,
            "index": index,
            "logprobs": logprobs,
            "finish_reason": reason,
        });
        self.frame.json("text_completion", json!([choice]))
    }
}

impl Render for Stream {
    fn take(&mut self, told: Told) -> Result<Vec<Value>, Problem> {
        match told {
            Told::Begun => Ok(Vec::new()),
            Told::Piece {
                index,
                piece,
                logprobs,
            } => {
                // Only chats call tools.
                let Piece::Text(text) = piece else {
                    return Ok(Vec::new());
                };
                let logprobs = match self.offsets.get_mut(index) {
                    Some(offset) if self.wants_logprobs && !logprobs.is_empty() => {
                        logprobs::completion([logprobs.as_slice()], offset)
                    }
                    _ => Value::Null,
                };
                Ok(vec![self.chunk(index, &text, logprobs, None)])
            }
            Told::Done { index, result } => {
                let answer = result?;
                self.usage.add(index, self.choices, &answer);
                let mut last = self.chunk(index, "", Value::Null, Some(finish_reason(&answer)));
                last["backplane"] = ours(&answer);
                Ok(vec![last])
            }
        }
    }

    fn end(&mut self) -> Vec<Value> {
        if !self.frame.usage {
            return Vec::new();
        }
        let mut last = self.frame.json("text_completion", json!([]));
        last["usage"] = self.usage.json();
        vec![last]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prompts_of_every_kind() {
        let text = |text: &str| Prompt::Text {
            text: text.to_owned(),
            special: true,
        };
        for (value, expected) in [
            (json!("a"), vec![text("a")]),
            (json!(""), vec![text("")]),
            (json!(["a", "b"]), vec![text("a"), text("b")]),
            (json!([1, 2]), vec![Prompt::Tokens(vec![1, 2])]),
            (
                json!([[1], [2, 3]]),
                vec![Prompt::Tokens(vec![1]), Prompt::Tokens(vec![2, 3])],
            ),
        ] {
            assert_eq!(prompts(&value).unwrap(), expected, "{value}");
        }
        for wrong in [
            json!(null),
            json!([]),
            json!({}),
            json!([-1]),
            json!([1.5]),
            json!([4_294_967_296_u64]),
            json!(["a", 1]),
            json!([[]]),
            json!(vec!["a"; PROMPTS + 1]),
        ] {
            assert!(prompts(&wrong).is_err(), "{wrong}");
        }
    }
}
