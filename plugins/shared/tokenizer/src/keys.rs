//! Metadata keys of vocabularies: those of GGUF files, and those that say what GGUF has no key for.

pub(crate) const MODEL: &str = "tokenizer.ggml.model";
pub(crate) const PRE: &str = "tokenizer.ggml.pre";
pub(crate) const TOKENS: &str = "tokenizer.ggml.tokens";
pub(crate) const TOKEN_TYPE: &str = "tokenizer.ggml.token_type";
pub(crate) const SCORES: &str = "tokenizer.ggml.scores";
pub(crate) const MERGES: &str = "tokenizer.ggml.merges";
pub(crate) const BOS: &str = "tokenizer.ggml.bos_token_id";
pub(crate) const EOS: &str = "tokenizer.ggml.eos_token_id";
pub(crate) const EOT: &str = "tokenizer.ggml.eot_token_id";
pub(crate) const EOM: &str = "tokenizer.ggml.eom_token_id";
pub(crate) const UNKNOWN: &str = "tokenizer.ggml.unknown_token_id";
pub(crate) const PADDING: &str = "tokenizer.ggml.padding_token_id";
pub(crate) const FIM_PAD: &str = "tokenizer.ggml.fim_pad_token_id";
pub(crate) const FIM_REPOSITORY: &str = "tokenizer.ggml.fim_rep_token_id";
pub(crate) const FIM_FILE: &str = "tokenizer.ggml.fim_sep_token_id";
pub(crate) const ADDS_BOS: &str = "tokenizer.ggml.add_bos_token";
pub(crate) const ADDS_EOS: &str = "tokenizer.ggml.add_eos_token";
pub(crate) const ADDS_SPACE_PREFIX: &str = "tokenizer.ggml.add_space_prefix";
pub(crate) const CHAT_TEMPLATE: &str = "tokenizer.chat_template";
pub(crate) const CHAT_TEMPLATES: &str = "tokenizer.chat_templates";

// What `tokenizer.json` and `tokenizer.model` say beyond that. Each key is there only where its value is not what the GGUF
// keys imply.

/// Text: the file that the vocabulary comes from. Nothing is then inferred from the model's name.
pub(crate) const SOURCE: &str = "backplane.tokenizer.source";
/// Text: the Unicode normal form that text is brought to: `nfc`, `nfd`, `nfkc` or `nfkd`.
pub(crate) const NORMALIZER: &str = "backplane.tokenizer.normalizer";
/// Ids: tokens that are looked for in the normalised text, after all others were found in the text as it is.
pub(crate) const NORMALIZED_TOKENS: &str = "backplane.tokenizer.normalized_token_ids";
/// Ids: tokens that swallow the white space before them.
pub(crate) const STRIP_BEFORE: &str = "backplane.tokenizer.lstrip_token_ids";
/// Ids: tokens that swallow the white space after them.
pub(crate) const STRIP_AFTER: &str = "backplane.tokenizer.rstrip_token_ids";
/// Ids: tokens that end an answer, besides EOS.
pub(crate) const END_OF_GENERATION: &str = "backplane.tokenizer.eog_token_ids";
/// Bool: whether a word that is a token is that token, whatever the merges would make of it.
pub(crate) const IGNORES_MERGES: &str = "backplane.tokenizer.ignore_merges";
/// Bool: whether decoding drops the spaces before punctuation.
pub(crate) const CLEANS_SPACES: &str = "backplane.tokenizer.clean_spaces";
/// Bool: whether decoding drops the space that begins a text.
pub(crate) const STRIPS_SPACE: &str = "backplane.tokenizer.strip_space";
/// Text: where a space is put before a text of SentencePiece's kind, see `SpacePrefix`.
pub(crate) const SPACE_PREFIX: &str = "backplane.tokenizer.space_prefix";
/// Bool: whether text of SentencePiece's kind is cut before each space.
pub(crate) const CUTS_AT_SPACES: &str = "backplane.tokenizer.cut_at_spaces";
/// Bool: whether a vocabulary of SentencePiece's kind joins by the rank of its merges, not by scores.
pub(crate) const RANKED_MERGES: &str = "backplane.tokenizer.ranked_merges";
/// Texts: what is doubtful about the files that the vocabulary comes from.
pub(crate) const WARNINGS: &str = "backplane.tokenizer.warnings";
