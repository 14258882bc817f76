//! Tools and structured output: what a request offers and asks for, and which tools a reply calls.
//!
//! A dialect fills in [`Tools`] and starts a [`Job`](super::generation::Job) with them. What comes back is a
//! [`Piece`] at a time ([`Told::Piece`](super::generation::Told::Piece)), and at the end an
//! [`Answer`](super::generation::Answer) with the text and the calls as a whole.
//!
//! | question | place |
//! | --- | --- |
//! | which tools a request offers | `choice.rs` |
//! | what a reply's text is held to | `held.rs` |
//! | whether a schema can be held to | `check.rs` |
//! | whether a schema has a finite text | `finite.rs` |
//! | how families write calls | `formats.rs` |
//! | what a model is told of tools | `telling.rs` |
//! | what a reply with tools is held to | `grammar.rs` |
//! | what of a reply is text and what a call | `reader.rs` |
//! | which calls only repeat the one before | `repeats.rs` |
//! | how a call by itself is read: as JSON, in tags, as a program writes it | `json.rs`, `tags.rs`, `literal.rs` |
//! | what values are that were not written as JSON | `typed.rs` |
//! | what of a reply is thought | `thoughts.rs` |
//! | what stands in which channel, where a family has them | `channels.rs` |
//! | all of it, for one request and model | `plan.rs` |

mod channels;
mod check;
mod choice;
mod finite;
mod formats;
mod grammar;
mod held;
mod json;
mod literal;
mod plan;
mod reader;
mod repeats;
mod tags;
mod telling;
mod thoughts;
mod typed;

pub(super) use choice::{Choice, Tool, Tools, name, read, read_choice};
pub(super) use held::{Held, To, read_format, read_grammar};
pub(super) use plan::{Plan, thinks};
pub(super) use reader::{Call, Piece, Reader};
pub(super) use repeats::Repeats;
