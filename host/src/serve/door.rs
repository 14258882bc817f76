//! What every request passes on its way in and out: a name, whether it may come in, and what is said of it.

use super::access::{Exchange, REQUEST_ID, request_id};
use super::anthropic;
use super::cors::{self, Page};
use super::errors::{Dialect, Problem};
use super::http::{App, Peer};
use super::keys::{self, Holder};
use super::queries;
use super::routes::{self, Access, ROUTES, Route};
use crate::manifest::MetricsFor;
use axum::body::Body;
use axum::extract::{MatchedPath, Request, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use std::net::SocketAddr;
use std::sync::Arc;

/// Anthropic's name of [`REQUEST_ID`].
const ANTHROPIC_ID: HeaderName = HeaderName::from_static("request-id");

/// That a request's sender may operate the server: as `/admin` asks for it, whatever path it is.
#[derive(Clone, Copy, Debug)]
pub(super) struct Operates;

/// Names the request, lets it in or not, and sees its answer out.
pub(super) async fn pass(
    State(app): State<Arc<App>>,
    mut request: Request,
    next: Next,
) -> Response {
    let path = request.extensions().get::<MatchedPath>();
    let route = path.and_then(|path| routes::find(request.method(), path.as_str()));
    let peer = request.extensions().get::<Peer>().map(|peer| peer.0);
    let exchange = Exchange::new(
        request_id(request.headers()),
        request.method().clone(),
        route,
        dialect(route, request.headers()),
        peer,
        app.metrics.clone(),
        app.options.access_log,
    );
    let page = match judge(&app, request.headers(), peer) {
        Ok(page) => page,
        Err(problem) => return see_out(exchange, problem.into_response(), &Page::Own),
    };
    let methods = methods(route);
    let answer = match cors::preflight(request.method(), request.headers(), &page, &methods) {
        Some(answer) => answer,
        None => match holder(&app, request.headers(), route, peer) {
            Ok(holder) => {
                if refuses_to_operate(&app, request.headers(), peer, holder.as_ref()).is_none() {
                    request.extensions_mut().insert(Operates);
                }
                if let Some(holder) = holder {
                    exchange.has_key(holder.name);
                }
                match read_query(route, exchange.dialect(), &mut request) {
                    Ok(()) => exchange.clone().run(next.run(request)).await,
                    Err(problem) => problem.into_response(),
                }
            }
            Err(problem) => problem.into_response(),
        },
    };
    see_out(exchange, answer, &page)
}

/// Whose clients ask. Those of OpenAI and of Anthropic ask for models by the same path.
fn dialect(route: Option<&Route>, headers: &HeaderMap) -> Dialect {
    match route {
        Some(route) if route.path.starts_with("/v1/models") && anthropic::asks(headers) => {
            Dialect::Anthropic
        }
        Some(route) => route.dialect,
        None => Dialect::OpenAi,
    }
}

fn methods(route: Option<&Route>) -> Vec<Method> {
    let all = ROUTES.iter().filter(|row| {
        // Operating is not for pages.
        route.is_some_and(|route| row.path == route.path) && row.access != Access::Admin
    });
    all.map(|row| row.method.clone()).collect()
}

/// Gives the request what its query asks for. One for no path, or by a method that it doesn't take, is refused for that.
fn read_query(
    route: Option<&Route>,
    dialect: Dialect,
    request: &mut Request,
) -> Result<(), Problem> {
    let method = match *request.method() {
        Method::HEAD => Method::GET,
        ref method => method.clone(),
    };
    if let Some(route) = route.filter(|route| route.method == method) {
        let query = request.uri().query().unwrap_or_default();
        let queried = queries::read(route.path, dialect, query)?;
        request.extensions_mut().insert(queried);
    }
    Ok(())
}

/// Which page asks, if one does.
fn judge(app: &App, headers: &HeaderMap, peer: Option<SocketAddr>) -> Result<Page, Problem> {
    // A page on this machine has no key of its own to give away.
    if app.keys.is_none() && is_here(peer) {
        cors::check_host(headers, &app.options.hosts)?;
    }
    cors::page(headers, &app.options.origins)
}

/// Whose key it has, where it needs one.
fn holder(
    app: &App,
    headers: &HeaderMap,
    route: Option<&Route>,
    peer: Option<SocketAddr>,
) -> Result<Option<Holder>, Problem> {
    let holder = app.keys.as_ref().and_then(|keys| keys.holder(headers));
    let access = route.map_or(Access::Key, |route| route.access);
    let access = match (route.map(|route| route.path), app.options.metrics) {
        (Some("/metrics"), MetricsFor::Off) => return Err(Problem::no_path("/metrics")),
        (Some("/metrics"), MetricsFor::All) => Access::Open,
        _ => access,
    };
    // Who sends a wrong key is to know, also where this machine needs none.
    let wrong = app.keys.is_some() && holder.is_none() && keys::is_sent(headers);
    match access {
        Access::Open => {}
        _ if wrong => return Err(no_key()),
        Access::Key => {
            if app.keys.is_some() && holder.is_none() {
                return Err(no_key());
            }
        }
        Access::Admin => {
            if let Some(why) = refuses_to_operate(app, headers, peer, holder.as_ref()) {
                return Err(Problem::forbidden(why));
            }
        }
    }
    Ok(holder)
}

/// Why who sends this may not operate the server; `None` where they may.
fn refuses_to_operate(
    app: &App,
    headers: &HeaderMap,
    peer: Option<SocketAddr>,
    holder: Option<&Holder>,
) -> Option<&'static str> {
    if headers.contains_key(header::ORIGIN) {
        return Some("/admin is not for web pages");
    }
    // A page may have its own name point to this machine, and then sends no origin with what it reads.
    let here = is_here(peer)
        && !cors::is_sent_on(headers)
        && cors::check_host(headers, &app.options.hosts).is_ok();
    let admin = holder.is_some_and(|holder| holder.admin);
    let message = "/admin is for this machine alone, and for keys marked `admin`";
    (!here && !admin).then_some(message)
}

fn is_here(peer: Option<SocketAddr>) -> bool {
    peer.is_some_and(|peer| peer.ip().to_canonical().is_loopback())
}

fn no_key() -> Problem {
    Problem::no_key(
        "expected a key that is known, as `Authorization: Bearer KEY` or `x-api-key: KEY`",
    )
}

/// Gives an answer its id, an error its shape, and has the body counted.
fn see_out(exchange: Arc<Exchange>, mut answer: Response, page: &Page) -> Response {
    let dialect = exchange.dialect();
    if let Some(problem) = answer.extensions_mut().remove::<Problem>() {
        let text = problem.shaped(dialect, &exchange.id).to_string();
        answer.headers_mut().remove(header::CONTENT_LENGTH);
        *answer.body_mut() = Body::from(text);
    }
    let status = answer.status();
    let headers = answer.headers_mut();
    if status == StatusCode::UNAUTHORIZED {
        headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
    }
    if let Ok(id) = HeaderValue::from_str(&exchange.id) {
        if dialect == Dialect::Anthropic {
            headers.insert(ANTHROPIC_ID, id.clone());
        }
        headers.insert(REQUEST_ID, id);
    }
    cors::allow(headers, page);
    answer.map(|body| exchange.answers(status, body))
}
