//! The conversation that a request comes to, whatever its dialect: messages as chat templates know them.

use super::fields::values::expected;
use backplane_plugin_api::types::ChatMessage;
use serde_json::{Map, Value, json};
use std::collections::HashMap;

/// Who speaks, as templates know it: `developer` is the newer name of `system`.
///
/// # Errors
/// Nobody whom the dialect knows; those are `known`.
pub(super) fn role(value: &Value, known: &[&'static str]) -> Result<&'static str, String> {
    let found = known.iter().find(|known| value == **known);
    match found.copied() {
        Some("developer") => Ok("system"),
        Some(role) => Ok(role),
        None => {
            let known: Vec<String> = known.iter().map(|known| format!("`{known}`")).collect();
            let (last, others) = known
                .split_last()
                .map_or(("", &[][..]), |(last, others)| (last.as_str(), others));
            Err(expected(&format!("{} or {last}", others.join(", ")), value))
        }
    }
}

/// A conversation as it is gathered.
#[derive(Clone, Debug, Default)]
pub(super) struct Conversation {
    messages: Vec<ChatMessage>,
    /// What the assistant thought before what it says or calls next.
    thought: String,
    /// The tools that were called, by the ids of the calls.
    called: HashMap<String, String>,
}

impl Conversation {
    /// Somebody says something.
    pub(super) fn say(&mut self, role: &str, text: impl Into<String>) {
        self.push(ChatMessage::new(role, text));
    }

    /// The assistant thinks, before it says or calls something.
    pub(super) fn think(&mut self, text: &str) {
        if !self.thought.is_empty() && !text.is_empty() {
            self.thought.push('\n');
        }
        self.thought.push_str(text);
    }

    /// Templates know what was thought by this name.
    fn push(&mut self, mut message: ChatMessage) {
        let thought = std::mem::take(&mut self.thought);
        if message.role == "assistant" && !thought.is_empty() {
            message
                .extra
                .insert("reasoning_content".into(), json!(thought));
        }
        self.messages.push(message);
    }

    /// The assistant calls a tool, in the message that it said last or else in one without a text. Templates write
    /// arguments as an object.
    ///
    /// # Errors
    /// Another call has the id.
    pub(super) fn call(&mut self, id: &str, name: &str, arguments: &Value) -> Result<(), String> {
        if self.called.contains_key(id) {
            return Err(format!("expected an id of its own, found {id:?} again"));
        }
        self.called.insert(id.to_owned(), name.to_owned());
        let last = self.messages.last_mut();
        let last = last.filter(|last| last.role == "assistant");
        if let Some(last) = last.filter(|last| !last.extra.contains_key("reasoning_content")) {
            let thought = std::mem::take(&mut self.thought);
            if !thought.is_empty() {
                last.extra
                    .insert("reasoning_content".into(), json!(thought));
            }
        }
        let goes_on = self
            .messages
            .last()
            .is_some_and(|last| last.role == "assistant");
        if !goes_on || !self.thought.is_empty() {
            self.push(ChatMessage {
                role: "assistant".to_owned(),
                content: None,
                extra: Map::new(),
            });
        }
        let call = json!({
            "id": id,
            "type": "function",
            "function": { "name": name, "arguments": arguments },
        });
        let last = self.messages.last_mut();
        let calls = last.map(|last| last.extra.entry("tool_calls").or_insert_with(|| json!([])));
        if let Some(calls) = calls.and_then(Value::as_array_mut) {
            calls.push(call);
        }
        Ok(())
    }

    /// What a call came to; the tool is known by the id of the call where it is not named.
    ///
    /// # Errors
    /// There was no such call.
    pub(super) fn result(
        &mut self,
        id: &str,
        name: Option<&str>,
        text: String,
    ) -> Result<(), String> {
        let name = match name {
            Some(name) => name.to_owned(),
            None => self
                .called
                .get(id)
                .cloned()
                .ok_or_else(|| format!("no tool was called with the id {id:?}"))?,
        };
        let mut message = ChatMessage::new("tool", text);
        message.extra.insert("tool_call_id".into(), json!(id));
        message.extra.insert("name".into(), json!(name));
        self.push(message);
        Ok(())
    }

    /// The first call that has no result yet, of a tool where one is named: its id and the tool.
    pub(super) fn unanswered(&self, name: Option<&str>) -> Option<(String, String)> {
        let calls = self.messages.iter().filter_map(|message| {
            let calls = message.extra.get("tool_calls")?;
            calls.as_array()
        });
        let answered = |id: &Value| {
            let mut results = self.messages.iter();
            results.any(|message| message.extra.get("tool_call_id") == Some(id))
        };
        let mut calls = calls.flatten().filter(|call| !answered(&call["id"]));
        let call = calls.find(|call| name.is_none_or(|name| call["function"]["name"] == name))?;
        let text = |value: &Value| value.as_str().map(str::to_owned);
        Some((text(&call["id"])?, text(&call["function"]["name"])?))
    }

    /// Whether nothing was said.
    pub(super) fn is_empty(&self) -> bool {
        self.messages.is_empty()
    }

    /// The messages.
    pub(super) fn into_messages(self) -> Vec<ChatMessage> {
        self.messages
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_thought_goes_with_what_comes_next() {
        let mut all = Conversation::default();
        all.say("user", "hi");
        all.think("a");
        all.think("b");
        all.call("1", "f", &json!({})).unwrap();
        all.call("2", "f", &json!({})).unwrap();
        all.result("1", None, String::new()).unwrap();
        all.think("c");
        all.say("assistant", "so");
        all.think("nothing");
        all.say("user", "and?");
        all.say("assistant", "no");
        let messages = all.into_messages();
        let thought = |at: usize| messages[at].extra.get("reasoning_content").cloned();
        assert_eq!(thought(1), Some(json!("a\nb")));
        assert_eq!(
            messages[1].extra["tool_calls"].as_array().map(Vec::len),
            Some(2)
        );
        assert_eq!(thought(3), Some(json!("c")));
        assert_eq!((thought(4), thought(5)), (None, None));
    }

    #[test]
    fn roles_are_those_of_the_dialect() {
        let known = ["system", "developer", "user"];
        assert_eq!(role(&json!("developer"), &known), Ok("system"));
        assert_eq!(role(&json!("user"), &known), Ok("user"));
        for wrong in [
            json!("tool"),
            json!("User"),
            json!(""),
            json!(null),
            json!(1),
        ] {
            let why = role(&wrong, &known).unwrap_err();
            let said = "expected `system`, `developer` or `user`, found ";
            assert!(why.starts_with(said), "{why}");
        }
    }

    #[test]
    fn calls_go_into_the_message_before_and_results_find_their_tool() {
        let mut all = Conversation::default();
        all.say("user", "hi");
        all.call("1", "f", &json!({ "a": 1 })).unwrap();
        all.call("2", "g", &json!({})).unwrap();
        let again = all.call("1", "g", &json!({})).unwrap_err();
        assert!(again.contains("found \"1\" again"), "{again}");
        let unanswered = |all: &Conversation, name: Option<&str>| Some(all.unanswered(name)?.0);
        assert_eq!(unanswered(&all, Some("g")).as_deref(), Some("2"));
        all.result("2", None, "two".to_owned()).unwrap();
        assert_eq!(unanswered(&all, Some("g")), None);
        assert_eq!(unanswered(&all, None).as_deref(), Some("1"));
        let wrong = all.result("3", None, String::new()).unwrap_err();
        assert!(wrong.contains("\"3\""), "{wrong}");
        all.say("assistant", "so");
        all.call("4", "f", &json!(null)).unwrap();
        let messages = all.into_messages();
        assert_eq!(messages.len(), 4);
        assert_eq!(
            messages[1].extra["tool_calls"][0]["function"]["arguments"]["a"],
            1
        );
        assert_eq!(messages[1].content, None);
        assert_eq!(messages[2].extra["name"], "g");
        assert_eq!(messages[3].content.as_deref(), Some("so"));
        assert_eq!(
            messages[3].extra["tool_calls"].as_array().map(Vec::len),
            Some(1)
        );
    }
}
