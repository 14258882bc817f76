//! The executable: runs the kernels of one step.

mod attention;
mod experts;
mod frame;
mod linears;
mod operands;
mod route;
mod rows;

use crate::cache::Cache;
use crate::isa::Isa;
use crate::lower::{Arena, Kernel, lower};
use crate::memory::Buffer;
use crate::pool::Pool;
use crate::vector::Turn;
use attention::{Place, Scratch};
use backplane_program::{
    DeviceError, Executable, Limits, Plan, Program, Rope, Rows, Step, StepChecker, StepOutput,
    Value, ValueId,
};
use backplane_weights::Weights;
use experts::Mixture;
use frame::Frame;
use operands::Operands;
use route::Ranking;
use rows::Around;

/// A program compiled for this CPU.
pub(crate) struct CpuExecutable {
    isa: Isa,
    pool: Pool,
    kernels: Vec<Kernel>,
    values: Vec<Value>,
    arena: Arena,
    memory: Buffer<f32>,
    operands: Operands,
    mixture: Mixture,
    ranking: Ranking,
    ropes: Vec<RopeTable>,
    cache: Cache,
    checker: StepChecker,
    logits: ValueId,
    marks: Vec<(String, ValueId)>,
    scratch: Scratch,
    /// Of each token of the step.
    places: Vec<Place>,
    /// Linear layers run so far.
    jobs: u64,
}

/// One rotary embedding and its cosines and sines of the step: `[tokens, 2, pairs]`.
struct RopeTable {
    rope: Rope,
    turns: Buffer<f32>,
}

impl RopeTable {
    fn turn(&self, token: usize) -> Turn<'_> {
        let pairs = self.rope.inverse_frequencies.len();
        let (cos, sin) = self.turns.as_slice()[2 * pairs * token..][..2 * pairs].split_at(pairs);
        Turn { cos, sin }
    }
}

impl CpuExecutable {
    pub(crate) fn new(
        program: &Program,
        weights: &Weights,
        limits: Limits,
        isa: Isa,
        threads: usize,
    ) -> Result<Self, DeviceError> {
        program.validate()?;
        program.check_weights(weights)?;
        let checker = StepChecker::new(limits, program.vocab, "cpu")?;
        let plan = Plan::new(program);
        let too_large = || DeviceError::Memory {
            device: "cpu".into(),
            bytes: usize::MAX,
            what: format!("activations of {} tokens", limits.max_step_tokens),
        };
        let arena = Arena::new(program, &plan, limits.max_step_tokens, limits.max_wanted)
            .ok_or_else(too_large)?;
        let kernels = lower(program, &plan, weights, threads)?;
        let rows = |value: ValueId| match program.values[value.0].rows {
            Rows::Tokens => limits.max_step_tokens,
            Rows::Wanted => limits.max_wanted,
        };
        let width = |value: ValueId| program.values[value.0].width;
        let operands = Operands::new(isa, threads, &kernels, rows)?;
        let mixture = Mixture::new(&kernels, threads, rows, width)?;
        let ranking = Ranking::new(&kernels, threads, width)?;
        let mut ropes = vec![];
        for rope in &program.ropes {
            let floats = (2 * rope.inverse_frequencies.len())
                .checked_mul(limits.max_step_tokens)
                .ok_or_else(too_large)?;
            ropes.push(RopeTable {
                rope: rope.clone(),
                turns: Buffer::new(floats, "rotary tables")?,
            });
        }
        let pool = Pool::new(threads).map_err(|error| DeviceError::Failed {
            device: "cpu".into(),
            message: format!("{threads} threads could not be started: {error}"),
        })?;
        let cache = Cache::new(program, &limits)?;
        let scratch = Scratch::new(pool.threads(), &kernels, isa, &cache)?;
        let mut places = vec![];
        places
            .try_reserve_exact(limits.max_step_tokens)
            .map_err(|_| too_large())?;
        Ok(Self {
            isa,
            pool,
            kernels,
            values: program.values.clone(),
            memory: Buffer::new(arena.floats, "activations")?,
            arena,
            operands,
            mixture,
            ranking,
            ropes,
            cache,
            checker,
            logits: program.logits,
            marks: program.marks.clone(),
            scratch,
            places,
            jobs: 0,
        })
    }

    fn prepare(&mut self, step: &Step<'_>) {
        self.places.clear();
        for (index, sequence) in step.sequences.iter().enumerate() {
            self.places.extend((0..sequence.count).map(|i| Place {
                position: sequence.past + i,
                sequence: index,
            }));
        }
        for table in &mut self.ropes {
            let RopeTable { rope, turns } = table;
            let pairs = rope.inverse_frequencies.len();
            if pairs == 0 {
                continue;
            }
            for (place, row) in self
                .places
                .iter()
                .zip(turns.as_mut_slice().chunks_exact_mut(2 * pairs))
            {
                let (cosines, sines) = row.split_at_mut(pairs);
                for (i, frequency) in rope.inverse_frequencies.iter().enumerate() {
                    let (sin, cos) = (place.position as f32 * frequency).sin_cos();
                    (cosines[i], sines[i]) = (cos * rope.magnitude, sin * rope.magnitude);
                }
            }
        }
    }
}

impl Executable for CpuExecutable {
    fn step(&mut self, step: &Step<'_>, out: &mut StepOutput) -> Result<(), DeviceError> {
        self.checker.check(step)?;
        self.checker.wrote(step);
        self.prepare(step);
        out.marks.clear();
        let vocab = self.values[self.logits.0].width;
        out.logits.resize(step.wanted.len() * vocab, 0.0);
        let frame = Frame {
            isa: self.isa,
            values: &self.values,
            starts: &self.arena.start,
            memory: self.memory.as_ptr(),
            logits: (self.logits, out.logits.as_mut_ptr()),
            tokens: step.tokens.len(),
            wanted: step.wanted.len(),
        };
        let around = Around {
            step,
            places: &self.places,
            ropes: &self.ropes,
            operands: &self.operands,
            cache: &self.cache,
        };
        let marks = step.marks.then_some(self.marks.as_slice());
        // Of a kernel that has just ended: what it wrote may be written over by the next.
        let mut mark = |output: ValueId| {
            for (name, _) in marks.into_iter().flatten().filter(|(_, id)| *id == output) {
                // SAFETY: the kernel has ended, so nobody writes the value.
                let value = unsafe { frame.read(output) }.to_vec();
                out.marks.push((name.clone(), value));
            }
        };
        for kernel in &self.kernels {
            match kernel {
                Kernel::Rows(rows) if marks.is_some() => {
                    for row in rows {
                        frame.rows(&mut self.pool, std::slice::from_ref(row), &around);
                        row.out().into_iter().for_each(&mut mark);
                    }
                }
                Kernel::Rows(rows) => frame.rows(&mut self.pool, rows, &around),
                Kernel::Linears(linears) => {
                    self.jobs += 1;
                    frame.linears(&mut self.pool, linears, &self.operands, self.jobs);
                    linears.parts.iter().for_each(|part| mark(part.out));
                }
                Kernel::HeadLinear(layer) => {
                    frame.head_linear(&mut self.pool, layer, &self.operands);
                    mark(layer.out);
                }
                Kernel::Route(route) => {
                    frame.route(&mut self.pool, route, &self.ranking);
                    mark(route.out);
                }
                Kernel::Experts(layer) => {
                    let mixture = &mut self.mixture;
                    frame.experts(&mut self.pool, layer, &self.operands, mixture);
                    mark(layer.out);
                }
                Kernel::Attention(attention) => {
                    frame.attention(&mut self.pool, attention, &around, &self.scratch);
                    mark(attention.out);
                }
            }
        }
        Ok(())
    }

    fn copy_page(&mut self, from: u32, to: u32) -> Result<(), DeviceError> {
        self.checker.copy(from, to)?;
        self.cache.copy(from as usize, to as usize);
        Ok(())
    }

    fn page_bytes(&self) -> usize {
        self.cache.page_bytes()
    }

    fn buffer_bytes(&self) -> usize {
        let turns = self.ropes.iter().map(|table| table.turns.bytes());
        let rows = self.memory.bytes() + self.operands.bytes() + self.mixture.bytes();
        rows + self.ranking.bytes() + self.scratch.bytes() + turns.sum::<usize>()
    }

    fn describe(&self) -> String {
        let threads = self.pool.threads();
        format!(
            "{}, {threads} {}",
            self.isa.label(),
            if threads == 1 { "thread" } else { "threads" }
        )
    }
}
