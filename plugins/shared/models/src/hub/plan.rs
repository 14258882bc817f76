//! What a configuration says of a model: sizes, metadata in GGUF's terms, and the numbers of rope tables.

use super::config::Section;
use crate::ModelError;
use backplane_weights::writer::OwnedValue;

/// Lengths that dimensions of tensors are made of, and what of the optional parts a model has. Numbers are those of one layer;
/// where a family lacks something, 0 or false.
#[derive(Clone, Debug, Default)]
pub(crate) struct Sizes {
    pub(crate) layers: u32,
    pub(crate) width: u32,
    pub(crate) vocab: u32,
    pub(crate) heads: u32,
    pub(crate) kv_heads: u32,
    pub(crate) head_dim: u32,
    pub(crate) feed_forward: u32,
    /// Experts that a router chooses from.
    pub(crate) experts: u32,
    pub(crate) expert_width: u32,
    /// Inner width of the experts that see every token, together.
    pub(crate) shared_width: u32,
    /// Whether each layer has a feed-forward in place of experts; empty where no layer has experts.
    pub(crate) dense_layers: Vec<bool>,
    /// Layers past the last, which predict further tokens.
    pub(crate) predicting_layers: u32,
    pub(crate) latent: Latent,
    pub(crate) tied: bool,
    pub(crate) query_key_value_bias: bool,
    pub(crate) attention_output_bias: bool,
    pub(crate) feed_forward_bias: bool,
}

impl Sizes {
    /// Whether a layer has a feed-forward and no experts.
    pub(crate) fn is_dense(&self, layer: u32) -> bool {
        let listed = self.dense_layers.get(layer as usize);
        listed.copied().unwrap_or(self.experts == 0)
    }
}

/// Lengths of latent attention.
#[derive(Clone, Debug, Default)]
pub(crate) struct Latent {
    /// Rank of the queries; `None` where they are projected at once.
    pub(crate) query_rank: Option<u32>,
    /// Rank of keys and values.
    pub(crate) rank: u32,
    /// Elements of a query or key head that are not turned.
    pub(crate) plain_dim: u32,
    /// Those that are.
    pub(crate) rotary_dim: u32,
    pub(crate) value_dim: u32,
}

/// Which layers have a window where Qwen's configurations use one, by `max_window_layers`.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Windowed {
    /// Those from so many on.
    After,
    /// Some of those before it, the first always.
    Before,
    /// All, whatever it says.
    All,
}

/// Everything that a configuration comes to.
#[derive(Debug)]
pub(crate) struct Plan {
    architecture: &'static str,
    /// Tensors in the checkpoint: no model has more layers than those.
    tensors: usize,
    pub(crate) sizes: Sizes,
    /// Metadata, by full key.
    pub(crate) meta: Vec<(String, OwnedValue)>,
    /// Tensors that follow from the configuration.
    pub(crate) tables: Vec<(&'static str, Vec<f32>)>,
    /// What a user should know.
    pub(crate) notes: Vec<String>,
}

impl Plan {
    pub(crate) fn new(architecture: &'static str, tensors: usize) -> Self {
        Self {
            architecture,
            tensors,
            sizes: Sizes::default(),
            meta: vec![("general.architecture".into(), architecture.into())],
            tables: vec![],
            notes: vec![],
        }
    }

    /// Sets a property of the architecture; the last value stands.
    pub(crate) fn set(&mut self, name: &str, value: impl Into<OwnedValue>) {
        self.set_global(&format!("{}.{name}", self.architecture), value);
    }

    /// Sets a key that is no property of the architecture.
    pub(crate) fn set_global(&mut self, key: &str, value: impl Into<OwnedValue>) {
        self.meta.retain(|(known, _)| known != key);
        self.meta.push((key.into(), value.into()));
    }

    /// Refuses a count that the checkpoint has too few tensors for, so that nothing is done so many times in vain.
    pub(crate) fn require_tensors_for(
        &self,
        config: &Section,
        key: &str,
        count: u32,
    ) -> Result<(), ModelError> {
        if count as usize <= self.tensors {
            return Ok(());
        }
        let expected = format!("at most {}, the number of tensors there are", self.tensors);
        Err(config.differs(key, count.to_string(), &expected))
    }

    /// What every family has. Sizes that a family may leave to a default are in its defaults.
    pub(crate) fn read_common(&mut self, config: &Section) -> Result<(), ModelError> {
        let s = &mut self.sizes;
        s.width = config.require_positive("hidden_size")?;
        s.layers = config.require_positive("num_hidden_layers")?;
        let layers = s.layers;
        self.require_tensors_for(config, "num_hidden_layers", layers)?;
        let s = &mut self.sizes;
        s.vocab = config.require_positive("vocab_size")?;
        s.heads = config.require_positive("num_attention_heads")?;
        s.kv_heads = config.positive("num_key_value_heads")?.unwrap_or(s.heads);
        if !s.heads.is_multiple_of(s.kv_heads) {
            let expected = format!("a divisor of num_attention_heads, {}", s.heads);
            let found = s.kv_heads.to_string();
            return Err(config.differs("num_key_value_heads", found, &expected));
        }
        s.feed_forward = config.require_positive("intermediate_size")?;
        s.tied = config.flag("tie_word_embeddings")?.unwrap_or(false);
        let (width, feed_forward) = (s.width, s.feed_forward);
        let (heads, kv_heads) = (s.heads, s.kv_heads);
        let context = config.require_positive("max_position_embeddings")?;
        let epsilon = config.number("rms_norm_eps")?;
        let epsilon = epsilon.ok_or_else(|| config.missing("rms_norm_eps", "a small number"))?;
        self.set("block_count", layers);
        self.set("context_length", context);
        self.set("embedding_length", width);
        self.set("feed_forward_length", feed_forward);
        self.set("attention.head_count", heads);
        self.set("attention.head_count_kv", kv_heads);
        self.set("attention.layer_norm_rms_epsilon", epsilon as f32);
        refuse_windowed_layers(config, layers)
    }

    /// Elements of a head: as the key says (which then is metadata too), else the width over the heads.
    pub(crate) fn read_head_dim(&mut self, config: &Section) -> Result<(), ModelError> {
        if let Some(dim) = config.positive("head_dim")? {
            self.sizes.head_dim = bounded_dim(config, "head_dim", dim)?;
            self.set("attention.key_length", dim);
            self.set("attention.value_length", dim);
            return Ok(());
        }
        let s = &mut self.sizes;
        if !s.width.is_multiple_of(s.heads) {
            let expected = format!("a divisor of hidden_size, {}, or a key head_dim", s.width);
            let found = s.heads.to_string();
            return Err(config.differs("num_attention_heads", found, &expected));
        }
        s.head_dim = bounded_dim(config, "hidden_size", s.width / s.heads)?;
        Ok(())
    }

    /// `attention_bias` and `mlp_bias`: biases on all projections of a kind.
    pub(crate) fn read_biases(&mut self, config: &Section) -> Result<(), ModelError> {
        let attention = config.flag("attention_bias")?.unwrap_or(false);
        self.sizes.query_key_value_bias = attention;
        self.sizes.attention_output_bias = attention;
        self.sizes.feed_forward_bias = config.flag("mlp_bias")?.unwrap_or(false);
        Ok(())
    }

    /// The one window of all layers, as Mistral has it; null means none.
    pub(crate) fn read_window(&self, config: &Section) -> Result<Option<u32>, ModelError> {
        let window = config.whole("sliding_window")?;
        Ok(window.filter(|window| *window > 0))
    }

    /// The window that Qwen's configurations state and don't use; one that is used is refused.
    pub(crate) fn refuse_window(
        &self,
        config: &Section,
        windowed: Windowed,
    ) -> Result<(), ModelError> {
        let window = config.whole("sliding_window")?.unwrap_or(0);
        let bound = config.whole("max_window_layers")?.unwrap_or(0);
        let used = config.flag("use_sliding_window")?.unwrap_or(false);
        let in_some = match windowed {
            Windowed::After => bound < self.sizes.layers,
            Windowed::Before => bound > 0,
            Windowed::All => true,
        };
        if used && window > 0 && in_some {
            let found = format!("true, with a window of {window}");
            let expected = "false: windows in some layers are not run for this family";
            return Err(config.differs("use_sliding_window", found, expected));
        }
        Ok(())
    }

    /// The activation of the feed-forward, which the architecture fixes.
    pub(crate) fn require_activation(
        &self,
        config: &Section,
        key: &str,
        names: &[&str],
    ) -> Result<(), ModelError> {
        match config.get(key) {
            Some(value) if !value.as_str().is_some_and(|name| names.contains(&name)) => {
                Err(config.wrong(key, value, &names.join(" or ")))
            }
            _ => Ok(()),
        }
    }

    pub(crate) fn silu(&self, config: &Section) -> Result<(), ModelError> {
        self.require_activation(config, "hidden_act", &["silu", "swish"])
    }
}

/// Refuses a head that is longer than any.
pub(crate) fn bounded_dim(config: &Section, key: &str, dim: u32) -> Result<u32, ModelError> {
    const MAX_DIM: u32 = 1 << 16;
    if dim <= MAX_DIM {
        return Ok(dim);
    }
    let expected = format!("at most {MAX_DIM} elements in a head");
    Err(config.differs(key, format!("heads of {dim}"), &expected))
}

/// Only Gemma's layers differ in their windows; elsewhere a list of kinds may say nothing but that all layers see all.
fn refuse_windowed_layers(config: &Section, layers: u32) -> Result<(), ModelError> {
    if config
        .text("model_type")?
        .is_some_and(|name| name.starts_with("gemma"))
    {
        return Ok(());
    }
    let kinds = layer_kinds(config, layers)?;
    match kinds.into_iter().flatten().position(|sliding| sliding) {
        Some(layer) => {
            let found = format!("sliding_attention in layer {layer}");
            Err(config.differs("layer_types", found, "full_attention in every layer"))
        }
        None => Ok(()),
    }
}

/// Whether each layer has a window, where the configuration lists that.
pub(crate) fn layer_kinds(config: &Section, layers: u32) -> Result<Option<Vec<bool>>, ModelError> {
    let Some(value) = config.get("layer_types") else {
        return Ok(None);
    };
    let expected = "full_attention or sliding_attention for each layer";
    let Some(kinds) = value.as_array() else {
        return Err(config.wrong("layer_types", value, expected));
    };
    if kinds.len() != layers as usize {
        let found = format!("{} of them", kinds.len());
        let expected = format!("one for each of {layers} layers");
        return Err(config.differs("layer_types", found, &expected));
    }
    let sliding = |kind: &serde_json::Value| match kind.as_str() {
        Some("full_attention") => Ok(false),
        Some("sliding_attention") => Ok(true),
        _ => Err(config.wrong("layer_types", kind, expected)),
    };
    kinds
        .iter()
        .map(sliding)
        .collect::<Result<_, _>>()
        .map(Some)
}
