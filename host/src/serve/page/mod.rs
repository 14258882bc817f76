//! The page at `/`: a chat, and what an operator wants to see of backends and devices.
//!
//! Its files are in the program as they are written here; nothing builds them. They ask for nothing but this server's own
//! paths, which the policy that is sent with them has browsers enforce.
//!
//! | question | place |
//! | --- | --- |
//! | what is where | `index.html` |
//! | colours and shapes, light and dark | `style.css` |
//! | what is asked of the server, and how streams are read | `server.js` |
//! | the conversation | `talk.js` |
//! | how a model's text becomes elements | `text.js` |
//! | backends and devices | `panel.js` |
//!
//! Invariant: a model's text is never read as HTML.

use super::errors::Problem;
use axum::body::Body;
use axum::extract::Path;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::Response;
use std::hash::{DefaultHasher, Hasher};

type Answer = Result<Response, Problem>;

/// A file of the page.
struct File {
    name: &'static str,
    kind: &'static str,
    text: &'static str,
}

const HTML: &str = "text/html; charset=utf-8";
const SCRIPT: &str = "text/javascript; charset=utf-8";
const STYLE: &str = "text/css; charset=utf-8";
const IMAGE: &str = "image/svg+xml";

macro_rules! files {
    ($(($name:literal, $kind:ident),)*) => {
        &[$(File { name: $name, kind: $kind, text: include_str!($name) },)*]
    };
}

/// Every file.
const FILES: &[File] = files![
    ("index.html", HTML),
    ("style.css", STYLE),
    ("icon.svg", IMAGE),
    ("theme.js", SCRIPT),
    ("app.js", SCRIPT),
    ("elements.js", SCRIPT),
    ("panel.js", SCRIPT),
    ("server.js", SCRIPT),
    ("talk.js", SCRIPT),
    ("text.js", SCRIPT),
];

/// What is sent with each file. Nothing comes from elsewhere, nothing within the page's text runs, and no other page frames it.
const HEADERS: &[(header::HeaderName, &str)] = &[
    (
        header::CONTENT_SECURITY_POLICY,
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; \
         base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    ),
    (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (header::REFERRER_POLICY, "same-origin"),
    // Kept, but asked for again: a newer program has a newer page.
    (header::CACHE_CONTROL, "no-cache"),
];

/// The page itself.
pub(super) async fn page(headers: HeaderMap) -> Answer {
    answer("index.html", &headers)
}

/// What it consists of.
pub(super) async fn file(Path(name): Path<String>, headers: HeaderMap) -> Answer {
    answer(&name, &headers)
}

fn answer(name: &str, headers: &HeaderMap) -> Answer {
    let file = FILES.iter().find(|file| file.name == name);
    let file = file.ok_or_else(|| Problem::no_path(&format!("/page/{name}")))?;
    Ok(file.answer(headers))
}

impl File {
    /// By which a browser knows whether what it kept is still right.
    fn tag(&self) -> String {
        let mut hasher = DefaultHasher::new();
        hasher.write(self.text.as_bytes());
        format!("\"{:016x}\"", hasher.finish())
    }

    fn answer(&self, request: &HeaderMap) -> Response {
        let tag = self.tag();
        let kept = request.get_all(header::IF_NONE_MATCH).iter();
        let mut kept = kept.filter_map(|tags| tags.to_str().ok());
        let is_kept = kept.any(|tags| {
            let mut tags = tags.split(',').map(str::trim);
            tags.any(|one| one == "*" || one.trim_start_matches("W/") == tag)
        });
        let mut response = match is_kept {
            true => Response::new(Body::empty()),
            false => Response::new(Body::from(self.text)),
        };
        if is_kept {
            *response.status_mut() = StatusCode::NOT_MODIFIED;
        }
        let headers = response.headers_mut();
        for (name, value) in HEADERS {
            headers.insert(name, HeaderValue::from_static(value));
        }
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(self.kind));
        if let Ok(tag) = HeaderValue::try_from(tag) {
            headers.insert(header::ETAG, tag);
        }
        response
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text_of(name: &str) -> &'static str {
        let file = FILES.iter().find(|file| file.name == name);
        file.unwrap_or_else(|| panic!("there is no {name}")).text
    }

    #[test]
    fn what_is_kept_is_not_sent_again() {
        let mut request = HeaderMap::new();
        let first = FILES[0].answer(&request);
        assert_eq!(first.status(), StatusCode::OK);
        let tag = first.headers()[header::ETAG].clone();
        for (kept, status) in [
            (tag.clone(), StatusCode::NOT_MODIFIED),
            (HeaderValue::from_static("*"), StatusCode::NOT_MODIFIED),
            (HeaderValue::from_static("\"other\""), StatusCode::OK),
            (HeaderValue::from_bytes(b"\xff").unwrap(), StatusCode::OK),
        ] {
            request.insert(header::IF_NONE_MATCH, kept);
            assert_eq!(FILES[0].answer(&request).status(), status, "{request:?}");
        }
        let tag = tag.to_str().unwrap();
        let several = format!("\"other\", W/{tag}").parse().unwrap();
        request.insert(header::IF_NONE_MATCH, several);
        let answer = FILES[0].answer(&request);
        assert_eq!(answer.status(), StatusCode::NOT_MODIFIED);
        let policy = &answer.headers()[header::CONTENT_SECURITY_POLICY];
        assert!(policy.to_str().unwrap().starts_with("default-src 'none'"));
    }

    /// Everything that a file names is a file of the page, and none reads text as HTML or asks elsewhere.
    #[test]
    fn files_name_each_other_and_nothing_else() {
        for file in FILES {
            // The name of SVG's elements is no address.
            let text = file.text.replace("http://www.w3.org/2000/svg", "");
            assert!(
                !text.contains("http://") && !text.contains("https://"),
                "{}",
                file.name
            );
            for word in [
                "innerHTML",
                "outerHTML",
                "insertAdjacentHTML",
                "document.write",
                "eval(",
                " style=\"",
            ] {
                assert!(!file.text.contains(word), "{}: {word}", file.name);
            }
            let imports = file
                .text
                .lines()
                .filter_map(|line| line.split_once(" from \"./"));
            for (_, rest) in imports {
                let name = rest.split('"').next().unwrap();
                text_of(name);
            }
        }
        let page = text_of("index.html");
        for attribute in ["href=\"page/", "src=\"page/"] {
            for rest in page.split(attribute).skip(1) {
                text_of(rest.split('"').next().unwrap());
            }
        }
        assert!(page.contains("<noscript>"));
    }
}
