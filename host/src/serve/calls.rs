//! Calls of a model that are no generations, off the threads that serve.

use super::access::{self, Exchange};
use super::errors::Problem;
use super::http::App;
use super::models::Served;
use crate::error::Result;
use crate::manifest::KeepAlive;
use crate::registry::Model;
use backplane_plugin_api::types::Control;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

/// Whether the client has gone away, or the server ends.
#[derive(Clone)]
pub(super) struct Stop {
    gone: Arc<AtomicBool>,
    app: Arc<App>,
    /// The request that it is for.
    exchange: Option<Arc<Exchange>>,
}

impl Stop {
    /// So many tokens were read for the request.
    pub(super) fn has_read(&self, tokens: u64) {
        if let Some(exchange) = &self.exchange {
            exchange.has_read(tokens);
        }
    }

    /// As the progress of a call asks for it.
    pub(super) fn control(&self) -> Control {
        match self.gone.load(Ordering::Acquire) || self.app.is_cut_off() {
            true => Control::Stop,
            false => Control::Continue,
        }
    }
}

/// Sets it when the client goes away, which drops the handler.
struct Gone(Arc<AtomicBool>);

impl Drop for Gone {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

/// Has a model do something. It counts as one reply.
///
/// # Errors
/// Too much is asked at once, the model is not there, or it failed.
pub(super) async fn call<T: Send + 'static>(
    app: &Arc<App>,
    served: &Arc<Served>,
    work: impl FnOnce(&Model, &Stop) -> Result<T> + Send + 'static,
) -> std::result::Result<T, Problem> {
    call_keeping(app, served, None, work).await
}

/// The same, and says how long the model stays loaded after it.
///
/// # Errors
/// As [`call`].
pub(super) async fn call_keeping<T: Send + 'static>(
    app: &Arc<App>,
    served: &Arc<Served>,
    keep: Option<KeepAlive>,
    work: impl FnOnce(&Model, &Stop) -> Result<T> + Send + 'static,
) -> std::result::Result<T, Problem> {
    if app.is_stopping() {
        return Err(Problem::unavailable("the server is stopping", None));
    }
    let exchange = access::current();
    if let Some(exchange) = &exchange {
        exchange.asks_for(&served.id);
    }
    let since = Instant::now();
    let ready = async {
        let room = app.queue.enter(1)?.room().await?;
        let model = app.models.acquire(served, keep).await?;
        Ok::<_, Problem>((room, model))
    }
    .await;
    if let Some(exchange) = &exchange {
        exchange.waited(since.elapsed());
    }
    let (room, model) = ready?;
    let stop = Stop {
        gone: Arc::default(),
        app: app.clone(),
        exchange,
    };
    if let Some(exchange) = &stop.exchange {
        exchange.series(&served.id, &model.backend());
    }
    let _gone = Gone(stop.gone.clone());
    let app = app.clone();
    let done = tokio::task::spawn_blocking(move || {
        let renewed = app.registry.renew(&model);
        let answer = renewed.and_then(|()| work(&model, &stop));
        model.measure();
        drop((model, room));
        answer
    });
    let answer = done
        .await
        .map_err(|error| Problem::internal(format!("the answer failed: {error}")))?;
    answer.map_err(|error| {
        let exchange = access::current();
        let names = exchange.as_ref().and_then(|exchange| exchange.names());
        let problem = Problem::of(&error, names.as_ref(), None);
        let request = exchange.as_ref().map_or("", |exchange| &exchange.id);
        problem.log(request, &served.id, &error);
        problem
    })
}
