//! From the hub's tensors to ours, by the table of a family: every tensor that should be there is, in the shape that the
//! configuration means, and nothing else is.

use super::config::escaped;
use super::families::Family;
use super::plan::{Plan, Sizes};
use super::table::{Dim, EMBEDDING, FUSED_GATE, FUSED_QUERIES, HEAD, Row, STACKED, Take, When};
use crate::ModelError;
use backplane_weights::safetensors::StoredTensor;
use backplane_weights::{Assembly, Checkpoint, TensorType};
use std::collections::HashSet;

/// What stands before the decoder's tensors and before the head: as usual, of a decoder without a head, and within a model
/// that also sees, in its older and newer layout.
const PREFIXES: &[Prefix] = &[
    Prefix {
        model: "model.",
        head: "",
    },
    Prefix {
        model: "",
        head: "",
    },
    Prefix {
        model: "language_model.model.",
        head: "language_model.",
    },
    Prefix {
        model: "model.language_model.",
        head: "",
    },
];

#[derive(Clone, Copy)]
struct Prefix {
    model: &'static str,
    head: &'static str,
}

/// Ends of the names of tensors that follow from the configuration anyway.
const REDUNDANT: &[&str] = &["rotary_emb.inv_freq"];

/// The tensors of one checkpoint.
struct Resolver<'a> {
    checkpoint: &'a Checkpoint,
    family: &'a Family,
    sizes: &'a Sizes,
    prefix: Prefix,
    /// Which of the optional forms this checkpoint has.
    head: bool,
    fused_queries: bool,
    fused_gate: bool,
    stacked_experts: bool,
    /// Names that are used, as the hub has them.
    used: HashSet<String>,
    /// The name of each tensor made, and the hub's of what it is made of.
    names: Names,
}

/// Names of tensors here, each with the hub's.
pub(super) type Names = Vec<(String, String)>;

/// Puts the tensors of a family into an assembly, and notes what is left out. Returns the type that holds most bytes, and
/// for each tensor its name here and the hub's.
pub(super) fn resolve(
    checkpoint: &Checkpoint,
    family: &Family,
    plan: &mut Plan,
    assembly: &mut Assembly,
) -> Result<(Option<TensorType>, Names), ModelError> {
    let has = |prefix: &Prefix| checkpoint.tensor(&prefix.name(EMBEDDING, 0, 0)).is_some();
    let prefix = *PREFIXES
        .iter()
        .find(|prefix| has(prefix))
        .unwrap_or(&PREFIXES[0]);
    let head = prefix.name(HEAD, 0, 0);
    let has_head = checkpoint.tensor(&head).is_some();
    if plan.sizes.tied && has_head {
        plan.notes.push(format!(
            "tensor {head} is used as it is, though key tie_word_embeddings says that it is the embedding"
        ));
    }
    let sizes = plan.sizes.clone();
    let mut resolver = Resolver {
        checkpoint,
        family,
        sizes: &sizes,
        prefix,
        head: !sizes.tied || has_head,
        fused_queries: any(checkpoint, FUSED_QUERIES),
        fused_gate: any(checkpoint, FUSED_GATE),
        stacked_experts: any(checkpoint, STACKED),
        used: HashSet::new(),
        names: Vec::new(),
    };
    for row in family.tensors.iter().copied().flatten() {
        resolver.add_all(row, assembly)?;
    }
    resolver.leave_out(plan)?;
    Ok((resolver.dominant_type(), resolver.names))
}

/// The two parts that [`Take::KeysAndValues`] gives.
const KEYS_AND_VALUES: [&str; 2] = ["k", "v"];

fn latent_name(layer: u32, part: &str) -> String {
    format!("blk.{layer}.attn_{part}_b.weight")
}

/// Whether any layer has a tensor of this kind.
fn any(checkpoint: &Checkpoint, pattern: &str) -> bool {
    let end = pattern.rsplit("{layer}").next().unwrap_or(pattern);
    checkpoint
        .tensors()
        .any(|tensor| tensor.name.ends_with(end))
}

impl Prefix {
    fn name(&self, pattern: &str, layer: u32, expert: u32) -> String {
        pattern
            .replace("{model}", self.model)
            .replace("{head}", self.head)
            .replace("{layer}", &layer.to_string())
            .replace("{expert}", &expert.to_string())
    }
}

impl Resolver<'_> {
    /// The tensors of a row: one, one for each layer that has it, or one for each expert of those.
    fn add_all(&mut self, row: &Row, assembly: &mut Assembly) -> Result<(), ModelError> {
        let count = |placeholder: &str, count: u32| match row.hub.contains(placeholder) {
            true => count,
            false => 1,
        };
        let layers = count("{layer}", self.sizes.layers);
        let experts = count("{expert}", self.sizes.experts);
        for layer in (0..layers)
            .filter(|layer| self.has(row.when, *layer))
            .collect::<Vec<_>>()
        {
            for expert in 0..experts {
                self.add(row, layer, expert, assembly)?;
            }
        }
        Ok(())
    }

    fn has(&self, when: When, layer: u32) -> bool {
        let s = self.sizes;
        let dense = s.is_dense(layer);
        match when {
            When::Always => true,
            When::Head => self.head,
            When::QueryKeyValueBias => s.query_key_value_bias,
            When::AttentionOutputBias => s.attention_output_bias,
            When::FeedForwardBias => s.feed_forward_bias,
            When::SplitQueries => !self.fused_queries,
            When::FusedQueries => self.fused_queries,
            When::SplitGate => dense && !self.fused_gate,
            When::FusedGate => dense && self.fused_gate,
            When::Dense => dense,
            When::Experts => !dense,
            When::SingleExperts => !dense && !self.stacked_experts,
            When::StackedExperts => !dense && self.stacked_experts,
            When::SharedExperts => !dense && s.shared_width > 0,
            When::QueryRank => s.latent.query_rank.is_some(),
            When::NoQueryRank => s.latent.query_rank.is_none(),
        }
    }

    fn add(
        &mut self,
        row: &Row,
        layer: u32,
        expert: u32,
        assembly: &mut Assembly,
    ) -> Result<(), ModelError> {
        let hub = self.prefix.name(row.hub, layer, expert);
        let ours = self.prefix.name(row.ours, layer, expert);
        let tensor = self.require(row, &hub)?;
        let made = match row.take {
            Take::KeysAndValues => KEYS_AND_VALUES
                .map(|part| latent_name(layer, part))
                .to_vec(),
            Take::AsStored | Take::PlusOne => vec![ours.clone()],
        };
        match row.take {
            Take::AsStored => {
                assembly.map(ours, hub.as_str());
            }
            Take::PlusOne => {
                let gains = tensor.to_f32()?.into_iter().map(|gain| gain + 1.0);
                let bytes = gains.flat_map(f32::to_le_bytes).collect();
                assembly.own(ours, TensorType::F32, tensor.shape, bytes);
            }
            Take::KeysAndValues => self.cut(tensor, layer, assembly)?,
        }
        let names = made.into_iter().map(|name| (name, hub.clone()));
        self.names.extend(names);
        self.used.insert(hub);
        Ok(())
    }

    /// The checkpoint's tensor, in the shape that the row says.
    fn require(&self, row: &Row, hub: &str) -> Result<StoredTensor<'_>, ModelError> {
        let lengths: Vec<usize> = row.shape.iter().map(|dim| dim.of(self.sizes)).collect();
        let keys = |dims: &[Dim]| {
            dims.iter()
                .map(|dim| dim.keys())
                .collect::<Vec<_>>()
                .join(", ")
        };
        let expected = || format!("{lengths:?}, [{}] of config.json", keys(row.shape));
        let tensor = self
            .checkpoint
            .tensor(hub)
            .ok_or_else(|| ModelError::Tensor {
                path: self.checkpoint.path().into(),
                tensor: escaped(hub),
                found: "no such tensor".into(),
                expected: expected(),
            })?;
        tensor.require_type()?;
        if tensor.shape != lengths {
            return Err(ModelError::Tensor {
                path: tensor.file.into(),
                tensor: escaped(hub),
                found: format!("{:?}", tensor.shape),
                expected: expected(),
            });
        }
        Ok(tensor)
    }

    /// [`Take::KeysAndValues`]. For each head the matrix has `plain` rows that lead to its key, then `value` rows that lead to
    /// its value, each `[rank]`.
    fn cut(
        &self,
        tensor: StoredTensor<'_>,
        layer: u32,
        assembly: &mut Assembly,
    ) -> Result<(), ModelError> {
        let ty = tensor.require_type()?;
        let size = ty.block_bytes();
        let latent = &self.sizes.latent;
        let [heads, rank, plain, value] = [
            self.sizes.heads,
            latent.rank,
            latent.plain_dim,
            latent.value_dim,
        ]
        .map(|length| length as usize);
        let mut keys = Vec::with_capacity(heads * rank * plain * size);
        let mut values = Vec::with_capacity(heads * value * rank * size);
        for head in tensor.data.chunks_exact((plain + value) * rank * size) {
            let (key, head_values) = head.split_at(plain * rank * size);
            for column in 0..rank {
                for row in key.chunks_exact(rank * size) {
                    keys.extend_from_slice(&row[column * size..][..size]);
                }
            }
            values.extend_from_slice(head_values);
        }
        let [key_name, value_name] = KEYS_AND_VALUES.map(|part| latent_name(layer, part));
        assembly.own(key_name, ty, &[heads, rank, plain], keys);
        assembly.own(value_name, ty, &[heads, value, rank], values);
        Ok(())
    }

    /// Notes or refuses the checkpoint's other tensors.
    fn leave_out(&self, plan: &mut Plan) -> Result<(), ModelError> {
        let (mut elsewhere, mut predicting) = (0usize, 0usize);
        let first = self.sizes.layers;
        let end = first.saturating_add(self.sizes.predicting_layers);
        for tensor in self.checkpoint.tensors() {
            let name = tensor.name;
            if self.used.contains(name) || REDUNDANT.iter().any(|end| name.ends_with(end)) {
                continue;
            }
            if self
                .family
                .leaves_out
                .iter()
                .any(|start| name.starts_with(start))
            {
                elsewhere += 1;
            } else if self
                .layer(name)
                .is_some_and(|layer| (first..end).contains(&layer))
            {
                predicting += 1;
            } else {
                let family = self.family.model_type;
                return Err(ModelError::unused_tensor(tensor.file, name, family));
            }
        }
        if elsewhere > 0 {
            let starts = self.family.leaves_out.join(", ");
            plan.notes.push(format!(
                "{elsewhere} tensors that begin with one of {starts} are left out: only text is run"
            ));
        }
        if predicting > 0 {
            plan.notes.push(format!(
                "{predicting} tensors of layers {first} and on, which predict further tokens, are left out"
            ));
        }
        Ok(())
    }

    /// The layer that a tensor's name says it belongs to.
    fn layer(&self, name: &str) -> Option<u32> {
        let rest = name
            .strip_prefix(self.prefix.model)?
            .strip_prefix("layers.")?;
        rest.split('.').next()?.parse().ok()
    }

    fn dominant_type(&self) -> Option<TensorType> {
        let bytes = |ty: TensorType| -> usize {
            let tensors = self
                .used
                .iter()
                .filter_map(|name| self.checkpoint.tensor(name));
            let of_type = tensors.filter(|tensor| tensor.dtype.ty() == Some(ty));
            of_type.map(|tensor| tensor.data.len()).sum()
        };
        [TensorType::F32, TensorType::F16, TensorType::BF16]
            .into_iter()
            .max_by_key(|ty| bytes(*ty))
    }
}
