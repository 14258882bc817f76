//! Typed reading of metadata.

use backplane_weights::writer::{GgufWriter, OwnedValue};
use backplane_weights::{Value, ValueType, Weights};

use crate::support::{ARRAY, BOOL, Raw, open, says};

fn with(fill: impl FnOnce(&mut GgufWriter)) -> Weights {
    let mut writer = GgufWriter::new();
    fill(&mut writer);
    open(&writer.to_bytes().unwrap()).unwrap()
}

#[test]
fn integers_of_any_type_that_fit() {
    let weights = with(|writer| {
        writer
            .add_meta("u8", 200_u8)
            .add_meta("i8", -3_i8)
            .add_meta("u16", 60_000_u16)
            .add_meta("i16", 7_i16);
        writer
            .add_meta("u32", u32::MAX)
            .add_meta("i32", -1_i32)
            .add_meta("u64", u64::MAX)
            .add_meta("i64", 5_i64);
        writer
            .add_meta("f32", 1.5_f32)
            .add_meta("f64", 0.5_f64)
            .add_meta("bool", true)
            .add_meta("str", "Grüße");
    });
    let meta = weights.metadata();
    assert_eq!(meta.keys().count(), 12);
    for (key, value) in [
        ("u8", 200),
        ("u16", 60_000),
        ("i16", 7),
        ("u32", u32::MAX),
        ("i64", 5),
    ] {
        assert_eq!(meta.u32(key).unwrap(), Some(value), "{key}");
        assert_eq!(meta.require_u32(key).unwrap(), value, "{key}");
        assert_eq!(meta.u64(key).unwrap(), Some(value.into()), "{key}");
        assert_eq!(meta.require_usize(key).unwrap(), value as usize, "{key}");
    }
    assert_eq!(meta.u64("u64").unwrap(), Some(u64::MAX));
    assert_eq!(meta.f32("f32").unwrap(), Some(1.5));
    assert_eq!(meta.require_f32("f64").unwrap(), 0.5);
    assert_eq!(meta.bool("bool").unwrap(), Some(true));
    assert_eq!(meta.require_str("str").unwrap(), "Grüße");
    assert_eq!(meta.get("i8"), Some(Value::I8(-3)));
    assert_eq!(meta.get("absent"), None);
    assert_eq!(meta.u32("absent").unwrap(), None);

    says(
        &meta.u32("i32").unwrap_err(),
        "model.gguf",
        &["key i32", "found i32 -1", "expected u32"],
    );
    says(
        &meta.u32("u64").unwrap_err(),
        "model.gguf",
        &["key u64", "u64 18446744073709551615", "expected u32"],
    );
    says(
        &meta.u32("f32").unwrap_err(),
        "model.gguf",
        &["key f32", "f32 1.5", "expected u32"],
    );
    says(
        &meta.f32("u8").unwrap_err(),
        "model.gguf",
        &["key u8", "u8 200", "expected f32"],
    );
    says(
        &meta.bool("u8").unwrap_err(),
        "model.gguf",
        &["expected bool"],
    );
    says(
        &meta.str("u8").unwrap_err(),
        "model.gguf",
        &["expected string"],
    );
    says(
        &meta.array("str").unwrap_err(),
        "model.gguf",
        &["key str", "string \"Grüße\"", "expected array"],
    );
    says(
        &meta.require_u32("absent").unwrap_err(),
        "model.gguf",
        &["key absent", "missing", "u32"],
    );
    says(
        &meta.require_usize("absent").unwrap_err(),
        "model.gguf",
        &["key absent", "missing"],
    );
    says(
        &meta.require_str("absent").unwrap_err(),
        "model.gguf",
        &["key absent", "missing", "string"],
    );
    says(
        &meta.require_f32("absent").unwrap_err(),
        "model.gguf",
        &["key absent", "missing", "f32"],
    );
    says(
        &meta.require_array("absent").unwrap_err(),
        "model.gguf",
        &["key absent", "missing", "array"],
    );
}

#[test]
fn arrays() {
    let weights = with(|writer| {
        writer
            .add_meta("strings", vec!["a", "", "ünï"])
            .add_meta("u32s", vec![1_u32, 2, u32::MAX]);
        writer
            .add_meta("i32s", vec![-1_i32, 5])
            .add_meta("f32s", vec![0.5_f32; 9])
            .add_meta("bools", vec![true, false]);
        writer
            .add_meta("none", Vec::<u64>::new())
            .add_meta("f64s", vec![0.25_f64]);
    });
    let array = |key: &str| weights.metadata().require_array(key).unwrap();
    assert_eq!(
        array("strings").strings().unwrap().collect::<Vec<_>>(),
        ["a", "", "ünï"]
    );
    assert_eq!(array("strings").strings().unwrap().len(), 3);
    assert_eq!(array("u32s").u32s().unwrap(), [1, 2, u32::MAX]);
    assert_eq!(array("i32s").i32s().unwrap(), [-1, 5]);
    assert_eq!(array("f32s").f32s().unwrap(), [0.5; 9]);
    assert_eq!(array("f64s").f32s().unwrap(), [0.25]);
    assert_eq!(array("bools").bools().unwrap(), [true, false]);
    assert_eq!(array("none").u32s().unwrap(), [0_u32; 0]);
    assert!(array("none").is_empty());
    assert_eq!(array("none").element_type(), ValueType::U64);
    assert_eq!(
        weights.metadata().get("f32s").unwrap().to_string(),
        "9 f32 [0.5, 0.5, 0.5, 0.5, …]"
    );
    assert_eq!(
        weights.metadata().get("strings").unwrap().to_string(),
        "3 string [\"a\", \"\", \"ünï\"]"
    );

    says(
        &array("i32s").u32s().unwrap_err(),
        "model.gguf",
        &["key i32s", "element 0: i32 -1", "array of u32"],
    );
    says(
        &array("u32s").i32s().unwrap_err(),
        "model.gguf",
        &["element 2: u32 4294967295", "array of i32"],
    );
    says(
        &array("u32s").f32s().unwrap_err(),
        "model.gguf",
        &["key u32s", "array of f32"],
    );
    assert!(
        array("u32s")
            .strings()
            .is_err_and(|error| error.to_string().contains("array of strings"))
    );
    says(
        &array("u32s").bools().unwrap_err(),
        "model.gguf",
        &["array of bool"],
    );
    says(
        &array("u32s").arrays().unwrap_err(),
        "model.gguf",
        &["array of arrays"],
    );
}

#[test]
fn broken_elements_are_found_when_read() {
    let bools = open(
        &Raw::new(3, 0, 1)
            .key("k", ARRAY)
            .u32(BOOL)
            .u64(2)
            .u8(1)
            .u8(9)
            .0,
    )
    .unwrap();
    let array = bools.metadata().require_array("k").unwrap();
    says(
        &array.bools().unwrap_err(),
        "model.gguf",
        &["key k", "element 1: byte 9", "0 or 1"],
    );
    let strings = open(
        &Raw::new(3, 0, 1)
            .key("k", ARRAY)
            .u32(8)
            .u64(2)
            .string("a")
            .string(b"\xff")
            .0,
    )
    .unwrap();
    let error = strings
        .metadata()
        .require_array("k")
        .unwrap()
        .strings()
        .err()
        .unwrap();
    says(&error, "model.gguf", &["key k", "element 1", "not UTF-8"]);
}

#[test]
fn strings_of_all_lengths_in_any_order() {
    let strings: Vec<String> = (0..700_usize)
        .map(|at| {
            "aé€😊"
                .chars()
                .cycle()
                .skip(at)
                .take(at * 37 % 300)
                .collect()
        })
        .collect();
    let long = [
        "x".repeat(127),
        "x".repeat(128),
        "x".repeat(1 << 15),
        String::new(),
        "x".repeat(1 << 20),
    ];
    for strings in [strings, long.to_vec(), long[1..2].to_vec(), vec![]] {
        let weights = with(|writer| _ = writer.add_meta("k", strings.clone()));
        let array = weights.metadata().require_array("k").unwrap();
        assert_eq!(array.strings().unwrap().collect::<Vec<_>>(), strings);
    }
}

#[test]
fn a_character_never_spans_two_strings() {
    // The two halves of é, in strings of their own, and around a long string.
    for filler in [vec![], vec![b'x'; 5], vec![b'x'; 200]] {
        let raw = Raw::new(3, 0, 1)
            .key("k", ARRAY)
            .u32(8)
            .u64(3)
            .string(b"a\xc3")
            .string(&filler)
            .string(b"\xa9b");
        let weights = open(&raw.0).unwrap();
        let error = weights
            .metadata()
            .require_array("k")
            .unwrap()
            .strings()
            .err()
            .unwrap();
        says(&error, "model.gguf", &["key k", "element 0", "not UTF-8"]);
    }
}

#[test]
fn arrays_in_arrays() {
    let rows = vec![
        OwnedValue::from(vec![1_u32, 2]),
        OwnedValue::from(vec!["x", "yz"]),
        OwnedValue::from(Vec::<u8>::new()),
    ];
    let weights = with(|writer| {
        writer
            .add_meta("rows", OwnedValue::Array(ValueType::Array, rows))
            .add_meta("after", 7_u8);
    });
    let rows = weights
        .metadata()
        .require_array("rows")
        .unwrap()
        .arrays()
        .unwrap();
    assert_eq!(rows.len(), 3);
    assert_eq!(rows[0].u32s().unwrap(), [1, 2]);
    assert_eq!(rows[1].strings().unwrap().collect::<Vec<_>>(), ["x", "yz"]);
    assert!(rows[2].is_empty());
    assert_eq!(weights.metadata().require_u32("after").unwrap(), 7);
}

#[test]
fn one_number_a_layer() {
    let weights = with(|writer| {
        writer
            .add_meta("scalar", 8_u32)
            .add_meta("each", vec![8_i32, 0, 4])
            .add_meta("bad", vec![8_i32, -1, 4]);
        writer.add_meta("text", "8");
    });
    let meta = weights.metadata();
    assert_eq!(
        meta.per_layer_usize("scalar", 3).unwrap(),
        Some(vec![8, 8, 8])
    );
    assert_eq!(
        meta.per_layer_usize("each", 3).unwrap(),
        Some(vec![8, 0, 4])
    );
    assert_eq!(meta.per_layer_usize("absent", 3).unwrap(), None);
    says(
        &meta.per_layer_usize("each", 2).unwrap_err(),
        "model.gguf",
        &["key each", "an array of 3", "an array of 2"],
    );
    says(
        &meta.per_layer_usize("bad", 3).unwrap_err(),
        "model.gguf",
        &["key bad", "element 1: i32 -1"],
    );
    says(
        &meta.per_layer_usize("text", 3).unwrap_err(),
        "model.gguf",
        &["key text", "string \"8\""],
    );
    says(
        &meta.per_layer_usize("scalar", usize::MAX).unwrap_err(),
        "model.gguf",
        &["key scalar", "at most 65536"],
    );
}
