//! `GET /openapi.json`: the API as a document, made of the tables of paths and fields.

use super::errors::Dialect;
use super::fields::{self, Endpoint};
use super::http::{App, Shared, json as answer};
use super::queries;
use super::routes::{Access, ROUTES, Route};
use axum::extract::State;
use axum::http::{Method, StatusCode};
use axum::response::Response;
use serde_json::{Map, Value, json};

/// What a path reads and answers.
struct Operation {
    method: Method,
    path: &'static str,
    /// Whose fields its request has.
    reads: Option<Endpoint>,
    /// Its answer in [`ANSWERS`]; the others are texts.
    answers: Option<&'static str>,
    /// Another content type, of streams or in place of JSON.
    besides: Option<&'static str>,
}

/// Answers by their names, as JSON schemas.
const ANSWERS: &str = include_str!("openapi/answers.json");

const EVENTS: Option<&str> = Some("text/event-stream; charset=utf-8");
const LINES: Option<&str> = Some("application/x-ndjson");

#[rustfmt::skip]
static OPERATIONS: &[Operation] = &[
    post("/v1/chat/completions", Endpoint::Chat, "ChatCompletion", EVENTS),
    post("/v1/completions", Endpoint::Completions, "Completion", EVENTS),
    post("/v1/embeddings", Endpoint::Embeddings, "Embeddings", None),
    post("/v1/responses", Endpoint::Responses, "Response", EVENTS),
    get("/v1/models", "Models"),
    get("/v1/models/{id}", "Model"),
    post("/tokenize", Endpoint::Tokenize, "Tokens", None),
    post("/detokenize", Endpoint::Detokenize, "Text", None),
    post("/v1/messages", Endpoint::Messages, "Message", EVENTS),
    post("/v1/messages/count_tokens", Endpoint::CountTokens, "TokenCount", None),
    post("/api/chat", Endpoint::OllamaChat, "OllamaChat", LINES),
    post("/api/generate", Endpoint::OllamaGenerate, "OllamaGenerate", LINES),
    post("/api/embed", Endpoint::OllamaEmbed, "OllamaEmbed", None),
    post("/api/embeddings", Endpoint::OllamaEmbeddings, "OllamaEmbeddings", None),
    get("/api/tags", "OllamaModels"),
    post("/api/show", Endpoint::OllamaShow, "OllamaModel", None),
    get("/api/ps", "OllamaModels"),
    get("/api/version", "Version"),
    get("/v1/backends", "Backends"),
    get("/v1/devices", "Devices"),
    text("/", "text/html; charset=utf-8"),
    text("/page/{file}", "text/plain; charset=utf-8"),
    get("/healthz", "Alive"),
    get("/readyz", "Ready"),
    text("/metrics", "text/plain; version=0.0.4; charset=utf-8"),
    get("/openapi.json", "Document"),
    get("/admin/ps", "Loaded"),
    Operation { method: Method::POST, path: "/admin/stop", reads: None, answers: Some("Stopped"), besides: None },
    Operation { method: Method::POST, path: "/admin/reload", reads: None, answers: Some("Reloaded"), besides: None },
];

const fn get(path: &'static str, answers: &'static str) -> Operation {
    Operation {
        method: Method::GET,
        path,
        reads: None,
        answers: Some(answers),
        besides: None,
    }
}

const fn text(path: &'static str, kind: &'static str) -> Operation {
    Operation {
        method: Method::GET,
        path,
        reads: None,
        answers: None,
        besides: Some(kind),
    }
}

const fn post(
    path: &'static str,
    reads: Endpoint,
    answers: &'static str,
    besides: Option<&'static str>,
) -> Operation {
    Operation {
        method: Method::POST,
        path,
        reads: Some(reads),
        answers: Some(answers),
        besides,
    }
}

/// Answers with the document.
pub(super) async fn show(State(app): Shared) -> Response {
    answer(StatusCode::OK, &document(&app))
}

fn document(app: &App) -> Value {
    let mut schemas: Map<String, Value> = serde_json::from_str(ANSWERS).unwrap_or_default();
    let mut paths: Map<String, Value> = Map::new();
    for route in ROUTES {
        let Some(operation) = operation(route) else {
            continue;
        };
        if let Some(endpoint) = operation.reads {
            schemas.insert(request_name(endpoint), fields::body(endpoint));
        }
        let path = paths.entry(route.path).or_insert_with(|| json!({}));
        path[route.method.as_str().to_lowercase()] = described(route, operation);
    }
    let mut document = json!({
        "openapi": "3.1.0",
        "info": {
            "title": "Backplane",
            "version": env!("CARGO_PKG_VERSION"),
            "description": "Language models by the APIs of OpenAI, Anthropic and Ollama. A field that is not listed is refused by its name.",
            "license": { "name": "MIT OR Apache-2.0", "identifier": "MIT OR Apache-2.0" },
        },
        "servers": [{ "url": "/" }],
        "paths": paths,
        "components": {
            "schemas": schemas,
            "securitySchemes": {
                "bearer": { "type": "http", "scheme": "bearer" },
                "key": { "type": "apiKey", "in": "header", "name": "x-api-key" },
            },
        },
    });
    if app.keys.is_some() {
        document["security"] = json!([{ "bearer": [] }, { "key": [] }]);
    }
    document
}

fn operation(route: &Route) -> Option<&'static Operation> {
    OPERATIONS
        .iter()
        .find(|one| (&one.method, one.path) == (&route.method, route.path))
}

fn request_name(endpoint: Endpoint) -> String {
    format!("{endpoint:?}Request")
}

fn reference(name: &str) -> Value {
    json!({ "$ref": format!("#/components/schemas/{name}") })
}

fn described(route: &Route, operation: &Operation) -> Value {
    let name = route.path.replace(['/', '{', '}', '.'], "_");
    let mut content = Map::new();
    if let Some(name) = operation.answers {
        let schema = json!({ "schema": reference(name) });
        content.insert("application/json".to_owned(), schema);
    }
    if let Some(kind) = operation.besides {
        let text = json!({ "schema": { "type": "string" } });
        content.insert(kind.to_owned(), text);
    }
    let mut responses = json!({ "200": { "description": route.about, "content": content } });
    for (status, description) in statuses(route, operation) {
        let schema = match (route.path, status, route.dialect) {
            ("/readyz", 503, _) => "NotReady",
            (_, _, Dialect::OpenAi) => "Error",
            (_, _, Dialect::Anthropic) => "AnthropicError",
            (_, _, Dialect::Ollama) => "OllamaError",
        };
        responses[status.to_string()] = json!({
            "description": description,
            "content": { "application/json": { "schema": reference(schema) } },
        });
    }
    let mut described = json!({
        "operationId": format!("{}{name}", route.method.as_str().to_lowercase()),
        "tags": [route.dialect.name()],
        "summary": route.about,
        "responses": responses,
    });
    let in_path = route.path.split_once('{').map(|(_, name)| {
        let name = name.trim_end_matches('}');
        let schema = json!({ "type": "string" });
        json!({ "name": name, "in": "path", "required": true, "schema": schema })
    });
    let parameters: Vec<Value> = in_path
        .into_iter()
        .chain(queries::described(route))
        .collect();
    if !parameters.is_empty() {
        described["parameters"] = json!(parameters);
    }
    if queries::takes_any(route) {
        described["description"] = json!("Parameters of the query have no effect.");
    }
    let request = match (operation.reads, route.path) {
        (Some(endpoint), _) => Some(request_name(endpoint)),
        (None, "/admin/stop") => Some("StopRequest".to_owned()),
        _ => None,
    };
    if let Some(name) = request {
        described["requestBody"] = json!({
            "required": true,
            "content": { "application/json": { "schema": reference(&name) } },
        });
    }
    if route.access == Access::Open {
        described["security"] = json!([]);
    }
    described
}

/// What may go wrong.
fn statuses(route: &Route, operation: &Operation) -> Vec<(u16, &'static str)> {
    let reads = operation.reads.is_some() || route.path == "/admin/stop";
    let one = route.path.contains('{');
    let all = [
        (
            reads || one || !queries::takes_any(route),
            400,
            "the request is wrong: the message names the field or parameter",
        ),
        (
            route.access != Access::Open,
            401,
            "no key, or one that is not known",
        ),
        (
            true,
            403,
            "not for this caller: a page of another origin, a name that is not this server's, or an operator's path",
        ),
        (reads || one, 404, "no such model"),
        (reads, 408, "the request was not whole in time"),
        (reads, 413, "the request is too large"),
        (reads, 415, "the request is packed"),
        (
            reads,
            429,
            "too much at once: `Retry-After` says when to try again",
        ),
        (true, 500, "the backend failed"),
        (
            reads || route.path == "/readyz",
            503,
            "not ready, or stopping",
        ),
        (
            operation.reads.is_some(),
            504,
            "nothing was said within `reply_time`",
        ),
    ];
    let all = all.into_iter().filter(|(may, ..)| *may);
    all.map(|(_, status, description)| (status, description))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_path_is_described_and_every_answer_known() {
        let answers: Map<String, Value> = serde_json::from_str(ANSWERS).unwrap();
        for route in ROUTES {
            let found = operation(route);
            assert!(
                found.is_some(),
                "{} {}: add it to OPERATIONS",
                route.method,
                route.path
            );
        }
        for one in OPERATIONS {
            let there = ROUTES
                .iter()
                .any(|route| (&one.method, one.path) == (&route.method, route.path));
            assert!(there, "{} {}: no such path", one.method, one.path);
            if let Some(name) = one.answers {
                assert!(answers.contains_key(name), "{name}");
            }
        }
        // Each answer is of a path, or of another answer.
        for name in answers.keys() {
            let mark = format!("#/components/schemas/{name}\"");
            let used = ANSWERS.contains(&mark)
                || OPERATIONS.iter().any(|one| one.answers == Some(name))
                || [
                    "Error",
                    "AnthropicError",
                    "OllamaError",
                    "NotReady",
                    "StopRequest",
                ]
                .contains(&name.as_str());
            assert!(used, "{name}");
        }
    }
}
