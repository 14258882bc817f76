//! Fields of `POST /tokenize` and `POST /detokenize`, by the names that vLLM and llama-server have for them.

use super::Does::{Content, Honoured, Refused};
use super::values::{Amiss, boolean, text};
use super::{Asked, Endpoint, Field, openai};
use serde_json::Value;

const TOKENIZE: &[Endpoint] = &[Endpoint::Tokenize];
const DETOKENIZE: &[Endpoint] = &[Endpoint::Detokenize];
const BOTH: &[Endpoint] = &[Endpoint::Tokenize, Endpoint::Detokenize];

/// What is asked of a tokenizer.
#[derive(Clone, Debug, Default)]
pub(in crate::serve) struct Tokens {
    pub(in crate::serve) add_special: Option<bool>,
    /// Whether text that looks like a special token is one.
    pub(in crate::serve) plain: bool,
    /// Tokens as objects with their text.
    pub(in crate::serve) pieces: bool,
    /// The texts of the tokens besides.
    pub(in crate::serve) texts: bool,
}

#[rustfmt::skip]
pub(super) const FIELDS: &[Field] = &[
    Field { name: "model", on: BOTH, does: Honoured(|it, v| text(v).map(|v| it.model = v)),
        about: "name of a model that is served; may be left out where there is one" },
    Field { name: "prompt", on: TOKENIZE, does: Content, about: "a text; special tokens are added around it unless said otherwise (vLLM's)" },
    Field { name: "content", on: TOKENIZE, does: Content, about: "a text; none are added unless said otherwise (llama-server's)" },
    Field { name: "messages", on: TOKENIZE, does: Content, about: "a conversation, as for a chat: tokens of what the model's template makes of it; one of the three is required" },
    Field { name: "add_special", on: TOKENIZE, does: Honoured(add_special), about: "whether to add what the model wants around a text, such as a beginning; not with `messages`" },
    Field { name: "add_special_tokens", on: TOKENIZE, does: Honoured(add_special), about: "the same" },
    Field { name: "parse_special", on: TOKENIZE, does: Honoured(|it, v| boolean(v).map(|v| it.tokens.plain = !v)),
        about: "whether text that looks like a special token is one; it is unless this is false" },
    Field { name: "with_pieces", on: TOKENIZE, does: Honoured(|it, v| boolean(v).map(|v| it.tokens.pieces = v)),
        about: "tokens as objects with `id` and `piece`: a text, or bytes where it is a part of a character" },
    Field { name: "return_token_strs", on: TOKENIZE, does: Honoured(|it, v| boolean(v).map(|v| it.tokens.texts = v)),
        about: "the texts of the tokens as `token_strs`, lossy where one is a part of a character" },
    Field { name: "chat_template_kwargs", on: TOKENIZE, does: Honoured(openai::template), about: "variables for the model's chat template" },
    Field { name: "add_generation_prompt", on: TOKENIZE, does: Refused(|v| *v == Value::Bool(true)), about: "only true: templates are ended as for a reply" },
    Field { name: "tokens", on: DETOKENIZE, does: Content, about: "an array of token ids; required" },
];

fn add_special(asked: &mut Asked, value: &Value) -> Result<(), Amiss> {
    asked.tokens.add_special = Some(boolean(value)?);
    Ok(())
}
