//! Fields of an item of what a response is made from: those of a conversation, and what the official clients' own items have besides
//! when they are given back.

use super::Does::{Content, NoEffect, Refused};
use super::values::{is_empty, is_false};
use super::{Endpoint, Field};

const ITEM: &[Endpoint] = &[Endpoint::ResponseItem];

#[rustfmt::skip]
pub(super) const FIELDS: &[Field] = &[
    Field { name: "type", on: ITEM, does: Content,
        about: "`message`, which it is unless given, `reasoning`, `function_call` or `function_call_output`" },
    Field { name: "role", on: ITEM, does: Content,
        about: "of a message: `user`, `assistant`, `system`, or `developer`, which is taken as `system`" },
    Field { name: "content", on: ITEM, does: Content,
        about: "of a message: a text, or parts of the types `input_text` and `output_text`, of which only the text counts; of `reasoning`: parts with a text" },
    Field { name: "summary", on: ITEM, does: Content, about: "of `reasoning`, where it has no content" },
    Field { name: "call_id", on: ITEM, does: Content, about: "of a call, and of what it came to" },
    Field { name: "name", on: ITEM, does: Content, about: "of a call: the function" },
    Field { name: "arguments", on: ITEM, does: Content, about: "of a call: a JSON object, as a text" },
    Field { name: "output", on: ITEM, does: Content, about: "what a call came to: a text, or parts" },
    Field { name: "async", on: ITEM, does: Refused(is_false), about: "calls are waited for" },
    Field { name: "async_", on: ITEM, does: Refused(is_false), about: "`async`, as Python's client names it" },
    Field { name: "caller", on: ITEM, does: Refused(is_empty), about: "only the model calls" },
    Field { name: "namespace", on: ITEM, does: Refused(is_empty), about: "functions have names alone" },
    Field { name: "id", on: ITEM, does: NoEffect, about: "no item is stored" },
    Field { name: "status", on: ITEM, does: NoEffect, about: "an item is taken as it is" },
    Field { name: "phase", on: ITEM, does: NoEffect, about: "models are not told" },
    Field { name: "encrypted_content", on: ITEM, does: NoEffect, about: "what is thought is told open" },
    Field { name: "parsed_arguments", on: ITEM, does: NoEffect, about: "the arguments as clients have read them" },
];
