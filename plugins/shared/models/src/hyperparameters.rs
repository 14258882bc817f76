//! The metadata that all decoder-only transformers share, checked.

use crate::{ModelError, rope};
use backplane_weights::{Metadata, Value, Weights};

/// Far above the heads of any model, far below what would hurt.
const MAX_HEAD_DIM: usize = 1 << 16;

/// Sizes of a model, read and checked. Numbers that may differ by layer are vectors with one element per layer.
pub(crate) struct Hyperparameters<'w> {
    pub(crate) weights: &'w Weights,
    /// Architecture name, the first part of the metadata keys.
    pub(crate) architecture: &'static str,
    pub(crate) layers: usize,
    pub(crate) width: usize,
    pub(crate) vocab: usize,
    /// Positions the model is good for; see [`rope::stretched_context`].
    pub(crate) context_length: usize,
    /// Positions that will be used; at most `context_length`.
    pub(crate) context: usize,
    pub(crate) heads: Vec<usize>,
    pub(crate) kv_heads: Vec<usize>,
    pub(crate) key_dim: usize,
    pub(crate) value_dim: usize,
    pub(crate) feed_forward: Vec<usize>,
    /// Elements of a head that are rotated; even, at most `key_dim`.
    pub(crate) rotary_dim: usize,
    pub(crate) rms_eps: f32,
}

impl<'w> Hyperparameters<'w> {
    pub(crate) fn read(
        architecture: &'static str,
        weights: &'w Weights,
        context: Option<usize>,
    ) -> Result<Self, ModelError> {
        let mut h = Self {
            weights,
            architecture,
            layers: 0,
            width: 0,
            vocab: weights.require("token_embd.weight")?.rows(),
            context_length: 0,
            context: 0,
            heads: vec![],
            kv_heads: vec![],
            key_dim: 0,
            value_dim: 0,
            feed_forward: vec![],
            rotary_dim: 0,
            rms_eps: 0.0,
        };
        h.layers = h.positive("block_count")?;
        let tensors = weights.tensors().count();
        if h.layers > tensors {
            let expected = format!("at most {tensors}, the number of tensors in the file");
            return Err(h.wrong("block_count", h.layers, expected));
        }
        h.width = h.positive("embedding_length")?;
        h.context_length = rope::stretched_context(&h)?;
        h.context = context.map_or(h.context_length, |context| context.min(h.context_length));
        h.read_heads()?;
        h.feed_forward = h.per_layer("feed_forward_length", None)?;
        h.rms_eps = h
            .meta()
            .require_f32(&h.key("attention.layer_norm_rms_epsilon"))?;
        if !(h.rms_eps.is_finite() && h.rms_eps >= 0.0) {
            return Err(h.wrong(
                "attention.layer_norm_rms_epsilon",
                h.rms_eps,
                "a small number, not negative",
            ));
        }
        Ok(h)
    }

    fn read_heads(&mut self) -> Result<(), ModelError> {
        self.heads = self.per_layer("attention.head_count", None)?;
        self.kv_heads = self.per_layer("attention.head_count_kv", Some(&self.heads))?;
        for (layer, (heads, kv_heads)) in self.heads.iter().zip(&self.kv_heads).enumerate() {
            if !heads.is_multiple_of(*kv_heads) {
                let expected =
                    format!("a divisor of attention.head_count, {heads} in layer {layer}");
                return Err(self.wrong("attention.head_count_kv", kv_heads, expected));
            }
        }
        let key_dim = self.head_dim("attention.key_length")?;
        let value_dim = self.head_dim("attention.value_length")?;
        let (rotary_dim, key) = match self.optional_positive("rope.dimension_count")? {
            Some(dim) => (dim, "rope.dimension_count"),
            None => (key_dim, "attention.key_length"),
        };
        if rotary_dim > key_dim || !rotary_dim.is_multiple_of(2) {
            let expected = format!("an even number of rotated elements, at most {key_dim}");
            return Err(self.wrong(key, rotary_dim, expected));
        }
        (self.key_dim, self.value_dim, self.rotary_dim) = (key_dim, value_dim, rotary_dim);
        Ok(())
    }

    /// Elements of a head: what the key says, else the width over the heads of the first layer.
    fn head_dim(&self, name: &str) -> Result<usize, ModelError> {
        let dim = match self.optional_positive(name)? {
            Some(dim) => dim,
            None if self.width.is_multiple_of(self.heads[0]) => self.width / self.heads[0],
            None => {
                let expected = format!(
                    "a divisor of embedding_length, {}, or a key {name}",
                    self.width
                );
                return Err(self.wrong("attention.head_count", self.heads[0], expected));
            }
        };
        if dim > MAX_HEAD_DIM {
            return Err(self.wrong(name, dim, format!("at most {MAX_HEAD_DIM}")));
        }
        Ok(dim)
    }

    pub(crate) fn meta(&self) -> &'w Metadata {
        self.weights.metadata()
    }

    /// The full metadata key of an architecture's property.
    pub(crate) fn key(&self, name: &str) -> String {
        format!("{}.{name}", self.architecture)
    }

    /// A number that may be absent but not 0.
    pub(crate) fn optional_positive(&self, name: &str) -> Result<Option<usize>, ModelError> {
        match self.meta().usize(&self.key(name))? {
            Some(0) => Err(self.wrong(name, 0, "at least 1")),
            number => Ok(number),
        }
    }

    /// A number that may be neither absent nor 0.
    pub(crate) fn positive(&self, name: &str) -> Result<usize, ModelError> {
        self.meta().require_usize(&self.key(name))?;
        self.optional_positive(name)
            .map(|number| number.unwrap_or(0))
    }

    /// A number above 0 for every layer, from a scalar or an array.
    fn per_layer(&self, name: &str, default: Option<&[usize]>) -> Result<Vec<usize>, ModelError> {
        let numbers = match (
            self.meta().per_layer_usize(&self.key(name), self.layers)?,
            default,
        ) {
            (Some(numbers), _) => numbers,
            (None, Some(default)) => default.to_vec(),
            // Says that the key is missing.
            (None, None) => vec![self.positive(name)?; self.layers],
        };
        match numbers.iter().position(|number| *number == 0) {
            Some(layer) => Err(self.wrong(
                name,
                format!("0 in layer {layer}"),
                "at least 1 in every layer",
            )),
            None => Ok(numbers),
        }
    }

    /// The sliding window in positions; absent and 0 both mean none.
    pub(crate) fn window(&self) -> Result<Option<usize>, ModelError> {
        let window = self.meta().usize(&self.key("attention.sliding_window"))?;
        Ok(window.filter(|window| *window > 0))
    }

    /// What [`window`](Self::window) says, in words, where it holds for every layer.
    pub(crate) fn describe_window(&self) -> Result<String, ModelError> {
        Ok(match self.window()? {
            Some(window) => format!("window of {window} in every layer"),
            None => "full attention".into(),
        })
    }

    /// A finite number above 0 that may be absent.
    pub(crate) fn optional_float(&self, name: &str) -> Result<Option<f32>, ModelError> {
        match self.meta().f32(&self.key(name))? {
            Some(number) if !(number.is_finite() && number > 0.0) => {
                Err(self.wrong(name, number, "a finite number above 0"))
            }
            number => Ok(number),
        }
    }

    /// A number above 0; absent and 0 both mean none.
    pub(crate) fn optional_or_zero(&self, name: &str) -> Result<Option<f32>, ModelError> {
        match self.meta().get(&self.key(name)) {
            Some(Value::F32(0.0) | Value::F64(0.0)) => Ok(None),
            _ => self.optional_float(name),
        }
    }

    /// Refuses keys that change the arithmetic in a way that the architecture does not have. A value that changes
    /// nothing (zero, false, a window that holds the whole context) is let pass.
    pub(crate) fn refuse_unheeded(&self, heeds: &[&str]) -> Result<(), ModelError> {
        const KEYS: &[&str] = &[
            "attention.clamp_kqv",
            "attention.scale",
            "attention.sliding_window",
            "attn_logit_softcapping",
            "embedding_scale",
            "expert_count",
            "final_logit_softcapping",
            "logit_scale",
            "residual_scale",
            "rope.scaling.yarn_log_multiplier",
            "use_parallel_residual",
        ];
        for name in KEYS.iter().filter(|name| !heeds.contains(name)) {
            let changes = match self.meta().get(&self.key(name)) {
                None | Some(Value::Bool(false)) => false,
                Some(Value::Bool(true)) => true,
                Some(_) if *name == "attention.sliding_window" => self
                    .meta()
                    .usize(&self.key(name))?
                    .is_some_and(|window| window > 0 && window < self.context_length),
                Some(_) if *name == "expert_count" => self
                    .meta()
                    .usize(&self.key(name))?
                    .is_some_and(|experts| experts > 0),
                Some(_) => self
                    .meta()
                    .f32(&self.key(name))?
                    .is_some_and(|value| value != 0.0),
            };
            if changes {
                let found = self
                    .meta()
                    .get(&self.key(name))
                    .map_or(String::new(), |value| value.to_string());
                let expected = format!("no such key: {} is run without it", self.architecture);
                return Err(self.wrong(name, found, expected));
            }
        }
        Ok(())
    }

    pub(crate) fn wrong(
        &self,
        name: &str,
        found: impl std::fmt::Display,
        expected: impl Into<String>,
    ) -> ModelError {
        ModelError::Key {
            path: self.weights.path().into(),
            key: self.key(name),
            found: found.to_string(),
            expected: expected.into(),
        }
    }
}
