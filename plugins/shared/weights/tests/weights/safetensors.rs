//! Safetensors: fixtures, directories, parts, hostile files.

use std::fs;
use std::path::{Path, PathBuf};

use ::safetensors::SafeTensors;
use backplane_weights::safetensors::Dtype;
use backplane_weights::{Checkpoint, Error, TensorType, Weights};
use proptest::collection::vec;
use proptest::prelude::*;

use crate::support::{fixtures, says};

/// A file of this header and data.
pub(crate) fn file(header: &str, data: &[u8]) -> Vec<u8> {
    let length = (header.len() as u64).to_le_bytes();
    [&length[..], header.as_bytes(), data].concat()
}

/// The header with spaces behind it, so that the data starts at a multiple of 8 bytes, as writers do.
pub(crate) fn padded(header: &str) -> String {
    format!("{header:<width$}", width = header.len().next_multiple_of(8))
}

/// A file of F32 tensors of one value each.
pub(crate) fn ones(names: &[&str]) -> Vec<u8> {
    let tensors: Vec<String> = names
        .iter()
        .enumerate()
        .map(|(i, name)| {
            let (begin, end) = (4 * i, 4 * i + 4);
            format!(r#""{name}":{{"dtype":"F32","shape":[1],"data_offsets":[{begin},{end}]}}"#)
        })
        .collect();
    let data = 1.0_f32.to_le_bytes().repeat(names.len());
    file(&padded(&format!("{{{}}}", tensors.join(","))), &data)
}

pub(crate) fn open(bytes: &[u8]) -> Result<Checkpoint, Error> {
    Checkpoint::from_bytes("model.safetensors".as_ref(), bytes)
}

#[track_caller]
fn refused(bytes: &[u8], parts: &[&str]) {
    let error = open(bytes).expect_err("must be refused");
    says(&error, "model.safetensors", parts);
}

fn exhaust(checkpoint: &Checkpoint) {
    for tensor in checkpoint.tensors() {
        let again = checkpoint.require(tensor.name).unwrap();
        assert_eq!((again.data, again.shape), (tensor.data, tensor.shape));
        let values = tensor.shape.iter().product::<usize>();
        match tensor.to_f32() {
            Ok(floats) => assert_eq!(floats.len(), values),
            Err(error) => says(&error, "model.safetensors", &["F32, F16 or BF16"]),
        }
    }
}

fn models() -> Vec<PathBuf> {
    let folders = fs::read_dir(fixtures().join("tiny")).unwrap();
    let mut models: Vec<PathBuf> = folders.map(|folder| folder.unwrap().path()).collect();
    models.sort();
    assert!(models.len() >= 18, "only {} models", models.len());
    models
}

#[test]
fn every_model_holds_what_the_reference_reader_finds() {
    let mut compared = 0;
    for folder in models() {
        assert!(Checkpoint::looks_like(&folder), "{}", folder.display());
        let checkpoint = Checkpoint::open(&folder).unwrap();
        assert_eq!(checkpoint.path(), folder);
        assert_eq!(checkpoint.directory(), folder);
        let mut tensors = 0;
        for file in checkpoint.files() {
            let bytes = fs::read(file).unwrap();
            for (name, reference) in SafeTensors::deserialize(&bytes).unwrap().iter() {
                let tensor = checkpoint.require(name).unwrap();
                assert_eq!(tensor.file, file);
                assert_eq!(tensor.shape, reference.shape(), "{name}");
                assert_eq!(tensor.data, reference.data(), "{name}");
                assert_eq!(tensor.dtype.name(), reference.dtype().to_string(), "{name}");
                assert!(tensor.dtype.ty().is_some(), "{name}");
                tensors += 1;
            }
        }
        assert_eq!(checkpoint.tensors().len(), tensors);
        compared += tensors;
    }
    assert!(compared > 600, "{compared} tensors");
}

#[test]
fn parts_are_one_model_by_whichever_way_it_is_opened() {
    let folder = fixtures().join("tiny/llama3-gqa-sharded");
    let whole = Checkpoint::open(&fixtures().join("tiny/llama3-gqa")).unwrap();
    for name in [
        "",
        "model.safetensors.index.json",
        "model-00002-of-00004.safetensors",
    ] {
        let path = match name {
            "" => folder.clone(),
            name => folder.join(name),
        };
        assert!(Checkpoint::looks_like(&path));
        let parts = Checkpoint::open(&path).unwrap();
        assert_eq!(parts.directory(), folder);
        assert_eq!(parts.files().len(), 4);
        assert_eq!(parts.tensors().len(), whole.tensors().len());
        for tensor in whole.tensors() {
            let part = parts.require(tensor.name).unwrap();
            assert_eq!(part.data, tensor.data, "{}", tensor.name);
        }
    }
}

/// Names and contents of files.
type Files<'a> = &'a [(&'a str, &'a [u8])];

/// A directory with these files.
fn directory(files: Files<'_>) -> tempfile::TempDir {
    let directory = tempfile::tempdir().unwrap();
    for (name, bytes) in files {
        fs::write(directory.path().join(name), bytes).unwrap();
    }
    directory
}

#[track_caller]
fn refused_directory(files: Files<'_>, parts: &[&str]) {
    let directory = directory(files);
    let error = Checkpoint::open(directory.path()).expect_err("must be refused");
    says(&error, directory.path().to_str().unwrap(), parts);
}

#[test]
fn a_directory_without_weights_says_what_it_is() {
    let any: &[u8] = b"x";
    let table: &[(Files<'_>, &str)] = &[
        (&[], "an empty directory"),
        (&[("README.md", any)], "without weights: README.md"),
        (
            &[("config.json", any)],
            "a model's directory without weights",
        ),
        (
            &[("config.json", any), ("pytorch_model.bin", any)],
            "PyTorch checkpoints only: pytorch_model.bin",
        ),
        (
            &[("config.json", any), ("adapter_model.safetensors", any)],
            "a LoRA adapter only",
        ),
        (&[("a.gguf", any)], "GGUF files: a.gguf (name one of them)"),
        (
            &[("a.safetensors", any), ("b.safetensors", any)],
            "several safetensors files: a.safetensors, b.safetensors",
        ),
        (
            &[("model-00001-of-00002.safetensors", any)],
            "without their index: model-00001-of-00002.safetensors",
        ),
    ];
    for (files, found) in table {
        refused_directory(
            files,
            &["expected a directory with model.safetensors", found],
        );
        assert!(!Checkpoint::looks_like(directory(files).path()), "{found}");
    }
    let missing = Path::new("/nonexistent/model");
    assert!(!Checkpoint::looks_like(missing));
    says(
        &Checkpoint::open(missing).unwrap_err(),
        "/nonexistent/model",
        &[],
    );
}

#[test]
fn a_directory_s_one_checkpoint_is_found_by_a_stated_order() {
    let named = |names: &[&str]| ones(names);
    let index = br#"{"weight_map":{"b":"b.safetensors"}}"#;
    let all = directory(&[
        ("model.safetensors", &named(&["a"])),
        ("model.safetensors.index.json", index),
        ("b.safetensors", &named(&["b"])),
    ]);
    let first = |path: &Path| {
        Checkpoint::open(path)
            .unwrap()
            .tensors()
            .next()
            .unwrap()
            .name
            .to_owned()
    };
    assert_eq!(first(all.path()), "a");
    fs::remove_file(all.path().join("model.safetensors")).unwrap();
    assert_eq!(first(all.path()), "b");
    fs::remove_file(all.path().join("model.safetensors.index.json")).unwrap();
    assert_eq!(first(all.path()), "b");
    let other = directory(&[
        ("consolidated.safetensors", b"x"),
        ("other.safetensors.index.json", index),
        ("b.safetensors", &named(&["b"])),
    ]);
    assert_eq!(first(other.path()), "b");
}

fn parts(index: &str) -> tempfile::TempDir {
    directory(&[
        ("model.safetensors.index.json", index.as_bytes()),
        ("one.safetensors", &ones(&["a", "b"])),
        ("two.safetensors", &ones(&["c"])),
        ("again.safetensors", &ones(&["a"])),
    ])
}

#[test]
fn an_index_that_does_not_fit_its_parts_is_refused() {
    let map = |pairs: &str| format!(r#"{{"metadata":{{}},"weight_map":{{{pairs}}}}}"#);
    let good = map(r#""a":"one.safetensors","b":"one.safetensors","c":"two.safetensors""#);
    let opened = Checkpoint::open(parts(&good).path()).unwrap();
    assert_eq!(opened.tensors().len(), 3);
    // A tensor that the index does not name is there all the same: what reads the model decides.
    let surplus = map(r#""a":"one.safetensors","c":"two.safetensors""#);
    let surplus = Checkpoint::open(parts(&surplus).path()).unwrap();
    assert_eq!(surplus.require("b").unwrap().to_f32().unwrap(), [1.0]);

    let table: &[(String, &[&str])] = &[
        (
            map(r#""a":"three.safetensors""#),
            &[
                "three.safetensors: found no file",
                "a part of the model, by",
            ],
        ),
        (
            map(r#""d":"two.safetensors""#),
            &["two.safetensors: tensor d", "no such tensor", "index.json"],
        ),
        (
            map(r#""a":"one.safetensors","b":"two.safetensors""#),
            &["two.safetensors: tensor b", "it in one.safetensors"],
        ),
        (
            map(r#""a":"one.safetensors","c":"again.safetensors""#),
            &["one.safetensors: tensor a", "also in", "again.safetensors"],
        ),
        (
            map(r#""a":"../one.safetensors""#),
            &["\"../one.safetensors\"", "beside the index"],
        ),
        (
            map(r#""a":"/etc/passwd""#),
            &["\"/etc/passwd\"", "beside the index"],
        ),
        (map(r#""a":"sub/one.safetensors""#), &["beside the index"]),
        (map(r#""a":"..\\one.safetensors""#), &["beside the index"]),
        (map(r#""a":"one.safetensors/""#), &["beside the index"]),
        (map(r#""a":"..""#), &["beside the index"]),
        (map(r#""a":"""#), &["beside the index"]),
        (map(r#""a":"one\u0000.safetensors""#), &["beside the index"]),
        (
            map(r#""a":1"#),
            &["index.json: offset", "expected a string"],
        ),
        (map(""), &["an empty weight_map"]),
        (
            map(r#""a":"one.safetensors","a":"again.safetensors""#),
            &["tensor a: the name twice"],
        ),
        ("{}".into(), &["missing field `weight_map`"]),
        ("[".into(), &["offset"]),
        (r#"{"weight_map":"#.into(), &["EOF"]),
        ("[".repeat(100_000), &["index"]),
        ("<html>".into(), &["offset 0"]),
        ("\u{0}".into(), &["offset 0"]),
        (String::new(), &["an empty file"]),
    ];
    for (index, expected) in table {
        let directory = parts(index);
        let error = Checkpoint::open(directory.path()).expect_err(index);
        says(&error, directory.path().to_str().unwrap(), expected);
    }
}

#[test]
fn a_part_whose_index_is_missing_is_not_taken_for_the_model() {
    let name = "model-00001-of-00002.safetensors";
    let directory = directory(&[(name, &ones(&["a"]))]);
    let error = Checkpoint::open(&directory.path().join(name)).unwrap_err();
    says(
        &error,
        name,
        &["one part of several", "model.safetensors.index.json"],
    );
}

#[test]
fn what_is_no_safetensors_file_is_said() {
    let gguf = Weights::open(&fixtures().join("tiny/llama3-gqa/model-f32.gguf")).unwrap();
    let gguf = fs::read(gguf.path()).unwrap();
    let table: &[(&[u8], &str)] = &[
        (&gguf, "a GGUF file"),
        (
            b"version https://git-lfs.github.com/spec/v1\noid",
            "a Git LFS pointer",
        ),
        (b"PK\x03\x04................", "a zip archive"),
        (b"<!doctype html><html></html>", "an HTML page"),
        (b"abc", "a file of 3 bytes"),
        (b"", "an empty file"),
        (&[0; 64], "zeros"),
    ];
    for (bytes, found) in table {
        refused(bytes, &["expected a safetensors file", found]);
    }
    let directory = directory(&[("model.safetensors", b"<html></html>")]);
    let path = directory.path().join("model.safetensors");
    says(
        &Checkpoint::open(&path).unwrap_err(),
        "model.safetensors",
        &["an HTML page"],
    );
    // By its name it is one; by its bytes it isn't.
    assert!(Checkpoint::looks_like(&path));
    assert!(!Checkpoint::looks_like(
        &fixtures().join("tiny/llama3-gqa/model-f32.gguf")
    ));
    assert!(!Checkpoint::looks_like(
        &fixtures().join("tiny/llama3-gqa/config.json")
    ));
}

#[cfg(unix)]
#[test]
fn a_pipe_is_not_waited_for() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("model.safetensors");
    let made = std::process::Command::new("mkfifo").arg(&path).status();
    assert!(made.unwrap().success());
    says(
        &Checkpoint::open(&path).unwrap_err(),
        "model.safetensors",
        &["a pipe"],
    );
    assert!(!Checkpoint::looks_like(&path));
    // Nor where a directory has nothing else.
    assert!(Checkpoint::open(directory.path()).is_err());
}

#[test]
fn hostile_headers_are_refused() {
    let tensor = |dtype: &str, shape: &str, begin: &str, end: &str| {
        format!(r#""w":{{"dtype":"{dtype}","shape":{shape},"data_offsets":[{begin},{end}]}}"#)
    };
    let one = |dtype: &str, shape: &str, begin: &str, end: &str| {
        format!("{{{}}}", tensor(dtype, shape, begin, end))
    };
    let other = r#""v":{"dtype":"F32","shape":[1],"data_offsets":"#;
    let huge = "1152921504606846976"; // 2^60
    let table: &[(String, usize, &[&str])] = &[
        (
            one("F32", "[2]", "0", "4"),
            4,
            &[
                "tensor w",
                "4 bytes by its data_offsets",
                "8 for shape [2] in F32",
            ],
        ),
        (
            one("F32", "[1]", "0", "8"),
            8,
            &["tensor w", "8 bytes", "4 for shape [1]"],
        ),
        (
            one("F32", "[1]", "0", "4"),
            3,
            &["tensor w", "a file of", "cut short"],
        ),
        (
            one("F32", "[1]", "0", "4"),
            5,
            &["end of the data", "1 bytes that are no tensor's"],
        ),
        (
            one("F32", "[1]", "4", "8"),
            8,
            &["tensor w", "data at offset", "the end of the header"],
        ),
        (
            one("F32", "[1]", "4", "0"),
            8,
            &["tensor w", "data_offsets 4 to 0"],
        ),
        (
            one("F32", &format!("[{huge}]"), "0", "4"),
            4,
            &["tensor w", "shape [1152921504606846976]"],
        ),
        (
            one("F32", &format!("[{huge},16]"), "0", "0"),
            0,
            &["tensor w", "64 bits can count"],
        ),
        (
            one("F32", "[4294967296,4294967297]", "0", "4"),
            4,
            &["tensor w", "64 bits can count"],
        ),
        (
            one("F32", &format!("[{huge},0,{huge}]"), "0", "0"),
            0,
            &["tensor w", "64 bits can count"],
        ),
        (
            one("X9", &format!("[{huge}]"), "0", huge),
            4,
            &["tensor w", "cut short"],
        ),
        (
            one("X9", "[1]", "0", "18446744073709551615"),
            4,
            &["tensor w", "cut short"],
        ),
        (
            one("F32", "[1]", "0", "18446744073709551616"),
            4,
            &["offset", "tensor w", "expected u64"],
        ),
        (
            one("F32", "[1]", "-4", "0"),
            4,
            &["tensor w", "expected u64"],
        ),
        (
            one("F32", "[-1]", "0", "4"),
            4,
            &["tensor w", "expected u64"],
        ),
        (
            one("F32", "[1.0]", "0", "4"),
            4,
            &["tensor w", "expected u64"],
        ),
        (
            one("F32", "1", "0", "4"),
            4,
            &["tensor w", "expected a sequence"],
        ),
        (
            one("F4", "[3]", "0", "1"),
            1,
            &["tensor w", "a whole number of bytes"],
        ),
        (
            format!(
                "{{{},{}}}",
                tensor("F32", "[1]", "0", "4"),
                tensor("F32", "[1]", "4", "8")
            ),
            8,
            &["tensor w: the name twice"],
        ),
        (
            format!("{{{},{other}[0,4]}}}}", tensor("F32", "[1]", "0", "4")),
            4,
            &["data at offset", "the end of"],
        ),
        (
            format!("{{{},{other}[2,6]}}}}", tensor("F32", "[1]", "0", "4")),
            6,
            &["tensor v", "the end of w"],
        ),
        (
            format!("{{{},{other}[8,12]}}}}", tensor("F32", "[1]", "0", "4")),
            12,
            &["tensor v", "the end of w"],
        ),
        (
            r#"{"":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}"#.into(),
            4,
            &["an empty name"],
        ),
        (
            r#"{"w":{"dtype":"F32","shape":[1]}}"#.into(),
            4,
            &["tensor w", "missing field `data_offsets`"],
        ),
        (
            r#"{"w":{"dtype":"F32","dtype":"F16","shape":[1],"data_offsets":[0,4]}}"#.into(),
            4,
            &["duplicate field"],
        ),
        (
            r#"{"w":{"dtype":7,"shape":[1],"data_offsets":[0,4]}}"#.into(),
            4,
            &["tensor w", "expected a string"],
        ),
        (
            r#"{"w":{"dtype":"F32","shape":[1],"data_offsets":[0,2,4]}}"#.into(),
            4,
            &["tensor w"],
        ),
        (r#"{"w":null}"#.into(), 0, &["tensor w"]),
        (
            r#"{"w":{"dtype":"F32\n","shape":[1],"data_offsets":[0,5]}}"#.into(),
            4,
            &["cut short"],
        ),
        ("{".into(), 0, &["offset", "EOF"]),
        ("{} x".into(), 0, &["offset", "trailing characters"]),
        (format!("{{\"w\":{}", "[".repeat(100_000)), 0, &["header"]),
    ];
    for (header, data, expected) in table {
        refused(&file(header, &vec![0; *data]), expected);
    }
    for length in [1_u64 << 60, u64::MAX, u64::MAX - 7, 3] {
        let bytes = [&length.to_le_bytes()[..], b"{}"].concat();
        refused(
            &bytes,
            &[
                "offset 0: header's length",
                &format!("{length} bytes"),
                "at most the 2 left",
            ],
        );
    }
    let invalid = [&7_u64.to_le_bytes()[..], b"{\"\xff\":1}"].concat();
    refused(&invalid, &["header"]);
}

#[test]
fn odd_but_valid_headers_are_read() {
    exhaust(&open(&file("{}", &[])).unwrap());
    let spaces = open(&file("{}      ", &[])).unwrap();
    assert_eq!(spaces.tensors().len(), 0);
    let header = r#"{"__metadata__":{"format":"pt"},
        "empty":{"dtype":"F32","shape":[0,5],"data_offsets":[0,0]},
        "scalar":{"dtype":"F32","shape":[],"data_offsets":[0,4]},
        "mask":{"dtype":"BOOL","shape":[3],"data_offsets":[4,7]},
        "ids":{"dtype":"I64","shape":[1],"data_offsets":[7,15]},
        "eight":{"dtype":"F8_E4M3","shape":[2],"data_offsets":[15,17]},
        "new":{"dtype":"X9","shape":[2],"data_offsets":[17,18]}}"#;
    let checkpoint = open(&file(header, &[0; 18])).unwrap();
    let names: Vec<_> = checkpoint.tensors().map(|tensor| tensor.name).collect();
    assert_eq!(names, ["empty", "scalar", "mask", "ids", "eight", "new"]);
    assert_eq!(
        checkpoint.require("scalar").unwrap().to_f32().unwrap(),
        [0.0]
    );
    assert_eq!(checkpoint.require("empty").unwrap().shape, [0, 5]);
    for (name, dtype) in [
        ("mask", "BOOL"),
        ("ids", "I64"),
        ("eight", "F8_E4M3"),
        ("new", "X9"),
    ] {
        let tensor = checkpoint.require(name).unwrap();
        assert_eq!(*tensor.dtype, Dtype::Foreign(dtype.into()));
        let found = format!("dtype {dtype}");
        let error = tensor.to_f32().unwrap_err();
        says(
            &error,
            "model.safetensors",
            &[name, &found, "F32, F16 or BF16"],
        );
    }
    says(
        &checkpoint.require("w").unwrap_err(),
        "model.safetensors",
        &["tensor w: missing"],
    );
}

#[test]
fn a_file_cut_anywhere_is_refused() {
    let bytes = ones(&["a", "b"]);
    exhaust(&open(&bytes).unwrap());
    for length in 0..bytes.len() {
        refused(&bytes[..length], &[]);
    }
    let whole = fs::read(fixtures().join("tiny/llama3-gqa/model.safetensors")).unwrap();
    refused(
        &whole[..whole.len() - 1024],
        &["tensor", "is the file cut short?"],
    );
}

#[test]
fn all_three_dtypes_are_read_as_their_values() {
    let header = r#"{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},
        "b":{"dtype":"F16","shape":[2],"data_offsets":[4,8]},"c":{"dtype":"BF16","shape":[1],"data_offsets":[8,10]}}"#;
    let data = [0, 0, 0x80, 0x3f, 0, 0x3c, 0, 0xc0, 0x40, 0x40];
    let checkpoint = open(&file(header, &data)).unwrap();
    let values = |name| checkpoint.require(name).unwrap().to_f32().unwrap();
    assert_eq!(
        (values("a"), values("b"), values("c")),
        (vec![1.0], vec![1.0, -2.0], vec![3.0])
    );
    let types = ["a", "b", "c"].map(|name| checkpoint.require(name).unwrap().dtype.ty().unwrap());
    assert_eq!(types, [TensorType::F32, TensorType::F16, TensorType::BF16]);
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..Default::default() })]

    #[test]
    fn damage_never_panics(
        flips in vec((any::<prop::sample::Index>(), any::<u8>()), 0..6),
        cut in prop::option::of(any::<prop::sample::Index>()),
    ) {
        let mut bytes = ones(&["model.norm.weight", "b"]);
        for (at, value) in flips {
            let at = at.index(bytes.len());
            bytes[at] = value;
        }
        if let Some(cut) = cut {
            bytes.truncate(cut.index(bytes.len()));
        }
        if let Ok(checkpoint) = open(&bytes) {
            exhaust(&checkpoint);
        }
    }

    #[test]
    fn noise_never_panics(noise in vec(any::<u8>(), 0..200), length in 0_u64..200, brace in any::<bool>()) {
        let start: &[u8] = if brace { b"{\"" } else { b"" };
        let bytes = [&length.to_le_bytes()[..], start, &noise].concat();
        if let Ok(checkpoint) = open(&bytes) {
            exhaust(&checkpoint);
        }
    }

    #[test]
    fn what_the_reference_writer_writes_is_read(
        tensors in prop::collection::btree_map("[a-z0-9.é\"\\\\]{1,12}", (vec(0_usize..4, 0..4), 0_usize..3), 0..6)
    ) {
        use ::safetensors::tensor::TensorView;
        let dtypes = [::safetensors::Dtype::F32, ::safetensors::Dtype::BF16, ::safetensors::Dtype::U8];
        let data = [7_u8; 4 * 64];
        let views: Vec<(&String, TensorView<'_>)> = tensors.iter().map(|(name, (shape, dtype))| {
            let bytes = shape.iter().product::<usize>() * dtypes[*dtype].bitsize() / 8;
            (name, TensorView::new(dtypes[*dtype], shape.clone(), &data[..bytes]).unwrap())
        }).collect();
        let bytes = ::safetensors::serialize(views, None).unwrap();
        let checkpoint = open(&bytes).unwrap();
        prop_assert_eq!(checkpoint.tensors().len(), tensors.len());
        for (name, (shape, dtype)) in &tensors {
            let tensor = checkpoint.require(name).unwrap();
            prop_assert_eq!(tensor.shape, &shape[..]);
            prop_assert_eq!(tensor.dtype.name(), dtypes[*dtype].to_string());
        }
    }
}
