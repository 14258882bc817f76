//! Values of options and settings, each with its range: one clear line where one is wrong.

use crate::manifest::{Isolation, Limit};
use backplane_plugin_api::capability::Pooling;
use std::fmt;
use std::time::Duration;

fn number(text: &str, expected: &str, valid: impl Fn(f32) -> bool) -> Result<f32, String> {
    text.parse::<f32>()
        .ok()
        .filter(|value| valid(*value))
        .ok_or_else(|| format!("expected {expected}"))
}

/// A finite number from 0.
pub(crate) fn temperature(text: &str) -> Result<f32, String> {
    number(text, "a number from 0 to 3.4e38", |value| {
        value.is_finite() && value >= 0.0
    })
}

/// 0 to 1.
pub(crate) fn probability(text: &str) -> Result<f32, String> {
    number(text, "a number from 0 to 1", |value| {
        (0.0..=1.0).contains(&value)
    })
}

/// A finite number above 0.
pub(crate) fn penalty(text: &str) -> Result<f32, String> {
    number(text, "a number above 0, up to 3.4e38", |value| {
        value.is_finite() && value > 0.0
    })
}

/// A finite number.
pub(crate) fn finite(text: &str) -> Result<f32, String> {
    number(text, "a number", f32::is_finite)
}

/// A whole number from 0.
pub(crate) fn whole(text: &str) -> Result<u32, String> {
    text.parse()
        .map_err(|_| format!("expected a whole number from 0 to {}", u32::MAX))
}

/// A whole number from 1.
pub(crate) fn count(text: &str) -> Result<u32, String> {
    whole(text)
        .ok()
        .filter(|value| *value > 0)
        .ok_or_else(|| format!("expected a whole number from 1 to {}", u32::MAX))
}

/// Seconds, or a time as manifests write it, from 1 ms to a week.
pub(crate) fn time(text: &str) -> Result<Duration, String> {
    let seconds = text.bytes().all(|byte| byte.is_ascii_digit());
    let limit = if seconds {
        Limit::parse(&format!("{text}s"))
    } else {
        Limit::parse(text)
    };
    limit.and_then(|limit| limit.0).ok_or_else(|| {
        "expected whole seconds from 1, or a time such as \"2s\", \"500ms\" or \"10m\", up to a week"
            .to_owned()
    })
}

/// A whole number of 64 bits.
pub(crate) fn seed(text: &str) -> Result<u64, String> {
    text.parse()
        .map_err(|_| format!("expected a whole number from 0 to {}", u64::MAX))
}

/// A token id.
pub(crate) fn token(text: &str) -> Result<u32, String> {
    text.trim()
        .parse()
        .map_err(|_| format!("{text:?} is not a token id, expected a whole number"))
}

/// Token ids separated by commas or white space.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Tokens(pub(crate) Vec<u32>);

/// Reads [`Tokens`].
pub(crate) fn tokens(text: &str) -> Result<Tokens, String> {
    let parts = text
        .split([',', ' ', '\t', '\n'])
        .filter(|part| !part.is_empty());
    let ids: Vec<u32> = parts.map(token).collect::<Result<_, _>>()?;
    if ids.is_empty() {
        Err("expected at least one token id".to_owned())
    } else {
        Ok(Tokens(ids))
    }
}

/// A pooling by its word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PoolingName(pub(crate) Pooling);

impl fmt::Display for PoolingName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let known = Pooling::ALL.iter().find(|(pooling, _)| *pooling == self.0);
        f.write_str(known.map_or("", |(_, name)| name))
    }
}

/// Reads [`PoolingName`].
pub(crate) fn pooling(text: &str) -> Result<PoolingName, String> {
    let known = Pooling::ALL.iter().find(|(_, name)| *name == text);
    known
        .map(|(pooling, _)| PoolingName(*pooling))
        .ok_or_else(|| {
            let names: Vec<&str> = Pooling::ALL.iter().map(|(_, name)| *name).collect();
            format!("expected one of {}", names.join(", "))
        })
}

/// Where a plugin runs, by its word.
pub(crate) fn isolation(text: &str) -> Result<Isolation, String> {
    let known = Isolation::ALL.iter().find(|(_, word)| *word == text);
    known.map(|(isolation, _)| *isolation).ok_or_else(|| {
        let words: Vec<&str> = Isolation::ALL.iter().map(|(_, word)| *word).collect();
        format!("expected one of {}", words.join(", "))
    })
}

/// A size for people: powers of 1024.
pub(crate) struct Bytes(pub(crate) u64);

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut size = self.0 as f64;
        let mut unit = "B";
        for next in ["KiB", "MiB", "GiB", "TiB"] {
            if size < 1024.0 {
                break;
            }
            (size, unit) = (size / 1024.0, next);
        }
        if unit == "B" {
            write!(f, "{} B", self.0)
        } else {
            write!(f, "{size:.1} {unit}")
        }
    }
}

/// A number of weights for people.
pub(crate) struct Count(pub(crate) u64);

impl fmt::Display for Count {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let count = self.0 as f64;
        match self.0 {
            0..1_000 => write!(f, "{}", self.0),
            1_000..1_000_000 => write!(f, "{:.1} K", count / 1e3),
            1_000_000..1_000_000_000 => write!(f, "{:.1} M", count / 1e6),
            _ => write!(f, "{:.2} B", count / 1e9),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges() {
        for wrong in ["-1", "NaN", "inf", "x", ""] {
            assert!(temperature(wrong).is_err(), "{wrong}");
            assert!(probability(wrong).is_err(), "{wrong}");
            assert!(penalty(wrong).is_err(), "{wrong}");
            assert!(whole(wrong).is_err(), "{wrong}");
        }
        assert_eq!(isolation("process"), Ok(Isolation::Process));
        assert!(isolation("Process").is_err_and(|message| message.contains("in-process, process")));
        assert_eq!(probability("1"), Ok(1.0));
        assert!(probability("1.01").is_err() && penalty("0").is_err() && count("0").is_err());
        assert_eq!(time("2"), time("2s"));
        assert_eq!(time("500ms"), Ok(Duration::from_millis(500)));
        for wrong in ["", "0", "-1", "off", "2x", "8d"] {
            assert!(time(wrong).is_err_and(|message| message.contains("\"2s\"")));
        }
        assert_eq!(tokens("1,2 3"), Ok(Tokens(vec![1, 2, 3])));
        assert!(tokens("1,x").is_err_and(|message| message.contains("\"x\"")));
        assert!(tokens(",").is_err());
    }

    #[test]
    fn sizes() {
        assert_eq!(Bytes(1023).to_string(), "1023 B");
        assert_eq!(Bytes(98_362_432).to_string(), "93.8 MiB");
        assert_eq!(Count(134_515_008).to_string(), "134.5 M");
    }
}
