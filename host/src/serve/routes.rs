//! Every path, once: the router, who may ask for it, how its errors look, and what is counted and documented come from here.

use super::errors::{Dialect, Problem};
use super::http::App;
use super::{anthropic, door, metrics, ollama, openai, openapi, operator, page, tokens};
use axum::Router;
use axum::http::{Method, Uri};
use axum::routing::{MethodRouter, get, post};
use std::sync::Arc;

/// Who may ask for a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Access {
    /// Anybody: what tells whether the server lives, and nothing else.
    Open,
    /// Who has a key, where there are keys.
    Key,
    /// Who operates the server.
    Admin,
}

/// One path and method.
pub(super) struct Route {
    pub(super) method: Method,
    pub(super) path: &'static str,
    pub(super) dialect: Dialect,
    pub(super) access: Access,
    handler: fn() -> MethodRouter<Arc<App>>,
    /// For people: what it answers.
    pub(super) about: &'static str,
}

use Access::{Admin, Key, Open};
use Dialect::{Anthropic, Ollama, OpenAi};

#[rustfmt::skip]
pub(super) static ROUTES: &[Route] = &[
    Route { method: Method::POST, path: "/v1/chat/completions", dialect: OpenAi, access: Key, handler: || post(openai::chat::create),
        about: "the next message of a chat, with the model's own template; streamed or whole" },
    Route { method: Method::POST, path: "/v1/completions", dialect: OpenAi, access: Key, handler: || post(openai::completions::create),
        about: "the continuation of a text or of token ids; streamed or whole" },
    Route { method: Method::POST, path: "/v1/embeddings", dialect: OpenAi, access: Key, handler: || post(openai::embeddings::create),
        about: "texts as vectors" },
    Route { method: Method::POST, path: "/v1/responses", dialect: OpenAi, access: Key, handler: || post(openai::responses::create),
        about: "a response to a text or a conversation; streamed by named events, or whole" },
    Route { method: Method::GET, path: "/v1/models", dialect: OpenAi, access: Key, handler: || get(openai::models::list),
        about: "the models that may be asked for, with their state" },
    Route { method: Method::GET, path: "/v1/models/{id}", dialect: OpenAi, access: Key, handler: || get(openai::models::show),
        about: "one of them" },
    Route { method: Method::POST, path: "/tokenize", dialect: OpenAi, access: Key, handler: || post(tokens::tokenize),
        about: "the tokens of a text or a conversation" },
    Route { method: Method::POST, path: "/detokenize", dialect: OpenAi, access: Key, handler: || post(tokens::detokenize),
        about: "the text of tokens" },
    Route { method: Method::POST, path: "/v1/messages", dialect: Anthropic, access: Key, handler: || post(anthropic::create),
        about: "Anthropic's API: the next message; streamed or whole" },
    Route { method: Method::POST, path: "/v1/messages/count_tokens", dialect: Anthropic, access: Key, handler: || post(anthropic::count_tokens),
        about: "the tokens that a conversation gives the model" },
    Route { method: Method::POST, path: "/api/chat", dialect: Ollama, access: Key, handler: || post(ollama::chat),
        about: "Ollama's API: the next message of a chat; in lines of JSON, or whole" },
    Route { method: Method::POST, path: "/api/generate", dialect: Ollama, access: Key, handler: || post(ollama::generate),
        about: "the answer to a prompt, or with `raw` its continuation" },
    Route { method: Method::POST, path: "/api/embed", dialect: Ollama, access: Key, handler: || post(ollama::embed),
        about: "texts as vectors" },
    Route { method: Method::POST, path: "/api/embeddings", dialect: Ollama, access: Key, handler: || post(ollama::embeddings),
        about: "one text as a vector" },
    Route { method: Method::GET, path: "/api/tags", dialect: Ollama, access: Key, handler: || get(ollama::tags),
        about: "the models that are served" },
    Route { method: Method::POST, path: "/api/show", dialect: Ollama, access: Key, handler: || post(ollama::show),
        about: "what is known of one of them" },
    Route { method: Method::GET, path: "/api/ps", dialect: Ollama, access: Key, handler: || get(ollama::running),
        about: "those that are loaded" },
    Route { method: Method::GET, path: "/api/version", dialect: Ollama, access: Key, handler: || get(ollama::version),
        about: "the version of this program" },
    Route { method: Method::GET, path: "/v1/backends", dialect: OpenAi, access: Key, handler: || get(operator::backends),
        about: "every plugin with its verdict, what the order would choose, and what runs each model, with the trace of why" },
    Route { method: Method::GET, path: "/v1/devices", dialect: OpenAi, access: Key, handler: || get(operator::devices),
        about: "what this machine could run models on, its memory, and which plugin uses it or why none does; the same as `backplane devices --json`" },
    Route { method: Method::GET, path: "/", dialect: OpenAi, access: Open, handler: || get(page::page),
        about: "a page to chat with the models, and to see backends, devices, and why each was or wasn't chosen" },
    Route { method: Method::GET, path: "/page/{file}", dialect: OpenAi, access: Open, handler: || get(page::file),
        about: "the files of that page; it asks for nothing from elsewhere" },
    Route { method: Method::GET, path: "/healthz", dialect: OpenAi, access: Open, handler: || get(operator::alive),
        about: "200 while the server runs" },
    Route { method: Method::GET, path: "/readyz", dialect: OpenAi, access: Open, handler: || get(operator::ready),
        about: "200 while every model that is loaded at the start has answered a request, or where none is, while one can be loaded; else 503 with the reasons" },
    Route { method: Method::GET, path: "/metrics", dialect: OpenAi, access: Key, handler: || get(metrics::answer),
        about: "counters, gauges and histograms, as Prometheus reads them" },
    Route { method: Method::GET, path: "/admin/ps", dialect: OpenAi, access: Admin, handler: || get(operator::ps),
        about: "the models that are loaded: backend, device, size, context, who uses them, when they are unloaded" },
    Route { method: Method::POST, path: "/admin/stop", dialect: OpenAi, access: Admin, handler: || post(operator::stop),
        about: "unloads the `model` that the request names, once nobody uses it" },
    Route { method: Method::GET, path: "/openapi.json", dialect: OpenAi, access: Open, handler: || get(openapi::show),
        about: "this API as an OpenAPI document" },
    Route { method: Method::POST, path: "/admin/reload", dialect: OpenAi, access: Admin, handler: || post(operator::reload),
        about: "looks at manifest and plugins again and tells what changed" },
];

/// The router of all of them, behind the door.
pub(super) fn router(app: Arc<App>) -> Router {
    let router = ROUTES.iter().fold(Router::new(), |router, route| {
        router.route(route.path, (route.handler)())
    });
    router
        .fallback(async |uri: Uri| Problem::no_path(uri.path()))
        .method_not_allowed_fallback(async |method: Method, uri: Uri| {
            Problem::wrong_method(method.as_str(), uri.path())
        })
        .layer(axum::middleware::from_fn_with_state(
            app.clone(),
            door::pass,
        ))
        .with_state(app)
}

/// The row of a path that the router found, for this method or else for another.
pub(super) fn find(method: &Method, path: &str) -> Option<&'static Route> {
    let method = if method == Method::HEAD {
        &Method::GET
    } else {
        method
    };
    let of_path = || ROUTES.iter().filter(|route| route.path == path);
    let exact = of_path().find(|route| route.method == *method);
    exact.or_else(|| of_path().next())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_stands_once_and_is_found() {
        for route in ROUTES {
            let same = |other: &&Route| (&other.method, other.path) == (&route.method, route.path);
            assert_eq!(ROUTES.iter().filter(same).count(), 1, "{}", route.path);
            let found = find(&route.method, route.path).unwrap();
            assert!(std::ptr::eq(found, route), "{}", route.path);
        }
        assert_eq!(find(&Method::HEAD, "/healthz").unwrap().path, "/healthz");
        assert_eq!(find(&Method::PUT, "/healthz").unwrap().path, "/healthz");
        assert!(find(&Method::GET, "/nowhere").is_none());
    }

    #[test]
    fn the_documentation_shows_every_path() {
        let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/api.md");
        let text = std::fs::read_to_string(page).unwrap();
        let mut table = String::from("| path | answer |\n| --- | --- |\n");
        for route in ROUTES {
            table += &format!("| `{} {}` | {} |\n", route.method, route.path, route.about);
        }
        assert!(text.contains(&table), "docs/api.md is to have:\n{table}");
    }
}
