//! JSON of unknown making: what a file holds, what is wrong with it, in one line.

use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::error::Error;

/// Characters of a file that an error repeats.
const SHOWN: usize = 300;

/// Reads a file as `T`.
pub(super) fn read<T: DeserializeOwned>(file: &'static str, bytes: &[u8]) -> Result<T, Error> {
    if bytes.starts_with(b"version https://git-lfs") {
        return Err(Error::vocabulary(
            file,
            "is a Git LFS pointer, expected the file that it points to",
        ));
    }
    let bytes = bytes.strip_prefix(b"\xEF\xBB\xBF").unwrap_or(bytes);
    serde_json::from_slice(bytes)
        .map_err(|error| Error::vocabulary(file, shortened(&error.to_string())))
}

/// A value in one line.
pub(super) fn shown(value: &Value) -> String {
    shortened(&value.to_string())
}

/// One line of at most `SHOWN` characters.
pub(super) fn shortened(text: &str) -> String {
    let mut line: String = text.chars().take(SHOWN).collect();
    if line.len() < text.len() {
        line.push('…');
    }
    line.replace(['\n', '\r'], " ")
}

/// The `type` of a part of `tokenizer.json`.
pub(super) fn type_of(part: &Value) -> &str {
    part["type"].as_str().unwrap_or_default()
}

/// The parts of a `Sequence` under `list`, and of those within it; or else the part itself. Null has none.
pub(super) fn sequence<'v>(part: &'v Value, list: &str) -> Vec<&'v Value> {
    match part {
        Value::Null => Vec::new(),
        _ if type_of(part) == "Sequence" && part[list].is_array() => {
            let parts = part[list].as_array().map(Vec::as_slice).unwrap_or_default();
            parts.iter().flat_map(|part| sequence(part, list)).collect()
        }
        _ => vec![part],
    }
}
