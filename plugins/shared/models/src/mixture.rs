//! Mixtures of experts: what the metadata say of them, and the layer itself.

use crate::ModelError;
use crate::blocks::Model;
use crate::hyperparameters::Hyperparameters;
use backplane_program::{
    Activation, Expert, ExpertGroups, ProgramError, RouteSpec, Scoring, ValueId, WeightId,
};

/// How a model's tokens choose among its experts.
pub(crate) struct Mixture {
    pub(crate) experts: usize,
    pub(crate) used: usize,
    /// Inner width of an expert; where the metadata don't say, that of the layer's feed-forward.
    pub(crate) inner: Option<usize>,
    scoring: Scoring,
    groups: Option<ExpertGroups>,
    normalise: bool,
    scale: f32,
}

impl Mixture {
    /// Reads the metadata. `normalise` is what holds where they don't say whether weights add up to one.
    pub(crate) fn read(h: &Hyperparameters<'_>, normalise: bool) -> Result<Self, ModelError> {
        let experts = h.positive("expert_count")?;
        let used = h.positive("expert_used_count")?;
        if used > experts {
            let expected = format!("at most expert_count, {experts}");
            return Err(h.wrong("expert_used_count", used, expected));
        }
        let scoring = match h.meta().u32(&h.key("expert_gating_func"))? {
            None | Some(0 | 1) => Scoring::Softmax,
            Some(2) => Scoring::Sigmoid,
            Some(other) => {
                let expected = "1 for softmax or 2 for sigmoid";
                return Err(h.wrong("expert_gating_func", other, expected));
            }
        };
        let groups = groups(h, experts, used)?;
        if groups.is_some() && scoring == Scoring::Softmax {
            // DeepSeek V2 ranks groups by their best expert, V3 by their two best.
            let expected = "1: groups are known for sigmoid routing only";
            return Err(h.wrong(
                "expert_group_count",
                groups.map_or(0, |it| it.count),
                expected,
            ));
        }
        Ok(Self {
            experts,
            used,
            inner: h.optional_positive("expert_feed_forward_length")?,
            scoring,
            groups,
            normalise: h
                .meta()
                .bool(&h.key("expert_weights_norm"))?
                .unwrap_or(normalise),
            scale: h.optional_or_zero("expert_weights_scale")?.unwrap_or(1.0),
        })
    }

    /// For people, such as `2 of 8 experts by softmax, weights normalised`.
    pub(crate) fn describe(&self) -> String {
        let scoring = match self.scoring {
            Scoring::Softmax => "softmax",
            Scoring::Sigmoid => "sigmoid",
        };
        let mut text = format!("{} of {} experts by {scoring}", self.used, self.experts);
        if let Some(ExpertGroups { count, used }) = self.groups {
            text += &format!(" within {used} of {count} groups");
        }
        if self.normalise {
            text += ", weights normalised";
        }
        if self.scale != 1.0 {
            text += &format!(", times {}", self.scale);
        }
        text
    }
}

/// Groups out of which the experts are chosen; one group is none.
fn groups(
    h: &Hyperparameters<'_>,
    experts: usize,
    chosen: usize,
) -> Result<Option<ExpertGroups>, ModelError> {
    let count = match h.meta().usize(&h.key("expert_group_count"))? {
        None | Some(0 | 1) => return Ok(None),
        Some(count) => count,
    };
    if !experts.is_multiple_of(count) {
        let expected = format!("a divisor of expert_count, {experts}");
        return Err(h.wrong("expert_group_count", count, expected));
    }
    let used = h.positive("expert_group_used_count")?;
    if used > count {
        let expected = format!("at most expert_group_count, {count}");
        return Err(h.wrong("expert_group_used_count", used, expected));
    }
    let open = experts / count * used;
    if chosen > open {
        let expected = format!("at most {open}, the experts in {used} of {count} groups");
        return Err(h.wrong("expert_used_count", chosen, expected));
    }
    Ok(Some(ExpertGroups { count, used }))
}

impl Model<'_, '_> {
    /// The routed experts of layer `layer`: Shazeer et al. 2017, arXiv:1701.06538, as gated feed-forward layers.
    /// `blk.N.exp_probs_b.bias`, where the file has it, corrects the choice. Some files have the gates and ups of all experts
    /// as one tensor, in each matrix first the gate's rows.
    pub(crate) fn mixture(
        &mut self,
        layer: usize,
        x: ValueId,
        mixture: &Mixture,
    ) -> Result<ValueId, ProgramError> {
        let inner = mixture.inner.unwrap_or(self.h.feed_forward[layer]);
        let logits = self.linear(&format!("blk.{layer}.ffn_gate_inp"), x, mixture.experts)?;
        let bias = format!("blk.{layer}.exp_probs_b.bias");
        let spec = RouteSpec {
            scoring: mixture.scoring,
            bias: self.b.optional_weight(bias, &[mixture.experts])?,
            groups: mixture.groups,
            used: mixture.used,
            normalise: mixture.normalise,
            scale: mixture.scale,
        };
        let routing = self.b.route(logits, spec)?;
        let (width, n) = (self.h.width, mixture.experts);
        let fused = format!("blk.{layer}.ffn_gate_up_exps.weight");
        let [gates, ups] = if self.b.has(&fused) {
            // Saturated sums match no tensor.
            let (both, b) = (inner.saturating_mul(2), &mut self.b);
            let mut part = |rows| b.stacked_weight_rows(&fused, [n, both, width], rows);
            [part(0..inner)?, part(inner..both)?]
        } else {
            let shape = [n, inner, width];
            let gates = self.expert_matrices(layer, "ffn_gate", shape)?;
            [gates, self.expert_matrices(layer, "ffn_up", shape)?]
        };
        let downs = self.expert_matrices(layer, "ffn_down", [n, width, inner])?;
        let experts = gates
            .into_iter()
            .zip(ups)
            .zip(downs)
            .map(|((gate, up), down)| Expert { gate, up, down })
            .collect();
        self.b.experts(x, routing, experts, Activation::Silu)
    }

    /// One matrix of each expert: stored as one tensor `blk.N.NAME_exps.weight`, or singly as `blk.N.NAME.E.weight`.
    fn expert_matrices(
        &mut self,
        layer: usize,
        name: &str,
        [experts, rows, columns]: [usize; 3],
    ) -> Result<Vec<WeightId>, ProgramError> {
        let single = |expert: usize| format!("blk.{layer}.{name}.{expert}.weight");
        let stacked = format!("blk.{layer}.{name}_exps.weight");
        if self.b.has(&stacked) || !self.b.has(&single(0)) {
            return self.b.stacked_weights(&stacked, [experts, rows, columns]);
        }
        (0..experts)
            .map(|expert| self.b.weight(single(expert), &[rows, columns]))
            .collect()
    }

    /// An expert that sees every token, `inner` wide inside: `blk.N.ffn_gate_shexp.weight` and so on.
    pub(crate) fn shared_expert(
        &mut self,
        layer: usize,
        x: ValueId,
        inner: usize,
    ) -> Result<ValueId, ProgramError> {
        let names = ["ffn_gate_shexp", "ffn_up_shexp", "ffn_down_shexp"];
        let [gate, up, down] = names.map(|name| format!("blk.{layer}.{name}"));
        self.gated_layer([&gate, &up, &down], x, inner, Activation::Silu)
    }
}
