//! What is refused, what is never overwritten, and how progress is told.

use super::*;

/// What a conversion refuses, in one line; nothing must remain of it.
#[track_caller]
pub(super) fn refused(weights: &Weights, options: ConvertOptions, part: &str) {
    let folder = tempfile::tempdir().unwrap();
    let error = try_convert(weights, &folder.path().join("model.gguf"), options).unwrap_err();
    let line = error.to_string();
    assert!(line.contains(part) && !line.contains('\n'), "{line}");
    assert_eq!(std::fs::read_dir(&folder).unwrap().count(), 0, "{line}");
}

#[test]
fn bad_tensors_are_refused_by_name_and_leave_no_file() {
    let single = |names: &[(&str, &[usize])]| {
        written(|writer| {
            for (name, shape) in names {
                writer.add_f32(*name, shape, &vec![1.0; shape.iter().product()]);
            }
        })
    };
    let gap = single(&[
        ("blk.0.ffn_up.0.weight", &[2, 32]),
        ("blk.0.ffn_up.2.weight", &[2, 32]),
    ]);
    refused(
        &gap,
        ConvertOptions::default(),
        "tensor blk.0.ffn_up.2.weight: found no tensor blk.0.ffn_up.1.weight, expected experts numbered from 0",
    );
    let late = single(&[("blk.0.ffn_up.18446744073709551615.weight", &[2, 32])]);
    refused(
        &late,
        ConvertOptions::default(),
        "no tensor blk.0.ffn_up.18446744073709551614.weight",
    );
    let uneven = single(&[
        ("blk.0.ffn_up.0.weight", &[2, 32]),
        ("blk.0.ffn_up.1.weight", &[4, 32]),
    ]);
    refused(
        &uneven,
        ConvertOptions::default(),
        "tensor blk.0.ffn_up.1.weight: found [4, 32] in F32, expected [2, 32] in F32, as expert 0 has",
    );
    let twice = single(&[
        ("blk.0.ffn_up.0.weight", &[2, 32]),
        ("blk.0.ffn_up_exps.weight", &[2, 32]),
    ]);
    refused(
        &twice,
        ConvertOptions::default(),
        "blk.0.ffn_up_exps.weight: found the name twice",
    );
    let bad = written(|writer| {
        let mut values = vec![1.0; 128];
        values[70] = f32::NAN;
        writer.add_f32("blk.0.ffn_up.weight", &[4, 32], &values);
    });
    refused(
        &bad,
        quantized(TensorType::Q4_0),
        "source.gguf: tensor blk.0.ffn_up.weight: found NaN in row 2, column 6, expected finite numbers",
    );
    refused(
        &bad,
        quantized(TensorType::IQ2_XS),
        "type IQ2_XS: expected another type: it needs an importance matrix",
    );
    let (copy, _) = converted(&bad, ConvertOptions::default());
    assert!(
        copy.require("blk.0.ffn_up.weight").unwrap().to_f32()[70].is_nan(),
        "copied as it is"
    );
}

#[test]
fn nothing_is_overwritten_unasked_and_the_source_never() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let mut writer = GgufWriter::new();
    writer
        .add_meta("general.architecture", "x")
        .add_f32("a.weight", &[2, 32], &[1.0; 64]);
    writer.write_to(&at("source.gguf")).unwrap();
    let weights = Weights::open(&at("source.gguf")).unwrap();
    let replace = ConvertOptions {
        replace: true,
        ..ConvertOptions::default()
    };
    let says = |to: &Path, options, part: &str| {
        let line = try_convert(&weights, to, options).unwrap_err().to_string();
        assert!(line.contains(part), "{line}");
    };

    std::fs::write(at("other"), "precious").unwrap();
    says(
        &at("other"),
        ConvertOptions::default(),
        "other: found a file, expected no file yet, or leave to replace it",
    );
    assert_eq!(std::fs::read(at("other")).unwrap(), b"precious");
    let before = std::fs::read(at("source.gguf")).unwrap();
    says(
        &at("source.gguf"),
        replace,
        "found a file of the model itself, expected another file",
    );
    says(&at("./source.gguf"), replace, "a file of the model itself");
    assert_eq!(std::fs::read(at("source.gguf")).unwrap(), before);
    says(folder.path(), replace, "found a directory");
    says(Path::new("/"), replace, "expected a file to write");
    says(Path::new(".."), replace, "expected a file to write");
    says(
        &at("missing/model.gguf"),
        replace,
        "missing: found nothing, expected a folder",
    );
    says(&at("other/model.gguf"), replace, "other");
    #[cfg(unix)]
    {
        std::os::unix::fs::symlink(at("source.gguf"), at("link")).unwrap();
        says(&at("link"), replace, "a file of the model itself");
        std::fs::remove_file(at("link")).unwrap();
        says(
            Path::new("/dev/null"),
            replace,
            "found a pipe, socket or device",
        );
    }

    // Cancelled at every moment there is: what was there stays, and nothing is left beside it.
    for moment in 0..2 {
        let mut calls = 0;
        let stopped = convert(&weights, &at("other"), replace, &mut |_, _, _| {
            calls += 1;
            if calls > moment {
                ControlFlow::Break(())
            } else {
                ControlFlow::Continue(())
            }
        });
        match stopped {
            Err(ModelError::Weights(Error::Cancelled)) => {}
            Ok(_) => assert_eq!(moment, 1, "the whole tensor was told of once"),
            Err(error) => panic!("{error}"),
        }
        if moment == 0 {
            assert_eq!(std::fs::read(at("other")).unwrap(), b"precious");
        }
    }
    assert!(Weights::open(&at("other")).is_ok(), "replaced");
    let mut names: Vec<_> = std::fs::read_dir(&folder)
        .unwrap()
        .map(|entry| entry.unwrap().file_name())
        .collect();
    names.sort();
    assert_eq!(names, ["other", "source.gguf"]);

    // As long as a name can be.
    let long = at(&"n".repeat(255));
    try_convert(&weights, &long, replace).unwrap();
    try_convert(&weights, &at(&"é".repeat(127)), replace).unwrap();
    assert!(Weights::open(&long).is_ok());
}

#[test]
fn what_describes_a_directory_is_never_replaced() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let source = fixtures_dir().join("tiny/qwen3-qknorm");
    for entry in source.read_dir().unwrap().flatten() {
        if entry.path().is_file() {
            std::fs::copy(entry.path(), at(entry.file_name().to_str().unwrap())).unwrap();
        }
    }
    std::fs::write(at("chat_template.jinja"), "{{ messages }}").unwrap();
    std::fs::write(at("readme.md"), "words").unwrap();
    let weights = backplane_models::hub::open(folder.path(), vec![]).unwrap();
    let replace = ConvertOptions {
        replace: true,
        ..ConvertOptions::default()
    };
    #[cfg(unix)]
    std::os::unix::fs::symlink(at("config.json"), at("link")).unwrap();
    for name in [
        "config.json",
        "tokenizer.json",
        "model.safetensors",
        "chat_template.jinja",
        #[cfg(unix)]
        "link",
    ] {
        let before = std::fs::read(at(name)).unwrap();
        let line = try_convert(&weights, &at(name), replace)
            .unwrap_err()
            .to_string();
        assert!(line.contains("found a file of the model itself"), "{line}");
        assert_eq!(std::fs::read(at(name)).unwrap(), before, "{name}");
    }
    // What is no part of it is, and a new file may come there.
    try_convert(&weights, &at("readme.md"), replace).unwrap();
    try_convert(&weights, &at("model.gguf"), ConvertOptions::default()).unwrap();
    try_convert(&weights, &at("model.gguf"), replace).unwrap();
}

#[test]
fn progress_counts_bytes_up_to_all_of_them() {
    let weights = open_tiny("mixtral", "config.json");
    let folder = tempfile::tempdir().unwrap();
    for (name, options) in [
        ("a", ConvertOptions::default()),
        ("b", quantized(TensorType::Q8_0)),
    ] {
        let mut told = Vec::new();
        convert(
            &weights,
            &folder.path().join(name),
            options,
            &mut |done, total, name| {
                told.push((done, total, name.to_owned()));
                ControlFlow::Continue(())
            },
        )
        .unwrap();
        let (_, total, _) = told[0];
        assert!(told.iter().all(|(_, of, _)| *of == total));
        assert!(told.is_sorted_by_key(|(done, _, _)| *done));
        assert_eq!(told.last().map(|(done, _, _)| *done), Some(total));
        let length = std::fs::metadata(folder.path().join(name)).unwrap().len();
        assert!(
            total < length && length < total + 40_000,
            "{total} of {length}"
        );
    }
}
