//! The server as the official clients of OpenAI, Anthropic and Ollama meet it, and what it says to requests that are wrong.
#![cfg(unix)]

use backplane_tests::http::{ask, head, send};
use backplane_tests::server::Server;
use backplane_tests::{SMOLLM2, modules, python, real_model, root};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::process::Command;
use tempfile::TempDir;

/// The key of the second server.
const KEY: &str = "sk-of-the-tests-0123456789abcdef";

fn owner_alone(file: &Path) {
    use std::os::unix::fs::PermissionsExt;
    let mode = std::fs::Permissions::from_mode(0o600);
    std::fs::set_permissions(file, mode).expect("permissions");
}

/// A server of SmolLM2 by the staged plugins, and the name of the model.
fn smollm2(home: &Path) -> (Server, String) {
    let model = real_model(SMOLLM2);
    let arguments = [model.to_str().expect("UTF-8"), "--backend", "cpu"];
    let server = Server::start(home, None, &arguments).ready();
    (server, SMOLLM2.trim_end_matches(".gguf").to_owned())
}

/// A server of a model that says the last message again, so that replies may call tools; its embeddings and its tokenizer
/// panic, and it asks for a key.
fn echo() -> (TempDir, Server) {
    let manifest = "[plugin.panics.options]\n\
        last_message = true\ntoken_delay_ms = 2\npanic_in = [\"embed\", \"tokenize\"]";
    let (home, manifest) = modules::home(&["panics"], manifest);
    let keys = home.path().join("keys");
    std::fs::write(&keys, format!("tests: {KEY}\n")).expect("keys");
    owner_alone(&keys);
    let keys = keys.to_str().expect("UTF-8");
    let arguments = ["model.echo", "--api-keys", keys, "--queue", "0"];
    let server = Server::start(home.path(), Some(&manifest), &arguments).ready();
    (home, server)
}

#[test]
fn the_official_clients_are_content() {
    let home = tempfile::tempdir().expect("a folder");
    let (server, id) = smollm2(home.path());
    let url = format!("http://{}", server.address);
    let run = |mut program: Command, script: PathBuf| {
        // One each, as they keep it busy on purpose.
        let (_home, echo) = echo();
        let output = program
            .arg(&script)
            .args([&url, &id, &format!("http://{}", echo.address), KEY])
            .current_dir(home.path())
            .output()
            .expect("it runs");
        let said = String::from_utf8_lossy(&output.stdout);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert_eq!(said.trim(), "fine", "{}:\n{errors}", script.display());
    };
    let scripts = root().join("tests/suite/python");
    // Packages are found beside the script.
    let packages = root().join("cache/clients");
    let by_node = |script: &str| {
        let place = packages.join(script);
        std::fs::copy(root().join("tests/suite/node").join(script), &place)
            .expect("packages for Node: `cargo verify` installs them");
        place
    };
    std::thread::scope(|scope| {
        for script in [
            "openai_client.py",
            "anthropic_client.py",
            "ollama_client.py",
        ] {
            let script = scripts.join(script);
            scope.spawn(|| run(python(), script));
        }
        for script in ["openai_client.mjs", "anthropic_client.mjs"] {
            let script = by_node(script);
            scope.spawn(|| run(Command::new(root().join("cache/venv/bin/node")), script));
        }
    });
}

#[test]
fn what_is_wrong_is_refused_in_each_dialects_shape() {
    let home = tempfile::tempdir().expect("a folder");
    let (server, id) = smollm2(home.path());
    let user = json!([{ "role": "user", "content": "Hi" }]);
    let with = |base: &Value, field: &str, value: &Value| {
        let mut body = base.clone();
        body[field] = value.clone();
        body
    };
    let openai: fn(&Value) -> &Value = |answer| &answer["error"]["message"];
    let anthropic = |answer: &Value| {
        assert_eq!(answer["type"], "error", "{answer}");
        assert_eq!(answer["error"]["type"], "invalid_request_error", "{answer}");
        answer["error"]["message"].clone()
    };
    let ollama = |answer: &Value| answer["error"].clone();
    let message = |path: &str, answer: &Value| match path {
        path if path.starts_with("/api/") => ollama(answer),
        path if path.starts_with("/v1/messages") => anthropic(answer),
        _ => openai(answer).clone(),
    };
    let responses = json!({ "model": id, "input": "Hi", "max_output_tokens": 2 });
    let messages = json!({ "model": id, "messages": user, "max_tokens": 2 });
    let chat = json!({ "model": id, "messages": user, "options": { "num_predict": 2 } });
    let generate = json!({ "model": id, "prompt": "Hi", "options": { "num_predict": 2 } });
    let embeddings = json!({ "model": id, "input": "Hi" });
    let count = json!({ "model": id, "messages": user });
    let tokens = json!({ "tokens": [1] });
    let bodies = [
        ("/v1/responses", &responses),
        ("/v1/messages", &messages),
        ("/v1/messages/count_tokens", &count),
        ("/api/chat", &chat),
        ("/api/generate", &generate),
        ("/api/embed", &embeddings),
        ("/v1/embeddings", &embeddings),
        ("/detokenize", &tokens),
    ];
    // What every path does with what is no request at all, with fields that nobody knows, and with models that are not there.
    for (path, base) in bodies {
        let answer = server.post(path, base);
        assert_eq!(answer.status, 200, "{path}: {}", answer.body);
        for text in ["", "{", "[]", "{\"model\": \"\\ud800\"}"] {
            let answer = ask(&server.address, "POST", path, text);
            assert_eq!(answer.status, 400, "{path}: {}", answer.body);
            assert!(message(path, &answer.json()).is_string(), "{}", answer.body);
        }
        for (field, value) in [("frobnicate", json!(1)), ("model", json!(["x"]))] {
            let answer = server.post(path, &with(base, field, &value));
            assert_eq!(answer.status, 400, "{path}: {}", answer.body);
            let said = message(path, &answer.json()).to_string();
            assert!(said.contains(field), "{path}: {said}");
        }
        let answer = server.post(path, &with(base, "model", &json!("another")));
        assert_eq!(answer.status, 404, "{path}: {}", answer.body);
        assert!(answer.body.contains("another"), "{}", answer.body);
        assert_eq!(server.get(path).status, 405, "{path}");
    }
    let huge = "word ".repeat(20_000);
    for (path, base, field, value, said) in [
        ("/v1/responses", &responses, "input", json!([]), "`input`"),
        (
            "/v1/responses",
            &responses,
            "input",
            json!([{ "role": "user", "content": [{ "type": "input_image" }] }]),
            "input_image",
        ),
        (
            "/v1/responses",
            &responses,
            "background",
            json!(true),
            "`background`",
        ),
        (
            "/v1/responses",
            &responses,
            "conversation",
            json!("c"),
            "`conversation`",
        ),
        (
            "/v1/responses",
            &responses,
            "tools",
            json!([{ "type": "web_search" }]),
            "`tools[0].type`",
        ),
        (
            "/v1/responses",
            &responses,
            "include",
            json!(["file_search_call.results"]),
            "`include[0]`",
        ),
        ("/v1/responses", &responses, "input", json!(huge), "tokens"),
        (
            "/v1/messages",
            &messages,
            "max_tokens",
            json!(null),
            "`max_tokens`",
        ),
        (
            "/v1/messages",
            &messages,
            "max_tokens",
            json!(-1),
            "`max_tokens`",
        ),
        (
            "/v1/messages",
            &messages,
            "messages",
            json!([{ "role": "assistant", "content": "x" }]),
            "`messages[0].role`",
        ),
        (
            "/v1/messages",
            &messages,
            "thinking",
            json!({ "type": "enabled", "budget_tokens": "many" }),
            "`thinking.budget_tokens`",
        ),
        (
            "/v1/messages",
            &messages,
            "tools",
            json!([{ "type": "web_search_20250305", "name": "web_search" }]),
            "web_search",
        ),
        (
            "/v1/messages",
            &messages,
            "tool_choice",
            json!({ "type": "tool", "name": "f" }),
            "`f`",
        ),
        ("/v1/messages", &messages, "system", json!({}), "`system`"),
        ("/v1/messages", &messages, "system", json!(huge), "tokens"),
        (
            "/v1/messages/count_tokens",
            &count,
            "max_tokens",
            json!(1),
            "`max_tokens`",
        ),
        (
            "/api/chat",
            &chat,
            "options",
            json!({ "tempratur": 1 }),
            "did you mean `temperature`",
        ),
        (
            "/api/chat",
            &chat,
            "options",
            json!({ "num_ctx": 1_000_000 }),
            "num_ctx",
        ),
        ("/api/chat", &chat, "options", json!([]), "`options`"),
        (
            "/api/chat",
            &chat,
            "messages",
            json!([{ "role": "user", "content": "x", "images": ["aaaa"] }]),
            "images",
        ),
        ("/api/chat", &chat, "format", json!("yaml"), "`format`"),
        (
            "/api/chat",
            &chat,
            "format",
            json!({ "type": "robot" }),
            "`format`: Invalid type",
        ),
        (
            "/v1/responses",
            &responses,
            "text",
            json!({ "format": { "type": "json_schema", "name": "x", "schema": { "$ref": "#/nowhere" } } }),
            "`text.format.schema`: ",
        ),
        (
            "/v1/responses",
            &responses,
            "text",
            json!({ "format": { "type": "xml" } }),
            "`text.format.type`",
        ),
        (
            "/v1/messages",
            &messages,
            "output_config",
            json!({ "effort": "low" }),
            "`output_config.effort`",
        ),
        (
            "/v1/messages",
            &messages,
            "output_config",
            json!({ "format": { "type": "json_schema" } }),
            "`output_config.format`",
        ),
        (
            "/v1/messages",
            &messages,
            "output_config",
            json!({ "format": { "type": "json_schema", "schema": { "type": 7 } } }),
            "`output_config.format.schema`: ",
        ),
        (
            "/v1/messages",
            &messages,
            "tools",
            json!([{ "name": "f", "input_schema": { "type": 7 } }]),
            "`tools[0].input_schema`: ",
        ),
        ("/api/chat", &chat, "think", json!("hard"), "`think`"),
        ("/api/generate", &generate, "suffix", json!("x"), "`suffix`"),
        (
            "/api/generate",
            &generate,
            "context",
            json!([1, 2]),
            "`context`",
        ),
        ("/api/generate", &generate, "prompt", json!(1), "`prompt`"),
        ("/api/generate", &generate, "prompt", json!(huge), "tokens"),
        (
            "/api/embed",
            &embeddings,
            "truncate",
            json!("yes"),
            "`truncate`",
        ),
        (
            "/api/embed",
            &embeddings,
            "dimensions",
            json!(100_000),
            "`dimensions`",
        ),
        (
            "/v1/embeddings",
            &embeddings,
            "input",
            json!(""),
            "input[0]",
        ),
        (
            "/v1/embeddings",
            &embeddings,
            "input",
            json!(["x", huge]),
            "input[1]",
        ),
        (
            "/v1/embeddings",
            &embeddings,
            "input",
            json!([[u32::MAX]]),
            "vocabulary",
        ),
        (
            "/v1/embeddings",
            &embeddings,
            "input",
            json!(vec!["x"; 2049]),
            "up to 2048",
        ),
        (
            "/v1/embeddings",
            &embeddings,
            "encoding_format",
            json!("int8"),
            "float or base64",
        ),
        (
            "/detokenize",
            &tokens,
            "tokens",
            json!([u32::MAX]),
            "vocabulary",
        ),
        ("/detokenize", &tokens, "tokens", json!([-1]), "`tokens`"),
    ] {
        let answer = server.post(path, &with(base, field, &value));
        assert_eq!(answer.status, 400, "{path} {field}: {}", answer.body);
        let text = message(path, &answer.json());
        let text = text.as_str().expect("a text");
        assert!(
            text.contains(said) && !text.contains('\n'),
            "{path} {field}: {text}"
        );
    }
    let version = "anthropic-version: 2001-01-01\r\n";
    let body = messages.to_string();
    let answer = head(send(
        &server.address,
        "POST",
        "/v1/messages",
        version,
        &body,
    ))
    .rest();
    assert_eq!(answer.status, 400, "{}", answer.body);
    assert!(anthropic(&answer.json()).to_string().contains("2023-06-01"));
    assert_eq!(server.get("/readyz").status, 200, "it lives");
}

#[test]
fn tokens_are_told_as_vllm_and_llama_server_tell_them() {
    let home = tempfile::tempdir().expect("a folder");
    let (server, id) = smollm2(home.path());
    let answer = server.post(
        "/tokenize",
        &json!({ "prompt": "Hello 😊<|im_end|>", "return_token_strs": true }),
    );
    let vllm = answer.json();
    let tokens = vllm["tokens"].as_array().expect("tokens").clone();
    assert_eq!(vllm["count"], tokens.len(), "{vllm}");
    assert_eq!(tokens.last(), Some(&json!(2)), "{vllm}");
    assert_eq!(vllm["token_strs"][tokens.len() - 1], "<|im_end|>");
    assert!(
        vllm["max_model_len"]
            .as_u64()
            .is_some_and(|length| length >= 1024)
    );
    let back = server
        .post("/detokenize", &json!({ "model": id, "tokens": tokens }))
        .json();
    assert_eq!(
        (&back["prompt"], &back["content"]),
        (&json!("Hello 😊<|im_end|>"), &json!("Hello 😊<|im_end|>"))
    );
    let body =
        json!({ "content": "Hello 😊<|im_end|>", "with_pieces": true, "parse_special": false });
    let pieces = server.post("/tokenize", &body).json()["tokens"].clone();
    let pieces = pieces.as_array().expect("pieces");
    assert!(pieces.iter().all(|piece| piece["id"] != 2), "{pieces:?}");
    // Parts of a character are told as bytes.
    let bytes = pieces.iter().flat_map(|piece| match &piece["piece"] {
        Value::String(text) => text.clone().into_bytes(),
        Value::Array(bytes) => bytes
            .iter()
            .map(|byte| byte.as_u64().expect("a byte") as u8)
            .collect(),
        other => panic!("{other}"),
    });
    assert_eq!(
        String::from_utf8(bytes.collect()).expect("UTF-8"),
        "Hello 😊<|im_end|>"
    );
    // A conversation has as many tokens as a chat says that its prompt has.
    let messages = json!([{ "role": "user", "content": "Hi" }]);
    let counted = server
        .post("/tokenize", &json!({ "messages": messages }))
        .json()["count"]
        .clone();
    let chat = json!({ "model": id, "messages": messages, "max_tokens": 1 });
    let usage = server.post("/v1/chat/completions", &chat).json()["usage"].clone();
    assert_eq!(counted, usage["prompt_tokens"]);
    for (body, said) in [
        (json!({}), "`prompt`"),
        (json!({ "prompt": "x", "content": "x" }), "`prompt`"),
        (json!({ "prompt": ["x"] }), "expected a text"),
        (
            json!({ "messages": messages, "add_special": true }),
            "`add_special`",
        ),
        (json!({ "messages": [] }), "`messages`"),
    ] {
        let answer = server.post("/tokenize", &body);
        assert_eq!(answer.status, 400, "{}", answer.body);
        assert!(answer.body.contains(said), "{}", answer.body);
    }
}
