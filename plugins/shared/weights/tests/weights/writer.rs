//! What the writer refuses, and that both ways of writing agree.

use backplane_weights::TensorType;
use backplane_weights::writer::{GgufWriter, OwnedValue};
use backplane_weights::{Value, ValueType};

use crate::support::{open, says};

#[track_caller]
fn unwritable(fill: impl FnOnce(&mut GgufWriter), parts: &[&str]) {
    let mut writer = GgufWriter::new();
    fill(&mut writer);
    let message = writer.to_bytes().unwrap_err().to_string();
    for part in parts {
        assert!(message.contains(part), "no `{part}` in: {message}");
    }
}

#[test]
fn what_the_reader_would_refuse_is_not_written() {
    unwritable(|writer| _ = writer.version(1), &["version 1", "2 or 3"]);
    unwritable(|writer| _ = writer.alignment(24), &["alignment", "24"]);
    unwritable(
        |writer| _ = writer.add_meta("general.alignment", 64_u32),
        &["key general.alignment", "U32(64)"],
    );
    unwritable(
        |writer| _ = writer.add_meta("k", 1_u8).add_meta("k", 2_u8),
        &["key k", "twice"],
    );
    unwritable(|writer| _ = writer.add_meta("", 1_u8), &["key", "empty"]);
    unwritable(
        |writer| _ = writer.add_meta("k", "x".repeat((1 << 20) + 1)),
        &["key k", "1048577"],
    );
    unwritable(
        |writer| _ = writer.add_meta("k".repeat(65_537), 1_u8),
        &["key", "65537"],
    );
    let mixed = OwnedValue::Array(
        ValueType::U8,
        vec![OwnedValue::U8(1), OwnedValue::Bool(true)],
    );
    unwritable(
        |writer| _ = writer.add_meta("k", mixed),
        &["key k", "type bool", "expected u8"],
    );
    let deep = (0..5).fold(OwnedValue::U8(1), |value, _| {
        OwnedValue::Array(value.value_type(), vec![value])
    });
    unwritable(
        |writer| _ = writer.add_meta("k", deep),
        &["key k", "4 levels"],
    );
    unwritable(
        |writer| _ = writer.add_f32("t", &[1], &[1.0]).add_f32("t", &[1], &[1.0]),
        &["tensor t", "twice"],
    );
    unwritable(
        |writer| _ = writer.add_f32("t", &[], &[1.0]),
        &["tensor t", "[]"],
    );
    unwritable(
        |writer| _ = writer.add_f32("t", &[2, 0], &[]),
        &["tensor t", "[2, 0]"],
    );
    unwritable(
        |writer| _ = writer.add_f32("t", &[1; 5], &[1.0]),
        &["tensor t", "1 to 4"],
    );
    unwritable(
        |writer| _ = writer.add_f32("t", &[3], &[1.0]),
        &["tensor t", "4 bytes", "12 for [3] in F32"],
    );
    unwritable(
        |writer| _ = writer.add_tensor("t", TensorType::Q4_0, &[1, 40], [0; 18]),
        &["[1, 40]", "32 values in Q4_0"],
    );
    unwritable(
        |writer| _ = writer.add_tensor("t", TensorType::F32, &[usize::MAX, 2], []),
        &["tensor t"],
    );
}

#[test]
fn both_ways_of_writing_agree() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.gguf");
    let mut writer = GgufWriter::default();
    writer
        .version(2)
        .alignment(256)
        .add_meta("k", "v")
        .add_f32("a", &[3], &[1.0, 2.0, 3.0]);
    writer.add_tensor("b", TensorType::Q8_0, &[2, 32], [1; 68]);
    writer.write_to(&path).unwrap();
    let bytes = writer.to_bytes().unwrap();
    assert_eq!(std::fs::read(&path).unwrap(), bytes);
    let weights = open(&bytes).unwrap();
    assert_eq!(weights.metadata().version(), 2);
    assert_eq!(
        weights.metadata().get("general.alignment"),
        Some(Value::U32(256))
    );
    assert_eq!(weights.require("b").unwrap().data, [1; 68]);
    assert_eq!(weights.require("b").unwrap().data.as_ptr().addr() % 256, 0);
    assert!(
        writer
            .write_to(&folder.path().join("no/such/folder.gguf"))
            .unwrap_err()
            .to_string()
            .contains("folder.gguf")
    );
}

#[test]
fn a_stream_writes_the_same_file_in_any_pieces() {
    let tensors = [("a", 5_usize), ("b", 64), ("c", 1)];
    let bytes = |length: usize| -> Vec<u8> { (0..4 * length).map(|at| at as u8).collect() };
    let (mut whole, mut declared) = (GgufWriter::new(), GgufWriter::new());
    for (name, length) in tensors {
        whole.add_tensor(name, TensorType::F32, &[length], bytes(length));
        declared.declare_tensor(name, TensorType::F32, &[length]);
    }
    let expected = whole.to_bytes().unwrap();
    for piece in [1, 3, 20, 1000] {
        let mut stream = declared.begin("file".as_ref(), Vec::new()).unwrap();
        for (_, length) in tensors {
            for part in bytes(length).chunks(piece) {
                stream.write(part).unwrap();
            }
        }
        let (out, written) = stream.finish().unwrap();
        assert_eq!((out.len() as u64, &out), (written, &expected));
    }

    says(
        &declared.to_bytes().unwrap_err(),
        "tensor a",
        &["20 bytes too few"],
    );
    let mut stream = declared.begin("file".as_ref(), Vec::new()).unwrap();
    says(
        &stream.write(&[0; 21]).unwrap_err(),
        "tensor a",
        &["found 21 bytes, expected 20 bytes"],
    );
    stream.write(&[0; 20]).unwrap();
    stream.write(&[0; 256]).unwrap();
    stream.write(&[0; 2]).unwrap();
    says(
        &stream.finish().err().unwrap(),
        "tensor c",
        &["2 bytes too few"],
    );
    let mut none = GgufWriter::new()
        .begin("file".as_ref(), Vec::new())
        .unwrap();
    says(&none.write(&[0]).unwrap_err(), "file", &["no more tensors"]);

    /// A disk that is full.
    struct Full;
    impl std::io::Write for Full {
        fn write(&mut self, _: &[u8]) -> std::io::Result<usize> {
            Err(std::io::ErrorKind::StorageFull.into())
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }
    let error = declared.begin("full.gguf".as_ref(), Full).err().unwrap();
    says(&error, "full.gguf", &["no storage space"]);
}
