//! What a token of a model costs, and what its device could do at most: the capability `peaks/1`.

use crate::capabilities::Handle;
use backplane_plugin_api::capability::{Peaks, PeaksReport, PeaksRequest, Progress};
use backplane_plugin_api::sdk::Result;
use backplane_plugin_api::types::{Control, Error, ErrorCode, LoadOptions};
use backplane_program::{Op, Program, Rows, WeightId};
use backplane_weights::Weights;
use std::ops::ControlFlow;
use std::sync::Arc;

/// What a device reaches at most.
#[derive(Clone, Debug, PartialEq)]
pub struct DevicePeaks {
    /// Bytes of memory read per second.
    pub read_bytes_per_s: f64,
    /// Multiply-adds of 8-bit whole numbers per second.
    pub multiply_adds_per_s: f64,
    /// One line for people: how it was measured.
    pub measured: String,
}

/// Measures a device as a load's options make it, reading a buffer of so many bytes. It tells passes done and of how many, and
/// gives `None` where it was told to break.
pub(crate) type Measure = dyn Fn(
        &LoadOptions,
        u64,
        &mut dyn FnMut(u64, u64) -> ControlFlow<()>,
    ) -> Result<Option<DevicePeaks>>
    + Send
    + Sync;

/// What a token costs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Cost {
    /// Bytes of matrices that a step of one token, whose logits are wanted, reads.
    pub(crate) bytes: u64,
    /// Multiply-adds with matrices of one token, whose logits are not wanted.
    pub(crate) multiply_adds: u64,
}

impl Cost {
    pub(crate) fn of(program: &Program, weights: &Weights) -> Self {
        let mut cost = Self::default();
        for op in &program.ops {
            let every_token = program.values[op.output().0].rows == Rows::Tokens;
            match op {
                Op::Linear { weight, .. } | Op::HeadLinear { weight, .. } => {
                    cost.add(program, weights, *weight, 1.0, every_token);
                }
                Op::Experts {
                    routing, experts, ..
                } => {
                    // Of the experts a token takes some: on average so much of each.
                    let part = used(program, *routing) as f64 / experts.len().max(1) as f64;
                    for expert in experts {
                        for weight in [expert.gate, expert.up, expert.down] {
                            cost.add(program, weights, weight, part, every_token);
                        }
                    }
                }
                _ => {}
            }
        }
        cost
    }

    fn add(
        &mut self,
        program: &Program,
        weights: &Weights,
        weight: WeightId,
        part: f64,
        every_token: bool,
    ) {
        let wanted = &program.weights[weight.0];
        let elements = wanted.shape.iter().product::<usize>() as f64 * part;
        if let Some(tensor) = weights.tensor(&wanted.name) {
            let ty = tensor.info.ty;
            self.bytes += (elements / ty.block_elems() as f64 * ty.block_bytes() as f64) as u64;
        }
        if every_token {
            self.multiply_adds += elements as u64;
        }
    }
}

/// How many experts the router with this output chooses.
fn used(program: &Program, routing: backplane_program::ValueId) -> usize {
    let routes = program.ops.iter().filter(|op| op.output() == routing);
    let used = |op: &Op| match op {
        Op::Route { used, .. } => Some(*used),
        _ => None,
    };
    routes.filter_map(used).next().unwrap_or(1)
}

/// What a model keeps to answer.
pub(crate) struct Measuring {
    pub(crate) cost: Cost,
    pub(crate) measure: Arc<Measure>,
    pub(crate) options: LoadOptions,
}

impl Peaks for Handle {
    fn measure_peaks(
        &self,
        request: &PeaksRequest,
        progress: &mut dyn Progress,
    ) -> Result<PeaksReport> {
        let parts = &self.0;
        if let Some(field) = request.extra.keys().next() {
            return Err(Error::unsupported_field(field, &parts.backend));
        }
        parts.engine.check_open()?;
        // Not offered without.
        let Some(measuring) = &parts.measuring else {
            let message = "the device does not measure its peaks";
            return Err(Error::new(ErrorCode::Unsupported, message));
        };
        let mut tell = |done, total| match progress.on_progress(done, total, "passes") {
            Control::Continue => ControlFlow::Continue(()),
            Control::Stop => ControlFlow::Break(()),
        };
        let Cost {
            bytes,
            multiply_adds,
        } = measuring.cost;
        let measured = (measuring.measure)(&measuring.options, bytes, &mut tell)?;
        let peaks = measured.ok_or_else(|| Error::cancelled("measuring"))?;
        Ok(PeaksReport {
            read_bytes_per_s: peaks.read_bytes_per_s as u64,
            multiply_adds_per_s: peaks.multiply_adds_per_s as u64,
            token_bytes: bytes,
            token_multiply_adds: multiply_adds,
            measured: peaks.measured,
        })
    }
}
