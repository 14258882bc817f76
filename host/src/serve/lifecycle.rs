//! From the socket to the end: listen, load, serve, stop.

use super::connection::{connect, raise_limit};
use super::http::{App, Peer};
use super::models;
use super::{Notice, Options, Tell, operator, routes};
use crate::error::{Error, Result, plain};
use crate::registry::{Registry, Watch};
use hyper_util::server::graceful::GracefulShutdown;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::sync::oneshot;

/// Time that replies have to end once they are cut off.
const CUT_TIME: Duration = Duration::from_secs(5);

/// Serves until it is told to stop.
pub(super) fn run(registry: Arc<Registry>, options: Options, tell: Tell) -> Result<()> {
    if let Some(fault) = super::faults(&registry, &options).into_iter().next() {
        return Err(fault);
    }
    raise_limit();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .thread_name("http")
        .enable_all()
        .build()
        .map_err(|error| {
            Error::usage(format!("no threads to serve with: {}", plain(&error)), "")
        })?;
    let app = Arc::new(App::new(
        registry,
        options,
        tell.clone(),
        runtime.handle().clone(),
    )?);
    let result = runtime.block_on(serve(app.clone(), tell));
    // Calls that don't end must not keep the process.
    runtime.shutdown_timeout(Duration::from_secs(1));
    result
}

async fn serve(app: Arc<App>, tell: Tell) -> Result<()> {
    // Signals first: from here on one stops in good order.
    let mut stop = std::pin::pin!(signals::first()?);
    let (host, port) = (&app.options.host, app.options.port);
    let refused = |error: std::io::Error| {
        let message = format!("can't listen on {host}:{port}: {}", plain(&error));
        let action = "choose another --port or --host, or stop what listens there";
        Error::usage(message, action)
    };
    let listener = TcpListener::bind((host.as_str(), port))
        .await
        .map_err(refused)?;
    let address = listener.local_addr().map_err(refused)?;
    if !address.ip().is_loopback() && app.keys.is_none() {
        let note = format!(
            "{} can be reached by others, and asks nobody for a key",
            address.ip()
        );
        tell(Notice::Note(note));
    }
    tell(Notice::Listening {
        address,
        tls: app.tls.is_some(),
    });

    let router = routes::router(app.clone());
    if let Some(folder) = app.models.names().folder() {
        let count = app.models.names().all().len();
        let folder = folder.display();
        let note =
            format!("{count} models to load when they are asked for; the model folder is {folder}");
        tell(Notice::Note(note));
    }
    tokio::spawn(app.models.clone().unload_idle());
    let mut loaded = load(&app, &tell);
    let mut loading = true;
    let connections = GracefulShutdown::new();
    let reason = loop {
        tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((stream, peer)) => connect(&app, &router, stream, Peer(peer), &connections),
                Err(error) => {
                    // Out of files, most likely: those that are open may end.
                    tracing::warn!("a connection is not taken: {}", plain(&error));
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
            },
            result = &mut loaded, if loading => {
                loading = false;
                result.unwrap_or(Ok(()))?;
            }
            signal = &mut stop => break signal,
        }
    };
    app.stop();
    drop(listener);
    tell(Notice::Stopping(reason));
    signals::second_ends();
    let mut ended = std::pin::pin!(connections.shutdown());
    let grace = app.options.grace;
    if tokio::time::timeout(grace, &mut ended).await.is_err() {
        let note = format!("replies that have not ended after {grace:?} are cut off");
        tell(Notice::Note(note));
        app.cut_off();
        let _ = tokio::time::timeout(CUT_TIME, ended).await;
    }
    let models = app.models.clone();
    let closed = tokio::task::spawn_blocking(move || models.close());
    if tokio::time::timeout(CUT_TIME, closed).await.is_err() {
        let note = format!("models that have not closed after {CUT_TIME:?} are left");
        tell(Notice::Note(note));
    }
    Ok(())
}

/// Loads the models on a thread of its own, then watches for changes there.
fn load(app: &Arc<App>, tell: &Tell) -> oneshot::Receiver<Result<()>> {
    let (done, loaded) = oneshot::channel();
    let (app, tell) = (app.clone(), tell.clone());
    let work = move || {
        // Before anything is opened, so that what changes meanwhile is noticed.
        let watch = app
            .options
            .watch
            .0
            .map(|every| (every, Watch::new(app.registry.clone())));
        for served in app.models.names().at_start() {
            if app.is_stopping() {
                return;
            }
            if let Err(error) = models::start(&app.models, &served, &tell) {
                let _ = done.send(Err(error));
                return;
            }
        }
        let _ = done.send(Ok(()));
        if let Some((every, watch)) = watch {
            operator::watch(&app, every, watch, &tell);
        }
    };
    let thread = std::thread::Builder::new().name("loading".to_owned());
    if let Err(error) = thread.spawn(work) {
        // The sender went with the thread that is not there; what is not loaded is not ready.
        tracing::error!("nothing is loaded: {}", plain(&error));
    }
    loaded
}

#[cfg(unix)]
mod signals {
    use crate::error::{Error, Result, plain};
    use tokio::signal::unix::{SignalKind, signal};

    fn failed(error: std::io::Error) -> Error {
        Error::usage(format!("signals can't be caught: {}", plain(&error)), "")
    }

    /// Ends with the name of the first signal that asks to stop.
    pub(super) fn first() -> Result<impl Future<Output = &'static str>> {
        let mut interrupt = signal(SignalKind::interrupt()).map_err(failed)?;
        let mut terminate = signal(SignalKind::terminate()).map_err(failed)?;
        Ok(async move {
            tokio::select! {
                _ = interrupt.recv() => "SIGINT",
                _ = terminate.recv() => "SIGTERM",
            }
        })
    }

    /// From now on a signal ends the process at once.
    pub(super) fn second_ends() {
        tokio::spawn(async {
            let Ok(signal) = first() else { return };
            let code = if signal.await == "SIGINT" { 130 } else { 143 };
            std::process::exit(code);
        });
    }
}

#[cfg(not(unix))]
mod signals {
    use crate::error::Result;

    /// Ends when Ctrl-C is pressed.
    pub(super) fn first() -> Result<impl Future<Output = &'static str>> {
        Ok(async {
            // Where it can't be caught it ends the process by itself.
            let _ = tokio::signal::ctrl_c().await;
            "Ctrl-C"
        })
    }

    /// From now on Ctrl-C ends the process at once.
    pub(super) fn second_ends() {
        tokio::spawn(async {
            if tokio::signal::ctrl_c().await.is_ok() {
                std::process::exit(130);
            }
        });
    }
}
