//! A secret that a server asks for.

use hyper::header::HeaderValue;

/// A key. It is written into requests and nowhere else: not by `Debug`, and errors in which a server repeats it hide it.
#[derive(Clone)]
pub struct Key {
    text: String,
    header: HeaderValue,
}

impl Key {
    /// A key; `None` for what can't stand in a request: nothing at all, control characters, other than ASCII.
    #[must_use]
    pub fn new(text: impl Into<String>) -> Option<Self> {
        let text = text.into();
        let plain = |byte: u8| byte.is_ascii_graphic();
        if text.is_empty() || !text.bytes().all(plain) {
            return None;
        }
        let mut header = HeaderValue::from_str(&format!("Bearer {text}")).ok()?;
        header.set_sensitive(true);
        Some(Self { text, header })
    }

    /// A key of numbers, in 64 hexadecimal digits.
    pub(crate) fn of_numbers(numbers: [u64; 4]) -> Self {
        let text: String = numbers
            .iter()
            .map(|number| format!("{number:016x}"))
            .collect();
        let header = HeaderValue::from_str(&format!("Bearer {text}"));
        let mut header = header.unwrap_or_else(|_| HeaderValue::from_static("Bearer"));
        header.set_sensitive(true);
        Self { text, header }
    }

    /// The key itself, for what must have it.
    #[must_use]
    pub fn expose(&self) -> &str {
        &self.text
    }

    pub(crate) fn bearer(&self) -> HeaderValue {
        self.header.clone()
    }

    /// A text without the key.
    #[must_use]
    pub fn hidden_in(&self, text: &str) -> String {
        text.replace(&self.text, "(key)")
    }
}

impl std::fmt::Debug for Key {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Key(hidden)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_not_shown() {
        let key = Key::new("sk-1234").unwrap();
        assert_eq!(
            format!("{key:?} {:?}", key.bearer()),
            "Key(hidden) Sensitive"
        );
        assert_eq!(key.hidden_in("bad key sk-1234!"), "bad key (key)!");
        for odd in ["", "two words", "line\n", "sk-é", "\0"] {
            assert!(Key::new(odd).is_none(), "{odd:?}");
        }
    }
}
