//! Many numbers in one text: little-endian bits as base64, so that they cross exactly, those that JSON lacks too, and without
//! their digits being written and read.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD_NO_PAD;
use serde::de::Visitor;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::fmt;

/// `f32`s on their way.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Floats(pub(super) Vec<f32>);

impl From<Vec<f32>> for Floats {
    fn from(values: Vec<f32>) -> Self {
        Self(values)
    }
}

impl From<Floats> for Vec<f32> {
    fn from(floats: Floats) -> Self {
        floats.0
    }
}

impl Serialize for Floats {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let bytes: Vec<u8> = self
            .0
            .iter()
            .flat_map(|value| value.to_le_bytes())
            .collect();
        serializer.serialize_str(&STANDARD_NO_PAD.encode(bytes))
    }
}

impl<'de> Deserialize<'de> for Floats {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Text;
        impl Visitor<'_> for Text {
            type Value = Floats;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("base64 of 32-bit numbers")
            }

            fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Floats, E> {
                let bytes = STANDARD_NO_PAD.decode(text).map_err(E::custom)?;
                let (values, rest) = bytes.as_chunks();
                if !rest.is_empty() {
                    return Err(E::invalid_length(bytes.len(), &"a multiple of 4 bytes"));
                }
                Ok(Floats(
                    values.iter().copied().map(f32::from_le_bytes).collect(),
                ))
            }
        }
        deserializer.deserialize_str(Text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_bit_crosses() {
        let odd = [
            0_u32,
            1,
            0x8000_0000,
            0x7f80_0000,
            0xff80_0000,
            0x7fc0_1234,
            0xffff_ffff,
        ];
        for count in 0..=odd.len() {
            let values: Vec<f32> = odd[..count].iter().copied().map(f32::from_bits).collect();
            let text = serde_json::to_string(&Floats(values)).unwrap();
            let back: Floats = serde_json::from_str(&text).unwrap();
            let bits: Vec<u32> = back.0.into_iter().map(f32::to_bits).collect();
            assert_eq!(bits, odd[..count], "{text}");
        }
    }

    #[test]
    fn what_is_none_is_refused() {
        for (text, expected) in [
            ("\"AAAA\"", "multiple of 4"),
            ("\"!\"", "Invalid"),
            ("[1.0]", "base64 of 32-bit numbers"),
        ] {
            let error = serde_json::from_str::<Floats>(text)
                .unwrap_err()
                .to_string();
            assert!(error.contains(expected), "{text}: {error}");
        }
    }
}
