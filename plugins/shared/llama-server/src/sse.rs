//! Server-sent events, out of pieces cut anywhere (WHATWG HTML, section 9.2).
//!
//! Lines end with `\n`, `\r` or `\r\n`; comments and unknown fields are passed over; several `data` lines make one event.

/// Longest line, in bytes: above any event that a server of models sends.
const MAX_LINE: usize = 16 << 20;

/// An event.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Event {
    /// Its type; empty where the stream gives none.
    pub event: String,
    /// Its data lines, joined by `\n`.
    pub data: String,
}

/// A stream broke the format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SseError {
    /// A line or an event does not end.
    #[error("an event of more than {MAX_LINE} bytes")]
    TooLong,
    /// Text that is not UTF-8.
    #[error("an event that is not UTF-8")]
    NotUtf8,
}

/// Takes a stream apart.
#[derive(Debug, Default)]
pub struct Parser {
    line: Vec<u8>,
    current: Event,
    has_data: bool,
    /// The last byte was `\r`: a `\n` after it belongs to the same line end.
    after_return: bool,
    begun: bool,
}

impl Parser {
    /// Takes the next bytes; `on_event` gets each event that they complete.
    ///
    /// # Errors
    /// A line is too long or not UTF-8.
    pub fn push(&mut self, bytes: &[u8], mut on_event: impl FnMut(Event)) -> Result<(), SseError> {
        for &byte in bytes {
            let after_return = std::mem::replace(&mut self.after_return, byte == b'\r');
            match byte {
                b'\n' if after_return => {}
                b'\n' | b'\r' => self.end_line(&mut on_event)?,
                _ if self.line.len() + self.current.data.len() >= MAX_LINE => {
                    return Err(SseError::TooLong);
                }
                _ => self.line.push(byte),
            }
        }
        Ok(())
    }

    fn end_line(&mut self, on_event: &mut impl FnMut(Event)) -> Result<(), SseError> {
        let line = std::mem::take(&mut self.line);
        let mut text = std::str::from_utf8(&line).map_err(|_| SseError::NotUtf8)?;
        if !std::mem::replace(&mut self.begun, true) {
            text = text.strip_prefix('\u{feff}').unwrap_or(text);
        }
        if text.is_empty() {
            let event = std::mem::take(&mut self.current);
            if std::mem::take(&mut self.has_data) {
                on_event(event);
            }
            return Ok(());
        }
        let (field, value) = text.split_once(':').unwrap_or((text, ""));
        let value = value.strip_prefix(' ').unwrap_or(value);
        match field {
            "data" => {
                if std::mem::replace(&mut self.has_data, true) {
                    self.current.data.push('\n');
                }
                self.current.data.push_str(value);
            }
            "event" => value.clone_into(&mut self.current.event),
            // Comments have an empty field; `id` and `retry` are for clients that connect again.
            _ => {}
        }
        Ok(())
    }

    /// Whether the stream ended between two events: else its last one was cut off.
    #[must_use]
    pub fn is_between_events(&self) -> bool {
        self.line.is_empty() && !self.has_data
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn events(pieces: &[&[u8]]) -> Vec<(String, String)> {
        let mut parser = Parser::default();
        let mut events = vec![];
        for piece in pieces {
            parser
                .push(piece, |event| events.push((event.event, event.data)))
                .unwrap();
        }
        assert!(parser.is_between_events());
        events
    }

    fn data(text: &str) -> Vec<String> {
        let pieces = [text.as_bytes()];
        events(&pieces).into_iter().map(|(_, data)| data).collect()
    }

    #[test]
    fn all_line_ends_and_fields() {
        assert_eq!(
            data("data: a\n\ndata: b\r\n\r\ndata:c\r\r"),
            ["a", "b", "c"]
        );
        assert_eq!(
            data(": comment\n\ndata: a\nid: 7\nretry: 3\nodd\n\n"),
            ["a"]
        );
        assert_eq!(data("data: a\ndata:  b\ndata\n\n"), ["a\n b\n"]);
        assert_eq!(data("\u{feff}data: a\n\n"), ["a"]);
        assert_eq!(data("\n\n\n"), [""; 0]);
        let named = events(&[b"event: error\ndata: {}\n\ndata: x\n\n"]);
        assert_eq!(named[0], ("error".into(), "{}".into()));
        assert_eq!(named[1], (String::new(), "x".into()));
    }

    #[test]
    fn what_never_ends_is_refused() {
        let mut parser = Parser::default();
        let piece = vec![b'x'; 1 << 20];
        let result = (0..32).try_for_each(|_| parser.push(&piece, |_| {}));
        assert_eq!(result, Err(SseError::TooLong));
        let mut parser = Parser::default();
        let line = [&b"data: "[..], &piece, b"\n"].concat();
        let result = (0..32).try_for_each(|_| parser.push(&line, |_| {}));
        assert_eq!(result, Err(SseError::TooLong));
        let result = Parser::default().push(b"data: \xff\n", |_| {});
        assert_eq!(result, Err(SseError::NotUtf8));
    }

    #[test]
    fn a_cut_event_is_noticed() {
        let mut parser = Parser::default();
        parser.push(b"data: a", |_| panic!("no event yet")).unwrap();
        assert!(!parser.is_between_events());
        parser.push(b"\n", |_| panic!("no event yet")).unwrap();
        assert!(!parser.is_between_events());
    }

    proptest! {
        #[test]
        fn cuts_make_no_difference(
            texts in proptest::collection::vec("[a-z😊é: ]{0,12}", 0..8),
            ends in proptest::collection::vec(0..3usize, 8),
            cuts in proptest::collection::vec(1..9usize, 1..40),
        ) {
            let mut stream = String::new();
            for (text, end) in texts.iter().zip(ends) {
                let end = ["\n", "\r", "\r\n"][end];
                stream += &format!("data: {text}{end}: note{end}{end}");
            }
            let whole = events(&[stream.as_bytes()]);
            prop_assert_eq!(whole.iter().map(|(_, data)| data).collect::<Vec<_>>(), texts.iter().collect::<Vec<_>>());
            let mut rest = stream.as_bytes();
            let mut pieces = vec![];
            for cut in cuts.into_iter().cycle() {
                if rest.is_empty() {
                    break;
                }
                let (piece, after) = rest.split_at(cut.min(rest.len()));
                pieces.push(piece);
                rest = after;
            }
            prop_assert_eq!(events(&pieces), whole);
        }
    }
}
