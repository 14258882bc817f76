//! The document of the API, and schemathesis, which asks the server for all that it promises.
#![cfg(unix)]

use backplane_tests::server::Server;
use backplane_tests::{modules, python};
use serde_json::json;

/// What is looked at in every answer. What a schema takes and a model does not (a prompt that is too long, a token that is not
/// in its vocabulary) is refused with 400, so that being taken is not among it.
const CHECKS: &str = "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance,\
    response_headers_conformance,negative_data_rejection,unsupported_method";

#[test]
fn schemathesis_finds_nothing() {
    let (home, manifest) = modules::home(&["echo-a"], "");
    let arguments = ["model.echo", "--context", "2048", "--access-log=false"];
    let server = Server::start(home.path(), Some(&manifest), &arguments).ready();

    let document = server.get("/openapi.json");
    assert_eq!(document.status, 200);
    let document = document.json();
    assert_eq!(document["openapi"], "3.1.0");
    let fields = &document["components"]["schemas"]["ChatRequest"]["properties"];
    assert!(fields["temperature"].is_object(), "{fields}");

    // Any name would be none of a model, and nothing but that be found.
    let mut document = document;
    let schemas = document["components"]["schemas"].as_object_mut();
    for (_, schema) in schemas.expect("schemas") {
        for name in ["model", "name"] {
            let place = format!("/properties/{name}");
            let described = schema.pointer(&format!("{place}/description")).is_some();
            let known = json!({ "enum": ["model.echo"] });
            if let Some(field) = schema.pointer_mut(&format!("{place}/anyOf/0")) {
                *field = known;
            } else if described && let Some(field) = schema.pointer_mut(&place) {
                *field = known;
            }
        }
    }
    let id = &mut document["paths"]["/v1/models/{id}"]["get"]["parameters"][0]["schema"];
    *id = json!({ "enum": ["model.echo"] });
    let file = home.path().join("openapi.json");
    std::fs::write(&file, document.to_string()).expect("written");
    let output = python()
        .args(["-m", "schemathesis.cli", "run"])
        .args(["--phases", "examples,coverage,fuzzing"])
        .args(["--checks", CHECKS])
        .args(["--max-examples", "5", "--seed", "7", "--no-shrink"])
        .args(["--suppress-health-check", "all", "--warnings", "off"])
        .args(["--request-timeout", "30", "--workers", "1", "--no-color"])
        .args(["--generation-database", "none"])
        .args(["--url", &format!("http://{}", server.address)])
        .arg(&file)
        .current_dir(home.path())
        .output()
        .expect("schemathesis: `cargo verify` installs it");
    let said = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}\n{errors}");
    assert_eq!(server.get("/readyz").status, 200, "it still answers");
}
