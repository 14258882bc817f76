//! Mixtures of experts: rows go to the places of their experts, so that each matrix is read once a step, and only those of
//! experts that some row has.

use super::frame::{Frame, Parts, share};
use super::linears::multiply;
use super::operands::Operands;
use crate::isa::Isa;
use crate::kernels::{ActivationKinds, Out, activation_kind};
use crate::lower::{Chunk, Expert, Experts, Kernel, Matrix};
use crate::memory::Buffer;
use crate::pool::Pool;
use crate::vector;
use backplane_program::{DeviceError, ValueId};
use std::ops::Range;

impl Experts {
    /// In which forms the first matrices of any expert want their activations, of so many tokens each.
    pub(super) fn first_kinds(&self, isa: Isa, tokens: usize) -> ActivationKinds {
        let matrices = self.experts.iter().flat_map(|expert| &expert.first);
        ActivationKinds::of(isa, tokens, matrices.map(|matrix| matrix.ty))
    }

    /// In which forms the last ones do.
    pub(super) fn down_kinds(&self, isa: Isa, tokens: usize) -> ActivationKinds {
        let types = self.experts.iter().map(|expert| expert.down.ty);
        ActivationKinds::of(isa, tokens, types)
    }
}

/// Which rows an expert has, and what is computed of them on the way. An assignment of a row to an expert has a place; the places
/// of an expert are neighbours.
pub(super) struct Mixture {
    /// Places of each expert.
    places: Vec<Range<usize>>,
    /// Experts that have some.
    active: Vec<usize>,
    /// Expert of each place.
    expert_of: Vec<usize>,
    /// Weight of each place.
    weights: Vec<f32>,
    /// Places of all rows, row by row, in the order of the experts; and where those of a row begin.
    by_row: Vec<usize>,
    starts: Vec<usize>,
    /// `[places, inner]` each.
    gate: Buffer<f32>,
    up: Buffer<f32>,
    /// `[places, width]`.
    down: Buffer<f32>,
    /// `[threads, inner]`.
    hidden: Buffer<f32>,
}

impl Mixture {
    /// Room for each of these kernels; `rows` gives the most rows of a value, `width` its width.
    pub(super) fn new(
        kernels: &[Kernel],
        threads: usize,
        rows: impl Fn(ValueId) -> usize,
        width: impl Fn(ValueId) -> usize,
    ) -> Result<Self, DeviceError> {
        let layers = || {
            kernels.iter().filter_map(|kernel| match kernel {
                Kernel::Experts(layer) => Some(layer),
                _ => None,
            })
        };
        // A number that overflows is more than there is memory: the buffer says so.
        let most = |each: &dyn Fn(&Experts) -> usize| {
            let places = |layer: &Experts| rows(layer.x).saturating_mul(layer.used);
            let sizes = layers().map(|layer| places(layer).saturating_mul(each(layer)));
            sizes.max().unwrap_or(0)
        };
        let what = "activations of experts";
        let inner = || Buffer::new(most(&|layer| layer.inner), what);
        let (gate, up) = (inner()?, inner()?);
        let down = Buffer::new(most(&|layer| width(layer.out)), what)?;
        let hidden = layers().map(|layer| layer.inner).max().unwrap_or(0);
        let hidden = Buffer::new(hidden.saturating_mul(threads), what)?;
        let experts = layers().map(|layer| layer.experts.len()).max().unwrap_or(0);
        let tokens = layers().map(|layer| rows(layer.x)).max().unwrap_or(0);
        let places = most(&|_| 1);
        Ok(Self {
            places: table(experts, what)?,
            active: table(experts, what)?,
            expert_of: table(places, what)?,
            weights: table(places, what)?,
            by_row: table(places, what)?,
            starts: table(tokens.saturating_add(1), what)?,
            gate,
            up,
            down,
            hidden,
        })
    }

    /// Bytes of its buffers.
    pub(super) fn bytes(&self) -> usize {
        self.gate.bytes() + self.up.bytes() + self.down.bytes() + self.hidden.bytes()
    }

    /// Gives the rows their places: `routing` is `[rows, experts]`.
    fn assign(&mut self, routing: &[f32], experts: usize) {
        self.places.clear();
        self.places.resize(experts, 0..0);
        for row in routing.chunks_exact(experts) {
            for (weight, places) in row.iter().zip(&mut self.places) {
                places.end += usize::from(*weight != 0.0);
            }
        }
        let mut end = 0;
        self.active.clear();
        for (expert, places) in self.places.iter_mut().enumerate() {
            if places.end > 0 {
                self.active.push(expert);
            }
            let count = places.end;
            // Still empty: rows are let in one after the other.
            *places = end..end;
            end += count;
        }
        self.expert_of.clear();
        self.expert_of.resize(end, 0);
        self.weights.clear();
        self.weights.resize(end, 0.0);
        self.by_row.clear();
        self.starts.clear();
        for row in routing.chunks_exact(experts) {
            self.starts.push(self.by_row.len());
            for (expert, weight) in row.iter().enumerate() {
                if *weight != 0.0 {
                    let place = self.places[expert].end;
                    self.places[expert].end += 1;
                    self.expert_of[place] = expert;
                    self.weights[place] = *weight;
                    self.by_row.push(place);
                }
            }
        }
        self.starts.push(self.by_row.len());
    }

    /// Tokens of an expert that has some, on average: forms are chosen by it.
    fn tokens_each(&self) -> usize {
        self.weights.len().div_ceil(self.active.len().max(1))
    }

    /// Places of a row, in the order of the experts.
    fn of_row(&self, row: usize) -> &[usize] {
        &self.by_row[self.starts[row]..self.starts[row + 1]]
    }
}

fn table<T>(len: usize, what: &str) -> Result<Vec<T>, DeviceError> {
    let mut table = vec![];
    table
        .try_reserve_exact(len)
        .map_err(|_| DeviceError::Memory {
            device: "cpu".into(),
            bytes: len.saturating_mul(size_of::<T>()),
            what: what.into(),
        })?;
    Ok(table)
}

impl Frame<'_> {
    pub(super) fn experts(
        &self,
        pool: &mut Pool,
        layer: &Experts,
        operands: &Operands,
        mixture: &mut Mixture,
    ) {
        // SAFETY: routing was written by an earlier kernel.
        mixture.assign(unsafe { self.read(layer.routing) }, layer.experts.len());
        let mixture = &*mixture;
        let (isa, rows, places) = (self.isa, self.count(layer.x), mixture.weights.len());
        let (cols, inner) = (self.values[layer.x.0].width, layer.inner);
        let each = mixture.tokens_each();
        let kinds = layer.first_kinds(isa, each);
        share(pool, rows, 2 * cols * layer.used, &|row, _| {
            // SAFETY: the input was written by an earlier kernel; each task has the places of its own row.
            unsafe {
                if let [first, others @ ..] = mixture.of_row(row) {
                    operands.put(isa, kinds, self.row(layer.x, row), *first);
                    for place in others {
                        operands.copy(kinds, cols, *first, *place);
                    }
                }
            }
        });
        let outputs = [mixture.gate.as_ptr(), mixture.up.as_ptr()].map(Shared);
        self.products(
            pool,
            layer,
            operands,
            mixture,
            &|expert| (&expert.first, &expert.first_chunks),
            &outputs,
            inner,
        );
        let kinds = layer.down_kinds(isa, each);
        let (gate, up) = (mixture.gate.as_slice(), mixture.up.as_slice());
        let hidden = Parts::new(&mixture.hidden);
        share(pool, places, 6 * inner, &|place, worker| {
            let at = place * inner..(place + 1) * inner;
            // SAFETY: each worker has its own part, and runs one task at a time; each task has its own place.
            unsafe {
                let hidden = hidden.part(worker * inner, inner);
                vector::gated(isa, &gate[at.clone()], &up[at], layer.activation, hidden);
                operands.put(isa, kinds, hidden, place);
            }
        });
        let width = self.values[layer.out.0].width;
        let outputs = [Shared(mixture.down.as_ptr())];
        self.products(
            pool,
            layer,
            operands,
            mixture,
            &|expert| (std::slice::from_ref(&expert.down), &expert.down_chunks),
            &outputs,
            width,
        );
        let down = mixture.down.as_slice();
        share(pool, rows, width * layer.used, &|row, _| {
            // SAFETY: no other task has this row of the output.
            let out = unsafe { self.row_mut(layer.out, row) };
            out.fill(0.0);
            for place in mixture.of_row(row) {
                vector::add_scaled(
                    isa,
                    &down[place * width..][..width],
                    mixture.weights[*place],
                    out,
                );
            }
        });
    }

    /// Matrices of every active expert times the rows in its places. `outputs` are `[places, width]`, one for each matrix.
    #[allow(clippy::too_many_arguments)]
    fn products<'e>(
        &self,
        pool: &mut Pool,
        layer: &'e Experts,
        operands: &Operands,
        mixture: &Mixture,
        matrices: &(dyn Fn(&'e Expert) -> (&'e [Matrix], &'e [Chunk]) + Sync),
        outputs: &[Shared],
        width: usize,
    ) {
        let isa = self.isa;
        let chunks = |expert: &usize| matrices(&layer.experts[*expert]).1.len();
        // Experts are of one size, though not always of one type: some tasks may be empty.
        let most = mixture.active.iter().map(chunks).max().unwrap_or(0);
        pool.run(mixture.active.len() * most, &|task, worker| {
            let expert = mixture.active[task / most];
            let (matrices, chunks) = matrices(&layer.experts[expert]);
            let Some(Chunk { part, row, rows }) = chunks.get(task % most).copied() else {
                return;
            };
            let (matrix, places) = (&matrices[part], mixture.places[expert].clone());
            let kind = activation_kind(isa, matrix.ty, mixture.tokens_each());
            let x = operands.rows(kind, matrix.cols, places.clone());
            // SAFETY: the output has a row for each place and a column for each row of the matrix; no other task has these; a
            // worker runs one task at a time.
            unsafe {
                let out = Out {
                    start: outputs[part].0.add(places.start * width + row),
                    stride: width,
                };
                let scratch = operands.scratch(worker);
                multiply(
                    isa,
                    matrix,
                    row..row + rows,
                    x,
                    places.len(),
                    out,
                    (scratch, 0, None),
                );
            }
        });
    }
}

/// Where several tasks write.
#[derive(Clone, Copy)]
struct Shared(*mut f32);

// SAFETY: tasks write to places of their own (`Frame::products`).
unsafe impl Sync for Shared {}
