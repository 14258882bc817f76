//! Thousands of requests of every kind, good and bad, against one server, which ends as it began.
//!
//! `BACKPLANE_SOAK` sets how many; 2000 unless it does.
#![cfg(target_os = "linux")]

use backplane_tests::fixture;
use backplane_tests::http::{Answer, ask, head, send};
use backplane_tests::server::Server;
use serde_json::{Value, json};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::scope;

/// Clients at once: more than replies run side by side, so that some wait.
const CLIENTS: usize = 24;
/// Texts whose replies must be the same whoever else asks.
const CANARIES: [&str; 4] = [
    "The lighthouse",
    "Café déjà vu — 1234567 😊",
    "one two three four five six seven eight nine ten",
    "fn main() { println!(\"hello\"); }",
];
/// A folder with the tiny model, with a template for chats.
const MODEL: &str = "tiny";
const TEMPLATE: &str = "{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}assistant:";

/// A request in each dialect for a canary, and where its answer says what must be the same whoever else asks.
fn dialects(number: usize) -> [(&'static str, Value, &'static str); 7] {
    let text = CANARIES[number];
    let messages = json!([{ "role": "user", "content": text }]);
    let options = json!({ "num_predict": 8, "seed": number, "temperature": 0.9 });
    [
        (
            "/v1/chat/completions",
            json!({ "model": MODEL, "messages": messages, "max_tokens": 8, "seed": number, "temperature": 0.9 }),
            "/choices/0/message/content",
        ),
        (
            "/v1/messages",
            json!({ "model": MODEL, "messages": messages, "max_tokens": 8, "temperature": 0 }),
            "/content/0/text",
        ),
        (
            "/v1/responses",
            json!({ "model": MODEL, "input": text, "max_output_tokens": 8, "temperature": 0 }),
            "/output/0/content/0/text",
        ),
        (
            "/api/chat",
            json!({ "model": MODEL, "messages": messages, "stream": false, "options": options }),
            "/message/content",
        ),
        (
            "/api/generate",
            json!({ "model": MODEL, "prompt": text, "raw": true, "stream": false, "options": options }),
            "/response",
        ),
        (
            "/v1/embeddings",
            json!({ "model": MODEL, "input": text }),
            "/data/0/embedding",
        ),
        (
            "/tokenize",
            json!({ "model": MODEL, "content": text }),
            "/tokens",
        ),
    ]
}

/// What is the same of dialect `dialect`.
fn said(server: &Server, number: usize, dialect: usize) -> Value {
    let (path, body, place) = &dialects(number)[dialect];
    let answer = server.post(path, body);
    assert_eq!(answer.status, 200, "{path}: {}", answer.body);
    let said = answer.json().pointer(place).cloned();
    said.unwrap_or_else(|| panic!("{path}: no {place} in {}", answer.body))
}

/// The folder of the model.
fn tiny(home: &Path) -> String {
    let folder = home.join(MODEL);
    std::fs::create_dir(&folder).expect("a folder");
    for name in ["config.json", "model.safetensors", "tokenizer.json"] {
        let from = fixture(&format!("tiny/llama3-gqa/{name}"));
        std::fs::copy(from, folder.join(name)).expect("a copy");
    }
    let config = json!({ "chat_template": TEMPLATE, "eos_token": "<|eot_id|>", "bos_token": "<|begin_of_text|>" });
    let file = folder.join("tokenizer_config.json");
    std::fs::write(file, config.to_string()).expect("a file");
    folder.to_str().expect("UTF-8").to_owned()
}

/// A request for a reply that is always the same.
fn canary(number: usize) -> Value {
    json!({
        "model": MODEL, "prompt": CANARIES[number], "max_tokens": 12, "seed": number, "temperature": 0.9,
        "ignore_eos": true,
    })
}

/// One that takes long: its prompt to be read, or its reply to be made.
fn long(prompt: usize, tokens: usize) -> Value {
    json!({
        "model": MODEL, "prompt": "word ".repeat(prompt), "max_tokens": tokens, "ignore_eos": true, "stream": true,
    })
}

/// The text of a reply, streamed or not.
fn text(answer: &Answer) -> String {
    let content = |event: &Value| {
        let choice = &event["choices"][0];
        choice["text"].as_str().unwrap_or_default().to_owned()
    };
    match answer.header("content-type") {
        Some(kind) if kind.starts_with("text/event-stream") => {
            answer.events().iter().map(content).collect()
        }
        _ => content(&answer.json()),
    }
}

struct Soak<'a> {
    server: &'a Server,
    /// The replies of the canaries, each alone.
    alone: Vec<String>,
    dialects: Vec<Vec<Value>>,
    answered: AtomicUsize,
    left: AtomicUsize,
}

impl Soak<'_> {
    /// Request number `number`, and what must come of it.
    fn one(&self, number: usize) {
        let address = &self.server.address;
        // Kinds and sizes in an order that doesn't repeat soon.
        let mixed = number.wrapping_mul(2_654_435_761) >> 7;
        let which = mixed % CANARIES.len();
        let complete = |body: &Value| {
            let answer = ask(address, "POST", "/v1/completions", &body.to_string());
            assert_eq!(answer.status, 200, "{number}: {}", answer.body);
            self.answered.fetch_add(1, Ordering::Relaxed);
            assert_eq!(text(&answer), self.alone[which], "{number}: canary {which}");
        };
        let refused = |method: &str, path: &str, body: &str, status: u16| {
            let answer = ask(address, method, path, body);
            assert_eq!(answer.status, status, "{number}: {}", answer.body);
            let error = &answer.json()["error"]["message"];
            assert!(error.is_string(), "{number}: {}", answer.body);
            self.answered.fetch_add(1, Ordering::Relaxed);
        };
        let post = |body: &Value| send(address, "POST", "/v1/completions", "", &body.to_string());
        match number % 20 {
            0..2 => complete(&canary(which)),
            2..4 => {
                let dialect = mixed / CANARIES.len() % self.dialects[which].len();
                let alone = &self.dialects[which][dialect];
                let said = said(self.server, which, dialect);
                self.answered.fetch_add(1, Ordering::Relaxed);
                assert_eq!(&said, alone, "{number}: canary {which}, dialect {dialect}");
            }
            4..8 => {
                let mut body = canary(which);
                body["stream"] = json!(true);
                complete(&body);
            }
            8 => {
                // Several choices: the first has the seed, so it is the canary's.
                let mut body = canary(which);
                body["n"] = json!(3);
                complete(&body);
            }
            9 => {
                // Goes away while it generates.
                let mut coming = head(post(&long(4, 400)));
                assert_eq!(coming.status, 200, "{number}");
                for _ in 0..1 + mixed % 4 {
                    assert!(coming.line().is_some(), "{number}: it goes on");
                }
                self.left.fetch_add(1, Ordering::Relaxed);
            }
            10 => {
                // Goes away while its prompt is read, or before.
                drop(post(&long(300, 100)));
                self.left.fetch_add(1, Ordering::Relaxed);
            }
            11 => {
                // Goes away before anything was said, whole.
                let mut body = long(20, 400);
                body["stream"] = json!(false);
                drop(post(&body));
                self.left.fetch_add(1, Ordering::Relaxed);
            }
            12 => {
                let mut body = canary(which);
                body["max_tokens"] = json!(-2 - (mixed % 1000) as i64);
                refused("POST", "/v1/completions", &body.to_string(), 400);
            }
            13 => {
                let bad = ["{", "[]", "null", "\"", "{\"model\": 1}", "{}"];
                refused("POST", "/v1/completions", bad[mixed % bad.len()], 400);
            }
            14 => {
                let body = json!({ "model": MODEL, "prompt": "x", "frobnicate": number });
                refused("POST", "/v1/completions", &body.to_string(), 400);
            }
            15 => {
                // Longer than the context.
                refused("POST", "/v1/completions", &long(3000, 1).to_string(), 400);
            }
            16 => {
                // Says that it is larger than what is taken, and sends nothing of it.
                let answer = self.raw("POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99999999999\r\n\r\n");
                assert!(answer.starts_with("HTTP/1.1 413 "), "{number}: {answer}");
                self.answered.fetch_add(1, Ordering::Relaxed);
            }
            17 => {
                // Breaks off within its head, or its body.
                let whole = "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 50\r\n\r\n{\"model\": \"x\"";
                let mut stream = TcpStream::connect(address).expect("the server listens");
                let part = &whole[..10 + mixed % (whole.len() - 10)];
                stream.write_all(part.as_bytes()).expect("it is taken");
                self.left.fetch_add(1, Ordering::Relaxed);
            }
            18 => {
                let wrong = [
                    ("GET", "/v1/completions", 405),
                    ("POST", "/v1/nowhere", 404),
                    ("GET", "/v1/models/none", 404),
                ];
                let (method, path, status) = wrong[mixed % wrong.len()];
                refused(method, path, "", status);
            }
            19 if mixed.is_multiple_of(2) => {
                // Several on one connection, sent before the first is answered.
                let one = "GET /healthz HTTP/1.1\r\nHost: localhost\r\n";
                let answers =
                    self.raw(&format!("{one}\r\n{one}\r\n{one}Connection: close\r\n\r\n"));
                let count = answers.matches("HTTP/1.1 200 ").count();
                assert_eq!(count, 3, "{number}: {answers}");
                self.answered.fetch_add(1, Ordering::Relaxed);
            }
            _ => {
                let paths = [
                    "/healthz",
                    "/readyz",
                    "/v1/models",
                    "/v1/backends",
                    "/metrics",
                    "/",
                ];
                let answer = ask(address, "GET", paths[mixed % paths.len()], "");
                assert_eq!(answer.status, 200, "{number}: {}", answer.body);
                self.answered.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    /// What comes back for these bytes, to the end.
    fn raw(&self, request: &str) -> String {
        let mut stream = TcpStream::connect(&self.server.address).expect("the server listens");
        stream.write_all(request.as_bytes()).expect("it is taken");
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        String::from_utf8_lossy(&answer).into_owned()
    }

    /// Those requests, from all clients at once.
    fn all(&self, numbers: std::ops::Range<usize>) {
        let next = AtomicUsize::new(numbers.start);
        scope(|clients| {
            for _ in 0..CLIENTS {
                clients.spawn(|| {
                    loop {
                        let number = next.fetch_add(1, Ordering::Relaxed);
                        if number >= numbers.end {
                            return;
                        }
                        self.one(number);
                    }
                });
            }
        });
    }
}

/// A number of `/metrics`, of all labels together.
fn number(page: &str, name: &str) -> f64 {
    let samples: Vec<f64> = page
        .lines()
        .filter(|line| {
            let rest = line.strip_prefix(name);
            rest.is_some_and(|rest| rest.starts_with(['{', ' ']))
        })
        .map(|line| {
            line.rsplit(' ')
                .next()
                .expect("a word")
                .parse()
                .expect("a number")
        })
        .collect();
    assert!(!samples.is_empty(), "no {name} in\n{page}");
    samples.iter().sum()
}

/// What a server holds when nobody asks.
#[derive(Debug)]
struct Held {
    threads: f64,
    files: f64,
    memory: f64,
}

/// Waits until nothing runs, and says what is held then.
fn at_rest(server: &Server) -> Held {
    server.waits("nothing runs", |server| {
        let page = server.get("/metrics").body;
        let none = |name| number(&page, name) == 0.0;
        // The connection that asks is one.
        none("backplane_replies_running")
            && none("backplane_reply_slots_used")
            && none("backplane_engine_sequences_running")
            && none("backplane_engine_sequences_waiting")
            && none("backplane_engine_kv_pages_used")
            && number(&page, "backplane_http_connections") == 1.0
    });
    let page = server.get("/metrics").body;
    Held {
        threads: number(&page, "process_threads"),
        files: number(&page, "process_open_fds"),
        memory: number(&page, "process_resident_memory_bytes"),
    }
}

#[test]
fn thousands_of_requests_leave_nothing_behind() {
    let home = tempfile::tempdir().expect("a folder");
    let model = tiny(home.path());
    let count = std::env::var("BACKPLANE_SOAK").map_or(2000, |count| {
        count.parse().expect("BACKPLANE_SOAK is a number")
    });
    let arguments = [
        &*model,
        "--backend",
        "cpu",
        "--parallel",
        "6",
        "--threads",
        "1",
    ];
    let server = Server::start(home.path(), None, &arguments).ready();
    let alone = (0..CANARIES.len()).map(|number| {
        let answer = server.post("/v1/completions", &canary(number));
        assert_eq!(answer.status, 200, "{}", answer.body);
        text(&answer)
    });
    let soak = Soak {
        server: &server,
        alone: alone.collect(),
        dialects: (0..CANARIES.len())
            .map(|number| {
                (0..7)
                    .map(|dialect| said(&server, number, dialect))
                    .collect()
            })
            .collect(),
        answered: AtomicUsize::new(0),
        left: AtomicUsize::new(0),
    };
    assert!(soak.alone.iter().all(|text| !text.is_empty()));

    // First some, so that what is made once is there.
    let first = count / 5;
    soak.all(0..first);
    let before = at_rest(&server);
    soak.all(first..count);
    let after = at_rest(&server);
    println!("{count} requests: before {before:?}, after {after:?}");

    let (answered, left) = (soak.answered.into_inner(), soak.left.into_inner());
    assert_eq!(answered + left, count);
    assert!(
        left * 5 >= count * 4 / 5 && answered * 5 >= count * 3,
        "{left}"
    );
    // Threads that wait for work may be more or fewer for a while; one for each request that was left would be hundreds.
    assert!(
        after.threads <= before.threads + 16.0,
        "{before:?} {after:?}"
    );
    assert!(after.files <= before.files + 2.0, "{before:?} {after:?}");
    let grown = after.memory - before.memory;
    assert!(grown < 24e6, "{before:?} {after:?}");

    // And it is still what it was.
    for (number, alone) in soak.alone.iter().enumerate() {
        let answer = server.post("/v1/completions", &canary(number));
        assert_eq!(&text(&answer), alone);
    }
    let mut server = server;
    server.signal("-TERM");
    assert!(server.ended(std::time::Duration::from_secs(20)).success());
}
