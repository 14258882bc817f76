//! From an author's capability to what crosses the boundary. Every panic becomes an error.

use super::crossing::check_options_in;
use super::{AnyCapability, Attention, Check, Convert, Embed, Peaks, Progress, Score};
use crate::abi::capabilities::{self as data, ProgressObject};
use crate::abi::data::Error;
use crate::convert::{path_from, result_out, results_out};
use crate::guard::guard;
use crate::sdk::Result;
use crate::types::{Control, ErrorCode};
use abi_stable::erased_types::TD_Opaque;
use abi_stable::std_types::{RResult, RSlice, RVec};
use std::sync::Arc;

impl AnyCapability {
    /// Offers [`EMBED`](super::EMBED). Since 1.1.
    pub fn embed(embed: Arc<dyn Embed>) -> Self {
        Self::new(data::Embed_TO::from_value(Exported(embed), TD_Opaque))
    }

    /// Offers [`SCORE`](super::SCORE). Since 1.1.
    pub fn score(score: Arc<dyn Score>) -> Self {
        Self::new(data::Score_TO::from_value(Exported(score), TD_Opaque))
    }

    /// Offers [`ATTENTION`](super::ATTENTION). Since 1.1.
    pub fn attention(attention: Arc<dyn Attention>) -> Self {
        Self::new(data::Attention_TO::from_value(
            Exported(attention),
            TD_Opaque,
        ))
    }

    /// Offers [`PEAKS`](super::PEAKS). Since 1.1.
    pub fn peaks(peaks: Arc<dyn Peaks>) -> Self {
        Self::new(data::Peaks_TO::from_value(Exported(peaks), TD_Opaque))
    }

    /// Offers [`CHECK`](super::CHECK). Since 1.1.
    pub fn check(check: Arc<dyn Check>) -> Self {
        Self::new(data::Check_TO::from_value(Exported(check), TD_Opaque))
    }

    /// Offers [`CONVERT`](super::CONVERT). Since 1.1.
    pub fn convert(convert: Arc<dyn Convert>) -> Self {
        Self::new(data::Convert_TO::from_value(Exported(convert), TD_Opaque))
    }
}

/// An author's capability as it crosses.
struct Exported<T: ?Sized>(Arc<T>);

/// Runs a call of the author's; a panic becomes an error.
fn call<T>(what: &str, call: impl FnOnce() -> Result<T>) -> Result<T> {
    guard(call).unwrap_or_else(|panic| {
        let message = format!("the plugin panicked in {what}: {panic}");
        Err(crate::Error::new(ErrorCode::Panicked, message)
            .with_action("report this to the plugin's author; the next call works"))
    })
}

/// The host's watcher, as the author sees it.
struct LentProgress<'a>(ProgressObject<'a>);

impl Progress for LentProgress<'_> {
    fn on_progress(&mut self, done: u64, total: u64, what: &str) -> Control {
        self.0.on_progress(done, total, what.into()).into()
    }
}

impl data::Embed for Exported<dyn Embed> {
    fn embed(
        &self,
        request: &data::EmbedRequest,
        progress: ProgressObject<'_>,
    ) -> RResult<RVec<RResult<data::Embedding, Error>>, Error> {
        results_out(call("embed", || {
            self.0
                .embed(&request.try_into()?, &mut LentProgress(progress))
        }))
    }
}

impl data::Score for Exported<dyn Score> {
    fn score(
        &self,
        request: &data::ScoreRequest,
        progress: ProgressObject<'_>,
    ) -> RResult<data::Scores, Error> {
        result_out(call("score", || {
            self.0
                .score(&request.try_into()?, &mut LentProgress(progress))
        }))
    }
}

impl data::Attention for Exported<dyn Attention> {
    fn inspect_attention(
        &self,
        request: &data::AttentionRequest,
        progress: ProgressObject<'_>,
    ) -> RResult<data::AttentionState, Error> {
        result_out(call("inspect_attention", || {
            self.0
                .inspect_attention(&request.try_into()?, &mut LentProgress(progress))
        }))
    }
}

impl data::Peaks for Exported<dyn Peaks> {
    fn measure_peaks(
        &self,
        request: &data::PeaksRequest,
        progress: ProgressObject<'_>,
    ) -> RResult<data::PeaksReport, Error> {
        result_out(call("measure_peaks", || {
            self.0
                .measure_peaks(&request.try_into()?, &mut LentProgress(progress))
        }))
    }
}

impl data::Check for Exported<dyn Check> {
    fn check(
        &self,
        path: RSlice<'_, u8>,
        options: &data::CheckOptions,
        progress: ProgressObject<'_>,
    ) -> RResult<RVec<data::Finding>, Error> {
        let findings = call("check", || {
            check_options_in(options)?;
            self.0
                .check(&path_from(path.as_slice()), &mut LentProgress(progress))
        });
        result_out(findings.map(|all| all.into_iter().map(Into::into).collect::<RVec<_>>()))
    }
}

impl data::Convert for Exported<dyn Convert> {
    fn convert(
        &self,
        source: RSlice<'_, u8>,
        destination: RSlice<'_, u8>,
        options: &data::ConvertOptions,
        progress: ProgressObject<'_>,
    ) -> RResult<data::ConvertReport, Error> {
        result_out(call("convert", || {
            self.0.convert(
                &path_from(source.as_slice()),
                &path_from(destination.as_slice()),
                &options.try_into()?,
                &mut LentProgress(progress),
            )
        }))
    }
}
