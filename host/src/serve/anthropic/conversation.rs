//! From Anthropic's messages to a conversation.

use crate::serve::conversation::Conversation;
use crate::serve::errors::Problem;
use crate::serve::fields::only;
use serde_json::{Map, Value};
use std::collections::HashSet;

/// Reads `system` and `messages`.
///
/// # Errors
/// One is not as it is to be, or has what a text model can't be given.
pub(super) fn read(body: &Map<String, Value>) -> Result<Conversation, Problem> {
    let mut all = Conversation::default();
    match body.get("system") {
        None | Some(Value::Null) => {}
        Some(system) => all.say("system", text(system, "system")?),
    }
    let what = "expected an array of messages with at least one";
    let messages = body.get("messages").and_then(Value::as_array);
    let messages = messages.filter(|messages| !messages.is_empty());
    let messages = messages.ok_or_else(|| Problem::field("messages", what))?;
    let mut said = Said::default();
    for (index, message) in messages.iter().enumerate() {
        read_message(message, &format!("messages[{index}]"), &mut said, &mut all)?;
    }
    if said.role == "assistant" {
        let place = format!("messages[{}].role", messages.len() - 1);
        let what = "can't be honoured: a message of the assistant is not gone on with; the last is to be the user's";
        return Err(Problem::unsupported(place, what));
    }
    said.flush(&mut all);
    Ok(all)
}

/// Text that is not said yet: messages of one role in a row are one.
#[derive(Default)]
struct Said {
    role: &'static str,
    lines: Vec<String>,
    /// The calls that have a result.
    answered: HashSet<String>,
}

impl Said {
    fn turn(&mut self, role: &'static str, all: &mut Conversation) {
        if self.role != role {
            self.flush(all);
            self.role = role;
        }
    }

    fn flush(&mut self, all: &mut Conversation) {
        if !self.lines.is_empty() {
            all.say(self.role, self.lines.join("\n"));
            self.lines.clear();
        }
    }
}

/// What a block of a type has; other types are refused as such.
const BLOCKS: &[(&str, &[&str])] = &[
    ("text", &["type", "text", "cache_control", "citations"]),
    (
        "thinking",
        &["type", "thinking", "signature", "cache_control"],
    ),
    (
        "tool_use",
        &[
            "type",
            "id",
            "name",
            "input",
            "cache_control",
            "caller",
            "toolset_name",
        ],
    ),
    (
        "tool_result",
        &[
            "type",
            "tool_use_id",
            "content",
            "is_error",
            "cache_control",
            "toolset_name",
        ],
    ),
];

/// That a block has the fields of its type and no others.
fn check(block: &Value, place: &str) -> Result<(), Problem> {
    let kind = &block["type"];
    let names = BLOCKS.iter().find(|(known, _)| kind == known);
    if let Some((_, names)) = names {
        only(block, place, names)?;
    }
    match &block["toolset_name"] {
        Value::Null => Ok(()),
        _ => Err(Problem::unsupported(
            format!("{place}.toolset_name"),
            "can't be honoured: tools have names alone",
        )),
    }
}

fn read_message(
    value: &Value,
    place: &str,
    said: &mut Said,
    all: &mut Conversation,
) -> Result<(), Problem> {
    let object = value
        .as_object()
        .ok_or_else(|| Problem::field(place, "expected an object"))?;
    if let Some(other) = object
        .keys()
        .find(|key| *key != "role" && *key != "content")
    {
        return Err(Problem::unsupported(
            format!("{place}.{other}"),
            "no such field",
        ));
    }
    let role = match value["role"].as_str() {
        Some("user") => "user",
        Some("assistant") => "assistant",
        Some("system") => "system",
        _ => {
            let what = "expected `user` or `assistant`";
            return Err(Problem::field(format!("{place}.role"), what));
        }
    };
    said.turn(role, all);
    let place = format!("{place}.content");
    let blocks = match &value["content"] {
        Value::String(text) => {
            said.lines.push(text.clone());
            return Ok(());
        }
        Value::Array(blocks) => blocks,
        _ => {
            return Err(Problem::field(
                place,
                "expected a text, or an array of blocks",
            ));
        }
    };
    if blocks.is_empty() {
        said.lines.push(String::new());
    }
    for (index, block) in blocks.iter().enumerate() {
        let place = format!("{place}[{index}]");
        check(block, &place)?;
        match (block["type"].as_str(), role) {
            (Some("tool_use"), "assistant") => {
                let id = part(block, "id", &place)?;
                let name = part(block, "name", &place)?;
                let input = block["input"].as_object();
                input.ok_or_else(|| {
                    Problem::field(format!("{place}.input"), "expected an object")
                })?;
                said.flush(all);
                all.call(id, name, &block["input"])
                    .map_err(|why| Problem::field(format!("{place}.id"), why))?;
            }
            (Some("thinking"), "assistant") => {
                let thought = block["thinking"].as_str();
                let thought = thought.ok_or_else(|| {
                    Problem::field(format!("{place}.thinking"), "expected a text")
                })?;
                said.flush(all);
                all.think(thought);
            }
            (Some("tool_result"), "user") => {
                said.flush(all);
                let id = read_result(block, &place, all)?;
                if !said.answered.insert(id.to_owned()) {
                    let what = format!("expected one result of each call, found {id:?} again");
                    return Err(Problem::field(format!("{place}.tool_use_id"), what));
                }
            }
            _ => said.lines.push(text_of(block, &place)?),
        }
    }
    Ok(())
}

/// The result of a call; gives the id of that.
fn read_result<'a>(
    block: &'a Value,
    place: &str,
    all: &mut Conversation,
) -> Result<&'a str, Problem> {
    let id = part(block, "tool_use_id", place)?;
    let mut said = match &block["content"] {
        Value::Null => String::new(),
        content => text(content, &format!("{place}.content"))?,
    };
    match &block["is_error"] {
        Value::Null | Value::Bool(false) => {}
        // The model is to know.
        Value::Bool(true) => said.insert_str(0, "Error: "),
        _ => {
            let place = format!("{place}.is_error");
            return Err(Problem::field(place, "expected true or false"));
        }
    }
    all.result(id, None, said)
        .map_err(|why| Problem::field(format!("{place}.tool_use_id"), why))?;
    Ok(id)
}

fn part<'a>(block: &'a Value, name: &str, place: &str) -> Result<&'a str, Problem> {
    let text = block[name].as_str().filter(|text| !text.is_empty());
    text.ok_or_else(|| Problem::field(format!("{place}.{name}"), "expected a text"))
}

/// A text, or blocks of text, one a line.
fn text(value: &Value, place: &str) -> Result<String, Problem> {
    match value {
        Value::String(text) => Ok(text.clone()),
        Value::Array(blocks) => {
            let one = |(index, block)| text_of(block, &format!("{place}[{index}]"));
            let lines: Result<Vec<String>, Problem> = blocks.iter().enumerate().map(one).collect();
            Ok(lines?.join("\n"))
        }
        _ => Err(Problem::field(
            place,
            "expected a text, or an array of blocks",
        )),
    }
}

/// The text of a block.
fn text_of(block: &Value, place: &str) -> Result<String, Problem> {
    match (block["type"].as_str(), block["text"].as_str()) {
        (Some("text"), Some(text)) => {
            check(block, place)?;
            Ok(text.to_owned())
        }
        (Some("text") | None, _) => {
            let what = "expected a block of the type `text` with its `text`";
            Err(Problem::field(place, what))
        }
        (Some(other), _) => {
            let what = format!("can't be honoured here: a block of the type `{other}`");
            Err(Problem::unsupported(place, what))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use backplane_plugin_api::types::ChatMessage;
    use serde_json::json;

    fn of(body: Value) -> Result<Vec<ChatMessage>, String> {
        let read = read(body.as_object().unwrap());
        read.map(Conversation::into_messages).map_err(|problem| {
            let json = problem.json();
            json["error"]["message"].as_str().unwrap().to_owned()
        })
    }

    #[test]
    fn a_conversation_with_tools() {
        let messages = of(json!({
            "system": [{ "type": "text", "text": "a" }, { "type": "text", "text": "b", "cache_control": {} }],
            "messages": [
                { "role": "user", "content": "one" },
                { "role": "user", "content": [{ "type": "text", "text": "two" }] },
                { "role": "assistant", "content": [
                    { "type": "thinking", "thinking": "hm", "signature": "" },
                    { "type": "text", "text": "let me see" },
                    { "type": "tool_use", "id": "t1", "name": "f", "input": { "x": 1 } },
                    { "type": "tool_use", "id": "t2", "name": "f", "input": {} },
                ] },
                { "role": "user", "content": [
                    { "type": "tool_result", "tool_use_id": "t1", "content": [{ "type": "text", "text": "2" }] },
                    { "type": "tool_result", "tool_use_id": "t2", "is_error": true },
                    { "type": "text", "text": "so?" },
                ] },
            ],
        }))
        .unwrap();
        let told: Vec<(&str, &str)> = messages
            .iter()
            .map(|it| (it.role.as_str(), it.content.as_deref().unwrap_or("-")))
            .collect();
        assert_eq!(
            told,
            [
                ("system", "a\nb"),
                ("user", "one\ntwo"),
                ("assistant", "let me see"),
                ("tool", "2"),
                ("tool", "Error: "),
                ("user", "so?"),
            ]
        );
        let call = &messages[2].extra["tool_calls"][0];
        assert_eq!(
            (&call["id"], &call["function"]["arguments"]["x"]),
            (&json!("t1"), &json!(1))
        );
        assert_eq!(messages[3].extra["name"], "f");
        assert_eq!(messages[2].extra["reasoning_content"], "hm");
    }

    #[test]
    fn nothing_said_is_said() {
        for content in [json!(""), json!([])] {
            let messages = of(json!({ "messages": [{ "role": "user", "content": content }] }));
            assert_eq!(messages.unwrap(), [ChatMessage::new("user", "")]);
        }
    }

    #[test]
    fn each_call_has_an_id_of_its_own_and_one_result() {
        let call = |id: &str| json!({ "type": "tool_use", "id": id, "name": "f", "input": {} });
        let result = |id: &str| json!({ "type": "tool_result", "tool_use_id": id, "content": "x" });
        let turns = |blocks: &[Vec<Value>]| {
            let roles = ["assistant", "user"].into_iter().cycle();
            let turns = blocks.iter().zip(roles);
            let turns = turns.map(|(blocks, role)| json!({ "role": role, "content": blocks }));
            of(json!({ "messages": turns.collect::<Vec<_>>() }))
        };
        let fine = turns(&[
            vec![call("1"), call("2")],
            vec![result("2"), result("1")],
            vec![call("3")],
            vec![result("3")],
        ]);
        assert_eq!(fine.unwrap().len(), 5);
        for (blocks, said) in [
            (
                vec![vec![call("1"), call("1")], vec![result("1")]],
                "`messages[0].content[1].id`: expected an id of its own, found \"1\" again",
            ),
            (
                vec![
                    vec![call("1")],
                    vec![result("1")],
                    vec![call("1")],
                    vec![result("1")],
                ],
                "`messages[2].content[0].id`: expected an id of its own",
            ),
            (
                vec![vec![call("1")], vec![result("1"), result("1")]],
                "`messages[1].content[1].tool_use_id`: expected one result of each call, found \"1\" again",
            ),
            (
                vec![vec![call("1")], vec![result("2")]],
                "`messages[1].content[0].tool_use_id`: no tool was called with the id \"2\"",
            ),
        ] {
            let message = turns(&blocks).unwrap_err();
            assert!(message.contains(said), "{message}");
        }
    }

    #[test]
    fn what_is_wrong_is_named_with_its_place() {
        let user = |content: Value| json!({ "messages": [{ "role": "user", "content": content }] });
        for (body, said) in [
            (json!({}), "`messages`: expected an array"),
            (json!({ "messages": [] }), "at least one"),
            (
                json!({ "messages": [1] }),
                "`messages[0]`: expected an object",
            ),
            (
                json!({ "messages": [{ "role": "robot", "content": "x" }] }),
                "`messages[0].role`",
            ),
            (
                json!({ "messages": [{ "role": "user", "content": "x", "name": "n" }] }),
                "`messages[0].name`: no such field",
            ),
            (user(json!(null)), "`messages[0].content`: expected a text"),
            (
                user(json!([{ "type": "image", "source": {} }])),
                "`messages[0].content[0]`: can't be honoured here: a block of the type `image`",
            ),
            (user(json!([{ "type": "text" }])), "with its `text`"),
            (
                user(json!([{ "type": "text", "text": "x", "colour": 1 }])),
                "`messages[0].content[0].colour`: no such field",
            ),
            (
                user(json!([{ "type": "tool_result", "tool_use_id": "7", "toolset_name": "t" }])),
                "`messages[0].content[0].toolset_name`: can't be honoured",
            ),
            (
                json!({ "system": [{ "type": "text", "text": "x", "colour": 1 }], "messages": [{ "role": "user", "content": "x" }] }),
                "`system[0].colour`: no such field",
            ),
            (
                user(json!([{ "type": "thinking", "thinking": "hm" }])),
                "can't be honoured here",
            ),
            (
                json!({ "messages": [{ "role": "assistant", "content": [{ "type": "thinking" }] }] }),
                "`messages[0].content[0].thinking`",
            ),
            (
                user(json!([{ "type": "tool_use", "id": "1", "name": "f", "input": {} }])),
                "can't be honoured here",
            ),
            (
                user(json!([{ "type": "tool_result", "content": "x" }])),
                "`messages[0].content[0].tool_use_id`: expected",
            ),
            (
                user(json!([{ "type": "tool_result", "tool_use_id": "7", "content": "x" }])),
                "no tool was called with the id \"7\"",
            ),
            (
                json!({ "messages": [{ "role": "assistant", "content": "x" }] }),
                "`messages[0].role`: can't be honoured",
            ),
            (
                json!({ "messages": [{ "role": "assistant", "content": [{ "type": "tool_use", "id": "1", "name": "f", "input": "x" }] }] }),
                "`messages[0].content[0].input`",
            ),
            (
                json!({ "system": 1, "messages": [{ "role": "user", "content": "x" }] }),
                "`system`: expected",
            ),
        ] {
            let message = of(body).unwrap_err();
            assert!(message.contains(said), "{message}: {said}");
            assert!(!message.contains('\n'));
        }
    }
}
