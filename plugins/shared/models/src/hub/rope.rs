//! Rotary embeddings of a configuration: the older keys (`rope_theta`, `rope_scaling`) and those of transformers 5
//! (`rope_parameters`), in GGUF's terms.

use super::config::{Section, escaped};
use super::plan::Plan;
use crate::ModelError;
use crate::rope::{FACTORS, LONG, SHORT};

/// Ways of stretching a context that a family may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scaling {
    /// Positions divided by a factor.
    Linear,
    /// YaRN.
    Yarn,
    /// YaRN, with a factor on the attention's scores by `mscale_all_dim` (DeepSeek).
    YarnWithScores,
    /// Llama 3's, by a table of divisors.
    Llama3,
    /// LongRoPE, by two tables of divisors.
    LongRope,
}

/// What a configuration says of rotation, wherever it says so.
pub(crate) struct Rotation<'a> {
    config: &'a Section,
    /// The object with the parameters, and its name.
    parameters: Option<Section>,
    name: &'static str,
    /// Whether the parameters are those of some layers only, and keys beside them those of others.
    alone: bool,
}

const NEW: &str = "rope_parameters";
const OLD: &str = "rope_scaling";
/// The base where a configuration names none.
pub(super) const DEFAULT_BASE: f32 = 10_000.0;
const ORIGINAL_CONTEXT: &str = "original_max_position_embeddings";
const LONG_FACTOR: &str = "long_factor";
const SHORT_FACTOR: &str = "short_factor";

impl<'a> Rotation<'a> {
    /// Finds the parameters, in either dialect.
    pub(crate) fn of(config: &'a Section) -> Result<Self, ModelError> {
        let (new, old) = (config.section(NEW)?, config.section(OLD)?);
        if new.is_some() && old.is_some() {
            let expected = format!("only one of {NEW} and {OLD}");
            return Err(config.differs(OLD, "both".into(), &expected));
        }
        let name = if new.is_some() { NEW } else { OLD };
        Ok(Self {
            config,
            parameters: new.or(old),
            name,
            alone: false,
        })
    }

    /// The parameters of two kinds of layers, where the newer dialect has them by kind; `None` where it does not.
    pub(crate) fn by_kind(
        &self,
        first: &str,
        second: &str,
    ) -> Result<Option<(Self, Self)>, ModelError> {
        let Some(parameters) = &self.parameters else {
            return Ok(None);
        };
        let of = |kind| {
            let section = parameters.section(kind)?;
            Ok::<_, ModelError>(section.map(|parameters| Self {
                config: self.config,
                parameters: Some(parameters),
                name: self.name,
                alone: true,
            }))
        };
        match (of(first)?, of(second)?) {
            (Some(first), Some(second)) => Ok(Some((first, second))),
            (None, None) => Ok(None),
            (None, _) => Err(parameters.missing(first, "parameters, as for the other layers")),
            (_, None) => Err(parameters.missing(second, "parameters, as for the other layers")),
        }
    }

    /// The base, from the parameters or from beside them.
    pub(crate) fn base(&self) -> Result<Option<f32>, ModelError> {
        let base = self.either("rope_theta", Section::above_zero)?;
        Ok(base.map(|base| base as f32))
    }

    /// The share of each head that is turned.
    pub(crate) fn partial_factor(&self) -> Result<f64, ModelError> {
        let factor = self.either("partial_rotary_factor", Section::above_zero)?;
        Ok(factor.unwrap_or(1.0))
    }

    /// A key that may stand among the parameters or beside them, or at both places with one value.
    fn either(
        &self,
        key: &str,
        read: impl Fn(&Section, &str) -> Result<Option<f64>, ModelError>,
    ) -> Result<Option<f64>, ModelError> {
        let beside = read(self.config, key)?.filter(|_| !self.alone);
        let within = match &self.parameters {
            Some(parameters) => read(parameters, key)?,
            None => None,
        };
        match (within, beside) {
            (Some(within), Some(beside)) if within != beside => {
                let expected = format!("{within}, as in {}", self.name);
                Err(self.config.differs(key, beside.to_string(), &expected))
            }
            (within, beside) => Ok(within.or(beside)),
        }
    }

    /// The kind of scaling, if any.
    fn kind(&self) -> Result<Option<&str>, ModelError> {
        let Some(parameters) = &self.parameters else {
            return Ok(None);
        };
        let newer = parameters.text("rope_type")?;
        let older = parameters.text("type")?;
        match newer.or(older) {
            Some("default") => Ok(None),
            Some(kind) => Ok(Some(kind)),
            None if self.name == NEW => Ok(None),
            None => Err(parameters.missing("rope_type", "the kind of scaling")),
        }
    }

    /// Refuses any scaling.
    pub(crate) fn require_plain(&self) -> Result<(), ModelError> {
        match (self.kind()?, &self.parameters) {
            (Some(kind), Some(parameters)) => {
                let found = format!("\"{}\"", escaped(kind));
                Err(parameters.differs("rope_type", found, "default"))
            }
            _ => self.refuse_unasked(),
        }
    }

    /// Refuses a part of each head that is not turned.
    pub(crate) fn require_whole_heads(&self) -> Result<(), ModelError> {
        let factor = self.partial_factor()?;
        if factor == 1.0 {
            return Ok(());
        }
        let expected = "1: heads are turned as a whole in this family";
        Err(self
            .config
            .differs("partial_rotary_factor", factor.to_string(), expected))
    }

    /// Positions that the model was trained on before it was stretched.
    pub(crate) fn original_context(&self) -> Result<u32, ModelError> {
        let beside = self.config.positive(ORIGINAL_CONTEXT)?;
        let within = match &self.parameters {
            Some(parameters) => parameters.positive(ORIGINAL_CONTEXT)?,
            None => None,
        };
        match beside.or(within) {
            Some(original) => Ok(original),
            None => self.context(),
        }
    }

    /// Writes base and scaling as metadata and tables. `rotary_dim` is the number of elements that are turned; `allowed`
    /// are the kinds that the family's lowering knows.
    pub(crate) fn write(
        &self,
        plan: &mut Plan,
        rotary_dim: u32,
        allowed: &[Scaling],
    ) -> Result<(), ModelError> {
        self.write_with_base(plan, rotary_dim, allowed, DEFAULT_BASE)
    }

    /// As [`write`](Self::write), with another base where the configuration names none.
    pub(crate) fn write_with_base(
        &self,
        plan: &mut Plan,
        rotary_dim: u32,
        allowed: &[Scaling],
        default_base: f32,
    ) -> Result<(), ModelError> {
        let base = self.base()?.unwrap_or(default_base);
        plan.set("rope.freq_base", base);
        let (Some(kind), Some(parameters)) = (self.kind()?, &self.parameters) else {
            return self.refuse_unasked();
        };
        let allows = |scaling| allowed.contains(&scaling);
        match kind {
            "linear" if allows(Scaling::Linear) => {
                plan.set("rope.scaling.type", "linear");
                let factor = parameters.require_above_zero("factor")?;
                plan.set("rope.scaling.factor", factor as f32);
            }
            // Frequencies change where a sequence is longer than max_position_embeddings, which none gets here.
            "dynamic" => {
                parameters.require_above_zero("factor")?;
                let context = self.context()?;
                plan.notes.push(format!(
                    "config.json: key {}.rope_type: \"dynamic\" changes nothing within {context} positions, where the context ends",
                    self.name
                ));
            }
            "yarn" if allows(Scaling::Yarn) || allows(Scaling::YarnWithScores) => {
                self.write_yarn(plan, parameters, allows(Scaling::YarnWithScores))?;
            }
            "llama3" if allows(Scaling::Llama3) => {
                let divisors = self.llama3_divisors(parameters, base, rotary_dim)?;
                plan.tables.push((FACTORS, divisors));
            }
            // Early Phi-3 files say "su".
            "longrope" | "su" if allows(Scaling::LongRope) => {
                self.write_long(plan, parameters, rotary_dim)?;
            }
            other => {
                let key = match parameters.get("rope_type") {
                    Some(_) => "rope_type",
                    None => "type",
                };
                let names = allowed.iter().map(|scaling| scaling.name());
                let names: Vec<_> = names.chain(["dynamic", "default"]).collect();
                let found = format!("\"{}\"", escaped(other));
                let expected = format!("one of {}", names.join(", "));
                return Err(parameters.differs(key, found, &expected));
            }
        }
        self.refuse_unasked()
    }

    /// All of the parameters is arithmetic: what nobody asked for is refused.
    pub(crate) fn refuse_unasked(&self) -> Result<(), ModelError> {
        let Some(parameters) = &self.parameters else {
            return Ok(());
        };
        // Says whether long contexts were trained or only assumed; and a number that some kinds have no use for.
        parameters.get("finetuned");
        parameters.get(ORIGINAL_CONTEXT);
        match parameters.unasked().first() {
            Some((key, value)) => {
                Err(parameters.wrong(key, value, "no such key for this kind of rotation"))
            }
            None => Ok(()),
        }
    }

    fn write_yarn(
        &self,
        plan: &mut Plan,
        parameters: &Section,
        with_scores: bool,
    ) -> Result<(), ModelError> {
        let original = self.original_context()?;
        let factor = match parameters.above_zero("factor")? {
            Some(factor) => factor,
            None => f64::from(self.context()?) / f64::from(original),
        };
        if parameters.flag("truncate")? == Some(false) {
            return Err(parameters.wrong("truncate", &false.into(), "true"));
        }
        plan.set("rope.scaling.type", "yarn");
        plan.set("rope.scaling.factor", factor as f32);
        plan.set("rope.scaling.original_context_length", original);
        for key in ["beta_fast", "beta_slow"] {
            if let Some(beta) = parameters.above_zero(key)? {
                plan.set(&format!("rope.scaling.yarn_{key}"), beta as f32);
            }
        }
        let stated = parameters.above_zero("attention_factor")?;
        let one = parameters.number("mscale")?.filter(|it| *it > 0.0);
        let all = parameters.number("mscale_all_dim")?.filter(|it| *it > 0.0);
        // What cosine and sine are multiplied by, as transformers has it.
        let magnitude = match (stated, one, all) {
            (Some(stated), ..) => stated,
            (None, Some(one), Some(all)) => magnitude(factor, one) / magnitude(factor, all),
            (None, ..) => magnitude(factor, 1.0),
        };
        // DeepSeek multiplies scores by the square of the factor with `mscale_all_dim`, and what stands with that is the whole
        // factor on cosine and sine; elsewhere what the paper has is understood.
        let usual = match all.filter(|_| with_scores) {
            Some(all) => {
                plan.set("rope.scaling.yarn_log_multiplier", (0.1 * all) as f32);
                1.0
            }
            None => self::magnitude(factor, 1.0),
        };
        if magnitude != usual {
            plan.set("rope.scaling.attn_factor", (magnitude / usual) as f32);
        }
        Ok(())
    }

    /// As Llama 3.1 has it in code (no paper does): frequencies that turn fast stay, slow ones are divided by the factor,
    /// those between are blended.
    fn llama3_divisors(
        &self,
        parameters: &Section,
        base: f32,
        rotary_dim: u32,
    ) -> Result<Vec<f32>, ModelError> {
        let factor = parameters.require_above_zero("factor")?;
        let low = parameters.require_above_zero("low_freq_factor")?;
        let high = parameters.require_above_zero("high_freq_factor")?;
        if high <= low {
            let expected = format!("more than low_freq_factor, {low}");
            return Err(parameters.differs("high_freq_factor", high.to_string(), &expected));
        }
        let original = f64::from(self.original_context()?);
        let divisor = |pair: u32| {
            let exponent = 2.0 * f64::from(pair) / f64::from(rotary_dim);
            let wavelength = std::f64::consts::TAU * f64::from(base).powf(exponent);
            if wavelength < original / high {
                1.0
            } else if wavelength > original / low {
                factor
            } else {
                let smooth = (original / wavelength - low) / (high - low);
                1.0 / ((1.0 - smooth) / factor + smooth)
            }
        };
        Ok((0..rotary_dim / 2)
            .map(|pair| divisor(pair) as f32)
            .collect())
    }

    fn write_long(
        &self,
        plan: &mut Plan,
        parameters: &Section,
        rotary_dim: u32,
    ) -> Result<(), ModelError> {
        let pairs = rotary_dim as usize / 2;
        let original = self.original_context()?;
        let factor = match parameters.above_zero("factor")? {
            Some(factor) => factor,
            None => f64::from(self.context()?) / f64::from(original),
        };
        let attention = match parameters.above_zero("attention_factor")? {
            Some(attention) => attention,
            None if factor > 1.0 && original > 1 => {
                (1.0 + factor.ln() / f64::from(original).ln()).sqrt()
            }
            None => 1.0,
        };
        plan.set("rope.scaling.attn_factor", attention as f32);
        for (table, key) in [(LONG, LONG_FACTOR), (SHORT, SHORT_FACTOR)] {
            plan.tables.push((table, parameters.numbers(key, pairs)?));
        }
        Ok(())
    }

    fn context(&self) -> Result<u32, ModelError> {
        self.config.require_positive("max_position_embeddings")
    }
}

impl Scaling {
    fn name(self) -> &'static str {
        match self {
            Scaling::Linear => "linear",
            Scaling::Yarn | Scaling::YarnWithScores => "yarn",
            Scaling::Llama3 => "llama3",
            Scaling::LongRope => "longrope",
        }
    }
}

/// YaRN's factor for the attention's temperature.
fn magnitude(factor: f64, scale: f64) -> f64 {
    if factor > 1.0 {
        0.1 * scale * factor.ln() + 1.0
    } else {
        1.0
    }
}
