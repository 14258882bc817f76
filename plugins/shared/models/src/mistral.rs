//! Mistral with a sliding window (Jiang et al. 2023, arXiv:2310.06825), which GGUF stores as `llama`.
//!
//! Llama's blocks; every layer sees the last positions only. Converters to GGUF leave the window out, and what they write
//! runs as [`llama`](crate::llama); assembled models and files by others have it.

use crate::ModelError;
use crate::blocks::build;
use crate::hyperparameters::Hyperparameters;
use crate::llama::DEFAULT_BASE;
use crate::rope;
use backplane_program::{Activation, Program};
use backplane_weights::Weights;

/// Whether a file of architecture `llama` is one of these.
pub(crate) fn is(weights: &Weights) -> Result<bool, ModelError> {
    let window = weights.metadata().usize("llama.attention.sliding_window")?;
    Ok(window.is_some_and(|window| window > 0))
}

pub(crate) fn lower(h: &Hyperparameters<'_>) -> Result<Program, ModelError> {
    let rotary = rope::scaled(h, rope::llama_style(h)?, DEFAULT_BASE)?;
    let window = h.window()?;
    build(h, |mut m| {
        let rotary = m.b.declare_rope(rotary);
        let mut x = m.embed(1.0)?;
        for layer in 0..h.layers {
            let a = m.rms_norm(&format!("blk.{layer}.attn_norm"), x)?;
            let qkv = m.queries_keys_values(layer, a)?;
            let a = m.rotary_attention(layer, qkv, rotary, window)?;
            x = m.b.add(x, a)?;
            let f = m.rms_norm(&format!("blk.{layer}.ffn_norm"), x)?;
            let f = m.gated_feed_forward(layer, f, Activation::Silu)?;
            x = m.b.add(x, f)?;
            m.b.mark(format!("layer.{layer}"), x);
        }
        let logits = m.logits(x)?;
        m.finish(logits)
    })
}
