//! From a program to the kernels that run it: operations with their weights at hand, neighbours fused, buffers assigned.

use crate::kernels::{ActivationKind, activation_kind};
use backplane_program::{
    Activation, DeviceError, Op, Plan, Program, ProgramError, Rows, ValueId, WeightId,
};
use backplane_weights::{OwnedTensor, TensorType, Weights};
use std::ops::Range;

/// What one kernel of the list does.
pub(crate) enum Kernel {
    Embed {
        table: OwnedTensor,
        scale: f32,
        out: ValueId,
    },
    RmsNorm {
        x: ValueId,
        gain: Vec<f32>,
        eps: f32,
        out: ValueId,
    },
    /// Linear layers that read the same activations: these are quantised once, and all rows shared out together.
    Linears(Linears),
    Rope {
        x: ValueId,
        rope: usize,
        head_dim: usize,
        out: ValueId,
    },
    Attention(Attention),
    Gated {
        gate: ValueId,
        up: ValueId,
        activation: Activation,
        out: ValueId,
    },
    Add {
        a: ValueId,
        b: ValueId,
        out: ValueId,
    },
    Scale {
        x: ValueId,
        factor: f32,
        out: ValueId,
    },
    SoftCap {
        x: ValueId,
        cap: f32,
        out: ValueId,
    },
    Gather {
        x: ValueId,
        out: ValueId,
    },
}

/// Linear layers over one input.
pub(crate) struct Linears {
    pub(crate) x: ValueId,
    pub(crate) cols: usize,
    pub(crate) parts: Vec<Part>,
    pub(crate) chunks: Vec<Chunk>,
}

/// One of them.
pub(crate) struct Part {
    pub(crate) weight: MatrixRows,
    pub(crate) ty: TensorType,
    pub(crate) bias: Option<Vec<f32>>,
    pub(crate) out: ValueId,
    pub(crate) rows: usize,
    pub(crate) row_bytes: usize,
}

/// The rows of a stored matrix that a weight of the program stands for.
pub(crate) struct MatrixRows {
    tensor: OwnedTensor,
    bytes: Range<usize>,
}

impl MatrixRows {
    /// Their blocks, row by row.
    pub(crate) fn data(&self) -> &[u8] {
        &self.tensor.data()[self.bytes.clone()]
    }
}

/// Neighbouring rows of one part: what a thread takes at a time.
#[derive(Clone, Copy)]
pub(crate) struct Chunk {
    pub(crate) part: usize,
    pub(crate) row: usize,
    pub(crate) rows: usize,
}

/// An attention layer.
#[derive(Clone, Copy)]
pub(crate) struct Attention {
    pub(crate) q: ValueId,
    pub(crate) k: ValueId,
    /// `None` where the cache has them in the keys.
    pub(crate) v: Option<ValueId>,
    pub(crate) cache: usize,
    pub(crate) heads: usize,
    pub(crate) kv_heads: usize,
    pub(crate) key_dim: usize,
    pub(crate) value_dim: usize,
    pub(crate) scale: f32,
    pub(crate) window: Option<usize>,
    pub(crate) soft_cap: Option<f32>,
    pub(crate) out: ValueId,
}

impl Linears {
    pub(crate) fn wants(&self, kind: ActivationKind) -> bool {
        self.parts
            .iter()
            .any(|part| activation_kind(part.ty) == kind)
    }
}

impl Kernel {
    /// The values it writes.
    pub(crate) fn outputs(&self) -> impl Iterator<Item = ValueId> + '_ {
        let (one, many): (Option<ValueId>, &[Part]) = match self {
            Kernel::Embed { out, .. }
            | Kernel::RmsNorm { out, .. }
            | Kernel::Rope { out, .. }
            | Kernel::Attention(Attention { out, .. })
            | Kernel::Gated { out, .. }
            | Kernel::Add { out, .. }
            | Kernel::Scale { out, .. }
            | Kernel::SoftCap { out, .. }
            | Kernel::Gather { out, .. } => (Some(*out), &[]),
            Kernel::Linears(linears) => (None, &linears.parts),
        };
        one.into_iter().chain(many.iter().map(|part| part.out))
    }
}

/// Where the values lie in the arena, in floats.
pub(crate) struct Arena {
    /// By value. The logits have no place: they are written where the caller wants them.
    pub(crate) start: Vec<usize>,
    pub(crate) floats: usize,
}

impl Arena {
    pub(crate) fn new(
        program: &Program,
        plan: &Plan,
        tokens: usize,
        wanted: usize,
    ) -> Option<Self> {
        let mut widths = vec![0; plan.slots.len()];
        for (value, slot) in program
            .values
            .iter()
            .zip(&plan.slot_of)
            .enumerate()
            .filter(|(id, _)| *id != program.logits.0)
            .map(|(_, pair)| pair)
        {
            widths[*slot] = value.width.max(widths[*slot]);
        }
        let mut floats = 0usize;
        let mut starts = vec![];
        for (slot, width) in plan.slots.iter().zip(widths) {
            let rows = match slot.rows {
                Rows::Tokens => tokens,
                Rows::Wanted => wanted,
            };
            starts.push(floats);
            // Whole cache lines.
            floats = rows
                .checked_mul(width)?
                .checked_next_multiple_of(16)?
                .checked_add(floats)?;
        }
        Some(Self {
            start: plan.slot_of.iter().map(|slot| starts[*slot]).collect(),
            floats,
        })
    }
}

/// Bytes of weights that a thread takes at a time: small enough to share out evenly and to stay in the cache while a batch
/// passes over them, large enough for taking to cost nothing.
const CHUNK_BYTES: usize = 16 << 10;
/// Most chunks of one kernel, where that makes them larger.
const MOST_CHUNKS: usize = 1024;

/// Turns a checked program into kernels.
pub(crate) fn lower(
    program: &Program,
    plan: &Plan,
    weights: &Weights,
) -> Result<Vec<Kernel>, DeviceError> {
    let mut kernels = vec![];
    for op in &program.ops {
        let kernel = match *op {
            Op::Embed { table, scale, out } => Kernel::Embed {
                table: tensor(program, weights, table)?,
                scale,
                out,
            },
            Op::RmsNorm {
                x,
                weight,
                eps,
                out,
                ..
            } => Kernel::RmsNorm {
                x,
                gain: tensor(program, weights, weight)?.tensor().to_f32(),
                eps,
                out,
            },
            Op::Linear {
                x,
                weight,
                bias,
                out,
            } => {
                let part = part(program, weights, weight, bias, out)?;
                let collides = |other: &Part| plan.slot_of[other.out.0] == plan.slot_of[out.0];
                match kernels.last_mut() {
                    Some(Kernel::Linears(last))
                        if last.x == x && !last.parts.iter().any(collides) =>
                    {
                        last.parts.push(part)
                    }
                    _ => kernels.push(Kernel::Linears(Linears {
                        x,
                        cols: program.values[x.0].width,
                        parts: vec![part],
                        chunks: vec![],
                    })),
                }
                continue;
            }
            Op::Rope {
                x,
                rope,
                head_dim,
                out,
            } => Kernel::Rope {
                x,
                rope: rope.0,
                head_dim,
                out,
            },
            Op::Attention {
                q,
                k,
                v,
                cache,
                heads,
                scale,
                window,
                soft_cap,
                out,
            } => {
                let spec = program.caches[cache.0];
                let (kv_heads, key_dim, value_dim) = (spec.kv_heads, spec.key_dim, spec.value_dim);
                let cache = cache.0;
                Kernel::Attention(Attention {
                    q,
                    k,
                    v,
                    cache,
                    heads,
                    kv_heads,
                    key_dim,
                    value_dim,
                    scale,
                    window,
                    soft_cap,
                    out,
                })
            }
            Op::Gated {
                gate,
                up,
                activation,
                out,
            } => Kernel::Gated {
                gate,
                up,
                activation,
                out,
            },
            Op::Add { a, b, out } => Kernel::Add { a, b, out },
            Op::Scale { x, factor, out } => Kernel::Scale { x, factor, out },
            Op::SoftCap { x, cap, out } => Kernel::SoftCap { x, cap, out },
            Op::Gather { x, out } => Kernel::Gather { x, out },
            Op::HeadSlice { .. }
            | Op::HeadConcat { .. }
            | Op::HeadLinear { .. }
            | Op::Route { .. }
            | Op::Experts { .. } => {
                return Err(DeviceError::Unsupported {
                    device: "cpu".into(),
                    message: format!("operation {}", op.name()),
                });
            }
        };
        kernels.push(kernel);
    }
    for kernel in &mut kernels {
        if let Kernel::Linears(linears) = kernel {
            linears.chunks = chunks(&linears.parts);
        }
    }
    Ok(kernels)
}

fn chunks(parts: &[Part]) -> Vec<Chunk> {
    let total: usize = parts.iter().map(|part| part.rows * part.row_bytes).sum();
    let bytes = CHUNK_BYTES.max(total / MOST_CHUNKS);
    let mut chunks = vec![];
    for (index, part) in parts.iter().enumerate() {
        // A multiple of four, the most rows a kernel takes at once.
        let most = (bytes / part.row_bytes).next_multiple_of(4).max(4);
        let pieces = (0..part.rows).step_by(most);
        chunks.extend(pieces.map(|row| Chunk {
            part: index,
            row,
            rows: most.min(part.rows - row),
        }));
    }
    chunks
}

fn part(
    program: &Program,
    weights: &Weights,
    weight: WeightId,
    bias: Option<WeightId>,
    out: ValueId,
) -> Result<Part, DeviceError> {
    let declared = &program.weights[weight.0];
    let stored = tensor(program, weights, weight)?;
    let bias = bias
        .map(|bias| tensor(program, weights, bias))
        .transpose()?
        .map(|bias| bias.tensor().to_f32());
    let info = stored.info();
    let (ty, cols) = (info.ty, info.cols());
    let (first, rows) = (declared.first_row(), declared.shape[0]);
    let row_bytes = ty
        .row_bytes(cols)
        .filter(|bytes| *bytes > 0)
        .ok_or_else(|| DeviceError::Unsupported {
            device: "cpu".into(),
            message: format!(
                "{}: rows of {cols} values are no whole number of {ty} blocks",
                info.name
            ),
        })?;
    // Within the tensor: the program and its weights have been checked.
    let bytes = first * row_bytes..(first + rows) * row_bytes;
    let weight = MatrixRows {
        tensor: stored,
        bytes,
    };
    Ok(Part {
        weight,
        ty,
        bias,
        out,
        rows,
        row_bytes,
    })
}

fn tensor(program: &Program, weights: &Weights, id: WeightId) -> Result<OwnedTensor, DeviceError> {
    let name = &program.weights[id.0].name;
    weights
        .owned(name)
        .map_err(|_| ProgramError::MissingWeight { name: name.clone() }.into())
}
