//! Bytes to text that is certain: whole characters, and no beginning of a stop string.

/// What a stream may give out.
#[derive(Default)]
pub(crate) struct TextStream {
    stops: Vec<String>,
    bytes: Vec<u8>,
    held: String,
    /// The stop string that was met.
    pub(crate) stopped: Option<String>,
}

impl TextStream {
    pub(crate) fn new(stops: &[String]) -> Self {
        Self {
            stops: stops.to_vec(),
            ..Self::default()
        }
    }

    /// Takes a byte; gives the text that is now certain.
    pub(crate) fn push(&mut self, byte: u8) -> String {
        self.bytes.push(byte);
        loop {
            match std::str::from_utf8(&self.bytes) {
                Ok(text) => {
                    self.held.push_str(text);
                    self.bytes.clear();
                    break;
                }
                Err(error) => {
                    let valid = error.valid_up_to();
                    self.held
                        .push_str(&String::from_utf8_lossy(&self.bytes[..valid]));
                    let Some(broken) = error.error_len() else {
                        self.bytes.drain(..valid);
                        break;
                    };
                    self.held.push('\u{fffd}');
                    self.bytes.drain(..valid + broken);
                }
            }
        }
        let first = self
            .stops
            .iter()
            .filter_map(|stop| self.held.find(stop.as_str()).map(|at| (at, stop)))
            .min();
        if let Some((at, stop)) = first {
            self.stopped = Some(stop.clone());
            self.held.truncate(at);
            return std::mem::take(&mut self.held);
        }
        let certain = self
            .held
            .char_indices()
            .map(|(at, _)| at)
            .find(|&at| self.may_begin_stop(at));
        let rest = self.held.split_off(certain.unwrap_or(self.held.len()));
        std::mem::replace(&mut self.held, rest)
    }

    fn may_begin_stop(&self, at: usize) -> bool {
        self.stops
            .iter()
            .any(|stop| stop.starts_with(&self.held[at..]))
    }

    /// What was held back, at the end; a broken character becomes one replacement character.
    pub(crate) fn finish(mut self) -> String {
        if self.stopped.is_none() && !self.bytes.is_empty() {
            self.held.push('\u{fffd}');
        }
        self.held
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stream(text: &[u8], stop: &str) -> (String, String) {
        let mut stream = TextStream::new(&[stop.to_owned()]);
        let given = text.iter().map(|&byte| stream.push(byte)).collect();
        (given, stream.finish())
    }

    #[test]
    fn holds_back_what_may_be_a_stop() {
        assert_eq!(stream(b"abcDEF", "DEFG"), ("abc".into(), "DEF".into()));
        assert_eq!(
            stream(b"abcDEFGHI", "DEFGHI"),
            ("abc".into(), String::new())
        );
        assert_eq!(stream(b"DEDEFG", "DEFG"), ("DE".into(), String::new()));
        assert_eq!(stream("é".as_bytes(), "x"), ("é".into(), String::new()));
        assert_eq!(
            stream(&"é".as_bytes()[..1], "x"),
            (String::new(), "\u{fffd}".into())
        );
    }
}
