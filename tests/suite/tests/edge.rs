//! The server's edge: who may ask, what is counted and logged, and what streams leave behind.
#![cfg(unix)]

use backplane_tests::http::{Answer, head, send};
use backplane_tests::modules;
use backplane_tests::server::Server;
use backplane_tests::{SMOLLM2, python, real_model, root, run};
use serde_json::{Value, json};
use std::net::TcpStream;
use std::path::Path;

/// Writes a file that its owner alone can read.
fn secret(home: &Path, name: &str, text: &str) -> String {
    use std::os::unix::fs::PermissionsExt;
    let path = home.join(name);
    std::fs::write(&path, text).expect("written");
    let mode = std::fs::Permissions::from_mode(0o600);
    std::fs::set_permissions(&path, mode).expect("a mode");
    path.to_str().expect("UTF-8").to_owned()
}

/// Asks with headers of one's own.
fn ask(server: &Server, method: &str, path: &str, headers: &[&str], body: &Value) -> Answer {
    let headers: String = headers.iter().map(|line| format!("{line}\r\n")).collect();
    let body = match body {
        Value::Null => String::new(),
        body => body.to_string(),
    };
    head(send(&server.address, method, path, &headers, &body)).rest()
}

/// The samples of the server's metrics, by Prometheus' own parser.
fn samples(server: &Server, key: &[&str]) -> Value {
    let output = python()
        .arg(root().join("tests/suite/tests/metrics_page.py"))
        .arg(format!("http://{}/metrics", server.address))
        .args(key)
        .output()
        .expect("Python: `cargo verify` installs it");
    let errors = String::from_utf8_lossy(&output.stderr);
    serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{errors}"))
}

/// One number of the metrics, without the detour.
fn number(server: &Server, name: &str) -> f64 {
    let page = server.get("/metrics").body;
    let line = page.lines().find_map(|line| line.strip_prefix(name));
    let line = line.unwrap_or_else(|| panic!("no {name} in\n{page}"));
    let value = line.rsplit(' ').next().expect("a value");
    value.parse().expect("a number")
}

fn completion(prompt: &str, more: Value) -> Value {
    let mut body =
        json!({ "model": "model.echo", "prompt": prompt, "temperature": 0, "max_tokens": -1 });
    for (name, value) in more.as_object().expect("an object") {
        body[name] = value.clone();
    }
    body
}

#[test]
fn requests_are_counted_and_logged_by_their_id() {
    let (home, manifest) = modules::home(&["echo-a"], "");
    let server = Server::start(home.path(), Some(&manifest), &["model.echo"]).ready();
    let secret = "a prompt that nobody is to read";
    let given = ask(
        &server,
        "POST",
        "/v1/completions",
        &["X-Request-Id: mine-1"],
        &completion(secret, json!({})),
    );
    assert_eq!(given.status, 200, "{}", given.body);
    assert_eq!(given.header("x-request-id"), Some("mine-1"));
    let wrong = ask(
        &server,
        "POST",
        "/v1/completions",
        &["X-Request-Id: not one"],
        &completion(secret, json!({ "n": 0 })),
    );
    assert_eq!(wrong.status, 400);
    let id = wrong.header("x-request-id").expect("an id").to_owned();
    assert!(id.starts_with("req_"), "{id}");
    assert_eq!(wrong.json()["error"]["request_id"], id.as_str());
    let stream = completion(secret, json!({ "stream": true }));
    let streamed = server.post("/v1/completions", &stream);
    assert_eq!(streamed.status, 200);
    assert!(streamed.header("x-request-id").is_some());
    for path in [
        "/v1/models/nope",
        "/nowhere",
        "/%6eowhere",
        "/v1/models/{id}",
    ] {
        assert_eq!(server.get(path).status, 404, "{path}");
    }
    assert_eq!(
        ask(&server, "BREW", "/v1/models", &[], &Value::Null).status,
        405
    );

    // Lines are written when all of a request has ended.
    let log = server.hears("route=\"other\"");
    server.hears("method=other");
    let line = |id: &str| {
        let mark = format!("request={id}");
        let found = log.lines().find(|line| line.contains(&mark));
        found
            .unwrap_or_else(|| panic!("no {mark} in\n{log}"))
            .to_owned()
    };
    let first = line("mine-1");
    for part in [
        "access",
        "peer=127.0.0.1:",
        "method=POST",
        "route=\"/v1/completions\"",
        "status=200",
        "gone=false",
        "model=\"model.echo\"",
        "backend=\"echo_a\"",
        "prompt_tokens=32",
        "completion_tokens=31",
        "first_token_s=",
        "bytes=",
    ] {
        assert!(first.contains(part), "{part}: {first}");
    }
    assert!(line(&id).contains("status=400"));
    assert!(!log.contains("nobody is to read"), "{log}");

    let samples = samples(&server, &[]);
    let requests = |route: &str, status: u16, dialect: &str| {
        let name = format!(
            "backplane_http_requests_total{{dialect={dialect},key=,route={route},status={status}}}"
        );
        samples[&name]
            .as_f64()
            .unwrap_or_else(|| panic!("no {name} in {samples:#}"))
    };
    assert_eq!(requests("/v1/completions", 200, "openai"), 2.0);
    assert_eq!(requests("/v1/completions", 400, "openai"), 1.0);
    assert_eq!(requests("/v1/models/{id}", 404, "openai"), 2.0);
    assert_eq!(requests("other", 404, "none"), 2.0);
    let model = "{backend=echo_a,model=model.echo}";
    for (name, value) in [
        ("backplane_prompt_tokens_total", 64.0),
        ("backplane_completion_tokens_total", 62.0),
        ("backplane_replies_running", 0.0),
        ("backplane_time_to_first_token_seconds_count", 2.0),
        ("backplane_time_between_tokens_seconds_count", 60.0),
        ("backplane_queue_time_seconds_count", 2.0),
    ] {
        assert_eq!(samples[format!("{name}{model}")], value, "{name}");
    }
    let ends = "backplane_replies_total{backend=echo_a,end=stop,model=model.echo}";
    assert_eq!(samples[ends], 2.0, "{samples:#}");
    assert_eq!(
        samples["backplane_model_loads_total{model=model.echo}"],
        1.0
    );
    assert_eq!(samples["backplane_model_ready{model=model.echo}"], 1.0);
    for name in ["process_resident_memory_bytes{}", "process_open_fds{}"] {
        assert!(samples[name].as_f64().is_some_and(|it| it > 0.0), "{name}");
    }

    let quiet = ["model.echo", "--access-log=false", "--metrics", "off"];
    let server = Server::start(home.path(), Some(&manifest), &quiet).ready();
    assert_eq!(server.get("/metrics").status, 404);
    assert!(
        !server.err.text().contains("request="),
        "{}",
        server.err.text()
    );
}

#[test]
fn keys_let_in_who_has_one() {
    let (home, manifest) = modules::home(&["echo-a"], "");
    let keys = secret(
        home.path(),
        "keys",
        "# two\nalice: sk-alice-1\nroot: sk-root-1 admin\n",
    );
    let arguments = ["model.echo", "--api-keys", &keys];
    let server = Server::start(home.path(), Some(&manifest), &arguments).ready();
    let body = completion("hi", json!({}));
    for headers in [
        &[][..],
        &["Authorization: Bearer sk-alice-2"],
        &["Authorization: Basic sk-alice-1"],
        &["x-api-key: "],
        &["Authorization: Bearer alice"],
    ] {
        let answer = ask(&server, "POST", "/v1/completions", headers, &body);
        assert_eq!(answer.status, 401, "{headers:?}");
        assert_eq!(answer.header("www-authenticate"), Some("Bearer"));
        let error = answer.json()["error"].clone();
        assert_eq!(error["code"], "invalid_api_key");
        assert!(!answer.body.contains("sk-alice"), "{}", answer.body);
        assert_eq!(
            ask(&server, "GET", "/metrics", headers, &Value::Null).status,
            401
        );
    }
    for headers in [
        "Authorization: Bearer sk-alice-1",
        "x-api-key: sk-alice-1",
        "Authorization: bearer sk-root-1",
    ] {
        let answer = ask(&server, "POST", "/v1/completions", &[headers], &body);
        assert_eq!(answer.status, 200, "{headers}: {}", answer.body);
    }
    // What tells whether it lives asks for none.
    assert_eq!(server.get("/healthz").status, 200);
    // A name in metrics and log; never the key.
    let samples = samples(&server, &["sk-alice-1"]);
    let name =
        "backplane_http_requests_total{dialect=openai,key=alice,route=/v1/completions,status=200}";
    assert_eq!(samples[name], 2.0, "{samples:#}");
    let log = server.hears("key=\"root\"");
    assert!(!log.contains("sk-"), "{log}");

    // Operating: this machine, or a key that may.
    let reload = |headers: &[&str]| ask(&server, "POST", "/admin/reload", headers, &Value::Null);
    assert_eq!(reload(&[]).status, 200);
    // A key that is wrong is told so, from this machine too; who has one that may not operate is on this machine all the same.
    let wrong = "Authorization: Bearer sk-alice-2";
    for headers in [
        &[wrong][..],
        &["x-api-key: sk-alice-2"],
        &["X-Forwarded-For: 203.0.113.9", wrong],
    ] {
        assert_eq!(reload(headers).status, 401, "{headers:?}");
        let ps = ask(&server, "GET", "/admin/ps", headers, &Value::Null);
        assert_eq!(ps.status, 401, "{headers:?}");
    }
    assert_eq!(reload(&["x-api-key: sk-alice-1"]).status, 200);
    let healthz = ask(&server, "GET", "/healthz", &[wrong], &Value::Null);
    assert_eq!(healthz.status, 200);
    let far = "X-Forwarded-For: 203.0.113.9";
    assert_eq!(reload(&[far]).status, 403);
    assert_eq!(reload(&[far, "x-api-key: sk-alice-1"]).status, 403);
    assert_eq!(reload(&[far, "x-api-key: sk-root-1"]).status, 200);
    assert_eq!(reload(&["Origin: http://127.0.0.1"]).status, 403);
    let mut stream = TcpStream::connect(&server.address).expect("it listens");
    std::io::Write::write_all(
        &mut stream,
        b"POST /admin/reload HTTP/1.1\r\nHost: rebound.example\r\nContent-Length: 0\r\nConnection: close\r\n\r\n",
    )
    .expect("sent");
    assert_eq!(head(stream).rest().status, 403);

    // Another file takes the place of the first; a broken one does not.
    secret(home.path(), "keys", "bob: sk-bob-123\n");
    assert_eq!(reload(&[]).status, 200);
    let status = |key: &str| {
        let key = format!("x-api-key: {key}");
        ask(&server, "GET", "/v1/models", &[&key], &Value::Null).status
    };
    assert_eq!((status("sk-alice-1"), status("sk-bob-123")), (401, 200));
    secret(home.path(), "keys", "bob\n");
    let answer = reload(&[]);
    assert_ne!(answer.status, 200);
    assert!(answer.body.contains("line 1"), "{}", answer.body);
    assert_eq!(status("sk-bob-123"), 200);

    let empty = secret(home.path(), "empty", "");
    for (file, said) in [(empty.as_str(), "no key in it"), ("nowhere", "nowhere")] {
        let arguments = [
            "--manifest",
            &manifest,
            "serve",
            "model.echo",
            "--port",
            "0",
        ];
        let ran = run(
            home.path(),
            &[&arguments[..], &["--api-keys", file]].concat(),
        );
        assert_eq!(ran.code, Some(2), "{}", ran.err);
        assert!(ran.err.contains(said), "{}", ran.err);
    }
}

#[test]
fn web_pages_ask_only_where_they_may() {
    let (home, manifest) = modules::home(&["echo-a"], "");
    let server = Server::start(home.path(), Some(&manifest), &["model.echo"]).ready();
    let get =
        |server: &Server, headers: &[&str]| ask(server, "GET", "/v1/models", headers, &Value::Null);
    // Off: no page of another origin, and nothing that tells a browser otherwise.
    for origin in ["http://evil.example", "null", "http://127.0.0.1:1"] {
        let answer = get(&server, &[&format!("Origin: {origin}")]);
        assert_eq!(answer.status, 403, "{origin}");
        assert_eq!(answer.header("access-control-allow-origin"), None);
    }
    let own = format!("Origin: http://{}", server.address);
    assert_eq!(get(&server, &[&own]).status, 200);
    let ask_first = |server: &Server, origin: &str| {
        let origin = format!("Origin: {origin}");
        let headers = [
            &origin,
            "Access-Control-Request-Method: POST",
            "Access-Control-Request-Headers: authorization, content-type",
        ];
        ask(
            server,
            "OPTIONS",
            "/v1/chat/completions",
            &headers,
            &Value::Null,
        )
    };
    assert_eq!(ask_first(&server, "http://evil.example").status, 403);
    // A name that a page has made up for this machine.
    let mut stream = TcpStream::connect(&server.address).expect("it listens");
    std::io::Write::write_all(
        &mut stream,
        b"GET /v1/models HTTP/1.1\r\nHost: rebound.example:8080\r\nConnection: close\r\n\r\n",
    )
    .expect("sent");
    assert_eq!(head(stream).rest().status, 403);

    let friends = [
        "model.echo",
        "--origins",
        "http://friend.example,app://friend",
        "--hosts",
        "rebound.example",
    ];
    let server = Server::start(home.path(), Some(&manifest), &friends).ready();
    let answer = ask_first(&server, "http://friend.example");
    assert_eq!(answer.status, 204);
    for (name, value) in [
        ("access-control-allow-origin", "http://friend.example"),
        ("access-control-allow-methods", "POST"),
        (
            "access-control-allow-headers",
            "authorization, content-type",
        ),
        ("vary", "origin"),
    ] {
        assert_eq!(answer.header(name), Some(value), "{name}");
    }
    let answer = get(&server, &["Origin: app://friend"]);
    assert_eq!(
        (answer.status, answer.header("access-control-allow-origin")),
        (200, Some("app://friend"))
    );
    assert_eq!(get(&server, &["Origin: http://evil.example"]).status, 403);
    // Errors are readable to a page that may ask.
    let wrong = ask(
        &server,
        "POST",
        "/v1/completions",
        &["Origin: app://friend"],
        &json!({}),
    );
    assert_eq!(
        (wrong.status, wrong.header("access-control-allow-origin")),
        (400, Some("app://friend"))
    );
    let mut stream = TcpStream::connect(&server.address).expect("it listens");
    std::io::Write::write_all(
        &mut stream,
        b"GET /v1/models HTTP/1.1\r\nHost: rebound.example\r\nConnection: close\r\n\r\n",
    )
    .expect("sent");
    assert_eq!(head(stream).rest().status, 200);
}

#[test]
fn a_silent_stream_has_comments_and_a_silent_connection_an_end() {
    let options = "[plugin.echo_a.options]\ntoken_delay_ms = 100";
    let (home, manifest) = modules::home(&["echo-a"], options);
    let arguments = ["model.echo", "--heartbeat", "20ms", "--idle-time", "300ms"];
    let server = Server::start(home.path(), Some(&manifest), &arguments).ready();
    let body = completion("abc", json!({ "stream": true, "temperature": 0 }));
    let answer = server.post("/v1/completions", &body);
    assert!(answer.body.contains(": still here\n\n"), "{}", answer.body);
    let text: String = answer
        .events()
        .iter()
        .filter_map(|event| event["choices"][0]["text"].as_str().map(str::to_owned))
        .collect();
    assert_eq!(text, "abc");
    // One that never says anything, one in mid-head, and one after its answer: all are let go.
    for said in [
        "",
        "GET /healthz",
        "GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n",
    ] {
        let mut stream = TcpStream::connect(&server.address).expect("it listens");
        std::io::Write::write_all(&mut stream, said.as_bytes()).expect("sent");
        let limit = std::time::Duration::from_secs(20);
        stream.set_read_timeout(Some(limit)).expect("a limit");
        let mut read = Vec::new();
        std::io::Read::read_to_end(&mut stream, &mut read).expect("it ends");
        assert_eq!(read.is_empty(), !said.ends_with('\n'), "{said:?}");
    }
}

#[test]
fn a_real_engine_tells_its_numbers_and_is_freed_by_who_goes_away() {
    let home = tempfile::tempdir().expect("a folder");
    let model = real_model(SMOLLM2);
    let model = model.to_str().expect("UTF-8");
    let arguments = [
        model,
        "--backend",
        "cpu",
        "--context",
        "8192",
        "--parallel",
        "1",
    ];
    let server = Server::start(home.path(), None, &arguments).ready();
    let id = SMOLLM2.trim_end_matches(".gguf");
    let labels = format!("{{model=\"{id}\",backend=\"cpu\"}}");
    let number = |name: &str| number(&server, &format!("backplane_{name}{labels}"));
    // Texts that become vectors are read as prompts are.
    let vectors = server.post(
        "/v1/embeddings",
        &json!({ "model": id, "input": ["one", "two three"] }),
    );
    let read = vectors.json()["usage"]["prompt_tokens"].as_f64();
    assert!(read > Some(1.0), "{}", vectors.body);
    assert_eq!(Some(number("prompt_tokens_total")), read);
    let mut body = completion("word ".repeat(7000).trim_end(), json!({ "model": id }));

    // In mid-prompt.
    let open = send(
        &server.address,
        "POST",
        "/v1/completions",
        "",
        &body.to_string(),
    );
    server.waits("it reads", |_| number("engine_sequences_running") > 0.0);
    drop(open);
    server.waits("its place is free", |_| {
        number("engine_sequences_running") == 0.0 && number("replies_running") == 0.0
    });
    // What was read is kept for others: little of it was.
    let (kept, room) = (
        number("engine_kv_pages_cached"),
        number("engine_kv_pages_total"),
    );
    assert!(kept < room / 4.0, "{kept} pages were read for nobody");

    // In the queue, while another one runs.
    body["ignore_eos"] = json!(true);
    let first = send(
        &server.address,
        "POST",
        "/v1/completions",
        "",
        &body.to_string(),
    );
    server.waits("one runs", |_| number("engine_sequences_running") == 1.0);
    let second = send(
        &server.address,
        "POST",
        "/v1/completions",
        "",
        &body.to_string(),
    );
    server.waits("one waits", |_| number("engine_sequences_waiting") == 1.0);
    drop(second);
    server.waits("nobody waits", |_| {
        number("engine_sequences_waiting") == 0.0 && number("replies_running") == 1.0
    });
    assert_eq!(number("engine_sequences_running"), 1.0, "the first goes on");
    drop(first);
    server.waits("none runs", |_| number("replies_running") == 0.0);
    server.hears("gone=true");

    // Whole characters, and nothing of a stop string, however it is cut.
    for tokens in 1..8 {
        let prompt = "Smile: 🙂🙃😀😁 🙂🙃😀😁 🙂🙃😀😁";
        let mut body = completion(prompt, json!({ "model": id, "max_tokens": tokens }));
        let whole = server.post("/v1/completions", &body).json();
        let whole = whole["choices"][0]["text"]
            .as_str()
            .expect("a text")
            .to_owned();
        body["stream"] = json!(true);
        assert_eq!(said(&server, &body), whole, "{tokens}");
        assert!(!whole.contains('\u{fffd}'), "{whole}");
    }
    let asked = json!({ "model": id, "stream": true, "stop": ["ris"], "max_tokens": 8 });
    let text = said(&server, &completion("The capital of France is", asked));
    assert_eq!(text, " Pa");

    let samples = samples(&server, &[]);
    let labels = format!("{{backend=cpu,model={id}}}");
    for name in [
        "backplane_engine_kv_pages_total",
        "backplane_engine_kv_bytes_limit",
        "backplane_engine_tokens_generated_total",
        "backplane_completion_tokens_total",
        "backplane_time_between_tokens_seconds_sum",
    ] {
        let value = samples[format!("{name}{labels}")].as_f64();
        assert!(
            value.is_some_and(|value| value > 0.0),
            "{name}: {samples:#}"
        );
    }
    let ends = format!("backplane_replies_total{{backend=cpu,end=cancelled,model={id}}}");
    assert_eq!(samples[ends], 3.0);
}

/// The text of a stream.
fn said(server: &Server, body: &Value) -> String {
    let events = server.post("/v1/completions", body).events();
    let text = |event: &Value| event["choices"][0]["text"].as_str().map(str::to_owned);
    events.iter().filter_map(text).collect()
}
