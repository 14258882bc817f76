//! Rotary embeddings out of metadata.

use crate::ModelError;
use crate::hyperparameters::Hyperparameters;
use backplane_program::{Rope, RopeStyle};

/// YaRN's rotations over the original context: pairs that turn more often keep their frequency, pairs that turn less often
/// are stretched by the whole factor.
const BETA_FAST: f32 = 32.0;
const BETA_SLOW: f32 = 1.0;
/// Keeps YaRN's ramp from having no width.
const LEAST_RAMP: f64 = 0.001;

/// Says which elements make a pair where that is not as GGUF has them.
const STYLE: &str = "backplane.rope.style";
/// Divisors of the frequencies, one per pair; how GGUF stores Llama 3's scaling.
pub(crate) const FACTORS: &str = "rope_freqs.weight";
/// LongRoPE's divisors: for contexts past the original one, and within it.
pub(crate) const LONG: &str = "rope_factors_long.weight";
pub(crate) const SHORT: &str = "rope_factors_short.weight";

/// Whether a tensor holds rope numbers that follow from the metadata anyway, as old files have them.
pub(crate) fn is_redundant(name: &str) -> bool {
    name.ends_with(".rot_embd") || name.ends_with("attn_rot_embd.weight")
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

/// How a model's positions were stretched past the context it was first trained on.
enum Scaling {
    /// Positions divided by a factor; 1 where nothing was stretched.
    Linear(f32),
    Yarn(Yarn),
}

/// YaRN (Peng et al. 2023, arXiv:2309.00071).
struct Yarn {
    factor: f32,
    original_context: usize,
    beta_fast: f32,
    beta_slow: f32,
    /// Factor on cosine and sine beside the one that follows from `factor`.
    attention_factor: f32,
}

impl Yarn {
    fn read(h: &Hyperparameters<'_>) -> Result<Self, ModelError> {
        // Other mixtures of the two frequencies than the paper's are not known to exist.
        if let Some(mix) = h.optional_or_zero("rope.scaling.yarn_ext_factor")?
            && mix != 1.0
        {
            return Err(h.wrong("rope.scaling.yarn_ext_factor", mix, "1"));
        }
        let or = |name: &str, default| h.optional_float(name).map(|it| it.unwrap_or(default));
        let key = "rope.scaling.factor";
        h.meta().require_f32(&h.key(key))?;
        Ok(Self {
            factor: or(key, 1.0)?,
            original_context: original_context(h)?,
            beta_fast: or("rope.scaling.yarn_beta_fast", BETA_FAST)?,
            beta_slow: or("rope.scaling.yarn_beta_slow", BETA_SLOW)?,
            attention_factor: or("rope.scaling.attn_factor", 1.0)?
                * or("rope.scaling.yarn_attn_factor", 1.0)?,
        })
    }

    /// Section 3.2, "NTK-by-parts": frequencies between the original and the interpolated ones, by how often a pair turns
    /// within the original context; section 3.4: `0.1 ln(factor) + 1` on cosine and sine, for the attention's temperature.
    fn apply(&self, rope: &mut Rope, base: f32) {
        let pairs = rope.inverse_frequencies.len();
        let (dim, factor) = (2.0 * pairs as f64, f64::from(self.factor));
        // The pair that turns so many times within the original context, as a fraction.
        let pair_of = |turns: f32| {
            let wavelength =
                self.original_context as f64 / (f64::from(turns) * std::f64::consts::TAU);
            dim * wavelength.ln() / (2.0 * f64::from(base).ln())
        };
        let low = pair_of(self.beta_fast).floor().max(0.0);
        let high = pair_of(self.beta_slow).ceil().min(dim - 1.0);
        for (pair, frequency) in rope.inverse_frequencies.iter_mut().enumerate() {
            let ramp = ((pair as f64 - low) / (high - low).max(LEAST_RAMP)).clamp(0.0, 1.0);
            *frequency = (f64::from(*frequency) * (ramp / factor + 1.0 - ramp)) as f32;
        }
        rope.magnitude = self.attention_factor * (0.1 * self.factor.ln() + 1.0).max(1.0);
    }
}

const ORIGINAL_CONTEXT: &str = "rope.scaling.original_context_length";

/// Positions that the model was trained on before it was stretched.
fn original_context(h: &Hyperparameters<'_>) -> Result<usize, ModelError> {
    match h.optional_positive(ORIGINAL_CONTEXT)? {
        Some(original) => Ok(original),
        None => h.positive("context_length"),
    }
}

/// Positions that the model is good for: as the file says, and where YaRN stretches a stated original context to more, so many.
/// Model cards ask for YaRN beside a length that stays the original one; frequencies don't depend on it.
pub(crate) fn stretched_context(h: &Hyperparameters<'_>) -> Result<usize, ModelError> {
    let stated = h.positive("context_length")?;
    if h.meta().str(&h.key("rope.scaling.type"))? != Some("yarn") {
        return Ok(stated);
    }
    let original = h.optional_positive(ORIGINAL_CONTEXT)?;
    let factor = h.optional_float("rope.scaling.factor")?;
    let (Some(original), Some(factor)) = (original, factor) else {
        return Ok(stated);
    };
    let stretched = (original as f64 * f64::from(factor)).min(f64::from(u32::MAX));
    Ok(stated.max(stretched as usize))
}

/// The rotary embedding as the metadata have it: scaled linearly or by YaRN, each frequency also divided by the file's own
/// table if it has one.
pub(crate) fn scaled(
    h: &Hyperparameters<'_>,
    style: RopeStyle,
    default_base: f32,
) -> Result<Rope, ModelError> {
    let base = base(h, "rope.freq_base", default_base)?;
    let mut rope = match scaling(h)? {
        Scaling::Linear(factor) => plain(style, h.rotary_dim, base, factor),
        Scaling::Yarn(yarn) => {
            let mut rope = plain(style, h.rotary_dim, base, 1.0);
            yarn.apply(&mut rope, base);
            rope
        }
    };
    divide(h, &mut rope, FACTORS)?;
    Ok(rope)
}

/// As [`scaled`], with the factor on the attention's scores that DeepSeek's YaRN has beside that on cosine and sine. A file
/// that says `yarn_log_multiplier` means both: scores are sharpened by the square of `1 + yarn_log_multiplier * ln(factor)`,
/// and the magnitude is `attn_factor` alone, 1 where the file doesn't say.
pub(crate) fn with_scores(
    h: &Hyperparameters<'_>,
    style: RopeStyle,
    default_base: f32,
) -> Result<(Rope, f32), ModelError> {
    let mut rope = scaled(h, style, default_base)?;
    let multiplier = h.optional_or_zero("rope.scaling.yarn_log_multiplier")?;
    let (Scaling::Yarn(yarn), Some(multiplier)) = (scaling(h)?, multiplier) else {
        return Ok((rope, 1.0));
    };
    rope.magnitude = yarn.attention_factor;
    let sharpness = (1.0 + multiplier * yarn.factor.ln()).max(1.0);
    Ok((rope, sharpness * sharpness))
}

/// How files of Llama's family pair the elements of a head: as neighbours, for which GGUF stores the rows of queries and keys
/// in another order, unless the model was assembled from a checkpoint that has halves.
pub(crate) fn llama_style(h: &Hyperparameters<'_>) -> Result<RopeStyle, ModelError> {
    match h.meta().str(STYLE)? {
        None => Ok(RopeStyle::Interleaved),
        Some("halves") => Ok(RopeStyle::Halves),
        Some(other) => Err(ModelError::Key {
            path: h.weights.path().into(),
            key: STYLE.into(),
            found: format!("{:?}", other.chars().take(32).collect::<String>()),
            expected: "halves, or no such key".into(),
        }),
    }
}

/// Divides each frequency by its number in a table of the file, if it has that one.
fn divide(h: &Hyperparameters<'_>, rope: &mut Rope, name: &str) -> Result<(), ModelError> {
    let Some(table) = h.weights.tensor(name) else {
        return Ok(());
    };
    let pairs = rope.inverse_frequencies.len();
    let wrong = |found: String, expected: String| ModelError::Tensor {
        path: h.weights.path().into(),
        tensor: name.into(),
        found,
        expected,
    };
    if table.info.shape != [pairs] {
        return Err(wrong(
            format!("{:?}", table.info.shape),
            format!("[{pairs}], one for each pair"),
        ));
    }
    let divisors = table.to_f32();
    for (pair, (frequency, divisor)) in rope
        .inverse_frequencies
        .iter_mut()
        .zip(divisors)
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
    Ok(())
}

/// As [`scaled`], or by LongRoPE (Ding et al. 2024, arXiv:2402.13753) where the file has its tables: frequencies divided by
/// one table where the context goes past the original one, by another where it does not. A key/value cache is good for one
/// table only, so that the choice is made by the context's size and not by the length of a sequence.
pub(crate) fn long(
    h: &Hyperparameters<'_>,
    style: RopeStyle,
    default_base: f32,
) -> Result<Rope, ModelError> {
    if !is_long(h)? {
        return scaled(h, style, default_base);
    }
    let original = original_context(h)?;
    let base = base(h, "rope.freq_base", default_base)?;
    let mut within = plain(style, h.rotary_dim, base, 1.0);
    let mut past = within.clone();
    for (rope, table) in [(&mut within, SHORT), (&mut past, LONG)] {
        h.weights.require(table)?;
        divide(h, rope, table)?;
    }
    let mut rope = if h.context > original { past } else { within };
    rope.magnitude = match h.optional_float("rope.scaling.attn_factor")? {
        Some(factor) => factor,
        // What the metadata would have said, as the Phi-3 models compute it.
        None if h.context_length > original && original > 1 => {
            let stretch = h.context_length as f32 / original as f32;
            (1.0 + stretch.ln() / (original as f32).ln()).sqrt()
        }
        None => 1.0,
    };
    Ok(rope)
}

/// Whether LongRoPE is meant: by the tables alone, since converters write no type.
fn is_long(h: &Hyperparameters<'_>) -> Result<bool, ModelError> {
    let tables = [LONG, SHORT]
        .iter()
        .any(|name| h.weights.tensor(name).is_some());
    match h.meta().str(&h.key("rope.scaling.type"))? {
        Some("longrope") => Ok(true),
        Some(other) if tables && other != "none" => {
            let other: String = other.chars().take(32).collect();
            let expected = format!("longrope, since there is a tensor {LONG} or {SHORT}");
            Err(h.wrong("rope.scaling.type", format!("{other:?}"), expected))
        }
        _ => Ok(tables),
    }
}

/// The base of the frequencies.
pub(crate) fn base(h: &Hyperparameters<'_>, name: &str, default: f32) -> Result<f32, ModelError> {
    Ok(h.optional_float(name)?.unwrap_or(default))
}

/// The factor of linear scaling, for architectures that know no other; 1 without.
pub(crate) fn linear_factor(h: &Hyperparameters<'_>) -> Result<f32, ModelError> {
    match scaling(h)? {
        Scaling::Linear(factor) => Ok(factor),
        Scaling::Yarn(_) => Err(h.wrong("rope.scaling.type", "\"yarn\"", "none or linear")),
    }
}

fn scaling(h: &Hyperparameters<'_>) -> Result<Scaling, ModelError> {
    // A factor without a type is linear; older files call it `scale_linear`.
    match h.meta().str(&h.key("rope.scaling.type"))? {
        Some("none") => return Ok(Scaling::Linear(1.0)),
        Some("yarn") => return Yarn::read(h).map(Scaling::Yarn),
        None | Some("linear") => {}
        Some(other) => {
            let other: String = other.chars().take(32).collect();
            let expected = "none, linear or yarn";
            return Err(h.wrong("rope.scaling.type", format!("{other:?}"), expected));
        }
    }
    let factor = match h.optional_or_zero("rope.scaling.factor")? {
        None => h.optional_or_zero("rope.scale_linear")?,
        factor => factor,
    };
    Ok(Scaling::Linear(factor.unwrap_or(1.0)))
}

/// What [`scaled`] makes of the metadata, in words.
pub(crate) fn describe(h: &Hyperparameters<'_>, default_base: f32) -> Result<String, ModelError> {
    Ok(describe_scaling(h, default_base)? + &partial(h))
}

/// Base and scaling, in words.
pub(crate) fn describe_scaling(
    h: &Hyperparameters<'_>,
    default_base: f32,
) -> Result<String, ModelError> {
    let mut text = format!("base {}", base(h, "rope.freq_base", default_base)?);
    match scaling(h)? {
        Scaling::Linear(1.0) => {}
        Scaling::Linear(factor) => text += &format!(", linear scaling by {factor}"),
        Scaling::Yarn(Yarn {
            factor,
            original_context,
            ..
        }) => text += &format!(", YaRN scaling by {factor} from {original_context} positions"),
    }
    if h.weights.tensor(FACTORS).is_some() {
        text += ", frequencies scaled by table";
    }
    Ok(text)
}

/// What [`long`] makes of the metadata, in words.
pub(crate) fn describe_long(
    h: &Hyperparameters<'_>,
    default_base: f32,
) -> Result<String, ModelError> {
    if !is_long(h)? {
        return describe(h, default_base);
    }
    let base = base(h, "rope.freq_base", default_base)?;
    let original = original_context(h)?;
    let text = format!("base {base}, LongRoPE past {original} positions");
    Ok(text + &partial(h))
}

fn partial(h: &Hyperparameters<'_>) -> String {
    if h.rotary_dim == h.key_dim {
        return String::new();
    }
    format!(", {} of {} elements", h.rotary_dim, h.key_dim)
}
