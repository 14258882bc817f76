//! The reference interpreter: the executable definition of every operation, and the oracle for faster devices.
//!
//! Arithmetic is `f32` throughout, sums included; the long dot products of `linear` and `attention` run in 16 interleaved
//! partial sums, which is closer to the exact sum than one running sum, and lets the compiler use vectors. That is exact enough to
//! need no `f64`: logits of the golden models are within 1e-4 of the references, which allow 1e-3. Weights are
//! dequantised row by row as they are used, never kept.

mod cache;
mod experts;
mod ops;
#[cfg(test)]
mod tests;

use crate::check::StepChecker;
use crate::device::{CacheType, Device, DeviceError, Executable, Limits, Step, StepOutput};
use crate::plan::Plan;
use crate::program::{Expert, Op, Program, Rows, ValueId, WeightId};
use backplane_weights::{Tensor, Weights};
use cache::Pool;

/// Runs programs in plain scalar `f32`.
#[derive(Clone, Copy, Debug, Default)]
pub struct Interpreter;

impl Device for Interpreter {
    fn name(&self) -> String {
        "reference interpreter".into()
    }

    fn compile(
        &self,
        program: &Program,
        weights: &Weights,
        limits: Limits,
    ) -> Result<Box<dyn Executable>, DeviceError> {
        program.validate()?;
        program.check_weights(weights)?;
        let checker = StepChecker::new(limits, program.vocab, &self.name())?;
        let threads = match limits.threads {
            0 => std::thread::available_parallelism().map_or(1, usize::from),
            threads => threads,
        };
        limits.cache_type.check(&program.caches)?;
        let plan = Plan::new(program);
        Ok(Box::new(Interpreted {
            pool: Pool::new(program, &limits)?,
            buffers: vec![vec![]; plan.slots.len()],
            program: program.clone(),
            weights: weights.clone(),
            plan,
            cache_type: limits.cache_type,
            checker,
            threads,
        }))
    }
}

struct Interpreted {
    program: Program,
    weights: Weights,
    cache_type: CacheType,
    checker: StepChecker,
    threads: usize,
    plan: Plan,
    /// One per slot of the plan.
    buffers: Vec<Vec<f32>>,
    pool: Pool,
}

impl Executable for Interpreted {
    fn step(&mut self, step: &Step<'_>, out: &mut StepOutput) -> Result<(), DeviceError> {
        self.checker.check(step)?;
        self.pool.commit(step)?;
        self.checker.wrote(step);
        let positions = positions(step);
        out.marks.clear();
        for index in 0..self.program.ops.len() {
            let result = self.program.ops[index].output();
            let slot = self.plan.slot_of[result.0];
            let value = self.program.values[result.0];
            let rows = match value.rows {
                Rows::Tokens => step.tokens.len(),
                Rows::Wanted => step.wanted.len(),
            };
            // Taken out so that the other buffers can be read; the plan keeps inputs out of the output's slot.
            let mut buffer = std::mem::take(&mut self.buffers[slot]);
            buffer.clear();
            buffer.resize(rows * value.width, 0.0);
            self.run(index, step, &positions, &mut buffer)?;
            if step.marks {
                let named = self.program.marks.iter().filter(|(_, id)| *id == result);
                out.marks
                    .extend(named.map(|(name, _)| (name.clone(), buffer.clone())));
            }
            self.buffers[slot] = buffer;
        }
        out.logits.clear();
        out.logits
            .extend_from_slice(self.value(self.program.logits));
        Ok(())
    }

    fn copy_page(&mut self, from: u32, to: u32) -> Result<(), DeviceError> {
        self.checker.copy(from, to)?;
        self.pool.copy(from, to);
        Ok(())
    }

    fn page_bytes(&self) -> usize {
        self.pool.page_floats() * size_of::<f32>()
    }

    fn describe(&self) -> String {
        format!(
            "scalar f32, weights dequantised row by row, cache rounded to {}, {} threads",
            self.cache_type, self.threads
        )
    }
}

impl Interpreted {
    /// The buffer of a value: `[rows, width]`.
    fn value(&self, id: ValueId) -> &[f32] {
        &self.buffers[self.plan.slot_of[id.0]]
    }

    /// The stored tensor; all of it, where a weight is a view of some of its rows.
    fn tensor(&self, id: WeightId) -> Result<Tensor<'_>, DeviceError> {
        let name = &self.program.weights[id.0].name;
        self.weights
            .tensor(name)
            .ok_or_else(|| DeviceError::Failed {
                device: Interpreter.name(),
                message: format!("{name}: tensor is missing"),
            })
    }

    /// Runs one operation; `out` is `[rows, width]` zeros.
    fn run(
        &mut self,
        index: usize,
        step: &Step<'_>,
        positions: &[usize],
        out: &mut [f32],
    ) -> Result<(), DeviceError> {
        if let Op::Attention { k, v, cache, .. } = self.program.ops[index] {
            let buffer = |id: ValueId| self.buffers[self.plan.slot_of[id.0]].as_slice();
            self.pool.append(cache, step, buffer(k), v.map(buffer));
        }
        let width = |id: ValueId| self.program.values[id.0].width;
        match self.program.ops[index] {
            Op::Embed { table, scale, .. } => {
                ops::embed(&self.tensor(table)?, step.tokens, scale, out)
            }
            Op::RmsNorm {
                x,
                weight,
                eps,
                group,
                ..
            } => {
                ops::rms_norm(
                    self.value(x),
                    &self.tensor(weight)?.to_f32(),
                    eps,
                    group,
                    out,
                );
            }
            Op::Linear {
                x, weight, bias, ..
            } => {
                let bias = bias
                    .map(|bias| self.tensor(bias))
                    .transpose()?
                    .map(|bias| bias.to_f32());
                let experts::Matrix { tensor, rows } = self.matrix(weight)?;
                ops::linear(
                    self.value(x),
                    &tensor,
                    rows,
                    bias.as_deref(),
                    self.threads,
                    out,
                );
            }
            Op::Rope {
                x, rope, head_dim, ..
            } => {
                ops::rope(
                    self.value(x),
                    positions,
                    &self.program.ropes[rope.0],
                    head_dim,
                    width(x),
                    out,
                );
            }
            Op::Attention {
                q,
                cache,
                heads,
                scale,
                window,
                soft_cap,
                ..
            } => {
                let shape = ops::AttentionShape {
                    heads,
                    scale,
                    window,
                    soft_cap,
                };
                ops::attention(
                    self.value(q),
                    step,
                    &self.pool.view(cache),
                    shape,
                    self.threads,
                    out,
                );
            }
            Op::Gated {
                gate,
                up,
                activation,
                ..
            } => ops::gated(self.value(gate), self.value(up), activation, out),
            Op::Add { a, b, .. } => ops::add(self.value(a), self.value(b), out),
            Op::Scale { x, factor, .. } => ops::scale(self.value(x), factor, out),
            Op::SoftCap { x, cap, .. } => ops::soft_cap(self.value(x), cap, out),
            Op::HeadSlice {
                x,
                head_dim,
                first,
                width,
                ..
            } => ops::head_slice(self.value(x), head_dim, first..first + width, out),
            Op::HeadConcat { a, b, heads, .. } => {
                let (a_dim, b_dim) = (width(a) / heads, width(b) / heads);
                ops::head_concat(self.value(a), self.value(b), a_dim, b_dim, out);
            }
            Op::HeadLinear { x, weight, .. } => {
                ops::head_linear(self.value(x), &self.tensor(weight)?, out);
            }
            Op::Route {
                x,
                scoring,
                bias,
                groups,
                used,
                normalise,
                scale,
                ..
            } => {
                let bias = bias
                    .map(|bias| self.tensor(bias))
                    .transpose()?
                    .map(|bias| bias.to_f32());
                let choice = experts::Choice {
                    scoring,
                    bias: bias.as_deref(),
                    groups,
                    used,
                    normalise,
                    scale,
                };
                experts::route(self.value(x), width(x), choice, out);
            }
            Op::Experts {
                x,
                routing,
                ref experts,
                activation,
                ..
            } => {
                for (index, Expert { gate, up, down }) in experts.iter().enumerate() {
                    let weights: Vec<f32> = self
                        .value(routing)
                        .chunks_exact(experts.len())
                        .map(|row| row[index])
                        .collect();
                    let matrices = experts::ExpertMatrices {
                        gate: self.matrix(*gate)?,
                        up: self.matrix(*up)?,
                        down: self.matrix(*down)?,
                    };
                    let x = self.value(x);
                    experts::expert(x, &weights, &matrices, activation, self.threads, out);
                }
            }
            Op::Gather { x, .. } => ops::gather(self.value(x), step.wanted, width(x), out),
        }
        Ok(())
    }

    /// The rows of the stored tensor that a matrix of the program stands for.
    fn matrix(&self, id: WeightId) -> Result<experts::Matrix<'_>, DeviceError> {
        let declared = &self.program.weights[id.0];
        let first = declared.first_row();
        Ok(experts::Matrix {
            tensor: self.tensor(id)?,
            rows: first..first + declared.shape[0],
        })
    }
}

/// Position of every token of the step in its sequence.
fn positions(step: &Step<'_>) -> Vec<usize> {
    step.sequences
        .iter()
        .flat_map(|sequence| sequence.past..sequence.past + sequence.count)
        .collect()
}
