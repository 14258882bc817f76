//! From a program to the kernels that run it: operations with their weights at hand, neighbours fused, buffers assigned.

mod rows;

use backplane_program::{
    Activation, DeviceError, ExpertGroups, Op, Plan, Program, ProgramError, Rows, Scoring, ValueId,
    WeightId,
};
use backplane_weights::{OwnedTensor, TensorType, Weights};
use std::ops::Range;

pub(crate) use rows::RowKernel;

/// What one kernel of the list does.
pub(crate) enum Kernel {
    /// Kernels whose rows don't need each other, one after the other for each row.
    Rows(Vec<RowKernel>),
    /// Linear layers that read the same activations: these are quantised once, by a row kernel before them, and all rows shared out
    /// together.
    Linears(Linears),
    Attention(Attention),
    HeadLinear(HeadLinear),
    Route(Route),
    Experts(Experts),
}

impl From<RowKernel> for Kernel {
    fn from(row: RowKernel) -> Self {
        Self::Rows(vec![row])
    }
}

/// Linear layers over one input.
pub(crate) struct Linears {
    pub(crate) x: ValueId,
    pub(crate) parts: Vec<Part>,
    pub(crate) chunks: Vec<Chunk>,
}

/// One of them.
pub(crate) struct Part {
    pub(crate) matrix: Matrix,
    pub(crate) bias: Option<Vec<f32>>,
    pub(crate) out: ValueId,
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

/// A matrix for each head.
pub(crate) struct HeadLinear {
    pub(crate) x: ValueId,
    pub(crate) heads: usize,
    /// Those of all heads, one after the other.
    pub(crate) matrix: Matrix,
    /// Of one head.
    pub(crate) chunks: Vec<Chunk>,
    pub(crate) out: ValueId,
}

/// The choice of experts.
pub(crate) struct Route {
    pub(crate) x: ValueId,
    pub(crate) scoring: Scoring,
    pub(crate) bias: Option<Vec<f32>>,
    pub(crate) groups: Option<ExpertGroups>,
    pub(crate) used: usize,
    pub(crate) normalise: bool,
    pub(crate) scale: f32,
    pub(crate) out: ValueId,
}

/// A mixture of experts.
pub(crate) struct Experts {
    pub(crate) x: ValueId,
    pub(crate) routing: ValueId,
    pub(crate) experts: Vec<Expert>,
    /// Most experts that a row has.
    pub(crate) used: usize,
    pub(crate) inner: usize,
    pub(crate) activation: Activation,
    pub(crate) out: ValueId,
}

/// One of its experts.
pub(crate) struct Expert {
    /// Gate and up.
    pub(crate) first: [Matrix; 2],
    pub(crate) first_chunks: Vec<Chunk>,
    pub(crate) down: Matrix,
    pub(crate) down_chunks: Vec<Chunk>,
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

/// Bytes of weights that a thread takes at a time, at least and at most: large enough to be read in several places far from each
/// other, small enough to stay in the cache while a batch passes over them.
const CHUNK_BYTES: [usize; 2] = [16 << 10, 256 << 10];
/// Chunks for each thread, where that leaves them large enough: threads are not equally fast.
const CHUNKS_EACH: usize = 4;
/// Rows of a chunk are a multiple of this.
const CHUNK_ROWS: usize = 32;
/// Most chunks of one kernel, where that makes them larger.
const MOST_CHUNKS: usize = 1024;

/// Turns a checked program into kernels.
pub(crate) fn lower(
    program: &Program,
    plan: &Plan,
    weights: &Weights,
    threads: usize,
) -> Result<Vec<Kernel>, DeviceError> {
    let mut kernels = vec![];
    for op in &program.ops {
        let kernel: Kernel = match *op {
            Op::Embed { table, scale, out } => RowKernel::Embed {
                table: tensor(program, weights, table)?,
                scale,
                out,
            }
            .into(),
            Op::RmsNorm {
                x,
                weight,
                eps,
                out,
                ..
            } => RowKernel::RmsNorm {
                x,
                gain: tensor(program, weights, weight)?.tensor().to_f32(),
                eps,
                out,
            }
            .into(),
            Op::Linear {
                x,
                weight,
                bias,
                out,
            } => {
                let part = Part {
                    matrix: Matrix::new(program, weights, weight)?,
                    bias: vector(program, weights, bias)?,
                    out,
                };
                let collides = |other: &Part| plan.slot_of[other.out.0] == plan.slot_of[out.0];
                match kernels.last_mut() {
                    Some(Kernel::Linears(last))
                        if last.x == x && !last.parts.iter().any(collides) =>
                    {
                        last.parts.push(part)
                    }
                    _ => kernels.push(Kernel::Linears(Linears {
                        x,
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
            } => RowKernel::Rope {
                x,
                rope: rope.0,
                head_dim,
                out,
            }
            .into(),
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
            } => RowKernel::Gated {
                gate,
                up,
                activation,
                out,
            }
            .into(),
            Op::Add { a, b, out } => RowKernel::Add { a, b, out }.into(),
            Op::Scale { x, factor, out } => RowKernel::Scale { x, factor, out }.into(),
            Op::SoftCap { x, cap, out } => RowKernel::SoftCap { x, cap, out }.into(),
            Op::Gather { x, out } => RowKernel::Gather { x, out }.into(),
            Op::HeadSlice {
                x,
                head_dim,
                first,
                width,
                out,
            } => RowKernel::HeadSlice {
                x,
                head_dim,
                elements: first..first + width,
                out,
            }
            .into(),
            Op::HeadConcat { a, b, heads, out } => {
                RowKernel::HeadConcat { a, b, heads, out }.into()
            }
            Op::HeadLinear { x, weight, out } => {
                let heads = program.weights[weight.0].shape[0];
                let matrix = Matrix::new(program, weights, weight)?;
                let of_one = [(matrix.rows / heads, matrix.row_bytes)];
                // Heads are shared out, too.
                let threads = threads.div_ceil(heads);
                Kernel::HeadLinear(HeadLinear {
                    x,
                    heads,
                    chunks: chunks(&of_one, threads, MOST_CHUNKS / heads),
                    matrix,
                    out,
                })
            }
            Op::Route {
                x,
                scoring,
                bias,
                groups,
                used,
                normalise,
                scale,
                out,
            } => Kernel::Route(Route {
                x,
                scoring,
                bias: vector(program, weights, bias)?,
                groups,
                used,
                normalise,
                scale,
                out,
            }),
            Op::Experts {
                x,
                routing,
                ref experts,
                activation,
                out,
            } => {
                let used = program.ops.iter().find_map(|op| match op {
                    Op::Route { used, out, .. } if *out == routing => Some(*used),
                    _ => None,
                });
                Kernel::Experts(Experts {
                    x,
                    routing,
                    used: used.unwrap_or(experts.len()),
                    inner: program.weights[experts[0].gate.0].shape[0],
                    experts: experts
                        .iter()
                        .map(|matrices| expert(program, weights, matrices, threads))
                        .collect::<Result<_, _>>()?,
                    activation,
                    out,
                })
            }
        };
        kernels.push(kernel);
    }
    for kernel in &mut kernels {
        if let Kernel::Linears(linears) = kernel {
            let sizes = linears.parts.iter().map(|part| part.matrix.size());
            linears.chunks = chunks(&sizes.collect::<Vec<_>>(), threads, MOST_CHUNKS);
        }
    }
    Ok(rows::joined(kernels, program, plan))
}

fn expert(
    program: &Program,
    weights: &Weights,
    expert: &backplane_program::Expert,
    threads: usize,
) -> Result<Expert, DeviceError> {
    let matrix = |id| Matrix::new(program, weights, id);
    let first = [matrix(expert.gate)?, matrix(expert.up)?];
    let down = matrix(expert.down)?;
    Ok(Expert {
        first_chunks: chunks(&[first[0].size(), first[1].size()], threads, MOST_CHUNKS),
        down_chunks: chunks(&[down.size()], threads, MOST_CHUNKS),
        first,
        down,
    })
}

/// Cuts matrices, given as rows and bytes a row, into pieces for so many threads: about `most` at most.
fn chunks(matrices: &[(usize, usize)], threads: usize, most: usize) -> Vec<Chunk> {
    let total: usize = matrices.iter().map(|(rows, bytes)| rows * bytes).sum();
    let [least, largest] = CHUNK_BYTES;
    let even = total / (CHUNKS_EACH * threads.max(1));
    let bytes = even.clamp(least, largest).max(total / most.max(1));
    let mut chunks = vec![];
    for (part, (all, row_bytes)) in matrices.iter().enumerate() {
        let most = (bytes / row_bytes).max(1).next_multiple_of(CHUNK_ROWS);
        let pieces = (0..*all).step_by(most);
        chunks.extend(pieces.map(|row| Chunk {
            part,
            row,
            rows: most.min(all - row),
        }));
    }
    chunks
}

/// The rows of a stored matrix that a weight of the program stands for; of several matrices, one after the other.
pub(crate) struct Matrix {
    tensor: OwnedTensor,
    bytes: Range<usize>,
    pub(crate) ty: TensorType,
    pub(crate) rows: usize,
    pub(crate) cols: usize,
    row_bytes: usize,
}

impl Matrix {
    fn new(program: &Program, weights: &Weights, id: WeightId) -> Result<Self, DeviceError> {
        let declared = &program.weights[id.0];
        let tensor = tensor(program, weights, id)?;
        let info = tensor.info();
        let (ty, cols) = (info.ty, info.cols());
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
        let first = declared.first_row();
        let rows: usize = declared.shape[..declared.shape.len() - 1].iter().product();
        Ok(Self {
            bytes: first * row_bytes..(first + rows) * row_bytes,
            tensor,
            ty,
            rows,
            cols,
            row_bytes,
        })
    }

    /// Blocks of some rows, row by row.
    pub(crate) fn data(&self, rows: Range<usize>) -> &[u8] {
        let data = &self.tensor.data()[self.bytes.clone()];
        &data[rows.start * self.row_bytes..rows.end * self.row_bytes]
    }

    fn size(&self) -> (usize, usize) {
        (self.rows, self.row_bytes)
    }
}

fn vector(
    program: &Program,
    weights: &Weights,
    id: Option<WeightId>,
) -> Result<Option<Vec<f32>>, DeviceError> {
    id.map(|id| Ok(tensor(program, weights, id)?.tensor().to_f32()))
        .transpose()
}

fn tensor(program: &Program, weights: &Weights, id: WeightId) -> Result<OwnedTensor, DeviceError> {
    let name = &program.weights[id.0].name;
    weights
        .owned(name)
        .map_err(|_| ProgramError::MissingWeight { name: name.clone() }.into())
}
