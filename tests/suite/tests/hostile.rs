//! Model files and plugin folders as users of other systems ran into them: one clear line each, and the rest works.

use backplane_tests::{SMOLLM2, fixture, host, real_model, run};
use serde_json::Value;
use std::path::{Path, PathBuf};

/// A GGUF of raw parts: magic, version, tensor count, metadata count, then whatever follows.
fn gguf(version: u32, tensors: u64, metadata: u64, rest: &[u8]) -> Vec<u8> {
    let mut bytes = b"GGUF".to_vec();
    bytes.extend(version.to_le_bytes());
    bytes.extend(tensors.to_le_bytes());
    bytes.extend(metadata.to_le_bytes());
    bytes.extend(rest);
    bytes
}

fn string(text: &str) -> Vec<u8> {
    let mut bytes = (text.len() as u64).to_le_bytes().to_vec();
    bytes.extend(text.as_bytes());
    bytes
}

/// A tensor's header: name, dimensions as GGUF orders them, type, offset.
fn tensor(name: &str, dimensions: &[u64], storage: u32, offset: u64) -> Vec<u8> {
    let mut bytes = string(name);
    bytes.extend((dimensions.len() as u32).to_le_bytes());
    dimensions
        .iter()
        .for_each(|dimension| bytes.extend(dimension.to_le_bytes()));
    bytes.extend(storage.to_le_bytes());
    bytes.extend(offset.to_le_bytes());
    bytes
}

fn entry(key: &str, kind: u32, value: &[u8]) -> Vec<u8> {
    let mut bytes = string(key);
    bytes.extend(kind.to_le_bytes());
    bytes.extend(value);
    bytes
}

fn cut(bytes: Vec<u8>, off: usize) -> Vec<u8> {
    bytes[..bytes.len() - off].to_vec()
}

fn rows() -> Vec<(&'static str, Vec<u8>, Vec<&'static str>)> {
    let tiny = std::fs::read(fixture("tiny/llama3-gqa/model-f32.gguf")).expect("a model");
    let safetensors = std::fs::read(fixture("tiny/llama3-gqa/model.safetensors")).expect("a model");
    let alignment =
        |kind: u32, value: &[u8]| gguf(3, 0, 1, &entry("general.alignment", kind, value));
    let key_length = [0xFFFF_FFFF_FFFF_u64.to_le_bytes().as_slice(), &[0; 8]].concat();
    let array = [
        9_u32.to_le_bytes().as_slice(),
        &4_u32.to_le_bytes(),
        &(1_u64 << 60).to_le_bytes(),
    ]
    .concat();
    let twice = [entry("a", 4, &[0; 4]), entry("a", 4, &[0; 4])].concat();
    vec![
        (
            "zero dimension",
            gguf(3, 1, 0, &tensor("blk", &[1, 0], 0, 0)),
            vec!["blk", "0"],
        ),
        (
            "key length",
            gguf(3, 0, 1, &key_length),
            vec!["24", "281474976710655"],
        ),
        (
            "array of 2^60",
            gguf(3, 0, 1, &[string("k"), array[4..].to_vec()].concat()),
            vec!["k"],
        ),
        (
            "count of 2^60",
            gguf(3, 1 << 60, 0, &[]),
            vec!["1152921504606846976"],
        ),
        (
            "product that wraps",
            gguf(3, 1, 0, &tensor("blk", &[1 << 20, (1 << 42) + 1], 0, 0)),
            vec!["blk"],
        ),
        (
            "offset near 2^64",
            gguf(3, 1, 0, &tensor("blk", &[32], 0, u64::MAX - 31)),
            vec!["blk"],
        ),
        (
            "alignment of i32",
            alignment(5, &32_i32.to_le_bytes()),
            vec!["general.alignment"],
        ),
        (
            "alignment 0",
            alignment(4, &0_u32.to_le_bytes()),
            vec!["general.alignment", "0"],
        ),
        (
            "alignment 3",
            alignment(4, &3_u32.to_le_bytes()),
            vec!["general.alignment", "3"],
        ),
        (
            "alignment 2^30",
            alignment(4, &(1_u32 << 30).to_le_bytes()),
            vec!["general.alignment", "1073741824"],
        ),
        ("duplicate key", gguf(3, 0, 2, &twice), vec!["a"]),
        ("version 1", gguf(1, 0, 0, &[]), vec!["version", "1"]),
        ("version 4", gguf(4, 0, 0, &[]), vec!["version", "4"]),
        (
            "big-endian",
            gguf(0x0300_0000, 0, 0, &[]),
            vec!["big-endian"],
        ),
        (
            "a web page",
            b"<!DOCTYPE html><html><body>404</body></html>".to_vec(),
            vec!["HTML"],
        ),
        (
            "a pointer",
            b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n".to_vec(),
            vec!["Git LFS"],
        ),
        ("a zip", b"PK\x03\x04\x14\x00\x00\x00".to_vec(), vec!["zip"]),
        ("nothing", Vec::new(), vec!["empty"]),
        ("safetensors", safetensors, vec!["safetensors"]),
        (
            "last KiB cut",
            cut(tiny.clone(), 1024),
            vec!["expected", "bytes"],
        ),
        ("header cut", tiny[..100].to_vec(), vec!["offset"]),
    ]
}

#[test]
fn a_broken_model_file_gets_one_line_and_exit_code_four() {
    let home = tempfile::tempdir().expect("a folder");
    for (name, bytes, parts) in rows() {
        let file = home.path().join(format!("{}.gguf", name.replace(' ', "-")));
        std::fs::write(&file, bytes).expect("a file");
        for verb in ["run", "show"] {
            let path = file.to_str().expect("UTF-8");
            let arguments = if verb == "run" {
                vec!["run", path, "hi"]
            } else {
                vec!["show", path]
            };
            let ran = run(home.path(), &arguments);
            assert_eq!(ran.code, Some(4), "{name}, {verb}: {}", ran.err);
            assert!(ran.out.is_empty(), "{name}, {verb}: {}", ran.out);
            let errors: Vec<&str> = ran
                .err
                .lines()
                .filter(|line| line.starts_with("error"))
                .collect();
            assert_eq!(errors.len(), 1, "{name}, {verb}: {}", ran.err);
            let file_name = file
                .file_name()
                .and_then(|name| name.to_str())
                .expect("a name");
            for part in parts.iter().chain([&file_name]) {
                assert!(
                    errors[0].contains(part),
                    "{name}, {verb}: no {part:?} in {:?}",
                    errors[0]
                );
            }
        }
    }
}

#[test]
fn folders_names_and_links() {
    let home = tempfile::tempdir().expect("a folder");
    let folder = home.path().join("Загрузки/モデル é");
    std::fs::create_dir_all(&folder).expect("a folder");
    std::fs::copy(
        fixture("tiny/llama3-gqa/model-f32.gguf"),
        folder.join("a b.gguf"),
    )
    .expect("a copy");
    let named = folder.join("a b.gguf");
    let tokens = run(
        home.path(),
        &["tokenize", named.to_str().expect("UTF-8"), "abc", "--json"],
    )
    .json();
    assert!(!tokens["tokens"].as_array().expect("tokens").is_empty());
    let from_home = run(
        home.path(),
        &["tokenize", "~/Загрузки/モデル é/a b.gguf", "abc", "--json"],
    )
    .json();
    assert_eq!(from_home["tokens"], tokens["tokens"]);

    std::fs::create_dir(home.path().join("empty")).expect("a folder");
    let ran = run(home.path(), &["run", "empty/", "hi"]);
    assert_eq!(ran.code, Some(4), "{}", ran.err);
    assert!(ran.err.contains("empty"), "{}", ran.err);

    #[cfg(unix)]
    {
        std::os::unix::fs::symlink("loop.gguf", home.path().join("loop.gguf")).expect("a link");
        std::os::unix::fs::symlink(home.path(), home.path().join("empty/again")).expect("a link");
        let ran = run(home.path(), &["run", "loop.gguf", "hi"]);
        assert_eq!(ran.code, Some(4), "{}", ran.err);
        // The whole home, with a folder that contains itself and a link that leads to itself.
        let listed = run(
            home.path(),
            &["models", home.path().to_str().expect("UTF-8"), "--json"],
        )
        .json();
        let models = listed["models"].as_array().expect("models");
        assert_eq!(models.len(), 2, "{listed}");
        let problem = models[0]["problem"].as_str().expect("a problem");
        assert!(problem.contains("symbolic links"), "{listed}");
        assert_eq!(models[1]["problem"], Value::Null, "{listed}");
    }
}

/// A folder of modules with its manifest, made for one test.
struct Chassis {
    home: tempfile::TempDir,
}

impl Chassis {
    fn new(manifest: &str) -> Self {
        let home = tempfile::tempdir().expect("a folder");
        std::fs::create_dir(home.path().join("modules")).expect("a folder");
        let chassis = Self { home };
        std::fs::write(chassis.manifest(), manifest).expect("a manifest");
        chassis
    }

    fn manifest(&self) -> PathBuf {
        self.home.path().join("plugins.toml")
    }

    fn module(&self, name: &str) -> PathBuf {
        self.home
            .path()
            .join("modules")
            .join(format!("{name}{}", std::env::consts::DLL_SUFFIX))
    }

    fn run(&self, arguments: &[&str]) -> backplane_tests::Ran {
        let manifest = self.manifest();
        let mut all = vec!["--manifest", manifest.to_str().expect("UTF-8")];
        all.extend(arguments);
        run(self.home.path(), &all)
    }

    /// State and message of the first plugin with this name or module file name.
    fn verdict(&self, name: &str) -> (String, String) {
        let listed = self.run(&["plugins", "--json"]).json();
        let plugins = listed["plugins"].as_array().expect("plugins");
        let of = |plugin: &&Value| {
            plugin["name"] == name
                || plugin["path"]
                    .as_str()
                    .and_then(|path| Path::new(path).file_stem()?.to_str())
                    == Some(name)
        };
        let plugin = plugins
            .iter()
            .find(of)
            .unwrap_or_else(|| panic!("{name} is not in {listed}"));
        let text = |key: &str| {
            plugin["verdict"][key]
                .as_str()
                .unwrap_or_default()
                .to_owned()
        };
        (text("state"), text("message"))
    }
}

fn cpu_module() -> PathBuf {
    host()
        .parent()
        .expect("a folder")
        .join("plugins")
        .join(format!("cpu{}", std::env::consts::DLL_SUFFIX))
}

#[test]
fn hostile_modules_have_verdicts_and_the_rest_works() {
    let chassis = Chassis::new("directories = [\"modules\"]\norder = [\"*\"]\n");
    let module = std::fs::read(cpu_module()).expect("the module");
    std::fs::write(chassis.module("cpu"), &module).expect("a module");
    std::fs::write(chassis.module("half"), &module[..module.len() / 2]).expect("a module");
    std::fs::write(chassis.module("words"), "this is a text file\n").expect("a module");
    std::fs::write(chassis.module("nothing"), "").expect("a module");
    let mut other = module.clone();
    // e_machine of an ELF header: AArch64 on x86-64 and the other way round.
    other[18..20].copy_from_slice(
        &if cfg!(target_arch = "x86_64") {
            183_u16
        } else {
            62
        }
        .to_le_bytes(),
    );
    std::fs::write(chassis.module("other"), other).expect("a module");

    for (name, state, part) in [
        ("cpu", "available", ""),
        ("half", "incompatible", "truncated"),
        ("words", "incompatible", "text"),
        ("nothing", "incompatible", "empty"),
        (
            "other",
            "incompatible",
            if cfg!(target_arch = "x86_64") {
                "AArch64"
            } else {
                "x86-64"
            },
        ),
    ] {
        let (found, message) = chassis.verdict(name);
        assert_eq!(found, state, "{name}: {message}");
        assert!(
            message.to_lowercase().contains(&part.to_lowercase()),
            "{name}: {message}"
        );
        assert!(!message.contains('\n'), "{name}: {message}");
    }
    let tiny = fixture("tiny/llama3-gqa/model-f32.gguf")
        .canonicalize()
        .expect("a path");
    let reply = chassis
        .run(&[
            "run",
            tiny.to_str().expect("UTF-8"),
            "--raw",
            "abc",
            "--max-tokens",
            "2",
            "--json",
        ])
        .json();
    assert_eq!(reply["backend"], "cpu");
}

#[test]
fn absent_disabled_pinned_and_incompatible_differ() {
    let chassis = Chassis::new(
        "directories = [\"modules\"]\n[plugin.gone]\npath = \"modules/gone.so\"\n[plugin.off]\nenabled = false\n\
         path = \"modules/off.so\"\n",
    );
    // Opening this one would end the program: it must not be touched.
    std::fs::write(chassis.home.path().join("modules/off.so"), "not opened").expect("a module");
    assert_eq!(chassis.verdict("gone").0, "absent");
    assert_eq!(chassis.verdict("off").0, "disabled");

    let pinned = Chassis::new(&format!(
        "directories = [\"modules\"]\n[plugin.cpu]\nsha256 = \"{}\"\n",
        "0".repeat(64)
    ));
    std::fs::copy(cpu_module(), pinned.module("cpu")).expect("a module");
    let (state, message) = pinned.verdict("cpu");
    assert_eq!(state, "untrusted", "{message}");
    assert!(message.contains("0000"), "{message}");
}

#[cfg(unix)]
#[test]
fn a_folder_that_anyone_may_write_to_is_not_trusted() {
    use std::os::unix::fs::PermissionsExt;
    let chassis = Chassis::new("directories = [\"modules\"]\n");
    std::fs::copy(cpu_module(), chassis.module("cpu")).expect("a module");
    let open = std::fs::Permissions::from_mode(0o777);
    std::fs::set_permissions(chassis.home.path().join("modules"), open).expect("permissions");
    assert_eq!(chassis.verdict("cpu").0, "untrusted");
}

#[test]
fn of_two_modules_of_one_plugin_one_wins_by_rule() {
    let chassis = Chassis::new("directories = [\"modules\", \"second\"]\n");
    let second = chassis.home.path().join("second");
    std::fs::create_dir(&second).expect("a folder");
    std::fs::copy(cpu_module(), chassis.module("cpu")).expect("a module");
    std::fs::copy(
        cpu_module(),
        second.join(format!("cpu{}", std::env::consts::DLL_SUFFIX)),
    )
    .expect("a module");
    let listed = chassis.run(&["plugins", "--json"]).json();
    let cpus: Vec<&Value> = listed["plugins"]
        .as_array()
        .expect("plugins")
        .iter()
        .filter(|plugin| plugin["name"] == "cpu")
        .collect();
    assert_eq!(cpus.len(), 2, "{listed}");
    assert_eq!(cpus[0]["verdict"]["state"], "available");
    assert!(
        cpus[0]["path"]
            .as_str()
            .expect("a path")
            .contains("modules")
    );
    assert_ne!(cpus[1]["verdict"]["state"], "available");
    assert!(
        cpus[1]["verdict"]["message"]
            .as_str()
            .expect("a message")
            .contains("modules"),
        "{listed}"
    );
}

#[test]
fn nothing_outside_the_order_is_chosen_and_a_drop_in_needs_no_entry() {
    let only_metal = Chassis::new("directories = [\"modules\"]\norder = [\"metal\"]\n");
    std::fs::copy(cpu_module(), only_metal.module("cpu")).expect("a module");
    let model = real_model(SMOLLM2);
    let model = model.to_str().expect("UTF-8");
    let ran = only_metal.run(&["run", model, "hi"]);
    assert_eq!(ran.code, Some(3), "{}", ran.err);
    assert!(ran.err.contains("metal"), "{}", ran.err);

    let undiscovered = Chassis::new("directories = [\"modules\"]\ndiscover = false\n");
    std::fs::copy(cpu_module(), undiscovered.module("cpu")).expect("a module");
    assert_eq!(undiscovered.run(&["run", model, "hi"]).code, Some(3));

    let fallback = Chassis::new(
        "directories = [\"modules\"]\norder = [\"half\", \"cpu\"]\nfallback = \"deny\"\n",
    );
    std::fs::copy(cpu_module(), fallback.module("cpu")).expect("a module");
    std::fs::write(fallback.module("half"), b"\x7fELF").expect("a module");
    let ran = fallback.run(&["run", model, "hi"]);
    assert_eq!(ran.code, Some(3), "{}", ran.err);
    assert!(ran.err.contains("half"), "{}", ran.err);
    std::fs::write(
        fallback.manifest(),
        "directories = [\"modules\"]\norder = [\"half\", \"cpu\"]\nfallback = \"warn\"\n",
    )
    .expect("a manifest");
    let ran = fallback.run(&["run", model, "--max-tokens", "1", "--json", "hi"]);
    assert!(ran.err.contains("half"), "{}", ran.err);
    let reply = ran.json();
    assert_eq!(reply["backend"], "cpu");
    assert!(reply["selection"].to_string().contains("half"), "{reply}");
}

#[test]
fn a_manifest_with_a_wrong_key_names_line_and_nearest() {
    let chassis = Chassis::new("directories = [\"modules\"]\nfalback = \"warn\"\n");
    let ran = chassis.run(&["plugins"]);
    assert_eq!(ran.code, Some(2), "{}", ran.err);
    for part in ["plugins.toml", "2", "falback", "fallback"] {
        assert!(ran.err.contains(part), "{part}: {}", ran.err);
    }
}

#[cfg(target_os = "linux")]
#[test]
fn a_module_that_misses_a_library_is_named_and_never_silently_replaced() {
    let chassis = Chassis::new("directories = [\"modules\"]\norder = [\"rocm\", \"cpu\"]\n");
    std::fs::copy(cpu_module(), chassis.module("cpu")).expect("a module");
    let folder = chassis.home.path();
    let compile = |arguments: &[&str]| {
        let mut compiler = std::process::Command::new("gcc");
        assert!(
            compiler
                .args(arguments)
                .current_dir(folder)
                .status()
                .expect("gcc")
                .success()
        );
    };
    std::fs::write(
        folder.join("empty.c"),
        "int backplane_test_symbol(void) { return 1; }\n",
    )
    .expect("a source");
    std::fs::write(
        folder.join("needs.c"),
        "int backplane_test_symbol(void);\nint needs(void) { return backplane_test_symbol(); }\n",
    )
    .expect("a source");
    compile(&[
        "-shared",
        "-fPIC",
        "-o",
        "libamdhip64.so.6",
        "-Wl,-soname,libamdhip64.so.6",
        "empty.c",
    ]);
    compile(&[
        "-shared",
        "-fPIC",
        "-o",
        "modules/rocm.so",
        "needs.c",
        "libamdhip64.so.6",
    ]);
    std::fs::remove_file(folder.join("libamdhip64.so.6")).expect("removed");

    let (state, message) = chassis.verdict("rocm");
    assert_eq!(state, "missing_library", "{message}");
    assert!(message.contains("libamdhip64.so.6"), "{message}");
    // The reply's metadata and the log say so; asked for by name, it is an error.
    let tiny = fixture("tiny/llama3-gqa/model-f32.gguf")
        .canonicalize()
        .expect("a path");
    let tiny = tiny.to_str().expect("UTF-8");
    let ran = chassis.run(&["run", tiny, "--raw", "abc", "--max-tokens", "1", "--json"]);
    assert!(ran.err.contains("libamdhip64.so.6"), "{}", ran.err);
    let reply = ran.json();
    assert_eq!(reply["backend"], "cpu");
    assert!(
        reply["notice"]
            .as_str()
            .is_some_and(|notice| notice.contains("rocm")),
        "{reply}"
    );
    let pinned = chassis.run(&["run", tiny, "--raw", "abc", "--backend", "rocm"]);
    assert_eq!(pinned.code, Some(3), "{}", pinned.err);
    assert!(pinned.err.contains("libamdhip64.so.6"), "{}", pinned.err);
}

#[test]
fn an_explicit_path_means_that_very_module() {
    let chassis =
        Chassis::new("directories = [\"modules\"]\n[plugin.cpu]\npath = \"nowhere.so\"\n");
    std::fs::copy(cpu_module(), chassis.module("cpu")).expect("a module");
    let tiny = fixture("tiny/llama3-gqa/model-f32.gguf")
        .canonicalize()
        .expect("a path");
    let ran = chassis.run(&["run", tiny.to_str().expect("UTF-8"), "--raw", "abc"]);
    assert_eq!(ran.code, Some(3), "{} {}", ran.out, ran.err);
    assert!(ran.err.contains("cpu"), "{}", ran.err);
}

#[test]
fn what_is_no_model_is_said() {
    let home = tempfile::tempdir().expect("a folder");
    let folder = home.path();
    std::fs::create_dir(folder.join("bare")).expect("a folder");
    std::fs::write(folder.join("words"), "some words, not a model at all").expect("a file");
    std::fs::write(
        folder.join("pointer"),
        "version https://git-lfs.github.com/spec/v1\n",
    )
    .expect("a file");
    let safetensors = fixture("tiny/llama3-gqa/model.safetensors");
    std::fs::create_dir(folder.join("alone")).expect("a folder");
    std::fs::copy(safetensors, folder.join("alone/model.safetensors")).expect("a copy");
    for (model, what) in [
        ("bare", "folder without model files"),
        ("words", "text file"),
        ("pointer", "Git LFS"),
        ("alone/model.safetensors", "config.json"),
    ] {
        for verb in ["run", "show"] {
            let arguments = if verb == "run" {
                vec![verb, model, "hi"]
            } else {
                vec![verb, model]
            };
            let ran = run(folder, &arguments);
            assert_eq!(ran.code, Some(4), "{model}: {}", ran.err);
            assert!(ran.err.contains(what), "{verb} {model}: {}", ran.err);
        }
    }
}

#[cfg(target_os = "linux")]
#[test]
fn a_path_that_is_not_utf8_is_listed_and_breaks_no_json() {
    use std::os::unix::ffi::OsStrExt;
    let home = tempfile::tempdir().expect("a folder");
    let odd = home.path().join(std::ffi::OsStr::from_bytes(b"odd\xff"));
    std::fs::create_dir(&odd).expect("a folder");
    std::fs::copy(
        fixture("tiny/llama3-gqa/model-f32.gguf"),
        odd.join("a.gguf"),
    )
    .expect("a copy");
    let listed = run(
        home.path(),
        &["models", home.path().to_str().expect("UTF-8"), "--json"],
    )
    .json();
    assert!(
        listed["models"][0]["path"]
            .as_str()
            .is_some_and(|path| path.ends_with("a.gguf")),
        "{listed}"
    );
}
