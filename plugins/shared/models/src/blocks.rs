//! Pieces that architectures share, in terms of GGUF's tensor names. Width of inputs comes from the values themselves.

use crate::ModelError;
use crate::hyperparameters::Hyperparameters;
use backplane_program::{
    Activation, AttentionSpec, Builder, CacheSpec, CachedValues, Program, ProgramError, RopeId,
    ValueId,
};

/// A program under construction, with the sizes of its model.
pub(crate) struct Model<'a, 'w> {
    pub(crate) h: &'a Hyperparameters<'w>,
    pub(crate) b: Builder<'w>,
}

impl<'a, 'w> Model<'a, 'w> {
    pub(crate) fn new(h: &'a Hyperparameters<'w>) -> Self {
        Self {
            h,
            b: Builder::new(h.architecture, h.weights),
        }
    }

    /// Embeddings of the step's tokens, times `scale`.
    pub(crate) fn embed(&mut self, scale: f32) -> Result<ValueId, ProgramError> {
        let table = self
            .b
            .weight("token_embd.weight", &[self.h.vocab, self.h.width])?;
        let x = self.b.embed(table, scale)?;
        self.b.mark("embedding", x);
        Ok(x)
    }

    /// Final norm and output matrix over the wanted rows; the embedding table where the file has no matrix of its own.
    pub(crate) fn logits(&mut self, x: ValueId) -> Result<ValueId, ProgramError> {
        let x = self.b.gather(x)?;
        let x = self.rms_norm("output_norm", x)?;
        self.b.mark("final_norm", x);
        let name = if self.b.has("output.weight") {
            "output"
        } else {
            "token_embd"
        };
        self.linear(name, x, self.h.vocab)
    }

    /// RMS norm of whole rows by `{name}.weight`.
    pub(crate) fn rms_norm(&mut self, name: &str, x: ValueId) -> Result<ValueId, ProgramError> {
        let gain = self
            .b
            .weight(format!("{name}.weight"), &[self.b.width(x)])?;
        self.b.rms_norm(x, gain, self.h.rms_eps)
    }

    /// RMS norm of each head by `{name}.weight`.
    pub(crate) fn head_norm(
        &mut self,
        name: &str,
        x: ValueId,
        head_dim: usize,
    ) -> Result<ValueId, ProgramError> {
        let gain = self.b.weight(format!("{name}.weight"), &[head_dim])?;
        self.b.rms_norm_groups(x, gain, self.h.rms_eps, head_dim)
    }

    /// `{name}.weight`, and `{name}.bias` where the file has one, to `out` columns.
    pub(crate) fn linear(
        &mut self,
        name: &str,
        x: ValueId,
        out: usize,
    ) -> Result<ValueId, ProgramError> {
        let weight = self
            .b
            .weight(format!("{name}.weight"), &[out, self.b.width(x)])?;
        let bias = self.b.optional_weight(format!("{name}.bias"), &[out])?;
        self.b.linear(x, weight, bias)
    }

    /// Several linear layers that the file stores as one matrix, their rows one after the other: `{name}.weight` to columns
    /// of these widths.
    pub(crate) fn fused_linears<const PARTS: usize>(
        &mut self,
        name: &str,
        x: ValueId,
        widths: [usize; PARTS],
    ) -> Result<[ValueId; PARTS], ProgramError> {
        // Saturated sums match no tensor.
        let rows = widths
            .iter()
            .fold(0usize, |sum, width| sum.saturating_add(*width));
        let stored = [rows, self.b.width(x)];
        let mut first = 0usize;
        let mut outputs = [x; PARTS];
        for (output, width) in outputs.iter_mut().zip(widths) {
            let end = first.saturating_add(width);
            let weight = self
                .b
                .weight_rows(format!("{name}.weight"), stored, first..end)?;
            *output = self.b.linear(x, weight, None)?;
            first = end;
        }
        Ok(outputs)
    }

    /// Refuses a file without these biases of layer `layer`: for architectures that have them always.
    pub(crate) fn require_biases(&self, layer: usize, names: &[&str]) -> Result<(), ProgramError> {
        let mut names = names.iter().map(|name| format!("blk.{layer}.{name}.bias"));
        match names.find(|name| !self.b.has(name)) {
            Some(name) => Err(ProgramError::MissingWeight { name }),
            None => Ok(()),
        }
    }

    /// Whether a layer of a mixture has a plain feed-forward: by its tensors, since files don't say it otherwise.
    pub(crate) fn is_dense(&self, layer: usize) -> bool {
        self.b.has(&format!("blk.{layer}.ffn_gate.weight"))
    }

    /// `down(activation(gate(x)) * up(x))` of layer `layer`; a file without `ffn_gate` may have both in `ffn_up`.
    pub(crate) fn gated_feed_forward(
        &mut self,
        layer: usize,
        x: ValueId,
        activation: Activation,
    ) -> Result<ValueId, ProgramError> {
        let inner = self.h.feed_forward[layer];
        let names = ["ffn_gate", "ffn_up", "ffn_down"];
        let [gate, up, down] = names.map(|name| format!("blk.{layer}.{name}"));
        let stored = self.h.weights.tensor(&format!("{up}.weight"));
        let holds_both = stored.is_some_and(|up| up.rows() == inner.saturating_mul(2));
        if holds_both && !self.b.has(&format!("{gate}.weight")) {
            return self.fused_feed_forward(layer, x, activation);
        }
        self.gated_layer([&gate, &up, &down], x, inner, activation)
    }

    /// As [`gated_feed_forward`](Self::gated_feed_forward), gate and up in `ffn_up`.
    pub(crate) fn fused_feed_forward(
        &mut self,
        layer: usize,
        x: ValueId,
        activation: Activation,
    ) -> Result<ValueId, ProgramError> {
        let inner = self.h.feed_forward[layer];
        let [gate, up] = self.fused_linears(&format!("blk.{layer}.ffn_up"), x, [inner; 2])?;
        let x = self.b.gated(gate, up, activation)?;
        self.linear(&format!("blk.{layer}.ffn_down"), x, self.h.width)
    }

    /// `down(activation(gate(x)) * up(x))`, `inner` wide inside.
    pub(crate) fn gated_layer(
        &mut self,
        [gate, up, down]: [&str; 3],
        x: ValueId,
        inner: usize,
        activation: Activation,
    ) -> Result<ValueId, ProgramError> {
        let gate = self.linear(gate, x, inner)?;
        let up = self.linear(up, x, inner)?;
        let x = self.b.gated(gate, up, activation)?;
        self.linear(down, x, self.h.width)
    }

    /// Queries, keys and values of layer `layer`, by `attn_q`, `attn_k` and `attn_v`, or by one `attn_qkv`.
    pub(crate) fn queries_keys_values(
        &mut self,
        layer: usize,
        x: ValueId,
    ) -> Result<[ValueId; 3], ProgramError> {
        let h = self.h;
        let (heads, kv_heads) = (h.heads[layer], h.kv_heads[layer]);
        // Saturated products match no tensor.
        let widths = [
            heads.saturating_mul(h.key_dim),
            kv_heads.saturating_mul(h.key_dim),
            kv_heads.saturating_mul(h.value_dim),
        ];
        let fused = format!("blk.{layer}.attn_qkv");
        if self.b.has(&format!("{fused}.weight")) {
            return self.fused_linears(&fused, x, widths);
        }
        let [q, k, v] = widths;
        Ok([
            self.linear(&format!("blk.{layer}.attn_q"), x, q)?,
            self.linear(&format!("blk.{layer}.attn_k"), x, k)?,
            self.linear(&format!("blk.{layer}.attn_v"), x, v)?,
        ])
    }

    /// Grouped-query attention of layer `layer` (Ainslie et al. 2023, arXiv:2305.13245): turns queries and keys by their
    /// positions, attends, and leads the heads back to the width of the residual stream.
    pub(crate) fn rotary_attention(
        &mut self,
        layer: usize,
        qkv: [ValueId; 3],
        rotary: RopeId,
        window: Option<usize>,
    ) -> Result<ValueId, ProgramError> {
        let spec = AttentionSpec {
            heads: self.h.heads[layer],
            scale: 1.0 / (self.h.key_dim as f32).sqrt(),
            window,
            soft_cap: None,
        };
        self.rotary_attention_as(layer, qkv, rotary, spec)
    }

    /// As [`rotary_attention`](Self::rotary_attention), with scores made in another way.
    pub(crate) fn rotary_attention_as(
        &mut self,
        layer: usize,
        [q, k, v]: [ValueId; 3],
        rotary: RopeId,
        spec: AttentionSpec,
    ) -> Result<ValueId, ProgramError> {
        let h = self.h;
        let q = self.b.rope(q, rotary, h.key_dim)?;
        let k = self.b.rope(k, rotary, h.key_dim)?;
        self.mark_compared(layer, q, k);
        let cache = self.b.cache(CacheSpec {
            kv_heads: h.kv_heads[layer],
            key_dim: h.key_dim,
            value_dim: h.value_dim,
            values: CachedValues::Stored,
        });
        let x = self.b.attention([q, k, v], cache, spec)?;
        self.linear(&format!("blk.{layer}.attn_output"), x, h.width)
    }

    /// Marks what the attention of layer `layer` compares, as it goes into the scores.
    pub(crate) fn mark_compared(&mut self, layer: usize, queries: ValueId, keys: ValueId) {
        self.b.mark(format!("layer.{layer}.queries"), queries);
        self.b.mark(format!("layer.{layer}.keys"), keys);
    }

    pub(crate) fn finish(self, logits: ValueId) -> Result<Program, ProgramError> {
        self.b.finish(logits, self.h.vocab, self.h.context_length)
    }
}

/// Runs the construction of a program and puts the file's name before its errors.
pub(crate) fn build<'w>(
    h: &Hyperparameters<'w>,
    construct: impl FnOnce(Model<'_, 'w>) -> Result<Program, ProgramError>,
) -> Result<Program, ModelError> {
    construct(Model::new(h)).map_err(|cause| ModelError::Program {
        path: h.weights.path().into(),
        cause,
    })
}
