//! Files made to break readers: each is refused in one line that says where and why.

use crate::support::{ARRAY, BOOL, I32, Raw, STRING, U8, U32, open, refused};

const F32: u32 = 0;
const Q4_K: u32 = 12;

/// A file of one tensor `t` whose data takes `data` bytes.
fn one(dimensions: &[u64], ty: u32, offset: u64, data: usize) -> Raw {
    let raw = Raw::new(3, 1, 0)
        .tensor("t", dimensions, ty, offset)
        .pad(32);
    let length = raw.0.len();
    let mut raw = raw;
    raw.0.resize(length + data, 0);
    raw
}

#[test]
fn the_plain_file_is_fine() {
    let weights = open(&one(&[4, 2], F32, 0, 32).0).unwrap();
    assert_eq!(weights.require("t").unwrap().info.shape, [2, 4]);
    assert_eq!(weights.require("t").unwrap().to_f32(), [0.0; 8]);
}

#[test]
fn zero_dimensions() {
    one(&[1, 0], F32, 0, 0).refused(&["tensor t", "dimension 1 of length 0"]);
    one(&[0], F32, 0, 0).refused(&["tensor t", "dimension 0 of length 0"]);
    one(&[0, u64::MAX, u64::MAX], F32, 0, 0).refused(&["dimension 0 of length 0"]);
}

#[test]
fn numbers_of_dimensions() {
    one(&[], F32, 0, 64).refused(&["tensor t", "0 dimensions", "1 to 4"]);
    one(&[1; 5], F32, 0, 64).refused(&["tensor t", "5 dimensions", "1 to 4"]);
    Raw::new(3, 1, 0)
        .string("t")
        .u32(u32::MAX)
        .pad(64)
        .refused(&["4294967295 dimensions"]);
}

#[test]
fn lengths_trusted() {
    // A key whose length points far beyond a 32-byte file.
    let raw = Raw::new(3, 0, 1).u64(0xFFFF_FFFF_FFFF);
    assert_eq!(raw.0.len(), 32);
    // No metadata entry fits in the 8 bytes that are left: the count itself is wrong.
    raw.refused(&["offset 16", "metadata count", "found 1", "at most 0"]);
    raw.pad(64).refused(&[
        "offset 24",
        "metadata key",
        "281474976710655",
        "at most 65536",
    ]);
    Raw::new(3, 0, 1).u64(50).pad(64).refused(&[
        "offset 24",
        "metadata key",
        "50 bytes",
        "at most the 32",
    ]);
    Raw::new(3, 0, 1)
        .u64(u64::MAX)
        .pad(64)
        .refused(&["offset 24", "18446744073709551615"]);

    let key = |ty| Raw::new(3, 0, 1).key("k", ty);
    key(STRING).u64(1 << 30).pad(64).refused(&[
        "offset 37",
        "key k",
        "1073741824",
        "at most 1048576",
    ]);
    key(STRING)
        .u64(20)
        .pad(64)
        .refused(&["offset 37", "key k", "20 bytes", "at most the 19"]);
    key(ARRAY).u32(U8).u64(1 << 60).refused(&[
        "offset 41",
        "key k",
        "1152921504606846976 elements of type u8",
        "at most 0",
    ]);
    key(ARRAY)
        .u32(STRING)
        .u64(1 << 60)
        .pad(256)
        .refused(&["offset 41", "at most 25"]);
    key(ARRAY)
        .u32(12)
        .u64(1 << 61)
        .pad(256)
        .refused(&["offset 41", "at most 25"]);
    key(U32)
        .u8(0)
        .refused(&["offset 37", "key k", "after 1 bytes", "4 bytes"]);
    key(ARRAY).u32(STRING).u64(2).string("a").u64(9).refused(&[
        "offset 58",
        "array's string of key k",
        "9 bytes",
        "the 0",
    ]);
}

#[test]
fn counts_trusted() {
    Raw::new(3, u64::MAX, 0).refused(&[
        "offset 8",
        "tensor count",
        "18446744073709551615",
        "at most 0",
    ]);
    Raw::new(3, 0, 1 << 40).pad(128).refused(&[
        "offset 16",
        "metadata count",
        "1099511627776",
        "at most 8",
    ]);
    Raw::new(3, 3, 0)
        .pad(128)
        .refused(&["tensor number 0", "name", "an empty string"]);
}

#[test]
fn strings_are_capped() {
    let file = |length: usize| {
        Raw::new(3, 0, 1)
            .key("k", STRING)
            .string(vec![b'a'; length])
    };
    assert_eq!(
        open(&file(1 << 20).0)
            .unwrap()
            .metadata()
            .require_str("k")
            .unwrap()
            .len(),
        1 << 20
    );
    file((1 << 20) + 1).refused(&["key k", "1048577 bytes", "at most 1048576"]);
    let key = |length: usize| Raw::new(3, 0, 1).key(&"k".repeat(length), U8).u8(7);
    assert!(open(&key(1 << 16).0).is_ok());
    key((1 << 16) + 1).refused(&["metadata key", "65537 bytes", "at most 65536"]);
}

#[test]
fn products_that_wrap() {
    one(&[1 << 22, (1 << 42) + 1], F32, 0, 64)
        .refused(&["tensor t", "dimensions [4194304, 4398046511105]"]);
    one(&[1 << 31, 1 << 31], F32, 0, 64).refused(&["tensor t", "[2147483648, 2147483648]"]);
    one(&[1 << 32, 1 << 32, 1 << 32, 1 << 32], F32, 0, 64).refused(&["tensor t"]);
    // Wraps to 4 bytes if the product isn't checked.
    one(&[(1 << 62) + 1], F32, 0, 64).refused(&["tensor t", "a size that 64 bits can count"]);
    one(&[1 << 40], F32, 0, 64).refused(&[
        "tensor t",
        "a file of 128 bytes",
        "4398046511104 bytes of data",
    ]);
}

#[test]
fn offsets() {
    one(&[1], F32, u64::MAX - 31, 64).refused(&[
        "tensor t",
        "offset 18446744073709551584",
        "an offset in the file",
    ]);
    one(&[1], F32, u64::MAX - 95, 64).refused(&["tensor t", "at least 18446744073709551588"]);
    one(&[1], F32, 4, 64).refused(&["tensor t", "offset 4", "multiple of the alignment 32"]);
    one(&[1], F32, 64, 64).refused(&["tensor t", "a file of 128 bytes", "at least 132"]);
    assert!(open(&one(&[1], F32, 32, 64).0).is_ok());
}

#[test]
fn tensors_that_overlap() {
    let two = |offset| {
        Raw::new(3, 2, 0)
            .tensor("a", &[16], F32, 0)
            .tensor("b", &[1], F32, offset)
            .pad(32)
            .bytes(&[0; 128])
    };
    two(0).refused(&["data at offset", "inside that of"]);
    two(32).refused(&["tensor b", "inside that of a"]);
    assert!(open(&two(64).0).is_ok());
    assert!(open(&two(96).0).is_ok());
}

#[test]
fn rows_of_broken_blocks() {
    one(&[128, 2], Q4_K, 0, 144).refused(&["tensor t", "[128, 2]", "divisible by 256", "Q4_K"]);
    assert!(open(&one(&[256, 1], Q4_K, 0, 144).0).is_ok());
}

#[test]
fn alignment() {
    let file = |ty, value: u32, offset| {
        Raw::new(3, 2, 1)
            .key("general.alignment", ty)
            .u32(value)
            .tensor("a", &[1], F32, 0)
            .tensor("b", &[1], F32, offset)
            .pad(64)
            .bytes(&[1; 128])
    };
    for value in [0, 1, 3, 4, 24, 1 << 21, 1 << 30, u32::MAX] {
        file(U32, value, 64).refused(&[
            "key general.alignment",
            &format!("found {value}"),
            "power of two",
        ]);
    }
    file(I32, 64, 64).refused(&["key general.alignment", "type i32", "u32"]);
    file(6, 64, 64).refused(&["key general.alignment", "type f32", "u32"]);
    assert!(open(&file(U32, 64, 64).0).is_ok());
    file(U32, 64, 32).refused(&["tensor b", "offset 32", "multiple of the alignment 64"]);
    assert!(open(&file(U32, 8, 8).0).is_ok());
}

#[test]
fn names_twice_or_empty() {
    Raw::new(3, 0, 2)
        .key("k", U8)
        .u8(1)
        .key("k", U8)
        .u8(1)
        .refused(&["key k", "twice"]);
    let twice = Raw::new(3, 2, 0)
        .tensor("t", &[1], F32, 0)
        .tensor("t", &[1], F32, 32)
        .pad(32)
        .bytes(&[0; 64]);
    twice.refused(&["tensor t", "twice"]);
    Raw::new(3, 0, 1)
        .key("", U8)
        .u8(1)
        .pad(64)
        .refused(&["offset 24", "metadata key", "empty"]);
    Raw::new(3, 1, 0)
        .tensor("", &[1], F32, 0)
        .pad(96)
        .refused(&["offset 24", "name", "empty"]);
}

#[test]
fn text_that_is_not_utf8() {
    Raw::new(3, 0, 1).string(b"k\xff").u32(U8).u8(1).refused(&[
        "offset 32",
        "metadata key",
        "valid UTF-8",
    ]);
    let tensor = Raw::new(3, 1, 0)
        .string(b"\xc3(")
        .u32(1)
        .u64(1)
        .u32(F32)
        .u64(0)
        .pad(96);
    tensor.refused(&["offset 32", "tensor number 0", "valid UTF-8"]);
    let weights = open(&Raw::new(3, 0, 1).key("k", STRING).string(b"ab\xff").0).unwrap();
    let error = weights.metadata().require_str("k").unwrap_err().to_string();
    assert!(
        error.contains("key k") && error.contains("not UTF-8"),
        "{error}"
    );
    assert!(weights.metadata().str("k").is_err());
    assert_eq!(
        weights.metadata().get("k").unwrap().to_string(),
        "\"ab\u{fffd}\""
    );
}

#[test]
fn messages_stay_on_one_line() {
    Raw::new(3, 0, 2)
        .key("a\nb\u{7}", U8)
        .u8(1)
        .key("a\nb\u{7}", U8)
        .u8(1)
        .refused(&["a\\nb"]);
    let long = "x".repeat(5000);
    let message = open(&Raw::new(3, 0, 1).key(&long, 99).u8(1).0)
        .unwrap_err()
        .to_string();
    assert!(message.len() < 400, "{message}");
}

#[test]
fn types_unknown() {
    Raw::new(3, 0, 1)
        .key("k", 13)
        .u8(1)
        .refused(&["offset 33", "key k", "13", "0 to 12"]);
    Raw::new(3, 0, 1)
        .key("k", ARRAY)
        .u32(99)
        .u64(0)
        .refused(&["offset 37", "key k", "99"]);
    Raw::new(3, 0, 1).key("k", BOOL).u8(2).refused(&[
        "offset 37",
        "key k",
        "bool",
        "found 2",
        "0 or 1",
    ]);
    one(&[256], 15, 0, 512).refused(&[
        "tensor t",
        "Q8_K is not supported",
        "F32, F16, BF16, Q8_0",
        "Q6_K",
    ]);
    one(&[256], 40, 0, 512).refused(&["tensor t", "NVFP4 is not supported"]);
    one(&[256], 4711, 0, 512).refused(&["tensor t", "number 4711 is not supported"]);
}

#[test]
fn arrays_too_deep() {
    let nested = |levels: u32| {
        let raw = Raw::new(3, 0, 1).key("k", ARRAY);
        (1..levels)
            .fold(raw, |raw, _| raw.u32(ARRAY).u64(1))
            .u32(U8)
            .u64(1)
            .u8(5)
    };
    let weights = open(&nested(4).0).unwrap();
    assert_eq!(
        weights.metadata().get("k").unwrap().to_string(),
        "1 array [1 array [1 array [1 u8 [5]]]]"
    );
    nested(5).refused(&["key k", "too many arrays", "4 levels"]);
    nested(100_000).refused(&["key k", "too many arrays", "4 levels"]);
}

#[test]
fn versions() {
    for (version, found) in [
        (0, "version 0"),
        (1, "version 1"),
        (4, "version 4"),
        (0x0300_0000, "a big-endian file of version 3"),
        (0x0200_0000, "a big-endian file of version 2"),
        (0xdead_beef, "version 3735928559"),
    ] {
        Raw::new(version, 0, 0).refused(&["version 2 or 3", found]);
    }
    // Version 1 had counts of 32 bits.
    Raw(b"GGUF".to_vec())
        .u32(1)
        .u32(0)
        .u32(0)
        .refused(&["found version 1"]);
    for version in [2, 3] {
        let weights = open(&Raw::new(version, 0, 1).key("k", U8).u8(9).0).unwrap();
        assert_eq!(weights.metadata().version(), version);
        assert_eq!(weights.metadata().require_u32("k").unwrap(), 9);
        assert_eq!(weights.tensors().count(), 0);
    }
}

#[test]
fn cut_at_every_byte() {
    let whole = Raw::new(3, 1, 2)
        .key("k", STRING)
        .string("value")
        .key("list", ARRAY)
        .u32(STRING)
        .u64(2)
        .string("a")
        .string("bc")
        .tensor("t", &[4], F32, 0)
        .pad(32)
        .bytes(&[1; 16]);
    assert!(open(&whole.0).is_ok());
    for length in 0..whole.0.len() {
        refused(&whole.0[..length], &[]);
    }
    let short = whole.0.len() - 1;
    let expected = format!("at least {}", whole.0.len());
    refused(
        &whole.0[..short],
        &[
            "tensor t",
            &format!("a file of {short} bytes"),
            &expected,
            "cut short",
        ],
    );
}
