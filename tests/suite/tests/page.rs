//! The page of the server, in a real browser.
#![cfg(unix)]

use backplane_tests::server::Server;
use backplane_tests::{SMOLLM2, real_model, root};
use std::path::Path;
use std::process::Command;

/// What it checks is in `page/page.mjs`; pictures of it are left in the folder of builds.
#[test]
fn the_page_in_a_browser() {
    let home = tempfile::tempdir().expect("a folder");
    let model = real_model(SMOLLM2);
    let model = model.to_str().expect("UTF-8");
    let server = Server::start(home.path(), None, &[model]).ready();
    let pictures = Path::new(env!("CARGO_TARGET_TMPDIR")).join("page");
    std::fs::create_dir_all(&pictures).expect("a folder");
    let chromium = root().join("cache/chromium");
    assert!(
        chromium.join("chromium").exists(),
        "no browser: `cargo verify` gets it"
    );
    let out = Command::new(root().join("cache/venv/bin/node"))
        .arg(root().join("tests/suite/tests/page/page.mjs"))
        .arg(&chromium)
        .arg(format!("http://{}/", server.address))
        .arg(&pictures)
        .output()
        .expect("Node runs");
    let said = String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success(), "{said}\n{}", server.err.text());
    let shown = pictures.join("backends-dark.png");
    assert!(std::fs::metadata(shown).is_ok_and(|file| file.len() > 10_000));
}
