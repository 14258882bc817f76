//! Golden references, and how a device is judged by them.
//!
//! For tests of devices: every check takes any [`backplane_program::Device`], runs the models of the fixtures on it in several
//! ways (one prefill, token by token, sequences mixed in one step; always on scattered cache pages) and panics with the place
//! and the figures when the device is off. What is returned are the figures seen, for reports.
//!
//! Invariant: a missing fixture or model is a failure, never a skipped check.

mod cache;
mod compare;
mod fixtures;
mod formats;
mod real;
mod runner;
mod tiny;

pub use cache::WithCache;
pub use compare::{Judge, Seen, Tolerance};
pub use fixtures::{fixture, fixtures_dir, real_model_path};
pub use formats::{formats, open_tiny, tiny_models};
pub use real::{perplexity, perplexity_within, real_teacher_forced};
pub use runner::{Runner, Sequence};
pub use tiny::{check_f32, check_formats, check_quant};
