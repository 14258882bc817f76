//! Model files, mapped and checked: named tensors and metadata out of GGUF, or assembled from safetensors.
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
//! A [`Checkpoint`] is a directory of safetensors files as model hubs have them, with the hub's names. An [`Assembly`] gives its
//! tensors GGUF's names and a GGUF's metadata, so that everything above sees [`Weights`] and nothing else:
//!
//! ```no_run
//! use backplane_weights::{Assembly, Checkpoint};
//!
//! let checkpoint = Checkpoint::open("model-directory".as_ref())?;
//! let mut assembly = Assembly::new(&checkpoint);
//! assembly.meta("general.architecture", "llama");
//! assembly.map("token_embd.weight", "model.embed_tokens.weight"); // as stored, mapped
//! let weights = assembly.finish()?;
//! assert_eq!(weights.owned_bytes(), 0);
//! # Ok::<(), backplane_weights::Error>(())
//! ```
//!
//! Invariants:
//! - Tensor data is never read by opening: only the header's pages are touched.
//! - No allocation is sized by a number from the file before the file has been seen to hold that much.
//! - Tensor data starts at a multiple of 8 bytes in memory; of the size of its numbers when mapped from safetensors. All block
//!   types have alignment 1: no kernel may rely on more than that.
//! - A mapped file must not be shortened while it is open: reading past its new end kills the process (`SIGBUS`). Replace
//!   model files by renaming over them, never by truncating them.
//! - Nothing here knows an architecture, a device or a host.

mod assembly;
pub mod blocks;
mod error;
mod gguf;
mod map;
mod metadata;
pub mod quantize;
pub mod safetensors;
mod store;
mod weights;
pub mod writer;

pub use self::safetensors::Checkpoint;
pub use assembly::Assembly;
pub use blocks::TensorType;
pub use error::Error;
pub use metadata::{Array, Metadata, Value, ValueType};
pub use weights::{Format, OwnedTensor, Tensor, TensorInfo, Weights};
