//! Mixtral (Jiang et al. 2024, arXiv:2401.04088), and other mixtures of Llama's blocks, which GGUF stores as `llama` with a
//! number of experts.
//!
//! Llama's blocks with a mixture of experts in place of the feed-forward: a softmax over the router's logits, of which the
//! highest are kept and made to add up to one.

use crate::ModelError;
use crate::blocks::build;
use crate::hyperparameters::Hyperparameters;
use crate::llama::DEFAULT_BASE;
use crate::mixture::Mixture;
use crate::rope;
use backplane_program::Program;
use backplane_weights::Weights;

/// Whether a file of architecture `llama` is one of these.
pub(crate) fn is(weights: &Weights) -> Result<bool, ModelError> {
    let experts = weights.metadata().usize("llama.expert_count")?;
    Ok(experts.is_some_and(|experts| experts > 0) || weights.tensor(ROUTER).is_some())
}

const ROUTER: &str = "blk.0.ffn_gate_inp.weight";

pub(crate) fn lower(h: &Hyperparameters<'_>) -> Result<Program, ModelError> {
    let rotary = rope::scaled(h, rope::llama_style(h)?, DEFAULT_BASE)?;
    let (mixture, window) = (mixture(h)?, h.window()?);
    build(h, |mut m| {
        let rotary = m.b.declare_rope(rotary);
        let mut x = m.embed(1.0)?;
        for layer in 0..h.layers {
            let a = m.rms_norm(&format!("blk.{layer}.attn_norm"), x)?;
            let qkv = m.queries_keys_values(layer, a)?;
            let a = m.rotary_attention(layer, qkv, rotary, window)?;
            x = m.b.add(x, a)?;
            let f = m.rms_norm(&format!("blk.{layer}.ffn_norm"), x)?;
            let f = m.mixture(layer, f, &mixture)?;
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
