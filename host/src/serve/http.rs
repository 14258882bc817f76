//! What all requests share.

use super::errors::Problem;
use super::keys::Keys;
use super::metrics::Metrics;
use super::models::Models;
use super::queue::Queue;
use super::tls::Tls;
use super::{Notice, Options, Tell};
use crate::registry::Registry;
use axum::body::{Body, Bytes, to_bytes};
use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::Response;
use serde_json::{Map, Value};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime};
use tokio::sync::watch;

/// Time in which a request has to be whole.
const BODY_TIME: Duration = Duration::from_secs(60);

/// What all requests share.
pub(super) struct App {
    pub(super) registry: Arc<Registry>,
    pub(super) options: Options,
    /// Who is told.
    pub(super) tell: Tell,
    pub(super) models: Arc<Models>,
    /// Who may ask; `None` lets all.
    pub(super) keys: Option<Keys>,
    pub(super) tls: Option<Tls>,
    /// What is counted.
    pub(super) metrics: Arc<Metrics>,
    /// When it was started, in seconds since 1970.
    pub(super) started: u64,
    /// Room for replies.
    pub(super) queue: Arc<Queue>,
    /// Set when no request is taken any more.
    stopping: watch::Sender<bool>,
    /// Set when replies that run are cut off.
    cut_off: watch::Sender<bool>,
}

impl App {
    pub(super) fn new(
        registry: Arc<Registry>,
        options: Options,
        tell: Tell,
        runtime: tokio::runtime::Handle,
    ) -> crate::error::Result<Self> {
        let keys = options.api_keys.as_deref().map(Keys::open).transpose()?;
        let keys = keys.map(|(keys, note)| {
            note.into_iter().for_each(|note| tell(Notice::Note(note)));
            keys
        });
        let tls = Tls::open(&options)?;
        let now = SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        let metrics: Arc<Metrics> = Arc::default();
        let models = Models::new(
            registry.clone(),
            &options,
            tell.clone(),
            metrics.clone(),
            runtime,
        )?;
        Ok(Self {
            registry,
            models,
            keys,
            tls,
            metrics,
            started: now.map_or(0, |now| now.as_secs()),
            queue: Queue::new(options.replies, options.queue, options.queue_time),
            stopping: watch::Sender::new(false),
            cut_off: watch::Sender::new(false),
            options,
            tell,
        })
    }

    /// What tells whether a file of keys or certificates is another one.
    pub(super) fn stamps(&self) -> Vec<Option<(SystemTime, u64)>> {
        let options = &self.options;
        let files = [
            &options.api_keys,
            &options.tls_certificate,
            &options.tls_key,
            &options.tls_client_authority,
        ];
        let stamp = |file: &PathBuf| {
            let about = std::fs::metadata(file).ok()?;
            Some((about.modified().ok()?, about.len()))
        };
        files.into_iter().flatten().map(stamp).collect()
    }

    /// Reads the files of the door again; what is wrong leaves them as they were.
    ///
    /// # Errors
    /// One can't be read, or is wrong.
    pub(super) fn reread(&self) -> crate::error::Result<()> {
        let keys = self.keys.as_ref().map(Keys::reread).transpose()?;
        if let Some(note) = keys.flatten() {
            (self.tell)(Notice::Note(note));
        }
        let tls = self.tls.as_ref().map(Tls::reread).transpose()?;
        if tls == Some(true) {
            let note = "new connections get the new certificate".to_owned();
            (self.tell)(Notice::Note(note));
        }
        Ok(())
    }

    pub(super) fn stop(&self) {
        self.stopping.send_replace(true);
    }

    pub(super) fn is_stopping(&self) -> bool {
        *self.stopping.borrow()
    }

    /// Ends when the server is to stop.
    pub(super) async fn stopped(&self) {
        let mut stopping = self.stopping.subscribe();
        // The sender is here as long as this is.
        let _ = stopping.wait_for(|stopping| *stopping).await;
    }

    pub(super) fn cut_off(&self) {
        self.cut_off.send_replace(true);
    }

    /// Ends when replies are cut off.
    pub(super) async fn cut(&self) {
        let mut cut = self.cut_off.subscribe();
        let _ = cut.wait_for(|cut| *cut).await;
    }

    pub(super) fn is_cut_off(&self) -> bool {
        *self.cut_off.borrow()
    }
}

/// Who sent a request.
#[derive(Clone, Copy, Debug)]
pub(super) struct Peer(pub(super) SocketAddr);

/// The state, as handlers take it.
pub(super) type Shared = State<Arc<App>>;

/// A JSON answer.
pub(super) fn json(status: StatusCode, value: &Value) -> Response {
    json_text(status, value.to_string())
}

/// An answer of JSON that is written already.
pub(super) fn json_text(status: StatusCode, text: String) -> Response {
    let mut response = Response::new(Body::from(text));
    *response.status_mut() = status;
    let kind = HeaderValue::from_static("application/json");
    response.headers_mut().insert(header::CONTENT_TYPE, kind);
    response
}

/// The JSON object of a request.
///
/// # Errors
/// It is packed, too large, too slow, or no JSON object.
pub(super) async fn read(app: &App, request: Request) -> Result<Map<String, Value>, Problem> {
    if let Some(encoding) = packed(request.headers()) {
        return Err(Problem::packed(&encoding));
    }
    let limit = usize::try_from(app.options.body_limit.0).unwrap_or(usize::MAX);
    let stated = request.headers().get(header::CONTENT_LENGTH);
    let stated = stated.and_then(|length| length.to_str().ok()?.parse::<u64>().ok());
    if stated.is_some_and(|stated| stated > limit as u64) {
        return Err(Problem::too_large(limit));
    }
    let body = tokio::time::timeout(BODY_TIME, to_bytes(request.into_body(), limit));
    let body = tokio::select! {
        body = body => body,
        () = app.cut() => return Err(Problem::unavailable("the server is stopping", None)),
    };
    let bytes: Bytes =
        body.map_err(|_| Problem::slow())?
            .map_err(|error| match is_over_limit(&error) {
                true => Problem::too_large(limit),
                false => Problem::invalid(format!("the request can't be read: {error}")),
            })?;
    let value: Value = serde_json::from_slice(&bytes)
        .map_err(|error| Problem::invalid(format!("the request is no JSON: {error}")))?;
    match value {
        Value::Object(object) => Ok(object),
        _ => Err(Problem::invalid("the request is no JSON object")),
    }
}

/// How a body is packed, where it is.
fn packed(headers: &HeaderMap) -> Option<String> {
    let mut all = headers.get_all(header::CONTENT_ENCODING).iter();
    let plain = |value: &&HeaderValue| value.as_bytes().eq_ignore_ascii_case(b"identity");
    let found = all.find(|value| !value.is_empty() && !plain(value))?;
    Some(String::from_utf8_lossy(found.as_bytes()).into_owned())
}

/// Whether a body was longer than it may be: the innermost error says so by its words alone.
fn is_over_limit(error: &axum::Error) -> bool {
    let mut next: Option<&dyn std::error::Error> = Some(error);
    while let Some(error) = next {
        if error.to_string().contains("length limit exceeded") {
            return true;
        }
        next = error.source();
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packed_bodies_are_known_by_their_encoding() {
        let of = |value: &'static str| {
            let value = HeaderValue::from_static(value);
            packed(&HeaderMap::from_iter([(header::CONTENT_ENCODING, value)]))
        };
        assert_eq!(packed(&HeaderMap::new()), None);
        assert_eq!((of("identity"), of("Identity"), of("")), (None, None, None));
        assert_eq!(of("gzip").as_deref(), Some("gzip"));
        assert_eq!(of("zstd, gzip").as_deref(), Some("zstd, gzip"));
        let problem = Problem::packed("gzip").json();
        let message = problem["error"]["message"].as_str();
        assert_eq!(
            message,
            Some("the request is packed as \"gzip\": send it as it is")
        );
    }
}
