//! The step program: a model's forward pass as a short list of typed operations, and the device that runs it.
//!
//! A model file is lowered once (by `backplane-models`) to a [`Program`]; a [`Device`] compiles the program against
//! the weights into an [`Executable`]; each [`Executable::step`] then feeds tokens of one or more sequences through
//! it. The same program serves prefill, decode and mixed batches: its only free sizes are the number of tokens in a
//! step and the number of rows whose logits are wanted.
//!
//! [`interpreter::Interpreter`] is the executable definition of every operation, in plain scalar `f32`.
//!
//! Invariant: this crate never opens files and knows no architecture.

pub mod builder;
mod check;
pub mod device;
pub mod interpreter;
mod listing;
pub mod plan;
pub mod program;
mod shape;

pub use builder::{AttentionSpec, Builder, RouteSpec};
pub use check::StepChecker;
pub use device::{
    CacheType, Device, DeviceError, Executable, Limits, SequenceStep, Step, StepOutput,
};
pub use interpreter::Interpreter;
pub use plan::Plan;
pub use program::{
    Activation, CacheId, CacheSpec, CachedValues, Expert, ExpertGroups, Op, Program, ProgramError,
    Rope, RopeId, RopeStyle, RowView, Rows, Scoring, Value, ValueId, WeightId, WeightRef,
};
