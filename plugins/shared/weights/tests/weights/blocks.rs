//! Dequantisation against ggml's.

use backplane_weights::TensorType;
use backplane_weights::blocks::{self, Block};
use serde_json::Value;

use crate::support::fixtures;

#[test]
fn quantised_types_equal_ggml_bit_by_bit() {
    let folder = fixtures().join("blocks");
    let index: Value =
        serde_json::from_slice(&std::fs::read(folder.join("index.json")).unwrap()).unwrap();
    let mut seen = 0;
    for ty in TensorType::ALL {
        let Some(entry) = index.get(ty.name()) else {
            assert!(
                matches!(ty, TensorType::F32 | TensorType::F16 | TensorType::BF16),
                "no fixture for {ty}"
            );
            continue;
        };
        assert_eq!(entry["ggml_type"], ty.ggml_id());
        assert_eq!(entry["block_elems"], ty.block_elems());
        assert_eq!(entry["block_bytes"], ty.block_bytes());
        let bytes = std::fs::read(folder.join(format!("{ty}.bin"))).unwrap();
        let expected: Vec<f32> = std::fs::read(folder.join(format!("{ty}.f32")))
            .unwrap()
            .chunks_exact(4)
            .map(|bytes| f32::from_le_bytes(bytes.try_into().unwrap()))
            .collect();
        assert_eq!(
            expected.len() as u64,
            entry["blocks"].as_u64().unwrap() * ty.block_elems() as u64
        );
        let mut values = vec![0.0; expected.len()];
        ty.dequantize(&bytes, &mut values);
        for (at, (value, expected)) in values.iter().zip(&expected).enumerate() {
            assert_eq!(
                value.to_bits(),
                expected.to_bits(),
                "{ty} value {at}: {value} and {expected}"
            );
        }
        seen += 1;
    }
    assert_eq!(seen, index.as_object().unwrap().len());
}

#[test]
fn sixteen_bit_floats_are_exact_for_every_bit_pattern() {
    for bits in 0..=u16::MAX {
        let mut value = [0.0];
        TensorType::F16.dequantize(&bits.to_le_bytes(), &mut value);
        let expected = f16_by_definition(bits);
        assert!(
            value[0] == expected || value[0].is_nan() && expected.is_nan(),
            "f16 {bits:#06x}: {value:?} {expected}"
        );
        assert_eq!(
            value[0].is_sign_negative(),
            bits >> 15 == 1,
            "f16 {bits:#06x}"
        );
        TensorType::BF16.dequantize(&bits.to_le_bytes(), &mut value);
        assert_eq!(
            value[0].to_bits(),
            u32::from(bits) << 16,
            "bf16 {bits:#06x}"
        );
    }
}

fn f16_by_definition(bits: u16) -> f32 {
    let sign = if bits >> 15 == 1 { -1.0 } else { 1.0 };
    let (exponent, fraction) = (i32::from(bits >> 10 & 31), f32::from(bits & 1023));
    sign * match exponent {
        0 => fraction * 2.0_f32.powi(-24),
        31 if fraction == 0.0 => f32::INFINITY,
        31 => f32::NAN,
        _ => (1024.0 + fraction) * 2.0_f32.powi(exponent - 25),
    }
}

#[test]
fn blocks_are_viewed_at_any_address() {
    let bytes: Vec<u8> = (0..=255).cycle().take(1 + 3 * 210).collect();
    let blocks = blocks::as_blocks::<blocks::BlockQ6K>(&bytes[1..]);
    assert_eq!(blocks.len(), 3);
    assert_eq!(blocks[1].d.0, [bytes[1 + 210 + 208], bytes[1 + 210 + 209]]);
    assert_eq!(blocks::BlockQ6K::TYPE, TensorType::Q6_K);
}

#[test]
#[should_panic(expected = "2 blocks of 32 values")]
fn an_output_of_another_length_is_a_programming_error() {
    TensorType::Q8_0.dequantize(&[0; 68], &mut [0.0; 65]);
}
