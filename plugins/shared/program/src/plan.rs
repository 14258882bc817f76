//! The memory plan: which values may share a buffer.

use crate::program::{Program, Rows, Value};

/// Buffers for the values of a program. A value's buffer is free again after the last operation that reads it, so a
/// deep model needs about as many buffers as one of its layers.
///
/// An operation's output never shares a buffer with its inputs, nor values of different [`Rows`] with each other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// For each value, by [`crate::ValueId`]: which of `slots` holds it.
    pub slot_of: Vec<usize>,
    /// The buffers: kind of rows and the widest value each holds.
    pub slots: Vec<Value>,
    /// For each value: index of the last operation that reads it; `ops.len()` for the logits, which outlive the step; its own
    /// operation for values that nothing reads.
    pub last_use: Vec<usize>,
}

impl Plan {
    /// Plans the buffers of a program that passes [`Program::validate`].
    ///
    /// Marks take no room: a marked value must be copied out right after the operation that writes it.
    #[must_use]
    pub fn new(program: &Program) -> Self {
        let last_use = last_use(program);
        let mut slots: Vec<Value> = vec![];
        let mut free: Vec<usize> = vec![];
        let mut slot_of = vec![usize::MAX; program.values.len()];
        for (index, op) in program.ops.iter().enumerate() {
            let out = op.output();
            let value = program.values[out.0];
            let slot = match best_fit(&free, &slots, value) {
                Some(place) => free.swap_remove(place),
                None => {
                    slots.push(value);
                    slots.len() - 1
                }
            };
            slots[slot].width = slots[slot].width.max(value.width);
            slot_of[out.0] = slot;
            let mut ended: Vec<_> = op
                .inputs()
                .into_iter()
                .chain([out])
                .filter(|id| last_use[id.0] == index)
                .collect();
            ended.sort_unstable();
            ended.dedup();
            free.extend(ended.into_iter().map(|id| slot_of[id.0]));
        }
        Self {
            slot_of,
            slots,
            last_use,
        }
    }

    /// Elements of all buffers together for a step of this size; `None` if the number overflows.
    #[must_use]
    pub fn elements(&self, tokens: usize, wanted: usize) -> Option<usize> {
        self.slots.iter().try_fold(0usize, |sum, slot| {
            let rows = match slot.rows {
                Rows::Tokens => tokens,
                Rows::Wanted => wanted,
            };
            sum.checked_add(rows.checked_mul(slot.width)?)
        })
    }
}

fn last_use(program: &Program) -> Vec<usize> {
    let mut last = vec![0; program.values.len()];
    for (index, op) in program.ops.iter().enumerate() {
        last[op.output().0] = index;
        for id in op.inputs() {
            last[id.0] = index;
        }
    }
    last[program.logits.0] = program.ops.len();
    last
}

/// Place in `free` of the narrowest slot that is wide enough, else of the widest (which then grows).
fn best_fit(free: &[usize], slots: &[Value], value: Value) -> Option<usize> {
    let candidates = || (0..free.len()).filter(|&place| slots[free[place]].rows == value.rows);
    let width = |place: &usize| slots[free[*place]].width;
    let fitting = candidates()
        .filter(|place| width(place) >= value.width)
        .min_by_key(width);
    fitting.or_else(|| candidates().max_by_key(width))
}
