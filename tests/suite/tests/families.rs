//! Replies as model families write them, thoughts and calls of tools, in every dialect.
#![cfg(unix)]

use backplane_contract_tests::module_path;
use backplane_tests::server::Server;
use serde_json::{Value, json};
use tempfile::TempDir;

/// A family: its name, what is in its template, and a reply with a call as it writes it.
const FAMILIES: &[(&str, &str, &str)] = &[
    (
        "coder",
        "<tool_call> <function= <parameter= </think>",
        "<tool_call>\n<function=weather>\n<parameter=city>\nParis\n</parameter>\n<parameter=days>\n3\n</parameter>\n</function>\n</tool_call>",
    ),
    (
        "glm",
        "<tool_call> <arg_key> </think>",
        "<tool_call>weather<arg_key>city</arg_key><arg_value>Paris</arg_value><arg_key>days</arg_key><arg_value>3</arg_value></tool_call>",
    ),
    (
        "invoke",
        "<minimax:tool_call> <invoke name= </think>",
        "<minimax:tool_call>\n<invoke name=\"weather\">\n<parameter name=\"city\">Paris</parameter>\n<parameter name=\"days\">3</parameter>\n</invoke>\n</minimax:tool_call>",
    ),
    (
        "python",
        "[func_name1( </think>",
        "[weather(city='Paris', days=3)]",
    ),
    (
        "gemma",
        "<start_function_call> <escape> </think>",
        "<start_function_call>call:weather{city:<escape>Paris<escape>,days:3}<end_function_call>",
    ),
    (
        "kimi",
        "<|tool_calls_section_begin|> <|tool_call_argument_begin|> </think>",
        "<|tool_calls_section_begin|><|tool_call_begin|>functions.weather:0<|tool_call_argument_begin|>{\"city\": \"Paris\", \"days\": 3}<|tool_call_end|><|tool_calls_section_end|>",
    ),
    (
        "channels",
        "<|start|> <|channel|> <|message|>",
        "<|channel|>commentary to=functions.weather <|constrain|>json<|message|>{\"city\": \"Paris\", \"days\": 3}<|call|>",
    ),
    (
        "hermes",
        "<tool_call> </think>",
        "<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\": \"Paris\", \"days\": 3}}\n</tool_call>",
    ),
];

/// A server of models that say the last message again, each taken for one of a family.
fn server() -> (TempDir, Server) {
    let home = tempfile::tempdir().expect("a folder");
    let modules = home.path().join("modules");
    std::fs::create_dir(&modules).expect("a folder");
    let name = format!("panics{}", std::env::consts::DLL_SUFFIX);
    let built = module_path("backplane-module-panics");
    std::fs::copy(built, modules.join(name)).expect("a module");
    let mut files = Vec::new();
    for (name, template, _) in FAMILIES {
        let file = home.path().join(format!("{name}.echo"));
        std::fs::write(&file, format!("template: {template}")).expect("a model");
        files.push(format!("{name}.echo"));
    }
    let manifest = home.path().join("plugins.toml");
    let text = "directories = [\"modules\"]\n[plugin.panics.options]\nlast_message = true\n";
    std::fs::write(&manifest, text).expect("a manifest");
    let files: Vec<&str> = files.iter().map(String::as_str).collect();
    let server = Server::start(home.path(), manifest.to_str(), &files).ready();
    (home, server)
}

fn parameters() -> Value {
    json!({ "type": "object", "properties": { "city": { "type": "string" }, "days": { "type": "integer" } } })
}

fn function() -> Value {
    json!({ "name": "weather", "parameters": parameters() })
}

fn post(server: &Server, path: &str, body: &Value) -> Value {
    let answer = server.post(path, body);
    assert_eq!(answer.status, 200, "{path}: {}", answer.body);
    answer.json()
}

/// The data of named events.
fn events(server: &Server, path: &str, body: &Value) -> Vec<Value> {
    let mut body = body.clone();
    body["stream"] = json!(true);
    let answer = server.post(path, &body);
    assert_eq!(answer.status, 200, "{path}: {}", answer.body);
    let data = answer
        .body
        .lines()
        .map(|line| line.strip_prefix("data: ").unwrap_or(line));
    data.filter_map(|data| serde_json::from_str(data).ok())
        .collect()
}

/// The texts at a place of all events, one after the other.
fn all(events: &[Value], place: &str) -> String {
    events
        .iter()
        .filter_map(|event| event.pointer(place)?.as_str())
        .collect()
}

#[test]
fn thoughts_and_calls_of_every_family_in_every_dialect() {
    let (_home, server) = server();
    let given = json!({ "city": "Paris", "days": 3 });
    let arguments = |text: &Value| -> Value {
        serde_json::from_str(text.as_str().expect("a text")).expect("JSON")
    };
    for (family, _, call) in FAMILIES {
        let model = &*format!("{family}.echo");
        // A bare call stands alone.
        let said = if *family == "python" {
            ""
        } else {
            "I will look."
        };
        let reply = match *family {
            "channels" => format!(
                "<|channel|>analysis<|message|>Which city?<|end|><|start|>assistant<|channel|>commentary<|message|>{said}<|end|><|start|>assistant{call}"
            ),
            _ => format!("<think>\nWhich city?\n</think>\n\n{said}{call}"),
        };
        let user = json!([{ "role": "user", "content": reply }]);

        let tools = json!([{ "type": "function", "function": function() }]);
        let body = json!({ "model": model, "temperature": 0, "messages": user, "tools": tools });
        let whole = post(&server, "/v1/chat/completions", &body);
        let message = &whole["choices"][0]["message"];
        assert_eq!(
            message["reasoning_content"], "Which city?",
            "{model}: {whole}"
        );
        assert_eq!(
            message["content"].as_str().unwrap_or(""),
            said,
            "{model}: {whole}"
        );
        let function = &message["tool_calls"][0]["function"];
        assert_eq!(function["name"], "weather", "{model}: {whole}");
        assert_eq!(arguments(&function["arguments"]), given, "{model}: {whole}");
        assert_eq!(whole["choices"][0]["finish_reason"], "tool_calls");
        let thought = &whole["usage"]["completion_tokens_details"]["reasoning_tokens"];
        assert!(thought.as_u64() > Some(5), "{whole}");
        if *family == "kimi" {
            assert_eq!(message["tool_calls"][0]["id"], "functions.weather:0");
        }
        let told = events(&server, "/v1/chat/completions", &body);
        let delta = "/choices/0/delta";
        assert_eq!(
            all(&told, &format!("{delta}/reasoning_content")),
            "Which city?"
        );
        assert_eq!(all(&told, &format!("{delta}/content")), said);
        let written = all(&told, &format!("{delta}/tool_calls/0/function/arguments"));
        assert_eq!(arguments(&json!(written)), given, "{model}");
        let ids = all(&told, &format!("{delta}/tool_calls/0/id"));
        assert!(!ids.is_empty());

        let tools = json!([{ "name": "weather", "input_schema": parameters() }]);
        let body = json!({ "model": model, "temperature": 0, "messages": user, "tools": tools, "max_tokens": 1000 });
        let whole = post(&server, "/v1/messages", &body);
        let content = whole["content"].as_array().expect("blocks");
        assert_eq!(
            (&content[0]["type"], &content[0]["thinking"]),
            (&json!("thinking"), &json!("Which city?"))
        );
        let last = content.last().expect("a block");
        assert_eq!(
            (&last["type"], &last["input"]),
            (&json!("tool_use"), &given),
            "{whole}"
        );
        let told = events(&server, "/v1/messages", &body);
        assert_eq!(all(&told, "/delta/thinking"), "Which city?");
        assert_eq!(all(&told, "/delta/text"), said);
        assert_eq!(arguments(&json!(all(&told, "/delta/partial_json"))), given);

        let body = json!({ "model": model, "options": { "temperature": 0 }, "messages": user, "tools": [{ "type": "function", "function": self::function() }], "stream": false });
        let whole = post(&server, "/api/chat", &body);
        assert_eq!(whole["message"]["thinking"], "Which city?", "{whole}");
        assert_eq!(
            whole["message"]["tool_calls"][0]["function"]["arguments"],
            given
        );
        let told = events(&server, "/api/chat", &body);
        assert_eq!(all(&told, "/message/thinking"), "Which city?");
        assert_eq!(all(&told, "/message/content"), said);

        let mut tool = self::function();
        tool["type"] = json!("function");
        let body = json!({ "model": model, "temperature": 0, "input": reply, "tools": [tool] });
        let whole = post(&server, "/v1/responses", &body);
        let output = whole["output"].as_array().expect("items");
        assert_eq!(output[0]["type"], "reasoning", "{whole}");
        assert_eq!(output[0]["content"][0]["text"], "Which city?");
        let last = output.last().expect("an item");
        assert_eq!(last["type"], "function_call", "{whole}");
        assert_eq!(arguments(&last["arguments"]), given);
        let told = events(&server, "/v1/responses", &body);
        let last = told.last().expect("an event");
        let deltas = told
            .iter()
            .filter(|event| event["type"] == "response.reasoning_text.delta");
        assert_eq!(
            all(&deltas.cloned().collect::<Vec<_>>(), "/delta"),
            "Which city?"
        );
        assert_eq!(
            last["response"]["output"][0]["content"],
            whole["output"][0]["content"]
        );
    }
    let shown = post(&server, "/api/show", &json!({ "model": "hermes.echo" }));
    let thinks = |shown: &Value| {
        shown["capabilities"]
            .as_array()
            .is_some_and(|all| all.contains(&json!("thinking")))
    };
    assert!(thinks(&shown), "{shown}");
    as_it_is_written(&server);
    thoughts_are_given_back(&server);
}

/// Thoughts may stay in the text, and are one where a model knows of none.
fn as_it_is_written(server: &Server) {
    let reply = "<think>a</think>\n\nb";
    let user = json!([{ "role": "user", "content": reply }]);
    for (format, content, thought) in [
        (json!("none"), reply, Value::Null),
        (json!("auto"), "b", json!("a")),
        (json!("deepseek"), "b", json!("a")),
        (json!(null), "b", json!("a")),
    ] {
        let body = json!({ "model": "hermes.echo", "temperature": 0, "messages": user, "reasoning_format": format });
        let whole = post(server, "/v1/chat/completions", &body);
        let message = &whole["choices"][0]["message"];
        assert_eq!(
            (&message["content"], &message["reasoning_content"]),
            (&json!(content), &thought)
        );
    }
    let wrong = json!({ "model": "hermes.echo", "temperature": 0, "messages": user, "reasoning_format": "xml" });
    let answer = server.post("/v1/chat/completions", &wrong);
    assert_eq!(answer.status, 400, "{}", answer.body);
    // Where it is cut in its thoughts, there is no text.
    let body =
        json!({ "model": "hermes.echo", "temperature": 0, "messages": user, "max_tokens": 8 });
    let cut = post(server, "/v1/chat/completions", &body);
    assert_eq!(cut["choices"][0]["message"]["content"], "", "{cut}");
    assert_eq!(cut["choices"][0]["finish_reason"], "length");
}

/// What was thought is taken in every dialect as it was told.
fn thoughts_are_given_back(server: &Server) {
    let chat = json!([
        { "role": "user", "content": "a" },
        { "role": "assistant", "content": "b", "reasoning_content": "hm" },
        { "role": "user", "content": "c" },
    ]);
    let body = json!({ "model": "hermes.echo", "temperature": 0, "messages": chat });
    let said = post(server, "/v1/chat/completions", &body);
    assert_eq!(said["choices"][0]["message"]["content"], "c");
    let thinking = json!({ "type": "thinking", "thinking": "hm", "signature": "" });
    let mut messages = chat.clone();
    messages[1] =
        json!({ "role": "assistant", "content": [thinking, { "type": "text", "text": "b" }] });
    let body = json!({ "model": "hermes.echo", "temperature": 0, "messages": messages, "max_tokens": 9, "thinking": { "type": "enabled", "budget_tokens": 1024 } });
    assert_eq!(
        post(server, "/v1/messages", &body)["content"][0]["text"],
        "c"
    );
    messages[1] = json!({ "role": "assistant", "content": "b", "thinking": "hm" });
    let body = json!({ "model": "hermes.echo", "options": { "temperature": 0 }, "messages": messages, "stream": false, "think": "low" });
    assert_eq!(post(server, "/api/chat", &body)["message"]["content"], "c");
    let thought = json!({ "type": "reasoning", "id": "rs_1", "summary": [], "content": [{ "type": "reasoning_text", "text": "hm" }] });
    let input = json!([chat[0], thought, { "role": "assistant", "content": "b" }, chat[2]]);
    let body = json!({ "model": "hermes.echo", "temperature": 0, "input": input, "reasoning": { "effort": "low", "summary": "auto" } });
    assert_eq!(
        post(server, "/v1/responses", &body)["output"][0]["content"][0]["text"],
        "c"
    );
}
