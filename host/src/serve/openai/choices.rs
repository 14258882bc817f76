//! Answers with choices: those of chats and of completions differ in a few words.

use super::{Frame, Usage, finish_reason, ours};
use crate::serve::errors::{Dialect, Problem};
use crate::serve::fields::Asked;
use crate::serve::generation::{Answer, Told};
use crate::serve::likely::Likely;
use crate::serve::reply::{EVENTS, Framing, Render};
use crate::serve::tools::Piece;
use serde_json::{Value, json};

/// In which words.
pub(super) trait Kind: Send + Unpin + 'static {
    /// What an answer is, and where its choices say something.
    const WHOLE: (&'static str, &'static str);
    /// The same of events.
    const CHUNK: (&'static str, &'static str);

    /// What a choice says as a whole.
    fn whole(&self, answer: &Answer) -> Value;

    /// What it says first of all, where there is such a thing.
    fn first(&self) -> Option<Value>;

    /// What it says with a piece.
    fn piece(&self, piece: Piece) -> Option<Value>;

    /// What it says at its end.
    fn last(&self) -> Value;

    /// Log probabilities of the next tokens of choice `index`.
    fn logprobs(&mut self, index: usize, tokens: &[&[Likely]]) -> Value;
}

/// An answer as it is made.
pub(super) struct Choices<K> {
    kind: K,
    frame: Frame,
    /// Choices for each prompt.
    choices: u32,
    wants_logprobs: bool,
    /// How many there are in all.
    count: usize,
    /// Whether they have begun.
    begun: bool,
    usage: Usage,
}

impl<K: Kind> Choices<K> {
    /// Of `count` choices in all.
    pub(super) fn new(kind: K, frame: Frame, asked: &Asked, count: usize) -> Self {
        Self {
            kind,
            frame,
            choices: asked.choices,
            wants_logprobs: asked.logprobs.is_some(),
            count,
            begun: false,
            usage: Usage::default(),
        }
    }

    fn logprobs(&mut self, index: usize, tokens: &[&[Likely]]) -> Value {
        match self.wants_logprobs {
            true => self.kind.logprobs(index, tokens),
            false => Value::Null,
        }
    }

    fn chunk(&self, index: usize, said: Value, logprobs: Value, reason: Option<&str>) -> Value {
        let (object, place) = K::CHUNK;
        let choice = choice(place, index, said, logprobs, reason);
        self.frame.json(object, json!([choice]))
    }

    /// The first events of all choices, once. They come in order, whichever says something first: clients append what they
    /// have not seen yet.
    fn begin(&mut self) -> Vec<Value> {
        if std::mem::replace(&mut self.begun, true) {
            return Vec::new();
        }
        let first = |index| {
            let first = self.kind.first()?;
            Some(self.chunk(index, first, Value::Null, None))
        };
        (0..self.count).filter_map(first).collect()
    }
}

fn choice(place: &str, index: usize, said: Value, logprobs: Value, reason: Option<&str>) -> Value {
    json!({
        "index": index,
        place: said,
        "logprobs": logprobs,
        "finish_reason": reason,
    })
}

impl<K: Kind> Render for Choices<K> {
    fn framing(&self) -> Framing {
        EVENTS
    }

    fn whole(&mut self, answers: &[Answer]) -> Value {
        let (object, place) = K::WHOLE;
        let mut choices = Vec::new();
        for (index, answer) in answers.iter().enumerate() {
            self.usage.add(index, self.choices, answer);
            let tokens: Vec<&[Likely]> = answer.logprobs.iter().map(Vec::as_slice).collect();
            let logprobs = self.logprobs(index, &tokens);
            let said = self.kind.whole(answer);
            choices.push(choice(
                place,
                index,
                said,
                logprobs,
                Some(finish_reason(answer)),
            ));
        }
        let mut answer = self.frame.json(object, json!(choices));
        answer["usage"] = self.usage.json();
        answer["backplane"] = answers.first().map_or(Value::Null, ours);
        answer
    }

    fn take(&mut self, told: Told) -> Result<Vec<Value>, Problem> {
        match told {
            Told::Begun { .. } => Ok(Vec::new()),
            Told::Piece {
                index,
                piece,
                logprobs,
            } => {
                let mut events = self.begin();
                if let Some(said) = self.kind.piece(piece) {
                    let logprobs = match logprobs.is_empty() {
                        true => Value::Null,
                        false => self.logprobs(index, &[&logprobs]),
                    };
                    events.push(self.chunk(index, said, logprobs, None));
                }
                Ok(events)
            }
            Told::Done { index, result } => {
                let answer = result?;
                self.usage.add(index, self.choices, &answer);
                let mut events = self.begin();
                let reason = finish_reason(&answer);
                let mut last = self.chunk(index, self.kind.last(), Value::Null, Some(reason));
                last["backplane"] = ours(&answer);
                events.push(last);
                Ok(events)
            }
        }
    }

    fn end(&mut self) -> Vec<Value> {
        if !self.frame.usage {
            return Vec::new();
        }
        let mut last = self.frame.json(K::CHUNK.0, json!([]));
        last["usage"] = self.usage.json();
        vec![last]
    }

    fn failed(&mut self, problem: &Problem, request: &str) -> Vec<Value> {
        vec![problem.shaped(Dialect::OpenAi, request)]
    }
}
