//! What can be wrong with a vocabulary, a text or a template.

/// An error of this crate: one line that says what was found and what was expected.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The model file's metadata could not be read as the type that a key must have.
    #[error(transparent)]
    Metadata(#[from] backplane_weights::Error),
    /// A `tokenizer.*` key or a tokenizer's file is missing, or what it holds cannot be a vocabulary.
    #[error("{key}: {problem}")]
    Vocabulary {
        /// The metadata key, or the name of the file.
        key: &'static str,
        /// What was found, what was expected.
        problem: String,
    },
    /// The text holds a byte for which the vocabulary has neither a token nor an unknown token.
    #[error("the vocabulary has no token for byte 0x{byte:02X}")]
    NoTokenForByte {
        /// The byte.
        byte: u8,
    },
    /// A token id is not in the vocabulary.
    #[error("token id {id} is out of range: the vocabulary has {size} tokens")]
    NoSuchToken {
        /// The id that was given.
        id: u32,
        /// The size of the vocabulary.
        size: usize,
    },
    /// The template itself refused the conversation by `raise_exception`: the client's error, in the template's words.
    #[error("{message}")]
    TemplateRefused {
        /// What the template says.
        message: String,
    },
    /// The chat template is not valid, or failed while it was rendered.
    #[error("chat template line {line}: {problem}")]
    Template {
        /// The line of the template, from 1; 0 where it is not known.
        line: usize,
        /// What went wrong.
        problem: String,
    },
}

impl Error {
    pub(crate) fn vocabulary(key: &'static str, problem: impl Into<String>) -> Self {
        Self::Vocabulary {
            key,
            problem: problem.into(),
        }
    }
}
