//! From `instructions` and `input` to a conversation.

use crate::serve::conversation::{Conversation, role};
use crate::serve::errors::Problem;
use crate::serve::fields::{self, Endpoint, only};
use serde_json::{Map, Value};

/// What a part of a text has; only the first two count.
const PART: &[&str] = &[
    "type",
    "text",
    "annotations",
    "logprobs",
    "parsed",
    "cache_control",
    "prompt_cache_breakpoint",
];

/// Reads them.
///
/// # Errors
/// One is not as it is to be, or has what a text model can't be given.
pub(super) fn read(body: &Map<String, Value>) -> Result<Conversation, Problem> {
    let mut all = Conversation::default();
    match body.get("instructions") {
        None | Some(Value::Null) => {}
        Some(Value::String(text)) => all.say("system", text),
        Some(_) => return Err(Problem::field("instructions", "expected a text")),
    }
    match body.get("input") {
        Some(Value::String(text)) => all.say("user", text),
        Some(Value::Array(items)) if !items.is_empty() => {
            for (index, value) in items.iter().enumerate() {
                item(value, &format!("input[{index}]"), &mut all)?;
            }
        }
        _ => {
            let what = "expected a text, or an array of items with at least one";
            return Err(Problem::field("input", what));
        }
    }
    Ok(all)
}

fn item(value: &Value, place: &str, all: &mut Conversation) -> Result<(), Problem> {
    let object = value.as_object();
    let object = object.ok_or_else(|| Problem::field(place, "expected an object"))?;
    fields::check(Endpoint::ResponseItem, place, object)?;
    let part = |name: &str| {
        let text = value[name].as_str().filter(|text| !text.is_empty());
        text.ok_or_else(|| Problem::field(format!("{place}.{name}"), "expected a text"))
    };
    match value["type"].as_str() {
        None | Some("message") => {
            let role = role(
                &value["role"],
                &["user", "assistant", "system", "developer"],
            )
            .map_err(|why| Problem::field(format!("{place}.role"), why))?;
            all.say(role, text(&value["content"], &format!("{place}.content"))?);
        }
        Some("function_call") => {
            let arguments = part("arguments")?;
            let arguments: Map<String, Value> =
                serde_json::from_str(arguments).map_err(|error| {
                    let what = format!("expected the JSON of an object, as a text: {error}");
                    Problem::field(format!("{place}.arguments"), what)
                })?;
            let arguments = Value::Object(arguments);
            all.call(part("call_id")?, part("name")?, &arguments)
                .map_err(|why| Problem::field(format!("{place}.call_id"), why))?;
        }
        Some("reasoning") => {
            for name in ["content", "summary"] {
                let parts = value[name].as_array().filter(|parts| !parts.is_empty());
                let Some(parts) = parts else {
                    continue;
                };
                for (index, part) in parts.iter().enumerate() {
                    let place = format!("{place}.{name}[{index}].text");
                    let text = part["text"].as_str();
                    all.think(text.ok_or_else(|| Problem::field(place, "expected a text"))?);
                }
                break;
            }
        }
        Some("function_call_output") => {
            let output = text(&value["output"], &format!("{place}.output"))?;
            all.result(part("call_id")?, None, output)
                .map_err(|why| Problem::field(format!("{place}.call_id"), why))?;
        }
        Some(other) => {
            let what = format!("can't be honoured: an item of the type `{other}`");
            return Err(Problem::unsupported(place, what));
        }
    }
    Ok(())
}

/// A text, or parts of text, one after the other.
fn text(value: &Value, place: &str) -> Result<String, Problem> {
    let parts = match value {
        Value::String(text) => return Ok(text.clone()),
        Value::Array(parts) => parts,
        _ => {
            return Err(Problem::field(
                place,
                "expected a text, or an array of parts",
            ));
        }
    };
    let one = |(index, part): (usize, &Value)| {
        let place = format!("{place}[{index}]");
        match (part["type"].as_str(), part["text"].as_str()) {
            (Some("input_text" | "output_text" | "text"), Some(text)) => {
                only(part, &place, PART)?;
                Ok(text.to_owned())
            }
            (Some("input_text" | "output_text" | "text") | None, _) => {
                let what =
                    "expected a part of the type `input_text` or `output_text` with its `text`";
                Err(Problem::field(place, what))
            }
            (Some(other), _) => {
                let what = format!("can't be honoured: a part of the type `{other}`");
                Err(Problem::unsupported(place, what))
            }
        }
    };
    parts.iter().enumerate().map(one).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn items_of_every_kind() {
        let body = json!({
            "instructions": "be brief",
            "input": [
                { "role": "user", "content": [{ "type": "input_text", "text": "a" }, { "type": "input_text", "text": "b" }] },
                { "type": "message", "id": "msg_1", "status": "completed", "role": "assistant",
                  "content": [{ "type": "output_text", "text": "c", "annotations": [] }] },
                { "type": "reasoning", "id": "rs_1", "summary": [], "content": [{ "type": "reasoning_text", "text": "hm" }] },
                { "type": "function_call", "id": "fc_1", "call_id": "1", "name": "f", "arguments": "{\"x\":1}",
                  "async_": null, "caller": null, "namespace": null, "status": "completed" },
                { "type": "function_call_output", "call_id": "1", "output": "2" },
            ],
        });
        let messages = read(body.as_object().unwrap()).unwrap().into_messages();
        let told: Vec<(&str, &str)> = messages
            .iter()
            .map(|it| (it.role.as_str(), it.content.as_deref().unwrap_or("-")))
            .collect();
        assert_eq!(
            told,
            [
                ("system", "be brief"),
                ("user", "ab"),
                ("assistant", "c"),
                ("tool", "2")
            ]
        );
        assert_eq!(messages[2].extra["reasoning_content"], "hm");
        assert_eq!(
            messages[2].extra["tool_calls"][0]["function"]["arguments"]["x"],
            1
        );
    }

    #[test]
    fn what_is_wrong_is_named_with_its_place() {
        for (input, said) in [
            (json!(null), "`input`: expected a text"),
            (json!([]), "`input`: expected a text"),
            (json!([1]), "`input[0]`: expected an object"),
            (
                json!([{ "content": "x" }]),
                "`input[0].role`: expected `user`",
            ),
            (
                json!([{ "role": "critic", "content": "x" }]),
                "`input[0].role`: expected `user`, `assistant`, `system` or `developer`, found \"critic\"",
            ),
            (
                json!([{ "role": "user", "content": 1 }]),
                "`input[0].content`",
            ),
            (
                json!([{ "role": "user", "content": [{ "type": "input_image" }] }]),
                "`input[0].content[0]`: can't be honoured",
            ),
            (
                json!([{ "type": "reasoning", "summary": [{}] }]),
                "`input[0].summary[0].text`: expected a text",
            ),
            (
                json!([{ "type": "function_call", "call_id": "1", "name": "f", "arguments": "[1]" }]),
                "`input[0].arguments`: expected the JSON of an object, as a text",
            ),
            (
                json!([{ "role": "user", "content": "x", "colour": 1 }]),
                "`input[0].colour`: no such field",
            ),
            (
                json!([{ "role": "user", "content": [{ "type": "input_text", "text": "x", "colour": 1 }] }]),
                "`input[0].content[0].colour`: no such field",
            ),
            (
                json!([{ "type": "function_call", "call_id": "1", "name": "f", "arguments": "{}", "namespace": "n" }]),
                "`input[0].namespace`: can't be honoured",
            ),
            (
                json!([{ "type": "web_search_call" }]),
                "`input[0]`: can't be honoured: an item of the type `web_search_call`",
            ),
            (
                json!([{ "type": "function_call", "call_id": "1", "name": "f", "arguments": "{" }]),
                "`input[0].arguments`: expected the JSON of an object, as a text",
            ),
            (
                json!([{ "type": "function_call_output", "call_id": "1", "output": "x" }]),
                "`input[0].call_id`: no tool was called",
            ),
            (
                json!([
                    { "type": "function_call", "call_id": "1", "name": "f", "arguments": "{}" },
                    { "type": "function_call_output", "call_id": "1", "output": "x" },
                    { "type": "function_call", "call_id": "1", "name": "g", "arguments": "{}" },
                ]),
                "`input[2].call_id`: expected an id of its own, found \"1\" again",
            ),
            (
                json!([
                    { "type": "function_call_output", "call_id": "1", "output": "x" },
                    { "type": "function_call", "call_id": "1", "name": "f", "arguments": "{}" },
                ]),
                "`input[0].call_id`: no tool was called",
            ),
        ] {
            let body = json!({ "input": input });
            let problem = read(body.as_object().unwrap()).unwrap_err().json();
            let message = problem["error"]["message"].as_str().unwrap();
            assert!(
                message.contains(said) && !message.contains('\n'),
                "{message}"
            );
        }
    }
}
