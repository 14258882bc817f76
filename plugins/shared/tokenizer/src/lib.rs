//! Vocabularies, pre-tokenizers and chat templates.
//!
//! [`Tokenizer`] turns text into token ids and back, [`StreamDecoder`] does the latter token by token, [`ChatTemplate`] turns a
//! conversation into the text that a model was trained on.
//!
//! Invariants: this crate opens no files (it reads the metadata of an opened one), and neither a text, a vocabulary nor a
//! template can make it panic or run without end.

mod byte_pairs;
mod bytes;
mod chat;
mod decode;
mod error;
mod pre;
mod sentence_pieces;
mod tokenizer;
mod vocabulary;

pub use chat::{ChatTemplate, Message, RenderOptions};
pub use decode::{DecodeOptions, StreamDecoder};
pub use error::Error;
pub use tokenizer::{EncodeOptions, Tokenizer};
