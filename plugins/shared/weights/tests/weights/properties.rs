//! Properties: damage never panics, and what is written is read back.

use backplane_weights::writer::{GgufWriter, OwnedValue};
use backplane_weights::{Array, TensorType, Value, ValueType, Weights};
use proptest::collection::vec;
use proptest::prelude::*;

use crate::support::open;

/// A small file with something of everything.
fn valid() -> Vec<u8> {
    let mut writer = GgufWriter::new();
    writer
        .add_meta("general.architecture", "llama")
        .add_meta("llama.block_count", 2_u32);
    writer
        .add_meta("general.alignment", 32_u32)
        .add_meta("f", 0.5_f64)
        .add_meta("flag", true);
    writer
        .add_meta("tokens", vec!["a", "bc", "ü"])
        .add_meta("scores", vec![1.0_f32, 2.0]);
    writer.add_meta(
        "nested",
        OwnedValue::Array(
            ValueType::Array,
            vec![vec![1_u8, 2].into(), vec!["x"].into()],
        ),
    );
    writer.add_tensor("token_embd.weight", TensorType::Q8_0, &[2, 32], [3; 68]);
    writer.add_f32("output_norm.weight", &[4], &[1.0; 4]);
    writer.add_tensor("blk.0.ffn_up.weight", TensorType::Q4_K, &[1, 256], [7; 144]);
    writer.to_bytes().unwrap()
}

/// Reads all there is to read.
fn exhaust(weights: &Weights) {
    let meta = weights.metadata();
    for key in meta.keys() {
        let value = meta.get(key).expect("a key that is listed is there");
        let _ = (
            value.to_string(),
            meta.str(key).is_ok(),
            meta.u32(key).is_ok(),
            meta.f32(key).is_ok(),
        );
        let _ = (meta.bool(key).is_ok(), meta.per_layer_usize(key, 3).is_ok());
        if let Ok(Some(array)) = meta.array(key) {
            exhaust_array(&array);
        }
    }
    for info in weights.tensors() {
        let tensor = weights.require(&info.name).unwrap();
        assert_eq!(tensor.to_f32().len(), tensor.rows() * tensor.cols());
    }
}

fn exhaust_array(array: &Array<'_>) {
    assert_eq!(array.iter().count(), array.len());
    let _ = (
        array.strings().is_ok(),
        array.u32s().is_ok(),
        array.i32s().is_ok(),
    );
    let _ = (array.f32s().is_ok(), array.bools().is_ok());
    array
        .arrays()
        .unwrap_or_default()
        .iter()
        .for_each(exhaust_array);
}

#[test]
fn every_single_byte_set_to_extremes() {
    let bytes = valid();
    exhaust(&open(&bytes).unwrap());
    let mut refused = 0;
    for at in 0..bytes.len() {
        for value in [0, 1, 9, 0x7f, 0x80, 0xff] {
            let mut damaged = bytes.clone();
            damaged[at] = value;
            match open(&damaged) {
                Ok(weights) => exhaust(&weights),
                Err(error) => {
                    assert!(!error.to_string().contains('\n'));
                    refused += 1;
                }
            }
        }
    }
    assert!(refused > 500, "only {refused} refused");
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..Default::default() })]

    #[test]
    fn damage_never_panics(
        flips in vec((any::<prop::sample::Index>(), any::<u8>()), 0..8),
        cut in prop::option::of(any::<prop::sample::Index>()),
        tail in vec(any::<u8>(), 0..40),
    ) {
        let mut bytes = valid();
        for (at, value) in flips {
            let at = at.index(bytes.len());
            bytes[at] = value;
        }
        if let Some(cut) = cut {
            bytes.truncate(cut.index(bytes.len()));
            bytes.extend(tail);
        }
        if let Ok(weights) = open(&bytes) {
            exhaust(&weights);
        }
    }

    #[test]
    fn noise_after_the_magic_never_panics(noise in vec(any::<u8>(), 0..200), counts in any::<(u8, u8)>()) {
        let mut bytes = b"GGUF\x03\0\0\0".to_vec();
        bytes.extend(u64::from(counts.0 % 4).to_le_bytes());
        bytes.extend(u64::from(counts.1 % 4).to_le_bytes());
        bytes.extend(noise);
        if let Ok(weights) = open(&bytes) {
            exhaust(&weights);
        }
    }

    #[test]
    fn what_is_written_is_read_back(
        version in 2_u32..=3,
        alignment in prop::sample::select(vec![8_usize, 32, 64, 4096]),
        meta in prop::collection::btree_map("[a-zé.]{1,12}", value(), 0..8),
        tensors in prop::collection::btree_map("[a-z0-9.]{1,12}", tensor(), 0..6),
    ) {
        let mut writer = GgufWriter::new();
        writer.version(version).alignment(alignment);
        for (key, value) in &meta {
            writer.add_meta(key, value.clone());
        }
        for (name, (ty, shape, bytes)) in &tensors {
            writer.add_tensor(name, *ty, shape, bytes.clone());
        }
        let weights = open(&writer.to_bytes().unwrap()).unwrap();
        prop_assert_eq!(weights.metadata().version(), version);
        for (key, expected) in &meta {
            let found = owned(&weights.metadata().get(key).unwrap());
            prop_assert_eq!(&found, expected);
        }
        let names: Vec<_> = weights.tensors().map(|info| &info.name).collect();
        prop_assert_eq!(names, tensors.keys().collect::<Vec<_>>());
        for (name, (ty, shape, bytes)) in &tensors {
            let tensor = weights.require(name).unwrap();
            prop_assert_eq!(tensor.info.ty, *ty);
            prop_assert_eq!(&tensor.info.shape, shape);
            prop_assert_eq!(tensor.data, &bytes[..]);
            prop_assert_eq!(tensor.data.as_ptr().addr() % 8, 0);
        }
    }
}

fn value() -> impl Strategy<Value = OwnedValue> {
    let scalar = prop_oneof![
        any::<u8>().prop_map(OwnedValue::U8),
        any::<i8>().prop_map(OwnedValue::I8),
        any::<u16>().prop_map(OwnedValue::U16),
        any::<i16>().prop_map(OwnedValue::I16),
        any::<u32>().prop_map(OwnedValue::U32),
        any::<i32>().prop_map(OwnedValue::I32),
        any::<u64>().prop_map(OwnedValue::U64),
        any::<i64>().prop_map(OwnedValue::I64),
        any::<f32>().prop_map(OwnedValue::F32),
        any::<f64>().prop_map(OwnedValue::F64),
        any::<bool>().prop_map(OwnedValue::Bool),
        ".{0,20}".prop_map(OwnedValue::String),
    ];
    prop_oneof![
        scalar,
        vec(any::<u32>(), 0..9).prop_map(OwnedValue::from),
        vec(any::<bool>(), 0..9).prop_map(OwnedValue::from),
        vec(any::<i64>(), 0..9).prop_map(OwnedValue::from),
        vec(".{0,9}", 0..9).prop_map(OwnedValue::from),
        vec(vec(".{0,9}", 0..4).prop_map(OwnedValue::from), 0..4)
            .prop_map(|rows| OwnedValue::Array(ValueType::Array, rows)),
    ]
}

fn tensor() -> impl Strategy<Value = (TensorType, Vec<usize>, Vec<u8>)> {
    (
        prop::sample::select(TensorType::ALL.to_vec()),
        vec(1_usize..4, 1..=4),
    )
        .prop_flat_map(|(ty, mut shape)| {
            *shape.last_mut().unwrap() *= ty.block_elems();
            let bytes = shape.iter().product::<usize>() / ty.block_elems() * ty.block_bytes();
            (Just(ty), Just(shape), vec(any::<u8>(), bytes))
        })
}

fn owned(value: &Value<'_>) -> OwnedValue {
    match *value {
        Value::U8(value) => value.into(),
        Value::I8(value) => value.into(),
        Value::U16(value) => value.into(),
        Value::I16(value) => value.into(),
        Value::U32(value) => value.into(),
        Value::I32(value) => value.into(),
        Value::U64(value) => value.into(),
        Value::I64(value) => value.into(),
        Value::F32(value) => value.into(),
        Value::F64(value) => value.into(),
        Value::Bool(value) => value.into(),
        Value::String(value) => value.into(),
        Value::InvalidString(value) => panic!("{value:?} is not UTF-8"),
        Value::Array(array) => OwnedValue::Array(
            array.element_type(),
            array.iter().map(|value| owned(&value)).collect(),
        ),
    }
}
