//! `plugins pin`.

use super::{echo_as, home, refused, report, text, write};
use backplane_tests::{Ran, run};
use serde_json::Value;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use tempfile::TempDir;

/// A manifest of odd ways, with a place for the pin of echo_a.
const RICH: &str = "# Head, with a tab\there.\norder = [ \"echo_a\",\n  '*' ]  # mine\n\n[plugin . rocm] # off\nenabled=false\n\n\
                    # Of echo.\n[plugin.Echo-A]\npath   =  'echo_a.so' # here\n@PIN@\n[plugin.Echo-A.options] # none\n# the end";

fn rich(home: &TempDir, pin: &str, end: &str) -> PathBuf {
    write(
        home,
        "plugins.toml",
        RICH.replace("@PIN@\n", pin).replace('\n', end),
    )
}

fn pin(home: &TempDir, manifest: &Path, more: &[&str]) -> Ran {
    let mut arguments = vec!["plugins", "pin", "--manifest", text(manifest)];
    arguments.extend(more);
    run(home.path(), &arguments)
}

#[test]
fn a_pin_leaves_every_other_byte() {
    let home = home();
    let module = echo_as(&home, "echo_a.so");
    let told = run(
        home.path(),
        &["plugins", "inspect", text(&module), "--file-only", "--json"],
    )
    .json();
    let sha256 = told["file"]["sha256"].as_str().expect("a hash").to_owned();
    let old = format!("sha256='{}' # of last week\n", "0".repeat(64));
    for end in ["\n", "\r\n"] {
        for before in ["", &old] {
            let manifest = rich(&home, before, end);
            assert_eq!(
                pin(&home, &manifest, &["--check"]).code,
                Some(3),
                "it is not pinned so"
            );
            let ran = pin(&home, &manifest, &["echo-A"]);
            assert_eq!(ran.code, Some(0), "{}", ran.err);
            let line = if before.is_empty() {
                format!("sha256 = \"{sha256}\"\n")
            } else {
                format!("sha256=\"{sha256}\" # of last week\n")
            };
            let expected = RICH.replace("@PIN@\n", &line).replace('\n', end);
            let written = std::fs::read_to_string(&manifest).expect("the manifest");
            assert_eq!(written, expected);
            assert_eq!(pin(&home, &manifest, &["--check"]).code, Some(0));
        }
    }
    // The pin holds: the file as it is opens, another does not.
    let plugin = || {
        let manifest = home.path().join("plugins.toml");
        let all = run(
            home.path(),
            &["plugins", "--json", "--manifest", text(&manifest)],
        )
        .json();
        let plugins = all["plugins"].as_array().expect("plugins").clone();
        let found = plugins
            .into_iter()
            .find(|plugin| plugin["name"] == "echo_a");
        found.expect("it is listed")["verdict"]["state"].clone()
    };
    assert_eq!(plugin(), "available");
    let mut bytes = std::fs::read(&module).expect("the module");
    bytes.push(0);
    std::fs::write(&module, bytes).expect("another module");
    assert_eq!(plugin(), "untrusted");
    let manifest = home.path().join("plugins.toml");
    let told: Value = report(&pin(&home, &manifest, &["--check", "--json"]));
    assert_eq!(
        (&told["plugins"][0]["state"], &told["written"]),
        (&"differs".into(), &false.into())
    );
    // Nothing but the manifest lies beside it.
    let left: Vec<_> = std::fs::read_dir(home.path())
        .expect("a folder")
        .flatten()
        .map(|entry| entry.file_name())
        .filter(|name| name.to_string_lossy().starts_with('.'))
        .collect();
    assert!(left.is_empty(), "{left:?}");
}

#[test]
fn a_linked_manifest_stays_a_link_and_modes_stay() {
    let home = home();
    echo_as(&home, "echo_a.so");
    std::fs::create_dir(home.path().join("real")).expect("a folder");
    let real = write(
        &home,
        "real/plugins.toml",
        "[plugin.echo_a]\npath = \"../echo_a.so\"\n",
    );
    std::fs::set_permissions(&real, std::fs::Permissions::from_mode(0o640)).expect("a mode");
    let link = home.path().join("real/linked.toml");
    symlink("plugins.toml", &link).expect("a link");
    let ran = pin(&home, &link, &[]);
    assert_eq!(ran.code, Some(0), "{}", ran.err);
    assert!(link.symlink_metadata().expect("the link").is_symlink());
    let mode = std::fs::metadata(&real)
        .expect("the manifest")
        .permissions()
        .mode();
    assert_eq!(mode & 0o777, 0o640);
    assert!(
        std::fs::read_to_string(&real)
            .expect("the manifest")
            .contains("sha256 = ")
    );
}

#[test]
fn what_can_not_be_pinned_is_said_and_nothing_written() {
    let home = home();
    echo_as(&home, "echo_a.so");
    let manifest = rich(&home, "", "\n");
    let before = std::fs::read(&manifest).expect("the manifest");
    refused(
        &pin(&home, &manifest, &["echo_b"]),
        2,
        &["`echo_b`", "did you mean `echo_a`"],
    );
    refused(
        &pin(&home, &manifest, &["rocm"]),
        2,
        &["rocm", "switched off"],
    );
    std::fs::set_permissions(&manifest, std::fs::Permissions::from_mode(0o444)).expect("a mode");
    refused(
        &pin(&home, &manifest, &[]),
        2,
        &["plugins.toml", "read-only"],
    );
    assert_eq!(std::fs::read(&manifest).expect("the manifest"), before);
    let broken = write(&home, "broken.toml", "[plugin.echo_a\n");
    refused(&pin(&home, &broken, &[]), 2, &["broken.toml:1:"]);
    refused(&pin(&home, Path::new("gone.toml"), &[]), 2, &["gone.toml"]);
    // A module whose file has another name than the plugin would get an entry that is not heeded.
    std::fs::create_dir(home.path().join("plugins")).expect("a folder");
    echo_as(&home, "plugins/other.so");
    let bare = write(&home, "bare.toml", "# bare");
    refused(
        &pin(&home, &bare, &[]),
        2,
        &["is the plugin `echo_a`", "says `other`"],
    );
    assert_eq!(
        std::fs::read_to_string(&bare).expect("the manifest"),
        "# bare"
    );
    // With its own name it gets one.
    std::fs::rename(
        home.path().join("plugins/other.so"),
        home.path().join("plugins/libecho_a.so"),
    )
    .expect("a new name");
    let ran = pin(&home, &bare, &[]);
    assert_eq!(ran.code, Some(0), "{}", ran.err);
    let written = std::fs::read_to_string(&bare).expect("the manifest");
    assert!(
        written.starts_with("# bare\n\n[plugin.echo_a]\nsha256 = \""),
        "{written}"
    );
}
