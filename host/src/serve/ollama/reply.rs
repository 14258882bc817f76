//! `POST /api/chat` and `POST /api/generate`.

use super::time::{nanoseconds, timestamp};
use crate::manifest::KeepAlive;
use crate::registry::Model;
use crate::serve::calls::{Stop, call_keeping};
use crate::serve::conversation::{Conversation, role};
use crate::serve::door::Operates;
use crate::serve::errors::{Dialect, Problem};
use crate::serve::fields::{self, Asked, Endpoint};
use crate::serve::generation::{Answer, Ended, Job, Told};
use crate::serve::http::{self, App, Shared};
use crate::serve::likely::Likely;
use crate::serve::models::Served;
use crate::serve::openai::{logprobs, ours};
use crate::serve::reply::{self, Framing, LINES, Render};
use crate::serve::tools::{Call, Piece};
use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::response::Response;
use backplane_plugin_api::types::Prompt;
use serde_json::{Map, Value, json};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

/// Answers with the next message of a chat.
pub(in crate::serve) async fn chat(
    State(app): Shared,
    request: Request,
) -> Result<Response, Problem> {
    let operates = request.extensions().get().copied();
    let body = http::read(&app, request).await?;
    let asked = fields::read(Endpoint::OllamaChat, &body)?;
    let conversation = messages(body.get("messages").unwrap_or(&Value::Null))?;
    let served = super::model(&app, &asked)?;
    let shape = Shape::new(&served, &asked, true);
    if conversation.is_empty() {
        return load(&app, &served, asked.ollama.keep, operates, &shape).await;
    }
    let (stream, keep) = (asked.stream, asked.ollama.keep);
    let jobs = vec![Job::chat(asked, conversation.into_messages())];
    reply::send_keeping(&app, &served, keep, jobs, stream, shape).await
}

/// Answers a prompt, by the model's template or, raw, without it.
pub(in crate::serve) async fn generate(
    State(app): Shared,
    request: Request,
) -> Result<Response, Problem> {
    let operates = request.extensions().get().copied();
    let body = http::read(&app, request).await?;
    let asked = fields::read(Endpoint::OllamaGenerate, &body)?;
    let prompt = text(&body, "prompt")?;
    let system = text(&body, "system")?;
    if asked.ollama.raw && !system.is_empty() {
        return Err(Problem::unsupported(
            "system",
            "not with `raw`: put it into the prompt",
        ));
    }
    let served = super::model(&app, &asked)?;
    let shape = Shape::new(&served, &asked, false);
    if prompt.is_empty() {
        return load(&app, &served, asked.ollama.keep, operates, &shape).await;
    }
    let (stream, keep) = (asked.stream, asked.ollama.keep);
    let job = if asked.ollama.raw {
        let prompt = Prompt::Text {
            text: prompt.to_owned(),
            special: true,
        };
        Job::text(&asked, prompt)
    } else {
        let mut conversation = Conversation::default();
        if !system.is_empty() {
            conversation.say("system", system);
        }
        conversation.say("user", prompt);
        Job::chat(asked, conversation.into_messages())
    };
    reply::send_keeping(&app, &served, keep, vec![job], stream, shape).await
}

/// Nothing is asked but that the model be there, or be so no longer. What is pinned only its operator unloads.
async fn load(
    app: &Arc<App>,
    served: &Arc<Served>,
    keep: Option<KeepAlive>,
    operates: Option<Operates>,
    shape: &Shape,
) -> Result<Response, Problem> {
    let unload = keep == Some(KeepAlive::For(Duration::ZERO));
    match (unload, operates) {
        (true, None) if served.pinned => {
            let id = &served.id;
            let why = format!(
                "{id} is pinned: who operates the server unloads it, by `backplane stop {id}`"
            );
            return Err(Problem::forbidden(why));
        }
        (true, Some(_)) if served.pinned => drop(app.models.stop(served).await),
        (true, _) if app.models.loaded(served).is_none() => {}
        _ => call_keeping(app, served, keep, |_: &Model, _: &Stop| Ok(())).await?,
    }
    let mut answer = shape.line("", &[], true);
    answer["done_reason"] = json!(if unload { "unload" } else { "load" });
    Ok(http::json(StatusCode::OK, &answer))
}

fn text<'a>(body: &'a Map<String, Value>, name: &str) -> Result<&'a str, Problem> {
    match body.get(name) {
        None | Some(Value::Null) => Ok(""),
        Some(Value::String(text)) => Ok(text),
        Some(_) => Err(Problem::field(name, "expected a text")),
    }
}

/// Ollama's messages: calls have no ids, and results go by the name of the tool, or by their order.
fn messages(value: &Value) -> Result<Conversation, Problem> {
    let mut all = Conversation::default();
    let messages = match value {
        Value::Null => return Ok(all),
        Value::Array(messages) => messages,
        _ => return Err(Problem::field("messages", "expected an array of messages")),
    };
    let mut calls = 0;
    for (index, message) in messages.iter().enumerate() {
        let place = |field: &str| format!("messages[{index}]{field}");
        let object = message.as_object();
        let object = object.ok_or_else(|| Problem::field(place(""), "expected an object"))?;
        for (name, value) in object {
            let nothing = value.is_null() || value == "" || *value == json!([]);
            match name.as_str() {
                "role" | "content" | "tool_calls" | "tool_name" | "tool_call_id" => {}
                "thinking" if nothing || value.is_string() => {}
                "thinking" => return Err(Problem::field(place(".thinking"), "expected a text")),
                "images" if nothing => {}
                "images" => {
                    let what = "can't be honoured: only texts are read";
                    return Err(Problem::unsupported(place(".images"), what));
                }
                other => {
                    let place = place(&format!(".{other}"));
                    return Err(Problem::unsupported(place, "no such field"));
                }
            }
        }
        let role = role(&message["role"], &["system", "user", "assistant", "tool"])
            .map_err(|why| Problem::field(place(".role"), why))?;
        let content = match &message["content"] {
            Value::Null => "",
            Value::String(text) => text,
            _ => return Err(Problem::field(place(".content"), "expected a text")),
        };
        if let Some(thought) = message["thinking"].as_str() {
            all.think(thought);
        }
        if role == "tool" {
            let name = message["tool_name"].as_str();
            match all.unanswered(name) {
                Some((id, name)) => all
                    .result(&id, Some(&name), content.to_owned())
                    .map_err(|why| Problem::field(place(""), why))?,
                None => all.say("tool", content),
            }
            continue;
        }
        let called = match &message["tool_calls"] {
            Value::Null => &[][..],
            Value::Array(called) => called,
            _ => return Err(Problem::field(place(".tool_calls"), "expected an array")),
        };
        if called.is_empty() || !content.is_empty() {
            all.say(role, content);
        }
        for one in called {
            let function = &one["function"];
            let (Some(name), true) = (function["name"].as_str(), function["arguments"].is_object())
            else {
                let what = "expected functions with a name and arguments, an object";
                return Err(Problem::field(place(".tool_calls"), what));
            };
            all.call(&format!("call_{calls}"), name, &function["arguments"])
                .map_err(|why| Problem::field(place(".tool_calls"), why))?;
            calls += 1;
        }
    }
    Ok(all)
}

/// A reply in lines of JSON, or in one.
struct Shape {
    model: String,
    chat: bool,
    logprobs: bool,
    begun: Instant,
}

impl Shape {
    fn new(served: &Served, asked: &Asked, chat: bool) -> Self {
        Self {
            model: served.id.clone(),
            chat,
            logprobs: asked.logprobs.is_some(),
            begun: Instant::now(),
        }
    }

    /// Says what is thought.
    fn think(&self, line: &mut Value, thought: &str) {
        let place = if self.chat {
            &mut line["message"]
        } else {
            line
        };
        if !thought.is_empty() {
            place["thinking"] = json!(thought);
        }
    }

    fn line(&self, text: &str, calls: &[Call], done: bool) -> Value {
        let mut line = json!({
            "model": self.model,
            "created_at": timestamp(SystemTime::now()),
            "done": done,
        });
        if self.chat {
            line["message"] = json!({ "role": "assistant", "content": text });
            let calls: Vec<Value> = calls.iter().filter_map(function).collect();
            if !calls.is_empty() {
                line["message"]["tool_calls"] = json!(calls);
            }
        } else {
            line["response"] = json!(text);
        }
        line
    }

    fn with_logprobs(&self, line: &mut Value, tokens: &[&[Likely]]) {
        if self.logprobs && !tokens.is_empty() {
            line["logprobs"] = logprobs::chat(tokens.iter().copied())["content"].take();
        }
    }

    /// What it took, and how it ended.
    fn took(&self, line: &mut Value, answer: &Answer) {
        let completion = &answer.reply.completion;
        line["done_reason"] = json!(match answer.ended() {
            Ended::Length => "length",
            Ended::Stop | Ended::StopString | Ended::ToolCalls => "stop",
        });
        let total = self.begun.elapsed().as_secs_f64();
        // What is left: the model was loaded, or was there.
        let load = total - completion.queue_s - completion.prefill_s - completion.decode_s;
        line["total_duration"] = json!(nanoseconds(total));
        line["load_duration"] = json!(nanoseconds(load));
        line["prompt_eval_count"] = json!(completion.prompt_tokens);
        line["prompt_eval_duration"] = json!(nanoseconds(completion.prefill_s));
        line["eval_count"] = json!(completion.completion_tokens);
        line["eval_duration"] = json!(nanoseconds(completion.decode_s));
        line["backplane"] = ours(answer);
    }
}

/// A call as Ollama tells it: whole, without an id; `None` for one that was cut off.
fn function(call: &Call) -> Option<Value> {
    let arguments = call.value()?;
    Some(json!({ "function": { "name": call.name, "arguments": arguments } }))
}

impl Render for Shape {
    fn framing(&self) -> Framing {
        LINES
    }

    fn quiet(&self) -> Option<Value> {
        Some(self.line("", &[], false))
    }

    fn whole(&mut self, answers: &[Answer]) -> Value {
        let Some(answer) = answers.first() else {
            return Value::Null;
        };
        let mut line = self.line(&answer.text, &answer.calls, true);
        self.think(&mut line, &answer.thought);
        let tokens: Vec<&[Likely]> = answer.logprobs.iter().map(Vec::as_slice).collect();
        self.with_logprobs(&mut line, &tokens);
        self.took(&mut line, answer);
        line
    }

    fn take(&mut self, told: Told) -> Result<Vec<Value>, Problem> {
        match told {
            Told::Piece {
                piece: piece @ (Piece::Text(_) | Piece::Thought(_)),
                logprobs,
                ..
            } => {
                let mut line = match &piece {
                    Piece::Text(text) => self.line(text, &[], false),
                    _ => self.line("", &[], false),
                };
                if let Piece::Thought(thought) = &piece {
                    self.think(&mut line, thought);
                }
                if !logprobs.is_empty() {
                    self.with_logprobs(&mut line, &[&logprobs]);
                }
                Ok(vec![line])
            }
            // Calls are told when they are whole.
            Told::Begun { .. } | Told::Piece { .. } => Ok(Vec::new()),
            Told::Done { result, .. } => {
                let answer = result?;
                let mut lines = Vec::new();
                if answer.calls.iter().any(|call| call.value().is_some()) {
                    lines.push(self.line("", &answer.calls, false));
                }
                let mut last = self.line("", &[], true);
                self.took(&mut last, &answer);
                lines.push(last);
                Ok(lines)
            }
        }
    }

    fn end(&mut self) -> Vec<Value> {
        Vec::new()
    }

    fn failed(&mut self, problem: &Problem, request: &str) -> Vec<Value> {
        vec![problem.shaped(Dialect::Ollama, request)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_and_results_find_each_other() {
        let called = |name: &str| json!({ "function": { "name": name, "arguments": { "a": 1 } } });
        let all = messages(&json!([
            { "role": "user", "content": "x" },
            { "role": "assistant", "content": "", "thinking": "hm", "tool_calls": [called("f"), called("g")] },
            { "role": "tool", "content": "of g", "tool_name": "g" },
            { "role": "tool", "content": "of f" },
            { "role": "tool", "content": "of nothing" },
        ]));
        let all = all.unwrap().into_messages();
        assert_eq!(all.len(), 5);
        assert_eq!(all[1].content, None);
        assert_eq!(
            (&all[2].extra["name"], &all[2].extra["tool_call_id"]),
            (&json!("g"), &json!("call_1"))
        );
        assert_eq!(all[3].extra["name"], "f");
        assert!(all[4].extra.is_empty());
        assert!(messages(&Value::Null).unwrap().is_empty());
        for (wrong, said) in [
            (json!({}), "`messages`: expected an array"),
            (json!([1]), "`messages[0]`"),
            (json!([{ "content": "x" }]), "`messages[0].role`"),
            (
                json!([{ "role": "user", "content": 1 }]),
                "`messages[0].content`",
            ),
            (
                json!([{ "role": "user", "content": "x", "images": ["aaaa"] }]),
                "`messages[0].images`: can't be honoured",
            ),
            (
                json!([{ "role": "user", "content": "x", "colour": 1 }]),
                "`messages[0].colour`: no such field",
            ),
            (
                json!([{ "role": "assistant", "tool_calls": [{ "function": { "name": "f", "arguments": "{}" } }] }]),
                "`messages[0].tool_calls`",
            ),
        ] {
            let problem = messages(&wrong).unwrap_err().json();
            let message = problem["error"]["message"].as_str().unwrap();
            assert!(message.contains(said), "{message}");
        }
    }
}
