//! What kernels need to know of the step they run in, and how threads share the values.

use crate::isa::Isa;
use crate::memory::{Buffer, Zeroed};
use crate::pool::Pool;
use backplane_program::{Rows, Value, ValueId};
use std::marker::PhantomData;

/// Elements (times what one costs) below which a kernel is not worth sharing out among threads.
const SHARE_FROM: usize = 16 << 10;

/// What kernels need to know of the step they run in.
pub(super) struct Frame<'a> {
    pub(super) isa: Isa,
    pub(super) values: &'a [Value],
    /// Start of each value in `memory`.
    pub(super) starts: &'a [usize],
    pub(super) memory: *mut f32,
    /// The logits are written where the caller wants them.
    pub(super) logits: (ValueId, *mut f32),
    pub(super) tokens: usize,
    pub(super) wanted: usize,
}

// SAFETY: the pointers lead to memory that outlives the step; who may touch which part is for the users of `read`, `row`
// and `start` to say.
unsafe impl Sync for Frame<'_> {}

impl Frame<'_> {
    pub(super) fn count(&self, id: ValueId) -> usize {
        match self.values[id.0].rows {
            Rows::Tokens => self.tokens,
            Rows::Wanted => self.wanted,
        }
    }

    pub(super) fn start(&self, id: ValueId) -> *mut f32 {
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
    pub(super) unsafe fn read(&self, id: ValueId) -> &[f32] {
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
    pub(super) unsafe fn row(&self, id: ValueId, row: usize) -> &[f32] {
        let width = self.values[id.0].width;
        // SAFETY: as in `read`.
        unsafe { std::slice::from_raw_parts(self.start(id).add(row * width), width) }
    }

    /// One row of a value, to be written.
    ///
    /// # Safety
    /// `row` is below the count, and nobody else touches it meanwhile.
    #[allow(clippy::mut_from_ref)]
    pub(super) unsafe fn row_mut(&self, id: ValueId, row: usize) -> &mut [f32] {
        let width = self.values[id.0].width;
        // SAFETY: as in `read`.
        unsafe { std::slice::from_raw_parts_mut(self.start(id).add(row * width), width) }
    }
}

/// A buffer whose parts are written by several tasks.
pub(super) struct Parts<'a, T> {
    start: *mut T,
    len: usize,
    buffer: PhantomData<&'a [T]>,
}

// SAFETY: `part` leaves it to its callers to keep parts apart.
unsafe impl<T: Send> Sync for Parts<'_, T> {}

impl<'a, T: Zeroed> Parts<'a, T> {
    pub(super) fn new(buffer: &'a Buffer<T>) -> Self {
        Self {
            start: buffer.as_ptr(),
            len: buffer.len(),
            buffer: PhantomData,
        }
    }

    /// # Safety
    /// Nobody else touches the part meanwhile.
    pub(super) unsafe fn part(&self, start: usize, len: usize) -> &'a mut [T] {
        assert!(start + len <= self.len);
        // SAFETY: within the buffer, which is initialised.
        unsafe { std::slice::from_raw_parts_mut(self.start.add(start), len) }
    }
}

/// Calls `task` for `0..count` and the worker's number, on several threads if `count * cost` is worth it.
pub(super) fn share(
    pool: &mut Pool,
    count: usize,
    cost: usize,
    task: &(dyn Fn(usize, usize) + Sync),
) {
    if count.saturating_mul(cost) < SHARE_FROM {
        (0..count).for_each(|index| task(index, 0));
        return;
    }
    let at_once = (SHARE_FROM / 4).div_ceil(cost.max(1));
    pool.run(count.div_ceil(at_once), &|part, worker| {
        (part * at_once..count.min((part + 1) * at_once)).for_each(|index| task(index, worker));
    });
}
