//! Runs a step program on the CPU: SIMD kernels chosen at run time, persistent threads, weights left as they are mapped.
//!
//! ```no_run
//! use backplane_cpu_device::CpuDevice;
//! use backplane_program::{CacheType, Device, Limits};
//! # fn run(program: &backplane_program::Program, weights: &backplane_weights::Weights) -> Result<(), backplane_program::DeviceError> {
//! let device = CpuDevice::detect()?;
//! let limits = Limits { max_step_tokens: 512, max_wanted: 1, page_size: 16, pages: 256, threads: 0, cache_type: CacheType::F32 };
//! let executable = device.compile(program, weights, limits)?;
//! println!("{}: {}", device.name(), executable.describe());
//! # Ok(()) }
//! ```
//!
//! Invariants:
//! - A token's results depend on its own sequence only: not on the other tokens of the step, not on how a prompt is cut into
//!   steps, not on the number of threads.
//! - Weights are never copied: only norms' gains and biases are kept in memory. A step allocates nothing (but for marks, and
//!   for an output that grows).
//! - No content of a step leads outside the buffers: everything is checked first.
//! - `unsafe` stands only in the kernels, the thread pool, the buffers, and where threads share them (`run`).

#[macro_use]
#[cfg_attr(target_arch = "x86_64", path = "dispatch_x86.rs")]
#[cfg_attr(not(target_arch = "x86_64"), path = "dispatch_portable.rs")]
mod dispatch;

mod activations;
mod attend;
mod cache;
mod device;
mod isa;
mod kernels;
mod lower;
mod memory;
mod peaks;
mod pool;
mod run;
mod vector;

pub use device::{CpuDevice, CpuOptions};
pub use isa::Isa;
pub use peaks::Peaks;
