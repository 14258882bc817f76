//! Tools and structured output as clients meet them.
#![cfg(unix)]

use backplane_tests::server::Server;
use backplane_tests::{SMOLLM2, fixture, python, real_model, root};
use serde_json::{Value, json};
use tempfile::TempDir;

/// A model of random weights: it says anything that it is not kept from.
const RANDOM: &str = "model-f32";

/// A server of SmolLM2 and of a model of random weights.
fn server() -> (TempDir, Server, String) {
    let home = tempfile::tempdir().expect("a folder");
    let (model, random) = (
        real_model(SMOLLM2),
        fixture("tiny/qwen2.5-bias/model-f32.gguf"),
    );
    let paths = [&model, &random].map(|path| path.to_str().expect("UTF-8"));
    let server =
        Server::start(home.path(), None, &[paths[0], paths[1], "--backend", "cpu"]).ready();
    (home, server, SMOLLM2.trim_end_matches(".gguf").to_owned())
}

fn tool(name: &str, properties: &Value) -> Value {
    let required: Vec<&String> = properties.as_object().expect("an object").keys().collect();
    json!({ "type": "function", "function": { "name": name, "description": format!("The {name} of a place"), "parameters": {
        "type": "object", "properties": properties, "required": required, "additionalProperties": false } } })
}

fn weather() -> Value {
    tool(
        "weather",
        &json!({ "city": { "enum": ["Paris", "Rome"] }, "days": { "type": "integer", "minimum": 1, "maximum": 9 } }),
    )
}

fn asked(model: &str, more: Value) -> Value {
    let mut body = json!({ "model": model, "temperature": 0, "max_tokens": 120,
        "messages": [{ "role": "user", "content": "What will the weather be in Paris for the next 3 days?" }] });
    for (name, value) in more.as_object().expect("an object") {
        body[name] = value.clone();
    }
    body
}

/// The calls and the text of a stream, put together as clients do.
fn put_together(events: &[Value]) -> (String, Vec<Value>, Value) {
    let (mut text, mut calls, mut reason) = (String::new(), Vec::<Value>::new(), Value::Null);
    for choice in events.iter().filter_map(|event| event["choices"].get(0)) {
        text += choice["delta"]["content"].as_str().unwrap_or("");
        for part in choice["delta"]["tool_calls"]
            .as_array()
            .into_iter()
            .flatten()
        {
            let index = part["index"].as_u64().expect("an index") as usize;
            let more = part["function"]["arguments"].as_str().expect("arguments");
            if index == calls.len() {
                assert!(
                    part["id"].is_string() && part["type"] == "function" && more.is_empty(),
                    "{part}"
                );
                calls.push(json!({ "name": part["function"]["name"], "arguments": "" }));
            } else {
                assert!(part.get("id").is_none(), "{part}");
            }
            let call = &mut calls[index]["arguments"];
            *call = json!(call.as_str().unwrap_or("").to_owned() + more);
        }
        if !choice["finish_reason"].is_null() {
            reason = choice["finish_reason"].clone();
        }
    }
    (text, calls, reason)
}

fn whole(server: &Server, body: &Value) -> Value {
    let answer = server.post("/v1/chat/completions", body);
    assert_eq!(answer.status, 200, "{}", answer.body);
    answer.json()
}

fn arguments(call: &Value) -> Value {
    let text = call["function"]["arguments"].as_str().expect("arguments");
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{text}: {error}"))
}

#[test]
fn tools_are_called_and_replies_are_held_to_their_format() {
    let (_home, server, id) = server();
    forced_calls(&server, &id);
    formats(&server, &id);
    wrong_schemas(&server, &id);
    refusals(&server, &id);
    several_calls(&server);
    conversations(&server, &id);
    fuzz(&server);
}

fn forced_calls(server: &Server, id: &str) {
    for choice in [
        json!("required"),
        json!({ "type": "function", "function": { "name": "weather" } }),
    ] {
        let body = asked(
            id,
            json!({ "tools": [weather()], "tool_choice": choice, "parallel_tool_calls": false }),
        );
        let answer = whole(server, &body);
        let choice = &answer["choices"][0];
        assert_eq!(choice["finish_reason"], "tool_calls", "{answer}");
        assert_eq!(choice["message"]["content"], Value::Null);
        let call = &choice["message"]["tool_calls"][0];
        assert_eq!(
            (&call["type"], &call["function"]["name"]),
            (&json!("function"), &json!("weather"))
        );
        let given = arguments(call);
        assert!(
            ["Paris", "Rome"].contains(&given["city"].as_str().expect("a city")),
            "{given}"
        );
        assert!(
            (1..=9).contains(&given["days"].as_i64().expect("days")),
            "{given}"
        );

        let mut streamed = body.clone();
        streamed["stream"] = json!(true);
        let events = server.post("/v1/chat/completions", &streamed).events();
        let (text, calls, reason) = put_together(&events);
        assert_eq!((text.as_str(), &reason), ("", &json!("tool_calls")));
        assert_eq!(
            calls[0]["arguments"], call["function"]["arguments"],
            "streamed as whole"
        );
    }
    // A small model that may go on says the same again: that is not told, and the end, whole and streamed alike.
    let mut body = asked(
        id,
        json!({ "tools": [weather()], "tool_choice": "required" }),
    );
    let answer = whole(server, &body);
    assert_eq!(
        answer["choices"][0]["finish_reason"], "tool_calls",
        "{answer}"
    );
    let calls = answer["choices"][0]["message"]["tool_calls"].as_array();
    let calls: Vec<&Value> = calls
        .expect("calls")
        .iter()
        .map(|call| &call["function"]["arguments"])
        .collect();
    for (at, call) in calls.iter().enumerate() {
        assert!(!calls[..at].contains(call), "{answer}");
    }
    let notice = answer["backplane"]["notice"].as_str().unwrap_or_default();
    assert!(notice.contains("repeats one before"), "{answer}");
    body["stream"] = json!(true);
    let events = server.post("/v1/chat/completions", &body).events();
    let (_, streamed, reason) = put_together(&events);
    let streamed: Vec<&Value> = streamed.iter().map(|call| &call["arguments"]).collect();
    assert_eq!((streamed, reason), (calls, json!("tool_calls")));
    // Cut within the mark: no part of a mark is said, and nobody is told to act on half a call. Stop texts end what is said, and
    // a call that has to be made is no such thing.
    let forced = json!({ "tools": [weather()], "tool_choice": "required" });
    for tokens in 1..5 {
        let mut body = asked(id, forced.clone());
        body["max_tokens"] = json!(tokens);
        let answer = whole(server, &body);
        let choice = &answer["choices"][0];
        assert_eq!(choice["finish_reason"], "length", "{answer}");
        assert_eq!(choice["message"]["content"].as_str().unwrap_or(""), "");
    }
    let mut body = asked(id, forced);
    body["stop"] = json!(["city", "Paris", "Rome"]);
    let answer = whole(server, &body);
    let choice = &answer["choices"][0];
    assert_eq!(choice["finish_reason"], "tool_calls", "{answer}");
    assert!(arguments(&choice["message"]["tool_calls"][0])["city"].is_string());
    cut_calls(server, id);
    // Not held to a call, it says what it likes, and no mark.
    for more in [
        json!({ "tools": [weather()] }),
        json!({ "tools": [weather()], "tool_choice": "none" }),
    ] {
        let answer = whole(server, &asked(id, more));
        let message = &answer["choices"][0]["message"];
        let text = message["content"].as_str().unwrap_or("");
        assert!(!text.contains("<tool_call>"), "{answer}");
        assert!(
            !text.is_empty() || message["tool_calls"].is_array(),
            "{answer}"
        );
    }
}

/// Calls that `max_tokens` cuts: as far as they go where arguments are a text, else not at all.
fn cut_calls(server: &Server, id: &str) {
    let mut body = asked(
        id,
        json!({ "tools": [weather()], "tool_choice": "required" }),
    );
    let mut cut = 0;
    for tokens in [8, 12, 16, 20] {
        body["max_tokens"] = json!(tokens);
        let answer = whole(server, &body);
        let choice = &answer["choices"][0];
        let Some(call) = choice["message"]["tool_calls"].get(0) else {
            continue;
        };
        let given = call["function"]["arguments"].as_str().expect("a text");
        if serde_json::from_str::<Value>(given).is_ok() {
            continue;
        }
        cut += 1;
        assert_eq!(choice["finish_reason"], "length", "{answer}");
        let schema = &weather()["function"]["parameters"];
        let theirs = json!({ "model": id, "messages": body["messages"], "temperature": 0, "max_tokens": tokens,
            "tools": [{ "name": "weather", "input_schema": schema }], "tool_choice": { "type": "any" } });
        let answer = server.post("/v1/messages", &theirs).json();
        assert_eq!(answer["stop_reason"], "max_tokens", "{answer}");
        assert_eq!(answer["content"], json!([]), "{answer}");
    }
    assert!(cut > 0, "a call is cut");
}

fn formats(server: &Server, id: &str) {
    let schema = json!({ "type": "object", "required": ["place", "mood"], "additionalProperties": false,
        "properties": { "place": { "$ref": "#/$defs/name" }, "mood": { "enum": ["fine", "bad"] } },
        "$defs": { "name": { "type": "string", "maxLength": 12 } } });
    let named = json!({ "type": "json_schema", "json_schema": { "name": "report", "strict": true, "schema": schema } });
    let body = asked(id, json!({ "response_format": named }));
    let answer = whole(server, &body);
    let text = answer["choices"][0]["message"]["content"]
        .as_str()
        .expect("a text")
        .to_owned();
    let report: Value = serde_json::from_str(&text).expect("JSON");
    assert!(
        report["place"].is_string()
            && ["fine", "bad"].contains(&report["mood"].as_str().expect("a mood")),
        "{text}"
    );
    assert_eq!(answer["choices"][0]["finish_reason"], "stop");
    let mut streamed = body;
    streamed["stream"] = json!(true);
    let events = server.post("/v1/chat/completions", &streamed).events();
    assert_eq!(put_together(&events).0, text);

    let any = whole(
        server,
        &asked(id, json!({ "response_format": { "type": "json_object" } })),
    );
    let text = any["choices"][0]["message"]["content"]
        .as_str()
        .expect("a text");
    assert!(text.starts_with('{'), "{text}");

    for (grammar, right) in [
        (json!({ "regex": "(yes|no)!" }), ["yes!", "no!"]),
        (json!({ "lark": "start: \"a\" B\nB: /[xy]/" }), ["ax", "ay"]),
    ] {
        let body = json!({ "model": id, "prompt": "Well,", "temperature": 0, "grammar": grammar });
        let answer = server.post("/v1/completions", &body).json();
        let text = answer["choices"][0]["text"].as_str().expect("a text");
        assert!(right.contains(&text), "{answer}");
    }
}

fn wrong_schemas(server: &Server, id: &str) {
    let bad = tool("tides", &json!({ "place": { "type": "strin" } }));
    let body = asked(
        id,
        json!({ "tools": [bad, weather()], "tool_choice": "required" }),
    );
    let answer = whole(server, &body);
    assert_eq!(
        answer["choices"][0]["message"]["tool_calls"][0]["function"]["name"],
        "weather"
    );
    let notice = answer["backplane"]["notice"].as_str().expect("a notice");
    let place = "/tools/0/function/parameters/properties/place";
    assert!(
        notice.contains("`tides` is left out") && notice.contains(place),
        "{notice}"
    );
    let format = json!({ "type": "json_schema", "json_schema": { "schema": { "type": "array", "items": { "type": "nul" } } } });
    let itself = json!({ "type": "object", "properties": { "next": { "$ref": "#" } }, "required": ["next"] });
    let endless = json!({ "type": "json_schema", "json_schema": { "schema": itself } });
    let with = |parameters: Value| json!([{ "type": "function", "function": { "name": "tides", "parameters": parameters } }]);
    for (more, param, place) in [
        (
            json!({ "tools": [bad] }),
            "tools[0].function.parameters",
            "`tools[0].function.parameters`: /properties/place",
        ),
        (
            json!({ "response_format": endless }),
            "response_format.json_schema.schema",
            "`response_format.json_schema.schema`: /properties/next: no finite text satisfies it",
        ),
        (
            json!({ "tools": with(itself) }),
            "tools[0].function.parameters",
            "`tools[0].function.parameters`: /properties/next: no finite text satisfies it",
        ),
        (
            json!({ "tools": with(json!({ "type": "string" })) }),
            "tools[0].function.parameters",
            "`tools[0].function.parameters`: /type: expected an object's schema, as arguments are objects, found \"string\"",
        ),
        (
            json!({ "tools": with(json!({ "enum": [1] })), "tool_choice": "required" }),
            "tools[0].function.parameters",
            "`tools[0].function.parameters`: no text satisfies it",
        ),
        (
            json!({ "tools": [weather(), bad], "tool_choice": { "type": "function", "function": { "name": "tides" } } }),
            "tools[1].function.parameters",
            "`tools[1].function.parameters`: /properties/place",
        ),
        (
            json!({ "response_format": format }),
            "response_format.json_schema.schema",
            "`response_format.json_schema.schema`: /items",
        ),
        (json!({ "grammar": { "regex": "(" } }), "grammar", ""),
        (
            json!({ "grammar": { "lark": "start: nowhere" } }),
            "grammar",
            "nowhere",
        ),
        (
            json!({ "tool_choice": "required" }),
            "tool_choice",
            "tools to choose from",
        ),
    ] {
        for stream in [false, true] {
            let mut body = asked(id, more.clone());
            body["stream"] = json!(stream);
            let answer = server.post("/v1/chat/completions", &body);
            assert_eq!(answer.status, 400, "{}", answer.body);
            let error = &answer.json()["error"];
            assert_eq!(error["param"], param, "{error}");
            assert!(
                error["message"]
                    .as_str()
                    .expect("a message")
                    .contains(place),
                "{error}"
            );
        }
    }
}

/// What a request can't have is named as the request names it, and is no failure of the server's.
fn refusals(server: &Server, id: &str) {
    let user = json!([{ "role": "user", "content": "Hi" }]);
    let huge = "word ".repeat(20_000);
    let call = json!({ "id": "1", "function": { "name": "f", "arguments": 7 } });
    for (path, more, param) in [
        (
            "chat/completions",
            json!({ "stop_token_ids": [u32::MAX] }),
            "stop_token_ids",
        ),
        (
            "chat/completions",
            json!({ "chat_template_kwargs": { "tools": 1 } }),
            "chat_template_kwargs",
        ),
        (
            "chat/completions",
            json!({ "messages": [{ "role": "user", "content": huge }] }),
            "messages",
        ),
        (
            "chat/completions",
            json!({ "messages": [{ "role": "critic", "content": "" }] }),
            "messages[0].role",
        ),
        (
            "chat/completions",
            json!({ "messages": [{ "role": "assistant", "tool_calls": [call] }] }),
            "messages[0].tool_calls[0].function.arguments",
        ),
        (
            "chat/completions",
            json!({ "messages": [{ "role": "tool", "content": "", "tool_call_id": "2" }] }),
            "messages[0].tool_call_id",
        ),
        (
            "chat/completions",
            json!({ "messages": [{ "role": "user", "content": "", "colour": 1 }] }),
            "messages[0].colour",
        ),
        (
            "chat/completions",
            json!({ "grammar": { "lark": "start: a\na: a" } }),
            "grammar",
        ),
        ("completions", json!({ "prompt": huge }), "prompt"),
        ("completions", json!({ "prompt": [u32::MAX] }), "prompt"),
        (
            "completions",
            json!({ "prompt": "x", "grammar": { "json_schema": { "$ref": "#" } } }),
            "grammar.json_schema",
        ),
        ("responses", json!({ "input": huge }), "input"),
        ("embeddings", json!({ "input": [u32::MAX] }), "input"),
    ] {
        let mut body = json!({ "model": id });
        if path == "chat/completions" {
            body["messages"] = user.clone();
        }
        for (name, value) in more.as_object().expect("an object") {
            body[name] = value.clone();
        }
        let answer = server.post(&format!("/v1/{path}"), &body);
        assert_eq!(answer.status, 400, "{path} {param}: {}", answer.body);
        let error = &answer.json()["error"];
        assert_eq!(error["param"], param, "{path}: {error}");
        let said = error["message"].as_str().expect("a message");
        let others = ["stop_tokens", "template_options", "NoExtensionBias"];
        assert!(!others.iter().any(|other| said.contains(other)), "{said}");
    }
    let metrics = server.get("/metrics").body;
    let ended = |how: &str| {
        format!("backplane_replies_total{{model=\"{id}\",backend=\"cpu\",end=\"{how}\"}}")
    };
    assert!(metrics.contains(&ended("refused")), "{metrics}");
    assert!(!metrics.contains(&ended("error")), "{metrics}");
    assert!(!server.err.text().contains("WARN"), "{}", server.err.text());
}

/// A model of random weights calls as often as it happens to, and never otherwise than the schemas allow.
fn several_calls(server: &Server) {
    let tools = [
        tool("a", &json!({ "x": { "enum": [1, 2] } })),
        tool("b", &json!({})),
    ];
    let mut most = 0;
    for seed in 0..12 {
        let body = json!({ "model": RANDOM, "messages": [{ "role": "user", "content": "x" }], "tools": tools, "seed": seed,
            "tool_choice": "required", "temperature": 2, "top_k": 0, "top_p": 1, "min_p": 0, "max_tokens": 200, "stream": true,
            "parallel_tool_calls": seed % 3 != 0 });
        let answer = server.post("/v1/chat/completions", &body);
        assert_eq!(answer.status, 200, "{}", answer.body);
        let (text, calls, reason) = put_together(&answer.events());
        assert_eq!(text, "");
        most = most.max(calls.len());
        if reason == "length" {
            continue;
        }
        assert_eq!(reason, "tool_calls");
        assert!(seed % 3 != 0 || calls.len() == 1, "{calls:?}");
        for call in &calls {
            let given: Value =
                serde_json::from_str(call["arguments"].as_str().expect("a text")).expect("JSON");
            let right = match call["name"].as_str() {
                Some("a") => given["x"] == 1 || given["x"] == 2,
                _ => given == json!({}),
            };
            assert!(right, "{call}");
        }
    }
    assert!(most > 1, "parallel calls");
}

fn conversations(server: &Server, id: &str) {
    let call = json!({ "id": "call_1", "type": "function", "function": { "name": "weather", "arguments": "{\"city\": \"Paris\", \"days\": 1}" } });
    let messages = json!([
        { "role": "user", "content": "How is the weather in Paris?" },
        { "role": "assistant", "content": null, "tool_calls": [call] },
        { "role": "tool", "tool_call_id": "call_1", "content": "It rains." },
        { "role": "assistant", "content": null, "reasoning_content": "Nothing to add." },
        { "role": "user", "content": "And tomorrow?" },
    ]);
    for tools in [json!([]), json!([weather()])] {
        let body = asked(
            id,
            json!({ "messages": messages, "tools": tools, "max_tokens": 20 }),
        );
        let answer = whole(server, &body);
        assert!(
            answer["usage"]["prompt_tokens"].as_u64() > Some(30),
            "{answer}"
        );
    }
}

/// Random schemas: what comes parses, and an independent validator takes it.
fn fuzz(server: &Server) {
    let output = python()
        .arg(root().join("tests/suite/python/grammar_fuzz.py"))
        .args([server.address.as_str(), RANDOM])
        .output()
        .expect("Python: `cargo verify` installs it");
    let said = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(said.trim().ends_with("fine"), "{said}{errors}");
}
