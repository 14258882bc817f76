//! The conversation of a chat request.

use crate::serve::conversation::role;
use crate::serve::errors::Problem;
use crate::serve::fields::values::expected;
use crate::serve::fields::{self, Endpoint, only};
use backplane_plugin_api::types::ChatMessage;
use serde_json::{Map, Value, json};
use std::collections::HashSet;

/// Who may speak.
const ROLES: [&str; 5] = ["system", "developer", "user", "assistant", "tool"];

/// What a part of a text has.
const PART: &[&str] = &[
    "type",
    "text",
    "cache_control",
    "prompt_cache_breakpoint",
    "annotations",
];

/// Reads `messages`.
///
/// # Errors
/// It is missing, empty, or a message is not one that a text model can be given.
pub(in crate::serve) fn read(body: &Map<String, Value>) -> Result<Vec<ChatMessage>, Problem> {
    let what = "expected an array of messages with at least one";
    let messages = body.get("messages").and_then(Value::as_array);
    let messages = messages.filter(|messages| !messages.is_empty());
    let messages = messages.ok_or_else(|| Problem::field("messages", what))?;
    let mut called = HashSet::new();
    let one = |(index, value)| message(value, &format!("messages[{index}]"), &mut called);
    messages.iter().enumerate().map(one).collect()
}

/// Reads a message; `called` has the ids of the calls before it.
fn message<'a>(
    value: &'a Value,
    place: &str,
    called: &mut HashSet<&'a str>,
) -> Result<ChatMessage, Problem> {
    let object = value.as_object();
    let object = object.ok_or_else(|| Problem::field(place, "expected an object"))?;
    fields::check(Endpoint::ChatMessage, place, object)?;
    let given = |name: &str| object.get(name).filter(|value| !value.is_null());
    let at = |name: &str| format!("{place}.{name}");
    let text = |name: &str| match given(name) {
        None => Ok(None),
        Some(Value::String(text)) => Ok(Some(text.as_str())),
        Some(other) => Err(Problem::field(at(name), expected("a text", other))),
    };
    let role = role(object.get("role").unwrap_or(&Value::Null), &ROLES)
        .map_err(|why| Problem::field(at("role"), why))?;
    let assistant = role == "assistant";
    for (name, whose) in OWNED {
        if *whose != role && given(name).is_some_and(|value| *value != json!([])) {
            let what = format!("can't be honoured: only a message of the role `{whose}` has it");
            return Err(Problem::unsupported(at(name), what));
        }
    }
    let content = match given("content") {
        None => None,
        Some(Value::String(text)) => Some(text.clone()),
        Some(Value::Array(parts)) => Some(text_of(parts, &at("content"))?),
        Some(other) => {
            let what = expected("a text, or an array of parts", other);
            return Err(Problem::field(at("content"), what));
        }
    };
    if content.is_none() && !assistant {
        let what = "expected a text: only an assistant's message may have none";
        return Err(Problem::field(at("content"), what));
    }
    let content = content.or(text("refusal")?.map(str::to_owned));
    let mut extra = Map::new();
    let thought = text("reasoning_content")?.or(text("reasoning")?);
    for (name, value) in [("name", text("name")?), ("reasoning_content", thought)] {
        if let Some(value) = value {
            extra.insert(name.to_owned(), json!(value));
        }
    }
    let calls = given("tool_calls").map(|value| calls(value, &at("tool_calls"), called));
    let calls = calls.transpose()?.unwrap_or_default();
    let says = calls.is_empty();
    if !says {
        extra.insert("tool_calls".to_owned(), Value::Array(calls));
    }
    if role == "tool" {
        let id = text("tool_call_id")?;
        let what = "expected the `id` of an earlier call";
        let id = id.ok_or_else(|| Problem::field(at("tool_call_id"), what))?;
        if !called.contains(id) {
            let what = format!("no call before it has the id {id:?}");
            return Err(Problem::field(at("tool_call_id"), what));
        }
        extra.insert("tool_call_id".to_owned(), json!(id));
    }
    Ok(ChatMessage {
        role: role.to_owned(),
        // Templates know messages without a content as those that call; one that does not says nothing.
        content: match says {
            true => Some(content.unwrap_or_default()),
            false => content,
        },
        extra,
    })
}

/// What only a message of one role has.
const OWNED: &[(&str, &str)] = &[
    ("tool_calls", "assistant"),
    ("reasoning_content", "assistant"),
    ("reasoning", "assistant"),
    ("refusal", "assistant"),
    ("tool_call_id", "tool"),
];

/// The calls of an earlier message, as chat templates know them.
fn calls<'a>(
    value: &'a Value,
    place: &str,
    called: &mut HashSet<&'a str>,
) -> Result<Vec<Value>, Problem> {
    let all = value.as_array();
    let all = all.ok_or_else(|| Problem::field(place, expected("an array of calls", value)))?;
    let mut here = HashSet::new();
    let one = |(index, value): (usize, &'a Value)| {
        let place = format!("{place}[{index}]");
        let call = call(value, &place, called)?;
        match value["id"].as_str().filter(|id| !here.insert(*id)) {
            Some(id) => {
                let what = format!("expected an id of its own, found {id:?} again");
                Err(Problem::field(format!("{place}.id"), what))
            }
            None => Ok(call),
        }
    };
    all.iter().enumerate().map(one).collect()
}

fn call<'a>(
    value: &'a Value,
    place: &str,
    called: &mut HashSet<&'a str>,
) -> Result<Value, Problem> {
    only(value, place, &["id", "type", "function", "index"])?;
    match &value["type"] {
        Value::Null => {}
        kind if kind == "function" => {}
        other => {
            let what = expected("`function`", other);
            return Err(Problem::field(format!("{place}.type"), what));
        }
    }
    let part = |value: &'a Value, name: &str, place: String| {
        let text = value[name].as_str().filter(|text| !text.is_empty());
        text.ok_or_else(|| Problem::field(place, expected("a text", &value[name])))
    };
    let id = part(value, "id", format!("{place}.id"))?;
    let function = &value["function"];
    let inside = format!("{place}.function");
    only(
        function,
        &inside,
        &["name", "arguments", "parsed_arguments"],
    )?;
    let name = part(function, "name", format!("{inside}.name"))?;
    let arguments = arguments(&function["arguments"])
        .map_err(|why| Problem::field(format!("{inside}.arguments"), why))?;
    called.insert(id);
    let function = json!({ "name": name, "arguments": arguments });
    Ok(json!({ "id": id, "type": "function", "function": function }))
}

/// Arguments as a text of JSON, as OpenAI has them.
fn arguments(value: &Value) -> Result<String, String> {
    let what = "the JSON of an object, as a text or as it is";
    match value {
        Value::Object(_) => Ok(value.to_string()),
        // Of a call without arguments some say nothing.
        Value::String(text) if text.trim().is_empty() => Ok("{}".to_owned()),
        Value::String(text) => match serde_json::from_str::<Value>(text) {
            Ok(Value::Object(_)) => Ok(text.clone()),
            Ok(other) => Err(expected(what, &other)),
            Err(error) => Err(format!("{}: {error}", expected(what, value))),
        },
        other => Err(expected(what, other)),
    }
}

/// The parts of a content, one after the other.
fn text_of(parts: &[Value], place: &str) -> Result<String, Problem> {
    let one = |(index, part): (usize, &Value)| {
        let place = format!("{place}[{index}]");
        match (part["type"].as_str(), part["text"].as_str()) {
            (Some("text"), Some(text)) => {
                only(part, &place, PART)?;
                Ok(text.to_owned())
            }
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
        let call = |id: &str, arguments: Value| {
            json!({ "id": id, "type": "function", "index": 0,
                "function": { "name": "f", "arguments": arguments, "parsed_arguments": null } })
        };
        let messages = of(json!([
            { "role": "developer", "content": "be brief" },
            { "role": "user", "content": [{ "type": "text", "text": "a" }, { "type": "text", "text": "b", "cache_control": {} }], "name": "u" },
            { "role": "assistant", "content": null, "tool_calls": [], "refusal": null },
            { "role": "assistant", "tool_calls": [call("1", json!("{\"a\": 1}")), call("2", json!("")), call("3", json!({ "a": 2 }))] },
            { "role": "tool", "content": "", "tool_call_id": "2" },
            { "role": "tool", "content": "", "tool_call_id": "1", "name": "f" },
            { "role": "assistant", "content": null, "refusal": "no", "reasoning": "hm" },
        ]));
        let messages = messages.unwrap();
        assert_eq!(messages[0].role, "system");
        assert_eq!(messages[1].content.as_deref(), Some("ab"));
        assert_eq!(messages[1].extra["name"], "u");
        assert_eq!(messages[2].content.as_deref(), Some(""));
        assert!(messages[2].extra.is_empty());
        let arguments = |at: usize| {
            let calls = &messages[3].extra["tool_calls"];
            calls[at]["function"]["arguments"].as_str().unwrap()
        };
        assert_eq!([0, 1, 2].map(arguments), ["{\"a\": 1}", "{}", "{\"a\":2}"]);
        let first = &messages[3].extra["tool_calls"][0];
        assert!(first.get("index").is_none() && first["function"].as_object().unwrap().len() == 2);
        assert_eq!(messages[3].content, None);
        assert_eq!(messages[4].extra["tool_call_id"], "2");
        assert_eq!(messages[6].content.as_deref(), Some("no"));
        assert_eq!(messages[6].extra["reasoning_content"], "hm");
    }

    #[test]
    fn messages_of_the_official_clients_come_back_with_all_their_fields() {
        let function = json!({ "name": "f", "arguments": "{}", "parsed_arguments": { "a": 1 } });
        let message = json!({
            "content": null, "refusal": null, "role": "assistant", "annotations": [], "audio": null, "function_call": null,
            "parsed": null, "reasoning_content": "hm",
            "tool_calls": [{ "id": "1", "function": function, "type": "function", "index": 0 }],
        });
        let answer = json!({ "role": "tool", "tool_call_id": "1", "content": "2" });
        let messages = of(json!([{ "role": "user", "content": "x" }, message, answer])).unwrap();
        let names: Vec<&String> = messages[1].extra.keys().collect();
        assert_eq!(names, ["reasoning_content", "tool_calls"]);
    }

    #[test]
    fn what_is_wrong_is_named_with_its_place() {
        let says = |field: &str, value: Value| {
            let mut message = json!({ "role": "assistant", "content": "x" });
            message[field] = value;
            json!([message])
        };
        let calls = |call: Value| says("tool_calls", json!([call]));
        let with = |arguments: Value| {
            calls(json!({ "id": "1", "function": { "name": "f", "arguments": arguments } }))
        };
        let asks = |field: &str, value: Value| {
            let mut message = json!({ "role": "user", "content": "x" });
            message[field] = value;
            json!([message])
        };
        let answers = |id: Value| {
            let call = json!({ "id": "1", "function": { "name": "f", "arguments": "{}" } });
            json!([{ "role": "assistant", "tool_calls": [call] }, { "role": "tool", "content": "2", "tool_call_id": id }])
        };
        let function = "`messages[0].tool_calls[0].function";
        for (messages, said) in [
            (json!([]), "`messages`: expected an array".to_owned()),
            (json!("x"), "`messages`: expected an array".to_owned()),
            (json!([1]), "`messages[0]`: expected an object".to_owned()),
            (
                json!([{ "content": "x" }]),
                "`messages[0].role`: expected `system`".to_owned(),
            ),
            (
                json!([{ "role": "critic", "content": "x" }]),
                "`messages[0].role`: expected `system`, `developer`, `user`, `assistant` or `tool`, found \"critic\"".to_owned(),
            ),
            (asks("role", json!(1)), "`messages[0].role`: expected".to_owned()),
            (
                json!([{ "role": "user" }]),
                "`messages[0].content`: expected a text".to_owned(),
            ),
            (
                asks("content", json!(1)),
                "`messages[0].content`: expected a text, or an array of parts, found 1".to_owned(),
            ),
            (
                asks("content", json!([{ "type": "image_url", "image_url": {} }])),
                "a part of the type `image_url`".to_owned(),
            ),
            (
                asks("content", json!([{ "text": "x" }])),
                "`messages[0].content[0]`".to_owned(),
            ),
            (
                asks("content", json!([{ "type": "text", "text": "x", "colour": 1 }])),
                "`messages[0].content[0].colour`: no such field".to_owned(),
            ),
            (
                asks("nmae", json!("x")),
                "`messages[0].nmae`: no such field; did you mean `name`?".to_owned(),
            ),
            (asks("name", json!({})), "`messages[0].name`: expected a text, found {}".to_owned()),
            (
                asks("tool_call_id", json!("1")),
                "`messages[0].tool_call_id`: can't be honoured: only a message of the role `tool`".to_owned(),
            ),
            (
                asks("tool_calls", json!([{}])),
                "`messages[0].tool_calls`: can't be honoured: only a message of the role `assistant`".to_owned(),
            ),
            (
                says("audio", json!({ "id": "1" })),
                "`messages[0].audio`: can't be honoured: there is no audio".to_owned(),
            ),
            (
                says("function_call", json!({ "name": "f" })),
                "`messages[0].function_call`: can't be honoured".to_owned(),
            ),
            (
                says("tool_calls", json!({})),
                "`messages[0].tool_calls`: expected an array of calls, found {}".to_owned(),
            ),
            (calls(json!("f")), "`messages[0].tool_calls[0]`: expected an object".to_owned()),
            (
                calls(json!({ "function": { "name": "f", "arguments": "{}" } })),
                "`messages[0].tool_calls[0].id`: expected a text".to_owned(),
            ),
            (
                calls(json!({ "id": "1", "type": "custom", "custom": {} })),
                "`messages[0].tool_calls[0].custom`: no such field".to_owned(),
            ),
            (
                says("tool_calls", {
                    let call = json!({ "id": "1", "function": { "name": "f", "arguments": "{}" } });
                    json!([call.clone(), call])
                }),
                "`messages[0].tool_calls[1].id`: expected an id of its own, found \"1\" again"
                    .to_owned(),
            ),
            (calls(json!({ "id": "1" })), format!("{function}`: expected an object")),
            (
                calls(json!({ "id": "1", "function": { "arguments": "{}" } })),
                format!("{function}.name`: expected a text"),
            ),
            (
                with(json!(null)),
                format!("{function}.arguments`: expected the JSON of an object, as a text or as it is, found null"),
            ),
            (with(json!(7)), format!("{function}.arguments`: expected the JSON")),
            (with(json!("[1]")), format!("{function}.arguments`: expected the JSON of an object, as a text or as it is, found [1]")),
            (with(json!("{\"a\":")), format!("{function}.arguments`: expected the JSON")),
            (answers(json!(null)), "`messages[1].tool_call_id`: expected the `id` of an earlier call".to_owned()),
            (answers(json!("2")), "`messages[1].tool_call_id`: no call before it has the id \"2\"".to_owned()),
            (answers(json!(1)), "`messages[1].tool_call_id`: expected a text, found 1".to_owned()),
        ] {
            let message = of(messages).unwrap_err();
            assert!(message.contains(&said), "{message}: no {said}");
            assert!(!message.contains('\n'), "{message}");
        }
    }
}
