//! Llama (Touvron et al. 2023, arXiv:2302.13971; Llama 3, arXiv:2407.21783), and Mistral without a window, SmolLM and others
//! that are stored as `llama`.
//!
//! Pre-norm blocks of grouped-query attention with rotary embeddings and a SiLU-gated feed-forward. GGUF stores the rows of
//! q and k reordered so that rotation pairs neighbours (see [`rope::llama_style`]). The optional `rope_freqs.weight` carries Llama 3's scaling.

use crate::ModelError;
use crate::blocks::build;
use crate::hyperparameters::Hyperparameters;
use crate::rope;
use backplane_program::{Activation, Program};

pub(crate) const DEFAULT_BASE: f32 = 10_000.0;

pub(crate) fn lower(h: &Hyperparameters<'_>) -> Result<Program, ModelError> {
    let rotary = rope::scaled(h, rope::llama_style(h)?, DEFAULT_BASE)?;
    build(h, |mut m| {
        let rotary = m.b.declare_rope(rotary);
        let mut x = m.embed(1.0)?;
        for layer in 0..h.layers {
            let a = m.rms_norm(&format!("blk.{layer}.attn_norm"), x)?;
            let qkv = m.queries_keys_values(layer, a)?;
            let a = m.rotary_attention(layer, qkv, rotary, None)?;
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

pub(crate) fn describe_rope(h: &Hyperparameters<'_>) -> Result<String, ModelError> {
    rope::describe(h, DEFAULT_BASE)
}
