//! Capabilities as hosts ask for them and call them. A panic in the caller's watcher stays on its side.

use super::{
    ATTENTION, AnyCapability, Attention, AttentionRequest, AttentionState, CHECK, CONVERT, Check,
    Convert, ConvertOptions, ConvertReport, EMBED, Embed, EmbedRequest, Embedding, Finding, PEAKS,
    Peaks, PeaksReport, PeaksRequest, Progress, SCORE, Score, ScoreRequest,
};
use crate::abi::capabilities::{self as data, Progress_TO, ProgressObject};
use crate::abi::codes::Control;
use crate::convert::{path_bytes, result_in, results_in};
use crate::guard::payload_text;
use crate::sdk::{Backend, Result, TextModel};
use crate::types::{self, Error, ErrorCode};
use abi_stable::StableAbi;
use abi_stable::erased_types::TD_Opaque;
use abi_stable::std_types::{RResult, RStr, RString};
use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Arc;

/// The model's [`EMBED`]; `None` where it is not offered. Since 1.1.
///
/// # Errors
/// It is offered in a layout that this contract does not know.
pub fn embed(model: &dyn TextModel) -> Result<Option<Arc<dyn Embed>>> {
    let object = take::<data::EmbedObject>(EMBED, model.capability(EMBED))?;
    Ok(object.map(|object| Arc::new(Imported(object)) as _))
}

/// The model's [`SCORE`]; `None` where it is not offered. Since 1.1.
///
/// # Errors
/// It is offered in a layout that this contract does not know.
pub fn score(model: &dyn TextModel) -> Result<Option<Arc<dyn Score>>> {
    let object = take::<data::ScoreObject>(SCORE, model.capability(SCORE))?;
    Ok(object.map(|object| Arc::new(Imported(object)) as _))
}

/// The model's [`ATTENTION`]; `None` where it is not offered. Since 1.1.
///
/// # Errors
/// It is offered in a layout that this contract does not know.
pub fn attention(model: &dyn TextModel) -> Result<Option<Arc<dyn Attention>>> {
    let object = take::<data::AttentionObject>(ATTENTION, model.capability(ATTENTION))?;
    Ok(object.map(|object| Arc::new(Imported(object)) as _))
}

/// The model's [`PEAKS`]; `None` where it is not offered. Since 1.1.
///
/// # Errors
/// It is offered in a layout that this contract does not know.
pub fn peaks(model: &dyn TextModel) -> Result<Option<Arc<dyn Peaks>>> {
    let object = take::<data::PeaksObject>(PEAKS, model.capability(PEAKS))?;
    Ok(object.map(|object| Arc::new(Imported(object)) as _))
}

/// The backend's [`CHECK`]; `None` where it is not offered. Since 1.1.
///
/// # Errors
/// It is offered in a layout that this contract does not know.
pub fn check(backend: &dyn Backend) -> Result<Option<Arc<dyn Check>>> {
    let object = take::<data::CheckObject>(CHECK, backend.capability(CHECK))?;
    Ok(object.map(|object| Arc::new(Imported(object)) as _))
}

/// The backend's [`CONVERT`]; `None` where it is not offered. Since 1.1.
///
/// # Errors
/// It is offered in a layout that this contract does not know.
pub fn convert(backend: &dyn Backend) -> Result<Option<Arc<dyn Convert>>> {
    let object = take::<data::ConvertObject>(CONVERT, backend.capability(CONVERT))?;
    Ok(object.map(|object| Arc::new(Imported(object)) as _))
}

/// As [`score()`], of an object.
#[cfg(test)]
pub(super) fn imported_score(object: data::ScoreObject) -> impl Score {
    Imported(object)
}

fn take<T: StableAbi + Send + Sync + 'static>(
    name: &str,
    offered: Option<AnyCapability>,
) -> Result<Option<T>> {
    let taken = offered.map(AnyCapability::take::<T>).transpose();
    taken.map_err(|error| {
        tracing::debug!("{name}: {}", error.mismatch.dump);
        Error::new(ErrorCode::Unsupported, format!("{name}: {error}"))
            .with_action("update the plugin, or Backplane")
    })
}

/// What crossed, as hosts call it.
struct Imported<T>(T);

/// A caller's watcher: asked no more once it has said stop; its panic stops the call and is kept.
struct Guarded<'a> {
    progress: &'a mut dyn Progress,
    stopped: bool,
    panic: Option<Box<dyn Any + Send>>,
}

// SAFETY: `RMut` asks for `Sync` where `Send` would do. The only access to a guarded watcher is through the trait object made
// of it, which is `Send` but not `Sync` (its trait asks for `Send` alone) and takes it by `&mut`, so that one thread reaches
// it at a time; the caller's watcher is `Send`.
unsafe impl Sync for Guarded<'_> {}

impl data::Progress for Guarded<'_> {
    fn on_progress(&mut self, done: u64, total: u64, what: RStr<'_>) -> Control {
        if !self.stopped {
            let progress = &mut *self.progress;
            let asked = catch_unwind(AssertUnwindSafe(|| {
                progress.on_progress(done, total, what.as_str())
            }));
            match asked {
                Ok(control) => self.stopped = control == types::Control::Stop,
                Err(payload) => {
                    self.stopped = true;
                    self.panic = Some(payload);
                }
            }
        }
        if self.stopped {
            Control::STOP
        } else {
            Control::CONTINUE
        }
    }
}

/// Lends `progress` for one call; should it have panicked, that is the call's error.
fn watched<T>(
    progress: &mut dyn Progress,
    call: impl FnOnce(ProgressObject<'_>) -> Result<T>,
) -> Result<T> {
    let mut guarded = Guarded {
        progress,
        stopped: false,
        panic: None,
    };
    let result = call(Progress_TO::from_ptr(
        abi_stable::RMut::new(&mut guarded),
        TD_Opaque,
    ));
    match guarded.panic.take() {
        Some(payload) => Err(Error::new(
            ErrorCode::Internal,
            format!(
                "the caller's progress panicked: {}",
                payload_text(&*payload)
            ),
        )),
        None => result,
    }
}

impl Embed for Imported<data::EmbedObject> {
    fn embed(
        &self,
        request: &EmbedRequest,
        progress: &mut dyn Progress,
    ) -> Result<Vec<Result<Embedding>>> {
        let request = request.into();
        watched(progress, |progress| {
            results_in(self.0.embed(&request, progress))
        })
    }
}

impl Score for Imported<data::ScoreObject> {
    fn score(&self, request: &ScoreRequest, progress: &mut dyn Progress) -> Result<Vec<f32>> {
        let request = request.into();
        watched(progress, |progress| {
            result_in(self.0.score(&request, progress))
        })
    }
}

impl Attention for Imported<data::AttentionObject> {
    fn inspect_attention(
        &self,
        request: &AttentionRequest,
        progress: &mut dyn Progress,
    ) -> Result<AttentionState> {
        let request = request.into();
        watched(progress, |progress| {
            result_in(self.0.inspect_attention(&request, progress))
        })
    }
}

impl Peaks for Imported<data::PeaksObject> {
    fn measure_peaks(
        &self,
        request: &PeaksRequest,
        progress: &mut dyn Progress,
    ) -> Result<PeaksReport> {
        let request = request.into();
        watched(progress, |progress| {
            result_in(self.0.measure_peaks(&request, progress))
        })
    }
}

impl Check for Imported<data::CheckObject> {
    fn check(&self, path: &Path, progress: &mut dyn Progress) -> Result<Vec<Finding>> {
        let options = data::CheckOptions {
            extra: RString::new(),
        };
        watched(progress, |progress| {
            match self.0.check(path_bytes(path).into(), &options, progress) {
                RResult::ROk(all) => Ok(all.into_iter().map(Into::into).collect()),
                RResult::RErr(error) => Err(error.into()),
            }
        })
    }
}

impl Convert for Imported<data::ConvertObject> {
    fn convert(
        &self,
        source: &Path,
        destination: &Path,
        options: &ConvertOptions,
        progress: &mut dyn Progress,
    ) -> Result<ConvertReport> {
        let (from, to) = (path_bytes(source), path_bytes(destination));
        let options = options.into();
        watched(progress, |progress| {
            result_in(self.0.convert(from.into(), to.into(), &options, progress))
        })
    }
}
