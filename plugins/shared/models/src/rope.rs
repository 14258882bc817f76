//! Rotary embeddings out of metadata.

use crate::ModelError;
use crate::hyperparameters::Hyperparameters;
use backplane_program::{Rope, RopeStyle};

/// Divisors of the frequencies, one per pair; how GGUF stores Llama 3's scaling.
const FACTORS: &str = "rope_freqs.weight";

/// Whether a tensor holds rope numbers: read when lowering, not by the program.
pub(crate) fn is_table(name: &str) -> bool {
    name == FACTORS || name.ends_with(".rot_embd") || name.ends_with("attn_rot_embd.weight")
}

/// `base^(-2i / rotary_dim) / factor` for every pair `i`.
pub(crate) fn plain(style: RopeStyle, rotary_dim: usize, base: f32, factor: f32) -> Rope {
    let frequency = |pair: usize| {
        let exponent = -2.0 * pair as f64 / rotary_dim as f64;
        (f64::from(base).powf(exponent) / f64::from(factor)) as f32
    };
    Rope {
        style,
        inverse_frequencies: (0..rotary_dim / 2).map(frequency).collect(),
        magnitude: 1.0,
    }
}

/// As [`plain`], each frequency also divided by the file's own table if it has one.
pub(crate) fn with_table(h: &Hyperparameters<'_>, mut rope: Rope) -> Result<Rope, ModelError> {
    let Some(table) = h.weights.tensor(FACTORS) else {
        return Ok(rope);
    };
    let pairs = rope.inverse_frequencies.len();
    let wrong = |found: String, expected: String| ModelError::Tensor {
        path: h.weights.path().into(),
        tensor: FACTORS.into(),
        found,
        expected,
    };
    if table.info.shape != [pairs] {
        return Err(wrong(
            format!("{:?}", table.info.shape),
            format!("[{pairs}], one for each pair"),
        ));
    }
    for (pair, (frequency, divisor)) in rope
        .inverse_frequencies
        .iter_mut()
        .zip(table.to_f32())
        .enumerate()
    {
        if !(divisor.is_finite() && divisor > 0.0) {
            return Err(wrong(
                format!("{divisor} at {pair}"),
                "finite numbers above 0".into(),
            ));
        }
        *frequency /= divisor;
    }
    Ok(rope)
}

/// Whether the file scales its frequencies by a table.
pub(crate) fn has_table(h: &Hyperparameters<'_>) -> bool {
    h.weights.tensor(FACTORS).is_some()
}

/// Refuses a table, for architectures that have no use for one.
pub(crate) fn refuse_table(h: &Hyperparameters<'_>) -> Result<(), ModelError> {
    if has_table(h) {
        return Err(ModelError::unused_tensor(
            h.weights.path(),
            FACTORS,
            h.architecture,
        ));
    }
    Ok(())
}

/// The base of the frequencies.
pub(crate) fn base(h: &Hyperparameters<'_>, name: &str, default: f32) -> Result<f32, ModelError> {
    Ok(h.optional_float(name)?.unwrap_or(default))
}

/// The factor of linear scaling; 1 without.
pub(crate) fn linear_factor(h: &Hyperparameters<'_>) -> Result<f32, ModelError> {
    // A factor without a type is linear; older files call it `scale_linear`.
    match h.meta().str(&h.key("rope.scaling.type"))? {
        Some("none") => return Ok(1.0),
        None | Some("linear") => {}
        Some(other) => {
            let other: String = other.chars().take(32).collect();
            return Err(h.wrong("rope.scaling.type", format!("{other:?}"), "none or linear"));
        }
    }
    let factor = match h.optional_or_zero("rope.scaling.factor")? {
        None => h.optional_or_zero("rope.scale_linear")?,
        factor => factor,
    };
    Ok(factor.unwrap_or(1.0))
}
