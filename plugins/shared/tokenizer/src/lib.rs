//! Vocabularies, pre-tokenizers and chat templates.
