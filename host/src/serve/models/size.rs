//! What a model takes, and what it may come to take.

use crate::manifest::Bytes;
use backplane_plugin_api::types::Metrics;
use std::fmt;

/// Bytes of a model, as far as they are known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Size {
    /// The file.
    weights: u64,
    /// Most that its cache comes to; `None` where its engine does not tell.
    cache: Option<Cache>,
    /// All that it took when its engine was asked last.
    now: u64,
}

/// A cache as large as it may become.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Cache {
    bytes: u64,
    pages: u64,
    tokens: u64,
}

impl Size {
    /// Of one that is not loaded.
    pub(super) fn of_file(weights: u64) -> Self {
        Self {
            weights,
            ..Self::default()
        }
    }

    /// Of one that is.
    pub(super) fn told(weights: u64, metrics: &Metrics) -> Self {
        let of = |name: &str| metrics.get(name).map_or(0, |number| *number as u64);
        let cache = Cache {
            bytes: of("kv_bytes_limit"),
            pages: of("kv_pages_total"),
            tokens: of("kv_tokens_limit"),
        };
        Self {
            weights,
            cache: (cache.bytes > 0).then_some(cache),
            now: of("memory_bytes"),
        }
    }

    /// What counts.
    pub(super) fn bytes(&self) -> u64 {
        let cache = self.cache.map_or(0, |cache| cache.bytes);
        self.weights.saturating_add(cache).max(self.now)
    }

    /// Whether it can't grow any more.
    pub(super) fn is_bound(&self) -> bool {
        self.cache.is_some()
    }

    /// For how many tokens a cache has room with which the model takes no more than `room`, where that is for a context at least.
    pub(super) fn cache_within(&self, room: u64, context: u64) -> Option<u32> {
        let cache = self.cache?;
        let room = room.checked_sub(self.weights)?;
        let page = cache.bytes.checked_div(cache.pages)?;
        let tokens = cache.tokens.checked_div(cache.pages)?;
        let fits = room.checked_div(page)?.saturating_mul(tokens);
        let fits = u32::try_from(fits).unwrap_or(u32::MAX);
        (u64::from(fits) >= context.max(1)).then_some(fits)
    }

    /// What can be done so that it takes less.
    pub(super) fn remedy(&self) -> &'static str {
        match self.cache {
            Some(_) => {
                "lower `cache_tokens`, `parallel` or `context`, choose a smaller `cache_type` or model, or raise `memory`"
            }
            None => "choose a smaller model, or raise `memory`",
        }
    }
}

/// All, and where it is more than weights of what it is made.
impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", Bytes(self.bytes()))?;
        let weights = Bytes(self.weights);
        match self.cache {
            Some(cache) => {
                let cache = Bytes(cache.bytes);
                write!(f, " ({weights} of weights, a cache of up to {cache})")
            }
            None if self.now > self.weights => {
                write!(f, " ({weights} of weights, the rest measured)")
            }
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(weights: u64, metrics: &[(&str, f64)]) -> Size {
        let metrics = metrics.iter().map(|(name, it)| ((*name).to_owned(), *it));
        Size::told(weights, &metrics.collect())
    }

    #[test]
    fn caches_count_with_all_that_they_may_become() {
        let mib = |count: u64| count << 20;
        let file = Size::of_file(mib(10));
        assert_eq!((file.bytes(), file.is_bound()), (mib(10), false));
        assert_eq!(file.to_string(), "10MiB");
        let bound = told(
            mib(10),
            &[
                ("kv_bytes_limit", mib(20) as f64),
                ("kv_tokens_limit", 2048.0),
                ("kv_pages_total", 32.0),
                ("kv_bytes", 5.0),
            ],
        );
        assert_eq!((bound.bytes(), bound.is_bound()), (mib(30), true));
        let said = "30MiB (10MiB of weights, a cache of up to 20MiB)";
        assert_eq!(bound.to_string(), said);
        assert!(bound.remedy().contains("`parallel`"));
        for (room, context, fits) in [
            (mib(20), 256, Some(1024)),
            (mib(20), 1024, Some(1024)),
            (mib(20), 1025, None),
            (mib(10), 1, None),
            (mib(9), 1, None),
            (mib(11), 1, Some(64)),
            (mib(50), 1, Some(4096)),
        ] {
            assert_eq!(bound.cache_within(room, context), fits, "{room} {context}");
        }
        let measured = told(mib(10), &[("memory_bytes", mib(12) as f64)]);
        assert_eq!((measured.bytes(), measured.is_bound()), (mib(12), false));
        assert_eq!(
            measured.to_string(),
            "12MiB (10MiB of weights, the rest measured)"
        );
        assert_eq!(measured.cache_within(mib(50), 1), None);
        assert!(!measured.remedy().contains("cache"));
    }

    #[test]
    fn wild_numbers_count_as_what_they_can_be() {
        for number in [f64::NAN, -1.0, f64::NEG_INFINITY, 0.0] {
            let size = told(7, &[("kv_bytes_limit", number), ("memory_bytes", number)]);
            assert_eq!((size.bytes(), size.is_bound()), (7, false), "{number}");
        }
        let size = told(7, &[("kv_bytes_limit", f64::INFINITY)]);
        assert_eq!(size.bytes(), u64::MAX);
        assert_eq!(size.cache_within(u64::MAX, 1), None);
    }
}
