//! What operators see of models, whether those are ready, and how they are unloaded.

use super::{SLOW, completion, echo, loaded, metric, say, stream};
use backplane_tests::http::{head, send};
use backplane_tests::run;
use backplane_tests::server::Server;
use serde_json::json;
use std::path::Path;

#[test]
fn what_is_served_is_named_or_in_a_folder() {
    let (home, manifest) = echo(&[], "[serve]\non_demand = false");
    let ran = run(
        home.path(),
        &["--manifest", &manifest, "serve", "--port", "0"],
    );
    assert_eq!(ran.code, Some(2), "{}", ran.err);
    assert!(ran.err.contains("no model is named"), "{}", ran.err);
    assert!(Path::new(&manifest).exists());
    // An empty folder is one that something may come into.
    let home = tempfile::tempdir().expect("a folder");
    let server = Server::start(home.path(), None, &[]);
    let answer = server.get("/readyz");
    assert_eq!(answer.status, 503, "{}", answer.body);
    assert!(
        answer.body.contains("there is no model: the model folder"),
        "{}",
        answer.body
    );
}

#[test]
fn who_loads_on_demand_is_ready_with_one_that_can_be_loaded() {
    let (home, manifest) = echo(&[("bad", 1)], "[serve]\non_demand = false");
    let more = "context = 99999999\n[serve.model.gone]\nmodel = \"gone.echo\"\n";
    let text = std::fs::read_to_string(&manifest).expect("it is there") + more;
    std::fs::write(&manifest, text).expect("a manifest");
    let server = Server::start(home.path(), Some(&manifest), &[]).ready();
    let unready = |said: &[&str]| {
        let answer = server.get("/readyz");
        assert_eq!(answer.status, 503, "{}", answer.body);
        for said in said {
            assert!(answer.body.contains(said), "{}", answer.body);
        }
    };
    // One is not there, and the other turns out not to load.
    let answer = server.post("/v1/completions", &completion("bad", "x"));
    assert_eq!(answer.status, 503, "{}", answer.body);
    let missing = "gone: gone.echo: no such file";
    unready(&["bad: ", "context 99999999", missing]);
    let file = home.path().join("gone.echo");
    std::fs::write(&file, "here").expect("a model");
    assert_eq!(server.get("/readyz").status, 200);
    std::fs::remove_file(&file).expect("it is there");
    unready(&[missing]);
}

#[test]
fn operators_see_what_runs_and_unload_it() {
    let settings = format!("{SLOW}[serve]\nkeep_alive = \"1h\"");
    let (home, manifest) = echo(&[("small", 1), ("other", 1)], &settings);
    let server = Server::start(home.path(), Some(&manifest), &["small"]).ready();
    let url = format!("http://{}", server.address);
    let ask = |arguments: &[&str]| {
        let all = [arguments, &["--server", &url]].concat();
        run(home.path(), &all)
    };
    say(&server, "other");
    let shown = ask(&["ps"]);
    assert_eq!(shown.code, Some(0), "{}", shown.err);
    let rows: Vec<&str> = shown.out.lines().collect();
    assert!(
        rows[0].contains("NAME") && rows[0].contains("EXPIRES"),
        "{}",
        shown.out
    );
    let row = |name: &str| {
        let found = rows.iter().find(|row| row.trim_start().starts_with(name));
        found
            .unwrap_or_else(|| panic!("{name}: {}", shown.out))
            .to_string()
    };
    assert!(row("small").contains("never: pinned"), "{}", shown.out);
    let other = row("other");
    assert!(
        ["echo_a", "1.0 MiB", "loaded", "in 59 min"]
            .iter()
            .all(|part| other.contains(part)),
        "{other}"
    );
    let seen = ask(&["ps", "--json"]).json();
    assert_eq!(seen["models"][0]["name"], "other", "{seen}");

    // One in use goes when its reply has ended; the request that asks for it meanwhile has it loaded anew.
    let coming = stream(&server, "other");
    let stopped = ask(&["stop", "OTHER"]);
    assert_eq!(stopped.code, Some(0), "{}", stopped.err);
    assert!(
        stopped
            .out
            .contains("other is unloaded when what uses it has ended (requests: 1)"),
        "{}",
        stopped.out
    );
    assert_eq!(loaded(&server), ["other", "small"]);
    drop(coming);
    server.waits("it is unloaded", |server| loaded(server) == ["small"]);
    let stopped = ask(&["stop", "other", "--json"]).json();
    assert_eq!(stopped["state"], "not loaded");
    let stopped = ask(&["stop", "small"]);
    assert_eq!(stopped.out.trim(), "small is unloaded", "{}", stopped.err);
    let unready = || {
        let answer = server.get("/readyz");
        assert_eq!(answer.status, 503, "{}", answer.body);
        let said = "small was stopped; the next request for it loads it";
        assert_eq!(answer.json()["reasons"], json!([said]));
        assert_eq!(
            metric(&server, "backplane_model_ready{model=\"small\"}"),
            Some(0.0)
        );
    };
    unready();
    let shown = ask(&["ps"]);
    assert!(
        shown.out.is_empty() && shown.err.contains("has loaded no model"),
        "{}",
        shown.err
    );
    // It is loaded again, and ready once it has answered.
    let count = json!({ "model": "small", "content": "x" });
    assert_eq!(server.post("/tokenize", &count).status, 200);
    let answer = server.get("/readyz");
    assert_eq!(answer.status, 503, "{}", answer.body);
    assert!(
        answer.body.contains("small has not answered yet"),
        "{}",
        answer.body
    );
    say(&server, "small");
    assert_eq!(server.get("/readyz").status, 200);
    // Ollama's clients unload what is pinned where they may operate the server, and else are told why not.
    let unload = json!({ "model": "small", "keep_alive": 0 });
    for (path, from, status, said) in [
        (
            "/api/generate",
            "X-Forwarded-For: 10.0.0.1\r\n",
            403,
            "small is pinned",
        ),
        (
            "/api/chat",
            "X-Forwarded-For: 10.0.0.1\r\n",
            403,
            "`backplane stop small`",
        ),
        ("/api/generate", "", 200, "\"done_reason\":\"unload\""),
        ("/api/chat", "", 200, "\"done_reason\":\"unload\""),
    ] {
        let answer = head(send(
            &server.address,
            "POST",
            path,
            from,
            &unload.to_string(),
        ))
        .rest();
        assert_eq!(answer.status, status, "{}", answer.body);
        assert!(answer.body.contains(said), "{}", answer.body);
        let left: &[&str] = if status == 403 { &["small"] } else { &[] };
        assert_eq!(loaded(&server), left);
    }
    unready();
    say(&server, "small");
    assert_eq!(server.get("/readyz").status, 200);

    for (arguments, code, said) in [
        (&["stop", "smal"][..], 4, "did you mean `small`?"),
        (&["run", "smal", "x"], 4, "did you mean `small`?"),
        (&["run", "small", "x", "--context", "9"], 2, "--context"),
        (&["chat", "small", "--backend", "cpu"], 2, "--backend"),
    ] {
        let ran = ask(arguments);
        assert_eq!(ran.code, Some(code), "{arguments:?}: {}", ran.err);
        assert!(ran.err.contains(said), "{arguments:?}: {}", ran.err);
    }
    for verb in [&["ps"][..], &["stop", "x"], &["run", "x", "y"]] {
        for (url, said) in [
            ("http://127.0.0.1:1", "no server answers"),
            ("nowhere", "no address"),
        ] {
            let ran = run(home.path(), &[verb, &["--server", url]].concat());
            assert_eq!(ran.code, Some(2), "{verb:?}: {}", ran.err);
            assert!(ran.err.contains(said), "{verb:?}: {}", ran.err);
        }
    }
    // Nobody asks by a page of elsewhere, and wrong requests are named.
    for (body, status) in [
        ("{}", 400),
        ("{\"model\":1}", 400),
        ("{\"modle\":\"x\"}", 400),
        ("[]", 400),
    ] {
        let answer = backplane_tests::http::ask(&server.address, "POST", "/admin/stop", body);
        assert_eq!(answer.status, status, "{body}: {}", answer.body);
    }
    let foreign = "Origin: http://evil.example\r\n";
    let answer = head(send(&server.address, "GET", "/admin/ps", foreign, "")).rest();
    assert_eq!(answer.status, 403, "{}", answer.body);
}
