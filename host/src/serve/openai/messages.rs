//! The conversation of a chat request.

use crate::serve::errors::Problem;
use backplane_plugin_api::types::ChatMessage;
use serde_json::{Map, Value};

/// Reads `messages`.
///
/// # Errors
/// It is missing, empty, or a message is not one that a text model can be given.
pub(in crate::serve) fn read(body: &Map<String, Value>) -> Result<Vec<ChatMessage>, Problem> {
    let what = "expected an array of messages with at least one";
    let messages = body.get("messages").and_then(Value::as_array);
    let messages = messages.filter(|messages| !messages.is_empty());
    let messages = messages.ok_or_else(|| Problem::field("messages", what))?;
    messages.iter().enumerate().map(message).collect()
}

fn message((index, value): (usize, &Value)) -> Result<ChatMessage, Problem> {
    let place = |field: &str| format!("messages[{index}]{field}");
    let Some(object) = value.as_object() else {
        return Err(Problem::field(place(""), "expected an object"));
    };
    let role = object.get("role").and_then(Value::as_str);
    let role = role.filter(|role| !role.is_empty());
    let role = role.ok_or_else(|| Problem::field(place(".role"), "expected a role"))?;
    // Templates know the older name.
    let role = if role == "developer" { "system" } else { role };
    let content = match object.get("content") {
        None | Some(Value::Null) => None,
        Some(Value::String(text)) => Some(text.clone()),
        Some(Value::Array(parts)) => Some(text_of(parts, &place(".content"))?),
        Some(_) => {
            let what = "expected a text, or an array of parts";
            return Err(Problem::field(place(".content"), what));
        }
    };
    if content.is_none() && role != "assistant" {
        let what = "expected a text: only an assistant's message may have none";
        return Err(Problem::field(place(".content"), what));
    }
    calls(object.get("tool_calls"), &place(".tool_calls"))?;
    // Templates know messages without a content as those that call; one that does not says nothing.
    let calls = object.get("tool_calls").and_then(Value::as_array);
    let content = match calls.is_none_or(Vec::is_empty) {
        true => Some(content.unwrap_or_default()),
        false => content,
    };
    let others = object.iter().filter(|(name, value)| {
        name.as_str() != "role" && name.as_str() != "content" && !value.is_null()
    });
    Ok(ChatMessage {
        role: role.to_owned(),
        content,
        extra: others
            .map(|(name, value)| (name.clone(), value.clone()))
            .collect(),
    })
}

/// That the calls of an earlier message are calls.
fn calls(value: Option<&Value>, place: &str) -> Result<(), Problem> {
    let Some(value) = value.filter(|value| !value.is_null()) else {
        return Ok(());
    };
    let all = value.as_array();
    let all = all.ok_or_else(|| Problem::field(place, "expected an array of calls"))?;
    for (index, call) in all.iter().enumerate() {
        let function = &call["function"];
        if !(function["name"].is_string() && function["arguments"].is_string()) {
            let what = "expected a function's name, and its arguments as a text";
            return Err(Problem::field(format!("{place}[{index}].function"), what));
        }
    }
    Ok(())
}

/// The parts of a content, one after the other.
fn text_of(parts: &[Value], place: &str) -> Result<String, Problem> {
    let one = |(index, part): (usize, &Value)| {
        let place = format!("{place}[{index}]");
        match (part["type"].as_str(), part["text"].as_str()) {
            (Some("text"), Some(text)) => Ok(text.to_owned()),
            (Some("text") | None, _) => {
                let what = "expected a part of the type `text` with its `text`";
                Err(Problem::field(place, what))
            }
            (Some(other), _) => {
                let what =
                    format!("can't be honoured: a part of the type `{other}`; only `text` is read");
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

    fn of(messages: Value) -> Result<Vec<ChatMessage>, String> {
        let body = json!({ "messages": messages });
        read(body.as_object().unwrap()).map_err(|problem| {
            let json = problem.json();
            json["error"]["message"].as_str().unwrap().to_owned()
        })
    }

    #[test]
    fn conversations() {
        let messages = of(json!([
            { "role": "developer", "content": "be brief" },
            { "role": "user", "content": [{ "type": "text", "text": "a" }, { "type": "text", "text": "b" }], "name": "u" },
            { "role": "assistant", "content": null, "tool_calls": [], "refusal": null },
            { "role": "tool", "content": "", "tool_call_id": "1" },
        ]));
        let messages = messages.unwrap();
        assert_eq!(messages[0].role, "system");
        assert_eq!(messages[1].content.as_deref(), Some("ab"));
        assert_eq!(messages[1].extra["name"], "u");
        assert_eq!(messages[2].content.as_deref(), Some(""));
        assert_eq!(messages[2].extra.len(), 1);
        assert_eq!(messages[3].extra["tool_call_id"], "1");
    }

    #[test]
    fn what_is_wrong_is_named_with_its_place() {
        for (messages, said) in [
            (json!([]), "`messages`: expected an array"),
            (json!("x"), "`messages`: expected an array"),
            (json!([1]), "`messages[0]`: expected an object"),
            (json!([{ "content": "x" }]), "`messages[0].role`"),
            (
                json!([{ "role": "user" }]),
                "`messages[0].content`: expected a text",
            ),
            (
                json!([{ "role": "user", "content": 1 }]),
                "`messages[0].content`",
            ),
            (
                json!([{ "role": "user", "content": [{ "type": "image_url", "image_url": {} }] }]),
                "a part of the type `image_url`",
            ),
            (
                json!([{ "role": "assistant", "content": null, "tool_calls": {} }]),
                "`messages[0].tool_calls`: expected an array",
            ),
            (
                json!([{ "role": "assistant", "tool_calls": [{ "function": { "name": "f", "arguments": {} } }] }]),
                "`messages[0].tool_calls[0].function`",
            ),
            (
                json!([{ "role": "user", "content": [{ "text": "x" }] }]),
                "`messages[0].content[0]`",
            ),
        ] {
            let message = of(messages).unwrap_err();
            assert!(message.contains(said), "{message}");
        }
    }
}
