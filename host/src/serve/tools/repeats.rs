//! Calls that repeat one of the same reply: models that have to call something, small ones above all, go on with the same calls to the
//! end of their context. The first that was there before is not told, and ends the reply.

use super::Piece;

/// Lets calls through that are no repetition: one that begins like a call before is held back until it differs.
#[derive(Clone, Debug, Default)]
pub(in crate::serve) struct Repeats {
    /// Whether there is anything to do.
    on: bool,
    /// Name and arguments of the calls before, and of the one that comes.
    before: Vec<(String, String)>,
    now: Option<(String, String)>,
    /// What is told of the one that comes if it differs.
    held: Vec<Piece>,
    /// Its number.
    number: usize,
    /// The number of the call that was a repetition.
    repeated: Option<usize>,
}

impl Repeats {
    /// Of a reply whose calls are looked at, or not.
    pub(in crate::serve) fn new(on: bool) -> Self {
        Self {
            on,
            ..Self::default()
        }
    }

    /// The number of the first call that was a repetition.
    pub(in crate::serve) fn found(&self) -> Option<usize> {
        self.repeated
    }

    /// Passes pieces on; `whole` calls are whole with them.
    pub(in crate::serve) fn pass(&mut self, pieces: Vec<Piece>, whole: usize) -> Vec<Piece> {
        if !self.on {
            return pieces;
        }
        let mut out = Vec::new();
        for piece in pieces {
            match &piece {
                Piece::Begun { number, name, .. } => {
                    // The one before was whole, or this would not begin.
                    self.settle(*number, &mut out);
                    self.before.extend(self.now.take());
                    self.now = Some((name.clone(), String::new()));
                    self.number = *number;
                    self.held.push(piece);
                }
                Piece::Arguments { text, .. } => {
                    if let Some((_, arguments)) = &mut self.now {
                        arguments.push_str(text);
                    }
                    self.held.push(piece);
                }
                Piece::Text(_) | Piece::Thought(_) => {
                    out.push(piece);
                    continue;
                }
            }
            if !self.may_repeat() {
                self.tell(&mut out);
            }
        }
        self.settle(whole, &mut out);
        out
    }

    /// What is left at the end of the reply.
    pub(in crate::serve) fn finish(&mut self) -> Vec<Piece> {
        let mut out = Vec::new();
        self.tell(&mut out);
        out
    }

    /// Whether what is there of the call that comes is the beginning of one before.
    fn may_repeat(&self) -> bool {
        self.now.as_ref().is_some_and(|(other, begun)| {
            let same = |(name, arguments): &(String, String)| {
                name == other && arguments.starts_with(begun.as_str())
            };
            self.before.iter().any(same)
        })
    }

    /// Judges a call that is held back, where it is among the `whole` ones.
    fn settle(&mut self, whole: usize, out: &mut Vec<Piece>) {
        if self.held.is_empty() || whole <= self.number {
            return;
        }
        if self
            .now
            .as_ref()
            .is_some_and(|now| self.before.contains(now))
        {
            self.repeated.get_or_insert(self.number);
        }
        self.tell(out);
    }

    /// Tells what is held, unless the reply is over.
    fn tell(&mut self, out: &mut Vec<Piece>) {
        let held = std::mem::take(&mut self.held);
        if self.repeated.is_none() {
            out.extend(held);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn begun(number: usize, name: &str) -> Piece {
        Piece::Begun {
            number,
            id: format!("call_{number}"),
            name: name.to_owned(),
        }
    }

    fn arguments(number: usize, text: &str) -> Piece {
        Piece::Arguments {
            number,
            text: text.to_owned(),
        }
    }

    /// The calls, each in pieces of one character; what is told of them.
    fn told(calls: &[(&str, &str)], last_is_whole: bool) -> (Vec<(String, String)>, Option<usize>) {
        let mut repeats = Repeats::new(true);
        let mut out = Vec::new();
        for (number, (name, text)) in calls.iter().enumerate() {
            out.extend(repeats.pass(vec![begun(number, name)], number));
            for character in text.chars() {
                out.extend(repeats.pass(vec![arguments(number, &character.to_string())], number));
            }
            let last = number + 1 == calls.len();
            if !last || last_is_whole {
                out.extend(repeats.pass(Vec::new(), number + 1));
            }
        }
        out.extend(repeats.finish());
        let mut told: Vec<(String, String)> = Vec::new();
        for piece in out {
            match piece {
                Piece::Begun { number, name, .. } => {
                    assert_eq!(number, told.len());
                    told.push((name, String::new()));
                }
                Piece::Arguments { number, text } => told[number].1 += &text,
                other => panic!("{other:?}"),
            }
        }
        (told, repeats.found())
    }

    #[test]
    fn a_repetition_is_not_told_and_all_else_is() {
        let (a, longer, b) = (("f", "{\"a\":1}"), ("f", "{\"a\":12}"), ("g", "{\"a\":1}"));
        for (calls, last_is_whole, count, found) in [
            (&[a][..], true, 1, None),
            (&[a, a], true, 1, Some(1)),
            (&[a, a, a], true, 1, Some(1)),
            (&[a, a, b], true, 1, Some(1)),
            (&[a, b, b], true, 2, Some(2)),
            (&[a, b, a], true, 2, Some(2)),
            (&[a, b, longer, b], true, 3, Some(3)),
            (&[a, longer], true, 2, None),
            (&[longer, a], true, 2, None),
            (&[("f", "{}"), ("f", "{}")], true, 1, Some(1)),
            (&[("f", ""), ("f", "")], true, 1, Some(1)),
            // One that is cut may have become another.
            (&[a, ("f", "{\"a\"")], false, 2, None),
        ] {
            let (told, repeated) = told(calls, last_is_whole);
            let expected: Vec<(String, String)> = calls[..count]
                .iter()
                .map(|(name, text)| ((*name).to_owned(), (*text).to_owned()))
                .collect();
            assert_eq!((told, repeated), (expected, found), "{calls:?}");
        }
    }

    #[test]
    fn all_at_once_is_the_same_and_off_is_off() {
        let pieces = || {
            vec![
                begun(0, "f"),
                arguments(0, "{}"),
                begun(1, "f"),
                arguments(1, "{}"),
            ]
        };
        let mut repeats = Repeats::new(true);
        assert_eq!(repeats.pass(pieces(), 2), pieces()[..2]);
        assert_eq!(repeats.found(), Some(1));
        let mut off = Repeats::new(false);
        assert_eq!(off.pass(pieces(), 2), pieces());
        assert_eq!(off.found(), None);
    }
}
