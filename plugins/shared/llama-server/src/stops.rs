//! Stop strings, looked for here: the server loses text that only begins one when a generation ends.

/// Holds text back as long as it may be the beginning of a stop string.
#[derive(Debug, Default)]
pub struct Stops {
    stops: Vec<String>,
    held: String,
}

impl Stops {
    /// Looks for these; none of them may be empty.
    #[must_use]
    pub fn new(stops: Vec<String>) -> Self {
        Self {
            stops,
            held: String::new(),
        }
    }

    /// Takes text; gives what is certain now, and the stop string that was found. Of several that are complete, that which
    /// begins first, then the longest.
    pub fn push(&mut self, text: &str) -> (String, Option<String>) {
        self.held.push_str(text);
        let found = self
            .stops
            .iter()
            .filter_map(|stop| Some((self.held.find(stop)?, stop)))
            .min_by_key(|(at, stop)| (*at, std::cmp::Reverse(stop.len())));
        if let Some((at, stop)) = found {
            let stop = stop.clone();
            let mut certain = std::mem::take(&mut self.held);
            certain.truncate(at);
            return (certain, Some(stop));
        }
        let begins = |from: usize| {
            let rest = &self.held[from..];
            self.stops.iter().any(|stop| stop.starts_with(rest))
        };
        let starts = self.held.char_indices().map(|(at, _)| at);
        let keep = starts
            .into_iter()
            .find(|&at| begins(at))
            .unwrap_or(self.held.len());
        let held = self.held.split_off(keep);
        (std::mem::replace(&mut self.held, held), None)
    }

    /// What was held back, at the end.
    pub fn rest(&mut self) -> String {
        std::mem::take(&mut self.held)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn run(stops: &[&str], pieces: &[&str]) -> (String, Option<String>) {
        let mut state = Stops::new(stops.iter().map(|&stop| stop.to_owned()).collect());
        let mut text = String::new();
        for piece in pieces {
            let (certain, stop) = state.push(piece);
            text += &certain;
            if stop.is_some() {
                return (text, stop);
            }
            for stop in stops {
                assert!(!text.contains(stop));
            }
        }
        (text + &state.rest(), None)
    }

    #[test]
    fn stops_across_pieces() {
        let found = |text: &str, stop: &str| (text.to_owned(), Some(stop.to_owned()));
        assert_eq!(run(&["DEFG"], &["abcD", "E", "FGh"]), found("abc", "DEFG"));
        assert_eq!(run(&["DEFG"], &["abcD", "EF"]), ("abcDEF".into(), None));
        assert_eq!(
            run(&["\nUser:"], &["a\nUs", "e the", "\nUser", ":"]),
            found("a\nUse the", "\nUser:")
        );
        assert_eq!(run(&["aab"], &["aa", "ab"]), found("a", "aab"));
        assert_eq!(run(&["é!", "b"], &["aé", "!b"]), found("a", "é!"));
        assert_eq!(run(&["ab", "abc"], &["xabc"]), found("x", "abc"));
        assert_eq!(run(&[], &["a", "b"]), ("ab".into(), None));
    }

    proptest! {
        #[test]
        fn cuts_make_no_difference(text in "[abé]{0,24}", stop in "[abé]{1,4}", cuts in proptest::collection::vec(1..4usize, 24)) {
            let mut pieces = vec![];
            let chars: Vec<char> = text.chars().collect();
            let mut rest = &chars[..];
            for cut in cuts {
                let (piece, after) = rest.split_at(cut.min(rest.len()));
                pieces.push(piece.iter().collect::<String>());
                rest = after;
            }
            let pieces: Vec<&str> = pieces.iter().map(String::as_str).collect();
            let expected = match text.find(&stop) {
                Some(at) => (text[..at].to_owned(), Some(stop.clone())),
                None => (text.clone(), None),
            };
            prop_assert_eq!(run(&[&stop], &pieces), expected);
        }
    }
}
