//! Qwen 3, dense (Yang et al. 2025, arXiv:2505.09388).
//!
//! Qwen 2's blocks without biases; each query and key head is normalised before it is turned. Heads have a size of their own,
//! so that all of them together may be wider than the residual stream.

use crate::ModelError;
use crate::blocks::build;
use crate::hyperparameters::Hyperparameters;
use crate::rope;
use backplane_program::{Activation, Program, RopeStyle};

pub(crate) const DEFAULT_BASE: f32 = 1_000_000.0;

pub(crate) fn lower(h: &Hyperparameters<'_>) -> Result<Program, ModelError> {
    let rotary = rope::scaled(h, RopeStyle::Halves, DEFAULT_BASE)?;
    build(h, |mut m| {
        let rotary = m.b.declare_rope(rotary);
        let mut x = m.embed(1.0)?;
        for layer in 0..h.layers {
            let a = m.rms_norm(&format!("blk.{layer}.attn_norm"), x)?;
            let [q, k, v] = m.queries_keys_values(layer, a)?;
            let q = m.head_norm(&format!("blk.{layer}.attn_q_norm"), q, h.key_dim)?;
            let k = m.head_norm(&format!("blk.{layer}.attn_k_norm"), k, h.key_dim)?;
            let a = m.rotary_attention(layer, [q, k, v], rotary, None)?;
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
