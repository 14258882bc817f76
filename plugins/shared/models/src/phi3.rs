//! Phi-3 (Abdin et al. 2024, arXiv:2404.14219) and Phi-4-mini (arXiv:2503.01743).
//!
//! Llama's blocks, mostly with queries, keys and values stored as one matrix, and gate and up as another. Phi-4-mini turns only part
//! of each head. Long contexts are stretched by LongRoPE.

use crate::ModelError;
use crate::blocks::build;
use crate::hyperparameters::Hyperparameters;
use crate::rope;
use backplane_program::{Activation, Program, RopeStyle};

const DEFAULT_BASE: f32 = 10_000.0;

pub(crate) fn lower(h: &Hyperparameters<'_>) -> Result<Program, ModelError> {
    let rotary = rope::long(h, RopeStyle::Halves, DEFAULT_BASE)?;
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
            let f = if m.b.has(&format!("blk.{layer}.ffn_gate.weight")) {
                m.gated_feed_forward(layer, f, Activation::Silu)?
            } else {
                m.fused_feed_forward(layer, f, Activation::Silu)?
            };
            x = m.b.add(x, f)?;
            m.b.mark(format!("layer.{layer}"), x);
        }
        let logits = m.logits(x)?;
        m.finish(logits)
    })
}

pub(crate) fn describe_rope(h: &Hyperparameters<'_>) -> Result<String, ModelError> {
    rope::describe_long(h, DEFAULT_BASE)
}
