//! Models that are loaded when they are asked for, the room they take, and the queue before them.
#![cfg(unix)]

#[path = "serve_models/operators.rs"]
mod operators;
#[path = "serve_models/pages.rs"]
mod pages;

use backplane_tests::http::{Coming, ask, head, send};
use backplane_tests::server::Server;
use backplane_tests::{SMOLLM2, modules, real_model, run};
use serde_json::{Value, json};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// A folder with the echo module, models of these names and sizes in MiB, and a manifest.
fn echo(models: &[(&str, u64)], manifest: &str) -> (TempDir, String) {
    let mut text = manifest.to_owned();
    for (name, _) in models {
        text += &format!("\n[serve.model.{name}]\nmodel = \"{name}.echo\"");
    }
    let (home, manifest) = modules::home(&["echo-a"], &text);
    for (name, mib) in models {
        let file = std::fs::File::create(home.path().join(format!("{name}.echo")));
        file.and_then(|file| file.set_len(mib << 20))
            .expect("a model");
    }
    (home, manifest)
}

const SLOW: &str =
    "[plugin.echo_a]\nisolation = \"process\"\n[plugin.echo_a.options]\ntoken_delay_ms = 20\n";

fn completion(model: &str, prompt: &str) -> Value {
    json!({ "model": model, "prompt": prompt, "temperature": 0, "max_tokens": -1 })
}

fn say(server: &Server, model: &str) -> Value {
    let answer = server.post("/v1/completions", &completion(model, "hello"));
    assert_eq!(answer.status, 200, "{}", answer.body);
    let answer = answer.json();
    assert_eq!(answer["choices"][0]["text"], "hello");
    answer
}

/// A stream of a model that goes on for long, and has begun.
fn stream(server: &Server, model: &str) -> Coming {
    let body = completion(model, &"a long reply ".repeat(200));
    let mut coming = server.stream("/v1/completions", &body);
    assert!(coming.line().is_some());
    coming
}

/// What `/admin/ps` tells, by model.
fn ps(server: &Server) -> Value {
    let answer = server.get("/admin/ps");
    assert_eq!(answer.status, 200, "{}", answer.body);
    answer.json()
}

fn loaded(server: &Server) -> Vec<String> {
    let answer = ps(server);
    let models = answer["models"].as_array().expect("models").iter();
    let loaded = models.filter(|model| model["state"] == "loaded");
    let name = |model: &Value| model["name"].as_str().expect("a name").to_owned();
    loaded.map(name).collect()
}

fn metric(server: &Server, line: &str) -> Option<f64> {
    let page = server.get("/metrics").body;
    let found = page.lines().find_map(|text| text.strip_prefix(line));
    found.and_then(|rest| rest.trim().parse().ok())
}

/// Processes that the server has started and that live.
fn children(server: &Server) -> usize {
    let tasks = format!("/proc/{}/task", server.child.id());
    let tasks = std::fs::read_dir(tasks).expect("Linux tells");
    let of = |task: std::io::Result<std::fs::DirEntry>| {
        std::fs::read_to_string(task.ok()?.path().join("children")).ok()
    };
    let all = tasks.filter_map(of);
    all.map(|text| text.split_whitespace().count()).sum()
}

#[test]
fn models_come_when_asked_for_and_go_when_idle() {
    let settings = "[plugin.echo_a]\nisolation = \"process\"\n[serve]\nkeep_alive = \"700ms\"";
    let (home, manifest) = echo(&[("a", 1), ("b", 1)], settings);
    let more = "aliases = [\"gpt-4o-mini\"]\n[serve.model.gone]\nmodel = \"gone.echo\"\n";
    let text = std::fs::read_to_string(&manifest).expect("it is there") + more;
    std::fs::write(&manifest, text).expect("a manifest");
    let server = Server::start(home.path(), Some(&manifest), &[]).ready();
    let list = server.get("/v1/models").json();
    let ids: Vec<&str> = list["data"]
        .as_array()
        .expect("models")
        .iter()
        .filter_map(|model| model["id"].as_str())
        .collect();
    assert_eq!(ids, ["a", "b", "gone"]);
    assert_eq!(list["data"][0]["backplane"]["state"], "unloaded");
    assert_eq!((loaded(&server).len(), children(&server)), (0, 0));
    pages::lists(&server);

    // Many at once share one load.
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| say(&server, "A"));
        }
    });
    let count = metric(&server, "backplane_model_loads_total{model=\"a\"}");
    assert_eq!(count, Some(1.0));
    let seen = ps(&server);
    let model = &seen["models"][0];
    assert_eq!(model["backend"], "echo_a", "{seen}");
    assert_eq!(model["size_bytes"], 1 << 20);
    assert!(model["context"].as_u64() > Some(0), "{seen}");
    assert!(model["expires_s"].as_f64() < Some(0.8), "{seen}");
    assert_eq!(children(&server), 1, "the plugin's worker");
    server.waits("it is unloaded", |server| loaded(server).is_empty());
    server.waits("its worker ends", |server| children(server) == 0);
    assert!(
        server
            .err
            .text()
            .contains("a is unloaded: nobody asked it for 700ms")
    );
    // It comes again, also by another name, and answers say what made them.
    let answer = say(&server, "gpt-4o-mini");
    assert_eq!(
        (&answer["model"], &answer["backplane"]["backend"]),
        (&json!("b"), &json!("echo_a"))
    );
    // One that can't be loaded says why, each time anew.
    for _ in 0..2 {
        let answer = server.post("/v1/completions", &completion("gone", "x"));
        assert_eq!(answer.status, 503, "{}", answer.body);
        assert!(
            answer.body.contains("gone.echo: no such file"),
            "{}",
            answer.body
        );
    }
    std::fs::write(home.path().join("gone.echo"), "here").expect("a model");
    say(&server, "gone");
    // By a path nothing is reached, nor by a name that is none.
    for name in ["a.echo", "./a.echo", "/etc/passwd", "../a", "c"] {
        let answer = server.post("/v1/completions", &completion(name, "x"));
        assert_eq!(answer.status, 404, "{name}: {}", answer.body);
    }
}

#[test]
fn who_was_not_asked_longest_makes_room_and_who_is_in_use_never() {
    let settings = format!("{SLOW}[serve]\nmemory = \"100MiB\"\nkeep_alive = \"forever\"");
    let models = [("a", 40), ("b", 40), ("c", 40), ("big", 101)];
    let (home, manifest) = echo(&models, &settings);
    let server = Server::start(home.path(), Some(&manifest), &[]).ready();
    say(&server, "a");
    say(&server, "b");
    assert_eq!(loaded(&server), ["a", "b"]);
    say(&server, "a");
    say(&server, "c");
    assert_eq!(loaded(&server), ["a", "c"], "b was not asked longest");
    assert!(
        server
            .err
            .text()
            .contains("b is unloaded: to make room for c")
    );
    assert_eq!(ps(&server)["memory"]["used_bytes"], 80 << 20);
    // One that never fits is refused with the sizes.
    let answer = server.post("/v1/completions", &completion("big", "x"));
    assert_eq!(answer.status, 503, "{}", answer.body);
    let message = answer.json()["error"]["message"].to_string();
    assert!(
        message.contains("big takes 101MiB, and there are 100MiB for models"),
        "{message}"
    );
    assert_eq!(loaded(&server), ["a", "c"], "nothing went for it");
    // Both in use: the third waits, and comes when one has ended.
    let first = stream(&server, "a");
    let second = stream(&server, "c");
    std::thread::scope(|scope| {
        let third = scope.spawn(|| say(&server, "b"));
        std::thread::sleep(Duration::from_millis(200));
        assert_eq!(loaded(&server), ["a", "c"]);
        drop(first);
        let answer = third.join().expect("it answers");
        let waited = answer["backplane"]["timings"]["queue_s"].as_f64();
        assert!(waited > Some(0.1), "{answer}");
    });
    assert_eq!(loaded(&server), ["b", "c"]);
    let seen = ps(&server);
    let states = seen["models"].as_array().expect("models").iter();
    let in_use: Vec<u64> = states.filter_map(|one| one["in_use"].as_u64()).collect();
    assert_eq!(in_use, [0, 1], "{seen}");
    drop(second);
}

#[test]
fn caches_count_with_all_that_they_may_become() {
    // 16 MiB for 4096 tokens.
    let settings = "[plugin.echo_a.options]\ncache_token_bytes = 4096\n[serve]\nmemory = \"50MiB\"\nkeep_alive = \"forever\"\ncontext = 1024\n";
    let models = [
        ("a", 4),
        ("b", 8),
        ("tight", 40),
        ("never", 48),
        ("fixed", 40),
    ];
    let (home, manifest) = echo(&models, settings);
    let text = std::fs::read_to_string(&manifest).expect("it is there") + "parallel = 4\n";
    std::fs::write(&manifest, text).expect("a manifest");
    let server = Server::start(home.path(), Some(&manifest), &[]).ready();
    let used = |server: &Server| ps(server)["memory"]["used_bytes"].as_u64().expect("bytes") >> 20;
    say(&server, "a");
    assert_eq!(used(&server), 20);
    say(&server, "b");
    assert_eq!(
        (used(&server), loaded(&server)),
        (44, vec!["a".into(), "b".into()])
    );
    // Its file alone would fit beside the others; with its cache nothing does, and that gets as much as there is.
    say(&server, "tight");
    assert_eq!((used(&server), loaded(&server)), (50, vec!["tight".into()]));
    let said = "tight takes 56MiB (40MiB of weights, a cache of up to 16MiB), and there are 50MiB for it: its cache gets room for 2560 tokens";
    assert!(server.err.text().contains(said), "{}", server.err.text());
    // From then on that is known.
    say(&server, "a");
    assert_eq!(loaded(&server), ["a"]);
    say(&server, "tight");
    assert_eq!(server.err.text().matches("its cache gets room").count(), 1);
    // No context fits, or the cache is as it is said to be: they are refused with what they are made of, and what helps.
    for (name, said) in [
        (
            "never",
            "never takes at least 52MiB (48MiB of weights, a cache of 4MiB for one context of 1024 tokens), and there are 50MiB for models (lower its `context`, choose a smaller model, or raise `memory` to 52MiB)",
        ),
        (
            "fixed",
            "fixed takes 56MiB (40MiB of weights, a cache of up to 16MiB), and there are 50MiB for models (lower its `parallel` or `context`, choose a smaller model, or raise `memory` to 56MiB)",
        ),
    ] {
        for _ in 0..2 {
            let answer = server.post("/v1/completions", &completion(name, "x"));
            assert_eq!(answer.status, 503, "{}", answer.body);
            assert!(answer.body.contains(said), "{}", answer.body);
        }
    }
    server.waits("they are unloaded", |server| used(server) == 0);
}

#[test]
fn models_that_are_named_together_fit_together() {
    // 16 MiB for 4096 tokens, 4 MiB for one context.
    let settings = |memory: &str| {
        format!(
            "[plugin.echo_a.options]\ncache_token_bytes = 4096\n[serve]\nmemory = \"{memory}\"\ncontext = 1024\n"
        )
    };
    let models = [("a", 4), ("b", 8)];
    let (home, manifest) = echo(&models, &settings("24MiB"));
    let server = Server::start(home.path(), Some(&manifest), &["a", "b"]).ready();
    let seen = ps(&server);
    let sizes: Vec<u64> = seen["models"]
        .as_array()
        .expect("models")
        .iter()
        .filter_map(|model| Some(model["size_bytes"].as_u64()? >> 20))
        .collect();
    assert_eq!(
        sizes,
        [10, 14],
        "each has its share of what is left: {seen}"
    );
    drop(server);
    // Not even with the smallest caches: what it needs, who has the rest, and what helps.
    let (home, manifest) = echo(&models, &settings("19MiB"));
    let arguments = ["--manifest", &manifest, "serve", "--port", "0", "a", "b"];
    let ran = run(home.path(), &arguments);
    assert_eq!(ran.code, Some(4), "{}", ran.err);
    for said in [
        "b takes at least 12MiB (8MiB of weights, a cache of 4MiB for one context of 1024 tokens)",
        "there are 19MiB for models, of which 11MiB are free: a, which is pinned, has 8MiB",
        "lower its `context`, pin fewer models, choose a smaller model, or raise `memory` to 20MiB",
    ] {
        assert!(ran.err.contains(said), "{}", ran.err);
    }
}

#[test]
fn a_model_that_takes_more_than_was_thought_waits_for_who_is_in_use() {
    let settings = format!(
        "{}cache_token_bytes = 4096\n[serve]\nmemory = \"50MiB\"",
        SLOW
    );
    let (home, manifest) = echo(&[("a", 20), ("b", 10)], &settings);
    let server = Server::start(home.path(), Some(&manifest), &[]).ready();
    let first = stream(&server, "a");
    std::thread::scope(|scope| {
        let second = scope.spawn(|| say(&server, "b"));
        server.hears("b is unloaded: it waits for room");
        assert_eq!(loaded(&server), ["a"]);
        drop(first);
        second.join().expect("it answers");
    });
    assert_eq!(loaded(&server), ["b"]);
}

#[test]
fn what_grows_is_measured_and_idle_models_go_for_it() {
    // 1 MiB a token.
    let settings = "[plugin.echo_a.options]\ngrows = 1048576\n[serve]\nmemory = \"60MiB\"\nkeep_alive = \"forever\"";
    let (home, manifest) = echo(&[("p", 10), ("a", 20), ("b", 10)], settings);
    let server = Server::start(home.path(), Some(&manifest), &["p"]).ready();
    say(&server, "a");
    say(&server, "b");
    assert_eq!(loaded(&server), ["a", "b", "p"]);
    // It comes to 36 MiB, with the first answer's token and the five of each; whom nobody asked longest goes at its end.
    for _ in 0..7 {
        say(&server, "p");
    }
    server.waits("a is unloaded", |server| loaded(server) == ["b", "p"]);
    let said = "a is unloaded: models take 61MiB, and there are 60MiB for them";
    assert!(server.err.text().contains(said), "{}", server.err.text());
    // One that grows beyond all goes itself, and is known by then.
    let long = completion("b", &"a long reply ".repeat(4));
    let answer = server.post("/v1/completions", &long);
    assert_eq!(answer.status, 200, "{}", answer.body);
    server.waits("b is unloaded", |server| loaded(server) == ["p"]);
    let answer = server.post("/v1/completions", &completion("b", "x"));
    assert_eq!(answer.status, 503, "{}", answer.body);
    let said = "b takes 57MiB (10MiB of weights, the rest measured), and there are 60MiB for models, of which 24MiB are free: p, which is pinned, has 36MiB (pin fewer models, choose a smaller model, or raise `memory` to 93MiB)";
    assert!(answer.body.contains(said), "{}", answer.body);
    // What is pinned stays, whatever it takes.
    let answer = server.post(
        "/v1/completions",
        &completion("p", &"a long reply ".repeat(4)),
    );
    assert_eq!(answer.status, 200, "{}", answer.body);
    assert_eq!(loaded(&server), ["p"]);
    server.hears("models take 88MiB, and there are 60MiB for them");
}

#[test]
fn pinned_models_stay_and_others_go_at_once_where_that_is_said() {
    let settings = "[serve]\nmemory = \"100MiB\"\nkeep_alive = 0";
    let (home, manifest) = echo(&[("p", 40), ("a", 40), ("b", 70)], settings);
    let server = Server::start(home.path(), Some(&manifest), &["p"]).ready();
    assert!(server.err.text().contains("p is ready"));
    say(&server, "a");
    server.waits("a is unloaded", |server| {
        ps(server)["models"].as_array().map(Vec::len) == Some(1)
    });
    let seen = ps(&server);
    assert_eq!(
        (
            &seen["models"][0]["pinned"],
            &seen["models"][0]["expires_s"]
        ),
        (&json!(true), &Value::Null)
    );
    let answer = server.post("/v1/completions", &completion("b", "x"));
    assert_eq!(answer.status, 503, "{}", answer.body);
    let said = "b takes 70MiB, and there are 100MiB for models, of which 60MiB are free: p, which is pinned, has 40MiB";
    assert!(answer.body.contains(said), "{}", answer.body);
    assert_eq!(server.get("/readyz").status, 200);
}

#[test]
fn beyond_the_queue_is_429_and_who_goes_away_leaves_it() {
    let settings = format!("{SLOW}[serve]\nreplies = 1\nqueue = 1");
    let (home, manifest) = echo(&[("a", 1)], &settings);
    let server = Server::start(home.path(), Some(&manifest), &["a"]).ready();
    let waiting = |server: &Server| metric(server, "backplane_replies_waiting");
    let body = completion("a", "hello").to_string();
    let wait = || send(&server.address, "POST", "/v1/completions", "", &body);
    let first = stream(&server, "a");
    let second = wait();
    server.waits("one waits", |server| waiting(server) == Some(1.0));
    let refused = ask(&server.address, "POST", "/v1/completions", &body);
    assert_eq!(refused.status, 429, "{}", refused.body);
    let seconds = refused
        .header("retry-after")
        .and_then(|text| text.parse::<u32>().ok());
    assert!(seconds >= Some(1), "{seconds:?}");
    assert_eq!(refused.json()["error"]["code"], "rate_limit_exceeded");
    let message = refused.json()["error"]["message"].to_string();
    assert!(
        message.contains("waiting for their turn: 1 of 1 (`queue`)"),
        "{message}"
    );
    // It leaves the queue at once; the next takes its place.
    drop(second);
    server.waits("nobody waits", |server| waiting(server) == Some(0.0));
    let third = wait();
    server.waits("one waits", |server| waiting(server) == Some(1.0));
    std::thread::sleep(Duration::from_millis(50));
    drop(first);
    let answer = head(third).rest();
    assert_eq!(answer.status, 200, "{}", answer.body);
    let waited = answer.json()["backplane"]["timings"]["queue_s"].as_f64();
    assert!(waited >= Some(0.05), "{}", answer.body);
    // More choices than are ever made at once.
    let mut several = completion("a", "x");
    several["n"] = json!(2);
    let answer = server.post("/v1/completions", &several);
    assert_eq!(answer.status, 400, "{}", answer.body);
}

#[test]
fn replies_end_when_their_time_is_over_and_say_so() {
    let settings =
        format!("{SLOW}[serve]\nreply_time = \"300ms\"\nreplies = 1\nqueue_time = \"100ms\"");
    let (home, manifest) = echo(&[("a", 1)], &settings);
    let server = Server::start(home.path(), Some(&manifest), &["a"]).ready();
    let long = completion("a", &"a long reply ".repeat(50));
    let answer = server.post("/v1/completions", &long);
    // Of a prompt that takes its whole time to be read nothing was said.
    match answer.status {
        200 => {
            let answer = answer.json();
            assert_eq!(answer["choices"][0]["finish_reason"], "length", "{answer}");
            let told = answer["backplane"].to_string();
            assert!(told.contains("ended after the 300ms"), "{answer}");
        }
        status => {
            assert_eq!(status, 504, "{}", answer.body);
            assert!(answer.body.contains("within the 300ms"), "{}", answer.body);
        }
    }
    // Of two at once one has no room in time.
    std::thread::scope(|scope| {
        let ask = || server.post("/v1/completions", &long);
        let both = [scope.spawn(ask), scope.spawn(ask)];
        let both = both.map(|one| one.join().expect("it answers"));
        let late = both.iter().find(|answer| answer.status == 429);
        let late = late.unwrap_or_else(|| panic!("{both:?}"));
        assert!(late.body.contains("within 100ms"), "{}", late.body);
        assert!(late.header("retry-after").is_some());
    });
    // What waited and came to nothing is told with its model and how long it waited; of what is refused no tokens were read.
    let read = || {
        let page = server.get("/metrics").body;
        let line = page
            .lines()
            .find(|line| line.starts_with("backplane_prompt_tokens_total{"));
        line.expect("it is counted").to_owned()
    };
    let before = read();
    let beyond = json!({ "model": "a", "prompt": "x", "max_tokens": 1_000_000 });
    let answer = server.post("/v1/completions", &beyond);
    assert_eq!(answer.status, 400, "{}", answer.body);
    assert_eq!(read(), before);
    let log = server.hears("status=400");
    let line = |status: &str| {
        let line = log.lines().find(|line| line.contains(status));
        line.unwrap_or_else(|| panic!("no {status} in\n{log}"))
    };
    let late = line("status=429");
    let (_, waited) = late.split_once("queue_s=").expect("how long it waited");
    let waited: f64 = waited
        .split(' ')
        .next()
        .and_then(|s| s.parse().ok())
        .expect("seconds");
    assert!(late.contains(" model=\"a\"") && waited >= 0.1, "{late}");
    assert!(line("status=400").contains(" prompt_tokens=0"), "{log}");
}

#[test]
fn it_stops_in_good_order_with_several_models() {
    let (home, manifest) = echo(&[("a", 1), ("b", 1)], SLOW);
    let start = || Server::start(home.path(), Some(&manifest), &["a", "b"]).ready();
    let mut server = start();
    let coming = stream(&server, "b");
    server.signal("-TERM");
    server.hears("stopping: SIGTERM");
    // The second at once.
    server.signal("-TERM");
    let begun = Instant::now();
    assert_eq!(server.ended(Duration::from_secs(5)).code(), Some(143));
    assert!(begun.elapsed() < Duration::from_secs(5));
    drop(coming);

    let mut server = Server::start(home.path(), Some(&manifest), &["a", "b", "-v"]).ready();
    let workers = children(&server);
    assert!(workers > 0);
    server.signal("-INT");
    assert_eq!(server.ended(Duration::from_secs(10)).code(), Some(0));
    // In the reverse order of the start: no requests, then the models, the last first.
    let said = server.err.text();
    let places: Vec<Option<usize>> = [
        "a is ready",
        "b is ready",
        "stopping: SIGINT",
        "b is closed",
        "a is closed",
    ]
    .iter()
    .map(|words| said.find(words))
    .collect();
    assert!(
        places.iter().all(Option::is_some) && places.is_sorted(),
        "{places:?}: {said}"
    );
}

#[test]
fn the_end_of_waiting_is_an_event_once_a_stream_has_begun() {
    let settings =
        format!("{SLOW}[serve]\nreplies = 1\nqueue_time = \"200ms\"\nheartbeat = \"20ms\"");
    let (home, manifest) = echo(&[("a", 1)], &settings);
    let server = Server::start(home.path(), Some(&manifest), &["a"]).ready();
    let first = stream(&server, "a");
    let mut body = completion("a", "hello");
    body["stream"] = json!(true);
    let late = server.post("/v1/completions", &body);
    assert_eq!(late.status, 200, "it has had comments: {}", late.body);
    let data: Vec<&str> = late
        .body
        .lines()
        .filter_map(|line| line.strip_prefix("data: "))
        .collect();
    assert!(
        late.body.contains(": still here") && data.len() == 1,
        "{}",
        late.body
    );
    let error: Value = serde_json::from_str(data[0]).expect("JSON");
    assert_eq!(error["error"]["code"], "rate_limit_exceeded", "{error}");
    // Lines of JSON have no comments: they say that nothing is said.
    let chat = json!({ "model": "a", "messages": [{ "role": "user", "content": "hello" }] });
    let late = server.post("/api/chat", &chat);
    let lines: Vec<Value> = late
        .body
        .lines()
        .map(|line| serde_json::from_str(line).expect("JSON"))
        .collect();
    assert!(lines.len() > 1, "{}", late.body);
    let (error, silent) = lines.split_last().expect("lines");
    assert!(
        silent
            .iter()
            .all(|line| line["message"]["content"] == "" && line["done"] == false),
        "{}",
        late.body
    );
    assert!(
        error["error"]
            .as_str()
            .is_some_and(|why| why.contains("200ms")),
        "{error}"
    );
    drop(first);
}

#[test]
fn ps_tells_who_stands_in_for_whom() {
    let (home, manifest) = echo(
        &[("a", 1)],
        "order = [\"missing\", \"echo_a\"]\nfallback = \"warn\"",
    );
    std::fs::write(home.path().join("modules/missing.so"), b"\x7fELF").expect("a module");
    let server = Server::start(home.path(), Some(&manifest), &["a"]).ready();
    let url = format!("http://{}", server.address);
    let shown = run(home.path(), &["ps", "--server", &url]);
    assert_eq!(shown.code, Some(0), "{}", shown.err);
    assert!(
        shown.err.contains("a: ") && shown.err.contains("missing"),
        "{}",
        shown.err
    );
    let notice = ps(&server)["models"][0]["notice"].clone();
    assert!(
        notice.as_str().is_some_and(|text| text.contains("missing")),
        "{notice}"
    );
}

#[test]
fn models_of_the_model_folder_are_served_by_name() {
    let home = tempfile::tempdir().expect("a folder");
    let folder = home.path().join("data/backplane/models");
    std::fs::create_dir_all(&folder).expect("a folder");
    let model = real_model(SMOLLM2);
    std::os::unix::fs::symlink(&model, folder.join(SMOLLM2)).expect("a link");
    std::fs::write(folder.join("broken.gguf"), "nothing").expect("a file");
    let arguments = ["--backend", "cpu", "--context", "256"];
    let server = Server::start(home.path(), None, &arguments).ready();
    let id = SMOLLM2.trim_end_matches(".gguf");
    let list = server.get("/v1/models").json();
    let ids: Vec<&str> = list["data"]
        .as_array()
        .expect("models")
        .iter()
        .filter_map(|model| model["id"].as_str())
        .collect();
    assert_eq!(ids, ["broken", id]);
    let body = json!({ "model": id, "prompt": "The capital of France is", "temperature": 0, "max_tokens": 4 });
    let answer = server.post("/v1/completions", &body);
    assert_eq!(answer.status, 200, "{}", answer.body);
    assert!(
        answer.json()["choices"][0]["text"]
            .as_str()
            .is_some_and(|text| text.contains("Paris"))
    );
    let seen = ps(&server);
    let size = model.metadata().expect("it is there").len();
    // Rows of activations and scores: tens of megabytes.
    let line = format!("backplane_engine_buffer_bytes{{model=\"{id}\",backend=\"cpu\"}}");
    let buffers = metric(&server, &line).expect("the engine tells") as u64;
    assert!(buffers > 16 << 20, "{buffers}");
    assert!(
        seen["models"][0]["size_bytes"].as_u64() > Some(size + buffers),
        "with its cache and what it computes in: {seen}"
    );
    assert_eq!(seen["models"][0]["context"], 256);
    let answer = server.post("/v1/completions", &completion("broken", "x"));
    assert_eq!(answer.status, 503, "{}", answer.body);
    for path in [
        model.to_str().expect("UTF-8"),
        "models/broken",
        "../models/broken",
    ] {
        let answer = server.post("/v1/completions", &completion(path, "x"));
        assert_eq!(answer.status, 404, "{}", answer.body);
    }
    // A prompt that does not fit is refused with all three sizes.
    let long = json!({ "model": id, "prompt": "word ".repeat(300), "max_tokens": 50 });
    let answer = server.post("/v1/completions", &long);
    assert_eq!(answer.status, 400, "{}", answer.body);
    assert!(
        ["301 tokens", "context 256", "up to 50 tokens"]
            .iter()
            .all(|size| answer.body.contains(size)),
        "{}",
        answer.body
    );
}

#[test]
fn run_and_chat_use_a_running_server() {
    let home = tempfile::tempdir().expect("a folder");
    let model = real_model(SMOLLM2);
    let file = model.to_str().expect("UTF-8");
    let server = Server::start(home.path(), None, &[file, "--backend", "cpu"]).ready();
    let url = format!("http://{}", server.address);
    let id = SMOLLM2.trim_end_matches(".gguf");
    let question = "What is the capital of France?";
    let greedy = ["--temperature", "0", "--max-tokens", "12"];
    let here = |more: &[&str]| {
        run(
            home.path(),
            &[
                &["run", file, question, "--backend", "cpu"],
                &greedy[..],
                more,
            ]
            .concat(),
        )
    };
    let there = |more: &[&str]| {
        run(
            home.path(),
            &[&["run", id, question, "--server", &url], &greedy[..], more].concat(),
        )
    };
    let (mine, its) = (here(&[]), there(&[]));
    assert_eq!(its.code, Some(0), "{}", its.err);
    assert_eq!(mine.out, its.out);
    let (mine, its) = (here(&["--raw"]), there(&["--raw"]));
    assert_eq!(mine.out, its.out, "{}", its.err);
    let (mine, its) = (
        here(&["--json", "--logprobs", "2"]).json(),
        there(&["--json", "--logprobs", "2"]).json(),
    );
    for field in ["text", "finish_reason", "backend"] {
        assert_eq!(mine[field], its[field], "{field}: {its}");
    }
    assert_eq!(
        mine["usage"]["completion_tokens"],
        its["usage"]["completion_tokens"]
    );
    assert_eq!(
        mine["logprobs"][3]["text"], its["logprobs"][3]["text"],
        "{its}"
    );
    assert_eq!(
        (&its["server"], &its["tokens"]),
        (&json!(url), &Value::Null)
    );
    let ids = [
        "run",
        id,
        "--tokens",
        "504,3575,282",
        "--server",
        &url,
        "--temperature",
        "0",
        "--max-tokens",
        "4",
    ];
    let ran = run(home.path(), &ids);
    assert_eq!(ran.code, Some(0), "{}", ran.err);
    assert!(!ran.out.trim().is_empty());

    // A conversation over a pipe, in which what was said stands.
    let arguments = [
        "chat",
        id,
        "--server",
        &url,
        "--temperature",
        "0",
        "--max-tokens",
        "12",
    ];
    let mut child = backplane_tests::command(home.path(), &arguments)
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped())
        .spawn()
        .expect("it starts");
    let mut input = child.stdin.take().expect("a pipe");
    std::io::Write::write_all(
        &mut input,
        b"What is the capital of France?\n/models\nAnd of Italy?\n",
    )
    .expect("written");
    drop(input);
    let output = child.wait_with_output().expect("it ends");
    let (said, told) = (
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr),
    );
    assert!(output.status.success(), "{told}");
    assert!(said.contains("Paris") && said.contains("Rome"), "{said}");
    assert!(told.contains(&url), "{told}");
}
