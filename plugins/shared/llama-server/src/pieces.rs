//! Bytes of tokens, from the vocabulary in the model's file: the server gives text, in which parts of characters are lost.

use backplane_weights::Metadata;
use std::path::Path;

const LOST: char = char::REPLACEMENT_CHARACTER;

/// The bytes whose text, with the parts of characters lost, is what the server gave; `None` where the file does not tell.
pub(crate) fn exact(path: &Path, ids: &[u32], given: &str) -> Option<Vec<u8>> {
    let metadata = Metadata::open(path).ok()?;
    let kind = metadata.str("tokenizer.ggml.model").ok()??;
    let pieces: Vec<&str> = metadata
        .array("tokenizer.ggml.tokens")
        .ok()??
        .strings()
        .ok()?
        .collect();
    let mut bytes = vec![];
    for &id in ids {
        let piece = pieces.get(usize::try_from(id).ok()?)?;
        match kind {
            "gpt2" => byte_level(piece, &mut bytes),
            "llama" => sentence_piece(piece, &mut bytes),
            _ => return None,
        }
    }
    agrees(&bytes, given).then_some(bytes)
}

/// Whether it is the same text, however many marks stand for what is lost in one place.
fn agrees(bytes: &[u8], given: &str) -> bool {
    let known = |text: &str| {
        let parts = text.split(LOST).filter(|part| !part.is_empty());
        parts.map(str::to_owned).collect::<Vec<_>>()
    };
    known(&String::from_utf8_lossy(bytes)) == known(given)
}

/// GPT-2's alphabet: printable Latin-1 bytes stand for themselves, the others are U+0100 to U+0143 in the order of their values.
fn byte_level(piece: &str, bytes: &mut Vec<u8>) {
    let stands_for_itself = |byte: u8| matches!(byte, b'!'..=b'~' | 0xA1..=0xAC | 0xAE..=0xFF);
    for character in piece.chars() {
        let code = u32::from(character);
        let byte = match u8::try_from(code) {
            Ok(byte) => Some(byte).filter(|&byte| stands_for_itself(byte)),
            Err(_) => {
                let place = usize::try_from(code - 0x100).unwrap_or(usize::MAX);
                (0..=u8::MAX)
                    .filter(|&byte| !stands_for_itself(byte))
                    .nth(place)
            }
        };
        match byte {
            Some(byte) => bytes.push(byte),
            // Special tokens are written as they are.
            None => bytes.extend_from_slice(character.encode_utf8(&mut [0; 4]).as_bytes()),
        }
    }
}

/// SentencePiece: `▁` is a space, `<0xE2>` one byte.
fn sentence_piece(piece: &str, bytes: &mut Vec<u8>) {
    let hexadecimal = piece
        .strip_prefix("<0x")
        .and_then(|rest| rest.strip_suffix('>'))
        .filter(|digits| digits.len() == 2);
    match hexadecimal.and_then(|digits| u8::from_str_radix(digits, 16).ok()) {
        Some(byte) => bytes.push(byte),
        None => bytes.extend_from_slice(piece.replace('▁', " ").as_bytes()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use backplane_weights::writer::GgufWriter;

    fn file(folder: &Path, kind: &str, tokens: &[&str]) -> std::path::PathBuf {
        let path = folder.join("m.gguf");
        let mut writer = GgufWriter::new();
        writer.add_meta("general.architecture", "llama");
        writer.add_meta("tokenizer.ggml.model", kind);
        let tokens: Vec<String> = tokens.iter().map(|&token| token.to_owned()).collect();
        writer.add_meta("tokenizer.ggml.tokens", tokens);
        writer.write_to(&path).unwrap();
        path
    }

    #[test]
    fn cut_characters_keep_their_bytes() {
        let folder = tempfile::tempdir().unwrap();
        // 😊 is F0 9F 98 8A, of which 9F, 98 and 8A are not printable.
        let path = file(folder.path(), "gpt2", &["ðŁĺ", "Ĭ", "Ġa", "<|end|>"]);
        let is = |ids: &[u32], given: &str, bytes: &[u8]| {
            assert_eq!(exact(&path, ids, given).as_deref(), Some(bytes), "{ids:?}");
        };
        is(&[0], "\u{fffd}", b"\xf0\x9f\x98");
        is(&[1, 2], "\u{fffd} a", b"\x8a a");
        is(&[0, 1], "😊", "😊".as_bytes());
        is(&[2, 0], " a\u{fffd}\u{fffd}", b" a\xf0\x9f\x98");
        is(&[3, 0], "<|end|>\u{fffd}", b"<|end|>\xf0\x9f\x98");
        // What does not agree with the server, or is not there, is not taken.
        assert_eq!(exact(&path, &[2, 0], "a\u{fffd}"), None);
        assert_eq!(exact(&path, &[4], "\u{fffd}"), None);
        let path = file(folder.path(), "llama", &["▁a", "<0xF0>", "<0xZZ>"]);
        assert_eq!(
            exact(&path, &[0, 1], " a\u{fffd}").as_deref(),
            Some(&b" a\xf0"[..])
        );
        assert_eq!(
            exact(&path, &[2], "<0xZZ>").as_deref(),
            Some(&b"<0xZZ>"[..])
        );
        let path = file(folder.path(), "t5", &["a"]);
        assert_eq!(exact(&path, &[0], "a"), None);
        assert_eq!(exact(&folder.path().join("gone"), &[0], "a"), None);
    }
}
