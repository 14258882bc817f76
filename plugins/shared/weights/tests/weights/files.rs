//! What lies on disk: things that aren't GGUF, odd names, missing files.

use std::path::Path;

use backplane_weights::writer::GgufWriter;
use backplane_weights::{Metadata, Weights};

use crate::support::says;

fn small() -> GgufWriter {
    let mut writer = GgufWriter::new();
    writer
        .add_meta("general.architecture", "llama")
        .add_f32("t", &[2, 2], &[1.0, 2.0, 3.0, 4.0]);
    writer
}

#[test]
fn what_is_not_gguf_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    let header = br#"{"t":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}"#;
    let safetensors = [&(header.len() as u64).to_le_bytes()[..], header, &[0; 4]].concat();
    let lfs = b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 7\n";
    let cases: &[(&[u8], &str)] = &[
        (b"", "an empty file"),
        (
            b"<!DOCTYPE html>\n<html><body>Not found</body></html>",
            "an HTML page",
        ),
        (b"\n\n  <HTML lang=en>", "an HTML page"),
        (b"\xef\xbb\xbf<html>", "an HTML page"),
        (lfs, "a Git LFS pointer"),
        (b"PK\x03\x04\x14\x00\x00\x00", "a zip archive"),
        (&safetensors, "a safetensors file"),
        (b"lmgg\x01\x00\x00\x00", "a GGML file"),
        (b"tjgg\x03\x00\x00\x00", "a GGJT file"),
        (b"\x1f\x8b\x08\x00", "a gzip archive"),
        (
            b"Entry not found\n",
            "text that starts with \"Entry not found\\n\"",
        ),
        (b"{\"error\": \"denied\"}", "text that starts with"),
        (&[0; 64], "zeros"),
        (b"\x01\x02\xff\xfe", "bytes 01 02 ff fe"),
        (b"GGU", "text that starts with \"GGU\""),
    ];
    for (bytes, name) in cases {
        std::fs::write(&path, bytes).unwrap();
        assert!(!Weights::is_gguf(&path), "{name}");
        says(
            &Weights::open(&path).unwrap_err(),
            "model.gguf",
            &["expected a GGUF file", name],
        );
        says(&Metadata::open(&path).unwrap_err(), "model.gguf", &[name]);
        says(
            &Weights::from_bytes(&path, bytes).unwrap_err(),
            "model.gguf",
            &[name],
        );
    }
}

#[test]
fn directories_pipes_and_missing_files() {
    let folder = tempfile::tempdir().unwrap();
    let directory = folder.path().join("directory.gguf");
    std::fs::create_dir(&directory).unwrap();
    says(
        &Weights::open(&directory).unwrap_err(),
        "directory.gguf",
        &["found a directory"],
    );
    assert!(!Weights::is_gguf(&directory));
    let missing = folder.path().join("missing.gguf");
    says(
        &Weights::open(&missing).unwrap_err(),
        "missing.gguf",
        &["o such file"],
    );
    assert!(!Weights::is_gguf(&missing));
}

#[cfg(unix)]
#[test]
fn links() {
    use std::os::unix::fs::symlink;
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    small().write_to(&path("real.gguf")).unwrap();
    symlink(path("real.gguf"), path("link.gguf")).unwrap();
    assert_eq!(
        Weights::open(&path("link.gguf")).unwrap().path(),
        path("link.gguf")
    );
    symlink(path("b.gguf"), path("a.gguf")).unwrap();
    symlink(path("a.gguf"), path("b.gguf")).unwrap();
    says(&Weights::open(&path("a.gguf")).unwrap_err(), "a.gguf", &[]);
    says(
        &Weights::open(Path::new("/dev/null")).unwrap_err(),
        "/dev/null",
        &["pipe, socket or device"],
    );
    assert!(!Weights::is_gguf(Path::new("/dev/null")));
    let trailing = format!("{}/", path("real.gguf").display());
    says(
        &Weights::open(trailing.as_ref()).unwrap_err(),
        "real.gguf/",
        &[],
    );
}

#[test]
fn names_of_any_script() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder
        .path()
        .join("Загрузки")
        .join("モデル é")
        .join("a b.gguf");
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    small().write_to(&path).unwrap();
    assert!(Weights::is_gguf(&path));
    let weights = Weights::open(&path).unwrap();
    assert_eq!(weights.path(), path);
    assert_eq!(weights.files(), [path.as_path()]);
    assert_eq!(
        weights.file_bytes(),
        std::fs::metadata(&path).unwrap().len()
    );
    says(
        &weights.require("absent").unwrap_err(),
        "モデル é/a b.gguf",
        &["tensor absent", "missing"],
    );
}

#[cfg(target_os = "linux")]
#[test]
fn names_that_are_not_text() {
    use std::os::unix::ffi::OsStrExt;
    let folder = tempfile::tempdir().unwrap();
    let path = folder
        .path()
        .join(std::ffi::OsStr::from_bytes(b"a\xff.gguf"));
    small().write_to(&path).unwrap();
    assert_eq!(
        Weights::open(&path).unwrap().require("t").unwrap().rows(),
        2
    );
}

#[test]
fn a_file_cut_short_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    let mut writer = small();
    writer.add_f32("last", &[512], &[1.0; 512]);
    let bytes = writer.to_bytes().unwrap();
    std::fs::write(&path, &bytes[..bytes.len() - 1024]).unwrap();
    let sizes = [
        format!("a file of {} bytes", bytes.len() - 1024),
        format!("at least {}", bytes.len()),
    ];
    says(
        &Weights::open(&path).unwrap_err(),
        "model.gguf",
        &["tensor last", &sizes[0], &sizes[1]],
    );
}

#[test]
fn handles_outlive_what_they_came_from() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    small().write_to(&path).unwrap();
    let weights = Weights::open(&path).unwrap();
    weights.prefetch();
    let address = weights.require("t").unwrap().data.as_ptr();
    assert_eq!(address.addr() % 8, 0);
    let owned = weights.owned("t").unwrap();
    assert!(weights.owned("absent").is_err());
    drop(weights);
    let other = std::thread::spawn(move || {
        (
            owned.data().as_ptr().addr(),
            owned.tensor().to_f32(),
            owned.info().clone(),
        )
    });
    let (there, values, info) = other.join().unwrap();
    assert_eq!(there, address.addr());
    assert_eq!(values, [1.0, 2.0, 3.0, 4.0]);
    assert_eq!((info.name.as_str(), info.rows(), info.cols()), ("t", 2, 2));
}
