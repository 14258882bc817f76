//! Small versions of the contract's capabilities.

use crate::Behaviour;
use crate::model::Shared;
use backplane_plugin_api::{
    Attention, AttentionRequest, AttentionState, Check, Control, Convert, ConvertOptions,
    ConvertReport, Embed, EmbedRequest, Embedding, Error, ErrorCode, Finding, LayerAttention,
    Peaks, PeaksReport, PeaksRequest, Pooling, Progress, Result, Score, ScoreRequest,
};
use std::path::Path;
use std::sync::Arc;

/// Numbers of an embedding.
const WIDTH: usize = 8;
const LAYERS: u32 = 2;
const HEADS: u32 = 4;
const KV_HEADS: u32 = 2;
const HEAD_DIM: u32 = 4;

/// Tokens that are read between two looks at the watcher.
const BATCH: usize = 16;

/// A number between -1 and 1 that depends on all of its arguments.
fn number(token: u32, place: u32, what: u32) -> f32 {
    let mixed = token
        .wrapping_mul(0x9e37_79b9)
        .wrapping_add(place.wrapping_mul(0x85eb_ca6b))
        .wrapping_add(what.wrapping_mul(0xc2b2_ae35));
    let mixed = (mixed ^ (mixed >> 15)).wrapping_mul(0x2c1b_3c6d);
    (mixed >> 8) as f32 / (1 << 23) as f32 - 1.0
}

/// Tells progress; a caller that stops is an error.
fn tell(progress: &mut dyn Progress, done: usize, total: usize, what: &str) -> Result<()> {
    match progress.on_progress(done as u64, total as u64, what) {
        Control::Continue => Ok(()),
        Control::Stop => Err(Error::cancelled("echo")),
    }
}

impl Shared {
    /// Reads tokens in batches.
    fn read(&self, tokens: &[u32], progress: &mut dyn Progress) -> Result<()> {
        for done in (0..tokens.len()).step_by(BATCH) {
            self.still_open()?;
            tell(progress, done, tokens.len(), "tokens")?;
            std::thread::sleep(self.behaviour.token_delay);
        }
        tell(progress, tokens.len(), tokens.len(), "tokens")
    }

    fn embedding(&self, request: &EmbedRequest, tokens: &[u32]) -> Result<Embedding> {
        let (Some(first), Some(last)) = (tokens.first(), tokens.last()) else {
            return Err(Error::invalid_field("inputs", "an input of no tokens"));
        };
        let state = |token: u32| (0..WIDTH as u32).map(move |at| number(token, at, 1));
        let mut values: Vec<f32> = match request.pooling {
            Pooling::Cls => state(*first).collect(),
            Pooling::Last => state(*last).collect(),
            Pooling::Mean => {
                let mut sum = vec![0.0; WIDTH];
                for &token in tokens {
                    for (sum, value) in sum.iter_mut().zip(state(token)) {
                        *sum += value / tokens.len() as f32;
                    }
                }
                sum
            }
            _ => return Err(self.refuse("pooling")),
        };
        let length = values.iter().map(|value| value * value).sum::<f32>().sqrt();
        if request.normalize && length > 0.0 {
            values.iter_mut().for_each(|value| *value /= length);
        }
        Ok(Embedding {
            values,
            prompt_tokens: tokens.len() as u64,
        })
    }
}

impl Embed for Shared {
    fn embed(
        &self,
        request: &EmbedRequest,
        progress: &mut dyn Progress,
    ) -> Result<Vec<Result<Embedding>>> {
        self.open("embed")?;
        if let Some(field) = request.extra.keys().next() {
            return Err(self.refuse(field));
        }
        let mut all = Vec::new();
        for (done, input) in request.inputs.iter().enumerate() {
            self.still_open()?;
            tell(progress, done, request.inputs.len(), "inputs")?;
            let tokens = self.prompt_tokens(input);
            all.push(tokens.and_then(|tokens| self.embedding(request, &tokens)));
        }
        tell(progress, all.len(), all.len(), "inputs")?;
        Ok(all)
    }
}

impl Score for Shared {
    fn score(&self, request: &ScoreRequest, progress: &mut dyn Progress) -> Result<Vec<f32>> {
        self.open("score")?;
        if let Some(field) = request.extra.keys().next() {
            return Err(self.refuse(field));
        }
        self.in_vocabulary(&request.tokens, "tokens")?;
        self.in_context(request.tokens.len())?;
        self.read(&request.tokens, progress)?;
        let first = request.tokens.len() - request.scored();
        let each = request.tokens[first..].iter().enumerate();
        Ok(each
            .map(|(at, &token)| {
                let (logits, total) = crate::model::next_logits(&request.tokens[..first + at]);
                (f64::from(logits[token as usize]) - total) as f32
            })
            .collect())
    }
}

impl Attention for Shared {
    fn inspect_attention(
        &self,
        request: &AttentionRequest,
        progress: &mut dyn Progress,
    ) -> Result<AttentionState> {
        self.open("attention")?;
        if let Some(field) = request.extra.keys().next() {
            return Err(self.refuse(field));
        }
        let tokens = self.prompt_tokens(&request.prompt)?;
        if tokens.is_empty() {
            return Err(Error::invalid_field("prompt", "a prompt of no tokens"));
        }
        let asked = request.layers.as_deref();
        if let Some(layer) = asked.and_then(|layers| layers.iter().find(|layer| **layer >= LAYERS))
        {
            let message = format!("layers: no layer {layer}; the model has {LAYERS}");
            return Err(Error::invalid_field("layers", message));
        }
        self.read(&tokens, progress)?;
        let state = |layer: u32, heads: u32, what: u32| {
            let mut all = Vec::new();
            for head in 0..heads {
                for (position, token) in tokens.iter().enumerate() {
                    let place = (layer * HEADS + head) * 0x1_0000 + position as u32;
                    all.extend((0..HEAD_DIM).map(|dim| number(*token, place, what + dim)));
                }
            }
            all
        };
        let wanted = |layer: &u32| asked.is_none_or(|layers| layers.contains(layer));
        let layers = (0..LAYERS).filter(wanted).map(|layer| LayerAttention {
            layer,
            heads: HEADS,
            kv_heads: KV_HEADS,
            head_dim: HEAD_DIM,
            queries: state(layer, HEADS, 100),
            keys: state(layer, KV_HEADS, 200),
        });
        let layers = layers.collect();
        Ok(AttentionState { tokens, layers })
    }
}

impl Peaks for Shared {
    fn measure_peaks(
        &self,
        request: &PeaksRequest,
        progress: &mut dyn Progress,
    ) -> Result<PeaksReport> {
        self.open("peaks")?;
        if let Some(field) = request.extra.keys().next() {
            return Err(self.refuse(field));
        }
        tell(progress, 0, 1, "passes")?;
        tell(progress, 1, 1, "passes")?;
        Ok(PeaksReport {
            read_bytes_per_s: 1_000_000_000,
            multiply_adds_per_s: 2_000_000_000,
            token_bytes: 1000,
            token_multiply_adds: 2000,
            measured: "made up".to_owned(),
        })
    }
}

/// Checks and converts files named `*.echo`. Each line of one is a tensor; one that begins with `bad ` is wrong.
pub(crate) struct Files(pub(crate) Arc<Behaviour>);

impl Files {
    fn lines(&self, path: &Path) -> Result<Vec<String>> {
        let unusable = |why: String| {
            let message = format!("{}: {why}", path.display());
            Error::new(ErrorCode::ModelUnusable, message)
        };
        if path.extension().is_none_or(|extension| extension != "echo") {
            return Err(unusable("expected a file named *.echo".to_owned()));
        }
        let text = std::fs::read_to_string(path).map_err(|error| unusable(error.to_string()))?;
        Ok(text.lines().map(str::to_owned).collect())
    }
}

impl Check for Files {
    fn check(&self, path: &Path, progress: &mut dyn Progress) -> Result<Vec<Finding>> {
        self.0.enter("check");
        let lines = self.lines(path)?;
        let mut findings = Vec::new();
        for (done, line) in lines.iter().enumerate() {
            tell(progress, done, lines.len(), line)?;
            std::thread::sleep(self.0.token_delay);
            if let Some(tensor) = line.strip_prefix("bad ") {
                findings.push(Finding {
                    tensor: tensor.to_owned(),
                    message: "told to be wrong".to_owned(),
                });
            }
        }
        tell(progress, lines.len(), lines.len(), "tensors")?;
        Ok(findings)
    }
}

impl Convert for Files {
    fn convert(
        &self,
        source: &Path,
        destination: &Path,
        options: &ConvertOptions,
        progress: &mut dyn Progress,
    ) -> Result<ConvertReport> {
        self.0.enter("convert");
        if let Some(field) = options.extra.keys().next() {
            return Err(Error::unsupported_field(field, &self.0.name));
        }
        let quantize = options.quantize.as_deref();
        if let Some(other) = quantize.filter(|name| *name != "q8_0") {
            let message = format!("quantize: no type `{other}`; known: q8_0");
            return Err(Error::invalid_field("quantize", message));
        }
        let lines = self.lines(source)?;
        if destination.exists() {
            let message = format!("{}: is there already", destination.display());
            return Err(Error::invalid_field("destination", message));
        }
        let mut text = String::new();
        for (done, line) in lines.iter().enumerate() {
            tell(progress, done, lines.len(), line)?;
            std::thread::sleep(self.0.token_delay);
            text += &format!("{line}\n");
        }
        tell(progress, lines.len(), lines.len(), "tensors")?;
        std::fs::write(destination, &text).map_err(|error| {
            let message = format!("{}: {error}", destination.display());
            Error::invalid_field("destination", message)
        })?;
        Ok(ConvertReport {
            tensors: lines.len() as u64,
            bytes: text.len() as u64,
            notes: quantize
                .map(|name| format!("all in {name}"))
                .into_iter()
                .collect(),
        })
    }
}
