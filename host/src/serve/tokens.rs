//! `POST /tokenize` and `POST /detokenize`, for clients of vLLM and of llama-server alike.

use super::calls::{Stop, call};
use super::errors::Problem;
use super::fields::{self, Endpoint};
use super::http::{self, Shared};
use super::models::find_or_only;
use super::openai;
use crate::error::Result;
use crate::registry::Model;
use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::response::Response;
use backplane_plugin_api::types::{ChatRequest, Control};
use serde_json::{Map, Value, json};

/// What is taken apart.
enum Text {
    Plain { text: String, add_special: bool },
    Chat(Box<ChatRequest>),
}

/// Gives the tokens of a text or of a conversation.
pub(super) async fn tokenize(
    State(app): Shared,
    request: Request,
) -> std::result::Result<Response, Problem> {
    let body = http::read(&app, request).await?;
    let asked = fields::read(Endpoint::Tokenize, &body)?;
    let options = asked.tokens.clone();
    let text = text(&body, asked.template, options.add_special)?;
    let served = find_or_only(&app.models, &asked.model)?;
    let with_texts = options.pieces || options.texts;
    let work = move |model: &Model, stop: &Stop| {
        let tokens = match &text {
            Text::Plain { text, add_special } => {
                model.tokenize(text, *add_special, !options.plain)?
            }
            Text::Chat(request) => chat_tokens(model, request)?,
        };
        let texts = match with_texts {
            true => texts(model, &tokens, stop)?,
            false => Vec::new(),
        };
        Ok((tokens, texts, model.info().loaded_context))
    };
    let (tokens, texts, context) = call(&app, &served, work).await?;
    let mut answer = json!({
        "model": served.id,
        "count": tokens.len(),
        "max_model_len": context,
        "tokens": tokens,
    });
    if options.pieces {
        let piece = |(id, bytes): (&u32, &Vec<u8>)| match std::str::from_utf8(bytes) {
            Ok(text) => json!({ "id": id, "piece": text }),
            Err(_) => json!({ "id": id, "piece": bytes }),
        };
        answer["tokens"] = tokens.iter().zip(&texts).map(piece).collect();
    }
    if options.texts {
        let lossy = |bytes: &Vec<u8>| String::from_utf8_lossy(bytes).into_owned();
        answer["token_strs"] = texts.iter().map(lossy).collect();
    }
    Ok(http::json(StatusCode::OK, &answer))
}

/// Gives the text of tokens, special ones written out.
pub(super) async fn detokenize(
    State(app): Shared,
    request: Request,
) -> std::result::Result<Response, Problem> {
    let body = http::read(&app, request).await?;
    let asked = fields::read(Endpoint::Detokenize, &body)?;
    let tokens = body.get("tokens").and_then(openai::token_ids);
    let tokens =
        tokens.ok_or_else(|| Problem::field("tokens", "expected an array of token ids"))?;
    let served = find_or_only(&app.models, &asked.model)?;
    let work = move |model: &Model, _: &Stop| model.detokenize(&tokens, true);
    let bytes = call(&app, &served, work).await?;
    let text = String::from_utf8_lossy(&bytes);
    // By vLLM's name and by llama-server's.
    let answer = json!({ "model": served.id, "prompt": text, "content": text });
    Ok(http::json(StatusCode::OK, &answer))
}

fn text(
    body: &Map<String, Value>,
    template_options: Map<String, Value>,
    add_special: Option<bool>,
) -> std::result::Result<Text, Problem> {
    let given = |name: &str| body.get(name).filter(|value| !value.is_null());
    let plain = |name: &str, value: &Value, otherwise: bool| match value.as_str() {
        Some(text) => Ok(Text::Plain {
            text: text.to_owned(),
            add_special: add_special.unwrap_or(otherwise),
        }),
        None => Err(Problem::field(name, "expected a text")),
    };
    match (given("prompt"), given("content"), given("messages")) {
        (Some(prompt), None, None) => plain("prompt", prompt, true),
        (None, Some(content), None) => plain("content", content, false),
        (None, None, Some(_)) if add_special.is_some() => {
            let what = "not with `messages`: the template decides";
            Err(Problem::unsupported("add_special", what))
        }
        (None, None, Some(_)) => Ok(Text::Chat(Box::new(ChatRequest {
            messages: openai::messages::read(body)?,
            template_options,
            ..ChatRequest::default()
        }))),
        _ => {
            let what = "expected it, or `content`, or `messages`: one of them";
            Err(Problem::field("prompt", what))
        }
    }
}

/// The tokens that a chat gives the model.
pub(super) fn chat_tokens(model: &Model, request: &ChatRequest) -> Result<Vec<u32>> {
    let text = model.render_chat(request)?;
    let without = model.tokenize(&text, false, true)?;
    let with = model.tokenize(&text, true, true)?;
    // A template that begins the sequence itself: there is one beginning, not two.
    let twice = with.len() == without.len() + 1
        && with.first() == without.first()
        && with[1..] == without[..];
    Ok(if twice { without } else { with })
}

/// The bytes of each token.
fn texts(model: &Model, tokens: &[u32], stop: &Stop) -> Result<Vec<Vec<u8>>> {
    let one = |token: &u32| match stop.control() {
        Control::Continue => model.detokenize(&[*token], true),
        Control::Stop => Ok(Vec::new()),
    };
    tokens.iter().map(one).collect()
}
