//! A server for tests: it listens on the loopback address, answers as a test says, and stops when it is dropped.
//!
//! Answers are written byte by byte as the test likes: wrong ones, slow ones, ones that break off.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Error, Read, Result, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

/// Most bytes of a request that are read.
const MAX_BODY: usize = 16 << 20;

/// A request as it came.
#[derive(Clone, Debug)]
pub struct Request {
    /// `GET`, `POST` …
    pub method: String,
    /// Path and query.
    pub path: String,
    /// Headers, their names in lower case.
    pub headers: BTreeMap<String, String>,
    /// The body.
    pub body: String,
}

/// What answers: it writes the whole answer, head and all, and may break off.
pub type Answer = dyn Fn(&Request, &mut dyn Write) -> Result<()> + Send + Sync;

/// A running server.
#[derive(Debug)]
pub struct Endpoint {
    address: SocketAddr,
    certificate: Option<String>,
    shared: Arc<Shared>,
    accepting: Option<JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct Shared {
    stopping: AtomicBool,
    left: AtomicUsize,
    requests: Mutex<Vec<Request>>,
}

impl Endpoint {
    /// A server over plain HTTP.
    ///
    /// # Panics
    /// The system gives no port.
    pub fn start(
        answer: impl Fn(&Request, &mut dyn Write) -> Result<()> + Send + Sync + 'static,
    ) -> Self {
        Self::with(Arc::new(answer), None)
    }

    /// A server over TLS, with a certificate of its own making for `127.0.0.1` and `localhost`.
    ///
    /// # Panics
    /// The system gives no port.
    pub fn start_tls(
        answer: impl Fn(&Request, &mut dyn Write) -> Result<()> + Send + Sync + 'static,
    ) -> Self {
        Self::with(Arc::new(answer), Some(identity()))
    }

    fn with(answer: Arc<Answer>, identity: Option<Identity>) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
        let address = listener.local_addr().expect("an address");
        let shared = Arc::new(Shared::default());
        let certificate = identity
            .as_ref()
            .map(|identity| identity.certificate.clone());
        let config = identity.map(|identity| identity.config);
        let theirs = shared.clone();
        let accepting = std::thread::spawn(move || {
            for stream in listener.incoming() {
                if theirs.stopping.load(Ordering::Acquire) {
                    return;
                }
                let Ok(stream) = stream else { continue };
                let (shared, answer, config) = (theirs.clone(), answer.clone(), config.clone());
                std::thread::spawn(move || serve(stream, config, &shared, &*answer));
            }
        });
        Self {
            address,
            certificate,
            shared,
            accepting: Some(accepting),
        }
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Its base URL, without a path.
    pub fn url(&self) -> String {
        let scheme = if self.certificate.is_some() {
            "https"
        } else {
            "http"
        };
        format!("{scheme}://{}", self.address)
    }

    /// Its certificate as PEM, where it speaks TLS.
    pub fn certificate(&self) -> Option<&str> {
        self.certificate.as_deref()
    }

    /// The requests until now, in the order in which they came.
    pub fn requests(&self) -> Vec<Request> {
        let requests = &self.shared.requests;
        requests
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// Answers that could not be written to their end, as the client had closed the connection; waits for the first one, for
    /// at most `limit`.
    pub fn left_within(&self, limit: Duration) -> usize {
        let step = Duration::from_millis(5);
        let mut waited = Duration::ZERO;
        while self.shared.left.load(Ordering::Acquire) == 0 && waited < limit {
            std::thread::sleep(step);
            waited += step;
        }
        self.shared.left.load(Ordering::Acquire)
    }
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        self.shared.stopping.store(true, Ordering::Release);
        // Wakes the thread that waits for connections.
        let _ = TcpStream::connect(self.address);
        if let Some(thread) = self.accepting.take() {
            let _ = thread.join();
        }
    }
}

struct Identity {
    certificate: String,
    config: Arc<rustls::ServerConfig>,
}

fn identity() -> Identity {
    let names = vec!["127.0.0.1".to_owned(), "localhost".to_owned()];
    let made = rcgen::generate_simple_self_signed(names).expect("a certificate");
    let key = rustls::pki_types::PrivatePkcs8KeyDer::from(made.signing_key.serialize_der());
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("versions of TLS")
        .with_no_client_auth()
        .with_single_cert(vec![made.cert.der().clone()], key.into())
        .expect("a usable certificate");
    Identity {
        certificate: made.cert.pem(),
        config: Arc::new(config),
    }
}

fn serve(
    stream: TcpStream,
    config: Option<Arc<rustls::ServerConfig>>,
    shared: &Shared,
    answer: &Answer,
) {
    let written = match config {
        None => exchange(BufReader::new(stream), shared, answer).map(drop),
        Some(config) => rustls::ServerConnection::new(config)
            .map_err(Error::other)
            .and_then(|tls| {
                let stream = BufReader::new(rustls::StreamOwned::new(tls, stream));
                let mut stream = exchange(stream, shared, answer)?;
                stream.conn.send_close_notify();
                stream.flush()
            }),
    };
    if written.is_err() {
        shared.left.fetch_add(1, Ordering::AcqRel);
    }
}

fn exchange<S: Read + Write>(
    mut stream: BufReader<S>,
    shared: &Shared,
    answer: &Answer,
) -> Result<S> {
    let request = read(&mut stream)?;
    shared
        .requests
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .push(request.clone());
    let mut stream = stream.into_inner();
    answer(&request, &mut stream)?;
    stream.flush()?;
    Ok(stream)
}

fn read(stream: &mut impl BufRead) -> Result<Request> {
    let mut line = String::new();
    stream.read_line(&mut line)?;
    let mut words = line.split_whitespace().map(str::to_owned);
    let (method, path) = (words.next(), words.next());
    let mut headers = BTreeMap::new();
    loop {
        let mut line = String::new();
        if stream.read_line(&mut line)? == 0 {
            return Err(Error::other("a request that breaks off"));
        }
        let Some((name, value)) = line.split_once(':') else {
            break;
        };
        headers.insert(name.to_ascii_lowercase(), value.trim().to_owned());
    }
    let length = headers
        .get("content-length")
        .and_then(|length| length.parse().ok());
    let mut body = vec![0; length.unwrap_or(0).min(MAX_BODY)];
    stream.read_exact(&mut body)?;
    Ok(Request {
        method: method.unwrap_or_default(),
        path: path.unwrap_or_default(),
        headers,
        body: String::from_utf8_lossy(&body).into_owned(),
    })
}

/// Writes an answer of a status, with further header lines (each ended by `\r\n`), as JSON.
///
/// # Errors
/// The client is gone.
pub fn json(out: &mut dyn Write, status: &str, headers: &str, body: &str) -> Result<()> {
    write!(
        out,
        "HTTP/1.1 {status}\r\ncontent-type: application/json\r\n{headers}content-length: {}\r\n\r\n{body}",
        body.len()
    )
}

/// Writes the head of a stream of events, which goes on until the connection is closed in chunks of [`piece`].
///
/// # Errors
/// The client is gone.
pub fn begin_events(out: &mut dyn Write) -> Result<()> {
    out.write_all(
        b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n",
    )
}

/// Writes a piece of a stream, at once. An empty one is its proper end.
///
/// # Errors
/// The client is gone.
pub fn piece(out: &mut dyn Write, bytes: &[u8]) -> Result<()> {
    write!(out, "{:x}\r\n", bytes.len())?;
    out.write_all(bytes)?;
    out.write_all(b"\r\n")?;
    out.flush()
}

/// Writes a whole stream: head, pieces and end.
///
/// # Errors
/// The client is gone.
pub fn events<'a>(out: &mut dyn Write, pieces: impl IntoIterator<Item = &'a [u8]>) -> Result<()> {
    begin_events(out)?;
    for bytes in pieces {
        if !bytes.is_empty() {
            piece(out, bytes)?;
        }
    }
    piece(out, b"")
}
