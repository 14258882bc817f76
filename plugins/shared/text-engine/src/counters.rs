//! The numbers a loaded model keeps.

use crate::pages::PageCounts;
use backplane_plugin_api::types::Metrics;
use std::sync::atomic::{AtomicU64, Ordering};

/// Counters and gauges, written by the engine thread.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) tokens_prompt: AtomicU64,
    pub(crate) tokens_generated: AtomicU64,
    pub(crate) prefix_cached_tokens: AtomicU64,
    pub(crate) requests: AtomicU64,
    pub(crate) cancelled: AtomicU64,
    pub(crate) steps: AtomicU64,
    /// Texts that had to give their pages back, and tokens that were computed again for it.
    pub(crate) preempted: AtomicU64,
    pub(crate) recomputed: AtomicU64,
    /// Tokens of drafts that were verified, and those that came true.
    pub(crate) drafted: AtomicU64,
    pub(crate) accepted: AtomicU64,
    pub(crate) page_bytes: AtomicU64,
    pub(crate) page_tokens: AtomicU64,
    pub(crate) buffer_bytes: AtomicU64,
    running: AtomicU64,
    waiting: AtomicU64,
    pages_total: AtomicU64,
    pages_used: AtomicU64,
    pages_cached: AtomicU64,
    pages_touched: AtomicU64,
}

impl Counters {
    /// Sets the gauges.
    pub(crate) fn gauges(&self, running: usize, waiting: usize, pages: PageCounts) {
        let set = |gauge: &AtomicU64, value: usize| gauge.store(value as u64, Ordering::Relaxed);
        set(&self.running, running);
        set(&self.waiting, waiting);
        set(&self.pages_total, pages.total);
        set(&self.pages_used, pages.used);
        set(&self.pages_cached, pages.cached);
        set(&self.pages_touched, pages.touched);
    }

    /// All numbers by name. `kv_bytes` is what pages ever written take; `kv_bytes_limit` what the whole pool would, and
    /// `kv_tokens_limit` for how many tokens that is; `buffer_bytes` what is computed in takes at most.
    pub(crate) fn metrics(&self) -> Metrics {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed) as f64;
        let page_bytes = get(&self.page_bytes);
        [
            ("tokens_prompt_total", get(&self.tokens_prompt)),
            ("tokens_generated_total", get(&self.tokens_generated)),
            (
                "prefix_cached_tokens_total",
                get(&self.prefix_cached_tokens),
            ),
            ("requests_total", get(&self.requests)),
            ("requests_cancelled_total", get(&self.cancelled)),
            ("steps_total", get(&self.steps)),
            ("preemptions_total", get(&self.preempted)),
            ("tokens_recomputed_total", get(&self.recomputed)),
            ("tokens_drafted_total", get(&self.drafted)),
            ("tokens_draft_accepted_total", get(&self.accepted)),
            ("sequences_running", get(&self.running)),
            ("sequences_waiting", get(&self.waiting)),
            ("kv_pages_total", get(&self.pages_total)),
            ("kv_pages_used", get(&self.pages_used)),
            ("kv_pages_cached", get(&self.pages_cached)),
            ("kv_bytes", get(&self.pages_touched) * page_bytes),
            ("kv_bytes_limit", get(&self.pages_total) * page_bytes),
            ("buffer_bytes", get(&self.buffer_bytes)),
            (
                "kv_tokens_limit",
                get(&self.pages_total) * get(&self.page_tokens),
            ),
        ]
        .into_iter()
        .map(|(name, value)| (name.to_owned(), value))
        .collect()
    }
}
