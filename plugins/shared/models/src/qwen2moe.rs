//! Qwen 2 MoE (Yang et al. 2024, arXiv:2407.10671), and Qwen 1.5 MoE.
//!
//! Qwen 2's blocks with a mixture of experts in place of the feed-forward. Beside the routed experts, whose weights are those
//! of the softmax as they are, one expert sees every token, times a gate of its own. Some layers may have a plain
//! feed-forward instead: those for which the file has one.

use crate::ModelError;
use crate::blocks::{Model, build};
use crate::hyperparameters::Hyperparameters;
use crate::mixture::Mixture;
use crate::rope;
use backplane_program::{
    Activation, Expert, Program, ProgramError, RopeStyle, RouteSpec, Scoring, ValueId,
};

const DEFAULT_BASE: f32 = 10_000.0;

pub(crate) fn lower(h: &Hyperparameters<'_>) -> Result<Program, ModelError> {
    let rotary = rope::scaled(h, RopeStyle::Halves, DEFAULT_BASE)?;
    let mixture = mixture(h)?;
    let shared = h.optional_positive("expert_shared_feed_forward_length")?;
    build(h, |mut m| {
        let rotary = m.b.declare_rope(rotary);
        let mut x = m.embed(1.0)?;
        for layer in 0..h.layers {
            let a = m.rms_norm(&format!("blk.{layer}.attn_norm"), x)?;
            let qkv = m.queries_keys_values(layer, a)?;
            let a = m.rotary_attention(layer, qkv, rotary, None)?;
            x = m.b.add(x, a)?;
            let f = m.rms_norm(&format!("blk.{layer}.ffn_norm"), x)?;
            let f = if m.is_dense(layer) {
                m.gated_feed_forward(layer, f, Activation::Silu)?
            } else {
                let routed = m.mixture(layer, f, &mixture)?;
                let inner = shared.unwrap_or(h.feed_forward[layer]);
                let shared = gated_shared_expert(&mut m, layer, f, inner)?;
                m.b.add(routed, shared)?
            };
            x = m.b.add(x, f)?;
            m.b.mark(format!("layer.{layer}"), x);
        }
        let logits = m.logits(x)?;
        m.finish(logits)
    })
}

/// A mixture of one: its weight is the logistic function of its gate.
fn gated_shared_expert(
    m: &mut Model<'_, '_>,
    layer: usize,
    x: ValueId,
    inner: usize,
) -> Result<ValueId, ProgramError> {
    let width = m.h.width;
    let gate =
        m.b.row_weight(format!("blk.{layer}.ffn_gate_inp_shexp.weight"), width)?;
    let gate = m.b.linear(x, gate, None)?;
    let sigmoid = RouteSpec {
        scoring: Scoring::Sigmoid,
        bias: None,
        groups: None,
        used: 1,
        normalise: false,
        scale: 1.0,
    };
    let routing = m.b.route(gate, sigmoid)?;
    let matrix = |name| format!("blk.{layer}.{name}_shexp.weight");
    let expert = Expert {
        gate: m.b.weight(matrix("ffn_gate"), &[inner, width])?,
        up: m.b.weight(matrix("ffn_up"), &[inner, width])?,
        down: m.b.weight(matrix("ffn_down"), &[width, inner])?,
    };
    m.b.experts(x, routing, vec![expert], Activation::Silu)
}

fn mixture(h: &Hyperparameters<'_>) -> Result<Mixture, ModelError> {
    Mixture::read(h, false)
}

pub(crate) fn describe_routing(h: &Hyperparameters<'_>) -> Result<Option<String>, ModelError> {
    Ok(Some(mixture(h)?.describe() + "; one that sees all, gated"))
}
