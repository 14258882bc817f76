//! A response, whole or by its events.

use super::{Frame, status};
use crate::serve::errors::Problem;
use crate::serve::generation::{Answer, Told};
use crate::serve::likely::Likely;
use crate::serve::openai::{id, logprobs};
use crate::serve::reply::{Framing, NAMED, Render};
use crate::serve::tools::{Call, Piece};
use serde_json::{Value, json};

/// A response as it is made.
pub(super) struct Events {
    frame: Frame,
    /// Events that were told.
    number: u64,
    begun: bool,
    open: Option<Open>,
    /// Items that are whole.
    output: Vec<Value>,
    /// Log probabilities of the text that is open.
    tokens: Vec<Value>,
}

/// The item that is open.
enum Open {
    Thought { id: String, text: String },
    Message { id: String, text: String },
    Call { id: String, call: Call },
}

fn message(id: &str, status: &str, content: &[Value]) -> Value {
    json!({ "id": id, "type": "message", "status": status, "role": "assistant", "content": content })
}

fn thought(id: &str, status: &str, content: &[Value]) -> Value {
    json!({ "id": id, "type": "reasoning", "status": status, "summary": [], "content": content })
}

fn thought_part(text: &str) -> Value {
    json!({ "type": "reasoning_text", "text": text })
}

fn part(text: &str, logprobs: &[Value]) -> Value {
    json!({ "type": "output_text", "text": text, "annotations": [], "logprobs": logprobs })
}

fn function_call(id: &str, status: &str, call: &Call) -> Value {
    json!({
        "id": id,
        "type": "function_call",
        "status": status,
        "call_id": call.id,
        "name": call.name,
        "arguments": call.arguments,
    })
}

impl Events {
    pub(super) fn new(frame: Frame) -> Self {
        Self {
            frame,
            number: 0,
            begun: false,
            open: None,
            output: Vec::new(),
            tokens: Vec::new(),
        }
    }

    fn event(&mut self, kind: &str, mut data: Value, events: &mut Vec<Value>) {
        data["type"] = json!(format!("response.{kind}"));
        data["sequence_number"] = json!(self.number);
        self.number += 1;
        events.push(data);
    }

    /// The first events, once.
    fn begin(&mut self, events: &mut Vec<Value>) {
        if !std::mem::replace(&mut self.begun, true) {
            for kind in ["created", "in_progress"] {
                self.event(kind, json!({ "response": self.frame.begun() }), events);
            }
        }
    }

    fn open(&mut self, open: Open, events: &mut Vec<Value>) {
        self.close("completed", events);
        let index = self.output.len();
        let (id, item) = match &open {
            Open::Thought { id, .. } => (id.clone(), thought(id, "in_progress", &[])),
            Open::Message { id, .. } => (id.clone(), message(id, "in_progress", &[])),
            Open::Call { id, call } => (id.clone(), function_call(id, "in_progress", call)),
        };
        self.event(
            "output_item.added",
            json!({ "output_index": index, "item": item }),
            events,
        );
        let first = match open {
            Open::Message { .. } => Some(part("", &[])),
            Open::Thought { .. } => Some(thought_part("")),
            Open::Call { .. } => None,
        };
        if let Some(part) = first {
            let data =
                json!({ "item_id": id, "output_index": index, "content_index": 0, "part": part });
            self.event("content_part.added", data, events);
        }
        self.open = Some(open);
    }

    fn close(&mut self, status: &str, events: &mut Vec<Value>) {
        let index = self.output.len();
        let item = match self.open.take() {
            None => return,
            Some(Open::Thought { id, text }) => {
                let part = thought_part(&text);
                for (kind, name, value) in [
                    ("reasoning_text.done", "text", json!(text)),
                    ("content_part.done", "part", part.clone()),
                ] {
                    let mut done =
                        json!({ "item_id": id, "output_index": index, "content_index": 0 });
                    done[name] = value;
                    self.event(kind, done, events);
                }
                thought(&id, status, &[part])
            }
            Some(Open::Message { id, text }) => {
                let logprobs = std::mem::take(&mut self.tokens);
                let place = json!({ "item_id": id, "output_index": index, "content_index": 0 });
                let mut done = place.clone();
                done["text"] = json!(text);
                done["logprobs"] = json!(logprobs);
                self.event("output_text.done", done, events);
                let part = part(&text, &logprobs);
                let mut done = place;
                done["part"] = part.clone();
                self.event("content_part.done", done, events);
                message(&id, status, &[part])
            }
            Some(Open::Call { id, call }) => {
                let data = json!({ "item_id": id, "output_index": index, "name": call.name, "arguments": call.arguments });
                self.event("function_call_arguments.done", data, events);
                function_call(&id, status, &call)
            }
        };
        self.output.push(item.clone());
        self.event(
            "output_item.done",
            json!({ "output_index": index, "item": item }),
            events,
        );
    }

    fn piece(&mut self, piece: Piece, logprobs: &[Likely], events: &mut Vec<Value>) {
        match piece {
            Piece::Text(delta) => {
                if delta.is_empty() && logprobs.is_empty() {
                    return;
                }
                if !matches!(self.open, Some(Open::Message { .. })) {
                    let (id, text) = (id("msg_"), String::new());
                    self.open(Open::Message { id, text }, events);
                }
                let told = self.told_logprobs(&[logprobs]);
                let index = self.output.len();
                let Some(Open::Message { id, text }) = &mut self.open else {
                    return;
                };
                text.push_str(&delta);
                let data = json!({
                    "item_id": id, "output_index": index, "content_index": 0, "delta": delta, "logprobs": told,
                });
                self.tokens.extend(told);
                self.event("output_text.delta", data, events);
            }
            Piece::Thought(delta) => {
                if !matches!(self.open, Some(Open::Thought { .. })) {
                    let (id, text) = (id("rs_"), String::new());
                    self.open(Open::Thought { id, text }, events);
                }
                let index = self.output.len();
                if let Some(Open::Thought { id, text }) = &mut self.open {
                    text.push_str(&delta);
                    let data = json!({
                        "item_id": id, "output_index": index, "content_index": 0, "delta": delta,
                    });
                    self.event("reasoning_text.delta", data, events);
                }
            }
            Piece::Begun { id: call, name, .. } => {
                let call = Call {
                    id: call,
                    name,
                    arguments: String::new(),
                };
                self.open(
                    Open::Call {
                        id: id("fc_"),
                        call,
                    },
                    events,
                );
            }
            Piece::Arguments { text, .. } => {
                let index = self.output.len();
                // Arguments belong to the call that was begun last.
                if let Some(Open::Call { id, call }) = &mut self.open {
                    call.arguments.push_str(&text);
                    let data = json!({ "item_id": id, "output_index": index, "delta": text });
                    self.event("function_call_arguments.delta", data, events);
                }
            }
        }
    }

    fn told_logprobs(&self, tokens: &[&[Likely]]) -> Vec<Value> {
        if !self.frame.logprobs {
            return Vec::new();
        }
        let mut told = logprobs::chat(tokens.iter().copied());
        match told["content"].take() {
            Value::Array(told) => told,
            _ => Vec::new(),
        }
    }

    /// The last events: a response has an item, be it an empty text.
    fn finish(&mut self, answer: &Answer, events: &mut Vec<Value>) {
        if self.open.is_none() && self.output.is_empty() {
            let (id, text) = (id("msg_"), String::new());
            self.open(Open::Message { id, text }, events);
        }
        let status = status(answer);
        self.close(status, events);
        let response = self.frame.ended(std::mem::take(&mut self.output), answer);
        self.event(status, json!({ "response": response }), events);
    }
}

impl Render for Events {
    fn framing(&self) -> Framing {
        NAMED
    }

    /// The response of the last event, had it been streamed.
    fn whole(&mut self, answers: &[Answer]) -> Value {
        let Some(answer) = answers.first() else {
            return Value::Null;
        };
        let mut events = Vec::new();
        if !answer.thought.is_empty() {
            self.piece(Piece::Thought(answer.thought.clone()), &[], &mut events);
        }
        self.piece(Piece::Text(answer.text.clone()), &[], &mut events);
        let tokens: Vec<&[Likely]> = answer.logprobs.iter().map(Vec::as_slice).collect();
        self.tokens = self.told_logprobs(&tokens);
        for (number, call) in answer.calls.iter().enumerate() {
            let (id, name) = (call.id.clone(), call.name.clone());
            self.piece(Piece::Begun { number, id, name }, &[], &mut events);
            let text = call.arguments.clone();
            self.piece(Piece::Arguments { number, text }, &[], &mut events);
        }
        self.finish(answer, &mut events);
        let last = events.pop();
        last.map_or(Value::Null, |mut last| last["response"].take())
    }

    fn take(&mut self, told: Told) -> Result<Vec<Value>, Problem> {
        let mut events = Vec::new();
        match told {
            Told::Begun { .. } => self.begin(&mut events),
            Told::Piece {
                piece, logprobs, ..
            } => {
                self.begin(&mut events);
                self.piece(piece, &logprobs, &mut events);
            }
            Told::Done { result, .. } => {
                let answer = result?;
                self.begin(&mut events);
                self.finish(&answer, &mut events);
            }
        }
        Ok(events)
    }

    fn end(&mut self) -> Vec<Value> {
        Vec::new()
    }

    fn failed(&mut self, problem: &Problem, _: &str) -> Vec<Value> {
        let mut events = Vec::new();
        self.begin(&mut events);
        let response = self.frame.failed(problem);
        self.event("failed", json!({ "response": response }), &mut events);
        events
    }
}
