//! Tools: which are offered, and which of them a reply calls.
//!
//! A dialect fills in [`Tools`] and starts a [`Job`](super::generation::Job) with them. What comes back is a
//! [`Piece`] at a time ([`Told::Piece`](super::generation::Told::Piece)), and at the end an
//! [`Answer`](super::generation::Answer) with the text and the calls as a whole.
//!
//! | question | place |
//! | --- | --- |
//! | what a request offers | `choice.rs` |
//! | how families write calls | `formats.rs` |
//! | what of a reply is text and what a call | `reader.rs`, `json.rs` |
//! | what a model is told, and held to | `plan.rs` |

mod choice;
mod formats;
mod json;
mod plan;
mod reader;

pub(super) use choice::{Tools, read, read_choice};
pub(super) use plan::Plan;
pub(super) use reader::{Call, Piece, Reader};
