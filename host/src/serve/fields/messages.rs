//! Fields of a message of `POST /v1/chat/completions` and `POST /tokenize`: besides what a conversation is made of, what the
//! official clients' own message objects have when they are put back into it.

use super::Does::{Content, NoEffect, Refused};
use super::values::is_empty;
use super::{Endpoint, Field};

const MESSAGE: &[Endpoint] = &[Endpoint::ChatMessage];

#[rustfmt::skip]
pub(super) const FIELDS: &[Field] = &[
    Field { name: "role", on: MESSAGE, does: Content,
        about: "`system`, `developer` (taken as `system`), `user`, `assistant` or `tool`; required" },
    Field { name: "content", on: MESSAGE, does: Content,
        about: "a text, or an array of parts of the type `text`, whose `cache_control`, `prompt_cache_breakpoint` and `annotations` have no effect; only the assistant's message may be without" },
    Field { name: "name", on: MESSAGE, does: Content,
        about: "who speaks, for templates that know of it" },
    Field { name: "tool_calls", on: MESSAGE, does: Content,
        about: "of the assistant: its calls of functions, each with an `id`, and a `function` with its `name` and `arguments`: a JSON object, as a text or as it is; `index` and `parsed_arguments` have no effect" },
    Field { name: "tool_call_id", on: MESSAGE, does: Content,
        about: "of a tool, which has to have one: the `id` of an earlier call" },
    Field { name: "reasoning_content", on: MESSAGE, does: Content,
        about: "of the assistant: what it thought before (not OpenAI's)" },
    Field { name: "reasoning", on: MESSAGE, does: Content,
        about: "the same, by its other name (not OpenAI's)" },
    Field { name: "refusal", on: MESSAGE, does: Content,
        about: "of the assistant: what it says where it has no content" },
    Field { name: "audio", on: MESSAGE, does: Refused(is_empty), about: "there is no audio" },
    Field { name: "function_call", on: MESSAGE, does: Refused(is_empty), about: "the older form of `tool_calls`" },
    Field { name: "annotations", on: MESSAGE, does: NoEffect, about: "what a reply refers to, which models are not told" },
    Field { name: "parsed", on: MESSAGE, does: NoEffect, about: "the content as clients have read it" },
];
