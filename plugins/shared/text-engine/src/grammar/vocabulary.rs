//! A model's vocabulary as `llguidance` knows it: the bytes of each token, in a tree.

use backplane_tokenizer::{DecodeOptions, Tokenizer};
use llguidance::ParserFactory;
use llguidance::earley::SlicedBiasComputer;
use llguidance::toktrie::{ApproximateTokEnv, InferenceCapabilities, TokEnv, TokRxInfo, TokTrie};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

/// What compiles grammars for this vocabulary.
///
/// # Errors
/// It has no end token, or is none that fits a tree.
pub(super) fn factory(tokenizer: &Tokenizer) -> Result<Arc<ParserFactory>, String> {
    let made = catch_unwind(AssertUnwindSafe(|| make(tokenizer)));
    made.unwrap_or_else(|_| Err("its tokens fit no tree".to_owned()))
}

fn make(tokenizer: &Tokenizer) -> Result<Arc<ParserFactory>, String> {
    let count = tokenizer.vocab_size();
    let words: Vec<Vec<u8>> = (0..count as u32).map(|id| word(tokenizer, id)).collect();
    let ends = tokenizer.end_of_generation();
    let first = *ends.first().ok_or("it has no end token")?;
    let info = TokRxInfo::new(count as u32, first);
    let trie = TokTrie::from(&info, &words).with_eos_tokens(&ends);
    // Tokens are chosen one by one, so how others would cut a text plays no part.
    let environment: TokEnv = Arc::new(ApproximateTokEnv::new(trie));
    let slices = SlicedBiasComputer::general_slices();
    let factory = ParserFactory::new(&environment, InferenceCapabilities::default(), &slices);
    let mut factory = factory.map_err(|error| format!("{error:#}"))?;
    factory.quiet();
    factory.limits_mut().verbose_errors = false;
    Ok(Arc::new(factory))
}

/// A token's bytes; empty where it never is part of a text. Special tokens are no text: they stand behind a mark.
fn word(tokenizer: &Tokenizer, id: u32) -> Vec<u8> {
    let options = DecodeOptions {
        skip_special: false,
        clean_spaces: false,
    };
    let mut bytes = Vec::new();
    if tokenizer.decode_bytes(id, &mut bytes, options).is_err() {
        return Vec::new();
    }
    if tokenizer.is_special(id) {
        bytes.insert(0, TokTrie::SPECIAL_TOKEN_MARKER);
    } else if bytes.first() == Some(&TokTrie::SPECIAL_TOKEN_MARKER) {
        // No text has this byte.
        bytes.clear();
    }
    bytes
}
