//! Lists by pages, and the other parameters of queries.

use backplane_tests::http::{head, send};
use backplane_tests::server::Server;
use serde_json::json;

/// Lists come by pages for clients of Anthropic's API; what a query has besides is refused by its name, or is known.
pub(crate) fn lists(server: &Server) {
    let ask = |query: &str, headers: &str| {
        let path = format!("/v1/models{query}");
        head(send(&server.address, "GET", &path, headers, "")).rest()
    };
    let theirs = "anthropic-version: 2023-06-01\r\n";
    for (query, ids, more) in [
        ("?beta=true", &["a", "b", "gone"][..], false),
        ("?limit=2", &["a", "b"], true),
        ("?limit=2&after_id=b", &["gone"], false),
        ("?limit=1&before_id=gone", &["b"], true),
    ] {
        let page = ask(query, theirs).json();
        let data = page["data"].as_array().expect("models").iter();
        let found: Vec<&str> = data.filter_map(|model| model["id"].as_str()).collect();
        assert_eq!(found, ids, "{query}");
        let about = (&page["first_id"], &page["last_id"], &page["has_more"]);
        let expected = (&json!(ids[0]), &json!(ids[ids.len() - 1]), &json!(more));
        assert_eq!(about, expected, "{query}");
    }
    for query in ["?limit=0", "?after_id=nope", "?page=2", "?limit=1&limit=1"] {
        let answer = ask(query, theirs);
        assert_eq!(answer.status, 400, "{query}: {}", answer.body);
        let answer = answer.json();
        let message = answer["error"]["message"].as_str().expect("a message");
        let name = query[1..].split('=').next().expect("a name");
        assert!(message.starts_with(&format!("`{name}`: ")), "{message}");
        let shape = (&answer["type"], &answer["error"]["type"]);
        assert_eq!(shape, (&json!("error"), &json!("invalid_request_error")));
    }
    let ours = ask("?limit=1", "");
    assert_eq!(ours.status, 400, "{}", ours.body);
    assert_eq!(ours.json()["error"]["param"], "limit");
    assert_eq!(ask("?client_version=1", "").status, 200);
    for (path, status) in [
        ("/?utm_source=x", 200),
        ("/healthz?verbose", 200),
        ("/metrics?name[]=x", 200),
        ("/api/tags?x=y", 400),
        ("/v1/nowhere?x=y", 404),
        ("/v1/chat/completions?x=y", 405),
    ] {
        let answer = server.get(path);
        assert_eq!(answer.status, status, "{path}: {}", answer.body);
    }
}
