//! What is counted, and `GET /metrics`, in Prometheus' text format 0.0.4.
//!
//! Own code rather than a client library: half of the page is what engines tell when they are asked, by names that are not
//! known here, and the rest is few counters. Labels come from what the operator named (models, keys), from the table of
//! routes and from lists of few words, never from a request, so that their number has a limit.

mod page;
mod process;

use super::http::{App, Shared};
use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderValue, header};
use axum::response::Response;
use backplane_plugin_api::types::FinishReason;
use page::{Kind, Page};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Time that engines have to tell their numbers.
const ENGINE_TIME: Duration = Duration::from_secs(2);
/// Most numbers of one engine.
const ENGINE_NUMBERS: usize = 64;

/// Values of labels, in the order of the family's names.
pub(super) type Labels<const N: usize> = [String; N];

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A number that goes up and down.
#[derive(Debug, Default)]
pub(super) struct Gauge(AtomicI64);

impl Gauge {
    pub(super) fn up(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn down(&self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }

    fn get(&self) -> f64 {
        self.0.load(Ordering::Relaxed) as f64
    }
}

/// Counters by their labels.
#[derive(Debug)]
pub(super) struct Counters<const N: usize>(Mutex<BTreeMap<Labels<N>, u64>>);

impl<const N: usize> Default for Counters<N> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<const N: usize> Counters<N> {
    pub(super) fn add(&self, labels: Labels<N>, count: u64) {
        *lock(&self.0).entry(labels).or_default() += count;
    }
}

/// Times, by buckets.
#[derive(Debug)]
pub(super) struct Histogram {
    bounds: &'static [f64],
    /// How many were in each bucket, the last one without a bound.
    counts: Vec<AtomicU64>,
    nanoseconds: AtomicU64,
}

impl Histogram {
    fn new(bounds: &'static [f64]) -> Self {
        let counts = (0..=bounds.len()).map(|_| AtomicU64::new(0)).collect();
        Self {
            bounds,
            counts,
            nanoseconds: AtomicU64::new(0),
        }
    }

    pub(super) fn observe(&self, seconds: f64) {
        let bucket = self.bounds.partition_point(|bound| *bound < seconds);
        self.counts[bucket].fetch_add(1, Ordering::Relaxed);
        let nanoseconds = (seconds.max(0.0) * 1e9) as u64;
        self.nanoseconds.fetch_add(nanoseconds, Ordering::Relaxed);
    }
}

/// Bounds in seconds: of whole requests and of waiting,
const REQUEST_TIMES: &[f64] = &[
    0.001, 0.005, 0.025, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0,
];
/// of first tokens,
const FIRST_TIMES: &[f64] = &[
    0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 10.0, 20.0, 40.0, 80.0, 160.0,
];
/// and of tokens.
const TOKEN_TIMES: &[f64] = &[
    0.001, 0.0025, 0.005, 0.01, 0.015, 0.02, 0.03, 0.04, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1.0,
    2.5,
];

/// What is counted of one model in one backend.
#[derive(Debug)]
pub(super) struct Series {
    pub(super) running: Gauge,
    pub(super) prompt_tokens: AtomicU64,
    pub(super) cached_tokens: AtomicU64,
    pub(super) completion_tokens: AtomicU64,
    pub(super) first_token: Histogram,
    pub(super) next_token: Histogram,
    pub(super) waited: Histogram,
    /// Replies by how they ended.
    ends: Counters<1>,
}

impl Default for Series {
    fn default() -> Self {
        Self {
            running: Gauge::default(),
            prompt_tokens: AtomicU64::new(0),
            cached_tokens: AtomicU64::new(0),
            completion_tokens: AtomicU64::new(0),
            first_token: Histogram::new(FIRST_TIMES),
            next_token: Histogram::new(TOKEN_TIMES),
            waited: Histogram::new(REQUEST_TIMES),
            ends: Counters::default(),
        }
    }
}

impl Series {
    /// A reply has ended.
    pub(super) fn ended(&self, reason: FinishReason) {
        self.count(match reason {
            FinishReason::Cancelled => "cancelled",
            FinishReason::Length | FinishReason::ContextFull => "length",
            _ => "stop",
        });
    }

    /// There is no reply: the request was one that can't be answered, or something here went wrong.
    pub(super) fn failed(&self, refused: bool) {
        self.count(if refused { "refused" } else { "error" });
    }

    fn count(&self, end: &str) {
        self.ends.add([end.to_owned()], 1);
    }
}

/// All that is counted.
#[derive(Debug, Default)]
pub(super) struct Metrics {
    /// By route, status, dialect and key.
    pub(super) requests: Counters<4>,
    pub(super) in_flight: Gauge,
    pub(super) connections: Gauge,
    /// By model.
    pub(super) loads: Counters<1>,
    /// By model.
    pub(super) unloads: Counters<1>,
    durations: Mutex<BTreeMap<&'static str, Arc<Histogram>>>,
    series: Mutex<BTreeMap<Labels<2>, Arc<Series>>>,
}

impl Metrics {
    /// Durations of a route's requests.
    pub(super) fn durations(&self, route: &'static str) -> Arc<Histogram> {
        let mut all = lock(&self.durations);
        let found = all.entry(route);
        found
            .or_insert_with(|| Arc::new(Histogram::new(REQUEST_TIMES)))
            .clone()
    }

    /// What is counted of a model in a backend.
    pub(super) fn series(&self, model: &str, backend: &str) -> Arc<Series> {
        let labels = [model.to_owned(), backend.to_owned()];
        lock(&self.series).entry(labels).or_default().clone()
    }

    /// Of the server itself.
    fn write(&self, page: &mut Page) {
        let version = [("version", env!("CARGO_PKG_VERSION"))];
        page.family("backplane_build_info", Kind::Gauge, "What runs.");
        page.sample("backplane_build_info", &version, 1.0);
        page.counters(
            "backplane_http_requests_total",
            "Requests that have ended; status 499: the client had gone before an answer.",
            ["route", "status", "dialect", "key"],
            &lock(&self.requests.0),
        );
        let name = "backplane_http_request_duration_seconds";
        let durations: Vec<_> = lock(&self.durations)
            .iter()
            .map(|(route, histogram)| (vec![("route", (*route).to_owned())], histogram.clone()))
            .collect();
        let durations = durations
            .iter()
            .map(|(labels, histogram)| (labels.as_slice(), histogram.as_ref()));
        page.histograms(
            name,
            "From a request's head to the end of its answer.",
            durations,
        );
        page.gauge(
            "backplane_http_requests_in_flight",
            "Requests that have not ended.",
            self.in_flight.get(),
        );
        page.gauge(
            "backplane_http_connections",
            "Open connections.",
            self.connections.get(),
        );
        page.counters(
            "backplane_model_loads_total",
            "Times that a model was loaded.",
            ["model"],
            &lock(&self.loads.0),
        );
        page.counters(
            "backplane_model_unloads_total",
            "Times that a model was unloaded.",
            ["model"],
            &lock(&self.unloads.0),
        );
        self.write_series(page);
    }

    /// Of models in backends.
    fn write_series(&self, page: &mut Page) {
        let all: Vec<_> = lock(&self.series)
            .iter()
            .map(|([model, backend], series)| {
                let labels = vec![("model", model.clone()), ("backend", backend.clone())];
                (labels, series.clone())
            })
            .collect();
        type Read = fn(&Series) -> f64;
        let numbers: [(&str, Kind, &str, Read); 4] = [
            (
                "backplane_replies_running",
                Kind::Gauge,
                "Replies that are being made, those that wait in the engine included.",
                |it| it.running.get(),
            ),
            (
                "backplane_prompt_tokens_total",
                Kind::Counter,
                "Tokens of prompts.",
                |it| it.prompt_tokens.load(Ordering::Relaxed) as f64,
            ),
            (
                "backplane_cached_prompt_tokens_total",
                Kind::Counter,
                "Of these, those that were not read again.",
                |it| it.cached_tokens.load(Ordering::Relaxed) as f64,
            ),
            (
                "backplane_completion_tokens_total",
                Kind::Counter,
                "Tokens of replies.",
                |it| it.completion_tokens.load(Ordering::Relaxed) as f64,
            ),
        ];
        for (name, kind, help, read) in numbers {
            page.family(name, kind, help);
            for (labels, series) in &all {
                page.sample(name, labels, read(series));
            }
        }
        let name = "backplane_replies_total";
        page.family(name, Kind::Counter, "Replies that have ended, by how.");
        for (labels, series) in &all {
            for ([end], count) in lock(&series.ends.0).iter() {
                let mut labels = labels.clone();
                labels.push(("end", end.clone()));
                page.sample(name, &labels, *count as f64);
            }
        }
        type Pick = fn(&Series) -> &Histogram;
        let histograms: [(&str, &str, Pick); 3] = [
            (
                "backplane_time_to_first_token_seconds",
                "From a request's head to the first token of a reply.",
                |it| &it.first_token,
            ),
            (
                "backplane_time_between_tokens_seconds",
                "From one token of a reply to the next.",
                |it| &it.next_token,
            ),
            (
                "backplane_queue_time_seconds",
                "Waited before a prompt was begun.",
                |it| &it.waited,
            ),
        ];
        for (name, help, pick) in histograms {
            let each = all
                .iter()
                .map(|(labels, series)| (labels.as_slice(), pick(series)));
            page.histograms(name, help, each);
        }
    }
}

/// Of what is served now: readiness, room, and what the engines tell.
fn write_now(app: &App, engines: &[Engine], page: &mut Page) {
    let most = f64::from(app.queue.most());
    let free = app.queue.free() as f64;
    page.gauge(
        "backplane_reply_slots",
        "Most replies at once, of all models.",
        most,
    );
    page.gauge(
        "backplane_reply_slots_used",
        "Of these, how many are taken.",
        most - free,
    );
    page.gauge(
        "backplane_replies_waiting",
        "Replies that wait for one of these.",
        f64::from(app.queue.waiting()),
    );
    let name = "backplane_model_ready";
    page.family(name, Kind::Gauge, "1 where a model has answered and can.");
    for served in app.models.names().at_start() {
        let ready = app.models.unready(&served).is_none();
        page.sample(name, &[("model", &served.id)], f64::from(u8::from(ready)));
    }
    // One family after the other, as the format wants it; the engines may know different ones.
    let mut families: BTreeMap<&str, Vec<(&Engine, f64)>> = BTreeMap::new();
    for engine in engines {
        for (name, value) in &engine.numbers {
            families.entry(name).or_default().push((engine, *value));
        }
    }
    for (name, values) in families {
        let kind = if name.ends_with("_total") {
            Kind::Counter
        } else {
            Kind::Gauge
        };
        page.family(name, kind, "As the engine tells it.");
        for (engine, value) in values {
            let labels = [("model", &engine.model), ("backend", &engine.backend)];
            page.sample(name, &labels, value);
        }
    }
}

/// What the engine of one model tells.
struct Engine {
    model: String,
    backend: String,
    numbers: BTreeMap<String, f64>,
}

/// Asks the engines of the models that are loaded.
fn engines(app: &App) -> Vec<Engine> {
    let loaded = app.models.iter().filter_map(|served| {
        let model = app.models.loaded(&served)?;
        let numbers = model.metrics().into_iter();
        Some(Engine {
            model: served.id.clone(),
            backend: model.backend(),
            numbers: numbers
                .filter_map(|(name, value)| Some((engine_name(&name)?, value)))
                .take(ENGINE_NUMBERS)
                .collect(),
        })
    });
    loaded.collect()
}

/// The name of a number that an engine tells; `None` where it is none that the format takes.
fn engine_name(name: &str) -> Option<String> {
    let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_';
    let right = (1..=64).contains(&name.len()) && name.bytes().all(plain);
    right.then(|| format!("backplane_engine_{name}"))
}

/// Answers `GET /metrics`.
pub(super) async fn answer(State(app): Shared) -> Response {
    let asked = app.clone();
    // One that hangs must not hide what is known without it.
    let asking = tokio::task::spawn_blocking(move || engines(&asked));
    let engines = tokio::time::timeout(ENGINE_TIME, asking).await;
    let (engines, told) = match engines {
        Ok(Ok(engines)) => (engines, 1.0),
        _ => (Vec::new(), 0.0),
    };
    let mut page = Page::default();
    app.metrics.write(&mut page);
    page.gauge(
        "backplane_engines_tell",
        "0 where the engines did not tell their numbers in time.",
        told,
    );
    write_now(&app, &engines, &mut page);
    process::write(&mut page, app.started);
    let mut response = Response::new(Body::from(page.text()));
    response
        .headers_mut()
        .insert(header::CONTENT_TYPE, HeaderValue::from_static(page::TYPE));
    response
}

#[cfg(test)]
mod tests;
