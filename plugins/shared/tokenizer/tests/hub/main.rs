//! Tokenizers of Hugging Face directories.
#![allow(clippy::unwrap_used)] // in helpers of tests too

#[path = "../common/mod.rs"]
mod common;
mod conventions;
mod hostile_json;
mod hostile_model;
mod references;
mod variants;

use backplane_tokenizer::{EncodeOptions, Tokenizer};

/// The one line by which files are refused.
fn refusal(files: &[(&str, &[u8])], rows: Option<u64>) -> String {
    let error = common::hub_keys(files, rows).unwrap_err();
    assert!(!error.contains('\n') && error.len() < 1000, "{error}");
    error
}

/// Encodes some text with whatever tokenizer these keys make, if any.
fn exercise(keys: Result<Vec<(String, backplane_weights::writer::OwnedValue)>, String>) {
    let Ok(keys) = keys else { return };
    let weights = common::with_keys(keys);
    if let Ok(tokenizer) = Tokenizer::from_metadata(weights.metadata()) {
        let ids = tokenizer.encode(
            "ab <s>é abc\n",
            EncodeOptions {
                add_special: true,
                parse_special: true,
            },
        );
        for id in ids.unwrap_or_default() {
            assert!((id as usize) < tokenizer.vocab_size());
        }
    }
}
