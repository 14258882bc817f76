//! Replies as server-sent events.

use super::errors::Problem;
use super::generation::{Running, Told};
use axum::body::{Body, Bytes, HttpBody};
use axum::http::{HeaderValue, header};
use axum::response::Response;
use hyper::body::Frame;
use serde_json::Value;
use std::collections::VecDeque;
use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};
use tokio::time::{Instant, Interval, interval_at};

/// Puts what generations tell into events.
pub(super) trait Render: Send + Unpin + 'static {
    /// The events of a piece, or of an end.
    fn take(&mut self, told: Told) -> Result<Vec<Value>, Problem>;
    /// The last events, once all choices have ended.
    fn end(&mut self) -> Vec<Value>;
}

/// A reply that streams. What fails before anything was said is an error as any other.
///
/// # Errors
/// The request is refused.
pub(super) async fn respond(
    mut running: Running,
    mut render: impl Render,
) -> Result<Response, Problem> {
    let mut pending = VecDeque::new();
    // A backend that tells nothing while it reads a prompt is not waited for: the client is to know that it is served.
    let quiet = running.quiet();
    let first = tokio::time::timeout(quiet, running.next()).await;
    let mut left = running.count();
    if let Ok(Some(told)) = first {
        left -= usize::from(matches!(told, Told::Done { .. }));
        pending.extend(render.take(told)?.iter().map(event));
    }
    let body = Events {
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
        HeaderValue::from_static("text/event-stream; charset=utf-8"),
    );
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    // Proxies that gather what they pass on are asked not to.
    headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
    Ok(response)
}

fn event(data: &Value) -> Bytes {
    Bytes::from(format!("data: {data}\n\n"))
}

struct Events<R> {
    /// `None` once the end is written: generations that are left are stopped.
    running: Option<Running>,
    render: R,
    pending: VecDeque<Bytes>,
    /// Choices that have not ended.
    left: usize,
    quiet: Interval,
}

impl<R: Render> Events<R> {
    fn take(&mut self, told: Told) {
        let ended = matches!(told, Told::Done { .. });
        match self.render.take(told) {
            Ok(events) => self.pending.extend(events.iter().map(event)),
            Err(problem) => {
                self.pending.push_back(event(&problem.json()));
                self.running = None;
                return;
            }
        }
        self.left = self.left.saturating_sub(usize::from(ended));
    }

    fn end(&mut self) {
        self.running = None;
        let last = self.render.end();
        self.pending.extend(last.iter().map(event));
        self.pending
            .push_back(Bytes::from_static(b"data: [DONE]\n\n"));
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
                    this.pending.push_back(event(&problem.json()));
                    this.running = None;
                }
                Poll::Pending => {
                    if this.quiet.poll_tick(context).is_pending() {
                        return Poll::Pending;
                    }
                    this.pending
                        .push_back(Bytes::from_static(b": still here\n\n"));
                }
            }
        }
    }
}
