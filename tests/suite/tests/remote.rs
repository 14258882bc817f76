//! The `remote` plugin through the staged program, with endpoints on this machine.
#![cfg(target_os = "linux")]

use backplane_endpoint::{Endpoint, begin_events, events, json as answer, piece};
use backplane_tests::server::Server;
use backplane_tests::{Ran, SMOLLM2, command, host, real_model};
use serde_json::{Value, json};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;
use tempfile::TempDir;

const KEY: &str = "sk-the-secret-of-this-test";
const LIST: &str = "{\"data\": [{\"id\": \"small\", \"meta\": {\"n_ctx\": 512}}]}";
const HELLO: [&[u8]; 4] = [
    b"data: {\"choices\": [{\"delta\": {\"content\": \"Hel\"}, \"text\": \"Hel\"}]}\n\n",
    b"data: {\"choices\": [{\"delta\": {}, \"finish_reason\": \"stop\"}]}\n\n",
    b"data: {\"choices\": [], \"usage\": {\"prompt_tokens\": 9, \"completion_tokens\": 2}}\n\n",
    b"data: [DONE]\n\n",
];

fn hello() -> Endpoint {
    Endpoint::start(|request, out| match &*request.method {
        "GET" => answer(out, "200 OK", "", LIST),
        _ => events(out, HELLO),
    })
}

/// A user's folder with a manifest: the staged plugins, what `head` says, and options of `remote`.
fn setup(head: &str, options: &str) -> (TempDir, PathBuf) {
    let home = tempfile::tempdir().expect("a folder");
    let manifest = home.path().join("plugins.toml");
    let plugins = host().with_file_name("plugins");
    let text = format!("directories = [{plugins:?}]\n{head}\n[plugin.remote.options]\n{options}\n");
    std::fs::write(&manifest, text).expect("a manifest");
    (home, manifest)
}

fn of(endpoint: &Endpoint, more: &str) -> String {
    format!("base_url = \"{}/v1\"\n{more}", endpoint.url())
}

fn backplane(home: &Path, manifest: &Path, arguments: &[&str]) -> Command {
    let mut all = vec!["--manifest", manifest.to_str().expect("a UTF-8 path")];
    all.extend(arguments);
    let mut command = command(home, &all);
    command
        .env("PATH", "/usr/bin:/bin")
        .env_remove("LLAMA_SERVER_PATH")
        .env("REMOTE_TEST_KEY", KEY);
    command
}

fn run(home: &Path, manifest: &Path, arguments: &[&str]) -> Ran {
    let mut command = backplane(home, manifest, arguments);
    command.output().expect("the program starts").into()
}

fn smollm2() -> String {
    let path = real_model(SMOLLM2);
    path.to_str().expect("a UTF-8 path").to_owned()
}

#[test]
fn a_model_of_an_endpoint_is_run_by_its_name() {
    let endpoint = hello();
    // Whatever else is preferred, the name says which backend.
    let (home, manifest) = setup(
        "order = [\"cpu\"]",
        &of(&endpoint, "key_env = \"REMOTE_TEST_KEY\""),
    );
    for name in ["remote:small", "REMOTE:small"] {
        let reply = run(
            home.path(),
            &manifest,
            &["run", name, "--json", "--max-tokens", "5", "Hi"],
        )
        .json();
        assert_eq!(reply["text"], "Hel");
        assert_eq!(
            (&reply["backend"], &reply["model"]),
            (&"remote".into(), &"remote:small".into())
        );
        assert_eq!(reply["usage"]["prompt_tokens"], 9);
        assert_eq!(reply["finish_reason"], "stop");
        assert_eq!(reply["notice"], Value::Null);
    }
    let requests = endpoint.requests();
    let last = requests.last().expect("a request");
    assert_eq!(last.path, "/v1/chat/completions");
    assert_eq!(last.headers["authorization"], format!("Bearer {KEY}"));
    let reply = run(
        home.path(),
        &manifest,
        &["run", "remote:small", "--raw", "Once"],
    );
    assert_eq!(
        (reply.code, &*reply.out),
        (Some(0), "Hel\n"),
        "{}",
        reply.err
    );
    assert_eq!(
        endpoint.requests().last().expect("a request").path,
        "/v1/completions"
    );

    let shown = run(home.path(), &manifest, &["show", "remote:small", "--json"]).json();
    assert_eq!(
        (&shown["format"], &shown["backends"][0]),
        (&"openai".into(), &"remote".into())
    );
    let why = run(
        home.path(),
        &manifest,
        &["plugins", "explain", "remote:small", "--json"],
    )
    .json();
    assert_eq!(
        (&why["chosen"], &why["pinned"]),
        (&"remote".into(), &"remote".into())
    );
    let devices = run(home.path(), &manifest, &["devices", "--json"]).json();
    let devices = devices["devices"].as_array().expect("devices");
    assert!(devices.iter().any(|device| device["kind"] == "remote"));
}

#[test]
fn it_is_never_chosen_for_a_file() {
    let endpoint = hello();
    let model = smollm2();
    let arguments = ["run", &model, "--raw", "--json", "--max-tokens", "1", "a"];
    let (home, manifest) = setup("order = [\"remote\", \"cpu\"]", &of(&endpoint, ""));
    let reply = run(home.path(), &manifest, &arguments).json();
    assert_eq!(
        (&reply["backend"], &reply["notice"]),
        (&"cpu".into(), &Value::Null)
    );
    let (home, manifest) = setup("order = [\"remote\"]", &of(&endpoint, ""));
    let ran = run(home.path(), &manifest, &arguments);
    assert_eq!(ran.code, Some(4), "{}", ran.err);
    assert!(
        ran.err.contains("no available backend takes this format"),
        "{}",
        ran.err
    );
    assert_eq!(endpoint.requests().len(), 0, "the endpoint is left alone");
}

#[test]
fn without_an_endpoint_it_says_so_and_only_when_asked() {
    let (home, manifest) = setup("", "");
    let ran = run(home.path(), &manifest, &["run", "remote:small", "Hi"]);
    assert_eq!(ran.code, Some(3), "{}", ran.err);
    assert!(ran.err.contains("no base_url configured"), "{}", ran.err);
    let (home, manifest) = setup("order = [\"remote\", \"cpu\"]", "");
    let reply = run(
        home.path(),
        &manifest,
        &[
            "run",
            &smollm2(),
            "--raw",
            "--json",
            "--max-tokens",
            "1",
            "a",
        ],
    );
    assert_eq!(reply.json()["notice"], Value::Null, "absent is no fall");
}

#[test]
fn names_are_told_apart() {
    let endpoint = hello();
    let (home, manifest) = setup("", &of(&endpoint, ""));
    let fails = |arguments: &[&str], code: i32, told: &str| {
        let ran = run(home.path(), &manifest, arguments);
        assert_eq!(ran.code, Some(code), "{arguments:?}: {}", ran.err);
        assert!(ran.err.contains(told), "{arguments:?}: {}", ran.err);
    };
    fails(&["run", "remte:small", "Hi"], 2, "remote");
    fails(&["run", "https://elsewhere/small", "Hi"], 4, "no such file");
    fails(&["run", "remote:large", "Hi"], 4, "it has small");
    fails(
        &["run", "remote:small", "--backend", "cpu", "Hi"],
        2,
        "`cpu` is pinned",
    );
    fails(&["run", "cpu:small", "Hi"], 4, "`cpu` does not take it");
    fails(
        &["run", "remote:small", "--context", "64", "Hi"],
        2,
        "`context`",
    );
    fails(&["run", "remote:small", "--top-k", "5", "Hi"], 2, "`top_k`");
    fails(
        &["tokenize", "remote:small", "Hi"],
        2,
        "can't tell the tokens",
    );
    fails(&["embed", "remote:small", "Hi"], 2, "embed/1");
    // A file of that very name comes first.
    std::fs::write(home.path().join("remote:small"), "no model").expect("a file");
    fails(&["run", "remote:small", "Hi"], 4, "remote:small");
    assert!(
        endpoint
            .requests()
            .iter()
            .all(|request| request.method == "GET")
    );
}

#[test]
fn an_interrupt_closes_the_connection() {
    for isolation in ["in-process", "process"] {
        let endpoint = Endpoint::start(|request, out| match &*request.method {
            "GET" => answer(out, "200 OK", "", LIST),
            _ => {
                begin_events(out)?;
                loop {
                    piece(out, HELLO[0])?;
                    std::thread::sleep(Duration::from_millis(5));
                }
            }
        });
        let (home, manifest) = setup(
            &format!("[plugin.remote]\nisolation = {isolation:?}"),
            &of(&endpoint, ""),
        );
        let mut command = backplane(home.path(), &manifest, &["run", "remote:small", "Hi"]);
        let mut child = command
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("the program starts");
        let mut first = [0];
        let out = child.stdout.as_mut().expect("standard output");
        out.read_exact(&mut first).expect("a reply has begun");
        let pid = child.id().to_string();
        let sent = Command::new("kill").args(["-INT", &pid]).status();
        assert!(sent.expect("kill runs").success());
        let ended = child.wait_with_output().expect("it ends").status;
        assert_eq!(
            endpoint.left_within(Duration::from_secs(20)),
            1,
            "{isolation}"
        );
        assert_eq!(ended.code(), Some(130), "{isolation}");
    }
}

/// What an endpoint keeps apart as thought is told apart by the server too, and goes back with the conversation.
#[test]
fn what_an_endpoint_thinks_is_passed_on() {
    let endpoint = Endpoint::start(|request, out| match (&*request.method, &*request.path) {
        ("GET", _) => answer(out, "200 OK", "", LIST),
        (_, "/v1/completions") => events(out, HELLO),
        _ => events(
            out,
            [
                &b"data: {\"choices\": [{\"delta\": {\"reasoning_content\": \"1+1\"}}]}\n\n"[..],
                b"data: {\"choices\": [{\"delta\": {\"reasoning_content\": \"=2\"}}]}\n\n",
                b"data: {\"choices\": [{\"delta\": {\"content\": \"{\\\"sum\\\": 2}\"}}]}\n\n",
                HELLO[1],
                HELLO[2],
                HELLO[3],
            ],
        ),
    });
    let (home, manifest) = setup("", &of(&endpoint, ""));
    let manifest = manifest.to_str().expect("UTF-8");
    let server = Server::start(home.path(), Some(manifest), &["remote:small"]).ready();
    let before = json!({ "role": "assistant", "content": "1", "reasoning_content": "easy" });
    let user = json!({ "role": "user", "content": "And 1+1?" });
    let schema = json!({ "type": "object", "properties": { "sum": { "type": "integer" } }, "required": ["sum"] });
    let format =
        json!({ "type": "json_schema", "json_schema": { "name": "sum", "schema": schema } });
    let mut body = json!({ "model": "remote:small", "messages": [user, before, user], "response_format": format });
    let said = server.post("/v1/chat/completions", &body).json();
    let message = &said["choices"][0]["message"];
    assert_eq!(message["reasoning_content"], "1+1=2", "{said}");
    assert_eq!(message["content"], "{\"sum\": 2}", "{said}");
    let request = endpoint.requests().pop().expect("a request");
    let asked: Value = serde_json::from_str(&request.body).expect("JSON");
    assert_eq!(asked["messages"][1], before, "{asked}");
    assert_eq!(
        asked["response_format"]["json_schema"]["schema"], schema,
        "{asked}"
    );

    body["stream"] = json!(true);
    let streamed = server.post("/v1/chat/completions", &body).events();
    let of = |field: &str| -> String {
        let pieces = streamed
            .iter()
            .filter_map(|event| event["choices"][0]["delta"][field].as_str());
        pieces.collect()
    };
    assert_eq!(
        (of("reasoning_content"), of("content")),
        ("1+1=2".to_owned(), "{\"sum\": 2}".to_owned())
    );
    body["reasoning_format"] = json!("none");
    body["stream"] = json!(false);
    let said = server.post("/v1/chat/completions", &body).json();
    let text = said["choices"][0]["message"]["content"].as_str();
    assert_eq!(
        text,
        Some("<think>\n1+1=2\n</think>\n\n{\"sum\": 2}"),
        "{said}"
    );
}

/// Every verb, as loud as it goes: the key is in none of what they write, and in no file that they leave.
#[test]
fn the_key_is_shown_by_no_verb() {
    let endpoint = Endpoint::start(|request, out| {
        let asked = serde_json::from_str::<Value>(&request.body).unwrap_or_default();
        if asked["max_tokens"] == 7 {
            let body =
                format!("{{\"error\": {{\"message\": \"Incorrect API key provided: {KEY}\"}}}}");
            return answer(out, "401 Unauthorized", &format!("x-key: {KEY}\r\n"), &body);
        }
        match &*request.method {
            "GET" => answer(out, "200 OK", "", LIST),
            _ => events(out, HELLO),
        }
    });
    let text = |path: &Path| path.to_str().expect("a UTF-8 path").to_owned();
    for isolation in ["in-process", "process"] {
        let (home, manifest) = setup(
            &format!("[plugin.remote]\nisolation = {isolation:?}"),
            &of(&endpoint, "key_env = \"REMOTE_TEST_KEY\""),
        );
        let output = text(&home.path().join("out"));
        let verbs: &[&[&str]] = &[
            &["run", "remote:small", "Hi"],
            &["run", "remote:small", "--json", "--raw", "Hi"],
            &["run", "remote:small", "--max-tokens", "7", "Hi"],
            &["run", "remote:large", "Hi"],
            &["run", "remote:small", "--quantize", "q8_0", "Hi"],
            &["chat", "remote:small"],
            &["classify", "remote:small", "Hi"],
            &["tokenize", "remote:small", "Hi"],
            &["detokenize", "remote:small", "1"],
            &["models"],
            &["show", "remote:small", "--json"],
            &["show", "remote:small", "--check"],
            &["convert", "remote:small", &output],
            &["perplexity", "remote:small", "Hi"],
            &["bench", "remote:small"],
            &["embed", "remote:small", "Hi"],
            &[
                "inspect-attention",
                "remote:small",
                "Hi",
                "--output",
                &output,
            ],
            &["plugins"],
            &["plugins", "--json"],
            &["plugins", "check"],
            &["plugins", "explain", "remote:small", "--json"],
            &["devices"],
            &["devices", "--json"],
        ];
        for verb in verbs {
            for loud in [&["-vv"][..], &["-vv", "--log-format", "json"]] {
                let mut child = backplane(home.path(), &manifest, &[loud, verb].concat())
                    .stdin(Stdio::piped())
                    .stdout(Stdio::piped())
                    .stderr(Stdio::piped())
                    .spawn()
                    .expect("the program starts");
                if verb[0] == "chat" {
                    let mut input = child.stdin.take().expect("standard input");
                    // It may have ended before it reads this.
                    let _ = input.write_all(b"Hello\n/help\n/info\n");
                }
                drop(child.stdin.take());
                let ran = Ran::from(child.wait_with_output().expect("it ends"));
                let all = format!("{}{}", ran.out, ran.err);
                assert!(!all.contains(KEY), "{verb:?}: {all}");
                assert!(!all.is_empty(), "{verb:?}");
            }
        }
        for entry in walk(home.path()) {
            let bytes = std::fs::read(&entry).expect("a file");
            let found = bytes
                .windows(KEY.len())
                .any(|window| window == KEY.as_bytes());
            assert!(!found, "{}", entry.display());
        }
    }
    // It was used all the same.
    let given = |request: &backplane_endpoint::Request| {
        request.headers.get("authorization") == Some(&format!("Bearer {KEY}"))
    };
    assert!(endpoint.requests().iter().all(given));
}

fn walk(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).expect("a folder");
    let paths = entries.map(|entry| entry.expect("an entry").path());
    paths
        .flat_map(|path| match path.is_dir() {
            true => walk(&path),
            false => vec![path],
        })
        .collect()
}
