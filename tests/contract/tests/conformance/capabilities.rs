//! Capabilities with a flaw.

use super::*;
use std::sync::atomic::AtomicU32;

/// A right capability, what is wrong about it, and its calls so far.
struct Flawed<T: ?Sized>(Arc<T>, Flaw, AtomicU32);

fn flawed<T: ?Sized>(right: Arc<T>, flaw: Flaw) -> Arc<Flawed<T>> {
    Arc::new(Flawed(right, flaw, AtomicU32::new(0)))
}

/// A model's capabilities, with the flaw.
pub(super) fn of_model(right: &dyn TextModel, flaw: Flaw, name: &str) -> Option<AnyCapability> {
    match name {
        capability::EMBED => {
            let embed = capability::embed(right).unwrap()?;
            Some(AnyCapability::embed(flawed(embed, flaw)))
        }
        capability::SCORE => {
            let score = capability::score(right).unwrap()?;
            Some(AnyCapability::score(flawed(score, flaw)))
        }
        capability::ATTENTION => {
            let attention = capability::attention(right).unwrap()?;
            Some(AnyCapability::attention(flawed(attention, flaw)))
        }
        capability::PEAKS => {
            let peaks = capability::peaks(right).unwrap()?;
            Some(AnyCapability::peaks(flawed(peaks, flaw)))
        }
        other => right.capability(other),
    }
}

/// A backend's capabilities, with the flaw.
pub(super) fn of_backend(right: &dyn Backend, flaw: Flaw, name: &str) -> Option<AnyCapability> {
    match name {
        capability::CHECK => {
            let check = capability::check(right).unwrap()?;
            Some(AnyCapability::check(flawed(check, flaw)))
        }
        capability::CONVERT => {
            let convert = capability::convert(right).unwrap()?;
            Some(AnyCapability::convert(flawed(convert, flaw)))
        }
        other => right.capability(other),
    }
}

/// The caller's watcher, with what is wrong about how it is served.
struct Watched<'a>(&'a mut dyn Progress, Flaw);

impl Progress for Watched<'_> {
    fn on_progress(&mut self, done: u64, total: u64, what: &str) -> Control {
        match self.1 {
            HidesProgress => Control::Continue,
            WrongProgress => self.0.on_progress(total - done, total, what),
            IgnoresCancel => {
                self.0.on_progress(done, total, what);
                Control::Continue
            }
            _ => self.0.on_progress(done, total, what),
        }
    }
}

impl Embed for Flawed<dyn Embed> {
    fn embed(
        &self,
        request: &EmbedRequest,
        progress: &mut dyn Progress,
    ) -> Result<Vec<Result<Embedding>>> {
        let mut request = request.clone();
        match self.1 {
            IgnoresExtra => request.extra.clear(),
            IgnoresPooling => request.pooling = Pooling::Last,
            NeverNormalises => request.normalize = false,
            _ => {}
        }
        let mut answers = self.0.embed(&request, &mut Watched(progress, self.1))?;
        for answer in &mut answers {
            match (self.1, answer) {
                (EmbedFailsTogether, Err(error)) => return Err(error.clone()),
                (EmbedsAllAlike, Ok(one)) => one.values.fill(0.5),
                (EmbedsNan, Ok(one)) => one.values[0] = f32::NAN,
                _ => {}
            }
        }
        Ok(answers)
    }
}

impl Score for Flawed<dyn Score> {
    fn score(&self, request: &ScoreRequest, progress: &mut dyn Progress) -> Result<Vec<f32>> {
        let mut request = request.clone();
        if self.1 == IgnoresExtra {
            request.extra.clear();
        }
        let mut scores = self.0.score(&request, &mut Watched(progress, self.1))?;
        let tokens = request.tokens.len() as f32;
        match self.1 {
            ScoresTheFirst => scores.insert(0, 0.0),
            ScoresLookAhead => scores.iter_mut().for_each(|score| *score *= tokens),
            PositiveLogprobs => scores.iter_mut().for_each(|score| *score = -*score),
            OtherScores => scores.iter_mut().for_each(|score| *score -= 1.0),
            _ => {}
        }
        Ok(scores)
    }
}

impl Attention for Flawed<dyn Attention> {
    fn inspect_attention(
        &self,
        request: &AttentionRequest,
        progress: &mut dyn Progress,
    ) -> Result<AttentionState> {
        let mut request = request.clone();
        match self.1 {
            IgnoresExtra => request.extra.clear(),
            AttentionIgnoresLayers => request.layers = None,
            _ => {}
        }
        let mut watched = Watched(progress, self.1);
        let mut state = self.0.inspect_attention(&request, &mut watched)?;
        let positions = state.tokens.len();
        for layer in &mut state.layers {
            match self.1 {
                KeysCut => layer.keys.truncate(7),
                // Position outermost.
                KeysTransposed => {
                    let (heads, dim) = (layer.kv_heads as usize, layer.head_dim as usize);
                    let rows: Vec<Vec<f32>> = layer.keys.chunks(dim).map(<[f32]>::to_vec).collect();
                    layer.keys = (0..positions * heads)
                        .flat_map(|at| rows[at % heads * positions + at / heads].clone())
                        .collect();
                }
                KeysLookAhead => layer.keys.iter_mut().for_each(|k| *k *= positions as f32),
                _ => {}
            }
        }
        Ok(state)
    }
}

impl Peaks for Flawed<dyn Peaks> {
    fn measure_peaks(
        &self,
        request: &PeaksRequest,
        progress: &mut dyn Progress,
    ) -> Result<PeaksReport> {
        let call = u64::from(self.2.fetch_add(1, Ordering::SeqCst));
        let mut request = request.clone();
        if self.1 == IgnoresExtra {
            request.extra.clear();
        }
        let mut watched = Watched(progress, self.1);
        let mut report = self.0.measure_peaks(&request, &mut watched)?;
        match self.1 {
            PeaksOfNothing => report.multiply_adds_per_s = 0,
            CostsMoreEachTime => report.token_bytes += call,
            _ => {}
        }
        Ok(report)
    }
}

impl Check for Flawed<dyn Check> {
    fn check(&self, path: &Path, progress: &mut dyn Progress) -> Result<Vec<Finding>> {
        let call = self.2.fetch_add(1, Ordering::SeqCst);
        let mut findings = match self.0.check(path, &mut Watched(progress, self.1)) {
            Err(_) if self.1 == ChecksAnything => Vec::new(),
            other => other?,
        };
        if self.1 == ForgetfulCheck && call.is_multiple_of(2) {
            findings.push(Finding {
                tensor: String::new(),
                message: "something".into(),
            });
        }
        Ok(findings)
    }
}

impl Convert for Flawed<dyn Convert> {
    fn convert(
        &self,
        source: &Path,
        destination: &Path,
        options: &ConvertOptions,
        progress: &mut dyn Progress,
    ) -> Result<ConvertReport> {
        let mut options = options.clone();
        match self.1 {
            IgnoresExtra => options.extra.clear(),
            ConvertsToAnyType => options.quantize = None,
            ConvertOverwrites if destination.exists() => std::fs::remove_file(destination).unwrap(),
            ConvertLeavesFiles => std::fs::write(destination.with_extension("part"), "").unwrap(),
            _ => {}
        }
        let mut watched = Watched(progress, self.1);
        let mut report = self
            .0
            .convert(source, destination, &options, &mut watched)?;
        match self.1 {
            ConvertMiscounts => report.bytes += 1,
            ConvertWritesRubbish => std::fs::rename(destination, destination.with_extension("x"))
                .and_then(|()| std::fs::create_dir(destination))
                .unwrap(),
            _ => {}
        }
        Ok(report)
    }
}
