//! Capabilities in a worker, as capabilities of this process. Each call asks the plugin's own object there.

use super::link::{Link, Reply};
use super::message::{Answer, Call, ToWorker};
use super::model::take;
use backplane_plugin_api::capability::{
    ATTENTION, AnyCapability, CHECK, CONVERT, EMBED, PEAKS, SCORE,
};
use backplane_plugin_api::sdk::Result;
use backplane_plugin_api::types::{Control, Error, ErrorCode};
use backplane_plugin_api::{
    Attention, AttentionRequest, AttentionState, Check, Convert, ConvertOptions, ConvertReport,
    Embed, EmbedRequest, Embedding, Finding, Peaks, PeaksReport, PeaksRequest, Progress, Score,
    ScoreRequest,
};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// How long to wait for a reply before looking again.
const WAIT: Duration = Duration::from_secs(60);

/// A model in the worker; forgotten there when its last user here is gone.
#[derive(Debug)]
pub(super) struct Loaded {
    pub(super) link: Arc<Link>,
    pub(super) id: u64,
    pub(super) home: Arc<Home>,
}

/// Where a plugin's worker is, while there is one.
#[derive(Debug, Default)]
pub(super) struct Home(Mutex<Option<Arc<Link>>>);

impl Home {
    pub(super) fn of(link: Link) -> Arc<Self> {
        Arc::new(Self(Mutex::new(Some(Arc::new(link)))))
    }

    /// The worker, unless it has ended.
    pub(super) fn running(&self) -> MutexGuard<'_, Option<Arc<Link>>> {
        let mut link = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        link.take_if(|link| link.ended().is_some());
        link
    }

    /// Lets a worker end whose last model is gone: what it holds of devices is given back. The next call starts a new one.
    fn rest(&self, link: &Arc<Link>) {
        // This one and the model's: nobody else uses it.
        let unused =
            |running: &mut Arc<Link>| Arc::ptr_eq(running, link) && Arc::strong_count(running) == 2;
        let gone = self.running().take_if(unused);
        if gone.is_some() {
            tracing::debug!("a worker ends: its last model is gone");
        }
    }
}

impl Drop for Loaded {
    fn drop(&mut self) {
        self.link.tell(0, &ToWorker::Forget { model: self.id });
        self.home.rest(&self.link);
    }
}

/// What the plugin offers of a model.
pub(super) fn of_model(model: &Arc<Loaded>, name: &str) -> Option<AnyCapability> {
    let offer = match name {
        EMBED => |model| AnyCapability::embed(Arc::new(OfModel(model))),
        SCORE => |model| AnyCapability::score(Arc::new(OfModel(model))),
        ATTENTION => |model| AnyCapability::attention(Arc::new(OfModel(model))),
        PEAKS => |model| AnyCapability::peaks(Arc::new(OfModel(model))),
        _ => return None,
    };
    offered(&model.link, Some(model.id), name).then(|| offer(model.clone()))
}

/// What the plugin offers itself.
pub(super) fn of_backend(link: &Arc<Link>, name: &str) -> Option<AnyCapability> {
    let offer = match name {
        CHECK => |link| AnyCapability::check(Arc::new(OfBackend(link))),
        CONVERT => |link| AnyCapability::convert(Arc::new(OfBackend(link))),
        _ => return None,
    };
    offered(link, None, name).then(|| offer(link.clone()))
}

fn offered(link: &Link, model: Option<u64>, name: &str) -> bool {
    let name = name.to_owned();
    match link.call(Call::Offers { model, name }) {
        Ok(answer) => matches!(answer, Answer::Offers(true)),
        Err(error) => {
            tracing::warn!("{error}");
            false
        }
    }
}

struct OfModel(Arc<Loaded>);

struct OfBackend(Arc<Link>);

/// Runs a call that tells its progress. The worker waits for each answer of the watcher, so that it ends as the watcher
/// said. (The watcher never panics: it is the boundary's adapter of the caller's.)
fn watched(link: &Link, call: Call, progress: &mut dyn Progress) -> Result<Answer> {
    let running = link.begin(call, Vec::new())?;
    loop {
        match running.next(WAIT) {
            Some(Reply::Done(result)) => return result,
            Some(Reply::Progress(done, total, what)) => {
                let told = match progress.on_progress(done, total, &what) {
                    Control::Continue => ToWorker::Consumed { events: 1 },
                    Control::Stop => {
                        link.stopping(running.id);
                        ToWorker::Stop { index: 0 }
                    }
                };
                link.tell(running.id, &told);
            }
            Some(Reply::Event(..)) | None => {}
        }
    }
}

impl Embed for OfModel {
    fn embed(
        &self,
        request: &EmbedRequest,
        progress: &mut dyn Progress,
    ) -> Result<Vec<Result<Embedding>>> {
        let (model, request) = (self.0.id, request.clone());
        let answer = watched(&self.0.link, Call::Embed { model, request }, progress)?;
        let results = take!(answer, Answer::Embeddings(results) => results)?;
        let each = results.into_iter().map(|result| result.map(Into::into));
        Ok(each.collect())
    }
}

impl Score for OfModel {
    fn score(&self, request: &ScoreRequest, progress: &mut dyn Progress) -> Result<Vec<f32>> {
        let (model, request) = (self.0.id, request.clone());
        let answer = watched(&self.0.link, Call::Score { model, request }, progress)?;
        take!(answer, Answer::Scores(scores) => scores.into())
    }
}

impl Attention for OfModel {
    fn inspect_attention(
        &self,
        request: &AttentionRequest,
        progress: &mut dyn Progress,
    ) -> Result<AttentionState> {
        let (model, request) = (self.0.id, request.clone());
        let answer = watched(&self.0.link, Call::Attention { model, request }, progress)?;
        take!(answer, Answer::Attention(state) => state.into())
    }
}

impl Peaks for OfModel {
    fn measure_peaks(
        &self,
        request: &PeaksRequest,
        progress: &mut dyn Progress,
    ) -> Result<PeaksReport> {
        let (model, request) = (self.0.id, request.clone());
        let answer = watched(&self.0.link, Call::Peaks { model, request }, progress)?;
        take!(answer, Answer::Peaks(report) => report)
    }
}

impl Check for OfBackend {
    fn check(&self, path: &Path, progress: &mut dyn Progress) -> Result<Vec<Finding>> {
        let path = path.into();
        let answer = watched(&self.0, Call::Check { path }, progress)?;
        take!(answer, Answer::Findings(findings) => findings)
    }
}

impl Convert for OfBackend {
    fn convert(
        &self,
        source: &Path,
        destination: &Path,
        options: &ConvertOptions,
        progress: &mut dyn Progress,
    ) -> Result<ConvertReport> {
        let call = Call::Convert {
            source: source.into(),
            destination: destination.into(),
            options: options.clone(),
        };
        let answer = watched(&self.0, call, progress)?;
        take!(answer, Answer::Converted(report) => report)
    }
}

/// The error of a call of a capability that is not offered.
pub(super) fn absent(name: &str) -> Error {
    Error::new(ErrorCode::Unsupported, format!("`{name}` is not offered"))
}
