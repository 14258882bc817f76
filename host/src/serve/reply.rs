//! The one way from a request to its answer: generations are started, and a dialect's [`Render`] puts what they tell into
//! its shape, as a whole or as it comes.

use super::access::{self, Exchange};
use super::errors::Problem;
use super::generation::{self, Answer, Job, Running, Told};
use super::http::{self, App};
use super::models::Served;
use crate::manifest::KeepAlive;
use axum::body::{Body, Bytes, HttpBody};
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::Response;
use hyper::body::Frame;
use serde_json::Value;
use std::collections::VecDeque;
use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use tokio::time::{Instant, Interval, interval_at};

/// How the events of a dialect are written.
#[derive(Clone, Copy)]
pub(super) struct Framing {
    pub(super) content_type: &'static str,
    pub(super) write: fn(&Value) -> String,
    /// What is sent where nothing else is for a while; `None` where [`Render::quiet`] says it.
    pub(super) quiet: Option<&'static [u8]>,
    /// What comes after the last event.
    pub(super) end: &'static [u8],
}

/// Server-sent events, and a mark after the last.
pub(super) const EVENTS: Framing = Framing {
    content_type: "text/event-stream; charset=utf-8",
    write: |data| format!("data: {data}\n\n"),
    quiet: Some(b": still here\n\n"),
    end: b"data: [DONE]\n\n",
};

/// Server-sent events that are named by their type.
pub(super) const NAMED: Framing = Framing {
    write: |data| {
        let name = data["type"].as_str().unwrap_or("message");
        format!("event: {name}\ndata: {data}\n\n")
    },
    end: b"",
    ..EVENTS
};

/// A line of JSON for each event.
pub(super) const LINES: Framing = Framing {
    content_type: "application/x-ndjson",
    write: |data| format!("{data}\n"),
    quiet: None,
    end: b"",
};

/// Puts what generations tell into a dialect's shape.
pub(super) trait Render: Send + Unpin + 'static {
    /// How its events are written.
    fn framing(&self) -> Framing;
    /// An event that says nothing, where nothing else is sent for a while and its framing has no comments.
    fn quiet(&self) -> Option<Value> {
        None
    }
    /// The answer as a whole.
    fn whole(&mut self, answers: &[Answer]) -> Value;
    /// The events of a piece, or of an end.
    fn take(&mut self, told: Told) -> Result<Vec<Value>, Problem>;
    /// The last events, once all choices have ended.
    fn end(&mut self) -> Vec<Value>;
    /// The events that say that the request of this id has failed.
    fn failed(&mut self, problem: &Problem, request: &str) -> Vec<Value>;
}

/// Starts generations, and answers with what they say.
///
/// # Errors
/// The request is refused, or failed before anything was sent.
pub(super) async fn send(
    app: &Arc<App>,
    served: &Arc<Served>,
    jobs: Vec<Job>,
    stream: bool,
    render: impl Render,
) -> Result<Response, Problem> {
    send_keeping(app, served, None, jobs, stream, render).await
}

/// The same, and says how long the model stays loaded after it.
///
/// # Errors
/// As [`send`].
pub(super) async fn send_keeping(
    app: &Arc<App>,
    served: &Arc<Served>,
    keep: Option<KeepAlive>,
    jobs: Vec<Job>,
    stream: bool,
    mut render: impl Render,
) -> Result<Response, Problem> {
    let running = generation::start(app, served, keep, jobs, stream)?;
    if stream {
        return respond(running, render).await;
    }
    let answers = running.answers().await?;
    Ok(http::json(StatusCode::OK, &render.whole(&answers)))
}

/// A reply that streams. What fails before anything was said is an error as any other.
///
/// # Errors
/// The request is refused.
async fn respond(mut running: Running, mut render: impl Render) -> Result<Response, Problem> {
    let mut pending = VecDeque::new();
    // A backend that tells nothing while it reads a prompt is not waited for: the client is to know that it is served.
    let quiet = running.quiet();
    let first = tokio::time::timeout(quiet, running.next()).await;
    let mut left = running.count();
    if let Ok(Some(told)) = first {
        left -= usize::from(matches!(told, Told::Done { .. }));
        pending.extend(render.take(told)?);
    }
    let framing = render.framing();
    let pending = pending.iter().map(|data| event(framing, data)).collect();
    let body = Events {
        framing,
        exchange: access::current(),
        running: Some(running),
        render,
        pending,
        left,
        quiet: interval_at(Instant::now() + quiet, quiet),
    };
    let mut response = Response::new(Body::new(body));
    let headers = response.headers_mut();
    headers.insert(
        header::CONTENT_TYPE,
        HeaderValue::from_static(framing.content_type),
    );
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    // Proxies that gather what they pass on are asked not to.
    headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
    Ok(response)
}

fn event(framing: Framing, data: &Value) -> Bytes {
    Bytes::from((framing.write)(data))
}

struct Events<R> {
    framing: Framing,
    /// The request.
    exchange: Option<Arc<Exchange>>,
    /// `None` once the end is written: generations that are left are stopped.
    running: Option<Running>,
    render: R,
    pending: VecDeque<Bytes>,
    /// Choices that have not ended.
    left: usize,
    quiet: Interval,
}

impl<R: Render> Events<R> {
    fn push(&mut self, events: &[Value]) {
        let framing = self.framing;
        let events = events.iter().map(|data| event(framing, data));
        self.pending.extend(events);
    }

    fn take(&mut self, told: Told) {
        let ended = matches!(told, Told::Done { .. });
        match self.render.take(told) {
            Ok(events) => self.push(&events),
            Err(problem) => return self.fail(&problem),
        }
        self.left = self.left.saturating_sub(usize::from(ended));
    }

    fn end(&mut self) {
        self.running = None;
        let last = self.render.end();
        self.push(&last);
        if !self.framing.end.is_empty() {
            self.pending.push_back(Bytes::from_static(self.framing.end));
        }
    }

    fn fail(&mut self, problem: &Problem) {
        self.running = None;
        let exchange = self.exchange.as_deref();
        if let Some(exchange) = exchange {
            exchange.fails();
        }
        let request = exchange.map_or("", |exchange| &exchange.id);
        let last = self.render.failed(problem, request);
        self.push(&last);
    }
}

impl<R: Render> HttpBody for Events<R> {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let this = self.get_mut();
        loop {
            if let Some(bytes) = this.pending.pop_front() {
                this.quiet.reset();
                return Poll::Ready(Some(Ok(Frame::data(bytes))));
            }
            let Some(running) = &mut this.running else {
                return Poll::Ready(None);
            };
            if this.left == 0 {
                this.end();
                continue;
            }
            match running.poll_next(context) {
                Poll::Ready(Some(told)) => this.take(told),
                Poll::Ready(None) => {
                    let problem = Problem::internal("a reply has ended without an end");
                    this.fail(&problem);
                }
                Poll::Pending => {
                    if this.quiet.poll_tick(context).is_pending() {
                        return Poll::Pending;
                    }
                    match this.framing.quiet {
                        Some(quiet) => this.pending.push_back(Bytes::from_static(quiet)),
                        None => {
                            let quiet: Vec<Value> = this.render.quiet().into_iter().collect();
                            this.push(&quiet);
                        }
                    }
                }
            }
        }
    }
}
