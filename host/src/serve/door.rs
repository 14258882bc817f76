//! What every request passes on its way in and out.

use super::access::{Exchange, REQUEST_ID, request_id};
use super::errors::{Dialect, Problem};
use super::http::{App, Peer};
use super::routes;
use axum::body::Body;
use axum::extract::{MatchedPath, Request, State};
use axum::http::{HeaderName, HeaderValue, header};
use axum::middleware::Next;
use axum::response::Response;
use std::sync::Arc;

/// Anthropic's name of [`REQUEST_ID`].
const ANTHROPIC_ID: HeaderName = HeaderName::from_static("request-id");

/// Names the request, lets it in or not, and sees its answer out.
pub(super) async fn pass(State(app): State<Arc<App>>, request: Request, next: Next) -> Response {
    let path = request.extensions().get::<MatchedPath>();
    let route = path.and_then(|path| routes::find(request.method(), path.as_str()));
    let peer = request.extensions().get::<Peer>();
    let exchange = Exchange::new(
        request_id(request.headers()),
        request.method().clone(),
        route,
        peer.map(|peer| peer.0),
        app.metrics.clone(),
        app.options.access_log,
    );
    let answer = exchange.clone().run(next.run(request)).await;
    see_out(exchange, answer)
}

/// Gives an answer its id, an error its shape, and has the body counted.
fn see_out(exchange: Arc<Exchange>, mut answer: Response) -> Response {
    let dialect = exchange.dialect();
    if let Some(problem) = answer.extensions_mut().remove::<Problem>() {
        let text = problem.shaped(dialect, &exchange.id).to_string();
        answer.headers_mut().remove(header::CONTENT_LENGTH);
        *answer.body_mut() = Body::from(text);
    }
    if let Ok(id) = HeaderValue::from_str(&exchange.id) {
        if dialect == Dialect::Anthropic {
            answer.headers_mut().insert(ANTHROPIC_ID, id.clone());
        }
        answer.headers_mut().insert(REQUEST_ID, id);
    }
    let status = answer.status();
    answer.map(|body| exchange.answers(status, body))
}
