//! Log probabilities, in the shapes of both endpoints. A token comes first, the likeliest others after it.

use backplane_plugin_api::types::TokenLogprob;
use serde_json::{Map, Value, json};

/// A token's bytes; none where its text has lost some.
fn bytes(token: &TokenLogprob) -> Value {
    if token.text.contains('\u{fffd}') {
        Value::Null
    } else {
        json!(token.text.as_bytes())
    }
}

fn one(token: &TokenLogprob) -> Value {
    json!({ "token": token.text, "logprob": token.logprob, "bytes": bytes(token) })
}

/// As chat has them.
pub(in crate::serve) fn chat<'a>(tokens: impl IntoIterator<Item = &'a [TokenLogprob]>) -> Value {
    let token = |all: &[TokenLogprob]| {
        let (chosen, others) = all.split_first()?;
        let mut json = one(chosen);
        json["top_logprobs"] = others.iter().map(one).collect();
        Some(json)
    };
    let content: Vec<Value> = tokens.into_iter().filter_map(token).collect();
    json!({ "content": content, "refusal": null })
}

/// As completions have them; `offset` is where the first token begins, in characters, and is moved to the end of the last.
pub(super) fn completion<'a>(
    tokens: impl IntoIterator<Item = &'a [TokenLogprob]>,
    offset: &mut usize,
) -> Value {
    let (mut texts, mut values, mut tops, mut offsets) = (vec![], vec![], vec![], vec![]);
    for all in tokens {
        let Some((chosen, others)) = all.split_first() else {
            continue;
        };
        texts.push(chosen.text.clone());
        values.push(chosen.logprob);
        let top = others.iter().map(|it| (it.text.clone(), json!(it.logprob)));
        tops.push(top.collect::<Map<_, _>>());
        offsets.push(*offset);
        *offset += chosen.text.chars().count();
    }
    json!({ "tokens": texts, "token_logprobs": values, "top_logprobs": tops, "text_offset": offsets })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn token(text: &str, logprob: f32) -> TokenLogprob {
        let (token, text) = (1, text.to_owned());
        TokenLogprob {
            token,
            text,
            logprob,
        }
    }

    #[test]
    fn both_shapes() {
        let tokens = [
            vec![token("é", -0.5), token("é", -0.5), token("b", -2.0)],
            vec![token("\u{fffd}", -1.0)],
        ];
        let slices = || tokens.iter().map(Vec::as_slice);
        let chat = chat(slices());
        assert_eq!(chat["content"][0]["bytes"], json!([195, 169]));
        assert_eq!(chat["content"][0]["top_logprobs"][1]["token"], "b");
        assert_eq!(chat["content"][1]["bytes"], Value::Null);
        assert_eq!(chat["content"][1]["top_logprobs"], json!([]));
        let mut offset = 3;
        let text = completion(slices(), &mut offset);
        assert_eq!(text["text_offset"], json!([3, 4]));
        assert_eq!(text["top_logprobs"][0]["b"], -2.0);
        assert_eq!((offset, &text["token_logprobs"]), (5, &json!([-0.5, -1.0])));
    }
}
