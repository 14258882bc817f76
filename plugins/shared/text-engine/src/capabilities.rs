//! The optional capabilities of a loaded model: embeddings, scores, queries and keys.

use crate::engine::{Inspected, Inspection, Job, Message, Reply, Work, cancelled};
use crate::model::{POLL, Parts, engine_gone};
use crate::states::LayerShape;
use backplane_plugin_api::AnyCapability;
use backplane_plugin_api::capability::{
    ATTENTION, Attention, AttentionRequest, AttentionState, EMBED, Embed, EmbedRequest, Embedding,
    PEAKS, Progress, SCORE, Score, ScoreRequest,
};
use backplane_plugin_api::sdk::Result;
use backplane_plugin_api::types::{Control, Error, ErrorCode};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Instant;

/// Most bytes of queries and keys that one call gives.
const MAX_STATE_BYTES: usize = 1 << 31;

/// A capability by name; `None` where the model's program or its device does not tell what it needs.
pub(crate) fn of(parts: &Arc<Parts>, name: &str) -> Option<AnyCapability> {
    let handle = Handle(Arc::clone(parts));
    match name {
        EMBED if parts.states.hidden.is_some() => Some(AnyCapability::embed(Arc::new(handle))),
        SCORE => Some(AnyCapability::score(Arc::new(handle))),
        ATTENTION if !parts.states.attention.is_empty() => {
            Some(AnyCapability::attention(Arc::new(handle)))
        }
        PEAKS if parts.measuring.is_some() => Some(AnyCapability::peaks(Arc::new(handle))),
        _ => None,
    }
}

/// A model as its capabilities see it. It does not keep the model open.
pub(crate) struct Handle(pub(crate) Arc<Parts>);

/// Cancels what still runs when the call ends early.
struct Running {
    cancel: Arc<AtomicBool>,
}

impl Drop for Running {
    fn drop(&mut self) {
        self.cancel.store(true, Ordering::Relaxed);
    }
}

impl Parts {
    /// Runs inspections of prompts side by side; one result each, in order. `told` gives the progress of the call from
    /// the positions computed and those in all, and the inspections done.
    fn inspect(
        &self,
        work: Vec<(Vec<u32>, Inspection)>,
        progress: &mut dyn Progress,
        told: impl Fn(u64, u64, u64) -> (u64, u64, &'static str),
    ) -> Result<Vec<Result<Inspected>>> {
        let (sender, receiver) = channel();
        let submitted = Instant::now();
        let running = Running {
            cancel: Arc::new(AtomicBool::new(false)),
        };
        let mut done = vec![0; work.len()];
        let mut results: Vec<Option<Result<Inspected>>> = work.iter().map(|_| None).collect();
        let mut total = 0;
        let mut jobs = Vec::with_capacity(work.len());
        for (index, (prompt, inspection)) in work.into_iter().enumerate() {
            total += inspection.span(prompt.len()) as u64;
            jobs.push(Job {
                prompt,
                work: Work::Inspect(Box::new(inspection)),
                cancel: Arc::clone(&running.cancel),
                reply: Reply {
                    sender: sender.clone(),
                    index,
                },
                submitted,
            });
        }
        drop(sender);
        let mut tell = |done: &[u64], results: &[Option<Result<Inspected>>]| {
            let ended = results.iter().filter(|result| result.is_some()).count();
            let (done, total, what) = told(done.iter().sum(), total, ended as u64);
            match progress.on_progress(done, total, what) {
                Control::Continue => Ok(()),
                Control::Stop => Err(cancelled()),
            }
        };
        tell(&done, &results)?;
        if !jobs.is_empty() {
            self.engine.submit(jobs)?;
        }
        while results.iter().any(Option::is_none) {
            match receiver.recv_timeout(POLL) {
                Ok((index, message)) => match message {
                    Message::Inspected(inspected) => results[index] = Some(Ok(inspected)),
                    Message::Failed(error) => results[index] = Some(Err(error)),
                    Message::Prefill { done: read, .. } => done[index] = read,
                    _ => {}
                },
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return Err(engine_gone()),
            }
            tell(&done, &results)?;
        }
        Ok(results
            .into_iter()
            .map(|result| result.unwrap_or_else(|| Err(engine_gone())))
            .collect())
    }

    /// As [`Parts::inspect`], of one prompt, with progress in tokens.
    fn inspect_one(
        &self,
        prompt: Vec<u32>,
        inspection: Inspection,
        progress: &mut dyn Progress,
    ) -> Result<Inspected> {
        let tokens = |done, total, _| (done, total, "tokens");
        self.inspect(vec![(prompt, inspection)], progress, tokens)?
            .pop()
            .unwrap_or_else(|| Err(engine_gone()))
    }

    /// The layers asked for, in the order of the model.
    fn layers(&self, asked: Option<&[u32]>) -> Result<Vec<LayerShape>> {
        let known = &self.states.attention;
        let Some(asked) = asked else {
            return Ok(known.clone());
        };
        let unknown = asked
            .iter()
            .find(|layer| !known.iter().any(|shape| shape.layer == **layer));
        match unknown {
            Some(layer) => {
                let layers = known.len();
                let message = format!("layers: {layer}; the model has {layers}, from 0");
                Err(Error::invalid_field("layers", message))
            }
            None => Ok(known
                .iter()
                .filter(|shape| asked.contains(&shape.layer))
                .copied()
                .collect()),
        }
    }
}

impl Embed for Handle {
    fn embed(
        &self,
        request: &EmbedRequest,
        progress: &mut dyn Progress,
    ) -> Result<Vec<Result<Embedding>>> {
        let parts = &self.0;
        parts.engine.check_open()?;
        let checker = parts.checker();
        checker.check_extra(request.extra.keys())?;
        let Some(width) = parts.states.hidden else {
            return Err(Error::new(
                ErrorCode::Unsupported,
                "the model's program does not tell its hidden states",
            ));
        };
        // In the place of an input that is refused: its error.
        let mut work = Vec::new();
        let places: Vec<Result<u64>> = request
            .inputs
            .iter()
            .map(|input| {
                let prompt = checker.whole_prompt(input)?;
                let tokens = prompt.len() as u64;
                work.push((prompt, Inspection::embed(request.pooling, width)));
                Ok(tokens)
            })
            .collect();
        let refused = places.iter().filter(|place| place.is_err()).count() as u64;
        let total = places.len() as u64;
        let inputs = |_, _, ended| (refused + ended, total, "inputs");
        let mut found = parts.inspect(work, progress, inputs)?.into_iter();
        places
            .into_iter()
            .map(|place| {
                let prompt_tokens = match place {
                    Ok(tokens) => tokens,
                    Err(error) => return Ok(Err(error)),
                };
                match found.next() {
                    Some(Ok(Inspected::Embedding(mut values))) => {
                        if request.normalize {
                            normalize(&mut values);
                        }
                        Ok(Ok(Embedding {
                            values,
                            prompt_tokens,
                        }))
                    }
                    Some(Err(error)) if error.code == ErrorCode::Closed => Err(error),
                    Some(Err(error)) => Ok(Err(error)),
                    _ => Ok(Err(engine_gone())),
                }
            })
            .collect()
    }
}

/// Scales to Euclidean length 1; what has length 0 stays.
fn normalize(values: &mut [f32]) {
    let squares: f64 = values.iter().map(|&value| f64::from(value).powi(2)).sum();
    let length = squares.sqrt();
    if length > 0.0 {
        for value in values {
            *value = (f64::from(*value) / length) as f32;
        }
    }
}

impl Score for Handle {
    fn score(&self, request: &ScoreRequest, progress: &mut dyn Progress) -> Result<Vec<f32>> {
        let parts = &self.0;
        parts.engine.check_open()?;
        let checker = parts.checker();
        checker.check_extra(request.extra.keys())?;
        if !request.tokens.is_empty() {
            checker.check_whole("tokens", &request.tokens)?;
        }
        if request.scored() == 0 {
            return Ok(Vec::new());
        }
        let inspection = Inspection::score(request.first.max(1) as usize);
        match parts.inspect_one(request.tokens.clone(), inspection, progress)? {
            Inspected::Scores(values) => Ok(values),
            _ => Err(engine_gone()),
        }
    }
}

impl Attention for Handle {
    fn inspect_attention(
        &self,
        request: &AttentionRequest,
        progress: &mut dyn Progress,
    ) -> Result<AttentionState> {
        let parts = &self.0;
        parts.engine.check_open()?;
        let checker = parts.checker();
        checker.check_extra(request.extra.keys())?;
        let shapes = parts.layers(request.layers.as_deref())?;
        let tokens = checker.whole_prompt(&request.prompt)?;
        if shapes.is_empty() {
            return Ok(AttentionState {
                tokens,
                layers: Vec::new(),
            });
        }
        let numbers: usize = shapes.iter().map(LayerShape::numbers).sum();
        let bytes = numbers
            .saturating_mul(tokens.len())
            .saturating_mul(size_of::<f32>());
        if bytes > MAX_STATE_BYTES {
            let message = format!(
                "layers: queries and keys of {} tokens in {} layers take {bytes} bytes; at most {MAX_STATE_BYTES} are given at once",
                tokens.len(),
                shapes.len()
            );
            return Err(Error::invalid_field("layers", message)
                .with_action("ask for fewer layers, or shorten the prompt"));
        }
        let inspection = Inspection::attention(shapes, tokens.len())?;
        match parts.inspect_one(tokens.clone(), inspection, progress)? {
            Inspected::Attention(layers) => Ok(AttentionState { tokens, layers }),
            _ => Err(engine_gone()),
        }
    }
}
