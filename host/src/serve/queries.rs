//! Every parameter that the query of a path may have, once: what is read, what is refused, and what the documentation says come
//! from here, as with the fields of requests. What the table does not have is refused by its name.

use super::errors::{Dialect, Problem};
use super::routes::Route;
use crate::nearest::nearest;
use Dialect::{Anthropic, OpenAi};
use percent_encoding::percent_decode_str;
use serde_json::{Value, json};
use std::ops::RangeInclusive;

/// What a query asks for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Queried {
    /// Most models of a page.
    pub(super) limit: Option<usize>,
    /// The model behind which a page begins.
    pub(super) after: Option<String>,
    /// The model before which it ends.
    pub(super) before: Option<String>,
}

/// What becomes of a parameter.
enum Does {
    /// Honoured: a whole number within these.
    Number(RangeInclusive<usize>, fn(&mut Queried, usize)),
    /// Honoured: a text.
    Text(fn(&mut Queried, String)),
    /// Taken, and without effect on the answer.
    NoEffect,
}

/// One parameter.
struct Parameter {
    name: &'static str,
    /// The paths whose queries may have it.
    on: &'static [&'static str],
    /// Whose clients send it.
    by: Dialect,
    does: Does,
    /// For people: what it does, or why it is taken.
    about: &'static str,
}

/// The name of any parameter.
const ANY: &str = "*";

const MODELS: &[&str] = &["/v1/models"];

#[rustfmt::skip]
static PARAMETERS: &[Parameter] = &[
    Parameter { name: "limit", on: MODELS, by: Anthropic, does: Does::Number(1..=1000, |it, limit| it.limit = Some(limit)),
        about: "most models of a page; 20 unless given" },
    Parameter { name: "after_id", on: MODELS, by: Anthropic, does: Does::Text(|it, id| it.after = Some(id)),
        about: "the page begins behind this model" },
    Parameter { name: "before_id", on: MODELS, by: Anthropic, does: Does::Text(|it, id| it.before = Some(id)),
        about: "the page ends before this model; not with `after_id`" },
    Parameter { name: "beta", on: &["/v1/messages", "/v1/messages/count_tokens", "/v1/models", "/v1/models/{id}"], by: Anthropic, does: Does::NoEffect,
        about: "Anthropic's clients mark what is new in their API with it; its fields are known or not as without" },
    Parameter { name: "api-version", on: &["/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/responses", "/v1/models", "/v1/models/{id}"],
        by: OpenAi, does: Does::NoEffect,
        about: "clients made for Azure name a version of its API; there is one here" },
    Parameter { name: "client_version", on: MODELS, by: OpenAi, does: Does::NoEffect,
        about: "Codex names its own version" },
    Parameter { name: ANY, on: &["/", "/page/{file}", "/healthz", "/readyz", "/metrics", "/openapi.json"], by: OpenAi, does: Does::NoEffect,
        about: "what links, balancers and scrapers add (`utm_source`, `verbose`, `format`): the whole answer comes always" },
];

/// Reads the query of a request.
///
/// # Errors
/// A parameter is unknown, given twice, or its value wrong: each by its name.
pub(super) fn read(path: &str, dialect: Dialect, query: &str) -> Result<Queried, Problem> {
    let known = || PARAMETERS.iter().filter(|one| one.on.contains(&path));
    let mut queried = Queried::default();
    let mut seen = Vec::new();
    if known().any(|one| one.name == ANY) {
        return Ok(queried);
    }
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        let (name, value) = (decoded(name), decoded(value));
        let found = known().find(|one| one.name == name);
        let shown = name.escape_debug().to_string();
        match found {
            None => {
                let near = nearest(&name, known().map(|one| one.name));
                let near = near.map_or(String::new(), |near| format!("; did you mean `{near}`?"));
                let why = format!("no such parameter of the query{near}");
                return Err(Problem::unsupported(shown, why));
            }
            Some(one) if one.by != dialect => {
                let why = match one.by {
                    Anthropic => {
                        "a parameter of Anthropic's API, which `anthropic-version` in the request's head asks for"
                    }
                    _ => {
                        "a parameter of OpenAI's API, which `anthropic-version` in the request's head does not ask for"
                    }
                };
                return Err(Problem::unsupported(shown, why));
            }
            Some(_) if seen.contains(&name) => {
                return Err(Problem::field(shown, "expected once"));
            }
            Some(one) => {
                set(one, &value, &mut queried).map_err(|why| Problem::field(shown, why))?;
            }
        }
        seen.push(name);
    }
    if queried.after.is_some() && queried.before.is_some() {
        return Err(Problem::field(
            "before_id",
            "expected no `after_id` with it",
        ));
    }
    Ok(queried)
}

fn set(parameter: &Parameter, value: &str, queried: &mut Queried) -> Result<(), String> {
    match &parameter.does {
        Does::Number(range, set) => {
            let number = value.parse().ok().filter(|number| range.contains(number));
            let number = number.ok_or_else(|| {
                let (least, most) = (range.start(), range.end());
                format!("expected a whole number from {least} to {most}, found {value:?}")
            })?;
            set(queried, number);
        }
        Does::Text(_) if value.is_empty() => return Err("expected a text, found none".to_owned()),
        Does::Text(set) => set(queried, value.to_owned()),
        Does::NoEffect => {}
    }
    Ok(())
}

/// A name or value as it was before it was put into a query.
fn decoded(part: &str) -> String {
    let spaced = part.replace('+', " ");
    percent_decode_str(&spaced).decode_utf8_lossy().into_owned()
}

/// The parameters of a path, as an OpenAPI document has them. Those that may have any name are not among them: there is no
/// schema of what has no effect.
pub(super) fn described(route: &Route) -> impl Iterator<Item = Value> {
    let of_path = PARAMETERS.iter().filter(|one| one.on.contains(&route.path));
    of_path.filter(|one| one.name != ANY).map(|one| {
        let head = match one.by == route.dialect {
            true => "",
            false => "with `anthropic-version` in the request's head: ",
        };
        let schema = match &one.does {
            Does::Number(range, _) => {
                json!({ "type": "integer", "minimum": range.start(), "maximum": range.end() })
            }
            Does::Text(_) => json!({ "type": "string", "minLength": 1 }),
            Does::NoEffect => json!({ "type": "string" }),
        };
        json!({ "name": one.name, "in": "query", "required": false, "description": format!("{head}{}", one.about), "schema": schema })
    })
}

/// Whether the query of a path may have any parameter.
pub(super) fn takes_any(route: &Route) -> bool {
    let mut all = PARAMETERS.iter();
    all.any(|one| one.name == ANY && one.on.contains(&route.path))
}

#[cfg(test)]
mod tests {
    use super::super::routes::ROUTES;
    use super::*;

    fn wrong(path: &str, dialect: Dialect, query: &str) -> String {
        let problem = read(path, dialect, query).unwrap_err();
        let json = problem.shaped(dialect, "r1");
        json["error"]["message"].as_str().unwrap().to_owned()
    }

    #[test]
    fn pages_are_asked_for() {
        let queried = read(
            "/v1/models",
            Anthropic,
            "limit=1000&&after_id=a%2Fb+c%3a1&beta=true",
        );
        let expected = Queried {
            limit: Some(1000),
            after: Some("a/b c:1".to_owned()),
            before: None,
        };
        assert_eq!(queried.unwrap(), expected);
        let before = read("/v1/models", Anthropic, "before_id=m").unwrap();
        assert_eq!(before.before.as_deref(), Some("m"));
    }

    #[test]
    fn what_official_clients_send_is_taken() {
        for (path, dialect, query) in [
            ("/v1/messages", Anthropic, "beta=true"),
            ("/v1/messages/count_tokens", Anthropic, "beta=true"),
            ("/v1/models/{id}", Anthropic, "beta=true"),
            ("/v1/chat/completions", OpenAi, "api-version=2024-10-21"),
            ("/v1/responses", OpenAi, "api-version=preview"),
            ("/v1/models", OpenAi, "client_version=0.133.0"),
            ("/metrics", OpenAi, "format=prometheus&name[]=a&name[]=b"),
            ("/readyz", OpenAi, "verbose"),
            ("/", OpenAi, "utm_source=x&%ff=%"),
            ("/v1/chat/completions", OpenAi, ""),
        ] {
            let queried = read(path, dialect, query);
            assert_eq!(queried.unwrap(), Queried::default(), "{path}?{query}");
        }
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (path, dialect, query, said) in [
            (
                "/v1/models",
                OpenAi,
                "limit=1",
                "`limit`: a parameter of Anthropic's API",
            ),
            (
                "/v1/models",
                Anthropic,
                "api-version=1",
                "`api-version`: a parameter of OpenAI's API",
            ),
            (
                "/v1/models",
                Anthropic,
                "limit=0",
                "`limit`: expected a whole number from 1 to 1000, found \"0\"",
            ),
            ("/v1/models", Anthropic, "limit=1001", "`limit`: expected"),
            ("/v1/models", Anthropic, "limit=", "found \"\""),
            ("/v1/models", Anthropic, "limit", "found \"\""),
            (
                "/v1/models",
                Anthropic,
                "limit=99999999999999999999",
                "`limit`: expected",
            ),
            ("/v1/models", Anthropic, "limit=-1", "`limit`: expected"),
            (
                "/v1/models",
                Anthropic,
                "limit=1&limit=2",
                "`limit`: expected once",
            ),
            (
                "/v1/models",
                Anthropic,
                "after_id=",
                "`after_id`: expected a text",
            ),
            (
                "/v1/models",
                Anthropic,
                "after_id=a&before_id=b",
                "`before_id`: expected no `after_id`",
            ),
            (
                "/v1/models",
                Anthropic,
                "afterid=a",
                "did you mean `after_id`?",
            ),
            ("/v1/models", OpenAi, "*=a", "`*`: no such parameter"),
            (
                "/v1/chat/completions",
                OpenAi,
                "stream=true",
                "`stream`: no such parameter of the query",
            ),
            (
                "/v1/chat/completions",
                OpenAi,
                "=x",
                "``: no such parameter",
            ),
            (
                "/v1/chat/completions",
                OpenAi,
                "a%0Ab=x",
                "`a\\nb`: no such parameter",
            ),
            ("/v1/chat/completions", OpenAi, "%ff=x", "no such parameter"),
            (
                "/admin/ps",
                OpenAi,
                "verbose",
                "`verbose`: no such parameter",
            ),
        ] {
            let message = wrong(path, dialect, query);
            assert!(message.contains(said), "{path}?{query}: {message}");
            assert!(!message.contains('\n'), "{message:?}");
        }
        let ollama = read("/api/tags", Dialect::Ollama, "limit=1").unwrap_err();
        let said = json!({ "error": "`limit`: no such parameter of the query" });
        assert_eq!(ollama.shaped(Dialect::Ollama, "r1"), said);
    }

    #[test]
    fn the_document_has_them() {
        let of = |path: &str| {
            let route = ROUTES.iter().find(|route| route.path == path).unwrap();
            (described(route).collect::<Vec<_>>(), takes_any(route))
        };
        let (models, any) = of("/v1/models");
        let limit = models.iter().find(|one| one["name"] == "limit").unwrap();
        let schema = json!({ "type": "integer", "minimum": 1, "maximum": 1000 });
        assert_eq!(
            (&limit["schema"], &limit["in"], any),
            (&schema, &json!("query"), false)
        );
        assert!(
            limit["description"]
                .as_str()
                .unwrap()
                .starts_with("with `anthropic-version`")
        );
        let version = models
            .iter()
            .find(|one| one["name"] == "api-version")
            .unwrap();
        assert!(
            version["description"]
                .as_str()
                .unwrap()
                .starts_with("clients made for Azure")
        );
        assert_eq!(of("/metrics"), (Vec::new(), true));
        assert_eq!(of("/api/tags"), (Vec::new(), false));
    }

    #[test]
    fn the_documentation_shows_every_parameter() {
        let mut table = String::from("| parameter | of | | |\n| --- | --- | --- | --- |\n");
        for one in PARAMETERS {
            let does = match one.does {
                Does::Number(..) | Does::Text(_) => "honoured",
                Does::NoEffect => "no effect",
            };
            let of: Vec<String> = one.on.iter().map(|path| format!("`{path}`")).collect();
            let (name, of, about) = (one.name, of.join(", "), one.about);
            table += &format!("| `{name}` | {of} | {does} | {about} |\n");
            for path in one.on {
                let there = ROUTES.iter().any(|route| route.path == *path);
                assert!(there, "{path}: no such path");
                let same = |other: &&Parameter| other.name == name && other.on.contains(path);
                assert_eq!(PARAMETERS.iter().filter(same).count(), 1, "{path} {name}");
            }
        }
        let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/api.md");
        let text = std::fs::read_to_string(page).unwrap();
        assert!(text.contains(&table), "docs/api.md is to have:\n{table}");
    }
}
