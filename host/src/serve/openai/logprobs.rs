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

/// As completions have them; `offset` is where the first token begins, in characters, and is moved to the end of the last.
pub(super) fn completion<'a>(
    tokens: impl IntoIterator<Item = &'a [Likely]>,
    offset: &mut usize,
) -> Value {
    let (mut texts, mut values, mut tops, mut offsets) = (vec![], vec![], vec![], vec![]);
    for all in tokens {
        let Some((chosen, others)) = all.split_first() else {
            continue;
        };
        texts.push(chosen.text.clone());
        values.push(chosen.logprob);
        // The token itself as well, also where it isn't one of the likeliest.
        let own = Some(chosen).filter(|_| !others.is_empty());
        let top = likeliest(chosen, others).into_iter().chain(own);
        let top = top.map(|it| (it.text.clone(), json!(it.logprob)));
        tops.push(top.collect::<Map<_, _>>());
        offsets.push(*offset);
        *offset += chosen.text.chars().count();
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
        let mut offset = 3;
        let text = completion(slices(), &mut offset);
        assert_eq!(text["text_offset"], json!([3, 4, 5]));
        assert_eq!(text["top_logprobs"][0], json!({ "é": -0.5, "a": -1.0 }));
        assert_eq!(text["top_logprobs"][1], json!({}));
        assert_eq!(text["top_logprobs"][2], json!({ "d": -0.5, "c": -3.0 }));
        assert_eq!(
            (offset, &text["token_logprobs"]),
            (6, &json!([-0.5, -1.0, -3.0]))
        );
    }
}
