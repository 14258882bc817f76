//! Gemma 3, text (Gemma Team 2025, arXiv:2503.19786).
//!
//! Norms before and after attention and feed-forward, and on each query and key head. Most layers see a sliding window and
//! rotate with a small base; every sixth sees all and rotates with a large base, scaled where the model was stretched.
//! Embeddings are multiplied by `sqrt(width)`, in `f32`: the rounding of that factor to bf16 belongs to bf16 inference
//! only, and the f32 references don't have it. GGUF stores norm gains with their 1 added.

use crate::ModelError;
use crate::blocks::{Model, build};
use crate::hyperparameters::Hyperparameters;
use crate::rope;
use backplane_program::{
    Activation, AttentionSpec, Program, ProgramError, RopeId, RopeStyle, ValueId,
};
use backplane_weights::{Value, ValueType};

const DEFAULT_BASE: f32 = 1_000_000.0;
const DEFAULT_LOCAL_BASE: f32 = 10_000.0;
const DEFAULT_PATTERN: usize = 6;
/// Layers of the 27B model, the only one that scales its scores by the width over the heads.
const LAYERS_27B: usize = 62;
const PATTERN_KEY: &str = "attention.sliding_window_pattern";

pub(crate) fn lower(h: &Hyperparameters<'_>) -> Result<Program, ModelError> {
    let local = rope::plain(RopeStyle::Halves, h.rotary_dim, local_base(h)?, 1.0);
    let global = rope::plain(
        RopeStyle::Halves,
        h.rotary_dim,
        global_base(h)?,
        rope::linear_factor(h)?,
    );
    let windows = windows(h)?;
    let scores = Scores {
        scale: h.optional_float("attention.scale")?,
        cap: h.optional_or_zero("attn_logit_softcapping")?,
    };
    let logit_cap = h.optional_or_zero("final_logit_softcapping")?;
    build(h, |mut m| {
        let (local, global) = (m.b.declare_rope(local), m.b.declare_rope(global));
        let mut x = m.embed((h.width as f32).sqrt())?;
        for (layer, window) in windows.into_iter().enumerate() {
            let a = m.rms_norm(&format!("blk.{layer}.attn_norm"), x)?;
            let rotary = if window.is_some() { local } else { global };
            let a = attention(&mut m, layer, a, rotary, window, &scores)?;
            let a = m.rms_norm(&format!("blk.{layer}.post_attention_norm"), a)?;
            x = m.b.add(x, a)?;
            let f = m.rms_norm(&format!("blk.{layer}.ffn_norm"), x)?;
            let f = m.gated_feed_forward(layer, f, Activation::GeluTanh)?;
            let f = m.rms_norm(&format!("blk.{layer}.post_ffw_norm"), f)?;
            x = m.b.add(x, f)?;
            m.b.mark(format!("layer.{layer}"), x);
        }
        let mut logits = m.logits(x)?;
        if let Some(cap) = logit_cap {
            logits = m.b.soft_cap(logits, cap)?;
        }
        m.finish(logits)
    })
}

/// What the file says of the attention's scores.
struct Scores {
    /// Factor on them; where the file doesn't say, it follows from the sizes. No key of GGUF's own: llama.cpp has it fixed.
    scale: Option<f32>,
    /// `cap * tanh(score / cap)`.
    cap: Option<f32>,
}

fn attention(
    m: &mut Model<'_, '_>,
    layer: usize,
    x: ValueId,
    rotary: RopeId,
    window: Option<usize>,
    scores: &Scores,
) -> Result<ValueId, ProgramError> {
    let h = m.h;
    let heads = h.heads[layer];
    let scaled_by = if h.layers == LAYERS_27B {
        h.width / heads
    } else {
        h.key_dim
    };
    let spec = AttentionSpec {
        heads,
        scale: scores.scale.unwrap_or(1.0 / (scaled_by as f32).sqrt()),
        window,
        soft_cap: scores.cap,
    };
    let [q, k, v] = m.queries_keys_values(layer, x)?;
    let q = m.head_norm(&format!("blk.{layer}.attn_q_norm"), q, h.key_dim)?;
    let k = m.head_norm(&format!("blk.{layer}.attn_k_norm"), k, h.key_dim)?;
    m.rotary_attention_as(layer, [q, k, v], rotary, spec)
}

/// The window of every layer; `None` where it sees all. A model without a window sees all everywhere.
fn windows(h: &Hyperparameters<'_>) -> Result<Vec<Option<usize>>, ModelError> {
    let Some(window) = h.window()? else {
        return Ok(vec![None; h.layers]);
    };
    let sliding: Vec<bool> = match h.meta().get(&h.key(PATTERN_KEY)) {
        Some(Value::Array(array)) if array.len() != h.layers => {
            let expected = format!("one element for each of {} layers", h.layers);
            return Err(h.wrong(
                PATTERN_KEY,
                format!("an array of {}", array.len()),
                expected,
            ));
        }
        Some(Value::Array(array)) if array.element_type() == ValueType::Bool => array.bools()?,
        Some(Value::Array(array)) => array.u32s()?.into_iter().map(|flag| flag != 0).collect(),
        _ => {
            let period = h.optional_positive(PATTERN_KEY)?.unwrap_or(DEFAULT_PATTERN);
            (1..=h.layers)
                .map(|layer| !layer.is_multiple_of(period))
                .collect()
        }
    };
    Ok(sliding
        .into_iter()
        .map(|sliding| sliding.then_some(window))
        .collect())
}

fn local_base(h: &Hyperparameters<'_>) -> Result<f32, ModelError> {
    rope::base(h, "rope.freq_base_swa", DEFAULT_LOCAL_BASE)
}

fn global_base(h: &Hyperparameters<'_>) -> Result<f32, ModelError> {
    rope::base(h, "rope.freq_base", DEFAULT_BASE)
}

pub(crate) fn describe_rope(h: &Hyperparameters<'_>) -> Result<String, ModelError> {
    let mut text = format!(
        "base {} in windowed layers, {} in full ones",
        local_base(h)?,
        global_base(h)?
    );
    let factor = rope::linear_factor(h)?;
    if factor != 1.0 {
        text += &format!(" with linear scaling by {factor}");
    }
    Ok(text)
}

pub(crate) fn describe_window(h: &Hyperparameters<'_>) -> Result<String, ModelError> {
    let windows = windows(h)?;
    let sliding = windows.iter().flatten().count();
    Ok(match windows.iter().flatten().next() {
        Some(window) => format!("window of {window} in {sliding} of {} layers", h.layers),
        None => "full attention".into(),
    })
}
