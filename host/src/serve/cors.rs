//! What web pages may do.
//!
//! A browser sends what any page asks of this machine's servers, and says by `Origin` which page asks. Requests of other origins
//! than the server's own are refused unless the operator names them, not merely kept from reading the answer: a generation
//! takes time even if nobody reads it. A page that lets its own name point to this machine has the right origin and the wrong
//! `Host`: from this machine, names that are not known are refused where no key would be asked for.

use super::errors::Problem;
use axum::body::Body;
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, header};
use axum::response::Response;
use std::net::IpAddr;

/// What pages may read of an answer's head.
const EXPOSED: HeaderValue = HeaderValue::from_static("x-request-id, request-id, retry-after");
/// Seconds that a browser may remember an answer to its question.
const REMEMBERED: HeaderValue = HeaderValue::from_static("600");

/// Which page asks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Page {
    /// None, or one of this server's own.
    Own,
    /// One that the operator has named; what the answer is to say.
    Named(HeaderValue),
}

/// Which page asks.
///
/// # Errors
/// One that may not.
pub(super) fn page(headers: &HeaderMap, origins: &[String]) -> Result<Page, Problem> {
    let Some(origin) = headers.get(header::ORIGIN) else {
        return Ok(Page::Own);
    };
    let text = origin.to_str().unwrap_or_default();
    if origins.iter().any(|one| one == "*") {
        return Ok(Page::Named(HeaderValue::from_static("*")));
    }
    if origins.iter().any(|one| one.eq_ignore_ascii_case(text)) {
        return Ok(Page::Named(origin.clone()));
    }
    let host = headers
        .get(header::HOST)
        .and_then(|host| host.to_str().ok());
    let own = text.split_once("://").is_some_and(|(scheme, authority)| {
        matches!(scheme, "http" | "https")
            && host.is_some_and(|host| host.eq_ignore_ascii_case(authority))
    });
    if own {
        return Ok(Page::Own);
    }
    let message = "web pages of this origin may not ask: name it in `origins` to let them";
    Err(Problem::forbidden(message))
}

/// Refuses a `Host` that a page may have made up: any but an address, this machine's names and those that the operator has
/// named.
///
/// # Errors
/// It is another.
pub(super) fn check_host(headers: &HeaderMap, names: &[String]) -> Result<(), Problem> {
    let Some(host) = headers.get(header::HOST) else {
        return Ok(());
    };
    let host = name_of(host.to_str().unwrap_or_default());
    let known = |name: &String| name == "*" || name.eq_ignore_ascii_case(host);
    if is_here(host) || names.iter().any(known) {
        return Ok(());
    }
    let message = "this name is not one of this server: name it in `hosts`, or ask for keys";
    Err(Problem::forbidden(message))
}

/// A `Host` without its port.
fn name_of(host: &str) -> &str {
    if let Some(rest) = host.strip_prefix('[') {
        return rest.split_once(']').map_or("", |(address, _)| address);
    }
    host.split_once(':').map_or(host, |(name, _)| name)
}

fn is_here(name: &str) -> bool {
    let lower = name.trim_end_matches('.').to_ascii_lowercase();
    let own = || own_name().is_some_and(|own| own.eq_ignore_ascii_case(&lower));
    name.parse::<IpAddr>().is_ok() || lower == "localhost" || lower.ends_with(".localhost") || own()
}

#[cfg(unix)]
fn own_name() -> Option<String> {
    let system = rustix::system::uname();
    system.nodename().to_str().ok().map(str::to_owned)
}

#[cfg(not(unix))]
fn own_name() -> Option<String> {
    std::env::var("COMPUTERNAME").ok()
}

/// The answer to a browser that asks whether a page may ask; `None` where it is no such question.
pub(super) fn preflight(
    method: &Method,
    headers: &HeaderMap,
    page: &Page,
    methods: &[Method],
) -> Option<Response> {
    let asks = method == Method::OPTIONS
        && headers.contains_key(header::ORIGIN)
        && headers.contains_key(header::ACCESS_CONTROL_REQUEST_METHOD);
    if !asks || methods.is_empty() {
        return None;
    }
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::NO_CONTENT;
    let answer = response.headers_mut();
    let names: Vec<&str> = methods.iter().map(Method::as_str).collect();
    if let Ok(names) = HeaderValue::from_str(&names.join(", ")) {
        answer.insert(header::ACCESS_CONTROL_ALLOW_METHODS, names);
    }
    if let Some(wanted) = headers.get(header::ACCESS_CONTROL_REQUEST_HEADERS) {
        answer.insert(header::ACCESS_CONTROL_ALLOW_HEADERS, wanted.clone());
    }
    answer.insert(header::ACCESS_CONTROL_MAX_AGE, REMEMBERED);
    allow(answer, page);
    Some(response)
}

/// Says in an answer that the page may read it.
pub(super) fn allow(headers: &mut HeaderMap, page: &Page) {
    let Page::Named(origin) = page else {
        return;
    };
    headers.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, origin.clone());
    headers.insert(header::ACCESS_CONTROL_EXPOSE_HEADERS, EXPOSED);
    if origin != "*" {
        headers.append(header::VARY, HeaderValue::from_static("origin"));
    }
}

/// Whether a request says that somebody else has sent it on: its sender's address is then not the one of the connection.
pub(super) fn is_sent_on(headers: &HeaderMap) -> bool {
    const SENT_ON: [HeaderName; 4] = [
        header::FORWARDED,
        header::VIA,
        HeaderName::from_static("x-forwarded-for"),
        HeaderName::from_static("x-real-ip"),
    ];
    SENT_ON.iter().any(|name| headers.contains_key(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(HeaderName, &str)]) -> HeaderMap {
        let pairs = pairs.iter().map(|(name, value)| {
            (
                name.clone(),
                HeaderValue::from_bytes(value.as_bytes()).unwrap(),
            )
        });
        pairs.collect()
    }

    #[test]
    fn pages_are_told_apart() {
        let judge = |origin: &str, host: &str, named: &[&str]| {
            let headers = headers(&[(header::ORIGIN, origin), (header::HOST, host)]);
            let named: Vec<String> = named.iter().map(|one| (*one).to_owned()).collect();
            page(&headers, &named).ok()
        };
        let named = |text: &'static str| Some(Page::Named(HeaderValue::from_static(text)));
        assert_eq!(page(&HeaderMap::new(), &[]).unwrap(), Page::Own);
        for (origin, host) in [
            ("http://127.0.0.1:8080", "127.0.0.1:8080"),
            ("https://chat.example", "chat.example"),
            ("http://LOCALHOST:1", "localhost:1"),
        ] {
            assert_eq!(judge(origin, host, &[]), Some(Page::Own), "{origin}");
        }
        for origin in [
            "http://evil.example",
            "http://127.0.0.1:8081",
            "null",
            "",
            "file://127.0.0.1:8080",
            "http://127.0.0.1:8080.evil.example",
            "\u{fc}",
        ] {
            assert_eq!(judge(origin, "127.0.0.1:8080", &[]), None, "{origin}");
        }
        let friend = "app://friend";
        assert_eq!(judge(friend, "x", &["http://a", friend]), named(friend));
        assert_eq!(judge("null", "x", &["null"]), named("null"));
        assert_eq!(judge("http://any", "x", &["*"]), named("*"));
    }

    #[test]
    fn hosts_that_no_page_can_make_up() {
        let right = |host: &str, names: &[&str]| {
            let names: Vec<String> = names.iter().map(|one| (*one).to_owned()).collect();
            check_host(&headers(&[(header::HOST, host)]), &names).is_ok()
        };
        assert!(check_host(&HeaderMap::new(), &[]).is_ok());
        for host in [
            "localhost",
            "LocalHost:80",
            "localhost.",
            "a.localhost:1",
            "127.0.0.1:8080",
            "10.0.0.7",
            "[::1]:8080",
            "[::1]",
        ] {
            assert!(right(host, &[]), "{host}");
        }
        for host in [
            "",
            "evil.example",
            "evil.example:8080",
            "127.0.0.1.evil.example",
            "localhost.evil.example",
            "[evil.example]",
            "[",
            "\u{fc}",
        ] {
            assert!(!right(host, &[]), "{host}");
        }
        assert!(right("chat.example:80", &["chat.example"]));
        assert!(right("any", &["*"]));
    }

    #[test]
    fn browsers_are_answered() {
        let asks = headers(&[
            (header::ORIGIN, "http://a"),
            (header::ACCESS_CONTROL_REQUEST_METHOD, "POST"),
            (header::ACCESS_CONTROL_REQUEST_HEADERS, "authorization"),
        ]);
        let page = Page::Named(HeaderValue::from_static("http://a"));
        let methods = [Method::POST];
        let answer = preflight(&Method::OPTIONS, &asks, &page, &methods).unwrap();
        assert_eq!(answer.status(), StatusCode::NO_CONTENT);
        let told = answer.headers();
        assert_eq!(told[header::ACCESS_CONTROL_ALLOW_ORIGIN], "http://a");
        assert_eq!(told[header::ACCESS_CONTROL_ALLOW_METHODS], "POST");
        assert_eq!(told[header::ACCESS_CONTROL_ALLOW_HEADERS], "authorization");
        assert_eq!(told[header::VARY], "origin");
        assert!(preflight(&Method::POST, &asks, &page, &methods).is_none());
        assert!(preflight(&Method::OPTIONS, &HeaderMap::new(), &page, &methods).is_none());
        assert!(preflight(&Method::OPTIONS, &asks, &page, &[]).is_none());
        let mut own = HeaderMap::new();
        allow(&mut own, &Page::Own);
        assert!(own.is_empty());
    }
}
