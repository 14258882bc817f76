//! Qwen 2 (Yang et al. 2024, arXiv:2407.10671) and Qwen 2.5 (arXiv:2412.15115).
//!
//! Llama's blocks with biases on queries, keys and values, and rotation of halves. Long contexts are stretched by YaRN.

use crate::ModelError;
use crate::blocks::build;
use crate::hyperparameters::Hyperparameters;
use crate::rope;
use backplane_program::{Activation, Program, RopeStyle};

const DEFAULT_BASE: f32 = 10_000.0;

pub(crate) fn lower(h: &Hyperparameters<'_>) -> Result<Program, ModelError> {
    let rotary = rope::scaled(h, RopeStyle::Halves, DEFAULT_BASE)?;
    build(h, |mut m| {
        let rotary = m.b.declare_rope(rotary);
        let mut x = m.embed(1.0)?;
        for layer in 0..h.layers {
            let a = m.rms_norm(&format!("blk.{layer}.attn_norm"), x)?;
            m.require_biases(layer, &["attn_q", "attn_k", "attn_v"])?;
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
