//! Vocabularies that are shorter than the embedding: padded, or another model's.

use crate::open::Opened;
use backplane_weights::{Error, Weights};

/// `tokenizer.ggml.token_type` of tokens that no text gives.
const UNUSED: i32 = 5;
/// Rows without a token that padding explains; more are a finding.
const PADDING: usize = 1024;
/// One of so many rows without a token is a finding too.
const SHARE: usize = 5;

/// Rows of an embedding, and tokens that have one; fewer than the rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Short {
    tokens: usize,
    rows: usize,
}

impl Short {
    /// `None` where every row has its token, or the vocabulary can't be used.
    pub(crate) fn of(opened: &Opened) -> Option<Self> {
        let size = opened.tokenizer.as_ref().ok()?.vocab_size();
        let rows = opened.weights.tensor("token_embd.weight")?.rows();
        let tokens = size - fillers(&opened.weights).unwrap_or(0);
        (tokens < rows).then_some(Self { tokens, rows })
    }

    /// Whether padding doesn't explain it: it may be another model's vocabulary.
    pub(crate) fn is_suspicious(self) -> bool {
        let without = self.rows - self.tokens;
        without > PADDING || without > self.rows / SHARE
    }
}

impl std::fmt::Display for Short {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { tokens, rows } = self;
        write!(
            f,
            "the vocabulary has {tokens} tokens, the embedding {rows} rows: {} ids have no text",
            rows - tokens
        )?;
        match self.is_suspicious() {
            true => f.write_str(", more than padding explains: is this the model's own tokenizer?"),
            false => Ok(()),
        }
    }
}

/// Tokens that only fill a vocabulary up, as converters name them.
fn fillers(weights: &Weights) -> Result<usize, Error> {
    let metadata = weights.metadata();
    let (Some(tokens), Some(kinds)) = (
        metadata.array("tokenizer.ggml.tokens")?,
        metadata.array("tokenizer.ggml.token_type")?,
    ) else {
        return Ok(0);
    };
    let kinds = kinds.i32s()?;
    if !kinds.contains(&UNUSED) {
        return Ok(0);
    }
    let all = tokens.strings()?.zip(kinds).enumerate();
    let fills = all.filter(|(id, (text, kind))| *kind == UNUSED && *text == format!("[PAD{id}]"));
    Ok(fills.count())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn padding_is_not_suspicious() {
        for (tokens, rows, suspicious) in [
            (151_665, 151_936, false),
            (200_029, 200_064, false),
            (48_128, 49_152, false),
            (48_127, 49_152, true),
            (512, 49_152, true),
            (500, 512, false),
            (8, 10, false),
            (7, 10, true),
        ] {
            let short = Short { tokens, rows };
            assert_eq!(short.is_suspicious(), suspicious, "{short}");
            let line = short.to_string();
            assert!(line.contains(&format!("{} ids", rows - tokens)), "{line}");
        }
    }
}
