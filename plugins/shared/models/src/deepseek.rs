//! DeepSeek V3 (DeepSeek-AI 2024, arXiv:2412.19437), stored as `deepseek2`.
//!
//! Multi-head latent attention (DeepSeek-AI 2024, arXiv:2405.04434, section 2.1): keys and values of all heads are made from
//! one latent vector per position, and only that is cached, with one rotated key that all heads share. A head's key matrix is
//! absorbed into its query, so that the query is compared with the latent itself, and its value matrix is applied to the sum
//! of latents. After some layers with a plain feed-forward, the others have a mixture of experts: sigmoid scores, a bias that
//! counts for the choice only, experts out of the best groups, and shared experts that see every token.

use crate::ModelError;
use crate::blocks::{Model, build};
use crate::hyperparameters::Hyperparameters;
use crate::mixture::Mixture;
use crate::rope;
use backplane_program::{
    Activation, AttentionSpec, CacheSpec, CachedValues, Program, ProgramError, RopeId, ValueId,
};

const DEFAULT_BASE: f32 = 10_000.0;

/// Sizes of latent attention.
struct Latent {
    /// Of the queries' own latent; `None` where they are made from the stream itself.
    query_rank: Option<usize>,
    /// Of the cached latent.
    rank: usize,
    /// Elements of a head that are rotated.
    rotary: usize,
    /// Elements of a head that are not.
    plain: usize,
    /// Elements of a head's value.
    value: usize,
}

impl Latent {
    fn read(h: &Hyperparameters<'_>) -> Result<Self, ModelError> {
        let rank = h.positive("attention.kv_lora_rank")?;
        let (rotary, head) = (h.rotary_dim, h.positive("attention.key_length_mla")?);
        if rotary >= head {
            let expected = format!("more than rope.dimension_count, {rotary}");
            return Err(h.wrong("attention.key_length_mla", head, expected));
        }
        // As attention sees it: one head of keys, whose beginnings are the values.
        let expected = [
            (
                "attention.key_length",
                h.key_dim,
                rank.saturating_add(rotary),
            ),
            ("attention.value_length", h.value_dim, rank),
            ("attention.head_count_kv", h.kv_heads[0], 1),
        ];
        for (key, found, expected) in expected {
            if found != expected {
                let expected = format!("{expected}, as kv_lora_rank and rope.dimension_count say");
                return Err(h.wrong(key, found, expected));
            }
        }
        let query_rank = h.meta().usize(&h.key("attention.q_lora_rank"))?;
        Ok(Self {
            query_rank: query_rank.filter(|rank| *rank > 0),
            rank,
            rotary,
            plain: head - rotary,
            value: h.positive("attention.value_length_mla")?,
        })
    }
}

pub(crate) fn lower(h: &Hyperparameters<'_>) -> Result<Program, ModelError> {
    let latent = Latent::read(h)?;
    let (rotary, sharpness) = rope::with_scores(h, rope::llama_style(h)?, DEFAULT_BASE)?;
    let scale = sharpness / ((latent.plain + latent.rotary) as f32).sqrt();
    let experts = Experts::read(h)?;
    build(h, |mut m| {
        let rotary = m.b.declare_rope(rotary);
        let mut x = m.embed(1.0)?;
        for layer in 0..h.layers {
            let a = m.rms_norm(&format!("blk.{layer}.attn_norm"), x)?;
            let a = attention(&mut m, layer, a, &latent, rotary, scale)?;
            x = m.b.add(x, a)?;
            let f = m.rms_norm(&format!("blk.{layer}.ffn_norm"), x)?;
            let f = if layer < experts.dense_layers {
                m.gated_feed_forward(layer, f, Activation::Silu)?
            } else {
                experts.layer(&mut m, layer, f)?
            };
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
    latent: &Latent,
    rotary: RopeId,
    scale: f32,
) -> Result<ValueId, ProgramError> {
    let (heads, head) = (m.h.heads[layer], latent.plain + latent.rotary);
    let name = |part: &str| format!("blk.{layer}.{part}");
    // Saturated products match no tensor.
    let width = heads.saturating_mul(head);
    let q = match latent.query_rank {
        None => m.linear(&name("attn_q"), x, width)?,
        Some(rank) => {
            let q = m.linear(&name("attn_q_a"), x, rank)?;
            let q = m.rms_norm(&name("attn_q_a_norm"), q)?;
            m.linear(&name("attn_q_b"), q, width)?
        }
    };
    let key_shape = [heads, latent.rank, latent.plain];
    let value_shape = [heads, latent.value, latent.rank];
    let to_latent = m.b.weight(name("attn_k_b.weight"), &key_shape)?;
    let from_latent = m.b.weight(name("attn_v_b.weight"), &value_shape)?;

    let plain = m.b.head_slice(q, head, 0..latent.plain)?;
    let absorbed = m.b.head_linear(plain, to_latent)?; // [tokens, heads * rank]
    let turned = m.b.head_slice(q, head, latent.plain..head)?;
    let turned = m.b.rope(turned, rotary, latent.rotary)?;
    let q = m.b.head_concat(absorbed, turned, heads)?; // [tokens, heads * (rank + rotary)]

    let parts = [latent.rank, latent.rotary];
    let [c, turned] = m.fused_linears(&name("attn_kv_a_mqa"), x, parts)?;
    let c = m.rms_norm(&name("attn_kv_a_norm"), c)?;
    let turned = m.b.rope(turned, rotary, latent.rotary)?;
    let k = m.b.head_concat(c, turned, 1)?; // [tokens, rank + rotary]

    m.mark_compared(layer, q, k);
    let cache = m.b.cache(CacheSpec {
        kv_heads: 1,
        key_dim: latent.rank + latent.rotary,
        value_dim: latent.rank,
        values: CachedValues::InKeys,
    });
    let spec = AttentionSpec {
        heads,
        scale,
        window: None,
        soft_cap: None,
    };
    let x = m.b.latent_attention([q, k], cache, spec)?; // [tokens, heads * rank]
    let x = m.b.head_linear(x, from_latent)?; // [tokens, heads * value]
    m.linear(&name("attn_output"), x, m.h.width)
}

/// The feed-forward of the layers.
struct Experts {
    dense_layers: usize,
    routed: Mixture,
    /// Inner width of the shared experts, stored as one; `None` without.
    shared: Option<usize>,
}

impl Experts {
    fn read(h: &Hyperparameters<'_>) -> Result<Self, ModelError> {
        let routed = Mixture::read(h, false)?;
        let shared = h.meta().usize(&h.key("expert_shared_count"))?.unwrap_or(0);
        let inner = h.positive("expert_feed_forward_length")?;
        let dense_layers = h.meta().usize(&h.key("leading_dense_block_count"))?;
        Ok(Self {
            dense_layers: dense_layers.unwrap_or(0),
            routed,
            // Saturated products match no tensor.
            shared: (shared > 0).then_some(inner.saturating_mul(shared)),
        })
    }

    fn layer(
        &self,
        m: &mut Model<'_, '_>,
        layer: usize,
        x: ValueId,
    ) -> Result<ValueId, ProgramError> {
        let routed = m.mixture(layer, x, &self.routed)?;
        let Some(inner) = self.shared else {
            return Ok(routed);
        };
        let shared = m.shared_expert(layer, x, inner)?;
        m.b.add(routed, shared)
    }
}

pub(crate) fn describe_rope(h: &Hyperparameters<'_>) -> Result<String, ModelError> {
    let latent = Latent::read(h)?;
    let of = latent.plain + latent.rotary;
    let text = rope::describe_scaling(h, DEFAULT_BASE)?;
    Ok(format!("{text}, {} of {of} elements", latent.rotary))
}

pub(crate) fn describe_window(h: &Hyperparameters<'_>) -> Result<String, ModelError> {
    let Latent { rank, rotary, .. } = Latent::read(h)?;
    Ok(format!(
        "full attention, over one latent head of {rank} + {rotary} elements"
    ))
}

pub(crate) fn describe_routing(h: &Hyperparameters<'_>) -> Result<Option<String>, ModelError> {
    let experts = Experts::read(h)?;
    let mut text = experts.routed.describe();
    if let Some(inner) = experts.shared {
        text += &format!("; {inner} wide shared");
    }
    if experts.dense_layers > 0 {
        text += &format!("; none in the first {} layers", experts.dense_layers);
    }
    Ok(Some(text))
}
