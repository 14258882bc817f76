//! The executable: runs the kernels of one step.

use crate::activations::{Group32, Group256, quantise_row32, quantise_row256};
use crate::cache::Cache;
use crate::check::Checker;
use crate::isa::Isa;
use crate::kernels::{ActivationKind, Operand, Out, Tile, activation_kind};
use crate::lower::{Arena, Attention, Kernel, Linears, lower};
use crate::memory::Buffer;
use crate::pool::Pool;
use crate::vector::{self, Page, Softmax, Turn};
use backplane_program::{
    DeviceError, Executable, Limits, Plan, Program, Rope, Rows, Step, StepOutput, Value, ValueId,
};
use backplane_weights::Weights;

/// Elements (times what one costs) below which a kernel is not worth sharing out among threads.
const SHARE_FROM: usize = 16 << 10;

/// A program compiled for this CPU.
pub(crate) struct CpuExecutable {
    isa: Isa,
    pool: Pool,
    kernels: Vec<Kernel>,
    values: Vec<Value>,
    arena: Arena,
    memory: Buffer<f32>,
    int32: Buffer<Group32>,
    int256: Buffer<Group256>,
    ropes: Vec<RopeTable>,
    cache: Cache,
    checker: Checker,
    logits: ValueId,
    marks: Vec<(String, ValueId)>,
    page_size: usize,
    /// `[threads, stride of a cache page]`.
    scores: Buffer<f32>,
    /// Per token of the step: position, and index of its sequence.
    places: Vec<(usize, usize)>,
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
        let checker = Checker::new(limits, program.vocab)?;
        let plan = Plan::new(program, false);
        let too_large = || DeviceError::Memory {
            device: "cpu".into(),
            bytes: usize::MAX,
            what: format!("activations of {} tokens", limits.max_step_tokens),
        };
        let arena = Arena::new(program, &plan, limits.max_step_tokens, limits.max_wanted)
            .ok_or_else(too_large)?;
        let kernels = lower(program, &plan, weights)?;
        // A row per token and a row per wanted token never go through one linear layer together.
        let rows = |value: Value| match value.rows {
            Rows::Tokens => limits.max_step_tokens,
            Rows::Wanted => limits.max_wanted,
        };
        let groups = |kind: ActivationKind| {
            kernels
                .iter()
                .try_fold(0usize, |most, kernel| match kernel {
                    Kernel::Linears(linears) if linears.wants(kind) => {
                        let rows = rows(program.values[linears.x.0]);
                        rows.checked_mul(kind.row_len(linears.cols))
                            .map(|len| most.max(len))
                    }
                    _ => Some(most),
                })
        };
        let int32 = Buffer::new(
            groups(ActivationKind::Int32).ok_or_else(too_large)?,
            "quantised activations",
        )?;
        let int256 = Buffer::new(
            groups(ActivationKind::Int256).ok_or_else(too_large)?,
            "quantised activations",
        )?;
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
        let scores = pool
            .threads()
            .checked_mul(cache.stride())
            .ok_or_else(too_large)?;
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
            int32,
            int256,
            ropes,
            cache,
            checker,
            logits: program.logits,
            marks: program.marks.clone(),
            page_size: limits.page_size,
            scores: Buffer::new(scores, "attention scores")?,
            places,
        })
    }

    fn prepare(&mut self, step: &Step<'_>) {
        self.places.clear();
        for (index, sequence) in step.sequences.iter().enumerate() {
            self.places
                .extend((0..sequence.count).map(|i| (sequence.past + i, index)));
        }
        for table in &mut self.ropes {
            let RopeTable { rope, turns } = table;
            let pairs = rope.inverse_frequencies.len();
            if pairs == 0 {
                continue;
            }
            for ((position, _), row) in self
                .places
                .iter()
                .zip(turns.as_mut_slice().chunks_exact_mut(2 * pairs))
            {
                let (cosines, sines) = row.split_at_mut(pairs);
                for (i, frequency) in rope.inverse_frequencies.iter().enumerate() {
                    let (sin, cos) = (*position as f32 * frequency).sin_cos();
                    (cosines[i], sines[i]) = (cos * rope.magnitude, sin * rope.magnitude);
                }
            }
        }
    }
}

impl Executable for CpuExecutable {
    fn step(&mut self, step: &Step<'_>, out: &mut StepOutput) -> Result<(), DeviceError> {
        self.checker.step(step)?;
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
        for kernel in &self.kernels {
            match kernel {
                Kernel::Linears(linears) => {
                    frame.quantise(&mut self.pool, linears, &self.int32, &self.int256);
                    frame.linears(&mut self.pool, linears, &self.int32, &self.int256);
                }
                Kernel::Attention(attention) => {
                    append(
                        &frame,
                        &mut self.cache,
                        attention,
                        step,
                        &self.places,
                        self.page_size,
                    );
                    let scores = Scores {
                        start: self.scores.as_ptr(),
                        page_size: self.page_size,
                    };
                    frame.attention(
                        &mut self.pool,
                        attention,
                        &self.cache,
                        step,
                        &self.places,
                        scores,
                    );
                }
                kernel => frame.rows(&mut self.pool, kernel, step, &self.ropes),
            }
            if step.marks {
                for output in kernel.outputs() {
                    for (name, _) in self.marks.iter().filter(|(_, id)| *id == output) {
                        // SAFETY: the kernel has ended, so nobody writes the value.
                        out.marks
                            .push((name.clone(), unsafe { frame.read(output) }.to_vec()));
                    }
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

    fn describe(&self) -> String {
        let threads = self.pool.threads();
        format!(
            "{}, {threads} {}",
            self.isa.label(),
            if threads == 1 { "thread" } else { "threads" }
        )
    }
}

/// Writes keys and values of the step's tokens to their pages. On one thread, so that the pages need no trust.
fn append(
    frame: &Frame<'_>,
    cache: &mut Cache,
    attention: &Attention,
    step: &Step<'_>,
    places: &[(usize, usize)],
    page_size: usize,
) {
    // SAFETY: keys and values were written by earlier kernels, and nothing runs beside this.
    let (keys, values) = unsafe { (frame.read(attention.k), frame.read(attention.v)) };
    let keys = keys.chunks_exact(attention.kv_heads * attention.key_dim);
    let values = values.chunks_exact(attention.kv_heads * attention.value_dim);
    for ((position, sequence), (keys, values)) in places.iter().zip(keys.zip(values)) {
        let page = step.sequences[*sequence].pages[position / page_size];
        cache.append(
            attention.cache,
            page as usize,
            position % page_size,
            keys,
            values,
        );
    }
}

/// A scratch row of scores per thread.
#[derive(Clone, Copy)]
struct Scores {
    start: *mut f32,
    page_size: usize,
}

// SAFETY: each thread takes its own row (`Frame::attention`), and a thread runs one task at a time.
unsafe impl Sync for Scores {}

/// What kernels need to know of the step they run in.
struct Frame<'a> {
    isa: Isa,
    values: &'a [Value],
    /// Start of each value in `memory`.
    starts: &'a [usize],
    memory: *mut f32,
    /// The logits are written where the caller wants them.
    logits: (ValueId, *mut f32),
    tokens: usize,
    wanted: usize,
}

// SAFETY: the pointers lead to memory that outlives the step; who may touch which part is for the users of `read`, `row`
// and `start` to say.
unsafe impl Sync for Frame<'_> {}

impl Frame<'_> {
    fn count(&self, id: ValueId) -> usize {
        match self.values[id.0].rows {
            Rows::Tokens => self.tokens,
            Rows::Wanted => self.wanted,
        }
    }

    fn start(&self, id: ValueId) -> *mut f32 {
        if id == self.logits.0 {
            return self.logits.1;
        }
        // SAFETY: the arena has room for the value from its start on.
        unsafe { self.memory.add(self.starts[id.0]) }
    }

    /// All rows of a value.
    ///
    /// # Safety
    /// Nobody writes the value meanwhile.
    unsafe fn read(&self, id: ValueId) -> &[f32] {
        // SAFETY: the arena (or the caller's logits) holds `count * width` floats from the start on: the step was checked
        // against the limits for which it was made.
        unsafe {
            std::slice::from_raw_parts(self.start(id), self.count(id) * self.values[id.0].width)
        }
    }

    /// One row of a value.
    ///
    /// # Safety
    /// `row` is below the count, and nobody writes it meanwhile.
    unsafe fn row(&self, id: ValueId, row: usize) -> &[f32] {
        let width = self.values[id.0].width;
        // SAFETY: as in `read`.
        unsafe { std::slice::from_raw_parts(self.start(id).add(row * width), width) }
    }

    /// One row of a value, to be written.
    ///
    /// # Safety
    /// `row` is below the count, and nobody else touches it meanwhile.
    #[allow(clippy::mut_from_ref)]
    unsafe fn row_mut(&self, id: ValueId, row: usize) -> &mut [f32] {
        let width = self.values[id.0].width;
        // SAFETY: as in `read`.
        unsafe { std::slice::from_raw_parts_mut(self.start(id).add(row * width), width) }
    }

    /// Runs a kernel whose rows don't need each other.
    fn rows(&self, pool: &mut Pool, kernel: &Kernel, step: &Step<'_>, ropes: &[RopeTable]) {
        let isa = self.isa;
        // A row of the output is written by the one task that computes it; inputs were written by earlier kernels, and the
        // plan keeps outputs apart from inputs: this is what the blocks below rely on.
        match kernel {
            Kernel::Embed { table, scale, out } => {
                let table = table.tensor();
                self.each_row(pool, *out, 2, &|row| {
                    // SAFETY: see above.
                    let out = unsafe { self.row_mut(*out, row) };
                    table.row_f32(step.tokens[row] as usize, out);
                    out.iter_mut().for_each(|x| *x *= scale);
                });
            }
            Kernel::RmsNorm { x, gain, eps, out } => self.each_row(pool, *out, 1, &|row| {
                // SAFETY: see above.
                let (x, out) = unsafe { (self.row(*x, row), self.row_mut(*out, row)) };
                vector::rms_norm(isa, x, gain, *eps, out);
            }),
            Kernel::Rope {
                x,
                rope,
                head_dim,
                out,
            } => self.each_row(pool, *out, 1, &|row| {
                let table = &ropes[*rope];
                // SAFETY: see above.
                let (x, out) = unsafe { (self.row(*x, row), self.row_mut(*out, row)) };
                vector::rope(isa, x, table.turn(row), table.rope.style, *head_dim, out);
            }),
            Kernel::Gated {
                gate,
                up,
                activation,
                out,
            } => self.each_row(pool, *out, 4, &|row| {
                // SAFETY: see above.
                let (gate, up, out) = unsafe {
                    (
                        self.row(*gate, row),
                        self.row(*up, row),
                        self.row_mut(*out, row),
                    )
                };
                vector::gated(isa, gate, up, *activation, out);
            }),
            Kernel::Add { a, b, out } => self.each_row(pool, *out, 1, &|row| {
                // SAFETY: see above.
                let (a, b, out) = unsafe {
                    (
                        self.row(*a, row),
                        self.row(*b, row),
                        self.row_mut(*out, row),
                    )
                };
                vector::add(isa, a, b, out);
            }),
            Kernel::Scale { x, factor, out } => self.each_row(pool, *out, 1, &|row| {
                // SAFETY: see above.
                let (x, out) = unsafe { (self.row(*x, row), self.row_mut(*out, row)) };
                vector::scale(isa, x, *factor, out);
            }),
            Kernel::SoftCap { x, cap, out } => self.each_row(pool, *out, 16, &|row| {
                // SAFETY: see above.
                let (x, out) = unsafe { (self.row(*x, row), self.row_mut(*out, row)) };
                vector::soft_cap(x, *cap, out);
            }),
            Kernel::Gather { x, out } => self.each_row(pool, *out, 1, &|row| {
                // SAFETY: see above; wanted rows are below the number of tokens.
                let (x, out) = unsafe {
                    (
                        self.row(*x, step.wanted[row] as usize),
                        self.row_mut(*out, row),
                    )
                };
                out.copy_from_slice(x);
            }),
            Kernel::Linears(_) | Kernel::Attention(_) => {
                unreachable!("these have functions of their own")
            }
        }
    }

    /// Calls `task` for each row of `out`, on several threads if the work is worth it.
    fn each_row(&self, pool: &mut Pool, out: ValueId, cost: usize, task: &(dyn Fn(usize) + Sync)) {
        let (rows, width) = (self.count(out), self.values[out.0].width);
        share(pool, rows, width * cost, task);
    }

    /// Brings the input of linear layers into the forms that their weights want.
    fn quantise(
        &self,
        pool: &mut Pool,
        linears: &Linears,
        int32: &Buffer<Group32>,
        int256: &Buffer<Group256>,
    ) {
        let (isa, cols, rows) = (self.isa, linears.cols, self.count(linears.x));
        let (small, large) = (
            linears.wants(ActivationKind::Int32),
            linears.wants(ActivationKind::Int256),
        );
        let (small_len, large_len) = (
            ActivationKind::Int32.row_len(cols),
            ActivationKind::Int256.row_len(cols),
        );
        if !small && !large {
            return;
        }
        let (int32, int256) = (
            Groups(int32.as_ptr(), int32.len()),
            Groups(int256.as_ptr(), int256.len()),
        );
        share(pool, rows, 2 * cols, &|row| {
            // SAFETY: the input was written by an earlier kernel.
            let x = unsafe { self.row(linears.x, row) };
            if small {
                // SAFETY: each task has its own row.
                quantise_row32(isa, x, unsafe { int32.part(row * small_len, small_len) });
            }
            if large {
                // SAFETY: each task has its own row.
                quantise_row256(isa, x, unsafe { int256.part(row * large_len, large_len) });
            }
        });
    }

    fn linears(
        &self,
        pool: &mut Pool,
        linears: &Linears,
        int32: &Buffer<Group32>,
        int256: &Buffer<Group256>,
    ) {
        let (isa, cols, tokens) = (self.isa, linears.cols, self.count(linears.x));
        if tokens == 0 {
            return;
        }
        // SAFETY: the input was written by an earlier kernel.
        let floats = unsafe { self.read(linears.x) };
        pool.run(linears.chunks.len(), &|task, _| {
            let chunk = linears.chunks[task];
            let part = &linears.parts[chunk.part];
            let kind = activation_kind(part.ty);
            let len = tokens * kind.row_len(cols);
            let x = match kind {
                ActivationKind::Float => Operand::Float(floats),
                ActivationKind::Int32 => Operand::Int32(&int32.as_slice()[..len]),
                ActivationKind::Int256 => Operand::Int256(&int256.as_slice()[..len]),
            };
            let weights =
                &part.weight.data()[chunk.row * part.row_bytes..][..chunk.rows * part.row_bytes];
            // SAFETY: row `chunk.row` of the output lies within it.
            let start = unsafe { self.start(part.out).add(chunk.row) };
            let out = Out {
                start,
                stride: part.rows,
            };
            // SAFETY: the output is `[tokens, part.rows]`, apart from all inputs and the other parts' outputs, and no other
            // task has these rows.
            unsafe { Tile::new(part.ty, weights, cols, x, tokens, out) }.run(isa);
            if let Some(bias) = &part.bias {
                for t in 0..tokens {
                    // SAFETY: as above; the tile is done.
                    let out = unsafe {
                        std::slice::from_raw_parts_mut(start.add(t * part.rows), chunk.rows)
                    };
                    for (out, bias) in out.iter_mut().zip(&bias[chunk.row..]) {
                        *out += bias;
                    }
                }
            }
        });
    }

    fn attention(
        &self,
        pool: &mut Pool,
        attention: &Attention,
        cache: &Cache,
        step: &Step<'_>,
        places: &[(usize, usize)],
        scores: Scores,
    ) {
        let Attention {
            heads,
            key_dim,
            value_dim,
            ..
        } = *attention;
        let (size, stride) = (scores.page_size, cache.stride());
        let group = heads / attention.kv_heads;
        let positions = |place: &(usize, usize)| {
            attention
                .window
                .map_or(place.0 + 1, |window| window.min(place.0 + 1))
        };
        let work: usize =
            places.iter().map(positions).sum::<usize>() * heads * (key_dim + value_dim) / 8;
        let task = |task: usize, worker: usize| {
            let scores = &scores;
            let (token, head) = (task / heads, task % heads);
            let (position, sequence) = places[token];
            // SAFETY: queries were written by an earlier kernel; each task has its own head of the output's row, and each
            // worker its own row of scores.
            let (query, out, scores) = unsafe {
                let out = self.start(attention.out).add(task * value_dim);
                (
                    &self.row(attention.q, token)[head * key_dim..][..key_dim],
                    std::slice::from_raw_parts_mut(out, value_dim),
                    std::slice::from_raw_parts_mut(scores.start.add(worker * stride), stride),
                )
            };
            out.fill(0.0);
            let mut state = Softmax::START;
            let first = position + 1 - positions(&places[token]);
            for (index, page) in step.sequences[sequence].pages[..=position / size]
                .iter()
                .enumerate()
                .skip(first / size)
            {
                let (from, to) = (
                    first.max(index * size) - index * size,
                    (position + 1).min((index + 1) * size) - index * size,
                );
                let (keys, values) = cache.head(attention.cache, *page as usize, head / group);
                let page = Page {
                    keys,
                    stride,
                    values,
                    from,
                    to,
                };
                vector::attend(
                    self.isa,
                    query,
                    page,
                    attention.scale,
                    attention.soft_cap,
                    scores,
                    &mut state,
                    out,
                );
            }
            let inverse = 1.0 / state.sum;
            out.iter_mut().for_each(|out| *out *= inverse);
        };
        let tasks = self.tokens * heads;
        if work < SHARE_FROM {
            (0..tasks).for_each(|index| task(index, 0));
        } else {
            pool.run(tasks, &task);
        }
    }
}

/// A buffer whose parts are written by several tasks.
struct Groups<T>(*mut T, usize);

// SAFETY: `part` leaves it to its callers to keep parts apart.
unsafe impl<T> Sync for Groups<T> {}

impl<T> Groups<T> {
    /// # Safety
    /// Nobody else touches the part meanwhile.
    #[allow(clippy::mut_from_ref)]
    unsafe fn part(&self, start: usize, len: usize) -> &mut [T] {
        assert!(start + len <= self.1);
        // SAFETY: within the buffer, which is initialised.
        unsafe { std::slice::from_raw_parts_mut(self.0.add(start), len) }
    }
}

/// Calls `task` for `0..count`, on several threads if `count * cost` is worth it.
fn share(pool: &mut Pool, count: usize, cost: usize, task: &(dyn Fn(usize) + Sync)) {
    if count * cost < SHARE_FROM {
        (0..count).for_each(task);
        return;
    }
    let at_once = (SHARE_FROM / 4).div_ceil(cost.max(1));
    pool.run(count.div_ceil(at_once), &|part, _| {
        (part * at_once..count.min((part + 1) * at_once)).for_each(task);
    });
}
