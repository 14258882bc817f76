//! The optional capabilities, each a trait object with a layout of its own ([`AnyCapability`](crate::AnyCapability)).
//!
//! They grow as the rest does ([how](super)): structs are frozen, what a later minor version asks travels in `extra` and is
//! refused by name where unknown, what it tells travels in `more`; methods are added at the end, each with a default. What
//! that can't say is a capability of the next version (`embed/2`), which a plugin offers beside the first.
//!
//! The meaning of each method is that of the same method in [`capability`](crate::capability).

#![allow(missing_docs)] // The attribute macro writes public items of its own.

use super::codes::{Control, Pooling};
use super::data::{Error, Prompt};
use abi_stable::std_types::{RBox, ROption, RResult, RSlice, RStr, RString, RVec};
use abi_stable::{StableAbi, sabi_trait};

/// An owned [`Embed`].
pub type EmbedObject = Embed_TO<'static, RBox<()>>;
/// An owned [`Score`].
pub type ScoreObject = Score_TO<'static, RBox<()>>;
/// An owned [`Attention`].
pub type AttentionObject = Attention_TO<'static, RBox<()>>;
/// An owned [`Peaks`].
pub type PeaksObject = Peaks_TO<'static, RBox<()>>;
/// An owned [`Check`].
pub type CheckObject = Check_TO<'static, RBox<()>>;
/// An owned [`Convert`].
pub type ConvertObject = Convert_TO<'static, RBox<()>>;
/// A watcher lent for one call. One thread at a time: it may be sent, and not shared.
pub type ProgressObject<'a> = Progress_TO<'a, abi_stable::RMut<'a, ()>>;

macro_rules! data {
    ($($(#[$about:meta])* $name:ident { $($(#[$doc:meta])* $field:ident: $type:ty,)* })*) => {$(
        $(#[$about])*
        ///
        /// Since 1.1.
        #[repr(C)]
        #[derive(Clone, Debug, StableAbi)]
        pub struct $name {
            $($(#[$doc])* pub $field: $type,)*
        }
    )*};
}

data! {
    /// See [`capability::EmbedRequest`](crate::capability::EmbedRequest).
    EmbedRequest {
        /// Each on its own.
        inputs: RVec<Prompt>,
        /// Which hidden states.
        pooling: Pooling,
        /// Whether to scale to length 1.
        normalize: bool,
        /// JSON object.
        extra: RString,
    }

    /// See [`capability::Embedding`](crate::capability::Embedding).
    Embedding {
        /// `[width]`.
        values: RVec<f32>,
        /// Tokens.
        prompt_tokens: u64,
        /// Room to grow: JSON object, empty in 1.1.
        more: RString,
    }

    /// See [`capability::ScoreRequest`](crate::capability::ScoreRequest).
    ScoreRequest {
        /// Token ids.
        tokens: RVec<u32>,
        /// Index of the first that is scored.
        first: u32,
        /// JSON object.
        extra: RString,
    }

    /// The answer of [`Score`].
    Scores {
        /// `[scored]`, natural logarithms.
        logprobs: RVec<f32>,
        /// Room to grow: JSON object, empty in 1.1.
        more: RString,
    }

    /// See [`capability::AttentionRequest`](crate::capability::AttentionRequest).
    AttentionRequest {
        /// What the model is given.
        prompt: Prompt,
        /// Which layers; all where there is none.
        layers: ROption<RVec<u32>>,
        /// JSON object.
        extra: RString,
    }

    /// See [`capability::LayerAttention`](crate::capability::LayerAttention).
    LayerAttention {
        /// From 0.
        layer: u32,
        /// Query heads.
        heads: u32,
        /// Key heads.
        kv_heads: u32,
        /// Numbers of a head at a position.
        head_dim: u32,
        /// `[head][position][head_dim]`.
        queries: RVec<f32>,
        /// `[kv_head][position][head_dim]`.
        keys: RVec<f32>,
        /// Room to grow: JSON object, empty in 1.1.
        more: RString,
    }

    /// See [`capability::AttentionState`](crate::capability::AttentionState).
    AttentionState {
        /// `[position]`, ids.
        tokens: RVec<u32>,
        /// In the order of the model.
        layers: RVec<LayerAttention>,
        /// Room to grow: JSON object, empty in 1.1.
        more: RString,
    }

    /// See [`capability::PeaksRequest`](crate::capability::PeaksRequest).
    PeaksRequest {
        /// JSON object.
        extra: RString,
    }

    /// See [`capability::PeaksReport`](crate::capability::PeaksReport).
    PeaksReport {
        /// Of memory.
        read_bytes_per_s: u64,
        /// Of 8-bit whole numbers.
        multiply_adds_per_s: u64,
        /// Of weights, by one step of one sequence.
        token_bytes: u64,
        /// With weights, by one token of a prompt.
        token_multiply_adds: u64,
        /// One line.
        measured: RString,
        /// Room to grow: JSON object, empty in 1.1.
        more: RString,
    }

    /// How to check.
    CheckOptions {
        /// JSON object.
        extra: RString,
    }

    /// See [`capability::Finding`](crate::capability::Finding).
    Finding {
        /// The tensor; may be empty.
        tensor: RString,
        /// One line.
        message: RString,
        /// Room to grow: JSON object, empty in 1.1.
        more: RString,
    }

    /// See [`capability::ConvertOptions`](crate::capability::ConvertOptions).
    ConvertOptions {
        /// Storage type for the matrices.
        quantize: ROption<RString>,
        /// JSON object.
        extra: RString,
    }

    /// See [`capability::ConvertReport`](crate::capability::ConvertReport).
    ConvertReport {
        /// Tensors written.
        tensors: u64,
        /// Bytes written.
        bytes: u64,
        /// A line each.
        notes: RVec<RString>,
        /// Room to grow: JSON object, empty in 1.1.
        more: RString,
    }
}

/// See [`capability::Progress`](crate::capability::Progress). Implemented by the caller. Since 1.1.
#[sabi_trait]
pub trait Progress: Send {
    /// Takes how far the call is.
    #[sabi(last_prefix_field)]
    fn on_progress(&mut self, done: u64, total: u64, what: RStr<'_>) -> Control;
    // Methods of later minor versions of `Progress` go here, each with a default.
}

/// See [`capability::Embed`](crate::capability::Embed). Since 1.1.
#[sabi_trait]
pub trait Embed: Send + Sync {
    /// Texts as vectors.
    #[sabi(last_prefix_field)]
    fn embed(
        &self,
        request: &EmbedRequest,
        progress: ProgressObject<'_>,
    ) -> RResult<RVec<RResult<Embedding, Error>>, Error>;
    // Methods of later minor versions of `Embed` go here, each with a default.
}

/// See [`capability::Score`](crate::capability::Score). Since 1.1.
#[sabi_trait]
pub trait Score: Send + Sync {
    /// How likely tokens are.
    #[sabi(last_prefix_field)]
    fn score(&self, request: &ScoreRequest, progress: ProgressObject<'_>)
    -> RResult<Scores, Error>;
    // Methods of later minor versions of `Score` go here, each with a default.
}

/// See [`capability::Attention`](crate::capability::Attention). Since 1.1.
#[sabi_trait]
pub trait Attention: Send + Sync {
    /// Queries and keys.
    #[sabi(last_prefix_field)]
    fn inspect_attention(
        &self,
        request: &AttentionRequest,
        progress: ProgressObject<'_>,
    ) -> RResult<AttentionState, Error>;
    // Methods of later minor versions of `Attention` go here, each with a default.
}

/// See [`capability::Peaks`](crate::capability::Peaks). Since 1.1.
#[sabi_trait]
pub trait Peaks: Send + Sync {
    /// What the device could do at most.
    #[sabi(last_prefix_field)]
    fn measure_peaks(
        &self,
        request: &PeaksRequest,
        progress: ProgressObject<'_>,
    ) -> RResult<PeaksReport, Error>;
    // Methods of later minor versions of `Peaks` go here, each with a default.
}

/// See [`capability::Check`](crate::capability::Check). Since 1.1.
#[sabi_trait]
pub trait Check: Send + Sync {
    /// What is wrong with a model.
    #[sabi(last_prefix_field)]
    fn check(
        &self,
        path: RSlice<'_, u8>,
        options: &CheckOptions,
        progress: ProgressObject<'_>,
    ) -> RResult<RVec<Finding>, Error>;
    // Methods of later minor versions of `Check` go here, each with a default.
}

/// See [`capability::Convert`](crate::capability::Convert). Since 1.1.
#[sabi_trait]
pub trait Convert: Send + Sync {
    /// Writes a model.
    #[sabi(last_prefix_field)]
    fn convert(
        &self,
        source: RSlice<'_, u8>,
        destination: RSlice<'_, u8>,
        options: &ConvertOptions,
        progress: ProgressObject<'_>,
    ) -> RResult<ConvertReport, Error>;
    // Methods of later minor versions of `Convert` go here, each with a default.
}
