//! Fields of `POST /v1/responses`.

use super::Does::{Content, Honoured, NoEffect, Refused};
use super::openai::{effort, seed, stream_options, template};
use super::values::{
    Amiss, boolean, expected, is_empty, is_false, number, of_field, of_item, text, whole,
};
use super::{Asked, Endpoint, Field};
use crate::serve::tools::{self, Choice, Held, Tool};
use serde_json::{Map, Value, json};

const RESPONSES: &[Endpoint] = &[Endpoint::Responses];

#[rustfmt::skip]
pub(super) const FIELDS: &[Field] = &[
    Field { name: "model", on: RESPONSES, does: Honoured(|it, v| text(v).map(|v| it.model = v)),
        about: "name of a model that is served, as `GET /v1/models` lists it; required" },
    Field { name: "input", on: RESPONSES, does: Content,
        about: "a text, or an array of items: messages with `input_text` and `output_text`, `reasoning`, `function_call` and `function_call_output`; required" },
    Field { name: "instructions", on: RESPONSES, does: Content, about: "what comes before the input, as the system's" },
    Field { name: "stream", on: RESPONSES, does: Honoured(|it, v| boolean(v).map(|v| it.stream = v)),
        about: "the response as named server-sent events, as it is made" },
    Field { name: "stream_options", on: RESPONSES, does: Honoured(stream_options), about: "`include_obfuscation` has no effect" },
    Field { name: "max_output_tokens", on: RESPONSES, does: Honoured(|it, v| whole(v, 0, u32::MAX).map(|v| it.generate.max_tokens = Some(v))),
        about: "most tokens of the response: with those of the input more than the context is an error; up to the end of the context unless given" },
    Field { name: "temperature", on: RESPONSES, does: Honoured(|it, v| number(v, 0.0, f32::MAX).map(|v| it.generate.sampling.temperature = Some(v))),
        about: "0 always takes the likeliest token; the backend's default unless given (0.8 for `cpu`)" },
    Field { name: "top_p", on: RESPONSES, does: Honoured(|it, v| number(v, 0.0, 1.0).map(|v| it.generate.sampling.top_p = Some(v))),
        about: "keeps the likeliest tokens whose probabilities reach it" },
    Field { name: "top_k", on: RESPONSES, does: Honoured(|it, v| whole(v, 0, u32::MAX).map(|v| it.generate.sampling.top_k = Some(v))),
        about: "keeps that many of the likeliest tokens; 0 keeps all (not OpenAI's)" },
    Field { name: "min_p", on: RESPONSES, does: Honoured(|it, v| number(v, 0.0, 1.0).map(|v| it.generate.sampling.min_p = Some(v))),
        about: "drops tokens less likely than that share of the likeliest (not OpenAI's)" },
    Field { name: "seed", on: RESPONSES, does: Honoured(seed), about: "the same seed gives the same response (not OpenAI's here)" },
    Field { name: "top_logprobs", on: RESPONSES, does: Honoured(top_logprobs),
        about: "of how many of the likeliest, 0 to 20; log probabilities are told with it, or with `include`" },
    Field { name: "include", on: RESPONSES, does: Honoured(include), about: "`message.output_text.logprobs`; `reasoning.encrypted_content` has no effect: what is thought is told open" },
    Field { name: "text", on: RESPONSES, does: Honoured(text_config), about: "`format`: `text`, `json_object`, or `json_schema` with a `schema` that the response follows; `verbosity`: only `medium`" },
    Field { name: "tools", on: RESPONSES, does: Honoured(|it, v| offered(v).map(|v| it.tools.offered = v)),
        about: "up to 128 functions that the model may call; `parameters` is a JSON schema; tools that a provider runs are refused; `strict` has no effect: arguments always follow the schema" },
    Field { name: "tool_choice", on: RESPONSES, does: Honoured(tool_choice),
        about: "`auto`, `none`, `required`, a function by its name, or `allowed_tools` with a mode" },
    Field { name: "parallel_tool_calls", on: RESPONSES, does: Honoured(|it, v| boolean(v).map(|v| it.tools.parallel = v)),
        about: "whether several tools may be called in one response; true unless given" },
    Field { name: "chat_template_kwargs", on: RESPONSES, does: Honoured(template),
        about: "variables for the model's chat template, such as `enable_thinking` (not OpenAI's)" },
    Field { name: "reasoning", on: RESPONSES, does: Honoured(reasoning), about: "`effort`: given to the template as `reasoning_effort`, and as `enable_thinking`, which `none` turns off; `summary` has no effect: what is thought is told as it is, in items of the type `reasoning`" },
    Field { name: "previous_response_id", on: RESPONSES, does: Refused(is_empty), about: "no response is stored: give the conversation as input" },
    Field { name: "conversation", on: RESPONSES, does: Refused(is_empty), about: "no conversation is stored: give it as input" },
    Field { name: "prompt", on: RESPONSES, does: Refused(is_empty), about: "no prompts are stored" },
    Field { name: "background", on: RESPONSES, does: Refused(is_false), about: "a response that nobody waits for is stopped" },
    Field { name: "truncation", on: RESPONSES, does: Refused(|v| v == "disabled"), about: "nothing is cut: what is longer than the context is refused" },
    Field { name: "context_management", on: RESPONSES, does: Refused(is_empty), about: "nothing of a conversation is left out" },
    Field { name: "moderation", on: RESPONSES, does: Refused(is_empty), about: "nothing is moderated" },
    Field { name: "service_tier", on: RESPONSES, does: Refused(|v| v == "auto" || v == "default"), about: "there is one tier" },
    Field { name: "store", on: RESPONSES, does: NoEffect, about: "nothing is stored, and every response says so: `store` is false" },
    Field { name: "max_tool_calls", on: RESPONSES, does: NoEffect, about: "of tools that a provider runs: there are none" },
    Field { name: "metadata", on: RESPONSES, does: NoEffect, about: "labels for the caller's own use; the response repeats them" },
    Field { name: "user", on: RESPONSES, does: NoEffect, about: "names an end user to the provider" },
    Field { name: "safety_identifier", on: RESPONSES, does: NoEffect, about: "names an end user to the provider" },
    Field { name: "prompt_cache_key", on: RESPONSES, does: NoEffect, about: "prompts are cached by what they begin with" },
    Field { name: "prompt_cache_options", on: RESPONSES, does: NoEffect, about: "prompts are cached by what they begin with" },
    Field { name: "prompt_cache_retention", on: RESPONSES, does: NoEffect, about: "prompts are cached by what they begin with" },
];

fn reasoning(asked: &mut Asked, value: &Value) -> Result<(), Amiss> {
    let object = value
        .as_object()
        .ok_or_else(|| expected("an object with `effort`", value))?;
    for (name, value) in object {
        match name.as_str() {
            "effort" if value.is_null() => {}
            "effort" => effort(asked, value).map_err(|why| of_field(name, why))?,
            "summary" | "generate_summary"
                if value.is_null()
                    || value == "auto"
                    || value == "concise"
                    || value == "detailed" => {}
            "summary" | "generate_summary" => {
                let what = "`auto`, `concise` or `detailed`";
                return Err(of_field(name, expected(what, value)));
            }
            other => return Err(of_field(other, "no such option".to_owned())),
        }
    }
    Ok(())
}

/// They are told with it, whatever is included.
fn top_logprobs(asked: &mut Asked, value: &Value) -> Result<(), Amiss> {
    asked.top_logprobs = Some(whole(value, 0, 20)?);
    asked.wants_logprobs = true;
    Ok(())
}

fn include(asked: &mut Asked, value: &Value) -> Result<(), Amiss> {
    let what = "an array of `message.output_text.logprobs`";
    let all = value.as_array().ok_or_else(|| expected(what, value))?;
    for (index, one) in all.iter().enumerate() {
        // What is thought is told open, and taken back so.
        if one == "reasoning.encrypted_content" {
            continue;
        }
        if one != "message.output_text.logprobs" {
            return Err(of_item(index, format!("can't be honoured: {one}")));
        }
        asked.wants_logprobs = true;
    }
    Ok(())
}

fn text_config(asked: &mut Asked, value: &Value) -> Result<(), Amiss> {
    let object = value
        .as_object()
        .ok_or_else(|| expected("an object", value))?;
    for (name, value) in object {
        match name.as_str() {
            "format" if value.is_null() => {}
            "format" => {
                let of_chat = match value["type"].as_str() {
                    Some("json_schema") => in_object(value, "json_schema"),
                    _ => value.clone(),
                };
                let held = tools::read_format(&of_chat)
                    .map_err(|why| of_field(name, flat(why, "json_schema")))?;
                asked.hold(held.map(|held| Held {
                    field: "text",
                    place: "/text/format/schema",
                    ..held
                }));
            }
            "verbosity" if value.is_null() || value == "medium" => {}
            "verbosity" => {
                return Err(of_field(
                    name,
                    "can't be honoured: only `medium`".to_owned(),
                ));
            }
            other => return Err(of_field(other, "no such option".to_owned())),
        }
    }
    Ok(())
}

/// As chats have it: all but the type in an object of its own.
fn in_object(value: &Value, name: &str) -> Value {
    let mut inner = value.clone();
    if let Some(object) = inner.as_object_mut() {
        object.remove("type");
    }
    json!({ "type": value["type"], name: inner })
}

/// Where a fault lies in what chats have in an object of its own.
fn flat(amiss: Amiss, name: &str) -> Amiss {
    let place = amiss.place.replacen(&format!(".{name}"), "", 1);
    Amiss { place, ..amiss }
}

fn as_of_chat(value: &Value) -> Value {
    in_object(value, "function")
}

fn offered(value: &Value) -> Result<Vec<Tool>, Amiss> {
    let functions = value
        .as_array()
        .map(|all| all.iter().map(as_of_chat).collect());
    let tools = tools::read(functions.as_ref().unwrap_or(value));
    let mut tools = tools.map_err(|why| flat(why, "function"))?;
    for (index, tool) in tools.iter_mut().enumerate() {
        tool.place = format!("/tools/{index}/parameters");
    }
    Ok(tools)
}

fn tool_choice(asked: &mut Asked, value: &Value) -> Result<(), Amiss> {
    let of_chat = match value["type"].as_str() {
        Some("function") => as_of_chat(value),
        Some("allowed_tools") => {
            let mut keys = value.as_object().into_iter().flat_map(Map::keys);
            if let Some(other) = keys.find(|key| !["type", "mode", "tools"].contains(&key.as_str()))
            {
                return Err(of_field(other, "no such field of a choice".to_owned()));
            }
            let names = value["tools"].as_array();
            let names: Option<Value> = names.map(|all| all.iter().map(as_of_chat).collect());
            json!({ "type": "allowed_tools", "allowed_tools": { "mode": value["mode"], "tools": names } })
        }
        _ => value.clone(),
    };
    let read = tools::read_choice(&of_chat, &mut asked.tools);
    read.map_err(|why| flat(flat(why, "function"), "allowed_tools"))
}

/// A choice as responses tell it.
pub(in crate::serve) fn choice_json(choice: &Choice) -> Value {
    match choice {
        Choice::Auto => json!("auto"),
        Choice::None => json!("none"),
        Choice::Required => json!("required"),
        Choice::Named(name) => json!({ "type": "function", "name": name }),
    }
}
