//! HTTP to one server: one connection a request, closed to cancel.

use crate::key::Key;
use crate::sse;
use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::{Method, Request, Response, StatusCode, header};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use std::net::SocketAddr;
use std::ops::ControlFlow;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::runtime::Runtime;

/// How often a waiting call asks whether it is to stop.
const POLL: Duration = Duration::from_millis(20);
/// Time for a connection to a server on this machine.
const CONNECT: Duration = Duration::from_secs(5);
/// Most bytes of an answer that is read whole.
const MAX_BODY: usize = 256 << 20;
/// Most bytes of an error that are read, and most characters of its message that are told.
const MAX_ERROR: usize = 64 << 10;
const MAX_MESSAGE: usize = 500;

/// Why a request failed.
#[derive(Debug, thiserror::Error)]
pub enum HttpError {
    /// The caller asked to stop.
    #[error("stopped")]
    Stopped,
    /// The connection failed or ended in the middle of the answer.
    #[error("the connection to the server failed: {0}")]
    Connection(String),
    /// The server's certificate or its TLS is refused.
    #[error("TLS failed: {0}")]
    Tls(String),
    /// Nothing came for this long.
    #[error("no answer within {0} s")]
    TimedOut(f64),
    /// The server refused the request.
    #[error("{message}")]
    Refused {
        /// HTTP status.
        status: u16,
        /// The server's name for the kind of error; may be empty.
        kind: String,
        /// When to try again, as the server says it: seconds, or a date.
        retry_after: Option<String>,
        /// In the server's words.
        message: String,
    },
    /// The answer is not what the server should give.
    #[error("an answer that can't be read: {0}")]
    Answer(String),
}

/// Bytes to and from a server.
pub trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

/// A connection that is being made.
pub type Connecting<'a> =
    Pin<Box<dyn Future<Output = Result<Box<dyn Stream>, HttpError>> + Send + 'a>>;

/// How connections to a server are made.
pub trait Connect: std::fmt::Debug + Send + Sync {
    /// A new connection.
    fn connect(&self) -> Connecting<'_>;
}

/// A plain connection to a server on this machine.
#[derive(Debug)]
struct Local(SocketAddr);

impl Connect for Local {
    fn connect(&self) -> Connecting<'_> {
        Box::pin(async {
            let stream = tokio::time::timeout(CONNECT, TcpStream::connect(self.0))
                .await
                .map_err(|_| HttpError::Connection("no answer to a connection".into()))?
                .map_err(connection)?;
            Ok(Box::new(stream) as Box<dyn Stream>)
        })
    }
}

/// A server, and what it is told of its client.
#[derive(Clone, Debug)]
pub struct Endpoint {
    /// How it is reached.
    pub connect: Arc<dyn Connect>,
    /// Its name and port, as requests state them (`Host`).
    pub host: String,
    /// What stands before the path of every request, such as `/v1`; mostly empty.
    pub base: String,
    /// What it asks for; `None` for nothing.
    pub key: Option<Key>,
    /// Longest time in which nothing comes; `None` waits for as long as it takes.
    pub silence: Option<Duration>,
}

/// A client of one server.
#[derive(Debug)]
pub struct Client {
    endpoint: Endpoint,
    runtime: Runtime,
}

type Stop<'a> = &'a dyn Fn() -> bool;

impl Client {
    /// A client of the server of this machine at `address`, which asks for `key`.
    ///
    /// # Errors
    /// The system gives no thread for the connections.
    pub fn new(address: SocketAddr, key: String) -> std::io::Result<Self> {
        Self::of(Endpoint {
            connect: Arc::new(Local(address)),
            host: address.to_string(),
            base: String::new(),
            key: Key::new(key),
            silence: None,
        })
    }

    /// A client of any server.
    ///
    /// # Errors
    /// The system gives no thread for the connections.
    pub fn of(endpoint: Endpoint) -> std::io::Result<Self> {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("llama-server client")
            .enable_io()
            .enable_time()
            .build()?;
        Ok(Self { endpoint, runtime })
    }

    /// A client of the same server whose paths begin with `base`, such as `/v1`.
    ///
    /// # Errors
    /// The system gives no thread for the connections.
    pub fn below(&self, base: &str) -> std::io::Result<Self> {
        Self::of(Endpoint {
            base: format!("{}{base}", self.endpoint.base),
            ..self.endpoint.clone()
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
    /// `[DONE]`, or `Break`. The connection is closed in any case. Tells whether `[DONE]` was the end.
    ///
    /// # Errors
    /// See [`HttpError`]; also where the server sends an event that is an error.
    pub fn stream(
        &self,
        path: &str,
        body: &Value,
        stop: Stop<'_>,
        on_event: &mut dyn FnMut(Value) -> ControlFlow<()>,
    ) -> Result<bool, HttpError> {
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
        let (bytes, cut) = self.read(answer, MAX_BODY).await?;
        if cut {
            return Err(HttpError::Answer(format!("more than {MAX_BODY} bytes")));
        }
        serde_json::from_slice(&bytes).map_err(|error| HttpError::Answer(error.to_string()))
    }

    async fn events(
        &self,
        path: &str,
        body: Bytes,
        on_event: &mut dyn FnMut(Value) -> ControlFlow<()>,
    ) -> Result<bool, HttpError> {
        let (mut answer, _connection) = self.send(Method::POST, path, body).await?;
        let kind = answer.headers().get(header::CONTENT_TYPE);
        let kind = kind.map_or("nothing", |kind| kind.to_str().unwrap_or("no text"));
        if !kind.to_ascii_lowercase().starts_with("text/event-stream") {
            let found = shortened(kind);
            return Err(HttpError::Answer(format!(
                "{found}, expected text/event-stream"
            )));
        }
        let mut parser = sse::Parser::default();
        let mut waiting = Vec::new();
        while let Some(frame) = self.in_time(answer.frame()).await? {
            let frame = frame.map_err(connection)?;
            let Some(bytes) = frame.data_ref() else {
                continue;
            };
            let parsed = parser.push(bytes, |event| waiting.push(event));
            for event in waiting.drain(..) {
                if event.data.trim() == "[DONE]" {
                    return Ok(true);
                }
                let value: Value = serde_json::from_str(&event.data)
                    .map_err(|error| HttpError::Answer(error.to_string()))?;
                let error = value.get("error").is_some_and(|error| !error.is_null());
                if event.event == "error" || error {
                    let status = StatusCode::INTERNAL_SERVER_ERROR;
                    return Err(self.refused(status, None, &value));
                }
                if on_event(value).is_break() {
                    return Ok(false);
                }
            }
            // After the events that came whole before it.
            parsed.map_err(|error| HttpError::Answer(error.to_string()))?;
        }
        if parser.is_between_events() {
            Ok(false)
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
        let stream = self.endpoint.connect.connect().await?;
        let (mut sender, driver) = hyper::client::conn::http1::handshake(TokioIo::new(stream))
            .await
            .map_err(connection)?;
        let driver = Connection(tokio::spawn(async {
            // Its errors reach the request as well.
            let _ = driver.await;
        }));
        let mut request = Request::builder()
            .method(method)
            .uri(format!("{}{path}", self.endpoint.base))
            .header(header::HOST, &self.endpoint.host)
            .header(header::CONTENT_TYPE, "application/json")
            .header(header::CONNECTION, "close");
        if let Some(key) = &self.endpoint.key {
            request = request.header(header::AUTHORIZATION, key.bearer());
        }
        let request = request.body(Full::new(body)).map_err(connection)?;
        let answer = self
            .in_time(sender.send_request(request))
            .await?
            .map_err(connection)?;
        let status = answer.status();
        if status.is_success() {
            return Ok((answer, driver));
        }
        let header = |name| {
            let value = answer.headers().get(name)?.to_str().ok()?;
            Some(shortened(value))
        };
        let retry_after = header(header::RETRY_AFTER);
        if status.is_redirection() {
            // Followed, it would send prompts and the key to another place than was configured.
            let to = header(header::LOCATION).unwrap_or_else(|| "nowhere".to_owned());
            let value = Value::String(format!("a redirection to {to}, which is not followed"));
            return Err(self.refused(status, retry_after, &value));
        }
        let (bytes, _) = self.read(answer, MAX_ERROR).await?;
        let value = serde_json::from_slice(&bytes)
            .unwrap_or_else(|_| Value::String(String::from_utf8_lossy(&bytes).into()));
        Err(self.refused(status, retry_after, &value))
    }

    /// Waits for at most the time that the server may be silent.
    async fn in_time<T>(&self, wait: impl Future<Output = T>) -> Result<T, HttpError> {
        match self.endpoint.silence {
            None => Ok(wait.await),
            Some(limit) => tokio::time::timeout(limit, wait)
                .await
                .map_err(|_| HttpError::TimedOut(limit.as_secs_f64())),
        }
    }

    /// The body, and whether it is longer than `most` and cut there.
    async fn read(
        &self,
        mut answer: Response<Incoming>,
        most: usize,
    ) -> Result<(Vec<u8>, bool), HttpError> {
        let mut bytes = Vec::new();
        while let Some(frame) = self.in_time(answer.frame()).await? {
            if let Some(data) = frame.map_err(connection)?.data_ref() {
                if bytes.len() + data.len() > most {
                    bytes.extend_from_slice(&data[..most - bytes.len()]);
                    return Ok((bytes, true));
                }
                bytes.extend_from_slice(data);
            }
        }
        Ok((bytes, false))
    }

    /// `{"error": {"message", "type", "code"}}`, or whatever else the server says; never the key, should it repeat that.
    fn refused(&self, status: StatusCode, retry_after: Option<String>, value: &Value) -> HttpError {
        let error = value.get("error").unwrap_or(value);
        let text = |key: &str| error.get(key).and_then(Value::as_str).unwrap_or_default();
        let message = match (text("message"), error) {
            ("", Value::String(text)) => text.clone(),
            ("", Value::Null) => String::new(),
            ("", other) => other.to_string(),
            (message, _) => message.to_owned(),
        };
        let message = match message.trim() {
            "" => status
                .canonical_reason()
                .unwrap_or("no reason given")
                .to_owned(),
            message => message.to_owned(),
        };
        let code = error.get("code").and_then(Value::as_u64);
        let kind = match text("code") {
            "" => text("type"),
            code => code,
        };
        let hidden = |text: &str| match &self.endpoint.key {
            Some(key) => key.hidden_in(text),
            None => text.to_owned(),
        };
        HttpError::Refused {
            status: code
                .and_then(|code| u16::try_from(code).ok())
                .filter(|code| (400..600).contains(code))
                .unwrap_or(status.as_u16()),
            kind: shortened(&hidden(kind)),
            retry_after: retry_after.map(|text| hidden(&text)),
            message: shortened(&hidden(&message)),
        }
    }
}

/// In one line without control characters, cut to what is worth telling.
fn shortened(text: &str) -> String {
    let words = text
        .split(|c: char| c.is_whitespace() || c.is_control())
        .filter(|word| !word.is_empty());
    let line = words.collect::<Vec<_>>().join(" ");
    match line.char_indices().nth(MAX_MESSAGE) {
        Some((end, _)) => format!("{}…", &line[..end]),
        None => line,
    }
}

/// What drives a connection; closes it when dropped.
struct Connection(tokio::task::JoinHandle<()>);

impl Drop for Connection {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// A failure of the connection, by its innermost cause: that says what happened, the outer ones only where.
pub fn connection(error: impl std::error::Error) -> HttpError {
    let mut cause: &dyn std::error::Error = &error;
    while let Some(inner) = cause.source() {
        cause = inner;
    }
    HttpError::Connection(shortened(&cause.to_string()))
}
