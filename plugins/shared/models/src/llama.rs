//! Llama (Touvron et al. 2023, arXiv:2302.13971; Llama 3, arXiv:2407.21783), and Mistral without a window, SmolLM and others
//! that are stored as `llama`.
//!
//! Pre-norm blocks of grouped-query attention with rotary embeddings and a SiLU-gated feed-forward. GGUF stores the rows of
//! q and k reordered so that rotation pairs neighbours. The optional `rope_freqs.weight` carries Llama 3's scaling.

use crate::ModelError;
use crate::blocks::{Model, build};
use crate::hyperparameters::Hyperparameters;
use crate::rope;
use backplane_program::{
    Activation, AttentionSpec, CacheSpec, Program, ProgramError, RopeId, RopeStyle, ValueId,
};

const DEFAULT_BASE: f32 = 10_000.0;

pub(crate) fn lower(h: &Hyperparameters<'_>) -> Result<Program, ModelError> {
    let base = rope::base(h, "rope.freq_base", DEFAULT_BASE)?;
    let rotary = rope::plain(
        RopeStyle::Interleaved,
        h.rotary_dim,
        base,
        rope::linear_factor(h)?,
    );
    let rotary = rope::with_table(h, rotary)?;
    build(h, |mut m| {
        let rotary = m.b.declare_rope(rotary);
        let mut x = m.embed(1.0)?;
        for layer in 0..h.layers {
            let a = m.rms_norm(&format!("blk.{layer}.attn_norm"), x)?;
            let a = attention(&mut m, layer, a, rotary)?;
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

fn attention(
    m: &mut Model<'_, '_>,
    layer: usize,
    x: ValueId,
    rotary: RopeId,
) -> Result<ValueId, ProgramError> {
    let h = m.h;
    let cache = CacheSpec {
        kv_heads: h.kv_heads[layer],
        key_dim: h.key_dim,
        value_dim: h.value_dim,
    };
    let spec = AttentionSpec {
        heads: h.heads[layer],
        scale: 1.0 / (h.key_dim as f32).sqrt(),
        window: None,
        soft_cap: None,
    };
    let [q, k, v] = m.queries_keys_values(layer, x)?;
    let q = m.b.rope(q, rotary, h.key_dim)?;
    let k = m.b.rope(k, rotary, h.key_dim)?;
    let cache = m.b.cache(cache);
    let x = m.b.attention([q, k, v], cache, spec)?;
    m.linear(&format!("blk.{layer}.attn_output"), x, h.width)
}

pub(crate) fn describe_rope(h: &Hyperparameters<'_>) -> Result<String, ModelError> {
    let mut text = format!("base {}", rope::base(h, "rope.freq_base", DEFAULT_BASE)?);
    let factor = rope::linear_factor(h)?;
    if factor != 1.0 {
        text += &format!(", linear scaling by {factor}");
    }
    if rope::has_table(h) {
        text += ", frequencies scaled by table";
    }
    if h.rotary_dim < h.key_dim {
        text += &format!(", {} of {} elements", h.rotary_dim, h.key_dim);
    }
    Ok(text)
}
