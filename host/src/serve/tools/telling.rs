//! What a model is told of tools, calls and results: by its template where that knows them, else by messages.

use super::choice::Tool;
use super::formats::{Body, Format};
use super::literal;
use backplane_plugin_api::types::ChatMessage;
use serde_json::{Value, json};

/// Calls and results as the template of `format` takes them; a template that writes no calls has them as text.
pub(super) fn by_template(messages: &mut [ChatMessage], format: &Format, template: &str) {
    if let (Body::Literals(notation), false) = (format.body, template.contains("tool_calls")) {
        for message in &mut *messages {
            let Some(Value::Array(calls)) = message.extra.remove("tool_calls") else {
                continue;
            };
            let one = |call: &Value| {
                let function = &call["function"];
                let arguments = match &function["arguments"] {
                    Value::String(text) => serde_json::from_str(text).unwrap_or_default(),
                    other => other.clone(),
                };
                let name = function["name"].as_str().unwrap_or_default();
                literal::written(notation, name, &arguments)
            };
            let calls: Vec<String> = calls.iter().map(one).collect();
            let content = message.content.get_or_insert_default();
            *content += &format!("{}[{}]{}", format.open, calls.join(", "), format.close);
        }
        return;
    }
    if format.text_arguments {
        return;
    }
    for message in messages {
        let calls = message.extra.get_mut("tool_calls");
        for call in calls.and_then(Value::as_array_mut).into_iter().flatten() {
            let Some(arguments) = call.pointer_mut("/function/arguments") else {
                continue;
            };
            if let Some(Ok(object)) = arguments.as_str().map(serde_json::from_str::<Value>)
                && object.is_object()
            {
                *arguments = object;
            }
        }
    }
}

/// What was thought before, by the name that the template has for it.
pub(super) fn thoughts(messages: &mut [ChatMessage], template: &str) {
    let known = |name: &str| template.contains(name);
    let name = match () {
        () if known("reasoning_content") => return,
        () if known(".thinking") || known("'thinking'") || known("\"thinking\"") => "thinking",
        () if known(".reasoning") => "reasoning",
        () => return,
    };
    for message in messages {
        if let Some(thought) = message.extra.remove("reasoning_content") {
            // Some templates take either what was thought or what was said beside calls.
            let said = message
                .content
                .as_ref()
                .is_some_and(|text| !text.is_empty());
            if said && message.extra.contains_key("tool_calls") && template.contains("<|channel|>")
            {
                continue;
            }
            message.extra.insert(name.to_owned(), thought);
        }
    }
}

/// Calls and results as messages that every template takes.
pub(super) fn by_messages(messages: &mut Vec<ChatMessage>) {
    let mut plain: Vec<ChatMessage> = Vec::new();
    let mut answered = false;
    for mut message in messages.drain(..) {
        if message.role == "tool" {
            let content = message.content.unwrap_or_default();
            let text = format!("<tool_response>\n{content}\n</tool_response>");
            match plain.last_mut().filter(|_| answered) {
                Some(last) => {
                    let before = last.content.get_or_insert_default();
                    before.push('\n');
                    before.push_str(&text);
                }
                None => plain.push(ChatMessage::new("user", text)),
            }
            answered = true;
            continue;
        }
        answered = false;
        if let Some(Value::Array(calls)) = message.extra.remove("tool_calls") {
            let mut content = message.content.take().unwrap_or_default();
            for call in &calls {
                if !content.is_empty() {
                    content.push('\n');
                }
                content.push_str(&written(&call["function"]));
            }
            message.content = Some(content);
        }
        plain.push(message);
    }
    *messages = plain;
}

fn written(function: &Value) -> String {
    let name = &function["name"];
    let arguments = match &function["arguments"] {
        Value::String(text) if text.trim().is_empty() => "{}".to_owned(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    format!("<tool_call>\n{{\"name\": {name}, \"arguments\": {arguments}}}\n</tool_call>")
}

/// Tells of the tools in the system's message; with `in_first` in the first message, whoever speaks, for templates that take
/// none of the system.
pub(super) fn introduce(messages: &mut Vec<ChatMessage>, tools: &[&Tool], in_first: bool) {
    let text = introduction(tools);
    match messages.first_mut() {
        Some(first) if in_first || first.role == "system" => {
            let content = first.content.take().unwrap_or_default();
            first.content = Some(match (content.is_empty(), in_first) {
                (true, _) => text,
                (false, true) => format!("{text}\n\n{content}"),
                (false, false) => format!("{content}\n\n{text}"),
            });
        }
        _ => messages.insert(0, ChatMessage::new("system", text)),
    }
}

fn introduction(tools: &[&Tool]) -> String {
    let mut text = String::from(
        "You can call these tools, one in a line, each with a JSON schema of its arguments:\n",
    );
    for tool in tools {
        text += &format!("{}\n", tool.json()["function"]);
    }
    let call = json!({ "name": "NAME", "arguments": {} });
    text += "To call one, answer with its name and its arguments, between marks and with nothing after them:\n<tool_call>\n";
    text += &call.to_string();
    text += "\n</tool_call>\nResults come back between <tool_response> and </tool_response>. Where no tool helps, answer in words.";
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(name: &str, arguments: Value) -> Value {
        json!({ "id": "1", "type": "function", "function": { "name": name, "arguments": arguments } })
    }

    fn conversation() -> Vec<ChatMessage> {
        let mut calls = ChatMessage {
            role: "assistant".into(),
            ..ChatMessage::default()
        };
        let both = json!([call("f", json!("{\"a\": 1}")), call("g", json!(""))]);
        calls.extra.insert("tool_calls".into(), both);
        vec![
            ChatMessage::new("user", "Hi"),
            calls,
            ChatMessage::new("tool", "2"),
            ChatMessage::new("tool", "3"),
        ]
    }

    #[test]
    fn templates_get_objects() {
        let mut messages = conversation();
        by_template(&mut messages, super::super::formats::GENERIC, "tool_calls");
        let calls = &messages[1].extra["tool_calls"];
        assert_eq!(calls[0]["function"]["arguments"], json!({ "a": 1 }));
        assert_eq!(calls[1]["function"]["arguments"], "");
        let mut messages = conversation();
        by_template(
            &mut messages,
            super::super::formats::named("deepseek"),
            "tool_calls",
        );
        assert_eq!(messages, conversation());
    }

    #[test]
    fn templates_that_write_no_calls_get_them_as_text() {
        let mut messages = conversation();
        by_template(
            &mut messages,
            super::super::formats::named("lfm-2"),
            "<|tool_list_start|>",
        );
        let said = messages[1].content.as_deref();
        assert_eq!(
            said,
            Some("<|tool_call_start|>[f(a=1), g()]<|tool_call_end|>")
        );
        assert_eq!(messages[2].content.as_deref(), Some("2"));
    }

    #[test]
    fn what_was_thought_has_the_name_that_the_template_knows() {
        for (template, name) in [
            ("message.reasoning_content", "reasoning_content"),
            ("message.thinking", "thinking"),
            ("message.reasoning", "reasoning"),
            ("nothing", "reasoning_content"),
        ] {
            let mut messages = vec![ChatMessage::new("assistant", "a")];
            messages[0]
                .extra
                .insert("reasoning_content".into(), json!("hm"));
            thoughts(&mut messages, template);
            assert_eq!(messages[0].extra[name], "hm", "{template}");
        }
    }

    #[test]
    fn templates_without_tools_get_text() {
        let mut messages = conversation();
        by_messages(&mut messages);
        let texts: Vec<(&str, &str)> = messages
            .iter()
            .map(|it| (it.role.as_str(), it.content.as_deref().unwrap()))
            .collect();
        let calls = "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": 1}}\n</tool_call>\n<tool_call>\n{\"name\": \"g\", \"arguments\": {}}\n</tool_call>";
        let results = "<tool_response>\n2\n</tool_response>\n<tool_response>\n3\n</tool_response>";
        assert_eq!(
            texts,
            [("user", "Hi"), ("assistant", calls), ("user", results)]
        );
        assert!(messages.iter().all(|it| it.extra.is_empty()));
    }

    #[test]
    fn tools_are_introduced() {
        let tool = Tool {
            name: "f".into(),
            description: None,
            parameters: None,
            place: String::new(),
        };
        let mut messages = vec![ChatMessage::new("user", "Hi")];
        introduce(&mut messages, &[&tool], false);
        assert_eq!((messages.len(), messages[0].role.as_str()), (2, "system"));
        let mut messages = vec![
            ChatMessage::new("system", "Be brief."),
            ChatMessage::new("user", "Hi"),
        ];
        introduce(&mut messages, &[&tool], false);
        assert!(
            messages[0]
                .content
                .as_deref()
                .unwrap()
                .starts_with("Be brief.\n\nYou can call")
        );
        let mut messages = vec![ChatMessage::new("user", "Hi")];
        introduce(&mut messages, &[&tool], true);
        assert!(messages.len() == 1 && messages[0].content.as_deref().unwrap().ends_with("\n\nHi"));
    }
}
