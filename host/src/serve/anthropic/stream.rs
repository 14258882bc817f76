//! A reply as Anthropic's message, whole or by its events.

use super::{stop_reason, usage};
use crate::serve::errors::{Dialect, Problem};
use crate::serve::generation::{Answer, Told};
use crate::serve::openai::{id, ours};
use crate::serve::reply::{Framing, NAMED, Render};
use crate::serve::tools::Piece;
use serde_json::{Value, json};

/// A message as it is made.
pub(super) struct Message {
    id: String,
    model: String,
    begun: bool,
    /// The block that is open, by its kind.
    open: Option<Open>,
    /// Blocks that were begun.
    blocks: usize,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Open {
    Thought,
    Text,
    Call(usize),
}

impl Message {
    pub(super) fn new(model: &str) -> Self {
        Self {
            id: id("msg_"),
            model: model.to_owned(),
            begun: false,
            open: None,
            blocks: 0,
        }
    }

    fn json(&self, content: Value, reason: Value, sequence: Value, usage: Value) -> Value {
        json!({
            "id": self.id,
            "type": "message",
            "role": "assistant",
            "model": self.model,
            "content": content,
            "stop_reason": reason,
            "stop_sequence": sequence,
            "usage": usage,
        })
    }

    /// The first events, once.
    fn begin(&mut self, events: &mut Vec<Value>, prompt_tokens: u64) {
        if std::mem::replace(&mut self.begun, true) {
            return;
        }
        let usage = json!({ "input_tokens": prompt_tokens, "output_tokens": 0 });
        let message = self.json(json!([]), Value::Null, Value::Null, usage);
        events.push(json!({ "type": "message_start", "message": message }));
        events.push(json!({ "type": "ping" }));
    }

    fn close(&mut self, events: &mut Vec<Value>) {
        let open = self.open.take();
        if open == Some(Open::Thought) {
            // Nothing is signed: there is nobody who would check it.
            events.push(self.delta(json!({ "type": "signature_delta", "signature": "" })));
        }
        if open.is_some() {
            events.push(json!({ "type": "content_block_stop", "index": self.blocks - 1 }));
        }
    }

    fn start(&mut self, open: Open, block: Value, events: &mut Vec<Value>) {
        self.close(events);
        let index = self.blocks;
        events
            .push(json!({ "type": "content_block_start", "index": index, "content_block": block }));
        self.blocks += 1;
        self.open = Some(open);
    }

    fn delta(&self, delta: Value) -> Value {
        json!({ "type": "content_block_delta", "index": self.blocks - 1, "delta": delta })
    }

    fn piece(&mut self, piece: Piece, events: &mut Vec<Value>) {
        match piece {
            Piece::Text(text) if text.is_empty() => {}
            Piece::Text(text) => {
                if self.open != Some(Open::Text) {
                    self.start(Open::Text, json!({ "type": "text", "text": "" }), events);
                }
                events.push(self.delta(json!({ "type": "text_delta", "text": text })));
            }
            Piece::Thought(text) => {
                if self.open != Some(Open::Thought) {
                    let block = json!({ "type": "thinking", "thinking": "", "signature": "" });
                    self.start(Open::Thought, block, events);
                }
                events.push(self.delta(json!({ "type": "thinking_delta", "thinking": text })));
            }
            Piece::Begun { number, id, name } => {
                let block = json!({ "type": "tool_use", "id": id, "name": name, "input": {} });
                self.start(Open::Call(number), block, events);
            }
            Piece::Arguments { number, text } => {
                // Arguments belong to the call that was begun last.
                if self.open == Some(Open::Call(number)) {
                    events.push(
                        self.delta(json!({ "type": "input_json_delta", "partial_json": text })),
                    );
                }
            }
        }
    }
}

/// The stop sequence that was found, where one was.
fn sequence(answer: &Answer) -> Value {
    match stop_reason(answer) {
        "stop_sequence" => json!(answer.reply.completion.stop_string),
        _ => Value::Null,
    }
}

impl Render for Message {
    fn framing(&self) -> Framing {
        Framing {
            quiet: Some(b"event: ping\ndata: {\"type\": \"ping\"}\n\n"),
            ..NAMED
        }
    }

    fn whole(&mut self, answers: &[Answer]) -> Value {
        let Some(answer) = answers.first() else {
            return Value::Null;
        };
        let thought = (!answer.thought.is_empty())
            .then(|| json!({ "type": "thinking", "thinking": answer.thought, "signature": "" }));
        let text =
            (!answer.text.is_empty()).then(|| json!({ "type": "text", "text": answer.text }));
        // One that was cut off has no input that could be told: no tool is used.
        let calls = answer.calls.iter().filter_map(|call| {
            let input = call.value()?;
            Some(json!({ "type": "tool_use", "id": call.id, "name": call.name, "input": input }))
        });
        let content: Value = thought.into_iter().chain(text).chain(calls).collect();
        let reason = json!(stop_reason(answer));
        let mut message = self.json(content, reason, sequence(answer), usage(answer));
        message["backplane"] = ours(answer);
        message
    }

    fn take(&mut self, told: Told) -> Result<Vec<Value>, Problem> {
        let mut events = Vec::new();
        match told {
            Told::Begun { prompt_tokens } => self.begin(&mut events, prompt_tokens),
            Told::Piece { piece, .. } => {
                self.begin(&mut events, 0);
                self.piece(piece, &mut events);
            }
            Told::Done { result, .. } => {
                let answer = result?;
                self.begin(&mut events, answer.reply.completion.prompt_tokens);
                self.close(&mut events);
                events.push(json!({
                    "type": "message_delta",
                    "delta": { "stop_reason": stop_reason(&answer), "stop_sequence": sequence(&answer) },
                    "usage": usage(&answer),
                    "backplane": ours(&answer),
                }));
            }
        }
        Ok(events)
    }

    fn end(&mut self) -> Vec<Value> {
        vec![json!({ "type": "message_stop" })]
    }

    fn failed(&mut self, problem: &Problem, request: &str) -> Vec<Value> {
        vec![problem.shaped(Dialect::Anthropic, request)]
    }
}
