//! Vocabularies, pre-tokenizers and chat templates.
//!
//! [`Tokenizer`] turns text into token ids and back, [`StreamDecoder`] does the latter token by token, [`ChatTemplate`] turns a
//! conversation into the text that a model was trained on.
//!
//! ```no_run
//! use backplane_tokenizer::{ChatTemplate, DecodeOptions, Message, RenderOptions, StreamDecoder, Tokenizer};
//! use backplane_weights::Weights;
//!
//! let weights = Weights::open("model.gguf".as_ref())?;
//! let tokenizer = Tokenizer::from_metadata(weights.metadata())?;
//! let template = ChatTemplate::from_metadata(weights.metadata(), &tokenizer)?.ok_or("no chat template")?;
//! let question = Message { role: "user".into(), content: Some("Hello!".into()), ..Message::default() };
//! let opts = RenderOptions { add_generation_prompt: true, ..RenderOptions::default() };
//! let prompt: Vec<u32> = tokenizer.encode_prompt(&template.render(&[question], &opts)?)?;
//! // An answer goes on after the prompt; its bytes come token by token.
//! let mut decoder = StreamDecoder::continuing(&tokenizer, DecodeOptions::default());
//! let bytes: Vec<u8> = decoder.push(prompt[0])?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! [`hub`] reads the tokenizers of Hugging Face directories into the same metadata.
//!
//! Invariants: this crate opens no files (it reads the metadata of an opened one), and neither a text, a vocabulary nor a
//! template can make it panic or keep its caller waiting without end.

mod byte_pairs;
mod bytes;
mod chat;
mod decode;
mod error;
pub mod hub;
mod keys;
mod merges;
mod normalize;
mod pre;
mod sentence_pieces;
mod tokenizer;
mod vocabulary;

pub use chat::{ChatTemplate, Message, RenderOptions};
pub use decode::{DecodeOptions, StreamDecoder};
pub use error::Error;
pub use tokenizer::{EncodeOptions, Tokenizer};
