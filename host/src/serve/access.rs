//! What is known of a request while it is served, and told when nothing of it is left: one line of the access log, and counts.
//!
//! Invariant: no text of a prompt, a reply or a key is kept here.

use super::errors::Dialect;
use super::fields::Names;
use super::metrics::{Labels, Metrics, Series};
use super::routes::Route;
use crate::registry::Reply;
use axum::body::{Body, Bytes, HttpBody};
use axum::http::{HeaderMap, HeaderName, Method, StatusCode};
use hyper::body::{Frame, SizeHint};
use std::hash::{BuildHasher, RandomState};
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

/// The header with a request's id.
pub(super) const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
/// Most bytes of an id that a client gives.
const ID_BYTES: usize = 128;

tokio::task_local! {
    static CURRENT: Arc<Exchange>;
}

/// The request that this task answers.
pub(super) fn current() -> Option<Arc<Exchange>> {
    CURRENT.try_with(Arc::clone).ok()
}

/// An id that nobody can guess: random by the seeds of hash maps.
pub(super) fn random_id() -> String {
    let random = || RandomState::new().hash_one(0);
    format!("{:016x}{:016x}", random(), random())
}

/// The id that the client gave, where it is one that can stand in a line; else a new one.
pub(super) fn request_id(headers: &HeaderMap) -> String {
    let given = headers.get(REQUEST_ID).and_then(|id| id.to_str().ok());
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.:/+=@".contains(&byte);
    given
        .filter(|id| (1..=ID_BYTES).contains(&id.len()) && id.bytes().all(plain))
        .map_or_else(|| format!("req_{}", random_id()), str::to_owned)
}

/// A request, from its head to the last byte of its answer and the end of the last generation for it.
pub(super) struct Exchange {
    pub(super) id: String,
    pub(super) begun: Instant,
    pub(super) method: Method,
    pub(super) route: Option<&'static Route>,
    dialect: Dialect,
    peer: Option<SocketAddr>,
    metrics: Arc<Metrics>,
    /// Whether a line is written.
    logged: bool,
    found: Mutex<Found>,
}

/// What comes to be known.
#[derive(Default)]
struct Found {
    key: Option<Arc<str>>,
    status: Option<StatusCode>,
    sent: u64,
    /// When the answer was sent, or its client had gone.
    ended: Option<Instant>,
    /// Whether all of the answer was sent.
    whole: bool,
    /// Whether a reply to it failed: the status of a stream does not tell.
    failed: bool,
    /// What its fields are called.
    names: Option<Names>,
    model: Option<(String, String)>,
    prompt_tokens: u64,
    cached_tokens: u64,
    completion_tokens: u64,
    queue_s: f64,
    first_token: Option<Duration>,
}

impl Exchange {
    pub(super) fn new(
        id: String,
        method: Method,
        route: Option<&'static Route>,
        dialect: Dialect,
        peer: Option<SocketAddr>,
        metrics: Arc<Metrics>,
        logged: bool,
    ) -> Arc<Self> {
        metrics.in_flight.up();
        Arc::new(Self {
            id,
            begun: Instant::now(),
            method,
            route,
            dialect,
            peer,
            metrics,
            logged,
            found: Mutex::default(),
        })
    }

    /// How its errors look.
    pub(super) fn dialect(&self) -> Dialect {
        self.dialect
    }

    fn found(&self) -> MutexGuard<'_, Found> {
        self.found.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whose key it came with.
    pub(super) fn has_key(&self, name: Arc<str>) {
        self.found().key = Some(name);
    }

    /// Its fields are read.
    pub(super) fn asks(&self, names: Names) {
        self.found().names = Some(names);
    }

    /// What its fields are called; `None` before they are read.
    pub(super) fn names(&self) -> Option<Names> {
        self.found().names.clone()
    }

    /// Which model it asks for.
    pub(super) fn asks_for(&self, model: &str) {
        let mut found = self.found();
        found
            .model
            .get_or_insert_with(|| (model.to_owned(), String::new()));
    }

    /// It has waited so long, for room and its model.
    pub(super) fn waited(&self, time: Duration) {
        let mut found = self.found();
        found.queue_s = found.queue_s.max(time.as_secs_f64());
    }

    /// What its generations are counted by.
    pub(super) fn series(&self, model: &str, backend: &str) -> Arc<Series> {
        self.found().model = Some((model.to_owned(), backend.to_owned()));
        self.metrics.series(model, backend)
    }

    /// Tokens were read for it, and no reply made.
    pub(super) fn has_read(&self, tokens: u64) {
        let mut found = self.found();
        found.prompt_tokens += tokens;
        if let Some((model, backend)) = &found.model {
            let series = self.metrics.series(model, backend);
            series.prompt_tokens.fetch_add(tokens, Ordering::Relaxed);
        }
    }

    /// The first token of a reply to it has come.
    pub(super) fn first_token(&self, after: Duration) {
        self.found().first_token.get_or_insert(after);
    }

    /// A reply to it has ended.
    pub(super) fn took(&self, reply: &Reply) {
        let completion = &reply.completion;
        let mut found = self.found();
        found.prompt_tokens += completion.prompt_tokens;
        found.cached_tokens += completion.cached_tokens;
        found.completion_tokens += completion.completion_tokens;
        found.queue_s = found.queue_s.max(completion.queue_s);
    }

    /// A reply to it has failed, after so many tokens of its prompt and of its own.
    pub(super) fn lost(&self, prompt_tokens: u64, completion_tokens: u64) {
        let mut found = self.found();
        found.prompt_tokens += prompt_tokens;
        found.completion_tokens += completion_tokens;
    }

    /// A reply to it fails, which may have begun as one that is well.
    pub(super) fn fails(&self) {
        self.found().failed = true;
    }

    /// Runs what answers it.
    pub(super) async fn run<T>(self: Arc<Self>, answering: impl Future<Output = T>) -> T {
        CURRENT.scope(self, answering).await
    }

    /// The answer's head is there; its body is counted as it is sent.
    pub(super) fn answers(self: Arc<Self>, status: StatusCode, body: Body) -> Body {
        self.found().status = Some(status);
        Body::new(Counted {
            body,
            exchange: self,
            sent: 0,
            whole: false,
        })
    }
}

impl Drop for Exchange {
    fn drop(&mut self) {
        self.metrics.in_flight.down();
        let found = self.found.get_mut();
        let found = found.unwrap_or_else(PoisonError::into_inner);
        // No answer: its client was gone before there was one. The number is the one that others use for it.
        let gone = found.status.is_none() || !found.whole;
        let status = found.status.map_or(499, |status| status.as_u16());
        let took = found.ended.unwrap_or_else(Instant::now) - self.begun;
        let route = self.route.map_or("other", |route| route.path);
        let key = found.key.as_deref().unwrap_or_default();
        let dialect = self.route.map_or("none", |_| self.dialect.name());
        let labels: Labels<4> = [
            route.to_owned(),
            status.to_string(),
            dialect.to_owned(),
            key.to_owned(),
        ];
        self.metrics.requests.add(labels, 1);
        self.metrics.durations(route).observe(took.as_secs_f64());
        if !self.logged {
            return;
        }
        let (model, backend) = found.model.take().unwrap_or_default();
        tracing::info!(
            target: "access",
            request = %self.id,
            peer = %self.peer.map_or_else(String::new, |peer| peer.to_string()),
            key,
            method = %known(&self.method),
            route,
            status,
            gone,
            failed = found.failed,
            model,
            backend,
            prompt_tokens = found.prompt_tokens,
            cached_tokens = found.cached_tokens,
            completion_tokens = found.completion_tokens,
            queue_s = rounded(found.queue_s),
            first_token_s = found.first_token.map(|first| rounded(first.as_secs_f64())),
            seconds = rounded(took.as_secs_f64()),
            bytes = found.sent,
        );
    }
}

/// To a tenth of a millisecond.
fn rounded(seconds: f64) -> f64 {
    (seconds * 1e4).round() / 1e4
}

/// A method that is known, by its name: others are the client's to invent.
fn known(method: &Method) -> &str {
    match *method {
        Method::GET
        | Method::POST
        | Method::HEAD
        | Method::OPTIONS
        | Method::PUT
        | Method::DELETE
        | Method::PATCH => method.as_str(),
        _ => "other",
    }
}

/// A body whose bytes are counted.
struct Counted {
    body: Body,
    exchange: Arc<Exchange>,
    sent: u64,
    whole: bool,
}

impl HttpBody for Counted {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let this = self.get_mut();
        let polled = Pin::new(&mut this.body).poll_frame(context);
        match &polled {
            Poll::Ready(Some(Ok(frame))) => {
                this.sent += frame.data_ref().map_or(0, |data| data.len() as u64);
                this.whole = this.body.is_end_stream();
            }
            Poll::Ready(None) => this.whole = true,
            Poll::Ready(Some(Err(_))) | Poll::Pending => {}
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        // The answer to HEAD, and one without a body, is not asked for its bytes.
        let silent = self.exchange.method == Method::HEAD || self.body.is_end_stream();
        let mut found = self.exchange.found();
        found.sent = self.sent;
        found.whole = self.whole || silent;
        found.ended = Some(Instant::now());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::http::HeaderValue;

    #[test]
    fn ids_that_can_stand_in_a_line_are_kept() {
        let of = |value: &[u8]| {
            let mut headers = HeaderMap::new();
            headers.insert(REQUEST_ID, HeaderValue::from_bytes(value).unwrap());
            request_id(&headers)
        };
        for sane in ["a", "req_1-2.3:4/5+6=@", &"x".repeat(128)] {
            assert_eq!(of(sane.as_bytes()), *sane);
        }
        for other in [
            &b""[..],
            b"a b",
            b"a\"b",
            b"a\tb",
            "ü".as_bytes(),
            &[b'x'; 129],
            b"\xff",
        ] {
            assert!(of(other).starts_with("req_"), "{other:?}");
        }
        let fresh = request_id(&HeaderMap::new());
        assert_eq!(fresh.len(), 36);
        assert_ne!(fresh, request_id(&HeaderMap::new()));
    }
}
