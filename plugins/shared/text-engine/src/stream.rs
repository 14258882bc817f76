//! The one stream state machine: token bytes → UTF-8 hold-back → stop-string hold-back → text.
//!
//! What comes out depends only on the bytes, never on how they were cut into tokens:
//! - Text is given once its characters are whole and no stop string can begin in it any more.
//! - Of several stop strings, the one that begins earliest ends the text; of those that begin at the same place, the
//!   longest. Where a longer or an earlier one may still come true, the machine waits for the next bytes.
//! - Bytes that can never become UTF-8 are given as U+FFFD, one per maximal broken part, as
//!   [`String::from_utf8_lossy`] does. A character that is unfinished at the end is left out: the text was cut in it, and
//!   holds whole characters alone.

/// Text that became certain with a push.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Pushed {
    /// Whole characters, with no part of a stop string in them.
    pub text: String,
    /// Place of the stop string that was found in the list given to [`TextStream::new`]; the stream has ended then.
    pub stop: Option<usize>,
}

/// Bytes of tokens in, certain text out.
#[derive(Clone, Debug, Default)]
pub struct TextStream {
    stops: Vec<String>,
    bytes: Vec<u8>,
    pending: String,
    stopped: bool,
}

impl TextStream {
    /// A stream that ends at any of `stops`. Empty stop strings must have been refused before.
    pub fn new(stops: Vec<String>) -> Self {
        debug_assert!(
            stops.iter().all(|stop| !stop.is_empty()),
            "empty stop strings are refused with the request"
        );
        Self {
            stops,
            ..Self::default()
        }
    }

    /// Takes the bytes of one token. After a stop string was found, further bytes are dropped.
    pub fn push(&mut self, bytes: &[u8]) -> Pushed {
        if self.stopped {
            return Pushed::default();
        }
        self.decode(bytes);
        if self.stops.is_empty() {
            return Pushed {
                text: std::mem::take(&mut self.pending),
                stop: None,
            };
        }
        let hold = self.hold_from();
        match self.find_stop() {
            Some((at, stop)) if hold > at => self.end_at(at, stop),
            _ => {
                let rest = self.pending.split_off(hold);
                Pushed {
                    text: std::mem::replace(&mut self.pending, rest),
                    stop: None,
                }
            }
        }
    }

    /// Ends the stream: gives the text that was held back. A stop string may still be found in it.
    pub fn finish(&mut self) -> Pushed {
        if self.stopped {
            return Pushed::default();
        }
        self.bytes.clear();
        match self.find_stop() {
            Some((at, stop)) => self.end_at(at, stop),
            None => {
                self.stopped = true;
                Pushed {
                    text: std::mem::take(&mut self.pending),
                    stop: None,
                }
            }
        }
    }

    /// The stop string at a place of the list.
    pub fn stop_string(&self, stop: usize) -> &str {
        &self.stops[stop]
    }

    fn end_at(&mut self, at: usize, stop: usize) -> Pushed {
        self.stopped = true;
        self.pending.truncate(at);
        Pushed {
            text: std::mem::take(&mut self.pending),
            stop: Some(stop),
        }
    }

    /// Moves whole characters from `bytes` to `pending`; at most three bytes stay.
    fn decode(&mut self, bytes: &[u8]) {
        if self.bytes.is_empty()
            && let Ok(text) = std::str::from_utf8(bytes)
        {
            self.pending.push_str(text);
            return;
        }
        self.bytes.extend_from_slice(bytes);
        let mut rest = self.bytes.as_slice();
        loop {
            match std::str::from_utf8(rest) {
                Ok(text) => {
                    self.pending.push_str(text);
                    rest = &[];
                    break;
                }
                Err(error) => {
                    let (valid, after) = rest.split_at(error.valid_up_to());
                    self.pending.push_str(&String::from_utf8_lossy(valid));
                    match error.error_len() {
                        Some(broken) => {
                            self.pending.push(char::REPLACEMENT_CHARACTER);
                            rest = &after[broken..];
                        }
                        None => {
                            rest = after;
                            break;
                        }
                    }
                }
            }
        }
        self.bytes = rest.to_vec();
    }

    /// Earliest stop string that is whole in `pending`; the longest at that place.
    fn find_stop(&self) -> Option<(usize, usize)> {
        let mut best: Option<(usize, usize)> = None;
        for (stop, text) in self.stops.iter().enumerate() {
            if let Some(at) = self.pending.find(text.as_str()) {
                let better = best.is_none_or(|(best_at, best_stop)| {
                    at < best_at || (at == best_at && text.len() > self.stops[best_stop].len())
                });
                if better {
                    best = Some((at, stop));
                }
            }
        }
        best
    }

    /// First place from which `pending` to its end is the unfinished beginning of a stop string; its length if none.
    fn hold_from(&self) -> usize {
        let longest = self.stops.iter().map(String::len).max().unwrap_or(0);
        // A match that waits for an earlier or longer one keeps `pending` longer than the longest stop string, but
        // an unfinished beginning is always shorter.
        let first = (self.pending.len() + 1).saturating_sub(longest);
        (first..self.pending.len())
            .filter(|&at| self.pending.is_char_boundary(at))
            .find(|&at| {
                let tail = &self.pending.as_bytes()[at..];
                self.stops
                    .iter()
                    .any(|stop| stop.len() > tail.len() && stop.as_bytes().starts_with(tail))
            })
            .unwrap_or(self.pending.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The definition: the whole text searched at once.
    fn whole(bytes: &[u8], stops: &[String]) -> (String, Option<usize>) {
        let mut text = String::new();
        let mut chunks = bytes.utf8_chunks().peekable();
        while let Some(chunk) = chunks.next() {
            text.push_str(chunk.valid());
            let broken = std::str::from_utf8(chunk.invalid());
            // All but one that is unfinished at the end.
            if broken.is_err_and(|it| chunks.peek().is_some() || it.error_len().is_some()) {
                text.push(char::REPLACEMENT_CHARACTER);
            }
        }
        let mut best: Option<(usize, usize)> = None;
        for at in 0..text.len() {
            for (index, stop) in stops.iter().enumerate() {
                if text.as_bytes()[at..].starts_with(stop.as_bytes())
                    && best
                        .is_none_or(|(place, other)| place == at && stop.len() > stops[other].len())
                {
                    best = Some((at, index));
                }
            }
        }
        match best {
            Some((at, index)) => (text[..at].to_owned(), Some(index)),
            None => (text, None),
        }
    }

    fn run(pieces: &[&[u8]], stops: &[String]) -> (String, Option<usize>) {
        let mut stream = TextStream::new(stops.to_vec());
        let mut text = String::new();
        for piece in pieces {
            let pushed = stream.push(piece);
            text.push_str(&pushed.text);
            if pushed.stop.is_some() {
                return (text, pushed.stop);
            }
        }
        let pushed = stream.finish();
        text.push_str(&pushed.text);
        (text, pushed.stop)
    }

    fn check(pieces: &[&str], stops: &[&str], text: &str, stop: Option<usize>) {
        let pieces: Vec<&[u8]> = pieces.iter().map(|piece| piece.as_bytes()).collect();
        let stops: Vec<String> = stops.iter().map(|&stop| stop.to_owned()).collect();
        assert_eq!(run(&pieces, &stops), (text.to_owned(), stop));
    }

    #[test]
    fn stops_across_tokens() {
        check(&["ABC", "DEF", "GHI", "JKL"], &["DEFGHIJ"], "ABC", Some(0));
        check(
            &["ABC", "DEF", "GHX", "JKL"],
            &["DEFGHIJ"],
            "ABCDEFGHXJKL",
            None,
        );
        check(
            &["Hi", "\n", "User", ":", " x"],
            &["\nUser:"],
            "Hi",
            Some(0),
        );
        check(&["Hi", "\n", "User"], &["\nUser:"], "Hi\nUser", None);
        check(&["aa", "ab"], &["aab"], "a", Some(0));
    }

    #[test]
    fn earliest_then_longest() {
        check(&["x\n", "\ny"], &["\n", "\n\n"], "x", Some(1));
        check(&["x\n", "y"], &["\n", "\n\n"], "x", Some(0));
        check(&["xabc", "d"], &["bc", "abcd"], "x", Some(1));
        check(&["xabc", "e"], &["bc", "abcd"], "xa", Some(0));
        check(&["xabc"], &["bc", "abcd"], "xa", Some(0));
    }

    #[test]
    fn nothing_held_is_given_early() {
        let mut stream = TextStream::new(vec!["END".into()]);
        assert_eq!(stream.push(b"a E").text, "a ");
        assert_eq!(stream.push(b"N").text, "");
        assert_eq!(stream.push(b"x").text, "ENx");
        assert_eq!(stream.finish().text, "");
    }

    #[test]
    fn characters_are_whole() {
        let emoji = "😊".as_bytes();
        let mut stream = TextStream::new(Vec::new());
        assert_eq!(stream.push(&emoji[..2]).text, "");
        assert_eq!(stream.push(&emoji[2..]).text, "😊");
        assert_eq!(stream.push(&emoji[..3]).text, "");
        assert_eq!(stream.finish().text, "", "it was cut in a character");
        assert_eq!(stream.push(b"late").text, "");
        // What is broken in the middle, or can't go on at the end, is shown; so is a mark that stands in the text.
        let mut stream = TextStream::new(Vec::new());
        assert_eq!(stream.push(&[b'a', 0xF0, 0x9F]).text, "a");
        assert_eq!(stream.push(b"b\xff").text, "\u{fffd}b\u{fffd}");
        assert_eq!(stream.push("\u{fffd}".as_bytes()).text, "\u{fffd}");
        assert_eq!(stream.finish().text, "");
        // What was held back for a stop string is told without it.
        let mut stream = TextStream::new(vec!["ab".into()]);
        assert_eq!(stream.push(&[b'x', b'a', 0xE2, 0x82]).text, "x");
        assert_eq!(stream.finish().text, "a");
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]
        #[test]
        fn any_split_gives_the_same(
            bytes in prop_oneof![
                "[abc]{0,24}".prop_map(String::into_bytes),
                "[aé😊b]{0,12}".prop_map(String::into_bytes),
                proptest::collection::vec(prop_oneof![Just(b'a'), Just(0xF0), Just(0x9F), Just(0x98), Just(0x8A), Just(0xC3)], 0..16),
            ],
            stops in proptest::collection::vec("[abcé😊]{1,5}", 0..4),
            cuts in proptest::collection::vec(0usize..6, 0..24),
        ) {
            let mut pieces: Vec<&[u8]> = Vec::new();
            let mut rest = bytes.as_slice();
            for cut in cuts {
                let (piece, after) = rest.split_at(cut.min(rest.len()));
                pieces.push(piece);
                rest = after;
            }
            pieces.push(rest);
            let expected = whole(&bytes, &stops);
            let got = run(&pieces, &stops);
            prop_assert_eq!(&got.0, &expected.0);
            prop_assert_eq!(got.1.map(|stop| &stops[stop]), expected.1.map(|stop| &stops[stop]));
        }
    }
}
