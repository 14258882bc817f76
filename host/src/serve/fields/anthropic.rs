//! Fields of `POST /v1/messages` and `POST /v1/messages/count_tokens`.

use super::Does::{Content, Honoured, NoEffect, Refused};
use super::openai::{seed, template};
use super::values::{Amiss, boolean, expected, is_empty, number, of_field, of_item, text, whole};
use super::{Asked, Endpoint, Field};
use crate::serve::tools::{self, Choice, Held, To, Tool};
use serde_json::{Map, Value, json};

const BOTH: &[Endpoint] = &[Endpoint::Messages, Endpoint::CountTokens];
const MESSAGES: &[Endpoint] = &[Endpoint::Messages];

#[rustfmt::skip]
pub(super) const FIELDS: &[Field] = &[
    Field { name: "model", on: BOTH, does: Honoured(|it, v| text(v).map(|v| it.model = v)),
        about: "name of a model that is served, as `GET /v1/models` lists it; required" },
    Field { name: "messages", on: BOTH, does: Content,
        about: "the conversation; content is a text, or blocks of the types `text`, `thinking`, `tool_use` and `tool_result`; `citations`, `signature` and `caller` of these have no effect; messages of one role in a row are one; the last is the user's; required" },
    Field { name: "system", on: BOTH, does: Content,
        about: "what comes before the conversation: a text, or blocks of the type `text`, one a line" },
    Field { name: "max_tokens", on: MESSAGES, does: Honoured(|it, v| whole(v, 0, u32::MAX).map(|v| it.generate.max_tokens = Some(v))),
        about: "most tokens of the reply: with those of the prompt more than the context is an error; 0 counts the prompt's tokens and reads nothing; required" },
    Field { name: "stream", on: MESSAGES, does: Honoured(|it, v| boolean(v).map(|v| it.stream = v)),
        about: "the reply as server-sent events, as it is made" },
    Field { name: "stop_sequences", on: MESSAGES, does: Honoured(stop_sequences),
        about: "up to 16 texts before which the reply ends, within thoughts too, and within a call that the model makes of itself, which is then none; none within a call that has to be made" },
    Field { name: "temperature", on: MESSAGES, does: Honoured(|it, v| number(v, 0.0, f32::MAX).map(|v| it.generate.sampling.temperature = Some(v))),
        about: "0 always takes the likeliest token; the backend's default unless given (0.8 for `cpu`)" },
    Field { name: "top_p", on: MESSAGES, does: Honoured(|it, v| number(v, 0.0, 1.0).map(|v| it.generate.sampling.top_p = Some(v))),
        about: "keeps the likeliest tokens whose probabilities reach it" },
    Field { name: "top_k", on: MESSAGES, does: Honoured(|it, v| whole(v, 0, u32::MAX).map(|v| it.generate.sampling.top_k = Some(v))),
        about: "keeps that many of the likeliest tokens; 0 keeps all" },
    Field { name: "tools", on: BOTH, does: Honoured(|it, v| offered(v).map(|v| it.tools.offered = v)),
        about: "up to 128 functions that the model may call; `input_schema` is a JSON schema; tools that a provider runs are refused; `strict` has no effect: arguments always follow the schema" },
    Field { name: "tool_choice", on: BOTH, does: Honoured(tool_choice),
        about: "`auto`, `any`, `none`, or a `tool` by its name; `disable_parallel_tool_use`" },
    Field { name: "output_config", on: BOTH, does: Honoured(output_config),
        about: "`format`: a `json_schema` with the `schema` that the reply follows; `effort` is refused: how long a model thinks is set by `chat_template_kwargs`" },
    Field { name: "thinking", on: BOTH, does: Honoured(thinking), about: "`disabled`, `enabled` or `adaptive`: given to the template as `enable_thinking`; `budget_tokens` and `display` have no effect; what is thought is told in blocks of the type `thinking`, with an empty signature" },
    Field { name: "diagnostics", on: MESSAGES, does: Refused(|v| is_empty(v) || *v == json!({ "previous_message_id": null })), about: "no message is stored to compare with" },
    Field { name: "container", on: MESSAGES, does: Refused(is_empty), about: "there are no containers" },
    Field { name: "thread", on: BOTH, does: Refused(is_empty), about: "no conversation is kept: each request brings its whole history; the refusal is the one after which Anthropic's clients go on without threads" },
    Field { name: "context_management", on: BOTH, does: Refused(is_empty), about: "nothing of a conversation is left out" },
    Field { name: "mcp_servers", on: BOTH, does: Refused(is_empty), about: "no other servers are asked" },
    Field { name: "inference_geo", on: MESSAGES, does: Refused(|v| v == "global"), about: "it runs here" },
    Field { name: "service_tier", on: MESSAGES, does: Refused(|v| v == "auto" || v == "standard_only"), about: "there is one tier" },
    Field { name: "speed", on: BOTH, does: Refused(|v| v == "standard"), about: "there is one speed" },
    Field { name: "cache_control", on: BOTH, does: NoEffect, about: "prompts are cached by what they begin with; the same in blocks and tools" },
    Field { name: "metadata", on: MESSAGES, does: NoEffect, about: "names an end user to the provider" },
    Field { name: "seed", on: MESSAGES, does: Honoured(seed), about: "the same seed gives the same reply (not Anthropic's)" },
    Field { name: "min_p", on: MESSAGES, does: Honoured(|it, v| number(v, 0.0, 1.0).map(|v| it.generate.sampling.min_p = Some(v))),
        about: "drops tokens less likely than that share of the likeliest (not Anthropic's)" },
    Field { name: "chat_template_kwargs", on: BOTH, does: Honoured(template),
        about: "variables for the model's chat template, such as `enable_thinking` (not Anthropic's)" },
];

fn stop_sequences(asked: &mut Asked, value: &Value) -> Result<(), Amiss> {
    let what = "an array of up to 16 texts that are not empty";
    let many = value.as_array().filter(|many| many.len() <= 16);
    let many = many.ok_or_else(|| expected(what, value))?;
    let one = |(index, value): (usize, &Value)| {
        let text = value.as_str().filter(|text| !text.is_empty());
        text.map(str::to_owned)
            .ok_or_else(|| of_item(index, expected(what, value)))
    };
    asked.generate.stop = many.iter().enumerate().map(one).collect::<Result<_, _>>()?;
    Ok(())
}

fn output_config(asked: &mut Asked, value: &Value) -> Result<(), Amiss> {
    let what = "an object with `format`";
    for (name, value) in value.as_object().ok_or_else(|| expected(what, value))? {
        match name.as_str() {
            _ if value.is_null() => {}
            "format" => {
                if value["type"] != "json_schema" || !value["schema"].is_object() {
                    let what = "the type `json_schema` with a `schema`, an object";
                    return Err(of_field(name, expected(what, value)));
                }
                let mut keys = value.as_object().into_iter().flat_map(Map::keys);
                if let Some(other) = keys.find(|key| !["type", "schema"].contains(&key.as_str())) {
                    return Err(of_field(name, of_field(other, "no such field".to_owned())));
                }
                asked.hold(Some(Held {
                    to: To::Schema(value["schema"].clone()),
                    field: "output_config",
                    place: "/output_config/format/schema",
                }));
            }
            "effort" => return Err(of_field(name, "can't be honoured".to_owned())),
            other => return Err(of_field(other, "no such option".to_owned())),
        }
    }
    Ok(())
}

fn thinking(asked: &mut Asked, value: &Value) -> Result<(), Amiss> {
    let what = "an object of the type disabled, enabled or adaptive";
    let wrong = || expected(what, value);
    for (name, value) in value.as_object().ok_or_else(wrong)? {
        match name.as_str() {
            "type" => {}
            "budget_tokens" => {
                whole(value, 1, u32::MAX).map_err(|why| of_field(name, why))?;
            }
            "display" if value.is_null() || value.is_string() => {}
            other => return Err(of_field(other, "no such option".to_owned())),
        }
    }
    let on = match value["type"].as_str() {
        Some("disabled") => false,
        Some("enabled" | "adaptive") => true,
        _ => return Err(wrong().into()),
    };
    asked.set_template("enable_thinking", json!(on));
    Ok(())
}

fn offered(value: &Value) -> Result<Vec<Tool>, Amiss> {
    let what = "an array of up to 128 tools";
    let all = value.as_array().filter(|all| all.len() <= 128);
    let all = all.ok_or_else(|| expected(what, value))?;
    let mut tools: Vec<Tool> = Vec::new();
    for (index, one) in all.iter().enumerate() {
        let tool = tool(index, one).map_err(|why| of_item(index, why))?;
        if tools.iter().any(|other| other.name == tool.name) {
            let why = format!("there are two tools named `{}`", tool.name);
            return Err(of_item(index, of_field("name", why)));
        }
        tools.push(tool);
    }
    Ok(tools)
}

fn tool(index: usize, value: &Value) -> Result<Tool, Amiss> {
    let object = value
        .as_object()
        .ok_or_else(|| expected("an object", value))?;
    let name = tools::name(&value["name"])?;
    for (key, value) in object {
        let what = match key.as_str() {
            "type" if value != "custom" && !value.is_null() => {
                let why = format!("can't be honoured: there is no tool of the type {value}");
                return Err(of_field(key, why));
            }
            "name" | "type" | "cache_control" | "input_examples" => continue,
            "description" if !(value.is_string() || value.is_null()) => "a text",
            "input_schema" if !value.is_object() => "a JSON schema, an object",
            "strict" | "defer_loading" | "eager_input_streaming"
                if !(value.is_boolean() || value.is_null()) =>
            {
                "true or false"
            }
            "description" | "input_schema" | "strict" | "eager_input_streaming" => continue,
            "defer_loading" if *value != Value::Bool(true) => continue,
            "defer_loading" => return Err(of_field(key, "can't be honoured".to_owned())),
            other => return Err(of_field(other, "no such field of a tool".to_owned())),
        };
        return Err(of_field(key, expected(what, value)));
    }
    Ok(Tool {
        name,
        description: value["description"].as_str().map(str::to_owned),
        parameters: object.get("input_schema").cloned(),
        place: format!("/tools/{index}/input_schema"),
    })
}

fn tool_choice(asked: &mut Asked, value: &Value) -> Result<(), Amiss> {
    let wrong = || expected("an object of the type auto, any, tool or none", value);
    let object = value.as_object().ok_or_else(wrong)?;
    for (key, value) in object {
        match key.as_str() {
            "type" | "name" => {}
            "disable_parallel_tool_use" => {
                asked.tools.parallel = !boolean(value).map_err(|why| of_field(key, why))?
            }
            other => return Err(of_field(other, "no such option".to_owned())),
        }
    }
    asked.tools.choice = match value["type"].as_str() {
        Some("auto") => Choice::Auto,
        Some("any") => Choice::Required,
        Some("none") => Choice::None,
        Some("tool") => Choice::Named(tools::name(&value["name"])?),
        _ => return Err(wrong().into()),
    };
    Ok(())
}
