//! HTTP to a server on this machine: one connection a request, closed to cancel.

use crate::sse;
use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::{Method, Request, Response, StatusCode, header};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use std::net::SocketAddr;
use std::ops::ControlFlow;
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::runtime::Runtime;

/// How often a waiting call asks whether it is to stop.
const POLL: Duration = Duration::from_millis(20);
/// Time for a connection to a server on this machine.
const CONNECT: Duration = Duration::from_secs(5);
/// Most bytes of an answer that is read whole.
const MAX_BODY: usize = 256 << 20;

/// Why a request failed.
#[derive(Debug, thiserror::Error)]
pub enum HttpError {
    /// The caller asked to stop.
    #[error("stopped")]
    Stopped,
    /// The connection failed or ended in the middle of the answer.
    #[error("the connection to the server failed: {0}")]
    Connection(String),
    /// The server refused the request.
    #[error("{message}")]
    Refused {
        /// HTTP status.
        status: u16,
        /// The server's name for the kind of error; may be empty.
        kind: String,
        /// In the server's words.
        message: String,
    },
    /// The answer is not what the server should give.
    #[error("an answer that can't be read: {0}")]
    Answer(String),
}

/// A client of one server.
#[derive(Debug)]
pub struct Client {
    address: SocketAddr,
    key: String,
    runtime: Runtime,
}

type Stop<'a> = &'a dyn Fn() -> bool;

impl Client {
    /// A client of the server at `address`, which asks for `key`.
    ///
    /// # Errors
    /// The system gives no thread for the connections.
    pub fn new(address: SocketAddr, key: String) -> std::io::Result<Self> {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("llama-server client")
            .enable_io()
            .enable_time()
            .build()?;
        Ok(Self {
            address,
            key,
            runtime,
        })
    }

    /// `GET`: the answer, as JSON.
    ///
    /// # Errors
    /// See [`HttpError`].
    pub fn get(&self, path: &str, stop: Stop<'_>) -> Result<Value, HttpError> {
        self.run(stop, self.whole(Method::GET, path, Bytes::new()))
    }

    /// `POST` of JSON: the answer, as JSON.
    ///
    /// # Errors
    /// See [`HttpError`].
    pub fn post(&self, path: &str, body: &Value, stop: Stop<'_>) -> Result<Value, HttpError> {
        let body = body.to_string().into();
        self.run(stop, self.whole(Method::POST, path, body))
    }

    /// `POST` of JSON whose answer is a stream of events; each event's JSON goes to `on_event`, until the end of the stream,
    /// `[DONE]`, or `Break`. The connection is closed in any case.
    ///
    /// # Errors
    /// See [`HttpError`]; also where the server sends an event that is an error.
    pub fn stream(
        &self,
        path: &str,
        body: &Value,
        stop: Stop<'_>,
        on_event: &mut dyn FnMut(Value) -> ControlFlow<()>,
    ) -> Result<(), HttpError> {
        let body = body.to_string().into();
        self.run(stop, self.events(path, body, on_event))
    }

    /// Runs a request on the calling thread, and drops it, which closes its connection, once `stop` says so.
    fn run<T>(
        &self,
        stop: Stop<'_>,
        request: impl Future<Output = Result<T, HttpError>>,
    ) -> Result<T, HttpError> {
        let stopped = async {
            let mut poll = tokio::time::interval(POLL);
            loop {
                poll.tick().await;
                if stop() {
                    return;
                }
            }
        };
        self.runtime.block_on(async {
            tokio::select! {
                result = request => result,
                () = stopped => Err(HttpError::Stopped),
            }
        })
    }

    async fn whole(&self, method: Method, path: &str, body: Bytes) -> Result<Value, HttpError> {
        let (answer, _connection) = self.send(method, path, body).await?;
        let bytes = read_all(answer).await?;
        serde_json::from_slice(&bytes).map_err(|error| HttpError::Answer(error.to_string()))
    }

    async fn events(
        &self,
        path: &str,
        body: Bytes,
        on_event: &mut dyn FnMut(Value) -> ControlFlow<()>,
    ) -> Result<(), HttpError> {
        let (mut answer, _connection) = self.send(Method::POST, path, body).await?;
        let mut parser = sse::Parser::default();
        let mut waiting = Vec::new();
        while let Some(frame) = answer.frame().await {
            let frame = frame.map_err(connection)?;
            let Some(bytes) = frame.data_ref() else {
                continue;
            };
            parser
                .push(bytes, |event| waiting.push(event))
                .map_err(|error| HttpError::Answer(error.to_string()))?;
            for event in waiting.drain(..) {
                if event.data == "[DONE]" {
                    return Ok(());
                }
                let value: Value = serde_json::from_str(&event.data)
                    .map_err(|error| HttpError::Answer(error.to_string()))?;
                if event.event == "error" || value.get("error").is_some() {
                    return Err(refused(StatusCode::INTERNAL_SERVER_ERROR, &value));
                }
                if on_event(value).is_break() {
                    return Ok(());
                }
            }
        }
        if parser.is_between_events() {
            Ok(())
        } else {
            Err(HttpError::Connection("it ended within an event".into()))
        }
    }

    /// Sends a request; gives a successful answer, with what keeps its connection going.
    async fn send(
        &self,
        method: Method,
        path: &str,
        body: Bytes,
    ) -> Result<(Response<Incoming>, Connection), HttpError> {
        let stream = tokio::time::timeout(CONNECT, TcpStream::connect(self.address))
            .await
            .map_err(|_| HttpError::Connection("no answer to a connection".into()))?
            .map_err(connection)?;
        let (mut sender, driver) = hyper::client::conn::http1::handshake(TokioIo::new(stream))
            .await
            .map_err(connection)?;
        let driver = Connection(tokio::spawn(async {
            // Its errors reach the request as well.
            let _ = driver.await;
        }));
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header(header::HOST, self.address.to_string())
            .header(header::CONTENT_TYPE, "application/json")
            .header(header::CONNECTION, "close")
            .header(header::AUTHORIZATION, format!("Bearer {}", self.key))
            .body(Full::new(body))
            .map_err(connection)?;
        let answer = sender.send_request(request).await.map_err(connection)?;
        let status = answer.status();
        if status.is_success() {
            return Ok((answer, driver));
        }
        let bytes = read_all(answer).await?;
        let value = serde_json::from_slice(&bytes)
            .unwrap_or_else(|_| Value::String(String::from_utf8_lossy(&bytes).into()));
        Err(refused(status, &value))
    }
}

/// What drives a connection; closes it when dropped.
struct Connection(tokio::task::JoinHandle<()>);

impl Drop for Connection {
    fn drop(&mut self) {
        self.0.abort();
    }
}

async fn read_all(mut answer: Response<Incoming>) -> Result<Vec<u8>, HttpError> {
    let mut bytes = Vec::new();
    while let Some(frame) = answer.frame().await {
        if let Some(data) = frame.map_err(connection)?.data_ref() {
            if bytes.len() + data.len() > MAX_BODY {
                return Err(HttpError::Answer(format!("more than {MAX_BODY} bytes")));
            }
            bytes.extend_from_slice(data);
        }
    }
    Ok(bytes)
}

/// `{"error": {"message", "type"}}`, or whatever else the server says.
fn refused(status: StatusCode, value: &Value) -> HttpError {
    let error = value.get("error").unwrap_or(value);
    let text = |key: &str| error.get(key).and_then(Value::as_str).unwrap_or_default();
    let message = match (text("message"), error) {
        ("", Value::String(text)) => text.clone(),
        ("", other) => other.to_string(),
        (message, _) => message.to_owned(),
    };
    let code = error.get("code").and_then(Value::as_u64);
    HttpError::Refused {
        status: code
            .and_then(|code| u16::try_from(code).ok())
            .unwrap_or(status.as_u16()),
        kind: text("type").to_owned(),
        message: message.split_whitespace().collect::<Vec<_>>().join(" "),
    }
}

fn connection(error: impl std::error::Error) -> HttpError {
    // The innermost cause says what happened; the outer ones only where.
    let mut cause: &dyn std::error::Error = &error;
    while let Some(inner) = cause.source() {
        cause = inner;
    }
    HttpError::Connection(cause.to_string())
}
