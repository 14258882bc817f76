use super::*;

fn touch(path: &Path) {
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(path, "x").unwrap();
}

fn catalog(root: &Path) -> Catalog {
    let folders = Folders {
        models: Some(root.to_path_buf()),
        home: Some(root.to_path_buf()),
        ..Folders::default()
    };
    Catalog::new(&folders)
}

fn names(root: &Path) -> Vec<String> {
    scan(root)
        .map(|path| {
            path.strip_prefix(root)
                .unwrap()
                .to_string_lossy()
                .into_owned()
        })
        .collect()
}

#[test]
fn files_folders_shards_and_hidden_ones() {
    let root = tempfile::tempdir().unwrap();
    for file in [
        "b.gguf",
        "Загрузки/модель é/a b.GGUF",
        "big-00001-of-00003.gguf",
        "big-00002-of-00003.gguf",
        "big-00003-of-00003.gguf",
        "late-00002-of-00002.gguf",
        "tensors/model-00001-of-00002.safetensors",
        "tensors/model-00002-of-00002.safetensors",
        ".hidden/c.gguf",
        ".d.gguf",
        "notes.txt",
    ] {
        touch(&root.path().join(file));
    }
    let expected = [
        "b.gguf",
        "big-00001-of-00003.gguf",
        "late-00002-of-00002.gguf",
        "tensors",
        "Загрузки/модель é/a b.GGUF",
    ];
    assert_eq!(names(root.path()), expected);
    assert_eq!(
        model_name(&root.path().join("big-00001-of-00003.gguf")),
        "big"
    );
    assert_eq!(bytes_on_disk(&root.path().join("tensors")), 2);
}

#[cfg(unix)]
#[test]
fn links_in_a_circle_end() {
    let root = tempfile::tempdir().unwrap();
    touch(&root.path().join("a/m.gguf"));
    std::os::unix::fs::symlink(root.path(), root.path().join("a/up")).unwrap();
    std::os::unix::fs::symlink(root.path().join("gone"), root.path().join("a/x.gguf")).unwrap();
    assert_eq!(
        names(root.path())
            .iter()
            .filter(|name| name.ends_with("m.gguf"))
            .count(),
        1
    );
    std::os::unix::fs::symlink("self.gguf", root.path().join("self.gguf")).unwrap();
    let error = catalog(root.path()).resolve(&root.path().join("self.gguf").display().to_string());
    assert!(
        error
            .unwrap_err()
            .line()
            .contains("a link that leads nowhere")
    );
}

#[test]
fn names_are_found_whatever_their_case() {
    let root = tempfile::tempdir().unwrap();
    let file = root.path().join("family/SmolLM2-135M.Q4_1.gguf");
    touch(&file);
    touch(&root.path().join("big-00001-of-00002.gguf"));
    let catalog = catalog(root.path());
    for name in [
        "smollm2-135m.q4_1",
        "SmolLM2-135M.Q4_1.gguf",
        "family/smollm2-135M.Q4_1",
        &file.display().to_string(),
        &format!("{}/", file.display()),
        "~/family/SmolLM2-135M.Q4_1.gguf",
    ] {
        assert_eq!(catalog.resolve(name).unwrap(), file, "{name}");
    }
    assert!(
        catalog
            .resolve("BIG")
            .unwrap()
            .ends_with("big-00001-of-00002.gguf")
    );
}

#[test]
fn misses_name_the_nearest_or_the_place() {
    let root = tempfile::tempdir().unwrap();
    touch(&root.path().join("smollm2.gguf"));
    touch(&root.path().join("x/twin.gguf"));
    touch(&root.path().join("y/twin.gguf"));
    let line = |name: &str| catalog(root.path()).resolve(name).unwrap_err().line();
    assert!(
        line("smolm2").contains("did you mean `smollm2`?"),
        "{}",
        line("smolm2")
    );
    assert!(
        line("./none.gguf").contains("no such file or folder"),
        "{}",
        line("./none.gguf")
    );
    assert!(
        line("twin").contains("the name of 2 models"),
        "{}",
        line("twin")
    );
    assert!(line("").contains("empty"));
    assert!(line("zzzzzzzzzzzzzzzz").contains(&root.path().display().to_string()));
    assert_eq!(
        catalog(root.path()).resolve("zzz").unwrap_err().exit_code(),
        4
    );
}
