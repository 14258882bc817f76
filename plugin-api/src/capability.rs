//! Optional capabilities: things that some backends or models can do, asked for by name and version.
//!
//! A capability is any type whose layout can be checked, mostly a trait object or a module of functions. It carries its
//! own layout, which is checked when it is taken: a mismatch costs this capability and nothing else.
//!
//! | name | of a | what it does | since |
//! |---|---|---|---|
//! | [`EMBED`] | model | [`Embed`]: texts as vectors | 1.1 |
//! | [`SCORE`] | model | [`Score`]: how likely given tokens are | 1.1 |
//! | [`ATTENTION`] | model | [`Attention`]: queries and keys by layer and head | 1.1 |
//! | [`PEAKS`] | model | [`Peaks`]: what its device could do at most | 1.1 |
//! | [`CHECK`] | backend | [`Check`]: what is wrong with a model's weights | 1.1 |
//! | [`CONVERT`] | backend | [`Convert`]: a model in the backend's file format | 1.1 |
//!
//! A plugin offers one from [`TextModel::capability`](crate::sdk::TextModel::capability) or
//! [`Backend::capability`](crate::sdk::Backend::capability); a host asks by the function of its name:
//!
//! ```
//! use backplane_plugin_api::{capability, *};
//! use std::sync::Arc;
//!
//! /// Finds every text equally likely.
//! struct Even;
//!
//! impl Score for Even {
//!     fn score(&self, request: &ScoreRequest, progress: &mut dyn Progress) -> Result<Vec<f32>> {
//!         if let Some(field) = request.extra.keys().next() {
//!             return Err(Error::unsupported_field(field, "even"));
//!         }
//!         let total = request.tokens.len() as u64;
//!         if progress.on_progress(0, total, "tokens") == Control::Stop {
//!             return Err(Error::cancelled("score"));
//!         }
//!         Ok(vec![-1.0; request.scored()])
//!     }
//! }
//!
//! fn capability_of_the_model(name: &str) -> Option<AnyCapability> {
//!     (name == capability::SCORE).then(|| AnyCapability::score(Arc::new(Even)))
//! }
//!
//! # fn main() -> Result<()> {
//! # struct Model;
//! # impl TextModel for Model {
//! #     fn info(&self) -> ModelInfo { unreachable!() }
//! #     fn generate(&self, _: &GenerateRequest, _: &mut dyn Sink) -> Result<Completion> { unreachable!() }
//! #     fn chat(&self, _: &ChatRequest, _: &mut dyn Sink) -> Result<Completion> { unreachable!() }
//! #     fn render_chat(&self, _: &ChatRequest) -> Result<String> { unreachable!() }
//! #     fn classify(&self, _: &ClassifyRequest) -> Result<Vec<Result<Classification>>> { unreachable!() }
//! #     fn batch_generate(&self, _: &[GenerateRequest], _: &mut dyn BatchSink) -> Result<Vec<Result<Completion>>> { unreachable!() }
//! #     fn tokenize(&self, _: &str, _: bool, _: bool) -> Result<Vec<u32>> { unreachable!() }
//! #     fn detokenize(&self, _: &[u32], _: bool) -> Result<Vec<u8>> { unreachable!() }
//! #     fn metrics(&self) -> Metrics { unreachable!() }
//! #     fn close(&self) -> Result<()> { unreachable!() }
//! #     fn capability(&self, name: &str) -> Option<AnyCapability> { capability_of_the_model(name) }
//! # }
//! # let model = Model;
//! let score = capability::score(&model)?.expect("this model offers it");
//! let request = ScoreRequest { tokens: vec![1, 2, 3], ..ScoreRequest::default() };
//! assert_eq!(score.score(&request, &mut Unwatched)?, [-1.0, -1.0]);
//! assert!(capability::embed(&model)?.is_none(), "not offered: an answer");
//! # Ok(())
//! # }
//! ```
//!
//! Plugins and hosts may agree on more among themselves:
//!
//! ```
//! use backplane_plugin_api::AnyCapability;
//! use backplane_plugin_api::abi::abi_stable::std_types::RString;
//!
//! let offered = AnyCapability::new(RString::from("hello"));
//! assert_eq!(offered.take::<RString>().unwrap(), "hello");
//! assert!(AnyCapability::new(7_u32).take::<RString>().is_err());
//! ```

mod attention;
mod check;
mod convert;
mod crossing;
mod embed;
mod export;
mod import;
mod peaks;
mod progress;
mod score;

pub use attention::{ATTENTION, Attention, AttentionRequest, AttentionState, LayerAttention};
pub use check::{CHECK, Check, Finding};
pub use convert::{CONVERT, Convert, ConvertOptions, ConvertReport};
pub use embed::{EMBED, Embed, EmbedRequest, Embedding, Pooling};
pub use import::{attention, check, convert, embed, peaks, score};
pub use peaks::{PEAKS, Peaks, PeaksReport, PeaksRequest};
pub use progress::{Progress, Unwatched};
pub use score::{SCORE, Score, ScoreRequest};

use crate::abi::layout;
use abi_stable::StableAbi;
use abi_stable::type_layout::TypeLayout;
use std::fmt;

/// A capability that carries its own layout. Since 1.0.
///
/// Threads: may be sent and shared. Ownership: dropping it frees it, by the code that made it.
#[repr(C)]
#[derive(StableAbi)]
pub struct AnyCapability {
    layout: &'static TypeLayout,
    /// Made by `Box::into_raw` of the type that `layout` describes.
    value: *mut (),
    drop_value: extern "C" fn(*mut ()),
    free_memory: extern "C" fn(*mut ()),
}

// SAFETY: `new` takes only values that are `Send`.
unsafe impl Send for AnyCapability {}
// SAFETY: `new` takes only values that are `Sync`; a shared reference gives no access to the value at all.
unsafe impl Sync for AnyCapability {}

/// Why a capability could not be taken.
#[derive(Clone, Debug, thiserror::Error)]
#[error("the capability has another layout than `{expected}`: {mismatch}")]
pub struct CapabilityError {
    /// The type that was asked for.
    pub expected: String,
    /// Where the layouts differ.
    pub mismatch: layout::LayoutMismatch,
}

impl AnyCapability {
    /// Offers a value.
    pub fn new<T: StableAbi + Send + Sync + 'static>(value: T) -> Self {
        Self {
            layout: T::LAYOUT,
            value: Box::into_raw(Box::new(value)).cast(),
            drop_value: drop_value::<T>,
            free_memory: free_memory::<T>,
        }
    }

    /// Takes the value out, if its layout is that of `T`, or one of the two has merely grown at an end that may grow.
    ///
    /// # Errors
    /// The layouts differ; the capability is dropped.
    pub fn take<T: StableAbi + Send + Sync + 'static>(self) -> Result<T, CapabilityError> {
        // Either side may be the older one.
        layout::check(T::LAYOUT, self.layout)
            .or_else(|mismatch| layout::check(self.layout, T::LAYOUT).map_err(|_| mismatch))
            .map_err(|mismatch| CapabilityError {
                expected: T::LAYOUT.full_type().to_string(),
                mismatch,
            })?;
        let this = std::mem::ManuallyDrop::new(self);
        // SAFETY: `value` points to a live value made by `new`, whose layout was just found to be that of `T`;
        // `this` is not dropped, so that the value is moved out exactly once.
        let value = unsafe { this.value.cast::<T>().read() };
        (this.free_memory)(this.value);
        Ok(value)
    }
}

impl Drop for AnyCapability {
    fn drop(&mut self) {
        (self.drop_value)(self.value);
    }
}

impl fmt::Debug for AnyCapability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AnyCapability")
            .field("type", &self.layout.full_type().to_string())
            .finish_non_exhaustive()
    }
}

extern "C" fn drop_value<T>(value: *mut ()) {
    // SAFETY: called once, by `drop`, with the pointer that `new::<T>` made from a box.
    let owned = unsafe { Box::from_raw(value.cast::<T>()) };
    if std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| drop(owned))).is_err() {
        tracing::error!("a capability panicked while it was dropped");
    }
}

extern "C" fn free_memory<T>(value: *mut ()) {
    // SAFETY: called once, by `take`, with the pointer that `new::<T>` made from a box, after the value was moved out;
    // `MaybeUninit` has the same size and alignment and drops nothing.
    drop(unsafe { Box::from_raw(value.cast::<std::mem::MaybeUninit<T>>()) });
}

#[cfg(test)]
mod tests;
