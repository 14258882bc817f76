//! Model files, mapped and checked: named tensors and metadata out of GGUF.
//!
//! [`Weights::open`] maps a file (or all parts of a split one), parses its header and checks every length, count, product
//! and offset in it against the file. After that nothing can fail: every tensor's bytes are there.
//!
//! ```no_run
//! use backplane_weights::Weights;
//!
//! let weights = Weights::open("model.gguf".as_ref())?;
//! let architecture = weights.metadata().require_str("general.architecture")?;
//! let embedding = weights.require("token_embd.weight")?; // [vocabulary, width]
//! println!("{architecture}: {} x {} {}", embedding.rows(), embedding.cols(), embedding.info.ty);
//! # Ok::<(), backplane_weights::Error>(())
//! ```
//!
//! Invariants:
//! - Tensor data is never read by opening: only the header's pages are touched.
//! - No allocation is sized by a number from the file before the file has been seen to hold that much.
//! - Tensor data starts at a multiple of 8 bytes in memory.
//! - A mapped file must not be shortened while it is open: reading past its new end kills the process (`SIGBUS`). Replace
//!   model files by renaming over them, never by truncating them.
//! - Nothing here knows an architecture, a device or a host.

pub mod blocks;
mod error;
mod gguf;
mod map;
mod metadata;
mod weights;
pub mod writer;

pub use blocks::TensorType;
pub use error::Error;
pub use metadata::{Array, Metadata, Value, ValueType};
pub use weights::{OwnedTensor, Tensor, TensorInfo, Weights};
