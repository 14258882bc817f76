//! The server as its clients and its operator meet it.
#![cfg(unix)]

use backplane_tests::http::{Answer, ask, head, send};
use backplane_tests::modules::{self, move_over, place, variant, write_manifest};
use backplane_tests::server::Server;
use backplane_tests::{SMOLLM2, real_model, run};
use serde_json::{Value, json};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::Command;
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// A server of SmolLM2 by the staged plugins.
fn smollm2(arguments: &[&str]) -> (TempDir, Server, String) {
    let home = tempfile::tempdir().expect("a folder");
    let model = real_model(SMOLLM2);
    let mut all = vec![model.to_str().expect("UTF-8"), "--backend", "cpu"];
    all.extend(arguments);
    let server = Server::start(home.path(), None, &all).ready();
    let id = SMOLLM2.trim_end_matches(".gguf").to_owned();
    (home, server, id)
}

fn user(text: &str) -> Value {
    json!([{ "role": "user", "content": text }])
}

#[test]
fn chat_and_completions_answer_whole_and_streamed() {
    let (_home, mut server, id) = smollm2(&[]);
    let chat = json!({
        "model": id, "messages": user("What is the capital of France?"), "temperature": 0, "max_tokens": 24,
        "logprobs": true, "top_logprobs": 2,
    });
    let whole = server.post("/v1/chat/completions", &chat);
    assert_eq!(whole.status, 200, "{}", whole.body);
    let whole = whole.json();
    assert_eq!(
        (&whole["object"], &whole["model"]),
        (&json!("chat.completion"), &json!(id))
    );
    let choice = &whole["choices"][0];
    let text = choice["message"]["content"].as_str().expect("a text");
    assert!(text.contains("Paris"), "{text}");
    assert_eq!(choice["message"]["role"], "assistant");
    assert_eq!(whole["backplane"]["backend"], "cpu");
    let usage = &whole["usage"];
    let count = |name: &str| usage[name].as_u64().expect("a number");
    assert_eq!(
        count("total_tokens"),
        count("prompt_tokens") + count("completion_tokens")
    );
    let tokens = choice["logprobs"]["content"].as_array().expect("logprobs");
    assert_eq!(tokens.len() as u64, count("completion_tokens"));
    assert_eq!(
        tokens[0]["top_logprobs"].as_array().expect("others").len(),
        2
    );

    // Greedy: each token is the likeliest, and is told as one of them.
    for token in tokens {
        assert_eq!(token["top_logprobs"][0]["token"], token["token"]);
    }
    // A stop string is told by no token either.
    let mut stopped = chat.clone();
    stopped["stop"] = json!(["tal of"]);
    let stopped = server.post("/v1/chat/completions", &stopped).json();
    let choice_of_it = &stopped["choices"][0];
    let said = choice_of_it["message"]["content"].as_str().expect("a text");
    let shown = choice_of_it["logprobs"]["content"].as_array();
    let shown: Vec<&str> = shown
        .expect("logprobs")
        .iter()
        .map(|token| token["token"].as_str().expect("a text"))
        .collect();
    assert!(text.starts_with(said) && said.ends_with("capi"), "{said}");
    assert_eq!(shown.last(), Some(&" capital"), "{shown:?}");

    let mut streamed = chat.clone();
    streamed["stream"] = json!(true);
    streamed["stream_options"] = json!({ "include_usage": true });
    let answer = server.post("/v1/chat/completions", &streamed);
    assert!(
        answer
            .header("content-type")
            .is_some_and(|kind| kind.starts_with("text/event-stream"))
    );
    let events = answer.events();
    let delta = |event: &Value| {
        event["choices"][0]["delta"]["content"]
            .as_str()
            .unwrap_or("")
            .to_owned()
    };
    assert_eq!(
        events.iter().map(delta).collect::<String>(),
        text,
        "the same text"
    );
    assert_eq!(events[0]["choices"][0]["delta"]["role"], "assistant");
    let (last, before) = events.split_last().expect("events");
    assert_eq!(last["choices"], json!([]));
    assert_eq!(
        last["usage"]["completion_tokens"],
        usage["completion_tokens"]
    );
    assert!(
        before
            .iter()
            .all(|event| event["usage"].is_null() && event["id"] == last["id"])
    );
    let end = before.last().expect("an end");
    assert_eq!(end["choices"][0]["finish_reason"], choice["finish_reason"]);

    let completion = json!({
        "model": id.to_uppercase(), "prompt": ["The capital of France is", [504, 3575, 282]], "temperature": 0,
        "max_tokens": 8, "stop": ["\n"], "logprobs": 1,
    });
    let answer = server.post("/v1/completions", &completion).json();
    let choices = answer["choices"].as_array().expect("choices");
    assert_eq!(choices.len(), 2);
    assert!(
        choices[0]["text"]
            .as_str()
            .is_some_and(|text| text.contains("Paris")),
        "{answer}"
    );
    assert_eq!(choices[1]["index"], 1);
    assert_eq!(
        choices[0]["logprobs"]["tokens"]
            .as_array()
            .expect("tokens")
            .len(),
        choices[0]["logprobs"]["text_offset"]
            .as_array()
            .expect("offsets")
            .len()
    );

    // As many choices as are asked for, each with a seed of its own.
    let several = json!({ "model": id, "messages": user("Name a colour."), "n": 3, "seed": 5, "max_tokens": 4 });
    let again = |body: &Value| server.post("/v1/chat/completions", body).json()["choices"].clone();
    let first = again(&several);
    assert_eq!(first.as_array().map(Vec::len), Some(3));
    assert_eq!(first, again(&several), "the same seed");

    let models = server.get("/v1/models").json();
    assert_eq!(models["data"][0]["id"], id);
    assert_eq!(
        server.get(&format!("/v1/models/{id}")).json()["owned_by"],
        "cpu"
    );
    let backends = server.get("/v1/backends").json();
    assert_eq!(backends["models"][0]["selection"]["chosen"], "cpu");
    assert!(backends["selection"]["candidates"].is_array());

    server.signal("-TERM");
    assert_eq!(server.ended(Duration::from_secs(10)).code(), Some(0));
    assert!(server.err.text().contains("stopping: SIGTERM"));
}

/// A number of tokens that is stated and does not fit beside the prompt is refused with all sizes, in every dialect but Ollama's,
/// before a stream begins.
fn a_reply_that_does_not_fit_beside_its_prompt(server: &Server, id: &str) {
    let chat = || json!({ "model": id, "messages": user("Hi") });
    let text = || json!({ "model": id, "prompt": "one two" });
    for (path, field, mut body) in [
        ("/v1/chat/completions", "max_tokens", chat()),
        ("/v1/chat/completions", "max_completion_tokens", chat()),
        ("/v1/completions", "max_tokens", text()),
        (
            "/v1/responses",
            "max_output_tokens",
            json!({ "model": id, "input": "Hi" }),
        ),
        ("/v1/messages", "max_tokens", chat()),
    ] {
        body[field] = json!(1000);
        for stream in [false, true] {
            body["stream"] = json!(stream);
            let answer = server.post(path, &body);
            assert_eq!(answer.status, 400, "{path}: {}", answer.body);
            let error = answer.json()["error"].clone();
            let message = error["message"].as_str().expect("a message");
            let sizes = format!("input length and `{field}` exceed context limit: ");
            let rest = message
                .strip_prefix(&sizes)
                .unwrap_or_else(|| panic!("{message}"));
            assert!(rest.contains(" + 1000 > 128, decrease "), "{message}");
            assert_eq!(error["type"], "invalid_request_error");
            if path != "/v1/messages" {
                let (code, param) = (&error["code"], &error["param"]);
                assert_eq!(
                    (code, param),
                    (&json!("context_length_exceeded"), &json!(field))
                );
            }
        }
        // What is left may be asked for, and not one more; choices are each their own.
        let said = server.post(path, &body).json()["error"]["message"].to_string();
        let (_, left) = said.split_once("at most ").expect("what is left");
        let left: u64 = left
            .split(' ')
            .next()
            .and_then(|it| it.parse().ok())
            .expect("a number");
        body["stream"] = json!(false);
        for (tokens, status) in [(left, 200), (left + 1, 400)] {
            body[field] = json!(tokens);
            if path == "/v1/completions" {
                body["n"] = json!(2);
            }
            let answer = server.post(path, &body);
            assert_eq!(answer.status, status, "{path} {tokens}: {}", answer.body);
        }
    }
    let mut body = chat();
    body["stream"] = json!(false);
    body["options"] = json!({ "num_predict": 1000 });
    let answer = server.post("/api/chat", &body);
    assert_eq!(answer.status, 200, "{}", answer.body);
}

#[test]
fn what_is_wrong_is_refused_in_openais_shape() {
    let (_home, server, id) = smollm2(&["--context", "128"]);
    let chat = |field: &str, value: Value| {
        let mut body = json!({ "model": id, "messages": user("Hi") });
        body[field] = value;
        server.post("/v1/chat/completions", &body)
    };
    for (field, value, status, code) in [
        ("temperature", json!("hot"), 400, ""),
        (
            "functions",
            json!([{ "name": "f" }]),
            400,
            "unsupported_parameter",
        ),
        ("response_format", json!({ "type": "json_schema" }), 400, ""),
        ("frobnicate", json!(1), 400, "unsupported_parameter"),
        ("messages", json!([]), 400, ""),
        ("model", json!("another"), 404, "model_not_found"),
    ] {
        let answer = chat(field, value);
        assert_eq!(answer.status, status, "{field}: {}", answer.body);
        let error = &answer.json()["error"];
        assert_eq!(error["param"], field, "{error}");
        assert_eq!(error["code"].as_str().unwrap_or(""), code, "{error}");
        assert_eq!(error["type"], "invalid_request_error");
        assert!(
            error["message"]
                .as_str()
                .is_some_and(|text| text.contains(field)),
            "{error}"
        );
    }
    // A prompt that does not fit: both counts, also where a stream was asked for.
    let long = "word ".repeat(400);
    for stream in [false, true] {
        let body = json!({ "model": id, "messages": user(&long), "stream": stream });
        let answer = server.post("/v1/chat/completions", &body);
        assert_eq!(answer.status, 400, "{}", answer.body);
        let error = answer.json()["error"].clone();
        assert_eq!(error["code"], "context_length_exceeded");
        assert!(
            error["message"]
                .as_str()
                .is_some_and(|text| text.contains("128")),
            "{error}"
        );
    }
    a_reply_that_does_not_fit_beside_its_prompt(&server, &id);
    for (text, said) in [
        ("", "no JSON"),
        ("{", "no JSON"),
        ("[]", "no JSON object"),
        ("{\"a\":", "no JSON"),
    ] {
        let answer = ask(&server.address, "POST", "/v1/chat/completions", text);
        assert_eq!(answer.status, 400);
        assert!(answer.body.contains(said), "{}", answer.body);
    }
    assert_eq!(server.get("/v1/chat/completions").status, 405);
    let answer = server.get("/nowhere");
    assert_eq!(
        (answer.status, &answer.json()["error"]["code"]),
        (404, &json!("unknown_url"))
    );
    assert_eq!(server.get("/v1/models/nope").status, 404);
    // Larger than it may be, by what its head says and by what comes.
    let huge = format!("Content-Length: {}\r\n", 1_u64 << 40);
    let mut stream = TcpStream::connect(&server.address).expect("it listens");
    write!(
        stream,
        "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n{huge}\r\n"
    )
    .expect("sent");
    assert_eq!(head(stream).status, 413);
    let mut stream = TcpStream::connect(&server.address).expect("it listens");
    write!(
        stream,
        "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
    )
    .expect("sent");
    let chunk = vec![b'['; 1 << 20];
    // To the last byte that is taken, and one more.
    let chunks = std::iter::repeat_n(&chunk[..], 16).chain([&b"["[..]]);
    for chunk in chunks {
        let sent = write!(stream, "{:x}\r\n", chunk.len())
            .and_then(|()| stream.write_all(chunk))
            .and_then(|()| stream.write_all(b"\r\n"));
        if sent.is_err() {
            break;
        }
    }
    assert_eq!(head(stream).status, 413);
    // What is no HTTP does no harm.
    let mut stream = TcpStream::connect(&server.address).expect("it listens");
    let _ = stream.write_all(b"\x16\x03\x01\x00\xff\r\n\r\n");
    drop(stream);
    // All sizes of a reply.
    for tokens in [0, -1] {
        let body =
            json!({ "model": id, "prompt": "one two", "max_tokens": tokens, "ignore_eos": true });
        let answer = server.post("/v1/completions", &body);
        assert_eq!(answer.status, 200, "{}", answer.body);
        assert_eq!(answer.json()["choices"][0]["finish_reason"], "length");
    }
    assert_eq!(chat("max_tokens", json!(4)).status, 200, "it still answers");
}

#[test]
fn a_client_that_goes_away_frees_its_place() {
    let options = "[plugin.echo_a.options]\ntoken_delay_ms = 20";
    let (home, manifest) = modules::home(&["echo-a"], options);
    let server = Server::start(home.path(), Some(&manifest), &["model.echo"]).ready();
    let generated = || {
        // Counters of the model are not told yet; threads are: one for each reply that runs.
        let tasks = format!("/proc/{}/task", server.child.id());
        let names = std::fs::read_dir(tasks)
            .expect("Linux tells")
            .filter_map(|task| std::fs::read_to_string(task.ok()?.path().join("comm")).ok());
        names.filter(|name| name.starts_with("reply of")).count()
    };
    let long = "a long reply ".repeat(200);
    for stream in [true, false] {
        let body = json!({ "model": "model.echo", "prompt": long, "max_tokens": -1, "temperature": 0, "stream": stream });
        let open = send(
            &server.address,
            "POST",
            "/v1/completions",
            "",
            &body.to_string(),
        );
        let begun = Instant::now();
        while generated() == 0 {
            assert!(begun.elapsed() < Duration::from_secs(10), "it begins");
            std::thread::sleep(Duration::from_millis(5));
        }
        drop(open);
        let gone = Instant::now();
        while generated() > 0 {
            assert!(
                gone.elapsed() < Duration::from_secs(1),
                "stream {stream}: it goes on"
            );
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

#[test]
fn a_second_server_on_a_port_says_so_and_ends() {
    let (home, manifest) = modules::home(&["echo-a"], "");
    let mut server = Server::start(home.path(), Some(&manifest), &["model.echo"]).ready();
    let port = server
        .address
        .rsplit(':')
        .next()
        .expect("a port")
        .to_owned();
    let ran = run(
        home.path(),
        &[
            "--manifest",
            &manifest,
            "serve",
            "model.echo",
            "--port",
            &port,
        ],
    );
    assert_eq!(ran.code, Some(2));
    assert!(
        ran.err.contains(&format!("127.0.0.1:{port}")) && ran.err.contains("in use"),
        "{}",
        ran.err
    );
    for (arguments, code, said) in [
        (&["serve", "--on-demand=false"][..], 2, "no model is named"),
        (&["serve", "nowhere", "--port", "0"], 4, "nowhere"),
        (
            &["serve", "model.echo", "./model.echo", "--port", "0"],
            2,
            "one name",
        ),
        (
            &["serve", "model.echo", "--host", "999.1.1.1", "--port", "0"],
            2,
            "999.1.1.1",
        ),
    ] {
        let all: Vec<&str> = ["--manifest", &manifest]
            .into_iter()
            .chain(arguments.iter().copied())
            .collect();
        let ran = run(home.path(), &all);
        assert_eq!(ran.code, Some(code), "{arguments:?}: {}", ran.err);
        assert!(ran.err.contains(said), "{arguments:?}: {}", ran.err);
    }
    // A client that keeps its connection does not keep the server.
    let idle = TcpStream::connect(&server.address).expect("it listens");
    server.signal("-INT");
    assert_eq!(server.ended(Duration::from_secs(5)).code(), Some(0));
    drop(idle);
}

#[test]
fn replies_may_end_before_it_stops_and_are_cut_off_then() {
    let options = "[plugin.echo_a.options]\ntoken_delay_ms = 20";
    let (home, manifest) = modules::home(&["echo-a"], options);
    let start = |grace: &str| {
        Server::start(
            home.path(),
            Some(&manifest),
            &["model.echo", "--grace", grace],
        )
        .ready()
    };
    let begin = |server: &Server, length: usize| {
        let body = json!({ "model": "model.echo", "prompt": "x".repeat(length), "max_tokens": -1, "temperature": 0 });
        let mut coming = server.stream("/v1/completions", &body);
        assert!(coming.line().is_some_and(|line| line.starts_with("data: ")));
        coming
    };
    let mut server = start("10");
    let coming = begin(&server, 50);
    server.signal("-TERM");
    server.hears("stopping");
    assert!(
        TcpStream::connect(&server.address).is_err(),
        "nothing is taken any more"
    );
    let lines: Vec<String> = lines(coming);
    assert_eq!(
        lines.last().map(String::as_str),
        Some("data: [DONE]"),
        "it ends as it would"
    );
    assert_eq!(server.ended(Duration::from_secs(5)).code(), Some(0));

    let mut server = start("0");
    let coming = begin(&server, 1000);
    let text = user(&"x".repeat(500));
    let chat =
        json!({ "model": "model.echo", "messages": text, "max_tokens": 400, "temperature": 0 });
    let response = json!({ "model": "model.echo", "input": text, "temperature": 0 });
    let line = json!({ "model": "model.echo", "messages": text });
    let others = [
        ("/v1/chat/completions", chat.clone()),
        ("/v1/responses", response),
        ("/v1/messages", chat),
        ("/api/chat", line),
    ];
    let others = others.map(|(path, body)| (path, server.stream(path, &body)));
    server.signal("-TERM");
    let lines = self::lines(coming);
    let last = lines.last().expect("an error");
    assert!(last.contains("the server is stopping"), "{last}");
    for (path, coming) in others {
        fails_in_the_shape_of(path, &coming.rest());
    }
    assert_eq!(server.ended(Duration::from_secs(5)).code(), Some(0));
    let log = server.hears("access: ");
    let line = log
        .lines()
        .find(|line| line.contains("route=\"/v1/completions\""));
    let line = line.unwrap_or_else(|| panic!("no line in\n{log}"));
    assert!(line.contains("status=200 gone=false failed=true"), "{line}");
    for none in [" prompt_tokens=0", " completion_tokens=0"] {
        assert!(!line.contains(none), "{line}");
    }

    // Nor does it wait for the rest of requests.
    let mut server = start("0");
    let part = |text: &str| {
        let mut stream = TcpStream::connect(&server.address).expect("it listens");
        stream.write_all(text.as_bytes()).expect("it reads");
        stream
    };
    let head = "POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: 100\r\n";
    let (half_head, mut half_body) = (part(head), part(&format!("{head}\r\n{{")));
    assert_eq!(server.get("/healthz").status, 200);
    server.signal("-TERM");
    assert_eq!(server.ended(Duration::from_secs(4)).code(), Some(0));
    let mut answer = String::new();
    let _ = half_body.read_to_string(&mut answer);
    // One that the server had not looked at yet gets nothing.
    assert!(
        answer.is_empty() || answer.starts_with("HTTP/1.1 503"),
        "{answer:?}"
    );
    drop(half_head);

    let mut server = start("60");
    let coming = begin(&server, 1000);
    server.signal("-TERM");
    server.hears("stopping");
    server.signal("-TERM");
    assert_eq!(server.ended(Duration::from_secs(2)).code(), Some(143));
    drop(coming);
}

/// That a stream ended with the error that an answer of its path would have been.
fn fails_in_the_shape_of(path: &str, answer: &Answer) {
    let last = answer.body.trim_end().lines().last().expect("an error");
    let data = last.strip_prefix("data: ").unwrap_or(last);
    let error: Value = serde_json::from_str(data).expect("the last event is JSON");
    let (why, id) = ("the server is stopping", answer.header("x-request-id"));
    let (kind, expected) = match path {
        "/v1/messages" => (
            "error",
            json!({ "type": "error", "error": { "type": "overloaded_error", "message": why }, "request_id": id }),
        ),
        "/v1/responses" => (
            "response.failed",
            json!({ "code": "server_error", "message": why }),
        ),
        "/api/chat" => ("", json!({ "error": why })),
        _ => (
            "",
            json!({ "error": { "type": "server_error", "message": why, "param": null, "code": null, "request_id": id } }),
        ),
    };
    let named = answer
        .body
        .lines()
        .rfind(|line| line.starts_with("event: "));
    assert_eq!(named.map_or("", |line| &line[7..]), kind, "{path}: {last}");
    if path == "/v1/responses" {
        let response = &error["response"];
        assert_eq!(
            (&response["status"], &response["error"]),
            (&json!("failed"), &expected)
        );
    } else {
        assert_eq!(error, expected, "{path}");
    }
}

fn lines(mut coming: backplane_tests::http::Coming) -> Vec<String> {
    std::iter::from_fn(|| coming.line()).collect()
}

#[test]
fn a_worker_that_crashes_fails_its_request_and_the_others_go_on() {
    let manifest = "[plugin.panics]\nisolation = \"process\"\n[plugin.panics.options]\ncrash_in = [\"chat\"]\n\
        token_delay_ms = 10";
    let (home, manifest) = modules::home(&["panics"], manifest);
    let server = Server::start(home.path(), Some(&manifest), &["model.echo"]).ready();
    for _ in 0..2 {
        let answer = server.post(
            "/v1/chat/completions",
            &json!({ "model": "model.echo", "messages": user("hi") }),
        );
        assert_eq!(answer.status, 500, "{}", answer.body);
        let message = answer.json()["error"]["message"].to_string();
        assert!(
            message.contains("SIGABRT") && message.contains("`panics`"),
            "{message}"
        );
        let unready = server.get("/readyz");
        assert_eq!(unready.status, 503, "{}", unready.body);
        assert!(
            unready.body.contains("its engine is gone"),
            "{}",
            unready.body
        );
        let body = json!({ "model": "model.echo", "prompt": "still here", "temperature": 0 });
        let answer = server.post("/v1/completions", &body);
        assert_eq!(answer.status, 200, "{}", answer.body);
        assert_eq!(answer.json()["choices"][0]["text"], "still here");
    }
    assert_eq!(server.get("/healthz").status, 200);
    assert_eq!(server.get("/readyz").status, 200);
}

#[test]
fn what_a_reply_took_counts_where_its_worker_is_killed() {
    let manifest =
        "[plugin.echo_a]\nisolation = \"process\"\n[plugin.echo_a.options]\ntoken_delay_ms = 10";
    let (home, manifest) = modules::home(&["echo-a"], manifest);
    let server = Server::start(home.path(), Some(&manifest), &["model.echo"]).ready();
    let body = json!({ "model": "model.echo", "prompt": "x".repeat(1000), "max_tokens": -1, "temperature": 0 });
    let mut coming = server.stream("/v1/completions", &body);
    for _ in 0..6 {
        coming.line().expect("it streams");
    }
    let pid = server.child.id().to_string();
    let workers = Command::new("pgrep").args(["-P", &pid]).output();
    let workers = String::from_utf8(workers.expect("pgrep runs").stdout).expect("UTF-8");
    for worker in workers.split_whitespace() {
        let killed = Command::new("kill").args(["-KILL", worker]).status();
        assert!(killed.expect("kill runs").success());
    }
    let last = lines(coming).pop().expect("an error");
    assert!(last.contains("SIGKILL"), "{last}");
    let log = server.hears("failed=true");
    let line = log.lines().find(|line| line.contains("failed=true"));
    let line = line.expect("just heard");
    let tokens = |name: &str| {
        let after = line.split(&format!(" {name}=")).nth(1);
        let number = after.and_then(|after| after.split(' ').next());
        number.and_then(|number| number.parse::<u64>().ok())
    };
    assert!(tokens("completion_tokens") >= Some(3), "{line}");
    let page = server.get("/metrics").body;
    for name in ["prompt_tokens", "completion_tokens"] {
        let counted = page.lines().find_map(|line| {
            line.strip_prefix(&format!("backplane_{name}_total{{"))?
                .rsplit(' ')
                .next()?
                .parse()
                .ok()
        });
        assert!(tokens(name) > Some(0), "{line}");
        assert_eq!(counted, tokens(name), "{line}\n{page}");
    }
}

#[test]
fn a_reload_leaves_what_runs_and_gives_what_comes_to_the_new_module() {
    let slow = "[plugin.echo_a.options]\ntoken_delay_ms = 20";
    let (home, manifest) = modules::home(&["echo-a"], slow);
    let server = Server::start(home.path(), Some(&manifest), &["model.echo"]).ready();
    let say = |text: &str| {
        let body =
            json!({ "model": "model.echo", "prompt": text, "temperature": 0, "max_tokens": -1 });
        let answer = server.post("/v1/completions", &body);
        assert_eq!(answer.status, 200, "{}", answer.body);
        assert_eq!(answer.json()["choices"][0]["text"], text);
    };
    let long = "x".repeat(150);
    let body = json!({ "model": "model.echo", "prompt": long, "max_tokens": -1, "temperature": 0 });
    let mut coming = server.stream("/v1/completions", &body);
    assert!(coming.line().is_some());
    // Over the file in place, while it is in use: a new module, and a new manifest in which it is fast.
    std::fs::write(place(home.path(), "echo-a"), variant("echo-a", "another"))
        .expect("written over");
    write_manifest(home.path(), "");
    let ran = run(
        home.path(),
        &["plugins", "reload", "--server", &server.address, "--json"],
    );
    let told = ran.json();
    // The watch may have been first.
    if let Some(change) = told["changes"].get(0) {
        assert_eq!(change["change"], "replaced", "{told}");
        assert_eq!(change["models"][0]["same_answer"], true, "{told}");
    }
    let begun = Instant::now();
    say("new");
    assert!(
        begun.elapsed() < Duration::from_secs(2),
        "it is the fast one that answers"
    );
    let lines = lines(coming);
    let text: String = lines
        .iter()
        .filter_map(|line| line.strip_prefix("data: {"))
        .filter_map(|rest| {
            let event: Value = serde_json::from_str(&format!("{{{rest}")).ok()?;
            Some(event["choices"][0]["text"].as_str()?.to_owned())
        })
        .collect();
    assert!(
        long.ends_with(&text) && text.len() >= long.len() - 1,
        "{text}"
    );
    assert_eq!(lines.last().map(String::as_str), Some("data: [DONE]"));

    // One that is broken is refused, by the watch alone, and the reason is shown.
    move_over(&place(home.path(), "echo-a"), b"broken");
    server.hears("echo_a 0.1.0: refused");
    say("as before");
    let plugins = server.get("/v1/backends").json()["plugins"].clone();
    let find = |name: &str| {
        plugins
            .as_array()?
            .iter()
            .find(|plugin| plugin["name"] == name)
            .cloned()
    };
    let plugin = find("echo_a").expect("it is listed");
    assert_eq!(plugin["verdict"]["state"], "available");
    assert!(
        plugin["notice"]
            .as_str()
            .is_some_and(|notice| notice.contains("a text file")),
        "{plugin}"
    );
    // One more comes, and the first goes.
    move_over(&place(home.path(), "echo-b"), &variant("echo-b", ""));
    server.hears("echo_b 0.1.0: added");
    std::fs::remove_file(place(home.path(), "echo-a")).expect("it was there");
    server.hears("is run by echo_b");
    say("by another");
    // What the operator gets wrong changes nothing.
    write_manifest(home.path(), "ordr = []");
    server.hears("nothing is reloaded");
    say("still");
    let ran = run(
        home.path(),
        &["plugins", "reload", "--server", &server.address],
    );
    assert_eq!(ran.code, Some(2));
    assert!(ran.err.contains("unknown key `ordr`"), "{}", ran.err);
    // Nobody but this machine's programs may ask.
    let stream = send(
        &server.address,
        "POST",
        "/admin/reload",
        "Origin: http://evil.example\r\n",
        "",
    );
    assert_eq!(head(stream).rest().status, 403);
    let ran = run(
        home.path(),
        &["plugins", "reload", "--server", "http://127.0.0.1:1"],
    );
    assert!(
        ran.code == Some(2) && ran.err.contains("no server answers"),
        "{}",
        ran.err
    );
}
