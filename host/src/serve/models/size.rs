//! What a model takes, and what it may come to take.

use crate::manifest::Bytes;
use backplane_plugin_api::types::Metrics;
use std::fmt;

/// Tokens of a context where nobody says how many, as engines choose it.
const USUAL_CONTEXT: u64 = 4096;

/// Bytes of a model, as far as they are known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Size {
    /// The file.
    weights: u64,
    /// Most that it computes in, as far as its engine tells.
    buffers: u64,
    /// Most that its cache comes to; `None` where its engine does not tell.
    cache: Option<Cache>,
    /// All that it took when its engine was asked last.
    now: u64,
    /// Tokens of one context; 0 where that is not known.
    context: u64,
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

    /// Of one that is, with a context of so many tokens.
    pub(super) fn told(weights: u64, context: u64, metrics: &Metrics) -> Self {
        let of = |name: &str| metrics.get(name).map_or(0, |number| *number as u64);
        let cache = Cache {
            bytes: of("kv_bytes_limit"),
            pages: of("kv_pages_total"),
            tokens: of("kv_tokens_limit"),
        };
        Self {
            weights,
            buffers: of("buffer_bytes"),
            cache: (cache.bytes > 0).then_some(cache),
            now: of("memory_bytes"),
            context,
        }
    }

    /// What counts.
    pub(super) fn bytes(&self) -> u64 {
        let cache = self.cache.map_or(0, |cache| cache.bytes);
        self.without_cache().saturating_add(cache).max(self.now)
    }

    /// The file, and what is computed in.
    pub(super) fn without_cache(&self) -> u64 {
        self.weights.saturating_add(self.buffers)
    }

    /// Whether it can't grow any more.
    pub(super) fn is_bound(&self) -> bool {
        self.cache.is_some()
    }

    /// What is computed in, as far as it is known.
    pub(super) fn buffers(&self) -> u64 {
        self.buffers
    }

    /// For how many tokens a cache has room with which the model takes no more than `room`, where that is for a context at least.
    pub(super) fn cache_within(&self, room: u64) -> Option<u32> {
        let cache = self.cache?;
        let room = room.checked_sub(self.without_cache())?;
        let (page, tokens) = cache.page()?;
        let fits = room.checked_div(page)?.saturating_mul(tokens);
        let fits = u32::try_from(fits).unwrap_or(u32::MAX);
        (u64::from(fits) >= self.context.max(1)).then_some(fits)
    }

    /// With the smallest cache that is of use: for one context.
    pub(super) fn least(&self) -> Self {
        let least = self.cache.and_then(|cache| {
            let (page, tokens) = cache.page()?;
            let pages = self.context.max(1).div_ceil(tokens).min(cache.pages);
            Some(Cache {
                bytes: page.saturating_mul(pages),
                pages,
                tokens: tokens.saturating_mul(pages),
            })
        });
        Self {
            cache: least.or(self.cache),
            ..*self
        }
    }

    /// Whether its cache is known to have room for one context and no more.
    fn is_least(&self) -> bool {
        let known = self.cache.and_then(|cache| cache.page()).is_some();
        known && self.context > 0 && self.least() == *self
    }
}

impl Cache {
    /// Bytes and tokens of a page.
    fn page(&self) -> Option<(u64, u64)> {
        let bytes = self.bytes.checked_div(self.pages)?;
        let tokens = self.tokens.checked_div(self.pages)?;
        (bytes > 0 && tokens > 0).then_some((bytes, tokens))
    }
}

/// What a cache for so many tokens is thought to take beside those of other models, from what is known of a model before it is
/// loaded; `None` where too little is. For comparing: how an engine keeps it is not known.
pub(super) fn cache_guess(
    details: &[(String, String)],
    context_length: u64,
    tokens: Option<u64>,
) -> Option<u64> {
    let fact = |name: &str| {
        let found = details.iter().find(|(known, _)| known == name);
        let number = found.and_then(|(_, value)| value.parse::<u64>().ok());
        number.filter(|number| *number > 0)
    };
    let heads = fact("kv_heads").or_else(|| fact("heads"))?;
    let width = fact("head_dim").or_else(|| fact("width")?.checked_div(fact("heads")?))?;
    let usual = || match context_length {
        0 => USUAL_CONTEXT,
        longest => longest.min(USUAL_CONTEXT),
    };
    let all = [fact("layers")?, heads, width, tokens.unwrap_or_else(usual)];
    let guess = all.into_iter().fold(1, u64::saturating_mul);
    Some(guess.max(1))
}

/// All, and where it is more than weights of what it is made.
impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", Bytes(self.bytes()))?;
        let mut weights = format!("{} of weights", Bytes(self.weights));
        if self.buffers > 0 {
            weights += &format!(", {} to compute in", Bytes(self.buffers));
        }
        match self.cache {
            Some(cache) if self.is_least() => {
                let (cache, tokens) = (Bytes(cache.bytes), self.context);
                write!(
                    f,
                    " ({weights}, a cache of {cache} for one context of {tokens} tokens)"
                )
            }
            Some(cache) => {
                let cache = Bytes(cache.bytes);
                write!(f, " ({weights}, a cache of up to {cache})")
            }
            None if self.now > self.without_cache() => {
                write!(f, " ({weights}, the rest measured)")
            }
            None if self.buffers > 0 => write!(f, " ({weights})"),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(weights: u64, context: u64, metrics: &[(&str, f64)]) -> Size {
        let metrics = metrics.iter().map(|(name, it)| ((*name).to_owned(), *it));
        Size::told(weights, context, &metrics.collect())
    }

    #[test]
    fn caches_count_with_all_that_they_may_become() {
        let mib = |count: u64| count << 20;
        let file = Size::of_file(mib(10));
        assert_eq!((file.bytes(), file.is_bound()), (mib(10), false));
        assert_eq!(file.to_string(), "10MiB");
        let with = |context: u64| {
            told(
                mib(10),
                context,
                &[
                    ("kv_bytes_limit", mib(20) as f64),
                    ("kv_tokens_limit", 2048.0),
                    ("kv_pages_total", 32.0),
                    ("kv_bytes", 5.0),
                ],
            )
        };
        let bound = with(256);
        assert_eq!((bound.bytes(), bound.is_bound()), (mib(30), true));
        let said = "30MiB (10MiB of weights, a cache of up to 20MiB)";
        assert_eq!(bound.to_string(), said);
        let least = bound.least();
        assert_eq!(
            (least.bytes(), least.least()),
            (mib(12) + (mib(1) >> 1), least)
        );
        let said = "12.5MiB (10MiB of weights, a cache of 2.5MiB for one context of 256 tokens)";
        assert_eq!(least.to_string(), said);
        // Whole pages, and never more than it has.
        assert_eq!(with(65).least().bytes(), mib(10) + 2 * (mib(20) / 32));
        assert_eq!(with(9999).least().bytes(), mib(30));
        for (room, context, fits) in [
            (mib(20), 256, Some(1024)),
            (mib(20), 1024, Some(1024)),
            (mib(20), 1025, None),
            (mib(10), 1, None),
            (mib(9), 1, None),
            (mib(11), 1, Some(64)),
            (mib(50), 1, Some(4096)),
        ] {
            assert_eq!(with(context).cache_within(room), fits, "{room} {context}");
        }
        // What is computed in comes first.
        let computes = told(
            mib(10),
            64,
            &[
                ("buffer_bytes", mib(5) as f64),
                ("kv_bytes_limit", mib(20) as f64),
                ("kv_tokens_limit", 2048.0),
                ("kv_pages_total", 2.0),
            ],
        );
        let sizes = (computes.bytes(), computes.least().bytes());
        assert_eq!(sizes, (mib(35), mib(25)));
        assert_eq!(computes.cache_within(mib(25)), Some(1024));
        assert_eq!(computes.cache_within(mib(24)), None);
        let said = "35MiB (10MiB of weights, 5MiB to compute in, a cache of up to 20MiB)";
        assert_eq!(computes.to_string(), said);
        let measured = told(mib(10), 256, &[("memory_bytes", mib(12) as f64)]);
        assert_eq!((measured.bytes(), measured.is_bound()), (mib(12), false));
        assert_eq!(
            measured.to_string(),
            "12MiB (10MiB of weights, the rest measured)"
        );
        assert_eq!(measured.cache_within(mib(50)), None);
        assert_eq!(measured.least(), measured);
    }

    #[test]
    fn wild_numbers_count_as_what_they_can_be() {
        for number in [f64::NAN, -1.0, f64::NEG_INFINITY, 0.0] {
            let size = told(
                7,
                1,
                &[("kv_bytes_limit", number), ("memory_bytes", number)],
            );
            assert_eq!((size.bytes(), size.is_bound()), (7, false), "{number}");
        }
        let size = told(7, u64::MAX, &[("kv_bytes_limit", f64::INFINITY)]);
        assert_eq!(size.bytes(), u64::MAX);
        assert_eq!(size.cache_within(u64::MAX), None);
        assert_eq!(size.least(), size);
        assert!(!size.to_string().contains("context"), "{size}");
        let wild = [
            ("kv_bytes_limit", f64::INFINITY),
            ("kv_tokens_limit", f64::INFINITY),
            ("kv_pages_total", 1.0),
        ];
        assert_eq!(told(7, 0, &wild).least().bytes(), u64::MAX);
    }

    #[test]
    fn caches_are_compared_by_what_is_known_before() {
        let of = |details: &[(&str, &str)], longest: u64, tokens| {
            let owned = details.iter();
            let owned = owned.map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
            cache_guess(&owned.collect::<Vec<_>>(), longest, tokens)
        };
        let whole = [
            ("layers", "2"),
            ("heads", "8"),
            ("kv_heads", "4"),
            ("head_dim", "16"),
        ];
        let plain = [("layers", "2"), ("heads", "8"), ("width", "64")];
        for (details, longest, tokens, guess) in [
            (&whole[..], 8192, None, Some(2 * 4 * 16 * 4096)),
            (&whole, 1024, None, Some(2 * 4 * 16 * 1024)),
            (&whole, 0, Some(10), Some(2 * 4 * 16 * 10)),
            (&plain, 0, Some(10), Some(2 * 8 * 8 * 10)),
            (&plain[1..], 0, Some(10), None),
            (
                &[("layers", "0"), ("heads", "1"), ("width", "1")],
                0,
                Some(10),
                None,
            ),
            (
                &[("layers", "x"), ("heads", "1"), ("width", "1")],
                0,
                Some(10),
                None,
            ),
            (&whole, 0, Some(u64::MAX), Some(u64::MAX)),
            (&[], 9, None, None),
        ] {
            assert_eq!(of(details, longest, tokens), guess, "{details:?}");
        }
    }
}
