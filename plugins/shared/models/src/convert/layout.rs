//! Which tensors a file has, and out of which rows of the model's each is made.

use crate::hyperparameters::Hyperparameters;
use crate::{Architecture, ModelError};
use backplane_weights::quantize::{changes, destination};
use backplane_weights::{Format, TensorInfo, TensorType, Weights};
use std::ops::Range;

/// A tensor of the file.
pub(super) struct Output {
    /// Name, shape, and the type it would have if nothing were quantised.
    pub(super) info: TensorInfo,
    /// The type that it gets.
    pub(super) to: TensorType,
    /// What it is made of, one after the other.
    pub(super) pieces: Vec<Piece>,
}

impl Output {
    pub(super) fn bytes(&self) -> usize {
        bytes(&self.info.shape, self.to)
    }
}

/// Some rows of a tensor of the model.
pub(super) struct Piece {
    pub(super) source: String,
    /// Rows; of a vector, its elements.
    pub(super) rows: Range<usize>,
    pub(super) order: Order,
}

/// The order of a piece's rows in the file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Order {
    AsStored,
    Pairs(Pairs),
}

/// Rows that lead to heads of which some elements are turned in pairs. The model has the first elements of all pairs and then
/// the second ones, the file has pairs side by side.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Pairs {
    /// Elements of a head.
    pub(super) head: usize,
    /// The first that is turned, and how many are.
    pub(super) first: usize,
    pub(super) turned: usize,
}

impl Pairs {
    /// Which of the model's rows is row `row` of the file.
    pub(super) fn stored(self, row: usize) -> usize {
        let at = row % self.head;
        match at.checked_sub(self.first) {
            Some(turned) if turned < self.turned => {
                row - at + self.first + turned % 2 * (self.turned / 2) + turned / 2
            }
            _ => row,
        }
    }
}

impl Piece {
    /// All of a tensor.
    fn whole(info: &TensorInfo, order: Order) -> Self {
        Piece {
            source: info.name.clone(),
            rows: 0..rows(info),
            order,
        }
    }

    /// The piece as a matrix of its own, out of the description of its tensor.
    pub(super) fn view(&self, stored: &TensorInfo) -> TensorInfo {
        let cols = stored.rows() * stored.cols() / rows(stored);
        let mut info = stored.clone();
        info.shape = vec![self.rows.len(), cols];
        info.bytes = bytes(&info.shape, stored.ty);
        info
    }
}

/// Rows of a tensor; of a vector of plain numbers, its elements.
fn rows(info: &TensorInfo) -> usize {
    if info.shape.len() == 1 && info.ty.block_elems() == 1 {
        info.cols()
    } else {
        info.rows()
    }
}

/// Bytes of a tensor whose rows are whole blocks.
pub(super) fn bytes(shape: &[usize], ty: TensorType) -> usize {
    let (cols, outer) = shape.split_last().unwrap_or((&1, &[]));
    let row = ty.row_bytes(*cols).unwrap_or(0);
    outer
        .iter()
        .fold(row, |bytes, length| bytes.saturating_mul(*length))
}

/// All tensors of the file, in the model's order.
pub(super) fn outputs(
    weights: &Weights,
    quantize: Option<TensorType>,
) -> Result<Vec<Output>, ModelError> {
    let assembled = match weights.format() {
        Format::Gguf => None,
        Format::Safetensors => Some(Assembled::read(weights)?),
    };
    let mut outputs = Vec::new();
    for info in weights.tensors() {
        if let Some(expert) = SingleExpert::parse(&info.name) {
            if expert.number == 0 {
                outputs.push(stacked(weights, info, &expert)?);
            } else {
                expert.require_first(weights, info)?;
            }
            continue;
        }
        let split = match &assembled {
            Some(assembled) => match assembled.joined(info)? {
                Some(joined) => Some(joined),
                None => assembled.split(info)?,
            },
            None => None,
        };
        match split {
            Some(parts) => outputs.extend(parts),
            None => {
                let order = match &assembled {
                    Some(assembled) => assembled.order(info),
                    None => Order::AsStored,
                };
                outputs.push(output(info.clone(), vec![Piece::whole(info, order)]));
            }
        }
    }
    for output in &mut outputs {
        if let Some(ty) = quantize {
            output.to = destination(&output.info, ty).or(output.to);
        }
    }
    Ok(outputs)
}

/// A tensor as it is when nothing is quantised: vectors, routers and tables are F32 where they are floats, since GGUF's readers
/// compute with them as they are.
fn output(info: TensorInfo, pieces: Vec<Piece>) -> Output {
    let short = matches!(info.ty, TensorType::F16 | TensorType::BF16);
    let to = if short && !changes(&info) {
        TensorType::F32
    } else {
        info.ty
    };
    Output { info, to, pieces }
}

/// The name of one expert's matrix that is stored singly.
struct SingleExpert<'a> {
    layer: &'a str,
    part: &'a str,
    number: usize,
}

impl<'a> SingleExpert<'a> {
    fn parse(name: &'a str) -> Option<Self> {
        let parts: Vec<&str> = name.split('.').collect();
        let [
            "blk",
            layer,
            part @ ("ffn_gate" | "ffn_up" | "ffn_down"),
            number,
            "weight",
        ] = parts[..]
        else {
            return None;
        };
        let number = number.parse().ok()?;
        Some(Self {
            layer,
            part,
            number,
        })
    }

    fn name(&self, number: usize) -> String {
        format!("blk.{}.{}.{number}.weight", self.layer, self.part)
    }

    /// Refuses an expert that has none before it: no stack would have it.
    fn require_first(&self, weights: &Weights, info: &TensorInfo) -> Result<(), ModelError> {
        let before = self.name(self.number - 1);
        match weights.tensor(&before) {
            Some(_) => Ok(()),
            None => Err(ModelError::Tensor {
                path: weights.path().into(),
                tensor: info.name.clone(),
                found: format!("no tensor {before}"),
                expected: "experts numbered from 0, without a gap".into(),
            }),
        }
    }
}

/// The gates of all experts and their ups, out of a tensor `[experts, 2 * inner, width]` that has for each first the gate.
fn unfused_experts(info: &TensorInfo, part: &str) -> Vec<Output> {
    let [experts, inner] = [info.shape[0], info.shape[1] / 2];
    let cut = |(which, name): (usize, &str)| {
        let mut cut = info.clone();
        cut.name = info.name.replacen(part, name, 1);
        cut.shape[1] = inner;
        cut.bytes = bytes(&cut.shape, cut.ty);
        let pieces = (0..experts).map(|expert| {
            let first = (2 * expert + which) * inner;
            Piece {
                source: info.name.clone(),
                rows: first..first + inner,
                order: Order::AsStored,
            }
        });
        output(cut, pieces.collect())
    };
    let parts = ["ffn_gate_exps", "ffn_up_exps"];
    parts.into_iter().enumerate().map(cut).collect()
}

/// All experts' matrices of a kind, one after the other, as one tensor.
fn stacked(
    weights: &Weights,
    first: &TensorInfo,
    expert: &SingleExpert<'_>,
) -> Result<Output, ModelError> {
    let mut pieces = Vec::new();
    while let Some(tensor) = weights.tensor(&expert.name(pieces.len())) {
        if (&tensor.info.shape, tensor.info.ty) != (&first.shape, first.ty) {
            let described = |info: &TensorInfo| format!("{:?} in {}", info.shape, info.ty);
            return Err(ModelError::Tensor {
                path: weights.path().into(),
                tensor: tensor.info.name.clone(),
                found: described(tensor.info),
                expected: format!("{}, as expert 0 has", described(first)),
            });
        }
        pieces.push(Piece::whole(tensor.info, Order::AsStored));
    }
    let mut info = first.clone();
    info.name = format!("blk.{}.{}_exps.weight", expert.layer, expert.part);
    info.shape.insert(0, pieces.len());
    info.bytes = first.bytes.saturating_mul(pieces.len());
    Ok(output(info, pieces))
}

/// Says that the elements of rotated pairs lie half a head apart; see [`hub`](crate::hub).
const ROPE_STYLE: &str = "backplane.rope.style";

/// What an assembled model says of its own conventions.
struct Assembled<'w> {
    h: Hyperparameters<'w>,
    /// Whether the elements of rotated pairs lie half a head apart where GGUF has them side by side.
    halves: bool,
}

impl<'w> Assembled<'w> {
    fn read(weights: &'w Weights) -> Result<Self, ModelError> {
        let architecture = Architecture::of(weights)?;
        let h = Hyperparameters::read(architecture.name, weights, None)?;
        let halves = h.meta().str(ROPE_STYLE)?.is_some();
        Ok(Self { h, halves })
    }

    /// The order of a tensor's rows in the file.
    fn order(&self, info: &TensorInfo) -> Order {
        match layer_part(&info.name) {
            Some((_, part)) if self.halves => self.pairs(part),
            _ => Order::AsStored,
        }
    }

    fn pairs(&self, part: &str) -> Order {
        let h = &self.h;
        let size = |name: &str| h.meta().usize(&h.key(name)).ok().flatten().unwrap_or(0);
        let pairs = match (h.architecture, part) {
            ("deepseek2", "attn_q" | "attn_q_b") => {
                let head = size("attention.key_length_mla");
                (head, head.saturating_sub(h.rotary_dim))
            }
            ("deepseek2", "attn_kv_a_mqa") => (h.key_dim, h.key_dim - h.rotary_dim),
            ("deepseek2", _) => return Order::AsStored,
            (_, "attn_q" | "attn_k") => (h.key_dim, 0),
            _ => return Order::AsStored,
        };
        let (head, first) = pairs;
        Order::Pairs(Pairs {
            head: head.max(1),
            first,
            turned: h.rotary_dim,
        })
    }

    /// What Phi-3 has as one tensor where the model has parts: all of it in place of the first, nothing in place of the others.
    fn joined(&self, info: &TensorInfo) -> Result<Option<Vec<Output>>, ModelError> {
        const JOINED: [(&str, &[&str]); 2] = [
            ("attn_qkv", &["attn_q", "attn_k", "attn_v"]),
            ("ffn_up", &["ffn_gate", "ffn_up"]),
        ];
        let Some((_, part)) = layer_part(&info.name).filter(|_| self.h.architecture == "phi3")
        else {
            return Ok(None);
        };
        let Some((whole, names)) = JOINED.iter().find(|(_, names)| names.contains(&part)) else {
            return Ok(None);
        };
        let weights = self.h.weights;
        let parts: Option<Vec<_>> = names
            .iter()
            .map(|name| weights.tensor(&info.name.replacen(part, name, 1)))
            .collect();
        let Some(parts) = parts else { return Ok(None) };
        if part != names[0] {
            return Ok(Some(vec![]));
        }
        let mut joined = info.clone();
        joined.name = info.name.replacen(part, whole, 1);
        joined.shape[0] = parts.iter().map(|part| part.info.shape[0]).sum();
        joined.bytes = parts.iter().map(|part| part.info.bytes).sum();
        if let Some(other) = parts
            .iter()
            .find(|other| (other.info.ty, &other.info.shape[1..]) != (info.ty, &info.shape[1..]))
        {
            return Err(ModelError::Tensor {
                path: weights.path().into(),
                tensor: other.info.name.clone(),
                found: format!("{:?} in {}", other.info.shape, other.info.ty),
                expected: format!("rows as of {}, {:?} in {}", info.name, info.shape, info.ty),
            });
        }
        let pieces = parts
            .iter()
            .map(|part| Piece::whole(part.info, Order::AsStored));
        Ok(Some(vec![output(joined, pieces.collect())]))
    }

    /// The tensors that the file has in place of one that is several in one. Phi-3's are as the checkpoint has them.
    fn split(&self, info: &TensorInfo) -> Result<Option<Vec<Output>>, ModelError> {
        let h = &self.h;
        let Some((layer, part)) = layer_part(&info.name).filter(|_| h.architecture != "phi3")
        else {
            return Ok(None);
        };
        let Some(layer) = layer
            .parse::<usize>()
            .ok()
            .filter(|layer| *layer < h.layers)
        else {
            return Ok(None);
        };
        if part == "ffn_gate_up_exps" && info.shape.len() == 3 {
            return Ok(Some(unfused_experts(info, part)));
        }
        let gate = format!("blk.{layer}.ffn_gate.weight");
        let parts: Vec<(&str, usize)> = match part {
            "attn_qkv" => vec![
                ("attn_q", h.heads[layer].saturating_mul(h.key_dim)),
                ("attn_k", h.kv_heads[layer].saturating_mul(h.key_dim)),
                ("attn_v", h.kv_heads[layer].saturating_mul(h.value_dim)),
            ],
            "ffn_up" if h.weights.tensor(&gate).is_none() => {
                vec![("ffn_gate", rows(info) / 2), ("ffn_up", rows(info) / 2)]
            }
            _ => return Ok(None),
        };
        let wanted = parts
            .iter()
            .fold(0_usize, |sum, (_, rows)| sum.saturating_add(*rows));
        if wanted != rows(info) {
            return Err(ModelError::Tensor {
                path: h.weights.path().into(),
                tensor: info.name.clone(),
                found: format!("{} rows", rows(info)),
                expected: format!("{wanted}, as the metadata say"),
            });
        }
        let mut start = 0;
        let cut = |(name, count): (&str, usize)| {
            let mut cut = info.clone();
            cut.name = info.name.replacen(part, name, 1);
            match cut.shape.len() {
                1 => cut.shape = vec![count],
                _ => cut.shape[0] = count,
            }
            cut.bytes = bytes(&cut.shape, cut.ty);
            let piece = Piece {
                source: info.name.clone(),
                rows: start..start + count,
                order: if self.halves {
                    self.pairs(name)
                } else {
                    Order::AsStored
                },
            };
            start += count;
            output(cut, vec![piece])
        };
        Ok(Some(parts.into_iter().map(cut).collect()))
    }
}

/// `N` and `PART` of `blk.N.PART.weight` or `.bias`.
fn layer_part(name: &str) -> Option<(&str, &str)> {
    let parts: Vec<&str> = name.split('.').collect();
    match parts[..] {
        ["blk", layer, part, "weight" | "bias"] => Some((layer, part)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs_come_side_by_side_and_the_rest_stays() {
        let rows = |pairs: Pairs, count| -> Vec<usize> {
            (0..count).map(|row| pairs.stored(row)).collect()
        };
        let whole = Pairs {
            head: 6,
            first: 0,
            turned: 6,
        };
        assert_eq!(rows(whole, 12), [0, 3, 1, 4, 2, 5, 6, 9, 7, 10, 8, 11]);
        let partly = Pairs {
            head: 5,
            first: 0,
            turned: 4,
        };
        assert_eq!(rows(partly, 10), [0, 2, 1, 3, 4, 5, 7, 6, 8, 9]);
        let latent = Pairs {
            head: 6,
            first: 2,
            turned: 4,
        };
        assert_eq!(rows(latent, 12), [0, 1, 2, 4, 3, 5, 6, 7, 8, 10, 9, 11]);
    }

    #[test]
    fn names_of_single_experts_are_told_from_others() {
        let parsed = SingleExpert::parse("blk.3.ffn_up.12.weight").unwrap();
        assert_eq!(
            (parsed.layer, parsed.part, parsed.number),
            ("3", "ffn_up", 12)
        );
        for name in [
            "blk.3.ffn_up.weight",
            "blk.3.ffn_up_exps.weight",
            "blk.3.ffn_up.x.weight",
            "blk.0.attn_q.0.weight",
        ] {
            assert!(SingleExpert::parse(name).is_none(), "{name}");
        }
    }
}
