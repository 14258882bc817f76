//! Sequences over any device: KV cache, scheduler, sampling, streams.
//!
//! [`TextBackend`] turns a [`Device`](backplane_program::Device) into the contract's
//! [`Backend`](backplane_plugin_api::sdk::Backend) and [`TextModel`](backplane_plugin_api::sdk::TextModel). A plugin is
//! then a name, a version, a way to make the device, and what to say of the machine.
//!
//! A loaded model has one thread, the engine, that owns the compiled program. Each of its steps takes one token of
//! every sequence that generates, what is drafted after it, and as much of the prompts that are still being read as the others' pace
//! allows, up to [`EngineOptions::max_step_tokens`] in all. Callers wait on a channel and hand events to their sinks on their own
//! thread.
//!
//! ```no_run
//! use backplane_plugin_api::sdk::Backend;
//! use backplane_plugin_api::types::LoadOptions;
//! use backplane_program::{Device, Interpreter};
//! use backplane_text_engine::TextBackend;
//! use std::sync::Arc;
//!
//! let backend = TextBackend::new("reference", "1.0.0", |_: &LoadOptions| Ok(Arc::new(Interpreter) as Arc<dyn Device>));
//! let model = backend.load("model.gguf".as_ref(), &LoadOptions::default())?;
//! println!("{}", model.info().name);
//! # Ok::<(), backplane_plugin_api::types::Error>(())
//! ```
//!
//! Rules that users meet:
//! - A prompt must be shorter than the context; it is never cut. `max_tokens` is bounded by what the context leaves: a
//!   generation that reaches the end of the context first ends with `ContextFull`. `max_tokens` 0 generates nothing and
//!   ends with `Length`.
//! - An end token and a stop token are not given as text and not counted.
//! - A generation's random numbers come from its own seed: the same request gives the same text whatever else runs,
//!   provided the device computes every row of a step independently of the others.
//! - The time between tokens of a running text at most doubles while prompts are read beside it, whatever their length.
//! - The pool has room for `parallel` whole contexts (where that is not given 4, in a quarter of the memory of the device at most), or for `cache_tokens`. A sequence starts when there is room for its prompt
//!   and 64 tokens more; next is a job of the call with the fewest running, then the one that came first. What never fits is refused with all sizes. Pages
//!   of ended sequences are kept, so that later prompts that begin alike don't read that part again, and given up, oldest first, when pages are needed.
//! - When no page is left, the sequence that began last (of the call with the most) gives its own back, waits before all others, and is read again when there
//!   is room. It says what it would have said; only time passes. The oldest always goes on.
//! - What a text repeats is drafted and verified in one step where that is faster; the text is the same
//!   ([`Speculation`], of a load or a request).
//! - After `close`, generating and classifying err with `Closed`; the tokenizer and the template go on working.
//!
//! Beside texts (the capabilities `embed/1`, `score/1`, `attention/1` of a model, `check/1` and `convert/1` of a backend):
//! - Embeddings pool the hidden states after the last norm; scores are natural logarithms over the whole vocabulary, with logits
//!   computed in portions; attention gives queries and keys as they are multiplied. Their inputs may fill the context.
//! - They have places and pages as texts have, and steps of their own that take turns with those of the texts.
//! - A model is a GGUF file or a directory as model hubs have them; everything above opening sees GGUF's names and keys.
//!
//! Options of a load ([`LoadExtras`]): `cache_type` (`f32`, `f16`, `q8_0`), `quantize` (a type's name, or `none`), `speculation` (`auto`,
//! `off`) and `cache_tokens`. Option of a request: `speculation`.
//!
//! Metrics of a model:
//!
//! | name | what |
//! |---|---|
//! | `tokens_prompt_total`, `prefix_cached_tokens_total` | tokens of prompts; those of them taken from the cache |
//! | `tokens_generated_total` | tokens generated |
//! | `requests_total`, `requests_cancelled_total` | sequences begun; sequences ended by their callers |
//! | `steps_total` | steps of the device |
//! | `preemptions_total`, `tokens_recomputed_total` | how often a sequence gave its pages back; tokens computed again for it |
//! | `tokens_drafted_total`, `tokens_draft_accepted_total` | drafted tokens that were verified; those of them that came true |
//! | `sequences_running`, `sequences_waiting` | now; those that gave their pages back wait |
//! | `kv_pages_total`, `kv_pages_used`, `kv_pages_cached` | cache pages: all; held by sequences; kept for later prompts |
//! | `kv_bytes`, `kv_bytes_limit`, `kv_tokens_limit` | memory of the pages ever written; of all pages, and the tokens that these have room for |
//! | `buffer_bytes` | memory of what steps are computed in, at most |
//!
//! Invariant: nothing here knows a device, an architecture or a host.

mod backend;
mod capabilities;
mod check;
mod convert;
mod counters;
mod engine;
mod grammar;
mod inspect;
mod model;
mod open;
mod options;
mod pages;
mod peaks;
mod request;
pub mod sampling;
mod states;
pub mod stream;
mod vocabulary;

pub use backend::{EngineOptions, TextBackend};
pub use options::{LoadExtras, Speculation};
pub use peaks::DevicePeaks;
