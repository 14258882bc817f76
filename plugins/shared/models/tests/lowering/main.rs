//! Lowering and describing models: what metadata and tensors lead to, and what is refused.
#![allow(clippy::unwrap_used, reason = "helpers of tests, too, may panic")]

mod experts;
mod families;
mod file;
mod refusals;
mod rotation;
mod summaries;
