//! Models split over several files.

use std::path::{Path, PathBuf};

use backplane_weights::Weights;
use backplane_weights::writer::GgufWriter;

use crate::support::says;

fn part(number: u16, count: u16, total: i32) -> GgufWriter {
    let mut writer = GgufWriter::new();
    writer
        .add_meta("split.no", number)
        .add_meta("split.count", count)
        .add_meta("split.tensors.count", total);
    if number == 0 {
        writer.add_meta("general.architecture", "llama");
    }
    writer.add_f32(format!("blk.{number}.a"), &[2], &[f32::from(number), 0.0]);
    writer.add_f32(
        format!("blk.{number}.b"),
        &[1, 1],
        &[10.0 + f32::from(number)],
    );
    writer
}

fn name(number: u16, count: u16) -> String {
    format!("mödel-x-{:05}-of-{count:05}.gguf", number + 1)
}

/// A model of three parts, two tensors each.
fn write(folder: &Path) -> Vec<PathBuf> {
    (0..3)
        .map(|number| {
            let path = folder.join(name(number, 3));
            part(number, 3, 6).write_to(&path).unwrap();
            path
        })
        .collect()
}

#[test]
fn any_part_opens_the_whole() {
    let folder = tempfile::tempdir().unwrap();
    let parts = write(folder.path());
    for given in &parts {
        let weights = Weights::open(given).unwrap();
        assert_eq!(weights.path(), given);
        assert_eq!(weights.files(), parts);
        assert_eq!(
            weights.file_bytes(),
            parts
                .iter()
                .map(|path| path.metadata().unwrap().len())
                .sum::<u64>()
        );
        assert_eq!(
            weights
                .metadata()
                .require_str("general.architecture")
                .unwrap(),
            "llama"
        );
        let names: Vec<_> = weights.tensors().map(|info| info.name.as_str()).collect();
        assert_eq!(
            names,
            [
                "blk.0.a", "blk.0.b", "blk.1.a", "blk.1.b", "blk.2.a", "blk.2.b"
            ]
        );
        assert_eq!(weights.require("blk.2.a").unwrap().to_f32(), [2.0, 0.0]);
        assert_eq!(weights.require("blk.1.b").unwrap().to_f32(), [11.0]);
    }
}

#[test]
fn a_missing_part_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let parts = write(folder.path());
    std::fs::remove_file(&parts[2]).unwrap();
    let error = Weights::open(&parts[1]).unwrap_err();
    says(
        &error,
        "mödel-x-00003-of-00003.gguf",
        &["no file", "part 3 of 3"],
    );
}

#[test]
fn parts_that_do_not_fit() {
    let folder = tempfile::tempdir().unwrap();
    let parts = write(folder.path());
    let open = || Weights::open(&parts[0]).unwrap_err();

    part(1, 3, 6).write_to(&parts[2]).unwrap();
    says(
        &open(),
        "00003-of-00003",
        &["part 2 of 3 by split.no", "part 3 of 3 by its name"],
    );
    part(2, 4, 6).write_to(&parts[2]).unwrap();
    says(
        &open(),
        "00003-of-00003",
        &["part 3 of 4 by", "part 3 of 3 by its name"],
    );
    part(2, 3, 7).write_to(&parts[2]).unwrap();
    says(&open(), "00003-of-00003", &["7 tensors", "expected 6"]);
    GgufWriter::new().write_to(&parts[2]).unwrap();
    says(&open(), "00003-of-00003", &["no key split.count"]);
    part(2, 3, 6)
        .add_f32("extra", &[1], &[1.0])
        .write_to(&parts[2])
        .unwrap();
    says(
        &open(),
        "00001-of-00003",
        &["7 tensors in the 3 parts", "expected 6"],
    );
    let mut twice = part(2, 3, 7);
    twice.add_f32("blk.0.a", &[1], &[1.0]);
    for (number, path) in parts.iter().enumerate().take(2) {
        part(number as u16, 3, 7).write_to(path).unwrap();
    }
    twice.write_to(&parts[2]).unwrap();
    says(&open(), "00003-of-00003", &["tensor blk.0.a", "twice"]);
    std::fs::write(&parts[2], "<html>").unwrap();
    says(&open(), "00003-of-00003", &["an HTML page"]);
}

#[test]
fn renamed_parts_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    part(0, 3, 6).write_to(&path).unwrap();
    says(
        &Weights::open(&path).unwrap_err(),
        "model.gguf",
        &["one of 3 parts", "-00001-of-00003.gguf"],
    );
    let path = folder.path().join(name(0, 3));
    GgufWriter::new()
        .add_meta("split.no", 0_u16)
        .add_meta("split.count", 3_u16)
        .write_to(&path)
        .unwrap();
    says(
        &Weights::open(&path).unwrap_err(),
        "00001-of-00003",
        &["no key split.tensors.count"],
    );
    GgufWriter::new()
        .add_meta("split.count", "three")
        .write_to(&path)
        .unwrap();
    says(
        &Weights::open(&path).unwrap_err(),
        "00001-of-00003",
        &["key split.count", "string \"three\""],
    );
}

#[test]
fn names_that_only_look_split() {
    let folder = tempfile::tempdir().unwrap();
    for name in [
        "m-00002-of-00001.gguf",
        "m-00000-of-00003.gguf",
        "m-1-of-3.gguf",
        "m-00001-of-00001.gguf",
        "00001.gguf",
    ] {
        let path = folder.path().join(name);
        GgufWriter::new()
            .add_f32("t", &[1], &[1.0])
            .write_to(&path)
            .unwrap();
        assert_eq!(Weights::open(&path).unwrap().files(), [path], "{name}");
    }
}
