//! Tokens with their log probabilities, as replies tell them: with their bytes, which the contract's own have no place for.

use crate::registry::Model;
use backplane_plugin_api::types::TokenLogprob;

/// A token that a reply tells the log probability of.
#[derive(Clone, Debug)]
pub(super) struct Likely {
    /// `None` where the engine can't know it.
    pub(super) id: Option<u32>,
    /// Its text, lossy where it is part of a character.
    pub(super) text: String,
    pub(super) logprob: f32,
    /// `None` where they can't be told.
    pub(super) bytes: Option<Vec<u8>>,
}

impl Likely {
    /// Those of an event: the token that was chosen, then the likeliest others.
    pub(super) fn all(model: &Model, tokens: &[TokenLogprob]) -> Vec<Self> {
        let one = |token: &TokenLogprob| Self {
            id: token.id(),
            text: token.text.clone(),
            logprob: token.logprob,
            bytes: model.token_bytes(token),
        };
        tokens.iter().map(one).collect()
    }
}
