//! Log probabilities, in the shapes of both endpoints. From engines a token comes first, the likeliest others after it; clients are told
//! the likeliest of all, among which the token is if it is one of them.

use crate::serve::likely::Likely;
use serde_json::{Map, Value, json};

fn one(token: &Likely) -> Value {
    json!({ "token": token.text, "logprob": token.logprob, "bytes": token.bytes })
}

/// The likeliest of a token and the others, as many as there are others.
fn likeliest<'a>(chosen: &'a Likely, others: &'a [Likely]) -> Vec<&'a Likely> {
    let same = |other: &&Likely| match (chosen.id, other.id) {
        (Some(one), Some(other)) => one == other,
        _ => chosen.text == other.text,
    };
    let own = Some(chosen).filter(|_| !others.iter().any(|other| same(&other)));
    let mut all: Vec<_> = own.into_iter().chain(others).collect();
    all.sort_by(|one, other| other.logprob.total_cmp(&one.logprob));
    all.truncate(others.len());
    all
}

/// As chat has them.
pub(in crate::serve) fn chat<'a>(tokens: impl IntoIterator<Item = &'a [Likely]>) -> Value {
    let token = |all: &[Likely]| {
        let (chosen, others) = all.split_first()?;
        let mut json = one(chosen);
        let top = likeliest(chosen, others).into_iter();
        json["top_logprobs"] = top.map(one).collect();
        Some(json)
    };
    let content: Vec<Value> = tokens.into_iter().filter_map(token).collect();
    json!({ "content": content, "refusal": null })
}

/// Where in a text, in characters, the next token begins: at the character that it goes on with, where the last one ended within it.
#[derive(Clone, Debug, Default)]
pub(super) struct Place {
    characters: usize,
    /// Bytes of a character that is not whole yet.
    begun: Vec<u8>,
}

impl Place {
    /// Goes on behind a token.
    fn pass(&mut self, token: &Likely) {
        let Some(bytes) = &token.bytes else {
            self.begun.clear();
            self.characters += token.text.chars().count();
            return;
        };
        self.begun.extend(bytes);
        let mut rest = self.begun.as_slice();
        loop {
            match std::str::from_utf8(rest) {
                Ok(text) => {
                    self.characters += text.chars().count();
                    rest = &[];
                }
                Err(error) => {
                    let (whole, after) = rest.split_at(error.valid_up_to());
                    self.characters += String::from_utf8_lossy(whole).chars().count();
                    rest = after;
                    if let Some(broken) = error.error_len() {
                        // Stands as one character in the text.
                        self.characters += 1;
                        rest = &rest[broken..];
                        continue;
                    }
                }
            }
            break;
        }
        self.begun = rest.to_vec();
    }
}

/// A token's text, or its bytes where they are no text of their own, as OpenAI writes them: several tokens of that kind differ.
fn written(token: &Likely) -> String {
    match &token.bytes {
        Some(bytes) if std::str::from_utf8(bytes).is_err() => {
            let bytes = bytes.iter().map(|byte| format!("\\x{byte:02x}"));
            format!("bytes:{}", bytes.collect::<String>())
        }
        _ => token.text.clone(),
    }
}

/// As completions have them; `place` is where the first token begins, and is moved to the end of the last.
pub(super) fn completion<'a>(
    tokens: impl IntoIterator<Item = &'a [Likely]>,
    place: &mut Place,
) -> Value {
    let (mut texts, mut values, mut tops, mut offsets) = (vec![], vec![], vec![], vec![]);
    for all in tokens {
        let Some((chosen, others)) = all.split_first() else {
            continue;
        };
        texts.push(written(chosen));
        values.push(chosen.logprob);
        // The token itself as well, also where it isn't one of the likeliest.
        let own = Some(chosen).filter(|_| !others.is_empty());
        let top = likeliest(chosen, others).into_iter().chain(own);
        let top = top.map(|it| (written(it), json!(it.logprob)));
        tops.push(top.collect::<Map<_, _>>());
        offsets.push(place.characters);
        place.pass(chosen);
    }
    json!({ "tokens": texts, "token_logprobs": values, "top_logprobs": tops, "text_offset": offsets })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn token(text: &str, logprob: f32, id: u32) -> Likely {
        Likely {
            id: Some(id),
            text: text.to_owned(),
            logprob,
            bytes: (text != "\u{fffd}").then(|| text.as_bytes().to_vec()),
        }
    }

    #[test]
    fn both_shapes() {
        let tokens = [
            vec![
                token("é", -0.5, 1),
                token("a", -1.0, 2),
                token("b", -2.0, 3),
            ],
            vec![token("\u{fffd}", -1.0, 4)],
            vec![token("c", -3.0, 5), token("d", -0.5, 6)],
        ];
        let slices = || tokens.iter().map(Vec::as_slice);
        let chat = chat(slices());
        assert_eq!(chat["content"][0]["bytes"], json!([195, 169]));
        // As many as the engine gave others: the likeliest, of which the token is one.
        let tops = |at: usize| {
            let top = chat["content"][at]["top_logprobs"].as_array().unwrap();
            top.iter()
                .map(|it| it["token"].as_str().unwrap())
                .collect::<Vec<_>>()
        };
        assert_eq!(tops(0), ["é", "a"]);
        assert_eq!(tops(2), ["d"], "the token itself is not among them");
        assert_eq!(chat["content"][1]["bytes"], Value::Null);
        assert_eq!(chat["content"][1]["top_logprobs"], json!([]));
        let mut place = Place {
            characters: 3,
            begun: Vec::new(),
        };
        let text = completion(slices(), &mut place);
        assert_eq!(text["text_offset"], json!([3, 4, 5]));
        assert_eq!(text["top_logprobs"][0], json!({ "é": -0.5, "a": -1.0 }));
        assert_eq!(text["top_logprobs"][1], json!({}));
        assert_eq!(text["top_logprobs"][2], json!({ "d": -0.5, "c": -3.0 }));
        assert_eq!(
            (place.characters, &text["token_logprobs"]),
            (6, &json!([-0.5, -1.0, -3.0]))
        );
    }
    #[test]
    fn parts_of_characters_are_told_apart_and_in_their_place() {
        let part = |bytes: &[u8], id| Likely {
            bytes: Some(bytes.to_vec()),
            ..token("\u{fffd}", -1.0, id)
        };
        let tokens = [
            vec![token("a", -0.1, 1)],
            vec![part(b"\xe6\x97", 2), part(b"\xe6\x96", 3), part(b"\xf0", 4)],
            vec![part(b"\xa5", 5)],
            vec![token("é", -0.1, 6)],
            // Broken in the middle: one character of the text.
            vec![part(b"\xff", 7)],
            vec![token("b", -0.1, 8)],
        ];
        let mut place = Place::default();
        let told = completion(tokens.iter().map(Vec::as_slice), &mut place);
        assert_eq!(told["text_offset"], json!([0, 1, 1, 2, 3, 4]));
        assert_eq!(told["tokens"][1], "bytes:\\xe6\\x97");
        assert_eq!(told["top_logprobs"][1].as_object().unwrap().len(), 2);
        assert_eq!(place.characters, 5);
    }
}
