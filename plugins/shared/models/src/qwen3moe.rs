//! Qwen 3 MoE (Yang et al. 2025, arXiv:2505.09388).
//!
//! Qwen 3's blocks with a mixture of experts in place of the feed-forward; weights of the chosen add up to one. Some layers
//! may have a plain feed-forward instead: those for which the file has one.

use crate::ModelError;
use crate::blocks::build;
use crate::hyperparameters::Hyperparameters;
use crate::mixture::Mixture;
use crate::qwen3::DEFAULT_BASE;
use crate::rope;
use backplane_program::{Activation, Program, RopeStyle};

pub(crate) fn lower(h: &Hyperparameters<'_>) -> Result<Program, ModelError> {
    let rotary = rope::scaled(h, RopeStyle::Halves, DEFAULT_BASE)?;
    let mixture = mixture(h)?;
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
            let f = if m.is_dense(layer) {
                m.gated_feed_forward(layer, f, Activation::Silu)?
            } else {
                m.mixture(layer, f, &mixture)?
            };
            x = m.b.add(x, f)?;
            m.b.mark(format!("layer.{layer}"), x);
        }
        let logits = m.logits(x)?;
        m.finish(logits)
    })
}

fn mixture(h: &Hyperparameters<'_>) -> Result<Mixture, ModelError> {
    Mixture::read(h, true)
}

pub(crate) fn describe_routing(h: &Hyperparameters<'_>) -> Result<Option<String>, ModelError> {
    Ok(Some(mixture(h)?.describe()))
}
