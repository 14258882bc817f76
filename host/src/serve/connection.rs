//! One connection: silent, or in TLS, then HTTP.

use super::http::{App, Peer};
use super::tls;
use axum::Router;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::{Service, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::{GracefulShutdown, Watcher};
use hyper_util::service::TowerToHyperService;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;

/// Time that a client has to agree on TLS.
const HANDSHAKE_TIME: Duration = Duration::from_secs(10);

/// A connection that is counted as long as it is open.
struct Open(Arc<App>);

impl Open {
    fn new(app: &Arc<App>) -> Self {
        app.metrics.connections.up();
        Self(app.clone())
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.0.metrics.connections.down();
    }
}

/// Serves one connection on a task of its own.
pub(super) fn connect(
    app: &Arc<App>,
    router: &Router,
    stream: TcpStream,
    peer: Peer,
    connections: &GracefulShutdown,
) {
    // Events are to be sent as they come.
    let _ = stream.set_nodelay(true);
    let router = router.clone();
    let watcher = connections.watcher();
    let open = Open::new(app);
    tokio::spawn(async move {
        let app = &open.0;
        // One that says nothing must not keep the server; hyper does not let go of it before its first request.
        let idle = app.options.idle_time;
        let speaks = tokio::select! {
            speaks = tokio::time::timeout(idle, stream.readable()) => speaks.is_ok(),
            () = app.stopped() => false,
        };
        if !speaks {
            return;
        }
        // On the heap, so that a silent one takes little.
        let served = match &app.tls {
            None => Box::pin(serve(app, stream, router, peer, watcher)).await,
            Some(tls) => Box::pin(secure(app, stream, tls, router, peer, watcher)).await,
        };
        if let Err(why) = served {
            tracing::debug!("{}: {why}", peer.0);
        }
    });
}

async fn secure(
    app: &App,
    mut stream: TcpStream,
    tls: &tls::Tls,
    router: Router,
    peer: Peer,
    watcher: Watcher,
) -> Result<(), String> {
    let mut first = [0];
    let read = stream.peek(&mut first).await;
    if read.map_err(|error| error.to_string())? > 0 && first[0] != tls::HELLO {
        // What is left unread would have the answer lost to a reset.
        let mut sent = vec![0; 16 << 10];
        let _ = stream.try_read(&mut sent);
        let _ = stream.write_all(tls::PLAIN).await;
        let _ = stream.shutdown().await;
        return Err("it does not speak TLS".to_owned());
    }
    let agreed = tokio::select! {
        agreed = tokio::time::timeout(HANDSHAKE_TIME, tls.acceptor().accept(stream)) => agreed,
        () = app.stopped() => return Err("the server stops".to_owned()),
    };
    let stream = agreed
        .map_err(|_| "TLS took too long".to_owned())?
        .map_err(|error| error.to_string())?;
    serve(app, stream, router, peer, watcher).await
}

/// Serves its requests. When replies are cut off, one that has sent no more than a part of its first is left.
async fn serve(
    app: &App,
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    router: Router,
    peer: Peer,
    watcher: Watcher,
) -> Result<(), String> {
    let inner = TowerToHyperService::new(router);
    let asked = Arc::new(AtomicBool::new(false));
    let asks = asked.clone();
    let service = service_fn(move |mut request: hyper::Request<Incoming>| {
        asks.store(true, Ordering::Relaxed);
        request.extensions_mut().insert(peer);
        inner.call(request)
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(app.options.idle_time)
        .serve_connection(TokioIo::new(stream), service);
    let left = async {
        app.cut().await;
        if asked.load(Ordering::Relaxed) {
            std::future::pending().await
        }
    };
    tokio::select! {
        served = watcher.watch(connection) => served.map_err(|error| error.to_string()),
        () = left => Err("the server stops".to_owned()),
    }
}

/// Lets this process have as many files open as the system allows it: each connection is one.
pub(super) fn raise_limit() {
    #[cfg(unix)]
    {
        use rustix::process::{Resource, getrlimit, setrlimit};
        let mut limit = getrlimit(Resource::Nofile);
        if limit.current != limit.maximum {
            limit.current = limit.maximum;
            if let Err(error) = setrlimit(Resource::Nofile, limit) {
                tracing::debug!("the limit of open files stays: {error}");
            }
        }
    }
}
